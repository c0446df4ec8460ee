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
    let report = run_with_rows(scratch.root(), Path::new("results/r.json")).unwrap();
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
    run_with_rows(scratch.root(), Path::new("results/r.json")).unwrap();
    assert_eq!(load(scratch.root()).unwrap().claims.len(), 5);
}

#[test]
fn a_rehearsal_is_not_claimed() {
    let files =
        [(LEDGER, "# The ledger.\n"), ("results/r.json", r#"{"simulated": true, "pretended": false}"#)];
    let scratch = Scratch::with("rehearsed", &files);
    let error = run_with_rows(scratch.root(), Path::new("results/r.json")).unwrap_err();
    assert!(error.to_string().contains("is no measurement on a GPU"), "{error}");
}
