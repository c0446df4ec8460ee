//! What a request would push out of a replica's cache.
//!
//! # Problem
//!
//! A cache that is full makes room for a new prompt by dropping what was used longest ago. If that is a prefix that a latency-sensitive
//! request comes back for, it is computed again, in front of everybody who waits there. Whoever places a best-effort prompt of ten thousand
//! tokens should know on which replica it costs least.
//!
//! # Approach
//!
//! The router knows what it sent where, by class, in which order, and what of it was held already: that is enough for a sketch of each
//! cache's order of use, without names. The sketch is a queue of **layers**, the one that goes next first, with the number of blocks of each
//! class. A prompt adds its new blocks as the newest layer; the blocks that it found move there from the layers that they were in, which the
//! router does not know and takes to be all in proportion. What is beyond the capacity goes from the oldest. So the blocks that `n` new ones
//! push out are the oldest `n`, less what room there is.
//!
//! A layer that is not reused is worth nothing to anybody, so what counts is how many latency-sensitive blocks go, times the chance that one
//! is wanted again, which is measured: blocks found for each block of latency-sensitive prompts.
//!
//! # Scenarios
//!
//! - S1: nothing goes while there is room.
//! - S2: what was used longest ago goes first.
//! - S3: what is used again becomes the newest.
//! - S4: best-effort blocks count as nothing.
//! - S5: the sketch stays small whatever the cache holds.

use std::collections::VecDeque;

use partywall_core::tenant::Class;

#[cfg(test)]
mod tests;

/// Layers that a cache's order of use is divided into: prompts that together fill less than one part are one.
const LAYERS: f64 = 64.0;

/// Blocks of each class that were used at about the same time.
#[derive(Debug, Clone, Copy, Default)]
struct Layer {
    latency_sensitive: f64,
    best_effort: f64,
}

impl Layer {
    fn blocks(&self) -> f64 {
        self.latency_sensitive + self.best_effort
    }

    fn of_mut(&mut self, class: Class) -> &mut f64 {
        match class {
            Class::LatencySensitive => &mut self.latency_sensitive,
            Class::BestEffort => &mut self.best_effort,
        }
    }
}

/// A sketch of one cache's order of use.
#[derive(Debug, Clone)]
pub(crate) struct Contents {
    capacity: f64,
    /// The one that goes next first.
    layers: VecDeque<Layer>,
    held: Layer,
}

impl Contents {
    pub(crate) fn new(cache_blocks: u64) -> Self {
        Self { capacity: cache_blocks as f64, layers: VecDeque::new(), held: Layer::default() }
    }

    /// Latency-sensitive blocks that so many new ones push out.
    pub(crate) fn evicted(&self, new_blocks: u64) -> f64 {
        let mut left = (self.held.blocks() + new_blocks as f64 - self.capacity).min(self.held.blocks());
        let mut evicted = 0.0;
        for layer in &self.layers {
            if left <= 0.0 {
                break;
            }
            let part = (left / layer.blocks()).min(1.0);
            evicted += layer.latency_sensitive * part;
            left -= layer.blocks();
        }
        evicted
    }

    /// A prompt of this class uses so many blocks that are held and so many new ones.
    pub(crate) fn used(&mut self, class: Class, found_blocks: u64, new_blocks: u64) {
        let before = *self.held.of_mut(class);
        let found = (found_blocks as f64).min(before);
        if found > 0.0 {
            let stays = 1.0 - found / before;
            for layer in &mut self.layers {
                *layer.of_mut(class) *= stays;
            }
        }
        *self.held.of_mut(class) += new_blocks as f64;
        match self.layers.back_mut().filter(|newest| newest.blocks() < self.capacity / LAYERS) {
            Some(newest) => *newest.of_mut(class) += found + new_blocks as f64,
            None => {
                let mut newest = Layer::default();
                *newest.of_mut(class) = found + new_blocks as f64;
                self.layers.push_back(newest);
            }
        }
        self.drop_beyond_capacity();
    }

    fn drop_beyond_capacity(&mut self) {
        let mut over = self.held.blocks() - self.capacity;
        while over > 0.0
            && let Some(oldest) = self.layers.front_mut()
        {
            let blocks = oldest.blocks();
            let part = if blocks > over { over / blocks } else { 1.0 };
            self.held.latency_sensitive -= oldest.latency_sensitive * part;
            self.held.best_effort -= oldest.best_effort * part;
            if part < 1.0 {
                oldest.latency_sensitive *= 1.0 - part;
                oldest.best_effort *= 1.0 - part;
                break;
            }
            over -= blocks;
            self.layers.pop_front();
        }
    }
}

/// Tokens over which the chance of reuse is averaged: some thousand prompts.
const AVERAGED_TOKENS: f64 = 10_000_000.0;

/// How much of latency-sensitive prompts is found: the chance that a block that is held is wanted again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Reuse {
    found: f64,
    tokens: f64,
}

impl Reuse {
    /// Of a latency-sensitive prompt of so many tokens so many were held.
    pub(crate) fn seen(&mut self, found: u64, tokens: u64) {
        let kept = (1.0 - tokens as f64 / AVERAGED_TOKENS).max(0.0);
        self.found = self.found * kept + found as f64;
        self.tokens = self.tokens * kept + tokens as f64;
    }

    pub(crate) fn chance(&self) -> f64 {
        if self.tokens > 0.0 { self.found / self.tokens } else { 0.0 }
    }
}
