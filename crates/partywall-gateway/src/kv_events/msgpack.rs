//! MessagePack, read piece by piece from a slice: nothing is copied, nothing is allocated, and nothing recurses, whatever the bytes say.

use super::Error;

/// One piece. Of a list or a map it is the beginning, and what is in it follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Item<'a> {
    Nil,
    Bool(bool),
    /// A whole number, as the 64 bits that it has, whether it was written with a sign or not.
    Integer(u64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    List(u32),
    Map(u32),
    /// Of a type that nobody here knows.
    Other,
}

/// What is left to be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    /// Where that is, in what was to be read at first.
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next piece.
    pub(super) fn next(&mut self) -> Result<Item<'a>, Error> {
        let start = self.at;
        Ok(match self.byte()? {
            byte @ (0x00..=0x7f | 0xe0..=0xff) => Item::Integer(byte as i8 as u64),
            byte @ 0x80..=0x8f => self.map(u32::from(byte & 0x0f))?,
            byte @ 0x90..=0x9f => self.list(u32::from(byte & 0x0f))?,
            byte @ 0xa0..=0xbf => Item::Text(self.take(u32::from(byte & 0x1f))?),
            0xc0 => Item::Nil,
            0xc1 => return Err(Error::MessagePack { at: start, what: "a byte that never begins anything" }),
            byte @ (0xc2 | 0xc3) => Item::Bool(byte == 0xc3),
            byte @ 0xc4..=0xc6 => {
                let len = self.length(byte - 0xc4)?;
                Item::Bytes(self.take(len)?)
            }
            byte @ 0xc7..=0xc9 => {
                let len = self.length(byte - 0xc7)?;
                self.byte()?;
                self.take(len)?;
                Item::Other
            }
            0xca => Item::Float(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => Item::Float(f64::from_bits(self.number(8)?)),
            byte @ 0xcc..=0xcf => Item::Integer(self.number(1 << (byte - 0xcc))?),
            0xd0 => Item::Integer(self.number(1)? as i8 as u64),
            0xd1 => Item::Integer(self.number(2)? as i16 as u64),
            0xd2 => Item::Integer(self.number(4)? as i32 as u64),
            0xd3 => Item::Integer(self.number(8)?),
            byte @ 0xd4..=0xd8 => {
                self.take(1 + (1 << (byte - 0xd4)))?;
                Item::Other
            }
            byte @ 0xd9..=0xdb => {
                let len = self.length(byte - 0xd9)?;
                Item::Text(self.take(len)?)
            }
            byte @ (0xdc | 0xdd) => {
                let len = self.length(byte - 0xdc + 1)?;
                self.list(len)?
            }
            byte @ (0xde | 0xdf) => {
                let len = self.length(byte - 0xde + 1)?;
                self.map(len)?
            }
        })
    }

    /// All bytes of the next value, with everything in it.
    pub(super) fn value(&mut self) -> Result<&'a [u8], Error> {
        let whole = self.bytes;
        let mut left = 1u64;
        while left > 0 {
            left -= 1;
            match self.next()? {
                Item::List(len) => left += u64::from(len),
                Item::Map(len) => left += 2 * u64::from(len),
                _ => {}
            }
        }
        Ok(&whole[..whole.len() - self.bytes.len()])
    }

    /// A list or a map cannot have more in it than there are bytes left.
    fn list(&self, len: u32) -> Result<Item<'a>, Error> {
        self.fits(u64::from(len))?;
        Ok(Item::List(len))
    }

    fn map(&self, len: u32) -> Result<Item<'a>, Error> {
        self.fits(2 * u64::from(len))?;
        Ok(Item::Map(len))
    }

    fn fits(&self, least: u64) -> Result<(), Error> {
        if least > self.bytes.len() as u64 {
            return Err(Error::MessagePack {
                at: self.at,
                what: "more values announced than there are bytes",
            });
        }
        Ok(())
    }

    /// A length of 1, 2 or 4 bytes.
    fn length(&mut self, power: u8) -> Result<u32, Error> {
        Ok(self.number(1 << power)? as u32)
    }

    fn number(&mut self, bytes: u32) -> Result<u64, Error> {
        Ok(self.take(bytes)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.take(1)?[0])
    }

    fn take(&mut self, len: u32) -> Result<&'a [u8], Error> {
        let Some((taken, rest)) = self.bytes.split_at_checked(len as usize) else {
            return Err(Error::MessagePack { at: self.at, what: "the end comes too soon" });
        };
        self.bytes = rest;
        self.at += taken.len();
        Ok(taken)
    }
}
