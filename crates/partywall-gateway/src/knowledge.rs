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
use partywall_routing::router::{Arrival, ModelId};

use crate::config::{MAX_RANKS, MAX_REPLICAS, Routing};

/// What is known of all caches.
pub(crate) struct Knowledge(Mutex<State>);

struct State {
    /// Of replicas that tell of their events.
    index: Index,
    /// What was sent to these a moment ago and cannot have turned up in events yet.
    predicted: Approximate,
    /// What was sent to the others.
    assumed: Approximate,
    /// By replica: the models and adapters of whose blocks it tells.
    tells: Vec<Vec<ModelId>>,
}

impl Knowledge {
    /// Nothing yet.
    pub(crate) fn new(settings: &Routing) -> Self {
        let blocks = u32::try_from(settings.max_blocks).unwrap_or(u32::MAX);
        let limits = index::Limits {
            blocks,
            replicas: MAX_REPLICAS as u32,
            ranks: MAX_RANKS,
            ..index::Limits::default()
        };
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

    /// For which models and adapters a replica tells of its events.
    pub(crate) fn set_tells(&self, replica: ReplicaId, mut tells: Vec<ModelId>) {
        tells.sort_unstable();
        let mut state = self.lock();
        if state.tells.len() <= replica.index() {
            state.tells.resize(replica.index() + 1, Vec::new());
        }
        if let Some(place) = state.tells.get_mut(replica.index()) {
            *place = tells;
        }
    }

    /// Changes what events have told.
    pub(crate) fn told<T>(&self, change: impl FnOnce(&mut Index) -> T) -> T {
        change(&mut self.lock().index)
    }

    /// A prompt for this model or adapter goes to a replica.
    pub(crate) fn sent(&self, model: ModelId, prefixes: &[PrefixHash], replica: ReplicaId, now: Nanos) {
        if prefixes.is_empty() {
            return;
        }
        let mut state = self.lock();
        let table = if state.tells(replica, model) { &mut state.predicted } else { &mut state.assumed };
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
    fn tells(&self, replica: ReplicaId, model: ModelId) -> bool {
        self.tells.get(replica.index()).is_some_and(|tells| tells.binary_search(&model).is_ok())
    }

    /// `told` says which replicas are to be asked for what they told.
    fn cached(
        &self,
        prefixes: &[PrefixHash],
        now: Nanos,
        blocks: &mut Vec<u32>,
        told: impl Fn(ReplicaId) -> bool,
    ) {
        blocks.clear();
        if prefixes.is_empty() {
            return;
        }
        self.assumed.cached(prefixes, now, blocks);
        if self.tells.iter().all(Vec::is_empty) {
            return;
        }
        let (mut exact, mut predicted) = (Vec::new(), Vec::new());
        self.index.cached(prefixes, now, &mut exact);
        self.predicted.cached(prefixes, now, &mut predicted);
        blocks.resize(blocks.len().max(self.tells.len()), 0);
        for (replica, blocks) in blocks.iter_mut().enumerate() {
            if told(ReplicaId(replica as u32)) {
                let of = |list: &[u32]| list.get(replica).copied().unwrap_or(0);
                *blocks = of(&exact).max(of(&predicted));
            }
        }
    }
}

impl Cached for Knowledge {
    /// Of whatever model.
    fn cached(&self, prefixes: &[PrefixHash], now: Nanos, blocks: &mut Vec<u32>) {
        let state = self.lock();
        let told =
            |replica: ReplicaId| state.tells.get(replica.index()).is_some_and(|tells| !tells.is_empty());
        state.cached(prefixes, now, blocks, told);
    }

    /// A replica may tell of one model and not of another.
    fn cached_for(&self, arrival: &Arrival, now: Nanos, blocks: &mut Vec<u32>) {
        let state = self.lock();
        state.cached(&arrival.prefixes, now, blocks, |replica| state.tells(replica, arrival.model));
    }
}

#[cfg(test)]
mod tests {
    use partywall_core::tenant::Class;
    use partywall_routing::index::{EngineHash, Holder, Tier};
    use partywall_routing::router::RequestId;

    use super::*;

    const TOLD: ModelId = ModelId(0);
    const UNTOLD: ModelId = ModelId(1);

    fn held(knowledge: &Knowledge, model: ModelId, prompt: &[PrefixHash], now: u64) -> [u32; 2] {
        let arrival = Arrival {
            id: RequestId(0),
            class: Class::LatencySensitive,
            model,
            prefixes: prompt.to_vec(),
            input_tokens: 0,
            whole: false,
            output_tokens: None,
            affinity: None,
            deadline: None,
        };
        let mut blocks = Vec::new();
        knowledge.cached_for(&arrival, Nanos::from_secs(now), &mut blocks);
        [0, 1].map(|replica| blocks.get(replica).copied().unwrap_or(0))
    }

    #[test]
    fn engines_that_tell_are_believed_and_others_remembered() {
        let knowledge = Knowledge::new(&Routing::default());
        let prompt: Vec<PrefixHash> = (1..=10).map(PrefixHash).collect();
        let held = |now| held(&knowledge, TOLD, &prompt, now);
        knowledge.set_tells(ReplicaId(1), vec![TOLD]);
        knowledge.sent(TOLD, &prompt[..6], ReplicaId(0), Nanos::from_secs(1));
        knowledge.sent(TOLD, &prompt[..6], ReplicaId(1), Nanos::from_secs(1));
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

    #[test]
    fn a_model_of_which_nobody_tells_is_remembered_where_another_is_told() {
        let knowledge = Knowledge::new(&Routing::default());
        let prompt: Vec<PrefixHash> = (1..=10).map(PrefixHash).collect();
        knowledge.set_tells(ReplicaId(1), vec![ModelId(7), TOLD]);
        for model in [TOLD, UNTOLD] {
            knowledge.sent(model, &prompt[..6], ReplicaId(1), Nanos::from_secs(1));
        }
        assert_eq!(held(&knowledge, TOLD, &prompt, 60), [0, 0]);
        assert_eq!(held(&knowledge, UNTOLD, &prompt, 60), [0, 6]);
        // Its engine has gone silent: what it told before is not believed any more.
        let holder = Holder { replica: ReplicaId(1), rank: 1023 };
        knowledge.told(|index| index.store(holder, Tier::Device, None, &[(EngineHash(1), prompt[0])]));
        assert_eq!(held(&knowledge, TOLD, &prompt, 60), [0, 1], "of any of its feeds");
        knowledge.set_tells(ReplicaId(1), vec![ModelId(7)]);
        assert_eq!(held(&knowledge, TOLD, &prompt, 180), [0, 0]);
    }
}
