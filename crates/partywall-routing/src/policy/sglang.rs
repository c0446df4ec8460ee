//! The `cache_aware` rule of SGLang's gateway (now SMG), from its documentation and options, with the command line's defaults.
//!
//! - When the longest queue has more than `balance_abs` = 64 requests more than the shortest and more than `balance_rel` = 1.5 times as many,
//!   the shortest queue gets the request.
//! - Else, when some replica holds more than `cache_threshold` = 0.3 of the prompt, the one that holds most.
//! - Else the one with the fewest requests. (The gateway's older text tree takes the one with the smallest tree here; with exact events it
//!   takes the least loaded.)
//!
//! The gateway matches characters or tokens with a tree of its own where it has no events; here it gets the exact blocks.

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};

const CACHE_THRESHOLD: f64 = 0.3;
const BALANCE_ABS: f64 = 64.0;
const BALANCE_REL: f64 = 1.5;

/// The most blocks held if they are enough and the queues are even, else the fewest requests.
#[derive(Debug, Default)]
pub struct SglangCacheAware {
    cheapest: Cheapest,
}

impl Policy for SglangCacheAware {
    fn name(&self) -> &'static str {
        "sglang"
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        let requests = |candidate: &Candidate| f64::from(candidate.load.requests());
        let longest = candidates.iter().map(requests).fold(0.0, f64::max);
        let shortest = candidates.iter().map(requests).fold(f64::INFINITY, f64::min);
        let uneven = longest - shortest > BALANCE_ABS && longest > BALANCE_REL * shortest;
        let held = |candidate: &Candidate| {
            let tokens = u64::from(candidate.cached_blocks) * u64::from(candidate.capacity.block_tokens);
            tokens as f64 / request.input_tokens.max(1) as f64
        };
        if uneven || candidates.iter().all(|candidate| held(candidate) <= CACHE_THRESHOLD) {
            return self.cheapest.choose(candidates, requests);
        }
        self.cheapest.choose(candidates, |candidate| {
            requests(candidate) / (longest + 1.0) - f64::from(candidate.cached_blocks)
        })
    }
}
