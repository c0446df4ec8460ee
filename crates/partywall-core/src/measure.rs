//! The measures, always these, so that two reports never mean different things by one word.
//!
//! | measure | definition |
//! |---|---|
//! | solo | the same arrivals alone on the whole GPU, without Partywall and without MPS |
//! | service time | from the start of a request's work to its completion |
//! | response time | from a request's scheduled arrival to its completion: it includes waiting behind itself |
//! | slowdown | co-run p99 / solo p99, of service time unless said |
//! | capacity cost | p99 alone in the partition / solo p99 |
//! | interference | co-run p99 / p99 alone in the same partition |
//! | BE kept | best-effort rate beside latency-sensitive work / its rate alone on the whole GPU |
//! | duty | arrival rate x solo p50 |
//!
//! Slowdown = capacity cost x interference: what a tenant pays for its smaller part of the GPU, and what its
//! neighbours do to it there. Ratios are fractions (1.009, 0.8), never per cent.
//!
//! Two rules keep numbers honest. A percentile is only given when enough samples lie behind it
//! ([`Evidence`]); else it is `None`, which reports write as null. A run whose offered load was not served
//! has no slowdown: its latencies say how long the run was, not how good the wall is. It is
//! [`Load::Saturated`], with the rate that was completed.

use serde::{Deserialize, Serialize};

use crate::units::Nanos;

/// A percentile as parts per million, so that the samples it needs are counted exactly: 1 - 0.99 is not 0.01
/// in floating point.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percentile(u32);

/// How many samples a percentile needs. The rule counts those beyond it, because only they say where the tail
/// begins: with `k` of them, its position has a standard deviation of about `sqrt(k)` samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Evidence {
    /// To be shown at all: 10 samples beyond it. p50 needs 20 samples, p99 1 000, p99.9 10 000.
    Shown,
    /// To stand in recorded results: 50 samples beyond it. p50 needs 100 samples, p99 5 000, p99.9 50 000.
    Recorded,
}

impl Percentile {
    const WHOLE: u32 = 1_000_000;
    /// The median.
    pub const P50: Self = Self(500_000);
    /// Of ten samples, nine are at most this.
    pub const P90: Self = Self(900_000);
    /// Of a hundred samples, 99 are at most this: the one that slowdown and SLOs are about.
    pub const P99: Self = Self(990_000);
    /// Of a thousand samples, 999 are at most this.
    pub const P999: Self = Self(999_000);

    /// From parts per million: 990 000 is p99. `None` for a million and more: the largest sample is no
    /// percentile.
    pub const fn from_ppm(ppm: u32) -> Option<Self> {
        if ppm < Self::WHOLE { Some(Self(ppm)) } else { None }
    }

    /// As a fraction: 0.99.
    pub fn fraction(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }

    /// The fewest samples with which this percentile may be given.
    pub const fn samples_needed(self, evidence: Evidence) -> u64 {
        let beyond: u64 = match evidence {
            Evidence::Shown => 10,
            Evidence::Recorded => 50,
        };
        (beyond * Self::WHOLE as u64).div_ceil((Self::WHOLE - self.0) as u64)
    }

    /// `value` if it came from enough samples.
    pub fn supported<T>(self, samples: u64, evidence: Evidence, value: T) -> Option<T> {
        (samples >= self.samples_needed(evidence)).then_some(value)
    }

    /// This percentile of `sorted` (ascending) by nearest rank: the smallest sample that at least this part
    /// of all samples does not exceed. `None` without enough samples.
    pub fn of(self, sorted: &[Nanos], evidence: Evidence) -> Option<Nanos> {
        let rank = (sorted.len() as u128 * u128::from(self.0)).div_ceil(u128::from(Self::WHOLE));
        let index = (rank as usize).saturating_sub(1);
        sorted.get(index).and_then(|value| self.supported(sorted.len() as u64, evidence, *value))
    }
}

/// What a wall did to a tenant's tail. Fractions, 1 is "as alone".
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailCost {
    /// Co-run p99 / solo p99.
    pub slowdown: f64,
    /// p99 alone in the partition / solo p99: what the smaller part, or the wall itself, costs without
    /// neighbours.
    pub capacity_cost: f64,
    /// Co-run p99 / p99 alone in the same partition: what the neighbours cost.
    pub interference: f64,
}

impl TailCost {
    /// From three p99 of the same arrivals: alone on the whole GPU, alone behind the wall in the same
    /// partition, and beside the neighbours. `None` where one of them is zero, so that no ratio exists.
    pub fn new(solo: Nanos, partition: Nanos, corun: Nanos) -> Option<Self> {
        Some(Self {
            slowdown: slowdown(solo, corun)?,
            capacity_cost: capacity_cost(solo, partition)?,
            interference: interference(partition, corun)?,
        })
    }
}

/// Co-run p99 / solo p99. `None` where one is zero.
pub fn slowdown(solo: Nanos, corun: Nanos) -> Option<f64> {
    ratio(corun, solo)
}

/// p99 alone in the partition / solo p99. `None` where one is zero.
pub fn capacity_cost(solo: Nanos, partition: Nanos) -> Option<f64> {
    ratio(partition, solo)
}

/// Co-run p99 / p99 alone in the same partition. `None` where one is zero.
pub fn interference(partition: Nanos, corun: Nanos) -> Option<f64> {
    ratio(corun, partition)
}

/// Best-effort rate beside latency-sensitive work / its rate alone on the whole GPU; both in the same unit,
/// such as batches a second. `None` where the rate alone is not above zero, or one is not finite and at least
/// zero.
pub fn be_kept(beside: f64, alone: f64) -> Option<f64> {
    let kept = beside / alone;
    (alone > 0.0 && beside >= 0.0 && kept.is_finite() && alone.is_finite()).then_some(kept)
}

/// Arrival rate (requests a second) x solo p50: the part of the time a tenant would be at work alone, above 1
/// where even alone it cannot keep up. `None` where the rate is not finite and at least zero.
pub fn duty(rate_per_s: f64, solo_p50: Nanos) -> Option<f64> {
    (rate_per_s.is_finite() && rate_per_s >= 0.0).then(|| rate_per_s * solo_p50.as_secs())
}

fn ratio(above: Nanos, below: Nanos) -> Option<f64> {
    (above > Nanos::ZERO && below > Nanos::ZERO).then(|| above.0 as f64 / below.0 as f64)
}

pub mod ims;
mod load;

pub use load::{
    GROWTH_FACTOR, GROWTH_REQUESTS, Load, LoadMeter, SERVED_FRACTION, SHORTFALL_REQUESTS, Served,
};

#[cfg(test)]
mod tests;
