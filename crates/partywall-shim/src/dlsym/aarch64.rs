//! The exports for 64-bit Arm. `RTLD_DEFAULT` is 0 and `RTLD_NEXT` is -1.

use std::arch::naked_asm;

use crate::loader::{DLSYM, DLVSYM, find_dlsym, find_dlvsym};

/// Makes an export that goes to `on_handle` for a handle, and to the loader's own function, as if it had been called in
/// the first place, for the two that depend on the caller.
macro_rules! export {
    ($name:ident, $known:ident, $find:ident, $on_handle:path) => {
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(super) unsafe extern "C" fn $name() {
            naked_asm!(
                "hint 34",
                "add x9, x0, #1",
                "cmp x9, #1",
                "b.ls 2f",
                "b {on_handle}",
                "2: adrp x16, {known}",
                "ldr x16, [x16, #:lo12:{known}]",
                "cbnz x16, 3f",
                "stp x29, x30, [sp, #-48]!",
                "mov x29, sp",
                "stp x0, x1, [sp, #16]",
                "str x2, [sp, #32]",
                "bl {find}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldr x2, [sp, #32]",
                "ldp x29, x30, [sp], #48",
                "3: br x16",
                known = sym $known,
                find = sym $find,
                on_handle = sym $on_handle,
            )
        }
    };
}

export!(dlsym, DLSYM, find_dlsym, super::on_handle);
export!(dlvsym, DLVSYM, find_dlvsym, super::on_handle_versioned);
