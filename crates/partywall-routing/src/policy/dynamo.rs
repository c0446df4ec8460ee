//! NVIDIA Dynamo's two rules, from the description in its documentation (`router-concepts`, version 1.6).
//!
//! Counted in blocks, with the documented defaults (overlap credit 1, no decay, prefill load scale 1, temperature 0):
//!
//! - `raw_prefill_blocks` = prompt blocks that the replica has yet to compute + the request's prompt blocks
//! - `adjusted_prefill_blocks` = `raw_prefill_blocks` less the request's blocks that it holds, at least 0
//! - `decode_blocks` = blocks of all requests that it has + the request's
//! - linear (the default): cost = `adjusted_prefill_blocks` + `decode_blocks`
//! - lmetric (after LMetric, OSDI 2026): cost = `adjusted_prefill_blocks` * (`decode_blocks` + 1)
//!
//! The lowest cost wins. Blocks that several requests of a replica share are counted once each here; Dynamo counts them together once.

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};
use crate::replica::Load;

/// Prompt blocks to compute and blocks in use, added.
#[derive(Debug, Default)]
pub struct Dynamo {
    cheapest: Cheapest,
}

/// Prompt blocks to compute times blocks in use.
#[derive(Debug, Default)]
pub struct DynamoLmetric {
    cheapest: Cheapest,
}

/// `adjusted_prefill_blocks` and `decode_blocks`.
fn blocks(request: &Request<'_>, candidate: &Candidate) -> (f64, f64) {
    let block = f64::from(candidate.capacity.block_tokens);
    let incoming = (request.input_tokens as f64 / block).ceil();
    let raw = candidate.load.prefill_tokens() as f64 / block + incoming;
    let active = |load: &Load| {
        let [ls, be] = [load.latency_sensitive, load.best_effort];
        ls.waiting_tokens + ls.decoding_tokens + be.waiting_tokens + be.decoding_tokens
    };
    let decode = active(&candidate.load) as f64 / block + incoming;
    ((raw - f64::from(candidate.cached_blocks)).max(0.0), decode)
}

impl Policy for Dynamo {
    fn name(&self) -> &'static str {
        "dynamo"
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        self.cheapest.choose(candidates, |candidate| {
            let (prefill, decode) = blocks(request, candidate);
            prefill + decode
        })
    }
}

impl Policy for DynamoLmetric {
    fn name(&self) -> &'static str {
        "dynamo-lmetric"
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        self.cheapest.choose(candidates, |candidate| {
            let (prefill, decode) = blocks(request, candidate);
            prefill * (decode + 1.0)
        })
    }
}
