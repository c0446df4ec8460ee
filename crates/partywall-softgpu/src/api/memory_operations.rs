//! Streams that wait for words in memory and write them.

use crate::abi::{In, MemoryOperation};
use crate::api::graph_nodes::Batch;
use crate::api::{ready, stream, submit};
use crate::engine::operation::{Condition, Operation, WaitValue};
use crate::error::Code;
use crate::process::Process;

/// Most operations of a batch, as documented.
const BATCH: u32 = 256;

api! {
    fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz (on: u64, address: u64, value: u32, flags: u32) {
        wait(on, address, u64::from(value), flags, false)
    }

    fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz (on: u64, address: u64, value: u32, flags: u32) {
        wait(on, address, u64::from(value), flags, false)
    }

    fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz (on: u64, address: u64, value: u64, flags: u32) {
        wait(on, address, value, flags, true)
    }

    fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz (on: u64, address: u64, value: u64, flags: u32) {
        wait(on, address, value, flags, true)
    }

    fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz (on: u64, address: u64, value: u32, flags: u32) {
        write(on, address, u64::from(value), flags, false)
    }

    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz (on: u64, address: u64, value: u32, flags: u32) {
        write(on, address, u64::from(value), flags, false)
    }

    fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz (on: u64, address: u64, value: u64, flags: u32) {
        write(on, address, value, flags, true)
    }

    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz (on: u64, address: u64, value: u64, flags: u32) {
        write(on, address, value, flags, true)
    }

    fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz (on: u64, count: u32, list: In<MemoryOperation>, flags: u32) {
        batch(on, count, list, flags)
    }

    fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz (on: u64, count: u32, list: In<MemoryOperation>, flags: u32) {
        batch(on, count, list, flags)
    }
}

fn wait(on: u64, address: u64, value: u64, flags: u32, wide: bool) -> Result<(), Code> {
    let process = ready()?;
    stream(process, on)?;
    submit(process, on, waiting(process, address, value, flags, wide)?)
}

fn write(on: u64, address: u64, value: u64, flags: u32, wide: bool) -> Result<(), Code> {
    let process = ready()?;
    stream(process, on)?;
    submit(process, on, writing(process, address, value, flags, wide)?)
}

fn waiting(process: &Process, address: u64, value: u64, flags: u32, wide: bool) -> Result<Operation, Code> {
    let condition = Condition::of(flags).ok_or(Code::INVALID_VALUE)?;
    known(process, address, wide)?;
    Ok(Operation::WaitValue(WaitValue { address, value, wide, condition }))
}

fn writing(process: &Process, address: u64, value: u64, flags: u32, wide: bool) -> Result<Operation, Code> {
    // The only flag leaves a barrier out, which this one always has.
    if flags > 1 {
        return Err(Code::INVALID_VALUE);
    }
    known(process, address, wide)?;
    Ok(Operation::WriteValue { address, value, wide })
}

/// Device memory or pinned host memory, at a multiple of the word's size.
fn known(process: &Process, address: u64, wide: bool) -> Result<(), Code> {
    let size = if wide { 8 } else { 4 };
    let known = address.is_multiple_of(size) && process.memory.addresses.covers(address, size, false);
    if known { Ok(()) } else { Err(Code::INVALID_VALUE) }
}

fn batch(on: u64, count: u32, list: In<MemoryOperation>, flags: u32) -> Result<(), Code> {
    let process = ready()?;
    stream(process, on)?;
    // All are looked at before the first is submitted.
    let operations = operations(process, count, list, flags)?;
    operations.into_iter().try_for_each(|operation| submit(process, on, operation))
}

/// The operations of a node of a graph.
pub(super) fn list_of(process: &Process, node: &Batch) -> Result<Vec<Operation>, Code> {
    operations(process, node.count, node.list, node.flags)
}

fn operations(
    process: &Process,
    count: u32,
    list: In<MemoryOperation>,
    flags: u32,
) -> Result<Vec<Operation>, Code> {
    if count > BATCH || flags != 0 {
        return Err(Code::INVALID_VALUE);
    }
    let low = |value: u64| value & u64::from(u32::MAX);
    let one = |one: &MemoryOperation| match one.operation {
        1 => waiting(process, one.address, low(one.value), one.flags, false),
        2 => writing(process, one.address, low(one.value), one.flags, false),
        4 => waiting(process, one.address, one.value, one.flags, true),
        5 => writing(process, one.address, one.value, one.flags, true),
        // Barriers and flushes: everything is in order here.
        3 | 6 => Ok(Operation::Nothing),
        _ => Err(Code::INVALID_VALUE),
    };
    list.list(count as usize)?.iter().map(one).collect()
}
