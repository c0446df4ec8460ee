use proptest::prelude::*;

use super::*;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

fn used(capacity: u64, prompts: &[(Class, u64, u64)]) -> Contents {
    let mut contents = Contents::new(capacity);
    for (class, found, new) in prompts {
        contents.used(*class, *found, *new);
    }
    contents
}

fn check(contents: &Contents, new_blocks: u64, expected: f64) {
    let found = contents.evicted(new_blocks);
    assert!((found - expected).abs() < 1e-6, "{found} is not {expected}");
}

#[test]
fn s1_nothing_goes_while_there_is_room() {
    check(&used(100, &[]), 100, 0.0);
    check(&used(100, &[(LS, 0, 60)]), 40, 0.0);
    check(&used(100, &[(LS, 0, 60)]), 50, 10.0);
}

#[test]
fn s2_what_was_used_longest_ago_goes_first() {
    let contents = used(100, &[(LS, 0, 30), (BE, 0, 40), (LS, 0, 30)]);
    for (new_blocks, expected) in [(10, 10.0), (30, 30.0), (70, 30.0), (80, 40.0), (100, 60.0), (1_000, 60.0)]
    {
        check(&contents, new_blocks, expected);
    }
    // What is beyond the capacity has gone.
    check(&used(100, &[(LS, 0, 30), (BE, 0, 90)]), 20, 10.0 + 0.0);
}

#[test]
fn s3_what_is_used_again_becomes_the_newest() {
    let contents = used(100, &[(LS, 0, 40), (BE, 0, 60), (LS, 40, 0)]);
    check(&contents, 60, 0.0);
    check(&contents, 80, 20.0);
}

#[test]
fn s4_best_effort_blocks_count_as_nothing() {
    check(&used(100, &[(BE, 0, 100)]), 100, 0.0);
}

#[test]
fn the_chance_of_reuse_is_what_was_found() {
    let mut reuse = Reuse::default();
    assert_eq!(reuse.chance(), 0.0);
    for _ in 0..10_000 {
        reuse.seen(250, 1_000);
    }
    assert!((reuse.chance() - 0.25).abs() < 1e-9);
    for _ in 0..50_000 {
        reuse.seen(1_000, 1_000);
    }
    assert!(reuse.chance() > 0.95);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// S5, and what must hold of any sketch.
    #[test]
    fn a_sketch_is_small_and_never_counts_more_than_it_holds(
        prompts in prop::collection::vec((any::<bool>(), 0_u64..300, 0_u64..300), 0..400),
        new_blocks in 0_u64..2_000,
    ) {
        let mut contents = Contents::new(1_000);
        for (latency_sensitive, found, new) in prompts {
            contents.used(if latency_sensitive { LS } else { BE }, found, new);
            prop_assert!(contents.layers.len() <= 2 * LAYERS as usize + 2, "{} layers", contents.layers.len());
            prop_assert!(contents.held.blocks() <= 1_000.0 + 1e-6);
        }
        let sum: f64 = contents.layers.iter().map(Layer::blocks).sum();
        prop_assert!((sum - contents.held.blocks()).abs() < 1e-3, "{sum} is not {}", contents.held.blocks());
        let evicted = contents.evicted(new_blocks);
        prop_assert!(evicted >= -1e-9 && evicted <= contents.held.latency_sensitive + 1e-3);
        prop_assert!(evicted <= new_blocks as f64 + 1e-6);
        prop_assert!(contents.evicted(new_blocks + 100) >= evicted - 1e-9);
    }
}
