//! What goes through, and what stays behind.

use crate::client::{Client, ask, chat};
use crate::upstream::{USAGE, Upstream, event};
use crate::{CHAT, STREAM, gateway, wait_until};

#[test]
fn a_request_and_its_answer_go_through_as_they_are() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    let body = format!(" {CHAT}\n");
    let headers = [
        ("x-test", "json"),
        ("authorization", "Bearer client"),
        ("connection", "x-private"),
        ("x-private", "1"),
        ("accept-encoding", "gzip"),
        ("x-request-id", "abc"),
    ];
    let answer = ask(gateway.address(), "POST", "/v1/chat/completions?a=b", &headers, &body);
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["choices"][0]["message"]["content"], "hi");
    assert_eq!(answer.headers["x-request-id"], "abc");
    assert_eq!((answer.decision("replica"), answer.decision("class")), ("r0".to_owned(), "LS".to_owned()));
    let seen = upstream.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].line, "POST /v1/chat/completions?a=b HTTP/1.1");
    assert_eq!(seen[0].body, body.as_bytes(), "byte by byte");
    assert_eq!(seen[0].headers["host"], upstream.address.to_string());
    assert_eq!(seen[0].headers["authorization"], "Bearer client", "the gateway has no keys of its own");
    for gone in ["x-private", "connection", "accept-encoding"] {
        assert!(!seen[0].headers.contains_key(gone), "{gone}");
    }
}

#[test]
fn a_stream_comes_piece_by_piece() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    let mut client = Client::connect(gateway.address());
    client.send("POST", "/v1/chat/completions", &[("x-test", "step 3")], STREAM.as_bytes());
    let head = client.head().unwrap();
    assert_eq!((head.status, head.headers["content-type"].as_str()), (200, "text/event-stream"));
    for index in 0..3 {
        // The replica sends the next one only after this one has arrived here.
        assert_eq!(client.chunk().0.unwrap(), event(index).as_bytes());
        upstream.go();
    }
    assert_eq!(client.chunk(), (None, true));
    // And the connection serves on.
    client.send("POST", "/v1/chat/completions", &[("x-test", "crumbs")], STREAM.as_bytes());
    let answer = client.answer().unwrap();
    assert_eq!(answer.text(), format!("{}{}{USAGE}data: [DONE]\n\n", event(0), event(1)));
}

#[test]
fn a_client_that_leaves_is_left_at_the_replica_too() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    for (does, body) in [("step 1000", STREAM), ("wait", CHAT)] {
        let before = upstream.left();
        let mut client = Client::connect(gateway.address());
        client.send("POST", "/v1/chat/completions", &[("x-test", does)], body.as_bytes());
        if does.starts_with("step") {
            client.head().unwrap();
            client.chunk();
        } else {
            let seen = upstream.seen().len();
            wait_until("the replica gets the request", || upstream.seen().len() > seen.min(1));
        }
        drop(client);
        wait_until("the replica is told", || upstream.left() > before);
    }
    wait_until("nothing is under way", || crate::operators::facts(&gateway)["under_way"] == 0);
    assert_eq!(crate::operators::replicas(&gateway)[0]["under_way"], 0);
}

#[test]
fn other_apis_go_through_to_the_models_replicas() {
    let upstream = Upstream::start();
    let gateway = {
        let mut config =
            crate::configured(&[upstream.url()], "[[proxy]]\nprefix = \"/vision/\"\nmodel = \"m\"", "");
        config.limits.answer = partywall_core::units::Bytes(1000);
        let gateway =
            partywall_gateway::gateway::Gateway::start(config, std::path::Path::new("."), None).unwrap();
        crate::all_available(&gateway);
        gateway
    };
    let address = gateway.address();
    let cases = [
        ("POST", "/v2/models/m/infer", "POST /v2/models/m/infer HTTP/1.1"),
        ("GET", "/v2/models/m/ready", "GET /v2/models/m/ready HTTP/1.1"),
        ("PUT", "/vision/a/b?c=d", "PUT /a/b?c=d HTTP/1.1"),
    ];
    for (method, path, line) in cases {
        let answer =
            ask(address, method, path, &[("x-test", "echo"), ("accept-encoding", "gzip")], "\u{1}binary");
        assert_eq!((answer.status, answer.text()), (200, "\u{1}binary".to_owned()));
        let seen = upstream.seen().pop().unwrap();
        assert_eq!(seen.line, line);
        assert_eq!(seen.headers["accept-encoding"], "gzip");
    }
    for (path, code) in [
        ("/v2/models/x/infer", "model_not_found"),
        ("/vision/../admin", "bad_request"),
        ("/x", "no_such_path"),
    ] {
        assert_eq!(ask(address, "POST", path, &[], "").code(), code, "{path}");
    }
    // An answer that is longer than what is kept comes as it is.
    let answer = chat(address, "large 50", CHAT);
    assert_eq!((answer.status, answer.body.len(), answer.whole), (200, 50_000, true));
}

#[test]
fn models_are_listed_and_health_is_told() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    let get = |path| ask(gateway.address(), "GET", path, &[], "");
    let list = get("/v1/models").json();
    let names: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["batch", "m"]);
    assert_eq!(get("/v1/models/m").json()["id"], "m");
    assert_eq!(get("/v1/models/x").status, 404);
    assert_eq!(get("/health").status, 200);
    assert_eq!(get("/v2/health/ready").status, 200);
    assert!(upstream.seen().is_empty());
    let wrong =
        ask(gateway.address(), "POST", "/v1/chat/completions", &[], "{\"model\":\"x\",\"messages\":[]}");
    assert_eq!((wrong.status, wrong.code().as_str()), (404, "model_not_found"));
}

#[test]
fn requests_that_begin_alike_are_known_to() {
    let upstreams = [Upstream::start(), Upstream::start()];
    let upstreams: Vec<&Upstream> = upstreams.iter().collect();
    let gateway = gateway(&upstreams, "");
    let message = |salt: &str, image: &str, last: &str| {
        let begin = "You answer in the words of a lawyer of the last century. ".repeat(40);
        format!(
            "{{\"model\":\"m\",{salt}\"messages\":[{{\"role\":\"system\",\"content\":\"{begin}\"}},{{\"role\":\"user\",\"content\":[{{\"type\":\"text\",\"text\":\"Look.\"}}{image},\
             {{\"type\":\"text\",\"text\":\"{last}\"}}]}}]}}"
        )
    };
    let image = |data: &str| {
        format!(",{{\"type\":\"image_url\",\"image_url\":{{\"url\":\"data:image/png;base64,{data}\"}}}}")
    };
    let cached = |body: &str| {
        let answer = chat(gateway.address(), "", body);
        let decision = answer.decision("cached");
        let (cached, of) = decision.split_once('/').unwrap();
        (cached.parse::<u32>().unwrap(), of.parse::<u32>().unwrap())
    };
    let long = "tell me all about it ".repeat(100);
    let (first, of) = cached(&message("", "", &long));
    assert!(first == 0 && of > 60, "{first} of {of}");
    assert_eq!(cached(&message("", "", &long)), (of, of), "the same again");
    let (begins_alike, _) = cached(&message("", "", "something else"));
    assert!((30..of).contains(&begins_alike), "{begins_alike}");
    assert_eq!(cached(&message("\"cache_salt\":\"other\",", "", &long)).0, 0, "another tenant's");
    let (with_image, _) = cached(&message("", &image("AAAA"), &long));
    assert!(with_image < of - 10, "what comes behind an image is another thing");
    assert_eq!(cached(&message("", &image("AAAA"), &long)).0, of);
    assert!(cached(&message("", &image("BBBB"), &long)).0 < of - 10);
}
