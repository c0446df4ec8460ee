//! How large contexts are: what the driver shows for a process less what its shim counts.
//!
//! Both change while one looks, and not at the same moment. So a reading only counts when the shim's number was the same before and
//! after, and only what two such readings agree on is taken.
//!
//! A context grows while its program runs, and nobody asks whether it may. So room for some growth is kept in the quota as long as
//! there is any, and counts as the context's: a program that fills its quota finds it full a little earlier, and does not exceed it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use partywall_core::tenant::TenantId;
use partywall_core::units::{Bytes, Nanos};

use super::member::{Connection, Stage};
use super::state::State;
use crate::facts::Contexts;
use crate::leases::{Event, ProcessId};
use crate::watch::{Reading, Watcher};

/// How often processes are looked at.
const OFTEN: Nanos = Nanos::from_secs(1);

/// And while one of them has not been measured.
const AT_FIRST: Nanos = Nanos::from_millis(250);

/// How long a process has to make its context before the room that is kept for it is given back: `cuInit` and the context are a second
/// apart in a program that loads a framework in between.
const TO_BEGIN: Nanos = Nanos::from_secs(5);

/// Kept for the growth of a context until the next reading. On an H200 programs that filled their quota exceeded it by 8 MiB without this,
/// two of five (PyTorch, November 2026).
const GROWTH: Bytes = Bytes::from_mib(16);

/// Two readings agree when they differ by no more than a page of the device.
const AGREE: u64 = partywall_core::memory_ledger::PAGE.0;

/// Readings in a row with a debt until the tenant is marked: one may have come between a grant and its use.
const IN_DEBT: u32 = 2;

/// Readings in a row that show none of our processes although some hold memory, until they count as those of another namespace.
const FOREIGN: u32 = 3;

/// What is known of the driver's numbers.
#[derive(Debug)]
pub(crate) struct Measuring {
    watcher: Option<Watcher>,
    /// What a context takes, until one was measured.
    pub(crate) estimate: Bytes,
    last: Option<(Nanos, Reading)>,
    problem: Option<String>,
    foreign: u32,
    next: Nanos,
}

impl Measuring {
    pub(crate) fn new(watcher: Option<Watcher>, first: Result<Reading, String>, estimate: Bytes) -> Self {
        let now = crate::clock::now();
        let problem = first.as_ref().err().cloned();
        Self {
            watcher,
            estimate,
            last: first.ok().map(|reading| (now, reading)),
            problem,
            foreign: 0,
            next: now,
        }
    }

    /// Readable when the driver has answered.
    pub(crate) fn bell(&self) -> Option<&OwnedFd> {
        self.watcher.as_ref().map(Watcher::bell)
    }

    /// Where contexts' sizes come from.
    pub(crate) fn source(&self) -> Contexts {
        match &self.problem {
            Some(reason) => Contexts::Estimated { reason: reason.clone() },
            None if self.foreign >= FOREIGN => Contexts::Estimated {
                reason: "the driver shows processes by the ids of another namespace; run the node in the namespace of the host".to_owned(),
            },
            None => Contexts::Measured,
        }
    }

    /// What the driver showed for a process a moment ago.
    pub(crate) fn shown(&self, pid: Option<u32>) -> Option<Bytes> {
        let (at, reading) = self.last.as_ref()?;
        let fresh = crate::clock::now().saturating_sub(*at) < OFTEN;
        if fresh { reading.get(&pid?).copied().flatten() } else { None }
    }

    /// There is somebody new.
    pub(crate) fn hurry(&mut self, now: Nanos) {
        self.next = self.next.min(now.saturating_add(AT_FIRST));
    }
}

impl State {
    /// Asks the driver when it is time.
    pub(crate) fn measure(&mut self, now: Nanos) {
        let somebody = self.connections.values().any(|connection| connection.member().is_some());
        let Some(watcher) = self.measuring.watcher.as_mut().filter(|watcher| !watcher.is_asked()) else {
            return;
        };
        if !somebody || now < self.measuring.next {
            return;
        }
        for member in self.connections.values_mut().filter_map(Connection::member_mut) {
            member.context.used_when_asked = Some(member.page.shim.memory_bytes.load(Ordering::Acquire));
        }
        watcher.ask();
        let unknown =
            self.connections.values().filter_map(Connection::member).any(|one| !one.context.measured);
        self.measuring.next = now.saturating_add(if unknown { AT_FIRST } else { OFTEN });
    }

    /// The driver has answered.
    pub(crate) fn take_reading(&mut self, now: Nanos) {
        let Some(answer) = self.measuring.watcher.as_mut().and_then(Watcher::take) else { return };
        let reading = match answer {
            Ok(reading) => reading,
            Err(problem) => {
                self.measuring.problem = Some(problem);
                return;
            }
        };
        self.measuring.problem = None;
        let (mut holding, mut seen, mut empty, mut settled) = (false, false, Vec::new(), Vec::new());
        for (&number, connection) in &mut self.connections {
            let (pid, connected) = (connection.pid_number(), connection.socket.is_some());
            let Stage::Member(member) = &mut connection.stage else { continue };
            let shown = pid.and_then(|pid| reading.get(&pid).copied());
            let used = member.page.shim.memory_bytes.load(Ordering::Acquire);
            seen |= shown.is_some();
            holding |= used > 0;
            if shown.is_none() && !connected {
                empty.push(number);
            }
            let still = member.context.used_when_asked.take() == Some(used);
            let young = now.saturating_sub(member.since) < TO_BEGIN;
            let rest = match shown {
                // The driver does not tell how much.
                Some(None) => None,
                Some(Some(shown)) => Some(Bytes(shown.0.saturating_sub(used))),
                // One that holds memory is somewhere, so this says nothing.
                None if used > 0 || young => None,
                None => Some(Bytes::ZERO),
            };
            let Some(rest) = rest.filter(|_| still) else { continue };
            let agree =
                member.context.last.replace(rest).is_some_and(|last| last.0.abs_diff(rest.0) <= AGREE);
            if agree {
                member.context.measured = true;
                settled.push((number, member.tenant, rest));
            }
        }
        self.measuring.foreign = if seen || !holding { 0 } else { self.measuring.foreign.saturating_add(1) };
        let trusted = seen || self.measuring.foreign == 0;
        self.measuring.last = Some((now, reading));
        for (number, id, context) in settled {
            self.settle_context(number, id, context, now);
        }
        // They speak no more and hold nothing: they run another program.
        for number in empty.into_iter().filter(|_| trusted) {
            self.gone(number, now);
        }
        self.look_for_debts();
    }

    fn settle_context(&mut self, number: u64, id: TenantId, measured: Bytes, now: Nanos) {
        let process = ProcessId(number);
        let counted = self.leases.held(process).context;
        let room = self.leases.quota(id).0.saturating_sub(self.leases.used(id).0);
        let context = with_growth(measured, counted, Bytes(room));
        if let Some(tenant) = self.tenants.get_mut(&id).filter(|_| context > Bytes::ZERO) {
            tenant.context = Some(context);
            self.measuring.estimate = context;
        }
        if counted != context {
            self.leases.step(now, Event::Context { process, bytes: context }, &mut self.actions);
            self.apply(now);
        }
    }

    fn look_for_debts(&mut self) {
        let mut marks = Vec::new();
        for (&number, connection) in &mut self.connections {
            let Some(member) = connection.member_mut() else { continue };
            let debt = self.leases.held(ProcessId(number)).debt();
            member.context.in_debt =
                if debt > Bytes(AGREE) { member.context.in_debt.saturating_add(1) } else { 0 };
            if member.context.in_debt == IN_DEBT {
                marks.push(member.tenant);
            }
        }
        marks.into_iter().for_each(|id| self.mark(id, "a process held GPU memory that was not counted"));
    }
}

/// What counts for a context of which `counted` counts now, in a quota with this much room.
pub(super) fn with_growth(measured: Bytes, counted: Bytes, room: Bytes) -> Bytes {
    if measured == Bytes::ZERO {
        return measured;
    }
    let wanted = measured.0.saturating_add(GROWTH.0);
    Bytes(wanted.min(counted.0.saturating_add(room.0)).max(measured.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_growth_is_kept_while_there_is_any() {
        let mib = Bytes::from_mib;
        let cases = [
            // None, found, more of it, less of it.
            ((0, 0, 1000), 0),
            ((500, 100, 1000), 516),
            ((504, 516, 1000), 520),
            ((400, 516, 1000), 416),
            // The quota is full: what is kept is used up, and no more is taken, until the context itself does.
            ((504, 516, 0), 516),
            ((516, 516, 0), 516),
            ((530, 516, 0), 530),
            ((504, 516, 2), 518),
        ];
        for ((measured, counted, room), expected) in cases {
            let found = with_growth(mib(measured), mib(counted), mib(room));
            assert_eq!(found, mib(expected), "{measured} measured, {counted} counted, room for {room}");
        }
    }
}
