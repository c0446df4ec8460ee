//! Whether an offered load was served.
//!
//! A run is saturated if, of the window that is measured,
//!
//! - S1, *shortfall*: in the second half, completions were fewer than [`SERVED_FRACTION`] of the arrivals, and
//!   at least [`SHORTFALL_REQUESTS`] fewer than these; or
//! - S2, *growth*: the mean backlog grew from each quarter to the next, from the second to the last by at
//!   least [`GROWTH_REQUESTS`] requests and by a factor of at least [`GROWTH_FACTOR`].
//!
//! The backlog is every request that arrived and is not completed, running ones included. S1 sees a server
//! that is clearly too slow. S2 sees one that is 1 % too slow in a long run, where S1 is blind: an overload
//! makes the backlog grow in proportion to time, so the quarters' means are as 1 : 3 : 5 : 7 and the last is
//! 7/3 of the second. A burst moves the backlog too, but seldom upwards in all four quarters. S1 leaves
//! the first half out because a queue fills there that a stable system keeps. The least numbers keep a short
//! run with one request in flight at its end from being called saturated; the price is that a run with fewer
//! arrivals than that never is, and its percentiles are null anyway.

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// S1: of the arrivals of the second half, at least this fraction must be completed in it.
pub const SERVED_FRACTION: f64 = 0.98;
/// S1: a smaller shortfall than this many requests is the end of the window, not saturation.
pub const SHORTFALL_REQUESTS: u64 = 10;
/// S2: the backlog must have grown by this many requests.
pub const GROWTH_REQUESTS: f64 = 10.0;
/// S2: the backlog must have grown to this many times itself. Growth in proportion to time from nothing gives
/// 7/3.
pub const GROWTH_FACTOR: f64 = 2.0;

/// What became of the load offered to a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// It was served: latencies mean something.
    Served,
    /// It was not: the only result is the rate that was completed in the second half.
    #[serde(rename_all = "snake_case")]
    Saturated {
        /// Requests a second.
        completed_per_s: f64,
    },
}

/// What the saturation rule looks at.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Served {
    /// Arrivals in the second half of the window.
    pub offered: u64,
    /// Completions in the second half, of whatever arrival.
    pub completed: u64,
    /// How long the second half is.
    pub half: Nanos,
    /// Mean backlog over time in each quarter of the window, in requests.
    pub backlog: [f64; 4],
}

impl Served {
    /// The rule in this module's first lines.
    pub fn load(&self) -> Load {
        if self.falls_short() || self.grows() {
            Load::Saturated { completed_per_s: self.completed_per_s() }
        } else {
            Load::Served
        }
    }

    /// Completions a second in the second half; 0 where it has no length.
    pub fn completed_per_s(&self) -> f64 {
        if self.half == Nanos::ZERO { 0.0 } else { self.completed as f64 / self.half.as_secs() }
    }

    /// S1.
    fn falls_short(&self) -> bool {
        let shortfall = self.offered.saturating_sub(self.completed);
        shortfall >= SHORTFALL_REQUESTS && (self.completed as f64) < SERVED_FRACTION * self.offered as f64
    }

    /// S2.
    fn grows(&self) -> bool {
        let [_, second, _, last] = self.backlog;
        self.backlog.windows(2).all(|pair| pair[0] < pair[1])
            && last - second >= GROWTH_REQUESTS
            && last >= GROWTH_FACTOR * second
    }
}

/// Counts arrivals and completions, in any order, in constant memory.
#[derive(Debug, Clone)]
pub struct LoadMeter {
    start: Nanos,
    end: Nanos,
    offered: u64,
    completed: u64,
    /// Per quarter, the time of it that lies behind each arrival, summed, less the same for completions: the
    /// integral of the backlog, in request-nanoseconds. 2^64 events of 2^63 ns would be needed to overflow
    /// it.
    backlog: [i128; 4],
}

impl LoadMeter {
    /// For the window from `start` to `end`. An `end` before `start` is a window without length.
    pub fn new(start: Nanos, end: Nanos) -> Self {
        Self { start, end: end.max(start), offered: 0, completed: 0, backlog: [0; 4] }
    }

    /// A request arrived. Those before the window count for the backlog with which it begins; those at its
    /// end or later for nothing.
    pub fn arrived(&mut self, at: Nanos) {
        self.offered += u64::from(self.in_second_half(at));
        self.add(at, 1);
    }

    /// A request that arrived, at whatever time, was completed.
    pub fn completed(&mut self, at: Nanos) {
        self.completed += u64::from(self.in_second_half(at));
        self.add(at, -1);
    }

    /// What was counted.
    pub fn served(&self) -> Served {
        let mut backlog = [0.0; 4];
        for (quarter, mean) in backlog.iter_mut().enumerate() {
            let length = self.bound(quarter + 1).saturating_sub(self.bound(quarter));
            if length > Nanos::ZERO {
                *mean = self.backlog[quarter] as f64 / length.0 as f64;
            }
        }
        let half = self.end.saturating_sub(self.bound(2));
        Served { offered: self.offered, completed: self.completed, half, backlog }
    }

    fn add(&mut self, at: Nanos, sign: i128) {
        for quarter in 0..4 {
            let behind = self.bound(quarter + 1).saturating_sub(at.max(self.bound(quarter)));
            self.backlog[quarter] += sign * i128::from(behind.0);
        }
    }

    fn in_second_half(&self, at: Nanos) -> bool {
        self.bound(2) <= at && at < self.end
    }

    /// Where quarter number `quarter` begins; 4 is the end of the window.
    fn bound(&self, quarter: usize) -> Nanos {
        let length = u128::from(self.end.saturating_sub(self.start).0);
        Nanos(self.start.0 + (length * quarter as u128 / 4) as u64)
    }
}
