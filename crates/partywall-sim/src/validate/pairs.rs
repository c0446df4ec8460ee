//! Files of pairs (CSV), as `workloads/torch/pairs.py` writes them: one measured cell per row.
//!
//! They say nothing of pauses and hosts, so what that program does is assumed: the latency-sensitive network is a
//! closed loop with 0.5 ms pauses, the best-effort program never pauses.

use std::collections::BTreeMap;

use partywall_core::tenant::Share;
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;
use serde::Deserialize;

use super::{GEMM, Pair, ROWS_MAX, Rank, ReadError, STREAM, Tenant};
use crate::load::Load;

/// The columns as the recordings write them.
#[derive(Debug, Deserialize)]
struct Row {
    mechanism: String,
    ls: String,
    ls_batch: u32,
    ls_sm_percent: u8,
    be: Option<String>,
    be_batch: Option<u32>,
    be_sm_percent: Option<u8>,
    p50_ms: f64,
    p99_ms: f64,
    be_rate_per_s: Option<f64>,
}

/// Reads a CSV with the header `mechanism,ls,ls_batch,ls_sm_percent,be,be_batch,be_sm_percent,...,p50_ms,p99_ms,...`.
///
/// # Errors
/// The first row that cannot be used, with its line and what would be right.
pub fn parse_pairs(text: &str, file: &str) -> Result<Vec<Pair>, ReadError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let mut pairs = Vec::new();
    let headers = reader.headers().cloned().unwrap_or_default();
    for (index, record) in reader.records().enumerate() {
        let at_line = |line: u64, what: String| ReadError::at_line(file, line, what);
        let guess = index as u64 + 2;
        let record = record.map_err(|error| {
            let line = error.position().map_or(guess, csv::Position::line);
            at_line(line, format!("{error}"))
        })?;
        let line = record.position().map_or(guess, csv::Position::line);
        let row: Row = record.deserialize(Some(&headers)).map_err(|error| at_line(line, explain(&error)))?;
        pairs.push(check(row).map_err(|what| at_line(line, what))?);
        if pairs.len() > ROWS_MAX {
            return Err(at_line(line, format!("more than {ROWS_MAX} rows; split the file")));
        }
    }
    if pairs.is_empty() {
        let what = "no pairs; expected a header and one measured cell per row".to_owned();
        return Err(ReadError::at_line(file, 1, what));
    }
    take_solos(&mut pairs);
    Ok(pairs)
}

/// What the file has of a latency-sensitive network alone without MPS tells how its program replayed its graph.
fn take_solos(pairs: &mut [Pair]) {
    let solos = pairs.iter().filter(|pair| pair.wall == Wall::TimeSlicing && pair.be.is_none());
    let solos: BTreeMap<String, Option<f64>> =
        solos.filter_map(|pair| Some((pair.ls.as_ref()?.program.clone(), pair.p50_ms))).collect();
    for ls in pairs.iter_mut().filter_map(|pair| pair.ls.as_mut()) {
        ls.solo_ms = solos.get(&ls.program).copied().flatten();
    }
}

fn explain(error: &csv::Error) -> String {
    match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => {
            format!(
                "{err}; expected the columns mechanism, ls, ls_batch, ls_sm_percent, be, be_batch, be_sm_percent, p50_ms, p99_ms, be_rate_per_s"
            )
        }
        _ => error.to_string(),
    }
}

fn check(row: Row) -> Result<Pair, String> {
    let wall = row.mechanism.parse::<Wall>().map_err(|error| error.to_string())?;
    let percent = |name: &str, value: u8| match value {
        1..=100 => Ok(Some(Share::Percent(value))),
        _ => Err(format!("{name} is {value}; expected 1 to 100")),
    };
    let latency = |name: &str, value: f64| {
        if value > 0.0 && value.is_finite() {
            Ok(Some(value))
        } else {
            Err(format!("{name} is {value}; expected a time in ms"))
        }
    };
    let be = match row.be.filter(|name| !name.is_empty()) {
        None => None,
        Some(name) => {
            // What the recordings kept queued: it decides how often the host leaves the GPU to the others.
            let (program, depth) = match (name.as_str(), row.be_batch) {
                (STREAM, _) => (name, 4),
                (GEMM, _) => (name, 2),
                (_, Some(batch)) => (format!("{name}-b{batch}"), 2),
                (_, None) => {
                    return Err(format!("be is {name} and be_batch is empty; expected its batch size"));
                }
            };
            let share = percent("be_sm_percent", row.be_sm_percent.unwrap_or(100))?;
            Some(Tenant {
                program,
                made: None,
                share,
                load: Load::closed(depth),
                solo_ms: None,
                launched_ms: None,
            })
        }
    };
    let ls = Tenant {
        program: format!("{}-b{}", row.ls, row.ls_batch),
        made: None,
        share: percent("ls_sm_percent", row.ls_sm_percent)?,
        load: Load::Closed { pause: Nanos::from_micros(500), depth: 1, host: None },
        solo_ms: None,
        launched_ms: None,
    };
    Ok(Pair {
        wall,
        node: None,
        one_process: false,
        ls: Some(ls),
        be,
        rank: Rank::Above,
        p50_ms: latency("p50_ms", row.p50_ms)?,
        p99_ms: latency("p99_ms", row.p99_ms)?,
        be_rate_per_s: row.be_rate_per_s,
    })
}
