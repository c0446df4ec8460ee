//! What a survey wants to know of a GPU, asked at once. What NVML does not tell is `None`; what it refuses to tell
//! is said in `untold`.

use std::fmt;

use nvml_wrapper::enum_wrappers::device as enums;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError as Raw;
use partywall_core::units::Bytes;
use serde::{Deserialize, Serialize};

use super::{Device, NvmlError, ThrottleReason, milliwatts};

/// Who may open a context on the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ComputeMode {
    /// Anybody.
    Default,
    /// One process at a time; under MPS that process is the MPS server.
    ExclusiveProcess,
    /// Nobody.
    Prohibited,
}

impl fmt::Display for ComputeMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Default => "default",
            Self::ExclusiveProcess => "exclusive-process",
            Self::Prohibited => "prohibited",
        })
    }
}

/// The link to the host. An idle GPU lowers the generation; what counts under load is the highest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pcie {
    /// Generation now.
    pub generation: Option<u32>,
    /// Highest generation of GPU and slot together.
    pub generation_max: Option<u32>,
    /// Lanes now.
    pub width: Option<u32>,
    /// Most lanes of GPU and slot together.
    pub width_max: Option<u32>,
}

impl fmt::Display for Pcie {
    /// `gen 5 x16`, and `gen 4 x8 (of gen 5 x16)` where the link has fewer lanes than it could.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(generation), Some(width)) =
            (self.generation_max.or(self.generation), self.width.or(self.width_max))
        else {
            return f.pad("unknown");
        };
        write!(f, "gen {generation} x{width}")?;
        match self.width_max {
            Some(most) if most > width => write!(f, " (of x{most})"),
            _ => Ok(()),
        }
    }
}

/// A process that has a compute context on the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its id in the driver's process namespace, which a container does not share.
    pub pid: u32,
    /// The name of its program without the folder, where NVML tells.
    pub name: Option<String>,
    /// Its GPU memory, where NVML tells.
    pub memory: Option<Bytes>,
}

/// What NVML tells of one GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DeviceFacts {
    /// NVML's index.
    pub index: u32,
    /// `NVIDIA H200`.
    pub name: Option<String>,
    /// `GPU-…`: for matching with CUDA; not for reports.
    pub uuid: Option<String>,
    /// `Hopper`.
    pub architecture: Option<String>,
    /// (9, 0).
    pub compute_capability: Option<(u32, u32)>,
    /// All of its memory.
    pub memory: Option<Bytes>,
    /// Memory that somebody uses, the driver included.
    pub memory_used: Option<Bytes>,
    /// Who may open a context.
    pub compute_mode: Option<ComputeMode>,
    /// Whether the driver stays loaded without clients.
    pub persistence: Option<bool>,
    /// The cap in force, W.
    pub power_limit_w: Option<f64>,
    /// Drawn now, W.
    pub power_w: Option<f64>,
    /// SM clock now, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Highest SM clock, MHz.
    pub sm_clock_max_mhz: Option<u32>,
    /// Highest memory clock, MHz.
    pub memory_clock_max_mhz: Option<u32>,
    /// Why the clock is not higher now.
    pub throttle: Vec<ThrottleReason>,
    /// The link.
    pub pcie: Pcie,
    /// Who computes on it.
    pub processes: Vec<Process>,
    /// What NVML refused to tell, with the reason.
    pub untold: Vec<String>,
}

impl Device {
    /// Asks everything. Only what is missing altogether (the GPU itself) would be an error, and then every fact is in
    /// `untold`.
    pub fn facts(&self) -> DeviceFacts {
        let mut untold = Vec::new();
        let mut tell = Telling { device: self, untold: &mut untold };
        let clock_max = |kind| move |device: &nvml_wrapper::Device<'_>| device.max_clock_info(kind);
        let memory = tell.told("memory", |device| device.memory_info());
        let facts = DeviceFacts {
            index: self.index,
            name: tell.told("name", |device| device.name()),
            uuid: tell.told("UUID", |device| device.uuid()),
            architecture: tell.told("architecture", |device| device.architecture()).map(|a| a.to_string()),
            compute_capability: tell
                .told("compute capability", |device| device.cuda_compute_capability())
                .and_then(|cc| Some((u32::try_from(cc.major).ok()?, u32::try_from(cc.minor).ok()?))),
            memory: memory.as_ref().map(|memory| Bytes(memory.total)),
            memory_used: memory.map(|memory| Bytes(memory.used)),
            compute_mode: tell.told("compute mode", |device| device.compute_mode()).map(compute_mode),
            persistence: tell.told("persistence mode", |device| device.is_in_persistent_mode()),
            power_limit_w: tell.told("power limit", |device| device.enforced_power_limit()).map(milliwatts),
            power_w: tell.told("power", |device| device.power_usage()).map(milliwatts),
            sm_clock_mhz: tell.told("SM clock", |device| device.clock_info(enums::Clock::SM)),
            sm_clock_max_mhz: tell.told("highest SM clock", clock_max(enums::Clock::SM)),
            memory_clock_max_mhz: tell.told("highest memory clock", clock_max(enums::Clock::Memory)),
            throttle: tell
                .told("throttle reasons", |device| device.current_throttle_reasons())
                .map_or_else(Vec::new, |reasons| ThrottleReason::from_bits(reasons.bits())),
            pcie: Pcie {
                generation: tell.told("PCIe generation", |device| device.current_pcie_link_gen()),
                generation_max: tell.told("highest PCIe generation", |device| device.max_pcie_link_gen()),
                width: tell.told("PCIe width", |device| device.current_pcie_link_width()),
                width_max: tell.told("highest PCIe width", |device| device.max_pcie_link_width()),
            },
            processes: tell.processes(),
            untold: Vec::new(),
        };
        DeviceFacts { untold, ..facts }
    }

    /// Ids and GPU memory of all processes that have a compute context on the GPU, each once; no memory where NVML does not tell. Clients of
    /// MPS are on a list of their own, which not every library has.
    ///
    /// # Errors
    /// When NVML does not tell of any process.
    pub fn process_memory(&self) -> Result<Vec<(u32, Option<Bytes>)>, NvmlError> {
        let mut all = self.ask("compute processes", |device| device.running_compute_processes())?;
        match self.ask("MPS clients", |device| device.mps_running_compute_processes()) {
            Ok(clients) => all.extend(clients),
            Err(error) if error.is_not_supported() => {}
            Err(error) => return Err(error),
        }
        let memory = |memory| match memory {
            UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
            UsedGpuMemory::Unavailable => None,
        };
        let mut all: Vec<_> = all.into_iter().map(|one| (one.pid, memory(one.used_gpu_memory))).collect();
        // Of a process on both lists the larger entry comes first then, and stays.
        all.sort_unstable();
        all.reverse();
        all.dedup_by_key(|(pid, _)| *pid);
        Ok(all)
    }

    fn process(&self, info: nvml_wrapper::struct_wrappers::device::ProcessInfo) -> Process {
        /// Longer paths are cut by NVML; the folder is dropped anyway.
        const NAME_MAX: usize = 1024;
        let name = self.nvml.inner.sys_process_name(info.pid, NAME_MAX).ok();
        Process {
            pid: info.pid,
            name: name.as_deref().map(program).filter(|name| !name.is_empty()).map(str::to_owned),
            memory: match info.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(Bytes(bytes)),
                UsedGpuMemory::Unavailable => None,
            },
        }
    }
}

struct Telling<'a> {
    device: &'a Device,
    untold: &'a mut Vec<String>,
}

impl Telling<'_> {
    /// NVML keeps the clients of an MPS daemon on a list of their own.
    fn processes(&mut self) -> Vec<Process> {
        let mut all =
            self.told("compute processes", |device| device.running_compute_processes()).unwrap_or_default();
        let clients = self.told("MPS clients", |device| device.mps_running_compute_processes());
        for client in clients.unwrap_or_default() {
            if all.iter().all(|known| known.pid != client.pid) {
                all.push(client);
            }
        }
        all.into_iter().map(|one| self.device.process(one)).collect()
    }

    fn told<T>(
        &mut self,
        what: &'static str,
        question: impl FnOnce(&nvml_wrapper::Device<'_>) -> Result<T, Raw>,
    ) -> Option<T> {
        match self.device.ask(what, question) {
            Ok(value) => Some(value),
            Err(NvmlError::NotSupported { .. }) => None,
            Err(error) => {
                self.untold.push(error.to_string());
                None
            }
        }
    }
}

fn compute_mode(mode: enums::ComputeMode) -> ComputeMode {
    match mode {
        enums::ComputeMode::Default => ComputeMode::Default,
        // "Exclusive thread" was removed from drivers long ago; what remains of it behaves like this.
        enums::ComputeMode::ExclusiveThread | enums::ComputeMode::ExclusiveProcess => {
            ComputeMode::ExclusiveProcess
        }
        enums::ComputeMode::Prohibited => ComputeMode::Prohibited,
    }
}

/// The program of a command: without folder and arguments.
fn program(command: &str) -> &str {
    let path = command.split_whitespace().next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_told_by_what_it_can_do_under_load() {
        let link = |generation, generation_max, width, width_max| Pcie {
            generation,
            generation_max,
            width,
            width_max,
        };
        let cases = [
            (link(Some(1), Some(5), Some(16), Some(16)), "gen 5 x16"),
            (link(Some(4), Some(4), Some(8), Some(16)), "gen 4 x8 (of x16)"),
            (link(Some(3), None, Some(4), None), "gen 3 x4"),
            (Pcie::default(), "unknown"),
        ];
        for (link, expected) in cases {
            assert_eq!(link.to_string(), expected);
        }
    }

    #[test]
    fn a_program_is_named_without_its_folder() {
        for (command, expected) in
            [("/usr/bin/python3 serve.py", "python3"), ("trainer", "trainer"), ("", "")]
        {
            assert_eq!(program(command), expected);
        }
    }
}
