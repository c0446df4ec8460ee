//! `partywall engine-sim` as a program.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::http::{ask, metric, post};
use crate::{Scratch, partywall, text};

/// Engines of one process, which is killed when this is dropped.
pub(crate) struct Engines {
    process: Child,
    /// For each replica: `http`, `kv_events`, `kv_replay`.
    pub(crate) addresses: Vec<Value>,
}

impl Engines {
    /// On free ports.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        command.args(["engine-sim", "--listen", "127.0.0.1:0", "--json"]).args(arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addresses = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { process, addresses }
    }

    /// Where a replica answers HTTP.
    pub(crate) fn http(&self, replica: usize) -> &str {
        self.addresses[replica]["http"].as_str().unwrap()
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn replicas_serve_until_faults_have_ended_them_all() {
    let mut engines = Engines::start(&["--replicas", "2", "--model", "m", "--time-scale", "1000"]);
    for replica in 0..2 {
        let body = json!({"model": "m", "prompt": "hello", "max_tokens": 4});
        let (status, answer) = post(engines.http(replica), "/v1/completions", &body);
        assert_eq!((status, &answer["usage"]["total_tokens"]), (200, &9.into()), "{answer}");
        assert_eq!(metric(engines.http(replica), "vllm:generation_tokens_total"), 4.0);
        let health = ask(engines.http(replica), "GET /health", &[], "").unwrap();
        assert_eq!((health.status, health.header("content-length")), (200, Some("0")));
        assert!(engines.addresses[replica]["kv_events"].is_null());
    }
    for replica in 0..2 {
        // The answer may be lost with the connection.
        let _ = ask(engines.http(replica), "POST /fault", &[], r#"{"fault": "die:0"}"#);
    }
    assert_eq!(engines.process.wait().unwrap().code(), Some(1));
}

#[test]
fn what_cannot_be_is_said_before_anything_runs() {
    for (arguments, words) in [
        (
            ["--listen", "127.0.0.1:65535", "--replicas", "2"],
            "error: --listen is 127.0.0.1:65535; with 2 replicas",
        ),
        (["--streams", "0", "--seed", "2"], "error: --streams is 0; write something from 1 to 65536"),
        (
            ["--fault", "explode", "--seed", "2"],
            "error: invalid value 'explode' for '--fault <FAULT>': `explode` is not a fault",
        ),
        (
            ["--cache-tokens", "1G", "--seed", "2"],
            "error: invalid value '1G' for '--cache-tokens <N>': write a number such as",
        ),
    ] {
        let output = partywall(&[&["engine-sim"], &arguments[..]].concat());
        let errors = text(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.starts_with(words), "{errors}");
    }
}

#[test]
fn the_tokenizer_is_written_before_it_serves() {
    let scratch = Scratch::new("engine-sim");
    let directory = scratch.0.join("model").display().to_string();
    let _engines = Engines::start(&["--tokenizer", &directory]);
    for (file, pointer) in [("tokenizer.json", "/model/vocab"), ("tokenizer_config.json", "/chat_template")] {
        let read = std::fs::read_to_string(scratch.0.join("model").join(file)).unwrap();
        let value: Value = serde_json::from_str(&read).unwrap();
        assert!(value.pointer(pointer).is_some(), "{file}");
    }
}
