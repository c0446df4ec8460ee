//! The project's own rule.

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};

/// The shortest expected time to the first token.
#[derive(Debug, Default)]
pub struct Partywall {
    cheapest: Cheapest,
}

impl Policy for Partywall {
    fn name(&self) -> &'static str {
        "partywall"
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        self.cheapest.choose(candidates, |candidate| {
            let speed = candidate.capacity.prefill_tokens_per_s * candidate.gpu.speed.max(1e-3);
            candidate.wait.as_secs() + candidate.new_tokens(request) as f64 / speed
        })
    }
}
