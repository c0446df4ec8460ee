"""Inductor, set so that a network becomes kernels of Triton alone, and the same ones each time.

It takes the first of its configurations that is nearest to a fixed one: not the best that each could be, but the same for a network as it is and
rewritten."""

import math
import re

# What products and convolutions are cut into, where Inductor can.
NEAR = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}
SETTINGS = {
    # In this process, where the arena is known.
    "compile_threads": 1,
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
    # It would put attention of a library in the place of the one that is written out.
    "pattern_matcher": False,
    # What is measured to be chosen is measured with PyTorch's own kernels, and not always the same is chosen.
    "deterministic": True,
    "shape_padding": False,
    "dynamic_scale_rblock": False,
    "benchmark_epilogue_fusion": False,
}


class InductorError(Exception):
    """A PyTorch that cannot be set so."""


def distance(description):
    """How far a configuration is from the one that is wanted."""
    found = dict(re.findall(r"(BLOCK_[MNK])=(\d+)", description))
    return sum(abs(math.log2(int(found.get(name, 1)) / wanted)) for name, wanted in NEAR.items())


def configure():
    """One configuration for each kernel, Triton's wherever there is a choice; gives a list that generated code goes to."""
    import torch._inductor.config as config
    import torch._inductor.runtime.triton_heuristics as heuristics
    from torch._inductor import select_algorithm
    from torch._inductor.graph import GraphLowering

    for name, value in SETTINGS.items():
        if not hasattr(config, name):
            raise InductorError(f"this PyTorch has no setting torch._inductor.config.{name}")
        setattr(config, name, value)

    def nearest(choices):
        ours = [choice for choice in choices if isinstance(choice, select_algorithm.TritonTemplateCaller)]
        return sorted(ours, key=lambda choice: (distance(choice.description), choice.description))[:1] or choices

    select_algorithm.add_preprocessing_fn(nearest)
    tuned = heuristics.cached_autotune
    heuristics.cached_autotune = lambda hints, configs, *rest, **more: tuned(hints, configs[:1], *rest, **more)
    codes = []
    GraphLowering.save_output_code = staticmethod(codes.append)
    return codes
