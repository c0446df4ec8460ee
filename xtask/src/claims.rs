//! `cargo xtask claims`: holds the ledger against the recorded files, and README and docs against the ledger.

mod rows;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::figures;
use crate::ledger::{Claim, Found, LEDGER, Ledger, Quantity};
use crate::problem::{self, Problem};
use crate::workspace;

/// What a check of all claims found.
#[derive(Debug)]
pub(crate) struct Report {
    /// One line a claim, to be printed.
    pub(crate) table: String,
    /// What does not hold, ledger first.
    pub(crate) problems: Vec<Problem>,
}

/// Checks everything; with `write`, first takes the values over from the files into the ledger and from there into
/// the documents.
///
/// # Errors
/// A ledger that cannot be read, with all that is wrong in it: then nothing is written.
pub(crate) fn run(root: &Path, write: bool) -> Result<Report> {
    let mut ledger = load(root)?;
    let read =
        |path: &Path| fs::read_to_string(root.join(path)).map_err(|error| format!("cannot be read: {error}"));
    let found = ledger.look_up(&read);
    let documents = documents(root)?;
    if write {
        workspace::write(root, Path::new(LEDGER), &ledger.refreshed(&found))?;
        ledger = load(root)?;
    }
    let per_claim = ledger.check(&found);
    let table = table(&ledger.claims, &found, &per_claim);
    let mut problems = per_claim.concat();
    for (path, text) in documents {
        let text = if write { figures::refreshed(&text, &ledger) } else { text };
        if write {
            workspace::write(root, &path, &text)?;
        }
        problems.append(&mut figures::check(&path, &text, &ledger));
    }
    Ok(Report { table, problems })
}

/// Enters the figures of records that the ledger lacks, then does as [`run`] with `write`.
///
/// # Errors
/// Those of [`run`], and a record that has no figures to claim.
pub(crate) fn run_with_rows(root: &Path, records: &[PathBuf]) -> Result<Report> {
    for record in records {
        rows::enter(root, record, &load(root)?)?;
    }
    run(root, true)
}

/// Reads the ledger.
pub(crate) fn load(root: &Path) -> Result<Ledger> {
    let text = fs::read_to_string(root.join(LEDGER)).with_context(|| format!("reading {LEDGER}"))?;
    Ledger::parse(&text).map_err(|problems| problem::listed(&problems))
}

/// The Markdown files in which figures are held against the ledger: those at the root and all under `docs`.
fn documents(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let is_document = |path: &Path| {
        let in_scope = path.components().count() == 1 || path.starts_with("docs");
        in_scope && path.extension().is_some_and(|extension| extension == "md")
    };
    let files = workspace::text_files(root)?;
    Ok(files.into_iter().filter(|(path, _)| is_document(path)).collect())
}

/// Replaces ranges of a text; the ranges ascend and do not overlap.
pub(crate) fn splice(text: &str, updates: Vec<(Range<usize>, String)>) -> String {
    let mut text = text.to_owned();
    for (range, replacement) in updates.into_iter().rev() {
        text.replace_range(range, &replacement);
    }
    text
}

/// One line a claim, columns aligned.
fn table(claims: &[Claim], found: &[Found], problems: &[Vec<Problem>]) -> String {
    if claims.is_empty() {
        return format!("{LEDGER} claims nothing yet");
    }
    let header = ["id", "value", "unit", "kind", "floor", "goal", "ok"].map(str::to_owned);
    let mut rows = vec![header];
    for ((claim, found), problems) in claims.iter().zip(found).zip(problems) {
        let reached = found.as_ref().ok().and_then(|found| claim.holds(claim.goal, *found));
        let goal = match reached {
            Some(true) => format!("{} met", bound(claim, claim.goal)),
            Some(false) => format!("{} open", bound(claim, claim.goal)),
            None => bound(claim, claim.goal),
        };
        rows.push([
            claim.id.clone(),
            claim.value.to_string(),
            claim.unit.clone(),
            claim.kind.to_string(),
            bound(claim, claim.floor),
            goal,
            if problems.is_empty() { "ok" } else { "NO" }.to_owned(),
        ]);
    }
    let mut widths = [0; 7];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &[String; 7]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A floor or a goal with its sign; `-` when there is none.
pub(crate) fn bound(claim: &Claim, bound: Option<Quantity>) -> String {
    match (bound, claim.better) {
        (None, _) => "-".to_owned(),
        (Some(bound), Some(better)) => format!("{} {bound}", better.sign()),
        (Some(bound), None) => bound.to_string(),
    }
}

#[cfg(test)]
mod tests;
