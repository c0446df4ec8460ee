//! What goes wrong: things are killed, disks are full, tenants do not listen. Nothing hangs, leaks or harms a neighbour.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use rustix::process::Signal;

use super::home::{Home, is_alive, kill};
use crate::patience::until;
use crate::text;

/// Two tenants that run, and the processes of theirs.
fn two(home: &Home) -> (i32, i32) {
    let file = home.file(&[home.sleeper("victim", ""), home.sleeper("neighbour", "")].concat());
    home.succeeds(&["up", "--detach", &file]);
    (home.pid("victim"), home.pid("neighbour"))
}

fn restarts_as_another(home: &Home, before: i32) {
    until("it was started again", || {
        home.report("victim")["pid"].as_i64().is_some_and(|pid| pid != i64::from(before))
    });
    assert_eq!(home.report("victim")["restarts"], 1);
    assert!(!is_alive(before));
}

#[test]
fn a_killed_tenant_is_started_again_and_its_neighbour_goes_on() {
    let home = Home::new("kill-tenant");
    let _node = home.node();
    let (victim, neighbour) = two(&home);
    kill(victim);
    restarts_as_another(&home, victim);
    assert_eq!(home.report("victim")["end"], serde_json::Value::Null, "it runs");
    assert_eq!(home.pid("neighbour"), neighbour);
    home.stop_all();
}

#[test]
fn a_tenant_whose_shepherd_is_killed_is_swept_away_and_started_again() {
    let home = Home::new("kill-shepherd");
    let _node = home.node();
    let script = "setsid sleep 1000 & (setsid sleep 1000 &); exec sleep 1000";
    let file = home.file(&[home.tenant("victim", script, ""), home.sleeper("neighbour", "")].concat());
    home.succeeds(&["up", "--detach", &file]);
    until("all run", || home.marked().len() == 4);
    let (victim, neighbour) = (home.pid("victim"), home.pid("neighbour"));
    let before = home.marked();
    kill(home.shepherd_pid("victim"));
    restarts_as_another(&home, victim);
    until("all run again", || home.marked().len() == 4);
    let after = home.marked();
    let stayed: Vec<&i32> = after.iter().filter(|pid| before.contains(pid)).collect();
    assert_eq!(stayed, [&neighbour]);
    home.stop_all();
}

#[test]
fn tenants_outlive_the_node_and_the_next_one_finds_them() {
    let home = Home::new("kill-node");
    let node = home.node();
    let script = "while :; do echo alive; sleep 0.02; done";
    let file = home.file(&[home.tenant("talker", script, ""), home.sleeper("sleeper", "")].concat());
    home.succeeds(&["up", "--detach", &file]);
    let pids = (home.pid("talker"), home.pid("sleeper"));
    node.kill();
    assert!(is_alive(pids.0) && is_alive(pids.1));
    let log = home.path().join("node/tenants/talker/log");
    let size = || fs::metadata(&log).unwrap().len();
    let before = size();
    until("its log grows without a node", || size() > before + 100);
    let _node = home.node();
    assert_eq!((home.pid("talker"), home.pid("sleeper")), pids);
    assert_eq!(home.report("sleeper")["restarts"], 0);
    // And it is in its hands as in those of the node that started it.
    kill(pids.1);
    until("it is started again", || home.report("sleeper")["restarts"] == 1);
    home.stop_all();
}

#[test]
fn node_and_shepherd_killed_together_leave_nothing_behind() {
    let home = Home::new("kill-both");
    let node = home.node();
    let (victim, neighbour) = two(&home);
    let shepherd = home.shepherd_pid("victim");
    node.kill();
    kill(shepherd);
    let _node = home.node();
    restarts_as_another(&home, victim);
    assert_eq!(home.pid("neighbour"), neighbour);
    home.stop_all();
}

#[test]
fn node_and_tenant_killed_together_are_no_different() {
    let home = Home::new("kill-node-and-tenant");
    let node = home.node();
    let (victim, neighbour) = two(&home);
    node.kill();
    kill(victim);
    until("the shepherd has noted it", || home.shepherd("victim")["end"].is_object());
    let _node = home.node();
    restarts_as_another(&home, victim);
    assert_eq!(home.pid("neighbour"), neighbour);
    home.stop_all();
}

#[test]
fn a_node_killed_at_any_moment_of_a_start_leaves_one_of_each() {
    let home = Home::new("kill-starting");
    let tenants: Vec<String> = (0..4).map(|number| home.sleeper(&format!("t{number}"), "")).collect();
    let file = home.file(&tenants.concat());
    for step in 0..12 {
        let node = home.node();
        let mut up = home.spawn(&["up", "--detach", &file]);
        // Not waited for, so that the node is killed while it starts them: earlier or later, as the steps go.
        let end = Instant::now() + std::time::Duration::from_micros(500 * step);
        until("it is time", || Instant::now() >= end);
        node.kill();
        let _ = up.wait();
        // Whatever was under way, the next node gets the same to do and does it once.
        let node = home.node();
        home.succeeds(&["up", "--detach", &file]);
        until("all run", || home.reports().iter().all(|report| report["pid"].is_i64()));
        // One that is just being replaced by the program it executes shows no environment for a moment.
        until("there is one of each", || home.marked().len() == 4);
        if step % 3 == 2 {
            home.stop_all();
        }
        node.kill();
    }
    let _node = home.node();
    home.stop_all();
}

#[test]
fn what_was_to_be_stopped_is_stopped_by_the_next_node() {
    let home = Home::new("kill-stopping");
    let node = home.node();
    let file = home.file(&home.tenant("deaf", "trap '' TERM; while :; do sleep 0.01; done", ""));
    home.succeeds(&["up", "--detach", "--grace", "300ms", &file]);
    home.pid("deaf");
    until("it is deaf", || home.marked().len() == 2);
    let mut stop = home.spawn(&["stop", "deaf"]);
    until("it is being stopped", || home.report("deaf")["activity"] == "stopping");
    node.kill();
    assert_ne!(stop.wait().code(), Some(0), "nobody stopped it yet");
    let _node = home.node();
    until("it has stopped", || home.report("deaf")["activity"] == "stopped");
    home.nothing_runs();
}

#[test]
fn a_tenant_that_does_not_listen_is_killed_after_its_grace() {
    let home = Home::new("deaf");
    let _node = home.node();
    let file = home.file(&home.tenant("deaf", "trap '' TERM; echo deaf; while :; do sleep 0.01; done", ""));
    home.succeeds(&["up", "--detach", "--grace", "200ms", &file]);
    until("it is deaf", || home.succeeds(&["logs", "deaf"]) == "deaf\n");
    let before = Instant::now();
    home.succeeds(&["stop", "deaf"]);
    assert!(before.elapsed().as_millis() >= 200);
    assert_eq!(home.report("deaf")["end_text"], "signal 9 (SIGKILL)");
    home.nothing_runs();
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_the_grace() {
    let home = Home::new("impatient");
    let file =
        home.file(&home.tenant("deaf", "trap '' TERM INT; echo deaf; while :; do sleep 0.01; done", ""));
    let mut up = home.spawn(&["up", "--grace", "1h", &file]);
    home.answers();
    // The node answers before it has been asked to start it.
    until("it is there", || home.reports().len() == 1);
    until("it is deaf", || home.succeeds(&["logs", "deaf"]) == "deaf\n");
    up.signal(Signal::INT);
    until("it is being stopped", || home.report("deaf")["activity"] == "stopping");
    up.signal(Signal::INT);
    assert_eq!(up.wait().code(), Some(130));
    home.nothing_runs();
}

#[test]
fn a_hundred_children_are_stopped_with_their_tenant() {
    let home = Home::new("forks");
    let _node = home.node();
    // Half of them in sessions of their own, and all without a parent.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25; do \
                  (sleep 1000 & sleep 1000 & setsid sleep 1000 & setsid sleep 1000 &); done; exec sleep 1000";
    let file = home.file(&home.tenant("forks", script, ""));
    home.succeeds(&["up", "--detach", &file]);
    until("all run", || home.marked().len() == 101);
    home.succeeds(&["stop", "forks"]);
    home.nothing_runs();
    // The same where the command ends and its children stay.
    let output =
        home.partywall(&["run", "--", "sh", "-c", &script.replace("exec sleep 1000", "exit 5")]).output();
    assert_eq!(output.unwrap().status.code(), Some(5));
    home.nothing_runs();
}

#[test]
fn a_full_disk_under_the_log_does_not_harm_the_tenant() {
    let home = Home::new("full");
    let _node = home.node();
    let folder = home.path().join("node/tenants/writer");
    fs::create_dir_all(&folder).unwrap();
    // Every write there ends as one to a full disk.
    symlink("/dev/full", folder.join("log")).unwrap();
    let script = "i=0; while [ $i -lt 1000 ]; do echo 0123456789; i=$((i+1)); done; exit 5";
    let file = home.file(&home.tenant("writer", script, "restart = \"never\""));
    home.succeeds(&["up", "--detach", &file]);
    until("it has ended", || home.report("writer")["activity"] == "failed");
    let report = home.report("writer");
    assert_eq!((&report["exit_code"], &report["log_bytes_lost"]), (&5.into(), &11_000.into()));
    assert!(home.succeeds(&["ps"]).contains("writer: 11000 bytes of its log could not be written"));
}

#[test]
fn a_limit_on_file_sizes_harms_neither_node_nor_tenant() {
    let home = Home::new("limit");
    let program = env!("CARGO_BIN_EXE_partywall");
    // A mebibyte: more than everything else that a node writes, less than the log of this tenant.
    let limited = "ulimit -f 2048; exec \"$0\" --gpu sim:h200 node";
    let mut node = home.program("sh".as_ref(), &["-c", limited, program]);
    let mut node =
        node.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
    home.answers();
    let script = "head -c 3000000 /dev/zero; exec sleep 1000";
    let file = home.file(&home.tenant("writer", script, ""));
    home.succeeds(&["up", "--detach", &file]);
    until("bytes are lost", || {
        home.report("writer")["log_bytes_lost"].as_u64().is_some_and(|lost| lost > 1_000_000)
    });
    assert_eq!(home.report("writer")["activity"], "running");
    let pid = home.pid("writer");
    home.succeeds(&["stop", "--all"]);
    assert!(!is_alive(pid));
    node.kill().unwrap();
    node.wait().unwrap();
}

#[test]
fn two_nodes_do_not_share_a_folder() {
    let home = Home::new("two-nodes");
    let node = home.node();
    let output = home.partywall(&["node"]).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains(&format!("process {}", node.pid().as_raw_nonzero())), "{message}");
    home.reports();
    node.kill();
    // A node that died is in nobody's way.
    drop(home.node());
}

#[test]
fn sixty_four_tenants_at_once() {
    let home = Home::new("many");
    let tenants: Vec<String> = (0..64).map(|number| home.sleeper(&format!("t{number}"), "")).collect();
    let file = home.file(&tenants.concat());
    home.succeeds(&["up", "--detach", &file]);
    until("all run", || home.marked().len() == 64);
    assert!(home.reports().iter().all(|report| report["activity"] == "running"));
    home.stop_all();
}

#[test]
fn a_tenant_cannot_talk_to_the_node() {
    let home = Home::new("admin");
    let _node = home.node();
    let program = env!("CARGO_BIN_EXE_partywall");
    // Also not without its token in the environment, and not from a session of its own.
    for script in ["\"$0\" stop --all", "env -u PARTYWALL_TOKEN \"$0\" ps", "setsid -w \"$0\" ps"] {
        let output = home.partywall(&["run", "--", "sh", "-c", script, program]).output().unwrap();
        let message = text(&output.stderr);
        assert!(!output.status.success(), "{script}");
        assert!(message.contains("a process of a tenant may not talk to the node"), "{script}: {message}");
    }
    home.reports();
}

#[test]
fn rubbish_on_the_control_socket_is_answered_and_harms_nobody() {
    let home = Home::new("rubbish");
    let _node = home.node();
    let connect = || UnixStream::connect(home.path().join("node/control.sock")).unwrap();
    let answer = |line: &[u8]| {
        let mut stream = connect();
        stream.write_all(line).unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        reply
    };
    let up = |tenant: &str| {
        format!(
            "{{\"verb\":\"up\",\"tenants\":[{tenant}],\"env\":{{}},\"directory\":\"/\",\"grace\":\"1s\"}}\n"
        )
    };
    let tenant = |name: &str, memory: &str| {
        format!(
            "{{\"name\":\"{name}\",\"class\":\"best-effort\",\"memory\":\"{memory}\",\"command\":[\"true\"]}}"
        )
    };
    for (line, why) in [
        ("\u{0}\n".to_owned(), "this is no request"),
        ("{\"verb\":\"reboot\"}\n".to_owned(), "unknown variant `reboot`"),
        (up(&tenant("../../escape", "1GiB")), "is no name of a tenant"),
        (up(&tenant("a", "0B")), "without GPU memory"),
        (up(&[tenant("a", "1GiB"), tenant("a", "1GiB")].join(",")), "two tenants are named `a`"),
    ] {
        let reply = answer(line.as_bytes());
        assert!(reply.contains("refused") && reply.contains(why), "{line}: {reply}");
    }
    // Some that say nothing, or stop in the middle, and stay.
    let silent: Vec<UnixStream> = (0..20).map(|_| connect()).collect();
    (&silent[0]).write_all(b"{\"verb\":").unwrap();
    assert_eq!(home.reports().len(), 0);
}

#[test]
fn killed_runs_leave_nothing_behind() {
    let home = Home::new("kill-run");
    // With a node of its own, and with one that stays.
    for shared in [false, true] {
        let node = shared.then(|| home.node());
        let run = home.spawn(&["run", "--", "sh", "-c", "setsid sleep 1000 & exec sleep 1000"]);
        until("it runs", || home.marked().len() == 2);
        run.kill();
        until("its processes are gone", || home.marked().is_empty());
        if node.is_some() {
            until("it is forgotten", || home.reports().is_empty());
        }
    }
}

#[test]
fn up_goes_on_with_another_node() {
    let home = Home::new("up-node");
    let file = home.file(&home.sleeper("a", ""));
    let mut up = home.spawn(&["up", &file]);
    home.answers();
    let pid = home.pid("a");
    let lock = home.path().join("node/node.lock");
    let holder = || fs::read_to_string(&lock).unwrap().trim().parse::<i32>().ok();
    let node = holder();
    kill(node.unwrap());
    until("there is another node", || holder().is_some() && holder() != node);
    home.answers();
    assert_eq!(home.pid("a"), pid);
    up.signal(Signal::TERM);
    assert_eq!(up.wait().code(), Some(143));
    home.nothing_runs();
}

#[test]
fn a_state_that_cannot_be_read_is_put_aside_and_its_tenants_are_ended() {
    let home = Home::new("state");
    let node = home.node();
    let (victim, neighbour) = two(&home);
    node.kill();
    fs::write(home.path().join("node/state.json"), "rubbish").unwrap();
    let _node = home.node();
    until("they are gone", || !is_alive(victim) && !is_alive(neighbour));
    assert_eq!(home.reports().len(), 0);
    assert_eq!(fs::read_to_string(home.path().join("node/state.json.unreadable")).unwrap(), "rubbish");
}
