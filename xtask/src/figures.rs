//! Figures in README and docs: `<!-- claim:ID -->1.03<!-- /claim -->`.
//!
//! The comments name a claim of the ledger and do not show when the page is rendered. Between them stands the
//! claim's value, rounded half away from zero to as few digits as the writer likes, in one of these forms: `1.03`,
//! `1,204`, `1.03x` (ratios only), `5.2 M` (also ` k` and ` G`), or `true`, `false`, `yes`, `no`. Markers inside
//! code blocks and code spans are text like any other, so that this form can be explained.

use std::ops::Range;
use std::path::Path;

use crate::decimal::Decimal;
use crate::ledger::{Claim, Ledger, Quantity};
use crate::problem::Problem;

/// The form, for messages.
const FORM: &str = "`<!-- claim:ID -->1.03<!-- /claim -->`";

/// What may follow a number, and by how many powers of ten it raises it.
const SUFFIXES: [(&str, i32); 5] = [("x", 0), ("\u{d7}", 0), (" k", 3), (" M", 6), (" G", 9)];

/// A figure found in a text; the ranges are bytes.
#[derive(Debug, PartialEq, Eq)]
struct Marker {
    id: String,
    /// Where the opening comment begins.
    start: usize,
    /// The text between the two comments.
    shown: Range<usize>,
}

/// A marker that is not well formed: where, and why.
type Malformed = (usize, String);

/// Holds every figure of one document against the ledger.
pub(crate) fn check(path: &Path, text: &str, ledger: &Ledger) -> Vec<Problem> {
    let (markers, malformed) = scan(text);
    let mut problems: Vec<Problem> =
        malformed.into_iter().map(|(offset, message)| Problem::at(path, text, offset, message)).collect();
    for marker in markers {
        let shown = &text[marker.shown.clone()];
        match ledger.get(&marker.id) {
            None => {
                let message = format!("claim `{}` is not in {}", marker.id, crate::ledger::LEDGER);
                problems.push(Problem::at(path, text, marker.start, message));
            }
            Some(claim) => {
                if let Err(message) = agrees(claim, shown) {
                    problems.push(Problem::at(path, text, marker.shown.start, message));
                }
            }
        }
    }
    problems.sort_by_key(|problem| problem.place);
    problems
}

/// The text with every figure as the ledger has it, in the form and to the digits that it has now. What is between
/// the comments when it is no figure is replaced by the claim's value in full.
pub(crate) fn refreshed(text: &str, ledger: &Ledger) -> String {
    let (markers, _) = scan(text);
    let mut updates = Vec::new();
    for marker in markers {
        if let Some(claim) = ledger.get(&marker.id)
            && agrees(claim, &text[marker.shown.clone()]).is_err()
        {
            let figure = rewritten(claim, &text[marker.shown.clone()]);
            updates.push((marker.shown, figure));
        }
    }
    crate::claims::splice(text, updates)
}

/// Whether `shown` is the claim's value, rounded or not.
fn agrees(claim: &Claim, shown: &str) -> Result<(), String> {
    let id = &claim.id;
    if shown.contains('%') {
        return Err(format!("claim `{id}`: `{shown}`: ratios are fractions, without a per cent sign"));
    }
    let Some(figure) = Figure::parse(shown) else {
        return Err(format!(
            "claim `{id}`: `{shown}` is no figure; write it as `{}`, or as `1,204`, `1.03x`, `5.2 M` are written",
            claim.value
        ));
    };
    if figure.is_factor() && claim.unit != "ratio" {
        return Err(format!("claim `{id}`: `{shown}` reads as a ratio, but its unit is `{}`", claim.unit));
    }
    let (Quantity::Number(value), Figure::Number { number, .. }) = (claim.value, &figure) else {
        return if figure.is(claim.value) { Ok(()) } else { Err(disagreement(claim, shown)) };
    };
    if number.last_place() < value.last_place() {
        return Err(format!("claim `{id}`: `{shown}` has more digits than the ledger's {value}"));
    }
    match round_visibly(value, number.last_place()) {
        Some(rounded) if rounded == *number => Ok(()),
        _ => Err(disagreement(claim, shown)),
    }
}

fn disagreement(claim: &Claim, shown: &str) -> String {
    format!(
        "claim `{}`: `{shown}` should be `{}` (the ledger says {}); `cargo xtask claims --write` mends it",
        claim.id,
        rewritten(claim, shown),
        claim.value
    )
}

/// The claim's value in the form of `shown`.
fn rewritten(claim: &Claim, shown: &str) -> String {
    match (claim.value, Figure::parse(shown)) {
        (Quantity::Truth(truth), Some(Figure::Truth { words, .. })) => {
            Figure::Truth { truth, words }.to_string()
        }
        (Quantity::Number(value), Some(Figure::Number { number, commas, suffix })) => {
            let place = number.last_place().max(value.last_place());
            let suffix = if claim.unit == "ratio" { suffix } else { suffix.filter(|(_, power)| *power > 0) };
            match round_visibly(value, place) {
                Some(number) => Figure::Number { number, commas, suffix }.to_string(),
                None => value.to_string(),
            }
        }
        (value, _) => value.to_string(),
    }
}

/// Rounds; `None` when that would show something as nothing.
fn round_visibly(value: Decimal, place: i32) -> Option<Decimal> {
    value.round_to(place).filter(|rounded| !rounded.is_zero() || value.is_zero())
}

/// A figure as written in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Figure {
    /// `number` counts the suffix in: `5.2 M` is 5 200 000, known to 100 000.
    Number { number: Decimal, commas: bool, suffix: Option<(&'static str, i32)> },
    /// `words` is the pair it was written with: no and yes, or false and true.
    Truth { truth: bool, words: [&'static str; 2] },
}

impl Figure {
    /// Reads one of the accepted forms; `None` for anything else.
    fn parse(text: &str) -> Option<Self> {
        for words in [["no", "yes"], ["false", "true"]] {
            if let Some(truth) = words.iter().position(|&word| word == text) {
                return Some(Self::Truth { truth: truth == 1, words });
            }
        }
        let suffix = SUFFIXES.into_iter().find(|(suffix, _)| text.ends_with(suffix));
        let digits = suffix.map_or(text, |(suffix, _)| &text[..text.len() - suffix.len()]);
        if digits.contains(['_', 'e', 'E', '+']) {
            return None;
        }
        let commas = digits.contains(',');
        let number = Decimal::parse(&digits.replace(',', ""))?.shift(suffix.map_or(0, |(_, power)| power));
        let figure = Self::Number { number, commas, suffix };
        // Writing it again finds commas in wrong places, leading zeros and the like.
        (figure.to_string() == text).then_some(figure)
    }

    /// Whether this says yes or no as `value` does.
    fn is(&self, value: Quantity) -> bool {
        matches!((self, value), (Self::Truth { truth, .. }, Quantity::Truth(is)) if *truth == is)
    }

    /// Whether it is written as a multiple, `1.03x`.
    fn is_factor(&self) -> bool {
        matches!(self, Self::Number { suffix: Some((_, 0)), .. })
    }
}

impl std::fmt::Display for Figure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Truth { truth, words } => out.write_str(words[usize::from(*truth)]),
            Self::Number { number, commas, suffix } => {
                let (suffix, power) = suffix.unwrap_or(("", 0));
                let digits = number.shift(-power).to_string();
                let digits = if *commas { with_commas(&digits) } else { digits };
                write!(out, "{digits}{suffix}")
            }
        }
    }
}

/// Puts a comma before every third digit of the whole part, counted from its end.
fn with_commas(digits: &str) -> String {
    let (whole, fraction) = match digits.find('.') {
        Some(point) => digits.split_at(point),
        None => (digits, ""),
    };
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |rest| ("-", rest));
    let mut grouped = String::from(sign);
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// Finds the markers of a Markdown text, and what looks like one and is not.
fn scan(text: &str) -> (Vec<Marker>, Vec<Malformed>) {
    let prose = without_code(text);
    let (mut markers, mut malformed) = (Vec::new(), Vec::new());
    let mut open: Option<(String, usize, usize)> = None;
    let mut at = 0;
    while let Some(start) = prose[at..].find("<!--").map(|found| at + found) {
        let body = start + "<!--".len();
        let Some(end) = prose[body..].find("-->").map(|found| body + found) else { break };
        at = end + "-->".len();
        let comment = &prose[body..end];
        if comment == " /claim " {
            match open.take() {
                Some((id, opened, from)) if text[from..start].contains('\n') => {
                    malformed.push((opened, not_closed(&id)));
                }
                Some((id, opened, from)) => markers.push(Marker { id, start: opened, shown: from..start }),
                None => {
                    malformed.push((start, format!("`/claim` closes nothing; a figure is written {FORM}")))
                }
            }
        } else if let Some(id) = comment.strip_prefix(" claim:").and_then(|rest| rest.strip_suffix(' '))
            && !id.is_empty()
            && !id.contains(char::is_whitespace)
        {
            if let Some((outer, opened, _)) = open.replace((id.to_owned(), start, at)) {
                malformed.push((opened, not_closed(&outer)));
            }
        } else if is_near_miss(comment) {
            malformed.push((start, format!("`<!--{comment}-->` is no marker; a figure is written {FORM}")));
        }
    }
    if let Some((id, start, _)) = open {
        malformed.push((start, not_closed(&id)));
    }
    (markers, malformed)
}

fn not_closed(id: &str) -> String {
    format!("claim `{id}` is not closed on its line; a figure is written {FORM}")
}

/// Whether a comment was probably meant as a marker.
fn is_near_miss(comment: &str) -> bool {
    let word = comment.trim_start().trim_start_matches('/').trim_start().to_lowercase();
    word.strip_prefix("claim").is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
}

/// The text with code blocks and code spans blanked out, byte for byte, so that offsets stay.
fn without_code(text: &str) -> String {
    let mut prose = String::with_capacity(text.len());
    let mut fence: Option<(char, usize)> = None;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let mark = trimmed.chars().next().filter(|c| matches!(c, '`' | '~'));
        let run = mark.map_or(0, |mark| trimmed.chars().take_while(|&c| c == mark).count());
        match (fence, mark) {
            (Some((mark, least)), found) => {
                blank(&mut prose, line);
                if found == Some(mark) && run >= least && trimmed.len() == run {
                    fence = None;
                }
            }
            // A line like ```code``` is a span, not the beginning of a block.
            (None, Some(mark)) if run >= 3 && !(mark == '`' && trimmed[run..].contains('`')) => {
                blank(&mut prose, line);
                fence = Some((mark, run));
            }
            (None, _) => without_spans(&mut prose, line),
        }
    }
    prose
}

/// Copies a line with its code spans blanked out.
fn without_spans(prose: &mut String, line: &str) {
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let run = rest[start..].bytes().take_while(|&byte| byte == b'`').count();
        let after = start + run;
        prose.push_str(&rest[..after]);
        rest = &rest[after..];
        if let Some(length) = span_length(rest, run) {
            blank(prose, &rest[..length]);
            rest = &rest[length..];
        }
    }
    prose.push_str(rest);
}

/// How many bytes of `rest` lie before a run of exactly `run` backticks, with that run.
fn span_length(rest: &str, run: usize) -> Option<usize> {
    let mut at = 0;
    while let Some(start) = rest[at..].find('`').map(|found| at + found) {
        let found = rest[start..].bytes().take_while(|&byte| byte == b'`').count();
        at = start + found;
        if found == run {
            return Some(at);
        }
    }
    None
}

/// Appends as many blanks as `code` has bytes; line breaks stay.
fn blank(prose: &mut String, code: &str) {
    prose.extend(code.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
}

#[cfg(test)]
mod tests;
