//! What can go wrong, by kind: the kind decides the exit code and the hint.

use std::io;
use std::path::PathBuf;

/// A command that did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// Something the user gave cannot be used; nothing was written.
    #[error("{message}")]
    Input {
        /// What, where, and what would be right.
        message: String,
        /// What to try.
        hint: Option<String>,
    },
    /// A file could not be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {path}: {error}", path = path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// This machine does not have what it takes, or something on it went wrong.
    #[error("{message}")]
    Machine {
        /// What.
        message: String,
        /// What to try.
        hint: Option<String>,
    },
    /// Somebody pressed Ctrl-C.
    #[error("interrupted; everything that was started has ended, and nothing was written")]
    Interrupted,
    /// The node ended in the middle of a conversation.
    #[error("{0}")]
    NodeGone(String),
    /// A command that this program ran did not end well, and its exit code is ours.
    #[error("{}", message.as_deref().unwrap_or("the command did not end well"))]
    Exit {
        /// The exit code.
        code: u8,
        /// What to say; nothing where the command has said it.
        message: Option<String>,
    },
    /// Standard output went away.
    #[error("cannot print the result: {0}")]
    Output(#[from] io::Error),
    /// A mistake of this program.
    #[error("{0}")]
    Internal(String),
}

impl Failure {
    /// What the user gave cannot be used.
    pub(crate) fn input(message: impl ToString) -> Self {
        Self::Input { message: message.to_string(), hint: None }
    }

    /// The same, with something to try.
    pub(crate) fn input_with_hint(message: impl ToString, hint: impl ToString) -> Self {
        Self::Input { message: message.to_string(), hint: Some(hint.to_string()) }
    }

    /// This machine does not have what it takes.
    pub(crate) fn machine(message: impl ToString, hint: Option<String>) -> Self {
        Self::Machine { message: message.to_string(), hint }
    }

    /// What went wrong although the input was right.
    pub(crate) fn internal(message: impl ToString) -> Self {
        Self::Internal(message.to_string())
    }

    /// 2 where the user can mend it in what was given, 1 elsewhere.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Input { .. } | Self::Read { .. } => 2,
            Self::Write { .. }
            | Self::Machine { .. }
            | Self::NodeGone(_)
            | Self::Output(_)
            | Self::Internal(_) => 1,
            // As shells report the signal.
            Self::Interrupted => 130,
            Self::Exit { code, .. } => *code,
        }
    }

    /// What to try.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::Input { hint, .. } | Self::Machine { hint, .. } => hint.as_deref(),
            Self::Read { .. } => Some("check the path; nothing was written"),
            Self::Write { .. } => Some("check that the directory exists and may be written to"),
            Self::NodeGone(_) => Some("its tenants go on; `partywall node` takes them over"),
            Self::Interrupted | Self::Exit { .. } | Self::Output(_) => None,
            Self::Internal(_) => {
                Some("this is a mistake in partywall; please report it with the command line")
            }
        }
    }
}
