//! The load that a tenant puts on itself during a run, and when each of its requests is due.
//!
//! A closed load has the next request wait for the one before; an open one (periodic, Poisson) has arrivals that do
//! not care, so that requests queue behind each other and none is dropped.

use partywall_core::units::Nanos;
use rand_pcg::Pcg64Dxsm;
use rand_pcg::rand_core::Rng;
use serde::{Deserialize, Serialize};

/// Most units of work in one request: a depth beyond it only makes requests longer than a cell.
pub const DEPTH_MAX: u32 = 1024;
/// Shortest period and mean gap of an open load: no program submits GPU work faster.
pub const GAP_MIN: Nanos = Nanos::from_micros(1);
/// Longest pause, period and mean gap: beyond it a cell has no requests.
pub const GAP_MAX: Nanos = Nanos::from_secs(60);

/// What a tenant does during a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Load {
    /// A request follows the one before it.
    #[serde(rename_all = "snake_case")]
    Closed {
        /// The next submission comes no earlier than this after the wait for the last has returned.
        pause_ns: u64,
        /// Units of work that are submitted and then waited for: together they are one request.
        depth: u32,
    },
    /// Request `k` is due at `begin + k * period`, whatever became of those before it.
    #[serde(rename_all = "snake_case")]
    Periodic {
        /// Time between two arrivals.
        period_ns: u64,
    },
    /// Requests are due with exponential gaps, whatever became of those before them.
    #[serde(rename_all = "snake_case")]
    Poisson {
        /// Mean rate.
        rate_per_s: f64,
        /// Seed of the gaps; the same seed gives the same arrivals on the same implementation of a tenant.
        seed: u64,
    },
}

/// A load that nobody can serve.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LoadError {
    /// The depth is out of range.
    #[error("a depth of {0} is out of range; use 1 to {DEPTH_MAX}")]
    Depth(u32),
    /// The pause is too long.
    #[error("a pause of {0} is too long; use at most {GAP_MAX}")]
    Pause(Nanos),
    /// The period is out of range.
    #[error("a period of {0} is out of range; use {GAP_MIN} to {GAP_MAX}")]
    Period(Nanos),
    /// The rate is out of range or no number.
    #[error("a rate of {0} requests a second is out of range; use 1/60 to 1000000")]
    Rate(f64),
}

impl Load {
    /// Requests one after the other without a pause: what a best-effort tenant does.
    pub const BACK_TO_BACK: Self = Self::Closed { pause_ns: 0, depth: 1 };

    /// Whether the load can be served at all.
    ///
    /// # Errors
    /// A depth, pause, period or rate that is out of range.
    pub fn check(&self) -> Result<(), LoadError> {
        match *self {
            Self::Closed { depth, .. } if !(1..=DEPTH_MAX).contains(&depth) => Err(LoadError::Depth(depth)),
            Self::Closed { pause_ns, .. } if Nanos(pause_ns) > GAP_MAX => {
                Err(LoadError::Pause(Nanos(pause_ns)))
            }
            Self::Periodic { period_ns } if !(GAP_MIN..=GAP_MAX).contains(&Nanos(period_ns)) => {
                Err(LoadError::Period(Nanos(period_ns)))
            }
            Self::Poisson { rate_per_s, .. }
                if !(1e9 / GAP_MAX.0 as f64..=1e9 / GAP_MIN.0 as f64).contains(&rate_per_s) =>
            {
                Err(LoadError::Rate(rate_per_s))
            }
            _ => Ok(()),
        }
    }

    /// Units of work in one request.
    pub const fn depth(&self) -> u32 {
        match *self {
            Self::Closed { depth, .. } => depth,
            _ => 1,
        }
    }

    /// Whether arrivals do not wait for completions.
    pub const fn is_open(&self) -> bool {
        !matches!(self, Self::Closed { .. })
    }

    /// Requests a second that an open load offers; `None` for a closed one, which offers what it gets.
    pub fn offered_per_s(&self) -> Option<f64> {
        match *self {
            Self::Closed { .. } => None,
            Self::Periodic { period_ns } => Some(1e9 / period_ns as f64),
            Self::Poisson { rate_per_s, .. } => Some(rate_per_s),
        }
    }
}

/// When the requests of a run are due; the tenant asks before each.
#[derive(Debug, Clone)]
pub struct Schedule {
    load: Load,
    begin: Nanos,
    next: u64,
    /// Poisson: the last arrival, in nanoseconds after `begin`. A float, so that the rounding of gaps does not add
    /// up; exact to a nanosecond for 100 days.
    at: f64,
    chance: Pcg64Dxsm,
}

impl Schedule {
    /// For a run of `load` that begins at `begin`.
    pub fn new(load: Load, begin: Nanos) -> Self {
        let seed = if let Load::Poisson { seed, .. } = load { seed } else { 0 };
        Self {
            load,
            begin,
            next: 0,
            at: 0.0,
            chance: Pcg64Dxsm::new(u128::from(seed), 0x9e37_79b9_7f4a_7c15),
        }
    }

    /// When the next request is due. `returned` is when the wait for the last one returned; `None` before the first.
    /// An open load may answer with a time that has passed: the request has been waiting since then.
    pub fn next(&mut self, returned: Option<Nanos>) -> Nanos {
        let index = self.next;
        self.next += 1;
        match self.load {
            Load::Closed { pause_ns, .. } => match returned {
                None => self.begin,
                Some(returned) => returned.saturating_add(Nanos(pause_ns)).max(self.begin),
            },
            Load::Periodic { period_ns } => self.begin.saturating_add(Nanos(index.saturating_mul(period_ns))),
            Load::Poisson { rate_per_s, .. } => {
                // 53 random bits in (0, 1]: the logarithm is finite.
                let unit = ((self.chance.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
                self.at += -unit.ln() / rate_per_s * 1e9;
                self.begin.saturating_add(Nanos(self.at as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn times(load: Load, count: usize) -> Vec<u64> {
        let mut schedule = Schedule::new(load, Nanos(1_000));
        (0..count).map(|_| schedule.next(Some(Nanos(5_000))).0).collect()
    }

    #[test]
    fn a_closed_load_waits_and_an_open_one_does_not() {
        let closed = Load::Closed { pause_ns: 200, depth: 1 };
        assert_eq!(Schedule::new(closed, Nanos(1_000)).next(None), Nanos(1_000));
        assert_eq!(times(closed, 2), [5_200, 5_200]);
        assert_eq!(times(Load::Periodic { period_ns: 10_000 }, 3), [1_000, 11_000, 21_000]);
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_follow_from_the_seed() {
        let load = |seed| Load::Poisson { rate_per_s: 1e4, seed };
        let arrivals = times(load(1), 20_000);
        assert!(arrivals.windows(2).all(|pair| pair[0] <= pair[1]));
        let mean = (arrivals[19_999] - 1_000) as f64 / 20_000.0;
        assert!((mean / 1e5 - 1.0).abs() < 0.03, "{mean}");
        assert_eq!(arrivals, times(load(1), 20_000));
        assert_ne!(arrivals, times(load(2), 20_000));
    }

    #[test]
    fn loads_that_nobody_can_serve_are_refused() {
        let refused = [
            Load::Closed { pause_ns: 0, depth: 0 },
            Load::Closed { pause_ns: u64::MAX, depth: 1 },
            Load::Periodic { period_ns: 0 },
            Load::Poisson { rate_per_s: f64::NAN, seed: 0 },
            Load::Poisson { rate_per_s: 0.0, seed: 0 },
        ];
        for load in refused {
            assert!(load.check().is_err(), "{load:?}");
        }
        assert_eq!(Load::BACK_TO_BACK.check(), Ok(()));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_schedule_overflows(period_ns in any::<u64>(), begin in any::<u64>(), rate_per_s in any::<f64>()) {
            for load in [Load::Periodic { period_ns }, Load::Closed { pause_ns: period_ns, depth: 1 },
                Load::Poisson { rate_per_s, seed: 1 }]
            {
                let mut schedule = Schedule::new(load, Nanos(begin));
                for _ in 0..4 {
                    prop_assert!(schedule.next(Some(Nanos(begin))) >= Nanos(begin));
                }
            }
        }
    }
}
