//! Global accesses through the translation of a [`Coloring`].
//!
//! # Problem
//!
//! A program computes with logical addresses, and every instruction that goes to global memory has to go to where the bytes are. What is
//! missed or mistranslated computes wrong results without a word, so whatever is not understood makes the whole kernel be refused.
//!
//! # Approach
//!
//! Before each access its address is translated into a register of ours, by some ten instructions without a branch or a table; the
//! access takes that register. In the mapped address `2 a - a mod s + (mapped - 2 logical)`, where `s` is the length of a stretch, the bit of `s` is clear; the
//! parity of the mask's other bits says whether it has to be set. Aligned vectors never reach over a stretch, so an access has one address.
//!
//! Addresses that are not the arena's (variables of the module, host memory) stay as they are if that is asked for ([`Pointers::Any`]), at
//! the price of a comparison and a choice. Otherwise every pointer is taken to be the arena's, and who takes the address of a variable of the module is refused.
//!
//! | instruction | what happens |
//! |---|---|
//! | `ld`, `st`, `atom`, `red`, `prefetch`, `discard`, `applypriority` with `.global`; `cp.async` from global memory | translated |
//! | the same with `.shared`, `.local`, `.const`, `.param` | stays |
//! | the same without any: a generic address | refused |
//! | bulk and tensor copies, `multimem`, matrix fragments from global memory, textures, surfaces | refused |
//! | calls of functions that are not in the module | refused |
//!
//! # Scenarios (the tests bear these names)
//!
//! - T1: what is inserted computes what [`Coloring::place`] says, for every address.
//! - T2: what is not an access to global memory stays as it is, to the last blank.
//! - T3: what is not understood is refused, by name and line.
//! - T4: accesses of a best-effort tenant are told to go first when there is no room.

use std::fmt::Write as _;
use std::ops::Range;

use super::source::{Function, Instruction, Module, SourceError, read};
use crate::coloring::Coloring;

/// Which addresses a kernel's accesses may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointers {
    /// The arena's alone.
    Arena,
    /// Others as well, which stay as they are.
    Any,
}

/// What is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Where bytes are.
    pub coloring: Coloring,
    /// Which addresses may occur.
    pub pointers: Pointers,
    /// Whether what is loaded and stored is to leave the L2 first.
    pub evict_first: bool,
}

/// A rewritten module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewritten {
    /// The whole text.
    pub text: String,
    /// Accesses that are translated.
    pub translated: usize,
    /// Accesses that are told to leave the L2 first.
    pub evict_first: usize,
}

/// Why a module is not rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// It cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// It has what cannot be translated.
    #[error("{}", list(.0))]
    Refused(Vec<Refusal>),
}

/// An instruction that is not translated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The function that it is in.
    pub function: String,
    /// In which line of the text, counted from 1.
    pub line: usize,
    /// What it is.
    pub opcode: String,
    /// Why not.
    pub why: &'static str,
}

/// Refusals that a message names; there may be thousands of one kind.
const NAMED_MAX: usize = 8;

fn list(refusals: &[Refusal]) -> String {
    let mut text = String::new();
    for Refusal { function, line, opcode, why } in refusals.iter().take(NAMED_MAX) {
        let _ = writeln!(text, "line {line}, {function}: `{opcode}` cannot be translated: {why}");
    }
    if refusals.len() > NAMED_MAX {
        let _ = writeln!(text, "and {} more", refusals.len() - NAMED_MAX);
    }
    text.trim_end().to_owned()
}

/// What an instruction does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Nothing that an arena has to do with.
    None,
    /// Goes to global memory by this operand.
    Global { operand: usize },
    /// Cannot be translated.
    Refused(&'static str),
}

const GENERIC: &str = "its address is a generic one, which may be anything's";
const BULK: &str = "it copies more than a stretch at a time";
const FRAGMENT: &str = "it reaches over several stretches";
const OBJECT: &str = "its address is in an object that is not seen here";
const FOREIGN: &str = "what it calls is not in the module";
const VARIABLE: &str = "it takes the address of a variable of the module, which is outside the arena";

/// Puts the accesses of all functions through the translation.
///
/// # Errors
/// Where the text cannot be read, or anything in it cannot be translated: then all of that is named, and nothing is rewritten.
pub fn rewrite(text: &str, options: &Options) -> Result<Rewritten, RewriteError> {
    let module = read(text)?;
    let mut edits = Edits { text, done: 0, output: String::with_capacity(text.len() * 2) };
    let (mut refused, mut translated, mut evict_first) = (Vec::new(), 0, 0);
    for function in &module.functions {
        let mut is_declared = false;
        for instruction in &function.instructions {
            let access = match access(&module, instruction, options.pointers) {
                Access::None => continue,
                Access::Refused(why) => {
                    refused.push(refusal(function, instruction, why));
                    continue;
                }
                Access::Global { operand } => instruction.operands[operand].clone(),
            };
            let Some(address) = Address::of(&text[access.clone()]) else {
                refused.push(refusal(function, instruction, "its address is not understood"));
                continue;
            };
            // A variable of the module has a fixed place outside the arena.
            if !address.base.starts_with('%') {
                continue;
            }
            if !is_declared {
                edits.insert(function.begin, REGISTERS);
                is_declared = true;
            }
            edits.insert(instruction.place.start, &translation(&address, options));
            if let Some(opcode) = hinted(instruction).filter(|_| options.evict_first) {
                edits.replace(instruction.opcode_place.clone(), &opcode);
                evict_first += 1;
            }
            edits.replace(access, &format!("[{RESULT}]"));
            translated += 1;
        }
    }
    if !refused.is_empty() {
        return Err(RewriteError::Refused(refused));
    }
    Ok(Rewritten { text: edits.finish(), translated, evict_first })
}

fn refusal(function: &Function<'_>, instruction: &Instruction<'_>, why: &'static str) -> Refusal {
    let (function, opcode) = (function.name.to_owned(), instruction.opcode.to_owned());
    Refusal { function, line: instruction.line, opcode, why }
}

/// What an instruction does to memory.
fn access(module: &Module<'_>, instruction: &Instruction<'_>, pointers: Pointers) -> Access {
    let parts: Vec<&str> = instruction.parts().collect();
    let has = |part: &str| parts.contains(&part);
    let space = |operand: usize| {
        let elsewhere = |part: &&str| {
            let part = part.split("::").next().unwrap_or_default();
            matches!(part, "shared" | "local" | "const" | "param")
        };
        if has("global") {
            Access::Global { operand }
        } else if parts.iter().any(elsewhere) {
            Access::None
        } else {
            Access::Refused(GENERIC)
        }
    };
    match parts[0] {
        "cp" if has("bulk") => Access::Refused(BULK),
        // `cp.async.wait_group` and the like have no address.
        "cp" if has("shared") && has("global") => Access::Global { operand: 1 },
        "ld" | "ldu" | "atom" => space(1),
        // These only ever go to shared memory of a cluster.
        "st" | "red" if has("async") => Access::None,
        "st" | "red" | "discard" | "applypriority" => space(0),
        "prefetch" if has("tensormap") => Access::Refused(OBJECT),
        "prefetch" => space(0),
        "prefetchu" => Access::Refused(GENERIC),
        "multimem" => Access::Refused(OBJECT),
        "wmma" if has("load") || has("store") => match space(0) {
            Access::None => Access::None,
            _ => Access::Refused(FRAGMENT),
        },
        "tex" | "tld4" | "suld" | "sust" | "sured" | "tensormap" => Access::Refused(OBJECT),
        "call" if !calls_own(module, instruction) => Access::Refused(FOREIGN),
        "mov" | "cvta" if pointers == Pointers::Arena && names_variable(module, instruction) => {
            Access::Refused(VARIABLE)
        }
        _ => Access::None,
    }
}

/// Whether what is called is a function with a body of the same module, and so rewritten itself.
fn calls_own(module: &Module<'_>, instruction: &Instruction<'_>) -> bool {
    let names = (0..instruction.operands.len()).filter_map(|index| instruction.operand(module, index));
    names.into_iter().any(|name| module.functions.iter().any(|function| function.name == name))
}

fn names_variable(module: &Module<'_>, instruction: &Instruction<'_>) -> bool {
    let source = instruction.operand(module, 1).unwrap_or_default();
    let name = source.split(['+', '-', ' ', '(', ')']).find(|part| !part.is_empty()).unwrap_or_default();
    let name =
        if name == "generic" { source.trim_start_matches("generic(").trim_end_matches(')') } else { name };
    module.globals.contains(&name)
}

/// An address as an instruction has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Address<'a> {
    base: &'a str,
    offset: i64,
}

impl<'a> Address<'a> {
    /// `[base]`, `[base+16]`, `[ base + -16 ]`.
    fn of(operand: &'a str) -> Option<Self> {
        let inner = operand.strip_prefix('[')?.strip_suffix(']')?.trim();
        let end = inner.find(['+', ' ', '-']).unwrap_or(inner.len());
        let (base, rest) = inner.split_at(end);
        let rest = rest.trim();
        let offset = match rest.strip_prefix('+') {
            _ if rest.is_empty() => 0,
            Some(offset) => number(offset.trim())?,
            None => number(rest)?,
        };
        (!base.is_empty()).then_some(Self { base, offset })
    }
}

fn number(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Our registers; no compiler's have such names.
const REGISTERS: &str = "\n\t.reg .b64 \t%partywall_a, %partywall_b, %partywall_c;\n\t.reg .b32 \t%partywall_q;\n\t.reg .pred \t%partywall_p;";

/// The register that has the mapped address in the end.
const RESULT: &str = "%partywall_b";

/// Instructions that translate an address.
fn translation(address: &Address<'_>, options: &Options) -> String {
    let coloring = &options.coloring;
    let (stretch, logical) = (coloring.stretch(), coloring.logical());
    let constant = coloring.mapped().wrapping_sub(logical.wrapping_mul(2)).cast_signed();
    let mut text = String::new();
    let mut add = |instruction: String| {
        text += &instruction;
        text += ";\n\t";
    };
    let from = if address.offset == 0 {
        address.base
    } else {
        add(format!("add.s64 \t%partywall_a, {}, {}", address.base, address.offset));
        "%partywall_a"
    };
    // Twice the address, without what is within the stretch once.
    add(format!("and.b64 \t%partywall_c, {from}, {}", stretch - 1));
    add(format!("shl.b64 \t{RESULT}, {from}, 1"));
    add(format!("sub.s64 \t{RESULT}, {RESULT}, %partywall_c"));
    if constant != 0 {
        add(format!("add.s64 \t{RESULT}, {RESULT}, {constant}"));
    }
    // The parity of the other bits says which of the two stretches it is.
    add(format!("cvt.u32.u64 \t%partywall_q, {RESULT}"));
    add(format!("and.b32 \t%partywall_q, %partywall_q, {}", coloring.mask() & !(stretch as u32)));
    add("popc.b32 \t%partywall_q, %partywall_q".to_owned());
    if coloring.is_odd() {
        add("xor.b32 \t%partywall_q, %partywall_q, 1".to_owned());
    }
    add(format!("shl.b32 \t%partywall_q, %partywall_q, {}", stretch.trailing_zeros()));
    add(format!("and.b32 \t%partywall_q, %partywall_q, {stretch}"));
    add("cvt.u64.u32 \t%partywall_c, %partywall_q".to_owned());
    add(format!("or.b64 \t{RESULT}, {RESULT}, %partywall_c"));
    if options.pointers == Pointers::Any {
        add(format!("sub.s64 \t%partywall_c, {from}, {}", logical.cast_signed()));
        add(format!("setp.lt.u64 \t%partywall_p, %partywall_c, {}", coloring.length()));
        add(format!("selp.b64 \t{RESULT}, {RESULT}, {from}, %partywall_p"));
    }
    text
}

/// The opcode with the hint that what is accessed may leave the L2 first; `None` where it has a hint already, or cannot have this one.
fn hinted(instruction: &Instruction<'_>) -> Option<String> {
    let parts: Vec<&str> = instruction.parts().collect();
    let may = matches!(parts[..], ["ld" | "st", "global", ..])
        || matches!(parts[..], ["ld" | "st", "weak", "global", ..]);
    let is_plain = parts
        .iter()
        .all(|part| !part.contains("::") && !matches!(*part, "ca" | "cg" | "cs" | "cv" | "lu" | "wb" | "wt"));
    if !may || !is_plain {
        return None;
    }
    let global = parts.iter().position(|part| *part == "global")?;
    let mut hinted = parts.clone();
    hinted.insert(global + 1, "cs");
    Some(hinted.join("."))
}

/// Text that is put together from the old one and what takes the place of parts of it, in their order.
struct Edits<'a> {
    text: &'a str,
    done: usize,
    output: String,
}

impl Edits<'_> {
    fn insert(&mut self, at: usize, new: &str) {
        self.replace(at..at, new);
    }

    fn replace(&mut self, place: Range<usize>, new: &str) {
        self.output += &self.text[self.done..place.start];
        self.output += new;
        self.done = place.end;
    }

    fn finish(mut self) -> String {
        self.output += &self.text[self.done..];
        self.output
    }
}

#[cfg(test)]
mod tests;
