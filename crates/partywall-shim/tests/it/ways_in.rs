//! How the library gets in front of the driver, and how it finds the real one.

use std::fs;
use std::os::unix::fs::symlink;

use tempfile::TempDir;

use crate::stage::{Program, driver, shim};

/// Every kind of argument arrives, at the first call through a forwarder and at later ones.
#[test]
fn arguments_arrive_as_they_were() {
    let commands =
        ["open", "open-real", "init", "launch", "launch", "float", "float", "stack", "stack", "last"];
    let lines = Program::preloaded(&commands).lines();
    let expected = [
        "open yes",
        "open-real yes",
        "init 0",
        "launch 0",
        "launch 0",
        "float 0",
        "float 0",
        "stack 0",
        "stack 0",
        "last cuOccupancyMaxPotentialBlockSizeWithFlags",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_program_that_is_linked_against_the_driver_goes_through_the_forwarders() {
    let lines = Program::linked(&["linked", "linked", "open-real", "last"]).lines();
    assert_eq!(lines, ["linked 0 0", "linked 0 0", "open-real yes", "last cuLaunchKernel"]);
}

/// In a folder of `LD_LIBRARY_PATH`, before the real one and under its name.
#[test]
fn it_works_in_the_drivers_place_without_being_preloaded() {
    let folder = TempDir::new().unwrap();
    symlink(shim(), folder.path().join("libcuda.so.1")).unwrap();
    let path = format!("{}:{}", folder.path().display(), driver().parent().unwrap().display());
    for program in ["program", "linked"] {
        let commands = ["open", "find:cuLaunchKernel", "init", "launch"];
        let lines = Program::plain(program, &commands).env("LD_LIBRARY_PATH", &path).lines();
        let owner =
            if lines[1].contains("libpartywall_shim") { "libpartywall_shim.so" } else { "libcuda.so.1" };
        assert_eq!(lines, ["open yes", &format!("find cuLaunchKernel {owner} fine"), "init 0", "launch 0"]);
    }
}

/// A copy of the library is not the real driver, wherever it lies.
#[test]
fn a_copy_of_itself_is_not_taken_for_the_driver() {
    let folder = TempDir::new().unwrap();
    fs::copy(shim(), folder.path().join("libcuda.so.1")).unwrap();
    let path = format!("{}:{}", folder.path().display(), driver().parent().unwrap().display());
    let program = Program::preloaded(&["open", "open-real", "init", "last"]).env("PARTYWALL_REAL_CUDA", "");
    let lines = program.env("LD_LIBRARY_PATH", path).lines();
    assert_eq!(lines, ["open yes", "open-real yes", "init 0", "last cuInit"]);
}

#[test]
fn without_a_driver_there_is_no_device_and_one_line_says_so() {
    let missing = TempDir::new().unwrap().path().join("libcuda.so.1");
    let program = Program::preloaded(&["open", "init", "init"]).env("PARTYWALL_REAL_CUDA", &missing);
    let (success, out, err) = program.outcome();
    assert!(success);
    assert_eq!(out, "open yes\ninit 100\ninit 100\n");
    assert!(err.starts_with(&format!("partywall: PARTYWALL_REAL_CUDA={}: ", missing.display())), "{err}");
    assert_eq!(err.matches("no CUDA driver").count(), 1, "{err}");
}

#[test]
fn a_program_without_cuda_is_left_alone() {
    let plain = Program::plain("program", &["files"]).lines();
    let socket = std::env::temp_dir().join("no such socket");
    let program = Program::preloaded(&["files"]).env("PARTYWALL_SOCKET", socket);
    let (success, out, err) = program.env("PARTYWALL_TOKEN", "no token").outcome();
    assert!(success);
    assert_eq!(out.lines().collect::<Vec<_>>(), plain);
    assert_eq!(err, "", "nothing is even read");
}
