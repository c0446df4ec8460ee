use proptest::prelude::*;

use super::*;

/// A ledger with one claim for each `(id, value, unit)`.
fn ledger(claims: &[(&str, &str, &str)]) -> Ledger {
    let entry = |(id, value, unit): &(&str, &str, &str)| {
        format!(
            "[[claim]]\nid = \"{id}\"\nwhat = \"a test\"\nvalue = {value}\nunit = \"{unit}\"\nkind = \"measured\"\n\
             file = \"results/a.json\"\npointer = \"/a\"\ncommand = \"true\"\n"
        )
    };
    Ledger::parse(&claims.iter().map(entry).collect::<String>()).unwrap()
}

fn some_claims() -> Ledger {
    ledger(&[
        ("slowdown", "1.030", "ratio"),
        ("rate", "5212345", "events/s"),
        ("wall", "7.62", "s"),
        ("small", "0.004", "ratio"),
        ("contained", "true", "yes or no"),
    ])
}

/// The problems of a document, one a line.
fn problems(text: &str) -> String {
    let problems = check(Path::new("docs/a.md"), text, &some_claims());
    problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("\n")
}

fn figure(id: &str, shown: &str) -> String {
    format!("<!-- claim:{id} -->{shown}<!-- /claim -->")
}

#[test]
fn a_figure_is_the_value_or_the_value_rounded() {
    for (id, shown) in [
        ("slowdown", "1.030"),
        ("slowdown", "1.03"),
        ("slowdown", "1.03x"),
        ("slowdown", "1.0\u{d7}"),
        ("rate", "5212345"),
        ("rate", "5,212,345"),
        ("rate", "5.2 M"),
        ("rate", "5,212 k"),
        ("rate", "0.005 G"),
        ("wall", "8"),
        ("contained", "true"),
        ("contained", "yes"),
    ] {
        let text = figure(id, shown);
        assert_eq!(problems(&text), "", "{id} as {shown}");
        assert_eq!(refreshed(&text, &some_claims()), text, "what is right stays");
    }
}

#[test]
fn a_wrong_figure_is_named_with_its_place_and_mended() {
    let says = |right: &str, value: &str| {
        format!("should be `{right}` (the ledger says {value}); `cargo xtask claims --write` mends it")
    };
    for (id, shown, complaint, mended) in [
        ("slowdown", "1.04", says("1.03", "1.030"), "1.03"),
        ("slowdown", "1.10x", says("1.03x", "1.030"), "1.03x"),
        ("rate", "5.3 M", says("5.2 M", "5212345"), "5.2 M"),
        ("rate", "4,000,000", says("5,212,345", "5212345"), "5,212,345"),
        ("contained", "no", says("yes", "true"), "yes"),
        ("contained", "1", says("true", "true"), "true"),
        ("wall", "yes", says("7.62", "7.62"), "7.62"),
        ("small", "0.0", says("0.004", "0.004"), "0.004"),
        ("slowdown", "1.0300", "has more digits than the ledger's 1.030".to_owned(), "1.030"),
        ("wall", "7.6x", "reads as a ratio, but its unit is `s`".to_owned(), "7.6"),
    ] {
        let text = format!("A line.\nIt is {}.\n", figure(id, shown));
        let column = "It is <!-- claim: -->".len() + id.len() + 1;
        assert_eq!(problems(&text), format!("docs/a.md:2:{column}: claim `{id}`: `{shown}` {complaint}"));
        assert_eq!(refreshed(&text, &some_claims()), format!("A line.\nIt is {}.\n", figure(id, mended)));
    }
}

#[test]
fn what_is_no_figure_is_refused_and_replaced() {
    for shown in ["", "?", " 1.03", "1.03 ", "52,12", "01.03", "1_000", "1e0", "+1.03", "**1.03**"] {
        let text = figure("slowdown", shown);
        let expected = format!(
            "docs/a.md:1:24: claim `slowdown`: `{shown}` is no figure; write it as `1.030`, or as `1,204`, `1.03x`, \
             `5.2 M` are written"
        );
        assert_eq!(problems(&text), expected);
        assert_eq!(refreshed(&text, &some_claims()), figure("slowdown", "1.030"));
    }
    let per_cent = "docs/a.md:1:24: claim `slowdown`: `103 %`: ratios are fractions, without a per cent sign";
    assert_eq!(problems(&figure("slowdown", "103 %")), per_cent);
}

#[test]
fn malformed_markers_are_found() {
    let form = "a figure is written `<!-- claim:ID -->1.03<!-- /claim -->`";
    for (text, expected) in [
        ("<!-- claim:nope -->1<!-- /claim -->", "1:1: claim `nope` is not in results/claims.toml".to_owned()),
        ("a\n <!-- claim:wall -->7.6", format!("2:2: claim `wall` is not closed on its line; {form}")),
        (
            "<!-- claim:wall -->7.6\n<!-- /claim -->",
            format!("1:1: claim `wall` is not closed on its line; {form}"),
        ),
        ("7.6<!-- /claim -->", format!("1:4: `/claim` closes nothing; {form}")),
        ("<!--claim:wall-->7.6", format!("1:1: `<!--claim:wall-->` is no marker; {form}")),
        ("<!-- Claim: wall -->7.6", format!("1:1: `<!-- Claim: wall -->` is no marker; {form}")),
        ("<!-- claim: -->7.6", format!("1:1: `<!-- claim: -->` is no marker; {form}")),
        ("<!-- claim wall -->7.6", format!("1:1: `<!-- claim wall -->` is no marker; {form}")),
        ("<!-- / claim -->", format!("1:1: `<!-- / claim -->` is no marker; {form}")),
    ] {
        assert_eq!(problems(text), format!("docs/a.md:{expected}"), "{text}");
    }
    let nested = "<!-- claim:wall --><!-- claim:slowdown -->1.03<!-- /claim -->";
    assert_eq!(problems(nested), format!("docs/a.md:1:1: claim `wall` is not closed on its line; {form}"));
}

#[test]
fn comments_and_code_are_left_alone() {
    for text in [
        "<!-- claims are checked -->",
        "<!-- Generated -->",
        "<!-- never closed",
        "`<!-- claim:ID -->1.03<!-- /claim -->`",
        "`` a ` <!-- claim:ID --> ``",
        "```text\n<!-- claim:ID -->\n```\n",
        "~~~~\n~~~\n<!-- claim:ID -->\n~~~~\n",
    ] {
        assert_eq!(problems(text), "", "{text}");
    }
    // A lone backtick, or a block that has ended, hides nothing.
    for text in ["a ` b <!-- claim:ID -->", "```\nx\n```\n<!-- claim:ID -->", "```x``` <!-- claim:ID -->"] {
        assert!(problems(text).contains("claim `ID` is not closed on its line"), "{text}");
    }
}

#[test]
fn every_figure_of_a_line_is_refreshed() {
    let line = |a, b| format!("| {} | {} |\n", figure("slowdown", a), figure("wall", b));
    assert_eq!(refreshed(&line("9.99", "100.0"), &some_claims()), line("1.03", "7.6"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn blanking_code_moves_no_byte(
        parts in prop::collection::vec(prop::sample::select(vec!["`", "``", "```", "~~~", "\n", "x", "\u{d7}"]), 0..16),
    ) {
        let text = parts.concat();
        let prose = without_code(&text);
        prop_assert_eq!(prose.len(), text.len());
        prop_assert_eq!(prose.lines().count(), text.lines().count());
    }

    #[test]
    fn refreshing_leaves_only_what_is_malformed(
        parts in prop::collection::vec(
            prop::sample::select(vec![
                "<!-- claim:wall -->", "<!-- claim:rate -->", "<!-- /claim -->", "<!--", "-->", "\n", "7.6", "\u{d7}", " M",
            ]),
            0..16,
        ),
    ) {
        let mended = refreshed(&parts.concat(), &some_claims());
        let left = check(Path::new("docs/a.md"), &mended, &some_claims());
        prop_assert_eq!(left.len(), scan(&mended).1.len(), "{}", mended);
    }

    #[test]
    fn a_figure_reads_back_as_written(text in "-?[0-9]{1,3}(,[0-9]{3}){0,3}(\\.[0-9]{1,4})?(x| k| M| G)?|.{0,8}") {
        if let Some(figure) = Figure::parse(&text) {
            prop_assert_eq!(figure.to_string(), text);
        }
    }
}
