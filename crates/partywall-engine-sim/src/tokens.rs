//! Tokens: a byte is a token, and a block of them has an identity.
//!
//! A model's own tokenizer would make prompts shorter and say nothing more about caches. Here a token of a prompt is a byte of its UTF-8
//! text, with the byte as its id; a prompt may also be given as ids. A chat becomes text by a template of our own, [`CHAT`]: for each
//! message `<|role|>`, a line feed, the content, a line feed; then `<|assistant|>` and a line feed for what comes next.
//!
//! A token of output is a byte as well. The text is made of numbered words, `3fa2:0 3fa2:1 3fa2:2`, where `3fa2` comes from the seed
//! and the prompt: whoever reads a stream can tell whether a piece is missing, comes twice, or belongs to another prompt. Engines with the
//! same seed answer the same prompt alike.
//!
//! A block's identity covers its tokens, all before them, the LoRA adapter and the salt: equal identities, equal keys and values.

use partywall_routing::prefix::PrefixHash;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// How a message of a chat begins, role by role; also how the answer is asked for.
pub const CHAT: (&str, &str) = ("<|", "|>\n");

/// One token's id.
pub type Token = u32;

/// What a prompt's keys and values depend on besides its tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Domain {
    /// The LoRA adapter's name.
    pub lora: Option<String>,
    /// What keeps one tenant's cache from another's.
    pub cache_salt: Option<String>,
}

/// The tokens of a text.
pub fn of_text(text: &str) -> Vec<Token> {
    text.bytes().map(Token::from).collect()
}

/// The tokens of a chat, from role and content of each message.
pub fn of_chat<'a>(messages: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Token> {
    let (open, close) = CHAT;
    let mut text = String::new();
    for (role, content) in messages {
        for part in [open, role, close, content, "\n"] {
            text.push_str(part);
        }
    }
    text.push_str(&[open, "assistant", close].concat());
    of_text(&text)
}

/// The identities of a prompt's whole blocks, in order.
pub fn prefixes(domain: &Domain, tokens: &[Token], block_tokens: u32) -> Vec<PrefixHash> {
    let mut before = domain_seed(domain);
    let mut bytes = Vec::new();
    let blocks = tokens.chunks_exact(block_tokens.max(1) as usize);
    let identity = |block: &[Token]| {
        bytes.clear();
        bytes.extend(block.iter().flat_map(|token| token.to_le_bytes()));
        before = xxh3_64_with_seed(&bytes, before);
        PrefixHash(before)
    };
    blocks.map(identity).collect()
}

/// The same blocks in a cache where nobody looks for them.
pub fn hidden(prefixes: &[PrefixHash], salt: u64) -> Vec<PrefixHash> {
    prefixes.iter().map(|prefix| PrefixHash(xxh3_64_with_seed(&prefix.0.to_le_bytes(), salt))).collect()
}

/// A number that stands for a seed and a prompt, the same wherever it is computed.
pub fn fingerprint(seed: u64, domain: &Domain, tokens: &[Token]) -> u64 {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    xxh3_64_with_seed(&bytes, seed ^ domain_seed(domain))
}

/// Lengths first, so that no two domains read alike; absent and empty differ.
fn domain_seed(domain: &Domain) -> u64 {
    let mut bytes = Vec::new();
    for part in [&domain.lora, &domain.cache_salt] {
        let length = part.as_ref().map_or(u64::MAX, |text| text.len() as u64);
        bytes.extend(length.to_le_bytes());
        bytes.extend(part.iter().flat_map(|text| text.bytes()));
    }
    xxh3_64_with_seed(&bytes, 0)
}

/// The text of an answer, piece by piece.
#[derive(Debug, Clone)]
pub struct Words {
    tag: u16,
    next: u64,
    /// What of the last word was not asked for yet.
    rest: String,
}

impl Words {
    /// The answer to the prompt with this [`fingerprint`].
    pub fn new(fingerprint: u64) -> Self {
        Self { tag: fingerprint as u16, next: 0, rest: String::new() }
    }

    /// The next so many tokens, which are as many bytes, all of them ASCII.
    pub fn take(&mut self, tokens: u32) -> String {
        while self.rest.len() < tokens as usize {
            self.rest += &format!("{:04x}:{} ", self.tag, self.next);
            self.next += 1;
        }
        let rest = self.rest.split_off(tokens as usize);
        std::mem::replace(&mut self.rest, rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    #[test]
    fn a_chat_reads_like_its_template() {
        let tokens = of_chat([("system", "be brief"), ("user", "hello")].into_iter());
        let text: String = tokens.iter().map(|&token| char::from(token as u8)).collect();
        assert_eq!(text, "<|system|>\nbe brief\n<|user|>\nhello\n<|assistant|>\n");
    }

    #[test]
    fn words_are_numbered_and_may_be_cut_anywhere() {
        let whole = Words::new(0xab3f_a201).take(40);
        assert!(whole.starts_with("a201:0 a201:1 a201:2 "), "{whole}");
        let mut words = Words::new(0xab3f_a201);
        let pieces: String = [1, 0, 7, 12, 20].map(|count| words.take(count)).concat();
        assert_eq!(pieces, whole);
    }

    proptest! {
        /// Blocks are alike up to where the prompts differ, and never after.
        #[test]
        fn blocks_know_all_that_is_before_them(tokens: Vec<Token>, at: usize, to: Token, block in 1u32..5) {
            let domain = Domain::default();
            let before = prefixes(&domain, &tokens, block);
            assert_eq!(before.len(), tokens.len() / block as usize);
            let mut other = tokens.clone();
            let index = at % tokens.len().max(1);
            let Some(token) = other.get_mut(index) else { return Ok(()) };
            let differs = *token != to;
            *token = to;
            for (number, (one, two)) in before.iter().zip(prefixes(&domain, &other, block)).enumerate() {
                let touched = differs && index / block as usize <= number;
                assert_eq!(*one != two, touched, "block {number} of {block}, token {index}");
            }
        }

        /// Adapter and salt keep blocks apart, and what one says is not taken for the other.
        #[test]
        fn domains_share_nothing(one in any::<String>(), two in any::<String>()) {
            let tokens = of_text("0123456789abcdef");
            let of = |lora: Option<&str>, salt: Option<&str>| {
                let domain = Domain { lora: lora.map(str::to_owned), cache_salt: salt.map(str::to_owned) };
                prefixes(&domain, &tokens, 16)
            };
            assert_ne!(of(Some(&one), None), of(None, Some(&one)));
            assert_ne!(of(Some(&one), None), of(None, None));
            assert_ne!(of(None, Some(&one)), of(None, None));
            assert_eq!(of(Some(&one), Some(&two)) == of(Some(&two), Some(&one)), one == two);
        }
    }
}
