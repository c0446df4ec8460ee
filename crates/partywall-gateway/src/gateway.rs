//! The gateway as a whole: its threads, from start to stop.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use partywall_routing::admission::AdmissionSettings;
use partywall_routing::policy::{self, NAMES};
use partywall_routing::router::{Router, RouterSettings};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::admin;
use crate::body::Bodies;
use crate::clock;
use crate::config::Config;
use crate::counts::Counts;
use crate::error::Error;
use crate::fleet::Fleet;
use crate::keys::{Keys, Secret};
use crate::knowledge::Knowledge;
use crate::log::Log;
use crate::models::Models;
use crate::registry::Registry;
use crate::replica::Link;
use crate::server::{self, Phase};
use crate::tls;
use crate::worker::Shared;

/// Connections that the system keeps until they are accepted.
const BACKLOG: u32 = 4096;

/// How often lines of the access log are written.
const LOG_INTERVAL: Duration = Duration::from_millis(200);

/// The longest time between two looks at what time changes.
const LONGEST_NAP: Duration = Duration::from_secs(60);

/// Workers without a number in the configuration.
const MAX_DEFAULT_WORKERS: usize = 16;

/// A gateway, which stops at once when it is dropped.
pub struct Gateway {
    address: SocketAddr,
    admin: SocketAddr,
    shared: Arc<Shared>,
    phase: watch::Sender<Phase>,
    workers: Vec<JoinHandle<()>>,
    control: Option<JoinHandle<()>>,
    finished: Arc<Mutex<bool>>,
}

impl Gateway {
    /// Starts it. Files that the configuration names are relative to `folder`; `access` is where the access log goes.
    ///
    /// # Errors
    /// A file cannot be read or used, an address is taken, or the system gives no threads.
    pub fn start(
        config: Config,
        folder: &Path,
        access: Option<Box<dyn Write + Send>>,
    ) -> Result<Self, Error> {
        let shared = Arc::new(shared(config, folder, access)?);
        let config = &shared.config;
        let (tls, token) = read_secrets(config, folder)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Error::system("starting an event loop"))?;
        let (listener, admin_listener) = runtime.block_on(async {
            Ok::<_, Error>((listen(config.listen.address)?, listen(config.admin.address)?))
        })?;
        let of =
            |listener: &TcpListener| listener.local_addr().map_err(Error::system("asking for an address"));
        let (address, admin_address) = (of(&listener)?, of(&admin_listener)?);
        let (phase, watched) = watch::channel(Phase::Running);
        let count = config.listen.workers.unwrap_or_else(default_workers);
        let (mut posts, mut workers) = (Vec::new(), Vec::new());
        for index in 0..count {
            let (post, thread) = server::start(index, Arc::clone(&shared), tls.clone(), watched.clone())?;
            posts.push(post);
            workers.push(thread);
        }
        let places = Arc::new(Semaphore::new(config.limits.connections));
        let registry = Arc::new(Registry::new(Arc::clone(&shared), folder));
        // In the runtime, because replicas are looked after by tasks.
        runtime.block_on(async {
            let add = |replica: &crate::config::Replica| registry.add(replica.clone());
            config.replicas.iter().try_for_each(add)
        })?;
        let control = {
            let (shared, watched) = (Arc::clone(&shared), watched);
            let run = async move {
                tokio::spawn(keep_time(Arc::clone(&shared)));
                tokio::spawn(keep_log(Arc::clone(&shared)));
                tokio::spawn(admin::serve(admin_listener, Arc::clone(&shared), registry, token));
                server::accept(listener, posts, places, watched.clone()).await;
                let mut watched = watched;
                let _ = watched.wait_for(|phase| *phase == Phase::Stopped).await;
            };
            std::thread::Builder::new()
                .name("gateway-control".to_owned())
                .spawn(move || {
                    runtime.block_on(run);
                    runtime.shutdown_background();
                })
                .map_err(Error::system("starting a thread"))?
        };
        let finished = Arc::new(Mutex::new(false));
        Ok(Self { address, admin: admin_address, shared, phase, workers, control: Some(control), finished })
    }

    /// Reads the files that a configuration names, and does nothing else.
    ///
    /// # Errors
    /// As [`Gateway::start`], but for addresses and threads.
    pub fn check(config: &Config, folder: &Path) -> Result<(), Error> {
        shared(config.clone(), folder, None)?;
        read_secrets(config, folder)?;
        config.replicas.iter().try_for_each(|replica| Link::of(replica, folder).map(drop))
    }

    /// Where clients connect.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where operators connect.
    pub const fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Takes no new connection, serves what is under way to its end, or for as long as the configuration allows, and stops.
    pub fn drain(mut self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        let _ = self.phase.send(Phase::Draining);
        let workers = std::mem::take(&mut self.workers);
        let (done, all_done) = std::sync::mpsc::channel();
        let waiting = std::thread::Builder::new().name("gateway-drain".to_owned()).spawn(move || {
            for worker in workers {
                let _ = worker.join();
            }
            let _ = done.send(());
        });
        if waiting.is_ok() {
            let _ = all_done.recv_timeout(clock::duration(self.shared.config.timeouts.drain));
        }
        self.stop();
        if let Ok(waiting) = waiting {
            let _ = waiting.join();
        }
    }

    fn stop(&mut self) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut finished, true) {
            return;
        }
        let _ = self.phase.send(Phase::Stopped);
        for thread in self.workers.drain(..).chain(self.control.take()) {
            let _ = thread.join();
        }
        if let Some(log) = &self.shared.log {
            // What cannot be written is counted.
            let _ = log.flush();
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop();
    }
}

/// For TLS, and the operators' token.
fn read_secrets(config: &Config, folder: &Path) -> Result<(Option<TlsAcceptor>, Option<Secret>), Error> {
    let tls = match (&config.listen.cert, &config.listen.key) {
        (Some(cert), Some(key)) => Some(tls::acceptor(&folder.join(cert), &folder.join(key))?),
        _ => None,
    };
    let token = config.admin.token_file.as_ref().map(|path| Secret::read(&folder.join(path))).transpose()?;
    Ok((tls, token))
}

fn shared(config: Config, folder: &Path, access: Option<Box<dyn Write + Send>>) -> Result<Shared, Error> {
    let name = &config.routing.policy;
    let policy =
        policy::named(name).ok_or_else(|| Error::Policy { name: name.clone(), known: NAMES.join(", ") })?;
    let admission = AdmissionSettings {
        hold_best_effort: config.timeouts.hold,
        hold_latency_sensitive: config.timeouts.hold_latency_sensitive,
        held: config.routing.held,
        ..AdmissionSettings::default()
    };
    let router = Router::new(policy, RouterSettings { admission });
    let policy = router.policy();
    let keys = config.keys.as_ref().map(|keys| Keys::read(&folder.join(&keys.file))).transpose()?;
    let models = Models::read(&config, folder)?;
    let knowledge = Arc::new(Knowledge::new(&config.routing));
    let fleet = Arc::new(Fleet::new(router, config.breaker_settings(), knowledge));
    let bodies = Bodies::new(config.limits.bodies.0);
    let log = access.map(|sink| Arc::new(Log::new(sink)));
    let counts = Arc::new(Counts::default());
    Ok(Shared { config, models, keys, fleet, counts, log, bodies, policy, draining: AtomicBool::new(false) })
}

fn default_workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(MAX_DEFAULT_WORKERS)
}

fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // A gateway that is started again need not wait until the system has forgotten its last connections.
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    bound().map_err(|error| Error::Listen { address, error })
}

/// Does what is due: held requests whose time is over, breakers that try again.
async fn keep_time(shared: Arc<Shared>) {
    loop {
        let next = shared.fleet.tick();
        let nap = next.map_or(LONGEST_NAP, |next| clock::duration(next.saturating_sub(clock::now())));
        // Not more often than the timer can tell apart.
        let nap = nap.clamp(Duration::from_millis(1), LONGEST_NAP);
        let _ = timeout(nap, shared.fleet.changed()).await;
    }
}

async fn keep_log(shared: Arc<Shared>) {
    let Some(log) = shared.log.clone() else { return };
    loop {
        sleep(LOG_INTERVAL).await;
        let log = Arc::clone(&log);
        let _ = tokio::task::spawn_blocking(move || log.flush()).await;
    }
}
