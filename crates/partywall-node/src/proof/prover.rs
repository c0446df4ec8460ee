//! The prover: starts probes and takes them through a proof.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use partywall_core::sm_proof::{Action, Event, Finding, Proof, Subject};
use partywall_core::units::Nanos;
use partywall_driver::mps::{Contact, MpsError};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{MpsPlace, ProbeTask, Report, Said, Seen, Task, Told};
use crate::clock;

/// How long probes may take to be ready: contexts are made, and code is compiled when it is for the first time.
const READY: Nanos = Nanos::from_secs(30);

/// How long a proof may take: more than its steps can, for as many sets as anybody has.
const PROOF: Nanos = Nanos::from_secs(20);

/// How long they may take to end.
const END: Nanos = Nanos::from_secs(5);

/// How long an answer of the MPS daemon is waited for.
const ANSWER: Duration = Duration::from_secs(10);

/// Longest line of a probe, bytes.
const LINE_MAX: usize = 16 << 10;

/// Does what `task` says; `exe` is the program that knows `device meet --probe`.
pub fn run(task: &Task, exe: &Path) -> Report {
    let mut crowd = Crowd { probes: Vec::new(), mps: task.mps.as_ref() };
    let mut held = Nanos::ZERO;
    let found = crowd.start(task, exe).and_then(|()| crowd.prove(task, &mut held));
    let probes = crowd.probes.iter().map(|probe| probe.seen).collect();
    crowd.end();
    let (finding, problem) = match found {
        Ok(finding) => (Some(finding), None),
        Err(problem) => (None, Some(problem)),
    };
    Report { finding, problem, probes, held_ms: held.0 / 1_000_000 }
}

struct Probe {
    child: Child,
    bytes: Vec<u8>,
    seen: Seen,
    /// SMs that it says it has, once it has said so.
    sms: Option<u32>,
}

struct Crowd<'t> {
    probes: Vec<Probe>,
    mps: Option<&'t MpsPlace>,
}

impl Crowd<'_> {
    fn start(&mut self, task: &Task, exe: &Path) -> Result<(), String> {
        if task.probes.len() > 1 && task.mps.is_none() {
            return Err("several sets are only there at the same time under one MPS daemon".to_owned());
        }
        for probe in &task.probes {
            self.probes.push(Probe::start(probe, exe)?);
        }
        let until = clock::now().saturating_add(READY);
        while self.probes.iter().any(|probe| probe.sms.is_none()) {
            if clock::now() >= until {
                return Err(format!("a probe was not ready after {READY}"));
            }
            self.hear(until, &mut |_, _| {})?;
        }
        for (probe, task) in self.probes.iter().zip(&task.probes) {
            // One that is larger finds room for one block more, and is refused for that.
            if probe.sms < Some(task.sms) {
                let has = probe.sms.unwrap_or(0);
                return Err(format!("a process that should have {} SMs is told that it has {has}", task.sms));
            }
        }
        self.are_clients()
    }

    /// Whether all probes are clients of one server. What one outside has on the GPU is set aside while others run.
    fn are_clients(&self) -> Result<(), String> {
        let Some(place) = self.mps else { return Ok(()) };
        let contact = Contact::new(&place.control, &place.folder, ANSWER);
        let lists = || -> Result<Vec<Vec<u32>>, MpsError> {
            contact.server_list()?.into_iter().map(|server| contact.client_list(server)).collect()
        };
        let lists = lists().map_err(|error| error.to_string())?;
        let together =
            |clients: &Vec<u32>| self.probes.iter().all(|probe| clients.contains(&probe.child.id()));
        if lists.iter().any(together) {
            return Ok(());
        }
        Err("the probes are not all clients of the node's MPS daemon".to_owned())
    }

    fn prove(&mut self, task: &Task, held: &mut Nanos) -> Result<Finding, String> {
        let subjects = task.probes.iter().map(|probe| Subject { sms: probe.sms, alone: probe.alone });
        let mut proof = Proof::new(subjects.collect());
        let (since, mut actions, mut wake) = (clock::now(), Vec::new(), Nanos(u64::MAX));
        proof.start(since, &mut actions);
        loop {
            for action in std::mem::take(&mut actions) {
                match action {
                    Action::Fill { probe } => self.tell(probe, Told::Fill)?,
                    Action::More { probe } => self.tell(probe, Told::More)?,
                    Action::Release { probe } => self.tell(probe, Told::Release)?,
                    Action::WakeAt(at) => wake = at,
                    Action::Conclude(finding) => {
                        *held = clock::now().saturating_sub(since);
                        return Ok(finding);
                    }
                }
            }
            if clock::now() >= since.saturating_add(PROOF) {
                return Err(format!("the sets were not through after {PROOF}"));
            }
            let mut events = Vec::new();
            self.hear(wake.min(since.saturating_add(PROOF)), &mut |probe, said| match *said {
                Said::Counted { there, more } => events.push(Event::Counted { probe, there, more }),
                Said::Empty => events.push(Event::Empty { probe }),
                Said::Ready { .. } | Said::Failed { .. } => {}
            })?;
            events.into_iter().for_each(|event| proof.step(clock::now(), event, &mut actions));
            if clock::now() >= wake {
                wake = Nanos(u64::MAX);
                proof.step(clock::now(), Event::Time, &mut actions);
            }
        }
    }

    fn tell(&mut self, probe: usize, told: Told) -> Result<(), String> {
        let stdin = self.probes.get_mut(probe).and_then(|probe| probe.child.stdin.as_mut());
        let line = serde_json::to_vec(&told).map_err(|error| error.to_string())?;
        let written = stdin.map(|stdin| stdin.write_all(&[&line[..], b"\n"].concat()));
        match written {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(format!("a probe does not listen: {error}")),
            None => Err("there is no such probe".to_owned()),
        }
    }

    /// Waits until some probe says something, or it is time.
    fn hear(&mut self, until: Nanos, each: &mut dyn FnMut(usize, &Said)) -> Result<(), String> {
        let outputs = self.probes.iter().filter_map(|probe| probe.child.stdout.as_ref());
        let mut waiting: Vec<PollFd<'_>> = outputs.map(|output| PollFd::new(output, PollFlags::IN)).collect();
        let wait = until.saturating_sub(clock::now());
        let limit = Timespec {
            tv_sec: i64::try_from(wait.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (wait.0 % 1_000_000_000) as i64,
        };
        // Interrupted: then there is nothing yet.
        let _ = poll(&mut waiting, Some(&limit));
        let ready: Vec<bool> = waiting.iter().map(|output| !output.revents().is_empty()).collect();
        for (number, probe) in self.probes.iter_mut().enumerate() {
            if ready.get(number) != Some(&true) {
                continue;
            }
            for said in probe.read()? {
                match &said {
                    Said::Ready { sms } => probe.sms = Some(*sms),
                    Said::Counted { there, more } => {
                        probe.seen.there = probe.seen.there.max(*there);
                        probe.seen.more |= *more && *there == probe.seen.sms;
                    }
                    Said::Empty => {}
                    Said::Failed { why } => return Err(format!("a probe cannot go on: {why}")),
                }
                each(number, &said);
            }
        }
        Ok(())
    }

    /// Ends the probes: by themselves, or else by force, after the server was told to drop what they have on the GPU.
    fn end(&mut self) {
        self.probes.iter_mut().for_each(|probe| drop(probe.child.stdin.take()));
        let until = clock::now().saturating_add(END);
        for probe in &mut self.probes {
            // Readable at the end: nothing more is said.
            let mut rest = [0; 4096];
            let output = probe.child.stdout.take();
            while let Some(output) = &output
                && clock::now() < until
                && probe.child.try_wait().is_ok_and(|status| status.is_none())
            {
                let wait = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                let _ = poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&wait));
                let _ = rustix::io::read(output, &mut rest);
            }
        }
        for probe in &mut self.probes {
            if probe.child.try_wait().is_ok_and(|status| status.is_none()) {
                if let Some(place) = self.mps {
                    let contact = Contact::new(&place.control, &place.folder, ANSWER);
                    let servers = contact.server_list().unwrap_or_default();
                    // Where it is not its client, or the daemon is too old for that, nothing is lost.
                    for server in servers {
                        let _ = contact.ask(&format!("terminate_client {server} {}", probe.child.id()));
                    }
                }
                let _ = probe.child.kill();
            }
            let _ = probe.child.wait();
        }
    }
}

impl Probe {
    fn start(task: &ProbeTask, exe: &Path) -> Result<Self, String> {
        let mut command = Command::new(exe);
        command.args(["device", "meet", "--probe", &task.sms.to_string()]);
        command.args(task.groups.iter().flat_map(|groups| ["--groups", groups.as_str()]));
        command.envs(&task.env).stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().map_err(|error| format!("cannot start a probe: {error}"))?;
        let seen = Seen { sms: task.sms, ..Seen::default() };
        Ok(Self { child, bytes: Vec::new(), seen, sms: None })
    }

    /// What it has said; called when there is something to read.
    fn read(&mut self) -> Result<Vec<Said>, String> {
        let mut piece = [0; 4096];
        let count = self.child.stdout.as_mut().map_or(Ok(0), |output| output.read(&mut piece));
        match count {
            Ok(0) => return Err("a probe has ended before it was told to".to_owned()),
            Ok(count) => self.bytes.extend_from_slice(&piece[..count]),
            Err(error) => return Err(format!("a probe cannot be heard: {error}")),
        }
        let mut said = Vec::new();
        while let Some(end) = self.bytes.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.bytes.drain(..=end).collect();
            said.push(
                serde_json::from_slice(&line)
                    .map_err(|error| format!("a probe says what makes no sense: {error}"))?,
            );
        }
        if self.bytes.len() > LINE_MAX {
            return Err("a probe says more than makes sense".to_owned());
        }
        Ok(said)
    }
}
