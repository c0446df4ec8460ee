use std::collections::BTreeMap;

use super::{SliceMap, SlicesError, find, gather, scatter};
use crate::address::{Address, LINE_BYTES, PAGE_BYTES};
use crate::model::{Model, Slices};
use crate::prober::Prober as _;
use crate::sides::{self, Found, Sides};

const PAGES: u32 = 5;
const CHECKS: u32 = 4_000;

fn sides(model: &mut Model) -> Option<Sides> {
    match sides::find(model, 500, 3).unwrap() {
        Found::One { .. } => None,
        Found::Two(sides) => Some(sides),
    }
}

/// Every line is in the slice that it is really in, whatever that is called.
fn check(model: &mut Model) -> SliceMap {
    check_pages(model, PAGES)
}

fn check_pages(model: &mut Model, pages: u32) -> SliceMap {
    let sides = sides(model);
    let map = find(model, sides.as_ref(), pages, CHECKS, 5).unwrap();
    assert_eq!(u32::from(map.count), model.slice_count());
    assert_eq!(map.checked, u64::from(CHECKS));
    let mut names = BTreeMap::new();
    for page in 0..pages {
        for offset in (0..PAGE_BYTES).step_by(LINE_BYTES as usize) {
            let address = Address { page, offset };
            let found = map.of(address).unwrap();
            assert_eq!(*names.entry(model.slice(address)).or_insert(found), found, "{address:?}");
        }
    }
    assert_eq!(names.len(), usize::from(map.count));
    assert_eq!(map.of(Address { page: pages, offset: 0 }), None);
    map
}

#[test]
fn s1_slices_are_found_exactly() {
    let map = check(&mut Model::h200(20, 1));
    // Bit 7 is within a piece of 256 B.
    assert_eq!((map.bits, map.pages[0].len()), (0x1f_ff00, 8_192));
    let map = check(&mut Model::a100(20, 2));
    assert_eq!(map.bits & 0x380, 0, "1 KiB of an A100 is in one slice");
    check(&mut Model::v100(20, 3));
}

#[test]
fn s1_the_slices_of_recorded_pages_are_found_exactly() {
    let recorded = include_bytes!("../../../../results/h200/slices-16-pages.bin");
    let map = check(&mut Model::recorded(recorded, 9));
    // 128 B lines of a KiB lie a a b b a a b b.
    assert_eq!((map.bits, map.count), (0x1f_fd00, 94));
}

#[test]
fn s1_measurements_that_are_far_off_change_nothing() {
    let mut model = Model::h200(20, 4);
    model.times.off = 0.02;
    check(&mut model);
}

#[test]
fn s4_streams_that_miss_each_other_change_nothing() {
    for (seed, missed) in [(11, 0.0), (12, 0.03)] {
        let mut model = Model::h200(20, seed);
        model.times.missed = missed;
        check(&mut model);
    }
}

#[test]
fn s4_a_slice_that_was_found_twice_is_one() {
    let mut model = Model::h200(4, 13);
    let sides = sides(&mut model);
    let address = |offset| Address { page: 0, offset };
    let line = |slice: u32| {
        let mut offsets = (0..PAGE_BYTES).step_by(256).map(address);
        offsets.find(|address| model.slice(*address) == slice).unwrap()
    };
    let far = |slice: u32| {
        let mut offsets = (0..PAGE_BYTES).step_by(256).rev().map(address);
        offsets.find(|address| model.slice(*address) == slice).unwrap()
    };
    let firsts = [line(3), line(60), far(3), line(7), far(60), far(3)];
    let known = firsts.map(|first| super::Known { first, sums: Vec::new(), members: 0.0 });
    let (chance, known) = (crate::chance::Chance::new(9), known.into());
    let sides = sides.as_ref();
    let mut search = super::Search { prober: &mut model, sides, chance, known, threshold: 1.5, pairs: 0 };
    let names: Vec<u16> = search.same().unwrap().into_iter().map(|slice| slice.0).collect();
    assert_eq!(names, [0, 1, 0, 2, 1, 0]);
}

#[test]
fn s5_what_is_shared_on_the_way_is_no_slice() {
    let mut model = Model::h200(20, 15);
    let found = check(&mut model);
    // A quarter of the pairs, of which one in 24 shares a way.
    let expected = found.across.pairs / 24;
    assert!((expected / 2..2 * expected).contains(&found.across.contend), "{:?}", found.across);
    model.ways = false;
    assert_eq!(check(&mut model).across.contend, 0);
}

#[test]
fn s2_about_two_pairs_are_measured_for_each_place() {
    let mut model = Model::h200(20, 6);
    let map = check(&mut model);
    let places = u64::from(PAGES) * 8_192;
    // Those that were measured before any slice was known are among them.
    assert!(map.pairs < places * 5 / 2, "{} pairs for {places} places", map.pairs);
}

#[test]
fn s6_pages_that_are_like_one_before_are_told_by_a_few_places() {
    // Five kinds of pages, each in two ways by side.
    let mut model = Model::h200(40, 16);
    model.slices = Slices::Counter(5);
    let map = check_pages(&mut model, 40);
    assert!((5..=12).contains(&map.whole), "{} pages were looked at whole", map.whole);
    assert!(map.pairs < u64::from(map.whole) * 8_192 * 4, "{} pairs", map.pairs);
    let mut recorded = Model::recorded(include_bytes!("../../../../results/h200/slices-16-pages.bin"), 10);
    let map = check_pages(&mut recorded, 16);
    assert!(map.whole <= 16);
}

#[test]
fn s3_a_page_that_is_not_what_the_map_says_is_noticed() {
    let mut model = Model::h200(20, 7);
    let sides = sides(&mut model);
    let mut map = find(&mut model, sides.as_ref(), PAGES, 0, 5).unwrap();
    map.pages[2].rotate_left(1);
    let chance = crate::chance::Chance::new(9);
    let mut search = super::Search {
        prober: &mut model,
        sides: None,
        chance,
        known: Vec::new(),
        threshold: 1.5,
        pairs: 0,
    };
    let refused = search.check(&mut map, CHECKS);
    assert!(matches!(refused, Err(SlicesError::Wrong { apart: 100.., together: 1.., .. })), "{refused:?}");
}

#[test]
fn what_cannot_be_told_is_refused() {
    let mut model = Model::h200(20, 8);
    let there = model.pages();
    for asked in [0, there + 1] {
        let refused = find(&mut model, None, asked, CHECKS, 1);
        assert!(matches!(refused, Err(SlicesError::Nothing { .. })), "{refused:?}");
    }
}

#[test]
fn bits_are_gathered_and_scattered() {
    assert_eq!(gather(0b1010_1100, 0b1111_0000), 0b1010);
    assert_eq!(scatter(0b1010, 0b1111_0000), 0b1010_0000);
    for number in 0..64 {
        assert_eq!(gather(scatter(number, 0x1f_ff00), 0x1f_ff00), number);
    }
}
