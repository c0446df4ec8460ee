//! What the index has to answer, written down as plainly as possible.

use std::collections::{BTreeMap, BTreeSet};

use super::{Beginning, EngineHash, Holder, Tier};
use crate::prefix::PrefixHash;

/// A list of what each holder holds.
#[derive(Debug, Default)]
pub(super) struct Reference {
    names: BTreeMap<(Holder, Tier), BTreeMap<EngineHash, (PrefixHash, u32)>>,
}

impl Reference {
    fn name(&self, holder: Holder, hash: EngineHash) -> Option<PrefixHash> {
        let tiers = [Tier::Device, Tier::Host, Tier::Disk];
        tiers.iter().find_map(|&tier| Some(self.names.get(&(holder, tier))?.get(&hash)?.0))
    }

    pub(super) fn held(&self) -> usize {
        self.names.values().map(BTreeMap::len).sum()
    }

    pub(super) fn store(
        &mut self,
        holder: Holder,
        tier: Tier,
        parent: Option<EngineHash>,
        blocks: &[(EngineHash, PrefixHash)],
    ) {
        if parent.is_some_and(|parent| self.name(holder, parent).is_none()) {
            return;
        }
        let names = self.names.entry((holder, tier)).or_default();
        for &(hash, prefix) in blocks {
            let name = names.entry(hash).or_insert((prefix, 0));
            *name = if name.0 == prefix { (prefix, name.1 + 1) } else { (prefix, 1) };
        }
    }

    pub(super) fn copy(&mut self, holder: Holder, tier: Tier, hashes: &[EngineHash]) {
        for &hash in hashes {
            if let Some(prefix) = self.name(holder, hash) {
                let names = self.names.entry((holder, tier)).or_default();
                let name = names.entry(hash).or_insert((prefix, 0));
                *name = if name.0 == prefix { (prefix, name.1 + 1) } else { (prefix, 1) };
            }
        }
    }

    pub(super) fn remove(&mut self, holder: Holder, tier: Tier, hashes: &[EngineHash]) {
        let Some(names) = self.names.get_mut(&(holder, tier)) else { return };
        for hash in hashes {
            if let Some(name) = names.get_mut(hash) {
                name.1 -= 1;
                if name.1 == 0 {
                    names.remove(hash);
                }
            }
        }
    }

    pub(super) fn clear(&mut self, holder: Holder) {
        self.names.retain(|(of, _), _| *of != holder);
    }

    pub(super) fn beginnings(&self, prefixes: &[PrefixHash], replicas: usize) -> Vec<Beginning> {
        let mut beginnings = vec![Beginning::default(); replicas];
        let holders: BTreeSet<Holder> = self.names.keys().map(|(holder, _)| *holder).collect();
        for holder in holders {
            let reach = |to: Tier| {
                let held = |prefix: &PrefixHash| {
                    self.names
                        .iter()
                        .filter(|((of, tier), _)| *of == holder && *tier <= to)
                        .any(|(_, names)| names.values().any(|name| name.0 == *prefix))
                };
                prefixes.iter().take_while(|prefix| held(prefix)).count() as u32
            };
            let beginning = &mut beginnings[holder.replica.index()];
            beginning.device = beginning.device.max(reach(Tier::Device));
            beginning.host = beginning.host.max(reach(Tier::Host));
            beginning.disk = beginning.disk.max(reach(Tier::Disk));
        }
        beginnings
    }
}
