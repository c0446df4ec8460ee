//! The process that hosts built-in tenants: reads the line protocol, runs one thread per tenant, writes their lines.
//!
//! One thread reads the input and never waits for a tenant, so that a stop reaches a tenant in the middle of a run. A
//! tenant's thread makes its workload, says `ready`, and then does what it is told, one thing after the other. When its
//! run has ended it writes what it held back. The process ends when all its tenants have: after `exit`, after the end
//! of the input, or after they failed. A tenant that does not come back from the GPU then is given [`GRACE`].

use std::collections::BTreeMap;
use std::io::{BufRead, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use partywall_core::tenant::Class;

use super::{Clock, Verdict, Workload, WorkloadError, serve};
use crate::protocol::{
    CHECK_OK, Done, Exit, Failed, FromTenant, LINE_MAX, Line, PROTOCOL, Ready, Run, Stop, ToTenant,
};

/// How long tenants have to finish what is in flight once nobody listens any more. A request of the slowest
/// antagonist takes tens of milliseconds, behind MPS seconds.
pub const GRACE: Duration = Duration::from_secs(10);

/// What a tenant's thread works with.
pub struct Made {
    /// What it does.
    pub workload: Box<dyn Workload>,
    /// How it sees time.
    pub clock: Box<dyn Clock>,
    /// For the record, besides what the workload says.
    pub about: BTreeMap<String, String>,
}

/// Makes the tenant with an index, on the tenant's own thread.
pub type Make = dyn Fn(usize, &Arc<Output>) -> Result<Made, WorkloadError> + Send + Sync;

/// A tenant to host, as far as the protocol is concerned.
#[derive(Debug, Clone)]
pub struct Hosted {
    /// What its lines are tagged with where there are several.
    pub tag: String,
    /// For the record.
    pub class: Class,
    /// Whether its host sleeps between requests that are far apart.
    pub sleeps: bool,
}

/// Why the process does not end as it should.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A tenant failed; it has said so in the protocol, too.
    #[error("tenant {tag}: {message}")]
    Failed {
        /// The tenant.
        tag: String,
        /// What went wrong.
        message: String,
    },
    /// Something that is not of the protocol came in.
    #[error("standard input: {0}")]
    Input(String),
    /// A tenant did not come back after the end.
    #[error("a tenant is still busy {} s after the end of the input", GRACE.as_secs())]
    Hung,
}

/// Where all tenants of the process write, whole lines at a time.
pub struct Output {
    writer: Mutex<Box<dyn Write + Send>>,
}

impl Output {
    /// Writes and flushes. Without somebody who listens there is nothing left to do for a tenant, and the end of the
    /// input says so, too: errors are ignored.
    pub fn write(&self, text: &str) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writer.write_all(text.as_bytes()).and_then(|()| writer.flush());
    }
}

/// How the thread that reads the input talks to a tenant.
struct Route {
    tag: String,
    inbox: Sender<ToTenant>,
    signals: Arc<Signals>,
}

/// What must reach a tenant in the middle of a run.
#[derive(Default)]
struct Signals {
    /// The number of the run to stop, plus one.
    stop: AtomicU64,
    end: AtomicBool,
}

impl Signals {
    fn stopped(&self, run: u64) -> bool {
        self.end.load(Ordering::Relaxed) || self.stop.load(Ordering::Relaxed) == run.wrapping_add(1)
    }
}

impl Route {
    fn pass(&self, message: ToTenant) {
        match &message {
            ToTenant::Stop(Stop { run }) => {
                return self.signals.stop.store(run.wrapping_add(1), Ordering::Relaxed);
            }
            // A number that was used before may be used again.
            ToTenant::Run(_) => self.signals.stop.store(0, Ordering::Relaxed),
            ToTenant::Exit(_) => self.signals.end.store(true, Ordering::Relaxed),
        }
        // A tenant that has ended gets nothing any more.
        let _ = self.inbox.send(message);
    }
}

enum Event {
    TenantEnded(Result<(), HostError>),
    InputEnded(Result<(), HostError>),
}

/// Hosts the tenants until all have ended.
///
/// # Errors
/// The first thing that went wrong.
pub fn host(
    tenants: &[Hosted],
    make: Arc<Make>,
    mut input: impl BufRead + Send + 'static,
    output: impl Write + Send + 'static,
) -> Result<(), HostError> {
    let output = Arc::new(Output { writer: Mutex::new(Box::new(output)) });
    let (events, ended) = channel();
    let tagged = tenants.len() > 1;
    let mut routes = Vec::new();
    for (index, hosted) in tenants.iter().enumerate() {
        let (inbox, messages) = channel();
        let signals = Arc::new(Signals::default());
        routes.push(Route { tag: hosted.tag.clone(), inbox, signals: Arc::clone(&signals) });
        let tenant = Tenant { index, hosted: hosted.clone(), tagged, signals, output: Arc::clone(&output) };
        let (make, events) = (Arc::clone(&make), events.clone());
        std::thread::spawn(move || {
            let result = tenant.live(&*make, &messages);
            let _ = events.send(Event::TenantEnded(result));
        });
    }
    // Blocks in a read that nothing can interrupt, so it is not waited for.
    std::thread::spawn(move || {
        let result = pass_lines(&mut input, &routes);
        // Before the tenants hear of it: what was wrong with the input is then known when the last of them ends.
        let _ = events.send(Event::InputEnded(result));
        for route in &routes {
            route.pass(ToTenant::Exit(Exit {}));
        }
    });
    wait(tenants.len(), &ended)
}

/// Waits for all tenants, and after the end of the input no longer than [`GRACE`].
fn wait(tenants: usize, ended: &Receiver<Event>) -> Result<(), HostError> {
    let (mut left, mut listening, mut first) = (tenants, true, Ok(()));
    while left > 0 {
        let event = if listening {
            ended.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            ended.recv_timeout(GRACE)
        };
        let result = match event {
            Ok(Event::TenantEnded(result)) => {
                left -= 1;
                result
            }
            Ok(Event::InputEnded(result)) => {
                listening = false;
                result
            }
            Err(RecvTimeoutError::Timeout) => return first.and(Err(HostError::Hung)),
            // A thread that panicked sends nothing; all others have ended.
            Err(RecvTimeoutError::Disconnected) => break,
        };
        first = first.and(result);
    }
    first
}

/// Passes lines on until the input ends or is no protocol.
fn pass_lines(input: &mut impl BufRead, routes: &[Route]) -> Result<(), HostError> {
    let mut line = Vec::new();
    loop {
        line.clear();
        // One more than allowed: enough to see that it is too long.
        let mut bounded = input.by_ref().take(LINE_MAX as u64 + 2);
        match bounded.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(HostError::Input(error.to_string())),
        }
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.is_empty() {
            continue;
        }
        let Line { tenant, message } =
            Line::<ToTenant>::parse(&line).map_err(|error| HostError::Input(error.to_string()))?;
        let to: Vec<&Route> = match &tenant {
            Some(tag) => routes.iter().filter(|route| route.tag == *tag).collect(),
            None if routes.len() == 1 || matches!(message, ToTenant::Exit(_)) => routes.iter().collect(),
            None => {
                return Err(HostError::Input(
                    "this process hosts several tenants: name one in `tenant`".into(),
                ));
            }
        };
        if to.is_empty() {
            return Err(HostError::Input(format!(
                "there is no tenant `{}` here",
                tenant.unwrap_or_default()
            )));
        }
        for route in to {
            route.pass(message.clone());
        }
    }
}

/// A tenant's thread.
struct Tenant {
    index: usize,
    hosted: Hosted,
    tagged: bool,
    signals: Arc<Signals>,
    output: Arc<Output>,
}

impl Tenant {
    fn live(&self, make: &Make, messages: &Receiver<ToTenant>) -> Result<(), HostError> {
        self.serve(make, messages).map_err(|error| {
            let message = error.to_string();
            self.say(FromTenant::Failed(Failed { message: message.clone() }));
            HostError::Failed { tag: self.hosted.tag.clone(), message }
        })
    }

    fn serve(&self, make: &Make, messages: &Receiver<ToTenant>) -> Result<(), WorkloadError> {
        let Made { mut workload, clock, about } = make(self.index, &self.output)?;
        self.say(FromTenant::Ready(self.ready(&*workload, about)));
        // The sender is gone only when the input has ended.
        while let Ok(message) = messages.recv() {
            match message {
                ToTenant::Run(run) => self.run(&*clock, &mut *workload, &run)?,
                ToTenant::Stop(_) => {}
                ToTenant::Exit(_) => break,
            }
        }
        Ok(())
    }

    fn ready(&self, workload: &dyn Workload, mut about: BTreeMap<String, String>) -> Ready {
        about.extend(workload.about());
        let identity = workload.identity();
        about.insert("tenant".into(), identity.name.into());
        about.insert("class".into(), self.hosted.class.to_string());
        if let Some(policy) = identity.cache_policy {
            about.insert("cache_policy".into(), policy.name().into());
        }
        let (unit, work) = (identity.unit.to_owned(), workload.work());
        Ready { protocol: PROTOCOL, pid: std::process::id(), unit, work, about }
    }

    fn run(&self, clock: &dyn Clock, workload: &mut dyn Workload, run: &Run) -> Result<(), WorkloadError> {
        workload.begin()?;
        let requests =
            serve::run(clock, workload, run, self.hosted.sleeps, &|| self.signals.stopped(run.run))?;
        // Before the first request there are no results that could be right.
        let verdict = if requests.is_empty() { Verdict::right(0) } else { workload.check()? };
        // In pieces, so that a long run is not in memory as text all at once.
        for piece in requests.chunks(1024) {
            let lines: Vec<String> =
                piece.iter().map(|request| self.line(FromTenant::Request(*request))).collect();
            self.output.write(&lines.concat());
        }
        self.say(FromTenant::Done(Done {
            run: run.run,
            requests: requests.len() as u64,
            check: verdict.wrong.unwrap_or_else(|| CHECK_OK.to_owned()),
            checksum: Some(format!("{:016x}", verdict.checksum)),
            host_gap_ns: serve::host_gap_ns(&requests),
        }));
        Ok(())
    }

    fn line(&self, message: FromTenant) -> String {
        Line { tenant: self.tagged.then(|| self.hosted.tag.clone()), message }.write()
    }

    fn say(&self, message: FromTenant) {
        self.output.write(&self.line(message));
    }
}

#[cfg(test)]
mod tests;
