//! Recorded request arrivals, in the three public formats people have.
//!
//! | format | file | what it holds |
//! |---|---|---|
//! | [`TraceFormat::Disb`] | JSON, SJTU-IPADS/disb | several tasks: arrival times, or a rate, or a closed loop |
//! | [`TraceFormat::AzureLlm`] | CSV, Azure/AzurePublicDataset | time of day, prompt and generated tokens |
//! | [`TraceFormat::Mooncake`] | JSON lines, kvcache-ai/Mooncake | milliseconds, prompt and generated tokens |
//!
//! A file is read once, front to back, within named limits, and gives either a [`Trace`] or one [`TraceError`] that
//! points at the place.

use std::fmt;
use std::io::BufRead;
use std::sync::Arc;

use partywall_core::units::Nanos;
use partywall_routing::prefix::PrefixHash;
use serde::{Deserialize, Serialize};

mod azure;
mod disb;
mod lines;
mod mooncake;

pub use mooncake::MOONCAKE_BLOCK_TOKENS;

/// Most requests a trace may hold: the largest public one, a week of Azure's coding service in 2024, has 17 million.
/// A request takes 16 bytes of memory.
pub const MAX_REQUESTS: usize = 20_000_000;

/// Longest line of an Azure or Mooncake file, in bytes. A Mooncake line grows by one number per 512 tokens of the
/// prompt; a prompt of a million tokens makes 16 KiB.
pub const MAX_LINE_BYTES: usize = 1 << 20;

/// Largest DISB file, in bytes. It is one JSON value, so all of it is in memory while it is read.
pub const MAX_DISB_BYTES: usize = 64 << 20;

/// Most blocks of prompts a trace may hold, of 8 bytes each. Mooncake's largest public one has half a million.
pub const MAX_PROMPT_BLOCKS: usize = 50_000_000;

/// The latest time in a trace: leaves room to repeat and slow it down without overflow. About 36 years.
const LATEST: Nanos = Nanos(1 << 60);

/// Which of the three formats a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceFormat {
    /// DISB workload: `{"tasks": [{"id": …, "load": {"type": "trace", "trace": [0, 33, …]}}, …]}`.
    Disb,
    /// Azure LLM inference trace: `TIMESTAMP,ContextTokens,GeneratedTokens`.
    AzureLlm,
    /// Mooncake trace: `{"timestamp": 0, "input_length": 512, "output_length": 128, …}` per line.
    Mooncake,
}

/// One recorded request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceRequest {
    /// When it arrived, since the start of the trace.
    pub at: Nanos,
    /// Tokens of its prompt; 0 where the trace is not about language models.
    pub input_tokens: u32,
    /// Tokens it generated; 0 where the trace is not about language models.
    pub output_tokens: u32,
}

/// One recorded request with the beginning of its prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptRequest {
    /// When it arrived, since the start of the trace.
    pub at: Nanos,
    /// Tokens of its prompt.
    pub input_tokens: u32,
    /// Tokens it generated.
    pub output_tokens: u32,
    /// Its prompt's whole blocks, each of [`MOONCAKE_BLOCK_TOKENS`].
    pub prefixes: Vec<PrefixHash>,
}

/// Reads a Mooncake trace with the blocks of its prompts. `file` is the name that messages use; nothing is opened here.
///
/// # Errors
/// The first thing in the file that is not as the format says, or beyond the limits of this module.
pub fn read_prompts(file: &str, reader: &mut dyn BufRead) -> Result<Vec<PromptRequest>, TraceError> {
    mooncake::read_prompts(file, reader)
}

/// How the requests of one task of a trace come.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskLoad {
    /// At these times, in order; never empty.
    Listed(Arc<[TraceRequest]>),
    /// The next one when the last one is done.
    Closed,
    /// At even distances, this many a second.
    Periodic {
        /// Requests a second; finite and above 0.
        rate_per_s: f64,
    },
    /// At random, this many a second on average.
    Poisson {
        /// Requests a second; finite and above 0.
        rate_per_s: f64,
    },
}

/// One stream of requests within a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceTask {
    /// Its name in the file; `requests` where the format has no tasks.
    pub name: String,
    /// How its requests come.
    pub load: TaskLoad,
}

/// What a trace file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The tasks in the file's order, at least one, no name twice. Azure and Mooncake files are one task.
    pub tasks: Vec<TraceTask>,
}

/// What is wrong with a trace file, where, and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct TraceError {
    /// The file, as the caller named it.
    pub file: String,
    /// The line, counted from 1; 0 where it is about the file as a whole.
    pub line: usize,
    /// The character within the line, counted from 1; 0 where it is about the whole line.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
    /// What would be right.
    pub expected: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        for place in [self.line, self.column].into_iter().take_while(|place| *place > 0) {
            write!(f, ":{place}")?;
        }
        write!(f, ": {}; {}", self.problem, self.expected)
    }
}

impl Trace {
    /// Reads a trace. `file` is the name that messages use; nothing is opened here.
    ///
    /// # Errors
    /// The first thing in the file that is not as the format says, or beyond the limits of this module.
    pub fn read(format: TraceFormat, file: &str, reader: &mut dyn BufRead) -> Result<Self, TraceError> {
        match format {
            TraceFormat::Disb => disb::read(file, reader),
            TraceFormat::AzureLlm => azure::read(file, reader).map(Self::of_requests),
            TraceFormat::Mooncake => mooncake::read(file, reader).map(Self::of_requests),
        }
    }

    /// The task of this name, or the only task where `name` is `None`.
    pub fn task(&self, name: Option<&str>) -> Option<&TraceTask> {
        match (name, &self.tasks[..]) {
            (Some(name), tasks) => tasks.iter().find(|task| task.name == name),
            (None, [only]) => Some(only),
            (None, _) => None,
        }
    }

    fn of_requests(requests: Vec<TraceRequest>) -> Self {
        Self {
            tasks: vec![TraceTask { name: "requests".to_owned(), load: TaskLoad::Listed(requests.into()) }],
        }
    }
}

/// Collects the requests of a format whose rows are in order of time: checks the order and the limits, and moves the
/// first request to time zero.
///
/// Going back in time is refused, not sorted away: these files are written in order, so a row that goes back means that
/// two recordings were joined or a row was damaged, and its times mean something else than the reader thinks.
#[derive(Debug, Default)]
struct Rows {
    requests: Vec<TraceRequest>,
    first: Nanos,
    last: Nanos,
}

impl Rows {
    /// Adds a request at `at` on the clock of the file, or says what is wrong with it and what was expected.
    fn push(&mut self, at: Nanos, input_tokens: u32, output_tokens: u32) -> Result<(), (String, String)> {
        if self.requests.len() >= MAX_REQUESTS {
            let expected = format!("expected at most {MAX_REQUESTS}; cut the file into shorter ones");
            return Err(("too many requests".to_owned(), expected));
        }
        if self.requests.is_empty() {
            (self.first, self.last) = (at, at);
        }
        if at < self.last {
            let back = self.last.saturating_sub(at);
            let problem = format!("the time goes back by {back} against the row before");
            return Err((problem, "expected rows in order of time (equal times are fine)".to_owned()));
        }
        let offset = at.saturating_sub(self.first);
        if offset > LATEST {
            let problem = format!("the time is {offset} after the first row");
            return Err((problem, format!("expected at most {LATEST}")));
        }
        self.last = at;
        self.requests.push(TraceRequest { at: offset, input_tokens, output_tokens });
        Ok(())
    }

    fn finish(self, file: &str, expected: &str) -> Result<Vec<TraceRequest>, TraceError> {
        if self.requests.is_empty() {
            return Err(whole_file(file, "the file has no requests", expected));
        }
        Ok(self.requests)
    }
}

/// A problem of the file as a whole.
fn whole_file(file: &str, problem: impl Into<String>, expected: impl Into<String>) -> TraceError {
    TraceError {
        file: file.to_owned(),
        line: 0,
        column: 0,
        problem: problem.into(),
        expected: expected.into(),
    }
}

/// A problem serde_json found in `text` that starts at line `first_line` of the file.
fn json_error(file: &str, first_line: usize, error: &serde_json::Error, expected: &str) -> TraceError {
    // The message ends in the place, which the error of this module shows in its own way.
    let message = error.to_string();
    let problem = message.rfind(" at line ").map_or(&message[..], |end| &message[..end]);
    let (line, column) = (error.line(), error.column());
    TraceError {
        file: file.to_owned(),
        line: if line == 0 { first_line } else { first_line + line - 1 },
        column,
        problem: problem.to_owned(),
        expected: format!("expected {expected}"),
    }
}

/// Whole milliseconds as the JSON formats write times, checked to be below [`LATEST`].
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(try_from = "u64")]
struct Millis(Nanos);

impl TryFrom<u64> for Millis {
    type Error = String;
    fn try_from(ms: u64) -> Result<Self, String> {
        match ms.checked_mul(1_000_000).map(Nanos) {
            Some(at) if at <= LATEST => Ok(Self(at)),
            _ => Err(format!("the time {ms} ms is later than {} ms", LATEST.0 / 1_000_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn read(format: TraceFormat, text: &[u8]) -> Result<Trace, String> {
        Trace::read(format, "t", &mut &text[..]).map_err(|error| error.to_string())
    }

    const SAMPLES: [(TraceFormat, &str); 3] = [
        (TraceFormat::Disb, disb::SAMPLE),
        (TraceFormat::AzureLlm, azure::SAMPLE),
        (TraceFormat::Mooncake, mooncake::SAMPLE),
    ];

    #[test]
    fn empty_files_are_refused() {
        for (format, _) in SAMPLES {
            for text in ["", "\n", "   \n\n"] {
                assert!(read(format, text.as_bytes()).is_err(), "{format:?} {text:?}");
            }
        }
    }

    #[test]
    fn a_format_does_not_read_another() {
        for (format, _) in SAMPLES {
            for (other, sample) in SAMPLES {
                assert_eq!(read(format, sample.as_bytes()).is_ok(), format == other, "{format:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_broken_reader_is_reported() {
        struct Broken;
        impl std::io::Read for Broken {
            fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("the disk is gone"))
            }
        }
        for (format, _) in SAMPLES {
            let error = Trace::read(format, "t", &mut std::io::BufReader::new(Broken)).unwrap_err();
            assert!(error.to_string().contains("the disk is gone"), "{error}");
        }
    }

    fn check_invariants(trace: &Trace) {
        assert!(!trace.tasks.is_empty());
        for task in &trace.tasks {
            match &task.load {
                TaskLoad::Listed(requests) => {
                    assert!(!requests.is_empty() && requests.is_sorted_by_key(|request| request.at));
                }
                TaskLoad::Periodic { rate_per_s } | TaskLoad::Poisson { rate_per_s } => {
                    assert!(*rate_per_s > 0.0 && rate_per_s.is_finite());
                }
                TaskLoad::Closed => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for (format, _) in SAMPLES {
                if let Ok(trace) = read(format, &bytes) {
                    check_invariants(&trace);
                }
            }
        }

        #[test]
        fn no_damage_panics(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6)
        ) {
            for (format, sample) in SAMPLES {
                let mut bytes = sample.as_bytes().to_vec();
                for (place, byte, how) in &damage {
                    let place = place.index(bytes.len());
                    match how {
                        0 => bytes[place] = *byte,
                        1 => bytes.insert(place, *byte),
                        2 => bytes.insert(place, b"0123456789-,.\"\n"[usize::from(*byte) % 15]),
                        _ => bytes.truncate(place.max(1)),
                    }
                }
                match Trace::read(format, "t", &mut &bytes[..]) {
                    Ok(trace) => check_invariants(&trace),
                    Err(error) => prop_assert!(!error.problem.is_empty() && !error.expected.is_empty()),
                }
            }
        }
    }
}
