//! Where the hashes and names of the blocks of runs lie: one list, handed out in stretches.
//!
//! A place in it (a *slot*) never moves as long as it is in use, so other tables can name a block by its slot. A stretch that is given
//! back is joined with free neighbours at once: the first and the last slot of a free stretch carry its length, as in Knuth's boundary
//! tags. Free stretches of similar size are on one list. Where no free stretch is large enough a smaller one is handed out before the
//! list grows much: whoever asks takes several.

use prefetch_index::prefetch_index;

use super::EngineHash;
use crate::prefix::PrefixHash;

/// In the owner of a slot: it is free, and the other bits are the length of the free stretch, which counts at its two ends only.
const FREE: u32 = 1 << 31;
/// The most slots, so that owner and length fit.
pub(super) const MAX_SLOTS: u32 = FREE - 1;
/// No stretch.
const NONE: u32 = u32::MAX;
/// How many stretches of the same list as the wanted size are looked at before a larger one is cut.
const LOOKS: u32 = 4;

/// Hashes, names and whose they are, slot by slot.
#[derive(Debug, Clone)]
pub(super) struct Arena {
    hashes: Vec<u64>,
    /// What the engine that stored a block first calls it.
    names: Vec<u64>,
    owners: Vec<u32>,
    /// The first free stretch of each size; size `i` is from 2^i slots.
    lists: [u32; 32],
    free: u32,
    limit: u32,
}

impl Arena {
    /// At most `limit` slots.
    pub(super) fn new(limit: u32) -> Self {
        Self {
            hashes: Vec::new(),
            names: Vec::new(),
            owners: Vec::new(),
            lists: [NONE; 32],
            free: 0,
            limit: limit.min(MAX_SLOTS),
        }
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        (self.hashes.capacity() + self.names.capacity()) * size_of::<u64>()
            + self.owners.capacity() * size_of::<u32>()
    }

    /// Slots in use.
    pub(super) fn used(&self) -> u32 {
        self.hashes.len() as u32 - self.free
    }

    /// The hash at a slot in use.
    #[inline]
    pub(super) fn hash(&self, slot: u32) -> u64 {
        self.hashes[slot as usize]
    }

    /// The hashes of a stretch in use.
    #[inline]
    pub(super) fn hashes(&self, start: u32, len: u32) -> &[u64] {
        &self.hashes[start as usize..(start + len) as usize]
    }

    /// What the block at a slot in use is called.
    #[inline]
    pub(super) fn name(&self, slot: u32) -> u64 {
        self.names[slot as usize]
    }

    /// Says that it will be asked soon what the block at a slot is called.
    #[inline]
    pub(super) fn prefetch_name(&self, slot: u32) {
        prefetch_index(&self.names, slot as usize);
    }

    /// What the blocks of a stretch in use are called.
    #[inline]
    pub(super) fn names(&self, start: u32, len: u32) -> &[u64] {
        &self.names[start as usize..(start + len) as usize]
    }

    /// Whose a slot is.
    #[inline]
    pub(super) fn owner(&self, slot: u32) -> u32 {
        self.owners[slot as usize]
    }

    /// Fills a stretch that was handed out.
    pub(super) fn fill(&mut self, start: u32, blocks: &[(EngineHash, PrefixHash)], owner: u32) {
        let stretch = start as usize..start as usize + blocks.len();
        let hashes = self.hashes[stretch.clone()].iter_mut().zip(&mut self.names[stretch.clone()]);
        for ((hash, name), block) in hashes.zip(blocks) {
            (*hash, *name) = (block.1.0, block.0.0);
        }
        self.owners[stretch].fill(owner);
    }

    /// Gives a stretch to another owner.
    pub(super) fn give(&mut self, start: u32, len: u32, owner: u32) {
        self.owners[start as usize..(start + len) as usize].fill(owner);
    }

    /// Hands out a stretch of at most `want` slots, or nothing when the arena is full. The first slot and the number of them.
    pub(super) fn take(&mut self, want: u32) -> Option<(u32, u32)> {
        let want = want.max(1);
        if let Some(start) = self.fitting(want) {
            return Some((start, self.cut(start, want)));
        }
        let len = self.hashes.len() as u32;
        let room = self.limit.saturating_sub(len);
        let fragmented = self.free > len / 4;
        if room >= want && !fragmented {
            return Some((self.extend(want), want));
        }
        if let Some(start) = self.largest() {
            return Some((start, self.cut(start, want)));
        }
        (room > 0).then(|| {
            let want = want.min(room);
            (self.extend(want), want)
        })
    }

    /// Takes a stretch back.
    pub(super) fn put(&mut self, start: u32, len: u32) {
        if len == 0 {
            return;
        }
        let (mut start, mut len) = (start, len);
        let end = start + len;
        if let Some(&next) = self.owners.get(end as usize)
            && next & FREE != 0
        {
            self.unlink(end);
            len += next & !FREE;
        }
        if start > 0 {
            let before = self.owners[start as usize - 1];
            if before & FREE != 0 {
                start -= before & !FREE;
                self.unlink(start);
                len += before & !FREE;
            }
        }
        self.link(start, len);
    }

    /// A free stretch of at least `want`, without one that is much too large where there is a choice.
    fn fitting(&self, want: u32) -> Option<u32> {
        if self.free < want {
            return None;
        }
        let mut at = self.lists[want.ilog2() as usize];
        for _ in 0..LOOKS {
            if at == NONE {
                break;
            }
            if self.length(at) >= want {
                return Some(at);
            }
            at = self.links(at).1;
        }
        self.lists[want.ilog2() as usize + 1..].iter().copied().find(|&first| first != NONE)
    }

    fn largest(&self) -> Option<u32> {
        self.lists.iter().rev().copied().find(|&first| first != NONE)
    }

    /// Takes up to `want` slots from the beginning of a free stretch; how many.
    fn cut(&mut self, start: u32, want: u32) -> u32 {
        let len = self.length(start);
        self.unlink(start);
        if len > want {
            self.link(start + want, len - want);
        }
        self.give(start, want.min(len), 0);
        want.min(len)
    }

    fn extend(&mut self, want: u32) -> u32 {
        let start = self.hashes.len();
        let end = start + want as usize;
        if end > self.hashes.capacity() {
            // An eighth more at a time: doubling would leave half of a large index empty.
            let more = (want as usize).max(start / 8).max(1024);
            self.hashes.reserve_exact(more);
            self.names.reserve_exact(more);
            self.owners.reserve_exact(more);
        }
        self.hashes.resize(end, 0);
        self.names.resize(end, 0);
        self.owners.resize(end, 0);
        start as u32
    }

    fn length(&self, start: u32) -> u32 {
        self.owners[start as usize] & !FREE
    }

    /// The free stretches of the same list before and behind this one; they are kept where its first hash was.
    fn links(&self, start: u32) -> (u32, u32) {
        let word = self.hashes[start as usize];
        ((word >> 32) as u32, word as u32)
    }

    fn set_links(&mut self, start: u32, before: u32, behind: u32) {
        self.hashes[start as usize] = (u64::from(before) << 32) | u64::from(behind);
    }

    fn link(&mut self, start: u32, len: u32) {
        self.owners[start as usize] = FREE | len;
        self.owners[(start + len) as usize - 1] = FREE | len;
        let list = len.ilog2() as usize;
        let first = self.lists[list];
        self.set_links(start, NONE, first);
        if first != NONE {
            let (_, behind) = self.links(first);
            self.set_links(first, start, behind);
        }
        self.lists[list] = start;
        self.free += len;
    }

    fn unlink(&mut self, start: u32) {
        let len = self.length(start);
        let (before, behind) = self.links(start);
        if before == NONE {
            self.lists[len.ilog2() as usize] = behind;
        } else {
            let (first, _) = self.links(before);
            self.set_links(before, first, behind);
        }
        if behind != NONE {
            let (_, last) = self.links(behind);
            self.set_links(behind, before, last);
        }
        self.free -= len;
    }
}
