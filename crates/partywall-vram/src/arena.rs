//! Memory of one color.
//!
//! Pages whose constants are known are mapped in turn, one that begins on the first side and one that begins on the second. So bit 21 of a mapped
//! address, the first above the offset within a page, is the constant of its page, and the parity of the address's bits in the mask with this one
//! is the side: no table is needed ([`crate::coloring`]).
//!
//! Two ways to share pages:
//!
//! - *private*: the other half of each page is used by nobody. What an arena takes is twice what it holds.
//! - *paired*: another process maps the same pages and uses the other half ([`Arena::export`], [`Arena::join`]). Nothing is lost, and
//!   nothing but the translation of every address keeps the two apart: so only for tenants whose every kernel is translated and fenced.
//!
//! A program sees an arena at addresses that are reserved and have nothing behind them: an access that was not translated is a fault, and
//! changes nothing of a neighbour's. Runtimes that ask the driver about each pointer, as Triton's does, take such addresses for wrong ones. For
//! them an arena is seen where it is mapped ([`Arena::in_place`]).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use partywall_core::units::Bytes;
use partywall_driver::kernels::{Colored, Direction, Kernels, Linear, Part, QUAD_BYTES, Range, Shape};
use partywall_driver::vmm::{AddressRange, PhysicalMemory};
use partywall_driver::{DeviceBuffer, DriverError, PinnedBuffer, Stream};

use crate::address::{OFFSET_BITS, PAGE_BYTES};
use crate::allocator::{Allocator, AllocatorError};
use crate::coloring::{Coloring, ColoringError};
use crate::pages::{ALIGNMENT, PagesError, Source, mapped};
use crate::sides::{Side, Sides};

/// Pinned memory that copies pass through.
const STAGING: Bytes = Bytes(8 << 20);

/// Places at such multiples are the cheapest to translate ([`crate::ptx`]).
const CHEAPEST: Bytes = Bytes(1 << 32);

/// Blocks and threads of copies: enough for the link to the host, and for most of the memory's rate.
const COPY: (u32, u32) = (128, 256);

/// Why an arena cannot be had, or used so.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// What the driver returned.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There are no pages for it.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// It cannot be colored.
    #[error(transparent)]
    Coloring(#[from] ColoringError),
    /// There is no room in it.
    #[error(transparent)]
    Allocator(#[from] AllocatorError),
    /// Nothing was asked for, or too much.
    #[error("an arena of {bytes} cannot be made; ask for one byte at least, and less than the GPU has")]
    Size {
        /// Bytes that were asked for.
        bytes: Bytes,
    },
    /// Pages are not in turn.
    #[error(
        "page {page} of the arena does not begin on the side that its address says; the arena is not used"
    )]
    Misplaced {
        /// Which.
        page: usize,
    },
}

/// Bytes of an arena that were allocated together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Block {
    /// The first, counted from the arena's beginning.
    pub at: u64,
    /// How many.
    pub bytes: u64,
}

/// Whose the pages are, and by which addresses they are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Private,
    InPlace,
    Paired,
}

/// Memory on one side.
#[derive(Debug)]
pub struct Arena {
    buffer: DeviceBuffer,
    /// Addresses by which programs see it; `None` where these are the buffer's.
    _seen: Option<AddressRange>,
    coloring: Coloring,
    side: Side,
    paired: bool,
    pages: Vec<PhysicalMemory>,
    allocator: Allocator,
    kernels: Arc<Kernels>,
    staging: PinnedBuffer,
}

impl Arena {
    /// An arena of at least so many bytes on a side, in pages that nobody else uses: it takes twice as much.
    ///
    /// # Errors
    /// Where there is not so much memory, or pages cannot be told apart; so for all the following.
    pub fn private(source: &Source, side: Side, bytes: Bytes) -> Result<Self, ArenaError> {
        Self::of(source, side, in_turn(source, bytes, false)?, Sharing::Private)
    }

    /// The same, seen where it is mapped: its addresses are such that the driver knows, and the first half of those of the mapping. What is accessed
    /// without translation is then no fault, but some other byte of the arena's pages.
    ///
    /// # Errors
    /// As [`Arena::private`].
    pub fn in_place(source: &Source, side: Side, bytes: Bytes) -> Result<Self, ArenaError> {
        Self::of(source, side, in_turn(source, bytes, false)?, Sharing::InPlace)
    }

    /// An arena whose pages another process can have the other half of.
    ///
    /// # Errors
    /// As [`Arena::private`].
    pub fn paired(source: &Source, side: Side, bytes: Bytes) -> Result<Self, ArenaError> {
        Self::of(source, side, in_turn(source, bytes, true)?, Sharing::Paired)
    }

    /// What stands for the pages in another process, in their order.
    ///
    /// # Errors
    /// What the driver returned: among it that the arena is private.
    pub fn export(&self) -> Result<Vec<OwnedFd>, ArenaError> {
        Ok(self.pages.iter().map(PhysicalMemory::export).collect::<Result<_, _>>()?)
    }

    /// The arena on a side of pages that another process exported; it has the other side of them. Where the pages are is found out here
    /// again, and not believed.
    ///
    /// # Errors
    /// As [`Arena::private`], and where the pages are not in turn.
    pub fn join(source: &Source, side: Side, files: &[OwnedFd]) -> Result<Self, ArenaError> {
        let context = source.device.primary()?;
        let size = Bytes(u64::from(PAGE_BYTES));
        let pages = files.iter().map(|file| PhysicalMemory::import(&context, file, size));
        Self::of(source, side, pages.collect::<Result<_, _>>()?, Sharing::Paired)
    }

    fn of(
        source: &Source,
        side: Side,
        pages: Vec<PhysicalMemory>,
        sharing: Sharing,
    ) -> Result<Self, ArenaError> {
        let context = source.device.primary()?;
        let length = Bytes(u64::from(PAGE_BYTES) * pages.len() as u64 / 2);
        if pages.is_empty() || !pages.len().is_multiple_of(2) {
            return Err(ArenaError::Size { bytes: length });
        }
        let is_in_place = sharing == Sharing::InPlace;
        let alignment = if is_in_place { CHEAPEST } else { ALIGNMENT };
        let (sides, buffer) = source.look(mapped(&context, &pages, alignment)?)?;
        check_order(&sides)?;
        let seen = if is_in_place { None } else { Some(AddressRange::reserve(&context, length, ALIGNMENT)?) };
        let logical = seen.as_ref().map_or(buffer.address(), AddressRange::address);
        // Pages in turn: the address's bit above the offset is the constant.
        let mask = source.known.mask | 1 << OFFSET_BITS;
        let coloring = Coloring::new(logical, buffer.address(), length.0, mask, side == Side::Second)?;
        Ok(Self {
            buffer,
            _seen: seen,
            coloring,
            side,
            paired: sharing == Sharing::Paired,
            pages,
            allocator: Allocator::new(length.0),
            kernels: Arc::clone(&source.kernels),
            staging: context.pinned(STAGING)?,
        })
    }

    /// How addresses are translated.
    pub fn coloring(&self) -> &Coloring {
        &self.coloring
    }

    /// Where it is.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Whether somebody else may have the other half of its pages.
    pub fn is_paired(&self) -> bool {
        self.paired
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.coloring.length())
    }

    /// Bytes of physical memory that nobody can use while it is there: as many as it holds in private pages, none in paired ones.
    pub fn lost(&self) -> Bytes {
        if self.paired { Bytes::ZERO } else { self.bytes() }
    }

    /// Pages of 2 MiB behind it.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Bytes that are not allocated.
    pub fn free_bytes(&self) -> Bytes {
        Bytes(self.allocator.free())
    }

    /// For kernels that translate.
    ///
    /// # Errors
    /// Where stretches are too short for them.
    pub fn colored(&self) -> Result<Colored<'_>, ArenaError> {
        let mask = self.coloring.mask();
        Ok(Colored::new(Part::all(&self.buffer), mask, self.coloring.is_odd())?)
    }

    /// As [`Arena::colored`], with the first of two neighbouring stretches wherever that is: as much arithmetic and memory, on both sides. For
    /// comparison; what is stored so is not what is stored by color.
    ///
    /// # Errors
    /// As there.
    pub fn uncolored(&self) -> Result<Colored<'_>, ArenaError> {
        Ok(Colored::new(Part::all(&self.buffer), self.coloring.stretch() as u32, false)?)
    }

    /// The address by which translated kernels see a byte.
    pub fn address(&self, at: u64) -> u64 {
        self.coloring.logical() + at
    }

    /// Allocates; from a multiple of `alignment` on, a power of two. What is in it is anything.
    ///
    /// # Errors
    /// Where there is no such room.
    pub fn allocate(&mut self, bytes: u64, alignment: u64) -> Result<Block, ArenaError> {
        Ok(Block { at: self.allocator.take(bytes, alignment)?, bytes })
    }

    /// Gives a block back. Work that uses it should be done.
    ///
    /// # Errors
    /// Where no block begins there.
    pub fn free(&mut self, block: Block) -> Result<(), ArenaError> {
        self.allocator.give(block.at)?;
        Ok(())
    }

    /// Copies bytes into the arena, from the byte `at` on, after what the stream does already, and waits.
    ///
    /// # Errors
    /// [`DriverError::OutOfBounds`], or what the driver returned.
    pub fn write(&self, stream: &Stream, at: u64, bytes: &[u8]) -> Result<(), ArenaError> {
        for (range, part) in steps(at, bytes.len()) {
            self.staging.write(range.at % QUAD_BYTES, &bytes[part])?;
            self.copy(stream, range, Direction::Scatter)?;
        }
        Ok(())
    }

    /// Copies bytes out of it.
    ///
    /// # Errors
    /// As [`Arena::write`].
    pub fn read(&self, stream: &Stream, at: u64, bytes: &mut [u8]) -> Result<(), ArenaError> {
        for (range, part) in steps(at, bytes.len()) {
            self.copy(stream, range, Direction::Gather)?;
            self.staging.read(range.at % QUAD_BYTES, &mut bytes[part])?;
        }
        Ok(())
    }

    fn copy(&self, stream: &Stream, range: Range, direction: Direction) -> Result<(), ArenaError> {
        let (linear, arena) = (Linear::Host(&self.staging), (self.colored()?, range));
        self.kernels.arena_copy(stream, Shape::new(COPY.0, COPY.1)?, arena, direction, linear)?;
        Ok(stream.synchronize()?)
    }

    /// Submits the setting of every byte of a range.
    ///
    /// # Errors
    /// As [`Arena::write`].
    pub fn fill(&self, stream: &Stream, range: Range, value: u8) -> Result<(), ArenaError> {
        self.fill_as(stream, self.colored()?, range, value)
    }

    pub(crate) fn fill_as(
        &self,
        stream: &Stream,
        view: Colored<'_>,
        range: Range,
        value: u8,
    ) -> Result<(), ArenaError> {
        Ok(self.kernels.arena_fill(stream, Shape::new(COPY.0, COPY.1)?, (view, range), value)?)
    }

    /// Submits a copy of a range that begins at a multiple of 16.
    pub(crate) fn gather_as(
        &self,
        stream: &Stream,
        view: Colored<'_>,
        range: Range,
        to: &PinnedBuffer,
    ) -> Result<(), ArenaError> {
        let (shape, linear) = (Shape::new(COPY.0, COPY.1)?, Linear::Host(to));
        Ok(self.kernels.arena_copy(stream, shape, (view, range), Direction::Gather, linear)?)
    }

    pub(crate) fn kernels(&self) -> &Kernels {
        &self.kernels
    }
}

/// Pages that begin on the first side and on the second in turn.
fn in_turn(source: &Source, bytes: Bytes, shared: bool) -> Result<Vec<PhysicalMemory>, ArenaError> {
    // A pair of pages holds a page of each color.
    let pairs = u32::try_from(bytes.0.div_ceil(u64::from(PAGE_BYTES)));
    let pairs = pairs.ok().filter(|pairs| (1..1 << 20).contains(pairs)).ok_or(ArenaError::Size { bytes })?;
    let [first, second] = source.take(pairs, shared)?.by_side;
    Ok(first.into_iter().zip(second).flat_map(<[_; 2]>::from).collect())
}

fn check_order(sides: &Sides) -> Result<(), ArenaError> {
    let expected = |page: usize| Side::second(page % 2 == 1);
    match sides.pages.iter().enumerate().position(|(page, side)| *side != expected(page)) {
        Some(page) => Err(ArenaError::Misplaced { page }),
        None => Ok(()),
    }
}

/// A copy in pieces that fit what they pass through: of the arena, and of the other side.
fn steps(at: u64, bytes: usize) -> impl Iterator<Item = (Range, std::ops::Range<usize>)> {
    let most = (STAGING.0 - QUAD_BYTES) as usize;
    (0..bytes).step_by(most).map(move |from| {
        let part = from..bytes.min(from + most);
        (Range { at: at + from as u64, bytes: part.len() as u64 }, part)
    })
}
