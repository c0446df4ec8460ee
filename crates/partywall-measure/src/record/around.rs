//! What of a record is about neither cells nor rows themselves: the node around tenants, parts that were merged, figures by name.

use std::collections::BTreeMap;

use partywall_core::guarantee::Status;
use serde::{Deserialize, Serialize};

/// What the node says of a tenant of its: in the runs of a cell, from their beginning to their end.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRecord {
    /// Its name.
    pub tenant: String,
    /// SMs that it was confined to; null where it was not.
    pub sms: Option<u32>,
    /// What was counted, by the names of the node's facts: `held_ns`, `launches`, `squeezed_launches`.
    pub counted: BTreeMap<String, u64>,
    /// What was so at their end, by these names: `graphs_cut`, `slice_ns`.
    pub stood: BTreeMap<String, u64>,
    /// Whether what was promised to it could be enforced; null where nobody knows.
    pub guaranteed: Option<bool>,
    /// Why not.
    pub reasons: Vec<String>,
    /// How launches of best-effort tenants were bounded at their end; null where nothing is decided about launches.
    pub launches: Option<String>,
    /// The longest time from a decision to squeeze it, or to let it go, to its first launch after that, or from when it had something to launch; 0:
    /// there was none.
    pub longest_resize_ms: f64,
    /// How its promise stood at their end, as the node measured it; null without one.
    pub promise: Option<Status>,
}

/// A measurement of several that were merged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartRecord {
    /// [`super::Record::name`].
    pub name: String,
    /// [`super::Record::command`].
    pub command: String,
    /// [`super::Record::started`].
    pub started: String,
    /// [`super::Record::took_s`].
    pub took_s: f64,
    /// [`super::Record::complete`].
    pub complete: bool,
}

/// The figures of a row that are stated elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// [`super::Row::slowdown_p99`].
    pub slowdown_p99: Option<f64>,
    /// [`super::Row::response_slowdown_p99`].
    pub response_slowdown_p99: Option<f64>,
    /// [`super::Row::be_kept`].
    pub be_kept: Option<f64>,
    /// [`super::Row::saturated`].
    pub saturated: bool,
}
