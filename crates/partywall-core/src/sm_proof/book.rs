//! What is known of SM sets, by pairs: a set and another one share no SM; a set with itself has as many SMs as it should.
//!
//! So a layout of sets that was there before, or a part of one, costs nothing; one with a new set costs one proof. What was too
//! busy to tell is tried again a few times, later and later. The book belongs to one MPS daemon: another one begins with an empty book.

use std::collections::BTreeMap;

use super::{ARRIVE, Finding, Subject};
use crate::sm_sets::SmSet;
use crate::units::Nanos;

/// When something that could not be told is tried again, from then on.
pub(super) const AGAIN: [Nanos; 3] = [Nanos::from_secs(2), Nanos::from_secs(10), Nanos::from_secs(60)];

/// What is known of a set among others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is its own.
    Proven,
    /// It has not been looked at yet.
    Open,
    /// It could not be told; why.
    Unclear(String),
    /// It is not its own; why.
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    Good,
    Bad(String),
    Unclear { why: String, tries: usize, again: Option<Nanos> },
}

/// What is known.
#[derive(Debug, Clone, Default)]
pub struct Book {
    /// The lower set first.
    pairs: BTreeMap<(SmSet, SmSet), Known>,
}

fn pair(one: SmSet, other: SmSet) -> (SmSet, SmSet) {
    (one.min(other), one.max(other))
}

impl Book {
    /// How a set stands among all that are in use.
    pub fn standing(&self, set: SmSet, layout: &[SmSet]) -> Standing {
        let (mut open, mut unclear) = (false, None);
        for other in layout.iter().copied().chain([set]) {
            match self.pairs.get(&pair(set, other)) {
                None => open = true,
                Some(Known::Good) => {}
                Some(Known::Bad(why)) => return Standing::Failed(why.clone()),
                Some(Known::Unclear { why, .. }) => unclear = Some(why.clone()),
            }
        }
        match unclear {
            _ if open => Standing::Open,
            Some(why) => Standing::Unclear(why),
            None => Standing::Proven,
        }
    }

    /// What is to be looked at now, of the sets in use; empty when there is nothing.
    pub fn due(&self, layout: &[SmSet], now: Nanos) -> Vec<(SmSet, Subject)> {
        let is_due = |one: SmSet, other: SmSet| match self.pairs.get(&pair(one, other)) {
            None => true,
            Some(Known::Unclear { again, .. }) => again.is_some_and(|at| at <= now),
            Some(_) => false,
        };
        let concerned = layout.iter().filter(|one| layout.iter().any(|other| is_due(**one, *other)));
        let alone = |set: SmSet| self.pairs.get(&(set, set)) != Some(&Known::Good);
        concerned.map(|&set| (set, Subject { sms: set.sms().0, alone: alone(set) })).collect()
    }

    /// When something has to be tried again, of the sets in use.
    pub fn deadline(&self, layout: &[SmSet]) -> Option<Nanos> {
        let retried =
            self.pairs.iter().filter(|((one, other), _)| layout.contains(one) && layout.contains(other));
        let again = retried.filter_map(|(_, known)| match known {
            Known::Unclear { again, .. } => *again,
            Known::Good | Known::Bad(_) => None,
        });
        again.min()
    }

    /// Enters what was found of sets that were due.
    pub fn enter(&mut self, sets: &[SmSet], finding: Finding, now: Nanos) {
        let name = |probe: usize| sets.get(probe).map(ToString::to_string).unwrap_or_default();
        let at = |probe: usize| sets.get(probe).copied();
        match finding {
            Finding::Disjoint => {
                for (index, &one) in sets.iter().enumerate() {
                    for &other in &sets[index..] {
                        self.pairs.insert(pair(one, other), Known::Good);
                    }
                }
            }
            Finding::Larger { probe } => {
                let why =
                    format!("a process that is confined to {} finds room for one block more", name(probe));
                self.bad(at(probe).zip(at(probe)), why, sets, now);
            }
            Finding::Overlap { one, other, sms } => {
                let why = format!(
                    "{} and {} have {sms} SMs in common: blocks on each of them are not there at the same time",
                    name(one),
                    name(other)
                );
                self.bad(at(one).zip(at(other)), why, sets, now);
            }
            Finding::Busy { probe, there } => {
                let whole = at(probe).map_or(0, |set| set.sms().0);
                let why = format!(
                    "busy: {there} of {whole} blocks found an SM of {} within {} ms",
                    name(probe),
                    ARRIVE.0 / 1_000_000
                );
                self.unclear(sets, &why, now);
            }
            Finding::Astray { probe } => {
                let why = format!("blocks on {} did not stay, or did not leave, when told", name(probe));
                self.unclear(sets, &why, now);
            }
        }
    }

    /// Enters that sets that were due could not be looked at.
    pub fn unclear(&mut self, sets: &[SmSet], why: &str, now: Nanos) {
        for (index, &one) in sets.iter().enumerate() {
            for &other in &sets[index..] {
                let key = pair(one, other);
                let tries = match self.pairs.get(&key) {
                    Some(Known::Good | Known::Bad(_)) => continue,
                    Some(Known::Unclear { tries, .. }) => *tries,
                    None => 0,
                };
                let again = AGAIN.get(tries).map(|wait| now.saturating_add(*wait));
                self.pairs.insert(key, Known::Unclear { why: why.to_owned(), tries: tries + 1, again });
            }
        }
    }

    /// Forgets what is not good about a set: a tenant that comes with it is looked at anew.
    pub fn forget(&mut self, set: SmSet) {
        self.pairs.retain(|(one, other), known| (*one != set && *other != set) || *known == Known::Good);
    }

    fn bad(&mut self, which: Option<(SmSet, SmSet)>, why: String, sets: &[SmSet], now: Nanos) {
        // What else was to be found out was not.
        self.unclear(sets, &why, now);
        if let Some((one, other)) = which {
            self.pairs.insert(pair(one, other), Known::Bad(why));
        }
    }
}
