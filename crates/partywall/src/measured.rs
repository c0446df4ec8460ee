//! A measured record as a report: the same table and page as the demo's.

use std::borrow::Cow;

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

use crate::report::{Cell, Origin, Report, Section};

/// What `record` says, one section per pair of tenants in the order of its rows.
pub(crate) fn report(record: &Record) -> Report {
    let gpu = record.environment.gpu.clone().unwrap_or_default();
    let id = gpu.id.clone().unwrap_or_else(|| "unknown".to_owned());
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for row in &record.rows {
        if !pairs.contains(&(row.ls.as_str(), row.be.as_str())) {
            pairs.push((&row.ls, &row.be));
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
        sections: pairs.into_iter().map(|(ls, be)| section(record, ls, be)).collect(),
        errors: Vec::new(),
        errors_source: String::new(),
        measured_on: id,
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
        Load::Poisson { rate_per_s, .. } => format!("Poisson arrivals, {rate_per_s} a second"),
    };
    let policy = tenant.cache_policy.as_ref().map_or_else(String::new, |policy| format!("; {policy}"));
    format!("{} ({}): {load}{policy}", tenant.name, tenant.class)
}

fn section(record: &Record, ls: &str, be: &str) -> Section {
    let of_pair = record.rows.iter().filter(|row| row.ls == ls && row.be == be);
    let exclusive = solo(record, ls).map(|own| {
        let mut alone = tenant(record, Class::LatencySensitive, ls, Some(own), Some(own), Some(own), None);
        alone.slowdown_p99 = own.service_ms.p99.map(|_| 1.0);
        Cell::from(cell_result(Wall::Exclusive, vec![alone], None))
    });
    let mut cells: Vec<Cell> = exclusive.into_iter().collect();
    let mut lost = Vec::new();
    for row in of_pair {
        let corun = find(record, row, CellKind::Corun, Some(ls), Some(be));
        let nothing = corun.is_none_or(|cell| cell.results.is_empty());
        match (&row.error, nothing) {
            (Some(error), true) => {
                let wall = format!("{} {}", row.wall, setting(row));
                let what = if error.kind == ErrorKind::Skipped { "not measured" } else { "no figures" };
                lost.push((wall.trim_end().to_owned(), format!("{what}: {}", happened(error))));
            }
            _ => cells.push(cell(record, row, corun)),
        }
    }
    Section {
        id: format!("{ls}-{be}"),
        title: format!("{ls} beside {be}"),
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
    let ls_solo = solo(record, ls);
    let be_solo = solo(record, be);
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
    if !row.throttled.is_empty() {
        notes.push(format!("throttled: {}", row.throttled.join(", ")));
    }
    Cell { result: cell_result(row.wall, vec![sensitive, effort], corun), setting: setting(row), notes }
}

fn find<'a>(
    record: &'a Record,
    row: &Row,
    kind: CellKind,
    ls: Option<&str>,
    be: Option<&str>,
) -> Option<&'a CellRecord> {
    record.cells.iter().find(|cell| {
        cell.kind == kind
            && cell.wall == row.wall
            && cell.setting == row.setting
            && cell.processes == row.processes
            && cell.ls.as_deref() == ls
            && cell.be.as_deref() == be
    })
}

fn solo<'a>(record: &'a Record, name: &str) -> Option<&'a Measured> {
    record.cells.iter().filter(|cell| cell.kind == CellKind::Solo).find_map(|cell| result_of(cell, name))
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
