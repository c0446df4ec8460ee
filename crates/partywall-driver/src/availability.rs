//! Which walls can be built here, and what would make the others possible. Pure: a survey goes in.
//!
//! The rules, with their reasons:
//! - Nothing runs where CUDA cannot be used, where the compute mode is *prohibited*, or where MIG mode is on and no
//!   instance exists.
//! - `time-slicing` needs a second context beside the first, which *exclusive-process* compute mode refuses.
//! - `mps` needs the control program and a directory for its sockets. In *exclusive-process* mode the MPS server is the
//!   one process allowed, so nobody else may hold the GPU. A daemon that runs already is somebody else's and stays.
//! - `mps-percentage` needs Volta or later, `mps-static` Ampere or later and a driver from R590 on (CUDA 13.1).
//! - `mig` needs at least two instances. Making them changes the GPU, so the command is shown and never run.
//! - `green-contexts` needs CUDA 12.4 (R550). Between processes it needs MPS too: without it they take turns.
//! - `sides` and `partywall` need parts of this project that do not exist yet.

#[cfg(test)]
mod tests;

use partywall_core::wall::Wall;
use serde::{Deserialize, Serialize};

use crate::library::CudaVersion;
use crate::mps::CONTROL;
use crate::nvml::ComputeMode;
use crate::survey::{ForeignDaemon, Gpu, Survey};

/// First driver branch with exclusive SM partitions in MPS.
const STATIC_BRANCH: u32 = 590;
/// First CUDA version with them.
const STATIC_CUDA: CudaVersion = CudaVersion::new(13, 1);
/// First CUDA version with Green Contexts.
const GREEN_CUDA: CudaVersion = CudaVersion::new(12, 4);

/// Whether a wall can be built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum Availability {
    /// It can.
    Available {
        /// What to know about it here.
        note: Option<String>,
    },
    /// It cannot.
    #[serde(rename = "not-available")]
    Missing {
        /// Why.
        why: String,
        /// What would make it so.
        what_would_help: String,
    },
}

impl Availability {
    /// Whether it can be built.
    pub fn is_available(&self) -> bool {
        matches!(self, Self::Available { .. })
    }

    fn plain() -> Self {
        Self::Available { note: None }
    }

    /// The same with something more to know, where it can be built.
    fn noting(self, more: &str) -> Self {
        match self {
            Self::Available { note: None } => Self::Available { note: Some(more.to_owned()) },
            Self::Available { note: Some(note) } => Self::Available { note: Some(format!("{more}; {note}")) },
            missing => missing,
        }
    }

    fn missing(why: impl Into<String>, what_would_help: impl Into<String>) -> Self {
        Self::Missing { why: why.into(), what_would_help: what_would_help.into() }
    }
}

/// Why a machine has no GPU to use, and what would help; `None` where it has one.
pub fn absence(survey: &Survey) -> Option<Availability> {
    if !survey.gpus.is_empty() {
        return None;
    }
    let driver = &survey.driver;
    let contained = survey.host.container.is_some();
    let Some(problem) = &driver.nvml_problem else {
        let help = if contained {
            "hand one to the container (`--gpus all`, or nvidia.com/gpu in Kubernetes)"
        } else {
            "check the GPU with `nvidia-smi` and the kernel's log"
        };
        return Some(Availability::missing("the NVIDIA driver is here but shows no GPU", help));
    };
    let missing = match (driver.device_files, driver.kernel_module, contained) {
        (true, _, true) => Availability::missing(
            format!("GPU device files are here, but the driver's libraries are not: {problem}"),
            "start the container with the NVIDIA Container Toolkit (`--gpus all`) and \
             NVIDIA_DRIVER_CAPABILITIES=compute,utility: it mounts the libraries of the host's driver",
        ),
        (false, true, true) => Availability::missing(
            format!("the machine runs an NVIDIA driver, but this container was given no GPU: {problem}"),
            "hand it one with the NVIDIA Container Toolkit (`--gpus all`, or nvidia.com/gpu in Kubernetes)",
        ),
        (true, _, false) | (false, true, false) => Availability::missing(
            format!("the driver's kernel part is here, but its libraries cannot be used: {problem}"),
            "install the libraries of the same driver version (libnvidia-compute), or reboot after an update",
        ),
        (false, false, _) => Availability::missing(
            format!("no NVIDIA GPU or driver: {problem}"),
            "an NVIDIA GPU and its driver; nothing else has to be installed",
        ),
    };
    Some(missing)
}

/// Whether a wall can be built on this machine: on its only GPU, on every one, or (the note says so) on some.
pub fn of(wall: Wall, survey: &Survey) -> Availability {
    if let Some(absent) = absence(survey) {
        return absent;
    }
    let all: Vec<(u32, Availability)> =
        survey.gpus.iter().map(|gpu| (gpu.index, on(wall, survey, gpu))).collect();
    let fit: Vec<&(u32, Availability)> = all.iter().filter(|(_, one)| one.is_available()).collect();
    match (fit.first(), all.first()) {
        (Some((_, one)), _) if fit.len() < all.len() => {
            let indices: Vec<String> = fit.iter().map(|(index, _)| index.to_string()).collect();
            one.clone().noting(&format!("only on GPU {}", indices.join(", ")))
        }
        (Some((_, one)), _) | (None, Some((_, one))) => one.clone(),
        (None, None) => Availability::missing("no GPU", "a GPU"),
    }
}

/// Whether a wall can be built on one GPU of the survey.
pub fn on(wall: Wall, survey: &Survey, gpu: &Gpu) -> Availability {
    match wall {
        Wall::Sides => return sides(survey, gpu),
        Wall::Mig => return mig(survey, gpu),
        _ => {}
    }
    if let Some(nothing_runs) = nothing_runs(survey, gpu) {
        return nothing_runs;
    }
    let found = match wall {
        Wall::TimeSlicing => time_slicing(gpu),
        Wall::Mps => mps(survey, gpu),
        // Shares of the SMs are more than it has to have.
        Wall::Partywall => capable(gpu, (7, 0), "Volta").unwrap_or_else(|| mps(survey, gpu)),
        Wall::MpsPercentage => capable(gpu, (7, 0), "Volta").unwrap_or_else(|| mps(survey, gpu)),
        Wall::MpsStatic => mps_static(survey, gpu),
        Wall::GreenContexts => green_contexts(survey, gpu),
        Wall::Exclusive => held(gpu).unwrap_or_else(|| Availability::Available { note: neighbours(gpu) }),
        _ => held(gpu).unwrap_or_else(Availability::plain),
    };
    if gpu.mig.enabled() || survey.host.mig_slice { found.noting("inside one MIG instance") } else { found }
}

/// What stops every wall that runs programs.
fn nothing_runs(survey: &Survey, gpu: &Gpu) -> Option<Availability> {
    if let Some(problem) = &survey.driver.cuda_problem {
        let help = match (problem.library_missing, survey.host.container.is_some()) {
            (true, true) => "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            (true, false) => "install the CUDA part of the driver (libcuda.so.1)",
            (false, _) => "a driver that works: see what `nvidia-smi` and the kernel's log say",
        };
        return Some(Availability::missing(problem.why.clone(), help));
    }
    if gpu.visible == Some(false) {
        let why = "CUDA does not list this GPU";
        return Some(Availability::missing(
            why,
            "check CUDA_VISIBLE_DEVICES: it decides which GPUs a program sees",
        ));
    }
    if gpu.compute_mode == Some(ComputeMode::Prohibited) {
        return Some(Availability::missing("the compute mode is prohibited", default_mode(gpu)));
    }
    if gpu.mig.enabled() && gpu.mig.instances.is_empty() {
        return Some(Availability::missing("MIG is enabled, but no instance exists", make_instances(gpu)));
    }
    None
}

/// In exclusive-process mode, whoever holds the GPU keeps everybody else out.
fn held(gpu: &Gpu) -> Option<Availability> {
    if gpu.compute_mode != Some(ComputeMode::ExclusiveProcess) || gpu.processes.is_empty() {
        return None;
    }
    let why = format!("the compute mode is exclusive-process, and {} holds the GPU", names(gpu));
    Some(Availability::missing(why, format!("end that process, or {}", default_mode(gpu))))
}

fn neighbours(gpu: &Gpu) -> Option<String> {
    (!gpu.processes.is_empty()).then(|| format!("{} computes on it now", names(gpu)))
}

fn names(gpu: &Gpu) -> String {
    let name = |process: &crate::nvml::Process| match &process.name {
        Some(name) => format!("{name} (process {})", process.pid),
        None => format!("process {}", process.pid),
    };
    match gpu.processes.as_slice() {
        [] => "nobody".to_owned(),
        [one] => name(one),
        [one, rest @ ..] => format!("{} and {} more", name(one), rest.len()),
    }
}

fn default_mode(gpu: &Gpu) -> String {
    format!("the administrator can run `nvidia-smi -i {} -c DEFAULT`", gpu.index)
}

fn time_slicing(gpu: &Gpu) -> Availability {
    if gpu.compute_mode == Some(ComputeMode::ExclusiveProcess) {
        let why = "the compute mode is exclusive-process: a second process is refused";
        return Availability::missing(why, default_mode(gpu));
    }
    Availability::Available { note: neighbours(gpu) }
}

/// A GPU that is known to be older than a wall needs.
fn capable(gpu: &Gpu, least: (u32, u32), generation: &str) -> Option<Availability> {
    let (major, minor) = gpu.compute_capability.filter(|capability| *capability < least)?;
    let why = format!(
        "needs compute capability {}.{} ({generation}), this GPU has {major}.{minor}",
        least.0, least.1
    );
    Some(Availability::missing(why, format!("a GPU from {generation} on")))
}

fn mps(survey: &Survey, gpu: &Gpu) -> Availability {
    if survey.mps.control.is_none() {
        let help = if survey.host.container.is_some() {
            "mount it into the container from the host, or install the utilities of the same driver version"
        } else {
            "install the utilities of the driver (nvidia-compute-utils or nvidia-driver-cuda), or put it on the PATH"
        };
        return Availability::missing(format!("{CONTROL} is not on the PATH"), help);
    }
    if !survey.rights.temporary_writable {
        let help = "set TMPDIR to a directory that may be written to";
        return Availability::missing("no private directory can be made for the MPS daemon", help);
    }
    if let Some(held) = held(gpu) {
        return held;
    }
    match &survey.mps.daemon {
        ForeignDaemon::None => Availability::plain(),
        ForeignDaemon::Running { .. } => {
            let note = "the MPS daemon that runs here already is left alone; partywall starts its own";
            Availability::Available { note: Some(note.to_owned()) }
        }
        ForeignDaemon::Unclear { why } => {
            let note = format!("another MPS daemon may be here: {why}; partywall starts its own");
            Availability::Available { note: Some(note) }
        }
    }
}

fn mps_static(survey: &Survey, gpu: &Gpu) -> Availability {
    if let Some(old) = capable(gpu, (8, 0), "Ampere") {
        return old;
    }
    let newer = format!("a driver from R{STATIC_BRANCH} on");
    match &survey.driver.version {
        None => return Availability::missing("the driver does not tell its version", newer),
        Some(version) if version.branch < STATIC_BRANCH => {
            let why = format!("needs driver R{STATIC_BRANCH} or later, this is R{}", version.branch);
            return Availability::missing(why, newer);
        }
        Some(_) => {}
    }
    if let Some(control) = survey.mps.control_cuda.filter(|control| *control < STATIC_CUDA) {
        let why = format!("needs a {CONTROL} for CUDA {STATIC_CUDA} or later, this one is for {control}");
        return Availability::missing(why, "the control program of the installed driver");
    }
    match mps(survey, gpu) {
        Availability::Available { .. } => {
            Availability::Available { note: Some("`partywall measure` does not measure it yet".to_owned()) }
        }
        missing => missing,
    }
}

fn green_contexts(survey: &Survey, gpu: &Gpu) -> Availability {
    let newer = "a driver from R550 on";
    match survey.driver.cuda {
        None => return Availability::missing("the driver does not tell its CUDA version", newer),
        Some(cuda) if cuda < GREEN_CUDA => {
            let why = format!("needs CUDA {GREEN_CUDA} (driver R550) or later, this driver has {cuda}");
            return Availability::missing(why, newer);
        }
        Some(_) => {}
    }
    if let Some(held) = held(gpu) {
        return held;
    }
    let note = match mps(survey, gpu) {
        Availability::Available { .. } => "in one process, and between processes under MPS".to_owned(),
        Availability::Missing { why, .. } => {
            format!("in one process only; between processes it needs MPS, but {why}")
        }
    };
    Availability::Available { note: Some(note) }
}

fn mig(survey: &Survey, gpu: &Gpu) -> Availability {
    if survey.host.mig_slice {
        let why = "this process was given one MIG instance and sees no other";
        return Availability::missing(why, "run it where two instances, or the whole GPU, are visible");
    }
    let Some(mode) = gpu.mig.mode else {
        return Availability::missing(
            "this GPU has no MIG",
            "a GPU that has it: A30, A100, H100, H200 or later",
        );
    };
    if !mode.enabled {
        let soon = if mode.enabled_after_reset { ", and will be enabled by the next reset" } else { "" };
        let help = format!(
            "the administrator can run `nvidia-smi -i {} -mig 1`, which nothing may be using the GPU for, and then {}",
            gpu.index,
            create(gpu)
        );
        return Availability::missing(format!("MIG is disabled{soon}"), help);
    }
    match gpu.mig.instances.len() {
        0 => Availability::missing("MIG is enabled, but no instance exists", make_instances(gpu)),
        1 => Availability::missing("one MIG instance exists, and two tenants need two", make_instances(gpu)),
        _ => {
            let profiles: Vec<&str> = gpu.mig.instances.iter().map(|one| one.profile.as_str()).collect();
            Availability::Available { note: Some(format!("instances: {}", profiles.join(", "))) }
        }
    }
}

fn make_instances(gpu: &Gpu) -> String {
    format!("the administrator can run {}; partywall never does", create(gpu))
}

fn create(gpu: &Gpu) -> String {
    let half = gpu.mig.half.as_deref().unwrap_or("PROFILE");
    format!("`nvidia-smi mig -i {} -cgi {half},{half} -C`", gpu.index)
}

fn sides(survey: &Survey, gpu: &Gpu) -> Availability {
    match gpu.sides {
        Some(sides) if sides < 2 => {
            let why = "the memory system of this GPU has one side";
            return Availability::missing(why, "a GPU with two: A100, H100, H200");
        }
        Some(_) => {}
        None => {
            let why = "whether the memory system of this GPU has two sides is not known";
            return Availability::missing(why, "`partywall vram map`, which finds out");
        }
    }
    // Tenants are two processes, each on SMs of its own.
    let below = [Wall::GreenContexts, Wall::Mps].map(|wall| on(wall, survey, gpu));
    below.into_iter().find(|one| !one.is_available()).unwrap_or_else(|| {
        let note =
            "around programs that take part; `partywall measure` measures it, and no node keeps it yet";
        Availability::Available { note: Some(note.to_owned()) }
    })
}
