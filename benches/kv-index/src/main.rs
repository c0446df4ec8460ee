//! The exact index of cached blocks against two published ones, on one trace in one run.
//!
//! ```text
//! cargo run --release -- TRACE.jsonl [--rounds N] [--out FILE.json]
//! ```
//!
//! The trace is a Mooncake one: a request has an input length and the ids of its prompt's 512-token blocks, each of which stands for
//! everything before it too. Blocks here are of 64 tokens, eight of each of the trace's. Requests go to the replicas in turn. Each replica is
//! an engine with room for 16 384 blocks (1 M tokens) that evicts what was used the longest ago, a prompt's end before its beginning, as
//! vLLM does. What the engines store and evict is worked out first and is the same for all indices, as are the prompts that they are
//! asked for.
//!
//! A round replays everything into each index, in an order that changes from round to round. It goes in chunks of 256 requests: first the
//! lookups for all of them, each timed alone, then what the engines did, timed by event. All of it is on one thread, except that Dynamo's
//! concurrent tree applies events on a thread of its own behind a queue, which is how it is made to be used; it is timed by chunk, from
//! the first event put into the queue until the queue is empty. Reading the clock takes as long as a part of a lookup: its cost is
//! measured and taken off. Every answer is added up, and the sums of all indices have to be equal.

mod allocation;
mod indices;
mod replay;
mod report;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use indices::{Chain, Crtc, Ours, Radix, Subject};
use replay::Round;
use report::{Report, Setting};

/// Replicas, by setting.
const REPLICAS: [u32; 2] = [8, 64];
/// Blocks that a replica has room for.
const CAPACITY: usize = 16_384;

struct Arguments {
    trace: PathBuf,
    rounds: usize,
    out: Option<PathBuf>,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments { trace: PathBuf::new(), rounds: 7, out: None };
    let mut given = std::env::args().skip(1);
    while let Some(word) = given.next() {
        let mut value = || given.next().ok_or(format!("{word} wants a value"));
        match word.as_str() {
            "--rounds" => {
                arguments.rounds = value()?.parse().map_err(|error| format!("--rounds: {error}"))?
            }
            "--out" => arguments.out = Some(value()?.into()),
            _ => arguments.trace = word.into(),
        }
    }
    match arguments.trace.as_os_str().is_empty() || arguments.rounds == 0 {
        true => Err("usage: kv-index-bench TRACE.jsonl [--rounds N] [--out FILE.json]".into()),
        false => Ok(arguments),
    }
}

fn run() -> Result<(), String> {
    let arguments = arguments()?;
    let requests = trace::read(&arguments.trace)?;
    let mut report = Report::new(&requests, arguments.rounds);
    for replicas in REPLICAS {
        let steps = trace::engines(&requests, replicas, CAPACITY);
        let subjects: [(&str, fn(u32) -> Box<dyn Subject>); 4] = [
            ("partywall", |replicas| Box::new(Ours::new(replicas))),
            ("kv_index", |replicas| Box::new(Chain::new(replicas))),
            ("dynamo_crtc", |replicas| Box::new(Crtc::new(replicas))),
            ("dynamo_radix", |replicas| Box::new(Radix::new(replicas))),
        ];
        let mut rounds: Vec<Vec<Round>> = vec![Vec::new(); subjects.len()];
        for round in 0..arguments.rounds {
            for turn in 0..subjects.len() {
                let at = (turn + round) % subjects.len();
                let (name, new) = subjects[at];
                let result = replay::replay(&|| new(replicas), &requests, &steps, replicas);
                eprintln!("{replicas} replicas, round {round}, {name}: {result}");
                rounds[at].push(result);
            }
        }
        let names: Vec<&str> = subjects.iter().map(|(name, _)| *name).collect();
        report.settings.push(Setting::new(replicas, CAPACITY, &steps, &names, &rounds)?);
    }
    let text = report.to_json();
    match arguments.out {
        Some(path) => {
            std::fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        }
        None => {
            print!("{text}");
            Ok(())
        }
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
