use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the errors are looked at")]
struct Pot {
    colour: Colour,
    cups: u32,
    lids: Option<Vec<String>>,
    handle: Option<Handle>,
    teas: Option<BTreeMap<String, f64>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Colour {
    DarkGreen,
    Blue,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "only the errors are looked at")]
struct Handle {
    length: f64,
}

#[track_caller]
fn check(text: &str, expect: &str) {
    let error = toml::from_str::<Pot>(text).unwrap_err();
    let example = |key: &str| (key == "cups").then_some("cups = 4");
    let shown = Diagnostic::from_toml(text, "pot.toml", &error, example).to_string();
    assert_eq!(shown, expect, "\n{shown}\n");
}

#[test]
fn positions_count_lines_and_characters() {
    let text = "ab\ncde\r\n\u{e9}x\n";
    let at = |offset| {
        let Position { line, column } = position(text, offset);
        (line, column)
    };
    assert_eq!([0, 2, 3, 5].map(at), [(1, 1), (1, 3), (2, 1), (2, 3)]);
    assert_eq!([8, 9, 10].map(at), [(3, 1), (3, 1), (3, 2)], "inside a character is its start");
    assert_eq!([12, 13, 99].map(at), [(3, 3); 3], "the end is the end of the last line");
    assert_eq!(position("", 5), Position { line: 1, column: 1 });
}

#[test]
fn an_unknown_key_is_shown_with_the_nearest() {
    check(
        "cups = 4\ncolor = \"blue\"\n",
        "pot.toml:2:1: unknown key `color`\n  | color = \"blue\"\n  | ^^^^^ did you mean `colour`? Known: \
         `colour`, `cups`, `lids`, `handle`, `teas`",
    );
}

#[test]
fn an_unknown_value_is_shown_with_the_nearest() {
    check(
        "cups = 4\ncolour = \"dark_gren\"\n",
        "pot.toml:2:10: `dark_gren` is no value of `colour`\n  | colour = \"dark_gren\"\n  |          ^^^^^^^^^^^ did \
         you mean `dark-green`? Known: `dark-green`, `blue`",
    );
}

#[test]
fn a_missing_key_is_shown_with_an_example() {
    check(
        "colour = \"blue\"\n",
        "pot.toml:1:1: the key `cups` is missing\n  | colour = \"blue\"\n  | ^ write cups = 4",
    );
}

#[test]
fn a_value_of_the_wrong_kind_is_shown_with_an_example() {
    check(
        "cups = \"four\"",
        "pot.toml:1:8: expected a whole number, at least 0, found string \"four\"\n  | cups = \"four\"\n  |        \
         ^^^^^^ write cups = 4",
    );
    check("lids = 3", "pot.toml:1:8: expected a list, found integer `3`\n  | lids = 3\n  |        ^");
    check(
        "handle.length = true",
        "pot.toml:1:17: expected a number, found boolean `true`\n  | handle.length = true\n  |                 ^^^^",
    );
}

#[test]
fn broken_toml_is_shown_where_it_breaks() {
    check(
        "cups = ",
        "pot.toml:1:8: a value is missing here, or a text is not in quotes\n  | cups =\n  |        ^ write a text as \
         \"text\"",
    );
    check(
        "cups = 1\ncups = 2\n",
        "pot.toml:2:1: the key stands here a second time\n  | cups = 2\n  | ^^^^ a table holds each key once",
    );
}

#[test]
fn long_lines_and_control_characters_are_tamed() {
    let line = format!("{}\u{1b}[31m\tX{}", "a".repeat(200), "b".repeat(200));
    let start = line.find('X').unwrap();
    let shown = Diagnostic::at(&line, start..start + 1, "a\nb", "bad \u{7} thing").to_string();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines[0], "a\\nb:1:207: bad \\u{7} thing");
    let (text, marker) = (lines[1], lines[2]);
    assert!(text.starts_with("  | ...aaa") && text.ends_with("bbb..."), "{text}");
    assert!(!shown.contains('\u{1b}') && shown.contains("\u{fffd}[31m X"));
    let marked = text.chars().nth(marker.chars().position(|c| c == '^').unwrap());
    assert_eq!(marked, Some('X'), "\n{shown}");
}

#[test]
fn a_span_over_several_lines_marks_the_first() {
    let shown = Diagnostic::at("a = [\n1,\n2]\n", 4..12, "f", "no").with_help("yes").to_string();
    assert_eq!(shown, "f:1:5: no\n  | a = [\n  |     ^ yes");
}

#[test]
fn bytes_that_are_no_text_have_a_place_too() {
    assert_eq!(Diagnostic::utf8("gr\u{fc}n".as_bytes(), "f"), Ok("gr\u{fc}n"));
    let error = Diagnostic::utf8(b"one\ntw\xff", "f").unwrap_err();
    assert_eq!(error.position(), Position { line: 2, column: 3 });
    assert!(error.to_string().ends_with("\n  | tw\n  |   ^ save the file as UTF-8"), "{error}");
}

#[test]
fn the_nearest_word_forgives_few_mistakes() {
    let known = ["memory", "command", "class", "latency-sensitive"];
    let found = ["memroy", "Memory", "comand", "LATENCY_SENSITIVE", "latency", "clas", "zebra", "", "x"]
        .map(|given| nearest(given, known));
    let expected = [0, 0, 1, 3, 3, 2].map(|index| Some(known[index]));
    assert_eq!(found[..6], expected);
    assert_eq!(found[6..], [None; 3]);
}

#[test]
fn places_of_keys_and_values() {
    let text = "[[tenant]]\nname = \"a\"\nslo.p99 = \"5ms\"\n[[tenant]]\ncommand = [\"x\", \"yz\"]\n";
    let places = TomlPlaces::parse(text).unwrap();
    let tenant = |index| [Step::Key("tenant"), Step::Index(index)];
    let value = |index, rest: &[Step<'_>]| &text[places.value(&[&tenant(index), rest].concat())];
    assert_eq!(value(0, &[Step::Key("name")]), "\"a\"");
    assert_eq!(value(0, &[Step::Key("slo"), Step::Key("p99")]), "\"5ms\"");
    assert_eq!(value(1, &[Step::Key("command"), Step::Index(1)]), "\"yz\"");
    assert_eq!(&text[places.key(&[&tenant(1)[..], &[Step::Key("command")]].concat())], "command");
    let lacking = places.value(&[&tenant(1)[..], &[Step::Key("memory")]].concat());
    assert_eq!(position(text, lacking.start).line, 4, "what lacks a key is its table");
    assert_eq!(places.list_len(&[Step::Key("tenant")]), 2);
    assert_eq!(places.list_len(&[Step::Key("tenants")]), 0);
    assert!(!places.is_list(&tenant(0)) && !places.is_list(&[Step::Key("tenant"), Step::Key("x")]));
    assert_eq!(places.value(&[]), 0..0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_span_of_any_text_can_be_shown(text in "(?s).{0,60}", start in 0usize..200, length in 0usize..200) {
        let diagnostic = Diagnostic::at(&text, start..start + length, "f", text.clone());
        let Position { line, column } = diagnostic.position();
        prop_assert!(line >= 1 && column >= 1);
        let shown_line = text.split('\n').nth(line - 1).unwrap();
        prop_assert!(column <= shown_line.chars().count() + 1);
        let shown = diagnostic.with_help(text).to_string();
        prop_assert_eq!(shown.split('\n').count(), 3, "{}", shown);
        prop_assert!(shown.chars().all(|c| c == '\n' || !c.is_control()));
    }

    #[test]
    fn bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        match Diagnostic::utf8(&bytes, "f") {
            Ok(text) => prop_assert_eq!(text.as_bytes(), &bytes[..]),
            Err(error) => prop_assert!(error.position().line <= 1 + bytes.iter().filter(|b| **b == b'\n').count()),
        }
    }

    #[test]
    fn a_word_is_nearest_to_itself_and_one_slip_away(word in "[a-z]{4,12}", at in 0usize..4) {
        prop_assert_eq!(nearest(&word, ["0123456", word.as_str()]), Some(word.as_str()));
        let slip: String = word.char_indices().filter(|(i, _)| *i != at).map(|(_, c)| c).collect();
        prop_assert_eq!(nearest(&slip, ["0123456", word.as_str()]), Some(word.as_str()));
    }
}
