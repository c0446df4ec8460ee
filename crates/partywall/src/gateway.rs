//! `partywall gateway`: HTTP in front of replicas, until a signal.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use partywall_gateway::config::{Config, EXAMPLE};
use partywall_gateway::error::Error;
use partywall_gateway::gateway::Gateway;
use partywall_node::error::Error as NodeError;
use partywall_node::signals::Arrivals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::cli::gateway::GatewayArguments;
use crate::error::Failure;
use crate::output;

/// How often it is looked whether all that was under way has ended.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// Serves until SIGTERM or Ctrl-C; then what is under way is served to its end, unless there is a second signal.
pub(crate) fn run(arguments: &GatewayArguments) -> Result<(), Failure> {
    if arguments.schema {
        return output::print(&Config::schema());
    }
    let Some(file) = &arguments.file else { return output::print(EXAMPLE) };
    let text = output::read_text(file)?;
    let config = Config::parse(&text, &file.display().to_string()).map_err(|error| {
        Failure::input_with_hint(error, "`partywall gateway --example` prints one that is right")
    })?;
    let folder = file.parent().map_or_else(PathBuf::new, Path::to_owned);
    if arguments.check {
        Gateway::check(&config, &folder).map_err(failure)?;
        return output::print(&format!("{} is right", file.display()));
    }
    let access = config.log.access.as_ref().map(|path| open(&folder, path)).transpose()?;
    let (address, tls) = (config.listen.address, config.listen.cert.is_some());
    raise_descriptors();
    // Before the gateway starts, so that no signal is missed.
    let mut stops =
        [Signal::INT, Signal::TERM].into_iter().map(Arrivals::of).collect::<Result<Vec<_>, NodeError>>()?;
    let gateway = Gateway::start(config, &folder, access).map_err(failure)?;
    let scheme = if tls { "https" } else { "http" };
    let port = gateway.address().port();
    say(&format!(
        "clients: {scheme}://{}:{port}; operators: http://{}",
        address.ip(),
        gateway.admin_address()
    ));
    wait(&mut stops, None)?;
    say("stopping when all that is under way has ended; once more to stop at once");
    let draining = std::thread::spawn(move || gateway.drain());
    while !draining.is_finished() {
        if wait(&mut stops, Some(&LOOK_EVERY))? {
            return Err(Failure::Exit {
                code: 130,
                message: Some("stopped before all had ended".to_owned()),
            });
        }
    }
    Ok(())
}

/// Waits for a signal, or for so long. Whether one came.
fn wait(stops: &mut [Arrivals], limit: Option<&Timespec>) -> Result<bool, Failure> {
    let mut polled: Vec<PollFd<'_>> = stops.iter().map(|stop| PollFd::new(stop, PollFlags::IN)).collect();
    match poll(&mut polled, limit) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(Failure::internal(error)),
    }
    drop(polled);
    // All of them, so that none is seen a second time.
    let came = stops.iter_mut().map(Arrivals::take).filter(|came| *came).count();
    Ok(came > 0)
}

fn open(folder: &Path, path: &Path) -> Result<Box<dyn Write + Send>, Failure> {
    if path == Path::new("-") {
        return Ok(Box::new(std::io::stdout()));
    }
    let path = folder.join(path);
    let file = OpenOptions::new().create(true).append(true).open(&path);
    let file = file.map_err(|error| Failure::Write { path, error })?;
    Ok(Box::new(file))
}

/// Each stream takes two descriptors, and the usual limit is 1024. Where it cannot be raised, connections wait.
fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Read { path, error } => Failure::Read { path, error },
        Error::Content { .. } | Error::Policy { .. } | Error::Replica { .. } | Error::NoReplica(_) => {
            Failure::input(error)
        }
        Error::Listen { .. } | Error::System { .. } => {
            Failure::Machine { message: error.to_string(), hint: None }
        }
    }
}

#[expect(clippy::print_stderr, reason = "the access log may go to standard output")]
fn say(line: &str) {
    eprintln!("partywall: {line}");
}
