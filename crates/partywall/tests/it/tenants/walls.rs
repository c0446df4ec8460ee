//! Walls between tenants: MPS daemons, shares and SM sets, over whole process trees.

use std::fs;
use std::path::Path;
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use super::home::{Home, is_alive, kill};
use crate::patience::until;
use crate::text;

/// A tenant that holds GPU memory and waits; `before` is put before its program.
pub(super) fn worker(home: &Home, name: &str, before: &str, more: &str) -> String {
    home.tenant(
        name,
        &format!("tail -f /dev/null | {before} partywall tenant copies-h2d:be,size=64KiB"),
        more,
    )
}

pub(super) fn walled(wall: &str, tenants: &[String]) -> String {
    format!("gpu.wall = \"{wall}\"\n{}", tenants.concat())
}

/// Who keeps the node's MPS daemon, and the daemon.
pub(super) fn daemon(home: &Home) -> (i32, i32) {
    let kept: Value = serde_json::from_slice(&fs::read(home.path().join("node/mps.json")).unwrap()).unwrap();
    let number = |value: &Value| i32::try_from(value.as_i64().unwrap()).unwrap();
    (number(&kept["keeper"]["pid"]), number(&kept["daemon"]))
}

/// Nothing of a daemon is left.
#[track_caller]
pub(super) fn no_daemon(home: &Home, (keeper, daemon): (i32, i32)) {
    until("the daemon is gone", || !is_alive(daemon) && !is_alive(keeper));
    assert!(!home.path().join("node/mps").exists() && !home.path().join("node/mps.json").exists());
}

#[track_caller]
pub(super) fn refused(output: &Output, parts: &[&str]) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    parts.iter().for_each(|part| assert!(message.contains(part), "`{part}` is not in: {message}"));
}

pub(super) fn log(home: &Home, name: &str) -> String {
    fs::read_to_string(home.path().join("node/tenants").join(name).join("log")).unwrap_or_default()
}

/// First SM and the one behind the last, by tenant.
pub(super) fn sets(home: &Home) -> Vec<(String, u64, u64)> {
    let number = |value: &Value| value.as_u64().unwrap();
    let placed = home.reports().into_iter().filter(|report| report["sms"].is_object()).map(|report| {
        let set = &report["sms"];
        let (first, groups, each) =
            (number(&set["first"]), number(&set["groups"]), number(&set["sms_per_group"]));
        (report["name"].as_str().unwrap().to_owned(), first * each, (first + groups) * each)
    });
    placed.collect()
}

#[test]
fn tenants_behind_mps_are_clients_of_one_daemon_and_nothing_is_left() {
    let home = Home::new("mps");
    let file = home.file(&walled("mps", &[worker(&home, "a", "", ""), worker(&home, "b", "", "")]));
    home.succeeds(&["up", "--detach", &file]);
    let kept = daemon(&home);
    until("both are proven", || home.reports().iter().all(|report| report["facts"]["guaranteed"] == true));
    for name in ["a", "b"] {
        let detail: Value = serde_json::from_str(&home.succeeds(&["coverage", name, "--json"])).unwrap();
        assert_eq!(detail["processes"][0]["mps_client"], true, "{detail}");
        assert_eq!(home.report(name)["wall"], "mps");
    }
    assert_eq!(fs::read_dir(home.path().join("node/mps/pipe/clients")).unwrap().count(), 2);
    home.stop_all();
    no_daemon(&home, kept);
    until("the node is gone", || !home.path().join("node/state.json").exists());
}

#[test]
fn who_is_no_client_is_not_guaranteed() {
    let home = Home::new("beside");
    let beside = worker(&home, "beside", "CUDA_MPS_PIPE_DIRECTORY=/nowhere", "");
    let file = home.file(&walled("mps", &[beside, worker(&home, "behind", "", "")]));
    home.succeeds(&["up", "--detach", &file]);
    until("it is known of both", || {
        home.reports().iter().all(|report| report["facts"]["guaranteed"].is_boolean())
    });
    assert_eq!(home.report("beside")["facts"]["guaranteed"], false);
    assert_eq!(home.report("behind")["facts"]["guaranteed"], true);
    let shown = home.succeeds(&["ps"]);
    let reason = "beside: not guaranteed: a process is not a client of the node's MPS daemon";
    assert!(shown.contains(reason) && !shown.contains("behind: not"), "{shown}");
    home.stop_all();
}

#[test]
fn a_daemon_that_is_killed_is_missed_and_another_takes_its_place() {
    let home = Home::new("mps-killed");
    let mut node = home.spawn(&["node", "--wall", "mps"]);
    home.answers();
    let file = home.file(&walled("mps", &[worker(&home, "a", "", "")]));
    home.succeeds(&["up", "--detach", &file]);
    until("it is proven", || home.report("a")["facts"]["guaranteed"] == true);
    let first = daemon(&home);
    // One that ends right after its start is not replaced.
    std::thread::sleep(std::time::Duration::from_secs(5));
    kill(first.0);
    until("the kernel has ended the daemon", || !is_alive(first.1));
    until("it is not guaranteed", || home.report("a")["facts"]["guaranteed"] == false);
    let shown = home.succeeds(&["ps"]);
    assert!(shown.contains("a: not guaranteed: the MPS daemon of a process has ended"), "{shown}");
    let second = daemon(&home);
    assert!(second.1 != first.1 && is_alive(second.1));
    home.succeeds(&["restart", "a"]);
    until("it is proven again", || home.report("a")["facts"]["guaranteed"] == true);
    kill(second.0);
    until("the kernel has ended the daemon", || !is_alive(second.1));
    until("this is said", || {
        home.succeeds(&["ps"]).contains("a: not guaranteed: the node's MPS daemon has ended")
    });
    let more = home.file(&walled("mps", &[home.sleeper("b", "")]));
    let output = home.partywall(&["up", "--detach", &more]).output().unwrap();
    refused(&output, &["the wall `mps` does not stand"]);
    node.signal(Signal::TERM);
    node.wait();
    // What it left is cleared away by the next one.
    home.succeeds(&["up", "--detach", &more]);
    let third = daemon(&home);
    home.stop_all();
    no_daemon(&home, third);
}

#[test]
fn a_share_is_a_percentage_that_gives_at_least_as_many_sms() {
    let home = Home::new("percentage");
    let script = "echo \"$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE.\"; exec sleep 1000";
    let tenants = [("sms", "share.sms = 80"), ("percent", "share.percent = 33"), ("none", "")];
    let tenants = tenants.map(|(name, share)| home.tenant(name, script, share));
    let file = home.file(&walled("mps-percentage", &tenants));
    // Of whoever starts them, this one counts for nothing.
    let mut up = home.partywall(&["up", "--detach", &file]);
    assert!(up.env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "7").output().unwrap().status.success());
    // 60 per cent of 132 SMs are 79.
    for (name, percent) in [("sms", "61.\n"), ("percent", "33.\n"), ("none", "100.\n")] {
        until("it has said its percentage", || log(&home, name).ends_with('\n'));
        assert_eq!(log(&home, name), percent, "{name}");
    }
    let shown = home.succeeds(&["ps"]);
    assert!(shown.contains("mps-percentage (80sms)") && shown.contains("mps-percentage (33%)"), "{shown}");
    let large = home.file(&walled("mps-percentage", &[home.sleeper("large", "share.sms = 133")]));
    let output = home.partywall(&["up", "--detach", &large]).output().unwrap();
    refused(&output, &["large: 133 SMs were asked for, and the GPU has 132"]);
    home.stop_all();
}

/// The class of a tenant is in its file before anything else.
#[test]
fn behind_partywall_best_effort_tenants_have_low_priority_and_a_share_where_one_is_given() {
    let home = Home::new("partywall-wall");
    let script = "echo \"priority $CUDA_MPS_CLIENT_PRIORITY.\"; exec sleep 1000";
    let ls = home.tenant("ls", script, "").replace("best-effort", "latency-sensitive");
    let file = home.file(&walled(
        "partywall",
        &[ls, home.tenant("all", script, ""), home.tenant("some", script, "share.sms = 64")],
    ));
    home.succeeds(&["up", "--detach", &file]);
    for (name, priority) in [("ls", 0), ("all", 1), ("some", 1)] {
        until("it has said what it was told", || log(&home, name).contains(&format!("priority {priority}.")));
    }
    // Best-effort tenants have theirs from the upper end.
    assert_eq!(sets(&home), [("some".to_owned(), 68, 132)]);
    home.stop_all();
}

#[test]
fn sm_sets_are_disjoint_and_given_back() {
    let home = Home::new("sets");
    let mut node = home.spawn(&["node", "--wall", "green-contexts"]);
    home.answers();
    let kept = daemon(&home);
    let two = [home.sleeper("a", "share.sms = 61"), home.sleeper("b", "share.percent = 50")];
    let two = [two[0].replace("best-effort", "latency-sensitive"), two[1].clone()];
    let file = home.file(&walled("green-contexts", &two));
    home.succeeds(&["up", "--detach", &file]);
    let expected = [("a".to_owned(), 0, 62), ("b".to_owned(), 66, 132)];
    assert_eq!(sets(&home), expected);
    assert!(home.succeeds(&["ps"]).contains("green-contexts (SMs 66-131)"));
    let third = home.file(&walled("green-contexts", &[home.sleeper("c", "share.sms = 6")]));
    let output = home.partywall(&["up", "--detach", &third]).output().unwrap();
    refused(&output, &["c: 6 SMs side by side are not free; free are SMs 62-65"]);
    let none = home.file(&walled("green-contexts", &[home.sleeper("c", "")]));
    let output = home.partywall(&["up", "--detach", &none]).output().unwrap();
    refused(&output, &["c: behind the wall `green-contexts` a tenant needs a share of the SMs"]);
    // `run` is served like `up`.
    let output = home.partywall(&["run", "--share", "5%", "--", "true"]).output().unwrap();
    refused(&output, &["6 SMs side by side are not free"]);
    assert!(home.partywall(&["run", "--share", "4sms", "--", "true"]).status().unwrap().success());
    // A tenant that is started again keeps its place; one that was stopped gives it to whoever comes.
    home.succeeds(&["restart", "a"]);
    assert_eq!(sets(&home), expected);
    home.succeeds(&["stop", "b"]);
    home.succeeds(&["up", "--detach", &third]);
    assert_eq!(sets(&home), [expected[0].clone(), ("c".to_owned(), 126, 132)]);
    let output = home.partywall(&["restart", "b"]).output().unwrap();
    refused(&output, &["b: 66 SMs side by side are not free"]);
    home.succeeds(&["stop", "c"]);
    home.succeeds(&["restart", "b"]);
    assert_eq!(sets(&home), expected);
    // SIGTERM ends all of it.
    node.signal(Signal::TERM);
    assert!(node.wait().success());
    no_daemon(&home, kept);
    home.nothing_runs();
}

#[test]
fn a_node_that_is_killed_leaves_daemon_and_sets_to_the_next() {
    let home = Home::new("wall-killed");
    let node = home.spawn(&["node", "--wall", "green-contexts"]);
    home.answers();
    let worker = |name, share: &str| worker(&home, name, "", share);
    let file = home
        .file(&walled("green-contexts", &[worker("a", "share.percent = 30"), worker("b", "share.sms = 10")]));
    home.succeeds(&["up", "--detach", &file]);
    until("both are proven", || home.reports().iter().all(|report| report["facts"]["guaranteed"] == true));
    let (kept, placed, pids) = (daemon(&home), sets(&home), ["a", "b"].map(|name| home.pid(name)));
    assert_eq!(placed.len(), 2);
    node.kill();
    let other = home.partywall(&["node", "--wall", "mps"]).output().unwrap();
    refused(&other, &["run behind the wall `green-contexts`, so `mps` cannot be built"]);
    let mut node = home.node();
    assert_eq!((daemon(&home), sets(&home)), (kept, placed));
    assert_eq!(["a", "b"].map(|name| home.pid(name)), pids);
    until("both are proven again", || {
        home.reports().iter().all(|report| report["facts"]["guaranteed"] == true)
    });
    // Who comes now gets what is left.
    let third = home.file(&walled("green-contexts", &[home.sleeper("c", "share.sms = 20")]));
    home.succeeds(&["up", "--detach", &third]);
    let expected = [("a", 94, 132), ("b", 84, 94), ("c", 64, 84)];
    assert_eq!(sets(&home), expected.map(|(name, first, end)| (name.to_owned(), first, end)));
    // A node that is told to leave its tenants leaves their wall.
    home.succeeds(&["stop", "--node-only"]);
    node.wait();
    assert!(is_alive(kept.0) && is_alive(kept.1));
    let mut node = home.node();
    assert_eq!(daemon(&home), kept);
    node.signal(Signal::TERM);
    node.wait();
    no_daemon(&home, kept);
}

#[test]
fn a_daemon_that_nobody_needs_any_more_ends_by_itself() {
    let home = Home::new("wall-orphan");
    let node = home.spawn(&["node", "--wall", "mps"]);
    home.answers();
    let kept = daemon(&home);
    node.kill();
    no_daemon(&home, kept);
    // A node of another wall removes one that is still there.
    let node = home.spawn(&["node", "--wall", "mps"]);
    home.answers();
    let kept = daemon(&home);
    node.kill();
    let mut node = home.node();
    no_daemon(&home, kept);
    node.signal(Signal::TERM);
    node.wait();
}

#[test]
fn a_private_node_has_the_wall_that_is_asked_for() {
    let home = Home::new("wall-run");
    let script = "echo \"$CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE\"";
    let run = |arguments: &[&str]| {
        let all = [&["run"][..], arguments, &["--", "sh", "-c", script]].concat();
        let output = home.partywall(&all).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (said, _) = run(&["--wall", "mps-percentage", "--share", "80sms"]);
    let (pipe, percent) = said.trim().split_once(' ').unwrap();
    assert!(pipe.ends_with("/mps/pipe") && percent == "61", "{said}");
    // Three folders up is where temporary files go.
    let folder = Path::new(pipe).ancestors().nth(2).unwrap();
    assert!(!folder.exists(), "{} is left", folder.display());
    let (said, _) = run(&["--wall", "time-slicing"]);
    assert!(said.trim().ends_with("/no-mps"), "{said}");
    let (said, notice) = run(&["--share", "50%"]);
    assert_eq!(said.trim(), "");
    assert!(notice.contains("not kept behind the wall `auto`"), "{notice}");
}

#[test]
fn a_node_has_one_wall() {
    let home = Home::new("one-wall");
    let _node = home.node();
    let file = home.file(&walled("mps", &[home.sleeper("a", "")]));
    for arguments in [&["up", &file][..], &["up", "--detach", &file], &["run", "--wall", "mps", "--", "true"]]
    {
        let output = home.partywall(arguments).output().unwrap();
        refused(&output, &["has the wall `auto`", "`mps` cannot be had"]);
    }
    for wall in ["mig", "sides", "mps-static", "stream-priority", "exclusive"] {
        for command in [&["node"][..], &["run", "true"]] {
            let all = [&[command[0], "--wall", wall][..], &command[1..]].concat();
            let right = "choose auto, time-slicing, mps, mps-percentage, green-contexts, partywall";
            refused(&home.partywall(&all).output().unwrap(), &[wall, right]);
        }
    }
    refused(
        &home.partywall(&["run", "--share", "half", "true"]).output().unwrap(),
        &["`half`", "60%", "80sms"],
    );
    let shares = home.file(
        &home
            .tenant("a", "true", "share.percent = 60\nrestart = \"never\"\nslo.slowdown = 1.5")
            .replace("best-effort", "latency-sensitive"),
    );
    let output = home.partywall(&["up", &shares]).output().unwrap();
    let said = text(&output.stderr);
    assert!(
        said.contains(
            "a: its share of the SMs is not kept behind the wall `auto`; its memory and its copies are"
        ),
        "{said}"
    );
}

#[test]
fn slices_are_for_tenants_that_take_turns() {
    let home = Home::new("wall-slices");
    let output = home.partywall(&["node", "--wall", "mps", "--launches", "slice=200us"]).output().unwrap();
    refused(&output, &["slice= is for tenants that take turns", "choose --wall time-slicing"]);
    until("nothing of it is left", || !home.path().join("node/mps.json").exists());
    let output = home.partywall(&["node", "--launches", "slice=20us"]).output().unwrap();
    refused(&output, &["`slice=20us`", "a time slice is 50 us to 1000 ms"]);
}
