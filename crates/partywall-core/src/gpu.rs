//! What a GPU is, as data: every figure carries where it comes from.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::SmCount;

/// How a figure is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// Measured by this project.
    Measured,
    /// A document of the vendor.
    Vendor,
    /// A published paper or somebody else's published measurement.
    Paper,
    /// Derived or guessed; the reference says how.
    Estimate,
}

/// A figure with its source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sourced<T> {
    /// The figure.
    pub value: T,
    /// How it is known.
    pub kind: SourceKind,
    /// Which measurement, document, paper or rule.
    pub source: String,
}

/// A GPU model. Bandwidths are in GB/s (1e9 bytes), clocks in MHz, power in W.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gpu {
    /// The id used on the command line: `h200`.
    pub id: String,
    /// The name people know.
    pub name: String,
    /// Architecture and compute capability: `Hopper (9.0)`.
    pub architecture: String,
    /// Streaming multiprocessors.
    pub sms: Sourced<u32>,
    /// L2 in MiB.
    pub l2_mib: Sourced<f64>,
    /// Memory in GiB.
    pub vram_gib: Sourced<f64>,
    /// Memory bandwidth, vendor peak, GB/s.
    pub vram_gb_s: Sourced<f64>,
    /// Memory bandwidth that a device-to-device copy reaches (read plus written), GB/s.
    pub stream_gb_s: Sourced<f64>,
    /// Halves (or more) of the L2 and memory system with their own SMs; 1 where the part is uniform.
    pub sides: Sourced<u32>,
    /// L2 slices or memory channels visible to software.
    pub channels: Sourced<u32>,
    /// Copy bandwidth of the link to the host, each way, GB/s.
    pub pcie_gb_s: Sourced<f64>,
    /// Copy engines: those that MIG hands out where the part has MIG, else those that CUDA reports.
    pub copy_engines: Sourced<u32>,
    /// Dense fp16 tensor throughput, TFLOP/s.
    pub fp16_tflops: Sourced<f64>,
    /// Power cap; on a module whose cap covers the CPU too, the GPU's share of it.
    pub power_cap_w: Sourced<f64>,
    /// Power when idle at a raised clock.
    pub power_idle_w: Sourced<f64>,
    /// Power above idle with all SMs busy with matrix work at the highest clock, if nothing capped it.
    pub power_busy_w: Sourced<f64>,
    /// Lowest SM clock.
    pub clock_min_mhz: Sourced<f64>,
    /// Highest SM clock.
    pub clock_max_mhz: Sourced<f64>,
    /// Whether host and device share one memory (Jetson): copies then use VRAM bandwidth.
    #[serde(default)]
    pub unified_memory: bool,
    /// Smallest Green Context, in SMs.
    pub green_context_min: Sourced<u32>,
    /// Green Contexts are sized in multiples of this many SMs.
    pub green_context_step: Sourced<u32>,
    /// MIG, where the part has it.
    #[serde(default)]
    pub mig: Option<Mig>,
}

impl Gpu {
    /// Streaming multiprocessors.
    pub fn sms(&self) -> SmCount {
        SmCount(self.sms.value)
    }

    /// Bytes that a copy within device memory moves in a nanosecond, read plus written. (1 GB/s is 1 byte/ns.)
    pub fn stream_bytes_per_ns(&self) -> f64 {
        self.stream_gb_s.value
    }

    /// Bytes that a copy between host and device moves in a nanosecond, each way.
    pub fn pcie_bytes_per_ns(&self) -> f64 {
        self.pcie_gb_s.value
    }
}

/// How a part can be cut by MIG.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mig {
    /// Slices of memory that placements count in.
    pub memory_slices: u32,
    /// The instance profiles.
    pub profiles: Vec<MigProfile>,
}

/// One kind of MIG instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MigProfile {
    /// `3g.71gb`.
    pub name: String,
    /// The number `nvidia-smi mig -cgi` takes.
    pub id: u32,
    /// How many fit on one GPU.
    pub instances: u32,
    /// SMs of one instance.
    pub sms: Sourced<u32>,
    /// Memory of one instance, GiB.
    pub memory_gib: Sourced<f64>,
    /// Memory slices it occupies, the width of a placement.
    pub memory_slices: u32,
    /// Copy engines of one instance.
    pub copy_engines: u32,
    /// First memory slices at which it may be placed.
    pub placements: Vec<u32>,
}
