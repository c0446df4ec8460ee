//! `kernels/arena.cu`: copies into and out of memory of one color, and readers and writers that keep to it.

use super::{Arguments, Cost, Grid, Prepared, SLOT_STRIDE, Words};
use crate::clock;
use crate::error::Code;
use crate::process::Process;

const QUAD: u64 = 16;
const PIECE: u64 = 1 << 10;
const CHUNK: u64 = 64 << 10;
const WARP: u64 = 32;

/// How often streams look whether they may leave at least, nanoseconds.
const LOOK_NS: u64 = 1_000_000;

/// Which of two neighbouring stretches a byte is in.
#[derive(Debug, Clone, Copy)]
struct Arena {
    mapped: u64,
    mask: u32,
    odd: bool,
}

/// Bytes that are in one stretch.
struct Run {
    /// The arena's first byte of it, and where that is.
    at: u64,
    place: u64,
    bytes: u64,
}

impl Arena {
    fn of(args: &mut Arguments<'_>) -> Result<Self, Code> {
        let (mapped, mask, odd) = (args.u64()?, args.u32()?, args.u32()? != 0);
        if mask == 0 { Err(Code::ILLEGAL_ADDRESS) } else { Ok(Self { mapped, mask, odd }) }
    }

    fn stretch(&self) -> u64 {
        1 << self.mask.trailing_zeros()
    }

    fn place(&self, at: u64) -> u64 {
        let even = self.mapped + 2 * at - (at & (self.stretch() - 1));
        let is_right = ((even as u32 & self.mask).count_ones() % 2 == 1) == self.odd;
        if is_right { even } else { even + self.stretch() }
    }

    /// A range, stretch by stretch.
    fn runs(self, at: u64, bytes: u64) -> impl Iterator<Item = Run> {
        let (end, stretch) = (at + bytes, self.stretch());
        let mut next = at;
        std::iter::from_fn(move || {
            let at = next;
            next = (at - at % stretch + stretch).min(end);
            (at < end).then(|| Run { at, place: self.place(at), bytes: next - at })
        })
    }

    /// The mapped bytes that a range is in, and how far behind the mapping's beginning they begin.
    fn memory<T>(&self, args: &Arguments<'_>, at: u64, bytes: u64) -> Result<(u64, Words<T>), Code> {
        let end = at.checked_add(bytes).ok_or(Code::ILLEGAL_ADDRESS)?;
        let first = self.mapped + 2 * (at - at % self.stretch());
        let last = self.mapped + 2 * end.next_multiple_of(self.stretch());
        Ok((first, args.at_address(first, (last - first) / size_of::<T>() as u64)?))
    }
}

pub(super) fn copy<'a>(args: &mut Arguments<'a>, into: bool) -> Result<Prepared<'a>, Code> {
    let arena = Arena::of(args)?;
    let (at, bytes, linear) = (args.u64()?, args.u64()?, args.u64()?);
    let (first, memory) = arena.memory::<u8>(args, at, bytes)?;
    let skipped = at % QUAD;
    let linear = args.at_address::<u8>(linear, skipped + bytes)?;
    let cost = Cost { bytes: 2 * bytes, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        for run in arena.runs(at, bytes) {
            let (colored, plain) = (run.place - first, run.at - at + skipped);
            if into {
                memory.copy(colored, &linear, plain, run.bytes);
            } else {
                linear.copy(plain, &memory, colored, run.bytes);
            }
        }
    }))
}

pub(super) fn fill<'a>(args: &mut Arguments<'a>) -> Result<Prepared<'a>, Code> {
    let arena = Arena::of(args)?;
    let (at, bytes, word) = (args.u64()?, args.u64()?, args.u32()?);
    let (first, memory) = arena.memory::<u8>(args, at, bytes)?;
    let cost = Cost { bytes, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        for run in arena.runs(at, bytes) {
            (0..run.bytes).for_each(|index| memory.set(run.place - first + index, word as u8));
        }
    }))
}

/// Words of a range and slots of sums.
struct Reading {
    arena: Arena,
    from: u64,
    bytes: u64,
    sums: u64,
    first: u64,
    memory: Words<u32>,
    slots: (u64, Words<u32>),
}

impl Reading {
    fn of(args: &mut Arguments<'_>, grid: &Grid, before: u64) -> Result<Self, Code> {
        let arena = Arena::of(args)?;
        let (from, bytes, sums) = (args.u64()?, args.u64()?, args.u64()?);
        let (first, memory) = arena.memory(args, from, bytes)?;
        let begin = sums.checked_sub(before).ok_or(Code::ILLEGAL_ADDRESS)?;
        let slots = arena.memory(args, begin, before + grid.blocks * SLOT_STRIDE * 4)?;
        Ok(Self { arena, from, bytes, sums, first, memory, slots })
    }

    /// Adds to a word of the arena.
    fn add(&self, at: u64, value: u32) {
        self.slots.1.add((self.arena.place(at) - self.slots.0) / 4, value);
    }

    /// What all blocks read, `passes` times.
    fn read(&self, grid: &Grid, passes: u32) {
        let warps = grid.threads / WARP;
        let mut totals = vec![0_u32; grid.blocks as usize];
        for piece in 0..self.bytes / PIECE {
            let mut sum = 0_u32;
            for run in self.arena.runs(self.from + piece * PIECE, PIECE) {
                let word = (run.place - self.first) / 4;
                self.memory.each(word..word + run.bytes / 4, |_, word| sum = sum.wrapping_add(word));
            }
            let block = piece % (grid.blocks * warps) / warps;
            totals[block as usize] = totals[block as usize].wrapping_add(sum);
        }
        for (block, total) in totals.into_iter().enumerate() {
            self.add(self.sums + block as u64 * SLOT_STRIDE * 4, total.wrapping_mul(passes));
        }
    }
}

pub(super) fn read<'a>(args: &mut Arguments<'a>, grid: &Grid) -> Result<Prepared<'a>, Code> {
    let reading = Reading::of(args, grid, 0)?;
    let cost = Cost { bytes: reading.bytes, ..Cost::default() };
    let grid = *grid;
    Ok(Prepared::new(cost, move || reading.read(&grid, 1)))
}

/// `nanoseconds`: what a cost comes to.
pub(super) fn passes<'a>(
    args: &mut Arguments<'a>,
    grid: &Grid,
    nanoseconds: impl Fn(&Cost) -> u64,
) -> Result<Prepared<'a>, Code> {
    let reading = Reading::of(args, grid, SLOT_STRIDE * 4)?;
    let (passes, _patience, times) = (args.u32()?, args.u64()?, args.u64()?);
    let times = args.at_address::<u64>(times, u64::from(passes) + 1)?;
    let each = nanoseconds(&Cost { bytes: reading.bytes, ..Cost::default() });
    let cost = Cost { chain_ns: each as f64 * f64::from(passes), ..Cost::default() };
    let grid = *grid;
    Ok(Prepared::new(cost, move || {
        reading.read(&grid, passes);
        reading.add(reading.sums - SLOT_STRIDE * 4, (passes + 1).wrapping_mul(grid.blocks as u32));
        let begin = clock::now();
        times.fill(|pass| begin + pass * each);
    }))
}

/// What a stream does with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
    ReadWrite,
}

pub(super) fn stream<'a>(
    args: &mut Arguments<'a>,
    grid: &Grid,
    process: &'a Process,
    access: Access,
    nanoseconds: impl Fn(&Cost) -> u64,
) -> Result<Prepared<'a>, Code> {
    let arena = Arena::of(args)?;
    let (from, bytes) = (args.u64()?, args.u64()?);
    let (first, memory) = arena.memory::<u32>(args, from, bytes)?;
    let go = args.words::<u32>(1)?;
    let progress = args.words::<u32>(grid.blocks)?;
    let (patience, every) = (args.u64()?, args.u32()?);
    let chunks = bytes / CHUNK;
    if chunks < grid.blocks {
        return Err(Code::ILLEGAL_ADDRESS);
    }
    let both = if access == Access::ReadWrite { 2 } else { 1 };
    let round = Cost { bytes: both * grid.blocks * u64::from(every) * CHUNK, ..Cost::default() };
    let each = nanoseconds(&round).max(LOOK_NS);
    let blocks = grid.blocks;
    let work = move || {
        let end = clock::now() + patience;
        let mut at: Vec<u64> = (0..blocks).collect();
        let (mut done, mut told) = (0_u32, false);
        while !told && process.check().is_ok() {
            let next = clock::now() + each;
            for _ in 0..every {
                for (block, chunk) in at.iter_mut().enumerate() {
                    if access != Access::Read {
                        for run in arena.runs(from + *chunk * CHUNK, CHUNK) {
                            let word = (run.place - first) / 4;
                            memory.each(word..word + run.bytes / 4, |index, word| {
                                let next = if access == Access::Write { done } else { word.wrapping_add(1) };
                                memory.set(index, next);
                            });
                        }
                    }
                    *chunk = if *chunk + blocks < chunks { *chunk + blocks } else { block as u64 };
                }
                done = done.wrapping_add(1);
            }
            (0..blocks).for_each(|block| progress.put(block, done));
            told = go.load(0) != 0 || clock::now() > end;
            if !told {
                clock::wait_until(next);
            }
        }
    };
    Ok(Prepared { waits: true, ..Prepared::new(Cost::default(), work) })
}
