use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Direction::{DeviceToHost, HostToDevice};

const LS: TenantId = TenantId(0);
const BE: TenantId = TenantId(1);
const BE_2: TenantId = TenantId(2);

fn class_of(tenant: TenantId) -> Class {
    if tenant == LS { Class::LatencySensitive } else { Class::BestEffort }
}

/// A scheduler with the packets that are on the link, per direction and in order of their start.
struct Bench {
    scheduler: CopyScheduler,
    now: Nanos,
    ids: u64,
    link: [Vec<(TenantId, CopyId, u64, u64)>; 2],
}

impl Bench {
    fn new(config: Config) -> Self {
        let scheduler = CopyScheduler::new(config).unwrap();
        Self { scheduler, now: Nanos::ZERO, ids: 0, link: [Vec::new(), Vec::new()] }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.now += Nanos(10);
        self.scheduler.step(self.now, event, &mut actions);
        for action in &actions {
            if let Action::StartPacket { tenant, id, direction, offset, bytes } = *action {
                self.link[direction.index()].push((tenant, id, offset.0, bytes.0));
            }
        }
        actions
    }

    fn submit(&mut self, tenant: TenantId, direction: Direction, bytes: u64) -> (CopyId, Vec<Action>) {
        let id = CopyId(self.ids);
        self.ids += 1;
        let bytes = Bytes(bytes);
        (id, self.step(Event::Submit { tenant, class: class_of(tenant), id, direction, bytes }))
    }

    /// Ends the oldest packet on the link.
    fn finish(&mut self, direction: Direction) -> Vec<Action> {
        let (tenant, id, ..) = self.link[direction.index()].remove(0);
        self.step(Event::PacketDone { tenant, id, direction })
    }

    fn on_link(&self, direction: Direction) -> Vec<(TenantId, u64, u64)> {
        self.link[direction.index()]
            .iter()
            .map(|&(tenant, _, offset, bytes)| (tenant, offset, bytes))
            .collect()
    }
}

fn fair(packet: u64, in_flight: u32) -> Config {
    Config {
        packet: Bytes(packet),
        in_flight,
        weight_ls: 4,
        weight_be: 1,
        min_charge: Bytes(0),
        ..Config::default()
    }
}

fn fifo() -> Config {
    Config { policy: Policy::Fifo, ..Config::default() }
}

fn done(actions: &[Action]) -> Vec<CopyId> {
    actions
        .iter()
        .filter_map(|a| if let Action::CopyDone { id, .. } = a { Some(*id) } else { None })
        .collect()
}

#[test]
fn s1_one_copy_goes_out_as_packets() {
    let mut bench = Bench::new(fair(100, 2));
    let (id, _) = bench.submit(BE, HostToDevice, 250);
    assert_eq!(bench.on_link(HostToDevice), [(BE, 0, 100), (BE, 100, 100)]);
    assert_eq!(done(&bench.finish(HostToDevice)), []);
    assert_eq!(bench.on_link(HostToDevice), [(BE, 100, 100), (BE, 200, 50)]);
    assert_eq!(bench.finish(HostToDevice), []);
    let took = Nanos(30);
    assert_eq!(
        bench.finish(HostToDevice),
        [Action::CopyDone { tenant: BE, id, direction: HostToDevice, took }]
    );
}

#[test]
fn s2_fifo_sends_whole_copies_in_order_of_arrival() {
    let mut bench = Bench::new(fifo());
    assert_eq!(bench.scheduler.name(), "copy-fifo");
    bench.submit(BE, HostToDevice, 1 << 40);
    bench.submit(LS, HostToDevice, 10);
    bench.submit(BE, HostToDevice, 20);
    for expected in [(BE, 0, 1 << 40), (LS, 0, 10), (BE, 0, 20)] {
        assert_eq!(bench.on_link(HostToDevice), [expected]);
        bench.finish(HostToDevice);
    }
    assert_eq!(bench.on_link(HostToDevice), []);
}

#[test]
fn s3_a_small_copy_waits_for_packets_not_for_copies() {
    let mut bench = Bench::new(Config::default());
    assert_eq!(bench.scheduler.name(), "copy-fair");
    bench.submit(BE, HostToDevice, 512 << 20);
    bench.submit(LS, HostToDevice, 64 << 10);
    let packet = 512 << 10;
    assert_eq!(bench.on_link(HostToDevice), [(BE, 0, packet), (BE, packet, packet)]);
    bench.finish(HostToDevice);
    assert_eq!(bench.on_link(HostToDevice), [(BE, packet, packet), (LS, 0, 64 << 10)]);
}

#[test]
fn s4_tenants_share_the_link_by_weight() {
    let mut bench = Bench::new(fair(100, 2));
    for tenant in [BE, LS, BE_2] {
        bench.submit(tenant, HostToDevice, 1_000_000);
    }
    let mut sent = [0u64; 3];
    for _ in 0..6_000 {
        sent[bench.link[0][0].0.index()] += 1;
        bench.finish(HostToDevice);
    }
    assert!((3_998..=4_002).contains(&sent[0]), "{sent:?}");
    assert!(sent[1].abs_diff(sent[2]) <= 1, "{sent:?}");
}

#[test]
fn s5_a_tenant_that_slept_gets_no_credit() {
    let mut bench = Bench::new(fair(100, 1));
    bench.submit(BE, HostToDevice, 1_000_000);
    for _ in 0..500 {
        bench.finish(HostToDevice);
    }
    bench.submit(BE_2, HostToDevice, 1_000_000);
    let mut sent = [0u64; 3];
    for _ in 0..100 {
        bench.finish(HostToDevice);
        sent[bench.link[0][0].0.index()] += 1;
    }
    assert!(sent[1].abs_diff(sent[2]) <= 2, "the sleeper caught up: {sent:?}");
}

#[test]
fn s6_directions_do_not_wait_for_each_other() {
    for config in [fair(100, 1), fifo()] {
        let mut bench = Bench::new(config);
        bench.submit(BE, HostToDevice, 1_000_000);
        bench.submit(LS, DeviceToHost, 70);
        assert_eq!(bench.on_link(DeviceToHost), [(LS, 0, 70)]);
    }
}

#[test]
fn s7_a_dead_tenants_copies_are_dropped_and_its_packet_keeps_its_place() {
    let mut bench = Bench::new(fair(100, 2));
    let (started, _) = bench.submit(BE, HostToDevice, 150);
    let (waiting, _) = bench.submit(BE, HostToDevice, 30);
    let (other, _) = bench.submit(LS, HostToDevice, 30);
    let dropped =
        |id, started| Action::Dropped { tenant: BE, id, direction: HostToDevice, started: Bytes(started) };
    assert_eq!(bench.step(Event::Cancel { tenant: BE }), [dropped(started, 150), dropped(waiting, 0)]);
    assert_eq!(bench.scheduler.in_flight(HostToDevice), 2);
    assert_eq!(bench.step(Event::Cancel { tenant: BE }), []);
    // The index is somebody else's now, with the same name for a copy.
    let (id, direction, bytes) = (started, HostToDevice, Bytes(7));
    bench.step(Event::Submit { tenant: BE, class: Class::BestEffort, id, direction, bytes });
    assert_eq!(done(&bench.finish(HostToDevice)), []);
    assert_eq!(done(&bench.finish(HostToDevice)), []);
    assert_eq!(bench.on_link(HostToDevice), [(LS, 0, 30), (BE, 0, 7)]);
    assert_eq!(done(&bench.finish(HostToDevice)), [other]);
    assert_eq!(done(&bench.finish(HostToDevice)), [started]);
}

#[test]
fn s8_a_tenant_that_runs_too_far_ahead_is_refused() {
    let mut bench = Bench::new(fair(100, 1));
    bench.submit(BE, HostToDevice, 100);
    for _ in 0..MAX_QUEUED {
        assert_eq!(bench.submit(BE, HostToDevice, 100).1, []);
    }
    assert_eq!(bench.scheduler.queued(BE, HostToDevice), MAX_QUEUED);
    let refused = |tenant, id, why| [Action::Refused { tenant, id, direction: HostToDevice, why }];
    let (id, actions) = bench.submit(BE, HostToDevice, 100);
    assert_eq!(actions, refused(BE, id, Refusal::QueueFull));
    assert_eq!(bench.submit(LS, HostToDevice, 100).1, []);
    bench.finish(HostToDevice);
    bench.finish(HostToDevice);
    assert_eq!(bench.submit(BE, HostToDevice, 100).1, []);

    let nobody = TenantId(u32::MAX);
    let (id, actions) = bench.submit(nobody, HostToDevice, 100);
    assert_eq!(actions, refused(nobody, id, Refusal::NoSuchTenant));
}

#[test]
fn s9_a_copy_of_nothing_is_done_at_once() {
    for config in [fair(100, 1), fifo()] {
        let mut bench = Bench::new(config);
        bench.submit(BE, HostToDevice, 1_000_000);
        let (id, actions) = bench.submit(BE, HostToDevice, 0);
        let took = Nanos::ZERO;
        assert_eq!(actions, [Action::CopyDone { tenant: BE, id, direction: HostToDevice, took }]);
    }
}

#[test]
fn s10_a_flood_of_tiny_copies_does_not_hold_up_a_large_one() {
    let passed = |min_charge| {
        let mut bench = Bench::new(Config { min_charge: Bytes(min_charge), ..fair(100, 1) });
        bench.submit(BE_2, HostToDevice, 1_000);
        let mut most = 0;
        let mut tiny = 0;
        for _ in 0..500 {
            bench.submit(BE, HostToDevice, 1);
            bench.finish(HostToDevice);
            tiny = if bench.link[0][0].0 == BE { tiny + 1 } else { 0 };
            most = most.max(tiny);
            if bench.scheduler.queued(BE_2, HostToDevice) == 0 {
                break;
            }
        }
        most
    };
    assert!(passed(0) >= 99);
    assert!(passed(50) <= 3);
}

#[test]
fn s11_weights_of_their_own_decide_until_the_tenants_are_gone() {
    let mut bench = Bench::new(fair(100, 2));
    for (tenant, weight) in [(LS, 1), (BE, 2), (BE_2, 4), (TenantId(u32::MAX), 9)] {
        bench.step(Event::Weigh { tenant, weight });
    }
    let sent = |bench: &mut Bench| {
        for tenant in [BE, LS, BE_2] {
            bench.submit(tenant, HostToDevice, 1_000_000);
        }
        let mut sent = [0u64; 3];
        for _ in 0..7_000 {
            sent[bench.link[0][0].0.index()] += 1;
            bench.finish(HostToDevice);
        }
        sent
    };
    let by_weight = sent(&mut bench);
    assert!(by_weight.iter().zip([1_000, 2_000, 4_000]).all(|(&a, b)| a.abs_diff(b) <= 2), "{by_weight:?}");
    for tenant in [BE, LS, BE_2] {
        bench.step(Event::Cancel { tenant });
    }
    let by_class = sent(&mut bench);
    assert!(by_class[0].abs_diff(4_667) <= 4 && by_class[1].abs_diff(by_class[2]) <= 3, "{by_class:?}");
}

#[test]
fn s12_what_never_started_cannot_end() {
    let mut bench = Bench::new(fair(100, 1));
    let (id, _) = bench.submit(BE, HostToDevice, 100);
    for (tenant, direction) in [(LS, HostToDevice), (BE, DeviceToHost)] {
        let stray = Action::Stray { tenant, id, direction };
        assert_eq!(bench.step(Event::PacketDone { tenant, id, direction }), [stray]);
    }
    assert_eq!(bench.scheduler.in_flight(HostToDevice), 1);
}

#[test]
fn s12_impossible_parameters_are_refused() {
    let good = Config::default();
    let message = |config| CopyScheduler::new(config).unwrap_err().to_string();
    assert_eq!(
        message(Config { packet: Bytes(0), ..good }),
        "copy packets of 0B are impossible; choose 1B to 1GiB"
    );
    assert!(message(Config { packet: Bytes::from_gib(2), ..good }).contains("2GiB"));
    assert!(message(Config { in_flight: 0, ..good }).contains("choose 1 to 16"));
    assert!(message(Config { weight_be: 0, ..good }).contains("best-effort"));
    assert!(message(Config { weight_ls: 9999, ..good }).contains("latency-sensitive"));
    assert!(
        message(Config { min_charge: Bytes::from_gib(1), ..good })
            .contains("at most the packet size, 512KiB")
    );
}

#[derive(Debug, Clone)]
enum Op {
    Submit(u32, bool, u64),
    Finish(bool, usize),
    Cancel(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        6 => (0u32..4, any::<bool>(), 0u64..900).prop_map(|(t, d, b)| Op::Submit(t, d, b)),
        12 => (any::<bool>(), 0usize..8).prop_map(|(d, at)| Op::Finish(d, at)),
        1 => (0u32..4).prop_map(Op::Cancel),
    ];
    prop::collection::vec(op, 1..250)
}

fn configs() -> impl Strategy<Value = Config> {
    (any::<bool>(), 1u64..300, 1u32..5, 1u32..9, 1u32..4).prop_map(|(fair, packet, in_flight, ls, be)| {
        Config {
            policy: if fair { Policy::Fair } else { Policy::Fifo },
            packet: Bytes(packet),
            in_flight,
            weight_ls: ls,
            weight_be: be,
            min_charge: Bytes(packet / 3),
        }
    })
}

fn direction(down: bool) -> Direction {
    if down { DeviceToHost } else { HostToDevice }
}

/// What has become of each copy that was accepted.
#[derive(Default)]
struct Books {
    /// (tenant, direction, size, bytes started, bytes whose packets ended).
    open: BTreeMap<CopyId, (TenantId, Direction, u64, u64, u64)>,
}

impl Books {
    fn check(&mut self, actions: &[Action], config: &Config) -> Result<(), TestCaseError> {
        for action in actions {
            match *action {
                Action::StartPacket { tenant, id, direction, offset, bytes } => {
                    let copy = self.open.get_mut(&id).expect("a packet of a copy that is not open");
                    prop_assert_eq!((copy.0, copy.1, copy.3), (tenant, direction, offset.0));
                    prop_assert!(bytes.0 > 0);
                    prop_assert!(bytes <= config.packet || config.policy == Policy::Fifo);
                    copy.3 += bytes.0;
                    prop_assert!(copy.3 <= copy.2);
                }
                Action::CopyDone { id, .. } => {
                    let copy = self.open.remove(&id).expect("a copy done twice");
                    prop_assert_eq!(copy.2, copy.4);
                }
                Action::Dropped { id, started, .. } => {
                    let copy = self.open.remove(&id).expect("a copy dropped twice");
                    prop_assert_eq!(started.0, copy.3);
                }
                Action::Refused { .. } | Action::Stray { .. } => prop_assert!(false, "{:?}", action),
            }
        }
        Ok(())
    }
}

/// Ends one packet on the link, any of those that are the oldest of their copy; returns what follows.
fn finish_any(bench: &mut Bench, books: &mut Books, direction: Direction, at: usize) -> Vec<Action> {
    let link = &mut bench.link[direction.index()];
    if link.is_empty() {
        return Vec::new();
    }
    let chosen = link[at % link.len()].1;
    let oldest = link.iter().position(|packet| packet.1 == chosen).unwrap();
    let (tenant, id, _, bytes) = link.remove(oldest);
    if let Some(copy) = books.open.get_mut(&id) {
        copy.4 += bytes;
    }
    bench.step(Event::PacketDone { tenant, id, direction })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_byte_is_sent_once_in_order_and_no_copy_is_lost(config in configs(), ops in ops()) {
        let mut bench = Bench::new(config);
        let mut books = Books::default();
        let room = if config.policy == Policy::Fair { config.in_flight as usize } else { 1 };
        for op in ops {
            let actions = match op {
                Op::Submit(tenant, down, bytes) => {
                    let id = CopyId(bench.ids);
                    books.open.insert(id, (TenantId(tenant), direction(down), bytes, 0, 0));
                    bench.submit(TenantId(tenant), direction(down), bytes).1
                }
                Op::Finish(down, at) => finish_any(&mut bench, &mut books, direction(down), at),
                Op::Cancel(tenant) => bench.step(Event::Cancel { tenant: TenantId(tenant) }),
            };
            books.check(&actions, &config)?;
            for direction in Direction::ALL {
                let flying = bench.link[direction.index()].len();
                prop_assert_eq!(flying, bench.scheduler.in_flight(direction));
                let waiting: usize = (0..4).map(|t| bench.scheduler.queued(TenantId(t), direction)).sum();
                prop_assert!(flying <= room, "{} packets in flight", flying);
                prop_assert!(flying == room || waiting == 0, "the link stands still with {} waiting", waiting);
            }
        }
        for direction in Direction::ALL {
            while !bench.link[direction.index()].is_empty() {
                let actions = finish_any(&mut bench, &mut books, direction, 0);
                books.check(&actions, &config)?;
            }
        }
        prop_assert!(books.open.is_empty(), "left over: {:?}", books.open);
    }

    #[test]
    fn shares_of_a_long_backlog_follow_the_weights(
        mut config in configs(),
        sizes in prop::collection::vec(1u64..2_000, 1..6),
    ) {
        config.policy = Policy::Fair;
        let mut bench = Bench::new(config);
        let mut charged = [0u64; 4];
        for _ in 0..1_500 {
            for tenant in (0..4).map(TenantId) {
                while bench.scheduler.queued(tenant, HostToDevice) < 2 {
                    bench.submit(tenant, HostToDevice, sizes[bench.ids as usize % sizes.len()]);
                }
            }
            let (tenant, .., bytes) = bench.link[0][0];
            charged[tenant.index()] += bytes.max(config.min_charge.0);
            bench.finish(HostToDevice);
        }
        // Packets still on the link are charged but not counted here: in_flight packets of slack.
        let slack = config.packet.0 as f64 * (2.0 + f64::from(config.in_flight));
        let level = |t: usize| charged[t] as f64 / f64::from(config.weight(class_of(TenantId(t as u32))));
        for (a, b) in [(0, 1), (1, 2), (2, 3), (0, 3)] {
            prop_assert!((level(a) - level(b)).abs() <= slack, "{:?}", charged);
        }
    }

    #[test]
    fn the_wait_of_a_backlogged_tenant_is_bounded(mut config in configs(), ops in ops()) {
        config.policy = Policy::Fair;
        let mut bench = Bench::new(config);
        // passed[a][b]: what b has been charged since a began to wait.
        let mut passed = [[0u64; 4]; 4];
        let weight = |t: usize| u64::from(config.weight(class_of(TenantId(t as u32))));
        for op in ops {
            let waiting: Vec<bool> =
                (0..4).map(|t| bench.scheduler.queued(TenantId(t), HostToDevice) > 0).collect();
            let actions = match op {
                Op::Submit(tenant, _, bytes) => bench.submit(TenantId(tenant), HostToDevice, bytes).1,
                _ if bench.link[0].is_empty() => Vec::new(),
                _ => bench.finish(HostToDevice),
            };
            for action in actions {
                let Action::StartPacket { tenant, bytes, .. } = action else { continue };
                let goes = tenant.index();
                passed[goes] = [0; 4];
                for waits in (0..4).filter(|&t| t != goes) {
                    let passed = &mut passed[waits];
                    if !waiting[waits] {
                        *passed = [0; 4];
                        continue;
                    }
                    passed[goes] += bytes.0.max(config.min_charge.0);
                    let bound = config.packet.0 * weight(goes) / weight(waits) + config.packet.0 + 1;
                    prop_assert!(passed[goes] <= bound, "{waits} let {goes} pass with {passed:?}, bound {bound}");
                }
            }
        }
    }

    #[test]
    fn what_one_direction_does_is_the_same_whatever_the_other_does(config in configs(), ops in ops()) {
        let run = |both: bool| {
            let mut bench = Bench::new(config);
            let mut seen = Vec::new();
            for (n, op) in ops.iter().enumerate() {
                bench.ids = n as u64;
                bench.now = Nanos(100 * n as u64);
                let actions = match *op {
                    Op::Submit(tenant, down, bytes) if both || !down => {
                        bench.submit(TenantId(tenant), direction(down), bytes).1
                    }
                    Op::Finish(down, _) if both || !down => {
                        if bench.link[usize::from(down)].is_empty() { continue }
                        bench.finish(direction(down))
                    }
                    Op::Cancel(tenant) => bench.step(Event::Cancel { tenant: TenantId(tenant) }),
                    _ => continue,
                };
                seen.extend(actions.into_iter().filter(|action| match action {
                    Action::StartPacket { direction, .. }
                    | Action::CopyDone { direction, .. }
                    | Action::Dropped { direction, .. }
                    | Action::Refused { direction, .. }
                    | Action::Stray { direction, .. } => *direction == HostToDevice,
                }));
            }
            seen
        };
        prop_assert_eq!(run(true), run(false));
    }
}
