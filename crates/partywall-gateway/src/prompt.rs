//! What a prompt begins with, read from a request's body: tokens where the model's tokenizer is there, bytes otherwise.
//!
//! With a tokenizer the blocks are those of the engine, so its events fit. Without one they are of bytes: four for each token, which is
//! about what a token has. Both tell equal beginnings from others, which is what routing needs.
//!
//! An image belongs to the beginning with a hash of its URL or of its data. Where in the tokens it stands only the engine knows, which puts
//! any number of them in its place: here it counts from the beginning of its message on.

use std::borrow::Cow;

use minijinja::value::Value;
use partywall_routing::prefix::{Identity, Media, PrefixHash, blocks, content};
use serde::Deserialize;
use tokenizers::Tokenizer;

use crate::answer::Problem;
use crate::object::Object;
use crate::template::Template;
use crate::worker::BYTES_PER_TOKEN;

#[cfg(test)]
mod tests;

/// What a prompt begins with, and how long it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Prompt {
    /// Of whole blocks.
    pub prefixes: Vec<PrefixHash>,
    /// Its length, an estimate where nothing counts tokens.
    pub tokens: u64,
}

/// How a model's prompts are read.
#[derive(Default)]
pub(crate) struct Reader {
    pub tokenizer: Option<Tokenizer>,
    pub template: Option<Template>,
    pub block_tokens: u32,
}

/// Whose cache it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub model: &'a str,
    pub adapter: Option<&'a str>,
    pub salt: Option<&'a str>,
}

#[derive(Deserialize)]
struct CompletionBody<'a> {
    #[serde(borrow)]
    prompt: CompletionPrompt<'a>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CompletionPrompt<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    Tokens(Vec<u32>),
    #[serde(borrow)]
    Texts(Vec<Cow<'a, str>>),
    Many(Vec<Vec<u32>>),
}

#[derive(Deserialize)]
struct ChatBody<'a> {
    #[serde(borrow)]
    messages: Vec<Object<Message<'a>>>,
    #[serde(default)]
    tools: Option<Value>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
    #[serde(default)]
    tool_calls: Option<Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    #[serde(borrow)]
    Parts(Vec<Object<Part<'a>>>),
}

#[derive(Deserialize)]
struct Part<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    image_url: Option<Link<'a>>,
    #[serde(borrow, default)]
    video_url: Option<Link<'a>>,
    #[serde(borrow, default)]
    audio_url: Option<Link<'a>>,
    #[serde(borrow, default)]
    input_audio: Option<Audio<'a>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Link<'a> {
    #[serde(borrow)]
    Plain(Cow<'a, str>),
    Named {
        #[serde(borrow)]
        url: Cow<'a, str>,
    },
}

#[derive(Deserialize)]
struct Audio<'a> {
    #[serde(borrow)]
    data: Cow<'a, str>,
}

/// What a template gets besides.
#[derive(Deserialize)]
struct Options {
    #[serde(default)]
    messages: Value,
    #[serde(default)]
    tools: Value,
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    #[serde(default)]
    chat_template_kwargs: Value,
}

impl Part<'_> {
    /// A hash of what is in it besides text.
    fn media(&self) -> Option<u64> {
        let link = self.image_url.as_ref().or(self.video_url.as_ref()).or(self.audio_url.as_ref());
        let bytes = match (link, &self.input_audio) {
            (Some(Link::Plain(url) | Link::Named { url }), _) => url.as_bytes(),
            (None, Some(audio)) => audio.data.as_bytes(),
            (None, None) => return None,
        };
        Some(content(bytes))
    }
}

impl Message<'_> {
    fn media(&self) -> impl Iterator<Item = u64> {
        let parts = match &self.content {
            Some(Content::Parts(parts)) => parts.as_slice(),
            _ => &[],
        };
        parts.iter().filter_map(|part| part.0.media())
    }
}

impl Reader {
    /// Of the completions API.
    pub(crate) fn completion(&self, body: &[u8], owner: Owner<'_>) -> Result<Prompt, Problem> {
        let body: CompletionBody<'_> = read(body, "prompt")?;
        Ok(match &body.prompt {
            CompletionPrompt::Text(text) => self.text(text, true, &[], owner),
            CompletionPrompt::Tokens(tokens) => self.tokens(tokens, &[], owner),
            // Several prompts are several requests to the engine. The first says where they go; all have to be computed.
            CompletionPrompt::Texts(texts) => {
                let more = texts.iter().skip(1).map(|text| estimated(text.len())).sum::<u64>();
                let first = texts.first().map(|text| self.text(text, true, &[], owner)).unwrap_or_default();
                Prompt { tokens: first.tokens + more, ..first }
            }
            CompletionPrompt::Many(prompts) => {
                let more = prompts.iter().skip(1).map(|tokens| tokens.len() as u64).sum::<u64>();
                let first = prompts.first().map(|tokens| self.tokens(tokens, &[], owner)).unwrap_or_default();
                Prompt { tokens: first.tokens + more, ..first }
            }
        })
    }

    /// Of the chat API.
    pub(crate) fn chat(&self, body: &[u8], owner: Owner<'_>) -> Result<Prompt, Problem> {
        let chat: ChatBody<'_> = read(body, "messages")?;
        let (Some(template), Some(_)) = (&self.template, &self.tokenizer) else {
            return Ok(self.plain(&chat, owner));
        };
        let options: Options = read(body, "messages")?;
        let open = options.add_generation_prompt.unwrap_or(true);
        let render = |messages: &Value, open| {
            template.render(messages, &options.tools, open, &options.chat_template_kwargs)
        };
        let Some(text) = render(&options.messages, open) else {
            // The engine will say what is wrong with them.
            return Ok(Prompt { prefixes: Vec::new(), tokens: estimated(body.len()) });
        };
        let first = chat.messages.iter().position(|message| message.0.media().next().is_some());
        let media: Vec<Media> = match first {
            None => Vec::new(),
            Some(first) => {
                let before: Vec<Value> =
                    options.messages.try_iter().into_iter().flatten().take(first).collect();
                let before = if before.is_empty() { None } else { render(&Value::from(before), false) };
                let before = before.filter(|before| text.starts_with(before.as_str()));
                let at = before.map_or(0, |before| self.count(&before)) as u32;
                let hashes = chat.messages.iter().flat_map(|message| message.0.media());
                hashes.map(|content| Media { content, at }).collect()
            }
        };
        Ok(self.text(&text, false, &media, owner))
    }

    /// Messages of which nothing is known but their text.
    fn plain(&self, chat: &ChatBody<'_>, owner: Owner<'_>) -> Prompt {
        let mut bytes: Vec<u8> = Vec::new();
        let mut media = Vec::new();
        let json = |value: &Value| serde_json::to_vec(value).unwrap_or_default();
        if let Some(tools) = &chat.tools {
            bytes.extend_from_slice(&json(tools));
        }
        for Object(message) in &chat.messages {
            // Bytes that no text has, so that no message looks like two others.
            bytes.push(0xff);
            bytes.extend_from_slice(message.role.as_bytes());
            bytes.push(0xfe);
            match &message.content {
                None => {}
                Some(Content::Text(text)) => bytes.extend_from_slice(text.as_bytes()),
                Some(Content::Parts(parts)) => {
                    for Object(part) in parts {
                        bytes.push(0xfd);
                        bytes.extend_from_slice(part.text.as_deref().unwrap_or_default().as_bytes());
                        let at = bytes.len() as u32 / BYTES_PER_TOKEN as u32;
                        media.extend(part.media().map(|content| Media { content, at }));
                    }
                }
            }
            if let Some(calls) = &message.tool_calls {
                bytes.extend_from_slice(&json(calls));
            }
        }
        self.bytes(&bytes, &media, owner)
    }

    fn text(&self, text: &str, special: bool, media: &[Media], owner: Owner<'_>) -> Prompt {
        let Some(tokenizer) = &self.tokenizer else { return self.bytes(text.as_bytes(), media, owner) };
        match tokenizer.encode_fast(text, special) {
            Ok(encoding) => self.tokens(encoding.get_ids(), media, owner),
            Err(_) => self.bytes(text.as_bytes(), media, owner),
        }
    }

    fn count(&self, text: &str) -> usize {
        let tokenizer = self.tokenizer.as_ref();
        let encoding = tokenizer.and_then(|tokenizer| tokenizer.encode_fast(text, false).ok());
        encoding.map_or(0, |encoding| encoding.len())
    }

    fn tokens(&self, tokens: &[u32], media: &[Media], owner: Owner<'_>) -> Prompt {
        let prefixes = blocks(&owner.identity(), tokens, media, self.block_tokens);
        Prompt { prefixes, tokens: (tokens.len() as u64).max(1) }
    }

    /// Four bytes are a token.
    fn bytes(&self, bytes: &[u8], media: &[Media], owner: Owner<'_>) -> Prompt {
        let token = |bytes: &[u8]| bytes.iter().fold(0, |token, byte| token << 8 | u32::from(*byte));
        let tokens: Vec<u32> = bytes.chunks_exact(BYTES_PER_TOKEN as usize).map(token).collect();
        let prefixes = blocks(&owner.identity(), &tokens, media, self.block_tokens);
        Prompt { prefixes, tokens: estimated(bytes.len()) }
    }
}

impl<'a> Owner<'a> {
    fn identity(self) -> Identity<'a> {
        Identity { model: self.model, lora: self.adapter, cache_salt: self.salt }
    }
}

fn estimated(bytes: usize) -> u64 {
    (bytes as u64 / BYTES_PER_TOKEN).max(1)
}

fn read<'a, T: Deserialize<'a>>(body: &'a [u8], field: &str) -> Result<T, Problem> {
    serde_json::from_slice(body).map(|Object(read)| read).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Problem::bad(format!("at line {line}, column {column} \"{field}\" is not what the API says it is"))
    })
}
