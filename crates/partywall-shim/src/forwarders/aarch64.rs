//! Forwarders for 64-bit Arm, procedure call standard AAPCS64.

use std::arch::naked_asm;

/// Makes an export of each name that jumps through the slot of its number. `x9` and `x16` carry no argument and belong to
/// whoever is called; `x16` is also what a landing pad for calls (`hint 34`, `bti c`) lets a jump come through.
macro_rules! forwarders {
    ($($index:literal $name:ident)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "the name is the driver's")]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "hint 34",
                "adrp x16, {slots} + {offset}",
                "ldr x16, [x16, #:lo12:{slots} + {offset}]",
                "cbz x16, 2f",
                "br x16",
                "2: mov w9, #{index}",
                "b {resolver}",
                slots = sym $crate::forwarders::SLOTS,
                offset = const $index * 8,
                index = const $index,
                resolver = sym $crate::forwarders::arch::resolver,
            )
        }
    )* };
}
pub(super) use forwarders;

/// Finds where slot `w9` leads and goes there, with everything that can carry an argument as it was: `x0` to `x7`, `x8`
/// (where a large result goes) and `q0` to `q7`. What is on the stack stays there.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resolver() {
    naked_asm!(
        "hint 34",
        "stp x29, x30, [sp, #-224]!",
        "mov x29, sp",
        "stp x0, x1, [sp, #16]",
        "stp x2, x3, [sp, #32]",
        "stp x4, x5, [sp, #48]",
        "stp x6, x7, [sp, #64]",
        "str x8, [sp, #80]",
        "stp q0, q1, [sp, #96]",
        "stp q2, q3, [sp, #128]",
        "stp q4, q5, [sp, #160]",
        "stp q6, q7, [sp, #192]",
        "mov w0, w9",
        "bl {resolve}",
        "mov x16, x0",
        "ldp x0, x1, [sp, #16]",
        "ldp x2, x3, [sp, #32]",
        "ldp x4, x5, [sp, #48]",
        "ldp x6, x7, [sp, #64]",
        "ldr x8, [sp, #80]",
        "ldp q0, q1, [sp, #96]",
        "ldp q2, q3, [sp, #128]",
        "ldp q4, q5, [sp, #160]",
        "ldp q6, q7, [sp, #192]",
        "ldp x29, x30, [sp], #224",
        "br x16",
        resolve = sym super::resolve,
    )
}
