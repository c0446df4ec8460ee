//! What a prompt begins with, as one number per block.
//!
//! Two prompts share the first `n` blocks of a cache when everything that the keys and values of these blocks depend on is the same: all
//! tokens up to there, the model, its LoRA adapter, the salt with which tenants are kept apart, and the content of images. A
//! [`PrefixHash`] stands for all of that, up to and including its block. So equal hashes mean equal beginnings, and the blocks of a
//! prompt are a path in a tree.
//!
//! The path begins at the [`Identity`]'s root, and each block's hash is XXH3 of the hash before it and what is in the block. Only whole
//! blocks count: engines keep no others. Whoever has no tokenizer takes bytes for tokens: the hashes are then others than an engine's events
//! lead to, but equal beginnings of texts are still equal, which is all that learning from one's own routing needs.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[cfg(test)]
mod tests;

/// A prompt's beginning, up to and including one block. 64 bits of a hash: among 100 million blocks two differ and are taken for
/// equal with a chance of 3 in 10 000; what that costs is one request on a replica that lacks its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrefixHash(pub u64);

/// What a cache's blocks depend on beside their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Identity<'a> {
    /// The model, as it is served.
    pub model: &'a str,
    /// The adapter on top of it.
    pub lora: Option<&'a str>,
    /// What keeps those apart who must not profit from each other's prompts.
    pub cache_salt: Option<&'a str>,
}

/// An image, a sound or a film in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media {
    /// What is in it: see [`content`].
    pub content: u64,
    /// The token at which it begins, counted from the beginning of the prompt.
    pub at: u32,
}

/// Hashes blocks, one behind the other.
#[derive(Debug, Clone)]
pub struct Chain {
    block_tokens: usize,
    last: PrefixHash,
    /// What the next hash is made of: kept so that its memory is.
    bytes: Vec<u8>,
}

/// Each kind of hash has its own seed, so that none can be taken for another.
const ROOT: u64 = 0x7061_7274_7977_616c;
const BLOCK: u64 = ROOT + 1;
const CONTENT: u64 = ROOT + 2;

impl Identity<'_> {
    /// Where the paths of all prompts with this identity begin.
    pub fn root(&self) -> PrefixHash {
        let mut bytes = Vec::new();
        for part in [Some(self.model), self.lora, self.cache_salt] {
            // With its length, and told from an empty one where there is none.
            bytes.extend_from_slice(&part.map_or(0, |part| part.len() as u64 + 1).to_le_bytes());
            bytes.extend_from_slice(part.unwrap_or_default().as_bytes());
        }
        PrefixHash(xxh3_64_with_seed(&bytes, ROOT))
    }
}

/// What stands for the content of media in a prompt: of the bytes, or of a name that the client gives it.
pub fn content(bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, CONTENT)
}

impl Chain {
    /// Goes on behind `parent`, which is an [`Identity::root`] or a block, in blocks of so many tokens (at least one).
    pub fn new(parent: PrefixHash, block_tokens: u32) -> Self {
        Self { block_tokens: block_tokens.max(1) as usize, last: parent, bytes: Vec::new() }
    }

    /// The next block, with the media that begin in it and their places from its first token on. Nothing when it is not a whole block.
    pub fn next(&mut self, tokens: &[u32], media: &[Media]) -> Option<PrefixHash> {
        if tokens.len() != self.block_tokens {
            return None;
        }
        self.bytes.clear();
        self.bytes.extend_from_slice(&self.last.0.to_le_bytes());
        for token in tokens {
            self.bytes.extend_from_slice(&token.to_le_bytes());
        }
        for media in media {
            self.bytes.extend_from_slice(&media.content.to_le_bytes());
            self.bytes.extend_from_slice(&media.at.to_le_bytes());
        }
        self.last = PrefixHash(xxh3_64_with_seed(&self.bytes, BLOCK));
        Some(self.last)
    }
}

/// The whole blocks of a prompt. `media` is in the order of its places.
pub fn blocks(
    identity: &Identity<'_>,
    tokens: &[u32],
    media: &[Media],
    block_tokens: u32,
) -> Vec<PrefixHash> {
    let mut chain = Chain::new(identity.root(), block_tokens);
    let size = block_tokens.max(1) as usize;
    let mut media = media;
    let mut here = Vec::new();
    let block = |(number, tokens): (usize, &[u32])| {
        let start = number * size;
        let inside = media.iter().take_while(|media| (media.at as usize) < start + size).count();
        let (these, rest) = media.split_at(inside);
        media = rest;
        here.clear();
        here.extend(these.iter().map(|media| Media { at: media.at.saturating_sub(start as u32), ..*media }));
        chain.next(tokens, &here)
    };
    tokens.chunks_exact(size).enumerate().map_while(block).collect()
}

/// The whole blocks of a prompt of which only the text is known: its bytes are the tokens.
pub fn blocks_of_text(identity: &Identity<'_>, text: &str, block_bytes: u32) -> Vec<PrefixHash> {
    let mut chain = Chain::new(identity.root(), block_bytes);
    let mut tokens = Vec::new();
    let block = |bytes: &[u8]| {
        tokens.clear();
        tokens.extend(bytes.iter().map(|&byte| u32::from(byte)));
        chain.next(&tokens, &[])
    };
    text.as_bytes().chunks_exact(block_bytes.max(1) as usize).map_while(block).collect()
}
