//! Tenants that use the GPU are killed at every step of their lives, alone and with the node. What they held comes back, and
//! a neighbour, which checks every byte, goes on.

use partywall_core::units::Nanos;
use serde_json::Value;

use super::home::{is_alive, kill};
use super::steps::{Held, Stage, pages};
use crate::patience::until;

/// 1 MiB: more than goes straight to the driver, so it waits for its turn.
const ALLOCATE: &str = "allocate=1048576";
/// 64 MiB, for a copy that waits.
const ALLOCATE_MORE: &str = "allocate=67108864";

/// So slow that [`ALLOCATE_MORE`] takes minutes with a weight of 1 against 1024, and a quarter of a second where a busy machine does
/// not let the others copy.
const LINK_GB_S: f64 = 0.25;

/// The step in which a victim is killed, all of its steps, what it says when it is there, and the weight of its copies.
const LIVES: [(&str, &[&str], &str, u32); 5] = [
    ("registered", &["init", "stay"], "init", 1),
    ("context", &["init", "context", "stay"], "context", 1),
    ("allocated", &["init", "context", ALLOCATE, "stay"], ALLOCATE, 1),
    ("copying", &["init", "context", ALLOCATE, "copies"], "copy", 1024),
    ("waiting", &["init", "context", ALLOCATE_MORE, "one-way"], "submitted", 1),
];

/// A neighbour that copies and checks, and one that leaves the link to nobody whose turn it is not.
fn neighbours(stage: &Stage) -> String {
    let more = "weight = 1024\nrestart = \"never\"";
    [
        stage.tenant("neighbour", "1GiB", &["init", "context", ALLOCATE, "copies"], more),
        stage.tenant("busy", "1GiB", &["init", "context", ALLOCATE, "busy"], more),
    ]
    .concat()
}

#[track_caller]
fn goes_on(stage: &Stage, pid: i32) {
    stage.until_said("neighbour", "copy", stage.said("neighbour", "copy") + 3);
    let report = stage.home.report("neighbour");
    assert_eq!((&report["pid"], &report["restarts"]), (&pid.into(), &0.into()));
    assert_eq!(report["facts"]["guaranteed"], true);
}

#[test]
fn a_tenant_killed_at_any_step_gives_back_what_it_held() {
    let stage = Stage::new("kill-steps", LINK_GB_S);
    let node = stage.home.node();
    stage.up(&neighbours(&stage));
    stage.until_said("busy", ALLOCATE, 1);
    let neighbour = stage.home.pid("neighbour");
    goes_on(&stage, neighbour);
    let free = stage.free_bytes();
    for (name, steps, last, weight) in LIVES {
        let more = format!("weight = {weight}\nrestart = \"never\"");
        stage.up(&stage.tenant(name, "1GiB", steps, &more));
        stage.until_said(name, last, 1);
        let held = stage.held(name);
        let allocated = steps.iter().find_map(|step| step.strip_prefix("allocate="));
        let least = allocated.map_or(0, |bytes| bytes.parse().unwrap());
        // More, since each process is expected to have a context.
        assert!(held.processes == 1 && held.bytes > least, "{name}: {held:?}");
        assert_eq!(pages(node.pid()), 3);
        let pid = stage.home.pid(name);
        kill(pid);
        until("its end is known", || stage.home.report(name)["end_text"] == "signal 9 (SIGKILL)");
        stage.until_held(name, Held::NOTHING);
        assert!(!is_alive(pid));
        let [submitted, through] = ["submitted", "through"].map(|step| stage.said(name, step));
        assert_eq!(submitted - through, usize::from(name == "waiting"), "killed between two copies");
        assert_eq!(stage.free_bytes(), free, "{name}: memory of the GPU is left");
        until("its page is gone", || pages(node.pid()) == 2);
        goes_on(&stage, neighbour);
    }
    stage.leaves_nothing(node);
}

#[test]
fn tenants_killed_at_any_step_with_their_node_are_started_again_by_the_next() {
    let stage = Stage::new("kill-steps-node", LINK_GB_S);
    let node = stage.home.node();
    stage.up(&neighbours(&stage));
    stage.until_said("busy", ALLOCATE, 1);
    let neighbour = stage.home.pid("neighbour");
    goes_on(&stage, neighbour);
    for (name, steps, last, weight) in LIVES {
        stage.up(&stage.tenant(name, "1GiB", steps, &format!("weight = {weight}")));
        stage.until_said(name, last, 1);
    }
    // Of the one without a context it is only known how much it is expected to take.
    let settled = || ["neighbour", "busy"].into_iter().chain(LIVES[1..].iter().map(|(name, ..)| *name));
    let before: Vec<Held> = settled().map(|name| stage.measured(name)).collect();
    let pids = LIVES.map(|(name, ..)| stage.home.pid(name));
    node.kill();
    pids.iter().copied().for_each(kill);
    // Nobody but the neighbours is left, and there is no node.
    stage.until_said("neighbour", "copy", stage.said("neighbour", "copy") + 3);
    let node = stage.home.node();
    for (name, _, last, _) in LIVES {
        stage.until_said(name, last, 2);
        assert_eq!(stage.home.report(name)["restarts"], 1, "{name}");
    }
    assert!(pids.iter().all(|&pid| !is_alive(pid)));
    for (name, held) in settled().zip(before) {
        assert_eq!(stage.measured(name), held, "{name}");
    }
    assert_eq!(stage.held("registered").processes, 1);
    until("the pages are those of the living", || pages(node.pid()) == LIVES.len() + 2);
    goes_on(&stage, neighbour);
    stage.leaves_nothing(node);
}

/// A slice belongs to a process's channels, which it had before the node came.
#[test]
fn the_next_node_is_told_the_time_slices_that_processes_have() {
    let stage = Stage::new("kill-slices", LINK_GB_S);
    let options = |slice| ["--launches", slice];
    let node = stage.home.node_with(&options("slice=200us"));
    stage.up(&stage.tenant("idle", "1GiB", &["init", "context", "stay"], ""));
    stage.until_said("idle", "context", 1);
    let slice_is = |slice| {
        let slice = serde_json::to_value(Nanos::from_micros(slice)).unwrap();
        let told = stage.home.succeeds(&["coverage", "idle", "--json"]);
        serde_json::from_str::<Value>(&told).unwrap()["slice_ns"] == slice
    };
    until("it has the slice", || slice_is(200));
    let pid = stage.home.pid("idle");
    node.kill();
    let node = stage.home.node_with(&options("slice=200us"));
    until("the next node knows of it", || slice_is(200));
    node.kill();
    let node = stage.home.node_with(&options("slice=300us"));
    until("the next one wants another slice", || slice_is(300));
    node.kill();
    let node = stage.home.node();
    until("and one that wants none gives its own back", || slice_is(0));
    assert_eq!((stage.home.pid("idle"), stage.said("idle", "context")), (pid, 1), "it went on all the while");
    stage.leaves_nothing(node);
}
