use proptest::prelude::*;

use super::{Breaker, Event, Settings, State};
use partywall_core::units::Nanos;

const SETTINGS: Settings = Settings {
    failures: 3,
    window: Nanos::from_secs(10),
    open: Nanos::from_secs(2),
    open_max: Nanos::from_secs(6),
    trials: 2,
    down_after: 2,
    up_after: 2,
};

fn second(s: u64) -> Nanos {
    Nanos::from_secs(s)
}

fn unprobed() -> Breaker {
    Breaker::new(SETTINGS, false)
}

fn steps(breaker: &mut Breaker, now: Nanos, events: &[Event]) {
    for event in events {
        breaker.step(now, *event);
    }
}

fn opened() -> Breaker {
    let mut breaker = unprobed();
    steps(&mut breaker, second(1), &[Event::Failed; 3]);
    assert_eq!(breaker.state(second(1)), State::Open);
    breaker
}

#[test]
fn s1_failures_open_it_and_successes_keep_it_closed() {
    let mut breaker = unprobed();
    steps(&mut breaker, second(1), &[Event::Failed, Event::Failed]);
    assert!(breaker.admits(second(1)));
    breaker.step(second(1), Event::Failed);
    assert!(!breaker.admits(second(1)));
    let mut busy = unprobed();
    steps(&mut busy, second(1), &[Event::Succeeded; 100]);
    steps(&mut busy, second(2), &[Event::Failed; 99]);
    assert!(busy.admits(second(2)));
    busy.step(second(2), Event::Failed);
    assert!(!busy.admits(second(2)), "half of them have failed");
}

#[test]
fn s2_old_failures_are_forgotten() {
    let mut breaker = unprobed();
    steps(&mut breaker, second(1), &[Event::Failed, Event::Failed]);
    breaker.step(second(12), Event::Failed);
    assert!(breaker.admits(second(12)));
    steps(&mut breaker, second(13), &[Event::Failed, Event::Failed]);
    assert!(!breaker.admits(second(13)));
}

#[test]
fn s3_one_trial_at_a_time_and_closed_after_enough() {
    let mut breaker = opened();
    assert_eq!(breaker.next_change(), Some(second(3)));
    assert!(!breaker.admits(Nanos(second(3).0 - 1)));
    assert!(breaker.admits(second(3)));
    breaker.step(second(3), Event::Sent);
    assert!(!breaker.admits(second(3)), "the trial is under way");
    breaker.step(second(4), Event::Succeeded);
    assert!(breaker.admits(second(4)));
    assert_eq!(breaker.state(second(4)), State::Trying);
    steps(&mut breaker, second(4), &[Event::Sent, Event::Succeeded]);
    assert_eq!(breaker.state(second(4)), State::Closed);
    assert_eq!(breaker.next_change(), None);
}

#[test]
fn s4_failed_trials_open_it_for_longer_up_to_a_bound() {
    let mut breaker = opened();
    let mut now = second(3);
    for lasts in [4, 6, 6] {
        assert!(breaker.admits(now));
        steps(&mut breaker, now, &[Event::Sent, Event::Failed]);
        let until = now.saturating_add(second(lasts));
        assert!(!breaker.admits(Nanos(until.0 - 1)), "{lasts}");
        now = until;
    }
}

#[test]
fn s5_a_trial_that_says_nothing_is_taken_back() {
    let mut breaker = opened();
    breaker.step(second(3), Event::Sent);
    breaker.step(second(4), Event::Abandoned);
    assert!(breaker.admits(second(4)));
    breaker.step(second(4), Event::Sent);
    assert!(!breaker.admits(second(9)));
    assert_eq!(breaker.next_change(), Some(second(10)));
    assert!(breaker.admits(second(10)), "it never ended");
}

#[test]
fn s6_probes_take_it_down_and_up() {
    let mut breaker = Breaker::new(SETTINGS, true);
    assert!(!breaker.admits(second(0)), "it has never answered");
    breaker.step(second(1), Event::ProbePassed);
    assert!(breaker.admits(second(1)), "the first one is enough");
    breaker.step(second(2), Event::ProbeFailed);
    breaker.step(second(3), Event::ProbePassed);
    breaker.step(second(4), Event::ProbeFailed);
    assert!(breaker.is_up(), "not in a row");
    breaker.step(second(5), Event::ProbeFailed);
    assert!(!breaker.admits(second(5)));
    breaker.step(second(6), Event::ProbePassed);
    assert!(!breaker.is_up());
    breaker.step(second(7), Event::ProbePassed);
    assert!(breaker.admits(second(7)));
    steps(&mut breaker, second(8), &[Event::Failed; 3]);
    breaker.step(second(8), Event::ProbePassed);
    assert!(!breaker.admits(second(8)), "the breaker is open, whatever probes say");
}

#[test]
fn s7_what_fails_late_does_not_lengthen_it() {
    let mut breaker = opened();
    steps(&mut breaker, second(2), &[Event::Failed; 50]);
    assert!(breaker.admits(second(3)));
}

fn event() -> impl Strategy<Value = Event> {
    prop::sample::select(vec![
        Event::Sent,
        Event::Succeeded,
        Event::Failed,
        Event::Abandoned,
        Event::ProbePassed,
        Event::ProbeFailed,
    ])
}

proptest! {
    /// Whatever happened, a replica that is up gets a request again after the longest time that the breaker is open.
    #[test]
    fn nothing_keeps_it_out_for_good(events in prop::collection::vec((event(), 0u64..20_000), 0..200)) {
        let mut breaker = Breaker::new(SETTINGS, true);
        let mut now = Nanos::ZERO;
        for (event, ms) in events {
            now = now.saturating_add(Nanos::from_millis(ms));
            breaker.step(now, event);
            let promised = breaker.next_change();
            if !breaker.admits(now) && breaker.is_up() {
                prop_assert!(promised.is_some_and(|at| at > now && at <= now.saturating_add(SETTINGS.open_max)));
            }
        }
        steps(&mut breaker, now, &[Event::ProbePassed; 2]);
        now = now.saturating_add(SETTINGS.open_max);
        prop_assert!(breaker.admits(now));
    }

    /// While it tries there is never a second request under way.
    #[test]
    fn trials_go_one_at_a_time(outcomes in prop::collection::vec(prop::bool::ANY, 1..50)) {
        let mut breaker = opened();
        let mut now = second(3);
        for good in outcomes {
            now = now.max(breaker.next_change().unwrap_or(now));
            prop_assert!(breaker.admits(now));
            breaker.step(now, Event::Sent);
            if breaker.state(now) == State::Trying {
                prop_assert!(!breaker.admits(now));
            }
            breaker.step(now, if good { Event::Succeeded } else { Event::Failed });
        }
    }
}
