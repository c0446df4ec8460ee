//! Tenants as users meet them: `run`, `up`, `ps`, `stop`, `logs`. What goes wrong is in [`faults`], and
//! with tenants that use the GPU in [`kills`] and [`crowds`].

mod crowds;
mod example;
mod faults;
mod gpus;
mod home;
mod kills;
mod promises;
mod proofs;
mod recovery;
mod steps;
mod walls;

use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use home::Home;

use crate::patience::until;
use crate::{refused, text};

#[test]
fn run_ends_as_its_command_does() {
    let home = Home::new("run");
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -TERM $$", 143)] {
        let output = home.partywall(&["run", "--", "sh", "-c", script]).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{script}: {}", text(&output.stderr));
        assert_eq!((text(&output.stdout), text(&output.stderr)), (String::new(), String::new()), "{script}");
    }
    for (program, code, why) in
        [("no-such-program", 127, "No such file"), ("/dev/null", 126, "Permission denied")]
    {
        let output = home.partywall(&["run", program]).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{message}");
        let lines: Vec<&str> = message.lines().collect();
        assert!(lines.len() == 1 && lines[0].contains(program) && lines[0].contains(why), "{message}");
    }
}

#[test]
fn a_command_has_the_terminals_own_streams_and_a_wall() {
    let home = Home::new("streams");
    let script = "cat; echo error >&2; echo \"$LD_PRELOAD $PARTYWALL_SOCKET $PARTYWALL_TOKEN\"";
    let mut command = home.partywall(&["run", "--memory", "1GiB", "--", "sh", "-c", script]);
    command.env("LD_PRELOAD", "").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let output = child.wait_with_output().unwrap();
    let stdout = text(&output.stdout);
    let (typed, wall) = stdout.split_once('\n').unwrap();
    let wall: Vec<&str> = wall.split_whitespace().collect();
    assert_eq!((typed, text(&output.stderr).as_str()), ("typed", "error\n"));
    assert!(wall[0].ends_with("libpartywall_shim.so") && wall[1].ends_with("tenants.sock"), "{wall:?}");
    assert_eq!(wall[2].len(), 32, "{wall:?}");
    // The private node's folder is gone with it.
    let folder = std::path::Path::new(wall[1]).parent().unwrap();
    assert!(!folder.exists(), "{} is left", folder.display());
}

#[test]
fn what_makes_no_sense_is_refused() {
    refused(&["run", "--memory", "0B", "--", "true"], &["without GPU memory cannot run"]);
    refused(&["run", "--memory", "12 parsecs", "--", "true"], &["unknown unit", "12GiB"]);
    refused(&["run", "--memory", "0", "--", "true"], &["`0` has no unit", "12GiB"]);
    refused(&["run", "--name", "No", "--", "true"], &["lower-case"]);
    refused(&["run", "--class", "first", "--", "true"], &["latency-sensitive"]);
    refused(&["run", "--pcie-weight", "0", "--", "true"], &["0 is not in 1..=1024"]);
    refused(&["run"], &["COMMAND"]);
    let home = Home::new("refused");
    let none = home
        .file("[[tenant]]\nname = \"a\"\nclass = \"best-effort\"\nmemory = \"0B\"\ncommand = [\"true\"]\n");
    refused(&["up", &none], &[":4:10: ", "a tenant without GPU memory cannot run"]);
    let wall = home.file(&format!("gpu.wall = \"mig\"\n{}", home.tenant("a", "true", "")));
    refused(&["up", &wall], &["the wall `mig` cannot be built", "choose auto"]);
    let output = home.partywall(&["ps"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no node is running in"), "{}", text(&output.stderr));
}

#[test]
fn no_tenant_is_started_without_the_library() {
    let home = Home::new("unwalled");
    let alone = home.path().join("partywall");
    let program = env!("CARGO_BIN_EXE_partywall");
    fs::hard_link(program, &alone).or_else(|_| fs::copy(program, &alone).map(|_| ())).unwrap();
    let folder = home.path().join("node").display().to_string();
    let run = ["run", "--dir", &folder, "--", "echo", "started"];
    let output = std::process::Command::new(&alone).args(run).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(1), ""));
    assert!(message.contains("no tenant is started without libpartywall_shim.so"), "{message}");
}

#[test]
fn a_node_that_cannot_start_says_why_once() {
    let home = Home::new("unstarted");
    // A file is where its folder should be.
    let folder = home.file("");
    let file = home.file(&home.tenant("a", "true", ""));
    for arguments in [&["up", "--dir", &folder, &file][..], &["up", "--detach", "--dir", &folder, &file]] {
        let output = home.partywall(arguments).output().unwrap();
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.lines().count() == 1 && message.contains(&folder), "{message}");
    }
    // And so does one that another process started.
    let folder = home.path().join("busy").display().to_string();
    let blocked = home.path().join("busy/control.sock/in-the-way");
    fs::create_dir_all(&blocked).unwrap();
    let output = home.partywall(&["up", "--dir", &folder, &file]).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert_eq!(message.matches("error: ").count(), 1, "{message}");
}

#[test]
fn up_shows_logs_and_ends_as_the_first_that_failed() {
    let home = Home::new("up");
    let tenants = [
        home.tenant("first", "echo one; echo two >&2; printf three", "restart = \"never\""),
        home.tenant("second", "pwd; exit 7", "restart = \"never\""),
        home.tenant("third", "exit 8", "restart = \"never\""),
    ];
    let file = home.file(&tenants.concat());
    let output = home.partywall(&["up", &file]).output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    let of = |name: &str| -> Vec<&str> {
        shown
            .lines()
            .filter_map(|line| line.split_once(" | "))
            .filter(|(n, _)| n.trim() == name)
            .map(|(_, l)| l)
            .collect()
    };
    assert_eq!(of("first"), ["one", "two", "three"]);
    // Tenants start in the file's folder.
    assert_eq!(of("second"), [home.path().canonicalize().unwrap().to_str().unwrap()]);
    let said = text(&output.stderr);
    let started: Vec<&str> = said.lines().filter(|line| line.ends_with(": started")).collect();
    assert_eq!(started, ["first", "second", "third"].map(|name| format!("partywall: {name}: started")));
    assert!(said.contains("second: exit code 7"), "{said}");
    // The node that was started for it has ended, and what was written is still there.
    assert_eq!(home.partywall(&["ps"]).output().unwrap().status.code(), Some(1));
    assert_eq!(text(&home.partywall(&["logs", "first"]).output().unwrap().stdout), "one\ntwo\nthree");
}

#[test]
fn ctrl_c_stops_everything_that_up_started() {
    let home = Home::new("interrupt");
    let file = home.file(&[home.sleeper("a", ""), home.sleeper("b", "")].concat());
    let mut up = home.spawn(&["up", &file]);
    until("both run", || home.marked().len() == 2);
    up.signal(rustix::process::Signal::INT);
    assert_eq!(up.wait().code(), Some(130));
    home.nothing_runs();
    assert_eq!(home.partywall(&["ps"]).output().unwrap().status.code(), Some(1));
}

#[test]
fn detached_tenants_are_listed_logged_and_stopped() {
    let home = Home::new("detach");
    let file =
        home.file(&[home.sleeper("sleeper", "weight = 3"), home.tenant("done", "echo hello", "")].concat());
    home.succeeds(&["up", "--detach", &file]);
    until("one has finished", || home.report("done")["activity"] == "finished");
    let sleeper = home.report("sleeper");
    assert_eq!(
        (&sleeper["activity"], &sleeper["weight"], &sleeper["class"]),
        (&"running".into(), &3.into(), &"best-effort".into())
    );
    assert_eq!(home.report("done")["exit_code"], 0);
    let table = home.succeeds(&["ps"]);
    assert!(table.contains("finished (exit code 0)") && table.contains("running for"), "{table}");
    assert_eq!(home.succeeds(&["logs", "--follow", "done"]), "hello\n");
    // The same file again changes nothing; another description of what runs is refused.
    let pid = home.pid("sleeper");
    home.succeeds(&["up", "--detach", &file]);
    assert_eq!(home.pid("sleeper"), pid);
    let other = home.file(&home.sleeper("sleeper", "weight = 4"));
    refused_here(&home, &["up", "--detach", &other], &["`sleeper` runs already", "partywall stop sleeper"]);
    refused_here(&home, &["stop", "sleepr"], &["no tenant is named `sleepr`", "did you mean `sleeper`?"]);
    home.succeeds(&["restart", "sleeper"]);
    until("it was started again", || {
        home.report("sleeper")["pid"].as_i64().is_some_and(|new| new != i64::from(pid))
    });
    assert_eq!(home.report("sleeper")["restarts"], 0, "it did not end by itself");
    assert!(home.succeeds(&["stop", "sleeper"]).contains("stopped: sleeper"));
    home.nothing_runs();
    until("the node has ended with its last tenant", || !home.path().join("node/control.sock").exists());
}

#[test]
fn run_joins_the_node_that_is_there() {
    let home = Home::new("join");
    let node = home.node();
    let mut run = home.spawn(&["run", "--name", "guest", "--class", "ls", "--", "sleep", "1000"]);
    until("it runs", || {
        home.reports().iter().any(|report| report["name"] == "guest" && report["pid"].is_i64())
    });
    assert_eq!(home.report("guest")["class"], "latency-sensitive");
    refused_here(&home, &["run", "--name", "guest", "--", "true"], &["`guest` runs already"]);
    refused_here(&home, &["restart", "guest"], &["belongs to the `partywall run`"]);
    home.succeeds(&["stop", "guest"]);
    assert_eq!(run.wait().code(), Some(143));
    home.nothing_runs();
    assert!(home.reports().is_empty());
    drop(node);
}

#[test]
fn a_signal_to_run_reaches_its_command() {
    let home = Home::new("signals");
    for (signal, code) in [(rustix::process::Signal::INT, 11), (rustix::process::Signal::TERM, 12)] {
        let ready = home.path().join(format!("ready-{code}"));
        let script = format!(
            "trap 'exit 11' INT; trap 'exit 12' TERM; touch {}; while :; do sleep 0.01; done",
            ready.display()
        );
        let mut run = home.spawn(&["run", "--", "sh", "-c", &script]);
        until("it is ready", || ready.exists());
        run.signal(signal);
        let status = run.wait();
        assert_eq!((status.code(), status.signal()), (Some(code), None));
    }
}

/// As [`refused`], with the node of `home`.
#[track_caller]
fn refused_here(home: &Home, arguments: &[&str], parts: &[&str]) {
    let output = home.partywall(arguments).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    for part in parts {
        assert!(message.contains(part), "{arguments:?}: `{part}` is not in: {message}");
    }
}
