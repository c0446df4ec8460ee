"""The arithmetic of ptx_rewrite.py, without a GPU, PyTorch or Triton."""

import struct
import unittest

import ptx_rewrite


class Arena(unittest.TestCase):
    def test_each_logical_stretch_has_one_of_its_pair_with_odd_parity(self):
        base = 0x7F30 << 32
        found = ptx_rewrite.stretches(base, 5000)
        for n, place in enumerate(found):
            self.assertEqual(place // 2, n)
            self.assertEqual(ptx_rewrite.parity((base + place * ptx_rewrite.STRETCH) & ptx_rewrite.MASK), 1)
        # Both of a pair occur.
        self.assertEqual({place % 2 for place in found}, {0, 1})

    def test_the_arena_is_written_as_the_program_reads_it(self):
        text = ptx_rewrite.order(1 << 32, "fenced")
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
        types = ptx_rewrite.parameters(self.PTX)
        self.assertEqual(types, ["u64", "u32", "f32", "u64"])
        packed = ptx_rewrite.packed(types, [1 << 40, -7, 0.5])
        self.assertEqual(packed, [struct.pack("<q", 1 << 40), struct.pack("<i", -7), struct.pack("<f", 0.5), bytes(8)])

    def test_parameters_that_are_not_known_are_refused(self):
        for values in ([1, 2, 0.5, 3, 4], [1]):
            with self.assertRaises(ptx_rewrite.Failed):
                ptx_rewrite.packed(["u64", "u32", "f32", "u64"], values)


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
