//! What is left of a run: medians over the rounds, with the least and the most.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::replay::Round;
use crate::trace::{BLOCK_TOKENS, Request, Step};

#[derive(Serialize)]
pub struct Report {
    schema: &'static str,
    processor: String,
    versions: BTreeMap<&'static str, &'static str>,
    requests: usize,
    blocks_asked_for: usize,
    block_tokens: u64,
    rounds: usize,
    pub settings: Vec<Setting>,
}

/// One number of replicas.
#[derive(Serialize)]
pub struct Setting {
    replicas: u32,
    blocks_per_replica: usize,
    stored_blocks: usize,
    removed_blocks: usize,
    held_blocks: usize,
    /// The same for all indices, or there is no report.
    sum_of_best: u64,
    sum_of_all: u64,
    indices: BTreeMap<String, Figures>,
}

#[derive(Serialize)]
struct Figures {
    lookup_p50_ns: Spread,
    lookup_p99_ns: Spread,
    lookup_mean_ns: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    stores_per_s: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    removals_per_s: Option<Spread>,
    blocks_per_s: Spread,
    bytes: usize,
    bytes_per_block: f64,
}

#[derive(Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Report {
    pub fn new(requests: &[Request], rounds: usize) -> Self {
        Self {
            schema: "partywall.kv-index/1",
            processor: processor(),
            versions: BTreeMap::from([("dynamo-kv-router", "1.6.1"), ("kv-index", "2.0.0")]),
            requests: requests.len(),
            blocks_asked_for: requests.iter().map(|request| request.prefixes.len()).sum(),
            block_tokens: BLOCK_TOKENS,
            rounds,
            settings: Vec::new(),
        }
    }

    pub fn to_json(&self) -> String {
        let text = serde_json::to_string_pretty(self).expect("plain data");
        text + "\n"
    }
}

impl Setting {
    pub fn new(
        replicas: u32,
        capacity: usize,
        steps: &[Step],
        names: &[&str],
        rounds: &[Vec<Round>],
    ) -> Result<Self, String> {
        let first = rounds[0][0];
        for (name, rounds) in names.iter().zip(rounds) {
            if let Some(other) =
                rounds.iter().find(|round| (round.best, round.all) != (first.best, first.all))
            {
                return Err(format!(
                    "{name} found {} and {} blocks, {} found {} and {}: one of them is wrong",
                    other.best, other.all, names[0], first.best, first.all
                ));
            }
        }
        let stored_blocks = steps.iter().map(|step| step.stored.len()).sum::<usize>();
        let removed_blocks = steps.iter().map(|step| step.removed.len()).sum::<usize>();
        let held_blocks = stored_blocks - removed_blocks;
        let indices = names.iter().zip(rounds).map(|(name, rounds)| {
            let all = |figure: fn(&Round) -> f64| Spread::of(rounds.iter().map(figure).collect());
            let some = |figure: fn(&Round) -> Option<f64>| {
                rounds.iter().map(figure).collect::<Option<Vec<f64>>>().map(Spread::of)
            };
            let figures = Figures {
                lookup_p50_ns: all(|round| round.lookup_p50_ns),
                lookup_p99_ns: all(|round| round.lookup_p99_ns),
                lookup_mean_ns: all(|round| round.lookup_mean_ns),
                stores_per_s: some(|round| round.stores_per_s),
                removals_per_s: some(|round| round.removals_per_s),
                blocks_per_s: all(|round| round.blocks_per_s),
                bytes: rounds[0].bytes,
                bytes_per_block: (rounds[0].bytes as f64 / held_blocks as f64 * 10.0).round() / 10.0,
            };
            ((*name).to_owned(), figures)
        });
        Ok(Self {
            replicas,
            blocks_per_replica: capacity,
            stored_blocks,
            removed_blocks,
            held_blocks,
            sum_of_best: first.best,
            sum_of_all: first.all,
            indices: indices.collect(),
        })
    }
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let whole = |value: f64| value.round();
        Self {
            median: whole(values[values.len() / 2]),
            min: whole(values[0]),
            max: whole(values[values.len() - 1]),
        }
    }
}

/// The kind of processor, without what tells one machine from another.
fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("model name"));
    let name = line.and_then(|line| line.split(':').nth(1)).unwrap_or("unknown");
    let name = name.trim();
    name.to_owned()
}
