//! What is known of a replica: what it can do, what it has to do, how its GPU is.

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

/// A replica, as a small number that lists are indexed by. Given again after its replica is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ReplicaId(pub u32);

impl ReplicaId {
    /// As a list index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a replica can do alone, as configured or learned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// Prompt tokens that it computes in a second.
    pub prefill_tokens_per_s: f64,
    /// How long a token of output takes while others are generated as well.
    pub token_time: Nanos,
    /// Requests that it generates for at the same time; more wait.
    pub streams: u32,
    /// Tokens in a block of its cache.
    pub block_tokens: u32,
    /// Blocks that its cache holds.
    pub cache_blocks: u64,
}

/// What the node says of the GPU below a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuState {
    /// How much of its speed alone the replica has now: 1 alone, 0.5 when everything takes twice as long.
    pub speed: f64,
    /// Its work is held back for a latency-sensitive neighbour on the same GPU.
    pub squeezed: bool,
    /// Nothing of it runs, until further notice.
    pub paused: bool,
}

impl Default for GpuState {
    /// Nobody else is there, or nobody says so.
    fn default() -> Self {
        Self { speed: 1.0, squeezed: false, paused: false }
    }
}

/// What has been sent to a replica and is not through, by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outstanding {
    /// Requests whose first token has not come.
    pub waiting: u32,
    /// Prompt tokens of these, cached or not.
    pub waiting_tokens: u64,
    /// Prompt tokens of these that are not expected in its cache.
    pub prefill_tokens: u64,
    /// Requests that get tokens.
    pub decoding: u32,
    /// Tokens that those have in the cache by now.
    pub decoding_tokens: u64,
}

/// What a replica has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// For latency-sensitive requests.
    pub latency_sensitive: Outstanding,
    /// For best-effort requests.
    pub best_effort: Outstanding,
}

impl Load {
    /// Of one class.
    pub fn of(&self, class: Class) -> &Outstanding {
        match class {
            Class::LatencySensitive => &self.latency_sensitive,
            Class::BestEffort => &self.best_effort,
        }
    }

    /// Of one class, to be changed.
    pub fn of_mut(&mut self, class: Class) -> &mut Outstanding {
        match class {
            Class::LatencySensitive => &mut self.latency_sensitive,
            Class::BestEffort => &mut self.best_effort,
        }
    }

    /// Requests that are not through.
    pub fn requests(&self) -> u32 {
        let [ls, be] = [self.latency_sensitive, self.best_effort];
        ls.waiting + ls.decoding + be.waiting + be.decoding
    }

    /// Prompt tokens that it has to compute before it comes to a new request.
    pub fn prefill_tokens(&self) -> u64 {
        self.latency_sensitive.prefill_tokens + self.best_effort.prefill_tokens
    }
}
