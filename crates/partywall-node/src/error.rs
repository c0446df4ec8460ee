//! What can go wrong in the node, by kind.

use std::io;
use std::path::PathBuf;

use partywall_core::config::WallChoice;

/// Why the node, a shepherd or a client did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something asked for cannot be done as asked; nothing has changed.
    #[error("{0}")]
    Refused(String),
    /// Another node owns the folder.
    #[error("another node is at work in {folder} ({holder}); stop it first, or use another folder with --dir", folder = folder.display())]
    Taken {
        /// The folder.
        folder: PathBuf,
        /// The process, as far as it said.
        holder: String,
    },
    /// A wall cannot be built on this machine, or not now.
    #[error("cannot build the wall `{wall}`: {why}")]
    Wall {
        /// Which.
        wall: WallChoice,
        /// Why not.
        why: String,
    },
    /// No node owns the folder.
    #[error("no node is running in {folder}", folder = folder.display())]
    NoNode {
        /// The folder.
        folder: PathBuf,
    },
    /// A file or folder cannot be used.
    #[error("cannot {action} {path}: {error}", path = path.display())]
    File {
        /// What was to be done with it, as a verb.
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A command cannot be started.
    #[error("cannot start `{program}`: {error}")]
    Start {
        /// The program.
        program: String,
        /// Why not.
        error: io::Error,
    },
    /// The other end of the control socket did not answer, or not sensibly.
    #[error("the node in {folder} {what}", folder = folder.display())]
    Conversation {
        /// The node's folder.
        folder: PathBuf,
        /// What it did.
        what: String,
    },
    /// A node that was started in the background ended before it answered.
    #[error("the node did not start{}", said.as_deref().map(|said| format!(": {said}")).unwrap_or_default())]
    NotLaunched {
        /// What it said; `None` where it said it on our standard error.
        said: Option<String>,
    },
    /// A call to the system failed that usually does not.
    #[error("{action} failed: {error}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        error: io::Error,
    },
}

impl Error {
    /// For `map_err` on what is done with a file.
    pub(crate) fn file(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { action, path, error }
    }

    /// For `map_err` on a system call.
    pub(crate) fn system<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System { action, error: error.into() }
    }
}
