//! Which bytes of an arena are whose.
//!
//! First fit over a list of what is free, ordered by where it is; neighbours become one when they are given back. An arena has few
//! allocations, tensors and not objects, so a walk through the list is quick, and first fit keeps the end free for large ones.

use std::collections::BTreeMap;

/// All allocations begin at multiples of so many bytes, as those of the driver do.
pub const ALIGNMENT: u64 = 256;

/// What is free of a range that begins at 0, and what is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocator {
    length: u64,
    /// Bytes by where they begin. No two of them touch.
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
}

/// Why there is no room, or nothing to give back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// Nothing was asked for, or at no possible place.
    #[error(
        "{bytes} bytes at a multiple of {alignment} cannot be had: ask for one at least, at a power of two"
    )]
    Nothing {
        /// Bytes that were asked for.
        bytes: u64,
        /// Where.
        alignment: u64,
    },
    /// Too much was asked for.
    #[error("{bytes} bytes do not fit: {free} of {length} are free, {largest} of them in a row")]
    Full {
        /// Bytes that were asked for.
        bytes: u64,
        /// All that is free.
        free: u64,
        /// The most that is free in a row.
        largest: u64,
        /// All that there is.
        length: u64,
    },
    /// No allocation begins there.
    #[error("nothing that was allocated begins at {at}, so it cannot be given back")]
    NotTaken {
        /// Where.
        at: u64,
    },
}

impl Allocator {
    /// All of `length` bytes free.
    pub fn new(length: u64) -> Self {
        let free = if length == 0 { BTreeMap::new() } else { BTreeMap::from([(0, length)]) };
        Self { length, free, taken: BTreeMap::new() }
    }

    /// Takes so many bytes in a row, from a multiple of `alignment` on, a power of two; where they begin. A multiple of [`ALIGNMENT`] is taken.
    ///
    /// # Errors
    /// Where there is no such room.
    pub fn take(&mut self, bytes: u64, alignment: u64) -> Result<u64, AllocatorError> {
        if bytes == 0 || !alignment.is_power_of_two() {
            return Err(AllocatorError::Nothing { bytes, alignment });
        }
        let step = alignment.max(ALIGNMENT);
        let fits = |begin: u64, length: u64, rounded: u64| {
            let at = begin.checked_next_multiple_of(step)?;
            (at.checked_add(rounded)? <= begin + length).then_some(at)
        };
        let rounded = bytes.checked_next_multiple_of(ALIGNMENT);
        let found = rounded.and_then(|rounded| {
            let mut holes = self.free.iter();
            holes.find_map(|(&begin, &length)| Some((begin, length, fits(begin, length, rounded)?, rounded)))
        });
        let Some((begin, length, at, rounded)) = found else {
            let (free, largest) = (self.free(), self.free.values().copied().max().unwrap_or_default());
            return Err(AllocatorError::Full { bytes, free, largest, length: self.length });
        };
        self.free.remove(&begin);
        for (begin, end) in [(begin, at), (at + rounded, begin + length)] {
            if begin < end {
                self.free.insert(begin, end - begin);
            }
        }
        self.taken.insert(at, rounded);
        Ok(at)
    }

    /// Gives back what begins at `at`; how many bytes that was.
    ///
    /// # Errors
    /// Where nothing begins there.
    pub fn give(&mut self, at: u64) -> Result<u64, AllocatorError> {
        let bytes = self.taken.remove(&at).ok_or(AllocatorError::NotTaken { at })?;
        let (mut begin, mut end) = (at, at + bytes);
        if let Some((&before, &length)) = self.free.range(..at).next_back()
            && before + length == at
        {
            self.free.remove(&before);
            begin = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(begin, end - begin);
        Ok(bytes)
    }

    /// Bytes that are free.
    pub fn free(&self) -> u64 {
        self.free.values().sum()
    }

    /// All bytes.
    pub fn length(&self) -> u64 {
        self.length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const LENGTH: u64 = 64 << 10;

    proptest! {
        #[test]
        fn nothing_is_given_twice_and_nothing_is_lost(
            steps in proptest::collection::vec((any::<bool>(), 1_u64..9_000, 0_u32..14), 1..200),
        ) {
            let mut allocator = Allocator::new(LENGTH);
            // A byte for each byte: whose it is.
            let mut owners = vec![0_u32; LENGTH as usize];
            let mut live: Vec<(u64, u64, u32)> = Vec::new();
            for (number, (take, bytes, alignment)) in (1..).zip(steps) {
                if take {
                    match allocator.take(bytes, 1 << alignment) {
                        Ok(at) => {
                            prop_assert!(at.is_multiple_of(1 << alignment) && at.is_multiple_of(ALIGNMENT));
                            let part = &mut owners[at as usize..(at + bytes) as usize];
                            prop_assert!(part.iter().all(|owner| *owner == 0));
                            part.fill(number);
                            live.push((at, bytes, number));
                        }
                        Err(AllocatorError::Full { largest, .. }) => prop_assert!(largest < bytes + (1 << alignment) + ALIGNMENT),
                        Err(other) => panic!("{other}"),
                    }
                } else if !live.is_empty() {
                    let (at, bytes, number) = live.swap_remove(bytes as usize % live.len());
                    prop_assert!(owners[at as usize..(at + bytes) as usize].iter().all(|owner| *owner == number));
                    prop_assert_eq!(allocator.give(at), Ok(bytes.next_multiple_of(ALIGNMENT)));
                    owners[at as usize..(at + bytes) as usize].fill(0);
                }
                let taken: u64 = live.iter().map(|(_, bytes, _)| bytes.next_multiple_of(ALIGNMENT)).sum();
                prop_assert_eq!(allocator.free(), LENGTH - taken);
            }
            for (at, _, _) in live {
                allocator.give(at).unwrap();
            }
            // Neighbours have become one.
            prop_assert_eq!(allocator, Allocator::new(LENGTH));
        }
    }

    #[test]
    fn what_cannot_be_had_is_said() {
        let mut allocator = Allocator::new(1_024);
        assert_eq!(allocator.take(0, 1), Err(AllocatorError::Nothing { bytes: 0, alignment: 1 }));
        assert_eq!(allocator.take(1, 3), Err(AllocatorError::Nothing { bytes: 1, alignment: 3 }));
        let first = allocator.take(1, 1).unwrap();
        assert_eq!(allocator.take(512, 1), Ok(256));
        allocator.give(first).unwrap();
        let full = AllocatorError::Full { bytes: 300, free: 512, largest: 256, length: 1_024 };
        assert_eq!(allocator.take(300, 1), Err(full));
        assert_eq!(full.to_string(), "300 bytes do not fit: 512 of 1024 are free, 256 of them in a row");
        assert!(matches!(allocator.take(u64::MAX, 1 << 63), Err(AllocatorError::Full { .. })));
        assert_eq!(allocator.give(first), Err(AllocatorError::NotTaken { at: first }));
        assert_eq!(Allocator::new(0).free(), 0);
    }
}
