use partywall_core::sm_arbiter::MAX_BACKOFF;
use partywall_core::tenant::Share;
use partywall_core::units::SmCount;
use partywall_shim_api::page::SmSet;
use proptest::prelude::*;

use super::*;

const LS: Class = Class::LatencySensitive;
const BE: Class = Class::BestEffort;
const RELEASE: Nanos = Nanos::from_micros(50);

struct Scene {
    squeeze: Squeeze,
    watch: Arc<TurnWatch>,
    pages: Vec<Arc<Mapped>>,
    now: Nanos,
}

impl Scene {
    fn new(classes: &[Class]) -> Self {
        Self::with(classes, LaunchOptions::default())
    }

    fn with(classes: &[Class], options: LaunchOptions) -> Self {
        let options = LaunchOptions { decided: true, release: RELEASE, ..options };
        let watch = Arc::new(TurnWatch::default());
        let squeeze = Squeeze::new(options, Arc::clone(&watch));
        let mut scene = Self { squeeze, watch, pages: Vec::new(), now: Nanos::from_millis(1) };
        classes.iter().for_each(|&class| scene.add(class));
        // Released, and for so long that the next request does not come too soon after that.
        scene.later(Nanos::from_millis(1));
        scene.later(Nanos::from_millis(1));
        scene
    }

    fn add(&mut self, class: Class) {
        self.add_page(class, Mapped::create(1, 0, 0, None).unwrap().0);
    }

    /// A best-effort process that can be squeezed.
    fn add_squeezed(&mut self) {
        let page = Mapped::create(1, 0, 0, None).unwrap().0;
        page.header.set_squeezed(SmSet { first: 58, groups: 8, sms_per_group: 2 });
        self.add_page(BE, page);
    }

    fn add_page(&mut self, class: Class, page: Mapped) {
        let page = Arc::new(page);
        let number = self.pages.len() as u32;
        self.squeeze.add(self.now, ProcessId(u64::from(number)), TenantId(number), class, &page);
        self.pages.push(page);
    }

    /// So much later; whether there is anything to look for.
    fn later(&mut self, time: Nanos) -> bool {
        self.now = self.now.saturating_add(time);
        let now = self.now;
        self.squeeze.look(|| now)
    }

    fn active(&mut self, process: usize, active: bool) {
        self.pages[process].shim.active.store(u32::from(active), Ordering::Relaxed);
        self.later(Nanos(0));
    }

    fn told(&self) -> Vec<u32> {
        self.pages.iter().map(|page| page.node.hold.load(Ordering::Relaxed)).collect()
    }

    fn holds(&self) -> Vec<bool> {
        self.pages.iter().map(|page| page.node.hold.load(Ordering::Relaxed) != 0).collect()
    }
}

#[test]
fn s1_best_effort_holds_while_a_request_runs() {
    let mut scene = Scene::new(&[LS, BE, BE]);
    let node = &scene.pages[1].node;
    let told = [&node.chunks_max, &node.chunk_ns, &node.launches_per_chunk];
    assert_eq!(told.map(|word| word.load(Ordering::Relaxed)), [2, 100_000, 16]);
    assert_eq!(scene.holds(), [false; 3]);
    scene.active(0, true);
    assert_eq!(scene.holds(), [false, true, true]);
    assert!(scene.later(Nanos::from_millis(3)));
    assert_eq!(scene.holds(), [false, true, true]);
    scene.active(0, false);
    assert!(scene.later(Nanos(RELEASE.0 - 1)));
    assert_eq!(scene.holds(), [false, true, true], "another request may follow");
    assert!(!scene.later(Nanos(1)));
    assert_eq!(scene.holds(), [false; 3]);
    // Somebody has to look while there is work that a request might meet.
    scene.pages[2].shim.chunks[7].store(1, Ordering::Relaxed);
    assert!(scene.later(Nanos(1)));
}

#[test]
fn s2_all_must_be_idle() {
    let mut scene = Scene::new(&[LS, LS, BE]);
    scene.active(0, true);
    scene.active(1, true);
    scene.active(0, false);
    scene.later(Nanos::from_millis(9));
    assert_eq!(scene.holds(), [false, false, true]);
    scene.active(1, false);
    scene.later(Nanos::from_millis(9));
    assert_eq!(scene.holds(), [false; 3]);
}

#[test]
fn s3_who_is_active_for_ever_does_not_count() {
    let mut scene = Scene::new(&[LS, BE]);
    scene.active(0, true);
    scene.later(Nanos(LIMIT.0 - 1));
    assert_eq!(scene.holds(), [false, true]);
    scene.later(Nanos(1));
    scene.later(Nanos::from_millis(1));
    assert_eq!(scene.holds(), [false; 2]);
    scene.active(0, false);
    scene.active(0, true);
    assert_eq!(scene.holds(), [false, true]);
}

#[test]
fn s4_processes_come_and_go() {
    let mut scene = Scene::new(&[LS, BE]);
    scene.active(0, true);
    scene.add(BE);
    scene.later(Nanos::from_millis(1));
    assert_eq!(scene.holds(), [false, true, true]);
    scene.squeeze.remove(scene.now, ProcessId(0));
    scene.later(Nanos::from_millis(1));
    assert_eq!(scene.holds(), [false; 3]);
    scene.squeeze.remove(scene.now, ProcessId(1));
    scene.squeeze.remove(scene.now, ProcessId(2));
    assert!(!scene.later(Nanos::from_millis(1)));
}

#[test]
fn s4_a_tenant_is_idle_when_its_active_process_has_gone() {
    let mut scene = Scene::new(&[LS, BE]);
    let sibling = Arc::new(Mapped::create(1, 0, 0, None).unwrap().0);
    scene.squeeze.add(scene.now, ProcessId(9), TenantId(0), LS, &sibling);
    sibling.shim.active.store(1, Ordering::Relaxed);
    scene.later(Nanos(0));
    assert_eq!(scene.holds(), [false, true]);
    scene.squeeze.remove(scene.now, ProcessId(9));
    scene.later(Nanos::from_millis(1));
    assert_eq!(scene.holds(), [false; 2]);
}

#[test]
fn s5_alone_nobody_holds() {
    for class in [LS, BE] {
        let mut scene = Scene::new(&[class, class]);
        scene.active(0, true);
        assert!(!scene.later(Nanos::from_millis(1)), "nothing to look for");
        assert_eq!(scene.holds(), [false; 2]);
    }
}

#[test]
fn s6_all_best_effort_processes_hold_while_something_is_measured() {
    let mut scene = Scene::new(&[LS, BE]);
    let word = |scene: &Scene, process: usize| scene.pages[process].node.hold.load(Ordering::Relaxed);
    let until = scene.now.saturating_add(Nanos::from_millis(300));
    scene.squeeze.hold_until(scene.now, until);
    assert_eq!(
        (scene.squeeze.deadline(), word(&scene, 0), word(&scene, 1)),
        (Some(until), 0, HOLD_MEASURING)
    );
    scene.add(BE);
    assert_eq!(word(&scene, 2), HOLD_MEASURING);
    scene.active(0, true);
    scene.later(Nanos::from_millis(299));
    assert_eq!(word(&scene, 1), HOLD_MEASURING);
    scene.later(Nanos::from_millis(1));
    assert_eq!((scene.squeeze.deadline(), word(&scene, 1), word(&scene, 2)), (None, 1, 1), "a request runs");
    scene.active(0, false);
    scene.later(Nanos::from_millis(9));
    assert_eq!(scene.holds(), [false; 3]);
    // Called off, and for the time while there is nobody else.
    scene.squeeze.hold_until(scene.now, scene.now.saturating_add(Nanos(9)));
    scene.squeeze.remove(scene.now, ProcessId(0));
    assert_eq!(word(&scene, 1), HOLD_MEASURING);
    scene.squeeze.hold_until(scene.now, scene.now);
    assert_eq!(scene.holds(), [false; 3]);
}

#[test]
fn options_are_parts_of_a_text() {
    let parse = |text: &str| text.parse::<LaunchOptions>().map_err(|error| error.to_string());
    let on = LaunchOptions { decided: true, ..LaunchOptions::default() };
    assert_eq!(parse(""), Ok(on));
    assert_eq!(parse("chunks=1, launches=8"), Ok(LaunchOptions { chunks: 1, launches: 8, ..on }));
    assert_eq!(parse("chunk=0us,launches=4"), Ok(LaunchOptions { chunk: Nanos::ZERO, launches: 4, ..on }));
    assert_eq!(parse("chunk=250us").map(|options| options.chunk), Ok(Nanos::from_micros(250)));
    assert_eq!(parse("off").map(|options| options.decided), Ok(false));
    let short = parse("slice=50us,turn=20ms").map(|options| (options.slice, options.turn));
    assert_eq!(short, Ok((Some(SLICE_MIN), Nanos::from_millis(20))));
    let squeezed = |text| parse(text).map(|options| options.squeezed);
    assert_eq!(squeezed("squeezed=16"), Ok(Some(Share::Sms(SmCount(16)))));
    assert_eq!(squeezed("squeezed=12%,chunks=1"), Ok(Some(Share::Percent(12))));
    assert_eq!(parse("duty=25%").map(|options| options.duty_percent), Ok(Some(25)));
    assert_eq!(parse("release=1ms").map(|options| options.release), Ok(Nanos::from_millis(1)));
    for (text, says) in [
        ("chunks=17", "1 to 16"),
        ("launches=0", "at least 1"),
        ("chunky=1", "chunks=2"),
        ("chunks=x", "x"),
        ("chunk=5s", "at most 4 s"),
        ("squeezed=all", "write a percentage"),
        ("turn=100us", "1 to 1000 ms"),
        ("turn=2s", "1 to 1000 ms"),
        ("duty=100%", "1% to 99%"),
        ("duty=0%", "1% to 99%"),
        ("duty=50", "1% to 99%"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}

#[test]
fn s7_a_setting_holds_for_those_that_are_there_and_those_that_come() {
    let mut scene = Scene::new(&[LS, BE]);
    scene.active(0, true);
    assert_eq!(scene.holds(), [false, true]);
    let free = Setting { hold: false, squeezed: false, duty_percent: 100, chunk: Nanos::from_micros(400) };
    scene.squeeze.set(scene.now, free);
    assert_eq!(scene.holds(), [false; 2]);
    scene.add(BE);
    assert_eq!(scene.holds(), [false; 3]);
    let chunks = |scene: &Scene| [1, 2].map(|at| scene.pages[at].node.chunk_ns.load(Ordering::Relaxed));
    assert_eq!(chunks(&scene), [400_000; 2]);
    // The newcomer has changed who there is; the request goes on.
    scene.later(Nanos(0));
    scene.squeeze.set(scene.now, LaunchOptions::default().setting(false));
    assert_eq!((scene.holds(), chunks(&scene)), (vec![false, true, true], [100_000; 2]));
}

#[test]
fn s8_who_has_a_squeezed_set_is_squeezed_and_not_held() {
    let mut scene = Scene::new(&[LS, BE]);
    scene.add_squeezed();
    scene.later(Nanos::from_millis(9));
    scene.later(Nanos::from_millis(9));
    scene.squeeze.set(scene.now, LaunchOptions::default().setting(true));
    let told = |scene: &Scene| {
        let node = |at: usize| &scene.pages[at].node;
        let hold = [1, 2].map(|at| node(at).hold.load(Ordering::Relaxed));
        (hold, node(1).resized_ns.load(Ordering::Relaxed), node(2).resized_ns.load(Ordering::Relaxed))
    };
    scene.active(0, true);
    let squeezed_at = scene.now.0;
    assert_eq!(told(&scene), ([1, HOLD_SQUEEZED], 0, squeezed_at));
    scene.later(Nanos::from_millis(3));
    assert_eq!(told(&scene), ([1, HOLD_SQUEEZED], 0, squeezed_at), "nothing has changed since");
    // A safer setting, and something that is measured.
    scene.squeeze.set(scene.now, LaunchOptions::default().setting(false));
    assert_eq!(told(&scene), ([1, 1], 0, scene.now.0));
    scene.squeeze.set(scene.now, LaunchOptions::default().setting(true));
    scene.squeeze.hold_until(scene.now, scene.now.saturating_add(Nanos(1)));
    assert_eq!(told(&scene).0, [HOLD_MEASURING; 2]);
    scene.later(Nanos(1));
    assert_eq!(told(&scene).0, [1, HOLD_SQUEEZED]);
    scene.active(0, false);
    scene.later(Nanos::from_millis(3));
    assert_eq!(told(&scene), ([0, 0], 0, scene.now.0));
}

const SHORT: LaunchOptions =
    LaunchOptions { decided: true, release: RELEASE, slice: Some(SLICE_MIN), ..LaunchOptions::DEFAULT };

/// Best-effort processes work for half of the time beside a request, in chunks of 100 us.
const HALF: LaunchOptions = LaunchOptions { duty_percent: Some(50), slice: None, ..SHORT };

#[test]
fn s10_beside_requests_they_work_for_a_part_of_the_time() {
    let mut scene = Scene::with(&[LS, BE], HALF);
    assert_eq!(scene.holds(), [false; 2], "nobody has a request");
    scene.active(0, true);
    assert_eq!(scene.holds(), [false, true], "no credit to begin with");
    let chunk = |scene: &Scene, there: u32| scene.pages[1].shim.chunks[0].store(there, Ordering::Relaxed);
    let (mut busy, mut free) = (0, 0);
    for _ in 0..4_000 {
        let may = !scene.holds()[1];
        chunk(&scene, u32::from(may));
        (busy, free) = if may { (busy + 1, free) } else { (busy, free + 1) };
        assert!(scene.later(Nanos::from_micros(5)), "it is looked at all the time");
    }
    assert!((1_900..=2_100).contains(&busy), "at work in {busy} of {} looks", busy + free);
    chunk(&scene, 0);
    scene.active(0, false);
    scene.later(Nanos::from_millis(10));
    assert_eq!(scene.holds(), [false; 2], "all of the time is theirs");
    // What is squeezed is held as well when its part is used up.
    let mut scene = Scene::with(&[LS], HALF);
    scene.add_squeezed();
    scene.later(Nanos::from_millis(9));
    scene.squeeze.set(scene.now, HALF.setting(true));
    scene.active(0, true);
    assert_eq!(scene.told()[1], 1);
    scene.later(Nanos::from_micros(200));
    assert_eq!(scene.told()[1], HOLD_SQUEEZED);
}

impl Scene {
    fn works(&mut self, process: usize, waits: bool, chunks: u32) {
        let shim = &self.pages[process].shim;
        shim.waiting.store(u32::from(waits), Ordering::Relaxed);
        shim.chunks[1].store(chunks, Ordering::Relaxed);
        self.later(Nanos(0));
    }
}

#[test]
fn s9_with_short_slices_one_best_effort_process_at_a_time_launches() {
    let mut scene = Scene::with(&[LS, BE, BE], SHORT);
    assert_eq!(scene.told(), [0, 0, HOLD_TURN]);
    scene.works(1, true, 1);
    assert_eq!(scene.told(), [0, 0, HOLD_TURN], "who has the turn waits for its chunks, no more");
    scene.works(2, true, 0);
    assert!(scene.later(Nanos(TURN.0 / 2)), "somebody waits for the turn");
    assert_eq!(scene.told(), [0, 0, HOLD_TURN]);
    scene.later(Nanos(TURN.0));
    assert_eq!(scene.told(), [0, HOLD_TURN, HOLD_TURN], "what is on the device has to be through");
    scene.works(1, true, 0);
    assert_eq!(scene.told(), [0, HOLD_TURN, 0]);
    scene.works(2, false, 1);
    // A request stops all of them, and the turn stays where it is.
    scene.active(0, true);
    assert_eq!(scene.told(), [0, HOLD_TURN, 1]);
    scene.later(TURN);
    assert_eq!(scene.told(), [0, HOLD_TURN, 1]);
    scene.squeeze.hold_until(scene.now, scene.now.saturating_add(Nanos(1)));
    assert_eq!(scene.told(), [0, HOLD_MEASURING, HOLD_MEASURING]);
    scene.later(Nanos(1));
    scene.active(0, false);
    scene.later(Nanos(RELEASE.0 * MAX_BACKOFF));
    assert_eq!(scene.told(), [0, HOLD_TURN, 0]);
    // Who is gone leaves its turn to others.
    scene.squeeze.remove(scene.now, ProcessId(2));
    scene.later(Nanos(0));
    scene.later(RELEASE);
    assert_eq!(scene.told(), [0, 0, 0]);
    assert_eq!(scene.watch.turns.load(Ordering::Relaxed), 3);
}

#[test]
fn s9_who_is_not_through_is_said_to_overlap() {
    let mut scene = Scene::with(&[LS, BE, BE], SHORT);
    scene.works(1, true, 1);
    scene.works(2, true, 0);
    scene.later(TURN);
    assert!(!scene.watch.is_shared(scene.now));
    scene.later(in_turns::LATE);
    assert_eq!(scene.told(), [0, HOLD_TURN, 0]);
    let counts = |scene: &Scene| {
        let watch = &scene.watch;
        [&watch.turns, &watch.late, &watch.overlaps].map(|count| count.load(Ordering::Relaxed))
    };
    assert_eq!(counts(&scene), [2, 1, 1]);
    assert!(scene.watch.is_shared(scene.now));
    scene.works(1, true, 0);
    scene.later(in_turns::OVERLAPPED);
    assert!(!scene.watch.is_shared(scene.now));
    assert_eq!(counts(&scene), [2, 1, 1], "once, however often it was looked at");
}

#[test]
fn s9_a_squeezed_process_goes_on_in_its_turn_only() {
    let mut scene = Scene::with(&[LS], SHORT);
    for number in 1..3 {
        let page = Arc::new(Mapped::create(1, 0, 0, None).unwrap().0);
        page.header.set_squeezed(SmSet { first: 58, groups: 8, sms_per_group: 2 });
        scene.squeeze.add(scene.now, ProcessId(number), TenantId(number as u32), BE, &page);
        scene.pages.push(page);
    }
    scene.squeeze.set(scene.now, SHORT.setting(true));
    scene.active(0, true);
    scene.works(1, true, 1);
    scene.works(2, true, 0);
    assert_eq!(scene.told(), [0, HOLD_SQUEEZED, HOLD_TURN]);
    // It goes on, so the time is its.
    scene.later(TURN);
    scene.works(1, true, 0);
    assert_eq!(scene.told(), [0, HOLD_TURN, HOLD_SQUEEZED]);
}

#[test]
fn turns_are_for_short_slices_of_who_can_be_held() {
    assert!(SHORT.takes_turns() && LaunchOptions { steered: false, ..SHORT }.takes_turns());
    let not = [
        LaunchOptions { decided: false, ..SHORT },
        LaunchOptions { slice: None, ..SHORT },
        LaunchOptions { slice: Some(SHARED_SLICE), ..SHORT },
    ];
    assert!(not.iter().all(|options| !options.takes_turns()));
    assert_eq!([false, true].map(|share| SHORT.slice_us(BE, share)), [50, 1_000]);
    assert_eq!(SHORT.slice_us(LS, true), 20_000);
}

#[test]
fn settings_go_from_safe_to_free_and_have_the_one_that_was_asked_for() {
    let options = LaunchOptions::default();
    let settings = options.settings(false);
    assert_eq!(settings[0].to_string(), "held for requests, chunks of 25 us");
    assert_eq!(
        settings[4].to_string(),
        "not held, at work for 50 % of the time beside them, chunks of 100 us"
    );
    assert_eq!(settings[6].to_string(), "not held, chunks of 400 us");
    assert!(settings.contains(&options.setting(false)) && settings.len() == 7);
    let squeezing = options.settings(true);
    assert_eq!(squeezing[5].to_string(), "squeezed for requests, chunks of 100 us");
    assert!(squeezing.contains(&options.setting(true)) && squeezing.len() == 10);
    for squeezes in [false, true] {
        let options = LaunchOptions { duty_percent: Some(30), ..options };
        let setting = options.setting(squeezes);
        assert_eq!((setting.hold, setting.squeezed, setting.duty_percent), (squeezes, squeezes, 30));
        assert!(options.settings(squeezes).contains(&setting));
    }
    let counted = LaunchOptions { chunk: Nanos::ZERO, ..options };
    assert_eq!((counted.settings(false).len(), counted.settings(true).len()), (3, 5));
}

/// What can happen to three latency-sensitive and two best-effort processes.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Active(usize, bool),
    Later(u64),
    Gone(usize),
    Measuring(u64),
    Setting(bool),
    Duty(u32),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        4 => (0usize..3, any::<bool>()).prop_map(|(who, active)| Happens::Active(who, active)),
        4 => (0u64..2_000_000).prop_map(Happens::Later),
        1 => (0usize..5).prop_map(Happens::Gone),
        1 => (0u64..5_000_000).prop_map(Happens::Measuring),
        1 => any::<bool>().prop_map(Happens::Setting),
        1 => (1_u32..=100).prop_map(Happens::Duty),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever happened: while somebody is active best-effort processes hold, if they are to; and once nobody is, they go on after the
    /// hysteresis, which is bounded, also when somebody says for ever that it is at work.
    #[test]
    fn nobody_is_held_for_nothing(
        steps in proptest::collection::vec(happens(), 0..40),
        left_active in any::<bool>(),
    ) {
        let mut scene = Scene::new(&[LS, LS, LS, BE, BE]);
        let (mut is_held, mut there) = (true, [true; 5]);
        for step in steps {
            match step {
                Happens::Active(who, active) => scene.active(who, active),
                Happens::Later(time) => drop(scene.later(Nanos(time))),
                Happens::Gone(who) => {
                    scene.squeeze.remove(scene.now, ProcessId(who as u64));
                    there[who] = false;
                }
                Happens::Measuring(time) => {
                    let now = scene.now;
                    scene.squeeze.hold_until(now, now.saturating_add(Nanos(time)));
                }
                Happens::Setting(hold) => {
                    let setting = Setting { hold, ..LaunchOptions::default().setting(false) };
                    scene.squeeze.set(scene.now, setting);
                    is_held = hold;
                }
                Happens::Duty(duty_percent) => {
                    let setting = LaunchOptions::default().setting(false);
                    scene.squeeze.set(scene.now, Setting { hold: false, duty_percent, ..setting });
                    is_held = false;
                }
            }
            let holds = scene.holds();
            prop_assert_eq!(&holds[..3], [false; 3], "latency-sensitive ones never do");
            // A time of activity that is over counts no more, so this is about those that began just now.
            if let Happens::Active(who, true) = step
                && is_held
                && there[who]
                && scene.squeeze.processes[&ProcessId(who as u64)].since == scene.now
            {
                prop_assert!((3..5).all(|be| !there[be] || holds[be]), "{:?}", holds);
            }
        }
        (0..3).for_each(|who| scene.pages[who].shim.active.store(u32::from(left_active), Ordering::Relaxed));
        scene.later(Nanos(0));
        let hysteresis = RELEASE.0 * MAX_BACKOFF;
        scene.later(Nanos(LIMIT.0 + 5_000_000));
        scene.later(Nanos(hysteresis));
        scene.later(Nanos(0));
        let holds = scene.holds();
        prop_assert!((3..5).all(|be| !there[be] || !holds[be]), "{:?}", holds);
    }
}
