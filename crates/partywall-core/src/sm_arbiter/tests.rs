use proptest::prelude::*;

use super::*;
use crate::tenant::Class;

const LS: TenantId = TenantId(0);
const LS_2: TenantId = TenantId(1);
const BE: TenantId = TenantId(10);
const BE_2: TenantId = TenantId(11);

const FOLLOW: Follow =
    Follow { be_min: SmCount(16), ls_reserve: SmCount(8), release_after: Nanos(100), lend_limit: Nanos(50) };

fn ls(tenant: TenantId, floor: u32) -> Seat {
    Seat::LatencySensitive { tenant, floor: SmCount(floor) }
}

fn be(tenant: TenantId) -> Seat {
    Seat::BestEffort { tenant }
}

fn config(policy: Policy, seats: &[Seat]) -> Config {
    Config { whole: SmCount(132), step: SmCount(8), policy, seats: seats.to_vec() }
}

/// An arbiter with what it has told so far.
struct Bench {
    arbiter: SmArbiter,
    told: Vec<Action>,
}

impl Bench {
    fn new(policy: Policy, seats: &[Seat]) -> Self {
        let mut bench = Self { arbiter: SmArbiter::new(&config(policy, seats)).unwrap(), told: Vec::new() };
        bench.arbiter.start(Nanos::ZERO, &mut bench.told);
        bench
    }

    /// The actions of one event, as short texts.
    fn at(&mut self, now: u64, event: Event) -> Vec<String> {
        let from = self.told.len();
        self.arbiter.step(Nanos(now), event, &mut self.told);
        shown(&self.told[from..])
    }

    fn range(&self, tenant: TenantId) -> String {
        self.arbiter.sms(tenant).unwrap().to_string()
    }
}

fn shown(actions: &[Action]) -> Vec<String> {
    let show = |action: &Action| match action {
        Action::Assign { tenant, sms } => format!("{} {sms}", tenant.0),
        Action::WakeAt(at) => format!("wake {}", at.0),
        Action::Ignored { tenant } => format!("{} ignored", tenant.0),
    };
    actions.iter().map(show).collect()
}

fn active(tenant: TenantId) -> Event {
    Event::LsActive { tenant }
}

fn idle(tenant: TenantId) -> Event {
    Event::LsIdle { tenant }
}

fn longest(tenant: TenantId, nanos: u64) -> Event {
    Event::LongestKernel { tenant, nanos: Nanos(nanos) }
}

const NOTHING: [&str; 0] = [];

#[test]
fn s1_the_static_split_stays_whatever_happens() {
    let mut bench = Bench::new(Policy::Static, &[ls(LS, 30), be(BE), ls(LS_2, 8), be(BE_2)]);
    assert_eq!(bench.arbiter.name(), "sm-static");
    assert_eq!(shown(&bench.told), ["0 0..32", "10 40..88", "1 32..40", "11 88..132"]);
    for (now, event) in [(1, active(LS)), (2, longest(BE, 1)), (3, idle(LS)), (9_999, Event::Tick)] {
        assert_eq!(bench.at(now, event), NOTHING);
    }
}

#[test]
fn s2_best_effort_is_squeezed_at_once() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 64), be(BE), be(BE_2)]);
    assert_eq!(bench.arbiter.name(), "sm-follow");
    // 16 SMs rounded up to the step below SM 116.
    assert_eq!(shown(&bench.told), ["0 0..64", "10 112..120", "11 120..132", "wake 100"]);
    assert_eq!(bench.at(100, Event::Tick), ["10 64..96", "11 96..132"]);
    assert_eq!(bench.at(150, active(LS)), ["10 112..120", "11 120..132"]);
    assert_eq!(bench.range(LS), "0..64");
}

#[test]
fn s3_idle_sms_are_lent_beside_short_kernels() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 64), be(BE)]);
    bench.at(1, active(LS));
    assert_eq!(bench.at(10, longest(BE, 50)), NOTHING);
    assert_eq!(bench.at(20, idle(LS)), ["wake 120"]);
    assert_eq!(bench.at(119, Event::Tick), ["wake 120"]);
    assert_eq!(bench.at(120, Event::Tick), ["10 8..132"]);
    assert_eq!(bench.arbiter.level(), Level::Lent);
}

#[test]
fn s4_a_long_kernel_takes_lent_sms_back() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 64), be(BE), be(BE_2)]);
    bench.at(10, longest(BE, 20));
    assert_eq!(bench.at(100, Event::Tick), ["10 64..96", "11 96..132"], "one of two is unknown");
    assert_eq!(bench.at(110, longest(BE_2, 20)), ["10 8..72", "11 72..132"]);
    assert_eq!(bench.at(200, longest(BE, 51)), ["10 64..96", "11 96..132"]);
    assert_eq!(bench.at(250, longest(BE, 60)), NOTHING);
    assert_eq!(bench.at(260, longest(BE, 20)), ["wake 350"]);
    assert_eq!(bench.at(350, Event::Tick), ["10 8..72", "11 72..132"]);
}

#[test]
fn s5_activity_faster_than_the_hold_keeps_the_squeeze() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 64), be(BE)]);
    for n in 0..50 {
        assert_eq!(bench.at(n * 100, active(LS)), NOTHING);
        assert_eq!(bench.at(n * 100 + 10, idle(LS)), [format!("wake {}", n * 100 + 110)]);
        assert_eq!(bench.at(n * 100 + 99, Event::Tick), [format!("wake {}", n * 100 + 110)]);
    }
}

#[test]
fn s6_the_hold_grows_with_premature_releases_and_shrinks_again() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 64), be(BE)]);
    let mut now = 0;
    let mut cycle = |gap: fn(u64) -> u64| {
        let hold = bench.arbiter.hold().0;
        now += hold;
        bench.at(now, Event::Tick);
        assert_eq!(bench.arbiter.level(), Level::Outside);
        now += gap(hold);
        bench.at(now, active(LS));
        bench.at(now, idle(LS));
        bench.arbiter.hold().0
    };
    let grown: Vec<u64> = (0..5).map(|_| cycle(|hold| hold - 1)).collect();
    assert_eq!(grown, [200, 400, 800, 800, 800]);
    let shrunk: Vec<u64> = (0..4).map(|_| cycle(|hold| hold)).collect();
    assert_eq!(shrunk, [400, 200, 100, 100]);
}

#[test]
fn s7_one_active_tenant_of_several_is_enough() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 32), ls(LS_2, 32), be(BE)]);
    bench.at(1, active(LS));
    bench.at(2, active(LS_2));
    bench.at(3, active(LS_2));
    assert_eq!(bench.at(4, idle(LS_2)), NOTHING);
    assert_eq!(bench.at(900, Event::Tick), NOTHING);
    assert_eq!(bench.at(900, idle(LS)), ["wake 1000"]);
    assert_eq!(bench.at(1000, Event::Tick), ["10 64..132"]);
}

#[test]
fn s8_tenants_die_and_come_back() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 32), ls(LS_2, 32), be(BE), be(BE_2)]);
    bench.at(100, Event::Tick);
    let gone = |tenant| Event::TenantGone { tenant };
    let back = |tenant| Event::TenantBack { tenant };
    assert_eq!(bench.at(101, gone(BE)), ["11 64..132"]);
    assert_eq!(bench.arbiter.sms(BE), None);
    assert_eq!(bench.at(102, gone(LS_2)), ["11 32..132"]);
    assert_eq!(bench.at(103, back(LS_2)), ["11 64..132", "1 32..64"]);
    assert_eq!(bench.at(104, gone(LS)), NOTHING, "an LS range lies above it");
    assert_eq!(bench.at(105, back(LS)), ["0 0..32"]);
    assert_eq!(bench.at(106, back(BE)), ["10 64..96", "11 96..132"]);
    // One that dies while active squeezes nobody for ever.
    bench.at(110, active(LS));
    assert_eq!(bench.at(120, gone(LS)), ["wake 320"], "the hold has doubled");
    assert_eq!(bench.at(320, Event::Tick), ["10 64..96", "11 96..132"]);
    // What was known of the kernels of a tenant that was gone is forgotten.
    bench.at(330, longest(BE, 1));
    bench.at(330, longest(BE_2, 1));
    assert_eq!(bench.arbiter.level(), Level::Lent);
    bench.at(340, gone(BE));
    bench.at(341, back(BE));
    assert_eq!(bench.arbiter.level(), Level::Outside);
}

#[test]
fn s8_a_stopped_tenant_that_comes_back_is_told_to_stay_stopped() {
    let follow = Follow { be_min: SmCount(0), ..FOLLOW };
    let mut bench = Bench::new(Policy::Follow(follow), &[ls(LS, 64), be(BE)]);
    assert_eq!(shown(&bench.told), ["0 0..64", "10 0..0", "wake 100"]);
    bench.at(1, active(LS));
    bench.at(2, Event::TenantGone { tenant: BE });
    assert_eq!(bench.at(3, Event::TenantBack { tenant: BE }), ["10 0..0"]);
}

#[test]
fn s9_what_cannot_be_laid_out_is_refused() {
    let message = |follow: Option<Follow>, seats: &[Seat]| {
        let policy = follow.map_or(Policy::Static, Policy::Follow);
        SmArbiter::new(&config(policy, seats)).unwrap_err().to_string()
    };
    assert_eq!(
        message(None, &[ls(LS, 100), ls(LS_2, 33)]),
        "the floors need 144 SMs in steps of 8, but the GPU has 132 SMs; lower them"
    );
    assert!(message(None, &[ls(LS, u32::MAX), ls(LS_2, u32::MAX)]).contains("the floors need"));
    assert_eq!(
        message(None, &[ls(LS, 120), be(BE), be(BE_2)]),
        "12 SMs are left for 2 best-effort tenants outside the floors; they need 16 SMs: a step of 8 each"
    );
    assert!(message(None, &[be(BE), be(BE)]).contains("tenant 10 is listed twice"));
    assert!(message(None, &[ls(LS, 0)]).contains("floor of at least one"));
    let many: Vec<Seat> = (0..65).map(|n| be(TenantId(n))).collect();
    assert!(message(None, &many).contains("at most 64"));
    assert_eq!(
        message(Some(FOLLOW), &[ls(LS, 120), be(BE)]),
        "`be_min` is 16 SMs, but only 12 SMs are outside the floors; lower one of them"
    );
    assert!(message(Some(FOLLOW), &[ls(LS, 64), be(BE), be(BE_2), be(LS_2)]).contains("by `be_min`"));
    assert!(message(Some(FOLLOW), &[be(BE)]).contains("`ls_reserve` is 8 SMs"));
    let stop = Follow { be_min: SmCount(0), ls_reserve: SmCount(128), ..FOLLOW };
    assert!(message(Some(stop), &[ls(LS, 128), be(BE)]).contains("when SMs are lent"));
    for step in [0, 133] {
        let config = Config { step: SmCount(step), ..config(Policy::Static, &[]) };
        assert!(SmArbiter::new(&config).unwrap_err().to_string().contains("choose a step from 1 to 132"));
    }
}

#[test]
fn s10_events_that_make_no_sense_change_nothing() {
    let mut bench = Bench::new(Policy::Follow(FOLLOW), &[ls(LS, 64), be(BE)]);
    assert_eq!(bench.at(1, active(TenantId(7))), ["7 ignored"]);
    assert_eq!(bench.at(1, active(BE)), ["10 ignored"]);
    assert_eq!(bench.at(1, longest(LS, 5)), ["0 ignored"]);
    assert_eq!(bench.at(1, Event::TenantBack { tenant: LS }), ["0 ignored"]);
    bench.at(2, Event::TenantGone { tenant: LS });
    assert_eq!(bench.at(3, active(LS)), ["0 ignored"]);
}

#[test]
fn s11_who_counts_as_one_sm_holds_while_ls_is_active_and_for_the_hold() {
    let (tenants, release) = ([(LS, Class::LatencySensitive), (BE, Class::BestEffort)], Nanos(50));
    let mut arbiter = SmArbiter::new(&Config::holding(tenants, release).unwrap()).unwrap();
    let mut told = Vec::new();
    arbiter.start(Nanos(0), &mut told);
    assert_eq!(shown(&told), ["0 0..1", "10 0..0", "wake 50"]);
    let mut at = |now, event| {
        let mut told = Vec::new();
        arbiter.step(Nanos(now), event, &mut told);
        shown(&told)
    };
    assert_eq!(at(50, Event::Tick), ["10 1..2"]);
    assert_eq!(at(1_000, longest(BE, u64::MAX)), [""; 0], "nothing is lent, so nothing is too long");
    assert_eq!(at(2_000, active(LS)), ["10 0..0"]);
    assert_eq!(at(3_000, idle(LS)), ["wake 3050"]);
    assert_eq!(at(3_050, Event::Tick), ["10 1..2"]);
    for class in [Class::LatencySensitive, Class::BestEffort] {
        assert_eq!(Config::holding([(LS, class), (BE, class)], release), None);
    }
}

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::Static),
        (0u32..40, 0u32..40, 1u64..200, 0u64..100).prop_map(
            |(be_min, ls_reserve, release_after, lend_limit)| {
                Policy::Follow(Follow {
                    be_min: SmCount(be_min),
                    ls_reserve: SmCount(ls_reserve),
                    release_after: Nanos(release_after),
                    lend_limit: Nanos(lend_limit),
                })
            }
        ),
    ]
}

/// Up to eight tenants; LS ones have even ids.
fn configs() -> impl Strategy<Value = Config> {
    let seats = prop::collection::vec((any::<bool>(), 1u32..40), 0..8).prop_map(|seats| {
        let seat = |(n, (sensitive, floor)): (usize, (bool, u32))| {
            let id = TenantId(2 * n as u32 + u32::from(!sensitive));
            if sensitive { ls(id, floor) } else { be(id) }
        };
        seats.into_iter().enumerate().map(seat).collect::<Vec<Seat>>()
    });
    (1u32..150, 1u32..10, policies(), seats).prop_map(|(whole, step, policy, seats)| Config {
        whole: SmCount(whole),
        step: SmCount(step),
        policy,
        seats,
    })
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let tenant = || (0u32..16).prop_map(TenantId);
    let event = prop_oneof![
        4 => tenant().prop_map(active),
        4 => tenant().prop_map(idle),
        3 => (tenant(), 0u64..120).prop_map(|(tenant, nanos)| longest(tenant, nanos)),
        6 => Just(Event::Tick),
        1 => tenant().prop_map(|tenant| Event::TenantGone { tenant }),
        1 => tenant().prop_map(|tenant| Event::TenantBack { tenant }),
    ];
    prop::collection::vec((prop_oneof![0u64..30, 0u64..400], event), 0..150)
}

/// What holds at every moment.
fn check_layout(config: &Config, arbiter: &SmArbiter, any_active: bool) -> Result<(), TestCaseError> {
    let present: Vec<(Seat, SmRange)> =
        config.seats.iter().filter_map(|&seat| Some((seat, arbiter.sms(seat.tenant())?))).collect();
    let keeps = match config.policy {
        Policy::Static => true,
        Policy::Follow(follow) => follow.be_min.0 > 0,
    };
    for (n, &(seat, sms)) in present.iter().enumerate() {
        prop_assert!(sms.end() <= config.whole.0);
        prop_assert!(sms.is_empty() || sms.first % config.step.0 == 0);
        prop_assert!(sms.is_empty() || sms.count >= config.step.0);
        match seat {
            Seat::LatencySensitive { floor, .. } => prop_assert!(sms.count >= floor.0),
            Seat::BestEffort { .. } => prop_assert!(!keeps || !sms.is_empty()),
        }
        for &(other, sms_other) in &present[..n] {
            let both_be = matches!((seat, other), (Seat::BestEffort { .. }, Seat::BestEffort { .. }));
            let both_ls =
                matches!((seat, other), (Seat::LatencySensitive { .. }, Seat::LatencySensitive { .. }));
            if both_be || both_ls || any_active {
                prop_assert!(!sms.overlaps(sms_other), "{seat:?} {sms} and {other:?} {sms_other}");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { max_global_rejects: 20_000, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn no_configuration_panics(config in configs()) {
        if let Err(error) = SmArbiter::new(&config) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn ranges_stay_within_the_gpu_and_apart(config in configs(), events in events()) {
        let arbiter = SmArbiter::new(&config);
        prop_assume!(arbiter.is_ok());
        let mut arbiter = arbiter.unwrap();
        let mut actions = Vec::new();
        arbiter.start(Nanos::ZERO, &mut actions);
        let mut busy = std::collections::BTreeSet::new();
        let mut now = 0;
        for (wait, event) in events {
            now += wait;
            let known = |tenant| arbiter.sms(tenant).is_some();
            match event {
                Event::LsActive { tenant } if tenant.0 % 2 == 0 && known(tenant) => drop(busy.insert(tenant)),
                Event::LsIdle { tenant } | Event::TenantGone { tenant } => drop(busy.remove(&tenant)),
                _ => {}
            }
            arbiter.step(Nanos(now), event, &mut actions);
            check_layout(&config, &arbiter, !busy.is_empty())?;
        }
        // What was told adds up to what is.
        for seat in &config.seats {
            let last = actions.iter().rev().find_map(|action| match *action {
                Action::Assign { tenant, sms } if tenant == seat.tenant() => Some(sms),
                _ => None,
            });
            if let Some(sms) = arbiter.sms(seat.tenant()) {
                prop_assert_eq!(Some(sms), last);
            }
        }
    }

    #[test]
    fn best_effort_grows_no_sooner_than_the_hold_after_what_spoke_against_it(
        config in configs(),
        events in events(),
    ) {
        let Policy::Follow(follow) = config.policy else { return Ok(()) };
        let arbiter = SmArbiter::new(&config);
        prop_assume!(arbiter.is_ok());
        let mut arbiter = arbiter.unwrap();
        let mut told = Vec::new();
        arbiter.start(Nanos::ZERO, &mut told);
        let (mut now, mut ls_at, mut long_at) = (0, 0, 0);
        for (wait, event) in events {
            now += wait;
            let (level, hold) = (arbiter.level(), arbiter.hold().0);
            told.clear();
            arbiter.step(Nanos(now), event, &mut told);
            let ignored = told.iter().any(|action| matches!(action, Action::Ignored { .. }));
            match event {
                Event::LsActive { .. } if !ignored => ls_at = now,
                Event::LongestKernel { nanos, .. } if !ignored && nanos > follow.lend_limit => long_at = now,
                _ => {}
            }
            if arbiter.level() > level {
                prop_assert!(now - ls_at >= hold);
            }
            if arbiter.level() == Level::Lent && level < Level::Lent {
                prop_assert!(now.saturating_sub(long_at) >= hold || long_at == 0);
            }
            let moved = told.iter().any(|action| matches!(action, Action::Assign { .. }));
            let reason = arbiter.level() != level
                || matches!(event, Event::TenantGone { .. } | Event::TenantBack { .. });
            prop_assert!(!moved || reason, "{event:?} moved {told:?}");
            prop_assert!(arbiter.hold() >= follow.release_after);
            prop_assert!(arbiter.hold().0 <= follow.release_after.0 * MAX_BACKOFF);
        }
    }

    #[test]
    fn a_wake_up_always_ends_the_squeeze(config in configs(), events in events()) {
        let Policy::Follow(_) = config.policy else { return Ok(()) };
        let arbiter = SmArbiter::new(&config);
        prop_assume!(arbiter.is_ok());
        let mut arbiter = arbiter.unwrap();
        let mut told = Vec::new();
        arbiter.start(Nanos::ZERO, &mut told);
        let mut now = 0;
        // Timers of our own would hide one that the arbiter forgot to ask for.
        for (wait, event) in events.into_iter().filter(|(_, event)| *event != Event::Tick) {
            now += wait;
            arbiter.step(Nanos(now), event, &mut told);
        }
        for seat in &config.seats {
            arbiter.step(Nanos(now), idle(seat.tenant()), &mut told);
        }
        for _ in 0..2 {
            let wake = told.iter().rev().find_map(|a| if let Action::WakeAt(at) = a { Some(at.0) } else { None });
            now = now.max(wake.expect("it begins squeezed, so it asked at the start"));
            arbiter.step(Nanos(now), Event::Tick, &mut told);
        }
        prop_assert!(arbiter.level() > Level::Squeezed);
    }
}
