"""The programs that a tenant can run and that profiles are recorded of, each with a check of its own results.

All weights and inputs are random with a fixed seed, all work goes into the GPU's stream (see `gpu`).
"""

import ctypes
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu import Driver, Gpu

SEED = 7
IMAGE_PIXELS = {"inception_v3": 299}
IMAGES = (
    "resnet50",
    "resnet152",
    "mobilenet_v3_large",
    "densenet121",
    "vgg16",
    "efficientnet_b0",
    "inception_v3",
    "vit_b_16",
    "convnext_tiny",
    "swin_t",
)
TEXTS = ("bert_base", "gpt2")
NETWORKS = (*IMAGES, *TEXTS)
# Of `triton_networks`.
OF_TRITON = ("gpt", "mixer", "resnet18", "stream")
# Of `triton_kernels`.
KERNELS = {
    "vector_add": "vector_add.fp32.w4",
    "softmax": "softmax_rows.fp16.w8.s4",
    "matmul": "matmul.fp16.128x256x64.w8.s4",
    "layer_norm": "layer_norm.fp16.w4",
    "attention": "attention.fp16.d64.w4.s3",
}
TEXT_TOKENS = 128
GIB = 1 << 30
GEMM_SIZE = 8192
CONTEXT = 1024
# Libraries set up their workspaces at first use, which a capture would refuse.
WARM_UP_PASSES = 3
# Largest difference of fp16 results, relative to the largest value, between two ways of computing them: other
# algorithms round in another order, over a hundred layers.
TOLERANCE = 0.02
# Steps of a decode loop for which graph and eager pass are compared.
STEPS_COMPARED = 16
# Images over which batch norms take their statistics.
IMAGES_FOR_STATISTICS = 8


class ProgramError(Exception):
    """A program that cannot be set up, or whose results are wrong from the start."""


@dataclass
class Program:
    """`queue` starts one unit of work and returns; `wait` returns when all that was queued is done."""

    queue: Callable[[], object]
    wait: Callable[[], object]
    # What work is counted in, and how much of it one unit is.
    unit: str
    work: float
    # Before a run: what an earlier one left behind must not pass for this one's results.
    begin: Callable[[], object]
    # After a run of so many units: "ok", or what is wrong with the results.
    verify: Callable[[int], str]
    checksum: str
    about: dict[str, str] = field(default_factory=dict)
    # The same work without a CUDA graph, where there is one.
    eager: Callable[[], object] | None = None


@dataclass
class Model:
    """What programs of one network share: `program(batch)` sets one up."""

    program: Callable[[int], Program]


def open_model(gpu: Gpu, name: str, context: int = CONTEXT, eager: bool = False, tolerance: float = TOLERANCE) -> Model:
    """A network by name, or `decode`, of which only the first tokens are then checked. `tolerance` is how far eager passes may be apart."""
    if name == "decode":
        return decoder(gpu, context, eager=eager, reference=STEPS_COMPARED)
    if name in IMAGES:
        return classifier(gpu, name, eager, tolerance)
    return language_model(gpu, name, eager, tolerance)


def classifier(gpu: Gpu, name: str, eager: bool, tolerance: float) -> Model:
    """A torchvision module in fp16, channels first. Work is counted in images."""
    import torch
    import torchvision

    torch.manual_seed(SEED)
    pixels = IMAGE_PIXELS.get(name, 224)
    with torch.no_grad(), torch.device(gpu.device):
        network = torchvision.models.get_model(name, weights=None).eval().half()
        make_lively(network, torch.randn(IMAGES_FOR_STATISTICS, 3, pixels, pixels, dtype=torch.float16))

    def program(batch: int) -> Program:
        torch.manual_seed(SEED)
        images = torch.randn(batch, 3, pixels, pixels, dtype=torch.float16, device=gpu.device)
        about = {"torchvision": torchvision.__version__}
        if eager:
            return launched(gpu, lambda: network(images), batch, "image", about, tolerance)
        return replayed(gpu, lambda: network(images), batch, "image", about)

    return Model(program)


def make_lively(network, images) -> None:
    """Lets values of a usual size flow through random weights.

    As they are initialised, some networks overflow fp16 (ResNet-152, Inception), some fade to nothing (EfficientNet) or
    end in zeros (ViT): the results would check nothing, and zeros cost less power than numbers do.
    """
    import torch

    for parameter in network.parameters():
        if parameter.dim() > 1 and not parameter.any():
            parameter.normal_(std=0.02)
    norms = [module for module in network.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        network(images)
    for norm in norms:
        norm.eval()


def language_model(gpu: Gpu, name: str, eager: bool, tolerance: float) -> Model:
    """BERT, or GPT-2 over its whole input, in fp16, from transformers. Work is counted in sequences.

    Called without a mask, as most do first. While a graph is captured, transformers makes the mask that it skips
    otherwise, so that the graph has other attention kernels than an eager pass: what is timed and traced is the graph.
    """
    import torch
    import transformers

    torch.manual_seed(SEED)
    with torch.no_grad(), torch.device(gpu.device):
        if name == "bert_base":
            network = transformers.BertModel(transformers.BertConfig()).eval().half()
        else:
            network = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False)).eval().half()

    def program(batch: int) -> Program:
        torch.manual_seed(SEED)
        tokens = torch.randint(0, network.config.vocab_size, (batch, TEXT_TOKENS), device=gpu.device)
        about = {"transformers": transformers.__version__}
        if eager:
            return launched(gpu, lambda: network(tokens)[0], batch, "sequence", about, tolerance)
        return replayed(gpu, lambda: network(tokens)[0], batch, "sequence", about)

    return Model(program)


def replayed(gpu: Gpu, call: Callable, batch: int, unit: str, about: dict[str, str]) -> Program:
    """A call that leaves its result in a tensor, as a CUDA graph."""
    import torch

    def eager():
        with torch.inference_mode():
            return call()

    expected = warmed_up(gpu, eager)
    graph, output = captured(gpu, eager)
    graph.replay()
    gpu.wait()
    first = output.clone()
    gpu.wait()
    about = about | {"graph": "yes", "difference": f"{compared(first, expected, 'eager'):.2g}"}

    def begin() -> None:
        with torch.inference_mode():
            output.fill_(math.nan)
        gpu.wait()

    def verify(units: int) -> str:
        gpu.check()
        return "ok" if units == 0 else checked(output, first, "the first replay")

    return Program(graph.replay, gpu.wait, unit, batch, begin, verify, digest(first), gpu.about | about, eager)


def launched(gpu: Gpu, call: Callable, batch: int, unit: str, about: dict[str, str], tolerance: float) -> Program:
    """A call that leaves its result in a tensor, launched kernel by kernel as PyTorch does by itself. Each result is held against the first, on the
    GPU and behind it; the last one is kept."""
    import torch

    last = [None]

    def eager():
        with torch.inference_mode():
            return call()

    first = warmed_up(gpu, eager).clone()
    with torch.inference_mode():
        tolerated = tolerance * first.abs().max()
        wrong = torch.zeros((), dtype=torch.int64, device=gpu.device)

    def queue() -> None:
        with torch.inference_mode():
            last[0] = call()
            # Not `>`: a NaN is wrong.
            wrong.add_(torch.logical_not((last[0] - first).abs().max() <= tolerated))

    def begin() -> None:
        last[0] = None
        with torch.inference_mode():
            wrong.zero_()

    queue()
    gpu.wait()

    def verify(units: int) -> str:
        gpu.check()
        if units == 0:
            return "ok"
        if last[0] is None:
            return f"{units} units were served, and there is no result"
        if int(wrong):
            return f"{int(wrong)} of {units} results differ from the first by more than {tolerance} of its largest value"
        return checked(last[0], first, "the first pass")

    about = about | {"graph": "no"}
    return Program(queue, gpu.wait, unit, batch, begin, verify, digest(first), gpu.about | about, queue)


def checked(output, first, what: str) -> str:
    """"ok" where a result is that of `what`, to the bit or within what other algorithms make of it."""
    if same_bits(output, first):
        return "ok"
    try:
        print(f"results differ by {compared(output, first, what):.2g} of the largest", flush=True)
    except ProgramError as error:
        return str(error)
    return "ok"


def warmed_up(gpu: Gpu, call: Callable):
    for _ in range(WARM_UP_PASSES):
        output = call()
    gpu.wait()
    return output


def captured(gpu: Gpu, call: Callable):
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=gpu.stream):
        output = call()
    gpu.wait()
    gpu.check()
    return graph, output


def same_bits(one, other) -> bool:
    """Equal to the bit, NaN included."""
    import torch

    return torch.equal(one.view(torch.int16), other.view(torch.int16))


def compared(output, expected, what: str) -> float:
    """The largest difference relative to the largest value expected."""
    largest = float(expected.abs().max())
    if not 0 < largest < math.inf:
        raise ProgramError(f"the results of {what} reach {largest}; they cannot be checked")
    difference = float((output.float() - expected.float()).abs().max()) / largest
    # Not `>`: a NaN is wrong.
    if not difference <= TOLERANCE:
        raise ProgramError(f"results differ from {what} by {difference:.2g} of the largest value; {TOLERANCE} are tolerated")
    return difference


def digest(values) -> str:
    """A checksum of a tensor: over sums of its rows as integers, which the GPU makes of large ones in no time."""
    import torch

    bits = values.contiguous().view(torch.int16)
    sums = bits.reshape(bits.shape[0], -1).sum(1, dtype=torch.int64)
    return hashlib.sha256(sums.cpu().numpy().tobytes()).hexdigest()[:16]


def decoder(gpu: Gpu, context: int, eager: bool, reference: int | None = None) -> Model:
    """One token for each of a batch of sequences; see `decode`. Work is counted in tokens.

    Setting one up generates `reference` tokens, by default a whole context, that those of runs are held against.
    """
    import torch

    import decode

    with torch.inference_mode():
        weights = decode.Weights(decode.Size(), gpu.device, torch.float16)

    def program(batch: int) -> Program:
        with torch.inference_mode():
            return decoding(gpu, decode.Decoder(weights, batch, context), eager, min(reference or context, context))

    return Model(program)


def decoding(gpu: Gpu, state, eager: bool, reference: int) -> Program:
    import torch

    import decode

    def step() -> None:
        with torch.inference_mode():
            state.step()

    def after_reset(call: Callable, steps: int) -> decode.History:
        state.reset()
        for _ in range(steps):
            call()
        gpu.wait()
        history = decode.History(state)
        gpu.wait()
        return history

    warmed_up(gpu, step)
    queue = step
    if not eager:
        graph, _ = captured(gpu, step)
        queue = graph.replay
    few = min(STEPS_COMPARED, reference)
    eager_history = after_reset(step, few)
    history = after_reset(queue, reference)
    if not torch.equal(history.tokens[:few], eager_history.tokens[:few]):
        raise ProgramError("the first tokens of the graph are not those of an eager pass")
    state.reset()
    gpu.wait()

    def begin() -> None:
        # In inference mode, as the tensors of the state are.
        with torch.inference_mode():
            state.forget()
        gpu.wait()

    def verify(units: int) -> str:
        gpu.check()
        with torch.inference_mode():
            return history.verify(units)

    about = {
        "graph": "no" if eager else "yes",
        "context": str(state.context),
        "parameters": str(state.weights.parameters()),
    }
    return Program(
        queue, gpu.wait, "token", state.batch, begin, verify, history.checksum, gpu.about | about, None if eager else step
    )


def stream(gpu: Gpu) -> Program:
    """Copies of 1 GiB within the GPU's memory. Work is counted in GB read and written."""
    import torch

    torch.manual_seed(SEED)
    source = torch.randint(0, 256, (GIB,), dtype=torch.uint8, device=gpu.device).view(torch.int16)
    target = torch.empty_like(source)
    queue = lambda: target.copy_(source)  # noqa: E731

    def verify(units: int) -> str:
        gpu.check()
        return "ok" if units == 0 or torch.equal(target, source) else "the copy is not what was copied"

    checksum = digest(source.view(1024, -1))
    about = gpu.about | {"cache_policy": "cudaMemcpyAsync between buffers of 1 GiB"}
    return Program(warm(gpu, queue), gpu.wait, "GB", 2 * GIB / 1e9, cleared(gpu, target), verify, checksum, about)


def gemm(gpu: Gpu, size: int) -> Program:
    """Products of two square bf16 matrices. Work is counted in products."""
    import torch

    torch.manual_seed(SEED)
    a, b = (torch.randn(size, size, dtype=torch.bfloat16, device=gpu.device) for _ in range(2))
    out = torch.empty_like(a)
    queue = warm(gpu, lambda: torch.mm(a, b, out=out))
    rows = min(size, 64)
    compared(out[:rows], a[:rows].float() @ b.float(), "an fp32 product")
    first = out.clone()
    gpu.wait()

    def verify(units: int) -> str:
        gpu.check()
        return "ok" if units == 0 or same_bits(out, first) else "the product is not that of the first time"

    return Program(queue, gpu.wait, "product", 1, cleared(gpu, out), verify, digest(first), gpu.about)


# Stores a word where nothing is: no allocation of the driver lies so low.
STRAY = b"""
.version 8.4
.target sm_70
.address_size 64

.visible .entry stray()
{
    .reg .b32 %value;
    .reg .b64 %address;
    mov.u32 %value, 1;
    mov.u64 %address, 0x10000000;
    st.global.u32 [%address], %value;
    ret;
}
"""
FAULTS = ("assert", "illegal")


def stray(gpu: Gpu) -> Callable:
    """Launches the kernel above. PyTorch has none that does such a thing: its own look before they read."""
    driver, module, function = Driver(), ctypes.c_void_p(), ctypes.c_void_p()
    driver.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(STRAY))
    driver.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"stray"))
    one, nothing, stream = ctypes.c_uint(1), ctypes.c_uint(0), ctypes.c_void_p(gpu.stream.cuda_stream)
    return lambda: driver.call("cuLaunchKernel", function, *[one] * 6, nothing, stream, None, None)


def fault(gpu: Gpu, after: int, kind: str = "assert") -> Program:
    """Looks up words of a table, and from unit `after` on does what the GPU reports as a fault: looks one up that lies outside of
    the table, which an assertion of the kernel finds, or stores to an illegal address. What it does to the neighbours is what one wants
    to see."""
    import torch

    table = torch.arange(1 << 20, device=gpu.device)
    inside = torch.zeros(1 << 16, dtype=torch.long, device=gpu.device)
    outside = inside + (1 << 30)
    wrong = stray(gpu) if kind == "illegal" else lambda: table.index_select(0, outside)
    queued = [0]

    def queue() -> None:
        queued[0] += 1
        if queued[0] >= after:
            wrong()
        else:
            table.index_select(0, inside)

    def verify(units: int) -> str:
        gpu.check()
        return "ok"

    warmed_up(gpu, lambda: table.index_select(0, inside))
    return Program(queue, gpu.wait, "lookup", 1, lambda: None, verify, digest(table[:1024]), gpu.about)


def warm(gpu: Gpu, queue: Callable) -> Callable:
    warmed_up(gpu, queue)
    return queue


def cleared(gpu: Gpu, target) -> Callable[[], None]:
    def begin() -> None:
        target.zero_()
        gpu.wait()

    return begin


# What a unit of the stand-in takes.
FAKE_UNIT_S = 0.0005


def fake(name: str, work: float, about: dict[str, str]) -> Program:
    """Half a millisecond of sleep for each unit, to rehearse all the rest; needs no GPU and no PyTorch."""
    queued = [0, 0]

    def queue() -> None:
        queued[0] += 1
        queued[1] += 1

    def wait() -> None:
        time.sleep(queued[0] * FAKE_UNIT_S)
        queued[0] = 0

    def begin() -> None:
        queued[1] = 0

    def verify(units: int) -> str:
        return "ok" if queued == [0, units] else f"{units} units were served, {queued[1]} were queued"

    checksum = hashlib.sha256(name.encode()).hexdigest()[:16]
    return Program(queue, wait, "unit", work, begin, verify, checksum, {"fake": "short waits, no GPU"} | about, queue)
