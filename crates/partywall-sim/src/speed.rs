//! How fast the simulator is, on workloads that stay the same: what the benchmarks run and what the ledger records.
//!
//! The unit is a *kernel event*, one kernel of a tenant that has run to its end. The caller brings the clock.

use partywall_core::copy_scheduler;
use partywall_core::gpu::Gpu;
use partywall_core::tenant::Class;
use partywall_core::units::{Bytes, Nanos};
use partywall_core::wall::Wall;
use serde::Serialize;

use crate::error::SimError;
use crate::kernel::{Chip, Program};
use crate::layout::{Layout, Member};
use crate::load::Load;
use crate::machine::{self, Setup, Workload};
use crate::parallel::in_order;
use crate::params::Params;
use crate::profile::{self};

/// Kernel events in real time, on one core.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Speed {
    /// Kernels run to their end.
    pub kernels: u64,
    /// Real seconds.
    pub seconds: f64,
    /// Their quotient.
    pub kernels_per_s: f64,
}

/// A simulated hour of many GPUs in real time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fleet {
    /// GPUs.
    pub gpus: u32,
    /// Tenants on each.
    pub tenants_per_gpu: u32,
    /// Pieces that a pass over a network's kernels was merged into: latency-sensitive, best-effort.
    pub segments: (usize, usize),
    /// Threads that did it.
    pub workers: usize,
    /// Virtual seconds of each GPU.
    pub simulated_s: f64,
    /// Real seconds for all of them.
    pub wall_s: f64,
    /// Requests completed on all of them.
    pub requests: u64,
    /// Merged kernels run to their end.
    pub kernels: u64,
}

/// Which mix is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    /// A latency-sensitive ResNet-50 beside a best-effort ResNet-152 of batch 32, both without pause, under `mps`.
    Two,
    /// Two latency-sensitive networks with Poisson arrivals and two best-effort ones, under `mps`.
    Four,
}

/// Pieces into which the fleet merges the kernels of a latency-sensitive request (about 1 ms), and of a best-effort
/// pass (ResNet-152 at batch 32, about 13 ms). A neighbour that waits for the end of a piece waits for that of dozens of
/// kernels: latencies under `mps` and `partywall` come out too long, behind the other walls hardly.
pub const FLEET_SEGMENTS: (usize, usize) = (4, 6);

/// The walls that the fleet's GPUs take in turn.
const FLEET_WALLS: [Wall; 6] =
    [Wall::TimeSlicing, Wall::Mps, Wall::GreenContexts, Wall::Mig, Wall::Sides, Wall::Partywall];

/// Simulates `time` of a mix and divides its kernels by the real time that took; `clock` gives seconds.
///
/// # Errors
/// When the mix does not fit `gpu`.
pub fn kernels_per_second(
    mix: Mix,
    gpu: &Gpu,
    params: &Params,
    time: Nanos,
    clock: &mut dyn FnMut() -> f64,
) -> Result<Speed, SimError> {
    let setup = mix_setup(mix, gpu, params, time)?;
    let begin = clock();
    let kernels = machine::run(setup)?.kernels;
    let seconds = clock() - begin;
    Ok(Speed { kernels, seconds, kernels_per_s: kernels as f64 / seconds })
}

/// The set-up of a mix, ready to run.
///
/// # Errors
/// As [`kernels_per_second`].
pub fn mix_setup<'a>(mix: Mix, gpu: &'a Gpu, params: &Params, time: Nanos) -> Result<Setup<'a>, SimError> {
    let closed = Load::closed(2);
    let poisson = |rate_per_s| Load::Poisson { rate_per_s };
    let tenants: &[(&str, Class, Load)] = match mix {
        Mix::Two => &[
            ("resnet50-b1", Class::LatencySensitive, closed.clone()),
            ("resnet152-b32", Class::BestEffort, closed),
        ],
        Mix::Four => &[
            ("resnet50-b1", Class::LatencySensitive, poisson(50.0)),
            ("mobilenet_v3_large-b1", Class::LatencySensitive, poisson(100.0)),
            ("resnet152-b32", Class::BestEffort, closed.clone()),
            ("bert_base-b8", Class::BestEffort, closed),
        ],
    };
    let workloads = tenants.iter().map(|(name, class, load)| {
        let program = network(name, gpu, params)?;
        workload(name, *class, program, load)
    });
    setup(Wall::Mps, gpu, params, workloads.collect::<Result<_, _>>()?, time)
}

/// Simulates `time` of `gpus` GPUs, each with three tenants at moderate load behind walls that take turns, on
/// `workers` threads. Each GPU has a seed of its own, so the result does not depend on the number of workers.
///
/// # Errors
/// When the tenants do not fit `gpu`.
pub fn fleet(
    gpus: u32,
    gpu: &Gpu,
    params: &Params,
    time: Nanos,
    workers: usize,
    clock: &mut dyn FnMut() -> f64,
) -> Result<Fleet, SimError> {
    let workloads = fleet_workloads(gpu, params)?;
    let walls: Vec<Wall> = FLEET_WALLS.into_iter().filter(|wall| fits(*wall, gpu, &workloads)).collect();
    // Counts only, not outcomes: the histograms of thousands of GPUs need not be held at once.
    let one = |index: &u32| -> Result<(u64, u64), SimError> {
        let wall = walls.get(*index as usize % walls.len().max(1)).copied().unwrap_or(Wall::Mps);
        let setup = setup(wall, gpu, params, workloads.clone(), time)?;
        let outcome = machine::run(Setup { seed: u64::from(*index), ..setup })?;
        Ok((outcome.kernels, outcome.tenants.iter().map(|counts| counts.completed).sum()))
    };
    let all: Vec<u32> = (0..gpus).collect();
    let workers = workers.max(1);
    let begin = clock();
    let counts: Vec<(u64, u64)> = in_order(&all, workers, one).into_iter().collect::<Result<_, _>>()?;
    let wall_s = clock() - begin;
    Ok(Fleet {
        gpus,
        tenants_per_gpu: workloads.len() as u32,
        segments: FLEET_SEGMENTS,
        workers,
        simulated_s: time.as_secs(),
        wall_s,
        requests: counts.iter().map(|(_, requests)| requests).sum(),
        kernels: counts.iter().map(|(kernels, _)| kernels).sum(),
    })
}

/// A service with bursts, one with copies around each request, and a job that takes what is left.
fn fleet_workloads(gpu: &Gpu, params: &Params) -> Result<Vec<Workload>, SimError> {
    let (sensitive, best_effort) = FLEET_SEGMENTS;
    let merged = |name: &str, pieces| Ok::<_, SimError>(network(name, gpu, params)?.coarsened(pieces));
    let bursty = Load::Bursty {
        rate_per_s: 20.0,
        burst_factor: 5.0,
        burst: Nanos::from_secs(2),
        calm: Nanos::from_secs(10),
    };
    let camera =
        merged("mobilenet_v3_large-b1", sensitive)?.with_copies(Bytes::from_kib(588), Bytes::from_kib(4));
    Ok(vec![
        workload("service", Class::LatencySensitive, merged("resnet50-b1", sensitive)?, &bursty)?,
        workload("camera", Class::LatencySensitive, camera, &Load::Periodic { rate_per_s: 30.0 })?,
        workload("job", Class::BestEffort, merged("resnet152-b32", best_effort)?, &Load::closed(2))?,
    ])
}

fn network(name: &str, gpu: &Gpu, params: &Params) -> Result<Program, SimError> {
    let chip = Chip::of(gpu);
    // The recordings are of the H200; on another GPU only the amount of work differs, which is all that counts here.
    Ok(Program::of(&profile::recorded(name)?, &chip, &chip, params))
}

fn workload(name: &str, class: Class, program: Program, load: &Load) -> Result<Workload, SimError> {
    Ok(Workload { name: name.to_owned(), class, program, demand: load.demand(None)?, objective: None })
}

fn members(workloads: &[Workload]) -> Vec<Member> {
    workloads.iter().map(|workload| Member { class: workload.class, share: None }).collect()
}

fn fits(wall: Wall, gpu: &Gpu, workloads: &[Workload]) -> bool {
    Layout::new(wall, gpu, &members(workloads)).is_ok()
}

fn setup<'a>(
    wall: Wall,
    gpu: &'a Gpu,
    params: &Params,
    workloads: Vec<Workload>,
    time: Nanos,
) -> Result<Setup<'a>, SimError> {
    Ok(Setup {
        gpu,
        layout: Layout::new(wall, gpu, &members(&workloads))?,
        streams: (0..workloads.len() as u64).collect(),
        workloads,
        copies: copy_scheduler::Config::default(),
        params: *params,
        seed: 1,
        warmup: Nanos::ZERO,
        end: time,
        requests_max: u64::MAX,
        faults: Vec::new(),
        timeline: None,
    })
}

#[cfg(test)]
mod tests;
