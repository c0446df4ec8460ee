"""The arithmetic of ptx_rewrite.py, without a GPU, PyTorch or Triton."""

import struct
import sys
import tempfile
import unittest

import ptx_gpu
import ptx_rewrite


class Arena(unittest.TestCase):
    def test_each_logical_stretch_has_one_of_its_pair_with_odd_parity(self):
        base = 0x7F30 << 32
        found = ptx_gpu.stretches(base, 5000)
        for n, place in enumerate(found):
            self.assertEqual(place // 2, n)
            self.assertEqual(ptx_gpu.parity((base + place * ptx_gpu.STRETCH) & ptx_gpu.MASK), 1)
        # Both of a pair occur.
        self.assertEqual({place % 2 for place in found}, {0, 1})

    def test_the_arena_is_written_as_the_program_reads_it(self):
        text = ptx_rewrite.order_of(1 << 32, "fenced")
        expected = "mask=0x2ab000,logical=0x100000000,mapped=0x100000000,length=0x40000000,parity=odd,pointers=fenced,evict-first"
        self.assertEqual(text, expected)


class Launch(unittest.TestCase):
    PTX = """
.visible .entry k(
	.param .u64 .ptr .global .align 1 k_param_0,
	.param .u32 k_param_1,
	.param .f32 k_param_2,
	.param .u64 .ptr .global .align 1 k_param_3
)
"""

    def test_arguments_are_packed_by_type_and_what_was_added_is_null(self):
        types = ptx_gpu.parameters(self.PTX)
        self.assertEqual(types, ["u64", "u32", "f32", "u64"])
        packed = ptx_gpu.packed(types, [1 << 40, -7, 0.5])
        self.assertEqual(packed, [struct.pack("<q", 1 << 40), struct.pack("<i", -7), struct.pack("<f", 0.5), bytes(8)])

    def test_parameters_that_are_not_known_are_refused(self):
        for values in ([1, 2, 0.5, 3, 4], [1]):
            with self.assertRaises(ptx_gpu.Failed):
                ptx_gpu.packed(["u64", "u32", "f32", "u64"], values)


# A child that fails where `bad` says, as one does whose GPU stops.
CHILD = """
import json, sys
task = json.loads(sys.argv[1])
bad = {"b": "fenced", "c": "plain", "d": ""}
say = lambda **found: print(json.dumps(found), flush=True)
say(record={"gpu": "none"}, base=1 << 32)
for name in task["names"]:
    row = {"name": name, "should_be_refused": False, "assembled": {}, "bit_equal": {}}
    for variant in ("plain", "arena", "fenced", "any", ""):
        if variant in task["skip"].get(name, []):
            continue
        say(at=[name, variant])
        if bad.get(name) == variant:
            if variant == "fenced":
                sys.exit("gone")
            say(failed="CUDA error: an illegal instruction was encountered")
            sys.exit()
        row["bit_equal"][variant] = True
    say(row=row)
"""


class Launches(unittest.TestCase):
    def test_a_kernel_that_fails_is_a_row_and_not_the_end(self):
        record, said = {}, []
        with tempfile.TemporaryDirectory() as folder:
            task = {"names": list("abcde"), "skip": {}, "refused": [], "folder": folder, "ptx": None}
            rows = list(ptx_rewrite.launched(task, record, said.append, (sys.executable, "-c", CHILD)))
        self.assertEqual([row["name"] for row in rows], list("abcde"))
        failed = {row["name"]: row["failed"] for row in rows if "failed" in row}
        self.assertEqual({name: list(why) for name, why in failed.items()}, {"b": ["fenced"], "c": ["plain"], "d": ["measuring"]})
        self.assertIn("gone", failed["b"]["fenced"])
        self.assertIn("illegal instruction", failed["c"]["plain"])
        # The variants that do not fail were run all the same.
        self.assertEqual(set(rows[1]["bit_equal"]), {"plain", "arena", "any", ""})
        self.assertEqual(record, {"gpu": "none"})
        self.assertFalse(ptx_rewrite.summary(rows)["kernels_bit_equal"])
        self.assertEqual(ptx_rewrite.summary(rows)["kernels_failed"], 3)


class Code(unittest.TestCase):
    GOOD = """
        /*0000*/                   ULDC.64 UR6, c[0x0][0x208] ;          /* 0x00 */
        /*0010*/              @!P0 R2UR UR12, R2 ;                       /* 0x00 */
        /*0020*/                   UIADD3 UR5, UP1, UR12, URZ, URZ ;     /* 0x00 */
        /*0030*/                   LDGSTS.E.BYPASS.128 [R23+UR5], desc[UR7][R24.64], P0 ;
        /*0040*/                   NOP;
"""

    def test_a_uniform_register_that_nothing_writes_is_found(self):
        self.assertEqual(len(ptx_rewrite.instructions(self.GOOD)), 4)
        self.assertEqual(ptx_rewrite.unwritten(self.GOOD), [])
        bad = self.GOOD.replace("[R23+UR5], desc[UR7]", "[R23+UR0], desc[UR1]")
        self.assertEqual(ptx_rewrite.unwritten(bad), ["UR0", "UR1"])

    def test_stretches_of_pages_are_whole_pages(self):
        base = 0x7F30 << 32
        found = ptx_gpu.stretches(base, 2048, "pages")
        self.assertEqual([place % 512 for place in found], [n % 512 for n in range(2048)])
        self.assertEqual(len(set(found)), 2048)
        for n, place in enumerate(found):
            self.assertEqual(place // 1024, n // 512)
            self.assertEqual(ptx_gpu.parity((base + place * ptx_gpu.STRETCH) & ptx_gpu.KINDS["pages"][0]), 1)

    def test_halves_differ_in_one_bit(self):
        base = 0x7F30 << 32
        found = ptx_gpu.stretches(base, 5000, "halves")
        half = ptx_gpu.LENGTH // ptx_gpu.STRETCH
        self.assertEqual([place % half for place in found], list(range(5000)))
        self.assertEqual({place // half for place in found}, {0, 1})
        text = ptx_rewrite.order_of(1 << 32, "halves")
        self.assertEqual(text, "mask=0x400ab000,logical=0x100000000,mapped=0x100000000,length=0x40000000,parity=odd,split=0x40000000")


class Record(unittest.TestCase):
    def row(self, ratio, equal=True, **more):
        ratios = {variant: {"median": ratio} for variant in ptx_rewrite.VARIANTS}
        return {"name": "k", "should_be_refused": False, "bit_equal": {"arena": True, "any": equal}, "ratio": ratios, **more}

    def test_what_the_assembler_says(self):
        said = "ptxas info    : Function properties for k\n 8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\nptxas info    : Used 42 registers, 416 bytes cmem[0]"
        self.assertEqual(ptx_rewrite.used(said), {"registers": 42, "spilled_bytes": 16})

    def test_the_mean_is_of_kernels_that_should_be_rewritten(self):
        refused = {"name": "t", "should_be_refused": True, "refused": {"arena": "line 1"}}
        found = ptx_rewrite.summary([self.row(1.0), self.row(1.5), refused])
        self.assertEqual((found["kernels"], found["time_ratio_mean"], found["time_ratio_max"]), (2, 1.25, 1.5))
        self.assertTrue(found["kernels_bit_equal"] and found["refused_as_expected"])

    def test_one_that_differs_or_did_not_run_spoils_it(self):
        self.assertFalse(ptx_rewrite.summary([self.row(1.0), self.row(1.0, equal=False)])["kernels_bit_equal"])
        missing = {"name": "m", "should_be_refused": False, "refused": {"arena": "line 1"}}
        found = ptx_rewrite.summary([self.row(1.0), missing])
        self.assertEqual((found["kernels_bit_equal"], found["time_ratio_mean"]), (False, None))
        self.assertFalse(ptx_rewrite.summary([])["kernels_bit_equal"])

    def test_spread(self):
        self.assertEqual(ptx_rewrite.spread([3, 1, 2]), {"median": 2, "low": 1, "high": 3})


if __name__ == "__main__":
    unittest.main()
