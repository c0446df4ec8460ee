//! Messages about text that people write: configuration, scenarios, traces, tables. Each says which file,
//! line and column, shows the line with the place marked, and says what is wrong and what would be right:
//!
//! ```text
//! partywall.toml:7:9: `latency` is no value of `class`
//!   | class = "latency"
//!   |         ^^^^^^^^^ did you mean `latency-sensitive`? Known: `latency-sensitive`, `best-effort`
//! ```
//!
//! Lines and columns count from 1; a column is a character (Unicode scalar value), not a byte. A character
//! that a terminal shows two cells wide therefore moves the marker, but not the column. What comes from the
//! file is shown without control characters, so that a hostile file cannot write to the terminal, and
//! clipped, so that a line of a megabyte stays readable.

use std::fmt;
use std::ops::Range;

mod findings;
mod toml_text;

pub use findings::{Example, Findings};
pub use toml_text::{Step, TomlPlaces};

/// Characters of a line that are shown; the window moves so that the marked place is in it.
const EXCERPT_CHARS: usize = 96;
/// Characters of a line that are shown before the marked place when the line is clipped there.
const EXCERPT_BEFORE: usize = 48;
/// Characters of a message or a help: they may quote text of the file.
const MESSAGE_CHARS: usize = 400;
/// Characters of a quoted text.
const QUOTED_CHARS: usize = 60;
/// Longer words than this are not compared: no key is that long, and the comparison is quadratic.
const NEAREST_CHARS: usize = 64;

/// A place in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line, from 1.
    pub line: usize,
    /// The character within the line, from 1.
    pub column: usize,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// The position of a byte offset. An offset behind the end is the end, one inside a character is its start;
/// the end of a text that ends with a line break is the end of the line before it, where an editor has
/// something to show.
pub fn position(text: &str, offset: usize) -> Position {
    let offset = shown_offset(text, offset);
    let start = line_start(text, offset);
    let line = 1 + text[..start].bytes().filter(|byte| *byte == b'\n').count();
    Position { line, column: 1 + text[start..offset].chars().count() }
}

/// What is wrong with a text, where, and what would be right. `Display` renders it without colours and
/// without a final line break.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Diagnostic {
    // Boxed, so that a `Result` with it stays small where all is well.
    parts: Box<Parts>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    file: String,
    position: Position,
    message: String,
    help: String,
    excerpt: Excerpt,
}

impl Diagnostic {
    /// About the bytes `span` of `text`, the contents of `file`. A span that ends on a later line is marked
    /// to the end of its first; an empty one marks one character. Any span is accepted, as [`position`] does.
    pub fn at(text: &str, span: Range<usize>, file: &str, message: impl Into<String>) -> Self {
        let start = shown_offset(text, span.start);
        let end = floor_char(text, span.end.max(start));
        let first = line_start(text, start);
        let last = text[first..].find('\n').map_or(text.len(), |length| first + length);
        let place = position(text, start);
        let line = &text[first..last];
        Self::in_line(line, place.line, start - first..end.min(last) - first, file, message)
    }

    /// About the bytes `span` of `line`, which is line number `number` (from 1) of `file`: for files that are
    /// read line by line.
    pub fn in_line(
        line: &str,
        number: usize,
        span: Range<usize>,
        file: &str,
        message: impl Into<String>,
    ) -> Self {
        let line = line.trim_end_matches(['\r', '\n']);
        let start = floor_char(line, span.start);
        let end = floor_char(line, span.end.max(start));
        let before = line[..start].chars().count();
        let marked = line[start..end].chars().count();
        let parts = Parts {
            file: one_line(file, MESSAGE_CHARS),
            position: Position { line: number.max(1), column: before + 1 },
            message: one_line(&message.into(), MESSAGE_CHARS),
            help: String::new(),
            excerpt: Excerpt::new(line, before, marked),
        };
        Self { parts: Box::new(parts) }
    }

    /// The first byte of `bytes` that is not UTF-8, or the text.
    ///
    /// # Errors
    /// Where the text stops being UTF-8, with the line up to there.
    pub fn utf8<'t>(bytes: &'t [u8], file: &str) -> Result<&'t str, Self> {
        std::str::from_utf8(bytes).map_err(|error| {
            let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let text = String::from_utf8_lossy(good);
            let first = text.rfind('\n').map_or(0, |newline| newline + 1);
            let number = 1 + text.bytes().filter(|byte| *byte == b'\n').count();
            let line = &text[first..];
            Self::in_line(line, number, line.len()..line.len(), file, "from here on, this is not UTF-8 text")
                .with_help("save the file as UTF-8")
        })
    }

    /// Adds what would be right; it stands behind the marker.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.parts.help = one_line(&help.into(), MESSAGE_CHARS);
        self
    }

    /// The file, as the caller named it.
    pub fn file(&self) -> &str {
        &self.parts.file
    }

    /// Where it is.
    pub fn position(&self) -> Position {
        self.parts.position
    }

    /// What is wrong, in one line.
    pub fn message(&self) -> &str {
        &self.parts.message
    }

    /// What would be right, in one line; empty where the message says it already.
    pub fn help(&self) -> &str {
        &self.parts.help
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.parts.position;
        writeln!(f, "{}:{line}:{column}: {}", self.parts.file, self.parts.message)?;
        writeln!(f, "{}", format!("  | {}", self.parts.excerpt.shown).trim_end())?;
        write!(f, "  | {:1$}{2}", "", self.parts.excerpt.before, "^".repeat(self.parts.excerpt.marked))?;
        if self.parts.help.is_empty() { Ok(()) } else { write!(f, " {}", self.parts.help) }
    }
}

impl std::error::Error for Diagnostic {}

/// A line as it is shown, and what of it is marked, in characters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Excerpt {
    shown: String,
    before: usize,
    marked: usize,
}

impl Excerpt {
    fn new(line: &str, before: usize, marked: usize) -> Self {
        let clipped = before > EXCERPT_CHARS - EXCERPT_BEFORE;
        let skipped = if clipped { before - EXCERPT_BEFORE } else { 0 };
        let lead = if clipped { "..." } else { "" };
        let mut rest = line.chars().skip(skipped);
        let window: String = rest.by_ref().take(EXCERPT_CHARS).map(printable).collect();
        let tail = if rest.next().is_some() { "..." } else { "" };
        let before = before - skipped;
        Self {
            shown: format!("{lead}{window}{tail}"),
            before: lead.len() + before,
            // One character even of an empty span, or at the end of the line.
            marked: marked.min(EXCERPT_CHARS - before).max(1),
        }
    }
}

/// `text` in backticks, in one line, clipped: for messages that name what the file says.
pub fn quoted(text: &str) -> String {
    format!("`{}`", one_line(text, QUOTED_CHARS))
}

/// The word of `known` that `given` was probably meant to be: equal but for case and `_` or `-`, or few
/// typing mistakes away (a third of its length), or what it begins. The first of equally near ones.
pub fn nearest<'k>(given: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let plain = |word: &str| word.to_lowercase().replace('_', "-").chars().collect::<Vec<_>>();
    let given = plain(given);
    if given.is_empty() || given.len() > NEAREST_CHARS {
        return None;
    }
    let near = |word: &&str| {
        let other = plain(word);
        let begins = given.len() >= 3 && other.starts_with(&given);
        let mistakes = if begins { 1 } else { mistakes(&given, &other) };
        (mistakes <= other.len().max(given.len()).div_ceil(3).min(4)).then_some(mistakes)
    };
    known
        .into_iter()
        .filter_map(|word| Some((near(&word)?, word)))
        .min_by_key(|(rank, _)| *rank)
        .map(|(_, w)| w)
}

/// Insertions, deletions and replacements that make `a` of `b`, a swap of neighbours counting as one (optimal
/// string alignment).
fn mistakes(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (last[j] + usize::from(x != y)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// In one line, at most `limit` characters, no control characters.
fn one_line(text: &str, limit: usize) -> String {
    let mut shown = String::new();
    for (count, c) in text.chars().enumerate() {
        if count == limit {
            shown.push_str("...");
            break;
        }
        if printable(c) == c { shown.push(c) } else { shown.extend(c.escape_default()) }
    }
    shown
}

/// A tab is a space, so that the marker stays below what it marks; what would move the cursor or turn the
/// writing direction is the replacement character.
fn printable(c: char) -> char {
    match c {
        '\t' => ' ',
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

fn floor_char(text: &str, offset: usize) -> usize {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    offset
}

fn line_start(text: &str, offset: usize) -> usize {
    text[..offset].rfind('\n').map_or(0, |newline| newline + 1)
}

/// Within the text, at the start of a character, and not on the empty line behind the last line break.
fn shown_offset(text: &str, offset: usize) -> usize {
    let offset = floor_char(text, offset);
    if offset == text.len() && text.ends_with('\n') {
        let end = offset - 1;
        return if text[..end].ends_with('\r') { end - 1 } else { end };
    }
    offset
}

#[cfg(test)]
mod tests;
