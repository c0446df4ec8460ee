//! The scenarios of `crate::admission`.

use super::*;

/// A replica that has a latency-sensitive prompt of a second, and requests that are held behind it.
fn held_behind(requests: &[(u64, Class, u64)]) -> Router {
    let mut router = fleet(1);
    sent(&mut router, Nanos::ZERO, arrival(100, LS, 1_000));
    for (id, class, tokens) in requests {
        assert_eq!(router.arrive(Nanos::ZERO, arrival(*id, *class, *tokens), &Unknown), Verdict::Held);
    }
    router
}

fn with_admission(admission: AdmissionSettings) -> Router {
    router(1, RouterSettings { admission })
}

#[test]
fn s1_a_latency_sensitive_request_goes_at_once_also_where_it_has_to_wait() {
    let mut router = fleet(2);
    for id in 0..20 {
        sent(&mut router, Nanos::ZERO, arrival(id, LS, 5_000));
    }
}

#[test]
fn s2_a_best_effort_request_goes_when_a_replica_is_about_to_be_through() {
    let mut router = held_behind(&[(1, BE, 500)]);
    assert_eq!((router.held(BE), router.held(LS)), (1, 0));
    assert_eq!(router.next_poll(), Some(ms(950)));
    assert_eq!(poll(&mut router, ms(10)), []);
    assert_eq!(router.next_poll(), Some(ms(950)));
    assert_eq!(poll(&mut router, ms(949)), []);
    assert_eq!(poll(&mut router, ms(950)), [(1, Ok(0))]);
    assert_eq!((router.held(BE), router.next_poll()), (0, None));
}

#[test]
fn s2_a_latency_sensitive_request_finds_at_most_one_best_effort_prompt_before_it() {
    let mut router = fleet(1);
    sent(&mut router, Nanos::ZERO, arrival(1, BE, 700));
    for id in 2..=5 {
        assert_eq!(router.arrive(Nanos::ZERO, arrival(id, BE, 700), &Unknown), Verdict::Held);
    }
    assert_eq!(sent(&mut router, ms(200), arrival(6, LS, 100)).backlog, ms(500));
}

#[test]
fn s3_held_requests_go_in_their_order_latency_sensitive_ones_first() {
    let mut router = held_behind(&[(1, BE, 500), (2, BE, 10)]);
    router.set_available(ReplicaId(0), false);
    assert_eq!(router.arrive(ms(10), arrival(3, LS, 100), &Unknown), Verdict::Held);
    assert_eq!(poll(&mut router, ms(20)), []);
    router.first_token(ms(1_000), RequestId(100), None);
    router.set_available(ReplicaId(0), true);
    assert_eq!(poll(&mut router, ms(1_000)), [(3, Ok(0))]);
    // The small one does not pass the one before it.
    router.first_token(ms(1_100), RequestId(3), None);
    assert_eq!(poll(&mut router, ms(1_100)), [(1, Ok(0))]);
    router.first_token(ms(1_600), RequestId(1), None);
    assert_eq!(poll(&mut router, ms(1_600)), [(2, Ok(0))]);
}

#[test]
fn s3_models_do_not_wait_for_each_other() {
    let mut router = held_behind(&[(1, BE, 500)]);
    router.add_replica(Nanos::ZERO, CAPACITY, &[ModelId(1)]).unwrap();
    sent(&mut router, ms(1), Arrival { model: ModelId(1), ..arrival(2, BE, 100) });
}

#[test]
fn s4_best_effort_requests_leave_streams_free() {
    let mut router = fleet(1);
    // Three quarters of eight streams.
    for id in 0..6 {
        sent(&mut router, ms(id), arrival(id, BE, 100));
        router.first_token(ms(id), RequestId(id), None);
    }
    assert_eq!(router.arrive(ms(10), arrival(6, BE, 100), &Unknown), Verdict::Held);
    assert_eq!(poll(&mut router, ms(20)), []);
    sent(&mut router, ms(20), arrival(7, LS, 100));
    router.first_token(ms(20), RequestId(7), None);
    router.ended(ms(30), RequestId(0));
    assert_eq!(poll(&mut router, ms(30)), [(6, Ok(0))]);
}

#[test]
fn s4_best_effort_requests_leave_cache_free_and_one_that_never_fits_goes_to_an_empty_replica() {
    let mut router = fleet(1);
    // Of a cache of 100 000 tokens.
    sent(&mut router, Nanos::ZERO, arrival(1, BE, 60_000));
    router.first_token(ms(1), RequestId(1), None);
    assert_eq!(router.arrive(ms(1), arrival(2, BE, 20_000), &Unknown), Verdict::Held);
    router.ended(ms(2), RequestId(1));
    assert_eq!(poll(&mut router, ms(2)), [(2, Ok(0))]);
    router.first_token(ms(3), RequestId(2), None);
    assert_eq!(router.arrive(ms(3), arrival(3, BE, 90_000), &Unknown), Verdict::Held);
    assert_eq!(poll(&mut router, ms(3)), []);
    router.ended(ms(4), RequestId(2));
    assert_eq!(poll(&mut router, ms(4)), [(3, Ok(0))]);
}

#[test]
fn s5_a_paused_replica_gets_nothing_and_a_squeezed_one_nothing_of_best_effort() {
    let mut router = fleet(1);
    let gpu = |squeezed, paused| GpuState { speed: 0.5, squeezed, paused };
    router.set_gpu(ReplicaId(0), gpu(true, false));
    assert_eq!(router.arrive(Nanos::ZERO, arrival(1, BE, 100), &Unknown), Verdict::Held);
    sent(&mut router, Nanos::ZERO, arrival(2, LS, 100));
    router.set_gpu(ReplicaId(0), gpu(false, true));
    assert_eq!(router.arrive(Nanos::ZERO, arrival(3, LS, 100), &Unknown), Verdict::Held);
    router.first_token(ms(200), RequestId(2), None);
    assert_eq!(poll(&mut router, ms(300)), []);
    router.set_gpu(ReplicaId(0), GpuState::default());
    assert_eq!(poll(&mut router, ms(300)), [(3, Ok(0))]);
    router.first_token(ms(400), RequestId(3), None);
    assert_eq!(poll(&mut router, ms(400)), [(1, Ok(0))]);
}

#[test]
fn s6_who_is_held_too_long_is_refused_and_who_is_beyond_its_deadline() {
    let admission = AdmissionSettings { hold_best_effort: ms(500), ..AdmissionSettings::default() };
    let mut router = with_admission(admission);
    sent(&mut router, Nanos::ZERO, arrival(1, LS, 10_000));
    assert_eq!(router.arrive(ms(10), arrival(2, BE, 100), &Unknown), Verdict::Held);
    let hurried = Arrival { deadline: Some(ms(100)), ..arrival(3, BE, 100) };
    assert_eq!(router.arrive(ms(10), hurried, &Unknown), Verdict::Held);
    assert_eq!(poll(&mut router, ms(10)), []);
    assert_eq!(router.next_poll(), Some(ms(100)));
    assert_eq!(poll(&mut router, ms(99)), []);
    assert_eq!(poll(&mut router, ms(100)), [(3, Err(Refusal::Deadline { held_for: ms(90) }))]);
    assert_eq!(router.next_poll(), Some(ms(510)));
    assert_eq!(poll(&mut router, ms(600)), [(2, Err(Refusal::TimedOut { held_for: ms(590) }))]);
    assert_eq!(router.next_poll(), None);
}

#[test]
fn s6_a_held_request_that_is_cancelled_is_gone() {
    let mut router = held_behind(&[(1, BE, 500), (2, BE, 500)]);
    router.cancel(ms(1), RequestId(1));
    assert_eq!(router.held(BE), 1);
    assert_eq!(poll(&mut router, ms(960)), [(2, Ok(0))]);
}

#[test]
fn s7_more_than_so_many_are_not_held() {
    let mut router = with_admission(AdmissionSettings { held: 2, ..AdmissionSettings::default() });
    sent(&mut router, Nanos::ZERO, arrival(1, LS, 10_000));
    let verdicts: Vec<_> =
        (2..6).map(|id| router.arrive(Nanos::ZERO, arrival(id, BE, 100), &Unknown)).collect();
    let full = Verdict::Refused(Refusal::Full { held: 2 });
    assert_eq!(verdicts, [Verdict::Held, Verdict::Held, full, full]);
}

#[test]
fn s8_without_by_class_best_effort_requests_go_as_all_others_do() {
    let mut router = with_admission(AdmissionSettings { by_class: false, ..AdmissionSettings::default() });
    for id in 0..20 {
        sent(&mut router, Nanos::ZERO, arrival(id, BE, 5_000));
    }
}
