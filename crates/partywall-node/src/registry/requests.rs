//! What processes say of their requests and of their work, read from their pages as claims.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use partywall_core::units::Nanos;
use partywall_shim_api::page::{Page, REQUESTS};

/// Requests that are remembered of a process, and for how long: beside them others were not alone. Enough for 2 000 a second.
const REMEMBERED: usize = 16 * REQUESTS;
const REMEMBERED_FOR: Nanos = Nanos::from_secs(2);

/// More requests than that between two looks are none: a launch and a wait take microseconds.
const REQUESTS_MAX: u64 = 1 << 32;

/// The same for launches, at some millions a second.
const LAUNCHES_MAX: u64 = 1 << 32;

/// A request that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub(super) end: Nanos,
    /// `None`: it is not known.
    pub(super) took: Option<Nanos>,
}

/// What was read at a look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) ended: Vec<Ended>,
    /// Requests that were written over before they were read.
    pub(super) lost: u64,
    /// Whether the page said what cannot be.
    pub(super) nonsense: bool,
}

/// A latency-sensitive process's requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Requests read so far.
    count: u64,
    /// When the last of them ended.
    last_end: Nanos,
    /// When it was at work lately, from and to.
    at_work: VecDeque<(Nanos, Nanos)>,
    /// Before this, nothing is known any more.
    known_since: Nanos,
}

impl Requests {
    /// Reads what is new in the page. `now` is the time before this is called.
    pub(super) fn look(&mut self, now: Nanos, page: &Page) -> Look {
        let ring = &page.shim.requests;
        let count = ring.count.load(Ordering::Acquire);
        let new = count.wrapping_sub(self.count);
        if new > REQUESTS_MAX {
            return Look { nonsense: true, ..Look::default() };
        }
        let kept = new.min(REQUESTS as u64);
        let read: Vec<(u64, u64, u64)> = (0..kept)
            .map(|back| count.wrapping_sub(kept - back))
            .map(|number| {
                let slot = &ring.times[(number % REQUESTS as u64) as usize];
                (number, slot.end_ns.load(Ordering::Acquire), slot.took_ns.load(Ordering::Acquire))
            })
            .collect();
        // Meanwhile some may have been written over, and one more may be under the pen.
        let after = ring.count.load(Ordering::Acquire);
        let whole = |number: u64| after.wrapping_sub(number) < REQUESTS as u64;
        let mut look = Look::default();
        for (number, end, took) in read {
            let (end, took) = (Nanos(end), Nanos(took));
            if !whole(number) {
                continue;
            }
            // It may have ended after `now` was read, but not long after that.
            if took > end || end < self.last_end || end > now.saturating_add(REMEMBERED_FOR) {
                look.nonsense = true;
                continue;
            }
            self.ended(end, took);
            let took = Some(took).filter(|took| *took > Nanos::ZERO);
            look.ended.push(Ended { end, took });
        }
        look.lost = new.saturating_sub(look.ended.len() as u64);
        if look.lost > 0 {
            self.remember(self.last_end, now);
        }
        self.count = count;
        let old = now.saturating_sub(REMEMBERED_FOR);
        while let Some(&(_, end)) = self.at_work.front()
            && (end < old || self.at_work.len() > REMEMBERED)
        {
            self.known_since = end;
            self.at_work.pop_front();
        }
        if page.shim.active.load(Ordering::Acquire) != 0 {
            self.remember(self.last_end, now);
        }
        look
    }

    /// Of one whose beginning is not known, it is known that it was not before the end of the last.
    fn ended(&mut self, end: Nanos, took: Nanos) {
        let begin = if took == Nanos::ZERO { self.last_end } else { end.saturating_sub(took) };
        self.remember(begin, end);
        self.last_end = end;
    }

    fn remember(&mut self, begin: Nanos, end: Nanos) {
        match self.at_work.back_mut() {
            // The same that was still going on at the last look.
            Some(last) if last.0 == begin => last.1 = last.1.max(end),
            _ => self.at_work.push_back((begin, end)),
        }
    }

    /// Whether the process was, or may have been, at work at any time between these.
    pub(super) fn was_at_work(&self, from: Nanos, to: Nanos) -> bool {
        from < self.known_since || self.at_work.iter().any(|&(begin, end)| begin <= to && end >= from)
    }
}

/// A best-effort process's work, as far as its page shows it: launches, graphs and copies, and chunks that are under way.
#[derive(Debug, Default)]
pub(super) struct Work {
    sum: u64,
    under_way: bool,
    total: u64,
    launches: u64,
}

impl Work {
    /// Whether it had work on the device at any time since the last look.
    pub(super) fn look(&mut self, page: &Page) -> bool {
        let shim = &page.shim;
        let mut sum = 0u64;
        let mut add = |word: u64| sum = sum.wrapping_add(word);
        let total =
            shim.launches.load(Ordering::Acquire).wrapping_add(shim.graph_launches.load(Ordering::Acquire));
        add(total);
        let mut under_way = shim.chunks.iter().any(|word| word.load(Ordering::Acquire) != 0);
        for side in &shim.copies {
            let (ready, done) = (side.ready.load(Ordering::Acquire), side.done.load(Ordering::Acquire));
            [ready, done, side.direct_copies.load(Ordering::Acquire)].into_iter().for_each(&mut add);
            under_way |= ready != done;
        }
        let launches = Some(total.wrapping_sub(self.total)).filter(|launches| *launches < LAUNCHES_MAX);
        let launches = launches.unwrap_or_default();
        let before = std::mem::replace(self, Self { sum, under_way, total, launches });
        before.under_way || under_way || before.sum != sum
    }

    /// Launches of kernels and graphs between the last two looks.
    pub(super) const fn launches(&self) -> u64 {
        self.launches
    }
}

#[cfg(test)]
mod tests {
    use partywall_shim_api::page::Mapped;
    use proptest::prelude::*;

    use super::*;

    fn page() -> Mapped {
        Mapped::create(1, 0, 0, None).unwrap().0
    }

    fn write(page: &Page, end: u64, took: u64) {
        let ring = &page.shim.requests;
        let slot = &ring.times[(ring.count.load(Ordering::Relaxed) % REQUESTS as u64) as usize];
        slot.end_ns.store(end, Ordering::Relaxed);
        slot.took_ns.store(took, Ordering::Relaxed);
        ring.count.fetch_add(1, Ordering::Release);
    }

    fn times(look: &Look) -> Vec<(u64, Option<u64>)> {
        look.ended.iter().map(|ended| (ended.end.0, ended.took.map(|took| took.0))).collect()
    }

    #[test]
    fn requests_are_read_once() {
        let (page, mut requests) = (page(), Requests::default());
        let now = Nanos(1_000);
        assert_eq!(requests.look(now, &page), Look::default());
        write(&page, 100, 30);
        write(&page, 200, 0);
        assert_eq!(times(&requests.look(now, &page)), [(100, Some(30)), (200, None)]);
        write(&page, 300, 10);
        assert_eq!(times(&requests.look(now, &page)), [(300, Some(10))]);
        assert_eq!(requests.look(now, &page), Look::default());
    }

    #[test]
    fn what_was_written_over_is_counted() {
        let (page, mut requests) = (page(), Requests::default());
        let all = REQUESTS as u64 + 40;
        (1..=all).for_each(|number| write(&page, 10 * number, 5));
        let look = requests.look(Nanos(1_000_000), &page);
        // One slot is the next to be written, so it is not relied on.
        assert_eq!((look.ended.len(), look.lost, look.nonsense), (REQUESTS - 1, 41, false));
        assert_eq!(look.ended[0].end, Nanos(10 * 42));
    }

    #[test]
    fn what_cannot_be_is_not_taken() {
        let (page, mut requests) = (page(), Requests::default());
        let now = Nanos::from_secs(1);
        write(&page, 500, 100);
        for (end, took) in [(100, 200), (400, 10), (u64::MAX, 5), (600, u64::MAX)] {
            write(&page, end, took);
        }
        let look = requests.look(now, &page);
        assert_eq!((times(&look), look.lost, look.nonsense), (vec![(500, Some(100))], 4, true));
        page.shim.requests.count.store(1, Ordering::Relaxed);
        assert!(requests.look(now, &page).nonsense);
        page.shim.requests.count.store(u64::MAX, Ordering::Relaxed);
        assert!(requests.look(now, &page).nonsense);
    }

    #[test]
    fn others_know_when_it_was_at_work() {
        let (page, mut requests) = (page(), Requests::default());
        write(&page, 1_000, 100);
        write(&page, 3_000, 200);
        write(&page, 5_000, 0);
        requests.look(Nanos(6_000), &page);
        let was = |from, to| requests.was_at_work(Nanos(from), Nanos(to));
        assert_eq!(
            [was(0, 800), was(800, 900), was(1_100, 2_700), was(2_900, 2_950)],
            [false, true, false, true]
        );
        assert!(was(3_100, 3_200), "nobody knows when the third began");
        assert!(!was(5_100, 6_000));
        page.shim.active.store(1, Ordering::Relaxed);
        requests.look(Nanos(7_000), &page);
        assert!(
            requests.was_at_work(Nanos(5_100), Nanos(6_000)),
            "one is under way, since nobody knows when"
        );
        requests.look(Nanos(8_000), &page);
        assert_eq!(requests.at_work.len(), 4, "it is remembered once");
    }

    #[test]
    fn work_is_launches_copies_and_chunks_under_way() {
        let (page, mut work) = (page(), Work::default());
        assert!(!work.look(&page));
        page.shim.launches.fetch_add(1, Ordering::Relaxed);
        assert_eq!([work.look(&page), work.look(&page)], [true, false]);
        page.shim.chunks[5].store(1, Ordering::Relaxed);
        assert_eq!([work.look(&page), work.look(&page)], [true, true]);
        page.shim.chunks[5].store(0, Ordering::Relaxed);
        assert_eq!([work.look(&page), work.look(&page)], [true, false], "it was there since the last look");
        page.shim.copies[1].ready.store(9, Ordering::Relaxed);
        assert_eq!([work.look(&page), work.look(&page)], [true, true]);
        page.shim.copies[1].done.store(9, Ordering::Relaxed);
        assert_eq!([work.look(&page), work.look(&page)], [true, false]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_page_is_read_within_bounds(
            counts in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..600], 1..6),
            slots in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..40),
            now in any::<u64>(),
        ) {
            let (page, mut requests) = (page(), Requests::default());
            for (number, (end, took)) in slots.into_iter().enumerate() {
                page.shim.requests.times[number].end_ns.store(end, Ordering::Relaxed);
                page.shim.requests.times[number].took_ns.store(took, Ordering::Relaxed);
            }
            for count in counts {
                page.shim.requests.count.store(count, Ordering::Relaxed);
                let look = requests.look(Nanos(now), &page);
                prop_assert!(look.ended.len() < REQUESTS);
                prop_assert!(look.ended.iter().all(|ended| ended.took.is_none_or(|took| took <= ended.end)));
                prop_assert!(requests.at_work.len() <= REMEMBERED + REQUESTS + 2);
            }
        }
    }
}
