//! Best-effort processes launch nothing while latency-sensitive ones are active.
//!
//! # Problem
//!
//! Kernels of a neighbour take SMs, caches and memory from those of a request, however small their share is. When nobody else runs,
//! a request takes as long as alone. But it is not known when one comes, and what the neighbour has queued by then runs first.
//!
//! # Approach
//!
//! Best-effort processes keep only a few chunks of launches on the device, and say so in their pages; latency-sensitive ones say there
//! whether they are active. Both without a system call ([`ShimSide`](partywall_shim_api::page::ShimSide)). Who is to stand back when, and
//! for how long after a request, is [`SmArbiter`]'s decision, the same that the simulator runs: a tenant that has no SMs
//! holds its launches ([`Config::holding`]).
//!
//! That a process is active is a claim. One that stands for longer than [`LIMIT`] no longer counts until it is taken back: nobody
//! waits for an answer that long, or the process never looks whether its work is done.
//!
//! A tenant that has a *squeezed* set of SMs is squeezed where others are held: it goes on launching, onto these. Whether they are fully held
//! instead is a matter of the setting: the safer ones do.
//!
//! A setting may also leave best-effort processes on the device for a part of the time only while there are requests ([`DutyCycle`]), which bounds
//! what they draw of the memory's bandwidth whatever they run: then they are held and let go again and again.
//!
//! Besides, all of them hold while what latency-sensitive tenants take alone is measured ([`Squeeze::hold_until`]): until a time that has to be
//! put off again and again, so that nobody is forgotten.
//!
//! Where best-effort processes have short time slices, one at a time has the turn, and the others launch nothing (`in_turns`).
//!
//! # Scenarios
//!
//! - S1: a latency-sensitive process becomes active: best-effort ones hold; it is idle for the release time: they go on.
//! - S2: one of two is still active: they hold.
//! - S3: who is active for too long no longer counts, and counts again after it was idle.
//! - S4: processes that come or go: who comes in between holds as well, and one that dies active does not leave others held.
//! - S5: tenants of one class alone: nobody holds.
//! - S6: something is measured: best-effort processes hold, also those that come, until the time is over.
//! - S7: the setting changes: who is held, and how long chunks are, changes at once.
//! - S8: who has a squeezed set is squeezed and not held, unless the setting says so; when that was decided is in its page.
//! - S9: short slices: one best-effort process at a time, requests first, and what it is told is what it waits for longest.
//! - S10: a part of the time: those that are not held launch, and stop when their part of the time is used up, as long as there are requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use partywall_core::duty_cycle::{DutyCycle, WHOLE_PERCENT};
use partywall_core::sm_arbiter::{Action, Config, Event, SmArbiter};
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_shim_api::page::{HOLD_MEASURING, HOLD_SQUEEZED, HOLD_TURN, Mapped};

use crate::leases::ProcessId;

mod in_turns;
mod options;
#[cfg(test)]
mod tests;

use in_turns::InTurns;
pub use in_turns::TurnWatch;
pub use options::{
    DUTY_PERCENT, LS_SLICE, LaunchOptions, SHARED_SLICE, SLICE_MAX, SLICE_MIN, Setting, TURN, TURN_MAX,
    TURN_MIN,
};

/// What best-effort processes have of the device at a time beside requests where chunks have no bound.
const QUANTUM: Nanos = Nanos::from_micros(100);

/// How long a process can be active at a time.
pub const LIMIT: Nanos = Nanos::from_millis(500);

#[derive(Debug)]
struct Process {
    tenant: TenantId,
    class: Class,
    page: Arc<Mapped>,
    /// Latency-sensitive: when it was first seen active; zero while it is not.
    since: Nanos,
    /// Whether that counts.
    is_active: bool,
}

/// Who is active and who holds.
#[derive(Debug)]
pub struct Squeeze {
    options: LaunchOptions,
    setting: Setting,
    processes: BTreeMap<ProcessId, Process>,
    /// `None` while there are not tenants of both classes, and beyond the number of tenants that it takes.
    arbiter: Option<SmArbiter>,
    active: BTreeSet<TenantId>,
    holding: BTreeSet<TenantId>,
    wake: Option<Nanos>,
    /// While some stand back: how the time beside requests is shared, and whether that holds best-effort processes now.
    duty: Option<DutyCycle>,
    is_used_up: bool,
    /// Until when all best-effort processes hold.
    measuring: Option<Nanos>,
    /// `None` where best-effort processes need not launch by turns.
    turns: Option<InTurns>,
    actions: Vec<Action>,
}

impl Squeeze {
    /// Nobody is there. How turns go is left in `watch`.
    pub fn new(options: LaunchOptions, watch: Arc<TurnWatch>) -> Self {
        Self {
            options,
            setting: options.setting(options.squeezed.is_some()),
            processes: BTreeMap::new(),
            arbiter: None,
            active: BTreeSet::new(),
            holding: BTreeSet::new(),
            wake: None,
            duty: None,
            is_used_up: false,
            measuring: None,
            turns: options.takes_turns().then(|| InTurns::new(&options, watch)),
            actions: Vec::new(),
        }
    }

    /// A process has registered.
    pub fn add(&mut self, now: Nanos, id: ProcessId, tenant: TenantId, class: Class, page: &Arc<Mapped>) {
        if !self.options.decided {
            return;
        }
        let is_new = !self.tenants().contains_key(&tenant);
        let page = Arc::clone(page);
        let process = Process { tenant, class, page, since: Nanos::ZERO, is_active: false };
        if let Some(turns) = self.turns.as_mut().filter(|_| class == Class::BestEffort) {
            turns.add(now, id);
        }
        let node = &process.page.node;
        node.hold.store(self.hold(id, &process), Ordering::Relaxed);
        node.launches_per_chunk.store(self.options.launches, Ordering::Relaxed);
        node.chunk_ns.store(self.chunk_ns(), Ordering::Relaxed);
        node.chunks_max.store(self.options.chunks, Ordering::Release);
        self.processes.insert(id, process);
        if is_new {
            self.seat(now);
        }
    }

    /// A process is gone.
    pub fn remove(&mut self, now: Nanos, id: ProcessId) {
        let Some(gone) = self.processes.remove(&id) else { return };
        // It may go on without the node.
        gone.page.node.hold.store(0, Ordering::Release);
        if let Some(turns) = self.turns.as_mut().filter(|_| gone.class == Class::BestEffort) {
            turns.remove(now, id);
        }
        if gone.is_active || !self.tenants().contains_key(&gone.tenant) {
            self.seat(now);
        }
    }

    fn tenants(&self) -> BTreeMap<TenantId, Class> {
        self.processes.values().map(|process| (process.tenant, process.class)).collect()
    }

    /// The tenants have changed: the arbiter begins anew with those that there are.
    fn seat(&mut self, now: Nanos) {
        let tenants = self.tenants();
        let config = Config::holding(tenants, self.options.release);
        self.arbiter = config.and_then(|config| SmArbiter::new(&config).ok());
        // It is told with the next look who is active.
        self.processes.values_mut().for_each(|process| process.is_active = false);
        (self.active, self.wake) = (BTreeSet::new(), None);
        match &mut self.arbiter {
            Some(arbiter) => arbiter.start(now, &mut self.actions),
            None => self.holding.clear(),
        }
        self.act();
        self.tell(now);
    }

    /// All best-effort processes hold until then, whoever is active.
    pub fn hold_until(&mut self, now: Nanos, at: Nanos) {
        self.measuring = Some(at).filter(|at| *at > now);
        self.tell(now);
    }

    /// Best-effort processes have this from now on.
    pub fn set(&mut self, now: Nanos, setting: Setting) {
        self.setting = setting;
        (self.duty, self.is_used_up) = (None, false);
        let chunk = self.chunk_ns();
        self.processes
            .values()
            .for_each(|process| process.page.node.chunk_ns.store(chunk, Ordering::Relaxed));
        self.tell(now);
    }

    fn chunk_ns(&self) -> u32 {
        u32::try_from(self.setting.chunk.0).unwrap_or(u32::MAX)
    }

    /// When there is something to do even if nobody moves.
    pub fn deadline(&self) -> Option<Nanos> {
        self.measuring
    }

    /// Looks who is active. Asks for the time only where it matters; whether there is anything to look for soon.
    pub fn look(&mut self, now: impl Fn() -> Nanos) -> bool {
        if self.measuring.is_some_and(|at| now() >= at) {
            self.measuring = None;
            self.tell(now());
        }
        let is_contested = self.look_at_turns(&now);
        let Some(arbiter) = &mut self.arbiter else { return is_contested };
        let (mut changed, mut launching) = (false, false);
        for process in self.processes.values_mut() {
            let shim = &process.page.shim;
            let mut is_active = false;
            match process.class {
                Class::BestEffort => {
                    launching |= shim.chunks.iter().any(|word| word.load(Ordering::Relaxed) != 0);
                }
                Class::LatencySensitive if shim.active.load(Ordering::Acquire) == 0 => {
                    process.since = Nanos::ZERO;
                }
                Class::LatencySensitive => {
                    let now = now();
                    if process.since == Nanos::ZERO {
                        process.since = now;
                    }
                    is_active = now.saturating_sub(process.since) < LIMIT;
                }
            }
            changed |= std::mem::replace(&mut process.is_active, is_active) != is_active;
        }
        let mut is_news = false;
        let due = self.wake.is_some_and(|at| now() >= at);
        if changed || due {
            let now = now();
            let at_work = self.processes.values().filter(|process| process.is_active);
            let active: BTreeSet<TenantId> = at_work.map(|process| process.tenant).collect();
            for &tenant in active.difference(&self.active) {
                arbiter.step(now, Event::LsActive { tenant }, &mut self.actions);
            }
            for &tenant in self.active.difference(&active) {
                arbiter.step(now, Event::LsIdle { tenant }, &mut self.actions);
            }
            if due {
                self.wake = None;
                arbiter.step(now, Event::Tick, &mut self.actions);
            }
            self.active = active;
            is_news = self.act();
        }
        if self.look_at_duty(&now, launching) || is_news {
            self.tell(now());
        }
        is_contested || launching || !self.active.is_empty() || self.wake.is_some()
    }

    /// Counts the time that best-effort processes have work beside requests; whether that changes who is held.
    fn look_at_duty(&mut self, now: impl Fn() -> Nanos, is_busy: bool) -> bool {
        let before = self.is_used_up;
        if self.setting.duty_percent == WHOLE_PERCENT || self.holding.is_empty() {
            (self.duty, self.is_used_up) = (None, false);
        } else {
            let (now, percent) = (now(), self.setting.duty_percent);
            let quantum = if self.setting.chunk == Nanos::ZERO { QUANTUM } else { self.setting.chunk };
            let duty = self.duty.get_or_insert_with(|| DutyCycle::new(now, percent, quantum));
            self.is_used_up = !duty.look(now, is_busy);
        }
        self.is_used_up != before
    }

    /// Passes the turn on, where best-effort processes launch by turns; whether one waits for it.
    fn look_at_turns(&mut self, now: impl Fn() -> Nanos) -> bool {
        let Some(mut turns) = self.turns.take() else { return false };
        let best_effort = self.processes.iter().filter(|(_, process)| process.class == Class::BestEffort);
        let pages = best_effort.map(|(&id, process)| (id, &process.page.shim.0));
        let held = |id| self.processes.get(&id).is_some_and(|process| self.is_held(process));
        let changed = turns.look(&now, pages, held);
        let is_contested = turns.is_contested();
        self.turns = Some(turns);
        if changed {
            self.tell(now());
        }
        is_contested
    }

    /// Does what the arbiter has decided; whether that changes who holds.
    fn act(&mut self) -> bool {
        let mut changed = false;
        for action in self.actions.drain(..) {
            match action {
                Action::Assign { tenant, sms } if sms.is_empty() => changed |= self.holding.insert(tenant),
                Action::Assign { tenant, .. } => changed |= self.holding.remove(&tenant),
                Action::WakeAt(at) => self.wake = Some(at),
                Action::Ignored { .. } => {}
            }
        }
        changed
    }

    fn tell(&self, now: Nanos) {
        for (&id, process) in &self.processes {
            let (node, hold) = (&process.page.node, self.hold(id, process));
            let before = node.hold.load(Ordering::Relaxed);
            if before != hold && [before, hold].contains(&HOLD_SQUEEZED) {
                node.resized_ns.store(now.0, Ordering::Relaxed);
            }
            // What was launched before this is looked for after it.
            node.hold.store(hold, Ordering::SeqCst);
        }
    }

    /// What a process is told.
    fn hold(&self, id: ProcessId, process: &Process) -> u32 {
        match process.class {
            Class::LatencySensitive => 0,
            Class::BestEffort if self.measuring.is_some() => HOLD_MEASURING,
            Class::BestEffort if self.turns.as_ref().is_some_and(|turns| !turns.may_launch(id)) => HOLD_TURN,
            Class::BestEffort if self.is_held(process) => 1,
            Class::BestEffort if self.setting.hold && self.holding.contains(&process.tenant) => HOLD_SQUEEZED,
            Class::BestEffort => 0,
        }
    }

    /// Whether a best-effort process is to launch nothing, whoever's turn it is.
    fn is_held(&self, process: &Process) -> bool {
        let stands_back = self.holding.contains(&process.tenant);
        let is_squeezed = self.setting.squeezed && process.page.header.squeezed().is_some();
        let is_asked = self.is_used_up || (self.setting.hold && !is_squeezed);
        self.measuring.is_some() || (stands_back && is_asked)
    }
}
