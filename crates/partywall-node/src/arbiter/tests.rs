use rustix::event::{EventfdFlags, eventfd};

use super::*;

const HOST_TO_DEVICE: usize = 0;
const PACKET: u64 = 512 << 10;

/// Processes and the link that they share, all played by one thread: packets get through in the order in which they were
/// granted.
struct Link {
    arbiter: Arbiter,
    copiers: Vec<Copier>,
}

struct Copier {
    page: Arc<Mapped>,
    bell: OwnedFd,
    watch: Arc<CopyWatch>,
}

impl Copier {
    fn granted(&self) -> u64 {
        self.page.node.granted[HOST_TO_DEVICE].load(Ordering::Acquire)
    }

    fn done(&self) -> u64 {
        self.page.shim.copies[HOST_TO_DEVICE].done.load(Ordering::Relaxed)
    }

    fn ready(&self, bytes: u64) {
        self.page.shim.copies[HOST_TO_DEVICE].ready.fetch_add(bytes, Ordering::Release);
        self.ring();
    }

    fn finish(&self, bytes: u64) {
        self.page.shim.copies[HOST_TO_DEVICE].done.fetch_add(bytes, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        Page::fence();
        if self.page.node.asleep.load(Ordering::Relaxed) != 0 {
            rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        }
    }
}

impl Link {
    fn new(tenants: &[(Class, u32)]) -> Self {
        let arbiter = Arbiter::start(Config::default(), LaunchOptions::default()).unwrap();
        let copiers = tenants.iter().enumerate().map(|(n, &(class, weight))| {
            let id = TenantId(n as u32);
            arbiter.add_tenant(id, class, weight);
            let (page, _file) = Mapped::create(1, id.0, 0, None).unwrap();
            let page = Arc::new(page);
            let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
            let watch = Arc::new(CopyWatch::default());
            arbiter.add(
                ProcessId(n as u64),
                id,
                Arc::clone(&page),
                bell.try_clone().unwrap(),
                Arc::clone(&watch),
            );
            Copier { page, bell, watch }
        });
        let copiers = copiers.collect();
        Self { arbiter, copiers }
    }

    /// Waits until so many bytes are granted and not done, over all copiers.
    fn wait_for(&self, bytes: u64) {
        wait(|| self.copiers.iter().map(|one| one.granted() - one.done()).sum::<u64>() >= bytes);
    }
}

/// Looks until it is so; the time limit is for a test that fails.
fn wait(is_so: impl Fn() -> bool) {
    let start = clock::now();
    while !is_so() {
        assert!(clock::now().saturating_sub(start) < Nanos::from_secs(30), "nothing came of it");
        std::thread::yield_now();
    }
}

#[test]
fn rates_follow_the_weights() {
    let link = Link::new(&[(Class::BestEffort, 1), (Class::BestEffort, 2), (Class::BestEffort, 4)]);
    for copier in &link.copiers {
        copier.ready(1 << 40);
    }
    // Until all have been heard, the first has the link to itself.
    wait(|| {
        link.copiers.iter().all(|copier| copier.granted() > 0) || {
            let first = link.copiers.iter().find(|one| one.granted() > one.done());
            first.inspect(|one| one.finish(PACKET));
            false
        }
    });
    let before: Vec<u64> = link.copiers.iter().map(Copier::done).collect();
    for _ in 0..700 {
        link.wait_for(2 * PACKET);
        let at_work: Vec<_> = link.copiers.iter().filter(|one| one.granted() > one.done()).collect();
        at_work[0].finish(PACKET);
    }
    let sent: Vec<u64> =
        link.copiers.iter().zip(before).map(|(one, before)| (one.done() - before) / PACKET).collect();
    assert_eq!(sent.iter().sum::<u64>(), 700);
    assert!(
        sent.iter().zip([100, 200, 400]).all(|(&sent, share)| sent.abs_diff(share) * 10 <= share),
        "{sent:?}"
    );
}

#[test]
fn a_latency_sensitive_copy_waits_for_what_is_in_flight() {
    let link = Link::new(&[(Class::BestEffort, 1), (Class::LatencySensitive, 8)]);
    let [batch, urgent] = &link.copiers[..] else { panic!() };
    batch.ready(1 << 40);
    for _ in 0..200 {
        link.wait_for(2 * PACKET);
        let before = batch.granted();
        urgent.ready(100_000);
        batch.finish(PACKET);
        wait(|| urgent.granted() > urgent.done());
        assert_eq!(batch.granted(), before, "a packet of the other went first");
        urgent.finish(100_000);
    }
}

#[test]
fn who_sleeps_is_woken_and_who_is_gone_is_not_waited_for() {
    let mut link = Link::new(&[(Class::BestEffort, 1), (Class::BestEffort, 1)]);
    let [one, other] = &link.copiers[..] else { panic!() };
    for _ in 0..20 {
        wait(|| one.page.node.asleep.load(Ordering::Relaxed) == 1);
        one.ready(10);
        wait(|| one.granted() == one.done() + 10);
        one.finish(10);
    }
    one.ready(10 * PACKET);
    other.ready(PACKET);
    link.wait_for(2 * PACKET);
    link.arbiter.remove(ProcessId(0));
    wait(|| other.granted() == PACKET);
    let page = Arc::downgrade(&one.page);
    link.copiers.remove(0);
    wait(|| page.strong_count() == 0);
    link.arbiter.remove_tenant(TenantId(1));
    drop(link.arbiter);
    assert_eq!(Arc::strong_count(&link.copiers[0].page), 1);
}

#[test]
fn one_that_stops_is_late_and_one_that_lies_is_noticed() {
    let link = Link::new(&[(Class::BestEffort, 1), (Class::BestEffort, 1)]);
    let [stopped, other] = &link.copiers[..] else { panic!() };
    stopped.ready(4 * PACKET);
    link.wait_for(2 * PACKET);
    other.ready(2 * PACKET);
    // After its patience, and without a bell.
    wait(|| other.granted() == 2 * PACKET);
    assert_eq!(stopped.granted(), 2 * PACKET);
    wait(|| stopped.watch.late.load(Ordering::Relaxed) == 2);
    other.finish(2 * PACKET);
    other.page.shim.copies[HOST_TO_DEVICE].ready.store(3, Ordering::Release);
    other.ring();
    wait(|| other.watch.nonsense.load(Ordering::Relaxed));
    stopped.finish(2 * PACKET);
    wait(|| stopped.granted() == 4 * PACKET);
    assert!(!stopped.watch.nonsense.load(Ordering::Relaxed));
}

#[test]
fn options_come_from_text() {
    let parse = |text: &str| text.parse::<CopyOptions>().map_err(|error| error.to_string());
    assert_eq!(parse(""), Ok(CopyOptions::default()));
    assert_eq!(parse("off"), Ok(CopyOptions { decided: false, ..CopyOptions::default() }));
    let given = parse("packet=32KiB, in-flight=3,direct-ls=0B,direct-be=1MiB").unwrap();
    assert_eq!(given.scheduler.min_charge, Bytes::from_kib(32));
    assert_eq!((given.scheduler.packet, given.scheduler.in_flight), (Bytes::from_kib(32), 3));
    assert_eq!(given.direct_max(Class::LatencySensitive), Bytes::ZERO);
    assert_eq!(given.direct_max(Class::BestEffort), Bytes::from_mib(1));
    for (text, says) in [
        ("pakket=1", "`pakket=1` says nothing"),
        ("in-flight=x", "in-flight=x"),
        ("in-flight=99", "choose 1 to 16"),
        ("packet=0B", "choose 1B to 1GiB"),
        ("packet=64KiB,min-charge=65KiB", "at most the packet size"),
    ] {
        let message = parse(text).unwrap_err();
        assert!(message.contains(says), "{text}: {message}");
    }
}
