//! Who a request is for, and what that means.

use partywall_gateway::gateway::Gateway;

use crate::client::{Client, ask};
use crate::operators::facts;
use crate::upstream::Upstream;
use crate::{CHAT, all_available, configured, gateway_with, wait_until};

const BATCH: &str = r#"{"model":"batch","messages":[{"role":"user","content":"hello"}]}"#;

#[test]
fn the_class_is_the_keys_the_requests_or_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let keys = "free aaaaaaaaaaaaaaaaaaaa\nslow bbbbbbbbbbbbbbbbbbbb best-effort\nfast cccccccccccccccccccc latency-sensitive\n";
    std::fs::write(folder.path().join("keys"), keys).unwrap();
    let upstream = Upstream::start();
    let config = configured(&[upstream.url()], "[keys]\nfile = \"keys\"", "");
    let gateway = Gateway::start(config, folder.path(), None).unwrap();
    all_available(&gateway);
    let class = |key: &str, asked: &str, body: &str| {
        let key = format!("Bearer {}", key.repeat(20));
        let mut headers = vec![("authorization", key.as_str())];
        if !asked.is_empty() {
            headers.push(("x-partywall-class", asked));
        }
        ask(gateway.address(), "POST", "/v1/chat/completions", &headers, body)
    };
    let cases = [
        ("a", "", CHAT, "LS"),
        ("a", "", BATCH, "BE"),
        ("a", "latency-sensitive", BATCH, "LS"),
        ("a", "best-effort", CHAT, "BE"),
        ("b", "", CHAT, "BE"),
        ("b", "ls", CHAT, "BE"),
        ("c", "", BATCH, "LS"),
        ("c", "be", CHAT, "BE"),
    ];
    for (key, asked, body, expected) in cases {
        assert_eq!(class(key, asked, body).decision("class"), expected, "{key} {asked} {body}");
    }
    assert_eq!(class("a", "gold", CHAT).status, 400);
    assert_eq!(class("d", "", CHAT).status, 401);
    assert_eq!(ask(gateway.address(), "GET", "/v1/models", &[], "").status, 401);
    assert_eq!(ask(gateway.address(), "GET", "/health", &[], "").status, 200);
    let shown = [("x-api-key", "aaaaaaaaaaaaaaaaaaaa")];
    assert_eq!(ask(gateway.address(), "POST", "/v1/chat/completions", &shown, CHAT).status, 200);
    for seen in upstream.seen() {
        assert!(!seen.headers.contains_key("authorization") && !seen.headers.contains_key("x-api-key"));
    }
}

#[test]
fn best_effort_waits_for_room_and_goes_when_there_is_some() {
    let upstream = Upstream::start();
    let gateway = gateway_with(&[&upstream], "", "prefill-tokens-per-s = 1");
    let mut first = Client::connect(gateway.address());
    // An hour of prefill, by what the configuration says of the replica.
    let long = CHAT.replace("hello", &"word".repeat(3_600));
    first.send("POST", "/v1/chat/completions", &[("x-test", "wait")], long.as_bytes());
    wait_until("the first is there", || upstream.seen().len() == 1);
    let mut second = Client::connect(gateway.address());
    second.send(
        "POST",
        "/v1/chat/completions",
        &[("x-test", "json"), ("x-partywall-class", "be")],
        CHAT.as_bytes(),
    );
    wait_until("the second is held", || facts(&gateway)["held_best_effort"] == 1);
    assert_eq!(upstream.seen().len(), 1);
    upstream.go();
    assert_eq!(first.answer().unwrap().status, 200);
    let answer = second.answer().unwrap();
    assert_eq!((answer.status, answer.decision("class").as_str()), (200, "BE"));
    assert!(answer.decision("held_ms").parse::<f64>().unwrap() > 0.0);
}

#[test]
fn who_waits_too_long_is_told_when_to_come_again() {
    let upstream = Upstream::start();
    let gateway = gateway_with(&[&upstream], "[timeouts]\nhold = \"50ms\"", "prefill-tokens-per-s = 1");
    let mut first = Client::connect(gateway.address());
    // An hour of prefill, by what the configuration says of the replica.
    let long = CHAT.replace("hello", &"word".repeat(3_600));
    first.send("POST", "/v1/chat/completions", &[("x-test", "wait")], long.as_bytes());
    wait_until("the first is there", || upstream.seen().len() == 1);
    let headers = [("x-partywall-class", "be")];
    let answer = ask(gateway.address(), "POST", "/v1/chat/completions", &headers, CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (503, "held_too_long"));
    assert!(answer.headers.contains_key("retry-after"));
    let headers = [("x-partywall-class", "be"), ("x-partywall-deadline", "20ms")];
    let answer = ask(gateway.address(), "POST", "/v1/chat/completions", &headers, CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (504, "deadline"));
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn who_leaves_while_held_is_forgotten() {
    let upstream = Upstream::start();
    let gateway = gateway_with(&[&upstream], "[timeouts]\nhold = \"1h\"", "prefill-tokens-per-s = 1");
    let mut first = Client::connect(gateway.address());
    let long = CHAT.replace("hello", &"word".repeat(3_600));
    first.send("POST", "/v1/chat/completions", &[("x-test", "wait")], long.as_bytes());
    wait_until("the first is there", || upstream.seen().len() == 1);
    let mut second = Client::connect(gateway.address());
    second.send("POST", "/v1/chat/completions", &[("x-partywall-class", "be")], CHAT.as_bytes());
    wait_until("the second is held", || facts(&gateway)["held_best_effort"] == 1);
    drop(second);
    wait_until("it is forgotten", || {
        facts(&gateway)["under_way"] == 1 && facts(&gateway)["held_best_effort"] == 0
    });
    upstream.go();
    assert_eq!(first.answer().unwrap().status, 200);
    assert_eq!(upstream.seen().len(), 1);
}

/// Of an answer that comes whole nothing is heard before its end; its prompt is through long before.
#[test]
fn best_effort_does_not_wait_for_the_end_of_answers_that_come_whole() {
    let upstream = Upstream::start();
    let gateway = gateway_with(&[&upstream], "[timeouts]\nhold = \"1h\"", "");
    let headers = [("x-test", "wait"), ("x-partywall-class", "be")];
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("POST", "/v1/chat/completions", &headers, CHAT.as_bytes());
    }
    wait_until("all are there although none is answered", || upstream.seen().len() == 3);
    assert_eq!(facts(&gateway)["held_best_effort"], 0);
}
