//! The indices, each behind the same calls.

use std::time::{Duration, Instant};

use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, WorkerWithDpRank,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use partywall_core::units::Nanos;
use partywall_routing::cached::Cached;
use partywall_routing::index::{EngineHash, Holder, Index, Limits, Tier};
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::ReplicaId;

use crate::trace::{BLOCK_TOKENS, Request, Step};

/// How long what was applied took.
#[derive(Default, Clone, Copy)]
pub struct Applied {
    pub storing: Duration,
    pub removing: Duration,
    /// Where the two cannot be told apart.
    pub both: Duration,
}

/// An index that is measured.
pub trait Subject {
    /// Puts prompts into the form that the index is asked in.
    fn ask(&mut self, requests: &[Request]);
    /// Looks up the prompt at this place of those that were put; the time it took. The answers go to `blocks`, by replica.
    fn look(&mut self, at: usize, blocks: &mut Vec<u32>) -> Duration;
    /// Does what engines did.
    fn apply(&mut self, steps: &[Step]) -> Applied;
}

/// This project's.
pub struct Ours {
    index: Index,
    prompts: Vec<Vec<PrefixHash>>,
}

impl Ours {
    pub fn new(_: u32) -> Self {
        Self { index: Index::new(Limits::default()), prompts: Vec::new() }
    }
}

impl Subject for Ours {
    fn ask(&mut self, requests: &[Request]) {
        let prompt = |request: &Request| request.prefixes.iter().copied().map(PrefixHash).collect();
        self.prompts = requests.iter().map(prompt).collect();
    }

    fn look(&mut self, at: usize, blocks: &mut Vec<u32>) -> Duration {
        let prompt = &self.prompts[at];
        let start = Instant::now();
        self.index.cached(prompt, Nanos::ZERO, blocks);
        start.elapsed()
    }

    fn apply(&mut self, steps: &[Step]) -> Applied {
        let mut applied = Applied::default();
        for step in steps {
            let holder = Holder { replica: ReplicaId(step.replica), rank: 0 };
            let removed: Vec<_> = step.removed.iter().copied().map(EngineHash).collect();
            let stored: Vec<_> =
                step.stored.iter().map(|block| (EngineHash(block.0), PrefixHash(block.1))).collect();
            let start = Instant::now();
            self.index.remove(holder, Tier::Device, &removed);
            let between = Instant::now();
            self.index.store(holder, Tier::Device, step.parent.map(EngineHash), &stored);
            applied.storing += between.elapsed();
            applied.removing += between - start;
        }
        applied
    }
}

/// The crate `kv-index`.
pub struct Chain {
    index: ChainIndex,
    workers: Vec<u32>,
    maps: Vec<ChainBlockMap>,
    prompts: Vec<Vec<ContentHash>>,
}

impl Chain {
    pub fn new(replicas: u32) -> Self {
        let index = ChainIndex::with_max_workers(replicas as usize);
        let worker = |replica: u32| index.intern_worker(&replica.to_string()).expect("room for all replicas");
        let workers = (0..replicas).map(worker).collect();
        let maps = (0..replicas).map(|_| ChainBlockMap::new()).collect();
        Self { index, workers, maps, prompts: Vec::new() }
    }
}

impl Subject for Chain {
    fn ask(&mut self, requests: &[Request]) {
        let prompt = |request: &Request| request.contents.iter().copied().map(ContentHash).collect();
        self.prompts = requests.iter().map(prompt).collect();
    }

    fn look(&mut self, at: usize, blocks: &mut Vec<u32>) -> Duration {
        let prompt: &[ContentHash] = &self.prompts[at];
        let start = Instant::now();
        blocks.clear();
        blocks.resize(self.maps.len(), 0);
        self.index.score_into(
            prompt,
            |content| content.0,
            false,
            |worker, depth| {
                blocks[worker as usize] = depth;
            },
        );
        start.elapsed()
    }

    fn apply(&mut self, steps: &[Step]) -> Applied {
        let mut applied = Applied::default();
        for step in steps {
            let worker = self.workers[step.replica as usize];
            let map = &mut self.maps[step.replica as usize];
            let removed: Vec<_> = step.removed.iter().copied().map(SequenceHash).collect();
            let stored: Vec<_> = step
                .stored
                .iter()
                .map(|block| StoredBlock {
                    seq_hash: SequenceHash(block.0),
                    content_hash: ContentHash(block.2),
                })
                .collect();
            let start = Instant::now();
            self.index.apply_removed(worker, &removed, map);
            let between = Instant::now();
            self.index
                .apply_stored(worker, &stored, step.parent.map(SequenceHash), map)
                .expect("the parent is there");
            applied.storing += between.elapsed();
            applied.removing += between - start;
        }
        applied
    }
}

fn dynamo_prompts(requests: &[Request]) -> Vec<Vec<LocalBlockHash>> {
    let prompt = |request: &Request| request.contents.iter().copied().map(LocalBlockHash).collect();
    requests.iter().map(prompt).collect()
}

fn dynamo_event(replica: u32, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(u64::from(replica), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

fn dynamo_events(step: &Step) -> (Option<RouterEvent>, Option<RouterEvent>) {
    let removed = step.removed.iter().copied().map(ExternalSequenceBlockHash).collect::<Vec<_>>();
    let blocks = step
        .stored
        .iter()
        .map(|block| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(block.0),
            tokens_hash: LocalBlockHash(block.2),
            mm_extra_info: None,
        })
        .collect::<Vec<_>>();
    let start_position = step.stored.first().map(|block| block.3);
    let store =
        KvCacheStoreData { parent_hash: step.parent.map(ExternalSequenceBlockHash), start_position, blocks };
    (
        (!removed.is_empty()).then(|| {
            dynamo_event(step.replica, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: removed }))
        }),
        (!store.blocks.is_empty()).then(|| dynamo_event(step.replica, KvCacheEventData::Stored(store))),
    )
}

/// The concurrent compressed tree of the crate `dynamo-kv-router`, its default, with one thread for events.
pub struct Crtc {
    index: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: tokio::runtime::Runtime,
    prompts: Vec<Vec<LocalBlockHash>>,
}

impl Crtc {
    pub fn new(_: u32) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let tree = ConcurrentRadixTreeCompressed::new();
        Self { index: ThreadPoolIndexer::new(tree, 1, BLOCK_TOKENS as u32), runtime, prompts: Vec::new() }
    }
}

impl Subject for Crtc {
    fn ask(&mut self, requests: &[Request]) {
        self.prompts = dynamo_prompts(requests);
    }

    fn look(&mut self, at: usize, blocks: &mut Vec<u32>) -> Duration {
        let tree = self.index.backend();
        let start = Instant::now();
        let scores = tree.find_matches(&self.prompts[at], false);
        let took = start.elapsed();
        answers(scores.scores, blocks);
        took
    }

    fn apply(&mut self, steps: &[Step]) -> Applied {
        let events: Vec<_> = steps
            .iter()
            .flat_map(|step| {
                let (removed, stored) = dynamo_events(step);
                removed.into_iter().chain(stored)
            })
            .collect();
        let start = Instant::now();
        for event in events {
            self.index.enqueue_event(event).expect("the thread runs");
        }
        self.runtime.block_on(self.index.flush());
        Applied { both: start.elapsed(), ..Applied::default() }
    }
}

/// The tree for one thread of the crate `dynamo-kv-router`.
pub struct Radix {
    tree: RadixTree,
    prompts: Vec<Vec<LocalBlockHash>>,
}

impl Radix {
    pub fn new(_: u32) -> Self {
        Self { tree: RadixTree::new(), prompts: Vec::new() }
    }
}

impl Subject for Radix {
    fn ask(&mut self, requests: &[Request]) {
        self.prompts = dynamo_prompts(requests);
    }

    fn look(&mut self, at: usize, blocks: &mut Vec<u32>) -> Duration {
        // It takes the prompt by value: copying it is not part of the lookup.
        let prompt = self.prompts[at].clone();
        let start = Instant::now();
        let scores = self.tree.find_matches(prompt, false);
        let took = start.elapsed();
        answers(scores.scores, blocks);
        took
    }

    fn apply(&mut self, steps: &[Step]) -> Applied {
        let mut applied = Applied::default();
        for step in steps {
            let (removed, stored) = dynamo_events(step);
            let start = Instant::now();
            if let Some(event) = removed {
                self.tree.apply_event(event).expect("known blocks");
            }
            let between = Instant::now();
            if let Some(event) = stored {
                self.tree.apply_event(event).expect("the parent is there");
            }
            applied.storing += between.elapsed();
            applied.removing += between - start;
        }
        applied
    }
}

fn answers(scores: impl IntoIterator<Item = (WorkerWithDpRank, u32)>, blocks: &mut Vec<u32>) {
    blocks.clear();
    for (worker, depth) in scores {
        let at = worker.worker_id as usize;
        if at >= blocks.len() {
            blocks.resize(at + 1, 0);
        }
        blocks[at] = depth;
    }
}
