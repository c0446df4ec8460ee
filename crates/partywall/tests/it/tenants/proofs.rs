//! SM sets are shown to be their tenants' own before anything is promised, and who would not have his own is not started.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::home::Home;
use super::walls::{daemon, log, no_daemon, refused, sets, walled, worker};
use crate::patience::until;

/// Like any GPU's; copies do not matter here.
const PCIE_GB_S: f64 = 50.0;

/// A node with an MPS daemon on a GPU of its own, where sets can be looked at that it would not hand out.
struct Ground {
    home: Home,
    _node: super::home::Process,
}

impl Ground {
    fn new(name: &str, wall: &str) -> Self {
        let home = Home::with_gpu(name, PCIE_GB_S);
        let node = home.spawn(&["node", "--wall", wall]);
        home.answers();
        Self { home, _node: node }
    }

    /// What makes a process a client of its daemon.
    fn client(&self) -> BTreeMap<String, String> {
        let pipe = self.home.path().join("node/mps/pipe");
        [("CUDA_MPS_PIPE_DIRECTORY".to_owned(), pipe.display().to_string())].into()
    }

    /// What is found of sets, by their groups of two SMs; `env` is the probes'.
    fn prove(&self, groups: &[&str], env: &BTreeMap<String, String>) -> Value {
        let probe = |groups: &&str| {
            let (first, last) = groups.split_once('-').unwrap();
            let count = last.parse::<u32>().unwrap() - first.parse::<u32>().unwrap() + 1;
            json!({ "sms": 2 * count, "alone": true, "groups": groups, "env": env })
        };
        let mps = json!({ "control": self.home.mps_control(), "folder": self.home.path().join("node/mps") });
        let probes: Vec<Value> = groups.iter().map(probe).collect();
        let file = self.home.path().join("task.json");
        fs::write(&file, json!({ "mps": mps, "probes": probes }).to_string()).unwrap();
        let report = self.home.succeeds(&["device", "meet", "--task", file.to_str().unwrap()]);
        serde_json::from_str(&report).unwrap()
    }
}

#[test]
fn disjoint_sets_meet_and_sets_that_share_a_group_are_found_out() {
    let ground = Ground::new("prove", "mps");
    let env = ground.client();
    let found = ground.prove(&["0-30", "31-60", "61-65"], &env);
    assert_eq!(found["finding"], json!({ "verdict": "disjoint" }), "{found}");
    let there: Vec<&Value> = (0..3).map(|probe| &found["probes"][probe]["there"]).collect();
    assert_eq!(there, [62, 60, 10]);
    let found = ground.prove(&["0-30", "40-60", "30-35"], &env);
    assert_eq!(found["finding"], json!({ "verdict": "overlap", "one": 0, "other": 2, "sms": 2 }), "{found}");
    let found = ground.prove(&["0-30", "31-40"], &BTreeMap::new());
    assert!(found["problem"].as_str().unwrap().contains("not all clients"), "{found}");
    assert_eq!(found["finding"], Value::Null);
}

/// Starts it until it is refused for this. On a busy machine blocks may come too late for a proof; then it is started, and not guaranteed.
fn refused_when_it_is_known(home: &Home, name: &str, file: &str, parts: &[&str]) {
    let file = home.file(file);
    until(&format!("it is known that {name} cannot be started"), || {
        let output = home.partywall(&["up", "--detach", &file]).output().unwrap();
        if output.status.success() {
            assert_eq!(home.report(name)["facts"]["guaranteed"], false);
            home.succeeds(&["stop", name]);
            return false;
        }
        refused(&output, parts);
        assert_eq!(log(home, name), "");
        true
    });
}

/// A client that fills two SMs and does not let go.
fn busy(ground: &Ground) -> Child {
    let arguments = ["device", "meet", "--probe", "2", "--groups", "65", "--patience", "60s"];
    let mut command = ground.home.partywall(&arguments);
    command.envs(ground.client()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.as_mut().unwrap().write_all(b"\"fill\"\n").unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("\"there\":2")));
    child
}

#[test]
fn a_neighbour_that_does_not_pause_is_no_overlap() {
    let ground = Ground::new("prove-busy", "mps");
    let mut neighbour = busy(&ground);
    let found = ground.prove(&["0-30", "31-65"], &ground.client());
    let busy = json!({ "verdict": "busy", "probe": 1, "there": 68 });
    assert_eq!(found["finding"], busy, "{found}");
    drop(neighbour.stdin.take());
    assert!(neighbour.wait().unwrap().success());
    let found = ground.prove(&["31-65"], &ground.client());
    assert_eq!(found["finding"]["verdict"], "disjoint", "{found}");
    // The blocks of a client that is killed are gone with it.
    let mut neighbour = self::busy(&ground);
    neighbour.kill().unwrap();
    neighbour.wait().unwrap();
    let found = ground.prove(&["31-65"], &ground.client());
    assert_eq!(found["finding"]["verdict"], "disjoint", "{found}");
}

#[test]
fn a_tenant_is_started_when_its_sms_are_its_own_and_not_otherwise() {
    let home = Home::with_gpu("proofs", PCIE_GB_S);
    let mut node = home.spawn_into(&["node", "--wall", "green-contexts"], &home.path().join("said"));
    home.answers();
    let kept = daemon(&home);
    let good = worker(&home, "good", "", "share.sms = 40");
    home.succeeds(&["up", "--detach", &home.file(&walled("green-contexts", &[good]))]);
    // The answer came after the proof.
    until("it is guaranteed", || home.report("good")["facts"]["guaranteed"] == true);
    // Its process divides the GPU otherwise: its set begins at the SM after the one that the node means, and ends on a neighbour's.
    let split = |name: &str, fault: &str| {
        let env = format!("share.sms = 92\nenv.PARTYWALL_SOFTGPU_FAULT = \"{fault}\"");
        walled("green-contexts", &[worker(&home, name, "", &env)])
    };
    let parts = ["bad is not started", "SMs 0-91", "SMs 92-131", "2 SMs in common"];
    refused_when_it_is_known(&home, "bad", &split("bad", "split-from=130"), &parts);
    assert_eq!(sets(&home), [("good".to_owned(), 92, 132)]);
    // One block more finds room.
    let parts = ["large is not started", "SMs 0-91 finds room for one block more"];
    refused_when_it_is_known(&home, "large", &split("large", "green-more=2"), &parts);
    // What was wrong with one tenant is not held against the next.
    let fair = worker(&home, "fair", "", "share.sms = 92");
    home.succeeds(&["up", "--detach", &home.file(&walled("green-contexts", &[fair]))]);
    until("both are guaranteed", || {
        home.reports().len() == 2 && home.reports().iter().all(|report| report["facts"]["guaranteed"] == true)
    });
    // The same layout again is known: no prover is started, so its file is not written.
    home.succeeds(&["stop", "fair"]);
    assert!(
        home.partywall(&["run", "--share", "92sms", "--", "sh", "-c", "! test -e $PARTYWALL_DIR/proof.json"])
            .status()
            .unwrap()
            .success()
    );
    home.stop_all();
    node.signal(rustix::process::Signal::TERM);
    node.wait();
    no_daemon(&home, kept);
}

#[test]
fn what_cannot_be_told_is_not_guaranteed_until_it_can() {
    let ground = Ground::new("proofs-busy", "green-contexts");
    let mut neighbour = busy(&ground);
    let home = &ground.home;
    let tenant = worker(home, "a", "", "share.sms = 20");
    home.succeeds(&["up", "--detach", &home.file(&walled("green-contexts", &[tenant]))]);
    let shown = home.succeeds(&["ps"]);
    let reason = "a: not guaranteed: its SMs could not be shown to be its own: busy: 18 of 20 blocks found an SM of SMs 112-131";
    assert!(shown.contains(reason), "{shown}");
    assert_eq!(home.report("a")["activity"], "running", "{}", home.report("a"));
    drop(neighbour.stdin.take());
    assert!(neighbour.wait().unwrap().success());
    until("it was tried again", || home.report("a")["facts"]["guaranteed"] == true);
    home.stop_all();
}
