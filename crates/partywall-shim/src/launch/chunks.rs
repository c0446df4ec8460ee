//! How many launches go into a chunk, so that the device is busy with it for about as long as the node wants.
//!
//! # Problem
//!
//! A chunk of sixteen kernels of 1.4 ms keeps a neighbour's request waiting for 22 ms; one of a single kernel of 5 us costs a mark per
//! kernel. What kernels take is not known, and to have the device measure it would cost more than the mark does.
//!
//! # Approach
//!
//! The words that the device clears are looked at while launches wait, and at each mark: so each clear is known to lie *between* two
//! looks. A stream does one chunk after the other. So the device was busy with one **at least** from when all of it was there and the
//! one before it was through, and **at most** from when its first launch was made, or the one before it was through, until it was
//! cleared. Both are bounds whatever the host did in the meantime: nobody has to know whether it was slow.
//!
//! Chunks that nobody entered, because another thread was at it, leave a gap in the numbers of those of a counter: of the one behind
//! a gap only the upper bound is known.
//!
//! What follows from the bounds is core's to say ([`chunk_size`]). Where a launch was held meanwhile, a neighbour was at work, and nothing
//! is learnt.
//!
//! # Scenarios
//!
//! - S1: kernels of 5 us, 20 us and 1.4 ms: chunks come to what was wanted, of one launch where that alone is longer.
//! - S2: long kernels among short ones: one long chunk is enough to shorten, and what was longest is known.
//! - S3: a host slower than the device: chunks last about what was wanted all the same, and are never found too long.
//! - S4: looks that are far apart, or a neighbour that was at work: no wrong answer.

use partywall_core::chunk_size::{self, Wanted};
use partywall_core::units::Nanos;
use partywall_shim_api::page::CHUNKS;

use crate::copies::Stream;

/// Counters of launches: streams may share one.
pub(super) const STREAMS: usize = 64;

/// The counter of a stream.
pub(super) const fn counter(stream: Stream) -> usize {
    (stream >> 4 ^ stream >> 12 ^ stream) % STREAMS
}

/// A chunk that is under way. Times are nanoseconds of the page's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Chunk {
    /// Where.
    pub(super) stream: Stream,
    /// Which of those of its counter.
    pub(super) number: u32,
    /// How many launches.
    pub(super) launches: u32,
    /// Whether it ended because of a graph of any number of kernels, which says nothing about launches.
    pub(super) is_whole: bool,
    /// Before its first launch was made.
    pub(super) began_ns: u64,
    /// After its last.
    pub(super) marked_ns: u64,
}

/// For how long the device was busy with a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Took {
    /// Which.
    pub(super) chunk: Chunk,
    /// At least.
    pub(super) at_least_ns: u64,
    /// At most.
    pub(super) at_most_ns: u64,
}

impl Took {
    /// How many launches go into the next chunk after `now` of them: 1 to `most`. `target_ns` 0: only that bounds.
    pub(super) fn next(&self, now: u32, target_ns: u64, most: u32) -> u32 {
        let wanted = Wanted { time: Nanos(target_ns), most };
        let launches = self.chunk.launches;
        let [at_least, at_most] = [self.at_least_ns, self.at_most_ns].map(Nanos);
        if self.chunk.is_whole && target_ns != 0 {
            return now.clamp(1, most.max(1));
        }
        wanted.next(now, chunk_size::Took { launches, at_least, at_most })
    }

    /// For how long the device was busy with it. Where looks were far apart, for how long it was for certain.
    pub(super) fn busy_ns(&self) -> u64 {
        let is_sharp = self.at_most_ns - self.at_least_ns <= self.at_least_ns / 2;
        if is_sharp { self.at_most_ns } else { self.at_least_ns }
    }

    /// What a launch took, or a graph, that was a chunk of its own.
    pub(super) fn of_one(&self) -> Option<u64> {
        (self.chunk.launches == 1 && self.at_least_ns > 0).then(|| self.busy_ns())
    }
}

/// A chunk that is through, and when.
#[derive(Debug, Clone, Copy)]
struct Through {
    stream: Stream,
    number: u32,
    not_before_ns: u64,
    not_after_ns: u64,
}

#[derive(Debug, Clone, Copy)]
struct UnderWay {
    chunk: Chunk,
    /// The last look that found it so.
    seen_ns: u64,
}

/// The chunks that are under way.
#[derive(Debug)]
pub(super) struct Chunks {
    /// By the word that the device clears.
    under_way: [Option<UnderWay>; CHUNKS],
    /// The last chunk that was found through, by counter.
    last: [Option<Through>; STREAMS],
    /// When a launch was last found held.
    held_ns: u64,
}

impl Chunks {
    /// Nothing is known yet.
    pub(super) const fn new() -> Self {
        Self { under_way: [None; CHUNKS], last: [None; STREAMS], held_ns: 0 }
    }

    /// A chunk is under way whose word was taken just now.
    pub(super) fn mark(&mut self, word: usize, chunk: Chunk) {
        if let Some(place) = self.under_way.get_mut(word) {
            *place = Some(UnderWay { chunk, seen_ns: chunk.marked_ns });
        }
    }

    /// What is under way behind these words (a bit each) is not known any more.
    pub(super) fn forget(&mut self, words: u32) {
        let places = self.under_way.iter_mut().enumerate();
        places.filter(|(word, _)| words & 1 << word != 0).for_each(|(_, place)| *place = None);
    }

    /// A launch is held.
    pub(super) fn hold(&mut self, now_ns: u64) {
        self.held_ns = now_ns;
    }

    /// Words (a bit each) that were found taken between two readings of the clock. `found` gets each chunk that is through.
    pub(super) fn look(&mut self, before_ns: u64, taken: u32, after_ns: u64, mut found: impl FnMut(Took)) {
        loop {
            let chunks = || self.under_way.iter().enumerate().filter_map(|(word, one)| Some((word, (*one)?)));
            let Some((_, through)) = chunks().find(|(word, _)| taken & 1 << word == 0) else { break };
            // What came before it in its stream is through as well, and was only looked at too early.
            let of_its_stream = chunks().filter(|(_, one)| one.chunk.stream == through.chunk.stream);
            let Some((word, first)) = of_its_stream.min_by_key(|(_, one)| one.chunk.marked_ns) else { break };
            self.under_way[word] = None;
            found(self.through(first.chunk, first.seen_ns, after_ns));
        }
        for one in self.under_way.iter_mut().flatten() {
            one.seen_ns = one.seen_ns.max(before_ns);
        }
    }

    fn through(&mut self, chunk: Chunk, not_before_ns: u64, not_after_ns: u64) -> Took {
        let Chunk { stream, number, .. } = chunk;
        let now = Through { stream, number, not_before_ns, not_after_ns };
        let last = self.last[counter(stream)].replace(now);
        let is_next = |last: &Through| last.stream == stream && last.number.wrapping_add(1) == number;
        let (ahead, busy_from_ns) = match last.filter(is_next) {
            Some(last) => (last.not_before_ns, chunk.marked_ns.max(last.not_after_ns)),
            None if number == 0 => (0, chunk.marked_ns),
            None => (0, u64::MAX),
        };
        let was_held = self.held_ns >= busy_from_ns;
        let at_least_ns = if was_held { 0 } else { not_before_ns.saturating_sub(busy_from_ns) };
        let at_most_ns = not_after_ns.saturating_sub(chunk.began_ns.max(ahead)).max(at_least_ns);
        Took { chunk, at_least_ns, at_most_ns }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    const TARGET: u64 = 100_000;
    const MOST: u32 = 16;
    /// What a launch takes the host, and a mark the device.
    const LAUNCH: u64 = 2_000;
    const MARK: u64 = 2_000;

    /// A host that launches kernels into one stream, two chunks at a time, looking every `look` while it waits.
    struct Machine {
        chunks: Chunks,
        now: u64,
        /// When the device is through with what it has.
        device: u64,
        under_way: VecDeque<(usize, u64)>,
        size: u32,
        /// What each chunk really took, with its launches and what was found.
        found: Vec<(u64, Took)>,
        real: VecDeque<u64>,
        marks: usize,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                chunks: Chunks::new(),
                now: 1,
                device: 0,
                under_way: VecDeque::new(),
                size: 1,
                found: Vec::new(),
                real: VecDeque::new(),
                marks: 0,
            }
        }

        fn look(&mut self) {
            let taken = self.under_way.iter().filter(|(_, end)| *end > self.now);
            let taken = taken.fold(0, |taken, (word, _)| taken | 1 << word);
            let (real, found, size) = (&mut self.real, &mut self.found, &mut self.size);
            self.chunks.look(self.now, taken, self.now, |took| {
                *size = took.next(*size, TARGET, MOST);
                found.push((real.pop_front().unwrap(), took));
            });
            let now = self.now;
            self.under_way.retain(|(_, end)| *end > now);
        }

        fn chunk(&mut self, kernels: &mut impl Iterator<Item = u64>, host: u64, look: u64) {
            let (began_ns, mut real) = (self.now, 0);
            let launches = self.size;
            for _ in 0..launches {
                self.look_while_waiting(look);
                self.now += host;
                let kernel = kernels.next().unwrap();
                self.device = self.device.max(self.now) + kernel;
                real += kernel;
            }
            self.device += MARK;
            self.look();
            let word = self.marks % CHUNKS;
            self.marks += 1;
            let number = self.marks as u32 - 1;
            let chunk = Chunk { stream: 7, number, launches, is_whole: false, began_ns, marked_ns: self.now };
            self.chunks.mark(word, chunk);
            self.under_way.push_back((word, self.device));
            self.real.push_back(real + MARK);
        }

        fn look_while_waiting(&mut self, look: u64) {
            while self.under_way.iter().filter(|(_, end)| *end > self.now).count() >= 2 {
                self.now += look;
                self.look();
            }
        }
    }

    fn run(kernels: impl Iterator<Item = u64>, host: u64, chunks: usize) -> Machine {
        let (mut machine, mut kernels) = (Machine::new(), kernels);
        for _ in 0..chunks {
            machine.chunk(&mut kernels, host, 500);
        }
        machine
    }

    #[test]
    fn s1_chunks_come_to_what_was_wanted() {
        for (kernel, expect) in [(5_000, 14..=16), (20_000, 4..=5), (60_000, 1..=1), (1_400_000, 1..=1)] {
            let machine = run(std::iter::repeat(kernel), LAUNCH, 100);
            assert!(expect.contains(&machine.size), "kernels of {kernel}: {}", machine.size);
            let longest = machine.found.iter().map(|(real, _)| *real).max().unwrap();
            assert!(longest <= TARGET.max(kernel) * 6 / 5, "kernels of {kernel}: {longest}");
            let real: u64 = machine.found.iter().map(|(real, _)| real).sum();
            let known: u64 = machine.found.iter().map(|(_, took)| took.busy_ns()).sum();
            assert!(known.abs_diff(real) < real / 10, "kernels of {kernel}: busy for {known} of {real}");
        }
        let longest = |machine: &Machine| machine.found.iter().filter_map(|(_, took)| took.of_one()).max();
        let found = longest(&run(std::iter::repeat(1_400_000), LAUNCH, 20)).unwrap();
        assert!((1_400_000..1_500_000).contains(&found), "{found}");
    }

    #[test]
    fn s2_one_long_chunk_is_enough_to_shorten() {
        let kernels = (0_u64..).map(|at| if at % 200 == 199 { 1_400_000 } else { 5_000 });
        let mut machine = Machine::new();
        let mut kernels = kernels;
        let mut after_long = Vec::new();
        for _ in 0..800 {
            machine.chunk(&mut kernels, LAUNCH, 500);
            if let [.., (real, _)] = machine.found[..]
                && real > 1_000_000
            {
                after_long.push(machine.size);
            }
        }
        assert!(after_long.len() > 10 && after_long.iter().all(|size| *size <= 2), "{after_long:?}");
        let most = machine.found.iter().map(|(_, took)| took.chunk.launches).max().unwrap();
        assert!(most >= 8, "in between they grow again, to {most}");
    }

    #[test]
    fn s3_a_slow_host_is_not_taken_for_a_slow_device() {
        let machine = run(std::iter::repeat(5_000), 20_000, 100);
        assert!(machine.found.iter().all(|(_, took)| took.at_least_ns <= 5_000 + MARK));
        assert!(machine.size > 1);
        // Then it is fast, and all that is queued is short.
        let machine = run(std::iter::repeat_n(60_000, 2000), 200_000, 100);
        assert!(machine.size <= 2, "{}", machine.size);
    }

    #[test]
    fn s4_nothing_is_learnt_while_a_neighbour_is_at_work_or_of_what_was_forgotten() {
        let chunk = |number, marked_ns| Chunk {
            stream: 9,
            number,
            launches: 4,
            is_whole: false,
            began_ns: 0,
            marked_ns,
        };
        let mut chunks = Chunks::new();
        chunks.mark(0, chunk(0, 10));
        chunks.hold(500_000);
        chunks.look(900_000, 1, 900_000, |took| unreachable!("{took:?}"));
        let mut found = Vec::new();
        chunks.look(1_000_000, 0, 1_000_000, |took| found.push(took));
        assert_eq!((found[0].at_least_ns, found[0].next(4, TARGET, MOST)), (0, 4));
        chunks.mark(1, chunk(1, 1_000_000));
        chunks.mark(2, chunk(2, 1_000_001));
        chunks.forget(1 << 1);
        chunks.look(1_900_000, 1 << 2, 1_900_000, |took| unreachable!("{took:?}"));
        found.clear();
        chunks.look(2_000_000, 0, 2_000_000, |took| found.push(took));
        assert_eq!((found.len(), found[0].at_least_ns), (1, 0), "it may have waited for the one before");
        chunks.mark(3, chunk(3, 2_000_000));
        chunks.look(2_900_000, 1 << 3, 2_900_000, |took| unreachable!("{took:?}"));
        found.clear();
        chunks.look(3_000_000, 0, 3_000_000, |took| found.push(took));
        assert_eq!((found[0].at_least_ns, found[0].at_most_ns), (900_000, 1_100_000));
        assert_eq!(found[0].next(4, TARGET, MOST), 1);
    }

    #[test]
    fn whole_graphs_and_times_of_nought_change_no_number() {
        let chunk = Chunk { stream: 9, number: 0, launches: 1, is_whole: true, began_ns: 0, marked_ns: 0 };
        let took = Took { chunk, at_least_ns: 20_000_000, at_most_ns: 21_000_000 };
        assert_eq!((took.next(8, TARGET, MOST), took.of_one()), (8, Some(21_000_000)));
        assert_eq!(took.next(8, 0, MOST), MOST);
        let took = Took { chunk: Chunk { is_whole: false, ..chunk }, at_least_ns: 0, at_most_ns: 0 };
        assert_eq!((took.next(1, TARGET, MOST), took.of_one()), (2, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn bounds_hold_what_the_device_really_took(
            kernels in proptest::collection::vec(1_000_u64..2_000_000, 50),
            host in 500_u64..100_000,
            look in 200_u64..60_000,
        ) {
            let mut machine = Machine::new();
            let mut kernels = kernels.into_iter().cycle();
            for _ in 0..60 {
                machine.chunk(&mut kernels, host, look);
                prop_assert!((1..=MOST).contains(&machine.size));
            }
            prop_assert!(machine.found.len() > 50);
            for (real, took) in machine.found {
                prop_assert!(took.at_least_ns <= real && real <= took.at_most_ns, "{real}: {took:?}");
            }
        }
    }
}
