//! Scenario files: tenants, how their requests come, and the walls to try between them, as TOML that people write.
//!
//! ```text
//! text -> Scenario::parse -> Scenario -> Scenario::run (catalogue, traces) -> ScenarioReport -> JSON or tables
//! ```
//!
//! A scenario holds tenants and *variants*. A variant is one wall with one way to schedule copies; each is run once on
//! each GPU of the scenario, with the same arrivals. Two tables ask for more:
//!
//! - `[sweep]` puts every pair of a latency-sensitive and a best-effort network in the place of the two tenants whose
//!   program is `"sweep"`; the report then also has one summary per variant over all pairs.
//! - `[ims]` finds the highest rate at which a tenant alone in its part meets every deadline, and counts its timeouts
//!   at that rate while the others' load is raised ([`crate::ims`]).
//!
//! Nothing here opens files: traces that a load names are read through a closure of the caller. What is wrong in a
//! file is reported at its place, also where only the GPU or the trace shows it: too many tenants for a wall is said
//! at the `wall` of the variant that asked for it.

use std::collections::BTreeMap;
use std::fmt;

use partywall_core::copy_scheduler::Policy;
use partywall_core::diagnostic::Diagnostic;
use partywall_core::tenant::{Class, Share};
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;
use serde::{Deserialize, Deserializer};

use crate::layout::{Node, NodeText};
use crate::load::Load;
use crate::trace::TraceError;

mod bind;
mod check;
mod reference;
mod report;
mod run;

pub use reference::reference;
pub use report::{ImsResult, ImsStep, Row, ScenarioReport, Spread, Summary, Table};
pub use run::{Progress, RunOptions};

/// Tenants at most: what an MPS server takes.
pub const MAX_TENANTS: usize = 48;

/// Variants at most.
pub const MAX_VARIANTS: usize = 64;

/// Runs of a scenario at most (GPUs x variants x pairs of the sweep): days of work beyond this are a slip.
pub const MAX_RUNS: usize = 10_000;

/// Longest warm-up and longest time measured after it.
pub const MAX_TIME: Nanos = Nanos::from_secs(3600);

/// Requests of one IMS run at most.
pub const MAX_IMS_REQUESTS: u32 = 100_000;

/// What a file says: tenants, variants, and what to measure. One that exists makes sense by itself; whether its GPUs
/// exist and its walls fit is seen when it runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// What the file says, checked.
    pub file: ScenarioFile,
    /// The text and its name, for messages about what only a run shows.
    text: String,
    name: String,
}

/// The keys of a scenario file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScenarioFile {
    /// A short name.
    pub name: String,
    /// What it shows, and with which caution to read it.
    #[serde(default)]
    pub description: String,
    /// Catalogue ids.
    pub gpu: OneOrMore,
    /// Seed of everything random.
    #[serde(default = "one")]
    pub seed: u64,
    /// Measured time, after the warm-up.
    pub duration: Nanos,
    /// Nothing before this counts.
    #[serde(default = "default_warmup")]
    pub warmup: Nanos,
    /// Of latency-sensitive tenants that say none.
    #[serde(default)]
    pub objective: Option<Objective>,
    /// The tenants.
    #[serde(rename = "tenant")]
    pub tenants: Vec<TenantSpec>,
    /// Faults to inject.
    #[serde(default, rename = "fault")]
    pub faults: Vec<FaultSpec>,
    /// The walls to try.
    #[serde(rename = "variant")]
    pub variants: Vec<VariantSpec>,
    /// Maximum stable rates and timeouts.
    #[serde(default)]
    pub ims: Option<ImsSpec>,
    /// Networks in the place of tenants.
    #[serde(default)]
    pub sweep: Option<SweepSpec>,
}

/// A text or a list of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OneOrMore(pub Vec<String>);

/// The longest response that is good: a time, or a multiple of the median service time alone on the whole GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Objective {
    /// `"5ms"`.
    Time(Nanos),
    /// `"2x"`.
    TimesSolo(f64),
}

/// A tenant.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantSpec {
    /// Unique.
    pub name: String,
    /// What it cares about.
    pub class: Class,
    /// A recorded network by its model, or `stream`, `gemm`, `host-copy`, `sweep`.
    pub program: String,
    /// Inputs per request, for networks.
    #[serde(default)]
    pub batch: Option<u32>,
    /// Bytes per request, for `host-copy`.
    #[serde(default)]
    pub bytes: Option<Bytes>,
    /// Copied to the device before each request.
    #[serde(default)]
    pub input: Bytes,
    /// Copied back after each request.
    #[serde(default)]
    pub output: Bytes,
    /// How requests come.
    pub load: Load,
    /// Longest good response.
    #[serde(default)]
    pub objective: Option<Objective>,
    /// SMs asked for.
    #[serde(default)]
    pub share: Option<Share>,
}

/// A fatal GPU fault.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// Whose, by name.
    pub tenant: String,
    /// When, from the start of the run.
    pub at: Nanos,
    /// How long those it ends take to come back.
    #[serde(default = "default_restart")]
    pub restart: Nanos,
}

/// A wall to try.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantSpec {
    /// Unique.
    pub name: String,
    /// The wall.
    pub wall: Wall,
    /// How the wall `partywall` is set, where not as it comes; without words for SMs, which are `share`.
    #[serde(default)]
    pub setting: Option<String>,
    /// How copies are scheduled.
    #[serde(default)]
    pub copies: Copies,
    /// On these GPUs only.
    #[serde(default)]
    pub gpu: Option<OneOrMore>,
    /// SMs by tenant name, instead of what the tenants ask for.
    #[serde(default)]
    pub share: BTreeMap<String, Share>,
}

impl VariantSpec {
    /// What the node of the wall `partywall` is told; `None` where nothing is said or it was found wrong.
    pub(crate) fn node(&self) -> Option<Node> {
        let text: NodeText = self.setting.as_deref()?.parse().ok()?;
        Some(text.node)
    }
}

/// How copies between host and device are scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Copies {
    /// Whole copies in the order in which they come.
    #[default]
    Fifo,
    /// In packets, fairly by class.
    Fair,
}

/// Which tenants' maximum stable rate to find.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImsSpec {
    /// By name; the others are their co-runners.
    pub tenants: Vec<String>,
    /// Inferences of one run.
    #[serde(default = "default_requests")]
    pub requests: u32,
    /// By how much the rate is raised at a time, as a fraction.
    #[serde(default = "default_step")]
    pub step: f64,
    /// Part of the period that the isolation test leaves free: its tenants run at (1 - margin) of their maximum rate.
    #[serde(default)]
    pub margin: f64,
    /// Loads of the co-runners, as fractions of the rate they run at in the isolation test.
    #[serde(default = "default_loads")]
    pub loads: Vec<f64>,
}

/// Networks for the tenants whose program is `sweep`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepSpec {
    /// For the latency-sensitive one.
    pub ls: Vec<String>,
    /// For the best-effort one.
    pub be: Vec<String>,
}

fn one() -> u64 {
    1
}
fn default_warmup() -> Nanos {
    Nanos::from_millis(100)
}
fn default_restart() -> Nanos {
    Nanos::from_secs(1)
}
fn default_requests() -> u32 {
    crate::ims::Config::default().requests
}
fn default_step() -> f64 {
    crate::ims::Config::default().step
}
fn default_loads() -> Vec<f64> {
    vec![0.0, 0.25, 0.5, 0.75, 1.0]
}

/// Why a scenario cannot be read or run.
#[derive(Debug, Clone, PartialEq)]
pub enum ScenarioError {
    /// The file: each problem once, in the order of the file; never empty.
    File(Vec<Diagnostic>),
    /// A trace that the file names.
    Trace(TraceError),
}

impl From<Diagnostic> for ScenarioError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self::File(vec![diagnostic])
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::File(diagnostics) => {
                for (index, diagnostic) in diagnostics.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{diagnostic}")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ScenarioError {}

impl Scenario {
    /// Reads `text`, the contents of the file `name` (named in messages only).
    ///
    /// # Errors
    /// What is not TOML, has an unknown or missing key or a value of the wrong kind (one problem; reading ends
    /// there), or makes no sense (every problem).
    pub fn parse(text: &str, name: &str) -> Result<Self, ScenarioError> {
        if let Some(diagnostic) = check::list_for_table(text, name) {
            return Err(diagnostic.into());
        }
        let file: ScenarioFile = toml::from_str(text)
            .map_err(|error| Diagnostic::from_toml(text, name, &error, reference::example))?;
        let diagnostics = check::check(&file, text, name);
        if !diagnostics.is_empty() {
            return Err(ScenarioError::File(diagnostics));
        }
        Ok(Self { file, text: text.to_owned(), name: name.to_owned() })
    }

    /// The same, measured for at most `duration` after at most half of that as warm-up, and with at most `requests`
    /// to an IMS run: to see quickly that everything in the file works.
    #[must_use]
    pub fn shortened(mut self, duration: Nanos, requests: u32) -> Self {
        self.file.duration = self.file.duration.min(duration);
        self.file.warmup = self.file.warmup.min(Nanos(duration.0 / 2));
        if let Some(ims) = &mut self.file.ims {
            ims.requests = ims.requests.min(requests.max(1));
        }
        self
    }
}

impl Copies {
    fn policy(self) -> Policy {
        match self {
            Self::Fifo => Policy::Fifo,
            Self::Fair => Policy::Fair,
        }
    }
}

impl<'de> Deserialize<'de> for OneOrMore {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = OneOrMore;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OneOrMore, E> {
                Ok(OneOrMore(vec![text.to_owned()]))
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<OneOrMore, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(OneOrMore(texts))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Objective {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let times = text.trim().strip_suffix('x').map(str::parse::<f64>);
        match times {
            Some(Ok(times)) if times > 0.0 && times.is_finite() => Ok(Self::TimesSolo(times)),
            Some(_) => Err(serde::de::Error::custom(format_args!(
                "{} is no multiple of the time alone; write \"2x\", or a time such as \"5ms\"",
                partywall_core::diagnostic::quoted(&text)
            ))),
            None => text.parse().map(Self::Time).map_err(|error: partywall_core::units::UnitError| {
                serde::de::Error::custom(format_args!("{error}, or \"2x\" for twice the median alone"))
            }),
        }
    }
}

#[cfg(test)]
mod tests;
