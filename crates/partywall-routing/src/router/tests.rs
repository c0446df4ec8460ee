use super::*;
use crate::cached::Unknown;
use crate::policy::{self, LeastLoad};

mod admission;
mod properties;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;

/// 1 000 tokens a second, so that a token takes a millisecond.
const CAPACITY: Capacity = Capacity {
    prefill_tokens_per_s: 1_000.0,
    token_time: Nanos::from_millis(10),
    streams: 8,
    block_tokens: 100,
    cache_blocks: 1_000,
};

fn ms(time: u64) -> Nanos {
    Nanos::from_millis(time)
}

fn arrival(id: u64, class: Class, tokens: u64) -> Arrival {
    Arrival {
        id: RequestId(id),
        class,
        model: ModelId(0),
        prefixes: (0..tokens / 100).map(|block| PrefixHash(id * 10_000 + block)).collect(),
        input_tokens: tokens,
        whole: false,
        output_tokens: None,
        affinity: None,
        deadline: None,
    }
}

/// A router with so many replicas of model 0.
fn router(replicas: u32, settings: RouterSettings) -> Router {
    let mut router = Router::new(Box::<LeastLoad>::default(), settings);
    for index in 0..replicas {
        assert_eq!(router.add_replica(Nanos::ZERO, CAPACITY, &[ModelId(0)]), Ok(ReplicaId(index)));
    }
    router
}

fn fleet(replicas: u32) -> Router {
    router(replicas, RouterSettings::default())
}

/// Arrives, and is sent.
fn sent(router: &mut Router, now: Nanos, arrival: Arrival) -> Placement {
    match router.arrive(now, arrival, &Unknown) {
        Verdict::Send(placement) => placement,
        other => panic!("{other:?}"),
    }
}

/// Who may go now, and to which replica; who is refused.
fn poll(router: &mut Router, now: Nanos) -> Vec<(u64, Result<u32, Refusal>)> {
    let mut verdicts = Vec::new();
    router.poll(now, &Unknown, &mut verdicts);
    let plain = |(id, verdict): (RequestId, Verdict)| match verdict {
        Verdict::Send(placement) => (id.0, Ok(placement.replica.0)),
        Verdict::Refused(refusal) => (id.0, Err(refusal)),
        Verdict::Held => panic!("{id:?} is held and said to be"),
    };
    verdicts.into_iter().map(plain).collect()
}

/// Every replica holds so many blocks of every prompt.
struct Holds(Vec<u32>);

impl Cached for Holds {
    fn cached(&self, _: &[PrefixHash], _: Nanos, blocks: &mut Vec<u32>) {
        blocks.clone_from(&self.0);
    }
}

#[test]
fn s1_a_request_goes_to_a_replica_that_serves_its_model_and_is_available() {
    let mut router = fleet(1);
    let other = router.add_replica(Nanos::ZERO, CAPACITY, &[ModelId(1), ModelId(2)]).unwrap();
    let of_model = |id, model| Arrival { model: ModelId(model), ..arrival(id, LS, 100) };
    for (id, model) in [(1, 1), (2, 2), (3, 1)] {
        assert_eq!(sent(&mut router, Nanos::ZERO, of_model(id, model)).replica, other);
    }
    assert_eq!(router.arrive(Nanos::ZERO, of_model(4, 3), &Unknown), Verdict::Refused(Refusal::NoReplica));
    router.set_available(other, false);
    assert_eq!(router.arrive(Nanos::ZERO, of_model(5, 1), &Unknown), Verdict::Held);
    assert_eq!(poll(&mut router, ms(1)), []);
    router.set_available(other, true);
    assert!(router.next_poll() <= Some(ms(1)));
    assert_eq!(poll(&mut router, ms(1)), [(5, Ok(1))]);
}

#[test]
fn s2_what_a_replica_has_to_do_is_nothing_when_all_has_ended_however_it_ended() {
    let mut router = fleet(1);
    let replica = ReplicaId(0);
    for id in 1..=5 {
        sent(&mut router, Nanos::ZERO, arrival(id, LS, 300));
    }
    let load = router.load(replica).unwrap();
    assert_eq!((load.latency_sensitive.waiting, load.prefill_tokens()), (5, 1_500));
    router.first_token(ms(300), RequestId(1), Some(0));
    router.first_token(ms(300), RequestId(1), Some(0));
    router.tokens(RequestId(1), 4);
    // Of one without a first token there are none.
    router.tokens(RequestId(2), 4);
    let load = router.load(replica).unwrap();
    assert_eq!((load.latency_sensitive.decoding, load.latency_sensitive.decoding_tokens), (1, 305));
    router.ended(ms(400), RequestId(1));
    router.failed(ms(400), RequestId(2));
    router.cancel(ms(400), RequestId(3));
    router.ended(ms(400), RequestId(4));
    router.first_token(ms(500), RequestId(5), None);
    router.failed(ms(500), RequestId(5));
    assert_eq!(router.load(replica), Some(Load::default()));
    // Late reports change nothing.
    router.first_token(ms(600), RequestId(5), None);
    router.ended(ms(600), RequestId(5));
    router.cancel(ms(600), RequestId(99));
    assert_eq!(router.load(replica), Some(Load::default()));
}

#[test]
fn s3_a_replica_that_is_gone_gives_back_its_requests_and_its_number() {
    let mut router = fleet(2);
    for id in 1..=4 {
        sent(&mut router, Nanos::ZERO, arrival(id, LS, 100));
    }
    router.first_token(ms(100), RequestId(1), None);
    let gone = router.remove_replica(ReplicaId(0));
    assert_eq!(gone.len(), 2);
    assert_eq!(router.load(ReplicaId(0)), None);
    assert_eq!(router.add_replica(ms(200), CAPACITY, &[ModelId(0)]), Ok(ReplicaId(0)));
    // The reports of the old one's requests are not the new one's.
    for id in gone {
        router.first_token(ms(200), id, None);
        router.ended(ms(200), id);
    }
    assert_eq!(router.load(ReplicaId(0)), Some(Load::default()));
    assert_eq!(router.remove_replica(ReplicaId(7)), []);
}

#[test]
fn s4_requests_that_come_together_find_each_other() {
    let mut router = Router::new(policy::named("partywall").unwrap(), RouterSettings::default());
    for _ in 0..4 {
        router.add_replica(Nanos::ZERO, CAPACITY, &[ModelId(0)]).unwrap();
    }
    let prompt = arrival(1, LS, 2_000);
    let first = sent(&mut router, Nanos::ZERO, prompt.clone());
    let second = sent(&mut router, Nanos::ZERO, Arrival { id: RequestId(2), ..prompt });
    assert_eq!((second.replica, second.cached_blocks), (first.replica, 20));
    assert_ne!(sent(&mut router, Nanos::ZERO, arrival(3, LS, 2_000)).replica, first.replica);
}

#[test]
fn s5_the_expected_time_is_that_of_the_prompts_before_and_what_is_not_held() {
    let mut router = fleet(1);
    assert_eq!(sent(&mut router, Nanos::ZERO, arrival(1, LS, 500)).expected_ttft, ms(500));
    let Verdict::Send(placement) = router.arrive(ms(100), arrival(2, LS, 1_000), &Holds(vec![4])) else {
        panic!("not sent");
    };
    assert_eq!((placement.backlog, placement.expected_ttft), (ms(400), ms(1_000)));
    let gpu = GpuState { speed: 0.5, ..GpuState::default() };
    router.set_gpu(ReplicaId(0), gpu);
    router.first_token(ms(500), RequestId(1), None);
    assert_eq!(sent(&mut router, ms(500), arrival(3, LS, 100)).expected_ttft, ms(1_400));
}

#[test]
fn s6_names_are_given_once() {
    let mut router = fleet(1);
    sent(&mut router, Nanos::ZERO, arrival(1, LS, 1_000));
    let known = Verdict::Refused(Refusal::Known);
    assert_eq!(router.arrive(Nanos::ZERO, arrival(1, BE, 100), &Unknown), known);
    assert_eq!(router.arrive(Nanos::ZERO, arrival(2, BE, 100), &Unknown), Verdict::Held);
    assert_eq!(router.arrive(Nanos::ZERO, arrival(2, BE, 100), &Unknown), known);
    assert_eq!(router.arrive(Nanos::ZERO, arrival(2, LS, 100), &Unknown), known);
}

#[test]
fn what_cannot_do_anything_is_no_replica() {
    let mut router = fleet(0);
    for capacity in [
        Capacity { prefill_tokens_per_s: 0.0, ..CAPACITY },
        Capacity { prefill_tokens_per_s: f64::NAN, ..CAPACITY },
        Capacity { prefill_tokens_per_s: f64::INFINITY, ..CAPACITY },
        Capacity { streams: 0, ..CAPACITY },
        Capacity { block_tokens: 0, ..CAPACITY },
        Capacity { cache_blocks: 0, ..CAPACITY },
    ] {
        let error = router.add_replica(Nanos::ZERO, capacity, &[]).unwrap_err();
        assert!(error.to_string().contains("at least one stream"), "{error}");
    }
    for _ in 0..MAX_REPLICAS {
        router.add_replica(Nanos::ZERO, CAPACITY, &[]).unwrap();
    }
    assert_eq!(router.add_replica(Nanos::ZERO, CAPACITY, &[]), Err(RouterError::TooManyReplicas));
}

#[test]
fn a_learned_capacity_changes_what_is_expected() {
    let mut router = fleet(1);
    let learned = |prefill_tokens_per_s| Capacity { prefill_tokens_per_s, ..CAPACITY };
    router.set_capacity(ReplicaId(0), learned(2_000.0)).unwrap();
    assert!(router.set_capacity(ReplicaId(0), learned(-1.0)).is_err());
    assert_eq!(sent(&mut router, Nanos::ZERO, arrival(1, LS, 500)).expected_ttft, ms(250));
}

#[test]
fn latency_sensitive_prompts_are_priced_by_how_busy_they_keep_the_replicas() {
    // Twenty requests, a second apart, of 0.9 s each for two replicas: busy for 0.45 of the time, so that a second costs 0.8 more.
    let mut router = Router::new(policy::named("partywall").unwrap(), RouterSettings::default());
    for _ in 0..2 {
        router.add_replica(Nanos::ZERO, CAPACITY, &[ModelId(0)]).unwrap();
    }
    let mut cost = 0.0;
    for id in 0..200 {
        let now = ms(id * 1_000);
        cost = sent(&mut router, now, arrival(id, LS, 900)).cost;
        router.first_token(now + ms(900), RequestId(id), None);
        router.ended(now + ms(950), RequestId(id));
    }
    assert!((cost - 0.9 * 1.82).abs() < 0.05, "{cost}");
}

#[test]
fn an_answer_that_comes_whole_keeps_nobody_waiting_longer_than_its_prompt() {
    let mut router = fleet(1);
    let whole = |id, class| Arrival { whole: true, ..arrival(id, class, 500) };
    sent(&mut router, ms(0), whole(1, LS));
    assert_eq!(router.arrive(ms(100), whole(2, BE), &Unknown), Verdict::Held);
    // Nothing is heard of the first one, and so it goes on for ten seconds.
    assert_eq!(router.next_poll(), Some(ms(450)));
    assert_eq!(poll(&mut router, ms(449)), []);
    assert_eq!(poll(&mut router, ms(450)), [(2, Ok(0))]);
    assert_eq!(sent(&mut router, ms(600), arrival(3, LS, 100)).backlog, ms(400));
    // The second is through by the time that the third is.
    router.first_token(ms(1_200), RequestId(3), None);
    let load = router.load(ReplicaId(0)).unwrap();
    assert_eq!((load.latency_sensitive.decoding, load.best_effort.decoding), (2, 1));
    for id in [1, 2, 3] {
        router.first_token(ms(10_000), RequestId(id), None);
        router.ended(ms(10_000), RequestId(id));
    }
    assert_eq!(router.load(ReplicaId(0)).unwrap(), Load::default());
}
