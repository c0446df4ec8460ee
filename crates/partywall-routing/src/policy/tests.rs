//! Each rule on candidates on which it differs from the others.

use partywall_core::tenant::Class;
use proptest::prelude::*;

use super::*;

const BLOCK: u32 = 100;

fn idle(replica: u32) -> Candidate {
    Candidate {
        replica: ReplicaId(replica),
        capacity: Capacity {
            prefill_tokens_per_s: 1_000.0,
            token_time: Nanos::from_millis(10),
            streams: 64,
            block_tokens: BLOCK,
            cache_blocks: 1_000,
        },
        load: Load::default(),
        gpu: GpuState::default(),
        wait: Nanos::ZERO,
        cached_blocks: 0,
        evicted_blocks: 0.0,
    }
}

/// One with so many requests without a first token, of so many tokens each.
fn busy(replica: u32, waiting: u32, tokens: u64) -> Candidate {
    let mut candidate = idle(replica);
    let load = &mut candidate.load.latency_sensitive;
    (load.waiting, load.prefill_tokens) = (waiting, u64::from(waiting) * tokens);
    load.waiting_tokens = load.prefill_tokens;
    candidate.wait = Nanos::from_millis(load.prefill_tokens);
    candidate
}

fn holding(blocks: u32, candidate: Candidate) -> Candidate {
    Candidate { cached_blocks: blocks, ..candidate }
}

/// A request of ten blocks.
fn request(prefixes: &[PrefixHash]) -> Request<'_> {
    let demand = Demand::default();
    Request { class: Class::LatencySensitive, prefixes, input_tokens: 1_000, affinity: None, demand }
}

fn prompt(seed: u64) -> Vec<PrefixHash> {
    (0..10).map(|block| PrefixHash(seed * 1_000 + block)).collect()
}

/// The replica that the policy of this name takes.
fn taken(name: &str, candidates: &[Candidate]) -> u32 {
    let mut policy = named(name).unwrap();
    let prefixes = prompt(1);
    candidates[policy.choose(&request(&prefixes), candidates).candidate].replica.0
}

#[test]
fn every_name_is_that_of_its_policy() {
    for name in NAMES.into_iter().chain(ABLATIONS) {
        assert_eq!(named(name).unwrap().name(), name);
    }
    assert!(named("magic").is_none());
}

#[test]
fn round_robin_takes_turns_also_when_one_is_missing() {
    let mut policy = RoundRobin::default();
    let (prefixes, all) = (prompt(1), [idle(1), idle(4), idle(7)]);
    let mut next = |candidates: &[Candidate]| {
        candidates[policy.choose(&request(&prefixes), candidates).candidate].replica.0
    };
    assert_eq!([next(&all), next(&all), next(&all), next(&all)], [1, 4, 7, 1]);
    assert_eq!([next(&[idle(1), idle(7)]), next(&all)], [7, 1]);
}

#[test]
fn least_load_counts_requests_and_nothing_else() {
    assert_eq!(taken("least-load", &[busy(0, 2, 10), busy(1, 1, 90_000), holding(10, busy(2, 2, 10))]), 1);
}

#[test]
fn longest_prefix_counts_blocks_and_then_requests() {
    let candidates =
        [idle(0), holding(2, busy(1, 9, 5_000)), holding(2, busy(2, 8, 5_000)), holding(1, idle(3))];
    assert_eq!(taken("longest-prefix", &candidates), 2);
}

#[test]
fn bounded_hash_keeps_beginnings_together_until_their_place_is_full() {
    let mut policy = BoundedHash::default();
    let mut candidates: Vec<Candidate> = (0..8).map(idle).collect();
    let (prefixes, other) = (prompt(1), prompt(2));
    let home = policy.choose(&request(&prefixes), &candidates).candidate;
    // What comes behind the second block changes nothing, and other load does not as long as it is even.
    let longer: Vec<_> = prefixes[..2].iter().copied().chain(other).collect();
    assert_eq!(policy.choose(&request(&longer), &candidates).candidate, home);
    for candidate in &mut candidates {
        *candidate = busy(candidate.replica.0, 10, 100);
    }
    assert_eq!(policy.choose(&request(&prefixes), &candidates).candidate, home);
    candidates[home] = busy(home as u32, 14, 100);
    assert_ne!(policy.choose(&request(&prefixes), &candidates).candidate, home);
    // A replica less moves only its own.
    let less: Vec<Candidate> =
        (0..8).filter(|replica| *replica as usize != (home + 1) % 8).map(idle).collect();
    assert_eq!(less[policy.choose(&request(&prefixes), &less).candidate].replica.0 as usize, home);
}

#[test]
fn bounded_hash_goes_by_affinity_where_there_is_one() {
    let mut policy = BoundedHash::default();
    let candidates: Vec<Candidate> = (0..8).map(idle).collect();
    let mut place = |prompt: &[PrefixHash], affinity: Option<u64>| {
        policy.choose(&Request { affinity, ..request(prompt) }, &candidates).candidate
    };
    let prompts: Vec<_> = (0..20).map(prompt).collect();
    let by_affinity: Vec<_> = prompts.iter().map(|prompt| place(prompt, Some(7))).collect();
    assert!(by_affinity.iter().all(|place| *place == by_affinity[0]));
    let by_prompt: Vec<_> = prompts.iter().map(|prompt| place(prompt, None)).collect();
    assert!(by_prompt.iter().any(|place| *place != by_prompt[0]));
}

#[test]
fn sglang_takes_the_most_held_if_it_is_enough_and_the_queues_are_even() {
    // 4 of 10 blocks are enough, 3 are not.
    assert_eq!(taken("sglang", &[idle(0), holding(4, busy(1, 5, 100)), holding(3, idle(2))]), 1);
    assert_eq!(taken("sglang", &[busy(0, 1, 100), holding(3, busy(1, 5, 100)), idle(2)]), 2);
    // More than 64 apart and more than half as many again: the shortest queue.
    assert_eq!(taken("sglang", &[busy(0, 9, 100), holding(10, busy(1, 80, 100)), busy(2, 8, 100)]), 2);
    assert_eq!(taken("sglang", &[busy(0, 200, 100), holding(10, busy(1, 270, 100))]), 1);
}

#[test]
fn llm_d_weighs_prefix_cache_and_queue() {
    // A whole prefix (3) outweighs the longer queue (2); half of one does not.
    assert_eq!(taken("llm-d", &[idle(0), holding(10, busy(1, 4, 1))]), 1);
    assert_eq!(taken("llm-d", &[idle(0), holding(5, busy(1, 4, 1))]), 0);
    // Equal queues: blocks in use decide.
    assert_eq!(taken("llm-d", &[busy(0, 4, 10_000), busy(1, 4, 5_000)]), 1);
}

#[test]
fn dynamo_adds_blocks_to_compute_and_blocks_in_use() {
    // 10 blocks to compute and 10 in use, against 4 + 10 and 3 + 13 of the others.
    assert_eq!(taken("dynamo", &[idle(0), holding(9, busy(1, 1, 300))]), 1);
    assert_eq!(taken("dynamo", &[idle(0), holding(7, busy(1, 1, 500))]), 0);
}

#[test]
fn dynamo_lmetric_multiplies_them() {
    // (10 - 9 + 3) * (13 + 1) = 56 against 10 * 11 = 110; (10 - 9 + 9) * (19 + 1) = 200.
    assert_eq!(taken("dynamo-lmetric", &[idle(0), holding(9, busy(1, 1, 300))]), 1);
    assert_eq!(taken("dynamo-lmetric", &[idle(0), holding(9, busy(1, 1, 900))]), 0);
}

/// What the default policy takes while the fleet is so busy.
fn ours(class: Class, demand: Demand, candidates: &[Candidate]) -> u32 {
    let prefixes = prompt(1);
    let request = Request { class, demand, ..request(&prefixes) };
    candidates[Partywall::default().choose(&request, candidates).candidate].replica.0
}

fn at(utilisation: f64) -> Demand {
    Demand { utilisation, best_effort_waits: false }
}

#[test]
fn s1_on_a_quiet_fleet_the_shortest_expected_time_wins() {
    let ls = Class::LatencySensitive;
    // A second of computing against half a second of waiting and 0.6 of computing.
    assert_eq!(ours(ls, at(0.0), &[idle(0), holding(4, busy(1, 1, 500))]), 0);
    assert_eq!(ours(ls, at(0.0), &[idle(0), holding(4, busy(1, 1, 300))]), 1);
}

#[test]
fn s2_on_a_busy_fleet_a_request_waits_for_the_one_that_holds_its_prefix() {
    let ls = Class::LatencySensitive;
    let candidates = [idle(0), holding(9, busy(1, 1, 5_000))];
    assert_eq!([at(0.0), at(0.5), at(0.9)].map(|demand| ours(ls, demand, &candidates)), [0, 0, 1]);
    // Overload is no reason to wait for ever.
    assert_eq!(ours(ls, at(5.0), &[idle(0), holding(9, busy(1, 1, 20_000))]), 0);
}

#[test]
fn s3_a_best_effort_request_goes_where_it_pushes_out_what_nobody_wants() {
    let evicting = |blocks: f64, candidate: Candidate| Candidate { evicted_blocks: blocks, ..candidate };
    let candidates = [evicting(8.0, idle(0)), evicting(0.0, busy(1, 1, 40))];
    assert_eq!(ours(Class::BestEffort, at(0.5), &candidates), 1);
    assert_eq!(ours(Class::LatencySensitive, at(0.5), &candidates), 0);
}

#[test]
fn s4_a_slow_gpu_counts_with_its_speed() {
    let mut slow = holding(4, idle(1));
    slow.gpu.speed = 0.5;
    assert_eq!(ours(Class::LatencySensitive, at(0.0), &[idle(0), slow]), 0);
    slow.gpu.speed = 0.7;
    assert_eq!(ours(Class::LatencySensitive, at(0.0), &[idle(0), slow]), 1);
}

#[test]
fn s5_while_best_effort_requests_are_held_recomputing_costs_more() {
    let candidates = [idle(0), holding(5, busy(1, 1, 700))];
    let held = |best_effort_waits| Demand { utilisation: 0.0, best_effort_waits };
    assert_eq!(ours(Class::LatencySensitive, held(false), &candidates), 0);
    assert_eq!(ours(Class::LatencySensitive, held(true), &candidates), 1);
}

#[test]
fn without_a_term_it_has_no_say() {
    let prefixes = prompt(1);
    let evicting = [
        Candidate { evicted_blocks: 8.0, ..idle(0) },
        Candidate { wait: Nanos::from_millis(200), ..idle(1) },
    ];
    let request = Request { class: Class::BestEffort, ..request(&prefixes) };
    let choose = |name: &str, request: &Request<'_>, candidates: &[Candidate]| {
        named(name).unwrap().choose(request, candidates).candidate
    };
    assert_eq!(choose("partywall", &request, &evicting), 1);
    assert_eq!(choose("partywall-without-eviction", &request, &evicting), 0);
    // On a busy fleet it waits for the replica that holds its prefix.
    let candidates = [idle(0), Candidate { wait: Nanos::from_secs(1), ..holding(9, idle(1)) }];
    let demand = Demand { utilisation: 0.8, best_effort_waits: false };
    let request = Request { class: Class::LatencySensitive, demand, ..request };
    assert_eq!(choose("partywall", &request, &candidates), 1);
    assert_eq!(choose("partywall-without-price", &request, &candidates), 0);
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let parts = (0_u32..100, 0_u64..200_000, 0_u32..40, 0.0..50.0_f64, 0.0..2.0_f64, any::<[bool; 2]>());
    parts.prop_map(|(waiting, tokens, held, evicted_blocks, speed, [squeezed, paused])| Candidate {
        gpu: GpuState { speed, squeezed, paused },
        evicted_blocks,
        ..holding(held, busy(0, waiting, tokens))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_policy_takes_one_of_the_candidates(
        mut candidates in prop::collection::vec(candidate(), 1..20),
        utilisation in prop::num::f64::ANY,
        best_effort in any::<bool>(),
        blocks in 0_usize..10,
    ) {
        for (replica, candidate) in candidates.iter_mut().enumerate() {
            candidate.replica = ReplicaId(replica as u32 * 3);
        }
        let prefixes = prompt(1);
        let class = if best_effort { Class::BestEffort } else { Class::LatencySensitive };
        let demand = Demand { utilisation, best_effort_waits: best_effort };
        let request = Request { class, demand, prefixes: &prefixes[..blocks], ..request(&prefixes) };
        for name in NAMES {
            let mut policy = named(name).unwrap();
            for _ in 0..3 {
                let choice = policy.choose(&request, &candidates);
                prop_assert!(choice.candidate < candidates.len() && !choice.cost.is_nan(), "{name}: {choice:?}");
            }
        }
    }
}
