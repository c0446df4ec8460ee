//! Who copies next between host and device.
//!
//! # Problem
//!
//! A GPU has one link to its host, and the hardware serves copies whole, in the order in which they arrive. A
//! 64 KiB copy takes 8.3 us alone. Behind a neighbour that copies 512 MiB at a time in the same direction it takes
//! 9 672 us, and 160 us behind one that copies 8 MiB at a time (measured on an H200 with PCIe 5 x16, November
//! 2026; so are the other figures here unless they are called estimates). The opposite direction does not
//! interfere (10.7 us).
//!
//! # Approach
//!
//! Copies are cut into **packets**, and a completely fair queue decides whose packet goes next. Two parameters
//! matter, and they pull apart:
//!
//! - The **packet size** decides the latency of the others: a small copy waits for what is on the link already.
//!   Beside packets of 1 MiB the 64 KiB copy takes 27.7 us, beside packets of 256 KiB 13.2 us.
//! - The **packets in flight** decide the rate of the one that copies: with a single one the link stands still
//!   between packets, and 1 MiB packets reach 37.5 GB/s, 256 KiB packets 19.6 GB/s, of the 56.9 GB/s of the link.
//!   That is a fixed cost of about 9 us per packet. A second packet in flight hides it when it takes at least
//!   9 us to send, which at 55 GB/s is 500 kB.
//!
//! So the default is two packets of 512 KiB: as much on the link as with one packet of 1 MiB (19 us), at close to
//! its full rate. That the rate is reached was an estimate from the figures above, and holds for packets that the hardware can
//! overlap. Where it cannot, because a copy begins only when the one before it has ended, a packet costs 2.5 us more, and 5.5 us
//! behind a gate (measured later): the node therefore asks for packets of 1.5 MiB.
//!
//! The queue is start-time fair queueing (Goyal, Vin, Cheng, SIGCOMM 1996), which is also the idea of Linux's CFS.
//! Each tenant has a **virtual runtime** per direction that advances by `bytes / weight` with each packet, and the
//! backlogged tenant with the smallest goes next. The **virtual time** of a direction is the virtual runtime at
//! which its last packet started. A tenant that wakes up continues from whichever is later, its own or the virtual
//! time, so idle time earns nothing. What follows from it, and is tested:
//!
//! - Over a time in which two tenants always have something to copy, `bytes / weight` of the two differs by at most
//!   one packet of each.
//! - A backlogged tenant of weight `w` sees, from each neighbour of weight `v`, at most `packet * v / w + packet`
//!   bytes before its own next packet. With the default weights a best-effort tenant lets at most nine packets of
//!   each latency-sensitive one pass. Nobody starves.
//!
//! A tenant weighs what its class does, unless it was given a weight of its own ([`Event::Weigh`]).
//!
//! Copies of one tenant in one direction go in their order of arrival, so a tenant sees its streams' order.
//!
//! A packet counts as at least [`Config::min_charge`] bytes: by bytes alone a flood of four-byte copies would be
//! free, although each costs the link microseconds.
//!
//! [`Policy::Fifo`] is what the hardware does without us: the same type, so that simulator and shim switch by
//! parameter and the comparison is between policies, not between programs.
//!
//! # Terms and units
//!
//! *Copy*: what a tenant asked for. *Packet*: a piece of it that the hardware gets as one copy. *Lane*: the copies
//! of one tenant in one direction. *Backlogged*: a lane with bytes that have not been started. Sizes are bytes,
//! virtual runtimes 2^-16 bytes per unit of weight, times nanoseconds of the caller's clock.
//!
//! The caller does the copying: it starts a packet when told to, and reports each one that has ended.
//!
//! # Scenarios
//!
//! - S1: one copy goes out as packets, in order, never more in flight than allowed; it is done when its last packet is.
//! - S2: under FIFO copies go whole, in order of arrival, one at a time.
//! - S3: a small copy waits for packets, not for copies.
//! - S4: two tenants that always copy share the link by weight.
//! - S5: a tenant that slept gets no credit for it.
//! - S6: the two directions do not wait for each other.
//! - S7: a tenant dies: its copies are dropped and reported, and a packet on the link keeps its place until it ends.
//! - S8: a tenant that runs too far ahead is refused, its neighbours are not.
//! - S9: a copy of nothing is done at once.
//! - S10: a flood of tiny copies does not hold up a large one.
//! - S11: tenants with weights of their own share the link by those, until they are gone.
//! - S12: what was never started cannot end; impossible parameters are refused.

use std::collections::VecDeque;

use crate::tenant::{Class, TenantId};
use crate::units::{Bytes, Nanos};

#[cfg(test)]
mod tests;

/// Copies that one tenant may have waiting in one direction. A tenant this far ahead has more than a gigabyte
/// queued in packets of a megabyte, some 20 ms of link: it should wait rather than the queue grow.
pub const MAX_QUEUED: usize = 1024;

/// Packets in flight that may be configured. Two or three fill the link; what is beyond only adds latency.
pub const MAX_IN_FLIGHT: u32 = 16;

/// Largest packet that may be configured: at 19 ms of link it protects nobody any more. The virtual runtime of one
/// packet relies on it to fit 64 bits.
pub const MAX_PACKET: Bytes = Bytes::from_gib(1);

/// Largest weight. The wait of the lightest tenant grows with the ratio of the weights: beyond this, it starves.
pub const MAX_WEIGHT: u32 = 1024;

/// Tenant indexes are below this, so that a wrong one cannot make the lanes take all memory. A node of eight GPUs
/// with 48 MPS clients each has 384.
pub const MAX_TENANTS: usize = 4096;

/// Fractional bits of a virtual runtime: one byte at the largest weight still counts.
const VIRTUAL_BITS: u32 = 16;

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Host to device.
    HostToDevice,
    /// Device to host.
    DeviceToHost,
}

impl Direction {
    /// Both.
    pub const ALL: [Self; 2] = [Self::HostToDevice, Self::DeviceToHost];

    const fn index(self) -> usize {
        self as usize
    }
}

/// The caller's name for a copy. It is only ever used together with the tenant, so one tenant's choice cannot
/// disturb another; a tenant that gives two copies the same id gets them reported in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopyId(pub u64);

/// In which order packets go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Packets, by weighted fair shares.
    Fair,
    /// Whole copies in order of arrival, one at a time: the hardware's own behaviour.
    Fifo,
}

/// The parameters. [`Config::default`] explains its choices in the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// In which order packets go. The other fields only matter to [`Policy::Fair`].
    pub policy: Policy,
    /// Largest packet, 1 B to [`MAX_PACKET`].
    pub packet: Bytes,
    /// Packets outstanding per direction, 1 to [`MAX_IN_FLIGHT`].
    pub in_flight: u32,
    /// Weight of latency-sensitive tenants, 1 to [`MAX_WEIGHT`].
    pub weight_ls: u32,
    /// Weight of best-effort tenants, 1 to [`MAX_WEIGHT`].
    pub weight_be: u32,
    /// What a packet counts for at least, zero to `packet`.
    pub min_charge: Bytes,
}

impl Default for Config {
    /// Two packets of 512 KiB in flight; latency-sensitive tenants weigh eight times as much as best-effort ones; a packet
    /// counts for 64 KiB at least (an estimate: the fixed cost of a lone packet is worth more, but part of it
    /// overlaps with the packet before).
    fn default() -> Self {
        Self {
            policy: Policy::Fair,
            packet: Bytes::from_kib(512),
            in_flight: 2,
            weight_ls: 8,
            weight_be: 1,
            min_charge: Bytes::from_kib(64),
        }
    }
}

impl Config {
    /// The weight of a class.
    pub const fn weight(&self, class: Class) -> u32 {
        match class {
            Class::LatencySensitive => self.weight_ls,
            Class::BestEffort => self.weight_be,
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.packet == Bytes::ZERO || self.packet > MAX_PACKET {
            return Err(ConfigError::Packet { given: self.packet });
        }
        if self.in_flight == 0 || self.in_flight > MAX_IN_FLIGHT {
            return Err(ConfigError::InFlight { given: self.in_flight });
        }
        for class in [Class::LatencySensitive, Class::BestEffort] {
            let given = self.weight(class);
            if given == 0 || given > MAX_WEIGHT {
                return Err(ConfigError::Weight { class, given });
            }
        }
        if self.min_charge > self.packet {
            return Err(ConfigError::MinCharge { given: self.min_charge, packet: self.packet });
        }
        Ok(())
    }
}

/// Why parameters cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A packet of nothing, or one too large to be a packet.
    #[error("copy packets of {given} are impossible; choose 1B to {MAX_PACKET}")]
    Packet {
        /// What was asked for.
        given: Bytes,
    },
    /// No packet in flight, or too many.
    #[error("{given} copy packets in flight are impossible; choose 1 to {MAX_IN_FLIGHT}")]
    InFlight {
        /// What was asked for.
        given: u32,
    },
    /// A weight of zero would starve the class, one too large the other class.
    #[error("the copy weight {given} of {class} tenants is impossible; choose 1 to {MAX_WEIGHT}")]
    Weight {
        /// Whose weight.
        class: Class,
        /// What was asked for.
        given: u32,
    },
    /// No packet may count for more than a full one.
    #[error("a copy packet cannot count for at least {given}; choose at most the packet size, {packet}")]
    MinCharge {
        /// What was asked for.
        given: Bytes,
        /// The packet size.
        packet: Bytes,
    },
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A tenant wants to copy.
    Submit {
        /// Who.
        tenant: TenantId,
        /// Which weight applies to this copy.
        class: Class,
        /// The caller's name for it.
        id: CopyId,
        /// Which way.
        direction: Direction,
        /// How much.
        bytes: Bytes,
    },
    /// The hardware is done with a packet that was started; also with one of a cancelled tenant. Packets of one
    /// copy end in the order in which they started; those of different copies in any order.
    PacketDone {
        /// Whose.
        tenant: TenantId,
        /// Of which copy.
        id: CopyId,
        /// Which way.
        direction: Direction,
    },
    /// From its next packet on a tenant weighs this much, whatever its class. Brought into 1 to [`MAX_WEIGHT`].
    Weigh {
        /// Who; one whose index goes beyond [`MAX_TENANTS`] is ignored, as its copies will be.
        tenant: TenantId,
        /// How much.
        weight: u32,
    },
    /// A tenant is gone, and with it a weight of its own. Its index may be used again at once.
    Cancel {
        /// Who.
        tenant: TenantId,
    },
}

/// What the caller has to do or to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Copy `bytes` from `offset` of the copy, now.
    StartPacket {
        /// Whose.
        tenant: TenantId,
        /// Of which copy.
        id: CopyId,
        /// Which way.
        direction: Direction,
        /// Where the packet begins within the copy.
        offset: Bytes,
        /// How long it is; more than zero.
        bytes: Bytes,
    },
    /// All of a copy has been copied.
    CopyDone {
        /// Whose.
        tenant: TenantId,
        /// Which.
        id: CopyId,
        /// Which way.
        direction: Direction,
        /// From its submission to its end.
        took: Nanos,
    },
    /// A copy ended with its tenant. There is no [`Action::CopyDone`] for it.
    Dropped {
        /// Whose.
        tenant: TenantId,
        /// Which.
        id: CopyId,
        /// Which way.
        direction: Direction,
        /// How much of it had been started.
        started: Bytes,
    },
    /// A copy was not taken; nothing changed.
    Refused {
        /// Whose.
        tenant: TenantId,
        /// Which.
        id: CopyId,
        /// Which way.
        direction: Direction,
        /// Why.
        why: Refusal,
    },
    /// A packet was reported as ended that is not in flight; nothing changed. The caller has lost count.
    Stray {
        /// Whose it was said to be.
        tenant: TenantId,
        /// Of which copy it was said to be.
        id: CopyId,
        /// Which way.
        direction: Direction,
    },
}

/// Why a copy was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Worth another try after one of the tenant's copies has ended.
    #[error("{MAX_QUEUED} copies of this tenant are waiting already; try again when one of them is done")]
    QueueFull,
    /// Not worth another try.
    #[error("tenant indexes go up to {}", MAX_TENANTS - 1)]
    NoSuchTenant,
}

/// The copies of the tenants of one GPU.
#[derive(Debug, Clone)]
pub struct CopyScheduler {
    config: Config,
    links: [Link; 2],
    /// Copies taken so far: their order of arrival.
    arrivals: u64,
}

impl CopyScheduler {
    /// With nothing to copy.
    ///
    /// # Errors
    /// When a parameter is outside the bounds that [`Config`] states.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self { config, links: Direction::ALL.map(Link::new), arrivals: 0 })
    }

    /// The policy's name in metrics.
    pub const fn name(&self) -> &'static str {
        match self.config.policy {
            Policy::Fair => "copy-fair",
            Policy::Fifo => "copy-fifo",
        }
    }

    /// The parameters.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Packets in flight in a direction.
    pub fn in_flight(&self, direction: Direction) -> usize {
        self.links[direction.index()].flights.len()
    }

    /// Copies of a tenant with bytes that have not been started, in a direction.
    pub fn queued(&self, tenant: TenantId, direction: Direction) -> usize {
        self.links[direction.index()].lanes.get(tenant.index()).map_or(0, |lane| lane.queue.len())
    }

    /// Takes in what happened at `now` and appends what follows to `actions`, in the order in which to do it.
    pub fn step(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Submit { tenant, class, id, direction, bytes } => {
                let copy = Queued { id, class, bytes: bytes.0, started: 0, arrival: self.arrivals, at: now };
                let link = &mut self.links[direction.index()];
                if bytes == Bytes::ZERO {
                    actions.push(Action::CopyDone { tenant, id, direction, took: Nanos::ZERO });
                } else if let Err(why) = link.submit(tenant, copy) {
                    actions.push(Action::Refused { tenant, id, direction, why });
                } else {
                    self.arrivals += 1;
                    link.fill(&self.config, actions);
                }
            }
            Event::PacketDone { tenant, id, direction } => {
                let link = &mut self.links[direction.index()];
                link.packet_done(now, tenant, id, actions);
                link.fill(&self.config, actions);
            }
            Event::Weigh { tenant, weight } => {
                for link in &mut self.links {
                    if let Ok(lane) = link.lane(tenant) {
                        lane.weight = Some(weight.clamp(1, MAX_WEIGHT));
                    }
                }
            }
            Event::Cancel { tenant } => {
                for link in &mut self.links {
                    link.cancel(tenant, actions);
                }
            }
        }
    }
}

/// One direction.
#[derive(Debug, Clone)]
struct Link {
    direction: Direction,
    /// By tenant index.
    lanes: Vec<Lane>,
    /// The indexes of the lanes that have something queued, in no particular order. A scan over them finds the
    /// next one: there are a handful, and a heap would have to be rearranged at each packet.
    backlogged: Vec<usize>,
    /// In order of their start.
    flights: Vec<Flight>,
    virtual_time: u128,
}

#[derive(Debug, Clone, Default)]
struct Lane {
    queue: VecDeque<Queued>,
    virtual_runtime: u128,
    /// Unless it is that of the copy's class.
    weight: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    id: CopyId,
    class: Class,
    bytes: u64,
    started: u64,
    arrival: u64,
    at: Nanos,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    tenant: TenantId,
    id: CopyId,
    /// How much of the copy had been started with this packet, and whether that is all of it.
    started: u64,
    last: bool,
    /// Its tenant was cancelled, and the copy has been reported.
    orphan: bool,
    submitted: Nanos,
}

impl Link {
    fn new(direction: Direction) -> Self {
        Self { direction, lanes: Vec::new(), backlogged: Vec::new(), flights: Vec::new(), virtual_time: 0 }
    }

    fn lane(&mut self, tenant: TenantId) -> Result<&mut Lane, Refusal> {
        let index = tenant.index();
        if index >= MAX_TENANTS {
            return Err(Refusal::NoSuchTenant);
        }
        if index >= self.lanes.len() {
            self.lanes.resize_with(index + 1, Lane::default);
        }
        Ok(&mut self.lanes[index])
    }

    fn submit(&mut self, tenant: TenantId, copy: Queued) -> Result<(), Refusal> {
        let virtual_time = self.virtual_time;
        let lane = self.lane(tenant)?;
        if lane.queue.len() >= MAX_QUEUED {
            return Err(Refusal::QueueFull);
        }
        let woke = lane.queue.is_empty();
        if woke {
            lane.virtual_runtime = lane.virtual_runtime.max(virtual_time);
        }
        lane.queue.push_back(copy);
        if woke {
            self.backlogged.push(tenant.index());
        }
        Ok(())
    }

    /// Starts packets while there is room in flight.
    fn fill(&mut self, config: &Config, actions: &mut Vec<Action>) {
        let (room, longest) = match config.policy {
            Policy::Fair => (config.in_flight as usize, config.packet.0),
            Policy::Fifo => (1, u64::MAX),
        };
        while self.flights.len() < room {
            let Some(at) = self.next(config.policy) else { return };
            self.start(at, longest, config, actions);
        }
    }

    /// Where in `backlogged` the lane is that goes next. At equal virtual runtimes latency-sensitive copies go
    /// first, then the one that came first, so that the order never depends on that of the list.
    fn next(&self, policy: Policy) -> Option<usize> {
        let key = |&index: &usize| {
            let lane = &self.lanes[index];
            let (class, arrival) =
                lane.queue.front().map_or((Class::BestEffort, u64::MAX), |copy| (copy.class, copy.arrival));
            match policy {
                Policy::Fair => (lane.virtual_runtime, class, arrival),
                Policy::Fifo => (0, Class::LatencySensitive, arrival),
            }
        };
        self.backlogged.iter().enumerate().min_by_key(|&(_, index)| key(index)).map(|(at, _)| at)
    }

    fn start(&mut self, at: usize, longest: u64, config: &Config, actions: &mut Vec<Action>) {
        let index = self.backlogged[at];
        let lane = &mut self.lanes[index];
        let Some(copy) = lane.queue.front_mut() else { return };
        let (tenant, id, offset) = (TenantId(index as u32), copy.id, copy.started);
        let bytes = (copy.bytes - offset).min(longest);
        copy.started += bytes;
        let (started, submitted, last) = (copy.started, copy.at, copy.started == copy.bytes);
        if config.policy == Policy::Fair {
            self.virtual_time = lane.virtual_runtime;
            let charge = bytes.max(config.min_charge.0) << VIRTUAL_BITS;
            let weight = lane.weight.unwrap_or(config.weight(copy.class));
            lane.virtual_runtime += u128::from(charge / u64::from(weight));
        }
        if last {
            lane.queue.pop_front();
            if lane.queue.is_empty() {
                self.backlogged.swap_remove(at);
            }
        }
        self.flights.push(Flight { tenant, id, started, last, orphan: false, submitted });
        let (offset, bytes) = (Bytes(offset), Bytes(bytes));
        actions.push(Action::StartPacket { tenant, id, direction: self.direction, offset, bytes });
    }

    fn packet_done(&mut self, now: Nanos, tenant: TenantId, id: CopyId, actions: &mut Vec<Action>) {
        let direction = self.direction;
        let Some(at) = self.flights.iter().position(|flight| flight.tenant == tenant && flight.id == id)
        else {
            actions.push(Action::Stray { tenant, id, direction });
            return;
        };
        let flight = self.flights.remove(at);
        if flight.last && !flight.orphan {
            let took = now.saturating_sub(flight.submitted);
            actions.push(Action::CopyDone { tenant, id, direction, took });
        }
    }

    fn cancel(&mut self, tenant: TenantId, actions: &mut Vec<Action>) {
        let direction = self.direction;
        for flight in self.flights.iter_mut().filter(|flight| flight.tenant == tenant && !flight.orphan) {
            flight.orphan = true;
            // A copy whose last packet has not started is still queued, and reported from there.
            if flight.last {
                let (id, started) = (flight.id, Bytes(flight.started));
                actions.push(Action::Dropped { tenant, id, direction, started });
            }
        }
        let Some(lane) = self.lanes.get_mut(tenant.index()) else { return };
        lane.weight = None;
        for copy in lane.queue.drain(..) {
            let (id, started) = (copy.id, Bytes(copy.started));
            actions.push(Action::Dropped { tenant, id, direction, started });
        }
        self.backlogged.retain(|&index| index != tenant.index());
    }
}
