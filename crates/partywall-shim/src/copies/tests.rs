//! Copies on a modelled device: what programs rely on, whatever the device, the node and the streams do in between.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::device::{Habits, Model};
use super::submit::{PART_PACKETS, finish};
use super::turns::Outlook;

/// What a program does, and the model after all of it is through.
fn run(habits: Habits, program: &[(usize, usize, u64, u64)]) -> Model {
    let model = Model::new(habits);
    for &(stream, direction, bytes, steps) in program {
        if bytes == 0 {
            model.probe(stream);
        } else {
            model.copy(stream, direction, bytes).unwrap();
        }
        for _ in 0..steps {
            model.step();
        }
    }
    for stream in 0..4 {
        model.probe(stream);
    }
    model.settle();
    let world = model.world.borrow();
    assert!(world.bytes.iter().flatten().all(|&count| count == 1), "every byte once");
    drop(world);
    model
}

fn programs() -> impl Strategy<Value = Vec<(usize, usize, u64, u64)>> {
    let copy = (0..4_usize, 0..2_usize, prop_oneof![Just(0), 1..200_u64, 1_000..2_500_u64], 0..60_u64);
    prop::collection::vec(copy, 1..12)
}

fn habits() -> impl Strategy<Value = Habits> {
    let flags = (any::<u64>(), any::<bool>(), any::<bool>(), 0..2_u32);
    (flags, 1..40_u64, 1..20_u64, prop::option::of(0..3_000_u64)).prop_map(
        |((seed, one_queue, neighbours, class), window, packet, node_dies)| Habits {
            seed,
            one_queue,
            neighbours,
            window,
            packet,
            node_dies,
            fails: None,
            class,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// In order within its stream, every byte once, nothing left waiting: also when streams share a hardware queue,
    /// and when the node dies at any step.
    #[test]
    fn copies_are_whole_and_in_order(habits in habits(), program in programs()) {
        run(habits, &program);
    }

    /// Never more on the link than granted and what is left of one packet.
    #[test]
    fn grants_bound_what_is_in_flight(mut habits in habits(), program in programs()) {
        habits.node_dies = None;
        habits.one_queue = false;
        let model = run(habits, &program);
        let most = model.world.borrow().most_in_flight;
        // The rest of a large copy that must not wait goes in larger packets.
        let packet = habits.packet.max(2_500_u64.div_ceil(PART_PACKETS));
        prop_assert!(most < habits.window + packet, "{most}");
    }

    /// An error half-way comes back to the caller, and nothing waits for ever.
    #[test]
    fn errors_release_everything(
        mut habits in habits(),
        program in programs(),
        at in 1..300_u64,
        calls in prop_oneof![Just(1_u64), Just(1 << 40)],
    ) {
        habits.fails = Some((at, at + calls));
        let model = Model::new(habits);
        for &(stream, direction, bytes, steps) in program.iter().filter(|copy| copy.2 > 0) {
            let _ = model.copy(stream, direction, bytes);
            (0..steps).for_each(|_| { model.step(); });
        }
        model.settle();
        prop_assert!(model.world.borrow().bytes.iter().flatten().all(|&count| count <= 1));
    }
}

#[test]
fn an_error_reaches_the_caller() {
    for at in 1..12 {
        let model = Model::new(Habits { fails: Some((at, u64::MAX)), ..Habits::default() });
        assert!(model.copy(0, 0, 40).is_err(), "call {at}");
    }
}

#[test]
fn a_copy_that_is_not_ready_does_not_hold_up_another_one() {
    // Stream 0 waits for something that nobody has recorded yet.
    let model = Model::new(Habits::default());
    model.hold(0, 99);
    let behind = model.copy(0, 0, 100).unwrap().unwrap();
    let free = model.copy(1, 0, 100).unwrap().unwrap();
    finish(model.place(1), &free).unwrap();
    assert!(!behind.is_over());
    assert_eq!(model.world.borrow().outlook, Outlook::Arriving);
    model.release(99);
    finish(model.place(0), &behind).unwrap();
}

#[test]
fn a_large_copy_behind_something_that_waits_for_the_caller_does_not_hold_the_caller() {
    let model = Model::new(Habits::default());
    model.hold(0, 99);
    // Many parts of packets of 8 bytes.
    let copy = model.copy(0, 0, 100_000).unwrap().unwrap();
    model.release(99);
    finish(model.place(0), &copy).unwrap();
    model.settle();
    assert!(model.world.borrow().bytes[0].iter().all(|&count| count == 1));
}

#[test]
fn the_page_counts_what_went() {
    let model =
        run(Habits { packet: 8, ..Habits::default() }, &[(0, 0, 100, 5), (1, 1, 2_500, 5), (2, 1, 7, 0)]);
    let world = model.world.borrow();
    for (direction, bytes, copies) in [(0, 100, 1), (1, 2_507, 2)] {
        let side = &world.page.shim.copies[direction];
        assert_eq!(side.ready.load(Ordering::Relaxed), bytes);
        assert_eq!(side.started.load(Ordering::Relaxed), bytes);
        assert_eq!(side.done.load(Ordering::Relaxed), bytes);
        assert_eq!(side.copies.load(Ordering::Relaxed), copies);
        assert!(side.wait_ns.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn slots_are_used_again() {
    let model = Model::new(Habits::default());
    for round in 0..2_000 {
        model.copy(round % 3, round % 2, 20).unwrap().unwrap();
        model.settle();
    }
    assert!(model.pool.made() <= 512, "one chunk of words: {}", model.pool.made());
}

#[test]
fn giving_up_releases_what_waits_and_what_comes() {
    // A node that grants nothing.
    let model = Model::new(Habits { window: 0, ..Habits::default() });
    model.copy(0, 0, 100).unwrap();
    (0..200).for_each(|_| {
        model.step();
    });
    model.copy(1, 1, 100).unwrap();
    assert!(!model.world.borrow().is_empty(), "they wait");
    model.world.borrow_mut().copier.give_up(model.desk);
    while model.step() || !model.world.borrow().is_empty() {}
    assert!(model.world.borrow().bytes.iter().flatten().all(|&count| count == 1));
}
