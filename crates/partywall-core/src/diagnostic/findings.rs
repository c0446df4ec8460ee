//! What a check of a whole file found: each problem at its place, in the order of the file.

use std::ops::Range;

use super::{Diagnostic, Step, TomlPlaces};

/// An example of what may be written for a key: `memory = "12GiB"`.
pub type Example = fn(&str) -> Option<&'static str>;

/// Problems of a TOML file, collected in any order.
#[derive(Debug)]
pub struct Findings<'t> {
    text: &'t str,
    file: &'t str,
    places: TomlPlaces<'t>,
    example: Example,
    /// With the byte each begins at.
    found: Vec<(usize, Diagnostic)>,
}

impl<'t> Findings<'t> {
    /// Nothing yet about `text`, which `file` names in messages; `None` where it is not TOML.
    pub fn new(text: &'t str, file: &'t str, example: Example) -> Option<Self> {
        Some(Self { text, file, places: TomlPlaces::parse(text)?, example, found: Vec::new() })
    }

    /// The text.
    pub const fn text(&self) -> &'t str {
        self.text
    }

    /// Where things are in it.
    pub const fn places(&self) -> &TomlPlaces<'t> {
        &self.places
    }

    /// One more problem, at `span`.
    pub fn report(&mut self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        let start = span.start;
        self.found.push((start, Diagnostic::at(self.text, span, self.file, message).with_help(help)));
    }

    /// One more, about the value at `path`; the help is the example of its last key.
    pub fn report_value(&mut self, path: &[Step<'_>], message: impl Into<String>) {
        let key = path.iter().rev().find_map(|step| match step {
            Step::Key(key) => Some(*key),
            Step::Index(_) => None,
        });
        let help = key.map(|key| self.example_of(key)).unwrap_or_default();
        self.report(self.places.value(path), message, help);
    }

    /// The first of `tables` (key and path) that is a list, which the reader would take for the table's values in
    /// order.
    pub fn list_for_table<'s>(
        &self,
        tables: impl IntoIterator<Item = (&'s str, Vec<Step<'s>>)>,
    ) -> Option<Diagnostic> {
        let (key, path) = tables.into_iter().find(|(_, path)| self.places.is_list(path))?;
        let message = "expected a table, found a list";
        let found = Diagnostic::at(self.text, self.places.value(&path), self.file, message);
        Some(found.with_help(self.example_of(key)))
    }

    /// Everything, in the order of the file.
    pub fn into_diagnostics(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|(start, _)| *start);
        self.found.into_iter().map(|(_, diagnostic)| diagnostic).collect()
    }

    fn example_of(&self, key: &str) -> String {
        (self.example)(key).map(|example| format!("write {example}")).unwrap_or_default()
    }
}
