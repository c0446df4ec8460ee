//! A node keeps one GPU: who wants another one is told so, whichever command it is.

use std::process::{Command, Output, Stdio};

use super::home::Home;
use crate::{refused, text};

/// A command with nothing added to its words, in the test's folder.
fn plainly(home: &Home, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .env("PARTYWALL_DIR", home.path().join("node"))
        .output()
        .unwrap()
}

#[test]
fn another_gpu_than_the_nodes_is_refused() {
    let home = Home::new("gpus");
    let _node = home.node();
    let folder = home.path().join("node").display().to_string();
    let file = home.file(&home.tenant("a", "true", "restart = \"never\""));
    let chosen = home.file(&format!("gpu.select = \"sim:l4\"\n{}", home.tenant("a", "true", "")));
    let other = ["keeps the simulated GPU sim:h200, not sim:l4", "write --gpu sim:h200", "--dir"];
    let none =
        ["keeps the simulated GPU sim:h200, and this command was not told", "write --gpu sim:h200", "--dir"];
    let cases: [(&[&str], _); 8] = [
        (&["--gpu", "sim:l4", "run", "--", "echo", "started"], other),
        (&["run", "--", "echo", "started"], none),
        (&["up", "--gpu", "sim:l4", &file], other),
        (&["up", &file], none),
        (&["up", "--detach", &file], none),
        (&["up", &chosen], other),
        (&["--gpu", "sim:l4", "ps"], other),
        (&["--gpu", "sim:l4", "stop", "--all"], other),
    ];
    for (arguments, parts) in cases {
        let output = plainly(&home, arguments);
        let message = text(&output.stderr);
        assert_eq!(
            (output.status.code(), text(&output.stdout).as_str()),
            (Some(2), ""),
            "{arguments:?}: {message}"
        );
        for part in parts.into_iter().chain([folder.as_str()]) {
            assert!(message.contains(part), "{arguments:?}: `{part}` is not in: {message}");
        }
    }
    assert!(home.reports().is_empty(), "something was started");
    let joined = plainly(&home, &["--gpu", "sim:h200", "run", "--", "echo", "started"]);
    assert_eq!((joined.status.code(), text(&joined.stdout).as_str()), (Some(0), "started\n"));
}

#[test]
fn the_gpu_may_stand_before_every_command_of_a_node() {
    let home = Home::new("before");
    let file = home.file(&[home.sleeper("sleeper", ""), home.tenant("done", "echo hello", "")].concat());
    home.succeeds(&["up", "--detach", &file]);
    super::until("one has finished", || home.report("done")["activity"] == "finished");
    for (arguments, part) in [
        (&["ps"][..], "sleeper"),
        (&["logs", "done"], "hello"),
        (&["coverage", "done"], "nothing is known"),
        (&["restart", "sleeper"], "sleeper"),
        (&["stop", "--all"], "stopped: "),
    ] {
        let output = plainly(&home, &[&["--gpu", "sim:h200"], arguments].concat());
        let (shown, message) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success() && shown.contains(part), "{arguments:?}: {shown}{message}");
    }
    home.nothing_runs();
    super::until("the node has ended", || !home.path().join("node/control.sock").exists());
    // Without a node it is what it is without --gpu.
    let output = plainly(&home, &["--gpu", "sim:h200", "ps"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("no node is running in"), "{}", text(&output.stderr));
    refused(&["--gpu", "sim:h20", "ps"], &["did you mean `h200`"]);
}
