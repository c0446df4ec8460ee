//! The gateway as clients, replicas and operators meet it.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests wait for things to happen, and may panic"
)]

mod caches;
mod classes;
mod client;
mod crowds;
mod faults;
mod hostile;
mod operators;
mod passing;
mod secure;
mod upstream;

use std::path::Path;
use std::time::{Duration, Instant};

use partywall_gateway::config::Config;
use partywall_gateway::gateway::Gateway;

use upstream::Upstream;

/// How long something may take that has to happen: CI is loaded.
const PATIENCE: Duration = Duration::from_secs(120);

/// A chat request.
const CHAT: &str = r#"{"model":"m","messages":[{"role":"user","content":"hello"}]}"#;

/// The same, streamed.
const STREAM: &str = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hello"}]}"#;

/// Waits until `done`.
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A configuration in front of these replicas, called r0, r1 and so on. `more` goes before the replicas, `each` into each of them.
fn configured(urls: &[String], more: &str, each: &str) -> Config {
    let mut text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\nworkers = 2\n[admin]\naddress = \"127.0.0.1:0\"\n{more}\n\
         [[model]]\nname = \"m\"\n[[model]]\nname = \"batch\"\nclass = \"best-effort\"\n"
    );
    if !more.contains("[health]") {
        text = format!("[health]\ninterval = \"20ms\"\ntimeout = \"30s\"\n{text}");
    }
    for (index, url) in urls.iter().enumerate() {
        text += &format!(
            "[[replica]]\nname = \"r{index}\"\nurl = \"{url}\"\nmodels = [\"m\", \"batch\"]\n{each}\n"
        );
    }
    Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"))
}

/// A gateway in front of these replicas, as soon as all of them get requests.
fn gateway_with(upstreams: &[&Upstream], more: &str, each: &str) -> Gateway {
    let urls: Vec<String> = upstreams.iter().map(|upstream| upstream.url()).collect();
    let gateway = Gateway::start(configured(&urls, more, each), Path::new("."), None).unwrap();
    all_available(&gateway);
    gateway
}

fn gateway(upstreams: &[&Upstream], more: &str) -> Gateway {
    gateway_with(upstreams, more, "")
}

/// Waits until all replicas get requests.
fn all_available(gateway: &Gateway) {
    wait_until("all replicas are available", || {
        let replicas = operators::replicas(gateway);
        replicas.as_array().unwrap().iter().all(|replica| replica["available"] == true)
    });
}
