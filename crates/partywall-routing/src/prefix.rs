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
