//! `partywall run`: one command as a tenant, in this terminal.

use std::process::Command;

use partywall_core::config::WallChoice;
use partywall_core::tenant::{Baseline, Class, Slo};
use partywall_core::units::Nanos;
use partywall_node::client::Client;
use partywall_node::control::{Attach, Reply, Request};
use partywall_node::environment::PRELOAD;
use partywall_node::error::Error;
use partywall_node::folder::{Folder, TenantFolder};
use partywall_node::launch::{Background, Launched, launch};
use partywall_node::shepherd::{self, status::End};
use partywall_node::walls::{check_built, keeps_shares};

use super::{folder, same_gpu, say, shim, variable, walls};
use crate::cli::tenants::RunTenantArguments;
use crate::error::Failure;

/// Runs the command, and ends as it did.
pub(crate) fn run(arguments: &RunTenantArguments) -> Result<(), Failure> {
    if let Some(wall) = arguments.wall {
        check_built(wall)?;
    }
    let promised = [
        ("--slowdown", arguments.slowdown.is_some()),
        ("--slo-p99", arguments.slo_p99.is_some()),
        ("--baseline-p99", arguments.baseline_p99.is_some()),
    ];
    if let (Class::BestEffort, Some((option, _))) =
        (arguments.class, promised.iter().find(|(_, given)| *given))
    {
        return Err(Failure::input_with_hint(
            format!("{option}: a best-effort tenant takes what is left and is promised nothing"),
            "make it latency-sensitive with --class ls",
        ));
    }
    let mut private = None;
    let mut client = match Client::connect(&folder(&arguments.node)?) {
        Err(Error::NoNode { .. }) => {
            let node = Private::start(arguments.wall)?;
            let client = Client::connect(&node.folder)?;
            private = Some(node);
            client
        }
        found => {
            let mut client = found?;
            same_gpu(&mut client, &folder(&arguments.node)?)?;
            client
        }
    };
    if arguments.share.is_some() {
        let wall = walls::of(&mut client)?;
        if !keeps_shares(wall) {
            say(&format!(
                "a share of the SMs is not kept behind the wall `{wall}`; choose --wall mps-percentage, green-contexts or partywall"
            ));
        }
    }
    let (folder, command) = attach(&mut client, arguments)?;
    drop(client);
    let spare = private.as_ref().map(|node| node.launched.pid());
    let end = shepherd::attend(command, &folder, arguments.grace, spare)?;
    if let Some(note) = folder.fault_note(VERDICT) {
        say(&note);
    }
    if let Some(node) = private {
        node.launched.end();
    }
    match end {
        End::Code(0) => Ok(()),
        End::NotStarted { code, error } => Err(Failure::Exit { code, message: Some(error) }),
        // The command has said what there was to say.
        end => Err(Failure::Exit { code: end.exit_code(), message: None }),
    }
}

/// How long a node takes to find out whose a fault was: it listens for 0.4 s, and asks the MPS server for 2 s at most.
const VERDICT: Nanos = Nanos::from_secs(4);

/// A node for this command alone. Its folder goes with it, also when this process is killed.
struct Private {
    folder: Folder,
    launched: Launched,
}

impl Private {
    fn start(wall: Option<WallChoice>) -> Result<Self, Failure> {
        // Here, so that its absence is this command's failure, with a hint.
        shim()?;
        let made = tempfile::Builder::new().prefix("partywall-run-").tempdir();
        let made = made.map_err(|error| Failure::Write { path: std::env::temp_dir(), error })?;
        let exe = std::env::current_exe().map_err(Failure::internal)?;
        let folder = Folder::at(made.path())?;
        let launched = launch(&exe, &folder, Background::Temporary, wall)?;
        // From here on the node removes it.
        let _ = made.keep();
        Ok(Self { folder, launched })
    }
}

/// Makes a tenant of the command that is about to be started.
fn attach(client: &mut Client, arguments: &RunTenantArguments) -> Result<(TenantFolder, Command), Failure> {
    let shown = arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let preload = variable(PRELOAD).map(|value| value.to_string_lossy().into_owned());
    let reply = client.ask(&Request::Attach(Attach {
        name: arguments.name.clone(),
        class: arguments.class,
        memory: arguments.memory,
        weight: arguments.pcie_weight,
        wall: arguments.wall,
        share: arguments.share,
        squeezed: arguments.squeezed,
        slo: Slo { p99: arguments.slo_p99, slowdown: arguments.slowdown },
        baseline: Baseline { p99: arguments.baseline_p99 },
        command: shown,
        preload,
        grace: arguments.grace,
    }))?;
    let Reply::Attached { folder, variables, .. } = reply else {
        return Err(client.unexpected(&reply).into());
    };
    let Some((program, rest)) = arguments.command.split_first() else {
        return Err(Failure::input("there is no command"));
    };
    let mut command = Command::new(program);
    command.args(rest).envs(variables);
    Ok((TenantFolder::at(&folder), command))
}
