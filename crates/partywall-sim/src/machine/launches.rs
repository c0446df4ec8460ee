//! How launches come to the GPU where that matters: in the turns of the wall `partywall`, or from a host that is slower than the GPU.
//!
//! Elsewhere a tenant's next kernel is ready as soon as the one before it is through. Here its host launches ahead, as far as it may, and
//! a kernel starts only if it was launched.
//!
//! Launches of a best-effort tenant go as the library around programs has them go. They are counted into chunks; a mark behind each costs the device
//! a moment; a launch waits while as many chunks are under way as may be, or while the arbiter leaves the tenant without SMs. How many
//! launches make a chunk follows from what chunks take, by the rule that ships ([`chunk_size`]), which is told the time itself
//! where the library has bounds. A graph is launched in pieces of [`PIECE`] kernels, a copy within the device in pieces of
//! [`COPY_PIECE`]. What is launched runs to its end.
//!
//! # Scenarios
//!
//! - S1: a request comes: what was under way of the neighbour runs to its end, two chunks at most, and no more.
//! - S2: requests stay away: the neighbour goes on after the release time, and what its host takes to see it.
//! - S3: kernels longer than a chunk: two of them under way.
//! - S4: a graph is held between its pieces, a large copy as well.
//! - S5: a host that is slower than the GPU: a request finds little under way, or nothing.
//! - S6: a neighbour that is never idle: a launch goes all the same when it was held for long enough.
//! - S7: by turns below: a tenant that holds has nothing on the GPU, so the other's turn comes when that is through.
//! - S8: MPS below: whoever holds is no active client.

use std::collections::VecDeque;

use partywall_core::chunk_size::{Took, Wanted};
use partywall_core::tenant::Class;
use partywall_core::units::{Bytes, Nanos};

use super::{Event, Machine, Phase, Tenant};
use crate::kernel::{Kernel, Program};
use crate::layout::Turnstile;

/// Kernels in a piece of a graph, as the library cuts them.
const PIECE: f64 = 4.0;

/// Of a copy within the device.
const COPY_PIECE: Bytes = Bytes(64 << 20);

/// What a launch, or that of a piece, takes a host of which nothing else is known (two or three microseconds, measured).
const LAUNCH_NS: u64 = 2_500;

/// What a mark costs the device (estimate: some microseconds).
const MARK_NS: f64 = 2_000.0;

/// A launch that has waited for so long is no longer looked after without pause, but every [`NAP_NS`]: the library's naps and as
/// much again, by which Linux may let a thread sleep longer.
const SPIN_NS: u64 = 200_000;
const NAP_NS: f64 = 100_000.0;

/// A launch is held for so long at most.
const HOLD_LIMIT_NS: u64 = 100_000_000;

/// A chunk that is under way.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    /// Kernels up to its end, counted from the first ever launched.
    end: u64,
    launches: u32,
    /// Before its first launch.
    began: u64,
    /// After its last.
    marked: u64,
}

/// Launches of a tenant. Kernels are counted from the first one of its life.
#[derive(Debug)]
pub(super) struct Launches {
    turnstile: Option<Turnstile>,
    /// Of each kernel of a pass, how many are launched with it that come after it: where a piece begins.
    pieces: Vec<u32>,
    launch_ns: u64,
    /// Kernels of all requests so far.
    asked: u64,
    launched: u64,
    done: u64,
    under_way: VecDeque<Chunk>,
    /// The chunk that is not full yet.
    open: Option<Chunk>,
    size: u32,
    /// When the last chunk was through.
    through: u64,
    held: bool,
    /// Until when it last was.
    held_until: u64,
    /// Since when a launch waits for its turn.
    waits_from: Option<u64>,
    /// The host does something else until then.
    busy_until: u64,
    /// When the host is to be looked at again, because it is through with a launch, and because it has held one for long enough.
    wake: Option<u64>,
    alarm: Option<u64>,
    /// Whether a mark lies before the kernel that is next on the device.
    after_mark: bool,
}

impl Launches {
    /// `None` where a kernel is ready as soon as the one before it is through.
    pub(super) fn of(program: &Program, class: Class, turnstile: Option<Turnstile>) -> Option<Self> {
        let turnstile = turnstile.filter(|_| class == Class::BestEffort);
        let host_ns = program.launching.host_ns as u64;
        if turnstile.is_none() && host_ns == 0 {
            return None;
        }
        let piece = if turnstile.is_some() && program.launching.graph { PIECE } else { 1.0 };
        Some(Self {
            turnstile,
            pieces: pieces(&program.kernels, piece),
            launch_ns: host_ns.max(LAUNCH_NS),
            asked: 0,
            launched: 0,
            done: 0,
            under_way: VecDeque::new(),
            open: None,
            size: 1,
            through: 0,
            held: false,
            held_until: 0,
            waits_from: None,
            busy_until: 0,
            wake: None,
            alarm: None,
            after_mark: false,
        })
    }

    /// Whether the next kernel is on the device.
    pub(super) const fn is_there(&self) -> bool {
        self.launched > self.done
    }

    /// Launches what may be launched, one after the other, until the host is busy with one or has to wait for its turn.
    fn go(&mut self, now: u64) {
        while self.launched < self.asked {
            if now < self.busy_until {
                self.wake = Some(self.busy_until);
                return;
            }
            if !self.may_go() {
                let since = *self.waits_from.get_or_insert(now);
                if !self.held {
                    return;
                }
                let limit = since + HOLD_LIMIT_NS;
                if now < limit {
                    // One that waits already comes sooner, and asks for the next.
                    self.alarm.get_or_insert(limit);
                    return;
                }
            }
            self.waits_from = None;
            self.launch(now);
        }
    }

    fn may_go(&self) -> bool {
        self.turnstile.is_none_or(|turnstile| !self.held && self.under_way.len() < turnstile.chunks as usize)
    }

    fn launch(&mut self, now: u64) {
        let at = (self.launched % self.pieces.len() as u64) as usize;
        self.launched += u64::from(self.pieces[at]);
        self.busy_until = now + self.launch_ns;
        if self.turnstile.is_none() {
            return;
        }
        let mut chunk = self.open.take().unwrap_or(Chunk { end: 0, launches: 0, began: now, marked: now });
        chunk = Chunk { end: self.launched, launches: chunk.launches + 1, marked: now, ..chunk };
        if chunk.launches >= self.size {
            self.under_way.push_back(chunk);
        } else {
            self.open = Some(chunk);
        }
    }

    /// A kernel is through.
    pub(super) fn kernel_done(&mut self, now: u64) {
        self.done += 1;
        self.after_mark = false;
        let Some(turnstile) = self.turnstile else { return };
        let Some(&chunk) = self.under_way.front().filter(|chunk| chunk.end <= self.done) else { return };
        self.under_way.pop_front();
        self.after_mark = true;
        let from = chunk.marked.max(self.through);
        let was_held = self.held || self.held_until >= from;
        let at_least = if was_held { 0 } else { now.saturating_sub(from) };
        let at_most = now.saturating_sub(chunk.began.max(self.through)).max(at_least);
        let wanted = Wanted { time: turnstile.chunk, most: turnstile.launches };
        let took = Took { launches: chunk.launches, at_least: Nanos(at_least), at_most: Nanos(at_most) };
        self.size = wanted.next(self.size, took);
        self.through = now;
    }

    /// What the device does before the next kernel besides what it does anyway.
    pub(super) const fn lead_ns(&self) -> f64 {
        if self.after_mark { MARK_NS } else { 0.0 }
    }

    /// A new life: nothing is launched.
    pub(super) fn clear(&mut self) {
        (self.asked, self.launched, self.done) = (0, 0, 0);
        self.under_way.clear();
        (self.open, self.waits_from) = (None, None);
        self.after_mark = false;
    }

    /// For tests: chunks under way, kernels that were launched, and whether any are asked for that are not through.
    #[cfg(test)]
    pub(super) fn seen(&self) -> (usize, u64, bool) {
        (self.under_way.len(), self.launched, self.asked > self.done)
    }

    /// How much longer the host is busy with a launch.
    #[cfg(test)]
    pub(super) const fn busy_ns(&self, now: u64) -> u64 {
        self.busy_until.saturating_sub(now)
    }

    #[cfg(test)]
    pub(super) const fn is_held(&self) -> bool {
        self.held
    }
}

/// Of each kernel, how many are launched with it; where a piece begins, that is the piece.
fn pieces(kernels: &[Kernel], most: f64) -> Vec<u32> {
    let mut pieces = vec![1; kernels.len()];
    let mut first = 0;
    while first < kernels.len() {
        let mut launches = kernels[first].launches;
        let mut end = first + 1;
        while end < kernels.len() && launches + kernels[end].launches <= most {
            launches += kernels[end].launches;
            end += 1;
        }
        pieces[first] = (end - first) as u32;
        first = end;
    }
    pieces
}

/// What a tenant runs behind the turnstile: copies within the device in pieces, everything else as it is.
pub(super) fn cut(program: &Program, class: Class, turnstile: Option<Turnstile>) -> Program {
    let bytes = program.launching.copy;
    if turnstile.is_none() || class == Class::LatencySensitive || bytes <= COPY_PIECE {
        return program.clone();
    }
    let count = bytes.0.div_ceil(COPY_PIECE.0);
    let part = 1.0 / count as f64;
    let piece =
        |kernel: &Kernel| Kernel { work_ns: kernel.work_ns * part, room: kernel.room * part, ..*kernel };
    let kernels =
        program.kernels.iter().flat_map(|kernel| std::iter::repeat_n(piece(kernel), count as usize));
    Program { kernels: kernels.collect(), ..program.clone() }
}

impl Tenant {
    /// Whether its next kernel waits on the device.
    pub(super) fn is_ready(&self) -> bool {
        self.phase == Phase::Waiting && self.launches.as_ref().is_none_or(Launches::is_there)
    }

    /// Whether it has anything on the device, as a client of MPS that others notice.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Copying) || self.is_ready()
    }
}

impl Machine<'_> {
    /// A tenant's host wants these kernels run.
    pub(super) fn ask(&mut self, index: usize, passes: u32) {
        let tenant = &mut self.tenants[index];
        if let Some(launches) = &mut tenant.launches {
            launches.asked += u64::from(passes) * tenant.program.kernels.len() as u64;
            self.go(index);
        }
    }

    /// A tenant's host launches what it may.
    pub(super) fn go(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        let was_ready = tenant.is_ready();
        let Some(launches) = &mut tenant.launches else { return };
        let before = [launches.wake, launches.alarm];
        launches.go(self.now);
        let after = [launches.wake, launches.alarm];
        if !was_ready && tenant.is_ready() {
            tenant.since = self.now;
        }
        for at in before.into_iter().zip(after).filter(|(before, after)| before != after) {
            self.after(at.1.unwrap_or(self.now), Event::Host(index as u32));
        }
    }

    /// The time has come at which a host was to be looked at; others are stale.
    pub(super) fn host_wakes(&mut self, index: usize) {
        let Some(launches) = &mut self.tenants[index].launches else { return };
        let due = |at: &mut Option<u64>| at.take_if(|at| *at <= self.now).is_some();
        let (wake, alarm) = (due(&mut launches.wake), due(&mut launches.alarm));
        if wake || alarm {
            self.go(index);
        }
    }

    /// A tenant's launches are held, or no longer. That they are not, its host finds out when it looks next.
    pub(super) fn hold(&mut self, index: usize, hold: bool) {
        let now = self.now;
        let reach_ns = self.setup.params.reach_ns as u64;
        let tenant = &mut self.tenants[index];
        let Some(launches) = &mut tenant.launches else { return };
        if launches.held == hold {
            return;
        }
        launches.held = hold;
        if hold {
            return;
        }
        launches.held_until = now;
        let waited = launches.waits_from.map_or(0, |from| now - from);
        let nap_ns = if waited > SPIN_NS { tenant.host.uniform(0.0, NAP_NS) as u64 } else { 0 };
        launches.busy_until = launches.busy_until.max(now + reach_ns + nap_ns);
        self.go(index);
    }
}
