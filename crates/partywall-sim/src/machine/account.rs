//! What is counted: progress and SMs drawn on, power and clock, parts of requests, and what remains at the end.

use partywall_core::units::Nanos;

use super::{Event, Machine, Phase, Tenant};
use crate::contention::ClockFactors;
use crate::metrics::{Counts, Outcome, Timeline};
use crate::power;

/// Integrals over time since counting began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Energy {
    watt_ns: f64,
    mhz_ns: f64,
    throttled_ns: f64,
    mhz_min: f64,
}

impl Energy {
    pub(super) fn none(mhz: f64) -> Self {
        Self { mhz_min: mhz, ..Self::default() }
    }
}

impl Machine<'_> {
    /// Moves time on, with everything that runs at its present rate.
    pub(super) fn advance(&mut self, to: u64) {
        let from = std::mem::replace(&mut self.now, to);
        let dt = (to - from) as f64;
        // What the kernels would draw on alone may be more than there is; then each has its part of the GPU.
        let asked: f64 = self.loads.iter().map(|load| load.drawn).sum();
        let part = (self.chip.sms / asked).min(1.0);
        for (load, &index) in self.loads.iter().zip(&self.running) {
            let tenant = &mut self.tenants[index];
            tenant.placed.progress += tenant.placed.rate * dt;
            let drawn = load.drawn * part;
            tenant.counts.sm_ns += drawn * dt;
            self.activity_ns += load.kernel.activity * drawn * dt / self.chip.sms;
            if let Some(timeline) = &mut self.timeline {
                timeline.add(index, drawn, from, to);
            }
        }
    }

    /// Decides the clock of the next period from the activity of the last one.
    pub(super) fn decide_clock(&mut self) {
        if let Some(activity) = self.settle_energy() {
            self.clock = self.power.clock(activity);
            self.factors = ClockFactors::at(self.clock);
        }
        self.after(self.now + power::PERIOD_NS, Event::Clock);
    }

    /// Adds the time since the last call to the integrals; returns the mean activity of that time if there was any.
    fn settle_energy(&mut self) -> Option<f64> {
        let dt = (self.now - self.clock_since) as f64;
        let activity = self.activity_ns / dt;
        self.activity_ns = 0.0;
        self.clock_since = self.now;
        if dt == 0.0 {
            return None;
        }
        let mhz = self.power.mhz(self.clock);
        self.energy.watt_ns += self.power.watts(activity, self.clock) * dt;
        self.energy.mhz_ns += mhz * dt;
        self.energy.mhz_min = self.energy.mhz_min.min(mhz);
        if self.clock < 1.0 {
            self.energy.throttled_ns += dt;
        }
        Some(activity)
    }

    /// The warm-up is over.
    pub(super) fn start_counting(&mut self) {
        self.counting = true;
        self.counted_from = self.now;
        self.settle_energy();
        self.energy = Energy::none(self.power.mhz(1.0));
        for tenant in &mut self.tenants {
            tenant.counts = Counts { carried: tenant.unfinished(), ..Counts::default() };
            // What was done of the present request was done before.
            tenant.uncounted = tenant.partial_items();
        }
    }

    pub(super) fn outcome(mut self) -> Outcome {
        self.settle_energy();
        // The rule for saturation needs the whole window.
        let whole = self.now >= self.setup.end.0;
        for tenant in &mut self.tenants {
            tenant.counts.items += tenant.partial_items() - tenant.uncounted;
            tenant.counts.load = tenant.meter.as_ref().filter(|_| whole).map(|meter| meter.served().load());
            tenant.counts.backlog = tenant.unfinished();
        }
        let measured = self.now - self.counted_from;
        let mean = |sum: f64, otherwise: f64| if measured > 0 { sum / measured as f64 } else { otherwise };
        Outcome {
            measured: Nanos(measured),
            kernels: self.kernels,
            power_w: mean(self.energy.watt_ns, self.power.watts(0.0, 1.0)),
            clock_mhz: mean(self.energy.mhz_ns, self.power.mhz(self.clock)),
            clock_min_mhz: self.energy.mhz_min,
            throttled: mean(self.energy.throttled_ns, 0.0),
            timeline: self.timeline,
            tenants: self.tenants.into_iter().map(|tenant| tenant.counts).collect(),
        }
    }
}

impl Tenant {
    /// Requests that wait or run.
    pub(super) fn unfinished(&self) -> u64 {
        self.queue.len() as u64 + u64::from(self.current.is_some())
    }

    /// Items of the present request that are done: whole passes, and of the present one by kernels.
    fn partial_items(&self) -> f64 {
        if self.current.is_none() {
            return 0.0;
        }
        let kernels = self.program.kernels.len().max(1) as f64;
        let of_pass = match self.phase {
            Phase::Waiting => self.next as f64 / kernels,
            Phase::Running => (self.next as f64 + self.placed.progress.min(1.0)) / kernels,
            Phase::Idle | Phase::Copying | Phase::Down => 0.0,
        };
        (f64::from(self.pass) + of_pass) * self.program.items
    }
}

impl Timeline {
    fn add(&mut self, tenant: usize, sms: f64, from: u64, to: u64) {
        let bins = self.sms[tenant].len() as u64;
        let (start, bin) = (self.from.0, self.bin.0);
        let end = start.saturating_add(bins.saturating_mul(bin));
        let (mut at, to) = (from.max(start), to.min(end));
        while at < to {
            let index = (at - start) / bin;
            let until = to.min(start + (index + 1) * bin);
            self.sms[tenant][index as usize] += sms * (until - at) as f64 / bin as f64;
            at = until;
        }
    }
}
