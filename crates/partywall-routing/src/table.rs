//! A flat table with open addressing: no pointers, one or two cache lines for most probes, nothing left behind by a removal.
//!
//! It probes linearly and closes the gap when an entry goes, so a table that is always in motion stays as quick as a new one. Keys
//! are hashes already, but whoever sends events chooses them: they are mixed, so that small or regular keys spread too.

use std::collections::BTreeMap;

use prefetch_index::prefetch_index;

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Entries that a table begins with, as a power of two.
const FIRST_BITS: u32 = 4;
/// How many keys are fetched before they are probed for.
const AHEAD: usize = 16;
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
/// An entry takes 13 bytes. Beside the entries there is a byte for each, zero
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
            items.iter().for_each(|item| self.prefetch(key(item)));
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

    /// Says that this key will be probed for soon: the memory is then near when it comes.
    #[inline]
    pub(crate) fn prefetch(&self, key: u64) {
        if self.len > 0 {
            let home = self.home(key);
            prefetch_index(&self.tags, home);
            prefetch_index(&self.entries, home);
        }
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
pub(crate) fn spread(key: u64) -> u64 {
    (key ^ (key >> 32)).wrapping_mul(SPREAD)
}
