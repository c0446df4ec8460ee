//! The wall `sides` of a measurement.

use serde_json::Value;

use super::command;
use crate::measure::entries;
use crate::{Scratch, json};

/// A tenant that is built in has SMs of a side, and no memory there.
const PLAN: &str = r#"
rounds = 1
warmup_s = 0.02
# Time enough for some requests on a busy machine too.
seconds_max = 1.0
requests_wanted = 100
evidence = "shown"
walls = [{ wall = "sides", setting = "private" }, { wall = "sides", setting = "plain" }]
[[tenant]]
name = "request"
class = "latency-sensitive"
built_in = "tiny-kernels"
load = { closed = { pause = "1ms" } }
[[tenant]]
name = "storm"
class = "best-effort"
built_in = "launch-storm"
[[pair]]
"#;

fn measured(gpu: &str) -> Value {
    let scratch = Scratch::new(&format!("soft-sides-{gpu}"));
    let file = scratch.file("sides.toml", PLAN);
    let gpu = format!("sim:{gpu}");
    let mut command =
        command(&scratch, &["--gpu", &gpu, "measure", "--plan", &file, "--out", "out", "--json"]);
    let record = json(&command.env("XDG_CACHE_HOME", scratch.0.join("cache")).output().unwrap());
    let left = entries(&scratch.0.join("tmp"));
    assert!(left.iter().all(|name| name.starts_with("partywall-soft-")), "{left:?}");
    record
}

fn row<'a>(record: &'a Value, setting: &str) -> &'a Value {
    record["rows"].as_array().unwrap().iter().find(|row| row["setting"] == setting).unwrap()
}

#[test]
fn tenants_are_measured_on_the_sms_of_a_side() {
    let record = measured("h200");
    assert_eq!((&record["complete"], &record["simulated"]), (&true.into(), &true.into()));
    let plain = row(&record, "plain");
    assert_eq!(plain["error"], Value::Null, "{plain}");
    assert!(plain["p50_ms"].is_f64() && plain["be_kept"].is_f64(), "{plain}");
    let alone = |cell: &&Value| cell["kind"] == "alone" && cell["setting"] == "plain";
    let alone = record["cells"].as_array().unwrap().iter().find(alone).unwrap();
    assert!(alone["results"][0]["requests"].as_u64().unwrap() > 0, "{alone}");
    for tenant in record["tenants"].as_array().unwrap() {
        let about = &tenant["about"];
        assert_eq!(
            (&about["sms"], &about["sms behind sides plain"]),
            (&"132".into(), &"66".into()),
            "{about}"
        );
    }
    let private = &row(&record, "private")["error"];
    assert_eq!(private["kind"], "skipped");
    let message = private["message"].as_str().unwrap();
    assert!(message.contains("request is built in and has no memory of one side"), "{message}");
}

#[test]
fn a_gpu_with_one_side_has_no_such_wall() {
    let record = measured("l40s");
    let error = &row(&record, "plain")["error"];
    assert_eq!(error["kind"], "skipped");
    assert!(
        error["message"].as_str().unwrap().contains("has one side; it would take a GPU with two"),
        "{error}"
    );
}
