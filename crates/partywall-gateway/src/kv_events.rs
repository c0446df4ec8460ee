//! What engines say about their caches.
//!
//! vLLM and SGLang publish, over ZeroMQ, which blocks they store, evict and clear ([`decode`] knows the forms that this has had), and send
//! again what a subscriber missed. For each of a replica's engines (data-parallel ranks, models) there is a task ([`follow`]) that keeps a subscription up,
//! reads what comes, asks for what is missing as the decider [`Feed`](partywall_routing::feed::Feed) says, and hands batches in order to a
//! [`Sink`]. What they mean for the index is [`Applier`]'s business. Tasks share nothing: an engine that is slow, gone or lying costs
//! its own replica's place in the index and nobody else's.
//!
//! Everything that comes from an engine is bounded before it is kept: frames, messages, events, blocks, names, and what waits for a replay.

use partywall_routing::feed::{Counts, Health};
use partywall_routing::index::{EngineHash, Tier};
use partywall_routing::prefix::Media;
use partywall_routing::replica::ReplicaId;

mod apply;
pub mod decode;
mod msgpack;
mod subscriber;
#[cfg(test)]
mod tests;
mod zmtp;

pub use apply::{Applied, Applier, Owner};
pub use subscriber::{Now, Source, SourceError, follow};
pub use zmtp::MAX_FRAME_BYTES;

/// What is wrong with what an engine sent or how it is reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not MessagePack.
    #[error("not MessagePack: {what} at byte {at}")]
    MessagePack {
        /// Where.
        at: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// A value is not what it has to be.
    #[error("{what} has to be {expected}")]
    Shape {
        /// Which.
        what: &'static str,
        /// What would be right.
        expected: &'static str,
    },
    /// There is more of something than anybody sends.
    #[error("too many {what}: at most {limit}")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// The peer does not speak ZeroMQ as it should.
    #[error("{endpoint} does not speak ZMTP 3: {what}")]
    Protocol {
        /// Who.
        endpoint: String,
        /// What it did.
        what: &'static str,
    },
    /// The connection cannot be made, or broke.
    #[error("{endpoint}: {what}")]
    Connection {
        /// To where.
        endpoint: String,
        /// What the system says.
        what: String,
    },
}

/// What an engine published at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// The engine's time as a number that grows with it; zero where it says none.
    pub mark: u64,
    /// The data-parallel rank that it says it is.
    pub rank: Option<u32>,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Events that could not be understood.
    pub problems: u64,
    /// What was wrong with the first of them.
    pub first_problem: Option<Error>,
}

/// Something that happened in an engine's cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks are there.
    Stored(Stored),
    /// Blocks are gone.
    Removed {
        /// Which.
        hashes: Vec<EngineHash>,
        /// From where.
        tier: Tier,
        /// From which of the engine's groups of layers.
        group: Group,
        /// From a cache that is not this engine's own.
        remote: bool,
    },
    /// Nothing is there any more.
    Cleared,
}

/// Blocks that are there, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// What the engine calls them.
    pub hashes: Vec<EngineHash>,
    /// What it calls the block before the first; nothing at the beginning of a prompt.
    pub parent: Option<EngineHash>,
    /// What is in them, one block after the other. Empty where blocks are copied that the engine has named before.
    pub tokens: Vec<u32>,
    /// Tokens in a block.
    pub block_tokens: u32,
    /// Where they are.
    pub tier: Tier,
    /// The adapter that they were computed with.
    pub lora: Option<Adapter>,
    /// What keeps them apart from others with the same tokens.
    pub cache_salt: Option<String>,
    /// Media, each with the number of the block in which it begins; places are counted from the block's first token.
    pub media: Vec<(u32, Media)>,
    /// For which of the engine's groups of layers.
    pub group: Group,
    /// In a cache that is not this engine's own.
    pub remote: bool,
}

/// An adapter, as an engine tells it from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Adapter {
    /// By the name by which requests ask for it.
    Name(String),
    /// By a number that means nothing outside of the engine.
    Number(u64),
}

/// A group of layers that have a cache of their own. Models with several kinds of attention have several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Group {
    /// Which; nothing where there is only one.
    pub number: Option<u32>,
    /// Whether its blocks hold a prompt's whole beginning, where the engine says what kind it is.
    pub main: Option<bool>,
}

/// Where what engines say goes. Called from many tasks.
pub trait Sink: Send + Sync {
    /// A batch, in order, each once.
    fn batch(&self, replica: ReplicaId, feed: u32, batch: Batch);
    /// Nothing that was said of this cache before is true any more.
    fn clear(&self, replica: ReplicaId, feed: u32);
    /// How the feed is: when that changes, and about once a second.
    fn health(&self, replica: ReplicaId, feed: u32, health: Health, counts: Counts);
}
