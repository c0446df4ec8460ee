//! The exact index: which replica holds which blocks, as their engines say.
//!
//! # Problem
//!
//! For a prompt of some hundred blocks and some ten to some hundred replicas: how many blocks of the prompt's beginning does each hold?
//! The answer is wanted for every request, in less time than anything else costs that the gateway does, and has to be right: a beginning
//! that is not there is computed again while somebody waits. What replicas hold comes as events (stored, removed, cleared), a hundred
//! blocks per request, and a removal names blocks by a hash that the engine made and that means nothing here.
//!
//! # Approach
//!
//! **Chained hashes need no tree.** A [`PrefixHash`] stands for everything up to its block. So two beginnings that are equal at one block
//! are equal at all blocks before it, and a block's children need no pointer: the hash of the child finds it. The index is therefore a
//! flat set of **runs**, stretches of blocks that follow each other, and one small table from the hash that a run begins with to the run.
//! A lookup asks the table for the prompt's first block, compares the *last* block of that run with the prompt's block at the same place
//! (one comparison proves the whole run), asks the table for the block behind it, and so on. What it touches is one entry of the table and
//! one header per run, however long the run; only where a prompt ends or leaves within a run is there a bisection. A run ends where
//! chains part: storing a block behind the middle of a run cuts the run there.
//!
//! **Holders are bits.** Each run has a bit for every lane that holds all of it, and a record for each lane that holds less: how many blocks
//! from the run's beginning, and as bits what it holds behind a gap. A lookup carries the set of lanes that hold everything so far and
//! takes the intersection with each run's bits; a lane that drops out is at the depth that it reached. A lane that begins to evict from
//! the end, as engines do, costs a smaller number in a record and cuts nothing.
//!
//! **Removals by name.** For each holder and tier there is a flat table from the engine's hash to the block's slot. Slots never move while
//! they are held (not when a run is cut, not when it shrinks), so nothing in these tables has ever to be looked for and changed. They are
//! the only thing that a block costs a random access to memory for, when it is stored and when it is removed, and most of what that
//! takes. So each access is one cache line, fetched while others are waited for, and the tables are small: an entry is the slot and a few
//! bits of the name. The name itself is beside the block, once for all holders that call it the same, as engines do that make names
//! from contents alone; only a holder that has another name for the block keeps that in full. A block takes 20 bytes, and 13 to 26 for
//! each of its holders, or 17 to 35 under another name. Forgetting a holder goes through its own table and costs as much as it holds.
//!
//! # What is exact
//!
//! The answer is that of a naive list of what each holder holds (tested against one):
//!
//! - *Holes.* When a block is removed and its children stay, the children do not count until it is back; then they do, with no further event.
//! - *Copies.* A block that was stored twice under one engine hash is there until it was removed twice. Two engine hashes for one block
//!   are two copies as well. An engine hash that comes again for another block has moved: engines that were started again without a word
//!   do that.
//! - *Gaps.* A block whose parent the holder does not hold is not taken, and counted ([`Counts::orphans`]): no engine computes a block
//!   without its parent, so an event was lost, and what the block's place is cannot be known. The replica is then thought to hold less than
//!   it does, never more. Getting lost events again is the business of [`feed`](crate::feed).
//! - *Limits.* When the index is full, or one holder has more blocks than a holder may, blocks that nobody holds are not taken, nor their
//!   children, and counted ([`Counts::refused`]). So what is there stays, new blocks go first, and no replica can push another's out by
//!   what it says. Room comes back as engines remove.
//!
//! # Tiers
//!
//! An engine may hold a block on the device, in host memory and on disk. A beginning may go from one to the other, so what is answered
//! is cumulative: blocks on the device; on the device or in host memory; anywhere. Each of the three is a lane of its own from the first
//! event of a tier on, and until then they are one.
//!
//! # One writer
//!
//! Nothing is locked here. A lookup takes a shared reference and writes nothing, an event an exclusive one. In the gateway the index is
//! behind one `RwLock` that is held for one event at a time: 30 ns a block, 100 blocks, 3 us. The lock-free alternative would let lookups
//! pass while an event is applied; with microseconds to wait for at most, and one lookup per request, that is not worth what it costs to
//! get right.
//!
//! # Terms
//!
//! *Holder*: a replica's rank; replicas that are several data-parallel engines have several. *Lane*: a holder's bit for a tier, or for all
//! tiers while it has used one. *Slot*: where a block's hash lies. *Run, head*: see above. *Island*: a held block behind a hole.

use partywall_core::units::Nanos;

use crate::cached::Cached;
use crate::prefix::PrefixHash;
use crate::replica::ReplicaId;

mod arena;
mod heads;
mod held;
mod names;
mod placing;
#[cfg(test)]
mod reference;
mod runs;
mod slots;
#[cfg(test)]
mod tests;
mod walk;

use crate::table::{KeyTable, Taken};
use arena::Arena;
use names::Names;
use runs::{MAX_LANES, NONE, Runs};

/// A block as an engine names it: its own number, or the first 8 bytes of its own hash. It means nothing outside of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// One cache: a replica's data-parallel rank. Replicas that are one engine have rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Holder {
    /// Whose.
    pub replica: ReplicaId,
    /// Which of its engines.
    pub rank: u32,
}

/// Where a block lies, from near to far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Tier {
    /// The GPU's memory.
    #[default]
    Device,
    /// The host's memory.
    Host,
    /// Anything slower.
    Disk,
}

/// How much may be in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Distinct blocks of all holders together; 20 bytes each.
    pub blocks: u32,
    /// Blocks of one holder in all its tiers; 13 to 26 bytes each, 17 to 35 if it has names of its own for them.
    pub blocks_per_holder: u32,
    /// Replicas: the highest id, plus one.
    pub replicas: u32,
    /// Ranks of a replica.
    pub ranks: u32,
}

impl Default for Limits {
    /// 64 M blocks (of 16 tokens: 1 G tokens), 8 M per holder (134 M tokens: ten times an H200's memory full of keys and values of an 8 B
    /// model), 1024 replicas of 64 ranks.
    fn default() -> Self {
        Self { blocks: 64 << 20, blocks_per_holder: 8 << 20, replicas: 1024, ranks: 64 }
    }
}

/// What happened to an index since it was made, in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Taken, copies included.
    pub stored: u64,
    /// Of those: they were there already.
    pub copies: u64,
    /// Of those: the engine's hash stood for another block before.
    pub moved: u64,
    /// Not taken: the parent, or the block that a copy was to be of, is not known.
    pub orphans: u64,
    /// Not taken: a limit was reached, or so many of the holder's names want the same place in its table that others would have to wait.
    pub refused: u64,
    /// Removed, copies included.
    pub removed: u64,
    /// To be removed, but not known.
    pub unknown: u64,
    /// Gone with a holder that was cleared.
    pub cleared: u64,
}

/// How much of a prompt's beginning a replica holds, in blocks. Where it has several ranks: the one that holds most, for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Beginning {
    /// On the device.
    pub device: u32,
    /// On the device or in host memory.
    pub host: u32,
    /// Anywhere.
    pub disk: u32,
}

/// Which replica holds which blocks.
#[derive(Debug, Clone)]
pub struct Index {
    limits: Limits,
    runs: Runs,
    caches: Vec<Cache>,
    free_caches: Vec<u32>,
    /// By replica and rank: which cache, or `NONE`.
    by_replica: Vec<Vec<u32>>,
    /// By lane: whose.
    lanes: Vec<u32>,
    free_lanes: Vec<u32>,
    /// The lanes that say what a holder holds anywhere, as bits.
    anywhere: Vec<u64>,
    /// The lanes in use, as bits.
    used: Vec<u64>,
    /// Blocks that a lane holds more than once: by lane and slot, how often more.
    more: KeyTable,
    counts: Counts,
}

/// What is known of one holder.
#[derive(Debug, Clone)]
struct Cache {
    replica: u32,
    /// By tier: the engine's names.
    names: [Names; 3],
    /// By tier: the lane of what is there or nearer. Equal while no block came for the further tier.
    lanes: [u32; 3],
}

impl Cache {
    fn blocks(&self) -> usize {
        self.names.iter().map(Names::len).sum()
    }

    /// The lanes that a block of this tier counts for.
    fn lanes_of(&self, tier: Tier) -> ([u32; 3], usize) {
        let mut lanes = [NONE; 3];
        let mut count = 0;
        for &lane in &self.lanes[tier as usize..] {
            if count == 0 || lanes[count - 1] != lane {
                lanes[count] = lane;
                count += 1;
            }
        }
        (lanes, count)
    }

    /// The slot of a block in any tier.
    fn slot(&self, hash: EngineHash, arena: &Arena) -> Option<u32> {
        self.names.iter().find_map(|names| names.get(hash, arena))
    }
}

impl Index {
    /// Empty.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            runs: Runs::new(limits.blocks),
            caches: Vec::new(),
            free_caches: Vec::new(),
            by_replica: Vec::new(),
            lanes: Vec::new(),
            free_lanes: Vec::new(),
            anywhere: Vec::new(),
            used: Vec::new(),
            more: KeyTable::default(),
            counts: Counts::default(),
        }
    }

    /// Blocks that a holder has computed or copied into a tier, one behind the other, the first one behind `parent`, or at the beginning
    /// of a prompt. How many were taken; see [`Counts`] for why not all.
    pub fn store(
        &mut self,
        holder: Holder,
        tier: Tier,
        parent: Option<EngineHash>,
        blocks: &[(EngineHash, PrefixHash)],
    ) -> usize {
        let Some(cache) = self.admit(holder) else {
            self.counts.refused += blocks.len() as u64;
            return 0;
        };
        let after = match parent {
            None => None,
            Some(parent) => {
                let slot = self.caches[cache as usize].slot(parent, &self.runs.arena);
                let Some(place) = slot.and_then(|slot| self.runs.place(slot)) else {
                    self.counts.orphans += blocks.len() as u64;
                    return 0;
                };
                Some((place.0, place.1 + 1))
            }
        };
        let held = self.caches[cache as usize].blocks();
        let opened = self.open(cache, tier);
        let limit = if opened { self.limits.blocks_per_holder as usize } else { 0 };
        let room = limit.saturating_sub(held).min(blocks.len());
        let taken = self.place(cache, tier, after, &blocks[..room]);
        self.counts.stored += taken as u64;
        self.counts.refused += (blocks.len() - taken) as u64;
        taken
    }

    /// Blocks that a holder has copied into a tier from another tier, by name alone. How many were taken.
    pub fn copy(&mut self, holder: Holder, tier: Tier, hashes: &[EngineHash]) -> usize {
        let Some(cache) = self.find(holder) else {
            self.counts.orphans += hashes.len() as u64;
            return 0;
        };
        let opened = self.open(cache, tier);
        let mut taken = 0;
        for &hash in hashes {
            let known = &self.caches[cache as usize];
            if !opened || known.blocks() >= self.limits.blocks_per_holder as usize {
                self.counts.refused += 1;
            } else if let Some(slot) = known.slot(hash, &self.runs.arena)
                && let Some((run, at)) = self.runs.place(slot)
            {
                self.put_one(cache, tier, hash, run, at);
                taken += 1;
            } else {
                self.counts.orphans += 1;
            }
        }
        self.counts.stored += taken as u64;
        taken
    }

    /// One copy of each of these blocks has gone from a tier. How many of them were known.
    pub fn remove(&mut self, holder: Holder, tier: Tier, hashes: &[EngineHash]) -> usize {
        let Some(cache) = self.find(holder) else {
            self.counts.unknown += hashes.len() as u64;
            return 0;
        };
        let mut removed = 0;
        // Engines evict from the end of a prompt: slots that go down one by one go together.
        let mut gone: Vec<(u32, u32)> = Vec::new();
        let names = &mut self.caches[cache as usize].names[tier as usize];
        names.take_all(hashes, &self.runs.arena, |taken| {
            removed += usize::from(taken != Taken::Unknown);
            if let Taken::Last { slot } = taken {
                match gone.last_mut() {
                    Some((from, _)) if slot + 1 == *from => *from = slot,
                    _ => gone.push((slot, slot + 1)),
                }
            }
        });
        let (lanes, count) = self.caches[cache as usize].lanes_of(tier);
        for (from, to) in gone {
            self.release(&lanes[..count], from, to);
        }
        self.counts.removed += removed as u64;
        self.counts.unknown += (hashes.len() - removed) as u64;
        removed
    }

    /// A holder holds nothing any more, in no tier. Costs as much as it held.
    pub fn clear(&mut self, holder: Holder) {
        if let Some(cache) = self.find(holder) {
            self.empty(cache);
        }
    }

    /// A replica is gone, with all its ranks. Costs as much as it held.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        let Some(ranks) = self.by_replica.get_mut(replica.index()).map(std::mem::take) else { return };
        for cache in ranks.into_iter().filter(|&cache| cache != NONE) {
            self.empty(cache);
            let lane = self.caches[cache as usize].lanes[0];
            set(&mut self.used, lane, false);
            set(&mut self.anywhere, lane, false);
            self.free_lanes.push(lane);
            self.free_caches.push(cache);
        }
    }

    /// What a block that a holder holds stands for: what hashes of its children are made from.
    pub fn prefix(&self, holder: Holder, hash: EngineHash) -> Option<PrefixHash> {
        let slot = self.caches[self.find(holder)? as usize].slot(hash, &self.runs.arena)?;
        Some(PrefixHash(self.runs.arena.hash(slot)))
    }

    /// For each replica how much of a prompt's beginning it holds, by tier. Filled like the answer of [`Cached::cached`].
    pub fn beginnings(&self, prefixes: &[PrefixHash], beginnings: &mut Vec<Beginning>) {
        beginnings.clear();
        beginnings.resize(self.by_replica.len(), Beginning::default());
        self.walk(prefixes, &self.used, |lane, depth| {
            let cache = &self.caches[self.lanes[lane as usize] as usize];
            let Some(beginning) = beginnings.get_mut(cache.replica as usize) else { return };
            let tiers = [&mut beginning.device, &mut beginning.host, &mut beginning.disk];
            for (blocks, of) in tiers.into_iter().zip(cache.lanes) {
                if of == lane {
                    *blocks = depth.max(*blocks);
                }
            }
        });
    }

    /// What happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Distinct blocks that have a place, those included that a run has not given back yet.
    pub fn blocks(&self) -> usize {
        self.runs.arena.used() as usize
    }

    /// Blocks of all holders, in all tiers.
    pub fn held(&self) -> usize {
        self.caches.iter().map(Cache::blocks).sum()
    }

    /// Blocks of one holder, in all tiers.
    pub fn held_by(&self, holder: Holder) -> usize {
        self.find(holder).map_or(0, |cache| self.caches[cache as usize].blocks())
    }

    /// Stretches that blocks are kept in.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Bytes of memory that it takes.
    pub fn bytes(&self) -> usize {
        let names = self.caches.iter().flat_map(|cache| &cache.names).map(Names::bytes).sum::<usize>();
        names + self.runs.bytes() + self.more.bytes() + self.caches.capacity() * size_of::<Cache>()
    }

    fn find(&self, holder: Holder) -> Option<u32> {
        let cache = *self.by_replica.get(holder.replica.index())?.get(holder.rank as usize)?;
        (cache != NONE).then_some(cache)
    }

    /// The holder's cache, made if there is none yet; nothing where a limit forbids it.
    fn admit(&mut self, holder: Holder) -> Option<u32> {
        if let Some(cache) = self.find(holder) {
            return Some(cache);
        }
        if holder.replica.0 >= self.limits.replicas || holder.rank >= self.limits.ranks {
            return None;
        }
        let lane = self.new_lane()?;
        let replica = holder.replica.index();
        if replica >= self.by_replica.len() {
            self.by_replica.resize_with(replica + 1, Vec::new);
        }
        let ranks = &mut self.by_replica[replica];
        if holder.rank as usize >= ranks.len() {
            ranks.resize(holder.rank as usize + 1, NONE);
        }
        let cache = Cache { replica: holder.replica.0, names: <[Names; 3]>::default(), lanes: [lane; 3] };
        let number = match self.free_caches.pop() {
            Some(free) => {
                self.caches[free as usize] = cache;
                free
            }
            None => {
                self.caches.push(cache);
                self.caches.len() as u32 - 1
            }
        };
        self.by_replica[replica][holder.rank as usize] = number;
        self.lanes[lane as usize] = number;
        set(&mut self.anywhere, lane, true);
        Some(number)
    }

    fn new_lane(&mut self) -> Option<u32> {
        let lane = match self.free_lanes.pop() {
            Some(free) => free,
            None if self.lanes.len() as u32 >= MAX_LANES => return None,
            None => {
                self.lanes.push(NONE);
                self.lanes.len() as u32 - 1
            }
        };
        self.runs.admit(lane);
        set(&mut self.used, lane, true);
        set(&mut self.anywhere, lane, false);
        Some(lane)
    }

    /// Gives a tier a lane of its own when its first block comes. False where there are no more lanes.
    fn open(&mut self, cache: u32, tier: Tier) -> bool {
        let tier = tier as usize;
        let lanes = self.caches[cache as usize].lanes;
        if tier == 0 || lanes[tier] != lanes[tier - 1] {
            return true;
        }
        let Some(lane) = self.new_lane() else { return false };
        let from = lanes[tier];
        self.lanes[lane as usize] = cache;
        self.runs.clone_lane(from, lane);
        let twice: Vec<_> = self.more.iter().filter(|&(key, ..)| key >> 32 == u64::from(from)).collect();
        for (key, slot, copies) in twice {
            for _ in 0..copies {
                self.more.put(u64::from(lane) << 32 | key & u64::from(u32::MAX), slot);
            }
        }
        let lanes = &mut self.caches[cache as usize].lanes;
        for further in &mut lanes[tier..] {
            if *further == from {
                *further = lane;
            }
        }
        let furthest = lanes[2];
        if furthest == lane {
            set(&mut self.anywhere, from, false);
            set(&mut self.anywhere, furthest, true);
        }
        true
    }

    /// Forgets everything that a cache holds, and its lanes but one.
    fn empty(&mut self, cache: u32) {
        let known = &mut self.caches[cache as usize];
        let (all, count) = known.lanes_of(Tier::Device);
        let lanes = &all[..count];
        let names = std::mem::take(&mut known.names);
        self.counts.cleared += names.iter().map(|names| names.len() as u64).sum::<u64>();
        for slot in names.iter().flat_map(Names::slots) {
            for &lane in lanes {
                if self.more.len() > 0 {
                    self.more.forget(many(lane, slot));
                }
                if let Some((run, _)) = self.runs.place(slot) {
                    self.runs.drop_lane(run, lane);
                }
            }
        }
        self.caches[cache as usize].lanes = [lanes[0]; 3];
        set(&mut self.anywhere, lanes[0], true);
        for &lane in &lanes[1..] {
            set(&mut self.used, lane, false);
            set(&mut self.anywhere, lane, false);
            self.free_lanes.push(lane);
        }
    }
}

impl Cached for Index {
    /// Of the blocks that it holds anywhere: what lies in host memory or on disk need not be computed either.
    fn cached(&self, prefixes: &[PrefixHash], _: Nanos, blocks: &mut Vec<u32>) {
        blocks.clear();
        blocks.resize(self.by_replica.len(), 0);
        self.walk(prefixes, &self.anywhere, |lane, depth| {
            let cache = &self.caches[self.lanes[lane as usize] as usize];
            if let Some(blocks) = blocks.get_mut(cache.replica as usize) {
                *blocks = depth.max(*blocks);
            }
        });
    }
}

/// The key under which it is noted how often more a lane holds a slot.
fn many(lane: u32, slot: u32) -> u64 {
    u64::from(lane) << 32 | u64::from(slot)
}

fn set(words: &mut Vec<u64>, lane: u32, is: bool) {
    let word = lane as usize / 64;
    if word >= words.len() {
        words.resize(word + 1, 0);
    }
    let bit = 1 << (lane % 64);
    if is {
        words[word] |= bit;
    } else {
        words[word] &= !bit;
    }
}
