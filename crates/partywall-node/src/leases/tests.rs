use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;
const A: ProcessId = ProcessId(1);
const B: ProcessId = ProcessId(2);
const C: ProcessId = ProcessId(3);
const ONE: TenantId = TenantId(1);
const TWO: TenantId = TenantId(2);

const fn mib(mib: u64) -> Bytes {
    Bytes::from_mib(mib)
}

/// Leases with a clock and with what was decided since the last look, sizes in MiB.
struct Bench {
    leases: Leases,
    context: Bytes,
    now: Nanos,
    actions: Vec<Action>,
}

impl Bench {
    /// A GPU of 1000 MiB of which 100 are reserved, contexts estimated at `context` MiB.
    fn new(context: u64, overcommit: bool) -> Self {
        let config = Config { whole: mib(1000), reserve: mib(100), overcommit };
        Self {
            leases: Leases::new(config).unwrap(),
            context: mib(context),
            now: Nanos(1),
            actions: Vec::new(),
        }
    }

    fn with(context: u64, limit: u64) -> Self {
        let mut bench = Self::new(context, false);
        bench.leases.add_tenant(ONE, Class::LatencySensitive, Some(mib(limit))).unwrap();
        bench
    }

    fn step(&mut self, event: Event) {
        self.leases.step(self.now, event, &mut self.actions);
    }

    fn hello(&mut self, process: ProcessId, tenant: TenantId, held: u64) {
        let context = self.context;
        self.step(Event::Hello { process, tenant, held: mib(held), context, measured: false });
    }

    fn ask(&mut self, process: ProcessId, need: u64, want: u64) -> Vec<Action> {
        self.step(Event::Ask { process, need: mib(need), want: mib(want) });
        std::mem::take(&mut self.actions)
    }

    fn give(&mut self, process: ProcessId, bytes: u64) -> Vec<Action> {
        self.step(Event::Give { process, bytes: mib(bytes) });
        std::mem::take(&mut self.actions)
    }

    fn used(&mut self, process: ProcessId, bytes: u64) {
        self.step(Event::Used { process, bytes: mib(bytes) });
    }

    fn lease(&self, process: ProcessId) -> u64 {
        self.leases.held(process).lease.0 / MIB
    }
}

fn answer(process: ProcessId, total: u64, granted: bool) -> Action {
    Action::Answer { process, total: mib(total), granted }
}

fn recall(process: ProcessId) -> Action {
    Action::Recall { process }
}

#[test]
fn s1_with_plenty_what_is_wanted_and_near_the_quota_what_is_needed() {
    let mut bench = Bench::with(0, 400);
    bench.hello(A, ONE, 0);
    assert_eq!(bench.ask(A, 1, 64), [answer(A, 64, true)]);
    // 64 + 236 leaves a quarter of 400, one page more does not.
    assert_eq!(bench.ask(A, 5, 236), [answer(A, 300, true)]);
    assert_eq!(bench.ask(A, 5, 64), [answer(A, 306, true)]);
    assert_eq!(bench.ask(A, 94, 94), [answer(A, 400, true)]);
    assert_eq!(bench.ask(A, 1, 1), [answer(A, 400, false)]);
}

#[test]
fn s1_a_quota_of_no_whole_pages_can_be_used_up() {
    let mut bench = Bench::with(0, 101);
    bench.hello(A, ONE, 0);
    assert_eq!(bench.ask(A, 100, 100), [answer(A, 100, true)]);
    assert_eq!(bench.ask(A, 1, 64), [answer(A, 101, true)]);
}

#[test]
fn s2_who_waits_gets_what_siblings_give_back_in_order() {
    let mut bench = Bench::with(0, 400);
    for process in [A, B, C] {
        bench.hello(process, ONE, 0);
    }
    assert_eq!(bench.ask(A, 400, 400), [answer(A, 400, true)]);
    bench.used(A, 100);
    assert_eq!(bench.ask(B, 200, 200), [recall(A)]);
    assert_eq!(bench.ask(C, 10, 64), [], "C came later, and A was asked already");
    assert_eq!(bench.leases.deadline(), Some(bench.now + RECALL_WAIT));
    assert_eq!(bench.give(A, 100), [answer(A, 300, true)]);
    assert_eq!(
        bench.give(A, 200),
        [answer(A, 100, true), answer(B, 200, true), answer(C, 10, true)],
        "B first; near the quota C gets what it needs"
    );
    assert_eq!(bench.leases.deadline(), None);
}

#[test]
fn s3_what_cannot_be_met_is_refused_at_once_and_silence_after_a_time() {
    let mut bench = Bench::with(0, 400);
    bench.hello(A, ONE, 0);
    bench.hello(B, ONE, 0);
    bench.ask(A, 400, 400);
    bench.used(A, 300);
    assert_eq!(bench.ask(B, 101, 101), [answer(B, 0, false)]);
    assert_eq!(bench.ask(B, u64::MAX / MIB, 1), [answer(B, 0, false)]);
    assert_eq!(bench.ask(B, 100, 100), [recall(A)]);
    bench.step(Event::Time);
    assert_eq!(bench.actions, []);
    bench.now = bench.leases.deadline().unwrap();
    bench.step(Event::Time);
    assert_eq!(bench.actions, [answer(B, 0, false)]);
}

#[test]
fn s4_what_an_ended_process_held_goes_to_who_waits() {
    let mut bench = Bench::with(0, 400);
    bench.hello(A, ONE, 0);
    bench.hello(B, ONE, 0);
    bench.ask(A, 400, 400);
    bench.used(A, 250);
    bench.ask(B, 150, 150);
    bench.step(Event::Gone { process: A });
    assert_eq!(bench.actions, [answer(B, 150, true)]);
    bench.step(Event::Gone { process: B });
    assert_eq!(bench.leases.leased(ONE), Bytes::ZERO);
}

#[test]
fn s5_a_context_is_leased_before_it_exists_and_settled_when_measured() {
    let mut bench = Bench::with(50, 400);
    bench.hello(A, ONE, 0);
    let held = |context, lease, used| Held { context: mib(context), lease: mib(lease), used: mib(used) };
    assert_eq!(bench.leases.held(A), held(50, 50, 0));
    assert_eq!(bench.ask(A, 10, 10), [answer(A, 60, true)]);
    // Larger than estimated: the lease goes ahead of what the shim knows, and the next ask is told of it.
    bench.step(Event::Context { process: A, bytes: mib(80) });
    assert_eq!(bench.leases.held(A), held(80, 90, 0));
    assert_eq!(bench.ask(A, 30, 30), [answer(A, 90, true)]);
    // Smaller: the rest is asked for, and not taken.
    bench.step(Event::Context { process: A, bytes: mib(20) });
    assert_eq!(std::mem::take(&mut bench.actions), [recall(A)]);
    assert_eq!(bench.leases.held(A), held(20, 90, 0));
    assert_eq!(bench.give(A, 400), [answer(A, 20, true)], "a context cannot be given back");
}

#[test]
fn s5_an_estimate_without_room_is_no_debt() {
    let mut bench = Bench::with(50, 60);
    bench.hello(A, ONE, 0);
    bench.hello(B, ONE, 0);
    assert_eq!(bench.leases.held(B), Held { context: mib(10), lease: mib(10), used: Bytes::ZERO });
    bench.hello(C, ONE, 0);
    assert_eq!(bench.leases.held(C), Held::default());
}

#[test]
fn s6_a_context_beyond_the_quota_is_a_debt_and_paid_first() {
    let mut bench = Bench::with(10, 100);
    bench.hello(A, ONE, 0);
    bench.hello(B, ONE, 0);
    bench.ask(A, 80, 80);
    bench.used(A, 30);
    bench.step(Event::Context { process: B, bytes: mib(40) });
    assert_eq!(std::mem::take(&mut bench.actions), [recall(A)]);
    assert_eq!(bench.leases.held(B).debt(), mib(30));
    assert_eq!(bench.give(A, 20), [answer(A, 70, true)]);
    assert_eq!((bench.leases.held(B).debt(), bench.lease(B)), (mib(10), 30));
    // The shim knows of 10, sees a context of 40 and wants to allocate 20.
    assert_eq!(bench.ask(B, 50, 50), [recall(A)]);
    assert_eq!(bench.give(A, 30), [answer(A, 40, true), answer(B, 60, true)]);
    assert_eq!(bench.leases.held(B).debt(), Bytes::ZERO);
}

#[test]
fn s7_a_process_that_registers_again_keeps_what_it_held() {
    let mut bench = Bench::with(50, 400);
    bench.step(Event::Hello { process: A, tenant: ONE, held: mib(123), context: mib(45), measured: true });
    assert_eq!(bench.leases.held(A), Held { context: mib(45), lease: mib(168), used: mib(123) });
    bench.hello(B, ONE, 500);
    assert_eq!((bench.lease(B), bench.leases.held(B).debt()), (232, mib(268)));
    bench.step(Event::Hello { process: C, tenant: TWO, held: mib(1), context: mib(1), measured: true });
    assert_eq!(bench.leases.held(C), Held::default(), "no such tenant");
}

#[test]
fn s8_tenants_without_a_guarantee_share_one_pool() {
    let mut bench = Bench::with(0, 400);
    bench.leases.add_tenant(TWO, Class::BestEffort, None).unwrap();
    bench.leases.add_tenant(TenantId(3), Class::LatencySensitive, None).unwrap();
    assert_eq!(bench.leases.quota(TWO), mib(500));
    assert!(bench.leases.is_guaranteed(ONE) && !bench.leases.is_guaranteed(TenantId(3)));
    bench.hello(A, ONE, 0);
    bench.hello(B, TWO, 0);
    bench.hello(C, TenantId(3), 0);
    bench.ask(A, 200, 200);
    bench.ask(B, 450, 450);
    assert_eq!(bench.ask(C, 60, 60), [recall(B)], "A's memory is its own");
    assert_eq!(bench.give(B, 20), [answer(B, 430, true), answer(C, 60, true)]);
}

#[test]
fn s9_a_tenant_that_does_not_fit_is_refused() {
    let mut bench = Bench::with(0, 400);
    let add = |bench: &mut Bench, tenant, limit| {
        bench.leases.add_tenant(tenant, Class::BestEffort, limit).map_err(|error| error.to_string())
    };
    let refused = [
        (TWO, Some(Bytes::ZERO), "zero"),
        (TWO, Some(mib(501)), "tenants can have 0.8GiB"),
        (ONE, Some(mib(1)), "listed twice"),
    ];
    for (tenant, limit, says) in refused {
        let message = add(&mut bench, tenant, limit).unwrap_err();
        assert!(message.contains(says), "{message}");
    }
    add(&mut bench, TWO, None).unwrap();
    bench.hello(B, TWO, 0);
    bench.ask(B, 300, 300);
    let message = add(&mut bench, TenantId(3), Some(mib(201))).unwrap_err();
    assert!(message.contains("hold 300MiB") && message.contains("only 299MiB"), "{message}");
    add(&mut bench, TenantId(3), Some(mib(200))).unwrap();
    bench.leases.remove_tenant(bench.now, TWO, &mut Vec::new());
    assert_eq!(bench.leases.held(B), Held::default());
    add(&mut bench, TWO, Some(mib(300))).unwrap();
}

#[test]
fn s10_answers_come_in_the_order_of_the_questions() {
    let mut bench = Bench::with(0, 400);
    bench.hello(A, ONE, 0);
    bench.hello(B, ONE, 0);
    bench.ask(A, 396, 396);
    assert_eq!(bench.ask(B, 4, 4), [answer(B, 4, true)]);
    assert_eq!(bench.ask(B, 100, 100), [recall(A)]);
    assert_eq!(bench.give(B, 4), [], "its answer comes after that of the ask");
    assert_eq!(bench.give(A, 100), [answer(A, 296, true), answer(B, 100, true), answer(B, 100, true)]);
    let flood =
        (0..70).flat_map(|_| bench.ask(B, 300, 300)).find(|action| matches!(action, Action::Flood { .. }));
    assert_eq!(flood, Some(Action::Flood { process: B }));
}

#[derive(Debug, Clone)]
enum Op {
    Hello(u64, u32, u64),
    Ask(u64, u64, u64),
    /// Give back this part of what is spare, in quarters.
    Give(u64, u64),
    Allocate(u64, u64),
    Free(u64),
    Context(u64, u64),
    Gone(u64),
    Wait(u64),
    Leave(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let process = || 0u64..5;
    let op = prop_oneof![
        3 => (process(), 0u32..3, 0u64..60).prop_map(|(p, t, held)| Op::Hello(p, t, held)),
        6 => (process(), 0u64..150, 0u64..150).prop_map(|(p, need, want)| Op::Ask(p, need, want)),
        3 => (process(), 0u64..5).prop_map(|(p, quarters)| Op::Give(p, quarters)),
        6 => (process(), 0u64..100).prop_map(|(p, bytes)| Op::Allocate(p, bytes)),
        2 => process().prop_map(Op::Free),
        2 => (process(), 0u64..40).prop_map(|(p, bytes)| Op::Context(p, bytes)),
        2 => process().prop_map(Op::Gone),
        1 => (0u64..1500).prop_map(Op::Wait),
        1 => (0u32..3).prop_map(Op::Leave),
    ];
    proptest::collection::vec(op, 1..120)
}

/// A shim that keeps to what it was told.
#[derive(Default, Clone, Copy)]
struct Shim {
    alive: Option<(ProcessId, u32)>,
    told: u64,
    used: u64,
    open: i64,
}

struct World {
    bench: Bench,
    shims: [Shim; 5],
    names: u64,
}

impl World {
    fn new(overcommit: bool) -> Self {
        let mut world = Self { bench: Bench::new(40, overcommit), shims: [Shim::default(); 5], names: 0 };
        for tenant in 0..3 {
            world.join(tenant);
        }
        world
    }

    fn join(&mut self, tenant: u32) {
        let limit = [Some(mib(301)), Some(mib(200)), None][tenant as usize];
        let class = if tenant == 0 { Class::LatencySensitive } else { Class::BestEffort };
        // One that comes back may find that others took what was not guaranteed to anybody meanwhile.
        match self.bench.leases.add_tenant(TenantId(tenant), class, limit) {
            Ok(()) | Err(AddError::InUse { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn act(&mut self, op: &Op) {
        match *op {
            Op::Hello(at, tenant, held) => self.hello(at as usize, tenant, held),
            Op::Wait(ms) => {
                self.bench.now += Nanos::from_millis(ms);
                self.bench.step(Event::Time);
            }
            Op::Leave(tenant) => {
                let now = self.bench.now;
                self.bench.leases.remove_tenant(now, TenantId(tenant), &mut self.bench.actions);
                for shim in &mut self.shims {
                    if shim.alive.is_some_and(|(_, of)| of == tenant) {
                        *shim = Shim::default();
                    }
                }
                self.join(tenant);
            }
            Op::Ask(at, ..)
            | Op::Give(at, _)
            | Op::Allocate(at, _)
            | Op::Free(at)
            | Op::Context(at, _)
            | Op::Gone(at) => {
                if let Some((process, _)) = self.shims[at as usize].alive {
                    self.of_process(at as usize, process, op);
                }
            }
        }
        self.hear();
    }

    /// A process holds what it does from an earlier life of the node, or nothing; its quota had room for that then.
    fn hello(&mut self, at: usize, tenant: u32, held: u64) {
        if self.shims[at].alive.is_some() || !self.bench.leases.tenants.contains_key(&TenantId(tenant)) {
            return;
        }
        let leases = &self.bench.leases;
        let room = less(leases.quota(TenantId(tenant)), leases.leased(TenantId(tenant))).0;
        let room = room.min(leases.ledger.free(TenantId(tenant)).0);
        let held = if room >= mib(held + 40).0 { mib(held) } else { Bytes::ZERO };
        let process = ProcessId(self.names);
        self.names += 1;
        self.bench.step(Event::Hello {
            process,
            tenant: TenantId(tenant),
            held,
            context: mib(40),
            measured: false,
        });
        let told = self.bench.leases.held(process).lease.0;
        self.shims[at] = Shim { alive: Some((process, tenant)), told, used: held.0, open: 0 };
    }

    fn of_process(&mut self, at: usize, process: ProcessId, op: &Op) {
        let context = self.bench.leases.held(process).context.0;
        let shim = &mut self.shims[at];
        let spare = shim.told.saturating_sub(context + shim.used);
        match *op {
            Op::Ask(_, need, want) if shim.open < 10 => {
                shim.open += 1;
                self.bench.step(Event::Ask { process, need: mib(need), want: mib(want) });
            }
            Op::Give(_, quarters) if shim.open < 10 => {
                let bytes = Bytes(spare / 4 * quarters.min(4));
                (shim.open, shim.told) = (shim.open + 1, shim.told - bytes.0);
                self.bench.step(Event::Give { process, bytes });
            }
            Op::Allocate(_, bytes) if mib(bytes).0 <= spare => {
                shim.used += mib(bytes).0;
                self.bench.step(Event::Used { process, bytes: Bytes(shim.used) });
            }
            Op::Free(_) => {
                shim.used = 0;
                self.bench.step(Event::Used { process, bytes: Bytes::ZERO });
            }
            // No context is larger here than what was set aside for it.
            Op::Context(_, bytes) => {
                self.bench.step(Event::Context { process, bytes: mib(bytes).min(Bytes(context)) })
            }
            Op::Gone(_) => {
                *shim = Shim::default();
                self.bench.step(Event::Gone { process });
            }
            _ => {}
        }
    }

    /// What was decided reaches the shims.
    fn hear(&mut self) {
        for action in std::mem::take(&mut self.bench.actions) {
            if let Action::Answer { process, total, .. } = action {
                let shim =
                    self.shims.iter_mut().find(|shim| shim.alive.is_some_and(|(name, _)| name == process));
                let shim = shim.expect("an answer to nobody");
                shim.open -= 1;
                shim.told = total.0;
            }
        }
    }

    fn check(&self) {
        let leases = &self.bench.leases;
        let mut pool = 0;
        for tenant in (0..3).map(TenantId) {
            let of_tenant: Vec<_> =
                leases.processes.values().filter(|process| process.tenant == tenant).collect();
            let sum: u64 = of_tenant.iter().map(|process| process.held.lease.0).sum();
            assert_eq!(leases.leased(tenant).0, sum, "the book and the leases differ");
            assert!(sum <= leases.quota(tenant).0, "{tenant} is leased more than its quota");
            assert!(leases.used(tenant).0 <= sum, "{tenant} holds more than it was leased");
            pool += if leases.is_guaranteed(tenant) { 0 } else { sum };
        }
        let own: u64 =
            leases.tenants.keys().filter(|&&id| leases.is_guaranteed(id)).map(|&id| leases.quota(id).0).sum();
        assert!(pool + own <= mib(900).0, "the pool is promised twice");
        assert!(self.shims.iter().all(|shim| shim.open >= 0), "an answer without a question");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn nobody_gets_more_than_the_quota_and_nothing_leaks(ops in ops(), overcommit in any::<bool>()) {
        let mut world = World::new(overcommit);
        for op in &ops {
            world.act(op);
            world.check();
        }
        // Whoever still waits is answered when the time is over.
        for _ in 0..20 {
            world.act(&Op::Wait(1_001));
        }
        prop_assert!(world.shims.iter().all(|shim| shim.open == 0), "a question was not answered");
        prop_assert_eq!(world.bench.leases.deadline(), None);
        for at in 0..5 {
            world.act(&Op::Gone(at));
        }
        for tenant in (0..3).map(TenantId) {
            prop_assert_eq!(world.bench.leases.leased(tenant), Bytes::ZERO);
        }
    }

    #[test]
    fn whatever_a_tenant_claims_the_book_holds(
        events in proptest::collection::vec((0u8..6, 0u64..4, any::<u64>(), any::<u64>()), 1..60),
    ) {
        let mut world = World::new(false);
        for (kind, process, one, two) in events {
            let (process, bytes) = (ProcessId(process), Bytes(one));
            world.bench.step(match kind {
                0 => Event::Hello { process, tenant: TenantId(two as u32 % 4), held: bytes, context: Bytes(two), measured: two % 2 == 0, },
                1 => Event::Ask { process, need: bytes, want: Bytes(two) },
                2 => Event::Give { process, bytes },
                3 => Event::Used { process, bytes },
                4 => Event::Context { process, bytes },
                _ => Event::Gone { process },
            });
            for tenant in (0..3).map(TenantId) {
                let leases = &world.bench.leases;
                prop_assert!(leases.leased(tenant) <= leases.quota(tenant));
                prop_assert!(leases.used(tenant) >= Bytes::ZERO);
            }
        }
    }
}
