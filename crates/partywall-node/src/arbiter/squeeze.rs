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

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use partywall_core::sm_arbiter::{Action, Config, Event, SmArbiter};
use partywall_core::tenant::{Class, Share, TenantId};
use partywall_core::units::Nanos;
use partywall_shim_api::page::{CHUNKS, HOLD_MEASURING, HOLD_SQUEEZED, HOLD_TURN, Mapped};
use serde::Serialize;

use super::{OptionsError, value};
use crate::leases::ProcessId;

mod in_turns;
#[cfg(test)]
mod tests;

use in_turns::InTurns;
pub use in_turns::TurnWatch;

/// How long a process can be active at a time.
pub const LIMIT: Nanos = Nanos::from_millis(500);

/// The shortest time slice. Two processes at work with it made no progress on an H200 (driver 580), because a change of hands takes more: so one
/// at a time computes. For requests 25 us were no better.
pub const SLICE_MIN: Nanos = Nanos::from_micros(50);

/// The shortest where several best-effort processes may have work on the device at the same time.
pub const SHARED_SLICE: Nanos = Nanos::from_millis(1);

/// How long one best-effort process computes while others wait, unless the options say otherwise. A change costs some 0.3 ms (0.2 ms are what an
/// H200 takes to change hands in the middle of a kernel, 0.1 ms is how long a launch that waits may take to notice): below one percent.
pub const TURN: Nanos = Nanos::from_millis(40);

/// The shortest and the longest turn: a change of hands must be little of it, and a launch waits for the turns of all others.
pub const TURN_MIN: Nanos = Nanos::from_millis(1);
/// See [`TURN_MIN`].
pub const TURN_MAX: Nanos = Nanos::from_millis(1_000);

/// The longest.
pub const SLICE_MAX: Nanos = Nanos::from_millis(1_000);

/// The time slice of latency-sensitive processes where best-effort ones have a short one: a request is not interrupted.
pub const LS_SLICE: Nanos = Nanos::from_millis(20);

/// Whether launches are decided about, and how, as in `chunks=2,chunk=100us,launches=16,release=50us,squeezed=16sms,slice=200us,turn=40ms,fixed`, each part optional, or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaunchOptions {
    /// Whether they are at all; otherwise they go straight to the driver, and are counted.
    pub decided: bool,
    /// Chunks of a best-effort process on the device at a time: two, so that the device finds the next one there.
    pub chunks: u32,
    /// How long the device is to be busy with a chunk. Zero: only the number of launches bounds it.
    pub chunk: Nanos,
    /// Launches in a chunk at most. A mark behind each costs the device some microseconds.
    pub launches: u32,
    /// How long latency-sensitive tenants must have been idle before best-effort ones go on.
    pub release: Nanos,
    /// The SMs that are left to best-effort tenants instead of being held, unless they say otherwise themselves.
    pub squeezed: Option<Share>,
    /// The time slice of best-effort processes, where processes take turns: how long one keeps the device while others wait. `None`: as
    /// the driver has it, 2 ms.
    pub slice: Option<Nanos>,
    /// How long one best-effort process computes while others wait, where they do so by turns ([`LaunchOptions::takes_turns`]).
    pub turn: Nanos,
    /// Whether best-effort tenants are given more or less room ([`Setting`]) as promises allow; otherwise what is said here stays.
    pub steered: bool,
}

/// What can be changed while tenants run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Whether best-effort tenants hold while latency-sensitive ones are active.
    pub hold: bool,
    /// Whether those of them that have a squeezed set go on there instead.
    pub squeezed: bool,
    /// How long the device is to be busy with a chunk.
    #[serde(rename = "chunk_ns")]
    pub chunk: Nanos,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = match (self.hold, self.squeezed) {
            (true, true) => "squeezed for requests",
            (true, false) => "held for requests",
            (false, _) => "not held",
        };
        match self.chunk {
            Nanos::ZERO => write!(f, "{held}, chunks of any length"),
            chunk => write!(f, "{held}, chunks of {} us", chunk.0 / 1_000),
        }
    }
}

impl LaunchOptions {
    /// Whether one best-effort process at a time computes: slices are so short that two would only change hands, and who launches can be
    /// held.
    pub fn takes_turns(&self) -> bool {
        self.decided && self.slice.is_some_and(|slice| slice < SHARED_SLICE)
    }

    /// The time slice of processes of a class in microseconds; 0: as the driver has it. `share`: several best-effort processes may have
    /// work on the device at the same time.
    pub fn slice_us(&self, class: Class, share: bool) -> u32 {
        let slice = self.slice.map(|slice| match class {
            Class::BestEffort if share => slice.max(SHARED_SLICE),
            Class::BestEffort => slice,
            Class::LatencySensitive => LS_SLICE,
        });
        slice.and_then(|slice| u32::try_from(slice.0 / 1_000).ok()).unwrap_or(0)
    }

    /// What holds at first, and where nobody has a promise. `squeezes`: whether any tenant has a squeezed set.
    pub const fn setting(&self, squeezes: bool) -> Setting {
        Setting { hold: true, squeezed: squeezes, chunk: self.chunk }
    }

    /// What can be steered to, the safest first: shorter chunks cost a neighbour's request less and the best-effort tenant more;
    /// not to hold at all may be right beside launches that take next to nothing from others.
    /// Between the two is to squeeze those that can be.
    pub fn settings(&self, squeezes: bool) -> Vec<Setting> {
        let chunk = self.chunk.0;
        let held = [chunk / 4, chunk / 2, chunk, chunk.saturating_mul(4)].map(|chunk| (true, false, chunk));
        let squeezed = [chunk, chunk.saturating_mul(4)].map(|chunk| (true, true, chunk));
        let free = [chunk, chunk.saturating_mul(4)].map(|chunk| (false, false, chunk));
        let all = held.into_iter().chain(squeezed.into_iter().filter(|_| squeezes)).chain(free);
        let setting = |(hold, squeezed, chunk)| Setting { hold, squeezed, chunk: Nanos(chunk) };
        let mut settings: Vec<Setting> = all.map(setting).collect();
        settings.dedup();
        settings
    }
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            decided: false,
            chunks: 2,
            chunk: Nanos::from_micros(100),
            launches: 16,
            release: Nanos::from_micros(50),
            squeezed: None,
            slice: None,
            turn: TURN,
            steered: true,
        }
    }
}

impl FromStr for LaunchOptions {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, OptionsError> {
        let mut options = Self { decided: true, ..Self::default() };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                None if part == "off" => options.decided = false,
                Some(("chunks", count)) => options.chunks = value(part, count)?,
                Some(("chunk", time)) => options.chunk = value(part, time)?,
                Some(("launches", count)) => options.launches = value(part, count)?,
                Some(("release", time)) => options.release = value(part, time)?,
                Some(("slice", time)) => options.slice = Some(slice(part, time)?),
                Some(("turn", time)) => options.turn = turn(part, time)?,
                Some(("squeezed", share)) => options.squeezed = Some(squeezed(part, share)?),
                None if part == "fixed" => options.steered = false,
                _ => return Err(OptionsError::Launches(part.to_owned())),
            }
        }
        let possible = 1..=CHUNKS as u32;
        if !possible.contains(&options.chunks) || options.launches == 0 {
            let reason = format!("chunks are 1 to {CHUNKS}, and launches at least 1");
            return Err(OptionsError::Value { part: text.to_owned(), reason });
        }
        if u32::try_from(options.chunk.0).is_err() {
            let reason = "a chunk is at most 4 s, and 0us for no bound".to_owned();
            return Err(OptionsError::Value { part: text.to_owned(), reason });
        }
        Ok(options)
    }
}

/// A time slice that a device can have.
fn slice(part: &str, text: &str) -> Result<Nanos, OptionsError> {
    time_within(part, text, SLICE_MIN..=SLICE_MAX, || {
        format!(
            "a time slice is {} us to {} ms: after a shorter one a process would have done nothing since it got the device",
            SLICE_MIN.0 / 1_000,
            SLICE_MAX.0 / 1_000_000
        )
    })
}

/// A turn that is worth its change.
fn turn(part: &str, text: &str) -> Result<Nanos, OptionsError> {
    time_within(part, text, TURN_MIN..=TURN_MAX, || {
        format!(
            "a turn is {} to {} ms: a shorter one is mostly a change of hands, and others wait for a longer one",
            TURN_MIN.0 / 1_000_000,
            TURN_MAX.0 / 1_000_000
        )
    })
}

/// A time in a range, outside of which it is refused for a reason.
fn time_within(
    part: &str,
    text: &str,
    range: RangeInclusive<Nanos>,
    reason: impl FnOnce() -> String,
) -> Result<Nanos, OptionsError> {
    let time: Nanos = value(part, text)?;
    if range.contains(&time) {
        Ok(time)
    } else {
        Err(OptionsError::Value { part: part.to_owned(), reason: reason() })
    }
}

/// A share, of which a number alone is one of SMs.
fn squeezed(part: &str, text: &str) -> Result<Share, OptionsError> {
    let sms = text.parse::<u32>().map(|_| format!("{text}sms"));
    value(part, sms.as_deref().unwrap_or(text))
}

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
            if self.act() {
                self.tell(now);
            }
        }
        is_contested || launching || !self.active.is_empty() || self.wake.is_some()
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
        let stands_back = self.setting.hold && self.holding.contains(&process.tenant);
        let is_squeezed = self.setting.squeezed && process.page.header.squeezed().is_some();
        self.measuring.is_some() || (stands_back && !is_squeezed)
    }
}
