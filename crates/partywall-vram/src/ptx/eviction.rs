//! Accesses that leave the L2 first.
//!
//! What a best-effort tenant loads or stores without need takes room in the L2 from its neighbours, on both sides. PTX has two ways to
//! say that something may go first. `.cs` is for loads and stores that say nothing else, and costs nothing; it is what was measured to help.
//! The others (atomic operations, `cp.async`, accesses with an order of memory, an operator or a priority in L1) take a policy in a register,
//! which is made once in a function (sm_80, PTX 7.4). Policies that the kernel makes for itself become ones that evict first as well.
//!
//! A `cp.async` with a policy is miscompiled by the assemblers of CUDA 12.8 to 13.1 (13.4 is right) where the place in shared memory is the sum
//! of a uniform register and another one, as it is in every loop with several stages: the instruction then takes uniform registers that nothing
//! has written, and the GPU stops with an illegal instruction. So the place takes a *detour*: one operation, exclusive or with a zero that the
//! assembler does not know to be one, that leaves no sum to be seen.

use super::access::Address;
use super::source::{Function, Header, Instruction, Module};

/// The register that has the policy.
pub(super) const POLICY: &str = "%partywall_e";

/// Declares and makes it.
pub(super) const MAKE_POLICY: &str =
    "\n\t.reg .b64 \t%partywall_e;\n\tcreatepolicy.fractional.L2::evict_first.b64 \t%partywall_e, 1.0;";

/// Declares and makes what a detour takes. The mask of the lanes below never has the bit of the last one.
pub(super) const MAKE_DETOUR: &str =
    "\n\t.reg .b32 \t%partywall_d, %partywall_z;\n\tmov.u32 \t%partywall_z, %lanemask_lt;";

/// How an instruction is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hinted {
    /// What it is called then.
    pub(super) opcode: String,
    /// Whether the policy is to be its last operand.
    pub(super) takes_policy: bool,
    /// What comes before it, and its first operand behind that.
    pub(super) detour: Option<(String, String)>,
}

/// The way to a place in shared memory; `None` where that is not in a register of 32 bits.
fn detour(operand: &str, function: &Function<'_>) -> Option<(String, String)> {
    let Address { base, offset } = Address::of(operand)?;
    let mut registers = function.registers.iter().filter(|register| register.is(base)).peekable();
    registers.peek()?;
    if registers.any(|register| !matches!(register.kind, "b32" | "u32" | "s32")) {
        return None;
    }
    let before = format!("lop3.b32 \t%partywall_d, {base}, %partywall_z, 0x80000000, {XOR_AND};\n\t");
    let operand = if offset == 0 { "[%partywall_d]".to_owned() } else { format!("[%partywall_d+{offset}]") };
    Some((before, operand))
}

/// The first operand, turned over where the two others are set.
const XOR_AND: u32 = 0x78;

/// Whether a module can have policies.
fn has_policies(header: &Header) -> bool {
    header.target >= 80 && header.version >= 704
}

/// An access to global memory that is told; `None` where it says so itself, has a policy, or cannot be told.
pub(super) fn hinted(
    module: &Module<'_>,
    function: &Function<'_>,
    instruction: &Instruction<'_>,
) -> Option<Hinted> {
    let parts: Vec<&str> = instruction.parts().collect();
    let has = |part: &str| parts.contains(&part);
    let is_moving = matches!(parts[0], "ld" | "st");
    if has("L2::cache_hint")
        || has("cs")
        || has("volatile")
        || has("mmio")
        || has("async") && parts[0] != "cp"
    {
        return None;
    }
    let is_plain = !parts.iter().any(|part| {
        is_operator(part) || is_priority(part) || matches!(*part, "relaxed" | "acquire" | "release")
    });
    if is_moving && is_plain {
        // Behind the space, or behind what has none.
        let at = parts.iter().rposition(|part| matches!(*part, "global" | "weak")).unwrap_or(0) + 1;
        return Some(Hinted { opcode: with(&parts, at, "cs"), takes_policy: false, detour: None });
    }
    if !has_policies(&module.header) {
        return None;
    }
    let mut way = None;
    let at = match parts[0] {
        "ld" | "st" => {
            let is_before = |part: &&str| {
                matches!(
                    *part,
                    "global"
                        | "nc"
                        | "gpu"
                        | "sys"
                        | "cta"
                        | "cluster"
                        | "relaxed"
                        | "acquire"
                        | "release"
                        | "weak"
                ) || is_operator(part)
                    || is_priority(part)
            };
            parts.iter().rposition(is_before)? + 1
        }
        "cp" => {
            way = Some(detour(instruction.operand(module, 0)?, function)?);
            parts.iter().position(|part| *part == "global")? + 1
        }
        // The assembler takes none with these.
        "atom" if has("cas") || has("b128") => return None,
        // In front of the type, and of how many there are of it.
        "atom" | "red" => {
            let is_vector = parts.len() > 2 && matches!(parts[parts.len() - 2], "v2" | "v4" | "v8");
            parts.len() - 1 - usize::from(is_vector)
        }
        _ => return None,
    };
    Some(Hinted { opcode: with(&parts, at, "L2::cache_hint"), takes_policy: true, detour: way })
}

/// A policy that the kernel makes, or a line that it asks for, as one that goes first; `None` where it is none, or does already.
pub(super) fn demoted(instruction: &Instruction<'_>) -> Option<String> {
    let parts: Vec<&str> = instruction.parts().collect();
    let lowest = match parts[..] {
        ["createpolicy", "fractional" | "range", ..] => "L2::evict_first",
        // There is no lower one for these.
        ["prefetch" | "applypriority", ..] => "L2::evict_normal",
        _ => return None,
    };
    let at = parts.iter().position(|part| part.starts_with("L2::evict_"))?;
    if parts[at] == lowest {
        return None;
    }
    let mut parts = parts;
    parts[at] = lowest;
    Some(parts.join("."))
}

/// How a load or a store is cached.
fn is_operator(part: &str) -> bool {
    matches!(part, "ca" | "cg" | "cs" | "cv" | "lu" | "wb" | "wt")
}

/// How long it stays; `L2::128B` is no such thing but how much is fetched.
fn is_priority(part: &str) -> bool {
    part.starts_with("L1::") || part.starts_with("L2::evict_")
}

fn with<'a>(parts: &[&'a str], at: usize, new: &'a str) -> String {
    let mut parts = parts.to_vec();
    parts.insert(at, new);
    parts.join(".")
}
