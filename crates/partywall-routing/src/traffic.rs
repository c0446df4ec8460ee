//! How busy a replica is kept, on average over the last minute.

use partywall_core::units::Nanos;

/// Time over which it is averaged, in seconds: long against the bursts of a load, short against its tides.
const AVERAGED_S: f64 = 60.0;

/// What the others want, beside the request that is placed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Demand {
    /// Fraction of the time for which the prompts of latency-sensitive requests keep the replicas busy that may serve the request.
    pub utilisation: f64,
    /// Best-effort requests are held for want of room.
    pub best_effort_waits: bool,
}

/// Averages what is sent to one replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meter {
    since: Nanos,
    last: Nanos,
    busy_s: f64,
}

impl Meter {
    pub(crate) fn new(now: Nanos) -> Self {
        Self { since: now, last: now, busy_s: 0.0 }
    }

    /// A request is sent whose prompt takes so many seconds.
    pub(crate) fn sent(&mut self, now: Nanos, busy_s: f64) {
        self.busy_s = self.busy_s * kept(now.saturating_sub(self.last)) + busy_s;
        self.last = self.last.max(now);
    }

    /// Seconds of prompts a second.
    pub(crate) fn utilisation(&self, now: Nanos) -> f64 {
        // Of a younger replica less than all of the time is known; a second more than that keeps the first prompt from counting as a rush.
        let known = 1.0 - kept(now.saturating_sub(self.since).saturating_add(Nanos::from_secs(1)));
        self.busy_s * kept(now.saturating_sub(self.last)) / (AVERAGED_S * known)
    }
}

/// What is left of something after a time: close to exp(-time / average), of operations that give the same bits everywhere.
fn kept(time: Nanos) -> f64 {
    let mut kept = 1.0 / (1.0 + time.as_secs() / AVERAGED_S / 1024.0);
    for _ in 0..10 {
        kept *= kept;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64) -> bool {
        (found - expected).abs() < 0.02 * expected.abs().max(0.1)
    }

    #[test]
    fn what_is_kept_falls_like_an_exponential() {
        for (time_s, expected) in [(0, 1.0), (6, 0.9048), (60, 0.3679), (300, 0.0067)] {
            assert!(close(kept(Nanos::from_secs(time_s)), expected), "{time_s}");
        }
    }

    #[test]
    fn a_steady_load_is_seen_from_early_on_and_forgotten_when_it_ends() {
        let mut meter = Meter::new(Nanos::from_secs(1000));
        for second in 1000..1600 {
            let now = Nanos::from_secs(second);
            meter.sent(now, 0.4);
            let found = meter.utilisation(now);
            assert!(second < 1005 || (found - 0.4).abs() < 0.08, "{found} after {second}");
        }
        assert!(meter.utilisation(Nanos::from_secs(1600 + 300)) < 0.01);
        assert!(close(Meter::new(Nanos::ZERO).utilisation(Nanos::ZERO), 0.0));
    }
}
