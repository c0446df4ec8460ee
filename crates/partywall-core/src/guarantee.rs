//! Whether what was promised to a latency-sensitive tenant is kept.
//!
//! # Problem
//!
//! A tenant was promised that its requests slow down by a factor at most, or that they take a time at most, beside others. Both are about the
//! 99th percentile, so a promise is broken by one request in a hundred, and it takes hundreds of requests to see that it is kept. What is
//! not measured must not be called kept.
//!
//! # Approach
//!
//! The tracker takes each request with what it took and its [`Phase`]: *alone* on the device, *beside* best-effort work, *spared* by best-effort
//! tenants that are there, which counts as both, or nothing of it for sure. The last [`WINDOW_REQUESTS`] alone are the **baseline**,
//! unless one is given; those of the last [`WINDOW_TIME`] beside, at most as many, are the **window** that the promise is about. Promise and baseline make a **bound**: a promise on p99 is kept if at most
//! [`ALLOWED`] of the requests take longer.
//!
//! **Verdict.** With [`NEEDED`] requests in the window its p99 is known and decides. With fewer, the number of those above the bound decides
//! where chance does not explain it: as many or more are drawn from a kept promise with a probability below [`DOUBT_BROKEN`], or as few or
//! fewer from a broken one below [`DOUBT_KEPT`] (299 requests without one above are enough). Everything else is *not guaranteed*, with
//! the reason. A request whose time is not known counts as one below the bound for *broken*, and as one above it for *kept*.
//!
//! **Baseline.** When a tenant begins, its first [`WARM_UP`] requests are left out: programs are slow at first. While best-effort
//! tenants are always at work there is no time alone, so the tracker asks them to **hold**, until it has [`NEEDED`] requests, for
//! [`HOLD_TIME`] at most, and only while requests come. If that was not enough, it asks again after [`PAUSE`] times as long, so that best-effort
//! tenants keep ten elevenths of their time. Later requests alone replace the oldest, so a baseline follows a program that changes,
//! slowly, whenever it has the device to itself. It is not taken again by force: its age is told.
//!
//! **History.** A *break* begins when the window says beyond doubt that the promise is broken, and ends when at most [`ALLOWED`] of the
//! window are above the bound, or nothing is left in it. Who was at work meanwhile, and for how long, is kept with it.
//!
//! # Terms and units
//!
//! Times are nanoseconds of the caller's clock. A *request* is what the caller takes for one; what it *took* is its service time. Ratios are
//! fractions. Slowdown = p99 beside / p99 of the baseline.
//!
//! The caller reports what happened since it last looked, one event each, and then [`Event::Time`]: that is when the tracker decides.
//!
//! # Scenarios
//!
//! - S1: requests alone make a baseline; those beside it are held against the promise: kept.
//! - S2: too many of them are slow: broken, with who was at work and for how long; later kept again.
//! - S3: not guaranteed: nothing was promised, no baseline yet, nobody beside, too few requests, requests that overlap, or what the caller says.
//! - S4: few requests decide where they leave no doubt.
//! - S5: best-effort tenants are asked to hold for a baseline, never for longer than the limit, and not for a tenant without requests.
//! - S6: a given baseline needs no hold; a promise on the time alone needs no baseline.
//! - S7: a baseline follows what requests take alone; requests of no certain phase and the first ones of a program count for nothing.

use std::collections::{BTreeMap, VecDeque};

use crate::measure::{Evidence, Percentile};
use crate::tenant::{Slo, TenantId};
use crate::units::Nanos;

mod binomial;
mod judge;
mod status;
mod window;

#[cfg(test)]
mod tests;

pub use status::{BaselineSource, BaselineStatus, BesideStatus, Exceedance, Reason, Status, Verdict};
use window::Window;

/// Requests in the baseline and in the window at most: as many as a recorded p99 needs.
pub const WINDOW_REQUESTS: usize = Percentile::P99.samples_needed(Evidence::Recorded) as usize;

/// How old requests in the window may be: what is told is about the last minute.
pub const WINDOW_TIME: Nanos = Nanos::from_secs(60);

/// For steering, the part of the window that is new: what was changed a few seconds ago shows in it.
pub const RECENT_TIME: Nanos = Nanos::from_secs(2);

/// Requests behind a p99.
pub const NEEDED: u64 = Percentile::P99.samples_needed(Evidence::Shown);

/// The part of requests that a promise on p99 allows to take longer.
pub const ALLOWED: f64 = 0.01;

/// A promise that is just kept is called broken with this probability at most, at any one time; it is looked at again and again.
pub const DOUBT_BROKEN: f64 = 0.001;

/// A promise that is just broken is called kept, from fewer than [`NEEDED`] requests, with this probability at most.
pub const DOUBT_KEPT: f64 = 0.05;

/// First requests of a program that do not count: it allocates, compiles and tries algorithms. PyTorch's own advice for CUDA graphs and
/// for benchmarks is some ten of them; a hundred cost nothing.
pub const WARM_UP: u64 = 100;

/// For how long best-effort tenants hold at a time while a baseline is taken.
pub const HOLD_TIME: Nanos = Nanos::from_secs(10);

/// After a hold that was not enough, the next one comes after so many times its length.
pub const PAUSE: u64 = 10;

/// Without a request for so long, there is nothing to hold for.
pub const IDLE: Nanos = Nanos::from_secs(1);

/// Breaks that are kept.
pub const BREAKS_MAX: usize = 16;

/// Spans of time that neighbours' work is added up in.
const SPAN: Nanos = Nanos::from_secs(1);

/// What was promised, and what is known from the start.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Config {
    /// The promise; both parts may be missing.
    pub slo: Slo,
    /// The p99 alone, if it is not to be measured.
    pub baseline: Option<Nanos>,
}

/// Who else was at work on the device during a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nobody, for sure.
    Alone,
    /// Best-effort tenants, as usual.
    Beside,
    /// Nobody, for sure, but best-effort tenants have been a moment before: they were made to stand back, or paused. The request was
    /// alone, and it is one of those that a promise is about, which is kept by such means.
    Spared,
    /// Neither: somebody else may have been, or best-effort tenants were kept from their usual work.
    Unclear,
}

/// What happened since the caller last looked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The tenant's program was started, or started again.
    Started,
    /// A request ended.
    Request {
        /// When.
        end: Nanos,
        /// Service time; `None`: it is not known, because it overlaps with another one.
        took: Option<Nanos>,
        /// Who else was at work.
        phase: Phase,
    },
    /// Requests ended of which nothing is known.
    Lost {
        /// How many.
        requests: u64,
    },
    /// A best-effort tenant was at work on the device.
    Neighbour {
        /// Who.
        tenant: TenantId,
        /// For how long, at most.
        time: Nanos,
    },
    /// That is all until now.
    Time,
}

/// What the caller may want to say.
#[derive(Debug, Clone, PartialEq)]
pub enum Happening {
    /// There is a baseline.
    Baseline {
        /// Requests behind it.
        requests: u64,
        /// Its p99.
        p99: Nanos,
    },
    /// The promise is broken beyond doubt.
    Broken {
        /// How many of how many requests are above the bound.
        exceedance: Exceedance,
        /// The bound.
        bound: Nanos,
        /// Who was at work since, the longest first.
        by: Vec<(TenantId, Nanos)>,
    },
    /// It is not any more.
    Mended {
        /// How long it was.
        lasted: Nanos,
        /// Whether requests show it; otherwise there are none any more.
        kept: bool,
    },
}

/// Requests beside best-effort work, as they were held against the bound when they were reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Judged {
    /// As good as promised.
    pub within: u32,
    /// Not.
    pub beyond: u32,
    /// Neither, because their time is not known.
    pub unknown: u32,
}

/// A time in which a promise was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    /// When the first of the requests ended that were above the bound.
    pub since: Nanos,
    /// When it was over; `None` while it is not.
    pub until: Option<Nanos>,
    /// For how long each best-effort tenant was at work meanwhile, at most.
    pub by: BTreeMap<TenantId, Nanos>,
}

/// Follows one tenant.
#[derive(Debug, Clone)]
pub struct Tracker {
    config: Config,
    warm_up_left: u64,
    alone: Window,
    /// p50 and p99 alone, as of the last time that it was looked for.
    baseline: Option<(Nanos, Nanos)>,
    beside: Window,
    /// Since they were last taken.
    judged: Judged,
    lost: u64,
    /// Requests ever, those that count for nothing too.
    requests: u64,
    last_request: Option<Nanos>,
    /// Since when best-effort tenants hold.
    holding: Option<Nanos>,
    hold_not_before: Nanos,
    /// Work of neighbours within the last [`WINDOW_TIME`], by spans: their beginning, and who for how long.
    neighbours: VecDeque<(Nanos, BTreeMap<TenantId, Nanos>)>,
    breaks: VecDeque<Break>,
    broken_total: u64,
}

impl Tracker {
    /// Nothing is known yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            warm_up_left: WARM_UP,
            alone: Window::default(),
            baseline: None,
            beside: Window::default(),
            judged: Judged::default(),
            lost: 0,
            requests: 0,
            last_request: None,
            holding: None,
            hold_not_before: Nanos::ZERO,
            neighbours: VecDeque::new(),
            breaks: VecDeque::new(),
            broken_total: 0,
        }
    }

    /// What was promised.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Whether best-effort tenants are to launch nothing now, so that a baseline can be taken.
    pub const fn wants_baseline(&self) -> bool {
        self.holding.is_some()
    }

    /// Requests beside best-effort work since this was last asked, for who steers by them. None while there is no bound.
    pub fn take_judged(&mut self) -> Judged {
        std::mem::take(&mut self.judged)
    }

    /// Times in which the promise was broken, the oldest first, at most [`BREAKS_MAX`].
    pub fn breaks(&self) -> impl DoubleEndedIterator<Item = &Break> {
        self.breaks.iter()
    }

    /// Takes in what happened, as of `now`; appends what there is to say.
    pub fn step(&mut self, now: Nanos, event: Event, happenings: &mut Vec<Happening>) {
        match event {
            Event::Started => self.warm_up_left = WARM_UP,
            Event::Request { end, took, phase } => self.request(now, end.min(now), took, phase),
            Event::Lost { requests } => self.lost = self.lost.saturating_add(requests),
            Event::Neighbour { tenant, time } => self.neighbour(now, tenant, time),
            Event::Time => self.time(now, happenings),
        }
    }

    fn request(&mut self, now: Nanos, end: Nanos, took: Option<Nanos>, phase: Phase) {
        self.requests = self.requests.saturating_add(1);
        self.last_request = Some(now);
        if self.warm_up_left > 0 {
            self.warm_up_left -= 1;
            return;
        }
        if matches!(phase, Phase::Alone | Phase::Spared) {
            self.alone.push(end, took);
        }
        if matches!(phase, Phase::Beside | Phase::Spared) {
            self.beside.push(end, took);
            self.judge(took);
        }
    }

    fn judge(&mut self, took: Option<Nanos>) {
        let Some(bound) = self.bound() else { return };
        let Judged { within, beyond, unknown } = &mut self.judged;
        let count = match took {
            Some(took) if took <= bound => within,
            Some(_) => beyond,
            None => unknown,
        };
        *count = count.saturating_add(1);
    }

    fn neighbour(&mut self, now: Nanos, tenant: TenantId, time: Nanos) {
        let add = |by: &mut BTreeMap<TenantId, Nanos>| {
            let sum = by.entry(tenant).or_default();
            *sum = sum.saturating_add(time);
        };
        match self.neighbours.back_mut() {
            Some((begin, by)) if now.saturating_sub(*begin) < SPAN => add(by),
            _ => {
                let mut by = BTreeMap::new();
                add(&mut by);
                self.neighbours.push_back((now, by));
            }
        }
        if let Some(open) = self.breaks.back_mut().filter(|one| one.until.is_none()) {
            add(&mut open.by);
        }
    }

    fn time(&mut self, now: Nanos, happenings: &mut Vec<Happening>) {
        let oldest = now.saturating_sub(WINDOW_TIME);
        self.beside.expire(oldest);
        while self.neighbours.front().is_some_and(|(begin, _)| *begin < oldest) {
            self.neighbours.pop_front();
        }
        if self.alone.has_changed() {
            let before = self.baseline;
            self.baseline = self.alone.percentiles();
            if let (None, Some((_, p99))) = (before, self.baseline) {
                happenings.push(Happening::Baseline { requests: self.alone.known(), p99 });
            }
        }
        self.hold(now);
        self.history(now, happenings);
    }

    /// Begins or ends a hold.
    fn hold(&mut self, now: Nanos) {
        let idle = self.last_request.is_none_or(|last| now.saturating_sub(last) >= IDLE);
        let wanted = self.config.slo.slowdown.is_some()
            && self.config.baseline.is_none()
            && self.alone.known() < NEEDED
            && !self.alone.mostly_overlaps()
            && !idle;
        match self.holding {
            None if wanted && now >= self.hold_not_before => self.holding = Some(now),
            Some(since) if !wanted || now.saturating_sub(since) >= HOLD_TIME => {
                let held = now.saturating_sub(since).0;
                self.hold_not_before = now.saturating_add(Nanos(held.saturating_mul(PAUSE)));
                self.holding = None;
            }
            _ => {}
        }
    }

    /// Begins or ends a break.
    fn history(&mut self, now: Nanos, happenings: &mut Vec<Happening>) {
        let measured = self.exceedance(Nanos::ZERO).zip(self.bound());
        let open = self.breaks.back_mut().filter(|one| one.until.is_none());
        match (open, measured) {
            (None, Some((exceedance, bound))) if exceedance.is_surely_too_much() => {
                let since = self.beside.first_above(bound).unwrap_or(now);
                let by = self.neighbours_since(since);
                happenings.push(Happening::Broken { exceedance, bound, by: longest_first(&by) });
                self.breaks.push_back(Break { since, until: None, by });
                self.broken_total = self.broken_total.saturating_add(1);
                if self.breaks.len() > BREAKS_MAX {
                    self.breaks.pop_front();
                }
            }
            (Some(open), measured) => {
                let left = measured.map(|(exceedance, _)| exceedance).filter(|left| left.requests > 0);
                if left.is_none_or(|left| left.is_allowed()) {
                    open.until = Some(now);
                    let lasted = now.saturating_sub(open.since);
                    happenings.push(Happening::Mended { lasted, kept: left.is_some() });
                }
            }
            _ => {}
        }
    }

    /// Spans are not taken apart: the one in which it began counts as a whole.
    fn neighbours_since(&self, since: Nanos) -> BTreeMap<TenantId, Nanos> {
        let mut sums = BTreeMap::<TenantId, Nanos>::new();
        for (begin, by) in &self.neighbours {
            if begin.saturating_add(SPAN) > since {
                for (&tenant, &time) in by {
                    let sum = sums.entry(tenant).or_default();
                    *sum = sum.saturating_add(time);
                }
            }
        }
        sums
    }
}

/// Who was at work, the longest first.
pub fn longest_first(by: &BTreeMap<TenantId, Nanos>) -> Vec<(TenantId, Nanos)> {
    let mut sorted: Vec<_> = by.iter().map(|(&tenant, &time)| (tenant, time)).collect();
    sorted.sort_by_key(|&(tenant, time)| (std::cmp::Reverse(time), tenant));
    sorted
}
