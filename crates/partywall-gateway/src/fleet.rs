//! The replicas and the decision: one lock around the router, and what has to happen around each of its answers.
//!
//! A request that is sent has a [`Ticket`], one that is held a [`Place`] in the queue. Both take themselves back when they are dropped, so a
//! client that leaves at any moment leaves nothing behind.
//!
//! The lock is held for a decision, some microseconds, never across anything that waits.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::breaker::{self, Breaker, State as BreakerState};
use partywall_routing::prefix::PrefixHash;
use partywall_routing::replica::{Capacity, GpuState, Load, ReplicaId};
use partywall_routing::router::{Arrival, ModelId, Placement, Refusal, RequestId, Router, Verdict};
use tokio::sync::{Notify, oneshot};

use crate::clock;
use crate::error::Error;
use crate::knowledge::Knowledge;
use crate::replica::Replica;

/// All replicas, and who is where.
pub(crate) struct Fleet {
    state: Mutex<State>,
    /// That the time of the next look may have changed.
    changed: Notify,
    next_request: AtomicU64,
    next_generation: AtomicU64,
    breaker: breaker::Settings,
    pub(crate) knowledge: Arc<Knowledge>,
}

struct State {
    router: Router,
    /// By [`ReplicaId`].
    entries: Vec<Option<Entry>>,
    names: BTreeMap<String, ReplicaId>,
    waiting: BTreeMap<RequestId, Waiting>,
    /// Kept for its memory.
    verdicts: Vec<(RequestId, Verdict)>,
}

/// A request that is held.
struct Waiting {
    sender: oneshot::Sender<Told>,
    /// What its replica will have computed, whichever that is.
    model: ModelId,
    prefixes: Vec<PrefixHash>,
}

struct Entry {
    replica: Arc<Replica>,
    breaker: Breaker,
    draining: bool,
    /// What the router was told.
    available: bool,
    gpu: GpuState,
    under_way: u32,
    sent: u64,
    failed: u64,
}

/// What became of a request that was held.
pub(crate) enum Told {
    Sent(Ticket),
    Refused(Refusal),
}

/// What was decided about a request.
pub(crate) enum Decision {
    Sent(Ticket),
    Held(Place),
    Refused(Refusal),
}

/// How a request ended at a replica, as far as that speaks for the replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Succeeded,
    Failed,
    /// It says nothing: the client left, or its deadline passed.
    Abandoned,
}

/// What is known of a replica, for operators.
pub(crate) struct ReplicaView {
    pub replica: Arc<Replica>,
    pub up: bool,
    pub available: bool,
    pub draining: bool,
    pub breaker: BreakerState,
    pub gpu: GpuState,
    pub under_way: u32,
    pub sent: u64,
    pub failed: u64,
    pub load: Load,
}

impl Fleet {
    pub(crate) fn new(router: Router, breaker: breaker::Settings, knowledge: Arc<Knowledge>) -> Self {
        let state = State {
            router,
            entries: Vec::new(),
            names: BTreeMap::new(),
            waiting: BTreeMap::new(),
            verdicts: Vec::new(),
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
            next_request: AtomicU64::new(1),
            next_generation: AtomicU64::new(1),
            breaker,
            knowledge,
        }
    }

    /// What held the lock and panicked has left nothing half done that matters more than going on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a replica. `make` gets its id and a number that no other replica has had.
    pub(crate) fn add(
        self: &Arc<Self>,
        name: &str,
        capacity: Capacity,
        models: &[ModelId],
        probed: bool,
        make: impl FnOnce(ReplicaId, u64) -> Replica,
    ) -> Result<Arc<Replica>, Error> {
        let problem = |problem: String| Error::Replica { name: name.to_owned(), problem };
        let mut state = self.lock();
        if state.names.contains_key(name) {
            return Err(problem("there is one of this name; remove that first".to_owned()));
        }
        let id = state.router.add_replica(clock::now(), capacity, models);
        let id = id.map_err(|error| problem(error.to_string()))?;
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        let replica = Arc::new(make(id, generation));
        let entry = Entry {
            replica: Arc::clone(&replica),
            breaker: Breaker::new(self.breaker, probed),
            draining: false,
            available: true,
            gpu: GpuState::default(),
            under_way: 0,
            sent: 0,
            failed: 0,
        };
        if state.entries.len() <= id.index() {
            state.entries.resize_with(id.index() + 1, || None);
        }
        state.entries[id.index()] = Some(entry);
        state.names.insert(name.to_owned(), id);
        let told = self.settle(&mut state, Some(id), clock::now());
        drop(state);
        deliver(told);
        Ok(replica)
    }

    /// Forgets a replica. What is under way there goes on.
    pub(crate) fn remove(self: &Arc<Self>, name: &str) -> Result<Arc<Replica>, Error> {
        let mut state = self.lock();
        let id = state.names.remove(name).ok_or_else(|| Error::NoReplica(name.to_owned()))?;
        state.router.remove_replica(id);
        let entry = state.entries.get_mut(id.index()).and_then(Option::take);
        let told = self.settle(&mut state, None, clock::now());
        drop(state);
        deliver(told);
        self.knowledge.forget(id);
        entry.map(|entry| entry.replica).ok_or_else(|| Error::NoReplica(name.to_owned()))
    }

    /// Whether a replica gets no more requests, while what is under way goes on.
    pub(crate) fn drain(self: &Arc<Self>, name: &str, draining: bool) -> Result<(), Error> {
        let mut state = self.lock();
        let id = *state.names.get(name).ok_or_else(|| Error::NoReplica(name.to_owned()))?;
        if let Some(Some(entry)) = state.entries.get_mut(id.index()) {
            entry.draining = draining;
        }
        let told = self.settle(&mut state, Some(id), clock::now());
        drop(state);
        deliver(told);
        Ok(())
    }

    /// What a probe found.
    pub(crate) fn probed(self: &Arc<Self>, replica: &Replica, passed: bool) {
        let event = if passed { breaker::Event::ProbePassed } else { breaker::Event::ProbeFailed };
        self.change(replica, |entry, now| entry.breaker.step(now, event));
    }

    /// What the node says of its GPU.
    pub(crate) fn set_gpu(self: &Arc<Self>, replica: &Replica, gpu: GpuState) {
        let mut state = self.lock();
        let known = state.entry(replica).is_some_and(|entry| std::mem::replace(&mut entry.gpu, gpu) != gpu);
        if !known {
            return;
        }
        state.router.set_gpu(replica.id, gpu);
        let told = self.settle(&mut state, None, clock::now());
        drop(state);
        deliver(told);
    }

    fn change(self: &Arc<Self>, replica: &Replica, change: impl FnOnce(&mut Entry, Nanos)) {
        let now = clock::now();
        let mut state = self.lock();
        if let Some(entry) = state.entry(replica) {
            change(entry, now);
        }
        let told = self.settle(&mut state, Some(replica.id), now);
        drop(state);
        deliver(told);
    }

    /// A name for a request.
    pub(crate) fn name(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// Decides about a request; `avoid` are replicas that have failed it, and are taken only if there is no other.
    pub(crate) fn arrive(self: &Arc<Self>, arrival: Arrival, avoid: &[ReplicaId]) -> Decision {
        let now = clock::now();
        let id = arrival.id;
        let (model, prefixes) = (arrival.model, arrival.prefixes.clone());
        let mut state = self.lock();
        for other in avoid {
            state.router.set_available(*other, false);
        }
        let verdict = state.router.arrive(now, arrival, self.knowledge.as_ref());
        for other in avoid {
            let available = state.entries.get(other.index()).and_then(Option::as_ref);
            let available = available.is_some_and(|entry| entry.available);
            state.router.set_available(*other, available);
        }
        match verdict {
            Verdict::Send(placement) => {
                let ticket = state.ticket(self, placement, now);
                drop(state);
                let Some(ticket) = ticket else { return Decision::Refused(Refusal::NoReplica) };
                self.knowledge.sent(model, &prefixes, placement.replica, now);
                Decision::Sent(ticket)
            }
            Verdict::Held => {
                let (sender, receiver) = oneshot::channel();
                state.waiting.insert(id, Waiting { sender, model, prefixes });
                // Also where it was held only because of those to avoid.
                let told = self.settle(&mut state, None, now);
                drop(state);
                deliver(told);
                Decision::Held(Place { fleet: Arc::clone(self), id, receiver })
            }
            Verdict::Refused(refusal) => Decision::Refused(refusal),
        }
    }

    /// Brings the router up to date with a replica's availability, and lets held requests go that may.
    fn settle(self: &Arc<Self>, state: &mut State, changed: Option<ReplicaId>, now: Nanos) -> Vec<Delivery> {
        if let Some(id) = changed {
            state.refresh(id, now);
        }
        if !state.waiting.is_empty() {
            self.changed.notify_one();
        }
        self.poll(state, now)
    }

    /// Lets held requests go that may.
    fn poll(self: &Arc<Self>, state: &mut State, now: Nanos) -> Vec<Delivery> {
        let mut told = Vec::new();
        if !state.waiting.is_empty() {
            let mut verdicts = std::mem::take(&mut state.verdicts);
            state.router.poll(now, self.knowledge.as_ref(), &mut verdicts);
            for (id, verdict) in verdicts.drain(..) {
                let message = match verdict {
                    Verdict::Held => continue,
                    Verdict::Refused(refusal) => Told::Refused(refusal),
                    Verdict::Send(placement) => {
                        if let Some(Waiting { model, prefixes, .. }) = state.waiting.get(&id) {
                            self.knowledge.sent(*model, prefixes, placement.replica, now);
                        }
                        let ticket = state.ticket(self, placement, now);
                        ticket.map_or(Told::Refused(Refusal::NoReplica), Told::Sent)
                    }
                };
                told.push((state.waiting.remove(&id).map(|waiting| waiting.sender), message));
            }
            state.verdicts = verdicts;
        }
        told
    }

    /// Looks after what time alone changes. Gives when to look again.
    pub(crate) fn tick(self: &Arc<Self>) -> Option<Nanos> {
        let now = clock::now();
        let mut state = self.lock();
        for index in 0..state.entries.len() {
            let due = |entry: &Entry| entry.breaker.next_change().is_some_and(|at| at <= now);
            if state.entries[index].as_ref().is_some_and(due) {
                state.refresh(ReplicaId(index as u32), now);
            }
        }
        // Not `settle`, which would have this looked at again at once.
        let told = self.poll(&mut state, now);
        let breakers = state.entries.iter().flatten().filter_map(|entry| entry.breaker.next_change());
        let breakers = breakers.filter(|at| *at > now).min();
        let next = [state.router.next_poll(), breakers].into_iter().flatten().min();
        drop(state);
        deliver(told);
        next
    }

    /// Waits until [`Fleet::tick`] may have something earlier to do than it said.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Requests that are held.
    pub(crate) fn held(&self, class: Class) -> usize {
        self.lock().router.held(class)
    }

    /// The replicas, in the order of their ids.
    pub(crate) fn views(&self) -> Vec<ReplicaView> {
        let now = clock::now();
        let mut state = self.lock();
        let State { router, entries, .. } = &mut *state;
        let view = |entry: &mut Entry| ReplicaView {
            replica: Arc::clone(&entry.replica),
            up: entry.breaker.is_up(),
            available: entry.available,
            draining: entry.draining,
            breaker: entry.breaker.state(now),
            gpu: entry.gpu,
            under_way: entry.under_way,
            sent: entry.sent,
            failed: entry.failed,
            load: router.load(entry.replica.id).unwrap_or_default(),
        };
        entries.iter_mut().flatten().map(view).collect()
    }
}

type Delivery = (Option<oneshot::Sender<Told>>, Told);

/// Outside of the lock: a ticket whose client has left takes itself back, for which it needs the lock.
fn deliver(told: Vec<Delivery>) {
    for (sender, message) in told {
        let _ = sender.map(|sender| sender.send(message));
    }
}

impl State {
    /// The entry of a replica, if it is still there.
    fn entry(&mut self, replica: &Replica) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(replica.id.index())?.as_mut()?;
        (entry.replica.generation == replica.generation).then_some(entry)
    }

    fn refresh(&mut self, id: ReplicaId, now: Nanos) {
        let Some(Some(entry)) = self.entries.get_mut(id.index()) else { return };
        let available = entry.breaker.admits(now) && !entry.draining;
        if std::mem::replace(&mut entry.available, available) != available {
            self.router.set_available(id, available);
        }
    }

    fn ticket(&mut self, fleet: &Arc<Fleet>, placement: Placement, now: Nanos) -> Option<Ticket> {
        let entry = self.entries.get_mut(placement.replica.index())?.as_mut()?;
        entry.breaker.step(now, breaker::Event::Sent);
        entry.under_way += 1;
        entry.sent += 1;
        let replica = Arc::clone(&entry.replica);
        self.refresh(placement.replica, now);
        Some(Ticket { fleet: Arc::clone(fleet), replica, placement, answered: false, over: false })
    }
}

/// A request's place at a replica.
pub(crate) struct Ticket {
    fleet: Arc<Fleet>,
    pub(crate) replica: Arc<Replica>,
    pub(crate) placement: Placement,
    answered: bool,
    over: bool,
}

impl Ticket {
    /// The first token is there.
    pub(crate) fn first_token(&mut self, now: Nanos) {
        if !std::mem::replace(&mut self.answered, true) {
            self.fleet.lock().router.first_token(now, self.placement.id, None);
        }
    }

    /// So many more tokens are.
    pub(crate) fn tokens(&self, count: u32) {
        self.fleet.lock().router.tokens(self.placement.id, count);
    }

    /// It is through.
    pub(crate) fn end(mut self, outcome: Outcome) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Outcome) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        let now = clock::now();
        let id = self.placement.id;
        let mut state = self.fleet.lock();
        let event = match outcome {
            Outcome::Succeeded => {
                if !self.answered {
                    state.router.first_token(now, id, None);
                }
                state.router.ended(now, id);
                breaker::Event::Succeeded
            }
            Outcome::Failed => {
                state.router.failed(now, id);
                breaker::Event::Failed
            }
            Outcome::Abandoned => {
                state.router.cancel(now, id);
                breaker::Event::Abandoned
            }
        };
        if let Some(entry) = state.entry(&self.replica) {
            entry.under_way = entry.under_way.saturating_sub(1);
            entry.failed += u64::from(outcome == Outcome::Failed);
            entry.breaker.step(now, event);
            if entry.breaker.next_change().is_some() {
                self.fleet.changed.notify_one();
            }
        }
        let told = self.fleet.settle(&mut state, Some(self.replica.id), now);
        drop(state);
        deliver(told);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.finish(Outcome::Abandoned);
    }
}

/// A request's place among those that are held.
pub(crate) struct Place {
    fleet: Arc<Fleet>,
    id: RequestId,
    receiver: oneshot::Receiver<Told>,
}

impl Place {
    /// Waits for what becomes of it.
    pub(crate) async fn wait(mut self) -> Told {
        let told = (&mut self.receiver).await;
        told.unwrap_or(Told::Refused(Refusal::NoReplica))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.fleet.lock();
        // Otherwise it was told already; a ticket that nobody took goes with the channel.
        if state.waiting.remove(&self.id).is_some() {
            state.router.cancel(clock::now(), self.id);
        }
    }
}
