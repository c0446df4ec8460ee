//! Flat tables with open addressing: no pointers, one or two cache lines for most probes, nothing left behind by a removal.
//!
//! Both probe linearly and close the gap when an entry goes, so a table that is always in motion stays as quick as a new one. Keys
//! are hashes already, but whoever sends events chooses them: they are mixed, so that small or regular keys spread too.

use std::collections::BTreeMap;

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Takes a multiplication by `SPREAD` back.
const GATHER: u64 = inverse(SPREAD);
/// Entries that a table begins with, as a power of two.
const FIRST_BITS: u32 = 4;
/// How many keys it is worth to touch before they are probed for.
pub(crate) const AHEAD: usize = 32;
/// How many entries are looked at together.
const GROUP: usize = 8;
/// How many groups behind its home a key may lie; what finds no place there is spilled.
const GROUPS: usize = 31;
/// The lowest and the highest bit of each byte.
const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
/// The bytes of eight entries that all have the first one as their home.
const STEPS: u64 = 0x0807_0605_0403_0201;
/// No number.
const NONE: u32 = u32::MAX;

/// From a key that an engine made up to a place and a number of copies.
///
/// It is most of what the index touches and most of its memory, so an entry is 9 bytes. The mixed key is not written down whole: its
/// upper bits say where the entry's *home* is, the lower ones are in the entry, and a byte beside it says how far from home it lies
/// (nothing is lost, and two keys are never taken for each other; J. G. Cleary, IEEE Transactions on Computers, 1984). As many bits of
/// the entry as the key saves there are a number, and where the block is stands in a list by that number, in which blocks that came
/// together are together. A probe compares eight of the bytes beside the entries at once with those of a key of this home, and so has
/// hardly a branch that the processor cannot foresee.
#[derive(Debug, Clone)]
pub(crate) struct KeyTable {
    /// For each entry how far it is from home, plus one; zero when it is free. The first eight once more at the end.
    steps: Vec<u8>,
    /// The lower bits of the mixed key, above a number.
    entries: Vec<u64>,
    /// By number: the place. Where the number is free, the next free one.
    slots: Vec<u32>,
    free: u32,
    len: usize,
    bits: u32,
    /// By number: copies, where there are several.
    copies: BTreeMap<u32, u32>,
    /// Keys that found no place near their home: none, unless somebody chose them so. Place and copies.
    spilled: BTreeMap<u64, (u32, u32)>,
}

/// What became of a key that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// It was not there.
    New,
    /// It was there with the same place: one more copy.
    Copy,
    /// It was there with another place, which it no longer has.
    Moved {
        /// The place that it had.
        from: u32,
    },
}

/// What became of a key that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is not there.
    Unknown,
    /// It is there still, with fewer copies.
    Copy,
    /// It was there once.
    Last {
        /// The place that it had.
        slot: u32,
    },
}

impl Default for KeyTable {
    fn default() -> Self {
        Self {
            steps: Vec::new(),
            entries: Vec::new(),
            slots: Vec::new(),
            free: NONE,
            len: 0,
            bits: 0,
            copies: BTreeMap::new(),
            spilled: BTreeMap::new(),
        }
    }
}

impl KeyTable {
    /// Keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes, without those for copies and spilled keys.
    pub(crate) fn bytes(&self) -> usize {
        self.steps.capacity()
            + self.entries.capacity() * size_of::<u64>()
            + self.slots.capacity() * size_of::<u32>()
    }

    /// All places, in no order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter().map(|(_, slot, _)| slot)
    }

    /// All keys with place and copies, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        let placed = (0..self.entries.len()).filter(|&at| self.steps[at] != 0).map(|at| {
            let number = self.number(at);
            let copies = self.copies.get(&number).copied().unwrap_or(1);
            (gather(self.mixed(at)), self.slots[number as usize], copies)
        });
        placed.chain(self.spilled.iter().map(|(&key, &(slot, copies))| (key, slot, copies)))
    }

    /// The place of a key.
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        match self.probe(spread(key)) {
            Probe::At(at) => Some(self.slots[self.number(at) as usize]),
            _ if self.spilled.is_empty() => None,
            _ => self.spilled.get(&key).map(|&(slot, _)| slot),
        }
    }

    /// Makes room for so many more keys, so that none of them has to.
    pub(crate) fn reserve(&mut self, more: usize) {
        while (self.len + more) * 5 > self.entries.len() * 4 {
            self.grow();
        }
    }

    /// Reads what probes for these keys will need, without waiting for one before the next: the memory is then near when they come.
    #[inline]
    pub(crate) fn touch(&self, keys: impl Iterator<Item = u64>) {
        if self.entries.is_empty() {
            return;
        }
        let mut all = 0;
        for key in keys {
            let home = self.home(spread(key));
            all ^= self.entries[home] ^ u64::from(self.steps[home]);
        }
        std::hint::black_box(all);
    }

    /// Notes that the key is at the place, once more if it is there already.
    #[inline]
    pub(crate) fn put(&mut self, key: u64, slot: u32) -> Put {
        self.reserve(1);
        let mixed = spread(key);
        let probe = self.probe(mixed);
        if let Probe::At(at) = probe {
            let number = self.number(at);
            let known = &mut self.slots[number as usize];
            if *known == slot {
                *self.copies.entry(number).or_insert(1) += 1;
                return Put::Copy;
            }
            let from = std::mem::replace(known, slot);
            self.copies.remove(&number);
            return Put::Moved { from };
        }
        if !self.spilled.is_empty()
            && let Some((known, copies)) = self.spilled.get_mut(&key)
        {
            if *known == slot {
                *copies += 1;
                return Put::Copy;
            }
            let from = std::mem::replace(known, slot);
            *copies = 1;
            return Put::Moved { from };
        }
        self.len += 1;
        if let Probe::Free { at, step } = probe {
            let number = self.new_number(slot);
            self.entries[at] = mixed << self.bits | u64::from(number);
            self.step(at, step);
        } else {
            self.spilled.insert(key, (slot, 1));
        }
        Put::New
    }

    /// Takes one copy of the key away.
    #[inline]
    pub(crate) fn take(&mut self, key: u64) -> Taken {
        if let Probe::At(at) = self.probe(spread(key)) {
            let number = self.number(at);
            if !self.copies.is_empty()
                && let Some(copies) = self.copies.get_mut(&number)
            {
                *copies -= 1;
                if *copies == 1 {
                    self.copies.remove(&number);
                }
                return Taken::Copy;
            }
            return Taken::Last { slot: self.close(at) };
        }
        if self.spilled.is_empty() {
            return Taken::Unknown;
        }
        match self.spilled.get_mut(&key) {
            None => Taken::Unknown,
            Some((_, copies)) if *copies > 1 => {
                *copies -= 1;
                Taken::Copy
            }
            Some(&mut (slot, _)) => {
                self.spilled.remove(&key);
                self.len -= 1;
                Taken::Last { slot }
            }
        }
    }

    /// Takes all copies of the key away.
    pub(crate) fn forget(&mut self, key: u64) {
        if let Probe::At(at) = self.probe(spread(key)) {
            self.copies.remove(&self.number(at));
            self.close(at);
        } else if self.spilled.remove(&key).is_some() {
            self.len -= 1;
        }
    }

    /// Frees an entry; the place that its key had.
    #[inline]
    fn close(&mut self, at: usize) -> u32 {
        self.len -= 1;
        let number = self.number(at);
        let slot = std::mem::replace(&mut self.slots[number as usize], self.free);
        self.free = number;
        // The entries behind move up as far as their own homes allow, so that every probe still meets no gap before its key.
        let mask = self.entries.len() - 1;
        let mut gap = at;
        let mut distance = 1;
        loop {
            let next = (gap + distance) & mask;
            let step = self.steps[next];
            if step == 0 {
                break;
            }
            if usize::from(step) > distance {
                self.entries[gap] = self.entries[next];
                self.step(gap, step - distance as u8);
                gap = next;
                distance = 0;
            }
            distance += 1;
        }
        self.step(gap, 0);
        slot
    }

    /// Where the mixed key is, or the free entry at which it would be put.
    #[inline]
    fn probe(&self, mixed: u64) -> Probe {
        if self.entries.is_empty() {
            return Probe::Nowhere;
        }
        let mask = self.entries.len() - 1;
        let lower = mixed << self.bits;
        let home = self.home(mixed);
        let mut ours = STEPS;
        for group in 0..GROUPS {
            let at = (home + group * GROUP) & mask;
            let mut bytes = [0; GROUP];
            bytes.copy_from_slice(&self.steps[at..at + GROUP]);
            let steps = u64::from_le_bytes(bytes);
            let differ = steps ^ ours;
            let mut same = differ.wrapping_sub(LOW) & !differ & HIGH;
            while same != 0 {
                let byte = same.trailing_zeros() / 8;
                let candidate = (at + byte as usize) & mask;
                if (self.entries[candidate] ^ lower) >> self.bits == 0 && (differ >> (byte * 8)) as u8 == 0 {
                    return Probe::At(candidate);
                }
                same &= same - 1;
            }
            let free = steps.wrapping_sub(LOW) & !steps & HIGH;
            if free != 0 {
                let byte = free.trailing_zeros() as usize / 8;
                return Probe::Free { at: (at + byte) & mask, step: (group * GROUP + byte + 1) as u8 };
            }
            ours = ours.wrapping_add(LOW * GROUP as u64);
        }
        Probe::Nowhere
    }

    fn new_number(&mut self, slot: u32) -> u32 {
        let number = self.free;
        if let Some(place) = self.slots.get_mut(number as usize) {
            self.free = std::mem::replace(place, slot);
            return number;
        }
        self.slots.push(slot);
        self.slots.len() as u32 - 1
    }

    #[inline]
    fn number(&self, at: usize) -> u32 {
        (self.entries[at] & ((1 << self.bits) - 1)) as u32
    }

    /// The mixed key of an entry.
    fn mixed(&self, at: usize) -> u64 {
        let home = at.wrapping_sub(usize::from(self.steps[at]) - 1) & (self.entries.len() - 1);
        (home as u64) << (64 - self.bits) | self.entries[at] >> self.bits
    }

    #[inline]
    fn step(&mut self, at: usize, step: u8) {
        self.steps[at] = step;
        if at < GROUP {
            let again = self.entries.len() + at;
            self.steps[again] = step;
        }
    }

    #[inline]
    fn home(&self, mixed: u64) -> usize {
        (mixed >> (64 - self.bits)) as usize
    }

    fn grow(&mut self) {
        let bits = if self.entries.is_empty() { FIRST_BITS } else { self.bits + 1 };
        let larger = Self {
            steps: vec![0; (1 << bits) + GROUP],
            entries: vec![0; 1 << bits],
            bits,
            ..Self::default()
        };
        let old = std::mem::replace(self, larger);
        for at in (0..old.entries.len()).filter(|&at| old.steps[at] != 0) {
            let (mixed, number) = (old.mixed(at), old.number(at));
            if let Probe::Free { at, step } = self.probe(mixed) {
                self.entries[at] = mixed << bits | u64::from(number);
                self.step(at, step);
            } else {
                let copies = old.copies.get(&number).copied().unwrap_or(1);
                self.spilled.insert(gather(mixed), (old.slots[number as usize], copies));
            }
        }
        (self.slots, self.free, self.len) = (old.slots, old.free, old.len);
        self.copies = old.copies;
        self.spilled.extend(old.spilled);
    }
}

/// What a probe for a key ends at.
enum Probe {
    /// It is there.
    At(usize),
    /// It would be there, so far from home, plus one.
    Free { at: usize, step: u8 },
    /// There is no room near its home.
    Nowhere,
}

/// Mixes a key; no two keys become the same.
#[inline]
fn spread(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(SPREAD)
}

/// The key that was mixed.
fn gather(mixed: u64) -> u64 {
    let key = mixed.wrapping_mul(GATHER);
    key ^ (key >> 32)
}

/// What undoes a multiplication by an odd number: each step of Newton's method doubles the bits that are right.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
}

/// From the hash that a run begins with to candidates for the run. It keeps 32 bits of each hash, so whoever asks checks the run.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadTable {
    entries: Vec<Head>,
    len: usize,
    bits: u32,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    tag: u32,
    run: u32,
}

/// An entry without a run.
const FREE: Head = Head { tag: 0, run: u32::MAX };

impl HeadTable {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Head>()
    }

    /// The first run whose head may be this hash and is, as `is` says.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let mask = self.entries.len() - 1;
        let tag = tag(hash);
        let mut at = self.home(tag);
        loop {
            let head = self.entries[at & mask];
            if head.run == FREE.run {
                return None;
            }
            if head.tag == tag && is(head.run) {
                return Some(head.run);
            }
            at += 1;
        }
    }

    /// Notes that a run begins with this hash.
    pub(crate) fn insert(&mut self, hash: u64, run: u32) {
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.place(Head { tag: tag(hash), run });
        self.len += 1;
    }

    /// Forgets that this run begins with this hash.
    pub(crate) fn remove(&mut self, hash: u64, run: u32) {
        if self.entries.is_empty() {
            return;
        }
        let mask = self.entries.len() - 1;
        let tag = tag(hash);
        let mut gap = self.home(tag);
        while self.entries[gap].run != run || self.entries[gap].tag != tag {
            if self.entries[gap].run == FREE.run {
                return;
            }
            gap = (gap + 1) & mask;
        }
        self.len -= 1;
        let mut next = (gap + 1) & mask;
        while self.entries[next].run != FREE.run {
            let home = self.home(self.entries[next].tag);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.entries[gap] = self.entries[next];
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[gap] = FREE;
    }

    fn home(&self, tag: u32) -> usize {
        (tag >> (32 - self.bits)) as usize
    }

    fn place(&mut self, head: Head) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(head.tag);
        while self.entries[at].run != FREE.run {
            at = (at + 1) & mask;
        }
        self.entries[at] = head;
    }

    fn grow(&mut self) {
        self.bits = if self.entries.is_empty() { FIRST_BITS } else { self.bits + 1 };
        let old = std::mem::replace(&mut self.entries, vec![FREE; 1 << self.bits]);
        for head in old.into_iter().filter(|head| head.run != FREE.run) {
            self.place(head);
        }
    }
}

fn tag(hash: u64) -> u32 {
    (spread(hash) >> 32) as u32
}
