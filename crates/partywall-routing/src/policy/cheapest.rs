//! The lowest cost, and what is done when several have it.

use super::{Candidate, Choice};

/// Takes the candidate of the lowest cost. Equal ones take turns, so that a quiet fleet does not send everything to its first replica.
#[derive(Debug, Default)]
pub(super) struct Cheapest {
    turn: usize,
}

impl Cheapest {
    pub(super) fn choose(&mut self, candidates: &[Candidate], cost: impl Fn(&Candidate) -> f64) -> Choice {
        self.turn = self.turn.wrapping_add(1);
        let first = self.turn % candidates.len().max(1);
        let mut best = Choice { candidate: first, cost: f64::INFINITY };
        for candidate in (first..candidates.len()).chain(0..first) {
            let cost = cost(&candidates[candidate]);
            if cost < best.cost {
                best = Choice { candidate, cost };
            }
        }
        best
    }
}
