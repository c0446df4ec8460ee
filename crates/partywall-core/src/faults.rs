//! A fault of the GPU in a client of an MPS daemon: whether it ends all clients, who caused it, who is started again and when, and who is
//! kept out.
//!
//! # Problem
//!
//! A kernel that reads where nothing is ends the work of every client of its MPS daemon. All of them are told that there was a fault, none
//! of them whose it was, and the server takes nobody new until the last of them has exited. Programs may take the error for their
//! own, hang, or try again for ever. Left to themselves they come back in any order, the one that caused it among them.
//!
//! Not every fault is of that kind. After some (a device-side assertion on an H200 with driver 580), the driver tells one process alone, and
//! the server and its other clients go on as if nothing had been: whoever ended them would do the harm that the fault did not.
//!
//! # Approach
//!
//! The first *report* of a fault (a process's driver has returned an error that ends its work) begins a recovery. For a moment, [`SETTLE`],
//! others are given time to report, too: what they were told is evidence ([`evidence`]). Then the *culprit* is named, or it is said
//! why nobody can be; what is left of the clients is ended; and when the last has ended they are started again: latency-sensitive tenants
//! first, each class in the order of the file, best-effort ones once those have registered again or after [`REGISTER_LIMIT`].
//! Each is started once for a fault; when a run ends after that, its own policy says what follows ([`crate::restart`]).
//!
//! A tenant that never is to be started again is not; one that ended well by itself is left as its policy says; one that belongs to
//! somebody's terminal ends with its command.
//!
//! Evidence is sure or not. A sure verdict counts two, another one counts one. A tenant that collects [`KEEP_OUT`] within [`AGAIN`] is *kept out*:
//! it is not started again until somebody asks for it. So the second fault that is surely a tenant's is its last. Reporting first,
//! which is all that there may be, has to happen four times, and keeps out nobody that is latency-sensitive: who polls often hears of
//! others' faults first.
//!
//! A fault is *contained* if one tenant alone has reported by the end of [`SETTLE`], and the MPS server, asked then, says that it is active.
//! Where it does not say within [`ASK_LIMIT`], all others must be seen to have launched more since the report; one that was idle cannot
//! be, and then the fault is taken to be everybody's. After a contained one nobody is ended, not even the culprit, whose other processes
//! may be well; what has ended meanwhile follows its own policy, and so does the culprit when it ends. It counts nothing towards keeping
//! out: that is for those who end others' work. If another tenant reports within [`AFTERMATH`] all the same, it was the same fault,
//! and everybody's.
//!
//! Faults that follow each other closely and do not get anybody kept out must not keep the latency-sensitive tenants restarting: the
//! culprit, or all best-effort tenants where it is not known, wait longer each time ([`BackOff`]).
//!
//! **Suspects.** Where the driver tells all the same, nobody is ever sure to have done it, and a tenant that faults every few seconds would keep all
//! others restarting for ever. So with the second fault within [`AGAIN`] of which nobody is sure ([`SUSPECT`]), best-effort tenants come back *apart*: the
//! latency-sensitive ones first and alone, then one best-effort tenant after the other, those with the least against them first. Before each, those
//! that are there are observed: three times as long as it has taken to a fault, [`OBSERVE_MIN`] to [`OBSERVE_MAX`]. Whoever was let in last when
//! the next fault comes, and reports it, has done it: all others went on without it for longer than it takes. That counts two, since it is not chance twice. If it comes while
//! there are only latency-sensitive tenants, best-effort ones have nothing to do with it, and suspicion begins anew: somebody has to be allowed to compute.
//!
//! The recovery is over with the first good request of a latency-sensitive tenant, or of anybody where there is none: from the
//! first report to that is the time it took.
//!
//! # Scenarios (the tests bear these names)
//!
//! - F1: the culprit is the only one with an error of its own: named, all are ended, then started in the order of class.
//! - F2: a second time within [`AGAIN`]: kept out, the others are started. After longer: not.
//! - F3: everybody reports the same at the same time: unknown, and nobody is ever kept out.
//! - F4: best-effort tenants wait for latency-sensitive ones to register, at most [`REGISTER_LIMIT`].
//! - F5: policies: never, ended well, attended.
//! - F6: a fault while tenants are being started: those that still wait are started once, with the others.
//! - F7: faults in a row that nobody is kept out for: best-effort tenants wait longer, latency-sensitive ones never.
//! - F8: the time is from the first report to the first good request of a latency-sensitive tenant.
//! - F9: somebody stops a tenant in the middle, or one does not end: the others go on.
//! - F10: one is told alone and the server is active: nobody is ended, and nobody is ever kept out for it.
//! - F11: the server does not say: contained only where all others have gone on.
//! - F12: others are told after all: the same fault, which ends all.
//! - F13: a contained fault while tenants wait to be started: they are.
//! - F14: nobody is sure to have done it, twice: best-effort tenants come back apart, and the one after which it happens again is the culprit; the second time it
//!   is kept out.
//! - F15: apart, nothing happens: all are back, each after a time of observation.
//! - F16: it happens with latency-sensitive tenants alone: best-effort ones are not kept waiting for it.

use std::collections::BTreeMap;

use crate::config::Restart;
use crate::restart::{BackOff, Ending, Next, STEADY};
use crate::tenant::{Class, TenantId};
use crate::units::Nanos;

mod event;
pub mod evidence;
mod suspects;
#[cfg(test)]
mod tests;

pub use event::{Action, Client, Event, Left, Server, Verdict};
pub use evidence::{Evidence, Origin, Report};
pub use suspects::{OBSERVE_MAX, OBSERVE_MIN, SUSPECT};
use suspects::{Observed, Unsure};

/// How long reports are waited for after the first. A program that works notices within milliseconds, or when what it waits for is given
/// up (0.37 s after the first on an H200 with driver 580); one that is idle not before its next request, which nobody can wait for.
pub const SETTLE: Nanos = Nanos::from_millis(400);

/// How long the MPS server's word is waited for. Its control program usually answers within a tenth of a second. The status was FAULT 60 ms
/// after the first report on an H200 with driver 580, well before it is asked for.
pub const ASK_LIMIT: Nanos = Nanos::from_secs(2);

/// For so long after a fault was found to be contained, another tenant's report is taken for the same fault: as long as a server that hangs
/// over its end may take. Longer, and faults that have nothing to do with each other would end everybody.
pub const AFTERMATH: Nanos = Nanos::from_secs(2);

/// How long clients are waited for until they have ended. More than the grace that they usually have.
pub const END_LIMIT: Nanos = Nanos::from_secs(30);

/// How long best-effort tenants wait for latency-sensitive ones to register. Loading a framework takes seconds, and what a model
/// then reads from disk is best read before the neighbours begin; a service that does not come back at all should not keep the
/// GPU idle.
pub const REGISTER_LIMIT: Nanos = Nanos::from_secs(15);

/// Faults that lie further apart have nothing to do with each other: a program with a defect that bites every ten minutes is
/// bearable, one that bites more often ends its neighbours all the time.
pub const AGAIN: Nanos = Nanos::from_secs(600);

/// So much evidence keeps a tenant out: two sure verdicts.
pub const KEEP_OUT: u32 = 4;

/// The decider.
#[derive(Debug, Default)]
pub struct Faults {
    faults: u64,
    recovery: Option<Recovery>,
    /// The last fault that was found to be contained.
    contained: Option<Contained>,
    /// What is held against tenants: when, and how much.
    blames: BTreeMap<TenantId, Vec<(Nanos, u32)>>,
    back_off: BackOff,
    /// When tenants were started after the last fault.
    started: Option<Nanos>,
    unsure: Unsure,
}

#[derive(Debug)]
struct Contained {
    culprit: TenantId,
    at: Nanos,
    reports: Vec<Report>,
    until: Nanos,
}

#[derive(Debug)]
struct Recovery {
    /// When the fault was first reported.
    at: Nanos,
    phase: Phase,
    members: Vec<Member>,
    reports: Vec<Report>,
    named: Vec<TenantId>,
    /// What the server says, and who has launched more since the first report.
    server: Option<(Server, Vec<TenantId>)>,
    kept_out: Option<TenantId>,
    /// Who waits before it is started, and until when.
    delay: Option<(Delayed, Nanos)>,
    /// Who was observed when the fault came.
    observed: Option<Observed>,
    /// For how long those that are there are observed before the next suspect is let in; `None`: all are at the same time.
    apart: Option<Nanos>,
    recovered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Reports are collected.
    Settling { until: Nanos },
    /// The MPS server is asked how it is; reports still count.
    Asking { until: Nanos },
    /// Everybody ends.
    Ending { until: Nanos },
    /// Latency-sensitive tenants have been started, best-effort ones have not.
    Starting { until: Nanos },
    /// Suspects are let in one by one.
    Apart {
        /// Who was the last, and whether it has come.
        last: Option<(TenantId, bool)>,
        /// Until when it is waited for, or observed.
        until: Nanos,
    },
    /// All have been started.
    Started,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delayed {
    One(TenantId),
    BestEffort,
}

#[derive(Debug, Clone, Copy)]
struct Member {
    client: Client,
    state: MemberState,
    /// Whether it has been waited for since the fault before.
    before: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MemberState {
    Runs { told: bool },
    Waits,
    Begun { registered: bool },
    Left,
}

impl Faults {
    /// No fault so far.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many faults there were.
    pub fn count(&self) -> u64 {
        self.faults
    }

    /// When [`Event::Time`] is due; `None` while nothing is waited for.
    pub fn deadline(&self) -> Option<Nanos> {
        match self.recovery.as_ref()?.phase {
            Phase::Settling { until }
            | Phase::Asking { until }
            | Phase::Ending { until }
            | Phase::Starting { until }
            | Phase::Apart { until, .. } => Some(until),
            Phase::Started => None,
        }
    }

    /// Whether the MPS server takes nobody, as far as is known: clients that a fault has ended are still there.
    pub fn is_closed(&self) -> bool {
        self.recovery
            .as_ref()
            .is_some_and(|recovery| recovery.is_open() || matches!(recovery.phase, Phase::Ending { .. }))
    }

    /// Something has happened at `now`.
    pub fn step(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Reported { report, clients } => self.reported(now, report, clients, actions),
            Event::Logged { tenant } => {
                if let Some(recovery) = self.open() {
                    recovery.named.push(tenant);
                }
            }
            Event::Server { server, went_on } => {
                let asking = |recovery: &&mut Recovery| matches!(recovery.phase, Phase::Asking { .. });
                if let Some(recovery) = self.open().filter(asking) {
                    recovery.server = Some((server, went_on));
                }
            }
            Event::Ended { tenant, ending } => self.ended(tenant, Some(ending), actions),
            Event::Gone { tenant } => self.ended(tenant, None, actions),
            Event::Registered { tenant } => self.registered(tenant),
            Event::Worked { tenant, at } => self.worked(tenant, at, actions),
            Event::Readmitted { tenant } => drop(self.blames.remove(&tenant)),
            Event::Time => {}
        }
        self.advance(now, actions);
    }

    /// The fault about which nothing is decided yet.
    fn open(&mut self) -> Option<&mut Recovery> {
        self.recovery.as_mut().filter(|recovery| recovery.is_open())
    }

    fn reported(&mut self, now: Nanos, report: Report, clients: Vec<Client>, actions: &mut Vec<Action>) {
        let phase = self.recovery.as_ref().map(|recovery| recovery.phase);
        if matches!(phase, None | Some(Phase::Starting { .. } | Phase::Apart { .. } | Phase::Started)) {
            let same = self.contained.take().filter(|last| now < last.until && last.culprit != report.tenant);
            self.begin(now, same, report.at.min(now), actions);
        }
        let Some(recovery) = &mut self.recovery else { return };
        recovery.admit(clients, actions);
        if recovery.is_open() {
            recovery.reports.push(report);
        } else {
            // It came too late to be of use, and has to go like the others.
            recovery.end(actions);
        }
    }

    /// A fault, after all that was before: tenants that still wait to be started do so now with the others. It may be the `same` that
    /// was thought to be contained.
    fn begin(&mut self, now: Nanos, same: Option<Contained>, at: Nanos, actions: &mut Vec<Action>) {
        self.faults += u64::from(same.is_none());
        let observed = self.recovery.as_ref().and_then(Recovery::observed);
        let before = self.recovery.take().map(|recovery| recovery.members).unwrap_or_default();
        let waiting = before.into_iter().filter(Member::is_held);
        let (at, reports) = same.map_or((at, Vec::new()), |same| (same.at, same.reports));
        self.recovery = Some(Recovery {
            at,
            phase: Phase::Settling { until: now.saturating_add(SETTLE) },
            members: waiting.map(|member| Member { before: true, ..member }).collect(),
            reports,
            named: Vec::new(),
            server: None,
            kept_out: None,
            delay: None,
            observed,
            apart: None,
            recovered: false,
        });
        if let Some(recovery) = &self.recovery {
            actions
                .extend(recovery.members.iter().map(|member| Action::Hold { tenant: member.client.tenant }));
        }
    }

    fn ended(&mut self, tenant: TenantId, ending: Option<Ending>, actions: &mut Vec<Action>) {
        let Some(recovery) = &mut self.recovery else { return };
        let kept_out = recovery.kept_out == Some(tenant);
        let Some(member) = recovery.member(tenant) else { return };
        let why = match (member.state, ending) {
            (MemberState::Left, _) => return,
            (_, None) => Some(Left::Stopped),
            (MemberState::Runs { told }, Some(ending)) => member.client.left(told, ending),
            // A run after the fault: what follows is for its policy, and nobody waits for it.
            (MemberState::Begun { .. }, Some(_)) => {
                member.state = MemberState::Begun { registered: true };
                return;
            }
            (MemberState::Waits, Some(_)) => return,
        };
        let ran = matches!(member.state, MemberState::Runs { .. });
        member.state = if kept_out || why.is_some() { MemberState::Left } else { MemberState::Waits };
        match why {
            Some(Left::Stopped) => {}
            _ if kept_out => actions.push(Action::KeepOut { tenant }),
            Some(why) if ran => actions.push(Action::Leave { tenant, why }),
            _ => {}
        }
    }

    fn registered(&mut self, tenant: TenantId) {
        let member = self.recovery.as_mut().and_then(|recovery| recovery.member(tenant));
        if let Some(Member { state: MemberState::Begun { registered }, .. }) = member {
            *registered = true;
        }
    }

    fn worked(&mut self, tenant: TenantId, at: Nanos, actions: &mut Vec<Action>) {
        self.registered(tenant);
        let fault = self.faults;
        let Some(recovery) = &mut self.recovery else { return };
        let is_ls = |member: &Member| member.client.class == Class::LatencySensitive;
        let there = |member: &&Member| matches!(member.state, MemberState::Begun { .. } | MemberState::Waits);
        let any_ls = recovery.members.iter().filter(there).any(is_ls);
        let Some(member) = recovery.member(tenant) else { return };
        let counts = matches!(member.state, MemberState::Begun { .. }) && (is_ls(member) || !any_ls);
        if counts && !recovery.recovered && at >= recovery.at {
            recovery.recovered = true;
            let took = at.saturating_sub(recovery.at);
            actions.push(Action::Recovered { fault, took, tenant });
        }
    }

    /// What follows from what is known at `now`.
    fn advance(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        if let Some(recovery) = self.open() {
            let is_over = match recovery.phase {
                Phase::Settling { until } if until <= now && recovery.is_to_ask() => {
                    recovery.phase = Phase::Asking { until: now.saturating_add(ASK_LIMIT) };
                    actions.push(Action::Ask);
                    false
                }
                Phase::Settling { until } => until <= now || recovery.is_settled(),
                Phase::Asking { until } => {
                    until <= now || recovery.server.is_some() || recovery.reporter().is_none()
                }
                _ => false,
            };
            if is_over {
                match recovery.contained() {
                    Some(culprit) => self.leave_be(culprit, now, actions),
                    None => self.decide(now, actions),
                }
            }
        }
        let Some(recovery) = &mut self.recovery else { return };
        if let Phase::Ending { until } = recovery.phase
            && (until <= now || !recovery.members.iter().any(Member::runs))
        {
            recovery.phase = Phase::Starting { until: now.saturating_add(REGISTER_LIMIT) };
            self.started = Some(now);
            recovery.start(Class::LatencySensitive, now, actions);
        }
        if let Phase::Starting { until } = recovery.phase
            && (until <= now || recovery.is_first_class_back())
        {
            recovery.phase = recovery.begun(now);
        }
        recovery.let_in_who_is_due(&self.blames, now, actions);
        if recovery.phase == Phase::Started {
            // Also those that had not ended in time, and have now.
            recovery.start(Class::LatencySensitive, now, actions);
            recovery.start(Class::BestEffort, now, actions);
            let left = |member: &Member| member.state == MemberState::Left;
            let nobody = recovery.members.iter().all(left);
            if nobody || (recovery.recovered && !recovery.members.iter().any(Member::is_held)) {
                self.recovery = None;
            }
        }
    }

    /// The fault has ended nothing but the culprit's work: everybody goes on as before.
    fn leave_be(&mut self, culprit: TenantId, now: Nanos, actions: &mut Vec<Action>) {
        let Some(recovery) = &mut self.recovery else { return };
        actions.push(Action::Named(Verdict {
            fault: self.faults,
            at: recovery.at,
            culprit: Some(culprit),
            evidence: Evidence::Contained,
            kept_out: false,
            apart: None,
        }));
        let (at, reports) = (recovery.at, std::mem::take(&mut recovery.reports));
        self.contained = Some(Contained { culprit, at, reports, until: now.saturating_add(AFTERMATH) });
        for member in recovery.members.extract_if(.., |member| !member.before) {
            if member.is_held() {
                actions.push(Action::Release { tenant: member.client.tenant });
            }
        }
        if recovery.members.is_empty() {
            self.recovery = None;
        } else {
            // They have been waiting since the fault before. How long that one took is not asked any more.
            recovery.recovered = true;
            recovery.phase = Phase::Ending { until: now };
        }
    }

    fn decide(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let Some(recovery) = &mut self.recovery else { return };
        let clients: Vec<TenantId> = recovery.members.iter().map(|member| member.client.tenant).collect();
        let (mut culprit, mut evidence) = evidence::weigh(&recovery.reports, &recovery.named, &clients);
        if let Some(Observed::Last(tenant)) = recovery.observed
            && evidence.weight() < Evidence::LetInLast.weight()
            && recovery.reports.iter().any(|report| report.tenant == tenant)
        {
            (culprit, evidence) = (Some(tenant), Evidence::LetInLast);
        }
        let class = culprit.and_then(|tenant| recovery.member(tenant)).map(|member| member.client.class);
        let kept_out = culprit.is_some_and(|tenant| {
            let blames = self.blames.entry(tenant).or_default();
            blames.retain(|(at, _)| now.saturating_sub(*at) < AGAIN);
            blames.push((now, evidence.weight()));
            let sure = blames.iter().any(|(_, weight)| *weight > 1);
            let sum = blames.iter().map(|(_, weight)| weight).sum::<u32>();
            sum >= KEEP_OUT && (sure || class == Some(Class::BestEffort))
        });
        if kept_out {
            culprit.map(|tenant| self.blames.remove(&tenant));
            recovery.kept_out = culprit;
        }
        let ran = self.started.map_or(STEADY, |started| now.saturating_sub(started));
        if kept_out || ran >= STEADY {
            self.back_off = BackOff::new();
        } else if let Next::StartAt(at) =
            self.back_off.ended(Restart::Always, Ending::Failed, Nanos::ZERO, now)
        {
            let sure = culprit.filter(|_| evidence.weight() > 1);
            recovery.delay = Some((sure.map_or(Delayed::BestEffort, Delayed::One), at));
        }
        if kept_out || recovery.observed == Some(Observed::FirstClass) {
            self.unsure.clear();
        } else if evidence.weight() < 2 {
            self.unsure.add(now, self.started);
        }
        recovery.apart = self.unsure.apart(now);
        if recovery.apart.is_some() {
            recovery.delay.take_if(|(who, _)| *who == Delayed::BestEffort);
        }
        let apart = recovery.apart;
        let verdict = Verdict { fault: self.faults, at: recovery.at, culprit, evidence, kept_out, apart };
        actions.push(Action::Named(verdict));
        recovery.phase = Phase::Ending { until: now.saturating_add(END_LIMIT) };
        recovery.end(actions);
        // It may have ended before it was known who it was.
        let kept = recovery.kept_out.and_then(|tenant| recovery.member(tenant));
        if let Some(member) = kept.filter(|member| !member.runs()) {
            let was_left = std::mem::replace(&mut member.state, MemberState::Left) == MemberState::Left;
            if !was_left {
                actions.push(Action::KeepOut { tenant: member.client.tenant });
            }
        }
    }
}

impl Recovery {
    fn member(&mut self, tenant: TenantId) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| member.client.tenant == tenant)
    }

    /// Takes in those that it does not know.
    fn admit(&mut self, clients: Vec<Client>, actions: &mut Vec<Action>) {
        for client in clients {
            if self.member(client.tenant).is_none() {
                let state = MemberState::Runs { told: false };
                self.members.push(Member { client, state, before: false });
                actions.push(Action::Hold { tenant: client.tenant });
            }
        }
        self.members.sort_by_key(|member| member.client.order);
    }

    /// Whether nothing is decided yet.
    fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Settling { .. } | Phase::Asking { .. })
    }

    /// Who has reported, if it is one tenant alone.
    fn reporter(&self) -> Option<TenantId> {
        let first = self.reports.first()?.tenant;
        self.reports.iter().all(|report| report.tenant == first).then_some(first)
    }

    /// Whether it may be that the fault is contained.
    fn is_to_ask(&self) -> bool {
        let may_be_own =
            |report: &Report| matches!(Origin::of_code(report.code), Some(Origin::Own | Origin::Unsaid));
        self.reporter().is_some_and(|tenant| self.named.iter().all(|named| *named == tenant))
            && self.reports.iter().any(may_be_own)
    }

    /// Whose work alone the fault has ended, if it is contained.
    fn contained(&self) -> Option<TenantId> {
        let culprit = self.reporter().filter(|_| self.is_to_ask())?;
        let (server, went_on) = self.server.as_ref()?;
        let mut others =
            self.members.iter().filter(|member| member.client.tenant != culprit && !member.before).peekable();
        let is_contained = match server {
            Server::Active => true,
            Server::Faulted => false,
            Server::Unknown => {
                others.peek().is_some() && others.all(|member| went_on.contains(&member.client.tenant))
            }
        };
        is_contained.then_some(culprit)
    }

    /// Whether nobody is left who could report, and somebody has done more than to pass on what he heard: a tenant may have processes that
    /// report and one that is to do so yet.
    fn is_settled(&self) -> bool {
        let own = |report: &Report| Origin::of_code(report.code) == Some(Origin::Own);
        if self.reporter().is_some() || !self.reports.iter().any(own) {
            return false;
        }
        let reports =
            |member: &Member| self.reports.iter().any(|report| report.tenant == member.client.tenant);
        self.members.iter().all(|member| !member.runs() || reports(member))
    }

    fn end(&mut self, actions: &mut Vec<Action>) {
        for Member { client, state, .. } in &mut self.members {
            if *state == (MemberState::Runs { told: false }) {
                *state = MemberState::Runs { told: true };
                actions.push(Action::End { tenant: client.tenant });
            }
        }
    }

    fn start(&mut self, class: Class, now: Nanos, actions: &mut Vec<Action>) {
        let delay = self.delay;
        let of_class = self.members.iter_mut().filter(|member| member.client.class == class);
        for member in of_class {
            member.start(delay, now, actions);
        }
    }

    fn is_first_class_back(&self) -> bool {
        let first = |member: &&Member| member.client.class == Class::LatencySensitive;
        let is_awaited = |member: &Member| member.state == MemberState::Begun { registered: false };
        !self.members.iter().filter(first).any(is_awaited)
    }
}

impl Member {
    /// Has it started, if it waits for that; when.
    fn start(
        &mut self,
        delay: Option<(Delayed, Nanos)>,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) -> Option<Nanos> {
        if self.state != MemberState::Waits {
            return None;
        }
        self.state = MemberState::Begun { registered: false };
        let Client { tenant, class, .. } = self.client;
        let at = match delay {
            Some((Delayed::One(delayed), at)) if delayed == tenant => at,
            Some((Delayed::BestEffort, at)) if class == Class::BestEffort => at,
            _ => now,
        };
        let at = at.max(now);
        actions.push(Action::Start { tenant, at });
        Some(at)
    }

    fn runs(&self) -> bool {
        matches!(self.state, MemberState::Runs { .. })
    }

    /// Whether it is not started unless this decider says so.
    fn is_held(&self) -> bool {
        matches!(self.state, MemberState::Runs { .. } | MemberState::Waits)
    }
}
