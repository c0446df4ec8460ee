//! What is counted of requests, for the metrics.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::record::Record;

/// Upper ends of the classes of times, in seconds: from what a cached prompt takes to what nobody waits for.
pub(crate) const BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, f64::INFINITY];

/// Times, by classes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Times {
    /// How many in each class.
    pub counts: [u64; BUCKETS.len()],
    /// All of them together, in seconds.
    pub sum: f64,
}

impl Times {
    fn add(&mut self, time: Nanos) {
        let seconds = time.as_secs();
        let class = BUCKETS.iter().position(|end| seconds <= *end).unwrap_or(BUCKETS.len() - 1);
        self.counts[class] += 1;
        self.sum += seconds;
    }
}

/// Of one class of requests, and of those that ended before they had one.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct ClassCounts {
    /// By how they ended.
    pub ends: BTreeMap<&'static str, u64>,
    /// From arrival to the first token.
    pub first: Times,
    /// From arrival to the end, of those that were answered completely.
    pub whole: Times,
    /// How long those that were sent were held.
    pub held: Times,
    /// Tokens of prompts, as the gateway counts them.
    pub input_tokens: u64,
    /// Those that were expected in caches.
    pub expected_cached_tokens: u64,
    /// Those that engines said were, and tokens of the prompts of which they said so.
    pub cached_tokens: u64,
    pub told_prompt_tokens: u64,
    /// Tokens generated, as the engine says, else events of streams.
    pub output_tokens: u64,
    /// Of requests whose first token came: the times that were expected, and that it took from the sending.
    pub expected_first: f64,
    pub actual_first: f64,
}

/// All counts.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Snapshot {
    /// Under way now.
    pub under_way: u64,
    pub connections: u64,
    pub connections_total: u64,
    /// By class: latency-sensitive, best-effort, none.
    pub classes: [ClassCounts; 3],
    /// Tries beyond the first.
    pub retries: u64,
    pub hedges: u64,
    /// Bytes of bodies that are kept.
    pub body_bytes: u64,
}

/// The counts.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<Snapshot>);

impl Counts {
    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    /// Requests under way.
    pub(crate) fn under_way(&self) -> u64 {
        self.lock().under_way
    }

    pub(crate) fn arrived(&self) {
        self.lock().under_way += 1;
    }

    pub(crate) fn connected(&self) {
        let mut counts = self.lock();
        counts.connections += 1;
        counts.connections_total += 1;
    }

    pub(crate) fn disconnected(&self) {
        self.lock().connections -= 1;
    }

    pub(crate) fn retried(&self) {
        self.lock().retries += 1;
    }

    pub(crate) fn hedged(&self) {
        self.lock().hedges += 1;
    }

    pub(crate) fn ended(&self, record: &Record, end: &'static str, now: Nanos) {
        let mut counts = self.lock();
        counts.under_way -= 1;
        let class = match record.class {
            Some(Class::LatencySensitive) => 0,
            Some(Class::BestEffort) => 1,
            None => 2,
        };
        let class = &mut counts.classes[class];
        *class.ends.entry(end).or_default() += 1;
        if let Some(placement) = record.placement {
            class.held.add(placement.held_for);
            class.input_tokens += record.input_tokens;
            let cached = u64::from(placement.cached_blocks) * u64::from(record.block_tokens);
            class.expected_cached_tokens += cached.min(record.input_tokens);
            if let Some(first) = record.first_at.filter(|_| record.stream) {
                let took = first.saturating_sub(record.arrived());
                class.first.add(took);
                class.expected_first += placement.expected_ttft.as_secs();
                class.actual_first += took.saturating_sub(placement.held_for).as_secs();
            }
        }
        if let (Some(cached), Some(prompt)) = (record.usage.cached, record.usage.prompt) {
            class.cached_tokens += cached;
            class.told_prompt_tokens += prompt;
        }
        class.output_tokens += record.usage.completion.unwrap_or(record.events);
        if end == "complete" {
            class.whole.add(now.saturating_sub(record.arrived()));
        }
    }
}
