//! The program as users meet it: what it prints, what it writes, how it fails.
#![allow(
    clippy::disallowed_methods,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests start processes, use temporary directories and may panic"
)]

mod bench;
mod copies;
mod engine_sim;
mod gateway;
mod gateway_and_engines;
mod http;
mod launches;
mod measure;
mod patience;
mod promises;
mod ptx;
mod simulated;
mod slices;
mod squeezed;
mod tenants;
mod vram;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("partywall-it-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn partywall(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_partywall")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn recorded(path: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).display().to_string()
}

/// Exit status 2, nothing on standard output, and a message with every one of `parts`.
#[track_caller]
fn refused(arguments: &[&str], parts: &[&str]) {
    let output = partywall(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {message}");
    assert_eq!(text(&output.stdout), "", "{arguments:?}");
    for part in parts {
        assert!(message.contains(part), "{arguments:?}: `{part}` is not in: {message}");
    }
}

#[test]
fn the_demo_has_every_wall_and_the_same_bytes_for_the_same_seed() {
    let scratch = Scratch::new("demo");
    let directory = scratch.0.join("out").display().to_string();
    let first = partywall(&["demo", "--seed", "7", "--json", "--out", &directory]);
    let report = json(&first);
    assert_eq!(report["gpu"], "h200");
    assert_eq!(report["simulated"], true);
    assert_eq!(report["seed"], 7);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 20);
    let row = |workload: &str, wall: &str| {
        rows.iter().find(|row| row["workload"] == workload && row["wall"] == wall).unwrap().clone()
    };
    for key in ["ls_p50_ms", "ls_p99_ms", "slowdown_p99", "slo_miss_rate", "be_kept"] {
        assert!(row("resnet152", "partywall")[key].is_f64(), "{key}");
    }
    // Measured: 46 times slower beside a VRAM stream under MPS, so the load cannot be served.
    assert_eq!(row("stream", "mps")["saturated"], true);
    assert_eq!(row("stream", "mps")["slowdown_p99"], serde_json::Value::Null);
    assert_eq!(row("stream", "mps")["validated"], true);
    assert_eq!(row("stream", "sides")["validated"], false);
    assert_eq!(row("stream", "exclusive")["be_kept"], 0.0);
    assert_eq!(row("stream", "time-slicing")["fault_contained"], true);
    assert_eq!(first.stdout, fs::read(scratch.0.join("out/report.json")).unwrap());
    assert!(fs::read_to_string(scratch.0.join("out/report.html")).unwrap().contains("Simulated"));
    assert_eq!(fs::read_dir(scratch.0.join("out")).unwrap().count(), 2);
    let second = partywall(&["demo", "--seed", "7", "--json"]);
    assert!(first.stdout == second.stdout, "the same seed gave other bytes");
}

#[test]
fn bad_arguments_name_what_would_be_right() {
    refused(&["demo", "--gpu", "h20"], &["h20", "h200", "hint: `partywall gpus`"]);
    refused(&["demo", "--seed", "minus one"], &["minus one"]);
    refused(&["gpus", "--gpu", "tpu"], &["tpu", "a100-40gb"]);
    refused(&["config"], &["--example"]);
    refused(&["simulate"], &["simulate"]);
    refused(&["sim", "validate", "no/such/file.csv"], &["cannot read no/such/file.csv"]);
}

#[test]
fn nothing_is_written_for_a_demo_that_is_refused() {
    let scratch = Scratch::new("refused");
    let directory = scratch.0.join("out").display().to_string();
    refused(&["demo", "--gpu", "h20", "--out", &directory], &["h20"]);
    assert!(!scratch.0.join("out").exists());
}

#[test]
fn a_directory_that_cannot_be_written_is_not_the_users_input() {
    let scratch = Scratch::new("blocked");
    let file = scratch.file("in-the-way", "");
    let output = partywall(&["man", &format!("{file}/deeper")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cannot write"), "{}", text(&output.stderr));
}

#[test]
fn pairs_are_refused_with_their_line() {
    let scratch = Scratch::new("pairs");
    let head = "mechanism,ls,ls_batch,ls_sm_percent,be,be_batch,be_sm_percent,p50_ms,p99_ms,be_rate_per_s\n";
    let good = "mps,resnet50,1,100,stream,,100,46.1,48.2,4224\n";
    for (name, rows, parts) in [
        ("wall", "vmps,resnet50,1,100,stream,,100,1,1,\n", [":3: ", "`vmps` is no wall", "time-slicing"]),
        ("zero", "mps,resnet50,1,100,stream,,100,0,1,\n", [":3: ", "p50_ms is 0", "expected a time in ms"]),
        (
            "cell",
            "mps,resnet50,one,100,stream,,100,1,1,\n",
            [":3: ", "invalid digit", "expected the columns"],
        ),
        (
            "batch",
            "mps,resnet50,1,100,vgg16,,100,1,1,\n",
            [":3: ", "be_batch is empty", "expected its batch size"],
        ),
        (
            "network",
            "mps,lenet,1,100,stream,,100,1,1,\n",
            ["lenet-b1", "no such recorded network", "resnet50"],
        ),
        ("share", "mps,resnet50,1,0,stream,,100,1,1,\n", [":3: ", "ls_sm_percent is 0", "expected 1 to 100"]),
    ] {
        let file = scratch.file(&format!("{name}.csv"), &format!("{head}{good}{rows}"));
        refused(&["sim", "validate", &file, "--json"], &parts);
    }
    let empty = scratch.file("empty.csv", "");
    refused(&["sim", "validate", &empty], &["empty.csv:1: no pairs"]);
    let pretended = scratch.file(
        "pretended.json",
        r#"{"format": "partywall-measure-1", "simulated": false, "pretended": true, "environment": {"gpu": null},
            "tenants": [], "cells": []}"#,
    );
    refused(
        &["sim", "validate", "--results", &pretended],
        &["pretended.json: its figures were not measured on a GPU"],
    );
    refused(
        &["sim", "validate", "--results", &scratch.file("a.json", "{")],
        &["a.json:1:1: EOF while parsing"],
    );
    let nothing = partywall(&["sim", "validate"]);
    assert_eq!(nothing.status.code(), Some(2), "a file is needed");
}

#[test]
fn the_model_is_within_its_floor_on_the_recorded_pairs() {
    let output = json(&partywall(&["sim", "validate", &recorded("results/h200/pairs.csv"), "--json"]));
    let walls = output["walls"].as_array().unwrap();
    let names: Vec<&str> = walls.iter().map(|wall| wall["wall"].as_str().unwrap()).collect();
    assert_eq!(names, ["time-slicing", "mps", "mps-percentage"]);
    for wall in walls {
        assert!(wall["median_error_p50"].as_f64().unwrap() <= 0.15, "{wall}");
        assert!(wall["n"].as_u64().unwrap() >= 16, "{wall}");
        assert!(wall["p90_error_p50"].is_f64() && wall["median_error_p99"].is_f64(), "{wall}");
    }
}

#[test]
fn gpus_are_listed_with_sources() {
    let all = text(&partywall(&["gpus"]).stdout);
    for id in
        ["h200", "h100-sxm", "h100-pcie", "a100-40gb", "a100-80gb", "l4", "l40s", "orin-nano", "agx-orin"]
    {
        assert!(all.contains(id), "{id} is not listed");
    }
    let one = text(&partywall(&["gpus", "--gpu", "h200"]).stdout);
    assert!(one.contains("measured") && one.contains("3g.71gb"), "{one}");
    let value = json(&partywall(&["gpus", "--gpu", "h200", "--json"]));
    assert_eq!(value["sms"]["value"], 132);
}

#[test]
fn the_configuration_is_checked_with_its_place() {
    let scratch = Scratch::new("config");
    let example = text(&partywall(&["config", "--example"]).stdout);
    let file = scratch.file("partywall.toml", &example);
    let output = partywall(&["config", &file]);
    assert!(text(&output.stdout).contains("nothing wrong"), "{}", text(&output.stderr));
    let wrong = scratch.file("wrong.toml", "[[tenant]]\nname = \"a\"\nclas = \"best-effort\"\n");
    refused(&["config", &wrong], &["wrong.toml:3:1", "clas", "class"]);
    let schema: serde_json::Value =
        serde_json::from_slice(&partywall(&["config", "--schema"]).stdout).unwrap();
    assert!(schema["properties"]["tenant"].is_object());
}

#[test]
fn completions_and_man_pages_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        let script = text(&partywall(&["completions", shell]).stdout);
        assert!(script.contains("partywall") && script.contains("validate"), "{shell}");
    }
    let scratch = Scratch::new("man");
    let directory = scratch.0.join("man").display().to_string();
    assert!(partywall(&["man", &directory]).status.success());
    let page = fs::read_to_string(scratch.0.join("man/partywall-demo.1")).unwrap();
    assert!(page.contains("seed"));
}

#[test]
fn help_shows_examples_that_exist() {
    let help = text(&partywall(&["--help"]).stdout);
    for line in help.lines().filter(|line| line.starts_with("  partywall ")) {
        for word in line.split_whitespace().filter(|word| word.contains(".toml") || word.contains(".csv")) {
            assert!(Path::new(&recorded(word)).exists(), "{word} in the help does not exist");
        }
    }
    assert!(help.contains("Exit status"));
}

/// Runs where there is no GPU, and where there is one.
#[test]
fn the_doctor_says_what_there_is_and_ends_well() {
    let report = json(&partywall(&["doctor", "--json"]));
    let walls = report["walls"].as_array().unwrap();
    assert_eq!(walls.len(), 10);
    for wall in walls {
        let state = wall["state"].as_str().unwrap();
        assert!(["available", "not-available"].contains(&state), "{wall}");
        assert_eq!(state == "not-available", wall["why"].is_string() && wall["what_would_help"].is_string());
    }
    let output = partywall(&["doctor"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    if report["gpus"].as_array().unwrap().is_empty() {
        assert!(report["absent"]["why"].is_string());
        assert!(walls.iter().all(|wall| wall["state"] == "not-available"));
        assert!(shown.contains("partywall demo"), "{shown}");
        if !report["driver"]["nvml_problem"].is_null() {
            assert!(shown.contains("libnvidia-ml.so.1"), "{shown}");
        }
    } else {
        assert!(shown.contains("GPU 0: ") && shown.contains("time-slicing"), "{shown}");
    }
}
