//! `kernels/buffers.cu`: filling buffers with what can be checked, and checking them.

use super::{Arguments, Cost, Prepared, half_bits, pattern};
use crate::error::Code;

pub(super) fn fill_pattern<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (address, count, first, add) = (args.u64()?, args.u64()?, args.u32()?, args.u32()?);
    let words = args.at_address::<u32>(address, count)?;
    let cost = Cost { bytes: count * 4, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        words.fill(|index| pattern(first.wrapping_add(index as u32)).wrapping_add(add));
    }))
}

pub(super) fn count_wrong<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (address, count, first, add) = (args.u64()?, args.u64()?, args.u32()?, args.u32()?);
    let words = args.at_address::<u32>(address, count)?;
    let wrong = args.words::<u64>(1)?;
    let cost = Cost { bytes: count * 4, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        let mut found = 0;
        words.each(0..count, |index, word| {
            found += u64::from(word != pattern(first.wrapping_add(index as u32)).wrapping_add(add));
        });
        if found > 0 {
            wrong.add(0, found);
        }
    }))
}

pub(super) fn checksum<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (address, count) = (args.u64()?, args.u64()?);
    let words = args.at_address::<u32>(address, count)?;
    let sums = args.words::<u64>(2)?;
    let cost = Cost { bytes: count * 4, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        let (mut plain, mut weighted) = (0_u64, 0_u64);
        words.each(0..count, |index, word| {
            plain = plain.wrapping_add(u64::from(word));
            weighted = weighted.wrapping_add(u64::from(word).wrapping_mul(index + 1));
        });
        sums.add(0, plain);
        sums.add(1, weighted);
    }))
}

pub(super) fn fill_halves<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (address, count, first) = (args.u64()?, args.u64()?, args.u32()?);
    let halves = args.at_address::<u16>(address, count)?;
    let cost = Cost { bytes: count * 2, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        halves.fill(|index| half_bits((pattern(first.wrapping_add(index as u32)) % 5) as i32 - 2));
    }))
}

pub(super) fn fill_links<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (address, nodes, stride) = (args.u64()?, args.u32()?, args.u32()?);
    let (multiplier, increment) = (args.u32()?, args.u32()?);
    let last = u64::from(nodes.saturating_sub(1)) * u64::from(stride);
    let links = args.at_address::<u32>(address, if nodes == 0 { 0 } else { last + 1 })?;
    // Each node is in a sector of its own, of 32 bytes.
    let cost = Cost { bytes: u64::from(nodes) * 32, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        for node in 0..nodes {
            let next = node.wrapping_mul(multiplier).wrapping_add(increment) & (nodes - 1);
            links.set(u64::from(node) * u64::from(stride), next);
        }
    }))
}
