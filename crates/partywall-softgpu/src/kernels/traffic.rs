//! `kernels/memory.cu`: pointer chases, and streaming reads and writes.

use super::{Arguments, Cost, Grid, Prepared, SLOT_STRIDE, slot_words};
use crate::error::Code;

/// A dependent read, nanoseconds: from memory on an H200, an estimate between its L2 and its farthest memory.
const LINK_NS: f64 = 600.0;

pub(super) fn chase<'a>(args: &mut Arguments<'a>, grid: &Grid) -> Result<Prepared<'a>, Code> {
    let (address, nodes, stride) = (args.u64()?, args.u32()?, args.u32()?);
    let last = u64::from(nodes.saturating_sub(1)) * u64::from(stride);
    let links = args.at_address::<u32>(address, if nodes == 0 { 0 } else { last + 1 })?;
    let cursors = args.u64()?;
    let (chains, steps) = (args.u32()?, args.u32()?);
    let chains = u64::from(chains).min(grid.blocks * grid.threads);
    let cursors = args.at_address::<u32>(cursors, chains)?;
    // A read brings in a sector of 32 bytes.
    let cost = Cost {
        bytes: chains * u64::from(steps) * 32,
        chain_ns: f64::from(steps) * LINK_NS,
        ..Cost::default()
    };
    let mask = nodes.wrapping_sub(1);
    Ok(Prepared::new(cost, move || {
        if nodes == 0 {
            return;
        }
        for chain in 0..chains {
            let mut node = cursors.get(chain) & mask;
            for _ in 0..steps {
                node = links.get(u64::from(node) * u64::from(stride)) & mask;
            }
            cursors.set(chain, node);
        }
    }))
}

pub(super) fn read<'a>(args: &mut Arguments<'a>, grid: &Grid) -> Result<Prepared<'a>, Code> {
    let (address, count, passes) = (args.u64()?, args.u64()?, args.u32()?);
    let words = args.at_address::<u32>(address, count.saturating_mul(4))?;
    let sums = args.u64()?;
    let slots = args.u32()?;
    let sums = args.at_address::<u32>(sums, slot_words(slots))?;
    let cost = Cost { bytes: count.saturating_mul(16).saturating_mul(u64::from(passes)), ..Cost::default() };
    let Grid { blocks, threads, .. } = *grid;
    Ok(Prepared::new(cost, move || {
        if slots == 0 || blocks == 0 || threads == 0 {
            return;
        }
        // Block b takes quads b * threads to (b + 1) * threads, and so on from the width of the grid on.
        let mut totals = vec![0_u32; slots as usize];
        let mut at = 0;
        let mut block = 0;
        while at < count {
            let end = (at + threads).min(count);
            let mut sum = 0_u32;
            words.each(at * 4..end * 4, |_, word| sum = sum.wrapping_add(word));
            let slot = (block % u64::from(slots)) as usize;
            totals[slot] = totals[slot].wrapping_add(sum);
            block = (block + 1) % blocks;
            at = end;
        }
        // Every pass reads the same.
        for (slot, total) in totals.into_iter().enumerate() {
            sums.add(slot as u64 * SLOT_STRIDE, total.wrapping_mul(passes));
        }
    }))
}

pub(super) fn read_write<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let (address, count, passes) = (args.u64()?, args.u64()?, args.u32()?);
    let words = args.at_address::<u32>(address, count.saturating_mul(4))?;
    let cost = Cost { bytes: count.saturating_mul(32).saturating_mul(u64::from(passes)), ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        words.each(0..count * 4, |index, word| words.set(index, word.wrapping_add(passes)));
    }))
}
