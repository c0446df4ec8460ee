//! From what engines say about their caches to what is known of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_routing::feed::{Counts, Health, Limits};
use partywall_routing::index::Holder;
use partywall_routing::replica::ReplicaId;
use tokio::task::AbortHandle;

use crate::clock;
use crate::config::KvEvents;
use crate::knowledge::Knowledge;
use crate::kv_events::{Applied, Applier, Batch, Sink, Source, SourceError, follow};

/// How one engine's feed is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeedView {
    pub health: Health,
    pub counts: Counts,
    /// Events that were applied, ignored, or about blocks of another size.
    pub applied: Applied,
    /// Events that could not be understood.
    pub problems: u64,
}

/// The feeds of all replicas.
pub(crate) struct Feeds {
    knowledge: Arc<Knowledge>,
    feeds: Mutex<BTreeMap<(ReplicaId, u32), Feed>>,
}

struct Feed {
    applier: Applier,
    view: FeedView,
}

impl Feeds {
    pub(crate) fn new(knowledge: Arc<Knowledge>) -> Self {
        Self { knowledge, feeds: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ReplicaId, u32), Feed>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows all ranks of a replica, whose prompts are of `model` in blocks of so many tokens. In a runtime.
    pub(crate) fn follow(
        self: &Arc<Self>,
        replica: ReplicaId,
        config: &KvEvents,
        model: &str,
        block_tokens: u32,
    ) -> Result<Vec<AbortHandle>, SourceError> {
        let first = Source {
            replica,
            rank: 0,
            events: config.endpoint.clone(),
            replay: config.replay.clone(),
            topic: config.topic.clone(),
        };
        let sources = (0..config.ranks).map(|rank| first.of_rank(rank)).collect::<Result<Vec<_>, _>>()?;
        let start = |source: Source| {
            let rank = source.rank;
            let applier = Applier::new(Holder { replica, rank }, model, block_tokens);
            let view = FeedView {
                health: Health::Waiting,
                counts: Counts::default(),
                applied: Applied::default(),
                problems: 0,
            };
            self.lock().insert((replica, rank), Feed { applier, view });
            let sink: Arc<dyn Sink> = Arc::<Self>::clone(self);
            tokio::spawn(follow(source, Limits::default(), sink, Arc::new(clock::now))).abort_handle()
        };
        Ok(sources.into_iter().map(start).collect())
    }

    /// A replica is gone.
    pub(crate) fn forget(&self, replica: ReplicaId) {
        self.lock().retain(|(of, _), _| *of != replica);
        self.knowledge.set_tells(replica, false);
    }

    /// All feeds of a replica, by rank.
    pub(crate) fn views(&self, replica: ReplicaId) -> Vec<(u32, FeedView)> {
        let feeds = self.lock();
        feeds.range((replica, 0)..=(replica, u32::MAX)).map(|((_, rank), feed)| (*rank, feed.view)).collect()
    }
}

impl Sink for Feeds {
    fn batch(&self, replica: ReplicaId, rank: u32, batch: Batch) {
        let mut feeds = self.lock();
        let Some(feed) = feeds.get_mut(&(replica, rank)) else { return };
        let applied = self.knowledge.told(|index| feed.applier.apply(index, &batch));
        let all = &mut feed.view.applied;
        all.applied += applied.applied;
        all.ignored += applied.ignored;
        all.other_block_size += applied.other_block_size;
        all.block_tokens_seen = applied.block_tokens_seen.or(all.block_tokens_seen);
        feed.view.problems += batch.problems;
    }

    fn clear(&self, replica: ReplicaId, rank: u32) {
        self.knowledge.told(|index| index.clear(Holder { replica, rank }));
    }

    fn health(&self, replica: ReplicaId, rank: u32, health: Health, counts: Counts) {
        let mut feeds = self.lock();
        let Some(feed) = feeds.get_mut(&(replica, rank)) else { return };
        feed.view.health = health;
        feed.view.counts = counts;
        // An engine that says nothing is taken to hold what was sent to it, as those that never do.
        let speaks = |feed: &Feed| matches!(feed.view.health, Health::Exact | Health::Degraded);
        let tells = feeds.range((replica, 0)..=(replica, u32::MAX)).all(|(_, feed)| speaks(feed));
        drop(feeds);
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
