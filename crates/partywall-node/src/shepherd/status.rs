//! How a run of a tenant is going, as its shepherd says: one small file, `shepherd.json`.
//!
//! It is written in place and never grows, so that a disk that became full after the start does not keep the exit code
//! from being told. A reader that meets a write half done reads again. The shepherd holds a lock on it as long as it
//! lives, so that a tenant never has two.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use partywall_core::restart::Ending;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::folder::private_file;
use crate::process::Identity;

/// Bytes of the file, always: one block of every file system.
const FILE_BYTES: usize = 1024;
/// Characters of an error that are kept: with everything else they fit into the file however they are escaped.
const ERROR_CHARS: usize = 100;
/// A half-written file is read again this often: a write takes microseconds.
const ATTEMPTS: u32 = 100;

/// What is known of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Which run of the tenant, from 1.
    pub run: u32,
    /// The boot that start times count from.
    pub boot: String,
    /// The shepherd.
    pub shepherd: Identity,
    /// The tenant's first process, once it was started.
    pub command: Option<Identity>,
    /// How the run ended; `None` while it goes on.
    pub end: Option<End>,
    /// Bytes of the log that could not be written.
    pub log_bytes_lost: u64,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// The command ended with this exit code.
    Code(u8),
    /// A signal ended the command.
    Signal(i32),
    /// The command could not be started.
    NotStarted {
        /// What a shell would exit with: 127 if there is no such program, else 126.
        code: u8,
        /// Why.
        error: String,
    },
    /// It could not even get a shepherd, for want of processes or memory.
    NoShepherd {
        /// Why.
        error: String,
    },
    /// Nobody saw it: the shepherd was killed, or the machine was started anew.
    Unseen,
}

impl End {
    /// The end of a command that could not be started.
    pub fn not_started(error: &Error) -> Self {
        let missing =
            matches!(error, Error::Start { error, .. } if error.kind() == std::io::ErrorKind::NotFound);
        let text = error.to_string().chars().filter(|c| !c.is_control()).take(ERROR_CHARS).collect();
        Self::NotStarted { code: if missing { 127 } else { 126 }, error: text }
    }

    /// As the decider on restarts sees it.
    pub fn ending(&self) -> Ending {
        match self {
            Self::Code(0) => Ending::Well,
            Self::Code(_) | Self::Signal(_) | Self::NoShepherd { .. } | Self::Unseen => Ending::Failed,
            Self::NotStarted { .. } => Ending::NotStarted,
        }
    }

    /// As a shell reports it: a signal is 128 and its number. What nobody saw is 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Code(code) | Self::NotStarted { code, .. } => *code,
            Self::Signal(signal) => u8::try_from(128 + signal).unwrap_or(255),
            Self::NoShepherd { .. } | Self::Unseen => 1,
        }
    }
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => match signal_hook::low_level::signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            Self::NotStarted { error, .. } | Self::NoShepherd { error } => f.write_str(error),
            Self::Unseen => f.write_str("its shepherd was killed"),
        }
    }
}

/// The file, held by the shepherd of a run.
#[derive(Debug)]
pub struct StatusFile {
    path: PathBuf,
    file: File,
    status: Status,
}

impl StatusFile {
    /// Takes the file for `run`, whose shepherd is this process.
    ///
    /// # Errors
    /// When the tenant has a shepherd already, or the file cannot be written.
    pub fn take(path: &Path, run: u32, shepherd: Identity) -> Result<Self, Error> {
        let file = private_file(path).map_err(Error::file("open", path))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(Error::Refused(format!(
                "{} says that the tenant has a shepherd already",
                path.display()
            )));
        }
        let boot = crate::process::boot_id();
        let status = Status { run, boot, shepherd, command: None, end: None, log_bytes_lost: 0 };
        let mut taken = Self { path: path.to_owned(), file, status };
        taken.write()?;
        Ok(taken)
    }

    /// Changes what the file says.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn update(&mut self, change: impl FnOnce(&mut Status)) -> Result<(), Error> {
        change(&mut self.status);
        self.write()
    }

    fn write(&mut self) -> Result<(), Error> {
        let failed = |error| Error::File { action: "write", path: self.path.clone(), error };
        let mut text = serde_json::to_vec(&self.status).map_err(|error| failed(error.into()))?;
        text.resize(FILE_BYTES, b' ');
        self.file.write_all_at(&text, 0).map_err(failed)
    }
}

/// What the file at `path` says; `None` if there is none, or none that makes sense.
pub fn read(path: &Path) -> Option<Status> {
    for _ in 0..ATTEMPTS {
        let text = fs::read(path).ok()?;
        if let Ok(status) = serde_json::from_slice(&text) {
            return Some(status);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tenant_has_one_shepherd_and_its_last_words_stay() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("shepherd.json");
        assert_eq!(read(&path), None);
        let own = Identity::own().unwrap();
        let mut file = StatusFile::take(&path, 3, own).unwrap();
        let second = StatusFile::take(&path, 4, own).unwrap_err().to_string();
        assert!(second.contains("has a shepherd already"), "{second}");
        let error =
            Error::Start { program: "\u{1}\"".repeat(500), error: std::io::ErrorKind::NotFound.into() };
        let end = End::not_started(&error);
        file.update(|status| status.end = Some(end.clone())).unwrap();
        drop(file);
        let status = read(&path).unwrap();
        assert_eq!((status.run, status.end.as_ref()), (3, Some(&end)));
        assert_eq!((end.exit_code(), end.ending()), (127, Ending::NotStarted));
        assert_eq!(fs::metadata(&path).unwrap().len(), FILE_BYTES as u64);
    }

    #[test]
    fn endings_are_as_a_shell_reports_them() {
        let shown = [End::Code(3), End::Signal(9), End::Signal(15), End::Unseen]
            .map(|end| format!("{end}: {}", end.exit_code()));
        let expected = [
            "exit code 3: 3",
            "signal 9 (SIGKILL): 137",
            "signal 15 (SIGTERM): 143",
            "its shepherd was killed: 1",
        ];
        assert_eq!(shown, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn rubbish_in_the_file_is_no_status(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let scratch = tempfile::NamedTempFile::new().unwrap();
            fs::write(scratch.path(), bytes).unwrap();
            prop_assert_eq!(read(scratch.path()), None);
        }
    }
}
