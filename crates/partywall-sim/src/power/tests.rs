use proptest::prelude::*;

use super::*;

fn power(cap_w: f64) -> Power {
    Power { cap_w, idle_w: 120.0, busy_w: 700.0, lowest: 0.2, highest_mhz: 2000.0 }
}

#[test]
fn below_the_cap_the_clock_stays_up() {
    assert_eq!(power(1000.0).clock(1.0), 1.0);
    assert_eq!(power(400.0).clock(0.3), 1.0);
    assert_eq!(power(400.0).watts(0.0, 1.0), 120.0);
}

#[test]
fn a_cap_below_idle_means_the_lowest_clock() {
    assert_eq!((power(100.0).clock(0.5), power(100.0).mhz(0.2)), (0.2, 400.0));
}

proptest! {
    #[test]
    fn the_clock_is_the_highest_that_fits(cap in 150.0..900.0, activity in 0.0..=1.0) {
        let power = power(cap);
        let clock = power.clock(activity);
        prop_assert!((0.2..=1.0).contains(&clock));
        if clock > 0.2 {
            prop_assert!(power.watts(activity, clock) <= cap + 1e-6);
        }
        if clock < 1.0 {
            prop_assert!(power.watts(activity, (clock * 1.01).min(1.0)) > cap);
        }
    }
}
