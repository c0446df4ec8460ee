use std::convert::Infallible;

use proptest::prelude::*;

use super::*;

const CONFIG: Config = Config { requests: 1000, worst: 5, step: 0.05, validations: 3, steps_max: 200 };

/// The search on a tenant that times out at periods below `shortest`.
fn found(shortest: u64, times: &[u64]) -> Found {
    let times: Vec<Nanos> = times.iter().map(|&time| Nanos(time)).collect();
    let mut timeouts = |period: Nanos, _| Ok::<_, Infallible>(u64::from(period < Nanos(shortest)));
    let Ok(found) = search(&CONFIG, &times, &mut timeouts);
    found
}

#[test]
fn the_first_estimate_is_the_mean_of_the_worst_five() {
    let times: Vec<u64> = (1..=1000).map(|i| i * 10_000).collect();
    assert_eq!(found(1, &times).first, Nanos((9_960 + 9_970 + 9_980 + 9_990 + 10_000) * 1000 / 5));
    assert_eq!(found(1, &[7_000_000, 9_000_000]).first, Nanos(8_000_000));
}

#[test]
fn the_rate_is_raised_to_the_last_step_without_a_timeout() {
    let found = found(7_000_000, &[10_000_000; 10]);
    // 10 ms / 1.05^7 = 7.107 ms is stable, / 1.05^8 = 6.768 ms is not; then three runs to validate.
    assert_eq!(found.period, Some(Nanos(7_106_814)));
    assert_eq!(found.runs, 9 + 3);
}

#[test]
fn the_rate_is_lowered_where_the_first_estimate_is_too_fast() {
    let found = found(11_000_000, &[10_000_000; 10]);
    assert_eq!(found.period, Some(Nanos(11_025_000)));
}

#[test]
fn a_violation_while_validating_steps_back_and_validates_again() {
    let mut at_limit = 0;
    let times = [Nanos(10_000_000); 10];
    let mut timeouts = |period: Nanos, _| {
        if period < Nanos(9_500_000) {
            return Ok::<_, Infallible>(1);
        }
        // 9.523 ms is stable when it is reached and in the first validation, not in the second.
        at_limit += u32::from(period < Nanos(9_600_000));
        Ok(u64::from(period < Nanos(9_600_000) && at_limit == 3))
    };
    let Ok(found) = search(&CONFIG, &times, &mut timeouts);
    assert_eq!(found.period, Some(Nanos(10_000_000)));
    assert_eq!(found.runs, 3 + 2 + 3);
}

#[test]
fn what_is_never_stable_is_not_found_and_what_always_is_ends() {
    let times = [Nanos(10_000_000); 10];
    let Ok(never) = search(&CONFIG, &times, &mut |_, _| Ok::<_, Infallible>(1));
    assert_eq!(never.period, None);
    let Ok(always) = search(&CONFIG, &times, &mut |_, _| Ok::<_, Infallible>(0));
    assert!(always.period.is_some_and(|period| period < Nanos(10_000)), "{always:?}");
}

#[test]
fn an_error_ends_the_search() {
    let error = search(&CONFIG, &[Nanos(1_000_000)], &mut |_, run| if run == 2 { Err("no") } else { Ok(0) });
    assert_eq!(error, Err("no"));
}

proptest! {
    #[test]
    fn the_period_found_is_stable_and_one_step_faster_is_not(shortest in 1_000_000u64..100_000_000, time in 1_000_000u64..100_000_000) {
        let period = found(shortest, &[time; 5]).period.expect("within the steps");
        prop_assert!(period >= Nanos(shortest));
        prop_assert!((period.0 as f64 / 1.05) < shortest as f64 + 2.0);
    }
}
