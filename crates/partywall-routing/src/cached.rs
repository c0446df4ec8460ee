//! What is asked of an index of cached blocks.

use partywall_core::units::Nanos;

use crate::prefix::PrefixHash;
use crate::router::Arrival;

/// Knows which replica holds how much of a prompt's beginning.
pub trait Cached {
    /// Writes to `blocks`, by [`crate::replica::ReplicaId::index`], how many of the first of `prefixes` each replica holds without a gap.
    /// What was in `blocks` is dropped; replicas beyond its end hold nothing.
    fn cached(&self, prefixes: &[PrefixHash], now: Nanos, blocks: &mut Vec<u32>);

    /// The same for a request: for those to whom it matters which model it asks for.
    fn cached_for(&self, arrival: &Arrival, now: Nanos, blocks: &mut Vec<u32>) {
        self.cached(&arrival.prefixes, now, blocks);
    }
}

/// Nothing is known of any cache.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unknown;

impl Cached for Unknown {
    fn cached(&self, _: &[PrefixHash], _: Nanos, blocks: &mut Vec<u32>) {
        blocks.clear();
    }
}
