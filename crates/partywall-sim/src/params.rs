//! The calibrated parameters of the model: few, physical, each with the measurement that fixes it.
//!
//! `partywall sim validate` holds the model against measured co-runs; `cargo xtask calibrate MEASURED…` is the search
//! that found the values. "Pairs" below are recorded co-runs on an H200 (November 2026, driver 580.159, PyTorch 2.11, CUDA
//! graphs, separate processes): `results/h200/networks.json`, whose programs replay on streams of their own, and
//! `results/h200/pairs.csv`, whose programs replayed on the legacy default stream.

/// Parameters of the contention model. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// From the end of a kernel to the start of the next one of a CUDA graph, at least. Fixed by traces of graph replays
    /// on a stream of their own: 0.096 us in the median of nearly all of 20 networks.
    pub gap_ns: f64,
    /// The part of a kernel that does not shrink with more SMs: fetching code and parameters, the first loads.
    /// Fixed by pairs: this part sees the load of the memory system whatever the kernel itself reads.
    pub fixed_ns: f64,
    /// Threads that keep one SM busy. Fixed by networks alone on fewer SMs: with it, the factors that their recorded
    /// latencies ask for lie around 1.
    pub saturating_threads: f64,
    /// The same gap for a client of MPS, whatever it is without: with another client active before every kernel,
    /// alone only before kernels that are not as short as a launch. Fixed by networks alone under MPS, which take the same
    /// there from programs that differ by a tenth without it, and by neighbours held to 12 % of the SMs.
    pub mps_gap_ns: f64,
    /// How long a process keeps the GPU under time-slicing. Fixed by pairs under time-slicing: a request waits for this
    /// and two switches, less the pause since the last one.
    pub slice_ns: f64,
    /// What changing the process costs. Fixed by networks beside a stream under time-slicing, where two switches are what
    /// a period has beyond the two programs: 0.22 to 0.38 ms. (With two processes on the GPU instead of ten, which
    /// is how `pairs.csv` was recorded, it was a third of that.)
    pub switch_ns: f64,
    /// Delay of memory accesses at low load: extra time per unit of others' load. Fixed by pairs on half of the SMs each.
    pub queue_gain: f64,
    /// Growth of that delay towards saturation: delay = gain * load / (1 - knee * load).
    pub queue_knee: f64,
    /// Traffic of math kernels whose bytes were not counted, as a fraction of what a device copy moves on the same SMs.
    /// Fixed by what networks as best-effort tenants cost their neighbours, beyond what their memory-bound kernels explain,
    /// when none was counted. All traced graphs are now, with one to six times as much, so that no measured co-run
    /// depends on it any more.
    pub math_intensity: f64,
    /// A byte that stays between SMs and L2, as a fraction of one to or from VRAM, in what it asks of the memory system.
    /// Fixed by networks beside networks on half of the SMs each, all with bytes counted: by VRAM alone (0) they are a
    /// tenth too fast.
    pub l2_weight: f64,
    /// From the end of a synchronised batch of launches to the next launch on the GPU, where nothing is known of the
    /// host. Fixed by pairs of `pairs.csv` beside streams and matrix products, which leave the GPU to others for that long
    /// every four and every two kernels.
    pub host_ns: f64,
    /// What is added where the host is known: from the end of the last kernel to the host that waits for it, and from its
    /// call to the first kernel. Fixed by ResNet-50 and MobileNetV3 beside streams under MPS, which get on as long as
    /// that. The search would take 27 us; streams alone come out slower than they are by then, with this by 0.5 %.
    pub reach_ns: f64,
    /// Extra time, in multiples of itself, of a kernel whose SMs are all shared with another tenant's: most of its
    /// blocks wait for slots. Fixed by pairs under MPS.
    pub sm_sharing: f64,
    /// What a launch of a CUDA graph takes longer behind `sides` while the other side moves all it can. Fixed, as is `side_stream`,
    /// by requests of four launches beside neighbours on 24 to 66 SMs: `results/h200/sides/interfere-requests.json` and
    /// `sms.json`, the `added_us_per_launch` of their rows.
    pub side_launch_ns: f64,
    /// The same for what the other side is asked for beyond that, as a multiple of it: the queue that builds up there. Fixed by ResNet-18
    /// beside a stream (`results/h200/sides.json`). Requests that do little else would have 3 600.
    pub side_queue_ns: f64,
    /// How many times as long the two above are for a launch that comes through a stream and not in a graph.
    pub side_stream: f64,
    /// Room, as a fraction of all SMs, that must be free before a waiting kernel of another tenant starts (or all
    /// it wants, if that is less). Fixed by pairs under MPS: persistent matrix products on 128 of 132 SMs block.
    pub start_room: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            gap_ns: 96.0,
            fixed_ns: 380.0,
            saturating_threads: 900.0,
            mps_gap_ns: 1000.0,
            slice_ns: 2150000.0,
            switch_ns: 125000.0,
            queue_gain: 0.665,
            queue_knee: 0.448,
            math_intensity: 0.138,
            l2_weight: 0.43,
            host_ns: 15500.0,
            reach_ns: 20000.0,
            sm_sharing: 3.79,
            side_launch_ns: 555.0,
            side_queue_ns: 490.0,
            side_stream: 2.18,
            start_room: 0.282,
        }
    }
}

impl Params {
    /// Names and values, for reports and for the search.
    pub fn entries(&mut self) -> [(&'static str, &mut f64); 17] {
        [
            ("gap_ns", &mut self.gap_ns),
            ("fixed_ns", &mut self.fixed_ns),
            ("saturating_threads", &mut self.saturating_threads),
            ("mps_gap_ns", &mut self.mps_gap_ns),
            ("slice_ns", &mut self.slice_ns),
            ("switch_ns", &mut self.switch_ns),
            ("queue_gain", &mut self.queue_gain),
            ("queue_knee", &mut self.queue_knee),
            ("math_intensity", &mut self.math_intensity),
            ("l2_weight", &mut self.l2_weight),
            ("host_ns", &mut self.host_ns),
            ("reach_ns", &mut self.reach_ns),
            ("sm_sharing", &mut self.sm_sharing),
            ("side_launch_ns", &mut self.side_launch_ns),
            ("side_queue_ns", &mut self.side_queue_ns),
            ("side_stream", &mut self.side_stream),
            ("start_room", &mut self.start_room),
        ]
    }
}
