//! What must never happen, whatever comes in whatever order.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// What comes next. Numbers name a request or a replica, whichever there are.
#[derive(Debug, Clone)]
enum Step {
    Pass { ms: u64 },
    Arrive { best_effort: bool, tokens: u64, deadline_ms: Option<u64> },
    FirstToken(usize),
    Tokens(usize),
    Ended(usize),
    Failed(usize),
    Cancel(usize),
    CancelHeld(usize),
    Remove(usize),
    Add,
    Available(usize, bool),
    Gpu(usize, bool, bool),
}

fn step() -> impl Strategy<Value = Step> {
    let number = any::<usize>;
    prop_oneof![
        4 => (0_u64..2_000).prop_map(|ms| Step::Pass { ms }),
        8 => (any::<bool>(), 1_u64..3_000, prop::option::weighted(0.2, 0_u64..5_000))
            .prop_map(|(best_effort, tokens, deadline_ms)| Step::Arrive { best_effort, tokens, deadline_ms }),
        6 => number().prop_map(Step::FirstToken),
        2 => number().prop_map(Step::Tokens),
        5 => number().prop_map(Step::Ended),
        1 => number().prop_map(Step::Failed),
        1 => number().prop_map(Step::Cancel),
        1 => number().prop_map(Step::CancelHeld),
        1 => number().prop_map(Step::Remove),
        1 => Just(Step::Add),
        1 => (number(), any::<bool>()).prop_map(|(replica, on)| Step::Available(replica, on)),
        1 => (number(), any::<bool>(), any::<bool>()).prop_map(|(replica, a, b)| Step::Gpu(replica, a, b)),
    ]
}

/// A router and what the one who asks it knows.
struct World {
    router: Router,
    now: Nanos,
    classes: BTreeMap<u64, Class>,
    held: BTreeSet<u64>,
    running: BTreeSet<u64>,
    replicas: BTreeMap<u32, GpuState>,
    /// Requests that have ended, were refused or given back.
    over: usize,
}

/// The key at this place, counted around.
fn nth<K: Copy>(keys: impl ExactSizeIterator<Item = K>, number: usize) -> Option<K> {
    let count = keys.len().max(1);
    let mut keys = keys;
    keys.nth(number % count)
}

impl World {
    fn new(policy: &str) -> Self {
        let mut world = Self {
            router: Router::new(policy::named(policy).unwrap(), RouterSettings::default()),
            now: Nanos::ZERO,
            classes: BTreeMap::new(),
            held: BTreeSet::new(),
            running: BTreeSet::new(),
            replicas: BTreeMap::new(),
            over: 0,
        };
        for _ in 0..3 {
            world.add();
        }
        world
    }

    fn add(&mut self) {
        let id = self.router.add_replica(self.now, CAPACITY, &[ModelId(0)]).unwrap();
        assert_eq!(self.replicas.insert(id.0, GpuState::default()), None, "{id:?} is given twice");
    }

    fn running(&self, number: usize) -> Option<RequestId> {
        nth(self.running.iter().copied(), number).map(RequestId)
    }

    fn replica(&self, number: usize) -> Option<ReplicaId> {
        nth(self.replicas.keys().copied(), number).map(ReplicaId)
    }

    fn take(&mut self, step: Step) {
        let now = self.now;
        match step {
            Step::Pass { ms } => self.now += Nanos::from_millis(ms),
            Step::Arrive { best_effort, tokens, deadline_ms } => {
                let (id, class) = (self.classes.len() as u64, if best_effort { BE } else { LS });
                self.classes.insert(id, class);
                let deadline = deadline_ms.map(|after| now + ms(after));
                let whole = tokens.is_multiple_of(2);
                let arrival = Arrival { deadline, whole, ..arrival(id, class, tokens) };
                let verdict = self.router.arrive(now, arrival, &Unknown);
                self.follow(id, verdict);
            }
            Step::FirstToken(number) => {
                if let Some(id) = self.running(number) {
                    self.router.first_token(now, id, None);
                }
            }
            Step::Tokens(number) => {
                if let Some(id) = self.running(number) {
                    self.router.tokens(id, 3);
                }
            }
            Step::Ended(number) => self.end(number, Router::ended),
            Step::Failed(number) => self.end(number, Router::failed),
            Step::Cancel(number) => self.end(number, Router::cancel),
            Step::CancelHeld(number) => {
                if let Some(id) = nth(self.held.iter().copied(), number) {
                    self.router.cancel(now, RequestId(id));
                    self.held.remove(&id);
                    self.over += 1;
                }
            }
            Step::Remove(number) => {
                if let Some(replica) = self.replica(number) {
                    self.replicas.remove(&replica.0);
                    for id in self.router.remove_replica(replica) {
                        assert!(self.running.remove(&id.0), "{id:?} is given back and does not run");
                        self.over += 1;
                    }
                }
            }
            Step::Add => self.add(),
            Step::Available(number, on) => {
                if let Some(replica) = self.replica(number) {
                    self.router.set_available(replica, on);
                }
            }
            Step::Gpu(number, squeezed, paused) => {
                if let Some(replica) = self.replica(number) {
                    let gpu = GpuState { speed: 0.7, squeezed, paused };
                    self.router.set_gpu(replica, gpu);
                    self.replicas.insert(replica.0, gpu);
                }
            }
        }
        self.poll();
    }

    fn end(&mut self, number: usize, how: fn(&mut Router, Nanos, RequestId)) {
        if let Some(id) = self.running(number) {
            how(&mut self.router, self.now, id);
            self.running.remove(&id.0);
            self.over += 1;
        }
    }

    fn follow(&mut self, id: u64, verdict: Verdict) {
        match verdict {
            Verdict::Send(placement) => {
                let gpu = self.replicas[&placement.replica.0];
                assert!(!gpu.paused, "{placement:?} goes to a paused replica");
                if self.classes[&id] == BE {
                    let soon = RouterSettings::default().admission.soon;
                    assert!(!gpu.squeezed && placement.backlog <= soon, "{placement:?} is ahead of its rule");
                }
                assert!(self.running.insert(id), "{id} is sent twice");
            }
            Verdict::Held => assert!(self.held.insert(id)),
            Verdict::Refused(_) => self.over += 1,
        }
    }

    fn poll(&mut self) {
        let mut verdicts = Vec::new();
        self.router.poll(self.now, &Unknown, &mut verdicts);
        for (id, verdict) in verdicts {
            assert!(self.held.remove(&id.0), "{id:?} was not held");
            self.follow(id.0, verdict);
        }
    }

    fn check(&self) {
        assert_eq!(self.classes.len(), self.held.len() + self.running.len() + self.over, "one is lost");
        assert_eq!(self.router.held(LS) + self.router.held(BE), self.held.len());
        let requests = |id: &u32| self.router.load(ReplicaId(*id)).unwrap().requests();
        assert_eq!(self.replicas.keys().map(requests).sum::<u32>() as usize, self.running.len());
        if let Some(next) = self.router.next_poll() {
            assert!(!self.held.is_empty() && next > self.now, "{next} is not after {}", self.now);
        }
        let idle = |replica: &&Replica| {
            replica.available && !replica.gpu.paused && replica.backlog.load() == Load::default()
        };
        let idle: Vec<_> = self.router.replicas.iter().flatten().filter(idle).collect();
        assert!(idle.is_empty() || self.router.held(LS) == 0, "latency-sensitive requests are held");
        let calm = idle.iter().any(|replica| !replica.gpu.squeezed);
        assert!(!calm || self.router.held(BE) == 0, "best-effort requests are held");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// No request is lost or sent twice, nothing is held while a replica idles, no best-effort request goes ahead of its rule, what is asked
    /// for next is not in the past, and when all has ended nothing is left.
    #[test]
    fn whatever_comes_the_books_are_right(
        policy in prop::sample::select(&policy::NAMES[..]),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let mut world = World::new(policy);
        for step in steps {
            world.take(step);
            world.check();
        }
        while !world.running.is_empty() {
            world.take(Step::Ended(0));
            world.check();
        }
        for id in world.replicas.keys() {
            prop_assert_eq!(world.router.load(ReplicaId(*id)), Some(Load::default()));
        }
    }
}
