//! The blocks of one engine's cache: which are held, which are in use, which goes next.
//!
//! A block is *pinned* while a request uses it and *idle* afterwards. Idle blocks stay until room is needed and then go in the order in which
//! they were last used. A request gives back the end of its prompt first, so that the end goes before the beginning: what is held of a
//! prompt is always an unbroken beginning. Blocks that are being computed, or that hold generated tokens, have no name: nothing can be found
//! by them, and they are free again when their request ends.

use std::collections::BTreeMap;

use partywall_routing::prefix::PrefixHash;

#[cfg(test)]
mod tests;

/// No slot.
const NONE: u32 = u32::MAX;

/// A named block. Idle ones form a list, from the one that goes next to the one used last.
#[derive(Debug, Clone, Copy)]
struct Slot {
    name: PrefixHash,
    users: u32,
    older: u32,
    newer: u32,
}

/// The blocks of one engine.
#[derive(Debug, Clone)]
pub(super) struct BlockCache {
    capacity: u64,
    named: BTreeMap<PrefixHash, u32>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    oldest: u32,
    newest: u32,
    idle: u64,
    /// Blocks without a name, all in use.
    unnamed: u64,
}

impl BlockCache {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            named: BTreeMap::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            oldest: NONE,
            newest: NONE,
            idle: 0,
            unnamed: 0,
        }
    }

    /// Blocks it can hold.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Blocks that hold something, in use or not.
    pub(super) fn held(&self) -> u64 {
        self.named.len() as u64 + self.unnamed
    }

    /// Blocks in use.
    pub(super) fn pinned(&self) -> u64 {
        self.held() - self.idle
    }

    /// Every named block, by name.
    pub(super) fn names(&self) -> impl Iterator<Item = PrefixHash> + '_ {
        self.named.keys().copied()
    }

    /// How many of the first of these it holds.
    pub(super) fn matched(&self, prefixes: &[PrefixHash]) -> usize {
        prefixes.iter().take_while(|name| self.named.contains_key(name)).count()
    }

    /// Pins `found`, which are held, and makes room for so many more blocks without a name. What has to go for it is added to `removed`.
    /// Does nothing and says so where there is not that much room.
    pub(super) fn reserve(&mut self, found: &[PrefixHash], more: u64, removed: &mut Vec<PrefixHash>) -> bool {
        let idle_found =
            found.iter().filter(|name| self.slot(name).is_some_and(|slot| slot.users == 0)).count();
        let room = (self.capacity - self.held() + self.idle).saturating_sub(idle_found as u64);
        if more > room {
            return false;
        }
        self.pin(found);
        while self.capacity - self.held() < more {
            removed.push(self.drop_oldest());
        }
        self.unnamed += more;
        true
    }

    /// Gives names to blocks that were reserved and are computed now; they stay pinned. Adds to `stored` those that were not held.
    pub(super) fn name(&mut self, computed: &[PrefixHash], stored: &mut Vec<PrefixHash>) {
        for name in computed {
            self.unnamed -= 1;
            if self.named.contains_key(name) {
                self.pin(&[*name]);
                continue;
            }
            let slot = Slot { name: *name, users: 1, older: NONE, newer: NONE };
            let index = match self.free_slots.pop() {
                Some(index) => {
                    self.slots[index as usize] = slot;
                    index
                }
                None => {
                    self.slots.push(slot);
                    (self.slots.len() - 1) as u32
                }
            };
            self.named.insert(*name, index);
            stored.push(*name);
        }
    }

    /// Ends the use of these, which are pinned, and of so many blocks without a name.
    pub(super) fn release(&mut self, used: &[PrefixHash], unnamed: u64) {
        self.unnamed -= unnamed;
        for name in used.iter().rev() {
            let Some(&index) = self.named.get(name) else { continue };
            let slot = &mut self.slots[index as usize];
            slot.users -= 1;
            if slot.users == 0 {
                self.link_newest(index);
            }
        }
    }

    /// Drops the block that has not been in use for longest, of which there is one.
    fn drop_oldest(&mut self) -> PrefixHash {
        let index = self.oldest;
        let name = self.slots[index as usize].name;
        self.unlink(index);
        self.named.remove(&name);
        self.free_slots.push(index);
        name
    }

    /// Drops every block that is not in use.
    pub(super) fn clear(&mut self, removed: &mut Vec<PrefixHash>) {
        while self.oldest != NONE {
            removed.push(self.drop_oldest());
        }
    }

    fn slot(&self, name: &PrefixHash) -> Option<&Slot> {
        self.named.get(name).map(|&index| &self.slots[index as usize])
    }

    fn pin(&mut self, names: &[PrefixHash]) {
        for name in names {
            let Some(&index) = self.named.get(name) else { continue };
            if self.slots[index as usize].users == 0 {
                self.unlink(index);
            }
            self.slots[index as usize].users += 1;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Slot { older, newer, .. } = self.slots[index as usize];
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        self.idle -= 1;
    }

    fn link_newest(&mut self, index: u32) {
        let older = std::mem::replace(&mut self.newest, index);
        let slot = &mut self.slots[index as usize];
        (slot.older, slot.newer) = (older, NONE);
        match older {
            NONE => self.oldest = index,
            older => self.slots[older as usize].newer = index,
        }
        self.idle += 1;
    }
}
