use proptest::prelude::*;

use super::*;

const BE: TenantId = TenantId(7);
const BE_2: TenantId = TenantId(8);
const MS: u64 = 1_000_000;

/// A tracker, the time, and what there was to say.
struct Scene {
    tracker: Tracker,
    now: Nanos,
    said: Vec<Happening>,
}

impl Scene {
    /// Past its first requests.
    fn new(slowdown: Option<f64>, p99: Option<u64>, baseline: Option<u64>) -> Self {
        let slo = Slo { slowdown, p99: p99.map(Nanos) };
        let tracker = Tracker::new(Config { slo, baseline: baseline.map(Nanos) });
        let mut scene = Self { tracker, now: Nanos::from_secs(100), said: Vec::new() };
        scene.requests(WARM_UP, Phase::Unclear, |_| 0);
        scene
    }

    fn step(&mut self, event: Event) {
        self.tracker.step(self.now, event, &mut self.said);
    }

    fn later(&mut self, time: Nanos) {
        self.now = self.now.saturating_add(time);
        self.step(Event::Time);
    }

    /// One request each millisecond, and what each takes; 0: that is not known.
    fn requests(&mut self, count: u64, phase: Phase, took: impl Fn(u64) -> u64) {
        for number in 0..count {
            self.now += Nanos(MS);
            let took = Some(Nanos(took(number))).filter(|took| *took > Nanos::ZERO);
            self.step(Event::Request { end: self.now, took, phase });
        }
        self.step(Event::Time);
    }

    /// Alone each takes 1 ms, but one in fifty 2 ms: the p99.
    fn baseline(&mut self) {
        self.requests(NEEDED, Phase::Alone, |number| if number % 50 == 0 { 2 * MS } else { MS });
    }

    fn status(&self) -> Status {
        self.tracker.status(self.now, &[])
    }

    /// `Err`: the only reason why not.
    fn verdict(&self) -> Result<Verdict, Reason> {
        let mut status = self.status();
        assert_eq!(status.verdict == Verdict::NotGuaranteed, !status.reasons.is_empty());
        status.reasons.pop().map_or(Ok(status.verdict), Err)
    }
}

fn every(nth: u64, slow: u64, fast: u64) -> impl Fn(u64) -> u64 {
    move |number| if number % nth == 0 { slow } else { fast }
}

#[test]
fn s1_kept_beside_others() {
    let mut scene = Scene::new(Some(1.5), None, None);
    scene.baseline();
    assert!(
        matches!(scene.said[..], [Happening::Baseline { requests: NEEDED, p99: Nanos(p99) }] if p99 == 2 * MS)
    );
    scene.requests(NEEDED, Phase::Beside, every(50, 2 * MS + MS / 2, MS));
    assert_eq!(scene.verdict(), Ok(Verdict::Kept));
    let status = scene.status();
    assert_eq!((status.slowdown, status.bound_ns), (Some(1.25), Some(Nanos(3 * MS))));
    assert!((status.margin.unwrap() - (1.5 - 1.25) / 1.5).abs() < 1e-12);
    assert_eq!((status.beside.p50_ns, status.beside.p99_ns), (Some(Nanos(MS)), Some(Nanos(5 * MS / 2))));
    let baseline = status.baseline;
    assert_eq!((baseline.p50_ns, baseline.p99_ns), (Some(Nanos(MS)), Some(Nanos(2 * MS))));
    assert_eq!((baseline.source, baseline.age_ns), (BaselineSource::Measured, Some(Nanos(NEEDED * MS))));
    assert_eq!((status.breaks, scene.said.len()), (0, 1));
}

#[test]
fn s2_broken_by_whom_and_kept_again() {
    let mut scene = Scene::new(Some(1.5), None, Some(2 * MS));
    scene.requests(NEEDED, Phase::Beside, |_| MS);
    scene.step(Event::Neighbour { tenant: BE_2, time: Nanos(20 * MS) });
    scene.later(Nanos::from_secs(2));
    let before = scene.now;
    scene.step(Event::Neighbour { tenant: BE, time: Nanos(20 * MS) });
    scene.requests(100, Phase::Beside, every(2, 4 * MS, MS));
    let said = scene.said.pop();
    let Some(Happening::Broken { exceedance, bound, by }) = said else { panic!("{said:?}") };
    assert_eq!((exceedance.above, exceedance.requests, bound), (50, NEEDED + 100, Nanos(3 * MS)));
    assert_eq!(by, [(BE, Nanos(20 * MS))], "who was at work before is not to blame");
    assert_eq!(scene.verdict(), Ok(Verdict::Broken));
    scene.step(Event::Neighbour { tenant: BE_2, time: Nanos(30 * MS) });
    scene.requests(1, Phase::Beside, |_| 4 * MS);
    assert!(scene.said.is_empty(), "it is said once");
    let open = scene.tracker.breaks().next_back().unwrap().clone();
    assert_eq!((open.since, open.until), (Nanos(before.0 + MS), None));
    assert_eq!(longest_first(&open.by), [(BE_2, Nanos(30 * MS)), (BE, Nanos(20 * MS))]);
    scene.requests(5_000, Phase::Beside, |_| MS);
    assert!(matches!(scene.said[..], [Happening::Mended { kept: true, .. }]), "{:?}", scene.said);
    assert_eq!(scene.verdict(), Ok(Verdict::Kept));
    assert_eq!((scene.status().breaks, scene.status().broken_for_ns), (1, None));
}

#[test]
fn s2_a_break_is_over_when_nobody_is_beside_any_more() {
    let mut scene = Scene::new(None, Some(MS), None);
    scene.requests(100, Phase::Beside, |_| 2 * MS);
    assert!(matches!(scene.said.pop(), Some(Happening::Broken { .. })));
    scene.later(WINDOW_TIME);
    scene.later(Nanos(1));
    assert!(matches!(scene.said[..], [Happening::Mended { kept: false, .. }]));
    assert_eq!(scene.verdict(), Err(Reason::NobodyBeside { within: WINDOW_TIME }));
}

#[test]
fn s3_every_reason_not_to_guarantee() {
    let mut scene = Scene::new(None, None, None);
    scene.baseline();
    scene.requests(NEEDED, Phase::Beside, |_| MS);
    assert_eq!(scene.verdict(), Err(Reason::NotPromised));
    assert_eq!(scene.status().slowdown, Some(0.5), "and it is told all the same");

    let mut scene = Scene::new(Some(1.2), None, None);
    assert_eq!(scene.verdict(), Err(Reason::NoBaseline { requests: 0, needed: NEEDED }));
    scene.requests(NEEDED - 1, Phase::Alone, |_| MS);
    assert_eq!(scene.verdict(), Err(Reason::NoBaseline { requests: NEEDED - 1, needed: NEEDED }));
    assert_eq!(scene.status().baseline.p99_ns, None);
    scene.requests(1, Phase::Alone, |_| MS);
    assert_eq!(scene.verdict(), Err(Reason::NobodyBeside { within: WINDOW_TIME }));
    scene.requests(200, Phase::Beside, |_| MS);
    assert_eq!(scene.verdict(), Err(Reason::TooFew { requests: 200, needed: NEEDED }));
    assert_eq!(scene.status().slowdown, None);
    let outside = [Reason::LaunchesUndecided, Reason::Outside { text: "it fell".to_owned() }];
    let status = scene.tracker.status(scene.now, &outside);
    assert_eq!((status.verdict, &status.reasons[..]), (Verdict::NotGuaranteed, &outside[..]));
    scene.requests(NEEDED, Phase::Beside, every(10, 0, MS));
    let overlap = Reason::Overlap { requests: NEEDED + 200, overlapping: NEEDED / 10 };
    assert_eq!(scene.verdict(), Err(overlap));
    assert_eq!(scene.status().slowdown, None, "the requests without a time may be the slow ones");

    let mut scene = Scene::new(Some(1.2), None, None);
    scene.requests(NEEDED, Phase::Alone, every(2, 0, MS));
    assert_eq!(scene.verdict(), Err(Reason::Overlap { requests: NEEDED, overlapping: NEEDED / 2 }));
}

#[test]
fn s4_few_requests_decide_where_they_leave_no_doubt() {
    let verdict = |fast, slow, unknown| {
        let mut scene = Scene::new(None, Some(MS), None);
        for (count, took) in [(fast, MS), (slow, MS + 1), (unknown, 0)] {
            scene.requests(count, Phase::Beside, |_| took);
        }
        scene.verdict().ok()
    };
    assert_eq!([298, 299].map(|fast| verdict(fast, 0, 0)), [None, Some(Verdict::Kept)]);
    assert_eq!(verdict(299, 1, 0), None, "one of 300 may be chance, either way");
    assert_eq!(verdict(0, 1, 0), None);
    assert_eq!(verdict(46, 4, 0), None, "drawn once in 600 times");
    assert_eq!(verdict(45, 5, 0), Some(Verdict::Broken), "drawn once in 7 000 times");
    assert_eq!(verdict(998, 0, 2), Some(Verdict::Kept));
    assert_eq!(verdict(990, 4, 7), None, "the unknown ones decide");
    assert_eq!([verdict(990, 10, 0), verdict(989, 11, 0)], [Some(Verdict::Kept), Some(Verdict::Broken)]);
}

/// A promise that is kept by holding others back is kept.
#[test]
fn s1_requests_that_are_spared_count_as_alone_and_as_beside() {
    let mut scene = Scene::new(Some(1.5), None, None);
    scene.requests(NEEDED, Phase::Spared, |_| MS);
    scene.requests(5, Phase::Beside, |_| 2 * MS);
    let status = scene.status();
    assert_eq!((status.baseline.requests, status.beside.requests), (NEEDED, NEEDED + 5));
    assert_eq!((status.verdict, status.slowdown), (Verdict::Kept, Some(1.0)));
}

#[test]
fn requests_are_handed_on_as_they_were_judged() {
    let mut scene = Scene::new(Some(1.5), None, None);
    scene.requests(10, Phase::Beside, |_| MS);
    assert_eq!(scene.tracker.take_judged(), Judged::default(), "against nothing");
    scene.baseline();
    scene.requests(10, Phase::Beside, |number| number * MS);
    assert_eq!(scene.tracker.take_judged(), Judged { within: 3, beyond: 6, unknown: 1 });
    assert_eq!(scene.tracker.take_judged(), Judged::default());
}

#[test]
fn s5_best_effort_holds_for_a_baseline_and_not_for_ever() {
    let mut scene = Scene::new(Some(1.2), None, None);
    assert!(scene.tracker.wants_baseline());
    scene.baseline();
    assert!(!scene.tracker.wants_baseline(), "it is there");
    scene.later(Nanos::from_secs(3_600));
    scene.requests(10, Phase::Beside, |_| MS);
    assert!(!scene.tracker.wants_baseline(), "it is not taken again");

    // Ten requests a second are too few for ten seconds.
    let mut scene = Scene::new(Some(1.2), None, None);
    let mut slow = |seconds: u64, phase| {
        let mut held = 0;
        for _ in 0..10 * seconds {
            scene.now += Nanos(100 * MS);
            held += u64::from(scene.tracker.wants_baseline());
            scene.step(Event::Request { end: scene.now, took: Some(Nanos(MS)), phase });
            scene.step(Event::Time);
        }
        held
    };
    assert_eq!(slow(20, Phase::Alone), 100);
    assert_eq!(slow(85, Phase::Beside), 0, "a pause of ten times as long");
    assert_eq!(slow(10, Phase::Alone), 50, "the pause ends after 110 s");
}

#[test]
fn s5_nobody_holds_for_a_tenant_without_requests() {
    let slo = Slo { slowdown: Some(1.2), p99: None };
    let mut scene = Scene {
        tracker: Tracker::new(Config { slo, baseline: None }),
        now: Nanos::from_secs(1),
        said: Vec::new(),
    };
    scene.later(Nanos::from_secs(1));
    assert!(!scene.tracker.wants_baseline());
    scene.requests(1, Phase::Beside, |_| MS);
    assert!(scene.tracker.wants_baseline());
    scene.later(IDLE);
    assert!(!scene.tracker.wants_baseline());
}

#[test]
fn s6_what_is_known_needs_no_hold() {
    let mut scene = Scene::new(Some(2.0), None, Some(MS));
    scene.requests(300, Phase::Beside, |_| MS);
    assert!(!scene.tracker.wants_baseline());
    assert_eq!(scene.verdict(), Ok(Verdict::Kept));
    assert_eq!(scene.status().baseline.source, BaselineSource::Given);
    let mut scene = Scene::new(None, Some(2 * MS), None);
    scene.requests(300, Phase::Beside, |_| MS);
    assert!(!scene.tracker.wants_baseline());
    assert_eq!(scene.verdict(), Ok(Verdict::Kept));
    // Of two promises the narrower one.
    let bound = |slowdown, p99| Scene::new(Some(slowdown), Some(p99), Some(MS)).tracker.bound();
    assert_eq!([bound(2.0, 3 * MS), bound(4.0, 3 * MS)], [Some(Nanos(2 * MS)), Some(Nanos(3 * MS))]);
}

#[test]
fn s7_a_baseline_follows_and_what_is_unclear_does_not_count() {
    let mut scene = Scene::new(Some(1.2), None, None);
    scene.requests(NEEDED, Phase::Unclear, |_| 9 * MS);
    assert_eq!((scene.status().baseline.requests, scene.status().beside.requests), (0, 0));
    scene.baseline();
    scene.requests(WINDOW_REQUESTS as u64, Phase::Alone, |_| 3 * MS);
    assert_eq!(scene.status().baseline.p99_ns, Some(Nanos(3 * MS)));
    scene.step(Event::Started);
    scene.requests(WARM_UP, Phase::Alone, |_| 50 * MS);
    assert_eq!(scene.status().baseline.p99_ns, Some(Nanos(3 * MS)), "a program begins slowly");
    assert_eq!(scene.status().requests, 2 * (NEEDED + WARM_UP) + WINDOW_REQUESTS as u64);
}

fn any_event() -> impl Strategy<Value = (u64, Event)> {
    let phases = vec![Phase::Alone, Phase::Beside, Phase::Spared, Phase::Unclear];
    let phase = proptest::sample::select(phases);
    let took = proptest::option::weighted(0.9, (1u64..u64::MAX).prop_map(Nanos));
    let request = (any::<u64>(), took, phase);
    let request = request.prop_map(|(end, took, phase)| Event::Request { end: Nanos(end), took, phase });
    let neighbour = (0u32..4, any::<u64>());
    let neighbour =
        neighbour.prop_map(|(id, time)| Event::Neighbour { tenant: TenantId(id), time: Nanos(time) });
    let event = prop_oneof![
        8 => request,
        2 => Just(Event::Time),
        1 => neighbour,
        1 => any::<u64>().prop_map(|requests| Event::Lost { requests }),
        1 => Just(Event::Started),
    ];
    (0u64..1 << 34, event)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_guaranteed_that_was_not_measured(
        slowdown in proptest::option::of(1.0f64..3.0),
        p99 in proptest::option::of(1u64..u64::MAX),
        baseline in proptest::option::of(1u64..u64::MAX),
        events in proptest::collection::vec(any_event(), 0..400),
    ) {
        let slo = Slo { slowdown, p99: p99.map(Nanos) };
        let mut tracker = Tracker::new(Config { slo, baseline: baseline.map(Nanos) });
        let (mut now, mut said) = (Nanos::ZERO, Vec::new());
        let mut open = false;
        for (wait, event) in events {
            now = now.saturating_add(Nanos(wait));
            let before = said.len();
            tracker.step(now, event, &mut said);
            for happening in &said[before..] {
                match happening {
                    Happening::Broken { .. } => prop_assert!(!std::mem::replace(&mut open, true)),
                    Happening::Mended { .. } => prop_assert!(std::mem::replace(&mut open, false)),
                    Happening::Baseline { requests, .. } => prop_assert!(*requests >= NEEDED),
                }
            }
            let status = tracker.status(now, &[]);
            if status.verdict == Verdict::Kept {
                let above = status.above.unwrap();
                prop_assert!(above.requests >= 299 && above.is_allowed());
            }
            if status.verdict == Verdict::Broken {
                prop_assert!(status.above.is_some_and(|above| above.above > 0));
            }
            prop_assert_eq!(status.reasons.is_empty(), status.verdict != Verdict::NotGuaranteed);
            let samples = status.beside.requests - status.beside.overlapping;
            prop_assert!(status.beside.p99_ns.is_none() || samples >= NEEDED);
            prop_assert_eq!(status.broken_for_ns.is_some(), open);
            prop_assert!(status.beside.requests <= WINDOW_REQUESTS as u64);
        }
    }

    /// Whatever comes when, best-effort tenants hold for no more than a limit at a time, and for little of all time.
    #[test]
    fn holds_are_short_and_rare(waits in proptest::collection::vec((0u64..3_000, any::<bool>()), 0..2_000)) {
        let slo = Slo { slowdown: Some(1.2), p99: None };
        let mut tracker = Tracker::new(Config { slo, baseline: None });
        let (mut now, mut said) = (Nanos::ZERO, Vec::new());
        let (mut since, mut held, mut longest) = (None, 0, 0);
        for (wait, request) in waits {
            let longer = Nanos::from_millis(wait);
            now = now.saturating_add(longer);
            if request {
                let (took, phase) = (Some(Nanos(MS)), Phase::Beside);
                tracker.step(now, Event::Request { end: now, took, phase }, &mut said);
            }
            held += if since.is_some() { longer.0 } else { 0 };
            longest = longest.max(since.map_or(0, |since: Nanos| now.saturating_sub(since).0));
            tracker.step(now, Event::Time, &mut said);
            since = tracker.wants_baseline().then(|| since.unwrap_or(now));
        }
        // It is only told the time every 3 s here.
        prop_assert!(longest < HOLD_TIME.0 + 3_000 * MS);
        prop_assert!(held as f64 <= now.0 as f64 / PAUSE as f64 + (HOLD_TIME.0 + 3_000 * MS) as f64);
    }

    #[test]
    fn a_status_survives_its_json(times in proptest::collection::vec(0u64..4, 0..1_200)) {
        let mut scene = Scene::new(Some(1.5), Some(2 * MS), Some(MS));
        let times: Vec<u64> = times.iter().map(|time| time * MS).collect();
        scene.requests(times.len() as u64, Phase::Beside, |number| times[number as usize]);
        let status = scene.status();
        let text = serde_json::to_string(&status).unwrap();
        prop_assert_eq!(serde_json::from_str::<Status>(&text).unwrap(), status);
    }
}
