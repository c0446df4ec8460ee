//! Arrivals one by one: constant memory, never back in time, the same for the same seed.

use std::sync::Arc;

use partywall_core::units::Nanos;

use super::fitted::{FittedArrivals, FittedTrace};
use crate::chance::Chance;
use crate::trace::TraceRequest;

/// A request that comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// When, since the start of the run.
    pub at: Nanos,
    /// Tokens of the prompt; 0 where the load does not say.
    pub input_tokens: u32,
    /// Tokens to generate; 0 where the load does not say.
    pub output_tokens: u32,
}

/// The requests of one open-loop tenant in order of time, without end except for a trace that is not repeated.
#[derive(Debug, Clone)]
pub struct Arrivals(Source);

#[derive(Debug, Clone)]
enum Source {
    Poisson { clock: Clock, mean_gap_s: f64, chance: Chance },
    Periodic { phase: f64, period_ns: f64, next: u64 },
    Bursty { clock: Clock, bursts: Bursts, in_burst: bool, left_s: f64, chance: Chance },
    Replay { recording: Recording, next: usize, rounds: u64 },
    Fitted(Box<FittedArrivals>),
}

/// Adds up gaps in whole nanoseconds, so that a long run does not lose precision.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clock(Nanos);

impl Clock {
    /// The time `seconds` later; `None` when that is beyond [`Nanos::MAX`].
    pub(super) fn advance(&mut self, seconds: f64) -> Option<Nanos> {
        self.0 = Nanos(self.0.0.checked_add((seconds * 1e9).round() as u64)?);
        Some(self.0)
    }
}

/// The two rates of a bursty load and how long they last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bursts {
    calm_gap_s: f64,
    burst_gap_s: f64,
    calm_s: f64,
    burst_s: f64,
}

impl Bursts {
    /// The fields of [`super::Load::Bursty`], checked.
    pub(super) fn new(rate_per_s: f64, burst_factor: f64, burst: Nanos, calm: Nanos) -> Self {
        let (burst_s, calm_s) = (burst.as_secs(), calm.as_secs());
        let in_burst = burst_s / (burst_s + calm_s);
        let calm_rate = rate_per_s / (1.0 - in_burst + in_burst * burst_factor);
        Self { calm_gap_s: 1.0 / calm_rate, burst_gap_s: 1.0 / (calm_rate * burst_factor), calm_s, burst_s }
    }

    pub(super) fn mean_rate_per_s(self) -> f64 {
        (self.calm_s / self.calm_gap_s + self.burst_s / self.burst_gap_s) / (self.calm_s + self.burst_s)
    }

    /// Mean length of the state and mean gap between requests in it, in seconds.
    fn state(self, in_burst: bool) -> (f64, f64) {
        if in_burst { (self.burst_s, self.burst_gap_s) } else { (self.calm_s, self.calm_gap_s) }
    }
}

/// The listed requests of a trace and how they are replayed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Recording {
    requests: Arc<[TraceRequest]>,
    speed: f64,
    /// From one round to the next, before `speed`; `None` where there is one round only.
    period: Option<Nanos>,
}

impl Recording {
    pub(super) fn new(requests: Arc<[TraceRequest]>, repeat: bool, speed: f64) -> Self {
        let period = if repeat { Self::span(&requests).map(|span| span.0) } else { None };
        Self { requests, speed, period }
    }

    /// Length of the recording including one mean gap behind its last request, and the requests less one over which
    /// that mean is taken; `None` when all requests come at one time.
    fn span(requests: &[TraceRequest]) -> Option<(Nanos, u64)> {
        let (first, last) = (requests.first()?.at, requests.last()?.at);
        let gaps = requests.len() as u64 - 1;
        let span = last.saturating_sub(first);
        (span > Nanos::ZERO).then(|| (last.saturating_add(Nanos(span.0.div_ceil(gaps))), gaps))
    }

    /// See [`super::Demand::mean_rate_per_s`].
    pub(super) fn mean_rate_per_s(&self) -> Option<f64> {
        let (period, gaps) = Self::span(&self.requests)?;
        let rate = match self.period {
            Some(_) => self.requests.len() as f64 / period.as_secs(),
            None => {
                gaps as f64 / self.requests.last()?.at.saturating_sub(self.requests.first()?.at).as_secs()
            }
        };
        Some(rate * self.speed)
    }

    /// The time on the run's clock of the time `recorded` in round `rounds`.
    fn scheduled(&self, recorded: Nanos, rounds: u64) -> Option<Nanos> {
        let period = self.period.unwrap_or_default();
        let at = period.0.checked_mul(rounds)?.checked_add(recorded.0)?;
        // Exact at the recorded speed; otherwise both conversions keep the order.
        Some(Nanos(if self.speed == 1.0 { at } else { (at as f64 / self.speed).round() as u64 }))
    }
}

impl Arrivals {
    pub(super) fn poisson(rate_per_s: f64, chance: Chance) -> Self {
        Self(Source::Poisson { clock: Clock::default(), mean_gap_s: 1.0 / rate_per_s, chance })
    }

    pub(super) fn periodic(rate_per_s: f64, mut chance: Chance) -> Self {
        Self(Source::Periodic { phase: chance.unit(), period_ns: 1e9 / rate_per_s, next: 0 })
    }

    pub(super) fn bursty(bursts: Bursts, mut chance: Chance) -> Self {
        // Start as if it had been running for ever.
        let in_burst = chance.unit() < bursts.burst_s / (bursts.burst_s + bursts.calm_s);
        let left_s = chance.exponential(bursts.state(in_burst).0);
        Self(Source::Bursty { clock: Clock::default(), bursts, in_burst, left_s, chance })
    }

    pub(super) fn replay(recording: Recording) -> Self {
        Self(Source::Replay { recording, next: 0, rounds: 0 })
    }

    pub(super) fn fitted(like: FittedTrace, rate_scale: f64, chance: Chance) -> Self {
        Self(Source::Fitted(Box::new(FittedArrivals::new(like, rate_scale, chance))))
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    /// The next request; `None` at the end of a trace, or at the end of time (584 years).
    fn next(&mut self) -> Option<Arrival> {
        let at = match &mut self.0 {
            Source::Poisson { clock, mean_gap_s, chance } => {
                clock.advance(chance.exponential(*mean_gap_s))?
            }
            Source::Periodic { phase, period_ns, next } => {
                // From the start each time: adding up rounded periods would drift.
                let at = (*phase + *next as f64) * *period_ns;
                *next += 1;
                if at >= u64::MAX as f64 {
                    return None;
                }
                Nanos(at.round() as u64)
            }
            Source::Bursty { clock, bursts, in_burst, left_s, chance } => {
                let gap = bursty_gap(*bursts, in_burst, left_s, chance);
                clock.advance(gap)?
            }
            Source::Replay { recording, next, rounds } => {
                if *next == recording.requests.len() {
                    recording.period?;
                    (*next, *rounds) = (0, *rounds + 1);
                }
                let request = recording.requests.get(*next)?;
                *next += 1;
                let at = recording.scheduled(request.at, *rounds)?;
                let TraceRequest { input_tokens, output_tokens, .. } = *request;
                return Some(Arrival { at, input_tokens, output_tokens });
            }
            Source::Fitted(fitted) => return fitted.next(),
        };
        Some(Arrival { at, input_tokens: 0, output_tokens: 0 })
    }
}

/// The time to the next request, in seconds, passing through as many states as it takes. `left_s` is what is left of
/// the current state. Exponential times have no memory, so a gap that outlasts its state is drawn anew in the next.
fn bursty_gap(bursts: Bursts, in_burst: &mut bool, left_s: &mut f64, chance: &mut Chance) -> f64 {
    let mut passed = 0.0;
    loop {
        let gap = chance.exponential(bursts.state(*in_burst).1);
        if gap < *left_s {
            *left_s -= gap;
            return passed + gap;
        }
        passed += *left_s;
        *in_burst = !*in_burst;
        *left_s = chance.exponential(bursts.state(*in_burst).0);
    }
}
