//! `kernels/placement.cu`: where blocks run.
//!
//! Blocks go to the SMs of the launch in turn. Only `meet` occupies them: an SM that a block with more than half of the shared
//! memory holds takes no second such block, also not one of another launch of this process, until the first is done.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Arguments, Cost, Grid, Prepared};
use crate::clock;
use crate::context::{SM_WORDS, SmSet};
use crate::error::Code;
use crate::process::Process;

/// Blocks that an SM takes at a time.
const BLOCKS_PER_SM: u64 = 32;

/// More dynamic shared memory than this, and an SM holds one block: half of the least that an SM has, 100 KiB.
const HALF_OF_SHARED: u32 = 50 << 10;

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
    let arrived = args.words::<u32>(1)?;
    let (expected, patience) = (args.u32()?, args.u64()?);
    let met = args.words::<u32>(1)?;
    let grid = *grid;
    let work = move || {
        let alone = grid.shared > HALF_OF_SHARED;
        let mut left = grid.blocks;
        while left > 0 && process.check().is_ok() {
            let held = if alone { hold(grid.sms, left) } else { SmSet::NONE };
            let here = if alone {
                u64::from(held.count())
            } else {
                left.min(u64::from(grid.sms.count()) * BLOCKS_PER_SM)
            };
            if here == 0 {
                wait_for_room();
                continue;
            }
            arrived.add(0, here as u32);
            let end = clock::now() + patience;
            let all = loop {
                if arrived.load(0) >= expected {
                    break true;
                }
                if clock::now() >= end {
                    break false;
                }
                clock::pause(20_000);
            };
            if all {
                met.add(0, here as u32);
            }
            let_go(held);
            left -= here;
        }
    };
    Ok(Prepared { waits: true, ..Prepared::new(Cost::default(), work) })
}

/// SMs that blocks of this process fill.
static HELD: Mutex<SmSet> = Mutex::new(SmSet::NONE);
static FREED: Condvar = Condvar::new();

/// Takes up to `most` SMs of a set that nobody holds.
fn hold(sms: SmSet, most: u64) -> SmSet {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    let free = SmSet(std::array::from_fn::<u64, SM_WORDS, _>(|word| sms.0[word] & !held.0[word]));
    let taken = SmSet::of(free.iter().take(usize::try_from(most).unwrap_or(usize::MAX)));
    *held = held.union(taken);
    taken
}

fn let_go(sms: SmSet) {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    *held = SmSet(std::array::from_fn(|word| held.0[word] & !sms.0[word]));
    FREED.notify_all();
}

fn wait_for_room() {
    let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    drop(FREED.wait_timeout(held, Duration::from_millis(5)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sm_is_held_once() {
        // SMs that no other test uses.
        let first = hold(SmSet::of(200..210), 20);
        assert_eq!(first.count(), 10);
        assert_eq!(hold(SmSet::of(205..215), 20), SmSet::of(210..215));
        let_go(SmSet::of(200..215));
        assert_eq!(hold(SmSet::of(200..210), 3).count(), 3);
        let_go(SmSet::of(200..210));
    }
}
