//! What is told of a promise: how it stands, and when it was broken beside whom.

use partywall_core::guarantee::Status;
use partywall_core::units::Nanos;
use serde::{Deserialize, Serialize};

/// A promise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromiseFacts {
    /// How it stands.
    #[serde(flatten)]
    pub status: Status,
    /// When it was broken, the last time first.
    pub history: Vec<BreakFacts>,
}

/// A time in which a promise was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakFacts {
    /// How long ago the first request ended that took too long.
    pub began_ago_ns: Nanos,
    /// How long it lasted, or has lasted.
    pub lasted_ns: Nanos,
    /// Whether it goes on.
    pub goes_on: bool,
    /// Best-effort tenants that were at work meanwhile, the longest first.
    pub by: Vec<Cause>,
}

/// A best-effort tenant that was at work while a promise was broken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cause {
    /// Its name; its number once it is gone.
    pub tenant: String,
    /// For how long it had work on the device, at most: it is looked at from time to time.
    pub time_ns: Nanos,
}
