//! The ledger of numbers, `results/claims.toml`: every figure the project states, and where it comes from.
//!
//! A claim names a recorded file and a JSON pointer into it. Its `value` is the number found there, rounded half
//! away from zero to the digits written in the ledger (so `1.03` stands for anything that rounds to 1.03 and
//! `1.030` asks for one digit more). `floor` and `goal` are held against the unrounded number in the file.
//! CONTRIBUTING.md has the fields and an example.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Component, Path};

use serde::Deserialize;
use toml::{Spanned, Value};

use crate::decimal::Decimal;
use crate::problem::Problem;

/// Where the ledger is, from the root of the repository.
pub(crate) const LEDGER: &str = "results/claims.toml";

/// A number with its written digits, or a yes or no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    Number(Decimal),
    Truth(bool),
}

impl fmt::Display for Quantity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(out),
            Self::Truth(truth) => truth.fmt(out),
        }
    }
}

/// Where a number comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Taken from a machine.
    Measured,
    /// Taken from the model.
    Simulated,
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Measured => "measured",
            Self::Simulated => "simulated",
        })
    }
}

/// Which way a number gets better: decides whether a floor is a least or a most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Better {
    Higher,
    Lower,
}

impl Better {
    /// Whether `number` is as good as `bound` or better.
    fn reaches(self, number: Decimal, bound: Decimal) -> bool {
        match self {
            Self::Higher => number >= bound,
            Self::Lower => number <= bound,
        }
    }

    /// The sign that stands before a bound.
    pub(crate) fn sign(self) -> &'static str {
        match self {
            Self::Higher => ">=",
            Self::Lower => "<=",
        }
    }
}

/// One entry as written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    id: Spanned<String>,
    what: Spanned<String>,
    value: Spanned<Value>,
    unit: Spanned<String>,
    kind: Kind,
    better: Option<Better>,
    floor: Option<Spanned<Value>>,
    goal: Option<Spanned<Value>>,
    file: Spanned<String>,
    pointer: Spanned<String>,
    command: Spanned<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    #[serde(default)]
    claim: Vec<Entry>,
}

/// One claim whose own fields are in order.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) id: String,
    pub(crate) what: String,
    pub(crate) value: Quantity,
    pub(crate) unit: String,
    pub(crate) kind: Kind,
    pub(crate) better: Option<Better>,
    pub(crate) floor: Option<Quantity>,
    pub(crate) goal: Option<Quantity>,
    pub(crate) file: String,
    pub(crate) pointer: String,
    pub(crate) command: String,
    /// Where `value` stands in the ledger's text, in bytes.
    value_span: Range<usize>,
    /// Where a complaint about the file or the pointer points.
    source_offset: usize,
}

/// The ledger and the text it was read from.
#[derive(Debug)]
pub(crate) struct Ledger {
    pub(crate) claims: Vec<Claim>,
    text: String,
}

/// The number in its file behind a claim, or why there is none.
pub(crate) type Found = Result<Quantity, Problem>;

impl Ledger {
    /// Reads a ledger; all that is wrong with it when something is.
    pub(crate) fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        let document: Document = toml::from_str(text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            vec![Problem::at(LEDGER, text, offset, error.message())]
        })?;
        let mut problems = Vec::new();
        let mut seen = BTreeSet::new();
        let mut claims = Vec::new();
        for entry in document.claim {
            if !seen.insert(entry.id.get_ref().clone()) {
                let message = format!("claim id `{}` is used twice; ids are unique", entry.id.get_ref());
                problems.push(Problem::at(LEDGER, text, entry.id.span().start, message));
            }
            match checked(entry, text) {
                Ok(claim) => claims.push(claim),
                Err(mut found) => problems.append(&mut found),
            }
        }
        if problems.is_empty() { Ok(Self { claims, text: text.to_owned() }) } else { Err(problems) }
    }

    /// The claim of that id.
    pub(crate) fn get(&self, id: &str) -> Option<&Claim> {
        self.claims.iter().find(|claim| claim.id == id)
    }

    /// Looks up what each claim's file says, in the order of the ledger. `read` gets a path from the root of the
    /// repository; each file is read once.
    pub(crate) fn look_up(&self, read: &dyn Fn(&Path) -> Result<String, String>) -> Vec<Found> {
        let mut files: BTreeMap<&str, Result<serde_json::Value, String>> = BTreeMap::new();
        let mut found = Vec::with_capacity(self.claims.len());
        for claim in &self.claims {
            let json = files.entry(&claim.file).or_insert_with(|| {
                let text = read(Path::new(&claim.file))?;
                serde_json::from_str(&text).map_err(|error| format!("not JSON: {error}"))
            });
            let quantity = match json {
                Ok(json) => quantity_at(json, &claim.pointer),
                Err(error) => Err(error.clone()),
            };
            found.push(quantity.map_err(|why| {
                let message = format!("claim `{}`: {}: {why}", claim.id, claim.file);
                Problem::at(LEDGER, &self.text, claim.source_offset, message)
            }));
        }
        found
    }

    /// Holds each claim against what its file says: one list of problems per claim.
    pub(crate) fn check(&self, found: &[Found]) -> Vec<Vec<Problem>> {
        let check = |(claim, found): (&Claim, &Found)| match found {
            Ok(found) => claim
                .disagreements(*found)
                .into_iter()
                .map(|message| {
                    let message = format!("claim `{}`: {message}", claim.id);
                    Problem::at(LEDGER, &self.text, claim.value_span.start, message)
                })
                .collect(),
            Err(problem) => vec![problem.clone()],
        };
        self.claims.iter().zip(found).map(check).collect()
    }

    /// The ledger's text with each value as its file has it, to the digits written now; all else is untouched.
    /// A claim whose file gives nothing usable keeps its value: the check that follows says why.
    pub(crate) fn refreshed(&self, found: &[Found]) -> String {
        let mut updates: Vec<(Range<usize>, String)> = Vec::new();
        for (claim, found) in self.claims.iter().zip(found) {
            if let Some(value) = found.as_ref().ok().and_then(|found| claim.value_from(*found)) {
                updates.push((claim.value_span.clone(), value.to_string()));
            }
        }
        crate::claims::splice(&self.text, updates)
    }
}

impl Claim {
    /// What the ledger should say, given what the file says: `None` if the kinds differ or the digits do not fit.
    fn value_from(&self, found: Quantity) -> Option<Quantity> {
        match (self.value, found) {
            (Quantity::Number(value), Quantity::Number(found)) => {
                let rounded = found.round_to(value.last_place())?;
                (!rounded.is_zero() || found.is_zero()).then_some(Quantity::Number(rounded))
            }
            (Quantity::Truth(_), Quantity::Truth(_)) => Some(found),
            _ => None,
        }
    }

    /// What does not hold when the file says `found`.
    fn disagreements(&self, found: Quantity) -> Vec<String> {
        let mut messages = Vec::new();
        let source = format!("{}#{}", self.file, self.pointer);
        match self.value_from(found) {
            Some(expected) if expected == self.value => {}
            Some(expected) => messages.push(format!(
                "value is {}, but {source} says {found}, which is {expected} to these digits; \
                 `cargo xtask claims --write` takes it over",
                self.value
            )),
            None => messages.push(match (self.value, found) {
                (Quantity::Number(_), Quantity::Number(_)) => {
                    format!(
                        "value is {}, which has too few or too many digits for {found} in {source}",
                        self.value
                    )
                }
                _ => format!(
                    "value is {}, but {source} says {found}: one is a number and one is not",
                    self.value
                ),
            }),
        }
        if self.holds(self.floor, found) == Some(false) {
            let sign = self.better.map_or("=", Better::sign);
            let floor = self.floor.map(|floor| floor.to_string()).unwrap_or_default();
            messages.push(format!("the floor is {sign} {floor}, and {source} says {found}"));
        }
        messages
    }

    /// Whether `found` reaches a bound; `None` without a bound or when the two are of different kinds.
    pub(crate) fn holds(&self, bound: Option<Quantity>, found: Quantity) -> Option<bool> {
        match (bound?, found) {
            (Quantity::Number(bound), Quantity::Number(found)) => Some(self.better?.reaches(found, bound)),
            (Quantity::Truth(bound), Quantity::Truth(found)) => Some(bound == found),
            _ => None,
        }
    }
}

/// What a JSON pointer names: a number or a yes or no.
fn quantity_at(json: &serde_json::Value, pointer: &str) -> Result<Quantity, String> {
    match json.pointer(pointer) {
        Some(serde_json::Value::Bool(truth)) => Ok(Quantity::Truth(*truth)),
        Some(serde_json::Value::Number(number)) => match Decimal::parse(&number.to_string()) {
            Some(number) => Ok(Quantity::Number(number)),
            None => {
                Err(format!("`{pointer}` is {number}, which has too many digits; at most 18 can be compared"))
            }
        },
        Some(other) => {
            let what = match other {
                serde_json::Value::Null => "null",
                serde_json::Value::String(_) => "a string",
                serde_json::Value::Array(_) => "a list",
                _ => "an object",
            };
            Err(format!("`{pointer}` is {what}; a claim needs a number or true or false"))
        }
        None => {
            Err(format!("`{pointer}` leads nowhere; a JSON pointer names each step, as in `/rows/0/be_kept`"))
        }
    }
}

/// Checks what can be checked of one entry without its file.
fn checked(entry: Entry, text: &str) -> Result<Claim, Vec<Problem>> {
    let mut problems = Vec::new();
    let id = entry.id.get_ref().clone();
    let mut complain = |offset: usize, message: String| {
        problems.push(Problem::at(LEDGER, text, offset, format!("claim `{id}`: {message}")));
    };
    if !is_id(&id) {
        let rule = "an id is lower-case words of letters, digits, `_` and `-`, joined by `.`";
        complain(entry.id.span().start, rule.to_owned());
    }
    for (name, field) in [("what", &entry.what), ("unit", &entry.unit), ("command", &entry.command)] {
        if field.get_ref().trim().is_empty() || field.get_ref().contains('\n') {
            complain(field.span().start, format!("`{name}` is one line that is not empty"));
        }
    }
    if is_percent(entry.unit.get_ref()) {
        let message = "ratios are fractions: write 0.8 and unit `ratio`, not 80 per cent";
        complain(entry.unit.span().start, message.to_owned());
    }
    if !is_inside(entry.file.get_ref()) {
        let message = format!("`{}` should be a path from the root of the repository", entry.file.get_ref());
        complain(entry.file.span().start, message);
    }
    if !entry.pointer.get_ref().starts_with('/') {
        let message = format!("pointer `{}` should begin with `/`", entry.pointer.get_ref());
        complain(entry.pointer.span().start, message);
    }
    let mut read = |name: &str, value: &Spanned<Value>| {
        quantity_in(name, value, text).map_err(|message| complain(value.span().start, message)).ok()
    };
    let value = read("value", &entry.value);
    let floor = entry.floor.as_ref().and_then(|floor| read("floor", floor));
    let goal = entry.goal.as_ref().and_then(|goal| read("goal", goal));
    if let Some(value) = value
        && let Err(message) = bounds_fit(value, floor, goal, entry.better)
    {
        complain(entry.value.span().start, message.to_owned());
    }
    let (Some(value), true) = (value, problems.is_empty()) else { return Err(problems) };
    Ok(Claim {
        id,
        what: entry.what.into_inner(),
        value,
        unit: entry.unit.into_inner(),
        kind: entry.kind,
        better: entry.better,
        floor,
        goal,
        value_span: entry.value.span(),
        source_offset: entry.file.span().start,
        file: entry.file.into_inner(),
        pointer: entry.pointer.into_inner(),
        command: entry.command.into_inner(),
    })
}

/// Reads a number as it is written, because the digits count and TOML's floats forget them.
fn quantity_in(name: &str, value: &Spanned<Value>, text: &str) -> Result<Quantity, String> {
    let written = text.get(value.span()).unwrap_or_default();
    match value.get_ref() {
        Value::Boolean(truth) => Ok(Quantity::Truth(*truth)),
        Value::Integer(_) | Value::Float(_) => match Decimal::parse(written) {
            Some(number) if !written.contains(['e', 'E']) => Ok(Quantity::Number(number)),
            _ => Err(format!("{name} `{written}` should be a plain decimal number of at most 18 digits")),
        },
        other => {
            let found = other.type_str();
            Err(format!("{name} is a {found}; it should be a number or true or false, without quotes"))
        }
    }
}

/// Whether floor, goal and direction make sense together.
fn bounds_fit(
    value: Quantity,
    floor: Option<Quantity>,
    goal: Option<Quantity>,
    better: Option<Better>,
) -> Result<(), &'static str> {
    let is_number = |quantity: Quantity| matches!(quantity, Quantity::Number(_));
    let bounds = [floor, goal];
    if bounds.iter().flatten().any(|&bound| is_number(bound) != is_number(value)) {
        return Err("value, floor and goal are all numbers or all true or false");
    }
    if !is_number(value) {
        return if better.is_some() { Err("`better` is for numbers") } else { Ok(()) };
    }
    match (floor, goal, better) {
        (None, None, _) => Ok(()),
        (_, _, None) => Err("a floor or a goal needs `better = \"higher\"` or `better = \"lower\"`"),
        (Some(Quantity::Number(floor)), Some(Quantity::Number(goal)), Some(better)) => {
            if better.reaches(goal, floor) { Ok(()) } else { Err("the goal is worse than the floor") }
        }
        _ => Ok(()),
    }
}

/// `sim.error_p50.time-slicing` and the like.
fn is_id(id: &str) -> bool {
    let is_word = |word: &str| {
        !word.is_empty()
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_' || b == b'-')
    };
    id.split('.').all(is_word)
}

fn is_percent(unit: &str) -> bool {
    let unit = unit.to_lowercase();
    ["%", "percent", "per cent", "pct"].iter().any(|word| unit.contains(word))
}

/// Whether a path stays inside the repository and is written from its root.
fn is_inside(path: &str) -> bool {
    !path.is_empty()
        && !path.contains('\\')
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests;
