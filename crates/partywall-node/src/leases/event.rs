//! What happens to leases, what follows, and what a process has.

use partywall_core::tenant::TenantId;
use partywall_core::units::Bytes;

use super::ProcessId;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A process has registered.
    Hello {
        /// Its new name.
        process: ProcessId,
        /// Whose it is.
        tenant: TenantId,
        /// What its shim says that it holds.
        held: Bytes,
        /// Its context.
        context: Bytes,
        /// Whether that was measured: an estimate is only kept room for, as far as there is some.
        measured: bool,
    },
    /// It asks for more.
    Ask {
        /// Who.
        process: ProcessId,
        /// What is of use at least.
        need: Bytes,
        /// What may be granted.
        want: Bytes,
    },
    /// It gives back.
    Give {
        /// Who.
        process: ProcessId,
        /// How much.
        bytes: Bytes,
    },
    /// What its shim says that it holds, without its context: a claim. Comes for all of them at once, so what follows from it follows with the
    /// next event.
    Used {
        /// Who.
        process: ProcessId,
        /// How much.
        bytes: Bytes,
    },
    /// Its context was measured.
    Context {
        /// Who.
        process: ProcessId,
        /// How much.
        bytes: Bytes,
    },
    /// It has ended.
    Gone {
        /// Who.
        process: ProcessId,
    },
    /// Time has passed.
    Time,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Answer the oldest question of a process that has not been answered.
    Answer {
        /// Whom.
        process: ProcessId,
        /// Its lease now.
        total: Bytes,
        /// Whether it got what it needs.
        granted: bool,
    },
    /// Ask a process to give back what it does not use.
    Recall {
        /// Whom.
        process: ProcessId,
    },
    /// A process asks more than it waits for answers; end the connection.
    Flood {
        /// Who.
        process: ProcessId,
    },
}

/// What a process has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// Its lease.
    pub lease: Bytes,
    /// Its context, measured or estimated.
    pub context: Bytes,
    /// What its shim says that it holds besides.
    pub used: Bytes,
}

impl Held {
    /// Held beyond the lease.
    pub fn debt(&self) -> Bytes {
        super::less(self.total(), self.lease)
    }

    /// Leased and not used.
    pub fn spare(&self) -> Bytes {
        super::less(self.lease, self.total())
    }

    /// Context and what the shim counts.
    pub fn total(&self) -> Bytes {
        Bytes(self.context.0.saturating_add(self.used.0))
    }
}
