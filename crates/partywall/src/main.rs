//! The `partywall` program.

use std::process::ExitCode;

use clap::Parser;
use partywall::cli::Cli;

fn main() -> ExitCode {
    partywall::main(&Cli::parse())
}
