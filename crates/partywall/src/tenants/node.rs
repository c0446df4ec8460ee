//! `partywall node`: the node itself, and the GPU that its tenants share.

use std::cell::RefCell;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};

use partywall_core::units::Bytes;
use partywall_driver::error::DriverError;
use partywall_driver::library::Cuda;
use partywall_driver::nvml::{Device, Nvml, NvmlError};
use partywall_driver::soft::found;
use partywall_node::arbiter::squeeze::LaunchOptions;
use partywall_node::error::Error;
use partywall_node::folder::{Folder, write_whole};
use partywall_node::http::Server;
use partywall_node::node::{self, Lifetime, Settings};
use partywall_node::registry::{ClientWatch, Options, Registry};
use partywall_node::tenant::TenantService;
use partywall_node::walls::{Standing, check_built, decides_launches};
use partywall_node::watch::{MemoryWatch, NvmlWatch};

use super::walls::mps_control;
use super::{folder, say, shim, variable};
use crate::cli::tenants::NodeArguments;
use crate::error::Failure;

/// Runs the node until it ends.
pub(crate) fn run(arguments: &NodeArguments) -> Result<(), Failure> {
    if arguments.until_closed || arguments.until_stopped {
        // Ctrl-C in the terminal of whoever started it is for that process, which then says what is to be done.
        let _ = rustix::process::setsid();
    }
    if let Some(wall) = arguments.wall {
        check_built(wall)?;
    }
    let folder = folder(&arguments.node)?;
    let exe = std::env::current_exe().map_err(Failure::internal)?;
    let settings = Settings {
        folder: folder.clone(),
        exe,
        shim: shim()?,
        wall: arguments.wall,
        mps_control: mps_control(),
        squeezed: arguments.launches.and_then(|launches| launches.squeezed),
        simulated: found(variable),
        lifetime: lifetime(arguments)?,
        temporary: arguments.temporary,
    };
    let (copies, news) = (arguments.copies.unwrap_or_default(), Some(telling()?));
    let gpu = Options { copies, news, ..gpu()? };
    // Made once the folder is ours, dropped when the node has ended.
    let server = RefCell::new(None);
    let service = |folder: &Folder, wall: Standing| -> Result<Box<dyn TenantService>, Error> {
        let serving = |error| Error::System { action: "serving tenants", error };
        if wall.mps.is_some() && arguments.launches.is_some_and(|launches| launches.slice.is_some()) {
            return Err(Error::Refused(
                "slice= is for tenants that take turns, and the clients of an MPS daemon share one turn; leave it out, or choose --wall time-slicing".to_owned(),
            ));
        }
        let clients = wall
            .mps
            .map(|mps| -> ClientWatch { Box::new(move || mps.clients().map_err(|error| error.to_string())) });
        let decided = LaunchOptions { decided: decides_launches(wall.choice), ..LaunchOptions::default() };
        let launches = arguments.launches.unwrap_or(decided);
        let gpu = Options { launches, wall: wall.choice, clients, ..gpu };
        let registry = Registry::start(&folder.tenant_socket(), gpu).map_err(serving)?;
        let reader = registry.reader();
        let look = Arc::new(move || reader.view());
        let made = Server::start(arguments.http, look);
        let made = made
            .map_err(|error| Error::Refused(format!("cannot answer HTTP on {}: {error}", arguments.http)))?;
        write_whole(&folder.http(), format!("{}\n", made.address()).as_bytes())?;
        server.replace(Some(made));
        Ok(Box::new(registry))
    };
    // One line, which is what whoever started it waits for.
    let ready = || {
        let http = server.borrow().as_ref().map(|server: &Server| format!(", http://{}", server.address()));
        let line = format!("ready in {}{}", folder.path().display(), http.unwrap_or_default());
        let mut out = std::io::stdout().lock();
        let said = writeln!(out, "{line}").and_then(|()| out.flush());
        said.map_err(|error| Error::System { action: "saying that the node is ready", error })
    };
    Ok(node::run(settings, service, &mut |line| say(line), ready)?)
}

/// Says what it is sent. Whoever has something to say does not wait for the terminal.
fn telling() -> Result<Sender<String>, Failure> {
    let (sender, lines) = mpsc::channel::<String>();
    let tell = move || lines.iter().for_each(|line| say(&line));
    // It ends when nobody can send any more.
    std::thread::Builder::new().name("news".to_owned()).spawn(tell).map_err(Failure::internal)?;
    Ok(sender)
}

fn lifetime(arguments: &NodeArguments) -> Result<Lifetime, Failure> {
    Ok(if arguments.until_closed {
        let stdin = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3).map_err(std::io::Error::from);
        Lifetime::UntilClosed(stdin.map_err(Failure::internal)?)
    } else if arguments.until_stopped {
        Lifetime::UntilStopped
    } else {
        Lifetime::Forever
    })
}

/// The GPU that CUDA shows first to this process and its tenants, and what shows the memory of its processes.
fn gpu() -> Result<Options, Failure> {
    match Nvml::load().and_then(|nvml| Ok((only(&nvml)?, nvml))) {
        Ok((Some(device), _)) => {
            if let Some(memory) = device.facts().memory {
                return Ok(Options::new(memory, Ok(watch(device))));
            }
            with_cuda(|_| Err("NVML does not tell how much memory the GPU has".to_owned()))
        }
        // Several: CUDA counts them in an order of its own, so it has to be asked.
        Ok((None, nvml)) => with_cuda(|cuda| {
            let device =
                cuda.device(0).and_then(|device| device.uuid()).map_err(|error| error.to_string())?;
            nvml.device_of(&device).map(watch).map_err(|error| error.to_string())
        }),
        Err(error) => with_cuda(|_| Err(error.to_string())),
    }
}

fn watch(device: Device) -> Box<dyn MemoryWatch> {
    Box::new(NvmlWatch(device))
}

/// The one GPU of this machine; `None` if there are several.
fn only(nvml: &Nvml) -> Result<Option<Device>, NvmlError> {
    let mut devices = nvml.devices()?;
    Ok(if devices.len() == 1 { devices.pop() } else { None })
}

fn with_cuda(watch: impl FnOnce(&Cuda) -> Result<Box<dyn MemoryWatch>, String>) -> Result<Options, Failure> {
    let found = Cuda::load().and_then(|cuda| Ok((cuda.device(0)?.total_memory()?, cuda)));
    let none = |error: DriverError| {
        let hint = "`partywall doctor` says what this machine has; --gpu sim:h200 uses a simulated GPU";
        Failure::machine(format!("there is no GPU for tenants: {error}"), Some(hint.to_owned()))
    };
    let (memory, cuda): (Bytes, Cuda) = found.map_err(none)?;
    let watch = watch(&cuda);
    if let Err(reason) = &watch {
        say(&format!("the memory that tenants' contexts take is estimated: {reason}"));
    }
    Ok(Options::new(memory, watch))
}
