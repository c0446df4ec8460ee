use proptest::prelude::*;

use super::*;

/// A claim in order, to which a test adds lines, or which it spoils by replacing one.
const GOOD: &str = r#"# The project's numbers.
[[claim]]
id = "sim.error_p50.mps"
what = "median error of the simulated p50"
value = 0.070   # three digits
unit = "ratio"
kind = "simulated"
better = "lower"
floor = 0.15
goal = 0.07
file = "results/sim/validate.json"
pointer = "/walls/0/median_error_p50"
command = "partywall sim validate results/h200/pairs.csv --json"
"#;

fn parse(text: &str) -> Ledger {
    Ledger::parse(text).unwrap_or_else(|problems| panic!("{}", lines(&problems)))
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

/// All complaints about `text` when every file holds `json`.
fn complaints(text: &str, json: &str) -> String {
    match Ledger::parse(text) {
        Ok(ledger) => {
            let found = ledger.look_up(&|_| Ok(json.to_owned()));
            lines(&ledger.check(&found).concat())
        }
        Err(problems) => lines(&problems),
    }
}

fn walls(number: &str) -> String {
    format!("{{\"walls\":[{{\"wall\":\"mps\",\"median_error_p50\":{number}}}]}}")
}

#[test]
fn an_empty_ledger_is_in_order() {
    assert!(parse("").claims.is_empty());
    assert!(parse("# nothing yet\n").claims.is_empty());
}

#[test]
fn a_value_is_the_number_in_the_file_to_the_digits_written() {
    for same in ["0.07", "0.0696", "0.06950", "0.070499"] {
        assert_eq!(complaints(GOOD, &walls(same)), "", "{same}");
    }
    assert_eq!(
        complaints(GOOD, &walls("0.0705")),
        "results/claims.toml:5:9: claim `sim.error_p50.mps`: value is 0.070, but \
         results/sim/validate.json#/walls/0/median_error_p50 says 0.0705, which is 0.071 to these digits; \
         `cargo xtask claims --write` takes it over"
    );
}

#[test]
fn a_floor_is_held_against_the_unrounded_number() {
    let rounded = GOOD.replace("0.070 ", "0.15");
    assert_eq!(
        complaints(&rounded, &walls("0.1501")),
        "results/claims.toml:5:9: claim `sim.error_p50.mps`: the floor is <= 0.15, and \
         results/sim/validate.json#/walls/0/median_error_p50 says 0.1501"
    );
    assert_eq!(complaints(&rounded, &walls("0.15")), "");
    let higher = GOOD.replace("\"lower\"", "\"higher\"").replace("floor = 0.15", "floor = 0.05");
    assert_eq!(complaints(&higher, &walls("0.07")), "");
    let higher = higher.replace("0.070 ", "0.049");
    assert!(complaints(&higher, &walls("0.049")).contains("the floor is >= 0.05, and"));
}

#[test]
fn truths_are_claims_too() {
    let text = GOOD
        .replace("0.070 ", "true")
        .replace("better = \"lower\"\n", "")
        .replace("0.15", "true")
        .replace("goal = 0.07\n", "");
    assert_eq!(complaints(&text, &walls("true")), "");
    let wrong = complaints(&text, &walls("false"));
    assert!(
        wrong.contains("value is true, but results/sim/validate.json#/walls/0/median_error_p50 says false")
    );
    assert!(wrong.contains("the floor is = true, and"), "{wrong}");
    assert!(complaints(&text, &walls("1")).contains("says 1: one is a number and one is not"));
}

#[test]
fn what_the_file_lacks_is_named() {
    for (json, expected) in [
        (walls("null"), "`/walls/0/median_error_p50` is null; a claim needs a number or true or false"),
        (
            walls("\"0.07\""),
            "`/walls/0/median_error_p50` is a string; a claim needs a number or true or false",
        ),
        (walls("[]"), "`/walls/0/median_error_p50` is a list; a claim needs a number or true or false"),
        (
            walls("12345678901234567890"),
            "`/walls/0/median_error_p50` is 12345678901234567890, which has too many digits; at most 18 can be \
             compared",
        ),
        (
            "{}".to_owned(),
            "`/walls/0/median_error_p50` leads nowhere; a JSON pointer names each step, as in `/rows/0/be_kept`",
        ),
        ("{".to_owned(), "not JSON: EOF while parsing an object at line 1 column 1"),
    ] {
        let place = "results/claims.toml:11:8: claim `sim.error_p50.mps`: results/sim/validate.json: ";
        assert_eq!(complaints(GOOD, &json), format!("{place}{expected}"));
    }
    let ledger = parse(GOOD);
    let found = ledger.look_up(&|path| Err(format!("cannot read {}", path.display())));
    assert!(lines(&ledger.check(&found).concat()).ends_with("cannot read results/sim/validate.json"));
}

#[test]
fn a_spoiled_entry_is_refused_with_place_and_rule() {
    let claim = "claim `sim.error_p50.mps`: ";
    for (from, to, place, expected) in [
        (
            "0.070 ",
            "\"0.070\"",
            "5:9",
            "value is a string; it should be a number or true or false, without quotes",
        ),
        ("0.070 ", "7e-2", "5:9", "value `7e-2` should be a plain decimal number of at most 18 digits"),
        ("0.070 ", "0x7", "5:9", "value `0x7` should be a plain decimal number of at most 18 digits"),
        ("0.070 ", "nan", "5:9", "value `nan` should be a plain decimal number of at most 18 digits"),
        ("\"ratio\"", "\"%\"", "6:8", "ratios are fractions: write 0.8 and unit `ratio`, not 80 per cent"),
        ("\"ratio\"", "\" \"", "6:8", "`unit` is one line that is not empty"),
        (
            "better = \"lower\"\n",
            "",
            "5:9",
            "a floor or a goal needs `better = \"higher\"` or `better = \"lower\"`",
        ),
        ("\"lower\"", "\"higher\"", "5:9", "the goal is worse than the floor"),
        ("0.15", "true", "5:9", "value, floor and goal are all numbers or all true or false"),
        (
            "\"results/sim",
            "\"/results/sim",
            "11:8",
            "`/results/sim/validate.json` should be a path from the root of the repository",
        ),
        (
            "\"results/sim",
            "\"../results/sim",
            "11:8",
            "`../results/sim/validate.json` should be a path from the root of the repository",
        ),
        ("\"/walls", "\"walls", "12:11", "pointer `walls/0/median_error_p50` should begin with `/`"),
        (
            "\"partywall sim validate results/h200/pairs.csv --json\"",
            "\"\"",
            "13:11",
            "`command` is one line that is not empty",
        ),
    ] {
        let text = GOOD.replace(from, to);
        assert_ne!(text, GOOD, "`{from}` is in the entry");
        assert_eq!(complaints(&text, "{}"), format!("results/claims.toml:{place}: {claim}{expected}"));
    }
}

#[test]
fn ids_are_words_and_unique() {
    let twice = format!("{GOOD}{}", GOOD.replace("# The project's numbers.\n", ""));
    assert_eq!(
        complaints(&twice, "{}"),
        "results/claims.toml:15:6: claim id `sim.error_p50.mps` is used twice; ids are unique"
    );
    for id in ["", "Sim", "a b", "a..b", ".a", "a/b"] {
        let text = GOOD.replace("sim.error_p50.mps", id);
        assert_eq!(
            complaints(&text, "{}"),
            format!(
                "results/claims.toml:3:6: claim `{id}`: an id is lower-case words of letters, digits, `_` and `-`, \
                 joined by `.`"
            )
        );
    }
}

#[test]
fn fields_are_exactly_those_of_a_claim() {
    let missing = complaints(&GOOD.replace("kind = \"simulated\"\n", ""), "{}");
    assert_eq!(missing, "results/claims.toml:2:1: missing field `kind`");
    let unknown = complaints(&GOOD.replace("goal =", "aim ="), "{}");
    assert!(
        unknown.starts_with("results/claims.toml:10:1: unknown field `aim`, expected one of"),
        "{unknown}"
    );
    let kind = complaints(&GOOD.replace("\"simulated\"", "\"guessed\""), "{}");
    assert!(kind.starts_with("results/claims.toml:7:8: unknown variant `guessed`"), "{kind}");
}

#[test]
fn refreshing_changes_values_and_nothing_else() {
    let ledger = parse(GOOD);
    let refreshed = |json: String| ledger.refreshed(&ledger.look_up(&|_| Ok(json.clone())));
    assert_eq!(refreshed(walls("0.08249")), GOOD.replace("0.070 ", "0.082 "));
    assert_eq!(refreshed(walls("12")), GOOD.replace("0.070 ", "12.000 "));
    assert_eq!(refreshed(walls("0.07")), GOOD, "what is right stays");
    assert_eq!(refreshed(walls("null")), GOOD, "nothing to take over");
    assert_eq!(refreshed(walls("true")), GOOD, "a truth is no number");
    assert_eq!(refreshed(walls("0.0001")), GOOD, "these digits would say 0");
    let text = complaints(GOOD, &walls("0.0001"));
    assert!(text.contains("value is 0.070, which has too few or too many digits for 0.0001 in"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_is_read_or_refused_with_a_place(
        line in 0..13_usize,
        text in "[a-z\\[\\]=\"' .#0-9-]{0,20}|.{0,10}",
    ) {
        let mut spoiled: Vec<&str> = GOOD.lines().collect();
        spoiled[line] = &text;
        let spoiled = spoiled.join("\n");
        if let Err(problems) = Ledger::parse(&spoiled) {
            prop_assert!(!problems.is_empty());
            prop_assert!(problems.iter().all(|problem| problem.place.is_some() && !problem.message.is_empty()));
        }
    }

    #[test]
    fn what_was_refreshed_agrees(number in 0.5_f64..1e9) {
        let ledger = parse(&GOOD.replace("floor = 0.15\n", ""));
        let read = |_: &Path| Ok(walls(&number.to_string()));
        let again = parse(&ledger.refreshed(&ledger.look_up(&read)));
        prop_assert_eq!(lines(&again.check(&again.look_up(&read)).concat()), "");
    }
}
