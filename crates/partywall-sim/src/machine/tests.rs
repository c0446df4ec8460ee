//! The effects that were measured, and what must hold in every run.
//!
//! Bands are wide on purpose: they hold the effect, while `sim validate` holds the figures.

use partywall_core::catalogue::Catalogue;
use partywall_core::copy_scheduler::{self, Policy};
use partywall_core::gpu::Gpu;
use partywall_core::tenant::{Class, Share, TenantId};
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;

use super::{Fault, Setup, Workload};
use crate::kernel::{Chip, Kernel, Launching, Program};
use crate::layout::{Layout, Member, Node};
use crate::load::Load;
use crate::metrics::{Counts, Outcome};
use crate::params::Params;
use crate::profile;

mod copies;
mod effects;
mod faults;
mod launches;
mod properties;

pub(super) fn h200() -> &'static Gpu {
    Catalogue::builtin().unwrap().get("h200").unwrap()
}

pub(super) fn chip() -> Chip {
    Chip::of(h200())
}

pub(super) fn network(name: &str) -> Program {
    Program::of(&profile::recorded(name).unwrap(), &chip(), &chip(), &Params::default())
}

pub(super) fn stream() -> Program {
    Program::stream(&chip(), &Params::default())
}

pub(super) fn gemm() -> Program {
    Program::gemm(&chip(), &chip(), &Params::default())
}

pub(super) fn program(kernels: Vec<Kernel>) -> Program {
    Program { name: "test".to_owned(), kernels, items: 1.0, ..Program::host_copy(Bytes::ZERO) }
}

/// A kernel of `us` microseconds that fills `sms` SMs in one wave and asks little of the memory.
pub(super) fn kernel(us: f64, sms: f64) -> Kernel {
    Kernel {
        gap_ns: 0.0,
        launches: 1.0,
        exposed: 1.0,
        launch_ns: 500.0,
        work_ns: us * 1e3 - 500.0,
        width: sms,
        room: sms,
        traffic: 100.0,
        sensitivity: 0.3,
        math: true,
        activity: 0.8,
    }
}

/// The request of the first measurements: 40 kernels that together read 100 MB in 0.148 ms, 3.7 us each; 0.186 ms
/// on 32 of 132 SMs.
pub(super) fn victim() -> Program {
    let traffic = 100e6 / 148e3;
    program(vec![
        Kernel {
            gap_ns: 0.0,
            launches: 1.0,
            exposed: 1.0,
            launch_ns: 1500.0,
            work_ns: 2200.0,
            width: 45.0,
            room: 66.0,
            traffic,
            sensitivity: 1.0,
            math: false,
            activity: 0.8,
        };
        40
    ])
}

/// The antagonist of the first measurements: kernels of 16 ms that compute. How long its blocks ran was not recorded.
pub(super) fn compute(block_us: f64) -> Program {
    let waves = (16_000.0 / block_us).floor();
    // Half of the last wave is empty, where there are several.
    let room = if waves > 1.0 { (waves - 0.5) * 132.0 } else { 132.0 };
    program(vec![Kernel { room, width: room, ..kernel(16_000.0, 132.0) }])
}

/// A set-up under construction.
#[derive(Debug, Clone)]
pub(super) struct Scene {
    pub(super) wall: Wall,
    /// What a node is told; otherwise the wall as it comes.
    pub(super) node: Option<Node>,
    pub(super) gpu: &'static Gpu,
    pub(super) tenants: Vec<(Workload, Option<Share>)>,
    pub(super) copies: copy_scheduler::Config,
    pub(super) params: Params,
    pub(super) seed: u64,
    pub(super) warmup_ms: u64,
    pub(super) end_ms: u64,
    pub(super) faults: Vec<Fault>,
}

pub(super) fn closed(pause: Nanos, depth: u32) -> Load {
    Load::Closed { pause, depth, host: None }
}

/// As the recordings drive latency-sensitive networks.
pub(super) fn paced() -> Load {
    closed(Nanos::from_micros(500), 1)
}

/// As they drive best-effort programs: the GPU's queue never runs dry.
pub(super) fn never_idle() -> Load {
    closed(Nanos::ZERO, 64)
}

pub(super) fn looping() -> Load {
    closed(Nanos::ZERO, 2)
}

impl Scene {
    pub(super) fn new(wall: Wall) -> Self {
        Self {
            wall,
            node: None,
            gpu: h200(),
            tenants: Vec::new(),
            copies: copy_scheduler::Config::default(),
            params: Params::default(),
            seed: 7,
            warmup_ms: 20,
            end_ms: 600,
            faults: Vec::new(),
        }
    }

    pub(super) fn tenant(mut self, class: Class, program: Program, load: &Load, sms: Option<u32>) -> Self {
        let workload = Workload {
            name: program.name.clone(),
            class,
            program,
            demand: load.demand(None).unwrap(),
            objective: None,
        };
        self.tenants.push((workload, sms.map(|sms| Share::Sms(partywall_core::units::SmCount(sms)))));
        self
    }

    pub(super) fn ls(self, program: Program, load: &Load) -> Self {
        self.tenant(Class::LatencySensitive, program, load, None)
    }

    pub(super) fn be(self, program: Program, load: &Load) -> Self {
        self.tenant(Class::BestEffort, program, load, None)
    }

    pub(super) fn until_ms(self, end_ms: u64) -> Self {
        Self { end_ms, ..self }
    }

    pub(super) fn layout(&self) -> Layout {
        let members =
            self.tenants.iter().map(|(workload, share)| Member { class: workload.class, share: *share });
        let members: Vec<Member> = members.collect();
        match &self.node {
            Some(node) => Layout::node(node, self.gpu, &members).unwrap(),
            None => Layout::new(self.wall, self.gpu, &members).unwrap(),
        }
    }

    pub(super) fn setup(&self, layout: Layout, who: &[usize]) -> Setup<'static> {
        Setup {
            gpu: self.gpu,
            layout,
            workloads: who.iter().map(|&index| self.tenants[index].0.clone()).collect(),
            copies: self.copies,
            params: self.params,
            seed: self.seed,
            streams: who.iter().map(|&index| index as u64).collect(),
            warmup: Nanos::from_millis(self.warmup_ms),
            end: Nanos::from_millis(self.end_ms),
            requests_max: u64::MAX,
            faults: self.faults.clone(),
            timeline: None,
        }
    }

    pub(super) fn everybody(&self) -> Setup<'static> {
        self.setup(self.layout(), &(0..self.tenants.len()).collect::<Vec<_>>())
    }

    pub(super) fn run(&self) -> Outcome {
        super::run(self.everybody()).unwrap()
    }

    /// Tenant 0 alone on the whole GPU without a wall.
    pub(super) fn solo(&self) -> Outcome {
        let alone = Self { wall: Wall::Exclusive, node: None, faults: Vec::new(), ..self.clone() };
        super::run(alone.setup(alone.layout().only(0), &[0])).unwrap()
    }

    /// A tenant alone in its part.
    pub(super) fn part(&self, index: usize) -> Outcome {
        super::run(self.setup(self.layout().only(index), &[index])).unwrap()
    }

    /// Tenant 0's median among the others over its median alone on the GPU.
    pub(super) fn slowdown(&self) -> f64 {
        p50_us(&self.run().tenants[0]) / p50_us(&self.solo().tenants[0])
    }

    /// Tenant 0's median among the others over its median alone in its part.
    pub(super) fn interference(&self) -> f64 {
        p50_us(&self.run().tenants[0]) / p50_us(&self.part(0).tenants[0])
    }

    /// Rate of tenant `index` among the others over its rate alone on the whole GPU.
    pub(super) fn kept(&self, index: usize) -> f64 {
        let alone = Self { wall: Wall::Exclusive, node: None, faults: Vec::new(), ..self.clone() };
        let solo = super::run(alone.setup(alone.layout().only(index), &[index])).unwrap();
        let outcome = self.run();
        outcome.tenants[index].rate(outcome.measured) / solo.tenants[0].rate(solo.measured)
    }
}

pub(super) fn p50_us(counts: &Counts) -> f64 {
    counts.service.quantile(0.5).expect("somebody was served").as_us()
}

/// Fails unless `found` is between `low` and `high`; `measured` is what the hardware did.
#[track_caller]
pub(super) fn check(what: &str, found: f64, measured: f64, (low, high): (f64, f64)) {
    assert!(
        (low..=high).contains(&found),
        "{what}: {found:.3} in the model, {measured} measured, {low} to {high} tolerated"
    );
}

pub(super) fn fair(packet: Bytes, in_flight: u32) -> copy_scheduler::Config {
    copy_scheduler::Config { policy: Policy::Fair, packet, in_flight, ..copy_scheduler::Config::default() }
}

pub(super) fn fault(tenant: u32, at_ms: u64, restart_ms: u64) -> Fault {
    Fault { tenant: TenantId(tenant), at: Nanos::from_millis(at_ms), restart: Nanos::from_millis(restart_ms) }
}
