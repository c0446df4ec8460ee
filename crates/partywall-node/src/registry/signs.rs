//! Signs of a fault, and of life after one, in the pages of processes behind the node's MPS daemon.
//!
//! What a page says is a claim. A process that claims a fault that was none has its neighbours ended for it, which it could have done by
//! a real one as well, and is named for it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use partywall_core::faults::Origin;
use partywall_core::tenant::TenantId;
use partywall_core::units::Nanos;
use partywall_shim_api::page::REQUESTS;
use rustix::event::{EventfdFlags, eventfd};

use super::member::{Connection, Member};
use super::state::State;
use crate::clock;
use crate::tenant::Sign;

/// Signs that wait at most: nobody takes them while the node is busy, and a tenant may have any number of processes in the meantime.
const MAX_SIGNS: usize = 4_096;

/// For how long a process that left with an error still counts as one that was there. A fault ends all clients at once, and some are
/// gone before the node looks at the first of them: who is left then would seem to have been alone.
const LEFT: Nanos = Nanos::from_secs(5);

/// Signs that nobody has taken yet.
#[derive(Debug)]
pub(crate) struct Signs {
    waiting: Vec<(TenantId, Sign)>,
    bell: Arc<OwnedFd>,
    /// Processes that left with an error, and when: the last at the end.
    left: VecDeque<(Nanos, TenantId, Option<u32>)>,
}

/// What of a process was told already.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Shown {
    fault: bool,
    worked: bool,
}

impl Signs {
    pub(crate) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waiting: Vec::new(), bell: Arc::new(bell), left: VecDeque::new() })
    }

    pub(crate) fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }

    fn show(&mut self, id: TenantId, sign: Sign) {
        if self.waiting.len() < MAX_SIGNS && !self.waiting.contains(&(id, sign)) {
            self.waiting.push((id, sign));
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn take(&mut self) -> Vec<(TenantId, Sign)> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut self.waiting)
    }
}

impl State {
    /// Looks at all pages.
    pub(crate) fn look_for_signs(&mut self, now: Nanos) {
        let numbers: Vec<u64> = self.connections.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.look_for_signs_of(number, now));
    }

    /// Looks at the page of one process.
    pub(crate) fn look_for_signs_of(&mut self, number: u64, now: Nanos) {
        let Some(connection) = self.connections.get_mut(&number).filter(|_| self.attaching.is_needed())
        else {
            return;
        };
        let pid = connection.pid_number();
        let Some(member) = connection.member_mut().filter(|member| member.attachment.seen != Some(false))
        else {
            return;
        };
        if !member.shown.fault
            && let Some((code, at)) = fault(member, now)
        {
            member.shown.fault = true;
            self.signs.show(member.tenant, Sign::Fault { pid, code, at });
        } else if !member.shown.worked
            && !member.shown.fault
            && let Some(at) = worked(member, now)
        {
            member.shown.worked = true;
            self.signs.show(member.tenant, Sign::Worked { at });
        }
    }

    pub(crate) fn has_registered(&mut self, id: TenantId) {
        if self.attaching.is_needed() {
            self.signs.show(id, Sign::Registered);
        }
    }

    /// A process is about to be forgotten.
    pub(crate) fn leaves(&mut self, number: u64, now: Nanos) {
        self.look_for_signs_of(number, now);
        let left = &mut self.signs.left;
        while left.front().is_some_and(|(at, ..)| at.saturating_add(LEFT) < now) {
            left.pop_front();
        }
        if let Some(connection) = self.connections.get(&number)
            && let Some(member) = connection.member().filter(|member| member.shown.fault)
        {
            left.push_back((now, member.tenant, connection.pid_number()));
        }
    }

    /// Processes that are clients of the daemon, as far as is known, and those that a fault has just ended.
    pub(crate) fn behind_mps(&self) -> BTreeMap<TenantId, BTreeSet<u32>> {
        let mut tenants: BTreeMap<TenantId, BTreeSet<u32>> = BTreeMap::new();
        if self.attaching.is_needed() {
            let may_be = |connection: &&Connection| {
                connection.member().is_some_and(|member| member.attachment.seen != Some(false))
            };
            for connection in self.connections.values().filter(may_be) {
                let pids = connection.member().map(|member| tenants.entry(member.tenant).or_default());
                pids.into_iter().for_each(|pids| pids.extend(connection.pid_number()));
            }
            let now = clock::now();
            for &(_, id, pid) in self.signs.left.iter().filter(|(at, ..)| at.saturating_add(LEFT) >= now) {
                tenants.entry(id).or_default().extend(pid);
            }
        }
        tenants
    }
}

impl State {
    /// What each process that may be a client of the daemon has launched so far.
    pub(crate) fn launched(&self) -> BTreeMap<TenantId, BTreeMap<u64, u64>> {
        let mut tenants: BTreeMap<TenantId, BTreeMap<u64, u64>> = BTreeMap::new();
        for (&number, connection) in &self.connections {
            if let Some(member) = connection.member().filter(|member| member.attachment.seen != Some(false)) {
                let shim = &member.page.shim;
                let launches = shim.launches.load(Ordering::Relaxed);
                let launched = launches.saturating_add(shim.graph_launches.load(Ordering::Relaxed));
                tenants.entry(member.tenant).or_default().insert(number, launched);
            }
        }
        tenants
    }
}

/// The error that has ended a process's work, and when.
fn fault(member: &Member, now: Nanos) -> Option<(u32, Nanos)> {
    let shim = &member.page.shim;
    let code = shim.fault_code.load(Ordering::Acquire);
    Origin::of_code(code)?;
    let at = Nanos(shim.fault_ns.load(Ordering::Relaxed));
    Some((code, at.clamp(member.since, now.max(member.since))))
}

/// When a process was seen to have done something on the device. Its requests are counted only where the node decides about launches;
/// elsewhere it is the first launch, known to the next look.
fn worked(member: &Member, now: Nanos) -> Option<Nanos> {
    let shim = &member.page.shim;
    let count = shim.requests.count.load(Ordering::Acquire);
    if count > 0 {
        // The oldest that is still there.
        let slot = if count > REQUESTS as u64 { count as usize % REQUESTS } else { 0 };
        let end = shim.requests.times.get(slot).map(|time| Nanos(time.end_ns.load(Ordering::Relaxed)));
        return Some(end.filter(|end| (member.since..=now).contains(end)).unwrap_or(now));
    }
    let launches =
        shim.launches.load(Ordering::Relaxed) > 0 || shim.graph_launches.load(Ordering::Relaxed) > 0;
    // Where launches are decided about, a latency-sensitive process says whether it is at work: then it has to have been drained.
    let active = shim.active.load(Ordering::Relaxed) != 0;
    (launches && !active).then_some(now)
}
