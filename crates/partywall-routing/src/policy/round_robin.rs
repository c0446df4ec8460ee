//! One after the other.

use super::{Candidate, Choice, Policy, Request};
use crate::replica::ReplicaId;

/// The next in the order of ids, whatever it has to do.
#[derive(Debug, Default)]
pub struct RoundRobin {
    last: Option<ReplicaId>,
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn choose(&mut self, _: &Request<'_>, candidates: &[Candidate]) -> Choice {
        let next = candidates.iter().position(|candidate| Some(candidate.replica) > self.last).unwrap_or(0);
        self.last = Some(candidates[next].replica);
        Choice { candidate: next, cost: 0.0 }
    }
}
