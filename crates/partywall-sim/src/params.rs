//! The calibrated parameters of the model: few, physical, each with the measurement that fixes it.
//!
//! `partywall sim validate` holds the model against recorded pairs; `cargo xtask calibrate PAIRS.csv` is the search
//! that found the values. "Pairs" below are the recorded co-runs of two networks on an H200 (November 2026, driver
//! 580.159, PyTorch 2.11, CUDA graphs, separate processes).

/// Parameters of the contention model. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// From the end of a kernel to the start of the next one of a CUDA graph. Fixed by graph latency minus the sum
    /// of the kernels, over the number of kernels: median 0.41 us over the 33 recorded profiles whose eager and
    /// graph kernels agree.
    pub gap_ns: f64,
    /// The part of a kernel that does not shrink with more SMs: fetching code and parameters, the first loads.
    /// Fixed by networks alone on fewer SMs (pairs without a neighbour at 50 %; ResNet-50, MobileNetV3 and VGG-16 on
    /// 64 and 16 SMs).
    pub fixed_ns: f64,
    /// Threads that keep one SM busy. Fixed by the same measurements.
    pub saturating_threads: f64,
    /// What MPS adds to each kernel of a client that is alone. Fixed by pairs under MPS without a neighbour.
    pub mps_launch_ns: f64,
    /// What it adds while another client is active. Fixed by best-effort tenants held to 6 % of the SMs, which
    /// cost their neighbours 4 to 9 % whatever they run.
    pub mps_shared_ns: f64,
    /// How long a process keeps the GPU under time-slicing. Fixed by pairs under time-slicing: a request waits this
    /// long less the pause since the last one.
    pub slice_ns: f64,
    /// What changing the process costs. Fixed by the best-effort rate of the same pairs.
    pub switch_ns: f64,
    /// Delay of memory accesses at low load: extra time per unit of others' load. Fixed by pairs at 50 % of the SMs
    /// each.
    pub queue_gain: f64,
    /// Growth of that delay towards saturation: delay = gain * load / (1 - knee * load).
    pub queue_knee: f64,
    /// VRAM traffic of math kernels as a fraction of what a device copy moves on the same SMs. Fixed by what networks as
    /// best-effort tenants cost their neighbours, beyond what their memory-bound kernels explain.
    pub math_intensity: f64,
    /// From the end of a synchronised batch of launches to the next launch by the host. Fixed by pairs beside streams and
    /// matrix products, which leave the GPU to others for that long every four and every two kernels.
    pub host_ns: f64,
    /// Extra time, in multiples of itself, of a kernel whose SMs are all shared with another tenant's: most of its
    /// blocks wait for slots. Fixed by pairs under MPS.
    pub sm_sharing: f64,
    /// Room, as a fraction of all SMs, that must be free before a waiting kernel of another tenant starts (or all
    /// it wants, if that is less). Fixed by pairs under MPS: persistent matrix products on 128 of 132 SMs block.
    pub start_room: f64,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            gap_ns: 390.0,
            fixed_ns: 500.0,
            saturating_threads: 900.0,
            mps_launch_ns: 195.0,
            mps_shared_ns: 200.0,
            slice_ns: 2200000.0,
            switch_ns: 40000.0,
            queue_gain: 0.57,
            queue_knee: 0.363,
            math_intensity: 0.97,
            host_ns: 14000.0,
            sm_sharing: 2.5,
            start_room: 0.372,
        }
    }
}

impl Params {
    /// Names and values, for reports and for the search.
    pub fn entries(&mut self) -> [(&'static str, &mut f64); 13] {
        [
            ("gap_ns", &mut self.gap_ns),
            ("fixed_ns", &mut self.fixed_ns),
            ("saturating_threads", &mut self.saturating_threads),
            ("mps_launch_ns", &mut self.mps_launch_ns),
            ("mps_shared_ns", &mut self.mps_shared_ns),
            ("slice_ns", &mut self.slice_ns),
            ("switch_ns", &mut self.switch_ns),
            ("queue_gain", &mut self.queue_gain),
            ("queue_knee", &mut self.queue_knee),
            ("math_intensity", &mut self.math_intensity),
            ("host_ns", &mut self.host_ns),
            ("sm_sharing", &mut self.sm_sharing),
            ("start_room", &mut self.start_room),
        ]
    }
}
