use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::diagnostic::Position;
use crate::units::{Nanos, SmCount};

/// A valid tenant to which a test adds its own lines, from line 6 on.
const TENANT: &str =
    "[[tenant]]\nname = \"a\"\nclass = \"latency-sensitive\"\nmemory = \"1GiB\"\ncommand = [\"x\"]\n";

#[track_caller]
fn check(text: &str, expect: &str) {
    let shown = Config::parse(text, "f").unwrap_err().to_string();
    assert_eq!(shown, expect, "\n{shown}\n");
}

/// `line` behind the valid tenant is wrong in column `column`, and the message and the help are these.
#[track_caller]
fn check_line(line: &str, column: usize, message: &str, help: &str) {
    let text = format!("{TENANT}{line}\n");
    let error = Config::parse(&text, "f").unwrap_err();
    let [only] = error.diagnostics() else { panic!("more than one error:\n{error}") };
    assert_eq!((only.position(), only.message(), only.help()), (Position { line: 6, column }, message, help));
}

#[test]
fn the_example_is_valid_and_says_what_it_seems_to() {
    let config = Config::parse(EXAMPLE, "example").unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.gpu, GpuConfig { select: Select::Auto, wall: WallChoice::Auto });
    let [detector, embeddings] = &config.tenants[..] else { panic!("{config:?}") };
    assert_eq!(detector.name, "detector");
    assert_eq!(detector.class, Class::LatencySensitive);
    assert_eq!(detector.slo, Slo { p99: Some(Nanos::from_millis(5)), slowdown: Some(1.2) });
    assert_eq!((detector.memory, detector.share, detector.weight), (Bytes::from_gib(12), None, None));
    assert_eq!(detector.restart, Restart::OnFailure);
    assert_eq!((embeddings.share, embeddings.weight), (Some(Share::Percent(60)), Some(2)));
    assert_eq!(embeddings.command, ["python", "embed.py", "--batch", "32"]);
    assert_eq!(embeddings.env["OMP_NUM_THREADS"], "4");
}

#[test]
fn a_latency_sensitive_tenant_needs_no_slo_and_the_gpu_table_may_be_missing() {
    let config = Config::parse(TENANT, "f").unwrap();
    assert_eq!(config.gpu, GpuConfig::default());
    assert_eq!(config.tenants[0].slo, Slo::default());
    Config::parse(&TENANT.replace('\n', "\r\n"), "f").unwrap();
}

#[test]
fn gpus_are_selected_by_index_uuid_or_simulation() {
    let select =
        |value: &str| Config::parse(&format!("gpu.select = {value}\n{TENANT}"), "f").map(|c| c.gpu.select);
    let uuid = "GPU-0a1b2c3d-0000-1111-2222-0123456789ab";
    assert_eq!(select("3"), Ok(Select::Index(3)));
    assert_eq!(select("\"3\""), Ok(Select::Index(3)));
    assert_eq!(select(&format!("\"{}\"", uuid.replace('b', "B"))), Ok(Select::Uuid(uuid.to_owned())));
    assert_eq!(select("\"sim:a100-80gb\""), Ok(Select::Simulated("a100-80gb".to_owned())));
    for bad in ["-1", "4294967296", "\"+1\"", "\"sim:\"", "\"GPU-12\"", "\"h200\"", "\"\""] {
        let error = select(bad).unwrap_err();
        assert_eq!(error.diagnostics()[0].position(), Position { line: 1, column: 14 }, "{bad}");
        assert_eq!(error.diagnostics()[0].help(), Select::EXPECTED, "{bad}");
    }
    let kind = select("1.5").unwrap_err().to_string();
    assert!(
        kind.starts_with("f:1:14: expected a string or an index, found floating point `1.5`\n"),
        "{kind}"
    );
}

#[test]
fn every_wall_can_be_asked_for() {
    for wall in Wall::ALL {
        let config = Config::parse(&format!("gpu.wall = \"{wall}\"\n{TENANT}"), "f").unwrap();
        assert_eq!(config.gpu.wall, WallChoice::Fixed(wall));
    }
}

#[test]
fn an_unknown_wall_is_shown_with_the_nearest() {
    check(
        &format!("gpu.wall = \"green-context\"\n{TENANT}"),
        "f:1:12: `green-context` is no value of `wall`\n  | gpu.wall = \"green-context\"\n  |            \
         ^^^^^^^^^^^^^^^ did you mean `green-contexts`? Known: `auto`, `exclusive`, `stream-priority`, \
         `time-slicing`, `mps`, `mps-percentage`, `mps-static`, `mig`, `green-contexts`, `sides`, `partywall`",
    );
}

#[test]
fn an_unknown_class_is_shown_with_the_two_classes() {
    check(
        &TENANT.replace("latency-sensitive", "LS"),
        "f:3:9: `LS` is no value of `class`\n  | class = \"LS\"\n  |         ^^^^ known: `latency-sensitive`, \
         `best-effort`",
    );
}

#[test]
fn unknown_keys_are_shown_with_the_nearest() {
    let known = "`name`, `class`, `memory`, `command`, `slo`, `baseline`, `share`, `squeezed`, `weight`, `env`, `restart`";
    let help = format!("did you mean `restart`? Known: {known}");
    check_line("restrat = \"never\"", 1, "unknown key `restrat`", &help);
    check_line("slo.p999 = \"1s\"", 5, "unknown key `p999`", "did you mean `p99`? Known: `p99`, `slowdown`");
    check_line("[gpus]", 2, "unknown key `gpus`", "did you mean `gpu`? Known: `gpu`, `tenant`");
}

#[test]
fn a_missing_key_is_shown_at_its_tenant() {
    check(
        "\n[[tenant]]\nname = \"a\"\nclass = \"best-effort\"\ncommand = [\"x\"]\n",
        "f:2:1: the key `memory` is missing\n  | [[tenant]]\n  | ^^^^^^^^^^ write memory = \"12GiB\"",
    );
}

#[test]
fn a_file_without_tenants_is_refused() {
    for text in ["", "\n\n", "# nothing\n", "[gpu]\n"] {
        let error = Config::parse(text, "f").unwrap_err();
        assert_eq!(error.diagnostics()[0].message(), "the key `tenant` is missing", "{text:?}");
    }
    check(
        "tenant = []",
        "f:1:10: there is no tenant\n  | tenant = []\n  |          ^^ write a table [[tenant]] for each tenant",
    );
}

#[test]
fn a_list_is_no_table() {
    check_line("[[gpu]]", 1, "expected a table, found a list", &format!("write {}", example("gpu").unwrap()));
    check_line(
        "slo = [\"5ms\"]",
        7,
        "expected a table, found a list",
        &format!("write {}", example("slo").unwrap()),
    );
    check(
        "gpu = [\"auto\", \"mps\"]\ntenant = [[\"a\"]]",
        "f:1:7: expected a table, found a list\n  | gpu = [\"auto\", \"mps\"]\n  |       ^^^^^^^^^^^^^^^ write a table \
         [gpu], with select and wall in it",
    );
}

#[test]
fn values_of_the_wrong_kind_are_shown_with_an_example() {
    let write = |key| format!("write {}", example(key).unwrap());
    check_line(
        "weight = \"2\"",
        10,
        "expected a whole number, at least 0, found string \"2\"",
        &write("weight"),
    );
    check_line(
        "share.percent = 300",
        17,
        "expected a whole number, 0 to 255, found integer `300`",
        &write("percent"),
    );
    check_line("share.part = 3", 7, "unknown key `part`", "known: `sms`, `percent`");
    check_line("env.A = 3", 9, "expected a string, found integer `3`", "");
    check_line("env = 3", 7, "expected a table, found integer `3`", &write("env"));
    check_line("slo.p99 = 5", 11, "expected a string, found integer `5`", &write("p99"));
    let unit = "write a time such as \"5ms\", \"250us\" or \"2s\"";
    check_line("slo.p99 = \"5 ticks\"", 11, "`5 ticks` has the unknown unit `ticks`", unit);
    let command = Config::parse(&TENANT.replace("[\"x\"]", "\"x y\""), "f").unwrap_err();
    assert_eq!(command.diagnostics()[0].message(), "expected a list, found string \"x y\"");
    assert_eq!(command.diagnostics()[0].help(), write("command"));
}

#[test]
fn values_that_make_no_sense_are_refused() {
    let write = |key| format!("write {}", example(key).unwrap());
    check_line("share.percent = 0", 17, "0 is no percentage of the SMs", &write("percent"));
    check_line("share.percent = 101", 17, "101 is no percentage of the SMs", &write("percent"));
    check_line("share = { sms = 0 }", 17, "a tenant without SMs cannot run", &write("sms"));
    let squeezed = "a latency-sensitive tenant is never squeezed";
    check_line("squeezed.sms = 16", 1, squeezed, "remove it, or write class = \"best-effort\"");
    check_line("weight = 0", 10, "the weight 0 is out of range", &write("weight"));
    check_line("weight = 1025", 10, "the weight 1025 is out of range", &write("weight"));
    check_line("slo.p99 = \"0s\"", 11, "no request completes within no time", &write("p99"));
    let given = "write baseline.p99 = \"1.1ms\"";
    check_line("baseline.p99 = \"0s\"", 16, "no request completes within no time", given);
    for bad in ["0.99", "nan", "inf"] {
        let shown = bad.replace("nan", "NaN");
        let message = format!("a slowdown of {shown} cannot be promised: 1 is as fast as alone");
        check_line(&format!("slo.slowdown = {bad}"), 16, &message, &write("slowdown"));
    }
    let letters = "use letters, digits and underscores";
    check_line("env.\"A=B\" = \"\"", 5, "`A=B` is no name of an environment variable", letters);
    let nul = "an environment variable cannot hold the character NUL";
    check_line("env.A = \"\\u0000\"", 9, nul, "remove `\\u0000`");
    Config::parse(&format!("{TENANT}share.percent = 100\nweight = 1024\nslo.slowdown = 1\n"), "f").unwrap();
}

#[test]
fn names_memory_and_commands_that_make_no_sense_are_refused() {
    let message = |from: &str, to: &str| {
        let error = Config::parse(&TENANT.replace(from, to), "f").unwrap_err();
        let only = error.diagnostics().first().unwrap();
        (only.position().line, only.message().to_owned())
    };
    assert_eq!(message("\"a\"", "\"A b\""), (2, "`A b` is no name of a tenant".to_owned()));
    assert_eq!(message("\"a\"", "\"-a\""), (2, "`-a` is no name of a tenant".to_owned()));
    assert_eq!(message("\"a\"", "\"\""), (2, "the name is empty".to_owned()));
    let long = format!("\"{}\"", "a".repeat(64));
    assert_eq!(message("\"a\"", &long), (2, "the name has 64 characters".to_owned()));
    assert_eq!(message("1GiB", "0GiB"), (4, "a tenant without GPU memory cannot run".to_owned()));
    assert_eq!(message("[\"x\"]", "[]"), (5, "the command is empty".to_owned()));
    assert_eq!(message("[\"x\"]", "[\"\"]"), (5, "the program to run is empty".to_owned()));
    let nul = (5, "a command cannot hold the character NUL".to_owned());
    assert_eq!(message("[\"x\"]", "[\"x\", \"\\u0000\"]"), nul);
}

#[test]
fn a_second_tenant_of_a_name_is_told_where_the_first_is() {
    check(
        &format!("{TENANT}\n{TENANT}"),
        "f:8:8: a second tenant is named `a`; the first is at line 2, column 8\n  | name = \"a\"\n  |        ^^^ give \
         each tenant its own name",
    );
}

#[test]
fn a_best_effort_tenant_is_promised_nothing() {
    check(
        &format!("{}slo.p99 = \"5ms\"\n", TENANT.replace("latency-sensitive", "best-effort")),
        "f:6:1: a best-effort tenant takes what is left and is promised nothing\n  | slo.p99 = \"5ms\"\n  | ^^^ remove \
         the slo, or write class = \"latency-sensitive\"",
    );
    check(
        &format!("{}baseline.p99 = \"5ms\"\n", TENANT.replace("latency-sensitive", "best-effort")),
        "f:6:1: a best-effort tenant takes what is left and is promised nothing\n  | baseline.p99 = \"5ms\"\n  | ^^^^^^^^ \
         remove the baseline, or write class = \"latency-sensitive\"",
    );
}

#[test]
fn everything_wrong_is_told_once_in_the_order_of_the_file() {
    let text = format!("{}weight = 0\n{TENANT}", TENANT.replace("1GiB", "0B").replace("[\"x\"]", "[]"));
    let error = Config::parse(&text, "f").unwrap_err();
    let lines: Vec<_> = error.diagnostics().iter().map(|diagnostic| diagnostic.position().line).collect();
    assert_eq!(lines, [4, 5, 6, 8]);
    assert_eq!(error.to_string().lines().count(), 4 * 3);
}

#[test]
fn the_schema_names_every_key_and_every_value() {
    let schema = Config::schema();
    assert_eq!(schema, Config::schema());
    let parsed: serde_json::Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(parsed["additionalProperties"], false);
    assert_eq!(parsed["required"], serde_json::json!(["tenant"]));
    assert!(!schema.contains("null"), "TOML has no null");
    let mut keys = Vec::new();
    let mut values = Vec::new();
    collect(&parsed, &mut keys, &mut values);
    let expected = [
        "gpu", "select", "wall", "tenant", "name", "class", "memory", "command", "slo", "p99", "slowdown",
        "baseline", "share", "squeezed", "sms", "percent", "weight", "env", "restart",
    ];
    for key in expected {
        assert!(keys.iter().any(|(name, _)| name == key), "{key} is not in the schema");
        assert!(example(key).is_some(), "{key} has no example");
    }
    for (key, description) in &keys {
        assert!(expected.contains(&key.as_str()), "{key} is in the schema but not in this test");
        assert!(*description, "{key} has no description");
    }
    let restarts = ["on-failure", "always", "never"];
    let classes = ["latency-sensitive", "best-effort"];
    for value in Wall::ALL.map(Wall::id).iter().chain(&restarts).chain(&classes).chain(&["auto"]) {
        assert!(values.contains(&value.to_string()), "{value} is not in the schema");
    }
}

/// Every property of every object, with whether it is described, and every constant.
fn collect(schema: &serde_json::Value, keys: &mut Vec<(String, bool)>, values: &mut Vec<String>) {
    match schema {
        serde_json::Value::Object(object) => {
            if let Some(serde_json::Value::Object(properties)) = object.get("properties") {
                keys.extend(properties.iter().map(|(key, value)| {
                    // A variant's description stands beside its object of one property.
                    let described = value.get("description").or_else(|| object.get("description"));
                    (key.clone(), described.is_some())
                }));
            }
            let constants = object.get("const").into_iter();
            let listed = object.get("enum").and_then(|list| list.as_array()).into_iter().flatten();
            values.extend(constants.chain(listed).filter_map(|value| value.as_str().map(str::to_owned)));
            object.values().for_each(|value| collect(value, keys, values));
        }
        serde_json::Value::Array(list) => list.iter().for_each(|value| collect(value, keys, values)),
        _ => {}
    }
}

/// Every error lies within the text, and has a message.
fn hold_errors(text: &str) -> Result<(), TestCaseError> {
    let Err(error) = Config::parse(text, "f") else { return Ok(()) };
    prop_assert!(!error.diagnostics().is_empty());
    for diagnostic in error.diagnostics() {
        let Position { line, column } = diagnostic.position();
        let shown = text.split('\n').nth(line.wrapping_sub(1));
        prop_assert!(
            shown.is_some_and(|shown| column >= 1 && column <= shown.chars().count() + 1),
            "{}",
            error
        );
        prop_assert!(!diagnostic.message().is_empty());
    }
    prop_assert_eq!(error.to_string().split('\n').count(), 3 * error.diagnostics().len());
    Ok(())
}

fn any_config() -> impl Strategy<Value = Config> {
    let select = prop_oneof![
        Just(Select::Auto),
        any::<u32>().prop_map(Select::Index),
        "GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}".prop_map(Select::Uuid),
        "[a-z0-9-]{1,8}".prop_map(Select::Simulated),
    ];
    let wall = prop_oneof![
        Just(WallChoice::Auto),
        proptest::sample::select(&Wall::ALL[..]).prop_map(WallChoice::Fixed)
    ];
    let share = proptest::option::of(prop_oneof![
        (1u32..200).prop_map(|sms| Share::Sms(SmCount(sms))),
        (1u8..=100).prop_map(Share::Percent),
    ]);
    let slo = proptest::option::of((1u64..1 << 40, 1.0f64..9.0)).prop_map(|slo| {
        slo.map_or(Slo::default(), |(p99, slowdown)| Slo { p99: Some(Nanos(p99)), slowdown: Some(slowdown) })
    });
    let restart = proptest::sample::select(&[Restart::OnFailure, Restart::Always, Restart::Never][..]);
    let env = proptest::collection::btree_map("[A-Z\"']{1,4}", "[^\0]{0,5}", 0..3);
    let words = proptest::collection::vec("[^\0]{1,6}", 1..4);
    let tenant = (words, 1u64..1 << 50, slo, share, proptest::option::of(1u32..=1024), env, restart)
        .prop_map(|(command, memory, slo, share, weight, env, restart)| TenantConfig {
            name: String::new(),
            class: if slo == Slo::default() { Class::BestEffort } else { Class::LatencySensitive },
            memory: Bytes(memory),
            command,
            slo,
            baseline: Baseline { p99: slo.p99 },
            squeezed: share.filter(|_| slo == Slo::default()),
            share,
            weight,
            env,
            restart,
        });
    (select, wall, proptest::collection::vec(tenant, 1..4)).prop_map(|(select, wall, mut tenants)| {
        tenants.iter_mut().enumerate().for_each(|(index, tenant)| tenant.name = format!("t-{index}"));
        Config { gpu: GpuConfig { select, wall }, tenants }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn any_text_is_read_or_refused_with_a_place(text in "(?s).{0,80}") {
        hold_errors(&text)?;
    }

    #[test]
    fn what_looks_like_a_config_is_read_or_refused_with_a_place(
        lines in proptest::collection::vec(
            "(\\[\\[tenant\\]\\]|\\[gpu\\]|(name|class|memory|slo\\.p99|share\\.sms|env|gpu\\.select|tenant) = \
             (\"[a-zA-Z0-9 \u{e9}]{0,4}\"|-?[0-9]{1,3}|\\[\\]|\\{\\}|\\{sms = 1, percent = 2\\}|nan|1979-05-27))",
            0..8,
        ),
    ) {
        hold_errors(&lines.join("\n"))?;
    }

    #[test]
    fn a_mutated_example_is_read_or_refused_with_a_place(
        at in any::<Index>(), length in 0usize..40, insert in "[ \\[\\]=\"'\n.,{}a-z0-9\u{1f600}\0-]{0,6}",
    ) {
        // The example is ASCII, so every byte is a boundary.
        let start = at.index(EXAMPLE.len());
        let end = (start + length).min(EXAMPLE.len());
        hold_errors(&format!("{}{insert}{}", &EXAMPLE[..start], &EXAMPLE[end..]))?;
    }

    #[test]
    fn a_written_config_reads_back(config in any_config()) {
        let text = toml::to_string(&config).unwrap();
        prop_assert_eq!(Config::parse(&text, "f").map_err(|error| error.to_string()), Ok(config));
    }
}
