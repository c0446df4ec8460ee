//! HTTP for those who look: metrics and the JSON API. Nothing can be changed there; what changes something is on the control socket.
//!
//! Every process of the machine can connect, tenants too. So what a connection may take is bounded: their number, and how long each may live.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Sleep;

use crate::facts::NodeView;
use crate::metrics;

/// Connections at a time: a Prometheus or two, and people.
const MAX_CONNECTIONS: usize = 32;

/// How long a connection may live. Prometheus comes again by itself.
const LIFETIME: Duration = Duration::from_secs(10);

/// What OpenMetrics is called.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where the node's view comes from, each time that somebody looks.
pub type Look = Arc<dyn Fn() -> NodeView + Send + Sync>;

/// A server, which ends when it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves on `address`, whose port may be 0 for any that is free, in a thread of its own.
    ///
    /// # Errors
    /// What the system says; among others that the port is in use.
    pub fn start(address: SocketAddr, look: Look) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let listener = runtime.block_on(TcpListener::bind(address))?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            runtime.block_on(async {
                let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
                let server = axum::serve(Bounded { listener, places }, router(look));
                // Open connections end with the runtime.
                tokio::select! {
                    _ = async { server.await } => {}
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn router(look: Look) -> Router {
    let index = "Partywall\n\n/metrics          for Prometheus\n/api/v1/node      all there is to know, as JSON\n/api/v1/tenants   the tenants alone\n";
    Router::new()
        .route("/", get(move || async move { index }))
        .route(
            "/metrics",
            get(|State(look): State<Look>| async move {
                ([(CONTENT_TYPE, METRICS_TYPE)], metrics::text(look())).into_response()
            }),
        )
        .route("/api/v1/node", get(|State(look): State<Look>| async move { Json(look()) }))
        .route("/api/v1/tenants", get(|State(look): State<Look>| async move { Json(look().tenants) }))
        .with_state(look)
}

/// A listener that takes no more than so many connections at a time.
struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl axum::serve::Listener for Bounded {
    type Io = Mortal;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Mortal, SocketAddr) {
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let (stream, address) = axum::serve::Listener::accept(&mut self.listener).await;
        (Mortal { stream, end: Box::pin(tokio::time::sleep(LIFETIME)), _place: place }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that ends in any case.
struct Mortal {
    stream: TcpStream,
    end: Pin<Box<Sleep>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Mortal {
    fn is_over(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.end.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Mortal {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buffer) {
            Poll::Pending => self.is_over(context),
            done => done,
        }
    }
}

impl AsyncWrite for Mortal {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match Pin::new(&mut self.stream).poll_write(context, bytes) {
            Poll::Pending => self.is_over(context).map_ok(|()| 0),
            done => done,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use crate::facts::tests::node;

    fn start() -> Server {
        Server::start(([127, 0, 0, 1], 0).into(), Arc::new(node)).unwrap()
    }

    fn ask(server: &Server, path: &str) -> String {
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn metrics_and_views_are_served() {
        let server = start();
        let cases = [
            ("/metrics", "200 OK", "partywall_tenant_launches_total{tenant=\"detector\"} 7"),
            ("/metrics", "openmetrics-text; version=1.0.0", "# EOF"),
            ("/api/v1/node", "200 OK", "\"generation\":\"00\""),
            ("/api/v1/tenants", "application/json", "\"name\":\"detector\""),
            ("/", "200 OK", "/api/v1/node"),
            ("/stop", "404", ""),
        ];
        for (path, head, body) in cases {
            let answer = ask(&server, path);
            assert!(answer.contains(head) && answer.contains(body), "{path}: {answer}");
        }
    }

    #[test]
    fn a_port_in_use_is_an_error_and_a_server_ends_when_dropped() {
        let server = start();
        let address = server.address();
        assert!(Server::start(address, Arc::new(node)).is_err());
        let _idle = std::net::TcpStream::connect(address).unwrap();
        drop(server);
        drop(Server::start(address, Arc::new(node)).unwrap());
    }
}
