//! The numbers of event messages, the ring of those that can be replayed, and what goes wrong between the two and a subscriber.
//!
//! Every batch gets the next number, from 0. It goes into a ring of the last so many, and out to subscribers. The faults sit where they do
//! in life: a *dropped*, *duplicated* or *reordered* message is the network's doing, so the ring has it, and a replay mends it. A *gap*
//! is numbers that were given and lost within the engine: no replay has them. A *restart* begins at 0 again with an empty ring, and
//! whoever compares numbers sees them go back.
//!
//! A reordered message waits for the next one and goes after it; until there is a next one, it waits.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::faults::{Fault, Faults};

/// A batch with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// From 0.
    pub number: u64,
    /// The encoded batch.
    pub payload: Bytes,
}

/// Numbers batches and keeps the last of them.
#[derive(Debug)]
pub struct Journal {
    next: u64,
    ring: VecDeque<Numbered>,
    kept: usize,
    held_back: Option<Numbered>,
}

impl Journal {
    /// Begins at 0 and keeps the last `kept` batches.
    pub fn new(kept: usize) -> Self {
        Self { next: 0, ring: VecDeque::new(), kept, held_back: None }
    }

    /// Takes a batch; gives what is to be sent now, in order.
    pub fn publish(&mut self, payload: Bytes, faults: &mut Faults) -> Vec<Numbered> {
        let one = Numbered { number: self.next, payload };
        self.next += 1;
        if self.kept > 0 {
            if self.ring.len() == self.kept {
                self.ring.pop_front();
            }
            self.ring.push_back(one.clone());
        }
        let mut now = Vec::new();
        let earlier = self.held_back.take();
        if faults.strikes("drop-events").is_some() {
        } else if earlier.is_none() && faults.strikes("reorder-events").is_some() {
            self.held_back = Some(one);
        } else {
            if faults.strikes("duplicate-events").is_some() {
                now.push(one.clone());
            }
            now.push(one);
        }
        now.extend(earlier);
        now
    }

    /// Never uses the next `numbers` numbers.
    pub fn skip(&mut self, numbers: u64, faults: &mut Faults) {
        self.next = self.next.saturating_add(numbers);
        faults.count(&Fault::Gap(numbers));
    }

    /// Begins at 0 with nothing, as a new process does.
    pub fn restart(&mut self) {
        *self = Self::new(self.kept);
    }

    /// What is kept from this number on.
    pub fn since(&self, number: u64) -> Vec<Numbered> {
        self.ring.iter().filter(|one| one.number >= number).cloned().collect()
    }

    /// The number that the next batch will get.
    pub fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::proptest;

    fn publish(journal: &mut Journal, faults: &mut Faults, times: usize) -> Vec<u64> {
        let mut sent = Vec::new();
        for _ in 0..times {
            let payload = Bytes::copy_from_slice(&journal.next().to_be_bytes());
            sent.extend(journal.publish(payload, faults).iter().map(|one| one.number));
        }
        sent
    }

    fn with(fault: &str) -> Faults {
        let mut faults = Faults::default();
        faults.set(fault.parse().unwrap());
        faults
    }

    fn numbers(kept: &[Numbered]) -> Vec<u64> {
        kept.iter().map(|one| one.number).collect()
    }

    #[test]
    fn what_the_network_does_a_replay_mends() {
        for (fault, sent) in [
            ("slow:2", vec![0, 1, 2, 3, 4, 5]),
            ("drop-events:0.5", vec![0, 2, 4]),
            ("duplicate-events:0.5", vec![0, 1, 1, 2, 3, 3, 4, 5, 5]),
            ("reorder-events:1", vec![1, 0, 3, 2, 5, 4]),
        ] {
            let (mut journal, mut faults) = (Journal::new(100), with(fault));
            assert_eq!(publish(&mut journal, &mut faults, 6), sent, "{fault}");
            assert_eq!(numbers(&journal.since(0)), [0, 1, 2, 3, 4, 5], "{fault}");
        }
    }

    #[test]
    fn a_gap_stays_one_and_a_restart_begins_at_0() {
        let (mut journal, mut faults) = (Journal::new(100), Faults::default());
        publish(&mut journal, &mut faults, 2);
        journal.skip(3, &mut faults);
        assert_eq!(publish(&mut journal, &mut faults, 1), [5]);
        assert_eq!(numbers(&journal.since(1)), [1, 5]);
        journal.restart();
        assert_eq!((journal.since(0), journal.next()), (Vec::new(), 0));
    }

    proptest! {
        /// The ring has exactly the last so many, each with the payload that it was given.
        #[test]
        fn the_ring_is_bounded(kept in 0usize..8, times in 0usize..30, from in 0u64..30, share in 0.0..1.0) {
            let (mut journal, mut faults) = (Journal::new(kept), with(&format!("drop-events:{share}")));
            publish(&mut journal, &mut faults, times);
            let first = times.saturating_sub(kept) as u64;
            let expected: Vec<u64> = (first.max(from)..times as u64).collect();
            let replay = journal.since(from);
            assert_eq!(numbers(&replay), expected);
            assert!(replay.iter().all(|one| one.payload.as_ref() == one.number.to_be_bytes()));
        }
    }
}
