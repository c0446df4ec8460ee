//! Forwarders for x86-64, System V calling convention.

use std::arch::naked_asm;

/// Makes an export of each name that jumps through the slot of its number. `r11` carries no argument and belongs to
/// whoever is called.
macro_rules! forwarders {
    ($($index:literal $name:ident)*) => { $(
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        #[allow(non_snake_case, reason = "the name is the driver's")]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "endbr64",
                "mov r11, qword ptr [rip + {slots} + {offset}]",
                "test r11, r11",
                "jz 2f",
                "jmp r11",
                "2: mov r11d, {index}",
                "jmp {resolver}",
                slots = sym $crate::forwarders::SLOTS,
                offset = const $index * 8,
                index = const $index,
                resolver = sym $crate::forwarders::arch::resolver,
            )
        }
    )* };
}
pub(super) use forwarders;

/// Finds where slot `r11` leads and goes there, with everything that can carry an argument as it was: the six integer
/// registers, `rax` (how many vector registers a variadic call uses, in `al`) and the eight vector registers. What is on
/// the stack stays there.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn resolver() {
    naked_asm!(
        // At entry the stack is 8 bytes off a multiple of 16; after this push it is not.
        "push rbp",
        "mov rbp, rsp",
        "sub rsp, 192",
        "mov [rsp + 128], rdi",
        "mov [rsp + 136], rsi",
        "mov [rsp + 144], rdx",
        "mov [rsp + 152], rcx",
        "mov [rsp + 160], r8",
        "mov [rsp + 168], r9",
        "mov [rsp + 176], rax",
        "movaps [rsp], xmm0",
        "movaps [rsp + 16], xmm1",
        "movaps [rsp + 32], xmm2",
        "movaps [rsp + 48], xmm3",
        "movaps [rsp + 64], xmm4",
        "movaps [rsp + 80], xmm5",
        "movaps [rsp + 96], xmm6",
        "movaps [rsp + 112], xmm7",
        "mov edi, r11d",
        "call {resolve}",
        "mov r11, rax",
        "mov rdi, [rsp + 128]",
        "mov rsi, [rsp + 136]",
        "mov rdx, [rsp + 144]",
        "mov rcx, [rsp + 152]",
        "mov r8, [rsp + 160]",
        "mov r9, [rsp + 168]",
        "mov rax, [rsp + 176]",
        "movaps xmm0, [rsp]",
        "movaps xmm1, [rsp + 16]",
        "movaps xmm2, [rsp + 32]",
        "movaps xmm3, [rsp + 48]",
        "movaps xmm4, [rsp + 64]",
        "movaps xmm5, [rsp + 80]",
        "movaps xmm6, [rsp + 96]",
        "movaps xmm7, [rsp + 112]",
        "leave",
        "jmp r11",
        resolve = sym super::resolve,
    )
}
