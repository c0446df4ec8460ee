//! The probe kernels: PTX that is embedded, and launchers that are safe to call.
//!
//! The sources are in `kernels/` at the root of the repository; `cargo xtask kernels` makes the PTX from them. A launcher
//! checks everything that decides what its kernel will touch: sizes, alignment and the shape of the launch. What a
//! kernel leaves in a buffer is plain numbers, so kernels that race on a buffer give wrong results and nothing worse.

mod arena;
mod launchers;
mod placement;
mod sides;
mod signatures;

use std::fmt;

use partywall_core::units::Bytes;

use crate::context::Context;
use crate::error::DriverError;
use crate::memory::{DeviceBuffer, PinnedBuffer};
use crate::module::{Function, KernelArg, Module};
use crate::stream::Stream;

pub use arena::{
    Access, CHUNK_BYTES, Colored, Direction, Linear, Load, PIECE_BYTES, Passes, QUAD_BYTES, Range,
};
pub use launchers::{LinkCycle, Policy, Product, Token};
pub use placement::{Meeting, Stay, Stayed};
pub use sides::{Atomics, LINE_BYTES, NO_PLACE};
use signatures::{Parameter, SIGNATURES, SOURCES};

/// Slots of sums are this far apart in bytes, so that two never share a cache line; `SLOT_STRIDE` in `prelude.cuh`.
pub const SLOT_BYTES: u64 = 256;

/// The u32 that belongs at an index; `pattern` in `prelude.cuh` is the same function.
pub const fn pattern(index: u32) -> u32 {
    let index = index ^ (index >> 16);
    let index = index.wrapping_mul(0x85eb_ca6b);
    let index = index ^ (index >> 13);
    let index = index.wrapping_mul(0xc2b2_ae35);
    index ^ (index >> 16)
}

/// The whole number, from -2 to 2, that stands at an index of a buffer of halves.
pub const fn small(index: u32) -> i32 {
    (pattern(index) % 5) as i32 - 2
}

/// A number that [`Kernels::step_once`] has stepped `steps` times, from `value`.
pub fn stepped(value: u32, steps: u64) -> u32 {
    linear_steps(value, 1_664_525, 1_013_904_223, steps)
}

/// `steps` times x -> x * multiplier + increment modulo 2^32, in as many multiplications as `steps` has bits.
fn linear_steps(value: u32, multiplier: u32, increment: u32, mut steps: u64) -> u32 {
    // The map of 2^k steps is linear, too: (a, b) stands for x -> a x + b.
    let (mut a, mut b, mut value) = (multiplier, increment, value);
    while steps > 0 {
        if steps % 2 == 1 {
            value = value.wrapping_mul(a).wrapping_add(b);
        }
        b = b.wrapping_mul(a).wrapping_add(b);
        a = a.wrapping_mul(a);
        steps /= 2;
    }
    value
}

/// What [`Kernels::multiply_add`] leaves for the threads whose index modulo 8 is `start`.
pub fn multiplied(start: u32, iterations: u32) -> f32 {
    let mut x = 0.0625 * (start % 8) as f32;
    for _ in 0..iterations {
        x = x.mul_add(x, -1.9);
    }
    x
}

/// How many blocks of how many threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    blocks: u32,
    threads: u32,
}

impl Shape {
    /// Most blocks: more than any GPU holds at a time, and few enough that thread numbers fit 32 bits.
    pub const BLOCKS_MAX: u32 = 1 << 20;

    /// A shape of whole warps.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] unless there are 1 to [`Shape::BLOCKS_MAX`] blocks of 32 to 1024 threads, a multiple of
    /// 32.
    pub fn new(blocks: u32, threads: u32) -> Result<Self, DriverError> {
        let whole_warps = (32..=1024).contains(&threads) && threads.is_multiple_of(32);
        if !(1..=Self::BLOCKS_MAX).contains(&blocks) || !whole_warps {
            let limits = "1 to 1048576 blocks of 32, 64, ... 1024 threads are possible";
            return Err(DriverError::Invalid(format!("{blocks} blocks of {threads} threads: {limits}")));
        }
        Ok(Self { blocks, threads })
    }

    /// Blocks.
    pub const fn blocks(self) -> u32 {
        self.blocks
    }

    /// Threads of a block.
    pub const fn threads(self) -> u32 {
        self.threads
    }

    /// Threads of all blocks.
    pub const fn all_threads(self) -> u64 {
        self.blocks as u64 * self.threads as u64
    }
}

/// A part of a device buffer that begins at a multiple of 16 bytes, as the widest accesses of the kernels need.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    buffer: &'a DeviceBuffer,
    offset: u64,
    bytes: u64,
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part")
            .field("offset", &self.offset)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<'a> Part<'a> {
    /// All of a buffer.
    pub fn all(buffer: &'a DeviceBuffer) -> Self {
        // Device allocations begin at multiples of 256 bytes.
        Self { buffer, offset: 0, bytes: buffer.len() }
    }

    /// `bytes` bytes from `offset` on.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or [`DriverError::Invalid`] for an offset that is no multiple of 16.
    pub fn new(buffer: &'a DeviceBuffer, offset: u64, bytes: u64) -> Result<Self, DriverError> {
        crate::error::check_range("part of a buffer", offset, bytes, buffer.len())?;
        if !offset.is_multiple_of(16) {
            let what = format!("a part of a buffer that begins at byte {offset}: use a multiple of 16");
            return Err(DriverError::Invalid(what));
        }
        Ok(Self { buffer, offset, bytes })
    }

    /// Its length.
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.bytes)
    }

    const fn words(&self) -> u64 {
        self.bytes / 4
    }

    const fn quads(&self) -> u64 {
        self.bytes / 16
    }

    fn address(&self) -> u64 {
        self.buffer.address() + self.offset
    }

    /// At least this many bytes, or an error that names the part.
    fn needs(&self, what: &'static str, bytes: u64) -> Result<(), DriverError> {
        crate::error::check_range(what, 0, bytes, self.bytes)
    }

    /// The slots that fit.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where not one does.
    fn slots(&self) -> Result<u32, DriverError> {
        self.needs("slots of sums", SLOT_BYTES)?;
        Ok(u32::try_from(self.bytes / SLOT_BYTES).unwrap_or(u32::MAX))
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy)]
enum Argument<'a> {
    Part(Part<'a>),
    Pinned(&'a PinnedBuffer),
    U32(u32),
    U64(u64),
}

impl Argument<'_> {
    const fn parameter(&self) -> Parameter {
        match self {
            Self::U32(_) => Parameter::U32,
            Self::U64(_) | Self::Part(_) | Self::Pinned(_) => Parameter::U64,
        }
    }

    const fn raw(&self) -> KernelArg<'_> {
        match self {
            Self::Part(part) => KernelArg::BufferAt(part.buffer, part.offset),
            Self::Pinned(buffer) => KernelArg::Pinned(buffer),
            Self::U32(value) => KernelArg::U32(*value),
            Self::U64(value) => KernelArg::U64(*value),
        }
    }
}

/// All probe kernels, loaded into a context. They run in any stream of that context and of its green contexts.
pub struct Kernels {
    /// In the order of [`SIGNATURES`].
    functions: Vec<Function>,
    context: Context,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Kernels {
    /// Loads the PTX, which the driver compiles for the GPU: a fraction of a second, less when it is in its cache.
    ///
    /// # Errors
    /// What the driver returned: [`DriverError::Cuda`] on GPUs before Volta, which cannot run the PTX.
    pub fn load(context: &Context) -> Result<Self, DriverError> {
        let modules: Vec<Module> =
            SOURCES.iter().map(|(_, ptx)| context.module(ptx)).collect::<Result<_, _>>()?;
        let mut functions = Vec::with_capacity(SIGNATURES.len());
        for signature in SIGNATURES {
            let module = SOURCES.iter().zip(&modules).find(|((source, _), _)| *source == signature.source);
            let missing = || DriverError::Invalid(format!("no kernels called {}", signature.source));
            functions.push(module.ok_or_else(missing)?.1.function(signature.name)?);
        }
        Ok(Self { functions, context: context.clone() })
    }

    /// How many blocks of this shape and with this much shared memory an SM holds at a time.
    ///
    /// # Errors
    /// What the driver returned, or [`DriverError::Invalid`] where there is no such kernel.
    pub fn blocks_per_sm(&self, kernel: &str, threads: u32, shared: Bytes) -> Result<u32, DriverError> {
        self.function(kernel)?.0.max_active_blocks(threads, shared.0 as u32)
    }

    fn function(&self, name: &str) -> Result<(&Function, &'static [Parameter]), DriverError> {
        let found = SIGNATURES.iter().zip(&self.functions).find(|(signature, _)| signature.name == name);
        let (signature, function) =
            found.ok_or_else(|| DriverError::Invalid(format!("no kernel called {name}")))?;
        Ok((function, signature.parameters))
    }

    /// Submits a kernel.
    ///
    /// # Safety
    /// The kernel stays within the parts that it is given, for these numbers and this shape.
    unsafe fn launch(
        &self,
        name: &str,
        stream: &Stream,
        shape: Shape,
        shared: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), DriverError> {
        let (function, parameters) = self.function(name)?;
        if !arguments.iter().map(Argument::parameter).eq(parameters.iter().copied()) {
            return Err(DriverError::Invalid(format!("the arguments are not those of the kernel {name}")));
        }
        // Not a `Vec`: some tenants do nothing but launch.
        let mut raw = [KernelArg::U32(0); signatures::PARAMETERS_MAX];
        for (raw, argument) in raw.iter_mut().zip(arguments) {
            *raw = argument.raw();
        }
        let raw = raw.get(..arguments.len()).unwrap_or_default();
        let (grid, block) = ((shape.blocks, 1, 1), (shape.threads, 1, 1));
        // SAFETY: number and types of the arguments are the kernel's (checked above against its signature, which a test
        // holds against the PTX). The caller promises that it stays inside the parts; buffers whose work is not done are
        // freed by the driver after it, and a graph keeps them. Kernels that race write plain numbers.
        unsafe { function.launch(stream, grid, block, shared, raw) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_pattern_is_the_finaliser_of_murmur_hash_3() {
        // Its published test vectors for a hash of nothing: fmix32 of the seed.
        assert_eq!([0, 1, 0xffff_ffff].map(pattern), [0, 0x514e_28b7, 0x81f1_6f39]);
        assert!((0..1000).map(small).all(|value| (-2..=2).contains(&value)));
    }

    #[test]
    fn chaotic_numbers_stay_in_their_interval_and_do_not_settle() {
        for start in 0..8 {
            let late: Vec<f32> = (10_000..10_100).map(|iterations| multiplied(start, iterations)).collect();
            assert!(late.iter().all(|x| x.abs() < 2.0), "{late:?}");
            let distinct: std::collections::BTreeSet<u32> = late.iter().map(|x| x.to_bits()).collect();
            assert_eq!(distinct.len(), 100, "start {start}");
        }
    }

    #[test]
    fn shapes_are_whole_warps() {
        for (blocks, threads) in [(0, 32), (1, 0), (1, 33), (1, 1056), (Shape::BLOCKS_MAX + 1, 32)] {
            assert!(Shape::new(blocks, threads).is_err(), "{blocks} x {threads}");
        }
        assert_eq!(Shape::new(132, 1024).unwrap().all_threads(), 135_168);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn many_steps_are_steps_one_by_one(value: u32, steps in 0u64..500) {
            let slow = (0..steps).fold(value, |x, _| x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            prop_assert_eq!(stepped(value, steps), slow);
        }
    }
}
