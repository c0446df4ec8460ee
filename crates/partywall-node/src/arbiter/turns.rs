//! Which process may put how many bytes on the link next.
//!
//! # Problem
//!
//! `copy_scheduler` shares the link between tenants that are single and honest. Here a tenant is many processes, each known
//! by a few numbers in a page that it writes itself, and any of them may be stopped, die, or say what is not so.
//!
//! # Approach
//!
//! Each process says how many bytes are *ready* in a direction and how many are *done*; it is *granted* bytes in packets.
//! The scheduler has one lane per tenant, which is given a few packets ahead ([`Config::in_flight`] of them: fewer, and the lane would run
//! dry, and lose its turn, while several packets start at once). Which process the next one belongs to goes round among
//! the tenant's processes, so that one with gigabytes ready does not hold up its siblings.
//!
//! What a process says is a claim:
//!
//! - Bytes done are those granted at most, bytes ready grow by [`MAX_READY`] at most, and neither shrinks. Anything else is
//!   *nonsense*: reported, and taken as if nothing had been said.
//! - A packet that is not done in time is taken as done, so that the others go on: its process is *late*, and is granted
//!   nothing more until it is through with what it was granted. Copying is slow for good reasons too (under time-slicing the
//!   process waits for its slice), so the first limit is generous, [`PATIENCE`]. A tenant that was late is on probation, with
//!   [`SHORT_PATIENCE`], until [`PROBATION_PACKETS`] packets were in time: being late on purpose, again and again, takes little
//!   from the others.
//! - A process that lies about being done harms the others no more than one that copies without asking, which a preloaded library
//!   cannot prevent either; it is seen in the rates.
//!
//! # Terms and units
//!
//! Positions are bytes since the process registered, and wrap. Times are nanoseconds of the caller's clock.
//!
//! # Scenarios
//!
//! - S1: ready bytes are granted in packets, never more of them in flight than configured.
//! - S2: tenants share by weight, however many processes they have.
//! - S3: a latency-sensitive packet waits for the packets in flight and no longer.
//! - S4: a stopped process holds the others up for its patience, once.
//! - S5: a process dies with packets in flight: the others go on at once.
//! - S6: nonsense changes nothing for anybody.

use std::collections::{BTreeMap, VecDeque};

use partywall_core::copy_scheduler::{
    Action, Config, ConfigError, CopyId, CopyScheduler, Direction, Event, MAX_TENANTS,
};
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};

use crate::leases::ProcessId;

#[cfg(test)]
mod tests;

/// How long a packet may take, besides its bytes at `SLOW_BYTES_PER_NS`: time slices of all neighbours, and a host thread that waits
/// for a processor.
pub const PATIENCE: Nanos = Nanos::from_millis(50);

/// The same for a tenant that was late lately.
pub const SHORT_PATIENCE: Nanos = Nanos::from_millis(5);

/// Packets in time after which a tenant that was late is trusted again.
pub const PROBATION_PACKETS: u32 = 256;

/// 1 GB/s: a tenth of what the slowest link in use has (PCIe 3 x8, by its specification).
const SLOW_BYTES_PER_NS: u64 = 1;

/// Bytes that may become ready between two looks: more than any GPU or host holds.
pub const MAX_READY: u64 = 1 << 44;

/// A process may put bytes on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub process: ProcessId,
    /// Which way.
    pub direction: Direction,
    /// Up to this position.
    pub granted: u64,
}

/// What came of looking at a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen {
    /// It got on, or wants to.
    pub moved: bool,
    /// It says what cannot be.
    pub nonsense: bool,
}

/// The turns of all processes of a GPU on its link.
#[derive(Debug)]
pub struct Turns {
    scheduler: CopyScheduler,
    /// By lane of the scheduler.
    tenants: Vec<Option<Tenant>>,
    processes: BTreeMap<ProcessId, Process>,
    actions: Vec<Action>,
    /// Packets in flight, per direction.
    flights: [usize; 2],
    /// No packet's time is over before this.
    next_late: Nanos,
}

#[derive(Debug)]
struct Tenant {
    id: TenantId,
    class: Class,
    probation: u32,
    lanes: [Lane; 2],
}

/// A tenant's packets in one direction.
#[derive(Debug, Default)]
struct Lane {
    /// Packets that the scheduler has and has not started.
    queued: u32,
    /// Processes with ready bytes that the scheduler does not have, in the order of their turns.
    round: VecDeque<ProcessId>,
}

#[derive(Debug)]
struct Process {
    lane: usize,
    sides: [Side; 2],
    late_count: u64,
}

#[derive(Debug, Default)]
struct Side {
    ready: u64,
    /// Given to the scheduler.
    submitted: u64,
    granted: u64,
    done: u64,
    flights: VecDeque<Flight>,
    /// Nothing more until it is done up to here.
    late: Option<u64>,
    in_round: bool,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    end: u64,
    until: Nanos,
}

impl Turns {
    /// With no process yet.
    ///
    /// # Errors
    /// When a parameter is outside the bounds that [`Config`] states.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        let scheduler = CopyScheduler::new(config)?;
        Ok(Self {
            scheduler,
            tenants: Vec::new(),
            processes: BTreeMap::new(),
            actions: Vec::new(),
            flights: [0; 2],
            next_late: Nanos::MAX,
        })
    }

    /// The parameters.
    pub const fn config(&self) -> &Config {
        self.scheduler.config()
    }

    /// Takes a tenant; `false` when it is there already or there are too many.
    pub fn add_tenant(&mut self, now: Nanos, id: TenantId, class: Class, weight: u32) -> bool {
        if self.tenants.iter().flatten().any(|tenant| tenant.id == id) {
            return false;
        }
        let free = self.tenants.iter().position(Option::is_none);
        let lane = free.unwrap_or(self.tenants.len());
        if lane >= MAX_TENANTS {
            return false;
        }
        let tenant = Tenant { id, class, probation: 0, lanes: [Lane::default(), Lane::default()] };
        if lane == self.tenants.len() {
            self.tenants.push(Some(tenant))
        } else {
            self.tenants[lane] = Some(tenant)
        }
        self.scheduler.step(now, Event::Weigh { tenant: TenantId(lane as u32), weight }, &mut self.actions);
        true
    }

    /// Forgets a tenant and its processes.
    pub fn remove_tenant(&mut self, now: Nanos, id: TenantId, grants: &mut Vec<Grant>) {
        let Some(lane) = self.lane_of(id) else { return };
        let of_tenant = |(&process, state): (&ProcessId, &Process)| (state.lane == lane).then_some(process);
        let gone: Vec<_> = self.processes.iter().filter_map(of_tenant).collect();
        for process in gone {
            self.remove(now, process, grants);
        }
        // All its flights have been ended, so that nothing but queued packets of the dead is dropped.
        self.scheduler.step(now, Event::Cancel { tenant: TenantId(lane as u32) }, &mut self.actions);
        self.actions.clear();
        self.tenants[lane] = None;
    }

    /// A process of a tenant has registered; all its positions are zero. `false` when the tenant is not known.
    pub fn add(&mut self, process: ProcessId, tenant: TenantId) -> bool {
        let Some(lane) = self.lane_of(tenant) else { return false };
        let state = Process { lane, sides: [Side::default(), Side::default()], late_count: 0 };
        self.processes.insert(process, state);
        true
    }

    /// A process is gone: what it had in flight is taken as done.
    pub fn remove(&mut self, now: Nanos, process: ProcessId, grants: &mut Vec<Grant>) {
        let Some(state) = self.processes.remove(&process) else { return };
        for direction in Direction::ALL {
            for _ in &state.sides[direction as usize].flights {
                self.packet_done(now, state.lane, process, direction, grants);
            }
            if let Some(tenant) = &mut self.tenants[state.lane] {
                tenant.lanes[direction as usize].round.retain(|&other| other != process);
            }
        }
    }

    /// Whether a process says anything new of a direction; cheap, for those who look again and again.
    pub fn is_news(&self, process: ProcessId, direction: Direction, (ready, done): (u64, u64)) -> bool {
        self.processes.get(&process).is_some_and(|state| {
            let side = &state.sides[direction as usize];
            (side.ready, side.done) != (ready, done)
        })
    }

    /// Takes in which bytes a process says are ready. Do this for all processes before [`Turns::done`] for any: a place on the link that
    /// becomes free then goes to whoever is next of all that wait.
    pub fn ready(
        &mut self,
        now: Nanos,
        process: ProcessId,
        direction: Direction,
        ready: u64,
        grants: &mut Vec<Grant>,
    ) -> Seen {
        let Some(state) = self.processes.get_mut(&process) else { return Seen::default() };
        let (lane, side) = (state.lane, &mut state.sides[direction as usize]);
        let more = ready.wrapping_sub(side.ready);
        let sense = more <= MAX_READY;
        if sense && more > 0 {
            side.ready = ready;
            self.enter_round(process, direction);
            self.feed(now, lane, direction, grants);
        }
        Seen { moved: sense && more > 0, nonsense: !sense }
    }

    /// Takes in which bytes a process says are done.
    pub fn done(
        &mut self,
        now: Nanos,
        process: ProcessId,
        direction: Direction,
        done: u64,
        grants: &mut Vec<Grant>,
    ) -> Seen {
        let Some(state) = self.processes.get_mut(&process) else { return Seen::default() };
        let (lane, side) = (state.lane, &mut state.sides[direction as usize]);
        let more = done.wrapping_sub(side.done);
        if more > side.granted.wrapping_sub(side.done) {
            return Seen { moved: false, nonsense: true };
        }
        if more == 0 {
            return Seen::default();
        }
        side.done = done;
        // Nothing in flight is further away than half of all positions.
        let is_over = |end: u64| done.wrapping_sub(end) < u64::MAX / 2;
        let mut ended = 0;
        while side.flights.front().is_some_and(|flight| is_over(flight.end)) {
            side.flights.pop_front();
            ended += 1;
        }
        side.late = side.late.filter(|&end| !is_over(end));
        if let Some(tenant) = &mut self.tenants[lane] {
            tenant.probation = tenant.probation.saturating_sub(ended);
        }
        self.enter_round(process, direction);
        for _ in 0..ended {
            self.packet_done(now, lane, process, direction, grants);
        }
        self.feed(now, lane, direction, grants);
        Seen { moved: true, nonsense: false }
    }

    /// Takes packets whose time is over as done. Returns the processes that are late with them.
    pub fn expire(&mut self, now: Nanos, grants: &mut Vec<Grant>) -> Vec<ProcessId> {
        let mut late = Vec::new();
        if now < self.next_late {
            return Vec::new();
        }
        self.next_late = Nanos::MAX;
        for (&process, state) in &mut self.processes {
            for direction in Direction::ALL {
                let side = &mut state.sides[direction as usize];
                while side.flights.front().is_some_and(|flight| flight.until <= now) {
                    side.late = side.flights.pop_front().map(|flight| flight.end);
                    late.push((process, state.lane, direction));
                    state.late_count += 1;
                }
                let next = side.flights.front().map_or(Nanos::MAX, |flight| flight.until);
                self.next_late = self.next_late.min(next);
            }
        }
        for &(process, lane, direction) in &late {
            if let Some(tenant) = &mut self.tenants[lane] {
                tenant.probation = PROBATION_PACKETS;
                tenant.lanes[direction as usize].round.retain(|&other| other != process);
            }
            if let Some(state) = self.processes.get_mut(&process) {
                state.sides[direction as usize].in_round = false;
            }
            self.packet_done(now, lane, process, direction, grants);
        }
        late.into_iter().map(|(process, ..)| process).collect()
    }

    /// Whether packets are in flight: there is something to watch. What is ready and not late is then in flight or behind it.
    pub fn is_busy(&self) -> bool {
        self.flights != [0; 2]
    }

    /// Whether packets are in flight in a direction.
    pub const fn is_under_way(&self, direction: Direction) -> bool {
        self.flights[direction as usize] > 0
    }

    /// When [`Turns::expire`] is due, or earlier.
    pub fn deadline(&self) -> Option<Nanos> {
        self.is_busy().then_some(self.next_late)
    }

    /// How often a process was late.
    pub fn late_count(&self, process: ProcessId) -> u64 {
        self.processes.get(&process).map_or(0, |state| state.late_count)
    }

    /// A tenant's class.
    pub fn class(&self, id: TenantId) -> Option<Class> {
        let tenant = self.tenants.get(self.lane_of(id)?)?;
        tenant.as_ref().map(|tenant| tenant.class)
    }

    fn lane_of(&self, id: TenantId) -> Option<usize> {
        self.tenants.iter().position(|tenant| tenant.as_ref().is_some_and(|tenant| tenant.id == id))
    }

    fn enter_round(&mut self, process: ProcessId, direction: Direction) {
        let Some(state) = self.processes.get_mut(&process) else { return };
        let side = &mut state.sides[direction as usize];
        let Some(tenant) = &mut self.tenants[state.lane] else { return };
        if !side.in_round && side.late.is_none() && side.submitted != side.ready {
            side.in_round = true;
            tenant.lanes[direction as usize].round.push_back(process);
        }
    }

    /// Gives the scheduler packets of a tenant, up to as many as may be in flight.
    fn feed(&mut self, now: Nanos, lane: usize, direction: Direction, grants: &mut Vec<Grant>) {
        let (depth, packet) = (self.config().in_flight, self.config().packet.0);
        while let Some(tenant) = self.tenants.get_mut(lane).and_then(Option::as_mut) {
            let turn = &mut tenant.lanes[direction as usize];
            if turn.queued >= depth {
                break;
            }
            let Some(process) = turn.round.pop_front() else { break };
            let Some(state) = self.processes.get_mut(&process) else { continue };
            let side = &mut state.sides[direction as usize];
            side.in_round = false;
            let bytes = side.ready.wrapping_sub(side.submitted).min(packet);
            side.submitted = side.submitted.wrapping_add(bytes);
            turn.queued += 1;
            let (class, id) = (tenant.class, CopyId(process.0));
            let (tenant, bytes) = (TenantId(lane as u32), Bytes(bytes));
            self.enter_round(process, direction);
            self.scheduler.step(
                now,
                Event::Submit { tenant, class, id, direction, bytes },
                &mut self.actions,
            );
            self.apply(now, grants);
        }
    }

    fn packet_done(
        &mut self,
        now: Nanos,
        lane: usize,
        process: ProcessId,
        direction: Direction,
        grants: &mut Vec<Grant>,
    ) {
        self.flights[direction as usize] -= 1;
        let (tenant, id) = (TenantId(lane as u32), CopyId(process.0));
        self.scheduler.step(now, Event::PacketDone { tenant, id, direction }, &mut self.actions);
        self.apply(now, grants);
    }

    /// Does what the scheduler decided. Packets of processes that are gone or late by now are over as soon as
    /// they start.
    fn apply(&mut self, now: Nanos, grants: &mut Vec<Grant>) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                if let Action::StartPacket { tenant, id, direction, bytes, .. } = action {
                    self.start(now, (tenant, id, direction), bytes, grants);
                }
            }
        }
    }

    fn start(
        &mut self,
        now: Nanos,
        (lane, id, direction): (TenantId, CopyId, Direction),
        bytes: Bytes,
        grants: &mut Vec<Grant>,
    ) {
        self.flights[direction as usize] += 1;
        let process = ProcessId(id.0);
        let mut patience = PATIENCE;
        if let Some(tenant) = &mut self.tenants[lane.index()] {
            tenant.lanes[direction as usize].queued -= 1;
            if tenant.probation > 0 {
                patience = SHORT_PATIENCE;
            }
        }
        let side = self.processes.get_mut(&process).map(|state| &mut state.sides[direction as usize]);
        match side {
            Some(side) if side.late.is_none() => {
                side.granted = side.granted.wrapping_add(bytes.0);
                let until = now.saturating_add(patience).saturating_add(Nanos(bytes.0 / SLOW_BYTES_PER_NS));
                self.next_late = self.next_late.min(until);
                side.flights.push_back(Flight { end: side.granted, until });
                grants.push(Grant { process, direction, granted: side.granted });
            }
            // Late since the scheduler was given this packet: it is given again when the process gets on.
            Some(side) => {
                side.submitted = side.submitted.wrapping_sub(bytes.0);
                self.packet_done(now, lane.index(), process, direction, grants);
            }
            None => self.packet_done(now, lane.index(), process, direction, grants),
        }
        self.feed(now, lane.index(), direction, grants);
    }
}
