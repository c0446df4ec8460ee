//! The rules by which a replica is chosen: one trait, one file each.

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::prefix::PrefixHash;
use crate::replica::{Capacity, GpuState, Load, ReplicaId};
use crate::traffic::Demand;

mod bounded_hash;
mod cheapest;
mod dynamo;
mod least_load;
mod llm_d;
mod longest_prefix;
mod partywall;
mod round_robin;
mod sglang;
#[cfg(test)]
mod tests;

pub use bounded_hash::BoundedHash;
pub use dynamo::{Dynamo, DynamoLmetric};
pub use least_load::LeastLoad;
pub use llm_d::LlmD;
pub use longest_prefix::LongestPrefix;
pub use partywall::Partywall;
pub use round_robin::RoundRobin;
pub use sglang::SglangCacheAware;

/// The names of all policies, the default first.
pub const NAMES: [&str; 9] = [
    "partywall",
    "round-robin",
    "least-load",
    "bounded-hash",
    "longest-prefix",
    "sglang",
    "llm-d",
    "dynamo",
    "dynamo-lmetric",
];

/// The default without one of its terms each: what that term is worth can be seen in a comparison. Not for use.
pub const ABLATIONS: [&str; 2] = ["partywall-without-eviction", "partywall-without-price"];

/// The policy of this name; `None` where there is none.
pub fn named(name: &str) -> Option<Box<dyn Policy>> {
    Some(match name {
        "partywall" => Box::<Partywall>::default(),
        "round-robin" => Box::<RoundRobin>::default(),
        "least-load" => Box::<LeastLoad>::default(),
        "bounded-hash" => Box::<BoundedHash>::default(),
        "longest-prefix" => Box::<LongestPrefix>::default(),
        "sglang" => Box::<SglangCacheAware>::default(),
        "llm-d" => Box::<LlmD>::default(),
        "dynamo" => Box::<Dynamo>::default(),
        "dynamo-lmetric" => Box::<DynamoLmetric>::default(),
        "partywall-without-eviction" => Box::new(Partywall::without_eviction()),
        "partywall-without-price" => Box::new(Partywall::without_price()),
        _ => return None,
    })
}

/// A request, as far as a choice depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// Who it is for.
    pub class: Class,
    /// Its prompt's beginning, block by block; only whole blocks.
    pub prefixes: &'a [PrefixHash],
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// What keeps requests together that no prefix does, such as a conversation's id.
    pub affinity: Option<u64>,
    /// What the others want.
    pub demand: Demand,
}

/// Below this a replica is as good as paused.
const LEAST_SPEED: f64 = 1e-3;

/// A replica that may be chosen, and what it would mean for this request.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    /// Which.
    pub replica: ReplicaId,
    /// What it can do.
    pub capacity: Capacity,
    /// What it has to do.
    pub load: Load,
    /// How its GPU is.
    pub gpu: GpuState,
    /// How long it is expected to take until it begins with this request.
    pub wait: Nanos,
    /// How many of the request's first blocks it holds, or will hold when what was sent to it before is through.
    pub cached_blocks: u32,
    /// How many blocks that latency-sensitive requests are expected to want again this request would push out.
    pub evicted_blocks: f64,
}

impl Candidate {
    /// Tokens of the request's prompt that it would have to compute: at least one.
    pub fn new_tokens(&self, request: &Request<'_>) -> u64 {
        let cached = u64::from(self.cached_blocks) * u64::from(self.capacity.block_tokens);
        request.input_tokens.saturating_sub(cached).max(1)
    }

    /// Seconds that it takes to compute so many tokens of prompts, as its GPU is now. Finite also while it is paused.
    pub fn seconds(&self, tokens: f64) -> f64 {
        tokens / (self.capacity.prefill_tokens_per_s * self.gpu.speed.max(LEAST_SPEED))
    }
}

/// A choice and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    /// Index of the candidate.
    pub candidate: usize,
    /// What the policy made of it: the lowest is chosen. Its unit is the policy's.
    pub cost: f64,
}

/// A rule by which a replica is chosen.
pub trait Policy: Send {
    /// What it is called in configuration, metrics and tables.
    fn name(&self) -> &'static str;

    /// Which of these. There is at least one; they are in the order of their ids.
    fn choose(&mut self, request: &Request<'_>, candidates: &[Candidate]) -> Choice;
}
