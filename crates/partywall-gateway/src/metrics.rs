//! The metrics, each once: from this list come what Prometheus reads and the page that documents it.

use std::fmt::Write as _;

use partywall_core::tenant::Class;
use partywall_routing::breaker::State as BreakerState;
use partywall_routing::feed::Health;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::counts::{BUCKETS, ClassCounts, Snapshot, Times};
use crate::events::{self, FeedView};
use crate::fleet::ReplicaView;

/// What OpenMetrics is called.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the metrics are made of.
pub(crate) struct View {
    pub version: &'static str,
    pub policy: &'static str,
    pub counts: Snapshot,
    pub replicas: Vec<ReplicaView>,
    /// Held, by class.
    pub held: [(Class, usize); 2],
    pub log_dropped: u64,
    pub known_blocks: u64,
    /// By the replica's name.
    pub feeds: Vec<(String, FeedView)>,
}

/// How a metric behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Only grows while the gateway runs.
    Counter,
    Gauge,
    Histogram,
}

/// A metric.
struct Metric {
    /// Without the `_total` that counters get.
    name: &'static str,
    kind: Kind,
    labels: &'static [&'static str],
    help: &'static str,
    samples: fn(&View) -> Vec<Sample>,
}

enum Value {
    Number(f64),
    Times(Box<Times>),
}

/// Values of the metric's labels, in their order, and its own.
type Sample = (Vec<String>, Value);

const CLASS: &[&str] = &["class"];
const REPLICA: &[&str] = &["replica"];
const RANK: &[&str] = &["replica", "model", "rank"];

const METRICS: &[Metric] = &[
    Metric {
        name: "partywall_gateway_info",
        kind: Kind::Gauge,
        labels: &["version", "policy"],
        help: "Always 1; the policy by which replicas are chosen",
        samples: |view| vec![(vec![view.version.to_owned(), view.policy.to_owned()], Value::Number(1.0))],
    },
    Metric {
        name: "partywall_gateway_connections",
        kind: Kind::Gauge,
        labels: &[],
        help: "Connections of clients",
        samples: |view| one(view.counts.connections as f64),
    },
    Metric {
        name: "partywall_gateway_connections_accepted",
        kind: Kind::Counter,
        labels: &[],
        help: "Connections of clients, those that have ended too",
        samples: |view| one(view.counts.connections_total as f64),
    },
    Metric {
        name: "partywall_gateway_requests_under_way",
        kind: Kind::Gauge,
        labels: &[],
        help: "Requests that have come and not ended, held ones too",
        samples: |view| one(view.counts.under_way as f64),
    },
    Metric {
        name: "partywall_gateway_requests_held",
        kind: Kind::Gauge,
        labels: CLASS,
        help: "Requests that wait for room at a replica",
        samples: |view| {
            let sample =
                |(class, held): &(Class, usize)| (vec![class.to_string()], Value::Number(*held as f64));
            view.held.iter().map(sample).collect()
        },
    },
    Metric {
        name: "partywall_gateway_body_bytes",
        kind: Kind::Gauge,
        labels: &[],
        help: "Bodies that are kept because their requests have not been answered",
        samples: |view| one(view.counts.body_bytes as f64),
    },
    Metric {
        name: "partywall_gateway_requests",
        kind: Kind::Counter,
        labels: &["class", "end"],
        help: "Requests that have ended, by how: complete, client_left, replica_failed, or the code of the error that was answered; the class is none where they ended before they had one",
        samples: |view| {
            let ends = |(class, counts): (&'static str, &ClassCounts)| -> Vec<Sample> {
                let end = |(end, count): (&&'static str, &u64)| {
                    (vec![class.to_owned(), (*end).to_owned()], Value::Number(*count as f64))
                };
                counts.ends.iter().map(end).collect()
            };
            classes(view).into_iter().flat_map(ends).collect()
        },
    },
    Metric {
        name: "partywall_gateway_retries",
        kind: Kind::Counter,
        labels: &[],
        help: "Tries at a replica beyond a request's first",
        samples: |view| one(view.counts.retries as f64),
    },
    Metric {
        name: "partywall_gateway_hedges",
        kind: Kind::Counter,
        labels: &[],
        help: "Second replicas that were asked because the first took long",
        samples: |view| one(view.counts.hedges as f64),
    },
    Metric {
        name: "partywall_gateway_time_to_first_token_seconds",
        kind: Kind::Histogram,
        labels: CLASS,
        help: "From a request's arrival to its first token, of streams",
        samples: |view| each_times(view, |counts| counts.first),
    },
    Metric {
        name: "partywall_gateway_request_seconds",
        kind: Kind::Histogram,
        labels: CLASS,
        help: "From a request's arrival to its end, of those that were answered completely",
        samples: |view| each_times(view, |counts| counts.whole),
    },
    Metric {
        name: "partywall_gateway_held_seconds",
        kind: Kind::Histogram,
        labels: CLASS,
        help: "How long requests that were sent had been held",
        samples: |view| each_times(view, |counts| counts.held),
    },
    Metric {
        name: "partywall_gateway_expected_first_token_seconds",
        kind: Kind::Counter,
        labels: CLASS,
        help: "Times from sending to the first token that were expected, summed up, of streams whose first token came",
        samples: |view| each(view, |counts| counts.expected_first),
    },
    Metric {
        name: "partywall_gateway_actual_first_token_seconds",
        kind: Kind::Counter,
        labels: CLASS,
        help: "The times that these took",
        samples: |view| each(view, |counts| counts.actual_first),
    },
    Metric {
        name: "partywall_gateway_input_tokens",
        kind: Kind::Counter,
        labels: CLASS,
        help: "Tokens of prompts, as the gateway counts them",
        samples: |view| each(view, |counts| counts.input_tokens as f64),
    },
    Metric {
        name: "partywall_gateway_expected_cached_tokens",
        kind: Kind::Counter,
        labels: CLASS,
        help: "Those of them that were expected in the cache of the replica that they were sent to",
        samples: |view| each(view, |counts| counts.expected_cached_tokens as f64),
    },
    Metric {
        name: "partywall_gateway_cached_tokens",
        kind: Kind::Counter,
        labels: CLASS,
        help: "Tokens of prompts that engines said they had in their cache, where they said it",
        samples: |view| each(view, |counts| counts.cached_tokens as f64),
    },
    Metric {
        name: "partywall_gateway_told_prompt_tokens",
        kind: Kind::Counter,
        labels: CLASS,
        help: "All tokens of the prompts of which engines said that",
        samples: |view| each(view, |counts| counts.told_prompt_tokens as f64),
    },
    Metric {
        name: "partywall_gateway_output_tokens",
        kind: Kind::Counter,
        labels: CLASS,
        help: "Tokens generated, as engines say; events of streams where they do not",
        samples: |view| each(view, |counts| counts.output_tokens as f64),
    },
    Metric {
        name: "partywall_gateway_known_blocks",
        kind: Kind::Gauge,
        labels: &[],
        help: "Blocks of which the gateway knows or assumes that replicas hold them",
        samples: |view| one(view.known_blocks as f64),
    },
    Metric {
        name: "partywall_gateway_log_lines_dropped",
        kind: Kind::Counter,
        labels: &[],
        help: "Lines of the access log that could not be written in time",
        samples: |view| one(view.log_dropped as f64),
    },
    Metric {
        name: "partywall_replica_up",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "1 if the replica answers as healthy",
        samples: |view| each_replica(view, |replica| truth(replica.up)),
    },
    Metric {
        name: "partywall_replica_available",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "1 if it may get requests: it is up, its breaker lets them through, it is not drained",
        samples: |view| each_replica(view, |replica| truth(replica.available)),
    },
    Metric {
        name: "partywall_replica_draining",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "1 if an operator has said that it gets no more requests",
        samples: |view| each_replica(view, |replica| truth(replica.draining)),
    },
    Metric {
        name: "partywall_replica_breaker",
        kind: Kind::Gauge,
        labels: &["replica", "state"],
        help: "1 for the state of its circuit breaker: closed, open or trying",
        samples: |view| {
            let states = |replica: &ReplicaView| {
                BreakerState::ALL.map(|state| {
                    let labels = vec![replica.replica.name().to_owned(), state.name().to_owned()];
                    (labels, Value::Number(truth(state == replica.breaker)))
                })
            };
            view.replicas.iter().flat_map(states).collect()
        },
    },
    Metric {
        name: "partywall_replica_requests_under_way",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "Requests that were sent to it and have not ended",
        samples: |view| each_replica(view, |replica| f64::from(replica.under_way)),
    },
    Metric {
        name: "partywall_replica_requests",
        kind: Kind::Counter,
        labels: REPLICA,
        help: "Requests that were sent to it",
        samples: |view| each_replica(view, |replica| replica.sent as f64),
    },
    Metric {
        name: "partywall_replica_requests_failed",
        kind: Kind::Counter,
        labels: REPLICA,
        help: "Those of them that failed there",
        samples: |view| each_replica(view, |replica| replica.failed as f64),
    },
    Metric {
        name: "partywall_replica_prefill_tokens",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "Prompt tokens that it is believed to have to compute still",
        samples: |view| each_replica(view, |replica| replica.load.prefill_tokens() as f64),
    },
    Metric {
        name: "partywall_replica_kv_events",
        kind: Kind::Gauge,
        labels: &["replica", "model", "rank", "state"],
        help: "1 for the state of a rank's feed of KV events: waiting (nothing has come yet), missing (nothing comes), exact, degraded (some was lost)",
        samples: |view| {
            let states = |(name, feed): &(String, FeedView)| {
                [Health::Waiting, Health::Missing, Health::Exact, Health::Degraded].map(|state| {
                    let state_name = events::name(state).to_owned();
                    let labels = [feed_labels(name, feed), vec![state_name]].concat();
                    (labels, Value::Number(truth(state == feed.health)))
                })
            };
            view.feeds.iter().flat_map(states).collect()
        },
    },
    Metric {
        name: "partywall_replica_kv_batches",
        kind: Kind::Counter,
        labels: RANK,
        help: "Batches of KV events that were applied",
        samples: |view| each_feed(view, |feed| feed.counts.applied),
    },
    Metric {
        name: "partywall_replica_kv_batches_lost",
        kind: Kind::Counter,
        labels: RANK,
        help: "Batches that never came",
        samples: |view| each_feed(view, |feed| feed.counts.lost),
    },
    Metric {
        name: "partywall_replica_kv_gaps",
        kind: Kind::Counter,
        labels: RANK,
        help: "Times that a batch was missing, replayed or not",
        samples: |view| each_feed(view, |feed| feed.counts.gaps),
    },
    Metric {
        name: "partywall_replica_kv_restarts",
        kind: Kind::Counter,
        labels: RANK,
        help: "Times that the engine was started again, as its numbers tell",
        samples: |view| each_feed(view, |feed| feed.counts.restarts),
    },
    Metric {
        name: "partywall_replica_kv_events_ignored",
        kind: Kind::Counter,
        labels: RANK,
        help: "Events about other layers than main attention, or other caches than the engine's own",
        samples: |view| each_feed(view, |feed| feed.applied.ignored),
    },
    Metric {
        name: "partywall_replica_kv_events_other_block_size",
        kind: Kind::Counter,
        labels: RANK,
        help: "Events about blocks of another size than block-tokens says; above zero, it is wrong",
        samples: |view| each_feed(view, |feed| feed.applied.other_block_size),
    },
    Metric {
        name: "partywall_replica_kv_events_unknown_adapter",
        kind: Kind::Counter,
        labels: RANK,
        help: "KV events about an adapter that is said by a number for which adapter-ids has no name",
        samples: |view| each_feed(view, |feed| feed.applied.unknown_adapter),
    },
    Metric {
        name: "partywall_replica_kv_events_blocks",
        kind: Kind::Gauge,
        labels: RANK,
        help: "Blocks that the engine holds, as its KV events say",
        samples: |view| each_feed(view, |feed| feed.blocks as u64),
    },
    Metric {
        name: "partywall_replica_kv_events_unread",
        kind: Kind::Counter,
        labels: RANK,
        help: "Events that could not be understood",
        samples: |view| each_feed(view, |feed| feed.problems),
    },
    Metric {
        name: "partywall_replica_gpu_speed_ratio",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "How much of its speed alone the node says that it has",
        samples: |view| each_replica(view, |replica| replica.gpu.speed),
    },
    Metric {
        name: "partywall_replica_gpu_squeezed",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "1 if the node holds it back for a latency-sensitive neighbour",
        samples: |view| each_replica(view, |replica| truth(replica.gpu.squeezed)),
    },
    Metric {
        name: "partywall_replica_gpu_paused",
        kind: Kind::Gauge,
        labels: REPLICA,
        help: "1 if nothing of it runs",
        samples: |view| each_replica(view, |replica| truth(replica.gpu.paused)),
    },
];

/// What Prometheus reads.
pub(crate) fn text(view: View) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Shown(view)));
    let mut text = String::new();
    // Writing to a text does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

/// The page that documents them.
pub fn reference() -> String {
    let mut page = "<!-- Generated by `cargo xtask generate` from crates/partywall-gateway/src/metrics.rs: edit that. -->\n\n\
                    # Metrics of the gateway\n\nWhat a gateway tells at `/metrics` of its admin address, in the text format of \
                    Prometheus (OpenMetrics). Counts start again with the gateway.\n\n\
                    | metric | kind | labels | what |\n|---|---|---|---|\n"
        .to_owned();
    for metric in METRICS {
        let labels: Vec<_> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(page, "| `{}` | {kind} | {} | {} |", metric.told(), labels.join(", "), metric.help);
    }
    page
}

impl Metric {
    fn told(&self) -> String {
        if self.kind == Kind::Counter { format!("{}_total", self.name) } else { self.name.to_owned() }
    }
}

fn one(value: f64) -> Vec<Sample> {
    vec![(Vec::new(), Value::Number(value))]
}

fn truth(yes: bool) -> f64 {
    if yes { 1.0 } else { 0.0 }
}

fn classes(view: &View) -> [(&'static str, &ClassCounts); 3] {
    let [ls, be, none] = &view.counts.classes;
    [("latency-sensitive", ls), ("best-effort", be), ("none", none)]
}

fn each(view: &View, value: fn(&ClassCounts) -> f64) -> Vec<Sample> {
    let sample =
        |(class, counts): (&str, &ClassCounts)| (vec![class.to_owned()], Value::Number(value(counts)));
    classes(view).into_iter().take(2).map(sample).collect()
}

fn each_times(view: &View, value: fn(&ClassCounts) -> Times) -> Vec<Sample> {
    let sample = |(class, counts): (&str, &ClassCounts)| {
        (vec![class.to_owned()], Value::Times(Box::new(value(counts))))
    };
    classes(view).into_iter().take(2).map(sample).collect()
}

fn each_replica(view: &View, value: fn(&ReplicaView) -> f64) -> Vec<Sample> {
    let sample =
        |replica: &ReplicaView| (vec![replica.replica.name().to_owned()], Value::Number(value(replica)));
    view.replicas.iter().map(sample).collect()
}

fn feed_labels(replica: &str, feed: &FeedView) -> Vec<String> {
    vec![replica.to_owned(), feed.about.to_string(), feed.rank.to_string()]
}

fn each_feed(view: &View, value: fn(&FeedView) -> u64) -> Vec<Sample> {
    let sample =
        |(name, feed): &(String, FeedView)| (feed_labels(name, feed), Value::Number(value(feed) as f64));
    view.feeds.iter().map(sample).collect()
}

struct Shown(View);

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shown")
    }
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for metric in METRICS {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut descriptor = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (values, value) in (metric.samples)(&self.0) {
                let labels: Vec<(&str, String)> = metric.labels.iter().copied().zip(values).collect();
                if labels.is_empty() {
                    // A family without labels would be written with empty braces.
                    write_value(metric.kind, value, descriptor)?;
                    break;
                }
                write_value(metric.kind, value, descriptor.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn write_value(kind: Kind, value: Value, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
    match (kind, value) {
        (Kind::Counter, Value::Number(value)) => ConstCounter::new(value).encode(encoder),
        (_, Value::Number(value)) => ConstGauge::new(value).encode(encoder),
        (_, Value::Times(times)) => {
            let buckets: Vec<(f64, u64)> = BUCKETS.into_iter().zip(times.counts).collect();
            let count = times.counts.iter().sum();
            encoder.encode_histogram::<NoLabelSet>(times.sum, count, &buckets, None)
        }
    }
}
