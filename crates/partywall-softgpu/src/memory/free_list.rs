//! Which parts of a range are free: first fit, neighbours joined.

use std::collections::BTreeMap;

/// The free parts of a range, by where they begin.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    free: BTreeMap<u64, u64>,
}

impl FreeList {
    /// All of `start..start + length` is free.
    pub(crate) fn new(start: u64, length: u64) -> Self {
        Self { free: BTreeMap::from([(start, length)]) }
    }

    /// Takes the first part that has room for `length` bytes at a multiple of `alignment`, a power of two.
    pub(crate) fn take(&mut self, length: u64, alignment: u64) -> Option<u64> {
        let (start, size, at) = self.free.iter().find_map(|(start, size)| {
            let at = start.checked_next_multiple_of(alignment)?;
            (at.checked_add(length)? <= start + size).then_some((*start, *size, at))
        })?;
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        let end = at + length;
        if end < start + size {
            self.free.insert(end, start + size - end);
        }
        Some(at)
    }

    /// Gives back what [`FreeList::take`] gave.
    pub(crate) fn give(&mut self, start: u64, length: u64) {
        let (mut start, mut length) = (start, length);
        if let Some((before, size)) = self.free.range(..start).next_back().map(|(at, size)| (*at, *size))
            && before + size == start
        {
            self.free.remove(&before);
            (start, length) = (before, length + size);
        }
        if let Some(size) = self.free.remove(&(start + length)) {
            length += size;
        }
        self.free.insert(start, length);
    }

    /// The only free part, where there is just one.
    pub(crate) fn whole(&self) -> Option<(u64, u64)> {
        if self.free.len() == 1 { self.free.first_key_value().map(|(at, size)| (*at, *size)) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn neighbours_join() {
        let mut list = FreeList::new(100, 100);
        let [a, b, c] = [30, 30, 40].map(|length| list.take(length, 1).unwrap());
        assert_eq!((a, b, c), (100, 130, 160));
        assert_eq!(list.take(1, 1), None);
        list.give(a, 30);
        list.give(c, 40);
        assert_eq!(list.whole(), None);
        list.give(b, 30);
        assert_eq!(list.whole(), Some((100, 100)));
        assert_eq!(list.take(10, 64), Some(128));
        assert_eq!(list.take(u64::MAX, 1), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn nothing_is_given_twice_and_all_comes_back(sizes in prop::collection::vec((1_u64..200, 0_u32..6), 1..40)) {
            let mut list = FreeList::new(0, 4096);
            let mut taken: Vec<(u64, u64)> = Vec::new();
            for (index, (size, alignment)) in sizes.iter().enumerate() {
                if let Some(at) = list.take(*size, 1 << alignment) {
                    prop_assert!(at % (1 << alignment) == 0 && at + size <= 4096);
                    prop_assert!(taken.iter().all(|(other, length)| at + size <= *other || other + length <= at));
                    taken.push((at, *size));
                }
                if index % 3 == 2 && !taken.is_empty() {
                    let (at, length) = taken.swap_remove(index % taken.len());
                    list.give(at, length);
                }
            }
            for (at, length) in taken {
                list.give(at, length);
            }
            prop_assert_eq!(list.whole(), Some((0, 4096)));
        }
    }
}
