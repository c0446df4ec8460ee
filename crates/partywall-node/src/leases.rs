//! Who of a tenant's processes holds how much of its memory.
//!
//! # Problem
//!
//! A tenant has one quota and many processes, each with a shim that must decide about an allocation within
//! nanoseconds, without asking anybody. And part of what a process takes (its context: code, stacks, what the driver
//! keeps) is decided by the driver, and seen only afterwards.
//!
//! # Approach
//!
//! The node keeps the book of the GPU (`memory_ledger`), and one entry per process in it, the **lease**. A shim
//! allocates within its lease on its own, asks for more before it goes beyond, and gives back what it does not need. So what is
//! leased, not what is used, is held against the quota, and two processes cannot both be promised the last gigabyte.
//!
//! - **Plenty.** While a quarter of what the tenant may have stays free after it, an ask gets what it *wants*: a chunk, so that the
//!   next allocations need no ask. Nearer to the quota it gets what it *needs*, in whole pages, so that chunks that one process does not
//!   use do not keep memory from another.
//! - **Recall.** An ask that does not fit waits while those that share its room are asked to give back what they do not use. They
//!   say in their pages how much that is: an ask that would not fit even then is refused at once. The
//!   others wait for [`RECALL_WAIT`] at most, in the order in which they came.
//! - **Contexts.** What the driver shows for a process beyond what its shim counts is its *context*, and part of its lease. A new process
//!   is leased an estimate for it at once, so that the context finds room in the quota when it is made. When a context turns
//!   out larger, the lease grows with it, as far as there is room; smaller, the shim is asked to give the rest back.
//!   Leases are never made smaller over a shim's head: it may be using all of it this very moment.
//! - **Debt.** Where context and what the shim counts are more than the lease, the tenant holds memory that it was not given. That happens
//!   when a context grows and the quota is full. The debt is shown, and room that becomes free pays it before anybody is granted any.
//!
//! # Terms and units
//!
//! *Room*: what is free for a tenant in the book. A tenant with a guaranteed limit has room of its own; all others share
//! one *pool*, the remainder. *Spare*: what a process says that it does not use of its lease. *Told*: the lease that a shim knows of: the
//! node only speaks when asked, so a lease that grew with its context is ahead of what was told. Sizes are bytes, times
//! nanoseconds of the caller's clock.
//!
//! # Scenarios
//!
//! - S1: with plenty an ask gets what it wants, near the quota exactly the pages that it needs.
//! - S2: an ask waits for what siblings do not use, and gets it when they give it back; who waits is served in order.
//! - S3: an ask that cannot be met is refused at once; one whose siblings do not answer, after the time limit.
//! - S4: a process ends: all it held is free, and who waits gets it.
//! - S5: a context is leased before it exists, and settled when it is measured.
//! - S6: a context beyond the quota is a debt, and paid first.
//! - S7: a process that registers again keeps what it held.
//! - S8: tenants without a guarantee share one pool, and recall from each other.
//! - S9: a tenant that does not fit what is guaranteed or in use already is refused; so is a quota of zero.
//! - S10: answers come in the order of the questions, one for each.

use std::collections::{BTreeMap, VecDeque};

use partywall_core::memory_ledger::{
    self, AllocationId, AllocationPath, Decision, Entitlement, Event as Entry, MemoryLedger, PAGE, Quota,
};
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};

mod event;
#[cfg(test)]
mod tests;

pub use event::{Action, Event, Held};

/// How long an ask waits for siblings to give back. A shim answers within a millisecond unless its process is stopped, and the
/// program behind the ask waits in `cuMemAlloc`.
pub const RECALL_WAIT: Nanos = Nanos::from_secs(1);

/// A process that was asked to give back is not asked again for as long as this, unless it has answered: a tenant that asks in a
/// loop must not fill its siblings' sockets.
const RECALL_AGAIN: Nanos = Nanos::from_millis(100);

/// An ask gets what it wants while this part of what the tenant may have stays free.
const PLENTY: u64 = 4;

/// Questions that a process may have open. A shim asks one at a time; threads that ask at once are a few.
const MAX_OPEN: usize = 64;

/// A process of a tenant, named by the node; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(pub u64);

/// The GPU's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// All of it.
    pub whole: Bytes,
    /// What no tenant gets.
    pub reserve: Bytes,
    /// Whether best-effort limits may exceed what there is; they are not guaranteed then.
    pub overcommit: bool,
}

/// Why a tenant cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Nothing would fit.
    #[error("a memory limit of zero leaves no room for anything; give it at least 1GiB, or no limit")]
    Zero,
    /// What is guaranteed does not fit the GPU.
    #[error(transparent)]
    Guarantees(#[from] memory_ledger::ConfigError),
    /// It would fit, but others use what would be guaranteed to it.
    #[error(
        "tenants without a guarantee hold {held} of the GPU's memory, and only {left} would be left to them; end one of them first"
    )]
    InUse {
        /// What they hold.
        held: Bytes,
        /// What they could have then.
        left: Bytes,
    },
}

/// The book of one GPU, down to processes.
#[derive(Debug, Clone)]
pub struct Leases {
    config: Config,
    ledger: MemoryLedger,
    tenants: BTreeMap<TenantId, Entitlement>,
    processes: BTreeMap<ProcessId, Process>,
    /// Those whose oldest question is an ask that waits, the oldest first.
    waiting: VecDeque<ProcessId>,
}

#[derive(Debug, Clone)]
struct Process {
    tenant: TenantId,
    held: Held,
    told: Bytes,
    recalled: Option<Nanos>,
    questions: VecDeque<Question>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Question {
    Ask { need: Bytes, want: Bytes, until: Nanos },
    Give,
}

impl Leases {
    /// With no tenant yet.
    ///
    /// # Errors
    /// When the reserve is more than there is.
    pub fn new(config: Config) -> Result<Self, AddError> {
        let tenants = BTreeMap::new();
        let ledger = MemoryLedger::new(&book(&config, &tenants))?;
        Ok(Self { config, ledger, tenants, processes: BTreeMap::new(), waiting: VecDeque::new() })
    }

    /// Takes a tenant: `None` for a limit is what is not guaranteed to others.
    ///
    /// # Errors
    /// When what it was promised is not there. Nothing changes then.
    pub fn add_tenant(
        &mut self,
        tenant: TenantId,
        class: Class,
        limit: Option<Bytes>,
    ) -> Result<(), AddError> {
        if limit == Some(Bytes::ZERO) {
            return Err(AddError::Zero);
        }
        // Nobody keeps memory free for a tenant without a limit, whatever its class: that is what the ledger's
        // best-effort remainder is.
        let entitlement = match limit {
            Some(limit) => Entitlement { tenant, class, quota: Quota::Limit(limit) },
            None => Entitlement { tenant, class: Class::BestEffort, quota: Quota::Remainder },
        };
        let mut tenants = self.tenants.clone();
        if tenants.insert(tenant, entitlement).is_some() {
            return Err(memory_ledger::ConfigError::Twice { tenant }.into());
        }
        self.rebuild(tenants)
    }

    /// Forgets a tenant and all its processes; who waits for their memory gets it.
    pub fn remove_tenant(&mut self, now: Nanos, tenant: TenantId, actions: &mut Vec<Action>) {
        let of_tenant =
            |(&process, state): (&ProcessId, &Process)| (state.tenant == tenant).then_some(process);
        let gone: Vec<_> = self.processes.iter().filter_map(of_tenant).collect();
        for process in gone {
            self.forget(process);
        }
        let mut tenants = self.tenants.clone();
        if tenants.remove(&tenant).is_some() && self.rebuild(tenants).is_ok() {
            self.serve(now, actions);
        }
    }

    /// What all processes of a tenant together may hold.
    pub fn quota(&self, tenant: TenantId) -> Bytes {
        self.ledger.total(tenant)
    }

    /// Whether that is kept free for it.
    pub fn is_guaranteed(&self, tenant: TenantId) -> bool {
        self.tenants.get(&tenant).is_some_and(|entitlement| self.has_own_room(entitlement))
    }

    /// What is leased to all processes of a tenant.
    pub fn leased(&self, tenant: TenantId) -> Bytes {
        self.ledger.used(tenant)
    }

    /// What a process has; nothing if there is no such process.
    pub fn held(&self, process: ProcessId) -> Held {
        self.processes.get(&process).map_or(Held::default(), |process| process.held)
    }

    /// What all processes of a tenant say and show that they hold.
    pub fn used(&self, tenant: TenantId) -> Bytes {
        let of_tenant = self.processes.values().filter(|process| process.tenant == tenant);
        Bytes(of_tenant.fold(0, |sum: u64, process| sum.saturating_add(process.held.total().0)))
    }

    /// When [`Event::Time`] is due.
    pub fn deadline(&self) -> Option<Nanos> {
        self.waiting.iter().filter_map(|process| self.processes.get(process)?.ask()).map(|ask| ask.2).min()
    }

    /// Takes in what happened at `now` and appends what follows to `actions`, in the order in which to do it. Events of
    /// a process or a tenant that is not known are ignored.
    pub fn step(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Hello { process, tenant, held, context, measured } => {
                self.hello((process, tenant), held, context, measured);
            }
            Event::Ask { process, need, want } => {
                let until = now.saturating_add(RECALL_WAIT);
                self.question(now, process, Question::Ask { need, want, until }, actions);
            }
            Event::Give { process, bytes } => {
                let Some(state) = self.processes.get(&process) else { return };
                let Held { lease, context, .. } = state.held;
                // What the driver shows cannot be given back.
                let left = lease.0.saturating_sub(bytes.0).max(context.0.min(lease.0));
                self.set_lease(process, Bytes(left));
                self.question(now, process, Question::Give, actions);
            }
            Event::Used { process, bytes } => {
                if let Some(state) = self.processes.get_mut(&process) {
                    state.held.used = bytes;
                }
                return;
            }
            Event::Context { process, bytes } => self.context(now, process, bytes, actions),
            Event::Gone { process } => self.forget(process),
            Event::Time => self.refuse_late(now, actions),
        }
        self.serve(now, actions);
    }

    fn hello(
        &mut self,
        (process, tenant): (ProcessId, TenantId),
        held: Bytes,
        context: Bytes,
        measured: bool,
    ) {
        if !self.tenants.contains_key(&tenant) || self.processes.contains_key(&process) {
            return;
        }
        let state = Process {
            tenant,
            held: Held { used: held, ..Held::default() },
            told: Bytes::ZERO,
            recalled: None,
            questions: VecDeque::new(),
        };
        self.processes.insert(process, state);
        let free = self.ledger.free(tenant);
        let lease = Bytes(held.0.saturating_add(context.0).min(free.0));
        self.set_lease(process, lease);
        if let Some(state) = self.processes.get_mut(&process) {
            // An estimate for which there is no room is no debt: nothing is there yet.
            let room = state.held.lease.0.saturating_sub(held.0);
            state.held.context = if measured { context } else { Bytes(context.0.min(room)) };
            state.told = state.held.lease;
        }
    }

    fn forget(&mut self, process: ProcessId) {
        self.set_lease(process, Bytes::ZERO);
        self.processes.remove(&process);
        self.waiting.retain(|&waiting| waiting != process);
    }

    /// Takes the question at the end of the queue of its process.
    fn question(&mut self, now: Nanos, process: ProcessId, question: Question, actions: &mut Vec<Action>) {
        let Some(state) = self.processes.get_mut(&process) else { return };
        if state.questions.len() >= MAX_OPEN {
            actions.push(Action::Flood { process });
            return;
        }
        state.questions.push_back(question);
        state.recalled = None;
        if state.questions.len() == 1 {
            self.next_question(now, process, actions);
        }
    }

    /// Answers what can be answered, up to an ask that has to wait.
    fn next_question(&mut self, now: Nanos, process: ProcessId, actions: &mut Vec<Action>) {
        while let Some(state) = self.processes.get(&process) {
            let granted = match state.questions.front() {
                None => return,
                Some(Question::Give) => true,
                Some(&Question::Ask { need, want, until }) => {
                    let others_wait = self.waiting.iter().any(|&other| self.share_room(process, other));
                    if !others_wait && self.grant(process, need, want) {
                        true
                    } else if until > now && self.can_wait(process, need) {
                        self.waiting.push_back(process);
                        self.recall(now, process, actions);
                        return;
                    } else {
                        false
                    }
                }
            };
            self.answer(process, granted, actions);
        }
    }

    fn answer(&mut self, process: ProcessId, granted: bool, actions: &mut Vec<Action>) {
        let Some(state) = self.processes.get_mut(&process) else { return };
        state.questions.pop_front();
        state.told = state.held.lease;
        actions.push(Action::Answer { process, total: state.told, granted });
    }

    /// Makes the lease larger by at least `need`, counted from what the shim knows of, if there is room.
    fn grant(&mut self, process: ProcessId, need: Bytes, want: Bytes) -> bool {
        let Some(state) = self.processes.get(&process) else { return false };
        let (lease, ahead) = (state.held.lease, less(state.held.lease, state.told));
        let (need, want) = (less(need, ahead), less(want.max(need), ahead));
        let (free, total) = (self.ledger.free(state.tenant).0, self.ledger.total(state.tenant).0);
        let pages = |bytes: Bytes| bytes.0.checked_next_multiple_of(PAGE.0);
        let chunk =
            pages(want).filter(|&chunk| free.checked_sub(chunk).is_some_and(|left| left >= total / PLENTY));
        // Where the quota is no whole number of pages, its last bytes are still of use.
        let grant = chunk.or_else(|| pages(need).map(|pages| pages.min(free)));
        grant.is_some_and(|grant| {
            grant >= need.0 && self.set_lease(process, Bytes(lease.0.saturating_add(grant)))
        })
    }

    /// Whether an ask would fit if everybody gave back what they say that they do not use.
    fn can_wait(&self, process: ProcessId, need: Bytes) -> bool {
        let Some(state) = self.processes.get(&process) else { return false };
        let need = less(need, less(state.held.lease, state.told));
        let (mut of_tenant, mut of_pool) = (0u64, 0u64);
        for (&other, sibling) in &self.processes {
            if other != process && self.share_room(process, other) {
                of_pool = of_pool.saturating_add(sibling.held.spare().0);
                let own = if sibling.tenant == state.tenant { sibling.held.spare().0 } else { 0 };
                of_tenant = of_tenant.saturating_add(own);
            }
        }
        // A limit of the tenant's own is no larger for what others give back to the pool.
        let limit = less(self.ledger.total(state.tenant), self.ledger.used(state.tenant));
        let free = self.ledger.free(state.tenant);
        need.0 <= free.0.saturating_add(of_pool).min(limit.0.saturating_add(of_tenant))
    }

    fn recall(&mut self, now: Nanos, process: ProcessId, actions: &mut Vec<Action>) {
        let shares = |&other: &ProcessId| other != process && self.share_room(process, other);
        let sharing: Vec<_> = self.processes.keys().copied().filter(shares).collect();
        for other in sharing {
            let Some(state) = self.processes.get_mut(&other) else { continue };
            let lately = state.recalled.is_some_and(|at| now < at.saturating_add(RECALL_AGAIN));
            // Who waits for memory has none to spare.
            if state.held.spare() > Bytes::ZERO && !lately && state.ask().is_none() {
                state.recalled = Some(now);
                actions.push(Action::Recall { process: other });
            }
        }
    }

    fn context(&mut self, now: Nanos, process: ProcessId, bytes: Bytes, actions: &mut Vec<Action>) {
        let Some(state) = self.processes.get_mut(&process) else { return };
        let before = std::mem::replace(&mut state.held.context, bytes);
        if bytes < before {
            state.recalled = Some(now);
            actions.push(Action::Recall { process });
        } else if bytes > before {
            let grown = Bytes(state.held.lease.0.saturating_add(bytes.0 - before.0));
            if !self.set_lease(process, grown) {
                self.pay(process);
            }
            if self.held(process).debt() > Bytes::ZERO {
                self.recall(now, process, actions);
            }
        }
    }

    /// Brings the lease of a process up to what it holds, as far as there is room.
    fn pay(&mut self, process: ProcessId) {
        let Some(state) = self.processes.get(&process) else { return };
        let paid = state.held.debt().min(self.ledger.free(state.tenant));
        let lease = Bytes(state.held.lease.0.saturating_add(paid.0));
        if paid > Bytes::ZERO {
            self.set_lease(process, lease);
        }
    }

    /// Room may have become free: debts first, then who waits, in order; in each room until one does not fit.
    fn serve(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let in_debt =
            |(&process, state): (&ProcessId, &Process)| (state.held.debt() > Bytes::ZERO).then_some(process);
        let debts: Vec<_> = self.processes.iter().filter_map(in_debt).collect();
        for process in debts {
            self.pay(process);
        }
        let (mut stuck, mut answered) = (VecDeque::new(), Vec::new());
        for process in std::mem::take(&mut self.waiting) {
            let Some((need, want, _)) = self.processes.get(&process).and_then(Process::ask) else { continue };
            let behind = stuck.iter().any(|&other| self.share_room(process, other));
            if !behind && self.grant(process, need, want) {
                self.answer(process, true, actions);
                answered.push(process);
            } else if self.can_wait(process, need) {
                stuck.push_back(process);
            } else {
                self.answer(process, false, actions);
                answered.push(process);
            }
        }
        self.waiting = stuck;
        // What they ask next came later than what still waits.
        for process in answered {
            self.next_question(now, process, actions);
        }
    }

    fn refuse_late(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let is_late = |process: &ProcessId| {
            self.processes.get(process).and_then(Process::ask).is_some_and(|ask| ask.2 <= now)
        };
        let late: Vec<_> = self.waiting.iter().copied().filter(is_late).collect();
        self.waiting.retain(|process| !late.contains(process));
        for process in late {
            self.answer(process, false, actions);
            self.next_question(now, process, actions);
        }
    }

    /// Whether what one gives back, the other can have.
    fn share_room(&self, one: ProcessId, other: ProcessId) -> bool {
        let entitlement = |process| self.tenants.get(&self.processes.get(&process)?.tenant);
        let (Some(one), Some(other)) = (entitlement(one), entitlement(other)) else { return false };
        one.tenant == other.tenant || !(self.has_own_room(one) || self.has_own_room(other))
    }

    fn has_own_room(&self, entitlement: &Entitlement) -> bool {
        let limited = matches!(entitlement.quota, Quota::Limit(_));
        limited && (entitlement.class == Class::LatencySensitive || !self.config.overcommit)
    }

    /// Enters a lease in the book in place of the one before; `false`, and nothing changes, if there is no room.
    fn set_lease(&mut self, process: ProcessId, lease: Bytes) -> bool {
        let Some(state) = self.processes.get_mut(&process) else { return false };
        let before = state.held.lease;
        if before > Bytes::ZERO {
            self.ledger.step(Entry::Free { tenant: state.tenant, id: AllocationId(process.0) });
        }
        let entered = enter(&mut self.ledger, state.tenant, process, lease);
        if entered {
            state.held.lease = lease;
        } else {
            enter(&mut self.ledger, state.tenant, process, before);
        }
        entered
    }

    /// The book with other tenants in it, and all leases.
    fn rebuild(&mut self, tenants: BTreeMap<TenantId, Entitlement>) -> Result<(), AddError> {
        let mut ledger = MemoryLedger::new(&book(&self.config, &tenants))?;
        for (&process, state) in &self.processes {
            if !enter(&mut ledger, state.tenant, process, state.held.lease) {
                let pooled = |id: &&TenantId| tenants.get(id).is_some_and(|one| !self.has_own_room(one));
                let held = tenants.keys().filter(pooled).map(|&id| self.ledger.used(id).0).sum();
                let left = Bytes(self.config.whole.0 - self.config.reserve.0 - guaranteed(self, &tenants));
                return Err(AddError::InUse { held: Bytes(held), left });
            }
        }
        (self.ledger, self.tenants) = (ledger, tenants);
        Ok(())
    }
}

impl Process {
    /// The ask that waits: need, want and until when.
    fn ask(&self) -> Option<(Bytes, Bytes, Nanos)> {
        match self.questions.front() {
            Some(&Question::Ask { need, want, until }) => Some((need, want, until)),
            _ => None,
        }
    }
}

fn book(config: &Config, tenants: &BTreeMap<TenantId, Entitlement>) -> memory_ledger::Config {
    memory_ledger::Config {
        whole: config.whole,
        reserve: config.reserve,
        overcommit: config.overcommit,
        tenants: tenants.values().copied().collect(),
    }
}

/// The sum of the guaranteed limits, which a ledger was made with: it fits.
fn guaranteed(leases: &Leases, tenants: &BTreeMap<TenantId, Entitlement>) -> u64 {
    let own = tenants.values().filter(|entitlement| leases.has_own_room(entitlement));
    own.map(|entitlement| match entitlement.quota {
        Quota::Limit(limit) => limit.0,
        Quota::Remainder => 0,
    })
    .sum()
}

/// Enters a lease as it is: leases are made of whole pages already, or measured.
/// Down to zero.
fn less(bytes: Bytes, by: Bytes) -> Bytes {
    Bytes(bytes.0.saturating_sub(by.0))
}

fn enter(ledger: &mut MemoryLedger, tenant: TenantId, process: ProcessId, lease: Bytes) -> bool {
    let id = AllocationId(process.0);
    if lease == Bytes::ZERO {
        return true;
    }
    let path = AllocationPath::ContextOverhead;
    match ledger.step(Entry::Reserve { tenant, id, bytes: lease, path }) {
        Decision::Granted { .. } => ledger.step(Entry::Commit { tenant, id }) == Decision::Committed,
        _ => false,
    }
}
