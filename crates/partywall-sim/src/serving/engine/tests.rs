use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

/// A token of a prompt takes a millisecond, one of output ten.
fn settings() -> EngineSettings {
    EngineSettings {
        prefill_tokens_per_s: 1_000.0,
        token_time: Nanos::from_millis(10),
        streams: 4,
        block_tokens: 100,
        cache_blocks: 100,
        by_class: false,
        report_tokens: 1,
    }
}

fn request(id: u64, class: Class, input_tokens: u64, output_tokens: u32) -> Submission {
    let prefixes = (0..input_tokens / 100).map(|block| PrefixHash(id * 1_000 + block)).collect();
    Submission { id: RequestId(id), prefixes, input_tokens, output_tokens, class }
}

fn engine(settings: EngineSettings, requests: &[Submission]) -> Engine {
    let mut engine = Engine::new(settings);
    for request in requests {
        engine.submit(Nanos::ZERO, request.clone()).unwrap();
    }
    engine
}

/// Everything until nothing happens any more, each with its time in milliseconds.
fn run(engine: &mut Engine) -> Vec<(u64, Happened)> {
    let mut all = Vec::new();
    while let Some(at) = engine.next_event() {
        let mut happened = Vec::new();
        engine.advance(at, &mut happened);
        all.extend(happened.into_iter().map(|event| (at.0 / 1_000_000, event)));
    }
    all
}

/// The times of first tokens, by request.
fn first_tokens(all: &[(u64, Happened)]) -> Vec<(u64, u64)> {
    let first = |(at, event): &(u64, Happened)| match event {
        Happened::FirstToken { id, .. } => Some((id.0, *at)),
        _ => None,
    };
    all.iter().filter_map(first).collect()
}

fn finished(all: &[(u64, Happened)]) -> Vec<(u64, u64)> {
    let end = |(at, event): &(u64, Happened)| match event {
        Happened::Finished { id } => Some((id.0, *at)),
        _ => None,
    };
    all.iter().filter_map(end).collect()
}

fn cached(all: &[(u64, Happened)], of: u64) -> u64 {
    let found = |(_, event): &(u64, Happened)| match event {
        Happened::FirstToken { id, cached_tokens } if id.0 == of => Some(*cached_tokens),
        _ => None,
    };
    all.iter().find_map(found).unwrap()
}

#[test]
fn s1_prompts_one_after_the_other_and_tokens_at_an_even_pace() {
    let mut engine =
        engine(settings(), &[request(1, LS, 500, 3), request(2, BE, 200, 1), request(3, LS, 10, 2)]);
    assert_eq!(engine.load().waiting, 3);
    let all = run(&mut engine);
    assert_eq!(first_tokens(&all), [(1, 500), (2, 700), (3, 710)]);
    assert_eq!(finished(&all), [(1, 520), (2, 700), (3, 720)]);
    let tokens: Vec<_> = all.iter().filter(|(_, event)| matches!(event, Happened::Tokens { .. })).collect();
    let token = |id| Happened::Tokens { id: RequestId(id), n: 1 };
    assert_eq!(tokens, [&(510, token(1)), &(520, token(1)), &(720, token(3))]);
    let load = engine.load();
    assert_eq!((load.waiting, load.running, load.pinned_blocks, load.held_blocks), (0, 0, 0, 7));
}

#[test]
fn s2_a_beginning_that_is_held_is_not_computed_again_and_at_least_one_token_is() {
    let prompt = request(1, LS, 500, 1);
    let again = Submission { id: RequestId(2), ..prompt.clone() };
    let longer = Submission { id: RequestId(3), input_tokens: 550, ..prompt.clone() };
    let other = Submission {
        id: RequestId(4),
        prefixes: [&prompt.prefixes[..2], &request(9, LS, 300, 1).prefixes].concat(),
        ..prompt.clone()
    };
    let mut engine = engine(settings(), &[prompt, again, longer, other]);
    let all = run(&mut engine);
    // The whole prompt is held, so its last block is computed again.
    assert_eq!([1, 2, 3, 4].map(|id| cached(&all, id)), [0, 400, 500, 200]);
    assert_eq!(first_tokens(&all), [(1, 500), (2, 600), (3, 650), (4, 950)]);
    let stored: Vec<_> = all.iter().filter(|(_, event)| matches!(event, Happened::Stored { .. })).collect();
    assert_eq!(stored.len(), 2);
    let Happened::Stored { parent, blocks } = &stored[1].1 else { unreachable!() };
    assert_eq!((*parent, blocks.len()), (Some(PrefixHash(1_001)), 3));
}

#[test]
fn s3_what_was_used_longest_ago_goes_first_and_what_is_in_use_stays() {
    let settings = EngineSettings { cache_blocks: 10, ..settings() };
    let mut engine = engine(settings, &[request(1, LS, 450, 50), request(2, LS, 350, 50)]);
    run(&mut engine);
    let mut all = Vec::new();
    engine.submit(Nanos::from_secs(10), request(3, LS, 550, 50)).unwrap();
    while let Some(at) = engine.next_event() {
        engine.advance(at, &mut all);
    }
    // Six blocks are needed and three free: the first prompt ended first.
    let gone = names_removed(&all);
    assert_eq!(gone, [1_003, 1_002, 1_001].map(PrefixHash));
    assert_eq!(engine.blocks().count(), 9);
}

fn names_removed(all: &[Happened]) -> Vec<PrefixHash> {
    let removed = |event: &Happened| match event {
        Happened::Removed { blocks } => blocks.clone(),
        _ => Vec::new(),
    };
    all.iter().flat_map(removed).collect()
}

#[test]
fn s4_a_prompt_waits_for_a_stream_and_for_room() {
    let requests: Vec<_> = (1..=5).map(|id| request(id, LS, 100, 100)).collect();
    // The fifth begins when the first of four streams has ended, at 100 + 990.
    assert_eq!(first_tokens(&run(&mut engine(settings(), &requests)))[4], (5, 1_190));
    let settings = EngineSettings { cache_blocks: 10, ..settings() };
    let mut engine =
        engine(settings, &[request(1, LS, 600, 100), request(2, LS, 600, 1), request(3, LS, 10, 1)]);
    // Seven blocks each: the second waits for the first, and the third is not let past.
    assert_eq!(first_tokens(&run(&mut engine)), [(1, 600), (2, 600 + 990 + 600), (3, 2_200)]);
}

#[test]
fn s5_with_by_class_latency_sensitive_prompts_pass() {
    let requests = [request(1, BE, 500, 1), request(2, BE, 500, 1), request(3, LS, 100, 1)];
    let order = |by_class| {
        let mut engine = engine(EngineSettings { by_class, ..settings() }, &requests[..2]);
        engine.advance(Nanos::from_millis(100), &mut Vec::new());
        engine.submit(Nanos::from_millis(100), requests[2].clone()).unwrap();
        first_tokens(&run(&mut engine)).into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(order(false), [1, 2, 3]);
    assert_eq!(order(true), [1, 3, 2]);
}

#[test]
fn s6_a_cancelled_request_leaves_nothing_but_what_it_computed_whole() {
    let mut engine =
        engine(settings(), &[request(1, LS, 500, 100), request(2, LS, 500, 9), request(3, LS, 100, 9)]);
    let mut happened = Vec::new();
    engine.advance(Nanos::from_millis(700), &mut happened);
    // One generates, one is being computed, one waits.
    assert_eq!((engine.load().running, engine.load().waiting), (2, 1));
    for id in 1..=3 {
        assert!(engine.cancel(RequestId(id)) && !engine.cancel(RequestId(id)), "{id}");
    }
    assert_eq!(engine.next_event(), None);
    let load = engine.load();
    assert_eq!((load.running, load.waiting, load.pinned_blocks, load.held_blocks), (0, 0, 0, 5));
    engine.submit(Nanos::from_millis(700), request(1, LS, 500, 2)).unwrap();
    let all = run(&mut engine);
    assert_eq!((first_tokens(&all), finished(&all)), (vec![(1, 800)], vec![(1, 810)]));
    engine.clear_cache(&mut happened);
    assert_eq!(engine.load().held_blocks, 0);
}

#[test]
fn s7_at_half_the_speed_everything_takes_twice_as_long_from_there_on() {
    let mut engine = engine(settings(), &[request(1, LS, 500, 2)]);
    engine.advance(Nanos::from_millis(100), &mut Vec::new());
    engine.set_speed(Nanos::from_millis(100), 0.5);
    assert_eq!(engine.next_event(), Some(Nanos::from_millis(900)));
    engine.set_speed(Nanos::from_millis(300), 0.0);
    assert_eq!(engine.next_event(), None);
    engine.set_speed(Nanos::from_millis(1_300), 1.0);
    let all = run(&mut engine);
    assert_eq!((first_tokens(&all), finished(&all)), (vec![(1, 1_600)], vec![(1, 1_610)]));
}

#[test]
fn s8_an_engine_that_is_seldom_looked_at_is_not_slower() {
    let requests = [request(1, LS, 500, 20), request(2, LS, 300, 20), request(3, LS, 700, 5)];
    let plain = |events: Vec<(u64, Happened)>| events.into_iter().map(|(_, event)| event).collect::<Vec<_>>();
    let often = plain(run(&mut engine(settings(), &requests)));
    let mut seldom = Vec::new();
    engine(settings(), &requests).advance(Nanos::from_secs(10), &mut seldom);
    assert_eq!(often, seldom);
}

#[test]
fn what_can_never_be_served_is_refused() {
    let mut engine = engine(settings(), &[request(1, LS, 500, 1)]);
    let check = |result: Result<(), SubmitError>, expected: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    };
    check(engine.submit(Nanos::ZERO, request(2, LS, 9_900, 101)), "needs 101 blocks and the cache has 100");
    check(engine.submit(Nanos::ZERO, request(1, LS, 10, 1)), "RequestId(1) already");
    engine.submit(Nanos::ZERO, request(2, LS, 0, 0)).unwrap();
    assert_eq!(finished(&run(&mut engine)), [(1, 500), (2, 501)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn all_work_is_done_and_nothing_else(
        requests in prop::collection::vec((0_u64..3_000, 0_u64..6, 0_u64..900, 0_u32..40, any::<bool>()), 1..60),
        report_tokens in 1_u32..9,
        by_class in any::<bool>(),
        step_ms in 1_u64..500,
    ) {
        let settings = EngineSettings { report_tokens, by_class, cache_blocks: 12, ..settings() };
        let mut engine = Engine::new(settings);
        let mut happened = Vec::new();
        let (mut now, mut expected, mut inputs) = (Nanos::ZERO, 0, 0);
        for (id, (gap, family, input_tokens, output_tokens, latency_sensitive)) in requests.iter().enumerate() {
            now += Nanos::from_millis(gap % step_ms);
            engine.advance(now, &mut happened);
            let prefixes = (0..input_tokens / 100).map(|block| PrefixHash(family * 1_000 + block)).collect();
            let class = if *latency_sensitive { LS } else { BE };
            let submission = Submission {
                id: RequestId(id as u64),
                prefixes,
                input_tokens: *input_tokens,
                output_tokens: *output_tokens,
                class,
            };
            if engine.submit(now, submission).is_ok() {
                expected += u64::from((*output_tokens).max(1));
                inputs += (*input_tokens).max(1);
            }
        }
        engine.advance(Nanos::from_secs(100_000), &mut happened);
        let (mut tokens, mut cached, mut ended, mut held) = (0, 0, BTreeSet::new(), BTreeSet::new());
        for event in &happened {
            match event {
                Happened::FirstToken { cached_tokens, .. } => {
                    tokens += 1;
                    cached += cached_tokens;
                }
                Happened::Tokens { n, .. } => {
                    prop_assert!((1..=report_tokens).contains(n));
                    tokens += u64::from(*n);
                }
                Happened::Finished { id } => prop_assert!(ended.insert(*id)),
                Happened::Stored { parent, blocks } => {
                    prop_assert!(parent.is_none_or(|parent| held.contains(&parent)));
                    prop_assert!(blocks.iter().all(|block| held.insert(*block)));
                }
                Happened::Removed { blocks } => prop_assert!(blocks.iter().all(|block| held.remove(block))),
            }
        }
        prop_assert_eq!(tokens, expected);
        prop_assert!(cached < inputs);
        prop_assert_eq!(engine.blocks().collect::<BTreeSet<_>>(), held);
        let load = engine.load();
        prop_assert_eq!((load.waiting, load.running, load.pinned_blocks), (0, 0, 0));
        prop_assert_eq!(engine.next_event(), None);
    }
}
