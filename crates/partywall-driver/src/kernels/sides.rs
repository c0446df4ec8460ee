//! Kernels that show where memory lives: how long atomic operations take, and which of them get in each other's way.

use super::Argument::{Part, U32};
use super::{Kernels, Shape};
use crate::error::{DriverError, check_range};
use crate::stream::Stream;

/// Bytes of a place.
pub const LINE_BYTES: u64 = 128;

/// The second place of a pair where there is none.
pub const NO_PLACE: u32 = u32::MAX;

/// Atomic operations on places of some memory, which stays as it is.
#[derive(Debug, Clone, Copy)]
pub struct Atomics<'a> {
    /// The memory.
    pub memory: super::Part<'a>,
    /// Places as u32: lines of [`LINE_BYTES`] from the beginning of the memory.
    pub places: super::Part<'a>,
    /// How many places, or pairs of them.
    pub count: u32,
    /// Operations on each, at least 1.
    pub length: u32,
    /// What it took, a u32 for each place or pair.
    pub times: super::Part<'a>,
}

impl Atomics<'_> {
    /// Lines of the memory, once it is clear that everything fits.
    fn lines(&self, places: u64) -> Result<u32, DriverError> {
        check_range("places of atomic operations", 0, 4 * places, self.places.bytes().0)?;
        check_range("times of atomic operations", 0, 4 * u64::from(self.count), self.times.bytes().0)?;
        if self.length == 0 {
            return Err(DriverError::Invalid(
                "0 atomic operations on each place: ask for at least one".to_owned(),
            ));
        }
        let lines = self.memory.bytes().0 / LINE_BYTES;
        // 512 GiB, which no GPU has.
        u32::try_from(lines).ok().filter(|lines| *lines < NO_PLACE).ok_or_else(|| {
            DriverError::Invalid(format!("{lines} lines of memory: less than {NO_PLACE} can be looked at"))
        })
    }
}

impl Kernels {
    /// Submits chains of atomic operations, in which each waits for the one before: what one takes, in 256ths of a cycle of the
    /// SM. `blocks` share the places. Places beyond the memory are left out, and their times stay.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where places or times have no room, [`DriverError::Invalid`] for no operations, or what the
    /// driver returned.
    pub fn chain_atomics(
        &self,
        stream: &Stream,
        blocks: u32,
        atomics: &Atomics<'_>,
    ) -> Result<(), DriverError> {
        let lines = atomics.lines(u64::from(atomics.count))?;
        let Atomics { memory, places, count, length, times } = *atomics;
        let arguments =
            [Part(memory), Part(places), U32(count), U32(lines), U32(length), U32(0), Part(times)];
        // SAFETY: it reads `count` places and writes as many times, for which there is room, and adds 0 to the first word of lines
        // that are within the memory.
        unsafe { self.launch("chain_atomics", stream, Shape::new(blocks, 32)?, 0, &arguments) }
    }

    /// Submits streams of atomic operations to pairs of places, one pair after the other: half of the blocks to each, or half of
    /// the blocks to the first and none to the second where that is [`NO_PLACE`]. A time is what the slowest block takes, in cycles. It is
    /// the largest of what the u32 was before and what was measured.
    ///
    /// All blocks have to be there at the same time, or they wait for ever: so a shape of no more blocks than SMs of the stream, on an
    /// otherwise idle device. The u32 of `arrived` begins as 0.
    ///
    /// # Errors
    /// As [`Kernels::chain_atomics`].
    pub fn contend(
        &self,
        stream: &Stream,
        shape: Shape,
        atomics: &Atomics<'_>,
        arrived: super::Part<'_>,
    ) -> Result<(), DriverError> {
        arrived.needs("count of arrivals", 4)?;
        let lines = atomics.lines(2 * u64::from(atomics.count))?;
        let Atomics { memory, places, count, length, times } = *atomics;
        let (lines, length) = (U32(lines), U32(length));
        let arguments =
            [Part(memory), Part(places), U32(count), lines, length, U32(0), Part(arrived), Part(times)];
        // SAFETY: it reads twice `count` places and changes as many times as `count`, for which there is room, counts in a u32 of
        // its own, and adds 0 to words of lines that are within the memory.
        unsafe { self.launch("contend", stream, shape, 0, &arguments) }
    }
}
