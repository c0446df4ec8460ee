//! From what was measured to what the record says: cells, rows of ratios, agreement with what was expected.

use std::collections::BTreeMap;
use std::path::Path;

use partywall_core::measure::{Evidence, Load as Served, be_kept};
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;

use crate::load::Load;
use crate::method::{CellResult, Measured, RoundSamples};
use crate::plan::{Cell, Place, Plan, Program, Ratio, Tenant};
use crate::protocol::CHECK_OK;
use crate::record::{
    CellError, CellKind, CellRecord, FactRecord, GpuSample, ProgramKind, Quantiles, RoundRecord, Row,
    TenantRecord, TenantResult,
};
use crate::statistics::{Replicates, Series, ratio_interval};

/// The key of `about` under which a tenant states its cache policy.
const CACHE_POLICY: &str = "cache_policy";

/// What of a record follows from what was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// [`crate::record::Record::tenants`].
    pub tenants: Vec<TenantRecord>,
    /// [`crate::record::Record::cells`].
    pub cells: Vec<CellRecord>,
    /// [`crate::record::Record::rows`].
    pub rows: Vec<Row>,
    /// [`crate::record::Record::facts`].
    pub facts: Vec<FactRecord>,
}

/// Percentiles, intervals and ratios of what was measured.
pub fn results(plan: &Plan, measured: &Measured) -> Results {
    let cells: Vec<Summed> = measured
        .cells
        .iter()
        .enumerate()
        .map(|(at, cell)| Summed::of(plan, at, cell, &measured.duties))
        .collect();
    let rows: Vec<(usize, Row)> = cells.iter().flat_map(|summed| rows_of(plan, &cells, summed)).collect();
    let facts = rows.iter().filter_map(|(pair, row)| fact(plan, *pair, row)).collect();
    Results {
        tenants: plan.tenants.iter().enumerate().map(|(index, one)| tenant(index, one, measured)).collect(),
        cells: cells.iter().map(|summed| summed.record(plan)).collect(),
        rows: rows.into_iter().map(|(_, row)| row).collect(),
        facts,
    }
}

/// A cell with its statistics.
struct Summed<'a> {
    result: &'a CellResult,
    tenants: Vec<SummedTenant>,
    gpu: Option<GpuSample>,
}

struct SummedTenant {
    tenant: usize,
    result: TenantResult,
    /// Of service times; of latency-sensitive tenants only.
    replicates: Replicates,
}

impl<'a> Summed<'a> {
    fn of(plan: &Plan, at: usize, result: &'a CellResult, duties: &BTreeMap<usize, Load>) -> Self {
        let offered = |tenant| duties.get(&tenant).unwrap_or(&plan.tenants[tenant].load).offered_per_s();
        let tenants = result.rounds.iter().filter(|(_, rounds)| !rounds.is_empty());
        let tenants = tenants.map(|(tenant, rounds)| {
            let ls = plan.tenants[*tenant].class == Class::LatencySensitive;
            // A seed of its own for each cell, so that ratios of two are ratios of independent draws.
            let seed = plan.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(at as u64);
            summed(
                *tenant,
                &plan.tenants[*tenant],
                rounds,
                plan.evidence(),
                ls.then_some(seed),
                offered(*tenant),
            )
        });
        Self { result, tenants: tenants.collect(), gpu: merged(&result.gpu) }
    }

    fn tenant(&self, tenant: usize) -> Option<&SummedTenant> {
        self.tenants.iter().find(|one| one.tenant == tenant)
    }

    fn record(&self, plan: &Plan) -> CellRecord {
        let Cell { place, kind, ls, be, beside, .. } = &self.result.cell;
        let name = |index: &Option<usize>| index.map(|index| plan.tenants[index].name.clone());
        CellRecord {
            wall: place.wall,
            setting: place.setting.to_string(),
            processes: place.processes,
            kind: *kind,
            ls: name(ls),
            be: name(be),
            beside: names(plan, beside),
            results: self.tenants.iter().map(|one| one.result.clone()).collect(),
            gpu: self.gpu.clone(),
            node: self.result.node.clone(),
            part: 0,
            error: self.result.error.clone(),
        }
    }
}

fn summed(
    tenant: usize,
    of: &Tenant,
    rounds: &[RoundSamples],
    evidence: Evidence,
    bootstrap: Option<u64>,
    offered_per_s: Option<f64>,
) -> SummedTenant {
    let series = |pick: fn(&RoundSamples) -> &Vec<Nanos>| Series {
        rounds: rounds.iter().map(|one| pick(one).clone()).collect(),
    };
    let (service, response) = (series(|one| &one.samples.service), series(|one| &one.samples.response));
    let span: f64 = rounds.iter().map(|one| one.samples.span.as_secs()).sum();
    let per_s = |amount: f64| if span > 0.0 { amount / span } else { 0.0 };
    let saturated = rounds.iter().any(|one| matches!(one.samples.load, Served::Saturated { .. }));
    let check = rounds.iter().map(|one| one.check.as_str()).find(|check| *check != CHECK_OK);
    let mut gaps: Vec<Nanos> = rounds.iter().filter_map(|one| one.host_gap).collect();
    gaps.sort_unstable();
    let per_round = service.rounds.iter().map(|round| {
        let quantiles = Series { rounds: vec![round.clone()] }.quantiles(evidence);
        RoundRecord { n: round.len() as u64, p50_ms: quantiles.p50, p99_ms: quantiles.p99 }
    });
    let result = TenantResult {
        tenant: of.name.clone(),
        requests: service.len() as u64,
        check: check.unwrap_or(CHECK_OK).to_owned(),
        service_ms: service.quantiles(evidence),
        response_ms: response.quantiles(evidence),
        rate_per_s: per_s(rounds.iter().map(|one| one.samples.work).sum()),
        offered_per_s,
        completed_per_s: per_s(rounds.iter().map(|one| one.samples.completed as f64).sum()),
        saturated,
        host_gap_us: gaps.get(gaps.len() / 2).map(|gap| gap.as_us()),
        rounds: per_round.collect(),
    };
    let replicates = bootstrap.map(|seed| service.bootstrap(evidence, seed)).unwrap_or_default();
    SummedTenant { tenant, result, replicates }
}

/// Rounds are about equally long, so means are of their means.
fn merged(samples: &[GpuSample]) -> Option<GpuSample> {
    if samples.is_empty() {
        return None;
    }
    let all = |pick: fn(&GpuSample) -> Option<f64>| samples.iter().filter_map(pick).collect::<Vec<f64>>();
    let mean =
        |values: Vec<f64>| (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64);
    let mut throttled: Vec<String> = samples.iter().flat_map(|sample| sample.throttled.clone()).collect();
    throttled.sort_unstable();
    throttled.dedup();
    Some(GpuSample {
        power_w_mean: mean(all(|sample| sample.power_w_mean)),
        power_w_max: all(|sample| sample.power_w_max).into_iter().reduce(f64::max),
        sm_clock_mhz_mean: mean(all(|sample| sample.sm_clock_mhz_mean)),
        sm_clock_mhz_min: all(|sample| sample.sm_clock_mhz_min).into_iter().reduce(f64::min),
        throttled,
    })
}

fn names(plan: &Plan, tenants: &[usize]) -> Vec<String> {
    tenants.iter().map(|&tenant| plan.tenants[tenant].name.clone()).collect()
}

/// The rows of a co-run cell: one for each latency-sensitive tenant beside each best-effort one, with all others at work as well.
fn rows_of(plan: &Plan, cells: &[Summed<'_>], corun: &Summed<'_>) -> Vec<(usize, Row)> {
    let Some(pair) = corun.result.cell.pair else { return Vec::new() };
    let (ls, be): (Vec<usize>, Vec<usize>) =
        corun.result.cell.tenants().partition(|&one| plan.tenants[one].class == Class::LatencySensitive);
    let both = ls.iter().flat_map(|&ls| be.iter().map(move |&be| (ls, be)));
    both.map(|both| (pair, row(plan, cells, corun, both))).collect()
}

fn row(plan: &Plan, cells: &[Summed<'_>], corun: &Summed<'_>, (ls, be): (usize, usize)) -> Row {
    let place = &corun.result.cell.place;
    let mut others: Vec<usize> = corun.result.cell.tenants().filter(|&one| one != ls && one != be).collect();
    others.sort_unstable();
    let of = |kind, place: &Place, tenant: usize| {
        let mut cells =
            cells.iter().filter(|one| one.result.cell.kind == kind && one.result.cell.place == *place);
        cells.find_map(|one| sound(one, tenant))
    };
    let solo = of(CellKind::Solo, &Place::SOLO, ls);
    let alone = if place.has_alone() { of(CellKind::Alone, place, ls) } else { solo };
    let both = sound(corun, ls);
    let served = both.filter(|both| !both.result.saturated);
    let p50 = |one: Option<&SummedTenant>| one.and_then(|one| one.result.service_ms.p50);
    let p99 = |one: Option<&SummedTenant>| one.and_then(|one| one.result.service_ms.p99);
    let response = |one: Option<&SummedTenant>, pick: fn(&Quantiles) -> Option<f64>| {
        one.and_then(|one| pick(&one.result.response_ms))
    };
    let interval = |pick: fn(&Replicates) -> &Vec<f64>| {
        ratio_interval(pick(&served?.replicates), pick(&solo?.replicates))
    };
    let be_rate = corun.tenant(be).filter(|_| both.is_some()).map(|one| one.result.rate_per_s);
    let be_solo = of(CellKind::Solo, &Place::SOLO, be).map(|one| one.result.rate_per_s);
    let be_alone = of(CellKind::Alone, place, be).map(|one| one.result.rate_per_s);
    let kept = |alone: Option<f64>| be_rate.zip(alone).and_then(|(beside, alone)| be_kept(beside, alone));
    Row {
        wall: place.wall,
        setting: place.setting.to_string(),
        processes: place.processes,
        ls: plan.tenants[ls].name.clone(),
        be: plan.tenants[be].name.clone(),
        beside: names(plan, &others),
        part: 0,
        p50_ms: p50(both),
        p99_ms: p99(both),
        slowdown_p50: ratio(p50(served), p50(solo)),
        slowdown_p50_interval: interval(|replicates| &replicates.p50),
        slowdown_p99: ratio(p99(served), p99(solo)),
        slowdown_p99_interval: interval(|replicates| &replicates.p99),
        response_slowdown_p50: ratio(response(served, |times| times.p50), response(solo, |times| times.p50)),
        response_slowdown_p99: ratio(response(served, |times| times.p99), response(solo, |times| times.p99)),
        capacity_cost_p50: ratio(p50(alone), p50(solo)),
        interference_p50: ratio(p50(served), p50(alone)),
        capacity_cost_p99: ratio(p99(alone), p99(solo)),
        interference_p99: ratio(p99(served), p99(alone)),
        be_kept: kept(be_solo),
        be_kept_of_part: kept(be_alone),
        be_rate_per_s: be_rate,
        saturated: both.is_some_and(|both| both.result.saturated),
        throttled: corun.gpu.as_ref().map(|gpu| gpu.throttled.clone()).unwrap_or_default(),
        completed_per_s: both.map(|both| both.result.completed_per_s),
        error: error_of(cells, corun, ls, be),
    }
}

/// A tenant in a cell, unless the cell has an error: times of wrong results, or of a tenant that then died, mean
/// nothing. Rounds before the time was over do.
fn sound<'a>(cell: &'a Summed<'_>, tenant: usize) -> Option<&'a SummedTenant> {
    cell.tenant(tenant).filter(|_| cell.result.error.is_none())
}

/// Why a row lacks figures: its own cell's error, or that of a cell that it is held against.
fn error_of(cells: &[Summed<'_>], corun: &Summed<'_>, ls: usize, be: usize) -> Option<CellError> {
    if let Some(error) = &corun.result.error {
        return Some(error.clone());
    }
    let place = &corun.result.cell.place;
    let needed = cells.iter().map(|one| one.result).find(|one| {
        let cell = &one.cell;
        let fits = match cell.kind {
            CellKind::Solo => cell.ls == Some(ls) || cell.be == Some(be),
            CellKind::Alone => (cell.ls == Some(ls) || cell.be == Some(be)) && cell.place == *place,
            CellKind::Corun => false,
        };
        fits && one.error.is_some()
    })?;
    let error = needed.error.as_ref()?;
    let what = if needed.cell.kind == CellKind::Solo { "solo" } else { "alone" };
    Some(CellError::new(error.kind, format!("measuring {what}: {}", error.message)))
}

fn ratio(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    above.zip(below).filter(|(_, below)| *below > 0.0).map(|(above, below)| above / below)
}

fn fact(plan: &Plan, pair: usize, row: &Row) -> Option<FactRecord> {
    let pair = &plan.pairs[pair];
    let expect = pair.expect.as_ref()?;
    let measured = match expect.of {
        Ratio::Slowdown => row.slowdown_p50,
        Ratio::Interference => row.interference_p50,
    };
    Some(FactRecord {
        row: format!("{}: {} beside {}", pair.place, row.ls, row.be),
        expected: expect.ratio,
        source: expect.source.clone(),
        differs: expect.differs.clone(),
        measured,
        relative_difference: measured.map(|measured| measured / expect.ratio - 1.0),
    })
}

fn tenant(index: usize, one: &Tenant, measured: &Measured) -> TenantRecord {
    let ready = measured.ready.get(&index);
    let mut about = ready.map(|ready| ready.about.clone()).unwrap_or_default();
    // Says which of many equal machines it was: nobody's business, and different every time.
    about.remove("gpu_uuid");
    let (program, command) = match &one.program {
        Program::BuiltIn(name) => (ProgramKind::BuiltIn, vec![name.clone()]),
        Program::Command(command) => (ProgramKind::External, without_folders(command)),
    };
    TenantRecord {
        name: one.name.clone(),
        class: one.class,
        program,
        command,
        load: *measured.duties.get(&index).unwrap_or(&one.load),
        duty: one.duty,
        unit: ready.map(|ready| ready.unit.clone()),
        work: ready.map(|ready| ready.work),
        cache_policy: about.get(CACHE_POLICY).cloned(),
        about: without_path_values(about),
    }
}

/// Folders of somebody's machine say nothing about a measurement, and do not belong into a record.
fn without_folders(command: &[String]) -> Vec<String> {
    let name = |word: &String| {
        let path = Path::new(word);
        let file = path.file_name().filter(|_| path.is_absolute());
        file.map_or_else(|| word.clone(), |name| name.to_string_lossy().into_owned())
    };
    command.iter().map(name).collect()
}

fn without_path_values(about: BTreeMap<String, String>) -> BTreeMap<String, String> {
    about.into_iter().map(|(key, value)| (key, without_folders(&[value]).concat())).collect()
}

#[cfg(test)]
mod tests;
