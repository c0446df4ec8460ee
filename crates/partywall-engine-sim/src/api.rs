//! The paths that a replica answers, over its engines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::clock::unix_seconds;
use crate::faults::{FORMS, Fault};
use crate::metrics::{self, View};
use crate::replica::{Command, End, Job, Progress, Refusal};
use crate::settings::Settings;
use answers::Answer;
use requests::{Kind, Wrong};
use streamed::{Gone, Streamed};

pub mod answers;
pub mod requests;
mod streamed;
mod ticket;

use ticket::Ticket;

/// Largest body that is read, in bytes: a prompt of 131 072 tokens as a list of ids has less than a megabyte.
pub const MAX_BODY: usize = 16 << 20;
/// Requests of one engine that are taken at the same time, running or waiting. More are refused.
pub const MAX_REQUESTS: usize = 16_384;
/// How long a client may take for its body.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Pieces of a stream that wait for a slow reader. The rest waits as a number.
const PIECES: usize = 64;

/// What an answer's body is.
type Body = Either<Full<Bytes>, Streamed>;

/// What every connection of a replica shares.
#[derive(Debug)]
pub struct Gate {
    settings: Arc<Settings>,
    replica: u16,
    /// Seconds since 1970.
    since: u64,
    ranks: Vec<Rank>,
}

/// One engine of the replica.
#[derive(Debug)]
struct Rank {
    /// Bounded by `slots`: a request sends at most two, and whoever asks something else waits for the answer.
    commands: mpsc::UnboundedSender<Command>,
    slots: Arc<Semaphore>,
}

impl Gate {
    /// In front of a replica, whose engines take these commands, in the order of their ranks.
    pub fn new(settings: Arc<Settings>, replica: u16, ranks: Vec<mpsc::UnboundedSender<Command>>) -> Self {
        let rank = |commands| Rank { commands, slots: Arc::new(Semaphore::new(MAX_REQUESTS)) };
        let ranks = ranks.into_iter().map(rank).collect();
        Self { settings, replica, since: unix_seconds() as u64, ranks }
    }

    /// Answers one request.
    ///
    /// # Errors
    /// When the connection is to be closed instead.
    pub async fn answer(&self, request: Request<Incoming>) -> Result<Response<Body>, Gone> {
        let path = request.uri().path().to_owned();
        let method = request.method().clone();
        let allowed: &[Method] = match path.as_str() {
            "/v1/chat/completions" | "/v1/completions" | "/v1/embeddings" => &[Method::POST],
            "/v1/models" | "/health" | "/metrics" => &[Method::GET],
            "/fault" => &[Method::GET, Method::POST, Method::DELETE],
            path if path.starts_with("/fault/") => &[Method::DELETE],
            _ => {
                return Ok(refused(&Wrong {
                    status: 404,
                    message: format!("there is nothing at {path}"),
                    field: None,
                }));
            }
        };
        if !allowed.contains(&method) {
            let allowed: Vec<&str> = allowed.iter().map(Method::as_str).collect();
            let message = format!("{path} takes {}, not {method}", allowed.join(", "));
            return Ok(refused(&Wrong { status: 405, message, field: None }));
        }
        let done = match path.as_str() {
            "/v1/chat/completions" => self.generate(Kind::Chat, request).await,
            "/v1/completions" => self.generate(Kind::Completion, request).await,
            "/v1/embeddings" => self.embed(request).await,
            "/v1/models" => Ok(self.models()),
            "/health" => Ok(plain(String::new())),
            "/metrics" => self.metrics().await,
            "/fault" if method == Method::GET => {
                self.look().await.map(|views| json_of(StatusCode::OK, &faults(&views)))
            }
            "/fault" if method == Method::POST => self.break_it(request).await,
            path => self.mend(path.strip_prefix("/fault/")).await,
        };
        match done {
            Ok(answer) => Ok(answer),
            Err(Failed::Wrong(wrong)) => Ok(refused(&wrong)),
            Err(Failed::Gone) => Err(Gone),
        }
    }

    async fn generate(&self, kind: Kind, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
        let body = read(request).await?;
        let asked = requests::generate(kind, &body, &self.settings)?;
        drop(body);
        let created = unix_seconds() as u64;
        let (stream, mut answer) = (asked.stream, Answer::new(&asked, created));
        let mut ticket = self.submit(asked.job).await?;
        answer.name(&format!("{}-{}", self.replica, ticket.name()));
        if stream {
            let (out, pieces) = mpsc::channel(PIECES);
            tokio::spawn(pump(ticket, answer, out));
            let mut response = Response::new(Either::Right(Streamed::new(pieces)));
            let headers = response.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
            headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
            return Ok(response);
        }
        match ticket.ended().await {
            Some(progress) => Ok(json_of(StatusCode::OK, &answer.whole(&progress))),
            None => Err(Failed::Gone),
        }
    }

    async fn embed(&self, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
        let body = read(request).await?;
        let mut asked = requests::embed(&body, &self.settings)?;
        let mut tickets = Vec::new();
        let mut prompt_tokens = 0;
        let mut fingerprints = Vec::new();
        for (job, fingerprint) in std::mem::take(&mut asked.jobs) {
            prompt_tokens += job.prompt.tokens.len();
            fingerprints.push(fingerprint);
            tickets.push(self.submit(job).await?);
        }
        for ticket in &mut tickets {
            ticket.ended().await.ok_or(Failed::Gone)?;
        }
        let answer = answers::embeddings(&asked.model, &fingerprints, asked.dimensions, prompt_tokens);
        Ok(json_of(StatusCode::OK, &answer))
    }

    fn models(&self) -> Response<Body> {
        json_of(StatusCode::OK, &answers::models(&self.settings, self.since))
    }

    async fn metrics(&self) -> Result<Response<Body>, Failed> {
        let views = self.look().await?;
        Ok(plain(metrics::page(&views, &self.settings.model, self.settings.block_tokens)))
    }

    async fn break_it(&self, request: Request<Incoming>) -> Result<Response<Body>, Failed> {
        let body = read(request).await?;
        let fault = serde_json::from_slice::<Value>(&body).ok();
        let fault = fault.as_ref().and_then(|body| body.get("fault")?.as_str());
        let Some(fault) = fault else {
            let forms: Vec<&str> = FORMS.iter().map(|(form, _)| *form).collect();
            let message = format!("write {{\"fault\": \"...\"}} with one of {}", forms.join(", "));
            return Err(Failed::Wrong(Wrong::body(message)));
        };
        let fault: Fault =
            fault.parse().map_err(|error: crate::faults::NotAFault| Wrong::body(error.to_string()))?;
        for rank in &self.ranks {
            let done = rank.ask(|answer| Command::Break { fault, answer }).await?;
            done.map_err(|message| Wrong { status: 409, message, field: None })?;
        }
        Ok(json_of(StatusCode::OK, &faults(&self.look().await?)))
    }

    async fn mend(&self, name: Option<&str>) -> Result<Response<Body>, Failed> {
        let mut there_was = false;
        for rank in &self.ranks {
            let name = name.map(str::to_owned);
            there_was |= rank.ask(|answer| Command::Mend { name, answer }).await?;
        }
        if let Some(name) = name.filter(|_| !there_was) {
            let message = format!("there is no lasting fault `{name}`; GET /fault lists them");
            return Err(Failed::Wrong(Wrong { status: 404, message, field: None }));
        }
        Ok(json_of(StatusCode::OK, &faults(&self.look().await?)))
    }

    async fn look(&self) -> Result<Vec<View>, Failed> {
        let mut views = Vec::new();
        for rank in &self.ranks {
            views.push(rank.ask(Command::Look).await?);
        }
        Ok(views)
    }

    /// Gives a job to the engine that has fewest.
    async fn submit(&self, job: Job) -> Result<Ticket, Failed> {
        let least =
            self.ranks.iter().enumerate().rev().max_by_key(|(_, rank)| rank.slots.available_permits());
        let (number, rank) = least.ok_or(Failed::Gone)?;
        let slot = rank.slots.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_REQUESTS} requests are running or waiting here; send it later");
            Wrong { status: 503, message, field: None }
        })?;
        let taken = rank.ask(|answer| Command::Submit { job, answer }).await?;
        let accepted = taken.map_err(|refusal| match refusal {
            Refusal::Fault(status) => {
                Wrong { status, message: "this error was asked for, by a fault".to_owned(), field: None }
            }
            Refusal::Impossible(message) => Wrong { status: 400, message, field: None },
            Refusal::Busy(message) => Wrong { status: 503, message, field: None },
        })?;
        Ok(Ticket::new(number, accepted, rank.commands.clone(), slot))
    }
}

impl Rank {
    /// Asks the engine something; when it is gone, so is whoever asks.
    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Failed> {
        let (answer, answered) = oneshot::channel();
        self.commands.send(command(answer)).map_err(|_| Failed::Gone)?;
        answered.await.map_err(|_| Failed::Gone)
    }
}

/// Why there is no answer of the usual kind.
enum Failed {
    /// The request is refused.
    Wrong(Wrong),
    /// The connection is to be closed.
    Gone,
}

impl From<Wrong> for Failed {
    fn from(wrong: Wrong) -> Self {
        Self::Wrong(wrong)
    }
}

/// Turns the progress of a request into the pieces of a stream, until it ends or nobody reads any more.
async fn pump(mut ticket: Ticket, mut answer: Answer, out: mpsc::Sender<Result<Bytes, Gone>>) {
    let mut told = 0;
    loop {
        let progress: Progress = tokio::select! {
            progress = ticket.next() => progress,
            () = out.closed() => return,
        };
        while told < progress.tokens {
            let opening = (told == 0).then(|| answer.opening()).flatten().unwrap_or_default();
            told += 1;
            if out.send(Ok((opening + &answer.token()).into())).await.is_err() {
                return;
            }
        }
        let last = match progress.end {
            Some(End::Complete) => Ok(answer.closing(&progress).into()),
            Some(End::Cut) => Err(Gone),
            None => continue,
        };
        // Who has stopped reading does not miss the end.
        let _ = out.send(last).await;
        return;
    }
}

async fn read(request: Request<Incoming>) -> Result<Bytes, Failed> {
    let body = Limited::new(request.into_body(), MAX_BODY);
    let wrong = |status, message: String| Failed::Wrong(Wrong { status, message, field: None });
    match timeout(BODY_TIME, body.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(wrong(413, format!("the body has more than {MAX_BODY} bytes; send a shorter one")))
        }
        // The client broke off; nobody reads an answer.
        Ok(Err(_)) => Err(Failed::Gone),
        Err(_) => Err(wrong(408, format!("the body did not come within {} s", BODY_TIME.as_secs()))),
    }
}

/// What lasts, which is the same for all ranks, and how often each fault has struck in any.
fn faults(views: &[View]) -> Value {
    let lasting: Vec<String> =
        views.iter().take(1).flat_map(|view| &view.lasting).map(Fault::to_string).collect();
    let mut struck: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in views.iter().flat_map(|view| &view.struck) {
        *struck.entry(name).or_default() += count;
    }
    json!({"lasting": lasting, "struck": struck})
}

fn refused(wrong: &Wrong) -> Response<Body> {
    let status = StatusCode::from_u16(wrong.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json_of(status, &answers::refusal(wrong))
}

fn json_of(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(value.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn plain(text: String) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(text)));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
