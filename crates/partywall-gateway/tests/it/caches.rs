//! What is known of caches because engines say it.

use std::path::Path;
use std::time::Duration;

use partywall_gateway::config::Config;
use partywall_gateway::gateway::Gateway;
use rmpv::Value;
use zeromq::{PubSocket, Socket as _, SocketSend as _, ZmqMessage};

use crate::client::{Client, ask};
use crate::operators::{facts, metric, replicas};
use crate::upstream::Upstream;
use crate::{gateway_with, wait_until};

/// A batch of vLLM's: two blocks of 16 tokens, from 1 on. `adapter` is its `lora_id` and its `lora_name`.
fn stored(adapter: (Option<u64>, Option<&str>)) -> Vec<u8> {
    let tokens: Vec<Value> = (1..=32u32).map(Value::from).collect();
    let hashes = vec![Value::from(71u64), Value::from(72u64)];
    let event = Value::Array(vec![
        Value::from("BlockStored"),
        Value::Array(hashes),
        Value::Nil,
        Value::Array(tokens),
        Value::from(16u32),
        adapter.0.map_or(Value::Nil, Value::from),
        Value::from("GPU"),
        adapter.1.map_or(Value::Nil, Value::from),
    ]);
    let batch = Value::Array(vec![Value::F64(1.0), Value::Array(vec![event]), Value::from(0u32)]);
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &batch).unwrap();
    bytes
}

/// An engine that says the same again and again, numbered for each of its topics.
fn publisher(says: Vec<(&'static str, Vec<u8>)>) -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut socket = PubSocket::new();
            let endpoint = socket.bind("tcp://127.0.0.1:0").await.unwrap();
            sender.send(endpoint.to_string()).unwrap();
            for number in 0u64.. {
                for (topic, batch) in &says {
                    let mut message = ZmqMessage::from(topic.as_bytes().to_vec());
                    message.push_back(number.to_be_bytes().to_vec().into());
                    message.push_back(batch.clone().into());
                    socket.send(message).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    });
    receiver.recv().unwrap()
}

/// Waits until all of the replica's engines are heard.
fn heard(gateway: &Gateway) {
    wait_until("the engines are heard", || {
        let feeds = replicas(gateway)[0]["kv_events"].clone();
        let speaks = |feed: &serde_json::Value| feed["state"] == "exact" || feed["state"] == "degraded";
        feeds.as_array().unwrap().iter().all(speaks)
    });
}

/// Blocks of the prompt that are taken to be there, of how many.
fn cached(gateway: &Gateway, model: &str, tokens: &[u32]) -> String {
    let body = format!("{{\"model\":\"{model}\",\"prompt\":{tokens:?}}}");
    let answer = ask(gateway.address(), "POST", "/v1/completions", &[], &body);
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.decision("cached")
}

/// A gateway in front of one replica, whose table goes on with `replica`.
fn in_front(upstream: &Upstream, models: &str, replica: &str) -> Gateway {
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n{models}\n\
         [[replica]]\nname = \"r0\"\nurl = \"{}\"\n{replica}\n",
        upstream.url()
    );
    let config = Config::parse(&text, "gateway.toml").unwrap_or_else(|error| panic!("{error}"));
    Gateway::start(config, Path::new("."), None).unwrap()
}

#[test]
fn what_an_engine_says_it_holds_counts_before_anything_was_sent_to_it() {
    let upstream = Upstream::start();
    let events = publisher(vec![("", stored((None, None)))]);
    let gateway =
        gateway_with(&[&upstream], "", &format!("kv-events = {{ endpoint = \"{events}\", model = \"m\" }}"));
    heard(&gateway);
    let tokens: Vec<u32> = (1..=40).collect();
    assert_eq!(cached(&gateway, "m", &tokens), "2/2");
    assert_eq!(cached(&gateway, "m", &tokens[1..]), "0/2");
    assert_eq!(cached(&gateway, "batch", &tokens), "0/2", "another model");
    // Of that nobody tells: what was sent is remembered.
    assert_eq!(cached(&gateway, "batch", &tokens), "2/2");
}

#[test]
fn a_replica_with_an_engine_for_each_model_tells_of_each() {
    let upstream = Upstream::start();
    let models = "[[model]]\nname = \"m\"\n[[model]]\nname = \"n\"\nadapters = [\"poet\"]\n\
                  [[model]]\nname = \"m-batch\"\nalias-of = \"m\"";
    // One tells of `m` on a topic of its own, the other of an adapter of `n` and nothing else.
    let one = publisher(vec![("m@", stored((None, None))), ("other@", b"not for us".to_vec())]);
    let two = publisher(vec![("", stored((None, None)))]);
    let replica = format!(
        "models = [\"m\", \"n\", \"m-batch\"]\nkv-events = [{{ endpoint = \"{one}\", topic = \"m@\", model = \"m-batch\" }}, \
         {{ endpoint = \"{two}\", model = \"poet\" }}]"
    );
    let gateway = in_front(&upstream, models, &replica);
    heard(&gateway);
    let tokens: Vec<u32> = (1..=40).collect();
    for (model, held) in [("m", "2/2"), ("m-batch", "2/2"), ("poet", "2/2"), ("n", "0/2")] {
        assert_eq!(cached(&gateway, model, &tokens), held, "{model}");
    }
    let feeds = &replicas(&gateway)[0]["kv_events"];
    for (feed, model) in ["m", "poet"].into_iter().enumerate() {
        assert_eq!((&feeds[feed]["model"], &feeds[feed]["rank"]), (&model.into(), &0.into()), "{feeds}");
        assert_eq!(feeds[feed]["blocks"], 2, "{feeds}");
        let blocks =
            format!("partywall_replica_kv_events_blocks{{replica=\"r0\",model=\"{model}\",rank=\"0\"}}");
        assert_eq!(metric(&gateway, &blocks), 2.0);
    }
}

#[test]
fn adapters_are_told_by_their_names_and_by_their_numbers() {
    let models = "[[model]]\nname = \"m\"\nadapters = [\"poet\", \"clerk\"]";
    let tokens: Vec<u32> = (1..=40).collect();
    for (adapter, held) in [
        ((Some(7), Some("poet")), ["0/2", "2/2", "0/2"]),
        ((Some(2), None), ["0/2", "0/2", "2/2"]),
        ((Some(9), None), ["0/2", "0/2", "0/2"]),
        ((None, None), ["2/2", "0/2", "0/2"]),
    ] {
        let upstream = Upstream::start();
        let events = publisher(vec![("", stored(adapter))]);
        let replica = format!(
            "models = [\"m\"]\nkv-events = {{ endpoint = \"{events}\", adapter-ids = {{ clerk = 2 }} }}"
        );
        let gateway = in_front(&upstream, models, &replica);
        heard(&gateway);
        assert_eq!(["m", "poet", "clerk"].map(|model| cached(&gateway, model, &tokens)), held, "{adapter:?}");
        let unknown =
            "partywall_replica_kv_events_unknown_adapter_total{replica=\"r0\",model=\"m\",rank=\"0\"}";
        assert_eq!(metric(&gateway, unknown) > 0.0, adapter == (Some(9), None), "{adapter:?}");
    }
}

#[test]
fn adapters_of_which_an_engine_does_not_tell_are_remembered() {
    let upstream = Upstream::start();
    let events = publisher(vec![("", stored((None, None)))]);
    let replica =
        format!("models = [\"m\"]\nkv-events = {{ endpoint = \"{events}\", tells-adapters = false }}");
    let gateway = in_front(&upstream, "[[model]]\nname = \"m\"\nadapters = [\"poet\"]", &replica);
    heard(&gateway);
    let tokens: Vec<u32> = (1..=100).collect();
    assert_eq!(["poet", "poet", "m"].map(|model| cached(&gateway, model, &tokens)), ["0/6", "6/6", "2/6"]);
}

/// It was held when it came, and is known to be at its replica as if it had gone at once.
#[test]
fn what_a_held_request_brings_to_a_replica_is_remembered() {
    let upstream = Upstream::start();
    let gateway = gateway_with(&[&upstream], "", "prefill-tokens-per-s = 1");
    let mut first = Client::connect(gateway.address());
    // An hour of prefill, by what the configuration says of the replica.
    let long = format!("{{\"model\":\"m\",\"prompt\":{:?}}}", vec![9; 3_600]);
    first.send("POST", "/v1/completions", &[("x-test", "wait")], long.as_bytes());
    wait_until("the first is there", || upstream.seen().len() == 1);
    let mut second = Client::connect(gateway.address());
    let tokens: Vec<u32> = (1..=40).collect();
    let body = format!("{{\"model\":\"m\",\"prompt\":{tokens:?}}}");
    second.send("POST", "/v1/completions", &[("x-partywall-class", "be")], body.as_bytes());
    wait_until("the second is held", || facts(&gateway)["held_best_effort"] == 1);
    upstream.go();
    assert_eq!([first.answer().unwrap().status, second.answer().unwrap().status], [200, 200]);
    assert_eq!(cached(&gateway, "m", &tokens), "2/2");
}
