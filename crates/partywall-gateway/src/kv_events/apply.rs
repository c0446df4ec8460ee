//! What a batch means for the index.

use std::collections::BTreeMap;

use partywall_routing::index::{EngineHash, Holder, Index};
use partywall_routing::prefix::{Chain, Identity, Media, PrefixHash};

use super::{Adapter, Batch, Event, Group, Stored};

/// Groups of layers that are told apart by number. An engine has a handful.
const MAX_GROUPS: u32 = 64;

/// Whose blocks an engine's events are about. They name no model; adapters they name, number, or leave out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owner {
    /// The model.
    pub model: String,
    /// The adapter where they do not say any, for engines that have one only.
    pub adapter: Option<String>,
    /// The adapters' names by the numbers that the engine gives them.
    pub adapters: BTreeMap<u64, String>,
}

impl Owner {
    /// What requests name that would find such blocks.
    pub fn name(&self) -> &str {
        self.adapter.as_deref().unwrap_or(&self.model)
    }

    /// The adapter, if any, of blocks for which the engine says this. Nothing where that is a number that stands for none.
    fn adapter<'a>(&'a self, said: Option<&'a Adapter>) -> Option<Option<&'a str>> {
        match said {
            None => Some(self.adapter.as_deref()),
            Some(Adapter::Name(name)) => Some(Some(name)),
            Some(Adapter::Number(number)) => self.adapters.get(number).map(|name| Some(name.as_str())),
        }
    }
}

/// Puts one engine's batches into the index. Keeps what has to be known of the engine to read them.
#[derive(Debug, Clone)]
pub struct Applier {
    holder: Holder,
    owner: Owner,
    block_tokens: u32,
    /// Groups that the engine has called main, and others, as bits.
    main: u64,
    other: u64,
}

/// What became of batches, in events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// In the index.
    pub applied: u64,
    /// Not for it: other groups than main attention, other caches than the engine's own.
    pub ignored: u64,
    /// Not in it, because the engine's blocks have another size than was configured.
    pub other_block_size: u64,
    /// The last such size, in tokens.
    pub block_tokens_seen: Option<u32>,
    /// Not in it, because the engine says an adapter by a number that stands for none.
    pub unknown_adapter: u64,
}

impl Applier {
    /// For an engine whose blocks are these, of so many tokens each.
    pub fn new(holder: Holder, owner: Owner, block_tokens: u32) -> Self {
        Self { holder, owner, block_tokens, main: 0, other: 0 }
    }

    /// Applies a batch.
    pub fn apply(&mut self, index: &mut Index, batch: &Batch) -> Applied {
        let mut applied = Applied::default();
        for event in &batch.events {
            match event {
                Event::Cleared => index.clear(self.holder),
                Event::Removed { hashes, tier, group, remote } => {
                    if *remote || !self.is_main(*group) {
                        applied.ignored += 1;
                        continue;
                    }
                    index.remove(self.holder, *tier, hashes);
                }
                Event::Stored(stored) => {
                    if stored.remote || !self.is_main(stored.group) {
                        applied.ignored += 1;
                        continue;
                    }
                    if stored.block_tokens != self.block_tokens {
                        applied.other_block_size += 1;
                        applied.block_tokens_seen = Some(stored.block_tokens);
                        continue;
                    }
                    let Some(adapter) = self.owner.adapter(stored.lora.as_ref()) else {
                        applied.unknown_adapter += 1;
                        continue;
                    };
                    self.store(index, stored, adapter);
                }
            }
            applied.applied += 1;
        }
        applied
    }

    fn store(&self, index: &mut Index, stored: &Stored, lora: Option<&str>) {
        if stored.tokens.is_empty() {
            index.copy(self.holder, stored.tier, &stored.hashes);
            return;
        }
        let parent = match stored.parent {
            None => {
                let cache_salt = stored.cache_salt.as_deref();
                Some(Identity { model: &self.owner.model, lora, cache_salt }.root())
            }
            Some(parent) => index.prefix(self.holder, parent),
        };
        // Without a parent the index refuses and counts them, whatever they are called.
        let mut chain = Chain::new(parent.unwrap_or(PrefixHash(0)), self.block_tokens);
        let mut media = stored.media.as_slice();
        let blocks: Vec<(EngineHash, PrefixHash)> = stored
            .hashes
            .iter()
            .zip(stored.tokens.chunks_exact(self.block_tokens as usize))
            .zip(0..)
            .map_while(|((&hash, tokens), number)| {
                let here = media.iter().take_while(|(block, _)| *block <= number).count();
                let (inside, rest) = media.split_at(here);
                media = rest;
                let inside: Vec<Media> = inside.iter().map(|(_, media)| *media).collect();
                Some((hash, chain.next(tokens, &inside)?))
            })
            .collect();
        index.store(self.holder, stored.tier, stored.parent, &blocks);
    }

    /// Whether a group's blocks are those that count. What is removed does not say what kind it was: it is what was stored under its
    /// number. Before anything was, the first group is main.
    fn is_main(&mut self, group: Group) -> bool {
        let Some(number) = group.number else { return group.main != Some(false) };
        if number >= MAX_GROUPS {
            return group.main == Some(true);
        }
        let bit = 1 << number;
        match group.main {
            Some(true) => (self.main, self.other) = (self.main | bit, self.other & !bit),
            Some(false) => (self.main, self.other) = (self.main & !bit, self.other | bit),
            None if (self.main | self.other) & bit == 0 => return number == 0,
            None => {}
        }
        self.main & bit != 0
    }
}
