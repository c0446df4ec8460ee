//! The one place that reads a clock or sleeps.
//!
//! All times are nanoseconds of CLOCK_MONOTONIC, which the processes of a machine share.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Now, nanoseconds.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    // Both parts are never negative: the clock starts at boot.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Sleeps for so many nanoseconds, or a little longer, or shorter where a signal comes.
pub fn pause(nanoseconds: u64) {
    let seconds = (nanoseconds / 1_000_000_000) as i64;
    let rest = Timespec { tv_sec: seconds, tv_nsec: (nanoseconds % 1_000_000_000) as _ };
    // Interrupted or not, callers look at the clock again.
    let _ = rustix::thread::nanosleep(&rest);
}

/// Waits until the clock shows `end`.
pub fn wait_until(end: u64) {
    loop {
        let now = now();
        if now >= end {
            return;
        }
        pause(end - now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_does_not_end_early() {
        let end = now() + 200_000;
        wait_until(end);
        assert!(now() >= end);
        wait_until(0);
    }
}
