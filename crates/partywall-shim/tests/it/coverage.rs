//! What is reported about the functions that a program uses.

use std::fs;
use std::sync::atomic::Ordering;

use partywall_shim_api::frame::{Disposition, ToNode, ToShim};
use tempfile::TempDir;

use crate::stage::{Node, Program, next};

#[test]
fn each_process_adds_its_table_to_the_file() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("coverage");
    let commands = ["open", "init", "find:cuParamSetf", "child", "init", "ask:cuNewerThanTheList:1:0", "end"];
    Program::preloaded(&commands).env("PARTYWALL_COVERAGE", &file).lines();
    let text = fs::read_to_string(&file).unwrap();
    let tables: Vec<&str> = text.split("# process ").skip(1).collect();
    assert_eq!(tables.len(), 2, "{text}");
    // The child ends first.
    let lines: Vec<&str> = tables[0].lines().collect();
    assert!(lines[0].ends_with("(program): 4 functions of the driver, NOT GUARANTEED: 1 unknown"), "{text}");
    let expected = [
        "enforced\tcuGetProcAddress_v2",
        "enforced\tcuInit",
        "passed\tcuParamSetf",
        "unknown\tcuNewerThanTheList",
    ];
    assert_eq!(lines[1..], expected);
    let lines: Vec<&str> = tables[1].lines().collect();
    assert!(lines[0].ends_with("(program): 2 functions of the driver, every one is known"), "{text}");
    assert_eq!(lines[1..], ["enforced\tcuInit", "passed\tcuParamSetf"]);
}

#[test]
fn a_dash_is_standard_error_and_nothing_used_is_nothing_said() {
    let (_, _, err) = Program::preloaded(&["open", "init"]).env("PARTYWALL_COVERAGE", "-").outcome();
    assert!(err.contains("1 functions of the driver") && err.ends_with("enforced\tcuInit\n"), "{err}");
    let (_, _, err) = Program::preloaded(&["files"]).env("PARTYWALL_COVERAGE", "-").outcome();
    assert_eq!(err, "");
    let (success, _, err) =
        Program::preloaded(&["open", "init"]).env("PARTYWALL_COVERAGE", "/no/such/folder/x").outcome();
    assert!(success && err.starts_with("partywall: PARTYWALL_COVERAGE=/no/such/folder/x: "), "{err}");
}

#[test]
fn the_node_is_told_on_request_and_sees_the_counts_at_once() {
    let node = Node::new();
    let commands =
        ["open", "init", "find:cuParamSetf", "find:cuNewerThanTheList", "wait", "find:cuLaunchKernel"];
    let mut program = Program::preloaded(&commands).under(&node).start();
    let tenant = node.welcome();
    program.until("waiting");
    let shim = &tenant.page.shim;
    let counts = || {
        let each =
            [&shim.covered_enforced, &shim.covered_passed, &shim.covered_refused, &shim.covered_unknown];
        each.map(|count| count.load(Ordering::Relaxed))
    };
    assert_eq!(counts(), [1, 1, 0, 1]);
    tenant.socket.send(&ToShim::AskCoverage.encode(), &[]).unwrap();
    let told = |disposition, names: &str| ToNode::Coverage { disposition, names: names.to_owned() };
    assert_eq!(next(&tenant.socket), Some(told(Disposition::Enforced, "cuInit")));
    assert_eq!(next(&tenant.socket), Some(told(Disposition::Passed, "cuParamSetf")));
    assert_eq!(next(&tenant.socket), Some(told(Disposition::Unknown, "cuNewerThanTheList")));
    program.go();
    // What came later is told by itself, at the latest when the process ends.
    assert_eq!(next(&tenant.socket), Some(told(Disposition::Passed, "cuLaunchKernel")));
    assert_eq!(next(&tenant.socket), None);
    assert_eq!(counts(), [1, 2, 0, 1]);
    assert!(program.end());
}
