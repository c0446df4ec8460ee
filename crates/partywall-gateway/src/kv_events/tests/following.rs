//! The subscriber against sockets of another implementation, over loopback.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use partywall_core::units::Nanos;
use partywall_routing::feed::{Counts, Health, Limits};
use partywall_routing::index::EngineHash;
use partywall_routing::replica::ReplicaId;
use rmpv::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

use super::decoding::{bytes, list, numbers};
use crate::kv_events::zmtp::{Connection, Kind};
use crate::kv_events::{Batch, Error, Event, MAX_FRAME_BYTES, Sink, Source, SourceError, follow};

/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a sink was told.
#[derive(Debug, PartialEq)]
enum Told {
    Batch(u64),
    Clear,
}

struct Ears {
    told: mpsc::UnboundedSender<Told>,
    health: Mutex<Option<(Health, Counts)>>,
}

impl Sink for Ears {
    fn batch(&self, replica: ReplicaId, rank: u32, batch: Batch) {
        assert_eq!((replica, rank, batch.problems), (ReplicaId(3), 1, 0));
        let [Event::Removed { hashes, .. }] = &batch.events[..] else { panic!("{batch:?}") };
        let [EngineHash(number)] = hashes[..] else { panic!("{hashes:?}") };
        let _ = self.told.send(Told::Batch(number));
    }

    fn clear(&self, _: ReplicaId, _: u32) {
        let _ = self.told.send(Told::Clear);
    }

    fn health(&self, _: ReplicaId, _: u32, health: Health, counts: Counts) {
        *self.health.lock().expect("no panic") = Some((health, counts));
    }
}

/// An engine's sockets, with a ring that holds everything.
struct Engine {
    publisher: PubSocket,
    events: String,
    replay: String,
    ring: Arc<Mutex<Vec<Bytes>>>,
    stop: oneshot::Sender<()>,
    replays: JoinHandle<()>,
}

impl Engine {
    /// Nothing when its addresses are taken.
    async fn start(events: &str, replay: &str, topics: bool) -> Option<Self> {
        let mut publisher = PubSocket::new();
        let events = publisher.bind(events).await.ok()?.to_string();
        let mut router = RouterSocket::new();
        let replay = router.bind(replay).await.ok()?.to_string();
        let ring = Arc::new(Mutex::new(Vec::<Bytes>::new()));
        let answers = Arc::clone(&ring);
        let (stop, mut stopped) = oneshot::channel();
        let replays = tokio::spawn(async move {
            loop {
                let request = tokio::select! {
                    request = router.recv() => request,
                    _ = &mut stopped => {
                        router.unbind_all().await;
                        return;
                    }
                };
                let Ok(request) = request else { continue };
                let request = request.into_vec();
                let [peer, delimiter, from] = &request[..] else { panic!("{request:?}") };
                assert!(delimiter.is_empty());
                let from = u64::from_be_bytes(from[..].try_into().expect("8 bytes"));
                let ring = answers.lock().expect("no panic").clone();
                let mut batches: Vec<(u64, Bytes)> = (0..).zip(ring).skip(from as usize).collect();
                batches.push((u64::MAX, Bytes::new()));
                for (seq, payload) in batches {
                    let mut frames = vec![peer.clone(), Bytes::new()];
                    if topics {
                        frames.push(Bytes::from_static(b"kv"));
                    }
                    frames.extend([Bytes::copy_from_slice(&seq.to_be_bytes()), payload]);
                    let _ = router.send(ZmqMessage::try_from(frames).expect("frames")).await;
                }
            }
        });
        Some(Self { publisher, events, replay, ring, stop, replays })
    }

    /// Publishes a batch with this number in it, or lets it get lost.
    async fn publish(&mut self, number: u64, lost: bool) {
        let event = list(["BlockRemoved".into(), numbers([number])]);
        let payload = Bytes::from(bytes(&list([Value::F64(1.0 + number as f64), list([event])])));
        let seq = {
            let mut ring = self.ring.lock().expect("no panic");
            ring.push(payload.clone());
            ring.len() as u64 - 1
        };
        if !lost {
            let frames = vec![Bytes::from_static(b"kv"), Bytes::copy_from_slice(&seq.to_be_bytes()), payload];
            self.publisher.send(ZmqMessage::try_from(frames).expect("frames")).await.expect("a socket");
        }
    }

    /// Its addresses are free again then.
    async fn stop(mut self) -> (String, String) {
        self.publisher.unbind_all().await;
        let _ = self.stop.send(());
        let _ = self.replays.await;
        (self.events, self.replay)
    }
}

struct World {
    ears: Arc<Ears>,
    told: mpsc::UnboundedReceiver<Told>,
    follower: JoinHandle<()>,
}

impl World {
    fn follow(engine: &Engine) -> Self {
        let (sender, told) = mpsc::unbounded_channel();
        let ears = Arc::new(Ears { told: sender, health: Mutex::new(None) });
        let source = Source {
            replica: ReplicaId(3),
            feed: 1,
            events: engine.events.clone(),
            replay: Some(engine.replay.clone()),
            topic: "kv".into(),
        };
        let start = tokio::time::Instant::now();
        let now = Arc::new(move || Nanos(start.elapsed().as_nanos() as u64));
        let sink: Arc<dyn Sink> = Arc::<Ears>::clone(&ears);
        let follower = tokio::spawn(follow(source, Limits::default(), sink, now));
        Self { ears, told, follower }
    }

    async fn next(&mut self) -> Told {
        let next = tokio::time::timeout(PATIENCE, self.told.recv()).await;
        next.expect("something in time").expect("a follower that goes on")
    }

    /// What was told of the feed, as soon as it is as it should be.
    async fn healthy(&self, as_it_should: impl Fn(&(Health, Counts)) -> bool) -> (Health, Counts) {
        let told = async {
            loop {
                let told = *self.ears.health.lock().expect("no panic");
                match told.filter(&as_it_should) {
                    Some(told) => return told,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        tokio::time::timeout(PATIENCE, told).await.expect("a healthy feed in time")
    }

    async fn expect(&mut self, numbers: impl IntoIterator<Item = u64>) {
        for number in numbers {
            assert_eq!(self.next().await, Told::Batch(number));
        }
    }

    /// Publishes batches from a number on until one of them is heard live, as the applied ones show. Returns the next number.
    async fn publish_until_heard(&mut self, engine: &mut Engine, from: u64) -> u64 {
        let mut number = from;
        loop {
            engine.publish(number, false).await;
            number += 1;
            match tokio::time::timeout(Duration::from_millis(50), self.told.recv()).await {
                Ok(told) => {
                    assert_eq!(told, Some(Told::Batch(from)));
                    self.expect(from + 1..number).await;
                    return number;
                }
                Err(_) => assert!(number < from + 2400, "nothing was heard"),
            }
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.follower.abort();
    }
}

async fn late_lossy_and_started_again(events: &str, replay: &str, topics: bool) {
    let mut engine = Engine::start(events, replay, topics).await.expect("free ports");
    for number in 0..5 {
        engine.publish(number, false).await;
    }
    // Late: what was before comes from the replay.
    let mut world = World::follow(&engine);
    world.expect(0..5).await;
    let mut next = world.publish_until_heard(&mut engine, 5).await;
    // A gap: two are lost, the next one shows it.
    engine.publish(next, true).await;
    engine.publish(next + 1, true).await;
    engine.publish(next + 2, false).await;
    world.expect(next..next + 3).await;
    next += 3;
    let closed = |health: &(Health, Counts)| health.0 == Health::Exact && health.1.replays >= 2;
    let (_, counts) = world.healthy(closed).await;
    assert_eq!((counts.lost, counts.clears), (0, 0));
    // Started again at the same place: numbers begin at zero, and what was said before is over.
    let (events, replay) = engine.stop().await;
    let mut engine = Engine::start(&events, &replay, topics).await.expect("the same ports");
    engine.publish(next, true).await;
    let mut number = next + 1;
    loop {
        engine.publish(number, false).await;
        number += 1;
        assert!(number < next + 2400, "nothing was heard");
        if let Ok(told) = tokio::time::timeout(Duration::from_millis(50), world.told.recv()).await {
            assert_eq!(told, Some(Told::Clear));
            break;
        }
    }
    world.expect(next..number).await;
}

#[tokio::test]
async fn everything_is_applied_once_and_in_order_over_tcp() {
    late_lossy_and_started_again("tcp://127.0.0.1:0", "tcp://127.0.0.1:0", true).await;
}

#[tokio::test]
async fn everything_is_applied_once_and_in_order_over_ipc() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    late_lossy_and_started_again(&path("events"), &path("replay"), false).await;
}

/// A peer that sends these bytes behind a greeting, and what a connection to it comes to.
async fn beside(sent: Vec<u8>) -> Result<Vec<Bytes>, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let peer = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let _ = stream.write_all(&sent).await;
        // Until the other side has enough.
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    });
    let outcome = async {
        let mut connection = Connection::open(&format!("tcp://{address}"), Kind::Subscriber).await?;
        connection.receive().await
    };
    let outcome = tokio::time::timeout(PATIENCE, outcome).await.expect("an answer in time");
    peer.abort();
    outcome
}

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xff, 0x7f, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(more: &[u8]) -> Vec<u8> {
    [&greeting()[..], &[4, 6], b"\x05READY", more].concat()
}

#[tokio::test]
async fn a_peer_that_breaks_the_protocol_is_left() {
    let message = beside(ready(&[1, 1, b'a', 4, 2, b'x', b'y', 0, 2, b'b', b'c'])).await;
    assert_eq!(message, Ok(vec![Bytes::from_static(b"a"), Bytes::from_static(b"bc")]));
    let too_long = beside(ready(&[2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])).await;
    assert_eq!(too_long, Err(Error::TooMany { what: "bytes in a frame", limit: MAX_FRAME_BYTES }));
    let too_many = beside(ready(&[1, 0].repeat(9))).await;
    assert!(matches!(too_many, Err(Error::TooMany { what: "frames in a message", .. })));
    assert!(matches!(beside(ready(&[0x40, 0])).await, Err(Error::Protocol { .. })));
    assert!(matches!(beside(b"HTTP/1.1 400 Bad Request\r\n".repeat(3)).await, Err(Error::Protocol { .. })));
    let mut curve = greeting();
    curve[12..17].copy_from_slice(b"CURVE");
    assert!(matches!(beside(curve).await, Err(Error::Protocol { .. })));
    assert!(matches!(beside([greeting(), vec![0, 1, b'x']].concat()).await, Err(Error::Protocol { .. })));
}

#[tokio::test]
async fn an_address_that_is_none_says_what_would_be_one() {
    let error = Connection::open("udp://1.2.3.4:5", Kind::Subscriber).await.err().expect("an error");
    assert_eq!(error.to_string(), "udp://1.2.3.4:5: not an address; write tcp://HOST:PORT or ipc://PATH");
}

#[test]
fn ranks_count_ports() {
    let source = Source {
        replica: ReplicaId(0),
        feed: 0,
        events: "tcp://engine:5557".into(),
        replay: Some("tcp://[::1]:5558".into()),
        topic: String::new(),
    };
    let second = source.of_rank(2).expect("ports");
    assert_eq!((second.feed, &second.events[..]), (0, "tcp://engine:5559"));
    assert_eq!(second.replay.as_deref(), Some("tcp://[::1]:5560"));
    assert!(matches!(source.of_rank(65_000), Err(SourceError::NoRoom { .. })));
    let ipc = Source { events: "ipc://engine".into(), ..source };
    assert_eq!(ipc.of_rank(0).as_ref(), Ok(&ipc));
    assert!(matches!(ipc.of_rank(1), Err(SourceError::NoPort { .. })));
}
