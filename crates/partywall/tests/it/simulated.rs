//! `--gpu sim:…`: the same commands on a simulated GPU, with real processes, real memory and modelled times.

mod faults;
mod sides;
mod walls;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use partywall_core::catalogue::Catalogue;
use partywall_driver::soft::{LIBRARY, SoftDriver, find_library};
use serde_json::Value;

use crate::{Scratch, json, refused, text};

/// A simulated GPU in `folder` for one test alone, behind a link of `pcie_gb_s`: the variables with which processes find it.
pub(crate) fn own_gpu(folder: &Path, pcie_gb_s: f64) -> BTreeMap<String, String> {
    let mut gpu = Catalogue::builtin().unwrap().get("h200").unwrap().clone();
    gpu.pcie_gb_s.value = pcie_gb_s;
    let library = find_library(LIBRARY, Path::new(env!("CARGO_BIN_EXE_partywall"))).unwrap();
    let driver = SoftDriver::make(&gpu, &library, folder).unwrap();
    let variables = driver.environment(|name| std::env::var_os(name)).into_iter();
    variables.map(|(name, value)| (name.to_owned(), value.into_string().unwrap())).collect()
}

/// A command whose temporary directory is in `scratch`, so that its GPU is its own.
fn command(scratch: &Scratch, arguments: &[&str]) -> Command {
    let temporary = scratch.0.join("tmp");
    fs::create_dir_all(&temporary).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(arguments).env("TMPDIR", temporary).current_dir(&scratch.0);
    command
}

fn on(scratch: &Scratch, arguments: &[&str]) -> Output {
    command(scratch, arguments).output().unwrap()
}

#[test]
fn a_doctor_finds_a_gpu_that_says_it_is_simulated() {
    let scratch = Scratch::new("soft-doctor");
    let report = json(&on(&scratch, &["--gpu", "sim:h200", "doctor", "--json"]));
    assert_eq!(report["simulated"], true);
    let gpu = &report["gpus"][0];
    assert_eq!(gpu["name"], "NVIDIA H200 (simulated)");
    assert_eq!((&gpu["id"], &gpu["sms"]), (&"h200".into(), &132.into()));
    assert_eq!(gpu["green_contexts"]["sms_per_group"], 2);
    assert_eq!(
        (&gpu["untold"], &report["driver"]["cuda_problem"]),
        (&Value::Array(Vec::new()), &Value::Null)
    );
    let state = |id: &str| {
        let walls = report["walls"].as_array().unwrap();
        walls.iter().find(|wall| wall["id"] == id).unwrap()["state"].as_str().unwrap().to_owned()
    };
    for wall in ["time-slicing", "mps", "mps-percentage", "green-contexts", "stream-priority", "sides"] {
        assert_eq!(state(wall), "available", "{wall}");
    }
    assert_eq!(state("mig"), "not-available");
    // The option may stand behind the command too, and any model will do.
    for model in ["a100-40gb", "l4", "orin-nano"] {
        let report = json(&on(&scratch, &["doctor", "--gpu", &format!("sim:{model}"), "--json"]));
        assert_eq!((&report["gpus"][0]["id"], &report["simulated"]), (&model.into(), &true.into()));
    }
    let shown = text(&on(&scratch, &["--gpu", "sim:h200", "doctor"]).stdout);
    assert!(shown.contains("SIMULATED") && shown.contains("times are modelled"), "{shown}");
}

#[test]
fn what_the_driver_crate_promises_holds_on_it() {
    let scratch = Scratch::new("soft-check");
    let output = on(&scratch, &["--gpu", "sim:h200", "doctor", "--check", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["checks"][0]["error"], Value::Null);
    let checks = report["checks"][0]["checks"].as_array().unwrap();
    assert!(checks.len() > 8, "{report}");
    // What kernels compute takes as long as this machine needs for it: one that is busy keeps no times, and a result all the same.
    for check in checks.iter().filter(|check| check["name"] != "events time a kernel") {
        assert_eq!(check["passed"], true, "{check}");
    }
}

/// Victims and neighbours of every kind behind every wall that needs no change of the GPU.
const PLAN: &str = r#"
rounds = 1
warmup_s = 0.02
# With the pauses of the tenants a third of a second, so that on a busy machine too the neighbour gets to run before they are over.
seconds_max = 1.0
requests_wanted = 300
evidence = "shown"
walls = [
    { wall = "time-slicing" },
    { wall = "mps" },
    { wall = "mps-percentage", setting = "50/50" },
    { wall = "green-contexts", setting = "64/68" },
    { wall = "green-contexts", setting = "64/68", processes = "one" },
]
[[tenant]]
name = "copies"
class = "latency-sensitive"
built_in = "copy-h2d,size=64KiB"
load = { closed = { pause = "1ms" } }
[[tenant]]
name = "kernels"
class = "latency-sensitive"
built_in = "tiny-kernels"
load = { closed = { pause = "1ms" } }
[[tenant]]
name = "neighbour"
class = "best-effort"
built_in = "copies-h2d,size=8MiB"
[[pair]]
"#;

#[test]
fn a_measurement_runs_behind_every_wall_and_says_that_it_is_none() {
    let scratch = Scratch::new("soft-measure");
    let file = scratch.file("small.toml", PLAN);
    let record = json(&on(&scratch, &["--gpu", "sim:h200", "measure", "--plan", &file, "--json"]));
    let flags =
        [&record["simulated"], &record["complete"], &record["pretended"]].map(|flag| flag.as_bool().unwrap());
    assert_eq!(flags, [true, true, false]);
    assert_eq!(record["environment"]["gpu"]["name"], "NVIDIA H200 (simulated)");
    assert_eq!(record["command"], "partywall measure --gpu sim:h200 --plan small.toml");
    let rows = record["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 10);
    for row in rows {
        assert_eq!(row["error"], Value::Null, "{row}");
    }
    // How many there are on a busy machine is nobody's promise; a median may need more than there were.
    for cell in record["cells"].as_array().unwrap() {
        assert_eq!(cell["error"], Value::Null, "{cell}");
        let done = |result: &Value| result["requests"].as_u64().unwrap() > 0;
        assert!(cell["results"].as_array().unwrap().iter().all(done), "{cell}");
    }
    // Never among the results of real GPUs.
    let folder = scratch.0.join("results/sim-h200");
    let page = fs::read_to_string(folder.join("small.html")).unwrap();
    assert!(page.contains("Simulated GPU, times modelled"), "the page does not say it");
    let written = folder.join("small.json").display().to_string();
    let shown = text(&on(&scratch, &["measure", "show", &written]).stdout);
    assert!(shown.contains("simulated GPU"), "{shown}");
    refused(&["sim", "validate", "--results", &written], &["not measured on a GPU"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    refused(&["--gpu", "sim:h20", "doctor"], &["h20", "did you mean `h200`"]);
    refused(&["--gpu", "h200", "doctor"], &["write sim:h200", "CUDA_VISIBLE_DEVICES"]);
    refused(&["doctor", "--gpu", "sim:"], &["write sim:h200"]);
    refused(&["--gpu", "sim:h200", "gpus"], &["uses no GPU", "without `sim:`"]);
    refused(&["--gpu", "sim:h200", "measure", "show", "x.json"], &["uses no GPU"]);
    refused(&["--gpu", "sim:l4", "doctor", "--gpu", "sim:h200"], &["twice", "sim:l4", "sim:h200"]);
}

#[test]
fn a_folder_in_the_way_is_named() {
    let scratch = Scratch::new("soft-blocked");
    fs::create_dir_all(&scratch.0).unwrap();
    let blocked = scratch.file("tmp", "");
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    let output = command.args(["--gpu", "sim:h200", "doctor"]).env("TMPDIR", &blocked).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains(&blocked) && message.contains("simulated GPU"), "{message}");
}

#[test]
fn a_program_without_its_library_says_where_it_looked() {
    let scratch = Scratch::new("soft-library");
    let program = scratch.0.join("partywall");
    // By another process: a file that this one holds open for writing while a test beside it forks cannot be run.
    assert!(
        Command::new("cp").arg(env!("CARGO_BIN_EXE_partywall")).arg(&program).status().unwrap().success()
    );
    let output = Command::new(&program).args(["--gpu", "sim:h200", "doctor"]).output().unwrap();
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for part in ["libpartywall_softgpu.so", "lib/partywall", &scratch.0.display().to_string()] {
        assert!(message.contains(part), "{part}: {message}");
    }
}
