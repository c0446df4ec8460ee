//! Text, whole and in streams; time; the cache over HTTP; clients that leave.

use std::net::SocketAddr;

use partywall_core::units::Nanos;
use partywall_engine_sim::settings::Settings;
use partywall_engine_sim::tokens::{Domain, Words, fingerprint, of_text};
use serde_json::{Value, json};

use crate::client::{Stream, cached, complete, metric, post, spoken};
use crate::{Engines, quick, within_reason};

/// What the engine has to say to a prompt.
fn expected(prompt: &str, tokens: u32) -> String {
    Words::new(fingerprint(Settings::default().seed, &Domain::default(), &of_text(prompt))).take(tokens)
}

/// Waits until `/metrics` says so.
async fn until(at: SocketAddr, name: &str, value: u64) {
    while metric(at, name, "").await != value {}
}

#[test]
fn a_stream_is_complete_and_nothing_comes_twice() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let (events, ended) = Stream::completion(engines.http(), "tell me", 500).await.all().await;
        assert!(ended);
        assert_eq!(spoken(&events), expected("tell me", 500));
        // 500 tokens, the reason, the usage, the end.
        assert_eq!(events.len(), 503);
        assert_eq!(events.last().unwrap(), "[DONE]");
        let usage: Value = serde_json::from_str(&events[501]).unwrap();
        assert_eq!(
            (usage["usage"]["completion_tokens"].as_u64(), usage["choices"].as_array().unwrap().len()),
            (Some(500), 0)
        );
        assert_eq!(
            complete(engines.http(), "tell me", 500).await["choices"][0]["text"],
            expected("tell me", 500)
        );
    });
}

#[test]
fn many_streams_at_once_get_each_their_own() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let at = engines.http();
        let tasks: Vec<_> = (0..200)
            .map(|number| {
                tokio::spawn(async move {
                    let prompt = format!("prompt {number}");
                    let (events, ended) = Stream::completion(at, &prompt, 40).await.all().await;
                    assert!(ended);
                    assert_eq!(spoken(&events), expected(&prompt, 40));
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        until(at, "vllm:num_requests_running", 0).await;
        assert_eq!(metric(at, "vllm:request_success_total", "stop").await, 200);
        assert_eq!(metric(at, "vllm:generation_tokens_total", "").await, 200 * 40);
        assert_eq!(metric(at, "vllm:time_to_first_token_seconds_count", "").await, 200);
    });
}

#[test]
fn a_prompt_is_found_again_up_to_where_it_differs() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let at = engines.http();
        let prompt = "x".repeat(100);
        assert_eq!(cached(&complete(at, &prompt, 1).await), 0);
        assert_eq!(cached(&complete(at, &prompt, 1).await), 96);
        assert_eq!(cached(&complete(at, &format!("{}y{}", "x".repeat(50), "x".repeat(49)), 1).await), 48);
        // At least one token is computed.
        assert_eq!(cached(&complete(at, &"x".repeat(96), 1).await), 80);
        let salted = |salt: &str| json!({"prompt": prompt, "max_tokens": 1, "cache_salt": salt});
        for (salt, tokens) in [("a", 0), ("b", 0), ("a", 96)] {
            let (_, answer) = post(at, "/v1/completions", &salted(salt)).await;
            assert_eq!(cached(&answer), tokens, "salt {salt}");
        }
        assert_eq!(metric(at, "vllm:prefix_cache_hits_total", "").await, 96 + 48 + 80 + 96);
        assert_eq!(metric(at, "vllm:prefix_cache_queries_total", "").await, 6 * 100 + 96);
    });
}

#[test]
fn chats_share_their_beginning() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let chat = |asked: &str| {
            let system = "You answer in numbered words.".repeat(10);
            json!({"messages": [{"role": "system", "content": system}, {"role": "user", "content": asked}], "max_tokens": 3})
        };
        let (_, first) = post(engines.http(), "/v1/chat/completions", &chat("one")).await;
        let (_, second) = post(engines.http(), "/v1/chat/completions", &chat("two")).await;
        assert_eq!((cached(&first), cached(&second)), (0, 304));
        assert_eq!(first["object"], "chat.completion");
        assert_eq!(first["choices"][0]["message"]["content"].as_str().unwrap().len(), 3);
    });
}

#[test]
fn who_leaves_gives_back_its_stream_and_its_blocks() {
    within_reason(async {
        // One stream, and an answer that nobody would wait for.
        let slow = Settings { streams: 1, token_time: Nanos::from_secs(1), ..quick() };
        let engines = Engines::start(Settings { time_scale: 100.0, ..slow }).await;
        let at = engines.http();
        let mut leaves = Stream::completion(at, "someone who leaves", 100_000).await;
        leaves.next().await.unwrap().unwrap();
        let waits = tokio::spawn(async move { complete(at, "someone who waits", 2).await });
        until(at, "vllm:num_requests_waiting", 1).await;
        drop(leaves);
        assert_eq!(waits.await.unwrap()["choices"][0]["text"], expected("someone who waits", 2));
        // Also one that was not streamed, while it waits for its answer.
        let body = json!({"prompt": "another", "max_tokens": 100_000});
        let leaves = tokio::spawn(async move { post(at, "/v1/completions", &body).await });
        until(at, "vllm:num_requests_running", 1).await;
        leaves.abort();
        until(at, "vllm:num_requests_running", 0).await;
        until(at, "partywall_engine_sim_used_blocks", 0).await;
        assert_eq!(metric(at, "vllm:request_success_total", "abort").await, 2);
    });
}

#[test]
fn embeddings_follow_from_their_text() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let body = json!({"input": ["same", "other", "same"], "dimensions": 8});
        let (status, answer) = post(engines.http(), "/v1/embeddings", &body).await;
        assert_eq!((status, answer["data"].as_array().unwrap().len()), (200, 3));
        let vector = |index: usize| answer["data"][index]["embedding"].as_array().unwrap().clone();
        assert_eq!((vector(0).len(), vector(0) == vector(2), vector(0) == vector(1)), (8, true, false));
        assert_eq!(answer["usage"]["prompt_tokens"], 13);
    });
}

#[test]
fn replicas_answer_alike_and_share_no_cache() {
    within_reason(async {
        let engines = Engines::start(Settings { replicas: 3, ..quick() }).await;
        let prompt = "the same for all".repeat(4);
        let mut texts = Vec::new();
        for replica in 0..3 {
            let answer = complete(engines.address(replica).http, &prompt, 30).await;
            assert_eq!(cached(&answer), 0, "replica {replica}");
            texts.push(answer["choices"][0]["text"].clone());
        }
        assert_eq!(texts, vec![Value::from(expected(&prompt, 30)); 3]);
        assert_eq!(cached(&complete(engines.address(1).http, &prompt, 1).await), 48);
    });
}
