//! `cargo xtask generate`: files that are written by a program from one source, and are checked in.
//!
//! Each output is a function of what is in the repository. With `--check` nothing is written, and a file that
//! differs from what would be written is an error.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use partywall_core::catalogue::{self, Catalogue};
use partywall_core::config::Config;

use crate::claims;
use crate::ledger::{Claim, LEDGER, Ledger};
use crate::problem::Problem;
use crate::profiles;
use crate::workspace;

/// Every generated file: its path from the root of the repository, and its text. A new one is added here.
///
/// The simulator is deterministic, so what it says is generated like anything else: a change of the model that was
/// not recorded is a stale file.
fn outputs(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let mut outputs = vec![
        (PathBuf::from("docs/claims.md"), claims_page(&claims::load(root)?)),
        ("docs/gpus.md".into(), catalogue::markdown(Catalogue::builtin()?)),
        ("docs/scenarios.md".into(), partywall_sim::scenario::reference()),
        ("docs/cli.md".into(), partywall::cli::reference()),
        ("docs/metrics.md".into(), partywall_node::metrics::reference()),
        ("docs/gateway-metrics.md".into(), partywall_gateway::metrics::reference()),
        ("docs/gateway.schema.json".into(), partywall_gateway::config::Config::schema()),
        ("docs/coverage.md".into(), partywall_shim_api::coverage::markdown()),
        ("docs/partywall.schema.json".into(), Config::schema()),
        (profiles::LIST.into(), profiles::list(root)?),
    ];
    let validations = partywall::recorded_validations().map_err(anyhow::Error::msg)?;
    outputs.extend(validations.into_iter().map(|(name, text)| (format!("results/sim/{name}").into(), text)));
    let demo = partywall::recorded_demo().map_err(anyhow::Error::msg)?;
    outputs.push(("results/sim/demo.json".into(), demo.json));
    outputs.extend(demo.pictures.into_iter().map(|(name, svg)| (format!("docs/{name}").into(), svg)));
    outputs.extend(measured(root)?);
    Ok(outputs)
}

/// Records of what neighbours on sides did to each other, and which picture is made of each.
const NEIGHBOURS: [(&str, &str); 4] = [
    ("interfere-long", "long"),
    ("interfere-requests", "interference"),
    ("interfere-held", "held"),
    ("sms", "knee"),
];

/// Two bytes for each KiB of 16 pages; which slice that is.
const SLICES: &str = "results/h200/slices-16-pages.bin";

/// What is made of recorded results: pictures, and how far measurements on the H200 agree with earlier ones.
fn measured(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let shown = [
        ("results/h200/networks.json", &["networks.svg", "resnet50-b1-resnet152-b32.svg"][..]),
        ("results/h200/synthetic.json", &["synthetic.svg"]),
    ];
    let mut outputs = Vec::new();
    for (file, wanted) in shown {
        let text = workspace::read(root, file)?;
        let pictures = partywall::recorded_pictures(&text, file).map_err(anyhow::Error::msg)?;
        let pictures = pictures.into_iter().filter(|(name, _)| wanted.contains(&name.as_str()));
        outputs.extend(pictures.map(|(name, svg)| (format!("docs/measured/{name}").into(), svg)));
    }
    let file = "results/gateway/routing.json";
    let pictures = partywall::recorded_route_pictures(&workspace::read(root, file)?, file);
    let pictures = pictures.map_err(anyhow::Error::msg)?.into_iter();
    outputs.extend(pictures.map(|(name, svg)| (format!("docs/routing/{name}").into(), svg)));
    let map = "results/h200/sides/map.json";
    let slices = std::fs::read(root.join(SLICES)).with_context(|| format!("reading {SLICES}"))?;
    let pictures = partywall::recorded_map_pictures(&workspace::read(root, map)?, map, &slices);
    let mut pictures = pictures.map_err(anyhow::Error::msg)?;
    for (record, name) in NEIGHBOURS {
        let file = format!("results/h200/sides/{record}.json");
        let picture = partywall::recorded_neighbour_picture(&workspace::read(root, &file)?, &file, name);
        pictures.extend(picture.map_err(anyhow::Error::msg)?);
    }
    outputs.extend(pictures.into_iter().map(|(name, svg)| (format!("docs/sides/{name}").into(), svg)));
    let (record, plan) = ("results/h200/facts.json", "workloads/plans/facts.toml");
    let texts = (workspace::read(root, record)?, workspace::read(root, plan)?);
    let agreement = partywall::recorded_agreement((record, &texts.0), (plan, &texts.1));
    let agreement = agreement.map_err(anyhow::Error::msg)?;
    outputs.push(("results/h200/facts-agreement.json".into(), agreement));
    Ok(outputs)
}

/// Writes what has changed and gives the paths of it.
pub(crate) fn run(root: &Path) -> Result<Vec<PathBuf>> {
    write(root, outputs(root)?)
}

/// One problem for each file that is not what its source says.
pub(crate) fn check(root: &Path) -> Result<Vec<Problem>> {
    Ok(stale(root, outputs(root)?))
}

fn write(root: &Path, outputs: Vec<(PathBuf, String)>) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (path, text) in outputs {
        if workspace::write(root, &path, &text)? {
            written.push(path);
        }
    }
    Ok(written)
}

fn stale(root: &Path, outputs: Vec<(PathBuf, String)>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (path, text) in outputs {
        let message = match workspace::read(root, &path) {
            Ok(now) if now == text => continue,
            Ok(_) => "differs from its source; run `cargo xtask generate` and commit the result",
            Err(_) => "is missing; run `cargo xtask generate` and commit the result",
        };
        problems.push(Problem::in_file(path, message));
    }
    problems
}

/// The ledger as a page for people, each value with the marker that holds it to the ledger.
fn claims_page(ledger: &Ledger) -> String {
    let mut page = format!(
        "<!-- Generated by `cargo xtask generate` from {LEDGER}: edit that. -->\n\n# Claims\n\nEvery figure this \
         project states, from the ledger [`{LEDGER}`](../{LEDGER}). A value is the number at the pointer in the file, \
         rounded to the digits shown; the command is what recorded the file. Simulated numbers come from the model, \
         measured ones from a machine. A floor is held by CI, a goal is aimed at. Ratios are fractions.\n\n"
    );
    if ledger.claims.is_empty() {
        page.push_str("Nothing is claimed yet.\n");
        return page;
    }
    page.push_str("| claim | what | value | unit | kind | floor | goal | file and pointer | command |\n");
    page.push_str("|---|---|--:|---|---|---|---|---|---|\n");
    for claim in &ledger.claims {
        page.push_str(&claims_row(claim));
    }
    page
}

fn claims_row(claim: &Claim) -> String {
    let id = &claim.id;
    let value = format!("<!-- claim:{id} -->{}<!-- /claim -->", claim.value);
    let cells = [
        format!("`{id}`"),
        claim.what.clone(),
        value,
        claim.unit.clone(),
        claim.kind.to_string(),
        claims::bound(claim, claim.floor),
        claims::bound(claim, claim.goal),
        format!("[`{}`](../{}) `{}`", claim.file, claim.file, claim.pointer),
        format!("`{}`", claim.command),
    ];
    let mut row = String::new();
    for cell in cells {
        let _ = write!(row, "| {} ", cell.replace('|', "\\|"));
    }
    row + "|\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures;
    use crate::workspace::Scratch;

    const CLAIM: &str = "[[claim]]\nid = \"a.b\"\nwhat = \"a | b\"\nvalue = 1.50\nunit = \"ratio\"\nkind = \"measured\"\n\
                         better = \"lower\"\nfloor = 2\nfile = \"results/a.json\"\npointer = \"/a\"\ncommand = \"x | y\"\n";

    #[test]
    fn stale_and_missing_files_are_named_until_generated() {
        let scratch = Scratch::with("generate", &[]);
        let root = scratch.root();
        let outputs = |text: &str| vec![(PathBuf::from("docs/a.md"), text.to_owned())];
        let complaints = |text: &str| -> Vec<String> {
            stale(root, outputs(text)).iter().map(Problem::to_string).collect()
        };
        let run_it = "run `cargo xtask generate` and commit the result";
        assert_eq!(complaints("one"), [format!("docs/a.md: is missing; {run_it}")]);
        assert_eq!(write(root, outputs("one")).unwrap(), [PathBuf::from("docs/a.md")]);
        assert!(complaints("one").is_empty());
        assert!(write(root, outputs("one")).unwrap().is_empty(), "nothing to do the second time");
        assert_eq!(complaints("two"), [format!("docs/a.md: differs from its source; {run_it}")]);
    }

    #[test]
    fn the_page_has_every_claim_and_agrees_with_the_ledger() {
        let ledger = Ledger::parse(CLAIM).unwrap();
        let page = claims_page(&ledger);
        let row = "| `a.b` | a \\| b | <!-- claim:a.b -->1.50<!-- /claim --> | ratio | measured | <= 2 | - \
                   | [`results/a.json`](../results/a.json) `/a` | `x \\| y` |\n";
        assert!(page.ends_with(row), "{page}");
        assert_eq!(figures::check(Path::new("docs/claims.md"), &page, &ledger), []);
        assert!(claims_page(&Ledger::parse("").unwrap()).ends_with("Nothing is claimed yet.\n"));
    }
}
