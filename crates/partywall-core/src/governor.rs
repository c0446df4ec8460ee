//! How much room best-effort tenants are given, so that promises to latency-sensitive ones hold.
//!
//! # Problem
//!
//! Best-effort (BE) tenants can be bounded in many ways: held while a request is at work or not, chunks of launches short or long,
//! many SMs or few, all the time or a part of it. Which way costs a request least and leaves the BE tenant most depends on both
//! programs: beside kernels of 30 us holding is nearly free, beside kernels of 1.4 ms it is useless and fewer SMs help. No model
//! knows the programs of a user. But whether a promise holds can be counted, and so can what a BE tenant gets done.
//!
//! # Approach
//!
//! The caller lists **settings**, the safest first, and counts: for each latency-sensitive (LS) tenant with a promise the requests
//! that were within its bound and those **beyond** it, and for the BE tenants together the launches that came through. A promise
//! about the 99th percentile is kept while at most [`BUDGET`] of the requests are beyond the bound, whatever their distribution is.
//! That is a question about a coin, and few requests answer it:
//!
//! - A setting on **trial** is judged by the sequential probability ratio test of Wald (1945), for each promise: with 1 % of requests
//!   beyond it is to be rejected, with [`GOOD`] of them accepted, each with 5 % error. 400 requests that are all within accept, three
//!   beyond in a row reject.
//! - A setting in **use** is watched by cumulated sums of the same ratio (Page 1954), which forget what was long ago: some four
//!   requests beyond in close order end it.
//!
//! After start, or after tenants have changed, settings are tried one after the other from the safest on. A rejected one is left
//! at once. The accepted one that gets most done is used. A rejected setting may be tried again after [`RETRY_FIRST`], twice as much
//! after each further rejection: programs have phases. Where all are rejected the promise **cannot be kept**, which is said, and the
//! one with the smallest share of requests beyond stays.
//!
//! That a setting comes first is a guess about what is safe, and only decides what is tried first: beside some programs chunks of 6 us
//! cost requests more than chunks of 25 us do. So one that is rejected says nothing about those after it.
//!
//! Nothing is concluded without requests: while LS tenants are idle a trial goes on, and costs them nothing. One that has none
//! while others have is left out of the trial, and heard when it comes.
//!
//! # Terms and units
//!
//! Settings are numbers from 0, the safest. Times are nanoseconds of the caller's clock. Progress is in launches, or whatever the caller
//! counts, always the same.
//!
//! # Scenarios
//!
//! - S1: nobody has a promise: the setting that the caller gave for that, at once.
//! - S2: all settings keep the promise: all are tried, and the one with most progress is used.
//! - S3: a setting that does not is left after a few requests, and others are used.
//! - S4: in use, requests begin to be beyond: back to the next best.
//! - S5: none keeps it: said once, and taken back when it is kept again. Where only the first does not, another is used.
//! - S6: tenants change: what was learnt no longer counts.
//! - S7: a rejected setting is tried again later, and later still after that.
//! - S8: several promises: one of them rejects, all of them accept; who has no requests does neither.

use std::collections::BTreeMap;

use crate::tenant::TenantId;
use crate::units::Nanos;

mod evidence;
#[cfg(test)]
mod tests;

use evidence::{Evidence, Verdict};

/// The share of requests that may be beyond the bound of a promise about the 99th percentile.
pub const BUDGET: f64 = 0.01;

/// The share beyond with which a setting is as good as one without any: a quarter of the budget.
pub const GOOD: f64 = BUDGET / 4.0;

/// How long a rejected setting is left alone at first. A trial that fails costs a handful of slow requests; every ten seconds
/// that is a share of some thousandths of a busy tenant's.
pub const RETRY_FIRST: Nanos = Nanos::from_secs(10);
/// And at most.
pub const RETRY_MAX: Nanos = Nanos::from_secs(640);

/// A setting is on trial for this long at least: what it gets done is not known sooner.
pub const TRIAL_MIN: Nanos = Nanos::from_millis(300);

/// Another setting must get this much more done to be changed to; counts of a third of a second scatter by some per cent.
pub const GAIN_MIN: f64 = 0.03;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The tenant has a promise from now on.
    Promise {
        /// Who.
        tenant: TenantId,
    },
    /// It has none any more, or is gone.
    NoPromise {
        /// Who.
        tenant: TenantId,
    },
    /// Best-effort tenants, or what they run, changed.
    Changed,
    /// Requests that ended since the last event of this kind, beside best-effort tenants under the present setting.
    Requests {
        /// Whose.
        tenant: TenantId,
        /// As good as promised.
        within: u32,
        /// Not.
        beyond: u32,
    },
    /// What the best-effort tenants got done since the last event of this kind.
    Progress {
        /// Launches.
        launches: u64,
    },
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// This setting from now on.
    Use {
        /// Its number.
        setting: usize,
    },
    /// The promise is kept under no setting.
    CannotKeep {
        /// To whom.
        tenant: TenantId,
    },
    /// It is kept again.
    Keeps {
        /// To whom.
        tenant: TenantId,
    },
}

/// What is known of a setting.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Known {
    /// Not tried since the last change.
    #[default]
    Nothing,
    /// Keeps the promises.
    Good,
    /// Does not, and is not tried before the time.
    Bad { until: Nanos },
}

#[derive(Debug, Clone, Copy, Default)]
struct Setting {
    known: Known,
    /// Launches a second, while it was used last.
    rate: f64,
    /// How long it is left alone after the next rejection.
    retry: Nanos,
    /// The share of requests beyond, when it was rejected last.
    beyond: f64,
}

/// Which setting the best-effort tenants have.
#[derive(Debug, Clone)]
pub struct Governor {
    settings: Vec<Setting>,
    /// The setting where nobody has a promise.
    without: usize,
    /// By tenant with a promise: what has been seen under the present setting.
    promises: BTreeMap<TenantId, Promise>,
    at: usize,
    on_trial: bool,
    since: Nanos,
    launches: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Promise {
    evidence: Evidence,
    /// Whether it has rejected a setting since one was accepted.
    has_rejected: bool,
    cannot: bool,
}

impl Governor {
    /// For so many settings, at least one; `without` is used while nobody has a promise.
    pub fn new(settings: usize, without: usize) -> Self {
        let count = settings.max(1);
        let without = without.min(count - 1);
        Self {
            settings: vec![Setting { retry: RETRY_FIRST, ..Setting::default() }; count],
            without,
            promises: BTreeMap::new(),
            at: without,
            on_trial: false,
            since: Nanos::ZERO,
            launches: 0,
        }
    }

    /// The present setting.
    pub const fn setting(&self) -> usize {
        self.at
    }

    /// Whether the present setting is on trial.
    pub const fn is_on_trial(&self) -> bool {
        self.on_trial
    }

    /// What best-effort tenants got done a second under a setting when it was last used, if it keeps the promises.
    pub fn rate(&self, setting: usize) -> Option<f64> {
        let setting = self.settings.get(setting)?;
        (setting.known == Known::Good).then_some(setting.rate)
    }

    /// Takes in what happened at `now` and appends what follows to `actions`.
    pub fn step(&mut self, now: Nanos, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Promise { tenant } => {
                if self.promises.insert(tenant, Promise::default()).is_none() {
                    self.start_over(now, actions);
                }
            }
            Event::NoPromise { tenant } => {
                if self.promises.remove(&tenant).is_some() {
                    self.start_over(now, actions);
                }
            }
            Event::Changed => self.start_over(now, actions),
            Event::Progress { launches } => self.launches = self.launches.saturating_add(launches),
            Event::Requests { tenant, within, beyond } => {
                let Some(promise) = self.promises.get_mut(&tenant) else { return };
                promise.evidence.take(within, beyond, self.on_trial);
                self.judge(now, actions);
            }
        }
    }

    fn start_over(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        for setting in &mut self.settings {
            *setting = Setting { retry: RETRY_FIRST, ..Setting::default() };
        }
        let to = if self.promises.is_empty() { self.without } else { 0 };
        self.go(now, to, !self.promises.is_empty(), actions);
    }

    fn go(&mut self, now: Nanos, to: usize, on_trial: bool, actions: &mut Vec<Action>) {
        if to != self.at {
            actions.push(Action::Use { setting: to });
        }
        (self.at, self.on_trial, self.since, self.launches) = (to, on_trial, now, 0);
        self.promises.values_mut().for_each(|promise| promise.evidence = Evidence::default());
    }

    fn judge(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let of = |verdict| move |promise: &Promise| promise.evidence.verdict() == verdict;
        // Who had no requests is not hurt, and will be heard when it has some.
        let open =
            |promise: &Promise| promise.evidence.verdict() == Verdict::Open && promise.evidence.is_any();
        if self.promises.values().any(of(Verdict::Bad)) {
            self.reject(now, actions);
        } else if !self.promises.values().any(open) && now.saturating_sub(self.since) >= TRIAL_MIN {
            self.accept(now, actions);
        }
    }

    fn reject(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let mut worst = 0.0_f64;
        for promise in self.promises.values_mut().filter(|promise| promise.evidence.verdict() == Verdict::Bad)
        {
            promise.has_rejected = true;
            worst = worst.max(promise.evidence.share_beyond());
        }
        let setting = &mut self.settings[self.at];
        setting.beyond = worst;
        // Where all are bad one is used before its time.
        if !matches!(setting.known, Known::Bad { until } if until > now) {
            setting.known = Known::Bad { until: now.saturating_add(setting.retry) };
            setting.retry = Nanos(setting.retry.0.saturating_mul(2)).min(RETRY_MAX);
        }
        self.settle(now, actions);
    }

    fn accept(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let rate = self.launches as f64 / now.saturating_sub(self.since).as_secs();
        let setting = &mut self.settings[self.at];
        (setting.known, setting.rate) = (Known::Good, rate);
        let mut could_not = false;
        for (&tenant, promise) in &mut self.promises {
            promise.has_rejected = false;
            if std::mem::take(&mut promise.cannot) {
                actions.push(Action::Keeps { tenant });
                could_not = true;
            }
        }
        if could_not {
            // The programs are in another phase.
            for setting in self.settings.iter_mut().filter(|setting| setting.known != Known::Good) {
                *setting = Setting { retry: RETRY_FIRST, ..Setting::default() };
            }
        }
        if self.on_trial {
            self.promises.values_mut().for_each(|promise| promise.evidence.accepted());
        }
        (self.since, self.launches) = (now, 0);
        self.settle(now, actions);
    }

    /// The next one to try, otherwise the best; the one that breaks promises least where all do.
    fn settle(&mut self, now: Nanos, actions: &mut Vec<Action>) {
        let is_due = |setting: &Setting| match setting.known {
            Known::Nothing => true,
            Known::Good => false,
            Known::Bad { until } => until <= now,
        };
        if let Some(next) = self.settings.iter().position(is_due) {
            self.go(now, next, true, actions);
        } else if let Some(best) = self.best() {
            if best != self.at || self.on_trial {
                self.go(now, best, false, actions);
            }
        } else {
            for (&tenant, promise) in self.promises.iter_mut().filter(|(_, promise)| promise.has_rejected) {
                if !std::mem::replace(&mut promise.cannot, true) {
                    actions.push(Action::CannotKeep { tenant });
                }
            }
            self.go(now, self.least_bad(), true, actions);
        }
    }

    /// The good one with the most progress, if there is any; the present or a safer one where another is not clearly better.
    fn best(&self) -> Option<usize> {
        let good = |at: &usize| self.settings[*at].known == Known::Good;
        let mut best = Some(self.at).filter(good);
        for at in (0..self.settings.len()).filter(good) {
            let rate = |at: usize| self.settings[at].rate;
            if best.is_none_or(|best| rate(at) > rate(best) * (1.0 + GAIN_MIN)) {
                best = Some(at);
            }
        }
        best
    }

    /// The rejected one with the fewest requests beyond; of equals the safest.
    fn least_bad(&self) -> usize {
        let share = |at: usize| self.settings[at].beyond;
        (0..self.settings.len())
            .reduce(|least, at| if share(at) < share(least) { at } else { least })
            .unwrap_or(0)
    }
}
