//! The admin address.

use std::path::Path;

use partywall_gateway::gateway::Gateway;
use serde_json::Value;

use crate::client::{Client, ask, chat};
use crate::upstream::{Upstream, event};
use crate::{CHAT, STREAM, gateway, wait_until};

pub(crate) fn facts(gateway: &Gateway) -> Value {
    ask(gateway.admin_address(), "GET", "/api/v1/gateway", &[], "").json()
}

pub(crate) fn replicas(gateway: &Gateway) -> Value {
    ask(gateway.admin_address(), "GET", "/api/v1/replicas", &[], "").json()
}

pub(crate) fn metrics(gateway: &Gateway) -> String {
    ask(gateway.admin_address(), "GET", "/metrics", &[], "").text()
}

/// The value of a sample.
pub(crate) fn metric(gateway: &Gateway, sample: &str) -> f64 {
    let text = metrics(gateway);
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{sample} is not in\n{text}")).parse().unwrap()
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn replicas_come_drain_and_go() {
    let (first, second) = (Upstream::start(), Upstream::start());
    let gateway = gateway(&[&first], "");
    let admin = gateway.admin_address();
    let change = |method: &str, path: &str, body: &str| ask(admin, method, path, &[JSON], body);
    let replica = format!("{{\"name\":\"late\",\"url\":\"{}\",\"models\":[\"m\"]}}", second.url());
    assert_eq!(change("POST", "/api/v1/replicas", &replica).status, 200);
    assert_eq!(change("POST", "/api/v1/replicas", &replica).status, 400, "there is one of this name");
    crate::all_available(&gateway);
    assert_eq!(change("POST", "/api/v1/replicas/r0/drain", "").status, 200);
    for _ in 0..4 {
        assert_eq!(chat(gateway.address(), "", CHAT).decision("replica"), "late");
    }
    assert_eq!(change("POST", "/api/v1/replicas/r0/resume", "").status, 200);
    assert_eq!(change("DELETE", "/api/v1/replicas/late", "").status, 200);
    assert_eq!(change("DELETE", "/api/v1/replicas/late", "").status, 404);
    for _ in 0..4 {
        assert_eq!(chat(gateway.address(), "", CHAT).decision("replica"), "r0");
    }
    for (body, wrong) in [
        ("{}", "missing field `name`"),
        ("{\"name\":\"a\",\"url\":\"x\",\"models\":[\"m\"]}", "begin with http"),
        ("{\"name\":\"a\",\"url\":\"http://a\",\"models\":[\"n\"]}", "there is no model `n`"),
        (
            "{\"name\":\"a\",\"url\":\"http://a\",\"models\":[\"m\"],\"key-file\":\"/etc/passwd\"}",
            "only taken from",
        ),
    ] {
        let answer = change("POST", "/api/v1/replicas", body);
        assert!(answer.status == 400 && answer.text().contains(wrong), "{answer:?}");
    }
}

#[test]
fn pages_in_a_browser_cannot_change_anything() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    let admin = gateway.admin_address();
    let form = ask(admin, "POST", "/api/v1/replicas/r0/drain", &[("content-type", "text/plain")], "");
    assert_eq!(form.status, 415);
    let mut client = Client::connect(admin);
    client.raw(b"DELETE /api/v1/replicas/r0 HTTP/1.1\r\nhost: evil.example:80\r\n\r\n").unwrap();
    assert_eq!(client.answer().unwrap().status, 403);
    assert_eq!(replicas(&gateway).as_array().unwrap().len(), 1);
}

#[test]
fn with_a_token_only_who_shows_it_changes_anything() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "correct-horse-battery-staple\n").unwrap();
    let upstream = Upstream::start();
    let mut config = crate::configured(&[upstream.url()], "", "");
    config.admin.token_file = Some("token".into());
    let gateway = Gateway::start(config, folder.path(), None).unwrap();
    let drain = |token: &str| {
        let headers = [("authorization", token)];
        ask(gateway.admin_address(), "POST", "/api/v1/replicas/r0/drain", &headers, "").status
    };
    assert_eq!(drain(""), 401);
    assert_eq!(drain("Bearer correct-horse-battery-stapl"), 401);
    assert_eq!(drain("Bearer correct-horse-battery-staple"), 200);
    assert_eq!(ask(gateway.admin_address(), "GET", "/metrics", &[], "").status, 200);
}

#[test]
fn metrics_say_what_happened() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "");
    chat(gateway.address(), "stream 3", STREAM);
    chat(gateway.address(), "", CHAT);
    let be = ask(gateway.address(), "POST", "/v1/chat/completions", &[("x-partywall-class", "be")], CHAT);
    assert_eq!(be.status, 200);
    wait_until("all have ended", || facts(&gateway)["under_way"] == 0);
    let complete = "partywall_gateway_requests_total{class=\"latency-sensitive\",end=\"complete\"}";
    assert_eq!(metric(&gateway, complete), 2.0);
    assert_eq!(
        metric(&gateway, "partywall_gateway_requests_total{class=\"best-effort\",end=\"complete\"}"),
        1.0
    );
    assert_eq!(metric(&gateway, "partywall_gateway_cached_tokens_total{class=\"latency-sensitive\"}"), 64.0);
    assert_eq!(
        metric(&gateway, "partywall_gateway_told_prompt_tokens_total{class=\"latency-sensitive\"}"),
        80.0
    );
    assert_eq!(metric(&gateway, "partywall_gateway_output_tokens_total{class=\"latency-sensitive\"}"), 6.0);
    let first = "partywall_gateway_time_to_first_token_seconds_count{class=\"latency-sensitive\"}";
    assert_eq!(metric(&gateway, first), 1.0, "only of streams is the first token known");
    assert_eq!(metric(&gateway, "partywall_replica_requests_total{replica=\"r0\"}"), 3.0);
    assert_eq!(metric(&gateway, "partywall_replica_breaker{replica=\"r0\",state=\"closed\"}"), 1.0);
    let text = metrics(&gateway);
    for line in partywall_gateway::metrics::reference().lines().filter(|line| line.starts_with("| `")) {
        // Where there is nothing to count yet, only what the metric is.
        let name = line.split('`').nth(1).unwrap().trim_end_matches("_total");
        assert!(text.contains(name), "{name} is documented and not told");
    }
}

#[test]
fn a_gateway_that_stops_ends_what_it_began() {
    let upstream = Upstream::start();
    let gateway = gateway(&[&upstream], "[timeouts]\ndrain = \"2min\"");
    let address = gateway.address();
    let mut client = Client::connect(address);
    client.send("POST", "/v1/chat/completions", &[("x-test", "step 2")], STREAM.as_bytes());
    client.head().unwrap();
    assert_eq!(client.chunk().0.unwrap(), event(0).as_bytes());
    let stopping = std::thread::spawn(move || gateway.drain());
    wait_until("nobody is let in", || std::net::TcpStream::connect(address).is_err());
    assert!(!stopping.is_finished());
    upstream.go();
    assert_eq!(client.chunk().0.unwrap(), event(1).as_bytes());
    upstream.go();
    assert_eq!(client.chunk(), (None, true));
    stopping.join().unwrap();
}

#[test]
fn the_log_has_a_line_for_each_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("access.log");
    let upstream = Upstream::start();
    let config = crate::configured(&[upstream.url()], "", "");
    let file = std::fs::File::create(&path).unwrap();
    let gateway = Gateway::start(config, Path::new("."), Some(Box::new(file))).unwrap();
    crate::all_available(&gateway);
    chat(gateway.address(), "stream 3", STREAM);
    ask(
        gateway.address(),
        "POST",
        "/v1/chat/completions?key=secret",
        &[("authorization", "Bearer secret")],
        "{",
    );
    gateway.drain();
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains("secret"));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    let (good, bad) = (&lines[0], &lines[1]);
    assert_eq!(
        (&good["end"], &good["status"], &good["replica"]),
        (&"complete".into(), &200.into(), &"r0".into())
    );
    assert_eq!((&good["cached_tokens"], &good["events"]), (&32.into(), &5.into()));
    assert!(good["decision"]["expected_ttft_ms"].is_number() && good["ttft_ms"].is_number());
    assert_eq!((&bad["end"], &bad["status"]), (&"bad_request".into(), &400.into()));
}

/// A node that says that its one tenant is held for half of the time.
fn node() -> std::net::SocketAddr {
    use std::io::{BufRead as _, BufReader, Write as _};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (told, stream) in listener.incoming().flatten().enumerate() {
            let mut lines = BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
            let (uptime, held) = (told * 1_000, told * 500);
            let body = format!(
                "{{\"generation\":\"00\",\"uptime_ns\":\"{uptime}ms\",\"tenants\":[{{\"name\":\"llama\",\"held_ns\":\"{held}ms\",\"squeezed_launches\":0,\"promise\":null}}]}}"
            );
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    address
}

#[test]
fn a_replica_that_its_node_holds_back_is_known_to_be_slower() {
    let upstream = Upstream::start();
    let gpu = format!("gpu = {{ node = \"http://{}\", tenant = \"llama\" }}", node());
    let gateway = crate::gateway_with(&[&upstream], "", &gpu);
    wait_until("the node was asked twice", || replicas(&gateway)[0]["gpu_speed"] == 0.5);
    assert_eq!(replicas(&gateway)[0]["gpu_squeezed"], true);
    assert_eq!(metric(&gateway, "partywall_replica_gpu_speed_ratio{replica=\"r0\"}"), 0.5);
}
