//! Which SMs each tenant may use, now.
//!
//! # Problem
//!
//! Kernels of different tenants on disjoint SMs do not delay each other by computing: on an H200, a request of 0.156 ms
//! took 0.157 ms beside a compute-bound neighbour, and 130 ms where both shared all SMs (measured, November 2026;
//! so are the other figures here). But a fixed split wastes what the latency-sensitive (LS) tenants leave idle, and a
//! best-effort (BE) tenant on its own SMs still loads the shared memory: beside a VRAM stream on 50 % of the SMs a
//! ResNet-50 of 1.02 ms took 1.81 ms, beside one on 12 % it took 1.18 ms, on 6 % 1.14 ms.
//!
//! # Approach
//!
//! The SMs are a line, ordered so that neighbours on it share a TPC. The LS tenants have the low end, each a **floor**
//! of SMs next to each other; their ranges never change, so a request always runs on the SMs on which its guarantee was
//! measured, and needs no change of context. What moves is where the BE tenants' part begins; it always ends at the
//! end of the line, and they share it equally. There are three **levels**:
//!
//! ```text
//!             0        reserve      floors               be_min      whole
//!             |  LS 0     |   LS 1   |                     |           |
//! squeezed    |           |          |                     |BE BE BE BE|
//! outside     |           |          |BE BE BE BE BE BE BE BE BE BE BE |
//! lent        |           |BE BE BE BE BE BE BE BE BE BE BE BE BE BE BE|
//! ```
//!
//! [`Policy::Static`] stays *outside*. [`Policy::Follow`] goes down at once and up late: as soon as any LS tenant is
//! active, *squeezed*; when all have been idle for the **hold**, *outside* or *lent*.
//!
//! **A running kernel cannot be taken away.** A squeeze takes effect when the BE tenant's kernel ends, so an LS request
//! that arrives on lent SMs can wait for the longest BE kernel: kernels of 16 ms would delay a request of 0.15 ms a
//! hundredfold. Therefore the LS tenants' SMs are lent only while every BE tenant's longest recent kernel is known
//! and at most `lend_limit`; otherwise BE keeps to what is outside the floors. The caller says which kernels are
//! recent: it reports the longest of whatever window it keeps, whenever that changes. What `ls_reserve` covers is
//! never lent, so an LS tenant that lies within it starts on free SMs whatever BE runs; list the most precious first.
//!
//! **Hysteresis.** The hold begins at `release_after`. An LS tenant that comes back sooner than the hold after a
//! release shows that the release was premature: the hold doubles, up to [`MAX_BACKOFF`] times `release_after`. A
//! squeeze after a longer release halves it again. Leaving the squeeze waits for a hold without LS activity, lending
//! for one without kernels that are too long as well; going down never waits.
//!
//! # Terms and units
//!
//! *Step*: the granularity in which the hardware can cut (Green Contexts: 8 SMs, or 2 without co-scheduling); every
//! range begins at a multiple of it, and the last one takes what remains at the end of the line. A floor is rounded up to
//! it, and so are `be_min` and `ls_reserve`. Counts are SMs; times are nanoseconds of the caller's clock.
//!
//! Where launches cannot be told apart by SMs, as those of programs as they are, each tenant counts as one SM and holds its launches
//! while it has none ([`Config::holding`]): levels are then hold and go, and nothing is lent. That is what the node and the simulator run;
//! nothing moves SMs yet.
//!
//! The caller applies [`Action::Assign`] at the tenant's next kernel boundary. An empty range means: launch nothing.
//! While BE ranges move, two of them may overlap until both have been applied; nothing is promised between BE tenants.
//!
//! # Scenarios
//!
//! - S1: the static split gives LS its floors and shares the rest among BE, whatever happens.
//! - S2: LS becomes active: BE is squeezed at once.
//! - S3: LS is idle for the hold: BE gets what is outside the floors, and the LS SMs beyond the reserve if its kernels are short.
//! - S4: a BE kernel that is too long takes lent SMs back, and they are lent again only after a hold without one.
//! - S5: LS comes and goes faster than the hold: BE stays squeezed.
//! - S6: LS keeps coming back shortly after releases: the hold grows up to its limit, and shrinks when it stays away.
//! - S7: one of several LS tenants is idle: BE stays squeezed.
//! - S8: tenants die and come back.
//! - S9: what cannot be laid out is refused, with what would be right.
//! - S10: events that make no sense are reported and change nothing.
//! - S11: tenants count as one SM each: best-effort ones hold at once when LS becomes active, and go on after the hold; with one class
//!   alone there is nothing to decide.

use crate::tenant::TenantId;
use crate::units::{Nanos, SmCount};

mod seats;
#[cfg(test)]
mod tests;

pub use seats::{Config, ConfigError, Follow, MAX_SEATS, Policy, Seat, SmRange};
use seats::{Role, Tenant};

/// How far the hold can grow, in multiples of `release_after`. Beyond this a tenant whose bursts are that far apart
/// would cost BE more than the squeezes that it saves.
pub const MAX_BACKOFF: u64 = 8;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A latency-sensitive tenant has work.
    LsActive {
        /// Who.
        tenant: TenantId,
    },
    /// It has none any more.
    LsIdle {
        /// Who.
        tenant: TenantId,
    },
    /// The longest kernel that a best-effort tenant ran recently.
    LongestKernel {
        /// Who.
        tenant: TenantId,
        /// How long it ran.
        nanos: Nanos,
    },
    /// The time of the last [`Action::WakeAt`] has come. An earlier or a needless one does no harm.
    Tick,
    /// A tenant is gone. Its SMs go to BE if no LS range lies above them.
    TenantGone {
        /// Who.
        tenant: TenantId,
    },
    /// A tenant that was gone is there again, idle, and nothing is known of its kernels.
    TenantBack {
        /// Who.
        tenant: TenantId,
    },
}

/// What the caller has to do or to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// From its next kernel on, the tenant runs on these SMs.
    Assign {
        /// Who.
        tenant: TenantId,
        /// Where.
        sms: SmRange,
    },
    /// Send [`Event::Tick`] then. It replaces the one asked for before.
    WakeAt(Nanos),
    /// The event did not fit the tenant: no such tenant, not of that class, gone, or not gone. Nothing changed.
    Ignored {
        /// Of whom it spoke.
        tenant: TenantId,
    },
}

/// Where BE's part begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// BE has `be_min`.
    Squeezed,
    /// BE has what is outside the floors.
    Outside,
    /// BE also has the LS SMs beyond the reserve.
    Lent,
}

/// Who has which SMs of one GPU.
#[derive(Debug, Clone)]
pub struct SmArbiter {
    whole: u32,
    step: u32,
    policy: Policy,
    tenants: Vec<Tenant>,
    level: Level,
    /// LS tenants that are active.
    active: usize,
    /// When an LS tenant last began or ceased to be active.
    ls_changed_at: Nanos,
    /// When a BE kernel last was too long to lend.
    long_kernel_at: Nanos,
    /// When the level last left `Squeezed`.
    released_at: Nanos,
    hold: Nanos,
    /// What the caller was last asked to wake us at.
    wake: Option<Nanos>,
}

impl SmArbiter {
    /// Everybody present and idle; under [`Policy::Follow`] squeezed until the first hold has passed.
    ///
    /// # Errors
    /// When the tenants do not fit the GPU, with what would.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let tenants = seats::lay_out(config)?;
        let (level, hold) = match config.policy {
            Policy::Static => (Level::Outside, Nanos::MAX),
            Policy::Follow(follow) => (Level::Squeezed, follow.release_after),
        };
        let mut arbiter = Self {
            whole: config.whole.0,
            step: config.step.0,
            policy: config.policy,
            tenants,
            level,
            active: 0,
            ls_changed_at: Nanos::ZERO,
            long_kernel_at: Nanos::ZERO,
            released_at: Nanos::ZERO,
            hold,
            wake: None,
        };
        arbiter.check_room()?;
        arbiter.assign(|_, _| {});
        Ok(arbiter)
    }

    /// The policy's name in metrics.
    pub const fn name(&self) -> &'static str {
        match self.policy {
            Policy::Static => "sm-static",
            Policy::Follow(_) => "sm-follow",
        }
    }

    /// Where BE's part begins now.
    pub const fn level(&self) -> Level {
        self.level
    }

    /// How long LS must be idle before the next release; [`Nanos::MAX`] under [`Policy::Static`].
    pub const fn hold(&self) -> Nanos {
        self.hold
    }

    /// What a tenant has been assigned; `None` if it is unknown or gone.
    pub fn sms(&self, tenant: TenantId) -> Option<SmRange> {
        self.tenants.iter().find(|t| t.id == tenant && t.present).map(|t| t.sms)
    }

    /// Begins at `now`: appends everybody's first assignment.
    pub fn start(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        self.ls_changed_at = now;
        actions.extend(self.tenants.iter().map(|t| Action::Assign { tenant: t.id, sms: t.sms }));
        self.settle(now, actions);
    }

    /// Takes in what happened at `now` and appends what follows to `actions`.
    pub fn step(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        let taken = match event {
            Event::LsActive { tenant } => self.set_active(now, tenant, true),
            Event::LsIdle { tenant } => self.set_active(now, tenant, false),
            Event::LongestKernel { tenant, nanos } => self.set_longest(now, tenant, nanos),
            Event::Tick => {
                self.wake = None;
                Ok(())
            }
            Event::TenantGone { tenant } => self.set_present(now, tenant, false, actions),
            Event::TenantBack { tenant } => self.set_present(now, tenant, true, actions),
        };
        match taken {
            Ok(()) => self.settle(now, actions),
            Err(Misfit(tenant)) => actions.push(Action::Ignored { tenant }),
        }
    }

    fn tenant(&mut self, id: TenantId, present: bool) -> Result<&mut Tenant, Misfit> {
        self.tenants.iter_mut().find(|t| t.id == id && t.present == present).ok_or(Misfit(id))
    }

    fn set_active(&mut self, now: Nanos, id: TenantId, becomes: bool) -> Result<(), Misfit> {
        let tenant = self.tenant(id, true)?;
        let Role::Ls { active } = &mut tenant.role else { return Err(Misfit(id)) };
        if *active != becomes {
            *active = becomes;
            self.count_active(now, becomes);
        }
        Ok(())
    }

    fn count_active(&mut self, now: Nanos, becomes: bool) {
        self.ls_changed_at = now;
        self.active = if becomes { self.active + 1 } else { self.active - 1 };
    }

    fn set_longest(&mut self, now: Nanos, id: TenantId, nanos: Nanos) -> Result<(), Misfit> {
        let tenant = self.tenant(id, true)?;
        let Role::Be { longest } = &mut tenant.role else { return Err(Misfit(id)) };
        *longest = Some(nanos);
        if matches!(self.policy, Policy::Follow(follow) if nanos > follow.lend_limit) {
            self.long_kernel_at = now;
        }
        Ok(())
    }

    fn set_present(
        &mut self,
        now: Nanos,
        id: TenantId,
        present: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), Misfit> {
        let tenant = self.tenant(id, !present)?;
        tenant.present = present;
        let was_active = tenant.role == Role::Ls { active: true };
        match &mut tenant.role {
            Role::Ls { active } => *active = false,
            Role::Be { longest } => {
                *longest = None;
                tenant.sms = SmRange::default();
            }
        }
        if was_active {
            self.count_active(now, false);
        }
        let from = actions.len();
        self.reassign(actions);
        // Who comes back is told its range also where that is the one from before it went.
        if let Some(sms) = self.sms(id) {
            let told = Action::Assign { tenant: id, sms };
            if !actions[from..].contains(&told) {
                actions.push(told);
            }
        }
        Ok(())
    }

    /// Moves to the level that the tenants' state asks for, or asks to be woken when that may happen.
    fn settle(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let Policy::Follow(follow) = self.policy else { return };
        let target = self.target(&follow);
        let before = self.level;
        if target < before {
            if target == Level::Squeezed {
                self.adapt_hold(now, &follow);
            } else {
                self.long_kernel_at = now;
            }
            self.level = target;
        }
        let due = self.climb(now, target);
        if self.level != before {
            self.reassign(actions);
        }
        if let Some(due) = due
            && self.wake != Some(due)
        {
            self.wake = Some(due);
            actions.push(Action::WakeAt(due));
        }
    }

    /// Goes up towards `target` as far as the holds that have passed allow; returns when the next one will have.
    ///
    /// There are two stairs, because kernels that are too long keep BE from being lent SMs but not from leaving
    /// the squeeze.
    fn climb(&mut self, now: Nanos, target: Level) -> Option<Nanos> {
        while self.level < target {
            let (next, since) = match self.level {
                Level::Squeezed => (Level::Outside, self.ls_changed_at),
                Level::Outside | Level::Lent => (Level::Lent, self.ls_changed_at.max(self.long_kernel_at)),
            };
            let due = since.saturating_add(self.hold);
            if now < due {
                return Some(due);
            }
            if self.level == Level::Squeezed {
                self.released_at = now;
            }
            self.level = next;
        }
        None
    }

    fn target(&self, follow: &Follow) -> Level {
        let short = |longest: Option<Nanos>| longest.is_some_and(|longest| longest <= follow.lend_limit);
        let may_lend = self
            .tenants
            .iter()
            .filter(|t| t.present)
            .all(|t| !matches!(t.role, Role::Be { longest } if !short(longest)));
        match (self.active, may_lend) {
            (1.., _) => Level::Squeezed,
            (0, false) => Level::Outside,
            (0, true) => Level::Lent,
        }
    }

    /// At a squeeze: the release before it was premature if it lasted less than the hold.
    fn adapt_hold(&mut self, now: Nanos, follow: &Follow) {
        let base = follow.release_after.0;
        let hold = if now.saturating_sub(self.released_at) < self.hold {
            self.hold.0.saturating_mul(2)
        } else {
            self.hold.0 / 2
        };
        self.hold = Nanos(hold.clamp(base, base.saturating_mul(MAX_BACKOFF)));
    }

    /// Announces the ranges that changed.
    fn reassign(&mut self, actions: &mut Vec<Action>) {
        self.assign(|tenant, sms| actions.push(Action::Assign { tenant, sms }));
    }

    /// Gives each BE tenant its part and calls `changed` for those whose range is another now.
    fn assign(&mut self, mut changed: impl FnMut(TenantId, SmRange)) {
        let begin = self.be_begin(self.level);
        let steps = (self.whole - begin) / self.step;
        let sharing = self.be_count();
        let (mut first, mut n) = (begin, 0);
        for tenant in self.tenants.iter_mut().filter(|t| t.present && matches!(t.role, Role::Be { .. })) {
            // The first ones get the steps that do not divide, the last one what is less than a step.
            let own = steps / sharing + u32::from(n < steps % sharing);
            n += 1;
            let end = if n == sharing.min(steps) { self.whole } else { first + own * self.step };
            let sms = if own == 0 { SmRange::default() } else { SmRange::between(first, end) };
            if tenant.sms != sms {
                tenant.sms = sms;
                changed(tenant.id, sms);
            }
            first += own * self.step;
        }
    }

    fn be_count(&self) -> u32 {
        self.tenants.iter().filter(|t| t.present && matches!(t.role, Role::Be { .. })).count() as u32
    }

    /// Where BE's part begins at a level: a multiple of the step, or the end of the GPU.
    fn be_begin(&self, level: Level) -> u32 {
        let floors = self.floors_end();
        match (self.policy, level) {
            (Policy::Static, _) | (_, Level::Outside) => floors,
            (Policy::Follow(Follow { be_min: SmCount(0), .. }), Level::Squeezed) => self.whole,
            (Policy::Follow(follow), Level::Squeezed) => {
                (self.whole - follow.be_min.0) / self.step * self.step
            }
            (Policy::Follow(follow), Level::Lent) => {
                follow.ls_reserve.0.next_multiple_of(self.step).min(floors)
            }
        }
    }

    /// Where the LS tenants that are there end.
    fn floors_end(&self) -> u32 {
        let ls = self.tenants.iter().filter(|t| t.present && matches!(t.role, Role::Ls { .. }));
        ls.map(|t| t.sms.end()).max().unwrap_or(0)
    }

    /// Whether every BE tenant has at least a step wherever the parameters do not say zero.
    fn check_room(&self) -> Result<(), ConfigError> {
        let (tenants, floors, whole) = (self.be_count(), self.floors_end(), SmCount(self.whole));
        let outside = SmCount(whole.0 - floors);
        let enough = |left: SmCount, when| {
            if left.0 / self.step >= tenants {
                return Ok(());
            }
            let (need, step) = (SmCount(tenants.saturating_mul(self.step)), SmCount(self.step));
            Err(ConfigError::BestEffort { tenants: tenants as usize, when, left, need, step })
        };
        let Policy::Follow(follow) = self.policy else { return enough(outside, "outside the floors") };
        if follow.ls_reserve.0 > floors {
            return Err(ConfigError::Reserve { reserve: follow.ls_reserve, floors: SmCount(floors) });
        }
        if follow.be_min > outside {
            return Err(ConfigError::Squeeze { be_min: follow.be_min, left: outside });
        }
        if follow.be_min.0 > 0 {
            enough(follow.be_min, "by `be_min`")?;
        }
        // With `be_min` zero BE may live on lent SMs alone, but then there must be some.
        if outside.0 >= self.step {
            enough(outside, "outside the floors")?;
        }
        enough(SmCount(whole.0 - self.be_begin(Level::Lent)), "when SMs are lent")
    }
}

/// An event that does not fit the tenant.
struct Misfit(TenantId);
