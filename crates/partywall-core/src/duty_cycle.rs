//! For what share of the time best-effort tenants have work on the device while a request is served.
//!
//! # Problem
//!
//! A best-effort (BE) tenant beside a request takes memory bandwidth from it, and fewer SMs bound that badly: 28 of an H200's 132 draw 2.6 of its
//! 4.25 TB/s. What a program draws is not known, and the counters of the hardware are the device's and not a tenant's. But whatever it
//! draws while it runs, in half of the time it draws half of it.
//!
//! # Approach
//!
//! Credit, in time. It comes in at the [`DutyCycle`]'s share of the time that passes, and goes while the device has work of BE tenants. They may
//! launch from when there is a **quantum** of it until there is none. What runs cannot be taken back: a kernel that is longer than the
//! credit leaves a debt, which is waited for. More than a quantum is never saved up, so no burst follows a pause.
//!
//! A request begins without credit: nobody launches for the first quantum divided by the share. Of any time in which requests are served, the
//! device has work of BE tenants for at most the share, one quantum and one piece of work that is under way (a test says so).
//!
//! # Terms and units
//!
//! Times are nanoseconds of the caller's clock, shares are percent. The caller looks as often as it likes; work counts from the look that sees it
//! to the next one.
//!
//! # Scenarios
//!
//! - S1: short work: the device is busy for the share of the time.
//! - S2: work longer than a quantum: the share is kept by longer pauses.
//! - S3: a request begins: no credit is left from before.
//! - S4: the whole: nothing is bounded.

use crate::units::Nanos;

/// The whole of the time: nothing is bounded.
pub const WHOLE_PERCENT: u32 = 100;

/// Who may launch when, by time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DutyCycle {
    percent: u32,
    quantum: Nanos,
    /// Hundredths of nanoseconds.
    credit: i64,
    looked_at: Nanos,
    was_busy: bool,
    is_open: bool,
}

impl DutyCycle {
    /// From `now` on, when a request begins. `percent` is 1 to 100; what is beyond is taken for the next of these.
    pub fn new(now: Nanos, percent: u32, quantum: Nanos) -> Self {
        let percent = percent.clamp(1, WHOLE_PERCENT);
        Self { percent, quantum, credit: 0, looked_at: now, was_busy: false, is_open: false }
    }

    /// Whether best-effort tenants may launch, after a look at `now` that found them with work on the device or not.
    pub fn look(&mut self, now: Nanos, is_busy: bool) -> bool {
        if self.percent == WHOLE_PERCENT {
            return true;
        }
        let passed = hundredths(now.saturating_sub(self.looked_at));
        let earned = passed / i64::from(WHOLE_PERCENT) * i64::from(self.percent);
        let spent = if self.was_busy { passed } else { 0 };
        let quantum = hundredths(self.quantum);
        self.credit = self.credit.saturating_add(earned.saturating_sub(spent)).min(quantum);
        (self.looked_at, self.was_busy) = (now, is_busy);
        self.is_open = if self.is_open { self.credit > 0 } else { self.credit >= quantum };
        self.is_open
    }
}

/// A year is a third of what fits.
fn hundredths(time: Nanos) -> i64 {
    i64::try_from(time.0.saturating_mul(u64::from(WHOLE_PERCENT))).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const QUANTUM: Nanos = Nanos::from_micros(50);

    /// A tenant that always has work, in pieces of `piece`, looked at every `step`: how long the device was busy in `time`.
    fn busy(duty: &mut DutyCycle, piece: Nanos, step: Nanos, time: Nanos) -> Nanos {
        let (mut now, mut left, mut busy) = (duty.looked_at, Nanos::ZERO, Nanos::ZERO);
        let end = now.saturating_add(time);
        while now < end {
            if duty.look(now, left > Nanos::ZERO) && left == Nanos::ZERO {
                left = piece;
                duty.look(now, true);
            }
            now = now.saturating_add(step);
            busy = busy.saturating_add(left.min(step));
            left = left.saturating_sub(step);
        }
        busy
    }

    #[test]
    fn s1_the_device_is_busy_for_the_share() {
        for percent in [10, 25, 50, 75, 90] {
            let mut duty = DutyCycle::new(Nanos::from_millis(3), percent, QUANTUM);
            let time = Nanos::from_millis(100);
            let busy = busy(&mut duty, Nanos::from_micros(10), Nanos::from_micros(1), time);
            let share = busy.as_secs() / time.as_secs() * 100.0;
            assert!((share - f64::from(percent)).abs() < 3.0, "{share} where {percent} is wanted");
        }
    }

    #[test]
    fn s2_long_work_is_followed_by_long_pauses() {
        let mut duty = DutyCycle::new(Nanos::ZERO, 50, QUANTUM);
        let piece = Nanos::from_micros(1_400);
        let busy = busy(&mut duty, piece, Nanos::from_micros(5), Nanos::from_millis(280));
        assert!((0.45..=0.51).contains(&(busy.as_secs() / 0.28)), "{busy:?}");
    }

    #[test]
    fn s3_a_request_begins_without_credit() {
        let at = Nanos::from_millis(7);
        let mut duty = DutyCycle::new(at, 50, QUANTUM);
        assert!(!duty.look(at, false));
        assert!(!duty.look(at.saturating_add(Nanos::from_micros(99)), false));
        assert!(duty.look(at.saturating_add(Nanos::from_micros(100)), false));
        // However long nobody wanted to launch.
        assert!(duty.look(at.saturating_add(Nanos::from_millis(100)), true));
        assert!(!duty.look(at.saturating_add(Nanos::from_micros(100_100)), true), "a quantum is gone");
    }

    #[test]
    fn s4_the_whole_bounds_nothing() {
        let mut duty = DutyCycle::new(Nanos::ZERO, WHOLE_PERCENT, QUANTUM);
        let time = Nanos::from_millis(10);
        assert_eq!(busy(&mut duty, Nanos::from_micros(10), Nanos::from_micros(1), time), time);
    }

    proptest! {
        /// Whatever the pieces of work are: busy for at most the share, one quantum and one piece.
        #[test]
        fn the_share_is_never_exceeded(percent in 1_u32..100, piece in 1_u64..3_000, step in 1_u64..40, millis in 1_u64..60) {
            let mut duty = DutyCycle::new(Nanos::from_secs(1), percent, QUANTUM);
            let (piece, step, time) = (Nanos::from_micros(piece), Nanos::from_micros(step), Nanos::from_millis(millis));
            let busy = busy(&mut duty, piece, step, time);
            // Work is seen to end at a look.
            let most = time.0 * u64::from(percent) / 100 + QUANTUM.0 + piece.0 + 2 * step.0;
            prop_assert!(busy.0 <= most, "{busy:?} of {time:?}, at most {most} ns");
        }
    }
}
