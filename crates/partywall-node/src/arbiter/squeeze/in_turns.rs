//! Best-effort processes launch by turns, so that their time slices can be short: what [`DeviceTurns`] of `core` is told, and what is done
//! about it.
//!
//! What a process has to do is in its page, without a system call: launches that wait, chunks under way, launches behind which there is no mark yet.
//! All of that is a claim. Who says for ever that something is under way is waited for at most [`LATE`] once; who says that it waits has
//! its turn, and loses it again when nothing comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use partywall_core::device_turns::{Action, Config, DeviceTurns, Event, Work};
use partywall_core::units::Nanos;
use partywall_shim_api::page::ShimSide;

use super::LaunchOptions;
use crate::leases::ProcessId;

/// How long a process may have nothing to do before it loses its turn to one that waits. Programs that wait for each result launch
/// again after some tens or hundreds of microseconds; if they lost their turn each time, they would have one kernel of it.
pub(super) const IDLE: Nanos = Nanos::from_micros(500);

/// How long launches without a mark are waited for. Together they are less than a chunk, which is 0.1 ms, or 0.4 ms where it is steered to that.
pub(super) const UNMARKED: Nanos = Nanos::from_millis(2);

/// How long work is waited for at the end of a turn: as long as a launch waits for chunks in the shim. A chunk is longer only if it is a
/// graph that cannot be cut, or a kernel as long as that.
pub(super) const LATE: Nanos = Nanos::from_millis(100);

/// For how long slices are longer after two processes have had work on the device at the same time. The longer slices take half a second to
/// arrive, and what was late once usually is again.
pub(super) const OVERLAPPED: Nanos = Nanos::from_secs(10);

/// What the arbiter tells about turns.
#[derive(Debug, Default)]
pub struct TurnWatch {
    /// Turns so far.
    pub turns: AtomicU64,
    /// How often work was waited for no longer.
    pub late: AtomicU64,
    /// How often work of one process was found on the device in the turn of another one.
    pub overlaps: AtomicU64,
    /// When that was last so; 0: never.
    pub overlapped_ns: AtomicU64,
}

impl TurnWatch {
    /// Whether slices have to be so long that two processes with work on the device make progress.
    pub fn is_shared(&self, now: Nanos) -> bool {
        let last = self.overlapped_ns.load(Ordering::Relaxed);
        last != 0 && now.saturating_sub(Nanos(last)) < OVERLAPPED
    }
}

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct InTurns {
    turns: DeviceTurns<ProcessId>,
    held: bool,
    overlaps: bool,
    watch: Arc<TurnWatch>,
    actions: Vec<Action<ProcessId>>,
}

impl InTurns {
    pub(super) fn new(options: &LaunchOptions, watch: Arc<TurnWatch>) -> Self {
        let config = Config { turn: options.turn, idle: IDLE, unmarked: UNMARKED, late: LATE };
        Self { turns: DeviceTurns::new(config), held: false, overlaps: false, watch, actions: Vec::new() }
    }

    pub(super) fn add(&mut self, now: Nanos, process: ProcessId) {
        self.turns.step(now, Event::Came { process }, &mut self.actions);
        self.act();
    }

    pub(super) fn remove(&mut self, now: Nanos, process: ProcessId) {
        self.turns.step(now, Event::Gone { process }, &mut self.actions);
        self.act();
    }

    /// Whether a process may launch, as far as turns go.
    pub(super) fn may_launch(&self, process: ProcessId) -> bool {
        self.turns.turn() == Some(process)
    }

    /// Whether one waits for its turn.
    pub(super) fn is_contested(&self) -> bool {
        self.turns.is_contested()
    }

    /// Takes in what the pages of all best-effort processes say, and whether the one whose turn it is is held besides. Whether it is
    /// another one's turn, or nobody's, after that.
    pub(super) fn look<'a>(
        &mut self,
        now: impl Fn() -> Nanos,
        pages: impl Iterator<Item = (ProcessId, &'a ShimSide)>,
        held: impl Fn(ProcessId) -> bool,
    ) -> bool {
        let before = self.turns.turn();
        let held = before.is_some_and(held);
        if held != self.held {
            self.held = held;
            self.turns.step(now(), Event::Held(held), &mut self.actions);
        }
        for (process, shim) in pages {
            let work = work(shim);
            if self.turns.work(process) != Some(work) {
                self.turns.step(now(), Event::Work { process, work }, &mut self.actions);
            }
        }
        let is_due = self.turns.is_changing() || self.turns.deadline().is_some_and(|at| now() >= at);
        // Who is to hold only from now on has been looked at before it knows.
        if is_due && self.turns.turn() == before {
            self.turns.step(now(), Event::Looked, &mut self.actions);
        }
        self.act();
        self.look_for_overlaps(now);
        self.turns.turn() != before
    }

    fn act(&mut self) {
        for action in self.actions.drain(..) {
            let counter = match action {
                Action::Release { .. } => &self.watch.turns,
                Action::Late { .. } => &self.watch.late,
                Action::Hold { .. } => continue,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn look_for_overlaps(&mut self, now: impl Fn() -> Nanos) {
        let overlaps = self.turns.overlaps();
        if overlaps {
            self.watch.overlapped_ns.store(now().0, Ordering::Relaxed);
        }
        if overlaps && !self.overlaps {
            self.watch.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        self.overlaps = overlaps;
    }
}

fn work(shim: &ShimSide) -> Work {
    // First what is about to be launched: a mark is there before that is taken off.
    let unmarked = shim.unmarked.load(Ordering::SeqCst);
    Work {
        waits: shim.waiting.load(Ordering::SeqCst) != 0,
        under_way: shim.chunks.iter().any(|word| word.load(Ordering::Acquire) != 0),
        unmarked,
    }
}
