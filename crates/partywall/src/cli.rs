//! What can be said on the command line. Help, reference, man pages and completions all come from here.

use std::path::{Path, PathBuf};

use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::error::Failure;
use crate::output;

/// Share one NVIDIA GPU between services so that each runs as if the others were not there.
///
/// Start with `partywall demo`: it shows what a latency-sensitive and a best-effort tenant do to each other behind
/// every wall there is, on a simulated GPU, in seconds. Nothing here needs a GPU.
#[derive(Debug, Parser)]
#[command(name = "partywall", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  partywall demo                                   an H200, every wall, in seconds
  partywall demo --gpu a100-40gb --out report      another GPU; writes report/report.html
  partywall sim run scenarios/packing.toml         seven services on one GPU
  partywall sim validate results/h200/pairs.csv    the model against measurements
  partywall gpus --gpu h200                        every figure of a GPU and where it comes from

Exit status: 0 done, 1 failed, 2 something given cannot be used (the message says what, where, and what would be right).";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what two tenants do to each other behind every wall, simulated.
    Demo(DemoArguments),
    /// Simulate scenarios, and hold the model against measurements.
    Sim {
        /// What to simulate.
        #[command(subcommand)]
        command: SimCommand,
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

/// `partywall sim`.
#[derive(Debug, Subcommand)]
pub enum SimCommand {
    /// Run a scenario: tenants, loads and walls of your own.
    Run(RunArguments),
    /// Compare the model with measured pairs and print its error per wall.
    Validate(ValidateArguments),
    /// Measure how many kernels the simulator gets through in a second.
    Speed(SpeedArguments),
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
    #[arg(value_name = "PAIRS.csv")]
    pub pairs: PathBuf,
    /// Print `{"walls":[...]}` as JSON instead of a table.
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
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        man_pages(inner, pages)?;
    }
    Ok(())
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
    for inner in command.get_subcommands_mut().filter(|inner| inner.get_name() != "help") {
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
        for command in
            ["demo", "sim run", "sim validate", "sim speed", "gpus", "config", "completions", "man"]
        {
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
