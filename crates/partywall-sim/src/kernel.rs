//! From a recorded profile to kernels the engine can run: the rule by which everything is estimated that was not
//! measured.
//!
//! # Measured
//!
//! Per kernel: its time in an eager pass and its launch shape. Per network: the latency of a CUDA graph replay.
//!
//! # Estimated, by this rule
//!
//! - **Time in a graph.** Kernels are scaled by one factor per network so that they and the launch gaps sum to the
//!   graph's latency. Where the graph takes more than half as long again as the eager kernels (BERT: 1.8 to 2.5
//!   times), it must hold kernels that the eager pass did not launch: attention that is not fused is a chain of
//!   memory-bound kernels. The network's own memory-bound kernels are then repeated to fill the time.
//! - **Width**: on how many SMs' worth of throughput a kernel can draw: its threads over
//!   [`Params::saturating_threads`].
//! - **SM scaling**: a kernel has a fixed part ([`Params::fixed_ns`]) and a rest that is stretched where fewer SMs are
//!   available than its width ([`stretch`]).
//! - **Room**: blocks over the blocks that fit one SM by threads, registers and shared memory (CUDA's occupancy
//!   rule for compute capability 9.0). A kernel with more room than SMs runs in waves, and until its last wave is
//!   placed no other kernel of the same pool can start: launch-order blocking.
//! - **VRAM traffic**: memory-bound kernels move what a device copy would on the SMs they fill, math kernels the
//!   fraction [`Params::math_intensity`] of it.
//! - **Other GPUs**: math time follows tensor throughput per SM, memory-bound time the stream bandwidth, fixed parts
//!   stay.

use partywall_core::gpu::Gpu;
use partywall_core::units::{Bytes, Nanos};

use crate::params::Params;
use crate::profile::{KernelKind, Profile, Shape};

/// VRAM traffic of the large matrix product: 16 waves of 132 tiles read about 65 MB of rows and columns each, and 134 MB
/// are written, in 1.41 ms (estimate from the tiling).
const GEMM_GB_S: f64 = 830.0;

/// A kernel as the engine runs it. Times are nanoseconds alone on the whole GPU at the highest clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// Launch gap and fixed part.
    pub launch_ns: f64,
    /// The part that scales with SMs.
    pub work_ns: f64,
    /// SMs' worth of throughput it can draw on; may exceed the GPU.
    pub width: f64,
    /// SMs' worth of block slots it needs; above the GPU's SMs it runs in waves.
    pub room: f64,
    /// VRAM traffic during its work, bytes per nanosecond (GB/s).
    pub traffic: f64,
    /// How much of the memory system's queueing delay its work sees, 0 to 1.
    pub sensitivity: f64,
    /// Whether it computes (for clock and power) or moves data.
    pub math: bool,
}

/// What a tenant runs for one request: a copy in, kernels, a copy out.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// For people: `resnet50-b1`.
    pub name: String,
    /// The kernels of one pass.
    pub kernels: Vec<Kernel>,
    /// Copied to the device before the first kernel.
    pub input: Bytes,
    /// Copied back after the last kernel.
    pub output: Bytes,
    /// What rates count, per pass: inputs, or GB moved, or products.
    pub items: f64,
    /// Unit of `items`: `inputs`, `GB`, `products`.
    pub unit: &'static str,
    /// Whether VRAM accesses are marked evict-first, which keeps them from pushing other tenants' lines out of L2.
    pub evict_first: bool,
}

/// The figures of a GPU that the engine calculates with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chip {
    /// Streaming multiprocessors.
    pub sms: f64,
    /// What a device copy moves, bytes per nanosecond.
    pub bandwidth: f64,
    /// Tensor throughput of one SM, TFLOP/s.
    pub tflops_per_sm: f64,
}

impl Chip {
    /// Of a catalogue entry.
    pub fn of(gpu: &Gpu) -> Self {
        let sms = f64::from(gpu.sms.value);
        Self { sms, bandwidth: gpu.stream_gb_s.value, tflops_per_sm: gpu.fp16_tflops.value / sms }
    }
}

/// How much longer the scaling part of a kernel takes on `available` SMs than on all `whole` of them.
///
/// A smooth maximum of 1 and width / available, normalised to 1 on the whole GPU: kernels narrower than what is
/// available do not care, wide ones scale with it. The eighth power is sharp enough to leave narrow networks alone
/// (BERT-base at batch 1 takes as long on 66 SMs as on 132) and smooth enough not to jump.
pub fn stretch(width: f64, available: f64, whole: f64) -> f64 {
    smooth(width / available) / smooth(width / whole)
}

/// The smooth maximum of 1 and `ratio`.
pub(crate) fn smooth(ratio: f64) -> f64 {
    let power = ratio * ratio;
    let power = power * power;
    (1.0 + power * power).sqrt().sqrt().sqrt()
}

impl Program {
    /// The kernels of `profile`, recorded on `recorded`, as they would run on `chip`.
    pub fn of(profile: &Profile, recorded: &Chip, chip: &Chip, params: &Params) -> Self {
        let graph_ns = profile.solo_ms() * 1e6;
        let copies = copies_of_memory_kernels(profile, graph_ns, params);
        let in_graph = profile.kernels.iter().flat_map(|&(shape, ns)| {
            let shape = &profile.shapes[shape as usize];
            let copies = if shape.kind == KernelKind::Math { 1 } else { copies };
            std::iter::repeat_n((shape, f64::from(ns)), copies)
        });
        let in_graph: Vec<(&Shape, f64)> = in_graph.collect();
        let eager_ns: f64 = in_graph.iter().map(|(_, ns)| ns).sum();
        let gaps_ns = params.gap_ns * in_graph.len() as f64;
        // Never below a third: a graph much faster than its eager kernels would be a damaged profile.
        let scale = ((graph_ns - gaps_ns) / eager_ns).max(1.0 / 3.0);
        let kernels = in_graph
            .iter()
            .map(|(shape, ns)| Kernel::estimate(shape, ns * scale, recorded, params).moved(recorded, chip));
        Self {
            name: profile.name(),
            kernels: kernels.collect(),
            input: Bytes::ZERO,
            output: Bytes::ZERO,
            items: f64::from(profile.batch),
            unit: "inputs",
            evict_first: false,
        }
    }

    /// Device-to-device copies of 1 GiB, reading and writing as fast as VRAM allows.
    ///
    /// Shape: 65 536 blocks of 256 threads, 16 KiB each (estimate; it makes 62 waves, whose tail of 8 us is the
    /// window in which another tenant's kernels were seen to start under MPS). 45 SMs' worth of width: 28 SMs moved
    /// 2.6, 68 moved 3.7 and all 132 moved 4.25 TB/s.
    pub fn stream(chip: &Chip, params: &Params) -> Self {
        let moved = 2.0 * (1u64 << 30) as f64;
        let shape = Shape { kind: KernelKind::Memory, blocks: 65_536, threads: 256, regs: 32, smem: 0 };
        Self::single(
            "stream",
            (moved / 1e9, "GB"),
            Kernel {
                launch_ns: params.gap_ns + params.fixed_ns,
                work_ns: moved / chip.bandwidth,
                width: 45.0 * chip.sms / 132.0,
                room: room(&shape),
                traffic: chip.bandwidth,
                sensitivity: 0.0,
                math: false,
            },
        )
    }

    /// bf16 matrix products of 8192 x 8192.
    ///
    /// 710 a second on the H200 (measured). 2 048 tiles of 128 x 256, one to an SM (estimate; the half-empty 16th wave
    /// is the window of 70 to 76 us in which another tenant's kernels were seen to run under MPS).
    pub fn gemm(recorded: &Chip, chip: &Chip, params: &Params) -> Self {
        let kernel = Kernel {
            launch_ns: params.gap_ns + params.fixed_ns,
            work_ns: 1e9 / 710.0,
            width: 2048.0,
            room: 2048.0,
            traffic: GEMM_GB_S,
            sensitivity: 1.0 - GEMM_GB_S / recorded.bandwidth,
            math: true,
        };
        Self::single("gemm", (1.0, "products"), kernel.moved(recorded, chip))
    }

    /// Nothing but a copy to the device, again and again.
    pub fn host_copy(bytes: Bytes) -> Self {
        Self {
            name: format!("host-copy-{bytes}"),
            kernels: Vec::new(),
            input: bytes,
            output: Bytes::ZERO,
            items: bytes.0 as f64 / 1e9,
            unit: "GB",
            evict_first: false,
        }
    }

    fn single(name: &str, (items, unit): (f64, &'static str), kernel: Kernel) -> Self {
        Self {
            name: name.to_owned(),
            kernels: vec![kernel],
            input: Bytes::ZERO,
            output: Bytes::ZERO,
            items,
            unit,
            evict_first: false,
        }
    }

    /// The same with copies around the kernels.
    #[must_use]
    pub fn with_copies(self, input: Bytes, output: Bytes) -> Self {
        Self { input, output, ..self }
    }

    /// Time of one pass alone on the whole GPU, without copies, nanoseconds.
    pub fn solo_ns(&self) -> f64 {
        self.kernels.iter().map(Kernel::alone_ns).sum()
    }

    /// The same as a time.
    pub fn solo(&self) -> Nanos {
        Nanos(self.solo_ns() as u64)
    }

    /// Its longest kernel alone on the whole GPU.
    pub fn longest_kernel(&self) -> Nanos {
        let longest = self.kernels.iter().map(Kernel::alone_ns).fold(0.0, f64::max);
        Nanos(longest as u64)
    }

    /// The same program in at most `segments` pieces: neighbouring kernels are merged, which keeps times, traffic and
    /// width on average and loses the finer moments at which a neighbour could have started. For long simulations.
    #[must_use]
    pub fn coarsened(&self, segments: usize) -> Self {
        let size = self.kernels.len().div_ceil(segments.max(1)).max(1);
        Self { kernels: self.kernels.chunks(size).map(merge).collect(), ..self.clone() }
    }
}

/// How often each memory-bound kernel is launched in the graph, for the eager kernels to last as long as the graph.
fn copies_of_memory_kernels(profile: &Profile, graph_ns: f64, params: &Params) -> usize {
    let memory = |shape: u32| profile.shapes[shape as usize].kind != KernelKind::Math;
    let span = |&(_, ns): &(u32, u32)| f64::from(ns) + params.gap_ns;
    let all: f64 = profile.kernels.iter().map(span).sum();
    let moving: f64 = profile.kernels.iter().filter(|(shape, _)| memory(*shape)).map(span).sum();
    if graph_ns < 1.5 * all || moving <= 0.0 {
        return 1;
    }
    1 + ((graph_ns - all) / moving).round() as usize
}

fn merge(kernels: &[Kernel]) -> Kernel {
    if let [only] = kernels {
        return *only;
    }
    let launch_ns: f64 = kernels.iter().map(|kernel| kernel.launch_ns).sum();
    let work_ns: f64 = kernels.iter().map(|kernel| kernel.work_ns).sum();
    let mean = |value: fn(&Kernel) -> f64| {
        let weighed: f64 = kernels.iter().map(|kernel| value(kernel) * kernel.work_ns).sum();
        if work_ns > 0.0 { weighed / work_ns } else { value(&kernels[0]) }
    };
    Kernel {
        launch_ns,
        work_ns,
        width: mean(|kernel| kernel.width),
        room: mean(|kernel| kernel.room),
        traffic: mean(|kernel| kernel.traffic),
        sensitivity: mean(|kernel| kernel.sensitivity),
        math: mean(|kernel| f64::from(u8::from(kernel.math))) > 0.5,
    }
}

impl Kernel {
    /// Its time alone on the whole GPU, nanoseconds.
    pub fn alone_ns(&self) -> f64 {
        self.launch_ns + self.work_ns
    }

    /// Alone on the GPU it was recorded on; `span_ns` is its time in a graph without the gap.
    fn estimate(shape: &Shape, span_ns: f64, chip: &Chip, params: &Params) -> Self {
        // A kernel of one microsecond is all latency, but a share must remain that SMs can change.
        let fixed_ns = params.fixed_ns.min(0.9 * span_ns);
        let (blocks, threads) = launch(shape, chip);
        let width = (blocks * threads / params.saturating_threads).max(1.0);
        let math = shape.kind == KernelKind::Math;
        let intensity = if math { params.math_intensity } else { 1.0 };
        let traffic = intensity * chip.bandwidth * (width / chip.sms).min(1.0);
        Self {
            launch_ns: params.gap_ns + fixed_ns,
            work_ns: span_ns - fixed_ns,
            width,
            room: room(shape),
            traffic,
            // What already moves all the memory system can move waits for bandwidth, not for latency.
            sensitivity: (1.0 - traffic / chip.bandwidth).max(0.0),
            math,
        }
    }

    /// The same kernel on another GPU. Estimate: its width stays, so a smaller GPU is filled by fewer blocks; the time
    /// of the scaling part follows what bounds it.
    fn moved(self, from: &Chip, to: &Chip) -> Self {
        let throughput = |chip: &Chip| chip.tflops_per_sm * self.width.min(chip.sms);
        let reach = |chip: &Chip| chip.bandwidth * (self.width / chip.sms).min(1.0);
        let slower = if self.math {
            (throughput(from) / throughput(to)).max(self.traffic / to.bandwidth)
        } else {
            reach(from) / reach(to)
        };
        Self { work_ns: self.work_ns * slower, traffic: (self.traffic / slower).min(to.bandwidth), ..self }
    }
}

/// Blocks and threads; copies and fills inside the device were recorded without a grid and count as one block of
/// 128 threads on each SM.
fn launch(shape: &Shape, chip: &Chip) -> (f64, f64) {
    if shape.blocks == 0 {
        (chip.sms, 128.0)
    } else {
        (f64::from(shape.blocks), f64::from(shape.threads.max(1)))
    }
}

/// SMs' worth of block slots: blocks over blocks per SM (compute capability 9.0: 2 048 threads, 65 536 registers, 228 KiB
/// of shared memory with 1 KiB reserved per block, 32 blocks).
fn room(shape: &Shape) -> f64 {
    let warps = shape.threads.max(32).div_ceil(32);
    let per_sm = [
        Some(64 / warps),
        (shape.regs > 0).then(|| 65_536 / (shape.regs * warps * 32)),
        (shape.smem > 0).then(|| 233_472 / (shape.smem + 1024)),
        Some(32),
    ];
    let per_sm = per_sm.into_iter().flatten().min().unwrap_or(32).max(1);
    f64::from(shape.blocks.max(1)) / f64::from(per_sm)
}

#[cfg(test)]
mod tests;
