//! `cargo xtask ci`: everything that a change must pass, in one list. `.ci/run` runs this and nothing else.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::{claims, driver_api, generate, kernels, problem, tidy, workspace};

/// What a step came to.
enum Outcome {
    Passed,
    /// Left out, and why: said again at the end, so that nobody takes it for passed.
    Skipped(String),
}

/// A step's name and what it does.
type Step = (&'static str, fn(&Path) -> Result<Outcome>);

/// The steps: those that answer at once come first, the longest last.
const STEPS: [Step; 11] = [
    ("formatting", |root| execute(root, "cargo fmt --all --check", &[])),
    ("generated files", |root| no_problems(&generate::check(root)?)),
    ("claims", |root| no_problems(&claims::run(root, false)?.problems)),
    ("invariants", |root| no_problems(&tidy::check(root)?)),
    ("workloads", workloads),
    ("kernels", compiled_kernels),
    ("driver API", driver_api),
    ("dependencies", dependencies),
    ("clippy", |root| execute(root, "cargo clippy --locked --workspace --all-targets -- -D warnings", &[])),
    ("documentation", |root| {
        execute(root, "cargo doc --locked --workspace --no-deps", &[("RUSTDOCFLAGS", "-D warnings")])
    }),
    ("tests", test),
];

/// Runs every step, also after one has failed; `say` gets a line for each when it begins and when it ends.
///
/// # Errors
/// The names of the steps that failed.
pub(crate) fn run(root: &Path, say: &dyn Fn(&str)) -> Result<()> {
    let (mut failed, mut skipped) = (Vec::new(), Vec::new());
    let whole = stopwatch();
    for (name, step) in STEPS {
        say(&format!("==> {name}"));
        let time = stopwatch();
        let outcome = step(root);
        let seconds = time().as_secs_f64();
        match outcome {
            Ok(Outcome::Passed) => say(&format!("<== {name}: passed in {seconds:.1} s")),
            Ok(Outcome::Skipped(why)) => {
                say(&format!("<== {name}: SKIPPED: {why}"));
                skipped.push(name);
            }
            Err(error) => {
                say(&format!("{error:#}\n<== {name}: FAILED after {seconds:.1} s"));
                failed.push(name);
            }
        }
    }
    let passed = STEPS.len() - failed.len() - skipped.len();
    let total = whole().as_secs_f64();
    say(&format!("{passed} of {} steps passed in {total:.1} s; skipped: {skipped:?}", STEPS.len()));
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

/// The PTX is what the compiler makes of the sources; where the compiler cannot be had, at least that it was made from
/// these sources.
fn compiled_kernels(root: &Path) -> Result<Outcome> {
    match kernels::check(root)? {
        kernels::Checked::Compiled(problems) => no_problems(&problems),
        kernels::Checked::MarksOnly(why) => {
            Ok(Outcome::Skipped(format!("the PTX belongs to its sources but was not compiled again: {why}")))
        }
    }
}

/// The lists of the driver's functions are what the headers say.
fn driver_api(root: &Path) -> Result<Outcome> {
    match driver_api::check(root)? {
        driver_api::Checked::Compared(problems) => no_problems(&problems),
        driver_api::Checked::NoHeaders(why) => {
            Ok(Outcome::Skipped(format!("the lists were not made again: {why}")))
        }
    }
}

/// Licences, sources and bans of what is in the lock file. The tool is no part of a fresh machine, so this runs where
/// somebody has installed it.
fn dependencies(root: &Path) -> Result<Outcome> {
    let mut probe = Command::new("cargo");
    probe.args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        let why = "cargo-deny is not installed; `cargo install --locked cargo-deny` brings it";
        return Ok(Outcome::Skipped(why.to_owned()));
    }
    // Advisories are left out: they need a clone of their database, which CI's network may not reach.
    execute(root, "cargo deny --locked check bans licenses sources", &[])
}

/// The Python programs, as far as they can be tried without PyTorch.
fn workloads(root: &Path) -> Result<Outcome> {
    let mut probe = Command::new("python3");
    probe.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        return Ok(Outcome::Skipped("python3 is not installed".to_owned()));
    }
    execute(root, "python3 -m unittest discover -q -s workloads/checks", &[])?;
    execute(root, "python3 -m unittest discover -q -s workloads/sides", &[])?;
    execute(root, "python3 -m unittest discover -q -s workloads/torch", &[])?;
    execute(root, "python3 -m unittest discover -q -s workloads/programs", &[])
}

/// The README's own test command, as written there.
fn test(root: &Path) -> Result<Outcome> {
    execute(root, test_command(&workspace::read(root, "README.md")?)?, &[])
}

fn test_command(readme: &str) -> Result<&str> {
    let mut commands = tidy::commands(readme).into_iter();
    commands
        .find(|command| command.starts_with("cargo test"))
        .context("README.md has no `cargo test` command")
}

/// Runs a command line of plain words from the root of the repository.
fn execute(root: &Path, line: &str, environment: &[(&str, &str)]) -> Result<Outcome> {
    let mut words = line.split_whitespace();
    let program = words.next().context("an empty command")?;
    let mut command = Command::new(program);
    command.args(words).envs(environment.iter().copied()).current_dir(root);
    let status = command.status().with_context(|| format!("running `{line}`"))?;
    if status.success() { Ok(Outcome::Passed) } else { Err(anyhow!("`{line}`: {status}")) }
}

fn no_problems(problems: &[problem::Problem]) -> Result<Outcome> {
    problem::none_of(problems).map(|()| Outcome::Passed)
}

/// A function that says how much time has passed.
#[allow(clippy::disallowed_methods, reason = "how long a step took is for people; nothing is decided by it")]
fn stopwatch() -> impl Fn() -> Duration {
    let start = std::time::Instant::now();
    move || start.elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_fails_is_named() {
        let root = workspace::root().unwrap();
        assert!(matches!(execute(&root, "true", &[]), Ok(Outcome::Passed)));
        let error = execute(&root, "false --for-a-test", &[]).err().unwrap();
        assert_eq!(error.to_string(), "`false --for-a-test`: exit status: 1");
        let error = execute(&root, "no-such-program-here", &[]).err().unwrap();
        assert_eq!(error.to_string(), "running `no-such-program-here`");
    }

    #[test]
    fn the_test_command_is_the_readmes() {
        let readme = "```sh\ncargo run\n```\n```sh\ncargo test --all\n```\n";
        assert_eq!(test_command(readme).unwrap(), "cargo test --all");
        let error = test_command("`cargo test`\n").unwrap_err();
        assert_eq!(error.to_string(), "README.md has no `cargo test` command");
    }
}
