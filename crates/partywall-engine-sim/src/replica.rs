//! One engine of a replica: the task that owns it, steps it by the clock and tells everybody what has happened.
//!
//! Handlers of HTTP send [`Command`]s and watch how far their request has come. A reader that is slow sees fewer and larger steps, so
//! nothing is queued for it. What the engine says of its cache goes out before the request that caused it moves on: who has seen a first
//! token can ask what was stored for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::router::RequestId;
use partywall_sim::serving::engine::{Engine, EngineSettings, Happened, Submission};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::blocks::{Blocks, Prompt};
use crate::clock::{EngineClock, unix_seconds};
use crate::events::CacheEvent;
use crate::events::socket::Publisher;
use crate::events::wire::Shape;
use crate::faults::{Fault, Faults};
use crate::metrics::{Histogram, View};
use crate::settings::Settings;
use crate::tokens;

/// What a handler wants.
#[derive(Debug)]
pub enum Command {
    /// A request for the engine.
    Submit {
        /// It.
        job: Job,
        /// Gets its name and its progress, or why it is not taken.
        answer: oneshot::Sender<Result<Accepted, Refusal>>,
    },
    /// The client has gone.
    Cancel(RequestId),
    /// Something is to go wrong.
    Break {
        /// What.
        fault: Fault,
        /// Whether it will.
        answer: oneshot::Sender<Result<(), String>>,
    },
    /// A fault is to end, or all of them.
    Mend {
        /// Which.
        name: Option<String>,
        /// Whether there was one.
        answer: oneshot::Sender<bool>,
    },
    /// Somebody wants to see how it is.
    Look(oneshot::Sender<View>),
}

/// A request for the engine.
#[derive(Debug)]
pub struct Job {
    /// Its prompt.
    pub prompt: Prompt,
    /// Tokens to generate, at least 1.
    pub output_tokens: u32,
    /// Computed after others, where the engine knows of priorities.
    pub later: bool,
}

/// A request that was taken.
#[derive(Debug)]
pub struct Accepted {
    /// Its name.
    pub id: RequestId,
    /// How far it has come. When the sender is gone, the replica is.
    pub progress: watch::Receiver<Progress>,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Tokens of the prompt that were in the cache; known with the first token.
    pub cached_tokens: u64,
    /// Tokens generated so far.
    pub tokens: u32,
    /// How it ended.
    pub end: Option<End>,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// With all its tokens.
    Complete,
    /// In the middle, by a fault: its connection is to be closed.
    Cut,
}

/// Why a request is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// By a fault, with this status.
    Fault(u16),
    /// It can never be served.
    Impossible(String),
    /// Not now.
    Busy(String),
}

/// A request in the engine.
#[derive(Debug)]
struct Request {
    progress: watch::Sender<Progress>,
    /// What its blocks are called in the engine.
    names: Vec<PrefixHash>,
    since: Nanos,
    cut_after: Option<u32>,
}

/// Which of all engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The replica, from 0.
    pub replica: u16,
    /// Its data-parallel rank, from 0.
    pub rank: u16,
}

/// One engine of a replica: all of it where the replica has one rank.
pub struct Replica {
    settings: Arc<Settings>,
    place: Place,
    /// How often it was restarted.
    generation: u64,
    clock: EngineClock,
    engine: Engine,
    blocks: Blocks,
    faults: Faults,
    /// Tokens until everything ends.
    lives_for: Option<u64>,
    publisher: Option<(Publisher, Shape)>,
    requests: BTreeMap<RequestId, Request>,
    next: u64,
    counts: Counts,
}

/// What metrics count.
#[derive(Debug, Default)]
struct Counts {
    prompt_tokens: u64,
    generated_tokens: u64,
    queried_tokens: u64,
    hit_tokens: u64,
    finished: u64,
    aborted: u64,
    first_tokens: Histogram,
}

impl Replica {
    /// An idle one.
    pub fn new(settings: Arc<Settings>, place: Place, publisher: Option<Publisher>) -> Self {
        let (engine, blocks) = empty(&settings, place, 0);
        let shape = settings.events.as_ref().map(|events| events.shape).unwrap_or_default();
        Self {
            place,
            generation: 0,
            clock: EngineClock::start(settings.time_scale),
            engine,
            blocks,
            faults: Faults::default(),
            lives_for: None,
            publisher: publisher.map(|publisher| (publisher, shape)),
            requests: BTreeMap::new(),
            next: 0,
            counts: Counts::default(),
            settings,
        }
    }

    /// Serves until nobody can send commands any more, or until a fault ends it.
    pub async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        for fault in self.settings.faults.clone() {
            // Nothing is running that a fault could be refused for.
            let _ = self.begin(fault).await;
        }
        while self.lives_for != Some(0) {
            let wait = self.clock.until(self.engine.next_event());
            let command = timeout(wait, commands.recv()).await;
            self.step().await;
            match command {
                Ok(Some(command)) => self.obey(command).await,
                Ok(None) => return,
                Err(_) => {}
            }
        }
        self.faults.count(&Fault::Die { tokens: 0 });
    }

    async fn obey(&mut self, command: Command) {
        match command {
            Command::Submit { job, answer } => {
                let submitted = self.submit(job);
                let id = submitted.as_ref().map(|accepted| accepted.id).ok();
                if answer.send(submitted).is_err()
                    && let Some(id) = id
                {
                    self.cancel(id);
                }
                // An idle engine begins at once; waiting for the next turn would cost a wake-up.
                self.step().await;
            }
            Command::Cancel(id) => self.cancel(id),
            Command::Break { fault, answer } => {
                let _ = answer.send(self.begin(fault).await);
            }
            Command::Mend { name, answer } => {
                let _ = answer.send(self.mend(name.as_deref()));
            }
            Command::Look(answer) => {
                let _ = answer.send(self.view());
            }
        }
    }

    fn submit(&mut self, job: Job) -> Result<Accepted, Refusal> {
        if let Some(Fault::Error { status, .. }) = self.faults.strikes("error") {
            return Err(Refusal::Fault(status));
        }
        let id = RequestId(self.next);
        self.next += 1;
        let prompt = &job.prompt;
        let names = match self.faults.strikes("lie") {
            Some(_) => tokens::hidden(&prompt.prefixes, id.0),
            None => prompt.prefixes.clone(),
        };
        let now = self.clock.now();
        let submission = Submission {
            id,
            prefixes: names.clone(),
            input_tokens: prompt.tokens.len() as u64,
            output_tokens: job.output_tokens,
            class: if job.later { Class::BestEffort } else { Class::LatencySensitive },
        };
        self.engine.submit(now, submission).map_err(|error| match error {
            partywall_sim::serving::engine::SubmitError::TooLong { .. } => {
                Refusal::Impossible(error.to_string())
            }
            _ => Refusal::Busy(error.to_string()),
        })?;
        self.blocks.enter(prompt, &names);
        let cut_after = match self.faults.strikes("cut") {
            // An answer that is shorter is cut where it would have ended.
            Some(Fault::Cut { tokens, .. }) => Some(tokens.min(job.output_tokens)),
            _ => None,
        };
        let (progress, watched) = watch::channel(Progress::default());
        self.counts.prompt_tokens += prompt.tokens.len() as u64;
        self.counts.queried_tokens += prompt.tokens.len() as u64;
        self.requests.insert(id, Request { progress, names, since: now, cut_after });
        if cut_after == Some(0) {
            self.end(id, End::Cut);
        }
        Ok(Accepted { id, progress: watched })
    }

    /// Lets happen what has by now.
    async fn step(&mut self) {
        let now = self.clock.now();
        let mut happened = Vec::new();
        self.engine.advance(now, &mut happened);
        let events: Vec<CacheEvent> = happened.iter().filter_map(|one| self.blocks.tell(one)).collect();
        self.publish(&events).await;
        for one in happened {
            match one {
                Happened::FirstToken { id, cached_tokens } => {
                    let Some(request) = self.requests.get(&id) else { continue };
                    request.progress.send_modify(|progress| progress.cached_tokens = cached_tokens);
                    self.counts.hit_tokens += cached_tokens;
                    self.counts.first_tokens.add(now.saturating_sub(request.since).as_secs());
                    self.generated(id, 1);
                }
                Happened::Tokens { id, n } => self.generated(id, n),
                Happened::Finished { id } => self.end(id, End::Complete),
                Happened::Stored { .. } | Happened::Removed { .. } => {}
            }
        }
    }

    fn generated(&mut self, id: RequestId, n: u32) {
        if self.lives_for == Some(0) {
            return;
        }
        let Some(request) = self.requests.get(&id) else { return };
        let before = request.progress.borrow().tokens;
        let tokens = request.cut_after.map_or(before + n, |most| most.min(before + n));
        request.progress.send_modify(|progress| progress.tokens = tokens);
        let cut = request.cut_after == Some(tokens);
        self.counts.generated_tokens += u64::from(n);
        if let Some(left) = &mut self.lives_for {
            *left = left.saturating_sub(u64::from(n));
        }
        if cut {
            self.end(id, End::Cut);
        }
    }

    fn cancel(&mut self, id: RequestId) {
        self.end(id, End::Cut);
    }

    /// Takes a request out, wherever it is.
    fn end(&mut self, id: RequestId, end: End) {
        let Some(request) = self.requests.remove(&id) else { return };
        self.engine.cancel(id);
        self.blocks.leave(&request.names);
        match end {
            End::Complete => self.counts.finished += 1,
            End::Cut => self.counts.aborted += 1,
        }
        request.progress.send_modify(|progress| progress.end = Some(end));
    }

    async fn begin(&mut self, fault: Fault) -> Result<(), String> {
        match fault {
            Fault::Restart => {
                self.cut_all();
                self.generation += 1;
                (self.engine, self.blocks) = empty(&self.settings, self.place, self.generation);
                if let Some((publisher, _)) = &mut self.publisher {
                    publisher.restart();
                }
                self.faults.count(&fault);
            }
            Fault::Clear if !self.requests.is_empty() => {
                return Err(format!(
                    "{} requests use blocks of the cache; clear it when none is running",
                    self.requests.len()
                ));
            }
            Fault::Clear => {
                let mut happened = Vec::new();
                self.engine.clear_cache(&mut happened);
                for one in &happened {
                    // One event says it of all of them.
                    let _ = self.blocks.tell(one);
                }
                self.publish(&[CacheEvent::Cleared]).await;
                self.faults.count(&fault);
            }
            Fault::Gap(numbers) => {
                if let Some((publisher, _)) = &mut self.publisher {
                    publisher.skip(numbers, &mut self.faults);
                }
            }
            Fault::Die { tokens } => {
                self.faults.set(fault);
                self.lives_for = Some(tokens);
            }
            lasting => {
                self.faults.set(lasting);
                if matches!(lasting, Fault::Hang | Fault::Slow(_)) {
                    self.faults.count(&lasting);
                }
            }
        }
        self.apply();
        Ok(())
    }

    fn mend(&mut self, name: Option<&str>) -> bool {
        let mended = self.faults.mend(name);
        if self.faults.get("die").is_none() {
            self.lives_for = None;
        }
        self.apply();
        mended
    }

    /// What lasts takes effect, in the engine and at the sockets.
    fn apply(&mut self) {
        self.engine.set_speed(self.clock.now(), 1.0 / self.faults.slowdown());
        if let Some((publisher, _)) = &mut self.publisher {
            publisher.answer_replays(&self.faults);
        }
    }

    fn cut_all(&mut self) {
        let all: Vec<RequestId> = self.requests.keys().copied().collect();
        for id in all {
            self.end(id, End::Cut);
        }
    }

    async fn publish(&mut self, events: &[CacheEvent]) {
        let Some((publisher, shape)) = &mut self.publisher else { return };
        if !events.is_empty() {
            let payload = shape.batch(unix_seconds(), self.place.rank, self.settings.block_tokens, events);
            publisher.publish(payload, &mut self.faults).await;
        }
    }

    fn view(&self) -> View {
        let counts = &self.counts;
        let mut struck: Vec<(&str, u64)> = self.faults.struck().collect();
        if let Some((publisher, _)) = &self.publisher
            && let Some((_, count)) = struck.iter_mut().find(|(name, _)| *name == Fault::NoReplay.name())
        {
            *count = publisher.ignored();
        }
        View {
            load: self.engine.load(),
            prompt_tokens: counts.prompt_tokens,
            generated_tokens: counts.generated_tokens,
            queried_tokens: counts.queried_tokens,
            hit_tokens: counts.hit_tokens,
            finished: counts.finished,
            aborted: counts.aborted,
            first_tokens: counts.first_tokens.clone(),
            event_number: self.publisher.as_ref().map_or(0, |(publisher, _)| publisher.batches()),
            generation: self.generation,
            lasting: self.faults.lasting().collect(),
            struck,
        }
    }
}

/// An engine that holds nothing, and its blocks. Every start of every replica has its own names for blocks, as vLLM's have.
fn empty(settings: &Settings, place: Place, generation: u64) -> (Engine, Blocks) {
    let engine = Engine::new(EngineSettings {
        prefill_tokens_per_s: settings.prefill_tokens_per_s,
        token_time: settings.token_time,
        streams: settings.streams,
        block_tokens: settings.block_tokens,
        cache_blocks: settings.cache_blocks(),
        by_class: settings.by_priority,
        report_tokens: 1,
    });
    let start = tokens::of_text(&format!("{} {} {generation}", place.replica, place.rank));
    let seed = tokens::fingerprint(settings.seed, &tokens::Domain::default(), &start);
    (engine, Blocks::new(settings.block_tokens, seed))
}
