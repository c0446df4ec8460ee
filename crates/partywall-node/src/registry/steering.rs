//! Gives best-effort tenants as much room as promises allow: what the governor of `core` is told, and what is done about it.
//!
//! A setting takes effect with the next launch, and requests that began before that still count with the one before; so after each
//! change what is seen in the next [`LOOKS`] looks is left out.

use std::collections::{BTreeMap, BTreeSet};

use partywall_core::governor::{Action, Event, Governor};
use partywall_core::guarantee::Judged;
use partywall_core::tenant::TenantId;
use partywall_core::units::Nanos;

use crate::arbiter::squeeze::{LaunchOptions, Setting};
use crate::facts::SteeringView;

/// Looks that are left out: the one in whose time the change falls, and one more for requests that were on their way.
const LOOKS: u32 = 2;

/// What was seen at a look.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Tenants with a promise and a bound, and their requests beside best-effort tenants.
    pub(super) judged: BTreeMap<TenantId, Judged>,
    /// Best-effort tenants that have processes.
    pub(super) best_effort: BTreeSet<TenantId>,
    /// Their launches since the last look.
    pub(super) launches: u64,
}

/// What came of it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// What they have from now on, if it is another one.
    pub(super) setting: Option<Setting>,
    /// Whose promises cannot be kept even so, and whose can again.
    pub(super) news: Vec<(TenantId, bool)>,
}

/// The governor and what it governs.
#[derive(Debug)]
pub(super) struct Steering {
    /// `None` where nothing is steered.
    governor: Option<Governor>,
    settings: Vec<Setting>,
    promised: BTreeSet<TenantId>,
    best_effort: BTreeSet<TenantId>,
    looks_left_out: u32,
    actions: Vec<Action>,
}

impl Default for Steering {
    /// Nothing is steered.
    fn default() -> Self {
        Self::new(&LaunchOptions::default(), false)
    }
}

impl Steering {
    /// `squeezes`: whether any tenant has a squeezed set.
    pub(super) fn new(options: &LaunchOptions, squeezes: bool) -> Self {
        let (settings, at_first) = (options.settings(squeezes), options.setting(squeezes));
        let without = settings.iter().position(|setting| *setting == at_first).unwrap_or(0);
        let governor = (options.decided && options.steered).then(|| Governor::new(settings.len(), without));
        let settings = if governor.is_some() { settings } else { vec![at_first] };
        Self {
            governor,
            settings,
            promised: BTreeSet::new(),
            best_effort: BTreeSet::new(),
            looks_left_out: 0,
            actions: Vec::new(),
        }
    }

    /// The setting that holds, for people and programs.
    pub(super) fn view(&self) -> SteeringView {
        let at = self.governor.as_ref().map_or(0, Governor::setting);
        let is_used = self.governor.is_some();
        SteeringView {
            steered: is_used && !self.promised.is_empty(),
            on_trial: self.governor.as_ref().is_some_and(Governor::is_on_trial),
            setting: self.settings.get(at).copied(),
        }
    }

    /// Takes in what was seen.
    pub(super) fn look(&mut self, now: Nanos, seen: Seen) -> Outcome {
        let Some(governor) = &mut self.governor else { return Outcome::default() };
        let actions = &mut self.actions;
        for &tenant in self.promised.iter().filter(|tenant| !seen.judged.contains_key(tenant)) {
            governor.step(now, Event::NoPromise { tenant }, actions);
        }
        for &tenant in seen.judged.keys().filter(|tenant| !self.promised.contains(tenant)) {
            governor.step(now, Event::Promise { tenant }, actions);
        }
        self.promised = seen.judged.keys().copied().collect();
        if self.best_effort != seen.best_effort {
            governor.step(now, Event::Changed, actions);
            self.best_effort = seen.best_effort;
        }
        if self.looks_left_out > 0 {
            self.looks_left_out -= 1;
        } else {
            governor.step(now, Event::Progress { launches: seen.launches }, actions);
            for (tenant, Judged { within, beyond, .. }) in seen.judged {
                if within > 0 || beyond > 0 {
                    governor.step(now, Event::Requests { tenant, within, beyond }, actions);
                }
            }
        }
        let mut outcome = Outcome::default();
        for action in actions.drain(..) {
            match action {
                Action::Use { setting } => outcome.setting = self.settings.get(setting).copied(),
                Action::CannotKeep { tenant } => outcome.news.push((tenant, false)),
                Action::Keeps { tenant } => outcome.news.push((tenant, true)),
            }
        }
        if outcome.setting.is_some() {
            self.looks_left_out = LOOKS;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LS: TenantId = TenantId(1);
    const BE: TenantId = TenantId(2);

    fn options() -> LaunchOptions {
        LaunchOptions { decided: true, ..LaunchOptions::default() }
    }

    fn seen(within: u32, beyond: u32) -> Seen {
        let judged = [(LS, Judged { within, beyond, unknown: 0 })].into();
        Seen { judged, best_effort: [BE].into(), launches: 100 }
    }

    /// Looks every 20 ms, at requests of which a part is slow under some settings.
    fn go_on(
        steering: &mut Steering,
        now: &mut u64,
        looks: u32,
        is_slow: impl Fn(Setting) -> bool,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for _ in 0..looks {
            *now += 20_000_000;
            let beyond = u32::from(steering.view().setting.is_some_and(&is_slow));
            let outcome = steering.look(Nanos(*now), seen(6, beyond));
            outcomes.extend((outcome != Outcome::default()).then_some(outcome));
        }
        outcomes
    }

    #[test]
    fn the_freest_setting_that_keeps_the_promise_is_found() {
        let (mut steering, mut now) = (Steering::new(&options(), false), 0);
        assert_eq!(steering.view().setting, Some(options().setting(false)));
        assert!(!steering.view().steered);
        let outcomes = go_on(&mut steering, &mut now, 3_000, |setting| !setting.hold);
        assert_eq!(outcomes[0].setting, Some(options().settings(false)[0]), "the safest first");
        let view = steering.view();
        assert!(view.steered && view.setting.is_some_and(|setting| setting.hold), "{view:?}");
        assert!(outcomes.iter().all(|outcome| outcome.news.is_empty()));
    }

    #[test]
    fn what_cannot_be_kept_is_said() {
        let (mut steering, mut now) = (Steering::new(&options(), false), 0);
        let outcomes = go_on(&mut steering, &mut now, 300, |_| true);
        let news: Vec<_> = outcomes.iter().flat_map(|outcome| &outcome.news).collect();
        assert_eq!(news, [&(LS, false)]);
        // The promise is withdrawn: back to what was asked for.
        let outcome = steering.look(Nanos(now), Seen { best_effort: [BE].into(), ..Seen::default() });
        assert_eq!(outcome.setting, Some(options().setting(false)));
        assert!(!steering.view().steered);
    }

    #[test]
    fn requests_of_the_time_before_a_change_do_not_count() {
        let (mut steering, mut now) = (Steering::new(&options(), false), 0);
        go_on(&mut steering, &mut now, 1, |_| false);
        for _ in 0..LOOKS {
            assert_eq!(steering.look(Nanos(now), seen(0, 1_000)), Outcome::default());
        }
        let next = options().settings(false)[1];
        assert_eq!(steering.look(Nanos(now), seen(0, 1_000)).setting, Some(next), "the first one is bad");
    }

    #[test]
    fn what_is_fixed_stays() {
        for options in [LaunchOptions { steered: false, ..options() }, LaunchOptions::default()] {
            let (mut steering, mut now) = (Steering::new(&options, false), 0);
            assert_eq!(go_on(&mut steering, &mut now, 100, |_| true), []);
            assert_eq!(steering.view().setting, Some(options.setting(false)));
        }
    }
}
