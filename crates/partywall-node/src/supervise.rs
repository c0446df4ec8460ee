//! One tenant in the hands of the node: which run it is in, who its shepherd is, what is to be done about it and when.
//!
//! ```text
//!            start                    the shepherd ends
//!   Due ───────────────▶ Alive ─────────────────────────▶ over: Due again, or Left
//!                          │  the shepherd was killed        ▲
//!                          └──────────▶ Sweeping ────────────┘ nothing carries its token any more
//! ```
//!
//! After a fault of the GPU that ends several tenants, somebody else decides when they are started: a tenant that is *held* is `Held`
//! once it is over, until it is released or let go.
//!
//! Nothing here waits: [`Tenant::tick`] does what is due, [`Tenant::deadline`] says when the next thing is.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use partywall_core::config::WallChoice;
use partywall_core::restart::{BackOff, Ending, Next};
use partywall_core::units::Nanos;
use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal};

use crate::control::{Activity, TenantReport};
use crate::folder::TenantFolder;
use crate::process::{self, Identity, Table};
use crate::shepherd::status::{self, End, Status};
use crate::state::Kept;
use crate::tenant::TenantFacts;

/// A shepherd that has not ended this long after its tenant's grace is killed itself, and its tenant swept away.
const SHEPHERD_GRACE: Nanos = Nanos::from_secs(5);

/// Between two rounds of sweeping.
const SWEEP_EVERY: Nanos = Nanos::from_millis(20);

/// A tenant that the node keeps.
#[derive(Debug)]
pub(crate) struct Tenant {
    /// What survives the node.
    pub(crate) kept: Kept,
    /// Its folder.
    pub(crate) folder: TenantFolder,
    standing: Standing,
    /// Started again as soon as it has ended, because somebody asked.
    again: bool,
    /// Not started again by its policy: somebody else says when.
    held: bool,
    /// What has happened since it was last asked.
    happened: Vec<Happening>,
}

#[derive(Debug)]
enum Standing {
    /// To be started at this time.
    Due(Nanos),
    /// It has a shepherd.
    Alive(Alive),
    /// Its shepherd was killed; what is left of its processes is being killed, next at this time.
    Sweeping(Nanos),
    /// It has no processes, and somebody else says whether and when it is started.
    Held(Meant),
    /// It has no processes and will have none by itself.
    Left,
}

/// What a held tenant's own policy would do.
#[derive(Debug, Clone, Copy)]
enum Meant {
    /// It was to be started at this time.
    Due(Nanos),
    /// It has ended after so long, and its policy was not asked.
    Ended { ran: Nanos },
}

#[derive(Debug)]
struct Alive {
    shepherd: Identity,
    fd: OwnedFd,
    /// Whether it is a child of this process, which has to take note of its end.
    ours: bool,
    /// Since it was asked to stop: when to stop waiting for it.
    kill_at: Option<Nanos>,
    /// When to ask again, which ends its grace, until it has ended.
    hurry_at: Option<Nanos>,
}

/// How long a tenant has after SIGTERM that a fault of the GPU has ended: all that it had there is lost anyway, and its neighbours
/// cannot start before it has ended.
const FAULT_GRACE: Nanos = Nanos::from_secs(2);

/// How often a shepherd is asked whose tenant is to have no more grace: of two signals that come before it has looked, it sees one.
const HURRY_EVERY: Nanos = Nanos::from_millis(200);

/// Something that others want to know of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A run was started.
    Started,
    /// A run that a node before this one started was found.
    Found,
    /// A run is over, and this comes next.
    Ended {
        /// How it ended.
        end: End,
        /// When it is started again.
        starts_in: Option<Nanos>,
    },
}

impl Tenant {
    /// One that is to be started now.
    pub(crate) fn new(kept: Kept, folder: TenantFolder, now: Nanos) -> Self {
        Self { kept, folder, standing: Standing::Due(now), again: false, held: false, happened: Vec::new() }
    }

    /// One whose command another process, `shepherd`, is about to start. `None` if that is gone.
    pub(crate) fn attended(kept: Kept, folder: TenantFolder, shepherd: Identity) -> Option<Self> {
        let fd = shepherd.open()?;
        let alive = Alive { shepherd, fd, ours: false, kill_at: None, hurry_at: None };
        let kept = Kept { run: 1, shepherd: Some(shepherd), ..kept };
        let happened = vec![Happening::Started];
        Some(Self { kept, folder, standing: Standing::Alive(alive), again: false, held: false, happened })
    }

    /// One that a node before this one kept, during the boot `then`; now it is the boot `boot`.
    pub(crate) fn found(kept: Kept, folder: TenantFolder, then: &str, boot: &str, now: Nanos) -> Self {
        let mut tenant =
            Self { kept, folder, standing: Standing::Left, again: false, held: false, happened: Vec::new() };
        let status = tenant.status().filter(|status| status.boot == boot);
        let known = tenant.kept.shepherd.filter(|_| then == boot);
        let shepherds = status.iter().filter(|status| status.end.is_none()).map(|status| status.shepherd);
        let alive = shepherds.chain(known).find_map(|shepherd| Some((shepherd, shepherd.open()?)));
        if let Some((shepherd, fd)) = alive {
            tenant.kept.run = status.map_or(tenant.kept.run, |status| status.run);
            tenant.kept.end = None;
            tenant.standing =
                Standing::Alive(Alive { shepherd, fd, ours: false, kill_at: None, hurry_at: None });
            tenant.happened.push(Happening::Found);
            if !tenant.kept.wanted {
                tenant.stop(now);
            }
        } else if tenant.kept.run > 0 && tenant.kept.end.is_none() {
            // It ran when the last node was last seen, and does so no more.
            match status.filter(|status| status.run == tenant.kept.run).and_then(|status| status.end) {
                Some(end) => tenant.over(end, now),
                None if then == boot => tenant.standing = Standing::Sweeping(now),
                None => tenant.over(End::Unseen, now),
            }
        } else if tenant.kept.wanted
            && !tenant.kept.kept_out
            && (tenant.kept.run == 0 || tenant.kept.will_restart(now))
        {
            tenant.standing = Standing::Due(now);
        }
        tenant
    }

    /// Whether it is to be started now; then [`Tenant::begin`] and [`Tenant::start`] do so.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        matches!(self.standing, Standing::Due(at) if at <= now)
    }

    /// Notes that the next run begins: what is kept is to be written before [`Tenant::start`].
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.held = false;
        self.kept.run += 1;
        self.kept.started = now;
        self.kept.end = None;
        self.kept.note = None;
        self.kept.shepherd = None;
    }

    /// Starts a shepherd: the program `exe`, which knows `shepherd --folder F --run N`.
    pub(crate) fn start(&mut self, exe: &Path, now: Nanos) {
        let mut command = Command::new(exe);
        command.arg("shepherd").arg("--folder").arg(self.folder.path());
        command.arg("--run").arg(self.kept.run.to_string());
        // Whoever reads the node's output must not wait for tenants that outlive it.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let spawned = command.spawn().and_then(|child| {
            let shepherd = i32::try_from(child.id()).ok().and_then(Identity::of);
            // Ours until we take note of its end, so the number is its own even if it has ended.
            let fd = Pid::from_raw(child.id().cast_signed())
                .map(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()));
            match (shepherd, fd) {
                (Some(shepherd), Some(fd)) => Ok((shepherd, fd?)),
                _ => Err(std::io::Error::other("its process is not to be seen in /proc")),
            }
        });
        match spawned {
            Ok((shepherd, fd)) => {
                self.kept.shepherd = Some(shepherd);
                self.standing =
                    Standing::Alive(Alive { shepherd, fd, ours: true, kill_at: None, hurry_at: None });
                self.happened.push(Happening::Started);
            }
            Err(error) => self.over(End::NoShepherd { error: error.to_string() }, now),
        }
    }

    /// Asks it to end, and not to be started again. Asked a second time, it ends at once.
    pub(crate) fn stop(&mut self, now: Nanos) {
        self.kept.wanted = false;
        self.again = false;
        if let (Standing::Alive(_), true) = (&self.standing, self.kept.attended)
            && let Some(end) = self.status().and_then(|status| status.end)
        {
            // Its attendant still has to say goodbye, maybe to this very node.
            return self.over(end, now);
        }
        match &mut self.standing {
            Standing::Due(_) | Standing::Held(_) => self.standing = Standing::Left,
            Standing::Alive(alive) => alive.ask_to_stop(self.kept.grace, now),
            Standing::Sweeping(_) | Standing::Left => {}
        }
    }

    /// Ends it if it runs, starts it, and forgets how often it failed.
    pub(crate) fn restart(&mut self, now: Nanos) {
        self.kept.wanted = true;
        self.kept.back_off = BackOff::new();
        self.kept.kept_out = false;
        match &mut self.standing {
            Standing::Due(_) | Standing::Held(_) | Standing::Left => self.standing = Standing::Due(now),
            Standing::Sweeping(_) => self.again = true,
            Standing::Alive(alive) => {
                self.again = true;
                if alive.kill_at.is_none() {
                    alive.ask_to_stop(self.kept.grace, now);
                }
            }
        }
    }

    /// From now on [`Tenant::release`], [`Tenant::resume`] or [`Tenant::let_go`] says whether it is started again. Says whether it is over already.
    pub(crate) fn hold(&mut self) -> bool {
        self.held = true;
        if let Standing::Due(at) = self.standing
            && self.kept.wanted
            && self.kept.run > 0
        {
            self.kept.restarts = self.kept.restarts.saturating_sub(1);
            self.standing = Standing::Held(Meant::Due(at));
        }
        !matches!(self.standing, Standing::Alive(_) | Standing::Sweeping(_))
    }

    /// A fault of the GPU has ended its work: it is asked to end, and soon.
    pub(crate) fn end_after_fault(&mut self, now: Nanos) {
        if let Standing::Alive(alive) = &mut self.standing
            && alive.kill_at.is_none()
        {
            alive.ask_to_stop(self.kept.grace, now);
            alive.hurry_at = Some(now.saturating_add(FAULT_GRACE.min(self.kept.grace)));
        }
    }

    /// Starts it at this time, if it is held.
    pub(crate) fn release(&mut self, at: Nanos) {
        self.held = false;
        if matches!(self.standing, Standing::Held(_)) {
            self.kept.restarts += 1;
            self.standing = Standing::Due(at);
        }
    }

    /// Its own policy holds again. If it is held: when that starts it, if at all.
    pub(crate) fn resume(&mut self, now: Nanos) -> Option<Nanos> {
        self.held = false;
        let Standing::Held(meant) = self.standing else { return None };
        let ending = self.kept.end.as_ref().map_or(Ending::Failed, End::ending);
        let next = match meant {
            Meant::Due(at) => Next::StartAt(at.max(now)),
            Meant::Ended { ran } => self.kept.back_off.ended(self.kept.spec.restart, ending, ran, now),
        };
        self.standing = match next {
            Next::StartAt(at) => {
                self.kept.restarts += 1;
                Standing::Due(at)
            }
            Next::Leave => Standing::Left,
        };
        match next {
            Next::StartAt(at) => Some(at),
            Next::Leave => None,
        }
    }

    /// Leaves it as it is, if it is held.
    pub(crate) fn let_go(&mut self) {
        self.held = false;
        if matches!(self.standing, Standing::Held(_)) {
            self.standing = Standing::Left;
        }
    }

    /// Whether it is to be started, now or later.
    pub(crate) fn is_to_start(&self) -> bool {
        matches!(self.standing, Standing::Due(_))
    }

    /// It is not started, for a reason that is not its own.
    pub(crate) fn refuse(&mut self, why: String, now: Nanos) {
        self.kept.wanted = false;
        self.again = false;
        self.kept.started = now;
        self.over(End::NoShepherd { error: why }, now);
    }

    /// What is due by now, but for starting.
    pub(crate) fn tick(&mut self, now: Nanos) {
        match &mut self.standing {
            Standing::Alive(alive) => {
                if alive.hurry_at.is_some_and(|at| at <= now) {
                    let _ = pidfd_send_signal(&alive.fd, Signal::TERM);
                    alive.hurry_at = Some(now.saturating_add(HURRY_EVERY));
                }
                if alive.kill_at.is_some_and(|at| at <= now) {
                    // Its end is seen at the descriptor, and the sweeping begins then.
                    let _ = pidfd_send_signal(&alive.fd, Signal::KILL);
                    alive.kill_at = Some(now.saturating_add(SHEPHERD_GRACE));
                }
            }
            Standing::Sweeping(next) if *next <= now => {
                let own = rustix::process::getpid().as_raw_nonzero().get();
                let left = Table::read().carriers(&self.kept.spec.token, own);
                if left.is_empty() {
                    self.over(End::Unseen, now);
                } else {
                    left.iter().for_each(|process| process::signal(process, Signal::KILL));
                    self.standing = Standing::Sweeping(now.saturating_add(SWEEP_EVERY));
                }
            }
            Standing::Sweeping(_) | Standing::Due(_) | Standing::Held(_) | Standing::Left => {}
        }
    }

    /// When something is due next; `None` while nothing is.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        match &self.standing {
            Standing::Due(at) | Standing::Sweeping(at) => Some(*at),
            Standing::Alive(alive) => alive.hurry_at.into_iter().chain(alive.kill_at).min(),
            Standing::Held(_) | Standing::Left => None,
        }
    }

    /// What becomes readable when its shepherd ends.
    pub(crate) fn fd(&self) -> Option<&OwnedFd> {
        match &self.standing {
            Standing::Alive(alive) => Some(&alive.fd),
            _ => None,
        }
    }

    /// Its shepherd has ended.
    pub(crate) fn shepherd_ended(&mut self, now: Nanos) {
        let Standing::Alive(alive) = &self.standing else { return };
        if alive.ours {
            // So that it does not stay in the process table.
            let _ = rustix::process::waitpid(Pid::from_raw(alive.shepherd.pid), WaitOptions::NOHANG);
        }
        let status = self.status();
        let last = alive.shepherd;
        match status {
            Some(Status { end: Some(end), shepherd, .. }) if shepherd == last => self.over(end, now),
            // Another one, which a node before this one started, was faster.
            Some(Status { end: None, shepherd, run, .. }) if shepherd != last => match shepherd.open() {
                Some(fd) => {
                    self.kept.run = run;
                    self.kept.shepherd = Some(shepherd);
                    self.standing =
                        Standing::Alive(Alive { shepherd, fd, ours: false, kill_at: None, hurry_at: None });
                }
                None => self.standing = Standing::Sweeping(now),
            },
            _ => self.standing = Standing::Sweeping(now),
        }
    }

    /// Its shepherd, while it has one.
    pub(crate) fn shepherd(&self) -> Option<Identity> {
        match &self.standing {
            Standing::Alive(alive) => Some(alive.shepherd),
            _ => None,
        }
    }

    /// What it is doing.
    pub(crate) fn activity(&self) -> Activity {
        match &self.standing {
            Standing::Due(_) | Standing::Held(_) => Activity::Waiting,
            Standing::Alive(alive) if alive.kill_at.is_none() => Activity::Running,
            Standing::Alive(_) | Standing::Sweeping(_) => Activity::Stopping,
            Standing::Left => match &self.kept.end {
                _ if !self.kept.wanted => Activity::Stopped,
                Some(End::Code(0)) => Activity::Finished,
                _ => Activity::Failed,
            },
        }
    }

    /// What has happened since this was last called.
    pub(crate) fn happened(&mut self) -> Vec<Happening> {
        std::mem::take(&mut self.happened)
    }

    /// How it is.
    pub(crate) fn report(&self, wall: WallChoice, facts: TenantFacts, now: Nanos) -> TenantReport {
        let spec = &self.kept.spec;
        let runs = matches!(self.standing, Standing::Alive(_));
        let status = self.status().filter(|status| status.run == self.kept.run);
        let command = status.as_ref().and_then(|status| status.command);
        TenantReport {
            id: spec.id,
            name: spec.name.clone(),
            class: spec.class,
            activity: self.activity(),
            pid: command.filter(|_| runs).map(|command| command.pid),
            running_for_ns: runs.then(|| now.saturating_sub(self.kept.started).0),
            starts_in_ns: match self.standing {
                Standing::Due(at) => Some(at.saturating_sub(now).0),
                _ => None,
            },
            restarts: self.kept.restarts,
            end: self.kept.end.clone(),
            end_text: self.kept.end.as_ref().map(ToString::to_string),
            exit_code: self.kept.end.as_ref().map(End::exit_code),
            memory: spec.memory,
            weight: spec.weight,
            wall,
            share: spec.share,
            sms: spec.sms,
            squeezed_sms: spec.squeezed_sms,
            command: spec.command.clone(),
            log_bytes_lost: status.map_or(0, |status| status.log_bytes_lost),
            faults: self.kept.faults,
            kept_out: self.kept.kept_out,
            note: self.kept.note.clone(),
            last_fault: None,
            facts: TenantFacts { detail: serde_json::Value::Null, ..facts },
        }
    }

    fn status(&self) -> Option<Status> {
        status::read(&self.folder.status())
    }

    /// None of its processes is left.
    fn over(&mut self, end: End, now: Nanos) {
        let ran = now.saturating_sub(self.kept.started);
        self.kept.end = Some(end.clone());
        self.kept.shepherd = None;
        let waits = self.held && !self.again && self.kept.wanted && !self.kept.attended;
        let next = if self.again {
            Next::StartAt(now)
        } else if waits || self.kept.kept_out {
            Next::Leave
        } else if self.kept.wanted && !self.kept.attended {
            self.kept.back_off.ended(self.kept.spec.restart, end.ending(), ran, now)
        } else {
            Next::Leave
        };
        let asked_for = std::mem::take(&mut self.again);
        let mut starts_in = None;
        self.standing = match next {
            Next::StartAt(at) => {
                self.kept.restarts += u32::from(!asked_for);
                starts_in = Some(at.saturating_sub(now));
                Standing::Due(at)
            }
            Next::Leave if waits => Standing::Held(Meant::Ended { ran }),
            Next::Leave => Standing::Left,
        };
        self.happened.push(Happening::Ended { end, starts_in });
    }
}

impl Kept {
    /// Whether a tenant that has ended is to be started again by its policy.
    fn will_restart(&self, now: Nanos) -> bool {
        // Asked of a copy: that it failed was counted when it did.
        let mut back_off = self.back_off;
        let ending = self.end.as_ref().map(End::ending);
        ending
            .is_some_and(|ending| back_off.ended(self.spec.restart, ending, Nanos::ZERO, now) != Next::Leave)
    }
}

impl Alive {
    fn ask_to_stop(&mut self, grace: Nanos, now: Nanos) {
        let _ = pidfd_send_signal(&self.fd, Signal::TERM);
        if self.kill_at.is_some() {
            self.hurry_at = Some(now.saturating_add(HURRY_EVERY));
        }
        self.kill_at = Some(now.saturating_add(grace).saturating_add(SHEPHERD_GRACE));
    }
}
