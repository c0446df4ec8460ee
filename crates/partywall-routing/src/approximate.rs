//! What replicas hold, learned from what was sent to them.
//!
//! # Problem
//!
//! Not every engine says what it keeps. And one that does says it when a prompt has been computed, not when it was sent: of ten requests
//! that begin alike and come in the same second, the exact index sees nine come to a fleet that holds nothing.
//!
//! # Approach
//!
//! A prompt that was sent to a replica will be in its cache, for a while. So each block of each routed prompt is noted with the replica
//! and the time, and counts for [`Limits::ttl`] from its last use on. The table is bounded; when it is full the block goes that was used
//! the longest ago. A prompt's end counts as used before its beginning, as in an engine, so what goes first leaves no hole.
//!
//! Alone, with a time of two minutes, it stands in for an index. Beside an exact one ([`Predicting`]) it bridges the seconds between a
//! request's routing and its events: the brothers of a request follow it, and what does not turn up in events is soon forgotten.
//!
//! # What follows from it
//!
//! - A1: what was sent to a replica counts for it until the time is over, and again when it is sent again.
//! - A2: the answer is an unbroken beginning.
//! - A3: the table never has more blocks than it may; what goes is what was used the longest ago.
//! - A4: a replica that is gone is forgotten.
//! - A5: beside an index, a replica holds the longer of what both say.

use partywall_core::units::Nanos;

use crate::cached::Cached;
use crate::prefix::PrefixHash;
use crate::replica::ReplicaId;
use crate::table::KeyTable;

#[cfg(test)]
mod tests;

/// How long what was sent to a replica that says nothing is taken to be there.
pub const TTL: Nanos = Nanos::from_secs(120);
/// How long it is taken to be there beside an exact index: longer than a prefill takes, shorter than a mistake should last.
pub const PREDICTED_TTL: Nanos = Nanos::from_secs(5);
/// No entry.
const NONE: u32 = u32::MAX;

/// How much is kept and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Blocks; about 64 bytes each, and 16 more for each replica that has it.
    pub blocks: u32,
    /// How long a block counts after its last use.
    pub ttl: Nanos,
}

impl Default for Limits {
    /// A million blocks, [`TTL`].
    fn default() -> Self {
        Self { blocks: 1 << 20, ttl: TTL }
    }
}

/// What was sent where.
#[derive(Debug, Clone)]
pub struct Approximate {
    limits: Limits,
    by_prefix: KeyTable,
    entries: Vec<Entry>,
    /// The entries from the one used last to the one used the longest ago.
    newest: u32,
    oldest: u32,
    free: u32,
    /// The highest replica that something was sent to, plus one.
    replicas: usize,
}

/// A block.
#[derive(Debug, Clone)]
struct Entry {
    prefix: PrefixHash,
    newer: u32,
    older: u32,
    used: Nanos,
    /// To whom it was sent, and when last.
    sent: Vec<(ReplicaId, Nanos)>,
}

impl Approximate {
    /// Empty.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits: Limits { blocks: limits.blocks.clamp(1, NONE - 1), ..limits },
            by_prefix: KeyTable::default(),
            entries: Vec::new(),
            newest: NONE,
            oldest: NONE,
            free: NONE,
            replicas: 0,
        }
    }

    /// A prompt is sent to a replica.
    pub fn sent(&mut self, replica: ReplicaId, prefixes: &[PrefixHash], now: Nanos) {
        self.replicas = self.replicas.max(replica.index() + 1);
        self.forget_until(now);
        let prefixes = &prefixes[..prefixes.len().min(self.limits.blocks as usize)];
        for &prefix in prefixes.iter().rev() {
            let at = match self.by_prefix.get(prefix.0) {
                Some(at) => {
                    self.unlink(at);
                    at
                }
                None => self.new_entry(prefix),
            };
            let entry = &mut self.entries[at as usize];
            entry.used = now;
            match entry.sent.iter_mut().find(|(of, _)| *of == replica) {
                Some((_, last)) => *last = now,
                None => entry.sent.push((replica, now)),
            }
            self.link(at);
        }
    }

    /// A replica is gone. Costs as much as the table holds.
    pub fn remove_replica(&mut self, replica: ReplicaId) {
        for entry in &mut self.entries {
            entry.sent.retain(|(of, _)| *of != replica);
        }
    }

    /// Blocks that it has, those included whose time is over but which nobody has stumbled over yet.
    pub fn blocks(&self) -> usize {
        self.by_prefix.len()
    }

    /// Forgets what was last used longer ago than counts.
    fn forget_until(&mut self, now: Nanos) {
        while self.oldest != NONE {
            if now.saturating_sub(self.entries[self.oldest as usize].used) <= self.limits.ttl {
                return;
            }
            self.drop_oldest();
        }
    }

    fn new_entry(&mut self, prefix: PrefixHash) -> u32 {
        if self.by_prefix.len() >= self.limits.blocks as usize {
            self.drop_oldest();
        }
        let at = self.free;
        let at = if let Some(entry) = self.entries.get_mut(at as usize) {
            self.free = entry.older;
            entry.prefix = prefix;
            at
        } else {
            let sent = Vec::new();
            self.entries.push(Entry { prefix, newer: NONE, older: NONE, used: Nanos::ZERO, sent });
            self.entries.len() as u32 - 1
        };
        self.by_prefix.put(prefix.0, at);
        at
    }

    fn drop_oldest(&mut self) {
        let at = self.oldest;
        if at == NONE {
            return;
        }
        self.unlink(at);
        let entry = &mut self.entries[at as usize];
        entry.sent.clear();
        entry.older = self.free;
        self.free = at;
        self.by_prefix.forget(entry.prefix.0);
    }

    fn link(&mut self, at: u32) {
        let older = self.newest;
        let entry = &mut self.entries[at as usize];
        (entry.newer, entry.older) = (NONE, older);
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Entry { newer, older, .. } = self.entries[at as usize];
        match self.entries.get_mut(newer as usize) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        match self.entries.get_mut(older as usize) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
    }
}

impl Cached for Approximate {
    fn cached(&self, prefixes: &[PrefixHash], now: Nanos, blocks: &mut Vec<u32>) {
        blocks.clear();
        blocks.resize(self.replicas, 0);
        for (depth, prefix) in prefixes.iter().enumerate() {
            let Some(at) = self.by_prefix.get(prefix.0) else { return };
            let mut some = false;
            for &(replica, last) in &self.entries[at as usize].sent {
                let counts = now.saturating_sub(last) <= self.limits.ttl;
                if let Some(blocks) = blocks.get_mut(replica.index())
                    && *blocks as usize == depth
                    && counts
                {
                    *blocks += 1;
                    some = true;
                }
            }
            if !some {
                return;
            }
        }
    }
}

/// What is known, and what was sent a moment ago.
#[derive(Debug, Clone)]
pub struct Predicting<Known> {
    /// What is known.
    pub known: Known,
    /// What was sent, and is not known yet.
    pub predicted: Approximate,
}

impl<Known: Cached> Cached for Predicting<Known> {
    fn cached(&self, prefixes: &[PrefixHash], now: Nanos, blocks: &mut Vec<u32>) {
        let mut predicted = Vec::new();
        self.predicted.cached(prefixes, now, &mut predicted);
        self.known.cached(prefixes, now, blocks);
        blocks.resize(blocks.len().max(predicted.len()), 0);
        for (blocks, predicted) in blocks.iter_mut().zip(predicted) {
            *blocks = predicted.max(*blocks);
        }
    }
}
