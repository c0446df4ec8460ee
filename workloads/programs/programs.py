#!/usr/bin/env python3
"""Small programs on the usual frameworks, each with a digest of all that it computes, to be run twice and compared.

    python3 programs.py torch-eager
    python3 programs.py cupy --kernels
    python3 programs.py jax --quota 2MiB

Prints one JSON line. `--kernels` counts the kernels that ran on the GPU. `--quota PIECE` fills what GPU memory the
process is allowed after the work, piece by piece, until the framework says that there is no more.
`--fake [SIZE]` stands in for a GPU with so much memory."""

import argparse
import ctypes
import gc
import hashlib
import json
import os
import re
import sys
import time
import traceback

import kernels

SEED = 7
MIB, GIB = 1 << 20, 1 << 30
# Without a quota, filling memory would fill the GPU for everybody on it.
FILL_MAX_BYTES = 64 * GIB
# For how long memory stays filled, so that who looks from time to time sees it at its most.
FILLED_S = 1
COPY_BYTES = 64 * MIB
REPLAYS = 10
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": MIB, "GiB": GIB, "TiB": 1 << 40}


class ProgramError(Exception):
    """A program that cannot run, or whose results are wrong; in words for the one who started it."""


def size(text):
    """`2MiB` as bytes."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: a size such as 2MiB or 8GiB is expected")
    exact = float(found[1]) * UNITS[found[2]]
    if exact < 1 or exact != int(exact):
        raise argparse.ArgumentTypeError(f"{text!r}: not a whole number of bytes above zero")
    return int(exact)


def driver_memory():
    """Free and total bytes, as the driver says in the context that the frameworks share."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        status = getattr(cuda, name)(*arguments)
        if status != 0:
            raise ProgramError(f"{name}: CUDA error {status}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuInit", ctypes.c_uint(0))
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    try:
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
        call("cuDevicePrimaryCtxRelease_v2", device)
    return free.value, total.value


class Torch:
    def __init__(self):
        # Without it cuBLAS may give other bits from run to run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # The compiler chooses nothing by how long it took.
        os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
        import torch

        self.torch = torch
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        if not torch.cuda.is_available():
            raise ProgramError("PyTorch sees no GPU")

    def versions(self):
        import torchvision

        torch = self.torch
        found = {"torch": torch.__version__, "torchvision": torchvision.__version__, "cuda": torch.version.cuda}
        return found | {"cudnn": str(torch.backends.cudnn.version())}

    def wait(self):
        self.torch.cuda.synchronize()

    def memory(self):
        return self.torch.cuda.mem_get_info()

    def release(self):
        self.torch.cuda.empty_cache()
        # From here on every tensor is an allocation of the driver.
        self.torch.cuda.memory.caching_allocator_enable(False)

    def piece(self, count):
        return self.torch.empty(count, dtype=self.torch.uint8, device="cuda")

    def bits(self, tensor):
        torch = self.torch
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ProgramError("the results are not finite: they would check nothing")
        return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def resnet50(torch):
    """In fp16 with random weights, on the GPU; the same each time."""
    import torchvision

    torch.manual_seed(SEED)
    network = torchvision.models.resnet50(weights=None)
    for module in network.modules():
        if isinstance(module, torchvision.models.resnet.Bottleneck):
            # Random weights let values grow from block to block; this keeps them within fp16.
            torch.nn.init.constant_(module.bn3.weight, 0.25)
    return network.eval().half().cuda()


def images(torch, number):
    generator = torch.Generator().manual_seed(SEED + number)
    return torch.randn(1, 3, 224, 224, generator=generator).half()


def torch_eager(framework, counted):
    """Inference, a step of training, and copies from and to pinned and pageable memory."""
    torch = framework.torch
    network = resnet50(torch)
    with torch.inference_mode():
        for number in range(3):
            yield framework.bits(network(images(torch, number).cuda()))
    torch.manual_seed(SEED)
    small = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3),
        torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10),
    ).cuda()
    optimizer = torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(SEED)
    batch, labels = torch.randn(16, 3, 32, 32, generator=generator), torch.arange(16) % 10
    loss = torch.nn.functional.cross_entropy(small(batch.cuda()), labels.cuda())
    loss.backward()
    optimizer.step()
    yield framework.bits(loss)
    for parameter in small.parameters():
        yield framework.bits(parameter.grad)
        yield framework.bits(parameter)
    yield from copies(framework)


def copies(framework):
    torch = framework.torch
    generator = torch.Generator().manual_seed(SEED)
    source = torch.randint(0, 256, (COPY_BYTES,), dtype=torch.uint8, generator=generator)
    for kind in ("pinned", "pageable"):
        pinned = kind == "pinned"
        host = source.pin_memory() if pinned else source
        back = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=pinned)
        back.copy_(host.to("cuda", non_blocking=pinned), non_blocking=pinned)
        framework.wait()
        if not torch.equal(back, source):
            raise ProgramError(f"64 MiB came back changed from a copy through {kind} memory")
        yield back.numpy().tobytes()


def torch_graph(framework, counted):
    """Replays of a captured network, each on another input."""
    torch = framework.torch
    with torch.inference_mode():
        network, held = resnet50(torch), images(torch, 0).cuda()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                network(held)
        torch.cuda.current_stream().wait_stream(side)
        framework.wait()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = network(held)
        for number in range(REPLAYS):
            held.copy_(images(torch, number))
            graph.replay()
            yield framework.bits(output)


def torch_compile(framework, counted):
    """A block of a transformer, compiled. Kernels are counted from the second call on: how many the compiler tries in the
    first is its own affair."""
    torch = framework.torch
    class Block(torch.nn.Module):
        def __init__(self, width=256, heads=4):
            super().__init__()
            self.heads = heads
            self.before, self.after = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.attention, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.wide, self.narrow = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            parts = self.attention(self.before(x)).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.narrow(torch.nn.functional.gelu(self.wide(self.after(x))))

    torch.manual_seed(SEED)
    block = Block().eval().half().cuda()
    compiled = torch.compile(block)
    generator = torch.Generator().manual_seed(SEED)
    inputs = [torch.randn(4, 128, 256, generator=generator).half().cuda() for _ in range(4)]
    with torch.inference_mode():
        yield framework.bits(compiled(inputs[0]))
        counted()
        for x in inputs:
            yield framework.bits(compiled(x))


class Jax:
    def __init__(self):
        os.environ.setdefault("JAX_PLATFORMS", "cuda")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true")
        import jax

        self.jax = jax
        jax.devices()

    def versions(self):
        import jaxlib
        import numpy

        return {"jax": self.jax.__version__, "jaxlib": jaxlib.__version__, "numpy": numpy.__version__}

    def wait(self):
        self.jax.effects_barrier()
        self.jax.block_until_ready(self.jax.numpy.zeros(1))

    def memory(self):
        return driver_memory()

    def release(self):
        # XLA_PYTHON_CLIENT_ALLOCATOR=platform: nothing is kept.
        self.jax.clear_caches()

    def piece(self, count):
        return self.jax.block_until_ready(self.jax.numpy.zeros((count,), self.jax.numpy.uint8))


def jax_program(framework, counted):
    """Products, tanh and a scan, compiled, and their gradient."""
    import numpy

    jax, jnp = framework.jax, framework.jax.numpy
    random = numpy.random.default_rng(SEED)
    weights = random.standard_normal((512, 512), dtype=numpy.float32) / 32
    bias = random.standard_normal(512, dtype=numpy.float32)
    first = random.standard_normal((64, 512), dtype=numpy.float32)

    @jax.jit
    def forward(weights, bias, first):
        def step(state, _):
            state = jnp.tanh(state @ weights + bias)
            return state, state.mean(axis=1)

        last, means = jax.lax.scan(step, first, None, length=16)
        return last @ weights.T, means

    @jax.jit
    def gradient(weights, bias, first):
        return jax.grad(lambda weights, bias: (forward(weights, bias, first)[0] ** 2).mean(), argnums=(0, 1))(weights, bias)

    for outputs in (forward(weights, bias, first), gradient(weights, bias, first)):
        for output in outputs:
            values = numpy.asarray(output)
            if not numpy.isfinite(values).all():
                raise ProgramError("the results are not finite: they would check nothing")
            yield values.tobytes()


class Cupy:
    def __init__(self):
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(0).use()

    def versions(self):
        import numpy

        cuda = str(self.cupy.cuda.runtime.runtimeGetVersion())
        return {"cupy": self.cupy.__version__, "numpy": numpy.__version__, "cuda": cuda}

    def wait(self):
        self.cupy.cuda.Device().synchronize()

    def memory(self):
        return self.cupy.cuda.Device().mem_info

    def release(self):
        self.cupy.fft.config.get_plan_cache().clear()
        self.cupy.get_default_memory_pool().free_all_blocks()
        self.cupy.get_default_pinned_memory_pool().free_all_blocks()
        self.cupy.cuda.set_allocator(None)

    def piece(self, count):
        return self.cupy.empty(count, dtype=self.cupy.uint8)


ROTATE = r"""
extern "C" __global__ void rotate_words(const unsigned int* in, unsigned int* out, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) { out[at] = (in[at] << (at % 31 + 1)) | (in[at] >> (31 - at % 31)); }
}
"""


def cupy_program(framework, counted):
    """An elementwise kernel, a kernel in CUDA C, a product, a Fourier transform, a sort."""
    import numpy

    cupy = framework.cupy
    random = numpy.random.default_rng(SEED)
    values = cupy.asarray(random.standard_normal(1 << 20, dtype=numpy.float32))
    squared = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = (x - y) * (x - y)", "squared_difference")
    yield squared(values, values[::-1].copy()).get().tobytes()
    words = cupy.asarray(random.integers(0, 1 << 32, 1 << 18, dtype=numpy.uint32))
    turned = cupy.empty_like(words)
    cupy.RawKernel(ROTATE, "rotate_words")(((words.size + 255) // 256,), (256,), (words, turned, numpy.int32(words.size)))
    yield turned.get().tobytes()
    square = values.reshape(1024, 1024)
    yield cupy.matmul(square, square.T).get().tobytes()
    yield cupy.fft.fft(square, axis=1).get().tobytes()
    yield cupy.sort(values).get().tobytes()


class Fake:
    """Imaginary memory, for rehearsals."""

    def __init__(self, total):
        self.total, self.held, self.kept = total, 300 * MIB, []

    def versions(self):
        return {"fake": "1"}

    def wait(self):
        pass

    def memory(self):
        return self.total - self.held, self.total

    def release(self):
        pass

    def piece(self, count):
        if self.held + count > self.total:
            raise MemoryError("out of memory")
        return FakePiece(self, count)


class FakePiece:
    def __init__(self, owner, count):
        self.owner, self.count = owner, count
        owner.held += count

    def __del__(self):
        self.owner.held -= self.count


class FakeCount:
    """As of `kernels.Cupti`."""

    def restart(self):
        pass

    def finish(self):
        return {"total": 100, "names": 1, "by_name": hashlib.sha256(b"fake").hexdigest()}


def fake_program(framework, counted):
    counted()
    for number in range(3):
        yield hashlib.sha256(bytes([number])).digest()


PROGRAMS = {
    "torch-eager": (Torch, torch_eager),
    "torch-graph": (Torch, torch_graph),
    "torch-compile": (Torch, torch_compile),
    "jax": (Jax, jax_program),
    "cupy": (Cupy, cupy_program),
}


def is_out_of_memory(error):
    text = f"{type(error).__name__} {error}".lower()
    return any(words in text for words in ("out of memory", "outofmemory", "out_of_memory", "resource_exhausted"))


def fill(framework, piece, memory):
    """Takes pieces until there are no more, then frees them and takes one again. `memory` is the driver's view."""
    framework.release()
    gc.collect()
    framework.wait()
    total = memory()[1]
    if total > FILL_MAX_BYTES:
        raise ProgramError(f"--quota: this process may use {total / GIB:.0f} GiB, which it will not fill; at most 64 GiB are")
    held, error, most = [], None, total // piece + 1
    while error is None:
        if len(held) > most:
            raise ProgramError(f"--quota: {len(held)} pieces of {piece} bytes were given out of {total} bytes")
        try:
            held.append(framework.piece(piece))
        except Exception as failed:
            if not is_out_of_memory(failed):
                raise
            # Not the exception itself: its traceback would keep things alive.
            error = type(failed).__name__, str(failed).strip().splitlines()[:1]
    free, total = memory()
    report = {"piece_bytes": piece, "pieces": len(held), "error": error[0], "message": "".join(error[1])[:200]}
    report |= {"free_after_bytes": free, "total_bytes": total}
    time.sleep(FILLED_S)
    held.clear()
    gc.collect()
    again = framework.piece(piece)
    framework.wait()
    del again
    return report | {"works_after": True, "free_at_end_bytes": memory()[0]}


def run(chosen):
    """The program's JSON line as a dictionary."""
    faked = chosen.fake is not None
    counter = None
    if chosen.kernels:
        counter = FakeCount() if faked else kernels.Cupti()
    if chosen.quota and chosen.program == "jax":
        os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "platform")
    open_framework, program = PROGRAMS[chosen.program]
    framework, program = (Fake(chosen.fake), fake_program) if faked else (open_framework(), program)

    def counted():
        framework.wait()
        if counter:
            counter.restart()

    digest, outputs, output_bytes = hashlib.sha256(), 0, 0
    for bits in program(framework, counted):
        digest.update(bits)
        outputs, output_bytes = outputs + 1, output_bytes + len(bits)
    framework.wait()
    report = {"program": chosen.program, "versions": framework.versions(), "digest": digest.hexdigest()}
    report |= {"outputs": outputs, "output_bytes": output_bytes}
    report["kernels"] = counter.finish() if counter else None
    free, total = framework.memory()
    report["memory"] = {"free_bytes": int(free), "total_bytes": int(total)}
    memory = framework.memory if faked else driver_memory
    report["quota"] = fill(framework, chosen.quota, memory) if chosen.quota else None
    return report


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS, metavar="NAME", help=", ".join(PROGRAMS))
    parser.add_argument("--kernels", action="store_true", help="count the kernels that run, through CUPTI")
    parser.add_argument("--quota", type=size, metavar="PIECE", help="then fill memory by pieces of this size, such as 2MiB")
    parser.add_argument("--fake", type=size, nargs="?", const=16 * GIB, metavar="SIZE", help="no GPU; memory of this size")
    return parser.parse_args(words)


def main():
    chosen = arguments(sys.argv[1:])
    try:
        print(json.dumps(run(chosen)), flush=True)
        return 0
    except (ProgramError, kernels.KernelsError, ImportError) as error:
        print(f"programs.py {chosen.program}: {type(error).__name__}: {error}", file=sys.stderr)
    except Exception as error:
        # Anything may come out of a framework; whoever compares records it and goes on.
        traceback.print_exc()
        print(f"programs.py {chosen.program}: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
