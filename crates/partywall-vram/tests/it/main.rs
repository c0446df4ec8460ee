//! Kernels that a compiler made, rewritten: what is touched, and that nothing else is.
//!
//! The PTX in `tests/kernels` is what Triton 3.6 makes of kernels in `workloads/torch/triton_kernels.py` for `sm_90a`:
//! `TRITON_DISABLE_LINE_INFO=1 python3 workloads/checks/ptx_rewrite.py --compile-only --ptx DIR`. That script also has them assembled, and run.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a helper that fails fails its test")]

use std::path::Path;

use partywall_vram::ptx::rewrite::{Options, Rewritten, rewrite};
use partywall_vram::ptx::source::read;

const ARENA: &str =
    "mask=0x2ab000,logical=0x700000000000,mapped=0x720000000000,length=0x200000000,parity=odd";

/// File, accesses that are translated, and how many of them can be told to go first (policies of the kernel included).
const KERNELS: [(&str, usize, usize); 11] = [
    ("attention.fp16.d64.w4.s3", 40, 40),
    ("gather.fp16", 3, 2),
    ("histogram.i32", 11, 11),
    ("layer_norm.fp16.w4", 8, 8),
    ("matmul.fp16.128x128x64.w8.s3", 32, 32),
    ("matmul.fp16.32x64x64.w4.s4", 26, 26),
    ("modified.fp32", 16, 12),
    ("softmax_rows.fp16.w8.s4", 5, 5),
    ("sum_locked.fp32", 8, 7),
    ("transpose.fp16", 8, 8),
    ("vector_add.fp32.w4", 6, 6),
];

fn kernel(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    std::fs::read_to_string(folder.join(format!("{name}.ptx"))).unwrap()
}

fn options(more: &str) -> Options {
    format!("{ARENA}{more}").parse().unwrap()
}

/// Whether a line is one of ours: the mark, registers, or an instruction that computes one of them.
fn is_added(line: &str) -> bool {
    let words = line.trim_start();
    words.starts_with(".weak .global .align 4 .u32 partywall_")
        || words.starts_with(".reg") && words.contains("%partywall_")
        || words
            .split_whitespace()
            .nth(1)
            .is_some_and(|first| first.trim_start_matches('{').starts_with("%partywall_"))
}

/// The line without its address, hints and policy: what has to be the same of an access.
fn without_address(line: &str) -> String {
    let mut line = line.replace(", %partywall_e;", ";").replace(".L2::cache_hint", "");
    for hint in [".cs", ".L2::evict_first", ".L2::evict_last"] {
        line = line.replace(hint, "");
    }
    // The place in shared memory that a copy goes to by a detour.
    if let (true, Some(begin), Some(end)) = (line.contains("cp.async.c"), line.find('['), line.find(']')) {
        line.replace_range(begin..end, "[");
    }
    // Of two addresses the second one is in global memory.
    let begin = line.rfind('[').unwrap_or(line.len());
    let end = line[begin..].find(']').map_or(begin, |at| begin + at);
    line.replace_range(begin..end, "[");
    line
}

#[test]
fn what_goes_to_global_memory_is_translated_and_nothing_else_is_touched() {
    for (name, translated, evict_first) in KERNELS {
        let text = kernel(name);
        for more in ["", ",evict-first", ",pointers=fenced,evict-first", ",pointers=any"] {
            let Rewritten { text: rewritten, functions } = rewrite(&text, &options(more)).unwrap();
            let counts = (functions.len(), functions[0].translated, functions[0].evict_first);
            let hints = if more.contains("evict") { evict_first } else { 0 };
            assert_eq!(counts, (1, translated, hints), "{name}{more}");
            // Nothing is left that goes to global memory by its own address.
            let module = read(&rewritten).unwrap();
            let left = module.functions[0].instructions.iter().filter(|one| {
                one.opcode.contains(".global") && !rewritten[one.place.clone()].contains("[%partywall_b]")
            });
            assert_eq!(left.count(), 0, "{name}{more}");
            let kept: Vec<_> = rewritten.lines().filter(|line| !is_added(line)).collect();
            assert_eq!(kept.len(), text.lines().count(), "{name}{more}");
            let mut changed = 0;
            for (before, after) in text.lines().zip(kept) {
                if before != after {
                    assert_eq!(without_address(before), without_address(after), "{name}{more}");
                    changed += usize::from(after.contains("[%partywall_b]"));
                    // A detour begins where the copy went.
                    let place =
                        |line: &str| line.split(['[', ']']).nth(1).unwrap_or_default().trim().to_owned();
                    if before.contains("cp.async.c") && place(before) != place(after) {
                        let base = place(before).replace(" + 0", "");
                        let detour =
                            format!("lop3.b32 \t%partywall_d, {base}, %partywall_z, 0x80000000, 120;\n");
                        assert!(place(after) == "%partywall_d" && rewritten.contains(&detour), "{after}");
                    }
                }
            }
            assert_eq!(changed, translated, "{name}{more}");
        }
    }
}

#[test]
fn tensor_descriptors_are_refused_by_name() {
    for more in ["", ",pointers=any", ",pointers=fenced"] {
        let refused = rewrite(&kernel("matmul_described.fp16"), &options(more)).unwrap_err().to_string();
        assert!(
            refused.contains(
                "`tensormap.replace.tile.global_address.shared::cta.b1024.b64` cannot be translated"
            ),
            "{refused}"
        );
    }
}

#[test]
fn a_kernel_that_prints_may() {
    let text = kernel("printing");
    for more in ["", ",pointers=any"] {
        assert_eq!(rewrite(&text, &options(more)).unwrap().functions[0].translated, 1);
    }
    let refused = rewrite(&text, &options(",pointers=fenced")).unwrap_err().to_string();
    assert!(
        refused.contains("printing: `mov.b64` cannot be translated: it takes the address of a variable"),
        "{refused}"
    );
}
