//! `partywall gateway`.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Scratch, partywall, recorded, text};

#[test]
fn the_example_is_the_one_in_the_repository_and_is_right() {
    let example = partywall(&["gateway", "--example"]);
    let file = recorded("examples/gateway.toml");
    assert_eq!(text(&example.stdout), std::fs::read_to_string(&file).unwrap());
    let checked = partywall(&["gateway", "--check", &file]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    let schema = text(&partywall(&["gateway", "--schema"]).stdout);
    assert_eq!(schema, std::fs::read_to_string(recorded("docs/gateway.schema.json")).unwrap());
}

#[test]
fn what_is_wrong_with_a_file_is_said_with_its_place() {
    let scratch = Scratch::new("gateway-wrong");
    let cases = [
        ("[[model]]\nnam = \"m\"\n", ":2:1: unknown key `nam`"),
        ("[keys]\nfile = \"none.txt\"\n[[model]]\nname = \"m\"\n", "none.txt"),
        ("[[model]]\nname = \"m\"\ntokenizer = \"none.json\"\n", "none.json"),
    ];
    for (file, expected) in cases {
        let file = scratch.file("gateway.toml", file);
        let checked = partywall(&["gateway", "--check", &file]);
        assert_eq!(checked.status.code(), Some(2));
        assert!(text(&checked.stderr).contains(expected), "{}", text(&checked.stderr));
    }
}

/// A gateway without replicas, and its clients' address.
fn start(scratch: &Scratch, more: &str) -> (Child, String) {
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n{more}[[model]]\nname = \"m\"\n"
    );
    let file = scratch.file("gateway.toml", &text);
    let mut child = Command::new(env!("CARGO_BIN_EXE_partywall"))
        .args(["gateway", &file])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).and_then(|rest| rest.split(';').next());
    let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
    (child, address)
}

#[test]
fn it_serves_until_it_is_told_to_stop() {
    let scratch = Scratch::new("gateway-serves");
    let (mut child, address) = start(&scratch, "[log]\naccess = \"access.log\"\n");
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"id\":\"m\""), "{answer}");
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let log = std::fs::read_to_string(scratch.0.join("access.log")).unwrap();
    assert!(log.contains("\"path\":\"/v1/models\""), "{log}");
}

#[test]
fn an_address_that_is_taken_is_an_error() {
    let scratch = Scratch::new("gateway-taken");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let file = scratch
        .file("gateway.toml", &format!("[listen]\naddress = \"{address}\"\n[[model]]\nname = \"m\"\n"));
    let output = partywall(&["gateway", &file]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains(&format!("cannot listen on {address}")),
        "{}",
        text(&output.stderr)
    );
}
