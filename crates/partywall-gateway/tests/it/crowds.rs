//! Many at the same time.

use std::collections::BTreeMap;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::operators::{facts, replicas};
use crate::upstream::Upstream;
use crate::{STREAM, gateway, wait_until};

const STREAMS: usize = 2_000;

/// Descriptors that so many streams take here, where client, gateway and replica are one process, and some.
const DESCRIPTORS: u64 = 5 * STREAMS as u64;

fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum.map_or(DESCRIPTORS, |maximum| maximum.max(limit.current.unwrap_or(0)));
    assert!(current >= DESCRIPTORS, "this needs {DESCRIPTORS} descriptors; the limit is {current}");
    setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum: limit.maximum }).unwrap();
}

/// Sends one request and reads until the connection ends.
async fn ask(address: std::net::SocketAddr, id: usize, does: String) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {}\r\nconnection: close\r\nx-request-id: {id}\r\nx-test: {does}\r\n\r\n{STREAM}",
        STREAM.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// How often each request reached a replica.
fn times(upstreams: &[&Upstream]) -> BTreeMap<String, usize> {
    let mut times = BTreeMap::new();
    for seen in upstreams.iter().flat_map(|upstream| upstream.seen()) {
        *times.entry(seen.headers["x-request-id"].clone()).or_default() += 1;
    }
    times
}

#[test]
fn two_thousand_streams_at_once_are_all_whole() {
    raise_descriptors();
    let upstreams = [Upstream::start(), Upstream::start()];
    let upstreams: Vec<&Upstream> = upstreams.iter().collect();
    let gateway = gateway(&upstreams, "");
    let address = gateway.address();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answers = runtime.block_on(async {
        let mut streams = JoinSet::new();
        for id in 0..STREAMS {
            // None ends before all have begun.
            streams.spawn(ask(address, id, "step 1".to_owned()));
        }
        let watch = || upstreams.iter().map(|upstream| upstream.seen().len()).sum::<usize>();
        while watch() < STREAMS {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        assert_eq!(facts_soon(&gateway).await["under_way"], STREAMS);
        let mut answers = Vec::new();
        while !streams.is_empty() {
            upstreams.iter().for_each(|upstream| upstream.go());
            while let Ok(Some(answer)) =
                tokio::time::timeout(std::time::Duration::from_micros(100), streams.join_next()).await
            {
                answers.push(answer.unwrap());
            }
        }
        answers
    });
    assert_eq!(answers.len(), STREAMS);
    for answer in &answers {
        assert!(
            answer.starts_with("HTTP/1.1 200") && answer.contains("t0") && answer.ends_with("0\r\n\r\n"),
            "{answer}"
        );
    }
    let times = times(&upstreams);
    assert_eq!(times.len(), STREAMS);
    assert!(times.values().all(|times| *times == 1), "each reached one replica once");
    wait_until("nothing is left", || facts(&gateway)["under_way"] == 0 && facts(&gateway)["body_bytes"] == 0);
}

/// The facts, without holding up the streams of this thread.
async fn facts_soon(gateway: &partywall_gateway::gateway::Gateway) -> serde_json::Value {
    let address = gateway.admin_address();
    let get = move || crate::client::ask(address, "GET", "/api/v1/gateway", &[], "").json();
    tokio::task::spawn_blocking(get).await.unwrap()
}

#[test]
fn whatever_replicas_do_every_request_gets_one_answer_and_goes_out_once() {
    let upstreams = [Upstream::start(), Upstream::start(), Upstream::start()];
    let upstreams: Vec<&Upstream> = upstreams.iter().collect();
    let gateway = gateway(&upstreams, "[breaker]\nfailures = 100000");
    let address = gateway.address();
    let does = [
        "stream 5",
        "die 2",
        "tear 1",
        "hang",
        "half",
        "garbage",
        "crumbs",
        "json",
        "status 500",
        "status 429",
        "large 9",
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let answers = runtime.block_on(async {
        let mut requests = JoinSet::new();
        for id in 0..1_100 {
            let does = does[id % does.len()];
            requests.spawn(async move { (does, ask(address, id, does.to_owned()).await) });
        }
        requests.join_all().await
    });
    assert_eq!(answers.len(), 1_100);
    for (does, answer) in &answers {
        let expected = match *does {
            "hang" | "half" | "garbage" => "HTTP/1.1 502",
            "status 500" => "HTTP/1.1 500",
            "status 429" => "HTTP/1.1 429",
            _ => "HTTP/1.1 200",
        };
        assert!(answer.starts_with(expected), "{does}: {answer}");
        let died = matches!(*does, "die 2" | "tear 1" | "hang" | "half" | "garbage");
        assert_eq!(answer.contains("replica_failed"), died, "{does}: {answer}");
    }
    let times = times(&upstreams);
    assert_eq!(times.len(), 1_100);
    assert!(times.values().all(|times| *times == 1));
    wait_until("nothing is left", || facts(&gateway)["under_way"] == 0 && facts(&gateway)["body_bytes"] == 0);
    let left = replicas(&gateway);
    assert!(
        left.as_array()
            .unwrap()
            .iter()
            .all(|replica| replica["under_way"] == 0 && replica["prefill_tokens"] == 0),
        "{left}"
    );
}
