//! Every way in which a program can look a function up.

use std::sync::atomic::Ordering;

use crate::stage::{Node, Program};

const SHIM: &str = "libpartywall_shim.so";
const DRIVER: &str = "libcuda.so.1";

/// What a program prints that has opened both.
fn looked_up(commands: &[&str]) -> Vec<String> {
    let opened = ["open", "open-real"];
    Program::preloaded(&[&opened, commands].concat()).lines().split_off(2)
}

#[test]
fn a_hook_is_found_by_name_and_by_path() {
    let lines =
        looked_up(&["find:cuLaunchKernel", "find-real:cuLaunchKernel", "find-version:cuLaunchKernel"]);
    let expected = [
        format!("find cuLaunchKernel {SHIM} fine"),
        format!("find-real cuLaunchKernel {SHIM}"),
        format!("find-version cuLaunchKernel {SHIM}"),
    ];
    assert_eq!(lines, expected);
}

/// What is passed through costs nothing: the program gets the real function.
#[test]
fn what_has_no_hook_is_the_real_function() {
    let lines = looked_up(&["find:cuParamSetf", "find-real:cuParamSetf", "ask:cuParamSetf:13000:0"]);
    let expected = [
        format!("find cuParamSetf {DRIVER} fine"),
        format!("find-real cuParamSetf {DRIVER}"),
        format!("ask cuParamSetf 0 {DRIVER}"),
    ];
    assert_eq!(lines, expected);
}

#[test]
fn what_the_driver_does_not_have_is_not_there() {
    let lines = looked_up(&["find:cuGreenCtxCreate", "find:cuNoSuchFunction", "find:malloc"]);
    assert_eq!(lines[0], "find cuGreenCtxCreate nothing error");
    assert_eq!(lines[1], "find cuNoSuchFunction nothing error");
    assert!(lines[2].starts_with("find malloc libc.so") && lines[2].ends_with("fine"), "{}", lines[2]);
}

#[test]
fn what_only_a_newer_driver_has_is_given_as_it_is() {
    let lines = looked_up(&["find:cuNewerThanTheList", "find-real:cuNewerThanTheList"]);
    let expected =
        [format!("find cuNewerThanTheList {DRIVER} fine"), format!("find-real cuNewerThanTheList {DRIVER}")];
    assert_eq!(lines, expected);
}

/// The program's own scope decides: the library was loaded before all others, and after the program there is nothing else.
#[test]
fn lookups_that_depend_on_the_caller_are_the_loaders() {
    let lines = looked_up(&[
        "find-default:cuLaunchKernel",
        "find-next:cuLaunchKernel",
        "find-next:malloc",
        "find-default:main",
        "find:dlsym",
    ]);
    assert_eq!(lines[0], format!("find-default cuLaunchKernel {SHIM}"));
    assert_eq!(lines[1], format!("find-next cuLaunchKernel {SHIM}"));
    assert!(lines[2].starts_with("find-next malloc libc.so"), "{}", lines[2]);
    assert!(lines[3].starts_with("find-default main "), "{}", lines[3]);
    assert_eq!(lines[4], format!("find dlsym {SHIM} fine"));
}

/// The driver chooses by version and flags; the hook is the one of what it chose.
#[test]
fn the_driver_is_asked_first_and_its_choice_is_kept() {
    let lines = looked_up(&[
        "ask:cuLaunchKernel:13000:0",
        "last",
        "ask:cuLaunchKernel:13000:2",
        "last",
        "ask:cuLaunchKernel:6000:2",
        "last",
        "ask-v1:cuLaunchKernel:11030:2",
        "last",
    ]);
    let mut expected = Vec::new();
    for (asked, called) in [
        ("ask", "cuLaunchKernel"),
        ("ask", "cuLaunchKernel_ptsz"),
        ("ask", "cuLaunchKernel"),
        ("ask-v1", "cuLaunchKernel_ptsz"),
    ] {
        expected.push(format!("{asked} cuLaunchKernel 0 {SHIM}"));
        expected.extend(["launch 0".to_owned(), format!("last {called}")]);
    }
    assert_eq!(lines, expected);
}

#[test]
fn answers_that_are_no_functions_stay_as_they_are() {
    let lines = looked_up(&[
        "ask::13000:0",
        "ask:cuNoSuchFunction:13000:0",
        "ask:cuNewerThanTheList:13000:0",
        "ask:cuGetProcAddress:13000:0",
    ]);
    let expected = [
        "ask  0 nothing".to_owned(),
        "ask cuNoSuchFunction 500 nothing".to_owned(),
        format!("ask cuNewerThanTheList 0 {DRIVER}"),
        format!("ask cuGetProcAddress 0 {SHIM}"),
    ];
    assert_eq!(lines, expected);
}

/// Every way of getting at a launch is counted.
#[test]
fn launches_are_counted_whichever_way_they_come() {
    let node = Node::new();
    let commands = [
        "open",
        "open-real",
        "init",
        "launch",
        "launch",
        "launch-real",
        "ask:cuLaunchKernel:13000:0",
        "ask:cuLaunchKernel:13000:2",
        "linked",
        "wait",
    ];
    let mut program = Program::linked(&commands).under(&node).start();
    let tenant = node.welcome();
    program.until("waiting");
    assert_eq!(tenant.page.shim.launches.load(Ordering::Relaxed), 6);
    assert_eq!(tenant.page.shim.cuda.load(Ordering::Relaxed), 1);
    program.go();
    assert!(program.end());
}

/// NVML itself is not replaced; what it says about memory is.
#[test]
fn nvml_says_what_the_tenant_has() {
    let commands = ["nvml", "nvml-default"];
    let lines = Program::preloaded(&commands).with_nvml().lines();
    assert_eq!(lines, ["nvml 0 100 60 40", "nvml-default 0 100 60 40"], "without a node");
    let node = Node::new();
    let mut program = Program::preloaded(&["open", "init", "wait", "nvml", "nvml-default", "wait"])
        .with_nvml()
        .under(&node)
        .start();
    let _tenant = node.welcome();
    program.until("waiting");
    program.go();
    assert_eq!(program.until("waiting"), ["nvml 0 10 10 0", "nvml-default 0 10 10 0"]);
    program.go();
    assert!(program.end());
}
