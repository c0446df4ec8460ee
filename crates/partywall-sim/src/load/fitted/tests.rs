use super::FittedTrace::*;
use super::*;

/// A statistic of the trace and how far the generated stream may be from it.
#[derive(Debug, Clone, Copy)]
struct Within(f64, f64);

impl Within {
    fn check(self, like: FittedTrace, what: &str, found: f64) {
        let Self(trace, tolerance) = self;
        println!("{like:?} {what}: trace {trace}, generated {found:.4}");
        assert!((found - trace).abs() <= tolerance, "{like:?} {what}: trace {trace}, generated {found}");
    }
}

fn generate(like: FittedTrace, requests: usize) -> Vec<Arrival> {
    let mut arrivals = FittedArrivals::new(like, 1.0, Chance::new(11, 0));
    (0..requests).map_while(|_| arrivals.next()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let variance =
        values.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / values.len() as f64;
    variance.sqrt() / mean
}

fn autocorrelation(values: &[f64], lag: usize) -> f64 {
    let mean = mean(values);
    let product = |(a, b): (&f64, &f64)| (a - mean) * (b - mean);
    let lagged: f64 = values.iter().zip(&values[lag..]).map(product).sum();
    lagged / values.iter().zip(values).map(product).sum::<f64>()
}

/// Variance over mean of the requests in windows of this many seconds.
fn dispersion(times: &[f64], window: f64) -> f64 {
    let slide = window / 20.0;
    let (mut from, mut to, mut counts) = (0, 0, Vec::new());
    for step in 0..((times[times.len() - 1] - times[0] - window) / slide) as usize {
        let start = times[0] + step as f64 * slide;
        from += times[from..].iter().take_while(|time| **time < start).count();
        to += times[to..].iter().take_while(|time| **time < start + window).count();
        counts.push((to - from) as f64);
    }
    variation(&counts).powi(2) * mean(&counts)
}

fn seconds(arrivals: &[Arrival]) -> Vec<f64> {
    arrivals.iter().map(|arrival| arrival.at.as_secs()).collect()
}

fn gaps(times: &[f64]) -> Vec<f64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

/// DISB's tasks are short (38 s), so their own index of dispersion over 1 s is known to about a quarter.
fn check_periodic(like: FittedTrace, gap: f64, cv: f64, lags: [(usize, f64); 2], dispersion_1s: f64) {
    let times = seconds(&generate(like, 60_000));
    let gaps = gaps(&times);
    Within(gap, 0.01 * gap).check(like, "mean gap", mean(&gaps));
    Within(cv, 0.1 * cv).check(like, "variation of gaps", variation(&gaps));
    for (lag, value) in lags {
        Within(value, 0.07).check(like, "autocorrelation", autocorrelation(&gaps, lag));
    }
    Within(dispersion_1s, 0.25 * dispersion_1s).check(like, "dispersion over 1 s", dispersion(&times, 1.0));
}

#[test]
fn disb_tasks_come_as_recorded() {
    check_periodic(DisbResnet152, 0.10372, 0.120, [(1, 0.023), (2, 0.625)], 0.068);
    check_periodic(DisbDensenet201, 0.19286, 0.221, [(1, 0.565), (2, 0.305)], 0.155);
    check_periodic(DisbVgg19, 0.05233, 1.589, [(1, -0.296), (4, 0.941)], 0.492);
    check_periodic(DisbInceptionv3, 0.10346, 0.230, [(1, 0.396), (2, 0.324)], 0.201);
    check_periodic(DisbDistilbert, 0.22405, 0.389, [(1, 0.067), (2, -0.019)], 0.197);
}

fn check_tokens(like: FittedTrace, arrivals: &[Arrival], pick: fn(&Arrival) -> u32, expect: [f64; 4]) {
    let mut tokens: Vec<f64> = arrivals.iter().map(|arrival| f64::from(pick(arrival))).collect();
    tokens.sort_by(f64::total_cmp);
    let [mean_tokens, cv, median, p99] = expect;
    Within(mean_tokens, 0.03 * mean_tokens).check(like, "mean tokens", mean(&tokens));
    Within(cv, 0.08 * cv).check(like, "variation of tokens", variation(&tokens));
    Within(median, 0.1 * median).check(like, "median tokens", tokens[tokens.len() / 2]);
    Within(p99, 0.1 * p99).check(like, "p99 of tokens", tokens[tokens.len() * 99 / 100]);
}

#[test]
fn azure_floods_and_falls_silent() {
    let arrivals = generate(AzureCode, 400_000);
    let times = seconds(&arrivals);
    let gaps = gaps(&times);
    // One gap in a thousand makes a third of the time, so even long runs differ by some per cent.
    Within(0.38965, 0.03).check(AzureCode, "mean gap", mean(&gaps));
    Within(13.15, 1.3).check(AzureCode, "variation of gaps", variation(&gaps));
    Within(13.06, 2.6).check(AzureCode, "dispersion over 1 s", dispersion(&times, 1.0));
    Within(74.2, 15.0).check(AzureCode, "dispersion over 10 s", dispersion(&times, 10.0));
    Within(155.7, 31.0).check(AzureCode, "dispersion over 60 s", dispersion(&times, 60.0));
    check_tokens(AzureCode, &arrivals, |arrival| arrival.input_tokens, [2047.8, 0.964, 1469.0, 7436.0]);
    check_tokens(AzureCode, &arrivals, |arrival| arrival.output_tokens, [27.88, 2.147, 13.0, 251.5]);
}

#[test]
fn mooncake_comes_in_batches() {
    let arrivals = generate(Mooncake, 400_000);
    let batches: Vec<f64> = arrivals.chunk_by(|a, b| a.at == b.at).map(|batch| batch.len() as f64).collect();
    let times = seconds(&arrivals);
    Within(0.29401, 0.003).check(Mooncake, "mean gap", mean(&gaps(&times)));
    Within(10.196, 0.1).check(Mooncake, "mean batch", mean(&batches));
    Within(0.328, 0.025).check(Mooncake, "variation of batches", variation(&batches));
    Within(0.152, 0.04).check(Mooncake, "autocorrelation of batches", autocorrelation(&batches, 1));
    Within(2.75, 0.55).check(Mooncake, "dispersion over 60 s", dispersion(&times, 60.0));
    check_tokens(Mooncake, &arrivals, |arrival| arrival.input_tokens, [12_035.0, 1.313, 6909.0, 85_400.0]);
    check_tokens(Mooncake, &arrivals, |arrival| arrival.output_tokens, [342.6, 0.729, 350.0, 1118.5]);
}

#[test]
fn parameters_are_what_the_sampler_expects() {
    for like in FittedTrace::ALL {
        let fit = like.fit();
        assert!((1..=LONGEST_CYCLE).contains(&fit.cycle.len()));
        assert!((0.0..=1.0).contains(&fit.share) && (0.0..1.0).contains(&fit.memory));
        let token_curves = fit.tokens.iter().flatten();
        for quantiles in fit.cycle.iter().chain(&fit.batch).chain(token_curves) {
            let knots = quantiles.knots;
            assert!(knots[0].0 == 0.0 && knots[knots.len() - 1].0 == 1.0 && knots[0].1 > 0.0, "{like:?}");
            assert!(knots.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1), "{like:?}");
            // The scale to the trace's mean is a correction for the straight lines, not a second fit.
            assert!((curve_mean(knots) / quantiles.mean - 1.0).abs() < 0.1, "{like:?} {quantiles:?}");
        }
    }
}

#[test]
fn rate_scale_compresses_time() {
    let slow = generate(AzureCode, 1000);
    let mut fast = FittedArrivals::new(AzureCode, 4.0, Chance::new(11, 0));
    for (count, slow) in slow.iter().enumerate() {
        let fast = fast.next().unwrap();
        // Each gap is rounded to a nanosecond.
        assert!(fast.at.0.abs_diff(slow.at.0 / 4) <= count as u64 + 1);
        assert_eq!((fast.input_tokens, fast.output_tokens), (slow.input_tokens, slow.output_tokens));
    }
}
