//! Whether a replica gets requests: health checks and a circuit breaker as one decider.
//!
//! # Problem
//!
//! A replica that is dead, or so overloaded that it fails what it gets, should get nothing: each request sent there costs its client a
//! retry at best. And a replica that is well again should get requests soon. Two kinds of signs tell: *probes*, which the gateway sends
//! on its own at an interval, and *outcomes* of the requests themselves, which are more, and sooner, but come only while the replica
//! gets requests.
//!
//! # Approach
//!
//! Two machines that both have to agree.
//!
//! *Health* follows the probes: after [`Settings::down_after`] failed ones in a row a replica is down, after [`Settings::up_after`] passed
//! ones in a row it is up again. A replica begins as down where it is probed, so that nothing is sent to one that never answered, and one
//! passed probe is enough then.
//!
//! The *breaker* follows the outcomes. It opens when within [`Settings::window`] at least [`Settings::failures`] requests have failed and
//! these are at least half of those that ended: a few failures among thousands of successes say more about the requests than about the
//! replica. While it is open nothing is sent. After [`Settings::open`] it lets a single request through, the *trial*. If that fails it
//! opens again, for twice as long, up to [`Settings::open_max`]; if it succeeds it lets the next one through, and after
//! [`Settings::trials`] of them closes. A trial that ended without saying anything (its client left) is taken back.
//!
//! A trial that never ends would keep the replica out for good, so after [`Settings::open_max`] another one is allowed.
//!
//! The window is two halves: counts go into the younger one, and when half a window has passed the older one is dropped. So what counts is
//! between half a window and a whole one old, for two pairs of numbers instead of a list.
//!
//! # Terms and units
//!
//! *Admits*: whether a request may be sent now. Times are nanoseconds of the caller's clock.
//!
//! # Scenarios
//!
//! - S1: failures open the breaker, and successes in the same window keep it closed.
//! - S2: old failures are forgotten.
//! - S3: an open breaker tries one request at a time, and closes after enough good ones.
//! - S4: a failed trial opens it again for longer, up to a bound.
//! - S5: a trial that says nothing is taken back; one that never ends does not block for good.
//! - S6: probes take a replica down and up again, whatever the breaker says.
//! - S7: what was sent before the breaker opened and fails later does not lengthen the time that it is open.

use partywall_core::units::Nanos;

#[cfg(test)]
mod tests;

/// The parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Requests that have to fail within the window before the breaker opens, at least 1.
    pub failures: u32,
    /// How long an outcome counts, at most.
    pub window: Nanos,
    /// How long the breaker is open, the first time.
    pub open: Nanos,
    /// And at most.
    pub open_max: Nanos,
    /// Trials that have to succeed before it closes, at least 1.
    pub trials: u32,
    /// Probes in a row that have to fail before the replica is down, at least 1.
    pub down_after: u32,
    /// Probes in a row that have to pass before it is up again, at least 1.
    pub up_after: u32,
}

impl Default for Settings {
    /// Five failures in ten seconds, open for two seconds and at most a minute; three failed probes, two passed ones. These are choices: of
    /// the published routers one has 10 failures in 120 s and 60 s open, which keeps a replica that restarts in 20 s out for 40 s more.
    fn default() -> Self {
        Self {
            failures: 5,
            window: Nanos::from_secs(10),
            open: Nanos::from_secs(2),
            open_max: Nanos::from_secs(60),
            trials: 2,
            down_after: 3,
            up_after: 2,
        }
    }
}

/// What became known of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A request was sent to it.
    Sent,
    /// A request was answered; also with an error that is the request's own fault.
    Succeeded,
    /// A request was not answered, or with an error that is the replica's.
    Failed,
    /// A request ended and says nothing: its client left, or another replica was faster.
    Abandoned,
    /// A probe was answered as it should be.
    ProbePassed,
    /// A probe was not.
    ProbeFailed,
}

/// What the breaker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// Lets everything through.
    Closed,
    /// Lets nothing through.
    Open,
    /// Lets one request through at a time.
    Trying,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Closed, Self::Open, Self::Trying];

    /// What it is called in metrics and facts.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Trying => "trying",
        }
    }
}

/// Health and breaker of one replica.
#[derive(Debug, Clone)]
pub struct Breaker {
    settings: Settings,
    phase: Phase,
    /// The older and the younger half of the window.
    halves: [Outcomes; 2],
    /// When the younger one began.
    half_began: Nanos,
    probes: Probes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Closed,
    Open {
        until: Nanos,
        lasts: Nanos,
    },
    Trying {
        /// When the trial under way was sent.
        sent: Option<Nanos>,
        good: u32,
        lasts: Nanos,
    },
}

#[derive(Debug, Clone, Copy, Default)]
struct Outcomes {
    good: u32,
    bad: u32,
}

#[derive(Debug, Clone, Copy)]
struct Probes {
    up: bool,
    /// Whether any probe has been answered well or ill.
    asked: bool,
    /// Those in a row that speak against `up`.
    against: u32,
}

impl Breaker {
    /// Of a replica of which nothing is known. `probed`: whether it is asked for its health; one that is not counts as up.
    pub fn new(settings: Settings, probed: bool) -> Self {
        let probes = Probes { up: !probed, asked: false, against: 0 };
        Self { settings, phase: Phase::Closed, halves: Default::default(), half_began: Nanos::ZERO, probes }
    }

    /// Takes note of what happened.
    pub fn step(&mut self, now: Nanos, event: Event) {
        self.turn(now);
        match event {
            Event::ProbePassed => self.probe(true),
            Event::ProbeFailed => self.probe(false),
            Event::Sent => {
                if let Phase::Trying { sent, .. } = &mut self.phase {
                    *sent = Some(now);
                }
            }
            Event::Abandoned => {
                if let Phase::Trying { sent, .. } = &mut self.phase {
                    *sent = None;
                }
            }
            Event::Succeeded => self.succeeded(),
            Event::Failed => self.failed(now),
        }
    }

    /// Whether a request may be sent now.
    pub fn admits(&mut self, now: Nanos) -> bool {
        self.turn(now);
        let open = match self.phase {
            Phase::Closed => true,
            Phase::Open { .. } => false,
            Phase::Trying { sent, .. } => {
                sent.is_none_or(|sent| now.saturating_sub(sent) >= self.settings.open_max)
            }
        };
        open && self.probes.up
    }

    /// Whether the probes say that the replica is there.
    pub const fn is_up(&self) -> bool {
        self.probes.up
    }

    /// What the breaker does now.
    pub fn state(&mut self, now: Nanos) -> State {
        self.turn(now);
        match self.phase {
            Phase::Closed => State::Closed,
            Phase::Open { .. } => State::Open,
            Phase::Trying { .. } => State::Trying,
        }
    }

    /// When [`Breaker::admits`] may change by the passing of time alone.
    pub fn next_change(&self) -> Option<Nanos> {
        match self.phase {
            Phase::Closed => None,
            Phase::Open { until, .. } => Some(until),
            Phase::Trying { sent, .. } => sent.map(|sent| sent.saturating_add(self.settings.open_max)),
        }
    }

    /// What the passing of time changes.
    fn turn(&mut self, now: Nanos) {
        let half = Nanos(self.settings.window.0 / 2);
        let passed = now.saturating_sub(self.half_began);
        if passed >= half {
            let older = if passed >= self.settings.window { Outcomes::default() } else { self.halves[1] };
            self.halves = [older, Outcomes::default()];
            self.half_began = now;
        }
        if let Phase::Open { until, lasts } = self.phase
            && now >= until
        {
            self.phase = Phase::Trying { sent: None, good: 0, lasts };
        }
    }

    fn succeeded(&mut self) {
        match &mut self.phase {
            Phase::Closed => self.halves[1].good = self.halves[1].good.saturating_add(1),
            Phase::Open { .. } => {}
            Phase::Trying { sent, good, .. } => {
                *sent = None;
                *good += 1;
                if *good >= self.settings.trials {
                    self.phase = Phase::Closed;
                    self.halves = Default::default();
                }
            }
        }
    }

    fn failed(&mut self, now: Nanos) {
        match self.phase {
            Phase::Closed => {
                self.halves[1].bad = self.halves[1].bad.saturating_add(1);
                let [older, younger] = self.halves;
                let bad = older.bad.saturating_add(younger.bad);
                let good = older.good.saturating_add(younger.good);
                if bad >= self.settings.failures && bad >= good {
                    self.open(now, self.settings.open);
                }
            }
            // It was sent before the breaker opened.
            Phase::Open { .. } => {}
            Phase::Trying { lasts, .. } => self.open(now, Nanos(lasts.0.saturating_mul(2))),
        }
    }

    fn open(&mut self, now: Nanos, lasts: Nanos) {
        let lasts = lasts.min(self.settings.open_max);
        self.phase = Phase::Open { until: now.saturating_add(lasts), lasts };
        self.halves = Default::default();
    }

    fn probe(&mut self, passed: bool) {
        let probes = &mut self.probes;
        let first = !std::mem::replace(&mut probes.asked, true);
        if passed == probes.up {
            probes.against = 0;
            return;
        }
        probes.against += 1;
        let enough = match (passed, first) {
            (true, true) => 1,
            (true, false) => self.settings.up_after,
            (false, _) => self.settings.down_after,
        };
        if probes.against >= enough {
            *probes = Probes { up: passed, asked: true, against: 0 };
        }
    }
}
