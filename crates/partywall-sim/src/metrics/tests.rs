use super::*;

fn of(values: impl IntoIterator<Item = u64>) -> Latencies {
    let mut latencies = Latencies::new();
    values.into_iter().for_each(|value| latencies.record(Nanos(value)));
    latencies
}

#[test]
fn quantiles_are_by_nearest_rank_to_three_digits() {
    let latencies = of((1..=1000).map(|i| i * 1000));
    let near = |q, expected: f64| {
        let found = latencies.quantile(q).unwrap().0 as f64;
        assert!((found / expected - 1.0).abs() < 2e-3, "{found} at {q}");
    };
    near(0.5, 500e3);
    near(0.99, 990e3);
    near(1.0, 1e6);
    assert!((latencies.mean_ms().unwrap() / 0.5005 - 1.0).abs() < 1e-3);
}

#[test]
fn the_recordings_median_of_two_halves_is_the_slow_one() {
    let halves = of([10, 10, 20, 20]);
    assert_eq!((halves.quantile(0.5), halves.sorted_at(0.5)), (Some(Nanos(10)), Some(Nanos(20))));
    assert_eq!(halves.sorted_at(1.0), Some(Nanos(20)));
}

#[test]
fn a_percentile_without_enough_samples_is_null() {
    let few = of(1..=20).percentiles();
    assert!(few.p50_ms.is_some() && few.p999_ms.is_none());
    let none = Latencies::new();
    assert_eq!((none.quantile(0.5), none.mean_ms(), none.is_empty()), (None, None, true));
    assert_eq!(none.percentiles(), Percentiles::default());
}

#[test]
fn nothing_is_too_short_or_too_long_to_count() {
    let extreme = of([0, u64::MAX]);
    assert_eq!(extreme.len(), 2);
    assert!(extreme.quantile(1.0).unwrap() >= Nanos(HIGHEST_NS));
}

#[test]
fn a_distribution_rises_to_one() {
    let cdf = of((1..=5000).map(|i| i * i)).cdf(60);
    assert!(cdf.windows(2).all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 < pair[1].1));
    assert_eq!(cdf.last().unwrap().1, 1.0);
}
