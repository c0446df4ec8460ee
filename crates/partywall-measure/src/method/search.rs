//! The edge study's measures on a GPU: the maximum stable rate of a tenant alone in its part, then its timeouts at that
//! rate beside each neighbour. A request times out if it is not done within a period of its arrival.

use partywall_core::measure::ims;
use partywall_core::units::Nanos;

use super::round::{Order, Together};
use super::{Interrupted, Measurement, Progress};
use crate::load::{GAP_MAX, GAP_MIN, Load};
use crate::protocol::{REQUESTS_MAX, Request};
use crate::record::{CellError, CellKind, ImsRecord, Timeouts};
use crate::stage::{Bench, Stage, Stop};

/// By how many times its length a run may exceed its periods before it is stopped; what is not done by then has timed
/// out long since.
const OVERTIME: u64 = 3;

impl Measurement {
    /// Searches for each latency-sensitive tenant of `cells`, and tests it beside its neighbours there.
    pub(super) fn search(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        cells: &[usize],
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), Interrupted> {
        let coruns: Vec<(usize, usize, usize)> = cells
            .iter()
            .filter_map(|&at| {
                let cell = &self.measured.cells[at].cell;
                let both = (cell.kind == CellKind::Corun).then_some((cell.ls?, cell.be?));
                both.map(|(ls, be)| (at, ls, be))
            })
            .collect();
        for (at, ls, be) in coruns {
            if self.is_late(bench, bench.plan.time_max) {
                self.measured.complete = false;
                break;
            }
            self.tell(bench, format!("maximum stable rate, {}", self.title(bench, at)), progress);
            let place = &self.measured.cells[at].cell.place;
            let head = (place.wall, place.setting.to_string(), place.processes);
            let name = bench.plan.tenants[ls].name.clone();
            let same =
                |one: &ImsRecord| (one.wall, one.setting.clone(), one.processes) == head && one.ls == name;
            let known = self.measured.ims.iter().position(same);
            let index = match known {
                Some(index) => index,
                None => {
                    let found = interrupted(self.maximum(bench, stage, ls, be))?;
                    let (wall, setting, processes) = head;
                    let (period, runs, error) = match found {
                        Ok(found) => (found.period, found.runs, None),
                        Err(error) => (None, 0, Some(error)),
                    };
                    let period_ms = period.map(Nanos::as_ms);
                    let record = ImsRecord {
                        wall,
                        setting,
                        processes,
                        ls: name,
                        period_ms,
                        runs,
                        beside: Vec::new(),
                        error,
                    };
                    self.measured.ims.push(record);
                    self.measured.ims.len() - 1
                }
            };
            let Some(period_ms) = self.measured.ims[index].period_ms else { continue };
            let beside = interrupted(self.beside(bench, stage, (ls, be), Nanos::from_ms_f64(period_ms)))?;
            let be = bench.plan.tenants[be].name.clone();
            self.measured.ims[index].beside.push(match beside {
                Ok((requests, timeouts)) => Timeouts { be, requests, timeouts, error: None },
                Err(error) => Timeouts { be, requests: 0, timeouts: 0, error: Some(error) },
            });
        }
        Ok(())
    }

    /// The maximum stable rate of `ls` alone. `be` is up, as it is when it is measured beside.
    fn maximum(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        ls: usize,
        be: usize,
    ) -> Result<ims::Found, Stop> {
        stage.bring_up(bench, &[ls, be])?;
        let config = ims::Config::default();
        let requests = u64::from(config.requests);
        let orders = [Order { tenant: ls, load: Load::BACK_TO_BACK, requests_max: requests }];
        let together = Together { orders: &orders, warmup: Nanos::ZERO, time: bench.plan.time_max };
        let ran = self.together(bench, stage, &together, false)?;
        let times: Vec<Nanos> = ran.tenants.iter().flat_map(|(requests, _)| requests).map(service).collect();
        ims::search(&config, &times, &mut |period, _| {
            let orders = [Order { tenant: ls, load: periodic(period), requests_max: requests }];
            self.timeouts(bench, stage, &orders, period)
        })
    }

    /// Requests and timeouts of the first of a pair beside the second.
    fn beside(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        (ls, be): (usize, usize),
        period: Nanos,
    ) -> Result<(u64, u64), Stop> {
        stage.bring_up(bench, &[ls, be])?;
        let requests = u64::from(ims::Config::default().requests);
        let orders = [
            Order { tenant: ls, load: periodic(period), requests_max: requests },
            Order { tenant: be, load: bench.plan.tenants[be].load, requests_max: REQUESTS_MAX },
        ];
        Ok((requests, self.timeouts(bench, stage, &orders, period)?))
    }

    /// How many of the first one's requests are not done within `period` of their arrival, in a run of as many as it may
    /// make.
    fn timeouts(
        &mut self,
        bench: &mut Bench<'_>,
        stage: &mut Stage,
        orders: &[Order],
        period: Nanos,
    ) -> Result<u64, Stop> {
        let due = orders.first().map_or(0, |order| order.requests_max);
        let time = Nanos(period.0.saturating_mul(due).saturating_mul(OVERTIME));
        let ran = self.together(bench, stage, &Together { orders, warmup: Nanos::ZERO, time }, false)?;
        let made = ran.tenants.first().map_or(&[][..], |(requests, _)| requests);
        let in_time =
            made.iter().filter(|request| request.end.saturating_sub(request.scheduled) <= period.0).count();
        Ok(due.saturating_sub(in_time as u64))
    }
}

/// A cell's error is a result; an interruption is not.
fn interrupted<T>(result: Result<T, Stop>) -> Result<Result<T, CellError>, Interrupted> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Stop::Cell(error)) => Ok(Err(error)),
        Err(Stop::Interrupted) => Err(Interrupted),
    }
}

/// The nearest period that a tenant accepts.
fn periodic(period: Nanos) -> Load {
    Load::Periodic { period_ns: period.clamp(GAP_MIN, GAP_MAX).0 }
}

fn service(request: &Request) -> Nanos {
    Nanos(request.end.saturating_sub(request.start))
}
