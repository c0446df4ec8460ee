//! llm-d's weighted scorers, from its documentation, with the weights of its examples: 3 for the prefix, 2 for the cache, 2 for the queue.
//!
//! Each scorer gives 0 to 1, and the highest sum goes:
//!
//! - prefix: fraction of the prompt's blocks that the replica holds
//! - cache: 1 less the fraction of the replica's blocks that are in use by its requests
//! - queue: 1 for the fewest requests that wait, 0 for the most, in between by the number
//!
//! Equal sums take turns; llm-d draws.

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};

const PREFIX: f64 = 3.0;
const CACHE: f64 = 2.0;
const QUEUE: f64 = 2.0;

/// The highest weighted sum of scores.
#[derive(Debug, Default)]
pub struct LlmD {
    cheapest: Cheapest,
}

impl Policy for LlmD {
    fn name(&self) -> &'static str {
        "llm-d"
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        let waiting = |candidate: &Candidate| {
            f64::from(candidate.load.latency_sensitive.waiting + candidate.load.best_effort.waiting)
        };
        let most = candidates.iter().map(waiting).fold(0.0, f64::max);
        let fewest = candidates.iter().map(waiting).fold(f64::INFINITY, f64::min);
        self.cheapest.choose(candidates, |candidate| {
            let prefix = f64::from(candidate.cached_blocks) / request.prefixes.len().max(1) as f64;
            let [ls, be] = [candidate.load.latency_sensitive, candidate.load.best_effort];
            let used = ls.waiting_tokens + ls.decoding_tokens + be.waiting_tokens + be.decoding_tokens;
            let capacity =
                candidate.capacity.cache_blocks as f64 * f64::from(candidate.capacity.block_tokens);
            let cache = 1.0 - (used as f64 / capacity).min(1.0);
            let queue = if most > fewest { (most - waiting(candidate)) / (most - fewest) } else { 1.0 };
            -(PREFIX * prefix + CACHE * cache + QUEUE * queue)
        })
    }
}
