mod decoding;
mod following;
mod indexing;

use partywall_routing::index::{EngineHash, Tier};

use super::{Group, Stored};

/// Blocks of two tokens, called as they are numbered from `first` on.
fn stored(first: u64, parent: Option<u64>, tokens: &[u32]) -> Stored {
    Stored {
        hashes: (first..).take(tokens.len() / 2).map(EngineHash).collect(),
        parent: parent.map(EngineHash),
        tokens: tokens.to_vec(),
        block_tokens: 2,
        tier: Tier::Device,
        lora: None,
        cache_salt: None,
        media: Vec::new(),
        group: Group::default(),
        remote: false,
    }
}
