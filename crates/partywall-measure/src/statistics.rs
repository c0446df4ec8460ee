//! From times of requests to percentiles and their intervals.
//!
//! Samples of all rounds are pooled for percentiles. Intervals come from the moving-block bootstrap: successive
//! requests resemble each other (one slow neighbour kernel delays several), so whole stretches are drawn, not single
//! requests, which would make intervals too narrow. Blocks never cross from one round into the next.

use partywall_core::measure::{Evidence, Percentile};
use partywall_core::units::Nanos;
use rand_pcg::Pcg64Dxsm;
use rand_pcg::rand_core::Rng;

use crate::record::Quantiles;

/// Bootstrap replicates of a series. The ends of a 95 % interval are then the tenth value from either end: good to
/// about a tenth of the interval's width.
pub const REPLICATES: usize = 400;

/// Which part of replicates lies within an interval.
pub const CONFIDENCE: f64 = 0.95;

/// Times of one tenant in one cell, by round, in the order in which its requests began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Series {
    /// The rounds.
    pub rounds: Vec<Vec<Nanos>>,
}

/// Percentiles of resampled series. Empty where the percentile has not enough samples behind it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Replicates {
    /// Medians, in ns, in the order drawn.
    pub p50: Vec<f64>,
    /// 99th percentiles, in ns, in the order drawn.
    pub p99: Vec<f64>,
}

impl Series {
    /// How many samples there are.
    pub fn len(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All samples, ascending.
    pub fn sorted(&self) -> Vec<Nanos> {
        let mut all: Vec<Nanos> = self.rounds.iter().flatten().copied().collect();
        all.sort_unstable();
        all
    }

    /// Percentiles with enough samples behind them, longest and mean.
    pub fn quantiles(&self, evidence: Evidence) -> Quantiles {
        let sorted = self.sorted();
        let at = |percentile: Percentile| percentile.of(&sorted, evidence).map(Nanos::as_ms);
        let sum: u128 = sorted.iter().map(|time| u128::from(time.0)).sum();
        Quantiles {
            p50: at(Percentile::P50),
            p90: at(Percentile::P90),
            p99: at(Percentile::P99),
            p999: at(Percentile::P999),
            max: sorted.last().map(|time| time.as_ms()),
            mean: (!sorted.is_empty()).then(|| sum as f64 / sorted.len() as f64 / 1e6),
        }
    }

    /// Draws [`REPLICATES`] series of the same length. The same seed draws the same.
    pub fn bootstrap(&self, evidence: Evidence, seed: u64) -> Replicates {
        let n = self.len();
        let supported = |p: Percentile| p.supported(n as u64, evidence, ()).is_some();
        let (with_p50, with_p99) = (supported(Percentile::P50), supported(Percentile::P99));
        let mut replicates = Replicates::default();
        if !with_p50 {
            return replicates;
        }
        let mut chance = Pcg64Dxsm::new(u128::from(seed), 0xb007_57a9);
        let mut drawn: Vec<Nanos> = Vec::with_capacity(n);
        for _ in 0..REPLICATES {
            drawn.clear();
            for round in &self.rounds {
                draw(round, &mut chance, &mut drawn);
            }
            if with_p99 {
                replicates.p99.push(select(&mut drawn, Percentile::P99));
            }
            replicates.p50.push(select(&mut drawn, Percentile::P50));
        }
        replicates
    }
}

/// Length of the blocks for a series of `n`: the rate `n^(1/3)` is the best one for the variance of a mean
/// (Künsch 1989, Hall, Horowitz and Jing 1995); twice that, because latencies come in runs.
pub fn block_length(n: usize) -> usize {
    (2.0 * (n as f64).cbrt()).ceil() as usize
}

/// Appends blocks of `round` from random places until as many samples were drawn as it has.
fn draw(round: &[Nanos], chance: &mut Pcg64Dxsm, drawn: &mut Vec<Nanos>) {
    let length = block_length(round.len()).clamp(1, round.len().max(1));
    let starts = (round.len() + 1).saturating_sub(length).max(1);
    let end = drawn.len() + round.len();
    while drawn.len() < end {
        let start = below(starts, chance);
        let take = length.min(end - drawn.len());
        drawn.extend_from_slice(&round[start..start + take]);
    }
}

/// Uniform in `0..bound`: the upper half of the product. The bias of at most `bound / 2^64` is far below anything
/// measured.
fn below(bound: usize, chance: &mut Pcg64Dxsm) -> usize {
    ((u128::from(chance.next_u64()) * bound as u128) >> 64) as usize
}

/// The percentile of `values` by nearest rank; reorders them. `values` is not empty.
fn select(values: &mut [Nanos], percentile: Percentile) -> f64 {
    let rank = (values.len() as f64 * percentile.fraction()).ceil() as usize;
    let index = rank.clamp(1, values.len()) - 1;
    let (_, value, _) = values.select_nth_unstable(index);
    value.0 as f64
}

/// The [`CONFIDENCE`] interval of `values` by their percentiles; `None` where there is none.
pub fn interval(values: &[f64]) -> Option<[f64; 2]> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let beyond = (sorted.len() as f64 * (1.0 - CONFIDENCE) / 2.0).floor() as usize;
    let low = sorted.get(beyond)?;
    let high = sorted.get(sorted.len() - 1 - beyond)?;
    Some([*low, *high])
}

/// The interval of the ratio of two independent percentiles, from their replicates; `None` where one has none.
pub fn ratio_interval(above: &[f64], below: &[f64]) -> Option<[f64; 2]> {
    let ratios: Vec<f64> = above
        .iter()
        .zip(below)
        .filter(|(_, below)| **below > 0.0)
        .map(|(above, below)| above / below)
        .collect();
    interval(&ratios)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, proptest};

    use super::*;

    /// Exponential times with this mean, in stretches of `run` equal ones.
    fn exponential(n: usize, mean: f64, run: usize, seed: u64) -> Vec<Nanos> {
        let mut chance = Pcg64Dxsm::new(u128::from(seed), 77);
        let mut unit = || ((chance.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        let mut values = Vec::new();
        while values.len() < n {
            let value = Nanos((-unit().ln() * mean) as u64);
            values.extend(std::iter::repeat_n(value, run.min(n - values.len())));
        }
        values
    }

    #[test]
    fn percentiles_pool_the_rounds_and_are_null_without_evidence() {
        let series =
            Series { rounds: vec![vec![Nanos::from_millis(3); 10], vec![Nanos::from_millis(1); 10]] };
        let found = series.quantiles(Evidence::Shown);
        assert_eq!((found.p50, found.p90, found.max), (Some(1.0), None, Some(3.0)));
        assert_eq!(found.mean, Some(2.0));
        assert_eq!(series.quantiles(Evidence::Recorded).p50, None);
        assert_eq!(Series::default().quantiles(Evidence::Shown), Quantiles::default());
        assert_eq!(series.bootstrap(Evidence::Recorded, 1), Replicates::default());
        assert!(series.bootstrap(Evidence::Shown, 1).p99.is_empty());
    }

    /// How many of 60 intervals hold the true median of exponential times in stretches of `run` equal ones.
    fn coverage(run: usize) -> usize {
        let truth = 1e6 * std::f64::consts::LN_2;
        (0..60)
            .filter(|&seed| {
                let series = Series { rounds: vec![exponential(400, 1e6, run, seed); 1] };
                let replicates = series.bootstrap(Evidence::Shown, seed);
                interval(&replicates.p50).is_some_and(|[low, high]| (low..=high).contains(&truth))
            })
            .count()
    }

    #[test]
    fn intervals_hold_the_truth_about_as_often_as_they_say() {
        // 57 expected; of 60 trials with that chance, fewer than 51 come once in 1 000 times. The seeds are fixed.
        let single = coverage(1);
        assert!((51..=60).contains(&single), "{single}");
        // Stretches of 4 within blocks of 15: nearly as often, where single draws would have about 40.
        let runs = coverage(4);
        assert!((49..=60).contains(&runs), "{runs}");
    }

    #[test]
    fn intervals_of_ratios_hold_the_ratio() {
        let series = |mean: f64, seed| Series { rounds: vec![exponential(2_000, mean, 1, seed); 2] };
        let (above, below) = (series(3e6, 1), series(1e6, 2));
        let (above, below) = (above.bootstrap(Evidence::Shown, 3), below.bootstrap(Evidence::Shown, 4));
        for (above, below) in [(&above.p50, &below.p50), (&above.p99, &below.p99)] {
            let [low, high] = ratio_interval(above, below).unwrap();
            assert!(low < 3.0 && 3.0 < high && high / low < 1.6, "{low} {high}");
        }
        assert_eq!(ratio_interval(&above.p50, &[]), None);
    }

    #[test]
    fn the_same_seed_draws_the_same() {
        let series = Series { rounds: vec![exponential(500, 1e6, 1, 5)] };
        assert_eq!(series.bootstrap(Evidence::Shown, 9), series.bootstrap(Evidence::Shown, 9));
        assert_ne!(series.bootstrap(Evidence::Shown, 9), series.bootstrap(Evidence::Shown, 8));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn replicates_lie_within_the_samples(times in proptest::collection::vec(1u64..1000, 20..120), cut in 0usize..20) {
            let (a, b) = times.split_at(cut);
            let rounds = [a, b].map(|round| round.iter().map(|&time| Nanos(time)).collect()).to_vec();
            let (low, high) = (*times.iter().min().unwrap() as f64, *times.iter().max().unwrap() as f64);
            for value in (Series { rounds }).bootstrap(Evidence::Shown, 1).p50 {
                prop_assert!((low..=high).contains(&value));
            }
        }
    }
}
