//! What a node starts for its wall: the keeper of an MPS daemon, and a look at the GPU.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;

use partywall_core::config::{Config, WallChoice};
use partywall_core::guarantee::Reason;
use partywall_core::sm_proof::PATIENCE;
use partywall_core::sm_sets::Line;
use partywall_driver::error::DriverError;
use partywall_driver::library::Cuda;
use partywall_driver::mps;
use partywall_driver::nvml::Nvml;
use partywall_node::client::Client;
use partywall_node::control::{Reply, Request};
use partywall_node::error::Error;
use partywall_node::folder::Folder;
use partywall_node::proof::{Task, probe, prover};
use partywall_node::walls::{self, Device, keeper};

use super::{promise, say, variable};
use crate::cli::tenants::{KeeperArguments, MeetArguments};
use crate::error::Failure;
use crate::output;

/// `partywall mps-keeper`.
pub(crate) fn keep(arguments: &KeeperArguments) -> Result<(), Failure> {
    let folder = Folder::at(&arguments.dir)?;
    let tell = |line: &str| {
        let mut out = std::io::stdout().lock();
        let said = writeln!(out, "{}", line.replace('\n', " ")).and_then(|()| out.flush());
        said.map_err(|error| Error::System { action: "saying how it went", error })
    };
    Ok(keeper::keep(&folder, arguments.control.clone(), arguments.gpu_uuid.clone(), tell)?)
}

/// `partywall device`: the GPU that CUDA shows first, for a node that must not have a context.
pub(crate) fn device() -> Result<(), Failure> {
    let look = || -> Result<Device, DriverError> {
        let device = Cuda::load()?.device(0)?;
        let split = device.sm_split().map_err(|error| error.to_string());
        let line = split.map(|split| Line {
            groups: u32::try_from(split.groups()).unwrap_or(u32::MAX),
            sms_per_group: split.sms_per_group().0,
        });
        // Without NVML, and of a MIG instance, a UUID does not say what it is of.
        let uuid = device.uuid()?;
        let known = Nvml::load().and_then(|nvml| nvml.device_of(&uuid)).ok();
        let own = known.and_then(|device| device.facts().uuid).filter(|text| uuid.matches(text));
        Ok(Device { uuid: own, sms: device.sms()?.0, line })
    };
    let device = look().map_err(|error| Failure::machine(error, None))?;
    output::print(&output::json(&device)?)
}

/// `partywall device meet`.
pub(crate) fn meet(arguments: &MeetArguments) -> Result<(), Failure> {
    if let Some(sms) = arguments.probe {
        // Not the buffered one: what is in a buffer is not seen by waiting.
        let input = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(std::io::Error::from);
        let input = File::from(input.map_err(Failure::internal)?);
        let mut output = std::io::stdout().lock();
        let (set, patience) = ((sms, arguments.groups.as_ref()), arguments.patience.unwrap_or(PATIENCE));
        return Ok(probe::run(set, patience, input, &mut output)?);
    }
    let Some(path) = &arguments.task else { return Ok(()) };
    let unusable = |error: &dyn std::fmt::Display| {
        Failure::input(format!("{} is no task for a proof: {error}", path.display()))
    };
    let text = std::fs::read(path).map_err(|error| unusable(&error))?;
    let task: Task = serde_json::from_slice(&text).map_err(|error| unusable(&error))?;
    let exe = std::env::current_exe().map_err(Failure::internal)?;
    output::print(&output::json(&prover::run(&task, &exe))?)
}

/// The program that starts and asks MPS daemons, if it is on the PATH.
pub(crate) fn mps_control() -> Option<PathBuf> {
    mps::find_control(variable("PATH").as_deref())
}

/// What stands between the tenants of a node.
pub(crate) fn of(client: &mut Client) -> Result<WallChoice, Failure> {
    match client.ask(&Request::Wall)? {
        Reply::Wall { wall } => Ok(wall),
        reply => Err(client.unexpected(&reply).into()),
    }
}

/// Says what of a file is not kept by this node.
pub(crate) fn say_what_is_not_kept(config: &Config, client: &mut Client) -> Result<(), Failure> {
    let wall = of(client)?;
    for tenant in &config.tenants {
        if tenant.share.is_some() && !walls::keeps_shares(wall) {
            say(&format!(
                "{}: its share of the SMs is not kept behind the wall `{wall}`; its memory and its copies are",
                tenant.name
            ));
        }
    }
    let promised =
        |name: &str| config.tenants.iter().any(|tenant| tenant.name == name && tenant.slo.is_some());
    let tenants = match client.ask(&Request::Ps)? {
        Reply::Tenants { tenants } => tenants,
        reply => return Err(client.unexpected(&reply).into()),
    };
    for tenant in tenants.iter().filter(|tenant| promised(&tenant.name) && promise::is_out_of_reach(tenant)) {
        let why = Reason::LaunchesUndecided;
        say(&format!("{}: what was promised about its requests is not guaranteed: {why}", tenant.name));
    }
    Ok(())
}
