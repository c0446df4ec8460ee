//! The machine's clock: the one place of this crate that reads time or lets it pass.
//!
//! `CLOCK_MONOTONIC`, because all processes of a machine share it and Python's `time.monotonic_ns` reads it too.

use std::time::Duration;

use partywall_core::units::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// Now, in nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    // Never negative: it counts from the start of the machine.
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

/// Seconds since 1970 in UTC, for the date of a record.
pub fn unix_seconds() -> u64 {
    u64::try_from(clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
}

/// Waits for `time`.
#[expect(clippy::disallowed_methods, reason = "the edge: a pretended tenant takes as long as a real one")]
pub fn sleep(time: Nanos) {
    std::thread::sleep(Duration::from_nanos(time.0));
}

/// Waits until `at`: asleep while it is far, busy for the last stretch, so that it returns within a few microseconds.
pub fn wait_until(at: Nanos) {
    /// A sleeping thread comes back up to 60 us late on an idle Linux host, more on a busy one.
    const BUSY: Nanos = Nanos::from_micros(200);
    loop {
        let left = at.saturating_sub(now());
        if left == Nanos::ZERO {
            return;
        }
        if left > BUSY { sleep(left.saturating_sub(BUSY)) } else { std::hint::spin_loop() }
    }
}

/// Seconds since 1970 as RFC 3339: `2026-11-21T12:00:00Z`.
pub fn rfc3339(unix_seconds: u64) -> String {
    let (days, rest) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// Year, month and day of a day since 1970-01-01. Years are counted from March, so that the leap day is the last of
/// its year, and in eras of 400 years, which all have 146 097 days.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // From 0000-03-01 to 1970-01-01.
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let in_month = day - (153 * month + 2) / 5 + 1;
    let (month, after) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + after, month, in_month)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_the_calendars() {
        // Checked with `date -u -d @N`.
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_262_706, "2026-11-21T12:05:06Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(rfc3339(seconds), date);
        }
    }

    #[test]
    fn the_clock_goes_forward_and_waiting_waits() {
        let before = now();
        wait_until(before.saturating_add(Nanos::from_micros(300)));
        assert!(now().0 >= before.0 + 300_000);
    }
}
