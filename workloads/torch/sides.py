"""Memory on one side of the chip, for a tenant behind the wall `sides`, and kernels of Triton that go there.

The environment says whether there is any (`partywall measure` sets it): the library that gives it, and the side. What PyTorch allocates inside of
`inside()` is the arena's. Only kernels that were compiled after `take()` find what is there; PyTorch's own do not, so data go in and out by
`placed` and `fetched`."""

import contextlib
import ctypes
import os
import re
import subprocess
import tempfile
import time

from gpu import GpuError

LIBRARY_VARIABLE = "PARTYWALL_SIDE_LIBRARY"
ARENA_VARIABLE = "PARTYWALL_ARENA"
# Enough for the networks of `triton_networks`. Twice as much is taken.
ARENA_BYTES = 2 << 30
ERROR_BYTES = 1000
# A neighbour that begins at the same time can make pages hard to tell apart.
TRIES, PAUSE_S = 5, 2.0


def is_wanted() -> bool:
    return bool(os.environ.get(LIBRARY_VARIABLE))


def program(library: str) -> str:
    """`partywall`, which is beside its library, or above it where cargo has built both."""
    folder = os.path.dirname(os.path.abspath(library))
    for place in (folder, os.path.dirname(folder), os.path.join(os.path.dirname(os.path.dirname(folder)), "bin")):
        path = os.path.join(place, "partywall")
        if os.access(path, os.X_OK):
            return path
    raise GpuError(f"there is no program `partywall` near {library}")


def assemblers() -> dict[str, str]:
    """The environment in which Triton finds `partywall` in the place of its assemblers."""
    import triton

    folder = tempfile.mkdtemp(prefix="partywall-ptxas-")
    places = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    found = {}
    for name in ("ptxas", "ptxas-blackwell"):
        real = os.path.join(places, name)
        if os.path.exists(real):
            words = [program(os.environ[LIBRARY_VARIABLE]), "vram", "ptxas", "--real", real, "--install", folder]
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            found |= dict(re.findall(r"export (\w+)='([^']*)'", said))
    if not found:
        raise GpuError(f"Triton has no assembler in {places}")
    return found


class Arena:
    """Memory on the side that the environment names."""

    def __init__(self, evict_first: bool):
        import torch

        self.torch = torch
        path = os.environ[LIBRARY_VARIABLE]
        self.library = ctypes.CDLL(path)
        self.library.partywall_side_arena.restype = ctypes.c_char_p
        self.library.partywall_side_error.restype = ctypes.c_size_t
        self.begin()
        self.order = self.library.partywall_side_arena().decode() + (",evict-first" if evict_first else "")
        # Read by the assemblers' scripts at each call.
        os.environ[ARENA_VARIABLE] = self.order
        os.environ.update(assemblers())
        memory = torch.cuda.memory.CUDAPluggableAllocator(path, "partywall_side_malloc", "partywall_side_free")
        self.keep = memory
        self.pool = torch.cuda.MemPool(memory.allocator())

    def begin(self) -> None:
        for tried in range(1, TRIES + 1):
            if self.library.partywall_side_begin(ctypes.c_uint64(ARENA_BYTES)) == 0:
                return
            if tried < TRIES:
                time.sleep(PAUSE_S)
        raise GpuError(f"no memory of a side after {TRIES} tries: {self.error()}")

    def error(self) -> str:
        place = ctypes.create_string_buffer(ERROR_BYTES)
        self.library.partywall_side_error(place, ctypes.c_size_t(ERROR_BYTES))
        return place.value.decode(errors="replace")

    def about(self) -> dict[str, str]:
        return {"side": os.environ["PARTYWALL_SIDE"], "memory": "one side, private pages", "arena": self.order, "capacity_lost_bytes": str(ARENA_BYTES)}

    def inside(self):
        return self.torch.cuda.use_mem_pool(self.pool)

    def span(self, tensor) -> tuple[int, int]:
        """Where a tensor's memory begins, and how many bytes it is from its first to its last element."""
        elements = 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride()))
        return tensor.data_ptr(), elements * tensor.element_size()

    def write(self, tensor, data) -> None:
        """Puts the host's tensor, of the same shape and strides, where a tensor of the arena is."""
        address, count = self.span(tensor)
        if self.span(data)[1] != count:
            raise GpuError(f"{self.span(data)[1]} bytes are no {count}")
        if self.library.partywall_side_write(ctypes.c_uint64(address), ctypes.c_void_p(data.data_ptr()), ctypes.c_size_t(count)):
            raise GpuError(self.error())

    def placed(self, tensor):
        """A tensor of the host's memory, in the arena."""
        with self.inside():
            place = self.torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
        self.write(place, tensor)
        return place

    def fetched(self, tensor):
        """What a tensor of the arena holds, in the host's memory."""
        data = self.torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        address, count = self.span(tensor)
        if self.library.partywall_side_read(ctypes.c_uint64(address), ctypes.c_void_p(data.data_ptr()), ctypes.c_size_t(count)):
            raise GpuError(self.error())
        return data


class Anywhere:
    """Memory as PyTorch takes it."""

    pool = None

    def about(self) -> dict[str, str]:
        return {"memory": "anywhere"}

    def inside(self):
        return contextlib.nullcontext()

    def write(self, tensor, data) -> None:
        tensor.copy_(data)

    def placed(self, tensor):
        return tensor.cuda()

    def fetched(self, tensor):
        return tensor.cpu()


def take(evict_first: bool):
    return Arena(evict_first) if is_wanted() else Anywhere()
