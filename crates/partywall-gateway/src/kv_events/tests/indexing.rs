//! What engines say leads to the same blocks as what requests ask for.

use partywall_core::units::Nanos;
use partywall_routing::cached::Cached;
use partywall_routing::index::{EngineHash, Holder, Index, Limits, Tier};
use partywall_routing::prefix::{Identity, Media, PrefixHash, blocks, content};
use partywall_routing::replica::ReplicaId;

use super::stored;
use crate::kv_events::{Adapter, Applied, Applier, Batch, Event, Group, Owner, Stored};

const IDENTITY: Identity<'static> = Identity { model: "llama", lora: None, cache_salt: None };
const HOLDER: Holder = Holder { replica: ReplicaId(0), rank: 0 };

struct World {
    index: Index,
    applier: Applier,
}

impl World {
    fn new() -> Self {
        Self::of(Owner { model: IDENTITY.model.to_owned(), ..Owner::default() })
    }

    fn of(owner: Owner) -> Self {
        Self { index: Index::new(Limits::default()), applier: Applier::new(HOLDER, owner, 2) }
    }

    fn apply(&mut self, event: Event) -> Applied {
        self.applier.apply(&mut self.index, &Batch { events: vec![event], ..Batch::default() })
    }

    fn cached(&self, prefixes: &[PrefixHash]) -> u32 {
        let mut blocks = Vec::new();
        self.index.cached(prefixes, Nanos::ZERO, &mut blocks);
        blocks.first().copied().unwrap_or(0)
    }
}

fn removed(hash: u64, group: Group) -> Event {
    Event::Removed { hashes: vec![EngineHash(hash)], tier: Tier::Device, group, remote: false }
}

#[test]
fn blocks_are_found_by_the_requests_that_would_use_them() {
    let mut world = World::new();
    let tokens = [1, 2, 3, 4, 5, 6];
    let media = [Media { content: content(b"cat"), at: 3 }];
    let identity = Identity { lora: Some("french"), cache_salt: Some("salt"), ..IDENTITY };
    let named = |stored: Stored| Stored {
        lora: Some(Adapter::Name("french".into())),
        cache_salt: Some("salt".into()),
        media: stored.media,
        ..stored
    };
    let first = Stored {
        media: vec![(1, Media { content: content(b"cat"), at: 1 })],
        ..stored(1, None, &tokens[..4])
    };
    world.apply(Event::Stored(named(first)));
    world.apply(Event::Stored(named(stored(3, Some(2), &tokens[4..]))));
    assert_eq!(world.cached(&blocks(&identity, &tokens, &media, 2)), 3);
    assert_eq!(world.cached(&blocks(&identity, &tokens, &[], 2)), 1);
    assert_eq!(world.cached(&blocks(&IDENTITY, &tokens, &media, 2)), 0);
    world.apply(removed(2, Group::default()));
    assert_eq!(world.cached(&blocks(&identity, &tokens, &media, 2)), 1);
    world.apply(Event::Cleared);
    assert_eq!(world.index.held(), 0);
}

#[test]
fn a_copy_to_the_host_needs_no_tokens() {
    let mut world = World::new();
    world.apply(Event::Stored(stored(1, None, &[1, 2, 3, 4])));
    let copy = Stored { tokens: Vec::new(), tier: Tier::Host, ..stored(1, None, &[1, 2, 3, 4]) };
    world.apply(Event::Stored(copy));
    world.apply(removed(1, Group::default()));
    world.apply(removed(2, Group::default()));
    assert_eq!(world.cached(&blocks(&IDENTITY, &[1, 2, 3, 4], &[], 2)), 2);
}

#[test]
fn a_block_whose_parent_was_lost_is_counted_and_not_believed() {
    let mut world = World::new();
    world.apply(Event::Stored(stored(3, Some(2), &[5, 6])));
    assert_eq!((world.index.counts().orphans, world.index.held()), (1, 0));
}

#[test]
fn only_groups_count_that_hold_a_whole_beginning() {
    let mut world = World::new();
    let group = |number, main| Group { number: Some(number), main };
    let tokens = [1, 2];
    let prompt = blocks(&IDENTITY, &tokens, &[], 2);
    let of = |group| Event::Stored(Stored { group, ..stored(1, None, &tokens) });
    assert_eq!(world.apply(of(group(1, Some(false)))).ignored, 1);
    assert_eq!(world.cached(&prompt), 0);
    assert_eq!(world.apply(of(group(2, Some(true)))).applied, 1);
    assert_eq!(world.cached(&prompt), 1);
    // Removals do not say what their group is.
    assert_eq!(world.apply(removed(1, group(1, None))).ignored, 1);
    assert_eq!(world.apply(removed(1, group(9, None))).ignored, 1);
    assert_eq!(world.cached(&prompt), 1);
    assert_eq!(world.apply(removed(1, group(2, None))).applied, 1);
    assert_eq!(world.cached(&prompt), 0);
    assert_eq!(world.apply(of(group(0, None))).applied, 1);
    assert_eq!(world.apply(of(group(200, None))).ignored, 1);
    let remote = Event::Stored(Stored { remote: true, ..stored(7, None, &[7, 8]) });
    assert_eq!(world.apply(remote).ignored, 1);
}

#[test]
fn blocks_of_another_size_are_seen_and_not_believed() {
    let mut world = World::new();
    let other = Stored { block_tokens: 1, ..stored(1, None, &[1, 2]) };
    let applied = world.apply(Event::Stored(other));
    assert_eq!((applied.other_block_size, applied.block_tokens_seen), (1, Some(1)));
    assert_eq!(world.index.held(), 0);
}

#[test]
fn adapters_are_told_by_name_by_number_or_by_where_the_event_comes_from() {
    let tokens = [1, 2, 3, 4];
    let prompt = |lora| blocks(&Identity { lora, ..IDENTITY }, &tokens, &[], 2);
    let owner = |adapter: Option<&str>| Owner {
        model: IDENTITY.model.to_owned(),
        adapter: adapter.map(str::to_owned),
        adapters: [(1, "french".to_owned()), (2, "legal".to_owned())].into(),
    };
    let named = |name: &str| Some(Adapter::Name(name.to_owned()));
    for (engine, said, whose) in [
        (None, None, None),
        (None, named("french"), Some("french")),
        (None, named("unheard-of"), Some("unheard-of")),
        (None, Some(Adapter::Number(2)), Some("legal")),
        (Some("legal"), None, Some("legal")),
        (Some("legal"), Some(Adapter::Number(1)), Some("french")),
    ] {
        let mut world = World::of(owner(engine));
        world.apply(Event::Stored(Stored { lora: said.clone(), ..stored(1, None, &tokens[..2]) }));
        world.apply(Event::Stored(Stored { lora: said.clone(), ..stored(2, Some(1), &tokens[2..]) }));
        for asked in [None, Some("french"), Some("legal"), Some("unheard-of")] {
            let held = if asked == whose { 2 } else { 0 };
            assert_eq!(
                world.cached(&prompt(asked)),
                held,
                "{engine:?} says {said:?}; {asked:?} is asked for"
            );
        }
    }
}

#[test]
fn an_adapter_with_a_number_that_nobody_knows_is_counted_and_nobodys() {
    let mut world = World::new();
    let told = Stored { lora: Some(Adapter::Number(3)), ..stored(1, None, &[1, 2]) };
    let applied = world.apply(Event::Stored(told));
    assert_eq!((applied.unknown_adapter, applied.applied, world.index.held()), (1, 0, 0));
}
