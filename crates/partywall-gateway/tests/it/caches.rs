//! What is known of caches because engines say it.

use std::time::Duration;

use rmpv::Value;
use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

use crate::client::ask;
use crate::operators::replicas;
use crate::upstream::Upstream;
use crate::{gateway_with, wait_until};

/// A batch of vLLM's: two blocks of 16 tokens, from 1 on.
fn stored() -> Vec<u8> {
    let tokens: Vec<Value> = (1..=32u32).map(Value::from).collect();
    let hashes = vec![Value::from(71u64), Value::from(72u64)];
    let event = Value::Array(vec![
        Value::from("BlockStored"),
        Value::Array(hashes),
        Value::Nil,
        Value::Array(tokens),
        Value::from(16u32),
        Value::Nil,
        Value::from("GPU"),
    ]);
    let batch = Value::Array(vec![Value::F64(1.0), Value::Array(vec![event]), Value::from(0u32)]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &batch).unwrap();
    bytes
}

/// An engine that says the same again and again.
fn publisher() -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut socket = PubSocket::new();
            let endpoint = socket.bind("tcp://127.0.0.1:0").await.unwrap();
            sender.send(endpoint.to_string()).unwrap();
            for number in 0u64.. {
                let mut message = ZmqMessage::from(Vec::new());
                message.push_back(number.to_be_bytes().to_vec().into());
                message.push_back(stored().into());
                socket.send(message).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    receiver.recv().unwrap()
}

#[test]
fn what_an_engine_says_it_holds_counts_before_anything_was_sent_to_it() {
    let upstream = Upstream::start();
    let gateway =
        gateway_with(&[&upstream], "", &format!("kv-events = {{ endpoint = \"{}\" }}", publisher()));
    wait_until("the engine is heard", || {
        ["exact", "degraded"].iter().any(|state| replicas(&gateway)[0]["kv_events"][0] == *state)
    });
    let tokens: Vec<u32> = (1..=40).collect();
    let ask = |model: &str, tokens: &[u32]| {
        let body = format!("{{\"model\":\"{model}\",\"prompt\":{tokens:?}}}");
        ask(gateway.address(), "POST", "/v1/completions", &[], &body)
    };
    assert_eq!(ask("m", &tokens).decision("cached"), "2/2");
    assert_eq!(ask("m", &tokens[1..]).decision("cached"), "0/2");
    assert_eq!(ask("batch", &tokens).decision("cached"), "0/2", "another model");
}
