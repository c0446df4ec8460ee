//! Filling memory with a value.

use crate::api::{ready, submit, submit_and_wait};
use crate::engine::operation::{Fill, Operation};
use crate::error::Code;
use crate::process::Process;

api! {
    fn cuMemsetD8_v2 / cuMemsetD8_v2_ptds (to: u64, value: u8, count: usize) {
        submit_and_wait(ready()?, fill(ready()?, row(to, u32::from(value), 1, count))?)
    }

    fn cuMemsetD16_v2 / cuMemsetD16_v2_ptds (to: u64, value: u16, count: usize) {
        submit_and_wait(ready()?, fill(ready()?, row(to, u32::from(value), 2, count))?)
    }

    fn cuMemsetD32_v2 / cuMemsetD32_v2_ptds (to: u64, value: u32, count: usize) {
        submit_and_wait(ready()?, fill(ready()?, row(to, value, 4, count))?)
    }

    fn cuMemsetD8Async / cuMemsetD8Async_ptsz (to: u64, value: u8, count: usize, on: u64) {
        submit(ready()?, on, fill(ready()?, row(to, u32::from(value), 1, count))?)
    }

    fn cuMemsetD16Async / cuMemsetD16Async_ptsz (to: u64, value: u16, count: usize, on: u64) {
        submit(ready()?, on, fill(ready()?, row(to, u32::from(value), 2, count))?)
    }

    fn cuMemsetD32Async / cuMemsetD32Async_ptsz (to: u64, value: u32, count: usize, on: u64) {
        submit(ready()?, on, fill(ready()?, row(to, value, 4, count))?)
    }

    fn cuMemsetD2D8_v2 / cuMemsetD2D8_v2_ptds (to: u64, pitch: usize, value: u8, width: usize, height: usize) {
        submit_and_wait(ready()?, fill(ready()?, rows(to, pitch, u32::from(value), 1, (width, height)))?)
    }

    fn cuMemsetD2D16_v2 / cuMemsetD2D16_v2_ptds (to: u64, pitch: usize, value: u16, width: usize, height: usize) {
        submit_and_wait(ready()?, fill(ready()?, rows(to, pitch, u32::from(value), 2, (width, height)))?)
    }

    fn cuMemsetD2D32_v2 / cuMemsetD2D32_v2_ptds (to: u64, pitch: usize, value: u32, width: usize, height: usize) {
        submit_and_wait(ready()?, fill(ready()?, rows(to, pitch, value, 4, (width, height)))?)
    }

    fn cuMemsetD2D8Async / cuMemsetD2D8Async_ptsz (
        to: u64, pitch: usize, value: u8, width: usize, height: usize, on: u64,
    ) {
        submit(ready()?, on, fill(ready()?, rows(to, pitch, u32::from(value), 1, (width, height)))?)
    }

    fn cuMemsetD2D16Async / cuMemsetD2D16Async_ptsz (
        to: u64, pitch: usize, value: u16, width: usize, height: usize, on: u64,
    ) {
        submit(ready()?, on, fill(ready()?, rows(to, pitch, u32::from(value), 2, (width, height)))?)
    }

    fn cuMemsetD2D32Async / cuMemsetD2D32Async_ptsz (
        to: u64, pitch: usize, value: u32, width: usize, height: usize, on: u64,
    ) {
        submit(ready()?, on, fill(ready()?, rows(to, pitch, value, 4, (width, height)))?)
    }
}

fn row(address: u64, value: u32, element: u32, count: usize) -> Fill {
    Fill { address, pitch: 0, value, element, width: count as u64, height: 1 }
}

fn rows(address: u64, pitch: usize, value: u32, element: u32, (width, height): (usize, usize)) -> Fill {
    Fill { address, pitch: pitch as u64, value, element, width: width as u64, height: height as u64 }
}

/// The operation, if the memory is there and aligned.
pub(super) fn fill(process: &Process, fill: Fill) -> Result<Operation, Code> {
    process.current()?;
    let size = u64::from(fill.element);
    let width = fill.width.checked_mul(size).ok_or(Code::INVALID_VALUE)?;
    let reach = match (fill.height, width) {
        (0, _) | (_, 0) => return Ok(Operation::Fill(fill)),
        (height, width) => (height - 1).checked_mul(fill.pitch).and_then(|rows| rows.checked_add(width)),
    };
    let aligned =
        matches!(size, 1 | 2 | 4) && fill.address.is_multiple_of(size) && fill.pitch.is_multiple_of(size);
    let fits = fill.height == 1 || fill.pitch >= width;
    let there = process.memory.addresses.covers(fill.address, reach.ok_or(Code::INVALID_VALUE)?, false);
    if aligned && fits && there { Ok(Operation::Fill(fill)) } else { Err(Code::INVALID_VALUE) }
}
