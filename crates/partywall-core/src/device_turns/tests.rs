use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;

const CONFIG: Config =
    Config { turn: Nanos(1_000), idle: Nanos(50), unmarked: Nanos(200), late: Nanos(5_000) };

const REST: Work = Work { waits: false, under_way: false, unmarked: 0 };
const WAITS: Work = Work { waits: true, ..REST };
const RUNS: Work = Work { under_way: true, ..REST };
const BOTH: Work = Work { waits: true, ..RUNS };

/// Processes by letters, and what was said since the last question.
struct Bench {
    turns: DeviceTurns<char>,
    said: Vec<Action<char>>,
}

impl Bench {
    fn new(processes: &str) -> Self {
        let mut bench = Self { turns: DeviceTurns::new(CONFIG), said: Vec::new() };
        processes.chars().for_each(|process| drop(bench.at(0, Event::Came { process })));
        bench
    }

    fn at(&mut self, now: u64, event: Event<char>) -> String {
        let from = self.said.len();
        self.turns.step(Nanos(now), event, &mut self.said);
        let show = |action: &Action<char>| match action {
            Action::Release { process } => format!("+{process}"),
            Action::Hold { process } => format!("-{process}"),
            Action::Late { process } => format!("late {process}"),
        };
        self.said[from..].iter().map(show).collect::<Vec<_>>().join(" ")
    }

    fn work(&mut self, now: u64, process: char, work: Work) -> String {
        self.at(now, Event::Work { process, work })
    }

    fn look(&mut self, now: u64) -> String {
        self.at(now, Event::Looked)
    }

    fn deadline(&self) -> Option<u64> {
        self.turns.deadline().map(|at| at.0)
    }
}

#[test]
fn t1_one_alone_keeps_the_turn() {
    let mut bench = Bench::new("");
    assert_eq!(bench.at(0, Event::Came { process: 'a' }), "+a");
    assert_eq!(bench.at(0, Event::Came { process: 'b' }), "");
    for (now, work) in [(10, RUNS), (9_000, BOTH), (20_000, REST), (90_000, WAITS)] {
        assert_eq!(bench.work(now, 'a', work), "");
        assert_eq!((bench.look(now), bench.deadline()), (String::new(), None));
    }
    assert!(!bench.turns.is_contested() && bench.turns.turn() == Some('a'));
}

#[test]
fn t2_turns_change_when_the_other_is_through() {
    let mut bench = Bench::new("ab");
    bench.work(10, 'a', BOTH);
    assert_eq!(bench.work(400, 'b', WAITS), "");
    assert_eq!(bench.deadline(), Some(1_000));
    assert_eq!(bench.look(999), "");
    assert_eq!(bench.look(1_000), "-a");
    assert!(bench.turns.is_changing() && bench.turns.turn().is_none());
    assert_eq!(bench.look(1_001), "", "it has something on the device still");
    bench.work(1_100, 'a', WAITS);
    assert!(bench.turns.is_changing(), "what it launched before it held may not have been seen");
    assert_eq!(bench.look(1_100), "+b");
    bench.work(1_110, 'b', BOTH);
    assert_eq!(bench.deadline(), Some(2_100));
    assert_eq!(bench.look(2_100), "-b");
    bench.work(2_110, 'b', WAITS);
    assert_eq!(bench.look(2_110), "+a");
}

#[test]
fn t3_who_rests_loses_the_turn_after_a_moment() {
    let mut bench = Bench::new("ab");
    bench.work(10, 'a', RUNS);
    bench.work(20, 'b', WAITS);
    bench.work(100, 'a', REST);
    assert_eq!(bench.deadline(), Some(150));
    bench.work(140, 'a', RUNS);
    assert_eq!(bench.look(160), "", "it went on in time");
    bench.work(200, 'a', REST);
    assert_eq!(bench.look(250), "-a");
    assert_eq!(bench.look(250), "+b");
    // Nothing is owed to who rested.
    bench.work(600, 'a', WAITS);
    assert_eq!(bench.deadline(), Some(1_250));
}

#[test]
fn t3_an_idle_turn_goes_to_who_waits() {
    let mut bench = Bench::new("ab");
    assert_eq!(bench.work(70_000, 'b', WAITS), "-a");
    assert_eq!(bench.look(70_000), "+b");
}

#[test]
fn t4_unmarked_launches_are_given_time() {
    let mut bench = Bench::new("ab");
    bench.work(10, 'b', WAITS);
    bench.work(20, 'a', Work { unmarked: 3, ..REST });
    assert_eq!(bench.look(219), "");
    assert_eq!(bench.look(220), "-a");
    assert_eq!(bench.look(220), "+b", "they have had their time");
    bench.work(300, 'b', Work { unmarked: 1, ..BOTH });
    bench.work(300, 'a', WAITS);
    assert_eq!(bench.look(1_300), "-b");
    bench.work(1_400, 'b', Work { unmarked: 1, ..WAITS });
    assert_eq!(bench.deadline(), Some(1_600));
    assert_eq!((bench.look(1_599), bench.look(1_600)), (String::new(), "+a".to_owned()));
}

#[test]
fn t5_who_is_late_is_waited_for_no_longer() {
    let mut bench = Bench::new("ab");
    bench.work(0, 'a', RUNS);
    bench.work(0, 'b', WAITS);
    assert_eq!(bench.look(1_000), "-a");
    assert_eq!((bench.look(5_999), bench.deadline()), (String::new(), Some(6_000)));
    assert_eq!(bench.look(6_000), "late a +b");
    assert!(bench.turns.overlaps());
    // It is not waited for again before it was through once.
    bench.work(6_001, 'b', RUNS);
    bench.work(6_001, 'a', BOTH);
    assert_eq!(bench.look(12_000), "-b");
    bench.work(12_001, 'b', REST);
    assert_eq!(bench.look(12_001), "+a");
    bench.work(12_002, 'a', WAITS);
    assert!(!bench.turns.overlaps());
}

#[test]
fn t6_kernels_longer_than_a_turn_are_made_good_for() {
    let mut bench = Bench::new("ab");
    bench.work(0, 'a', BOTH);
    bench.work(0, 'b', WAITS);
    assert_eq!(bench.look(1_000), "-a");
    bench.work(4_000, 'a', WAITS);
    assert_eq!(bench.look(4_000), "+b");
    bench.work(4_000, 'b', BOTH);
    assert_eq!(bench.deadline(), Some(8_000), "four turns");
}

#[test]
fn t7_time_in_which_all_are_held_counts_a_tenth() {
    let mut bench = Bench::new("ab");
    bench.work(0, 'a', BOTH);
    bench.work(0, 'b', WAITS);
    bench.at(600, Event::Held(true));
    assert_eq!(bench.deadline(), Some(4_600));
    bench.at(1_600, Event::Held(false));
    assert_eq!(bench.deadline(), Some(1_900));
    bench.at(1_600, Event::Held(true));
    assert_eq!(bench.look(4_600), "-a");
}

#[test]
fn t8_who_goes_takes_nothing_along() {
    let mut bench = Bench::new("abc");
    bench.work(0, 'a', RUNS);
    bench.work(0, 'c', WAITS);
    // With the turn.
    assert_eq!(bench.at(10, Event::Gone { process: 'a' }), "");
    assert_eq!(bench.look(10), "+c");
    // While it changes.
    bench.work(20, 'c', RUNS);
    bench.work(20, 'b', WAITS);
    assert_eq!(bench.look(1_010), "-c");
    assert_eq!(bench.at(1_020, Event::Gone { process: 'c' }), "");
    assert_eq!(bench.at(1_030, Event::Came { process: 'd' }), "");
    bench.work(1_030, 'd', WAITS);
    assert_eq!(bench.look(1_030), "+b");
    bench.work(1_030, 'b', REST);
    // The next one, while it changes; then there is nobody.
    assert_eq!(bench.look(1_080), "-b");
    bench.at(1_080, Event::Gone { process: 'd' });
    assert_eq!(bench.look(1_081), "+b", "it was taken from it for nothing");
    bench.at(1_090, Event::Gone { process: 'b' });
    assert_eq!((bench.look(1_090), bench.turns.turn()), (String::new(), None));
    assert!(!bench.turns.is_changing());
    assert_eq!(bench.at(1_100, Event::Came { process: 'e' }), "+e");
    bench.work(1_100, 'a', WAITS);
    assert_eq!(bench.deadline(), None, "nobody knows it");
}

#[test]
fn t9_who_comes_late_or_rests_gets_its_turn() {
    let mut bench = Bench::new("ab");
    bench.work(0, 'a', BOTH);
    bench.work(0, 'b', WAITS);
    let mut order = String::new();
    let mut now = 0;
    for change in 0..9 {
        if change == 3 {
            bench.at(now, Event::Came { process: 'c' });
            bench.work(now, 'c', WAITS);
        }
        now = bench.deadline().unwrap();
        let held = bench.look(now);
        let process = held.strip_prefix('-').unwrap().chars().next().unwrap();
        bench.work(now, process, WAITS);
        let released = bench.look(now);
        order.push_str(released.strip_prefix('+').unwrap());
        bench.work(now, order.chars().next_back().unwrap(), BOTH);
    }
    assert_eq!(order, "babcabcab");
}

/// What a process does, for ever: so many kernels of so long, then a rest. Times are in steps.
#[derive(Debug, Clone, Copy)]
struct Program {
    kernels: u32,
    kernel: u64,
    rest: u64,
}

#[derive(Debug)]
struct Process {
    program: Program,
    /// Kernels that it has still to launch before it rests.
    left: u32,
    rests_until: u64,
    device: VecDeque<u64>,
    released: bool,
    /// Since when it waits, as long as it does.
    waits_since: Option<u64>,
    served: u64,
}

/// Processes with a device that does one kernel at a time, in steps of [`STEP`].
struct World {
    turns: DeviceTurns<usize>,
    processes: BTreeMap<usize, Process>,
    now: u64,
    request: bool,
    late: u32,
    longest_wait: u64,
    longest_idle: u64,
    idle: u64,
}

/// Nanoseconds.
const STEP: u64 = 10;
const STEPS_OF_A_TURN: u64 = CONFIG.turn.0 / STEP;

impl World {
    fn new(programs: &[Program]) -> Self {
        let mut world = Self {
            turns: DeviceTurns::new(CONFIG),
            processes: BTreeMap::new(),
            now: 0,
            request: false,
            late: 0,
            longest_wait: 0,
            longest_idle: 0,
            idle: 0,
        };
        programs.iter().enumerate().for_each(|(name, &program)| world.come(name, program));
        world
    }

    fn come(&mut self, name: usize, program: Program) {
        let process = Process {
            program,
            left: program.kernels,
            rests_until: 0,
            device: VecDeque::new(),
            released: false,
            waits_since: None,
            served: 0,
        };
        self.processes.insert(name, process);
        self.tell(Event::Came { process: name });
    }

    fn go(&mut self, name: usize) {
        if self.processes.remove(&name).is_some() {
            self.tell(Event::Gone { process: name });
        }
    }

    fn tell(&mut self, event: Event<usize>) {
        let mut actions = Vec::new();
        self.turns.step(Nanos(self.now * STEP), event, &mut actions);
        for action in actions {
            match action {
                Action::Release { process } => self.processes.get_mut(&process).unwrap().released = true,
                Action::Hold { process } => self.processes.get_mut(&process).unwrap().released = false,
                Action::Late { .. } => self.late += 1,
            }
        }
    }

    fn step(&mut self) -> Result<(), TestCaseError> {
        self.now += 1;
        let (now, request) = (self.now, self.request);
        for process in self.processes.values_mut() {
            if now < process.rests_until {
                continue;
            }
            while process.left > 0 && process.released && !request && process.device.len() < 2 {
                process.left -= 1;
                process.device.push_back(process.program.kernel);
            }
            if process.left == 0 && process.device.is_empty() {
                process.left = process.program.kernels;
                process.rests_until = now + process.program.rest;
            }
        }
        self.run();
        let works: Vec<(usize, Work)> =
            self.processes.iter().map(|(&name, process)| (name, process.work(now, request))).collect();
        for (process, work) in works {
            self.tell(Event::Work { process, work });
        }
        self.tell(Event::Held(request));
        while self.turns.is_changing() || self.turns.deadline().is_some_and(|at| at.0 <= now * STEP) {
            let before = self.turns.is_changing();
            self.tell(Event::Looked);
            if before && self.turns.is_changing() {
                break;
            }
        }
        self.check()
    }

    /// The device does what it has, unless a request has it.
    fn run(&mut self) {
        let waits = self.processes.values().any(|process| process.waits_since.is_some());
        let mut at_work = self.processes.values_mut().filter(|process| !process.device.is_empty());
        match at_work.next() {
            Some(process) if !self.request => {
                process.served += 1;
                process.device[0] -= 1;
                if process.device[0] == 0 {
                    process.device.pop_front();
                }
                self.idle = 0;
            }
            None if waits && !self.request => self.idle += 1,
            _ => self.idle = 0,
        }
        self.longest_idle = self.longest_idle.max(self.idle);
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let released: Vec<usize> =
            self.processes.iter().filter(|(_, process)| process.released).map(|(&name, _)| name).collect();
        prop_assert!(released.len() <= 1, "{released:?}");
        prop_assert_eq!(self.turns.turn(), released.first().copied());
        let at_work = self.processes.values().filter(|process| !process.device.is_empty()).count();
        prop_assert!(at_work <= 1 || self.late > 0);
        let (now, request) = (self.now, self.request);
        for process in self.processes.values_mut() {
            let waits = process.work(now, request).waits && !process.released;
            process.waits_since = if waits { process.waits_since.or(Some(now)) } else { None };
            let waited = process.waits_since.map_or(0, |since| now - since);
            self.longest_wait = self.longest_wait.max(waited);
        }
        Ok(())
    }
}

impl Process {
    fn work(&self, now: u64, request: bool) -> Work {
        let room = self.released && !request && self.device.len() < 2;
        Work {
            waits: now >= self.rests_until && self.left > 0 && !room,
            under_way: !self.device.is_empty(),
            unmarked: 0,
        }
    }
}

fn program() -> impl Strategy<Value = Program> {
    (1u32..200, 1u64..40, 0u64..300).prop_map(|(kernels, kernel, rest)| Program { kernels, kernel, rest })
}

fn programs() -> impl Strategy<Value = Vec<Program>> {
    prop::collection::vec(program(), 1..5)
}

/// What else happens, and how many steps later.
#[derive(Debug, Clone, Copy)]
enum Happens {
    Request(bool),
    Come(usize, Program),
    Go(usize),
}

fn happens() -> impl Strategy<Value = (u64, Happens)> {
    let what = prop_oneof![
        6 => any::<bool>().prop_map(Happens::Request),
        1 => (0usize..6, program()).prop_map(|(name, program)| Happens::Come(name, program)),
        1 => (0usize..6).prop_map(Happens::Go),
    ];
    (0u64..400, what)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whoever comes, goes, works, rests or requests: one process at a time, and one after the other on the device.
    #[test]
    fn never_two_at_once(programs in programs(), events in prop::collection::vec(happens(), 0..40)) {
        let mut world = World::new(&programs);
        for (steps, event) in events {
            for _ in 0..steps {
                world.step()?;
            }
            match event {
                Happens::Request(request) => world.request = request,
                Happens::Come(name, program) if !world.processes.contains_key(&name) => world.come(name, program),
                Happens::Come(..) => {}
                Happens::Go(name) => world.go(name),
            }
        }
        // None of these kernels is that long.
        prop_assert_eq!(world.late, 0);
        // Whatever it was, everybody goes on afterwards.
        world.request = false;
        let before: Vec<u64> = world.processes.values().map(|process| process.served).collect();
        let turns = world.processes.len() as u64 * 3 + 3;
        for _ in 0..turns * (STEPS_OF_A_TURN + 400) {
            world.step()?;
        }
        for (process, before) in world.processes.values().zip(before) {
            prop_assert!(process.served > before, "{:?}", process);
        }
    }

    /// Nobody waits for longer than the others' turns and what they take to be through, and a device with nothing to do is not
    /// withheld from one that waits for longer than the moment that is given to who rests.
    #[test]
    fn nobody_waits_for_nothing(programs in programs()) {
        let mut world = World::new(&programs);
        for _ in 0..60 * STEPS_OF_A_TURN {
            world.step()?;
        }
        // Two kernels are on the device at the end of a turn; who had them is behind by as much, and the next one makes good for it.
        let over = programs.iter().map(|program| 2 * program.kernel).max().unwrap_or(0);
        let limit = programs.len() as u64 * 2 * (STEPS_OF_A_TURN + 2 * over + 4);
        prop_assert!(world.longest_wait <= limit, "{} of {}", world.longest_wait, limit);
        prop_assert!(world.longest_idle <= CONFIG.idle.0 / STEP + 4, "{}", world.longest_idle);
    }

    /// Processes that always have something to do have the same time on the device, however long their kernels are.
    #[test]
    fn shares_are_equal_by_time(kernels in prop::collection::vec(1u64..200, 2..5)) {
        let programs: Vec<Program> =
            kernels.iter().map(|&kernel| Program { kernels: u32::MAX, kernel, rest: 0 }).collect();
        let mut world = World::new(&programs);
        for _ in 0..100 * STEPS_OF_A_TURN {
            world.step()?;
        }
        let served = || world.processes.values().map(|process| process.served);
        let (most, least) = (served().max().unwrap_or(0), served().min().unwrap_or(0));
        let over = 2 * kernels.iter().max().unwrap_or(&0);
        prop_assert!(most - least <= 2 * (STEPS_OF_A_TURN + over), "{most} and {least}");
    }
}
