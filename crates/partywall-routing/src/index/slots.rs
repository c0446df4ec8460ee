//! A set of slots, found by what their blocks are called.

use prefetch_index::prefetch_index;

use super::arena::Arena;
use crate::table::spread;

/// Entries in a bucket: as many as fit a cache line.
const WAYS: usize = 10;
/// Buckets that a table begins with, as a power of two.
const FIRST_BITS: u32 = 1;
/// How many buckets a new entry is tried in. Names that are spread need one; whoever chooses them so that they need more must not make
/// others wait.
const TRIES: usize = 64;
/// How many probes ahead the processor is told what memory will be needed.
pub(super) const AHEAD: usize = 12;

/// From a name to a slot, without the name: whoever asks knows what the block at a slot is called.
///
/// An entry is a slot and sixteen bits of its name, and ten of them are a cache line. At most half of the table is in use, so a bucket is
/// seldom full, a probe is one access to memory, and the processor foresees how it goes. An entry whose home is full goes to the next
/// bucket that is not. Each bucket counts those that passed it: a probe ends where none did, and nothing moves when an entry goes.
#[derive(Debug, Clone, Default)]
pub(super) struct SlotTable {
    buckets: Vec<Bucket>,
    len: usize,
    bits: u32,
}

#[derive(Debug, Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    slots: [u32; WAYS],
    tags: [u16; WAYS],
    /// Which entries are in use, as bits.
    used: u16,
    /// How many entries would be here or before if there were room.
    passed: u16,
}

const _: () = assert!(size_of::<Bucket>() == 64);

impl Bucket {
    /// The entries with this tag, as bits. All are compared: that costs less than a branch for each.
    #[inline]
    fn same(&self, tag: u16) -> u16 {
        let same = self.tags.iter().enumerate().map(|(way, &other)| u16::from(other == tag) << way);
        same.sum::<u16>() & self.used
    }

    /// Whether any entry has this tag, or had it before it went.
    #[inline]
    fn had(&self, tag: u16) -> bool {
        self.tags.iter().fold(false, |had, &other| had | (other == tag))
    }

    /// Takes an entry that is not in use; false if there is none.
    #[inline]
    fn fill(&mut self, tag: u16, slot: u32) -> bool {
        let way = self.used.trailing_ones() as usize;
        if way >= WAYS {
            return false;
        }
        self.tags[way] = tag;
        self.slots[way] = slot;
        self.used |= 1 << way;
        true
    }

    fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..WAYS).filter(|way| self.used >> way & 1 == 1).map(|way| self.slots[way])
    }
}

/// Where an entry is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    bucket: usize,
    way: usize,
}

/// Where a name would be, and what is kept of it.
#[derive(Clone, Copy)]
struct Home {
    bucket: usize,
    tag: u16,
}

impl SlotTable {
    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>()
    }

    /// All slots, in no order.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        self.buckets.iter().flat_map(Bucket::slots)
    }

    /// The slot of an entry.
    #[inline]
    pub(super) fn slot(&self, entry: Entry) -> u32 {
        self.buckets[entry.bucket].slots[entry.way]
    }

    /// Gives an entry another slot of the same name.
    pub(super) fn set(&mut self, entry: Entry, slot: u32) {
        self.buckets[entry.bucket].slots[entry.way] = slot;
    }

    /// The entry of a name.
    #[inline]
    pub(super) fn find(&self, name: u64, arena: &Arena) -> Option<Entry> {
        let home = self.home(name);
        for step in 0..self.buckets.len() {
            let at = self.behind(home, step);
            let bucket = &self.buckets[at];
            let mut same = bucket.same(home.tag);
            while same != 0 {
                let way = same.trailing_zeros() as usize;
                if arena.name(bucket.slots[way]) == name {
                    return Some(Entry { bucket: at, way });
                }
                same &= same - 1;
            }
            if bucket.passed == 0 {
                break;
            }
        }
        None
    }

    /// Adds a slot of this name, if the name is not there and there is room near its home.
    pub(super) fn insert(&mut self, name: u64, slot: u32, arena: &Arena) -> bool {
        self.insert_all(&[name], |&name| name, slot, arena) == 1
    }

    /// Adds slots that follow each other, until a name comes that is there or has no room near its home. How many were added.
    #[inline]
    pub(super) fn insert_all<T>(
        &mut self,
        items: &[T],
        name: impl Fn(&T) -> u64,
        first: u32,
        arena: &Arena,
    ) -> usize {
        while (self.len + items.len()) * 2 > self.buckets.len() * WAYS {
            self.grow(arena);
        }
        let mut added = 0;
        let mut ahead = items.iter();
        ahead.by_ref().take(AHEAD).for_each(|item| self.prefetch(name(item)));
        for (item, slot) in items.iter().zip(first..) {
            if let Some(item) = ahead.next() {
                self.prefetch(name(item));
            }
            let home = self.home(name(item));
            let bucket = &mut self.buckets[home.bucket];
            let is_new = !bucket.had(home.tag) && bucket.passed == 0;
            if !(is_new && bucket.fill(home.tag, slot)) {
                let there = self.find(name(item), arena).is_some();
                if there || !self.place(home, slot, TRIES) {
                    break;
                }
            }
            added += 1;
        }
        self.len += added;
        added
    }

    /// Says that this name will be looked for soon: the memory is then near when it comes.
    #[inline]
    pub(super) fn prefetch(&self, name: u64) {
        prefetch_index(&self.buckets, self.home(name).bucket);
    }

    /// Takes the entry of a name away.
    #[inline]
    pub(super) fn remove(&mut self, name: u64, entry: Entry) {
        let home = self.home(name);
        for step in 0..entry.bucket.wrapping_sub(home.bucket) & (self.buckets.len() - 1) {
            let at = self.behind(home, step);
            self.buckets[at].passed -= 1;
        }
        self.buckets[entry.bucket].used &= !(1 << entry.way);
        self.len -= 1;
    }

    /// Puts an entry that is not there into one of the first so many buckets from its home on, if one has room.
    fn place(&mut self, home: Home, slot: u32, tries: usize) -> bool {
        for step in 0..tries.min(self.buckets.len()) {
            let at = self.behind(home, step);
            if self.buckets[at].fill(home.tag, slot) {
                for step in 0..step {
                    let at = self.behind(home, step);
                    self.buckets[at].passed += 1;
                }
                return true;
            }
        }
        false
    }

    #[inline]
    fn behind(&self, home: Home, step: usize) -> usize {
        (home.bucket + step) & (self.buckets.len() - 1)
    }

    #[inline]
    fn home(&self, name: u64) -> Home {
        let spread = spread(name);
        Home { bucket: (spread >> 1 >> (63 - self.bits)) as usize, tag: (spread >> 16) as u16 }
    }

    fn grow(&mut self, arena: &Arena) {
        self.bits = if self.buckets.is_empty() { FIRST_BITS } else { self.bits + 1 };
        let old = std::mem::replace(&mut self.buckets, vec![Bucket::default(); 1 << self.bits]);
        let mut ahead = old.iter().flat_map(Bucket::slots);
        ahead.by_ref().take(AHEAD).for_each(|slot| arena.prefetch_name(slot));
        for slot in old.iter().flat_map(Bucket::slots) {
            if let Some(slot) = ahead.next() {
                arena.prefetch_name(slot);
            }
            self.place(self.home(arena.name(slot)), slot, usize::MAX);
        }
    }
}
