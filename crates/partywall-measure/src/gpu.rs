//! The machine that is measured: its GPU as the survey found it, or none at all in a rehearsal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use partywall_core::units::Bytes;
use partywall_core::wall::Wall;
use partywall_driver::availability::{self, Availability};
use partywall_driver::mps::{Contact, MpsDaemon, MpsOptions};
use partywall_driver::nvml::Device;
use partywall_driver::sampler::{GpuSource, PERIOD_MIN, Sampler, Summary};
use partywall_driver::survey::{Gpu, Survey};
use partywall_node::tenant::Place as TenantPlace;
use tempfile::TempDir;

use crate::node::{OwnNode, Preload, Site};
use crate::plan::{NodeSetting, Place, Setting, SideMemory, Tenant};
use crate::record::{Environment, GpuRecord, GpuSample, HostRecord, NodeRecord};
use crate::sides::{Looked, Sides, look};
use crate::stage::{Launcher, Machine, Mps, Node, Split, sm_groups, sm_sets};

/// With what the names of empty directories begin, where tenants look for an MPS daemon in vain.
pub const EMPTY_PREFIX: &str = "partywall-no-mps-";

/// A GPU of this machine.
pub struct GpuMachine {
    survey: Survey,
    gpu: Gpu,
    device: Option<Device>,
    preload: Preload,
    empty: TempDir,
    temporary: PathBuf,
    sampler: Option<Sampler>,
}

impl GpuMachine {
    /// The GPU `gpu` of `survey`; `device` is NVML's view of it, where it has one. Private directories are made in
    /// `temporary`, and `preload` is what a node puts around programs.
    ///
    /// # Errors
    /// Where no directory can be made.
    pub fn new(
        survey: Survey,
        gpu: Gpu,
        device: Option<Device>,
        preload: Preload,
        temporary: &Path,
    ) -> std::io::Result<Self> {
        let empty = empty_directory(temporary)?;
        Ok(Self { survey, gpu, device, preload, empty, temporary: temporary.to_owned(), sampler: None })
    }

    /// For the record.
    pub fn environment(&self) -> Environment {
        let (gpu, host, driver) = (&self.gpu, &self.survey.host, &self.survey.driver);
        Environment {
            gpu: Some(GpuRecord {
                id: gpu.id.clone(),
                name: gpu.name.clone(),
                sms: gpu.sms,
                memory_mib: gpu.memory_mib,
                driver: driver.version.as_ref().map(ToString::to_string),
                cuda: driver.cuda.as_ref().map(ToString::to_string),
                mig: gpu.mig.mode.map(|_| gpu.mig.enabled()),
                pcie: Some(gpu.pcie.to_string()).filter(|pcie| !pcie.is_empty()),
                power_limit_w: gpu.power_limit_w,
                clock_max_mhz: gpu.sm_clock_max_mhz.map(f64::from),
                compute_mode: gpu.compute_mode.map(|mode| mode.to_string()),
                persistence: gpu.persistence,
            }),
            host: HostRecord {
                cores: host.cores.unwrap_or(0),
                // The version; what follows it names a build of one's own.
                kernel: host
                    .kernel
                    .as_deref()
                    .and_then(|release| release.split('-').next())
                    .map(str::to_owned),
                memory_gib: host.memory_mib.map(|mib| mib as f64 / 1024.0),
                container: Some(host.container.is_some()),
            },
        }
    }
}

impl Machine for GpuMachine {
    fn unavailable(&self, place: &Place) -> Option<String> {
        // A node stands on another wall. Of streams of one process on the whole GPU, the wall is this place's own affair.
        let below = match &place.setting {
            Setting::Node(node) if !node.mps => Wall::TimeSlicing,
            Setting::Node(_) => Wall::Mps,
            // Whether it has sides is found out.
            Setting::Side(_) if self.gpu.sides.is_none() => Wall::GreenContexts,
            _ => place.wall,
        };
        let wall = match availability::on(below, &self.survey, &self.gpu) {
            Availability::Available { .. } => None,
            Availability::Missing { why, what_would_help } => {
                Some(format!("{why}; it would take {what_would_help}"))
            }
        };
        let mps = || match availability::on(Wall::Mps, &self.survey, &self.gpu) {
            Availability::Missing { why, .. } if place.has_mps() => Some(format!("needs MPS: {why}")),
            _ => None,
        };
        let shim = || place.node().and_then(|_| self.preload.shim.clone().err());
        let side = || match place.side_memory() {
            Some(SideMemory::Private) => self.preload.side.clone().err(),
            _ => None,
        };
        wall.or_else(mps)
            .or_else(shim)
            .or_else(side)
            .or_else(|| misfit(place, self.split()))
            .or_else(|| self.unknown_instance(place))
    }

    fn visible(&self) -> Option<String> {
        // Without NVML a UUID does not say what it is of. And who was given a MIG instance has no other device.
        let says = |uuid: &&String| uuid.starts_with("GPU-") && !self.survey.host.mig_slice;
        self.gpu.uuid.as_ref().filter(says).cloned()
    }

    fn split(&self) -> Option<Split> {
        let granularity = self.gpu.green_contexts?;
        Some(Split { groups: granularity.groups, sms_per_group: granularity.sms_per_group })
    }

    fn empty_directory(&self) -> String {
        self.empty.path().display().to_string()
    }

    fn start_mps(&mut self) -> Result<Box<dyn Mps>, String> {
        let control = self.survey.mps.control.as_ref().ok_or("its control program is not on the PATH")?;
        let mut options = MpsOptions::new(control, &self.temporary);
        options.gpu = self.visible();
        let daemon = MpsDaemon::start(&options).map_err(|error| error.to_string())?;
        Ok(Box::new(OwnDaemon(daemon)))
    }

    fn find_sides(&mut self, launcher: &Launcher) -> Result<Sides, String> {
        let looked = look(&launcher.program, self.visible(), &self.empty_directory(), &self.temporary)?;
        let library = self.preload.side.as_ref().ok();
        Sides::new(&looked, self.split(), library.map(PathBuf::as_path), &self.temporary)
    }

    fn start_node(&mut self, setting: &NodeSetting, mps: Option<Contact>) -> Result<Box<dyn Node>, String> {
        let memory = self.gpu.memory_mib.ok_or("the driver does not say how much memory the GPU has")?;
        let (device, memory) = (self.device.clone(), Bytes::from_mib(memory));
        let site = Site { preload: &self.preload, device, memory, temporary: &self.temporary };
        Ok(Box::new(OwnNode::start(site, setting, mps)?))
    }

    fn start_sampling(&mut self) {
        let source = self.device.clone().map(GpuSource::new);
        // Without a thread there is no sample, and the record says null.
        self.sampler = source.and_then(|source| Sampler::start(source, PERIOD_MIN).ok());
    }

    fn stop_sampling(&mut self) -> Option<GpuSample> {
        self.sampler.take().map(Sampler::stop).map(sample)
    }
}

impl GpuMachine {
    fn unknown_instance(&self, place: &Place) -> Option<String> {
        let Setting::Instances(ls, be) = &place.setting else { return None };
        let instances = &self.gpu.mig.instances;
        let known = |uuid: &&String| instances.iter().any(|one| one.uuid.as_str() == uuid.as_str());
        let unknown = [ls, be].into_iter().find(|uuid| !known(uuid))?;
        Some(format!("the GPU has no MIG instance {unknown}; `partywall doctor` lists those that it has"))
    }
}

/// Why the numbers of SMs of a place do not fit a GPU.
fn misfit(place: &Place, split: Option<Split>) -> Option<String> {
    let squeezes = |node: &NodeSetting| node.launch_options().is_ok_and(|options| options.squeezed.is_some());
    let divides = |node: &NodeSetting| node.ls_sms.is_some() || node.be_sms.is_some() || squeezes(node);
    let node = place.node().filter(divides);
    match (&place.setting, node, split) {
        (Setting::Sms(..) | Setting::Side(_), _, None) | (_, Some(_), None) => {
            Some("the driver does not split the SMs of this GPU".to_owned())
        }
        (Setting::Sms(ls, be), _, Some(split)) => sm_groups(*ls, *be, split).err(),
        (_, Some(node), Some(split)) => sm_sets(&node, split).err(),
        _ => None,
    }
}

fn sample(summary: Summary) -> GpuSample {
    GpuSample {
        power_w_mean: summary.power_w_mean,
        power_w_max: summary.power_w_max,
        sm_clock_mhz_mean: summary.sm_clock_mhz_mean,
        sm_clock_mhz_min: summary.sm_clock_mhz_min.map(f64::from),
        throttled: summary.throttled.iter().map(ToString::to_string).collect(),
    }
}

struct OwnDaemon(MpsDaemon);

impl Mps for OwnDaemon {
    fn environment(&self) -> Vec<(String, String)> {
        let text = |(name, value): (&str, std::ffi::OsString)| {
            (name.to_owned(), value.to_string_lossy().into_owned())
        };
        self.0.environment().into_iter().map(text).collect()
    }

    fn contact(&self) -> Option<Contact> {
        Some(self.0.contact())
    }

    fn is_client(&mut self, pid: u32) -> Result<bool, String> {
        self.0.is_client(pid).map_err(|error| error.to_string())
    }

    fn stop(self: Box<Self>) -> Result<(), String> {
        self.0.stop().map(|_| ()).map_err(|error| error.to_string())
    }
}

/// No GPU: every wall is there, and none does anything.
pub struct Rehearsal {
    empty: TempDir,
    temporary: PathBuf,
}

/// The split that rehearsals pretend: an H200's.
const PRETENDED: Split = Split { groups: 66, sms_per_group: 2 };

impl Rehearsal {
    /// With an empty directory in `temporary`.
    ///
    /// # Errors
    /// Where none can be made.
    pub fn new(temporary: &Path) -> std::io::Result<Self> {
        Ok(Self { empty: empty_directory(temporary)?, temporary: temporary.to_owned() })
    }
}

impl Machine for Rehearsal {
    fn unavailable(&self, place: &Place) -> Option<String> {
        misfit(place, self.split())
    }
    fn visible(&self) -> Option<String> {
        // None at all: a program of the user's that stands in for a real one must not find the GPU either.
        Some(String::new())
    }
    fn split(&self) -> Option<Split> {
        Some(PRETENDED)
    }
    fn empty_directory(&self) -> String {
        self.empty.path().display().to_string()
    }
    fn start_mps(&mut self) -> Result<Box<dyn Mps>, String> {
        Ok(Box::new(NoDaemon(BTreeMap::from([("CUDA_MPS_PIPE_DIRECTORY", self.empty_directory())]))))
    }
    fn find_sides(&mut self, _: &Launcher) -> Result<Sides, String> {
        Sides::new(&Looked::pretended(PRETENDED)?, self.split(), None, &self.temporary)
    }
    fn start_node(&mut self, setting: &NodeSetting, _: Option<Contact>) -> Result<Box<dyn Node>, String> {
        setting.launch_options().map(|_| -> Box<dyn Node> { Box::new(NoNode) })
    }
    fn start_sampling(&mut self) {}
    fn stop_sampling(&mut self) -> Option<GpuSample> {
        None
    }
}

/// A node that is not there.
struct NoNode;

impl Node for NoNode {
    fn admit(&mut self, _: &Tenant, _: TenantPlace) -> Result<BTreeMap<String, String>, String> {
        Ok(BTreeMap::new())
    }
    fn stands_around(&mut self, _: &str, _: u32) -> Result<(), String> {
        Ok(())
    }
    fn begins(&mut self) {}
    fn facts(&mut self) -> Vec<NodeRecord> {
        Vec::new()
    }
}

/// A daemon that is not there.
struct NoDaemon(BTreeMap<&'static str, String>);

impl Mps for NoDaemon {
    fn environment(&self) -> Vec<(String, String)> {
        self.0.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
    }
    fn contact(&self) -> Option<Contact> {
        None
    }
    fn is_client(&mut self, _: u32) -> Result<bool, String> {
        Ok(true)
    }
    fn stop(self: Box<Self>) -> Result<(), String> {
        Ok(())
    }
}

fn empty_directory(temporary: &Path) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix(EMPTY_PREFIX).tempdir_in(temporary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Processes;

    fn place(wall: Wall, setting: Setting) -> Place {
        Place { wall, setting, processes: Processes::Separate }
    }

    #[test]
    fn sms_must_fit_the_gpu() {
        let scratch = tempfile::tempdir().unwrap();
        let machine = Rehearsal::new(scratch.path()).unwrap();
        assert_eq!(machine.unavailable(&place(Wall::GreenContexts, Setting::Sms(64, 68))), None);
        let reason = machine.unavailable(&place(Wall::GreenContexts, Setting::Sms(64, 70))).unwrap();
        assert_eq!(reason, "64/70 SMs do not fit: there are 132, in groups of 2");
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 1);
        drop(machine);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the directory is removed");
    }
}
