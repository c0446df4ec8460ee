//! What events tell is what the cache holds, in every shape, over both sockets.

use std::net::SocketAddr;

use hyper::Method;
use partywall_engine_sim::events::wire::{Encoding, Format, HashForm, Shape};
use partywall_engine_sim::server::Address;
use partywall_engine_sim::settings::Settings;
use serde_json::json;
use zeromq::SubSocket;

use crate::client::{cached, complete, fault, metric, post, text};
use crate::mirror::{self, Mirror, next, replay, subscribe};
use crate::{Engines, telling, within_reason};

fn shaped(shape: Shape) -> Settings {
    let mut settings = Settings { cache_tokens: 640, ..telling() };
    settings.events.as_mut().unwrap().shape = shape;
    settings
}

/// Prompts of 30 to 250 tokens that begin alike in groups, in an order that a number decides.
fn prompts(count: u64) -> impl Iterator<Item = String> {
    let mut state = 7u64;
    (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (group, shared, own) = (state >> 33 & 3, (state >> 40) % 150, (state >> 50) % 70);
        let begins = format!("group {group} ").repeat(30);
        format!("{}{own}{}", &begins[..30 + shared as usize], "z".repeat(own as usize))
    })
}

/// Subscribes, and makes the engine say things until the subscription has taken effect. Gives the number of the first message seen.
async fn listening(engines: &Engines) -> (SubSocket, u64) {
    let mut socket = subscribe(engines.address(0)).await;
    let mut tries = 0;
    loop {
        tries += 1;
        complete(engines.http(), &format!("{tries} is anybody listening?"), 1).await;
        let heard = tokio::time::timeout(std::time::Duration::from_millis(20), next(&mut socket)).await;
        if let Ok((number, _)) = heard {
            // What else was said while nothing had come back yet is still on its way.
            let said = metric(engines.http(), "partywall_engine_sim_event_number", "").await;
            for expected in number + 1..said {
                assert_eq!(next(&mut socket).await.0, expected);
            }
            return (socket, number);
        }
    }
}

/// Whoever follows the replayed events knows before each request how much of it will be found.
#[test]
fn events_tell_what_the_cache_holds_in_every_shape() {
    let both = [HashForm::Int, HashForm::Bytes];
    for format in [Format::Vllm, Format::Sglang] {
        for encoding in [Encoding::Array, Encoding::Map, Encoding::MapBatch] {
            for hashes in both {
                let shape = Shape { format, encoding, hashes };
                within_reason(follows(shape));
            }
        }
    }
}

async fn follows(shape: Shape) {
    let engines = Engines::start(shaped(shape)).await;
    let (at, address) = (engines.http(), engines.address(0));
    let topic = shape.replays_topic().then_some("kv");
    let mut mirror = Mirror::default();
    let (mut found, mut evicted) = (0, false);
    for prompt in prompts(60) {
        for message in replay(address, mirror.next, topic).await {
            mirror.take(&message);
        }
        let expected = mirror.cached(&prompt);
        let answer = complete(at, &prompt, 5).await;
        assert_eq!(cached(&answer), expected, "{shape:?}: {prompt}");
        found += expected;
        evicted |= mirror.len() > 30;
    }
    assert!(found > 1_000 && evicted, "{found} tokens found, {} blocks held", mirror.len());
    for message in replay(address, mirror.next, topic).await {
        mirror.take(&message);
    }
    assert_eq!(mirror.len() as u64, metric(at, "partywall_engine_sim_held_blocks", "").await);
    assert_eq!(mirror.next, metric(at, "partywall_engine_sim_event_number", "").await);
}

#[test]
fn a_subscriber_hears_the_same_as_a_replay() {
    within_reason(async {
        let engines = Engines::start(telling()).await;
        let (mut socket, first) = listening(&engines).await;
        for prompt in prompts(20) {
            complete(engines.http(), &prompt, 1).await;
        }
        let mut replayed = replay(engines.address(0), 0, Some("kv")).await;
        let said = metric(engines.http(), "partywall_engine_sim_event_number", "").await;
        assert_eq!(replayed.len() as u64, said);
        assert!(replayed.len() as u64 > first + 10);
        // The rest is what came after the subscription took effect.
        let heard_until = replayed.len();
        let from = heard_until - count_since_listening(&replayed);
        for expected in replayed.drain(from..) {
            assert_eq!(next(&mut socket).await, expected);
        }
    });
}

/// Messages behind the last that asks whether anybody listens.
fn count_since_listening(messages: &[mirror::Message]) -> usize {
    let asks = |batch: &[u8]| {
        let batch = rmpv::decode::read_value(&mut &batch[..]).unwrap();
        let tokens = batch[1][0]["token_ids"].as_array().cloned().unwrap_or_default();
        let text: String = tokens.iter().map(|id| char::from(id.as_u64().unwrap() as u8)).collect();
        text.contains("is anybody")
    };
    messages.iter().rev().take_while(|(_, batch)| !asks(batch)).count()
}

#[test]
fn a_replay_begins_where_the_ring_does() {
    within_reason(async {
        let mut settings = telling();
        settings.events.as_mut().unwrap().kept = 5;
        let engines = Engines::start(settings).await;
        for number in 0..12 {
            complete(engines.http(), &format!("{number:016}"), 1).await;
        }
        for (from, expected) in [(0, 7..12), (9, 9..12), (12, 12..12), (1_000, 12..12)] {
            let numbers: Vec<u64> = replay(engines.address(0), from, Some("kv"))
                .await
                .iter()
                .map(|(number, _)| *number)
                .collect();
            assert_eq!(numbers, expected.collect::<Vec<u64>>(), "from {from}");
        }
    });
}

#[test]
fn adapter_and_salt_are_told_with_their_blocks() {
    within_reason(async {
        let engines = Engines::start(Settings { loras: vec!["poet".to_owned()], ..telling() }).await;
        let body =
            json!({"model": "poet", "cache_salt": "tenant", "prompt": "p".repeat(40), "max_tokens": 1});
        assert_eq!(post(engines.http(), "/v1/completions", &body).await.0, 200);
        let messages = replay(engines.address(0), 0, Some("kv")).await;
        let batch = rmpv::decode::read_value(&mut messages[0].1.as_slice()).unwrap();
        assert_eq!(batch[1][0]["lora_name"].as_str(), Some("poet"));
        assert_eq!(batch[1][0]["extra_keys"].to_string(), r#"[["poet", "tenant"], ["poet"]]"#);
        assert!(batch[1][0]["parent_block_hash"].is_nil());
    });
}

#[test]
fn replicas_tell_of_themselves_with_hashes_of_their_own() {
    within_reason(async {
        let engines = Engines::start(Settings { replicas: 2, ..telling() }).await;
        let mut hashes = Vec::new();
        for replica in 0..2 {
            let address = engines.address(replica);
            complete(address.http, &"q".repeat(16), 1).await;
            let messages = replay(address, 0, Some("kv")).await;
            let batch = rmpv::decode::read_value(&mut messages[0].1.as_slice()).unwrap();
            assert_eq!((messages.len(), batch[1][0]["token_ids"].as_array().unwrap().len()), (1, 16));
            hashes.push(batch[1][0]["block_hashes"][0].clone());
        }
        assert_ne!(hashes[0], hashes[1]);
    });
}

/// A rank tells of itself at a port of its own, and requests spread over all.
#[test]
fn ranks_are_engines_of_their_own_behind_one_address() {
    within_reason(async {
        let engines = Engines::start(Settings { ranks: 3, replicas: 2, ..telling() }).await;
        let first = engines.address(1).clone();
        let at = first.http;
        let prompts: Vec<String> = (0..30).map(|number| format!("{number:016}").repeat(2)).collect();
        // None ends before all are there, so each rank gets as many.
        fault(at, "hang").await;
        let ask = |prompt: String| tokio::spawn(async move { cached(&complete(at, &prompt, 20).await) });
        let tasks: Vec<_> = prompts.iter().cloned().map(ask).collect();
        while total(at, "vllm:num_requests_waiting").await + total(at, "vllm:num_requests_running").await < 30
        {
        }
        assert_eq!(text(at, Method::DELETE, "/fault", "").await.0, 200);
        for task in tasks {
            assert_eq!(task.await.unwrap(), 0);
        }
        for rank in 0..3 {
            let after = |endpoint: &str| {
                let (host, port) = endpoint.rsplit_once(':').unwrap();
                format!("{host}:{}", port.parse::<u16>().unwrap() + rank)
            };
            let address = Address { kv_replay: first.kv_replay.as_deref().map(after), ..first.clone() };
            let mut mirror = Mirror::of(rank);
            for message in replay(&address, 0, Some("kv")).await {
                mirror.take(&message);
            }
            let label = format!("engine=\"{rank}\"");
            assert_eq!(mirror.len() as u64, metric(at, "partywall_engine_sim_held_blocks", &label).await);
            assert_eq!(mirror.len(), 2 * prompts.len() / 3, "rank {rank}");
        }
    });
}

/// A metric over all ranks.
async fn total(at: SocketAddr, name: &str) -> u64 {
    let mut sum = 0;
    for rank in 0..3 {
        sum += metric(at, name, &format!("engine=\"{rank}\"")).await;
    }
    sum
}
