//! How the requests of a tenant come.
//!
//! A [`Load`] is what a scenario file says. It is checked, and joined with the trace it names, into a [`Demand`]; an
//! open-loop demand gives [`Arrivals`], which the engine draws one by one, and a closed one gives a [`ClosedLoop`],
//! which the engine drives itself because the next request depends on when the last one was done.
//!
//! ```text
//! scenario file -> Load -> (the caller reads Load::trace()) -> Load::demand -> Demand -> arrivals or closed loop
//! ```
//!
//! Nothing here opens files: which paths may be read is the caller's to decide.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use partywall_core::units::Nanos;
use serde::{Deserialize, Serialize};

use crate::chance::Chance;
use crate::trace::{TaskLoad, Trace, TraceFormat, TraceRequest};

mod arrivals;
mod fits;
mod fitted;

pub use arrivals::{Arrival, Arrivals};
pub use fitted::FittedTrace;

/// Highest rate of one tenant, in requests a second: one per microsecond, which is less than a launch takes. A slip
/// such as a rate in requests a year is caught here and not by a simulation that never ends.
pub const MAX_RATE_PER_S: f64 = 1e6;

/// Lowest rate, in requests a second: about one in 30 years.
pub const MIN_RATE_PER_S: f64 = 1e-9;

/// Most requests a closed loop queues at once.
pub const MAX_DEPTH: u32 = 1024;

/// Most changes between calm and burst per request, on average: each costs a draw, so a request would otherwise take
/// for ever to find. Beyond this the requests do not see the bursts anyway.
const MAX_CYCLES_PER_REQUEST: f64 = 1000.0;

/// How requests come, as written in scenario files: a table with `kind` and the fields of that kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Load {
    /// Independently of each other.
    Poisson {
        /// Requests a second.
        rate_per_s: f64,
    },
    /// At even distances, such as the frames of a camera. The first comes at a random point of the first period, so
    /// that tenants with the same period do not always collide, nor never.
    Periodic {
        /// Requests a second.
        rate_per_s: f64,
    },
    /// Poisson with two rates that take turns: calm and burst, each lasting an exponentially distributed time (a
    /// two-state Markov-modulated Poisson process).
    Bursty {
        /// Requests a second, on average over calm and burst.
        rate_per_s: f64,
        /// Rate in a burst over rate in calm; 1 makes it Poisson.
        burst_factor: f64,
        /// Mean length of a burst.
        burst: Nanos,
        /// Mean length of the calm between two bursts.
        calm: Nanos,
    },
    /// The next requests when the last ones are done.
    Closed {
        /// How long to wait before queueing the next requests.
        #[serde(default)]
        pause: Nanos,
        /// Requests queued at once; all of them are waited for before the pause begins.
        #[serde(default = "one_request")]
        depth: u32,
        /// What the host takes besides the pause until it has queued them, half to one and a half times this. Behind
        /// a wall that shares SMs a neighbour gets on in that time. Not given: [`crate::params::Params::host_ns`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<Nanos>,
    },
    /// As recorded.
    Replay {
        /// Where the recording is.
        trace: TraceRef,
        /// Start again at the end; otherwise no more requests come.
        #[serde(default)]
        repeat: bool,
        /// 2 replays twice as fast.
        #[serde(default = "as_recorded")]
        speed: f64,
    },
    /// Drawn from a process fitted to a public trace; the trace itself is not needed.
    Fitted {
        /// Which trace.
        like: FittedTrace,
        /// 2 makes everything happen twice as fast: twice the rate, the same shape.
        #[serde(default = "as_recorded")]
        rate_scale: f64,
    },
}

/// A recording, or one task of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRef {
    /// What the file is.
    pub format: TraceFormat,
    /// The file; what a relative path starts from is the caller's to say.
    pub path: PathBuf,
    /// Which task of a file with several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
}

/// Why a load cannot be used; says what would be right.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// A field has a value that makes no load.
    #[error("`{field}` is {value}; expected {expected}")]
    OutOfRange {
        /// The field as scenario files call it.
        field: &'static str,
        /// What it is.
        value: String,
        /// What would be right.
        expected: String,
    },
    /// The load replays a trace and none was given.
    #[error("the trace `{path}` was not read; expected the caller to pass what `Load::trace` names")]
    TraceNotRead {
        /// The file.
        path: String,
    },
    /// The trace has no such task, or several and none was named.
    #[error("{problem} in `{path}`; expected `task` to be one of: {known}")]
    Task {
        /// What is wrong with `task`.
        problem: String,
        /// The file.
        path: String,
        /// The tasks there are.
        known: String,
    },
    /// The trace cannot be repeated.
    #[error(
        "`repeat` is set and all requests of `{path}` come at one time; expected at least two different times"
    )]
    NoPeriod {
        /// The file.
        path: String,
    },
}

/// Requests that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClosedLoop {
    /// From the end of the last of `depth` requests to the next `depth` requests.
    pub pause: Nanos,
    /// Requests queued at once, 1 to [`MAX_DEPTH`].
    pub depth: u32,
    /// What the host takes besides the pause, on average; `None` for what the model takes for everybody.
    pub host: Option<Nanos>,
}

impl ClosedLoop {
    /// One request after the other, without a pause.
    pub const BACK_TO_BACK: Self = Self { pause: Nanos::ZERO, depth: 1, host: None };
}

/// A load that was checked and has its trace. Cheap to clone: a trace is shared.
#[derive(Debug, Clone, PartialEq)]
pub struct Demand(Kind);

#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Poisson { rate_per_s: f64 },
    Periodic { rate_per_s: f64 },
    Bursty(arrivals::Bursts),
    Closed(ClosedLoop),
    Replay(arrivals::Recording),
    Fitted { like: FittedTrace, rate_scale: f64 },
}

impl Load {
    /// A closed loop without pauses, whose host takes what the model takes for everybody.
    pub const fn closed(depth: u32) -> Self {
        Self::Closed { pause: Nanos::ZERO, depth, host: None }
    }

    /// The trace that [`Load::demand`] will ask for.
    pub fn trace(&self) -> Option<&TraceRef> {
        match self {
            Self::Replay { trace, .. } => Some(trace),
            _ => None,
        }
    }

    /// Checks everything that can be checked without the trace.
    ///
    /// # Errors
    /// The first field that is out of range.
    pub fn validate(&self) -> Result<(), LoadError> {
        match self {
            Self::Poisson { rate_per_s } | Self::Periodic { rate_per_s } => rate("rate_per_s", *rate_per_s),
            Self::Bursty { rate_per_s, burst_factor, burst, calm } => {
                rate("rate_per_s", *rate_per_s)?;
                between("burst_factor", *burst_factor, 1.0, 1e6)?;
                for (field, length) in [("burst", *burst), ("calm", *calm)] {
                    within(
                        field,
                        length,
                        length > Nanos::ZERO && length <= LONGEST,
                        "a time above 0, at most 1000h",
                    )?;
                }
                let cycle = *burst + *calm;
                let shortest = 1.0 / (rate_per_s * MAX_CYCLES_PER_REQUEST);
                let expected = format!(
                    "at least {} together for one request every {} (or kind = \"poisson\")",
                    Nanos::from_ms_f64(shortest * 1e3),
                    Nanos::from_ms_f64(1e3 / rate_per_s)
                );
                within("burst + calm", cycle, cycle.as_secs() >= shortest, &expected)
            }
            Self::Closed { pause, depth, host } => {
                within("pause", *pause, *pause <= LONGEST, "at most 1000h")?;
                let host = host.unwrap_or_default();
                within("host", host, host <= LONGEST, "at most 1000h")?;
                within("depth", *depth, (1..=MAX_DEPTH).contains(depth), &format!("1 to {MAX_DEPTH}"))
            }
            Self::Replay { speed, .. } => between("speed", *speed, 1e-6, 1e6),
            Self::Fitted { like, rate_scale } => {
                between("rate_scale", *rate_scale, 1e-6, MAX_RATE_PER_S / like.mean_rate_per_s())
            }
        }
    }

    /// Checks the load and joins it with its trace; `trace` is what [`Load::trace`] names, `None` for other kinds.
    ///
    /// # Errors
    /// What [`Load::validate`] finds; a missing trace, a task that is not in it, a rate out of range in it.
    pub fn demand(&self, trace: Option<&Trace>) -> Result<Demand, LoadError> {
        self.validate()?;
        Ok(Demand(match self {
            Self::Poisson { rate_per_s } => Kind::Poisson { rate_per_s: *rate_per_s },
            Self::Periodic { rate_per_s } => Kind::Periodic { rate_per_s: *rate_per_s },
            Self::Bursty { rate_per_s, burst_factor, burst, calm } => {
                Kind::Bursty(arrivals::Bursts::new(*rate_per_s, *burst_factor, *burst, *calm))
            }
            Self::Closed { pause, depth, host } => {
                Kind::Closed(ClosedLoop { pause: *pause, depth: *depth, host: *host })
            }
            Self::Replay { trace: wanted, repeat, speed } => replay(wanted, *repeat, *speed, trace)?,
            Self::Fitted { like, rate_scale } => Kind::Fitted { like: *like, rate_scale: *rate_scale },
        }))
    }
}

impl Demand {
    /// The arrivals of stream `stream` of the run with this seed; `None` for a closed loop.
    pub fn arrivals(&self, seed: u64, stream: u64) -> Option<Arrivals> {
        let chance = Chance::new(seed, stream);
        Some(match &self.0 {
            Kind::Poisson { rate_per_s } => Arrivals::poisson(*rate_per_s, chance),
            Kind::Periodic { rate_per_s } => Arrivals::periodic(*rate_per_s, chance),
            Kind::Bursty(bursts) => Arrivals::bursty(*bursts, chance),
            Kind::Closed(_) => return None,
            Kind::Replay(recording) => Arrivals::replay(recording.clone()),
            Kind::Fitted { like, rate_scale } => Arrivals::fitted(*like, *rate_scale, chance),
        })
    }

    /// The closed loop, where it is one.
    pub fn closed_loop(&self) -> Option<ClosedLoop> {
        match self.0 {
            Kind::Closed(closed) => Some(closed),
            _ => None,
        }
    }

    /// Requests a second in the long run; `None` for a closed loop and for a trace whose requests all come at one
    /// time. For a trace that is not repeated, its rate while it lasts.
    pub fn mean_rate_per_s(&self) -> Option<f64> {
        match &self.0 {
            Kind::Poisson { rate_per_s } | Kind::Periodic { rate_per_s } => Some(*rate_per_s),
            Kind::Bursty(bursts) => Some(bursts.mean_rate_per_s()),
            Kind::Closed(_) => None,
            Kind::Replay(recording) => recording.mean_rate_per_s(),
            Kind::Fitted { like, rate_scale } => Some(like.mean_rate_per_s() * rate_scale),
        }
    }
}

/// Longest time a field may say: far beyond any simulation, far below overflow.
const LONGEST: Nanos = Nanos::from_secs(3_600_000);

const fn one_request() -> u32 {
    1
}

const fn as_recorded() -> f64 {
    1.0
}

/// The demand of a task of a trace.
fn replay(wanted: &TraceRef, repeat: bool, speed: f64, trace: Option<&Trace>) -> Result<Kind, LoadError> {
    let path = wanted.path.display().to_string();
    let Some(trace) = trace else { return Err(LoadError::TraceNotRead { path }) };
    let Some(task) = trace.task(wanted.task.as_deref()) else {
        let problem = match &wanted.task {
            Some(name) => format!("there is no task `{name}`"),
            None => "`task` is not given and there are several".to_owned(),
        };
        let known = trace.tasks.iter().map(|task| &task.name[..]).collect::<Vec<_>>().join(", ");
        return Err(LoadError::Task { problem, path, known });
    };
    Ok(match &task.load {
        TaskLoad::Listed(requests) => Kind::Replay(recording(requests, repeat, speed, path)?),
        TaskLoad::Closed => Kind::Closed(ClosedLoop::BACK_TO_BACK),
        TaskLoad::Periodic { rate_per_s } => {
            rate("frequency x speed", rate_per_s * speed)?;
            Kind::Periodic { rate_per_s: rate_per_s * speed }
        }
        TaskLoad::Poisson { rate_per_s } => {
            rate("frequency x speed", rate_per_s * speed)?;
            Kind::Poisson { rate_per_s: rate_per_s * speed }
        }
    })
}

fn recording(
    requests: &Arc<[TraceRequest]>,
    repeat: bool,
    speed: f64,
    path: String,
) -> Result<arrivals::Recording, LoadError> {
    let recording = arrivals::Recording::new(Arc::clone(requests), repeat, speed);
    if repeat {
        let rate_per_s = recording.mean_rate_per_s().ok_or(LoadError::NoPeriod { path })?;
        rate("requests per second of the trace x speed", rate_per_s)?;
    }
    Ok(recording)
}

fn rate(field: &'static str, value: f64) -> Result<(), LoadError> {
    between(field, value, MIN_RATE_PER_S, MAX_RATE_PER_S)
}

fn between(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), LoadError> {
    // NaN is in no range.
    within(field, value, (low..=high).contains(&value), &format!("a number from {low:?} to {high:?}"))
}

fn within(
    field: &'static str,
    value: impl fmt::Display,
    good: bool,
    expected: &str,
) -> Result<(), LoadError> {
    if good {
        return Ok(());
    }
    Err(LoadError::OutOfRange { field, value: value.to_string(), expected: expected.to_owned() })
}

#[cfg(test)]
mod tests;
