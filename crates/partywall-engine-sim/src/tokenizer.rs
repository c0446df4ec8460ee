//! The stand-in model's tokenizer and chat template as files, in the formats in which models bring theirs: whoever reads a real model's
//! reads these, and counts the same tokens as the engine.

use serde_json::{Map, Value, json};

use crate::tokens::CHAT;

/// `tokenizer.json`: every byte is a token, its value the id. In the format of Hugging Face's tokenizers, where a byte-level vocabulary
/// spells bytes that are no printable characters with others.
pub fn tokenizer() -> String {
    let vocabulary: Map<String, Value> =
        spelling().iter().enumerate().map(|(byte, spelled)| (spelled.to_string(), byte.into())).collect();
    let bytes =
        json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "vocab": vocabulary,
            "merges": [],
        },
    });
    format!("{file}\n")
}

/// `tokenizer_config.json`: the chat template, which makes the text of [`crate::tokens::of_chat`].
pub fn config() -> String {
    let (open, close) = (CHAT.0, CHAT.1.trim_end());
    // A line feed at the end of a block is dropped by those who render templates, one in quotes is not.
    let template = format!(
        "{{% for message in messages %}}{open}{{{{ message.role }}}}{close}{{{{ '\\n' }}}}\
         {{% if message.content is string %}}{{{{ message.content }}}}\
         {{% elif message.content %}}{{% for part in message.content %}}{{{{ part.text }}}}{{% endfor %}}{{% endif %}}\
         {{{{ '\\n' }}}}{{% endfor %}}{{% if add_generation_prompt %}}{open}assistant{close}{{{{ '\\n' }}}}{{% endif %}}"
    );
    format!("{}\n", json!({"chat_template": template}))
}

/// The character that stands for each byte: itself where it is printable in Latin-1, else one of those from U+0100 on, in order.
fn spelling() -> Vec<char> {
    let mut next = 0x100;
    let spelled = |byte: u8| match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or_default()
        }
    };
    (0..=u8::MAX).map(spelled).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use minijinja::{Environment, context};
    use proptest::prelude::{ProptestConfig, any, proptest};
    use tokenizers::Tokenizer;

    use super::*;
    use crate::tokens::{of_chat, of_text};

    static READ: LazyLock<Tokenizer> = LazyLock::new(|| Tokenizer::from_bytes(tokenizer()).unwrap());

    proptest! {
        // Tokenizers are slow where they are not optimised.
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Who uses the file counts what the engine counts.
        #[test]
        fn the_file_and_the_engine_read_alike(texts: Vec<String>) {
            for text in texts {
                let encoding = READ.encode(text.as_str(), true).unwrap();
                assert_eq!(encoding.get_ids(), of_text(&text), "{text:?}");
            }
        }

        /// Who uses the template makes the engine's text of a chat.
        #[test]
        fn the_template_and_the_engine_make_the_same_of_a_chat(messages in any::<Vec<(String, String)>>()) {
            let config: Value = serde_json::from_str(&config()).unwrap();
            let mut environment = Environment::new();
            environment.set_trim_blocks(true);
            environment.set_lstrip_blocks(true);
            environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
            let template = environment.template_from_str(config["chat_template"].as_str().unwrap()).unwrap();
            let list: Vec<Value> = messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
            let text = template.render(context! { messages => list, add_generation_prompt => true }).unwrap();
            let pairs = messages.iter().map(|(role, content)| (role.as_str(), content.as_str()));
            assert_eq!(of_text(&text), of_chat(pairs));
        }
    }
}
