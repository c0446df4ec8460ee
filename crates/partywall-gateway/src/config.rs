//! `gateway.toml`: where to listen, which replicas there are, what requests may do.
//!
//! As with `partywall.toml` the types are the one source of the format: parser, JSON schema and the messages come from them. A replica
//! that is registered over the API is described by the same type as one of the file.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use partywall_core::config::{ConfigError, schema_of};
use partywall_core::diagnostic::Diagnostic;
use partywall_core::tenant::Class;
use partywall_core::units::{Bytes, Nanos};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod check;
mod events;
#[cfg(test)]
mod tests;

pub use check::replica_problem;
pub use events::{EventSources, KvEvents};

/// A commented configuration that is valid as it stands; `examples/gateway.toml` is the same text.
pub const EXAMPLE: &str = include_str!("../../../examples/gateway.toml");

/// Replicas at the same time. The tables of the router grow with them.
pub const MAX_REPLICAS: usize = 4096;

/// Event streams of a replica: data-parallel ranks, over all its models.
pub const MAX_RANKS: u32 = 1024;

/// The file `gateway.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Where clients connect.
    #[serde(default)]
    pub listen: Listen,
    /// Where operators connect: metrics, facts, registration.
    #[serde(default)]
    pub admin: Admin,
    /// How requests find their replicas.
    #[serde(default)]
    pub routing: Routing,
    /// Who may ask. Default: everybody who can connect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Keys>,
    /// How much a client may take.
    #[serde(default)]
    pub limits: Limits,
    /// How long anything may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// What is tried again.
    #[serde(default)]
    pub retry: Retry,
    /// When a replica that fails gets nothing for a while.
    #[serde(default)]
    pub breaker: Breaker,
    /// How replicas are asked whether they are there.
    #[serde(default)]
    pub health: Health,
    /// What is written down of each request.
    #[serde(default)]
    pub log: Log,
    /// The models, at least one: what a request names, and what a replica serves.
    #[serde(rename = "model")]
    #[schemars(length(min = 1))]
    pub models: Vec<Model>,
    /// The replicas. There may be none at first where they are registered over the API.
    #[serde(default, rename = "replica")]
    pub replicas: Vec<Replica>,
    /// Paths that are passed on as they are, for servers that speak something else than the OpenAI API.
    #[serde(default, rename = "proxy")]
    pub proxies: Vec<Proxy>,
}

/// Where clients connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Listen {
    /// Address and port. Default: `"127.0.0.1:8000"`.
    pub address: SocketAddr,
    /// Threads that serve, each on its own. Default: one for each core, at most 16.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 256))]
    pub workers: Option<usize>,
    /// The certificates, PEM, the server's own first. With `key`: TLS; without both: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert: Option<PathBuf>,
    /// The private key, PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8000),
            workers: None,
            cert: None,
            key: None,
        }
    }
}

/// Where operators connect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Admin {
    /// Address and port. Default: `"127.0.0.1:8001"`.
    pub address: SocketAddr,
    /// A file with a token that those who change something have to show as `Authorization: Bearer TOKEN`. Needed where the address is not a
    /// loopback one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token_file: Option<PathBuf>,
}

impl Default for Admin {
    fn default() -> Self {
        Self { address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8001), token_file: None }
    }
}

/// How requests find their replicas.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Routing {
    /// The policy by its name; docs/routing.md describes them. Default: `"partywall"`.
    pub policy: String,
    /// Requests that are held at the same time; more are refused. Default: 4096.
    pub held: usize,
    /// The class of a request for which nothing else says one. Default: `"latency-sensitive"`.
    pub class: Class,
    /// What the engine's cache is taken to hold where no events tell: how long a prefix counts after its last use. Default: `"2min"`.
    pub assumed_for: Nanos,
    /// Blocks that are remembered, of all models and replicas together. Default: 4 000 000.
    pub max_blocks: usize,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            policy: "partywall".to_owned(),
            held: 4096,
            class: Class::LatencySensitive,
            assumed_for: Nanos::from_secs(120),
            max_blocks: 4_000_000,
        }
    }
}

/// Who may ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Keys {
    /// A file with one key in a line: a name, then `sha256:` and 64 hexadecimal digits or the key itself, then optionally
    /// `latency-sensitive` or `best-effort`: the class of its requests. Lines that begin with # are comments.
    pub file: PathBuf,
}

/// How much a client may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Limits {
    /// The body of a request. Default: `"32MiB"`, some pictures.
    pub body: Bytes,
    /// All bodies together that are kept because their requests have not been answered yet. Default: `"1GiB"`.
    pub bodies: Bytes,
    /// An answer that is kept whole because a replica that dies before its end is to be seen as an error. A longer one is passed
    /// on as it comes. Default: `"4MiB"`.
    pub answer: Bytes,
    /// The head of a request, at least 8 KiB. Default: `"64KiB"`.
    pub head: Bytes,
    /// Header lines of a request. Default: 100.
    #[schemars(range(min = 1, max = 1000))]
    pub headers: usize,
    /// Connections of clients; more wait to be accepted. Default: 10 000.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub connections: usize,
    /// Requests under way, held ones too; more are refused with 503. Default: 8192.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body: Bytes::from_mib(32),
            bodies: Bytes::from_gib(1),
            answer: Bytes::from_mib(4),
            head: Bytes::from_kib(64),
            headers: 100,
            connections: 10_000,
            requests: 8192,
        }
    }
}

/// How long anything may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Timeouts {
    /// From a connection's start, or the end of its last answer, to the end of the next request's head. Default: `"30s"`.
    pub head: Nanos,
    /// From the end of the head to the end of the body. Default: `"1min"`.
    pub body: Nanos,
    /// A client that takes nothing of its answer for so long is cut off. Default: `"1min"`.
    pub write: Nanos,
    /// To connect to a replica. Default: `"2s"`.
    pub connect: Nanos,
    /// From sending a request to the head of the answer. Default: `"10min"`: without streaming that is the whole generation.
    pub answer: Nanos,
    /// Between two parts of an answer. Default: `"2min"`.
    pub silence: Nanos,
    /// How long a best-effort request is held for room. Default: `"1min"`.
    pub hold: Nanos,
    /// How long a latency-sensitive one is held while no replica is there. Default: `"10s"`.
    pub hold_latency_sensitive: Nanos,
    /// How long a connection to a replica is kept for the next request. Default: `"4s"`: uvicorn closes after five.
    pub idle: Nanos,
    /// How long what is under way may take to its end when the gateway is told to stop. Default: `"30s"`.
    pub drain: Nanos,
    /// From a request's arrival to the beginning of its answer, where its header `x-partywall-deadline` says nothing else. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Nanos>,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            head: Nanos::from_secs(30),
            body: Nanos::from_secs(60),
            write: Nanos::from_secs(60),
            connect: Nanos::from_secs(2),
            answer: Nanos::from_secs(600),
            silence: Nanos::from_secs(120),
            hold: Nanos::from_secs(60),
            hold_latency_sensitive: Nanos::from_secs(10),
            idle: Nanos::from_secs(4),
            drain: Nanos::from_secs(30),
            deadline: None,
        }
    }
}

/// What is tried again, on another replica if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Retry {
    /// How often, at most; 0 for never. Default: 2.
    #[schemars(range(max = 10))]
    pub times: u32,
    /// Answers that mean that the replica has not begun. Default: `[503]`.
    pub statuses: Vec<u16>,
    /// Also try again where the replica may have begun but nothing of its answer has come: the work may be done twice. Requests with GET
    /// and HEAD always are. Default: false.
    pub unanswered: bool,
    /// Ask a second replica where the first has not begun to answer for so long, and take who is first. Default: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hedge_after: Option<Nanos>,
}

impl Default for Retry {
    fn default() -> Self {
        Self { times: 2, statuses: vec![503], unanswered: false, hedge_after: None }
    }
}

/// When a replica that fails gets nothing for a while.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Breaker {
    /// Requests that fail within the window, and at least half of them all. Default: 5.
    #[schemars(range(min = 1))]
    pub failures: u32,
    /// The window. Default: `"10s"`.
    pub window: Nanos,
    /// How long it gets nothing, the first time. Default: `"2s"`.
    pub open: Nanos,
    /// And at most: it doubles while it goes on failing. Default: `"1min"`.
    pub open_max: Nanos,
}

impl Default for Breaker {
    fn default() -> Self {
        let base = partywall_routing::breaker::Settings::default();
        Self { failures: base.failures, window: base.window, open: base.open, open_max: base.open_max }
    }
}

/// How replicas are asked whether they are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Health {
    /// The path that answers 200 when a replica can work; empty for no asking. Default: `"/health"`.
    pub path: String,
    /// How often. Default: `"2s"`.
    pub interval: Nanos,
    /// How long the answer may take. Default: `"1s"`.
    pub timeout: Nanos,
    /// Failures in a row until it gets nothing. Default: 3.
    #[schemars(range(min = 1))]
    pub down_after: u32,
    /// Answers in a row until it gets requests again. Default: 2.
    #[schemars(range(min = 1))]
    pub up_after: u32,
}

impl Default for Health {
    fn default() -> Self {
        let base = partywall_routing::breaker::Settings::default();
        Self {
            path: "/health".to_owned(),
            interval: Nanos::from_secs(2),
            timeout: Nanos::from_secs(1),
            down_after: base.down_after,
            up_after: base.up_after,
        }
    }
}

/// What is written down of each request.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct Log {
    /// The file to which a line of JSON is appended for each request; `"-"` for standard output. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<PathBuf>,
}

/// A model: what a request names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Model {
    /// Its name, as requests say it.
    pub name: String,
    /// The model in this file that it is by another name, so that both share caches: for a second class of the same model. What is said
    /// of the tokenizer there holds here. Default: it is a model of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias_of: Option<String>,
    /// Adapters (LoRA) of it that requests name instead of it; each has keys and values of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<String>,
    /// The class of its requests, where neither the key nor the request says one. Default: that of `routing`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// Its `tokenizer.json`. Default: none; blocks are then of bytes, which tells equal beginnings too but does not fit an engine's events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<PathBuf>,
    /// Its chat template: a `tokenizer_config.json`, or a file with nothing but the template. Default: `tokenizer_config.json` beside the
    /// tokenizer, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<PathBuf>,
    /// Tokens in a block of its engines' caches. Default: 16, which is vLLM's.
    #[serde(default = "sixteen")]
    #[schemars(range(min = 1, max = 4096))]
    pub block_tokens: u32,
}

fn sixteen() -> u32 {
    16
}

/// A replica: one inference server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Replica {
    /// What it is called: lower-case letters, digits and hyphens. It stands in headers and metrics.
    #[schemars(regex(pattern = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"))]
    pub name: String,
    /// Where it is: `"http://10.0.0.5:8000"` or `"https://..."`, nothing behind the port.
    pub url: String,
    /// The models that it serves, by their names in this file.
    #[schemars(length(min = 1))]
    pub models: Vec<String>,
    /// Prompt tokens that it computes in a second. Default: 8000, a large model on one GPU.
    #[serde(default = "Replica::prefill_default")]
    pub prefill_tokens_per_s: f64,
    /// How long a token of output takes. Default: `"25ms"`.
    #[serde(default = "Replica::token_time_default")]
    pub token_time: Nanos,
    /// Requests that it generates for at the same time. Default: 64.
    #[serde(default = "Replica::streams_default")]
    pub streams: u32,
    /// Tokens that its cache holds. Default: 1 000 000.
    #[serde(default = "Replica::cache_default")]
    pub cache_tokens: u64,
    /// Its KV events, where it publishes them: a table, or a list of tables where it has several models or lists its ranks. Default: it does
    /// not; what it holds is then assumed from what was sent to it.
    #[serde(default, skip_serializing_if = "EventSources::is_empty")]
    #[schemars(with = "events::OneOrMany")]
    pub kv_events: EventSources,
    /// The node that knows how its GPU is. Default: nobody says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// A file with the key that it wants as `Authorization: Bearer KEY`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// A file with the certificates, PEM, that its own goes back to. Default: the public ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Its health path, if it is not the one of `health`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_path: Option<String>,
}

impl Replica {
    fn prefill_default() -> f64 {
        8000.0
    }
    fn token_time_default() -> Nanos {
        Nanos::from_millis(25)
    }
    fn streams_default() -> u32 {
        64
    }
    fn cache_default() -> u64 {
        1_000_000
    }
}

/// The node that keeps the replica's GPU, and what the replica is called there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Gpu {
    /// The node's HTTP address: `"http://127.0.0.1:9400"`.
    pub node: String,
    /// The tenant's name there.
    pub tenant: String,
}

/// Paths that are passed on as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Proxy {
    /// What they begin with: `"/vision/"`, with a slash at both ends.
    pub prefix: String,
    /// The model whose replicas they go to.
    pub model: String,
    /// Whether the prefix is taken off. Default: true.
    #[serde(default = "Proxy::yes")]
    pub strip: bool,
}

impl Proxy {
    fn yes() -> bool {
        true
    }
}

impl Config {
    /// Reads `text`, the contents of `file` (named in messages only).
    ///
    /// # Errors
    /// What is not TOML, has an unknown or missing key or a value of the wrong kind, or makes no sense.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        if let Some(diagnostic) = check::list_for_table(text, file) {
            return Err(diagnostic.into());
        }
        let config: Self = toml::from_str(text)
            .map_err(|error| Diagnostic::from_toml(text, file, &error, check::example))?;
        ConfigError::of(check::check(&config, text, file))?;
        Ok(config)
    }

    /// The JSON schema of the file.
    pub fn schema() -> String {
        schema_of::<Self>()
    }

    /// The parameters of health and breaker of each replica.
    pub fn breaker_settings(&self) -> partywall_routing::breaker::Settings {
        partywall_routing::breaker::Settings {
            failures: self.breaker.failures,
            window: self.breaker.window,
            open: self.breaker.open,
            open_max: self.breaker.open_max,
            down_after: self.health.down_after,
            up_after: self.health.up_after,
            ..Default::default()
        }
    }

    /// The place of the model that the one at `place` is, by whatever name.
    pub fn base(&self, place: usize) -> usize {
        let alias = self.models.get(place).and_then(|model| model.alias_of.as_ref());
        let base = alias.and_then(|name| self.models.iter().position(|model| model.name == *name));
        base.unwrap_or(place)
    }
}
