//! What there is: GPUs, driver, MPS, rights, host. Everything `partywall doctor` shows, in one plain value.
//!
//! A survey only looks: it starts no daemon and changes no setting. Where it looks comes in as [`Surroundings`], so
//! that tests survey a made-up machine; what NVML tells and what CUDA tells come in beside it, for either library may
//! be missing. On Jetson modules with old software, CUDA alone knows the GPU.

mod cuda;
mod host;
pub(crate) mod known;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use partywall_core::catalogue::Catalogue;
use partywall_core::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::device::Uuid;
use crate::library::CudaVersion;
use crate::mig::{Instance, MigMode};
use crate::mps::{self, MpsError};
use crate::nvml::{ComputeMode, Pcie, Process};
use crate::nvml::{Device, DeviceFacts, DriverVersion, Gpm, Nvml, NvmlError};

pub use host::{Host, Rights};

/// Until a control program must have answered; a daemon that hangs must not make the survey hang.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// Where a survey looks: files below a root, and what the environment says.
#[derive(Debug, Clone, Default)]
pub struct Surroundings {
    /// Where `proc`, `dev` and so on are: `/`.
    pub root: PathBuf,
    /// `PATH`.
    pub path: Option<OsString>,
    /// Where temporary files go.
    pub temporary: PathBuf,
    /// `CUDA_MPS_PIPE_DIRECTORY`; the driver's default where it is not set.
    pub mps_pipe_directory: Option<PathBuf>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub cuda_visible_devices: Option<String>,
    /// `NVIDIA_VISIBLE_DEVICES`: what the container toolkit was asked for.
    pub nvidia_visible_devices: Option<String>,
    /// Whether `KUBERNETES_SERVICE_HOST` is set.
    pub kubernetes: bool,
}

/// What the CUDA driver library tells that NVML does not.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CudaSide {
    /// Why it cannot be used, if it cannot.
    pub problem: Option<CudaProblem>,
    /// The newest CUDA that it speaks.
    pub version: Option<CudaVersion>,
    /// The devices that this process may use.
    pub devices: Vec<CudaDevice>,
}

/// Why CUDA cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaProblem {
    /// What was wrong, and where.
    pub why: String,
    /// Whether it is the library that is missing, as against a driver that does not work.
    pub library_missing: bool,
}

/// One device of CUDA's list.
#[derive(Debug, Clone, PartialEq)]
pub struct CudaDevice {
    /// Matches NVML's.
    pub uuid: Uuid,
    /// `NVIDIA H200`.
    pub name: String,
    /// Streaming multiprocessors.
    pub sms: u32,
    /// (9, 0).
    pub compute_capability: (u32, u32),
    /// Its memory.
    pub memory: Option<Bytes>,
    /// How it can be cut into Green Contexts; `None` where the driver does not tell.
    pub green_contexts: Option<Granularity>,
    /// Why it does not tell.
    pub untold: Option<String>,
}

/// How the SMs of a GPU can be cut into Green Contexts, as the driver says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granularity {
    /// Fewest SMs of a context, by default.
    pub min: u32,
    /// SMs come in multiples of this, by default.
    pub step: u32,
    /// Groups of one split when co-scheduling is ignored; a context may be any union of them.
    pub groups: u32,
    /// SMs of such a group.
    pub sms_per_group: u32,
}

/// The driver and its libraries.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Driver {
    /// Its version.
    pub version: Option<DriverVersion>,
    /// The newest CUDA that it speaks.
    pub cuda: Option<CudaVersion>,
    /// Why NVML cannot be used, if it cannot.
    pub nvml_problem: Option<String>,
    /// Why CUDA cannot be used, if it cannot.
    pub cuda_problem: Option<CudaProblem>,
    /// Whether the kernel part is loaded on this machine.
    pub kernel_module: bool,
    /// Whether GPUs show as device files here.
    pub device_files: bool,
}

/// MIG on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mig {
    /// The mode; `None` where the GPU has no MIG.
    pub mode: Option<MigMode>,
    /// What exists.
    pub instances: Vec<Instance>,
    /// The largest profile of which two fit: what two tenants would ask the administrator for.
    pub half: Option<String>,
}

impl Mig {
    /// Whether the GPU is in MIG mode.
    pub fn enabled(&self) -> bool {
        self.mode.is_some_and(|mode| mode.enabled)
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// NVML's index, which `nvidia-smi -i` takes.
    pub index: u32,
    /// `NVIDIA H200`.
    pub name: String,
    /// Its id in the catalogue, if it is there.
    pub id: Option<String>,
    /// Its UUID. Not for reports: it names one machine.
    #[serde(skip)]
    pub uuid: Option<String>,
    /// `Hopper`.
    pub architecture: Option<String>,
    /// [9, 0].
    pub compute_capability: Option<(u32, u32)>,
    /// Whether CUDA lists it too, for this process; `None` where CUDA was not asked, or lists MIG instances instead.
    pub visible: Option<bool>,
    /// SMs, as CUDA says.
    pub sms: Option<u32>,
    /// Halves of its memory system, as the catalogue says.
    pub sides: Option<u32>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// Memory in use, MiB.
    pub memory_used_mib: Option<u64>,
    /// The link to the host.
    pub pcie: Pcie,
    /// Power cap, W.
    pub power_limit_w: Option<f64>,
    /// Highest SM clock, MHz.
    pub sm_clock_max_mhz: Option<u32>,
    /// Who may open a context.
    pub compute_mode: Option<ComputeMode>,
    /// Whether the driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// MIG.
    pub mig: Mig,
    /// How it can be cut into Green Contexts.
    pub green_contexts: Option<Granularity>,
    /// Whether its counters can be read.
    pub gpm: Gpm,
    /// Who else computes on it.
    pub processes: Vec<Process>,
    /// What NVML refused to tell.
    pub untold: Vec<String>,
}

/// MPS on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mps {
    /// The control program, if it is on the `PATH`.
    pub control: Option<PathBuf>,
    /// The CUDA version it was built for, where it says.
    pub control_cuda: Option<CudaVersion>,
    /// A daemon that programs of this user would meet.
    pub daemon: ForeignDaemon,
}

/// A daemon that is not ours.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum ForeignDaemon {
    /// None.
    #[default]
    None,
    /// It answers.
    Running {
        /// Its servers: none before its first client.
        servers: usize,
    },
    /// Something is there that does not answer as a daemon does.
    Unclear {
        /// What happened.
        why: String,
    },
}

/// Everything.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Survey {
    /// The driver.
    pub driver: Driver,
    /// The GPUs, in NVML's order.
    pub gpus: Vec<Gpu>,
    /// MPS.
    pub mps: Mps,
    /// What this user may do.
    pub rights: Rights,
    /// The machine.
    pub host: Host,
}

impl Survey {
    /// Looks. `nvml` is what loading it gave; `catalogue` names GPUs that are known.
    pub fn take(
        surroundings: &Surroundings,
        nvml: Result<&Nvml, &NvmlError>,
        cuda: &CudaSide,
        catalogue: &Catalogue,
    ) -> Self {
        let listed = nvml.map_err(Clone::clone).and_then(Nvml::devices);
        let (listed, nvml_problem) = match listed {
            Ok(devices) => (devices, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let told = nvml.ok();
        let mut gpus: Vec<Gpu> = listed.iter().map(|device| Gpu::look(device, cuda, catalogue)).collect();
        if gpus.is_empty() {
            let facts = cuda.devices.iter().zip(0..).map(|(device, index)| facts_of(device, index));
            gpus = facts.map(|facts| Gpu::from_facts(facts, cuda, catalogue)).collect();
        }
        let driver = Driver {
            version: told.and_then(|nvml| nvml.driver_version().ok()),
            cuda: cuda.version.or_else(|| told.and_then(|nvml| nvml.cuda_version().ok())),
            nvml_problem,
            cuda_problem: cuda.problem.clone(),
            kernel_module: surroundings.root.join("proc/driver/nvidia/version").exists(),
            device_files: host::device_files(&surroundings.root),
        };
        Self {
            driver,
            gpus,
            mps: Mps::look(surroundings),
            rights: Rights::look(surroundings),
            host: Host::look(surroundings),
        }
    }
}

/// What CUDA alone knows of a device.
fn facts_of(device: &CudaDevice, index: u32) -> DeviceFacts {
    DeviceFacts {
        index,
        name: Some(device.name.clone()),
        uuid: Some(device.uuid.to_string()),
        compute_capability: Some(device.compute_capability),
        memory: device.memory,
        ..DeviceFacts::default()
    }
}

impl Gpu {
    fn look(device: &Device, cuda: &CudaSide, catalogue: &Catalogue) -> Self {
        let facts = device.facts();
        let mut untold = Vec::new();
        let mut note = |error: NvmlError| untold.push(error.to_string());
        let mode = device.mig_mode().unwrap_or_else(|error| {
            note(error);
            None
        });
        let mut instances = Vec::new();
        if mode.is_some_and(|mode| mode.enabled) {
            instances = device.mig_instances().unwrap_or_else(|error| {
                note(error);
                Vec::new()
            });
        }
        let profiles = device.mig_profiles().unwrap_or_default();
        let own = std::process::id();
        let mut gpu = Self::from_facts(facts, cuda, catalogue);
        gpu.processes.retain(|process| process.pid != own);
        gpu.mig.half = known::half(&profiles).or(gpu.mig.half);
        gpu.mig = Mig { mode, instances, ..gpu.mig };
        // CUDA then lists an instance, if any, and not the GPU.
        gpu.visible = gpu.visible.filter(|_| !gpu.mig.enabled());
        gpu.gpm = device.gpm();
        gpu.untold.extend(untold);
        gpu
    }

    /// What follows from NVML's facts, CUDA's and the catalogue's; MIG and GPM are asked for besides.
    fn from_facts(facts: DeviceFacts, cuda: &CudaSide, catalogue: &Catalogue) -> Self {
        let mib = |bytes: Bytes| bytes.0 >> 20;
        let known = facts.name.as_deref().and_then(|name| known::entry(name, catalogue));
        let device =
            facts.uuid.as_ref().and_then(|uuid| cuda.devices.iter().find(|one| one.uuid.matches(uuid)));
        let visible = (!cuda.devices.is_empty()).then_some(device.is_some());
        let untold = device.and_then(|device| device.untold.clone());
        Self {
            index: facts.index,
            name: facts.name.unwrap_or_else(|| "unnamed GPU".to_owned()),
            id: known.map(|gpu| gpu.id.clone()),
            uuid: facts.uuid,
            architecture: facts.architecture,
            compute_capability: facts.compute_capability,
            visible,
            sms: device.map(|device| device.sms),
            sides: known.map(|gpu| gpu.sides.value),
            memory_mib: facts.memory.map(mib),
            memory_used_mib: facts.memory_used.map(mib),
            pcie: facts.pcie,
            power_limit_w: facts.power_limit_w,
            sm_clock_max_mhz: facts.sm_clock_max_mhz,
            compute_mode: facts.compute_mode,
            persistence: facts.persistence,
            mig: Mig { half: known.and_then(known::half_of_known), ..Mig::default() },
            green_contexts: device.and_then(|device| device.green_contexts),
            gpm: Gpm::NotSupported,
            processes: facts.processes,
            untold: facts.untold.into_iter().chain(untold).collect(),
        }
    }
}

impl Mps {
    fn look(surroundings: &Surroundings) -> Self {
        let control = mps::find_control(surroundings.path.as_deref());
        let temporary = &surroundings.temporary;
        let control_cuda =
            control.as_ref().and_then(|control| mps::control_version(control, temporary, ASK_LIMIT));
        let pipe = match &surroundings.mps_pipe_directory {
            Some(directory) => directory.clone(),
            // The driver's default, whatever TMPDIR says.
            None => surroundings.root.join("tmp").join("nvidia-mps"),
        };
        let daemon = daemon_in(&pipe, control.as_deref(), temporary);
        Self { control, control_cuda, daemon }
    }
}

/// The daemon of a pipe directory. Directories stay behind when daemons end, so only an answer counts.
fn daemon_in(pipe: &Path, control: Option<&Path>, temporary: &Path) -> ForeignDaemon {
    let empty = std::fs::read_dir(pipe).map_or(true, |mut entries| entries.next().is_none());
    if empty {
        return ForeignDaemon::None;
    }
    let Some(control) = control else {
        let why = format!("its pipe directory has files, but there is no {} to ask it with", mps::CONTROL);
        return ForeignDaemon::Unclear { why };
    };
    match mps::foreign_servers(control, pipe, temporary, ASK_LIMIT) {
        Ok(servers) => ForeignDaemon::Running { servers: servers.len() },
        Err(MpsError::NoDaemon { .. }) => ForeignDaemon::None,
        Err(error) => ForeignDaemon::Unclear { why: error.to_string() },
    }
}
