//! Each fault does what it says, is counted, and ends when it is told to.

use hyper::Method;
use partywall_engine_sim::faults::Fault;
use partywall_engine_sim::settings::Settings;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use zeromq::SubSocket;

use crate::client::{Stream, cached, complete, fault, metric, open, post, spoken, text};
use crate::mirror::{Mirror, answered, ask, asked, next, replay, subscribe};
use crate::{Engines, quick, telling, within_reason};

async fn struck(engines: &Engines, name: &str) -> u64 {
    metric(engines.http(), "partywall_engine_sim_faults_total", &format!("fault=\"{name}\"")).await
}

async fn mended(engines: &Engines, name: &str) {
    let path = format!("/fault/{name}");
    assert_eq!(text(engines.http(), Method::DELETE, path.trim_end_matches('/'), "").await.0, 200);
}

fn completion(prompt: &str, tokens: u32) -> Value {
    json!({"prompt": prompt, "max_tokens": tokens})
}

#[test]
fn cut_closes_the_connection_after_so_many_tokens() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        fault(engines.http(), "cut:7:0.5").await;
        let mut ends = Vec::new();
        for number in 0..4 {
            let (events, ended) =
                Stream::completion(engines.http(), &number.to_string(), 20).await.all().await;
            ends.push((spoken(&events).len(), ended, events.last().is_some_and(|event| event == "[DONE]")));
        }
        assert_eq!(ends, [(20, true, true), (7, false, false), (20, true, true), (7, false, false)]);
        assert_eq!(struck(&engines, "cut").await, 2);
        // Without streaming nothing at all comes.
        fault(engines.http(), "cut:7").await;
        let body = completion("a", 20).to_string();
        assert!(open(engines.http(), Method::POST, "/v1/completions", &body).await.is_err());
        mended(&engines, "cut").await;
        complete(engines.http(), "a", 20).await;
        assert_eq!(metric(engines.http(), "vllm:num_requests_running", "").await, 0);
    });
}

#[test]
fn cut_before_the_first_token_still_has_a_head() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        fault(engines.http(), "cut:0").await;
        let (events, ended) = Stream::completion(engines.http(), "a", 20).await.all().await;
        assert_eq!((events.len(), ended), (0, false));
    });
}

#[test]
fn die_takes_the_replica_away_and_leaves_the_others() {
    within_reason(async {
        let engines = Engines::start(Settings { replicas: 2, ..telling() }).await;
        let (dies, lives) = (engines.address(0).clone(), engines.address(1).http);
        fault(dies.http, "die:30").await;
        complete(dies.http, "first", 20).await;
        let (events, ended) = Stream::completion(dies.http, "second", 20).await.all().await;
        assert!(!ended && spoken(&events).len() <= 10, "{events:?}");
        for address in [dies.http.to_string(), dies.kv_replay.unwrap().replace("tcp://", "")] {
            while TcpStream::connect(&address).await.is_ok() {}
        }
        complete(lives, "still there", 20).await;
        fault_of_the_last(lives).await;
        engines.running.ended().await.unwrap();
    });
}

/// The answer may be lost with the connection.
async fn fault_of_the_last(at: std::net::SocketAddr) {
    let body = json!({"fault": "die:0"}).to_string();
    let _ = open(at, Method::POST, "/fault", &body).await;
}

#[test]
fn hang_stops_requests_and_not_health() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let at = engines.http();
        fault(at, "hang").await;
        let waits = tokio::spawn(async move { complete(at, "anything", 5).await });
        while metric(at, "vllm:num_requests_running", "").await
            + metric(at, "vllm:num_requests_waiting", "").await
            == 0
        {}
        assert_eq!(text(at, Method::GET, "/health", "").await.0, 200);
        assert_eq!(metric(at, "vllm:generation_tokens_total", "").await, 0);
        assert!(!waits.is_finished());
        mended(&engines, "hang").await;
        assert_eq!(waits.await.unwrap()["usage"]["completion_tokens"], 5);
        assert_eq!(struck(&engines, "hang").await, 1);
    });
}

/// The engine's own time says how slow it was, however slow the machine is.
#[test]
fn slow_stretches_the_engines_time() {
    within_reason(async {
        let engines = Engines::start(Settings { time_scale: 1e6, ..quick() }).await;
        fault(engines.http(), "slow:1000").await;
        let prompt = "s".repeat(8_000);
        complete(engines.http(), &prompt, 1).await;
        let (_, page) = text(engines.http(), Method::GET, "/metrics", "").await;
        let sum = page.lines().find(|line| line.starts_with("vllm:time_to_first_token_seconds_sum")).unwrap();
        let seconds: f64 = sum.rsplit(' ').next().unwrap().parse().unwrap();
        // A prompt of a second takes a thousand.
        assert!(seconds >= 1_000.0, "{seconds}");
    });
}

#[test]
fn error_answers_a_share_with_a_status() {
    within_reason(async {
        let engines =
            Engines::start(Settings { faults: vec!["error:0.5:503".parse().unwrap()], ..quick() }).await;
        let mut statuses = Vec::new();
        for _ in 0..4 {
            statuses.push(post(engines.http(), "/v1/completions", &completion("a", 1)).await.0);
        }
        assert_eq!(statuses, [200, 503, 200, 503]);
        assert_eq!(struck(&engines, "error").await, 2);
        mended(&engines, "").await;
        assert_eq!(post(engines.http(), "/v1/completions", &completion("a", 1)).await.0, 200);
    });
}

/// Numbers that a subscriber hears of ten prompts, as they come, once it hears anything.
async fn heard(engines: &Engines, fault_text: &str, messages: usize) -> Vec<u64> {
    let mut socket: SubSocket = subscribe(engines.address(0)).await;
    let mut tries = 0;
    loop {
        tries += 1;
        complete(engines.http(), &format!("{tries} is anybody listening?"), 1).await;
        if let Ok(heard) = tokio::time::timeout(std::time::Duration::from_millis(20), next(&mut socket)).await
        {
            let said = metric(engines.http(), "partywall_engine_sim_event_number", "").await;
            for expected in heard.0 + 1..said {
                assert_eq!(next(&mut socket).await.0, expected);
            }
            break;
        }
    }
    let first = metric(engines.http(), "partywall_engine_sim_event_number", "").await;
    fault(engines.http(), fault_text).await;
    for number in 0..10 {
        complete(engines.http(), &format!("{number:>16}"), 1).await;
    }
    let mut numbers = Vec::new();
    for _ in 0..messages {
        numbers.push(next(&mut socket).await.0 - first);
    }
    numbers
}

#[test]
fn messages_are_dropped_doubled_and_swapped_on_the_way() {
    for (text, numbers) in [
        ("drop-events:0.5", vec![0, 2, 4, 6, 8]),
        ("duplicate-events:0.5", vec![0, 1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8, 9, 9]),
        ("reorder-events:1", vec![1, 0, 3, 2, 5, 4, 7, 6, 9, 8]),
        ("gap:4", vec![4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
    ] {
        within_reason(async {
            let engines = Engines::start(telling()).await;
            assert_eq!(heard(&engines, text, numbers.len()).await, numbers, "{text}");
            let name = text.parse::<Fault>().unwrap().name();
            assert!(struck(&engines, name).await >= 1, "{text}");
            // A replay has everything that was ever numbered and not lost within the engine.
            let replayed = replay(engines.address(0), 0, Some("kv")).await.len() as u64;
            let lost = if name == "gap" { 4 } else { 0 };
            assert_eq!(
                replayed + lost,
                metric(engines.http(), "partywall_engine_sim_event_number", "").await
            );
        });
    }
}

#[test]
fn restart_cuts_empties_and_begins_at_0() {
    within_reason(async {
        let engines = Engines::start(Settings { time_scale: 100.0, ..telling() }).await;
        let at = engines.http();
        let prompt = "r".repeat(64);
        complete(at, &prompt, 1).await;
        let before = replay(engines.address(0), 0, Some("kv")).await;
        let mut stream = Stream::completion(at, "goes on for long", 100_000).await;
        stream.next().await.unwrap().unwrap();
        fault(at, "restart").await;
        assert!(!stream.all().await.1);
        assert_eq!(metric(at, "partywall_engine_sim_event_number", "").await, 0);
        assert_eq!(metric(at, "partywall_engine_sim_held_blocks", "").await, 0);
        assert_eq!(cached(&complete(at, &prompt, 1).await), 0);
        let after = replay(engines.address(0), 0, Some("kv")).await;
        assert_eq!((before[0].0, after[0].0), (0, 0));
        let hash = |message: &(u64, Vec<u8>)| {
            rmpv::decode::read_value(&mut message.1.as_slice()).unwrap()[1][0]["block_hashes"][0].clone()
        };
        assert_ne!(hash(&before[0]), hash(&after[0]), "a new process has new names for blocks");
        assert_eq!(
            (struck(&engines, "restart").await, metric(at, "partywall_engine_sim_restarts_total", "").await),
            (1, 1)
        );
    });
}

#[test]
fn clear_says_so_and_waits_for_nobody() {
    within_reason(async {
        let engines = Engines::start(Settings { time_scale: 100.0, ..telling() }).await;
        let at = engines.http();
        complete(at, &"c".repeat(64), 1).await;
        let mut stream = Stream::completion(at, "goes on for long", 100_000).await;
        stream.next().await.unwrap().unwrap();
        let (status, answer) = post(at, "/fault", &json!({"fault": "clear"})).await;
        assert_eq!(status, 409, "{answer}");
        drop(stream);
        while metric(at, "vllm:num_requests_running", "").await > 0 {}
        fault(at, "clear").await;
        assert_eq!(metric(at, "partywall_engine_sim_held_blocks", "").await, 0);
        let mut mirror = Mirror::default();
        for message in replay(engines.address(0), 0, Some("kv")).await {
            mirror.take(&message);
        }
        assert_eq!((mirror.len(), mirror.cleared), (0, 1));
        assert_eq!(cached(&complete(at, &"c".repeat(64), 1).await), 0);
    });
}

#[test]
fn lie_tells_of_what_is_not_found_again() {
    within_reason(async {
        let engines = Engines::start(telling()).await;
        let at = engines.http();
        fault(at, "lie:1").await;
        let prompt = "l".repeat(64);
        complete(at, &prompt, 1).await;
        mended(&engines, "lie").await;
        let mut mirror = Mirror::default();
        for message in replay(engines.address(0), 0, Some("kv")).await {
            mirror.take(&message);
        }
        assert_eq!(mirror.cached(&prompt), 48, "this is what it says");
        assert_eq!(cached(&complete(at, &prompt, 1).await), 0, "this is what it has");
        assert_eq!(struck(&engines, "lie").await, 1);
    });
}

#[test]
fn without_replay_nobody_is_answered_until_it_is_mended() {
    within_reason(async {
        let engines = Engines::start(Settings { faults: vec![Fault::NoReplay], ..telling() }).await;
        complete(engines.http(), &"n".repeat(64), 1).await;
        let mut socket = asked(engines.address(0), 0).await;
        while struck(&engines, "no-replay").await == 0 {}
        mended(&engines, "no-replay").await;
        // The same socket asks again, and hears once.
        ask(&mut socket, 0).await;
        assert_eq!(answered(&mut socket, Some("kv")).await.len(), 1);
        ask(&mut socket, 1).await;
        assert_eq!(answered(&mut socket, Some("kv")).await.len(), 0);
    });
}

#[test]
fn faults_are_listed_and_wrong_ones_explained() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let (status, answer) = post(engines.http(), "/fault", &json!({"fault": "explode"})).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains("cut:TOKENS[:SHARE]"), "{message}");
        fault(engines.http(), "slow:2").await;
        fault(engines.http(), "hang").await;
        let (_, body) = text(engines.http(), Method::GET, "/fault", "").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body["lasting"], json!(["hang", "slow:2"]));
        assert_eq!(body["struck"]["hang"], 1);
        let (_, body) = text(engines.http(), Method::DELETE, "/fault", "").await;
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap()["lasting"], json!([]));
    });
}
