//! The trace, and what engines do with it.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Deserialize;

/// Tokens in a block here, and in one of the trace's.
pub const BLOCK_TOKENS: u64 = 64;
const TRACE_TOKENS: u64 = 512;

/// One request's prompt, block by block.
pub struct Request {
    /// What is in each block, alone.
    pub contents: Vec<u64>,
    /// What the prompt is up to and including each block.
    pub prefixes: Vec<u64>,
}

/// What one engine did for one request.
#[derive(Default)]
pub struct Step {
    pub replica: u32,
    /// Names of the blocks that went.
    pub removed: Vec<u64>,
    /// The name of the block that the new ones are behind.
    pub parent: Option<u64>,
    /// Name, prefix, content, place of the new blocks.
    pub stored: Vec<(u64, u64, u64, u32)>,
}

#[derive(Deserialize)]
struct Line {
    input_length: u64,
    hash_ids: Vec<u64>,
}

/// Reads a trace.
pub fn read(path: &Path) -> Result<Vec<Request>, String> {
    let text =
        std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut requests = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line: Line = serde_json::from_str(line)
            .map_err(|error| format!("{} line {}: {error}", path.display(), number + 1))?;
        let blocks = (line.input_length / BLOCK_TOKENS) as usize;
        let parts = TRACE_TOKENS / BLOCK_TOKENS;
        let contents: Vec<u64> = line
            .hash_ids
            .iter()
            .flat_map(|&id| (0..parts).map(move |part| mix(id * parts + part + 1)))
            .take(blocks)
            .collect();
        let mut last = 0x5eed;
        let prefixes = contents.iter().map(|&content| {
            last = mix(last ^ content.rotate_left(17));
            last
        });
        let prefixes = prefixes.collect();
        requests.push(Request { contents, prefixes });
    }
    Ok(requests)
}

/// What the engines do when the requests come to them in turn.
pub fn engines(requests: &[Request], replicas: u32, capacity: usize) -> Vec<Step> {
    let mut caches: Vec<Cache> = (0..replicas).map(|_| Cache::default()).collect();
    let serve = |(at, request): (usize, &Request)| {
        let replica = at as u32 % replicas;
        caches[replica as usize].serve(request, replica, capacity)
    };
    requests.iter().enumerate().map(serve).collect()
}

/// The blocks of an engine by when they were used.
#[derive(Default)]
struct Cache {
    used: HashMap<u64, u64>,
    order: BTreeMap<u64, u64>,
    clock: u64,
}

impl Cache {
    fn serve(&mut self, request: &Request, replica: u32, capacity: usize) -> Step {
        let blocks = &request.prefixes[..request.prefixes.len().min(capacity)];
        let cached = blocks.iter().take_while(|prefix| self.used.contains_key(prefix)).count();
        // The end is freed first, so it counts as used before the beginning.
        for &prefix in blocks.iter().rev() {
            self.clock += 1;
            if let Some(before) = self.used.insert(prefix, self.clock) {
                self.order.remove(&before);
            }
            self.order.insert(self.clock, prefix);
        }
        let mut step = Step { replica, ..Step::default() };
        while self.used.len() > capacity {
            let Some((_, prefix)) = self.order.pop_first() else { break };
            self.used.remove(&prefix);
            step.removed.push(name(prefix));
        }
        step.parent = cached.checked_sub(1).map(|at| name(blocks[at]));
        step.stored = (cached..blocks.len())
            .map(|at| (name(blocks[at]), blocks[at], request.contents[at], at as u32))
            .collect();
        step
    }
}

/// What engines call a block.
fn name(prefix: u64) -> u64 {
    mix(prefix ^ 0xe4e1)
}

/// Spreads bits (the finalizer of SplitMix64).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
