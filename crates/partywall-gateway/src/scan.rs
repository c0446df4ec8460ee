//! What is read of answers while they pass: where events of a stream end, and how many tokens the engine says there were.
//!
//! Both work on pieces cut anywhere, look at each byte once and keep nothing of the answer.

/// Bytes of an unfinished event that are held back; of a longer one the beginning is passed on.
pub(crate) const MAX_HELD_BYTES: usize = 64 << 10;

/// Follows a stream of server-sent events: an event ends with an empty line.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// Bytes in the line that is being read.
    line: usize,
    /// Events that have ended.
    pub(crate) ended: u64,
    /// How much of `[DONE]` the end of the last line with data is.
    done: Done,
}

/// What was seen of `data: [DONE]`, the end of a stream of the OpenAI API.
#[derive(Debug, Default)]
struct Done {
    matched: usize,
    seen: bool,
}

const DONE: &[u8] = b"data:[DONE]";

impl Events {
    /// Reads a piece. Gives how many of its bytes belong to events that have ended; 0 where it ends none.
    pub(crate) fn feed(&mut self, piece: &[u8]) -> usize {
        let mut whole = 0;
        for (index, byte) in piece.iter().enumerate() {
            match byte {
                b'\n' => {
                    if self.line == 0 {
                        whole = index + 1;
                        self.ended += 1;
                    }
                    if self.done.matched == DONE.len() {
                        self.done.seen = true;
                    }
                    self.line = 0;
                    self.done.matched = 0;
                }
                b'\r' => {}
                byte => {
                    // Only a line that is nothing but this counts; blanks in it do not matter.
                    if *byte != b' ' && self.done.matched <= DONE.len() {
                        let fits = DONE.get(self.done.matched) == Some(byte);
                        self.done.matched = if fits { self.done.matched + 1 } else { DONE.len() + 1 };
                    }
                    self.line += 1;
                }
            }
        }
        whole
    }

    /// Whether the stream has said that it is complete.
    pub(crate) const fn is_done(&self) -> bool {
        self.done.seen
    }
}

/// How many tokens there were, as the engine says at the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Usage {
    /// Of the prompt.
    pub prompt: Option<u64>,
    /// Of the prompt and in its cache.
    pub cached: Option<u64>,
    /// Generated.
    pub completion: Option<u64>,
}

/// Finds `"prompt_tokens": 5` and its like in JSON. What looks like that within a text does not count: there its quotes are escaped.
#[derive(Debug, Default)]
pub(crate) struct UsageScan {
    at: Place,
    found: Usage,
}

#[derive(Debug, Clone, Copy, Default)]
enum Place {
    #[default]
    Outside,
    /// In a text, behind the quote: so much of it, as far as it can be a key, and whether the last byte was a backslash.
    Text { key: Key, escaped: bool },
    /// Behind a text that may be a key.
    Behind(Field),
    /// Behind the colon.
    Number { field: Field, value: u64, digits: u32 },
}

/// The beginning of a text.
#[derive(Debug, Clone, Copy)]
struct Key {
    bytes: [u8; KEY_BYTES],
    length: usize,
}

/// The longest key.
const KEY_BYTES: usize = 17;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Prompt,
    Cached,
    Completion,
}

impl Key {
    fn field(&self) -> Option<Field> {
        match self.bytes.get(..self.length)? {
            b"prompt_tokens" => Some(Field::Prompt),
            b"cached_tokens" => Some(Field::Cached),
            b"completion_tokens" => Some(Field::Completion),
            _ => None,
        }
    }
}

impl UsageScan {
    /// Reads a piece.
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        let mut rest = piece;
        while let [byte, after @ ..] = rest {
            self.at = self.next(*byte);
            rest = after;
            // Most of an answer is text that is no key, and what stands between texts: nothing happens there before the next quote.
            let quiet = match self.at {
                Place::Outside => rest.iter().position(|byte| *byte == b'"'),
                Place::Text { key, escaped: false } if key.length > KEY_BYTES => {
                    rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))
                }
                _ => continue,
            };
            rest = rest.get(quiet.unwrap_or(rest.len())..).unwrap_or_default();
        }
    }

    /// What was found, the last of each.
    pub(crate) const fn found(&self) -> Usage {
        self.found
    }

    fn next(&mut self, byte: u8) -> Place {
        const EMPTY: Key = Key { bytes: [0; KEY_BYTES], length: 0 };
        match (self.at, byte) {
            (Place::Text { key, escaped: true }, _) => {
                // No key has anything escaped.
                Place::Text { key: Key { length: KEY_BYTES + 1, ..key }, escaped: false }
            }
            (Place::Text { key, .. }, b'\\') => Place::Text { key, escaped: true },
            (Place::Text { key, .. }, b'"') => key.field().map_or(Place::Outside, Place::Behind),
            (Place::Text { mut key, .. }, byte) => {
                if let Some(place) = key.bytes.get_mut(key.length) {
                    *place = byte;
                }
                key.length = (key.length + 1).min(KEY_BYTES + 1);
                Place::Text { key, escaped: false }
            }
            (Place::Behind(field), b':') => Place::Number { field, value: 0, digits: 0 },
            (Place::Behind(field), b' ') => Place::Behind(field),
            (Place::Number { field, digits: 0, .. }, b' ') => Place::Number { field, value: 0, digits: 0 },
            (Place::Number { field, value, digits }, b'0'..=b'9') if digits < 15 => {
                Place::Number { field, value: value * 10 + u64::from(byte - b'0'), digits: digits + 1 }
            }
            (Place::Number { field, value, digits }, byte) => {
                if digits > 0 && matches!(byte, b',' | b'}' | b' ' | b'\n' | b'\r' | b'\t') {
                    let place = match field {
                        Field::Prompt => &mut self.found.prompt,
                        Field::Cached => &mut self.found.cached,
                        Field::Completion => &mut self.found.completion,
                    };
                    *place = Some(value);
                }
                if byte == b'"' { Place::Text { key: EMPTY, escaped: false } } else { Place::Outside }
            }
            (_, b'"') => Place::Text { key: EMPTY, escaped: false },
            _ => Place::Outside,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn usage(text: &str) -> Usage {
        let mut scan = UsageScan::default();
        scan.feed(text.as_bytes());
        scan.found()
    }

    #[test]
    fn tokens_are_found_where_the_engine_says_them() {
        let text = r#"{"choices":[{"text":"a"}],"usage":{"prompt_tokens": 12, "completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}"#;
        assert_eq!(usage(text), Usage { prompt: Some(12), cached: Some(8), completion: Some(3) });
        for nothing in [
            r#"{"text":"\"cached_tokens\":8,"}"#,
            r#"{"text":"cached_tokens: 8"}"#,
            r#"{"cached_tokens":null}"#,
            r#"{"cached_tokens":"8"}"#,
            r#"{"xcached_tokens":8}"#,
            r#"{"cached_tokens":99999999999999999999}"#,
            r#"{"cached_tokens":1.5}"#,
            r#"{"\u0063ached_tokens":8}"#,
        ] {
            assert_eq!(usage(nothing), Usage::default(), "{nothing}");
        }
    }

    #[test]
    fn events_end_with_an_empty_line() {
        let mut events = Events::default();
        assert_eq!(events.feed(b"data: a\n\ndata: b\n"), 9);
        assert_eq!(events.feed(b"\n"), 1);
        assert_eq!(events.feed(b"data: c\r\n\r"), 0);
        assert_eq!(events.feed(b"\n: comment"), 1);
        assert_eq!(events.ended, 3);
        assert!(!events.is_done());
        assert_eq!(events.feed(b"\n\ndata: [DONE]\n\n"), 16);
        assert!(events.is_done());
        let mut other = Events::default();
        other.feed(b"data: {\"text\":\"data: [DONE]\"}\n\ndata: [DONE]x\n\nxdata: [DONE]\n\n");
        assert!(!other.is_done());
    }

    proptest! {
        /// Where a text is cut does not matter.
        #[test]
        fn pieces_add_up(text in prop::collection::vec(
            prop::sample::select(vec!["\n", "\r\n", "data: ", "[DONE]", "\"cached_tokens\"", ":", " ", "42", ",", "\"", "\\", "x"]), 0..60),
            cuts in prop::collection::vec(0usize..400, 0..8))
        {
            let text = text.concat().into_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.sort_unstable();
            cuts.push(text.len());
            let (mut whole, mut pieces) = ((Events::default(), UsageScan::default()), (Events::default(), UsageScan::default()));
            let end = whole.0.feed(&text);
            whole.1.feed(&text);
            let (mut from, mut last) = (0, 0);
            for cut in cuts {
                let piece = &text[from..cut];
                match pieces.0.feed(piece) {
                    0 => {}
                    at => last = from + at,
                }
                pieces.1.feed(piece);
                from = cut;
            }
            prop_assert_eq!(end, last);
            prop_assert_eq!(whole.0.ended, pieces.0.ended);
            prop_assert_eq!(whole.0.is_done(), pieces.0.is_done());
            prop_assert_eq!(whole.1.found(), pieces.1.found());
        }
    }
}
