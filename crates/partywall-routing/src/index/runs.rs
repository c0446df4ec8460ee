//! Runs: stretches of blocks that follow each other, and which lanes hold how much of each.
//!
//! A *lane* is whoever holds blocks, as a bit (see [`super`] for who that is). Of one run a lane holds everything (a bit), or the
//! beginning up to a cutoff and perhaps islands behind it (a record), or nothing.
//!
//! What always holds: every block is in one run at most; the last block of a run is held by some lane; a lane has the bit or a record or
//! neither, never both; a record is neither empty nor everything.

use super::EngineHash;
use super::arena::Arena;
use super::heads::HeadTable;
use super::held::Held;
use crate::prefix::PrefixHash;

/// The most blocks in a run: what a split or an island costs is bounded by it.
pub(super) const MAX_RUN: u32 = 4096;
/// The most lanes.
pub(super) const MAX_LANES: u32 = 4096;
/// Slots for a run that begins shorter than this, so that what is generated block by block can be appended.
const ROOM_TO_GROW: u32 = 32;
/// Unused slots that a run keeps at least before it gives them back.
const KEPT: u32 = 16;
/// No run, no record.
pub(super) const NONE: u32 = u32::MAX;

/// A stretch of blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    /// The hash of its first block.
    pub(super) head: u64,
    /// The hash of its last block. Hashes are chained, so equal here means equal all the way.
    pub(super) last: u64,
    /// Which of the first 64 lanes hold all of it.
    full: u64,
    /// Its first slot. In a run that is free: the next free one.
    pub(super) start: u32,
    /// Its blocks. Zero when it is free.
    pub(super) len: u32,
    /// The slots that are its own.
    room: u32,
    /// The first record of a lane that holds some of it.
    partial: u32,
}

/// What a lane holds of a run that it does not hold all of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Partial {
    pub(super) lane: u32,
    pub(super) cutoff: u32,
    next: u32,
    /// Where its islands are, or `NONE`.
    islands: u32,
}

/// All runs.
#[derive(Debug, Clone)]
pub(super) struct Runs {
    runs: Vec<Run>,
    free_run: u32,
    live: usize,
    pub(super) arena: Arena,
    heads: HeadTable,
    partials: Vec<Partial>,
    free_partial: u32,
    islands: Vec<Vec<u64>>,
    free_islands: Vec<u32>,
    /// Which of the lanes from 64 on hold all of a run: `stride` words for each.
    wide: Vec<u64>,
    stride: usize,
}

impl Runs {
    /// With at most so many blocks.
    pub(super) fn new(limit: u32) -> Self {
        Self {
            runs: Vec::new(),
            free_run: NONE,
            live: 0,
            arena: Arena::new(limit),
            heads: HeadTable::default(),
            partials: Vec::new(),
            free_partial: NONE,
            islands: Vec::new(),
            free_islands: Vec::new(),
            wide: Vec::new(),
            stride: 0,
        }
    }

    /// Runs in use.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Bytes that all of it takes.
    pub(super) fn bytes(&self) -> usize {
        self.arena.bytes()
            + self.heads.bytes()
            + self.runs.capacity() * size_of::<Run>()
            + self.partials.capacity() * size_of::<Partial>()
            + self.wide.capacity() * size_of::<u64>()
            + self.islands.capacity() * size_of::<Vec<u64>>()
            + self.islands.iter().map(|words| words.capacity() * size_of::<u64>()).sum::<usize>()
    }

    /// Makes room for this lane.
    pub(super) fn admit(&mut self, lane: u32) {
        let stride = lane as usize / 64;
        if stride > self.stride {
            let mut wide = Vec::with_capacity(self.runs.len() * stride);
            for run in 0..self.runs.len() {
                wide.extend_from_slice(&self.wide[run * self.stride..(run + 1) * self.stride]);
                wide.resize((run + 1) * stride, 0);
            }
            self.wide = wide;
            self.stride = stride;
        }
    }

    /// A run by its number, which may be that of a free one.
    #[inline]
    pub(super) fn run(&self, run: u32) -> &Run {
        &self.runs[run as usize]
    }

    /// The run that a slot belongs to, and its place there; nothing when the slot is free.
    #[inline]
    pub(super) fn place(&self, slot: u32) -> Option<(u32, u32)> {
        let owner = self.arena.owner(slot);
        let run = self.runs.get(owner as usize)?;
        let at = slot.wrapping_sub(run.start);
        (at < run.len).then_some((owner, at))
    }

    /// The run that begins with this hash.
    #[inline]
    pub(super) fn find(&self, head: u64) -> Option<u32> {
        self.heads.find(head, |run| self.runs[run as usize].head == head)
    }

    /// Which of the 64 lanes of this word hold all of the run.
    #[inline]
    pub(super) fn full(&self, run: u32, word: usize) -> u64 {
        match word {
            0 => self.runs[run as usize].full,
            _ if word <= self.stride => self.wide[run as usize * self.stride + word - 1],
            _ => 0,
        }
    }

    /// Who else holds some of the run.
    #[inline]
    pub(super) fn partials(&self, run: u32) -> impl Iterator<Item = &Partial> {
        let mut at = self.runs[run as usize].partial;
        std::iter::from_fn(move || {
            let partial = self.partials.get(at as usize)?;
            at = partial.next;
            Some(partial)
        })
    }

    /// How many blocks of the run from `at` on are the same as `hash(0)`, `hash(1)`, ... `hash(count - 1)`. The first one is.
    #[inline]
    pub(super) fn common(&self, run: u32, at: u32, count: usize, hash: impl Fn(usize) -> u64) -> usize {
        let Run { start, len, last, .. } = *self.run(run);
        let behind = (len - at) as usize;
        if count >= behind && hash(behind - 1) == last {
            return behind;
        }
        let hashes = self.arena.hashes(start + at, len - at);
        let top = count.min(behind);
        if hashes[top - 1] == hash(top - 1) {
            return top;
        }
        // Chained: what is equal at one block was equal before, what differs goes on differing.
        let (mut equal, mut differs) = (0, top - 1);
        while differs - equal > 1 {
            let middle = equal + (differs - equal) / 2;
            if hashes[middle] == hash(middle) {
                equal = middle;
            } else {
                differs = middle;
            }
        }
        differs
    }

    /// A new run of the first of these blocks, which nobody holds yet. Its number and how many blocks it took; nothing when there is no room.
    pub(super) fn create(&mut self, blocks: &[(EngineHash, PrefixHash)]) -> Option<(u32, u32)> {
        let want = blocks.len().min(MAX_RUN as usize) as u32;
        let (start, room) = self.arena.take(want.max(if want < 8 { ROOM_TO_GROW } else { want }))?;
        let len = want.min(room);
        let blocks = &blocks[..len as usize];
        let head = blocks[0].1.0;
        let last = blocks[blocks.len() - 1].1.0;
        let run = self.new_run(Run { head, last, full: 0, start, len, room, partial: NONE });
        self.arena.fill(start, blocks, run);
        self.heads.insert(head, run);
        Some((run, len))
    }

    /// Appends blocks to a run whose lanes hold them as well; how many it took.
    pub(super) fn append(&mut self, run: u32, blocks: &[(EngineHash, PrefixHash)]) -> u32 {
        let Run { start, len, room, .. } = self.runs[run as usize];
        let taken = (room.min(MAX_RUN) - len).min(blocks.len() as u32);
        if taken == 0 {
            return 0;
        }
        let blocks = &blocks[..taken as usize];
        self.arena.fill(start + len, blocks, run);
        let run = &mut self.runs[run as usize];
        run.len += taken;
        run.last = blocks[blocks.len() - 1].1.0;
        taken
    }

    /// Cuts a run in two: what is from `at` on becomes one of its own.
    pub(super) fn split(&mut self, run: u32, at: u32) {
        let front = self.runs[run as usize];
        if at == 0 || at >= front.len {
            return;
        }
        let start = front.start + at;
        let head = self.arena.hash(start);
        let len = front.len - at;
        let behind = self.new_run(Run { head, start, len, room: front.room - at, partial: NONE, ..front });
        for word in 0..self.stride {
            self.wide[behind as usize * self.stride + word] = self.wide[run as usize * self.stride + word];
        }
        self.arena.give(start, len, behind);
        self.heads.insert(head, behind);
        let last = self.arena.hash(start - 1);
        let front = &mut self.runs[run as usize];
        (front.len, front.room, front.last) = (at, at, last);
        let mut next = std::mem::replace(&mut front.partial, NONE);
        while next != NONE {
            let Partial { lane, next: rest, .. } = self.partials[next as usize];
            let mut held = self.free_record(next);
            let tail = held.split(at);
            self.record(run, lane, held);
            self.record(behind, lane, tail);
            next = rest;
        }
    }

    /// Whether these lanes hold all of the run and no other lane any of it.
    pub(super) fn only(&self, run: u32, lanes: &[u32]) -> bool {
        let words = (0..=self.stride).map(|word| self.full(run, word).count_ones() as usize);
        self.runs[run as usize].partial == NONE
            && words.sum::<usize>() == lanes.len()
            && lanes.iter().all(|&lane| self.is_full(run, lane))
    }

    /// Whether the lane holds this block.
    pub(super) fn has(&self, run: u32, lane: u32, at: u32) -> bool {
        self.is_full(run, lane)
            || self.partials(run).find(|partial| partial.lane == lane).is_some_and(|partial| {
                at < partial.cutoff
                    || self.islands.get(partial.islands as usize).is_some_and(|words| {
                        words.get(at as usize / 64).is_some_and(|word| word >> (at % 64) & 1 == 1)
                    })
            })
    }

    /// Whether the lane holds any of the blocks `from..to`.
    pub(super) fn touches(&self, run: u32, lane: u32, from: u32, to: u32) -> bool {
        if self.is_full(run, lane) {
            return true;
        }
        let Some(partial) = self.partials(run).find(|partial| partial.lane == lane) else { return false };
        match self.islands.get(partial.islands as usize) {
            None => from < partial.cutoff,
            Some(words) => Held { cutoff: partial.cutoff, islands: words.clone() }.touches(from, to),
        }
    }

    /// The lane holds the blocks `from..to`, none of which it held.
    pub(super) fn hold(&mut self, run: u32, lane: u32, from: u32, to: u32) {
        let Run { len, .. } = self.runs[run as usize];
        let Some(at) = self.find_record(run, lane) else {
            if from == 0 && to == len {
                self.set_full(run, lane, true);
            } else {
                self.record(run, lane, Held::range(from, to));
            }
            return;
        };
        let partial = &mut self.partials[at as usize];
        if partial.islands == NONE && partial.cutoff == from && to < len {
            partial.cutoff = to;
            return;
        }
        let mut held = self.take_record(run, at);
        held.add(from, to);
        self.record(run, lane, held);
    }

    /// The lane no longer holds the blocks `from..to`, all of which it held.
    pub(super) fn release(&mut self, run: u32, lane: u32, from: u32, to: u32) {
        let len = self.runs[run as usize].len;
        let last_goes = to == len;
        if self.is_full(run, lane) {
            if last_goes && from > 0 && self.only(run, &[lane]) {
                self.shrink(run, from);
                return;
            }
            self.set_full(run, lane, false);
            let mut held = Held { cutoff: len, islands: Vec::new() };
            held.remove(from, to);
            self.record(run, lane, held);
        } else if let Some(record) = self.find_record(run, lane) {
            let partial = &mut self.partials[record as usize];
            if partial.islands == NONE && partial.cutoff == to && from > 0 {
                partial.cutoff = from;
            } else {
                let mut held = self.take_record(run, record);
                held.remove(from, to);
                self.record(run, lane, held);
            }
        } else {
            return;
        }
        self.settle(run, last_goes);
    }

    /// The lane holds nothing of the run any more.
    pub(super) fn drop_lane(&mut self, run: u32, lane: u32) {
        if self.is_full(run, lane) {
            self.set_full(run, lane, false);
        } else if let Some(record) = self.find_record(run, lane) {
            self.take_record(run, record);
        } else {
            return;
        }
        self.settle(run, true);
    }

    /// Lane `to`, which holds nothing, holds what lane `from` holds.
    pub(super) fn clone_lane(&mut self, from: u32, to: u32) {
        for run in 0..self.runs.len() as u32 {
            if self.is_full(run, from) {
                self.set_full(run, to, true);
            } else if let Some(record) = self.find_record(run, from) {
                let Partial { cutoff, islands, .. } = self.partials[record as usize];
                let islands = self.islands.get(islands as usize).cloned().unwrap_or_default();
                self.record(run, to, Held { cutoff, islands });
            }
        }
    }

    #[inline]
    fn is_full(&self, run: u32, lane: u32) -> bool {
        self.full(run, lane as usize / 64) >> (lane % 64) & 1 == 1
    }

    fn set_full(&mut self, run: u32, lane: u32, is: bool) {
        let word = match lane as usize / 64 {
            0 => &mut self.runs[run as usize].full,
            word => &mut self.wide[run as usize * self.stride + word - 1],
        };
        let bit = 1 << (lane % 64);
        if is {
            *word |= bit;
        } else {
            *word &= !bit;
        }
    }

    /// Frees the run if nobody holds any of it, and ends it behind the last block that somebody holds.
    fn settle(&mut self, run: u32, last_went: bool) {
        if (0..=self.stride).any(|word| self.full(run, word) != 0) {
            return;
        }
        if self.runs[run as usize].partial == NONE {
            self.free(run);
            return;
        }
        if !last_went {
            return;
        }
        let mut end = 0;
        for partial in self.partials(run) {
            let islands = self.islands.get(partial.islands as usize);
            end = end.max(islands.map_or(partial.cutoff, |words| {
                Held { cutoff: partial.cutoff, islands: words.clone() }.end()
            }));
        }
        if end == self.runs[run as usize].len {
            return;
        }
        self.shrink(run, end);
        let mut next = self.runs[run as usize].partial;
        while next != NONE {
            let Partial { lane, cutoff, next: rest, .. } = self.partials[next as usize];
            if cutoff == end {
                self.take_record(run, next);
                self.set_full(run, lane, true);
            }
            next = rest;
        }
    }

    fn shrink(&mut self, run: u32, len: u32) {
        let last = self.arena.hash(self.runs[run as usize].start + len - 1);
        let run = &mut self.runs[run as usize];
        (run.len, run.last) = (len, last);
        if run.room - len >= KEPT.max(len) {
            self.arena.put(run.start + len, run.room - len);
            run.room = len;
        }
    }

    fn free(&mut self, run: u32) {
        let Run { head, start, room, .. } = self.runs[run as usize];
        self.heads.remove(head, run);
        self.arena.put(start, room);
        let gone = &mut self.runs[run as usize];
        (gone.len, gone.start) = (0, self.free_run);
        self.free_run = run;
        self.live -= 1;
    }

    fn new_run(&mut self, run: Run) -> u32 {
        self.live += 1;
        if let Some(free) = self.runs.get_mut(self.free_run as usize) {
            let at = self.free_run;
            self.free_run = free.start;
            *free = run;
            return at;
        }
        self.runs.push(run);
        self.wide.resize(self.runs.len() * self.stride, 0);
        self.runs.len() as u32 - 1
    }

    fn find_record(&self, run: u32, lane: u32) -> Option<u32> {
        let mut at = self.runs[run as usize].partial;
        while at != NONE {
            let partial = &self.partials[at as usize];
            if partial.lane == lane {
                return Some(at);
            }
            at = partial.next;
        }
        None
    }

    /// Writes down what a lane without a record holds of the run.
    fn record(&mut self, run: u32, lane: u32, held: Held) {
        if held.is_empty() {
            return;
        }
        if held.cutoff >= self.runs[run as usize].len {
            self.set_full(run, lane, true);
            return;
        }
        let islands = if held.islands.is_empty() {
            NONE
        } else if let Some(at) = self.free_islands.pop() {
            self.islands[at as usize] = held.islands;
            at
        } else {
            self.islands.push(held.islands);
            self.islands.len() as u32 - 1
        };
        let first = self.runs[run as usize].partial;
        let partial = Partial { lane, cutoff: held.cutoff, next: first, islands };
        let at = if let Some(free) = self.partials.get_mut(self.free_partial as usize) {
            let at = self.free_partial;
            self.free_partial = free.next;
            *free = partial;
            at
        } else {
            self.partials.push(partial);
            self.partials.len() as u32 - 1
        };
        self.runs[run as usize].partial = at;
    }

    /// Takes a record out of its run's list and frees it.
    fn take_record(&mut self, run: u32, record: u32) -> Held {
        let next = self.partials[record as usize].next;
        let mut at = self.runs[run as usize].partial;
        if at == record {
            self.runs[run as usize].partial = next;
        } else {
            while at != NONE {
                let partial = &mut self.partials[at as usize];
                if partial.next == record {
                    partial.next = next;
                    break;
                }
                at = partial.next;
            }
        }
        self.free_record(record)
    }

    fn free_record(&mut self, record: u32) -> Held {
        let partial = &mut self.partials[record as usize];
        let Partial { cutoff, islands, .. } = *partial;
        partial.next = self.free_partial;
        self.free_partial = record;
        let islands = self.islands.get_mut(islands as usize).map(|words| {
            self.free_islands.push(islands);
            std::mem::take(words)
        });
        Held { cutoff, islands: islands.unwrap_or_default() }
    }

    /// Says what is wrong with the structure, for tests.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut used = 0;
        for (number, run) in self.runs.iter().enumerate().filter(|(_, run)| run.len > 0) {
            let number = number as u32;
            used += run.room;
            assert!(run.len <= run.room && run.len <= MAX_RUN);
            assert_eq!(run.head, self.arena.hash(run.start));
            assert_eq!(run.last, self.arena.hash(run.start + run.len - 1));
            assert_eq!(self.find(run.head), Some(number));
            for slot in run.start..run.start + run.len {
                assert_eq!(self.arena.owner(slot), number);
            }
            let some_full = (0..=self.stride).any(|word| self.full(number, word) != 0);
            let mut last_held = some_full;
            for partial in self.partials(number) {
                assert!(!self.is_full(number, partial.lane));
                assert!(partial.cutoff < run.len);
                assert!(partial.cutoff > 0 || partial.islands != NONE);
                last_held |= self.has(number, partial.lane, run.len - 1);
            }
            assert!(last_held, "nobody holds the last block of a run");
        }
        assert_eq!(used, self.arena.used());
    }
}
