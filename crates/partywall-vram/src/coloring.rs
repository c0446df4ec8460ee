//! Where the bytes of a colored arena are.
//!
//! Every other stretch of memory is on the other side. Which one of two it is follows from the parity of some bits of its address, where pages are
//! mapped so that a bit of the *mapped* address stands for the constant of each page. A program sees an arena without gaps: its *logical* addresses.
//! Stretch `n` of these is one of the stretches `2n` and `2n + 1` of the mapped ones, whichever has the right parity. So an address is translated
//! by arithmetic alone, and nothing has to be looked up.
//!
//! That puts the bit that makes the parity right in where a stretch ends, and everything above it moves up by one. Any other bit of the mask can be
//! the one that is put in ([`Coloring::split_at`]). With the highest one, and an arena no longer than it, nothing moves: an address and its place
//! differ in this bit alone, and a translation takes four instructions instead of seven. The pages of the lower half then have one constant,
//! those of the upper half the other one.

use crate::address::parity;

/// An arena of one color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coloring {
    logical: u64,
    mapped: u64,
    length: u64,
    mask: u32,
    odd: bool,
    split: u32,
}

/// Why an arena cannot be colored so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ColoringError {
    /// Sides do not alternate by a bit of the address.
    #[error("no bit of an address turns the side, so there is no parity to color by")]
    NoMask,
    /// The arena does not begin where a pair of stretches does.
    #[error(
        "an arena that is mapped at {mapped:#x} and seen at {logical:#x} has to begin at a multiple of {pair:#x} in both places"
    )]
    Misplaced {
        /// First logical address.
        logical: u64,
        /// First mapped address.
        mapped: u64,
        /// Bytes of two stretches.
        pair: u64,
    },
    /// What is put in makes no parity right.
    #[error("{split:#x} is not one of the bits {mask:#x}")]
    Split {
        /// What should be put in.
        split: u64,
        /// Whose parity is the side.
        mask: u32,
    },
    /// The arena does not fit, or is no whole number of stretches.
    #[error(
        "{length} bytes are no whole number of stretches of {stretch}, or more than addresses have room for"
    )]
    Length {
        /// Logical bytes.
        length: u64,
        /// Bytes in a row on one side.
        stretch: u64,
    },
}

impl Coloring {
    /// `length` bytes that are seen at `logical`, in twice as many that are mapped at `mapped`, where the parity of the address's bits in
    /// `mask` is `odd`. The lowest bit of the mask says how long stretches are.
    ///
    /// # Errors
    /// Where an address would not be translated by its parity alone.
    pub fn new(logical: u64, mapped: u64, length: u64, mask: u32, odd: bool) -> Result<Self, ColoringError> {
        if mask == 0 {
            return Err(ColoringError::NoMask);
        }
        let split = mask & mask.wrapping_neg();
        Self { logical, mapped, length, mask, odd, split }.checked()
    }

    /// The same arena with another bit of the mask put in.
    ///
    /// # Errors
    /// Where it is none of them, or the arena does not begin at a multiple of twice that.
    pub fn split_at(self, split: u64) -> Result<Self, ColoringError> {
        let found =
            u32::try_from(split).ok().filter(|split| split.is_power_of_two() && self.mask & split != 0);
        Self { split: found.ok_or(ColoringError::Split { split, mask: self.mask })?, ..self }.checked()
    }

    fn checked(self) -> Result<Self, ColoringError> {
        let Self { logical, mapped, length, .. } = self;
        let (stretch, pair) = (self.stretch(), 2 * self.split());
        if !logical.is_multiple_of(pair) || !mapped.is_multiple_of(pair) {
            return Err(ColoringError::Misplaced { logical, mapped, pair });
        }
        let fits =
            |begin: u64, bytes: Option<u64>| bytes.and_then(|bytes| begin.checked_add(bytes)).is_some();
        let is_whole = length > 0 && length.is_multiple_of(stretch);
        let pairs = length.div_ceil(self.split());
        if !is_whole || !fits(logical, Some(length)) || !fits(mapped, pairs.checked_mul(pair)) {
            return Err(ColoringError::Length { length, stretch });
        }
        Ok(self)
    }

    /// Bytes in a row on one side.
    pub fn stretch(&self) -> u64 {
        1 << self.mask.trailing_zeros()
    }

    /// The bit that is put in, as bytes.
    pub fn split(&self) -> u64 {
        u64::from(self.split)
    }

    /// First logical address.
    pub fn logical(&self) -> u64 {
        self.logical
    }

    /// First mapped address.
    pub fn mapped(&self) -> u64 {
        self.mapped
    }

    /// Logical bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Bits of a mapped address whose parity is its side.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// Whether the parity is odd.
    pub fn is_odd(&self) -> bool {
        self.odd
    }

    /// Where a byte is; `None` outside the arena.
    pub fn place(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.logical).filter(|offset| *offset < self.length)?;
        let within = offset & (self.split() - 1);
        let even = self.mapped + 2 * offset - within;
        let is_right = self.is_right(even);
        Some(if is_right { even } else { even + self.split() })
    }

    /// Which byte is there; `None` outside, and where the other color is.
    pub fn seen(&self, place: u64) -> Option<u64> {
        let offset = place.checked_sub(self.mapped)?;
        let within = offset & (self.split() - 1);
        let seen = offset / (2 * self.split()) * self.split() + within;
        (seen < self.length && self.is_right(place)).then(|| self.logical + seen)
    }

    fn is_right(&self, place: u64) -> bool {
        parity(place as u32 & self.mask) == self.odd
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// An H200's bits within a page, and the first above it for the page's constant.
    const MASK: u32 = 0xab000 | 1 << 21;

    proptest! {
        #[test]
        fn every_byte_has_a_place_of_its_color_and_every_such_place_a_byte(
            pair in 1_u64..1 << 30,
            far in 1_u64..1 << 30,
            stretches in 1_u64..5_000,
            at in any::<u64>(),
            odd in any::<bool>(),
            bit in 0_usize..6,
        ) {
            let split = [12, 13, 15, 17, 19, 21][bit];
            let (logical, mapped) = (pair << (split + 1), far << (split + 1));
            let coloring = Coloring::new(logical, mapped, stretches << 12, MASK, odd).unwrap();
            let coloring = coloring.split_at(1 << split).unwrap();
            let address = coloring.logical() + at % coloring.length();
            let place = coloring.place(address).unwrap();
            prop_assert_eq!(parity(place as u32 & MASK), odd);
            prop_assert_eq!(coloring.seen(place), Some(address));
            // 128 B that are together stay together.
            let line = address & !127;
            prop_assert_eq!(coloring.place(line).unwrap() + (address - line), place);
            // The other one of the two is of the other color.
            prop_assert!(coloring.seen(place ^ 1 << split).is_none());
        }
    }

    #[test]
    fn outside_there_is_nothing() {
        let coloring = Coloring::new(1 << 40, 1 << 41, 1 << 20, MASK, false).unwrap();
        let end = coloring.logical() + coloring.length();
        assert_eq!([coloring.place(coloring.logical() - 1), coloring.place(end)], [None, None]);
        assert!(coloring.place(end - 1).is_some());
        assert_eq!(coloring.seen(coloring.mapped() + 2 * coloring.length()), None);
    }

    #[test]
    fn what_cannot_be_colored_is_refused() {
        let new = |logical, mapped, length, mask| Coloring::new(logical, mapped, length, mask, false);
        assert_eq!(new(0, 0, 1 << 20, 0), Err(ColoringError::NoMask));
        assert!(matches!(new(1 << 12, 0, 1 << 20, MASK), Err(ColoringError::Misplaced { pair: 0x2000, .. })));
        let arena = new(1 << 21, 0, 1 << 20, MASK).unwrap();
        for split in [0, 3 << 12, 1 << 14, 1 << 33] {
            assert_eq!(arena.split_at(split), Err(ColoringError::Split { split, mask: MASK }));
        }
        assert!(matches!(arena.split_at(1 << 21), Err(ColoringError::Misplaced { pair: 0x40_0000, .. })));
        for length in [0, 5_000, !0xfff] {
            assert!(matches!(new(0, 0, length, MASK), Err(ColoringError::Length { stretch: 4_096, .. })));
        }
    }
}
