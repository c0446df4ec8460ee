//! Code generation and checks that CI and people run alike: `cargo xtask <command>`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is a program for the terminal")]

mod calibrate;
mod ci;
mod claims;
mod decimal;
mod driver_api;
mod figures;
mod generate;
mod kernels;
mod ledger;
mod problem;
mod profiles;
mod tidy;
mod wheel;
mod workspace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::{Parser, Subcommand};

/// Code generation and checks that CI and people run alike.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run everything that CI runs.
    Ci,
    /// Check the ledger of numbers, and README and docs against it; print it as a table.
    Claims {
        /// First take the values over from the recorded files, into the ledger and the documents.
        #[arg(long)]
        write: bool,
        /// Enter what these records say, unless the ledger has it; then as with --write. Of `partywall measure` as ids `sm.…`, of `vram
        /// map` and `vram interfere` as `sides.…`. Paths from the root of the repository.
        #[arg(long, value_name = "RECORD.json", num_args = 1..)]
        rows: Vec<PathBuf>,
    },
    /// Write the files that are made by a program.
    Generate {
        /// Write nothing; fail if a file differs from what would be written.
        #[arg(long)]
        check: bool,
    },
    /// Compile kernels/*.cu to PTX, with a compiler that is downloaded (25 MB) into target/ the first time.
    Kernels {
        /// Write nothing; fail if a PTX file differs from what the compiler makes.
        #[arg(long)]
        check: bool,
    },
    /// Make the lists of the driver's functions from NVIDIA's headers, which are downloaded (3 MB) into target/ the first time.
    DriverApi {
        /// Write nothing; fail if a list differs from what the headers say.
        #[arg(long)]
        check: bool,
    },
    /// Check the invariants of ARCHITECTURE.md.
    Tidy,
    /// Take recorded solo profiles (JSON) over into the files of profiles/networks.
    Profiles {
        /// The recordings, the oldest first.
        #[arg(required = true)]
        recordings: Vec<PathBuf>,
        /// Recorded pairs (CSV): networks alone in there count as a second measurement.
        #[arg(long)]
        pairs: Option<PathBuf>,
    },
    /// Search the parameters of the contention model on measured co-runs and print what was found.
    Calibrate {
        /// Records of `partywall measure` (JSON) and files of pairs (CSV).
        #[arg(required = true)]
        measured: Vec<PathBuf>,
        /// Rounds over all parameters.
        #[arg(long, default_value_t = 20)]
        rounds: u32,
        /// Leave the pairs of this latency-sensitive network (bert_base), or beside this best-effort program (stream), out of
        /// the search and report the error on them.
        #[arg(long)]
        hold_out: Option<String>,
        /// Keep this parameter, as it is or at a value: NAME or NAME=NUMBER.
        #[arg(long = "fix")]
        fixed: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(&Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: &Task) -> Result<()> {
    let root = workspace::root()?;
    match task {
        Task::Ci => ci::run(&root, &|line| eprintln!("{line}")),
        Task::Claims { write, rows } => {
            let report = if rows.is_empty() {
                claims::run(&root, *write)?
            } else {
                claims::run_with_rows(&root, rows)?
            };
            println!("{}", report.table);
            problem::none_of(&report.problems)
        }
        Task::Generate { check: true } => problem::none_of(&generate::check(&root)?),
        Task::Generate { check: false } => {
            for path in generate::run(&root)? {
                println!("{}", path.display());
            }
            Ok(())
        }
        Task::Kernels { check: true } => match kernels::check(&root)? {
            kernels::Checked::Compiled(problems) => problem::none_of(&problems),
            kernels::Checked::MarksOnly(why) => bail!("no compiler: {why}"),
        },
        Task::Kernels { check: false } => {
            for path in kernels::build(&root)? {
                println!("{}", path.display());
            }
            Ok(())
        }
        Task::Profiles { recordings, pairs } => profiles::import(&root, recordings, pairs.as_deref()),
        Task::Calibrate { measured, rounds, hold_out, fixed } => {
            calibrate::calibrate(measured, *rounds, hold_out.as_deref(), fixed)
        }
        Task::DriverApi { check: true } => match driver_api::check(&root)? {
            driver_api::Checked::Compared(problems) => problem::none_of(&problems),
            driver_api::Checked::NoHeaders(why) => bail!("no headers: {why}"),
        },
        Task::DriverApi { check: false } => {
            for path in driver_api::write(&root)? {
                println!("{}", path.display());
            }
            Ok(())
        }
        Task::Tidy => problem::none_of(&tidy::check(&root)?),
    }
}
