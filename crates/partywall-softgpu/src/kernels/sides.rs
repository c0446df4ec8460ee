//! `kernels/sides.cu`: how long atomic operations take, by where memory lives.
//!
//! A simulated GPU has as many sides as the catalogue says, two at most. The mask is that of an H200 (measured), and so are the times. Which SMs
//! are on which side, the constants of pages and the slices are made up, and the same each time.

use super::{Arguments, Cost, Grid, Prepared};
use crate::error::Code;
use crate::memory::addresses::Kind;
use crate::process::Process;

const LINE_BYTES: u64 = 128;
const LINE_WORDS: u64 = LINE_BYTES / 4;

/// Bits of an offset within 2 MiB whose parity turns the side.
const MASK: u64 = 0xab000;
const PAGE_BITS: u32 = 21;

/// Slices of each side.
const SLICES: u64 = 47;

/// Cycles of an atomic operation on the own side, how many more to the other one, and by where the slice is.
const NEAR: u64 = 310;
const FAR: u64 = 200;
const WAY: u64 = 40;

/// Cycles of 256 operations of each thread of 16 blocks, and how much more where both streams share a slice.
const STREAM: u64 = 9_600;
const SHARED: u64 = 9_100;
const STREAM_LENGTH: u64 = 256;

/// Cycles a nanosecond of these kernels; only their own time hangs on it.
const CYCLES_PER_NS: f64 = 1.9;

/// Where a line lives.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    side: u64,
    slice: u64,
}

pub(super) fn chain_atomics<'a>(
    args: &mut Arguments<'a>,
    grid: &Grid,
    process: &'a Process,
) -> Result<Prepared<'a>, Code> {
    let (memory, places) = (args.u64()?, args.u64()?);
    let [count, lines, length, _nothing] = [args.u32()?, args.u32()?, args.u32()?, args.u32()?];
    let places = args.at_address::<u32>(places, u64::from(count))?;
    args.at_address::<u32>(memory, u64::from(lines) * LINE_WORDS)?;
    let times = args.words::<u32>(u64::from(count))?;
    let blocks = grid.blocks.min(u64::from(count)).max(1);
    let chain = u64::from(count).div_ceil(blocks) * u64::from(length) * (NEAR + FAR);
    let cost = Cost { chain_ns: chain as f64 / CYCLES_PER_NS, ..Cost::default() };
    let sms: Vec<u32> = grid.sms.iter().collect();
    Ok(Prepared::new(cost, move || {
        for index in 0..u64::from(count) {
            let line = places.get(index);
            let sm = sms.get((index % blocks) as usize % sms.len().max(1)).copied().unwrap_or_default();
            if line < lines {
                let place = place(process, memory + u64::from(line) * LINE_BYTES);
                times.set(index, (256 * cycles(process, sm, place)) as u32);
            }
        }
    }))
}

pub(super) fn contend<'a>(
    args: &mut Arguments<'a>,
    grid: &Grid,
    process: &'a Process,
) -> Result<Prepared<'a>, Code> {
    let (memory, pairs) = (args.u64()?, args.u64()?);
    let [count, lines, length, _nothing] = [args.u32()?, args.u32()?, args.u32()?, args.u32()?];
    let pairs = args.at_address::<u32>(pairs, 2 * u64::from(count))?;
    args.at_address::<u32>(memory, u64::from(lines) * LINE_WORDS)?;
    let arrived = args.words::<u32>(1)?;
    let times = args.words::<u32>(u64::from(count))?;
    let scale = u64::from(length);
    let cost = Cost {
        chain_ns: (u64::from(count) * (STREAM + SHARED) * scale / STREAM_LENGTH) as f64 / CYCLES_PER_NS,
        ..Cost::default()
    };
    let blocks = grid.blocks as u32;
    Ok(Prepared::new(cost, move || {
        for index in 0..u64::from(count) {
            arrived.add(0, blocks);
            let [one, other] = [0, 1].map(|which| pairs.get(2 * index + which));
            let at = |line: u32| place(process, memory + u64::from(line) * LINE_BYTES);
            let is_shared = one < lines && other < lines && at(one) == at(other);
            let taken = (STREAM + if is_shared { SHARED } else { 0 }) * scale / STREAM_LENGTH;
            times.set(index, times.get(index).max(taken as u32));
        }
    }))
}

/// Where an address lives: by its place in physical memory, so that all mappings of a page agree.
fn place(process: &Process, address: u64) -> Place {
    let physical = match process.memory.addresses.find(address) {
        Some(span) => match &span.kind {
            Kind::Mapped { physical, .. } => physical.place + (address - span.start),
            _ => address,
        },
        None => address,
    };
    let offset = physical & ((1 << PAGE_BITS) - 1);
    let constant = scattered(physical >> PAGE_BITS);
    let side =
        if has_two_sides(process) { (constant ^ u64::from((offset & MASK).count_ones())) & 1 } else { 0 };
    // 256 B in a row are in one slice.
    let slice = scattered((offset >> 8) ^ (constant >> 8 & 0x1fff)) % SLICES;
    Place { side, slice }
}

fn has_two_sides(process: &Process) -> bool {
    process.device.figures().gpu.sides.value > 1
}

/// What an operation takes from an SM: groups of two SMs are on one side and the other in turn.
fn cycles(process: &Process, sm: u32, place: Place) -> u64 {
    let is_far = has_two_sides(process) && u64::from(sm / 2 % 2) != place.side;
    let way = scattered(u64::from(sm) << 32 | place.side << 16 | place.slice) % WAY;
    NEAR + way + if is_far { FAR } else { 0 }
}

/// Another number for each, without an order: the finaliser of SplitMix64 (public domain).
fn scattered(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
