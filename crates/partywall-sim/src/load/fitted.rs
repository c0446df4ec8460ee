//! Arrivals like those of public traces, without the traces.
//!
//! **Problem.** Results should speak about real arrivals: near-periodic cameras, a service that is silent for minutes
//! and then floods, prompts of a hundred thousand tokens. The files are megabytes, have their own licences, and end
//! after seconds or an hour.
//!
//! **Approach.** A trace is described by two things, and both are drawn from again:
//!
//! 1. *The distribution of its gaps*, by about ten quantiles joined by straight lines on a logarithmic axis (gaps span
//!    six decades), scaled so that the mean, and with it the rate, is that of the trace.
//! 2. *How gaps hang together.* A gap's quantile is the rank of a normal deviate, and that deviate is the sum of a slow
//!    part, which keeps `memory` of itself from one gap to the next, and a fast part that is new each time; `share` is
//!    the slow part's share of the variance (a Gaussian copula over an AR(1) process plus noise). This sets the
//!    autocorrelation of gaps without touching their distribution; for the Azure trace it is what makes minutes of flood
//!    and minutes of silence.
//!
//! A trace with a beat gives each position of its *cycle* its own quantiles and its own slow part: the VGG-19 task of
//! DISB comes in fours, three short gaps and a long one; in that of ResNet-152 long and short gaps take turns.
//! Mooncake's trace has its requests in batches every 3 s, so there it is the size of the batch that is drawn.
//! Token counts are drawn from their quantiles, independently: in both traces the correlation between prompt and
//! output length (of logarithms), and between neighbours, is below 0.06.
//!
//! **How close.** `fits.rs` records each statistic of the trace beside the parameters, with what a long generated stream
//! has, and the tests hold the stream against it. Not reproduced: the time of day (the traces are 38 s to 1 h long), and
//! the prefixes that prompts share.

use partywall_core::units::Nanos;
use serde::{Deserialize, Serialize};

use super::arrivals::{Arrival, Clock};
use super::fits;
use crate::chance::{Chance, normal_cdf};

/// The traces that were fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FittedTrace {
    /// Camera-like task, every 104 ms, long and short gaps in turn.
    DisbResnet152,
    /// Camera-like task, every 193 ms, sometimes for a while twice as fast.
    DisbDensenet201,
    /// Four requests within 20 ms, then 90 to 280 ms of silence.
    DisbVgg19,
    /// Camera-like task, every 103 ms, drifting between 70 and 200 ms.
    DisbInceptionv3,
    /// Every 206 ms, now and then a gap of up to a second.
    DisbDistilbert,
    /// A coding assistant: floods and minutes of silence, long prompts, short answers.
    AzureCode,
    /// A chat service: batches of about ten requests every 3 s, very long prompts.
    Mooncake,
}

impl FittedTrace {
    /// All of them, in the order in which they are documented.
    pub const ALL: [Self; 7] = [
        Self::DisbResnet152,
        Self::DisbDensenet201,
        Self::DisbVgg19,
        Self::DisbInceptionv3,
        Self::DisbDistilbert,
        Self::AzureCode,
        Self::Mooncake,
    ];

    /// Requests a second in the trace, and of the generated stream at `rate_scale` 1.
    pub fn mean_rate_per_s(self) -> f64 {
        let fit = self.fit();
        let cycle_s: f64 = fit.cycle.iter().map(|gap| gap.mean).sum();
        fit.batch.map_or(1.0, |batch| batch.mean) * fit.cycle.len() as f64 / cycle_s
    }

    /// Where the trace comes from and its licence, for reports.
    pub const fn source(self) -> &'static str {
        match self {
            Self::DisbResnet152
            | Self::DisbDensenet201
            | Self::DisbVgg19
            | Self::DisbInceptionv3
            | Self::DisbDistilbert => "fitted to DISB workload REAL (SJTU-IPADS/disb, Apache-2.0)",
            Self::AzureCode => {
                "fitted to the Azure LLM inference trace 2023, coding (Azure/AzurePublicDataset, CC-BY-4.0)"
            }
            Self::Mooncake => "fitted to the Mooncake conversation trace (kvcache-ai/Mooncake, Apache-2.0)",
        }
    }

    fn fit(self) -> &'static Fit {
        match self {
            Self::DisbResnet152 => &fits::DISB_RESNET152,
            Self::DisbDensenet201 => &fits::DISB_DENSENET201,
            Self::DisbVgg19 => &fits::DISB_VGG19,
            Self::DisbInceptionv3 => &fits::DISB_INCEPTIONV3,
            Self::DisbDistilbert => &fits::DISB_DISTILBERT,
            Self::AzureCode => &fits::AZURE_CODE,
            Self::Mooncake => &fits::MOONCAKE,
        }
    }
}

/// A distribution by its quantiles.
#[derive(Debug)]
pub(super) struct Quantiles {
    /// The mean that draws have; the quantiles are scaled to it.
    pub(super) mean: f64,
    /// (probability, value), both rising, from probability 0 to 1; values above 0.
    pub(super) knots: &'static [(f64, f64)],
}

/// What is known of a trace.
#[derive(Debug)]
pub(super) struct Fit {
    /// The gap in seconds before each position of the cycle; at most [`LONGEST_CYCLE`].
    pub(super) cycle: &'static [&'static Quantiles],
    /// The slow part's share of the variance, 0 to 1.
    pub(super) share: f64,
    /// What the slow part keeps of itself from one cycle to the next, 0 to 1.
    pub(super) memory: f64,
    /// Requests that come at once, where they come in batches.
    pub(super) batch: Option<&'static Quantiles>,
    /// Tokens of the prompt and of the answer.
    pub(super) tokens: Option<[&'static Quantiles; 2]>,
}

/// Longest cycle of a fit: the fours of VGG-19.
const LONGEST_CYCLE: usize = 4;

/// Quantiles made ready for drawing.
#[derive(Debug, Clone)]
struct Sampler {
    /// (probability, logarithm of the value, its slope up to the next knot).
    knots: Vec<(f64, f64, f64)>,
    low: f64,
    high: f64,
}

impl Sampler {
    fn new(quantiles: &Quantiles) -> Self {
        let low = quantiles.knots.first().map_or(0.0, |knot| knot.1);
        let high = quantiles.knots.last().map_or(0.0, |knot| knot.1);
        let scale = libm::log(quantiles.mean / curve_mean(quantiles.knots));
        let knots = quantiles.knots.windows(2).map(|pair| {
            let (from, to) = (libm::log(pair[0].1), libm::log(pair[1].1));
            (pair[0].0, from + scale, (to - from) / (pair[1].0 - pair[0].0))
        });
        Self { knots: knots.collect(), low, high }
    }

    /// The value at this probability. Scaling never leads out of the trace's range.
    fn at(&self, probability: f64) -> f64 {
        let segment = self.knots.iter().rev().find(|knot| knot.0 <= probability);
        let (from, log, slope) = segment.copied().unwrap_or_default();
        libm::exp(log + slope * (probability - from)).clamp(self.low, self.high)
    }
}

/// Mean of the curve through the knots: between two knots the value is exponential in the probability.
fn curve_mean(knots: &[(f64, f64)]) -> f64 {
    let piece = |pair: &[(f64, f64)]| {
        let ((from, low), (to, high)) = (pair[0], pair[1]);
        let mean = if high == low { low } else { (high - low) / libm::log(high / low) };
        (to - from) * mean
    };
    knots.windows(2).map(piece).sum()
}

/// The generated stream.
#[derive(Debug, Clone)]
pub(super) struct FittedArrivals {
    fit: &'static Fit,
    clock: Clock,
    chance: Chance,
    rate_scale: f64,
    gaps: Vec<Sampler>,
    batch: Option<Sampler>,
    tokens: Option<[Sampler; 2]>,
    slow: [f64; LONGEST_CYCLE],
    position: usize,
    started: bool,
    /// Requests of the current batch that are still to come, all at `at`.
    waiting: u32,
    at: Nanos,
}

impl FittedArrivals {
    pub(super) fn new(like: FittedTrace, rate_scale: f64, mut chance: Chance) -> Self {
        let fit = like.fit();
        let slow = [(); LONGEST_CYCLE].map(|()| chance.normal());
        Self {
            fit,
            clock: Clock::default(),
            rate_scale,
            gaps: fit.cycle.iter().map(|quantiles| Sampler::new(quantiles)).collect(),
            batch: fit.batch.map(Sampler::new),
            tokens: fit.tokens.map(|both| both.map(Sampler::new)),
            slow,
            position: 0,
            started: false,
            waiting: 0,
            at: Nanos::ZERO,
            chance,
        }
    }

    pub(super) fn next(&mut self) -> Option<Arrival> {
        if self.waiting == 0 {
            self.step()?;
        }
        self.waiting -= 1;
        let [input_tokens, output_tokens] = match &self.tokens {
            Some(tokens) => tokens.each_ref().map(|tokens| tokens.at(self.chance.unit()).round() as u32),
            None => [0, 0],
        };
        Some(Arrival { at: self.at, input_tokens, output_tokens })
    }

    /// Moves to the next time at which something comes.
    fn step(&mut self) -> Option<()> {
        let Fit { share, memory, .. } = *self.fit;
        let slow = &mut self.slow[self.position];
        *slow = memory * *slow + (1.0 - memory * memory).sqrt() * self.chance.normal();
        let deviate = share.sqrt() * *slow + (1.0 - share).sqrt() * self.chance.normal();
        let rank = normal_cdf(deviate);
        let mut gap = self.gaps[self.position].at(rank) / self.rate_scale;
        if !self.started {
            // The run begins somewhere within a gap.
            self.started = true;
            gap *= self.chance.unit();
        }
        self.at = self.clock.advance(gap)?;
        self.position = (self.position + 1) % self.gaps.len();
        self.waiting = self.batch.as_ref().map_or(1, |batch| (batch.at(rank).round() as u32).max(1));
        Some(())
    }
}

#[cfg(test)]
mod tests;
