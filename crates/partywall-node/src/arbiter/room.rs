//! Room on the link for copies of latency-sensitive tenants that go straight to the driver.
//!
//! # Problem
//!
//! The device gives the copy engine to another process when the one that has it runs out of work there, or after a
//! millisecond. Packets are granted ahead, so that it does not run out. A copy of 64 KiB then waits for a neighbour's packets
//! for up to a millisecond, although it would take 10 us.
//!
//! # Approach
//!
//! Latency-sensitive processes announce such copies in their pages while packets are under way
//! ([`NodeSide::announce`](partywall_shim_api::page::NodeSide)), and the device itself takes an announcement back when the copy is
//! through. As long as there is one, best-effort processes are told to let their packets go one by one: the engine changes hands
//! in the pause between two of them. That costs them about a third of their rate, and only then.
//!
//! An announcement is a claim like any other. One that stands for longer than [`LIMIT`] no longer counts until it is taken back: its copy
//! waits for something else in its stream, or its process lies.
//!
//! # Scenarios
//!
//! - S1: copies are announced while packets are under way in their direction, and packets go one by one while a copy is announced.
//! - S2: best-effort processes announce in vain, and the latency-sensitive ones' own packets are not slowed down.
//! - S3: an announcement that is never taken back counts for a while; the next one counts again.
//! - S4: a process that comes or goes in between is told, or forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use partywall_core::copy_scheduler::Direction;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_shim_api::page::{ANNOUNCEMENTS, Mapped};

use crate::leases::ProcessId;

#[cfg(test)]
mod tests;

/// How long an announcement counts: longer than the work that an interactive request leaves before a copy in its stream.
pub const LIMIT: Nanos = Nanos::from_millis(500);

/// How long packets go one by one after the last announcement was taken back. The device takes it back before the copy's stream is
/// known to be through, and the engine may change hands in between; and small copies often come one after the other.
pub const LINGER: Nanos = Nanos::from_micros(100);

/// Processes by class, and what they have been told.
#[derive(Debug, Default)]
pub struct Room {
    announcing: BTreeMap<ProcessId, Announcing>,
    yielding: BTreeMap<ProcessId, Arc<Mapped>>,
    announce: [bool; 2],
    one_by_one: [bool; 2],
    /// When an announcement was last seen.
    seen: [Nanos; 2],
}

/// A latency-sensitive process.
#[derive(Debug)]
struct Announcing {
    page: Arc<Mapped>,
    /// When each of its announcements was first seen; zero for none, and the largest time for one that no longer counts.
    since: [[Nanos; ANNOUNCEMENTS]; 2],
}

impl Room {
    /// A process has registered.
    pub fn add(&mut self, process: ProcessId, class: Class, page: &Arc<Mapped>) {
        match class {
            Class::LatencySensitive => {
                say(&page.node.announce, self.announce);
                let since = [[Nanos::ZERO; ANNOUNCEMENTS]; 2];
                self.announcing.insert(process, Announcing { page: page.clone(), since });
            }
            Class::BestEffort => {
                say(&page.node.one_by_one, self.one_by_one);
                self.yielding.insert(process, page.clone());
            }
        }
    }

    /// A process is gone.
    pub fn remove(&mut self, process: ProcessId) {
        self.announcing.remove(&process);
        self.yielding.remove(&process);
    }

    /// Whether copies are announced in a direction: packets are under way there, or were a moment ago.
    pub const fn is_announced(&self, direction: Direction) -> bool {
        self.announce[direction as usize]
    }

    /// Whether packets go one by one, in whatever direction.
    pub const fn is_wanted(&self) -> bool {
        self.one_by_one[0] || self.one_by_one[1]
    }

    /// Looks for announcements in a direction in which packets are under way. Asks for the time only if there are any.
    pub fn look(&mut self, direction: Direction, now: impl Fn() -> Nanos) {
        let at = direction as usize;
        if !self.announce[at] {
            self.announce[at] = true;
            self.tell();
        }
        let mut wanted = false;
        for process in self.announcing.values_mut() {
            for (word, since) in process.page.shim.announced.0[at].iter().zip(&mut process.since[at]) {
                if word.load(Ordering::Acquire) == 0 {
                    *since = Nanos::ZERO;
                } else if *since == Nanos::ZERO {
                    *since = now();
                    wanted = true;
                } else {
                    wanted |= *since != Nanos::MAX;
                }
            }
        }
        if wanted {
            self.seen[at] = now();
        } else if self.one_by_one[at] {
            wanted = now().saturating_sub(self.seen[at]) < LINGER;
        }
        if wanted != self.one_by_one[at] {
            self.one_by_one[at] = wanted;
            self.tell();
        }
    }

    /// Announcements that have stood for too long do not count any more.
    pub fn expire(&mut self, now: Nanos) {
        for since in self.announcing.values_mut().flat_map(|process| process.since.as_flattened_mut()) {
            if *since != Nanos::ZERO && *since != Nanos::MAX && now.saturating_sub(*since) > LIMIT {
                *since = Nanos::MAX;
            }
        }
    }

    /// Nothing is under way, and nobody looks until something is.
    pub fn rest(&mut self) {
        if self.announce != [false; 2] || self.one_by_one != [false; 2] {
            (self.announce, self.one_by_one) = ([false; 2], [false; 2]);
            self.tell();
        }
    }

    fn tell(&self) {
        for process in self.announcing.values() {
            say(&process.page.node.announce, self.announce);
        }
        for page in self.yielding.values() {
            say(&page.node.one_by_one, self.one_by_one);
        }
    }
}

fn say(words: &[AtomicU32; 2], values: [bool; 2]) {
    for (word, value) in words.iter().zip(values) {
        word.store(u32::from(value), Ordering::Release);
    }
}
