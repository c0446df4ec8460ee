//! A model of one inference engine.
//!
//! # What is modelled
//!
//! An engine computes prompts one at a time at a fixed number of tokens a second, in the order in which they came, and generates for many
//! requests at once, each a token every so often, without either slowing the other. The first token comes when the prompt is computed. A
//! request that generates takes a **stream**; a prompt is begun only when a stream is free for it, and when the cache has room for all its
//! blocks and for those of the tokens that it will generate. Who is first in the queue is never passed by another, unless
//! [`EngineSettings::by_class`] is set: then latency-sensitive requests go before best-effort ones (vLLM's priority scheduling, which is off
//! there by default too). A prompt that has been begun is finished first.
//!
//! What is held of a prompt's beginning when it is begun is not computed again; at least one token always is. Its other blocks can be found
//! by others from when they are computed ([`Happened::Stored`]). Blocks in use stay, and the others go in the order of their last use when
//! room is needed ([`Happened::Removed`]).
//!
//! Left out: that prompts and tokens share the GPU, chunks of prompts that interleave, preemption, and that the time of a prompt grows faster
//! than its length.
//!
//! # Terms
//!
//! *Work time*: the time that the engine would have spent alone on its GPU. It advances with the wall clock times
//! [`Engine::set_speed`]; all that is planned is planned in it, so that a change of speed moves nothing.
//!
//! # Scenarios
//!
//! - S1: prompts are computed one after the other, tokens come at an even pace, and many requests generate at once.
//! - S2: a beginning that is held is not computed again; at least one token is.
//! - S3: what was used longest ago goes first, ends before beginnings; what is in use stays.
//! - S4: a prompt waits for a stream, and for room.
//! - S5: with `by_class`, latency-sensitive prompts pass best-effort ones that have not been begun.
//! - S6: a cancelled request leaves nothing behind but what it had computed whole.
//! - S7: at half the speed everything takes twice as long from there on; at none it stands.
//! - S8: what is reported late is reported as of when it happened: an engine that is seldom looked at is not slower.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::router::RequestId;

use super::cache::BlockCache;

#[cfg(test)]
mod tests;

/// Requests that may wait in one engine; more are refused. Far beyond what any engine gets through in a minute.
pub const MAX_WAITING: usize = 100_000;

/// What an engine can do.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineSettings {
    /// Prompt tokens that it computes in a second, above 0.
    pub prefill_tokens_per_s: f64,
    /// From one token of a request to its next.
    pub token_time: Nanos,
    /// Requests that it generates for at the same time, at least 1.
    pub streams: u32,
    /// Tokens in a block, at least 1.
    pub block_tokens: u32,
    /// Blocks in its cache, at least 1.
    pub cache_blocks: u64,
    /// Latency-sensitive prompts go before best-effort ones.
    pub by_class: bool,
    /// Tokens of a request between two [`Happened::Tokens`], at least 1: its last ones are reported whatever their number.
    pub report_tokens: u32,
}

impl Default for EngineSettings {
    /// The engine of the project's comparisons: 8 000 prompt tokens a second, 25 ms a token, 64 streams, a cache of a million tokens.
    fn default() -> Self {
        Self {
            prefill_tokens_per_s: 8_000.0,
            token_time: Nanos::from_millis(25),
            streams: 64,
            block_tokens: 512,
            cache_blocks: 1_000_000 / 512,
            by_class: false,
            report_tokens: 1,
        }
    }
}

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// Its name; none with this name may be in the engine.
    pub id: RequestId,
    /// Its prompt's beginning, block by block: at most as many as it has whole blocks.
    pub prefixes: Vec<PrefixHash>,
    /// Tokens of its prompt; 0 counts as 1.
    pub input_tokens: u64,
    /// Tokens that it generates; 0 counts as 1.
    pub output_tokens: u32,
    /// Who it is for.
    pub class: Class,
}

/// Why a request is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// It would not fit into an empty cache.
    #[error("the request needs {needed} blocks and the cache has {capacity}; send a shorter one")]
    TooLong {
        /// For its prompt and what it generates.
        needed: u64,
        /// All.
        capacity: u64,
    },
    /// Too many wait.
    #[error("{MAX_WAITING} requests wait already; send it later")]
    Full,
    /// The engine has a request of this name.
    #[error("there is a request {0:?} already; give every request a name of its own")]
    Known(RequestId),
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Happened {
    /// A prompt is computed and its first token is there.
    FirstToken {
        /// Of which request.
        id: RequestId,
        /// Tokens of the prompt that were held and not computed.
        cached_tokens: u64,
    },
    /// More tokens of a request, none of them its first.
    Tokens {
        /// Of which request.
        id: RequestId,
        /// How many since the last time.
        n: u32,
    },
    /// A request has all its tokens and is gone.
    Finished {
        /// Which.
        id: RequestId,
    },
    /// Blocks can be found now that could not before: a stretch of one prompt, in its order.
    Stored {
        /// The block before them in the prompt; none where they begin it.
        parent: Option<PrefixHash>,
        /// The blocks.
        blocks: Vec<PrefixHash>,
    },
    /// Blocks that cannot be found any more.
    Removed {
        /// Which.
        blocks: Vec<PrefixHash>,
    },
}

/// How full an engine is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EngineLoad {
    /// Requests whose prompt has not been begun.
    pub waiting: usize,
    /// Requests whose prompt is being computed, or that generate.
    pub running: usize,
    /// Blocks in use.
    pub pinned_blocks: u64,
    /// Blocks that hold something.
    pub held_blocks: u64,
    /// All blocks.
    pub cache_blocks: u64,
}

#[derive(Debug, Clone)]
struct Waiting {
    /// In work time.
    since: u64,
    request: Submission,
}

/// A prompt that is being computed.
#[derive(Debug, Clone)]
struct Prefill {
    request: Submission,
    found: usize,
    /// In work time.
    ends: u64,
}

/// A request that generates.
#[derive(Debug, Clone)]
struct Stream {
    prefixes: Vec<PrefixHash>,
    unnamed: u64,
    generated: u32,
    output_tokens: u32,
    /// Its next report, in work time.
    next: u64,
}

/// Work time and how it goes with the wall clock. Nanoseconds.
#[derive(Debug, Clone, Copy)]
struct WorkClock {
    wall: u64,
    work: u64,
    speed: f64,
}

impl WorkClock {
    fn work_at(self, wall: Nanos) -> u64 {
        let passed = wall.0.saturating_sub(self.wall);
        self.work + if self.speed == 1.0 { passed } else { (passed as f64 * self.speed) as u64 }
    }

    /// When the wall clock shows it at the earliest; `None` while the engine stands.
    fn wall_at(self, work: u64) -> Option<Nanos> {
        let left = work.saturating_sub(self.work);
        if left == 0 {
            return Some(Nanos(self.wall));
        }
        if self.speed == 1.0 {
            return Some(Nanos(self.wall.saturating_add(left)));
        }
        if self.speed <= 0.0 {
            return None;
        }
        let mut wall = self.wall.saturating_add((left as f64 / self.speed).ceil() as u64);
        while self.work_at(Nanos(wall)) < work && wall < u64::MAX {
            wall += 1;
        }
        Some(Nanos(wall))
    }
}

/// One engine, stepped from outside.
///
/// The caller calls [`Engine::advance`] when [`Engine::next_event`] has come, and before it submits or cancels. Later is allowed.
#[derive(Debug, Clone)]
pub struct Engine {
    settings: EngineSettings,
    clock: WorkClock,
    /// Up to where everything has happened, in work time.
    reached: u64,
    cache: BlockCache,
    /// By class where that matters, else all in the first.
    queues: [VecDeque<Waiting>; 2],
    prefill: Option<Prefill>,
    streams: BTreeMap<RequestId, Stream>,
    /// When which stream has its next report, in work time.
    reports: BTreeSet<(u64, RequestId)>,
    /// The first in the queue did not fit, and nothing was given back since.
    blocked: bool,
}

impl Engine {
    /// An engine with an empty cache.
    pub fn new(settings: EngineSettings) -> Self {
        Self {
            settings,
            clock: WorkClock { wall: 0, work: 0, speed: 1.0 },
            reached: 0,
            cache: BlockCache::new(settings.cache_blocks),
            queues: [VecDeque::new(), VecDeque::new()],
            prefill: None,
            streams: BTreeMap::new(),
            reports: BTreeSet::new(),
            blocked: false,
        }
    }

    /// What it can do.
    pub fn settings(&self) -> &EngineSettings {
        &self.settings
    }

    /// How full it is.
    pub fn load(&self) -> EngineLoad {
        EngineLoad {
            waiting: self.queues.iter().map(VecDeque::len).sum(),
            running: self.streams.len() + usize::from(self.prefill.is_some()),
            pinned_blocks: self.cache.pinned(),
            held_blocks: self.cache.held(),
            cache_blocks: self.cache.capacity(),
        }
    }

    /// Every block that can be found, in the order of the names.
    pub fn blocks(&self) -> impl Iterator<Item = PrefixHash> + '_ {
        self.cache.names()
    }

    /// Takes a request. It is begun with the next [`Engine::advance`] at the earliest.
    ///
    /// # Errors
    /// It can never be served, or not now; the engine is as it was.
    pub fn submit(&mut self, now: Nanos, mut request: Submission) -> Result<(), SubmitError> {
        request.input_tokens = request.input_tokens.max(1);
        request.output_tokens = request.output_tokens.max(1);
        request.prefixes.truncate((request.input_tokens / u64::from(self.settings.block_tokens)) as usize);
        let (needed, capacity) = (self.blocks_of(&request), self.cache.capacity());
        if needed > capacity {
            return Err(SubmitError::TooLong { needed, capacity });
        }
        if self.queues.iter().map(VecDeque::len).sum::<usize>() >= MAX_WAITING {
            return Err(SubmitError::Full);
        }
        if self.has(request.id) {
            return Err(SubmitError::Known(request.id));
        }
        let queue = usize::from(self.settings.by_class && request.class == Class::BestEffort);
        self.queues[queue].push_back(Waiting { since: self.clock.work_at(now), request });
        Ok(())
    }

    /// Drops a request, wherever it is. Whether there was one.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        for queue in &mut self.queues {
            if let Some(place) = queue.iter().position(|waiting| waiting.request.id == id) {
                queue.remove(place);
                self.blocked = false;
                return true;
            }
        }
        if self.prefill.as_ref().is_some_and(|prefill| prefill.request.id == id)
            && let Some(prefill) = self.prefill.take()
        {
            let unnamed = self.blocks_of(&prefill.request) - prefill.found as u64;
            self.cache.release(&prefill.request.prefixes[..prefill.found], unnamed);
            self.blocked = false;
            return true;
        }
        self.end_stream(id)
    }

    /// How fast it is from now on: 1 alone on its GPU, 0 while it stands. Negative and NaN count as 0.
    pub fn set_speed(&mut self, now: Nanos, speed: f64) {
        self.clock = WorkClock { wall: now.0, work: self.clock.work_at(now), speed: speed.max(0.0) };
    }

    /// Drops every block that is not in use.
    pub fn clear_cache(&mut self, happened: &mut Vec<Happened>) {
        let mut blocks = Vec::new();
        self.cache.clear(&mut blocks);
        if !blocks.is_empty() {
            happened.push(Happened::Removed { blocks });
        }
        self.blocked = false;
    }

    /// When something happens next; `None` when nothing will unless it is told to.
    pub fn next_event(&self) -> Option<Nanos> {
        self.next_work().and_then(|work| self.clock.wall_at(work))
    }

    /// Lets everything happen that does until `now`, and adds what that was to `happened`, in its order.
    pub fn advance(&mut self, now: Nanos, happened: &mut Vec<Happened>) {
        let until = self.clock.work_at(now);
        while let Some(next) = self.next_work().filter(|next| *next <= until) {
            self.reached = self.reached.max(next);
            if self.prefill.as_ref().is_some_and(|prefill| prefill.ends <= self.reached) {
                self.end_prefill(happened);
            } else if self.reports.first().is_some_and(|(at, _)| *at <= self.reached) {
                self.report(happened);
            } else {
                self.begin_prefill(happened);
            }
        }
        self.reached = self.reached.max(until);
    }

    fn has(&self, id: RequestId) -> bool {
        self.streams.contains_key(&id)
            || self.prefill.as_ref().is_some_and(|prefill| prefill.request.id == id)
            || self.queues.iter().flatten().any(|waiting| waiting.request.id == id)
    }

    /// Blocks that a request uses by the time it ends.
    fn blocks_of(&self, request: &Submission) -> u64 {
        (request.input_tokens + u64::from(request.output_tokens))
            .div_ceil(u64::from(self.settings.block_tokens))
    }

    /// In work time.
    fn next_work(&self) -> Option<u64> {
        let ends = self.prefill.as_ref().map(|prefill| prefill.ends);
        let report = self.reports.first().map(|(at, _)| *at);
        let begins = self.next_in_queue().map(|(_, at)| at);
        [ends, report, begins].into_iter().flatten().min()
    }

    /// The queue whose first prompt is begun next, and when in work time.
    fn next_in_queue(&self) -> Option<(usize, u64)> {
        if self.prefill.is_some() || self.blocked || self.streams.len() >= self.settings.streams as usize {
            return None;
        }
        let begins = |queue: usize| Some((queue, self.queues[queue].front()?.since.max(self.reached)));
        [begins(0), begins(1)].into_iter().flatten().min_by_key(|(_, at)| *at)
    }

    fn begin_prefill(&mut self, happened: &mut Vec<Happened>) {
        let Some((queue, at)) = self.next_in_queue() else { return };
        let Some(waiting) = self.queues[queue].front() else { return };
        let (request, block) = (&waiting.request, u64::from(self.settings.block_tokens));
        // At least one token is computed, so that there is a next one to choose.
        let most = ((request.input_tokens - 1) / block) as usize;
        let found = self.cache.matched(&request.prefixes).min(most);
        let more = self.blocks_of(request) - found as u64;
        let mut removed = Vec::new();
        if !self.cache.reserve(&request.prefixes[..found], more, &mut removed) {
            self.blocked = true;
            return;
        }
        if !removed.is_empty() {
            happened.push(Happened::Removed { blocks: removed });
        }
        let computed = request.input_tokens - found as u64 * block;
        let took = (computed as f64 / self.settings.prefill_tokens_per_s * 1e9).round() as u64;
        if let Some(Waiting { request, .. }) = self.queues[queue].pop_front() {
            self.prefill = Some(Prefill { request, found, ends: at + took });
        }
    }

    fn end_prefill(&mut self, happened: &mut Vec<Happened>) {
        let Some(Prefill { request, found, ends }) = self.prefill.take() else { return };
        let mut stored = Vec::new();
        self.cache.name(&request.prefixes[found..], &mut stored);
        if !stored.is_empty() {
            let parent = request.prefixes[..request.prefixes.len() - stored.len()].last().copied();
            happened.push(Happened::Stored { parent, blocks: stored });
        }
        let id = request.id;
        let cached_tokens = found as u64 * u64::from(self.settings.block_tokens);
        happened.push(Happened::FirstToken { id, cached_tokens });
        let unnamed = self.blocks_of(&request) - request.prefixes.len() as u64;
        let (prefixes, output_tokens) = (request.prefixes, request.output_tokens);
        self.streams.insert(id, Stream { prefixes, unnamed, generated: 1, output_tokens, next: ends });
        self.plan_report(id, happened);
    }

    fn report(&mut self, happened: &mut Vec<Happened>) {
        let Some((_, id)) = self.reports.pop_first() else { return };
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let n = self.settings.report_tokens.max(1).min(stream.output_tokens - stream.generated);
        stream.generated += n;
        happened.push(Happened::Tokens { id, n });
        self.plan_report(id, happened);
    }

    /// Plans the next report of a stream that has just had one, or ends it.
    fn plan_report(&mut self, id: RequestId, happened: &mut Vec<Happened>) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let tokens = self.settings.report_tokens.max(1).min(stream.output_tokens - stream.generated);
        if tokens == 0 {
            self.end_stream(id);
            happened.push(Happened::Finished { id });
            return;
        }
        stream.next += u64::from(tokens) * self.settings.token_time.0;
        self.reports.insert((stream.next, id));
    }

    fn end_stream(&mut self, id: RequestId) -> bool {
        let Some(stream) = self.streams.remove(&id) else { return false };
        self.reports.remove(&(stream.next, id));
        self.cache.release(&stream.prefixes, stream.unnamed);
        self.blocked = false;
        true
    }
}
