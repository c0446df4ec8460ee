use proptest::prelude::*;

use super::evidence::Evidence;
use super::*;

const LS: TenantId = TenantId(1);
const LS_2: TenantId = TenantId(2);

/// Chance that a test can repeat.
struct Chance(u64);

impl Chance {
    fn is(&mut self, share: f64) -> bool {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64) < share * (1u64 << 31) as f64
    }
}

/// A world in which a setting makes a share of requests late and lets so many launches a second through.
struct World {
    governor: Governor,
    settings: Vec<(f64, u64)>,
    now: Nanos,
    chance: Chance,
    told: Vec<Action>,
    late: u32,
}

impl World {
    fn new(settings: &[(f64, u64)]) -> Self {
        let governor = Governor::new(settings.len(), settings.len() - 1);
        let settings = settings.to_vec();
        Self { governor, settings, now: Nanos::ZERO, chance: Chance(7), told: Vec::new(), late: 0 }
    }

    fn step(&mut self, event: Event) {
        self.governor.step(self.now, event, &mut self.told);
    }

    /// 300 requests a second of each tenant, one by one.
    fn go_on(&mut self, seconds: u64, tenants: &[TenantId]) {
        for _ in 0..seconds * 300 {
            self.now = self.now.saturating_add(Nanos(3_333_333));
            let (share, rate) = self.settings[self.governor.setting()];
            self.step(Event::Progress { launches: rate / 300 });
            for &tenant in tenants {
                let beyond = u32::from(self.chance.is(share));
                self.late += beyond;
                self.step(Event::Requests { tenant, within: 1 - beyond, beyond });
            }
        }
    }

    fn count(&self, action: Action) -> usize {
        self.told.iter().filter(|told| **told == action).count()
    }
}

#[test]
fn s1_without_promises_the_given_one_is_used() {
    assert_eq!(Governor::new(3, 1).setting(), 1);
    assert_eq!(Governor::new(0, 9).setting(), 0);
    let mut world = World::new(&[(0.0, 300), (0.5, 900)]);
    assert_eq!(world.governor.setting(), 1);
    world.go_on(5, &[LS]);
    assert_eq!((world.governor.setting(), world.told.len()), (1, 0));
    world.step(Event::Promise { tenant: LS });
    assert_eq!(world.told, [Action::Use { setting: 0 }]);
    world.step(Event::NoPromise { tenant: LS });
    assert_eq!(world.told[1..], [Action::Use { setting: 1 }]);
}

#[test]
fn s2_the_setting_with_most_progress_is_found() {
    // The third lets less through than the second: being freer is not always more.
    let mut world = World::new(&[(0.001, 3_000), (0.001, 9_000), (0.002, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(10, &[LS]);
    assert_eq!((world.governor.setting(), world.governor.is_on_trial()), (1, false));
    assert!((world.governor.rate(1).unwrap() / 9_000.0 - 1.0).abs() < 0.05);
    assert_eq!(world.count(Action::Use { setting: 2 }), 1, "it was tried");
}

#[test]
fn s3_what_breaks_the_promise_is_left_after_a_few_requests() {
    let mut world = World::new(&[(0.0, 3_000), (0.0, 6_000), (0.6, 12_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(9, &[LS]);
    assert_eq!(world.governor.setting(), 1);
    assert!((1..8).contains(&world.late), "{} requests were late", world.late);
    assert_eq!(world.governor.rate(2), None);
}

#[test]
fn s4_in_use_a_setting_that_turns_bad_is_left() {
    let mut world = World::new(&[(0.0, 3_000), (0.0, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(5, &[LS]);
    assert_eq!(world.governor.setting(), 1);
    world.settings[1].0 = 0.2;
    let before = world.late;
    world.go_on(1, &[LS]);
    assert_eq!(world.governor.setting(), 0);
    assert!(world.late - before < 10, "{}", world.late - before);
}

#[test]
fn s5_what_cannot_be_kept_is_said_once() {
    let mut world = World::new(&[(0.3, 3_000), (0.5, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(60, &[LS]);
    let told = [Action::Use { setting: 0 }, Action::Use { setting: 1 }, Action::CannotKeep { tenant: LS }];
    assert_eq!(world.told[..3], told);
    assert_eq!((world.count(told[2]), world.count(Action::Keeps { tenant: LS })), (1, 0));
    world.settings[0].0 = 0.0;
    world.settings[1].0 = 0.0;
    world.go_on(200, &[LS]);
    assert_eq!((world.count(told[2]), world.count(Action::Keeps { tenant: LS })), (1, 1));
    assert_eq!((world.governor.setting(), world.governor.is_on_trial()), (1, false));
}

#[test]
fn s5_where_the_first_does_not_keep_it_another_may() {
    let mut world = World::new(&[(0.04, 3_000), (0.02, 5_000), (0.001, 6_000), (0.5, 9_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(30, &[LS]);
    assert_eq!((world.governor.setting(), world.governor.is_on_trial()), (2, false));
    assert_eq!(world.count(Action::CannotKeep { tenant: LS }), 0);
}

#[test]
fn s5_where_none_keeps_it_the_one_that_breaks_it_least_stays() {
    let mut world = World::new(&[(0.5, 3_000), (0.03, 5_000), (0.9, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(20, &[LS]);
    let late = world.late;
    world.go_on(100, &[LS]);
    assert_eq!(world.governor.setting(), 1);
    let share = f64::from(world.late - late) / 30_000.0;
    assert!(share < 0.035, "{share} of the requests were late");
}

#[test]
fn s6_changes_start_over() {
    let mut world = World::new(&[(0.0, 3_000), (0.0, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(5, &[LS]);
    world.step(Event::Changed);
    assert_eq!((world.governor.setting(), world.governor.is_on_trial()), (0, true));
    assert_eq!(world.governor.rate(1), None);
}

#[test]
fn s7_rejected_settings_are_tried_again_more_and_more_rarely() {
    let mut world = World::new(&[(0.0, 3_000), (0.5, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.go_on(1_000, &[LS]);
    // After 10, 20, 40 s and so on.
    let trials = world.count(Action::Use { setting: 1 });
    assert!((6..9).contains(&trials), "{trials}");
    assert!(f64::from(world.late) < 0.001 * 300_000.0, "{} of 300 000 requests", world.late);
    world.settings[1].0 = 0.0;
    world.go_on(1_300, &[LS]);
    assert_eq!(world.governor.setting(), 1);
}

#[test]
fn s8_each_promise_counts_and_who_is_idle_does_not_hold_up() {
    let mut world = World::new(&[(0.0, 3_000), (0.0, 6_000)]);
    world.step(Event::Promise { tenant: LS });
    world.step(Event::Promise { tenant: LS_2 });
    world.go_on(5, &[LS]);
    assert_eq!(world.governor.setting(), 1);
    for _ in 0..6 {
        world.step(Event::Requests { tenant: LS_2, within: 0, beyond: 1 });
    }
    assert_eq!(world.governor.setting(), 0);
    // Of whom nothing was promised.
    world.step(Event::Requests { tenant: TenantId(9), within: 0, beyond: 1_000 });
    assert_eq!(world.governor.setting(), 0);
}

/// How often a sum passes the alarm with the share of late requests that is good.
#[test]
fn false_alarms_are_rare() {
    let (mut chance, mut alarms) = (Chance(1), 0);
    let mut evidence = Evidence::default();
    for _ in 0..2_000_000 {
        let beyond = u32::from(chance.is(GOOD));
        evidence.take(1 - beyond, beyond, false);
        if evidence.verdict() == Verdict::Bad {
            alarms += 1;
            evidence = Evidence::default();
        }
    }
    assert!((1..400).contains(&alarms), "{alarms} in two million");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever happens: the setting is one of those, what is told is what is, and a setting that makes every request late is never
    /// used for longer than a few, unless all do.
    #[test]
    fn bad_settings_are_left(bad in proptest::collection::vec(any::<bool>(), 1..6), seed in any::<u64>()) {
        let settings: Vec<_> = bad.iter().zip(1..).map(|(&bad, rate)| (f64::from(u8::from(bad)), rate * 3_000)).collect();
        let mut world = World::new(&settings);
        world.chance = Chance(seed);
        world.step(Event::Promise { tenant: LS });
        world.go_on(30, &[LS]);
        let mut uses = world.told.iter().filter_map(|action| match action { Action::Use { setting } => Some(*setting), _ => None });
        prop_assert_eq!(uses.next_back().unwrap_or(bad.len() - 1), world.governor.setting());
        if bad.iter().all(|bad| *bad) {
            prop_assert_eq!(world.count(Action::CannotKeep { tenant: LS }), 1);
        } else {
            prop_assert_eq!(world.count(Action::CannotKeep { tenant: LS }), 0);
            let freest = bad.iter().rposition(|bad| !bad).unwrap();
            let retries = bad.iter().filter(|bad| **bad).count() as u32 * 3;
            prop_assert!(world.late <= retries * 4, "{} late", world.late);
            prop_assert!(world.governor.setting() == freest || world.governor.is_on_trial());
        }
    }
}
