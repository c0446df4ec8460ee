//! From the hash that a run begins with to the run.

use crate::table::spread;

/// Entries that a table begins with, as a power of two.
const FIRST_BITS: u32 = 4;

/// From the hash that a run begins with to candidates for the run. It keeps 32 bits of each hash, so whoever asks checks the run.
///
/// Most questions are about blocks that no run begins with. They are answered by a byte for each entry: which eighths of the hashes
/// with this home are there.
#[derive(Debug, Clone, Default)]
pub(super) struct HeadTable {
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
    pub(super) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Head>() + self.eighths.capacity()
    }

    /// The first run whose head may be this hash and is, as `is` says.
    #[inline]
    pub(super) fn find(&self, hash: u64, is: impl Fn(u32) -> bool) -> Option<u32> {
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
    pub(super) fn insert(&mut self, hash: u64, run: u32) {
        if (self.len + 1) * 2 > self.entries.len() && self.bits < MAX_HEAD_BITS {
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
