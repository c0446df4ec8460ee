//! What can go wrong with the gateway itself; what goes wrong with a request is in `answer`.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the gateway did not start, or did not do what an operator asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that the configuration names cannot be read.
    #[error("cannot read {path}: {error}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A file that the configuration names holds something else than it should.
    #[error("{path} {problem}", path = path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}; is something else there?")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The system did not give what is needed.
    #[error("{action} failed: {error}")]
    System {
        /// What was tried.
        action: &'static str,
        /// Why not.
        error: io::Error,
    },
    /// There is no such policy.
    #[error("there is no policy `{name}`; write one of {known}")]
    Policy {
        /// What was asked for.
        name: String,
        /// Those there are.
        known: String,
    },
    /// A replica cannot be taken.
    #[error("the replica `{name}` cannot be taken: {problem}")]
    Replica {
        /// Its name.
        name: String,
        /// Why not.
        problem: String,
    },
    /// There is no such replica.
    #[error("there is no replica `{0}`")]
    NoReplica(String),
}

impl Error {
    /// For `map_err` on a file that is read.
    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Read { path: path.into(), error }
    }

    /// For `map_err` on a call to the system.
    pub(crate) fn system(action: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { action, error }
    }
}
