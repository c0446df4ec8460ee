use partywall_core::catalogue::Catalogue;

use super::*;

fn h200() -> &'static Gpu {
    Catalogue::builtin().unwrap().get("h200").unwrap()
}

/// Half a second passes from one look to the next.
fn ticking() -> impl FnMut() -> f64 {
    let mut now = 0.0;
    move || {
        now += 0.5;
        now
    }
}

#[test]
fn kernels_are_divided_by_the_callers_time() {
    for mix in [Mix::Two, Mix::Four] {
        let time = Nanos::from_millis(100);
        let speed = kernels_per_second(mix, h200(), &Params::default(), time, &mut ticking()).unwrap();
        assert_eq!((speed.seconds, speed.kernels_per_s), (0.5, speed.kernels as f64 * 2.0));
        // Kernels of networks take microseconds, tens of them at batch 32.
        assert!((2_000..100_000).contains(&speed.kernels), "{mix:?}: {speed:?}");
    }
}

#[test]
fn a_fleet_does_not_depend_on_its_workers() {
    let fleet = |workers| {
        let time = Nanos::from_secs(2);
        fleet(7, h200(), &Params::default(), time, workers, &mut ticking()).unwrap()
    };
    let (one, three) = (fleet(1), fleet(3));
    assert_eq!((one.kernels, one.requests), (three.kernels, three.requests));
    // 30 pictures a second, 20 requests, and a job that does 10 to 75 passes a second.
    assert!(one.requests > 7 * 2 * 40 && one.requests < 7 * 2 * 200, "{one:?}");
    assert_eq!(serde_json::to_value(one).unwrap()["gpus"], 7);
}

#[test]
fn parts_without_mig_leave_that_wall_out() {
    let l4 = Catalogue::builtin().unwrap().get("l4").unwrap();
    let time = Nanos::from_secs(1);
    let fleet = fleet(6, l4, &Params::default(), time, 2, &mut ticking()).unwrap();
    assert!(fleet.kernels > 1000);
}
