use super::*;
use crate::workspace::Scratch;

const CLAIMS: &str = r#"# The ledger.
[[claim]]
id = "a.slowdown"
what = "slowdown beside a neighbour"
value = 1.03
unit = "ratio"
kind = "measured"
better = "lower"
floor = 1.1
goal = 1.01
file = "results/a.json"
pointer = "/rows/0"
command = "measure a"

[[claim]]
id = "a.rate"
what = "how fast"
value = 5212345
unit = "1/s"
kind = "simulated"
file = "results/a.json"
pointer = "/rate"
command = "measure a"
"#;

const README: &str = "Slow: <!-- claim:a.slowdown -->1.0x<!-- /claim -->.\n";
const PAGE: &str = "| <!-- claim:a.rate -->5.2 M<!-- /claim --> |\n";

fn scratch(name: &str, json: &str) -> Scratch {
    Scratch::with(
        name,
        &[
            (LEDGER, CLAIMS),
            ("results/a.json", json),
            ("README.md", README),
            ("docs/deep/page.md", PAGE),
            ("crates/x/notes.md", "<!-- claim:elsewhere -->"),
        ],
    )
}

fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(Problem::to_string).collect()
}

#[test]
fn what_agrees_gives_a_table() {
    let scratch = scratch("agrees", r#"{"rows":[1.0284],"rate":5212345.0}"#);
    let report = run(scratch.root(), false).unwrap();
    assert_eq!(lines(&report.problems), Vec::<String>::new());
    assert_eq!(
        report.table,
        "id          value    unit   kind       floor   goal          ok\n\
         a.slowdown  1.03     ratio  measured   <= 1.1  <= 1.01 open  ok\n\
         a.rate      5212345  1/s    simulated  -       -             ok"
    );
}

#[test]
fn ledger_and_documents_are_refreshed_together() {
    let scratch = scratch("refreshed", r#"{"rows":[1.0064],"rate":6150000}"#);
    let before = run(scratch.root(), false).unwrap();
    assert_eq!(before.problems.len(), 2, "{:?}", lines(&before.problems));
    assert!(before.table.contains("<= 1.01 met  NO"), "{}", before.table);
    assert_eq!(scratch.text(LEDGER), CLAIMS, "a check writes nothing");

    let after = run(scratch.root(), true).unwrap();
    assert_eq!(lines(&after.problems), Vec::<String>::new());
    assert_eq!(scratch.text(LEDGER), CLAIMS.replace("1.03", "1.01").replace("5212345", "6150000"));
    assert_eq!(scratch.text("README.md"), README, "1.01 is still 1.0 to these digits");
    assert_eq!(scratch.text("docs/deep/page.md"), PAGE.replace("5.2 M", "6.2 M"));
}

#[test]
fn writing_does_not_hide_a_broken_floor_or_a_missing_file() {
    let broken = scratch("floor", r#"{"rows":[1.2],"rate":5212345}"#);
    let report = run(broken.root(), true).unwrap();
    let expected = "results/claims.toml:5:9: claim `a.slowdown`: the floor is <= 1.1, and results/a.json#/rows/0 says 1.2";
    assert_eq!(lines(&report.problems), [expected]);

    let missing = scratch("missing", "{}");
    fs::remove_file(missing.root().join("results/a.json")).unwrap();
    let report = run(missing.root(), true).unwrap();
    let found = lines(&report.problems);
    assert_eq!(found.len(), 2);
    assert!(
        found[0]
            .starts_with("results/claims.toml:11:8: claim `a.slowdown`: results/a.json: cannot be read: "),
        "{}",
        found[0]
    );
    assert_eq!(missing.text(LEDGER), CLAIMS);
}

#[test]
fn a_spoiled_ledger_writes_nothing() {
    let scratch = scratch("spoiled", r#"{"rows":[2],"rate":1}"#);
    let spoiled = CLAIMS.replace("unit = \"1/s\"", "unit = \"%\"");
    workspace::write(scratch.root(), Path::new(LEDGER), &spoiled).unwrap();
    let error = run(scratch.root(), true).unwrap_err().to_string();
    assert_eq!(
        error,
        "1 problem\nresults/claims.toml:19:8: claim `a.rate`: ratios are fractions: write 0.8 and unit `ratio`, not \
         80 per cent"
    );
    assert_eq!((scratch.text(LEDGER), scratch.text("docs/deep/page.md")), (spoiled, PAGE.to_owned()));
}

#[test]
fn an_empty_ledger_says_so() {
    let scratch = Scratch::with("empty", &[(LEDGER, "# none yet\n"), ("README.md", "# x\n")]);
    assert_eq!(run(scratch.root(), false).unwrap().table, "results/claims.toml claims nothing yet");
}

#[test]
fn rows_of_a_record_become_claims_once() {
    let record = r#"{"simulated": false, "pretended": false, "command": "partywall measure --name \"x\"", "summary": {
        "a-b1.c.mps": {"slowdown_p99": 45.6789, "response_slowdown_p99": null, "be_kept": 0.98765, "saturated": false},
        "a-b1.c.partywall": {"slowdown_p99": 1.08751, "response_slowdown_p99": 1.2, "be_kept": 0.7, "saturated": false},
        "a-b1.c.partywall.mps-decided": {"slowdown_p99": 1.08751, "response_slowdown_p99": 1.2, "be_kept": 0.7, "saturated": false}
    }}"#;
    let files = [(LEDGER, "# The ledger.\n"), ("results/r.json", record)];
    let scratch = Scratch::with("rows", &files);
    let report = run_with_rows(scratch.root(), &[PathBuf::from("results/r.json")]).unwrap();
    assert_eq!(lines(&report.problems), Vec::<String>::new());
    let ledger = load(scratch.root()).unwrap();
    let found: Vec<(&str, String)> =
        ledger.claims.iter().map(|claim| (&*claim.id, claim.value.to_string())).collect();
    let expected = [
        ("sm.a-b1.c.mps.slowdown_p99", "45.679"),
        ("sm.a-b1.c.mps.be_kept", "0.988"),
        ("sm.a-b1.c.partywall.slowdown_p99", "1.088"),
        ("sm.a-b1.c.partywall.response_slowdown_p99", "1.200"),
        ("sm.a-b1.c.partywall.be_kept", "0.700"),
    ];
    assert_eq!(found, expected.map(|(id, value)| (id, value.to_owned())));
    let claim = ledger.get("sm.a-b1.c.mps.be_kept").unwrap();
    assert_eq!(claim.what, "a-b1 beside c, mps: rate of the best-effort tenant over solo");
    assert_eq!(claim.command, "partywall measure --name \"x\"");
    // Again: nothing new, and nothing twice.
    run_with_rows(scratch.root(), &[PathBuf::from("results/r.json")]).unwrap();
    assert_eq!(load(scratch.root()).unwrap().claims.len(), 5);
}

#[test]
fn a_rehearsal_is_not_claimed() {
    let files =
        [(LEDGER, "# The ledger.\n"), ("results/r.json", r#"{"simulated": true, "pretended": false}"#)];
    let scratch = Scratch::with("rehearsed", &files);
    let error = run_with_rows(scratch.root(), &[PathBuf::from("results/r.json")]).unwrap_err();
    assert!(error.to_string().contains("is no measurement on a GPU"), "{error}");
}

#[test]
fn tenants_on_sides_are_claimed_with_and_without_colors() {
    let record = r#"{"simulated": false, "pretended": false, "command": "partywall measure --plan workloads/plans/sides.toml", "summary": {
        "resnet18-b1.mixer.sides.private": {"slowdown_p99": 1.2601, "response_slowdown_p99": null, "be_kept": 0.4943},
        "resnet18-b1.mixer.sides.plain": {"slowdown_p99": 1.3841, "response_slowdown_p99": null, "be_kept": 0.5071}}}"#;
    let scratch = Scratch::with("on-sides", &[(LEDGER, "# The ledger.\n"), ("results/r.json", record)]);
    run_with_rows(scratch.root(), &[PathBuf::from("results/r.json")]).unwrap();
    let ledger = load(scratch.root()).unwrap();
    let value = |id: &str| ledger.get(id).map(|claim| claim.value.to_string());
    assert_eq!(value("sides.net.resnet18-b1.mixer.slowdown_p99").as_deref(), Some("1.260"));
    assert_eq!(value("sides.net.resnet18-b1.mixer.be_kept.uncolored").as_deref(), Some("0.507"));
    assert_eq!(value("sides.net.resnet18-b1.mixer.response_slowdown_p99"), None);
}

#[test]
fn sides_become_claims_of_their_own() {
    let map = r#"{"gpu": "NVIDIA H200", "simulated": false, "command": "partywall vram map --fresh --json", "took_s": 0.72,
        "cache": "ignored", "gib": 138.2851, "sides": {"checked": 100000, "wrong": 0}, "slices": null}"#;
    let slices = r#"{"gpu": "NVIDIA H200", "simulated": false, "command": "partywall vram map --slices 1GiB --json", "took_s": 0.28,
        "cache": "used", "gib": 138.2851, "sides": {"checked": 100000, "wrong": 0},
        "slices": {"bytes": 1073741824, "checked": 90000, "took_s": 14.193}}"#;
    let summary = |p99: &str, graph: &str| {
        format!(
            r#"{{"long": {{"interference_p50_max": 1.0, "interference_p99_max": {p99}, "added_us_per_launch_max": null}},
                "short": null, "graph": {graph}, "load_kept_min": 0.97, "load_kept_of_most_min": 0.96}}"#
        )
    };
    let graph =
        r#"{"interference_p50_max": 1.7, "interference_p99_max": 1.8, "added_us_per_launch_max": 4.9}"#;
    let neighbours = |pages: &str, option: &str, uncolored: &str| {
        format!(
            r#"{{"gpu": "NVIDIA H200", "simulated": false, "command": "partywall vram interfere{option} --json", "pages": "{pages}",
                "request": {{"launches": 4, "bytes": 8388608}}, "tenant": {{"data_bytes": 67108864}},
                "summary": {{"colored": {}, "uncolored": {uncolored}}}}}"#,
            summary("1.0052", graph)
        )
    };
    let (private, paired) =
        (neighbours("private", "", &summary("2.5", graph)), neighbours("paired", "", "null"));
    let held = neighbours("private", " --held 97.5", &summary("2.5", graph));
    let long = neighbours("private", " --work long", &summary("2.5", "null")).replacen(graph, "null", 1);
    let files = [
        (LEDGER, "# The ledger.\n"),
        ("results/map.json", map),
        ("results/slices.json", slices),
        ("results/long.json", &long),
        ("results/private.json", &private),
        ("results/paired.json", &paired),
        ("results/held.json", &held),
    ];
    let scratch = Scratch::with("sides", &files);
    let records = ["map", "slices", "long", "private", "paired", "held"]
        .map(|name| PathBuf::from(format!("results/{name}.json")));
    let report = run_with_rows(scratch.root(), &records).unwrap();
    assert_eq!(lines(&report.problems), Vec::<String>::new());
    let ledger = load(scratch.root()).unwrap();
    let value = |id: &str| ledger.get(id).map(|claim| format!("{} {}", claim.value, claim.unit));
    for (id, expected) in [
        ("sides.map_s", "0.720 s"),
        ("sides.map_gib", "138.285 GiB"),
        ("sides.map_again_s", "0.280 s"),
        ("sides.wrong_probes", "0 1"),
        ("sides.slices_s", "14.193 s"),
        ("sides.slices_checked", "90000 1"),
        ("sides.long.interference_max", "1.005 ratio"),
        ("sides.long.interference_max.uncolored", "2.500 ratio"),
        ("sides.long.be_kept_min", "0.970 ratio"),
        ("sides.held.long.interference_max", "1.005 ratio"),
        ("sides.filling.graph.added_us_per_launch_max", "4.900 us"),
        ("sides.filling.be_kept_min", "0.970 ratio"),
        ("sides.filling.be_kept_min.uncolored", "0.970 ratio"),
        ("sides.paired.filling.graph.interference_max", "1.800 ratio"),
        ("sides.graph.interference_max", "1.800 ratio"),
        ("sides.be_kept_min", "0.960 ratio"),
    ] {
        assert_eq!(value(id).as_deref(), Some(expected), "{id}");
    }
    // What was not measured, or not often enough, is not claimed.
    for id in [
        "sides.short.interference_max",
        "sides.graph.added_us_per_launch_max.uncolored",
        "sides.paired.filling.be_kept_min.uncolored",
    ] {
        assert_eq!(value(id), None, "{id}");
    }
    let claim = ledger.get("sides.graph.interference_max").unwrap();
    let what = "requests of 4 launches of 8 MiB as CUDA graphs beside a held neighbour, each on its side of the chip: p99 over p99 alone in \
                the same partition, the most of all rows";
    assert_eq!(claim.what, what);
}

#[test]
fn a_record_without_figures_says_what_writes_them() {
    let files = [(LEDGER, "# The ledger.\n"), ("results/r.json", r#"{"simulated": false, "rows": []}"#)];
    let scratch = Scratch::with("figureless", &files);
    let error = run_with_rows(scratch.root(), &[PathBuf::from("results/r.json")]).unwrap_err();
    assert!(error.to_string().contains("has no figures under names that stay"), "{error}");
}
