//! Replicas that fail, in every way that can be told apart.

use std::path::Path;

use partywall_gateway::gateway::Gateway;

use crate::client::{Client, ask, chat};
use crate::operators::{metric, replicas};
use crate::upstream::{Upstream, event};
use crate::{CHAT, STREAM, configured, gateway, wait_until};

/// Where nobody listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[test]
fn a_replica_that_dies_in_a_stream_leaves_a_readable_end() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[breaker]\nfailures = 1000");
    for does in ["die 2", "tear 2"] {
        let answer = chat(gateway.address(), does, STREAM);
        assert_eq!((answer.status, answer.whole), (200, true));
        let text = answer.text();
        let rest =
            text.strip_prefix(&format!("{}{}", event(0), event(1))).unwrap_or_else(|| panic!("{text}"));
        let error = rest.strip_prefix("data: ").and_then(|rest| rest.strip_suffix("\n\n")).unwrap();
        let error: serde_json::Value = serde_json::from_str(error).unwrap();
        assert_eq!(error["error"]["code"], "replica_failed");
        assert!(error["error"]["message"].as_str().unwrap().contains("`r0`"));
    }
    let unframed = chat(gateway.address(), "unframed", STREAM).text();
    assert!(unframed.starts_with(&event(0)) && unframed.contains("replica_failed"), "{unframed}");
    wait_until("all have ended", || crate::operators::facts(&gateway)["under_way"] == 0);
    let failed = "partywall_gateway_requests_total{class=\"latency-sensitive\",end=\"replica_failed\"}";
    assert_eq!(metric(&gateway, failed), 3.0);
    assert_eq!(upstream.seen().len(), 3, "what has begun is not tried again");
}

#[test]
fn without_a_stream_the_same_is_an_error() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[breaker]\nfailures = 1000");
    for does in ["half", "hang", "garbage"] {
        let answer = chat(gateway.address(), does, CHAT);
        assert_eq!((answer.status, answer.code().as_str()), (502, "replica_failed"), "{does}");
        assert_eq!(answer.decision("attempt"), "1");
    }
    assert_eq!(upstream.seen().len(), 3, "nobody knows whether they have begun");
}

#[test]
fn what_has_not_begun_is_tried_elsewhere() {
    let upstream = Upstream::start();
    let urls = [nowhere(), upstream.url()];
    let more = "[health]\npath = \"\"\n[routing]\npolicy = \"round-robin\"\n[breaker]\nfailures = 1000";
    let gateway = Gateway::start(configured(&urls, more, ""), Path::new("."), None).unwrap();
    for _ in 0..6 {
        let answer = chat(gateway.address(), "", CHAT);
        assert_eq!((answer.status, answer.decision("replica").as_str()), (200, "r1"));
    }
    assert_eq!(upstream.seen().len(), 6);
    assert!(metric(&gateway, "partywall_gateway_retries_total") >= 1.0);
}

#[test]
fn a_replica_that_refuses_is_avoided_and_its_refusal_is_the_last_word() {
    let (busy, free) = (Upstream::start(), Upstream::start());
    busy.set_refusing(true);
    let gateway = gateway(&[&busy, &free], "[routing]\npolicy = \"round-robin\"\n[breaker]\nfailures = 1000");
    for _ in 0..6 {
        assert_eq!(chat(gateway.address(), "", CHAT).status, 200);
    }
    free.set_refusing(true);
    let answer = chat(gateway.address(), "", CHAT);
    assert_eq!((answer.status, answer.text().as_str()), (503, "busy"));
    assert_eq!((answer.headers["retry-after"].as_str(), answer.decision("attempt").as_str()), ("7", "3"));
}

#[test]
fn what_may_have_begun_is_tried_again_only_where_that_is_wanted() {
    let upstream = Upstream::start();
    let wanted = gateway(&[&upstream], "[retry]\nunanswered = true\n[breaker]\nfailures = 1000");
    assert_eq!(chat(wanted.address(), "hang", CHAT).status, 502);
    assert_eq!(upstream.seen().len(), 3);
    drop(wanted);
    let other = Upstream::start();
    let gateway = gateway(&[&other], "[breaker]\nfailures = 1000");
    let read = ask(gateway.address(), "GET", "/v2/models/m/ready", &[("x-test", "hang")], "");
    assert_eq!(read.status, 502);
    assert_eq!(other.seen().len(), 3, "reading twice does no harm");
}

#[test]
fn a_slow_replica_is_given_up() {
    let upstream = Upstream::start();
    let gateway = gateway(
        &[&upstream],
        "[timeouts]\nanswer = \"100ms\"\nsilence = \"100ms\"\n[breaker]\nfailures = 1000",
    );
    let answer = chat(gateway.address(), "wait", CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (504, "answer_timeout"));
    let stream = chat(gateway.address(), "step 2", STREAM).text();
    assert!(stream.starts_with(&event(0)) && stream.contains("nothing came for 100ms"), "{stream}");
    wait_until("the replica is told", || upstream.left() == 2);
}

#[test]
fn a_deadline_ends_the_waiting_and_says_nothing_of_the_replica() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[breaker]\nfailures = 1");
    let headers = [("x-test", "wait"), ("x-partywall-deadline", "50ms")];
    let answer = ask(gateway.address(), "POST", "/v1/chat/completions", &headers, CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (504, "deadline"));
    assert_eq!(replicas(&gateway)[0]["breaker"], "closed");
    let wrong =
        ask(gateway.address(), "POST", "/v1/chat/completions", &[("x-partywall-deadline", "soon")], CHAT);
    assert_eq!(wrong.status, 400);
}

#[test]
fn the_breaker_keeps_a_failing_replica_out_and_lets_it_back() {
    let upstream = Upstream::start();
    let more = "[breaker]\nfailures = 3\nopen = \"50ms\"\nopen-max = \"100ms\"\n[timeouts]\nhold-latency-sensitive = \"100s\"";
    let gateway = gateway(&[&upstream], more);
    for _ in 0..3 {
        chat(gateway.address(), "hang", CHAT);
    }
    assert_ne!(replicas(&gateway)[0]["breaker"], "closed");
    // Held until the breaker tries one.
    for _ in 0..3 {
        assert_eq!(chat(gateway.address(), "", CHAT).status, 200);
    }
    assert_eq!(replicas(&gateway)[0]["breaker"], "closed");
}

#[test]
fn a_replica_that_says_it_is_ill_gets_nothing() {
    let (ill, well) = (Upstream::start(), Upstream::start());
    let gateway = gateway(&[&ill, &well], "[timeouts]\nhold-latency-sensitive = \"50ms\"");
    ill.set_down(true);
    wait_until("it is down", || replicas(&gateway)[0]["up"] == false);
    for _ in 0..4 {
        assert_eq!(chat(gateway.address(), "", CHAT).decision("replica"), "r1");
    }
    well.set_down(true);
    wait_until("both are down", || replicas(&gateway)[1]["up"] == false);
    let answer = chat(gateway.address(), "", CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (503, "held_too_long"));
    assert!(answer.headers.contains_key("retry-after"));
    ill.set_down(false);
    wait_until("it is up again", || replicas(&gateway)[0]["up"] == true);
    assert_eq!(chat(gateway.address(), "", CHAT).decision("replica"), "r0");
}

#[test]
fn a_second_replica_is_asked_where_that_is_wanted_and_the_first_is_told() {
    let (one, two) = (Upstream::start(), Upstream::start());
    let gateway =
        gateway(&[&one, &two], "[retry]\nhedge-after = \"50ms\"\n[routing]\npolicy = \"round-robin\"");
    let mut client = Client::connect(gateway.address());
    client.send("POST", "/v1/chat/completions", &[("x-test", "wait")], CHAT.as_bytes());
    wait_until("both have it", || one.seen().len() + two.seen().len() == 2);
    let (first, second) =
        if one.seen().len() == 1 && two.seen().len() == 1 { (&one, &two) } else { panic!("the same twice") };
    second.go();
    let answer = client.answer().unwrap();
    assert_eq!((answer.status, answer.decision("replica").as_str()), (200, "r1"));
    wait_until("the other is told", || first.left() == 1);
    wait_until("nothing is under way", || {
        replicas(&gateway).as_array().unwrap().iter().all(|replica| replica["under_way"] == 0)
    });
    assert_eq!(metric(&gateway, "partywall_gateway_hedges_total"), 1.0);
}
