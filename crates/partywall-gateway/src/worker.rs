//! The way of a request: who asks, for what, where it goes, what comes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap,
    HeaderValue, TRANSFER_ENCODING,
};
use hyper::http::{Method, StatusCode, Uri, Version};
use hyper::{Request, Response};
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::replica::ReplicaId;
use partywall_routing::router::{Arrival, Refusal};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use crate::answer::{Answer, Problem, json};
use crate::body::Bodies;
use crate::clock;
use crate::config::Config;
use crate::counts::Counts;
use crate::fields::Fields;
use crate::fleet::{Decision, Fleet, Outcome, Ticket, Told};
use crate::headers::{self, API_KEY, CLASS, DEADLINE, DECISION, REQUEST_ID, SESSION};
use crate::keys::{Holder, Keys};
use crate::log::Log;
use crate::models::{Models, Named, Prompt};
use crate::record::Record;
use crate::relay::{Body, Flow, Relay};
use crate::replica::Replica;
use crate::route::{Route, Shape, unknown_model};
use crate::scan::UsageScan;
use crate::upstream::{Connection, Failure, Pool, Sent};

/// Bytes of a body from which on its prompt is read on another thread where it takes a tokenizer, about a megabyte a second and core, so that
/// the streams of this worker go on.
const LONG_PROMPT_BYTES: usize = 16 << 10;

/// Characters of a request's name that a client gave it.
const MAX_REQUEST_ID: usize = 128;

/// Bytes of a prompt that make about a token, where nothing counts them.
pub(crate) const BYTES_PER_TOKEN: u64 = 4;

/// A worker's connections, as what is under way holds them.
pub(crate) type Pooled = Arc<Pool>;

/// What all workers share.
pub(crate) struct Shared {
    pub config: Config,
    pub models: Models,
    pub keys: Option<Keys>,
    pub fleet: Arc<Fleet>,
    pub counts: Arc<Counts>,
    pub log: Option<Arc<Log>>,
    pub bodies: Bodies,
    pub policy: &'static str,
    /// Requests that are under way already are served to their end; new connections are not taken.
    pub draining: AtomicBool,
}

/// One of the threads that serve.
pub(crate) struct Worker {
    pub shared: Arc<Shared>,
    pub pool: Pooled,
}

/// One request, until its answer is on its way.
struct Case<'w> {
    worker: &'w Worker,
    record: Option<Record>,
}

/// What is to be sent, and what is known of it.
struct Plan {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
    /// Its share of what all bodies may take.
    _kept: Option<OwnedSemaphorePermit>,
    /// Whether the answer is the OpenAI API's.
    inference: bool,
    class: Class,
    model: usize,
    adapter: Option<usize>,
    /// The answer comes when all of it is there.
    whole: bool,
    prompt: Prompt,
    output_tokens: Option<u32>,
    affinity: Option<u64>,
    deadline: Option<Nanos>,
}

/// A try that came to nothing.
struct Lost {
    problem: Problem,
    replica: ReplicaId,
    /// Whether it may be tried again.
    again: bool,
}

impl Worker {
    /// Answers a request.
    pub(crate) async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Answer {
        let shared = &self.shared;
        let record = Record::new(shared.fleet.name().0, Arc::clone(&shared.counts), shared.log.clone());
        let mut case = Case { worker: &self, record: Some(record) };
        let problem = match case.run(request).await {
            Ok(response) => return Ok(response),
            Err(problem) => problem,
        };
        let mut response = problem.response();
        if let Some(mut record) = case.record.take() {
            record.status = Some(problem.status);
            mark(&mut response, &record, shared.policy);
            record.end(problem.code);
        }
        Ok(response)
    }
}

/// Says where the request went.
fn mark(response: &mut Response<Body>, record: &Record, policy: &str) {
    let headers = response.headers_mut();
    if let Some(decision) = record.header(policy).and_then(|text| HeaderValue::from_str(&text).ok()) {
        headers.insert(DECISION, decision);
    }
    if let Ok(id) = HeaderValue::from_str(&record.request_id) {
        headers.insert(REQUEST_ID, id);
    }
}

impl Case<'_> {
    fn record(&mut self) -> &mut Record {
        let shared = &self.worker.shared;
        // It is only taken when the answer is on its way, and nothing comes after that.
        self.record.get_or_insert_with(|| Record::new(0, Arc::clone(&shared.counts), None))
    }

    async fn run(&mut self, request: Request<Incoming>) -> Result<Response<Body>, Problem> {
        let shared = Arc::clone(&self.worker.shared);
        let (mut parts, body) = request.into_parts();
        let id = request_id(&parts.headers, self.record().id);
        let record = self.record();
        record.request_id = id;
        record.method = parts.method.as_str().to_owned();
        record.path = parts.uri.path().to_owned();
        if parts.uri.authority().is_some() {
            return Err(Problem::bad(
                "this is no proxy: the request line has to name a path and nothing else",
            ));
        }
        let route = Route::of(&shared.config, &parts.method, parts.uri.path(), parts.uri.query())?;
        if route == Route::Health {
            return Ok(self.own(health(&shared)));
        }
        let holder = self.holder(&shared, &parts.headers)?;
        let record = self.record();
        record.key = holder.as_ref().map(|holder| holder.name.clone());
        if shared.counts.under_way() > shared.config.limits.requests as u64 {
            return Err(Problem::busy("too_many_requests", "too many requests are under way; send it later"));
        }
        if let Route::Models(name) = &route {
            return match shared.models.listed(name.as_deref()) {
                Some(list) => Ok(self.own(json(StatusCode::OK, list))),
                None => Err(unknown_model(name.as_deref().unwrap_or_default())),
            };
        }
        let asked = asked(&parts.headers)?;
        let deadline = deadline(&parts.headers)?.or(shared.config.timeouts.deadline);
        let (body, kept) = shared.bodies.read(body, &shared.config).await?;
        self.record().in_bytes = body.len() as u64;
        let session = parts.headers.get(SESSION).map(|value| xxh3_64(value.as_bytes()));
        headers::strip_request(&mut parts.headers, shared.keys.is_some());
        let id = HeaderValue::from_str(&self.record().request_id);
        id.into_iter().for_each(|id| drop(parts.headers.insert(REQUEST_ID, id)));
        let inference = matches!(route, Route::Inference(_));
        let mut plan = Plan {
            method: parts.method,
            uri: parts.uri,
            headers: parts.headers,
            body,
            _kept: kept,
            inference,
            class: Class::LatencySensitive,
            model: 0,
            adapter: None,
            whole: true,
            prompt: Prompt::default(),
            output_tokens: None,
            affinity: session,
            deadline: deadline.map(|time| self.record().arrived().saturating_add(time)),
        };
        match route {
            Route::Inference(shape) => self.read(&shared, &mut plan, shape).await?,
            Route::Passed { model, path } => {
                let wrong = |_| Problem::bad("the path cannot be passed on");
                plan.uri = path.parse().map_err(wrong)?;
                plan.model = model;
                plan.prompt.tokens = (plan.body.len() as u64 / BYTES_PER_TOKEN).max(1);
            }
            Route::Models(_) | Route::Health => {}
        }
        let model = &shared.config.models[plan.model];
        plan.class = class(asked, holder.as_ref(), model.class.unwrap_or(shared.config.routing.class));
        let record = self.record();
        record.class = Some(plan.class);
        if record.model.is_none() {
            record.model = Some(model.name.clone());
        }
        record.blocks = plan.prompt.prefixes.len();
        record.block_tokens = shared.config.models[shared.config.base(plan.model)].block_tokens;
        record.input_tokens = plan.prompt.tokens;
        self.answered(&shared, plan).await
    }

    /// An answer of the gateway's own.
    fn own(&mut self, response: Response<Body>) -> Response<Body> {
        let record = self.record();
        record.status = Some(response.status());
        record.end("complete");
        response
    }

    /// Who asks.
    fn holder(&self, shared: &Shared, headers: &HeaderMap) -> Result<Option<Holder>, Problem> {
        let Some(keys) = &shared.keys else { return Ok(None) };
        let bearer = headers.get(AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key.trim_ascii())
        });
        let shown = bearer.or_else(|| headers.get(API_KEY).map(HeaderValue::as_bytes));
        let refused = |message| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
        let shown =
            shown.ok_or_else(|| refused("a key is needed; send it as `Authorization: Bearer KEY`"))?;
        keys.holder(shown).cloned().map(Some).ok_or_else(|| refused("this key is not known"))
    }

    /// Reads what an inference request asks for.
    async fn read(&mut self, shared: &Arc<Shared>, plan: &mut Plan, shape: Shape) -> Result<(), Problem> {
        let fields = Fields::read(&plan.body)?;
        match shape {
            Shape::Chat if !fields.has_messages() => {
                return Err(Problem::bad("the body has no \"messages\""));
            }
            Shape::Completion if !fields.has_prompt() => {
                return Err(Problem::bad("the body has no \"prompt\""));
            }
            _ => {}
        }
        let name = shared.models.find(&fields.model).ok_or_else(|| unknown_model(&fields.model))?;
        (plan.model, plan.adapter) = (name.model, name.adapter);
        plan.whole = fields.stream != Some(true);
        plan.output_tokens = fields.output_tokens();
        if let Some(key) = &fields.prompt_cache_key {
            plan.affinity = Some(xxh3_64(key.as_bytes()));
        }
        let record = self.record();
        record.stream = fields.stream == Some(true);
        record.model = Some(fields.model.clone().into_owned());
        // Whatever is in an answer, it has to be read while it passes.
        plan.headers.remove(ACCEPT_ENCODING);
        if shape == Shape::Model {
            plan.prompt.tokens = (plan.body.len() as u64 / BYTES_PER_TOKEN).max(1);
            return Ok(());
        }
        let salt = fields.cache_salt.map(std::borrow::Cow::into_owned);
        let long = plan.body.len() >= LONG_PROMPT_BYTES && shared.models.tokenizes(name.model);
        plan.prompt = if long {
            let (shared, body) = (Arc::clone(shared), plan.body.clone());
            let read = move || shared.models.prompt(name, shape, &body, salt.as_deref());
            let read = tokio::task::spawn_blocking(read).await;
            read.map_err(|_| {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the prompt could not be read")
            })??
        } else {
            shared.models.prompt(name, shape, &plan.body, salt.as_deref())?
        };
        Ok(())
    }

    /// Tries replicas until one answers.
    async fn answered(&mut self, shared: &Arc<Shared>, plan: Plan) -> Result<Response<Body>, Problem> {
        let mut avoid: Vec<ReplicaId> = Vec::new();
        loop {
            let ticket = self.place(shared, &plan, &avoid).await?;
            self.note(&ticket);
            let last = self.record().attempts > shared.config.retry.times;
            let lost = match self.raced(shared, &plan, ticket, last).await {
                Ok(response) => return Ok(response),
                Err(lost) => lost,
            };
            if last || !lost.again {
                return Err(lost.problem);
            }
            shared.counts.retried();
            avoid.push(lost.replica);
        }
    }

    /// Where the request goes, after waiting for room where that is needed.
    async fn place(&self, shared: &Arc<Shared>, plan: &Plan, avoid: &[ReplicaId]) -> Result<Ticket, Problem> {
        let refused = |refusal| refused(&refusal);
        match shared.fleet.arrive(plan.arrival(shared), avoid) {
            Decision::Sent(ticket) => Ok(ticket),
            Decision::Refused(refusal) => Err(refused(refusal)),
            Decision::Held(place) => match place.wait().await {
                Told::Sent(ticket) => Ok(ticket),
                Told::Refused(refusal) => Err(refused(refusal)),
            },
        }
    }

    fn note(&mut self, ticket: &Ticket) {
        let record = self.record();
        record.attempts += 1;
        record.replica = Some(Arc::clone(&ticket.replica.shown));
        record.placement = Some(ticket.placement);
    }

    /// One try; a second replica is asked too where that is wanted and the first takes long.
    async fn raced(
        &mut self,
        shared: &Arc<Shared>,
        plan: &Plan,
        ticket: Ticket,
        last: bool,
    ) -> Result<Response<Body>, Lost> {
        let Some(after) = shared.config.retry.hedge_after else {
            let begun = self.worker.head(plan, ticket, last).await?;
            return self.passed(shared, plan, begun).await;
        };
        let first = ticket.replica.id;
        let mut one = Box::pin(self.worker.head(plan, ticket, last));
        if let Ok(begun) = timeout(clock::duration(after), &mut one).await {
            drop(one);
            return self.passed(shared, plan, begun?).await;
        }
        let Decision::Sent(ticket) = shared.fleet.arrive(plan.arrival(shared), &[first]) else {
            // There is no room for a second one, and nobody waits for it.
            let begun = one.await?;
            return self.passed(shared, plan, begun).await;
        };
        shared.counts.hedged();
        let (placement, replica) = (ticket.placement, Arc::clone(&ticket.replica.shown));
        let mut two = Box::pin(self.worker.head(plan, ticket, last));
        // Whoever answers first; one that fails leaves it to the other.
        let (begun, second) = tokio::select! {
            begun = &mut one => match begun {
                Ok(begun) => (Ok(begun), false),
                Err(_) => (two.as_mut().await, true),
            },
            begun = &mut two => match begun {
                Ok(begun) => (Ok(begun), true),
                Err(_) => (one.as_mut().await, false),
            },
        };
        drop((one, two));
        if second {
            let record = self.record();
            record.attempts += 1;
            record.replica = Some(replica);
            record.placement = Some(placement);
        }
        self.passed(shared, plan, begun?).await
    }

    /// Makes the client's answer of a replica's.
    async fn passed(
        &mut self,
        shared: &Arc<Shared>,
        plan: &Plan,
        begun: Begun,
    ) -> Result<Response<Body>, Lost> {
        let Begun { response, connection, ticket } = begun;
        let (mut parts, upstream) = response.into_parts();
        let replica = Arc::clone(&ticket.replica);
        let framed =
            parts.headers.contains_key(CONTENT_LENGTH) || parts.headers.contains_key(TRANSFER_ENCODING);
        headers::strip_hops(&mut parts.headers);
        // What the replica speaks is between it and us.
        parts.version = Version::HTTP_11;
        let record = self.record();
        record.status = Some(parts.status);
        let stream = record.stream;
        let events = is_event_stream(&parts.headers);
        // Nobody can say that a stream which is not the OpenAI API's is complete.
        let framed = framed || !plan.inference;
        let whole = plan.inference && !events && fits(&parts.headers, shared.config.limits.answer.0);
        let mut response = Response::from_parts(parts, Body::whole(Bytes::new()));
        mark(&mut response, self.record(), shared.policy);
        let Some(record) = self.record.take() else {
            return Ok(response);
        };
        let mut flow = Flow {
            upstream,
            connection: Some((connection, Arc::clone(&self.worker.pool))),
            ticket: Some(ticket),
            record,
            usage: UsageScan::default(),
            silence: shared.config.timeouts.silence,
        };
        flow.record.stream = stream || events;
        if events {
            response.headers_mut().remove(CONTENT_LENGTH);
            *response.body_mut() = Body::Relay(Box::new(Relay::events(flow, framed)));
            return Ok(response);
        }
        if !whole {
            *response.body_mut() = Body::Relay(Box::new(Relay::plain(flow, None)));
            return Ok(response);
        }
        match shared.bodies.collect(&mut flow.upstream, &shared.config).await {
            Ok((bytes, true)) => {
                flow.usage.feed(&bytes);
                flow.record.out_bytes = bytes.len() as u64;
                flow.begun(clock::now());
                flow.complete();
                *response.body_mut() = Body::whole(bytes);
                Ok(response)
            }
            Ok((ahead, false)) => {
                flow.usage.feed(&ahead);
                *response.body_mut() = Body::Relay(Box::new(Relay::plain(flow, Some(ahead))));
                Ok(response)
            }
            Err(why) => {
                let mut record = flow.lost();
                record.status = None;
                self.record = Some(record);
                let message =
                    format!("the replica `{}` failed before the end of its answer: {why}", replica.name());
                Err(Lost {
                    problem: Problem::upstream("replica_failed", message),
                    replica: replica.id,
                    again: shared.config.retry.unanswered || plan.is_safe(),
                })
            }
        }
    }
}

/// The head of an answer, and what comes with it.
struct Begun {
    response: Response<Incoming>,
    connection: Connection,
    ticket: Ticket,
}

impl Worker {
    /// Sends a request to a replica and waits for the head of the answer. `last`: also an answer that says that it has not begun is one.
    async fn head(&self, plan: &Plan, ticket: Ticket, last: bool) -> Result<Begun, Lost> {
        let config = &self.shared.config;
        let replica = Arc::clone(&ticket.replica);
        let now = clock::now();
        let left = plan.deadline.map(|deadline| deadline.saturating_sub(now));
        let limit = left.unwrap_or(Nanos::MAX).min(config.timeouts.answer);
        let sent = timeout(clock::duration(limit), self.pool.send(&replica, || plan.request(&replica))).await;
        let lost = |problem, again| Lost { problem, replica: replica.id, again };
        let name = replica.name();
        match sent {
            Ok(Ok((response, connection))) => {
                if !last && config.retry.statuses.contains(&response.status().as_u16()) {
                    ticket.end(Outcome::Failed);
                    let message = format!("the replica `{name}` answered {}", response.status());
                    return Err(lost(Problem::upstream("replica_refused", message), true));
                }
                Ok(Begun { response, connection, ticket })
            }
            Ok(Err(Failure::NotBegun(why))) => {
                ticket.end(Outcome::Failed);
                let message = format!("the replica `{name}` cannot be reached: {why}");
                Err(lost(Problem::upstream("replica_unreachable", message), true))
            }
            Ok(Err(Failure::Unanswered(why))) => {
                ticket.end(Outcome::Failed);
                let message = format!("the replica `{name}` did not answer: {why}");
                let again = config.retry.unanswered || plan.is_safe();
                Err(lost(Problem::upstream("replica_failed", message), again))
            }
            Err(_) if left.is_some_and(|left| left <= config.timeouts.answer) => {
                // Whether the replica is slow or the client in a hurry is not known.
                ticket.end(Outcome::Abandoned);
                let message =
                    format!("the replica `{name}` had not begun to answer when the deadline passed");
                Err(lost(Problem::late("deadline", message), false))
            }
            Err(_) => {
                ticket.end(Outcome::Failed);
                let message = format!("the replica `{name}` did not begin to answer within {limit}");
                Err(lost(Problem::late("answer_timeout", message), false))
            }
        }
    }
}

impl Plan {
    fn arrival(&self, shared: &Shared) -> Arrival {
        Arrival {
            id: shared.fleet.name(),
            class: self.class,
            model: shared.models.ids.id(Named { model: self.model, adapter: self.adapter }),
            prefixes: self.prompt.prefixes.clone(),
            input_tokens: self.prompt.tokens,
            whole: self.whole,
            output_tokens: self.output_tokens,
            affinity: self.affinity,
            deadline: self.deadline,
        }
    }

    /// What a replica gets.
    fn request(&self, replica: &Replica) -> Sent {
        let mut request = Request::new(Full::new(self.body.clone()));
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = self.uri.clone();
        let mut headers = self.headers.clone();
        headers.insert(HOST, replica.link.target.header.clone());
        if let Some(key) = &replica.link.authorization {
            headers.insert(AUTHORIZATION, key.clone());
        }
        *request.headers_mut() = headers;
        request
    }

    /// Whether doing it twice is as good as once.
    fn is_safe(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }
}

/// What a client is told when its request is not served.
fn refused(refusal: &Refusal) -> Problem {
    let message = refusal.to_string();
    match refusal {
        Refusal::NoReplica => Problem::busy("no_replica", message),
        Refusal::Full { .. } => Problem::busy("too_many_held", message),
        Refusal::TimedOut { .. } => Problem::busy("held_too_long", message),
        Refusal::Deadline { .. } => Problem::late("deadline", message),
        Refusal::Known => Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message),
    }
}

fn health(shared: &Shared) -> Response<Body> {
    if shared.draining.load(Ordering::Relaxed) {
        return Problem::busy("draining", "the gateway is about to stop").response();
    }
    json(StatusCode::OK, Bytes::from_static(b"{\"status\":\"ok\"}"))
}

/// The class that a request asks for by its header.
fn asked(headers: &HeaderMap) -> Result<Option<Class>, Problem> {
    let Some(value) = headers.get(CLASS) else { return Ok(None) };
    match value.as_bytes() {
        b"latency-sensitive" | b"ls" => Ok(Some(Class::LatencySensitive)),
        b"best-effort" | b"be" => Ok(Some(Class::BestEffort)),
        _ => Err(Problem::bad("x-partywall-class is neither latency-sensitive nor best-effort")),
    }
}

/// The class of a request. Everybody may ask for less; more than what a key is for, nobody.
fn class(asked: Option<Class>, holder: Option<&Holder>, otherwise: Class) -> Class {
    let own = holder.and_then(|holder| holder.class);
    match (asked, own) {
        (Some(Class::BestEffort), _) => Class::BestEffort,
        (Some(Class::LatencySensitive), None) => Class::LatencySensitive,
        (_, Some(own)) => own,
        (None, None) => otherwise,
    }
}

fn deadline(headers: &HeaderMap) -> Result<Option<Nanos>, Problem> {
    let Some(value) = headers.get(DEADLINE) else { return Ok(None) };
    let time = value.to_str().ok().and_then(|text| text.parse::<Nanos>().ok());
    time.map(Some)
        .ok_or_else(|| Problem::bad("x-partywall-deadline is no time; write one such as 2s or 500ms"))
}

/// The name that the client gave its request, or one of the gateway's.
fn request_id(headers: &HeaderMap, id: u64) -> String {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let fits = |text: &&str| (1..=MAX_REQUEST_ID).contains(&text.len());
    given.filter(fits).map_or_else(|| format!("partywall-{id:x}"), str::to_owned)
}

fn is_event_stream(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    kind.get(..17).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/event-stream"))
        && !headers.contains_key(CONTENT_ENCODING)
}

/// Whether an answer is short enough to be kept, as far as it says how long it is.
fn fits(headers: &HeaderMap, limit: u64) -> bool {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.is_none_or(|length| length.parse().is_ok_and(|length: u64| length <= limit))
}
