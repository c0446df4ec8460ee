//! `--gpu sim:…`: the program starts itself again where a simulated GPU is the only one that it and its children find.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use partywall_core::catalogue::Catalogue;
use partywall_core::gpu::Gpu;
use partywall_driver::soft::{LIBRARY, SoftDriver, find_library};

use crate::cli::{Cli, SimulatedGpu};
use crate::error::Failure;
use crate::tenants;

/// The process id of a program that has started itself again, which keeps its id. A system that takes the loader's
/// variables away from it would otherwise make it do so for ever.
const STARTED_AGAIN: &str = "PARTYWALL_STARTED_AGAIN";

static ENTERED: AtomicBool = AtomicBool::new(false);

/// Does nothing where no simulated GPU was asked for, or where it is the one that is found already.
pub(crate) fn enter_if_asked(cli: &Cli) -> Result<(), Failure> {
    let outer = cli.gpu.gpu.as_ref();
    if let (Some(gpu), Some(which)) = (outer, cli.command.asks_node()) {
        // It uses what the node uses, so there is nothing to enter; but what was meant is that one, and it has to exist.
        known(gpu)?;
        return tenants::check_gpu(which, gpu);
    }
    match (outer, cli.command.gpu()) {
        (None, None | Some(None)) => Ok(()),
        (Some(_), None) => Err(Failure::input_with_hint(
            "this command uses no GPU of a machine, so --gpu before it means nothing",
            "doctor, measure, run, up, node and what asks a node do; demo and gpus have a --gpu of their own, behind their name \
             and without `sim:`",
        )),
        (Some(outer), Some(Some(inner))) if outer != inner => {
            Err(Failure::input(format!("--gpu is given twice, as sim:{} and as sim:{}", outer.0, inner.0)))
        }
        (_, Some(Some(gpu))) | (Some(gpu), Some(None)) => enter(gpu),
    }
}

/// Comes back when the simulated GPU is the one that this process finds; the first time it does not come back, but starts the
/// program again with the same arguments.
pub(crate) fn enter(gpu: &SimulatedGpu) -> Result<(), Failure> {
    let gpu = known(gpu)?;
    let program = std::env::current_exe().map_err(Failure::internal)?;
    let machine = |error| Failure::machine(error, None);
    let library = find_library(LIBRARY, &program).map_err(machine)?;
    let driver = SoftDriver::make(&gpu, &library, &std::env::temp_dir()).map_err(machine)?;
    if driver.is_in_force(variable) {
        ENTERED.store(true, Ordering::Relaxed);
        return Ok(());
    }
    let own = std::process::id().to_string();
    if variable(STARTED_AGAIN).is_some_and(|id| id == *own) {
        let message = "this system does not let LD_LIBRARY_PATH through to this program, as for one that runs with more \
                       rights than its user; a simulated GPU needs it";
        return Err(Failure::machine(message, None));
    }
    let mut again = Command::new(&program);
    again.args(arguments()).envs(driver.environment(variable)).env(STARTED_AGAIN, own);
    // Only comes back where it failed.
    let error = again.exec();
    Err(Failure::machine(format!("cannot start {} again: {error}", program.display()), None))
}

/// What the catalogue says of it.
fn known(gpu: &SimulatedGpu) -> Result<Gpu, Failure> {
    let catalogue = Catalogue::builtin().map_err(Failure::internal)?;
    catalogue.get(&gpu.0).cloned().map_err(|error| {
        Failure::input_with_hint(error, "`partywall gpus` lists those that can be simulated")
    })
}

/// Whether this process was told to use a simulated GPU, and does.
pub(crate) fn is_entered() -> bool {
    ENTERED.load(Ordering::Relaxed)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: what a process finds depends on its environment"
)]
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// What was written behind the program's name.
fn arguments() -> impl Iterator<Item = OsString> {
    std::env::args_os().skip(1)
}
