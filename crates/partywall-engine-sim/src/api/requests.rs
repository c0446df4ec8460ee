//! What clients ask for: OpenAI's requests as vLLM takes them, read and checked.
//!
//! Fields that this engine has no use for (temperature, stop, tools) are ignored. What would change the shape of the answer and is not
//! there (several answers, several prompts, pictures) is refused by name.

use std::sync::Arc;

use serde::Deserialize;

use crate::blocks::Prompt;
use crate::replica::Job;
use crate::settings::Settings;
use crate::tokens::{self, Domain, Token};

/// Texts of one embedding request.
pub const MAX_INPUTS: usize = 256;
/// Numbers in an embedding.
pub const MAX_DIMENSIONS: usize = 4096;
/// Numbers in an embedding if nothing is said.
const DIMENSIONS: usize = 16;
/// Tokens of an answer to a completion if nothing is said: OpenAI's default.
const COMPLETION_TOKENS: u32 = 16;
/// Fewest and most tokens of an answer to a chat if nothing is said. Which number it is follows from the prompt, as a model's own end would.
const CHAT_TOKENS: (u32, u32) = (64, 319);
/// Longest salt, in bytes.
const MAX_SALT: usize = 1024;

/// Why a request is refused, as OpenAI's clients expect to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// The HTTP status.
    pub status: u16,
    /// What is wrong and what would be right.
    pub message: String,
    /// The field.
    pub field: Option<&'static str>,
}

impl Wrong {
    fn field(field: &'static str, message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), field: Some(field) }
    }

    /// The body is not what it should be.
    pub fn body(message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), field: None }
    }
}

/// Which kind of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

/// A request for text, checked.
#[derive(Debug)]
pub struct Generate {
    /// Which kind of answer.
    pub kind: Kind,
    /// The model as it was asked for.
    pub model: String,
    /// For the engine.
    pub job: Job,
    /// What the answer's text follows from.
    pub fingerprint: u64,
    /// The answer ends by itself, not at a number that the client chose.
    pub ends_itself: bool,
    /// Token by token.
    pub stream: bool,
    /// The last piece of a stream says how many tokens there were.
    pub include_usage: bool,
}

/// A request for embeddings, checked.
#[derive(Debug)]
pub struct Embed {
    /// The model as it was asked for.
    pub model: String,
    /// For the engine, one for each text, with what the vector follows from.
    pub jobs: Vec<(Job, u64)>,
    /// Numbers in each.
    pub dimensions: usize,
}

#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Input>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    n: Option<i64>,
    cache_salt: Option<String>,
    priority: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct EmbedBody {
    model: Option<String>,
    input: Option<Input>,
    dimensions: Option<i64>,
    cache_salt: Option<String>,
    priority: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
}

/// A prompt, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Input {
    Text(String),
    Tokens(Vec<Token>),
    Texts(Vec<String>),
    TokenLists(Vec<Vec<Token>>),
}

impl Input {
    fn prompts(self) -> Vec<Vec<Token>> {
        match self {
            Self::Text(text) => vec![tokens::of_text(&text)],
            Self::Tokens(tokens) => vec![tokens],
            Self::Texts(texts) => texts.iter().map(|text| tokens::of_text(text)).collect(),
            Self::TokenLists(lists) => lists,
        }
    }
}

/// Reads a request for text.
///
/// # Errors
/// What is wrong, and in which field.
pub fn generate(kind: Kind, body: &[u8], settings: &Settings) -> Result<Generate, Wrong> {
    let body: Body =
        serde_json::from_slice(body).map_err(|error| Wrong::body(format!("not a request: {error}")))?;
    if body.n.is_some_and(|n| n != 1) {
        return Err(Wrong::field("n", "n must be 1: this engine gives one answer"));
    }
    let (model, lora) = model(body.model, settings)?;
    let tokens = match kind {
        Kind::Chat => chat_tokens(body.messages)?,
        Kind::Completion => prompt_tokens(body.prompt)?,
    };
    let domain = Domain { lora, cache_salt: salt(body.cache_salt)? };
    let fingerprint = tokens::fingerprint(settings.seed, &domain, &tokens);
    let asked = body.max_completion_tokens.or(body.max_tokens);
    let room = room(tokens.len() as u64, settings)?;
    let output_tokens = match (asked, kind) {
        (Some(asked), _) => {
            let fits = u32::try_from(asked).ok().filter(|asked| (1..=room).contains(&u64::from(*asked)));
            fits.ok_or_else(|| {
                let message = format!(
                    "max_tokens is {asked}; behind a prompt of {} tokens write 1 to {room}: prompt and answer together have at \
                     most {} tokens",
                    tokens.len(),
                    longest(settings)
                );
                Wrong::field("max_tokens", message)
            })?
        }
        (None, Kind::Completion) => COMPLETION_TOKENS.min(u32::try_from(room).unwrap_or(u32::MAX)),
        (None, Kind::Chat) => {
            let (fewest, most) = CHAT_TOKENS;
            let own = fewest + (fingerprint >> 32) as u32 % (most - fewest + 1);
            own.min(u32::try_from(room).unwrap_or(u32::MAX))
        }
    };
    Ok(Generate {
        kind,
        model,
        job: job(tokens, domain, output_tokens, body.priority, settings),
        fingerprint,
        ends_itself: asked.is_none() && kind == Kind::Chat,
        stream: body.stream.unwrap_or(false),
        include_usage: body.stream_options.and_then(|options| options.include_usage).unwrap_or(false),
    })
}

/// Reads a request for embeddings.
///
/// # Errors
/// What is wrong, and in which field.
pub fn embed(body: &[u8], settings: &Settings) -> Result<Embed, Wrong> {
    let body: EmbedBody =
        serde_json::from_slice(body).map_err(|error| Wrong::body(format!("not a request: {error}")))?;
    let (model, lora) = model(body.model, settings)?;
    let domain = Domain { lora, cache_salt: salt(body.cache_salt)? };
    let dimensions = match body.dimensions {
        None => DIMENSIONS,
        Some(asked) => {
            usize::try_from(asked).ok().filter(|asked| (1..=MAX_DIMENSIONS).contains(asked)).ok_or_else(
                || Wrong::field("dimensions", format!("dimensions is {asked}; write 1 to {MAX_DIMENSIONS}")),
            )?
        }
    };
    let prompts = body.input.map(Input::prompts).unwrap_or_default();
    if prompts.is_empty() || prompts.len() > MAX_INPUTS || prompts.iter().any(Vec::is_empty) {
        return Err(Wrong::field(
            "input",
            format!("input must be 1 to {MAX_INPUTS} texts, none of them empty"),
        ));
    }
    let mut jobs = Vec::new();
    for tokens in prompts {
        room(tokens.len() as u64, settings)?;
        let fingerprint = tokens::fingerprint(settings.seed, &domain, &tokens);
        jobs.push((job(tokens, domain.clone(), 1, body.priority, settings), fingerprint));
    }
    Ok(Embed { model, jobs, dimensions })
}

fn job(
    tokens: Vec<Token>,
    domain: Domain,
    output_tokens: u32,
    priority: Option<i64>,
    settings: &Settings,
) -> Job {
    let prefixes = tokens::prefixes(&domain, &tokens, settings.block_tokens);
    let prompt = Prompt { tokens, domain: Arc::new(domain), prefixes };
    Job { prompt, output_tokens, later: priority.is_some_and(|priority| priority > 0) }
}

/// The model, and the adapter where it is one. Without a name it is the model itself, as vLLM has it.
fn model(asked: Option<String>, settings: &Settings) -> Result<(String, Option<String>), Wrong> {
    let Some(asked) = asked else { return Ok((settings.model.clone(), None)) };
    if asked == settings.model || settings.aliases.contains(&asked) {
        return Ok((asked, None));
    }
    if settings.loras.contains(&asked) {
        return Ok((asked.clone(), Some(asked)));
    }
    let known: Vec<&str> = settings.names().collect();
    // What a client sent comes back in the message, so not all of it.
    let shown: String = asked.chars().take(64).collect();
    let message = format!("there is no model `{shown}`; there is {}", known.join(", "));
    Err(Wrong { status: 404, message, field: Some("model") })
}

fn salt(salt: Option<String>) -> Result<Option<String>, Wrong> {
    match salt {
        Some(salt) if salt.is_empty() || salt.len() > MAX_SALT => {
            Err(Wrong::field("cache_salt", format!("cache_salt must have 1 to {MAX_SALT} bytes")))
        }
        salt => Ok(salt),
    }
}

fn chat_tokens(messages: Option<Vec<Message>>) -> Result<Vec<Token>, Wrong> {
    let messages = messages.filter(|messages| !messages.is_empty());
    let messages =
        messages.ok_or_else(|| Wrong::field("messages", "messages must be a list of at least one"))?;
    let mut texts = Vec::new();
    for Message { role, content } in messages {
        let text = match content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts
                .into_iter()
                .map(|part| match (part.r#type.as_str(), part.text) {
                    ("text", Some(text)) => Ok(text),
                    _ => Err(Wrong::field(
                        "messages",
                        "a part of a message must be a text: this engine sees no pictures",
                    )),
                })
                .collect::<Result<String, Wrong>>()?,
        };
        texts.push((role, text));
    }
    Ok(tokens::of_chat(texts.iter().map(|(role, text)| (role.as_str(), text.as_str()))))
}

fn prompt_tokens(prompt: Option<Input>) -> Result<Vec<Token>, Wrong> {
    let mut prompts = prompt.map(Input::prompts).unwrap_or_default();
    match (prompts.pop(), prompts.is_empty()) {
        (Some(tokens), true) if !tokens.is_empty() => Ok(tokens),
        _ => Err(Wrong::field("prompt", "prompt must be one text, or one list of token ids, and not empty")),
    }
}

/// Tokens of a prompt and its answer together.
fn longest(settings: &Settings) -> u64 {
    let cache = settings.cache_blocks() * u64::from(settings.block_tokens);
    settings.context_tokens.min(cache)
}

/// Tokens that are left for the answer.
fn room(prompt: u64, settings: &Settings) -> Result<u64, Wrong> {
    let longest = longest(settings);
    let room = longest.saturating_sub(prompt);
    if room == 0 {
        let message =
            format!("the prompt has {prompt} tokens; prompt and answer together have at most {longest}");
        return Err(Wrong { status: 400, message, field: None });
    }
    Ok(room)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    fn settings() -> Settings {
        let loras = vec!["poet".to_owned()];
        Settings { model: "m".to_owned(), loras, context_tokens: 100, ..Settings::default() }
    }

    fn chat(body: &str) -> Result<Generate, Wrong> {
        generate(Kind::Chat, body.as_bytes(), &settings())
    }

    fn completion(body: &str) -> Result<Generate, Wrong> {
        generate(Kind::Completion, body.as_bytes(), &settings())
    }

    #[test]
    fn parts_of_a_message_are_one_text() {
        let whole = chat(r#"{"messages":[{"role":"user","content":"hello you"}]}"#).unwrap();
        let parts = r#"{"model":"m","stream":null,"messages":[{"role":"user","content":
            [{"type":"text","text":"hello "},{"type":"text","text":"you"}]}],"temperature":0.5}"#;
        let parts = chat(parts).unwrap();
        assert_eq!(whole.job.prompt.tokens, parts.job.prompt.tokens);
        assert!(whole.ends_itself && !whole.stream);
    }

    #[test]
    fn a_prompt_is_a_text_or_ids() {
        for body in [
            r#"{"prompt":"ab","max_tokens":5}"#,
            r#"{"prompt":["ab"],"max_tokens":5}"#,
            r#"{"prompt":[97,98],"max_tokens":5}"#,
            r#"{"prompt":[[97,98]],"max_completion_tokens":5,"model":"m"}"#,
        ] {
            let request = completion(body).unwrap();
            assert_eq!((request.job.prompt.tokens, request.job.output_tokens), (vec![97, 98], 5), "{body}");
            assert!(!request.ends_itself);
        }
    }

    #[test]
    fn an_adapter_is_a_model_with_blocks_of_its_own() {
        let body = |model: &str| format!(r#"{{"model":"{model}","prompt":"0123456789abcdef"}}"#);
        let (base, poet) = (completion(&body("m")).unwrap(), completion(&body("poet")).unwrap());
        assert_eq!(poet.job.prompt.domain.lora.as_deref(), Some("poet"));
        assert_ne!(base.job.prompt.prefixes, poet.job.prompt.prefixes);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, status, field, words) in [
            ("{", 400, None, "not a request: EOF"),
            ("[]", 400, None, "not a request: "),
            (r#"{"prompt":"a","n":2}"#, 400, Some("n"), "n must be 1"),
            (r#"{"prompt":""}"#, 400, Some("prompt"), "prompt must be one text"),
            (r#"{"prompt":["a","b"]}"#, 400, Some("prompt"), "prompt must be one text"),
            (r#"{"prompt":"a","model":"x"}"#, 404, Some("model"), "there is no model `x`; there is m, poet"),
            (
                r#"{"prompt":"a","max_tokens":0}"#,
                400,
                Some("max_tokens"),
                "max_tokens is 0; behind a prompt of 1 tokens write 1 to 99",
            ),
            (r#"{"prompt":"a","max_tokens":100}"#, 400, Some("max_tokens"), "max_tokens is 100;"),
            (r#"{"prompt":"a","cache_salt":""}"#, 400, Some("cache_salt"), "cache_salt must have"),
        ] {
            let wrong = completion(body).unwrap_err();
            assert_eq!((wrong.status, wrong.field), (status, field), "{body}");
            assert!(wrong.message.starts_with(words), "{body}: {}", wrong.message);
        }
        let long = format!(r#"{{"prompt":"{}"}}"#, "a".repeat(100));
        assert!(completion(&long).unwrap_err().message.contains("together have at most 100"));
        let picture =
            r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        assert_eq!(chat(picture).unwrap_err().field, Some("messages"));
    }

    #[test]
    fn embeddings_are_asked_for_one_or_many() {
        let request = embed(br#"{"input":["a","bc"],"dimensions":3}"#, &settings()).unwrap();
        assert_eq!((request.jobs.len(), request.dimensions), (2, 3));
        for body in [r#"{"input":[]}"#, r#"{"input":["a",""]}"#, r#"{"input":"a","dimensions":0}"#] {
            assert_eq!(embed(body.as_bytes(), &settings()).unwrap_err().status, 400, "{body}");
        }
    }

    proptest! {
        /// Whatever comes, it is answered.
        #[test]
        fn anything_is_read_or_refused(body in any::<Vec<u8>>(), text in any::<String>()) {
            for bytes in [body.as_slice(), text.as_bytes()] {
                let _ = generate(Kind::Chat, bytes, &settings());
                let _ = generate(Kind::Completion, bytes, &settings());
                let _ = embed(bytes, &settings());
            }
            let body = serde_json::json!({"prompt": text, "max_tokens": 1}).to_string();
            let fits = (1..100).contains(&text.len());
            assert_eq!(completion(&body).is_ok(), fits);
        }
    }
}
