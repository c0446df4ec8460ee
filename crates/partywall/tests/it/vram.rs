//! Where memory lives, found by the program on simulated GPUs, and what neighbours on sides do to each other.

use std::path::Path;
use std::process::{Command, Output};

use crate::{json, text};

/// With a folder of its own for what was found before.
fn vram(gpu: &str, cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_partywall"));
    command.args(["--gpu", gpu, "vram"]).args(arguments).env("XDG_CACHE_HOME", cache);
    command.output().unwrap()
}

fn map_with(gpu: &str, cache: &Path, more: &[&str]) -> Output {
    let arguments = ["map", "--memory", "256MiB", "--checks", "3000"];
    vram(gpu, cache, &[&arguments, more].concat())
}

fn map(gpu: &str, more: &[&str]) -> Output {
    map_with(gpu, tempfile::tempdir().unwrap().path(), more)
}

#[test]
fn sides_and_slices_are_found() {
    let report = json(&map("sim:h200", &["--json", "--slices", "4MiB"]));
    let sides = &report["sides"];
    assert_eq!((&report["simulated"], &report["pages"]), (&true.into(), &128.into()));
    assert_eq!((&sides["mask"], &sides["granularity_bytes"]), (&0xab000.into(), &4096.into()));
    // On the simulated GPU groups are on one side and the other in turn.
    assert_eq!(sides["groups"], "01".repeat(33));
    assert_eq!(sides["pages"].as_str().unwrap().len(), 128);
    assert_eq!((&sides["checked"], &sides["unsure"]), (&3000.into(), &0.into()));
    let latencies = &sides["latencies"];
    for kind in ["near", "far"] {
        let probes: u64 = latencies[kind].as_array().unwrap().iter().map(|bin| bin.as_u64().unwrap()).sum();
        // Fresh addresses are asked at least once, from one side or the other.
        assert!(probes > 1_000, "{latencies}");
    }
    assert_eq!(latencies["bin_cycles"], 4);
    let slices = &report["slices"];
    assert_eq!((&slices["count"], &slices["of_sides"]), (&94.into(), &serde_json::json!([47, 47])));
    assert_eq!(slices["checked"], 3000);
    let shown = text(&map("sim:h200", &[]).stdout);
    assert!(
        shown.contains("two sides, in turn every 4KiB: the parity of the bits 12, 13, 15, 17, 19"),
        "{shown}"
    );
}

#[test]
fn a_gpu_with_one_side_has_one() {
    let report = json(&map("sim:l40s", &["--json"]));
    assert_eq!((&report["sides"], &report["slices"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert!(report["apart"].as_f64().unwrap() < 2.0, "{report}");
    assert!(text(&map("sim:l40s", &[]).stdout).contains("one side"));
}

#[test]
fn what_cannot_be_looked_at_is_refused() {
    for (more, part) in [
        (["--memory", "1TiB"], "are free; ask for"),
        (["--memory", "1MiB"], "ask for 2MiB at least"),
        (["--slices", "1GiB"], "--slices: from 2MiB to as much memory as is looked at"),
    ] {
        let base: &[&str] = if more[0] == "--slices" { &["--memory", "256MiB"] } else { &[] };
        let cache = tempfile::tempdir().unwrap();
        let output = vram("sim:h200", cache.path(), &[&["map"], base, &more].concat());
        assert_eq!(output.status.code(), Some(2));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
}

/// What programs are told.
#[test]
fn what_is_known_is_said_to_programs() {
    let cache = tempfile::tempdir().unwrap();
    let found = json(&vram("sim:h200", cache.path(), &["known"]));
    let keys: Vec<&String> = found.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["gpu", "groups", "known", "of_sides", "simulated", "sms_per_group"]);
    assert_eq!((&found["groups"], &found["sms_per_group"]), (&66.into(), &2.into()));
    assert_eq!((&found["simulated"], &found["known"]["mask"]), (&true.into(), &0xab000.into()));
    let of = |first: usize| (0..33).map(|at| (2 * at + first).to_string()).collect::<Vec<_>>().join(",");
    assert_eq!(found["of_sides"], serde_json::json!([of(0), of(1)]));
    let groups = found["known"]["scale"]["groups"].as_array().unwrap();
    assert_eq!(
        (groups.len(), &groups[0]["side"], &groups[1]["side"]),
        (66, &"first".into(), &"second".into())
    );
    // What was found is kept, for the next and for `map`, and checked.
    assert_eq!(json(&vram("sim:h200", cache.path(), &["known"])), found);
    assert_eq!(json(&map_with("sim:h200", cache.path(), &["--json"]))["cache"], "used");

    let one = vram("sim:l40s", cache.path(), &["known"]);
    assert_eq!((one.status.code(), text(&one.stdout)), (Some(1), String::new()));
    assert!(text(&one.stderr).contains("has one side, as far as can be told"), "{}", text(&one.stderr));
}

#[test]
fn what_was_found_before_is_used_and_what_is_wrong_is_thrown_away() {
    let cache = tempfile::tempdir().unwrap();
    let used = |more: &[&str]| {
        let output = map_with("sim:h200", cache.path(), &[&["--json"], more].concat());
        let report = json(&output);
        assert_eq!((&report["sides"]["mask"], &report["sides"]["checked"]), (&0xab000.into(), &3000.into()));
        let said = text(&output.stderr);
        (report["cache"].as_str().unwrap().to_owned(), said.contains("is not used, and removed"))
    };
    assert_eq!(used(&[]), ("missing".to_owned(), false));
    assert_eq!(used(&[]), ("used".to_owned(), false));
    assert_eq!(used(&["--fresh"]), ("ignored".to_owned(), false));
    let files: Vec<_> = std::fs::read_dir(cache.path().join("partywall")).unwrap().collect();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let path = file.as_ref().unwrap().path();
    let good = std::fs::read_to_string(&path).unwrap();
    // Another mask: possible, and not so.
    let wrong = good.replace("\"mask\": 700416", "\"mask\": 716800");
    assert_ne!(wrong, good);
    for bad in [wrong.as_str(), &good[..100], ""] {
        std::fs::write(&path, bad).unwrap();
        assert_eq!(used(&[]), ("discarded".to_owned(), true));
        assert_eq!(used(&[]), ("used".to_owned(), false));
    }
}

/// Little data, few requests: what is looked at is that all of it is done.
const SMALL: [&str; 11] = [
    "interfere",
    "--json",
    "--data",
    "8MiB",
    "--load-data",
    "8MiB",
    "--threads",
    "32,1024",
    "--requests",
    "5",
    "--loads",
];

#[test]
fn neighbours_are_measured_on_their_sides_and_without_them() {
    let cache = tempfile::tempdir().unwrap();
    let report = json(&vram("sim:h200", cache.path(), &[&SMALL[..], &["read,mixed-evict-first"]].concat()));
    assert_eq!((&report["simulated"], &report["mask"]), (&true.into(), &0xab000.into()));
    assert_eq!(report["copied_bytes"], 16 << 20);
    for one in ["tenant", "neighbour"] {
        assert_eq!((&report[one]["sms"], &report[one]["data_bytes"]), (&66.into(), &(8 << 20).into()));
        assert_eq!(report[one]["lost_bytes"], report[one]["arena_bytes"]);
    }
    let rows = report["rows"].as_array().unwrap();
    // With colors and without; three kinds of work at two intensities; beside two loads.
    assert_eq!(rows.len(), 2 * 3 * 2 * 2);
    for row in rows {
        for measured in [&row["alone"], &row["beside"]] {
            assert_eq!((&measured["count"], &measured["p99_us"]), (&5.into(), &serde_json::Value::Null));
            assert!(measured["p50_us"].as_f64().unwrap() > 0.0, "{row}");
            assert_eq!(measured["host_p50_us"].is_null(), row["work"] == "long", "{row}");
        }
        assert!(row["interference_p50"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["load_alone_gb_s"].as_f64().unwrap() > 0.0, "{row}");
    }
    let views: Vec<&str> = rows.iter().map(|row| row["view"].as_str().unwrap()).collect();
    assert!(
        views[..12].iter().all(|view| *view == "colored")
            && views[12..].iter().all(|view| *view == "uncolored")
    );
}

#[test]
fn neighbours_share_pages_between_processes() {
    let cache = tempfile::tempdir().unwrap();
    let more = ["write-evict-first", "--pages", "paired", "--work", "long,graph"];
    let report = json(&vram("sim:h200", cache.path(), &[&SMALL[..], &more].concat()));
    assert_eq!(report["copied_bytes"], 16 << 20);
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 2);
    assert!(rows.iter().all(|row| row["view"] == "colored"));
    for one in ["tenant", "neighbour"] {
        assert_eq!(
            (&report[one]["lost_bytes"], &report[one]["pages"]),
            (&0.into(), &report["tenant"]["pages"])
        );
    }
}

#[test]
fn the_neighbours_intensity_requests_and_places_of_code_can_be_chosen() {
    let cache = tempfile::tempdir().unwrap();
    let words =
        ["mixed", "--work", "graph", "--load-threads", "64,512", "--launches", "2", "--launch-data", "0B"];
    let report =
        json(&vram("sim:h200", cache.path(), &[&SMALL[..], &words, &["--code-places", "2"]].concat()));
    assert_eq!(report["request"], serde_json::json!({"launches": 2, "bytes": 0}));
    let rows = report["rows"].as_array().unwrap();
    let of = |key: &str| rows.iter().map(|row| row[key].as_u64().unwrap()).collect::<Vec<_>>();
    // With colors and without; by the neighbour's threads, the place of the code, and the tenant's threads.
    assert_eq!(of("load_threads_per_sm"), [[64; 4], [512; 4]].concat().repeat(2));
    assert_eq!(of("code_place"), [0, 0, 1, 1].repeat(4));
    assert_eq!(of("threads_per_sm"), [32, 1024].repeat(8));
    let expected = "partywall vram interfere --gpu sim:h200 --work graph --loads mixed --threads 32,1024 --load-threads 64,512 --requests 5 \
                    --launches 2 --launch-data 0B --code-places 2 --data 8MiB --load-data 8MiB --json";
    assert_eq!(report["command"], expected);
    let worst = &report["summary"]["colored"]["graph"];
    let all = rows[..8].iter().map(|row| row["interference_p50"].as_f64().unwrap());
    assert_eq!(worst["interference_p50_max"].as_f64(), all.reduce(f64::max));
    assert!(
        worst["interference_p99_max"].is_null() && report["summary"]["colored"]["long"].is_null(),
        "{report}"
    );
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    for (arguments, part, code) in [
        (["--threads", "48"], "--threads 48: 32, 64, ... 1024", 2),
        (["--load-threads", "2048"], "--load-threads 2048: 32, 64, ... 1024", 2),
        (["--requests", "0"], "--requests 0: from 1 to", 2),
        (["--launches", "257"], "--launches 257: from 1 to 256", 2),
        (["--launch-data", "100B"], "--launch-data 100B: a multiple of 1KiB", 2),
        (["--code-places", "0"], "--code-places 0: from 1 to 64", 2),
        (["--data", "100KiB"], "--data 100KiB: from 1MiB", 2),
        (["--data", "1MiB"], "as many of these as SMs at least", 1),
    ] {
        let output = vram("sim:h200", cache.path(), &[&["interfere"], &arguments[..]].concat());
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", text(&output.stderr));
        assert!(text(&output.stderr).contains(part), "{}", text(&output.stderr));
    }
    let output = vram("sim:l40s", cache.path(), &["interfere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("has one side, as far as can be told"), "{}", text(&output.stderr));
}
