//! Requests that are remembered.

use std::collections::VecDeque;

use super::WINDOW_REQUESTS;
use crate::measure::{Evidence, Percentile};
use crate::units::Nanos;

/// The last requests, at most [`WINDOW_REQUESTS`].
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    /// End and service time, if that is known, in the order in which they were reported.
    requests: VecDeque<(Nanos, Option<Nanos>)>,
    unknown: u64,
    changed: bool,
}

impl Window {
    pub(super) fn push(&mut self, end: Nanos, took: Option<Nanos>) {
        if self.requests.len() >= WINDOW_REQUESTS {
            self.pop();
        }
        self.requests.push_back((end, took));
        self.unknown += u64::from(took.is_none());
        self.changed = true;
    }

    /// Forgets requests that ended before `oldest`.
    pub(super) fn expire(&mut self, oldest: Nanos) {
        while self.requests.front().is_some_and(|(end, _)| *end < oldest) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some((_, took)) = self.requests.pop_front() {
            self.unknown -= u64::from(took.is_none());
            self.changed = true;
        }
    }

    /// Whether it has since this was last asked.
    pub(super) fn has_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn len(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Requests whose time is known.
    pub(super) fn known(&self) -> u64 {
        self.len() - self.unknown
    }

    pub(super) fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Whether waiting for more requests is in vain: so many overlap that the times of the others say nothing.
    pub(super) fn mostly_overlaps(&self) -> bool {
        self.len() >= 100 && self.unknown > self.len() / 2
    }

    /// When the last request ended.
    pub(super) fn last(&self) -> Option<Nanos> {
        self.requests.back().map(|(end, _)| *end)
    }

    /// Known requests since `oldest` that took longer than `bound`, and all, and those that are not known.
    pub(super) fn above(&self, bound: Nanos, oldest: Nanos) -> (u64, u64, u64) {
        let (mut above, mut all, mut unknown) = (0, 0, 0);
        for (_, took) in self.requests.iter().rev().take_while(|(end, _)| *end >= oldest) {
            all += 1;
            match took {
                Some(took) => above += u64::from(*took > bound),
                None => unknown += 1,
            }
        }
        (above, all, unknown)
    }

    /// When the oldest request ended that took longer than `bound`.
    pub(super) fn first_above(&self, bound: Nanos) -> Option<Nanos> {
        let slow = |(_, took): &&(Nanos, Option<Nanos>)| took.is_some_and(|took| took > bound);
        self.requests.iter().find(slow).map(|(end, _)| *end)
    }

    /// The median and p99. `None` with too few requests for a p99, or where those whose time is not known could be the slow ones.
    pub(super) fn percentiles(&self) -> Option<(Nanos, Nanos)> {
        Some((self.median()?, self.percentile(Percentile::P99)?))
    }

    /// The median, which needs fewer requests.
    pub(super) fn median(&self) -> Option<Nanos> {
        self.percentile(Percentile::P50)
    }

    /// By nearest rank, as [`Percentile::of`] has it.
    pub(super) fn percentile(&self, percentile: Percentile) -> Option<Nanos> {
        // As many unknown as lie beyond the percentile could move it to anywhere.
        let beyond = (1.0 - percentile.fraction()) * self.len() as f64;
        if self.unknown > 0 && self.unknown as f64 > beyond {
            return None;
        }
        let mut times: Vec<Nanos> = self.requests.iter().filter_map(|(_, took)| *took).collect();
        times.sort_unstable();
        percentile.of(&times, Evidence::Shown)
    }
}
