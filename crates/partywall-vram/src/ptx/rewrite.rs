//! Global accesses through the translation of a [`Coloring`].
//!
//! # Problem
//!
//! A program computes with logical addresses, and every instruction that goes to global memory has to go to where the bytes are. What is
//! missed or mistranslated computes wrong results without a word, so whatever is not understood makes the whole module be refused.
//!
//! # Approach
//!
//! One walk. Before each access its address is translated into a register of ours, by some ten instructions without a branch or a table; the
//! access takes that register. Aligned vectors never reach over a stretch, so an access has one address. On the same walk accesses may be
//! *fenced*, which happens to the address before it is translated, and *told to leave first*, which happens to the opcode.
//!
//! A module that was rewritten bears a *mark*, an unused variable whose name follows from what was asked for. It stays in what `ptxas` makes of
//! it, so compiled code can be told from code that was never rewritten, or for another arena.
//!
//! | pointers | what an access that is not the arena's does |
//! |---|---|
//! | [`Pointers::Arena`] | there is none: every pointer is taken to be the arena's, and who takes the address of a variable of the module is refused, unless it only goes to the driver |
//! | [`Pointers::Any`] | stays as it is (variables of the module, host memory), at the price of a comparison and a choice |
//! | [`Pointers::Fenced`] | goes to some byte of the arena |
//!
//! | instruction | what happens |
//! |---|---|
//! | `ld`, `st`, `atom`, `red`, `prefetch`, `discard`, `applypriority` with `.global`; `cp.async` from global memory | translated |
//! | the same with `.shared`, `.local`, `.const`, `.param` | stays |
//! | the same without any: a generic address | translated with `Any`, else refused |
//! | a variable of the module by its name | stays; refused with `Fenced` |
//! | bulk and tensor copies, `multimem`, matrix fragments from global memory, textures, surfaces | refused |
//! | calls of functions that are not in the module | refused, but for two of the driver's (assertions, printing) |
//! | anything else with an address that is not of shared memory | refused |
//!
//! # Scenarios (the tests bear these names)
//!
//! - T1: what is inserted computes what [`Coloring::place`] says, for every address.
//! - T2: what is not an access to global memory stays as it is, to the last blank.
//! - T3: what is not understood is refused, by name and line.
//! - T4: accesses of a best-effort tenant are told to go first when there is no room.
//! - T5: behind a fence every access goes to the arena and to its color, whatever the address.
//! - T6: compiled code can be told apart by its mark.

use std::fmt::Write as _;
use std::ops::Range;

use super::access::{Access, access, address, tells};
use super::eviction::{MAKE_DETOUR, MAKE_POLICY, POLICY, demoted, hinted};
use super::source::{Function, Instruction, Module, SourceError, read};
use super::translation::{REGISTERS, RESULT, translation};
use crate::coloring::Coloring;

/// Which addresses a kernel's accesses may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointers {
    /// The arena's alone.
    Arena,
    /// Others as well, which stay as they are.
    Any,
    /// Whatever they are, they are made into the arena's.
    Fenced,
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
    /// What was done to each function, in their order.
    pub functions: Vec<Done>,
}

/// What was done to a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// What it is called.
    pub name: String,
    /// Whether it is a kernel.
    pub is_entry: bool,
    /// Accesses that are translated.
    pub translated: usize,
    /// Accesses that are told to leave the L2 first, and policies that were changed to that.
    pub evict_first: usize,
}

/// Why a module is not rewritten.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// It cannot be read.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// Its addresses have 32 bits.
    #[error(
        "its addresses have {0} bits; only those of 64 can be translated: it should say `.address_size 64`"
    )]
    AddressSize(u32),
    /// It bears a mark.
    #[error("it has been rewritten before: it has the variable {0}")]
    Again(String),
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

/// How all marks begin.
const MARK: &str = "partywall_arena_";

impl Options {
    /// The name that a rewritten module has as a variable, and with it what is compiled from it.
    pub fn mark(&self) -> String {
        format!("{MARK}{:016x}", fnv1a(self.to_string().as_bytes()))
    }

    /// Whether compiled code bears the mark.
    pub fn is_on(&self, image: &[u8]) -> bool {
        let mark = self.mark();
        image.windows(mark.len()).any(|found| found == mark.as_bytes())
    }
}

/// Fowler, Noll and Vo's hash of 64 bits: the same on every machine and in every version.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// What is to happen to an instruction.
struct Plan<'a> {
    instruction: &'a Instruction<'a>,
    /// What comes before it.
    before: String,
    opcode: Option<String>,
    /// The operand that is the address.
    operand: Option<Range<usize>>,
    takes_policy: bool,
    /// What takes the place of the first operand.
    first: Option<String>,
}

/// Puts the accesses of all functions through the translation.
///
/// # Errors
/// Where the text cannot be read, or anything in it cannot be translated: then all of that is named, and nothing is rewritten.
pub fn rewrite(text: &str, options: &Options) -> Result<Rewritten, RewriteError> {
    let module = read(text)?;
    if module.header.address_bits != 64 {
        return Err(RewriteError::AddressSize(module.header.address_bits));
    }
    if let Some(mark) = module.globals.iter().find(|name| name.starts_with(MARK)) {
        return Err(RewriteError::Again((*mark).to_owned()));
    }
    let mut edits = Edits { text, done: 0, output: String::with_capacity(text.len() * 2) };
    // Weak, so that modules that are linked together may all have it.
    edits.insert(module.begin, &format!(".weak .global .align 4 .u32 {};\n", options.mark()));
    let (mut refused, mut functions) = (Vec::new(), Vec::new());
    for function in &module.functions {
        let plans = plans(&module, function, options, &mut refused);
        let count = |which: fn(&Plan<'_>) -> bool| plans.iter().filter(|plan| which(plan)).count();
        functions.push(Done {
            name: function.name.to_owned(),
            is_entry: function.is_entry,
            translated: count(|plan| plan.operand.is_some()),
            evict_first: count(|plan| plan.opcode.is_some()),
        });
        if count(|plan| plan.operand.is_some()) > 0 {
            edits.insert(function.begin, REGISTERS);
        }
        if count(|plan| plan.takes_policy) > 0 {
            edits.insert(function.begin, MAKE_POLICY);
        }
        if count(|plan| plan.first.is_some()) > 0 {
            edits.insert(function.begin, MAKE_DETOUR);
        }
        plans.iter().for_each(|plan| edits.carry_out(plan));
    }
    if !refused.is_empty() {
        return Err(RewriteError::Refused(refused));
    }
    Ok(Rewritten { text: edits.finish(), functions })
}

/// What is to happen to the instructions of a function.
fn plans<'a>(
    module: &Module<'a>,
    function: &'a Function<'a>,
    options: &Options,
    refused: &mut Vec<Refusal>,
) -> Vec<Plan<'a>> {
    let mut plans = Vec::new();
    let tells = tells(module, function, options.pointers);
    for instruction in &function.instructions {
        let mut plan = Plan {
            instruction,
            before: String::new(),
            opcode: None,
            operand: None,
            takes_policy: false,
            first: None,
        };
        if options.evict_first {
            plan.opcode = demoted(instruction);
        }
        let found = match access(module, instruction, options.pointers, tells) {
            Access::None => Ok(None),
            Access::Refused(why) => Err(why),
            // An instruction that lacks operands is for `ptxas` to name.
            Access::Global { operand } => instruction.operands.get(operand).map_or(Ok(None), |place| {
                let found = address(module, function, &module.text[place.clone()], options.pointers)?;
                Ok(found.map(|found| (found, place.clone())))
            }),
        };
        match found {
            Err(why) => {
                let (function, opcode) = (function.name.to_owned(), instruction.opcode.to_owned());
                refused.push(Refusal { function, line: instruction.line, opcode, why });
            }
            Ok(None) => {}
            Ok(Some((address, place))) => {
                plan.before = translation(&address, &options.coloring, options.pointers);
                plan.operand = Some(place);
                if let Some(hinted) =
                    options.evict_first.then(|| hinted(module, function, instruction)).flatten()
                {
                    plan.opcode = Some(hinted.opcode);
                    plan.takes_policy = hinted.takes_policy;
                    if let Some((before, first)) = hinted.detour {
                        plan.before += &before;
                        plan.first = Some(first);
                    }
                }
            }
        }
        if plan.operand.is_some() || plan.opcode.is_some() {
            plans.push(plan);
        }
    }
    plans
}

/// Text that is put together from the old one and what takes the place of parts of it, in their order.
struct Edits<'a> {
    text: &'a str,
    done: usize,
    output: String,
}

impl Edits<'_> {
    fn carry_out(&mut self, plan: &Plan<'_>) {
        let instruction = plan.instruction;
        self.insert(instruction.place.start, &plan.before);
        if let Some(opcode) = &plan.opcode {
            self.replace(instruction.opcode_place.clone(), opcode);
        }
        if let (Some(first), Some(place)) = (&plan.first, instruction.operands.first()) {
            self.replace(place.clone(), first);
        }
        if let Some(operand) = &plan.operand {
            self.replace(operand.clone(), &format!("[{RESULT}]"));
        }
        if let Some(last) = instruction.operands.last().filter(|_| plan.takes_policy) {
            self.insert(last.end, &format!(", {POLICY}"));
        }
    }

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
