//! Requests that are not as they should be.

use hyper::Method;
use partywall_engine_sim::api::MAX_BODY;
use partywall_engine_sim::settings::Settings;
use serde_json::{Value, json};

use crate::client::{cached, complete, post, text};
use crate::{Engines, quick, within_reason};

#[test]
fn refusals_have_the_shape_that_clients_know() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let at = engines.http();
        let (status, answer) = post(at, "/v1/completions", &json!({"prompt": "a", "max_tokens": -1})).await;
        assert_eq!((status, &answer["error"]["param"]), (400, &Value::from("max_tokens")));
        assert_eq!(answer["error"]["type"], "invalid_request_error");
        let (status, answer) = post(at, "/v1/completions", &json!({"prompt": "a", "model": "gpt"})).await;
        assert_eq!((status, &answer["error"]["code"]), (404, &Value::from("model_not_found")));
        for (method, path, status) in [
            (Method::GET, "/v1/completions", 405),
            (Method::POST, "/health", 405),
            (Method::GET, "/nothing", 404),
            (Method::POST, "/v1/completions", 400),
            (Method::DELETE, "/fault/hang", 404),
        ] {
            let (seen, body) = text(at, method.clone(), path, "").await;
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(seen, status, "{method} {path}: {body}");
            assert!(body["error"]["message"].is_string(), "{body}");
        }
    });
}

#[test]
fn a_body_without_end_is_refused_and_the_engine_goes_on() {
    within_reason(async {
        let engines = Engines::start(quick()).await;
        let long = "a".repeat(MAX_BODY + 1);
        // The refusal may be lost with a connection that is still being written to.
        if let Ok(open) = crate::client::open(engines.http(), Method::POST, "/v1/completions", &long).await {
            assert_eq!(open.response.status(), 413);
        }
        complete(engines.http(), "still there", 1).await;
    });
}

#[test]
fn models_are_listed_with_their_adapters() {
    within_reason(async {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let settings = Settings { aliases: names(&["batch"]), loras: names(&["poet"]), ..quick() };
        let engines = Engines::start(settings).await;
        let (status, body) = text(engines.http(), Method::GET, "/v1/models", "").await;
        let body: Value = serde_json::from_str(&body).unwrap();
        let names: Vec<&str> =
            body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
        assert_eq!((status, names), (200, vec!["stand-in", "batch", "poet"]));
        assert_eq!(
            (&body["data"][1]["parent"], &body["data"][2]["parent"]),
            (&Value::Null, &"stand-in".into())
        );
        // Another name is the same model, an adapter is not.
        for (model, tokens) in [("stand-in", 0), ("batch", 48), ("poet", 0)] {
            let body = json!({"model": model, "prompt": "m".repeat(64), "max_tokens": 1});
            let (_, answer) = post(engines.http(), "/v1/completions", &body).await;
            assert_eq!((cached(&answer), &answer["model"]), (tokens, &model.into()));
        }
        assert_eq!(text(engines.http(), Method::GET, "/health", "").await, (200, String::new()));
    });
}
