use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use Direction::{DeviceToHost, HostToDevice};

const KIB: u64 = 1024;
const PACKET: u64 = 512 * KIB;

/// Processes that copy one packet at a time over a link of 50 bytes a nanosecond, in the order in which they were granted.
struct Bench {
    turns: Turns,
    now: Nanos,
    grants: Vec<Grant>,
    /// Ready, granted and done of each process and direction.
    pages: BTreeMap<(ProcessId, usize), (u64, u64, u64)>,
    link: [VecDeque<(ProcessId, u64)>; 2],
    most_in_flight: usize,
}

impl Bench {
    fn new(in_flight: u32) -> Self {
        let config = Config { in_flight, ..Config::default() };
        Self {
            turns: Turns::new(config).unwrap(),
            now: Nanos(1),
            grants: Vec::new(),
            pages: BTreeMap::new(),
            link: [VecDeque::new(), VecDeque::new()],
            most_in_flight: 0,
        }
    }

    fn tenant(&mut self, id: u32, class: Class, weight: u32, processes: &[u64]) {
        assert!(self.turns.add_tenant(self.now, TenantId(id), class, weight));
        for &process in processes {
            assert!(self.turns.add(ProcessId(process), TenantId(id)));
        }
    }

    fn page(&mut self, process: u64, direction: Direction) -> &mut (u64, u64, u64) {
        self.pages.entry((ProcessId(process), direction as usize)).or_default()
    }

    fn observe(&mut self, process: u64, direction: Direction) -> Seen {
        let (ready, _, done) = *self.page(process, direction);
        let (now, process) = (self.now, ProcessId(process));
        let one = self.turns.ready(now, process, direction, ready, &mut self.grants);
        let other = self.turns.done(now, process, direction, done, &mut self.grants);
        let seen = Seen { moved: one.moved || other.moved, nonsense: one.nonsense || other.nonsense };
        self.deliver();
        seen
    }

    fn deliver(&mut self) {
        for grant in std::mem::take(&mut self.grants) {
            let page = self.pages.entry((grant.process, grant.direction as usize)).or_default();
            let bytes = grant.granted - page.1;
            page.1 = grant.granted;
            assert!(bytes > 0 && bytes <= PACKET, "a packet of {bytes}");
            let link = &mut self.link[grant.direction as usize];
            link.push_back((grant.process, bytes));
            self.most_in_flight = self.most_in_flight.max(link.len());
        }
    }

    fn ready(&mut self, process: u64, direction: Direction, bytes: u64) -> Seen {
        self.page(process, direction).0 += bytes;
        self.observe(process, direction)
    }

    /// The oldest packet on the link gets through; whose it was and how long.
    fn finish(&mut self, direction: Direction) -> Option<(u64, u64)> {
        let (process, bytes) = self.link[direction as usize].pop_front()?;
        self.now += Nanos(bytes / 50);
        self.page(process.0, direction).2 += bytes;
        self.observe(process.0, direction);
        Some((process.0, bytes))
    }

    fn expire(&mut self) -> Vec<ProcessId> {
        let late = self.turns.expire(self.now, &mut self.grants);
        self.deliver();
        late
    }
}

#[test]
fn s1_ready_bytes_are_granted_in_packets() {
    let mut bench = Bench::new(2);
    bench.tenant(7, Class::BestEffort, 1, &[1]);
    assert_eq!(bench.ready(1, HostToDevice, 3 * PACKET + 100), Seen { moved: true, nonsense: false });
    assert_eq!(bench.link[0].len(), 2);
    let sent: Vec<_> = std::iter::from_fn(|| bench.finish(HostToDevice)).map(|(_, bytes)| bytes).collect();
    assert_eq!(sent, [PACKET, PACKET, PACKET, 100]);
    assert_eq!(bench.most_in_flight, 2);
    assert!(!bench.turns.is_busy());
    assert_eq!(bench.turns.deadline(), None);
    assert_eq!(bench.observe(1, HostToDevice), Seen::default());
}

#[test]
fn s2_tenants_share_by_weight_however_many_processes_they_have() {
    for in_flight in [1, 2, 4] {
        let mut bench = Bench::new(in_flight);
        bench.tenant(1, Class::BestEffort, 1, &[10, 11, 12, 13, 14]);
        bench.tenant(2, Class::BestEffort, 2, &[20]);
        bench.tenant(3, Class::LatencySensitive, 4, &[30, 31]);
        for process in [10, 11, 12, 13, 14, 20, 30, 31] {
            bench.ready(process, DeviceToHost, 10_000 * PACKET);
        }
        let mut sent = BTreeMap::<u64, u64>::new();
        for _ in 0..7_000 {
            let (process, bytes) = bench.finish(DeviceToHost).unwrap();
            *sent.entry(process).or_default() += bytes / PACKET;
        }
        let of =
            |tenant: u64| sent.iter().filter(|(process, _)| *process / 10 == tenant).map(|(_, n)| n).sum();
        let shares: [u64; 3] = [of(1), of(2), of(3)];
        assert!(shares.iter().zip([1_000, 2_000, 4_000]).all(|(a, b)| a.abs_diff(b) <= 10), "{shares:?}");
        assert!(
            [10, 11, 12, 13, 14]
                .iter()
                .all(|process| sent[process].abs_diff(200) <= 2 * u64::from(in_flight)),
            "{sent:?}"
        );
        assert_eq!(bench.most_in_flight, in_flight as usize);
    }
}

#[test]
fn s3_a_latency_sensitive_packet_waits_for_the_packets_in_flight() {
    let mut bench = Bench::new(2);
    bench.tenant(1, Class::BestEffort, 1, &[1, 2]);
    bench.tenant(2, Class::BestEffort, 1, &[3]);
    bench.tenant(3, Class::LatencySensitive, 8, &[9]);
    for process in [1, 2, 3] {
        bench.ready(process, HostToDevice, 1_000 * PACKET);
    }
    for round in 0..50 {
        for _ in 0..round % 7 {
            bench.finish(HostToDevice);
        }
        bench.ready(9, HostToDevice, 300 * KIB);
        let before = std::iter::from_fn(|| bench.finish(HostToDevice)).position(|(process, _)| process == 9);
        assert!(before.unwrap() <= 2, "{before:?} packets went first");
    }
}

#[test]
fn s4_a_stopped_process_holds_the_others_up_once() {
    let mut bench = Bench::new(1);
    bench.tenant(1, Class::BestEffort, 1, &[1, 2]);
    bench.tenant(2, Class::BestEffort, 1, &[3]);
    for process in [1, 3] {
        bench.ready(process, HostToDevice, 100 * PACKET);
    }
    assert_eq!(bench.link[0].front(), Some(&(ProcessId(1), PACKET)));
    let stopped = bench.link[0].pop_front().unwrap();
    assert_eq!(bench.expire(), []);
    let until = bench.turns.deadline().unwrap();
    assert_eq!(until, bench.now + PATIENCE + Nanos(PACKET));
    bench.now = until;
    assert_eq!(bench.expire(), [ProcessId(1)]);
    assert_eq!(bench.turns.late_count(ProcessId(1)), 1);
    bench.ready(2, HostToDevice, 10 * PACKET);
    let sent: Vec<_> = (0..20).map(|_| bench.finish(HostToDevice).unwrap().0).collect();
    assert!(!sent.contains(&1) && sent.contains(&2) && sent.contains(&3), "{sent:?}");
    // It moves again: it is through with the packet, and takes part; and it is watched more closely.
    bench.link[0].push_front(stopped);
    bench.finish(HostToDevice);
    let moves = (0..10)
        .find(|_| bench.link[0].front().unwrap().0 == ProcessId(1) || bench.finish(HostToDevice).is_none());
    assert!(moves.is_some());
    bench.now = bench.now + SHORT_PATIENCE + Nanos(PACKET - 1);
    assert_eq!(bench.expire(), []);
    bench.now += Nanos(1);
    assert_eq!(bench.expire(), [ProcessId(1)]);
}

#[test]
fn s5_a_process_that_dies_leaves_the_link_to_the_others() {
    let mut bench = Bench::new(2);
    bench.tenant(1, Class::BestEffort, 1, &[1]);
    bench.tenant(2, Class::BestEffort, 1, &[2]);
    bench.ready(1, HostToDevice, 100 * PACKET);
    bench.ready(2, HostToDevice, 4 * PACKET);
    bench.turns.remove(bench.now, ProcessId(1), &mut bench.grants);
    bench.deliver();
    bench.link[0].retain(|&(process, _)| process != ProcessId(1));
    assert_eq!(bench.link[0].len(), 2, "both places are the other's");
    for _ in 0..4 {
        assert_eq!(bench.finish(HostToDevice), Some((2, PACKET)));
    }
    assert!(!bench.turns.is_busy());
    let (now, grants) = (bench.now, &mut bench.grants);
    bench.turns.remove_tenant(now, TenantId(1), grants);
    bench.tenant(3, Class::BestEffort, 1, &[3]);
    bench.ready(3, HostToDevice, 1);
    assert_eq!(bench.finish(HostToDevice), Some((3, 1)));
    assert!(!bench.turns.add(ProcessId(4), TenantId(1)));
}

#[test]
fn s6_nonsense_changes_nothing() {
    let mut bench = Bench::new(2);
    bench.tenant(1, Class::BestEffort, 1, &[1]);
    bench.ready(1, HostToDevice, 10 * PACKET);
    let good = *bench.page(1, HostToDevice);
    let nonsense = Seen { moved: false, nonsense: true };
    for (ready, done) in [
        (0, 0),
        (good.0 - 1, 0),
        (u64::MAX, 0),
        (good.0 + MAX_READY + 1, 0),
        (good.0, 2 * PACKET + 1),
        (good.0, u64::MAX),
    ] {
        *bench.page(1, HostToDevice) = (ready, good.1, done);
        assert_eq!(bench.observe(1, HostToDevice), nonsense, "{ready} {done}");
        assert_eq!(bench.link[0].len(), 2);
    }
    *bench.page(1, HostToDevice) = good;
    assert_eq!(bench.observe(1, HostToDevice), Seen::default());
    assert_eq!(std::iter::from_fn(|| bench.finish(HostToDevice)).count(), 10);
}

#[derive(Debug, Clone)]
enum Op {
    Ready(u64, bool, u64),
    Finish(bool),
    Kill(u64),
    Say(u64, u64, u64),
    Wait(u64),
    Leave(u32),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn what_is_ready_is_granted_whatever_else_happens(ops in proptest::collection::vec(prop_oneof![
        6 => (0u64..9, any::<bool>(), 1..9 * PACKET).prop_map(|(p, d, b)| Op::Ready(p, d, b)),
        9 => any::<bool>().prop_map(Op::Finish),
        1 => (0u64..9).prop_map(Op::Kill),
        1 => (0u64..9, any::<u64>(), any::<u64>()).prop_map(|(p, r, d)| Op::Say(p, r, d)),
        1 => (0u64..200).prop_map(Op::Wait),
        1 => (0u32..3).prop_map(Op::Leave),
    ], 1..150)) {
        let mut bench = Bench::new(2);
        let mut alive = BTreeMap::new();
        for tenant in 0..3u32 {
            let processes = [0, 1, 2].map(|n| u64::from(tenant) * 3 + n);
            bench.tenant(tenant, Class::BestEffort, tenant + 1, &processes);
            alive.extend(processes.map(|process| (process, tenant)));
        }
        let bury = |bench: &mut Bench, alive: &mut BTreeMap<u64, u32>, dead: &dyn Fn(u64, u32) -> bool| {
            alive.retain(|&process, tenant| !dead(process, *tenant));
            for link in &mut bench.link {
                link.retain(|(process, _)| alive.contains_key(&process.0));
            }
            bench.deliver();
        };
        for op in ops {
            let now = bench.now;
            match op {
                Op::Ready(process, down, bytes) if alive.contains_key(&process) => {
                    bench.ready(process, Direction::ALL[usize::from(down)], bytes);
                }
                Op::Finish(down) => {
                    bench.finish(Direction::ALL[usize::from(down)]);
                }
                Op::Kill(process) => {
                    bench.turns.remove(now, ProcessId(process), &mut bench.grants);
                    bury(&mut bench, &mut alive, &|other, _| other == process);
                }
                Op::Say(process, ready, done) => {
                    // Said once and taken back: the page says again what is so.
                    let page = bench.page(process, HostToDevice).to_owned();
                    let nonsense = ready.wrapping_sub(page.0) > MAX_READY && done.wrapping_sub(page.2) > page.1 - page.2;
                    if nonsense {
                        let (process, grants) = (ProcessId(process), &mut bench.grants);
                        bench.turns.ready(now, process, HostToDevice, ready, grants);
                        bench.turns.done(now, process, HostToDevice, done, grants);
                        prop_assert_eq!(&bench.grants, &[]);
                    }
                }
                Op::Wait(ms) => {
                    bench.now += Nanos::from_millis(ms);
                    bench.expire();
                }
                Op::Leave(tenant) => {
                    bench.turns.remove_tenant(now, TenantId(tenant), &mut bench.grants);
                    bury(&mut bench, &mut alive, &|_, of| of == tenant);
                }
                Op::Ready(..) => {}
            }
        }
        for direction in Direction::ALL {
            while bench.finish(direction).is_some() {}
        }
        for (&(process, _), &(ready, granted, done)) in &bench.pages {
            if alive.contains_key(&process.0) {
                prop_assert_eq!((granted, done), (ready, ready));
            }
        }
        prop_assert!(!bench.turns.is_busy());
    }
}
