//! Holds the model against measured co-runs.
//!
//! A recording has measured cells: a latency-sensitive tenant beside a best-effort one behind a wall, or one of the two
//! alone there. Each is simulated with the same load and compared. Recordings are records of `partywall measure` (JSON,
//! `record.rs`) or of `partywall vram interfere` (JSON, `sides.rs`), or files of pairs (CSV, `pairs.rs`), which came before them and are kept as they were written.

use partywall_core::gpu::Gpu;
use partywall_core::tenant::{Class, Share};
use partywall_core::units::{Nanos, SmCount};
use partywall_core::wall::Wall;
use serde::{Deserialize, Serialize};

use crate::error::SimError;
use crate::kernel::{Chip, Program};
use crate::layout::{Layout, Member, Node};
use crate::load::{Load, LoadError};
use crate::machine::{self, Setup, Workload};
use crate::params::Params;
use crate::profile;

mod pairs;
mod record;
mod sides;
#[cfg(test)]
mod tests;

pub use pairs::parse_pairs;
pub use record::{FORMAT, parse_record};

/// Cells of one file at most: a thousand times the first recording.
pub const ROWS_MAX: usize = 50_000;

/// The GPU on which files of pairs were measured; they do not say it.
pub const PAIRS_ON: &str = "h200";

/// Tenants of recordings that are no networks.
const STREAM: &str = "stream";
const GEMM: &str = "gemm";

/// One side of a measured cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Tenant {
    /// What it ran: a recorded network by its name, such as `resnet50-b1`, or `stream`, or `gemm`; any name where `made` is given.
    pub program: String,
    /// The program, where the recording itself says enough of it.
    pub made: Option<Program>,
    /// Its SMs, where the wall was set.
    pub share: Option<Share>,
    /// How its requests came.
    pub load: Load,
    /// One pass alone on the whole GPU by the same program on the same day, if it was measured and the program is a
    /// network: see [`Program::paced`].
    pub solo_ms: Option<f64>,
    /// The same by its rate, where its kernels are launched one by one: then its host may be what takes so long
    /// ([`Program::launched_in`]).
    pub launched_ms: Option<f64>,
}

/// Which request's time is the percentile of a recording. It matters where half of the requests are fast and half slow,
/// as beside a tenant whose work is about as long as a time slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rank {
    /// By nearest rank: of two that alternate, the faster is the median.
    Nearest,
    /// One above where that is between two: the slower is.
    Above,
}

/// A measured cell.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Behind which wall; alone on the whole GPU counts as `time-slicing` alone.
    pub wall: Wall,
    /// What the node was told, behind the wall `partywall`.
    pub node: Option<Node>,
    /// Whether both were in one process, without MPS.
    pub one_process: bool,
    /// The latency-sensitive tenant, if it took part.
    pub ls: Option<Tenant>,
    /// The best-effort tenant, if it took part.
    pub be: Option<Tenant>,
    /// How its percentiles were taken.
    pub rank: Rank,
    /// Measured median service time of the latency-sensitive tenant.
    pub p50_ms: Option<f64>,
    /// Measured 99th percentile.
    pub p99_ms: Option<f64>,
    /// Measured rate of the best-effort tenant in items of its program, where recorded.
    pub be_rate_per_s: Option<f64>,
}

/// What a file of measurements has for the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    /// Catalogue id of the GPU it was measured on.
    pub gpu: String,
    /// The cells that can be simulated.
    pub pairs: Vec<Pair>,
    /// Of each of them, which cell of the record it is; empty where there are no cells, but lines.
    pub cells: Vec<usize>,
    /// The cells that cannot.
    pub left_out: Vec<LeftOut>,
}

/// A measured cell without a model of it, or without a measurement.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct LeftOut {
    /// Why it cannot be compared.
    pub why: String,
    /// Which cell.
    pub cell: String,
}

/// A file of measurements that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}{place}: {what}")]
pub struct ReadError {
    file: String,
    place: String,
    what: String,
}

impl ReadError {
    fn in_json(file: &str, error: &serde_json::Error) -> Self {
        let place = format!(":{}:{}", error.line(), error.column());
        Self { file: file.to_owned(), place, what: error.to_string() }
    }

    fn at_line(file: &str, line: u64, what: String) -> Self {
        Self { file: file.to_owned(), place: format!(":{line}"), what }
    }
}

/// Reads a record of `partywall measure` or of `partywall vram interfere`, or a file of pairs; which of them it is shows in its first
/// character, and in the command that a record says.
///
/// # Errors
/// The first thing that cannot be used, with its place and what would be right.
pub fn read(text: &str, file: &str) -> Result<Recording, ReadError> {
    if text.trim_start().starts_with('{') {
        #[derive(Deserialize)]
        struct Head {
            command: Option<String>,
        }
        let head: Head = serde_json::from_str(text).map_err(|error| ReadError::in_json(file, &error))?;
        let neighbours = head.command.is_some_and(|command| command.starts_with(sides::COMMAND));
        return if neighbours { sides::parse(text, file) } else { parse_record(text, file) };
    }
    let pairs = parse_pairs(text, file)?;
    Ok(Recording { gpu: PAIRS_ON.to_owned(), pairs, cells: Vec::new(), left_out: Vec::new() })
}

/// A pair and what the model says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// The measured cell.
    pub pair: Pair,
    /// Simulated median latency.
    pub p50_ms: f64,
    /// Simulated 99th percentile.
    pub p99_ms: f64,
    /// Simulated rate of the best-effort tenant.
    pub be_rate_per_s: Option<f64>,
}

impl Compared {
    /// Absolute relative error of the median.
    pub fn error_p50(&self) -> Option<f64> {
        Some((self.p50_ms / self.pair.p50_ms? - 1.0).abs())
    }

    /// Absolute relative error of the 99th percentile.
    pub fn error_p99(&self) -> Option<f64> {
        Some((self.p99_ms / self.pair.p99_ms? - 1.0).abs())
    }

    /// Absolute relative error of the best-effort rate.
    pub fn error_be_rate(&self) -> Option<f64> {
        Some((self.be_rate_per_s? / self.pair.be_rate_per_s? - 1.0).abs())
    }
}

/// Errors of one wall. The medians are over pairs; tenants alone behind the wall are counted apart, because they are
/// easier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WallError {
    /// The wall's id.
    pub wall: Wall,
    /// Pairs.
    pub n: usize,
    /// Median over pairs of the absolute relative error of the p50 latency.
    pub median_error_p50: f64,
    /// 90th percentile of the same.
    pub p90_error_p50: f64,
    /// Largest of the same.
    pub max_error_p50: f64,
    /// Median over pairs of the absolute relative error of the p99 latency; `None` where no pair has one.
    pub median_error_p99: Option<f64>,
    /// Median over pairs of the absolute relative error of the best-effort rate. The first recording gives one average
    /// per program and wall, so there this is coarse.
    pub median_error_be_rate: Option<f64>,
    /// Latency-sensitive tenants alone behind the wall.
    pub alone_n: usize,
    /// Median absolute relative error of their p50 latency.
    pub alone_median_error_p50: Option<f64>,
    /// Best-effort tenants alone behind the wall.
    pub be_alone_n: usize,
    /// Median absolute relative error of their rate.
    pub be_alone_median_error_rate: Option<f64>,
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

/// What a tenant of this name runs, on `gpu`.
///
/// # Errors
/// There is no recorded network of that name.
pub fn program(name: &str, gpu: &Gpu, params: &Params) -> Result<Program, SimError> {
    let chip = Chip::of(gpu);
    Ok(match name {
        STREAM => Program::stream(&chip, params),
        GEMM => Program::gemm(&chip, &chip, params),
        network => Program::of(&profile::recorded(network)?, &chip, &chip, params),
    })
}

/// Simulates one pair on `gpu`, which is the one it was measured on.
///
/// # Errors
/// The networks are unknown, or the wall does not fit the GPU.
pub fn simulate(pair: &Pair, gpu: &Gpu, params: &Params, effort: Effort) -> Result<Compared, SimError> {
    let sides = [(Class::LatencySensitive, &pair.ls), (Class::BestEffort, &pair.be)];
    let sides = sides.into_iter().filter_map(|(class, side)| Some((class, side.as_ref()?)));
    let mut workloads = Vec::new();
    let mut shares = Vec::new();
    for (class, tenant) in sides {
        let program = match &tenant.made {
            Some(program) => program.clone(),
            None => program(&tenant.program, gpu, params)?,
        };
        let program = match (tenant.launched_ms, tenant.solo_ms) {
            (Some(launched_ms), _) => program.launched_in(launched_ms * 1e6),
            (None, Some(solo_ms)) => program.paced(solo_ms * 1e6, params),
            (None, None) => program,
        };
        workloads.push(workload(class, program, &tenant.load)?);
        shares.push(tenant.share);
    }
    let setup = Setup {
        gpu,
        layout: layout(pair, gpu, &workloads, &shares)?,
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
    let be = pair.be.is_some().then(|| setup.workloads.len() - 1);
    let outcome = machine::run(setup)?;
    let service = &outcome.tenants[0].service;
    let at = |q: f64| {
        let time = match pair.rank {
            Rank::Nearest => service.quantile(q),
            Rank::Above => service.sorted_at(q),
        };
        time.map_or(effort.time.as_ms(), Nanos::as_ms)
    };
    Ok(Compared {
        pair: pair.clone(),
        p50_ms: at(0.5),
        p99_ms: at(0.99),
        be_rate_per_s: be.map(|index| outcome.tenants[index].rate(outcome.measured)),
    })
}

fn workload(class: Class, program: Program, load: &Load) -> Result<Workload, LoadError> {
    Ok(Workload { name: program.name.clone(), class, program, demand: load.demand(None)?, objective: None })
}

/// The wall as it was set. Recordings cut SM sets in finer steps than a wall chooses by itself, so where all have one
/// it is taken as it is.
fn layout(
    pair: &Pair,
    gpu: &Gpu,
    workloads: &[Workload],
    shares: &[Option<Share>],
) -> Result<Layout, SimError> {
    if let Some(node) = &pair.node {
        let members = workloads.iter().zip(shares);
        let members = members.map(|(workload, &share)| Member { class: workload.class, share });
        return Ok(Layout::node(node, gpu, &members.collect::<Vec<_>>())?);
    }
    let sets: Option<Vec<SmCount>> = shares
        .iter()
        .map(|share| match share {
            Some(Share::Sms(sms)) => Some(*sms),
            _ => None,
        })
        .collect();
    let members = workloads.iter().zip(shares).map(|(workload, share)| {
        let share = if sets.is_some() { None } else { *share };
        Member { class: workload.class, share }
    });
    let members: Vec<Member> = members.collect();
    let layout = Layout::new(pair.wall, gpu, &members)?;
    let layout = sets.map_or(layout.clone(), |sets| layout.with_sms(&sets));
    Ok(if pair.one_process { layout.in_one_process() } else { layout })
}

/// The errors per wall, in the order of [`Wall::ALL`]; walls without pairs are not in the list.
pub fn summarise(compared: &[Compared]) -> Vec<WallError> {
    let of = |wall: Wall| {
        let rows = || compared.iter().filter(|row| row.pair.wall == wall);
        let pairs: Vec<&Compared> =
            rows().filter(|row| row.pair.ls.is_some() && row.pair.be.is_some()).collect();
        let alone: Vec<&Compared> = rows().filter(|row| row.pair.be.is_none()).collect();
        let be_alone: Vec<&Compared> = rows().filter(|row| row.pair.ls.is_none()).collect();
        let errors = |rows: &[&Compared], error: fn(&Compared) -> Option<f64>| -> Vec<f64> {
            rows.iter().filter_map(|row| error(row)).collect()
        };
        Some(WallError {
            wall,
            n: pairs.len(),
            median_error_p50: quantile(errors(&pairs, Compared::error_p50), 0.5)?,
            p90_error_p50: quantile(errors(&pairs, Compared::error_p50), 0.9)?,
            max_error_p50: quantile(errors(&pairs, Compared::error_p50), 1.0)?,
            median_error_p99: quantile(errors(&pairs, Compared::error_p99), 0.5),
            median_error_be_rate: quantile(errors(&pairs, Compared::error_be_rate), 0.5),
            alone_n: alone.len(),
            alone_median_error_p50: quantile(errors(&alone, Compared::error_p50), 0.5),
            be_alone_n: be_alone.len(),
            be_alone_median_error_rate: quantile(errors(&be_alone, Compared::error_be_rate), 0.5),
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
