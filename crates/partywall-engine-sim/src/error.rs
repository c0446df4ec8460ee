//! Why an engine does not start.

use std::io;
use std::net::SocketAddr;

/// What can go wrong before an engine serves. What a client did wrong is answered to that client instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting cannot be used.
    #[error("{setting} is {value}; {right}")]
    Setting {
        /// Which, as the command line calls it.
        setting: &'static str,
        /// What it is.
        value: String,
        /// What would be right.
        right: String,
    },
    /// The address for HTTP is not to be had.
    #[error("cannot listen on {address}: {error}; choose another with --listen")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// An endpoint for events is not to be had.
    #[error("cannot bind {endpoint} for KV events: {reason}; choose another with {setting}")]
    Bind {
        /// Which.
        endpoint: String,
        /// Why.
        reason: String,
        /// Where it comes from.
        setting: &'static str,
    },
    /// The system has no threads or descriptors left.
    #[error("cannot start: {0}")]
    Runtime(io::Error),
    /// A replica could not go on.
    #[error("replica {replica} ended: {reason}")]
    Ended {
        /// Its number, from 0.
        replica: u16,
        /// Why.
        reason: String,
    },
}
