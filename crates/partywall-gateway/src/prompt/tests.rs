use proptest::prelude::*;

use super::{Owner, Prompt, Reader};
use crate::template::Template;

/// A tokenizer of words, so that tokens can be counted by eye.
const TOKENIZER: &str = r#"{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
    "pre_tokenizer":{"type":"Whitespace"},"post_processor":null,"decoder":null,
    "model":{"type":"WordLevel","vocab":{"?":0,"a":1,"b":2,"c":3,"user":4,"system":5},"unk_token":"?"}}"#;

const OWNER: Owner<'_> = Owner { model: "m", adapter: None, salt: None };

fn reader(template: Option<&str>) -> Reader {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat_template.jinja");
    let template = template.map(|text| {
        std::fs::write(&file, text).unwrap();
        Template::read(&file).unwrap().unwrap()
    });
    Reader { tokenizer: Some(TOKENIZER.parse().unwrap()), template, block_tokens: 2 }
}

fn bytes() -> Reader {
    Reader { block_tokens: 2, ..Reader::default() }
}

fn completion(reader: &Reader, prompt: &str, owner: Owner<'_>) -> Prompt {
    reader.completion(format!("{{\"prompt\":{prompt}}}").as_bytes(), owner).unwrap()
}

#[test]
fn tokens_are_those_of_the_models_tokenizer() {
    let reader = reader(None);
    let text = completion(&reader, "\"a b c a b\"", OWNER);
    assert_eq!((text.tokens, text.prefixes.len()), (5, 2), "whole blocks only");
    assert_eq!(completion(&reader, "[1,2,3,1,2]", OWNER), text, "given as tokens");
    assert_eq!(completion(&reader, "[\"a b c a b\",\"c c c c\"]", OWNER).prefixes, text.prefixes);
    assert_eq!(completion(&reader, "[[1,2,3,1,2],[3,3]]", OWNER).tokens, 7);
    let other = completion(&reader, "\"a b c b b\"", OWNER);
    assert_eq!((other.prefixes[0], other.prefixes[1] == text.prefixes[1]), (text.prefixes[0], false));
    for owner in [
        Owner { model: "n", ..OWNER },
        Owner { adapter: Some("m"), ..OWNER },
        Owner { salt: Some("m"), ..OWNER },
    ] {
        assert_ne!(completion(&reader, "\"a b c a b\"", owner).prefixes[0], text.prefixes[0]);
    }
}

#[test]
fn messages_go_through_the_models_template() {
    let source = "{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}{% if tools %}{{ tools | length }}{% endif %}";
    let reader = reader(Some(source));
    let chat = |body: &str| reader.chat(body.as_bytes(), OWNER).unwrap();
    let first = chat(r#"{"messages":[{"role":"system","content":"a b c"},{"role":"user","content":"c"}]}"#);
    assert_eq!((first.tokens, first.prefixes.len()), (6, 3));
    let second = chat(r#"{"messages":[{"role":"system","content":"a b c"},{"role":"user","content":"b"}]}"#);
    assert_eq!(first.prefixes[..2], second.prefixes[..2]);
    assert_ne!(first.prefixes[2], second.prefixes[2]);
    // An image counts from the beginning of its message on.
    let image = |url: &str| {
        chat(&format!(
            r#"{{"messages":[{{"role":"system","content":"a b c"}},{{"role":"user","content":[{{"type":"image_url","image_url":{{"url":"{url}"}}}}]}}]}}"#
        ))
    };
    let (one, other) = (image("http://x/1"), image("http://x/2"));
    assert_eq!(one, image("http://x/1"));
    assert_eq!(one.prefixes[..2], other.prefixes[..2]);
    assert_ne!(one.prefixes[2], other.prefixes[2]);
    let refused = Reader { template: None, ..bytes() };
    assert!(refused.chat(br#"{"messages":[1]}"#, OWNER).is_err());
}

#[test]
fn what_is_no_prompt_is_refused() {
    for reader in [reader(None), bytes()] {
        for prompt in ["1", "{}", "[{}]", "[1,\"a\"]", "[-1]", "[null]"] {
            assert!(
                reader.completion(format!("{{\"prompt\":{prompt}}}").as_bytes(), OWNER).is_err(),
                "{prompt}"
            );
        }
        for messages in
            ["1", "{}", "[[]]", "[{\"role\":1}]", "[{\"content\":{}}]", "[{\"content\":[{\"image_url\":1}]}]"]
        {
            assert!(
                reader.chat(format!("{{\"messages\":{messages}}}").as_bytes(), OWNER).is_err(),
                "{messages}"
            );
        }
        assert_eq!(completion(&reader, "[]", OWNER).prefixes, []);
    }
}

proptest! {
    /// Texts that begin alike have equal blocks as far as that goes, and no further.
    #[test]
    fn equal_beginnings_are_equal(common in "[a-z ]{0,60}", one in "[0-9]{1,40}", other in "[A-Z]{1,40}") {
        let chat = |text: String| {
            let body = serde_json::json!({ "messages": [{ "role": "user", "content": text }] });
            bytes().chat(body.to_string().as_bytes(), OWNER).unwrap().prefixes
        };
        let (one, other) = (chat(format!("{common}{one}")), chat(format!("{common}{other}")));
        // The role and two marks stand before the text; a block is of eight bytes.
        let alike = (common.len() + 6) / 8;
        let shared = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
        prop_assert_eq!(shared, alike.min(one.len()).min(other.len()));
    }
}
