//! What the node does about a fault in a client of its MPS daemon: it tells core's decider what it sees, and does what that says.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use partywall_core::faults::{Action, Client, Event, Faults, Left, Report, Server, Verdict};
use partywall_core::restart::Ending;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;
use partywall_driver::mps::{Contact, MpsError, ServerStatus};

use super::Node;
use crate::control::{FaultReport, ServerSaid};
use crate::folder::{FAULT_REPORTED, Folder, write_whole};
use crate::shepherd::status::End;
use crate::supervise::Tenant;
use crate::tenant::{FaultFacts, Sign};
use crate::walls::server_log::ServerLog;
use crate::watch::Watcher;

/// How long the control program may think about each of two questions: together less than the decider waits.
const ANSWER_LIMIT: Duration = Duration::from_millis(900);

/// Tenants that are gone and may yet turn out to have caused a fault: their processes' last words come after their end.
const DEPARTED: usize = 32;

/// What is known of faults.
#[derive(Debug)]
pub(super) struct Recovery {
    decider: Faults,
    log: ServerLog,
    /// The MPS daemon, where the wall takes one.
    daemon: Option<Contact>,
    /// The thread that asks it how its server is; there from the first time on.
    asking: Option<Watcher<Server>>,
    /// What processes had launched when the fault was reported.
    launched: BTreeMap<TenantId, BTreeMap<u64, u64>>,
    /// Processes that are looked for in the log, and whose they are.
    pids: BTreeMap<u32, TenantId>,
    last: Option<Last>,
    facts: FaultFacts,
    departed: VecDeque<(TenantId, String, Class)>,
}

/// The last fault.
#[derive(Debug)]
struct Last {
    number: u64,
    at: Nanos,
    /// The culprit's name, if it is known.
    verdict: Option<(Verdict, Option<String>)>,
    involved: BTreeSet<TenantId>,
    told: BTreeMap<String, BTreeSet<u32>>,
    /// When each was first told.
    told_at: BTreeMap<String, Nanos>,
    server: Option<ServerSaid>,
    recover: Option<Nanos>,
}

impl Last {
    fn new(number: u64, at: Nanos) -> Self {
        let (involved, told, told_at) = Default::default();
        Self { number, at, verdict: None, involved, told, told_at, server: None, recover: None }
    }
}

impl Recovery {
    /// `daemon` is the one whose clients tenants are, if there is one.
    pub(super) fn new(folder: &Folder, daemon: Option<Contact>) -> Self {
        Self {
            decider: Faults::new(),
            log: ServerLog::of(&folder.mps()),
            daemon: daemon.map(|daemon| daemon.within(ANSWER_LIMIT)),
            asking: None,
            launched: BTreeMap::new(),
            pids: BTreeMap::new(),
            last: None,
            facts: FaultFacts::default(),
            departed: VecDeque::new(),
        }
    }

    pub(super) fn deadline(&self) -> Option<Nanos> {
        self.decider.deadline()
    }

    /// Readable when the MPS daemon has answered.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.asking.as_ref().map(|asking| asking.bell().as_fd())
    }

    /// Whether the MPS server takes nobody now.
    pub(super) fn is_closed(&self) -> bool {
        self.decider.is_closed()
    }

    /// The last fault, as far as it concerned this tenant.
    pub(super) fn report(&self, id: TenantId, now: Nanos) -> Option<FaultReport> {
        let last = self.last.as_ref().filter(|last| last.involved.contains(&id))?;
        Some(FaultReport {
            number: last.number,
            ago_ns: now.saturating_sub(last.at).0,
            culprit: last.verdict.as_ref().and_then(|(_, name)| name.clone()),
            evidence: last.verdict.as_ref().map(|(verdict, _)| verdict.evidence),
            told: last.told.clone(),
            told_after_ns: last
                .told_at
                .iter()
                .map(|(name, at)| (name.clone(), at.saturating_sub(last.at).0))
                .collect(),
            server: last.server,
            recover_ns: last.recover.map(|time| time.0),
        })
    }
}

impl Node<'_> {
    /// What processes show, and what is due.
    pub(super) fn look_for_faults(&mut self, now: Nanos) {
        for (tenant, sign) in self.service.signs() {
            match sign {
                Sign::Fault { pid, code, at } => self.faulted(pid, Report { tenant, code, at }, now),
                Sign::Registered => self.decide(Event::Registered { tenant }, now),
                Sign::Worked { at } => self.decide(Event::Worked { tenant, at }, now),
            }
        }
        let answer = self.recovery.asking.as_mut().and_then(Watcher::take);
        if let Some(answer) = answer {
            self.answered(answer.unwrap_or(Server::Unknown), now);
        }
        if self.recovery.deadline().is_some_and(|at| at <= now) {
            self.look_into_the_log(now);
            self.decide(Event::Time, now);
        }
    }

    fn faulted(&mut self, pid: Option<u32>, report: Report, now: Nanos) {
        let behind = self.service.behind_mps();
        let pids = behind.iter().flat_map(|(&id, pids)| pids.iter().map(move |&pid| (pid, id)));
        self.recovery.pids.extend(pids.chain(pid.map(|pid| (pid, report.tenant))));
        let is_client = |id: TenantId| id == report.tenant || behind.contains_key(&id);
        let mut clients: Vec<Client> = Vec::new();
        for (order, tenant) in (0..).zip(&self.tenants) {
            let (kept, spec) = (&tenant.kept, &tenant.kept.spec);
            if is_client(spec.id) {
                let (restart, attended) = (spec.restart, kept.attended);
                clients.push(Client { tenant: spec.id, class: spec.class, order, restart, attended });
            }
        }
        let departed = self.recovery.departed.iter().find(|(id, ..)| *id == report.tenant);
        let departed = departed.filter(|_| !clients.iter().any(|client| client.tenant == report.tenant));
        let departed = departed.map(|&(tenant, _, class)| {
            let restart = partywall_core::config::Restart::Never;
            Client { tenant, class, order: u32::MAX, restart, attended: true }
        });
        clients.extend(departed);
        self.look_into_the_log(now);
        if !self.recovery.is_closed() {
            self.recovery.launched = self.service.launched();
        }
        self.decide(Event::Reported { report, clients }, now);
        let name = self.name_of(report.tenant);
        if let Some(last) = &mut self.recovery.last {
            last.at = last.at.min(report.at);
            last.told_at.entry(name.clone()).or_insert(report.at);
            last.told.entry(name).or_default().insert(report.code);
        }
    }

    /// Has the MPS server asked how it is. Where that cannot be done, that is the answer.
    fn ask_server(&mut self) -> Option<Event> {
        let recovery = &mut self.recovery;
        // One that has not answered the last question yet has its own to think of.
        recovery.asking.take_if(|asking| asking.is_asked());
        if recovery.asking.is_none() {
            let daemon = recovery.daemon.clone();
            let watcher = daemon.map(|daemon| Watcher::with("server", move || (Ok(state_of(&daemon)), ())));
            recovery.asking = watcher.and_then(Result::ok);
        }
        match &mut recovery.asking {
            Some(asking) => {
                asking.ask();
                None
            }
            None => Some(self.said(Server::Unknown)),
        }
    }

    fn answered(&mut self, server: Server, now: Nanos) {
        let event = self.said(server);
        self.decide(event, now);
    }

    fn said(&mut self, server: Server) -> Event {
        if let Some(last) = &mut self.recovery.last {
            last.server = Some(match server {
                Server::Active => ServerSaid::Active,
                Server::Faulted => ServerSaid::Faulted,
                Server::Unknown => ServerSaid::Nothing,
            });
        }
        let now_launched = self.service.launched();
        let has_gone_on = |tenant: &TenantId| {
            let now = now_launched.get(tenant);
            let more = |(number, before): (&u64, &u64)| now.and_then(|now| now.get(number)) > Some(before);
            self.recovery.launched.get(tenant).is_some_and(|before| before.iter().all(more))
        };
        let went_on = now_launched.keys().copied().filter(has_gone_on).collect();
        Event::Server { server, went_on }
    }

    fn look_into_the_log(&mut self, now: Nanos) {
        let recovery = &self.recovery;
        let named = recovery.log.named(&recovery.pids.keys().copied().collect());
        let tenants: BTreeSet<TenantId> =
            named.iter().filter_map(|pid| recovery.pids.get(pid).copied()).collect();
        tenants.into_iter().for_each(|tenant| self.decide(Event::Logged { tenant }, now));
    }

    /// A run of a tenant is over.
    pub(super) fn has_ended(&mut self, index: usize, now: Nanos) {
        let kept = &self.tenants[index].kept;
        let tenant = kept.spec.id;
        let ending = kept.end.as_ref().map_or(Ending::Failed, End::ending);
        let event = if kept.wanted { Event::Ended { tenant, ending } } else { Event::Gone { tenant } };
        self.decide(event, now);
    }

    /// Somebody has stopped these, and nothing of them runs.
    pub(super) fn have_gone(&mut self, now: Nanos, which: impl Fn(&Tenant) -> bool) {
        let gone: Vec<TenantId> =
            self.tenants.iter().filter(|tenant| which(tenant)).map(|tenant| tenant.kept.spec.id).collect();
        gone.into_iter().for_each(|tenant| self.decide(Event::Gone { tenant }, now));
    }

    /// These are kept no longer.
    pub(super) fn depart(&mut self, gone: &[Tenant]) {
        let now = crate::clock::now();
        for Tenant { kept, .. } in gone {
            let spec = &kept.spec;
            self.decide(Event::Gone { tenant: spec.id }, now);
            self.recovery.facts.caused.remove(&spec.id);
            self.recovery.departed.push_front((spec.id, spec.name.clone(), spec.class));
        }
        self.recovery.departed.truncate(DEPARTED);
    }

    /// Somebody wants these started, whatever they did.
    pub(super) fn readmit(&mut self, names: &[String], now: Nanos) {
        let named = self.tenants.iter().filter(|tenant| names.contains(&tenant.kept.spec.name));
        let named: Vec<TenantId> = named.map(|tenant| tenant.kept.spec.id).collect();
        named.into_iter().for_each(|tenant| self.decide(Event::Readmitted { tenant }, now));
    }

    fn decide(&mut self, event: Event, now: Nanos) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            self.recovery.decider.step(now, event, &mut actions);
            self.unsaved |= !actions.is_empty();
            for action in actions {
                events.extend(self.act(action, now));
            }
        }
    }

    /// Does what was decided; gives what has happened by it.
    fn act(&mut self, action: Action, now: Nanos) -> Option<Event> {
        match action {
            Action::Hold { tenant } => return self.hold(tenant, now),
            Action::Ask => return self.ask_server(),
            Action::Named(verdict) => self.name(verdict),
            Action::Release { tenant } => self.let_be(tenant, now),
            Action::End { tenant } => self.with(tenant, |tenant| tenant.end_after_fault(now)),
            Action::Start { tenant, at } => self.with(tenant, |tenant| tenant.release(at)),
            Action::Leave { tenant, why } => self.leave_tenant(tenant, why),
            Action::KeepOut { tenant } => {
                self.with(tenant, Tenant::let_go);
                let kept = self.by_id(tenant).map(|tenant| &tenant.kept);
                if let Some(text) =
                    kept.and_then(|kept| Some(format!("{}: {}", kept.spec.name, kept.note.as_ref()?)))
                {
                    (self.say)(&text);
                }
            }
            Action::Recovered { took, tenant, .. } => {
                if let Some(last) = &mut self.recovery.last {
                    last.recover = Some(took);
                }
                self.recovery.facts.recover = Some(took);
                self.service.faulted(self.recovery.facts.clone());
                let name = self.name_of(tenant);
                (self.say)(&format!("recovered in {:.1} s: {name} works again", took.as_secs()));
            }
        }
        None
    }

    fn hold(&mut self, id: TenantId, now: Nanos) -> Option<Event> {
        let number = self.recovery.decider.count();
        if self.recovery.facts.faults != number {
            self.recovery.facts.faults = number;
            self.recovery.last = Some(Last::new(number, now));
            (self.say)(FAULT_REPORTED);
        }
        if let Some(last) = &mut self.recovery.last {
            last.involved.insert(id);
        }
        let index = self.tenants.iter().position(|tenant| tenant.kept.spec.id == id);
        let Some(tenant) = index.and_then(|index| self.tenants.get_mut(index)) else {
            return Some(Event::Gone { tenant: id });
        };
        tell_terminal(tenant, FAULT_REPORTED);
        let is_over = tenant.hold();
        let ending = tenant.kept.end.as_ref().map_or(Ending::Failed, End::ending);
        is_over.then_some(Event::Ended { tenant: id, ending })
    }

    /// It is known who it was, or that it cannot be known.
    fn name(&mut self, verdict: Verdict) {
        let culprit = verdict.culprit.map(|id| self.name_of(id));
        self.take_back(&verdict);
        let by = match &culprit {
            Some(name) => format!("the fault of the GPU was {name}'s ({})", verdict.evidence),
            None => format!("whose fault of the GPU it was is not known: {}", verdict.evidence),
        };
        (self.say)(&by);
        if let Some(time) = verdict.apart {
            (self.say)(&format!(
                "whose faults of the GPU follow each other is not sure: best-effort tenants start one by one, {time} after the one before"
            ));
        }
        let recovery = &mut self.recovery;
        recovery.log.skip();
        recovery.pids.clear();
        if verdict.is_contained() {
            recovery.facts.contained += 1;
        } else {
            recovery.facts.recover = None;
        }
        if let Some(id) = verdict.culprit {
            *recovery.facts.caused.entry(id).or_default() += 1;
        }
        let involved = recovery.last.as_mut().map(|last| {
            (last.at, last.verdict) = (verdict.at, Some((verdict, culprit.clone())));
            if verdict.is_contained() {
                last.involved.retain(|id| verdict.culprit == Some(*id));
            }
            last.involved.clone()
        });
        self.service.faulted(self.recovery.facts.clone());
        for tenant in &mut self.tenants {
            let kept = &mut tenant.kept;
            if verdict.culprit == Some(kept.spec.id) {
                kept.faults += 1;
                kept.kept_out |= verdict.kept_out;
            } else if !involved.as_ref().is_some_and(|involved| involved.contains(&kept.spec.id)) {
                continue;
            }
            let own = verdict.culprit == Some(kept.spec.id);
            kept.note = Some(match (own, &culprit) {
                (true, _) if verdict.kept_out => format!(
                    "kept out: it has faulted the GPU again ({}), which ends all its neighbours; `partywall restart {}` starts it all the \
                     same",
                    verdict.evidence, kept.spec.name
                ),
                // It may have processes that are well.
                (true, _) if verdict.is_contained() => {
                    format!("it has faulted the GPU ({})", verdict.evidence)
                }
                (true, _) => format!("ended: it has faulted the GPU ({})", verdict.evidence),
                (false, Some(name)) => {
                    format!("ended by a fault of the GPU that was {name}'s ({})", verdict.evidence)
                }
                (false, None) => {
                    format!("ended by a fault of the GPU; whose is not known: {}", verdict.evidence)
                }
            });
            if let (Some(note), Some(time), Class::BestEffort) =
                (&mut kept.note, verdict.apart, kept.spec.class)
                && !kept.kept_out
            {
                note.push_str(&format!(
                    "; best-effort tenants start one by one, {time} after the one before"
                ));
            }
            if let Some(note) = kept.note.clone() {
                tell_terminal(tenant, &note);
            }
        }
    }

    /// What was said of a fault that seemed to be contained, and was not.
    fn take_back(&mut self, verdict: &Verdict) {
        let recovery = &mut self.recovery;
        let last = recovery.last.as_mut().and_then(|last| last.verdict.take());
        let Some((Verdict { culprit: Some(culprit), .. }, _)) =
            last.filter(|(last, _)| last.fault == verdict.fault)
        else {
            return;
        };
        recovery.facts.contained = recovery.facts.contained.saturating_sub(1);
        if let Some(caused) = recovery.facts.caused.get_mut(&culprit) {
            *caused = caused.saturating_sub(1);
        }
        self.with(culprit, |tenant| tenant.kept.faults = tenant.kept.faults.saturating_sub(1));
    }

    /// A fault has not concerned it, or nobody besides.
    fn let_be(&mut self, id: TenantId, now: Nanos) {
        let culprit = self.recovery.last.as_ref().and_then(|last| last.verdict.as_ref()?.0.culprit);
        let Some(tenant) = self.tenants.iter_mut().find(|tenant| tenant.kept.spec.id == id) else { return };
        if tenant.kept.attended && culprit != Some(id) {
            // Where it cannot be removed, its terminal says too much.
            let _ = std::fs::remove_file(tenant.folder.fault());
        }
        if let Some(at) = tenant.resume(now) {
            let (name, wait) = (tenant.kept.spec.name.clone(), at.saturating_sub(now));
            (self.say)(&format!("{name}: starts again in {wait}"));
        }
    }

    fn leave_tenant(&mut self, id: TenantId, why: Left) {
        let why = match why {
            Left::Never => "not started again, because restart = \"never\"",
            Left::Well => "not started again, because it had ended well",
            // Its terminal has been told, and the others know.
            Left::Attended | Left::Stopped => return self.with(id, Tenant::let_go),
        };
        self.with(id, |tenant| {
            tenant.let_go();
            let note = tenant.kept.note.take();
            tenant.kept.note = Some(note.map_or(why.to_owned(), |note| format!("{note}; {why}")));
        });
        let name = self.name_of(id);
        (self.say)(&format!("{name}: {why}"));
    }

    fn with(&mut self, id: TenantId, act: impl FnOnce(&mut Tenant)) {
        self.tenants.iter_mut().find(|tenant| tenant.kept.spec.id == id).map(act);
    }

    fn by_id(&self, id: TenantId) -> Option<&Tenant> {
        self.tenants.iter().find(|tenant| tenant.kept.spec.id == id)
    }

    fn name_of(&self, id: TenantId) -> String {
        let departed = || self.recovery.departed.iter().find(|(departed, ..)| *departed == id);
        match self.by_id(id) {
            Some(tenant) => tenant.kept.spec.name.clone(),
            None => departed().map_or_else(|| id.to_string(), |(_, name, _)| name.clone()),
        }
    }
}

/// How the daemon's server is; of several, the worst.
fn state_of(daemon: &Contact) -> Server {
    let ask = || -> Result<Vec<ServerStatus>, MpsError> {
        daemon.server_list()?.into_iter().map(|server| daemon.server_status(server)).collect()
    };
    match ask() {
        Ok(states) if states.contains(&ServerStatus::Fault) => Server::Faulted,
        Ok(states) if !states.is_empty() && states.iter().all(|state| *state == ServerStatus::Active) => {
            Server::Active
        }
        _ => Server::Unknown,
    }
}

/// Leaves a line for the `partywall run` that a tenant belongs to, which shows it when the tenant has ended.
fn tell_terminal(tenant: &Tenant, text: &str) {
    if tenant.kept.attended {
        // Where it cannot be written, the node has said it.
        let _ = write_whole(&tenant.folder.fault(), text.as_bytes());
    }
}
