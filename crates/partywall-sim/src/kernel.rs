//! From a recorded profile to kernels the engine can run: the rule by which everything is estimated that was not
//! measured.
//!
//! # Measured
//!
//! Per kernel: its time in a traced pass and its launch shape. Per network: the latency of a CUDA graph replay. Of the
//! networks whose graph was traced also the bytes that each kernel moved, and the latency at several SM counts.
//!
//! # Estimated, by this rule
//!
//! - **Time in a graph.** Kernels are scaled by one factor per network so that they and the gaps sum to the graph's
//!   latency. Where only an eager pass was traced and the graph takes more than half as long again as its
//!   kernels (BERT at batch 8: 2.4 times), the graph must hold kernels that the eager pass did not launch: attention that is
//!   not fused is a chain of memory-bound kernels. The network's own memory-bound kernels are then repeated to fill the
//!   time. The trace of a graph is taken as it is.
//! - **Gaps**: what the graph takes beyond its kernels, divided evenly, at least [`Params::gap_ns`]. A program that replays
//!   the graph otherwise leaves other gaps ([`Program::paced`]), and a client of MPS has those of MPS.
//! - **Width**: on how many SMs' worth of throughput a kernel can draw: its threads over
//!   [`Params::saturating_threads`], times what the network's latencies at several SM counts say about its kernels where
//!   they were recorded ([`Widths`]). (That matrix products draw on at least a part of the room that their blocks fill, few
//!   threads keeping a tensor core busy, was tried: the recorded curves of 20 networks fit no better with it.)
//! - **SM scaling**: a kernel has a fixed part ([`Params::fixed_ns`]) and a rest that is stretched where fewer SMs are
//!   available than its width ([`stretch`]). Where a wall gives a tenant SMs side by side, as the recordings did, what the
//!   widths leave unexplained is made up for ([`Remainder`]).
//! - **Room**: blocks over the blocks that fit one SM by threads, registers and shared memory (CUDA's occupancy
//!   rule for compute capability 9.0). A kernel with more room than SMs runs in waves, and until its last wave is
//!   placed no other kernel of the same pool can start: launch-order blocking.
//! - **Traffic**: what a kernel asks of the memory system. Where its bytes were counted, as they were of all traced
//!   graphs, those of VRAM and a part of those that stayed in L2 ([`Params::l2_weight`]). By VRAM alone, MobileNetV3
//!   (0.7 MB of 198) would load nothing, and networks beside others came out a tenth too fast: L2 and the way to it are
//!   shared too, and what hits there alone is pushed out beside a neighbour. Elsewhere (eager passes, recordings made where
//!   the counters may not be read, and copies and fills, which have none) memory-bound kernels (skinny matrix products
//!   among them) move what a device copy would on the SMs that their blocks fill, math kernels the fraction
//!   [`Params::math_intensity`] of it. Counted networks have 0.2 to 0.8 of this in their memory-bound kernels and one to six
//!   times as much in those that compute; averages of these were tried as the rule, and networks that were not yet counted
//!   came out further off. By their own counts they do so under MPS too, so that trial says little; no measured co-run
//!   depends on the rule for math any more.
//! - **Other GPUs**: math time follows tensor throughput per SM, memory-bound time the stream bandwidth, fixed parts
//!   stay.

use partywall_core::gpu::Gpu;
use partywall_core::units::{Bytes, Nanos};

use crate::params::Params;
use crate::power;
use crate::profile::{KernelKind, OnSms, Pass, Profile, Shape};

mod scaling;

pub use scaling::{Remainder, Widths};

/// VRAM traffic of the large matrix product: 16 waves of 132 tiles read about 65 MB of rows and columns each, and 134 MB
/// are written, in 1.28 ms (estimate from the tiling).
const GEMM_GB_S: f64 = 915.0;

/// Longest gap of a graph replay: what lies above is no gap (programs on the legacy default stream left 0.36 us in the
/// median, 0.55 at most).
const GAP_MAX_NS: f64 = 600.0;

/// Kernels up to this long were seen to show none of MPS's gap while no other client is active, and those longer than
/// the second by all of it: [`Params::mps_gap_ns`].
const EXPOSED_NS: (f64, f64) = (1_300.0, 2_100.0);

/// A kernel as the engine runs it. Times are nanoseconds alone on the whole GPU at the highest clock.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kernel {
    /// From the end of the kernel before it to its start, without MPS; how the program replays its graph is in it.
    pub gap_ns: f64,
    /// How many launches it stands for: one, or more where kernels were merged.
    pub launches: f64,
    /// How many of these show the gap of MPS while no other client is active, by their length ([`Params::mps_gap_ns`]).
    pub exposed: f64,
    /// Fixed part: fetching code and parameters, the first loads.
    pub launch_ns: f64,
    /// The part that scales with SMs.
    pub work_ns: f64,
    /// SMs' worth of throughput it can draw on; may exceed the GPU.
    pub width: f64,
    /// SMs' worth of block slots it needs; above the GPU's SMs it runs in waves.
    pub room: f64,
    /// Traffic during its work: what it asks of the memory system, bytes of VRAM per nanosecond (GB/s).
    pub traffic: f64,
    /// How much of the memory system's queueing delay its work sees, 0 to 1.
    pub sensitivity: f64,
    /// Whether it computes (for the clock) or moves data.
    pub math: bool,
    /// Power of an SM that it draws on, as a fraction of [`Gpu::power_busy_w`] over all SMs.
    pub activity: f64,
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
    /// How its kernels come to the GPU.
    pub launching: Launching,
    /// What of its latencies on fewer SMs the widths of its kernels do not explain.
    pub remainder: Remainder,
}

/// How the kernels of a program come to the GPU. It matters behind the wall `partywall`, which decides about launches, and where a host is
/// slower than the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Launching {
    /// Whether a pass is one CUDA graph, and not a launch for each kernel.
    pub graph: bool,
    /// What each kernel is a copy of within the device; zero where they are none.
    pub copy: Bytes,
    /// From one launch to the next, nanoseconds, of a host that may be slower than the GPU; zero for one that never is.
    pub host_ns: f64,
}

impl Launching {
    const GRAPH: Self = Self { graph: true, copy: Bytes::ZERO, host_ns: 0.0 };
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
        let launches = Launches::of(profile, params);
        let (widths, remainder) = launches.widths(recorded, params);
        let kernels = launches.kernels(recorded, params, widths);
        Self {
            name: profile.name(),
            kernels: kernels.map(|kernel| kernel.moved(recorded, chip)).collect(),
            input: Bytes::ZERO,
            output: Bytes::ZERO,
            items: f64::from(profile.batch),
            unit: "inputs",
            launching: Launching::GRAPH,
            remainder,
        }
    }

    /// What the recorded latencies of `profile` at several SM counts say about its kernels; the rule as it is without
    /// such latencies. For reports: [`Program::of`] takes it into account.
    pub fn widths(profile: &Profile, recorded: &Chip, params: &Params) -> Widths {
        Launches::of(profile, params).widths(recorded, params).0
    }

    /// Device-to-device copies of 1 GiB, reading and writing as fast as VRAM allows.
    ///
    /// Shape: 65 536 blocks of 256 threads, 16 KiB each (estimate; it makes 62 waves, whose tail of 8 us is the
    /// window in which another tenant's kernels were seen to start under MPS). 62 SMs' worth of width: 16 SMs moved
    /// 1.03, 28 moved 1.92, 66 moved 3.5 and all 132 moved 4.25 TB/s.
    pub fn stream(chip: &Chip, params: &Params) -> Self {
        let copied = Bytes(1 << 30);
        let moved = 2.0 * copied.0 as f64;
        let shape = Shape { kind: KernelKind::Memory, blocks: 65_536, threads: 256, regs: 32, smem: 0 };
        let stream = Self::single(
            "stream",
            (moved / 1e9, "GB"),
            Kernel {
                gap_ns: params.gap_ns,
                launches: 1.0,
                exposed: 1.0,
                launch_ns: params.fixed_ns,
                work_ns: moved / chip.bandwidth,
                width: 62.0 * chip.sms / 132.0,
                room: room(&shape),
                traffic: chip.bandwidth,
                sensitivity: 0.0,
                math: false,
                activity: power::STREAM_ACTIVITY,
            },
        );
        Self { launching: Launching { copy: copied, ..Launching::default() }, ..stream }
    }

    /// bf16 matrix products of 8192 x 8192.
    ///
    /// 5.92 a second and SM at the highest clock (measured on 66 and 16 SMs; on all 132 the power cap leaves 608). 2 048 tiles of 128 x 256, one to an SM (estimate; the half-empty 16th wave
    /// is the window of 70 to 76 us in which another tenant's kernels were seen to run under MPS).
    pub fn gemm(recorded: &Chip, chip: &Chip, params: &Params) -> Self {
        let kernel = Kernel {
            gap_ns: params.gap_ns,
            launches: 1.0,
            exposed: 1.0,
            launch_ns: params.fixed_ns,
            work_ns: 1e9 / (5.92 * recorded.sms),
            width: 2048.0,
            room: 2048.0,
            traffic: GEMM_GB_S,
            sensitivity: sensitivity(GEMM_GB_S, recorded),
            math: true,
            activity: power::PRODUCT_ACTIVITY,
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
            launching: Launching::default(),
            remainder: Remainder::default(),
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
            launching: Launching::default(),
            remainder: Remainder::default(),
        }
    }

    /// The same with copies around the kernels.
    #[must_use]
    pub fn with_copies(self, input: Bytes, output: Bytes) -> Self {
        Self { input, output, ..self }
    }

    /// The same program with the gaps between its kernels that make it take `solo_ns` alone on the whole GPU: kernels
    /// are the GPU's, gaps are how a program replays its graph. Replays on the legacy default stream took a third of a
    /// microsecond per kernel longer than those on a stream of their own, with the same kernels. What gaps cannot be, as
    /// they are neither shorter than [`Params::gap_ns`] nor as long as kernels, the kernels themselves take more or less.
    #[must_use]
    pub fn paced(mut self, solo_ns: f64, params: &Params) -> Self {
        let launches: f64 = self.kernels.iter().map(|kernel| kernel.launches).sum();
        let spans_ns: f64 = self.kernels.iter().map(|kernel| kernel.launch_ns + kernel.work_ns).sum();
        let gap_ns = ((solo_ns - spans_ns) / launches).clamp(params.gap_ns, GAP_MAX_NS.max(params.gap_ns));
        let scale = ((solo_ns - gap_ns * launches) / spans_ns).max(1.0 / 3.0);
        for kernel in &mut self.kernels {
            kernel.gap_ns = gap_ns * kernel.launches;
            kernel.launch_ns *= scale;
            kernel.work_ns *= scale;
        }
        self
    }

    /// The same program launched kernel by kernel by a host that takes `pass_ns` for a pass, alone on the whole GPU. Its kernels are the
    /// graph's; where they would be through sooner, the GPU waits for the host.
    #[must_use]
    pub fn launched_in(mut self, pass_ns: f64) -> Self {
        let host_ns = if pass_ns > self.solo_ns() { pass_ns / self.kernels.len().max(1) as f64 } else { 0.0 };
        self.launching = Launching { graph: false, host_ns, ..self.launching };
        self
    }

    /// Time of one pass alone on the whole GPU, without copies, nanoseconds.
    pub fn solo_ns(&self) -> f64 {
        self.kernels.iter().map(Kernel::alone_ns).sum()
    }

    /// The same as a time.
    pub fn solo(&self) -> Nanos {
        Nanos(self.solo_ns() as u64)
    }

    /// The same program in at most `segments` pieces: neighbouring kernels are merged, which keeps times, traffic and
    /// width on average and loses the finer moments at which a neighbour could have started. For long simulations.
    #[must_use]
    pub fn coarsened(&self, segments: usize) -> Self {
        let size = self.kernels.len().div_ceil(segments.max(1)).max(1);
        Self { kernels: self.kernels.chunks(size).map(merge).collect(), ..self.clone() }
    }
}

/// The kernels of one pass as the graph launches them.
struct Launches<'p> {
    profile: &'p Profile,
    /// Index into the profile's kernels, and time without the gap.
    in_graph: Vec<(usize, f64)>,
    gap_ns: f64,
}

impl<'p> Launches<'p> {
    fn of(profile: &'p Profile, params: &Params) -> Self {
        let graph_ns = profile.solo_ms() * 1e6;
        let copies = copies_of_memory_kernels(profile, graph_ns, params);
        let launched = profile.kernels.iter().enumerate().flat_map(|(index, &(shape, ns))| {
            let math = profile.shapes[shape as usize].kind == KernelKind::Math;
            std::iter::repeat_n((index, f64::from(ns)), if math { 1 } else { copies })
        });
        let mut in_graph: Vec<(usize, f64)> = launched.collect();
        let traced_ns: f64 = in_graph.iter().map(|(_, ns)| ns).sum();
        let launches = in_graph.len() as f64;
        // What the graph takes beyond its kernels is gaps, as far as gaps go.
        let gap_ns = ((graph_ns - traced_ns) / launches).clamp(params.gap_ns, GAP_MAX_NS.max(params.gap_ns));
        // Never below a third: a graph much faster than its kernels would be a damaged profile.
        let scale = ((graph_ns - gap_ns * launches) / traced_ns).max(1.0 / 3.0);
        in_graph.iter_mut().for_each(|(_, ns)| *ns *= scale);
        Self { profile, in_graph, gap_ns }
    }

    fn kernels(&self, chip: &Chip, params: &Params, widths: Widths) -> impl Iterator<Item = Kernel> {
        self.in_graph.iter().map(move |&(index, span_ns)| {
            let shape = &self.profile.shapes[self.profile.kernels[index].0 as usize];
            let kernel = Kernel::estimate(shape, span_ns, chip, params, widths);
            let kernel = Kernel { gap_ns: self.gap_ns, ..kernel };
            let counted = |bytes: &[Option<u64>]| bytes.get(index).copied().flatten();
            match counted(&self.profile.vram_bytes) {
                Some(vram) => kernel.that_moves(vram, counted(&self.profile.l2_bytes), chip, params),
                None => kernel,
            }
        })
    }

    fn widths(&self, chip: &Chip, params: &Params) -> (Widths, Remainder) {
        if self.profile.scaling.is_empty() {
            return (Widths::RULE, Remainder::default());
        }
        let by_rule: Vec<Kernel> = self.kernels(chip, params, Widths::RULE).collect();
        let mut curve = self.profile.scaling.clone();
        if curve.iter().all(|point| f64::from(point.sms) < chip.sms) {
            // A green context on all SMs was measured to cost nothing.
            curve.push(OnSms { sms: chip.sms as u32, p50_ms: self.profile.graph_p50_ms });
        }
        Widths::fit(&by_rule, &curve, chip.sms)
    }
}

/// How often each memory-bound kernel is launched in the graph, for the eager kernels to last as long as the graph.
fn copies_of_memory_kernels(profile: &Profile, graph_ns: f64, params: &Params) -> usize {
    if profile.pass == Pass::Graph {
        return 1;
    }
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
        gap_ns: kernels.iter().map(|kernel| kernel.gap_ns).sum(),
        launches: kernels.iter().map(|kernel| kernel.launches).sum(),
        exposed: kernels.iter().map(|kernel| kernel.exposed).sum(),
        launch_ns,
        work_ns,
        width: mean(|kernel| kernel.width),
        room: mean(|kernel| kernel.room),
        traffic: mean(|kernel| kernel.traffic),
        sensitivity: mean(|kernel| kernel.sensitivity),
        math: mean(|kernel| f64::from(u8::from(kernel.math))) > 0.5,
        activity: mean(|kernel| kernel.activity),
    }
}

impl Kernel {
    /// Its time alone on the whole GPU, nanoseconds.
    pub fn alone_ns(&self) -> f64 {
        self.gap_ns + self.launch_ns + self.work_ns
    }

    /// The gap before it as a client of MPS, alone or while another one is active.
    pub(crate) fn mps_gap_ns(&self, shared: bool, params: &Params) -> f64 {
        let exposed = if shared { self.launches } else { self.exposed };
        params.gap_ns * (self.launches - exposed) + params.mps_gap_ns * exposed
    }

    /// Alone on the GPU it was recorded on; `span_ns` is its time in a graph without the gap.
    fn estimate(shape: &Shape, span_ns: f64, chip: &Chip, params: &Params, widths: Widths) -> Self {
        // A kernel of one microsecond is all latency, but a share must remain that SMs can change.
        let fixed_ns = params.fixed_ns.min(0.9 * span_ns);
        let (blocks, threads) = launch(shape, chip);
        let math = shape.kind == KernelKind::Math;
        let width = (blocks * threads / params.saturating_threads * widths.of(math)).max(1.0);
        let intensity = if math { params.math_intensity } else { 1.0 };
        let traffic = intensity * chip.bandwidth * (width.max(room(shape)) / chip.sms).min(1.0);
        let (from, to) = EXPOSED_NS;
        Self {
            gap_ns: params.gap_ns,
            launches: 1.0,
            exposed: ((span_ns - from) / (to - from)).clamp(0.0, 1.0),
            launch_ns: fixed_ns,
            work_ns: span_ns - fixed_ns,
            width,
            room: room(shape),
            traffic,
            sensitivity: sensitivity(traffic, chip),
            math,
            activity: if math { power::MATH_ACTIVITY } else { power::MEMORY_ACTIVITY },
        }
    }

    /// The same kernel with the bytes that it was seen to move in place of the rule's: `vram` to and from VRAM, `l2`
    /// between SMs and L2 (of which those to VRAM are a part). What it asks of the memory system is the first and, by
    /// [`Params::l2_weight`], the rest; what it moves altogether says how far it waits for bandwidth. A kernel of a
    /// microsecond may seem to move more than there is bandwidth for, because its fixed part moves some of them.
    fn that_moves(self, vram: u64, l2: Option<u64>, chip: &Chip, params: &Params) -> Self {
        let hits = l2.unwrap_or(vram).saturating_sub(vram) as f64;
        let rate = |bytes: f64| (bytes / self.work_ns).min(chip.bandwidth);
        let traffic = rate(vram as f64 + params.l2_weight * hits);
        Self { traffic, sensitivity: sensitivity(rate(vram as f64 + hits), chip), ..self }
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

/// What already moves all the memory system can move waits for bandwidth, not for latency.
fn sensitivity(traffic: f64, chip: &Chip) -> f64 {
    (1.0 - traffic / chip.bandwidth).max(0.0)
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
