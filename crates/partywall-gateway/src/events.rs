//! From what engines say about their caches to what is known of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_routing::feed::{Counts, Health, Limits};
use partywall_routing::index::Holder;
use partywall_routing::replica::ReplicaId;
use partywall_routing::router::ModelId;
use tokio::task::AbortHandle;

use crate::clock;
use crate::config::KvEvents;
use crate::knowledge::Knowledge;
use crate::kv_events::{Applied, Applier, Batch, Owner, Sink, Source, SourceError, follow};

/// Events that a replica publishes, and what they are about.
pub(crate) struct Told<'a> {
    /// Where.
    pub events: &'a KvEvents,
    /// Whose blocks.
    pub owner: Owner,
    /// The requests that would find them.
    pub models: Vec<ModelId>,
    /// Tokens in a block.
    pub block_tokens: u32,
}

/// How one engine's feed is.
#[derive(Debug, Clone)]
pub(crate) struct FeedView {
    /// The model or adapter whose blocks it is about.
    pub about: Arc<str>,
    /// The engine's data-parallel rank.
    pub rank: u32,
    pub health: Health,
    pub counts: Counts,
    /// Events that were applied, ignored, or about blocks of another size.
    pub applied: Applied,
    /// Events that could not be understood.
    pub problems: u64,
    /// Blocks that the engine holds, as far as is known.
    pub blocks: usize,
}

/// The feeds of all replicas, numbered for each over its models and their ranks: each is a cache of its own.
pub(crate) struct Feeds {
    knowledge: Arc<Knowledge>,
    feeds: Mutex<BTreeMap<(ReplicaId, u32), Feed>>,
}

struct Feed {
    applier: Applier,
    models: Arc<[ModelId]>,
    view: FeedView,
}

impl Feeds {
    pub(crate) fn new(knowledge: Arc<Knowledge>) -> Self {
        Self { knowledge, feeds: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ReplicaId, u32), Feed>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows all that a replica publishes. In a runtime.
    pub(crate) fn follow(
        self: &Arc<Self>,
        replica: ReplicaId,
        told: Vec<Told<'_>>,
    ) -> Result<Vec<AbortHandle>, SourceError> {
        let mut sources = Vec::new();
        for Told { events, owner, models, block_tokens } in told {
            let (models, about): (Arc<[ModelId]>, Arc<str>) = (Arc::from(models), Arc::from(owner.name()));
            let first = Source {
                replica,
                feed: 0,
                events: events.endpoint.clone(),
                replay: events.replay.clone(),
                topic: events.topic.clone(),
            };
            // Ranks may be listed one by one.
            let listed =
                sources.iter().filter(|(_, feed): &&(Source, Feed)| feed.view.about == about).count();
            for rank in 0..events.ranks {
                let feed = sources.len() as u32;
                let applier = Applier::new(Holder { replica, rank: feed }, owner.clone(), block_tokens);
                let view = FeedView {
                    about: Arc::clone(&about),
                    rank: listed as u32 + rank,
                    health: Health::Waiting,
                    counts: Counts::default(),
                    applied: Applied::default(),
                    problems: 0,
                    blocks: 0,
                };
                let source = Source { feed, ..first.of_rank(rank)? };
                sources.push((source, Feed { applier, models: Arc::clone(&models), view }));
            }
        }
        let start = |(source, feed): (Source, Feed)| {
            self.lock().insert((replica, source.feed), feed);
            let sink: Arc<dyn Sink> = Arc::<Self>::clone(self);
            tokio::spawn(follow(source, Limits::default(), sink, Arc::new(clock::now))).abort_handle()
        };
        Ok(sources.into_iter().map(start).collect())
    }

    /// A replica is gone.
    pub(crate) fn forget(&self, replica: ReplicaId) {
        self.lock().retain(|(of, _), _| *of != replica);
        self.knowledge.set_tells(replica, Vec::new());
    }

    /// All feeds of a replica, by their numbers.
    pub(crate) fn views(&self, replica: ReplicaId) -> Vec<FeedView> {
        let mut views: Vec<FeedView> = {
            let feeds = self.lock();
            feeds.range((replica, 0)..=(replica, u32::MAX)).map(|(_, feed)| feed.view.clone()).collect()
        };
        self.knowledge.told(|index| {
            for (view, rank) in views.iter_mut().zip(0..) {
                view.blocks = index.held_by(Holder { replica, rank });
            }
        });
        views
    }
}

impl Sink for Feeds {
    fn batch(&self, replica: ReplicaId, number: u32, batch: Batch) {
        let mut feeds = self.lock();
        let Some(feed) = feeds.get_mut(&(replica, number)) else { return };
        let applied = self.knowledge.told(|index| feed.applier.apply(index, &batch));
        let all = &mut feed.view.applied;
        all.applied += applied.applied;
        all.ignored += applied.ignored;
        all.other_block_size += applied.other_block_size;
        all.block_tokens_seen = applied.block_tokens_seen.or(all.block_tokens_seen);
        all.unknown_adapter += applied.unknown_adapter;
        feed.view.problems += batch.problems;
    }

    fn clear(&self, replica: ReplicaId, number: u32) {
        self.knowledge.told(|index| index.clear(Holder { replica, rank: number }));
    }

    fn health(&self, replica: ReplicaId, number: u32, health: Health, counts: Counts) {
        let mut feeds = self.lock();
        let Some(feed) = feeds.get_mut(&(replica, number)) else { return };
        feed.view.health = health;
        feed.view.counts = counts;
        // An engine that says nothing is taken to hold what was sent to it, as those that never do. Of several ranks all have to speak: who
        // is silent may be the one that holds it.
        let mut tells: Vec<ModelId> = Vec::new();
        let mut silent: Vec<ModelId> = Vec::new();
        for (_, feed) in feeds.range((replica, 0)..=(replica, u32::MAX)) {
            let speaks = matches!(feed.view.health, Health::Exact | Health::Degraded);
            if speaks { &mut tells } else { &mut silent }.extend(feed.models.iter());
        }
        drop(feeds);
        tells.retain(|model| !silent.contains(model));
        self.knowledge.set_tells(replica, tells);
    }
}

/// What a feed's state is called.
pub(crate) const fn name(health: Health) -> &'static str {
    match health {
        Health::Waiting => "waiting",
        Health::Missing => "missing",
        Health::Exact => "exact",
        Health::Degraded => "degraded",
    }
}
