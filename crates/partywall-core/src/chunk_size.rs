//! How many launches of a best-effort tenant go to the device at a time.
//!
//! Launches go in *chunks*, of which few are under way: what a latency-sensitive neighbour finds on the device is theirs. Whoever runs them
//! finds out for how long the device was busy with a chunk, or between which bounds; what the next ones hold follows from that here. The
//! shim asks it with the bounds that it has, the simulator with the time itself.
//!
//! A chunk that certainly took longer than wanted has the next ones shortened at once, in proportion. One that certainly took less has them
//! grow, by a quarter at most each time, because the next launches may be other ones. Chunks have one launch at least.
//!
//! # Scenarios
//!
//! - S1: launches of one length: chunks come to what is wanted and stay there.
//! - S2: a launch that is longer than a chunk should be: one at a time.
//! - S3: bounds that leave it open which: nothing changes.
//! - S4: no time is wanted: chunks have as many launches as they may.

use crate::units::Nanos;

/// Chunks grow by one in so many launches at a time, and at least by one.
const GROWTH: u32 = 4;

/// What chunks are to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// How long the device is to be busy with one. Zero: only the number of launches bounds it.
    pub time: Nanos,
    /// Launches in one at most.
    pub most: u32,
}

/// A chunk that is through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Took {
    /// How many launches it had.
    pub launches: u32,
    /// For how long the device was busy with it, at least.
    pub at_least: Nanos,
    /// At most.
    pub at_most: Nanos,
}

impl Wanted {
    /// How many launches the next chunk has, after one of `now`: 1 to [`Wanted::most`].
    pub fn next(self, now: u32, took: Took) -> u32 {
        let most = self.most.max(1);
        if self.time == Nanos::ZERO {
            return most;
        }
        let now = now.clamp(1, most);
        let fits = |time: Nanos| {
            u32::try_from(u64::from(took.launches).saturating_mul(self.time.0) / time.0.max(1))
                .unwrap_or(u32::MAX)
        };
        if took.at_least > self.time {
            fits(took.at_least).clamp(1, now)
        } else if took.at_most <= self.time && took.launches >= now {
            fits(took.at_most).min(now + (now / GROWTH).max(1)).clamp(now, most)
        } else {
            now
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WANTED: Wanted = Wanted { time: Nanos::from_micros(100), most: 16 };

    fn took(launches: u32, at_least_us: u64, at_most_us: u64) -> Took {
        let [at_least, at_most] = [at_least_us, at_most_us].map(Nanos::from_micros);
        Took { launches, at_least, at_most }
    }

    /// Sizes of the first twenty chunks of launches that take so long.
    fn sizes(launch_us: u64) -> Vec<u32> {
        let mut size = 1;
        let next = |_| {
            let us = u64::from(size) * launch_us;
            size = WANTED.next(size, took(size, us, us));
            size
        };
        (0..20).map(next).collect()
    }

    #[test]
    fn s1_s2_chunks_come_to_what_is_wanted() {
        assert_eq!(sizes(20)[..6], [2, 3, 4, 5, 5, 5]);
        assert_eq!(sizes(5).last(), Some(&16));
        assert_eq!(sizes(1_400).last(), Some(&1));
        assert_eq!(WANTED.next(16, took(16, 400, 420)), 4, "at once");
    }

    #[test]
    fn s3_what_may_be_both_changes_nothing() {
        assert_eq!(WANTED.next(5, took(5, 90, 110)), 5);
        assert_eq!(WANTED.next(5, took(2, 10, 20)), 5, "cut short by its stream");
    }

    #[test]
    fn s4_without_a_time_the_number_of_launches_bounds_them() {
        assert_eq!(Wanted { time: Nanos::ZERO, ..WANTED }.next(3, took(3, 9_000, 9_000)), 16);
    }

    proptest! {
        #[test]
        fn a_chunk_has_launches_and_not_too_many(
            time in 0u64..1 << 40, most in 0u32..100, now in 0u32..200,
            launches in 0u32..200, at_least in 0u64..1 << 40, more in 0u64..1 << 40,
        ) {
            let wanted = Wanted { time: Nanos(time), most };
            let took = Took { launches, at_least: Nanos(at_least), at_most: Nanos(at_least + more) };
            prop_assert!((1..=most.max(1)).contains(&wanted.next(now, took)));
        }
    }
}
