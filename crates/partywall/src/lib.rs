//! The command line: thin; it parses, calls and prints. A library so that the reference, the man pages and the
//! completions come from the same definitions as the program.

mod agreement;
pub mod cli;
mod demo;
mod doctor;
mod engine_sim;
mod error;
mod gateway;
mod gpus;
mod measure;
mod measured;
mod output;
mod progress;
mod report;
mod route;
mod sim;
mod simulated;
mod speed;
mod tenant;
mod tenants;
mod validation;
mod vram;

use std::process::ExitCode;

pub use agreement::recorded_agreement;
pub use demo::{RecordedDemo, recorded_demo};
pub use measure::recorded_pictures;
pub use route::recorded_route_pictures;
pub use validation::recorded_validations;
pub use vram::{recorded_map_pictures, recorded_neighbour_picture};

use cli::tenants::DeviceCommand;
use cli::{Cli, Command, SimCommand};
use error::Failure;

/// Runs a command and maps what went wrong to an exit code: 2 for what the user gave, 1 for everything else.
#[expect(clippy::print_stderr, reason = "the one place where errors are printed")]
pub fn main(cli: &Cli) -> ExitCode {
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Failure::Exit { code, message: None }) => ExitCode::from(code),
        Err(failure) => {
            eprintln!("error: {failure}");
            if let Some(hint) = failure.hint() {
                eprintln!("hint: {hint}");
            }
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: &Cli) -> Result<(), Failure> {
    simulated::enter_if_asked(cli)?;
    match &cli.command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Run(arguments) => tenants::run::run(arguments),
        Command::Up(arguments) => tenants::up::run(arguments),
        Command::Ps(arguments) => tenants::asked::ps(arguments),
        Command::Stop(arguments) => tenants::asked::stop(arguments),
        Command::Restart(arguments) => tenants::asked::restart(arguments),
        Command::Coverage(arguments) => tenants::asked::coverage(arguments),
        Command::Logs(arguments) => tenants::asked::logs(arguments),
        Command::Node(arguments) => tenants::node::run(arguments),
        Command::Shepherd(arguments) => tenants::shepherd(arguments),
        Command::MpsKeeper(arguments) => tenants::walls::keep(arguments),
        Command::Device { command: None } => tenants::walls::device(),
        Command::Device { command: Some(DeviceCommand::Meet(arguments)) } => tenants::walls::meet(arguments),
        Command::EngineSim(arguments) => engine_sim::run(arguments),
        Command::Gateway(arguments) => gateway::run(arguments),
        Command::Sim { command: SimCommand::Run(arguments) } => sim::run(arguments),
        Command::Sim { command: SimCommand::Validate(arguments) } => validation::run(arguments),
        Command::Sim { command: SimCommand::Speed(arguments) } => speed::run(arguments),
        Command::Sim { command: SimCommand::Route(arguments) } => route::run(arguments),
        Command::Measure(arguments) => measure::run(arguments),
        Command::Vram { command } => vram::run(command, cli.gpu.gpu.as_ref()),
        Command::Gpus(arguments) => gpus::run(arguments),
        Command::Config(arguments) => gpus::config(arguments),
        Command::Tenant(arguments) => tenant::run(arguments),
        Command::Completions { shell } => cli::completions(*shell),
        Command::Man { directory } => cli::man(directory),
    }
}
