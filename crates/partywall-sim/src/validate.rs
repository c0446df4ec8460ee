//! Holds the model against measured pairs.
//!
//! A file of pairs has one measured cell per row: a latency-sensitive network (graph replays in a closed loop with
//! 0.5 ms pauses) beside a best-effort program that never pauses, behind a wall. Each row is simulated with the same
//! load and compared; a row without a best-effort program is the network alone behind that wall.

use partywall_core::gpu::Gpu;
use partywall_core::tenant::{Class, Share};
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;
use serde::{Deserialize, Serialize};

use crate::error::SimError;
use crate::kernel::{Chip, Program};
use crate::layout::{Layout, Member};
use crate::load::{Load, LoadError};
use crate::machine::{self, Setup, Workload};
use crate::params::Params;
use crate::profile::{self};

#[cfg(test)]
mod tests;

/// Rows of one file at most: a thousand times the recorded one.
pub const ROWS_MAX: usize = 50_000;

/// A measured cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Behind which wall.
    pub wall: Wall,
    /// The latency-sensitive network, by model and batch.
    pub ls: (String, u32),
    /// Its SMs in per cent.
    pub ls_percent: u8,
    /// The best-effort program beside it, its batch (0 for programs without one), its SMs in per cent.
    pub be: Option<(String, u32, u8)>,
    /// Measured median latency.
    pub p50_ms: f64,
    /// Measured 99th percentile.
    pub p99_ms: f64,
    /// Measured rate of the best-effort program, where recorded.
    pub be_rate_per_s: Option<f64>,
}

/// A file of pairs that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {what}")]
pub struct PairsError {
    file: String,
    line: u64,
    what: String,
}

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
pub fn parse_pairs(text: &str, file: &str) -> Result<Vec<Pair>, PairsError> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let mut pairs = Vec::new();
    let headers = reader.headers().cloned().unwrap_or_default();
    for (index, record) in reader.records().enumerate() {
        let at_line = |line: u64, what: String| PairsError { file: file.to_owned(), line, what };
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
        return Err(PairsError { file: file.to_owned(), line: 1, what });
    }
    Ok(pairs)
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
        1..=100 => Ok(value),
        _ => Err(format!("{name} is {value}; expected 1 to 100")),
    };
    let latency = |name: &str, value: f64| {
        if value > 0.0 && value.is_finite() {
            Ok(value)
        } else {
            Err(format!("{name} is {value}; expected a time in ms"))
        }
    };
    let be = match row.be.filter(|name| !name.is_empty()) {
        None => None,
        Some(name) => {
            let batch = match (name.as_str(), row.be_batch) {
                (BE_STREAM | BE_GEMM, _) => 0,
                (_, Some(batch)) => batch,
                (_, None) => {
                    return Err(format!("be is {name} and be_batch is empty; expected its batch size"));
                }
            };
            Some((name, batch, percent("be_sm_percent", row.be_sm_percent.unwrap_or(100))?))
        }
    };
    Ok(Pair {
        wall,
        ls: (row.ls, row.ls_batch),
        ls_percent: percent("ls_sm_percent", row.ls_sm_percent)?,
        be,
        p50_ms: latency("p50_ms", row.p50_ms)?,
        p99_ms: latency("p99_ms", row.p99_ms)?,
        be_rate_per_s: row.be_rate_per_s,
    })
}

const BE_STREAM: &str = "stream";
const BE_GEMM: &str = "gemm";

/// A pair and what the model says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The measured cell.
    pub pair: Pair,
    /// Simulated median latency.
    pub p50_ms: f64,
    /// Simulated 99th percentile.
    pub p99_ms: f64,
    /// Simulated rate of the best-effort program.
    pub be_rate_per_s: Option<f64>,
}

impl Compared {
    /// Absolute relative error of the median.
    pub fn error_p50(&self) -> f64 {
        (self.p50_ms / self.pair.p50_ms - 1.0).abs()
    }
    /// Absolute relative error of the 99th percentile.
    pub fn error_p99(&self) -> f64 {
        (self.p99_ms / self.pair.p99_ms - 1.0).abs()
    }
}

/// Errors of one wall. The medians are over pairs; networks alone behind the wall are counted apart, because they are
/// easier.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WallError {
    /// The wall's id.
    pub wall: Wall,
    /// Pairs.
    pub n: usize,
    /// Median over pairs of the absolute relative error of the p50 latency.
    pub median_error_p50: f64,
    /// 90th percentile of the same.
    pub p90_error_p50: f64,
    /// Median over pairs of the absolute relative error of the p99 latency.
    pub median_error_p99: f64,
    /// Median over pairs of the absolute relative error of the best-effort rate. Recordings give one average per
    /// program and wall, so this is coarse.
    pub median_error_be_rate: Option<f64>,
    /// Networks alone behind the wall.
    pub alone_n: usize,
    /// Median absolute relative error of their p50 latency.
    pub alone_median_error_p50: Option<f64>,
}

/// How much of a pair is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Requests of the latency-sensitive network.
    pub requests: u64,
    /// Virtual time at most.
    pub time: Nanos,
}

impl Default for Effort {
    /// As many requests as the recordings have (20 to 460), and time for 20 of the slowest.
    fn default() -> Self {
        Self { requests: 200, time: Nanos::from_secs(4) }
    }
}

/// Simulates one pair on `gpu`.
///
/// # Errors
/// The networks are unknown, or the wall does not fit the GPU.
pub fn simulate(pair: &Pair, gpu: &Gpu, params: &Params, effort: Effort) -> Result<Compared, SimError> {
    let chip = Chip::of(gpu);
    let network = |(model, batch): (&str, u32)| {
        profile::recorded(&format!("{model}-b{batch}"))
            .map(|profile| Program::of(&profile, &chip, &chip, params))
    };
    let ls = network((&pair.ls.0, pair.ls.1))?;
    let ls_load = Load::Closed { pause: Nanos::from_micros(500), depth: 1 };
    let mut workloads = vec![workload("ls", Class::LatencySensitive, ls, &ls_load)?];
    let mut members = vec![member(&workloads[0], pair.ls_percent)];
    if let Some((name, batch, percent)) = &pair.be {
        // What the recordings kept queued: it decides how often the host leaves the GPU to the others.
        let (program, depth) = match name.as_str() {
            BE_STREAM => (Program::stream(&chip, params), 4),
            BE_GEMM => (Program::gemm(&chip, &chip, params), 2),
            model => (network((model, *batch))?, 2),
        };
        let load = Load::Closed { pause: Nanos::ZERO, depth };
        workloads.push(workload("be", Class::BestEffort, program, &load)?);
        members.push(member(&workloads[1], *percent));
    }
    let setup = Setup {
        gpu,
        layout: Layout::new(pair.wall, gpu, &members)?,
        streams: (0..workloads.len() as u64).collect(),
        workloads,
        copies: partywall_core::copy_scheduler::Config::default(),
        params: *params,
        seed: 1,
        warmup: Nanos::from_millis(20),
        end: effort.time,
        requests_max: effort.requests,
        faults: Vec::new(),
        timeline: None,
    };
    let items = setup.workloads.get(1).map(|_| 1);
    let outcome = machine::run(setup)?;
    let service = &outcome.tenants[0].service;
    let at = |q: f64| service.sorted_at(q).map_or(effort.time.as_ms(), Nanos::as_ms);
    Ok(Compared {
        pair: pair.clone(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        be_rate_per_s: items.map(|index| outcome.tenants[index].rate(outcome.measured)),
    })
}

fn workload(name: &str, class: Class, program: Program, load: &Load) -> Result<Workload, LoadError> {
    Ok(Workload { name: name.to_owned(), class, program, demand: load.demand(None)?, objective: None })
}

fn member(workload: &Workload, percent: u8) -> Member {
    Member::of(workload.class, &workload.program, Some(Share::Percent(percent)))
}

/// The errors per wall, in the order of [`Wall::ALL`]; walls without pairs are not in the list.
pub fn summarise(compared: &[Compared]) -> Vec<WallError> {
    let of = |wall: Wall| {
        let rows: Vec<&Compared> = compared.iter().filter(|row| row.pair.wall == wall).collect();
        let (pairs, alone): (Vec<&Compared>, Vec<&Compared>) =
            rows.into_iter().partition(|row| row.pair.be.is_some());
        let rates =
            pairs.iter().filter_map(|row| Some((row.be_rate_per_s? / row.pair.be_rate_per_s? - 1.0).abs()));
        let errors =
            |rows: &[&Compared], error: fn(&Compared) -> f64| rows.iter().map(|row| error(row)).collect();
        Some(WallError {
            wall,
            n: pairs.len(),
            median_error_p50: quantile(errors(&pairs, Compared::error_p50), 0.5)?,
            p90_error_p50: quantile(errors(&pairs, Compared::error_p50), 0.9)?,
            median_error_p99: quantile(errors(&pairs, Compared::error_p99), 0.5)?,
            median_error_be_rate: quantile(rates.collect(), 0.5),
            alone_n: alone.len(),
            alone_median_error_p50: quantile(errors(&alone, Compared::error_p50), 0.5),
        })
    };
    Wall::ALL.into_iter().filter_map(of).collect()
}

/// By nearest rank; the mean of the middle two for the median of an even number.
fn quantile(mut values: Vec<f64>, q: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    if n == 0 {
        return None;
    }
    if q == 0.5 && n.is_multiple_of(2) {
        return Some((values[n / 2 - 1] + values[n / 2]) / 2.0);
    }
    Some(values[((n as f64 * q).ceil() as usize).clamp(1, n) - 1])
}
