use std::collections::BTreeMap;

use partywall_core::units::Nanos;
use proptest::prelude::{prop, proptest};

use super::{Approximate, Limits, Predicting};
use crate::cached::Cached;
use crate::index::{EngineHash, Holder, Index, Tier};
use crate::prefix::PrefixHash;
use crate::replica::ReplicaId;

const S: u64 = 1_000_000_000;

fn path(blocks: impl IntoIterator<Item = u64>) -> Vec<PrefixHash> {
    blocks.into_iter().map(|block| PrefixHash(block + 1)).collect()
}

fn cached(known: &impl Cached, prefixes: &[PrefixHash], now_s: u64) -> Vec<u32> {
    let mut blocks = vec![7];
    known.cached(prefixes, Nanos(now_s * S), &mut blocks);
    blocks
}

#[test]
fn a1_what_was_sent_counts_for_its_time() {
    let mut known = Approximate::new(Limits::default());
    let prompt = path(0..4);
    known.sent(ReplicaId(1), &prompt, Nanos::ZERO);
    assert_eq!(cached(&known, &prompt, 120), [0, 4]);
    assert_eq!(cached(&known, &prompt, 121), [0, 0]);
    known.sent(ReplicaId(1), &prompt[..2], Nanos(100 * S));
    assert_eq!(cached(&known, &prompt, 121), [0, 2]);
    known.sent(ReplicaId(0), &path(9..10), Nanos(300 * S));
    assert_eq!(known.blocks(), 1, "what is over is forgotten");
}

#[test]
fn a2_a_beginning_is_unbroken() {
    let mut known = Approximate::new(Limits::default());
    known.sent(ReplicaId(0), &path(0..4), Nanos::ZERO);
    known.sent(ReplicaId(1), &path(2..4), Nanos::ZERO);
    assert_eq!(cached(&known, &path(0..6), 1), [4, 0]);
    assert_eq!(cached(&known, &path(2..6), 1), [2, 2]);
}

#[test]
fn a3_a_full_table_forgets_ends_before_beginnings_and_old_before_new() {
    let mut known = Approximate::new(Limits { blocks: 6, ..Limits::default() });
    known.sent(ReplicaId(0), &path(0..4), Nanos::ZERO);
    known.sent(ReplicaId(0), &path(10..14), Nanos(S));
    assert_eq!(known.blocks(), 6);
    assert_eq!(cached(&known, &path(0..4), 2), [2]);
    assert_eq!(cached(&known, &path(10..14), 2), [4]);
    known.sent(ReplicaId(0), &path(20..40), Nanos(2 * S));
    assert_eq!(cached(&known, &path(20..40), 2), [6]);
    assert_eq!(known.blocks(), 6);
}

#[test]
fn a4_a_replica_that_is_gone_is_forgotten() {
    let mut known = Approximate::new(Limits::default());
    known.sent(ReplicaId(0), &path(0..4), Nanos::ZERO);
    known.sent(ReplicaId(1), &path(0..2), Nanos::ZERO);
    known.remove_replica(ReplicaId(0));
    assert_eq!(cached(&known, &path(0..4), 1), [0, 2]);
}

#[test]
fn a5_brothers_of_a_request_follow_it_before_the_engine_says_anything() {
    let limits = Limits { ttl: super::PREDICTED_TTL, ..Limits::default() };
    let known = Index::new(crate::index::Limits::default());
    let mut both = Predicting { known, predicted: Approximate::new(limits) };
    let prompt = path(0..4);
    both.predicted.sent(ReplicaId(2), &prompt, Nanos::ZERO);
    assert_eq!(cached(&both, &prompt, 5), [0, 0, 4]);
    let stored: Vec<_> = prompt.iter().map(|&prefix| (EngineHash(prefix.0), prefix)).collect();
    both.known.store(Holder { replica: ReplicaId(2), rank: 0 }, Tier::Device, None, &stored[..3]);
    both.known.store(Holder { replica: ReplicaId(3), rank: 0 }, Tier::Device, None, &stored[..1]);
    assert_eq!(cached(&both, &prompt, 5), [0, 0, 4, 1]);
    assert_eq!(cached(&both, &prompt, 6), [0, 0, 3, 1]);
}

proptest! {
    /// With room for everything it answers what a list of when what was sent where does.
    #[test]
    fn as_a_list(events in prop::collection::vec((0..3u32, 0..4u64, 0..12u64, 0..40u64), 1..60)) {
        let mut known = Approximate::new(Limits { blocks: 1000, ttl: Nanos(60 * S) });
        let mut list: BTreeMap<(PrefixHash, u32), u64> = BTreeMap::new();
        let mut now = 0;
        for (replica, kind, length, wait) in events {
            now += wait;
            let prompt = path((0..length).map(|at| at + if at > 2 { kind * 100 } else { 0 }));
            known.sent(ReplicaId(replica), &prompt, Nanos(now * S));
            for &prefix in &prompt {
                list.insert((prefix, replica), now);
            }
            let answer = cached(&known, &prompt, now);
            for replica in 0..3 {
                let counts = |prefix: &&PrefixHash| list.get(&(**prefix, replica)).is_some_and(|last| now - last <= 60);
                let expect = prompt.iter().take_while(counts).count();
                assert_eq!(answer.get(replica as usize).copied().unwrap_or(0) as usize, expect);
            }
        }
    }

    /// However much comes, there is never more than fits.
    #[test]
    fn bounded(events in prop::collection::vec((0..9u32, 0..50u64, 0..30u64), 1..80), limit in 1..40u32) {
        let mut known = Approximate::new(Limits { blocks: limit, ..Limits::default() });
        for (replica, from, length) in events {
            known.sent(ReplicaId(replica), &path(from..from + length), Nanos::ZERO);
            assert!(known.blocks() <= limit as usize && known.entries.len() <= limit as usize);
        }
    }
}
