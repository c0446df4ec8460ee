//! Launching kernels.

use std::sync::Arc;

use crate::abi::{In, LaunchConfig};
use crate::api::{ready, stream};
use crate::code::Function;
use crate::context::SmSet;
use crate::engine::graph::kind;
use crate::engine::operation::{Launch, Operation};
use crate::error::Code;
use crate::process::Process;

/// Markers in the list `extra`.
const END: usize = 0;
const BUFFER: usize = 1;
const BUFFER_SIZE: usize = 2;

/// `CU_LAUNCH_ATTRIBUTE_COOPERATIVE`, and where its value lies in an attribute of 72 bytes.
const COOPERATIVE: u32 = 2;
const ATTRIBUTE_BYTES: usize = 72;

api! {
    fn cuLaunchKernel / cuLaunchKernel_ptsz (
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, on: u64,
        parameters: In<u64>, extra: In<u64>,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
        launch(function, shape, on, parameters, extra)
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz (
        config: In<LaunchConfig>, function: u64, parameters: In<u64>, extra: In<u64>,
    ) {
        let config = config.get()?;
        let shape = Shape { grid: config.grid, block: config.block, shared: config.shared };
        if attributes(&config)?.contains(&COOPERATIVE) {
            fits_together(function, &shape)?;
        }
        launch(function, shape, config.stream, parameters, extra)
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz (
        function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, on: u64, parameters: In<u64>,
    ) {
        let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared };
        fits_together(function, &shape)?;
        launch(function, shape, on, parameters, In::from_address(0))
    }
}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) grid: [u32; 3],
    pub(super) block: [u32; 3],
    pub(super) shared: u32,
}

fn launch(function: u64, shape: Shape, on: u64, parameters: In<u64>, extra: In<u64>) -> Result<(), Code> {
    let process = ready()?;
    let stream = stream(process, on)?;
    let launch = made(process, function, shape, parameters, extra, stream.place.sms)?;
    stream.submit(process, kind::KERNEL, Operation::Launch(Arc::new(launch))).map(|_| ())
}

/// A launch, if the kernel takes this shape and these parameters.
pub(super) fn made(
    process: &Process,
    function: u64,
    shape: Shape,
    parameters: In<u64>,
    extra: In<u64>,
    sms: SmSet,
) -> Result<Launch, Code> {
    let function = process.objects.functions.get(function)?;
    let threads: u64 = shape.block.iter().map(|size| u64::from(*size)).product();
    let empty = shape.grid.iter().chain(&shape.block).any(|size| *size == 0);
    let flat = shape.grid[1] <= 65_535 && shape.grid[2] <= 65_535 && shape.grid[0] <= i32::MAX as u32;
    if empty || !flat || threads > u64::from(function.threads_max()) || !function.allows_dynamic(shape.shared)
    {
        return Err(Code::INVALID_VALUE);
    }
    let arguments = arguments(&function, parameters, extra)?;
    Ok(Launch { function, grid: shape.grid, block: shape.block, shared: shape.shared, arguments, sms })
}

/// The parameters as the kernel gets them, copied now.
fn arguments(function: &Function, parameters: In<u64>, extra: In<u64>) -> Result<Vec<u8>, Code> {
    let mut bytes = vec![0_u8; function.parameter_bytes()];
    if bytes.is_empty() {
        return Ok(bytes);
    }
    if !parameters.is_null() {
        let pointers = parameters.list(function.kernel.parameters.len())?;
        for (pointer, (offset, size)) in pointers.into_iter().zip(&function.kernel.parameters) {
            take(pointer, &mut bytes[*offset..offset + size])?;
        }
        return Ok(bytes);
    }
    // Pairs of a marker and its value, up to the end.
    let (mut buffer, mut size) = (None, None);
    for pair in 0..4 {
        let words = extra.list(2 * pair + 1)?;
        let marker = words[2 * pair] as usize;
        if marker == END {
            break;
        }
        let value = extra.list(2 * pair + 2)?[2 * pair + 1];
        match marker {
            BUFFER => buffer = Some(value),
            BUFFER_SIZE => size = Some(value),
            _ => return Err(Code::INVALID_VALUE),
        }
    }
    let (Some(buffer), Some(size)) = (buffer, size) else { return Err(Code::INVALID_VALUE) };
    let mut given = [0_u8; 8];
    take(size, &mut given)?;
    if u64::from_ne_bytes(given) < bytes.len() as u64 {
        return Err(Code::INVALID_VALUE);
    }
    take(buffer, &mut bytes)?;
    Ok(bytes)
}

/// Copies bytes that the caller points to.
fn take(pointer: u64, into: &mut [u8]) -> Result<(), Code> {
    if pointer == 0 {
        return Err(Code::INVALID_VALUE);
    }
    // SAFETY: the caller of a launch passes pointers to as many bytes as the kernel's parameters have.
    unsafe { std::ptr::copy_nonoverlapping(pointer as *const u8, into.as_mut_ptr(), into.len()) };
    Ok(())
}

/// The attributes of a launch that are set, by number.
fn attributes(config: &LaunchConfig) -> Result<Vec<u32>, Code> {
    let mut found = Vec::new();
    for index in 0..config.attribute_count as usize {
        let mut bytes = [0_u8; ATTRIBUTE_BYTES];
        take(config.attributes + (index * ATTRIBUTE_BYTES) as u64, &mut bytes)?;
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        // The value comes behind the number and four bytes of nothing.
        if word(0) != COOPERATIVE || word(8) != 0 {
            found.push(word(0));
        }
    }
    Ok(found)
}

/// A cooperative launch needs all its blocks on the SMs at once.
fn fits_together(function: u64, shape: &Shape) -> Result<(), Code> {
    let process = ready()?;
    let function = process.objects.functions.get(function)?;
    let threads: u32 = shape.block.iter().product();
    let each = super::functions::fitting(process, &function, threads as i32, shape.shared as usize);
    let blocks: u64 = shape.grid.iter().map(|size| u64::from(*size)).product();
    let room = u64::from(each.max(0) as u32) * u64::from(process.current()?.sms().count());
    if blocks <= room { Ok(()) } else { Err(Code::COOPERATIVE_LAUNCH_TOO_LARGE) }
}
