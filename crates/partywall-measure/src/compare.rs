//! Two records side by side: what differs in how they came about, then each row that both have.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use crate::record::{Record, Row};

/// What two records say about the same things.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Names of the two.
    pub names: [String; 2],
    /// What differs in environment, settings and tenants.
    pub differences: Vec<Difference>,
    /// Rows that both have, in the order of the first.
    pub rows: Vec<Compared>,
    /// Rows that only the first has.
    pub only_first: Vec<String>,
    /// Rows that only the second has.
    pub only_second: Vec<String>,
}

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Which: `environment.gpu.driver`.
    pub what: String,
    /// In each record.
    pub values: [String; 2],
}

/// A row that both have.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// `mps-percentage 50/50: a beside b`.
    pub row: String,
    /// Slowdown of the median in each.
    pub slowdown_p50: [Option<f64>; 2],
    /// Second / first.
    pub ratio_p50: Option<f64>,
    /// Whether the intervals of the two slowdowns overlap; null where one has none.
    pub overlap_p50: Option<bool>,
    /// Slowdown of the 99th percentile in each.
    pub slowdown_p99: [Option<f64>; 2],
    /// Second / first.
    pub ratio_p99: Option<f64>,
    /// Whether the intervals of the two slowdowns overlap; null where one has none.
    pub overlap_p99: Option<bool>,
    /// What the best-effort tenant keeps in each.
    pub be_kept: [Option<f64>; 2],
}

/// Compares by wall, setting, processes and tenants.
pub fn compare(first: &Record, second: &Record) -> Comparison {
    let same = |a: &Row, b: &Row| key(a) == key(b);
    let missing = |of: &Record, there: &Record| {
        let lacking = of.rows.iter().filter(|row| !there.rows.iter().any(|other| same(row, other)));
        lacking.map(title).collect::<Vec<String>>()
    };
    let both =
        first.rows.iter().filter_map(|row| Some((row, second.rows.iter().find(|other| same(row, other))?)));
    Comparison {
        names: [first.name.clone(), second.name.clone()],
        differences: differences(first, second),
        rows: both.map(|(a, b)| compared(a, b)).collect(),
        only_first: missing(first, second),
        only_second: missing(second, first),
    }
}

/// What a row is of: wall, setting, processes, both tenants, and who else was at work.
pub(crate) fn key(row: &Row) -> (partywall_core::wall::Wall, &str, &'static str, &str, &str, &[String]) {
    (row.wall, &row.setting, row.processes.id(), &row.ls, &row.be, &row.beside)
}

/// `mps-percentage 50/50 (separate): a beside b`, with who else was at work.
pub(crate) fn title(row: &Row) -> String {
    let others =
        if row.beside.is_empty() { String::new() } else { format!(" and {}", row.beside.join(", ")) };
    let setting = if row.setting.is_empty() { String::new() } else { format!(" {}", row.setting) };
    format!("{}{setting} ({}): {} beside {}{others}", row.wall, row.processes.id(), row.ls, row.be)
}

fn compared(a: &Row, b: &Row) -> Compared {
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a);
    let overlap =
        |a: Option<[f64; 2]>, b: Option<[f64; 2]>| a.zip(b).map(|(a, b)| a[0] <= b[1] && b[0] <= a[1]);
    Compared {
        row: title(a),
        slowdown_p50: [a.slowdown_p50, b.slowdown_p50],
        ratio_p50: ratio(a.slowdown_p50, b.slowdown_p50),
        overlap_p50: overlap(a.slowdown_p50_interval, b.slowdown_p50_interval),
        slowdown_p99: [a.slowdown_p99, b.slowdown_p99],
        ratio_p99: ratio(a.slowdown_p99, b.slowdown_p99),
        overlap_p99: overlap(a.slowdown_p99_interval, b.slowdown_p99_interval),
        be_kept: [a.be_kept, b.be_kept],
    }
}

/// What of two records may explain that their rows differ.
fn differences(first: &Record, second: &Record) -> Vec<Difference> {
    let mut found = Vec::new();
    let [a, b] = [first, second].map(|record| {
        let parts =
            (record.simulated, record.pretended, record.complete, &record.environment, &record.settings);
        serde_json::to_value(parts).unwrap_or_default()
    });
    for (index, what) in
        ["simulated", "pretended", "complete", "environment", "settings"].into_iter().enumerate()
    {
        walk(what, &a[index], &b[index], &mut found);
    }
    for tenant in &first.tenants {
        if let Some(other) = second.tenants.iter().find(|other| other.name == tenant.name) {
            let [a, b] = [tenant, other].map(|tenant| serde_json::to_value(tenant).unwrap_or_default());
            walk(&format!("tenants.{}", tenant.name), &a, &b, &mut found);
        }
    }
    found
}

fn walk(what: &str, a: &Value, b: &Value, found: &mut Vec<Difference>) {
    match (a, b) {
        (Value::Object(of_a), Value::Object(of_b)) => {
            let keys: BTreeSet<&String> = of_a.keys().chain(of_b.keys()).collect();
            for key in keys {
                walk(&format!("{what}.{key}"), &a[key], &b[key], found);
            }
        }
        _ if a == b => {}
        _ => {
            let values = [a, b].map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            found.push(Difference { what: what.to_owned(), values });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::sample;

    #[test]
    fn rows_meet_and_what_differs_is_said() {
        let first = sample();
        let mut second = sample();
        second.name = "again".to_owned();
        second.settings.rounds = 5;
        second.environment.host.cores = 16;
        second.rows[0].slowdown_p50 = Some(2.5);
        second.rows[0].slowdown_p50_interval = Some([2.4, 2.6]);
        second.rows.push(Row { be: "c".to_owned(), ..second.rows[0].clone() });
        let found = compare(&first, &second);
        let what: Vec<&str> = found.differences.iter().map(|difference| &*difference.what).collect();
        assert_eq!(what, ["environment.host.cores", "settings.rounds"]);
        assert_eq!(found.differences[1].values, ["2", "5"]);
        let [row] = &found.rows[..] else { panic!("{:?}", found.rows) };
        assert_eq!(row.row, "green-contexts 64/68 (one): a beside b");
        assert_eq!((row.ratio_p50, row.overlap_p50), (Some(2.0), Some(false)));
        assert_eq!((row.ratio_p99, row.overlap_p99), (None, None));
        assert_eq!(found.only_second, ["green-contexts 64/68 (one): a beside c"]);
        assert!(found.only_first.is_empty());
        let same = compare(&first, &first);
        assert!(same.differences.is_empty());
        assert_eq!((same.rows[0].ratio_p50, same.rows[0].overlap_p50), (Some(1.0), Some(true)));
    }
}
