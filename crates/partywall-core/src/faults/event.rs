//! What the decider about faults is told, and what it says.

use super::evidence::{Evidence, Report};
use crate::config::Restart;
use crate::restart::Ending;
use crate::tenant::{Class, TenantId};
use crate::units::Nanos;

/// A tenant that shares the MPS daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Client {
    /// Which.
    pub tenant: TenantId,
    /// What it cares about.
    pub class: Class,
    /// Its position in the file.
    pub order: u32,
    /// When its command is started again after it has ended.
    pub restart: Restart,
    /// Whether it belongs to somebody's terminal, which starts it and ends with it.
    pub attended: bool,
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The driver has returned a fault to a process.
    Reported {
        /// To whose, and which.
        report: Report,
        /// All tenants that have processes behind the daemon now, the one that reports among them.
        clients: Vec<Client>,
    },
    /// The MPS server's log names a process of this tenant in connection with a fault.
    Logged {
        /// Which.
        tenant: TenantId,
    },
    /// The answer to [`Action::Ask`].
    Server {
        /// What the MPS server says.
        server: Server,
        /// The tenants all of whose processes have launched something since the first report, and got no error.
        went_on: Vec<TenantId>,
    },
    /// A run of a tenant is over: none of its processes is left.
    Ended {
        /// Which.
        tenant: TenantId,
        /// How.
        ending: Ending,
    },
    /// Somebody has stopped a tenant, or it was removed, and nothing of it runs: it is not to be started.
    Gone {
        /// Which.
        tenant: TenantId,
    },
    /// A process of a tenant has registered.
    Registered {
        /// Which.
        tenant: TenantId,
    },
    /// A process of a tenant has had its first request done well, or launched its first kernel.
    Worked {
        /// Which.
        tenant: TenantId,
        /// When.
        at: Nanos,
    },
    /// Somebody wants a tenant started although it was kept out, or before: what was held against it is forgotten.
    Readmitted {
        /// Which.
        tenant: TenantId,
    },
    /// Nothing but time.
    Time,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// When the tenant's run ends, it is not started again before one of the other actions says so.
    Hold {
        /// Which.
        tenant: TenantId,
    },
    /// The MPS server is to be asked how it is; [`Event::Server`] is waited for, for a while.
    Ask,
    /// It is known who caused the fault, or that it cannot be known.
    Named(Verdict),
    /// Nothing of the tenant was ended by the fault but what it has brought about itself: its own policy holds again, for an end that
    /// has come since [`Action::Hold`] as well.
    Release {
        /// Which.
        tenant: TenantId,
    },
    /// End what runs of the tenant.
    End {
        /// Which.
        tenant: TenantId,
    },
    /// Start the tenant.
    Start {
        /// Which.
        tenant: TenantId,
        /// Not before this.
        at: Nanos,
    },
    /// The tenant has ended and is left.
    Leave {
        /// Which.
        tenant: TenantId,
        /// Why.
        why: Left,
    },
    /// The tenant has ended and stays so until somebody asks for it.
    KeepOut {
        /// Which.
        tenant: TenantId,
    },
    /// The recovery is over.
    Recovered {
        /// Which fault it was.
        fault: u64,
        /// From its first report to the first good request.
        took: Nanos,
        /// Whose request that was.
        tenant: TenantId,
    },
}

/// How an MPS server says that it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// It serves its clients, and takes new ones.
    Active,
    /// A fault has ended all its clients, and it waits for them to exit.
    Faulted,
    /// It did not say, or said something else.
    Unknown,
}

/// Why a tenant that died with the others is not started again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Its policy is `never`.
    Never,
    /// It had ended well by itself, and its policy is `on-failure`.
    Well,
    /// It belongs to somebody's terminal.
    Attended,
    /// Somebody has stopped it.
    Stopped,
}

/// Who caused a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// Which fault, counted from 1.
    pub fault: u64,
    /// When it was first reported.
    pub at: Nanos,
    /// Who; `None` where that is not known.
    pub culprit: Option<TenantId>,
    /// How that is known, or why it is not.
    pub evidence: Evidence,
    /// Whether the culprit is kept out from now on.
    pub kept_out: bool,
    /// Best-effort tenants are let in one by one, because nobody is sure to cause what happens again: for how long those that are there are
    /// observed before each.
    pub apart: Option<Nanos>,
}

impl Verdict {
    /// Whether the fault has ended nobody's work but the culprit's.
    pub fn is_contained(&self) -> bool {
        self.evidence == Evidence::Contained
    }
}

impl Client {
    /// Why it is not started again after it has ended as `ending`, `told` to or not.
    pub(super) fn left(&self, told: bool, ending: Ending) -> Option<Left> {
        match (self.restart, ending) {
            _ if self.attended => Some(Left::Attended),
            (Restart::Never, _) => Some(Left::Never),
            (Restart::OnFailure, Ending::Well) if !told => Some(Left::Well),
            _ => None,
        }
    }
}
