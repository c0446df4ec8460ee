//! What is told about a promise.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tenant::Slo;
use crate::units::Nanos;

/// How a promise stands. What is `None` is not known, for want of requests or of a baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// What was promised.
    pub promised: Slo,
    /// Whether it is kept.
    pub verdict: Verdict,
    /// Why it is not guaranteed; empty otherwise.
    pub reasons: Vec<Reason>,
    /// What 99 of 100 requests may take at most.
    pub bound_ns: Option<Nanos>,
    /// What requests take alone.
    pub baseline: BaselineStatus,
    /// What they took beside best-effort work, within the last minute.
    pub beside: BesideStatus,
    /// p99 beside / p99 of the baseline.
    pub slowdown: Option<f64>,
    /// How far what was measured is below what was promised, as a fraction of that; negative above it. Of two promises the smaller.
    pub margin: Option<f64>,
    /// Requests above the bound, within the last minute.
    pub above: Option<Exceedance>,
    /// The same within the last seconds.
    pub recent: Option<Exceedance>,
    /// Requests ever.
    pub requests: u64,
    /// Requests of which nothing is known, ever; not among those.
    pub lost: u64,
    /// How often the promise was broken.
    pub breaks: u64,
    /// For how long it is broken now.
    pub broken_for_ns: Option<Nanos>,
}

/// Whether a promise is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is: measured.
    Kept,
    /// It is not: measured.
    Broken,
    /// It is not known to be kept.
    NotGuaranteed,
}

/// Why nothing is guaranteed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "reason")]
pub enum Reason {
    /// Nobody asked for it.
    NotPromised,
    /// Whoever runs tenants does not decide about launches, so requests are not seen and nobody can be held.
    LaunchesUndecided,
    /// Something that has nothing to do with requests.
    Outside {
        /// A line for people.
        text: String,
    },
    /// Of so many requests, so many overlap with others, or cannot be told from such, and their times are not known.
    Overlap {
        /// Requests.
        requests: u64,
        /// Of these.
        overlapping: u64,
    },
    /// It is not known yet what requests take alone.
    NoBaseline {
        /// Requests alone.
        requests: u64,
        /// Requests that it takes.
        needed: u64,
    },
    /// No best-effort tenant was at work during any request.
    NobodyBeside {
        /// For so long.
        within: Nanos,
    },
    /// Chance may explain what was measured.
    TooFew {
        /// Requests beside best-effort work.
        requests: u64,
        /// Requests that are enough in any case.
        needed: u64,
    },
}

/// What requests take alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaselineStatus {
    /// Where it comes from.
    pub source: BaselineSource,
    /// Its median, if it was measured.
    pub p50_ns: Option<Nanos>,
    /// Its p99.
    pub p99_ns: Option<Nanos>,
    /// Requests alone that are remembered.
    pub requests: u64,
    /// How long ago the last of them ended.
    pub age_ns: Option<Nanos>,
    /// Whether best-effort tenants hold for it now.
    pub is_being_taken: bool,
}

/// Where a baseline comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BaselineSource {
    /// There is none yet.
    None,
    /// From the configuration.
    Given,
    /// From requests while nobody else was at work.
    Measured,
}

/// What requests took beside best-effort work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BesideStatus {
    /// Requests.
    pub requests: u64,
    /// Those of them whose time is not known.
    pub overlapping: u64,
    /// Their median.
    pub p50_ns: Option<Nanos>,
    /// Their p99.
    pub p99_ns: Option<Nanos>,
}

/// How many requests took longer than they may.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Exceedance {
    /// Of so many.
    pub requests: u64,
    /// So many.
    pub above: u64,
    /// And of so many it is not known.
    pub unknown: u64,
    /// The share, without those; `None` of nothing.
    pub share: Option<f64>,
    /// In 95 of 100 cases, the share in the long run is at least this,
    pub low: f64,
    /// and at most this.
    pub high: f64,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kept => "kept",
            Self::Broken => "broken",
            Self::NotGuaranteed => "not guaranteed",
        })
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotPromised => f.write_str("nothing was promised about its requests"),
            Self::LaunchesUndecided => f.write_str(
                "the node does not decide about launches; start it with --wall partywall or --launches chunks=2",
            ),
            Self::Outside { text } => f.write_str(text),
            Self::Overlap { requests, overlapping } => write!(
                f,
                "its requests overlap, or it waits for something in the middle of them: {overlapping} of {requests} have no time"
            ),
            Self::NoBaseline { requests, needed } => {
                write!(f, "it is not known yet what its requests take alone: {requests} of {needed} requests")
            }
            Self::NobodyBeside { within } => {
                write!(f, "no best-effort tenant was at work beside its requests in the last {within}")
            }
            Self::TooFew { requests, needed } => {
                write!(f, "too few requests beside best-effort work to tell: {requests} of {needed}")
            }
        }
    }
}
