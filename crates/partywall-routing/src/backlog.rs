//! What one replica still has to do, as far as the one who sends it requests can tell.
//!
//! # Problem
//!
//! How long a request waits at a replica depends on the prompts before it. The replica reports none of that in time: its metrics are read
//! every so often and count requests, of which one may take ten milliseconds and another ten seconds.
//!
//! # Approach
//!
//! The router knows what it sent, and it sees every first token. An engine computes prompts in the order of their arrival, so the requests
//! without a first token are a queue, and when one has its first token the next has just been begun. What is left of that one is its time
//! less what has passed; the rest is the sum of the others. So the wait is exact up to what was wrongly expected of the cache, and every
//! first token puts it right.
//!
//! Of an answer that comes whole, not as a stream, nothing is heard before its end, and what it takes to generate it is a hundred times what the
//! prompt takes. Such a prompt is taken to be through when its time is over, or when one behind it has its first token: engines go in
//! order. So what is known of it is as good as what was expected of its length and of the cache, and it keeps nobody waiting who does not
//! wait. (Waiting for its end instead was what the router did at first: to it such an engine was busy for as long as it generated, and
//! best-effort requests were held before engines that stood still.)
//!
//! A prompt of the queue will be held when it is through, so a request behind it that begins alike counts on it: requests that come in a
//! burst find each other before any of them is computed.
//!
//! # Scenarios
//!
//! - S1: the wait falls while the first prompt is computed, and never below zero when that takes longer than expected.
//! - S2: with a first token the next prompt begins.
//! - S3: a prompt that waits is counted on by those behind it.
//! - S4: when all streams are taken, a request waits for one too.
//! - S5: a prompt whose answer comes whole is through when its time is over, or when a later one is.

use std::collections::VecDeque;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::prefix::PrefixHash;
use crate::replica::{Capacity, GpuState, Load};
use crate::router::RequestId;

#[cfg(test)]
mod tests;

/// A request without a first token.
#[derive(Debug, Clone)]
pub(crate) struct Waiting {
    pub(crate) id: RequestId,
    pub(crate) class: Class,
    pub(crate) prefixes: Vec<PrefixHash>,
    pub(crate) input_tokens: u64,
    /// Those that are not expected to be held.
    pub(crate) new_tokens: u64,
    /// Nothing is heard of it before its end.
    pub(crate) whole: bool,
}

/// A prompt that is taken to be through, and since when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passed {
    pub(crate) id: RequestId,
    pub(crate) at: Nanos,
}

/// What one replica has to do.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backlog {
    load: Load,
    queue: VecDeque<Waiting>,
    /// Since when the first of the queue is being computed.
    since: Nanos,
}

impl Backlog {
    pub(crate) fn load(&self) -> Load {
        self.load
    }

    /// How long until it begins with a request that is sent now. `generation` is how long a request generates on average.
    pub(crate) fn wait(&self, now: Nanos, capacity: &Capacity, gpu: &GpuState, generation: Nanos) -> Nanos {
        if gpu.paused || gpu.speed <= 0.0 {
            return Nanos::MAX;
        }
        let rate = capacity.prefill_tokens_per_s * gpu.speed / 1e9;
        let first = self.queue.front().map_or(0.0, |first| {
            (first.new_tokens as f64 / rate - now.saturating_sub(self.since).0 as f64).max(0.0)
        });
        let others: u64 = self.queue.iter().skip(1).map(|waiting| waiting.new_tokens).sum();
        let prompts = first + others as f64 / rate;
        let over = (self.load.requests() + 1).saturating_sub(capacity.streams.max(1));
        let streams = f64::from(over) * generation.0 as f64 / f64::from(capacity.streams.max(1)) / gpu.speed;
        Nanos((prompts.max(streams)) as u64)
    }

    /// How many of the first of these it will hold when its queue is through.
    pub(crate) fn coming(&self, prefixes: &[PrefixHash]) -> u32 {
        let shared = |waiting: &Waiting| {
            // A name stands for everything before it, so beginnings agree up to one place and nowhere behind it.
            let most = prefixes.len().min(waiting.prefixes.len());
            let (mut agree, mut differ) = (0, most + 1);
            while agree + 1 < differ {
                let middle = agree.midpoint(differ);
                if prefixes[middle - 1] == waiting.prefixes[middle - 1] {
                    agree = middle
                } else {
                    differ = middle
                }
            }
            agree as u32
        };
        self.queue.iter().map(shared).max().unwrap_or(0)
    }

    pub(crate) fn sent(&mut self, now: Nanos, waiting: Waiting) {
        if self.queue.is_empty() {
            self.since = now;
        }
        let load = self.load.of_mut(waiting.class);
        load.waiting += 1;
        load.waiting_tokens += waiting.input_tokens;
        load.prefill_tokens += waiting.new_tokens;
        self.queue.push_back(waiting);
    }

    /// Lets those at the front pass that nothing is heard of and whose time is over.
    pub(crate) fn pass(&mut self, now: Nanos, capacity: &Capacity, gpu: &GpuState, passed: &mut Vec<Passed>) {
        if gpu.paused || gpu.speed <= 0.0 {
            return;
        }
        let rate = capacity.prefill_tokens_per_s * gpu.speed / 1e9;
        while let Some(first) = self.queue.front().filter(|first| first.whole) {
            let at = self.since.saturating_add(Nanos((first.new_tokens as f64 / rate) as u64));
            if at > now {
                return;
            }
            let id = first.id;
            self.through(at, id);
            passed.push(Passed { id, at });
        }
    }

    /// A request has its first token. Those before it that nothing is heard of had theirs before.
    pub(crate) fn first_token(&mut self, now: Nanos, id: RequestId, passed: &mut Vec<Passed>) {
        let Some(place) = self.queue.iter().position(|waiting| waiting.id == id) else { return };
        let before: Vec<RequestId> =
            self.queue.iter().take(place).filter(|waiting| waiting.whole).map(|waiting| waiting.id).collect();
        for id in before {
            self.through(now, id);
            passed.push(Passed { id, at: now });
        }
        self.through(now, id);
    }

    /// The prompt of a request is computed, and it generates.
    fn through(&mut self, at: Nanos, id: RequestId) {
        if let Some(waiting) = self.take(id) {
            // One that came before it and has no first token yet was passed; whatever is first now is being computed.
            self.since = at;
            let load = self.load.of_mut(waiting.class);
            load.decoding += 1;
            load.decoding_tokens += waiting.input_tokens + 1;
        }
    }

    /// A request without a first token is gone.
    pub(crate) fn dropped(&mut self, now: Nanos, id: RequestId) {
        let first = self.queue.front().is_some_and(|waiting| waiting.id == id);
        if self.take(id).is_some() && first {
            self.since = now;
        }
    }

    /// A request that generates has more tokens.
    pub(crate) fn tokens(&mut self, class: Class, n: u32) {
        self.load.of_mut(class).decoding_tokens += u64::from(n);
    }

    /// A request that generates is gone, with so many tokens in the cache.
    pub(crate) fn ended(&mut self, class: Class, tokens: u64) {
        let load = self.load.of_mut(class);
        load.decoding = load.decoding.saturating_sub(1);
        load.decoding_tokens = load.decoding_tokens.saturating_sub(tokens);
    }

    fn take(&mut self, id: RequestId) -> Option<Waiting> {
        let place = self.queue.iter().position(|waiting| waiting.id == id)?;
        let waiting = self.queue.remove(place)?;
        let load = self.load.of_mut(waiting.class);
        load.waiting -= 1;
        load.waiting_tokens -= waiting.input_tokens;
        load.prefill_tokens -= waiting.new_tokens;
        Some(waiting)
    }
}
