//! The tenants that a newcomer without a GPU starts first.

use std::fs;

use super::home::Home;
use crate::patience::until;
use crate::{recorded, text};

/// What the example does, until a file is there instead of for ten seconds, and with copies of 16 MiB instead of 512.
fn shortened(home: &Home) -> (String, std::path::PathBuf) {
    let example = fs::read_to_string(recorded("examples/two-tenants.toml")).unwrap();
    let gate = home.path().join("gate");
    let wait = format!("until [ -e {} ]; do sleep 0.02; done", gate.display());
    let mut changed = example;
    for (from, to, times) in
        [("sleep 10;", format!("{wait};").as_str(), 2), ("copies-h2d:be", "copies-h2d:be,size=16MiB", 1)]
    {
        assert_eq!(changed.matches(from).count(), times, "the example has another `{from}`");
        changed = changed.replace(from, to);
    }
    (home.file(&changed), gate)
}

#[test]
fn the_example_with_two_tenants_works_without_a_gpu() {
    let home = Home::new("example");
    let (file, gate) = shortened(&home);
    let shown = home.path().join("shown");
    // As `partywall --gpu sim:h200 up FILE`.
    let mut up = home.spawn_into(&["up", &file], &shown);
    home.answers();
    // What the example says to do meanwhile.
    until("both copy", || {
        let copied = |name: &str| {
            let known = home.partywall(&["coverage", name, "--json"]).output().unwrap();
            let known: serde_json::Value = serde_json::from_slice(&known.stdout).unwrap_or_default();
            let there = &known["host_to_device"];
            ["copies", "direct_copies"]
                .iter()
                .any(|kind| there[*kind].as_u64().is_some_and(|count| count > 2))
        };
        copied("service") && copied("batch")
    });
    assert!(home.succeeds(&["coverage", "service"]).contains("cuMemcpyHtoDAsync"));
    for (name, memory) in [("service", "4GiB"), ("batch", "8GiB")] {
        let report = home.report(name);
        assert_eq!((&report["memory"], &report["facts"]["guaranteed"]), (&memory.into(), &true.into()));
    }
    fs::write(gate, "").unwrap();
    assert_eq!(up.wait().code(), Some(0));
    let shown = text(&fs::read(shown).unwrap());
    for name in ["service", "batch"] {
        let said =
            shown.lines().filter_map(|line| line.split_once(" | ")).find(|(who, _)| who.trim() == name);
        let done: serde_json::Value = serde_json::from_str(said.unwrap().1).unwrap();
        assert_eq!(done["done"]["check"], "ok", "{shown}");
        assert!(done["done"]["requests"].as_u64().unwrap() > 0, "{shown}");
    }
    home.nothing_runs();
    assert_eq!(home.partywall(&["ps"]).output().unwrap().status.code(), Some(1), "the node has ended");
}
