//! What clients get: OpenAI's answers, whole or in pieces.

use serde_json::{Value, json};

use super::requests::{Generate, Kind, Wrong};
use crate::replica::Progress;
use crate::settings::Settings;
use crate::tokens::Words;

/// The last line of a stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// An answer to one request, while it grows.
#[derive(Debug)]
pub struct Answer {
    kind: Kind,
    id: String,
    created: u64,
    model: String,
    prompt_tokens: usize,
    ends_itself: bool,
    include_usage: bool,
    words: Words,
    /// What stands before and behind the text of a token: the same for all of them, and there are many.
    around: Option<(String, String)>,
}

impl Answer {
    /// To `request`, at a time in seconds since 1970.
    pub fn new(request: &Generate, created: u64) -> Self {
        Self {
            kind: request.kind,
            id: String::new(),
            created,
            model: request.model.clone(),
            prompt_tokens: request.job.prompt.tokens.len(),
            ends_itself: request.ends_itself,
            include_usage: request.include_usage,
            words: Words::new(request.fingerprint),
            around: None,
        }
    }

    /// Calls it what the engine calls the request.
    pub fn name(&mut self, id: &str) {
        let kind = match self.kind {
            Kind::Chat => "chatcmpl",
            Kind::Completion => "cmpl",
        };
        self.id = format!("{kind}-{id}");
    }

    /// All of it, when it has ended.
    pub fn whole(mut self, progress: &Progress) -> Value {
        let text = self.words.take(progress.tokens);
        let (object, mut choice) = match self.kind {
            Kind::Chat => ("chat.completion", json!({"message": {"role": "assistant", "content": text}})),
            Kind::Completion => ("text_completion", json!({"text": text})),
        };
        choice["index"] = 0.into();
        choice["finish_reason"] = self.reason().into();
        let mut answer = self.frame(object, json!([choice]));
        answer["usage"] = usage(self.prompt_tokens, progress);
        answer
    }

    /// What a stream begins with.
    pub fn opening(&self) -> Option<String> {
        match self.kind {
            Kind::Chat => {
                Some(self.piece(json!({"delta": {"role": "assistant", "content": ""}}), Value::Null))
            }
            Kind::Completion => None,
        }
    }

    /// One more token.
    pub fn token(&mut self) -> String {
        let around = self.around.take().unwrap_or_else(|| self.around_a_token());
        // Nothing in a word needs to be escaped.
        let piece = [around.0.as_str(), &self.words.take(1), &around.1].concat();
        self.around = Some(around);
        piece
    }

    fn around_a_token(&self) -> (String, String) {
        let (choice, key) = match self.kind {
            Kind::Chat => (json!({"delta": {"content": ""}}), "\"content\":\""),
            Kind::Completion => (json!({"text": ""}), "\"text\":\""),
        };
        let piece = self.piece(choice, Value::Null);
        // No other field's text has a key with its quotes in it: there they are escaped.
        let place = piece.find(key).map_or(0, |place| place + key.len());
        let (before, behind) = piece.split_at(place);
        (before.to_owned(), behind.to_owned())
    }

    /// What a stream ends with.
    pub fn closing(&self, progress: &Progress) -> String {
        let choice = match self.kind {
            Kind::Chat => json!({"delta": {}}),
            Kind::Completion => json!({"text": ""}),
        };
        let mut text = self.piece(choice, self.reason().into());
        if self.include_usage {
            let mut last = self.frame(self.streamed(), json!([]));
            last["usage"] = usage(self.prompt_tokens, progress);
            text += &event(&last);
        }
        text + DONE
    }

    fn piece(&self, mut choice: Value, finish_reason: Value) -> String {
        choice["index"] = 0.into();
        choice["finish_reason"] = finish_reason;
        event(&self.frame(self.streamed(), json!([choice])))
    }

    fn frame(&self, object: &str, choices: Value) -> Value {
        json!({"id": self.id, "object": object, "created": self.created, "model": self.model, "choices": choices})
    }

    fn streamed(&self) -> &'static str {
        match self.kind {
            Kind::Chat => "chat.completion.chunk",
            Kind::Completion => "text_completion",
        }
    }

    fn reason(&self) -> &'static str {
        if self.ends_itself { "stop" } else { "length" }
    }
}

/// The answer to a request for embeddings.
///
/// One vector of `dimensions` numbers for each fingerprint.
pub fn embeddings(model: &str, fingerprints: &[u64], dimensions: usize, prompt_tokens: usize) -> Value {
    let entry = |(index, fingerprint): (usize, &u64)| {
        let vector = vector(*fingerprint, dimensions);
        json!({"object": "embedding", "index": index, "embedding": vector})
    };
    let data: Vec<Value> = fingerprints.iter().enumerate().map(entry).collect();
    let usage = json!({"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens});
    json!({"object": "list", "data": data, "model": model, "usage": usage})
}

/// A refusal in OpenAI's shape.
pub fn refusal(wrong: &Wrong) -> Value {
    let (kind, code) = match (wrong.status, wrong.field) {
        (404, Some("model")) => ("NotFoundError", Value::from("model_not_found")),
        (400..=499, _) => ("invalid_request_error", Value::Null),
        _ => ("internal_server_error", Value::Null),
    };
    json!({"error": {"message": wrong.message, "type": kind, "param": wrong.field, "code": code}})
}

/// The list of models: every name of the model, and its adapters as its children.
pub fn models(settings: &Settings, created: u64) -> Value {
    let entry = |name: &str, root: &str, parent: Value| {
        json!({"id": name, "object": "model", "created": created, "owned_by": "partywall", "root": root, "parent": parent,
               "max_model_len": settings.context_tokens})
    };
    let model = settings.model.as_str();
    let names = std::iter::once(model).chain(settings.aliases.iter().map(String::as_str));
    let names = names.map(|name| entry(name, model, Value::Null));
    let data: Vec<Value> =
        names.chain(settings.loras.iter().map(|lora| entry(lora, lora, model.into()))).collect();
    json!({"object": "list", "data": data})
}

fn usage(prompt_tokens: usize, progress: &Progress) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": progress.tokens,
        "total_tokens": prompt_tokens + progress.tokens as usize,
        "prompt_tokens_details": {"cached_tokens": progress.cached_tokens},
    })
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A vector of length 1 that follows from a number.
fn vector(fingerprint: u64, dimensions: usize) -> Vec<f64> {
    let mut state = fingerprint;
    let mut vector: Vec<f64> = (0..dimensions)
        .map(|_| {
            // A step of the generator of Knuth's MMIX; its high bits are good enough to tell texts apart.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        })
        .collect();
    let length = vector.iter().map(|number| number * number).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|number| *number /= length);
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::requests::generate;
    use crate::replica::End;

    fn request(kind: Kind, body: &str) -> Generate {
        generate(kind, body.as_bytes(), &Settings::default()).unwrap()
    }

    const PROGRESS: Progress = Progress { cached_tokens: 16, tokens: 5, end: Some(End::Complete) };

    fn events(text: &str) -> Vec<Value> {
        let lines = text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
        lines.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    #[test]
    fn the_pieces_of_a_stream_are_the_whole_answer() {
        // A name that looks like a piece of an answer.
        let settings = Settings { model: r#""content":"","text":""#.to_owned(), ..Settings::default() };
        for (kind, body, content) in [
            (
                Kind::Chat,
                r#"{"messages":[{"role":"user","content":"a"}],"max_tokens":5}"#,
                "/message/content",
            ),
            (
                Kind::Completion,
                r#"{"prompt":"a","max_tokens":5,"stream_options":{"include_usage":true}}"#,
                "/text",
            ),
        ] {
            let request = generate(kind, body.as_bytes(), &settings).unwrap();
            let whole = Answer::new(&request, 7).whole(&PROGRESS);
            let mut answer = Answer::new(&request, 7);
            let mut text = answer.opening().unwrap_or_default();
            (0..5).for_each(|_| text += &answer.token());
            text += &answer.closing(&PROGRESS);
            assert!(text.ends_with(DONE));
            let pieces = events(&text);
            let spoken: String = pieces
                .iter()
                .filter_map(|piece| {
                    let choice = piece["choices"].get(0)?;
                    choice.pointer("/delta/content").or(choice.get("text"))?.as_str().map(str::to_owned)
                })
                .collect();
            assert_eq!(whole["choices"][0].pointer(content).unwrap(), &Value::from(spoken.as_str()));
            assert_eq!(spoken.len(), 5);
            assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 16);
            let reasons: Vec<&Value> =
                pieces.iter().filter_map(|piece| piece["choices"].get(0)?.get("finish_reason")).collect();
            assert_eq!(*reasons.last().unwrap(), "length");
            assert!(reasons.iter().rev().skip(1).all(|reason| reason.is_null()));
            assert_eq!(pieces.last().unwrap().get("usage").is_some(), kind == Kind::Completion);
        }
    }

    #[test]
    fn a_chat_that_nobody_limits_stops_by_itself() {
        let request = request(Kind::Chat, r#"{"messages":[{"role":"user","content":"a"}]}"#);
        let whole = Answer::new(&request, 7).whole(&PROGRESS);
        assert_eq!(whole["choices"][0]["finish_reason"], "stop");
    }

    #[test]
    fn vectors_have_length_1_and_differ() {
        let (one, two) = (vector(1, 16), vector(2, 16));
        let length = one.iter().map(|number| number * number).sum::<f64>();
        assert!((length - 1.0).abs() < 1e-12 && one != two && one == vector(1, 16));
    }
}
