//! From what the TOML reader reports to a [`Diagnostic`], and from a key to its place.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Diagnostic, nearest, quoted};

/// More known words than this are not listed behind a suggestion.
const LISTED_WORDS: usize = 16;

/// One step from a table or list to a value in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'s> {
    /// Into a table.
    Key(&'s str),
    /// Into a list, or the tables `[[like.this]]`, from 0.
    Index(usize),
}

/// Where the values of a TOML text stand, for errors about what a value means rather than how it is written.
#[derive(Debug)]
pub struct TomlPlaces<'t> {
    root: Spanned<DeTable<'t>>,
}

impl<'t> TomlPlaces<'t> {
    /// The places of `text`; `None` where it is not TOML.
    pub fn parse(text: &'t str) -> Option<Self> {
        DeTable::parse(text).ok().map(|root| Self { root })
    }

    /// The bytes of the value at `path`, or of the deepest value on the way to it that is there: what lacks a
    /// key is the table that should have it.
    pub fn value(&self, path: &[Step<'_>]) -> Range<usize> {
        // The root's own span is the whole text; its beginning says as much.
        self.walk(path).value.map_or(0..0, Spanned::span)
    }

    /// The bytes of the key at `path`, or of the deepest value on the way to it that is there.
    pub fn key(&self, path: &[Step<'_>]) -> Range<usize> {
        self.walk(path).key
    }

    /// Whether the value at `path` is there and a list. The reader takes `[[gpu]]` and `gpu = ["auto",
    /// "mps"]` for a table whose values are given in order, which nobody means: ask this where a table
    /// belongs.
    pub fn is_list(&self, path: &[Step<'_>]) -> bool {
        let end = self.walk(path);
        end.steps == path.len() && end.value.is_some_and(|value| value.get_ref().is_array())
    }

    /// The members of the list at `path`; 0 where none is there.
    pub fn list_len(&self, path: &[Step<'_>]) -> usize {
        let list = self.walk(path).value.and_then(|value| value.get_ref().as_array());
        list.filter(|_| self.is_list(path)).map_or(0, |list| list.len())
    }

    fn walk(&self, path: &[Step<'_>]) -> End<'_, 't> {
        let mut end = End { steps: 0, key: 0..0, value: None };
        for step in path {
            let at = end.value.map(Spanned::get_ref);
            let next = match step {
                Step::Key(name) => {
                    let table = at.map_or(Some(self.root.get_ref()), DeValue::as_table);
                    table.and_then(|table| table.get_key_value(*name)).map(|(key, value)| (key.span(), value))
                }
                Step::Index(index) => {
                    let list = at.and_then(DeValue::as_array);
                    list.and_then(|list| list.get(*index)).map(|value| (value.span(), value))
                }
            };
            let Some((key, value)) = next else { break };
            end = End { steps: end.steps + 1, key, value: Some(value) };
        }
        end
    }

    /// The innermost key that covers the byte at `offset`, itself or with its value.
    fn key_at(&self, offset: usize) -> Option<KeyAt<'_>> {
        key_in_table(self.root.get_ref(), offset)
    }
}

/// How far a path leads: the last key and value on it that exist. No value is the root.
struct End<'a, 't> {
    steps: usize,
    key: Range<usize>,
    value: Option<&'a Spanned<DeValue<'t>>>,
}

/// The key that a place belongs to.
#[derive(Debug, Clone, Copy)]
struct KeyAt<'a> {
    name: &'a str,
    /// The place is the key, not its value.
    itself: bool,
}

fn key_in_table<'a>(table: &'a DeTable<'_>, offset: usize) -> Option<KeyAt<'a>> {
    // A table's own span is its header, so values are searched whether or not it covers the offset.
    let inner = table.iter().find_map(|(_, value)| key_in_value(value, offset));
    let own = || {
        table.iter().find_map(|(key, value)| {
            let itself = key.span().contains(&offset);
            let name = key.get_ref().as_ref();
            (itself || value.span().contains(&offset)).then_some(KeyAt { name, itself })
        })
    };
    inner.or_else(own)
}

fn key_in_value<'a>(value: &'a Spanned<DeValue<'_>>, offset: usize) -> Option<KeyAt<'a>> {
    match value.get_ref() {
        DeValue::Table(table) => key_in_table(table, offset),
        DeValue::Array(list) => list.iter().find_map(|value| key_in_value(value, offset)),
        _ => None,
    }
}

impl Diagnostic {
    /// What the TOML reader says about `text`, the contents of `file`, in this project's words: with the
    /// nearest known key or value behind an unknown one. `example` gives for a key how it is written right,
    /// such as `memory = "12GiB"` for `memory`; it stands behind a missing key and behind a value of the
    /// wrong kind.
    pub fn from_toml(
        text: &str,
        file: &str,
        error: &toml::de::Error,
        example: impl Fn(&str) -> Option<&'static str>,
    ) -> Self {
        let span = error.span().unwrap_or(0..0);
        let places = TomlPlaces::parse(text);
        let key = places.as_ref().and_then(|places| places.key_at(span.start));
        let told = told(error.message(), key, example);
        Self::at(text, span, file, told.message).with_help(told.help)
    }
}

struct Told {
    message: String,
    help: String,
}

fn told(raw: &str, key: Option<KeyAt<'_>>, example: impl Fn(&str) -> Option<&'static str>) -> Told {
    if let Some((name, known)) = unknown(raw, "unknown field `") {
        return Told { message: format!("unknown key {}", quoted(name)), help: suggestion(name, &known) };
    }
    if let Some((name, known)) = unknown(raw, "unknown variant `") {
        let message = match key {
            // A table with one key of several, as enums with contents are written.
            Some(KeyAt { itself: true, .. }) => format!("unknown key {}", quoted(name)),
            Some(KeyAt { name: key, .. }) => format!("{} is no value of {}", quoted(name), quoted(key)),
            None => format!("{} is none of the known values", quoted(name)),
        };
        return Told { message, help: suggestion(name, &known) };
    }
    let write = |key: &str| example(key).map(|example| format!("write {example}")).unwrap_or_default();
    if let Some(name) = raw.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return Told { message: format!("the key {} is missing", quoted(name)), help: write(name) };
    }
    // What the reader says of every value that begins like none, also of one that is not there.
    if raw.starts_with("string values must be quoted") {
        let message = "a value is missing here, or a text is not in quotes".to_owned();
        return Told { message, help: "write a text as \"text\"".to_owned() };
    }
    if raw == "duplicate key" {
        let message = "the key stands here a second time".to_owned();
        return Told { message, help: "a table holds each key once".to_owned() };
    }
    // The project's own types end their messages with what to write instead.
    if let Some((message, help)) = raw.rsplit_once("; ")
        && ["write ", "choose "].iter().any(|verb| help.starts_with(verb))
    {
        return Told { message: message.to_owned(), help: help.to_owned() };
    }
    let message = match raw.strip_prefix("invalid type: ").or_else(|| raw.strip_prefix("invalid value: ")) {
        Some(rest) => found_and_expected(rest),
        None => raw.replace("wanted string or table", "expected a string or a table").replace('\n', "; "),
    };
    Told { message, help: key.map(|key| write(key.name)).unwrap_or_default() }
}

/// The given and the known words of "unknown field `given`, expected one of `a`, `b`". The given one may hold
/// anything, the known ones hold no backtick.
fn unknown<'r>(raw: &'r str, prefix: &str) -> Option<(&'r str, Vec<&'r str>)> {
    let rest = raw.strip_prefix(prefix)?;
    match rest.rsplit_once("`, expected ") {
        Some((given, known)) => Some((given, known.split('`').skip(1).step_by(2).collect())),
        None => rest.rsplit_once("`, there are no ").map(|(given, _)| (given, Vec::new())),
    }
}

fn suggestion(given: &str, known: &[&str]) -> String {
    let listed =
        known.iter().take(LISTED_WORDS).map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    let more = if known.len() > LISTED_WORDS { ", ..." } else { "" };
    match (nearest(given, known.iter().copied()), known.len()) {
        (_, 0) => "nothing can stand here".to_owned(),
        (Some(near), 1) => format!("did you mean `{near}`?"),
        (Some(near), _) => format!("did you mean `{near}`? Known: {listed}{more}"),
        (None, _) => format!("known: {listed}{more}"),
    }
}

/// "string \"x\", expected a sequence" in the words of TOML rather than of the reader.
fn found_and_expected(rest: &str) -> String {
    let Some((found, expected)) = rest.rsplit_once(", expected ") else {
        return rest.to_owned();
    };
    let expected = match expected {
        "a sequence" => "a list",
        "a map" => "a table",
        "u8" => "a whole number, 0 to 255",
        "u16" | "u32" | "u64" | "usize" => "a whole number, at least 0",
        "f32" | "f64" => "a number",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    let found = match found {
        "map" => "a table".to_owned(),
        "sequence" => "a list".to_owned(),
        // Behind a number too large for the reader's own integers stands the type it tried.
        other => other.trim_end_matches(" as i128").trim_end_matches(" as u128").to_owned(),
    };
    format!("expected {expected}, found {found}")
}
