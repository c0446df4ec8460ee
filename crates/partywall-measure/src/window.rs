//! What of a run counts: the requests of a tenant against the window in which all tenants of a cell were at work.
//!
//! A latency-sensitive tenant's requests count if they began within the window. They may end behind it: leaving those
//! out would leave out the slow ones. A best-effort tenant's requests can be longer than the window, so its rate is
//! pro rata: of each request the part of its work by which its time overlaps the window.

use partywall_core::measure::{Load as Served, LoadMeter};
use partywall_core::units::Nanos;

use crate::load::Load;
use crate::protocol::Request;

/// A stretch of time, from `begin` to before `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub begin: Nanos,
    /// Its end; not before its beginning.
    pub end: Nanos,
}

/// What of one run of one tenant counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples {
    /// Service times of the requests that began within the window, in that order.
    pub service: Vec<Nanos>,
    /// Their response times.
    pub response: Vec<Nanos>,
    /// Work done within the window, pro rata.
    pub work: f64,
    /// Requests that were completed within the window.
    pub completed: u64,
    /// Length of the window.
    pub span: Nanos,
    /// Whether an open load was served; closed ones always are.
    pub load: Served,
}

impl Window {
    /// Its length.
    pub fn span(self) -> Nanos {
        self.end.saturating_sub(self.begin)
    }

    fn holds(self, at: Nanos) -> bool {
        self.begin <= at && at < self.end
    }

    /// What of `requests` (in the order they began) counts. `work` is what one request is worth.
    pub fn samples(self, requests: &[Request], load: &Load, work: f64) -> Samples {
        let counted: Vec<&Request> =
            requests.iter().filter(|request| self.holds(Nanos(request.start))).collect();
        let time = |end: u64, from: u64| Nanos(end.saturating_sub(from));
        Samples {
            service: counted.iter().map(|request| time(request.end, request.start)).collect(),
            response: counted.iter().map(|request| time(request.end, request.scheduled)).collect(),
            work: requests.iter().map(|request| work * self.overlap(request)).sum(),
            completed: requests.iter().filter(|request| self.holds(Nanos(request.end))).count() as u64,
            span: self.span(),
            load: if load.is_open() { self.served(requests, load) } else { Served::Served },
        }
    }

    /// The part of a request's time that lies within the window.
    fn overlap(self, request: &Request) -> f64 {
        if request.end <= request.start {
            return f64::from(u8::from(self.holds(Nanos(request.start))));
        }
        let from = Nanos(request.start).max(self.begin);
        let to = Nanos(request.end).min(self.end);
        to.saturating_sub(from).0 as f64 / (request.end - request.start) as f64
    }

    fn served(self, requests: &[Request], load: &Load) -> Served {
        let mut meter = LoadMeter::new(self.begin, self.end);
        for request in requests {
            meter.arrived(Nanos(request.scheduled));
            meter.completed(Nanos(request.end));
        }
        // Requests that were due and never begun have no line. After the last one that has, they are due a period
        // apart, or, of Poisson arrivals, on average so.
        let gap = load.offered_per_s().map_or(u64::MAX, |rate| ((1e9 / rate) as u64).max(1));
        let mut due = requests.last().map_or(self.begin.0, |last| last.scheduled).saturating_add(gap);
        while due < self.end.0 {
            meter.arrived(Nanos(due));
            due = due.saturating_add(gap);
        }
        meter.served().load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WINDOW: Window = Window { begin: Nanos(1_000), end: Nanos(2_000) };

    fn request(scheduled: u64, start: u64, end: u64) -> Request {
        Request { scheduled, start, end }
    }

    #[test]
    fn requests_count_by_their_beginning_and_work_by_overlap() {
        let requests = [
            request(500, 500, 1_500),
            request(1_400, 1_500, 1_600),
            request(1_900, 1_900, 2_100),
            request(2_000, 2_000, 2_001),
        ];
        let samples = WINDOW.samples(&requests, &Load::BACK_TO_BACK, 10.0);
        assert_eq!(samples.service, [Nanos(100), Nanos(200)]);
        assert_eq!(samples.response, [Nanos(200), Nanos(200)]);
        assert_eq!(samples.work, 5.0 + 10.0 + 5.0);
        assert_eq!((samples.completed, samples.span), (2, Nanos(1_000)));
        assert_eq!(samples.load, Served::Served);
    }

    #[test]
    fn a_request_longer_than_the_window_is_pro_rata() {
        let samples = WINDOW.samples(&[request(0, 0, 4_000)], &Load::BACK_TO_BACK, 8.0);
        assert_eq!((samples.work, samples.service.len(), samples.completed), (2.0, 0, 0));
    }

    #[test]
    fn an_open_load_that_is_not_served_is_saturated_although_nothing_is_dropped() {
        let window = Window { begin: Nanos(0), end: Nanos(1_000_000) };
        // Due every 1 000 ns, done in `service`, one after the other, until the window ends.
        let run = |service: u64| {
            let mut free = 0;
            let all = (0..1_000).map(|k| {
                let start = free.max(k * 1_000);
                free = start + service;
                request(k * 1_000, start, free)
            });
            let requests: Vec<_> = all.take_while(|request| request.start < 1_000_000).collect();
            window.samples(&requests, &Load::Periodic { period_ns: 1_000 }, 1.0).load
        };
        assert_eq!(run(900), Served::Served);
        assert!(
            matches!(run(1_500), Served::Saturated { completed_per_s } if (completed_per_s / 1e9 * 1_500.0 - 1.0).abs() < 0.01)
        );
        // Nothing at all was done.
        let idle = window.samples(&[], &Load::Periodic { period_ns: 1_000 }, 1.0).load;
        assert_eq!(idle, Served::Saturated { completed_per_s: 0.0 });
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn neighbouring_windows_share_the_work_without_rest(times in proptest::collection::vec((0u64..3_000, 1u64..3_000), 0..20), cut in 0u64..6_000) {
            let requests: Vec<_> = times.iter().map(|&(start, took)| request(start, start, start + took)).collect();
            let work = |begin, end| Window { begin: Nanos(begin), end: Nanos(end) }.samples(&requests, &Load::BACK_TO_BACK, 1.0).work;
            prop_assert!((work(0, cut) + work(cut, 6_000) - requests.len() as f64).abs() < 1e-9);
        }
    }
}
