//! Many at once that all use the GPU: 64 tenants, and one of 100 processes.

use std::fs;

use super::steps::{Held, Stage, pages};
use crate::patience::until;
use crate::text;

/// More than goes straight to the driver, and not much: there are many.
const BYTES: u64 = 128 << 10;
const ALLOCATE: &str = "allocate=131072";

/// As fast as an H200's.
const LINK_GB_S: f64 = 55.0;

#[test]
fn sixty_four_tenants_allocate_and_copy_at_once() {
    let stage = Stage::new("many-gpu", LINK_GB_S);
    let node = stage.home.node();
    let gate = stage.home.path().join("gate");
    let when = format!("when={}", gate.display());
    let steps = ["init", "context", ALLOCATE, &when, "copy", "copy", "copy", "stay"];
    let names: Vec<String> = (0..64).map(|number| format!("t{number}")).collect();
    let tenants = names.iter().map(|name| stage.tenant(name, "2GiB", &steps, "restart = \"never\""));
    stage.up(&tenants.collect::<String>());
    for name in &names {
        stage.until_said(name, "ready", 1);
    }
    fs::write(&gate, "").unwrap();
    for name in &names {
        stage.until_said(name, "copy", 3);
    }
    assert_eq!(pages(node.pid()), 64);
    let reports = stage.home.reports();
    assert_eq!(reports.len(), 64);
    for report in &reports {
        assert_eq!(report["activity"], "running", "{report}");
        let facts = &report["facts"];
        assert_eq!((&facts["processes"], &facts["guaranteed"]), (&1.into(), &true.into()), "{report}");
        assert!(Held::of(report).bytes > BYTES, "{report}");
    }
    stage.leaves_nothing(node);
}

#[test]
fn a_hundred_children_allocate_and_copy_for_one_tenant() {
    let stage = Stage::new("forks-gpu", LINK_GB_S);
    let node = stage.home.node();
    // First children that come to their end by themselves.
    let steps = ["children=100", "init", "context", ALLOCATE, "copy"];
    let output = stage.run(&steps).output().unwrap();
    let said = text(&output.stdout);
    assert!(said.ends_with("0 of 100 children ended badly\n"), "{said}{}", text(&output.stderr));
    assert_eq!(output.status.code(), Some(0));
    until("it is forgotten", || stage.home.reports().is_empty());
    let gate = stage.home.path().join("gate");
    let when = format!("when={}", gate.display());
    // And then children that are all there at once.
    let steps = ["children=100", "init", "context", ALLOCATE, &when, "copy", "copy", "stay"];
    stage.up(&stage.tenant("forks", "120GiB", &steps, "restart = \"never\""));
    stage.until_said("forks", "ready", 100);
    fs::write(&gate, "").unwrap();
    stage.until_said("forks", "copy", 200);
    let held = stage.held("forks");
    assert!(held.processes == 100 && held.bytes > 100 * BYTES, "{held:?}");
    assert_eq!(pages(node.pid()), 100);
    stage.home.succeeds(&["stop", "forks"]);
    stage.home.nothing_runs();
    stage.until_held("forks", Held::NOTHING);
    stage.leaves_nothing(node);
}
