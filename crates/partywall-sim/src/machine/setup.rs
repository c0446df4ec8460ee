//! What determines a run, and the check that it can be run.

use partywall_core::copy_scheduler::{self, MAX_TENANTS};
use partywall_core::gpu::Gpu;
use partywall_core::sm_arbiter;
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::{Bytes, Nanos};

use crate::kernel::{Kernel, Program};
use crate::layout::Layout;
use crate::load::Demand;
use crate::params::Params;

/// A tenant of the simulated GPU.
#[derive(Debug, Clone)]
pub struct Workload {
    /// For people.
    pub name: String,
    /// What it cares about.
    pub class: Class,
    /// What a request runs.
    pub program: Program,
    /// How requests come.
    pub demand: Demand,
    /// Longest response that meets the objective.
    pub objective: Option<Nanos>,
}

/// A fatal GPU fault: it ends every tenant of its fault domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Whose.
    pub tenant: TenantId,
    /// When.
    pub at: Nanos,
    /// How long the tenants it ends take to come back.
    pub restart: Nanos,
}

/// Everything that determines a run.
#[derive(Debug, Clone)]
pub struct Setup<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// What the wall makes of it, for as many tenants as there are workloads.
    pub layout: Layout,
    /// The tenants.
    pub workloads: Vec<Workload>,
    /// How copies between host and device are scheduled.
    pub copies: copy_scheduler::Config,
    /// Parameters of the model.
    pub params: Params,
    /// Seed of everything random. Tenant `i` draws its arrivals from stream `streams[i]`, so that it sees the same
    /// arrivals alone and among others.
    pub seed: u64,
    /// Stream of each tenant.
    pub streams: Vec<u64>,
    /// Nothing before this counts.
    pub warmup: Nanos,
    /// End of the run.
    pub end: Nanos,
    /// Stop once tenant 0 has completed this many requests after the warm-up.
    pub requests_max: u64,
    /// Faults, in any order.
    pub faults: Vec<Fault>,
    /// First moment and bin of a timeline to record, and its number of bins.
    pub timeline: Option<(Nanos, Nanos, usize)>,
}

/// Why a run cannot start.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SetupError {
    /// The parameters of the copy scheduler.
    #[error(transparent)]
    Copies(#[from] copy_scheduler::ConfigError),
    /// The arbiter.
    #[error(transparent)]
    Arbiter(#[from] sm_arbiter::ConfigError),
    /// Lists of different lengths.
    #[error(
        "the layout has {places} places, there are {workloads} workloads and {streams} streams; all must agree"
    )]
    Tenants {
        /// Places of the layout.
        places: usize,
        /// Workloads.
        workloads: usize,
        /// Streams.
        streams: usize,
    },
    /// No tenant, or more than the link's scheduler counts to.
    #[error("there are {given} tenants; expected 1 to {MAX_TENANTS}")]
    TenantCount {
        /// How many there are.
        given: usize,
    },
    /// A window without length.
    #[error("the run ends at {end}, and nothing before {warmup} counts; expected an end after that")]
    Window {
        /// End of the warm-up.
        warmup: Nanos,
        /// End of the run.
        end: Nanos,
    },
    /// A request that takes no time would be followed by the next one for ever.
    #[error("`{workload}` has neither kernels nor an input to copy; expected one of them")]
    Empty {
        /// Whose.
        workload: String,
    },
    /// A kernel with impossible figures.
    #[error(
        "kernel {kernel} of `{workload}` is impossible; expected finite figures: a time, width and room above 0, no negative traffic, a sensitivity from 0 to 1"
    )]
    Kernel {
        /// Whose.
        workload: String,
        /// Its index.
        kernel: usize,
    },
    /// A fault of nobody.
    #[error("a fault names {tenant}; the tenants are 0 to {}", tenants - 1)]
    Fault {
        /// Whom it names.
        tenant: TenantId,
        /// How many there are.
        tenants: usize,
    },
}

impl Setup<'_> {
    /// Finds what would stop a run, or keep it from ending.
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let (places, workloads, streams) =
            (self.layout.places.len(), self.workloads.len(), self.streams.len());
        if places != workloads || workloads != streams {
            return Err(SetupError::Tenants { places, workloads, streams });
        }
        if workloads == 0 || workloads > MAX_TENANTS {
            return Err(SetupError::TenantCount { given: workloads });
        }
        if self.warmup >= self.end {
            return Err(SetupError::Window { warmup: self.warmup, end: self.end });
        }
        if let Some(fault) = self.faults.iter().find(|fault| fault.tenant.index() >= workloads) {
            return Err(SetupError::Fault { tenant: fault.tenant, tenants: workloads });
        }
        self.workloads.iter().try_for_each(|Workload { name, program, .. }| {
            if program.kernels.is_empty() && program.input == Bytes::ZERO {
                return Err(SetupError::Empty { workload: name.clone() });
            }
            match program.kernels.iter().position(|kernel| !possible(kernel)) {
                Some(kernel) => Err(SetupError::Kernel { workload: name.clone(), kernel }),
                None => Ok(()),
            }
        })
    }
}

/// NaN is in no range.
fn possible(kernel: &Kernel) -> bool {
    let finite = 0.0..f64::MAX;
    let above_zero = |value: f64| value > 0.0 && value < f64::MAX;
    finite.contains(&kernel.gap_ns)
        && finite.contains(&kernel.launches)
        && finite.contains(&kernel.exposed)
        && finite.contains(&kernel.launch_ns)
        && finite.contains(&kernel.work_ns)
        && finite.contains(&kernel.traffic)
        && finite.contains(&kernel.activity)
        && above_zero(kernel.launch_ns + kernel.work_ns)
        && above_zero(kernel.width)
        && above_zero(kernel.room)
        && (0.0..=1.0).contains(&kernel.sensitivity)
}
