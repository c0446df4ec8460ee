//! Who is there: tenants' processes, their connections and pages, and what they are told.
//!
//! One thread (`serve`) waits for everything that processes send, and for their end. A process belongs to the tenant whose token it
//! says; it gets a page of its own, a bell, and a lease. It is gone when the kernel says so (its pidfd): the end of its connection
//! alone means only that it does not speak any more, and what it holds stays counted until it ends, starts another program, or is seen to hold
//! nothing.
//!
//! # Who harms whom
//!
//! A tenant may send anything, any number of times, or nothing. Frames beyond a budget wait, a tenant's processes sharing one. Frames that
//! make no sense end the connection and are marked on the tenant. Nothing here waits for a process: who does not take its answers is
//! taken as not speaking any more. Pages are read as `claims`.

mod admit;
mod attachment;
mod claims;
mod contexts;
mod member;
mod promises;
mod requests;
mod serve;
mod signs;
mod slices;
mod state;
mod steering;
mod tenant;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use partywall_core::config::WallChoice;
use partywall_core::tenant::TenantId;
use partywall_core::units::Bytes;
use partywall_shim_api::socket::Listener;

use crate::arbiter::squeeze::LaunchOptions;
use crate::arbiter::{Arbiter, CopyOptions};
use crate::facts::NodeView;
use crate::leases::{self, Leases};
use crate::tenant::{FaultFacts, Place, Sign, TenantEvent, TenantFacts, TenantService, TenantSpec};
use crate::watch::{MemoryWatch, Watcher};
use attachment::Attaching;
use contexts::Measuring;
use promises::Promises;
use state::State;

#[cfg(test)]
mod tests;

/// Processes that a tenant may have at a time: a server that forks hundreds of workers, each with a context of half a gigabyte, does
/// not fit any GPU.
pub const MAX_PROCESSES: usize = 256;

/// What a context takes where it cannot be measured, until one was: an estimate from what H200 and A100 show for a process that has
/// loaded a framework, 0.5 GB give or take.
pub const CONTEXT_ESTIMATE: Bytes = Bytes::from_mib(512);

/// The GPU and how it is shared.
pub struct Options {
    /// All memory of the GPU.
    pub memory: Bytes,
    /// What no tenant gets: see `memory_ledger`.
    pub reserve: Bytes,
    /// Whether best-effort limits may exceed what there is.
    pub overcommit: bool,
    /// What a context takes where it cannot be measured, until one was.
    pub context_estimate: Bytes,
    /// How copies are decided about.
    pub copies: CopyOptions,
    /// How launches are.
    pub launches: LaunchOptions,
    /// What shows the memory of processes; or why nothing does.
    pub watch: Result<Box<dyn MemoryWatch>, String>,
    /// What stands between tenants besides.
    pub wall: WallChoice,
    /// What shows the clients of the node's MPS daemon, where the wall takes one: processes of tenants have to be among them.
    pub clients: Option<ClientWatch>,
    /// Who gets a line when a promise is broken and when it is kept again.
    pub news: Option<Sender<String>>,
}

/// Asks for the process ids of an MPS daemon's clients, or says in a line why they cannot be told.
pub type ClientWatch = Box<dyn FnMut() -> Result<BTreeSet<u32>, String> + Send>;

impl Options {
    /// A GPU with this much memory, everything else as usual.
    pub fn new(memory: Bytes, watch: Result<Box<dyn MemoryWatch>, String>) -> Self {
        Self {
            memory,
            // The driver's own, the MPS server's, and holes. An estimate: an idle H200 shows 0.6 GB in use.
            reserve: Bytes(memory.0 / 64),
            overcommit: false,
            context_estimate: CONTEXT_ESTIMATE,
            copies: CopyOptions::default(),
            launches: LaunchOptions::default(),
            watch,
            wall: WallChoice::Auto,
            clients: None,
            news: None,
        }
    }
}

/// The registry. Its thread ends when it is dropped; processes then go on by themselves.
#[derive(Debug)]
pub struct Registry {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread and those who ask share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Readable while there are signs.
    bell: Arc<OwnedFd>,
}

impl Shared {
    /// A thread that panicked here left a consistent state behind, or the node is lost in any case.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For those who only look.
#[derive(Debug, Clone)]
pub struct Reader(Arc<Shared>);

impl Reader {
    /// How everything is now.
    pub fn view(&self) -> NodeView {
        self.0.lock().view()
    }
}

impl Registry {
    /// Listens on `socket`, which must not exist, and serves who comes.
    ///
    /// # Errors
    /// When the options make no sense, and what the system says.
    pub fn start(socket: &Path, options: Options) -> io::Result<Self> {
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let book = leases::Config {
            whole: options.memory,
            reserve: options.reserve,
            overcommit: options.overcommit,
        };
        let leases = Leases::new(book).map_err(invalid)?;
        let arbiter = Arbiter::start(options.copies.scheduler, options.launches)?;
        let (watcher, first) = match options.watch {
            Ok(watch) => {
                let (watcher, first) = Watcher::start(watch)?;
                (Some(watcher), first.unwrap_or_else(|| Err("the driver does not answer".to_owned())))
            }
            Err(reason) => (None, Err(reason)),
        };
        let mut state = State::new(
            book,
            options.copies,
            options.launches,
            leases,
            arbiter,
            Measuring::new(watcher, first, options.context_estimate),
            Attaching::new(options.wall, options.clients)?,
        )?;
        state.promises = Promises::new(options.news, &options.launches);
        let listener = Listener::bind(socket).map_err(io::Error::other)?;
        let bell = state.signs.bell();
        let shared = Arc::new(Shared { state: Mutex::new(state), bell });
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || serve::run(&of_thread, &listener))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Forgets how long resizes have taken so far: the longest is then that of those that come.
    pub fn forget_resizes(&self) {
        self.shared.lock().forget_resizes();
    }

    /// For those who only look.
    pub fn reader(&self) -> Reader {
        Reader(Arc::clone(&self.shared))
    }
}

impl TenantService for Registry {
    fn add_tenant(&mut self, spec: &TenantSpec) -> io::Result<()> {
        self.shared
            .lock()
            .add_tenant(spec)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))
    }

    fn add_probe(&mut self, spec: &TenantSpec) -> io::Result<()> {
        self.add_tenant(spec)?;
        if let Some(tenant) = self.shared.lock().tenants.get_mut(&spec.id) {
            tenant.is_probe = true;
        }
        Ok(())
    }

    fn sms_problem(&mut self, id: TenantId, problem: Option<String>) {
        if let Some(tenant) = self.shared.lock().tenants.get_mut(&id) {
            tenant.sms_problem = problem;
        }
    }

    fn confine(&mut self, id: TenantId, place: Place) {
        if let Some(tenant) = self.shared.lock().tenants.get_mut(&id) {
            (tenant.spec.sms, tenant.spec.squeezed_sms) = (place.sms, place.squeezed);
        }
    }

    fn wall_fell(&mut self, why: &str, rebuilt: bool) {
        self.shared.lock().wall_fell(why, rebuilt);
    }

    fn tenant_event(&mut self, id: TenantId, event: TenantEvent) {
        self.shared.lock().tenant_event(id, event);
    }

    fn remove_tenant(&mut self, id: TenantId) {
        self.shared.lock().remove_tenant(id);
    }

    fn signs(&mut self) -> Vec<(TenantId, Sign)> {
        self.shared.lock().signs.take()
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.bell.as_fd())
    }

    fn behind_mps(&self) -> BTreeMap<TenantId, BTreeSet<u32>> {
        self.shared.lock().behind_mps()
    }

    fn launched(&self) -> BTreeMap<TenantId, BTreeMap<u64, u64>> {
        self.shared.lock().launched()
    }

    fn faulted(&mut self, facts: FaultFacts) {
        self.shared.lock().faults = facts;
    }

    fn snapshot(&self) -> BTreeMap<TenantId, TenantFacts> {
        let view = self.shared.lock().view();
        view.tenants.iter().map(|tenant| (tenant.id, tenant.facts())).collect()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.shared.lock().stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
