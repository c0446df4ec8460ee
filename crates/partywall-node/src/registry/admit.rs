//! Who is let in, and who is not.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};
use partywall_shim_api::frame::ToShim;
use partywall_shim_api::page::{Mapped, SmSet};
use partywall_shim_api::socket::Socket;
use partywall_shim_api::{Error, VERSION};
use rustix::event::{EventfdFlags, epoll, eventfd};

use super::MAX_PROCESSES;
use super::attachment::Attachment;
use super::claims::Claims;
use super::contexts::with_growth;
use super::member::{Connection, ContextWatch, Member, Stage};
use super::signs::Shown;
use super::state::State;
use crate::arbiter::CopyWatch;
use crate::leases::{Event, ProcessId};

/// How long a connection may say nothing before it is ended.
const SILENCE: Nanos = Nanos::from_secs(10);

/// How long a process with an unknown token may wait: a node that starts again learns of its tenants one after the other.
const EARLY: Nanos = Nanos::from_secs(2);

/// Connections of one process that have not said who they are: as many as may wait to be let in.
const MAX_STRANGERS: usize = 128;

/// To a process whose token nobody has.
const UNKNOWN: &str = "no tenant has this token: it was stopped, or PARTYWALL_TOKEN was changed";

impl State {
    /// A process wants in.
    pub(super) fn accept(&mut self, socket: Socket, now: Nanos) {
        let connection = Connection::new(socket, now);
        let of_same = |other: &&Connection| {
            other.member().is_none() && other.pid.is_some() && other.pid == connection.pid
        };
        let strangers = self.connections.values().filter(of_same).count();
        let full = self.connections.len() as u64 >= self.max_connections;
        if full || strangers >= MAX_STRANGERS {
            let limit = self.max_connections;
            let text = if full {
                format!(
                    "the node serves {limit} processes and has no descriptors for more; raise its limit of open files"
                )
            } else {
                "this process has too many connections that do not say who it is".to_owned()
            };
            // It is not known whose it is, so nobody can be told but the process.
            let _ = connection.socket.map(|socket| socket.send(&refusal(text), &[]));
            return;
        }
        let number = self.next;
        self.next += 1;
        let listens = |source: Option<BorrowedFd<'_>>, name| {
            let name = epoll::EventData::new_u64(name);
            source.is_none_or(|source| epoll::add(&self.polls, source, name, epoll::EventFlags::IN).is_ok())
        };
        let socket = connection.socket.as_ref().map(|socket| socket.as_fd());
        let pidfd = connection.pidfd.as_ref().map(|pidfd| pidfd.as_fd());
        // It only fails for want of kernel memory; the process sees the end of its connection.
        if listens(socket, number * 2) && listens(pidfd, number * 2 + 1) {
            self.connections.insert(number, connection);
        }
    }

    pub(super) fn hello(&mut self, number: u64, version: u32, (token, held): ([u8; 16], Bytes), now: Nanos) {
        if version != VERSION {
            let text = format!(
                "the Partywall library in this program speaks version {version}, the node version {VERSION}; start the tenant again with \
                 the partywall that runs the node"
            );
            return self.refuse(number, text);
        }
        let tenant = self
            .tenants
            .values()
            .find(|tenant| tenant.spec.token.bytes() == token)
            .map(|tenant| tenant.spec.id);
        let Some(id) = tenant else {
            let since = now;
            if now.saturating_sub(self.started) < EARLY
                && let Some(connection) = self.connections.get_mut(&number)
            {
                connection.stage = Stage::Early { since, token, held };
                return;
            }
            return self.refuse(number, UNKNOWN.to_owned());
        };
        self.forget_former_self(number, id, now);
        if self.members_of(id).len() >= MAX_PROCESSES {
            if let Some(tenant) = self.tenants.get_mut(&id) {
                tenant.processes_refused += 1;
            }
            return self.refuse(
                number,
                format!("the tenant has {MAX_PROCESSES} processes on the GPU already, and may have no more"),
            );
        }
        if let Err(error) = self.welcome(number, id, held, now) {
            self.gone(number, now);
            self.mark_refused(id, &error);
        }
    }

    /// The program that the process ran before, or its connection before this one.
    fn forget_former_self(&mut self, number: u64, tenant: TenantId, now: Nanos) {
        let pid = self.connections.get(&number).and_then(|connection| connection.pid);
        let same = |(&other, connection): (&u64, &Connection)| {
            let former = connection.socket.is_none()
                && connection.member().is_some_and(|member| member.tenant == tenant);
            (other != number && former && pid.is_some() && connection.pid == pid).then_some(other)
        };
        let former: Vec<_> = self.connections.iter().filter_map(same).collect();
        former.into_iter().for_each(|other| self.gone(other, now));
    }

    /// Makes a process one of the tenant's.
    fn welcome(&mut self, number: u64, id: TenantId, held: Bytes, now: Nanos) -> Result<(), Error> {
        let process = ProcessId(number);
        let (Some(tenant), Some(connection)) = (self.tenants.get_mut(&id), self.connections.get_mut(&number))
        else {
            return Err(Error::Closed);
        };
        let class = tenant.spec.class;
        let told = |set: partywall_core::sm_sets::SmSet| {
            let partywall_core::sm_sets::SmSet { first, groups, sms_per_group } = set;
            SmSet { first, groups, sms_per_group }
        };
        let sms = tenant.spec.sms.map(told);
        let (page, file) = Mapped::create(self.generation, id.0, u32::from(class == Class::BestEffort), sms)?;
        if let Some(set) = tenant.spec.squeezed_sms.map(told) {
            page.header.set_squeezed(set);
        }
        let system = |what| move |errno: rustix::io::Errno| Error::System { what, source: errno.into() };
        let bell =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(system("creating a bell"))?;
        let node = &page.node;
        node.heartbeat_ns.store(now.0, Ordering::Relaxed);
        node.weight.store(tenant.spec.weight, Ordering::Relaxed);
        node.copies_decided.store(u32::from(self.copies.decided), Ordering::Relaxed);
        node.packet_bytes.store(self.copies.scheduler.packet.0, Ordering::Relaxed);
        for direct_max in &node.direct_max_bytes {
            direct_max.store(self.copies.direct_max(class).0, Ordering::Relaxed);
        }
        let shown = self.measuring.shown(connection.pid_number());
        let context = shown.map(|shown| {
            let measured = Bytes(shown.0.saturating_sub(held.0));
            let taken = self.leases.used(id).0.saturating_add(shown.0);
            with_growth(measured, measured, Bytes(self.leases.quota(id).0.saturating_sub(taken)))
        });
        let context = context.or(tenant.context).unwrap_or(self.measuring.estimate);
        let measured = shown.is_some();
        let hello = Event::Hello { process, tenant: id, held, context, measured };
        self.leases.step(now, hello, &mut self.actions);
        tenant.begin();
        let member = Member {
            tenant: id,
            since: now,
            page: Arc::new(page),
            copies: Arc::new(CopyWatch::default()),
            claims: Claims::default(),
            attachment: Attachment::default(),
            shown: Shown::default(),
            context: ContextWatch { measured, ..ContextWatch::default() },
            asked_coverage: 0,
        };
        let lease = self.leases.held(process);
        member.publish(self.leases.quota(id), self.leases.used(id), &lease);
        let (page, copies) = (Arc::clone(&member.page), Arc::clone(&member.copies));
        connection.stage = Stage::Member(Box::new(member));
        // Before the process has its page: the driver asks for a slice soon after that.
        self.say_slices(now);
        let connection = self.connections.get_mut(&number).ok_or(Error::Closed)?;
        let welcome = ToShim::Welcome { version: VERSION, lease_bytes: lease.lease.0 };
        let descriptors = [file.as_fd(), bell.as_fd()];
        connection.socket.as_ref().ok_or(Error::Closed)?.send(&welcome.encode(), &descriptors)?;
        if let Some(arbiter) = self.arbiter.as_ref().filter(|_| self.copies.decided || self.launches.decided)
        {
            arbiter.add(process, id, page, bell, copies);
        }
        if self.launches.decided {
            self.promises.add(now, number, id);
        }
        self.dirty.insert(id);
        self.measuring.hurry(now);
        self.has_registered(id);
        Ok(())
    }

    /// Processes that came before their tenant was known.
    pub(super) fn admit_early(&mut self, now: Nanos) {
        let early = |(&number, connection): (&u64, &Connection)| match connection.stage {
            Stage::Early { token, held, .. } => Some((number, token, held)),
            _ => None,
        };
        for (number, token, held) in self.connections.iter().filter_map(early).collect::<Vec<_>>() {
            if self.tenants.values().any(|tenant| tenant.spec.token.bytes() == token) {
                self.hello(number, VERSION, (token, held), now);
            }
        }
    }

    fn mark_refused(&mut self, id: TenantId, error: &Error) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.processes_refused += 1;
            // A process that has gone away meanwhile is no news.
            if !matches!(error, Error::Closed) {
                tenant.notes(&format!("a process could not be let in: {error}"));
            }
        }
    }

    pub(super) fn refuse(&mut self, number: u64, text: String) {
        if let Some(Connection { socket: Some(socket), .. }) = self.connections.remove(&number) {
            let _ = socket.send(&refusal(text), &[]);
        }
    }

    pub(super) fn end_silent(&mut self, now: Nanos) {
        let overdue = |(&number, connection): (&u64, &Connection)| match connection.stage {
            Stage::New { since } => {
                (now.saturating_sub(since) > SILENCE).then_some((number, "nothing was said for too long"))
            }
            Stage::Early { since, .. } => (now.saturating_sub(since) > EARLY).then_some((
                number,
                "no tenant has this token: it was stopped, or PARTYWALL_TOKEN was changed",
            )),
            Stage::Member(_) => None,
        };
        for (number, why) in self.connections.iter().filter_map(overdue).collect::<Vec<_>>() {
            self.refuse(number, why.to_owned());
        }
    }
}

fn refusal(text: String) -> Vec<u8> {
    ToShim::Refused { version: VERSION, text }.encode()
}
