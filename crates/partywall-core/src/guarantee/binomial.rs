//! How likely it is to draw so many, or so few.

/// The probability that at most `hits` of `draws` hit, where each does with `chance` (above 0 and below 1).
///
/// Summed up term by term: each follows from the one before it. The first, `(1 - chance)^draws`, is no number above zero any more beyond
/// some 70 000 draws at a chance of 0.01, of which nobody here has as many.
pub(super) fn at_most(hits: u64, draws: u64, chance: f64) -> f64 {
    if hits >= draws {
        return 1.0;
    }
    let odds = chance / (1.0 - chance);
    let mut term = libm::pow(1.0 - chance, draws as f64);
    let mut sum = term;
    for hit in 0..hits {
        term *= (draws - hit) as f64 / (hit + 1) as f64 * odds;
        sum += term;
    }
    sum.min(1.0)
}

/// The probability that `hits` or more of `draws` hit.
pub(super) fn at_least(hits: u64, draws: u64, chance: f64) -> f64 {
    match hits.checked_sub(1) {
        None => 1.0,
        Some(fewer) => (1.0 - at_most(fewer, draws, chance)).max(0.0),
    }
}

/// An interval that holds the chance behind `hits` of `draws` in 95 of 100 cases (Wilson 1927, "Probable inference, the law of succession,
/// and statistical inference", JASA 22). 0 to 1 where nothing was drawn.
pub(super) fn interval(hits: u64, draws: u64) -> (f64, f64) {
    if draws == 0 {
        return (0.0, 1.0);
    }
    /// Of the normal distribution, 95 of 100 lie within so many standard deviations.
    const Z: f64 = 1.959_963_984_540_054;
    let n = draws as f64;
    let share = hits as f64 / n;
    let centre = share + Z * Z / (2.0 * n);
    let half = Z * libm::sqrt(share * (1.0 - share) / n + Z * Z / (4.0 * n * n));
    let scale = 1.0 + Z * Z / n;
    (((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tails_are_those_of_the_binomial_distribution() {
        // By hand: 3 coins.
        let coins = [0, 1, 2, 3].map(|heads| at_most(heads, 3, 0.5));
        assert_eq!(coins, [0.125, 0.5, 0.875, 1.0]);
        assert_eq!([0, 3].map(|heads| at_least(heads, 3, 0.5)), [1.0, 0.125]);
        // 0.99^299 = 0.0495, 0.99^298 = 0.0500.
        assert!(at_most(0, 299, 0.01) < 0.05 && at_most(0, 298, 0.01) > 0.05);
        // The median of a binomial distribution is within one of its mean.
        assert!(at_most(49, 5_000, 0.01) < 0.5 && at_most(50, 5_000, 0.01) > 0.5);
    }

    #[test]
    fn wilsons_interval() {
        let near = |(low, high): (f64, f64), wanted: (f64, f64)| {
            assert!((low - wanted.0).abs() < 5e-4 && (high - wanted.1).abs() < 5e-4, "{low} {high}");
        };
        // Worked out from the formula: (0.5 + 0.19207) / 1.38415 and so on.
        near(interval(5, 10), (0.2366, 0.7634));
        near(interval(0, 100), (0.0, 0.0370));
        assert_eq!(interval(0, 0), (0.0, 1.0));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn tails_are_probabilities_and_complete(draws in 1u64..5_000, hits in 0u64..5_000, chance in 0.001f64..0.5) {
            let (below, above) = (at_most(hits, draws, chance), at_least(hits + 1, draws, chance));
            prop_assert!((0.0..=1.0).contains(&below));
            prop_assert!((below + above - 1.0).abs() < 1e-9);
            prop_assert!(at_most(hits + 1, draws, chance) >= below);
        }

        #[test]
        fn an_interval_holds_what_was_seen(draws in 1u64..10_000, part in 0.0f64..=1.0) {
            let hits = (draws as f64 * part) as u64;
            let (low, high) = interval(hits, draws);
            let share = hits as f64 / draws as f64;
            prop_assert!(0.0 <= low && low <= share + 1e-12 && share <= high + 1e-12 && high <= 1.0);
        }
    }
}
