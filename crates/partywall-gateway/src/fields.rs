//! What is read of a body of the OpenAI API: a few fields. The body itself goes on as it came.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::answer::Problem;
use crate::object::Object;

/// The fields that decide where a request goes, and what its answer looks like. A field that stands there twice is an error: which one
/// the replica takes is not known.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields<'a> {
    #[serde(borrow)]
    pub model: Cow<'a, str>,
    #[serde(default)]
    pub stream: Option<bool>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    /// Keeps the caches of tenants apart.
    #[serde(borrow, default)]
    pub cache_salt: Option<Cow<'a, str>>,
    /// What keeps requests together that no prefix does.
    #[serde(borrow, default)]
    pub prompt_cache_key: Option<Cow<'a, str>>,
    #[serde(default)]
    messages: Option<IgnoredAny>,
    #[serde(default)]
    prompt: Option<IgnoredAny>,
}

impl<'a> Fields<'a> {
    /// Of a body.
    pub(crate) fn read(body: &'a [u8]) -> Result<Self, Problem> {
        serde_json::from_slice(body).map(|Object(fields)| fields).map_err(|error| {
            // Not the reader's words about a text: they may hold what the client wrote.
            let place = format!("line {}, column {}", error.line(), error.column());
            let text = error.to_string();
            let what = match error.classify() {
                serde_json::error::Category::Data if text.starts_with("missing field `model`") => {
                    "it has no \"model\"".to_owned()
                }
                serde_json::error::Category::Data if text.starts_with("duplicate field") => {
                    "a field stands there twice".to_owned()
                }
                serde_json::error::Category::Data => "a field has another type than it should".to_owned(),
                serde_json::error::Category::Eof => "it ends too early".to_owned(),
                serde_json::error::Category::Syntax | serde_json::error::Category::Io => {
                    "it is not JSON".to_owned()
                }
            };
            Problem::bad(format!("the body cannot be read at {place}: {what}"))
        })
    }

    /// Tokens that are generated at most.
    pub(crate) fn output_tokens(&self) -> Option<u32> {
        let most = self.max_completion_tokens.or(self.max_tokens)?;
        Some(u32::try_from(most).unwrap_or(u32::MAX))
    }

    /// Whether there is what the path is for.
    pub(crate) const fn has_messages(&self) -> bool {
        self.messages.is_some()
    }

    /// The same.
    pub(crate) const fn has_prompt(&self) -> bool {
        self.prompt.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_nothing_else_matters() {
        let body = br#"{"messages":[{"role":"user","content":"hi"}],"model":"m\u0065","stream":true,"max_tokens":9,"x":{"y":[1,2]}}"#;
        let fields = Fields::read(body).unwrap();
        assert_eq!(
            (fields.model.as_ref(), fields.stream, fields.output_tokens()),
            ("me", Some(true), Some(9))
        );
        assert!(fields.has_messages() && !fields.has_prompt());
        let cases = [
            (&b""[..], "ends too early"),
            (b"{", "ends too early"),
            (b"[]", "another type"),
            (b"{\"model\":1}", "another type"),
            (b"{\"x\":1}", "no \"model\""),
            (b"{\"model\":\"a\",\"model\":\"b\"}", "twice"),
            (b"{\"model\":\"secret", "ends too early"),
            (b"{\"model\":\"a\"} x", "not JSON"),
            (b"{\"model\":\"\xff\"}", "not JSON"),
        ];
        for (body, expected) in cases {
            let problem = Fields::read(body).unwrap_err();
            assert!(problem.message.contains(expected) && !problem.message.contains("secret"), "{problem:?}");
            assert_eq!(problem.status.as_u16(), 400);
        }
        let deep = format!("{{\"model\":\"a\",\"x\":{}", "[".repeat(1 << 20));
        assert!(Fields::read(deep.as_bytes()).is_err());
    }
}
