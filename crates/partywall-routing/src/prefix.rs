//! What a prompt begins with, as one number per block.
//!
//! Two prompts share the first `n` blocks of a cache when everything that the keys and values of these blocks depend on is the same: all
//! tokens up to there, the model, its LoRA adapter, the salt with which tenants are kept apart, and the content of images. A
//! [`PrefixHash`] stands for all of that, up to and including its block. So equal hashes mean equal beginnings, and the blocks of a
//! prompt are a path in a tree.

use serde::{Deserialize, Serialize};

/// A prompt's beginning, up to and including one block. 64 bits of a hash: among 100 million blocks two differ and are taken for
/// equal with a chance of 3 in 10 000; what that costs is one request on a replica that lacks its prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PrefixHash(pub u64);

/// Whose prompt it is, and what else its keys and values depend on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Identity<'a> {
    /// The model.
    pub model: &'a str,
    /// Its adapter.
    pub lora: Option<&'a str>,
    /// What keeps tenants' caches apart.
    pub cache_salt: Option<&'a str>,
    /// Images and the like, in their order.
    pub media: &'a [Media],
}

/// Something in a prompt that is no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Media {
    /// How many tokens, or bytes, stand before it.
    pub at: usize,
    /// A hash of its content.
    pub hash: u64,
}

impl Identity<'_> {
    /// Of tokens.
    pub fn tokens(&self, tokens: &[u32], block: u32) -> Vec<PrefixHash> {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        self.chain(&bytes, block as usize, 4)
    }

    /// Of bytes.
    pub fn bytes(&self, bytes: &[u8], block: u32) -> Vec<PrefixHash> {
        self.chain(bytes, block as usize, 1)
    }

    fn chain(&self, bytes: &[u8], block: usize, unit: usize) -> Vec<PrefixHash> {
        let mut root = Vec::new();
        for part in [Some(self.model), self.lora, self.cache_salt] {
            let part = part.map(str::as_bytes);
            root.extend_from_slice(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            root.extend_from_slice(part.unwrap_or_default());
        }
        root.push(unit as u8);
        let mut parent = xxhash_rust::xxh3::xxh3_64(&root);
        let mut media = self.media.iter().peekable();
        let mut chain = Vec::new();
        let mut buffer = Vec::new();
        for (index, piece) in bytes.chunks_exact(block.max(1) * unit).enumerate() {
            buffer.clear();
            buffer.extend_from_slice(&parent.to_le_bytes());
            buffer.extend_from_slice(piece);
            while let Some(one) = media.next_if(|media| media.at < (index + 1) * block) {
                buffer.extend_from_slice(&(one.at as u64).to_le_bytes());
                buffer.extend_from_slice(&one.hash.to_le_bytes());
            }
            parent = xxhash_rust::xxh3::xxh3_64(&buffer);
            chain.push(PrefixHash(parent));
        }
        chain
    }
}
