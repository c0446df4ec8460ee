//! Where memory lives, found by the program on simulated GPUs.

use std::process::{Command, Output};

use crate::{json, text};

fn map(gpu: &str, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(["--gpu", gpu, "vram", "map", "--memory", "256MiB", "--checks", "3000"]).args(more);
    command.output().unwrap()
}

#[test]
fn sides_and_slices_are_found() {
    let report = json(&map("sim:h200", &["--json", "--slices", "4MiB"]));
    let sides = &report["sides"];
    assert_eq!((&report["simulated"], &report["pages"]), (&true.into(), &128.into()));
    assert_eq!((&sides["mask"], &sides["granularity_bytes"]), (&0xab000.into(), &4096.into()));
    // On the simulated GPU groups are on one side and the other in turn.
    assert_eq!(sides["groups"], "01".repeat(33));
    assert_eq!(sides["pages"].as_str().unwrap().len(), 128);
    assert_eq!((&sides["checked"], &sides["unsure"]), (&3000.into(), &0.into()));
    let slices = &report["slices"];
    assert_eq!((&slices["count"], &slices["of_sides"]), (&94.into(), &serde_json::json!([47, 47])));
    assert_eq!(slices["checked"], 3000);
    let shown = text(&map("sim:h200", &[]).stdout);
    assert!(
        shown.contains("two sides, in turn every 4KiB: the parity of the bits 12, 13, 15, 17, 19"),
        "{shown}"
    );
}

#[test]
fn a_gpu_with_one_side_has_one() {
    let report = json(&map("sim:l40s", &["--json"]));
    assert_eq!((&report["sides"], &report["slices"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert!(report["apart"].as_f64().unwrap() < 2.0, "{report}");
    assert!(text(&map("sim:l40s", &[]).stdout).contains("one side"));
}

#[test]
fn what_cannot_be_looked_at_is_refused() {
    for (more, part) in [
        (["--memory", "1TiB"], "are free; ask for"),
        (["--memory", "1MiB"], "ask for 2MiB at least"),
        (["--slices", "1GiB"], "--slices: from 2MiB to as much memory as is looked at"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
        let base = if more[0] == "--slices" { vec!["--memory", "256MiB"] } else { Vec::new() };
        let output =
            command.args(["--gpu", "sim:h200", "vram", "map"]).args(base).args(more).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}
