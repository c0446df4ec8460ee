//! Replicas behind listeners, until they are dropped or a fault ends them.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::api::Gate;
use crate::error::Error;
use crate::events::socket::{Endpoints, Publisher};
use crate::replica::{Place, Replica};
use crate::settings::Settings;

/// Connections of one replica; more wait to be accepted.
pub const MAX_CONNECTIONS: usize = 16_384;
/// How often free ports that follow each other are looked for.
const TRIES: u32 = 1000;
/// How long a client may take for the head of a request, and how long a connection may idle.
const HEAD_TIME: Duration = Duration::from_secs(60);

/// Where a replica is found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Address {
    /// Its number, from 0.
    pub replica: u16,
    /// Its HTTP.
    pub http: SocketAddr,
    /// Its data-parallel ranks.
    pub ranks: u16,
    /// The PUB socket of its first rank's events; those of the others are at the ports after it.
    pub kv_events: Option<String>,
    /// The ROUTER socket for replays, likewise.
    pub kv_replay: Option<String>,
}

/// Replicas that run. They end when this is dropped.
#[derive(Debug)]
pub struct Running {
    addresses: Vec<Address>,
    replicas: JoinSet<Result<(), Error>>,
}

impl Running {
    /// Starts them all, on the runtime that this is called on.
    ///
    /// # Errors
    /// When a setting cannot be used, or an address is not to be had; nothing runs then.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        let settings = Arc::new(settings);
        let mut running = Self { addresses: Vec::new(), replicas: JoinSet::new() };
        for replica in 0..settings.replicas {
            let address = settings.listen_of(replica)?;
            let listen = |error| Error::Listen { address, error };
            let listener = TcpListener::bind(address).await.map_err(listen)?;
            let http = listener.local_addr().map_err(listen)?;
            let publishers = publishers(&settings, replica).await?;
            let (kv_events, kv_replay) = publishers.first().map(Publisher::bound).unzip();
            let (ranks, kv_replay) = (settings.ranks, kv_replay.flatten());
            running.addresses.push(Address { replica, http, ranks, kv_events, kv_replay });
            running.replicas.spawn(serve(listener, settings.clone(), replica, publishers));
        }
        Ok(running)
    }

    /// Where they are found, in the order of their numbers.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Waits until the last one has ended, which only faults make them do.
    ///
    /// # Errors
    /// When one ended otherwise.
    pub async fn ended(mut self) -> Result<(), Error> {
        while let Some(ended) = self.replicas.join_next().await {
            ended.map_err(|error| Error::Runtime(error.into()))??;
        }
        Ok(())
    }
}

/// Runs replicas on this thread until faults have ended them all. `ready` is told once where they are found.
///
/// # Errors
/// As of [`Running::start`] and [`Running::ended`].
pub fn run(settings: Settings, ready: impl FnOnce(&[Address])) -> Result<(), Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Error::Runtime)?;
    runtime.block_on(async {
        let running = Running::start(settings).await?;
        ready(running.addresses());
        running.ended().await
    })
}

/// One for each rank of a replica, at ports that follow each other; none where nobody asked for events.
async fn publishers(settings: &Settings, replica: u16) -> Result<Vec<Publisher>, Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        match bound(settings, replica).await {
            // Behind a free port that the system chose there may be one that is taken.
            Err(Error::Bind { .. }) if tries < TRIES && settings.ranks > 1 => {}
            result => return result,
        }
    }
}

async fn bound(settings: &Settings, replica: u16) -> Result<Vec<Publisher>, Error> {
    let mut publishers: Vec<Publisher> = Vec::new();
    for rank in 0..settings.ranks {
        let (Some((publish, replay)), Some(events)) =
            (settings.endpoints_of(replica, rank)?, &settings.events)
        else {
            return Ok(Vec::new());
        };
        let (publish, replay) = match publishers.first().map(Publisher::bound) {
            None => (publish, replay),
            Some((first, first_replay)) => {
                (after(&first, rank), first_replay.map(|first_replay| after(&first_replay, rank)))
            }
        };
        let (topic, replays_topic) = (events.topic.clone(), events.shape.replays_topic());
        let endpoints = Endpoints { publish, replay, topic, kept: events.kept, replays_topic };
        publishers.push(Publisher::bind(&endpoints).await?);
    }
    Ok(publishers)
}

/// The endpoint so many ports behind this one.
fn after(endpoint: &str, ports: u16) -> String {
    let place = endpoint.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
    place.map_or_else(|| endpoint.to_owned(), |(host, port)| format!("{host}:{}", port.saturating_add(ports)))
}

/// One replica: its engines, and its connections, which go when the first engine does.
async fn serve(
    listener: TcpListener,
    settings: Arc<Settings>,
    replica: u16,
    publishers: Vec<Publisher>,
) -> Result<(), Error> {
    let mut engines = JoinSet::new();
    let mut commands = Vec::new();
    let mut publishers = publishers.into_iter();
    for rank in 0..settings.ranks {
        let (sender, orders) = mpsc::unbounded_channel();
        commands.push(sender);
        engines.spawn(Replica::new(settings.clone(), Place { replica, rank }, publishers.next()).run(orders));
    }
    let gate = Arc::new(Gate::new(settings, replica, commands));
    let mut connections = JoinSet::new();
    // The system has no descriptors left: the next connection is taken when one has ended.
    let mut starved = false;
    loop {
        let room = connections.len() < MAX_CONNECTIONS && !starved;
        tokio::select! {
            _ = engines.join_next() => return Ok(()),
            _ = connections.join_next(), if !connections.is_empty() => starved = false,
            accepted = listener.accept(), if room => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, gate.clone()));
                }
                // The client has gone already.
                Err(error) if matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(_) if !connections.is_empty() => starved = true,
                Err(error) => return Err(Error::Ended { replica, reason: error.to_string() }),
            },
        }
    }
}

async fn connection(stream: TcpStream, gate: Arc<Gate>) {
    // Tokens are small and due now. Where the system refuses, they come later.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let gate = gate.clone();
        async move { gate.answer(request).await }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .serve_connection(TokioIo::new(stream), service);
    // What ends a connection early is the client's doing or a fault's, and is counted where it happens.
    let _ = pin!(http).await;
}
