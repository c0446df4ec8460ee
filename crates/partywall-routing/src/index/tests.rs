use proptest::prelude::{Just, ProptestConfig};
use proptest::prelude::{Strategy, any, prop, prop_oneof, proptest};

use super::reference::Reference;
use super::{Beginning, EngineHash, Holder, Index, Limits, Tier};
use crate::cached::Cached;
use crate::prefix::PrefixHash;
use crate::replica::ReplicaId;
use partywall_core::units::Nanos;

/// A block behind another, by what is in it.
fn child(parent: Option<PrefixHash>, content: u64) -> PrefixHash {
    let seed = parent.map_or(7, |parent| parent.0);
    PrefixHash(
        (seed ^ content.wrapping_mul(0xff51_afd7_ed55_8ccd))
            .wrapping_mul(0xc4ce_b9fe_1a85_ec53)
            .rotate_left(29),
    )
}

fn path(parent: Option<PrefixHash>, contents: &[u64]) -> Vec<PrefixHash> {
    let mut last = parent;
    contents.iter().map(|&content| *last.insert(child(last, content))).collect()
}

/// What a test's engine calls a block: `salt` makes another engine.
fn name(prefix: PrefixHash, salt: u64) -> EngineHash {
    EngineHash(prefix.0.rotate_left(11).wrapping_add(salt))
}

fn named(prefixes: &[PrefixHash], salt: u64) -> Vec<(EngineHash, PrefixHash)> {
    prefixes.iter().map(|&prefix| (name(prefix, salt), prefix)).collect()
}

fn names(prefixes: &[PrefixHash], salt: u64) -> Vec<EngineHash> {
    prefixes.iter().map(|&prefix| name(prefix, salt)).collect()
}

fn holder(replica: u32) -> Holder {
    Holder { replica: ReplicaId(replica), rank: 0 }
}

fn cached(index: &Index, prefixes: &[PrefixHash]) -> Vec<u32> {
    let mut blocks = vec![99];
    index.cached(prefixes, Nanos::ZERO, &mut blocks);
    blocks
}

fn store(index: &mut Index, replica: u32, prefixes: &[PrefixHash]) {
    assert_eq!(index.store(holder(replica), Tier::Device, None, &named(prefixes, 0)), prefixes.len());
}

fn remove(index: &mut Index, replica: u32, prefixes: &[PrefixHash]) -> usize {
    index.remove(holder(replica), Tier::Device, &names(prefixes, 0))
}

#[test]
fn each_replica_is_found_with_what_it_holds_of_the_beginning() {
    let mut index = Index::new(Limits::default());
    let long = path(None, &[1, 2, 3, 4, 5]);
    let other = path(None, &[1, 2, 9, 9]);
    store(&mut index, 0, &long);
    store(&mut index, 2, &long[..3]);
    store(&mut index, 3, &other);
    assert_eq!(cached(&index, &long), [5, 0, 3, 2]);
    assert_eq!(cached(&index, &other), [2, 0, 2, 4]);
    assert_eq!(cached(&index, &long[..1]), [1, 0, 1, 1]);
    assert_eq!(cached(&index, &path(None, &[2])), [0, 0, 0, 0]);
    assert_eq!(cached(&index, &[]), [0, 0, 0, 0]);
    assert_eq!((index.runs(), index.held()), (3, 12));
    index.runs.check();
}

#[test]
fn a_hole_ends_the_beginning_until_it_is_filled() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &[1, 2, 3, 4, 5, 6]);
    store(&mut index, 0, &blocks);
    store(&mut index, 1, &blocks);
    assert_eq!(remove(&mut index, 0, &blocks[2..3]), 1);
    assert_eq!(cached(&index, &blocks), [2, 6]);
    assert_eq!(remove(&mut index, 0, &blocks[..1]), 1);
    assert_eq!(cached(&index, &blocks), [0, 6]);
    store(&mut index, 0, &blocks[..1]);
    assert_eq!(cached(&index, &blocks), [2, 6]);
    let parent = Some(name(blocks[1], 0));
    index.store(holder(0), Tier::Device, parent, &named(&blocks[2..3], 0));
    assert_eq!(cached(&index, &blocks), [6, 6]);
    index.runs.check();
}

#[test]
fn a_hole_whose_block_nobody_held_for_a_while_is_filled_too() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &[1, 2, 3, 4]);
    store(&mut index, 0, &blocks[..2]);
    store(&mut index, 1, &path(None, &[1, 7]));
    index.store(holder(0), Tier::Device, Some(name(blocks[1], 0)), &named(&blocks[2..], 0));
    remove(&mut index, 0, &blocks[1..2]);
    assert_eq!(cached(&index, &blocks), [1, 1]);
    store(&mut index, 0, &blocks[..2]);
    assert_eq!(index.counts().copies, 1);
    assert_eq!(cached(&index, &blocks), [4, 1]);
    index.runs.check();
}

#[test]
fn a_block_stored_twice_is_there_until_it_is_removed_twice() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &[1, 2]);
    store(&mut index, 0, &blocks);
    store(&mut index, 0, &blocks);
    index.store(holder(0), Tier::Device, None, &named(&blocks[..1], 5));
    assert_eq!(index.counts().copies, 2);
    assert_eq!(remove(&mut index, 0, &blocks), 2);
    assert_eq!(cached(&index, &blocks), [2]);
    assert_eq!(remove(&mut index, 0, &blocks), 2);
    assert_eq!(cached(&index, &blocks), [1], "the other name of the first block is still there");
    assert_eq!(index.remove(holder(0), Tier::Device, &[name(blocks[0], 5)]), 1);
    assert_eq!(cached(&index, &blocks), [0]);
    assert_eq!(remove(&mut index, 0, &blocks), 0);
    assert_eq!((index.blocks(), index.held(), index.runs()), (0, 0, 0));
    assert_eq!(index.counts().unknown, 2);
}

#[test]
fn a_block_behind_an_unknown_parent_is_not_taken() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &[1, 2, 3]);
    let parent = Some(name(blocks[0], 0));
    assert_eq!(index.store(holder(0), Tier::Device, parent, &named(&blocks[1..], 0)), 0);
    assert_eq!(index.counts().orphans, 2);
    store(&mut index, 1, &blocks[..1]);
    assert_eq!(index.store(holder(0), Tier::Device, parent, &named(&blocks[1..], 0)), 0, "another's parent");
    store(&mut index, 0, &blocks[..1]);
    assert_eq!(index.store(holder(0), Tier::Device, parent, &named(&blocks[1..], 0)), 2);
    assert_eq!(cached(&index, &blocks), [3, 1]);
    assert_eq!(index.prefix(holder(0), name(blocks[2], 0)), Some(blocks[2]));
    assert_eq!(index.prefix(holder(1), name(blocks[2], 0)), None);
}

#[test]
fn tiers_add_up_from_near_to_far() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &[1, 2, 3, 4, 5]);
    store(&mut index, 0, &blocks[..4]);
    assert_eq!(index.copy(holder(0), Tier::Host, &names(&blocks[2..4], 0)), 2);
    remove(&mut index, 0, &blocks[3..4]);
    index.store(holder(0), Tier::Disk, Some(name(blocks[3], 0)), &named(&blocks[4..], 0));
    let mut beginnings = Vec::new();
    index.beginnings(&blocks, &mut beginnings);
    assert_eq!(beginnings, [Beginning { device: 3, host: 4, disk: 5 }]);
    assert_eq!(cached(&index, &blocks), [5]);
    assert_eq!(index.copy(holder(0), Tier::Host, &[EngineHash(1)]), 0);
    assert_eq!(index.counts().orphans, 1);
    index.remove(holder(0), Tier::Device, &names(&blocks[..3], 0));
    index.beginnings(&blocks, &mut beginnings);
    assert_eq!(beginnings, [Beginning::default()], "the first blocks are nowhere");
    index.clear(holder(0));
    assert_eq!((index.blocks(), index.held(), index.runs()), (0, 0, 0));
    store(&mut index, 0, &blocks);
    assert_eq!(cached(&index, &blocks), [5]);
}

#[test]
fn a_replica_has_what_its_best_rank_has_and_goes_with_all_of_them() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &[1, 2, 3]);
    for (rank, until) in [(0, 1), (3, 3)] {
        let holder = Holder { replica: ReplicaId(1), rank };
        index.store(holder, Tier::Device, None, &named(&blocks[..until], 0));
    }
    store(&mut index, 0, &blocks[..2]);
    assert_eq!(cached(&index, &blocks), [2, 3]);
    index.clear(Holder { replica: ReplicaId(1), rank: 3 });
    assert_eq!(cached(&index, &blocks), [2, 1]);
    index.remove_replica(ReplicaId(1));
    assert_eq!(cached(&index, &blocks), [2, 0]);
    assert_eq!(index.held(), 2);
    store(&mut index, 1, &blocks);
    assert_eq!(cached(&index, &blocks), [2, 3]);
    index.remove_replica(ReplicaId(7));
}

#[test]
fn what_does_not_fit_is_refused_and_the_rest_stays() {
    let limits = Limits { blocks: 40, blocks_per_holder: 12, replicas: 3, ranks: 1 };
    let mut index = Index::new(limits);
    let blocks = path(None, &(0..20).collect::<Vec<_>>());
    assert_eq!(index.store(holder(0), Tier::Device, None, &named(&blocks, 0)), 12);
    assert_eq!(cached(&index, &blocks), [12]);
    let more = path(None, &(100..112).collect::<Vec<_>>());
    assert_eq!(index.store(holder(1), Tier::Device, None, &named(&more, 0)), 12);
    let last = path(None, &(200..230).collect::<Vec<_>>());
    assert_eq!(index.store(holder(2), Tier::Device, None, &named(&last, 0)), 12);
    remove(&mut index, 2, &last[..12]);
    assert_eq!(index.store(holder(3), Tier::Device, None, &named(&last, 0)), 0);
    let rank = Holder { replica: ReplicaId(0), rank: 1 };
    assert_eq!(index.store(rank, Tier::Device, None, &named(&last, 0)), 0);
    assert_eq!(index.counts().refused, 8 + 18 + 30 + 30);
    index.clear(holder(0));
    assert_eq!(cached(&index, &blocks), [0, 0, 0]);
    assert_eq!(index.store(holder(2), Tier::Device, None, &named(&last, 0)), 12);
    index.runs.check();
}

#[test]
fn more_lanes_than_a_word_has_bits() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &(0..50).collect::<Vec<_>>());
    for replica in 0..200 {
        store(&mut index, replica, &blocks[..1 + replica as usize % 50]);
    }
    let expect: Vec<u32> = (0..200).map(|replica| 1 + replica % 50).collect();
    assert_eq!(cached(&index, &blocks), expect);
    for replica in (0..200).step_by(3) {
        index.remove_replica(ReplicaId(replica));
    }
    let left = |replica: u32| if replica.is_multiple_of(3) { 0 } else { 1 + replica % 50 };
    assert_eq!(cached(&index, &blocks), (0..200).map(left).collect::<Vec<_>>());
    index.runs.check();
}

#[test]
fn what_is_generated_block_by_block_stays_together() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &(0..164).collect::<Vec<_>>());
    store(&mut index, 0, &blocks[..100]);
    for at in 100..164 {
        let parent = Some(name(blocks[at - 1], 0));
        index.store(holder(0), Tier::Device, parent, &named(&blocks[at..=at], 0));
    }
    assert_eq!(cached(&index, &blocks), [164]);
    assert_eq!(index.runs(), 3);
}

#[test]
fn an_engine_that_evicts_from_the_end_gives_its_memory_back() {
    let mut index = Index::new(Limits::default());
    let blocks = path(None, &(0..1000).collect::<Vec<_>>());
    store(&mut index, 0, &blocks);
    for (at, block) in blocks.iter().enumerate().rev() {
        remove(&mut index, 0, std::slice::from_ref(block));
        assert_eq!(cached(&index, &blocks), [at as u32]);
        assert!(index.blocks() <= (2 * at).max(16), "{} places for {at} blocks", index.blocks());
    }
    assert_eq!(index.runs(), 0);
}

/// Something that happens to an index.
#[derive(Debug, Clone)]
enum Event {
    Store { holder: Holder, tier: Tier, path: Vec<(u64, usize)>, from: usize, salt: u64 },
    Collide { holder: Holder, path: Vec<(u64, usize)>, names: Vec<u64> },
    Copy { holder: Holder, tier: Tier, path: Vec<(u64, usize)>, salt: u64 },
    Remove { holder: Holder, tier: Tier, path: Vec<(u64, usize)>, keep: usize, step: usize, salt: u64 },
    Clear { holder: Holder },
    RemoveReplica { replica: u32 },
}

const REPLICAS: u32 = 4;

fn holders() -> impl Strategy<Value = Holder> {
    (0..REPLICAS, 0..2u32).prop_map(|(replica, rank)| Holder { replica: ReplicaId(replica), rank })
}

fn tiers() -> impl Strategy<Value = Tier> {
    prop_oneof![6 => Just(Tier::Device), 1 => Just(Tier::Host), 1 => Just(Tier::Disk)]
}

/// Some blocks of the same content each: many paths begin alike, and some are long.
fn paths() -> impl Strategy<Value = Vec<(u64, usize)>> {
    prop::collection::vec((0..3u64, prop_oneof![4 => 1..3usize, 1 => 30..90usize]), 0..5)
}

fn spelled(path: &[(u64, usize)]) -> Vec<u64> {
    path.iter().flat_map(|&(content, times)| std::iter::repeat_n(content, times)).collect()
}

fn events() -> impl Strategy<Value = Event> {
    let salts = || prop_oneof![5 => Just(0u64), 1 => Just(1u64)];
    prop_oneof![
        8 => (holders(), tiers(), paths(), any::<prop::sample::Index>(), salts()).prop_map(
            |(holder, tier, path, from, salt)| {
                let from = from.index(spelled(&path).len() + 1);
                Event::Store { holder, tier, path, from, salt }
            },
        ),
        1 => (holders(), paths(), prop::collection::vec(0..6u64, 0..8))
            .prop_map(|(holder, path, names)| Event::Collide { holder, path, names }),
        1 => (holders(), tiers(), paths(), salts())
            .prop_map(|(holder, tier, path, salt)| Event::Copy { holder, tier, path, salt }),
        5 => (holders(), tiers(), paths(), 0..100usize, 1..4usize, salts()).prop_map(
            |(holder, tier, path, keep, step, salt)| Event::Remove { holder, tier, path, keep, step, salt },
        ),
        1 => holders().prop_map(|holder| Event::Clear { holder }),
        1 => (0..REPLICAS).prop_map(|replica| Event::RemoveReplica { replica }),
    ]
}

fn apply(index: &mut Index, reference: &mut Reference, event: &Event) {
    match event {
        Event::Store { holder, tier, path: of, from, salt } => {
            let contents = spelled(of);
            let all = path(None, &contents);
            let parent = from.checked_sub(1).map(|at| name(all[at], *salt));
            // As the gateway does: a block's place is behind what its parent stands for.
            let behind = parent.and_then(|parent| index.prefix(*holder, parent));
            let blocks = named(&path(behind, &contents[*from..]), *salt);
            index.store(*holder, *tier, parent, &blocks);
            reference.store(*holder, *tier, parent, &blocks);
        }
        Event::Collide { holder, path: of, names } => {
            let blocks: Vec<_> =
                names.iter().map(|&name| EngineHash(name)).zip(path(None, &spelled(of))).collect();
            index.store(*holder, Tier::Device, None, &blocks);
            reference.store(*holder, Tier::Device, None, &blocks);
        }
        Event::Copy { holder, tier, path: of, salt } => {
            let hashes = names(&path(None, &spelled(of)), *salt);
            index.copy(*holder, *tier, &hashes);
            reference.copy(*holder, *tier, &hashes);
        }
        Event::Remove { holder, tier, path: of, keep, step, salt } => {
            let mut hashes: Vec<_> =
                names(&path(None, &spelled(of)), *salt).into_iter().skip(*keep % 8).step_by(*step).collect();
            if keep % 2 == 0 {
                hashes.reverse();
            }
            index.remove(*holder, *tier, &hashes);
            reference.remove(*holder, *tier, &hashes);
        }
        Event::Clear { holder } => {
            index.clear(*holder);
            reference.clear(*holder);
        }
        Event::RemoveReplica { replica } => {
            index.remove_replica(ReplicaId(*replica));
            for rank in 0..2 {
                reference.clear(Holder { replica: ReplicaId(*replica), rank });
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Whatever happens, the index answers what a list of everything would.
    #[test]
    fn exact(events in prop::collection::vec(events(), 1..40), questions in prop::collection::vec(paths(), 6)) {
        let mut index = Index::new(Limits::default());
        let mut reference = Reference::default();
        for event in &events {
            apply(&mut index, &mut reference, event);
            index.runs.check();
            for question in &questions {
                let prefixes = path(None, &spelled(question));
                let mut beginnings = Vec::new();
                index.beginnings(&prefixes, &mut beginnings);
                let mut blocks = Vec::new();
                index.cached(&prefixes, Nanos::ZERO, &mut blocks);
                assert!(blocks.iter().eq(beginnings.iter().map(|beginning| &beginning.disk)));
                beginnings.resize(REPLICAS as usize, Beginning::default());
                assert_eq!(beginnings, reference.beginnings(&prefixes, REPLICAS as usize), "after {event:?}");
            }
        }
        assert_eq!(index.held(), reference.held());
        for replica in 0..REPLICAS {
            index.remove_replica(ReplicaId(replica));
        }
        assert_eq!((index.blocks(), index.held(), index.runs(), index.more.len()), (0, 0, 0, 0));
    }
}
