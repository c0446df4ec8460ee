//! Pages of 2 MiB, and places in them.
//!
//! The driver hands out physical memory in pages of 2 MiB. Within one, the low 21 bits of an address are those of the physical address; of
//! the others nothing is known, so whatever the hash makes of them is a constant of the page.

/// Bits of an offset within a page.
pub const OFFSET_BITS: u32 = 21;

/// Bytes in a page.
pub const PAGE_BYTES: u32 = 1 << OFFSET_BITS;

/// Bytes in a line of the L2, which is never divided.
pub const LINE_BYTES: u32 = 128;

/// A place in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// Which of the pages that are looked at.
    pub page: u32,
    /// Bytes from its beginning, less than [`PAGE_BYTES`].
    pub offset: u32,
}

/// Whether an odd number of bits is set.
pub fn parity(bits: u32) -> bool {
    bits.count_ones() % 2 == 1
}
