//! A measured record as a report: the same table and page as the demo's.

mod modelled;

use std::borrow::Cow;
use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::SmCount;
use partywall_core::wall::Wall;
use partywall_measure::load::Load;
use partywall_measure::record::{
    CellError, CellKind, CellRecord, ErrorKind, Processes, Quantiles, Record, Row, TenantRecord,
    TenantResult as Measured,
};
use partywall_sim::experiment::{CellResult, TenantResult};
use partywall_sim::metrics::Percentiles;

pub(crate) use modelled::modelled;

use crate::report::{Cell, Modelled, Origin, Report, Section};

/// What `record` says, one section per pair of tenants in the order of its rows.
pub(crate) fn report(record: &Record) -> Report {
    report_beside(record, &BTreeMap::new())
}

/// The same with what the model says of some rows, by their indices.
pub(crate) fn report_beside(record: &Record, modelled: &BTreeMap<usize, Modelled>) -> Report {
    let gpu = record.environment.gpu.clone().unwrap_or_default();
    let id = gpu.id.clone().unwrap_or_else(|| "unknown".to_owned());
    let mut pairs: Vec<Together<'_>> = Vec::new();
    for row in &record.rows {
        if !pairs.contains(&Together::of(row)) {
            pairs.push(Together::of(row));
        }
    }
    Report {
        title: format!("{}: what neighbours on one GPU do to each other", record.name),
        gpu_id: id.clone(),
        gpu_name: if gpu.name.is_empty() { "no GPU".to_owned() } else { gpu.name.clone() },
        sms: SmCount(gpu.sms.unwrap_or(0)),
        origin: match (record.pretended, record.simulated) {
            (true, _) => Origin::Pretended,
            (false, true) => Origin::SimulatedGpu,
            (false, false) => Origin::Measured,
        },
        seed: record.settings.seed,
        command: record.command.clone(),
        sources: sources(record),
        sections: pairs.into_iter().map(|pair| section(record, pair, modelled)).collect(),
        errors: Vec::new(),
        errors_source: String::new(),
        measured_on: id,
    }
}

/// Who was at work at the same time.
#[derive(Clone, Copy, PartialEq)]
struct Together<'a> {
    ls: &'a str,
    be: &'a str,
    beside: &'a [String],
}

impl<'a> Together<'a> {
    fn of(row: &'a Row) -> Self {
        Self { ls: &row.ls, be: &row.be, beside: &row.beside }
    }
}

/// When, on what, and how: a line each.
fn sources(record: &Record) -> Vec<String> {
    let settings = &record.settings;
    let mut lines = vec![format!(
        "Begun {} and done after {:.0} s{}",
        record.started,
        record.took_s,
        if record.complete { "" } else { "; the time limit ended it before all cells were measured" }
    )];
    if let Some(gpu) = &record.environment.gpu {
        let known = |name: &str, value: Option<String>| value.map(|value| format!("{name} {value}"));
        let parts = [
            Some(gpu.name.clone()),
            known("driver", gpu.driver.clone()),
            known("CUDA", gpu.cuda.clone()),
            known("PCIe", gpu.pcie.clone()),
            gpu.mig.map(|on| if on { "MIG on" } else { "MIG off" }.to_owned()),
            known("compute mode", gpu.compute_mode.clone()),
        ];
        lines.push(parts.into_iter().flatten().collect::<Vec<_>>().join(", "));
    }
    lines.push(format!(
        "Each cell in {} rounds, {} s of warm-up, then at most {} s or {} requests of the latency-sensitive tenant",
        settings.rounds, settings.warmup_s, settings.seconds_max, settings.requests_wanted
    ));
    for part in &record.parts {
        let cut = if part.complete { "" } else { ", ended by its time limit" };
        lines.push(format!(
            "Part {}: begun {}, {:.0} s{cut}: {}",
            part.name, part.started, part.took_s, part.command
        ));
    }
    lines.extend(record.tenants.iter().map(tenant_line));
    for cell in record.cells.iter().filter(|cell| cell.kind != CellKind::Corun) {
        if let Some(error) = &cell.error {
            let who = cell.ls.as_deref().or(cell.be.as_deref()).unwrap_or("nobody");
            lines.push(format!(
                "No figures of {who} alone, {}: {}",
                format!("{} {}", cell.wall, cell.setting).trim_end(),
                happened(error)
            ));
        }
    }
    lines
}

fn tenant_line(tenant: &TenantRecord) -> String {
    let load = match tenant.load {
        Load::Closed { pause_ns, depth } => {
            format!("closed loop, {depth} at a time, pause {} us", pause_ns as f64 / 1e3)
        }
        Load::Periodic { period_ns } => format!("a request every {} us", period_ns as f64 / 1e3),
        Load::Poisson { rate_per_s, .. } => {
            let duty = tenant.duty.map_or_else(String::new, |duty| format!(", a duty of {duty}"));
            format!("Poisson arrivals, {rate_per_s:.1} a second{duty}")
        }
    };
    let policy = tenant.cache_policy.as_ref().map_or_else(String::new, |policy| format!("; {policy}"));
    format!("{} ({}): {load}{policy}", tenant.name, tenant.class)
}

fn section(record: &Record, together: Together<'_>, modelled: &BTreeMap<usize, Modelled>) -> Section {
    let Together { ls, be, beside } = together;
    let of_pair = record.rows.iter().enumerate().filter(|(_, row)| Together::of(row) == together);
    // Parts of a measurement have one each; the first stands for all.
    let part = of_pair.clone().map(|(_, row)| row.part).min().unwrap_or(0);
    let exclusive = solo(record, part, ls).map(|own| {
        let mut alone = tenant(record, Class::LatencySensitive, ls, Some(own), Some(own), Some(own), None);
        alone.slowdown_p99 = own.service_ms.p99.map(|_| 1.0);
        Cell::from(cell_result(Wall::Exclusive, vec![alone], None))
    });
    let mut cells: Vec<Cell> = exclusive.into_iter().collect();
    let mut lost = Vec::new();
    for (index, row) in of_pair {
        let corun = find(record, row, CellKind::Corun, Some(ls), Some(be));
        let nothing = corun.is_none_or(|cell| cell.results.is_empty());
        match (&row.error, nothing) {
            (Some(error), true) => {
                let wall = format!("{} {}", row.wall, setting(row));
                let what = if error.kind == ErrorKind::Skipped { "not measured" } else { "no figures" };
                lost.push((wall.trim_end().to_owned(), format!("{what}: {}", happened(error))));
            }
            _ => cells.push(Cell { modelled: modelled.get(&index).copied(), ..cell(record, row, corun) }),
        }
    }
    Section {
        id: [&[ls.to_owned(), be.to_owned()], beside].concat().join("-"),
        title: if beside.is_empty() {
            format!("{ls} beside {be}")
        } else {
            format!("{ls} beside {be}, with {}", beside.join(" and "))
        },
        description: String::new(),
        ls: 0,
        be: Some(1),
        objective: None,
        cells,
        // What a machine does not have was skipped, and is lost with the reason.
        unavailable: Vec::new(),
        lost,
    }
}

/// What ended a cell, in a line: of a message of several the first, for frameworks go on with advice. The record has it all.
fn happened(error: &CellError) -> String {
    let line = error.message.lines().next().unwrap_or_default().trim();
    if error.kind == ErrorKind::GpuFault { format!("the GPU failed {line}") } else { line.to_owned() }
}

/// A wall's setting as reports show it: one process is what has to be said, since tenants are processes.
fn setting(row: &Row) -> String {
    let one = row.processes == Processes::One && row.wall == Wall::GreenContexts;
    match (row.setting.as_str(), one) {
        (setting, false) => setting.to_owned(),
        ("", true) => "one process".to_owned(),
        (setting, true) => format!("{setting} one process"),
    }
}

fn cell(record: &Record, row: &Row, corun: Option<&CellRecord>) -> Cell {
    let result = |name: &str| corun.and_then(|cell| result_of(cell, name));
    let part = |kind_ls: Option<&str>, kind_be: Option<&str>| {
        find(record, row, CellKind::Alone, kind_ls, kind_be)
            .and_then(|cell| result_of(cell, kind_ls.or(kind_be).unwrap_or_default()))
    };
    let (ls, be) = (row.ls.as_str(), row.be.as_str());
    let ls_solo = solo(record, row.part, ls);
    let be_solo = solo(record, row.part, be);
    let mut sensitive =
        tenant(record, Class::LatencySensitive, ls, result(ls), part(Some(ls), None), ls_solo, None);
    sensitive.slowdown_p99 = row.slowdown_p99;
    sensitive.capacity_cost = row.capacity_cost_p99;
    sensitive.interference = row.interference_p99;
    let effort =
        tenant(record, Class::BestEffort, be, result(be), part(None, Some(be)), be_solo, row.be_kept);
    let mut notes = Vec::new();
    if let Some(error) = &row.error {
        notes.push(happened(error));
    }
    notes.extend(corun.and_then(node_note));
    if !row.throttled.is_empty() {
        notes.push(format!("throttled: {}", row.throttled.join(", ")));
    }
    Cell {
        result: cell_result(row.wall, vec![sensitive, effort], corun),
        setting: setting(row),
        notes,
        response_slowdown: row.response_slowdown_p99.or(row.response_slowdown_p50),
        modelled: None,
    }
}

/// What the node says of its tenants, in a line: what it held back, how graphs went, and what it could not promise.
fn node_note(corun: &CellRecord) -> Option<String> {
    let mut said = Vec::new();
    for one in &corun.node {
        // Records of earlier versions have what stood among what was counted.
        let count = |what: &str| {
            let known = one.stood.get(what).or_else(|| one.counted.get(what));
            known.copied().filter(|count| *count > 0)
        };
        let held = count("held_ns").map(|ns| format!("{} held {:.1} s", one.tenant, ns as f64 / 1e9));
        said.extend(held);
        said.extend(count("graphs_cut").map(|cut| format!("{} graphs of {} cut", cut, one.tenant)));
        said.extend(count("graphs_whole").map(|whole| format!("{} whole", whole)));
        if one.guaranteed == Some(false) {
            said.push(format!("{} not guaranteed: {}", one.tenant, one.reasons.join(", ")));
        }
    }
    (!said.is_empty()).then(|| said.join(", "))
}

/// The cell that a row is of, or is held against.
fn find<'a>(
    record: &'a Record,
    row: &Row,
    kind: CellKind,
    ls: Option<&str>,
    be: Option<&str>,
) -> Option<&'a CellRecord> {
    let takes_part = |cell: &CellRecord, name: &str| {
        let named = [&cell.ls, &cell.be].into_iter().flatten().chain(&cell.beside);
        named.into_iter().any(|other| other == name)
    };
    let members = |cell: &CellRecord| {
        let wanted = ls.into_iter().chain(be);
        if kind == CellKind::Corun {
            let mut wanted = wanted.chain(row.beside.iter().map(String::as_str));
            wanted.all(|name| takes_part(cell, name)) && cell.beside.len() == row.beside.len()
        } else {
            cell.ls.as_deref() == ls && cell.be.as_deref() == be
        }
    };
    record.cells.iter().find(|cell| {
        cell.kind == kind
            && cell.wall == row.wall
            && cell.setting == row.setting
            && cell.processes == row.processes
            && cell.part == row.part
            && members(cell)
    })
}

fn solo<'a>(record: &'a Record, part: usize, name: &str) -> Option<&'a Measured> {
    let solo = record.cells.iter().filter(|cell| cell.kind == CellKind::Solo && cell.part == part);
    solo.into_iter().find_map(|cell| result_of(cell, name))
}

fn result_of<'a>(cell: &'a CellRecord, name: &str) -> Option<&'a Measured> {
    cell.results.iter().find(|result| result.tenant == name)
}

fn cell_result(wall: Wall, tenants: Vec<TenantResult>, corun: Option<&CellRecord>) -> CellResult {
    let gpu = corun.and_then(|cell| cell.gpu.clone()).unwrap_or_default();
    CellResult {
        wall,
        copies: "copy-fifo",
        tenants,
        power_w: gpu.power_w_mean.unwrap_or(f64::NAN),
        clock_mhz: gpu.sm_clock_mhz_mean.unwrap_or(f64::NAN),
        clock_min_mhz: gpu.sm_clock_mhz_min.unwrap_or(f64::NAN),
        throttled: f64::from(u8::from(!gpu.throttled.is_empty())),
        kernels: 0,
        timeline: None,
    }
}

fn tenant(
    record: &Record,
    class: Class,
    name: &str,
    corun: Option<&Measured>,
    part: Option<&Measured>,
    solo: Option<&Measured>,
    kept: Option<f64>,
) -> TenantResult {
    let of = |result: Option<&Measured>, of: fn(&Measured) -> Quantiles| {
        result.map(|result| percentiles(of(result), result.requests)).unwrap_or_default()
    };
    let unit =
        record.tenants.iter().find(|tenant| tenant.name == name).and_then(|tenant| tenant.unit.clone());
    TenantResult {
        name: name.to_owned(),
        class,
        placed: String::new(),
        service: of(corun, |result| result.service_ms),
        response: of(corun, |result| result.response_ms),
        solo: of(solo, |result| result.service_ms),
        partition: of(part, |result| result.service_ms),
        slowdown_p99: None,
        capacity_cost: None,
        interference: None,
        slo_miss_rate: None,
        rate_per_s: corun.map_or(0.0, |result| result.rate_per_s),
        unit: unit.map_or(Cow::Borrowed("requests"), Cow::Owned),
        kept,
        saturated: corun.is_some_and(|result| result.saturated),
        lost: 0,
        sms_mean: f64::NAN,
        cdf: Vec::new(),
    }
}

fn percentiles(quantiles: Quantiles, n: u64) -> Percentiles {
    Percentiles {
        n,
        p50_ms: quantiles.p50,
        p90_ms: quantiles.p90,
        p99_ms: quantiles.p99,
        p999_ms: quantiles.p999,
        max_ms: quantiles.max,
        mean_ms: quantiles.mean,
    }
}

#[cfg(test)]
mod tests;
