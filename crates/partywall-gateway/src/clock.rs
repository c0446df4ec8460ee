//! The machine's clock: the one place of this crate that reads time.

use std::time::Duration;

use partywall_core::units::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine started.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // Never negative: it counts from the start of the machine.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Milliseconds since 1970 in UTC, for the log.
pub(crate) fn unix_ms() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000 + time.tv_nsec as u64 / 1_000_000
}

/// As what timers take.
pub(crate) const fn duration(time: Nanos) -> Duration {
    Duration::from_nanos(time.0)
}
