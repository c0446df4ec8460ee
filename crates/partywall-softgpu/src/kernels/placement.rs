//! `kernels/placement.cu`: where blocks run.
//!
//! Blocks go to the SMs of the launch in turn. Only `meet` and `stay` occupy them: an SM that a block with more than half of the
//! shared memory fills takes no second such block, also not one of another launch or process, until the first is done
//! ([`Device::fill_sms`](crate::device::Device)).

use super::{Arguments, Cost, Grid, Prepared};
use crate::clock;
use crate::context::SmSet;
use crate::error::Code;
use crate::process::Process;

/// Blocks that an SM takes at a time.
const BLOCKS_PER_SM: u64 = 32;

/// More dynamic shared memory than this, and an SM holds one block: half of the least that an SM has, 100 KiB.
const HALF_OF_SHARED: u32 = 50 << 10;

/// Both write a word of shared memory: without any, that is a fault.
const SHARED_LEAST: u32 = 4;

/// How often blocks look whether they may leave, and those that wait for an SM whether there is one, nanoseconds.
const LOOK_NS: u64 = 20_000;
const ROOM_NS: u64 = 200_000;

/// What `stay` says of a block.
const THERE: u32 = 1;
const LEFT: u32 = 2;
const GAVE_UP: u32 = 3;

pub(super) fn count_by_sm<'a>(args: &mut Arguments<'a>, grid: &Grid) -> Result<Prepared<'a>, Code> {
    let (counts, ids, stay) = (args.u64()?, args.u32()?, args.u64()?);
    let counts = args.at_address::<u32>(counts, u64::from(ids))?;
    let sms: Vec<u32> = grid.sms.iter().collect();
    let blocks = grid.blocks;
    let rounds = blocks.div_ceil(BLOCKS_PER_SM * sms.len().max(1) as u64);
    let cost = Cost { chain_ns: stay as f64 * rounds as f64, ..Cost::default() };
    Ok(Prepared::new(cost, move || {
        let on = |sm: &&u32| **sm < ids;
        sms.iter().cycle().take(blocks as usize).filter(on).for_each(|sm| {
            counts.add(u64::from(*sm), 1);
        });
    }))
}

pub(super) fn meet<'a>(
    args: &mut Arguments<'a>,
    grid: &Grid,
    process: &'a Process,
) -> Result<Prepared<'a>, Code> {
    has_shared(grid)?;
    let arrived = args.words::<u32>(1)?;
    let (expected, patience) = (args.u32()?, args.u64()?);
    let met = args.words::<u32>(1)?;
    let told = {
        let arrived = arrived.clone();
        move || arrived.load(0) >= expected
    };
    let arrive = move |_block| {
        arrived.add(0, 1);
    };
    let leave = move |_block, told: bool| {
        if told {
            met.add(0, 1);
        }
    };
    let blocks = Blocks { grid: *grid, patience, arrive, told, leave };
    Ok(Prepared { waits: true, ..Prepared::new(Cost::default(), move || blocks.run(process)) })
}

pub(super) fn stay<'a>(
    args: &mut Arguments<'a>,
    grid: &Grid,
    process: &'a Process,
) -> Result<Prepared<'a>, Code> {
    has_shared(grid)?;
    let states = args.words::<u32>(grid.blocks)?;
    let (go, patience) = (args.words::<u32>(1)?, args.u64()?);
    let ended = states.clone();
    let told = move || go.load(0) != 0;
    let arrive = move |block| states.put(block, THERE);
    let leave = move |block, told: bool| ended.put(block, if told { LEFT } else { GAVE_UP });
    let blocks = Blocks { grid: *grid, patience, arrive, told, leave };
    Ok(Prepared { waits: true, ..Prepared::new(Cost::default(), move || blocks.run(process)) })
}

fn has_shared(grid: &Grid) -> Result<(), Code> {
    if grid.shared < SHARED_LEAST { Err(Code::ILLEGAL_ADDRESS) } else { Ok(()) }
}

/// Blocks that stay until they are told to leave, or their patience is over.
struct Blocks<A, T, L> {
    grid: Grid,
    /// Nanoseconds.
    patience: u64,
    arrive: A,
    told: T,
    /// Gets whether the block was told to.
    leave: L,
}

/// A block that is there.
struct Block {
    number: u64,
    /// The SM that it fills, if it does.
    sm: Option<u32>,
    until: u64,
}

impl<A: Fn(u64), T: Fn() -> bool, L: Fn(u64, bool)> Blocks<A, T, L> {
    fn run(self, process: &Process) {
        let mut there: Vec<Block> = Vec::new();
        let (mut next, mut look_at) = (0, 0);
        while (next < self.grid.blocks || !there.is_empty()) && process.check().is_ok() {
            let now = clock::now();
            if next < self.grid.blocks && now >= look_at {
                look_at = now + ROOM_NS;
                for sm in self.room(process, self.grid.blocks - next, there.len() as u64) {
                    there.push(Block { number: next, sm, until: now + self.patience });
                    (self.arrive)(next);
                    next += 1;
                }
            }
            let told = (self.told)();
            let gone: Vec<Block> =
                there.extract_if(.., |block| told || clock::now() >= block.until).collect();
            gone.iter().for_each(|block| (self.leave)(block.number, told));
            empty(process, &gone);
            if gone.is_empty() {
                clock::pause(LOOK_NS);
            } else {
                look_at = 0;
            }
        }
        empty(process, &there);
    }

    /// Where up to `most` more blocks go now.
    fn room(&self, process: &Process, most: u64, there: u64) -> Vec<Option<u32>> {
        if self.grid.shared > HALF_OF_SHARED {
            // Where the lock cannot be taken, the folder is gone, and with it everybody else.
            let taken = process.device.fill_sms(self.grid.sms, most).unwrap_or(SmSet::NONE);
            return taken.iter().map(Some).collect();
        }
        let room = (u64::from(self.grid.sms.count()) * BLOCKS_PER_SM).saturating_sub(there);
        vec![None; most.min(room) as usize]
    }
}

fn empty(process: &Process, blocks: &[Block]) {
    if !blocks.is_empty() {
        let _ = process.device.empty_sms(SmSet::of(blocks.iter().filter_map(|block| block.sm)));
    }
}
