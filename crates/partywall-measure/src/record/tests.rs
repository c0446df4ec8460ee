use proptest::prelude::*;

use super::*;

/// The least record there is.
pub(crate) fn sample() -> Record {
    Record {
        format: FORMAT.to_owned(),
        simulated: false,
        pretended: true,
        name: "quick".to_owned(),
        command: "partywall measure --quick".to_owned(),
        started: "2026-11-21T12:00:00Z".to_owned(),
        took_s: 1.5,
        complete: true,
        environment: Environment::default(),
        settings: Settings {
            plan: "quick".to_owned(),
            seed: 1,
            rounds: 2,
            warmup_s: 0.1,
            seconds_max: 1.0,
            requests_wanted: 1000,
            evidence: EvidenceRule::Shown,
        },
        tenants: Vec::new(),
        cells: Vec::new(),
        rows: vec![Row {
            wall: Wall::GreenContexts,
            setting: "64/68".to_owned(),
            processes: Processes::One,
            ls: "a".to_owned(),
            be: "b".to_owned(),
            beside: Vec::new(),
            part: 0,
            p50_ms: Some(0.5),
            p99_ms: None,
            slowdown_p50: Some(1.25),
            slowdown_p50_interval: Some([1.2, 1.3]),
            slowdown_p99: None,
            slowdown_p99_interval: None,
            response_slowdown_p50: Some(1.5),
            response_slowdown_p99: None,
            capacity_cost_p50: Some(1.0),
            interference_p50: Some(1.25),
            capacity_cost_p99: None,
            interference_p99: None,
            be_kept: Some(0.5),
            be_kept_of_part: None,
            be_rate_per_s: Some(100.0),
            saturated: false,
            completed_per_s: None,
            throttled: Vec::new(),
            error: Some(CellError::new(ErrorKind::WrongResult, "sum")),
        }],
        ims: Vec::new(),
        facts: Vec::new(),
        parts: Vec::new(),
        summary: BTreeMap::new(),
    }
}

#[test]
fn what_is_written_is_read_by_its_ids() {
    let record = sample();
    let text = record.json().unwrap();
    assert_eq!(Record::parse(&text, "f.json"), Ok(record));
    for part in [
        r#""wall": "green-contexts""#,
        r#""processes": "one""#,
        r#""p99_ms": null"#,
        r#""kind": "wrong-result""#,
        r#""evidence": "shown""#,
    ] {
        assert!(text.contains(part), "{part}");
    }
}

#[test]
fn what_is_no_record_says_where() {
    let error = |text: &str| Record::parse(text, "f.json").unwrap_err().to_string();
    assert!(error("{").starts_with("f.json:1:1: EOF while parsing"), "{}", error("{"));
    let other = sample().json().unwrap().replace(FORMAT, "partywall-measure-9");
    assert!(
        error(&other).starts_with("f.json:2:14: the format is `partywall-measure-9`"),
        "{}",
        error(&other)
    );
    let wrong = sample().json().unwrap().replace("\"seed\": 1", "\"seed\": -1");
    let error = error(&wrong);
    assert!(
        error.contains("invalid value: integer `-1`") && error.contains("| ") && error.contains("seed"),
        "{error}"
    );
}

#[test]
fn the_worst_fact_is_the_one_furthest_off() {
    let fact = |row: &str, difference: Option<f64>| FactRecord {
        row: row.to_owned(),
        expected: 1.0,
        source: String::new(),
        differs: (row == "known").then(|| "another neighbour".to_owned()),
        measured: difference.map(|difference| 1.0 + difference),
        relative_difference: difference,
    };
    let mut record = sample();
    assert_eq!(record.worst_fact(), None);
    record.facts =
        vec![fact("known", Some(3.0)), fact("a", Some(0.1)), fact("b", Some(-0.2)), fact("c", None)];
    assert_eq!(record.worst_fact().map(|fact| fact.row.as_str()), Some("b"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_damage_to_a_record_panics(at in any::<prop::sample::Index>(), text in "\\PC{0,3}") {
        let mut whole = sample().json().unwrap();
        let at = at.index(whole.len());
        whole.replace_range(at..=at, &text);
        let _ = Record::parse(&whole, "f.json");
    }
}
