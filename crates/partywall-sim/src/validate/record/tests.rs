use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::layout::NodeLaunches;
use crate::validate::{Effort, simulate, summarise};

fn tenant(name: &str, class: &str, program: &str, load: Value, work: f64) -> Value {
    json!({"name": name, "class": class, "program": program, "command": ["x"], "load": load, "unit": "u",
           "work": work, "about": {}, "cache_policy": null})
}

fn result(tenant: &str, p50: Option<f64>, rate: f64, gap: Option<f64>) -> Value {
    json!({"tenant": tenant, "requests": 5000, "check": "ok",
           "service_ms": {"p50": p50, "p90": null, "p99": p50.map(|p50| 1.1 * p50), "p999": null, "max": 9.0, "mean": 1.0},
           "response_ms": {"p50": null, "p90": null, "p99": null, "p999": null, "max": null, "mean": null},
           "rate_per_s": rate, "offered_per_s": null, "completed_per_s": rate, "saturated": false,
           "host_gap_us": gap, "rounds": []})
}

fn cell(
    kind: &str,
    wall: &str,
    setting: &str,
    ls: Option<&str>,
    be: Option<&str>,
    results: Vec<Value>,
) -> Value {
    json!({"wall": wall, "setting": setting, "processes": "separate", "kind": kind, "ls": ls, "be": be,
           "results": results, "gpu": null, "error": null})
}

/// A small record: what was measured is near what the model says, so that errors stay sane.
fn record() -> Value {
    let paced = json!({"closed": {"pause_ns": 500_000, "depth": 1}});
    let streaming = json!({"closed": {"pause_ns": 0, "depth": 4}});
    let (net, stream) = ("resnet50-b1", "stream");
    let both =
        |p50| vec![result(net, Some(p50), 600.0, Some(560.0)), result(stream, None, 3500.0, Some(31.0))];
    json!({
        "format": FORMAT, "simulated": false, "pretended": false, "name": "networks",
        "environment": {"gpu": {"id": "h200", "name": "NVIDIA H200", "sms": 132}, "host": {}},
        "tenants": [
            tenant(net, "latency-sensitive", "external", paced.clone(), 1.0),
            tenant(stream, "best-effort", "external", streaming.clone(), 2.147483648),
            tenant("vram-read", "best-effort", "built-in", streaming.clone(), 1.0),
            tenant("lenet-b1", "latency-sensitive", "external", paced, 1.0),
            tenant("gemm", "best-effort", "external", streaming, 5.0),
        ],
        "cells": [
            cell("solo", "exclusive", "", Some(net), None, vec![result(net, Some(1.02), 600.0, Some(560.0))]),
            cell("alone", "green-contexts", "66/66", None, Some(stream), vec![result(stream, None, 3700.0, None)]),
            cell("corun", "green-contexts", "66/66", Some(net), Some(stream), both(1.8)),
            cell("corun", "mps-percentage", "50/50", Some(net), Some(stream), both(1.8)),
            cell("corun", "mps", "", Some(net), Some("vram-read"), vec![]),
            cell("corun", "mps", "", Some("lenet-b1"), Some(stream), vec![]),
            cell("corun", "mps", "", Some(net), Some("gemm"), both(1.0)),
            cell("corun", "mig", "MIG-1/MIG-2", Some(net), Some(stream), both(1.0)),
        ],
        "rows": [],
    })
}

fn parsed(record: &Value) -> Recording {
    parse_record(&record.to_string(), "r.json").unwrap()
}

fn refused(change: impl Fn(&mut Value)) -> String {
    let mut record = record();
    change(&mut record);
    parse_record(&record.to_string(), "r.json").unwrap_err().to_string()
}

#[test]
fn cells_become_pairs_with_the_load_and_the_host_that_were_seen() {
    let recording = parsed(&record());
    assert_eq!(recording.gpu, "h200");
    let [solo, alone, green, percentage] = &recording.pairs[..] else { panic!("{:?}", recording.pairs) };
    assert_eq!((solo.wall, solo.p50_ms, &solo.be), (Wall::TimeSlicing, Some(1.02), &None));
    assert_eq!((&alone.ls, alone.be_rate_per_s, alone.p50_ms), (&None, Some(3700.0), None));
    let ls = Tenant {
        program: "resnet50-b1".to_owned(),
        made: None,
        share: Some(Share::Sms(SmCount(66))),
        load: Load::Closed { pause: Nanos(500_000), depth: 1, host: Some(Nanos(60_000)) },
        solo_ms: Some(1.02),
        launched_ms: None,
    };
    assert_eq!((green.wall, green.ls.as_ref()), (Wall::GreenContexts, Some(&ls)));
    let stream = Load::Closed { pause: Nanos::ZERO, depth: 4, host: Some(Nanos(31_000)) };
    assert_eq!(green.be.as_ref().map(|be| &be.load), Some(&stream));
    assert_eq!(percentage.be.as_ref().and_then(|be| be.share), Some(Share::Percent(50)));
    assert!((percentage.p99_ms.unwrap() - 1.98).abs() < 1e-9);
}

#[test]
fn programs_are_known_by_their_commands_whatever_they_are_called() {
    let mut record = record();
    let words = |text: &str| json!(text.split(' ').collect::<Vec<_>>());
    let tenants = record["tenants"].as_array_mut().unwrap();
    for (at, command, name) in [
        (0, "python3 workloads/torch/tenant.py network resnet50 --batch 1", "camera"),
        (1, "python3 tenant.py network resnet152 --eager --batch 32", "nightly"),
    ] {
        tenants[at]["command"] = words(command);
        tenants[at]["name"] = name.into();
    }
    tenants[0]["load"] = json!({"poisson": {"rate_per_s": 300.0, "seed": 1}});
    tenants[1]["work"] = 32.0.into();
    let both = || vec![result("camera", Some(1.8), 300.0, None), result("nightly", None, 2000.0, None)];
    let names = (Some("camera"), Some("nightly"));
    record["cells"] = json!([
        cell("solo", "exclusive", "", names.0, None, vec![result("camera", Some(0.9), 300.0, None)]),
        cell("solo", "exclusive", "", None, names.1, vec![result("nightly", None, 2370.0, None)]),
        cell("corun", "partywall", "mps be=66sms decided", names.0, names.1, both()),
        cell("corun", "green-contexts", "66/66 shim", names.0, names.1, both()),
    ]);
    let recording = parsed(&record);
    assert_eq!(recording.cells, [0, 1, 2, 3]);
    let node = recording.pairs[2].node.unwrap();
    assert!(node.mps && node.launches == Some(NodeLaunches::default()), "{node:?}");
    let shares = [&recording.pairs[2].ls, &recording.pairs[2].be].map(|side| side.as_ref().unwrap().share);
    assert_eq!(shares, [None, Some(Share::Sms(SmCount(66)))]);
    let (ls, be) = (recording.pairs[3].ls.as_ref().unwrap(), recording.pairs[3].be.as_ref().unwrap());
    assert_eq!((ls.launched_ms, be.launched_ms, be.solo_ms), (None, Some(32_000.0 / 2370.0), None));
    assert_eq!(
        (&*ls.program, ls.solo_ms, &ls.load),
        ("resnet50-b1", Some(0.9), &Load::Poisson { rate_per_s: 300.0 })
    );
    assert_eq!((&*be.program, be.share), ("resnet152-b32", Some(Share::Sms(SmCount(66)))));
}

#[test]
fn sides_are_a_wall_of_the_model_and_plain_ones_are_green_contexts() {
    let mut record = record();
    let (net, stream) = ("resnet50-b1", "stream");
    let both = || vec![result(net, Some(1.8), 600.0, Some(560.0)), result(stream, None, 3500.0, Some(31.0))];
    let alone = || vec![result(net, Some(1.6), 600.0, Some(560.0))];
    record["cells"] = json!([
        cell("alone", "sides", "private", Some(net), None, alone()),
        cell("corun", "sides", "private", Some(net), Some(stream), both()),
        cell("alone", "sides", "plain", Some(net), None, alone()),
        cell("corun", "sides", "plain", Some(net), Some(stream), both()),
    ]);
    let recording = parsed(&record);
    assert_eq!((recording.cells, &recording.left_out), (vec![0, 1, 2, 3], &Vec::new()));
    let share = |tenant: &Option<Tenant>| tenant.as_ref().and_then(|tenant| tenant.share);
    let half = Some(Share::Sms(SmCount(66)));
    for (pair, (wall, expected)) in recording.pairs.iter().zip([
        (Wall::Sides, None),
        (Wall::Sides, None),
        (Wall::GreenContexts, half),
        (Wall::GreenContexts, half),
    ]) {
        assert_eq!((pair.wall, share(&pair.ls)), (wall, expected));
        assert_eq!(share(&pair.be), expected.filter(|_| pair.be.is_some()));
        let effort = Effort { requests: 200, ..Effort::default() };
        let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
        let compared = simulate(pair, gpu, &Params::default(), effort).unwrap();
        assert!(compared.error_p50().is_some_and(f64::is_finite), "{wall}");
    }
    record["cells"][0]["setting"] = "66/66".into();
    let error = parse_record(&record.to_string(), "r.json").unwrap_err().to_string();
    assert!(error.contains("cells[0]: `sides` is set to `66/66`; expected `private` or `plain`"), "{error}");
    record["cells"][0]["setting"] = "private".into();
    record["environment"]["gpu"]["id"] = "l40s".into();
    let reasons: Vec<String> = parsed(&record).left_out.into_iter().map(|one| one.why).collect();
    assert_eq!(reasons[1], "the catalogue knows no two sides of this GPU");
}

#[test]
fn a_program_of_triton_alone_is_not_the_one_that_was_profiled() {
    let mut record = record();
    record["tenants"][0]["command"] =
        json!(["python3", "workloads/torch/tenant.py", "compiled", "resnet18", "--batch", "1"]);
    let left_out = parsed(&record).left_out;
    assert_eq!(left_out[0].why, "no recorded profile of `resnet50-b1`");
}

#[test]
fn cells_without_a_model_are_named_with_the_reason() {
    let mut record = record();
    record["cells"].as_array_mut().unwrap().push(json!({"wall": "mps", "setting": "", "processes": "one",
        "kind": "corun", "ls": "resnet50-b1", "be": "stream", "results": [], "gpu": null,
        "error": {"kind": "died", "message": "x"}}));
    let left_out: Vec<String> =
        parsed(&record).left_out.into_iter().map(|cell| format!("{}: {}", cell.cell, cell.why)).collect();
    assert_eq!(
        left_out,
        [
            "mps: resnet50-b1 beside vram-read: no model of the built-in `vram-read`",
            "mps: lenet-b1 beside stream: no recorded profile of `lenet-b1`",
            "mps: resnet50-b1 beside gemm: `gemm` has 5 units of work per request, its model 1 products",
            "mig MIG-1/MIG-2: resnet50-b1 beside stream: instances are named by their UUIDs, which say no size",
            "mps in one process: resnet50-b1 beside stream: not measured to the end: died",
        ]
    );
}

#[test]
fn more_reasons_to_leave_a_cell_out() {
    let why = |change: fn(&mut Value)| {
        let mut record = record();
        change(&mut record);
        parsed(&record).left_out[0].why.clone()
    };
    assert_eq!(
        why(|r| r["cells"][0]["results"][0]["saturated"] = json!(true)),
        "saturated: its times say how long the run was"
    );
    assert_eq!(
        why(|r| r["cells"][0]["results"][0]["service_ms"]["p50"] = Value::Null),
        "too few requests for a median"
    );
    assert_eq!(
        why(|r| r["tenants"][0]["load"]["closed"]["depth"] = json!(2)),
        "requests of several units, which the model times one by one"
    );
}

#[test]
fn what_cannot_be_a_measurement_is_refused() {
    for (message, expected) in [
        (
            refused(|r| r["format"] = json!("x")),
            "r.json: its format is `x`; this version reads `partywall-measure-1`",
        ),
        (refused(|r| r["pretended"] = json!(true)), "r.json: its figures were not measured on a GPU"),
        (
            refused(|r| r["environment"]["gpu"]["id"] = Value::Null),
            "`NVIDIA H200`, which is not in the catalogue",
        ),
        (refused(|r| r["environment"]["gpu"] = Value::Null), "r.json: names no GPU"),
        (
            refused(|r| r["cells"][2]["setting"] = json!("66")),
            "cells[2]: `green-contexts` is set to `66`; expected SMs",
        ),
        (
            refused(|r| r["cells"][3]["setting"] = json!("50/101")),
            "expected percentages of both, such as 50/50",
        ),
        (
            refused(|r| {
                r["cells"][2]["wall"] = json!("partywall");
                r["cells"][2]["setting"] = json!("mps be=half");
            }),
            "cells[2]: `partywall` is set to `mps be=half`, of which `be=half` is not known",
        ),
        (refused(|r| r["cells"][0]["ls"] = json!("nobody")), "cells[0]: `nobody` is not among the tenants"),
        (refused(|r| r["cells"][0]["results"] = json!([])), "cells[0]: has no result of `resnet50-b1`"),
        (refused(|r| r["cells"][0]["be"] = json!("stream")), "cells[0]: has no result of `stream`"),
        (refused(|r| r["cells"][2]["kind"] = json!("alone")), "cells[2]: has two tenants and is no co-run"),
        (
            refused(|r| r["tenants"][0]["load"]["closed"]["depth"] = json!(0)),
            "load of `resnet50-b1`: `depth` is 0",
        ),
        (refused(|r| r["cells"] = json!(3)), "r.json:1:"),
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

#[test]
fn recorded_sm_sets_are_simulated_as_they_were() {
    let gpu = Catalogue::builtin().unwrap().get("h200").unwrap();
    let effort = Effort { requests: 30, ..Effort::default() };
    let compared: Vec<_> = parsed(&record())
        .pairs
        .iter()
        .map(|pair| simulate(pair, gpu, &Params::default(), effort).unwrap())
        .collect();
    let walls = summarise(&compared);
    let ids: Vec<Wall> = walls.iter().map(|wall| wall.wall).collect();
    assert_eq!(ids, [Wall::MpsPercentage, Wall::GreenContexts]);
    assert!(walls.iter().all(|wall| wall.median_error_p50 < 0.5 && wall.n == 1), "{walls:?}");
    assert_eq!(walls[1].be_alone_n, 1);

    // A narrower set, which is no multiple of the catalogue's step, is slower.
    let green = |setting: &str| {
        let mut record = record();
        record["cells"][2]["setting"] = json!(setting);
        simulate(&parsed(&record).pairs[2], gpu, &Params::default(), effort).unwrap().p50_ms
    };
    let (narrow, wide) = (green("2/130"), green("130/2"));
    assert!(narrow > 3.0 * wide, "{narrow} ms on 2 SMs, {wide} ms on 130");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_damage_to_a_record_panics(at in any::<prop::sample::Index>(), text in "\\PC{0,3}") {
        let mut whole = record().to_string();
        let at = at.index(whole.len());
        whole.replace_range(at..=at, &text);
        if let Err(error) = parse_record(&whole, "f") {
            prop_assert!(error.to_string().starts_with('f'));
        }
    }
}
