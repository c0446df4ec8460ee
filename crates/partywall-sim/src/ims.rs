//! The maximum stable inference rate (IMS) and the isolation test of the edge study (arXiv 2601.07600), in virtual
//! time.
//!
//! # Problem
//!
//! A camera delivers a frame per period, and the network must be done with it before the next one. Which is the
//! shortest period that a tenant keeps, and does it still keep it when its neighbours work?
//!
//! # The search ([`search`])
//!
//! It is `core`'s, which describes it: [`partywall_core::measure::ims`]. Here it runs on the model.
//!
//! # The isolation test ([`Bench::beside`])
//!
//! The tenant under test runs at the rate it reached alone in its part, while its co-runners run at a fraction of
//! theirs. Its timeouts are what the wall lets through. The fractions rise from nothing to all.
//!
//! # What to keep in mind
//!
//! A simulated network alone takes the same time each time, so its maximum rate leaves no more room than `step`.
//! Real ones vary, the first estimate is taken from their worst times, and their rate leaves more: of the recorded
//! networks alone the p99 is 0.2 to 15 % above the median, 1.5 % in the median. The isolation test of a scenario can
//! therefore run at a margin below the maximum rate. Once a network is slower than its period, requests queue up and
//! all later ones are late: read few timeouts or many, not their exact number.

use partywall_core::copy_scheduler;
use partywall_core::gpu::Gpu;
pub use partywall_core::measure::ims::{Config, Found, search};
use partywall_core::units::Nanos;

use crate::error::SimError;
use crate::layout::Layout;
use crate::load::{Load, LoadError};
use crate::machine::{self, Setup, Workload};
use crate::metrics::{Counts, Outcome};
use crate::params::Params;

/// Tenants behind a wall on a simulated GPU, to find maximum stable rates on. Their own loads do not matter.
#[derive(Debug)]
pub struct Bench<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// What the wall makes of it, for all of `workloads`.
    pub layout: Layout,
    /// The tenants.
    pub workloads: Vec<Workload>,
    /// How copies are scheduled.
    pub copies: copy_scheduler::Config,
    /// Parameters of the model.
    pub params: Params,
    /// Seed.
    pub seed: u64,
    /// How the search goes.
    pub config: Config,
}

/// A tenant alone in its part, at its maximum stable rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Alone {
    /// What the search found.
    pub found: Found,
    /// Mean SM clock of the last run, MHz.
    pub clock_mhz: f64,
}

/// A tenant at its maximum stable rate beside others.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beside {
    /// Inferences that were due.
    pub requests: u64,
    /// Those that were not done within their period.
    pub timeouts: u64,
    /// Longest time of an inference from its start, ms.
    pub service_max_ms: Option<f64>,
    /// Mean SM clock, MHz.
    pub clock_mhz: f64,
    /// Mean power, W.
    pub power_w: f64,
}

/// Before a run counts: the clock has settled by then (it is decided every 5 ms).
const WARMUP: Nanos = Nanos::from_millis(100);

/// End of runs that stop after a number of requests: later than any of them takes.
const LATE: Nanos = Nanos::from_secs(3600);

impl Bench<'_> {
    /// The maximum stable rate of a tenant alone in its part of the wall.
    ///
    /// # Errors
    /// The set-up contradicts itself.
    pub fn alone(&self, tenant: usize) -> Result<Alone, SimError> {
        let back_to_back = Load::closed(1);
        let requests = u64::from(self.config.requests);
        let outcome = self.run(&[(tenant, &back_to_back, None)], LATE, requests, 0)?;
        let service = &outcome.tenants[0].service;
        let n = service.len();
        let worst = (self.config.worst as u64).min(n);
        // The middle of each of the last ranks, so that rounding does not move to the next.
        let times: Vec<Nanos> = (0..worst)
            .filter_map(|back| service.quantile((n as f64 - back as f64 - 0.5) / n as f64))
            .collect();
        let mut clock_mhz = outcome.clock_mhz;
        let found = search(&self.config, &times, &mut |period, run| {
            let load = periodic(period);
            let end = self.end(period);
            let outcome = self.run(&[(tenant, &load, Some(period))], end, u64::MAX, run)?;
            clock_mhz = outcome.clock_mhz;
            Ok::<_, SimError>(late(&outcome.tenants[0]))
        })?;
        Ok(Alone { found, clock_mhz })
    }

    /// `tenant` at `period` beside `others`, each with its own period.
    ///
    /// # Errors
    /// The set-up contradicts itself.
    pub fn beside(
        &self,
        tenant: usize,
        period: Nanos,
        others: &[(usize, Nanos)],
    ) -> Result<Beside, SimError> {
        let own = (tenant, periodic(period), Some(period));
        let others = others.iter().map(|&(other, period)| (other, periodic(period), None));
        let mut who: Vec<_> = std::iter::once(own).chain(others).collect();
        who.sort_by_key(|(index, _, _)| *index);
        let at = who.iter().position(|(index, _, _)| *index == tenant).unwrap_or(0);
        let who: Vec<_> = who.iter().map(|(index, load, objective)| (*index, load, *objective)).collect();
        let outcome = self.run(&who, self.end(period), u64::MAX, 0)?;
        let counts = &outcome.tenants[at];
        let timeouts = late(counts);
        Ok(Beside {
            requests: (counts.completed + counts.lost + counts.backlog.saturating_sub(1)).max(timeouts),
            timeouts,
            service_max_ms: counts.service.percentiles().max_ms,
            clock_mhz: outcome.clock_mhz,
            power_w: outcome.power_w,
        })
    }

    fn end(&self, period: Nanos) -> Nanos {
        WARMUP.saturating_add(Nanos(period.0.saturating_mul(u64::from(self.config.requests))))
    }

    /// Runs tenants, in the order of the layout, each with a load and an objective.
    fn run(
        &self,
        who: &[(usize, &Load, Option<Nanos>)],
        end: Nanos,
        requests_max: u64,
        run: u32,
    ) -> Result<Outcome, SimError> {
        let layout = match who {
            [(only, _, _)] => self.layout.only(*only),
            _ => self.layout.clone(),
        };
        let workloads = who.iter().map(|&(index, load, objective)| {
            Ok(Workload { demand: load.demand(None)?, objective, ..self.workloads[index].clone() })
        });
        Ok(machine::run(Setup {
            gpu: self.gpu,
            layout,
            workloads: workloads.collect::<Result<_, LoadError>>()?,
            copies: self.copies,
            params: self.params,
            seed: self.seed.wrapping_add(u64::from(run)),
            streams: who.iter().map(|&(index, _, _)| index as u64).collect(),
            warmup: WARMUP,
            end,
            requests_max,
            faults: Vec::new(),
            timeline: None,
        })?)
    }
}

fn periodic(period: Nanos) -> Load {
    Load::Periodic { rate_per_s: 1e9 / period.0 as f64 }
}

/// Inferences that were not done within their period: those done late, those lost, and those that were still waiting
/// behind an earlier one when the next period began.
fn late(counts: &Counts) -> u64 {
    counts.missed + counts.lost + counts.backlog.saturating_sub(1)
}
