//! What is known of one request: a line of the log and its share of the metrics, whatever happens to it.

use std::sync::Arc;

use hyper::http::StatusCode;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::router::Placement;
use serde::Serialize;

use crate::clock;
use crate::counts::Counts;
use crate::log::Log;
use crate::scan::Usage;

/// Characters of what a client says that go into the log.
const MAX_CHARS: usize = 256;

/// One request from its arrival to its end. Its end is written down when it is dropped at the latest.
pub(crate) struct Record {
    counts: Arc<Counts>,
    log: Option<Arc<Log>>,
    arrived: Nanos,
    ended: bool,
    pub id: u64,
    /// What the client, or the gateway, calls it.
    pub request_id: String,
    pub method: String,
    pub path: String,
    pub key: Option<String>,
    pub model: Option<String>,
    pub class: Option<Class>,
    pub stream: bool,
    pub status: Option<StatusCode>,
    pub replica: Option<Arc<str>>,
    pub placement: Option<Placement>,
    /// Blocks of the prompt.
    pub blocks: usize,
    pub block_tokens: u32,
    pub input_tokens: u64,
    pub attempts: u32,
    pub in_bytes: u64,
    pub out_bytes: u64,
    /// Events of a stream.
    pub events: u64,
    pub usage: Usage,
    pub first_at: Option<Nanos>,
}

/// A line of the log.
#[derive(Serialize)]
struct Line<'a> {
    unix_ms: u64,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    method: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<Class>,
    stream: bool,
    status: Option<u16>,
    end: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    replica: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<Decision>,
    attempts: u32,
    input_tokens: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cached_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens: Option<u64>,
    events: u64,
    in_bytes: u64,
    out_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    took_ms: f64,
}

/// Why it went where it went.
#[derive(Serialize)]
struct Decision {
    cached_blocks: u32,
    blocks: usize,
    cost: f64,
    expected_ttft_ms: f64,
    backlog_ms: f64,
    evicted_blocks: f64,
    held_ms: f64,
}

impl Record {
    /// Of a request that has just come.
    pub(crate) fn new(id: u64, counts: Arc<Counts>, log: Option<Arc<Log>>) -> Self {
        counts.arrived();
        Self {
            counts,
            log,
            arrived: clock::now(),
            ended: false,
            id,
            request_id: String::new(),
            method: String::new(),
            path: String::new(),
            key: None,
            model: None,
            class: None,
            stream: false,
            status: None,
            replica: None,
            placement: None,
            blocks: 0,
            block_tokens: 0,
            input_tokens: 0,
            attempts: 0,
            in_bytes: 0,
            out_bytes: 0,
            events: 0,
            usage: Usage::default(),
            first_at: None,
        }
    }

    /// When it came.
    pub(crate) const fn arrived(&self) -> Nanos {
        self.arrived
    }

    /// Whether the answer says that it is the replica that cannot.
    pub(crate) fn replica_is_ill(&self) -> bool {
        self.status.is_some_and(is_illness)
    }

    /// The header that tells where the request went and why.
    pub(crate) fn header(&self, policy: &str) -> Option<String> {
        let placement = self.placement.as_ref()?;
        let class = self.class.map_or("", Class::short);
        Some(format!(
            "replica={}; policy={policy}; class={class}; cached={}/{}; ttft_ms={:.1}; backlog_ms={:.1}; evicted={:.1}; held_ms={:.1}; cost={:.4}; attempt={}",
            self.replica.as_deref().unwrap_or_default(),
            placement.cached_blocks,
            self.blocks,
            placement.expected_ttft.as_ms(),
            placement.backlog.as_ms(),
            placement.evicted_blocks,
            placement.held_for.as_ms(),
            placement.cost,
            self.attempts,
        ))
    }

    /// Its end, of which only the first counts: a word for programs.
    pub(crate) fn end(&mut self, end: &'static str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let now = clock::now();
        self.counts.ended(self, end, now);
        if let Some(log) = &self.log {
            let line = self.line(end, now);
            log.write(&line);
        }
    }

    fn line<'a>(&'a self, end: &'a str, now: Nanos) -> impl Serialize + 'a {
        let since = |time: Nanos| time.saturating_sub(self.arrived).as_ms();
        Line {
            unix_ms: clock::unix_ms(),
            request_id: &self.request_id,
            key: self.key.as_deref(),
            method: clip(&self.method),
            path: clip(&self.path),
            model: self.model.as_deref().map(clip),
            class: self.class,
            stream: self.stream,
            status: self.status.map(|status| status.as_u16()),
            end,
            replica: self.replica.as_deref(),
            decision: self.placement.map(|placement| Decision {
                cached_blocks: placement.cached_blocks,
                blocks: self.blocks,
                cost: placement.cost,
                expected_ttft_ms: placement.expected_ttft.as_ms(),
                backlog_ms: placement.backlog.as_ms(),
                evicted_blocks: placement.evicted_blocks,
                held_ms: placement.held_for.as_ms(),
            }),
            attempts: self.attempts,
            input_tokens: self.input_tokens,
            prompt_tokens: self.usage.prompt,
            cached_tokens: self.usage.cached,
            completion_tokens: self.usage.completion,
            events: self.events,
            in_bytes: self.in_bytes,
            out_bytes: self.out_bytes,
            ttft_ms: self.first_at.map(since),
            took_ms: since(now),
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Nobody has said how it ended, so it was the client who left.
        self.end("client_left");
    }
}

/// Whether a status says that the replica, or what stands before it, cannot serve anybody now.
pub(crate) fn is_illness(status: StatusCode) -> bool {
    matches!(status.as_u16(), 502..=504)
}

fn clip(text: &str) -> &str {
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}
