//! Whether tenants' processes are clients of the node's MPS daemon, where their wall takes one.
//!
//! A process that cannot reach the daemon runs without MPS and says nothing; so does one that changed its environment. Neither is
//! behind the wall, so each process is looked for on the daemon's list once it has used the GPU. The list is asked for by a thread
//! of its own, because a daemon may take seconds to answer, or for ever.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use partywall_core::config::WallChoice;
use partywall_core::tenant::TenantId;
use partywall_core::units::Nanos;

use super::ClientWatch;
use super::member::{Connection, Member};
use super::state::State;
use crate::watch::Watcher;

/// How often the list is asked for while somebody is looked for.
const OFTEN: Nanos = Nanos::from_millis(250);

/// And after it could not be told.
const AFTER_TROUBLE: Nanos = Nanos::from_secs(2);

/// Lists without a process that had used the GPU before they were asked for, until that is believed.
const MISSING: u32 = 2;

/// What is known of the daemon.
#[derive(Debug)]
pub(crate) struct Attaching {
    wall: WallChoice,
    watcher: Option<Watcher<BTreeSet<u32>>>,
    /// Why it does not answer.
    silent: Option<String>,
    /// Why it is gone for good.
    fell: Option<String>,
    next: Nanos,
}

/// What is known of a process.
#[derive(Debug, Default)]
pub(crate) struct Attachment {
    /// Whether it had used the GPU when the list was asked for.
    used_when_asked: bool,
    missing: u32,
    /// Whether it is on the list; `None` while that is not known.
    pub(crate) seen: Option<bool>,
}

impl Attaching {
    pub(crate) fn new(wall: WallChoice, clients: Option<ClientWatch>) -> io::Result<Self> {
        let watcher = clients.map(|mut clients| Watcher::with("clients", move || (clients(), ())));
        Ok(Self { wall, watcher: watcher.transpose()?, silent: None, fell: None, next: Nanos::ZERO })
    }

    /// Readable when there is a list.
    pub(crate) fn bell(&self) -> Option<&OwnedFd> {
        self.watcher.as_ref().map(Watcher::bell)
    }

    pub(crate) fn wall(&self) -> WallChoice {
        self.wall
    }

    /// Whether processes have to be clients.
    pub(crate) fn is_needed(&self) -> bool {
        self.watcher.is_some()
    }

    /// Why nobody can be behind the wall now.
    pub(crate) fn problem(&self) -> Option<String> {
        self.fell.clone().or_else(|| self.silent.clone())
    }
}

impl State {
    /// The daemon has ended: who was its client is nobody's now.
    pub(crate) fn wall_fell(&mut self, why: &str, rebuilt: bool) {
        if !rebuilt {
            self.attaching.fell = Some(why.to_owned());
        }
        let mut marks = Vec::new();
        for member in self.connections.values_mut().filter_map(Connection::member_mut) {
            if member.attachment.seen == Some(true) {
                member.attachment.seen = Some(false);
                marks.push(member.tenant);
            }
        }
        marks.into_iter().for_each(|id| self.mark(id, "the MPS daemon of a process has ended"));
    }

    /// Asks for the list when it is time.
    pub(crate) fn look_for_clients(&mut self, now: Nanos) {
        let attaching = &mut self.attaching;
        let ready = attaching.fell.is_none() && now >= attaching.next;
        let Some(watcher) = attaching.watcher.as_mut().filter(|watcher| ready && !watcher.is_asked()) else {
            return;
        };
        let mut wanted = false;
        for member in self.connections.values_mut().filter_map(Connection::member_mut) {
            let used = member.attachment.seen.is_none() && has_used(member);
            member.attachment.used_when_asked = used;
            wanted |= used;
        }
        if wanted {
            watcher.ask();
            attaching.next = now.saturating_add(OFTEN);
        }
    }

    /// The daemon has answered, or not.
    pub(crate) fn take_clients(&mut self, now: Nanos) {
        let Some(answer) = self.attaching.watcher.as_mut().and_then(Watcher::take) else { return };
        let clients = match answer {
            Ok(clients) => clients,
            Err(problem) => {
                self.attaching.silent = Some(problem);
                self.attaching.next = now.saturating_add(AFTER_TROUBLE);
                return;
            }
        };
        self.attaching.silent = None;
        let (mut attached, mut marks): (BTreeSet<TenantId>, Vec<(TenantId, &'static str)>) =
            Default::default();
        for connection in self.connections.values_mut() {
            let pid = connection.pid_number();
            let Some(member) = connection.member_mut().filter(|member| member.attachment.seen.is_none())
            else {
                continue;
            };
            let Some(pid) = pid else {
                marks.push((
                    member.tenant,
                    "a process of another pid namespace cannot be found among the clients of the node's MPS daemon",
                ));
                member.attachment.seen = Some(false);
                continue;
            };
            if clients.contains(&pid) {
                member.attachment.seen = Some(true);
                attached.insert(member.tenant);
            } else if std::mem::take(&mut member.attachment.used_when_asked) {
                member.attachment.missing += 1;
                if member.attachment.missing >= MISSING {
                    member.attachment.seen = Some(false);
                    marks.push((member.tenant, "a process is not a client of the node's MPS daemon"));
                }
            }
        }
        let tenants = self.tenants.iter_mut().filter(|(id, _)| attached.contains(id));
        tenants.for_each(|(_, tenant)| tenant.attached = true);
        marks.into_iter().for_each(|(id, what)| self.mark(id, what));
    }
}

/// Whether a process says that it has done something on the GPU: then it is a client, or never will be.
fn has_used(member: &Member) -> bool {
    let counters = &member.claims.counters;
    let copied = counters.copies.iter().any(|side| side.copies > 0 || side.direct_copies > 0);
    let holds = member.page.shim.memory_bytes.load(Ordering::Relaxed) > 0;
    holds || copied || counters.launches > 0 || counters.graph_launches > 0
}
