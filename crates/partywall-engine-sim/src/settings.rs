//! What an engine is like.

use std::net::SocketAddr;

use partywall_core::units::Nanos;

use crate::error::Error;
use crate::events::wire::Shape;
use crate::faults::Fault;

/// Engines in one process, over the ranks of all replicas: each has two sockets for events, of which the library keeps room for 100 000
/// messages, 4 MB, and a task.
pub const MAX_ENGINES: u16 = 256;

/// Largest cache: its contents are kept, four bytes a token and what a map costs a block.
pub const MAX_CACHE_TOKENS: u64 = 100_000_000;

/// Longest name of a model or an adapter, in bytes.
pub const MAX_NAME: usize = 256;

/// What an engine is like, and how many of it there are.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Where the first replica answers HTTP; the others at the ports after it. Port 0 is any free one, of each.
    pub listen: SocketAddr,
    /// How many replicas; they share nothing but the process.
    pub replicas: u16,
    /// Data-parallel ranks of each: engines behind one address, each with a cache and events of its own. A request goes to the one that has
    /// fewest. Together with the replicas at most [`MAX_ENGINES`].
    pub ranks: u16,
    /// What the model is called.
    pub model: String,
    /// What it may be called as well: other names of the same model, with the same blocks.
    pub aliases: Vec<String>,
    /// LoRA adapters of it, which are asked for as models of their own.
    pub loras: Vec<String>,
    /// Prompt tokens computed in a second.
    pub prefill_tokens_per_s: f64,
    /// From one token of output to the next.
    pub token_time: Nanos,
    /// Requests that get tokens at the same time; more wait.
    pub streams: u32,
    /// Tokens that the cache holds.
    pub cache_tokens: u64,
    /// Tokens in a block of it.
    pub block_tokens: u32,
    /// Tokens of the longest prompt with its answer.
    pub context_tokens: u64,
    /// Requests with a `priority` above 0 are computed after the others, as by vLLM's priority scheduling.
    pub by_priority: bool,
    /// Where the cache's events go, if anywhere.
    pub events: Option<EventSettings>,
    /// What goes wrong from the start, in every replica.
    pub faults: Vec<Fault>,
    /// Seconds of the engine in one second of the machine.
    pub time_scale: f64,
    /// Decides texts and the engines' names for blocks.
    pub seed: u64,
}

/// Where events go and what they look like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSettings {
    /// The PUB socket of the first engine, `tcp://host:port` or, of a single one, `ipc://path`. The others' are at the ports after it: first the
    /// ranks of the first replica, then those of the next.
    pub publish: String,
    /// The ROUTER socket for replays, in the same way.
    pub replay: Option<String>,
    /// The first frame of each message.
    pub topic: String,
    /// Messages kept for a replay.
    pub kept: usize,
    /// Whose encoding.
    pub shape: Shape,
}

impl Default for Settings {
    /// The engine of the project's comparisons, with vLLM's block size, on vLLM's port.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 8000)),
            replicas: 1,
            ranks: 1,
            model: "stand-in".to_owned(),
            aliases: Vec::new(),
            loras: Vec::new(),
            prefill_tokens_per_s: 8_000.0,
            token_time: Nanos::from_millis(25),
            streams: 64,
            cache_tokens: 1_000_000,
            block_tokens: 16,
            context_tokens: 131_072,
            by_priority: false,
            events: None,
            faults: Vec::new(),
            time_scale: 1.0,
            seed: 1,
        }
    }
}

impl Settings {
    /// Every name that a request may give as its model: the model's own first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let own = std::iter::once(&self.model);
        own.chain(&self.aliases).chain(&self.loras).map(String::as_str)
    }

    /// Blocks that the cache holds.
    pub fn cache_blocks(&self) -> u64 {
        self.cache_tokens / u64::from(self.block_tokens.max(1))
    }

    /// Checks everything that does not need the machine.
    ///
    /// # Errors
    /// Names the setting, what it is and what would be right.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |setting, value: &dyn ToString, right: String| {
            Err(Error::Setting { setting, value: value.to_string(), right })
        };
        let between = |setting, value: f64, low: f64, high: f64| {
            if (low..=high).contains(&value) {
                Ok(())
            } else {
                wrong(setting, &value, format!("write something from {low} to {high}"))
            }
        };
        between("--ranks", f64::from(self.ranks), 1.0, f64::from(MAX_ENGINES))?;
        let most = MAX_ENGINES / self.ranks.max(1);
        between("--replicas", f64::from(self.replicas), 1.0, f64::from(most))?;
        between("--prefill-tokens-per-s", self.prefill_tokens_per_s, 1.0, 1e9)?;
        between("--token-time in seconds", self.token_time.as_secs(), 1e-6, 3600.0)?;
        between("--streams", f64::from(self.streams), 1.0, 65_536.0)?;
        between("--block-tokens", f64::from(self.block_tokens), 1.0, 4096.0)?;
        let block = f64::from(self.block_tokens);
        between("--cache-tokens", self.cache_tokens as f64, block, MAX_CACHE_TOKENS as f64)?;
        between("--context-tokens", self.context_tokens as f64, 2.0, MAX_CACHE_TOKENS as f64)?;
        between("--time-scale", self.time_scale, 1e-3, 1e6)?;
        for name in self.names() {
            if name.is_empty() || name.len() > MAX_NAME || name.chars().any(char::is_control) {
                let right = format!("write a name of 1 to {MAX_NAME} bytes without control characters");
                return wrong("a name of --model or --lora", &name, right);
            }
            if self.names().filter(|other| *other == name).count() > 1 {
                let right = "give every model and adapter a name of its own".to_owned();
                return wrong("a name of --model or --lora", &name, right);
            }
        }
        for replica in 0..self.replicas {
            self.listen_of(replica)?;
            (0..self.ranks).try_for_each(|rank| self.endpoints_of(replica, rank).map(drop))?;
        }
        self.events_apart()
    }

    /// Where a replica answers HTTP.
    ///
    /// # Errors
    /// When there is no such port.
    pub fn listen_of(&self, replica: u16) -> Result<SocketAddr, Error> {
        let Some(port) = port_of(self.listen.port(), replica) else {
            let right = format!("with {} replicas choose a lower port", self.replicas);
            return Err(Error::Setting { setting: "--listen", value: self.listen.to_string(), right });
        };
        Ok(SocketAddr::new(self.listen.ip(), port))
    }

    /// Where the events of a replica's rank go: to publish, and to replay.
    ///
    /// # Errors
    /// When an endpoint is none, or there is no such port.
    pub fn endpoints_of(&self, replica: u16, rank: u16) -> Result<Option<(String, Option<String>)>, Error> {
        let Some(events) = &self.events else { return Ok(None) };
        let engine = replica.saturating_mul(self.ranks).saturating_add(rank);
        let publish = self.endpoint_of("--kv-events", &events.publish, engine)?;
        let replay = events.replay.as_ref();
        let replay = replay.map(|endpoint| self.endpoint_of("--kv-replay", endpoint, engine)).transpose()?;
        Ok(Some((publish, replay)))
    }

    fn endpoint_of(&self, setting: &'static str, endpoint: &str, engine: u16) -> Result<String, Error> {
        let wrong =
            |right: &str| Error::Setting { setting, value: endpoint.to_owned(), right: right.to_owned() };
        if let Some(path) = endpoint.strip_prefix("ipc://") {
            return match (path.is_empty(), self.engines()) {
                (true, _) => Err(wrong("write ipc:// and a path")),
                (false, 1) => Ok(endpoint.to_owned()),
                (false, _) => {
                    Err(wrong("several engines need tcp://host:port, where each takes the next port"))
                }
            };
        }
        let place = tcp(endpoint).ok_or_else(|| wrong("write tcp://host:port or ipc://path"))?;
        let port =
            port_of(place.1, engine).ok_or_else(|| wrong("choose a lower port for so many engines"))?;
        Ok(format!("tcp://{}:{port}", place.0))
    }

    /// Over the ranks of all replicas.
    pub fn engines(&self) -> u16 {
        self.replicas.saturating_mul(self.ranks)
    }

    /// Ports of events and replays must not meet: both count up with the engines.
    fn events_apart(&self) -> Result<(), Error> {
        let Some(EventSettings { publish, replay: Some(replay), .. }) = &self.events else { return Ok(()) };
        let (Some((one, first)), Some((other, second))) = (tcp(publish), tcp(replay)) else { return Ok(()) };
        let engines = self.engines();
        if one == other && first != 0 && second != 0 && first.abs_diff(second) < engines {
            let right =
                format!("{engines} engines need its port at least {engines} from that of --kv-events");
            return Err(Error::Setting { setting: "--kv-replay", value: replay.clone(), right });
        }
        Ok(())
    }
}

/// Host and port.
fn tcp(endpoint: &str) -> Option<(&str, u16)> {
    let (host, port) = endpoint.strip_prefix("tcp://")?.rsplit_once(':')?;
    (!host.is_empty()).then_some(())?;
    Some((host, port.parse().ok()?))
}

/// The port of the replica or engine with this number. 0 is any free one for all of them.
fn port_of(first: u16, number: u16) -> Option<u16> {
    if first == 0 { Some(0) } else { first.checked_add(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_events(replicas: u16, publish: &str, replay: &str) -> Settings {
        let events = EventSettings {
            publish: publish.to_owned(),
            replay: Some(replay.to_owned()),
            topic: String::new(),
            kept: 10,
            shape: Shape::default(),
        };
        Settings { replicas, events: Some(events), ..Settings::default() }
    }

    #[test]
    fn each_replica_has_ports_of_its_own() {
        let settings = with_events(3, "tcp://*:5557", "tcp://*:5657");
        settings.check().unwrap();
        assert_eq!(settings.listen_of(2).unwrap().port(), 8002);
        let endpoints = settings.endpoints_of(2, 0).unwrap();
        assert_eq!(endpoints, Some(("tcp://*:5559".to_owned(), Some("tcp://*:5659".to_owned()))));
        let ranks = Settings { ranks: 4, ..settings };
        ranks.check().unwrap();
        assert_eq!(ranks.endpoints_of(2, 3).unwrap().unwrap().0, "tcp://*:5568");
        let any = with_events(3, "tcp://127.0.0.1:0", "tcp://127.0.0.1:0");
        any.check().unwrap();
        assert_eq!(any.endpoints_of(2, 0).unwrap().unwrap().0, "tcp://127.0.0.1:0");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let complaint = |settings: Settings| settings.check().unwrap_err().to_string();
        for (settings, words) in [
            (
                Settings { replicas: 0, ..Settings::default() },
                "--replicas is 0; write something from 1 to 256",
            ),
            (
                Settings { replicas: 65, ranks: 4, ..Settings::default() },
                "--replicas is 65; write something from 1 to 64",
            ),
            (Settings { time_scale: f64::NAN, ..Settings::default() }, "--time-scale is NaN"),
            (
                Settings { cache_tokens: 15, ..Settings::default() },
                "--cache-tokens is 15; write something from 16",
            ),
            (
                Settings { model: String::new(), ..Settings::default() },
                "a name of --model or --lora is ; write a name",
            ),
            (
                Settings { loras: vec!["stand-in".to_owned()], ..Settings::default() },
                "a name of --model or --lora is stand-in; give",
            ),
            (
                Settings {
                    replicas: 9,
                    listen: SocketAddr::from(([127, 0, 0, 1], 65_530)),
                    ..Settings::default()
                },
                "--listen is 127.0.0.1:65530; with 9 replicas",
            ),
            (
                with_events(2, "tcp://*:5557", "tcp://*:5558"),
                "--kv-replay is tcp://*:5558; 2 engines need its port",
            ),
            (with_events(2, "ipc://a", "tcp://*:5558"), "--kv-events is ipc://a; several engines need"),
            (with_events(1, "udp://a", "tcp://*:5558"), "--kv-events is udp://a; write tcp://host:port"),
        ] {
            assert!(complaint(settings.clone()).starts_with(words), "{}", complaint(settings));
        }
    }
}
