use std::collections::BTreeMap;

use proptest::prelude::{Strategy, prop, prop_oneof, proptest};

use super::super::arena::Arena;
use super::super::runs::MAX_RUN;
use super::{EngineHash, Names, PrefixHash, Put, Taken};

/// Slots with these names, from 0 on.
fn arena(names: &[u64]) -> Arena {
    let mut arena = Arena::new(MAX_RUN);
    let blocks: Vec<_> = names.iter().map(|&name| (EngineHash(name), PrefixHash(!name))).collect();
    assert_eq!(arena.take(blocks.len() as u32), Some((0, blocks.len() as u32)));
    arena.fill(0, &blocks, 0);
    arena
}

fn called(names: &[u64]) -> Vec<(EngineHash, PrefixHash)> {
    names.iter().map(|&name| (EngineHash(name), PrefixHash(!name))).collect()
}

fn take(names: &mut Names, arena: &Arena, name: u64) -> Taken {
    let mut all = Vec::new();
    names.take_all(&[EngineHash(name)], arena, |taken| all.push(taken));
    assert_eq!(all.len(), 1);
    all[0]
}

#[test]
fn names_that_the_arena_has_cost_less_than_others() {
    let common: Vec<u64> = (0..4000).collect();
    let own: Vec<u64> = (10_000..14_000).collect();
    let arena = arena(&common);
    let (mut same, mut other) = (Names::default(), Names::default());
    assert_eq!(same.put_new(&called(&common), 0, &arena), common.len());
    assert_eq!(other.put_new(&called(&own), 0, &arena), own.len());
    assert!(same.bytes() <= 4000 * 26, "{} bytes", same.bytes());
    assert!(other.bytes() <= 4000 * 35, "{} bytes", other.bytes());
    for slot in 0..4000 {
        assert_eq!(same.get(EngineHash(common[slot]), &arena), Some(slot as u32));
        assert_eq!(other.get(EngineHash(own[slot]), &arena), Some(slot as u32));
        assert_eq!(same.get(EngineHash(own[slot]), &arena), None);
        assert_eq!(other.get(EngineHash(common[slot]), &arena), None);
    }
}

/// A name whose place in every table is at the beginning.
fn crowded(number: u64) -> u64 {
    // The inverse of the multiplication, by Newton's method: each step doubles the bits that are right.
    let spread = crate::table::spread(1);
    let inverse = (0..6)
        .fold(spread, |inverse, _| inverse.wrapping_mul(2u64.wrapping_sub(spread.wrapping_mul(inverse))));
    let mixed = (number << 16).wrapping_mul(inverse);
    mixed ^ mixed >> 32
}

#[test]
fn names_that_all_want_one_place_are_refused_when_it_is_full_and_taken_again_when_it_is_not() {
    let all: Vec<u64> = (0..2000).map(crowded).collect();
    let arena = arena(&all);
    let mut names = Names::default();
    let noted = names.put_new(&called(&all), 0, &arena);
    assert_eq!(noted, 640, "64 buckets of 10");
    assert_eq!(names.put(EngineHash(all[noted]), noted as u32, &arena), Put::Refused);
    assert_eq!(names.put(EngineHash(all[3]), 3, &arena), Put::Copy);
    assert_eq!(take(&mut names, &arena, all[3]), Taken::Copy);
    assert_eq!(take(&mut names, &arena, all[5]), Taken::Last { slot: 5 });
    assert_eq!(names.put(EngineHash(all[noted]), noted as u32, &arena), Put::New);
    for &name in &all {
        take(&mut names, &arena, name);
    }
    assert_eq!(names.len(), 0);
    assert_eq!(names.put_new(&called(&all[1000..1600]), 1000, &arena), 600);
}

/// Something that happens to names.
#[derive(Debug, Clone)]
enum Event {
    /// The blocks from this slot on get the arena's names, or others.
    PutNew {
        first: usize,
        count: usize,
        own: bool,
    },
    Put {
        name: u64,
        slot: usize,
    },
    Take {
        name: u64,
    },
}

/// Slots of the test's arena. Some names stand at two of them.
const SLOTS: usize = 200;
const DIFFERENT: u64 = 150;

fn events() -> impl Strategy<Value = Event> {
    let own = || prop_oneof![4 => prop::strategy::Just(false), 1 => prop::strategy::Just(true)];
    prop_oneof![
        1 => (0..SLOTS, 1..60usize, own()).prop_map(|(first, count, own)| Event::PutNew { first, count, own }),
        1 => (0..DIFFERENT + 20, 0..SLOTS).prop_map(|(name, slot)| Event::Put { name, slot }),
        3 => (0..DIFFERENT + 20).prop_map(|name| Event::Take { name }),
    ]
}

fn put(model: &mut BTreeMap<u64, (u32, u32)>, name: u64, slot: u32) -> Put {
    match model.get_mut(&name) {
        None => {
            model.insert(name, (slot, 1));
            Put::New
        }
        Some((at, copies)) if *at == slot => {
            *copies += 1;
            Put::Copy
        }
        Some(entry) => {
            let from = std::mem::replace(entry, (slot, 1)).0;
            Put::Moved { from }
        }
    }
}

proptest! {
    /// Whatever happens, the names are those of a map.
    #[test]
    fn as_a_map(events in prop::collection::vec(events(), 1..300)) {
        let known: Vec<u64> = (0..SLOTS as u64).map(|slot| slot % DIFFERENT).collect();
        let arena = arena(&known);
        let mut names = Names::default();
        let mut model = BTreeMap::new();
        for event in &events {
            match *event {
                Event::PutNew { first, count, own } => {
                    let stretch = &known[first..(first + count).min(SLOTS)];
                    // Of the names that are not the arena's, some are those of other slots.
                    let wanted: Vec<u64> = stretch.iter().map(|name| name + 17 * u64::from(own)).collect();
                    let noted = names.put_new(&called(&wanted), first as u32, &arena);
                    for (&name, slot) in wanted[..noted].iter().zip(first as u32..) {
                        assert_eq!(put(&mut model, name, slot), Put::New);
                    }
                    if let Some(name) = wanted.get(noted) {
                        assert!(model.contains_key(name), "{name} could have been noted");
                    }
                }
                Event::Put { name, slot } => {
                    let became = names.put(EngineHash(name), slot as u32, &arena);
                    assert_eq!(became, put(&mut model, name, slot as u32), "after {event:?}");
                }
                Event::Take { name } => {
                    let expect = match model.get_mut(&name) {
                        None => Taken::Unknown,
                        Some((_, copies)) if *copies > 1 => {
                            *copies -= 1;
                            Taken::Copy
                        }
                        Some(&mut (slot, _)) => {
                            model.remove(&name);
                            Taken::Last { slot }
                        }
                    };
                    assert_eq!(take(&mut names, &arena, name), expect, "after {event:?}");
                }
            }
            assert_eq!(names.len(), model.len());
            for name in 0..DIFFERENT + 20 {
                assert_eq!(names.get(EngineHash(name), &arena), model.get(&name).map(|entry| entry.0));
            }
        }
        let mut slots: Vec<u32> = names.slots().collect();
        let mut expect: Vec<u32> = model.values().map(|entry| entry.0).collect();
        slots.sort_unstable();
        expect.sort_unstable();
        assert_eq!(slots, expect);
    }
}
