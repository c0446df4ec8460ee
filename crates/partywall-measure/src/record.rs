//! What a measurement leaves: one JSON file with environment, settings, every cell and the rows made of them.
//!
//! Times in milliseconds unless the name says otherwise; ratios are fractions; a percentile without enough samples
//! behind it, and a ratio of one, is null.

use std::collections::BTreeMap;

use partywall_core::diagnostic::Diagnostic;
use partywall_core::tenant::Class;
use partywall_core::wall::Wall;
use serde::{Deserialize, Serialize};

pub use around::{Figures, NodeRecord, PartRecord};

use crate::load::Load;

mod around;

/// [`Record::format`].
pub const FORMAT: &str = "partywall-measure-1";

/// A whole measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`]; what has another one is not read.
    pub format: String,
    /// Whether the GPU was a simulated one, whose times are modelled.
    pub simulated: bool,
    /// Whether the tenants were pretended: a rehearsal without GPU, whose figures mean nothing.
    pub pretended: bool,
    /// What it is called; the file's name without `.json`.
    pub name: String,
    /// The command line that makes it again.
    pub command: String,
    /// When it began, RFC 3339 in UTC.
    pub started: String,
    /// How long it took, s.
    pub took_s: f64,
    /// False where the time limit ended it: cells that were not measured say `skipped`.
    pub complete: bool,
    /// The machine.
    pub environment: Environment,
    /// How it was measured.
    pub settings: Settings,
    /// Who took part.
    pub tenants: Vec<TenantRecord>,
    /// What was measured, in the order of the plan.
    pub cells: Vec<CellRecord>,
    /// The co-run cells against solo and alone, in the order of the plan.
    pub rows: Vec<Row>,
    /// The maximum stable rates and the timeouts at them, where they were asked for.
    #[serde(default)]
    pub ims: Vec<ImsRecord>,
    /// Rows that the plan expected something of.
    #[serde(default)]
    pub facts: Vec<FactRecord>,
    /// The measurements that it was merged from; empty where it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PartRecord>,
    /// The figures of each row by a name that does not depend on where it stands: see [`crate::summary`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub summary: BTreeMap<String, Figures>,
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Environment {
    /// The GPU; null in a rehearsal.
    pub gpu: Option<GpuRecord>,
    /// The host.
    pub host: HostRecord,
}

/// The GPU and the settings it was found with. Null is what the driver did not say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRecord {
    /// Its id in the catalogue, where it is known there.
    pub id: Option<String>,
    /// As the driver names it.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// Version of the driver.
    pub driver: Option<String>,
    /// Version of CUDA that the driver supports.
    pub cuda: Option<String>,
    /// Whether MIG is on.
    pub mig: Option<bool>,
    /// `gen 5 x16`.
    pub pcie: Option<String>,
    /// Power cap, W.
    pub power_limit_w: Option<f64>,
    /// Highest SM clock, MHz.
    pub clock_max_mhz: Option<f64>,
    /// `default`, `exclusive-process` or `prohibited`.
    pub compute_mode: Option<String>,
    /// Whether persistence mode is on.
    pub persistence: Option<bool>,
}

/// The host.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostRecord {
    /// Cores that this process may use.
    pub cores: usize,
    /// Version of the kernel.
    pub kernel: Option<String>,
    /// Memory, GiB.
    pub memory_gib: Option<f64>,
    /// Whether it is a container.
    pub container: Option<bool>,
}

/// How it was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `quick`, `full`, or the file's name of a plan.
    pub plan: String,
    /// Seed of arrivals, of the order of cells and of the bootstrap.
    pub seed: u64,
    /// How often each cell was measured; its samples are pooled.
    pub rounds: u32,
    /// How long tenants ran beside each other before anything counted, s.
    pub warmup_s: f64,
    /// Longest window of a cell over all rounds, s.
    pub seconds_max: f64,
    /// Requests of the latency-sensitive tenant after which a cell ended.
    pub requests_wanted: u64,
    /// How many samples a percentile needs: `recorded` (50 beyond it) or `shown` (10 beyond it).
    pub evidence: EvidenceRule,
}

/// `core::measure::Evidence` by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceRule {
    /// 50 samples beyond the percentile.
    Recorded,
    /// 10 samples beyond the percentile.
    Shown,
}

/// Who took part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantRecord {
    /// Its name in the plan.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// Whose program it is.
    pub program: ProgramKind,
    /// Its command, file names without their folders.
    pub command: Vec<String>,
    /// What it did in cells.
    pub load: Load,
    /// Rate of its arrivals x its median service time solo, where the rate was made of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duty: Option<f64>,
    /// What its work is counted in; null where it never came up.
    pub unit: Option<String>,
    /// Work units at depth 1.
    pub work: Option<f64>,
    /// What it said about itself.
    pub about: BTreeMap<String, String>,
    /// Its cache policy, where it stated one.
    pub cache_policy: Option<String>,
}

/// Whose program a tenant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Partywall's own.
    BuiltIn,
    /// Any other.
    External,
}

/// In how many processes the tenants of a cell ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Processes {
    /// All in one.
    One,
    /// Each in one of its own.
    Separate,
}

/// What a cell is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CellKind {
    /// A tenant alone on the whole GPU, without Partywall and MPS; its wall is `exclusive`.
    Solo,
    /// A tenant alone in its part, behind the wall.
    Alone,
    /// Both tenants.
    Corun,
}

/// What was measured in one set-up, pooled over its rounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellRecord {
    /// The wall; `exclusive` for solo.
    pub wall: Wall,
    /// How the wall was set, LS first: `50/50`, `64/68`; empty where there is nothing to set.
    pub setting: String,
    /// In how many processes.
    pub processes: Processes,
    /// What it is for.
    pub kind: CellKind,
    /// The latency-sensitive tenant, if it took part.
    pub ls: Option<String>,
    /// The best-effort tenant, if it took part.
    pub be: Option<String>,
    /// Who else took part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// Of each tenant that took part; empty where nothing was measured.
    pub results: Vec<TenantResult>,
    /// Power and clocks; null where they were not sampled.
    pub gpu: Option<GpuSample>,
    /// What the node says of its tenants, where they run under one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node: Vec<NodeRecord>,
    /// Of which measurement it is, where several were merged: the index into [`Record::parts`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: usize,
    /// Why the cell has no, or not all, results.
    pub error: Option<CellError>,
}

fn is_zero(part: &usize) -> bool {
    *part == 0
}

/// One tenant in a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TenantResult {
    /// Its name.
    pub tenant: String,
    /// Requests that began within the window.
    pub requests: u64,
    /// `ok`, or what the tenant found wrong with its results.
    pub check: String,
    /// From the start of a request's work to its completion.
    pub service_ms: Quantiles,
    /// From a request's scheduled arrival to its completion.
    pub response_ms: Quantiles,
    /// Work units a second, pro rata by overlap with the window.
    pub rate_per_s: f64,
    /// Requests a second that an open load offered; null for a closed one.
    pub offered_per_s: Option<f64>,
    /// Requests a second that were completed.
    pub completed_per_s: f64,
    /// Whether an open load was not served: its times then say how long the run was.
    pub saturated: bool,
    /// Median time between the return of a wait and the next submission, us.
    pub host_gap_us: Option<f64>,
    /// The rounds, in order.
    pub rounds: Vec<RoundRecord>,
}

/// Times of requests, ms. Null is what has not enough samples behind it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// 99.9th percentile.
    pub p999: Option<f64>,
    /// Longest.
    pub max: Option<f64>,
    /// Mean.
    pub mean: Option<f64>,
}

/// One round of a tenant in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoundRecord {
    /// Requests.
    pub n: u64,
    /// Median service time.
    pub p50_ms: Option<f64>,
    /// 99th percentile of service time.
    pub p99_ms: Option<f64>,
}

/// Power and clocks during a cell.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuSample {
    /// Mean power, W.
    pub power_w_mean: Option<f64>,
    /// Highest power, W.
    pub power_w_max: Option<f64>,
    /// Mean SM clock, MHz.
    pub sm_clock_mhz_mean: Option<f64>,
    /// Lowest SM clock, MHz.
    pub sm_clock_mhz_min: Option<f64>,
    /// Why clocks were held down, such as `sw-power-cap`; empty where they were not.
    pub throttled: Vec<String>,
}

/// Why a cell has no, or not all, results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellError {
    /// What kind of thing happened.
    pub kind: ErrorKind,
    /// What happened, to whom.
    pub message: String,
}

/// What can end a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// A tenant's process ended.
    Died,
    /// A tenant did not answer in time.
    Hung,
    /// A tenant wrote something that is not of the protocol.
    Rubbish,
    /// A tenant said that the GPU failed it.
    GpuFault,
    /// A tenant found its results wrong.
    WrongResult,
    /// It was not measured: the wall is not available, or the time was over.
    Skipped,
}

/// A co-run cell against solo and alone. Slowdown = capacity cost x interference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The wall.
    pub wall: Wall,
    /// How it was set.
    pub setting: String,
    /// In how many processes.
    pub processes: Processes,
    /// The latency-sensitive tenant.
    pub ls: String,
    /// The best-effort tenant.
    pub be: String,
    /// Who else was at work at the same time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
    /// Of which measurement it is, where several were merged: the index into [`Record::parts`].
    #[serde(default, skip_serializing_if = "is_zero")]
    pub part: usize,
    /// Its median service time beside the other.
    pub p50_ms: Option<f64>,
    /// Its p99 service time beside the other.
    pub p99_ms: Option<f64>,
    /// p50 / solo p50.
    pub slowdown_p50: Option<f64>,
    /// Its 95 % interval (block bootstrap).
    pub slowdown_p50_interval: Option<[f64; 2]>,
    /// p99 / solo p99.
    pub slowdown_p99: Option<f64>,
    /// Its 95 % interval (block bootstrap).
    pub slowdown_p99_interval: Option<[f64; 2]>,
    /// p50 of response times / solo p50 of response times.
    #[serde(default)]
    pub response_slowdown_p50: Option<f64>,
    /// p99 of response times / solo p99 of response times.
    #[serde(default)]
    pub response_slowdown_p99: Option<f64>,
    /// p50 alone in the part / solo p50.
    pub capacity_cost_p50: Option<f64>,
    /// p50 / p50 alone in the part.
    pub interference_p50: Option<f64>,
    /// p99 alone in the part / solo p99.
    pub capacity_cost_p99: Option<f64>,
    /// p99 / p99 alone in the part.
    pub interference_p99: Option<f64>,
    /// Rate of the best-effort tenant / its solo rate.
    pub be_kept: Option<f64>,
    /// The same / its rate alone in the part, where that was measured: on sides.
    #[serde(default)]
    pub be_kept_of_part: Option<f64>,
    /// Its rate, work units a second.
    pub be_rate_per_s: Option<f64>,
    /// Whether the latency-sensitive tenant's open load was not served; slowdowns are null then.
    pub saturated: bool,
    /// Requests a second of the latency-sensitive tenant that were completed.
    #[serde(default)]
    pub completed_per_s: Option<f64>,
    /// Why clocks were held down during the cell; empty where they were not.
    pub throttled: Vec<String>,
    /// Why it lacks figures.
    pub error: Option<CellError>,
}

/// The maximum stable inference rate of a tenant alone in its part, and its timeouts at that rate beside each other
/// tenant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImsRecord {
    /// The wall.
    pub wall: Wall,
    /// How it was set.
    pub setting: String,
    /// In how many processes.
    pub processes: Processes,
    /// The tenant.
    pub ls: String,
    /// Its shortest stable period; null where none was found.
    pub period_ms: Option<f64>,
    /// Runs that the search took.
    pub runs: u32,
    /// Beside each best-effort tenant at that period.
    pub beside: Vec<Timeouts>,
    /// Why something is missing.
    pub error: Option<CellError>,
}

/// Requests at the maximum stable rate beside a neighbour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Timeouts {
    /// The neighbour.
    pub be: String,
    /// Requests that were due.
    pub requests: u64,
    /// Those not done within their period.
    pub timeouts: u64,
    /// Why it was not measured.
    pub error: Option<CellError>,
}

/// A ratio that the plan expected, and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FactRecord {
    /// The row: `green-contexts 64/68 one: read-latency beside vram-read`.
    pub row: String,
    /// The ratio that was expected.
    pub expected: f64,
    /// Where it comes from.
    pub source: String,
    /// Why something else was expected to be measured here.
    #[serde(default)]
    pub differs: Option<String>,
    /// The ratio that was measured, of medians; null where the row has none.
    pub measured: Option<f64>,
    /// (measured - expected) / expected; null where nothing was measured.
    pub relative_difference: Option<f64>,
}

/// Only what says whether the rest can be read.
#[derive(Deserialize)]
struct Head {
    format: String,
}

impl Record {
    /// Reads `text`, the contents of `file` (named in messages only).
    ///
    /// # Errors
    /// What is not JSON, has another format, or lacks something, with line and column.
    pub fn parse(text: &str, file: &str) -> Result<Self, Diagnostic> {
        let head: Head = serde_json::from_str(text).map_err(|error| {
            diagnostic(text, file, &error).with_help("results of `partywall measure` begin with their format")
        })?;
        if head.format != FORMAT {
            let message = format!("the format is `{}`; this version reads `{FORMAT}`", head.format);
            let place = text.find(&head.format).map_or(0..0, |start| start..start + head.format.len());
            return Err(Diagnostic::at(text, place, file, message));
        }
        serde_json::from_str(text).map_err(|error| diagnostic(text, file, &error))
    }

    /// The file's text: indented, with a final line break.
    ///
    /// # Errors
    /// None that this crate's records can have; serde's type has them.
    pub fn json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string_pretty(self).map(|text| text + "\n")
    }

    /// The largest absolute relative difference of [`Record::facts`], but for those that are known to differ; `None` where
    /// nothing was expected or measured.
    pub fn worst_fact(&self) -> Option<&FactRecord> {
        let size = |fact: &&FactRecord| fact.relative_difference.map(f64::abs);
        let measured = self.facts.iter().filter(|fact| fact.differs.is_none() && size(fact).is_some());
        measured.max_by(|a, b| size(a).unwrap_or(0.0).total_cmp(&size(b).unwrap_or(0.0)))
    }
}

impl CellError {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}

impl ErrorKind {
    /// As files have it.
    pub const fn id(self) -> &'static str {
        match self {
            Self::Died => "died",
            Self::Hung => "hung",
            Self::Rubbish => "rubbish",
            Self::GpuFault => "gpu-fault",
            Self::WrongResult => "wrong-result",
            Self::Skipped => "skipped",
        }
    }
}

impl Processes {
    /// As files have it.
    pub const fn id(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Separate => "separate",
        }
    }
}

fn diagnostic(text: &str, file: &str, error: &serde_json::Error) -> Diagnostic {
    let line = error.line().max(1);
    let shown = text.split('\n').nth(line - 1).unwrap_or_default();
    let at = error.column().saturating_sub(1).min(shown.len());
    // The place stands in front of the message already.
    let message = error.to_string();
    let message = message.split(" at line ").next().unwrap_or_default().to_owned();
    Diagnostic::in_line(shown, line, at..at + 1, file, message)
}

#[cfg(test)]
pub(crate) mod tests;
