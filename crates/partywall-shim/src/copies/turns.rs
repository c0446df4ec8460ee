//! Which packet of which copy goes next, within one process. A decider: no clock, no thread, no driver.
//!
//! # Problem
//!
//! The node says how many bytes a process may put on the link. The process has copies waiting in several streams,
//! each cut into packets, each packet behind a gate of its own that the device waits at. Which gates are to be
//! opened?
//!
//! # Approach
//!
//! A copy is *ready* once the device has arrived at its first gate: from then on nothing but the link is between its
//! bytes and their destination. Ready copies take turns, a packet each. A copy that is not ready takes part in
//! nothing, so it cannot hold up another one. The node grants bytes, not packets; a packet may go when at least one
//! byte of it was granted, so what is open exceeds the grants by less than one packet, and a grant never lies idle
//! because packets and grants are cut differently.
//!
//! Who decides is a [`Rule`]: the node; this process alone after the node has gone (latency-sensitive copies go at
//! once, best-effort ones a packet at a time, which is kind to neighbours and fast enough); or nobody, and all gates
//! are opened.
//!
//! Grants run ahead, so that the device finds the next gate open and the link does not stand still. But the device gives
//! the copy engine to another process only when this one has nothing to do there, or after a millisecond. So while a
//! latency-sensitive neighbour has a copy on its way, the node asks for another [`Pace`]: gates that were opened ahead
//! are shut again, and the next one is opened a while after the packet before it is through, [`PAUSE_NS`], or when the neighbour's
//! copy is. In between the engine changes hands.
//!
//! Opening a gate too early is never wrong, only unfair, because each packet sits in its own stream in the order in
//! which the program asked for it. That is used where something is odd. Hardware queues are few, and a driver may put
//! the packets of two streams in one queue: then the packet whose gate is open stands behind one whose gate is
//! closed, and the grant for the latter never comes because the former is in flight. So packets that do not come
//! through within [`STALL_NS`] open all gates of ready copies, and from then on copies go in the order in which they
//! were submitted, which is the order within such queues. Packets that do not come through within [`LOST_NS`] are
//! counted as done, so that a dead context does not hold the link.
//!
//! # Terms and units
//!
//! A copy's *progress* is 0 before its first gate and `1 + n` once it is past `n` packets. Counters of a direction are bytes
//! since the copier began: `done <= opened <= ready`.

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::tenant::Class;
use partywall_shim_api::page::{ASIDE_LIMIT_NS, Pace};

/// Directions of the link.
pub(super) const DIRECTIONS: usize = 2;

/// How long an open packet may take before the order is in doubt: longer than whole copies of neighbours that nobody
/// cuts (512 MiB: 10 ms, `copy_scheduler`) and several turns of time-slicing.
pub(super) const STALL_NS: u64 = 50_000_000;

/// Between two packets that go one by one, unless the environment says otherwise. The device has to find the gate shut, or it
/// goes on without a look at others, as an H200 did when the gate opened as soon as the host saw that the packet was through.
/// In runs of 400 to 600 copies of 64 KiB their 99th percentile was 85 us with 10 us, and 47 to 53 us with 20.
pub(super) const PAUSE_NS: u64 = 20_000;

/// How long an open packet may take before it no longer counts. A copy is over after this time, or its context is dead.
pub(super) const LOST_NS: u64 = 2_000_000_000;

/// A copy as packets: all of one size, the last one of what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Of all packets, more than zero.
    pub(super) bytes: u64,
    /// Of a full packet, more than zero.
    pub(super) packet: u64,
}

impl Cut {
    /// How many packets.
    pub(super) const fn packets(&self) -> u64 {
        self.bytes.div_ceil(self.packet)
    }

    /// Bytes of the first `packets` packets.
    pub(super) fn before(&self, packets: u64) -> u64 {
        (packets * self.packet).min(self.bytes)
    }
}

/// Who decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rule {
    /// The node, by what it grants.
    Node,
    /// This process, because the node is gone.
    Alone(Class),
    /// Nobody: what is ready goes.
    Free,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A copy is about to be put into its streams.
    Submit {
        /// Larger than those of all copies before.
        id: u64,
        /// Which way.
        direction: usize,
        /// Into what.
        cut: Cut,
        /// Whether it counts as a copy: not, if it is one of the first parts of one.
        counts: bool,
    },
    /// The device has got this far in a copy.
    Progress {
        /// Which.
        id: u64,
        /// How far: never less than before, at most one more than the copy has packets.
        value: u64,
    },
    /// The copy will not come to its end: its context is gone, or not all of it could be submitted.
    Drop {
        /// Which.
        id: u64,
    },
    /// The node has granted this much since its page was made.
    Granted {
        /// Which way.
        direction: usize,
        /// Bytes.
        bytes: u64,
    },
    /// The node wants packets to follow each other in another way.
    Pace {
        /// Which way.
        direction: usize,
        /// How.
        pace: Pace,
    },
    /// Somebody else decides from now on.
    Rule(Rule),
    /// The node's counters start again, with a page of a new node.
    NewPage,
    /// Nothing but time has passed.
    Tick,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// The gates of so many packets of a copy are to be open, and no others.
    Open {
        /// Of which copy.
        id: u64,
        /// How many.
        packets: u64,
    },
    /// Nothing is left of a copy, on the device either.
    Finished {
        /// Which.
        id: u64,
    },
    /// A copy takes part no more, but the device may still get to it.
    Dropped {
        /// Which.
        id: u64,
    },
}

/// What a page says about a direction; see `partywall_shim_api::page::CopySide`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counters {
    /// Bytes.
    pub(super) ready: u64,
    /// Bytes, at most those granted.
    pub(super) started: u64,
    /// Bytes, at most those started.
    pub(super) done: u64,
    /// Copies that are through.
    pub(super) copies: u64,
    /// Nanoseconds from ready to the first open gate, summed up over copies.
    pub(super) wait_ns: u64,
}

/// How long the copier may look away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outlook {
    /// There is nothing to wait for.
    Idle,
    /// Copies wait for what is before them in their streams.
    Arriving,
    /// Copies wait for grants.
    Granting,
    /// Packets are on the link, and the next ones are wanted as soon as they are through.
    Flying,
}

#[derive(Debug, Clone, Copy)]
struct Copy {
    direction: usize,
    cut: Cut,
    counts: bool,
    /// How far the device is.
    progress: u64,
    /// When it became ready.
    ready_at: Option<u64>,
    /// Packets with open gates, and bytes of the packets that count as done.
    opened: u64,
    done: u64,
}

impl Copy {
    /// Packets that the device is past.
    const fn passed(&self) -> u64 {
        self.progress.saturating_sub(1)
    }

    fn over(&self) -> bool {
        self.progress > self.cut.packets()
    }
}

#[derive(Debug)]
struct Side {
    ready: u64,
    opened: u64,
    done: u64,
    copies: u64,
    wait_ns: u64,
    granted: u64,
    /// The most that `opened` ever was.
    started: u64,
    pace: Pace,
    /// What of `opened`, `copies` and `wait_ns` is of earlier pages.
    base: (u64, u64, u64),
    /// Ready copies with closed gates, and the copy that went last.
    waiting: BTreeSet<u64>,
    last: u64,
    /// When a packet last went or came through.
    moved_at: u64,
}

impl Side {
    const fn new() -> Self {
        Self {
            ready: 0,
            opened: 0,
            done: 0,
            copies: 0,
            wait_ns: 0,
            granted: 0,
            started: 0,
            pace: Pace::Ahead,
            base: (0, 0, 0),
            waiting: BTreeSet::new(),
            last: 0,
            moved_at: 0,
        }
    }
}

/// The copies of one process.
#[derive(Debug)]
pub(super) struct Turns {
    rule: Rule,
    copies: BTreeMap<u64, Copy>,
    sides: [Side; DIRECTIONS],
    /// Whether copies go in the order of their submission, and not in turns.
    in_order: bool,
    /// Between two packets that go one by one.
    pause_ns: u64,
}

impl Turns {
    /// With nothing to copy and nobody deciding.
    pub(super) const fn new(pause_ns: u64) -> Self {
        let sides = [Side::new(), Side::new()];
        Self { rule: Rule::Free, copies: BTreeMap::new(), sides, in_order: false, pause_ns }
    }

    /// Takes in what happened at `now`, in nanoseconds of any one clock, and appends what follows.
    pub(super) fn step(&mut self, now: u64, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Submit { id, direction, cut, counts } => {
                let copy = Copy { direction, cut, counts, progress: 0, ready_at: None, opened: 0, done: 0 };
                self.copies.insert(id, copy);
            }
            Event::Progress { id, value } => self.progress(now, id, value, actions),
            Event::Drop { id } => self.drop_copy(now, id, actions),
            Event::Granted { direction, bytes } => self.sides[direction].granted = bytes,
            Event::Pace { direction, pace } => {
                let before = std::mem::replace(&mut self.sides[direction].pace, pace);
                if before == Pace::Ahead {
                    self.shut(direction, actions);
                }
            }
            Event::Rule(rule) => self.rule = rule,
            Event::NewPage => {
                for side in &mut self.sides {
                    side.base = (side.opened, side.copies, side.wait_ns);
                    side.granted = 0;
                }
            }
            Event::Tick => self.look_for_stalls(now, actions),
        }
        for direction in 0..DIRECTIONS {
            self.fill(now, direction, actions);
        }
    }

    /// What the page is to say about a direction.
    pub(super) fn counters(&self, direction: usize) -> Counters {
        let side = &self.sides[direction];
        let (bytes, copies, wait_ns) = side.base;
        let started = side.started.saturating_sub(bytes).min(side.granted);
        Counters {
            ready: side.ready - bytes,
            started,
            done: side.done.saturating_sub(bytes).min(started),
            copies: side.copies - copies,
            wait_ns: side.wait_ns - wait_ns,
        }
    }

    /// Bytes of packets with open gates that are not through.
    pub(super) fn in_flight(&self, direction: usize) -> u64 {
        self.sides[direction].opened - self.sides[direction].done
    }

    /// What there is to wait for.
    pub(super) fn outlook(&self) -> Outlook {
        if (0..DIRECTIONS).any(|direction| self.in_flight(direction) > 0) {
            Outlook::Flying
        } else if self.sides.iter().any(|side| !side.waiting.is_empty()) {
            Outlook::Granting
        } else if self.copies.is_empty() {
            Outlook::Idle
        } else {
            Outlook::Arriving
        }
    }

    fn progress(&mut self, now: u64, id: u64, value: u64, actions: &mut Vec<Action>) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let side = &mut self.sides[copy.direction];
        copy.progress = value;
        if copy.ready_at.is_none() {
            copy.ready_at = Some(now);
            side.ready += copy.cut.bytes;
            side.waiting.insert(id);
        }
        let passed = copy.passed();
        if passed > copy.opened {
            // The device was past a gate before it was shut, or passes packets that do not exist, of a copy that the driver
            // refused half-way.
            side.opened += copy.cut.before(passed) - copy.cut.before(copy.opened);
            side.started = side.started.max(side.opened);
            copy.opened = passed;
            if passed == copy.cut.packets() {
                side.waiting.remove(&id);
            }
        }
        let through = copy.cut.before(passed);
        if through > copy.done {
            side.done += through - copy.done;
            side.moved_at = now;
            copy.done = through;
        }
        if copy.over() {
            side.copies += u64::from(copy.counts);
            self.copies.remove(&id);
            actions.push(Action::Finished { id });
        }
    }

    /// Shuts the gates that were opened ahead: of each copy one packet stays open, which may be on the link.
    fn shut(&mut self, direction: usize, actions: &mut Vec<Action>) {
        let side = &mut self.sides[direction];
        if self.in_order {
            return;
        }
        for (&id, copy) in self.copies.iter_mut().filter(|(_, copy)| copy.direction == direction) {
            let keep = copy.passed() + 1;
            if copy.opened <= keep {
                continue;
            }
            let bytes = copy.cut.before(copy.opened) - copy.cut.before(keep);
            // What was opened under an earlier page is not granted again, and what was given up as lost counts as done.
            if side.opened - side.base.0.max(side.done) >= bytes {
                side.opened -= bytes;
                copy.opened = keep;
                side.waiting.insert(id);
                actions.push(Action::Open { id, packets: keep });
            }
        }
    }

    /// What is left of it counts as gone through, and its gates are open for what the device may still do.
    fn drop_copy(&mut self, now: u64, id: u64, actions: &mut Vec<Action>) {
        let Some(copy) = self.copies.remove(&id) else { return };
        let side = &mut self.sides[copy.direction];
        side.waiting.remove(&id);
        if copy.ready_at.is_some() {
            side.opened += copy.cut.bytes - copy.cut.before(copy.opened);
            side.started = side.started.max(side.opened);
            side.done += copy.cut.bytes - copy.done;
            side.moved_at = now;
        }
        actions.push(Action::Open { id, packets: copy.cut.packets() });
        actions.push(Action::Dropped { id });
    }

    fn look_for_stalls(&mut self, now: u64, actions: &mut Vec<Action>) {
        for direction in 0..DIRECTIONS {
            let still = now.saturating_sub(self.sides[direction].moved_at);
            if self.in_flight(direction) == 0 || still < STALL_NS {
                continue;
            }
            while let Some(&id) = self.sides[direction].waiting.first() {
                self.in_order = true;
                self.open_next(now, direction, id, actions);
            }
            if still >= LOST_NS {
                let side = &mut self.sides[direction];
                side.done = side.opened;
                for copy in self.copies.values_mut().filter(|copy| copy.direction == direction) {
                    copy.done = copy.done.max(copy.cut.before(copy.opened));
                }
            }
        }
    }

    fn fill(&mut self, now: u64, direction: usize, actions: &mut Vec<Action>) {
        loop {
            let side = &self.sides[direction];
            let may = match self.rule {
                Rule::Node if !self.may_follow(now, direction) => false,
                Rule::Node => side.opened - side.base.0 < side.granted,
                Rule::Alone(Class::BestEffort) => side.opened == side.done,
                Rule::Alone(Class::LatencySensitive) | Rule::Free => true,
            };
            let after = if self.in_order { None } else { side.waiting.range(side.last + 1..).next() };
            match after.or(side.waiting.first()) {
                Some(&id) if may => self.open_next(now, direction, id, actions),
                _ => return,
            }
        }
    }

    /// Whether the pace allows for another packet.
    fn may_follow(&self, now: u64, direction: usize) -> bool {
        let side = &self.sides[direction];
        let pause_ns = match side.pace {
            Pace::Ahead => return true,
            Pace::OneByOne => self.pause_ns,
            Pace::Aside => ASIDE_LIMIT_NS,
        };
        side.opened == side.done && now.saturating_sub(side.moved_at) >= pause_ns
    }

    /// Opens the gate of the next packet of a copy that waits.
    fn open_next(&mut self, now: u64, direction: usize, id: u64, actions: &mut Vec<Action>) {
        let side = &mut self.sides[direction];
        let Some(copy) = self.copies.get_mut(&id) else {
            side.waiting.remove(&id);
            return;
        };
        if copy.opened == 0 {
            side.wait_ns += now.saturating_sub(copy.ready_at.unwrap_or(now));
        }
        if side.opened == side.done {
            side.moved_at = now;
        }
        side.opened += copy.cut.before(copy.opened + 1) - copy.cut.before(copy.opened);
        side.started = side.started.max(side.opened);
        copy.opened += 1;
        if copy.opened == copy.cut.packets() {
            side.waiting.remove(&id);
        }
        side.last = id;
        actions.push(Action::Open { id, packets: copy.opened });
    }
}
