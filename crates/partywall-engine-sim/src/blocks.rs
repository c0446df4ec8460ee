//! What is in the blocks of an engine's cache: the model of the engine knows names only, its events have to carry tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use partywall_routing::prefix::PrefixHash;
use partywall_sim::serving::engine::Happened;

use crate::events::{CacheEvent, EngineHash, StoredBlock};
use crate::tokens::{Domain, Token};

/// A prompt whose blocks may come into the cache.
#[derive(Debug, Clone)]
pub struct Prompt {
    /// Its tokens.
    pub tokens: Vec<Token>,
    /// Adapter and salt.
    pub domain: Arc<Domain>,
    /// The identities of its whole blocks.
    pub prefixes: Vec<PrefixHash>,
}

/// The contents of all blocks that are held or may soon be.
#[derive(Debug)]
pub struct Blocks {
    block_tokens: usize,
    /// What makes this engine's hashes differ from another's.
    seed: u64,
    known: BTreeMap<PrefixHash, Content>,
}

#[derive(Debug)]
struct Content {
    hash: EngineHash,
    tokens: Arc<[Token]>,
    domain: Arc<Domain>,
    /// Requests in the engine that have it in their prompt.
    users: u32,
    held: bool,
}

impl Blocks {
    /// Of an engine that holds nothing.
    pub fn new(block_tokens: u32, seed: u64) -> Self {
        Self { block_tokens: block_tokens.max(1) as usize, seed, known: BTreeMap::new() }
    }

    /// A request with this prompt comes into the engine, where its blocks go by `names`: as many as the prompt has whole ones.
    pub fn enter(&mut self, prompt: &Prompt, names: &[PrefixHash]) {
        let blocks = prompt.tokens.chunks_exact(self.block_tokens);
        for ((name, identity), tokens) in names.iter().zip(&prompt.prefixes).zip(blocks) {
            let hash = engine_hash(*identity, self.seed);
            let content = self.known.entry(*name).or_insert_with(|| Content {
                hash,
                tokens: tokens.into(),
                domain: prompt.domain.clone(),
                users: 0,
                held: false,
            });
            content.users += 1;
        }
    }

    /// That request is gone.
    pub fn leave(&mut self, names: &[PrefixHash]) {
        for name in names {
            if let Some(content) = self.known.get_mut(name) {
                content.users -= 1;
                self.drop_unused(*name);
            }
        }
    }

    /// What is to be told of something that happened to the cache.
    pub fn tell(&mut self, happened: &Happened) -> Option<CacheEvent> {
        match happened {
            Happened::Stored { parent, blocks } => {
                let parent = parent.and_then(|parent| self.known.get(&parent)).map(|content| content.hash);
                let mut domain = Arc::default();
                let mut stored = Vec::new();
                for name in blocks {
                    let Some(content) = self.known.get_mut(name) else { continue };
                    content.held = true;
                    domain = content.domain.clone();
                    stored.push(StoredBlock { hash: content.hash, tokens: content.tokens.clone() });
                }
                (!stored.is_empty()).then_some(CacheEvent::Stored { parent, blocks: stored, domain })
            }
            Happened::Removed { blocks } => {
                let mut removed = Vec::new();
                for name in blocks {
                    let Some(content) = self.known.get_mut(name) else { continue };
                    content.held = false;
                    removed.push(content.hash);
                    self.drop_unused(*name);
                }
                (!removed.is_empty()).then_some(CacheEvent::Removed(removed))
            }
            Happened::FirstToken { .. } | Happened::Tokens { .. } | Happened::Finished { .. } => None,
        }
    }

    /// Contents that are kept.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Nothing is kept.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    fn drop_unused(&mut self, name: PrefixHash) {
        if self.known.get(&name).is_some_and(|content| content.users == 0 && !content.held) {
            self.known.remove(&name);
        }
    }
}

/// Another number for every block, by a mapping that takes no two to one: the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
fn engine_hash(identity: PrefixHash, seed: u64) -> EngineHash {
    let mut mixed = identity.0 ^ seed;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    EngineHash(mixed ^ (mixed >> 31))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::{of_text, prefixes};

    fn prompt(text: &str) -> Prompt {
        let tokens = of_text(text);
        let prefixes = prefixes(&Domain::default(), &tokens, 2);
        Prompt { tokens, domain: Arc::default(), prefixes }
    }

    #[test]
    fn contents_stay_while_held_or_used_and_no_longer() {
        let mut blocks = Blocks::new(2, 1);
        let prompt = prompt("abcde");
        let names = prompt.prefixes.clone();
        blocks.enter(&prompt, &names);
        blocks.enter(&prompt, &names);
        let stored = blocks.tell(&Happened::Stored { parent: Some(names[0]), blocks: vec![names[1]] });
        let Some(CacheEvent::Stored { parent: Some(parent), blocks: stored, .. }) = stored else {
            panic!("{stored:?}")
        };
        assert_eq!(stored.iter().map(|block| block.tokens.to_vec()).collect::<Vec<_>>(), [[99, 100]]);
        blocks.leave(&names);
        assert_eq!(blocks.len(), 2);
        blocks.leave(&names);
        assert_eq!(blocks.len(), 1, "only what is held");
        let removed = blocks.tell(&Happened::Removed { blocks: vec![names[1]] });
        assert_eq!(removed, Some(CacheEvent::Removed(vec![stored[0].hash])));
        assert!(blocks.is_empty() && parent != stored[0].hash);
    }

    #[test]
    fn engines_name_the_same_block_differently() {
        let identity = PrefixHash(5);
        assert_ne!(engine_hash(identity, 1), engine_hash(identity, 2));
        assert_ne!(engine_hash(identity, 1).0, identity.0);
    }
}
