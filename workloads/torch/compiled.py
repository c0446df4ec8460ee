"""Triton's kernels, and networks of them alone by `torch.compile`, in memory that may be on one side of the chip (`sides`)."""

import contextlib
import hashlib
import math
import os

import inductor
import sides
from gpu import Gpu
from programs import WARM_UP_PASSES, Program, ProgramError


def bits_of(parts: list) -> bytes:
    # NumPy has no bf16.
    return b"".join(part.contiguous().view(-1).view(integers(part)).numpy().tobytes() for part in parts)


def integers(part):
    """Whole numbers of the same size."""
    import torch

    return {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[part.element_size()]


class Work:
    """What goes from tensors of one kind of memory to others of it, all at once."""

    def __init__(self, evict_first: bool):
        import torch

        self.torch = torch
        self.memory = sides.take(evict_first)
        self.is_captured = False

    def forward(self) -> list:
        """Starts one pass, and gives its outputs."""
        raise NotImplementedError

    def settle(self, gpu: Gpu) -> None:
        """Waits. What Inductor generates makes the whole GPU current each time; its kernels go into the stream, which stays on its SMs."""
        gpu.enter()
        gpu.wait()
        gpu.check()

    def captured(self, gpu: Gpu):
        graph = self.torch.cuda.CUDAGraph()
        pool = self.memory.pool.id if self.memory.pool else None
        self.is_captured = True
        with self.torch.cuda.graph(graph, pool=pool, stream=gpu.stream):
            outputs = self.forward()
        self.settle(gpu)
        self.is_captured = False
        return graph, outputs

    def fetched(self, outputs: list) -> list:
        return [self.memory.fetched(output) for output in outputs]


class Kernel(Work):
    """A kernel of `triton_kernels`, so many times one after the other."""

    unit = "launch"

    def __init__(self, name: str, launches: int, evict_first: bool):
        super().__init__(evict_first)
        import triton_kernels

        self.case = next(case for case in triton_kernels.cases() if case.name == name)
        self.batch = launches
        self.tensors = {key: self.memory.placed(tensor) for key, tensor in self.case.tensors("cpu").items()}

    def forward(self) -> list:
        for _ in range(self.batch):
            self.case.launch(self.tensors)
        return [self.tensors[key] for key in self.case.outputs()]


class Network(Work):
    """A compiled network with its weights and its input."""

    def __init__(self, name: str, batch: int | None, evict_first: bool):
        super().__init__(evict_first)
        import triton_networks

        torch = self.torch
        if sides.is_wanted():
            # What Inductor has loaded before may be of another arena; Triton's own cache knows which.
            os.environ |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}
        self.codes = inductor.configure()
        self.unit = triton_networks.NETWORKS[name][3]
        module, given = triton_networks.made(name, batch)
        self.batch = len(given) * (2 if name == "stream" else 1)
        for part in module.modules():
            for key, value in part._parameters.items():
                if value is not None:
                    part._parameters[key] = torch.nn.Parameter(self.memory.placed(value.detach()), requires_grad=False)
            for key, value in part._buffers.items():
                if value is not None:
                    part._buffers[key] = self.memory.placed(value)
        self.given = self.memory.placed(given)
        self.confine()
        self.compiled = torch.compile(module, fullgraph=True, dynamic=False)

    def confine(self) -> None:
        """What generated code allocates is the arena's; what compiling takes, and runs kernels of PyTorch on, is not. A capture has said
        already whose memory it takes."""
        from torch._inductor.output_code import CompiledFxGraph

        run = CompiledFxGraph.__call__

        def confined(graph, inputs):
            with contextlib.nullcontext() if self.is_captured else self.memory.inside():
                return run(graph, inputs)

        CompiledFxGraph.__call__ = confined

    def forward(self) -> list:
        with self.torch.no_grad():
            return [self.compiled(self.given)]


def sound(expected: list) -> bool:
    """Whether results are numbers, and not all the same."""
    return all(bool(part.isfinite().all()) for part in expected) and any(float(part.float().std()) > 0 for part in expected)


def program(gpu: Gpu, name: str, work: Work, eager: bool) -> Program:
    """One pass, as a CUDA graph or launched kernel by kernel. Results are the same to the last bit each time."""
    for _ in range(WARM_UP_PASSES):
        outputs = work.forward()
    work.settle(gpu)
    expected = work.fetched(outputs)
    if not sound(expected):
        raise ProgramError(f"the results of {name} are not finite, or all the same; they cannot be checked")
    queue = work.forward
    if not eager:
        try:
            graph, outputs = work.captured(gpu)
        # A pool of somebody else's memory is something that a capture may refuse.
        except RuntimeError as error:
            raise ProgramError(f"no graph of {name} can be captured; with --eager it is launched kernel by kernel: {error}") from error
        graph.replay()
        gpu.wait()
        if bits_of(work.fetched(outputs)) != bits_of(expected):
            raise ProgramError("the first replay computes something else than the passes before it")
        queue = graph.replay
    last = [outputs]
    nothing = [part.clone().fill_(math.nan if part.is_floating_point() else -1) for part in expected]

    def pass_through() -> None:
        result = queue()
        if eager:
            last[0] = result

    def begin() -> None:
        for output, blank in zip(last[0], nothing):
            work.memory.write(output, blank)
        gpu.wait()

    def verify(units: int) -> str:
        work.settle(gpu)
        if units == 0 or bits_of(work.fetched(last[0])) == bits_of(expected):
            return "ok"
        return "the result is not that of the first pass"

    about = gpu.about | work.memory.about() | {"graph": "no" if eager else "yes"}
    checksum = hashlib.sha256(bits_of(expected)).hexdigest()[:16]
    return Program(pass_through, gpu.wait, work.unit, work.batch, begin, verify, checksum, about)
