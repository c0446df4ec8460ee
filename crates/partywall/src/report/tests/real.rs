//! A report of real experiments, short ones.

use partywall_core::catalogue::Catalogue;
use partywall_core::copy_scheduler::Policy;
use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_core::wall::Wall;
use partywall_sim::experiment::{Cell, Experiment, Participant, Solo};
use partywall_sim::kernel::{Chip, Program};
use partywall_sim::load::Load;
use partywall_sim::machine::Workload;
use partywall_sim::params::Params;
use partywall_sim::profile;

use super::super::{Report, Section};

fn participants(chip: &Chip, params: &Params) -> Vec<Participant> {
    let program = |name: &str| Program::of(&profile::recorded(name).unwrap(), chip, chip, params);
    let bursty = Load::Bursty {
        rate_per_s: 250.0,
        burst_factor: 4.0,
        burst: Nanos::from_millis(20),
        calm: Nanos::from_millis(60),
    };
    let closed = Load::closed(2);
    let workload = |name: &str, class, load: &Load, objective| Participant {
        workload: Workload {
            name: name.to_owned(),
            class,
            program: program(name),
            demand: load.demand(None).unwrap(),
            objective,
        },
        share: None,
    };
    vec![
        workload("resnet50-b1", Class::LatencySensitive, &bursty, Some(Nanos::from_millis(5))),
        workload("resnet152-b32", Class::BestEffort, &closed, None),
    ]
}

/// Every wall of the H200 with an answer, for so much virtual time.
fn real(end: Nanos) -> Report {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    let params = Params::default();
    let window = (Nanos::from_millis(300), Nanos::from_micros(100), 600);
    let experiment = Experiment {
        gpu,
        participants: participants(&Chip::of(gpu), &params),
        params,
        seed: 1,
        warmup: Nanos::from_millis(20),
        end,
        faults: Vec::new(),
        timeline: Some(window),
    };
    let solo: Vec<Solo> = (0..2).map(|i| experiment.solo(i).unwrap()).collect();
    let mut section = Section {
        id: "resnet50-resnet152".to_owned(),
        title: "ResNet-50 beside ResNet-152".to_owned(),
        description: "ResNet-50, batch 1, gets requests in bursts; ResNet-152, batch 32, always has work."
            .to_owned(),
        ls: 0,
        be: Some(1),
        objective: Some(Nanos::from_millis(5)),
        cells: Vec::new(),
        unavailable: Vec::new(),
        lost: Vec::new(),
    };
    for wall in Wall::ALL {
        match experiment.cell(Cell { wall, node: None, copies: Policy::Fifo }, &solo) {
            Ok(cell) => section.cells.push(cell.into()),
            Err(error) => section.unavailable.push((wall, error.to_string())),
        }
    }
    Report { gpu_name: gpu.name.clone(), sms: gpu.sms(), sections: vec![section], ..super::report() }
}

#[test]
fn a_real_run_fills_every_part() {
    let report = real(Nanos::from_millis(2_000));
    let html = report.html();
    assert!(report.sections[0].cells.len() >= 8, "{:?}", report.sections[0].unavailable);
    assert_eq!(html.matches("<svg").count(), 3);
    let rows = report.rows();
    let exclusive = rows.iter().find(|row| row.wall == Wall::Exclusive).unwrap();
    assert_eq!(exclusive.be_kept, Some(0.0));
    assert!(rows.iter().any(|row| row.be_kept.is_some_and(|kept| kept > 0.1)));
    assert_eq!(super::figures::check(&report), 3);
}
