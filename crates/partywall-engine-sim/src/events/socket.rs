//! Events on ZMQ: a PUB socket for what happens, and a ROUTER socket for what somebody missed.
//!
//! A published message is `topic, number, batch`, the number as eight bytes, high end first. Who asks for a replay sends the number to begin
//! with, with or without an empty frame before it, and gets `"", topic, number, batch` for each that is kept (SGLang, and vLLM before it
//! sent maps, without the topic), then one with the number -1 and an empty batch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket as _, SocketRecv as _, SocketSend as _, ZmqMessage};

use super::journal::{Journal, Numbered};
use crate::error::Error;
use crate::faults::{Fault, Faults};

/// The number that ends a replay: -1.
const END: u64 = u64::MAX;

/// Where events go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoints {
    /// Of the PUB socket: `tcp://host:port` or `ipc://path`.
    pub publish: String,
    /// Of the ROUTER socket; without it nothing can be replayed.
    pub replay: Option<String>,
    /// The first frame of every message.
    pub topic: String,
    /// Batches kept for a replay.
    pub kept: usize,
    /// Replayed messages carry the topic.
    pub replays_topic: bool,
}

/// The two sockets of a replica. They close when it is dropped.
pub struct Publisher {
    socket: PubSocket,
    topic: Bytes,
    journal: Arc<Mutex<Journal>>,
    questions: Arc<Questions>,
    replay: Option<JoinHandle<()>>,
    bound: (String, Option<String>),
}

impl Publisher {
    /// Binds the sockets.
    ///
    /// # Errors
    /// When an endpoint is not to be had.
    pub async fn bind(endpoints: &Endpoints) -> Result<Self, Error> {
        let mut socket = PubSocket::new();
        let bound = socket.bind(&resolved(&endpoints.publish)).await;
        let bound = bound.map_err(|error| Error::Bind {
            endpoint: endpoints.publish.clone(),
            reason: error.to_string(),
            setting: "--kv-events",
        })?;
        let topic = Bytes::copy_from_slice(endpoints.topic.as_bytes());
        let journal = Arc::new(Mutex::new(Journal::new(endpoints.kept)));
        let questions = Arc::new(Questions::default());
        let mut made =
            Self { socket, topic, journal, questions, replay: None, bound: (bound.to_string(), None) };
        if let Some(endpoint) = &endpoints.replay {
            let mut router = RouterSocket::new();
            let bound = router.bind(&resolved(endpoint)).await.map_err(|error| Error::Bind {
                endpoint: endpoint.clone(),
                reason: error.to_string(),
                setting: "--kv-replay",
            })?;
            made.bound.1 = Some(bound.to_string());
            let replay = Replay {
                router,
                topic: endpoints.replays_topic.then(|| made.topic.clone()),
                journal: made.journal.clone(),
                questions: made.questions.clone(),
            };
            made.replay = Some(tokio::spawn(replay.serve()));
        }
        Ok(made)
    }

    /// The endpoints as they were bound: a port of 0 is a real one here.
    pub fn bound(&self) -> (String, Option<String>) {
        self.bound.clone()
    }

    /// Sends a batch, as far as the faults allow.
    pub async fn publish(&mut self, payload: Vec<u8>, faults: &mut Faults) {
        // Within a short lock that nobody panics under.
        let sent = lock(&self.journal).publish(payload.into(), faults);
        for one in sent {
            let Numbered { number, payload } = one;
            let mut message = ZmqMessage::from(self.topic.clone());
            message.push_back(Bytes::copy_from_slice(&number.to_be_bytes()));
            message.push_back(payload);
            // Fails only for a message without frames; who is slow loses messages, as PUB sockets do.
            let _ = self.socket.send(message).await;
        }
    }

    /// Never uses the next numbers.
    pub fn skip(&mut self, numbers: u64, faults: &mut Faults) {
        lock(&self.journal).skip(numbers, faults);
    }

    /// Begins at 0 again.
    pub fn restart(&mut self) {
        lock(&self.journal).restart();
    }

    /// Answers who asks for a replay, or not.
    pub fn answer_replays(&mut self, faults: &Faults) {
        self.questions.ignore.store(faults.get(Fault::NoReplay.name()).is_some(), Ordering::Relaxed);
    }

    /// How often somebody asked for a replay and got no answer.
    pub fn ignored(&self) -> u64 {
        self.questions.ignored.load(Ordering::Relaxed)
    }

    /// How many batches there were since the last restart, those that were skipped among them.
    pub fn batches(&self) -> u64 {
        lock(&self.journal).next()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(replay) = &self.replay {
            replay.abort();
        }
    }
}

/// What becomes of questions for a replay: two numbers that stand for themselves, in no order with anything else.
#[derive(Debug, Default)]
struct Questions {
    ignore: AtomicBool,
    ignored: AtomicU64,
}

/// The answering half.
struct Replay {
    router: RouterSocket,
    topic: Option<Bytes>,
    journal: Arc<Mutex<Journal>>,
    questions: Arc<Questions>,
}

impl Replay {
    async fn serve(mut self) {
        while let Ok(asked) = self.router.recv().await {
            let frames = asked.into_vec();
            let (Some(who), Some(number)) = (frames.first(), frames.last().and_then(number)) else {
                continue;
            };
            if frames.len() > 3 {
                continue;
            }
            if self.questions.ignore.load(Ordering::Relaxed) {
                self.questions.ignored.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            let kept = lock(&self.journal).since(number);
            let end = Numbered { number: END, payload: Bytes::new() };
            for one in kept.into_iter().chain([end]) {
                let mut answer = ZmqMessage::from(who.clone());
                answer.push_back(Bytes::new());
                if let Some(topic) = &self.topic {
                    answer.push_back(topic.clone());
                }
                answer.push_back(Bytes::copy_from_slice(&one.number.to_be_bytes()));
                answer.push_back(one.payload);
                if self.router.send(answer).await.is_err() {
                    // Who asked has gone.
                    break;
                }
            }
        }
    }
}

fn number(frame: &Bytes) -> Option<u64> {
    Some(u64::from_be_bytes(frame.as_ref().try_into().ok()?))
}

/// `*` is how ZMQ's own library spells every address of the machine.
fn resolved(endpoint: &str) -> String {
    endpoint.replacen("://*:", "://0.0.0.0:", 1)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
