//! A load like a recorded one, for those who do not have the recording.
//!
//! # What is imitated
//!
//! Mooncake's conversation trace (FAST 2025): 12 031 requests in 59 minutes. Its statistics, which are all that is used of it:
//!
//! - Requests come in lots, every 3 s: 13.1 on average in lots that are not empty, with a variance of 38, so the rate itself varies.
//! - All prompts begin with the same block of 512 tokens.
//! - 38 of 100 requests go on with an earlier one. After its first request a conversation goes on in 30 of 100 cases, after its second in 42,
//!   then 51, 58, 60, 68, and 75 from there on. Its next request comes after a minute or two (`GAP_S`).
//! - In 87 of 100 of those the prompt is the earlier one and some hundred tokens more (`ADDED`). In the others the prompts part after a
//!   fifth of the earlier one (`KEPT`), as after an edit, and the new one is of about the old one's length.
//! - How long first prompts and outputs are is in `FIRST` and `OUTPUT`.
//!
//! Every quantity is drawn from a table of its quantiles, with the logarithm in between. How close the result is: 37 of 100 tokens of the
//! trace's prompts are found in a cache without bounds, and about as many of the generated ones; `docs/routing.md` has the policies' figures
//! on both. Not imitated: that the rate rises by a quarter over the hour, while prompts get shorter.
//!
//! The memory used is that of the requests, and of the conversations that go on, at most [`MAX_OPEN`].

use std::collections::BTreeMap;

use partywall_core::tenant::Class;
use partywall_core::units::Nanos;
use partywall_routing::prefix::PrefixHash;

use super::replay::LoadRequest;
use crate::chance::{Chance, mix};
use crate::trace::MOONCAKE_BLOCK_TOKENS;

/// Conversations that may go on at a time; beyond that they end early. The trace's rate has some hundred.
pub const MAX_OPEN: usize = 100_000;

/// Most requests that are generated.
pub const MAX_GENERATED: u32 = 2_000_000;

/// Where the tables' values are, as fractions of all.
const QUANTILES: [f64; 14] = [0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0];

/// Tokens of the first prompt of a conversation.
const FIRST: [f64; 14] = [
    891.0, 897.0, 905.0, 1_083.0, 1_727.0, 3_879.0, 5_226.0, 7_395.0, 10_732.0, 15_840.0, 25_526.0, 38_459.0,
    89_867.0, 126_195.0,
];

/// Tokens that a prompt has behind what it shares with the one before.
const ADDED: [f64; 14] = [
    10.0, 206.0, 309.0, 446.0, 547.0, 649.0, 746.0, 861.0, 1_019.0, 1_641.0, 4_966.0, 7_792.0, 17_081.0,
    92_318.0,
];

/// Of a prompt that parts from the one before: the fraction of that one that it shares.
const KEPT: [f64; 14] =
    [0.015, 0.048, 0.067, 0.097, 0.125, 0.158, 0.192, 0.25, 0.333, 0.423, 0.568, 0.75, 0.92, 0.961];

/// Of the same: its length as a multiple of that one's.
const RATIO: [f64; 14] =
    [0.174, 0.492, 0.599, 0.689, 0.805, 0.888, 0.962, 1.012, 1.068, 1.143, 1.332, 1.5, 2.525, 7.72];

/// Seconds from one request of a conversation to the next.
const GAP_S: [f64; 14] =
    [3.0, 30.0, 42.0, 60.0, 75.0, 96.0, 123.0, 162.0, 222.0, 318.0, 483.0, 615.0, 1_482.0, 3_030.0];

/// Generated tokens.
const OUTPUT: [f64; 14] =
    [1.0, 10.0, 24.0, 100.0, 213.0, 291.0, 350.0, 399.0, 447.0, 504.0, 597.0, 698.0, 1_120.0, 2_000.0];

/// How often a conversation goes on after its first request, its second, and so on.
const GOES_ON: [f64; 7] = [0.30, 0.42, 0.51, 0.58, 0.60, 0.68, 0.75];

/// How often a prompt parts from the one before.
const PARTS: f64 = 0.135;

/// Longest prompt.
const MAX_PROMPT: f64 = 126_195.0;

/// From one lot of requests to the next.
const LOT_S: u64 = 3;

/// First requests of conversations in a second.
const CONVERSATIONS_PER_S: f64 = 2.09;

/// The spread of the rate from lot to lot: the variance of its logarithm gives the lots theirs.
const RATE_SPREAD: f64 = 0.35;

/// A conversation that goes on.
struct Conversation {
    turn: usize,
    prefixes: Vec<PrefixHash>,
    input_tokens: u64,
}

/// Requests for so long, all of one class, in order of time.
pub fn generate(length: Nanos, seed: u64, class: Class) -> Vec<LoadRequest> {
    let mut generator = Generator {
        arrivals: Chance::new(seed, 0),
        prompts: Chance::new(seed, 1),
        next_block: mix(seed ^ 0x626c_6f63_6b73),
        open: BTreeMap::new(),
        waiting: 0,
        class,
        load: Vec::new(),
    };
    for lot in 0..=length.0 / (LOT_S * 1_000_000_000) {
        generator.lot(lot);
        if generator.load.len() >= MAX_GENERATED as usize {
            break;
        }
    }
    generator.load
}

struct Generator {
    arrivals: Chance,
    prompts: Chance,
    next_block: u64,
    /// By the lot in which they go on.
    open: BTreeMap<u64, Vec<Conversation>>,
    waiting: usize,
    class: Class,
    load: Vec<LoadRequest>,
}

impl Generator {
    /// The requests that come together.
    fn lot(&mut self, lot: u64) {
        let go_on = self.open.remove(&lot).unwrap_or_default();
        self.waiting -= go_on.len();
        for conversation in go_on {
            let next = self.next_of(&conversation);
            self.request(lot, next);
        }
        let spread = libm::exp(RATE_SPREAD * self.arrivals.normal() - RATE_SPREAD * RATE_SPREAD / 2.0);
        let mean = CONVERSATIONS_PER_S * LOT_S as f64 * spread;
        let mut passed = self.arrivals.exponential(1.0);
        while passed < mean {
            passed += self.arrivals.exponential(1.0);
            let input_tokens = draw(&mut self.prompts, &FIRST) as u64;
            let prefixes = self.prompt(&[], input_tokens);
            self.request(lot, Conversation { turn: 0, prefixes, input_tokens });
        }
    }

    /// The next prompt of a conversation.
    fn next_of(&mut self, before: &Conversation) -> Conversation {
        let (shared, input_tokens) = if self.prompts.unit() < PARTS {
            let kept = draw(&mut self.prompts, &KEPT) * before.prefixes.len() as f64;
            let tokens = before.input_tokens as f64 * draw(&mut self.prompts, &RATIO);
            (&before.prefixes[..kept as usize], tokens)
        } else {
            let shared = before.prefixes.len() as f64 * f64::from(MOONCAKE_BLOCK_TOKENS);
            (&before.prefixes[..], shared + draw(&mut self.prompts, &ADDED))
        };
        let input_tokens = input_tokens.min(MAX_PROMPT) as u64;
        let prefixes = self.prompt(shared, input_tokens);
        Conversation { turn: before.turn + 1, prefixes, input_tokens }
    }

    /// The whole blocks of a prompt that begins with `shared`.
    fn prompt(&mut self, shared: &[PrefixHash], tokens: u64) -> Vec<PrefixHash> {
        let blocks = (tokens / u64::from(MOONCAKE_BLOCK_TOKENS)) as usize;
        let mut prefixes = shared[..shared.len().min(blocks)].to_vec();
        while prefixes.len() < blocks {
            // The first block is everybody's.
            let name = if prefixes.is_empty() {
                0
            } else {
                self.next_block = self.next_block.wrapping_add(1);
                self.next_block
            };
            prefixes.push(PrefixHash(mix(name)));
        }
        prefixes
    }

    fn request(&mut self, lot: u64, conversation: Conversation) {
        self.load.push(LoadRequest {
            at: Nanos::from_secs(lot * LOT_S),
            class: self.class,
            prefixes: conversation.prefixes.clone(),
            input_tokens: conversation.input_tokens,
            output_tokens: draw(&mut self.prompts, &OUTPUT) as u32,
        });
        let goes_on = GOES_ON[conversation.turn.min(GOES_ON.len() - 1)];
        if self.waiting < MAX_OPEN && self.prompts.unit() < goes_on {
            let gap_s = draw(&mut self.prompts, &GAP_S);
            self.open.entry(lot + (gap_s / LOT_S as f64).ceil() as u64).or_default().push(conversation);
            self.waiting += 1;
        }
    }
}

/// A value from a table of quantiles, with the logarithm in between.
fn draw(chance: &mut Chance, table: &[f64; 14]) -> f64 {
    let unit = chance.unit();
    let above = QUANTILES.partition_point(|quantile| *quantile <= unit).clamp(1, QUANTILES.len() - 1);
    let part = (unit - QUANTILES[above - 1]) / (QUANTILES[above] - QUANTILES[above - 1]);
    let (low, high) = (libm::log(table[above - 1]), libm::log(table[above]));
    libm::exp(low + (high - low) * part)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const LS: Class = Class::LatencySensitive;

    /// The fraction of prompt tokens that a cache without bounds has, and mean and median of a quantity.
    fn found(load: &[LoadRequest]) -> f64 {
        let (mut held, mut found, mut all) = (BTreeSet::new(), 0, 0);
        for request in load {
            let known = request.prefixes.iter().take_while(|prefix| held.contains(*prefix)).count();
            found += known as u64 * u64::from(MOONCAKE_BLOCK_TOKENS);
            all += request.input_tokens;
            held.extend(request.prefixes.iter().copied());
        }
        found as f64 / all as f64
    }

    fn mean_and_median(mut values: Vec<u64>) -> (f64, u64) {
        values.sort_unstable();
        (values.iter().sum::<u64>() as f64 / values.len() as f64, values[values.len() / 2])
    }

    #[test]
    fn the_statistics_are_those_of_the_trace() {
        let close = |found: f64, trace: f64| (found / trace - 1.0).abs() < 0.15;
        for seed in [1, 2, 3] {
            let load = generate(Nanos::from_secs(3_540), seed, LS);
            let rate = load.len() as f64 / 3_540.0;
            assert!(close(rate, 3.40), "{rate} requests a second");
            let (mean, median) = mean_and_median(load.iter().map(|request| request.input_tokens).collect());
            assert!(close(mean, 12_035.0) && close(median as f64, 6_909.0), "{mean} {median} tokens in");
            let (mean, median) =
                mean_and_median(load.iter().map(|request| u64::from(request.output_tokens)).collect());
            assert!(close(mean, 343.0) && close(median as f64, 350.0), "{mean} {median} tokens out");
            let found = found(&load);
            assert!(close(found, 0.373), "{found} of the tokens are found");
        }
    }

    #[test]
    fn requests_are_in_order_and_have_whole_blocks_behind_a_common_one() {
        let load = generate(Nanos::from_secs(300), 7, LS);
        assert!(load.is_sorted_by_key(|request| request.at));
        for request in &load {
            assert_eq!(request.prefixes.len() as u64, request.input_tokens / 512);
            assert_eq!(request.prefixes.first(), load[0].prefixes.first());
        }
        assert_eq!(load, generate(Nanos::from_secs(300), 7, LS));
        assert_ne!(load, generate(Nanos::from_secs(300), 8, LS));
    }
}
