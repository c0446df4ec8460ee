//! How fast kernels run beside each other: from what each asks for and what there is, to a rate for each.
//!
//! Three things are shared. **SMs** of one pool: a kernel can use those that others leave, and at least its
//! proportional part; where its blocks sit on SMs that others also use, it is slowed further. **Latency of the memory
//! system**: every access queues behind the others' traffic, so a kernel that uses little bandwidth itself still
//! slows down; this grows with the others' load towards saturation. **Bandwidth**: what all ask for together cannot
//! exceed what there is.
//!
//! A kernel's time is the gap before it, its launch part and its work. The gap is the GPU's front end at work, which waits
//! for nobody's data. The launch part fetches code and parameters, which nobody can place: where a wall isolates the data and
//! not these (`sides`), some of them wait in the queue of the other side. That time is little below saturation and grows with
//! what the other side is asked for beyond what it can move; work was measured to be untouched, in sets that fit the L2
//! and in larger ones, beside accesses of any priority (`results/h200/sides/interfere-long.json` and `fits-l2.json`).

use crate::kernel::{Chip, Kernel, smooth};
use crate::params::Params;

/// A kernel that runs now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    /// Which kernel.
    pub(crate) kernel: Kernel,
    /// The denominator of its [`crate::kernel::stretch`], which only depends on kernel and GPU: roots are what this
    /// module spends its time on, so they are drawn once per kernel.
    pub(crate) unstretched: f64,
    /// SMs it may use at most.
    pub(crate) cap: f64,
    /// SMs it draws on now if nobody else did, at most `cap`.
    pub(crate) drawn: f64,
    /// The gap before the kernel behind this wall, ns.
    pub(crate) gap_ns: f64,
    /// Which part of the memory system its data is in.
    pub(crate) memory: usize,
    /// Whether it is launched by a CUDA graph.
    pub(crate) graph: bool,
}

/// How the memory system is cut.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct MemoryCut {
    /// Fraction of the bandwidth that each part has.
    pub(crate) share: f64,
    /// Whether launches stay within the part (hardware partitions) or wait for the other parts as well.
    pub(crate) launches_inside: bool,
}

/// What slows work and launches at the present clock, as factors of at least 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ClockFactors {
    pub(crate) launch: f64,
    pub(crate) math: f64,
    pub(crate) memory: f64,
}

impl ClockFactors {
    /// At `clock`, a fraction of the highest. Estimates: math follows the SM clock; memory-bound work runs on the
    /// memory's clock and feels a third of it, launches half.
    pub(crate) fn at(clock: f64) -> Self {
        let slower = 1.0 / clock - 1.0;
        Self { launch: 1.0 + slower / 2.0, math: 1.0 + slower, memory: 1.0 + slower / 3.0 }
    }
}

/// The rates of kernels that run together, in kernels per nanosecond.
#[derive(Debug, Clone, Default)]
pub(crate) struct Contention {
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    gap_ns: f64,
    launch_ns: f64,
    work_ns: f64,
    traffic: f64,
}

impl Contention {
    /// Fills `rates` with one rate per element of `loads`.
    pub(crate) fn rates(
        &mut self,
        loads: &[Load],
        cut: MemoryCut,
        chip: &Chip,
        clock: ClockFactors,
        params: &Params,
        rates: &mut Vec<f64>,
    ) {
        rates.clear();
        self.parts.clear();
        let drawn: f64 = loads.iter().map(|load| load.drawn).sum();
        for load in loads {
            let part = alone(load, drawn - load.drawn, chip, clock, params);
            self.parts.push(part);
        }
        let whole: f64 = self.parts.iter().map(|part| part.traffic).sum();
        let bandwidth = chip.bandwidth * cut.share;
        for (load, part) in loads.iter().zip(&self.parts) {
            let inside = if cut.share < 1.0 { self.traffic_of(loads, load.memory) } else { whole };
            let others = ((inside - part.traffic) / bandwidth).clamp(0.0, 1.0);
            let kernel = &load.kernel;
            let slowdown = 1.0 + kernel.sensitivity * queueing(others, params);
            // Beyond saturation each gets its part of the bandwidth, and feels it as far as it uses bandwidth.
            let excess = (inside / bandwidth - 1.0).max(0.0) * (kernel.traffic / bandwidth).min(1.0);
            let mut launch = part.gap_ns + part.launch_ns * (1.0 + queueing(others, params));
            if !cut.launches_inside {
                let foreign = ((whole - inside) / bandwidth).max(0.0);
                launch += kernel.launches * residue_ns(foreign, load.graph, params);
            }
            rates.push(1.0 / (launch + part.work_ns * slowdown.max(1.0 + excess)));
        }
    }

    fn traffic_of(&self, loads: &[Load], memory: usize) -> f64 {
        loads
            .iter()
            .zip(&self.parts)
            .filter(|(load, _)| load.memory == memory)
            .map(|(_, part)| part.traffic)
            .sum()
    }
}

/// What a kernel takes with the SMs that the others leave it, and how much it then asks of the memory.
fn alone(load: &Load, others_drawn: f64, chip: &Chip, clock: ClockFactors, params: &Params) -> Part {
    let kernel = &load.kernel;
    // What it gets of the SMs that it draws on. In the tail of a kernel that is less than its cap, and as long as the
    // others leave that much, blocks that are placed run on as if alone.
    let proportional = chip.sms * load.drawn / (load.drawn + others_drawn);
    let got = ((chip.sms - others_drawn).max(proportional) / load.drawn).min(1.0);
    let available = load.cap * got;
    // The part of its SMs that others use as well.
    let shared = ((load.drawn + others_drawn - chip.sms) / load.drawn).clamp(0.0, 1.0);
    let clocked = if kernel.math { clock.math } else { clock.memory };
    let work_ns = kernel.work_ns
        * (smooth(kernel.width / available) / load.unstretched)
        * (1.0 + params.sm_sharing * shared)
        * clocked;
    let (gap_ns, launch_ns) = (load.gap_ns * clock.launch, kernel.launch_ns * clock.launch);
    let traffic = kernel.traffic * kernel.work_ns / (gap_ns + launch_ns + work_ns);
    Part { gap_ns, launch_ns, work_ns, traffic }
}

fn queueing(load: f64, params: &Params) -> f64 {
    params.queue_gain * load / (1.0 - params.queue_knee * load)
}

/// What a launch waits for the other parts of the memory, by what those are asked for over what one part can move.
fn residue_ns(foreign: f64, graph: bool, params: &Params) -> f64 {
    let excess = (foreign - 1.0).max(0.0);
    let of_graph = params.side_launch_ns * foreign.min(1.0) + params.side_queue_ns * excess;
    if graph { of_graph } else { params.side_stream * of_graph }
}

#[cfg(test)]
mod tests;
