//! One GPU and its tenants in virtual time.
//!
//! The state changes at events only: a kernel ends or reaches a point at which others may start, a request arrives,
//! a packet is done, a slice or a pause is over. Between events every running kernel advances at the constant rate
//! that `contention` gives it. After each event waiting kernels are placed (`dispatch`), rates are computed
//! anew, and time jumps to the next event. Nothing here reads a clock; chance comes from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use partywall_core::measure::LoadMeter;
use partywall_core::sm_arbiter::{self, SmArbiter};
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::chance::Chance;
use crate::contention::{ClockFactors, Contention, Load as Running};
use crate::kernel::{Chip, Program};
use crate::layout::{Dispatch, Place, Turnstile};
use crate::link::{self, Link, Packet};
use crate::load::{Arrival, Arrivals, ClosedLoop};
use crate::metrics::{Counts, Outcome, Timeline};
use crate::power::{self, Power};

mod account;
mod dispatch;
mod launches;
mod requests;
mod setup;
#[cfg(test)]
mod tests;

use account::Energy;
use launches::Launches;
pub use setup::{Fault, Setup, SetupError, Workload};

/// Requests that may wait for one tenant; later ones are counted as lost. A tenant that far behind is saturated, and
/// memory stays bounded.
pub const QUEUE_MAX: usize = 100_000;

/// Runs to the end and reports.
///
/// # Errors
/// When parts of the set-up contradict each other.
pub fn run(setup: Setup<'_>) -> Result<Outcome, SetupError> {
    let mut machine = Machine::new(setup)?;
    machine.run();
    Ok(machine.outcome())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No request.
    Idle,
    /// A copy is queued or under way.
    Copying,
    /// The next kernel is ready and not placed.
    Waiting,
    /// A kernel runs.
    Running,
    /// Dead after a fault.
    Down,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    arrived: u64,
    started: u64,
    /// Passes over the program's kernels.
    passes: u32,
}

#[derive(Debug)]
struct Tenant {
    program: Program,
    class: Class,
    place: Place,
    /// [`crate::kernel::Remainder`] on the SMs of its place.
    remainder: f64,
    objective: Option<Nanos>,
    arrivals: Option<Arrivals>,
    closed: Option<ClosedLoop>,
    host: Chance,
    queue: VecDeque<Request>,
    current: Option<Request>,
    /// Passes of the request that arrives next.
    next_passes: u32,
    /// Restarts so far: what a closed loop planned before a fault is not done after it.
    lives: u32,
    /// Requests of a closed loop's batch that are not done.
    outstanding: u32,
    pass: u32,
    /// Index of the kernel that waits or runs.
    next: usize,
    phase: Phase,
    placed: Placed,
    /// When the waiting kernel became ready.
    since: u64,
    /// Copies so far: their ids, by which one that a fault ended is recognised.
    copies: u64,
    /// Where a kernel has to be launched before it can start.
    launches: Option<Launches>,
    /// Items of the present request that were done before counting began.
    uncounted: f64,
    /// Whether an open-loop load is served.
    meter: Option<LoadMeter>,
    counts: Counts,
}

/// A kernel on SMs.
#[derive(Debug, Clone, Copy, Default)]
struct Placed {
    /// Part done, 0 to 1.
    progress: f64,
    /// Parts per nanosecond.
    rate: f64,
    /// SMs' worth of room held while blocks are still to be placed.
    held: f64,
    /// Part done at which the last block is placed.
    issued: f64,
    /// Of `held`, what is still held after that.
    tail: f64,
    /// Part done at which a waiting tenant of higher priority may take room; above 1 for never.
    yields_at: f64,
    /// SMs that it may draw on.
    cap: f64,
    /// Its scaling part where it runs, ns.
    work_ns: f64,
    /// See [`Running::unstretched`].
    unstretched: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrive(u32),
    /// Of a tenant in one of its lives.
    Requeue(u32, u32),
    Packet(Packet),
    ArbiterTick,
    /// A tenant's host looks what it may launch.
    Host(u32),
    Clock,
    Fault(u32),
    Restart(u32),
    WarmupOver,
}

/// The turn of time-slicing.
#[derive(Debug, Clone, Copy, Default)]
struct Slices {
    owner: Option<usize>,
    last: Option<usize>,
    /// The owner runs from here.
    from: u64,
    until: u64,
}

struct Machine<'a> {
    setup: Setup<'a>,
    chip: Chip,
    now: u64,
    tenants: Vec<Tenant>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Events queued so far: those of one moment happen in the order in which they were queued.
    queued: u64,
    slices: Slices,
    link: Link,
    link_outcomes: Vec<link::Outcome>,
    arbiter: Option<SmArbiter>,
    arbiter_actions: Vec<sm_arbiter::Action>,
    /// When the arbiter wants to be woken; ticks queued for other times are stale.
    arbiter_wake: Option<Nanos>,
    contention: Contention,
    /// Scratch: who runs, as what, how fast.
    running: Vec<usize>,
    loads: Vec<Running>,
    rates: Vec<f64>,
    power: Power,
    clock: f64,
    factors: ClockFactors,
    /// Activity times nanoseconds since the clock was last decided.
    activity_ns: f64,
    clock_since: u64,
    energy: Energy,
    kernels: u64,
    /// Whether the warm-up is over, and when it was.
    counting: bool,
    counted_from: u64,
    timeline: Option<Timeline>,
}

impl<'a> Machine<'a> {
    fn new(setup: Setup<'a>) -> Result<Self, SetupError> {
        setup.check()?;
        let link = Link::new(setup.gpu.pcie_gb_s.value, setup.copies)?;
        let arbiter = setup.layout.arbiter.as_ref().map(SmArbiter::new).transpose()?;
        let meter = LoadMeter::new(setup.warmup, setup.end);
        let tenants = setup.workloads.iter().enumerate().map(|(index, workload)| {
            let chance = (setup.seed, setup.streams[index]);
            Tenant::new(workload, setup.layout.places[index], setup.layout.turnstile, chance, meter.clone())
        });
        let power = Power::of(setup.gpu);
        let timeline = setup.timeline.map(|(from, bin, bins)| Timeline {
            from,
            bin,
            sms: vec![vec![0.0; bins]; setup.workloads.len()],
        });
        Ok(Self {
            chip: Chip::of(setup.gpu),
            now: 0,
            tenants: tenants.collect(),
            events: BinaryHeap::new(),
            queued: 0,
            slices: Slices::default(),
            link,
            link_outcomes: Vec::new(),
            arbiter,
            arbiter_actions: Vec::new(),
            arbiter_wake: None,
            contention: Contention::default(),
            running: Vec::new(),
            loads: Vec::new(),
            rates: Vec::new(),
            power,
            clock: 1.0,
            factors: ClockFactors::at(1.0),
            activity_ns: 0.0,
            clock_since: 0,
            energy: Energy::none(power.mhz(1.0)),
            kernels: 0,
            counting: false,
            counted_from: 0,
            timeline,
            setup,
        })
    }

    fn run(&mut self) {
        self.begin();
        while self.now < self.setup.end.0 {
            if self.counting && self.tenants[0].counts.completed >= self.setup.requests_max {
                break;
            }
            self.step();
        }
    }

    /// To the next event, or to the end.
    fn step(&mut self) {
        self.dispatch();
        self.set_rates();
        let next = self.next_moment().min(self.setup.end.0);
        self.advance(next);
        self.finish_kernels();
        self.happen();
        self.turn_slice();
    }

    fn begin(&mut self) {
        for index in 0..self.tenants.len() {
            self.start_load(index);
        }
        for fault in 0..self.setup.faults.len() {
            self.after(self.setup.faults[fault].at.0, Event::Fault(fault as u32));
        }
        self.after(self.setup.warmup.0, Event::WarmupOver);
        self.after(power::PERIOD_NS, Event::Clock);
        if let Some(arbiter) = &mut self.arbiter {
            arbiter.start(Nanos(self.now), &mut self.arbiter_actions);
            self.apply_arbiter();
        }
    }

    fn after(&mut self, at: u64, event: Event) {
        self.queued += 1;
        self.events.push(Reverse((at.max(self.now), self.queued, event)));
    }

    /// The next moment at which something changes.
    fn next_moment(&self) -> u64 {
        let mut next = self.events.peek().map_or(u64::MAX, |Reverse((at, _, _))| *at);
        let sliced = self.setup.layout.dispatch == Dispatch::Sliced;
        let waiting = self.tenants.iter().any(Tenant::is_ready);
        for tenant in &self.tenants {
            if tenant.phase != Phase::Running || tenant.placed.rate <= 0.0 {
                continue;
            }
            let placed = &tenant.placed;
            let mut target = 1.0;
            if waiting && !sliced {
                if placed.progress < placed.issued {
                    target = placed.issued;
                }
                if placed.yields_at > placed.progress {
                    target = target.min(placed.yields_at);
                }
            }
            let wait = ((target - placed.progress) / placed.rate).ceil().max(1.0);
            next = next.min(self.now.saturating_add(wait as u64));
        }
        if sliced && self.slices.owner.is_some() {
            if self.now < self.slices.from {
                next = next.min(self.slices.from);
            }
            if self.tenants.len() > 1 {
                next = next.min(self.slices.until.max(self.now + 1));
            }
        }
        next
    }

    /// Computes who runs as what and how fast.
    fn set_rates(&mut self) {
        self.running.clear();
        self.loads.clear();
        let sliced = self.setup.layout.dispatch == Dispatch::Sliced;
        let mps = self.setup.layout.mps;
        let active = self.tenants.iter().filter(|tenant| tenant.is_active()).count();
        for (index, tenant) in self.tenants.iter_mut().enumerate() {
            if tenant.phase != Phase::Running {
                continue;
            }
            if sliced && (self.slices.owner != Some(index) || self.now < self.slices.from) {
                tenant.placed.rate = 0.0;
                continue;
            }
            let kernel = tenant.program.kernels[tenant.next];
            let gap_ns = if mps { kernel.mps_gap_ns(active > 1, &self.setup.params) } else { kernel.gap_ns };
            self.running.push(index);
            let lead_ns = tenant.launches.as_ref().map_or(0.0, Launches::lead_ns);
            self.loads.push(tenant.placed.load(&kernel, tenant, gap_ns + lead_ns));
        }
        self.contention.rates(
            &self.loads,
            self.setup.layout.memory,
            &self.chip,
            self.factors,
            &self.setup.params,
            &mut self.rates,
        );
        for (&index, &rate) in self.running.iter().zip(&self.rates) {
            self.tenants[index].placed.rate = rate;
        }
    }

    fn finish_kernels(&mut self) {
        for index in 0..self.tenants.len() {
            let tenant = &self.tenants[index];
            if tenant.phase == Phase::Running && tenant.placed.progress >= 1.0 - 1e-9 {
                self.kernel_done(index);
            }
        }
    }

    /// Handles the queued events whose time has come.
    fn happen(&mut self) {
        while let Some(&Reverse((at, _, event))) = self.events.peek() {
            if at > self.now {
                break;
            }
            self.events.pop();
            match event {
                Event::Arrive(index) => self.arrive(index as usize),
                Event::Requeue(index, life) => self.requeue(index as usize, life),
                Event::Packet(packet) => self.packet_done(packet),
                Event::ArbiterTick => self.wake_arbiter(),
                Event::Host(index) => self.host_wakes(index as usize),
                Event::Clock => self.decide_clock(),
                Event::Fault(fault) => self.fault(self.setup.faults[fault as usize]),
                Event::Restart(index) => self.restart(index as usize),
                Event::WarmupOver => self.start_counting(),
            }
        }
    }
}

impl Tenant {
    fn new(
        workload: &Workload,
        place: Place,
        turnstile: Option<Turnstile>,
        (seed, stream): (u64, u64),
        meter: LoadMeter,
    ) -> Self {
        let program = launches::cut(&workload.program, workload.class, turnstile);
        Self {
            remainder: place.remainder(&program),
            launches: Launches::of(&program, workload.class, turnstile),
            program,
            class: workload.class,
            place,
            objective: workload.objective,
            arrivals: workload.demand.arrivals(seed, stream),
            closed: workload.demand.closed_loop(),
            // A stream of its own, so that host jitter does not change the arrivals.
            host: Chance::new(seed, stream | 1 << 63),
            queue: VecDeque::new(),
            current: None,
            next_passes: 1,
            lives: 0,
            outstanding: 0,
            pass: 0,
            next: 0,
            phase: Phase::Idle,
            placed: Placed::default(),
            since: 0,
            copies: 0,
            uncounted: 0.0,
            meter: workload.demand.closed_loop().is_none().then_some(meter),
            counts: Counts::default(),
        }
    }
}
