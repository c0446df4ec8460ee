//! The task that follows one engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use partywall_core::units::Nanos;
use partywall_routing::feed::{Action, Event, Feed, Health, Limits};
use partywall_routing::replica::ReplicaId;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::zmtp::{Connection, Kind};
use super::{Batch, Error, Sink};

/// Bytes of batches that are kept while a replay is under way. More end it.
const MAX_KEPT_BYTES: usize = 64 << 20;
/// Batches of a replay that wait to be looked at.
const REPLAY_QUEUE: usize = 16;
/// How long it takes until a broken connection is tried again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));
/// How often a feed is told that time has passed, and a sink how it is.
const TICK: Duration = Duration::from_secs(1);
/// The number with which a replay ends.
const END: u64 = u64::MAX;

/// The caller's clock.
pub type Now = Arc<dyn Fn() -> Nanos + Send + Sync>;

/// Where an engine publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Whose engine it is.
    pub replica: ReplicaId,
    /// Which of its feeds: over all ranks, and all models that have engines of their own.
    pub feed: u32,
    /// Where it publishes: `tcp://HOST:PORT` or `ipc://PATH`.
    pub events: String,
    /// Where it can be asked for what was missed, if it can.
    pub replay: Option<String>,
    /// What its messages begin with. Empty for all.
    pub topic: String,
}

/// Why there is no source for a rank.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The address of rank 0 has no number to count from.
    #[error("`{endpoint}` has no port to count ranks from; write tcp://HOST:PORT")]
    NoPort {
        /// What was given.
        endpoint: String,
    },
    /// Counting from the first port leads beyond the last there is.
    #[error("`{endpoint}` leaves no port for rank {rank}: ports end at 65535")]
    NoRoom {
        /// What was given.
        endpoint: String,
        /// The rank.
        rank: u32,
    },
}

impl Source {
    /// Where another rank of the same engine publishes: ports are counted from the first rank's, both of them.
    pub fn of_rank(&self, rank: u32) -> Result<Self, SourceError> {
        let replay = self.replay.as_deref().map(|endpoint| shifted(endpoint, rank)).transpose()?;
        Ok(Self { events: shifted(&self.events, rank)?, replay, ..self.clone() })
    }
}

fn shifted(endpoint: &str, rank: u32) -> Result<String, SourceError> {
    if rank == 0 {
        return Ok(endpoint.to_owned());
    }
    let no_port = || SourceError::NoPort { endpoint: endpoint.to_owned() };
    let (host, port) = endpoint.rsplit_once(':').ok_or_else(no_port)?;
    let port: u16 = port.parse().map_err(|_| no_port())?;
    match u32::from(port).checked_add(rank).filter(|port| *port <= u32::from(u16::MAX)) {
        Some(port) => Ok(format!("{host}:{port}")),
        None => Err(SourceError::NoRoom { endpoint: endpoint.to_owned(), rank }),
    }
}

/// Follows an engine until the task is aborted or its future dropped: keeps a subscription up, closes gaps, and tells the sink.
pub async fn follow(source: Source, limits: Limits, sink: Arc<dyn Sink>, now: Now) {
    let feed = Feed::new(limits, source.replay.is_some());
    let mut follower =
        Follower { source, sink, now, feed, kept: BTreeMap::new(), kept_bytes: 0, replay: None, told: None };
    let mut wait = RETRY.0;
    loop {
        // What time has to do goes on while nobody is there.
        follower.handle(Event::Tick, None);
        follower.tell();
        let subscribed = follower.subscribe().await;
        if let Ok(mut connection) = subscribed {
            wait = RETRY.0;
            follower.handle(Event::Subscribed, None);
            follower.listen(&mut connection).await;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

struct Follower {
    source: Source,
    sink: Arc<dyn Sink>,
    now: Now,
    feed: Feed,
    /// Batches that wait for those before them, and their size as they came.
    kept: BTreeMap<u64, (Batch, usize)>,
    kept_bytes: usize,
    replay: Option<Replay>,
    told: Option<Health>,
}

/// A batch as it came.
struct Arrived {
    seq: u64,
    batch: Batch,
    bytes: usize,
}

/// A replay under way.
struct Replay {
    arrived: mpsc::Receiver<Message>,
    task: JoinHandle<()>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.task.abort();
    }
}

enum Message {
    Batch { seq: u64, payload: Bytes },
    Ended,
    Failed,
}

impl Follower {
    async fn subscribe(&self) -> Result<Connection, Error> {
        let mut connection = Connection::open(&self.source.events, Kind::Subscriber).await?;
        connection.subscribe(self.source.topic.as_bytes()).await?;
        Ok(connection)
    }

    /// Until the connection breaks.
    async fn listen(&mut self, connection: &mut Connection) {
        let mut tick = tokio::time::interval(TICK);
        loop {
            let replayed = async {
                match &mut self.replay {
                    Some(replay) => replay.arrived.recv().await.unwrap_or(Message::Failed),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = connection.receive() => match message {
                    Ok(frames) => self.live(&frames),
                    Err(_) => return,
                },
                message = replayed => self.replayed(message),
                _ = tick.tick() => {
                    self.handle(Event::Tick, None);
                    self.tell();
                }
            }
        }
    }

    /// A message is the topic, a number, and a payload.
    fn live(&mut self, frames: &[Bytes]) {
        let [_, seq, payload] = frames else { return };
        let Some(seq) = number(seq) else { return };
        let arrived = read(seq, payload);
        self.handle(Event::Live { seq, mark: arrived.batch.mark }, Some(arrived));
    }

    fn replayed(&mut self, message: Message) {
        match message {
            Message::Batch { seq, payload } => {
                let arrived = read(seq, &payload);
                self.handle(Event::Replayed { seq, mark: arrived.batch.mark }, Some(arrived));
            }
            Message::Ended => {
                self.replay = None;
                self.handle(Event::ReplayEnded, None);
            }
            Message::Failed => {
                self.replay = None;
                self.handle(Event::ReplayFailed, None);
            }
        }
    }

    /// Tells the feed, and does what it says.
    fn handle(&mut self, event: Event, mut arrived: Option<Arrived>) {
        let (replica, rank) = (self.source.replica, self.source.feed);
        for action in self.feed.step((self.now)(), event) {
            match action {
                Action::Clear => self.sink.clear(replica, rank),
                Action::Apply { seq } => {
                    let kept = self.forget(seq);
                    let current = arrived.take_if(|arrived| arrived.seq == seq).map(|arrived| arrived.batch);
                    if let Some(batch) = current.or(kept) {
                        self.sink.batch(replica, rank, batch);
                    }
                }
                Action::Keep { seq } => {
                    if let Some(arrived) = arrived.take() {
                        self.kept_bytes += arrived.bytes;
                        self.kept.insert(seq, (arrived.batch, arrived.bytes));
                    }
                }
                Action::Drop { seq } => {
                    // What was told about is dropped with the event.
                    if arrived.as_ref().is_none_or(|arrived| arrived.seq != seq) {
                        self.forget(seq);
                    }
                }
                Action::Replay { from } => self.replay = self.ask(from),
            }
        }
        if self.kept_bytes > MAX_KEPT_BYTES {
            self.replay = None;
            self.handle(Event::ReplayFailed, None);
        }
        if self.told != Some(self.feed.health((self.now)())) {
            self.tell();
        }
    }

    fn forget(&mut self, seq: u64) -> Option<Batch> {
        let (batch, bytes) = self.kept.remove(&seq)?;
        self.kept_bytes -= bytes;
        Some(batch)
    }

    fn tell(&mut self) {
        let health = self.feed.health((self.now)());
        self.told = Some(health);
        self.sink.health(self.source.replica, self.source.feed, health, self.feed.counts());
    }

    fn ask(&self, from: u64) -> Option<Replay> {
        let endpoint = self.source.replay.clone()?;
        let (sender, arrived) = mpsc::channel(REPLAY_QUEUE);
        let task = tokio::spawn(async move {
            let end = match replay(&endpoint, from, &sender).await {
                Ok(()) => Message::Ended,
                Err(_) => Message::Failed,
            };
            // Nobody listens any more when the follower has asked for another one.
            let _ = sender.send(end).await;
        });
        Some(Replay { arrived, task })
    }
}

/// A payload that cannot be read at all is a batch without events: its number has come, and there is nothing to be had by asking again.
fn read(seq: u64, payload: &Bytes) -> Arrived {
    let batch = Batch::decode(payload).unwrap_or_else(|error| Batch {
        problems: 1,
        first_problem: Some(error),
        ..Batch::default()
    });
    Arrived { seq, batch, bytes: payload.len() }
}

/// Asks an engine for its batches from a number on, and passes them on until the last.
async fn replay(endpoint: &str, from: u64, to: &mpsc::Sender<Message>) -> Result<(), Error> {
    let mut connection = Connection::open(endpoint, Kind::Dealer).await?;
    connection.send(&[b"", &from.to_be_bytes()]).await?;
    loop {
        let frames = connection.receive().await?;
        // Behind an empty frame: in earlier versions number and payload, in later ones the topic before them.
        let ([delimiter, seq, payload] | [delimiter, _, seq, payload]) = frames.as_slice() else {
            return Err(Error::Shape { what: "a replay's message", expected: "three or four frames" });
        };
        let (true, Some(seq)) = (delimiter.is_empty(), number(seq)) else {
            return Err(Error::Shape {
                what: "a replay's message",
                expected: "an empty frame first, and a number",
            });
        };
        if seq == END {
            return Ok(());
        }
        if to.send(Message::Batch { seq, payload: payload.clone() }).await.is_err() {
            return Ok(());
        }
    }
}

fn number(frame: &Bytes) -> Option<u64> {
    Some(u64::from_be_bytes(frame.as_ref().try_into().ok()?))
}
