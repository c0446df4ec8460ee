//! Doing what an entry of a stream says.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::clock;
use crate::device::link::Direction;
use crate::device::turns::Turn;
use crate::engine::operation::{Copy, Fill, Launch, Operation, WaitValue, Way};
use crate::error::Code;
use crate::kernels;
use crate::process::{Injected, Process};

/// What any operation of the device takes besides its bytes, nanoseconds: about what a small fill or copy shows.
const OVERHEAD_NS: u64 = 1_500;

/// How long a stream that waits for a word in memory sleeps between two looks, nanoseconds: at first and at most.
const POLL_NS: (u64, u64) = (2_000, 50_000);

/// Does an operation that can begin at the device's time `ready`; the time at which it ended.
pub(crate) fn run(process: &'static Process, operation: &Operation, ready: u64) -> Result<u64, Code> {
    match operation {
        Operation::Nothing => Ok(ready),
        Operation::Launch(launch) => run_launch(process, launch, ready),
        Operation::Copy(copy) => run_copy(process, copy, ready),
        Operation::Fill(fill) => run_fill(process, fill, ready),
        Operation::Record(recording) => {
            recording.pass(ready);
            Ok(ready)
        }
        Operation::RecordAgain(event) => {
            event.record().pass(ready);
            Ok(ready)
        }
        Operation::Wait(mark) => Ok(mark.wait(process)?.max(ready)),
        Operation::WaitAgain(event) => match event.mark() {
            Some(mark) => Ok(mark.wait(process)?.max(ready)),
            None => Ok(ready),
        },
        Operation::WaitValue(wait) => wait_value(process, wait).map(|now| now.max(ready)),
        Operation::WriteValue { address, value, wide } => {
            if !process.memory.addresses.covers(*address, if *wide { 8 } else { 4 }, false) {
                return Err(Code::ILLEGAL_ADDRESS);
            }
            store(*address, *value, *wide);
            Ok(ready)
        }
        Operation::Host { function, data } => {
            if let Some(function) = function {
                // SAFETY: the program gave function and pointer for exactly this call.
                unsafe { function(data.0) };
            }
            Ok(clock::now().max(ready))
        }
        Operation::Callback { function, stream, data } => {
            if let Some(function) = function {
                // SAFETY: as above; nothing has gone wrong before it.
                unsafe { function(*stream, 0, data.0) };
            }
            Ok(clock::now().max(ready))
        }
        Operation::Graph(nodes) => {
            let mut time = ready;
            for node in nodes.iter() {
                process.check()?;
                time = run(process, &node.operation, time)?;
            }
            Ok(time)
        }
        Operation::GivePool { pool, address } => {
            pool.give(*address);
            Ok(ready)
        }
    }
}

/// Lets go of what waits for an operation that will not be done, because a fault ended the contexts.
pub(crate) fn abandon(operation: &Operation, code: Code) {
    match operation {
        Operation::Record(recording) => recording.pass(clock::now()),
        Operation::Callback { function: Some(function), stream, data } => {
            // SAFETY: the program gave function and pointer for exactly this call; it is told what went wrong.
            unsafe { function(*stream, code.0, data.0) };
        }
        _ => {}
    }
}

fn run_launch(process: &'static Process, launch: &Arc<Launch>, ready: u64) -> Result<u64, Code> {
    match process.inject_at_launch() {
        None => {}
        Some(Injected::IllegalAccess) => return Err(Code::ILLEGAL_ADDRESS),
        Some(Injected::Assert) => return Err(Code::ASSERT),
        Some(Injected::DeviceLost) => {
            process.device.lose();
            return Err(Code::DEVICE_UNAVAILABLE);
        }
        Some(Injected::Hang) => loop {
            clock::pause(10_000_000);
            process.check()?;
        },
    }
    let prepared = kernels::prepare(launch, process)?;
    let duration = prepared.cost.nanoseconds(launch, process.device.figures());
    let start = take_turn(process, ready, duration)?;
    process.device.count_traffic(prepared.cost.bytes);
    let waits = prepared.waits;
    (prepared.work)();
    clock::wait_until(start + duration);
    Ok(if waits { clock::now() } else { start + duration })
}

fn take_turn(process: &Process, ready: u64, duration: u64) -> Result<u64, Code> {
    loop {
        match process
            .device
            .ask_turn(process.group(), ready, clock::now(), duration)
            .map_err(|_| Code::OPERATING_SYSTEM)?
        {
            Turn::Runs(start) => return Ok(start),
            Turn::Wait(until) => clock::wait_until(until),
        }
        process.check()?;
    }
}

fn run_copy(process: &Process, copy: &Copy, ready: u64) -> Result<u64, Code> {
    let bytes = copy.bytes();
    let over_link =
        |direction| process.device.reserve_link(direction, ready, bytes).map_err(|_| Code::OPERATING_SYSTEM);
    let end = match copy.way {
        _ if bytes == 0 => ready,
        Way::ToDevice => over_link(Direction::ToDevice)?,
        Way::ToHost => over_link(Direction::ToHost)?,
        Way::OnDevice => {
            // Every byte is read and written.
            ready
                + OVERHEAD_NS
                + (2.0 * bytes as f64 / process.device.figures().gpu.stream_bytes_per_ns()) as u64
        }
        Way::OnHost => ready + OVERHEAD_NS,
    };
    // What was freed or unmapped since it was submitted is a fault of the device, and none of this process.
    let known = |address, reach, device| process.memory.addresses.covers(address, reach, device);
    let (from, to) = (&copy.source, &copy.destination);
    let (from_reach, to_reach) =
        (from.reach(copy.width, copy.height, copy.depth), to.reach(copy.width, copy.height, copy.depth));
    let from_device = matches!(copy.way, Way::ToHost | Way::OnDevice);
    let to_device = matches!(copy.way, Way::ToDevice | Way::OnDevice);
    if (from_device && !known(from.address, from_reach, true))
        || (to_device && !known(to.address, to_reach, true))
    {
        return Err(Code::ILLEGAL_ADDRESS);
    }
    for plane in 0..copy.depth {
        for row in 0..copy.height {
            let at = to.address + plane * to.plane + row * to.pitch;
            let offset = plane * from.plane + row * from.pitch;
            let source = match &copy.staged {
                Some(bytes) => bytes.as_ptr() as u64 + offset,
                None => from.address + offset,
            };
            // SAFETY: device memory was checked just now; host memory is the caller's, who promised it for as long as the copy
            // takes. Both may be the same allocation, so this moves.
            unsafe { std::ptr::copy(source as *const u8, at as *mut u8, copy.width as usize) };
        }
    }
    clock::wait_until(end);
    Ok(end)
}

fn run_fill(process: &Process, fill: &Fill, ready: u64) -> Result<u64, Code> {
    let width = fill.width * u64::from(fill.element);
    let reach = if fill.height == 0 || width == 0 { 0 } else { (fill.height - 1) * fill.pitch + width };
    if reach == 0 {
        return Ok(ready);
    }
    if !process.memory.addresses.covers(fill.address, reach, false) {
        return Err(Code::ILLEGAL_ADDRESS);
    }
    for row in 0..fill.height {
        let at = fill.address + row * fill.pitch;
        // SAFETY: the rows were checked just now, and the caller aligned them to the element (checked when submitted).
        unsafe {
            match fill.element {
                1 => std::ptr::write_bytes(at as *mut u8, fill.value as u8, fill.width as usize),
                2 => (0..fill.width)
                    .for_each(|index| (at as *mut u16).add(index as usize).write(fill.value as u16)),
                _ => (0..fill.width).for_each(|index| (at as *mut u32).add(index as usize).write(fill.value)),
            }
        }
    }
    let bytes = (width * fill.height) as f64;
    let end = ready + OVERHEAD_NS + (bytes / process.device.figures().gpu.stream_bytes_per_ns()) as u64;
    clock::wait_until(end);
    Ok(end)
}

fn wait_value(process: &Process, wait: &WaitValue) -> Result<u64, Code> {
    let mut pause = POLL_NS.0;
    loop {
        if !process.memory.addresses.covers(wait.address, if wait.wide { 8 } else { 4 }, false) {
            return Err(Code::ILLEGAL_ADDRESS);
        }
        if wait.condition.holds(load(wait.address, wait.wide), wait.value, wait.wide) {
            return Ok(clock::now());
        }
        clock::pause(pause);
        pause = (pause * 2).min(POLL_NS.1);
        process.check()?;
    }
}

fn load(address: u64, wide: bool) -> u64 {
    // SAFETY: callers checked that the memory is known and accessible, and submitting checked the alignment.
    unsafe {
        if wide {
            AtomicU64::from_ptr(address as *mut u64).load(Ordering::Acquire)
        } else {
            u64::from(AtomicU32::from_ptr(address as *mut u32).load(Ordering::Acquire))
        }
    }
}

fn store(address: u64, value: u64, wide: bool) {
    // SAFETY: as for `load`.
    unsafe {
        if wide {
            AtomicU64::from_ptr(address as *mut u64).store(value, Ordering::Release);
        } else {
            AtomicU32::from_ptr(address as *mut u32).store(value as u32, Ordering::Release);
        }
    }
}
