//! Which SMs each tenant computes on when tenants have SM sets of their own (`green-contexts`).
//!
//! # Problem
//!
//! The driver splits a GPU's SMs into groups of equal size, the same way in every process, and a process can confine itself to
//! any of them. Nothing but agreement keeps two processes off the same group, so one place has to say who gets which. Sets must
//! never overlap, tenants come and go in any order, and a set that was handed out cannot be moved: streams and graphs of the
//! tenant stand on it.
//!
//! # Approach
//!
//! Groups lie on a line, and a set is a run of neighbours on it: three numbers say where a tenant computes, and neighbours on
//! the line share the most of the chip. Latency-sensitive tenants are placed from the low end, best-effort ones from the high
//! end, each in the first gap that is long enough. So the two classes leave one gap between them for as long as tenants of
//! one class leave none behind, and what is free stays in one piece.
//!
//! Nothing is moved and nothing shrunk: a tenant that does not fit is refused, and is told what is free. Its set is free again
//! when the tenant is gone, not before: one that is about to be started again keeps its place.
//!
//! # Units
//!
//! A share in SMs is rounded up to whole groups, because it is a demand; a share in per cent is rounded down, as MPS does, so
//! that shares of 60 and 40 per cent fit beside each other. No set is empty.
//!
//! # Scenarios (the tests bear these names)
//!
//! - S1: classes start at opposite ends, and each takes the first gap that is long enough.
//! - S2: what does not fit is refused with what is free, and changes nothing.
//! - S3: a set that is given back is used again.
//! - S4: sets that were handed out before are taken over, unless they overlap or lie elsewhere.
//! - S5: shares become groups.
//! - S6: a squeezed set lies at the end of the tenant's own, or of the line where it has none.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::tenant::{Class, Share, TenantId};
use crate::units::SmCount;

/// The groups of a GPU, as the driver splits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// How many there are.
    pub groups: u32,
    /// SMs of each.
    pub sms_per_group: u32,
}

/// A run of neighbouring groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SmSet {
    /// The first group, from 0.
    pub first: u32,
    /// How many groups; at least one.
    pub groups: u32,
    /// SMs of each.
    pub sms_per_group: u32,
}

/// Why a tenant has no set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SmSetError {
    /// The GPU is smaller than what was asked for.
    #[error("{asked} SMs were asked for, and tenants of this GPU can have {whole} SMs")]
    TooLarge {
        /// SMs asked for.
        asked: u32,
        /// SMs in groups.
        whole: u32,
    },
    /// A part of a tenant's SMs is more than they are.
    #[error("{asked} SMs were asked for, and there are {own} SMs for it")]
    Beyond {
        /// SMs asked for.
        asked: u32,
        /// SMs that the tenant has.
        own: u32,
    },
    /// There is no gap that is long enough.
    #[error("{asked} SMs side by side are not free; {}", free_text(.free))]
    NoRoom {
        /// SMs that it would take, in whole groups.
        asked: u32,
        /// The gaps, from the low end.
        free: Vec<SmSet>,
    },
    /// It overlaps another one, or is not of this GPU.
    #[error("{set} cannot be had: {why}")]
    Stale {
        /// The set.
        set: SmSet,
        /// What is wrong with it.
        why: String,
    },
}

fn free_text(free: &[SmSet]) -> String {
    match free {
        [] => "none is".to_owned(),
        [only] => format!("free are {only}"),
        several => {
            let several: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("free are {}", several.join(" and "))
        }
    }
}

impl Line {
    /// SMs of all groups: no more than the device has.
    pub const fn sms(self) -> SmCount {
        SmCount(self.groups.saturating_mul(self.sms_per_group))
    }

    /// The groups that a share takes; at least one.
    ///
    /// # Errors
    /// [`SmSetError::TooLarge`] for more than there is.
    pub fn groups_of(self, share: Share) -> Result<u32, SmSetError> {
        let groups = match share {
            Share::Sms(SmCount(sms)) => sms.div_ceil(self.sms_per_group.max(1)),
            Share::Percent(_) => share.of(self.sms()).0 / self.sms_per_group.max(1),
        };
        if groups > self.groups {
            let asked = if let Share::Sms(SmCount(sms)) = share { sms } else { groups * self.sms_per_group };
            return Err(SmSetError::TooLarge { asked, whole: self.sms().0 });
        }
        Ok(groups.max(1))
    }
}

impl Line {
    /// The set that is left to a tenant while it is squeezed: the last groups of its own, or of the line where it has all. So best-effort
    /// tenants without sets keep away from latency-sensitive ones, which have the low end; among each other they share it.
    ///
    /// # Errors
    /// [`SmSetError::Beyond`] for more than the tenant has.
    pub fn squeezed(self, own: Option<SmSet>, share: Share) -> Result<SmSet, SmSetError> {
        let own = own.unwrap_or(SmSet { first: 0, groups: self.groups, sms_per_group: self.sms_per_group });
        let of_own = Self { groups: own.groups, ..self };
        let groups = of_own.groups_of(share).map_err(|error| match error {
            SmSetError::TooLarge { asked, whole } => SmSetError::Beyond { asked, own: whole },
            other => other,
        })?;
        Ok(SmSet { first: own.end() - groups, groups, ..own })
    }
}

impl SmSet {
    /// Its SMs.
    pub const fn sms(self) -> SmCount {
        SmCount(self.groups.saturating_mul(self.sms_per_group))
    }

    /// The group behind its last.
    const fn end(self) -> u32 {
        self.first.saturating_add(self.groups)
    }

    const fn overlaps(self, other: Self) -> bool {
        self.first < other.end() && other.first < self.end()
    }
}

/// `SMs 0-79`: positions on the line of groups. The numbers that a kernel reads may be others.
impl fmt::Display for SmSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = u64::from(self.first) * u64::from(self.sms_per_group);
        let end = first + u64::from(self.sms().0);
        write!(f, "SMs {first}-{}", end.saturating_sub(1).max(first))
    }
}

/// Who has which groups.
#[derive(Debug, Clone)]
pub struct SmSets {
    line: Line,
    placed: BTreeMap<TenantId, SmSet>,
}

impl SmSets {
    /// Of a GPU that is all free.
    pub const fn new(line: Line) -> Self {
        Self { line, placed: BTreeMap::new() }
    }

    /// The groups there are.
    pub const fn line(&self) -> Line {
        self.line
    }

    /// The set of a tenant, if it has one.
    pub fn of(&self, tenant: TenantId) -> Option<SmSet> {
        self.placed.get(&tenant).copied()
    }

    /// Gives a tenant its set. One that has a set gets another in its place, or keeps it when there is none.
    ///
    /// # Errors
    /// When its share is more than there is, or more than is free in one piece; nothing has changed then.
    pub fn place(&mut self, tenant: TenantId, class: Class, share: Share) -> Result<SmSet, SmSetError> {
        let groups = self.line.groups_of(share)?;
        let former = self.placed.remove(&tenant);
        let gaps = self.gaps();
        let fits = |gap: &&SmSet| gap.groups >= groups;
        let first = match class {
            Class::LatencySensitive => gaps.iter().find(fits).map(|gap| gap.first),
            Class::BestEffort => gaps.iter().rev().find(fits).map(|gap| gap.end() - groups),
        };
        let Some(first) = first else {
            self.placed.extend(former.map(|set| (tenant, set)));
            let asked = groups * self.line.sms_per_group;
            return Err(SmSetError::NoRoom { asked, free: gaps });
        };
        let set = SmSet { first, groups, sms_per_group: self.line.sms_per_group };
        self.placed.insert(tenant, set);
        Ok(set)
    }

    /// Takes over a set that a tenant was given before.
    ///
    /// # Errors
    /// When it overlaps another tenant's or is none of this GPU's; nothing has changed then.
    pub fn restore(&mut self, tenant: TenantId, set: SmSet) -> Result<(), SmSetError> {
        let Line { groups, sms_per_group } = self.line;
        let stale = |why: String| Err(SmSetError::Stale { set, why });
        if set.groups == 0 || set.sms_per_group != sms_per_group || set.end() > groups {
            return stale(format!("this GPU has {groups} groups of {sms_per_group} SMs"));
        }
        match self.placed.iter().find(|(other, taken)| **other != tenant && taken.overlaps(set)) {
            Some((other, taken)) => stale(format!("{other} has {taken}")),
            None => {
                self.placed.insert(tenant, set);
                Ok(())
            }
        }
    }

    /// The tenant is gone: its groups are free. Says which, if it had any.
    pub fn free(&mut self, tenant: TenantId) -> Option<SmSet> {
        self.placed.remove(&tenant)
    }

    /// What nobody has, from the low end.
    fn gaps(&self) -> Vec<SmSet> {
        let Line { groups, sms_per_group } = self.line;
        let mut taken: Vec<SmSet> = self.placed.values().copied().collect();
        taken.sort_by_key(|set| set.first);
        let (mut gaps, mut at) = (Vec::new(), 0);
        for (first, next) in taken.iter().map(|set| (set.first, set.end())).chain([(groups, groups)]) {
            if first > at {
                gaps.push(SmSet { first: at, groups: first - at, sms_per_group });
            }
            at = next.max(at);
        }
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const H200: Line = Line { groups: 66, sms_per_group: 2 };

    fn place(sets: &mut SmSets, tenant: u32, class: Class, sms: u32) -> Result<String, String> {
        let placed = sets.place(TenantId(tenant), class, Share::Sms(SmCount(sms)));
        placed.map(|set| set.to_string()).map_err(|error| error.to_string())
    }

    fn shows(text: &str) -> Result<String, String> {
        Ok(text.to_owned())
    }

    #[test]
    fn s1_classes_start_at_opposite_ends_and_take_the_first_gap() {
        let mut sets = SmSets::new(H200);
        use Class::{BestEffort, LatencySensitive};
        assert_eq!(place(&mut sets, 1, LatencySensitive, 20), shows("SMs 0-19"));
        assert_eq!(place(&mut sets, 2, BestEffort, 60), shows("SMs 72-131"));
        assert_eq!(place(&mut sets, 3, LatencySensitive, 10), shows("SMs 20-29"));
        assert_eq!(place(&mut sets, 4, BestEffort, 10), shows("SMs 62-71"));
        sets.free(TenantId(1));
        sets.free(TenantId(2));
        assert_eq!(
            place(&mut sets, 5, LatencySensitive, 22),
            shows("SMs 30-51"),
            "too long for the first gap"
        );
        assert_eq!(place(&mut sets, 6, BestEffort, 4), shows("SMs 128-131"));
        assert_eq!(place(&mut sets, 7, LatencySensitive, 2), shows("SMs 0-1"));
    }

    #[test]
    fn s2_what_does_not_fit_is_refused_with_what_is_free() {
        let mut sets = SmSets::new(H200);
        let be = Class::BestEffort;
        for (tenant, sms) in [(1, 40), (2, 40), (3, 40)] {
            place(&mut sets, tenant, be, sms).unwrap();
        }
        sets.free(TenantId(2));
        let error = place(&mut sets, 4, be, 42).unwrap_err();
        assert_eq!(error, "42 SMs side by side are not free; free are SMs 0-11 and SMs 52-91");
        let error = place(&mut sets, 1, be, 82).unwrap_err();
        assert!(error.contains("SMs 52-131"), "what it has itself counts as free: {error}");
        assert_eq!(sets.of(TenantId(1)).unwrap().to_string(), "SMs 92-131", "it keeps what it has");
        let error = place(&mut sets, 4, be, 133).unwrap_err();
        assert_eq!(error, "133 SMs were asked for, and tenants of this GPU can have 132 SMs");
        place(&mut sets, 5, be, 40).unwrap();
        place(&mut sets, 6, be, 12).unwrap();
        assert!(place(&mut sets, 7, be, 1).unwrap_err().ends_with("none is"));
    }

    #[test]
    fn s6_a_squeezed_set_is_at_the_end_of_what_the_tenant_has() {
        let squeezed = |own, share| H200.squeezed(own, share).map(|set| set.to_string());
        let own = Some(SmSet { first: 26, groups: 33, sms_per_group: 2 });
        assert_eq!(squeezed(None, Share::Sms(SmCount(16))), Ok("SMs 116-131".to_owned()));
        assert_eq!(squeezed(own, Share::Sms(SmCount(15))), Ok("SMs 102-117".to_owned()));
        assert_eq!(
            squeezed(own, Share::Percent(50)),
            Ok("SMs 86-117".to_owned()),
            "of its own, rounded down"
        );
        assert_eq!(squeezed(own, Share::Percent(100)), Ok("SMs 52-117".to_owned()));
        let refused = squeezed(own, Share::Sms(SmCount(67))).unwrap_err().to_string();
        assert_eq!(refused, "67 SMs were asked for, and there are 66 SMs for it");
    }

    #[test]
    fn s3_a_set_that_is_given_back_is_used_again() {
        let mut sets = SmSets::new(H200);
        let first = place(&mut sets, 1, Class::LatencySensitive, 132);
        assert!(place(&mut sets, 2, Class::BestEffort, 2).is_err());
        assert_eq!(sets.free(TenantId(1)).map(|set| set.sms()), Some(SmCount(132)));
        assert_eq!(sets.free(TenantId(1)), None);
        assert_eq!(place(&mut sets, 2, Class::BestEffort, 132), first);
    }

    #[test]
    fn s4_sets_are_taken_over_unless_they_overlap_or_lie_elsewhere() {
        let set = |first, groups| SmSet { first, groups, sms_per_group: 2 };
        let mut sets = SmSets::new(H200);
        sets.restore(TenantId(1), set(10, 20)).unwrap();
        sets.restore(TenantId(1), set(10, 20)).unwrap();
        let overlapping = sets.restore(TenantId(2), set(29, 1)).unwrap_err().to_string();
        assert_eq!(overlapping, "SMs 58-59 cannot be had: tenant 1 has SMs 20-59");
        let stranger = SmSet { sms_per_group: 8, ..set(0, 1) };
        for wrong in [set(60, 7), set(0, 0), set(u32::MAX, u32::MAX), stranger] {
            let error = sets.restore(TenantId(2), wrong).unwrap_err().to_string();
            assert!(error.contains("66 groups of 2 SMs"), "{error}");
        }
        assert_eq!(place(&mut sets, 3, Class::LatencySensitive, 21), shows("SMs 60-81"));
    }

    #[test]
    fn s5_shares_become_groups() {
        let line = Line { groups: 16, sms_per_group: 8 };
        let groups = |share| line.groups_of(share).unwrap();
        assert_eq!([1, 8, 9, 128].map(|sms| groups(Share::Sms(SmCount(sms)))), [1, 1, 2, 16]);
        assert_eq!([1, 50, 60, 100].map(|percent| groups(Share::Percent(percent))), [1, 8, 9, 16]);
        assert!(line.groups_of(Share::Sms(SmCount(129))).is_err());
    }

    #[derive(Debug, Clone)]
    enum Step {
        Place(u32, bool, u32),
        Restore(u32, u32, u32),
        Free(u32),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0u32..6, any::<bool>(), 0u32..150).prop_map(|(tenant, ls, sms)| Step::Place(tenant, ls, sms)),
            (0u32..6, 0u32..70, 0u32..70)
                .prop_map(|(tenant, first, groups)| Step::Restore(tenant, first, groups)),
            (0u32..6).prop_map(Step::Free),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn sets_never_overlap_and_lie_on_the_gpu(steps in proptest::collection::vec(step(), 0..40)) {
            let mut sets = SmSets::new(H200);
            for step in steps {
                match step {
                    Step::Place(tenant, ls, sms) => {
                        let class = if ls { Class::LatencySensitive } else { Class::BestEffort };
                        if let Ok(set) = sets.place(TenantId(tenant), class, Share::Sms(SmCount(sms))) {
                            prop_assert!(set.sms().0 >= sms.max(1));
                        }
                    }
                    Step::Restore(tenant, first, groups) => {
                        let _ = sets.restore(TenantId(tenant), SmSet { first, groups, sms_per_group: 2 });
                    }
                    Step::Free(tenant) => drop(sets.free(TenantId(tenant))),
                }
                let placed: Vec<SmSet> = sets.placed.values().copied().collect();
                for (at, set) in placed.iter().enumerate() {
                    prop_assert!(set.groups > 0 && set.end() <= H200.groups);
                    prop_assert!(!placed[at + 1..].iter().any(|other| other.overlaps(*set)));
                }
                // Nothing is lost: what is taken and what is free are the whole.
                let groups = |sets: &[SmSet]| sets.iter().map(|set| set.groups).sum::<u32>();
                prop_assert_eq!(groups(&placed) + groups(&sets.gaps()), H200.groups);
            }
        }
    }
}
