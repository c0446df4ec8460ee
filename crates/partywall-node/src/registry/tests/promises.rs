//! Promises about requests, from what pages say.

use std::sync::mpsc::Receiver;

use partywall_core::guarantee::{BaselineSource, NEEDED, Reason, Verdict, WARM_UP};
use partywall_shim_api::page::{HOLD_MEASURING, REQUESTS};

use super::*;
use crate::promise::PromiseFacts;

const LS: u32 = 2;
const BE: u32 = 1;
const MS: u64 = 1_000_000;

/// A node that decides about launches, with a latency-sensitive tenant that was promised something, and a best-effort one.
struct Scene {
    bench: Bench,
    news: Receiver<String>,
    ls: Shim,
    be: Shim,
}

impl Scene {
    /// Best-effort tenants are not steered, so that all that is told is about the promise.
    fn new(slo: Slo) -> Self {
        Self::steered(slo, false)
    }

    fn steered(slo: Slo, steered: bool) -> Self {
        let (sender, news) = mpsc::channel();
        let mut bench = Bench::new();
        bench.stop();
        bench.launches = LaunchOptions { decided: true, steered, ..LaunchOptions::default() };
        bench.news = Some(sender);
        bench.start();
        let promised = TenantSpec { slo, ..spec(LS, None) };
        bench.registry().add_tenant(&promised).unwrap();
        let ls = bench.join(promised.token);
        let token = bench.tenant(BE, 1000);
        let be = bench.join(token);
        ls.send(&ToNode::Coverage { disposition: Disposition::Enforced, names: "cuLaunchKernel".to_owned() });
        wait("what it uses", || bench.view(LS).guaranteed == Some(true));
        Self { bench, news, ls, be }
    }

    fn promise(&self) -> PromiseFacts {
        self.bench.view(LS).promise.unwrap()
    }

    fn reasons(&self) -> Vec<Reason> {
        self.promise().status.reasons
    }

    /// So many requests that took so long; 0: not known. Beside best-effort work, or without.
    fn requests(&self, count: u64, took: u64, beside: bool) {
        let ring = &self.ls.page.shim.requests;
        let until = self.promise().status.requests + count;
        let mut left = count;
        while left > 0 {
            let batch = left.min(REQUESTS as u64 / 2);
            if beside {
                self.be.page.shim.launches.fetch_add(1, Ordering::Relaxed);
            }
            for _ in 0..batch {
                let slot = &ring.times[(ring.count.load(Ordering::Relaxed) % REQUESTS as u64) as usize];
                slot.end_ns.store(clock::now().0, Ordering::Relaxed);
                slot.took_ns.store(took, Ordering::Relaxed);
                ring.count.fetch_add(1, Ordering::Release);
            }
            left -= batch;
            wait("them to be read", || self.promise().status.requests == until - left);
        }
    }

    fn holds(&self) -> bool {
        self.be.page.node.hold.load(Ordering::Relaxed) == HOLD_MEASURING
    }
}

/// Requests after this do not reach back to what was before it.
fn pass(time: Nanos) {
    let start = clock::now();
    wait("time to pass", || clock::now().saturating_sub(start) > time);
}

fn slowdown(factor: f64) -> Slo {
    Slo { slowdown: Some(factor), p99: None }
}

#[test]
fn a_baseline_is_taken_alone_and_requests_beside_are_held_against_it() {
    let scene = Scene::new(slowdown(2.0));
    assert_eq!(scene.reasons(), [Reason::NoBaseline { requests: 0, needed: NEEDED }]);
    scene.requests(1, MS, false);
    wait("the best-effort tenant to hold", || scene.holds());
    scene.requests(WARM_UP + NEEDED - 2, MS, false);
    assert!(scene.promise().status.baseline.is_being_taken);
    scene.requests(1, MS, false);
    wait("it to go on", || !scene.holds());
    pass(Nanos(5 * MS));
    let baseline = scene.promise().status.baseline;
    assert_eq!((baseline.source, baseline.p99_ns), (BaselineSource::Measured, Some(Nanos(MS))));
    let line = scene.news.recv().unwrap();
    assert!(line.contains("tenant-2: alone, 99 of 100 requests take 1.000 ms at most"), "{line}");
    scene.requests(400, 3 * MS / 2, true);
    let status = scene.promise().status;
    assert_eq!((status.verdict, status.beside.requests), (Verdict::Kept, 400));
    scene.requests(50, 5 * MS, true);
    let promise = scene.promise();
    assert_eq!((promise.status.verdict, promise.status.breaks), (Verdict::Broken, 1));
    assert_eq!(promise.history[0].by[0].tenant, "tenant-1");
    assert!(promise.history[0].goes_on && promise.history[0].by[0].time_ns > Nanos::ZERO);
    let line = scene.news.recv().unwrap();
    for part in ["tenant-2: the promise is broken", "took more than 2.000 ms", "beside them: tenant-1 for "] {
        assert!(line.contains(part), "`{part}` is not in: {line}");
    }
    scene.requests(5_000, MS, true);
    assert!(scene.news.recv().unwrap().contains("tenant-2: the promise is kept again"));
    assert_eq!(scene.promise().status.slowdown, Some(1.0));
    assert!(!scene.promise().history[0].goes_on);
}

#[test]
fn best_effort_tenants_get_as_much_room_as_the_promise_allows() {
    let scene = Scene::steered(Slo { slowdown: None, p99: Some(Nanos(2 * MS)) }, true);
    let chunk = || scene.be.page.node.chunk_ns.load(Ordering::Relaxed);
    wait("the safest setting", || chunk() == 25_000);
    scene.requests(WARM_UP, MS, true);
    wait("a trial that is long enough", || {
        scene.requests(200, MS, true);
        chunk() == 50_000
    });
    // Under this one all requests are slow, and so they are under all others.
    wait("it to be left", || {
        scene.requests(20, 5 * MS, true);
        chunk() != 50_000
    });
    wait("it to be said that there is nothing more to take away", || {
        scene.requests(20, 5 * MS, true);
        scene.news.try_iter().any(|line| line.contains("tenant-2: the promise cannot be kept"))
    });
    assert_eq!(chunk(), 25_000);
}

#[test]
fn nothing_is_guaranteed_that_was_not_measured() {
    let mut bench = Bench::new();
    let told = |bench: &Bench| bench.view(LS).promise.unwrap().status;
    bench.registry().add_tenant(&TenantSpec { slo: slowdown(1.2), ..spec(LS, None) }).unwrap();
    assert_eq!(told(&bench).reasons, [Reason::LaunchesUndecided]);
    assert_eq!(told(&bench).verdict, Verdict::NotGuaranteed);
    bench.tenant(BE, 1000);
    assert_eq!(bench.view(BE).promise, None);

    let scene = Scene::new(Slo::default());
    scene.requests(WARM_UP + NEEDED, MS, false);
    assert_eq!(scene.reasons(), [Reason::NotPromised]);
    assert!(!scene.holds());

    let mut scene = Scene::new(Slo { slowdown: None, p99: Some(Nanos(2 * MS)) });
    scene.requests(WARM_UP + 10, MS, false);
    assert!(matches!(scene.reasons()[..], [Reason::NobodyBeside { .. }]));
    scene.requests(10, MS, true);
    assert_eq!(scene.reasons(), [Reason::TooFew { requests: 10, needed: NEEDED }]);
    scene.requests(10, 0, true);
    assert_eq!(scene.reasons(), [Reason::Overlap { requests: 20, overlapping: 10 }]);
    scene.requests(NEEDED, MS, true);
    scene.ls.send(&ToNode::Coverage { disposition: Disposition::Unknown, names: "cuFoo".to_owned() });
    wait("what it uses", || scene.bench.view(LS).guaranteed == Some(false));
    let text = "1 unknown entry points of the driver: cuFoo".to_owned();
    assert_eq!(scene.reasons(), [Reason::Outside { text }]);
    // A restart of its program is one of the tenant's, whose history goes on.
    let before = scene.promise().status.requests;
    scene.bench.registry().tenant_event(TenantId(LS), TenantEvent::Ended { run: 1 });
    assert_eq!(scene.promise().status.requests, before);
}

#[test]
fn a_hold_ends_with_the_tenant_that_it_is_for() {
    let mut scene = Scene::new(slowdown(1.2));
    scene.requests(1, MS, false);
    wait("the best-effort tenant to hold", || scene.holds());
    scene.bench.registry().remove_tenant(TenantId(LS));
    wait("it to go on", || !scene.holds());
}

#[test]
fn requests_beside_another_latency_sensitive_tenant_are_no_baseline() {
    let mut scene = Scene::new(slowdown(1.2));
    let other = TenantSpec { slo: slowdown(1.2), ..spec(4, None) };
    scene.bench.registry().add_tenant(&other).unwrap();
    let other = scene.bench.join(other.token);
    other.page.shim.active.store(1, Ordering::Relaxed);
    scene.requests(WARM_UP + 100, MS, false);
    assert_eq!(scene.promise().status.baseline.requests, 0);
    other.page.shim.active.store(0, Ordering::Relaxed);
    // It was at work until the last look.
    pass(Nanos(100 * MS));
    scene.requests(100, MS, false);
    assert_eq!(scene.promise().status.baseline.requests, 100);
}

#[test]
fn a_page_that_says_what_cannot_be_is_marked() {
    let scene = Scene::new(slowdown(1.2));
    scene.ls.page.shim.requests.count.store(u64::MAX, Ordering::Release);
    wait("the mark", || {
        scene.bench.view(LS).reasons.contains(&"a process wrote into its page what cannot be".to_owned())
    });
    assert_eq!(scene.promise().status.verdict, Verdict::NotGuaranteed);
}
