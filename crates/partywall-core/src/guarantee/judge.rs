//! What the requests say about the promise.

use super::status::{BaselineSource, BaselineStatus, BesideStatus, Exceedance, Reason, Status, Verdict};
use super::window::Window;
use super::{ALLOWED, DOUBT_BROKEN, DOUBT_KEPT, NEEDED, RECENT_TIME, Tracker, WINDOW_TIME, binomial};
use crate::measure::{Percentile, slowdown};
use crate::units::Nanos;

impl Exceedance {
    /// Of `requests`, so many took longer than the bound, and of so many it is not known.
    pub(super) fn new((above, requests, unknown): (u64, u64, u64)) -> Self {
        let share = (requests > 0).then(|| above as f64 / requests as f64);
        // What is not known may lie on either side.
        let low = binomial::interval(above, requests).0;
        let high = binomial::interval(above + unknown, requests).1;
        Self { requests, above, unknown, share, low, high }
    }

    /// Whether the share that is known to be above is one that a promise on p99 allows.
    pub fn is_allowed(&self) -> bool {
        self.above as f64 <= ALLOWED * self.requests as f64
    }

    /// Whether it is also if all were above of which it is not known.
    fn is_allowed_at_worst(&self) -> bool {
        (self.above + self.unknown) as f64 <= ALLOWED * self.requests as f64
    }

    /// Whether chance does not explain that so many are above.
    pub fn is_surely_too_much(&self) -> bool {
        !self.is_allowed() && binomial::at_least(self.above, self.requests, ALLOWED) < DOUBT_BROKEN
    }

    /// Whether chance does not explain that so few are above.
    fn is_surely_allowed(&self) -> bool {
        binomial::at_most(self.above + self.unknown, self.requests, ALLOWED) <= DOUBT_KEPT
            && self.is_allowed_at_worst()
    }

    /// `None` where it cannot be told.
    fn verdict(&self) -> Option<Verdict> {
        let enough = self.requests >= NEEDED;
        if (enough && !self.is_allowed()) || self.is_surely_too_much() {
            Some(Verdict::Broken)
        } else if (enough && self.is_allowed_at_worst()) || self.is_surely_allowed() {
            Some(Verdict::Kept)
        } else {
            None
        }
    }
}

impl Tracker {
    /// The longest that 99 of 100 requests may take: by the promise on the time, and by that on the slowdown. `None` where nothing was
    /// promised, and until all that this takes is known.
    pub fn bound(&self) -> Option<Nanos> {
        let by_slowdown = self.config.slo.slowdown.map(|factor| {
            let p99 = self.baseline_p99()?;
            Some(Nanos((p99.0 as f64 * factor) as u64))
        });
        match (by_slowdown, self.config.slo.p99) {
            (Some(None), _) | (None, None) => None,
            (Some(Some(bound)), None) | (None, Some(bound)) => Some(bound),
            (Some(Some(bound)), Some(time)) => Some(bound.min(time)),
        }
    }

    /// Requests beside best-effort work above the bound, of those since `oldest` that are still in the window.
    pub fn exceedance(&self, oldest: Nanos) -> Option<Exceedance> {
        Some(Exceedance::new(self.beside.above(self.bound()?, oldest)))
    }

    /// The same within [`RECENT_TIME`]: what steering goes by.
    pub fn recent(&self, now: Nanos) -> Option<Exceedance> {
        self.exceedance(now.saturating_sub(RECENT_TIME))
    }

    fn baseline_p99(&self) -> Option<Nanos> {
        self.config.baseline.or_else(|| self.baseline.map(|(_, p99)| p99))
    }

    /// How it stands. `outside`: why nothing can be guaranteed, whatever the requests say.
    pub fn status(&self, now: Nanos, outside: &[Reason]) -> Status {
        let p99 = self.beside.percentile(Percentile::P99);
        let slowdown = p99.zip(self.baseline_p99()).and_then(|(beside, baseline)| slowdown(baseline, beside));
        let (verdict, reasons) = self.verdict(outside);
        Status {
            promised: self.config.slo,
            verdict,
            reasons,
            bound_ns: self.bound(),
            baseline: self.baseline_status(now),
            beside: BesideStatus {
                requests: self.beside.len(),
                overlapping: self.beside.unknown(),
                p50_ns: self.beside.median(),
                p99_ns: p99,
            },
            slowdown,
            margin: self.margin(p99, slowdown),
            above: self.exceedance(Nanos::ZERO),
            recent: self.recent(now),
            requests: self.requests,
            lost: self.lost,
            breaks: self.broken_total,
            broken_for_ns: self
                .breaks
                .back()
                .filter(|one| one.until.is_none())
                .map(|one| now.saturating_sub(one.since)),
        }
    }

    fn baseline_status(&self, now: Nanos) -> BaselineStatus {
        let measured = self.baseline.filter(|_| self.config.baseline.is_none());
        let source = match (self.config.baseline, measured) {
            (Some(_), _) => BaselineSource::Given,
            (None, Some(_)) => BaselineSource::Measured,
            (None, None) => BaselineSource::None,
        };
        BaselineStatus {
            source,
            p50_ns: measured.map(|(p50, _)| p50),
            p99_ns: self.baseline_p99(),
            requests: self.alone.known(),
            age_ns: measured.and(self.alone.last()).map(|last| now.saturating_sub(last)),
            is_being_taken: self.holding.is_some(),
        }
    }

    /// How far what was measured is from what was promised, as a part of that: of several promises the least.
    fn margin(&self, p99: Option<Nanos>, slowdown: Option<f64>) -> Option<f64> {
        let promised = self.config.slo;
        let of_time = promised.p99.map(|time| p99.map(|p99| 1.0 - p99.0 as f64 / time.0.max(1) as f64));
        let of_slowdown = promised.slowdown.map(|factor| slowdown.map(|slowdown| 1.0 - slowdown / factor));
        match (of_time, of_slowdown) {
            (Some(one), Some(other)) => one.zip(other).map(|(one, other)| one.min(other)),
            (one, other) => one.or(other).flatten(),
        }
    }

    fn verdict(&self, outside: &[Reason]) -> (Verdict, Vec<Reason>) {
        if !self.config.slo.is_some() {
            return (Verdict::NotGuaranteed, vec![Reason::NotPromised]);
        }
        if !outside.is_empty() {
            return (Verdict::NotGuaranteed, outside.to_vec());
        }
        let overlap = |window: &Window| {
            let (requests, overlapping) = (window.len(), window.unknown());
            let surely = binomial::at_least(overlapping, requests, ALLOWED) < DOUBT_BROKEN;
            surely.then_some(Reason::Overlap { requests, overlapping })
        };
        let reason = match self.exceedance(Nanos::ZERO) {
            None => {
                let early = Reason::NoBaseline { requests: self.alone.known(), needed: NEEDED };
                overlap(&self.alone).unwrap_or(early)
            }
            Some(Exceedance { requests: 0, .. }) => Reason::NobodyBeside { within: WINDOW_TIME },
            Some(exceedance) => match exceedance.verdict() {
                Some(verdict) => return (verdict, Vec::new()),
                // With so many, only those that are not known leave a doubt.
                None if exceedance.requests >= NEEDED => {
                    let Exceedance { requests, unknown: overlapping, .. } = exceedance;
                    Reason::Overlap { requests, overlapping }
                }
                None => {
                    let few = Reason::TooFew { requests: exceedance.requests, needed: NEEDED };
                    overlap(&self.beside).unwrap_or(few)
                }
            },
        };
        (Verdict::NotGuaranteed, vec![reason])
    }
}
