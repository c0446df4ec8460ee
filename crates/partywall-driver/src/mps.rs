//! An MPS daemon of one's own: started in a private directory, asked, and stopped without a trace.
//!
//! # Problem
//! A program whose pipe directory holds no daemon runs without MPS and says nothing, so attachment has to be proven.
//! The machine's own daemon, if it has one, belongs to somebody else. And a daemon that outlives its owner holds the
//! GPU, in exclusive-process compute mode against everybody.
//!
//! # Approach
//! [`MpsDaemon::start`] runs the control program in the foreground (`-f`), so that it is a child whose end is seen, with
//! pipe and log directories that nobody else has. It gets a session of its own: Ctrl-C in a terminal reaches the owner,
//! which then stops the tenants first and the daemon last. [`MpsDaemon::is_client`] proves attachment by process id.
//! [`MpsDaemon::stop`] asks it to quit, waits, and then kills what is left: the process group, and the MPS servers,
//! which carry a mark in their environment in case they left the group. Dropping does the same.
//!
//! When the owner is killed, the kernel sends the daemon SIGTERM (parent-death signal). That signal is tied to the
//! *thread* that started the daemon, so a thread of its own holds it. What that cannot reach: an MPS server whose control
//! daemon is gone, and the private directory. Where the directory has a name that is known beforehand
//! ([`MpsDaemon::start_in`]), the next daemon there clears both away.

mod answers;
mod contact;
mod process;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::io::Read as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::wait_for;
use crate::library::CudaVersion;

pub use contact::Contact;

/// With what the names of private directories begin; six letters or digits follow.
pub const DIRECTORY_PREFIX: &str = "partywall-mps-";

/// The control program's file name.
pub const CONTROL: &str = "nvidia-cuda-mps-control";

/// Names the pipe directory to daemon and clients.
pub const PIPE_DIRECTORY: &str = "CUDA_MPS_PIPE_DIRECTORY";
/// Names the log directory to daemon and clients.
pub const LOG_DIRECTORY: &str = "CUDA_MPS_LOG_DIRECTORY";

/// In the environment of a daemon and its servers, not of clients: whose they are.
const MARK: &str = "PARTYWALL_MPS_DIRECTORY";

/// Longest path of a Unix socket, and the longest name of the sockets that the daemon opens. Beyond it, the daemon
/// starts, cannot bind, and ends without saying why.
const SOCKET_PATH_MAX: usize = 107;
const SOCKET_NAME: &str = "control_privileged";

/// Log read for a message: its end says what went wrong.
const LOG_TAIL: usize = 1024;

/// Why the MPS daemon did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum MpsError {
    /// The private directory cannot be made.
    #[error("cannot make a private directory for MPS in {directory}: {error}", directory = directory.display())]
    Directory {
        /// Where.
        directory: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The directory's name is too long for the daemon's sockets.
    #[error("the MPS socket path would have {length} bytes, more than the {SOCKET_PATH_MAX} that sockets allow: \
             {directory}; use a directory with a shorter name", directory = directory.display())]
    PathTooLong {
        /// The pipe directory.
        directory: PathBuf,
        /// Its length with the longest socket name.
        length: usize,
    },
    /// The control program cannot be run.
    #[error("cannot run {program}: {error}; it comes with the NVIDIA driver", program = program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The daemon ended by itself.
    #[error("the MPS daemon ended ({status}){}", said(.log))]
    Died {
        /// How.
        status: ExitStatus,
        /// The end of what it wrote.
        log: String,
    },
    /// The daemon did not come up in time.
    #[error("the MPS daemon did not come up within {limit:?}{}", said(.log))]
    NotUp {
        /// How long it was waited for.
        limit: Duration,
        /// The end of what it wrote.
        log: String,
    },
    /// A command was not answered in time.
    #[error("the MPS daemon did not answer `{command}` within {limit:?}")]
    NoAnswer {
        /// The command.
        command: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The pipe directory has no daemon.
    #[error("no MPS daemon answers in {directory}", directory = directory.display())]
    NoDaemon {
        /// The pipe directory.
        directory: PathBuf,
    },
    /// A command failed, or its answer makes no sense.
    #[error("the MPS daemon answered `{command}` with `{answer}`; expected {expected}")]
    Answer {
        /// The command.
        command: String,
        /// What came.
        answer: String,
        /// What would be right.
        expected: &'static str,
    },
}

fn said(log: &str) -> String {
    if log.is_empty() { String::new() } else { format!("; it wrote: {log}") }
}

/// How to start a daemon.
#[derive(Debug, Clone)]
pub struct MpsOptions {
    /// The control program; [`find_control`] finds it.
    pub control: PathBuf,
    /// Where the private directory is made.
    pub temporary: PathBuf,
    /// The GPU that it serves: a UUID (`GPU-…` or `MIG-…`), never an index, for clients count from the daemon's list.
    /// `None` serves all that the driver shows; a `CUDA_VISIBLE_DEVICES` of the owner is not passed on.
    pub gpu: Option<String>,
    /// Until the daemon must answer after its start.
    pub start_limit: Duration,
    /// Until a command must be answered.
    pub answer_limit: Duration,
    /// Until it must have ended after `quit`, before it is killed.
    pub stop_limit: Duration,
}

impl MpsOptions {
    /// With limits that a loaded machine keeps too.
    pub fn new(control: impl Into<PathBuf>, temporary: impl Into<PathBuf>) -> Self {
        Self {
            control: control.into(),
            temporary: temporary.into(),
            gpu: None,
            start_limit: Duration::from_secs(10),
            answer_limit: Duration::from_secs(20),
            stop_limit: Duration::from_secs(20),
        }
    }
}

/// How a server says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerStatus {
    /// It serves its clients, and takes new ones.
    Active,
    /// A fault has ended the work of all its clients, and it waits for them to exit.
    Fault,
    /// It is starting, or says something that is not known here.
    Other,
}

/// How a daemon ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It quit when asked.
    Cleanly,
    /// It, or a server of it, had to be killed.
    Killed,
}

/// A daemon of one's own.
#[derive(Debug)]
pub struct MpsDaemon {
    options: MpsOptions,
    /// `None` once it has been stopped.
    directory: Option<PathBuf>,
    child: Child,
    /// Holds the parent-death signal; ends when this is dropped.
    keeper: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl MpsDaemon {
    /// Starts a daemon and waits until it answers.
    ///
    /// # Errors
    /// When the directory cannot be made, the program cannot be run, or it ends or keeps silent; then nothing of it is
    /// left.
    pub fn start(options: &MpsOptions) -> Result<Self, MpsError> {
        let unmade = |error| MpsError::Directory { directory: options.temporary.clone(), error };
        let directory = tempfile::Builder::new()
            .prefix(DIRECTORY_PREFIX)
            .tempdir_in(&options.temporary)
            .map_err(unmade)?;
        Self::start_at(options, &directory.keep())
    }

    /// The same in `directory`, whose name is known beforehand, so that clients of one daemon after the other find it. What a
    /// daemon that was there before left, its processes and its files, is removed first. `options.temporary` is not used.
    ///
    /// # Errors
    /// Those of [`MpsDaemon::start`].
    pub fn start_in(options: &MpsOptions, directory: &Path) -> Result<Self, MpsError> {
        let unmade = |error| MpsError::Directory { directory: directory.to_owned(), error };
        process::kill_marked(MARK, directory);
        match std::fs::remove_dir_all(directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(unmade(error)),
            _ => {}
        }
        DirBuilder::new().mode(0o700).create(directory).map_err(unmade)?;
        Self::start_at(options, directory)
    }

    /// Starts it in a directory that is there and empty, and the daemon's own to remove.
    fn start_at(options: &MpsOptions, directory: &Path) -> Result<Self, MpsError> {
        let started = Self::start_inside(options, directory);
        if started.is_err() {
            // The error that led here is the one to report.
            let _ = std::fs::remove_dir_all(directory);
        }
        started
    }

    fn start_inside(options: &MpsOptions, directory: &Path) -> Result<Self, MpsError> {
        let unmade = |error| MpsError::Directory { directory: directory.to_owned(), error };
        let pipe = directory.join("pipe");
        let length = pipe.as_os_str().len() + 1 + SOCKET_NAME.len();
        if length > SOCKET_PATH_MAX {
            return Err(MpsError::PathTooLong { directory: pipe, length });
        }
        for path in [&pipe, &directory.join("log")] {
            std::fs::create_dir(path).map_err(unmade)?;
        }
        let output = std::fs::File::create(directory.join("output")).map_err(unmade)?;
        let mut command = Command::new(&options.control);
        command.arg("-f").stdin(Stdio::null());
        command.stdout(output.try_clone().map_err(unmade)?).stderr(output);
        set_environment(&mut command, directory);
        command.env(MARK, directory);
        if let Some(gpu) = &options.gpu {
            command.env("CUDA_VISIBLE_DEVICES", gpu);
        }
        let (child, hold, keeper) = process::start_kept(command)
            .map_err(|error| MpsError::Program { program: options.control.clone(), error })?;
        let mut daemon = Self {
            options: options.clone(),
            directory: Some(directory.to_owned()),
            child,
            keeper: Some((hold, keeper)),
        };
        // On an error `daemon` is dropped, which stops what was started.
        daemon.wait_until_up()?;
        Ok(daemon)
    }

    fn wait_until_up(&mut self) -> Result<(), MpsError> {
        let limit = self.options.start_limit;
        let up = wait_for(limit, || match self.ended() {
            Some(error) => Some(Err(error)),
            None => {
                let asked = Contact::new(&self.options.control, self.path(), limit);
                let answer = asked.ask("get_default_active_thread_percentage");
                answer.is_ok().then_some(Ok(()))
            }
        });
        up.unwrap_or_else(|| Err(MpsError::NotUp { limit, log: self.log() }))
    }

    /// Why the daemon is gone, if it is.
    pub fn ended(&mut self) -> Option<MpsError> {
        let status = self.child.try_wait().ok()??;
        Some(MpsError::Died { status, log: self.log() })
    }

    /// The process id of the control daemon.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The private pipe directory.
    pub fn pipe_directory(&self) -> PathBuf {
        self.path().join("pipe")
    }

    /// What a tenant's environment needs in order to become a client.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        self.contact().environment()
    }

    /// Gives a command to the daemon and returns what it says.
    ///
    /// # Errors
    /// When it does not answer in time, is gone, or the command fails.
    pub fn ask(&self, command: &str) -> Result<String, MpsError> {
        self.contact().ask(command)
    }

    /// For asking it from elsewhere.
    pub fn contact(&self) -> Contact {
        Contact::new(&self.options.control, self.path(), self.options.answer_limit)
    }

    /// The process ids of the servers: none before the first client.
    ///
    /// # Errors
    /// Those of [`MpsDaemon::ask`], and when the answer is no list of process ids.
    pub fn server_list(&self) -> Result<Vec<u32>, MpsError> {
        self.contact().server_list()
    }

    /// The process ids of a server's clients.
    ///
    /// # Errors
    /// Those of [`MpsDaemon::ask`], and when the answer is no list of process ids.
    pub fn client_list(&self, server: u32) -> Result<Vec<u32>, MpsError> {
        self.contact().client_list(server)
    }

    /// Whether a process is a client now: the proof that it does not run beside MPS.
    ///
    /// # Errors
    /// Those of [`MpsDaemon::server_list`].
    pub fn is_client(&self, pid: u32) -> Result<bool, MpsError> {
        Ok(self.contact().clients()?.contains(&pid))
    }

    /// Caps the SMs of clients of servers that start from now on, in per cent of all SMs (1 to 100), and checks that
    /// the daemon took it over. A client's own `CUDA_MPS_ACTIVE_THREAD_PERCENTAGE` can only lower it.
    ///
    /// # Errors
    /// Those of [`MpsDaemon::ask`], and when the daemon has another value afterwards.
    pub fn set_default_active_thread_percentage(&self, percent: u8) -> Result<(), MpsError> {
        self.ask(&format!("set_default_active_thread_percentage {percent}"))?;
        let command = "get_default_active_thread_percentage";
        let answer = self.ask(command)?;
        // The daemon keeps a float; anything within half a per cent is what was asked for.
        match answers::percentage(&answer) {
            Some(value) if (value - f64::from(percent)).abs() < 0.5 => Ok(()),
            _ => {
                let expected = "the percentage that was set";
                Err(MpsError::Answer { command: command.to_owned(), answer, expected })
            }
        }
    }

    /// Asks the daemon to quit, kills what does not, and removes the directory. Clients should have ended before: the
    /// daemon waits for them, and killing it under them ends them with an error.
    ///
    /// # Errors
    /// When the directory cannot be removed. The processes are gone in any case.
    pub fn stop(mut self) -> Result<Stopped, MpsError> {
        self.end()
    }

    fn end(&mut self) -> Result<Stopped, MpsError> {
        let Some(directory) = self.directory.take() else {
            return Ok(Stopped::Cleanly);
        };
        let mut limit = self.options.stop_limit;
        if matches!(self.child.try_wait(), Ok(None)) {
            let asked = Contact::new(&self.options.control, &directory, limit);
            // What cannot be asked will not end by itself. Whatever else it says, it was asked.
            if let Err(MpsError::NoAnswer { .. } | MpsError::NoDaemon { .. } | MpsError::Program { .. }) =
                asked.ask("quit")
            {
                limit = Duration::ZERO;
            }
        }
        let gone = wait_for(limit, || matches!(self.child.try_wait(), Ok(Some(_))).then_some(())).is_some();
        if !gone {
            process::kill_group(&self.child);
            // A killed child can be waited for; an error says that it was already.
            let _ = self.child.wait();
        }
        let left = process::kill_marked(MARK, &directory);
        drop(self.keeper.take());
        std::fs::remove_dir_all(&directory)
            .map_err(|error| MpsError::Directory { directory: directory.clone(), error })?;
        Ok(if gone && left == 0 { Stopped::Cleanly } else { Stopped::Killed })
    }

    fn path(&self) -> &Path {
        self.directory.as_deref().unwrap_or(Path::new(""))
    }

    /// The end of what the daemon wrote, on one line.
    fn log(&self) -> String {
        let files = [self.path().join("log/control.log"), self.path().join("output")];
        let texts = files.iter().filter_map(|file| std::fs::read(file).ok());
        let text = texts.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect::<String>();
        answers::tail(&text, LOG_TAIL)
    }
}

impl Drop for MpsDaemon {
    fn drop(&mut self) {
        // Nobody is left to tell; `stop` tells.
        let _ = self.end();
    }
}

fn set_environment(command: &mut Command, directory: &Path) {
    command.env(PIPE_DIRECTORY, directory.join("pipe")).env(LOG_DIRECTORY, directory.join("log"));
    // What limits the owner as a client would limit every client of the new daemon.
    for variable in ["CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_SM_PARTITION"] {
        command.env_remove(variable);
    }
}

/// The control program in the folders of a `PATH`; `None` where it is in none of them.
pub fn find_control(path: Option<&OsStr>) -> Option<PathBuf> {
    use std::os::unix::fs::PermissionsExt as _;
    let executable = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(path?).map(|folder| folder.join(CONTROL)).find(executable)
}

/// The CUDA version that a control program was built for; `None` where it does not say. Reaches no daemon: it is given
/// an empty pipe directory inside `temporary`.
pub fn control_version(control: &Path, temporary: &Path, limit: Duration) -> Option<CudaVersion> {
    let directory = tempfile::tempdir_in(temporary).ok()?;
    let mut program = Command::new(control);
    program.arg("-v").env(PIPE_DIRECTORY, directory.path()).env(LOG_DIRECTORY, directory.path());
    let answer = process::converse(program, None, directory.path(), limit).ok()??;
    answers::version(&answer.text)
}

/// The servers of whatever daemon a pipe directory has, by asking; for daemons that are not ours.
///
/// # Errors
/// [`MpsError::NoDaemon`] where there is none; others where it cannot be asked.
pub fn foreign_servers(
    control: &Path,
    pipe: &Path,
    temporary: &Path,
    limit: Duration,
) -> Result<Vec<u32>, MpsError> {
    Contact::foreign(control, pipe, temporary, limit).server_list()
}

/// At most `most` bytes of a file, as text.
fn text_of(mut file: std::fs::File, most: u64) -> String {
    let mut bytes = Vec::new();
    // What could be read is what there is to say.
    let _ = file.by_ref().take(most).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
