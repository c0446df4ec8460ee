//! One round of one cell: a run of each of its tenants, at the same time.
//!
//! ```text
//! run    begin       window begins                      window ends
//!  |------|-- warm-up --|------------ what counts ---------|-- stop LS, then BE --|
//! ```
//!
//! The latency-sensitive tenant is stopped first, so that its last requests have their neighbour too. Of several, it is the first that
//! decides when the round is over.

use std::collections::BTreeMap;

use partywall_core::units::Nanos;

use super::{Measurement, RoundSamples};
use crate::load::Load;
use crate::protocol::{CHECK_OK, Done, FromTenant, REQUESTS_MAX, Request, Run, Stop as StopRun, ToTenant};
use crate::record::{CellError, CellKind, ErrorKind, GpuSample, NodeRecord};
use crate::stage::{Bench, Stage, Stop};
use crate::tenant::Heard;
use crate::window::Window;

/// From saying `run` until it begins: so that it has reached all tenants.
const LEAD: Nanos = Nanos::from_millis(5);
/// Window of the run that finds out how fast a tenant is.
const PROBE: Nanos = Nanos::from_millis(50);
/// The run that finds out a median on which a rate is to be based: so many requests, or as many as fit the time. The first half
/// does not count, because the first requests of a process take longer.
const DUTY_REQUESTS: u64 = 400;
const DUTY_TIME: Nanos = Nanos::from_secs(10);
/// Least requests for such a median.
const DUTY_REQUESTS_MIN: usize = 20;

/// What each tenant of a run is to do.
pub(super) struct Order {
    pub(super) tenant: usize,
    pub(super) load: Load,
    pub(super) requests_max: u64,
}

/// A run of some tenants together. The first decides when it is over.
pub(super) struct Together<'o> {
    pub(super) orders: &'o [Order],
    pub(super) warmup: Nanos,
    pub(super) time: Nanos,
}

/// What a run left.
pub(super) struct Ran {
    /// Where all were at work, and what counts.
    pub(super) window: Window,
    /// Power and clocks within it.
    pub(super) sample: Option<GpuSample>,
    /// Of each tenant, in the order of the orders.
    pub(super) tenants: Vec<(Vec<Request>, Done)>,
}

/// What was heard of a tenant in a run.
#[derive(Default)]
struct Talk {
    requests: Vec<Request>,
    done: Option<Done>,
}

impl Measurement {
    /// Measures a round of the cell at `at` with a window of `time`, and keeps what counts.
    pub(super) fn round(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        at: usize,
        time: Nanos,
    ) -> Result<(), Stop> {
        let members = self.members(at);
        stage.bring_up(bench, &members)?;
        let cell = self.measured.cells[at].cell.clone();
        let mut orders = Vec::new();
        for tenant in cell.tenants() {
            let load = self.load(bench, stage, tenant, at)?;
            let requests_max =
                if Some(tenant) == cell.ls { self.requests_max(bench, stage, tenant)? } else { REQUESTS_MAX };
            orders.push(Order { tenant, load, requests_max });
        }
        let before = stage.begins();
        let ran = self.run_out(bench, stage, &mut orders, time)?;
        add_since(&mut self.measured.cells[at].node, &before, stage.facts(), |name| {
            cell.tenants().any(|tenant| bench.plan.tenants[tenant].name == name)
        });
        self.measured.cells[at].gpu.extend(ran.sample);
        let mut wrong = None;
        for ((order, (requests, done)), kept) in
            orders.iter().zip(&ran.tenants).zip(&mut self.measured.cells[at].rounds)
        {
            let work = stage.ready.get(&order.tenant).map_or(1.0, |ready| ready.work)
                * f64::from(order.load.depth());
            if done.check != CHECK_OK {
                let name = &bench.plan.tenants[order.tenant].name;
                wrong = Some(CellError::new(ErrorKind::WrongResult, format!("{name}: {}", done.check)));
            }
            kept.1.push(RoundSamples {
                samples: ran.window.samples(requests, &order.load, work),
                check: done.check.clone(),
                host_gap: done.host_gap_ns.map(Nanos),
            });
        }
        wrong.map_or(Ok(()), |error| Err(Stop::Cell(error)))
    }

    /// Runs the tenants of a cell. A tenant that was counted out by a speed too low ends its run within the warm-up; it is
    /// given more requests then, because nothing of such a run counts.
    fn run_out(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        orders: &mut [Order],
        time: Nanos,
    ) -> Result<Ran, Stop> {
        let warmup = bench.plan.warmup;
        loop {
            let ran = self.together(bench, stage, &Together { orders: &*orders, warmup, time }, true)?;
            let ended_early = ran.window.end <= ran.window.begin;
            match orders.first_mut().filter(|order| ended_early && order.requests_max < REQUESTS_MAX) {
                Some(first) => first.requests_max = first.requests_max.saturating_mul(8).min(REQUESTS_MAX),
                None => return Ok(ran),
            }
        }
    }

    /// A tenant's load in the next round of a cell: arrivals differ from round to round, and not from cell to cell.
    fn load(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        tenant: usize,
        at: usize,
    ) -> Result<Load, Stop> {
        let load = match bench.plan.tenants[tenant].duty {
            Some(duty) => self.of_duty(bench, stage, (tenant, duty), at)?,
            None => bench.plan.tenants[tenant].load,
        };
        Ok(match load {
            Load::Poisson { rate_per_s, seed } => {
                let round = self.measured.cells[at].rounds.first().map_or(0, |(_, rounds)| rounds.len());
                // Of two tenants in a cell, each has arrivals of its own.
                let own = (tenant as u64).wrapping_mul(1 << 32);
                Load::Poisson { rate_per_s, seed: seed.wrapping_add(own).wrapping_add(round as u64) }
            }
            other => other,
        })
    }

    /// The load of a tenant that is to be busy for `duty` of the time. How fast it is is found out where it runs solo.
    fn of_duty(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        (tenant, duty): (usize, f64),
        at: usize,
    ) -> Result<Load, Stop> {
        if let Some(load) = self.measured.duties.get(&tenant) {
            return Ok(*load);
        }
        let name = &bench.plan.tenants[tenant].name;
        let unknown = |why: &str| {
            let message = format!("the rate of {name} follows from its median solo, {why}");
            Stop::Cell(CellError::new(ErrorKind::Skipped, message))
        };
        if self.measured.cells[at].cell.kind != CellKind::Solo {
            let solo = self.measured.cells.iter().find(|one| {
                one.cell.kind == CellKind::Solo && one.cell.tenants().any(|member| member == tenant)
            });
            let why = solo.and_then(|solo| solo.error.as_ref()).map(|error| error.message.as_str());
            return Err(unknown(&format!(
                "which was not measured: {}",
                why.unwrap_or("it has not been solo")
            )));
        }
        let orders = [Order { tenant, load: bench.plan.tenants[tenant].load, requests_max: DUTY_REQUESTS }];
        let together = Together { orders: &orders, warmup: Nanos::ZERO, time: DUTY_TIME };
        let ran = self.together(bench, stage, &together, false)?;
        let requests = ran.tenants.first().map_or(&[][..], |(requests, _)| requests);
        let late = requests.get(requests.len() / 2..).unwrap_or_default();
        let mut times: Vec<Nanos> = late.iter().map(|one| Nanos(one.end.saturating_sub(one.start))).collect();
        times.sort_unstable();
        let median = times.get(times.len() / 2).filter(|_| times.len() >= DUTY_REQUESTS_MIN);
        let median = median.ok_or_else(|| {
            unknown(&format!("and it made too few requests for one in {DUTY_TIME}: {}", requests.len()))
        })?;
        let load = Load::Poisson { rate_per_s: duty / median.as_secs().max(1e-9), seed: bench.plan.seed };
        load.check().map_err(|error| unknown(&format!("and {error}")))?;
        self.measured.duties.insert(tenant, load);
        Ok(load)
    }

    /// After how many requests a latency-sensitive tenant ends its run by itself: its part of those that are wanted, and
    /// as many as it makes solo during the warm-up. Beside others it is slower, so more of them fall into the window.
    fn requests_max(&mut self, bench: &mut Bench<'_>, stage: &mut Stage, tenant: usize) -> Result<u64, Stop> {
        let speed = match (self.speeds.get(&tenant), self.open_rate(bench, tenant)) {
            (Some(speed), _) => *speed,
            // A short run would have few requests.
            (None, Some(rate)) => Nanos::from_ms_f64(1e3 / rate),
            (None, None) => {
                let speed = self.probe(bench, stage, tenant)?;
                self.speeds.insert(tenant, speed);
                speed
            }
        };
        let wanted = bench.plan.requests_per_round();
        let warming = bench.plan.warmup.0 / speed.0.max(1) + 1;
        Ok(wanted.saturating_add(warming).min(REQUESTS_MAX))
    }

    /// Requests a second of a tenant whose requests come whatever becomes of them.
    pub(super) fn open_rate(&self, bench: &Bench<'_>, tenant: usize) -> Option<f64> {
        let load = self.measured.duties.get(&tenant).unwrap_or(&bench.plan.tenants[tenant].load);
        load.offered_per_s()
    }

    /// How long it takes a tenant from one request to the next, in a short run.
    fn probe(&mut self, bench: &mut Bench<'_>, stage: &mut Stage, tenant: usize) -> Result<Nanos, Stop> {
        let orders = [Order { tenant, load: bench.plan.tenants[tenant].load, requests_max: REQUESTS_MAX }];
        let together = Together { orders: &orders, warmup: Nanos::ZERO, time: PROBE };
        let ran = self.together(bench, stage, &together, false)?;
        let requests = ran.tenants.first().map_or(&[][..], |(requests, _)| requests);
        // The first requests of a process take longer than all others, so no mean.
        let mut gaps: Vec<u64> =
            requests.windows(2).map(|two| two[1].start.saturating_sub(two[0].start)).collect();
        gaps.sort_unstable();
        Ok(gaps.get(gaps.len() / 2).map_or(PROBE, |gap| Nanos((*gap).max(1))))
    }

    /// Runs tenants together. `sampled` has power and clocks sampled within the window.
    pub(super) fn together(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        together: &Together<'_>,
        sampled: bool,
    ) -> Result<Ran, Stop> {
        self.runs += 1;
        let mut running = Running {
            run: self.runs,
            talks: together.orders.iter().map(|order| (order.tenant, Talk::default())).collect(),
        };
        let ran = running.go(bench, stage, together, sampled);
        if ran.is_err() {
            // Of a window that was cut short.
            let _ = bench.machine.stop_sampling();
        }
        match ran {
            Ok(ran) => Ok(ran),
            Err(Trouble::Interrupted) => Err(Stop::Interrupted),
            Err(Trouble::Tenant(tenant, error)) => {
                stage.failed(bench, tenant, &error);
                running.quiet(bench, stage)?;
                Err(Stop::Cell(error))
            }
        }
    }
}

/// Adds to `sums` what the node has counted of the tenants of a cell since `before`.
fn add_since(
    sums: &mut Vec<NodeRecord>,
    before: &[NodeRecord],
    after: Vec<NodeRecord>,
    takes_part: impl Fn(&str) -> bool,
) {
    for mut one in after.into_iter().filter(|one| takes_part(&one.tenant)) {
        let earlier = before.iter().find(|earlier| earlier.tenant == one.tenant);
        let sum = sums.iter().position(|sum| sum.tenant == one.tenant);
        for (what, count) in &mut one.counted {
            let known =
                |record: Option<&NodeRecord>| record.and_then(|record| record.counted.get(what)).copied();
            let since = count.saturating_sub(known(earlier).unwrap_or(0));
            *count = since.saturating_add(known(sum.map(|at| &sums[at])).unwrap_or(0));
        }
        one.longest_resize_ms =
            sum.map_or(one.longest_resize_ms, |at| sums[at].longest_resize_ms.max(one.longest_resize_ms));
        match sum {
            Some(at) => sums[at] = one,
            None => sums.push(one),
        }
    }
}

/// Why a run did not end as it should.
enum Trouble {
    Interrupted,
    Tenant(usize, CellError),
}

struct Running {
    run: u64,
    talks: BTreeMap<usize, Talk>,
}

impl Running {
    fn go(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        together: &Together<'_>,
        sampled: bool,
    ) -> Result<Ran, Trouble> {
        let begin = bench.channel.now().saturating_add(LEAD);
        for order in together.orders {
            let run =
                Run { run: self.run, load: order.load, begin: begin.0, requests_max: order.requests_max };
            stage.say(bench, order.tenant, ToTenant::Run(run));
        }
        let from = begin.saturating_add(together.warmup);
        self.listen(bench, stage, from, &[])?;
        if sampled {
            bench.machine.start_sampling();
        }
        let Some((first, others)) = together.orders.split_first() else {
            return Ok(Ran { window: Window { begin, end: begin }, sample: None, tenants: Vec::new() });
        };
        let deadline = from.saturating_add(together.time);
        let by_itself = self.listen(bench, stage, deadline, &[first.tenant])?;
        let sample = if sampled { bench.machine.stop_sampling() } else { None };
        self.stop(bench, stage, &[first.tenant])?;
        let last = self.talks.get(&first.tenant).and_then(|talk| talk.requests.last());
        let end = if by_itself { last.map_or(from, |last| Nanos(last.end)).max(from) } else { deadline };
        self.nobody_left_early(bench, others, end)?;
        let others: Vec<usize> = others.iter().map(|order| order.tenant).collect();
        self.stop(bench, stage, &others)?;
        let tenants = together.orders.iter().filter_map(|order| {
            let talk = self.talks.remove(&order.tenant)?;
            Some((talk.requests, talk.done?))
        });
        Ok(Ran { window: Window { begin: from, end }, sample, tenants: tenants.collect() })
    }

    /// A best-effort tenant that stops before the window ends leaves the other alone, and nobody would see it.
    fn nobody_left_early(&self, bench: &Bench<'_>, others: &[Order], end: Nanos) -> Result<(), Trouble> {
        for order in others {
            let talk = self.talks.get(&order.tenant).filter(|talk| talk.done.is_some());
            let last = talk.and_then(|talk| talk.requests.last()).map_or(Nanos::ZERO, |last| Nanos(last.end));
            if talk.is_some() && last < end {
                let name = &bench.plan.tenants[order.tenant].name;
                let message = format!(
                    "{name} ended its run before the window did, after {} requests; it should do more work in each",
                    talk.map_or(0, |talk| talk.requests.len()),
                );
                return Err(Trouble::Tenant(order.tenant, CellError::new(ErrorKind::Rubbish, message)));
            }
        }
        Ok(())
    }

    /// Ends the runs of `tenants`, unless they have ended, and waits for what they held back.
    fn stop(&mut self, bench: &mut Bench<'_>, stage: &mut Stage, tenants: &[usize]) -> Result<(), Trouble> {
        for &tenant in tenants.iter().filter(|tenant| !self.is_done(**tenant)) {
            stage.say(bench, tenant, ToTenant::Stop(StopRun { run: self.run }));
        }
        if !tenants.iter().all(|&tenant| self.is_done(tenant)) {
            let until = bench.channel.now().saturating_add(bench.plan.patience.stop);
            self.listen(bench, stage, until, tenants)?;
        }
        match tenants.iter().find(|tenant| !self.is_done(**tenant)) {
            None => Ok(()),
            Some(&tenant) => {
                let name = &bench.plan.tenants[tenant].name;
                let message = format!("{name} did not end its run within {}", bench.plan.patience.stop);
                Err(Trouble::Tenant(tenant, CellError::new(ErrorKind::Hung, message)))
            }
        }
    }

    /// After trouble: what still runs is made to stop, so that it does not disturb the next cell.
    fn quiet(&mut self, bench: &mut Bench<'_>, stage: &mut Stage) -> Result<(), Stop> {
        let left: Vec<usize> = self.talks.keys().copied().filter(|&tenant| !self.is_done(tenant)).collect();
        let left: Vec<usize> = left.into_iter().filter(|&tenant| stage.is_up(tenant)).collect();
        match self.stop(bench, stage, &left) {
            Ok(()) => Ok(()),
            Err(Trouble::Interrupted) => Err(Stop::Interrupted),
            Err(Trouble::Tenant(tenant, error)) => {
                stage.failed(bench, tenant, &error);
                Ok(())
            }
        }
    }

    fn is_done(&self, tenant: usize) -> bool {
        self.talks.get(&tenant).is_some_and(|talk| talk.done.is_some())
    }

    /// Listens until `until`, or until all of `awaited` are done if there are any; whether they are.
    fn listen(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        until: Nanos,
        awaited: &[usize],
    ) -> Result<bool, Trouble> {
        loop {
            if !awaited.is_empty() && awaited.iter().all(|&tenant| self.is_done(tenant)) {
                return Ok(true);
            }
            match bench.channel.hear(until) {
                Heard::Time => return Ok(false),
                Heard::Interrupted => return Err(Trouble::Interrupted),
                Heard::Lost(process, error) => {
                    let hosted = stage.hosted(process).to_vec();
                    let ours = hosted.iter().find(|tenant| self.talks.contains_key(tenant));
                    match (ours, hosted.first()) {
                        (Some(&tenant), _) => return Err(Trouble::Tenant(tenant, error)),
                        // One that only waits has ended: another cell's matter, unless it took the others with it.
                        (None, Some(&tenant)) if stage.place.shares_faults() => {
                            return Err(Trouble::Tenant(tenant, error));
                        }
                        (None, Some(&tenant)) => stage.failed(bench, tenant, &error),
                        (None, None) => {}
                    }
                }
                Heard::Said(process, line) => {
                    let speaker = stage.speaker(bench.plan, process, line.tenant.as_deref());
                    let tenant = match speaker {
                        Ok(tenant) => tenant,
                        Err(error) => {
                            let Some(&tenant) = stage.hosted(process).first() else { continue };
                            return Err(Trouble::Tenant(tenant, error));
                        }
                    };
                    if let Err(error) = self.said(bench, tenant, line.message) {
                        if self.talks.contains_key(&tenant) || stage.place.shares_faults() {
                            return Err(Trouble::Tenant(tenant, error));
                        }
                        stage.failed(bench, tenant, &error);
                    }
                }
            }
        }
    }

    fn said(&mut self, bench: &Bench<'_>, tenant: usize, message: FromTenant) -> Result<(), CellError> {
        let name = &bench.plan.tenants[tenant].name;
        let rubbish = |what: String| Err(CellError::new(ErrorKind::Rubbish, format!("{name} {what}")));
        let talk = self.talks.get_mut(&tenant).filter(|talk| talk.done.is_none());
        match (message, talk) {
            (FromTenant::Failed(failed), _) => {
                Err(CellError::new(ErrorKind::GpuFault, format!("{name}: {}", failed.message)))
            }
            (FromTenant::Request(request), Some(talk)) => {
                if talk.requests.len() as u64 >= REQUESTS_MAX {
                    return rubbish(format!("sent more than {REQUESTS_MAX} requests"));
                }
                talk.requests.push(request);
                Ok(())
            }
            (FromTenant::Done(done), Some(talk)) => {
                if done.run != self.run {
                    return rubbish(format!("ended run {}, and run {} is on", done.run, self.run));
                }
                if done.requests != talk.requests.len() as u64 {
                    let sent = talk.requests.len();
                    return rubbish(format!("says that it made {} requests, and sent {sent}", done.requests));
                }
                // Tenants may send them in any order; what counts is decided in the order in which they began.
                talk.requests.sort_by_key(|request| request.start);
                talk.done = Some(done);
                Ok(())
            }
            (FromTenant::Request(_) | FromTenant::Done(_), None) => {
                rubbish("spoke of a run that it has not been given".to_owned())
            }
            (FromTenant::Ready(_), _) => rubbish("was ready a second time".to_owned()),
        }
    }
}
