//! What is known of a kernel: attributes, parameters, occupancy.

use std::sync::atomic::Ordering::Relaxed;

use crate::abi::{In, LaunchConfig, Out};
use crate::api::devices::{shared_per_sm, threads_per_sm};
use crate::api::ready;
use crate::code::Function;
use crate::error::Code;
use crate::process::Process;

/// Registers of a thread: not known without compiling; a plausible number.
const REGISTERS: i32 = 32;

/// Blocks that fit on an SM in any case.
const BLOCKS_PER_SM: i32 = 32;

api! {
    fn cuFuncLoad(function: u64) {
        ready()?.objects.functions.get(function).map(|_| ())
    }

    fn cuFuncIsLoaded(state: Out<u32>, function: u64) {
        ready()?.objects.functions.get(function)?;
        state.set(1)
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: u64) {
        let process = ready()?;
        value.set(attribute_of(process, &*process.objects.functions.get(function)?, attribute)?)
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: u64, _device: i32) {
        let process = ready()?;
        value.set(attribute_of(process, &*process.objects.functions.get(kernel)?, attribute)?)
    }

    fn cuFuncSetAttribute(function: u64, attribute: u32, value: i32) {
        let process = ready()?;
        set(process, &*process.objects.functions.get(function)?, attribute, value)
    }

    fn cuKernelSetAttribute(attribute: u32, value: i32, kernel: u64, _device: i32) {
        let process = ready()?;
        set(process, &*process.objects.functions.get(kernel)?, attribute, value)
    }

    fn cuFuncSetCacheConfig(function: u64, config: u32) {
        ready()?.objects.functions.get(function)?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuKernelSetCacheConfig(kernel: u64, config: u32, _device: i32) {
        ready()?.objects.functions.get(kernel)?;
        if config > 3 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncSetSharedMemConfig(function: u64, config: u32) {
        ready()?.objects.functions.get(function)?;
        if config > 2 { Err(Code::INVALID_VALUE) } else { Ok(()) }
    }

    fn cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(function, index, offset, size)
    }

    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        parameter(kernel, index, offset, size)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: u64, threads: i32, dynamic: usize) {
        blocks.set(occupancy(function, threads, dynamic)?)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks: Out<i32>, function: u64, threads: i32, dynamic: usize, _flags: u32,
    ) {
        blocks.set(occupancy(function, threads, dynamic)?)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, function: u64, of_size: BlockToShared, dynamic: usize, limit: i32,
    ) {
        potential(grid, block, function, of_size, dynamic, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, function: u64, of_size: BlockToShared, dynamic: usize, limit: i32, _flags: u32,
    ) {
        potential(grid, block, function, of_size, dynamic, limit)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: Out<usize>, function: u64, blocks: i32, _threads: i32) {
        let process = ready()?;
        let function = process.objects.functions.get(function)?;
        if blocks <= 0 {
            return Err(Code::INVALID_VALUE);
        }
        let each = shared_bytes(process) / blocks - RESERVED;
        bytes.set(each.saturating_sub(function.kernel.shared as i32).max(0) as usize)
    }

    fn cuOccupancyMaxActiveClusters(clusters: Out<i32>, function: u64, config: In<LaunchConfig>) {
        let process = ready()?;
        let config = config.get()?;
        let threads = config.block.iter().product::<u32>() as i32;
        let blocks = occupancy(function, threads, config.shared as usize)?;
        clusters.set(blocks * process.sms().count() as i32)
    }
}

/// A function of the program: the shared memory of a block of so many threads.
pub(crate) type BlockToShared = Option<unsafe extern "C" fn(i32) -> usize>;

/// Shared memory that the system takes of each block, bytes.
const RESERVED: i32 = 1 << 10;

fn shared_bytes(process: &Process) -> i32 {
    let (major, minor) = process.device.figures().compute_capability();
    shared_per_sm(major, minor) << 10
}

fn attribute_of(process: &Process, function: &Function, attribute: u32) -> Result<i32, Code> {
    let (major, minor) = process.device.figures().compute_capability();
    let version = (major * 10 + minor) as i32;
    Ok(match attribute {
        0 => function.threads_max() as i32,
        1 => function.kernel.shared as i32,
        4 => REGISTERS,
        5 | 6 => version,
        8 => function.dynamic_max.load(Relaxed),
        9 => function.carveout.load(Relaxed),
        2 | 3 | 7 | 10..=15 => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

fn set(process: &Process, function: &Function, attribute: u32, value: i32) -> Result<(), Code> {
    const DYNAMIC: u32 = 8;
    const CARVEOUT: u32 = 9;
    match attribute {
        DYNAMIC => {
            let most = shared_bytes(process) - RESERVED - function.kernel.shared as i32;
            if !(0..=most).contains(&value) {
                return Err(Code::INVALID_VALUE);
            }
            function.dynamic_max.store(value, Relaxed);
        }
        CARVEOUT if (-1..=100).contains(&value) => function.carveout.store(value, Relaxed),
        // Clusters: noted by the real driver, without meaning here.
        10..=15 => {}
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

fn parameter(function: u64, index: usize, offset: Out<usize>, size: Out<usize>) -> Result<(), Code> {
    let function = ready()?.objects.functions.get(function)?;
    let (at, bytes) = *function.kernel.parameters.get(index).ok_or(Code::INVALID_VALUE)?;
    offset.set(at)?;
    size.offer(bytes);
    Ok(())
}

fn occupancy(function: u64, threads: i32, dynamic: usize) -> Result<i32, Code> {
    let process = ready()?;
    let function = process.objects.functions.get(function)?;
    if threads <= 0 {
        return Err(Code::INVALID_VALUE);
    }
    Ok(fitting(process, &function, threads, dynamic))
}

/// Blocks that fit on an SM at a time.
pub(super) fn fitting(process: &Process, function: &Function, threads: i32, dynamic: usize) -> i32 {
    let (major, minor) = process.device.figures().compute_capability();
    let shared = function.kernel.shared as usize + dynamic + RESERVED as usize;
    if threads > function.threads_max() as i32 {
        return 0;
    }
    let by_threads = threads_per_sm(major, minor) / (threads.max(1) as u32).next_multiple_of(32) as i32;
    let by_shared = i32::try_from(shared_bytes(process) as usize / shared).unwrap_or(BLOCKS_PER_SM);
    by_threads.min(by_shared).min(BLOCKS_PER_SM)
}

fn potential(
    grid: Out<i32>,
    block: Out<i32>,
    function: u64,
    of_size: BlockToShared,
    dynamic: usize,
    limit: i32,
) -> Result<(), Code> {
    let process = ready()?;
    let function = process.objects.functions.get(function)?;
    let most = function.threads_max() as i32;
    let most = if limit > 0 { limit.min(most) } else { most };
    let shared = |threads| match of_size {
        // SAFETY: the program gave the function for exactly this question.
        Some(ask) => unsafe { ask(threads) },
        None => dynamic,
    };
    let sizes = (1..=most / 32).map(|warps| warps * 32);
    let best = sizes
        .max_by_key(|threads| (fitting(process, &function, *threads, shared(*threads)) * threads, *threads));
    let best = best.unwrap_or(most);
    let blocks = fitting(process, &function, best, shared(best));
    block.set(best)?;
    grid.set(blocks * process.sms().count() as i32)
}
