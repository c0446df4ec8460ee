//! The most blocks held, whatever else there is to do.
//!
//! What prefix routing without regard to load does (production-stack's `prefixaware` and `kvaware`): where all prompts begin alike, the first
//! replica that has that beginning gets everything. It is here to be compared with.

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};

/// The replica that holds most of the prompt; of equal ones, that with the fewest requests.
#[derive(Debug, Default)]
pub struct LongestPrefix {
    cheapest: Cheapest,
}

impl Policy for LongestPrefix {
    fn name(&self) -> &'static str {
        "longest-prefix"
    }

    fn choose(&mut self, _: &Request<'_>, candidates: &[Candidate]) -> Choice {
        let requests = |candidate: &Candidate| f64::from(candidate.load.requests());
        let most = candidates.iter().map(requests).fold(0.0, f64::max) + 1.0;
        // A block outweighs any difference in requests.
        self.cheapest
            .choose(candidates, |candidate| requests(candidate) / most - f64::from(candidate.cached_blocks))
    }
}
