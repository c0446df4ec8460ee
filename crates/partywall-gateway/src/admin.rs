//! What operators see and do: metrics, facts, replicas that come, go and drain. On an address of its own.
//!
//! A browser on the same machine can be made to send requests here by any page that it shows. So what changes something is only taken from
//! who shows the token, or, without one, with a content type that pages cannot send unasked and under a name that is not somebody else's.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderMap};
use hyper::http::{Method, StatusCode};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use partywall_core::tenant::Class;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::answer::{Problem, json, typed};
use crate::config;
use crate::error::Error;
use crate::events::{self, FeedView};
use crate::fleet::ReplicaView;
use crate::keys::Secret;
use crate::metrics;
use crate::registry::Registry;
use crate::relay::Body;
use crate::wire::Wire;
use crate::worker::Shared;

/// Connections at a time: a Prometheus or two, and people.
const MAX_CONNECTIONS: usize = 64;

/// How long a connection may live.
const LIFETIME: Duration = Duration::from_secs(30);

/// Bytes of what an operator sends.
const MAX_BODY_BYTES: usize = 64 << 10;

const INDEX: &str = "Partywall, the gateway

GET    /metrics                          for Prometheus
GET    /health                           whether it is there
GET    /api/v1/gateway                   what it is doing
GET    /api/v1/replicas                  the replicas and how they are
POST   /api/v1/replicas                  take one: what stands in [[replica]], as JSON
POST   /api/v1/replicas/NAME/drain       no more requests for it
POST   /api/v1/replicas/NAME/resume      requests again
DELETE /api/v1/replicas/NAME             forget it; what is under way goes on
";

/// What is said of a replica.
#[derive(Serialize)]
struct ReplicaFacts<'a> {
    name: &'a str,
    url: &'a str,
    models: &'a [String],
    up: bool,
    available: bool,
    draining: bool,
    breaker: &'static str,
    gpu_speed: f64,
    gpu_squeezed: bool,
    gpu_paused: bool,
    under_way: u32,
    sent: u64,
    failed: u64,
    prefill_tokens: u64,
    /// How its feeds of KV events are, by model and rank.
    kv_events: Vec<FeedFacts>,
}

/// What a feed of KV events is about, how it is, and how many blocks its engine holds.
#[derive(Serialize)]
struct FeedFacts {
    model: String,
    rank: u32,
    state: &'static str,
    blocks: usize,
}

struct Admin {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    token: Option<Secret>,
}

/// Serves until the runtime ends.
pub(crate) async fn serve(
    listener: TcpListener,
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    token: Option<Secret>,
) {
    let admin = Arc::new(Admin { shared, registry, token });
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(20)).await;
            continue;
        };
        let admin = Arc::clone(&admin);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let admin = Arc::clone(&admin);
                async move { Ok::<_, Infallible>(admin.answer(request).await) }
            });
            let io = TokioIo::new(Wire::plain(stream, LIFETIME));
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(LIFETIME);
            let _ = timeout(LIFETIME, builder.serve_connection(io, service)).await;
            drop(place);
        });
    }
}

impl Admin {
    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        self.done(request).await.unwrap_or_else(|problem| problem.response())
    }

    async fn done(&self, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        let (parts, body) = request.into_parts();
        let path: Vec<&str> = parts.uri.path().trim_start_matches('/').split('/').collect();
        let changes = parts.method != Method::GET && parts.method != Method::HEAD;
        if changes {
            self.may_change(&parts.headers, &parts.method)?;
        }
        match (parts.method.as_str(), path.as_slice()) {
            ("GET" | "HEAD", [""]) => Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", INDEX.into())),
            ("GET" | "HEAD", ["health"]) => {
                Ok(json(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}")))
            }
            ("GET" | "HEAD", ["metrics"]) => {
                Ok(typed(StatusCode::OK, metrics::CONTENT_TYPE, metrics::text(self.view()).into()))
            }
            ("GET" | "HEAD", ["api", "v1", "gateway"]) => Ok(self.facts()),
            ("GET" | "HEAD", ["api", "v1", "replicas"]) => Ok(self.replicas()),
            ("POST", ["api", "v1", "replicas"]) => {
                let body = Limited::new(body, MAX_BODY_BYTES).collect().await;
                let body =
                    body.map_err(|_| Problem::bad("the body cannot be read, or is larger than 64 KiB"))?;
                self.take(&body.to_bytes())
            }
            ("POST", ["api", "v1", "replicas", name, "drain"]) => {
                self.did(self.shared.fleet.drain(name, true))
            }
            ("POST", ["api", "v1", "replicas", name, "resume"]) => {
                self.did(self.shared.fleet.drain(name, false))
            }
            ("DELETE", ["api", "v1", "replicas", name]) => self.did(self.registry.remove(name)),
            _ => Err(Problem::new(
                StatusCode::NOT_FOUND,
                "no_such_path",
                "there is nothing at this path; / lists what there is",
            )),
        }
    }

    fn may_change(&self, headers: &HeaderMap, method: &Method) -> Result<(), Problem> {
        let refused = |status, message| Err(Problem::new(status, "forbidden", message));
        if let Some(token) = &self.token {
            let shown =
                headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
            return if shown.is_some_and(|shown| token.is(shown)) {
                Ok(())
            } else {
                refused(
                    StatusCode::UNAUTHORIZED,
                    "the admin token is needed; send it as `Authorization: Bearer TOKEN`",
                )
            };
        }
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_matches(['[', ']']);
        if host != "localhost" && host.parse::<IpAddr>().is_err() {
            return refused(StatusCode::FORBIDDEN, "address this by its number or as localhost");
        }
        let kind = headers.get(CONTENT_TYPE).map(|kind| kind.as_bytes());
        if *method == Method::POST && kind != Some(b"application/json") {
            return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "send `content-type: application/json`");
        }
        Ok(())
    }

    fn take(&self, body: &[u8]) -> Result<Response<Body>, Problem> {
        let replica: config::Replica = serde_json::from_slice(body)
            .map_err(|error| Problem::bad(format!("this is no replica: {error}")))?;
        if replica.key_file.is_some() || replica.ca_file.is_some() {
            // Whoever may add a replica may not thereby have any file of this machine sent to it.
            return Err(Problem::bad("key-file and ca-file are only taken from the configuration"));
        }
        self.did(self.registry.add(replica))
    }

    fn did(&self, result: Result<(), Error>) -> Result<Response<Body>, Problem> {
        match result {
            Ok(()) => Ok(self.replicas()),
            Err(error @ Error::NoReplica(_)) => {
                Err(Problem::new(StatusCode::NOT_FOUND, "no_such_replica", error.to_string()))
            }
            Err(error) => Err(Problem::bad(error.to_string())),
        }
    }

    fn view(&self) -> metrics::View {
        let shared = &self.shared;
        let held =
            [Class::LatencySensitive, Class::BestEffort].map(|class| (class, shared.fleet.held(class)));
        let mut counts = shared.counts.snapshot();
        counts.body_bytes = shared.bodies.used();
        let replicas = shared.fleet.views();
        let feeds = replicas.iter().flat_map(|view| {
            let feeds = self.registry.feeds.views(view.replica.id);
            feeds.into_iter().map(|feed| (view.replica.name().to_owned(), feed))
        });
        let feeds = feeds.collect();
        metrics::View {
            version: env!("CARGO_PKG_VERSION"),
            policy: shared.policy,
            counts,
            replicas,
            feeds,
            held,
            log_dropped: shared.log.as_ref().map_or(0, |log| log.dropped()),
            known_blocks: shared.fleet.knowledge.blocks(),
        }
    }

    fn facts(&self) -> Response<Body> {
        let view = self.view();
        let facts = serde_json::json!({
            "version": view.version,
            "policy": view.policy,
            "connections": view.counts.connections,
            "under_way": view.counts.under_way,
            "held_latency_sensitive": view.held[0].1,
            "held_best_effort": view.held[1].1,
            "body_bytes": view.counts.body_bytes,
            "retries": view.counts.retries,
            "known_blocks": view.known_blocks,
        });
        json(StatusCode::OK, facts.to_string().into())
    }

    fn replicas(&self) -> Response<Body> {
        let views = self.shared.fleet.views();
        let facts: Vec<ReplicaFacts<'_>> = views.iter().map(|view| self.replica_facts(view)).collect();
        json(StatusCode::OK, serde_json::to_vec(&facts).unwrap_or_default().into())
    }

    fn replica_facts<'v>(&self, view: &'v ReplicaView) -> ReplicaFacts<'v> {
        let config = &view.replica.config;
        let feeds = self.registry.feeds.views(view.replica.id);
        ReplicaFacts {
            name: &config.name,
            url: &config.url,
            models: &config.models,
            up: view.up,
            available: view.available,
            draining: view.draining,
            breaker: view.breaker.name(),
            gpu_speed: view.gpu.speed,
            gpu_squeezed: view.gpu.squeezed,
            gpu_paused: view.gpu.paused,
            under_way: view.under_way,
            sent: view.sent,
            failed: view.failed,
            prefill_tokens: view.load.prefill_tokens(),
            kv_events: feeds.iter().map(feed_facts).collect(),
        }
    }
}

fn feed_facts(feed: &FeedView) -> FeedFacts {
    let (model, state) = (feed.about.to_string(), events::name(feed.health));
    FeedFacts { model, rank: feed.rank, state, blocks: feed.blocks }
}
