//! Clients that mean no good, or know no better.

use std::io::Read;
use std::net::TcpStream;

use crate::client::{Client, ask, chat};
use crate::operators::facts;
use crate::upstream::Upstream;
use crate::{CHAT, PATIENCE, gateway, wait_until};

/// Numbers that look like chance and are the same each time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }
}

/// A request with at least one thing wrong, in its head or in its body.
fn malformed(chance: &mut Chance) -> Vec<u8> {
    let wrong_body = |chance: &mut Chance| match chance.below(6) {
        0 => CHAT[..chance.below(CHAT.len())].to_owned(),
        1 => format!("{}{CHAT}", chance.of(&["x", "]", "{", "\u{0}"])),
        2 => CHAT.replace("\"m\"", chance.of(&["1", "null", "[]", "\"\\ud800\"", "\"no-such-model\""])),
        3 => CHAT.replace("messages", chance.of(&["message", "model", "prompt"])),
        4 => format!(
            "{{\"model\":\"m\",\"messages\":{}}}",
            chance.of(&["1", "{}", "[1]", "[[]]", "[{\"content\":{}}]", "\"x\"", "null"])
        ),
        _ => "[".repeat(chance.below(5_000)),
    };
    let body = wrong_body(chance);
    let length = body.len();
    let good = format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n");
    match chance.below(10) {
        // Not HTTP at all.
        0 => (0..chance.below(300)).map(|_| chance.below(256) as u8).chain(*b"\r\n\r\n").collect(),
        1 => {
            let line = chance.of(&[
                "GET",
                "GET / HTTP/9.9",
                "GET  / HTTP/1.1",
                "G\u{1}T / HTTP/1.1",
                "GET /\u{0} HTTP/1.1",
                "PRI * HTTP/2.0",
                "GET http://evil.example/v1/models HTTP/1.1",
                "CONNECT evil.example:443 HTTP/1.1",
                "OPTIONS * HTTP/1.1",
                "BREW /v1/models HTTP/1.1",
                "GET /v1/../../etc HTTP/1.1",
                "POST /v2/models/m/../x HTTP/1.1",
                "GET /nothing HTTP/1.1",
            ]);
            format!("{line}\r\nhost: a\r\n\r\n").into_bytes()
        }
        2 => {
            let header = chance.of(&[
                "no colon",
                "bad name: x",
                "\u{e9}: x",
                "x: \u{1}",
                ": empty",
                "content-length: -1",
                "content-length: 5, 6",
                "content-length: 99999999999999999999",
                "transfer-encoding: gzip",
                "x-partywall-class: gold",
                "x-partywall-deadline: -1s",
            ]);
            format!("POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n{header}\r\n\r\n").into_bytes()
        }
        3 => {
            let many: String = (0..300).map(|index| format!("x{index}: y\r\n")).collect();
            format!("GET /v1/models HTTP/1.1\r\n{many}\r\n").into_bytes()
        }
        4 => format!("GET /v1/models HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000)).into_bytes(),
        5 => {
            let chunk =
                chance.of(&["zz\r\nx\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "5\r\nab", "\r\n\r\n"]);
            format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n{chunk}"
            )
            .into_bytes()
        }
        // Two lengths: whoever believes the other one reads a second request.
        6 => format!("{good}transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\n\r\n")
            .into_bytes(),
        _ => format!("{good}\r\n{body}").into_bytes(),
    }
}

#[test]
fn ten_thousand_malformed_requests_are_refused_and_nothing_else_happens() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    let mut chance = Chance(7);
    let mut refused = 0;
    for index in 0..10_000 {
        let request = malformed(&mut chance);
        let mut stream = TcpStream::connect(gateway.address()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // It may be refused before all of it is sent.
        let _ = std::io::Write::write_all(&mut stream, &request);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let said = String::from_utf8_lossy(&answer);
        if !said.is_empty() {
            assert!(
                said.starts_with("HTTP/1.1 4"),
                "{index}: {:?}\nwas answered {said}",
                String::from_utf8_lossy(&request)
            );
            refused += 1;
        }
        if index % 1_000 == 0 {
            assert_eq!(chat(gateway.address(), "", CHAT).status, 200);
        }
    }
    // The others were closed without a word, because they ended too early to be requests.
    assert!(refused > 5_000, "{refused}");
    assert_eq!(upstream.seen().len(), 10, "nothing of it reached a replica");
    wait_until("nothing is left", || {
        facts(&gateway)["under_way"] == 0 && facts(&gateway)["connections"] == 0
    });
}

#[test]
fn two_lengths_are_one_request_at_most() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    let mut client = Client::connect(gateway.address());
    let chunked = format!("{:x}\r\n{CHAT}\r\n0\r\n\r\n", CHAT.len());
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n{chunked}"
    );
    client.raw(request.as_bytes()).unwrap();
    let _ = client.answer();
    for seen in upstream.seen() {
        assert_eq!(seen.body, CHAT.as_bytes());
        assert_eq!(seen.headers["content-length"], CHAT.len().to_string());
        assert!(!seen.headers.contains_key("transfer-encoding"));
    }
    assert!(upstream.seen().len() <= 1);
}

#[test]
fn clients_that_dribble_are_cut_off_and_others_served() {
    let upstream = Upstream::start();
    let gateway =
        gateway(&[&upstream], "[timeouts]\nhead = \"500ms\"\nbody = \"500ms\"\n[limits]\nconnections = 300");
    let mut slow: Vec<Client> = (0..200).map(|_| Client::connect(gateway.address())).collect();
    for (index, client) in slow.iter_mut().enumerate() {
        let begun: &[u8] = match index % 4 {
            0 => b"",
            1 => b"POST /v1/chat/comp",
            2 => b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx: ",
            _ => b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n{",
        };
        client.raw(begun).unwrap();
    }
    assert_eq!(chat(gateway.address(), "", CHAT).status, 200);
    for (index, client) in slow.iter_mut().enumerate() {
        let answer = client.answer();
        if index % 4 == 3 {
            let answer = answer.unwrap();
            assert_eq!((answer.status, answer.code().as_str()), (408, "slow_body"));
        } else {
            assert!(answer.is_none_or(|answer| answer.status == 408));
        }
    }
    wait_until("none is left", || facts(&gateway)["under_way"] == 0);
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn a_client_that_does_not_read_is_cut_off() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[timeouts]\nwrite = \"200ms\"");
    let mut client = Client::connect(gateway.address());
    // More than all buffers on the way hold.
    client.send("POST", "/v2/models/m/infer", &[("x-test", "large 40000")], b"");
    wait_until("it is under way", || upstream.seen().len() == 1);
    wait_until("it is cut off", || facts(&gateway)["under_way"] == 0);
}

#[test]
fn bodies_have_their_limits() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[limits]\nbody = \"10KiB\"\nbodies = \"16KiB\"");
    let address = gateway.address();
    let long = format!("{{\"model\":\"m\",\"messages\":[],\"x\":\"{}\"}}", "y".repeat(20_000));
    assert_eq!(chat(address, "", &long).status, 413);
    let mut chunked = Client::connect(address);
    chunked
        .raw(b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        .unwrap();
    let piece = format!("400\r\n{}\r\n", "x".repeat(0x400));
    while chunked.raw(piece.as_bytes()).is_ok() {}
    // The answer may be lost with what was sent behind it.
    assert!(chunked.answer().is_none_or(|answer| answer.status == 413));
    // All bodies together: the third has no room while the first two are not answered.
    let body = format!("{{\"model\":\"m\",\"messages\":[],\"x\":\"{}\"}}", "y".repeat(7_000));
    let mut held: Vec<Client> = (0..2).map(|_| Client::connect(address)).collect();
    for client in &mut held {
        client.send("POST", "/v1/chat/completions", &[("x-test", "wait")], body.as_bytes());
    }
    wait_until("two are there", || upstream.seen().len() == 2);
    let third = chat(address, "", &body);
    assert_eq!((third.status, third.code().as_str()), (503, "too_many_bodies"));
    upstream.go();
    wait_until("one has room again", || facts(&gateway)["under_way"] == 1);
    assert_eq!(chat(address, "", &body).status, 200);
    upstream.go();
}

#[test]
fn too_many_requests_are_refused() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[limits]\nrequests = 2");
    let mut clients: Vec<Client> = (0..2).map(|_| Client::connect(gateway.address())).collect();
    for client in &mut clients {
        client.send("POST", "/v1/chat/completions", &[("x-test", "wait")], CHAT.as_bytes());
    }
    wait_until("two are there", || upstream.seen().len() == 2);
    let answer = ask(gateway.address(), "POST", "/v1/chat/completions", &[], CHAT);
    assert_eq!((answer.status, answer.code().as_str()), (503, "too_many_requests"));
    assert_eq!(ask(gateway.address(), "GET", "/health", &[], "").status, 200);
}
