use partywall_core::wall::Wall;

use super::*;
use crate::load::Load;
use crate::plan::{Expect, built_in};
use crate::record::ErrorKind;
use crate::window::Samples;

/// A round in which every request took `us`.
fn round(us: u64, n: usize) -> RoundSamples {
    let time = vec![Nanos::from_micros(us); n];
    let samples = Samples {
        service: time.clone(),
        response: time,
        work: n as f64 * 2.0,
        completed: n as u64,
        span: Nanos::from_secs(1),
        load: Served::Served,
    };
    RoundSamples { samples, check: CHECK_OK.to_owned(), host_gap: Some(Nanos(us)) }
}

/// The quick plan's first pair behind MPS: 100 us solo, 120 us alone, 300 us beside; the other at 0.75 of its rate.
fn measured() -> (Plan, Measured) {
    let mut plan = built_in(crate::plan::Size::Quick, 132, 2);
    plan.pairs.retain(|pair| pair.place == Place::plain(Wall::Mps));
    plan.pairs.truncate(1);
    plan.pairs[0].expect =
        Some(Expect { of: Ratio::Slowdown, ratio: 4.0, source: "a paper".to_owned(), differs: None });
    let cells = plan.cells().into_iter().map(|cell| {
        let us = match cell.kind {
            CellKind::Solo => 100,
            CellKind::Alone => 120,
            CellKind::Corun => 300,
        };
        let be = if cell.kind == CellKind::Corun { 600 } else { 800 };
        let mut rounds = Vec::new();
        rounds.extend(cell.ls.map(|tenant| (tenant, vec![round(us, 600); 2])));
        rounds.extend(cell.be.map(|tenant| (tenant, vec![round(1_000, be)])));
        CellResult { cell, rounds, gpu: Vec::new(), node: Vec::new(), error: None }
    });
    let measured = Measured { cells: cells.collect(), complete: true, ..Measured::default() };
    (plan, measured)
}

#[test]
fn a_row_is_its_cells_against_each_other() {
    let (plan, measured) = measured();
    let results = results(&plan, &measured);
    let [row] = &results.rows[..] else { panic!("{:?}", results.rows) };
    assert_eq!((row.p50_ms, row.p99_ms), (Some(0.3), Some(0.3)));
    assert!(row.slowdown_p50.is_some_and(|slowdown| (slowdown - 3.0).abs() < 1e-9));
    assert_eq!(row.slowdown_p99_interval, Some([3.0, 3.0]));
    let product = row.capacity_cost_p99.unwrap() * row.interference_p99.unwrap();
    assert!((product - row.slowdown_p99.unwrap()).abs() < 1e-9);
    assert_eq!((row.be_kept, row.be_rate_per_s), (Some(0.75), Some(1_200.0)));
    let [fact] = &results.facts[..] else { panic!("{:?}", results.facts) };
    assert_eq!(fact.row, "mps: vram-read beside compute");
    assert!((fact.measured.unwrap() - 3.0).abs() < 1e-9);
    assert!((fact.relative_difference.unwrap() + 0.25).abs() < 1e-9);
    let cell = &results.cells[0].results[0];
    assert_eq!((cell.requests, cell.rounds.len(), cell.host_gap_us), (1_200, 2, Some(0.1)));
    assert_eq!(cell.service_ms.p999, None, "1 200 are too few");
}

#[test]
fn a_row_says_which_cell_it_lacks() {
    let (plan, mut all) = measured();
    all.cells[0].error = Some(CellError::new(ErrorKind::Died, "it ended"));
    let row = results(&plan, &all).rows.remove(0);
    assert_eq!(row.error, Some(CellError::new(ErrorKind::Died, "measuring solo: it ended")));
    assert_eq!((row.slowdown_p50, row.capacity_cost_p50, row.interference_p50), (None, None, Some(2.5)));
    let (plan, mut all) = measured();
    for cell in &mut all.cells {
        cell.error = cell.cell.pair.map(|_| CellError::new(ErrorKind::WrongResult, "sum"));
    }
    let found = results(&plan, &all);
    assert_eq!(
        (found.rows[0].p50_ms, found.rows[0].be_kept),
        (None, None),
        "times of wrong results mean nothing"
    );
    assert_eq!(found.facts[0].measured, None);
    assert_eq!(found.cells[3].results.len(), 2, "the cell keeps them");
}

#[test]
fn a_saturated_tenant_has_times_and_no_slowdown() {
    let (mut plan, mut all) = measured();
    plan.tenants[0].load = Load::Periodic { period_ns: 200_000 };
    let corun = all.cells.last_mut().unwrap();
    corun.rounds[0].1[1].samples.load = Served::Saturated { completed_per_s: 3_000.0 };
    let found = results(&plan, &all);
    let row = &found.rows[0];
    assert!(row.saturated && row.p50_ms.is_some() && row.be_kept.is_some());
    assert_eq!((row.slowdown_p50, row.slowdown_p99_interval, row.interference_p99), (None, None, None));
    assert_eq!(found.cells.last().unwrap().results[0].offered_per_s, Some(5_000.0));
}

#[test]
fn records_name_no_folders() {
    let (mut plan, all) = measured();
    let command = ["/opt/conda/bin/python3", "workloads/tenant.py", "--data", "/mnt/models/x.bin"];
    plan.tenants[0].program = Program::Command(command.map(str::to_owned).to_vec());
    let tenant = &results(&plan, &all).tenants[0];
    assert_eq!(tenant.command, ["python3", "workloads/tenant.py", "--data", "x.bin"]);
}
