//! Programs as they are behind a node's walls, within a measurement; and a plan that is measured in parts.

use std::fs;

use serde_json::Value;

use super::on;
use crate::{Scratch, json, refused, text};

const PLAN: &str = r#"
rounds = 1
warmup_s = 0.02
# Time enough for some requests on a busy machine too.
seconds_max = 1.0
requests_wanted = 100
evidence = "shown"
alone = false
walls = [
    { wall = "partywall", setting = "mps be=66sms decided" },
    { wall = "green-contexts", setting = "100/32 shim" },
    { wall = "partywall", setting = "time-slicing straight" },
    { wall = "partywall", setting = "time-slicing slice=200us" },
]
[[tenant]]
name = "request"
class = "latency-sensitive"
built_in = "tiny-kernels"
load = { duty = 0.2 }
slo = { slowdown = 1.5 }
[[tenant]]
name = "storm"
class = "best-effort"
built_in = "launch-storm"
[[pair]]
"#;

/// What the node said of a tenant beside the other behind a wall.
fn node<'a>(record: &'a Value, setting: &str, tenant: &str) -> &'a Value {
    let cells = record["cells"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["setting"] == setting && cell["kind"] == "corun").unwrap();
    cell["node"].as_array().unwrap().iter().find(|one| one["tenant"] == tenant).unwrap()
}

#[test]
fn programs_as_they_are_run_behind_a_node_and_parts_become_one_record() {
    let scratch = Scratch::new("soft-walls");
    let file = scratch.file("walls.toml", PLAN);
    let measure = |more: &[&str]| {
        let arguments =
            [&["--gpu", "sim:h200", "measure", "--plan", &file, "--out", "out", "--json"], more].concat();
        json(&on(&scratch, &arguments))
    };
    let first = measure(&["--walls", "partywall", "--name", "first"]);
    let rows = first["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(row["error"], Value::Null, "{row}");
        assert!(row["be_kept"].is_f64(), "{row}");
    }
    let count = |of: &Value, what: &str| of["counted"][what].as_u64().unwrap();
    let storm = node(&first, "mps be=66sms decided", "storm");
    assert_eq!((&storm["sms"], &storm["guaranteed"]), (&66.into(), &true.into()));
    assert!(count(storm, "held_ns") > 0 && count(storm, "launches") > 0, "{storm}");
    let request = node(&first, "mps be=66sms decided", "request");
    assert_eq!((&request["sms"], count(request, "held_ns"), count(request, "busy_ns")), (&Value::Null, 0, 0));
    // Nothing decides about launches there, and nothing confines.
    let storm = node(&first, "time-slicing straight", "storm");
    assert_eq!((&storm["sms"], count(storm, "held_ns")), (&Value::Null, 0));
    assert_eq!((&storm["stood"]["slice_ns"], &storm["longest_resize_ms"]), (&0.into(), &0.0.into()));
    let storm = node(&first, "time-slicing slice=200us", "storm");
    assert_eq!(storm["stood"]["slice_ns"], 200_000);
    // Too few requests for more than a reason; what was promised is known.
    assert_eq!((&request["promise"]["promised"]["slowdown"], &storm["promise"]), (&1.5.into(), &Value::Null));
    assert_eq!(request["promise"]["verdict"], "not-guaranteed");
    assert_eq!(
        first["summary"]["request.storm.partywall.time-slicing-straight"]["be_kept"],
        rows[1]["be_kept"]
    );

    let part = |name: &str| scratch.0.join(format!("out/{name}.json")).display().to_string();
    let both = measure(&["--continue", &part("first"), "--name", "both"]);
    let walls: Vec<&str> =
        both["rows"].as_array().unwrap().iter().map(|row| row["wall"].as_str().unwrap()).collect();
    assert_eq!(walls, ["partywall", "partywall", "partywall", "green-contexts"]);
    assert_eq!(both["parts"].as_array().unwrap().len(), 2);
    let (ls, be) = ("request", "storm");
    let sms = [ls, be].map(|tenant| node(&both, "100/32 shim", tenant)["sms"].clone());
    assert_eq!(sms, [100, 32].map(Value::from));
    // The same arrivals as in the first part.
    assert_eq!(both["tenants"][0]["load"], first["tenants"][0]["load"]);
    assert_eq!(first["tenants"][0]["duty"], 0.2);

    let twice = ["measure", "merge", &part("first"), &part("both"), "--name", "x"];
    refused(&twice, &["both have the row", "leave one of the records out"]);
    let rest = measure(&["--walls", "green-contexts", "--name", "rest"]);
    assert_eq!(rest["rows"].as_array().unwrap().len(), 1);
    let merged =
        on(&scratch, &["measure", "merge", &part("rest"), &part("first"), "--name", "all", "--out", "out"]);
    assert!(text(&merged.stdout).contains("partywall mps be=66sms decided"), "{}", text(&merged.stderr));
    let page = fs::read_to_string(scratch.0.join("out/all.html")).unwrap();
    assert!(page.contains("Part rest:") && page.contains("storm held"), "the page lacks what is measured");
}
