//! A fault of the GPU in a client of the node's MPS daemon: whether it ends all clients, who did it, who is started again and when, and who
//! is not.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use super::home::Home;
use crate::patience::until;
use crate::text;

/// Told once, a built-in tenant works until it is ended; its standard input stays open, so it does not end by itself either.
const RUN: &str = r#"{"run": {"run": 1, "load": {"closed": {"pause_ns": 3000000, "depth": 1}}, "begin": 0, "requests_max": 100000}}"#;

/// Fails in the way of the device, after it has worked for a moment, and ends the work of all clients.
const FAULTS: &str = "PARTYWALL_SOFTGPU_FAULT=assert-for-all-at-launch=2000";

/// The same, and ends the work of its own process alone.
const FAULTS_ALONE: &str = "PARTYWALL_SOFTGPU_FAULT=assert-at-launch=2000";

/// A shell command that works.
fn work(variables: &str) -> String {
    format!(
        "(echo '{RUN}'; exec tail -f /dev/null) | {variables} partywall tenant tiny-kernels:ls > /dev/null"
    )
}

/// The same, and over as soon as it fails.
fn work_alone(home: &Home, variables: &str) -> String {
    let pipe = home.path().join("pipe").display().to_string();
    format!(
        "rm -f {pipe}; mkfifo {pipe}; (echo '{RUN}'; exec tail -f /dev/null) > {pipe} & exec env {variables} partywall tenant tiny-kernels:ls \
         < {pipe} > /dev/null"
    )
}

/// A tenant of either class.
fn tenant(home: &Home, name: &str, class: &str, script: &str, restart: &str) -> String {
    let tenant = home.tenant(name, script, &format!("restart = \"{restart}\""));
    let tenant = tenant.replace("class = \"best-effort\"", &format!("class = \"{class}\""));
    // Room for the contexts of two processes, whenever the node comes to measure them.
    tenant.replace("memory = \"1GiB\"", "memory = \"4GiB\"")
}

/// One that works, and in its first two runs faults once a file is there: when all others are clients as well.
fn bad(home: &Home, faults: &str) -> String {
    let path = home.path().display();
    let until = |file: &str| {
        // Once the program is over before it is known whose fault it was, and once after that.
        let faulting = if file == "once" { work(faults) } else { work_alone(home, faults) };
        format!("{} & until [ -e {path}/{file} ]; do sleep 0.02; done; {faulting}", work(""))
    };
    let script = format!(
        "if [ ! -e {path}/ran-once ]; then touch {path}/ran-once; {}\n\
         elif [ ! -e {path}/ran-twice ]; then touch {path}/ran-twice; {}\n\
         else {}\nfi",
        until("once"),
        until("twice"),
        work(""),
    );
    tenant(home, "bad", "best-effort", &script, "always")
}

/// All that were started are clients of the daemon, and known to be.
fn are_clients(home: &Home) {
    home.until_reported("all are clients", |all| {
        all.iter().all(|report| report["facts"]["guaranteed"] == true)
    });
}

fn fault(home: &Home, file: &str) {
    fs::write(home.path().join(file), "").unwrap();
}

/// Whether a tenant of which this is said is back after so many faults.
fn is_back(report: &Value, faults: u64) -> bool {
    report["activity"] == "running"
        && report["restarts"] == faults
        && report["last_fault"]["number"] == faults
        && report["last_fault"]["recover_ns"].is_u64()
        && report["facts"]["processes"].as_u64() > Some(0)
}

#[test]
fn clients_of_a_daemon_come_back_together_without_who_faults_twice() {
    let home = Home::new("recover");
    let tenants = [
        bad(&home, FAULTS),
        tenant(&home, "ls-1", "latency-sensitive", &work(""), "always"),
        tenant(&home, "be", "best-effort", &work(""), "on-failure"),
        tenant(&home, "ls-2", "latency-sensitive", &work(""), "on-failure"),
    ];
    let file = home.file(&format!("gpu.wall = \"mps\"\n{}", tenants.concat()));
    home.succeeds(&["up", "--detach", &file]);
    are_clients(&home);
    fault(&home, "once");
    let reports =
        home.until_reported("all are back", |reports| reports.iter().all(|report| is_back(report, 1)));
    let running = |name: &str| {
        let report = reports.iter().find(|report| report["name"] == name).unwrap();
        report["running_for_ns"].as_u64().unwrap()
    };
    for name in ["ls-1", "ls-2"] {
        assert!(
            running(name) > running("bad").max(running("be")),
            "{name} was not started first: {reports:?}"
        );
    }
    for report in &reports {
        let fault = &report["last_fault"];
        assert_eq!((&fault["culprit"], &fault["evidence"]), (&"bad".into(), &"only-own-code".into()));
        assert_eq!(report["faults"], u64::from(report["name"] == "bad"), "{report}");
        assert_eq!((&report["kept_out"], &report["note"]), (&false.into(), &Value::Null), "{report}");
    }
    let shown = home.succeeds(&["ps"]);
    assert!(shown.contains("by bad: the only one with an error of its own; recovered in "), "{shown}");

    are_clients(&home);
    fault(&home, "twice");
    home.until_reported("the others are back", |all| {
        all.iter().all(|report| report["name"] == "bad" || is_back(report, 2))
    });
    let kept_out = home.report("bad");
    assert_eq!(
        (&kept_out["kept_out"], &kept_out["activity"]),
        (&true.into(), &"failed".into()),
        "{kept_out}"
    );
    assert_eq!((&kept_out["faults"], &kept_out["restarts"]), (&2.into(), &1.into()), "{kept_out}");
    let shown = home.succeeds(&["ps"]);
    for part in ["bad: kept out: it has faulted the GPU again", "`partywall restart bad`"] {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    let pids: Vec<Value> = home.reports().into_iter().map(|report| report["pid"].clone()).collect();
    home.succeeds(&["restart", "bad"]);
    until("it works", || home.report("bad")["facts"]["processes"].as_u64() > Some(0));
    assert_eq!((&home.report("bad")["kept_out"], &home.report("bad")["note"]), (&false.into(), &Value::Null));
    let after: Vec<Value> = home.reports().into_iter().map(|report| report["pid"].clone()).collect();
    assert_eq!(pids[1..], after[1..], "somebody else was started again");
    home.stop_all();
}

#[test]
fn a_contained_fault_ends_nobody_else_and_keeps_nobody_out() {
    let home = Home::new("recover-contained");
    let tenants = [
        bad(&home, FAULTS_ALONE),
        tenant(&home, "ls", "latency-sensitive", &work(""), "always"),
        tenant(&home, "be", "best-effort", &work(""), "on-failure"),
    ];
    let file = home.file(&format!("gpu.wall = \"mps\"\n{}", tenants.concat()));
    home.succeeds(&["up", "--detach", &file]);
    are_clients(&home);
    let others = || ["ls", "be"].map(|name| home.report(name)["pid"].clone());
    let pids = others();
    for (number, file) in [(1, "once"), (2, "twice")] {
        are_clients(&home);
        fault(&home, file);
        until("it is started again", || {
            let report = home.report("bad");
            report["activity"] == "running"
                && report["restarts"] == number
                && report["facts"]["processes"].as_u64() > Some(0)
        });
        let report = home.report("bad");
        let last = &report["last_fault"];
        assert_eq!((&last["number"], &last["culprit"]), (&number.into(), &"bad".into()), "{report}");
        assert_eq!((&last["evidence"], &last["server"]), (&"contained".into(), &"active".into()), "{report}");
        assert_eq!((&last["told"]["bad"][0], &last["recover_ns"]), (&710.into(), &Value::Null), "{report}");
        assert_eq!((&report["faults"], &report["kept_out"]), (&number.into(), &false.into()), "{report}");
    }
    for name in ["ls", "be"] {
        let report = home.report(name);
        assert_eq!((&report["last_fault"], &report["restarts"]), (&Value::Null, &0.into()), "{report}");
    }
    assert_eq!(others(), pids, "somebody else was ended");
    let shown = home.succeeds(&["ps"]);
    assert!(
        shown.contains("by bad: contained: nobody else was told, and the MPS server goes on\n"),
        "{shown}"
    );
    home.stop_all();
}

/// All are told the same at the same time, and it happens in each of its runs.
const FAULTS_UNSAID: &str = "PARTYWALL_SOFTGPU_FAULT=illegal-access-at-launch=1000";

#[test]
fn a_fault_that_is_nobodys_for_certain_is_found_by_starting_suspects_apart() {
    let home = Home::new("recover-suspects");
    let path = home.path().display();
    let bad = format!("until [ -e {path}/begin ]; do sleep 0.02; done; {}", work_alone(&home, FAULTS_UNSAID));
    let tenants = [
        tenant(&home, "bad", "best-effort", &bad, "always"),
        tenant(&home, "ls-1", "latency-sensitive", &work(""), "always"),
        tenant(&home, "be", "best-effort", &work(""), "always"),
        tenant(&home, "ls-2", "latency-sensitive", &work(""), "always"),
    ];
    let file = home.file(&format!("gpu.wall = \"mps\"\n{}", tenants.concat()));
    home.succeeds(&["up", "--detach", &file]);
    until("the others are clients", || {
        ["ls-1", "be", "ls-2"].iter().all(|name| home.report(name)["facts"]["guaranteed"] == true)
    });
    fault(&home, "begin");
    let number = |report: &Value| report["last_fault"]["number"].as_u64();
    until("it happens again", || number(&home.report("ls-1")) >= Some(2));
    until("suspects start apart", || {
        let note = home.report("be")["note"].as_str().unwrap_or_default().to_owned();
        note.contains("best-effort tenants start one by one") || home.report("bad")["kept_out"] == true
    });
    until("and again, after it was let in", || {
        let last = &home.report("bad")["last_fault"];
        (last["culprit"] == "bad" && last["evidence"] == "let-in-last")
            || home.report("bad")["kept_out"] == true
    });
    home.until_reported("it is kept out", |all| all.iter().any(|report| report["kept_out"] == true));
    home.until_reported("the others are back", |all| {
        let others = || all.iter().filter(|report| report["name"] != "bad");
        others().all(|report| {
            report["activity"] == "running"
                && report["facts"]["processes"].as_u64() > Some(0)
                && report["kept_out"] == false
        })
    });
    let report = home.report("bad");
    assert_eq!((&report["kept_out"], &report["activity"]), (&true.into(), &"failed".into()), "{report}");
    let last = &report["last_fault"];
    assert_eq!((&last["culprit"], &last["evidence"]), (&"bad".into(), &"let-in-last".into()), "{report}");
    assert!(last["told"].as_object().is_some_and(|told| told.len() > 1), "others were told, too: {report}");
    let shown = home.succeeds(&["ps"]);
    assert!(shown.contains("let in last, after the others had gone on without it"), "{shown}");
    home.stop_all();
}

#[test]
fn who_is_not_to_be_started_again_is_told_why_it_ended() {
    let home = Home::new("recover-never");
    let mut node = home.spawn(&["node", "--wall", "mps"]);
    home.answers();
    let never = tenant(&home, "never", "latency-sensitive", &work(""), "never");
    let file = home.file(&format!("gpu.wall = \"mps\"\n{never}"));
    home.succeeds(&["up", "--detach", &file]);
    let mut run = home.partywall(&["run", "--name", "terminal", "--", "sh", "-c", &work("")]);
    run.env("PATH", path()).stdout(Stdio::null()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    until("both work", || {
        let reports = home.reports();
        reports.len() == 2 && reports.iter().all(|report| report["facts"]["processes"] == 1)
    });
    home.succeeds(&["up", "--detach", &home.file(&format!("gpu.wall = \"mps\"\n{}", bad(&home, FAULTS)))]);
    are_clients(&home);
    fault(&home, "once");
    let output = run.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("partywall: ended by a fault of the GPU that was bad's"), "{said}");
    until("it is back", || is_back(&home.report("bad"), 1));
    let report = home.report("never");
    let note = report["note"].as_str().unwrap();
    assert!(note.ends_with("not started again, because restart = \"never\""), "{note}");
    assert_eq!((&report["activity"], &report["restarts"]), (&"failed".into(), &0.into()));
    home.stop_all();
    node.signal(rustix::process::Signal::TERM);
    node.wait();
}

/// Where programs are, with the one under test.
fn path() -> String {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_partywall"));
    let beside = program.parent().unwrap().display();
    format!("{beside}:{}", std::env::var("PATH").unwrap_or_default())
}
