//! What a language model does for a token at batch 1: for each layer, every weight is read once and multiplied with the
//! layer's input, and the cache of all tokens so far is read. The cache grows with each token until it is full; then a
//! new sequence begins.
//!
//! Everything is whole numbers modulo 2^32. What the cache adds up to is checked over all tokens; what the weights come
//! to, in sampled rows of every layer for the last token.

use std::collections::BTreeMap;

use partywall_core::units::Bytes;
use partywall_driver::DeviceBuffer;
use partywall_driver::kernels::{Part, Shape, Token, pattern};

use super::place::{Place, Sums};
use super::{Builtin, Identity, Verdict, Workload, WorkloadError};

const LAYERS: u32 = 16;
/// The input of a layer, words of four signed bytes: a row of the weights is as long.
const INPUT_WORDS: u32 = 1024;
/// All weights: read once per token, 0.3 ms at 4 TB/s.
const WEIGHTS: Bytes = Bytes::from_mib(1024);
/// Tokens of a sequence.
const CAPACITY: u32 = 1024;
/// What a token adds to a layer's cache: 16 KiB, so that a full cache is a quarter of the weights.
const ENTRY_WORDS: u32 = 4096;
/// Rows of each layer that the host computes itself.
const SAMPLED_ROWS: u32 = 16;

/// The workload.
pub(super) struct Decode {
    place: Place,
    builtin: &'static Builtin,
    weights: DeviceBuffer,
    rows: u32,
    cache: DeviceBuffer,
    input: DeviceBuffer,
    outputs: DeviceBuffer,
    sums: Sums,
    /// What reading the cache up to a position adds to the sums, for the sequence 0; and for the sequence 1 more.
    cache_sums: Vec<(u32, u32)>,
    project: Shape,
    /// Tokens so far.
    tokens: u64,
}

impl Decode {
    /// `decode`.
    ///
    /// # Errors
    /// What the driver returned, or that the memory is too small.
    pub(super) fn new(
        place: Place,
        builtin: &'static Builtin,
        asked: Option<Bytes>,
    ) -> Result<Self, WorkloadError> {
        let row_bytes = u64::from(INPUT_WORDS) * 4;
        let size = place.size(asked, WEIGHTS, Bytes::from_mib(64))?;
        // Indices of the pattern are u32, and so are rows.
        let rows = (size.0.min(8 << 30) / u64::from(LAYERS) / row_bytes) as u32;
        let weights = place.patterned(Bytes(u64::from(LAYERS) * u64::from(rows) * row_bytes))?;
        let cache_words = u64::from(LAYERS) * u64::from(CAPACITY) * u64::from(ENTRY_WORDS);
        let cache = place.context.alloc(Bytes(cache_words * 4))?;
        let input = place.context.alloc(Bytes(row_bytes))?;
        let outputs = place.context.alloc(Bytes(u64::from(LAYERS) * u64::from(rows) * 4))?;
        let project = place.filled("project", 256)?;
        let sums = Sums::new(&place)?;
        let cache_sums = cache_sums(LAYERS, CAPACITY, ENTRY_WORDS);
        Ok(Self {
            place,
            builtin,
            weights,
            rows,
            cache,
            input,
            outputs,
            sums,
            cache_sums,
            project,
            tokens: 0,
        })
    }

    fn token(&self, tokens: u64) -> Token {
        let capacity = u64::from(CAPACITY);
        let (position, sequence) = ((tokens % capacity) as u32, (tokens / capacity) as u32);
        Token { layers: LAYERS, capacity: CAPACITY, words: ENTRY_WORDS, position, sequence }
    }

    /// How many of the sampled rows of the last token are wrong.
    fn wrong_rows(&self, last: Token) -> Result<u32, WorkloadError> {
        let mut wrong = 0;
        for layer in 0..LAYERS {
            let outputs = u64::from(layer) * u64::from(self.rows) * 4;
            let found = self.place.words(&self.outputs, outputs, self.rows as usize)?;
            for sample in 0..SAMPLED_ROWS {
                let row = (u64::from(sample) * u64::from(self.rows) / u64::from(SAMPLED_ROWS)) as u32;
                let expected = projected((layer * self.rows + row) * INPUT_WORDS, last);
                wrong += u32::from(found[row as usize] != expected as u32);
            }
        }
        Ok(wrong)
    }
}

/// For each position: the sum over all layers and all entries up to there of word times query, and what it grows by
/// when 1 is added to every word.
fn cache_sums(layers: u32, capacity: u32, words: u32) -> Vec<(u32, u32)> {
    let query: Vec<u32> = (0..words).map(pattern).collect();
    let per_entry = query.iter().fold(0, |sum: u32, word| sum.wrapping_add(*word)).wrapping_mul(layers);
    let entry = |layer: u32, position: u32| {
        let first = (layer * capacity + position) * words;
        let product = |(word, query): (u32, &u32)| pattern(first + word).wrapping_mul(*query);
        (0..words).zip(&query).map(product).fold(0, u32::wrapping_add)
    };
    let mut sums = (0_u32, 0_u32);
    let mut all = Vec::with_capacity(capacity as usize);
    for position in 0..capacity {
        let new = (0..layers).map(|layer| entry(layer, position)).fold(0, u32::wrapping_add);
        sums = (sums.0.wrapping_add(new), sums.1.wrapping_add(per_entry));
        all.push(sums);
    }
    all
}

/// The product of the row of weights that begins at index `first` of the pattern with the input for a token.
fn projected(first: u32, token: Token) -> i32 {
    let input = |word: u32| pattern(token.position * INPUT_WORDS + word).wrapping_add(token.sequence);
    let product = |word: u32| {
        let (a, b) = (pattern(first + word).to_le_bytes(), input(word).to_le_bytes());
        a.into_iter().zip(b).map(|(a, b)| i32::from(a as i8) * i32::from(b as i8)).sum::<i32>()
    };
    (0..INPUT_WORDS).map(product).fold(0, i32::wrapping_add)
}

impl Workload for Decode {
    fn identity(&self) -> Identity {
        self.builtin.identity()
    }

    fn about(&self) -> BTreeMap<String, String> {
        let (weights, cache) = (Bytes(self.weights.len()), Bytes(self.cache.len()));
        let request =
            format!("{LAYERS} layers, {weights} of weights, a cache of up to {cache}, {CAPACITY} tokens");
        [("request".to_owned(), request)].into()
    }

    /// Begins a sequence, so that every run has the same lengths.
    fn begin(&mut self) -> Result<(), WorkloadError> {
        self.tokens = 0;
        self.place.stream.fill(&self.outputs, 0, self.outputs.len(), 0xff)?;
        self.sums.clear(&self.place)
    }

    fn submit(&mut self) -> Result<(), WorkloadError> {
        let token = self.token(self.tokens);
        let Place { stream, kernels, .. } = &self.place;
        let input = Part::all(&self.input);
        kernels.begin_token(stream, Part::all(&self.cache), token, input)?;
        let so_far = u64::from(token.position + 1) * u64::from(ENTRY_WORDS) * 4;
        let blocks = (so_far / 16).div_ceil(256).min(u64::from(self.project.blocks())) as u32;
        let attend = Shape::new(blocks, 256)?;
        let (rows, layer_bytes) = (u64::from(self.rows), u64::from(self.rows) * u64::from(INPUT_WORDS) * 4);
        for layer in 0..u64::from(LAYERS) {
            let weights = Part::new(&self.weights, layer * layer_bytes, layer_bytes)?;
            let output = Part::new(&self.outputs, layer * rows * 4, rows * 4)?;
            kernels.project(stream, self.project, weights, input, self.rows, output)?;
            let offset = layer * u64::from(CAPACITY) * u64::from(ENTRY_WORDS) * 4;
            let cache = Part::new(&self.cache, offset, so_far)?;
            kernels.attend(stream, attend, cache, ENTRY_WORDS, self.sums.part())?;
        }
        let (base, per_sequence) = self.cache_sums[token.position as usize];
        self.sums.expect(base.wrapping_add(per_sequence.wrapping_mul(token.sequence)));
        self.tokens += 1;
        Ok(())
    }

    fn wait(&mut self) -> Result<(), WorkloadError> {
        Ok(self.place.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<Verdict, WorkloadError> {
        let (found, expected) = self.sums.compare(&self.place)?;
        let mut verdict = Verdict::compare("the sum over the cache", u64::from(found), u64::from(expected));
        let wrong = self.wrong_rows(self.token(self.tokens.saturating_sub(1)))?;
        if wrong > 0 {
            verdict.wrong = Some(format!("{wrong} of {} sampled rows are wrong", LAYERS * SAMPLED_ROWS));
        }
        verdict.checksum ^= self.place.checksum(Part::all(&self.outputs))?;
        Ok(verdict)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_sums_are_those_of_a_cache_word_by_word() {
        let (layers, capacity, words, sequence) = (2_u32, 3_u32, 4_u32, 5_u32);
        let sums = cache_sums(layers, capacity, words);
        for position in 0..capacity {
            let mut by_hand = 0_u32;
            for layer in 0..layers {
                for index in 0..(position + 1) * words {
                    let word = pattern(layer * capacity * words + index).wrapping_add(sequence);
                    by_hand = by_hand.wrapping_add(word.wrapping_mul(pattern(index % words)));
                }
            }
            let (base, per_sequence) = sums[position as usize];
            assert_eq!(base.wrapping_add(per_sequence.wrapping_mul(sequence)), by_hand);
        }
    }

    #[test]
    fn the_product_is_of_signed_bytes() {
        let token = Token { layers: 1, capacity: 1, words: 4, position: 2, sequence: 7 };
        let byte = |word: u32, byte: u32| i64::from((word >> (8 * byte)) as u8 as i8);
        let mut by_hand = 0;
        for word in 0..INPUT_WORDS {
            for at in 0..4 {
                let input = pattern(2 * INPUT_WORDS + word).wrapping_add(7);
                by_hand += byte(pattern(99 + word), at) * byte(input, at);
            }
        }
        assert_eq!(i64::from(projected(99, token)), by_hand);
    }
}
