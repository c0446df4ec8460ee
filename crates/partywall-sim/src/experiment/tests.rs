use partywall_core::catalogue::Catalogue;
use partywall_core::tenant::TenantId;

use super::*;
use crate::kernel::{Chip, Program};
use crate::load::Load;
use crate::profile;

fn experiment() -> Experiment<'static> {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    let chip = Chip::of(gpu);
    let params = Params::default();
    let participant = |class, name: &str, load: Load| {
        let program = Program::of(&profile::recorded(name).unwrap(), &chip, &chip, &params);
        let (name, demand) = (name.to_owned(), load.demand(None).unwrap());
        let objective = Some(Nanos::from_millis(5));
        Participant { workload: Workload { name, class, program, demand, objective }, share: None }
    };
    Experiment {
        gpu,
        participants: vec![
            participant(Class::LatencySensitive, "resnet50-b1", Load::Poisson { rate_per_s: 500.0 }),
            participant(Class::BestEffort, "resnet152-b32", Load::closed(2)),
        ],
        params,
        seed: 3,
        warmup: Nanos::from_millis(50),
        end: Nanos::from_secs(4),
        faults: Vec::new(),
        timeline: None,
    }
}

fn cell(experiment: &Experiment<'_>, wall: Wall) -> CellResult {
    let solo: Vec<Solo> = (0..2).map(|index| experiment.solo(index).unwrap()).collect();
    experiment.cell(Cell { wall, node: None, copies: Policy::Fair }, &solo).unwrap()
}

#[test]
fn slowdown_is_capacity_cost_times_interference() {
    let result = cell(&experiment(), Wall::GreenContexts);
    let ls = &result.tenants[0];
    let (slowdown, cost, interference) =
        (ls.slowdown_p99.unwrap(), ls.capacity_cost.unwrap(), ls.interference.unwrap());
    assert!((slowdown / (cost * interference) - 1.0).abs() < 1e-9);
    assert!(cost > 1.0 && interference >= 0.99, "{cost} {interference}");
    let kept = result.tenants[1].kept.unwrap();
    assert!((0.3..0.8).contains(&kept), "about half the SMs: {kept}");
}

#[test]
fn exclusive_is_the_measure_of_all_others() {
    let result = cell(&experiment(), Wall::Exclusive);
    let (ls, be) = (&result.tenants[0], &result.tenants[1]);
    assert_eq!((ls.slowdown_p99, ls.kept), (Some(1.0), Some(1.0)));
    assert_eq!((be.kept, be.placed.as_str()), (Some(0.0), "elsewhere"));
}

/// The faulty tenant is not on that GPU; once, this was an index out of range.
#[test]
fn a_fault_elsewhere_does_not_reach_an_exclusive_gpu() {
    let fault = Fault { tenant: TenantId(1), at: Nanos::from_secs(1), restart: Nanos::from_millis(500) };
    let experiment = Experiment { faults: vec![fault], ..experiment() };
    assert_eq!(cell(&experiment, Wall::Exclusive).tenants[0].lost, 0);
    let mps = cell(&experiment, Wall::Mps);
    assert!(mps.tenants[0].lost > 100);
    assert!(mps.tenants[0].slo_miss_rate.unwrap() > 0.1, "what is lost is missed");
}

#[test]
fn a_cell_is_the_same_every_time() {
    let text = |wall| serde_json::to_string(&cell(&experiment(), wall)).unwrap();
    assert_eq!(text(Wall::Partywall), text(Wall::Partywall));
}

#[test]
fn what_was_asked_of_an_overloaded_tenant_is_not_called_a_slowdown() {
    let mut experiment = experiment();
    experiment.participants[0].workload.demand = Load::Poisson { rate_per_s: 3000.0 }.demand(None).unwrap();
    let ls = &cell(&experiment, Wall::GreenContexts).tenants[0];
    assert!(ls.saturated && ls.slowdown_p99.is_none() && ls.rate_per_s > 100.0);
}
