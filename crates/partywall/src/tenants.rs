//! `partywall node`, `run`, `up`, `ps`, `stop`, `restart` and `logs`: tenants, and the node that keeps them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use partywall_core::config::WallChoice;
use partywall_driver::soft::{self, SoftError, find_library};
use partywall_node::client::Client;
use partywall_node::control::{Reply, Request};
use partywall_node::error::Error;
use partywall_node::folder::{Folder, TenantFolder};
use partywall_node::launch::{Background, Launched, launch};
use partywall_node::shepherd;

use crate::cli::SimulatedGpu;
use crate::cli::tenants::{ShepherdArguments, WhichNode};
use crate::error::Failure;

pub(crate) mod asked;
pub(crate) mod node;
mod promise;
pub(crate) mod run;
pub(crate) mod up;
pub(crate) mod walls;

/// The library that is preloaded into tenants.
const SHIM: &str = "partywall_shim";

/// The library that gives programs memory of a side of the chip.
const SIDE: &str = "partywall_side";

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Refused(message) => Self::input(message),
            Error::NoNode { .. } => Self::machine(
                error,
                Some("`partywall up FILE` starts one with tenants, `partywall node` one without".to_owned()),
            ),
            Error::Wall { .. } => Self::machine(
                error,
                Some("`partywall doctor` says which walls this machine can build".to_owned()),
            ),
            // It has said why.
            Error::NotLaunched { said: None } => Self::Exit { code: 1, message: None },
            Error::Conversation { .. } => Self::NodeGone(error.to_string()),
            error => Self::machine(error, None),
        }
    }
}

/// `partywall shepherd`.
pub(crate) fn shepherd(arguments: &ShepherdArguments) -> Result<(), Failure> {
    let folder = TenantFolder::at(&arguments.folder);
    shepherd::keep(&folder, arguments.run)?;
    Ok(())
}

/// The folder of the node that is meant.
fn folder(which: &WhichNode) -> Result<Folder, Failure> {
    let path = match (&which.dir, variable("PARTYWALL_DIR"), variable("XDG_RUNTIME_DIR")) {
        (Some(dir), _, _) => dir.clone(),
        (None, Some(dir), _) => PathBuf::from(dir),
        (None, None, Some(runtime)) => PathBuf::from(runtime).join("partywall"),
        (None, None, None) => {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("partywall-{user}"))
        }
    };
    Ok(Folder::at(&path)?)
}

/// The library that stands between tenants and the GPU.
pub(crate) fn shim() -> Result<PathBuf, Failure> {
    library(SHIM, "no tenant is started")
}

/// The library that programs take memory of a side from.
pub(crate) fn side_library() -> Result<PathBuf, Failure> {
    library(SIDE, "no program has memory of one side")
}

/// The library of this name; `what` is so without it.
fn library(name: &str, what: &str) -> Result<PathBuf, Failure> {
    let exe = std::env::current_exe().map_err(Failure::internal)?;
    find_library(name, &exe).map_err(|error| match error {
        SoftError::NoLibrary { file, looked } => {
            let looked: Vec<String> = looked.iter().map(|folder| folder.display().to_string()).collect();
            let message =
                format!("{what} without {file}, which is in none of: {}", looked.join(", "));
            let hint = "`cargo build` makes it beside the program, and an installed program has it in ../lib/partywall";
            Failure::machine(message, Some(hint.to_owned()))
        }
        error => Failure::machine(error, None),
    })
}

/// A conversation with the node of `folder`; one is started, with this wall, if there is none.
fn connect_or_launch(
    folder: &Folder,
    background: Background,
    wall: Option<WallChoice>,
) -> Result<(Client, Option<Launched>), Failure> {
    match Client::connect(folder) {
        Err(Error::NoNode { .. }) => {}
        found => return Ok((found?, None)),
    }
    // Here, so that its absence is this command's failure, with a hint.
    shim()?;
    let exe = std::env::current_exe().map_err(Failure::internal)?;
    let launched = launch(&exe, folder, background, wall)?;
    Ok((Client::connect(folder)?, Some(launched)))
}

/// Refuses a node that keeps another GPU than the one that programs find which this process starts: what a quota there says
/// would not be kept here.
fn same_gpu(client: &mut Client, folder: &Folder) -> Result<(), Failure> {
    keeps(client, folder, soft::found(variable).as_deref())
}

/// `--gpu` before a command that asks a node: it must be that node's. Where there is none, the command itself says so.
pub(crate) fn check_gpu(which: &WhichNode, gpu: &SimulatedGpu) -> Result<(), Failure> {
    let folder = folder(which)?;
    match Client::connect(&folder) {
        Err(Error::NoNode { .. }) => Ok(()),
        client => keeps(&mut client?, &folder, Some(&gpu.0)),
    }
}

fn keeps(client: &mut Client, folder: &Folder, wanted: Option<&str>) -> Result<(), Failure> {
    let kept = match client.ask(&Request::Gpu)? {
        Reply::Gpu { simulated } => simulated,
        reply => return Err(client.unexpected(&reply).into()),
    };
    let (what, right) = match (kept.as_deref(), wanted) {
        (kept, wanted) if kept == wanted => return Ok(()),
        (Some(kept), Some(wanted)) => {
            (format!("the simulated GPU sim:{kept}, not sim:{wanted}"), format!("write --gpu sim:{kept}"))
        }
        (Some(kept), None) => (
            format!(
                "the simulated GPU sim:{kept}, and this command was not told to use it but this machine's"
            ),
            format!("write --gpu sim:{kept}"),
        ),
        (None, wanted) => (
            format!("this machine's GPU, not sim:{}", wanted.unwrap_or_default()),
            "leave the simulated GPU out".to_owned(),
        ),
    };
    let message = format!("the node in {} keeps {what}", folder.path().display());
    Err(Failure::input_with_hint(message, format!("{right}, or use another node with --dir DIR")))
}

/// Says something to people, on standard error.
#[expect(clippy::print_stderr, reason = "what is said to people while something runs goes to standard error")]
fn say(line: &str) {
    eprintln!("partywall: {line}");
}

#[expect(
    clippy::disallowed_methods,
    reason = "the command line is the edge: where the node is and what tenants start with comes from here"
)]
pub(crate) fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// This process's environment, and the names of what in it is not text.
fn environment() -> (BTreeMap<String, String>, Vec<String>) {
    let mut text = BTreeMap::new();
    let mut other = Vec::new();
    for (name, value) in std::env::vars_os() {
        match (name.into_string(), value.into_string()) {
            (Ok(name), Ok(value)) => drop(text.insert(name, value)),
            (Ok(name), Err(_)) => other.push(name),
            (Err(name), _) => other.push(name.to_string_lossy().into_owned()),
        }
    }
    (text, other)
}
