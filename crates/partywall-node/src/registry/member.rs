//! A connection, and the process behind it.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use partywall_core::tenant::TenantId;
use partywall_core::units::{Bytes, Nanos};
use partywall_shim_api::page::Mapped;
use partywall_shim_api::socket::Socket;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::attachment::Attachment;
use super::claims::Claims;
use super::signs::Shown;
use crate::arbiter::CopyWatch;
use crate::leases::Held;

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection {
    /// `None` once it has ended and the process has not.
    pub(crate) socket: Option<Socket>,
    /// `None` where the process is in another namespace.
    pub(crate) pid: Option<Pid>,
    /// Readable when the process has ended.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Whether it has to wait because its tenant has sent too much.
    pub(crate) paused: bool,
    pub(crate) stage: Stage,
}

/// How far it got.
#[derive(Debug)]
pub(crate) enum Stage {
    /// It has said nothing since it came.
    New { since: Nanos },
    /// It said a token that nobody has yet.
    Early { since: Nanos, token: [u8; 16], held: Bytes },
    /// It is one of a tenant's processes.
    Member(Box<Member>),
}

/// A process of a tenant.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) tenant: TenantId,
    pub(crate) since: Nanos,
    pub(crate) page: Arc<Mapped>,
    pub(crate) copies: Arc<CopyWatch>,
    pub(crate) claims: Claims,
    pub(crate) context: ContextWatch,
    pub(crate) attachment: Attachment,
    pub(crate) shown: Shown,
    /// Entry points that it had counted when it was last asked for their names.
    pub(crate) asked_coverage: u32,
}

/// How the size of a process's context is found out.
#[derive(Debug, Default)]
pub(crate) struct ContextWatch {
    /// What the shim counted when the reading was asked for.
    pub(crate) used_when_asked: Option<u64>,
    /// The last reading that can be right.
    pub(crate) last: Option<Bytes>,
    pub(crate) measured: bool,
    /// Readings in a row at which more was held than leased.
    pub(crate) in_debt: u32,
}

impl Connection {
    pub(crate) fn new(socket: Socket, now: Nanos) -> Self {
        // A pid of 0 stands for one of another namespace, and is no `Pid`; nothing here can tell more then.
        let pid = socket.peer().ok().map(|peer| peer.pid).filter(|pid| pid.as_raw_nonzero().get() > 0);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        Self { socket: Some(socket), pid, pidfd, paused: false, stage: Stage::New { since: now } }
    }

    pub(crate) fn member(&self) -> Option<&Member> {
        match &self.stage {
            Stage::Member(member) => Some(member),
            _ => None,
        }
    }

    pub(crate) fn member_mut(&mut self) -> Option<&mut Member> {
        match &mut self.stage {
            Stage::Member(member) => Some(member),
            _ => None,
        }
    }

    pub(crate) fn pid_number(&self) -> Option<u32> {
        self.pid.and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
    }
}

impl Member {
    /// Tells the process what it holds and what the others do.
    pub(crate) fn publish(&self, quota: Bytes, of_tenant: Bytes, held: &Held) {
        let node = &self.page.node;
        node.quota_bytes.store(quota.0, Ordering::Relaxed);
        node.tenant_used_bytes.store(of_tenant.0, Ordering::Relaxed);
        node.others_used_bytes.store(of_tenant.0.saturating_sub(held.total().0), Ordering::Relaxed);
        node.context_bytes.store(held.context.0, Ordering::Release);
    }

    /// From now on the process decides about its copies itself.
    pub(crate) fn leave_alone(&self) {
        self.page.node.copies_decided.store(0, Ordering::Release);
        self.page.wake_grants();
    }
}
