//! The search for the maximum stable inference rate (IMS) of the edge study (arXiv 2601.07600): which is the shortest
//! period that a tenant keeps? The simulator and the measurement run the same search, on a model and on a GPU.
//!
//! # The search
//!
//! 1. *First estimate.* Run `requests` inferences back to back. The mean of the `worst` longest times is the first
//!    period.
//! 2. *Raise.* Run `requests` inferences at that period and count *timeouts*: inferences that are not done within
//!    their period. While there is none, raise the rate by `step`.
//! 3. *Step back* to the last rate without a timeout. If already the first estimate has some, lower the rate by
//!    `step` until there is none.
//! 4. *Validate.* `validations` more runs at that rate must have no timeout either; if one has, step back once more
//!    and validate again.

use std::cmp::Reverse;

use crate::units::Nanos;

/// Shortest period that is tried: no tenant serves more than a million requests a second.
const PERIOD_MIN_NS: f64 = 1e3;
/// Longest: 32 years.
const PERIOD_MAX_NS: f64 = 1e18;

/// How the search goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Config {
    /// Inferences of one run.
    pub requests: u32,
    /// How many of the longest times make the first estimate.
    pub worst: usize,
    /// By how much the rate is raised or lowered at a time, as a fraction. The study does not say how much it took.
    pub step: f64,
    /// Runs without a timeout that make a rate stable.
    pub validations: u32,
    /// Steps up or down at most.
    pub steps_max: i32,
}

impl Default for Config {
    /// The study's figures; 2 % steps, and enough of them for a factor of 50.
    fn default() -> Self {
        Self { requests: 1000, worst: 5, step: 0.02, validations: 3, steps_max: 200 }
    }
}

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The first estimate of the period.
    pub first: Nanos,
    /// The shortest stable period; `None` where none was found within the steps allowed.
    pub period: Option<Nanos>,
    /// Runs at a period that it took.
    pub runs: u32,
}

/// Searches for the shortest stable period. `times` are those of inferences run back to back; `timeouts(period, run)`
/// runs `config.requests` inferences at a period and counts those not done within it; `run` counts from 0 and
/// tells apart runs at the same period.
///
/// # Errors
/// The first error of `timeouts`.
pub fn search<E>(
    config: &Config,
    times: &[Nanos],
    timeouts: &mut dyn FnMut(Nanos, u32) -> Result<u64, E>,
) -> Result<Found, E> {
    let first = first_estimate(times, config.worst);
    let mut runs = 0;
    let mut stable_at = |steps: i32| {
        let count = timeouts(period_at(first, config.step, steps), runs)?;
        runs += 1;
        Ok(count == 0)
    };
    let mut steps = 0;
    while steps < config.steps_max && stable_at(steps)? {
        steps += 1;
    }
    // The one before the violation; where there was none before, further down until there is.
    steps -= 1;
    if steps < 0 {
        while steps > -config.steps_max && !stable_at(steps)? {
            steps -= 1;
        }
    }
    let mut validated = 0;
    while validated < config.validations && steps > -config.steps_max {
        if stable_at(steps)? {
            validated += 1;
        } else {
            validated = 0;
            steps -= 1;
        }
    }
    let found = steps > -config.steps_max && !times.is_empty();
    Ok(Found { first, period: found.then(|| period_at(first, config.step, steps)), runs })
}

/// The mean of the `worst` longest of `times`; at least a nanosecond.
fn first_estimate(times: &[Nanos], worst: usize) -> Nanos {
    let mut sorted = times.to_vec();
    sorted.sort_by_key(|time| Reverse(*time));
    sorted.truncate(worst.max(1));
    let sum: u128 = sorted.iter().map(|time| u128::from(time.0)).sum();
    Nanos((sum / sorted.len().max(1) as u128).max(1) as u64)
}

/// The period `steps` steps of rate away from `first`; between those that a load may have.
fn period_at(first: Nanos, step: f64, steps: i32) -> Nanos {
    let period = first.0 as f64 / libm::pow(1.0 + step, f64::from(steps));
    // The rounding up keeps the period of no step exactly.
    Nanos(period.clamp(PERIOD_MIN_NS, PERIOD_MAX_NS).ceil() as u64)
}

#[cfg(test)]
mod tests;
