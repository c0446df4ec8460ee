use super::*;
use crate::serving::generate::generate;

fn comparison() -> Comparison {
    Comparison {
        policies: vec!["partywall", "round-robin", "dynamo"],
        rates: vec![1.0, 1.5],
        cache_tokens: vec![1_000_000],
        engines: 8,
        engine: EngineSettings::default(),
        router: RouterSettings::default(),
        mixed: true,
        offered: OFFERED,
        whole: false,
        seed: 1,
    }
}

fn load() -> Vec<LoadRequest> {
    generate(Nanos::from_secs(240), 1, Class::LatencySensitive)
}

#[test]
fn threads_change_nothing_and_every_replay_is_counted() {
    let counted = std::sync::atomic::AtomicUsize::new(0);
    let done = || {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let report = comparison().run(&load(), 1, &done).unwrap();
    assert_eq!(counted.into_inner(), comparison().replays());
    assert_eq!(report, comparison().run(&load(), 3, &|| {}).unwrap());
    assert_eq!(
        report.settings.iter().map(|setting| &setting.name[..]).collect::<Vec<_>>(),
        ["rate1-1m", "rate1.5-1m"]
    );
    assert_eq!(report.mixed[0].name, "mixed-1m");
}

#[test]
fn the_default_policy_is_held_against_the_best_other_and_round_robin() {
    let report = comparison().run(&load(), 2, &|| {}).unwrap();
    for setting in &report.settings {
        let mean = |name: &str| {
            setting.policies.iter().find(|row| row.policy == name).unwrap().measures.ttft_mean_s.unwrap()
        };
        let best = mean("round-robin").min(mean("dynamo"));
        assert_eq!(setting.over_best_baseline, Some(mean("partywall") / best));
        assert_eq!(setting.over_round_robin, Some(mean("partywall") / mean("round-robin")));
        assert!(setting.policies.iter().all(|row| row.measures.unserved == 0 && row.measures.refused == 0));
    }
}

#[test]
fn with_two_classes_the_latency_sensitive_ones_are_hardly_hurt_and_most_of_the_rest_is_served() {
    let report = comparison().run(&load(), 2, &|| {}).unwrap();
    let mixed = &report.mixed[0];
    assert!(mixed.ls_p99_over_alone.unwrap() < 1.5, "{:?}", mixed.ls_p99_over_alone);
    assert!(mixed.be_share.unwrap() > 0.5, "{:?}", mixed.be_share);
    let knows: Vec<_> = mixed.policies.iter().map(|row| row.knows_classes).collect();
    assert_eq!(knows, [true, false, false, false]);
    assert!(mixed.most_best_effort.is_some());
    for row in mixed.policies.iter().filter(|row| !row.knows_classes) {
        let [theirs, ours] = [row, &mixed.policies[0]].map(|row| row.latency_sensitive.ttft_mean_s);
        assert!(theirs > ours, "{}", row.policy);
    }
}

#[test]
fn what_means_nothing_is_refused() {
    let check = |change: fn(&mut Comparison), expected: &str| {
        let mut comparison = comparison();
        change(&mut comparison);
        let message = comparison.run(&load(), 1, &|| {}).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    check(|comparison| comparison.rates = vec![0.0], "a rate is 0; write a number from 0.01");
    check(|comparison| comparison.rates = vec![f64::NAN], "a rate is NaN");
    check(
        |comparison| comparison.offered = 0.0,
        "what is offered of best effort is 0; write a number from 0.01",
    );
    check(|comparison| comparison.engines = 0, "the number of engines is 0");
    check(|comparison| comparison.cache_tokens = vec![1_000], "does not fit into a cache of 1000");
    check(
        |comparison| comparison.policies = vec!["magic"],
        "no policy `magic`; write one of partywall, round-robin",
    );
    let error = comparison().run(&[], 1, &|| {}).unwrap_err();
    assert!(error.to_string().contains("the load has no requests"), "{error}");
}
