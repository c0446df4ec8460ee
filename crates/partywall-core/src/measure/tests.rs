use proptest::prelude::*;

use super::*;

#[test]
fn a_percentile_needs_samples_beyond_it() {
    let all = [Percentile::P50, Percentile::P90, Percentile::P99, Percentile::P999];
    assert_eq!(all.map(|p| p.samples_needed(Evidence::Shown)), [20, 100, 1_000, 10_000]);
    assert_eq!(all.map(|p| p.samples_needed(Evidence::Recorded)), [100, 500, 5_000, 50_000]);
    assert_eq!(all.map(Percentile::fraction), [0.5, 0.9, 0.99, 0.999]);
    assert_eq!(Percentile::P99.supported(999, Evidence::Shown, 7), None);
    assert_eq!(Percentile::P99.supported(1_000, Evidence::Shown, 7), Some(7));
    assert_eq!(Percentile::P99.supported(4_999, Evidence::Recorded, 7), None);
    assert_eq!(Percentile::from_ppm(999_999).unwrap().samples_needed(Evidence::Shown), 10_000_000);
    assert_eq!(Percentile::from_ppm(1_000_000), None);
    let three_quarters = Percentile::from_ppm(666_667).unwrap();
    assert_eq!(three_quarters.samples_needed(Evidence::Shown), 31, "rounded up");
}

#[test]
fn a_percentile_is_the_sample_of_nearest_rank() {
    let samples: Vec<Nanos> = (1..=1_000).map(Nanos).collect();
    let of = |p: Percentile| p.of(&samples, Evidence::Shown);
    assert_eq!(of(Percentile::P50), Some(Nanos(500)));
    assert_eq!(of(Percentile::P99), Some(Nanos(990)));
    assert_eq!(of(Percentile::P999), None);
    assert_eq!(Percentile::P99.of(&samples[1..], Evidence::Shown), None);
    assert_eq!(Percentile::P50.of(&[], Evidence::Shown), None);
    assert_eq!(Percentile::from_ppm(0).unwrap().of(&samples, Evidence::Shown), Some(Nanos(1)));
}

#[test]
fn slowdown_is_what_the_partition_and_what_the_neighbours_cost() {
    // 4 ms alone, 5 ms alone on its part, 6 ms there with neighbours.
    let cost = TailCost::new(Nanos::from_millis(4), Nanos::from_millis(5), Nanos::from_millis(6));
    assert_eq!(cost, Some(TailCost { slowdown: 1.5, capacity_cost: 1.25, interference: 1.2 }));
    assert_eq!(TailCost::new(Nanos::ZERO, Nanos(1), Nanos(1)), None);
    assert_eq!(TailCost::new(Nanos(1), Nanos(1), Nanos::ZERO), None, "no request takes no time");
    let json = serde_json::to_string(&cost).unwrap();
    assert_eq!(json, r#"{"slowdown":1.5,"capacity_cost":1.25,"interference":1.2}"#);
}

#[test]
fn be_kept_and_duty_are_fractions() {
    assert_eq!(be_kept(30.0, 40.0), Some(0.75));
    assert_eq!(be_kept(0.0, 40.0), Some(0.0));
    for (beside, alone) in [(1.0, 0.0), (0.0, 0.0), (-1.0, 2.0), (1.0, -2.0), (1.0, f64::INFINITY)] {
        assert_eq!(be_kept(beside, alone), None, "{beside} beside, {alone} alone");
    }
    assert_eq!(be_kept(f64::NAN, 1.0), None);
    assert_eq!(duty(125.0, Nanos::from_millis(4)), Some(0.5));
    assert_eq!(duty(-1.0, Nanos::from_millis(4)), None);
    assert_eq!(duty(f64::NAN, Nanos::from_millis(4)), None);
}

const SECOND: Nanos = Nanos::from_secs(1);

fn served(offered: u64, completed: u64, backlog: [f64; 4]) -> Load {
    Served { offered, completed, half: Nanos::from_secs(2), backlog }.load()
}

#[test]
fn s1_a_shortfall_in_the_second_half_is_saturation() {
    assert_eq!(served(1_000, 1_000, [1.0; 4]), Load::Served);
    assert_eq!(served(1_000, 980, [1.0; 4]), Load::Served);
    assert_eq!(served(1_000, 979, [1.0; 4]), Load::Saturated { completed_per_s: 489.5 });
    assert_eq!(served(100, 91, [1.0; 4]), Load::Served, "nine requests are the end of the window");
    assert_eq!(served(100, 90, [1.0; 4]), Load::Saturated { completed_per_s: 45.0 });
    assert_eq!(served(100, 120, [1.0; 4]), Load::Served, "a backlog that shrinks");
    assert_eq!(served(0, 0, [0.0; 4]), Load::Served);
}

#[test]
fn s2_a_backlog_that_grows_in_every_quarter_is_saturation() {
    let saturated = Load::Saturated { completed_per_s: 4_975.0 };
    let grown = |backlog| served(10_000, 9_950, backlog);
    assert_eq!(grown([10.0, 30.0, 50.0, 70.0]), saturated);
    assert_eq!(grown([10.0, 30.0, 29.0, 70.0]), Load::Served, "a burst");
    assert_eq!(grown([10.0, 30.0, 50.0, 59.0]), Load::Served, "grows too little");
    assert_eq!(grown([1.0, 3.0, 5.0, 12.9]), Load::Served, "fewer than ten requests more");
    assert_eq!(grown([1.0, 3.0, 5.0, 13.0]), saturated);
}

#[test]
fn the_meter_counts_the_second_half_and_the_backlog_over_time() {
    let mut meter = LoadMeter::new(SECOND, Nanos::from_secs(5));
    meter.arrived(Nanos::ZERO); // before the window, still there: 1 in the first quarter, half of the second
    meter.completed(Nanos::from_millis(2_500));
    meter.arrived(Nanos::from_millis(3_250)); // three quarters of the third quarter, all of the last
    meter.arrived(Nanos::from_secs(4)); // all of the last
    meter.arrived(Nanos::from_secs(5)); // behind the window
    meter.completed(Nanos::from_secs(6));
    let expected =
        Served { offered: 2, completed: 0, half: Nanos::from_secs(2), backlog: [1.0, 0.5, 0.75, 2.0] };
    assert_eq!(meter.served(), expected);
    let empty = LoadMeter::new(SECOND, Nanos::ZERO).served();
    assert_eq!((empty.half, empty.completed_per_s(), empty.load()), (Nanos::ZERO, 0.0, Load::Served));
}

/// One server with a fixed service time in percent of the distance of arrivals, for 10 000 arrivals.
fn one_server(service_percent: u64) -> Load {
    let distance = Nanos::from_millis(1);
    let mut meter = LoadMeter::new(Nanos::ZERO, Nanos(distance.0 * 10_000));
    let mut free = Nanos::ZERO;
    for index in 0..10_000 {
        let at = Nanos(distance.0 * index);
        free = free.max(at) + Nanos(distance.0 * service_percent / 100);
        meter.arrived(at);
        meter.completed(free);
    }
    meter.served().load()
}

#[test]
fn a_server_one_per_cent_too_slow_is_seen_through_its_backlog() {
    assert_eq!(one_server(50), Load::Served);
    assert_eq!(one_server(100), Load::Served);
    assert_eq!(one_server(200), Load::Saturated { completed_per_s: 500.0 });
    let Load::Saturated { completed_per_s } = one_server(101) else { panic!("served") };
    assert!((completed_per_s - 990.0).abs() < 1.0, "{completed_per_s}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn slowdown_is_capacity_cost_times_interference(
        solo in 1u64..1 << 50, partition in 1u64..1 << 50, corun in 1u64..1 << 50,
    ) {
        let cost = TailCost::new(Nanos(solo), Nanos(partition), Nanos(corun)).unwrap();
        let product = cost.capacity_cost * cost.interference;
        prop_assert!((cost.slowdown - product).abs() <= 1e-15 * 4.0 * cost.slowdown, "{:?} {}", cost, product);
    }

    #[test]
    fn enough_samples_lie_beyond_a_percentile(ppm in 0u32..1_000_000) {
        let percentile = Percentile::from_ppm(ppm).unwrap();
        for (evidence, beyond) in [(Evidence::Shown, 10), (Evidence::Recorded, 50)] {
            let needed = percentile.samples_needed(evidence);
            let behind = |samples: u64| samples * u64::from(1_000_000 - ppm);
            prop_assert!(behind(needed) >= beyond * 1_000_000);
            prop_assert!(behind(needed - 1) < beyond * 1_000_000);
        }
    }

    #[test]
    fn percentiles_do_not_fall(mut times in proptest::collection::vec(0u64..1_000, 1_000..1_200)) {
        times.sort_unstable();
        let sorted: Vec<Nanos> = times.into_iter().map(Nanos).collect();
        let shown = |p: Percentile| p.of(&sorted, Evidence::Shown);
        prop_assert!(shown(Percentile::P50) <= shown(Percentile::P90));
        prop_assert!(shown(Percentile::P90) <= shown(Percentile::P99));
        let p90 = shown(Percentile::P90).unwrap();
        let at_most = sorted.iter().filter(|time| **time <= p90).count();
        let below = sorted.iter().filter(|time| **time < p90).count();
        prop_assert!(at_most * 10 >= sorted.len() * 9 && below * 10 < sorted.len() * 9);
    }

    /// The order of events does not matter, and the backlog integral is the sum of the times in the system.
    #[test]
    fn the_mean_backlog_is_the_time_in_the_system(
        requests in proptest::collection::vec((0u64..4_000, 0u64..4_000), 0..50),
    ) {
        let end = Nanos(4_000);
        let (mut forwards, mut backwards) = (LoadMeter::new(Nanos::ZERO, end), LoadMeter::new(Nanos::ZERO, end));
        for (at, time) in &requests {
            forwards.arrived(Nanos(*at));
            forwards.completed(Nanos(at + time));
        }
        for (at, time) in requests.iter().rev() {
            backwards.completed(Nanos(at + time));
            backwards.arrived(Nanos(*at));
        }
        prop_assert_eq!(forwards.served(), backwards.served());
        let total: f64 = forwards.served().backlog.iter().map(|mean| mean * 1_000.0).sum();
        let expected: u64 = requests.iter().map(|(at, time)| (at + time).min(4_000) - at).sum();
        prop_assert!((total - expected as f64).abs() < 1e-6, "{} {}", total, expected);
    }

    #[test]
    fn no_window_and_no_event_panics(start: u64, end: u64, at: u64, done: u64) {
        let mut meter = LoadMeter::new(Nanos(start), Nanos(end));
        meter.arrived(Nanos(at));
        meter.completed(Nanos(done));
        prop_assert!(meter.served().backlog.iter().all(|mean| mean.abs() <= 1.0));
    }
}
