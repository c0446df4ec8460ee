//! What can be said on the command line. Help, reference, man pages and completions all come from here.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;
use partywall_driver::soft::PREFIX;
use partywall_measure::plan::measurable;

use crate::error::Failure;
use crate::output;

pub mod engine_sim;
pub mod gateway;
pub mod routing;
pub mod tenants;
pub mod vram;

use engine_sim::EngineSimArguments;
use gateway::GatewayArguments;
use tenants::{
    CoverageArguments, DeviceCommand, KeeperArguments, LogsArguments, NodeArguments, PsArguments,
    RestartArguments, RunTenantArguments, ShepherdArguments, StopArguments, UpArguments, WhichNode,
};
use vram::VramCommand;

/// Share one NVIDIA GPU between services so that each runs as if the others were not there.
///
/// Start with `partywall demo`: it shows what a latency-sensitive and a best-effort tenant do to each other behind
/// every wall there is, on a simulated GPU, in seconds. Nothing here needs a GPU.
#[derive(Debug, Parser)]
#[command(name = "partywall", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Use a simulated GPU instead of this machine's: for doctor, run, up, node and measure, which take it behind their name too.
    /// Before ps, stop, restart, logs and coverage it is the GPU of the node that is asked.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  partywall demo                                   an H200, every wall, in seconds
  partywall demo --gpu a100-40gb --out report      another GPU; writes report/report.html
  partywall doctor                                 this machine: its GPUs, and which walls it can build
  partywall run --memory 12GiB -- python serve.py  a program with a wall around it; its exit status
  partywall up examples/two-tenants.toml           two of them, started, watched and stopped together
  partywall sim run scenarios/packing.toml         seven services on one GPU
  partywall sim validate results/h200/pairs.csv    the model against measurements
  partywall measure --quick                        the same on this machine's GPU, measured
  partywall --gpu sim:h200 doctor                  a machine with a simulated GPU, where programs run
  partywall gateway examples/gateway.toml          HTTP in front of replicas
  partywall gpus --gpu h200                        every figure of a GPU and where it comes from

Exit status: 0 done, 1 failed, 2 something given cannot be used (the message says what, where, and what would be right),
130 interrupted.";

const ENGINE_SIM_EXAMPLES: &str = "\
Examples:
  partywall engine-sim
  curl localhost:8000/v1/completions -d '{\"prompt\": \"hello\", \"max_tokens\": 20, \"stream\": true}'
  partywall engine-sim --replicas 4 --kv-events tcp://127.0.0.1:5557 --kv-replay tcp://127.0.0.1:5657
  curl localhost:8001/fault -d '{\"fault\": \"slow:4\"}'";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what two tenants do to each other behind every wall, simulated.
    Demo(DemoArguments),
    /// Show what this machine has: GPUs, driver, MPS, MIG, and which walls it can build.
    ///
    /// For a wall that cannot be built it says why, and what would make it possible. Nothing is changed.
    Doctor(DoctorArguments),
    /// Run a command as a tenant of the GPU, in this terminal.
    ///
    /// The command is any program that uses CUDA, unmodified. It becomes a tenant of the node that runs, or of one that is
    /// started for it and ends with it. The exit status is the command's; 128 and the number of the signal where a signal
    /// ended it, 127 where there is no such command.
    #[command(after_help = "Example: partywall run --class ls --memory 12GiB -- python serve.py")]
    Run(RunTenantArguments),
    /// Start the tenants of a file, and follow their logs until they end.
    ///
    /// Tenants are started in the order of the file, in the file's folder, and again when they fail. Ctrl-C stops them all.
    Up(UpArguments),
    /// List the tenants of the node that runs.
    Ps(PsArguments),
    /// Stop tenants: SIGTERM to all their processes, and after a grace SIGKILL.
    Stop(StopArguments),
    /// Stop tenants and start them again.
    Restart(RestartArguments),
    /// Print what a tenant has written.
    Logs(LogsArguments),
    /// Show what a tenant uses of the driver, and which of it Partywall enforces.
    ///
    /// Every function of the driver that its processes looked up, by what is done with it: enforced, passed through knowingly,
    /// refused, or unknown. A tenant with unknown ones is not guaranteed.
    Coverage(CoverageArguments),
    /// Be the node that keeps tenants, in the foreground.
    ///
    /// `partywall up` and `partywall run` start one where none runs; this is for service managers. Ctrl-C or SIGTERM ends
    /// it and its tenants. If it is killed, its tenants go on, and the next node of the folder takes over.
    Node(NodeArguments),
    /// Be the parent of one tenant: what a node starts.
    #[command(hide = true)]
    Shepherd(ShepherdArguments),
    /// Be the parent of a node's MPS daemon: what a node starts.
    #[command(hide = true)]
    MpsKeeper(KeeperArguments),
    /// Say what the GPU is, as JSON: what a node starts.
    #[command(hide = true)]
    Device {
        /// Find something out on it instead.
        #[command(subcommand)]
        command: Option<DeviceCommand>,
    },
    /// Be a stand-in inference engine: OpenAI's API over modelled times, and a real block cache that tells its events.
    ///
    /// Gateways and routers are tried against it without a GPU. A token is a byte. Once it serves, it says where on standard output, and
    /// goes on until Ctrl-C, or until a fault has ended all its replicas; then the exit status is 1.
    #[command(after_help = ENGINE_SIM_EXAMPLES)]
    EngineSim(Box<EngineSimArguments>),
    /// Stand in front of inference servers, in the foreground: requests go to the replica that answers them soonest.
    ///
    /// Speaks the OpenAI API, and passes other paths on. Which replica a request goes to, and why, stands in a header of the answer. Ctrl-C or
    /// SIGTERM ends it when all that is under way has ended; a second one ends it at once.
    Gateway(GatewayArguments),
    /// Simulate scenarios, and hold the model against measurements.
    Sim {
        /// What to simulate.
        #[command(subcommand)]
        command: SimCommand,
    },
    /// Measure what tenants do to each other on this machine's GPU, behind every wall it can build.
    ///
    /// Starts tenants, alone and together, and an MPS daemon of its own where a wall needs one. The GPU's settings stay
    /// as they are. The result is a table, and a file that `partywall measure compare` and the simulator read.
    Measure(Box<MeasureArguments>),
    /// Be a built-in tenant: what `partywall measure` starts.
    #[command(hide = true)]
    Tenant(TenantArguments),
    /// Find out where a GPU's memory lives, and rewrite kernels that keep to a part of it.
    Vram {
        /// What to do.
        #[command(subcommand)]
        command: VramCommand,
    },
    /// List the GPUs that are known, with a source for every figure.
    Gpus(GpusArguments),
    /// Check a `partywall.toml`, or print an example or its JSON schema.
    Config(ConfigArguments),
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write man pages.
    Man {
        /// Where to; created if it does not exist.
        directory: PathBuf,
    },
}

/// Which GPU a command uses.
#[derive(Debug, Clone, Default, Args)]
pub struct GpuChoice {
    /// Use a simulated GPU instead of this machine's, such as sim:h200; `partywall gpus` lists the ids. Programs run and
    /// get right results; times are modelled, and whatever is reported says so.
    #[arg(long, value_name = "sim:ID")]
    pub gpu: Option<SimulatedGpu>,
}

/// The id of a simulated GPU, which users write as `sim:h200`. Whether the catalogue has it is not checked here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimulatedGpu(pub String);

impl FromStr for SimulatedGpu {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        text.strip_prefix(PREFIX).filter(|id| !id.is_empty()).map(|id| Self(id.to_owned())).ok_or_else(|| {
            format!(
                "not a simulated GPU; write {PREFIX}h200. Which of this machine's GPUs is used is CUDA_VISIBLE_DEVICES's \
                 to say"
            )
        })
    }
}

impl Command {
    /// `None` of a command that uses no GPU; else the simulated one that it was told to use, behind its name.
    pub(crate) fn gpu(&self) -> Option<Option<&SimulatedGpu>> {
        match self {
            Self::Doctor(arguments) => Some(arguments.gpu.gpu.as_ref()),
            Self::Measure(arguments) if arguments.command.is_none() => Some(arguments.gpu.gpu.as_ref()),
            Self::Node(arguments) => Some(arguments.gpu.gpu.as_ref()),
            Self::Run(arguments) => Some(arguments.gpu.gpu.as_ref()),
            Self::Up(arguments) => Some(arguments.gpu.gpu.as_ref()),
            Self::Vram { command: VramCommand::Map(arguments) } => Some(arguments.look.gpu.gpu.as_ref()),
            Self::Vram { command: VramCommand::Known(arguments) } => Some(arguments.gpu.gpu.as_ref()),
            Self::Vram { command: VramCommand::Interfere(arguments) } => {
                Some(arguments.look.gpu.gpu.as_ref())
            }
            Self::Tenant(_) => Some(None),
            _ => None,
        }
    }

    /// The node that a command asks, where that is all it does.
    pub(crate) fn asks_node(&self) -> Option<&WhichNode> {
        match self {
            Self::Ps(arguments) => Some(&arguments.node),
            Self::Stop(arguments) => Some(&arguments.node),
            Self::Restart(arguments) => Some(&arguments.node),
            Self::Logs(arguments) => Some(&arguments.node),
            Self::Coverage(arguments) => Some(&arguments.node),
            _ => None,
        }
    }
}

/// `partywall demo`.
#[derive(Debug, Args)]
pub struct DemoArguments {
    /// GPU to simulate, by its id; `partywall gpus` lists them.
    #[arg(long, value_name = "ID", default_value = "h200")]
    pub gpu: String,
    /// Seed of the arrivals; the same seed gives the same bytes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also write DIR/report.html and DIR/report.json.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the report as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// `partywall doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// Also try on each GPU what partywall builds on: memory, copies, kernels, graphs, Green Contexts. Takes
    /// seconds and changes no setting; the exit status is 1 where something does not hold.
    #[arg(long)]
    pub check: bool,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `partywall sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a scenario: tenants, loads and walls of your own.
    Run(RunArguments),
    /// Compare the model with measured pairs and print its error per wall.
    Validate(ValidateArguments),
    /// Measure how many kernels the simulator gets through in a second.
    Speed(SpeedArguments),
    /// Replay requests through routing policies to simulated engines, and compare when first tokens come.
    ///
    /// Each engine computes 8 000 prompt tokens a second, one prompt at a time, and generates for up to 64 requests at once, 25 ms a token.
    /// Times are in seconds. `good` is the fraction of requests with the first token within 2 s and the others within 25 ms each; `off` is how far
    /// the expected time of the first token was from the simulated one.
    #[command(after_help = "Example: partywall sim route --generate --rate 1,2 --cache 1M --mixed")]
    Route(routing::RouteArguments),
}

/// `partywall sim run`.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// The scenario; `scenarios/` in the repository has examples with comments.
    #[arg(value_name = "SCENARIO.toml")]
    pub scenario: PathBuf,
    /// Use this seed instead of the scenario's.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Print results as JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// `partywall sim validate`.
#[derive(Debug, Args)]
pub struct ValidateArguments {
    /// Measured pairs, CSV; `results/h200/README.md` describes the columns.
    #[arg(value_name = "PAIRS.csv", required_unless_present = "results")]
    pub pairs: Vec<PathBuf>,
    /// A record of `partywall measure`, or of `partywall vram interfere` for the wall `sides`; may be given several times.
    #[arg(long, value_name = "RECORD.json")]
    pub results: Vec<PathBuf>,
    /// Print `{"walls":[...], "not_comparable":[...]}` as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Show every pair, not only the errors per wall.
    #[arg(long, conflicts_with = "json")]
    pub pairs_too: bool,
}

/// `partywall sim speed`.
#[derive(Debug, Args)]
pub struct SpeedArguments {
    /// Also simulate one hour of this many GPUs, with programs coarsened, and time it.
    #[arg(long, value_name = "GPUS")]
    pub hour_of: Option<u32>,
    /// Print results as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `partywall measure`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct MeasureArguments {
    /// Something else than measuring.
    #[command(subcommand)]
    pub command: Option<MeasureCommand>,
    /// The GPU.
    #[command(flatten)]
    pub gpu: GpuChoice,
    /// A useful part of the matrix, in under three minutes. Without it and --plan: all of it, in hours.
    #[arg(long, conflicts_with = "plan")]
    pub quick: bool,
    /// The whole matrix of built-in tenants; what is done without --quick and --plan.
    #[arg(long, conflicts_with_all = ["quick", "plan"])]
    pub full: bool,
    /// What this file says: tenants, walls and pairs of your own. `workloads/plans/` has examples, --plan-example prints one.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Print a commented plan and do nothing else.
    #[arg(long)]
    pub plan_example: bool,
    /// Only these latency-sensitive tenants of the plan.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub victims: Vec<String>,
    /// Only these best-effort tenants of the plan.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub antagonists: Vec<String>,
    /// Only these walls of the plan, by their ids.
    #[arg(long, value_name = "WALLS", value_delimiter = ',', value_parser = measurable)]
    pub walls: Vec<Wall>,
    /// Longest window of a cell over all its rounds, in seconds.
    #[arg(long, value_name = "N")]
    pub seconds: Option<f64>,
    /// Requests of the latency-sensitive tenant after which a cell ends.
    #[arg(long, value_name = "N")]
    pub requests: Option<u64>,
    /// How often each cell is measured; its samples are pooled.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub rounds: Option<u32>,
    /// Seed of the arrivals and of the intervals.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// What the result is called.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Where NAME.json goes. Default: results/GPU, of a simulated one results/sim-GPU; with --pretend nothing is written.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Go on where this result ended: measure what of the plan it has no figures of; the new result has both.
    #[arg(long = "continue", value_name = "RESULT.json", conflicts_with_all = ["quick", "full"])]
    pub go_on: Option<PathBuf>,
    /// Stop about then, with what there is.
    #[arg(long, value_name = "TIME")]
    pub time_limit: Option<Nanos>,
    /// Also find each tenant's maximum stable rate, and count timeouts at it beside the others.
    #[arg(long)]
    pub ims: bool,
    /// Print the result as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
    /// Rehearse without GPU: every tenant is replaced by one that only passes the time. The figures mean nothing.
    #[arg(long)]
    pub pretend: bool,
}

/// What `partywall measure` does besides.
#[derive(Debug, Subcommand)]
pub enum MeasureCommand {
    /// Hold two results against each other: what differs in how they came about, then row by row.
    Compare(CompareArguments),
    /// Make one result of several that are parts of one plan, measured on one machine.
    Merge(MergeArguments),
    /// Show a result again: the table, and with --out the page and a picture of all pairs.
    Show(ShowArguments),
}

/// `partywall measure show`.
#[derive(Debug, Args)]
pub struct ShowArguments {
    /// A result of `partywall measure`.
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// Also write NAME.html, and NAME.svg where there are many pairs, into this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Show on the page what the simulator says of the same tenants, beside the measured figures.
    #[arg(long, requires = "out")]
    pub simulate: bool,
}

/// `partywall measure merge`.
#[derive(Debug, Args)]
pub struct MergeArguments {
    /// Results of `partywall measure`.
    #[arg(required = true, value_name = "RESULT.json")]
    pub results: Vec<PathBuf>,
    /// What the result is called.
    #[arg(long, value_name = "NAME")]
    pub name: String,
    /// Write NAME.json and NAME.html into this folder.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the result as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `partywall measure compare`.
#[derive(Debug, Args)]
pub struct CompareArguments {
    /// A result of `partywall measure`.
    #[arg(value_name = "A.json")]
    pub first: PathBuf,
    /// Another one.
    #[arg(value_name = "B.json")]
    pub second: PathBuf,
    /// Print as JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `partywall tenant`.
#[derive(Debug, Args)]
pub struct TenantArguments {
    /// The tenants: `[TAG=]NAME[:ls|:be][,size=BYTES][,awake]`.
    #[arg(required = true, value_name = "TENANT")]
    pub tenants: Vec<String>,
    /// Streams have the priority of their tenant's class.
    #[arg(long, conflicts_with = "sm_groups")]
    pub stream_priority: bool,
    /// Groups of the one split of all SMs, for each tenant in turn, such as 0-31.
    #[arg(long, value_name = "GROUPS")]
    pub sm_groups: Vec<String>,
    /// Number of the device among the visible ones.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: u32,
    /// Of a pretended tenant: mean time of a unit of work.
    #[arg(long, value_name = "TIME")]
    pub service: Option<Nanos>,
    /// Of a pretended tenant: sleep instead of looking at the clock.
    #[arg(long)]
    pub asleep: bool,
    /// Of a pretended tenant: what goes wrong and in which request: die@5, hang@5 or rubbish@5.
    #[arg(long, value_name = "FAULT@N")]
    pub fault: Option<String>,
    /// Of a pretended tenant: every check of its results fails.
    #[arg(long)]
    pub wrong_result: bool,
}

/// `partywall gpus`.
#[derive(Debug, Args)]
pub struct GpusArguments {
    /// Show every figure of one GPU with its source.
    #[arg(long, value_name = "ID")]
    pub gpu: Option<String>,
    /// Print as JSON.
    #[arg(long)]
    pub json: bool,
}

/// `partywall config`.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct ConfigArguments {
    /// Check this file.
    #[arg(value_name = "partywall.toml")]
    pub file: Option<PathBuf>,
    /// Print a commented example.
    #[arg(long)]
    pub example: bool,
    /// Print the JSON schema.
    #[arg(long)]
    pub schema: bool,
}

/// Prints the completion script of `shell`.
pub(crate) fn completions(shell: Shell) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "partywall", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Writes one man page per command into `directory`.
pub(crate) fn man(directory: &Path) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let mut pages = Vec::new();
    man_pages(&command, &mut pages).map_err(Failure::internal)?;
    let files: Vec<(&str, &str)> = pages.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let written = output::write_all(directory, &files)?;
    output::print(&format!("wrote {} man pages to {}", written.len(), directory.display()))
}

fn man_pages(command: &clap::Command, pages: &mut Vec<(String, String)>) -> std::io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).replace(' ', "-");
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name.clone()).render(&mut page)?;
    pages.push((format!("{name}.1"), String::from_utf8_lossy(&page).into_owned()));
    for inner in command.get_subcommands().filter(|inner| is_for_people(inner)) {
        man_pages(inner, pages)?;
    }
    Ok(())
}

/// Not `help`, which clap adds, and not what only other commands start.
fn is_for_people(command: &clap::Command) -> bool {
    command.get_name() != "help" && !command.is_hide_set()
}

/// The reference as Markdown: the long help of every command.
pub fn reference() -> String {
    let mut command = Cli::command().term_width(100);
    command.build();
    let mut text = String::from("# Command line\n");
    describe(&mut command, &mut text);
    text
}

fn describe(command: &mut clap::Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    *text += &format!("\n## `{name}`\n\n```text\n{}\n```\n", help.join("\n").trim_end());
    for inner in command.get_subcommands_mut().filter(|inner| is_for_people(inner)) {
        describe(inner, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_reference_has_every_command() {
        let reference = reference();
        for command in [
            "demo",
            "doctor",
            "run",
            "up",
            "ps",
            "stop",
            "restart",
            "logs",
            "node",
            "engine-sim",
            "gateway",
            "sim run",
            "sim validate",
            "sim speed",
            "gpus",
            "config",
            "completions",
            "man",
        ] {
            assert!(reference.contains(&format!("## `partywall {command}`")), "{command} is missing");
        }
    }

    #[test]
    fn there_is_a_man_page_for_every_command() {
        let mut command = Cli::command();
        command.build();
        let mut pages = Vec::new();
        man_pages(&command, &mut pages).unwrap();
        let names: Vec<&str> = pages.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"partywall.1") && names.contains(&"partywall-sim-validate.1"), "{names:?}");
    }
}
