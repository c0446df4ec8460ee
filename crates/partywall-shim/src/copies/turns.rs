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
//! *Lane*: one of the streams that a copy's packets are in, in turns; packet `k` is in lane `k % lanes`. A lane's
//! *progress* is 0 before its first gate and `1 + n` once it is past `n` packets. Counters of a direction are bytes
//! since the copier began: `done <= opened <= ready`.

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::tenant::Class;

/// Streams that the packets of one copy are in. Two: while one packet is on the link the device walks up to the
/// next gate in the other stream.
pub(super) const LANES: usize = 2;

/// Directions of the link.
pub(super) const DIRECTIONS: usize = 2;

/// How long an open packet may take before the order is in doubt: longer than whole copies of neighbours that nobody
/// cuts (512 MiB: 10 ms, `copy_scheduler`) and several turns of time-slicing.
pub(super) const STALL_NS: u64 = 50_000_000;

/// How long an open packet may take before it no longer counts. A copy is over after this time, or its context is dead.
pub(super) const LOST_NS: u64 = 2_000_000_000;

/// A copy as packets: all of one size, the last one of what is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    /// Of all packets, more than zero.
    pub(super) bytes: u64,
    /// Of a full packet, more than zero.
    pub(super) packet: u64,
    /// 1 to [`LANES`].
    pub(super) lanes: usize,
}

impl Cut {
    /// How many packets.
    pub(super) const fn packets(&self) -> u64 {
        self.bytes.div_ceil(self.packet)
    }

    /// How many of the first `packets` packets are in a lane.
    pub(super) const fn in_lane(&self, packets: u64, lane: usize) -> u64 {
        (packets + (self.lanes - 1 - lane) as u64) / self.lanes as u64
    }

    /// Bytes of the first `packets` packets.
    pub(super) fn before(&self, packets: u64) -> u64 {
        (packets * self.packet).min(self.bytes)
    }

    /// Bytes of the first `packets` packets of a lane.
    fn before_in_lane(&self, packets: u64, lane: usize) -> u64 {
        let last = self.packets() - 1;
        let short = (last + 1) * self.packet - self.bytes;
        let has_last =
            packets > 0 && last % self.lanes as u64 == lane as u64 && packets == self.in_lane(last + 1, lane);
        packets * self.packet - if has_last { short } else { 0 }
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
    /// The device has got this far in a lane.
    Progress {
        /// Which copy.
        id: u64,
        /// In which of its lanes.
        lane: usize,
        /// How far: never less than before, at most one more than the lane has packets.
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
    /// The gates of so many packets of a lane are to be open.
    Open {
        /// Of which copy.
        id: u64,
        /// In which of its lanes.
        lane: usize,
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
    /// Progress per lane.
    progress: [u64; LANES],
    /// When it became ready.
    ready_at: Option<u64>,
    /// Packets with open gates, and bytes of the packets that count as done.
    opened: u64,
    done: u64,
}

impl Copy {
    fn over(&self) -> bool {
        let packets = self.cut.packets();
        (0..self.cut.lanes).all(|lane| self.progress[lane] > self.cut.in_lane(packets, lane))
    }

    fn through(&self) -> u64 {
        let lane = |lane: usize| self.cut.before_in_lane(self.progress[lane].saturating_sub(1), lane);
        (0..self.cut.lanes).map(lane).sum()
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
}

impl Turns {
    /// With nothing to copy and nobody deciding.
    pub(super) const fn new() -> Self {
        let sides = [Side::new(), Side::new()];
        Self { rule: Rule::Free, copies: BTreeMap::new(), sides, in_order: false }
    }

    /// Takes in what happened at `now`, in nanoseconds of any one clock, and appends what follows.
    pub(super) fn step(&mut self, now: u64, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Submit { id, direction, cut, counts } => {
                let copy =
                    Copy { direction, cut, counts, progress: [0; LANES], ready_at: None, opened: 0, done: 0 };
                self.copies.insert(id, copy);
            }
            Event::Progress { id, lane, value } => self.progress(now, id, lane, value, actions),
            Event::Drop { id } => self.drop_copy(now, id, actions),
            Event::Granted { direction, bytes } => self.sides[direction].granted = bytes,
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
        let started = (side.opened - bytes).min(side.granted);
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

    fn progress(&mut self, now: u64, id: u64, lane: usize, value: u64, actions: &mut Vec<Action>) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        let side = &mut self.sides[copy.direction];
        copy.progress[lane] = value;
        if copy.ready_at.is_none() {
            copy.ready_at = Some(now);
            side.ready += copy.cut.bytes;
            side.waiting.insert(id);
        }
        let over = copy.over();
        if over && copy.opened < copy.cut.packets() {
            // Of a copy that the driver refused half-way, the device passes packets that do not exist.
            side.opened += copy.cut.bytes - copy.cut.before(copy.opened);
            copy.opened = copy.cut.packets();
            side.waiting.remove(&id);
        }
        let through = copy.through().min(copy.cut.before(copy.opened));
        if through > copy.done {
            side.done += through - copy.done;
            side.moved_at = now;
            copy.done = through;
        }
        if over {
            side.copies += u64::from(copy.counts);
            self.copies.remove(&id);
            actions.push(Action::Finished { id });
        }
    }

    /// What is left of it counts as gone through, and its gates are open for what the device may still do.
    fn drop_copy(&mut self, now: u64, id: u64, actions: &mut Vec<Action>) {
        let Some(copy) = self.copies.remove(&id) else { return };
        let side = &mut self.sides[copy.direction];
        side.waiting.remove(&id);
        if copy.ready_at.is_some() {
            side.opened += copy.cut.bytes - copy.cut.before(copy.opened);
            side.done += copy.cut.bytes - copy.done;
            side.moved_at = now;
        }
        let packets = copy.cut.packets();
        for lane in 0..copy.cut.lanes {
            actions.push(Action::Open { id, lane, packets: copy.cut.in_lane(packets, lane) });
        }
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
        let lane = (copy.opened % copy.cut.lanes as u64) as usize;
        side.opened += copy.cut.before(copy.opened + 1) - copy.cut.before(copy.opened);
        copy.opened += 1;
        if copy.opened == copy.cut.packets() {
            side.waiting.remove(&id);
        }
        side.last = id;
        actions.push(Action::Open { id, lane, packets: copy.cut.in_lane(copy.opened, lane) });
    }
}
