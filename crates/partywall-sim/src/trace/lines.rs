//! Lines of a file, none longer than the limit, so that a file without line ends cannot fill the memory.

use std::io::{BufRead, Read};

use super::{MAX_LINE_BYTES, TraceError, whole_file};

/// Reads the lines that are not blank.
pub(super) struct Lines<'a> {
    file: &'a str,
    reader: &'a mut dyn BufRead,
    buffer: Vec<u8>,
    number: usize,
}

/// A line without its end, and its number in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line<'a> {
    file: &'a str,
    pub(super) number: usize,
    pub(super) text: &'a str,
}

impl<'a> Lines<'a> {
    pub(super) fn new(file: &'a str, reader: &'a mut dyn BufRead) -> Self {
        Self { file, reader, buffer: Vec::new(), number: 0 }
    }

    /// The next line with something on it, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Line<'_>>, TraceError> {
        loop {
            self.buffer.clear();
            self.number += 1;
            // Two more than the limit: the line end is not counted.
            let read =
                (&mut *self.reader).take(MAX_LINE_BYTES as u64 + 2).read_until(b'\n', &mut self.buffer);
            if let Err(error) = read {
                let place = format!("cannot read line {}: {error}", self.number);
                return Err(whole_file(self.file, place, "expected a readable file"));
            }
            if self.buffer.is_empty() {
                return Ok(None);
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
        }
        let (number, file) = (self.number, self.file);
        let at = |column, problem: String, expected: String| TraceError {
            file: file.to_owned(),
            line: number,
            column,
            problem,
            expected,
        };
        let bytes = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() > MAX_LINE_BYTES {
            let expected = format!("expected at most {MAX_LINE_BYTES} bytes before the line end");
            return Err(at(0, "the line is too long".to_owned(), expected));
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(Line { file, number, text })),
            Err(error) => {
                let before = String::from_utf8_lossy(&bytes[..error.valid_up_to()]);
                let column = before.chars().count() + 1;
                Err(at(column, "this is not UTF-8 text".to_owned(), "expected a text file".to_owned()))
            }
        }
    }
}

impl Line<'_> {
    /// An error about the whole line; `expected` with the word.
    pub(super) fn whole(&self, problem: String, expected: String) -> TraceError {
        TraceError { file: self.file.to_owned(), line: self.number, column: 0, problem, expected }
    }

    /// The error `problem` at the byte `offset` of the line; `expected` without the word.
    pub(super) fn error(
        &self,
        offset: usize,
        problem: impl Into<String>,
        expected: impl std::fmt::Display,
    ) -> TraceError {
        let column = self.text.char_indices().take_while(|(start, _)| *start < offset).count() + 1;
        TraceError {
            file: self.file.to_owned(),
            line: self.number,
            column,
            problem: problem.into(),
            expected: format!("expected {expected}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(bytes: &[u8]) -> Result<Vec<(usize, String)>, String> {
        let (mut reader, mut found) = (bytes, Vec::new());
        let mut lines = Lines::new("t", &mut reader);
        while let Some(line) = lines.next().map_err(|error| error.to_string())? {
            found.push((line.number, line.text.to_owned()));
        }
        Ok(found)
    }

    #[test]
    fn ends_and_blank_lines() {
        let expected = vec![(1, "a".to_owned()), (4, "b".to_owned())];
        assert_eq!(texts(b"a\r\n\n  \nb"), Ok(expected.clone()));
        assert_eq!(texts(b"a\n\r\n\nb\n"), Ok(expected));
    }

    #[test]
    fn long_lines_and_bytes_that_are_no_text() {
        let mut longest = vec![b'x'; MAX_LINE_BYTES];
        longest.extend(b"\r\n");
        assert_eq!(texts(&longest).map(|lines| lines.len()), Ok(1));
        longest.insert(0, b'x');
        assert_eq!(
            texts(&longest),
            Err("t:1: the line is too long; expected at most 1048576 bytes before the line end".to_owned())
        );
        assert_eq!(
            texts(b"a\n\xc3\xa9x\xff"),
            Err("t:2:3: this is not UTF-8 text; expected a text file".to_owned())
        );
    }
}
