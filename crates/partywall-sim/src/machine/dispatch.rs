//! Which waiting kernel gets SMs, and when.
//!
//! Hardware places blocks, not kernels: a kernel with more blocks than fit runs in waves, and until its last block is
//! placed the block scheduler does not look at the next kernel. So a kernel has an *issuing* phase, during which it
//! holds everything it may, and a *tail*, during which the part of the SMs that its last wave leaves empty is free for
//! others. (Letting the blocks of the last wave end one after the other was tried: errors against the recorded pairs
//! stayed within a hundredth, and starts came to depend on when unrelated events made the engine look.) Under plain
//! MPS this makes a small request wait for the tail of each large neighbour, or for its end where the last wave is
//! full. Under stream priority a waiting high-priority kernel gets the blocks that end, wave by wave.
//! Under time-slicing only the owner of the slice places kernels at all.

use super::{Machine, Phase, Placed, Tenant};
use crate::contention::Load;
use crate::kernel::{Chip, Kernel, smooth};
use crate::layout::Dispatch;
use partywall_core::tenant::Class;

/// A running kernel always keeps some SMs, however many waves a neighbour takes from it.
const KEPT_MIN: f64 = 1.0;

/// Room below this is none (rounding).
const ROOM_MIN: f64 = 1e-6;

/// Part done that no kernel reaches.
const NEVER: f64 = 2.0;

impl Placed {
    /// A kernel of `tenant` that starts with `held` SMs' worth of room.
    fn start(kernel: &Kernel, held: f64, tenant: &Tenant, chip: &Chip) -> Self {
        let unstretched = smooth(kernel.width / chip.sms);
        let mut placed = Self {
            held,
            cap: tenant.place.cap,
            work_ns: kernel.work_ns * tenant.remainder,
            unstretched,
            yields_at: NEVER,
            ..Self::default()
        };
        placed.plan(kernel);
        placed
    }

    /// Sets where the issuing phase ends and what the tail holds, for the room held now.
    fn plan(&mut self, kernel: &Kernel) {
        let waves = kernel.room / self.held;
        if waves > 1.0 + ROOM_MIN {
            let count = waves.ceil();
            self.issued = 1.0 - 1.0 / count;
            self.tail = waves - (count - 1.0);
        } else {
            self.issued = 0.0;
            self.tail = 1.0;
        }
    }

    fn issuing(&self) -> bool {
        self.progress < self.issued - 1e-9
    }

    /// SMs' worth of room that others cannot have now.
    fn occupied(&self) -> f64 {
        if self.issuing() { self.held } else { self.held * self.tail }
    }

    /// The kernel as the contention model sees it.
    pub(super) fn load(&self, kernel: &Kernel, tenant: &Tenant, gap_ns: f64) -> Load {
        // With less room than it wants, its blocks sit on those SMs only.
        let cap = if self.held < kernel.room.min(self.cap) - ROOM_MIN { self.held } else { self.cap };
        let mut drawn = kernel.width.min(cap);
        if self.issued > 0.0 && !self.issuing() {
            drawn = drawn.min(self.occupied());
        }
        Load {
            kernel: Kernel { work_ns: self.work_ns, ..*kernel },
            unstretched: self.unstretched,
            cap,
            drawn: drawn.max(1e-3),
            gap_ns,
            memory: tenant.place.memory,
            graph: tenant.program.launching.graph,
        }
    }
}

impl Machine<'_> {
    pub(super) fn dispatch(&mut self) {
        match self.setup.layout.dispatch {
            Dispatch::Sliced => self.dispatch_owner(),
            Dispatch::Concurrent | Dispatch::Priority => self.dispatch_shared(),
        }
    }

    fn dispatch_shared(&mut self) {
        if !self.tenants.iter().any(Tenant::wants_room) {
            return;
        }
        let mut free = self.chip.sms - self.tenants.iter().map(Tenant::occupied).sum::<f64>();
        self.expand(&mut free);
        let priority = self.setup.layout.dispatch == Dispatch::Priority;
        while let Some(index) = self.first_waiting(priority) {
            let tenant = &self.tenants[index];
            let kernel = tenant.program.kernels[tenant.next];
            let cap = tenant.place.cap;
            let wanted = kernel.room.min(cap);
            if priority && tenant.class == Class::LatencySensitive && free < wanted {
                self.take_ending_blocks(wanted, &mut free);
            }
            let needed = wanted.min(self.setup.params.start_room * self.chip.sms);
            let needed = if priority { wanted.min(1.0) } else { needed };
            if free < needed - ROOM_MIN {
                break;
            }
            let held = wanted.min(free);
            free -= held;
            let tenant = &mut self.tenants[index];
            tenant.placed = Placed::start(&kernel, held, tenant, &self.chip);
            tenant.phase = Phase::Running;
            if priority && tenant.class == Class::LatencySensitive {
                // The next one that waits is owed blocks that end from then on, not those of waves gone by.
                self.tenants.iter_mut().for_each(|tenant| tenant.placed.yields_at = NEVER);
            }
        }
    }

    /// Kernels that are still issuing take room that has become free, before any that has not started.
    fn expand(&mut self, free: &mut f64) {
        let priority = self.setup.layout.dispatch == Dispatch::Priority
            && self.tenants.iter().any(|t| t.is_ready() && t.class == Class::LatencySensitive);
        for tenant in &mut self.tenants {
            if tenant.phase != Phase::Running || !tenant.placed.issuing() {
                continue;
            }
            if priority && tenant.class == Class::BestEffort {
                continue;
            }
            let kernel = tenant.program.kernels[tenant.next];
            let more = (kernel.room.min(tenant.placed.cap) - tenant.placed.held).min(*free);
            if more > 0.5 {
                *free -= more;
                tenant.placed.held += more;
                tenant.placed.plan(&kernel);
            }
        }
    }

    /// The waiting tenant whose kernel became ready first; with `priority`, among the latency-sensitive if any waits.
    /// A tenant without SMs is in nobody's way.
    fn first_waiting(&self, priority: bool) -> Option<usize> {
        let waits = |tenant: &Tenant| tenant.is_ready() && tenant.place.cap >= ROOM_MIN;
        let waiting = self.tenants.iter().enumerate().filter(|(_, tenant)| waits(tenant));
        waiting
            .min_by_key(|(_, tenant)| (priority && tenant.class == Class::BestEffort, tenant.since))
            .map(|(index, _)| index)
    }

    /// At the end of a wave of a best-effort kernel, its blocks' room goes to the waiting latency-sensitive kernel.
    fn take_ending_blocks(&mut self, wanted: f64, free: &mut f64) {
        for tenant in &mut self.tenants {
            if tenant.class == Class::LatencySensitive
                || tenant.phase != Phase::Running
                || !tenant.placed.issuing()
            {
                continue;
            }
            let kernel = tenant.program.kernels[tenant.next];
            let placed = &mut tenant.placed;
            let waves = (kernel.room / placed.held).ceil().max(1.0);
            if placed.yields_at >= NEVER {
                placed.yields_at = ((placed.progress * waves).floor() + 1.0) / waves;
            }
            if placed.progress >= placed.yields_at - 1e-9 {
                let taken = (wanted - *free).min(placed.held - KEPT_MIN).max(0.0);
                placed.held -= taken;
                placed.plan(&kernel);
                placed.yields_at = NEVER;
                *free += taken;
            }
        }
    }

    fn dispatch_owner(&mut self) {
        if self.slices.owner.is_none_or(|owner| !self.tenants[owner].wants_gpu()) {
            self.slices.owner = None;
            let from = self.slices.last.map_or(0, |last| last + 1);
            let count = self.tenants.len();
            let next = (0..count).map(|turn| (from + turn) % count).find(|&i| self.tenants[i].wants_gpu());
            if let Some(next) = next {
                self.give_slice(next);
            }
        }
        if let Some(owner) = self.slices.owner
            && self.tenants[owner].is_ready()
        {
            let tenant = &mut self.tenants[owner];
            let kernel = tenant.program.kernels[tenant.next];
            let held = kernel.room.min(tenant.place.cap);
            tenant.placed = Placed::start(&kernel, held, tenant, &self.chip);
            tenant.phase = Phase::Running;
        }
    }

    /// When the slice is over, the next in turn that has work gets one; if nobody else has, the owner gets another: the
    /// hardware's timer runs on, so that a request meets a slice at a random point and not always at its end.
    pub(super) fn turn_slice(&mut self) {
        let Some(owner) = self.slices.owner else { return };
        if self.now < self.slices.until {
            return;
        }
        let count = self.tenants.len();
        let next =
            (1..=count).map(|turn| (owner + turn) % count).find(|&index| self.tenants[index].wants_gpu());
        self.give_slice(next.unwrap_or(owner));
    }

    fn give_slice(&mut self, index: usize) {
        let switch = if self.slices.last == Some(index) { 0 } else { self.setup.params.switch_ns as u64 };
        self.slices.owner = Some(index);
        self.slices.last = Some(index);
        self.slices.from = self.now + switch;
        let slice =
            self.tenants[index].place.slice.map_or(self.setup.params.slice_ns as u64, |slice| slice.0);
        self.slices.until = self.slices.from + slice;
    }
}

impl Tenant {
    fn occupied(&self) -> f64 {
        if self.phase == Phase::Running { self.placed.occupied() } else { 0.0 }
    }

    /// Whether it has a kernel to start, or one that could still take more room.
    fn wants_room(&self) -> bool {
        match self.phase {
            Phase::Waiting => self.is_ready(),
            Phase::Running => self.placed.issuing(),
            Phase::Idle | Phase::Copying | Phase::Down => false,
        }
    }

    fn wants_gpu(&self) -> bool {
        self.phase == Phase::Running || self.is_ready()
    }
}
