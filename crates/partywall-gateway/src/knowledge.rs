//! What is known of the replicas' caches: exactly where an engine tells of its events, from what was sent to it where it does not.
//!
//! One lock, apart from the router's: whoever decides holds both for some microseconds, whoever reads events only this one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_core::units::Nanos;
use partywall_routing::approximate::{Approximate, Limits, PREDICTED_TTL};
use partywall_routing::cached::Cached;
use partywall_routing::index::{self, Index};
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::ReplicaId;

use crate::config::{MAX_REPLICAS, Routing};

/// What is known of all caches.
pub(crate) struct Knowledge(Mutex<State>);

struct State {
    /// Of replicas that tell of their events.
    index: Index,
    /// What was sent to these a moment ago and cannot have turned up in events yet.
    predicted: Approximate,
    /// What was sent to the others.
    assumed: Approximate,
    /// By replica: whether it tells.
    tells: Vec<bool>,
}

impl Knowledge {
    /// Nothing yet.
    pub(crate) fn new(settings: &Routing) -> Self {
        let blocks = u32::try_from(settings.max_blocks).unwrap_or(u32::MAX);
        let limits = index::Limits { blocks, replicas: MAX_REPLICAS as u32, ..index::Limits::default() };
        Self(Mutex::new(State {
            index: Index::new(limits),
            predicted: Approximate::new(Limits { blocks, ttl: PREDICTED_TTL }),
            assumed: Approximate::new(Limits { blocks, ttl: settings.assumed_for }),
            tells: Vec::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a replica tells of its events.
    pub(crate) fn set_tells(&self, replica: ReplicaId, tells: bool) {
        let mut state = self.lock();
        if state.tells.len() <= replica.index() {
            state.tells.resize(replica.index() + 1, false);
        }
        if let Some(place) = state.tells.get_mut(replica.index()) {
            *place = tells;
        }
    }

    /// Changes what events have told.
    pub(crate) fn told<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        change(&mut self.lock().index)
    }

    /// A prompt goes to a replica.
    pub(crate) fn sent(&self, prefixes: &[PrefixHash], replica: ReplicaId, now: Nanos) {
        if prefixes.is_empty() {
            return;
        }
        let mut state = self.lock();
        let table = if state.tells(replica) { &mut state.predicted } else { &mut state.assumed };
        table.sent(replica, prefixes, now);
    }

    /// A replica is gone.
    pub(crate) fn forget(&self, replica: ReplicaId) {
        let mut state = self.lock();
        state.index.remove_replica(replica);
        state.predicted.remove_replica(replica);
        state.assumed.remove_replica(replica);
    }

    /// Blocks of which anything is known.
    pub(crate) fn blocks(&self) -> u64 {
        let state = self.lock();
        (state.index.blocks() + state.assumed.blocks()) as u64
    }
}

impl State {
    fn tells(&self, replica: ReplicaId) -> bool {
        self.tells.get(replica.index()).copied().unwrap_or(false)
    }
}

impl Cached for Knowledge {
    fn cached(&self, prefixes: &[PrefixHash], now: Nanos, blocks: &mut Vec<u32>) {
        blocks.clear();
        if prefixes.is_empty() {
            return;
        }
        let state = self.lock();
        state.assumed.cached(prefixes, now, blocks);
        if !state.tells.contains(&true) {
            return;
        }
        let (mut told, mut predicted) = (Vec::new(), Vec::new());
        state.index.cached(prefixes, now, &mut told);
        state.predicted.cached(prefixes, now, &mut predicted);
        blocks.resize(blocks.len().max(state.tells.len()), 0);
        for (replica, blocks) in blocks.iter_mut().enumerate() {
            if state.tells.get(replica) == Some(&true) {
                let of = |list: &[u32]| list.get(replica).copied().unwrap_or(0);
                *blocks = of(&told).max(of(&predicted));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use partywall_routing::index::{EngineHash, Holder, Tier};

    use super::*;

    #[test]
    fn engines_that_tell_are_believed_and_others_remembered() {
        let knowledge = Knowledge::new(&Routing::default());
        let prompt: Vec<PrefixHash> = (1..=10).map(PrefixHash).collect();
        let held = |now| {
            let mut blocks = Vec::new();
            knowledge.cached(&prompt, Nanos::from_secs(now), &mut blocks);
            [0, 1].map(|replica| blocks.get(replica).copied().unwrap_or(0))
        };
        knowledge.set_tells(ReplicaId(1), true);
        knowledge.sent(&prompt[..6], ReplicaId(0), Nanos::from_secs(1));
        knowledge.sent(&prompt[..6], ReplicaId(1), Nanos::from_secs(1));
        assert_eq!(held(2), [6, 6]);
        assert_eq!(held(60), [6, 0], "it should have told by then");
        let holder = Holder { replica: ReplicaId(1), rank: 0 };
        let blocks: Vec<_> = prompt[..4].iter().map(|prefix| (EngineHash(prefix.0 + 100), *prefix)).collect();
        knowledge.told(|index| index.store(holder, Tier::Device, None, &blocks));
        assert_eq!(held(60), [6, 4]);
        assert_eq!(held(200), [0, 4]);
        knowledge.forget(ReplicaId(1));
        assert_eq!(held(60), [6, 0]);
    }
}
