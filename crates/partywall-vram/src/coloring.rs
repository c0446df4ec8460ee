//! Where the bytes of a colored arena are.
//!
//! Every other stretch of memory is on the other side. Which one of two it is follows from the parity of some bits of its address, where pages are
//! mapped so that a bit of the *mapped* address stands for the constant of each page. A program sees an arena without gaps: its *logical* addresses.
//! Stretch `n` of these is one of the stretches `2n` and `2n + 1` of the mapped ones, whichever has the right parity. So an address is translated
//! by arithmetic alone, and nothing has to be looked up.

use crate::address::parity;

/// An arena of one color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Coloring {
    logical: u64,
    mapped: u64,
    length: u64,
    mask: u32,
    odd: bool,
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
        let stretch = 1 << mask.trailing_zeros();
        let pair = 2 * stretch;
        if !logical.is_multiple_of(pair) || !mapped.is_multiple_of(pair) {
            return Err(ColoringError::Misplaced { logical, mapped, pair });
        }
        let fits =
            |begin: u64, bytes: Option<u64>| bytes.and_then(|bytes| begin.checked_add(bytes)).is_some();
        let is_whole = length > 0 && length.is_multiple_of(stretch);
        if !is_whole || !fits(logical, Some(length)) || !fits(mapped, length.checked_mul(2)) {
            return Err(ColoringError::Length { length, stretch });
        }
        Ok(Self { logical, mapped, length, mask, odd })
    }

    /// Bytes in a row on one side.
    pub fn stretch(&self) -> u64 {
        1 << self.mask.trailing_zeros()
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
        let within = offset & (self.stretch() - 1);
        let even = self.mapped + 2 * offset - within;
        let is_right = self.is_right(even);
        Some(if is_right { even } else { even + self.stretch() })
    }

    /// Which byte is there; `None` outside, and where the other color is.
    pub fn seen(&self, place: u64) -> Option<u64> {
        let offset = place.checked_sub(self.mapped).filter(|offset| *offset < 2 * self.length)?;
        let within = offset & (self.stretch() - 1);
        let pair = offset / (2 * self.stretch());
        self.is_right(place).then(|| self.logical + pair * self.stretch() + within)
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
        ) {
            let coloring = Coloring::new(pair << 13, far << 13, stretches << 12, MASK, odd).unwrap();
            let address = coloring.logical() + at % coloring.length();
            let place = coloring.place(address).unwrap();
            prop_assert_eq!(parity(place as u32 & MASK), odd);
            prop_assert_eq!(coloring.seen(place), Some(address));
            // 128 B that are together stay together.
            let line = address & !127;
            prop_assert_eq!(coloring.place(line).unwrap() + (address - line), place);
            // The other one of the two stretches is of the other color.
            prop_assert!(coloring.seen(place ^ 1 << 12).is_none());
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
        for length in [0, 5_000, !0xfff] {
            assert!(matches!(new(0, 0, length, MASK), Err(ColoringError::Length { stretch: 4_096, .. })));
        }
    }
}
