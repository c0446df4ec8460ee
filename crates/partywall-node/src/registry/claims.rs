//! What a process says of itself in its page, taken as claims.
//!
//! Every number there may be anything at any time. What only grows is taken when it grew, by no more than a process can do between two
//! looks; everything else is *nonsense*, which is reported once and leaves the last number that made sense.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use partywall_shim_api::page::{MEMORY_PATHS, Page};

/// Bytes between two looks, which are an hour apart at most: 300 GB/s.
const BYTES: u64 = 1 << 50;

/// Events between two looks: 300 a microsecond for an hour.
const EVENTS: u64 = 1 << 40;

/// Nanoseconds of waiting between two looks: a million copies that wait for an hour.
const WAITED_NS: u64 = 1 << 62;

/// More than any host has: what a process holds of anything is below this.
const HELD: u64 = 1 << 50;

/// Copies of one direction, since the process registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copies {
    /// Bytes that went as packets and are through.
    pub(crate) bytes: u64,
    pub(crate) copies: u64,
    pub(crate) wait_ns: u64,
    pub(crate) direct_bytes: u64,
    pub(crate) direct_copies: u64,
}

/// What a process has counted since it registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    pub(crate) copies: [Copies; 2],
    pub(crate) launches: u64,
    pub(crate) graph_launches: u64,
    pub(crate) held_ns: u64,
    pub(crate) busy_ns: u64,
    pub(crate) squeezed_launches: u64,
    pub(crate) unsqueezed_launches: u64,
    pub(crate) resizes: u64,
    pub(crate) allocations: u64,
    pub(crate) refusals: u64,
}

/// What a process holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Levels {
    pub(crate) memory_bytes: u64,
    pub(crate) memory_peak_bytes: u64,
    pub(crate) memory_by_path: [u64; MEMORY_PATHS],
    /// Entry points: enforced, passed through, refused, unknown.
    pub(crate) covered: [u32; 4],
    /// Graphs that are launched in pieces, such that cannot be, and such that are not on the squeezed set.
    pub(crate) graphs: [u32; 3],
    /// From a decision about the SMs to the first launch that followed it: the last time, and at most.
    pub(crate) resize_ns: u64,
    pub(crate) longest_resize_ns: u64,
    /// The time slice; 0: as the driver has it.
    pub(crate) slice_us: u32,
}

/// A process's page as far as it made sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Claims {
    pub(crate) counters: Counters,
    pub(crate) levels: Levels,
}

impl Counters {
    /// Adds up those of several processes.
    pub(crate) fn add(&mut self, other: &Self) {
        let sum = |one: &mut u64, other: u64| *one = one.saturating_add(other);
        for (one, other) in self.copies.iter_mut().zip(&other.copies) {
            sum(&mut one.bytes, other.bytes);
            sum(&mut one.copies, other.copies);
            sum(&mut one.wait_ns, other.wait_ns);
            sum(&mut one.direct_bytes, other.direct_bytes);
            sum(&mut one.direct_copies, other.direct_copies);
        }
        sum(&mut self.launches, other.launches);
        sum(&mut self.graph_launches, other.graph_launches);
        sum(&mut self.held_ns, other.held_ns);
        sum(&mut self.busy_ns, other.busy_ns);
        sum(&mut self.squeezed_launches, other.squeezed_launches);
        sum(&mut self.unsqueezed_launches, other.unsqueezed_launches);
        sum(&mut self.resizes, other.resizes);
        sum(&mut self.allocations, other.allocations);
        sum(&mut self.refusals, other.refusals);
    }
}

impl Claims {
    /// Looks at the page; `false` if something in it made no sense.
    pub(crate) fn read(&mut self, page: &Page) -> bool {
        let mut sense = true;
        let shim = &page.shim;
        let Counters { copies, launches, graph_launches, held_ns, busy_ns, .. } = &mut self.counters;
        for (known, side) in copies.iter_mut().zip(&shim.copies) {
            sense &= grown(&mut known.bytes, &side.done, BYTES);
            sense &= grown(&mut known.copies, &side.copies, EVENTS);
            sense &= grown(&mut known.wait_ns, &side.wait_ns, WAITED_NS);
            sense &= grown(&mut known.direct_bytes, &side.direct_bytes, BYTES);
            sense &= grown(&mut known.direct_copies, &side.direct_copies, EVENTS);
        }
        sense &= grown(launches, &shim.launches, EVENTS);
        sense &= grown(graph_launches, &shim.graph_launches, EVENTS);
        sense &= grown(held_ns, &shim.held_ns, WAITED_NS);
        sense &= grown(busy_ns, &shim.busy_ns, WAITED_NS);
        let Counters { squeezed_launches, unsqueezed_launches, resizes, allocations, refusals, .. } =
            &mut self.counters;
        sense &= grown(squeezed_launches, &shim.squeezed_launches, EVENTS);
        sense &= grown(unsqueezed_launches, &shim.unsqueezed_launches, EVENTS);
        sense &= grown(resizes, &shim.resizes, EVENTS);
        sense &= grown(allocations, &shim.allocations, EVENTS);
        sense &= grown(refusals, &shim.refusals, EVENTS);
        let levels = &mut self.levels;
        sense &= held(&mut levels.memory_bytes, &shim.memory_bytes);
        sense &= held(&mut levels.memory_peak_bytes, &shim.memory_peak_bytes);
        for (known, path) in levels.memory_by_path.iter_mut().zip(&shim.memory_by_path) {
            sense &= held(known, path);
        }
        let covered: [&AtomicU32; 4] =
            [&shim.covered_enforced, &shim.covered_passed, &shim.covered_refused, &shim.covered_unknown];
        for (known, count) in levels.covered.iter_mut().zip(covered) {
            let count = count.load(Ordering::Relaxed);
            // The driver has fewer entry points than that.
            let fits = count < 1 << 16;
            sense &= fits;
            *known = if fits { count } else { *known };
        }
        // Any number makes sense: graphs are the program's.
        let graphs = [&shim.graphs_cut, &shim.graphs_whole, &shim.graphs_unsqueezed];
        levels.graphs = graphs.map(|count| count.load(Ordering::Relaxed));
        levels.slice_us = shim.slice_us.load(Ordering::Relaxed);
        sense &= held(&mut levels.resize_ns, &shim.resize_ns);
        sense &= held(&mut levels.longest_resize_ns, &shim.longest_resize_ns);
        sense
    }
}

fn grown(known: &mut u64, field: &AtomicU64, limit: u64) -> bool {
    let value = field.load(Ordering::Relaxed);
    let sense = value.wrapping_sub(*known) <= limit;
    if sense {
        *known = value;
    }
    sense
}

fn held(known: &mut u64, field: &AtomicU64) -> bool {
    let value = field.load(Ordering::Relaxed);
    let sense = value <= HELD;
    if sense {
        *known = value;
    }
    sense
}

#[cfg(test)]
mod tests {
    use partywall_shim_api::page::Mapped;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_makes_sense_is_taken_and_the_rest_is_not() {
        let (page, _file) = Mapped::create(1, 1, 0, None).unwrap();
        let mut claims = Claims::default();
        page.shim.launches.store(5, Ordering::Relaxed);
        page.shim.memory_bytes.store(1 << 30, Ordering::Relaxed);
        assert!(claims.read(&page));
        let good = claims;
        for launches in [4, u64::MAX, 6 + EVENTS] {
            page.shim.launches.store(launches, Ordering::Relaxed);
            assert!(!claims.read(&page));
            assert_eq!(claims, good);
        }
        page.shim.launches.store(5 + EVENTS, Ordering::Relaxed);
        page.shim.memory_bytes.store(u64::MAX, Ordering::Relaxed);
        page.shim.covered_unknown.store(u32::MAX, Ordering::Relaxed);
        assert!(!claims.read(&page));
        assert_eq!((claims.counters.launches, claims.levels), (5 + EVENTS, good.levels));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn counters_never_shrink_whatever_the_page_says(values in proptest::collection::vec(any::<u64>(), 1..40)) {
            let (page, _file) = Mapped::create(1, 1, 0, None).unwrap();
            let mut claims = Claims::default();
            for value in values {
                let before = claims.counters;
                page.shim.copies[0].done.store(value, Ordering::Relaxed);
                page.shim.refusals.store(value >> 20, Ordering::Relaxed);
                page.shim.memory_by_path[3].store(value, Ordering::Relaxed);
                claims.read(&page);
                // They wrap only after more than a look may add.
                prop_assert!(claims.counters.copies[0].bytes.wrapping_sub(before.copies[0].bytes) <= BYTES);
                prop_assert!(claims.counters.refusals >= before.refusals);
                prop_assert!(claims.levels.memory_by_path[3] <= HELD);
            }
        }
    }
}
