//! Connections of clients: taken by one, served by several threads of which each has its own.
//!
//! Every worker is a thread with an event loop of its own, and a connection stays with the worker that it was given to: nothing that belongs to
//! a request moves between cores, and no two threads wait for each other but at the router. One thread accepts for all, and gives a connection to
//! the worker that has the fewest. With a listener in each worker the system would deal by a hash of the addresses, which with few
//! connections leaves workers idle, and a second gateway could take the port unnoticed.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::clock;
use crate::config::Config;
use crate::error::Error;
use crate::relay::Body;
use crate::upstream::Pool;
use crate::wire::Wire;
use crate::worker::{Shared, Worker};

/// How long the accepting waits when the system has no descriptors left.
const BREATH: Duration = Duration::from_millis(20);

/// Threads of a worker that read long prompts.
const READERS: usize = 4;

/// How far the gateway is with stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// What is under way is served to its end.
    Draining,
    Stopped,
}

/// A connection on its way to a worker.
type Accepted = (std::net::TcpStream, OwnedSemaphorePermit);

/// A worker as the one who accepts sees it.
pub(crate) struct Post {
    sender: mpsc::UnboundedSender<Accepted>,
    connections: Arc<AtomicUsize>,
}

/// Starts a worker.
pub(crate) fn start(
    index: usize,
    shared: Arc<Shared>,
    tls: Option<TlsAcceptor>,
    phase: watch::Receiver<Phase>,
) -> Result<(Post, JoinHandle<()>), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(READERS)
        .build()
        .map_err(Error::system("starting an event loop"))?;
    // Bounded by the permits that come with the connections.
    let (sender, inbox) = mpsc::unbounded_channel();
    let connections = Arc::new(AtomicUsize::new(0));
    let post = Post { sender, connections: Arc::clone(&connections) };
    let timeouts = &shared.config.timeouts;
    let pool = Arc::new(Pool::new(timeouts.connect, timeouts.idle, timeouts.write));
    let worker = Arc::new(Worker { shared, pool });
    let thread = std::thread::Builder::new()
        .name(format!("gateway-{index}"))
        .spawn(move || {
            runtime.block_on(work(&worker, tls.as_ref(), inbox, phase, &connections));
            // Readers of prompts that nobody waits for any more are not waited for either.
            runtime.shutdown_background();
        })
        .map_err(Error::system("starting a thread"))?;
    Ok((post, thread))
}

/// Accepts until told to stop.
pub(crate) async fn accept(
    listener: TcpListener,
    posts: Vec<Post>,
    places: Arc<Semaphore>,
    mut phase: watch::Receiver<Phase>,
) {
    let accepting = async {
        loop {
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                sleep(BREATH).await;
                continue;
            };
            let Ok(stream) = stream.set_nodelay(true).and_then(|()| stream.into_std()) else { continue };
            let Some(post) = posts.iter().min_by_key(|post| post.connections.load(Ordering::Relaxed)) else {
                return;
            };
            post.connections.fetch_add(1, Ordering::Relaxed);
            let _ = post.sender.send((stream, place));
        }
    };
    tokio::select! {
        () = accepting => {}
        _ = phase.wait_for(|phase| *phase != Phase::Running) => {}
    }
}

async fn work(
    worker: &Arc<Worker>,
    tls: Option<&TlsAcceptor>,
    mut inbox: mpsc::UnboundedReceiver<Accepted>,
    mut phase: watch::Receiver<Phase>,
    connections: &Arc<AtomicUsize>,
) {
    let builder = builder(&worker.shared.config);
    let mut open = JoinSet::new();
    let mut accepting = true;
    let watched = phase.clone();
    while accepting || !open.is_empty() {
        tokio::select! {
            accepted = inbox.recv(), if accepting => match accepted {
                Some((stream, place)) => {
                    let (worker, tls, phase) = (Arc::clone(worker), tls.cloned(), watched.clone());
                    let counted = Counted::new(&worker, connections, place);
                    let builder = builder.clone();
                    open.spawn(async move {
                        serve(stream, &builder, worker, tls, phase).await;
                        drop(counted);
                    });
                }
                None => accepting = false,
            },
            Some(_) = open.join_next(), if !open.is_empty() => {}
            _ = phase.wait_for(|phase| *phase == Phase::Stopped) => return,
        }
    }
}

fn builder(config: &Config) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(clock::duration(config.timeouts.head))
        .max_headers(config.limits.headers)
        .max_header_size(usize::try_from(config.limits.head.0).unwrap_or(usize::MAX))
        .half_close(false);
    builder
}

async fn serve(
    stream: std::net::TcpStream,
    builder: &http1::Builder,
    worker: Arc<Worker>,
    tls: Option<TlsAcceptor>,
    mut phase: watch::Receiver<Phase>,
) {
    let timeouts = &worker.shared.config.timeouts;
    let (head, patience) = (clock::duration(timeouts.head), clock::duration(timeouts.write));
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    let wire = match tls {
        None => Wire::plain(stream, patience),
        Some(tls) => match timeout(head, tls.accept(stream)).await {
            Ok(Ok(stream)) => Wire::tls(stream, patience),
            _ => return,
        },
    };
    let service = service_fn(move |request: Request<Incoming>| {
        let answer: std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>> =
            Box::pin(Arc::clone(&worker).serve(request));
        answer
    });
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(wire), service));
    // What goes wrong with a connection is its client's to see.
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = phase.wait_for(|phase| *phase != Phase::Running) => connection.as_mut().graceful_shutdown(),
    }
    let _ = connection.await;
}

/// A connection, counted until it ends.
struct Counted {
    worker: Arc<Worker>,
    connections: Arc<AtomicUsize>,
    _place: OwnedSemaphorePermit,
}

impl Counted {
    fn new(worker: &Arc<Worker>, connections: &Arc<AtomicUsize>, place: OwnedSemaphorePermit) -> Self {
        worker.shared.counts.connected();
        Self { worker: Arc::clone(worker), connections: Arc::clone(connections), _place: place }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        self.worker.shared.counts.disconnected();
    }
}
