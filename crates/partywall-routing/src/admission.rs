//! When a request may go: at once, or held until there is room for it.

use std::collections::VecDeque;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::policy::Candidate;
use crate::router::{Arrival, RequestId};

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
        !candidate.gpu.squeezed && load.latency_sensitive.waiting == 0 && candidate.wait <= self.soon && fits
    }
}

/// A request that is held.
#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) since: Nanos,
    pub(crate) until: Nanos,
    pub(crate) arrival: Arrival,
}

/// The requests that are held, in order of arrival within their class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Queues {
    latency_sensitive: VecDeque<Held>,
    best_effort: VecDeque<Held>,
}

impl Queues {
    pub(crate) fn len(&self) -> usize {
        self.latency_sensitive.len() + self.best_effort.len()
    }

    pub(crate) fn of(&self, class: Class) -> &VecDeque<Held> {
        match class {
            Class::LatencySensitive => &self.latency_sensitive,
            Class::BestEffort => &self.best_effort,
        }
    }

    pub(crate) fn of_mut(&mut self, class: Class) -> &mut VecDeque<Held> {
        match class {
            Class::LatencySensitive => &mut self.latency_sensitive,
            Class::BestEffort => &mut self.best_effort,
        }
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<Held> {
        for class in [Class::LatencySensitive, Class::BestEffort] {
            let queue = self.of_mut(class);
            if let Some(place) = queue.iter().position(|held| held.arrival.id == id) {
                return queue.remove(place);
            }
        }
        None
    }

    /// When the first of them has been held for as long as it may.
    pub(crate) fn first_timeout(&self) -> Option<Nanos> {
        self.latency_sensitive.iter().chain(&self.best_effort).map(|held| held.until).min()
    }
}
