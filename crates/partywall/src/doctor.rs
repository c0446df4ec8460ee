//! `partywall doctor`: what this machine has, and which walls it can build.

mod text;

use std::path::PathBuf;

use partywall_core::catalogue::Catalogue;
use partywall_core::soft_gpu::is_simulated;
use partywall_core::wall::Wall;
use partywall_driver::availability::{self, Availability};
use partywall_driver::checks::{self, Checked};
use partywall_driver::nvml::Nvml;
use partywall_driver::survey::{CudaSide, Surroundings, Survey};
use partywall_driver::{Cuda, Device, DriverError};
use serde::Serialize;

use crate::cli::DoctorArguments;
use crate::error::Failure;
use crate::output;

/// Everything that is shown, as text or as JSON.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether a GPU of these is a simulated one.
    simulated: bool,
    /// Why there is no GPU to use and what would help, if there is none.
    absent: Option<Availability>,
    #[serde(flatten)]
    survey: Survey,
    walls: Vec<WallReport>,
    /// What was tried, per GPU; null where nobody asked for it.
    checks: Option<Vec<GpuChecks>>,
}

/// What was tried on a GPU.
#[derive(Debug, Serialize)]
struct GpuChecks {
    /// As CUDA counts devices.
    device: u32,
    /// The checks, in order.
    checks: Vec<Checked>,
    /// Why they ended early or did not begin.
    error: Option<String>,
}

impl GpuChecks {
    fn on(device: &Device) -> Self {
        let (checks, error) = match checks::run(device) {
            Ok(checks) => (checks, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        Self { device: device.ordinal(), checks, error }
    }

    fn failed(&self) -> usize {
        self.checks.iter().filter(|check| !check.passed).count() + usize::from(self.error.is_some())
    }
}

#[derive(Debug, Serialize)]
struct WallReport {
    id: Wall,
    #[serde(flatten)]
    availability: Availability,
}

impl Report {
    fn of(survey: Survey) -> Self {
        let wall = |id| WallReport { id, availability: availability::of(id, &survey) };
        let (absent, walls) = (availability::absence(&survey), Wall::ALL.map(wall).into());
        let simulated = survey.gpus.iter().any(|gpu| is_simulated(&gpu.name));
        Self { simulated, absent, walls, survey, checks: None }
    }
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<(), Failure> {
    let catalogue = Catalogue::builtin().map_err(Failure::internal)?;
    let nvml = Nvml::load();
    let survey = Survey::take(&surroundings(), nvml.as_ref(), &CudaSide::look(), catalogue);
    let mut report = Report::of(survey);
    if arguments.check && report.absent.is_none() {
        report.checks = Some(checks()?);
    }
    output::print(&if arguments.json { output::json(&report)? } else { text::render(&report) })?;
    let failed: usize = report.checks.iter().flatten().map(GpuChecks::failed).sum();
    if failed == 0 {
        Ok(())
    } else {
        Err(Failure::machine(format!("{failed} checks failed on this machine"), None::<String>))
    }
}

/// Every check on every GPU that CUDA shows.
fn checks() -> Result<Vec<GpuChecks>, Failure> {
    let none = |error: DriverError| Failure::machine(error, None::<String>);
    let cuda = Cuda::load().map_err(none)?;
    let devices = (0..cuda.device_count().map_err(none)?).map(|ordinal| cuda.device(ordinal));
    devices.map(|device| device.map(|device| GpuChecks::on(&device)).map_err(none)).collect()
}

/// Where to look on this machine.
#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: the survey gets the environment from here"
)]
pub(crate) fn surroundings() -> Surroundings {
    let variable = |name: &str| std::env::var(name).ok();
    Surroundings {
        root: PathBuf::from("/"),
        path: std::env::var_os("PATH"),
        temporary: std::env::temp_dir(),
        mps_pipe_directory: std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").map(PathBuf::from),
        cuda_visible_devices: variable("CUDA_VISIBLE_DEVICES"),
        nvidia_visible_devices: variable("NVIDIA_VISIBLE_DEVICES"),
        kubernetes: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
    }
}
