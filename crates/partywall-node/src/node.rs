//! The node: one loop that owns the tenants.
//!
//! It waits for everything at once (shepherds that end, conversations, signals, what is due) and never for one thing
//! alone. It may die at any moment: tenants and their shepherds go on, and the next node of the folder takes over.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use partywall_core::config::WallChoice;
use partywall_core::tenant::{Share, TenantId};
use partywall_core::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use crate::clock;
use crate::connection::{Connection, Waiting};
use crate::control::Reply;
use crate::environment::Wall;
use crate::error::Error;
use crate::folder::{Folder, Lock, TenantFolder};
use crate::process::{self, Table};
use crate::shepherd::status;
use crate::signals::{self, Arrivals};
use crate::state::{Kept, State};
use crate::supervise::{Happening, Tenant};
use crate::tenant::{TenantEvent, TenantService};
use crate::walls::{self, Fall, Site, Standing, Walls};

mod faults;
mod proofs;
mod requests;

/// Conversations at a time: a person has a few, and each `partywall up` and `partywall run` one.
const MAX_CONNECTIONS: usize = 512;

/// How long a node that ends waits for its last words to be taken.
const FAREWELL: Nanos = Nanos::from_secs(1);

/// What a node is given.
#[derive(Debug)]
pub struct Settings {
    /// Its folder; made unless it exists.
    pub folder: Folder,
    /// The program that knows `shepherd --folder F --run N`: usually this one.
    pub exe: PathBuf,
    /// The library that is preloaded into tenants.
    pub shim: PathBuf,
    /// What is to stand between tenants; `None`: what stands between those that are there.
    pub wall: Option<WallChoice>,
    /// The MPS control program, which some walls take; `None` where there is none.
    pub mps_control: Option<PathBuf>,
    /// The SMs that are left to best-effort tenants while they are squeezed, unless they say otherwise themselves; `None`: they are held.
    pub squeezed: Option<Share>,
    /// The id of the simulated GPU that it keeps; `None`: the machine's.
    pub simulated: Option<String>,
    /// When it ends.
    pub lifetime: Lifetime,
    /// Whether its folder goes with it when it ends as it should.
    pub temporary: bool,
}

/// When a node ends by itself. A signal or a request ends each of them, and its tenants with it.
#[derive(Debug)]
pub enum Lifetime {
    /// Never.
    Forever,
    /// When somebody has stopped its last tenant.
    UntilStopped,
    /// When the other end of this is closed: whoever started it is gone.
    UntilClosed(OwnedFd),
}

/// Why a node is ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// As soon as nothing runs.
    WhenStopped,
    /// Now, and the tenants stay.
    Now,
}

struct Node<'s> {
    settings: Settings,
    wall: Wall,
    walls: Walls,
    proofs: proofs::Proofs,
    service: Box<dyn TenantService>,
    say: &'s mut dyn FnMut(&str),
    tenants: Vec<Tenant>,
    next_id: u32,
    boot: String,
    connections: Vec<Connection>,
    listener: UnixListener,
    stops: Vec<Arrivals>,
    closing: Option<Closing>,
    recovery: faults::Recovery,
    /// Whether what is kept differs from what the file says.
    unsaved: bool,
    /// Whether the last attempt to write failed, so that it is said once.
    unsaved_said: bool,
    _lock: Lock,
}

/// Runs a node until it ends. `service` is what serves the tenants' processes, made once the folder is the node's;
/// `say` gets what people may want to know, a line at a time; `ready` is called once requests are answered.
///
/// # Errors
/// When it cannot start: the folder belongs to another node or cannot be used, there is no shim, or the wall cannot be built.
pub fn run(
    settings: Settings,
    service: impl FnOnce(&Folder, Standing) -> Result<Box<dyn TenantService>, Error>,
    say: &mut dyn FnMut(&str),
    ready: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    signals::survive_file_limits()?;
    settings.folder.create()?;
    let lock = settings.folder.lock()?;
    let wall = Wall::new(&settings.shim, settings.folder.tenant_socket())?;
    let boot = process::boot_id();
    let state = read_state(&settings.folder, &boot, say)?;
    let now = clock::now();
    let next_id = state.next_id;
    let kept_wall = state.wall;
    let found = |kept: Kept| {
        let folder = settings.folder.tenant(&kept.spec.name);
        Tenant::found(kept, folder, &state.boot, &boot, now)
    };
    let mut tenants: Vec<Tenant> = state.tenants.into_iter().map(found).collect();
    let busy = tenants.iter().any(|tenant| tenant.activity().is_active());
    let choice = walls::choose(settings.wall, kept_wall, busy)?;
    let control = settings.mps_control.as_deref();
    let (folder, exe, device) = (&settings.folder, &settings.exe, state.device);
    let site = Site { folder, exe, control, boot: &boot, busy, device };
    let mut walls = Walls::build(choice, &site)?;
    for tenant in &mut tenants {
        let active = tenant.activity().is_active();
        let spec = &mut tenant.kept.spec;
        match spec.sms.filter(|_| active) {
            Some(set) => walls.restore((spec.id, &spec.name), set)?,
            None => spec.sms = None,
        }
    }
    let listener = listen(&settings.folder)?;
    let daemon = walls.standing().mps;
    let service = service(&settings.folder, walls.standing())?;
    let stops = [Signal::TERM, Signal::INT, Signal::HUP].into_iter().map(Arrivals::of);
    let mut node = Node {
        wall,
        walls,
        proofs: proofs::Proofs::default(),
        service,
        say,
        tenants,
        next_id,
        boot,
        connections: Vec::new(),
        listener,
        stops: stops.collect::<Result<_, _>>()?,
        closing: None,
        recovery: faults::Recovery::new(&settings.folder, daemon),
        unsaved: true,
        unsaved_said: false,
        _lock: lock,
        settings,
    };
    node.take_over();
    node.save();
    ready()?;
    node.stay()
}

/// What the last node of the folder kept. Where that cannot be read, it is put aside and its tenants are ended: nobody
/// could say any more what they were promised.
fn read_state(folder: &Folder, boot: &str, say: &mut dyn FnMut(&str)) -> Result<State, Error> {
    match State::read(&folder.state()) {
        Ok(state) => {
            Ok(state.unwrap_or_else(|| State::new(boot.to_owned(), 0, WallChoice::Auto, Vec::new())))
        }
        Err(error) => {
            let aside = State::put_aside(&folder.state())?;
            say(&format!("{error}; it is now {}, and tenants that still run are ended", aside.display()));
            for entry in fs::read_dir(folder.path().join("tenants")).into_iter().flatten().flatten() {
                let status = status::read(&entry.path().join("shepherd.json"));
                if let Some(status) = status.filter(|status| status.boot == boot && status.end.is_none()) {
                    process::signal(&status.shepherd, Signal::TERM);
                }
            }
            Ok(State::new(boot.to_owned(), 0, WallChoice::Auto, Vec::new()))
        }
    }
}

fn listen(folder: &Folder) -> Result<UnixListener, Error> {
    for path in [folder.control_socket(), folder.tenant_socket()] {
        // Of a node that died: we hold the lock, so nobody listens there.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::file("remove", path)(error));
            }
            _ => {}
        }
    }
    let path = folder.control_socket();
    let listener = UnixListener::bind(&path).map_err(Error::file("listen on", &path))?;
    listener.set_nonblocking(true).map_err(Error::file("listen on", &path))?;
    Ok(listener)
}

impl Node<'_> {
    /// Goes on with the tenants of the node before this one.
    fn take_over(&mut self) {
        for Tenant { kept, .. } in &self.tenants {
            if let Err(error) = self.service.add_tenant(&kept.spec) {
                (self.say)(&format!("{} cannot be served: {error}", kept.spec.name));
            }
        }
    }

    fn stay(&mut self) -> Result<(), Error> {
        loop {
            let now = clock::now();
            self.tenants.iter_mut().for_each(|tenant| tenant.tick(now));
            self.look_for_faults(now);
            self.prove(now);
            self.start_what_is_due(now);
            self.settle(now);
            match self.closing {
                Some(Closing::Now) => break,
                Some(Closing::WhenStopped) if self.is_idle() => break,
                _ => {}
            }
            self.wait(now)?;
            self.accept();
            self.serve();
        }
        self.leave();
        Ok(())
    }

    fn is_idle(&self) -> bool {
        !self.tenants.iter().any(|tenant| tenant.activity().is_active())
    }

    fn start_what_is_due(&mut self, now: Nanos) {
        if self.recovery.is_closed() {
            // Whoever came to the MPS server now would be turned away.
            return;
        }
        let layout = self.layout();
        let is_due = |tenant: &Tenant| tenant.is_due(now) && !self.awaits_proof(tenant, &layout);
        let due: Vec<usize> = (0..self.tenants.len()).filter(|index| is_due(&self.tenants[*index])).collect();
        if due.is_empty() {
            return;
        }
        due.iter().for_each(|index| self.tenants[*index].begin(now));
        // Before anything is started, so that a node that comes after this one knows that it may have been.
        self.save();
        due.iter().for_each(|index| self.tenants[*index].start(&self.settings.exe, now));
        self.unsaved = true;
    }

    /// Tells others what has happened, forgets attended tenants that have ended, and answers who waited for that.
    fn settle(&mut self, now: Nanos) {
        for index in 0..self.tenants.len() {
            for happening in self.tenants[index].happened() {
                self.unsaved = true;
                self.tell(index, &happening);
                if matches!(happening, Happening::Ended { .. }) {
                    self.has_ended(index, now);
                }
            }
        }
        self.free_places();
        for folder in self.forget(|tenant| tenant.kept.attended && !tenant.activity().is_active()) {
            // It holds nothing that is worth keeping; where it cannot be removed, it is in nobody's way.
            let _ = fs::remove_dir_all(folder.path());
        }
        if self.unsaved {
            self.save();
        }
        self.answer_who_waits(now);
    }

    /// Takes their SMs back from tenants that have ended for good.
    fn free_places(&mut self) {
        let placed = self.tenants.iter_mut().filter(|tenant| tenant.kept.spec.sms.is_some());
        for tenant in placed.filter(|tenant| !tenant.activity().is_active()) {
            self.walls.free(tenant.kept.spec.id);
            tenant.kept.spec.sms = None;
            self.unsaved = true;
        }
    }

    fn tell(&mut self, index: usize, happening: &Happening) {
        let kept = &self.tenants[index].kept;
        let (id, run) = (kept.spec.id, kept.run);
        let name = &kept.spec.name;
        let event = match happening {
            Happening::Started | Happening::Found => TenantEvent::Started { run },
            Happening::Ended { .. } => TenantEvent::Ended { run },
        };
        self.service.tenant_event(id, event);
        let text = match happening {
            // Its own terminal says everything about an attended tenant.
            _ if kept.attended => return,
            Happening::Started if run == 1 => format!("{name}: started"),
            Happening::Started => format!("{name}: started again (run {run})"),
            Happening::Found => format!("{name}: found running"),
            Happening::Ended { end, starts_in: Some(wait) } => {
                format!("{name}: {end}; starts again in {wait}")
            }
            Happening::Ended { end, starts_in: None } => format!("{name}: {end}"),
        };
        (self.say)(&text);
    }

    fn save(&mut self) {
        let kept = self.tenants.iter().map(|tenant| tenant.kept.clone()).collect();
        let mut state = State::new(self.boot.clone(), self.next_id, self.walls.choice(), kept);
        state.device = self.walls.device();
        match state.write(&self.settings.folder.state()) {
            Ok(()) => (self.unsaved, self.unsaved_said) = (false, false),
            Err(error) => {
                // Tenants go on, and it is tried again whenever something happens.
                if !self.unsaved_said {
                    (self.say)(&format!("{error}; a node that is started later may not know all tenants"));
                }
                self.unsaved_said = true;
            }
        }
    }

    /// Until something happens or is due.
    fn wait(&mut self, now: Nanos) -> Result<(), Error> {
        let (closed, layout) = (self.recovery.is_closed(), self.layout());
        let waits = |tenant: &&Tenant| (closed && tenant.is_to_start()) || self.awaits_proof(tenant, &layout);
        let tenants = self.tenants.iter().filter(|tenant| !waits(tenant));
        let others = self.recovery.deadline().into_iter().chain(self.proofs.deadline(&layout));
        let due = tenants.filter_map(Tenant::deadline).chain(others).min();
        let limit = due.map(|at| at.saturating_sub(now)).map(|wait| Timespec {
            tv_sec: i64::try_from(wait.0 / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: (wait.0 % 1_000_000_000) as i64,
        });
        let mut waiting = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waiting.extend(self.stops.iter().map(|stop| PollFd::new(stop, PollFlags::IN)));
        waiting.extend(self.tenants.iter().filter_map(Tenant::fd).map(|fd| PollFd::new(fd, PollFlags::IN)));
        let connections = self.connections.iter();
        waiting.extend(connections.map(|connection| PollFd::new(connection, connection.interest())));
        waiting.extend(self.proofs.fd().map(|prover| PollFd::from_borrowed_fd(prover, PollFlags::IN)));
        let owner = match &self.settings.lifetime {
            Lifetime::UntilClosed(owner) if self.closing.is_none() => Some(owner),
            _ => None,
        };
        // Before the daemon, which is found by counting from the end.
        let signs = self.service.bell();
        waiting.extend(signs.map(|signs| PollFd::from_borrowed_fd(signs, PollFlags::IN)));
        waiting.extend(self.recovery.bell().map(|answer| PollFd::from_borrowed_fd(answer, PollFlags::IN)));
        let daemon = self.walls.fd();
        waiting.extend(daemon.map(|daemon| PollFd::from_borrowed_fd(daemon, PollFlags::IN)));
        // Nothing is ever said there: only its end counts.
        waiting.extend(owner.map(|owner| PollFd::new(owner, PollFlags::IN)));
        match poll(&mut waiting, limit.as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(()),
            Err(errno) => return Err(Error::system("waiting")(errno)),
        }
        let owner_gone = owner.is_some() && waiting.last().is_some_and(|last| !last.revents().is_empty());
        let before_last = waiting.len() - 1 - usize::from(owner.is_some());
        let fell = daemon.is_some() && !waiting[before_last].revents().is_empty();
        let ready: Vec<bool> = waiting.iter().map(|fd| !fd.revents().is_empty()).collect();
        self.look_at_shepherds(&ready[1 + self.stops.len()..]);
        if fell {
            self.rebuild();
        }
        if owner_gone || self.stops.iter_mut().fold(false, |any, stop| stop.take() | any) {
            self.end();
        }
        Ok(())
    }

    /// The wall's daemon has ended: another one serves tenants that start from now on.
    fn rebuild(&mut self) {
        let Settings { folder, exe, mps_control, .. } = &self.settings;
        let control = mps_control.as_deref();
        let site = Site { folder, exe, control, boot: &self.boot, busy: true, device: None };
        let Fall { why, rebuilt } = self.walls.fell(&site, clock::now());
        let then = if rebuilt {
            "another one has been started for tenants that start from now on"
        } else {
            "nothing new is started"
        };
        (self.say)(&format!("{why}; {then}"));
        self.proofs.forget();
        self.service.wall_fell(&why, rebuilt);
    }

    /// `ready` begins with whether each shepherd's descriptor is.
    fn look_at_shepherds(&mut self, ready: &[bool]) {
        let now = clock::now();
        let watched = self.tenants.iter_mut().filter(|tenant| tenant.fd().is_some());
        let ended = watched.zip(ready).filter(|(_, ready)| **ready);
        ended.for_each(|(tenant, _)| tenant.shepherd_ended(now));
    }

    /// Ends everything; asked again, at once.
    fn end(&mut self) {
        self.closing = Some(Closing::WhenStopped);
        self.stop_tenants(|_| true);
    }

    /// Stops these tenants. A node that dies over it leaves the rest to the next one, so that one must know.
    fn stop_tenants(&mut self, asked: impl Fn(&Tenant) -> bool) {
        let now = clock::now();
        self.tenants.iter_mut().filter(|tenant| asked(tenant)).for_each(|tenant| tenant.kept.wanted = false);
        self.save();
        self.tenants.iter_mut().filter(|tenant| asked(tenant)).for_each(|tenant| tenant.stop(now));
        self.unsaved = true;
        self.have_gone(now, |tenant| asked(tenant) && !tenant.activity().is_active());
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.connections.len() >= MAX_CONNECTIONS {
                // Dropping it tells the other side.
                continue;
            }
            let connection = match self.admit(&stream) {
                Ok(peer) => Connection::new(stream, peer),
                Err(message) => Connection::new(stream, 0).map(|mut connection| {
                    connection.reply(&Reply::Refused { message });
                    connection
                }),
            };
            self.connections.extend(connection.ok().filter(|connection| connection.peer != 0));
        }
    }

    /// The process at the other end, if it may talk to the node.
    fn admit(&self, stream: &UnixStream) -> Result<i32, String> {
        let failed = |error: Errno| format!("the system does not say who is asking: {error}");
        let peer = rustix::net::sockopt::socket_peercred(stream.as_fd()).map_err(failed)?;
        if peer.uid != rustix::process::geteuid() {
            return Err("only the user whose node this is may talk to it".to_owned());
        }
        let pid = peer.pid.as_raw_nonzero().get();
        let shepherds: BTreeSet<i32> =
            self.tenants.iter().filter_map(Tenant::shepherd).map(|shepherd| shepherd.pid).collect();
        let carried = process::token_of(pid);
        let is_tenants = carried.is_some_and(|token| self.tenants.iter().any(|t| t.kept.spec.token == token));
        if is_tenants || Table::read().is_below(pid, &shepherds) {
            return Err("a process of a tenant may not talk to the node".to_owned());
        }
        Ok(pid)
    }

    fn serve(&mut self) {
        let mut connections = std::mem::take(&mut self.connections);
        for connection in &mut connections {
            connection.serve();
            while let Some(request) = connection.request() {
                self.answer(request, connection);
            }
        }
        connections.retain(|connection| !connection.is_over());
        self.connections.append(&mut connections);
    }

    fn answer_who_waits(&mut self, now: Nanos) {
        let mut connections = std::mem::take(&mut self.connections);
        for connection in &mut connections {
            let names = match &connection.waiting {
                Some(Waiting::Stopped(names) | Waiting::Ended(names)) => names,
                Some(Waiting::Shutdown | Waiting::Proven { .. }) | None => continue,
            };
            let active = self.tenants.iter().filter(|tenant| tenant.activity().is_active());
            if active.into_iter().any(|tenant| names.contains(&tenant.kept.spec.name)) {
                continue;
            }
            let reply = match connection.waiting.take() {
                Some(Waiting::Ended(names)) => Reply::Tenants { tenants: self.reports(&names, now) },
                Some(Waiting::Stopped(names)) => Reply::Done { names },
                Some(Waiting::Shutdown | Waiting::Proven { .. }) | None => continue,
            };
            connection.reply(&reply);
        }
        self.connections.append(&mut connections);
    }

    /// Says farewell and puts away what is of no use to the next node.
    fn leave(&mut self) {
        self.stop_proving();
        let folder = &self.settings.folder;
        let stays = self.closing == Some(Closing::Now);
        for path in [folder.control_socket(), folder.tenant_socket(), folder.http()] {
            let _ = fs::remove_file(path);
        }
        if !stays {
            // Its clients have ended.
            self.walls.stop();
            let _ = fs::remove_file(folder.state());
        }
        let names: Vec<String> = self.tenants.iter().map(|tenant| tenant.kept.spec.name.clone()).collect();
        for connection in &mut self.connections {
            if connection.waiting.is_some() {
                connection.reply(&Reply::Done { names: names.clone() });
            }
        }
        let until = clock::now().saturating_add(FAREWELL);
        while !self.connections.iter().all(Connection::is_flushed) && clock::now() < until {
            let mut waiting: Vec<PollFd<'_>> =
                self.connections.iter().map(|connection| PollFd::new(connection, PollFlags::OUT)).collect();
            let _ = poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
            self.connections.iter_mut().for_each(Connection::serve);
        }
        if self.settings.temporary && !stays {
            let _ = fs::remove_dir_all(self.settings.folder.path());
        }
    }

    /// Keeps these tenants no longer, and nothing is served to them; says where their folders are.
    fn forget(&mut self, which: impl Fn(&Tenant) -> bool) -> Vec<TenantFolder> {
        let gone: Vec<Tenant> = self.tenants.extract_if(.., |tenant| which(tenant)).collect();
        self.depart(&gone);
        gone.iter().for_each(|tenant| {
            self.service.remove_tenant(tenant.kept.spec.id);
            self.walls.free(tenant.kept.spec.id);
        });
        self.unsaved |= !gone.is_empty();
        gone.into_iter().map(|tenant| tenant.folder).collect()
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.tenants.iter().position(|tenant| tenant.kept.spec.name == name)
    }

    fn id(&mut self) -> TenantId {
        let id = TenantId(self.next_id);
        self.next_id = self.next_id.wrapping_add(1);
        id
    }
}
