use std::collections::BTreeMap;

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};

use super::super::access::{
    ADDRESS, Address, BULK, FIXED, FOREIGN, FRAGMENT, GENERIC, OBJECT, OUTSIDE, SHADOWED, UNKNOWN, VARIABLE,
};
use super::*;

/// An H200's bits within a page, and the first above it for the page's constant.
const MASK: u32 = 0xab000 | 1 << 21;

fn options(odd: bool) -> Options {
    let coloring = Coloring::new(0x7000_0000_0000, 0x7200_0040_0000, 1 << 33, MASK, odd).unwrap();
    Options { coloring, pointers: Pointers::Arena, evict_first: false }
}

/// Arenas of every kind: both places at multiples of 4 GiB or not, a length that is a power of two or not, and each bit of the mask put in; some
/// of them are no longer than that.
fn arenas(odd: bool) -> impl Iterator<Item = Options> {
    let places = [(0x7000_0000_0000, 0x7200_0000_0000), (0x7000_0040_0000, 0x7200_00c0_0000)];
    let all = places.into_iter().flat_map(|place| [1 << 33, 3 << 21, 1 << 20].map(|length| (place, length)));
    let all = all.flat_map(|arena| [1 << 12, 1 << 15, 1 << 19, 1 << 21].map(|split| (arena, split)));
    let low = all.map(move |(((logical, mapped), length), split)| (logical, mapped, length, MASK, split));
    // The bit of an arena that moves as a whole, with bits above it and without.
    let whole =
        [(MASK & !(1 << 21) | 1 << 30, 1 << 30), (MASK | 1 << 30, 1 << 30), (MASK | 1 << 31, 1 << 21)];
    let whole =
        whole.into_iter().flat_map(|(mask, split)| [1 << 30, 1 << 20].map(|length| (mask, split, length)));
    let places = [(0x7000_0000_0000, 0x7000_0000_0000), (0x7000_0000_0000, 0x7200_8000_0000)];
    let whole = whole.flat_map(move |(mask, split, length)| {
        places.map(|(logical, mapped)| (logical, mapped, length, mask, split))
    });
    low.chain(whole).map(move |(logical, mapped, length, mask, split)| {
        let coloring =
            Coloring::new(logical, mapped, length, mask, odd).and_then(|one| one.split_at(split)).unwrap();
        Options { coloring, pointers: Pointers::Arena, evict_first: false }
    })
}

/// A kernel with this body.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.7\n.target sm_90\n.address_size 64\n.global .align 4 .b8 table[8];\n.visible .entry k(.param .u64 k_0)\n{{\n\t.reg .b64 \t%rd<9>; .reg .b32 %r<9>;\n\t{body}\n\tret;\n}}\n"
    )
}

fn rewritten(text: &str, options: &Options) -> Rewritten {
    rewrite(text, options).unwrap()
}

impl Rewritten {
    fn counts(&self) -> (usize, usize) {
        let sum = |of: fn(&Done) -> usize| self.functions.iter().map(of).sum();
        (sum(|done| done.translated), sum(|done| done.evict_first))
    }
}

/// Does what the integer instructions of a function say, up to the first access; gives the address that it has.
fn execute(text: &str, registers: &[(&str, u64)]) -> u64 {
    let module = read(text).unwrap();
    let mut values: BTreeMap<&str, u64> = registers.iter().copied().collect();
    for one in &module.functions[0].instructions {
        let operand = |index: usize| one.operand(&module, index).unwrap();
        if one.opcode.starts_with("ld.") {
            return values[operand(1).trim_matches(['[', ']'])];
        }
        let value = |index: usize| {
            let text = operand(index);
            values.get(text).copied().unwrap_or_else(|| {
                let number = |text: &str| match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                    None => text.parse().unwrap(),
                };
                text.parse::<i64>().map_or_else(|_| number(text), i64::cast_unsigned)
            })
        };
        let word = |index: usize| value(index) as u32;
        let pair = |index: usize| {
            operand(index).strip_prefix('{').map(|rest| rest.trim_end_matches('}').split_once(", ").unwrap())
        };
        let result = match one.opcode {
            "mov.b64" if pair(0).is_some() => {
                let ((low, high), value) = (pair(0).unwrap(), value(1));
                values.extend([(low, value & 0xffff_ffff), (high, value >> 32)]);
                continue;
            }
            "mov.b64" => {
                let (low, high) = pair(1).unwrap();
                values[high] << 32 | values[low]
            }
            "add.s64" => value(1).wrapping_add(value(2)),
            "sub.s64" => value(1).wrapping_sub(value(2)),
            "and.b64" => value(1) & value(2),
            "add.s32" => u64::from(word(1).wrapping_add(word(2))),
            "and.b32" => u64::from(word(1) & word(2)),
            "shl.b32" => u64::from(word(1) << word(2)),
            "shf.l.wrap.b32" => (value(2) << 32 | value(1)) << (value(3) % 32) >> 32,
            "popc.b32" => u64::from(word(1).count_ones()),
            "lop3.b32" => {
                let (operands, table) = ([word(1), word(2), word(3)], word(4));
                let bit = |at: u32| {
                    let [a, b, c] = operands.map(|operand| operand >> at & 1);
                    u64::from(table >> (a << 2 | b << 1 | c) & 1) << at
                };
                (0..32).map(bit).sum()
            }
            "setp.lt.u64" => u64::from(value(1) < value(2)),
            "selp.b64" => value(if value(3) == 1 { 1 } else { 2 }),
            other => panic!("{other}"),
        };
        values.insert(operand(0), result);
    }
    panic!("no access in {text}")
}

proptest! {
    // Each of them is tried on every kind of arena.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn t1_an_address_is_translated_to_its_place(at in any::<u64>(), offset in -4_096_i64..4_096, odd in any::<bool>()) {
        for (arena, pointers) in arenas(odd).flat_map(|arena| [Pointers::Arena, Pointers::Any, Pointers::Fenced].map(|pointers| (arena, pointers))) {
            let options = Options { pointers, ..arena };
            let coloring = options.coloring;
            let address = coloring.logical() + at % coloring.length();
            let text = rewritten(&kernel(&format!("ld.global.b32 \t%r1, [%rd1+{offset}];")), &options).text;
            let found = execute(&text, &[("%rd1", address.wrapping_sub(offset.cast_unsigned()))]);
            prop_assert_eq!(Some(found), coloring.place(address));
        }
    }

    #[test]
    fn t1_an_address_of_elsewhere_stays(at in any::<u64>()) {
        for arena in arenas(true) {
            let options = Options { pointers: Pointers::Any, ..arena };
            let coloring = options.coloring;
            // Also where the instruction does not say which memory it goes to.
            for load in ["ld.global.b32", "ld.b32"] {
                let text = rewritten(&kernel(&format!("{load} \t%r1, [%rd1];")), &options).text;
                let expected = coloring.place(at).unwrap_or(at);
                prop_assert_eq!(execute(&text, &[("%rd1", at)]), expected);
                for edge in [coloring.logical() - 1, coloring.logical() + coloring.length()] {
                    prop_assert_eq!(execute(&text, &[("%rd1", edge)]), edge);
                }
            }
        }
    }

    #[test]
    fn t5_no_address_leaves_the_arena_or_its_color(at in any::<u64>(), near in -20_000_i64..20_000, odd in any::<bool>()) {
        for arena in arenas(odd) {
            let options = Options { pointers: Pointers::Fenced, ..arena };
            let coloring = options.coloring;
            let text = rewritten(&kernel("ld.global.b32 \t%r1, [%rd1+8];"), &options).text;
            let (begin, length) = (coloring.logical(), coloring.length());
            for address in [at, begin.wrapping_add_signed(near), (begin + length).wrapping_add_signed(near), 0, u64::MAX] {
                let place = execute(&text, &[("%rd1", address)]);
                // There is a byte of the arena there, so it is inside and of its color.
                let seen = coloring.seen(place);
                prop_assert!(seen.is_some(), "{address:#x} goes to {place:#x}");
                let within = address.wrapping_add(8).wrapping_sub(begin) < length;
                prop_assert_eq!(within, seen == Some(address.wrapping_add(8)));
                // What is aligned stays so.
                prop_assert!(place % 16 == address.wrapping_add(8) % 16 || place == coloring.place(begin).unwrap());
            }
        }
    }
}

/// Without what was put in, and with the old operands.
fn undone(rewritten: &str, options: &Options, operands: &[&str]) -> String {
    let mark = format!(".weak .global .align 4 .u32 {};\n", options.mark());
    let mut text = rewritten.replacen(&mark, "", 1).replacen(MAKE_POLICY, "", 1).replacen(REGISTERS, "", 1);
    for operand in operands {
        let address = Address::of(operand).unwrap();
        let added = translation(&address, &options.coloring, options.pointers);
        assert!(text.contains(&added), "{added} is not in {text}");
        text = text.replacen(&added, "", 1).replacen("[%partywall_b]", operand, 1);
    }
    text
}

#[test]
fn t2_what_goes_elsewhere_stays_to_the_last_blank() {
    let body = "ld.param.b64   %rd1, [k_0]; // why\n\t@%p1 st.shared.v4.b32 [ %r1 + 0 ], {%r1,%r2 , %r3, %r4};\n\tbar.sync \t0;\n\t\
                ld.global.b32 %r9, [table+4];\n\twgmma.fence.sync.aligned; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5];\n\t\
                mbarrier.init.shared::cta.b64 [%r1], 1; cp.async.bulk.commit_group; st.async.b32 [%r1], %r2, [%r3];";
    let text = kernel(body);
    let stays = rewritten(&text, &options(false));
    assert_eq!(stays.counts(), (0, 0));
    assert_eq!(undone(&stays.text, &options(false), &[]), text);
    let operands = ["[ %rd1 + 16 ]", "[%rd2]", "[%rd3+-8]", "[ %rd4 ]", "[address]"];
    let body = format!(
        "@%p1 ld.global.v2.b32 {{ %r1, %r2 }}, {};\n\tst.global.b32 {}, %r1;\n\tatom.global.add.f32 %f1, {}, %f2; \
         cp.async.ca.shared.global [%r1], {}, 16, %r2;\n\t{{ .reg .b64 address; ld.global.b32 %r1, {}; }}",
        operands[0], operands[1], operands[2], operands[3], operands[4]
    );
    let text = kernel(&body);
    for pointers in [Pointers::Arena, Pointers::Any, Pointers::Fenced] {
        let options = Options { pointers, ..options(false) };
        let rewritten = rewritten(&text, &options);
        assert_eq!(rewritten.counts(), (5, 0));
        assert_eq!(undone(&rewritten.text, &options, &operands), text);
    }
}

fn refused(body: &str) -> String {
    rewrite(&kernel(body), &options(false)).unwrap_err().to_string()
}

#[test]
fn t3_what_is_not_understood_is_refused_by_name_and_line() {
    assert_eq!(
        refused("mov.b32 %r1, 0;\n\tld.b32 %r1, [%rd1];"),
        "line 9, k: `ld.b32` cannot be translated: its address is a generic one, which may be anything's"
    );
    let why = [
        ("st.b32 [%rd1], %r1;", GENERIC),
        ("atom.add.u32 %r1, [%rd1], 1;", GENERIC),
        ("red.gpu.add.u32 [%rd1], 1;", GENERIC),
        ("prefetchu.L1 [%rd1];", GENERIC),
        (
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], 128, [%r2];",
            BULK,
        ),
        (
            "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];",
            BULK,
        ),
        ("multimem.ld_reduce.global.add.f32 %f1, [%rd1];", OBJECT),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1}, [%rd1], 16;", FRAGMENT),
        ("tex.2d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [%rd1, {%r1, %r2}];", OBJECT),
        ("call.uni (retval0), malloc, (param0);", FOREIGN),
        ("mov.b64 %rd1, table;", VARIABLE),
        ("mov.u64 %rd1, generic(table);", VARIABLE),
        ("cvta.global.u64 %rd1, table;", VARIABLE),
        ("ld.global.b32 %r1, [%rd1+%rd2];", ADDRESS),
        ("ld.global.b32 %r1, [4096];", FIXED),
        ("ld.global.b32 %r1, [(%rd1)];", ADDRESS),
        ("add.s64 %rd1, table, 4;", VARIABLE),
        ("st.param.b64 [param0], table;", VARIABLE),
        ("{ .reg .b64 table;} ld.global.b32 %r1, [table];", SHADOWED),
        ("frobnicate.b32 %r1, [%rd1];", UNKNOWN),
        ("fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;", UNKNOWN),
    ];
    for (body, why) in why {
        let message = refused(body);
        assert!(message.ends_with(why) && message.starts_with("line 8, k: "), "{body}: {message}");
    }
    // All of them are named.
    let many = refused(&"ld.b32 %r1, [%rd1];\n\t".repeat(20));
    assert!(many.lines().count() == 9 && many.ends_with("and 12 more"), "{many}");
    // A variable's address is one like others where all are asked about.
    let any = Options { pointers: Pointers::Any, ..options(false) };
    let text = kernel(
        "mov.b64 %rd1, table;\n\tld.global.b32 %r1, [%rd1];\n\tcall.uni (retval0), vprintf, (param0, param1);",
    );
    assert_eq!(rewritten(&text, &any).counts(), (1, 0));
    let own = kernel("ld.global.b32 %r1, [table];");
    assert_eq!(rewritten(&own, &any).counts(), (0, 0));
    let fenced = Options { pointers: Pointers::Fenced, ..any };
    assert!(rewrite(&own, &fenced).unwrap_err().to_string().ends_with(OUTSIDE));
    let narrow = own.replace("address_size 64", "address_size 32");
    assert_eq!(rewrite(&narrow, &any), Err(RewriteError::AddressSize(32)));
}

/// An assertion as compilers write it: its text is given to the driver.
const ASSERTION: &str = "mov.b64 %rd1, table;\n\tcvta.global.u64 %rd2, %rd1;\n\t{ .param .b64 param0;\n\tst.param.b64 [param0], %rd2;\n\t\
                         call.uni __assertfail, (param0); }\n\tld.global.b32 %r1, [%rd3];";

#[test]
fn t3_the_text_of_an_assertion_may_go_to_the_driver_and_nowhere_else() {
    let arena = options(false);
    assert_eq!(rewritten(&kernel(ASSERTION), &arena).counts(), (1, 0));
    assert!(rewrite(&kernel(ASSERTION), &Options { pointers: Pointers::Fenced, ..arena }).is_err());
    for (part, instead) in [
        ("[%rd3]", "[%rd2]"),
        ("[%rd3]", "[%rd1+4]"),
        ("ld.global.b32 %r1, [%rd3];", "add.s64 %rd4, %rd2, 8;"),
        ("ld.global.b32 %r1, [%rd3];", "st.global.b64 [%rd3], %rd2;"),
        ("ld.global.b32 %r1, [%rd3];", "mov.b64 {%r1, %r2}, %rd2; add.s32 %r3, %r1, 1;"),
        ("ld.global.b32 %r1, [%rd3];", "selp.b64 %rd3, table, %rd4, %p1;"),
        ("ld.global.b32 %r1, [%rd3];", "call.uni other, (param0);"),
    ] {
        let body = ASSERTION.replace(part, instead);
        let refused = rewrite(&kernel(&body), &arena).unwrap_err().to_string();
        // Then all is refused that names a variable, or calls.
        assert!(refused.contains("`mov.b64` cannot be translated"), "{instead}: {refused}");
    }
}

#[test]
fn t3_a_function_of_the_module_may_be_called() {
    let text = format!(
        "{}.func own(.param .b64 a) {{ ld.global.b32 %r1, [%rd1]; ret; }}\n",
        kernel("call.uni own, (param0);")
    );
    let done = rewritten(&text, &options(false)).functions;
    let done: Vec<_> = done.iter().map(|done| (done.name.as_str(), done.is_entry, done.translated)).collect();
    assert_eq!(done, [("k", true, 0), ("own", false, 1)]);
}

/// The instruction with the translated address, and how many were told to go first.
fn hinted(body: &str) -> (String, usize) {
    let hinting = Options { evict_first: true, ..options(false) };
    let rewritten = rewritten(&kernel(body), &hinting);
    let line = rewritten.text.lines().find(|line| line.contains("[%partywall_b]")).unwrap().trim().to_owned();
    assert_eq!(
        rewritten.text.contains("createpolicy.fractional.L2::evict_first.b64 \t%partywall_e, 1.0;"),
        line.contains(", %partywall_e;")
    );
    (line, rewritten.counts().1)
}

#[test]
fn t4_accesses_are_told_to_leave_first() {
    let cases = [
        (
            "ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd1];",
            "ld.global.cs.v4.b32 {%r1,%r2,%r3,%r4}, [%partywall_b];",
        ),
        ("ld.global.nc.b32 %r1, [%rd1];", "ld.global.cs.nc.b32 %r1, [%partywall_b];"),
        (
            "@%p1 ld.weak.global.L2::128B.b32 %r1, [%rd1];",
            "@%p1 ld.weak.global.cs.L2::128B.b32 %r1, [%partywall_b];",
        ),
        ("st.global.b16 [%rd1], %rs1;", "st.global.cs.b16 [%partywall_b], %rs1;"),
        // What says already how it wants to be kept, or is ordered, takes a policy.
        (
            "ld.global.cg.b32 %r1, [%rd1];",
            "ld.global.cg.L2::cache_hint.b32 %r1, [%partywall_b], %partywall_e;",
        ),
        (
            "ld.global.nc.L1::evict_last.L2::128B.v2.b32 {%r1,%r2}, [%rd1];",
            "ld.global.nc.L1::evict_last.L2::cache_hint.L2::128B.v2.b32 {%r1,%r2}, [%partywall_b], %partywall_e;",
        ),
        (
            "ld.acquire.gpu.global.b32 %r1, [%rd1];",
            "ld.acquire.gpu.global.L2::cache_hint.b32 %r1, [%partywall_b], %partywall_e;",
        ),
        (
            "ld.global.acquire.gpu.b32 %r1, [%rd1];",
            "ld.global.acquire.gpu.L2::cache_hint.b32 %r1, [%partywall_b], %partywall_e;",
        ),
        (
            "red.global.add.u32 [%rd1], %r1;",
            "red.global.add.L2::cache_hint.u32 [%partywall_b], %r1, %partywall_e;",
        ),
        (
            "atom.global.gpu.acq_rel.exch.b32 %r1, [%rd1], %r2;",
            "atom.global.gpu.acq_rel.exch.L2::cache_hint.b32 %r1, [%partywall_b], %r2, %partywall_e;",
        ),
        (
            "atom.global.add.noftz.v2.f16x2 {%r1,%r2}, [%rd1], {%r3,%r4};",
            "atom.global.add.noftz.L2::cache_hint.v2.f16x2 {%r1,%r2}, [%partywall_b], {%r3,%r4}, %partywall_e;",
        ),
        (
            "cp.async.cg.shared.global.L2::128B [%r1], [ %rd1 + 0 ], 0x10, %r2;",
            "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%partywall_d], [%partywall_b], 0x10, %r2, %partywall_e;",
        ),
        (
            "cp.async.cg.shared.global [ %r1 + -16 ], [%rd1], 16;",
            "cp.async.cg.shared.global.L2::cache_hint [%partywall_d+-16], [%partywall_b], 16, %partywall_e;",
        ),
    ];
    for (body, expected) in cases {
        assert_eq!(hinted(body), (expected.to_owned(), 1));
    }
    // What goes first already, has a policy, or cannot have one.
    for body in [
        "cp.async.cg.shared.global [%rd2], [%partywall_b], 16;",
        "cp.async.cg.shared.global [table], [%partywall_b], 16;",
        "cp.async.cg.shared.global [4096], [%partywall_b], 16;",
        "st.global.cs.b32 [%partywall_b], %r1;",
        "ld.volatile.global.b32 %r1, [%partywall_b];",
        "st.global.L1::evict_last.L2::cache_hint.b32 [%partywall_b], %r1, %rd2;",
        "discard.global.L2 [%partywall_b], 128;",
        "atom.global.gpu.acq_rel.cas.b32 %r1, [%partywall_b], %r2, %r3;",
    ] {
        assert_eq!(hinted(&body.replace("%partywall_b", "%rd1")), (body.to_owned(), 0));
    }
}

#[test]
fn t4_a_detour_ends_at_the_same_place() {
    let hinting = Options { evict_first: true, ..options(false) };
    let text = rewritten(&kernel("cp.async.cg.shared.global [%r1+16], [%rd1], 16, %r2;"), &hinting).text;
    assert!(text.contains("mov.u32 \t%partywall_z, %lanemask_lt;"));
    let at = text.find("lop3.b32 \t%partywall_d").unwrap();
    // The same operation, in front of a load that the interpreter stops at.
    let line = text[at..].lines().next().unwrap();
    for place in [0_u64, 0x400, 0x3_8ff0, 0x7fff_fff0] {
        for lane in 0..32 {
            let text = kernel(&format!("{line}\n\tld.shared.b32 %r3, [%partywall_d];"));
            let below = (1_u64 << lane) - 1;
            assert_eq!(execute(&text, &[("%r1", place), ("%partywall_z", below)]), place);
        }
    }
}

#[test]
fn t4_policies_of_the_kernel_go_first_too() {
    let hinting = Options { evict_first: true, ..options(false) };
    let body = "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd2, 1.0;\n\tcreatepolicy.fractional.L2::evict_first.b64 %rd3, 0.5;\n\t\
                prefetch.global.L2::evict_last [%rd1];";
    let rewritten = rewritten(&kernel(body), &hinting);
    assert_eq!(rewritten.counts(), (1, 2));
    assert!(
        rewritten
            .text
            .contains("\tcreatepolicy.fractional.L2::evict_first.L2::evict_unchanged.b64 %rd2, 1.0;")
    );
    assert!(rewritten.text.contains("\tcreatepolicy.fractional.L2::evict_first.b64 %rd3, 0.5;"));
    assert!(rewritten.text.contains("\tprefetch.global.L2::evict_normal [%partywall_b];"));
}

#[test]
fn t4_an_old_gpu_has_no_policies() {
    let hinting = Options { evict_first: true, ..options(false) };
    let old = |body| kernel(body).replace("sm_90", "sm_75");
    assert_eq!(rewritten(&old("ld.global.b32 %r1, [%rd1];"), &hinting).counts(), (1, 1));
    assert_eq!(rewritten(&old("red.global.add.u32 [%rd1], %r1;"), &hinting).counts(), (1, 0));
}

#[test]
fn t6_compiled_code_bears_the_mark_of_what_was_asked_for() {
    let text = kernel("ld.global.b32 %r1, [%rd1];");
    let image = [b"\x7fELF".as_slice(), rewritten(&text, &options(false)).text.as_bytes()].concat();
    assert!(
        options(false).is_on(&image)
            && !options(true).is_on(&image)
            && !options(false).is_on(text.as_bytes())
    );
    let fenced = Options { pointers: Pointers::Fenced, ..options(false) };
    assert!(!fenced.is_on(&image));
    // Twice would be wrong.
    let again = rewrite(&rewritten(&text, &options(false)).text, &fenced).unwrap_err().to_string();
    assert_eq!(again, format!("it has been rewritten before: it has the variable {}", options(false).mark()));
}
