//! The project's own rule: the least time that all wait together.
//!
//! # Problem
//!
//! A replica that holds much of a prompt may be the one that everybody goes to, and an idle one computes what another has. A rule that only
//! looks at the request's own time to its first token takes the idle one too often: it recomputes prefixes while that costs the request
//! nothing, and the seconds are missing when the next burst comes. A rule that follows the cache makes queues. Rules that weigh the two by
//! constants are right at one load: the published rule that is best at a trace's own rate has ten times the waits of another at twice that
//! rate.
//!
//! # Approach
//!
//! All that counts is time. The cost of a replica is
//!
//! > wait + (new + evicted) * (1 + price)
//!
//! - **wait**: until the replica begins with the request. It delays nobody else.
//! - **new**: what it computes for this request. Whoever comes while the replica is busy is delayed by it too. In a queue that is busy for the
//!   fraction rho of the time, a second of work makes the others wait rho / (1 - rho) seconds more together (the busy period grows by
//!   1 / (1 - rho), and rho of that are theirs). That is the **price**, and it is measured, not chosen: near nothing on a quiet fleet, where
//!   the rule becomes the shortest expected time to the first token, and ten times the request's own time on a fleet close to its limit,
//!   where the rule follows the cache.
//! - **evicted**: for a best-effort request, the time that it takes to compute again what latency-sensitive requests will miss of what it pushes
//!   out. So best-effort work gathers where it costs least. Latency-sensitive requests do not pay for it: they would go where best-effort
//!   work has been, and wait there for more of it.
//! - While best-effort requests are held, a second of computing has a taker: the price is 1 more.
//!
//! A GPU that runs at half its speed takes twice as long for all of it.
//!
//! Best-effort requests do not count in rho: they are held until a replica is through, so that a second of work delays none of them more than
//! it is worth.
//!
//! # Scenarios
//!
//! - S1: on a quiet fleet the shortest expected time to the first token wins.
//! - S2: on a busy fleet a request waits for the replica that holds its prefix, where the same request goes to an idle one on a quiet fleet.
//! - S3: a best-effort request goes where it pushes out what nobody wants.
//! - S4: a slow GPU counts with its speed.
//! - S5: while best-effort requests are held, recomputing costs more.

use partywall_core::tenant::Class;

use super::cheapest::Cheapest;
use super::{Candidate, Choice, Policy, Request};

/// Above this, what is measured is no utilisation but an overload, and the formula for the price has no meaning: 19 seconds for a second.
const MOST_UTILISATION: f64 = 0.95;

/// The least time that all wait together, in seconds.
#[derive(Debug)]
pub struct Partywall {
    name: &'static str,
    evicts: bool,
    prices: bool,
    cheapest: Cheapest,
}

impl Default for Partywall {
    fn default() -> Self {
        Self { name: "partywall", evicts: true, prices: true, cheapest: Cheapest::default() }
    }
}

impl Partywall {
    /// What a best-effort request pushes out costs nothing.
    pub fn without_eviction() -> Self {
        Self { name: "partywall-without-eviction", evicts: false, ..Self::default() }
    }

    /// What a request computes delays nobody else: the shortest expected time to its first token.
    pub fn without_price() -> Self {
        Self { name: "partywall-without-price", prices: false, ..Self::default() }
    }
}

impl Policy for Partywall {
    fn name(&self) -> &'static str {
        self.name
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice {
        let rho = request.demand.utilisation.clamp(0.0, MOST_UTILISATION);
        let price = rho / (1.0 - rho) + f64::from(u8::from(request.demand.best_effort_waits));
        let price = if self.prices { price } else { 0.0 };
        self.cheapest.choose(candidates, |candidate| {
            let evicted = match request.class {
                Class::BestEffort if self.evicts => {
                    candidate.evicted_blocks * f64::from(candidate.capacity.block_tokens)
                }
                _ => 0.0,
            };
            let computed = candidate.seconds(candidate.new_tokens(request) as f64 + evicted);
            candidate.wait.as_secs() + computed * (1.0 + price)
        })
    }
}
