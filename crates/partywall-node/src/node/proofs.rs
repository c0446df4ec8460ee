//! What the node does about SM sets that have not been shown to be their tenants' own: a prover is started for a layout that is new
//! to this MPS daemon, and no tenant of it before that has ended. See [`crate::proof`].

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use partywall_core::config::Restart;
use partywall_core::sm_proof::{Book, Finding, Standing, Subject};
use partywall_core::sm_sets::SmSet;
use partywall_core::tenant::{Baseline, Class, Slo, TenantId};
use partywall_core::units::Nanos;
use rustix::event::{Timespec, poll};
use rustix::process::Signal;

use super::Node;
use super::requests::token;
use crate::clock;
use crate::connection::{Connection, Waiting};
use crate::control::{Activity, Reply};
use crate::error::Error;
use crate::folder::write_whole;
use crate::process::{self, Table};
use crate::proof::{ProbeTask, Report, Task};
use crate::supervise::Tenant;
use crate::tenant::{TenantSpec, Token, default_weight};

/// How long a prover may take: more than it gives itself.
const LIMIT: Nanos = Nanos::from_secs(90);

/// How long probes may take to end when their prover is gone: the blocks that they have on the GPU leave first.
const PROBES_END: Nanos = Nanos::from_secs(5);

/// Longest report of a prover, bytes.
const REPORT_MAX: usize = 1 << 20;

/// What is known of sets, and who is finding out more.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    book: Book,
    running: Option<Running>,
    /// What was last said of each tenant's set.
    told: BTreeMap<TenantId, Option<String>>,
}

/// The tenant whose process a probe is, and what that carries.
type Probe = (TenantId, Token);

/// A prover at work.
#[derive(Debug)]
struct Running {
    prover: Child,
    said: Vec<u8>,
    sets: Vec<SmSet>,
    /// The tenants whose processes its probes are, with what these carry.
    probes: Vec<Probe>,
    until: Nanos,
}

impl Proofs {
    /// What becomes readable when there is news.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.running.as_ref()?.prover.stdout.as_ref()?.as_fd())
    }

    /// When something is due, with these sets in use.
    pub(super) fn deadline(&self, layout: &[SmSet]) -> Option<Nanos> {
        self.running.as_ref().map_or_else(|| self.book.deadline(layout), |running| Some(running.until))
    }

    /// Another MPS daemon: nothing is known any more.
    pub(super) fn forget(&mut self) {
        self.book = Book::default();
    }
}

impl Running {
    /// Takes what was said; whether it has ended.
    fn has_ended(&mut self) -> bool {
        let Some(output) = &mut self.prover.stdout else { return true };
        let mut piece = [0; 4096];
        loop {
            match output.read(&mut piece) {
                Ok(0) => return true,
                Ok(count) if self.said.len() + count <= REPORT_MAX => {
                    self.said.extend_from_slice(&piece[..count]);
                }
                Ok(_) => return true,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
            }
        }
    }

    /// Ends it. Its probes end when they hear no more of it.
    fn end(&mut self) {
        let _ = self.prover.kill();
        let _ = self.prover.wait();
    }
}

impl Node<'_> {
    /// The sets that tenants have.
    pub(super) fn layout(&self) -> Vec<SmSet> {
        let active = self.tenants.iter().filter(|tenant| tenant.activity().is_active());
        active.filter_map(|tenant| tenant.kept.spec.sms).collect()
    }

    /// Whether a tenant cannot be started before something is known of its set.
    pub(super) fn awaits_proof(&self, tenant: &Tenant, layout: &[SmSet]) -> bool {
        let standing = tenant.kept.spec.sms.map(|set| self.proofs.book.standing(set, layout));
        matches!(standing, Some(Standing::Open | Standing::Failed(_)))
            && tenant.activity() == Activity::Waiting
    }

    /// Does what is due about sets.
    pub(super) fn prove(&mut self, now: Nanos) {
        if let Some(mut running) = self.proofs.running.take() {
            if running.has_ended() {
                self.proven(running, now);
            } else if now >= running.until {
                running.end();
                running.said.clear();
                self.proven(running, now);
            } else {
                self.proofs.running = Some(running);
            }
        }
        let layout = self.layout();
        let due = self.proofs.book.due(&layout, now);
        if self.proofs.running.is_none() && !due.is_empty() && self.closing.is_none() {
            let sets: Vec<SmSet> = due.iter().map(|(set, _)| *set).collect();
            if let Err(error) = self.start_prover(due, now) {
                self.proofs.book.unclear(&sets, &error.to_string(), now);
            }
        }
        self.answer_proven();
        self.refuse_failed(now);
        self.tell_standings();
    }

    fn start_prover(&mut self, due: Vec<(SmSet, Subject)>, now: Nanos) -> Result<(), Error> {
        let path = self.settings.folder.proof();
        let (mut tasks, mut probes, mut sets) = (Vec::new(), Vec::new(), Vec::new());
        for (set, subject) in due {
            let (probe, env) = self.probe(set)?;
            probes.push(probe);
            sets.push(set);
            tasks.push(ProbeTask { sms: subject.sms, alone: subject.alone, groups: None, env });
        }
        let started = self.spawn_prover(&Task { mps: self.walls.mps_place(), probes: tasks }, &path);
        match started {
            Ok(prover) => {
                let until = now.saturating_add(LIMIT);
                self.proofs.running = Some(Running { prover, said: Vec::new(), sets, probes, until });
                Ok(())
            }
            Err(error) => {
                probes.into_iter().for_each(|(id, _)| self.service.remove_tenant(id));
                Err(error)
            }
        }
    }

    fn spawn_prover(&self, task: &Task, path: &Path) -> Result<Child, Error> {
        let text = serde_json::to_vec(task).map_err(|error| Error::file("write", path)(error.into()))?;
        write_whole(path, &text)?;
        let mut command = Command::new(&self.settings.exe);
        command.args(["device", "meet", "--task"]).arg(path);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut prover = command.spawn().map_err(Error::system("starting a prover"))?;
        let quiet = prover.stdout.as_ref().map(|output| rustix::io::ioctl_fionbio(output, true));
        if let Some(Err(error)) = quiet {
            let _ = prover.kill();
            let _ = prover.wait();
            return Err(Error::system("listening to a prover")(error));
        }
        Ok(prover)
    }

    /// A tenant that a probe is a process of, confined to a set and with the environment of whoever has it.
    fn probe(&mut self, set: SmSet) -> Result<(Probe, BTreeMap<String, String>), Error> {
        // Latency-sensitive, so that best-effort launches stand back while it is at work, where launches are decided about.
        let class = Class::LatencySensitive;
        let id = self.id();
        let spec = TenantSpec {
            id,
            name: format!("probe-{}", id.0),
            class,
            memory: None,
            weight: default_weight(class),
            command: Vec::new(),
            env: BTreeMap::new(),
            slo: Slo::default(),
            baseline: Baseline::default(),
            restart: Restart::Never,
            share: None,
            sms: Some(set),
            squeezed: None,
            squeezed_sms: None,
            token: token()?,
        };
        let owner = self.tenants.iter().find(|tenant| tenant.kept.spec.sms == Some(set));
        let mut env = owner.map(|tenant| tenant.kept.spec.env.clone()).unwrap_or_default();
        env.extend(self.wall.variables(&spec.token, None));
        env.extend(self.walls.variables(class, None));
        self.service.add_probe(&spec).map_err(|error| Error::Refused(error.to_string()))?;
        Ok(((id, spec.token), env))
    }

    /// A prover has ended.
    fn proven(&mut self, mut running: Running, now: Nanos) {
        let _ = running.prover.wait();
        let _ = fs::remove_file(self.settings.folder.proof());
        running.probes.iter().for_each(|(id, _)| self.service.remove_tenant(*id));
        let report: Option<Report> = serde_json::from_slice(&running.said).ok();
        match report {
            Some(Report { finding: Some(finding), .. }) => {
                self.proofs.book.enter(&running.sets, finding, now);
                if let Finding::Larger { .. } | Finding::Overlap { .. } = finding {
                    (self.say)(&format!("SM sets are not disjoint: {finding:?} of {:?}", running.sets));
                }
            }
            Some(Report { problem: Some(problem), .. }) => {
                self.proofs.book.unclear(&running.sets, &problem, now);
            }
            _ => self.proofs.book.unclear(&running.sets, "the prover ended without a report", now),
        }
    }

    /// Says to those who serve processes what is known of each tenant's set.
    fn tell_standings(&mut self) {
        let layout = self.layout();
        let mut told = BTreeMap::new();
        for tenant in self.tenants.iter().filter(|tenant| tenant.activity().is_active()) {
            let Some(set) = tenant.kept.spec.sms else { continue };
            let problem = match self.proofs.book.standing(set, &layout) {
                Standing::Proven => None,
                Standing::Open => Some("its SMs have not been shown to be its own yet".to_owned()),
                Standing::Unclear(why) => Some(format!("its SMs could not be shown to be its own: {why}")),
                Standing::Failed(why) => Some(format!("its SMs are not its own: {why}")),
            };
            told.insert(tenant.kept.spec.id, problem);
        }
        for (id, problem) in &told {
            if self.proofs.told.get(id) != Some(problem) {
                self.service.sms_problem(*id, problem.clone());
            }
        }
        self.proofs.told = told;
    }

    /// Has an answer wait until something is known of these tenants' sets; the answer, if nothing has to be found out. `new` ones
    /// are forgotten if they are refused.
    pub(super) fn once_proven(
        &self,
        reply: Reply,
        names: Vec<String>,
        new: bool,
        connection: &mut Connection,
    ) -> Option<Reply> {
        let layout = self.layout();
        let is_open = |tenant: &&Tenant| {
            let set = tenant.kept.spec.sms.filter(|_| names.contains(&tenant.kept.spec.name));
            set.is_some_and(|set| self.is_open_or_failed(set, &layout))
        };
        if self.tenants.iter().any(|tenant| is_open(&tenant)) {
            connection.waiting = Some(Waiting::Proven { reply: Box::new(reply), names, new });
            return None;
        }
        Some(reply)
    }

    fn is_open_or_failed(&self, set: SmSet, layout: &[SmSet]) -> bool {
        matches!(self.proofs.book.standing(set, layout), Standing::Open | Standing::Failed(_))
    }

    /// Answers who waits for proofs.
    fn answer_proven(&mut self) {
        let mut connections = std::mem::take(&mut self.connections);
        for connection in &mut connections {
            let Some(Waiting::Proven { reply, names, new }) = &connection.waiting else { continue };
            let layout = self.layout();
            let named = self.tenants.iter().filter(|tenant| names.contains(&tenant.kept.spec.name));
            let placed = named.filter_map(|tenant| Some((&tenant.kept.spec.name, tenant.kept.spec.sms?)));
            let standings: Vec<(&String, SmSet, Standing)> =
                placed.map(|(name, set)| (name, set, self.proofs.book.standing(set, &layout))).collect();
            let failed = standings.iter().find_map(|(name, _, standing)| match standing {
                Standing::Failed(why) => {
                    Some(format!("{name} is not started, because its SMs would not be its own: {why}"))
                }
                _ => None,
            });
            match failed {
                Some(message) => {
                    let sets: Vec<SmSet> = standings.iter().map(|(_, set, _)| *set).collect();
                    if *new {
                        let names = names.clone();
                        self.forget(|tenant| names.contains(&tenant.kept.spec.name));
                        sets.into_iter().for_each(|set| self.proofs.book.forget(set));
                    }
                    connection.reply(&Reply::Refused { message });
                }
                None if standings.iter().any(|(_, _, standing)| *standing == Standing::Open) => {}
                None => {
                    let reply = reply.clone();
                    connection.reply(&reply);
                }
            }
        }
        self.connections.append(&mut connections);
    }

    /// Tenants that were to be started on SMs that are not their own are left; those that run say so in what is told of them.
    fn refuse_failed(&mut self, now: Nanos) {
        let layout = self.layout();
        for tenant in &mut self.tenants {
            let Some(set) = tenant.kept.spec.sms.filter(|_| tenant.activity() == Activity::Waiting) else {
                continue;
            };
            if let Standing::Failed(why) = self.proofs.book.standing(set, &layout) {
                tenant.refuse(format!("not started, because its SMs would not be its own: {why}"), now);
                self.proofs.book.forget(set);
                self.unsaved = true;
            }
        }
    }

    /// Ends the prover, if one is at work, and waits for its probes: the MPS daemon is not to end before its clients.
    pub(super) fn stop_proving(&mut self) {
        if let Some(mut running) = self.proofs.running.take() {
            running.end();
            let own = rustix::process::getpid().as_raw_nonzero().get();
            let until = clock::now().saturating_add(PROBES_END);
            loop {
                let table = Table::read();
                let left: Vec<_> =
                    running.probes.iter().flat_map(|(_, token)| table.carriers(token, own)).collect();
                if left.is_empty() {
                    break;
                }
                if clock::now() >= until {
                    left.iter().for_each(|probe| process::signal(probe, Signal::KILL));
                    break;
                }
                let _ = poll(&mut [], Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 }));
            }
            let _ = fs::remove_file(self.settings.folder.proof());
        }
    }
}
