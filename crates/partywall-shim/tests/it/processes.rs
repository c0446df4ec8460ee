//! Processes and their node: fork, exec, ends, restarts.

use std::sync::atomic::Ordering;
use std::time::Duration;

use partywall_shim_api::VERSION;
use partywall_shim_api::frame::ToShim;

use crate::stage::{Node, Program};

#[test]
fn a_child_registers_by_itself_and_holds_nothing_of_its_parents() {
    let node = Node::new();
    let commands = [
        "open", "init", "launch", "child", "wait", "launch", "init", "launch", "wait", "end", "launch",
        "wait",
    ];
    let mut program = Program::preloaded(&commands).under(&node).start();
    let parent = node.welcome();
    program.until("waiting");
    assert!(!node.is_wanted(), "a child that does nothing is nobody");
    program.go();
    let child = node.welcome();
    program.until("waiting");
    // Its first launch was before its first use of CUDA that the library could see: through a pointer of its parent's.
    assert_eq!(child.page.shim.launches.load(Ordering::Relaxed), 1);
    assert_eq!(parent.page.shim.launches.load(Ordering::Relaxed), 1);
    program.go();
    assert!(child.is_over());
    program.until("waiting");
    assert_eq!(parent.page.shim.launches.load(Ordering::Relaxed), 2);
    program.go();
    assert!(parent.is_over());
    assert!(program.end());
}

/// The child keeps no copy of the parent's connection: the node sees the parent's end although the child lives on.
#[test]
fn a_parents_end_is_seen_while_its_child_lives() {
    let node = Node::new();
    let program = Program::preloaded(&["open", "init", "child", "open", "end", "exec", "wait"]).under(&node);
    let mut program = program.start();
    let before = node.welcome();
    // The new image has closed the connection of the old one and has not used CUDA.
    program.until("waiting");
    assert!(before.is_over());
    assert!(!node.is_wanted());
    program.go();
    assert!(program.end());
}

#[test]
fn a_new_image_registers_anew() {
    let node = Node::new();
    let commands = ["open", "init", "launch", "exec", "open", "init", "launch", "launch", "wait"];
    let mut program = Program::preloaded(&commands).under(&node).start();
    let first = node.welcome();
    let second = node.welcome();
    program.until("waiting");
    assert!(first.is_over());
    assert_eq!(first.page.shim.launches.load(Ordering::Relaxed), 1);
    assert_eq!(second.page.shim.launches.load(Ordering::Relaxed), 2);
    program.go();
    assert!(program.end());
}

#[test]
fn a_hundred_children_come_and_go() {
    let node = Node::new();
    let mut commands = vec!["open", "init"];
    for _ in 0..100 {
        commands.extend(["child", "init", "launch", "end"]);
    }
    let mut program = Program::preloaded(&[&commands[..], &["wait"]].concat()).under(&node).start();
    let _parent = node.welcome();
    for _ in 0..100 {
        let child = node.welcome();
        assert!(child.is_over());
        assert_eq!(child.page.shim.launches.load(Ordering::Relaxed), 1);
    }
    let lines = program.until("waiting");
    assert_eq!(lines.iter().filter(|line| *line == "child 0").count(), 100);
    program.go();
    assert!(program.end());
}

/// Threads that are in the middle of launches when `main` returns neither crash nor hang.
#[test]
fn a_program_may_end_while_its_threads_launch() {
    for _ in 0..10 {
        let node = Node::new();
        let program = Program::preloaded(&["open", "init", "threads"]).under(&node).start();
        let tenant = node.welcome();
        assert!(program.end());
        assert!(tenant.is_over());
    }
}

#[test]
fn a_node_that_is_restarted_gets_its_processes_back() {
    let mut node = Node::new();
    let commands = ["open", "init", "launch", "wait", "launch", "wait", "launch", "wait"];
    let mut program = Program::preloaded(&commands).under(&node).start();
    let first = node.welcome();
    program.until("waiting");
    first.page.shim.memory_bytes.store(4096, Ordering::Relaxed);
    node.restart();
    drop(first.socket);
    let second = node.welcome();
    assert_eq!(second.held_bytes, 4096, "it says what it holds");
    // The thread that registered may still be at it.
    while second.page.shim.heartbeat_ns.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    program.go();
    program.until("waiting");
    assert_eq!(first.page.shim.launches.load(Ordering::Relaxed), 1);
    assert_eq!(second.page.shim.launches.load(Ordering::Relaxed), 1);
    program.go();
    program.until("waiting");
    program.go();
    assert!(program.end());
}

#[test]
fn a_node_that_is_not_there_is_said_and_does_not_stop_the_program() {
    let node = Node::new();
    std::fs::remove_file(&node.path).unwrap();
    let (success, out, err) = Program::preloaded(&["open", "init", "launch"]).under(&node).outcome();
    assert!(success);
    assert_eq!(out, "open yes\ninit 0\nlaunch 0\n");
    assert_eq!(err.lines().count(), 2, "{err}");
    assert!(err.starts_with("partywall: no node at "), "{err}");
    assert!(err.contains("no GPU memory for this process until there is one"), "{err}");
}

/// Where hundreds of processes begin at once, it takes a node seconds to get to each.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the node of this test is slow; nothing waits for it to be done"
)]
fn a_node_that_takes_its_time_is_waited_for() {
    let node = Node::new();
    let mut program = Program::preloaded(&["open", "init", "launch", "wait"]).under(&node).start();
    std::thread::sleep(Duration::from_millis(2500));
    let tenant = node.welcome();
    program.until("waiting");
    assert_eq!(tenant.page.shim.launches.load(Ordering::Relaxed), 1);
    assert!(!node.is_wanted(), "it came once");
    program.go();
    assert!(program.end());
}

#[test]
fn a_refusal_is_said() {
    let node = Node::new();
    let program = Program::preloaded(&["open", "init", "wait"]).under(&node);
    let refused = std::thread::scope(|scope| {
        let program = scope.spawn(|| program.env("PARTYWALL_COVERAGE", "").outcome());
        let (socket, _) = node.accept();
        let text = "this is a test".to_owned();
        socket.send(&ToShim::Refused { version: VERSION + 1, text }.encode(), &[]).unwrap();
        program.join().unwrap()
    });
    assert!(
        refused.2.contains(&format!("the node (version {}) refuses this process", VERSION + 1)),
        "{}",
        refused.2
    );
    assert!(refused.2.contains("this is a test"), "{}", refused.2);
}

#[test]
fn a_token_that_makes_no_sense_is_said() {
    let node = Node::new();
    let program = Program::preloaded(&["open", "init"]).under(&node).env("PARTYWALL_TOKEN", "0123");
    let (success, _, err) = program.outcome();
    assert!(success);
    assert!(err.contains("PARTYWALL_TOKEN is not 32 hexadecimal digits"), "{err}");
    assert!(!node.is_wanted());
}
