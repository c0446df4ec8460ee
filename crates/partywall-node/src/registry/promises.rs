//! Whether promises about requests are kept, from what pages say.
//!
//! # What is alone
//!
//! The node looks every [`LOOK`] at what latency-sensitive processes have left of their requests in their pages, and then at the work of
//! best-effort ones: launches, graphs and copies since the last look, and chunks that are under way. In this order, so that work that began
//! before a request ended is seen. A request is *alone* if no best-effort process had work between its begin and this look, nor in a
//! [`LOOK`] before it began (launches behind the last mark of a chunk are not seen to end), and if no latency-sensitive
//! process of another tenant was at work during it. Such a request is *spared* if best-effort tenants have been at work within the last
//! [`COMPANY`]: one that is held launches something every 100 ms at least. A request is *beside* if best-effort work was there, and
//! otherwise *unclear*; so it is while best-effort tenants hold for a baseline, which is not how they usually are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::mpsc::Sender;

use partywall_core::guarantee::{Config, Event, Happening, Phase, Reason, Tracker, longest_first};
use partywall_core::tenant::{Class, TenantId};
use partywall_core::units::Nanos;

use super::requests::{Ended, Requests, Work};
use super::state::State;
use super::steering::{Seen, Steering};
use crate::arbiter::squeeze::{LaunchOptions, Setting};
use crate::facts::SteeringView;
use crate::promise::{BreakFacts, Cause, PromiseFacts};
use crate::tenant::TenantSpec;

/// How often pages are looked at: a ring of 256 requests then loses none of 12 000 a second.
pub(super) const LOOK: Nanos = Nanos::from_millis(20);

/// For how long best-effort tenants count as being there after work of theirs was seen.
const COMPANY: Nanos = Nanos::from_secs(1);

/// For how long a hold goes on if nobody renews it. A machine that is busy may keep this thread from looking for some looks.
const LEASE: Nanos = Nanos::from_millis(300);

/// All promises.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// Who gets a line when something happens.
    news: Option<Sender<String>>,
    /// Of latency-sensitive tenants.
    trackers: BTreeMap<TenantId, Tracker>,
    /// Processes, by the numbers of their connections.
    requests: BTreeMap<u64, (TenantId, Requests)>,
    work: BTreeMap<u64, (TenantId, Work)>,
    last_look: Nanos,
    /// When best-effort work was last seen.
    last_work: Nanos,
    /// Until when best-effort tenants were last asked to hold.
    held_until: Nanos,
    steering: Steering,
    launches: LaunchOptions,
    /// Whether any tenant has, or had, a squeezed set.
    squeezes: bool,
}

impl Promises {
    pub(super) fn new(news: Option<Sender<String>>, launches: &LaunchOptions) -> Self {
        let squeezes = launches.squeezed.is_some();
        Self {
            news,
            launches: *launches,
            squeezes,
            steering: Steering::new(launches, squeezes),
            ..Self::default()
        }
    }

    /// A tenant has a squeezed set. With the first one there are more settings, and what was learnt of the others begins anew; the one that holds
    /// then.
    pub(super) fn squeezes(&mut self) -> Option<Setting> {
        if std::mem::replace(&mut self.squeezes, true) {
            return None;
        }
        self.steering = Steering::new(&self.launches, true);
        self.steering.view().setting
    }

    /// How best-effort tenants are steered.
    pub(super) fn steering(&self) -> SteeringView {
        self.steering.view()
    }

    pub(super) fn add_tenant(&mut self, spec: &TenantSpec) {
        if spec.class == Class::LatencySensitive {
            let config = Config { slo: spec.slo, baseline: spec.baseline.p99 };
            self.trackers.insert(spec.id, Tracker::new(config));
        }
    }

    pub(super) fn remove_tenant(&mut self, id: TenantId) {
        self.trackers.remove(&id);
    }

    /// A process was let in.
    pub(super) fn add(&mut self, now: Nanos, number: u64, tenant: TenantId) {
        match self.trackers.get_mut(&tenant) {
            Some(tracker) => {
                tracker.step(now, Event::Started, &mut Vec::new());
                self.requests.insert(number, (tenant, Requests::default()));
            }
            None => drop(self.work.insert(number, (tenant, Work::default()))),
        }
    }

    /// A process is gone.
    pub(super) fn remove(&mut self, now: Nanos, number: u64) {
        self.requests.remove(&number);
        if self.work.remove(&number).is_some() {
            // What it did since the last look is not known.
            self.last_work = now;
        }
    }

    /// Whether there is anything to look at.
    pub(super) fn is_watching(&self) -> bool {
        !self.requests.is_empty()
    }

    /// How a promise stands; `None` for best-effort tenants. `name` says what others are called.
    pub(super) fn facts(
        &self,
        now: Nanos,
        id: TenantId,
        outside: &[Reason],
        name: impl Fn(TenantId) -> String,
    ) -> Option<PromiseFacts> {
        let tracker = self.trackers.get(&id)?;
        let history = tracker.breaks().rev().map(|one| BreakFacts {
            began_ago_ns: now.saturating_sub(one.since),
            lasted_ns: one.until.unwrap_or(now).saturating_sub(one.since),
            goes_on: one.until.is_none(),
            by: causes(&longest_first(&one.by), &name),
        });
        Some(PromiseFacts { status: tracker.status(now, outside), history: history.collect() })
    }

    fn phase(&self, tenant: TenantId, ended: Ended) -> Phase {
        // Of a request that may have begun at any time, only the end is known.
        let begin = ended.end.saturating_sub(ended.took.unwrap_or_default());
        let others = || self.requests.values().filter(|(other, _)| *other != tenant);
        let is_alone = begin >= self.seen_at_work_until(LOOK)
            && !others().any(|(_, requests)| requests.was_at_work(begin, ended.end));
        let in_company = begin < self.seen_at_work_until(COMPANY) && begin >= self.held_until;
        match (is_alone, in_company) {
            (true, false) => Phase::Alone,
            (true, true) => Phase::Spared,
            (false, true) => Phase::Beside,
            (false, false) => Phase::Unclear,
        }
    }

    /// So long after best-effort work was last seen; the beginning of time if it never was.
    fn seen_at_work_until(&self, after: Nanos) -> Nanos {
        if self.last_work == Nanos::ZERO { Nanos::ZERO } else { self.last_work.saturating_add(after) }
    }
}

fn causes(by: &[(TenantId, Nanos)], name: impl Fn(TenantId) -> String) -> Vec<Cause> {
    by.iter().map(|&(id, time)| Cause { tenant: name(id), time_ns: time }).collect()
}

impl State {
    /// Looks at requests, and at who was at work beside them.
    pub(super) fn look_at_requests(&mut self, now: Nanos) {
        let mut ended = Vec::new();
        let (mut lost, mut nonsense) = (Vec::new(), Vec::new());
        let promises = &mut self.promises;
        for (number, (tenant, requests)) in &mut promises.requests {
            let Some(member) = self.connections.get(number).and_then(|one| one.member()) else { continue };
            let look = requests.look(now, &member.page);
            ended.extend(look.ended.into_iter().map(|one| (*tenant, one)));
            lost.push((*tenant, look.lost));
            nonsense.extend(look.nonsense.then_some(*tenant));
        }
        // Whoever has come or gone since the requests were read has not been beside them.
        let (mut at_work, mut launches) = (BTreeMap::new(), 0u64);
        for (number, (tenant, work)) in &mut promises.work {
            let Some(connection) = self.connections.get(number) else { continue };
            // One that does not speak any more may have another page by now, or none.
            let is_mute = connection.socket.is_none();
            let was_at_work = connection.member().is_some_and(|member| work.look(&member.page) || is_mute);
            launches = launches.saturating_add(work.launches());
            if was_at_work {
                at_work.insert(*tenant, now.saturating_sub(promises.last_look));
            }
        }
        if !at_work.is_empty() {
            promises.last_work = now;
        }
        promises.last_look = now;
        let phases: Vec<Phase> = ended.iter().map(|&(tenant, ended)| promises.phase(tenant, ended)).collect();
        let mut said = BTreeMap::<TenantId, Vec<Happening>>::new();
        let mut step = |id: TenantId, event: Event| {
            if let Some(tracker) = promises.trackers.get_mut(&id) {
                tracker.step(now, event, said.entry(id).or_default());
            }
        };
        for (&(tenant, Ended { end, took }), &phase) in ended.iter().zip(&phases) {
            step(tenant, Event::Request { end, took, phase });
        }
        lost.into_iter().for_each(|(tenant, requests)| step(tenant, Event::Lost { requests }));
        for &id in self.tenants.keys() {
            at_work.iter().for_each(|(&tenant, &time)| step(id, Event::Neighbour { tenant, time }));
            step(id, Event::Time);
        }
        nonsense.into_iter().for_each(|id| self.mark(id, "a process wrote into its page what cannot be"));
        self.hold_for_baselines(now);
        self.steer(now, launches);
        said.iter().for_each(|(&id, happenings)| self.announce(id, happenings));
    }

    /// Has best-effort tenants hold while somebody needs a time alone, for a moment that is renewed.
    fn hold_for_baselines(&mut self, now: Nanos) {
        let wanted = self.promises.trackers.values().any(Tracker::wants_baseline);
        let is_held = self.promises.held_until > now;
        if !wanted && !is_held {
            return;
        }
        self.promises.held_until = if wanted { now.saturating_add(LEASE) } else { now };
        if let Some(arbiter) = &self.arbiter {
            arbiter.hold_until(self.promises.held_until);
        }
    }

    /// Gives best-effort tenants as much room as promises allow. While they hold for a baseline nothing is learnt.
    fn steer(&mut self, now: Nanos, launches: u64) {
        let promises = &mut self.promises;
        let mut judged = BTreeMap::new();
        for (&id, tracker) in &mut promises.trackers {
            let requests = tracker.take_judged();
            if tracker.bound().is_some() {
                judged.insert(id, requests);
            }
        }
        let best_effort = promises.work.values().map(|(tenant, _)| *tenant).collect();
        let seen = Seen { judged, best_effort, launches };
        if promises.held_until > now {
            return;
        }
        let outcome = promises.steering.look(now, seen);
        if let (Some(setting), Some(arbiter)) = (outcome.setting, &self.arbiter) {
            arbiter.steer(setting);
        }
        let Some(news) = &self.promises.news else { return };
        for (id, is_kept) in outcome.news {
            let name = self.name_of(id);
            // Nobody listens any more when the node is ending.
            let _ = news.send(if is_kept {
                format!("{name}: what is taken from best-effort tenants is enough again to keep the promise")
            } else {
                format!(
                    "{name}: the promise cannot be kept, however the launches of best-effort tenants are bounded; a smaller share of \
                     the SMs for them may help (docs/guarantee.md)"
                )
            });
        }
    }

    /// What others are called.
    pub(super) fn name_of(&self, id: TenantId) -> String {
        self.tenants.get(&id).map_or_else(|| id.to_string(), |tenant| tenant.spec.name.clone())
    }

    fn announce(&self, id: TenantId, happenings: &[Happening]) {
        let Some(news) = &self.promises.news else { return };
        let name = self.name_of(id);
        for happening in happenings {
            // Nobody listens any more when the node is ending.
            let _ = news.send(format!("{name}: {}", self.sentence(happening)));
        }
    }

    fn sentence(&self, happening: &Happening) -> String {
        match happening {
            Happening::Baseline { requests, p99 } => {
                format!("alone, 99 of 100 requests take {} ms at most ({requests} requests)", ms(*p99))
            }
            Happening::Broken { exceedance, bound, by } => {
                let mut text = format!(
                    "the promise is broken: {} of {} requests took more than {} ms, and 1 of 100 may",
                    exceedance.above,
                    exceedance.requests,
                    ms(*bound)
                );
                for (index, cause) in causes(by, |id| self.name_of(id)).iter().enumerate() {
                    let before = if index == 0 { "; at work beside them: " } else { ", " };
                    let _ = write!(text, "{before}{} for {:.1} s", cause.tenant, cause.time_ns.as_secs());
                }
                text
            }
            Happening::Mended { lasted, kept } => {
                let now = if *kept {
                    "the promise is kept again"
                } else {
                    "no requests beside best-effort tenants any more"
                };
                format!("{now}; it was broken for {:.1} s", lasted.as_secs())
            }
        }
    }
}

/// Three digits behind the point: microseconds.
fn ms(time: Nanos) -> String {
    format!("{:.3}", time.as_ms())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use partywall_shim_api::page::Mapped;

    use super::*;

    const TENANT: TenantId = TenantId(2);
    const MS: u64 = 1_000_000;

    /// Of a request of 1 ms that ended so many milliseconds after best-effort work was last seen.
    fn phase(promises: &Promises, after_ms: u64) -> Phase {
        let end = Nanos(promises.last_work.0 + after_ms * MS);
        promises.phase(TENANT, Ended { end, took: Some(Nanos(MS)) })
    }

    #[test]
    fn a_request_is_alone_spared_beside_or_unclear() {
        let mut promises = Promises { last_work: Nanos::from_secs(50), ..Promises::default() };
        let phases = [0, 20, 21, 1_000, 1_001].map(|after| phase(&promises, after));
        assert_eq!(phases, [Phase::Beside, Phase::Beside, Phase::Spared, Phase::Spared, Phase::Alone]);
        // A request without a time may have begun at any time, so it is only known when it ended.
        let unknown = Ended { end: promises.last_work, took: None };
        assert_eq!(promises.phase(TENANT, unknown), Phase::Beside);
        // While best-effort tenants hold for a baseline, what they still have under way is no company as usual.
        promises.held_until = Nanos::from_secs(51);
        let phases = [0, 20, 21, 1_001].map(|after| phase(&promises, after));
        assert_eq!(phases, [Phase::Unclear, Phase::Unclear, Phase::Alone, Phase::Alone]);
        let never = Promises::default();
        assert_eq!(phase(&never, 5), Phase::Alone);
    }

    #[test]
    fn another_latency_sensitive_tenant_is_company_too_but_not_what_a_promise_is_about() {
        let page = Mapped::create(1, 0, 0, None).unwrap().0;
        page.shim.active.store(1, Ordering::Relaxed);
        let mut other = Requests::default();
        other.look(Nanos::from_secs(60), &page);
        let mut promises = Promises { last_work: Nanos::from_secs(50), ..Promises::default() };
        promises.requests.insert(7, (TenantId(4), other));
        assert_eq!([30, 2_000].map(|after| phase(&promises, after)), [Phase::Beside, Phase::Unclear]);
        let own = promises.requests.remove(&7).map(|(_, requests)| (TENANT, requests)).unwrap();
        promises.requests.insert(7, own);
        assert_eq!(phase(&promises, 2_000), Phase::Alone, "processes of one tenant belong together");
    }
}
