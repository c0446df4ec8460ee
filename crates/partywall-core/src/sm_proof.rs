//! Whether the SM sets of tenants are their own: found out on the GPU, not taken for granted.
//!
//! # Problem
//!
//! Each process confines itself to its set with calls to the driver, and nothing but agreement keeps two sets apart: all processes
//! have to split the GPU into the same groups. Under MPS the SM ids that a kernel reads are virtual, so they cannot tell. If two
//! sets share an SM, or a set is larger than it should be, nobody gets an error: a neighbour's kernels are in the way, and a
//! guarantee is worth nothing.
//!
//! # Approach
//!
//! Blocks are counted. A block that takes all the shared memory of an SM is alone there, so as many of them are there at a time as
//! there are SMs. A *probe* is a process that is confined to a set as its tenant is; it can fill its set with such blocks, which
//! stay until they are released, and can put one block more behind them.
//!
//! 1. *Alone.* A probe fills a set with a block for each SM that it should have. All must find an SM; one block more must not: the
//!    set has exactly that many SMs.
//! 2. *Together.* All probes fill their sets, one after the other, and nobody lets go. If all blocks of all probes are there at the
//!    same time, each on an SM of its own, then no SM is in two sets.
//!
//! Blocks that do not find room within [`ARRIVE`] can mean an overlap, or that something else computes there. So those that stay are
//! released one set after the other: where a set is released and blocks that were missing come within [`SETTLE`], that set had their
//! SMs. A neighbour's kernel can end at just that moment; an overlap counts when it is seen in two rounds. What cannot be told is
//! *busy*, which is neither good nor bad.
//!
//! All probes have to be clients of one MPS server. Processes outside take turns, and what the one has on the GPU is set aside while
//! another runs: blocks of both would seem to be there at once. The caller makes sure of that.
//!
//! While sets are filled, kernels of those who run there wait. Alone, only SMs of a set that nobody uses yet are taken; together it
//! takes the time of a few launches when all is well, and [`TOGETHER`] at most.
//!
//! # Scenarios (the tests bear these names)
//!
//! - P1: disjoint sets of the right size are found disjoint, in as many steps as there are sets.
//! - P2: a set that takes one block more is larger than told.
//! - P3: two sets that share SMs are told apart from the others, with the number of SMs, after two rounds.
//! - P4: what is busy is not called an overlap: alone, together, or when it was so only once.
//! - P5: blocks that leave by themselves, or do not leave, end it without a finding.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

mod book;
#[cfg(test)]
mod tests;

pub use book::{Book, Standing};

/// How long blocks may take to find their SMs: kernels of others that are on them have to end, and the longest kernels of networks take
/// some tens of milliseconds (16 ms: a product of two 8192 x 8192 matrices on a few SMs of an H200).
pub const ARRIVE: Nanos = Nanos::from_millis(200);

/// How long one block more is waited for, which should not come, and blocks that come into SMs just released. A launch takes
/// microseconds; a machine that is busy may look at it later.
pub const SETTLE: Nanos = Nanos::from_millis(50);

/// How long all sets together may be held.
pub const TOGETHER: Nanos = Nanos::from_millis(700);

/// How long blocks may take to leave when they are released.
const LEAVE: Nanos = Nanos::from_secs(1);

/// How long blocks stay when nobody releases them. Longer than any step, so that they leave because they are told to.
pub const PATIENCE: Nanos = Nanos::from_millis(1_500);

/// A set that is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subject {
    /// SMs that it should have.
    pub sms: u32,
    /// Whether that has still to be shown.
    pub alone: bool,
}

/// What happened. Probes are counted from 0, as the subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// So many blocks of a probe are there now.
    Counted {
        /// Which probe.
        probe: usize,
        /// Of those that fill its set.
        there: u32,
        /// Whether the one block more is there.
        more: bool,
    },
    /// All blocks of a probe have left.
    Empty {
        /// Which probe.
        probe: usize,
    },
    /// It is the time that was asked for, or later.
    Time,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A probe launches a block for each SM of its set.
    Fill {
        /// Which probe.
        probe: usize,
    },
    /// It launches one block more.
    More {
        /// Which probe.
        probe: usize,
    },
    /// It lets all its blocks leave.
    Release {
        /// Which probe.
        probe: usize,
    },
    /// [`Event::Time`] is wanted then.
    WakeAt(Nanos),
    /// That is what was found. All blocks have been released.
    Conclude(Finding),
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "kebab-case")]
pub enum Finding {
    /// Every set has its SMs, and no SM is in two.
    Disjoint,
    /// A set has more SMs than it should have.
    Larger {
        /// Which.
        probe: usize,
    },
    /// Two sets share SMs.
    Overlap {
        /// The one.
        one: usize,
        /// The other.
        other: usize,
        /// How many, at least.
        sms: u32,
    },
    /// Some blocks of a set found no room in time, and it was not another set that had it.
    Busy {
        /// Which.
        probe: usize,
        /// Blocks that were there.
        there: u32,
    },
    /// Blocks did not do what they were told.
    Astray {
        /// Whose.
        probe: usize,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Blocks of a probe are on their way, alone or behind those of all before it.
    Filling {
        probe: usize,
        alone: bool,
        until: Nanos,
    },
    /// Its set is full, and one block more should find no room.
    Watching {
        probe: usize,
        until: Nanos,
    },
    /// A probe lacks SMs; the set `letting` is being released. `until` is known once it is empty.
    Missing {
        probe: usize,
        had: u32,
        letting: usize,
        until: Option<Nanos>,
    },
    /// All were released; then comes what follows.
    Emptying {
        until: Nanos,
        then: Then,
    },
    Over,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Next,
    Conclude(Finding),
}

#[derive(Debug, Clone, Copy, Default)]
struct Probe {
    is_full: bool,
    there: u32,
    more: bool,
}

/// One proof: [`Proof::start`], then [`Proof::step`] until it concludes.
#[derive(Debug)]
pub struct Proof {
    subjects: Vec<Subject>,
    probes: Vec<Probe>,
    alone: VecDeque<usize>,
    phase: Phase,
    /// When the sets began to be filled together.
    together: Option<Nanos>,
    /// An overlap was seen once.
    suspected: bool,
}

impl Proof {
    /// Of these sets.
    pub fn new(subjects: Vec<Subject>) -> Self {
        let alone = subjects.iter().enumerate().filter(|(_, subject)| subject.alone);
        Self {
            probes: vec![Probe::default(); subjects.len()],
            alone: alone.map(|(probe, _)| probe).collect(),
            phase: Phase::Over,
            together: None,
            suspected: false,
            subjects,
        }
    }

    /// Begins.
    pub fn start(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        self.next(now, actions);
    }

    /// Whether it has concluded.
    pub fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Something has happened. What makes no sense is ignored: a probe is another process.
    pub fn step(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Counted { probe, there, more } => {
                if let Some(known) = self.probes.get_mut(probe) {
                    (known.there, known.more) = (there, more);
                }
            }
            Event::Empty { probe } => {
                if let Some(known) = self.probes.get_mut(probe) {
                    *known = Probe::default();
                }
            }
            Event::Time => {}
        }
        self.advance(now, actions);
    }

    fn advance(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        match self.phase {
            Phase::Filling { probe, alone, until } => {
                if self.has_all(probe) {
                    self.filled(probe, alone, now, actions);
                } else if now >= until {
                    self.lacks(probe, now, actions);
                }
            }
            Phase::Watching { probe, until } => {
                if self.probes[probe].more {
                    self.end(Finding::Larger { probe }, now, actions);
                } else if !self.has_all(probe) {
                    self.end(Finding::Astray { probe }, now, actions);
                } else if now >= until {
                    self.empty(Then::Next, now, actions);
                }
            }
            Phase::Missing { probe, had, letting, until } => {
                self.missing(probe, had, (letting, until), now, actions);
            }
            Phase::Emptying { until, then } => match self.probes.iter().position(|probe| probe.is_full) {
                None => self.then(then, now, actions),
                Some(probe) if now >= until => self.conclude(Finding::Astray { probe }, actions),
                Some(_) => {}
            },
            Phase::Over => {}
        }
    }

    fn has_all(&self, probe: usize) -> bool {
        self.probes[probe].there == self.subjects[probe].sms
    }

    /// The next set alone, or all together, or the end.
    fn next(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        if let Some(probe) = self.alone.pop_front() {
            self.fill(probe, true, now, actions);
        } else if self.subjects.len() > 1 {
            self.together = Some(now);
            self.fill(0, false, now, actions);
        } else {
            self.conclude(Finding::Disjoint, actions);
        }
    }

    fn fill(&mut self, probe: usize, alone: bool, now: Nanos, actions: &mut Vec<Action>) {
        self.probes[probe].is_full = true;
        actions.push(Action::Fill { probe });
        let until = now.saturating_add(ARRIVE);
        actions.push(Action::WakeAt(until));
        self.phase = Phase::Filling { probe, alone, until };
    }

    /// All blocks of a probe are there.
    fn filled(&mut self, probe: usize, alone: bool, now: Nanos, actions: &mut Vec<Action>) {
        if alone {
            actions.push(Action::More { probe });
            let until = now.saturating_add(SETTLE);
            actions.push(Action::WakeAt(until));
            self.phase = Phase::Watching { probe, until };
        } else if let Some(gone) = (0..probe).find(|&before| !self.has_all(before)) {
            self.end(Finding::Astray { probe: gone }, now, actions);
        } else if probe + 1 < self.subjects.len() {
            self.fill(probe + 1, false, now, actions);
        } else {
            self.end(Finding::Disjoint, now, actions);
        }
    }

    /// Some blocks of a probe did not come.
    fn lacks(&mut self, probe: usize, now: Nanos, actions: &mut Vec<Action>) {
        let there = self.probes[probe].there;
        let too_long = self.together.is_some_and(|since| now.saturating_sub(since) >= TOGETHER);
        match (0..probe).rfind(|&before| self.probes[before].is_full) {
            Some(letting) if !too_long => {
                actions.push(Action::Release { probe: letting });
                self.phase = Phase::Missing { probe, had: there, letting, until: None };
                // A set that is not let go is not waited for.
                let since = self.together.unwrap_or(now);
                actions.push(Action::WakeAt(since.saturating_add(TOGETHER)));
            }
            _ => self.end(Finding::Busy { probe, there }, now, actions),
        }
    }

    /// One set was released for a probe that lacks SMs.
    fn missing(
        &mut self,
        probe: usize,
        had: u32,
        (letting, until): (usize, Option<Nanos>),
        now: Nanos,
        actions: &mut Vec<Action>,
    ) {
        match until {
            None if self.probes[letting].is_full => {
                if self.together.is_some_and(|since| now.saturating_sub(since) >= TOGETHER) {
                    self.end(Finding::Astray { probe: letting }, now, actions);
                }
            }
            None => {
                let until = now.saturating_add(SETTLE);
                actions.push(Action::WakeAt(until));
                self.phase = Phase::Missing { probe, had, letting, until: Some(until) };
            }
            Some(until) if now >= until => {
                let came = self.probes[probe].there.saturating_sub(had);
                if came == 0 {
                    self.lacks(probe, now, actions);
                } else if self.suspected {
                    self.end(Finding::Overlap { one: letting, other: probe, sms: came }, now, actions);
                } else {
                    self.suspected = true;
                    self.empty(Then::Next, now, actions);
                }
            }
            Some(_) => {}
        }
    }

    fn end(&mut self, finding: Finding, now: Nanos, actions: &mut Vec<Action>) {
        self.empty(Then::Conclude(finding), now, actions);
    }

    fn empty(&mut self, then: Then, now: Nanos, actions: &mut Vec<Action>) {
        let full = self.probes.iter().enumerate().filter(|(_, probe)| probe.is_full);
        actions.extend(full.map(|(probe, _)| Action::Release { probe }));
        let until = now.saturating_add(LEAVE);
        actions.push(Action::WakeAt(until));
        self.phase = Phase::Emptying { until, then };
    }

    fn then(&mut self, then: Then, now: Nanos, actions: &mut Vec<Action>) {
        match then {
            Then::Next => self.next(now, actions),
            Then::Conclude(finding) => self.conclude(finding, actions),
        }
    }

    fn conclude(&mut self, finding: Finding, actions: &mut Vec<Action>) {
        self.phase = Phase::Over;
        actions.push(Action::Conclude(finding));
    }
}
