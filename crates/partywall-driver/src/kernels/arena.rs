//! Kernels for memory of one color: copies into and out of an arena, and readers and writers that keep to it.

use partywall_core::units::{Bytes, Nanos};

use super::Argument::{self, Pinned, U32, U64};
use super::{Kernels, Part, SLOT_BYTES, Shape};
use crate::error::{DriverError, check_range};
use crate::memory::PinnedBuffer;
use crate::stream::Stream;

/// Bytes of what copies move at a time: where a range of the arena begins in the middle of one, so does its copy.
pub const QUAD_BYTES: u64 = 16;

/// Bytes of the pieces that readers take, and of the chunks of [`Kernels::arena_stream`].
pub const PIECE_BYTES: u64 = 1 << 10;
/// See [`PIECE_BYTES`].
pub const CHUNK_BYTES: u64 = 64 << 10;

/// What is seen of mapped memory: of every two neighbouring stretches the one whose address has the right parity. Half of its bytes, counted from
/// 0 without gaps.
#[derive(Debug, Clone, Copy)]
pub struct Colored<'a> {
    memory: Part<'a>,
    mask: u32,
    odd: bool,
}

impl<'a> Colored<'a> {
    /// All of `memory`, seen where the bits of `mask` in an address have an odd number of ones, or an even one. The lowest bit of the mask
    /// says how long stretches are.
    ///
    /// # Errors
    /// [`DriverError::Invalid`] unless stretches are of [`PIECE_BYTES`] at least and the memory is whole pairs of them.
    pub fn new(memory: Part<'a>, mask: u32, odd: bool) -> Result<Self, DriverError> {
        // 0 has no lowest bit: then it is longer than any.
        let pair = 2_u64 << mask.trailing_zeros();
        let is_whole = memory.address().is_multiple_of(pair) && memory.bytes().0.is_multiple_of(pair);
        if mask == 0 || pair < 2 * PIECE_BYTES || !is_whole {
            return Err(DriverError::Invalid(format!(
                "{} at {:#x} cannot be seen by the parity of {mask:#x}: it takes whole pairs of stretches of 1KiB or more",
                memory.bytes(),
                memory.address()
            )));
        }
        Ok(Self { memory, mask, odd })
    }

    /// Bytes that are seen.
    pub const fn bytes(&self) -> Bytes {
        Bytes(self.memory.bytes().0 / 2)
    }

    fn check(&self, what: &'static str, at: u64, bytes: u64) -> Result<(), DriverError> {
        check_range(what, at, bytes, self.bytes().0)
    }

    fn arguments(&self) -> [Argument<'a>; 3] {
        [Argument::Part(self.memory), U32(self.mask), U32(u32::from(self.odd))]
    }
}

/// A range of what is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// From this byte on.
    pub at: u64,
    /// So many.
    pub bytes: u64,
}

/// What copies go to or come from.
#[derive(Debug, Clone, Copy)]
pub enum Linear<'a> {
    /// On the device.
    Device(Part<'a>),
    /// On the host, across the link.
    Host(&'a PinnedBuffer),
}

/// Which way a copy goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Into the arena.
    Scatter,
    /// Out of it.
    Gather,
}

/// How a [`Kernels::arena_stream`] goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// What it does.
    pub access: Access,
    /// Whether what it touches is the first to go when L2 needs room (`.cs`).
    pub evict_first: bool,
    /// Chunks of a block between two looks at the host's memory, at least 1; a look takes a microsecond or two.
    pub every: u32,
    /// How long blocks stay at most.
    pub patience: Nanos,
}

/// What a [`Kernels::arena_stream`] does with its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it.
    Write,
    /// Adds one to every word.
    ReadWrite,
}

/// Readers that go over a range again and again.
#[derive(Debug, Clone, Copy)]
pub struct Passes<'a> {
    /// Times.
    pub count: u32,
    /// How long blocks wait for each other before they give up.
    pub patience: Nanos,
    /// When each pass ended, u64 nanoseconds of the device's clock, after one for when the first began.
    pub times: Part<'a>,
}

impl Kernels {
    /// Submits a copy between a range of an arena and linear memory, whose byte `range.at % 16` belongs to the range's first.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`] where one of them is too short, or what the driver returned.
    pub fn arena_copy(
        &self,
        stream: &Stream,
        shape: Shape,
        (arena, range): (Colored<'_>, Range),
        direction: Direction,
        linear: Linear<'_>,
    ) -> Result<(), DriverError> {
        arena.check("range of an arena to copy", range.at, range.bytes)?;
        let room = match linear {
            Linear::Device(part) => part.bytes().0,
            Linear::Host(buffer) => buffer.len(),
        };
        check_range("linear memory of a copy", range.at % QUAD_BYTES, range.bytes, room)?;
        let linear = match linear {
            Linear::Device(part) => Argument::Part(part),
            Linear::Host(buffer) => Pinned(buffer),
        };
        let name = match direction {
            Direction::Scatter => "arena_scatter",
            Direction::Gather => "arena_gather",
        };
        let [mapped, mask, odd] = arena.arguments();
        let arguments = [mapped, mask, odd, U64(range.at), U64(range.bytes), linear];
        // SAFETY: translated, a range that is within what is seen stays within what is mapped; whole quads are moved only where all
        // of one is in the range, other bytes one by one, and the linear memory has room for both.
        unsafe { self.launch(name, stream, shape, 0, &arguments) }
    }

    /// Submits the setting of every byte of a range of an arena.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned.
    pub fn arena_fill(
        &self,
        stream: &Stream,
        shape: Shape,
        (arena, range): (Colored<'_>, Range),
        value: u8,
    ) -> Result<(), DriverError> {
        arena.check("range of an arena to fill", range.at, range.bytes)?;
        let [mapped, mask, odd] = arena.arguments();
        let arguments =
            [mapped, mask, odd, U64(range.at), U64(range.bytes), U32(u32::from_ne_bytes([value; 4]))];
        // SAFETY: as for `arena_copy`, without linear memory.
        unsafe { self.launch("arena_fill", stream, shape, 0, &arguments) }
    }

    /// Submits readers of a range, whose words they add, modulo 2^32, to sums in the arena: one for each block, [`SLOT_BYTES`] apart,
    /// from `sums` on.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for a range that is not of whole pieces, or what the driver returned.
    pub fn arena_read(
        &self,
        stream: &Stream,
        shape: Shape,
        (arena, range): (Colored<'_>, Range),
        sums: u64,
    ) -> Result<(), DriverError> {
        readable(&arena, range, shape, sums)?;
        let [mapped, mask, odd] = arena.arguments();
        let arguments = [mapped, mask, odd, U64(range.at), U64(range.bytes), U64(sums)];
        // SAFETY: pieces and slots are within what is seen, which was checked, and do not cross from one stretch to the next.
        unsafe { self.launch("arena_read", stream, shape, 0, &arguments) }
    }

    /// The same again and again, with the time of each pass. The word one slot before `sums` counts blocks, and begins as 0.
    ///
    /// All blocks have to be there at the same time: so no more than the stream's SMs hold.
    ///
    /// # Errors
    /// As [`Kernels::arena_read`], and where the times have no room.
    pub fn arena_passes(
        &self,
        stream: &Stream,
        shape: Shape,
        (arena, range): (Colored<'_>, Range),
        sums: u64,
        passes: Passes<'_>,
    ) -> Result<(), DriverError> {
        readable(&arena, range, shape, sums)?;
        check_range("slot that counts blocks", SLOT_BYTES, 0, sums)?;
        let most = u64::from(u32::MAX / shape.blocks());
        if u64::from(passes.count) >= most {
            return Err(DriverError::Invalid(format!(
                "{} passes: at most {most} can be counted",
                passes.count
            )));
        }
        check_range("times of passes", 0, 8 * (u64::from(passes.count) + 1), passes.times.bytes().0)?;
        let [mapped, mask, odd] = arena.arguments();
        let arguments = [
            mapped,
            mask,
            odd,
            U64(range.at),
            U64(range.bytes),
            U64(sums),
            U32(passes.count),
            U64(passes.patience.0),
            Argument::Part(passes.times),
        ];
        // SAFETY: as for `arena_read`; there is a slot before the sums, and room for a time for each pass and one more.
        unsafe { self.launch("arena_passes", stream, shape, 0, &arguments) }
    }

    /// Submits blocks that work through a range until the first u32 of `go` is not 0, or their patience is over. Block `b` says in the u32 `b` of
    /// `progress` how many chunks it has done, modulo 2^32. Both buffers belong to this launch until it is done.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], [`DriverError::Invalid`] for a range that is not of whole chunks, one for each block at least, or
    /// what the driver returned.
    pub fn arena_stream(
        &self,
        stream: &Stream,
        shape: Shape,
        (arena, range): (Colored<'_>, Range),
        load: Load,
        (go, progress): (&PinnedBuffer, &PinnedBuffer),
    ) -> Result<(), DriverError> {
        arena.check("range of an arena to work through", range.at, range.bytes)?;
        check_range("progress of blocks", 0, 4 * u64::from(shape.blocks()), progress.len())?;
        check_range("word that lets blocks go", 0, 4, go.len())?;
        let chunks = range.bytes / CHUNK_BYTES;
        let is_whole = range.bytes.is_multiple_of(CHUNK_BYTES) && range.at.is_multiple_of(PIECE_BYTES);
        let Load { access, evict_first, every, patience } = load;
        if !is_whole || chunks < u64::from(shape.blocks()) || every == 0 || patience == Nanos::ZERO {
            return Err(DriverError::Invalid(format!(
                "{} bytes for {} blocks: use whole chunks of 64KiB, one for each block at least, some of them between looks, and some patience",
                range.bytes,
                shape.blocks()
            )));
        }
        let name = match (access, evict_first) {
            (Access::Read, false) => "arena_stream_read_default",
            (Access::Read, true) => "arena_stream_read_evict_first",
            (Access::Write, false) => "arena_stream_write_default",
            (Access::Write, true) => "arena_stream_write_evict_first",
            (Access::ReadWrite, false) => "arena_stream_read_write_default",
            (Access::ReadWrite, true) => "arena_stream_read_write_evict_first",
        };
        let [mapped, mask, odd] = arena.arguments();
        let arguments = [
            mapped,
            mask,
            odd,
            U64(range.at),
            U64(range.bytes),
            Pinned(go),
            Pinned(progress),
            U64(patience.0),
            U32(every),
        ];
        // SAFETY: chunks are within the range, which is within what is seen; each block writes its own u32 of `progress`, for which
        // there is room, and reads one u32 of `go`.
        unsafe { self.launch(name, stream, shape, 0, &arguments) }
    }
}

fn readable(arena: &Colored<'_>, range: Range, shape: Shape, sums: u64) -> Result<(), DriverError> {
    arena.check("range of an arena to read", range.at, range.bytes)?;
    arena.check("slots of sums in an arena", sums, SLOT_BYTES * u64::from(shape.blocks()))?;
    let whole = |number: u64, of: u64| number.is_multiple_of(of);
    if whole(range.at, PIECE_BYTES) && whole(range.bytes, PIECE_BYTES) && whole(sums, SLOT_BYTES) {
        return Ok(());
    }
    Err(DriverError::Invalid(format!(
        "{} bytes from {} on, with sums at {sums}: use whole pieces of 1KiB, and slots at multiples of 256",
        range.bytes, range.at
    )))
}
