//! The figures of a measured record's rows as claims: `cargo xtask claims --rows results/h200/walls.json`.
//!
//! A record of `partywall measure` has them under `summary`, by names that stay when rows move. Each figure that is there becomes a
//! claim `sm.<ls>.<be>.<wall>.<figure>`, unless the ledger has it: what somebody has said about a claim (a floor, a goal) stays.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::ledger::{LEDGER, Ledger};
use crate::workspace;

/// The figures of a row: their names in the record, what they are, and which way they get better.
const FIGURES: [(&str, &str, &str); 3] = [
    ("slowdown_p99", "p99 of service times over solo", "lower"),
    ("response_slowdown_p99", "p99 of response times over solo", "lower"),
    ("be_kept", "rate of the best-effort tenant over solo", "higher"),
];

/// Enters the figures of the record at `file` (a path from the root) that the ledger lacks; how many there were. Their values are
/// still to be taken over.
///
/// # Errors
/// A record that cannot be read, or was not measured.
pub(super) fn enter(root: &Path, file: &Path, ledger: &Ledger) -> Result<usize> {
    let shown = file.display();
    let text = std::fs::read_to_string(root.join(file)).with_context(|| format!("reading {shown}"))?;
    let record: Value = serde_json::from_str(&text).with_context(|| format!("{shown} is not JSON"))?;
    if record["simulated"] != false || record["pretended"] != false {
        bail!("{shown} is no measurement on a GPU; only those are claimed");
    }
    let (Some(summary), Some(command)) = (record["summary"].as_object(), record["command"].as_str()) else {
        bail!("{shown} has no `summary` of its rows; `partywall measure` and `measure merge` write one");
    };
    let mut entries = String::new();
    let mut count = 0;
    let names = summary.keys().filter(|name| !has_shorter(name, summary));
    for (name, (figure, what, better)) in names.flat_map(|name| FIGURES.map(|figure| (name, figure))) {
        let id = id(name, figure);
        if !summary[name][figure].is_number() || ledger.get(&id).is_some() {
            continue;
        }
        let place = name.replacen('.', " beside ", 1).replacen('.', ", ", 1);
        writeln!(
            entries,
            "\n[[claim]]\nid = \"{id}\"\nwhat = \"{place}: {what}\"\nvalue = 0.000\nunit = \"ratio\"\nkind = \"measured\"\n\
             better = \"{better}\"\nfile = \"{shown}\"\npointer = \"/summary/{}/{figure}\"\ncommand = {}",
            name.replace('~', "~0").replace('/', "~1"),
            toml::Value::from(command),
        )?;
        count += 1;
    }
    let known = std::fs::read_to_string(root.join(LEDGER)).with_context(|| format!("reading {LEDGER}"))?;
    workspace::write(root, Path::new(LEDGER), &(known.trim_end().to_owned() + "\n" + &entries))?;
    Ok(count)
}

/// Whether the same row is there by a name without its setting.
fn has_shorter(name: &str, summary: &serde_json::Map<String, Value>) -> bool {
    name.rsplit_once('.').is_some_and(|(shorter, _)| summary.contains_key(shorter))
}

/// As the ledger wants it.
fn id(name: &str, figure: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let name: String = name.replace('+', "-and-").chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    format!("sm.{}.{figure}", name.to_lowercase())
}
