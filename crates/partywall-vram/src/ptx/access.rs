//! What an instruction does to memory.

use std::collections::BTreeSet;

use super::rewrite::Pointers;
use super::source::{Function, Instruction, Module};

/// What an instruction does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Nothing that an arena has to do with.
    None,
    /// Goes to global memory by this operand.
    Global { operand: usize },
    /// Cannot be translated.
    Refused(&'static str),
}

pub(super) const GENERIC: &str = "its address is a generic one, which may be anything's";
pub(super) const BULK: &str = "it copies more than a stretch at a time";
pub(super) const FRAGMENT: &str = "it reaches over several stretches";
pub(super) const OBJECT: &str = "its address is in an object that is not seen here";
pub(super) const FOREIGN: &str = "what it calls is not in the module";
pub(super) const VARIABLE: &str =
    "it takes the address of a variable of the module, which is outside the arena";
pub(super) const OUTSIDE: &str = "it goes to a variable of the module, which is outside the arena";
pub(super) const FIXED: &str = "its address is a number";
pub(super) const UNKNOWN: &str = "what it does to memory is not known";
pub(super) const ADDRESS: &str = "its address is not understood";
pub(super) const SHADOWED: &str = "a register and a variable of the module have the name of its address";

/// Functions of the driver that a kernel may call although they are in no module: they go to memory that they are given by generic
/// addresses of the kernel's own stack, and to their own.
const OF_THE_DRIVER: [&str; 2] = ["vprintf", "__assertfail"];

/// Instructions with an address that is always of shared or tensor memory.
const ON_CHIP: [&str; 5] = ["mbarrier", "ldmatrix", "stmatrix", "tcgen05", "clusterlaunchcontrol"];

/// What an instruction does to memory.
///
/// `tells` says that the function may name variables, and call functions of the driver: see [`tells`].
pub(super) fn access(
    module: &Module<'_>,
    instruction: &Instruction<'_>,
    pointers: Pointers,
    tells: bool,
) -> Access {
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
        } else if pointers == Pointers::Any {
            // No window of shared or local memory is where an arena is.
            Access::Global { operand }
        } else {
            Access::Refused(GENERIC)
        }
    };
    if !tells && names_variable(module, instruction) {
        return Access::Refused(VARIABLE);
    }
    match parts[0] {
        "cp" if has("bulk") && (has("global") || has("tensor")) => Access::Refused(BULK),
        "cp" if has("bulk") => Access::None,
        // `cp.async.wait_group` and the like have no address.
        "cp" if has("shared") && has("global") => Access::Global { operand: 1 },
        "cp" if has("async") => Access::None,
        "ld" | "ldu" | "atom" => space(1),
        // Without `.global` these go to shared memory of a cluster.
        "st" | "red" if has("async") && !has("global") => Access::None,
        "st" | "red" | "discard" | "applypriority" => space(0),
        "prefetch" if has("tensormap") => Access::Refused(OBJECT),
        "prefetch" => space(0),
        "prefetchu" => Access::Refused(GENERIC),
        "wmma" if has("load") || has("store") => match space(0) {
            Access::None => Access::None,
            _ => Access::Refused(FRAGMENT),
        },
        "tex" | "tld4" | "suld" | "sust" | "sured" | "tensormap" | "multimem" => Access::Refused(OBJECT),
        "call" if !(is_own(module, instruction) || tells && is_of_the_driver(module, instruction)) => {
            Access::Refused(FOREIGN)
        }
        "call" => Access::None,
        first if ON_CHIP.contains(&first) => Access::None,
        // Whatever else has an address.
        _ if instruction.operands.iter().any(|place| module.text[place.clone()].starts_with('[')) => {
            Access::Refused(UNKNOWN)
        }
        _ => Access::None,
    }
}

/// The address of an access to global memory; `None` where it stays as it is.
///
/// # Errors
/// With why not, where it cannot be translated.
pub(super) fn address<'a>(
    module: &Module<'a>,
    function: &Function<'a>,
    operand: &'a str,
    pointers: Pointers,
) -> Result<Option<Address<'a>>, &'static str> {
    let address = Address::of(operand).ok_or(ADDRESS)?;
    if address.base.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(FIXED);
    }
    if !module.globals.contains(&address.base) {
        return Ok(Some(address));
    }
    if function.registers.iter().any(|register| register.is(address.base)) {
        return Err(SHADOWED);
    }
    // A variable of the module has a fixed place outside the arena.
    if pointers == Pointers::Fenced { Err(OUTSIDE) } else { Ok(None) }
}

/// Whether a function may have addresses of variables, and call functions of the driver: with pointers of any kind always; with the arena's alone
/// where such an address goes nowhere but to the driver, as the text of an assertion does.
pub(super) fn tells(module: &Module<'_>, function: &Function<'_>, pointers: Pointers) -> bool {
    let mut calls = function.instructions.iter().filter(|one| one.parts().next() == Some("call")).peekable();
    match pointers {
        Pointers::Any => true,
        Pointers::Fenced => false,
        // What another function does with an argument is not followed.
        Pointers::Arena => {
            calls.peek().is_some()
                && calls.all(|call| is_of_the_driver(module, call))
                && addresses_go_to_calls(module, function)
        }
    }
}

/// Whether registers that have the address of a variable are only ever copied, or stored as arguments.
fn addresses_go_to_calls(module: &Module<'_>, function: &Function<'_>) -> bool {
    let mut holding = BTreeSet::new();
    let is_copy = |one: &Instruction<'_>| {
        let is_one = one.operand(module, 0).is_some_and(|to| !to.starts_with('{'));
        is_one && one.operands.len() == 2 && matches!(one.parts().next(), Some("mov" | "cvta"))
    };
    loop {
        let before = holding.len();
        for one in function.instructions.iter().filter(|one| is_copy(one)) {
            let (Some(to), Some(from)) = (one.operand(module, 0), one.operand(module, 1)) else { continue };
            if words(from).any(|word| module.globals.contains(&word) || holding.contains(word)) {
                holding.insert(to);
            }
        }
        if holding.len() == before {
            break;
        }
    }
    function.instructions.iter().all(|one| {
        let is_argument = one.opcode.starts_with("st.param.");
        // By its name a variable may be accessed, by a register not.
        let mut operands = one.operands.iter().map(|place| &module.text[place.clone()]);
        let names = |operand: &str| {
            let is_access = operand.starts_with('[');
            words(operand).any(|word| holding.contains(word) || !is_access && module.globals.contains(&word))
        };
        !operands.any(names) || is_copy(one) || is_argument && !one.operand(module, 0).is_some_and(names)
    })
}

/// Whether what is called is a function with a body of the same module, and so rewritten itself.
fn is_own(module: &Module<'_>, call: &Instruction<'_>) -> bool {
    let mut names = (0..call.operands.len()).filter_map(|index| call.operand(module, index));
    names.any(|name| module.functions.iter().any(|function| function.name == name))
}

fn is_of_the_driver(module: &Module<'_>, call: &Instruction<'_>) -> bool {
    let mut names = (0..call.operands.len()).filter_map(|index| call.operand(module, index));
    names.any(|name| OF_THE_DRIVER.contains(&name))
}

/// Names in an operand.
fn words(operand: &str) -> impl Iterator<Item = &str> {
    operand.split(['+', '-', ' ', '(', ')', '{', '}', ',', '[', ']']).filter(|word| !word.is_empty())
}

/// Whether the address of a variable is among the operands, as a value.
fn names_variable(module: &Module<'_>, instruction: &Instruction<'_>) -> bool {
    let operands = instruction.operands.iter().map(|place| &module.text[place.clone()]);
    let mut words = operands.filter(|operand| !operand.starts_with(['[', '%'])).flat_map(words);
    words.any(|word| module.globals.contains(&word))
}

/// An address as an instruction has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address<'a> {
    /// A register, a variable or a number.
    pub(super) base: &'a str,
    /// Bytes from there.
    pub(super) offset: i64,
}

impl<'a> Address<'a> {
    /// `[base]`, `[base+16]`, `[ base + -16 ]`.
    pub(super) fn of(operand: &'a str) -> Option<Self> {
        let inner = operand.strip_prefix('[')?.strip_suffix(']')?.trim();
        let end = inner.find(['+', ' ', '-']).unwrap_or(inner.len());
        let (base, rest) = inner.split_at(end);
        let rest = rest.trim();
        let offset = match rest.strip_prefix('+') {
            _ if rest.is_empty() => 0,
            Some(offset) => number(offset.trim())?,
            None => number(rest)?,
        };
        let is_one = base.starts_with(|first: char| first.is_ascii_alphanumeric() || "_$%".contains(first));
        is_one.then_some(Self { base, offset })
    }
}

fn number(text: &str) -> Option<i64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => i64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}
