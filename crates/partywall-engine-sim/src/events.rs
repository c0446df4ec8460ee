//! What an engine tells about its cache: batches of events with a number each, published, and kept for who missed them.
//!
//! [`wire`] makes bytes of a batch as vLLM and SGLang do, [`journal`] numbers them and does wrong what it was told to do wrong,
//! [`socket`] sends them on ZMQ.

use std::sync::Arc;

use crate::tokens::{Domain, Token};

pub mod journal;
pub mod socket;
pub mod wire;

/// The engine's own name for a block, as events carry it. Nothing follows from it: another engine, or this one after a restart, names the
/// same tokens otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineHash(pub u64);

/// A block that came into the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredBlock {
    /// What the engine calls it.
    pub hash: EngineHash,
    /// Its tokens, all of the block.
    pub tokens: Arc<[Token]>,
}

/// A change of the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks came into it, each the next one's parent.
    Stored {
        /// What is before the first of them; nothing where it begins a prompt.
        parent: Option<EngineHash>,
        /// At least one.
        blocks: Vec<StoredBlock>,
        /// Adapter and salt of all of them.
        domain: Arc<Domain>,
    },
    /// Blocks went out of it.
    Removed(Vec<EngineHash>),
    /// Everything went out of it.
    Cleared,
}
