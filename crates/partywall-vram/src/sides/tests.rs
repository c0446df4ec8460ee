use std::convert::Infallible;

use proptest::prelude::{ProptestConfig, any, prop_assert_eq, proptest};

use super::{Found, Side, Sides, SidesError, find};
use crate::address::{Address, PAGE_BYTES};
use crate::model::{Model, Slices};
use crate::prober::{Probe, Prober};

const PAGES: u32 = 400;
const CHECKS: u32 = 4_000;

fn two(model: &mut Model) -> Sides {
    match find(model, CHECKS, 7) {
        Ok(Found::Two(sides)) => sides,
        other => panic!("{other:?}"),
    }
}

fn groups(map: &Sides) -> Vec<Side> {
    map.known.scale.groups.iter().map(|group| group.side).collect()
}

/// The map against where everything really is. Which side is called the first is the map's to say.
fn check(model: &mut Model) -> Sides {
    let map = two(model);
    let known = &map.known;
    assert_eq!(Some(known.mask), model.mask);
    assert_eq!(known.granularity(), known.mask & known.mask.wrapping_neg());
    let first = model.groups[0];
    let named = |side: Side| Side::second(side != first);
    assert_eq!(groups(&map), model.groups.iter().map(|&side| named(side)).collect::<Vec<_>>());
    for page in 0..PAGES {
        for offset in (0..PAGE_BYTES).step_by(40_832) {
            let address = Address { page, offset };
            assert_eq!(map.of(address), Some(named(model.side(address))), "{address:?}");
        }
    }
    assert_eq!(map.of(Address { page: PAGES, offset: 0 }), None);
    assert!(map.quality.checked > u64::from(CHECKS) * 9 / 10, "{:?}", map.quality);
    map
}

#[test]
fn d1_an_h200_an_a100_and_others_are_found_exactly() {
    let map = check(&mut Model::h200(PAGES, 1));
    assert_eq!(map.known.granularity(), 4_096);
    assert!((map.known.scale.far_cycles - 200.0).abs() < 15.0, "{:?}", map.known);
    assert_eq!(check(&mut Model::a100(PAGES, 2)).known.granularity(), 8_192);
    // Near and far are apart, and what noise there is does not hide it.
    let latencies = &map.quality.latencies;
    let at = |bins: &[u32], cycles: u32| {
        let bin = (cycles - latencies.from_cycles()) / super::BIN_CYCLES;
        let [before, behind] = [&bins[..bin as usize], &bins[bin as usize..]];
        (before.iter().sum::<u32>(), behind.iter().sum::<u32>())
    };
    let ((near, late), (early, far)) = (at(latencies.near(), 432), at(latencies.far(), 432));
    assert!(near > CHECKS / 2 && far > CHECKS / 2, "{near} near, {far} far");
    assert!(late < near / 50 && early == 0, "{late} of {near}, {early} of {far}");
    // Two probes an address are usually enough.
    let mut model = Model::h200(PAGES, 3);
    check(&mut model);
    let fixed = 66 * 96 + (24 * 15 + 1_024 + u64::from(PAGES + CHECKS)) * 4;
    assert!(model.asked.latencies < fixed, "{:?}", model.asked);
}

/// Sides and slices of 16 pages of a real one.
const RECORDED: &[u8] = include_bytes!("../../../../results/h200/slices-16-pages.bin");

#[test]
fn d1_the_mask_of_the_recorded_pages_is_found() {
    let mut model = Model::recorded(RECORDED, 9);
    let map = two(&mut model);
    assert_eq!((map.known.mask, map.known.granularity(), map.pages.len()), (0xab000, 4_096, 16));
    let is_second = model.groups[0] == Side::Second;
    for page in 0..16 {
        for offset in (0..PAGE_BYTES).step_by(256) {
            let address = Address { page, offset };
            let side = Side::second((model.side(address) == Side::Second) != is_second);
            assert_eq!(map.of(address), Some(side), "{address:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn d1_a_hash_that_was_never_seen_is_found_exactly(seed in any::<u64>()) {
        let mut model = Model::unknown(PAGES, seed);
        let mask = model.mask;
        let map = check(&mut model);
        prop_assert_eq!(Some(map.known.mask), mask);
    }
}

#[test]
fn d1_a_page_may_be_on_one_side_as_a_whole() {
    let mut model = Model::h200(PAGES, 4);
    model.mask = Some(0);
    let map = two(&mut model);
    assert_eq!((map.known.mask, map.known.granularity()), (0, PAGE_BYTES));
}

#[test]
fn d2_a_gpu_with_one_side_has_one() {
    for seed in 0..20 {
        let mut model = Model::v100(PAGES, seed);
        let found = find(&mut model, CHECKS, seed).unwrap();
        assert!(matches!(found, Found::One { apart } if apart < 1.5), "{found:?}");
        model.slices = Slices::Counter(47);
        let found = find(&mut model, CHECKS, seed).unwrap();
        assert!(matches!(found, Found::One { .. }), "{found:?}");
    }
}

#[test]
fn d3_a_hash_that_is_no_parity_is_refused() {
    // Of a bit that turns the side with another one alone.
    let mut model = Model::h200(PAGES, 5);
    model.bent = Some([14, 18]);
    let refused = find(&mut model, CHECKS, 1);
    assert!(matches!(refused, Err(SidesError::NoParity { bit: 14 | 18, .. })), "{refused:?}");
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("no parity of its offset: bit 1"), "{message}");
}

#[test]
fn d4_measurements_that_are_far_off_change_nothing() {
    for seed in 0..10 {
        let mut model = Model::h200(PAGES, seed);
        model.times.off = 0.03;
        check(&mut model);
    }
}

#[test]
fn d5_groups_of_one_side_find_the_sides_of_memory() {
    let mut model = Model::h200(PAGES, 6);
    model.groups.iter_mut().for_each(|group| *group = Side::Second);
    check(&mut model);
    // One group is enough.
    model.groups.truncate(1);
    check(&mut model);
}

/// One whose pages are not where they were, after so many measurements.
struct Moved {
    model: Model,
    after: u64,
}

impl Prober for Moved {
    type Error = Infallible;

    fn pages(&self) -> u32 {
        self.model.pages()
    }

    fn groups(&self) -> u16 {
        self.model.groups()
    }

    fn latencies(&mut self, probes: &[Probe]) -> Result<Vec<f32>, Infallible> {
        if self.model.asked.latencies > self.after {
            self.after = u64::MAX;
            self.model.pages[3] ^= 1;
        }
        self.model.latencies(probes)
    }

    fn contention(&mut self, groups: &[u16], pairs: &[(Address, Address)]) -> Result<Vec<f32>, Infallible> {
        self.model.contention(groups, pairs)
    }
}

#[test]
fn d6_a_page_that_is_not_where_the_map_says_is_noticed() {
    let mut model = Model::h200(PAGES, 8);
    assert!(matches!(find(&mut model, 0, 7), Ok(Found::Two(_))));
    // With everything mapped and nothing checked.
    let after = model.asked.latencies;
    let model = Model::h200(PAGES, 8);
    let refused = find(&mut Moved { model, after }, CHECKS, 7);
    assert!(matches!(refused, Err(SidesError::Wrong { wrong: 1.., .. })), "{refused:?}");
}

#[test]
fn d7_where_noise_drowns_the_difference_no_side_is_claimed() {
    for (seed, noise) in (0..30).zip([150.0, 400.0, 1_000.0].into_iter().cycle()) {
        let mut model = Model::h200(PAGES, seed);
        model.times.noise = noise;
        match find(&mut model, CHECKS, seed) {
            Ok(Found::One { .. }) | Err(SidesError::Noise { .. } | SidesError::Wrong { .. }) => {}
            // Or it is right: a sample of all groups averages much of the noise away.
            Ok(Found::Two(map)) => assert_eq!(map.known.mask, 0xab000),
            Err(other) => panic!("noise {noise}: {other}"),
        }
    }
}

#[test]
fn without_pages_there_is_nothing_to_find() {
    let refused = find(&mut Model::h200(0, 1), CHECKS, 1);
    assert!(matches!(refused, Err(SidesError::Nothing { pages: 0, groups: 66 })), "{refused:?}");
}
