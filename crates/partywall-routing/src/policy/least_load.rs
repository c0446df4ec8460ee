//! The fewest requests.
//!
//! What load balancers call least connections: a request counts as one, however long its prompt is and wherever it is held. It is also what
//! the cache-aware rules fall back on.

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};

/// The replica with the fewest requests that are not through.
#[derive(Debug, Default)]
pub struct LeastLoad {
    cheapest: Cheapest,
}

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        "least-load"
    }

    fn choose(&mut self, _: &Request<'_>, candidates: &[Candidate]) -> Choice {
        self.cheapest.choose(candidates, |candidate| f64::from(candidate.load.requests()))
    }
}
