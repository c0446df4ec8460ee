//! The one place of this crate that reads a clock, and the engine's time, which may go faster or slower than the machine's.

use std::time::{Duration, SystemTime};

use partywall_core::units::Nanos;
use tokio::time::Instant;

/// Longest wait that is asked of the runtime at once; after it the caller looks again.
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// The engine's time: it starts at zero and goes at a rate against the machine's clock.
#[derive(Debug, Clone, Copy)]
pub struct EngineClock {
    start: Instant,
    /// Seconds of the engine in a second of the machine, above 0.
    rate: f64,
}

impl EngineClock {
    /// Starts now.
    pub fn start(rate: f64) -> Self {
        Self { start: Instant::now(), rate }
    }

    /// The engine's time now.
    pub fn now(&self) -> Nanos {
        Nanos((self.start.elapsed().as_nanos() as f64 * self.rate) as u64)
    }

    /// How long to wait until the engine's clock shows `engine`; at most an hour.
    pub fn until(&self, engine: Option<Nanos>) -> Duration {
        let Some(engine) = engine else { return LONGEST_WAIT };
        let ahead = engine.saturating_sub(self.now()).as_secs() / self.rate;
        Duration::from_secs_f64(ahead.min(LONGEST_WAIT.as_secs_f64()))
    }
}

/// Seconds since 1970 in UTC, for what the API and the events carry.
#[expect(clippy::disallowed_methods, reason = "the one place of this crate that reads the time of day")]
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
