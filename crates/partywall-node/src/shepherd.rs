//! A shepherd: the parent of one tenant's command, and the one who sees it end.
//!
//! It is a process of its own so that the node can die and come back under running tenants. It is the subreaper of
//! everything the command starts: whoever loses its parent becomes the shepherd's child, so the tree below the shepherd
//! is the tenant, all of it, whatever its processes do with sessions and groups. A run is over when that tree is empty.
//!
//! When the command ends, or somebody asks the shepherd to stop (SIGTERM), what is left of the tree gets SIGTERM and a
//! grace, and then SIGKILL until nothing is left. A second SIGTERM ends the grace.
//!
//! There are two kinds. A *keeper* ([`keep`]) is started by the node, lives in a session of its own and writes the
//! command's output to the tenant's log. An *attendant* ([`attend`]) is `partywall run` itself: the command has the
//! terminal as if the shell had started it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{PipeReader, Read as _};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use partywall_core::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::error::Error;
use crate::folder::{TenantFolder, write_whole};
use crate::log::Log;
use crate::process::{self, Identity, Stat, Table};
use crate::signals::{self, Arrivals};

pub mod status;

use status::{End, StatusFile};

/// How long a tenant has between SIGTERM and SIGKILL unless the user says otherwise: as long as elsewhere.
pub const GRACE: Nanos = Nanos::from_secs(10);

/// Between two rounds of killing: a process that was forked while the table was read is in the next one.
const KILL_EVERY: Nanos = Nanos::from_millis(20);

/// Bytes taken from the command's output before signals are looked at again.
const PUMP_BYTES: usize = 1 << 20;

/// What a keeper is to start: a file, `orders.json`, because a node may be dead by the time a shepherd starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// The directory that it starts in.
    pub directory: PathBuf,
    /// Between SIGTERM and SIGKILL.
    pub grace: Nanos,
}

impl Orders {
    /// Writes them into the tenant's folder.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, folder: &TenantFolder) -> Result<(), Error> {
        let path = folder.orders();
        let text = serde_json::to_vec(self).map_err(|error| Error::file("write", &path)(error.into()))?;
        write_whole(&path, &text)
    }

    /// Reads them.
    ///
    /// # Errors
    /// When there is no such file, or it is not what [`Orders::write`] wrote.
    pub fn read(folder: &TenantFolder) -> Result<Self, Error> {
        let path = folder.orders();
        let text = fs::read(&path).map_err(Error::file("read", &path))?;
        serde_json::from_slice(&text).map_err(|error| Error::file("read", &path)(error.into()))
    }

    fn command(&self) -> Result<Command, Error> {
        let (program, arguments) =
            self.command.split_first().ok_or_else(|| Error::Refused("the command is empty".to_owned()))?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear().envs(&self.env).current_dir(&self.directory);
        Ok(command)
    }
}

/// Starts what the orders in `folder` say as run number `run`, and stays until nothing of it is left.
///
/// # Errors
/// When the tenant has a shepherd already, or its folder cannot be used. That the command cannot be started is no
/// error: it is in the status file.
pub fn keep(folder: &TenantFolder, run: u32) -> Result<End, Error> {
    // Fails only for the leader of a process group, which has a session for itself already or does not want one.
    let _ = rustix::process::setsid();
    signals::survive_file_limits()?;
    let mut shepherd = Shepherd::new(&folder.status(), run, Kind::Keeper)?;
    let orders = Orders::read(folder)?;
    shepherd.grace = orders.grace;
    let (reader, writer) = std::io::pipe().map_err(Error::system("making a pipe"))?;
    rustix::io::ioctl_fionbio(&reader, true).map_err(Error::system("making a pipe"))?;
    // One pipe for both: what was written first is in the log first.
    let both = writer.try_clone().map_err(Error::system("making a pipe"))?;
    let mut command = orders.command()?;
    command.stdin(Stdio::null()).stdout(writer).stderr(both);
    // `kill 0` in a script is for the script, not for its shepherd.
    command.process_group(0);
    shepherd.output = Some(Output { reader: Some(reader), log: Log::open(folder.clone()) });
    let spawned = spawn(command, Some(&orders.directory));
    shepherd.stay(spawned)
}

/// Starts `command` with this process's terminal, as run 1 of the tenant in `folder`, and stays until nothing of it is
/// left. `spare` is a process that is no part of the tenant although this process started it: a private node.
///
/// # Errors
/// As [`keep`].
pub fn attend(
    command: Command,
    folder: &TenantFolder,
    grace: Nanos,
    spare: Option<u32>,
) -> Result<End, Error> {
    let mut shepherd = Shepherd::new(&folder.status(), 1, Kind::Attendant)?;
    shepherd.grace = grace;
    shepherd.spare = spare.and_then(|pid| i32::try_from(pid).ok());
    let spawned = spawn(command, None);
    shepherd.stay(spawned)
}

fn spawn(mut command: Command, directory: Option<&Path>) -> Result<Identity, Error> {
    let program = command.get_program().to_string_lossy().into_owned();
    if let Some(directory) = directory {
        // Otherwise the system says of the program that it does not exist.
        fs::read_dir(directory).map_err(Error::file("start in", directory))?;
    }
    let child = command.spawn().map_err(|error| Error::Start { program: program.clone(), error })?;
    // It is our child and not waited for, so it is in the table, at least as a zombie.
    let pid = i32::try_from(child.id()).ok();
    let found = pid.and_then(Identity::of);
    found.ok_or_else(|| Error::Start { program, error: std::io::ErrorKind::Other.into() })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Keeper,
    Attendant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The command runs.
    Running,
    /// What is left has been asked to end and is killed at this time.
    Ending { kill_at: Nanos },
}

/// The command's output on its way to the log.
struct Output {
    /// `None` once everybody has closed the other end.
    reader: Option<PipeReader>,
    log: Log,
}

struct Shepherd {
    kind: Kind,
    own: Identity,
    status: StatusFile,
    grace: Nanos,
    spare: Option<i32>,
    output: Option<Output>,
    children: Arrivals,
    stops: Vec<Arrivals>,
    keys: Vec<(Signal, Arrivals)>,
}

impl Shepherd {
    fn new(status: &Path, run: u32, kind: Kind) -> Result<Self, Error> {
        let own = Identity::own()
            .ok_or_else(|| Error::Refused("/proc is not there; a shepherd needs it".to_owned()))?;
        rustix::process::set_child_subreaper(Pid::from_raw(own.pid))
            .map_err(Error::system("becoming a subreaper"))?;
        let several =
            |signals: &[Signal]| signals.iter().copied().map(Arrivals::of).collect::<Result<Vec<_>, _>>();
        let keys = [Signal::INT, Signal::QUIT];
        Ok(Self {
            kind,
            own,
            status: StatusFile::take(status, run, own)?,
            grace: GRACE,
            spare: None,
            output: None,
            children: Arrivals::of(Signal::CHILD)?,
            stops: several(&[Signal::TERM, Signal::HUP])?,
            keys: keys.into_iter().zip(several(&keys)?).collect(),
        })
    }

    /// Until nothing is left of what was started.
    fn stay(mut self, spawned: Result<Identity, Error>) -> Result<End, Error> {
        let command = match spawned {
            Ok(command) => command,
            Err(error) => {
                if let Some(output) = &mut self.output {
                    output.log.write(format!("[partywall: {error}]\n").as_bytes());
                }
                return self.end(End::not_started(&error));
            }
        };
        // The run goes on although the disk is full: the node finds the command below the shepherd anyway.
        let _ = self.status.update(|status| status.command = Some(command));
        let mut phase = Phase::Running;
        let mut ended = None;
        loop {
            ended = ended.or_else(|| reap(command.pid));
            if ended.is_some() && phase == Phase::Running {
                phase = self.stop();
            }
            let mut wait = None;
            if let Phase::Ending { kill_at } = phase {
                let left = self.left();
                if let (Some(end), true) = (&ended, left.is_empty()) {
                    return self.end(end.clone());
                }
                let now = clock::now();
                if now >= kill_at {
                    left.iter().for_each(|process| process::signal(process, Signal::KILL));
                }
                wait = Some(kill_at.saturating_sub(now).max(KILL_EVERY));
            }
            self.wait(wait)?;
            self.children.take();
            self.pump();
            if self.stops.iter_mut().fold(false, |any, stop| stop.take() | any) {
                phase = match phase {
                    Phase::Running => self.stop(),
                    Phase::Ending { .. } => Phase::Ending { kill_at: Nanos::ZERO },
                };
            }
            self.pass_keys_on(&command);
        }
    }

    /// Asks everything that is left to end.
    fn stop(&self) -> Phase {
        let left = self.left();
        left.iter().for_each(|process| process::signal(process, Signal::TERM));
        // A stopped process would not hear it.
        left.iter().for_each(|process| process::signal(process, Signal::CONT));
        Phase::Ending { kill_at: clock::now().saturating_add(self.grace) }
    }

    /// Everything below this process but what is spared.
    fn left(&self) -> Vec<Identity> {
        let table = Table::read();
        let spared = table.descendants(self.spare);
        let mut left = table.descendants([self.own.pid]);
        left.retain(|process| Some(process.pid) != self.spare && !spared.contains(process));
        left
    }

    /// Until something happens, at most `limit`.
    fn wait(&self, limit: Option<Nanos>) -> Result<(), Error> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (limit.0 % 1_000_000_000) as i64,
        });
        let mut waiting = vec![PollFd::new(&self.children, PollFlags::IN)];
        waiting.extend(self.stops.iter().map(|stop| PollFd::new(stop, PollFlags::IN)));
        waiting.extend(self.keys.iter().map(|(_, key)| PollFd::new(key, PollFlags::IN)));
        let reader = self.output.as_ref().and_then(|output| output.reader.as_ref());
        waiting.extend(reader.map(|reader| PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)));
        match poll(&mut waiting, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::system("waiting")(errno)),
        }
    }

    /// What the command has written, to the log. `true` while there may be more.
    fn pump(&mut self) -> bool {
        let Some(output) = &mut self.output else { return false };
        let Some(reader) = &mut output.reader else { return false };
        let lost = output.log.lost();
        let mut buffer = [0; 16 << 10];
        let mut taken = 0;
        while taken < PUMP_BYTES {
            match reader.read(&mut buffer) {
                Ok(0) => {
                    output.reader = None;
                    break;
                }
                Ok(count) => {
                    output.log.write(&buffer[..count]);
                    taken += count;
                }
                Err(_) => break,
            }
        }
        let now_lost = output.log.lost();
        if now_lost != lost {
            // Where even this cannot be written, the file still says what it said before.
            let _ = self.status.update(|status| status.log_bytes_lost = now_lost);
        }
        taken >= PUMP_BYTES
    }

    /// What the terminal's keys send is sent to the command by the terminal itself; what others send to this process
    /// only was meant for the command.
    fn pass_keys_on(&mut self, command: &Identity) {
        let from_terminal = self.kind == Kind::Attendant
            && Stat::of(self.own.pid).is_some_and(|own| own.terminal != 0 && own.foreground == own.group);
        for (signal, key) in &mut self.keys {
            if key.take() && !from_terminal {
                process::signal(command, *signal);
            }
        }
    }

    fn end(mut self, end: End) -> Result<End, Error> {
        // All writers are gone, or were never part of the tenant.
        while self.pump() {}
        // Written in place, so this works on a full disk too; and whoever waits for this process has the end anyway.
        let _ = self.status.update(|status| status.end = Some(end.clone()));
        Ok(end)
    }
}

/// Takes note of every child that has ended; how `command` did, if it is among them.
fn reap(command: i32) -> Option<End> {
    let mut end = None;
    while let Ok(Some((pid, how))) = rustix::process::wait(WaitOptions::NOHANG) {
        if pid.as_raw_nonzero().get() == command {
            end = Some(how_it_ended(how));
        }
    }
    end
}

fn how_it_ended(how: WaitStatus) -> End {
    match (how.exit_status(), how.terminating_signal()) {
        (Some(code), _) => End::Code(u8::try_from(code).unwrap_or(u8::MAX)),
        (None, Some(signal)) => End::Signal(signal),
        (None, None) => End::Unseen,
    }
}
