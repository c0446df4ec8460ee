//! What one holder calls the blocks that it holds in one tier.

use std::collections::BTreeMap;

use super::EngineHash;
use super::arena::Arena;
use super::slots::{AHEAD, SlotTable};
use crate::prefix::PrefixHash;
use crate::table::{KeyTable, Put, Taken};

#[cfg(test)]
mod tests;

/// From an engine's name for a block to the block's slot, and a number of copies.
///
/// The arena has a name beside each block, the one under which it was stored first. Engines that name blocks by what is in them all use it,
/// and then an entry here needs no name of its own. Names that are not in the arena are kept in full.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    /// Blocks that are called what the arena calls them.
    common: SlotTable,
    /// Copies of those, where there are several.
    copies: BTreeMap<u64, u32>,
    /// Blocks that are called otherwise.
    own: KeyTable,
}

impl Names {
    /// Names.
    pub(super) fn len(&self) -> usize {
        self.common.len() + self.own.len()
    }

    /// Bytes that it takes, without those for copies.
    pub(super) fn bytes(&self) -> usize {
        self.common.bytes() + self.own.bytes()
    }

    /// All slots, in no order.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.common.slots().chain(self.own.slots())
    }

    /// The slot of a block.
    pub(super) fn get(&self, name: EngineHash, arena: &Arena) -> Option<u32> {
        let entry = self.common.find(name.0, arena);
        entry.map(|entry| self.common.slot(entry)).or_else(|| self.own.get(name.0))
    }

    /// Says that this name will be noted or taken soon: the memory is then near when it comes.
    #[inline]
    pub(super) fn prefetch(&self, name: EngineHash) {
        self.common.prefetch(name.0);
        self.own.prefetch(name.0);
    }

    /// Notes the names of blocks at slots that follow each other, until one comes that is there already or has no room. How many were noted.
    #[inline]
    pub(super) fn put_new(
        &mut self,
        blocks: &[(EngineHash, PrefixHash)],
        first: u32,
        arena: &Arena,
    ) -> usize {
        let known = arena.names(first, blocks.len() as u32);
        let pairs = || blocks.iter().zip(known);
        if pairs().fold(0, |differ, ((name, _), known)| differ | (name.0 ^ known)) == 0 {
            return self.put_common(blocks, first, arena);
        }
        let mut done = 0;
        while done < blocks.len() {
            let (blocks, known) = (&blocks[done..], &known[done..]);
            let is_common = |((name, _), known): (&(EngineHash, PrefixHash), &u64)| name.0 == *known;
            let common = blocks.iter().zip(known).take_while(|&pair| is_common(pair)).count();
            let slot = first + done as u32;
            let (wanted, noted) = if common > 0 {
                (common, self.put_common(&blocks[..common], slot, arena))
            } else {
                let own = blocks.iter().zip(known).take_while(|&pair| !is_common(pair)).count();
                (own, self.put_own(&blocks[..own], slot, arena))
            };
            done += noted;
            if noted < wanted {
                break;
            }
        }
        done
    }

    #[inline]
    fn put_common(&mut self, blocks: &[(EngineHash, PrefixHash)], first: u32, arena: &Arena) -> usize {
        let is_new = |name: u64| self.own.get(name).is_none();
        let new = match self.own.len() {
            0 => blocks.len(),
            _ => blocks.iter().take_while(|(name, _)| is_new(name.0)).count(),
        };
        self.common.insert_all(&blocks[..new], |(name, _)| name.0, first, arena)
    }

    fn put_own(&mut self, blocks: &[(EngineHash, PrefixHash)], first: u32, arena: &Arena) -> usize {
        let is_new = |name: u64| self.common.find(name, arena).is_none();
        let new = blocks.iter().take_while(|(name, _)| is_new(name.0)).count();
        self.own.put_new(&blocks[..new], |(name, _)| name.0, first)
    }

    /// Notes that a block has this name, once more if it has already.
    pub(super) fn put(&mut self, name: EngineHash, slot: u32, arena: &Arena) -> Put {
        let EngineHash(name) = name;
        let is_common = arena.name(slot) == name;
        if let Some(entry) = self.common.find(name, arena) {
            let from = self.common.slot(entry);
            if from == slot {
                let copies = self.copies.entry(name).or_insert(1);
                *copies = copies.saturating_add(1);
                return Put::Copy;
            }
            if is_common {
                self.common.set(entry, slot);
            } else if self.own.put(name, slot) == Put::Refused {
                // It stays where it was.
                return Put::Refused;
            } else {
                self.common.remove(name, entry);
            }
            self.copies.remove(&name);
            return Put::Moved { from };
        }
        if !is_common {
            return self.own.put(name, slot);
        }
        if !self.common.insert(name, slot, arena) {
            return Put::Refused;
        }
        match self.own.get(name) {
            None => Put::New,
            Some(from) => {
                self.own.forget(name);
                Put::Moved { from }
            }
        }
    }

    /// Takes one copy of each of the names away.
    #[inline]
    pub(super) fn take_all(&mut self, names: &[EngineHash], arena: &Arena, mut taken: impl FnMut(Taken)) {
        let mut ahead = names.iter();
        ahead.by_ref().take(AHEAD).for_each(|&name| self.prefetch(name));
        for name in names {
            if let Some(&name) = ahead.next() {
                self.prefetch(name);
            }
            taken(self.take(name.0, arena));
        }
    }

    #[inline]
    fn take(&mut self, name: u64, arena: &Arena) -> Taken {
        let Some(entry) = self.common.find(name, arena) else { return self.own.take(name) };
        if !self.copies.is_empty()
            && let Some(copies) = self.copies.get_mut(&name)
        {
            *copies -= 1;
            if *copies == 1 {
                self.copies.remove(&name);
            }
            return Taken::Copy;
        }
        let slot = self.common.slot(entry);
        self.common.remove(name, entry);
        Taken::Last { slot }
    }
}
