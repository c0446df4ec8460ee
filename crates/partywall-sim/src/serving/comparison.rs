//! Policies side by side on the same load.
//!
//! One class: a load at several rates (its times divided by the rate), on fleets with several sizes of cache, under every policy.
//!
//! Mixed classes: the load is latency-sensitive, and beside it come best-effort requests with long prompts that nothing else shares, as many
//! as 1.5 times ([`OFFERED`]) what the engines could still compute. That is measured: the prompt tokens that the default policy leaves to be computed
//! of the latency-sensitive load alone, of what the engines compute in that time. The default policy is told the classes. All policies, the
//! default one again, are also replayed class-blind: they are given all requests as latency-sensitive ones. What best-effort requests get is
//! held against the class-blind policy that serves most of them, of those that serve the latency-sensitive ones too ([`SERVES`]): following
//! the longest prefix sends all of these to one engine and has seven others for best effort.

use std::borrow::Cow;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::policy;
use partywall_routing::prefix::PrefixHash;
use partywall_routing::router::RouterSettings;
use serde::{Deserialize, Serialize};

use super::engine::EngineSettings;
use super::measures::Measures;
use super::replay::{FleetSettings, LoadRequest, replay};
use crate::chance::{Chance, mix};
use crate::parallel::in_order;

#[cfg(test)]
mod tests;

/// The default policy without one of its parts each, which know the classes where there are two. The last one lets best-effort requests go at
/// once.
pub const ABLATIONS: [&str; 3] = [policy::ABLATIONS[0], policy::ABLATIONS[1], WITHOUT_HOLDING];

const WITHOUT_HOLDING: &str = "partywall-without-holding";

/// Best-effort prompt tokens that are offered if nothing else is said, as a multiple of what could still be computed.
pub const OFFERED: f64 = 1.5;

/// The shortest and the longest best-effort prompt, in tokens; in between each length is as likely as any other of the same order.
pub const BEST_EFFORT_PROMPT: (f64, f64) = (8_192.0, 32_768.0);

/// Tokens that a best-effort request generates.
pub const BEST_EFFORT_OUTPUT: u32 = 256;

/// A policy serves a class when no more than this fraction of its requests is without a first token when all ends.
pub const SERVES: f64 = 0.5;

/// How long after the last request a replay ends at the latest, with one class: longer than the worst policy takes.
const DRAIN: Nanos = Nanos::from_secs(24 * 3600);

/// The same with two classes, where more is offered than can be served.
const DRAIN_MIXED: Nanos = Nanos::from_secs(600);

/// Tokens of a stream between two reports: the router's picture of a stream's length is never further behind.
const REPORT_TOKENS: u32 = 64;

/// What is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The policies, by name.
    pub policies: Vec<&'static str>,
    /// How much faster than recorded the load comes.
    pub rates: Vec<f64>,
    /// Tokens of an engine's cache.
    pub cache_tokens: Vec<u64>,
    /// Engines.
    pub engines: u32,
    /// What each can do; the cache's size is replaced.
    pub engine: EngineSettings,
    /// What the router goes by.
    pub router: RouterSettings,
    /// Also with best-effort requests, at the recorded rate.
    pub mixed: bool,
    /// Best-effort prompt tokens that are offered, as a multiple of what could still be computed.
    pub offered: f64,
    /// Answers come whole, not as streams.
    pub whole: bool,
    /// Of the best-effort requests.
    pub seed: u64,
}

/// Why nothing can be compared.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ComparisonError {
    /// There is no such policy.
    #[error("there is no policy `{name}`; write one of {known}", known = policy::NAMES.join(", "))]
    Policy {
        /// What was asked for.
        name: String,
    },
    /// A rate, a size or a number of engines that means nothing.
    #[error("{what} is {value}; write a number {expected}")]
    Number {
        /// Of what.
        what: &'static str,
        /// What was asked for.
        value: f64,
        /// What would be right.
        expected: &'static str,
    },
    /// A request does not fit into an engine's cache.
    #[error(
        "a request of {tokens} tokens does not fit into a cache of {cache_tokens}; give the engines larger ones"
    )]
    TooLong {
        /// The request's.
        tokens: u64,
        /// The cache's.
        cache_tokens: u64,
    },
    /// There is no load.
    #[error("the load has no requests, or all come at once; write a longer one")]
    NoLoad,
    /// The engines are no replicas that a router takes.
    #[error(transparent)]
    Router(#[from] partywall_routing::router::RouterError),
}

/// One policy's figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub policy: Cow<'static, str>,
    /// What the latency-sensitive requests got: all of them, with one class.
    #[serde(flatten)]
    pub measures: Measures,
}

/// All policies at one rate and one size of cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// What it is called, such as `rate1.5-3m`.
    pub name: String,
    /// How much faster than recorded the load comes.
    pub rate: f64,
    /// Tokens of an engine's cache.
    pub cache_tokens: u64,
    /// The figures of each policy.
    pub policies: Vec<Row>,
    /// Of the other policies, the one with the lowest mean time to the first token.
    pub best_baseline: Option<Cow<'static, str>>,
    /// The default policy's mean time to the first token over that one's.
    pub over_best_baseline: Option<f64>,
    /// The same over round robin's.
    pub over_round_robin: Option<f64>,
}

/// One policy's figures with two classes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixedRow {
    /// Its name.
    pub policy: Cow<'static, str>,
    /// Whether it was told the classes.
    pub knows_classes: bool,
    /// What the latency-sensitive requests got.
    pub latency_sensitive: Measures,
    /// What the best-effort requests got.
    pub best_effort: Measures,
}

/// Both classes at one size of cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MixedSetting {
    /// What it is called, such as `mixed-3m`.
    pub name: String,
    /// Tokens of an engine's cache.
    pub cache_tokens: u64,
    /// Best-effort prompt and generated tokens that are offered a second.
    pub offered_tokens_per_s: f64,
    /// The latency-sensitive requests under the default policy, without the best-effort ones.
    pub alone: Measures,
    /// Both, under each policy.
    pub policies: Vec<MixedRow>,
    /// The p99 of the time to the first token of latency-sensitive requests under the default policy, with best-effort ones over without.
    pub ls_p99_over_alone: Option<f64>,
    /// The class-blind policy that serves most best-effort tokens, of those that serve the latency-sensitive requests.
    pub most_best_effort: Option<Cow<'static, str>>,
    /// Best-effort tokens that the default policy serves when it knows the classes, over that one's.
    pub be_share: Option<f64>,
}

/// All that was compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparisonReport {
    /// Where the figures come from.
    pub kind: Cow<'static, str>,
    /// Requests of the load.
    pub requests: u64,
    /// How long it lasts as recorded, in seconds.
    pub span_s: f64,
    /// Of the best-effort requests, and of a generated load.
    pub seed: u64,
    /// Engines.
    pub engines: u32,
    /// Prompt tokens that each computes in a second.
    pub prefill_tokens_per_s: f64,
    /// From one token of a request to its next, in milliseconds.
    pub token_time_ms: f64,
    /// Requests that each generates for at the same time.
    pub streams: u32,
    /// With one class.
    pub settings: Vec<Setting>,
    /// With two.
    pub mixed: Vec<MixedSetting>,
}

/// One replay.
#[derive(Debug, Clone, Copy)]
struct Run {
    policy: &'static str,
    rate: f64,
    cache_tokens: u64,
}

impl Comparison {
    /// The name of a policy as the report has it.
    ///
    /// # Errors
    /// There is none of that name.
    pub fn policy(name: &str) -> Result<&'static str, ComparisonError> {
        let known = policy::NAMES.iter().chain(&ABLATIONS).find(|known| **known == name).copied();
        known.ok_or_else(|| ComparisonError::Policy { name: name.to_owned() })
    }

    /// Replays `load`, which is in order of time, under everything that is compared, on so many threads. `done` is told after each replay how many of
    /// how many are done.
    ///
    /// # Errors
    /// Something that is to be compared means nothing.
    pub fn run(
        &self,
        load: &[LoadRequest],
        threads: usize,
        done: &(dyn Fn() + Sync),
    ) -> Result<ComparisonReport, ComparisonError> {
        self.check(load)?;
        let span = load.last().map_or(Nanos::ZERO, |request| request.at);
        let runs: Vec<Run> = self
            .pairs()
            .flat_map(|(rate, cache_tokens)| {
                self.policies.iter().map(move |policy| Run { policy, rate, cache_tokens })
            })
            .collect();
        let rows = in_order(&runs, threads, |run| {
            let row = self.replay_one(load, run);
            done();
            row
        });
        let mut rows = rows.into_iter();
        let mut settings = Vec::new();
        for (rate, cache_tokens) in self.pairs() {
            let rows = rows.by_ref().take(self.policies.len()).collect::<Result<Vec<Row>, _>>()?;
            settings.push(Setting::new(rate, cache_tokens, rows));
        }
        let mut mixed = Vec::new();
        if self.mixed {
            for &cache_tokens in &self.cache_tokens {
                mixed.push(self.replay_mixed(load, span, cache_tokens, threads, done)?);
            }
        }
        Ok(ComparisonReport {
            kind: Cow::Borrowed("simulated"),
            requests: load.len() as u64,
            span_s: span.as_secs(),
            seed: self.seed,
            engines: self.engines,
            prefill_tokens_per_s: self.engine.prefill_tokens_per_s,
            token_time_ms: self.engine.token_time.as_ms(),
            streams: self.engine.streams,
            settings,
            mixed,
        })
    }

    /// How many replays there are.
    pub fn replays(&self) -> usize {
        let mixed = if self.mixed { self.cache_tokens.len() * (self.policies.len() + 2) } else { 0 };
        self.pairs().count() * self.policies.len() + mixed
    }

    fn pairs(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.rates.iter().flat_map(|rate| self.cache_tokens.iter().map(move |tokens| (*rate, *tokens)))
    }

    fn check(&self, load: &[LoadRequest]) -> Result<(), ComparisonError> {
        let number = |what, value, expected| Err(ComparisonError::Number { what, value, expected });
        for &rate in &self.rates {
            if !rate.is_finite() || !(0.01..=100.0).contains(&rate) {
                return number("a rate", rate, "from 0.01 to 100");
            }
        }
        if !self.offered.is_finite() || !(0.01..=10.0).contains(&self.offered) {
            return number("what is offered of best effort", self.offered, "from 0.01 to 10");
        }
        if self.engines == 0 || self.engines > 10_000 {
            return number("the number of engines", f64::from(self.engines), "from 1 to 10000");
        }
        let longest =
            load.iter().map(|request| request.input_tokens + u64::from(request.output_tokens)).max();
        let Some(tokens) = longest.filter(|_| load.last().is_some_and(|last| last.at > Nanos::ZERO)) else {
            return Err(ComparisonError::NoLoad);
        };
        let least = if self.mixed {
            tokens.max(BEST_EFFORT_PROMPT.1 as u64 + u64::from(BEST_EFFORT_OUTPUT))
        } else {
            tokens
        };
        for &cache_tokens in &self.cache_tokens {
            if cache_tokens < least + u64::from(self.engine.block_tokens) {
                return Err(ComparisonError::TooLong { tokens: least, cache_tokens });
            }
            if cache_tokens > 1_000_000_000_000 {
                return number("the size of a cache", cache_tokens as f64, "up to 1e12");
            }
        }
        Ok(())
    }

    fn fleet(&self, cache_tokens: u64, class_blind: bool) -> FleetSettings {
        let engine = EngineSettings {
            cache_blocks: cache_tokens / u64::from(self.engine.block_tokens),
            report_tokens: REPORT_TOKENS,
            ..self.engine
        };
        FleetSettings { engines: self.engines, engine, router: self.router, class_blind, whole: self.whole }
    }

    fn replay_one(&self, load: &[LoadRequest], run: &Run) -> Result<Row, ComparisonError> {
        let faster = |request: &LoadRequest| LoadRequest {
            at: Nanos((request.at.0 as f64 / run.rate).round() as u64),
            ..request.clone()
        };
        let load: Vec<LoadRequest> = load.iter().map(faster).collect();
        let span = load.last().map_or(Nanos::ZERO, |request| request.at);
        let fleet = self.fleet(run.cache_tokens, false);
        let fates = replay(&load, &fleet, named(run.policy)?, span.saturating_add(DRAIN))?;
        let measures = Measures::of(Class::LatencySensitive, &load, &fates, span);
        Ok(Row { policy: Cow::Borrowed(run.policy), measures })
    }

    fn replay_mixed(
        &self,
        load: &[LoadRequest],
        span: Nanos,
        cache_tokens: u64,
        threads: usize,
        done: &(dyn Fn() + Sync),
    ) -> Result<MixedSetting, ComparisonError> {
        let until = span.saturating_add(DRAIN_MIXED);
        let default = policy::NAMES[0];
        let fates = replay(load, &self.fleet(cache_tokens, false), named(default)?, until)?;
        done();
        let alone = Measures::of(Class::LatencySensitive, load, &fates, span);
        let tokens: u64 = load.iter().map(|request| request.input_tokens).sum();
        let needed = tokens as f64 * (1.0 - alone.hit_rate) / span.as_secs();
        let free = (f64::from(self.engines) * self.engine.prefill_tokens_per_s - needed).max(0.0);
        let best_effort = best_effort(self.offered * free, span, self.engine.block_tokens, self.seed);
        let offered: u64 =
            best_effort.iter().map(|request| request.input_tokens + u64::from(request.output_tokens)).sum();
        let mut both = load.to_vec();
        both.extend(best_effort);
        // Stable, so that requests of the same time stay in their order.
        both.sort_by_key(|request| request.at);
        let runs: Vec<(&'static str, bool)> = [(default, true)]
            .into_iter()
            .chain(self.policies.iter().map(|policy| (*policy, ABLATIONS.contains(policy))))
            .collect();
        let rows = in_order(&runs, threads, |&(policy, knows_classes)| {
            let mut fleet = self.fleet(cache_tokens, !knows_classes);
            fleet.router.admission.by_class &= policy != WITHOUT_HOLDING;
            let fates = replay(&both, &fleet, named(policy)?, until)?;
            done();
            Ok(MixedRow {
                policy: Cow::Borrowed(policy),
                knows_classes,
                latency_sensitive: Measures::of(Class::LatencySensitive, &both, &fates, span),
                best_effort: Measures::of(Class::BestEffort, &both, &fates, span),
            })
        });
        let rows = rows.into_iter().collect::<Result<Vec<MixedRow>, ComparisonError>>()?;
        let ours = rows.iter().find(|row| row.knows_classes && row.policy == default);
        let served = |row: &MixedRow| row.best_effort.tokens_per_s;
        let serves = |row: &&MixedRow| {
            let ls = &row.latency_sensitive;
            !row.knows_classes && ls.unserved as f64 <= SERVES * ls.requests as f64
        };
        let most = rows.iter().filter(serves).max_by(|a, b| served(a).total_cmp(&served(b)));
        let p99 = ours.and_then(|row| row.latency_sensitive.ttft_p99_s);
        Ok(MixedSetting {
            name: format!("mixed-{}", cache_name(cache_tokens)),
            cache_tokens,
            offered_tokens_per_s: offered as f64 / span.as_secs(),
            ls_p99_over_alone: p99.zip(alone.ttft_p99_s).map(|(with, without)| with / without),
            most_best_effort: most.map(|row| row.policy.clone()),
            be_share: ours
                .zip(most.map(served).filter(|most| *most > 0.0))
                .map(|(row, most)| served(row) / most),
            alone,
            policies: rows,
        })
    }
}

impl Setting {
    fn new(rate: f64, cache_tokens: u64, policies: Vec<Row>) -> Self {
        let mean = |row: &Row| row.measures.ttft_mean_s;
        let ours = policies.iter().find(|row| row.policy == policy::NAMES[0]).and_then(mean);
        let ours_too = |row: &&Row| row.policy == policy::NAMES[0] || ABLATIONS.contains(&&*row.policy);
        let others = policies.iter().filter(|row| !ours_too(row));
        let best =
            others.filter_map(|row| Some((&row.policy, mean(row)?))).min_by(|a, b| a.1.total_cmp(&b.1));
        let round_robin = policies.iter().find(|row| row.policy == "round-robin").and_then(mean);
        let over = |theirs: Option<f64>| ours.zip(theirs).map(|(ours, theirs)| ours / theirs);
        Self {
            name: format!("rate{rate}-{}", cache_name(cache_tokens)),
            rate,
            cache_tokens,
            best_baseline: best.as_ref().map(|(policy, _)| (*policy).clone()),
            over_best_baseline: over(best.map(|(_, mean)| mean)),
            over_round_robin: over(round_robin),
            policies,
        }
    }
}

/// Best-effort requests that offer so many prompt tokens a second.
fn best_effort(tokens_per_s: f64, span: Nanos, block_tokens: u32, seed: u64) -> Vec<LoadRequest> {
    let (low, high) = BEST_EFFORT_PROMPT;
    let orders = libm::log(high / low);
    let mean = (high - low) / orders;
    let mut chance = Chance::new(seed, 2);
    let (mut load, mut at_s) = (Vec::new(), 0.0);
    let mut next_block = mix(seed ^ 0x0062_6573_7465_6666);
    if tokens_per_s <= 0.0 {
        return load;
    }
    loop {
        at_s += chance.exponential(mean / tokens_per_s);
        if at_s > span.as_secs() {
            break;
        }
        let input_tokens = (low * libm::exp(orders * chance.unit())) as u64;
        let block = || {
            next_block = next_block.wrapping_add(1);
            PrefixHash(mix(next_block))
        };
        load.push(LoadRequest {
            at: Nanos((at_s * 1e9) as u64),
            class: Class::BestEffort,
            prefixes: std::iter::repeat_with(block)
                .take((input_tokens / u64::from(block_tokens)) as usize)
                .collect(),
            input_tokens,
            output_tokens: BEST_EFFORT_OUTPUT,
        });
    }
    load
}

fn named(name: &str) -> Result<Box<dyn policy::Policy>, ComparisonError> {
    let rule = if name == WITHOUT_HOLDING { policy::NAMES[0] } else { name };
    policy::named(rule).ok_or_else(|| ComparisonError::Policy { name: name.to_owned() })
}

/// A million tokens is `1m`.
fn cache_name(tokens: u64) -> String {
    if tokens.is_multiple_of(1_000_000) {
        format!("{}m", tokens / 1_000_000)
    } else {
        format!("{}k", tokens / 1_000)
    }
}
