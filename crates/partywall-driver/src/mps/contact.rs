//! Asking a daemon, whoever started it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::process::{self, Answer, Ended};
use super::{LOG_DIRECTORY, LOG_TAIL, MpsError, PIPE_DIRECTORY, ServerStatus, answers};

/// Where a daemon listens, and how to ask it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    control: PathBuf,
    /// For the files of the exchange.
    scratch: PathBuf,
    pipe: PathBuf,
    log: PathBuf,
    limit: Duration,
}

impl Contact {
    /// The daemon that [`super::MpsDaemon::start_in`] starts in `directory`, whether it is there or not. `control` is the control
    /// program, and an answer is waited for as long as `limit`.
    pub fn new(control: &Path, directory: &Path, limit: Duration) -> Self {
        Self {
            control: control.to_owned(),
            scratch: directory.to_owned(),
            pipe: directory.join("pipe"),
            log: directory.join("log"),
            limit,
        }
    }

    /// A daemon that is not ours, by its pipe directory.
    pub(super) fn foreign(control: &Path, pipe: &Path, temporary: &Path, limit: Duration) -> Self {
        let log = pipe.with_file_name("log");
        Self { control: control.to_owned(), scratch: temporary.to_owned(), pipe: pipe.to_owned(), log, limit }
    }

    /// The same daemon, whose answers are waited for as long as `limit`.
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// What a tenant's environment needs in order to become a client.
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![(PIPE_DIRECTORY, self.pipe.clone().into()), (LOG_DIRECTORY, self.log.clone().into())]
    }

    /// Gives a command to the daemon and returns what it says.
    ///
    /// # Errors
    /// When it does not answer in time, is gone, or the command fails.
    pub fn ask(&self, command: &str) -> Result<String, MpsError> {
        let mut program = Command::new(&self.control);
        program.env(PIPE_DIRECTORY, &self.pipe).env(LOG_DIRECTORY, &self.log);
        let answer = process::converse(program, Some(command), &self.scratch, self.limit)
            .map_err(|error| MpsError::Program { program: self.control.clone(), error })?;
        match answer {
            None => Err(MpsError::NoAnswer { command: command.to_owned(), limit: self.limit }),
            Some(Answer { text, .. }) if answers::no_daemon(&text) => {
                Err(MpsError::NoDaemon { directory: self.pipe.clone() })
            }
            Some(Answer { text, status: Ended::Well }) => Ok(text),
            Some(Answer { text, .. }) => {
                let answer = answers::tail(&text, LOG_TAIL);
                Err(MpsError::Answer { command: command.to_owned(), answer, expected: "exit status 0" })
            }
        }
    }

    /// The process ids of the servers: none before the first client.
    ///
    /// # Errors
    /// Those of [`Contact::ask`], and when the answer is no list of process ids.
    pub fn server_list(&self) -> Result<Vec<u32>, MpsError> {
        self.pids("get_server_list".to_owned())
    }

    /// The process ids of a server's clients.
    ///
    /// # Errors
    /// Those of [`Contact::ask`], and when the answer is no list of process ids.
    pub fn client_list(&self, server: u32) -> Result<Vec<u32>, MpsError> {
        self.pids(format!("get_client_list {server}"))
    }

    /// The process ids of all clients: the proof that they do not run beside MPS.
    ///
    /// # Errors
    /// Those of [`Contact::server_list`].
    pub fn clients(&self) -> Result<BTreeSet<u32>, MpsError> {
        let mut clients = BTreeSet::new();
        for server in self.server_list()? {
            clients.extend(self.client_list(server)?);
        }
        Ok(clients)
    }

    /// How a server is.
    ///
    /// # Errors
    /// Those of [`Contact::ask`].
    pub fn server_status(&self, server: u32) -> Result<ServerStatus, MpsError> {
        Ok(answers::status(&self.ask(&format!("get_server_status {server}"))?))
    }

    fn pids(&self, command: String) -> Result<Vec<u32>, MpsError> {
        let answer = self.ask(&command)?;
        answers::pids(&answer).ok_or(MpsError::Answer { command, answer, expected: "process ids" })
    }
}
