//! `partywall up`: the tenants of a file.

use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use partywall_core::config::{Config, Select, WallChoice};
use partywall_node::client::Client;
use partywall_node::control::{Activity, Reply, Request, TenantReport};
use partywall_node::error::Error;
use partywall_node::folder::Folder;
use partywall_node::launch::Background;
use partywall_node::log::Follower;
use partywall_node::signals::Arrivals;
use partywall_node::walls::check_built;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::{connect_or_launch, environment, folder, same_gpu, say, walls};
use crate::cli::SimulatedGpu;
use crate::cli::tenants::UpArguments;
use crate::error::Failure;
use crate::output;
use crate::simulated;

/// How often logs are looked at.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Taken from one log at a time, so that one that pours does not keep the others waiting.
const READ_BYTES: u64 = 1 << 20;

/// A line that is longer is shown in pieces.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A node that was started anew this often for one `up` is not started again.
const NODES_MAX: u32 = 10;

/// Starts the tenants of a file, and unless told otherwise stays until they have ended.
pub(crate) fn run(arguments: &UpArguments) -> Result<(), Failure> {
    let config = read(&arguments.file)?;
    // What the command line says, before or behind the command's name, goes before the file.
    if let (Select::Simulated(id), false) = (&config.gpu.select, simulated::is_entered()) {
        simulated::enter(&SimulatedGpu(id.clone()))?;
    }
    check(&config)?;
    let request = request(&config, arguments)?;
    let folder = folder(&arguments.node)?;
    // `auto` is content with whatever wall a node has.
    let wall = Some(config.gpu.wall).filter(|wall| *wall != WallChoice::Auto);
    let names: Vec<String> = config.tenants.iter().map(|tenant| tenant.name.clone()).collect();
    if arguments.detach {
        let (mut client, launched) = connect_or_launch(&folder, Background::Detached, wall)?;
        same_gpu(&mut client, &folder)?;
        if let Err(refused) = client.ask(&request) {
            if launched.is_some() {
                // Nobody else knows of it yet.
                let _ = client.ask(&Request::Shutdown { keep_tenants: false });
            }
            return Err(refused.into());
        }
        walls::say_what_is_not_kept(&config, &mut client)?;
        drop(launched);
        return output::print(&format!("started: {}", names.join(", ")));
    }
    let stops = [Signal::INT, Signal::TERM, Signal::HUP];
    let stops = stops.into_iter().map(|signal| Ok((signal, Arrivals::of(signal)?)));
    let mut foreground = Foreground {
        logs: Logs::new(&folder, &names),
        stops: stops.collect::<Result<_, Error>>()?,
        stopped_by: None,
        folder,
        names,
        request,
        config,
        wall,
        said: false,
    };
    foreground.stay()
}

fn read(file: &Path) -> Result<Config, Failure> {
    let text = output::read_text(file)?;
    Config::parse(&text, &file.display().to_string()).map_err(|error| {
        Failure::input_with_hint(error, "`partywall config --example` prints one that is right")
    })
}

/// What the file asks for and cannot be had.
fn check(config: &Config) -> Result<(), Failure> {
    check_built(config.gpu.wall)?;
    if !matches!(config.gpu.select, Select::Auto | Select::Simulated(_)) {
        return Err(Failure::input_with_hint(
            format!("`partywall up` does not select the GPU `{}`", config.gpu.select),
            "set CUDA_VISIBLE_DEVICES for it, and write select = \"auto\"",
        ));
    }
    Ok(())
}

fn request(config: &Config, arguments: &UpArguments) -> Result<Request, Failure> {
    let (mut env, not_text) = environment();
    if !not_text.is_empty() {
        say(&format!("not passed on to tenants, because it is no text: {}", not_text.join(", ")));
    }
    // So that a file can say `partywall` wherever that is installed.
    let exe = std::env::current_exe().map_err(Failure::internal)?;
    if let Some(beside) = exe.parent().and_then(Path::to_str) {
        let path = env.entry("PATH".to_owned()).or_default();
        *path = if path.is_empty() { beside.to_owned() } else { format!("{path}:{beside}") };
    }
    let read = |error| Failure::Read { path: arguments.file.clone(), error };
    // A file means the same wherever it is called from.
    let file = std::path::absolute(&arguments.file).map_err(read)?;
    let directory = file.parent().unwrap_or(Path::new("/")).to_owned();
    Ok(Request::Up {
        tenants: config.tenants.clone(),
        wall: config.gpu.wall,
        env,
        directory,
        grace: arguments.grace,
    })
}

struct Foreground {
    folder: Folder,
    names: Vec<String>,
    request: Request,
    config: Config,
    wall: Option<WallChoice>,
    /// Whether it was said what is not kept.
    said: bool,
    logs: Logs,
    stops: Vec<(Signal, Arrivals)>,
    stopped_by: Option<Signal>,
}

impl Foreground {
    /// Until every tenant has ended for good. A node that dies is replaced: its tenants are still there.
    fn stay(&mut self) -> Result<(), Failure> {
        for _ in 0..NODES_MAX {
            let (mut client, launched) = connect_or_launch(&self.folder, Background::Owned, self.wall)?;
            let ended = self.start(&mut client).and_then(|()| self.follow(&mut client));
            match ended {
                Err(Failure::NodeGone(_)) => {
                    say("the node has ended; its tenants go on, and another one takes over");
                    match launched {
                        Some(launched) => launched.end(),
                        // It may still be seen listening for a moment: its conversations end first.
                        None => drop(poll(&mut [], Some(&LOOK_EVERY))),
                    }
                }
                ended => {
                    if let Some(launched) = launched {
                        launched.end();
                    }
                    return self.outcome(&ended?);
                }
            }
        }
        Err(Failure::machine("the node ends again and again", None))
    }

    fn start(&mut self, client: &mut Client) -> Result<(), Failure> {
        same_gpu(client, &self.folder)?;
        if self.stopped_by.is_none() {
            client.ask(&self.request)?;
            if !std::mem::replace(&mut self.said, true) {
                walls::say_what_is_not_kept(&self.config, client)?;
            }
        }
        Ok(client.send(&Request::Wait { names: self.names.clone() })?)
    }

    /// Shows logs until the node answers that all has ended; says how.
    fn follow(&mut self, client: &mut Client) -> Result<Vec<TenantReport>, Failure> {
        loop {
            let mut waiting = vec![PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
            waiting.extend(self.stops.iter().map(|(_, stop)| PollFd::new(stop, PollFlags::IN)));
            // An interrupted wait is looked at like one that came to its end.
            let _ = poll(&mut waiting, Some(&LOOK_EVERY));
            let answered = !waiting[0].revents().is_empty();
            for index in 0..self.stops.len() {
                if self.stops[index].1.take() {
                    self.stop(self.stops[index].0)?;
                }
            }
            if answered {
                let reply = client.receive()?;
                while self.logs.show()? {}
                return match reply {
                    Reply::Tenants { tenants } => Ok(tenants),
                    reply => Err(client.unexpected(&reply).into()),
                };
            }
            self.logs.show()?;
        }
    }

    /// Asks the node to stop our tenants; the second time, at once.
    fn stop(&mut self, signal: Signal) -> Result<(), Failure> {
        let again = self.stopped_by.replace(signal).is_some();
        say(if again { "stopping at once" } else { "stopping; once more to stop at once" });
        // In a conversation of its own: the other one waits for the end.
        let mut client = match Client::connect(&self.folder) {
            Err(Error::NoNode { .. }) => return Ok(()),
            client => client?,
        };
        let reports = match client.ask(&Request::Ps)? {
            Reply::Tenants { tenants } => tenants,
            reply => return Err(client.unexpected(&reply).into()),
        };
        let there = |name: &String| reports.iter().any(|report| report.name == *name);
        let names: Vec<String> = self.names.iter().filter(|name| there(name)).cloned().collect();
        if !names.is_empty() {
            client.send(&Request::Stop { names })?;
        }
        Ok(())
    }

    /// Ends as the first tenant that did not end well; one that was stopped did.
    fn outcome(&self, tenants: &[TenantReport]) -> Result<(), Failure> {
        match self.stopped_by {
            Some(Signal::INT) => return Err(Failure::Interrupted),
            Some(signal) => {
                let code = u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX);
                return Err(Failure::Exit { code, message: None });
            }
            None => {}
        }
        let failed = tenants.iter().find(|tenant| tenant.activity == Activity::Failed);
        match failed.and_then(|tenant| tenant.exit_code) {
            Some(code) => Err(Failure::Exit { code, message: None }),
            None => Ok(()),
        }
    }
}

/// The tenants' logs as one, each line behind its tenant's name.
struct Logs(Vec<Shown>);

struct Shown {
    prefix: String,
    follower: Follower,
    line: Vec<u8>,
}

impl Logs {
    /// From what is written from now on.
    fn new(folder: &Folder, names: &[String]) -> Self {
        let width = names.iter().map(String::len).max().unwrap_or(0);
        let shown = names.iter().map(|name| Shown {
            prefix: format!("{name:width$} | "),
            follower: Follower::from_now(folder.tenant(name)),
            line: Vec::new(),
        });
        Self(shown.collect())
    }

    /// Shows what has been written; whether there may be more.
    fn show(&mut self) -> Result<bool, Failure> {
        let mut more = false;
        let mut out = std::io::stdout().lock();
        for shown in &mut self.0 {
            let read = shown.follower.read(&mut shown.line, READ_BYTES)?;
            more |= read > 0;
            while let Some(end) = line_end(&shown.line, read == 0) {
                let line: Vec<u8> = shown.line.drain(..end).collect();
                out.write_all(shown.prefix.as_bytes())?;
                out.write_all(line.strip_suffix(b"\n").unwrap_or(&line))?;
                out.write_all(b"\n")?;
            }
        }
        out.flush()?;
        Ok(more)
    }
}

/// Where the first line ends. What has no end is not shown before it is long or, if `quiet`, nothing follows it.
fn line_end(text: &[u8], quiet: bool) -> Option<usize> {
    match text.iter().position(|byte| *byte == b'\n') {
        Some(end) => Some(end + 1),
        None if text.len() > LINE_BYTES_MAX || quiet && !text.is_empty() => Some(text.len()),
        None => None,
    }
}
