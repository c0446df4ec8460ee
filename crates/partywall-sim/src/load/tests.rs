use proptest::prelude::*;

use super::*;

fn written(toml: &str) -> Result<Load, String> {
    toml::from_str(toml).map_err(|error| error.message().to_owned())
}

fn demand(toml: &str) -> Result<Demand, String> {
    written(toml)?.demand(None).map_err(|error| error.to_string())
}

fn times(demand: &Demand, count: usize) -> Vec<Nanos> {
    demand.arrivals(1, 0).unwrap().take(count).map(|arrival| arrival.at).collect()
}

const OPEN: [&str; 9] = [
    "kind = 'poisson'\nrate_per_s = 1000",
    "kind = 'periodic'\nrate_per_s = 30.5",
    "kind = 'bursty'\nrate_per_s = 200\nburst_factor = 10\nburst = '200ms'\ncalm = '1.8s'",
    "kind = 'fitted'\nlike = 'disb-resnet152'",
    "kind = 'fitted'\nlike = 'disb-vgg19'\nrate_scale = 0.25",
    "kind = 'fitted'\nlike = 'disb-densenet201'",
    "kind = 'fitted'\nlike = 'azure-code'\nrate_scale = 100",
    "kind = 'fitted'\nlike = 'mooncake'\nrate_scale = 2",
    "kind = 'fitted'\nlike = 'disb-distilbert'",
];

#[test]
fn scenario_texts_round_trip() {
    let others = ["kind = 'closed'\npause = '500us'\ndepth = 2", REPLAY];
    for text in OPEN.iter().chain(&others) {
        let load = written(text).unwrap();
        assert_eq!(written(&toml::to_string(&load).unwrap()), Ok(load));
    }
    assert_eq!(written("kind = 'closed'"), Ok(Load::closed(1)));
    let host = Load::Closed { pause: Nanos::ZERO, depth: 1, host: Some(Nanos::from_micros(31)) };
    assert_eq!(written("kind = 'closed'\nhost = '31us'"), Ok(host));
}

#[test]
fn wrong_texts_are_refused() {
    let check = |text: &str, expected: &str| {
        let message = demand(text).unwrap_err();
        assert!(message.contains(expected), "{message}");
    };
    check("kind = 'poison'\nrate_per_s = 1", "unknown variant `poison`");
    check("kind = 'poisson'\nrate_per_s = 1\nrate = 2", "unknown field `rate`");
    check("kind = 'poisson'", "missing field `rate_per_s`");
    check("kind = 'poisson'\nrate_per_s = 0", "`rate_per_s` is 0; expected a number from 1e-9 to 1000000.0");
    check("kind = 'poisson'\nrate_per_s = nan", "`rate_per_s` is NaN; expected");
    check("kind = 'periodic'\nrate_per_s = inf", "`rate_per_s` is inf; expected");
    check(
        "kind = 'bursty'\nrate_per_s = 9\nburst_factor = 0.5\nburst = '1s'\ncalm = '1s'",
        "`burst_factor` is 0.5; ",
    );
    check("kind = 'bursty'\nrate_per_s = 9\nburst_factor = 5\nburst = '0s'\ncalm = '1s'", "`burst` is 0ns; ");
    check(
        "kind = 'bursty'\nrate_per_s = 0.5\nburst_factor = 5\nburst = '1us'\ncalm = '1us'",
        "`burst + calm` is 2us; expected at least 2ms together for one request every 2s (or kind = \"poisson\")",
    );
    check("kind = 'closed'\ndepth = 0", "`depth` is 0; expected 1 to 1024");
    check("kind = 'closed'\nhost = '9999h'", "`host` is 35996400s; expected at most 1000h");
    check("kind = 'closed'\npause = '9999h'", "`pause` is 35996400s; expected at most 1000h");
    check(
        "kind = 'fitted'\nlike = 'azure-code'\nrate_scale = -1",
        "`rate_scale` is -1; expected a number from",
    );
    check(&format!("{REPLAY}\nspeed = 0"), "`speed` is 0; expected");
    check(REPLAY, "the trace `cameras.json` was not read; expected");
}

#[test]
fn rates_are_as_asked() {
    for text in OPEN {
        let demand = demand(text).unwrap();
        let last = times(&demand, 200_000)[199_999];
        let (asked, found) = (demand.mean_rate_per_s().unwrap(), 200_000.0 / last.as_secs());
        println!("{text:?}: {asked} {found}");
        assert!((found / asked - 1.0).abs() < 0.04, "{text}: asked {asked}, found {found}");
    }
}

#[test]
fn the_same_seed_gives_the_same_arrivals() {
    for text in OPEN {
        let demand = demand(text).unwrap();
        let draw = |seed, stream| demand.arrivals(seed, stream).unwrap().take(300).collect::<Vec<_>>();
        assert_eq!(draw(3, 1), draw(3, 1));
        assert_ne!(draw(3, 1), draw(3, 2), "{text}");
        assert_ne!(draw(3, 1), draw(4, 1), "{text}");
    }
}

#[test]
fn poisson_gaps_vary_as_much_as_their_mean_and_bursts_more() {
    let dispersion = |text: &str| {
        let mut counts = vec![0u32; 10_000];
        for at in times(&demand(text).unwrap(), 2_000_000) {
            if let Some(count) = counts.get_mut((at.0 / 100_000_000) as usize) {
                *count += 1;
            }
        }
        let mean = counts.iter().sum::<u32>() as f64 / counts.len() as f64;
        counts.iter().map(|&count| (f64::from(count) - mean).powi(2)).sum::<f64>()
            / counts.len() as f64
            / mean
    };
    assert!((dispersion("kind = 'poisson'\nrate_per_s = 1000") - 1.0).abs() < 0.05);
    // Two-state MMPP, window w: 1 + 2 p q (difference of rates)² / (mean rate s) (1 - (1 - exp(-s w)) / (s w)) with
    // p, q the shares of the states and s the sum of their ends per second (Fischer and Meier-Hellstern, 1993).
    let (p, q, s, w) = (0.1, 0.9, 1.0 / 0.2 + 1.0 / 1.8, 0.1f64);
    let calm = 200.0 / (q + 10.0 * p);
    let exact =
        1.0 + 2.0 * p * q * (9.0f64 * calm).powi(2) / (200.0 * s) * (1.0 - (1.0 - (-s * w).exp()) / (s * w));
    let found = dispersion(OPEN[2]);
    assert!((found / exact - 1.0).abs() < 0.1, "{found} is not {exact}");
}

const REPLAY: &str = "kind = 'replay'\ntrace = { format = 'disb', path = 'cameras.json', task = 'left' }";
const CAMERAS: &str = r#"{"tasks": [
    {"id": "left", "load": {"type": "trace", "trace": [10, 20, 40]}},
    {"id": "still", "load": {"type": "trace", "trace": [5, 5]}},
    {"id": "even", "load": {"type": "periodic", "frequency": 30}},
    {"id": "filler", "load": {"type": "continuous"}}]}"#;

fn replayed(task: &str, more: &str) -> Result<Demand, String> {
    let trace = Trace::read(TraceFormat::Disb, "cameras.json", &mut CAMERAS.as_bytes()).unwrap();
    let load = written(&format!("{}\n{more}", REPLAY.replace("left", task))).unwrap();
    assert_eq!(load.trace().and_then(|trace| trace.task.as_deref()), Some(task));
    load.demand(Some(&trace)).map_err(|error| error.to_string())
}

#[test]
fn replay_keeps_repeats_and_scales_recorded_times() {
    let ms = |more| {
        let demand = replayed("left", more).unwrap();
        times(&demand, 8).iter().map(|at| at.as_ms()).collect::<Vec<_>>()
    };
    assert_eq!(ms(""), [10.0, 20.0, 40.0]);
    assert_eq!(ms("speed = 2"), [5.0, 10.0, 20.0]);
    // A round lasts until one mean gap (15 ms) behind the last request.
    assert_eq!(ms("repeat = true"), [10.0, 20.0, 40.0, 65.0, 75.0, 95.0, 120.0, 130.0]);
    assert_eq!(replayed("left", "repeat = true").unwrap().mean_rate_per_s(), Some(3.0 / 0.055));
    assert_eq!(replayed("left", "speed = 2").unwrap().mean_rate_per_s(), Some(2.0 / 0.03 * 2.0));
}

#[test]
fn replay_takes_the_other_kinds_of_task() {
    assert_eq!(replayed("even", "speed = 2").unwrap().mean_rate_per_s(), Some(60.0));
    let filler = replayed("filler", "").unwrap();
    assert_eq!(filler.closed_loop(), Some(ClosedLoop::BACK_TO_BACK));
    assert!(filler.arrivals(0, 0).is_none());
    assert_eq!(times(&replayed("still", "").unwrap(), 9).len(), 2);
}

#[test]
fn replay_says_what_is_wrong() {
    assert_eq!(
        replayed("right", "").unwrap_err(),
        "there is no task `right` in `cameras.json`; expected `task` to be one of: left, still, even, filler"
    );
    assert!(
        replayed("still", "repeat = true").unwrap_err().starts_with("`repeat` is set and all requests of")
    );
    let message = replayed("left", "repeat = true\nspeed = 1e6").unwrap_err();
    assert!(message.starts_with("`requests per second of the trace x speed` is 54545454.5"), "{message}");
}

/// Times up to the end of the clock, then nothing: no wrap, no panic.
#[test]
fn time_ends() {
    let demand = demand("kind = 'periodic'\nrate_per_s = 1e-9").unwrap();
    let times = times(&demand, 1000);
    assert!(times.len() < 20 && times.is_sorted(), "{times:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_valid_bursts_keep_time_and_end(
        rate in -9.0..6.0f64, factor in 0.0..6.0f64, burst in 0..62u32, calm in 0..62u32, seed: u64
    ) {
        let (burst, calm) = (Nanos(1 << burst), Nanos(1 << calm));
        let rate_per_s = 10f64.powf(rate);
        let load = Load::Bursty { rate_per_s, burst_factor: 10f64.powf(factor), burst, calm };
        if let Ok(demand) = load.demand(None) {
            let times: Vec<_> = demand.arrivals(seed, 0).unwrap().take(200).map(|arrival| arrival.at).collect();
            prop_assert!(times.is_sorted());
            prop_assert!((demand.mean_rate_per_s().unwrap() / rate_per_s - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn any_recording_keeps_time(
        mut ms in prop::collection::vec(0..5000u64, 1..40), repeat: bool, speed in 0.001..1000.0f64
    ) {
        ms.sort_unstable();
        let at = |ms: &u64| TraceRequest { at: Nanos::from_millis(*ms), input_tokens: 0, output_tokens: 0 };
        let recording = arrivals::Recording::new(ms.iter().map(at).collect(), repeat, speed);
        let times: Vec<_> = Arrivals::replay(recording).take(200).map(|arrival| arrival.at).collect();
        prop_assert!(times.is_sorted());
        prop_assert_eq!(times.len(), if repeat && ms[0] != ms[ms.len() - 1] { 200 } else { ms.len() });
    }

    #[test]
    fn no_scenario_text_panics(text in "(kind|rate_per_s|burst|calm|depth|trace|=| |'|\n|[0-9]|[a-z]){0,60}") {
        let _ = demand(&text);
    }
}
