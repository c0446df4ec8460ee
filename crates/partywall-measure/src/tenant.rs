//! Tenants as child processes, behind a [`Channel`] so that the method can be tested with tenants in memory.
//!
//! A child has a process group of its own: Ctrl-C in the terminal does not reach it (its owner decides), and ending
//! the group ends what it started. It ends by itself when its standard input ends, so it does not outlive its owner
//! whatever happens to that. Whatever it does wrong becomes a [`CellError`] that says what: it ended, it wrote
//! something that is not of the protocol, it said that it failed. That one does not answer is for the method to see.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partywall_core::diagnostic::quoted;
use partywall_core::units::Nanos;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::clock;
use crate::protocol::{Exit, FromTenant, LINE_MAX, Line, ProtocolError, ToTenant};
use crate::record::{CellError, ErrorKind};

/// What of a child's standard error is kept for messages, in bytes.
const STDERR_KEPT: usize = 4096;
/// Messages of children that wait to be heard: a child that says more is made to wait by its full pipe.
const QUEUE: usize = 4096;
/// How long a child may take to end by itself before its group is killed. Freeing 100 GB of GPU memory takes about one
/// second.
const EXIT_PATIENCE: Nanos = Nanos::from_secs(5);
/// How long the rest of a dead child's standard error may take. Only something that left the child's group and still
/// has its pipe makes us wait that long.
const WORDS_PATIENCE: Nanos = Nanos::from_millis(500);
/// How often we look whether a child has ended or we were interrupted.
const LOOK_EVERY: Nanos = Nanos::from_millis(20);

/// A process to start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Launch {
    /// How messages call it.
    pub name: String,
    /// The program and its arguments; not empty.
    pub command: Vec<String>,
    /// Environment variables of ours that it does not get.
    pub unset: Vec<String>,
    /// Environment variables that it gets instead of, or besides, ours.
    pub set: BTreeMap<String, String>,
    /// The folder that it runs in; ours where none is given.
    pub folder: Option<PathBuf>,
}

/// A process that was started; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub u64);

/// A flag that SIGINT, SIGTERM and SIGHUP set from now on, instead of ending us: for [`Processes::new`].
///
/// # Errors
/// Where handlers cannot be installed.
pub fn interruptions() -> std::io::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&interrupted))?;
    }
    Ok(interrupted)
}

/// What was heard.
#[derive(Debug, Clone, PartialEq)]
pub enum Heard {
    /// A process said something.
    Said(ProcessId, Line<FromTenant>),
    /// A process is gone, and why. It says nothing more.
    Lost(ProcessId, CellError),
    /// It is as late as we wanted to wait.
    Time,
    /// Whoever started us wants us to stop.
    Interrupted,
}

/// The way to processes, and their clock.
pub trait Channel {
    /// Now.
    fn now(&self) -> Nanos;

    /// Starts a process.
    ///
    /// # Errors
    /// Where it cannot be started: a message that names the program.
    fn launch(&mut self, launch: &Launch) -> Result<ProcessId, CellError>;

    /// Says something to a process. One that is gone is heard of in [`Channel::hear`].
    fn say(&mut self, process: ProcessId, line: &Line<ToTenant>);

    /// The next thing that happens, at `until` at the latest.
    fn hear(&mut self, until: Nanos) -> Heard;

    /// Ends processes: asks them, and makes them where they do not. Those gone already are left out.
    fn end(&mut self, processes: &[ProcessId]);

    /// Ends a process at once: it does not answer anyway.
    fn kill(&mut self, process: ProcessId);
}

/// Child processes.
#[derive(Debug)]
pub struct Processes {
    next: u64,
    alive: BTreeMap<ProcessId, Process>,
    sender: SyncSender<(ProcessId, Output)>,
    receiver: Receiver<(ProcessId, Output)>,
    interrupted: Arc<AtomicBool>,
}

/// What the thread that reads a child's standard output passes on.
#[derive(Debug)]
enum Output {
    Line(Box<Line<FromTenant>>),
    Rubbish(ProtocolError),
    End,
}

#[derive(Debug)]
struct Process {
    name: String,
    child: Child,
    group: Option<Pid>,
    stdin: Option<ChildStdin>,
    words: Arc<Mutex<VecDeque<u8>>>,
}

impl Processes {
    /// None yet. Setting `interrupted` makes [`Channel::hear`] return.
    pub fn new(interrupted: Arc<AtomicBool>) -> Self {
        let (sender, receiver) = sync_channel(QUEUE);
        Self { next: 0, alive: BTreeMap::new(), sender, receiver, interrupted }
    }

    /// Takes a process whose output has ended or made no sense: ends it, and says why it is gone.
    fn bury(&mut self, id: ProcessId, rubbish: Option<&ProtocolError>) -> Option<CellError> {
        let mut process = self.alive.remove(&id)?;
        if let Some(rubbish) = rubbish {
            process.kill();
            return Some(CellError::new(ErrorKind::Rubbish, format!("{}: {rubbish}", process.name)));
        }
        let ended = process.ended_within(EXIT_PATIENCE);
        let status = process.kill();
        let how = match status {
            Some(status) if ended => describe(status),
            _ => "closed its standard output and did not end".to_owned(),
        };
        Some(CellError::new(ErrorKind::Died, format!("{} {how}{}", process.name, process.last_words())))
    }
}

impl Channel for Processes {
    fn now(&self) -> Nanos {
        clock::now()
    }

    fn launch(&mut self, launch: &Launch) -> Result<ProcessId, CellError> {
        let error = |error: &dyn std::fmt::Display| {
            let program = quoted(launch.command.first().map_or("", String::as_str));
            CellError::new(ErrorKind::Died, format!("{} cannot be started: {program}: {error}", launch.name))
        };
        let (program, arguments) =
            launch.command.split_first().ok_or_else(|| error(&"the command is empty"))?;
        let mut command = Command::new(program);
        command.args(arguments).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in &launch.unset {
            command.env_remove(name);
        }
        command.envs(&launch.set);
        if let Some(folder) = &launch.folder {
            command.current_dir(folder);
        }
        let mut child = command.spawn().map_err(|failed| error(&failed))?;
        self.next += 1;
        let id = ProcessId(self.next);
        let words = Arc::new(Mutex::new(VecDeque::new()));
        // Both were asked for; threads end when the child's pipes do.
        if let Some(stdout) = child.stdout.take() {
            let sender = self.sender.clone();
            std::thread::spawn(move || read_lines(stdout, id, &sender));
        }
        if let Some(stderr) = child.stderr.take() {
            let words = Arc::clone(&words);
            std::thread::spawn(move || keep_words(stderr, &words));
        }
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let stdin = child.stdin.take();
        self.alive.insert(id, Process { name: launch.name.clone(), child, group, stdin, words });
        Ok(id)
    }

    fn say(&mut self, process: ProcessId, line: &Line<ToTenant>) {
        if let Some(stdin) = self.alive.get_mut(&process).and_then(|process| process.stdin.as_mut()) {
            // A child that does not read any more is heard of when its output ends, or when it does not answer.
            let _ = stdin.write_all(line.write().as_bytes());
        }
    }

    fn hear(&mut self, until: Nanos) -> Heard {
        loop {
            if self.interrupted.load(Ordering::Relaxed) {
                return Heard::Interrupted;
            }
            let left = until.saturating_sub(clock::now());
            match self.receiver.recv_timeout(Duration::from_nanos(left.min(LOOK_EVERY).0)) {
                // What is left of a process that was ended.
                Ok((id, _)) if !self.alive.contains_key(&id) => {}
                Ok((id, Output::Line(line))) => return Heard::Said(id, *line),
                Ok((id, Output::Rubbish(rubbish))) => {
                    if let Some(error) = self.bury(id, Some(&rubbish)) {
                        return Heard::Lost(id, error);
                    }
                }
                Ok((id, Output::End)) => {
                    if let Some(error) = self.bury(id, None) {
                        return Heard::Lost(id, error);
                    }
                }
                Err(RecvTimeoutError::Timeout) if left == Nanos::ZERO => return Heard::Time,
                // We hold a sender ourselves, so the channel is never disconnected.
                Err(_) => {}
            }
        }
    }

    fn end(&mut self, processes: &[ProcessId]) {
        let mut ending: Vec<Process> = processes.iter().filter_map(|id| self.alive.remove(id)).collect();
        for process in &mut ending {
            if let Some(mut stdin) = process.stdin.take() {
                let _ = stdin.write_all(Line::of(ToTenant::Exit(Exit {})).write().as_bytes());
            }
        }
        let until = clock::now().saturating_add(EXIT_PATIENCE);
        // What they still say must be taken, or they wait for it with a full pipe.
        while clock::now() < until && !ending.iter().all(Process::has_ended) {
            let _ = self.receiver.recv_timeout(Duration::from_nanos(LOOK_EVERY.0 / 4));
            if self.interrupted.load(Ordering::Relaxed) {
                break;
            }
        }
        for process in &mut ending {
            process.kill();
        }
    }

    fn kill(&mut self, process: ProcessId) {
        if let Some(mut process) = self.alive.remove(&process) {
            process.kill();
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in self.alive.values_mut() {
            process.kill();
        }
    }
}

impl Process {
    /// Whether the child has ended; leaves it waitable, so that its number, which is its group's, is not given to
    /// another process.
    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let looked = self.group.map(|pid| waitid(WaitId::Pid(pid), options));
        !matches!(looked, Some(Ok(None)))
    }

    fn ended_within(&self, time: Nanos) -> bool {
        let until = clock::now().saturating_add(time);
        while !self.has_ended() {
            if clock::now() >= until {
                return false;
            }
            clock::sleep(Nanos::from_millis(1));
        }
        true
    }

    /// Ends whatever is left of the child's group and waits for the child; `None` where it does not end even so: a
    /// process that hangs within the GPU's driver cannot be ended.
    fn kill(&mut self) -> Option<ExitStatus> {
        self.stdin = None;
        if let Some(group) = self.group {
            // No such group: all of it has ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        if self.ended_within(EXIT_PATIENCE) { self.child.wait().ok() } else { None }
    }

    /// The end of what it wrote on standard error, as the end of a message. It has ended.
    fn last_words(&self) -> String {
        let until = clock::now().saturating_add(WORDS_PATIENCE);
        // The thread that reads them holds the other reference until it has read the last.
        while Arc::strong_count(&self.words) > 1 && clock::now() < until {
            clock::sleep(Nanos::from_millis(1));
        }
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = words.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default();
        let shown: Vec<String> = last.iter().map(|line| quoted(line)).collect();
        if shown.is_empty() {
            String::new()
        } else {
            format!("; last on standard error: {}", shown.join(" "))
        }
    }
}

/// Lines of standard error that a message shows.
const LAST_LINES: usize = 3;

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// Passes lines on until the output ends, makes no sense, or nobody listens any more.
fn read_lines(output: impl Read, id: ProcessId, sender: &SyncSender<(ProcessId, Output)>) {
    let mut output = BufReader::with_capacity(LINE_MAX, output);
    let mut line = Vec::new();
    loop {
        line.clear();
        // One more than the longest line and its break, so that a longer one shows.
        let read = (&mut output).take(LINE_MAX as u64 + 2).read_until(b'\n', &mut line);
        let said = match read {
            Ok(0) | Err(_) => Output::End,
            Ok(_) => {
                while line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
                    line.pop();
                }
                // An empty line says nothing; programs print them by accident.
                if line.is_empty() {
                    continue;
                }
                match Line::<FromTenant>::parse(&line) {
                    Ok(line) => Output::Line(Box::new(line)),
                    Err(error) => Output::Rubbish(error),
                }
            }
        };
        let last = !matches!(said, Output::Line(_));
        if sender.send((id, said)).is_err() || last {
            return;
        }
    }
}

fn keep_words(mut output: impl Read, words: &Mutex<VecDeque<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = output.read(&mut buffer) {
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend(&buffer[..count]);
        let extra = words.len().saturating_sub(STDERR_KEPT);
        words.drain(..extra);
    }
}

#[cfg(test)]
mod tests;
