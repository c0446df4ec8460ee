//! Waiting for processes that give no other sign: the one place of this crate that sleeps.

use std::time::Duration;

use partywall_core::units::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC, the clock that all processes of a machine share.
pub(crate) fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    // Both parts are never negative: the clock starts at boot.
    Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

/// Asks `done` every few milliseconds until it says yes; `None` when `limit` has passed before that.
pub(crate) fn wait_for<T>(limit: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    /// Short beside what is waited for (a daemon's start takes about 100 ms), long beside what asking costs.
    const STEP: Duration = Duration::from_millis(5);
    let end = now().saturating_add(Nanos(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)));
    loop {
        if let Some(value) = done() {
            return Some(value);
        }
        if now() >= end {
            return None;
        }
        #[expect(clippy::disallowed_methods, reason = "a process outside can only be waited for")]
        std::thread::sleep(STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_value_or_the_limit() {
        let mut asked = 0;
        let third = wait_for(Duration::from_secs(60), || {
            asked += 1;
            (asked == 3).then_some(asked)
        });
        assert_eq!(third, Some(3));
        let before = now();
        assert_eq!(wait_for(Duration::from_millis(10), || None::<()>), None);
        assert!(now().saturating_sub(before) >= Nanos::from_millis(10));
    }
}
