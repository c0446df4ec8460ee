use partywall_core::units::Nanos;
use partywall_routing::admission::AdmissionSettings;
use partywall_routing::policy;

use super::*;
use crate::serving::generate::generate;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

fn settings(engines: u32) -> FleetSettings {
    let engine = EngineSettings { cache_blocks: 400, report_tokens: 64, ..EngineSettings::default() };
    FleetSettings { engines, engine, router: RouterSettings::default(), class_blind: false, whole: false }
}

fn run(name: &str, load: &[LoadRequest], settings: &FleetSettings) -> Vec<Fate> {
    replay(load, settings, policy::named(name).unwrap(), Nanos::from_secs(1_000_000)).unwrap()
}

fn request(at_ms: u64, class: Class, first_block: u64, input_tokens: u64) -> LoadRequest {
    LoadRequest {
        at: Nanos::from_millis(at_ms),
        class,
        prefixes: (0..input_tokens / 512).map(|block| PrefixHash(first_block + block)).collect(),
        input_tokens,
        output_tokens: 5,
    }
}

#[test]
fn every_request_has_an_end_under_every_policy() {
    let mut load = generate(Nanos::from_secs(120), 3, LS);
    for (index, request) in load.iter_mut().enumerate() {
        request.class = if index % 3 == 0 { BE } else { LS };
    }
    for name in policy::NAMES {
        for class_blind in [false, true] {
            let fates = run(name, &load, &FleetSettings { class_blind, ..settings(4) });
            assert_eq!(fates.len(), load.len());
            for (fate, request) in fates.iter().zip(&load) {
                assert_ne!(fate.finished.is_some(), fate.refused.is_some(), "{name}: {request:?} {fate:?}");
                let times = [Some(request.at), fate.sent, fate.first_token, fate.finished];
                assert!(fate.refused.is_some() || times.is_sorted(), "{name}: {fate:?}");
                assert!(fate.cached_tokens < request.input_tokens);
            }
        }
    }
}

#[test]
fn the_same_load_gives_the_same_fates() {
    let load = generate(Nanos::from_secs(60), 1, LS);
    for name in policy::NAMES {
        assert_eq!(run(name, &load, &settings(3)), run(name, &load, &settings(3)), "{name}");
    }
}

#[test]
fn first_tokens_come_when_they_are_expected_where_caches_are_large() {
    let engine = EngineSettings { cache_blocks: 1_000_000, report_tokens: 64, ..EngineSettings::default() };
    let load = generate(Nanos::from_secs(120), 2, LS);
    for (fate, request) in run("partywall", &load, &FleetSettings { engine, ..settings(6) }).iter().zip(&load)
    {
        let (expected, found) = (fate.expected.unwrap(), fate.first_token.unwrap());
        assert!(expected.0.abs_diff(found.0) < 1_000_000, "{request:?} {fate:?}");
        assert!(fate.cached_tokens.abs_diff(fate.expected_cached_tokens) <= 512);
    }
}

#[test]
fn a_prompt_that_comes_again_finds_its_beginning() {
    let load = [request(0, LS, 0, 5_120), request(10_000, LS, 0, 5_120), request(20_000, LS, 9_000, 512)];
    let fates = run("partywall", &load, &settings(4));
    assert_eq!(fates.iter().map(|fate| fate.cached_tokens).collect::<Vec<_>>(), [0, 9 * 512, 0]);
}

#[test]
fn best_effort_requests_wait_for_latency_sensitive_ones() {
    // Both engines get a second of work, then best-effort prompts of two seconds, then a latency-sensitive one.
    let mut load: Vec<_> = (0..2).map(|index| request(0, LS, index * 1_000, 8_000)).collect();
    load.extend((0..8).map(|index| request(1, BE, 10_000 + index * 1_000, 16_000)));
    load.push(request(2, LS, 50_000, 800));
    let last = |class_blind| {
        let fates = run("partywall", &load, &FleetSettings { class_blind, ..settings(2) });
        assert!(fates.iter().all(|fate| fate.finished.is_some()));
        fates[10].first_token.unwrap()
    };
    assert_eq!(last(false), Nanos::from_millis(1_100));
    assert!(last(true) > Nanos::from_secs(5));
}

#[test]
fn a_request_that_no_engine_can_hold_is_refused_and_nothing_waits_for_it() {
    let load = [request(0, LS, 0, 400 * 512 + 1), request(1, LS, 10_000, 512)];
    let fates = run("partywall", &load, &settings(1));
    assert_eq!((fates[0].refused, fates[0].finished), (Some(Nanos::ZERO), None));
    assert_eq!(fates[1].first_token, Some(Nanos::from_millis(1 + 64)));
}

#[test]
fn who_is_held_too_long_is_refused() {
    let admission =
        AdmissionSettings { hold_best_effort: Nanos::from_secs(1), ..AdmissionSettings::default() };
    let settings = FleetSettings { router: RouterSettings { admission }, ..settings(1) };
    let load = [request(0, LS, 0, 80_000), request(1, BE, 1_000_000, 512)];
    assert_eq!(run("partywall", &load, &settings)[1].refused, Some(Nanos::from_millis(1_001)));
}
