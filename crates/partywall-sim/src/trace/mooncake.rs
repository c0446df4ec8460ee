//! Mooncake's traces: one JSON object per line, with a number for every 512 tokens of the prompt. Equal numbers are equal beginnings.

use std::io::BufRead;

use partywall_routing::prefix::PrefixHash;
use serde::Deserialize;

use super::lines::Lines;
use super::{MAX_PROMPT_BLOCKS, Millis, PromptRequest, Rows, TraceError, TraceRequest, json_error};
use crate::chance::mix;

const EXPECTED: &str = "a line such as {\"timestamp\": 3000, \"input_length\": 512, \"output_length\": 128}";

/// One line. Fields that are not named here are skipped: they differ between the published traces.
#[derive(Deserialize)]
struct Row {
    /// Since the start of the recording.
    timestamp: Millis,
    input_length: u32,
    output_length: u32,
}

/// One line with the blocks of its prompt.
#[derive(Deserialize)]
struct PromptRow {
    timestamp: Millis,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Tokens in a block of these traces.
pub const MOONCAKE_BLOCK_TOKENS: u32 = 512;

const EXPECTED_PROMPT: &str = "a line such as {\"timestamp\": 3000, \"input_length\": 1000, \"output_length\": 128, \"hash_ids\": [0, 7]}, with a \
                               number for every 512 tokens of the prompt";

pub(super) fn read_prompts(file: &str, reader: &mut dyn BufRead) -> Result<Vec<PromptRequest>, TraceError> {
    let (mut lines, mut rows) = (Lines::new(file, reader), Rows::default());
    let (mut prompts, mut blocks) = (Vec::new(), 0);
    while let Some(line) = lines.next()? {
        let row: PromptRow = serde_json::from_str(line.text)
            .map_err(|error| json_error(file, line.number, &error, EXPECTED_PROMPT))?;
        let needed = row.input_length.div_ceil(MOONCAKE_BLOCK_TOKENS) as usize;
        if row.hash_ids.len() != needed {
            let problem =
                format!("{} tokens with {} numbers in hash_ids", row.input_length, row.hash_ids.len());
            return Err(line.whole(problem, format!("expected {needed}")));
        }
        blocks += needed;
        if blocks > MAX_PROMPT_BLOCKS {
            let expected = format!("expected at most {MAX_PROMPT_BLOCKS}; cut the file into shorter ones");
            return Err(line.whole("too many blocks".to_owned(), expected));
        }
        rows.push(row.timestamp.0, row.input_length, row.output_length)
            .map_err(|(problem, expected)| line.whole(problem, expected))?;
        // The last number may stand for less than a block, which nobody can share by blocks.
        let whole = (row.input_length / MOONCAKE_BLOCK_TOKENS) as usize;
        prompts.push(row.hash_ids[..whole].iter().map(|id| PrefixHash(mix(id.wrapping_add(1)))).collect());
    }
    let requests = rows.finish(file, &format!("expected {EXPECTED_PROMPT}"))?;
    let request = |(request, prefixes): (TraceRequest, Vec<PrefixHash>)| PromptRequest {
        at: request.at,
        input_tokens: request.input_tokens,
        output_tokens: request.output_tokens,
        prefixes,
    };
    Ok(requests.into_iter().zip(prompts).map(request).collect())
}

pub(super) fn read(file: &str, reader: &mut dyn BufRead) -> Result<Vec<TraceRequest>, TraceError> {
    let (mut lines, mut rows) = (Lines::new(file, reader), Rows::default());
    while let Some(line) = lines.next()? {
        let row: Row = serde_json::from_str(line.text)
            .map_err(|error| json_error(file, line.number, &error, EXPECTED))?;
        rows.push(row.timestamp.0, row.input_length, row.output_length)
            .map_err(|(problem, expected)| line.whole(problem, expected))?;
    }
    rows.finish(file, &format!("expected {EXPECTED}"))
}

#[cfg(test)]
pub(super) const SAMPLE: &str = r#"{"timestamp": 500, "input_length": 4000, "output_length": 70, "hash_ids": [0, 1, 2]}
{"timestamp": 500, "input_length": 20, "output_length": 0, "hash_ids": []}
{"timestamp": 3501, "input_length": 131000, "output_length": 2000, "hash_ids": [0, 9]}
"#;

#[cfg(test)]
mod tests {
    use super::super::TraceFormat::Mooncake;
    use super::super::{TaskLoad, tests};
    use super::*;

    #[test]
    fn rows_become_offsets_from_the_first() {
        let trace = tests::read(Mooncake, SAMPLE.as_bytes()).unwrap();
        let TaskLoad::Listed(requests) = &trace.tasks[0].load else { panic!("{trace:?}") };
        let found: Vec<_> =
            requests.iter().map(|r| (r.at.0 / 1_000_000, r.input_tokens, r.output_tokens)).collect();
        assert_eq!(found, [(0, 4000, 70), (0, 20, 0), (3001, 131_000, 2000)]);
    }

    #[test]
    fn errors_point_at_the_place() {
        let check = |text: &str, expected: &str| {
            let message = tests::read(Mooncake, text.as_bytes()).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        };
        let good = r#"{"timestamp": 9, "input_length": 1, "output_length": 1}"#;
        check(&format!("{good}\n[1"), "t:2:2: ");
        check(
            &format!("{good}\n\n{{\"timestamp\": 10}}"),
            "t:3:17: missing field `input_length`; expected a line",
        );
        check(&good.replace("9", "-9"), "t:1:16: invalid value: integer `-9`, expected u64; ");
        check(&good.replace("9", "9e18"), "t:1:18: invalid type: floating point");
        check(&good.replace("9", "9999999999999999"), "t:1:30: the time 9999999999999999 ms is later");
        check(&good.replace("1}", "4294967296}"), "t:1:63: invalid value: integer `4294967296`");
        check(
            &format!("{good}\n{}", good.replace('9', "7")),
            "t:2: the time goes back by 2ms against the row",
        );
    }

    fn prompts(text: &str) -> Result<Vec<PromptRequest>, String> {
        read_prompts("t", &mut text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn equal_numbers_are_equal_beginnings_and_only_whole_blocks_count() {
        let found = prompts(
            r#"{"timestamp": 7, "input_length": 1100, "output_length": 70, "hash_ids": [0, 1, 2]}
{"timestamp": 9, "input_length": 1024, "output_length": 1, "hash_ids": [0, 3]}
{"timestamp": 9, "input_length": 20, "output_length": 1, "hash_ids": [8]}
"#,
        )
        .unwrap();
        let lengths: Vec<_> = found.iter().map(|request| (request.at.0, request.prefixes.len())).collect();
        assert_eq!(lengths, [(0, 2), (2_000_000, 2), (2_000_000, 0)]);
        assert_eq!(found[0].prefixes[0], found[1].prefixes[0]);
        assert_ne!(found[0].prefixes[1], found[1].prefixes[1]);
    }

    #[test]
    fn a_prompt_without_its_blocks_is_refused() {
        let check = |text: &str, expected: &str| {
            let message = prompts(text).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
        };
        check(
            r#"{"timestamp": 9, "input_length": 1, "output_length": 1}"#,
            "t:1:55: missing field `hash_ids`",
        );
        check(
            r#"{"timestamp": 9, "input_length": 1025, "output_length": 1, "hash_ids": [1, 2]}"#,
            "t:1: 1025 tokens with 2 numbers in hash_ids; expected 3",
        );
        check(
            r#"{"timestamp": 9, "input_length": 1, "output_length": 1, "hash_ids": [-1]}"#,
            "t:1:71: invalid value: integer `-1`, expected u64",
        );
    }
}
