//! What the registry knows, and what it does about each thing that happens.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use partywall_core::tenant::TenantId;
use partywall_core::units::{Bytes, Nanos};
use partywall_shim_api::frame::{ToNode, ToShim};
use partywall_shim_api::{Error, VERSION};
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::process::{Resource, getrlimit};
use rustix::rand::{GetRandomFlags, getrandom};

use super::attachment::Attaching;
use super::contexts::Measuring;
use super::member::{Connection, Stage};
use super::promises::Promises;
use super::signs::Signs;
use super::tenant::Tenant;
use crate::arbiter::squeeze::LaunchOptions;
use crate::arbiter::{Arbiter, CopyOptions};
use crate::clock;
use crate::leases::{self, Action, AddError, Event, Leases, ProcessId};
use crate::tenant::{FaultFacts, TenantEvent, TenantSpec};

/// How often pages get a heartbeat, and claims are looked at.
pub(crate) const TICK: Nanos = Nanos::from_millis(100);

/// Descriptors that the node needs besides, and what a process takes: its connection, its bell, its pidfd.
const OTHER_DESCRIPTORS: u64 = 128;
const DESCRIPTORS_EACH: u64 = 3;

/// Connections at most, however many descriptors there are: all pages are looked at again and again.
const MAX_CONNECTIONS: u64 = 4_096;

/// Frames taken from a process before the next one's turn.
const FRAMES_AT_ONCE: usize = 16;

/// So many times that of a process that has ended: its names of entry points take some 30 frames.
const LAST_WORDS: usize = 4;

/// Names of what is waited for; a connection's are its number doubled, its process's one more.
pub(crate) const LISTENER: u64 = u64::MAX;
pub(crate) const WAKE: u64 = u64::MAX - 1;
pub(crate) const READING: u64 = u64::MAX - 2;
pub(crate) const CLIENTS: u64 = u64::MAX - 3;

/// Everything.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) book: leases::Config,
    pub(crate) copies: CopyOptions,
    pub(crate) launches: LaunchOptions,
    pub(crate) leases: Leases,
    pub(crate) measuring: Measuring,
    pub(crate) attaching: Attaching,
    pub(crate) signs: Signs,
    pub(crate) faults: FaultFacts,
    pub(crate) tenants: BTreeMap<TenantId, Tenant>,
    pub(super) promises: Promises,
    pub(crate) connections: BTreeMap<u64, Connection>,
    pub(crate) generation: u64,
    pub(crate) started: Nanos,
    /// `None` once all is over.
    pub(super) arbiter: Option<Arbiter>,
    pub(super) polls: Arc<OwnedFd>,
    wake: OwnedFd,
    pub(super) next: u64,
    pub(crate) max_connections: u64,
    /// Tenants whose pages may say what is no longer so.
    pub(super) dirty: BTreeSet<TenantId>,
    pub(crate) actions: Vec<Action>,
}

impl State {
    pub(crate) fn new(
        book: leases::Config,
        copies: CopyOptions,
        launches: LaunchOptions,
        leases: Leases,
        arbiter: Arbiter,
        measuring: Measuring,
        attaching: Attaching,
    ) -> io::Result<Self> {
        let mut generation = [0; 8];
        getrandom(&mut generation, GetRandomFlags::empty())?;
        let polls = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&polls, &wake, epoll::EventData::new_u64(WAKE), epoll::EventFlags::IN)?;
        if let Some(bell) = measuring.bell() {
            epoll::add(&polls, bell, epoll::EventData::new_u64(READING), epoll::EventFlags::IN)?;
        }
        if let Some(bell) = attaching.bell() {
            epoll::add(&polls, bell, epoll::EventData::new_u64(CLIENTS), epoll::EventFlags::IN)?;
        }
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let max_connections = descriptors.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_EACH;
        Ok(Self {
            book,
            copies,
            launches,
            leases,
            measuring,
            attaching,
            signs: Signs::new()?,
            faults: FaultFacts::default(),
            tenants: BTreeMap::new(),
            promises: Promises::default(),
            connections: BTreeMap::new(),
            generation: u64::from_ne_bytes(generation),
            started: clock::now(),
            arbiter: Some(arbiter),
            polls: Arc::new(polls),
            wake,
            next: 0,
            max_connections: max_connections.clamp(1, MAX_CONNECTIONS),
            dirty: BTreeSet::new(),
            actions: Vec::new(),
        })
    }

    /// What the thread waits on.
    pub(crate) fn polls(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.polls)
    }

    pub(crate) const fn is_over(&self) -> bool {
        self.arbiter.is_none()
    }

    /// Leaves all processes to themselves and lets the thread end.
    pub(crate) fn stop(&mut self) {
        for member in self.connections.values().filter_map(Connection::member) {
            member.page.node.heartbeat_ns.store(0, Ordering::Relaxed);
            member.leave_alone();
        }
        self.arbiter = None;
        self.connections.clear();
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    pub(crate) fn woken(&self) {
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    pub(crate) fn add_tenant(&mut self, spec: &TenantSpec) -> Result<(), AddError> {
        let now = clock::now();
        self.leases.add_tenant(spec.id, spec.class, spec.memory)?;
        if let Some(arbiter) = &self.arbiter {
            arbiter.add_tenant(spec.id, spec.class, spec.weight);
        }
        self.tenants.insert(spec.id, Tenant::new(spec.clone(), now));
        self.promises.add_tenant(spec);
        if spec.squeezed_sms.is_some()
            && let (Some(setting), Some(arbiter)) = (self.promises.squeezes(), &self.arbiter)
        {
            arbiter.steer(setting);
        }
        // What is not guaranteed to anybody is less now.
        self.dirty.extend(self.tenants.keys());
        self.admit_early(now);
        self.settle(now);
        Ok(())
    }

    pub(crate) fn tenant_event(&mut self, id: TenantId, event: TenantEvent) {
        let Some(tenant) = self.tenants.get_mut(&id) else { return };
        match event {
            TenantEvent::Started { run } => tenant.restarts = run.saturating_sub(1),
            TenantEvent::Ended { .. } => tenant.over = true,
        }
    }

    pub(crate) fn remove_tenant(&mut self, id: TenantId) {
        let now = clock::now();
        for number in self.members_of(id) {
            self.gone(number, now);
        }
        self.leases.remove_tenant(now, id, &mut self.actions);
        if let Some(arbiter) = &self.arbiter {
            arbiter.remove_tenant(id);
        }
        self.tenants.remove(&id);
        self.promises.remove_tenant(id);
        self.dirty.extend(self.tenants.keys());
        self.settle(now);
    }

    /// A connection has something to say, or its process has ended.
    pub(crate) fn happened(&mut self, name: u64, now: Nanos) {
        let number = name / 2;
        if name % 2 == 1 {
            // The names of what it used are among what it said last.
            (0..LAST_WORDS).for_each(|_| self.frames(number, now));
            self.gone(number, now);
        } else {
            self.frames(number, now);
        }
    }

    /// Takes what a process has sent, as far as it is its turn.
    fn frames(&mut self, number: u64, now: Nanos) {
        for _ in 0..FRAMES_AT_ONCE {
            let Some(connection) = self.connections.get(&number) else { return };
            let Some(socket) = &connection.socket else { return };
            let tenant = connection.member().map(|member| member.tenant);
            if let Some(tenant) = tenant.and_then(|id| self.tenants.get_mut(&id))
                && !tenant.may_speak(now)
            {
                self.pause(number);
                return;
            }
            match socket.receive() {
                Ok(None) => return,
                Ok(Some(received)) => match ToNode::decode(&received.bytes) {
                    Ok(frame) => self.frame(number, frame, now),
                    Err(error) => self.rubbish(number, &error.to_string(), now),
                },
                Err(Error::Frame(error)) => self.rubbish(number, &error.to_string(), now),
                Err(_) => self.disconnected(number, now),
            }
        }
    }

    fn frame(&mut self, number: u64, frame: ToNode, now: Nanos) {
        let process = ProcessId(number);
        let Some(connection) = self.connections.get(&number) else { return };
        let (stage, tenant) = (&connection.stage, connection.member().map(|member| member.tenant));
        match (frame, stage, tenant) {
            (ToNode::Hello { version, token, held_bytes }, Stage::New { .. }, _) => {
                self.hello(number, version, (token, Bytes(held_bytes)), now);
            }
            (ToNode::Ask { need_bytes, want_bytes }, _, Some(_)) => {
                self.look_at_memory();
                let (need, want) = (Bytes(need_bytes), Bytes(want_bytes));
                self.leases.step(now, Event::Ask { process, need, want }, &mut self.actions);
                self.apply(now);
            }
            (ToNode::Give { bytes }, _, Some(_)) => {
                self.look_at_memory();
                self.leases.step(now, Event::Give { process, bytes: Bytes(bytes) }, &mut self.actions);
                self.apply(now);
            }
            (ToNode::Coverage { disposition, names }, _, Some(id)) => {
                let sense = self.tenants.get_mut(&id).is_none_or(|tenant| tenant.covers(disposition, &names));
                if !sense {
                    self.mark(id, "a process named entry points that are none");
                }
            }
            (ToNode::Notice { text }, _, Some(id)) => {
                if let Some(tenant) = self.tenants.get_mut(&id) {
                    tenant.notes(&text);
                }
            }
            (_, Stage::New { .. } | Stage::Early { .. }, _) => {
                self.refuse(
                    number,
                    "the first frame must be a hello, and the next one wait for its answer".to_owned(),
                );
            }
            (_, Stage::Member(_), _) => self.rubbish(number, "a second hello", now),
        }
    }

    pub(crate) fn mark(&mut self, id: TenantId, what: &'static str) {
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.marks.insert(what);
        }
    }

    /// A process sends what is no frame, or not one that it may send now.
    fn rubbish(&mut self, number: u64, what: &str, now: Nanos) {
        match self.connections.get(&number).and_then(Connection::member).map(|member| member.tenant) {
            Some(id) => {
                self.mark(id, "a process sent frames that make no sense");
                self.disconnected(number, now);
            }
            // A first frame of another version may look like that.
            None => self.refuse(
                number,
                format!("{what}; the node speaks version {VERSION}: start the tenant again with the partywall that runs the node"),
            ),
        }
    }

    /// A connection is over. What its process holds stays counted until that ends.
    fn disconnected(&mut self, number: u64, now: Nanos) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        connection.socket = None;
        match connection.member().filter(|_| connection.pidfd.is_some()) {
            None => self.gone(number, now),
            Some(member) => {
                member.leave_alone();
                if let Some(arbiter) = &self.arbiter {
                    arbiter.remove(ProcessId(number));
                }
            }
        }
    }

    /// A process is over, with all that it held.
    pub(crate) fn gone(&mut self, number: u64, now: Nanos) {
        self.leaves(number, now);
        let Some(mut connection) = self.connections.remove(&number) else { return };
        if let Some(member) = connection.member_mut() {
            member.claims.read(&member.page);
            if let Some(tenant) = self.tenants.get_mut(&member.tenant) {
                tenant.ended.add(&member.claims.counters);
                tenant.ended_late += member.copies.late.load(Ordering::Relaxed);
            }
            self.dirty.insert(member.tenant);
            member.leave_alone();
            self.promises.remove(now, number);
            self.say_slices(now);
            if let Some(arbiter) = &self.arbiter {
                arbiter.remove(ProcessId(number));
            }
            self.leases.step(now, Event::Gone { process: ProcessId(number) }, &mut self.actions);
            self.apply(now);
        }
    }

    /// Does what was decided about memory.
    pub(crate) fn apply(&mut self, now: Nanos) {
        for action in std::mem::take(&mut self.actions) {
            let (ProcessId(number), frame) = match action {
                Action::Answer { process, total, granted } => {
                    (process, Some(ToShim::Lease { total_bytes: total.0, granted }))
                }
                Action::Recall { process } => (process, Some(ToShim::Recall)),
                Action::Flood { process } => (process, None),
            };
            let Some(connection) = self.connections.get(&number) else { continue };
            let Some(member) = connection.member() else { continue };
            self.dirty.insert(member.tenant);
            let Some(frame) = frame else {
                self.rubbish(number, "questions without waiting for answers", now);
                continue;
            };
            let sent =
                connection.socket.as_ref().is_some_and(|socket| socket.send(&frame.encode(), &[]).is_ok());
            // A recall is sent again; an answer that does not get through has nobody who waits for it.
            if !sent && frame != ToShim::Recall && connection.socket.is_some() {
                self.disconnected(number, now);
            }
        }
    }

    /// What follows from all that happened: late answers, and pages that say what is.
    pub(crate) fn settle(&mut self, now: Nanos) {
        if self.leases.deadline().is_some_and(|at| at <= now) {
            self.leases.step(now, Event::Time, &mut self.actions);
        }
        // What is done may end a connection, and that free memory that somebody waits for.
        while !self.actions.is_empty() {
            self.apply(now);
        }
        for id in std::mem::take(&mut self.dirty) {
            self.publish(id);
        }
    }

    fn publish(&self, id: TenantId) {
        let (quota, used) = (self.leases.quota(id), self.leases.used(id));
        for (&number, connection) in &self.connections {
            if let Some(member) = connection.member().filter(|member| member.tenant == id) {
                member.publish(quota, used, &self.leases.held(ProcessId(number)));
            }
        }
    }

    /// What is due every [`TICK`].
    pub(crate) fn tick(&mut self, now: Nanos) {
        for member in self.connections.values().filter_map(Connection::member) {
            member.page.node.heartbeat_ns.store(now.0, Ordering::Relaxed);
        }
        self.look_at_memory();
        self.leases.step(now, Event::Time, &mut self.actions);
        self.dirty.extend(self.tenants.keys());
        self.resume(now);
        self.end_silent(now);
        self.measure(now);
        self.look_for_clients(now);
        self.look_for_signs(now);
        self.say_slices(now);
    }

    /// What is due every second.
    pub(crate) fn look_at_pages(&mut self) {
        let mut marks = Vec::new();
        for connection in self.connections.values_mut() {
            let Stage::Member(member) = &mut connection.stage else { continue };
            if !member.claims.read(&member.page) || member.copies.nonsense.load(Ordering::Relaxed) {
                marks.push(member.tenant);
            }
            let covered = member.claims.levels.covered.iter().sum();
            if covered != member.asked_coverage
                && let Some(socket) = &connection.socket
            {
                member.asked_coverage = covered;
                // Whoever does not read its frames is not asked for more.
                let _ = socket.send(&ToShim::AskCoverage.encode(), &[]);
            }
        }
        marks.into_iter().for_each(|id| self.mark(id, "a process wrote into its page what cannot be"));
    }

    fn look_at_memory(&mut self) {
        let now = self.started;
        for (&number, connection) in &self.connections {
            if let Some(member) = connection.member() {
                let bytes = Bytes(member.page.shim.memory_bytes.load(Ordering::Relaxed));
                let used = Event::Used { process: ProcessId(number), bytes };
                self.leases.step(now, used, &mut self.actions);
            }
        }
    }

    /// Does not listen to a connection until the next tick.
    fn pause(&mut self, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else { return };
        if let Some(socket) = &connection.socket {
            connection.paused = epoll::delete(&self.polls, socket).is_ok();
        }
    }

    fn resume(&mut self, now: Nanos) {
        let paused: Vec<_> =
            self.connections.iter().filter(|(_, one)| one.paused).map(|(&number, _)| number).collect();
        for number in paused {
            let Some(connection) = self.connections.get_mut(&number) else { continue };
            connection.paused = false;
            let name = epoll::EventData::new_u64(number * 2);
            let listens = connection
                .socket
                .as_ref()
                .is_none_or(|socket| epoll::add(&self.polls, socket, name, epoll::EventFlags::IN).is_ok());
            if !listens {
                self.disconnected(number, now);
            }
        }
    }

    pub(crate) fn forget_resizes(&mut self) {
        for member in self.connections.values_mut().filter_map(Connection::member_mut) {
            // The page is the tenant's to write, who may have begun the next one; then that is the longest, or forgotten as well.
            member.page.shim.longest_resize_ns.store(0, Ordering::Relaxed);
            member.claims.levels.longest_resize_ns = 0;
        }
    }

    pub(crate) fn members_of(&self, id: TenantId) -> Vec<u64> {
        let is_one = |connection: &Connection| connection.member().is_some_and(|member| member.tenant == id);
        self.connections.iter().filter(|(_, one)| is_one(one)).map(|(&number, _)| number).collect()
    }
}
