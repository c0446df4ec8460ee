//! What a consumer makes of an engine's events, by nothing but the bytes: an independent check of what is sent.

use std::collections::BTreeMap;

use partywall_engine_sim::server::Address;
use rmpv::Value;
use zeromq::{DealerSocket, Socket as _, SocketRecv as _, SocketSend as _, SubSocket, ZmqMessage};

/// A message as it came: its number and its batch.
pub(crate) type Message = (u64, Vec<u8>);

/// A cache, as its events tell of it. Hashes are compared as they were written.
#[derive(Debug, Default)]
pub(crate) struct Mirror {
    /// By hash: the parent's, the tokens, and what else the block depends on.
    blocks: BTreeMap<String, (Option<String>, Vec<u64>, String)>,
    pub(crate) block_tokens: usize,
    /// The number that comes next.
    pub(crate) next: u64,
    /// How often everything was cleared.
    pub(crate) cleared: usize,
    /// Whose cache it is.
    rank: u16,
}

impl Mirror {
    /// Of a data-parallel rank.
    pub(crate) fn of(rank: u16) -> Self {
        Self { rank, ..Self::default() }
    }

    /// Takes a message that has the next number.
    pub(crate) fn take(&mut self, (number, batch): &Message) {
        assert_eq!(*number, self.next, "messages come without gaps and in order");
        self.next += 1;
        self.apply(batch);
    }

    /// Takes a batch, whatever its number.
    pub(crate) fn apply(&mut self, batch: &[u8]) {
        let batch = rmpv::decode::read_value(&mut &batch[..]).unwrap();
        let (time, events, rank) = match &batch {
            Value::Array(fields) => (fields[0].clone(), fields[1].clone(), fields[2].clone()),
            map => (map["ts"].clone(), map["events"].clone(), map["data_parallel_rank"].clone()),
        };
        assert!(time.as_f64().unwrap() > 1.5e9, "{time} is a time of day");
        assert_eq!(rank, Value::from(self.rank));
        for event in events.as_array().unwrap() {
            self.event(event);
        }
    }

    fn event(&mut self, event: &Value) {
        // Where each field is in an array, and its name in a map.
        let field = |place: usize, name: &str| match event {
            Value::Array(fields) => fields.get(place).cloned().unwrap_or(Value::Nil),
            map => map[name].clone(),
        };
        let hashes = |value: Value| -> Vec<String> {
            value.as_array().unwrap().iter().map(Value::to_string).collect()
        };
        match field(0, "type").as_str().unwrap() {
            "BlockStored" => {
                let tokens = field(3, "token_ids");
                let tokens: Vec<u64> =
                    tokens.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
                self.block_tokens = field(4, "block_size").as_u64().unwrap() as usize;
                let hashes = hashes(field(1, "block_hashes"));
                assert_eq!(tokens.len(), hashes.len() * self.block_tokens);
                let mut parent = Some(field(2, "parent_block_hash"))
                    .filter(|hash| !hash.is_nil())
                    .map(|hash| hash.to_string());
                let domain = format!("{} {}", field(7, "lora_name"), field(usize::MAX, "cache_salt"));
                for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(self.block_tokens)) {
                    let before = self.blocks.insert(hash.clone(), (parent, tokens.to_vec(), domain.clone()));
                    assert_eq!(before, None, "stored twice");
                    parent = Some(hash);
                }
            }
            "BlockRemoved" => {
                for hash in hashes(field(1, "block_hashes")) {
                    assert!(self.blocks.remove(&hash).is_some(), "{hash} is removed and was not there");
                }
            }
            "AllBlocksCleared" => {
                self.blocks.clear();
                self.cleared += 1;
            }
            other => panic!("{other} is no event"),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Tokens of a text prompt that an engine with this cache need not compute: whole blocks from its beginning, and never all of it.
    pub(crate) fn cached(&self, prompt: &str) -> u64 {
        if self.block_tokens == 0 {
            return 0;
        }
        let tokens: Vec<u64> = prompt.bytes().map(u64::from).collect();
        let (mut parent, mut found) = (None, 0);
        for block in tokens.chunks_exact(self.block_tokens) {
            let here = |(hash, content): (&String, &(Option<String>, Vec<u64>, String))| {
                (content.0 == parent && content.1 == block).then(|| hash.clone())
            };
            let Some(hash) = self.blocks.iter().find_map(here) else { break };
            parent = Some(hash);
            found += self.block_tokens;
        }
        found.min((tokens.len() - 1) / self.block_tokens * self.block_tokens) as u64
    }
}

/// Asks for a replay from `number` on and gives what comes, until the end is told. `None` for the topic means that none may come.
pub(crate) async fn replay(address: &Address, number: u64, topic: Option<&str>) -> Vec<Message> {
    let mut socket = asked(address, number).await;
    answered(&mut socket, topic).await
}

/// One answer, to its end.
pub(crate) async fn answered(socket: &mut DealerSocket, topic: Option<&str>) -> Vec<Message> {
    let mut messages = Vec::new();
    loop {
        let mut frames = socket.recv().await.unwrap().into_vec();
        assert!(frames.remove(0).is_empty(), "the delimiter");
        if let Some(topic) = topic {
            assert_eq!(frames.remove(0), topic);
        }
        let [number, payload] = frames.as_slice() else { panic!("{frames:?}") };
        let number = u64::from_be_bytes(number.as_ref().try_into().unwrap());
        if number == u64::MAX {
            assert!(payload.is_empty());
            return messages;
        }
        messages.push((number, payload.to_vec()));
    }
}

/// A socket that has asked for a replay.
pub(crate) async fn asked(address: &Address, number: u64) -> DealerSocket {
    let mut socket = DealerSocket::new();
    socket.connect(address.kv_replay.as_ref().unwrap()).await.unwrap();
    ask(&mut socket, number).await;
    socket
}

/// Asks for a replay from `number` on.
pub(crate) async fn ask(socket: &mut DealerSocket, number: u64) {
    let mut question = ZmqMessage::from(bytes::Bytes::new());
    question.push_back(number.to_be_bytes().to_vec().into());
    socket.send(question).await.unwrap();
}

/// A subscription to everything.
pub(crate) async fn subscribe(address: &Address) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(address.kv_events.as_ref().unwrap()).await.unwrap();
    socket.subscribe("kv").await.unwrap();
    socket
}

/// The next message of a subscription.
pub(crate) async fn next(socket: &mut SubSocket) -> Message {
    let frames = socket.recv().await.unwrap().into_vec();
    let [topic, number, payload] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!(topic, "kv");
    (u64::from_be_bytes(number.as_ref().try_into().unwrap()), payload.to_vec())
}
