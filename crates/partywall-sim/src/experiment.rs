//! Tenants behind walls, measured as DESIGN says: each alone on the whole GPU without a wall (*solo*), each alone in
//! its part of the wall, and all together, with the same arrivals every time.

use std::borrow::Cow;

use partywall_core::copy_scheduler::{self, Policy};
use partywall_core::gpu::Gpu;
use partywall_core::measure::{self, Percentile};
use partywall_core::tenant::{Class, Share, TenantId};
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;
use serde::Serialize;

use crate::error::SimError;
use crate::layout::{Layout, Member, Node};
use crate::machine::{self, Fault, Setup, Workload};
use crate::metrics::{Counts, Outcome, Percentiles, Timeline};
use crate::params::Params;

/// Points of a cumulative distribution kept for pictures.
const CDF_POINTS: usize = 60;

/// A tenant and the SMs it asks for.
#[derive(Debug, Clone)]
pub struct Participant {
    /// What it runs.
    pub workload: Workload,
    /// SMs it asks for; `None` takes the wall's default.
    pub share: Option<Share>,
}

/// What all cells of an experiment have in common.
#[derive(Debug, Clone)]
pub struct Experiment<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// The tenants.
    pub participants: Vec<Participant>,
    /// Parameters of the model.
    pub params: Params,
    /// Seed.
    pub seed: u64,
    /// Nothing before this counts.
    pub warmup: Nanos,
    /// End of each run.
    pub end: Nanos,
    /// Faults in the co-run.
    pub faults: Vec<Fault>,
    /// First moment, bin and number of bins of the timeline of the co-run.
    pub timeline: Option<(Nanos, Nanos, usize)>,
}

/// A tenant alone on the whole GPU, without a wall.
#[derive(Debug, Clone)]
pub struct Solo {
    counts: Counts,
    measured: Nanos,
}

/// One wall with one way to schedule copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// The wall.
    pub wall: Wall,
    /// What the node of the wall `partywall` is told, where the wall is not as it comes.
    pub node: Option<Node>,
    /// First come first served, or fair.
    pub copies: Policy,
}

/// What one tenant got in a cell. Ratios are fractions; `None` where too few requests or a saturated load make them
/// meaningless.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TenantResult {
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: Class,
    /// What the wall gave it.
    pub placed: String,
    /// Service time among the others.
    pub service: Percentiles,
    /// Response time among the others.
    pub response: Percentiles,
    /// Service time alone on the whole GPU.
    pub solo: Percentiles,
    /// Service time alone in its part.
    pub partition: Percentiles,
    /// Co-run p99 over solo p99, service time.
    pub slowdown_p99: Option<f64>,
    /// p99 alone in the part over solo p99.
    pub capacity_cost: Option<f64>,
    /// Co-run p99 over p99 alone in the part.
    pub interference: Option<f64>,
    /// Fraction of requests (lost ones included) that did not meet the objective; `None` without an objective.
    pub slo_miss_rate: Option<f64>,
    /// Rate, in `unit` per second.
    pub rate_per_s: f64,
    /// What the rate counts.
    pub unit: Cow<'static, str>,
    /// Rate over the rate alone on the whole GPU.
    pub kept: Option<f64>,
    /// Whether more was offered than could be served.
    pub saturated: bool,
    /// Requests lost to faults or full queues.
    pub lost: u64,
    /// Mean SMs drawn on.
    pub sms_mean: f64,
    /// Cumulative distribution of service time: (ms, fraction).
    #[serde(skip)]
    pub cdf: Vec<(f64, f64)>,
}

/// What came of a cell.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CellResult {
    /// The wall.
    pub wall: Wall,
    /// How copies were scheduled: `copy-fifo` or `copy-fair`.
    pub copies: &'static str,
    /// Per tenant.
    pub tenants: Vec<TenantResult>,
    /// Mean power, W.
    pub power_w: f64,
    /// Mean SM clock, MHz.
    pub clock_mhz: f64,
    /// Lowest SM clock, MHz.
    pub clock_min_mhz: f64,
    /// Fraction of the time at which the power cap held the clock down.
    pub throttled: f64,
    /// Kernels simulated, solo runs not included.
    pub kernels: u64,
    /// Who drew on how many SMs when.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
}

impl Participant {
    /// What a layout needs to know of it.
    pub fn member(&self) -> Member {
        Member { class: self.workload.class, share: self.share }
    }
}

impl Experiment<'_> {
    /// Runs one participant alone on the whole GPU.
    ///
    /// # Errors
    /// As [`machine::run`].
    pub fn solo(&self, index: usize) -> Result<Solo, SimError> {
        let layout = Layout::new(Wall::Exclusive, self.gpu, &[self.participants[index].member()])?;
        let outcome = self.run(layout, &[index], Policy::Fifo, false)?;
        Ok(Solo::of(outcome))
    }

    /// Runs a cell: everybody alone in their part, then all together. `solo` is in the order of the participants.
    ///
    /// `exclusive` runs the latency-sensitive participants, each alone; the others get nothing on this GPU.
    ///
    /// # Errors
    /// The wall does not exist on the GPU, or the participants do not fit.
    pub fn cell(&self, cell: Cell, solo: &[Solo]) -> Result<CellResult, SimError> {
        let members: Vec<Member> = self.participants.iter().map(Participant::member).collect();
        let layout = Layout::behind(cell.wall, cell.node.as_ref(), self.gpu, &members)?;
        if cell.wall == Wall::Exclusive {
            return self.exclusive(&layout, cell, solo);
        }
        let everybody: Vec<usize> = (0..members.len()).collect();
        let alone = everybody.iter().map(|&index| {
            let part = layout.only(index);
            Ok(self.run(part, &[index], cell.copies, false)?.tenants.swap_remove(0))
        });
        let alone: Vec<Counts> = alone.collect::<Result<_, SimError>>()?;
        let described = layout.described.clone();
        let outcome = self.run(layout, &everybody, cell.copies, true)?;
        let tenants = everybody.iter().map(|&index| {
            let counts = &outcome.tenants[index];
            self.result(index, counts, outcome.measured, (&solo[index], &alone[index]), &described[index])
        });
        Ok(summary(cell, tenants.collect(), &outcome))
    }

    fn exclusive(&self, layout: &Layout, cell: Cell, solo: &[Solo]) -> Result<CellResult, SimError> {
        let mut tenants = Vec::new();
        let mut last = None;
        for (index, participant) in self.participants.iter().enumerate() {
            let nothing = Counts::default();
            if participant.workload.class == Class::BestEffort {
                let alone = (&solo[index], &nothing);
                tenants.push(self.result(index, &nothing, solo[index].measured, alone, "elsewhere"));
                continue;
            }
            let outcome = self.run(layout.only(index), &[index], cell.copies, true)?;
            let counts = &outcome.tenants[0];
            tenants.push(self.result(index, counts, outcome.measured, (&solo[index], counts), "the GPU"));
            last = Some(outcome);
        }
        let outcome = match last {
            Some(outcome) => outcome,
            // Nobody to run: an idle GPU.
            None => self.run(layout.only(0), &[0], cell.copies, false)?,
        };
        let mut result = summary(cell, tenants, &outcome);
        if let Some(strip) = &mut result.timeline {
            let bins = strip.sms.first().map_or(0, Vec::len);
            strip.sms.resize(self.participants.len(), vec![0.0; bins]);
        }
        Ok(result)
    }

    fn run(&self, layout: Layout, who: &[usize], copies: Policy, corun: bool) -> Result<Outcome, SimError> {
        Ok(machine::run(Setup {
            gpu: self.gpu,
            layout,
            workloads: who.iter().map(|&index| self.participants[index].workload.clone()).collect(),
            copies: copy_scheduler::Config { policy: copies, ..copy_scheduler::Config::default() },
            params: self.params,
            seed: self.seed,
            streams: who.iter().map(|&index| index as u64).collect(),
            warmup: self.warmup,
            end: self.end,
            requests_max: u64::MAX,
            faults: if corun { self.faults_among(who) } else { Vec::new() },
            timeline: if corun { self.timeline } else { None },
        })?)
    }

    /// The faults of those who run, by their number among them. A fault of somebody who is not on this GPU is none here.
    fn faults_among(&self, who: &[usize]) -> Vec<Fault> {
        let faults = self.faults.iter().filter_map(|fault| {
            let at = who.iter().position(|&index| index == fault.tenant.index())?;
            Some(Fault { tenant: TenantId(at as u32), ..*fault })
        });
        faults.collect()
    }

    fn result(
        &self,
        index: usize,
        counts: &Counts,
        measured: Nanos,
        (solo, alone): (&Solo, &Counts),
        placed: &str,
    ) -> TenantResult {
        let workload = &self.participants[index].workload;
        let p99 =
            |counts: &Counts| counts.service.percentile(Percentile::P99).filter(|_| !counts.saturated());
        let (solo_p99, alone_p99, corun_p99) = (p99(&solo.counts), p99(alone), p99(counts));
        let rate = counts.rate(measured);
        let asked = counts.completed + counts.lost;
        TenantResult {
            name: workload.name.clone(),
            class: workload.class,
            placed: placed.to_owned(),
            service: counts.service.percentiles(),
            response: counts.response.percentiles(),
            solo: solo.counts.service.percentiles(),
            partition: alone.service.percentiles(),
            slowdown_p99: solo_p99.zip(corun_p99).and_then(|(solo, corun)| measure::slowdown(solo, corun)),
            capacity_cost: solo_p99
                .zip(alone_p99)
                .and_then(|(solo, alone)| measure::capacity_cost(solo, alone)),
            interference: alone_p99
                .zip(corun_p99)
                .and_then(|(alone, corun)| measure::interference(alone, corun)),
            slo_miss_rate: workload
                .objective
                .filter(|_| asked > 0)
                .map(|_| (counts.missed + counts.lost) as f64 / asked as f64),
            rate_per_s: rate,
            unit: Cow::Borrowed(workload.program.unit),
            kept: measure::be_kept(rate, solo.counts.rate(solo.measured)),
            saturated: counts.saturated(),
            lost: counts.lost,
            sms_mean: counts.sm_ns / measured.0.max(1) as f64,
            cdf: counts.service.cdf(CDF_POINTS),
        }
    }
}

impl Solo {
    fn of(mut outcome: Outcome) -> Self {
        Self { measured: outcome.measured, counts: outcome.tenants.swap_remove(0) }
    }

    /// Service times.
    pub fn service(&self) -> Percentiles {
        self.counts.service.percentiles()
    }
}

fn summary(cell: Cell, tenants: Vec<TenantResult>, outcome: &Outcome) -> CellResult {
    CellResult {
        wall: cell.wall,
        copies: match cell.copies {
            Policy::Fifo => "copy-fifo",
            Policy::Fair => "copy-fair",
        },
        tenants,
        power_w: outcome.power_w,
        clock_mhz: outcome.clock_mhz,
        clock_min_mhz: outcome.clock_min_mhz,
        throttled: outcome.throttled,
        kernels: outcome.kernels,
        timeline: outcome.timeline.clone(),
    }
}

#[cfg(test)]
mod tests;
