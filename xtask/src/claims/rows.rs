//! The figures of a record as claims: `cargo xtask claims --rows results/h200/walls.json`.
//!
//! Records say what they are by what they have in them. Each figure that is there becomes a claim, unless the ledger has it: what somebody has said
//! about a claim (a floor, a goal) stays.

mod measure;
mod sides;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::ledger::{LEDGER, Ledger};
use crate::workspace;

/// A claim to be.
struct Entry {
    id: String,
    what: String,
    unit: &'static str,
    better: &'static str,
    /// Where in the record.
    pointer: String,
}

/// Enters the figures of the record at `file` (a path from the root) that the ledger lacks; how many there were. Their values are
/// still to be taken over.
///
/// # Errors
/// A record that cannot be read, or was not measured.
pub(super) fn enter(root: &Path, file: &Path, ledger: &Ledger) -> Result<usize> {
    let shown = file.display();
    let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("reading {shown}"))?;
    let record: Value = serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
    let pretended = &record["pretended"];
    if record["simulated"] != false || !(pretended.is_null() || *pretended == false) {
        bail!("{shown} is no measurement on a GPU; only those are claimed");
    }
    let entries =
        sides::of_map(&record).or_else(|| sides::of_neighbours(&record)).or_else(|| measure::rows(&record));
    let (Some(entries), Some(command)) = (entries, record["command"].as_str()) else {
        bail!(
            "{shown} has no figures under names that stay (`summary`, `sides`), or no `command`; `partywall measure`, `measure merge`, `vram map` and \
             `vram interfere` write them"
        );
    };
    let command = toml::Value::from(command);
    let mut claims = String::new();
    let mut count = 0;
    let lacks = |entry: &Entry| {
        record.pointer(&entry.pointer).is_some_and(Value::is_number) && ledger.get(&entry.id).is_none()
    };
    for Entry { id, what, unit, better, pointer } in entries.into_iter().filter(lacks) {
        // As many digits as are checked: of small counts none.
        let value = if unit == "1" { "0" } else { "0.000" };
        let what = toml::Value::from(what);
        writeln!(
            claims,
            "\n[[claim]]\nid = \"{id}\"\nwhat = {what}\nvalue = {value}\nunit = \"{unit}\"\nkind = \"measured\"\n\
             better = \"{better}\"\nfile = \"{shown}\"\npointer = \"{pointer}\"\ncommand = {command}",
        )?;
        count += 1;
    }
    let known = std::fs::read_to_string(root.join(LEDGER)).with_context(|| format!("reading {LEDGER}"))?;
    workspace::write(root, Path::new(LEDGER), &(known.trim_end().to_owned() + "\n" + &claims))?;
    Ok(count)
}
