//! The machine's clock: the one place of this crate that reads time.

use partywall_core::units::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share and which outlives a node.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // Never negative: it counts from the start of the machine.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Seconds since 1970 in UTC, for people and other programs.
pub fn unix_seconds() -> u64 {
    u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
}
