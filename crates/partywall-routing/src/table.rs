//! Flat tables with open addressing: no pointers, one or two cache lines for most probes, nothing left behind by a removal.
//!
//! Both probe linearly and close the gap when an entry goes, so a table that is always in motion stays as quick as a new one. Keys
//! are hashes already, but whoever sends events chooses them: they are mixed, so that small or regular keys spread too.

use std::collections::BTreeMap;

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Entries that a table begins with, as a power of two.
const FIRST_BITS: u32 = 4;
/// How many keys it is worth to touch before they are probed for.
const AHEAD: usize = 48;
/// How many entries are looked at together.
const GROUP: usize = 8;
/// How many groups are looked at for one key. Keys that are spread need one or two; whoever chooses them so that they need more
/// must not make others wait.
const GROUPS: usize = 64;
/// The lowest and the highest bit of each byte.
const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// From a key that an engine made up to a place and a number of copies.
///
/// It is most of what the index touches and most of its memory: 13 bytes for an entry. Beside the entries there is a byte for each, zero
/// when it is free, otherwise seven bits of its key. A probe looks at eight of these at a time, without a branch for each, and reads
/// an entry only where the bytes agree, so there is hardly a branch that the processor cannot foresee.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyTable {
    /// As many as there are entries, and the first eight again.
    tags: Vec<u8>,
    entries: Vec<Entry>,
    len: usize,
    bits: u32,
    /// Copies, of keys that have several.
    copies: BTreeMap<u64, u32>,
}

/// A key, in halves so that nothing is lost to alignment, and its place. Plain numbers: a new table is then zeros that the system has
/// ready, and costs nothing before it is used.
type Entry = [u32; 3];

fn entry(key: u64, slot: u32) -> Entry {
    [key as u32, (key >> 32) as u32, slot]
}

#[inline]
fn key_of(entry: &Entry) -> u64 {
    u64::from(entry[0]) | u64::from(entry[1]) << 32
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
    /// It was not there and is not now: too many keys want to be at its place.
    Refused,
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

impl KeyTable {
    /// Keys.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes, without those for copies.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.tags.capacity()
    }

    /// All places, in no order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.placed().map(|entry| entry[2])
    }

    /// All keys with place and copies, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        self.placed().map(|entry| {
            let key = key_of(entry);
            (key, entry[2], self.copies.get(&key).copied().unwrap_or(1))
        })
    }

    /// The place of a key.
    pub(crate) fn get(&self, key: u64) -> Option<u32> {
        match self.probe(key) {
            Probe::At(at) => Some(self.entries[at][2]),
            _ => None,
        }
    }

    /// Makes room for so many more keys, so that none of them has to.
    pub(crate) fn reserve(&mut self, more: usize) {
        while (self.len + more) * 4 > self.entries.len() * 3 {
            self.grow();
        }
    }

    /// Notes that keys are at places that follow each other, until one comes that is there already or has no room. How many were noted.
    #[inline]
    pub(crate) fn put_new<T>(&mut self, items: &[T], key: impl Fn(&T) -> u64, first: u32) -> usize {
        self.reserve(items.len());
        let mut slot = first;
        for items in items.chunks(AHEAD) {
            self.touch(items.iter().map(&key));
            for item in items {
                let key = key(item);
                let Probe::Free(at) = self.probe(key) else { return (slot - first) as usize };
                self.entries[at] = entry(key, slot);
                self.tag(at, tag_of(key));
                self.len += 1;
                slot += 1;
            }
        }
        items.len()
    }

    /// Takes one copy of each of the keys away.
    #[inline]
    pub(crate) fn take_all<T>(&mut self, items: &[T], key: impl Fn(&T) -> u64, mut taken: impl FnMut(Taken)) {
        for items in items.chunks(AHEAD) {
            self.touch(items.iter().map(&key));
            for item in items {
                taken(self.take(key(item)));
            }
        }
    }

    /// Reads what probes for these keys will need, without waiting for one before the next: the memory is then near when they come.
    #[inline]
    fn touch(&self, keys: impl Iterator<Item = u64>) {
        if self.entries.is_empty() {
            return;
        }
        let mut all = 0;
        for key in keys {
            let home = self.home(key);
            all ^= self.entries[home][2] ^ u32::from(self.tags[home]);
        }
        std::hint::black_box(all);
    }

    /// Notes that the key is at the place, once more if it is there already.
    #[inline]
    pub(crate) fn put(&mut self, key: u64, slot: u32) -> Put {
        self.reserve(1);
        match self.probe(key) {
            Probe::Free(at) => {
                self.entries[at] = entry(key, slot);
                self.tag(at, tag_of(key));
                self.len += 1;
                Put::New
            }
            Probe::At(at) => self.put_again(at, slot),
            Probe::Nowhere => Put::Refused,
        }
    }

    #[cold]
    fn put_again(&mut self, at: usize, slot: u32) -> Put {
        let entry = &mut self.entries[at];
        let key = key_of(entry);
        if entry[2] == slot {
            let copies = self.copies.entry(key).or_insert(1);
            *copies = copies.saturating_add(1);
            return Put::Copy;
        }
        let from = std::mem::replace(&mut entry[2], slot);
        self.copies.remove(&key);
        Put::Moved { from }
    }

    /// Takes one copy of the key away.
    #[inline]
    pub(crate) fn take(&mut self, key: u64) -> Taken {
        let Probe::At(at) = self.probe(key) else { return Taken::Unknown };
        if !self.copies.is_empty()
            && let Some(copies) = self.copies.get_mut(&key)
        {
            *copies -= 1;
            if *copies == 1 {
                self.copies.remove(&key);
            }
            return Taken::Copy;
        }
        let slot = self.entries[at][2];
        self.close(at);
        Taken::Last { slot }
    }

    /// Takes all copies of the key away.
    pub(crate) fn forget(&mut self, key: u64) {
        if let Probe::At(at) = self.probe(key) {
            self.copies.remove(&key);
            self.close(at);
        }
    }

    fn placed(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().zip(&self.tags).filter(|(_, tag)| **tag != 0).map(|(entry, _)| entry)
    }

    /// Frees an entry. Those behind it move up as far as their own homes allow, so that every probe still meets no gap before its key.
    #[inline]
    fn close(&mut self, at: usize) {
        self.len -= 1;
        let mask = self.entries.len() - 1;
        let mut gap = at;
        let mut next = (at + 1) & mask;
        while self.tags[next] != 0 {
            let home = self.home(key_of(&self.entries[next]));
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.entries[gap] = self.entries[next];
                self.tag(gap, self.tags[next]);
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.tag(gap, 0);
    }

    /// Where the key is, or the free entry at which it would be put.
    #[inline(always)]
    fn probe(&self, key: u64) -> Probe {
        if self.entries.is_empty() {
            return Probe::Nowhere;
        }
        let mask = self.entries.len() - 1;
        let wanted = LOW.wrapping_mul(u64::from(tag_of(key)));
        let mut at = self.home(key);
        for _ in 0..GROUPS {
            let mut bytes = [0; GROUP];
            bytes.copy_from_slice(&self.tags[at..at + GROUP]);
            let tags = u64::from_le_bytes(bytes);
            let differ = tags ^ wanted;
            let mut same = differ.wrapping_sub(LOW) & !differ & HIGH;
            while same != 0 {
                let candidate = (at + same.trailing_zeros() as usize / 8) & mask;
                // A byte above one that agrees may seem to agree too, even that of a free entry.
                if key_of(&self.entries[candidate]) == key && self.tags[candidate] != 0 {
                    return Probe::At(candidate);
                }
                same &= same - 1;
            }
            let free = !tags & HIGH;
            if free != 0 {
                return Probe::Free((at + free.trailing_zeros() as usize / 8) & mask);
            }
            at = (at + GROUP) & mask;
        }
        Probe::Nowhere
    }

    #[inline]
    fn tag(&mut self, at: usize, tag: u8) {
        self.tags[at] = tag;
        if at < GROUP {
            let again = self.entries.len() + at;
            self.tags[again] = tag;
        }
    }

    #[inline]
    fn home(&self, key: u64) -> usize {
        (spread(key) >> (64 - self.bits)) as usize
    }

    fn grow(&mut self) {
        self.bits = if self.entries.is_empty() { FIRST_BITS } else { self.bits + 1 };
        let size = 1 << self.bits;
        let entries = std::mem::replace(&mut self.entries, vec![[0; 3]; size]);
        let tags = std::mem::replace(&mut self.tags, vec![0; size + GROUP]);
        for (entry, _) in entries.into_iter().zip(tags).filter(|(_, tag)| *tag != 0) {
            // In twice the room no key is further from home than it was.
            if let Probe::Free(at) = self.probe(key_of(&entry)) {
                self.entries[at] = entry;
                self.tag(at, tag_of(key_of(&entry)));
            }
        }
    }
}

/// What a probe for a key ends at.
enum Probe {
    /// It is there.
    At(usize),
    /// It would be there.
    Free(usize),
    /// There is no room near its home.
    Nowhere,
}

/// Seven bits of a key that have little to do with where it is put, and one that says that something is there.
#[inline]
fn tag_of(key: u64) -> u8 {
    (key ^ (key >> 25)) as u8 | 0x80
}

/// Mixes a key; the upper bits are the best.
#[inline]
fn spread(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(SPREAD)
}

/// From the hash that a run begins with to candidates for the run. It keeps 32 bits of each hash, so whoever asks checks the run.
///
/// Most questions are about blocks that no run begins with. They are answered by a byte for each entry: which eighths of the hashes
/// with this home are there.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeadTable {
    entries: Vec<Head>,
    eighths: Vec<u8>,
    len: usize,
    bits: u32,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    tag: u32,
    run: u32,
}

/// The most entries of a table of heads, as a power of two: a tag of 32 bits has three to spare then.
const MAX_HEAD_BITS: u32 = 29;

/// An entry without a run.
const FREE: Head = Head { tag: 0, run: u32::MAX };

impl HeadTable {
    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Head>() + self.eighths.capacity()
    }

    /// The first run whose head may be this hash and is, as `is` says.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let tag = tag(hash);
        let mut at = self.home(tag);
        if self.eighths[at] & self.eighth(tag) == 0 {
            return None;
        }
        let mask = self.entries.len() - 1;
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
        if (self.len + 1) * 2 > self.entries.len() && self.bits < MAX_HEAD_BITS {
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
        let home = self.home(tag);
        let mut at = home;
        let mut eighths = 0;
        while self.entries[at].run != FREE.run {
            if self.home(self.entries[at].tag) == home {
                eighths |= self.eighth(self.entries[at].tag);
            }
            at = (at + 1) & mask;
        }
        self.eighths[home] = eighths;
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        (tag >> (32 - self.bits)) as usize
    }

    #[inline]
    fn eighth(&self, tag: u32) -> u8 {
        1 << (tag >> (29 - self.bits) & 7)
    }

    fn place(&mut self, head: Head) {
        let mask = self.entries.len() - 1;
        let mut at = self.home(head.tag);
        while self.entries[at].run != FREE.run {
            at = (at + 1) & mask;
        }
        self.entries[at] = head;
        let home = self.home(head.tag);
        self.eighths[home] |= self.eighth(head.tag);
    }

    fn grow(&mut self) {
        self.bits = if self.entries.is_empty() { FIRST_BITS } else { self.bits + 1 };
        let old = std::mem::replace(&mut self.entries, vec![FREE; 1 << self.bits]);
        self.eighths = vec![0; 1 << self.bits];
        for head in old.into_iter().filter(|head| head.run != FREE.run) {
            self.place(head);
        }
    }
}

fn tag(hash: u64) -> u32 {
    (spread(hash) >> 32) as u32
}
