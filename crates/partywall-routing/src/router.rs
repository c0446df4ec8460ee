//! Where each request goes and when: the decider around a policy.
//!
//! # Problem
//!
//! A policy compares replicas for one request. Somebody has to know what each of them has to do, whom they may be asked for, what is
//! expected of their caches, which requests wait, and what became of all of them, without ever counting one twice or forgetting one: a
//! request that is counted for ever keeps others away from its replica for ever.
//!
//! # Approach
//!
//! The router keeps what it sent by name until it hears of its end. What a replica has to do is [`crate::replica::Load`] with the order of its
//! prompts; what would be pushed out of its cache is a sketch of its order of use; when a request may go at all is
//! [`crate::admission`]'s. What replicas hold is not kept here but asked of an index ([`Cached`]).
//!
//! The caller says what comes ([`Router::arrive`]) and what becomes of it ([`Router::first_token`], [`Router::tokens`], [`Router::ended`],
//! [`Router::failed`], [`Router::cancel`]), and asks after each of these, and when [`Router::next_poll`] has come, whether a held request may
//! go now ([`Router::poll`]). Reports about requests that are not known do nothing: they may be late.
//!
//! # Scenarios
//!
//! - S1: a request goes to a replica that serves its model and is available, or is refused where none ever does.
//! - S2: what a replica has to do grows with what it is sent and is nothing when all of that has ended, however it ended.
//! - S3: a replica that is gone gives back its requests, and its number is given again.
//! - S4: requests that come together and begin alike find each other before any is computed.
//! - S5: the expected time of the first token is exact where nothing unexpected happens.
//! - S6: names are given once.

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::admission::{AdmissionSettings, Held, Queues};
use crate::backlog::{Backlog, Passed, Waiting};
use crate::cached::Cached;
use crate::eviction::{Contents, Reuse};
use crate::policy::{Candidate, Policy, Request};
use crate::prefix::PrefixHash;
use crate::replica::{Capacity, GpuState, Load, ReplicaId};
use crate::traffic::{Demand, Meter};

#[cfg(test)]
mod tests;

/// Replicas that a router may have. A decision looks at all of them, at some fifty nanoseconds each.
pub const MAX_REPLICAS: usize = 16_384;

/// How long a request generates before the first one has ended: 400 tokens of 25 ms.
const FIRST_GENERATION: Nanos = Nanos::from_secs(10);

/// The caller's name for a request, given once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// The caller's number for a model, or for an adapter of one: a replica serves some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ModelId(pub u32);

/// A request that comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Arrival {
    /// Its name.
    pub id: RequestId,
    /// Who it is for.
    pub class: Class,
    /// The model that it asks for.
    pub model: ModelId,
    /// Its prompt's beginning, block by block; only whole blocks.
    pub prefixes: Vec<PrefixHash>,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Its answer comes whole: its first token is not heard of before its end.
    pub whole: bool,
    /// Tokens that it generates at most, where that is known.
    pub output_tokens: Option<u32>,
    /// What keeps requests together that no prefix does, such as a conversation's id.
    pub affinity: Option<u64>,
    /// It is refused rather than sent after this.
    pub deadline: Option<Nanos>,
}

/// Where a request goes and why: what a response header and a line of the log show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Placement {
    /// The request.
    pub id: RequestId,
    /// The replica.
    pub replica: ReplicaId,
    /// Blocks of its prompt that are expected to be held there.
    pub cached_blocks: u32,
    /// What the policy made of it; its unit is the policy's.
    pub cost: f64,
    /// From now to its first token.
    pub expected_ttft: Nanos,
    /// From now until the replica begins with it.
    pub backlog: Nanos,
    /// Blocks that latency-sensitive requests would want again and that it pushes out.
    pub evicted_blocks: f64,
    /// How long it was held.
    pub held_for: Nanos,
}

/// Why a request is not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No replica that is known serves its model.
    #[error("no replica serves this model; add one that does")]
    NoReplica,
    /// Too many are held.
    #[error("{held} requests are held already; send it later")]
    Full {
        /// That many.
        held: usize,
    },
    /// It was held for as long as its class allows.
    #[error("no replica had room for it in {held_for}; send it later, or add replicas")]
    TimedOut {
        /// How long.
        held_for: Nanos,
    },
    /// Its deadline passed while it was held.
    #[error("its deadline passed after it was held for {held_for}")]
    Deadline {
        /// How long.
        held_for: Nanos,
    },
    /// There is a request of this name already.
    #[error("there is a request of this name already; give every request a name of its own")]
    Known,
}

/// What is to be done with a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Verdict {
    /// Send it there.
    Send(Placement),
    /// Hold it: [`Router::poll`] says when it may go.
    Held,
    /// It is not served.
    Refused(Refusal),
}

/// Why a replica is not taken.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum RouterError {
    /// Too many.
    #[error("there are {MAX_REPLICAS} replicas already; remove one first")]
    TooManyReplicas,
    /// It cannot do anything.
    #[error(
        "a replica needs more than 0 prompt tokens a second and at least one stream, one token in a block and one block; it has {0:?}"
    )]
    Capacity(Capacity),
}

/// What is decided by parameters.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RouterSettings {
    /// When a request may go.
    pub admission: AdmissionSettings,
}

#[derive(Debug, Clone)]
struct Replica {
    capacity: Capacity,
    /// In order.
    models: Vec<ModelId>,
    gpu: GpuState,
    available: bool,
    backlog: Backlog,
    contents: Contents,
    meter: Meter,
}

impl Replica {
    fn serves(&self, model: ModelId) -> bool {
        self.models.binary_search(&model).is_ok()
    }
}

/// A request that was sent.
#[derive(Debug, Clone)]
struct Sent {
    replica: ReplicaId,
    class: Class,
    input_tokens: u64,
    /// Those of its prompt that are expected to be held.
    cached_tokens: u64,
    /// `None` until its first token.
    first_token: Option<Nanos>,
    output_tokens: u32,
}

/// Decides for each request.
pub struct Router {
    policy: Box<dyn Policy>,
    settings: RouterSettings,
    replicas: Vec<Option<Replica>>,
    sent: BTreeMap<RequestId, Sent>,
    held: Queues,
    /// When a held request may fit, as far as can be foreseen.
    next_room: Option<Nanos>,
    /// How long a request generates on average.
    generation: Nanos,
    reuse: Reuse,
    /// Kept for their memory.
    blocks: Vec<u32>,
    candidates: Vec<Candidate>,
    passed: Vec<Passed>,
}

impl Router {
    /// Without replicas.
    pub fn new(policy: Box<dyn Policy>, settings: RouterSettings) -> Self {
        Self {
            policy,
            settings,
            replicas: Vec::new(),
            sent: BTreeMap::new(),
            held: Queues::default(),
            next_room: None,
            generation: FIRST_GENERATION,
            reuse: Reuse::default(),
            blocks: Vec::new(),
            candidates: Vec::new(),
            passed: Vec::new(),
        }
    }

    /// The policy's name.
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// A replica that serves these models, available from now on.
    ///
    /// # Errors
    /// It cannot do anything, or there are too many.
    pub fn add_replica(
        &mut self,
        now: Nanos,
        capacity: Capacity,
        models: &[ModelId],
    ) -> Result<ReplicaId, RouterError> {
        check(&capacity)?;
        let mut models = models.to_vec();
        models.sort_unstable();
        let replica = Replica {
            capacity,
            models,
            gpu: GpuState::default(),
            available: true,
            backlog: Backlog::default(),
            contents: Contents::new(capacity.cache_blocks),
            meter: Meter::new(now),
        };
        let index = match self.replicas.iter().position(Option::is_none) {
            Some(index) => index,
            None if self.replicas.len() < MAX_REPLICAS => {
                self.replicas.push(None);
                self.replicas.len() - 1
            }
            None => return Err(RouterError::TooManyReplicas),
        };
        self.replicas[index] = Some(replica);
        self.next_room = Some(Nanos::ZERO);
        Ok(ReplicaId(index as u32))
    }

    /// The replica is gone. Gives the requests that it had, which are forgotten.
    pub fn remove_replica(&mut self, id: ReplicaId) -> Vec<RequestId> {
        if let Some(replica) = self.replicas.get_mut(id.index()) {
            *replica = None;
        }
        let gone: Vec<RequestId> =
            self.sent.iter().filter(|(_, sent)| sent.replica == id).map(|(request, _)| *request).collect();
        for request in &gone {
            self.sent.remove(request);
        }
        gone
    }

    /// What the node says of the GPU below a replica.
    pub fn set_gpu(&mut self, id: ReplicaId, gpu: GpuState) {
        if let Some(replica) = self.replica_mut(id) {
            replica.gpu = gpu;
            self.next_room = Some(Nanos::ZERO);
        }
    }

    /// Whether a replica gets requests: its health, whether it drains, its circuit breaker.
    pub fn set_available(&mut self, id: ReplicaId, available: bool) {
        if let Some(replica) = self.replica_mut(id) {
            replica.available = available;
            self.next_room = Some(Nanos::ZERO);
        }
    }

    /// What a replica can do, where that has been learned better. Its cache's size stays.
    ///
    /// # Errors
    /// It could not do anything.
    pub fn set_capacity(&mut self, id: ReplicaId, capacity: Capacity) -> Result<(), RouterError> {
        check(&capacity)?;
        if let Some(replica) = self.replica_mut(id) {
            replica.capacity = Capacity { cache_blocks: replica.capacity.cache_blocks, ..capacity };
            self.next_room = Some(Nanos::ZERO);
        }
        Ok(())
    }

    /// What a replica has to do; `None` where there is none.
    pub fn load(&self, id: ReplicaId) -> Option<Load> {
        Some(self.replicas.get(id.index())?.as_ref()?.backlog.load())
    }

    /// Requests of a class that are held.
    pub fn held(&self, class: Class) -> usize {
        self.held.of_class(class)
    }

    /// A request comes. `cached` is what is known of the replicas' caches.
    pub fn arrive(&mut self, now: Nanos, arrival: Arrival, cached: &dyn Cached) -> Verdict {
        if self.sent.contains_key(&arrival.id) || self.held.has(arrival.id) {
            return Verdict::Refused(Refusal::Known);
        }
        if !self.replicas.iter().flatten().any(|replica| replica.serves(arrival.model)) {
            return Verdict::Refused(Refusal::NoReplica);
        }
        self.pass(now);
        // Those of its class that are held came before it.
        let behind = self.held.any(arrival.class, arrival.model);
        if !behind && let Some(placement) = self.place(now, &arrival, now, cached) {
            return Verdict::Send(placement);
        }
        let held = self.held.len();
        if held >= self.settings.admission.held {
            return Verdict::Refused(Refusal::Full { held });
        }
        let limit = match arrival.class {
            Class::LatencySensitive => self.settings.admission.hold_latency_sensitive,
            Class::BestEffort => self.settings.admission.hold_best_effort,
        };
        let until = now.saturating_add(limit).min(arrival.deadline.unwrap_or(Nanos::MAX));
        self.held.push(Held { since: now, until, arrival });
        self.next_room = self.foresee(now);
        Verdict::Held
    }

    /// Adds to `verdicts` the held requests that may go now, and those that have been held for as long as they may.
    pub fn poll(&mut self, now: Nanos, cached: &dyn Cached, verdicts: &mut Vec<(RequestId, Verdict)>) {
        if self.held.len() == 0 {
            return;
        }
        self.pass(now);
        while let Some((_, id)) = self.held.first_timeout().filter(|(until, _)| *until <= now) {
            let Some(held) = self.held.remove(id) else { break };
            let held_for = now.saturating_sub(held.since);
            let refusal = match held.arrival.deadline {
                Some(deadline) if deadline <= now => Refusal::Deadline { held_for },
                _ => Refusal::TimedOut { held_for },
            };
            verdicts.push((id, Verdict::Refused(refusal)));
        }
        for queue in self.held.order() {
            // Those behind one that does not fit wait for it.
            while let Some(Held { arrival, since, .. }) = self.held.first(queue).cloned()
                && let Some(placement) = self.place(now, &arrival, since, cached)
            {
                self.held.remove(arrival.id);
                verdicts.push((arrival.id, Verdict::Send(placement)));
            }
        }
        self.next_room = self.foresee(now);
    }

    /// When to ask again although nothing has happened; `None` when that is not needed.
    pub fn next_poll(&self) -> Option<Nanos> {
        if self.held.len() == 0 {
            return None;
        }
        [self.next_room, self.held.first_timeout().map(|(until, _)| until)].into_iter().flatten().min()
    }

    /// The first token of a request is there. `cached_tokens` is what the replica says that it had of the prompt.
    pub fn first_token(&mut self, now: Nanos, id: RequestId, cached_tokens: Option<u64>) {
        let Some(replica) = self.sent.get(&id).map(|sent| sent.replica) else { return };
        let mut passed = std::mem::take(&mut self.passed);
        if let Some(replica) = self.replica_mut(replica) {
            replica.backlog.pass(now, &replica.capacity, &replica.gpu, &mut passed);
            replica.backlog.first_token(now, id, &mut passed);
        }
        self.passed(passed);
        self.begun(now, id, cached_tokens);
    }

    /// Notes that a request generates, where that is news.
    fn begun(&mut self, at: Nanos, id: RequestId, cached_tokens: Option<u64>) {
        let Some(sent) = self.sent.get_mut(&id).filter(|sent| sent.first_token.is_none()) else { return };
        sent.first_token = Some(at);
        sent.output_tokens = 1;
        if sent.class == Class::LatencySensitive {
            let found = cached_tokens.unwrap_or(sent.cached_tokens).min(sent.input_tokens);
            self.reuse.seen(found, sent.input_tokens);
        }
    }

    /// Brings what replicas have to do up to date with what time alone says of it.
    fn pass(&mut self, now: Nanos) {
        let mut passed = std::mem::take(&mut self.passed);
        for replica in self.replicas.iter_mut().flatten() {
            replica.backlog.pass(now, &replica.capacity, &replica.gpu, &mut passed);
        }
        self.passed(passed);
    }

    fn passed(&mut self, mut passed: Vec<Passed>) {
        for Passed { id, at } in passed.drain(..) {
            self.begun(at, id, None);
        }
        self.passed = passed;
    }

    /// More tokens of a request, none of them its first.
    pub fn tokens(&mut self, id: RequestId, n: u32) {
        let Some(sent) = self.sent.get_mut(&id).filter(|sent| sent.first_token.is_some()) else { return };
        sent.output_tokens = sent.output_tokens.saturating_add(n);
        let (replica, class) = (sent.replica, sent.class);
        if let Some(replica) = self.replica_mut(replica) {
            replica.backlog.tokens(class, n);
        }
    }

    /// A request has all that it asked for.
    pub fn ended(&mut self, now: Nanos, id: RequestId) {
        if let Some(Sent { first_token: Some(first), .. }) = self.forget(now, id)
            // An answer that came whole and sooner than its prompt was expected to be through says nothing.
            && first < now
        {
            let took = now.saturating_sub(first).0;
            // The average of the last sixteen or so.
            self.generation = Nanos(self.generation.0 - self.generation.0 / 16 + took / 16);
        }
    }

    /// A request went wrong at its replica, and is forgotten. To be tried again it has to arrive again.
    pub fn failed(&mut self, now: Nanos, id: RequestId) {
        self.forget(now, id);
    }

    /// Nobody waits for a request any more, held or sent.
    pub fn cancel(&mut self, now: Nanos, id: RequestId) {
        if self.held.remove(id).is_none() {
            self.forget(now, id);
        }
    }

    fn replica_mut(&mut self, id: ReplicaId) -> Option<&mut Replica> {
        self.replicas.get_mut(id.index())?.as_mut()
    }

    fn forget(&mut self, now: Nanos, id: RequestId) -> Option<Sent> {
        let sent = self.sent.remove(&id)?;
        if let Some(replica) = self.replica_mut(sent.replica) {
            match sent.first_token {
                None => replica.backlog.dropped(now, id),
                Some(_) => {
                    replica.backlog.ended(sent.class, sent.input_tokens + u64::from(sent.output_tokens));
                }
            }
        }
        Some(sent)
    }

    /// Sends a request that came at `since`, if a replica may take it.
    fn place(
        &mut self,
        now: Nanos,
        arrival: &Arrival,
        since: Nanos,
        cached: &dyn Cached,
    ) -> Option<Placement> {
        cached.cached_for(arrival, now, &mut self.blocks);
        self.candidates.clear();
        let (mut serving, mut utilisation) = (0, 0.0);
        let reuse = self.reuse.chance();
        let admission = self.settings.admission;
        for (index, replica) in self.replicas.iter().enumerate() {
            let Some(replica) = replica else { continue };
            if !replica.available || !replica.serves(arrival.model) {
                continue;
            }
            serving += 1;
            utilisation += replica.meter.utilisation(now);
            let held = self.blocks.get(index).copied().unwrap_or(0);
            let cached_blocks = held.max(replica.backlog.coming(&arrival.prefixes));
            let new_blocks = (arrival.prefixes.len() as u64).saturating_sub(cached_blocks.into());
            let candidate = Candidate {
                replica: ReplicaId(index as u32),
                capacity: replica.capacity,
                load: replica.backlog.load(),
                gpu: replica.gpu,
                wait: replica.backlog.wait(now, &replica.capacity, &replica.gpu, self.generation),
                cached_blocks,
                evicted_blocks: replica.contents.evicted(new_blocks) * reuse,
            };
            if admission.allows(arrival.class, arrival.input_tokens, &candidate) {
                self.candidates.push(candidate);
            }
        }
        if self.candidates.is_empty() {
            return None;
        }
        let demand = Demand {
            utilisation: utilisation / f64::from(serving.max(1)),
            best_effort_waits: self.held.any_of_class(Class::BestEffort),
        };
        let request = Request {
            class: arrival.class,
            prefixes: &arrival.prefixes,
            input_tokens: arrival.input_tokens,
            affinity: arrival.affinity,
            demand,
        };
        let choice = self.policy.choose(&request, &self.candidates);
        let candidate = *self.candidates.get(choice.candidate)?;
        let new_tokens = candidate.new_tokens(&request);
        let computing =
            new_tokens as f64 / candidate.capacity.prefill_tokens_per_s / candidate.gpu.speed.max(1e-3);
        let placement = Placement {
            id: arrival.id,
            replica: candidate.replica,
            cached_blocks: candidate.cached_blocks,
            cost: choice.cost,
            expected_ttft: candidate.wait.saturating_add(Nanos((computing * 1e9) as u64)),
            backlog: candidate.wait,
            evicted_blocks: candidate.evicted_blocks,
            held_for: now.saturating_sub(since),
        };
        let waiting = Waiting {
            id: arrival.id,
            class: arrival.class,
            prefixes: arrival.prefixes.clone(),
            input_tokens: arrival.input_tokens,
            new_tokens,
            whole: arrival.whole,
        };
        let cached_blocks = u64::from(candidate.cached_blocks).min(arrival.prefixes.len() as u64);
        let new_blocks = arrival.prefixes.len() as u64 - cached_blocks;
        let replica = self.replica_mut(candidate.replica)?;
        if arrival.class == Class::LatencySensitive {
            replica.meter.sent(now, computing);
        }
        replica.contents.used(arrival.class, cached_blocks, new_blocks);
        replica.backlog.sent(now, waiting);
        let sent = Sent {
            replica: candidate.replica,
            class: arrival.class,
            input_tokens: arrival.input_tokens,
            cached_tokens: arrival.input_tokens - new_tokens.min(arrival.input_tokens),
            first_token: None,
            output_tokens: 0,
        };
        self.sent.insert(arrival.id, sent);
        Some(placement)
    }

    /// When a replica will be so close to the end of its prompts that it may take a held request.
    fn foresee(&self, now: Nanos) -> Option<Nanos> {
        let soon = self.settings.admission.soon;
        let close = |replica: &Replica| {
            let wait = replica.backlog.wait(now, &replica.capacity, &replica.gpu, self.generation);
            let room = now.saturating_add(wait.saturating_sub(soon));
            // One that has room already does not take it for another reason, which an event will end.
            (replica.available && wait > soon && room < Nanos::MAX).then_some(room)
        };
        self.replicas.iter().flatten().filter_map(close).min()
    }
}

fn check(capacity: &Capacity) -> Result<(), RouterError> {
    let Capacity { prefill_tokens_per_s, streams, block_tokens, cache_blocks, .. } = *capacity;
    let able = prefill_tokens_per_s.is_finite() && prefill_tokens_per_s > 0.0;
    if !able || streams == 0 || block_tokens == 0 || cache_blocks == 0 {
        return Err(RouterError::Capacity(*capacity));
    }
    Ok(())
}
