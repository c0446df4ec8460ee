//! What requests say about a share of them that is beyond a bound.

use super::{BUDGET, GOOD};

/// Errors of both kinds of the sequential test.
const ERROR: f64 = 0.05;

/// Sum of the logarithms of ratios at which a setting in use is taken for bad. With [`GOOD`] of requests beyond that happens by chance
/// once in some fifty thousand of them (simulated: 112 times in six million; test `false_alarms_are_rare`), and again a trial answers.
const ALARM: f64 = 5.0;

/// The present answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Too few requests.
    Open,
    Good,
    Bad,
}

/// The logarithm of how much likelier the requests are with [`BUDGET`] beyond than with [`GOOD`].
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Evidence {
    sum: f64,
    /// Since when it was accepted the sum is not below zero.
    is_accepted: bool,
    requests: u64,
    beyond: u64,
}

impl Evidence {
    /// Takes in requests; when their order is not known, those beyond come last.
    pub(super) fn take(&mut self, within: u32, beyond: u32, on_trial: bool) {
        let (hit, miss) = ((BUDGET / GOOD).ln(), ((1.0 - BUDGET) / (1.0 - GOOD)).ln());
        self.is_accepted |= !on_trial;
        self.requests += u64::from(within) + u64::from(beyond);
        self.beyond += u64::from(beyond);
        self.sum += miss * f64::from(within);
        if self.is_accepted {
            self.sum = self.sum.max(0.0);
        }
        self.sum += hit * f64::from(beyond);
    }

    /// The trial is over; from now on it is watched.
    pub(super) fn accepted(&mut self) {
        *self = Self { is_accepted: self.is_any(), ..Self::default() };
    }

    /// Whether there were any requests.
    pub(super) const fn is_any(&self) -> bool {
        self.requests > 0
    }

    /// The share of requests that were beyond, a fraction; 0 without any.
    pub(super) fn share_beyond(&self) -> f64 {
        if self.is_any() { self.beyond as f64 / self.requests as f64 } else { 0.0 }
    }

    pub(super) fn verdict(&self) -> Verdict {
        let odds = ((1.0 - ERROR) / ERROR).ln();
        match (self.is_accepted, self.sum) {
            (false, sum) if sum >= odds => Verdict::Bad,
            (false, sum) if sum <= -odds => Verdict::Good,
            (true, sum) if sum >= ALARM => Verdict::Bad,
            // Whoever is watched was good, and nothing has said otherwise.
            (true, _) => Verdict::Good,
            _ => Verdict::Open,
        }
    }
}
