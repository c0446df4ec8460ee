"""Triton kernels in the manner of Triton's tutorials, of every kind that the rewriter is tried on: for `ptx_rewrite.py`, and for tenants (`compiled`).

Each `Case` says which arguments a kernel takes, so that it can be compiled without a GPU and launched with one. A `Tensor` has a shape, a type
and what it is filled with; what else is in `arguments` is a number. Integers in sums keep them independent of the order of atomic operations."""

import dataclasses

import triton
import triton.language as tl


@triton.jit
def vector_add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * stride + at, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row * stride + at, (power / tl.sum(power, axis=0)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def softmax_rows(x, out, stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """The same with a loop over rows whose loads run ahead."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        value = tl.load(x + row * stride + at, mask=inside, other=-float("inf")).to(tl.float32)
        power = tl.exp(value - tl.max(value, axis=0))
        tl.store(out + row * stride + at, (power / tl.sum(power, axis=0)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def matmul(a, b, c, m, n, k, am, bk, cm, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr):
    """Row-major, in groups of tile rows that find their columns in L2."""
    program = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(m, M), tl.cdiv(n, N)
    first = program // (GROUP * tiles_n) * GROUP
    rows = min(tiles_m - first, GROUP)
    tile_m = first + program % (GROUP * tiles_n) % rows
    tile_n = program % (GROUP * tiles_n) // rows
    at_m = (tile_m * M + tl.arange(0, M)) % m
    at_n = (tile_n * N + tl.arange(0, N)) % n
    at_k = tl.arange(0, K)
    from_a = a + at_m[:, None] * am + at_k[None, :]
    from_b = b + at_k[:, None] * bk + at_n[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, K)):
        left = k - step * K
        part_a = tl.load(from_a, mask=at_k[None, :] < left, other=0.0)
        part_b = tl.load(from_b, mask=at_k[:, None] < left, other=0.0)
        total = tl.dot(part_a, part_b, total)
        from_a += K
        from_b += K * bk
    to_m = tile_m * M + tl.arange(0, M)
    to_n = tile_n * N + tl.arange(0, N)
    inside = (to_m[:, None] < m) & (to_n[None, :] < n)
    tl.store(c + to_m[:, None] * cm + to_n[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul_persistent(a, b, c, m, n, k, am, bk, cm, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PROGRAMS: tl.constexpr):
    """Each program goes on to further tiles."""
    tiles_n = tl.cdiv(n, N)
    at_k = tl.arange(0, K)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, M) * tiles_n, PROGRAMS, flatten=True):
        to_m = tile // tiles_n * M + tl.arange(0, M)
        to_n = tile % tiles_n * N + tl.arange(0, N)
        at_m, at_n = to_m % m, to_n % n
        total = tl.zeros((M, N), dtype=tl.float32)
        for step in range(0, tl.cdiv(k, K)):
            left = k - step * K
            part_a = tl.load(a + at_m[:, None] * am + (step * K + at_k)[None, :], mask=at_k[None, :] < left, other=0.0)
            part_b = tl.load(b + (step * K + at_k)[:, None] * bk + at_n[None, :], mask=at_k[:, None] < left, other=0.0)
            total = tl.dot(part_a, part_b, total)
        inside = (to_m[:, None] < m) & (to_n[None, :] < n)
        tl.store(c + to_m[:, None] * cm + to_n[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def matmul_int8(a, b, c, m, n, k, am, bk, cm, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    at_m = tl.program_id(0) * M + tl.arange(0, M)
    at_n = tl.program_id(1) * N + tl.arange(0, N)
    at_k = tl.arange(0, K)
    total = tl.zeros((M, N), dtype=tl.int32)
    for step in range(0, tl.cdiv(k, K)):
        part_a = tl.load(a + at_m[:, None] * am + (step * K + at_k)[None, :])
        part_b = tl.load(b + (step * K + at_k)[:, None] * bk + at_n[None, :])
        total = tl.dot(part_a, part_b, total, out_dtype=tl.int32)
    tl.store(c + at_m[:, None] * cm + at_n[None, :], total)


@triton.jit
def matmul_described(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """By tensor descriptors, made on the device."""
    from_a = tl.make_tensor_descriptor(a, shape=[m, k], strides=[k, 1], block_shape=[M, K])
    from_b = tl.make_tensor_descriptor(b, shape=[k, n], strides=[n, 1], block_shape=[K, N])
    to_c = tl.make_tensor_descriptor(c, shape=[m, n], strides=[n, 1], block_shape=[M, N])
    at_m, at_n = tl.program_id(0) * M, tl.program_id(1) * N
    total = tl.zeros((M, N), dtype=tl.float32)
    for step in range(0, tl.cdiv(k, K)):
        total = tl.dot(from_a.load([at_m, step * K]), from_b.load([step * K, at_n]), total)
    to_c.store([at_m, at_n], total.to(tl.float16))


@triton.jit
def layer_norm(x, out, weight, bias, means, scales, stride, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    x += row * stride
    out += row * stride
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        total += tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / columns
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < columns, other=0.0).to(tl.float32)
        value = tl.where(at < columns, value - mean, 0.0)
        total += value * value
    scale = 1 / tl.sqrt(tl.sum(total, axis=0) / columns + epsilon)
    tl.store(means + row, mean)
    tl.store(scales + row, scale)
    for begin in range(0, columns, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        inside = at < columns
        value = (tl.load(x + at, mask=inside, other=0.0).to(tl.float32) - mean) * scale
        value = value * tl.load(weight + at, mask=inside) + tl.load(bias + at, mask=inside)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm_backward(dx, dy, dw, db, x, weight, means, scales, stride, rows, columns, BLOCK: tl.constexpr):
    """The gradient of rows, and of weights summed over the rows of a program."""
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    sum_w = tl.zeros([BLOCK], dtype=tl.float32)
    sum_b = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        value = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
        grad = tl.load(dy + row * stride + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row)
        normal = tl.where(inside, (value - tl.load(means + row)) * scale, 0.0)
        product = w * grad
        along = tl.sum(normal * product, axis=0) / columns
        level = tl.sum(product, axis=0) / columns
        tl.store(dx + row * stride + at, ((product - normal * along - level) * scale).to(dx.dtype.element_ty), mask=inside)
        sum_w += grad * normal
        sum_b += grad
    tl.store(dw + program * columns + at, sum_w, mask=inside)
    tl.store(db + program * columns + at, sum_b, mask=inside)


@triton.jit
def attention(q, k, v, out, scale, length, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr):
    """Pointer form: one program, `M` queries of one head."""
    head = tl.program_id(1).to(tl.int64) * length * D
    at_m = tl.program_id(0) * M + tl.arange(0, M)
    at_d = tl.arange(0, D)
    query = tl.load(q + head + at_m[:, None] * D + at_d[None, :])
    top = tl.full([M], -float("inf"), dtype=tl.float32)
    norm = tl.zeros([M], dtype=tl.float32)
    total = tl.zeros([M, D], dtype=tl.float32)
    end = (tl.program_id(0) + 1) * M if CAUSAL else length
    for begin in range(0, end, N):
        at_n = begin + tl.arange(0, N)
        key = tl.load(k + head + at_n[None, :] * D + at_d[:, None])
        score = tl.dot(query, key) * (scale * 1.44269504)
        if CAUSAL:
            score = tl.where(at_m[:, None] >= at_n[None, :], score, -float("inf"))
        higher = tl.maximum(top, tl.max(score, axis=1))
        power = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(top - higher)
        value = tl.load(v + head + at_n[:, None] * D + at_d[None, :])
        total = tl.dot(power.to(v.dtype.element_ty), value, total * shrink[:, None])
        norm = norm * shrink + tl.sum(power, axis=1)
        top = higher
    total = total / norm[:, None]
    tl.store(out + head + at_m[:, None] * D + at_d[None, :], total.to(out.dtype.element_ty))


@triton.jit
def histogram(x, counts, largest, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(x + at, mask=inside, other=0)
    tl.atomic_add(counts + (value & (BINS - 1)), 1, mask=inside, sem="relaxed")
    tl.atomic_max(largest, tl.max(value, axis=0))


@triton.jit
def sum_locked(x, out, lock, n, BLOCK: tl.constexpr):
    """One after the other adds what it has; floats that are whole numbers."""
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * BLOCK + at)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(out + at, tl.load(out + at) + value)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def split_k(a, x, out, k, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Matrix by vector in parts that are added up atomically; whole numbers."""
    at_n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at_k = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    part = tl.load(a + at_k[:, None] * n + at_n[None, :]) * tl.load(x + at_k)[:, None]
    tl.atomic_add(out + at_n, tl.sum(part.to(tl.float32), axis=0))


@triton.jit
def gather(table, index, out, width, BLOCK: tl.constexpr):
    row = tl.load(index + tl.program_id(0)).to(tl.int64)
    at = tl.arange(0, BLOCK)
    value = tl.load(table + row * width + at, mask=at < width, eviction_policy="evict_last")
    tl.store(out + tl.program_id(0) * width + at, value, mask=at < width, eviction_policy="evict_first")


@triton.jit
def modified(x, out, n, BLOCK: tl.constexpr):
    """Loads and stores that say how they are cached."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, cache_modifier=".cg") + tl.load(x + at, volatile=True)
    value += tl.load(x + n - 1 - at, cache_modifier=".ca")
    tl.store(out + at, value, cache_modifier=".cs")
    tl.store(out + n + at, value, cache_modifier=".wt")


@triton.jit
def scan(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=0)
    tl.store(out + tl.program_id(0) * columns + at, tl.cumsum(value, axis=0), mask=at < columns)


@triton.jit
def transpose(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    at_m = tl.program_id(0) * M + tl.arange(0, M)
    at_n = tl.program_id(1) * N + tl.arange(0, N)
    tile = tl.load(x + at_m[:, None] * columns + at_n[None, :])
    tl.store(out + at_n[:, None] * rows + at_m[None, :], tl.trans(tile))


@triton.jit
def dropout(x, out, n, keep, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(tl.rand(seed, at) < keep, value / keep, 0.0), mask=at < n)


@triton.jit
def printing(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.device_print("value", tl.load(x + at, mask=at < n))


@dataclasses.dataclass(frozen=True)
class Tensor:
    """`fill` is `normal`, `whole` (small whole numbers) or `zero`; an output is compared."""

    shape: tuple
    dtype: str = "fp16"
    fill: str = "normal"
    is_output: bool = False
    below: int = 8

    def elements(self):
        count = 1
        for side in self.shape:
            count *= side
        return count


def out(*shape, dtype="fp16"):
    return Tensor(shape, dtype, "zero", True)


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    kernel: object
    arguments: dict
    constants: dict
    grid: tuple
    num_warps: int = 4
    num_stages: int = 3
    refused: str = ""

    def outputs(self):
        """Names of what is compared."""
        return [name for name, value in self.arguments.items() if isinstance(value, Tensor) and value.is_output]

    def tensors(self, device):
        """Inputs by name, the same each time; outputs are zero."""
        import torch

        kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i32": torch.int32, "i8": torch.int8}
        chance = torch.Generator(device).manual_seed(1)
        made = {}
        for name, value in self.arguments.items():
            if not isinstance(value, Tensor):
                continue
            if value.fill == "zero":
                data = torch.zeros(value.shape, device=device)
            elif value.fill == "whole":
                data = torch.randint(0, value.below, value.shape, generator=chance, device=device)
            else:
                data = torch.randn(value.shape, generator=chance, device=device)
            made[name] = data.to(kinds[value.dtype])
        return made

    def values(self, places):
        """The arguments of a launch, in their order; `places` has those that are tensors, by name."""
        names = [name for name in self.kernel.arg_names if name not in self.constants]
        return [places.get(name, self.arguments[name]) for name in names]

    def launch(self, tensors):
        """By Triton, on these tensors."""
        self.kernel[self.grid](*self.values(tensors), **self.constants, num_warps=self.num_warps, num_stages=self.num_stages)

    def compiled(self, arch=90):
        """What Triton makes of it; needs no GPU."""
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        signature, attributes = {}, {}
        for index, name in enumerate(self.kernel.arg_names):
            if name in self.constants:
                signature[name] = "constexpr"
                continue
            value = self.arguments[name]
            if isinstance(value, Tensor):
                signature[name] = "*" + value.dtype
            else:
                signature[name] = "fp32" if isinstance(value, float) else "i32"
            # As a launch would find: tensors begin at multiples of 16 bytes.
            if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
                attributes[(index,)] = [["tt.divisibility", 16]]
        source = ASTSource(self.kernel, signature, self.constants, attributes)
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def products(kernel, name, dtype, tile, warps, stages, size=4096, grid=None, **more):
    m, n, k = tile
    tiles = -(-size // m) * -(-size // n)
    whole = "fp32" if dtype == "fp32" else dtype
    arguments = {
        "a": Tensor((size, size), whole), "b": Tensor((size, size), whole), "c": out(size, size, dtype=whole),
        "m": size, "n": size, "k": size, "am": size, "bk": size, "cm": size,
    }
    return Case(name, kernel, arguments, {"M": m, "N": n, "K": k, **more}, grid or (tiles, 1, 1), warps, stages)


def cases():
    """All of them."""
    found = []
    n = 1 << 25
    for dtype, warps in (("fp32", 4), ("fp16", 4), ("bf16", 8)):
        # A length that is no multiple of 16 makes accesses of single elements.
        arguments = {"x": Tensor((n,), dtype), "y": Tensor((n,), dtype), "out": out(n, dtype=dtype), "n": n - 3 * (dtype == "fp16")}
        found.append(Case(f"vector_add.{dtype}.w{warps}", vector_add, arguments, {"BLOCK": 1024}, (n // 1024, 1, 1), warps))
    rows, columns = 8192, 1823
    for dtype, warps in (("fp32", 4), ("bf16", 8)):
        arguments = {"x": Tensor((rows, 1824), dtype), "out": out(rows, 1824, dtype=dtype), "stride": 1824, "columns": columns}
        found.append(Case(f"softmax.{dtype}.w{warps}", softmax, arguments, {"BLOCK": 2048}, (rows, 1, 1), warps))
    arguments = {"x": Tensor((rows, 2048), "fp16"), "out": out(rows, 2048), "stride": 2048, "rows": rows, "columns": 2048}
    found.append(Case("softmax_rows.fp16.w8.s4", softmax_rows, arguments, {"BLOCK": 2048, "STAGES": 4}, (264, 1, 1), 8))
    found += [
        products(matmul, "matmul.fp16.128x128x64.w8.s3", "fp16", (128, 128, 64), 8, 3, GROUP=8),
        products(matmul, "matmul.fp16.128x256x64.w8.s4", "fp16", (128, 256, 64), 8, 4, GROUP=8),
        products(matmul, "matmul.bf16.64x128x64.w4.s4", "bf16", (64, 128, 64), 4, 4, GROUP=8),
        products(matmul, "matmul.fp16.32x64x64.w4.s4", "fp16", (32, 64, 64), 4, 4, GROUP=8),
        products(matmul, "matmul.fp32.64x64x32.w4.s3", "fp32", (64, 64, 32), 4, 3, size=2048, GROUP=8),
        products(
            matmul_persistent, "matmul_persistent.fp16.128x128x64.w8.s3", "fp16", (128, 128, 64), 8, 3, grid=(132, 1, 1), PROGRAMS=132
        ),
        Case(
            "matmul_int8.64x128x64.w4.s3", matmul_int8,
            {"a": Tensor((2048, 2048), "i8", "whole"), "b": Tensor((2048, 2048), "i8", "whole"), "c": out(2048, 2048, dtype="i32"),
             "m": 2048, "n": 2048, "k": 2048, "am": 2048, "bk": 2048, "cm": 2048},
            {"M": 64, "N": 128, "K": 64}, (32, 16, 1), 4, 3,
        ),
        Case(
            "matmul_described.fp16", matmul_described,
            {"a": Tensor((2048, 2048)), "b": Tensor((2048, 2048)), "c": out(2048, 2048), "m": 2048, "n": 2048, "k": 2048},
            {"M": 128, "N": 128, "K": 64}, (16, 16, 1), 8, 3, refused="tensor",
        ),
    ]
    rows, columns = 4096, 4096
    for dtype, warps in (("fp16", 4), ("fp32", 8)):
        arguments = {
            "x": Tensor((rows, columns), dtype), "out": out(rows, columns, dtype=dtype), "weight": Tensor((columns,), dtype),
            "bias": Tensor((columns,), dtype), "means": out(rows, dtype="fp32"), "scales": out(rows, dtype="fp32"),
            "stride": columns, "columns": columns, "epsilon": 1e-5,
        }
        found.append(Case(f"layer_norm.{dtype}.w{warps}", layer_norm, arguments, {"BLOCK": 1024}, (rows, 1, 1), warps))
    arguments = {
        "dx": out(rows, columns), "dy": Tensor((rows, columns)), "dw": out(264, columns, dtype="fp32"), "db": out(264, columns, dtype="fp32"),
        "x": Tensor((rows, columns)), "weight": Tensor((columns,)), "means": Tensor((rows,), "fp32"), "scales": Tensor((rows,), "fp32"),
        "stride": columns, "rows": rows, "columns": columns,
    }
    found.append(Case("layer_norm_backward.fp16.w8", layer_norm_backward, arguments, {"BLOCK": 4096}, (264, 1, 1), 8))
    for name, dtype, depth, causal, warps, stages in (
        ("attention.fp16.d64.w4.s3", "fp16", 64, False, 4, 3),
        ("attention.causal.bf16.d128.w8.s3", "bf16", 128, True, 8, 3),
    ):
        length, heads = 2048, 32
        arguments = {name: Tensor((heads, length, depth), dtype) for name in "qkv"}
        arguments |= {"out": out(heads, length, depth, dtype=dtype), "scale": depth**-0.5, "length": length}
        constants = {"M": 128, "N": 64, "D": depth, "CAUSAL": causal}
        found.append(Case(name, attention, arguments, constants, (length // 128, heads, 1), warps, stages))
    n = 1 << 24
    found += [
        Case(
            "histogram.i32", histogram,
            {"x": Tensor((4 * n,), "i32", "whole", below=1 << 20), "counts": out(4096, dtype="i32"), "largest": out(1, dtype="i32"), "n": 4 * n},
            {"BINS": 4096, "BLOCK": 1024}, (4 * n // 1024, 1, 1),
        ),
        Case(
            "sum_locked.fp32", sum_locked,
            {"x": Tensor((512, 1024), "fp32", "whole"), "out": out(1024, dtype="fp32"), "lock": Tensor((1,), "i32", "zero"), "n": 512},
            {"BLOCK": 1024}, (512, 1, 1),
        ),
        Case(
            "split_k.fp16", split_k,
            {"a": Tensor((8192, 8192), "fp16", "whole"), "x": Tensor((8192,), "fp16", "whole"), "out": out(8192, dtype="fp32"), "k": 8192, "n": 8192},
            {"ROWS": 64, "BLOCK": 128}, (64, 128, 1),
        ),
        Case(
            "gather.fp16", gather,
            {"table": Tensor((32768, 1024)), "index": Tensor((65536,), "i32", "whole", below=32768), "out": out(65536, 1024), "width": 1024},
            {"BLOCK": 1024}, (65536, 1, 1),
        ),
        Case("modified.fp32", modified, {"x": Tensor((n,), "fp32"), "out": out(2 * n, dtype="fp32"), "n": n}, {"BLOCK": 1024}, (n // 1024, 1, 1)),
        Case("scan.i32", scan, {"x": Tensor((8192, 2048), "i32", "whole"), "out": out(8192, 2048, dtype="i32"), "columns": 2048}, {"BLOCK": 2048}, (8192, 1, 1)),
        Case(
            "transpose.fp16", transpose, {"x": Tensor((8192, 4096)), "out": out(4096, 8192), "rows": 8192, "columns": 4096},
            {"M": 64, "N": 64}, (128, 64, 1),
        ),
        Case(
            "dropout.fp32", dropout, {"x": Tensor((n,), "fp32"), "out": out(n, dtype="fp32"), "n": n, "keep": 0.5, "seed": 7},
            {"BLOCK": 1024}, (n // 1024, 1, 1),
        ),
        # Gives the driver the address of its text, which no fence lets pass.
        Case("printing", printing, {"x": Tensor((128,), "fp32"), "n": 128}, {"BLOCK": 128}, (1, 1, 1), refused="fenced"),
    ]
    return found
