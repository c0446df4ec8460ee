use std::io;
use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::params::Params;
use crate::profile;
use partywall_core::catalogue::Catalogue;

/// A valid scenario to which a test adds or in which it changes lines.
const SMALL: &str = r#"name = "small"
gpu = "h200"
warmup = "10ms"
duration = "200ms"

[[tenant]]
name = "ls"
class = "latency-sensitive"
program = "resnet50"
load = { kind = "poisson", rate_per_s = 200 }

[[tenant]]
name = "be"
class = "best-effort"
program = "stream"
load = { kind = "closed" }

[[variant]]
name = "mps"
wall = "mps"
"#;

fn run(scenario: &Scenario, threads: usize, seed: Option<u64>) -> Result<ScenarioReport, ScenarioError> {
    let options = RunOptions {
        catalogue: Catalogue::builtin().expect("the catalogue"),
        validated: &[Wall::Mps],
        seed,
        threads,
        params: Params::default(),
    };
    let mut open = |path: &Path| -> io::Result<Box<dyn io::BufRead>> {
        match path.to_str() {
            Some("good.csv") => {
                let text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0000000,8,1\n\
                            2023-11-16 18:00:00.0500000,8,1\n";
                Ok(Box::new(io::Cursor::new(text)))
            }
            Some("bad.csv") => Ok(Box::new(io::Cursor::new("nonsense\n"))),
            _ => Err(io::Error::from(io::ErrorKind::NotFound)),
        }
    };
    scenario.run(&options, &mut open, &|_| ())
}

#[test]
fn a_variant_of_the_wall_partywall_is_simulated_as_it_is_set() {
    let mean_ms = |setting: &str| {
        let text = SMALL.replace("wall = \"mps\"", &format!("wall = \"partywall\"{setting}"));
        run(&parsed(&text), 1, None).unwrap().rows[0].tenant.service.mean_ms.unwrap()
    };
    let as_it_comes = mean_ms("");
    assert_eq!(mean_ms("\nsetting = \"mps decided\""), as_it_comes);
    assert!(mean_ms("\nsetting = \"mps\"") > 3.0 * as_it_comes, "nothing is held");
}

fn parsed(text: &str) -> Scenario {
    Scenario::parse(text, "s.toml").unwrap_or_else(|error| panic!("{error}"))
}

fn json(report: &ScenarioReport) -> String {
    serde_json::to_string(report).expect("JSON")
}

/// `SMALL` with `from` replaced by `to` gives exactly this message.
#[track_caller]
fn check(from: &str, to: &str, expect: &str) {
    assert!(SMALL.contains(from), "{from}");
    let text = SMALL.replacen(from, to, 1);
    let shown = match Scenario::parse(&text, "s.toml") {
        Err(error) => error.to_string(),
        Ok(scenario) => run(&scenario, 1, None).expect_err("an error").to_string(),
    };
    assert_eq!(shown, expect, "\n{shown}\n");
}

#[test]
fn errors_of_form_point_at_their_place() {
    check(
        "warmup",
        "warmpu",
        "s.toml:3:1: unknown key `warmpu`\n  | warmpu = \"10ms\"\n  | ^^^^^^ did you mean `warmup`? Known: `name`, \
         `description`, `gpu`, `seed`, `duration`, `warmup`, `objective`, `tenant`, `fault`, `variant`, `ims`, `sweep`",
    );
    check(
        "duration = \"200ms\"",
        "duration = 5",
        "s.toml:4:12: expected a string, found integer `5`\n  | duration = 5\n  |            ^ write duration = \"5s\"",
    );
    check(
        "wall = \"mps\"",
        "wall = \"mpss\"",
        "s.toml:20:8: `mpss` is no value of `wall`\n  | wall = \"mpss\"\n  |        ^^^^^^ did you mean `mps`? Known: \
         `exclusive`, `stream-priority`, `time-slicing`, `mps`, `mps-percentage`, `mps-static`, `mig`, \
         `green-contexts`, `sides`, `partywall`",
    );
    check(
        "[[variant]]",
        "[ims]\ntenants = [\"ls\"]\n[[ims]]\n[[variant]]",
        "s.toml:20:3: the key stands here a second time\n  | [[ims]]\n  |   ^^^ a table holds each key once",
    );
    check(
        "load = { kind = \"closed\" }",
        "load = [\"closed\"]",
        "s.toml:16:8: expected a table, found a list\n  | load = [\"closed\"]\n  |        ^^^^^^^^^^ write load = { kind = \
         \"poisson\", rate_per_s = 100 }",
    );
    check(
        "program = \"stream\"",
        "program = \"stream\"\nobjective = \"fastx\"",
        "s.toml:16:13: `fastx` is no multiple of the time alone\n  | objective = \"fastx\"\n  |             ^^^^^^^ \
         write \"2x\", or a time such as \"5ms\"",
    );
}

#[test]
fn errors_of_meaning_point_at_their_place() {
    let known: Vec<String> =
        profile::recorded_models().iter().map(|(model, _)| format!("`{model}`")).collect();
    check(
        "\"resnet50\"",
        "\"resnet51\"",
        &format!(
            "s.toml:9:11: `resnet51` is no program\n  | program = \"resnet51\"\n  |           ^^^^^^^^^^ did you mean \
             `resnet50`? Known: `stream`, `gemm`, `host-copy`, `sweep`, {}",
            known.join(", ")
        ),
    );
    check(
        "rate_per_s = 200",
        "rate_per_s = -1",
        &format!(
            "s.toml:10:41: `rate_per_s` is -1\n  | load = {{ kind = \"poisson\", rate_per_s = -1 }}\n  | {space}^^ write a number from 1e-9 to 1000000.0",
            space = " ".repeat(40)
        ),
    );
    check(
        "name = \"be\"",
        "name = \"ls\"",
        "s.toml:13:8: a second tenant is named `ls`; the first is at line 7, column 8\n  | name = \"ls\"\n  |        \
         ^^^^ give each tenant its own name",
    );
    check(
        "\"stream\"",
        "\"host-copy\"",
        "s.toml:15:11: `host-copy` needs the size of a copy\n  | program = \"host-copy\"\n  |           ^^^^^^^^^^^ \
         write bytes = \"512MiB\"",
    );
    check(
        "[[variant]]",
        "[[fault]]\ntenant = \"bee\"\nat = \"1ms\"\n[[variant]]",
        "s.toml:19:10: no tenant is named `bee`\n  | tenant = \"bee\"\n  |          ^^^^^ did you mean `be`? Known: `ls`, \
         `be`",
    );
    check(
        "[[variant]]",
        "[[variant]]\nshare = { be = { percent = 0 } }",
        "s.toml:19:28: 0 is no percentage of the SMs\n  | share = { be = { percent = 0 } }\n  |                            ^ \
         write share.percent = 50, from 1 to 100",
    );
    let set = |wall: &str, setting: &str, message: &str| {
        let (line, under) = (format!("setting = \"{setting}\""), "^".repeat(setting.len() + 2));
        let expected = format!(
            "s.toml:21:11: {message}\n  | {line}\n  |           {under} write setting = \"time-slicing decided\""
        );
        check("wall = \"mps\"", &format!("wall = \"{wall}\"\n{line}"), &expected);
    };
    set("mps", "mps", "the wall `mps` cannot be set; only `partywall` can");
    set("partywall", "mps slow", "`partywall` is set to `mps slow`, of which `slow` is not known");
    set("partywall", "mps be=66sms", "SMs of a variant are its `share`");
    check(
        "[[variant]]",
        "[sweep]\nls = [\"resnet50\"]\nbe = [\"gpt2\"]\n[[variant]]",
        "s.toml:19:1: 0 latency-sensitive tenants have program = \"sweep\"\n  | ls = [\"resnet50\"]\n  | ^^ let one \
         latency-sensitive tenant take the networks of `ls`\ns.toml:20:1: 0 best-effort tenants have program = \
         \"sweep\"\n  | be = [\"gpt2\"]\n  | ^^ let one best-effort tenant take the networks of `be`",
    );
}

#[test]
fn what_only_a_run_shows_points_at_its_place_too() {
    check(
        "gpu = \"h200\"",
        "gpu = [\"h200\", \"orin\"]",
        "s.toml:2:16: `orin` is no GPU of the catalogue\n  | gpu = [\"h200\", \"orin\"]\n  |                ^^^^^^ did you \
         mean `orin-nano`? choose one of h200, h100-sxm, h100-pcie, a100-80gb, a100-40gb, l40s, l4, agx-orin, orin-nano",
    );
}

#[test]
fn a_wall_that_the_gpu_lacks_is_refused_at_the_variant() {
    let text = SMALL.replace("h200", "l4").replace("wall = \"mps\"", "wall = \"mig\"");
    let error = run(&parsed(&text), 1, None).expect_err("no MIG");
    assert_eq!(
        error.to_string(),
        "s.toml:20:8: `mig` does not exist on NVIDIA L4: the part has no MIG\n  | wall = \"mig\"\n  |        ^^^^^"
    );
}

#[test]
fn traces_are_read_through_the_caller() {
    let replay = |path: &str| {
        let load = format!(
            "load = {{ kind = \"replay\", repeat = true, trace = {{ format = \"azure-llm\", path = \"{path}\" }} }}"
        );
        run(&parsed(&SMALL.replace("load = { kind = \"poisson\", rate_per_s = 200 }", &load)), 1, None)
    };
    let report = replay("good.csv").expect("a trace");
    assert!((3..=6).contains(&report.rows[0].tenant.service.n), "{:?}", report.rows[0]);
    let missing = replay("none.csv").expect_err("no file").to_string();
    assert!(missing.starts_with("s.toml:10:"), "{missing}");
    assert!(missing.contains("the trace cannot be read: entity not found"), "{missing}");
    assert!(matches!(replay("bad.csv"), Err(ScenarioError::Trace(_))));
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let text = format!(
        "{SMALL}[[variant]]\nname = \"slices\"\nwall = \"time-slicing\"\n[ims]\ntenants = [\"ls\"]\nrequests = 20\n"
    );
    let scenario = parsed(&text);
    let [one, two, other] = [(1, None), (2, None), (2, Some(2))]
        .map(|(threads, seed)| json(&run(&scenario, threads, seed).expect("a run")));
    assert_eq!(one, two);
    assert_ne!(one, other);
    assert!(one.contains("\"simulated\":true") && one.contains("\"seed\":1"), "{one}");
}

#[test]
fn results_say_whether_the_model_was_validated_for_wall_and_gpu() {
    let text = SMALL.replace("\"h200\"", "[\"h200\", \"h100-sxm\"]");
    let text = format!("{text}[[variant]]\nname = \"slices\"\nwall = \"time-slicing\"\n");
    let report = run(&parsed(&text), 2, None).expect("a run");
    let validated: Vec<_> = report.summaries.iter().map(|s| (&s.gpu[..], s.wall, s.validated)).collect();
    assert_eq!(
        validated,
        [
            ("h200", Wall::Mps, true),
            ("h200", Wall::TimeSlicing, false),
            ("h100-sxm", Wall::Mps, false),
            ("h100-sxm", Wall::TimeSlicing, false),
        ]
    );
    for table in report.tables() {
        assert!(table.rows.iter().all(|row| row.len() == table.header.len()), "{}", table.title);
        assert!(table.title.contains("simulated"), "{}", table.title);
    }
}

#[test]
fn a_fault_ends_the_neighbours_where_the_wall_does_not_contain_it() {
    let fault = "[[fault]]\ntenant = \"be\"\nat = \"60ms\"\nrestart = \"100ms\"\n";
    let variants = "[[variant]]\nname = \"b\"\nwall = \"time-slicing\"\n[[variant]]\nname = \"c\"\nwall = \"mig\"\n\
                    [[variant]]\nname = \"d\"\nwall = \"exclusive\"\n";
    let report = run(&parsed(&format!("{SMALL}{fault}{variants}")), 1, None).expect("a run");
    let lost: Vec<(Wall, u64)> = report
        .rows
        .iter()
        .filter(|row| row.tenant.name == "ls")
        .map(|row| (row.wall, row.tenant.lost))
        .collect();
    let [(Wall::Mps, under_mps), rest @ ..] = &lost[..] else { panic!("{lost:?}") };
    // 100 ms at 200 a second.
    assert!((8..40).contains(under_mps), "{lost:?}");
    assert!(rest.len() == 3 && rest.iter().all(|(_, lost)| *lost == 0), "{lost:?}");
}

#[test]
fn objectives_are_times_or_multiples_of_the_time_alone() {
    let text = SMALL.replace("program = \"resnet50\"", "program = \"resnet50\"\nobjective = \"3x\"");
    let report = run(&parsed(&text), 1, None).expect("a run");
    let row = &report.rows[0];
    let solo = row.tenant.solo.p50_ms.expect("a median");
    assert!((row.objective_ms.expect("an objective") / solo - 3.0).abs() < 1e-3, "{row:?}");
    assert_eq!(report.rows[1].objective_ms, None);
}

/// The scenarios of the repository, shortened.
fn repository() -> Vec<(String, Scenario)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).expect("scenarios/").map(|entry| entry.expect("entry").path()).collect();
    files.sort();
    let scenarios = files.iter().map(|path| {
        let text = std::fs::read_to_string(path).expect("a file");
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let scenario = Scenario::parse(&text, name).unwrap_or_else(|error| panic!("{error}"));
        (name.to_owned(), scenario)
    });
    scenarios.collect()
}

#[test]
fn every_scenario_of_the_repository_runs() {
    let all = repository();
    assert!(all.len() >= 5, "{}", all.len());
    for (name, scenario) in all {
        let scenario = scenario.shortened(Nanos::from_millis(20), 5);
        let report = run(&scenario, 2, None).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!report.rows.is_empty() && !report.description.is_empty(), "{name}");
        assert_eq!(report.ims.is_empty(), scenario.file.ims.is_none(), "{name}");
    }
}

#[test]
fn the_edge_scenario_shows_the_power_cap_of_the_small_board_only() {
    let (_, scenario) =
        repository().into_iter().find(|(name, _)| name == "edge-paper.toml").expect("the file");
    let report = run(&scenario.shortened(Nanos::from_secs(2), 100), 2, None).expect("a run");
    let clock = |gpu: &str| report.summaries.iter().find(|s| s.gpu == gpu).map(|s| s.clock_mhz).expect(gpu);
    assert!((0.45..0.55).contains(&(clock("orin-nano") / 1020.0)), "{}", clock("orin-nano"));
    assert_eq!(clock("agx-orin"), 1300.0);
    for result in &report.ims {
        let (first, last) = (result.steps[0], result.steps[result.steps.len() - 1]);
        assert_eq!((first.load, first.timeouts, last.load), (0.0, 0, 1.0), "{result:?}");
        match &result.gpu[..] {
            "orin-nano" => assert!(last.timeout_rate > 0.9, "{result:?}"),
            _ => assert!(last.timeout_rate < 0.1, "{result:?}"),
        }
    }
}

/// The keys that the reader lists behind an unknown one are those of the reference.
#[test]
fn the_reference_has_every_key() {
    let unknown = |table: &str| {
        let text = match table {
            "" => "zzz = 1\n".to_owned(),
            "ims" | "sweep" => format!("[{table}]\nzzz = 1\n"),
            list => format!("[[{list}]]\nzzz = 1\n"),
        };
        let error = toml::from_str::<ScenarioFile>(&text).expect_err("an unknown key").to_string();
        let (_, known) =
            error.split_once("expected one of ").or(error.split_once("expected ")).expect("a list");
        known.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()
    };
    for table in ["", "tenant", "fault", "variant", "ims", "sweep"] {
        let listed: Vec<&str> =
            reference::KEYS.iter().filter(|key| key.table == table).map(|key| key.key).collect();
        assert_eq!(listed, unknown(table), "{table}");
    }
    let reference = reference();
    assert!(reference.contains("## `[[tenant]]`") && reference.contains("| `share` |"), "{reference}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_text_panics(text in ".{0,200}") {
        let _ = Scenario::parse(&text, "s.toml");
    }

    #[test]
    fn no_mutation_panics(cuts in prop::collection::vec((any::<Index>(), any::<Index>(), ".{0,4}"), 1..4), which in any::<Index>()) {
        let ims = "[ims]\ntenants = [\"ls\"]\nloads = [0.5]\nmargin = 0.1\n";
        let sweep = "[sweep]\nls = [\"gpt2\"]\nbe = [\"vgg16\"]\n[[fault]]\ntenant = \"be\"\nat = \"1ms\"\n";
        let mut text = format!("{SMALL}{}", [ims, sweep][which.index(2)]);
        for (from, length, with) in cuts {
            let mut start = from.index(text.len() + 1);
            while !text.is_char_boundary(start) { start -= 1; }
            let mut end = (start + length.index(12)).min(text.len());
            while !text.is_char_boundary(end) { end += 1; }
            text.replace_range(start..end, &with);
        }
        if let Err(error) = Scenario::parse(&text, "s.toml") {
            let shown = error.to_string();
            prop_assert!(shown.starts_with("s.toml:"), "{}", shown);
        }
    }
}
