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
//! through. Best-effort processes are told how their packets may follow each other ([`Pace`]). The engine changes hands in a pause between
//! two of them, and it takes its time: that of a process which has not used the GPU for some milliseconds takes more than 20 us under
//! time-slicing. So while an announcement is [`FRESH`] no packet follows the one that is on the link, until the announcement is
//! taken back. An older one stands behind something else in its stream: then packets go one by one, with a short pause, at about
//! two thirds of their rate.
//!
//! An announcement is a claim like any other. One that stands for longer than [`LIMIT`] no longer counts until it is taken back: its copy
//! waits for something else in its stream, or its process lies.
//!
//! # Scenarios
//!
//! - S1: copies are announced while packets are under way in their direction; packets stand aside while an announcement is fresh, and go one
//!   by one while it is older.
//! - S2: best-effort processes announce in vain, and the latency-sensitive ones' own packets are not slowed down.
//! - S3: an announcement that is never taken back counts for a while; the next one counts again.
//! - S4: a process that comes or goes in between is told, or forgotten.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use partywall_core::copy_scheduler::Direction;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_shim_api::page::{ANNOUNCEMENTS, Mapped, Pace};

use crate::leases::ProcessId;

#[cfg(test)]
mod tests;

/// How long an announcement counts: longer than the work that an interactive request leaves before a copy in its stream.
pub const LIMIT: Nanos = Nanos::from_millis(500);

/// How long packets stand aside for an announcement: for what is on the link when it comes, twice 28 us at worst with packets of 1.5 MiB on
/// PCIe 5 x16, and for the change of hands.
pub const FRESH: Nanos = Nanos::from_micros(120);

/// How long packets go one by one after the last announcement was taken back. The device takes it back before the copy's stream is
/// known to be through, and the engine may change hands in between; and small copies often come one after the other.
pub const LINGER: Nanos = Nanos::from_micros(100);

/// Processes by class, and what they have been told.
#[derive(Debug, Default)]
pub struct Room {
    announcing: BTreeMap<ProcessId, Announcing>,
    yielding: BTreeMap<ProcessId, Arc<Mapped>>,
    announce: [bool; 2],
    pace: [Pace; 2],
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
                say(&page.node.announce, self.announce.map(u32::from));
                let since = [[Nanos::ZERO; ANNOUNCEMENTS]; 2];
                self.announcing.insert(process, Announcing { page: page.clone(), since });
            }
            Class::BestEffort => {
                say(&page.node.pace, self.pace.map(|pace| pace as u32));
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

    /// Whether packets make room, in whatever direction.
    pub fn is_wanted(&self) -> bool {
        self.pace != [Pace::Ahead; 2]
    }

    /// Looks for announcements in a direction in which packets are under way. Asks for the time only if there are any.
    pub fn look(&mut self, direction: Direction, now: impl Fn() -> Nanos) {
        let at = direction as usize;
        if !self.announce[at] {
            self.announce[at] = true;
            self.tell();
        }
        let (mut youngest, mut wanted) = (Nanos::ZERO, false);
        for process in self.announcing.values_mut() {
            for (word, since) in process.page.shim.announced.0[at].iter().zip(&mut process.since[at]) {
                if word.load(Ordering::Acquire) == 0 {
                    *since = Nanos::ZERO;
                } else if *since == Nanos::ZERO {
                    *since = now();
                }
                if *since != Nanos::ZERO && *since != Nanos::MAX {
                    wanted = true;
                    youngest = youngest.max(*since);
                }
            }
        }
        let pace = if wanted {
            self.seen[at] = now();
            if self.seen[at].saturating_sub(youngest) < FRESH { Pace::Aside } else { Pace::OneByOne }
        } else if self.pace[at] != Pace::Ahead && now().saturating_sub(self.seen[at]) < LINGER {
            Pace::OneByOne
        } else {
            Pace::Ahead
        };
        if pace != self.pace[at] {
            self.pace[at] = pace;
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
        if self.announce != [false; 2] || self.is_wanted() {
            (self.announce, self.pace) = ([false; 2], [Pace::Ahead; 2]);
            self.tell();
        }
    }

    fn tell(&self) {
        for process in self.announcing.values() {
            say(&process.page.node.announce, self.announce.map(u32::from));
        }
        for page in self.yielding.values() {
            say(&page.node.pace, self.pace.map(|pace| pace as u32));
        }
    }
}

fn say(words: &[AtomicU32; 2], values: [u32; 2]) {
    for (word, value) in words.iter().zip(values) {
        word.store(value, Ordering::Release);
    }
}
