//! Promises about requests as users make them and read of them.

use super::home::Home;
use crate::patience::until;
use crate::{refused, text};

fn promised(home: &Home, name: &str, more: &str) -> String {
    home.sleeper(name, more).replace("best-effort", "latency-sensitive")
}

#[test]
fn a_promise_that_makes_no_sense_is_refused() {
    for (option, value) in [("--slowdown", "1.2"), ("--slo-p99", "5ms"), ("--baseline-p99", "1ms")] {
        let parts = [option, "a best-effort tenant takes what is left", "--class ls"];
        refused(&["run", option, value, "--", "true"], &parts);
    }
    for (option, value, says) in [
        ("--slowdown", "0.9", "1 is as fast as alone"),
        ("--slowdown", "NaN", "cannot be promised"),
        ("--slowdown", "twice", "no factor"),
        ("--slo-p99", "0ms", "within no time"),
        ("--baseline-p99", "5", "no unit"),
    ] {
        refused(&["run", "--class", "ls", option, value, "--", "true"], &[option, value, says]);
    }
}

#[test]
fn a_node_that_cannot_keep_a_promise_says_so() {
    let home = Home::new("promise-undecided");
    let tenants = promised(&home, "a", "slo.slowdown = 1.5") + &home.sleeper("b", "");
    let output = home.partywall(&["up", "--detach", &home.file(&tenants)]).output().unwrap();
    let said = text(&output.stderr);
    let why = "not guaranteed: the node does not decide about launches; start it with --wall partywall";
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("a: what was promised")).collect();
    assert!(lines.len() == 1 && lines[0].contains(why), "{said}");
    let shown = home.succeeds(&["ps"]);
    assert!(shown.contains(&format!("a: promise {why}")), "{shown}");
    let report = &home.report("a")["facts"]["promise"];
    assert_eq!(
        (&report["verdict"], &report["promised"]["slowdown"]),
        (&"not-guaranteed".into(), &1.5.into())
    );
    assert!(home.report("b")["facts"]["promise"].is_null());
    home.stop_all();
}

#[test]
fn a_node_that_decides_about_launches_says_what_is_missing() {
    let home = Home::new("promise-decided");
    let mut node = home.spawn(&["node", "--launches", "chunks=2"]);
    home.answers();
    let script = "tail -f /dev/null | partywall tenant tiny-kernels";
    let more = "slo.slowdown = 1.5\nslo.p99 = \"5ms\"\nbaseline.p99 = \"2ms\"";
    let tenants = home.tenant("a", script, more).replace("best-effort", "latency-sensitive");
    let output = home.partywall(&["up", "--detach", &home.file(&tenants)]).output().unwrap();
    assert!(
        output.status.success() && !text(&output.stderr).contains("promised"),
        "{}",
        text(&output.stderr)
    );
    until("it is known what it uses", || home.report("a")["facts"]["guaranteed"] == true);
    let promise = home.report("a")["facts"]["promise"].take();
    assert_eq!(promise["reasons"][0]["reason"], "nobody-beside", "{promise}");
    assert_eq!((&promise["baseline"]["source"], &promise["bound_ns"]), (&"given".into(), &"3ms".into()));
    let shown = home.succeeds(&["ps"]);
    assert!(shown.contains("a: promise not guaranteed: no best-effort tenant was at work"), "{shown}");
    home.stop_all();
    node.signal(rustix::process::Signal::TERM);
    node.wait();
}
