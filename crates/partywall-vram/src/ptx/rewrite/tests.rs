use std::collections::BTreeMap;

use proptest::prelude::{any, prop_assert_eq, proptest};

use super::*;

/// An H200's bits within a page, and the first above it for the page's constant.
const MASK: u32 = 0xab000 | 1 << 21;

fn options(odd: bool) -> Options {
    let coloring = Coloring::new(0x7000_0000_0000, 0x7200_0040_0000, 1 << 33, MASK, odd).unwrap();
    Options { coloring, pointers: Pointers::Arena, evict_first: false }
}

/// A kernel with this body.
fn kernel(body: &str) -> String {
    format!(
        ".version 8.7\n.target sm_90\n.address_size 64\n.global .align 4 .b8 table[8];\n.visible .entry k(.param .u64 k_0)\n{{\n\t.reg .b64 \t%rd<9>;\n\t{body}\n\tret;\n}}\n"
    )
}

/// Does what the integer instructions of a function say, up to the first access; gives the address that it has.
fn execute(text: &str, registers: &[(&str, u64)]) -> u64 {
    let module = read(text).unwrap();
    let mut values: BTreeMap<&str, u64> = registers.iter().copied().collect();
    for one in &module.functions[0].instructions {
        let operand = |index: usize| one.operand(&module, index).unwrap();
        if one.opcode.starts_with("ld.global") {
            return values[operand(1).trim_matches(['[', ']'])];
        }
        let value = |index: usize| {
            let text = operand(index);
            values.get(text).copied().unwrap_or_else(|| {
                text.parse::<i64>().map_or_else(|_| text.parse().unwrap(), i64::cast_unsigned)
            })
        };
        let result = match one.opcode {
            "add.s64" => value(1).wrapping_add(value(2)),
            "sub.s64" => value(1).wrapping_sub(value(2)),
            "and.b64" => value(1) & value(2),
            "or.b64" => value(1) | value(2),
            "shl.b64" => value(1) << value(2),
            "and.b32" => u64::from(value(1) as u32 & value(2) as u32),
            "xor.b32" => u64::from(value(1) as u32 ^ value(2) as u32),
            "shl.b32" => u64::from((value(1) as u32) << value(2)),
            "popc.b32" => u64::from((value(1) as u32).count_ones()),
            "cvt.u32.u64" => u64::from(value(1) as u32),
            "cvt.u64.u32" => u64::from(value(1) as u32),
            "setp.lt.u64" => u64::from(value(1) < value(2)),
            "selp.b64" => {
                if value(3) == 1 {
                    value(1)
                } else {
                    value(2)
                }
            }
            other => panic!("{other}"),
        };
        values.insert(operand(0), result);
    }
    panic!("no access in {text}")
}

proptest! {
    #[test]
    fn t1_an_address_is_translated_to_its_place(at in any::<u64>(), offset in -4_096_i64..4_096, odd in any::<bool>(), any_pointer in any::<bool>()) {
        let mut options = options(odd);
        if any_pointer {
            options.pointers = Pointers::Any;
        }
        let coloring = options.coloring;
        let address = coloring.logical() + at % coloring.length();
        let body = format!("ld.global.b32 \t%r1, [%rd1+{offset}];");
        let rewritten = rewrite(&kernel(&body), &options).unwrap();
        let found = execute(&rewritten.text, &[("%rd1", address.wrapping_sub(offset.cast_unsigned()))]);
        prop_assert_eq!(Some(found), coloring.place(address));
    }

    #[test]
    fn t1_an_address_of_elsewhere_stays(at in any::<u64>()) {
        let options = Options { pointers: Pointers::Any, ..options(true) };
        let coloring = options.coloring;
        let rewritten = rewrite(&kernel("ld.global.b32 \t%r1, [%rd1];"), &options).unwrap();
        let expected = coloring.place(at).unwrap_or(at);
        prop_assert_eq!(execute(&rewritten.text, &[("%rd1", at)]), expected);
        for edge in [coloring.logical() - 1, coloring.logical() + coloring.length()] {
            prop_assert_eq!(execute(&rewritten.text, &[("%rd1", edge)]), edge);
        }
    }
}

/// Without what was put in, and with the old operands.
fn undone(rewritten: &str, operands: &[&str]) -> String {
    let mut operands = operands.iter();
    let mut text = rewritten.replace(REGISTERS, "");
    while let Some(begin) = text.find("and.b64 \t%partywall_c") {
        let before = text[..begin]
            .rfind("add.s64 \t%partywall_a")
            .filter(|add| !text[*add..begin].contains("];"))
            .unwrap_or(begin);
        let last = text[begin..].find("or.b64 \t%partywall_b, %partywall_b, %partywall_c;\n\t").unwrap();
        let end = begin + last + "or.b64 \t%partywall_b, %partywall_b, %partywall_c;\n\t".len();
        text.replace_range(before..end, "");
        text = text.replacen("[%partywall_b]", operands.next().unwrap(), 1);
    }
    text
}

#[test]
fn t2_what_goes_elsewhere_stays_to_the_last_blank() {
    let body = "ld.param.b64   %rd1, [k_0]; // why\n\t@%p1 st.shared.v4.b32 [ %r1 + 0 ], {%r1,%r2 , %r3, %r4};\n\tbar.sync \t0;\n\t\
                ld.global.b32 %r9, [table+4];\n\twgmma.fence.sync.aligned;";
    let text = kernel(body);
    let rewritten = rewrite(&text, &options(false)).unwrap();
    assert_eq!((rewritten.text, rewritten.translated), (text, 0));
    let operands = ["[ %rd1 + 16 ]", "[%rd2]", "[%rd3+-8]", "[ %rd4 ]"];
    let body = format!(
        "@%p1 ld.global.v2.b32 {{ %r1, %r2 }}, {};\n\tst.global.b32 {}, %r1;\n\tatom.global.add.f32 %f1, {}, %f2; cp.async.ca.shared.global [%r1], {}, 16, %r2;",
        operands[0], operands[1], operands[2], operands[3]
    );
    let text = kernel(&body);
    let rewritten = rewrite(&text, &options(false)).unwrap();
    assert_eq!(rewritten.translated, 4);
    assert_eq!(undone(&rewritten.text, &operands), text);
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
        ("call.uni (retval0), vprintf, (param0, param1);", FOREIGN),
        ("mov.b64 %rd1, table;", VARIABLE),
        ("mov.u64 %rd1, generic(table);", VARIABLE),
        ("cvta.global.u64 %rd1, table;", VARIABLE),
        ("ld.global.b32 %r1, [%rd1+%rd2];", "its address is not understood"),
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
    assert!(rewrite(&kernel("mov.b64 %rd1, table;\n\tld.global.b32 %r1, [%rd1];"), &any).is_ok());
}

#[test]
fn t3_a_function_of_the_module_may_be_called() {
    let text = format!(
        "{}.func own(.param .b64 a) {{ ld.global.b32 %r1, [%rd1]; ret; }}\n",
        kernel("call.uni own, (param0);")
    );
    assert_eq!(rewrite(&text, &options(false)).unwrap().translated, 1);
}

#[test]
fn t4_accesses_are_told_to_leave_first() {
    let hinting = Options { evict_first: true, ..options(false) };
    let hinted = |body: &str| {
        let rewritten = rewrite(&kernel(body), &hinting).unwrap();
        let line =
            rewritten.text.lines().find(|line| line.contains("[%partywall_b]")).unwrap().trim().to_owned();
        (line.split_whitespace().next().unwrap().to_owned(), rewritten.evict_first)
    };
    let with = |opcode: &str| (opcode.to_owned(), 1);
    let without = |opcode: &str| (opcode.to_owned(), 0);
    assert_eq!(hinted("ld.global.v4.b32 {%r1,%r2,%r3,%r4}, [%rd1];"), with("ld.global.cs.v4.b32"));
    assert_eq!(hinted("ld.global.nc.b32 %r1, [%rd1];"), with("ld.global.cs.nc.b32"));
    assert_eq!(hinted("st.global.b16 [%rd1], %rs1;"), with("st.global.cs.b16"));
    // What has to be seen by others at once, or says already how it wants to be kept.
    assert_eq!(hinted("ld.volatile.global.b32 %r1, [%rd1];"), without("ld.volatile.global.b32"));
    assert_eq!(hinted("ld.global.L1::evict_last.b32 %r1, [%rd1];"), without("ld.global.L1::evict_last.b32"));
    assert_eq!(hinted("ld.global.ca.b32 %r1, [%rd1];"), without("ld.global.ca.b32"));
    assert_eq!(hinted("red.global.add.u32 [%rd1], %r1;"), without("red.global.add.u32"));
}
