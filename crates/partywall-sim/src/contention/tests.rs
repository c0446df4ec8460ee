use partywall_core::catalogue::Catalogue;
use proptest::prelude::*;

use super::*;
use crate::kernel::stretch;

const OPEN: MemoryCut = MemoryCut { share: 1.0, launches_inside: false };

fn chip() -> Chip {
    Chip::of(Catalogue::builtin().unwrap().get("h200").unwrap())
}

fn load(width: f64, traffic: f64) -> Load {
    let kernel = Kernel {
        gap_ns: 0.0,
        launches: 1.0,
        exposed: 1.0,
        launch_ns: 1000.0,
        work_ns: 9000.0,
        width,
        room: width,
        traffic,
        sensitivity: 0.5,
        math: false,
        activity: 0.8,
    };
    let sms = chip().sms;
    let unstretched = smooth(width / sms);
    Load {
        kernel,
        unstretched,
        cap: sms,
        drawn: width.min(sms),
        gap_ns: kernel.gap_ns,
        memory: 0,
        graph: true,
    }
}

fn rates(loads: &[Load], cut: MemoryCut, clock: f64) -> Vec<f64> {
    let mut rates = Vec::new();
    let factors = ClockFactors::at(clock);
    Contention::default().rates(loads, cut, &chip(), factors, &Params::default(), &mut rates);
    rates
}

#[test]
fn alone_a_kernel_takes_its_recorded_time() {
    let rate = rates(&[load(40.0, 1000.0)], OPEN, 1.0)[0];
    assert!((1.0 / rate - 10_000.0).abs() < 1e-6, "{} ns", 1.0 / rate);
}

#[test]
fn fewer_sms_stretch_a_wide_kernel_and_not_a_narrow_one() {
    let on = |width: f64, cap: f64| {
        1.0 / rates(&[Load { cap, drawn: width.min(cap), ..load(width, 10.0) }], OPEN, 1.0)[0]
    };
    assert!((on(400.0, 66.0) / on(400.0, 132.0) - 1.9).abs() < 0.05, "the launch does not stretch");
    assert!((on(8.0, 66.0) / on(8.0, 132.0) - 1.0).abs() < 1e-3);
    assert_eq!(stretch(77.0, 132.0, 132.0), 1.0);
}

#[test]
fn the_bandwidth_is_shared_and_not_multiplied() {
    let stream = load(45.0, chip().bandwidth);
    let together = rates(&[stream, stream], OPEN, 1.0);
    let moved: f64 = together.iter().map(|rate| rate * 9000.0 * chip().bandwidth).sum();
    assert!(moved < 1.1 * chip().bandwidth, "{moved} GB/s of {}", chip().bandwidth);
}

#[test]
fn parts_of_the_memory_hide_neighbours_as_far_as_they_are_parts() {
    let (victim, stream) = (load(20.0, 100.0), Load { memory: 1, ..load(45.0, 2000.0) });
    let with = |cut: MemoryCut, be: Load| rates(&[victim], cut, 1.0)[0] / rates(&[victim, be], cut, 1.0)[0];
    let half = MemoryCut { share: 0.5, ..OPEN };
    let launches = with(half, stream);
    let open = with(OPEN, Load { memory: 0, ..stream });
    // Not quite 1: both kernels could draw on all SMs here.
    assert!(with(MemoryCut { launches_inside: true, ..half }, stream) < 1.0 + 1e-5);
    assert!(1.0 < launches && launches < open, "{launches} of {open}");
}

#[test]
fn launches_wait_for_the_other_side_by_what_it_is_asked_for() {
    let params =
        Params { side_launch_ns: 100.0, side_queue_ns: 1000.0, side_stream: 2.0, ..Params::default() };
    let residue = |foreign, graph| residue_ns(foreign, graph, &params);
    assert_eq!([0.0, 0.5, 1.0, 1.5].map(|foreign| residue(foreign, true)), [0.0, 50.0, 100.0, 600.0]);
    assert_eq!(residue(1.5, false), 1200.0);
}

#[test]
fn a_lower_clock_slows_math_most() {
    let math = |mut load: Load| {
        load.kernel.math = true;
        load
    };
    let slower = |load: Load| rates(&[load], OPEN, 1.0)[0] / rates(&[load], OPEN, 0.5)[0];
    let (memory, math) = (slower(load(20.0, 10.0)), slower(math(load(20.0, 10.0))));
    assert!(1.2 < memory && memory < math && math <= 2.0, "{memory} {math}");
    assert_eq!(ClockFactors::at(1.0), ClockFactors { launch: 1.0, math: 1.0, memory: 1.0 });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn a_neighbour_never_makes_faster(
        sizes in proptest::collection::vec((0.5..500.0, 0.0..4250.0), 1..5),
        share in 0.1..1.0,
        launches_inside: bool,
        clock in 0.2..1.0,
    ) {
        let cut = MemoryCut { share, launches_inside };
        let loads: Vec<Load> = sizes.iter().enumerate()
            .map(|(memory, &(width, traffic))| Load { memory: memory % 2, ..load(width, traffic) }).collect();
        let together = rates(&loads, cut, clock);
        let alone = rates(&loads[..1], cut, clock);
        prop_assert!(together.iter().all(|rate| *rate > 0.0 && rate.is_finite()));
        prop_assert!(together[0] <= alone[0] * (1.0 + 1e-9));
    }
}
