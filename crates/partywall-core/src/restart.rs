//! When a tenant that ended is started again.
//!
//! # Problem
//!
//! A service that fails should come back by itself, soon. One that fails again and again should not keep the machine
//! busy with starting it: loading a model reads gigabytes and takes the link from the neighbours. And a command that
//! cannot be started at all (there is no such program) will not be mended by trying again.
//!
//! # Approach
//!
//! The policy that the user chose says whether an ending is followed by another start. How long to wait before it is
//! exponential back-off: [`BACK_OFF_FIRST`] after the first ending, twice as long after each further one, at most
//! [`BACK_OFF_MAX`]. A run of at least [`STEADY`] was a service that worked: the next ending is a first one again.
//! There is no last attempt: what failed may be somebody else's fault, and a tenant that stays down until a person
//! comes is worse than one start a minute.
//!
//! Waits are not drawn from chance. Tenants that one fault ended together start together again, in the order of their
//! file; their number is small and they share nothing that a rush could break.
//!
//! # Scenarios (the tests bear these names)
//!
//! - R1: `never` leaves it, `on-failure` leaves what ended well, `always` leaves nothing.
//! - R2: waits double up to the longest.
//! - R3: a steady run starts over.
//! - R4: what cannot be started is left, whatever the policy.

use serde::{Deserialize, Serialize};

use crate::config::Restart;
use crate::units::Nanos;

/// Wait after the first ending: a person who watches sees it come back, and a loop of it costs little.
pub const BACK_OFF_FIRST: Nanos = Nanos::from_millis(500);
/// Longest wait: one start a minute is bearable for the neighbours and soon enough for whoever mended it.
pub const BACK_OFF_MAX: Nanos = Nanos::from_secs(60);
/// A run as long as this was a service that worked. As long as the longest wait, so that a tenant that fails just
/// after it does not run hot.
pub const STEADY: Nanos = Nanos::from_secs(60);

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with exit code 0.
    Well,
    /// By itself with another exit code, by a signal, or in a way that nobody saw.
    Failed,
    /// It never ran: the program is not there, or may not be executed.
    NotStarted,
}

/// What to do about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Start it at this time.
    StartAt(Nanos),
    /// Leave it.
    Leave,
}

/// What is remembered of a tenant's endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BackOff {
    /// Endings since the last steady run.
    endings: u32,
}

impl BackOff {
    /// A tenant that has not ended yet.
    pub const fn new() -> Self {
        Self { endings: 0 }
    }

    /// A run that took `ran` ended at `now` as `ending`; says what follows under `policy`.
    pub fn ended(&mut self, policy: Restart, ending: Ending, ran: Nanos, now: Nanos) -> Next {
        if ran >= STEADY {
            self.endings = 0;
        }
        let again = match (policy, ending) {
            (_, Ending::NotStarted) | (Restart::Never, _) => false,
            (Restart::OnFailure, ending) => ending == Ending::Failed,
            (Restart::Always, _) => true,
        };
        if !again {
            return Next::Leave;
        }
        let wait = self.wait();
        self.endings = self.endings.saturating_add(1);
        Next::StartAt(now.saturating_add(wait))
    }

    fn wait(self) -> Nanos {
        // Beyond 2^32 times the first wait it is the longest anyway.
        let doubled = BACK_OFF_FIRST.0.saturating_mul(1 << self.endings.min(32));
        Nanos(doubled).min(BACK_OFF_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHORT: Nanos = Nanos::from_millis(10);

    fn waits(policy: Restart, endings: &[(Ending, Nanos)]) -> Vec<Option<u64>> {
        let mut back_off = BackOff::new();
        let wait = |next| match next {
            Next::StartAt(at) => Some(at.0 / 1_000_000),
            Next::Leave => None,
        };
        endings.iter().map(|(ending, ran)| wait(back_off.ended(policy, *ending, *ran, Nanos::ZERO))).collect()
    }

    #[test]
    fn r1_the_policy_says_what_is_left() {
        let endings = [(Ending::Well, SHORT), (Ending::Failed, SHORT)];
        assert_eq!(waits(Restart::Never, &endings), [None, None]);
        assert_eq!(waits(Restart::OnFailure, &endings), [None, Some(500)]);
        assert_eq!(waits(Restart::Always, &endings), [Some(500), Some(1000)]);
    }

    #[test]
    fn r2_waits_double_up_to_the_longest() {
        let millis: Vec<u64> =
            waits(Restart::OnFailure, &[(Ending::Failed, SHORT); 10]).into_iter().flatten().collect();
        assert_eq!(millis, [500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000, 60000]);
    }

    #[test]
    fn r3_a_steady_run_starts_over() {
        let endings = [SHORT, SHORT, SHORT, STEADY, SHORT].map(|ran| (Ending::Failed, ran));
        let expected = [500, 1000, 2000, 500, 1000].map(Some);
        assert_eq!(waits(Restart::OnFailure, &endings), expected);
    }

    #[test]
    fn r4_what_cannot_be_started_is_left() {
        for policy in [Restart::Always, Restart::OnFailure, Restart::Never] {
            assert_eq!(waits(policy, &[(Ending::NotStarted, Nanos::ZERO)]), [None]);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_start_is_never_in_the_past_nor_too_far(
            runs in proptest::collection::vec((any::<u64>(), any::<u64>()), 1..50)
        ) {
            let mut back_off = BackOff::new();
            for (ran, now) in runs {
                let Next::StartAt(at) = back_off.ended(Restart::Always, Ending::Failed, Nanos(ran), Nanos(now)) else {
                    return Err(TestCaseError::fail("it was left"));
                };
                prop_assert!(at >= Nanos(now) && at.saturating_sub(Nanos(now)) <= BACK_OFF_MAX);
            }
        }
    }
}
