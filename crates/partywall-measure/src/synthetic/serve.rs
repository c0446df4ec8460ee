//! A run: from a load to requests with times.
//!
//! Nothing is written, allocated or decided between a request's two times but its own work. Requests are kept in memory
//! until the run has ended; [`crate::protocol::REQUESTS_MAX`] of them are 24 MB, and a run that has made as many as it
//! was asked for ends by itself.
//!
//! Waiting is a controlled input: what a tenant does between two requests decides how much of the GPU its neighbours
//! get under MPS. The last millisecond before a request is due is therefore spent looking at the clock.

use partywall_core::units::Nanos;

use super::{Clock, Workload, WorkloadError};
use crate::load::Schedule;
use crate::protocol::{Request, Run};

/// A sleeping thread wakes up late, by 50 us to 1 ms; so this much before a time, sleeping ends and looking begins.
pub const SPIN: Nanos = Nanos::from_millis(1);
/// Longest sleep in one piece. A host that has slept for milliseconds is slow at first: with pieces of 5 ms the median of copies of
/// 64 KiB, 200 a second, was 20 to 28 us, with pieces like this 11 us (H200 in a virtual machine, November 2026).
pub const SLICE: Nanos = Nanos::from_micros(100);

/// Does the requests of `run` until there are enough or `stopped` says so; the one in flight is finished. Between requests that
/// are far apart the host sleeps, if it is one that `sleeps`.
///
/// # Errors
/// The workload's.
pub fn run(
    clock: &dyn Clock,
    workload: &mut dyn Workload,
    run: &Run,
    sleeps: bool,
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<Request>, WorkloadError> {
    let requests_max = usize::try_from(run.requests_max).unwrap_or(usize::MAX);
    // Address space, not memory: pages come when they are written to.
    let mut requests = Vec::with_capacity(requests_max.min(crate::protocol::REQUESTS_MAX as usize));
    let mut schedule = Schedule::new(run.load, Nanos(run.begin));
    let depth = run.load.depth();
    let mut returned = None;
    while requests.len() < requests_max {
        let scheduled = schedule.next(returned);
        if !wait_until(clock, scheduled, sleeps, stopped) {
            break;
        }
        let start = clock.now();
        for _ in 0..depth {
            workload.submit()?;
        }
        workload.wait()?;
        let end = clock.now();
        requests.push(Request { scheduled: scheduled.0, start: start.0, end: end.0 });
        returned = Some(end);
    }
    Ok(requests)
}

/// The median time between the return of a wait and the next submission; `None` with fewer than two requests.
pub fn host_gap_ns(requests: &[Request]) -> Option<u64> {
    let mut gaps: Vec<u64> =
        requests.windows(2).map(|pair| pair[1].start.saturating_sub(pair[0].end)).collect();
    if gaps.is_empty() {
        return None;
    }
    let middle = gaps.len() / 2;
    Some(*gaps.select_nth_unstable(middle).1)
}

/// Waits until `due`, asleep while that is far if it `sleeps`; `false` if it was stopped instead.
fn wait_until(clock: &dyn Clock, due: Nanos, sleeps: bool, stopped: &dyn Fn() -> bool) -> bool {
    loop {
        if stopped() {
            return false;
        }
        let now = clock.now();
        if now >= due {
            return true;
        }
        let left = due - now;
        if sleeps && left > SPIN {
            clock.sleep((left - SPIN).min(SLICE));
        } else {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::super::Verdict;
    use super::*;
    use crate::load::Load;

    /// A clock that stands still but for sleeping, working, and a little for each look at it.
    #[derive(Clone, Default)]
    pub(in super::super) struct FakeClock(pub(in super::super) Rc<Cell<u64>>, Rc<Cell<u64>>);

    impl FakeClock {
        /// Long for a look, so that a millisecond of looking is over soon.
        pub(in super::super) const LOOK: u64 = 500;
        pub(in super::super) fn pass(&self, ns: u64) {
            self.0.set(self.0.get().saturating_add(ns));
        }
        fn longest_sleep(&self) -> u64 {
            self.1.get()
        }
    }

    impl Clock for FakeClock {
        fn now(&self) -> Nanos {
            self.pass(Self::LOOK);
            Nanos(self.0.get())
        }
        fn sleep(&self, duration: Nanos) {
            self.1.set(self.1.get().max(duration.0));
            // Wakes up late, as sleepers do.
            self.pass(duration.0 + 60_000);
        }
    }

    /// Takes `service` ns a unit, all of it in the wait.
    struct Busy {
        clock: FakeClock,
        service: u64,
        queued: u64,
        units: u64,
    }

    impl Workload for Busy {
        fn identity(&self) -> crate::synthetic::Identity {
            crate::synthetic::Identity { name: "busy", unit: "unit", cache_policy: None }
        }
        fn about(&self) -> BTreeMap<String, String> {
            BTreeMap::new()
        }
        fn begin(&mut self) -> Result<(), WorkloadError> {
            Ok(())
        }
        fn submit(&mut self) -> Result<(), WorkloadError> {
            self.queued += 1;
            Ok(())
        }
        fn wait(&mut self) -> Result<(), WorkloadError> {
            self.clock.pass(self.service * self.queued);
            self.units += std::mem::take(&mut self.queued);
            Ok(())
        }
        fn check(&mut self) -> Result<Verdict, WorkloadError> {
            Ok(Verdict::right(self.units))
        }
    }

    const BEGIN: u64 = 1_000_000;

    /// The requests, the units done, and the clock at the end.
    fn requests(load: Load, service: u64, requests_max: u64, stop_at: u64) -> (Vec<Request>, u64, FakeClock) {
        let clock = FakeClock::default();
        let mut workload = Busy { clock: clock.clone(), service, queued: 0, units: 0 };
        let asked = Run { run: 1, load, begin: BEGIN, requests_max };
        let stopped = || clock.0.get() >= stop_at;
        let requests = run(&clock, &mut workload, &asked, true, &stopped).unwrap();
        (requests, workload.units, clock)
    }

    /// What it costs to look at the clock, at most: twice around each request, and once to see that it is due.
    pub(in super::super) const SLACK: u64 = 3 * FakeClock::LOOK;

    #[test]
    fn a_closed_load_pauses_for_as_long_as_it_was_told() {
        let load = Load::Closed { pause_ns: 200_000, depth: 3 };
        let (requests, units, _) = requests(load, 5_000, 50, u64::MAX);
        assert_eq!((requests.len(), units), (50, 150), "it ends by itself, and depth counts");
        assert!(requests[0].start >= BEGIN && requests[0].start <= BEGIN + SLACK);
        for pair in requests.windows(2) {
            let gap = pair[1].start - pair[0].end;
            assert!((200_000..=200_000 + SLACK).contains(&gap), "{gap}");
            assert!(pair[1].end - pair[1].start >= 15_000);
        }
        let gap = host_gap_ns(&requests).unwrap();
        assert!((200_000..=200_000 + SLACK).contains(&gap), "{gap}");
    }

    #[test]
    fn without_a_pause_requests_follow_at_once() {
        let (requests, ..) = requests(Load::BACK_TO_BACK, 5_000, 50, u64::MAX);
        assert!(requests.windows(2).all(|pair| pair[1].start - pair[0].end <= SLACK));
    }

    #[test]
    fn an_open_load_lets_requests_queue_and_drops_none() {
        // Each takes 3 ms and one is due every 2: they fall behind by 1 ms each.
        let load = Load::Periodic { period_ns: 2_000_000 };
        let (requests, ..) = requests(load, 3_000_000, 20, u64::MAX);
        for (index, request) in requests.iter().enumerate() {
            assert_eq!(request.scheduled, BEGIN + index as u64 * 2_000_000);
        }
        let waited = requests[19].start - requests[19].scheduled;
        assert!((19_000_000..19_000_000 + 20 * SLACK).contains(&waited), "{waited}");
    }

    #[test]
    fn long_waits_sleep_and_end_on_time() {
        let load = Load::Periodic { period_ns: 50_000_000 };
        let (requests, _, clock) = requests(load, 1_000, 10, u64::MAX);
        assert!(requests.iter().all(|request| request.start - request.scheduled <= SLACK));
        assert_eq!(clock.longest_sleep(), SLICE.0);
    }

    #[test]
    fn who_stays_awake_never_sleeps() {
        let clock = FakeClock::default();
        let awake = |due| wait_until(&clock, Nanos(due), false, &|| false);
        assert!(awake(5_000_000) && clock.longest_sleep() == 0 && clock.0.get() >= 5_000_000);
    }

    #[test]
    fn a_stop_is_noticed_while_waiting_and_between_requests() {
        let load = Load::Periodic { period_ns: 10_000_000_000 };
        let (waiting, _, clock) = requests(load, 1_000, 10, 25_000_000);
        assert_eq!(waiting.len(), 1);
        assert!(clock.0.get() < 25_000_000 + SLICE.0 + 100_000, "noticed within a slice");
        // The request in flight at the stop is finished and counts.
        let (busy, ..) = requests(Load::BACK_TO_BACK, 1_000_000, 100, BEGIN + 4_500_000);
        assert_eq!(busy.len(), 5);
        assert_eq!(requests(load, 1, 10, 0).0, [], "stopped before it began");
    }

    #[test]
    fn gaps_are_the_median() {
        let request = |start, end| Request { scheduled: start, start, end };
        assert_eq!(host_gap_ns(&[]), None);
        assert_eq!(host_gap_ns(&[request(0, 5)]), None);
        let three = [request(0, 5), request(6, 10), request(110, 120), request(123, 130)];
        assert_eq!(host_gap_ns(&three), Some(3));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever the load: requests do not overlap, none starts before it is due, and times do not run back.
        #[test]
        fn requests_are_in_order(
            rate_per_s in 100.0..1e6, period_ns in 1_000u64..20_000_000, pause_ns in 0u64..3_000_000,
            depth in 1u32..4, service in 0u64..5_000_000, seed in any::<u64>(),
        ) {
            let loads = [Load::Poisson { rate_per_s, seed }, Load::Periodic { period_ns },
                Load::Closed { pause_ns, depth }];
            for load in loads {
                let (requests, units, _) = requests(load, service, 30, u64::MAX);
                prop_assert_eq!(requests.len() as u64 * u64::from(load.depth()), units);
                for request in &requests {
                    prop_assert!(request.scheduled <= request.start && request.start <= request.end);
                }
                for pair in requests.windows(2) {
                    prop_assert!(pair[0].end <= pair[1].start && pair[0].scheduled <= pair[1].scheduled);
                }
            }
        }
    }
}
