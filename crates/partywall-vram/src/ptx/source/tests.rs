use proptest::prelude::{any, prop_assert_eq, proptest};

use super::*;

const SMALL: &str = r#"//
// A comment with { and ; and "
.version 8.7
.target sm_90a, debug
.address_size 64

.extern .func  (.param .b32 func_retval0) vprintf
(
	.param .b64 vprintf_param_0
)
;
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
.extern .shared .align 16 .b8 global_smem[];
.visible .entry first(
	.param .u64 .ptr .global .align 1 first_param_0,
	.param .u32 first_param_1
)
.reqntid 128
{
	.reg .pred 	%p<2>;
	.reg .b64 	%rd<3>;
	.loc	1 6 0                           // a.py:6:0
$L__func_begin0:
	ld.param.b64 	%rd1, [first_param_0];
	// begin inline asm
	@%p1 ld.global.v4.b32 { %r1, %r2,
		%r3, %r4 }, [ %rd1 + 16 ];
	// end inline asm
	@!%p1 bra 	$L__BB0_2;
	{
	.param .b64 param0;
	st.param.b64 [param0], %rd1; call.uni (retval0), vprintf, (param0, param0); }
$L__BB0_2: fence.proxy.async.shared::cta;
	.pragma "nounroll; }";
	ret;
}
	.file	1 "a.py"
	.section	.debug_abbrev
	{
.b8 1                                   // Abbreviation Code
.b8 { 1
	}
.func second() { ret; }
"#;

#[test]
fn functions_and_instructions_are_found_where_they_are() {
    let module = read(SMALL).unwrap();
    assert_eq!(module.globals, ["table"]);
    let names: Vec<_> = module.functions.iter().map(|function| (function.name, function.is_entry)).collect();
    assert_eq!(names, [("first", true), ("second", false)]);
    let opcodes: Vec<_> = module.functions[0].instructions.iter().map(|one| (one.line, one.opcode)).collect();
    let expected = [
        (24, "ld.param.b64"),
        (26, "ld.global.v4.b32"),
        (29, "bra"),
        (32, "st.param.b64"),
        (32, "call.uni"),
        (33, "fence.proxy.async.shared::cta"),
        (35, "ret"),
    ];
    assert_eq!(opcodes, expected);
    let load = &module.functions[0].instructions[1];
    assert_eq!(load.guard, Some("@%p1"));
    assert_eq!(load.operand(&module, 0).unwrap().split_whitespace().count(), 6);
    assert_eq!(load.operand(&module, 1), Some("[ %rd1 + 16 ]"));
    assert_eq!(load.parts().collect::<Vec<_>>(), ["ld", "global", "v4", "b32"]);
    assert!(SMALL[load.place.clone()].starts_with("@%p1 ld.") && SMALL[load.place.clone()].ends_with("];"));
    assert_eq!(module.functions[0].instructions[2].guard, Some("@!%p1"));
    let call = &module.functions[0].instructions[4];
    let operands: Vec<_> = (0..3).map(|index| call.operand(&module, index).unwrap()).collect();
    assert_eq!(operands, ["(retval0)", "vprintf", "(param0, param0)"]);
}

#[test]
fn what_is_not_built_as_ptx_is_refused_with_its_line() {
    let refused = |text: &str| read(text).unwrap_err().to_string();
    assert_eq!(refused(".visible .entry a() {\n ret;"), "line 1: the body of a function has no end");
    assert_eq!(refused(".visible .entry a() {\n ret }"), "line 2: `}` where an operand is expected");
    assert_eq!(refused(".version 8.0\nadd.s32 a, b, c;"), "line 2: `add.s32` where a directive is expected");
    assert_eq!(refused("/* no end\n"), "line 1: a comment has no end");
    assert_eq!(refused(".pragma \"no end"), "line 1: a string has no end");
    assert_eq!(refused(".func a() { = }"), "line 1: `=` where an instruction is expected");
    assert_eq!(refused(".func a() { @%p . }"), "line 1: `.` where an instruction is expected");
}

proptest! {
    #[test]
    fn no_text_is_too_much(text in any::<String>()) {
        let _ = read(&text);
    }

    #[test]
    fn no_piece_of_ptx_is_too_much(from in 0..SMALL.len(), to in 0..SMALL.len()) {
        let _ = read(&SMALL[from.min(to)..from.max(to)]);
        let _ = read(&format!("{}{}", &SMALL[..from], &SMALL[to..]));
    }

    #[test]
    fn instructions_do_not_overlap(cut in 0..SMALL.len()) {
        let text = format!("{}\n{}", SMALL, SMALL.get(..cut).unwrap_or_default());
        if let Ok(module) = read(&text) {
            let places = module.functions.iter().flat_map(|function| &function.instructions).map(|one| one.place.clone());
            let places: Vec<_> = places.collect();
            prop_assert_eq!(places.windows(2).filter(|pair| pair[0].end > pair[1].start).count(), 0);
        }
    }
}

#[test]
fn what_a_module_says_of_itself_is_known() {
    let module = read(SMALL).unwrap();
    assert_eq!(module.header, Header { version: 807, target: 90, address_bits: 64 });
    assert!(SMALL[module.begin..].starts_with(".extern .func"));
    let registers: Vec<_> =
        module.functions[0].registers.iter().map(|one| (one.name, one.kind, one.is_numbered)).collect();
    assert_eq!(registers, [("%p", "pred", true), ("%rd", "b64", true)]);
    let nothing = read("").unwrap();
    assert_eq!((nothing.header, nothing.begin), (Header::default(), 0));
}
