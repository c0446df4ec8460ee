//! What came of a replay, as the figures that are compared.

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use serde::{Deserialize, Serialize};

use super::replay::{Fate, LoadRequest};

/// Within this a first token is in time: the objective that published comparisons of this trace use, with [`TOKEN_OBJECTIVE`].
pub const FIRST_TOKEN_OBJECTIVE: Nanos = Nanos::from_secs(2);

/// Within this, on average, the tokens behind it are.
pub const TOKEN_OBJECTIVE: Nanos = Nanos::from_millis(25);

/// The figures of one class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measures {
    /// Requests that came.
    pub requests: u64,
    /// Of those, that had no first token when the replay ended, and were not refused.
    pub unserved: u64,
    /// Of those, that were refused.
    pub refused: u64,
    /// Mean time to the first token of those that had one, in seconds; null where none had.
    pub ttft_mean_s: Option<f64>,
    /// The median of it.
    pub ttft_p50_s: Option<f64>,
    /// 90 of 100 are below.
    pub ttft_p90_s: Option<f64>,
    /// 99 of 100 are below.
    pub ttft_p99_s: Option<f64>,
    /// The longest.
    pub ttft_max_s: Option<f64>,
    /// Fraction of their prompts' tokens that were held.
    pub hit_rate: f64,
    /// Fraction of all that came that had all tokens, the first within 2 s and the others within 25 ms each on average.
    pub good: f64,
    /// Those, a second.
    pub goodput_per_s: f64,
    /// Prompt and generated tokens a second, of requests that had all of theirs before the load ended.
    pub tokens_per_s: f64,
    /// How far the expected time of the first token was off, as it was sent: the mean of the difference, in seconds.
    pub expected_off_mean_s: Option<f64>,
    /// 99 of 100 are below.
    pub expected_off_p99_s: Option<f64>,
    /// Mean time from arrival until it was sent, in seconds.
    pub held_mean_s: Option<f64>,
}

impl Measures {
    /// Of the requests of a class. `span` is how long the load lasted.
    pub fn of(class: Class, load: &[LoadRequest], fates: &[Fate], span: Nanos) -> Self {
        let of_class = || load.iter().zip(fates).filter(|(request, _)| request.class == class);
        let served = || of_class().filter_map(|(request, fate)| Some((request, fate, fate.first_token?)));
        let span_s = span.as_secs();
        let requests = of_class().count() as u64;
        let refused = of_class().filter(|(_, fate)| fate.refused.is_some()).count() as u64;
        let ttft =
            Sample::new(served().map(|(request, _, first)| first.saturating_sub(request.at).as_secs()));
        let off = Sample::new(served().filter_map(|(_, fate, first)| {
            let expected = fate.expected?;
            Some(expected.saturating_sub(first).as_secs() + first.saturating_sub(expected).as_secs())
        }));
        let held = Sample::new(
            of_class().filter_map(|(request, fate)| Some(fate.sent?.saturating_sub(request.at).as_secs())),
        );
        let (mut found, mut tokens, mut good, mut in_span) = (0, 0, 0_u64, 0);
        for (request, fate, first) in served() {
            found += fate.cached_tokens;
            tokens += request.input_tokens;
            let Some(finished) = fate.finished else { continue };
            good += u64::from(in_time(request, first, finished));
            if finished <= span {
                in_span += request.input_tokens + u64::from(request.output_tokens);
            }
        }
        Self {
            requests,
            unserved: requests - refused - ttft.0.len() as u64,
            refused,
            ttft_mean_s: ttft.mean(),
            ttft_p50_s: ttft.quantile(0.5),
            ttft_p90_s: ttft.quantile(0.9),
            ttft_p99_s: ttft.quantile(0.99),
            ttft_max_s: ttft.quantile(1.0),
            hit_rate: found as f64 / (tokens as f64).max(1.0),
            good: good as f64 / (requests as f64).max(1.0),
            goodput_per_s: good as f64 / span_s,
            tokens_per_s: in_span as f64 / span_s,
            expected_off_mean_s: off.mean(),
            expected_off_p99_s: off.quantile(0.99),
            held_mean_s: held.mean(),
        }
    }
}

fn in_time(request: &LoadRequest, first: Nanos, finished: Nanos) -> bool {
    let others = u64::from(request.output_tokens.max(1) - 1);
    let generated = finished.saturating_sub(first);
    first.saturating_sub(request.at) <= FIRST_TOKEN_OBJECTIVE && generated.0 <= others * TOKEN_OBJECTIVE.0
}

/// Values in order.
struct Sample(Vec<f64>);

impl Sample {
    fn new(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    fn mean(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.iter().sum::<f64>() / self.0.len() as f64)
    }

    /// The smallest value that so much of the sample does not exceed.
    fn quantile(&self, fraction: f64) -> Option<f64> {
        let place = (fraction * self.0.len() as f64).ceil() as usize;
        self.0.get(place.max(1) - 1).copied()
    }
}
