//! Child processes: one that lives no longer than its owner, and short ones that are asked something.

use std::io::{self, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, kill_process, kill_process_group};
use rustix::process::{set_parent_process_death_signal, setsid};

use super::text_of;
use crate::clock::wait_for;

/// Longest answer read: lists of at most 60 clients are far shorter.
const ANSWER_MAX: u64 = 64 << 10;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// With exit status 0.
    Well,
    /// With another, or by a signal.
    Badly,
}

/// What a program said, on both of its outputs.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) text: String,
    pub(super) status: Ended,
}

/// Starts a program in a session of its own that gets SIGTERM when its owner dies. The signal comes when the starting
/// *thread* ends, so a thread is kept for it until the returned sender is dropped.
pub(super) fn start_kept(mut command: Command) -> io::Result<(Child, mpsc::Sender<()>, JoinHandle<()>)> {
    let owner = Pid::from_raw(std::process::id().cast_signed());
    let before_exec = move || {
        setsid()?;
        set_parent_process_death_signal(Some(Signal::TERM))?;
        // The owner may have died before the signal was set.
        if getppid() == owner { Ok(()) } else { Err(io::Error::from(io::ErrorKind::BrokenPipe)) }
    };
    // SAFETY: between fork and exec only calls that are safe after a fork may be made; these are plain system calls that
    // neither allocate nor take locks.
    unsafe { command.pre_exec(before_exec) };
    let (started, start) = mpsc::sync_channel(1);
    let (hold, held) = mpsc::channel::<()>();
    let keeper = std::thread::Builder::new().name("mps-keeper".to_owned()).spawn(move || {
        // The receiver waits below.
        let _ = started.send(command.spawn());
        // Nothing is ever sent: this ends when the owner lets go.
        let _ = held.recv();
    })?;
    let child = start.recv().map_err(io::Error::other)??;
    Ok((child, hold, keeper))
}

/// Runs a program to its end, gives it a line on its standard input, and returns what it said; `None` when it took longer
/// than `limit`, and then it is killed. What it says goes through files in `directory`: a pipe that something else holds
/// open would never end.
pub(super) fn converse(
    mut program: Command,
    line: Option<&str>,
    directory: &Path,
    limit: Duration,
) -> io::Result<Option<Answer>> {
    let output = tempfile::tempfile_in(directory)?;
    let stdin = if line.is_some() { Stdio::piped() } else { Stdio::null() };
    // In a process group of its own: Ctrl-C must not cut the exchange.
    program.stdin(stdin).stdout(output.try_clone()?).stderr(output.try_clone()?).process_group(0);
    let mut child = program.spawn()?;
    if let (Some(line), Some(mut stdin)) = (line, child.stdin.take()) {
        // A program that ended without reading says so by its status.
        let _ = writeln!(stdin, "{line}");
    }
    let Some(status) = wait_for(limit, || child.try_wait().transpose()).transpose()? else {
        kill_group(&child);
        child.wait()?;
        return Ok(None);
    };
    let mut output = output;
    output.rewind()?;
    let status = if status.success() { Ended::Well } else { Ended::Badly };
    Ok(Some(Answer { text: text_of(output, ANSWER_MAX), status }))
}

/// Kills a child that leads its process group, and the group.
pub(super) fn kill_group(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended already.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Kills every process whose environment has `variable` set to `value`, and returns how many there were. Processes of
/// other users cannot be looked into, and are not ours.
pub(super) fn kill_marked(variable: &str, value: &Path) -> usize {
    let mark = [variable.as_bytes(), b"=", value.as_os_str().as_encoded_bytes()].concat();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let marked = processes.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<i32>().ok()?;
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let found = environment.split(|&byte| byte == 0).any(|one| one == mark);
        Pid::from_raw(pid).filter(|_| found)
    });
    marked.filter(|&pid| kill_process(pid, Signal::KILL).is_ok()).count()
}
