//! What the shim inside a tenant and the node agree on: the names of environment variables, the page of shared
//! memory that each process of a tenant has, and the frames on the socket between the two.
//!
//! # Who trusts whom
//!
//! A page is mapped by one process of one tenant and by the node, nobody else. Each field has one writer. The node
//! never reads back what it wrote there, and takes what the tenant wrote as a claim: bounded, compared with what was
//! granted, and never used as an address, an index or a length without a check. A tenant that writes rubbish into its
//! page harms itself alone.
//!
//! # Versions
//!
//! [`VERSION`] counts changes of either the page or the frames. Node and shim of different versions refuse each other
//! with a message; they do not guess. The layout is held by a golden test.

pub mod coverage;
pub mod driver_api;
pub mod environment;
pub mod frame;
pub mod kernel_driver;
pub mod page;
pub mod socket;

/// The version of page and frames together. Both sides must have the same one.
pub const VERSION: u32 = 8;

/// What can go wrong between shim and node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The other side is of another version, or not what it should be.
    #[error(
        "the shared page says {found} where {expected} was expected; shim and node must be of one version of Partywall"
    )]
    Page {
        /// What was found.
        found: String,
        /// What would be right.
        expected: String,
    },
    /// Bytes that are no frame.
    #[error("a frame that makes no sense: {0}")]
    Frame(frame::FrameError),
    /// The other side has closed the connection, or is gone.
    #[error("the other side has closed the connection")]
    Closed,
    /// The other side has not answered in time.
    #[error("the other side does not answer")]
    Silent,
}

impl Error {
    /// Names what was being done when a system call failed.
    pub(crate) fn system(what: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |errno| Self::System { what, source: errno.into() }
    }
}
