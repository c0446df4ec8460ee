"""Networks of Triton's kernels alone, by `torch.compile`, in memory that may be on one side of the chip (`sides`)."""

import contextlib
import hashlib
import math
import os

import inductor
import sides
from gpu import Gpu
from programs import WARM_UP_PASSES, Program, ProgramError


def bits_of(data) -> bytes:
    return data.contiguous().view(-1).numpy().tobytes()


class Network:
    """A compiled network with its weights, its input and all that it computes in one kind of memory."""

    def __init__(self, name: str, batch: int | None, evict_first: bool):
        import torch
        import triton_networks

        self.torch = torch
        self.memory = sides.take(evict_first)
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
        self.is_captured = False
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

    def forward(self):
        with self.torch.no_grad():
            return self.compiled(self.given)

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
            output = self.forward()
        self.settle(gpu)
        self.is_captured = False
        return graph, output


def compiled(gpu: Gpu, name: str, batch: int | None, eager: bool, evict_first: bool) -> Program:
    """One pass through a network, as a CUDA graph or launched kernel by kernel. Results are the same to the last bit each time."""
    network = Network(name, batch, evict_first)
    for _ in range(WARM_UP_PASSES):
        output = network.forward()
    network.settle(gpu)
    expected = network.memory.fetched(output)
    if not (bool(expected.isfinite().all()) and float(expected.float().std()) > 0):
        raise ProgramError(f"the results of {name} are not finite, or all the same; they cannot be checked")
    queue = network.forward
    if not eager:
        try:
            graph, output = network.captured(gpu)
        # A pool of somebody else's memory is something that a capture may refuse.
        except RuntimeError as error:
            raise ProgramError(f"no graph of {name} can be captured; with --eager it is launched kernel by kernel: {error}") from error
        graph.replay()
        gpu.wait()
        if bits_of(network.memory.fetched(output)) != bits_of(expected):
            raise ProgramError("the first replay computes something else than the passes before it")
        queue = graph.replay
    last = [output]
    nothing = expected.clone().fill_(math.nan)

    def pass_through() -> None:
        result = queue()
        if eager:
            last[0] = result

    def begin() -> None:
        network.memory.write(last[0], nothing)
        gpu.wait()

    def verify(units: int) -> str:
        network.settle(gpu)
        if units == 0 or bits_of(network.memory.fetched(last[0])) == bits_of(expected):
            return "ok"
        return "the result is not that of the first pass"

    about = gpu.about | network.memory.about() | {"graph": "no" if eager else "yes"}
    checksum = hashlib.sha256(bits_of(expected)).hexdigest()[:16]
    return Program(pass_through, gpu.wait, network.unit, network.batch, begin, verify, checksum, about)
