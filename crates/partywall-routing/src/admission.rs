//! When a request may go: at once, or held until there is room for it.
//!
//! # Problem
//!
//! A replica computes prompts one after the other and does not let go of one that it has begun, and it takes whatever it is sent. A queue
//! of best-effort prompts in it is a queue that the next latency-sensitive request stands in, whatever that request is worth. So what may
//! wait has to wait outside, where it can be passed.
//!
//! # Approach
//!
//! Latency-sensitive requests go at once, to whichever replica the policy says. They are held only while no replica that serves their model is
//! available and runs.
//!
//! Best-effort requests are held, not refused, until some replica is about to be through with its prompts, within
//! [`AdmissionSettings::soon`]. So a replica has at most one best-effort prompt that has not been computed, and a latency-sensitive request finds at
//! most the rest of that one before it. No replica stands still for long while something is held: the two classes together use all of the
//! time, as they would if all went at once, and only the order differs. Keeping whole replicas free of best-effort work was tried on the
//! trace of `docs/routing.md` and is not done: one of eight kept free takes a tenth of the best-effort tokens, for a tenth of the
//! latency-sensitive mean time to the first token and a fiftieth of its p99.
//!
//! They leave a part of each replica's streams and of its cache ([`AdmissionSettings::headroom`]): what a request holds while it generates is
//! not given back when a latency-sensitive request comes. And a replica whose GPU is held back for a neighbour gets none.
//!
//! Held requests of a class and a model go in the order of their arrival, latency-sensitive ones first. Who has been held too long, or is
//! beyond its deadline, is refused.
//!
//! # Scenarios
//!
//! - S1: a latency-sensitive request goes at once, also where it has to wait.
//! - S2: a best-effort request is held while every replica has more to do than `soon`, and goes when one is about to be through.
//! - S3: held requests go in their order, latency-sensitive ones first.
//! - S4: best-effort requests leave streams and cache free; one that would never fit goes to an empty replica.
//! - S5: a paused replica gets nothing, a squeezed one nothing of best effort.
//! - S6: who is held too long is refused, and who is beyond its deadline.
//! - S7: more than so many are not held.
//! - S8: without `by_class`, best-effort requests go as all others do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::policy::Candidate;
use crate::router::{Arrival, ModelId, RequestId};

/// The rules of admission.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdmissionSettings {
    /// Best-effort requests are held until a replica could begin with them soon. Without it they go at once, as all others do.
    pub by_class: bool,
    /// How long before a replica is through with its prompts it may get a best-effort one, so that it does not stand still in between:
    /// the way there and back, and some.
    pub soon: Nanos,
    /// Fraction of a replica's streams and of its cache that best-effort requests leave free.
    pub headroom: f64,
    /// How long a latency-sensitive request is held at most when no replica can take it.
    pub hold_latency_sensitive: Nanos,
    /// How long a best-effort request is held at most.
    pub hold_best_effort: Nanos,
    /// Requests that may be held at a time; more are refused.
    pub held: usize,
}

impl Default for AdmissionSettings {
    fn default() -> Self {
        Self {
            by_class: true,
            soon: Nanos::from_millis(50),
            headroom: 0.25,
            hold_latency_sensitive: Nanos::from_secs(30),
            hold_best_effort: Nanos::from_secs(600),
            held: 10_000,
        }
    }
}

impl AdmissionSettings {
    /// Whether a replica may get a request of this class and size now.
    pub(crate) fn allows(&self, class: Class, input_tokens: u64, candidate: &Candidate) -> bool {
        if candidate.gpu.paused {
            return false;
        }
        if class == Class::LatencySensitive || !self.by_class {
            return true;
        }
        let (load, capacity) = (&candidate.load, &candidate.capacity);
        let left = 1.0 - self.headroom;
        let best_effort = &load.best_effort;
        let streams = f64::from(best_effort.waiting + best_effort.decoding + 1);
        let tokens = best_effort.waiting_tokens + best_effort.decoding_tokens + input_tokens;
        let cache = capacity.cache_blocks as f64 * f64::from(capacity.block_tokens);
        // An empty replica takes what fits nowhere else: it would be held for ever.
        let fits = load.requests() == 0
            || streams <= (f64::from(capacity.streams) * left).max(1.0) && tokens as f64 <= cache * left;
        !candidate.gpu.squeezed && candidate.wait <= self.soon && fits
    }
}

/// A request that is held.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) since: Nanos,
    pub(crate) until: Nanos,
    pub(crate) arrival: Arrival,
}

/// The requests that are held: those of a class and a model wait for each other, and for no one else.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues {
    queues: BTreeMap<(Class, ModelId), VecDeque<Held>>,
    /// The queue of each, and until when it is held.
    index: BTreeMap<RequestId, (Class, ModelId, Nanos)>,
    timeouts: BTreeSet<(Nanos, RequestId)>,
}

impl Queues {
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn of_class(&self, class: Class) -> usize {
        self.queues.iter().filter(|((of, _), _)| *of == class).map(|(_, queue)| queue.len()).sum()
    }

    /// Whether one of this class and model is held.
    pub(crate) fn any(&self, class: Class, model: ModelId) -> bool {
        self.queues.contains_key(&(class, model))
    }

    pub(crate) fn any_of_class(&self, class: Class) -> bool {
        self.queues.range((class, ModelId(0))..=(class, ModelId(u32::MAX))).next().is_some()
    }

    /// Whether one of this name is held.
    pub(crate) fn has(&self, id: RequestId) -> bool {
        self.index.contains_key(&id)
    }

    /// Puts one behind those of its class and model. None of its name is held.
    pub(crate) fn push(&mut self, held: Held) {
        let Arrival { id, class, model, .. } = held.arrival;
        self.index.insert(id, (class, model, held.until));
        self.timeouts.insert((held.until, id));
        self.queues.entry((class, model)).or_default().push_back(held);
    }

    /// The class and model of every queue: latency-sensitive first, then who has waited longest.
    pub(crate) fn order(&self) -> Vec<(Class, ModelId)> {
        let front = |queue: &VecDeque<Held>| queue.front().map(|held| held.since);
        let mut order: Vec<_> = self.queues.iter().map(|(key, queue)| (key.0, front(queue), key.1)).collect();
        order.sort();
        order.into_iter().map(|(class, _, model)| (class, model)).collect()
    }

    /// Who goes next of a class and model.
    pub(crate) fn first(&self, (class, model): (Class, ModelId)) -> Option<&Held> {
        self.queues.get(&(class, model))?.front()
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Held> {
        let (class, model, until) = self.index.remove(&id)?;
        self.timeouts.remove(&(until, id));
        let queue = self.queues.get_mut(&(class, model))?;
        let place = queue.iter().position(|held| held.arrival.id == id)?;
        let held = queue.remove(place);
        if queue.is_empty() {
            self.queues.remove(&(class, model));
        }
        held
    }

    /// When the first of them has been held for as long as it may, and which it is.
    pub(crate) fn first_timeout(&self) -> Option<(Nanos, RequestId)> {
        self.timeouts.first().copied()
    }
}
