//! Which engine holds which block, exactly, from the engines' events.

use std::collections::BTreeMap;

use partywall_core::units::Nanos;
use partywall_routing::cached::Cached;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::ReplicaId;

/// The holders of every block that has one.
#[derive(Debug, Clone, Default)]
pub struct HeldBlocks {
    holders: BTreeMap<PrefixHash, Vec<u32>>,
}

impl HeldBlocks {
    /// A replica holds these from now on.
    pub fn stored(&mut self, replica: ReplicaId, blocks: &[PrefixHash]) {
        for block in blocks {
            let holders = self.holders.entry(*block).or_default();
            if let Err(place) = holders.binary_search(&replica.0) {
                holders.insert(place, replica.0);
            }
        }
    }

    /// A replica does not hold these any more.
    pub fn removed(&mut self, replica: ReplicaId, blocks: &[PrefixHash]) {
        for block in blocks {
            let Some(holders) = self.holders.get_mut(block) else { continue };
            if let Ok(place) = holders.binary_search(&replica.0) {
                holders.remove(place);
            }
            if holders.is_empty() {
                self.holders.remove(block);
            }
        }
    }
}

impl Cached for HeldBlocks {
    fn cached(&self, prefixes: &[PrefixHash], _: Nanos, blocks: &mut Vec<u32>) {
        blocks.clear();
        for (depth, prefix) in prefixes.iter().enumerate() {
            let mut unbroken = false;
            for &holder in self.holders.get(prefix).map_or(&[][..], |holders| holders) {
                let holder = holder as usize;
                if depth == 0 && blocks.len() <= holder {
                    blocks.resize(holder + 1, 0);
                }
                if let Some(held) = blocks.get_mut(holder).filter(|held| **held == depth as u32) {
                    *held += 1;
                    unbroken = true;
                }
            }
            if !unbroken {
                return;
            }
        }
    }
}
