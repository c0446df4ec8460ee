//! The instructions that compute where an address is.
//!
//! In the mapped address `2 a - a mod s + (mapped - 2 logical)`, where `s` is the bit that is put in, that bit is clear; the parity of
//! the mask's other bits says whether it has to be set. That is done on the two words of the address, because a GPU has no others: the
//! words of `2 a`, then one choice by bits for what is within the stretch, and one for the bit of `s`. Where the constant's low word is zero (both
//! places at multiples of 4 GiB) neither its addition nor the parity waits for anything. The carry flag is left alone: it may be in use.
//!
//! A fence takes the address modulo the arena's length first, which is one `and` for a power of two and a comparison and a choice
//! elsewhere. So whatever the pointer is, the access goes to a byte of the arena, and of its color.
//!
//! An arena that is no longer than `s` moves as a whole, by `mapped - logical`: then only the parity is counted, of the bits below `s`, and put in.

use std::fmt::Write as _;

use super::access::Address;
use super::rewrite::Pointers;
use crate::address::parity;
use crate::coloring::Coloring;

/// Our registers; no compiler's have such names.
pub(super) const REGISTERS: &str = "\n\t.reg .b64 \t%partywall_a, %partywall_b, %partywall_c;\n\t\
    .reg .b32 \t%partywall_l, %partywall_h, %partywall_m, %partywall_q;\n\t.reg .pred \t%partywall_p;";

/// The register that has the mapped address in the end.
pub(super) const RESULT: &str = "%partywall_b";

/// Bit by bit: the first operand where the third one, a mask, is set; elsewhere the second.
const FIRST_WHERE: u32 = 0xe4;
/// The second operand where the mask is set; elsewhere the first.
const SECOND_WHERE: u32 = 0xd8;
/// The same with the second operand turned over.
const NOT_SECOND_WHERE: u32 = 0x72;

/// Instructions that translate an address.
pub(super) fn translation(address: &Address<'_>, coloring: &Coloring, pointers: Pointers) -> String {
    let mut text = Lines(String::new());
    let logical = coloring.logical();
    // The bits from the one that is put in upwards are the same everywhere in the arena.
    let is_one = coloring.length() <= coloring.split();
    let given = if address.offset == 0 {
        address.base
    } else {
        text.add(format_args!("add.s64 \t%partywall_a, {}, {}", address.base, address.offset));
        "%partywall_a"
    };
    let (from, constant) = match pointers {
        Pointers::Fenced => (text.fence(given, coloring), coloring.mapped()),
        Pointers::Arena | Pointers::Any if is_one => (given, coloring.mapped().wrapping_sub(logical)),
        Pointers::Arena | Pointers::Any => (given, coloring.mapped().wrapping_sub(logical.wrapping_mul(2))),
    };
    let (low, high) = (constant as u32, (constant >> 32) as u32);
    // Masks have 32 bits.
    let split = coloring.split() as u32;
    let below = coloring.mask() & (split - 1);
    let above = coloring.mask() & !split & !below;
    let mut odd = coloring.is_odd();
    let others = if is_one {
        odd ^= parity(coloring.mapped() as u32 & above);
        below
    } else {
        below | above
    };
    text.add(format_args!("mov.b64 \t{{%partywall_l, %partywall_h}}, {from}"));
    if low == 0 {
        // Above what is put in, bit `i` of the mapped address is bit `i - 1` of this one.
        let here = if is_one { others } else { below | above >> 1 };
        text.add(format_args!("and.b32 \t%partywall_q, %partywall_l, {here}"));
    }
    let mut word = "%partywall_l";
    if !is_one {
        text.add(format_args!("shf.l.wrap.b32 \t%partywall_h, %partywall_l, %partywall_h, 1"));
        text.add(format_args!("shl.b32 \t%partywall_m, %partywall_l, 1"));
        text.add(format_args!(
            "lop3.b32 \t%partywall_m, %partywall_l, %partywall_m, {}, {FIRST_WHERE}",
            split - 1
        ));
        word = "%partywall_m";
    }
    if low == 0 {
        if high != 0 {
            text.add(format_args!("add.s32 \t%partywall_h, %partywall_h, {}", high.cast_signed()));
        }
    } else {
        text.add(format_args!("mov.b64 \t{RESULT}, {{{word}, %partywall_h}}"));
        text.add(format_args!("add.s64 \t{RESULT}, {RESULT}, {}", constant.cast_signed()));
        text.add(format_args!("mov.b64 \t{{%partywall_m, %partywall_h}}, {RESULT}"));
        text.add(format_args!("and.b32 \t%partywall_q, %partywall_m, {others}"));
        word = "%partywall_m";
    }
    text.add(format_args!("popc.b32 \t%partywall_q, %partywall_q"));
    text.add(format_args!("shl.b32 \t%partywall_q, %partywall_q, {}", split.trailing_zeros()));
    let choice = if odd { NOT_SECOND_WHERE } else { SECOND_WHERE };
    text.add(format_args!("lop3.b32 \t%partywall_m, {word}, %partywall_q, {split}, {choice}"));
    text.add(format_args!("mov.b64 \t{RESULT}, {{%partywall_m, %partywall_h}}"));
    if pointers == Pointers::Any {
        text.add(format_args!("sub.s64 \t%partywall_c, {given}, {}", logical.cast_signed()));
        text.add(format_args!("setp.lt.u64 \t%partywall_p, %partywall_c, {}", coloring.length()));
        text.add(format_args!("selp.b64 \t{RESULT}, {RESULT}, {given}, %partywall_p"));
    }
    text.0
}

struct Lines(String);

impl Lines {
    fn add(&mut self, instruction: std::fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = write!(self.0, "{instruction};\n\t");
    }

    /// The offset within the arena, whatever the address.
    fn fence(&mut self, given: &str, coloring: &Coloring) -> &'static str {
        let (logical, length) = (coloring.logical(), coloring.length());
        let mut from = given;
        if !(length.is_power_of_two() && logical.is_multiple_of(length)) {
            self.add(format_args!("sub.s64 \t%partywall_c, {from}, {}", logical.cast_signed()));
            from = "%partywall_c";
        }
        if length.is_power_of_two() {
            self.add(format_args!("and.b64 \t%partywall_c, {from}, {}", length - 1));
        } else {
            // The first byte, which is aligned for whatever is accessed.
            self.add(format_args!("setp.lt.u64 \t%partywall_p, {from}, {length}"));
            self.add(format_args!("selp.b64 \t%partywall_c, {from}, 0, %partywall_p"));
        }
        "%partywall_c"
    }
}
