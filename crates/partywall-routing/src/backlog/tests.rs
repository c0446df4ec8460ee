use super::*;

const CAPACITY: Capacity = Capacity {
    prefill_tokens_per_s: 1_000.0,
    token_time: Nanos::from_millis(10),
    streams: 4,
    block_tokens: 100,
    cache_blocks: 1_000,
};

fn waiting(id: u64, new_tokens: u64, prefixes: &[u64]) -> Waiting {
    Waiting {
        id: RequestId(id),
        class: Class::LatencySensitive,
        prefixes: prefixes.iter().map(|name| PrefixHash(*name)).collect(),
        input_tokens: new_tokens,
        new_tokens,
        whole: false,
    }
}

fn wait_ms(backlog: &Backlog, now_ms: u64) -> f64 {
    backlog.wait(Nanos::from_millis(now_ms), &CAPACITY, &GpuState::default(), Nanos::from_secs(8)).as_ms()
}

fn with(requests: &[(u64, u64)]) -> Backlog {
    let mut backlog = Backlog::default();
    for (id, tokens) in requests {
        backlog.sent(Nanos::ZERO, waiting(*id, *tokens, &[]));
    }
    backlog
}

#[test]
fn s1_the_wait_falls_while_the_first_is_computed_and_not_below_what_is_behind_it() {
    let backlog = with(&[(1, 500), (2, 300)]);
    for (now_ms, expected) in [(0, 800.0), (200, 600.0), (500, 300.0), (900, 300.0)] {
        assert_eq!(wait_ms(&backlog, now_ms), expected, "at {now_ms}");
    }
    assert_eq!(wait_ms(&with(&[(1, 500)]), 900), 0.0);
}

#[test]
fn s2_with_a_first_token_the_next_prompt_begins() {
    let mut backlog = with(&[(1, 500), (2, 300), (3, 100)]);
    backlog.first_token(Nanos::from_millis(450), RequestId(1), &mut Vec::new());
    assert_eq!(wait_ms(&backlog, 450), 400.0);
    assert_eq!(wait_ms(&backlog, 650), 200.0);
    // One that waits behind is dropped: the one being computed goes on.
    backlog.dropped(Nanos::from_millis(650), RequestId(3));
    assert_eq!(wait_ms(&backlog, 650), 100.0);
    let load = backlog.load();
    assert_eq!((load.latency_sensitive.waiting, load.latency_sensitive.decoding), (1, 1));
}

#[test]
fn s2_a_slow_gpu_takes_longer_and_a_paused_one_for_ever() {
    let backlog = with(&[(1, 500)]);
    let at = |speed: f64, paused: bool| {
        let gpu = GpuState { speed, squeezed: false, paused };
        backlog.wait(Nanos::ZERO, &CAPACITY, &gpu, Nanos::ZERO)
    };
    assert_eq!(at(0.5, false), Nanos::from_secs(1));
    assert_eq!(at(1.0, true), Nanos::MAX);
    assert_eq!(at(0.0, false), Nanos::MAX);
}

#[test]
fn s3_a_prompt_that_waits_is_counted_on_by_those_behind_it() {
    let mut backlog = Backlog::default();
    backlog.sent(Nanos::ZERO, waiting(1, 500, &[1, 2, 3, 4, 5]));
    backlog.sent(Nanos::ZERO, waiting(2, 500, &[1, 2, 9]));
    let coming = |names: &[u64]| {
        let prefixes: Vec<_> = names.iter().map(|name| PrefixHash(*name)).collect();
        backlog.coming(&prefixes)
    };
    for (names, expected) in [
        (&[1, 2, 3, 4, 5, 6][..], 5),
        (&[1, 2, 3], 3),
        (&[1, 2, 9, 10], 3),
        (&[1, 2, 7, 8], 2),
        (&[1], 1),
        (&[8], 0),
        (&[], 0),
    ] {
        assert_eq!(coming(names), expected, "{names:?}");
    }
}

#[test]
fn s4_when_all_streams_are_taken_a_request_waits_for_one_too() {
    let mut backlog = with(&[(1, 10), (2, 10), (3, 10), (4, 10)]);
    for id in 1..=4 {
        backlog.first_token(Nanos::from_millis(40), RequestId(id), &mut Vec::new());
    }
    // Four streams of eight seconds each: one is free every two.
    assert_eq!(wait_ms(&backlog, 40), 2_000.0);
    backlog.ended(Class::LatencySensitive, 11);
    assert_eq!(wait_ms(&backlog, 40), 0.0);
}

#[test]
fn s5_a_prompt_of_which_nothing_is_heard_is_through_when_its_time_is_over_or_a_later_one_is() {
    let many = Capacity { streams: 64, ..CAPACITY };
    let wait_ms = |backlog: &Backlog, now_ms| {
        backlog.wait(Nanos::from_millis(now_ms), &many, &GpuState::default(), Nanos::from_secs(8)).as_ms()
    };
    let unheard = |id, tokens| Waiting { whole: true, ..waiting(id, tokens, &[]) };
    let mut backlog = Backlog::default();
    for waiting in [unheard(1, 500), unheard(2, 300), waiting(3, 100, &[]), unheard(4, 200)] {
        backlog.sent(Nanos::ZERO, waiting);
    }
    let pass = |backlog: &mut Backlog, now_ms| {
        let mut passed = Vec::new();
        backlog.pass(Nanos::from_millis(now_ms), &CAPACITY, &GpuState::default(), &mut passed);
        passed.iter().map(|passed| (passed.id.0, passed.at.as_ms())).collect::<Vec<_>>()
    };
    assert_eq!(pass(&mut backlog, 499), []);
    assert_eq!(wait_ms(&backlog, 499), 601.0);
    assert_eq!(pass(&mut backlog, 600), [(1, 500.0)]);
    assert_eq!(wait_ms(&backlog, 600), 500.0);
    assert_eq!(backlog.load().latency_sensitive.decoding, 1);
    // The third was quicker than expected, so the second is through too; the fourth begins.
    let mut passed = Vec::new();
    backlog.first_token(Nanos::from_millis(700), RequestId(3), &mut passed);
    assert_eq!(passed, [Passed { id: RequestId(2), at: Nanos::from_millis(700) }]);
    assert_eq!((wait_ms(&backlog, 700), backlog.load().latency_sensitive.decoding), (200.0, 3));
    let paused = GpuState { paused: true, ..GpuState::default() };
    backlog.pass(Nanos::from_millis(2_000), &CAPACITY, &paused, &mut passed);
    assert_eq!(backlog.load().latency_sensitive.waiting, 1, "nothing passes while it stands");
    assert_eq!(pass(&mut backlog, 2_000), [(4, 900.0)]);
}
