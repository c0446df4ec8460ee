//! What holds in every run, whatever the tenants, the wall and the seed.

use partywall_core::tenant::Class;
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;
use proptest::prelude::*;

use super::super::{Machine, Phase};
use super::*;

fn any_kernel() -> impl Strategy<Value = Kernel> {
    let times = (0.0..2000.0, 0.0..300_000.0);
    let sizes = (0.5..4000.0, 0.02..4000.0);
    (times, sizes, 0.0..4250.0, 0.0..=1.0, any::<bool>()).prop_map(
        |((launch_ns, work_ns), (width, room), traffic, sensitivity, math)| Kernel {
            gap_ns: 0.0,
            launches: 1.0,
            exposed: 1.0,
            launch_ns: launch_ns + 1.0,
            work_ns,
            width,
            room,
            traffic,
            sensitivity,
            math,
            activity: 0.8,
        },
    )
}

fn any_load() -> impl Strategy<Value = Load> {
    prop_oneof![
        (10.0..3000.0).prop_map(|rate_per_s| Load::Poisson { rate_per_s }),
        (10.0..1000.0).prop_map(|rate_per_s| Load::Periodic { rate_per_s }),
        (0u64..2_000_000, 1u32..4).prop_map(|(pause, depth)| closed(Nanos(pause), depth)),
    ]
}

type Wanted = (Vec<Kernel>, (u64, u64), Load, bool);

fn any_tenant() -> impl Strategy<Value = Wanted> {
    let bytes = prop_oneof![Just(0u64), 1..3_000_000u64];
    (proptest::collection::vec(any_kernel(), 1..4), (bytes.clone(), bytes), any_load(), any::<bool>())
}

fn any_wall() -> impl Strategy<Value = Wall> {
    (0..Wall::ALL.len()).prop_map(|index| Wall::ALL[index])
}

prop_compose! {
    fn any_scene()(
        wall in any_wall(),
        tenants in proptest::collection::vec(any_tenant(), 1..4),
        seed in any::<u64>(),
        at_ms in proptest::option::of(0u64..40),
        warmup_ms in 0u64..10,
    ) -> Scene {
        let mut scene = Scene { seed, warmup_ms, end_ms: 40, ..Scene::new(wall) };
        // The first is latency-sensitive, which `partywall` needs to have anything to protect.
        for (index, (kernels, (input, output), load, sensitive)) in tenants.into_iter().enumerate() {
            let class = if sensitive || index == 0 { Class::LatencySensitive } else { Class::BestEffort };
            let program = program(kernels).with_copies(Bytes(input), Bytes(output));
            scene = scene.tenant(class, program, &load, None);
        }
        scene.faults = at_ms.map(|at| fault(0, at, 5)).into_iter().collect();
        scene
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_same_seed_gives_the_same_bytes(scene in any_scene()) {
        prop_assert_eq!(format!("{:?}", scene.run()), format!("{:?}", scene.run()));
    }

    #[test]
    fn no_request_is_lost_uncounted(scene in any_scene()) {
        for counts in scene.run().tenants {
            prop_assert_eq!(counts.carried + counts.offered, counts.completed + counts.lost + counts.backlog);
            prop_assert_eq!(counts.completed, counts.service.len());
            prop_assert!(counts.items >= -1e-9);
        }
    }

    /// Stepped by hand: time moves at every step, rates are positive and finite, nobody draws on SMs there are not.
    #[test]
    fn time_goes_on_and_nothing_is_had_twice(scene in any_scene()) {
        let mut setup = scene.everybody();
        setup.timeline = Some((Nanos::ZERO, Nanos::from_millis(1), 40));
        let mut machine = Machine::new(setup).unwrap();
        machine.begin();
        let mut stood_still = 0;
        while machine.now < Nanos::from_millis(40).0 {
            let before = machine.now;
            machine.step();
            prop_assert!(machine.now >= before);
            // Only queued events may share a moment, and each is taken from the queue.
            stood_still = if machine.now == before { stood_still + 1 } else { 0 };
            prop_assert!(stood_still < 100);
            prop_assert!(machine.rates.iter().all(|rate| *rate > 0.0 && rate.is_finite()));
            for tenant in &machine.tenants {
                let Phase::Running = tenant.phase else { continue };
                prop_assert!(tenant.placed.held <= 132.0 + 1e-6 && tenant.placed.held > 0.0);
            }
        }
        let strip = machine.outcome().timeline.unwrap();
        for bin in 0..40 {
            let drawn: f64 = strip.sms.iter().map(|tenant| tenant[bin]).sum();
            prop_assert!(drawn <= 132.0 + 1e-6, "{} SMs in bin {}", drawn, bin);
        }
    }

    #[test]
    fn arrivals_do_not_depend_on_the_neighbours(scene in any_scene()) {
        let open = |scene: &Scene| scene.tenants[0].0.demand.closed_loop().is_none();
        prop_assume!(open(&scene));
        let together = scene.run();
        let alone = scene.part(0);
        prop_assert_eq!(together.tenants[0].offered, alone.tenants[0].offered);
    }
}

#[test]
fn another_seed_gives_other_bytes() {
    let scene = Scene::new(Wall::Mps).ls(victim(), &Load::Poisson { rate_per_s: 500.0 });
    let other = Scene { seed: 8, ..scene.clone() };
    assert_ne!(format!("{:?}", scene.run()), format!("{:?}", other.run()));
}

#[test]
fn kernels_start_in_the_order_in_which_they_became_ready() {
    // Three loops of kernels that each fill the GPU: strictly in turn, so all get the same number.
    let full = || program(vec![kernel(100.0, 132.0)]);
    let load = closed(Nanos::ZERO, 8);
    let outcome = Scene::new(Wall::Mps).be(full(), &load).be(full(), &load).be(full(), &load).run();
    let done: Vec<u64> = outcome.tenants.iter().map(|counts| counts.completed).collect();
    assert!(done.iter().max().unwrap() - done.iter().min().unwrap() <= 24, "{done:?}");
}

#[test]
fn a_stopped_tenant_is_in_nobodys_way() {
    let scene =
        Scene::new(Wall::Mps).be(program(vec![kernel(100.0, 132.0)]), &looping()).ls(victim(), &paced());
    let mut layout = scene.layout();
    layout.places[0].cap = 0.0;
    let outcome = crate::machine::run(scene.setup(layout, &[0, 1])).unwrap();
    assert_eq!(outcome.tenants[0].completed, 0);
    assert!(outcome.tenants[1].completed > 500, "{}", outcome.tenants[1].completed);
}

#[test]
fn wake_ups_of_the_arbiter_do_not_pile_up() {
    // Requests every 300 us on average, fewer apart than the hold: each end of one asks for another wake-up.
    let scene = Scene::new(Wall::Partywall)
        .ls(program(vec![kernel(50.0, 60.0)]), &Load::Poisson { rate_per_s: 3000.0 })
        .be(program(vec![kernel(30.0, 132.0)]), &looping())
        .until_ms(300);
    let mut machine = Machine::new(scene.everybody()).unwrap();
    machine.begin();
    let mut most = 0;
    while machine.now < Nanos::from_millis(300).0 {
        machine.step();
        most = most.max(machine.events.len());
    }
    assert!(most < 60, "{most} events queued at once");
}
