"""What ptx_networks.py makes of code and records, without a GPU, PyTorch or Triton."""

import unittest

import ptx_networks
import inductor  # noqa: E402  ptx_networks has said where it is

CODE = '''
from torch._inductor.select_algorithm import extern_kernels
aten = torch.ops.aten
# Original ATen: torch.ops.aten.mm.default(a, b)
triton_poi_fused_0 = async_compile.triton('triton_poi_fused_0', """
    tl.store(out_ptr0 + x0, tmp0, None)
""", device_str='cuda')
triton_tem_fused_1 = async_compile.triton('triton_tem_fused_1', """...""")
def call(args):
        triton_poi_fused_0.run(arg0_1, buf0, 4096, stream=stream0)
        triton_tem_fused_1.run(buf0, arg1_1, buf1, 64, 1, 1, stream=stream0)
        triton_poi_fused_0.run(buf1, buf2, 4096, stream=stream0)
'''


class Code(unittest.TestCase):
    def test_kernels_and_their_launches_are_counted(self):
        self.assertEqual(ptx_networks.kernels(CODE), {"triton_poi_fused_0": 2, "triton_tem_fused_1": 1})
        self.assertEqual(ptx_networks.foreign(CODE), [])

    def test_what_is_not_of_triton_is_named(self):
        for call, name in (
            ("extern_kernels.addmm(bias, a, b, out=buf0)", "extern_kernels.addmm"),
            ("buf1 = torch.ops.aten._scaled_dot_product_flash_attention.default(q, k, v)", "torch.ops.aten._scaled_dot_product_flash_attention.default"),
            ("aten.index_put_(buf0, [x], y)", "aten.index_put_"),
        ):
            self.assertEqual(ptx_networks.foreign(f"{CODE}        {call}\n"), [name])

    def test_no_code_is_no_network(self):
        with self.assertRaises(ptx_networks.Failed):
            ptx_networks.description([])

    def test_the_nearest_configuration(self):
        wanted = "ACC_TYPE='tl.float32', BLOCK_K=64, BLOCK_M=128, BLOCK_N=128, num_stages=3, num_warps=8"
        self.assertEqual(inductor.distance(wanted), 0)
        self.assertEqual(inductor.distance(wanted.replace("BLOCK_M=128", "BLOCK_M=32")), 2)


class Record(unittest.TestCase):
    def row(self, **more):
        part = {"kernels": {"triton_k": 3}, "foreign": [], "seen": ["triton_k"], "finite": True, "deviation": 0.5}
        row = {"name": "n", "plain": dict(part), "arena": dict(part), "rewritten": {"triton_k": 4}, "bit_equal": True, "untouched": True}
        return {**row, **more}

    def test_all_is_well(self):
        self.assertEqual(ptx_networks.wrong(self.row(), False), [])
        bare = self.row()
        for key in ("bit_equal", "untouched"):
            del bare[key]
        self.assertEqual(ptx_networks.wrong(bare, True), [])
        self.assertEqual(ptx_networks.wrong(bare, False), ["outputs differ", "the other color was written to"])

    def test_what_is_wrong_is_named(self):
        arena = self.row()["arena"]
        for more, why in (
            ({"failed": "CUDA error\ntrace"}, "CUDA error"),
            ({"bit_equal": False}, "outputs differ"),
            ({"untouched": False}, "the other color was written to"),
            ({"rewritten": {}}, "not rewritten: triton_k"),
            ({"arena": {**arena, "foreign": ["extern_kernels.mm"]}}, "arena: not Triton's: extern_kernels.mm"),
            ({"arena": {**arena, "seen": ["triton_k", "Memcpy DtoD"]}}, "arena: not Triton's: Memcpy DtoD"),
            ({"arena": {**arena, "deviation": 0.0}}, "arena: outputs are not finite, or all the same"),
            ({"plain": {**arena, "kernels": {"triton_k": 2}}}, "they are made of different kernels"),
        ):
            self.assertEqual(ptx_networks.wrong(self.row(**more), False), [why])


if __name__ == "__main__":
    unittest.main()
