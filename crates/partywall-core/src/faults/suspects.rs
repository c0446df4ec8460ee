//! Tenants of which one causes faults that are nobody's for certain: they come back one by one, and each is observed.

use std::collections::BTreeMap;

use super::{AGAIN, Action, Member, MemberState, Phase, REGISTER_LIMIT, Recovery};
use crate::tenant::{Class, TenantId};
use crate::units::Nanos;

/// So many faults within [`AGAIN`] of which nobody is sure to have caused them have best-effort tenants come back apart.
pub const SUSPECT: usize = 2;

/// The shortest time of observation before the next suspect is let in. Programs that fault at once do so within seconds of their first launch.
pub const OBSERVE_MIN: Nanos = Nanos::from_secs(5);

/// And the longest: others wait for all of it.
pub const OBSERVE_MAX: Nanos = Nanos::from_secs(200);

/// How much longer than it has ever taken to a fault is waited for one.
const OBSERVE_FACTOR: u64 = 3;

/// Faults of which nobody is sure: when, and how long after a start.
#[derive(Debug, Default)]
pub(super) struct Unsure(Vec<(Nanos, Nanos)>);

/// Who was observed when a fault came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Observed {
    /// Latency-sensitive tenants alone.
    FirstClass,
    /// The one that had been let in last.
    Last(TenantId),
}

impl Unsure {
    /// One more, after tenants were `started`; `None`: never because of a fault.
    pub(super) fn add(&mut self, now: Nanos, started: Option<Nanos>) {
        self.0.push((now, started.map_or(Nanos::ZERO, |started| now.saturating_sub(started))));
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// For how long who is there is observed before the next one is let in; `None`: nobody is a suspect.
    pub(super) fn apart(&mut self, now: Nanos) -> Option<Nanos> {
        self.0.retain(|(at, _)| now.saturating_sub(*at) < AGAIN);
        let longest = self.0.iter().map(|(_, ran)| ran.0).max()?;
        let time = longest.saturating_mul(OBSERVE_FACTOR).clamp(OBSERVE_MIN.0, OBSERVE_MAX.0);
        (self.0.len() >= SUSPECT).then_some(Nanos(time))
    }
}

impl Recovery {
    pub(super) fn observed(&self) -> Option<Observed> {
        let Phase::Apart { last, .. } = self.phase else { return None };
        Some(last.map_or(Observed::FirstClass, |(tenant, _)| Observed::Last(tenant)))
    }

    /// What follows when latency-sensitive tenants are back.
    pub(super) fn begun(&self, now: Nanos) -> Phase {
        let first_class = |member: &Member| {
            member.client.class == Class::LatencySensitive
                && matches!(member.state, MemberState::Begun { .. })
        };
        match self.apart {
            Some(time) if self.members.iter().any(first_class) => {
                Phase::Apart { last: None, until: now.saturating_add(time) }
            }
            Some(_) => Phase::Apart { last: None, until: now },
            None => Phase::Started,
        }
    }

    /// Lets in one suspect after the other, as far as it is time for that.
    pub(super) fn let_in_who_is_due(
        &mut self,
        blames: &BTreeMap<TenantId, Vec<(Nanos, u32)>>,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) {
        while let (Phase::Apart { last, until }, Some(time)) = (self.phase, self.apart) {
            // Also those that had not ended in time, and have now.
            self.start(Class::LatencySensitive, now, actions);
            self.phase = match last {
                Some((tenant, false)) if until <= now || self.is_back(tenant) => {
                    Phase::Apart { last: Some((tenant, true)), until: now.saturating_add(time) }
                }
                _ if until > now => break,
                _ => match self.let_in(blames, now, actions) {
                    Some((tenant, at)) => {
                        Phase::Apart { last: Some((tenant, false)), until: at.saturating_add(REGISTER_LIMIT) }
                    }
                    None => Phase::Started,
                },
            };
        }
    }

    /// Lets in the next suspect, the one with the least against it; which it is, and when it is started.
    fn let_in(
        &mut self,
        blames: &BTreeMap<TenantId, Vec<(Nanos, u32)>>,
        now: Nanos,
        actions: &mut Vec<Action>,
    ) -> Option<(TenantId, Nanos)> {
        let against = |member: &Member| -> u32 {
            blames.get(&member.client.tenant).into_iter().flatten().map(|(_, weight)| weight).sum()
        };
        let delay = self.delay;
        let waiting = self.members.iter_mut().filter(|member| member.state == MemberState::Waits);
        let next = waiting.min_by_key(|member| (against(member), member.client.order))?;
        let at = next.start(delay, now, actions)?;
        Some((next.client.tenant, at))
    }

    /// Whether a tenant that was started is there, or will not be.
    fn is_back(&mut self, tenant: TenantId) -> bool {
        let waits = |member: &mut Member| member.state == MemberState::Begun { registered: false };
        !self.member(tenant).is_some_and(waits)
    }
}
