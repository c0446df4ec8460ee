use std::collections::BTreeSet;
use std::ops::Range;

use proptest::prelude::*;

use super::book::AGAIN;
use super::*;
use crate::sm_sets::SmSet;

/// A GPU with probes: the SMs that each really gets, and what other programs have.
#[derive(Default)]
struct Gpu {
    sets: Vec<BTreeSet<u32>>,
    told: Vec<u32>,
    busy: BTreeSet<u32>,
    /// Until when `busy` is.
    busy_until: Nanos,
    /// A probe whose blocks do not leave.
    stuck: Option<usize>,
    /// SMs that blocks of each probe are on, and how many wait.
    on: Vec<BTreeSet<u32>>,
    waiting: Vec<u32>,
    fills: usize,
}

impl Gpu {
    fn new(sets: &[Range<u32>]) -> Self {
        let told = sets.iter().map(|set| set.len() as u32).collect();
        let sets: Vec<BTreeSet<u32>> = sets.iter().cloned().map(Iterator::collect).collect();
        let (on, waiting) = (vec![BTreeSet::new(); sets.len()], vec![0; sets.len()]);
        Self { sets, told, on, waiting, ..Self::default() }
    }

    fn place(&mut self, now: Nanos) {
        for probe in 0..self.sets.len() {
            let is_busy = |sm: &u32| now < self.busy_until && self.busy.contains(sm);
            let taken: BTreeSet<u32> = self.on.iter().flatten().copied().collect();
            let free = self.sets[probe].iter().filter(|sm| !taken.contains(sm) && !is_busy(sm));
            let placed: Vec<u32> = free.copied().take(self.waiting[probe] as usize).collect();
            self.waiting[probe] -= placed.len() as u32;
            self.on[probe].extend(placed);
        }
    }

    fn counted(&self, probe: usize) -> Event {
        let all = self.on[probe].len() as u32;
        let there = all.min(self.told[probe]);
        Event::Counted { probe, there, more: all > there }
    }

    /// Lets a proof run on it; what it found, and when.
    fn prove(&mut self, alone: &[bool]) -> (Finding, Nanos) {
        let subjects = self.told.iter().zip(alone).map(|(&sms, &alone)| Subject { sms, alone });
        let mut proof = Proof::new(subjects.collect());
        let (mut now, mut actions, mut wake) = (Nanos::from_secs(1), Vec::new(), BTreeSet::new());
        let mut settled = false;
        proof.start(now, &mut actions);
        for _ in 0..10_000 {
            let mut events = Vec::new();
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Fill { probe } => {
                        self.fills += 1;
                        self.waiting[probe] = self.told[probe];
                    }
                    Action::More { probe } => self.waiting[probe] += 1,
                    Action::Release { probe } if self.stuck == Some(probe) => {}
                    Action::Release { probe } => {
                        self.waiting[probe] = 0;
                        self.on[probe].clear();
                        events.push(Event::Empty { probe });
                    }
                    Action::WakeAt(at) => drop(wake.insert(at)),
                    Action::Conclude(finding) => {
                        assert!(proof.is_over());
                        return (finding, now);
                    }
                }
            }
            if events.is_empty() && !proof.is_over() {
                now = std::mem::take(&mut settled)
                    .then(|| wake.pop_first())
                    .flatten()
                    .map_or(now, |at| at.max(now));
            }
            self.place(now);
            let full = (0..self.sets.len()).filter(|&probe| !self.on[probe].is_empty());
            events.extend(full.map(|probe| self.counted(probe)).chain([Event::Time]));
            for event in events {
                proof.step(now, event, &mut actions);
            }
            settled = actions.is_empty();
        }
        panic!("no conclusion: {proof:?}");
    }
}

fn find(sets: &[Range<u32>]) -> Finding {
    Gpu::new(sets).prove(&vec![true; sets.len()]).0
}

#[test]
fn p1_disjoint_sets_are_found_disjoint() {
    let mut gpu = Gpu::new(&[0..62, 62..70, 100..132]);
    assert_eq!(gpu.prove(&[false, false, true]).0, Finding::Disjoint);
    assert_eq!(gpu.fills, 4, "one alone, then all three together");
    assert_eq!(find(&[0..132, 140..142]), Finding::Disjoint);
    let one = std::slice::from_ref(&(0..16));
    assert_eq!(Gpu::new(one).prove(&[true]).0, Finding::Disjoint);
    // Nobody's set is held for long when all is well.
    let (_, end) = Gpu::new(&[0..62, 62..132]).prove(&[false, false]);
    assert!(end < Nanos::from_millis(1_010), "{end}");
}

#[test]
fn p2_a_set_that_takes_one_block_more_is_larger_than_told() {
    let mut gpu = Gpu::new(&[0..32, 40..72]);
    gpu.sets[1] = (40..74).collect();
    assert_eq!(gpu.prove(&[true, true]).0, Finding::Larger { probe: 1 });
}

#[test]
fn p3_sets_that_share_sms_are_told_apart() {
    let overlap = |one, other, sms| Finding::Overlap { one, other, sms };
    assert_eq!(find(&[0..62, 60..132]), overlap(0, 1, 2));
    assert_eq!(find(&[0..20, 30..50, 18..30]), overlap(0, 2, 2));
    assert_eq!(find(&[0..20, 0..20]), overlap(0, 1, 20));
    let mut gpu = Gpu::new(&[0..20, 30..50, 48..60]);
    assert_eq!(gpu.prove(&[false; 3]).0, overlap(1, 2, 2));
    assert_eq!(gpu.fills, 6, "twice");
}

#[test]
fn p4_what_is_busy_is_not_called_an_overlap() {
    let busy = |from: Range<u32>, until| {
        let mut gpu = Gpu::new(&[0..20, 20..40]);
        (gpu.busy, gpu.busy_until) = (from.collect(), until);
        gpu
    };
    let forever = Nanos::from_secs(1000);
    assert_eq!(busy(25..40, forever).prove(&[true, true]).0, Finding::Busy { probe: 1, there: 5 });
    let (found, end) = busy(38..90, forever).prove(&[false, false]);
    assert_eq!(found, Finding::Busy { probe: 1, there: 18 });
    assert!(end <= Nanos::from_secs(1).saturating_add(TOGETHER).saturating_add(ARRIVE), "{end}");
    // A neighbour's kernel ends while the first set is being released, once.
    let mut gpu = busy(30..40, Nanos::from_secs(1).saturating_add(ARRIVE).saturating_add(Nanos(1)));
    assert_eq!(gpu.prove(&[false, false]).0, Finding::Disjoint);
    // And one that ends in time is only waited for.
    assert_eq!(busy(0..132, Nanos::from_millis(1_150)).prove(&[true, true]).0, Finding::Disjoint);
}

#[test]
fn p5_blocks_that_go_astray_end_it_without_a_finding() {
    let mut gpu = Gpu::new(&[0..20, 20..40]);
    gpu.stuck = Some(0);
    let (found, end) = gpu.prove(&[true, true]);
    assert_eq!(found, Finding::Astray { probe: 0 });
    assert!(end < Nanos::from_secs(3), "{end}");
    // Blocks of the first leave by themselves while the second comes.
    let mut proof = Proof::new(vec![Subject { sms: 4, alone: false }; 2]);
    let (now, mut actions) = (Nanos(1), Vec::new());
    proof.start(now, &mut actions);
    let counted = |probe, there| Event::Counted { probe, there, more: false };
    for event in [counted(0, 4), counted(0, 3), counted(1, 4), Event::Empty { probe: 0 }, counted(9, 9)] {
        proof.step(now, event, &mut actions);
    }
    proof.step(now, Event::Empty { probe: 1 }, &mut actions);
    assert_eq!(actions.last(), Some(&Action::Conclude(Finding::Astray { probe: 0 })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn runs_of_sms_are_judged_as_they_lie(
        sets in proptest::collection::vec((0u32..60, 1u32..30), 1..5),
        more in proptest::option::of(0usize..4),
    ) {
        let ranges: Vec<Range<u32>> = sets.iter().map(|(first, count)| *first..first + count).collect();
        let mut gpu = Gpu::new(&ranges);
        let larger = more.filter(|probe| *probe < ranges.len());
        if let Some(probe) = larger {
            gpu.sets[probe].insert(131);
        }
        let share = |one: usize, other: usize| gpu.sets[one].intersection(&gpu.sets[other]).count() as u32;
        let pairs = || (0..ranges.len()).flat_map(|other| (0..other).map(move |one| (one, other)));
        let overlapping = pairs().any(|(one, other)| share(one, other) > 0);
        let shared: Vec<u32> = pairs().map(|(one, other)| share(one, other)).collect();
        let found = gpu.prove(&vec![true; ranges.len()]).0;
        match found {
            Finding::Larger { probe } => prop_assert_eq!(Some(probe), larger),
            Finding::Overlap { one, other, sms } => {
                let at = pairs().position(|pair| pair == (one, other)).unwrap();
                prop_assert!(larger.is_none() && sms >= 1 && sms <= shared[at]);
            }
            Finding::Disjoint => prop_assert!(larger.is_none() && !overlapping),
            // More than two sets on the same SMs: releasing one is not enough.
            Finding::Busy { .. } => prop_assert!(overlapping && larger.is_none() && ranges.len() > 2),
            Finding::Astray { .. } => prop_assert!(false, "{found:?}"),
        }
    }
}

fn set(first: u32, groups: u32) -> SmSet {
    SmSet { first, groups, sms_per_group: 2 }
}

#[test]
fn a_part_of_a_layout_that_was_proven_costs_nothing() {
    let mut book = Book::default();
    let (a, b, c) = (set(0, 10), set(10, 10), set(60, 6));
    let now = Nanos::from_secs(5);
    let due = |book: &Book, layout: &[SmSet]| book.due(layout, now);
    let subject = |sms, alone| Subject { sms, alone };
    assert_eq!(due(&book, &[a]), [(a, subject(20, true))]);
    assert_eq!(book.standing(a, &[a]), Standing::Open);
    book.enter(&[a], Finding::Disjoint, now);
    assert_eq!((due(&book, &[a]).len(), book.standing(a, &[a])), (0, Standing::Proven));
    // A second one: both are needed, and only the new one alone.
    assert_eq!(due(&book, &[b, a]), [(b, subject(20, true)), (a, subject(20, false))]);
    assert_eq!(book.standing(a, &[a, b]), Standing::Open);
    book.enter(&[b, a, c], Finding::Disjoint, now);
    for layout in [&[a, b, c][..], &[c, b], &[c, a, b], &[]] {
        assert_eq!(due(&book, layout), []);
    }
}

#[test]
fn what_could_not_be_told_is_tried_again_and_what_is_wrong_is_said() {
    let mut book = Book::default();
    let (a, b, c) = (set(0, 10), set(9, 10), set(60, 6));
    let layout = [a, b, c];
    let mut now = Nanos::from_secs(5);
    for _ in AGAIN {
        book.enter(&layout, Finding::Busy { probe: 2, there: 3 }, now);
        let why = "busy: 3 of 12 blocks found an SM of SMs 120-131 within 200 ms".to_owned();
        assert_eq!(book.standing(a, &layout), Standing::Unclear(why));
        assert_eq!(book.due(&layout, now), []);
        now = book.deadline(&layout).unwrap();
        assert_eq!(book.due(&layout, now).len(), 3);
    }
    book.enter(&layout, Finding::Overlap { one: 0, other: 1, sms: 2 }, now);
    let why =
        "SMs 0-19 and SMs 18-37 have 2 SMs in common: blocks on each of them are not there at the same time";
    for wrong in [a, b] {
        assert_eq!(book.standing(wrong, &layout), Standing::Failed(why.to_owned()));
    }
    assert!(matches!(book.standing(c, &layout), Standing::Unclear(_)));
    assert_eq!((book.deadline(&layout), book.due(&layout, now)), (None, Vec::new()), "often enough");
    // The tenant is refused: what comes in its place is looked at anew.
    book.forget(b);
    assert_eq!(book.standing(b, &layout), Standing::Open);
    book.enter(&[b], Finding::Larger { probe: 0 }, now);
    assert!(
        matches!(book.standing(b, &[b]), Standing::Failed(why) if why.contains("SMs 18-37 finds room for one"))
    );
}
