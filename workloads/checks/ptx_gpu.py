"""An arena of half of the stretches of some memory, and launches into it by the driver: for `ptx_rewrite.py` and `ptx_networks.py`."""

import ctypes
import functools
import re
import struct

STRETCH = 4096
# The bits of an H200, and the first above them for the constant of a page.
MASK = 0xAB000 | 1 << 21
LENGTH = 1 << 30
# Which bits' parity is the color, and which of them is put in. With `pages` the instructions of `stretches` are executed on stretches of 2 MiB: what
# they cost where memory is not scattered. With `halves` the bit that is put in is the highest one, and nothing else moves.
KINDS = {
    "stretches": (MASK, STRETCH),
    "pages": (MASK << 9, STRETCH << 9),
    "halves": (0xAB000 | LENGTH, LENGTH),
}
DEVICE = "cuda"
# Places at such multiples are the cheapest to translate.
ALIGNED = 1 << 32
PATTERN = 0xA5A5A5A5A5A5A5A5 - (1 << 64)


class Failed(Exception):
    """What keeps it from going on."""


def order(base, options="", kind="stretches"):
    """The arena as `partywall` takes it. Where addresses are seen is also where they are mapped, so that each is one the driver knows."""
    mask, split = KINDS[kind]
    options = options if split == mask & -mask else f",split={split:#x}{options}"
    return f"mask={mask:#x},logical={base:#x},mapped={base:#x},length={LENGTH:#x},parity=odd{options}"


def parity(bits):
    return bin(bits).count("1") & 1


def stretches(base, count, kind="stretches"):
    """Which 4 KiB of the mapped memory each of the first `count` logical ones are."""
    mask, split = KINDS[kind]
    found = []
    for n in range(count):
        pair, within = divmod(n * STRETCH, split)
        first = 2 * pair * split + within
        odd = parity((base + first) & mask)
        found.append((first + (0 if odd else split)) // STRETCH)
    return found


def parameters(ptx):
    """Types of the parameters of a kernel."""
    head = re.search(r"\.entry\s+[\w$]+\s*\((.*?)\)", ptx, re.DOTALL)
    return re.findall(r"\.param\s+\.(\w+)", head.group(1)) if head else []


def packed(types, values):
    """Arguments as a launch takes them; what a compiler has added at the end are addresses, and null."""
    if len(types) < len(values) or any(not kind.endswith("64") for kind in types[len(values):]):
        raise Failed(f"{len(values)} arguments for parameters of {types}")
    values = list(values) + [0] * (len(types) - len(values))
    formats = [("<f" if isinstance(value, float) else "<q" if kind.endswith("64") else "<i") for kind, value in zip(types, values)]
    return [struct.pack(form, value) for form, value in zip(formats, values)]


class Gpu:
    """Launches code by the driver, on PyTorch's context and stream."""

    def __init__(self):
        import torch

        self.torch = torch
        slack = torch.empty(2 * LENGTH + ALIGNED, dtype=torch.uint8, device=DEVICE)
        # Never where the slack begins: PyTorch knows that address already, and may hand out the arena's as tensors of their own.
        self.base = (slack.data_ptr() // ALIGNED + 1) * ALIGNED
        begin = self.base - slack.data_ptr()
        self.memory = slack[begin : begin + 2 * LENGTH].view(torch.int64).view(-1, STRETCH // 8)
        self.of = {}
        for kind in KINDS:
            rows = torch.tensor(stretches(self.base, LENGTH // STRETCH, kind), device=DEVICE)
            mine = torch.zeros(self.memory.shape[0], dtype=torch.bool, device=DEVICE)
            mine[rows] = True
            self.of[kind] = rows, (~mine).nonzero().view(-1)
        self.clear()

    def clear(self, kind="stretches"):
        """An empty arena, with a pattern everywhere."""
        self.rows, self.others = self.of[kind]
        self.memory.fill_(PATTERN)
        self.next = 0

    @functools.cached_property
    def driver(self):
        return ctypes.CDLL("libcuda.so.1")

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code:
            raise Failed(f"{name}: CUDA error {code}")

    def load(self, code, name, shared):
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), code)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        if shared > 48 << 10:
            self.call("cuFuncSetAttribute", function, 8, shared)
        return function

    def launch(self, function, grid, threads, shared, arguments):
        stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        buffers = [ctypes.create_string_buffer(value, len(value)) for value in arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(buffer) for buffer in buffers])

        def again():
            self.call("cuLaunchKernel", function, *grid, threads, 1, 1, shared, stream, pointers, None)

        again.keeps = buffers, pointers
        return again

    def put(self, tensor):
        """Copies a tensor into the arena, and gives the address that it has there."""
        data = tensor.contiguous().view(-1).view(self.torch.uint8)
        count = -(-data.numel() // STRETCH)
        whole = self.torch.zeros(count * STRETCH, dtype=self.torch.uint8, device=DEVICE)
        whole[: data.numel()] = data
        self.memory[self.rows[self.next : self.next + count]] = whole.view(self.torch.int64).view(count, -1)
        begin, self.next = self.next, self.next + count
        if self.next > len(self.rows):
            raise Failed("the arena is full")
        return self.base + begin * STRETCH

    def get(self, address, like):
        """Copies a tensor out of the arena."""
        begin, size = (address - self.base) // STRETCH, like.numel() * like.element_size()
        count = -(-size // STRETCH)
        data = self.memory[self.rows[begin : begin + count]].view(-1).view(self.torch.uint8)[:size]
        return data.view(like.dtype).view(like.shape)

    def is_untouched(self):
        """Whether what belongs to the other color has its pattern still."""
        return all(bool((self.memory[part] == PATTERN).all()) for part in self.others.split(1 << 15))

    def piece(self, launch, count):
        """Milliseconds of so many launches."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


def same(left, right):
    """Whether two tensors have the same bytes."""
    return bool((left.contiguous().view(-1).view(gpu_bytes()) == right.contiguous().view(-1).view(gpu_bytes())).all())


def gpu_bytes():
    import torch

    return torch.uint8
