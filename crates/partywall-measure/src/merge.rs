//! One record of several: a plan that takes longer than a machine can be had for is measured in parts.
//!
//! Each part has measured its tenants solo, and its rows are held against those; nothing is held against another part's. What
//! is asked of the parts is that they are of one machine and one plan. A row that several have counts where it was measured:
//! one that a time limit cut off in a part is another part's. Rows that were measured twice cannot be merged, because
//! choosing between them would be choosing a result.

use serde::Serialize;

use crate::compare::{key, title};
use crate::record::{CellError, CellKind, CellRecord, ErrorKind, PartRecord, Record, Row, TenantRecord};
use crate::summary::summary;

/// What a tenant says about itself that decides what it computes with: the versions of libraries.
const VERSIONS: [&str; 6] = ["torch", "cuda", "cudnn", "torchvision", "transformers", "driver"];

/// Why records are not parts of one measurement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// There is nothing to merge.
    #[error("there is no record to merge")]
    Nothing,
    /// They came about differently.
    #[error("{first} and {second} differ in {what}: {} and {}; parts of one measurement are of one machine and one plan", values[0], values[1])]
    Differs {
        /// The first record.
        first: String,
        /// The other.
        second: String,
        /// Where they differ.
        what: String,
        /// What each has there.
        values: [String; 2],
    },
    /// A row was measured in two of them.
    #[error(
        "{first} and {second} both have the row `{row}`; leave one of the records out, or measure it without that row"
    )]
    Twice {
        /// The first record.
        first: String,
        /// The other.
        second: String,
        /// The row.
        row: String,
    },
}

/// Merges records into one that is called `name` and made by `command`.
///
/// # Errors
/// [`MergeError`].
pub fn merge(records: &[Record], name: &str, command: &str) -> Result<Record, MergeError> {
    let Some((first, others)) = records.split_first() else { return Err(MergeError::Nothing) };
    for other in others {
        check(first, other)?;
    }
    let mut merged = Record {
        name: name.to_owned(),
        command: command.to_owned(),
        cells: Vec::new(),
        rows: Vec::new(),
        ims: Vec::new(),
        facts: Vec::new(),
        parts: Vec::new(),
        took_s: 0.0,
        ..first.clone()
    };
    for record in records {
        add(&mut merged, record)?;
    }
    let is_skipped = |row: &Row| skipped(row.error.as_ref());
    merged.complete = merged.parts.iter().all(|part| part.complete) || !merged.rows.iter().any(is_skipped);
    merged.summary = summary(&merged.rows);
    Ok(merged)
}

fn add(merged: &mut Record, record: &Record) -> Result<(), MergeError> {
    let offset = merged.parts.len();
    let whole = PartRecord {
        name: record.name.clone(),
        command: record.command.clone(),
        started: record.started.clone(),
        took_s: record.took_s,
        complete: record.complete,
    };
    let parts = if record.parts.is_empty() { vec![whole] } else { record.parts.clone() };
    merged.parts.extend(parts);
    merged.took_s += record.took_s;
    merged.settings.seconds_max = merged.settings.seconds_max.max(record.settings.seconds_max);
    for row in &record.rows {
        let row = Row { part: row.part + offset, ..row.clone() };
        match merged.rows.iter().position(|known| key(known) == key(&row)) {
            None => merged.rows.push(row),
            Some(_) if skipped(row.error.as_ref()) => {}
            Some(at) if skipped(merged.rows[at].error.as_ref()) => merged.rows[at] = row,
            Some(at) => {
                let first = merged.parts[merged.rows[at].part].name.clone();
                return Err(MergeError::Twice { first, second: record.name.clone(), row: title(&row) });
            }
        }
    }
    for cell in &record.cells {
        let cell = CellRecord { part: cell.part + offset, ..cell.clone() };
        // Of a co-run there is one, as of its row; solo and alone are each part's own.
        let same = |known: &CellRecord| cell.kind == CellKind::Corun && of(known) == of(&cell);
        match merged.cells.iter().position(same) {
            None => merged.cells.push(cell),
            Some(at) if skipped(merged.cells[at].error.as_ref()) => merged.cells[at] = cell,
            Some(_) => {}
        }
    }
    for tenant in &record.tenants {
        match merged.tenants.iter_mut().find(|known| known.name == tenant.name) {
            // What never came up in one part says nothing of itself there.
            Some(known) if known.unit.is_none() => *known = tenant.clone(),
            Some(_) => {}
            None => merged.tenants.push(tenant.clone()),
        }
    }
    merged.ims.extend(record.ims.iter().cloned());
    let new = record.facts.iter().filter(|fact| !merged.facts.iter().any(|known| known.row == fact.row));
    let new: Vec<_> = new.cloned().collect();
    merged.facts.extend(new);
    Ok(())
}

fn skipped(error: Option<&CellError>) -> bool {
    error.is_some_and(|error| error.kind == ErrorKind::Skipped)
}

fn of(cell: &CellRecord) -> impl PartialEq + '_ {
    (cell.wall, &cell.setting, cell.processes, cell.kind, &cell.ls, &cell.be, &cell.beside)
}

/// Whether two records are parts of one measurement.
fn check(first: &Record, second: &Record) -> Result<(), MergeError> {
    let [a, b] = [first, second];
    let differs = |what: &str, values: [String; 2]| MergeError::Differs {
        first: a.name.clone(),
        second: b.name.clone(),
        what: what.to_owned(),
        values,
    };
    let (of_a, of_b) = (&a.settings, &b.settings);
    let checks = [
        same("the GPU and its driver", &a.environment.gpu, &b.environment.gpu),
        same("the host's cores", a.environment.host.cores, b.environment.host.cores),
        same("`simulated`", a.simulated, b.simulated),
        same("`pretended`", a.pretended, b.pretended),
        same("the plan", &of_a.plan, &of_b.plan),
        same("the seed", of_a.seed, of_b.seed),
        same("rounds", of_a.rounds, of_b.rounds),
        same("the warm-up", of_a.warmup_s, of_b.warmup_s),
        same("requests wanted", of_a.requests_wanted, of_b.requests_wanted),
        same("evidence", of_a.evidence, of_b.evidence),
    ];
    if let Some((what, values)) = checks.into_iter().flatten().next() {
        return Err(differs(what, values));
    }
    for one in &a.tenants {
        let other = b.tenants.iter().find(|other| other.name == one.name);
        if let Some((what, values)) = other.and_then(|other| differing(one, other)) {
            return Err(differs(&format!("{what} of {}", one.name), values));
        }
    }
    Ok(())
}

/// In what a tenant of two records differs so that its figures cannot stand beside each other.
fn differing(a: &TenantRecord, b: &TenantRecord) -> Option<(&'static str, [String; 2])> {
    let checks = [
        same("the class", a.class, b.class),
        same("the program", &a.command, &b.command),
        same("the duty", a.duty, b.duty),
        // The rate of a duty follows from each part's own median.
        if a.duty.is_some() { None } else { same("the load", a.load, b.load) },
    ];
    let came_up = a.unit.is_some() && b.unit.is_some();
    let differs = |key: &&str| came_up && a.about.get(*key) != b.about.get(*key);
    let versions = VERSIONS.into_iter().find(differs).map(|key| {
        let shown =
            |tenant: &TenantRecord| format!("{key} {}", tenant.about.get(key).map_or("unknown", |text| text));
        ("versions", [shown(a), shown(b)])
    });
    checks.into_iter().flatten().next().or(versions)
}

/// `None` where both are the same.
fn same<T: Serialize + PartialEq>(what: &'static str, a: T, b: T) -> Option<(&'static str, [String; 2])> {
    let shown = |value: &T| serde_json::to_string(value).unwrap_or_default();
    (a != b).then(|| (what, [shown(&a), shown(&b)]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;
    use crate::record::{GpuRecord, Processes};
    use partywall_core::wall::Wall;

    /// A record with one row beside each of these.
    fn part(name: &str, neighbours: &[&str]) -> Record {
        let mut record = Record { name: name.to_owned(), ..sample() };
        let row = Row { error: None, ..record.rows[0].clone() };
        let cell = |kind, be: Option<&str>| CellRecord {
            wall: Wall::GreenContexts,
            setting: "64/68".to_owned(),
            processes: Processes::One,
            kind,
            ls: Some("a".to_owned()),
            be: be.map(str::to_owned),
            beside: Vec::new(),
            results: Vec::new(),
            gpu: None,
            node: Vec::new(),
            part: 0,
            error: None,
        };
        record.rows = neighbours.iter().map(|&be| Row { be: be.to_owned(), ..row.clone() }).collect();
        record.cells = vec![cell(CellKind::Solo, None)];
        record.cells.extend(neighbours.iter().map(|&be| cell(CellKind::Corun, Some(be))));
        record
    }

    fn merged(records: &[Record]) -> Result<Record, String> {
        merge(records, "all", "merge").map_err(|error| error.to_string())
    }

    #[test]
    fn rows_of_all_parts_are_there_and_know_their_part() {
        let (first, second) = (part("first", &["b"]), part("second", &["c", "d"]));
        let all = merged(&[first.clone(), second]).unwrap();
        let rows: Vec<(&str, usize)> = all.rows.iter().map(|row| (&*row.be, row.part)).collect();
        assert_eq!(rows, [("b", 0), ("c", 1), ("d", 1)]);
        // Each part's own solo.
        let parts: Vec<(CellKind, usize)> = all.cells.iter().map(|cell| (cell.kind, cell.part)).collect();
        let (solo, corun) = (CellKind::Solo, CellKind::Corun);
        assert_eq!(parts, [(solo, 0), (corun, 0), (solo, 1), (corun, 1), (corun, 1)]);
        assert_eq!((all.parts.len(), all.took_s, all.complete), (2, 3.0, true));
        assert!(all.summary.contains_key("a.c.green-contexts"));
        let more = merged(&[all, part("third", &["e"])]).unwrap();
        assert_eq!((more.parts.len(), more.rows[3].part, &*more.parts[2].name), (3, 2, "third"));
        assert_eq!(merged(&[first]).unwrap().rows.len(), 1);
    }

    #[test]
    fn what_a_time_limit_cut_off_is_the_other_parts() {
        let mut cut = part("cut", &["b", "c"]);
        let late = CellError::new(ErrorKind::Skipped, "the time limit came first");
        (cut.rows[1].error, cut.cells[2].error, cut.complete) = (Some(late.clone()), Some(late), false);
        for records in [[cut.clone(), part("rest", &["c"])], [part("rest", &["c"]), cut.clone()]] {
            let all = merged(&records).unwrap();
            assert!(all.complete && all.rows.len() == 2, "{all:?}");
            assert!(all.rows.iter().all(|row| row.error.is_none()));
            assert!(all.cells.iter().all(|cell| cell.error.is_none()));
        }
        assert!(!merged(&[cut, part("other", &["d"])]).unwrap().complete);
    }

    #[test]
    fn what_is_no_part_of_the_same_is_refused() {
        let first = part("first", &["b"]);
        let twice = merged(&[first.clone(), part("second", &["b"])]).unwrap_err();
        assert!(
            twice.contains("first and second both have the row `green-contexts 64/68 (one): a beside b`"),
            "{twice}"
        );
        type Change = fn(&mut Record);
        let cases: [(&str, Change); 4] = [
            ("the seed: 1 and 7", |record| record.settings.seed = 7),
            ("the GPU and its driver: null and", |record| {
                record.environment.gpu = Some(GpuRecord::default())
            }),
            ("requests wanted", |record| record.settings.requests_wanted = 5),
            ("`pretended`: true and false", |record| record.pretended = false),
        ];
        for (what, change) in cases {
            let mut other = part("second", &["c"]);
            change(&mut other);
            let refused = merged(&[first.clone(), other]).unwrap_err();
            assert!(refused.contains(what), "{refused}");
        }
        assert_eq!(merged(&[]).unwrap_err(), "there is no record to merge");
    }
}
