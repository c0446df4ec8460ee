//! The wall `partywall` as it is built around programs: essay and scenarios in `machine/launches.rs`.

use partywall_core::sm_arbiter::MAX_BACKOFF;
use proptest::prelude::*;

use super::super::{Machine, Phase};
use super::*;
use crate::kernel::Launching;
use crate::layout::{NodeLaunches, Turnstile};

const GRAPH: Launching = Launching { graph: true, copy: Bytes::ZERO, host_ns: 0.0 };

fn decided(mps: bool) -> Node {
    Node { mps, ..Node::default() }
}

fn undecided(mps: bool) -> Node {
    Node { mps, launches: None, slice: None }
}

/// A request of 1.5 ms, alone as fast under MPS as without, every 5 ms; and a neighbour that never pauses.
fn scene(node: Node, neighbour: Program) -> Scene {
    let request = victim().kernels.into_iter().map(|kernel| Kernel { exposed: 0.0, ..kernel });
    let request = program(request.collect::<Vec<_>>().repeat(10));
    let scene = Scene::new(Wall::Partywall).ls(request, &closed(Nanos::from_millis(5), 1));
    Scene { node: Some(node), ..scene.be(neighbour, &never_idle()) }.until_ms(1_000)
}

/// The longest request beyond what one takes alone behind the wall, in microseconds.
fn worst_us(scene: &Scene) -> f64 {
    let at = |counts: &Counts, q: f64| counts.service.sorted_at(q).unwrap().as_us();
    at(&scene.run().tenants[0], 1.0) - at(&scene.part(0).tenants[0], 0.5)
}

fn kernels(us: f64, launching: Launching) -> Program {
    Program { launching, ..program(vec![kernel(us, 132.0); 40]) }
}

#[test]
fn s1_a_request_waits_for_two_chunks_at_most() {
    let short = || kernels(20.0, Launching::default());
    let (held, free) = (scene(decided(true), short()), scene(undecided(true), short()));
    // Five kernels make a chunk. What shares the GPU with the request meanwhile slows it as well.
    check("beside chunks of 100 us, us", worst_us(&held), f64::NAN, (20.0, 300.0));
    assert!(worst_us(&free) > 4.0 * worst_us(&held), "{} us where nothing is held", worst_us(&free));
}

#[test]
fn short_time_slices_bound_what_kernels_of_any_length_cost() {
    let long = || kernels(5_000.0, Launching::default());
    let behind =
        |slice: Option<u64>| scene(Node { slice: slice.map(Nanos::from_micros), ..decided(false) }, long());
    let params = Params::default();
    // The rest of a slice and a change of hands; the driver's own are 2.15 ms.
    let one = |slice_us: f64| slice_us + params.switch_ns / 1e3;
    for (slice, us) in [(Some(50), 50.0), (Some(200), 200.0), (None, params.slice_ns / 1e3)] {
        let worst = worst_us(&behind(slice));
        check(&format!("slices of {us} us, us"), worst, f64::NAN, (0.5 * one(us), 1.3 * one(us)));
    }
    let [short, own] = [Some(50), None].map(|slice| behind(slice).kept(1));
    assert!(short > 0.6 * own, "short slices only cost while somebody waits: {short} and {own}");
}

#[test]
fn s2_a_neighbour_goes_on_when_requests_stay_away() {
    let kept = scene(decided(true), kernels(20.0, Launching::default())).kept(1);
    // Requests take 24 % of the time, the release 2 %, and marks 2 %; MPS lengthens the gaps of both.
    check("kept", kept, f64::NAN, (0.64, 0.74));
    let bare = Turnstile { chunks: 2, chunk: Nanos::from_micros(100), launches: 16 };
    let held = NodeLaunches { turnstile: bare, hold: true, release: Nanos::from_millis(4) };
    let node = Node { launches: Some(held), ..Node::default() };
    let late = scene(node, kernels(20.0, Launching::default())).kept(1);
    assert!(late < 0.25, "{late} kept with a release time of 4 ms between requests 5 ms apart");
}

#[test]
fn s3_of_kernels_longer_than_a_chunk_two_are_under_way() {
    let worst = worst_us(&scene(decided(true), kernels(1_400.0, Launching::default())));
    check("beside kernels of 1.4 ms, us", worst, f64::NAN, (1_500.0, 2_900.0));
}

#[test]
fn s4_graphs_are_held_between_pieces_and_copies_too() {
    let pieces = worst_us(&scene(decided(true), kernels(50.0, GRAPH)));
    let singly = worst_us(&scene(decided(true), kernels(50.0, Launching::default())));
    assert!(singly < 300.0 && pieces < 500.0 && pieces > singly + 50.0, "{pieces} us, {singly} us singly");
    // Copies of 1 GiB take half a millisecond, their pieces 16 us.
    let (held, free) = (scene(decided(true), stream()), scene(undecided(true), stream()));
    assert!(worst_us(&held) < 400.0, "{} us", worst_us(&held));
    assert!(worst_us(&free) > 3.0 * worst_us(&held), "{} us where nothing is held", worst_us(&free));
    check("kept", held.kept(1), f64::NAN, (0.6, 0.75));
}

#[test]
fn s5_a_slow_host_leaves_the_gpu_to_others() {
    let slow = Launching { host_ns: 20_000.0, ..Launching::default() };
    let alone = Scene::new(Wall::Exclusive).be(kernels(10.0, slow), &never_idle()).run();
    check("passes a second", alone.tenants[0].rate(alone.measured), f64::NAN, (1_200.0, 1_255.0));
    let beside = |launching| worst_us(&scene(decided(true), kernels(10.0, launching)));
    let (slow, quick) = (beside(slow), beside(Launching::default()));
    assert!(slow < 0.6 * quick, "{slow} us beside the slow host, {quick} beside the quick one");
}

#[test]
fn s6_a_launch_that_was_held_for_long_enough_goes() {
    // Back to back: never idle for the release time.
    let mut scene = scene(decided(true), kernels(20.0, Launching::default()));
    scene.tenants[0].0.demand = closed(Nanos::ZERO, 1).demand(None).unwrap();
    let mut machine = Machine::new(scene.everybody()).unwrap();
    machine.begin();
    while machine.now < Nanos::from_millis(1_000).0 {
        machine.step();
    }
    let (_, launched, _) = machine.tenants[1].launches.as_ref().unwrap().seen();
    assert!((9..=20).contains(&launched), "{launched} launches in a second of hold");
}

#[test]
fn s7_by_turns_a_request_does_not_wait_for_a_slice() {
    let job = || kernels(20.0, GRAPH);
    let (held, free) = (scene(decided(false), job()), scene(undecided(false), job()));
    // Two chunks and a switch; a slice is 2.15 ms.
    check("beside chunks, us", worst_us(&held), f64::NAN, (125.0, 400.0));
    assert!(worst_us(&free) > 4.0 * worst_us(&held), "{} us where nothing is held", worst_us(&free));
}

#[test]
fn s8_who_holds_is_no_active_client() {
    let slowdown = scene(decided(true), kernels(20.0, Launching::default())).interference();
    // 400 gaps of a microsecond are 27 % of the request.
    assert!(slowdown < 1.18, "{slowdown}");
}

fn any_node() -> impl Strategy<Value = Node> {
    let times = (0u64..300_000, 1_000u64..300_000);
    (any::<bool>(), 1u32..4, 1u32..20, times).prop_map(|(mps, chunks, launches, (chunk, release))| {
        let turnstile = Turnstile { chunks, chunk: Nanos(chunk), launches };
        Node {
            mps,
            launches: Some(NodeLaunches { turnstile, hold: true, release: Nanos(release) }),
            slice: None,
        }
    })
}

fn any_launching() -> impl Strategy<Value = Launching> {
    (any::<bool>(), prop_oneof![Just(0u64), 1u64 << 20..1 << 28], prop_oneof![Just(0.0), 1_000.0..40_000.0])
        .prop_map(|(graph, copy, host_ns)| Launching { graph, copy: Bytes(copy), host_ns })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Stepped by hand: what is held launches nothing, so that beside a request nothing runs but what was under way; and once
    /// requests have been away for the release time and what a host takes to see it, a neighbour that has work has it on the device.
    #[test]
    fn held_means_nothing_new_and_released_means_soon(
        node in any_node(),
        us in 1.0..500.0,
        count in 1usize..30,
        launching in any_launching(),
        rate_per_s in 20.0..3_000.0,
        seed in any::<u64>(),
    ) {
        let job = Program { launching, ..program(vec![kernel(us, 132.0); count]) };
        let scene = Scene::new(Wall::Partywall)
            .ls(program(vec![kernel(50.0, 60.0); 4]), &Load::Poisson { rate_per_s })
            .be(job, &looping());
        let scene = Scene { node: Some(node), seed, ..scene };
        let options = node.launches.unwrap();
        // The hold grows where requests come back soon; a host looks every 100 us, and its way to the GPU is 20.
        let soon = options.release.0 * MAX_BACKOFF + 121_000;
        let mut machine = Machine::new(scene.everybody()).unwrap();
        machine.begin();
        let (mut launched_at_hold, mut idle_from) = (None, Some(0));
        while machine.now < Nanos::from_millis(50).0 {
            machine.step();
            let now = machine.now;
            let is_idle = machine.tenants[0].phase == Phase::Idle;
            idle_from = if is_idle { idle_from.or(Some(now)) } else { None };
            let job = &machine.tenants[1];
            let launches = job.launches.as_ref().unwrap();
            let (under_way, launched, has_work) = launches.seen();
            prop_assert!(under_way <= options.turnstile.chunks as usize);
            prop_assert!(is_idle || launches.is_held());
            launched_at_hold = launches.is_held().then(|| launched_at_hold.unwrap_or(launched));
            prop_assert!(launched_at_hold.is_none_or(|before| launched == before));
            if idle_from.is_some_and(|from| now - from > soon) && has_work {
                prop_assert!(!launches.is_held());
                let launch_ns = (launching.host_ns as u64).max(2_500);
                let is_at_it = (1..=launch_ns).contains(&launches.busy_ns(now));
                prop_assert!(launches.is_there() || is_at_it, "idle since {:?}, now {}", idle_from, now);
            }
        }
    }
}
