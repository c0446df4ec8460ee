//! What can be said to `partywall engine-sim`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use partywall_core::units::Nanos;
use partywall_engine_sim::events::wire::{Encoding, Format, HashForm};
use partywall_engine_sim::faults::Fault;

/// `partywall engine-sim`. The defaults are those of `partywall_engine_sim::settings`.
#[derive(Debug, Args)]
pub struct EngineSimArguments {
    /// Where the first replica answers HTTP; port 0 is any free one.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// How many replicas; each takes the ports after those of the one before.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub replicas: u16,
    /// Data-parallel ranks of each replica: engines behind one address, each with a cache and events of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub ranks: u16,
    /// What the model is called. May be given several times: other names of the same model.
    #[arg(long, value_name = "NAME", default_value = "stand-in")]
    pub model: Vec<String>,
    /// A LoRA adapter, which is asked for as a model of its own. May be given several times.
    #[arg(long, value_name = "NAME")]
    pub lora: Vec<String>,
    /// Prompt tokens computed in a second, one prompt at a time.
    #[arg(long, value_name = "N", default_value_t = 8_000.0)]
    pub prefill_tokens_per_s: f64,
    /// From one token of output to the next, however many requests get tokens.
    #[arg(long, value_name = "TIME", default_value = "25ms")]
    pub token_time: Nanos,
    /// Requests that get tokens at the same time; more wait.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub streams: u32,
    /// Tokens that the cache holds, such as 500000 or 1M.
    #[arg(long, value_name = "N", default_value = "1M", value_parser = count)]
    pub cache_tokens: u64,
    /// Tokens in a block of the cache.
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub block_tokens: u32,
    /// Tokens of the longest prompt with its answer.
    #[arg(long, value_name = "N", default_value = "131072", value_parser = count)]
    pub context_tokens: u64,
    /// Requests with a `priority` above 0 are computed after the others, as by vLLM's priority scheduling.
    #[arg(long)]
    pub by_priority: bool,
    /// First write DIR/tokenizer.json and DIR/tokenizer_config.json, by which a gateway reads prompts as this engine does.
    #[arg(long, value_name = "DIR")]
    pub tokenizer: Option<PathBuf>,
    /// Publish what comes into the cache and goes out of it, such as tcp://*:5557.
    #[arg(long, value_name = "ENDPOINT")]
    pub kv_events: Option<String>,
    /// Answer there who has missed some of it, such as tcp://*:5657.
    #[arg(long, value_name = "ENDPOINT", requires = "kv_events")]
    pub kv_replay: Option<String>,
    /// Batches of events kept for that.
    #[arg(long, value_name = "N", default_value_t = 10_000, requires = "kv_events")]
    pub kv_kept: u32,
    /// The first frame of every message.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kv_events")]
    pub kv_topic: String,
    /// Whose events: vllm or sglang.
    #[arg(long, value_name = "WHOSE", default_value = "vllm", requires = "kv_events")]
    pub kv_format: Format,
    /// How they are encoded: array (until the middle of 2026), map, or map-batch (the batch as a map as well).
    #[arg(long, value_name = "HOW", default_value = "map", requires = "kv_events")]
    pub kv_encoding: Encoding,
    /// How blocks are called in them: int or bytes.
    #[arg(long, value_name = "HOW", default_value = "int", requires = "kv_events")]
    pub kv_hashes: HashForm,
    /// What goes wrong from the start, such as slow:4, cut:20:0.1 or drop-events:0.01; docs/engine-sim.md has them all. May be given
    /// several times; `POST /fault` takes the same words.
    #[arg(long, value_name = "FAULT")]
    pub fault: Vec<Fault>,
    /// How much faster than the clock everything goes.
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub time_scale: f64,
    /// Decides the texts of answers, and what blocks are called in events.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Say where the replicas are found as one line of JSON.
    #[arg(long)]
    pub json: bool,
}

/// A number, with k or M for thousands and millions.
fn count(text: &str) -> Result<u64, String> {
    let (number, times) = match text.strip_suffix(['k', 'M']) {
        Some(number) => (number, if text.ends_with('k') { 1_000 } else { 1_000_000 }),
        None => (text, 1),
    };
    let number: Option<u64> = number.parse().ok();
    number
        .and_then(|number| number.checked_mul(times))
        .ok_or_else(|| "write a number such as 4096, 500k or 3M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_may_have_a_suffix() {
        assert_eq!(["16", "500k", "3M"].map(count), [Ok(16), Ok(500_000), Ok(3_000_000)]);
        for text in ["", "M", "1G", "-1", "1.5M", "99999999999999999999", "99999999999999999M"] {
            assert!(count(text).is_err(), "{text}");
        }
    }
}
