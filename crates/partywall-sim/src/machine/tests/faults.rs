//! Who dies with whom, and how they come back; and which set-ups are refused.

use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;

use super::super::{Setup, SetupError};
use super::*;

/// Two tenants that both take a little of the GPU, and a fault of the second at 200 ms with a restart of 100 ms.
fn scene(wall: Wall) -> Scene {
    let load = Load::Poisson { rate_per_s: 1000.0 };
    let small = || program(vec![kernel(20.0, 8.0); 3]);
    let mut scene = Scene::new(wall).ls(small(), &load).be(small(), &load);
    scene.faults = vec![fault(1, 200, 100)];
    scene
}

#[test]
fn a_fault_reaches_every_client_of_mps_and_nobody_behind_a_wall_that_contains_it() {
    for wall in Wall::ALL.into_iter().filter(|wall| *wall != Wall::Exclusive) {
        let outcome = scene(wall).run();
        let lost = [outcome.tenants[0].lost, outcome.tenants[1].lost];
        // 100 ms at 1 000 a second.
        assert!((60..=140).contains(&lost[1]), "{wall}: the faulty tenant lost {}", lost[1]);
        if wall.fault_contained() {
            assert_eq!(lost[0], 0, "{wall}");
        } else {
            assert!((60..=140).contains(&lost[0]), "{wall}: its neighbour lost {}", lost[0]);
        }
    }
}

#[test]
fn tenants_come_back_after_the_restart() {
    for wall in [Wall::Mps, Wall::Partywall, Wall::TimeSlicing] {
        let mut setup = scene(wall).everybody();
        setup.timeline = Some((Nanos::from_millis(200), Nanos::from_millis(10), 40));
        let strip = crate::machine::run(setup).unwrap().timeline.unwrap();
        assert!(strip.sms[1][..10].iter().all(|&sms| sms < 1e-6), "{wall}: down {:?}", strip.sms[1]);
        assert!(strip.sms[1][11..].iter().all(|&sms| sms > 0.0), "{wall}: back {:?}", strip.sms[1]);
    }
}

#[test]
fn what_a_fault_loses_is_not_called_saturation() {
    let mut scene = scene(Wall::Mps).until_ms(1000);
    scene.faults = vec![fault(1, 600, 200)];
    let outcome = scene.run();
    assert!(outcome.tenants[0].lost > 100);
    assert!(outcome.tenants.iter().all(|counts| !counts.saturated()));
}

#[test]
fn a_load_that_cannot_be_served_is_saturated() {
    let load = Load::Poisson { rate_per_s: 1000.0 };
    let outcome = Scene::new(Wall::Mps).ls(program(vec![kernel(2000.0, 132.0)]), &load).run();
    assert!(outcome.tenants[0].saturated());
    // A run that was cut short says nothing.
    let mut setup = Scene::new(Wall::Mps).ls(program(vec![kernel(2000.0, 132.0)]), &load).everybody();
    setup.requests_max = 50;
    let outcome = crate::machine::run(setup).unwrap();
    assert_eq!((outcome.tenants[0].completed, outcome.tenants[0].load), (50, None));
}

/// Once, what a closed loop had planned before the fault came on top of what it planned after it.
#[test]
fn a_fault_during_the_pause_of_a_closed_loop_does_not_double_it() {
    let pause = Nanos::from_millis(50);
    let mut scene = Scene::new(Wall::Mps).ls(program(vec![kernel(100.0, 8.0)]), &closed(pause, 1));
    scene.faults = vec![fault(0, 110, 1), fault(0, 220, 1)];
    let outcome = scene.run();
    // 580 ms counted, one request every 50.1 ms and one more after each restart.
    assert!((11..=14).contains(&outcome.tenants[0].completed), "{}", outcome.tenants[0].completed);
}

#[test]
fn a_fault_of_a_tenant_that_is_down_changes_nothing() {
    let run = |faults: Vec<Fault>| {
        let scene = Scene { faults, ..scene(Wall::Mps) };
        format!("{:?}", scene.run())
    };
    assert_eq!(run(vec![fault(1, 200, 100)]), run(vec![fault(1, 200, 100), fault(0, 250, 1)]));
}

/// Work done before the warm-up's end on a request that a fault then ended was once subtracted for ever.
#[test]
fn items_do_not_go_below_zero_when_a_fault_ends_the_first_request() {
    let long = program(vec![kernel(400_000.0, 132.0)]);
    let mut scene = Scene::new(Wall::Mps).be(Program { items: 1.0, ..long }, &closed(Nanos::ZERO, 1));
    scene.warmup_ms = 200;
    scene.faults = vec![fault(0, 250, 1000)];
    assert_eq!(scene.run().tenants[0].items, 0.0);
}

#[test]
fn parts_of_requests_count() {
    let long = program(vec![kernel(40_000.0, 132.0); 10]);
    let scene = Scene::new(Wall::Exclusive).be(Program { items: 1.0, ..long }, &closed(Nanos::ZERO, 2));
    // 580 ms of passes of 400 ms, none of which began and ended within it.
    check("passes", scene.run().tenants[0].items, 1.45, (1.4, 1.5));
}

#[test]
fn the_warmup_does_not_count_towards_the_requests_asked_for() {
    let mut setup = Scene::new(Wall::Mps).ls(victim(), &closed(Nanos::ZERO, 1)).everybody();
    setup.requests_max = 10;
    let outcome = crate::machine::run(setup).unwrap();
    assert_eq!((outcome.tenants[0].completed, outcome.tenants[0].service.len()), (10, 10));
}

#[test]
fn impossible_set_ups_are_refused() {
    let good = scene(Wall::Mps).everybody();
    let refused = |change: fn(&mut Setup<'_>)| {
        let mut setup = good.clone();
        change(&mut setup);
        crate::machine::run(setup).unwrap_err().to_string()
    };
    let bad_kernel: fn(&mut Setup<'_>) = |s| s.workloads[1].program.kernels[2].work_ns = f64::NAN;
    for (message, expected) in [
        (refused(|s| s.streams.clear()), "2 workloads and 0 streams"),
        (refused(|s| s.warmup = s.end), "the run ends at 600ms, and nothing before 600ms counts"),
        (refused(|s| s.faults[0].tenant = TenantId(2)), "a fault names tenant 2; the tenants are 0 to 1"),
        (refused(|s| s.workloads[0].program.kernels.clear()), "`test` has neither kernels nor an input"),
        (refused(bad_kernel), "kernel 2 of `test` is impossible"),
        (refused(|s| s.workloads[1].program.kernels[0].room = 0.0), "kernel 0 of `test` is impossible"),
        (refused(|s| s.copies.packet = Bytes::ZERO), "copy packets of 0B are impossible"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
    let empty = Scene::new(Wall::Mps).everybody();
    assert_eq!(crate::machine::run(empty).unwrap_err(), SetupError::TenantCount { given: 0 });
}
