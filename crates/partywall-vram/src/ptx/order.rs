//! What is to be done to a tenant's kernels, as a text: who starts a tenant hands it on in a variable of the environment, and whoever compiles or loads
//! its kernels reads it there.
//!
//! `mask=0x2ab000,logical=0x700000000000,mapped=0x720000000000,length=0x200000000,parity=odd,pointers=arena,evict-first`, in any order. Numbers
//! are decimal or, with `0x`, hexadecimal; `pointers` is `arena` where it is left out, and `split`, the bit of the mask that is put in, the lowest one.

use std::fmt;
use std::str::FromStr;

use super::rewrite::{Options, Pointers};
use crate::coloring::{Coloring, ColoringError};

/// The variable of the environment.
pub const VARIABLE: &str = "PARTYWALL_ARENA";

/// Why a text is no order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    /// A part of it.
    #[error(
        "`{0}` is not understood; expected `mask=`, `logical=`, `mapped=`, `length=` or `split=` with a number, `parity=even` or `odd`, \
         `pointers=arena`, `any` or `fenced`, or `evict-first`, with commas between them"
    )]
    Part(String),
    /// Something is not there.
    #[error("`{0}=` is missing")]
    Missing(&'static str),
    /// There is no such arena.
    #[error(transparent)]
    Coloring(#[from] ColoringError),
}

impl FromStr for Options {
    type Err = OrderError;

    fn from_str(text: &str) -> Result<Self, OrderError> {
        let [mut mask, mut logical, mut mapped, mut length, mut split] = [None; 5];
        let mut odd = None;
        let (mut pointers, mut evict_first) = (Pointers::Arena, false);
        for part in text.split(',').map(str::trim) {
            let unknown = || OrderError::Part(part.to_owned());
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let place = match key {
                "mask" => &mut mask,
                "logical" => &mut logical,
                "mapped" => &mut mapped,
                "length" => &mut length,
                "split" => &mut split,
                "parity" => {
                    odd = Some(match value {
                        "even" => false,
                        "odd" => true,
                        _ => return Err(unknown()),
                    });
                    continue;
                }
                "pointers" => {
                    let found = NAMES.into_iter().find(|(_, name)| *name == value);
                    pointers = found.ok_or_else(unknown)?.0;
                    continue;
                }
                "evict-first" if value.is_empty() => {
                    evict_first = true;
                    continue;
                }
                _ => return Err(unknown()),
            };
            *place = Some(number(value).ok_or_else(unknown)?);
        }
        let is_there = |value: Option<u64>, name| value.ok_or(OrderError::Missing(name));
        let mask = is_there(mask, "mask")?;
        let mask = u32::try_from(mask).map_err(|_| OrderError::Part(format!("mask={mask:#x}")))?;
        let odd = odd.ok_or(OrderError::Missing("parity"))?;
        let (logical, mapped) = (is_there(logical, "logical")?, is_there(mapped, "mapped")?);
        let mut coloring = Coloring::new(logical, mapped, is_there(length, "length")?, mask, odd)?;
        if let Some(split) = split {
            coloring = coloring.split_at(split)?;
        }
        Ok(Self { coloring, pointers, evict_first })
    }
}

impl fmt::Display for Options {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = &self.coloring;
        let (mask, logical, mapped, length) = (of.mask(), of.logical(), of.mapped(), of.length());
        let parity = if of.is_odd() { "odd" } else { "even" };
        write!(
            out,
            "mask={mask:#x},logical={logical:#x},mapped={mapped:#x},length={length:#x},parity={parity}"
        )?;
        if of.split() != of.stretch() {
            write!(out, ",split={:#x}", of.split())?;
        }
        if let Some((_, name)) = NAMES.into_iter().find(|(pointers, _)| *pointers == self.pointers) {
            write!(out, ",pointers={name}")?;
        }
        if self.evict_first { write!(out, ",evict-first") } else { Ok(()) }
    }
}

const NAMES: [(Pointers, &str); 3] =
    [(Pointers::Arena, "arena"), (Pointers::Any, "any"), (Pointers::Fenced, "fenced")];

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    const TEXT: &str =
        "mask=0x2ab000,logical=0x700000000000,mapped=0x720000000000,length=0x200000000,parity=odd";

    proptest! {
        #[test]
        fn what_is_written_is_read(pair in 0_u64..1 << 30, far in 0_u64..1 << 30, stretches in 1_u64..5_000, odd in any::<bool>(), split in any::<bool>(), evict_first in any::<bool>(), which in 0_usize..3) {
            let mut coloring = Coloring::new(pair << 22, far << 22, stretches << 12, 0x2a_b000, odd).unwrap();
            if split {
                coloring = coloring.split_at(1 << 21).unwrap();
            }
            let options = Options { coloring, pointers: NAMES[which].0, evict_first };
            prop_assert_eq!(options.to_string().parse(), Ok(options));
        }

        #[test]
        fn no_text_panics(text in "[a-z0-9=,x-]{0,60}") {
            let _ = text.parse::<Options>();
        }
    }

    #[test]
    fn what_is_left_out_or_wrong_is_named() {
        let options: Options = TEXT.parse().unwrap();
        assert_eq!((options.pointers, options.evict_first), (Pointers::Arena, false));
        let message = |text: &str| text.parse::<Options>().unwrap_err().to_string();
        assert_eq!(message("mask=0x1000,parity=odd,mapped=0,length=4096"), "`logical=` is missing");
        assert_eq!(message(&TEXT.replace(",parity=odd", "")), "`parity=` is missing");
        for part in [
            "parity=1",
            "pointers=all",
            "mask=0x",
            "mask=0x1000000000",
            "split=",
            "logical=-1",
            "evict-first=1",
            "color=red",
            "",
        ] {
            let text = format!("{TEXT},{part}");
            assert!(
                message(&text).starts_with(&format!("`{part}` is not understood")),
                "{part}: {}",
                message(&text)
            );
        }
        assert_eq!(message(&format!("{TEXT},split=0x4000")), "0x4000 is not one of the bits 0x2ab000");
        assert!(
            message(&TEXT.replace("length=0x200000000", "length=5000"))
                .starts_with("5000 bytes are no whole number")
        );
    }
}
