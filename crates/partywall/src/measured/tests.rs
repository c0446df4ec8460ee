//! A small record made by hand, as a table and as a page.

use partywall_measure::record::{CellError, ErrorKind, Record};

use super::{modelled, report, report_beside};
use crate::report::Modelled;

/// Two walls, one with a setting; the second lost its co-run.
fn record(pretended: bool) -> Record {
    let quantiles = |p50: f64, p99: Option<f64>| serde_json::json!({"p50": p50, "p90": p50, "p99": p99, "p999": null, "max": 2.0 * p50, "mean": p50});
    let result = |tenant: &str, p50: f64, p99: Option<f64>| {
        serde_json::json!({
            "tenant": tenant, "requests": 5000, "check": "ok", "service_ms": quantiles(p50, p99),
            "response_ms": quantiles(p50, p99), "rate_per_s": 500.0, "offered_per_s": null, "completed_per_s": 500.0,
            "saturated": false, "host_gap_us": 20.0, "rounds": [],
        })
    };
    let cell = |wall: &str,
                setting: &str,
                kind: &str,
                ls: Option<&str>,
                be: Option<&str>,
                results: Vec<serde_json::Value>| {
        serde_json::json!({
            "wall": wall, "setting": setting, "processes": "separate", "kind": kind, "ls": ls, "be": be,
            "results": results, "gpu": null, "error": null,
        })
    };
    let row = |wall: &str, setting: &str, p50: Option<f64>, error: Option<&str>| {
        serde_json::json!({
            "wall": wall, "setting": setting, "processes": "separate", "ls": "reader", "be": "stream",
            "p50_ms": p50, "p99_ms": null, "slowdown_p50": p50, "slowdown_p50_interval": null, "slowdown_p99": null,
            "slowdown_p99_interval": null, "capacity_cost_p50": null, "interference_p50": null,
            "capacity_cost_p99": null, "interference_p99": null, "be_kept": p50.map(|_| 0.5), "be_rate_per_s": null,
            "saturated": false, "throttled": if p50.is_some() { vec!["sw-power-cap"] } else { vec![] },
            "error": error.map(|message| serde_json::json!({"kind": "died", "message": message})),
        })
    };
    let tenant = |name: &str, class: &str| {
        serde_json::json!({
            "name": name, "class": class, "program": "built-in", "command": [],
            "load": {"closed": {"pause_ns": 200_000, "depth": 1}}, "unit": "GB", "work": 1.0, "about": {},
            "cache_policy": "evict-first",
        })
    };
    let both = (Some("reader"), Some("stream"));
    let value = serde_json::json!({
        "format": "partywall-measure-1", "simulated": false, "pretended": pretended, "name": "small",
        "command": "partywall measure", "started": "2026-11-21T12:00:00Z", "took_s": 12.0, "complete": true,
        "environment": {
            "gpu": if pretended { serde_json::Value::Null } else { serde_json::json!({"id": "h200", "name": "NVIDIA H200", "driver": "580.1"}) },
            "host": {"cores": 2},
        },
        "settings": {
            "plan": "quick", "seed": 3, "rounds": 2, "warmup_s": 0.5, "seconds_max": 1.0, "requests_wanted": 5000,
            "evidence": "recorded",
        },
        "tenants": [tenant("reader", "latency-sensitive"), tenant("stream", "best-effort")],
        "cells": [
            cell("exclusive", "", "solo", Some("reader"), None, vec![result("reader", 1.0, Some(1.2))]),
            cell("mps-percentage", "50/50", "corun", both.0, both.1, vec![result("reader", 3.5, None), result("stream", 8.0, None)]),
            cell("mps", "", "corun", both.0, both.1, vec![]),
        ],
        "rows": [row("mps-percentage", "50/50", Some(3.5), None), row("mps", "", None, Some("stream: its process died (signal 9)"))],
    });
    Record::parse(&value.to_string(), "small.json").unwrap()
}

#[test]
fn rows_become_walls_and_lost_cells_say_why() {
    let table = report(&record(false)).table(100);
    for wanted in [
        "reader beside stream",
        "mps-percentage 50/50",
        "p50 3.50",
        "throttled: sw-power-cap",
        "exclusive",
        "Measured: NVIDIA H200",
    ] {
        assert!(table.contains(wanted), "{wanted} is missing:\n{table}");
    }
    assert!(table.contains("mps: no figures: stream: its process died (signal 9)"), "{table}");
    assert!(!table.contains("simulated") && !table.contains("validated"), "{table}");
}

#[test]
fn a_wall_that_lost_its_tenant_is_not_called_missing() {
    let cases = [
        (
            ErrorKind::GpuFault,
            "stream: CUDA error: device-side assert triggered\nFor debugging consider",
            "mps: no figures: the GPU failed stream: CUDA error: device-side assert triggered",
        ),
        (
            ErrorKind::Hung,
            "stream was not ready after 60s",
            "mps: no figures: stream was not ready after 60s",
        ),
        (ErrorKind::Skipped, "MPS is not installed", "mps: not measured: MPS is not installed"),
    ];
    for (kind, message, expected) in cases {
        let mut record = record(false);
        record.rows[1].error = Some(CellError::new(kind, message));
        let report = report(&record);
        let (table, page) = (report.table(100), report.html());
        assert!(table.lines().any(|line| line == expected), "{table}");
        let (wall, what) = expected.split_once(": ").unwrap();
        assert!(page.contains(&format!("<code>{wall}</code>: {what}</li>")), "{expected} is not in the page");
        for text in [&table, &page] {
            let wrong = ["not here", "Not possible here", "For debugging"];
            assert!(!wrong.iter().any(|wrong| text.contains(wrong)), "{expected}");
        }
    }
}

#[test]
fn a_tenant_alone_and_a_cell_that_kept_figures_say_it_in_a_line_too() {
    let mut record = record(false);
    let error = CellError::new(ErrorKind::GpuFault, "stream: out of memory\nand more");
    record.rows[0].error = Some(error.clone());
    record.cells[0].error = Some(error);
    let report = report(&record);
    assert!(report.table(100).contains("the GPU failed stream"));
    let page = report.html();
    assert!(page.contains("No figures of reader alone, exclusive: the GPU failed stream: out of memory"));
    assert!(!page.contains("and more"));
}

#[test]
fn the_page_says_how_it_was_measured() {
    let page = report(&record(false)).html();
    for wanted in ["Begun 2026-11-21T12:00:00Z", "driver 580.1", "evict-first", "partywall measure"] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
}

#[test]
fn a_rehearsal_never_looks_like_a_measurement() {
    let report = report(&record(true));
    assert!(report.table(100).contains("Pretended, not measured"));
    assert!(report.html().contains("These numbers are pretended."));
    assert!(report.pictures()[0].1.contains("Pretended"));
}

#[test]
fn what_the_model_says_stands_beside_what_was_measured() {
    let record = record(false);
    let said = Modelled { slowdown_p50: 3.25, slowdown_p99: 9.0, kept: Some(0.75) };
    let page = report_beside(&record, &[(0, said)].into()).html();
    // Of the median, as the measured figure is.
    for wanted in ["simulated slowdown", "3.25", "0.75", "class=\"ring w-mps-percentage\""] {
        assert!(page.contains(wanted), "{wanted} is missing");
    }
    let without = report(&record).html();
    assert!(!without.contains("simulated slowdown") && !without.contains("\"ring "), "nothing was simulated");
}

#[test]
fn tenants_that_the_model_does_not_know_have_no_figures_of_it() {
    let record = record(false);
    let text = record.json().unwrap();
    assert_eq!(modelled(&record, &text, "small.json").unwrap(), std::collections::BTreeMap::new());
    let mut rehearsed = record;
    rehearsed.pretended = true;
    let text = rehearsed.json().unwrap();
    let refused = modelled(&rehearsed, &text, "small.json").unwrap_err().to_string();
    assert!(refused.contains("not measured on a GPU"), "{refused}");
}

#[test]
fn settings_of_one_wall_are_joined_and_what_a_node_says_is_a_note() {
    let mut record = record(false);
    let mut other = (record.rows[0].clone(), record.cells[1].clone());
    (other.0.setting, other.1.setting) = ("100/12".to_owned(), "100/12".to_owned());
    other.1.node = vec![partywall_measure::record::NodeRecord {
        tenant: "stream".to_owned(),
        counted: [("held_ns".to_owned(), 2_500_000_000)].into(),
        stood: [("graphs_cut".to_owned(), 3)].into(),
        ..Default::default()
    }];
    record.rows.push(other.0);
    record.cells.push(other.1);
    let page = report(&record).html();
    assert!(page.contains("class=\"frontier w-mps-percentage\""), "no line");
    assert!(page.contains("stream held 2.5 s, 3 graphs of stream cut"), "no note");
}
