//! Flat tables with open addressing: no pointers, one cache line for most probes, nothing left behind by a removal.
//!
//! Both probe linearly and close the gap when an entry goes, so a table that is always in motion stays as quick as a new one. Keys
//! are hashes already, but whoever sends events chooses them: they are multiplied once, so that small or regular keys spread too.

/// 2^64 divided by the golden ratio: multiples of it are spread evenly.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
/// Entries that a table begins with, as a power of two.
const FIRST_BITS: u32 = 4;

/// From a key that an engine made up to a place and a number of copies.
#[derive(Debug, Clone, Default)]
pub(super) struct KeyTable {
    entries: Vec<Entry>,
    len: usize,
    bits: u32,
}

/// One key. An entry without copies is free.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    key: u64,
    slot: u32,
    copies: u32,
}

/// What became of a key that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Put {
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
pub(super) enum Taken {
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
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// All places, in no order.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.entries.iter().filter(|entry| entry.copies > 0).map(|entry| entry.slot)
    }

    /// All keys with place and copies, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u32, u32)> + '_ {
        self.entries
            .iter()
            .filter(|entry| entry.copies > 0)
            .map(|entry| (entry.key, entry.slot, entry.copies))
    }

    /// The place of a key.
    pub(super) fn get(&self, key: u64) -> Option<u32> {
        if self.entries.is_empty() {
            return None;
        }
        let mask = self.entries.len() - 1;
        let mut at = self.home(key);
        loop {
            let entry = &self.entries[at];
            if entry.copies == 0 {
                return None;
            }
            if entry.key == key {
                return Some(entry.slot);
            }
            at = (at + 1) & mask;
        }
    }

    /// Makes room for so many more keys, so that none of them has to.
    pub(super) fn reserve(&mut self, more: usize) {
        while (self.len + more) * 4 > self.entries.len() * 3 {
            self.grow();
        }
    }

    /// Notes that the key is at the place, once more if it is there already.
    pub(super) fn put(&mut self, key: u64, slot: u32) -> Put {
        self.reserve(1);
        let mask = self.entries.len() - 1;
        let mut at = self.home(key);
        loop {
            let entry = &mut self.entries[at];
            if entry.copies == 0 {
                *entry = Entry { key, slot, copies: 1 };
                self.len += 1;
                return Put::New;
            }
            if entry.key == key {
                if entry.slot == slot {
                    entry.copies = entry.copies.saturating_add(1);
                    return Put::Copy;
                }
                let from = entry.slot;
                *entry = Entry { key, slot, copies: 1 };
                return Put::Moved { from };
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes one copy of the key away.
    pub(super) fn take(&mut self, key: u64) -> Taken {
        if self.entries.is_empty() {
            return Taken::Unknown;
        }
        let mask = self.entries.len() - 1;
        let mut at = self.home(key);
        loop {
            let entry = &mut self.entries[at];
            if entry.copies == 0 {
                return Taken::Unknown;
            }
            if entry.key == key {
                break;
            }
            at = (at + 1) & mask;
        }
        let entry = &mut self.entries[at];
        if entry.copies > 1 {
            entry.copies -= 1;
            return Taken::Copy;
        }
        let slot = entry.slot;
        self.len -= 1;
        // The entries behind move up as far as their own homes allow, so that every probe still meets no gap before its key.
        let mut gap = at;
        let mut next = (at + 1) & mask;
        loop {
            let entry = self.entries[next];
            if entry.copies == 0 {
                break;
            }
            let home = self.home(entry.key);
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(gap) & mask {
                self.entries[gap] = entry;
                gap = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[gap].copies = 0;
        Taken::Last { slot }
    }

    fn home(&self, key: u64) -> usize {
        ((key ^ (key >> 32)).wrapping_mul(SPREAD) >> (64 - self.bits)) as usize
    }

    fn grow(&mut self) {
        self.bits = if self.entries.is_empty() { FIRST_BITS } else { self.bits + 1 };
        let old = std::mem::replace(&mut self.entries, vec![Entry::default(); 1 << self.bits]);
        let mask = self.entries.len() - 1;
        for entry in old.into_iter().filter(|entry| entry.copies > 0) {
            let mut at = self.home(entry.key);
            while self.entries[at].copies > 0 {
                at = (at + 1) & mask;
            }
            self.entries[at] = entry;
        }
    }
}

/// From the hash that a run begins with to candidates for the run. It keeps 32 bits of each hash, so whoever asks checks the run.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadTable {
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
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Head>()
    }

    /// The first run whose head may be this hash and is, as `is` says.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
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
    pub(super) fn insert(&mut self, hash: u64, run: u32) {
        if (self.len + 1) * 2 > self.entries.len() {
            self.grow();
        }
        self.place(Head { tag: tag(hash), run });
        self.len += 1;
    }

    /// Forgets that this run begins with this hash.
    pub(super) fn remove(&mut self, hash: u64, run: u32) {
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
    ((hash ^ (hash >> 32)).wrapping_mul(SPREAD) >> 32) as u32
}
