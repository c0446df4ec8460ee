//! The exports for x86-64. `RTLD_DEFAULT` is 0 and `RTLD_NEXT` is -1.

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
                "endbr64",
                "lea rax, [rdi + 1]",
                "cmp rax, 1",
                "ja {on_handle}",
                "mov rax, qword ptr [rip + {known}]",
                "test rax, rax",
                "jnz 2f",
                // Three pushes also bring the stack back to a multiple of 16.
                "push rdi",
                "push rsi",
                "push rdx",
                "call {find}",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "2: jmp rax",
                known = sym $known,
                find = sym $find,
                on_handle = sym $on_handle,
            )
        }
    };
}

export!(dlsym, DLSYM, find_dlsym, super::on_handle);
export!(dlvsym, DLVSYM, find_dlvsym, super::on_handle_versioned);
