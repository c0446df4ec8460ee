//! Who holds how much of a prompt's beginning: the question that the exact index and the learned one both answer.

use partywall_core::units::Nanos;

use crate::prefix::PrefixHash;

/// Something that knows what replicas hold in their caches.
pub trait Cached {
    /// For each replica the number of blocks of the longest unbroken beginning that it holds.
    ///
    /// `prefixes` is a prompt's beginning, block by block. `blocks` is indexed by [`ReplicaId`](crate::replica::ReplicaId): it is cleared
    /// and filled as far as replicas are known; one beyond its end holds nothing.
    fn cached(&self, prefixes: &[PrefixHash], now: Nanos, blocks: &mut Vec<u32>);
}
