//! `kernels/decode.cu`: what a language model does for each token, in whole numbers.

use super::{Arguments, Cost, Grid, Prepared, SLOT_STRIDE, pattern, slot_words};
use crate::error::Code;

pub(super) fn begin_token<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let cache = args.u64()?;
    let [layers, capacity, words, position, sequence] =
        [args.u32()?, args.u32()?, args.u32()?, args.u32()?, args.u32()?].map(u64::from);
    let input = args.u64()?;
    let input_words = u64::from(args.u32()?);
    let at = move |layer: u64, word: u64| (layer * capacity + position) * words + word;
    let entries = layers * words;
    let end = if entries == 0 { 0 } else { at(layers - 1, words - 1) + 1 };
    let cache = args.at_address::<u32>(cache, end)?;
    let input = args.at_address::<u32>(input, input_words)?;
    let cost = Cost { bytes: (entries + input_words) * 4, ..Cost::default() };
    let sequence = sequence as u32;
    Ok(Prepared::new(cost, move || {
        for layer in 0..layers {
            for word in 0..words {
                let at = at(layer, word);
                cache.set(at, pattern(at as u32).wrapping_add(sequence));
            }
        }
        let first = (position as u32).wrapping_mul(input_words as u32);
        input.fill(|index| pattern(first.wrapping_add(index as u32)).wrapping_add(sequence));
    }))
}

pub(super) fn project<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (weights, input) = (args.u64()?, args.u64()?);
    let (rows, quads) = (u64::from(args.u32()?), u64::from(args.u32()?));
    let output = args.words::<i32>(rows)?;
    let row_bytes = quads * 16;
    let weights = args.at_address::<i8>(weights, rows.saturating_mul(row_bytes))?;
    let input = args.at_address::<i8>(input, row_bytes)?;
    let cost = Cost { bytes: rows * row_bytes + row_bytes + rows * 4, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        let input = input.list(0..row_bytes);
        for row in 0..rows {
            let (mut sum, first) = (0_i32, row * row_bytes);
            weights.each(first..first + row_bytes, |index, weight| {
                let product = i32::from(weight) * i32::from(input[(index - first) as usize]);
                sum = sum.wrapping_add(product);
            });
            output.set(row, sum);
        }
    }))
}

pub(super) fn attend<'a>(args: &mut Arguments<'a>, grid: &Grid) -> Result<Prepared<'a>, Code> {
    let (cache, quads) = (args.u64()?, args.u64()?);
    let quads_per_entry = u64::from(args.u32()?);
    let sums = args.u64()?;
    let slots = args.u32()?;
    let cache = args.at_address::<u32>(cache, quads.saturating_mul(4))?;
    let sums = args.at_address::<u32>(sums, slot_words(slots))?;
    let cost = Cost { bytes: quads * 16, ..Cost::default() };
    let Grid { blocks, threads, .. } = *grid;
    Ok(Prepared::new(cost, move || {
        if slots == 0 || blocks == 0 || threads == 0 || quads_per_entry == 0 {
            return;
        }
        let query: Vec<u32> = (0..quads_per_entry as u32 * 4).map(pattern).collect();
        let mut totals = vec![0_u32; slots as usize];
        let (mut at, mut block) = (0, 0);
        while at < quads {
            let end = (at + threads).min(quads);
            let mut sum = 0_u32;
            let mut word = at % quads_per_entry * 4;
            cache.each(at * 4..end * 4, |_, value| {
                sum = sum.wrapping_add(value.wrapping_mul(query[word as usize]));
                word = if word + 1 == query.len() as u64 { 0 } else { word + 1 };
            });
            let slot = (block % u64::from(slots)) as usize;
            totals[slot] = totals[slot].wrapping_add(sum);
            block = (block + 1) % blocks;
            at = end;
        }
        for (slot, total) in totals.into_iter().enumerate() {
            sums.add(slot as u64 * SLOT_STRIDE, total);
        }
    }))
}
