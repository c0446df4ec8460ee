//! Connections to replicas: made, kept for the next request, and what a failed one says about the request.
//!
//! Each worker has its own, so nobody waits for a lock that another thread holds, and a connection stays on the thread that reads it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use partywall_core::units::Nanos;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::clock;
use crate::replica::{Link, Replica};
use crate::wire::Wire;

/// Connections that a worker keeps for one replica while they are not used.
const MAX_IDLE: usize = 512;

/// Header lines of an answer.
const MAX_HEADERS: usize = 200;

/// Bytes of an answer's head, and of what is read at once.
const MAX_BUFFER_BYTES: usize = 256 << 10;

/// What is sent to a replica.
pub(crate) type Sent = Request<Full<Bytes>>;

/// A worker's connections.
pub(crate) struct Pool {
    /// By the replica's id.
    idle: Mutex<Vec<Shelf>>,
    connect: Duration,
    keep: Nanos,
    patience: Duration,
}

/// Connections to one replica that are not used.
#[derive(Default)]
struct Shelf {
    /// Which replica: an id is given again.
    generation: u64,
    connections: Vec<Kept>,
}

struct Kept {
    sender: SendRequest<Full<Bytes>>,
    since: Nanos,
}

/// A connection in use. It is only given back when the answer has been read to its end.
pub(crate) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    generation: u64,
    id: usize,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing of the request was sent.
    NotBegun(String),
    /// The request was sent, maybe in part, and nothing came back.
    Unanswered(String),
}

impl Pool {
    pub(crate) fn new(connect: Nanos, keep: Nanos, patience: Nanos) -> Self {
        Self {
            idle: Mutex::default(),
            connect: clock::duration(connect),
            keep,
            patience: clock::duration(patience),
        }
    }

    /// Sends a request and waits for the head of the answer. `request` is kept by the caller for another try, so it is made anew by `make`.
    pub(crate) async fn send(
        &self,
        replica: &Replica,
        make: impl Fn() -> Sent,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        while let Some(mut sender) = self.take(replica) {
            // One that the replica has closed meanwhile.
            if !sender.is_ready() && sender.ready().await.is_err() {
                continue;
            }
            match self.exchange(sender, replica, make()).await {
                // It was closed before anything was written.
                Err(Failure::NotBegun(_)) => {}
                done => return done,
            }
        }
        let sender = connect(&replica.link, self.connect, self.patience).await.map_err(Failure::NotBegun)?;
        self.exchange(sender, replica, make()).await
    }

    async fn exchange(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        replica: &Replica,
        request: Sent,
    ) -> Result<(Response<Incoming>, Connection), Failure> {
        match sender.try_send_request(request).await {
            Ok(response) => {
                let connection =
                    Connection { sender, generation: replica.generation, id: replica.id.index() };
                Ok((response, connection))
            }
            Err(error) => {
                let why = said(error.error());
                Err(if error.message().is_some() { Failure::NotBegun(why) } else { Failure::Unanswered(why) })
            }
        }
    }

    fn take(&self, replica: &Replica) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let shelf = idle.get_mut(replica.id.index())?;
        if shelf.generation != replica.generation {
            return None;
        }
        let now = clock::now();
        while let Some(Kept { sender, since }) = shelf.connections.pop() {
            if now.saturating_sub(since) > self.keep {
                // Those below it are older.
                shelf.connections.clear();
                return None;
            }
            if !sender.is_closed() {
                return Some(sender);
            }
        }
        None
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn give_back(&self, connection: Connection) {
        let Connection { sender, generation, id } = connection;
        if sender.is_closed() {
            return;
        }
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() <= id {
            idle.resize_with(id + 1, Shelf::default);
        }
        let Some(shelf) = idle.get_mut(id) else { return };
        if shelf.generation < generation {
            *shelf = Shelf { generation, connections: Vec::new() };
        }
        if shelf.generation == generation && shelf.connections.len() < MAX_IDLE {
            shelf.connections.push(Kept { sender, since: clock::now() });
        }
    }
}

/// A new connection, whose other half runs as a task of its own until it ends.
pub(crate) async fn connect(
    link: &Link,
    limit: Duration,
    patience: Duration,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let connecting = async {
        let target = &link.target;
        let stream = TcpStream::connect((target.host.as_str(), target.port)).await;
        let stream = stream.map_err(|error| format!("cannot connect: {error}"))?;
        stream.set_nodelay(true).map_err(|error| format!("cannot connect: {error}"))?;
        let wire = match &link.tls {
            None => Wire::plain(stream, patience),
            Some(connector) => {
                let name = ServerName::try_from(target.host.clone())
                    .map_err(|_| "its name is none that a certificate can have".to_owned())?;
                let stream = connector.connect(name, stream).await;
                Wire::tls(stream.map_err(|error| format!("no TLS connection: {error}"))?, patience)
            }
        };
        let mut builder = Builder::new();
        builder.max_headers(MAX_HEADERS).max_buf_size(MAX_BUFFER_BYTES);
        let (sender, connection) =
            builder.handshake(TokioIo::new(wire)).await.map_err(|error| said(&error))?;
        tokio::spawn(async move {
            // Whoever uses the connection is told what goes wrong with it.
            let _ = connection.await;
        });
        Ok(sender)
    };
    timeout(limit, connecting).await.unwrap_or_else(|_| Err(format!("no connection within {limit:?}")))
}

/// An error and what caused it, in one line.
pub(crate) fn said(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}
