//! One finding of a check: where, and what would be right.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, anyhow};

/// Something that a check found wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// The file, relative to the root of the repository.
    pub(crate) path: PathBuf,
    /// Line and column (in characters), both from 1; `None` when the file as a whole is meant.
    pub(crate) place: Option<(usize, usize)>,
    /// What is wrong and what would be right.
    pub(crate) message: String,
}

impl Problem {
    /// A finding about a file as a whole.
    pub(crate) fn in_file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self { path: path.as_ref().into(), place: None, message: message.into() }
    }

    /// A finding at a byte offset of a file's text.
    pub(crate) fn at(path: impl AsRef<Path>, text: &str, offset: usize, message: impl Into<String>) -> Self {
        let place = Some(line_and_column(text, offset));
        Self { path: path.as_ref().into(), place, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.place {
            Some((line, column)) => write!(out, "{path}:{line}:{column}: {}", self.message),
            None => write!(out, "{path}: {}", self.message),
        }
    }
}

/// An error that lists problems, one a line.
pub(crate) fn listed(problems: &[Problem]) -> Error {
    let lines: Vec<String> = problems.iter().map(Problem::to_string).collect();
    let plural = if lines.len() == 1 { "" } else { "s" };
    anyhow!("{} problem{plural}\n{}", lines.len(), lines.join("\n"))
}

/// `Ok` when there are no problems.
pub(crate) fn none_of(problems: &[Problem]) -> Result<()> {
    if problems.is_empty() { Ok(()) } else { Err(listed(problems)) }
}

/// Line and column, both from 1, of a byte offset; the end of the text for an offset beyond it.
fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let before = &text.as_bytes()[..offset.min(text.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    // Every character has exactly one byte that is not a UTF-8 continuation byte.
    let characters = before[line_start..].iter().filter(|&&byte| byte & 0xC0 != 0x80).count();
    (line, characters + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_characters_from_one() {
        let text = "ab\n\u{b5}s x\n";
        for (offset, place) in [(0, (1, 1)), (2, (1, 3)), (3, (2, 1)), (5, (2, 2)), (99, (3, 1))] {
            assert_eq!(line_and_column(text, offset), place, "offset {offset}");
        }
    }

    #[test]
    fn problems_are_listed_one_a_line() {
        let one = Problem::at("docs/a.md", "x\ny", 2, "no");
        assert_eq!(
            none_of(std::slice::from_ref(&one)).unwrap_err().to_string(),
            "1 problem\ndocs/a.md:2:1: no"
        );
        let two = Problem::in_file("README.md", "missing");
        let all = none_of(&[one, two]).unwrap_err().to_string();
        assert_eq!(all, "2 problems\ndocs/a.md:2:1: no\nREADME.md: missing");
        none_of(&[]).unwrap();
    }
}
