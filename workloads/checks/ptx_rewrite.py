#!/usr/bin/env python3
"""Whether rewritten kernels compute the same as the ones they were made of, and how much longer they take.

    python3 workloads/checks/ptx_rewrite.py --partywall target/release/partywall --out ptx.json

Compiles the Triton kernels of `ptx_kernels.py`, has `partywall vram ptxas` assemble each as it is and rewritten, and runs both on one GPU: on
tensors as they are, and on the same tensors in an arena, half of whose memory (every other stretch, by the parity of address bits) must
never be touched. Results have to be equal to the last bit. Times are taken in turn. Which side of the chip a stretch is on is
not asked: neither results nor the cost of translating depend on it. Then some kernels are launched by Triton itself, with `partywall` in the
place of its assembler, as a user would do it.

Needs PyTorch and Triton; with `--compile-only` Triton alone, and no GPU. Prints a line each and a record as JSON. Exit status: 0 if every kernel
that should be rewritten was, with equal results, and every other one was refused; 1 otherwise."""

import argparse
import concurrent.futures
import ctypes
import functools
import json
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
STRETCH = 4096
# The bits of an H200, and the first above them for the constant of a page.
MASK = 0xAB000 | 1 << 21
LENGTH = 1 << 30
DEVICE = "cuda"
# Places at such multiples are the cheapest to translate.
ALIGNED = 1 << 32
VARIANTS = {"arena": "", "evict-first": ",evict-first", "fenced": ",pointers=fenced,evict-first", "any": ",pointers=any"}
TRANSPARENT = ("vector_add.fp16.w4", "softmax_rows.fp16.w8.s4", "matmul.bf16.64x128x64.w4.s4", "attention.fp16.d64.w4.s3")
PATTERN = 0xA5A5A5A5A5A5A5A5 - (1 << 64)
# One measurement takes at least this long.
PIECE_MS = 0.5


class Failed(Exception):
    """What keeps it from going on."""


def order(base, variant):
    """The arena as `partywall` takes it. Where addresses are seen is also where they are mapped, so that each is one the driver knows."""
    return f"mask={MASK:#x},logical={base:#x},mapped={base:#x},length={LENGTH:#x},parity=odd{VARIANTS[variant]}"


def parity(bits):
    return bin(bits).count("1") & 1


def stretches(base, count):
    """Which of the stretches of the mapped memory each of the first `count` logical ones is."""
    rest = MASK & ~STRETCH
    return [2 * n + 1 - parity((base + 2 * n * STRETCH) & 0xFFFFFFFF & rest) for n in range(count)]


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


def used(said):
    """Registers and spilled bytes, of what the assembler says."""
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    return {"registers": int(registers[1]) if registers else None, "spilled_bytes": int(spilled[1]) + int(spilled[2]) if spilled else 0}


def spread(values):
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return {"median": statistics.median(ordered), "low": low, "high": high}


def summary(rows):
    """What is claimed: of kernels that should be rewritten."""
    wanted = [row for row in rows if not row["should_be_refused"]]
    ratios = [row["ratio"]["arena"]["median"] for row in wanted if row.get("ratio")]
    found = {
        "kernels": len(wanted),
        "kernels_bit_equal": bool(wanted) and all(all(row.get("bit_equal", {"": False}).values()) for row in wanted),
        "refused_as_expected": all("refused" in row for row in rows if row["should_be_refused"]),
        "time_ratio_mean": statistics.fmean(ratios) if len(ratios) == len(wanted) and ratios else None,
        "time_ratio_max": max(ratios) if ratios else None,
    }
    for variant in VARIANTS:
        values = [row["ratio"][variant]["median"] for row in wanted if row.get("ratio")]
        found[f"time_ratio_mean.{variant}"] = statistics.fmean(values) if values else None
    return found


class Assembler:
    """`partywall` in front of Triton's assembler."""

    def __init__(self, partywall, real, arch, folder):
        self.partywall, self.real, self.arch, self.folder = partywall, real, arch, folder

    def assemble(self, name, ptx, arena):
        """The code, and what was said; `Failed` where it is refused."""
        with tempfile.NamedTemporaryFile("w", dir=self.folder, prefix=name, suffix=".ptx", delete=False) as file:
            file.write(ptx)
        place, code = file.name, file.name + ".cubin"
        words = [self.partywall, "vram", "ptxas", "--real", self.real]
        words += [] if arena is None else ["--arena", arena]
        words += ["--", "-lineinfo", "-v", f"--gpu-name=sm_{self.arch}a", place, "-o", code]
        env = {key: value for key, value in os.environ.items() if key != "PARTYWALL_ARENA"}
        done = subprocess.run(words, capture_output=True, text=True, env=env)
        if done.returncode:
            raise Failed(done.stderr.strip().replace(self.folder + os.sep, ""))
        with open(code, "rb") as file:
            return file.read(), used(done.stdout + done.stderr)


def assembler_of(arch):
    """The one that Triton itself would use."""
    from triton.backends.nvidia import compiler

    found = compiler.get_ptxas(arch)
    return found.path if hasattr(found, "path") else found[0]


def compiled(cases, assembler, base, say):
    """Each case as Triton compiles it, and its code by variant."""
    pool = concurrent.futures.ThreadPoolExecutor(max(2, min(16, os.cpu_count() or 2)))
    rows = []
    for case in cases:
        try:
            made = case.compiled(assembler.arch)
        # Whatever this Triton has against it; the others are tried all the same.
        except Exception as error:
            row = {"name": case.name, "should_be_refused": bool(case.refused), "not_compiled": str(error)[-500:]}
            say(f"{case.name:44} not compiled: {str(error).splitlines()[-1]}")
            yield case, "", 0, {}, row
            continue
        ptx = made.asm["ptx"]
        arenas = {"plain": None, **{variant: order(base, variant) for variant in VARIANTS}}
        jobs = {variant: pool.submit(assembler.assemble, case.name, ptx, arena) for variant, arena in arenas.items()}
        rows.append((case, ptx, made.metadata.shared, jobs))
    for case, ptx, shared, jobs in rows:
        row = {"name": case.name, "should_be_refused": bool(case.refused), "assembled": {}}
        codes = {}
        for variant, job in jobs.items():
            try:
                codes[variant], row["assembled"][variant] = job.result()
            except Failed as failed:
                if variant == "plain":
                    raise
                row.setdefault("refused", {})[variant] = str(failed)
        say(line(row))
        yield case, ptx, shared, codes, row
    pool.shutdown()


def line(row):
    shown = [f"{variant} {found['registers']}" + ("!" if found["spilled_bytes"] else "") for variant, found in row["assembled"].items()]
    text = f"{row['name']:44} registers: {', '.join(shown)}"
    if "refused" in row:
        why = next(iter(row["refused"].values())).splitlines()
        text += "; refused: " + next((part for part in why if part.startswith("line ")), why[0])
    return text


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
        self.rows = torch.tensor(stretches(self.base, LENGTH // STRETCH), device=DEVICE)
        mine = torch.zeros(self.memory.shape[0], dtype=torch.bool, device=DEVICE)
        mine[self.rows] = True
        self.others = (~mine).nonzero().view(-1)
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

    def clear(self):
        """An empty arena, with a pattern everywhere."""
        self.memory.fill_(PATTERN)
        self.next = 0

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

    def tensors(self, case):
        """Inputs as the case says, the same each time; outputs are zero."""
        from ptx_kernels import Tensor

        torch = self.torch
        kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "i32": torch.int32, "i8": torch.int8}
        chance = torch.Generator(DEVICE).manual_seed(1)
        made = {}
        for name, value in case.arguments.items():
            if not isinstance(value, Tensor):
                continue
            if value.fill == "zero":
                data = torch.zeros(value.shape, device=DEVICE)
            elif value.fill == "whole":
                data = torch.randint(0, value.below, value.shape, generator=chance, device=DEVICE)
            else:
                data = torch.randn(value.shape, generator=chance, device=DEVICE)
            made[name] = data.to(kinds[value.dtype])
        return made

    def values(self, case, places):
        """The arguments of a launch, in their order."""
        names = [name for name in case.kernel.arg_names if name not in case.constants]
        return [places.get(name, case.arguments[name]) for name in names]

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


def outputs_of(case):
    from ptx_kernels import Tensor

    return [name for name, value in case.arguments.items() if isinstance(value, Tensor) and value.is_output]


def run(gpu, case, ptx, shared, codes, row, rounds, keep):
    """Results and times of a kernel."""
    types = parameters(ptx)
    name = re.search(r"\.entry\s+([\w$]+)", ptx).group(1)
    tensors, outputs = gpu.tensors(case), outputs_of(case)
    threads = case.num_warps * 32

    def prepared(variant, places):
        function = gpu.load(codes[variant], name, shared)
        return gpu.launch(function, case.grid, threads, shared, packed(types, gpu.values(case, places)))

    launches = {"plain": prepared("plain", {key: tensor.data_ptr() for key, tensor in tensors.items()})}
    launches["plain"]()
    expected = {key: tensors[key].clone() for key in outputs}
    if not any(bool(tensor.view(-1).view(gpu_bytes()).any()) for tensor in expected.values()):
        raise Failed(f"{case.name}: all outputs are zero")
    if case.name in keep:
        keep[case.name] = {key: tensor.cpu() for key, tensor in expected.items()}
    row["bit_equal"] = {}
    fresh = gpu.tensors(case)
    for variant in VARIANTS:
        gpu.clear()
        places = {key: gpu.put(tensor) for key, tensor in fresh.items()}
        launches[variant] = prepared(variant, places)
        launches[variant]()
        equal = all(same(expected[key], gpu.get(places[key], expected[key])) for key in outputs)
        row["bit_equal"][variant] = equal and gpu.is_untouched()
    once = max(gpu.piece(launches["plain"], 3) / 3, 1e-3)
    count = max(1, min(200, round(PIECE_MS / once)))
    times = {variant: [] for variant in launches}
    for turn in range(rounds + 1):
        variants = list(launches) if turn % 2 else list(reversed(launches))
        for variant in variants:
            time = gpu.piece(launches[variant], count) / count
            # The first one only warms up.
            if turn:
                times[variant].append(time)
    row["time_us"] = {variant: spread([1e3 * time for time in found]) for variant, found in times.items()}
    row["ratio"] = {variant: spread([a / b for a, b in zip(times[variant], times["plain"])]) for variant in VARIANTS}


def transparent_child(out):
    """Launches some kernels by Triton, which finds `partywall` in the place of its assembler."""
    import torch

    import ptx_kernels

    gpu = Gpu()
    os.environ["PARTYWALL_ARENA"] = order(gpu.base, "arena")
    found = {}
    for case in ptx_kernels.cases():
        if case.name not in TRANSPARENT:
            continue
        gpu.clear()
        fresh = gpu.tensors(case)
        places = {key: gpu.put(tensor) for key, tensor in fresh.items()}
        # Tensors of PyTorch whose addresses are those of the arena.
        flat = gpu.memory.view(-1).view(torch.uint8)

        def seen(key):
            begin, like = places[key] - gpu.base, fresh[key]
            return flat[begin : begin + like.numel() * like.element_size()].view(like.dtype).view(like.shape)

        arguments = [seen(key) if key in fresh else case.arguments[key] for key in case.kernel.arg_names if key not in case.constants]
        case.kernel[case.grid](*arguments, **case.constants, num_warps=case.num_warps, num_stages=case.num_stages)
        found[case.name] = {key: gpu.get(places[key], fresh[key]).cpu() for key in outputs_of(case)}
    torch.save(found, out)


def transparent(arguments, real, keep, folder):
    """The same from outside: which kernels have equal results, and what was rewritten on the way."""
    import torch

    wrapped, log, out = (os.path.join(folder, name) for name in ("wrapped", "log.jsonl", "outputs.pt"))
    settings = {}
    for name in (real, *(os.path.join(os.path.dirname(real), other) for other in ("ptxas", "ptxas-blackwell"))):
        if os.path.exists(name):
            words = [arguments.partywall, "vram", "ptxas", "--real", name, "--log", log, "--install", wrapped]
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            settings |= dict(re.findall(r"export (\w+)='([^']*)'", said))
    env = dict(os.environ, **settings, TRITON_CACHE_DIR=os.path.join(folder, "cache"))
    child = subprocess.run([sys.executable, os.path.abspath(__file__), "--transparent-child", out], env=env, capture_output=True, text=True)
    if child.returncode:
        return {"failed": child.stderr[-2000:]}
    found = torch.load(out)
    equal = {
        name: all(torch.equal(found[name][key].view(torch.uint8), keep[name][key].view(torch.uint8)) for key in keep[name])
        for name in keep
        if name in found and keep[name]
    }
    with open(log) as file:
        rewritten = [json.loads(text)["functions"][0] for text in file]
    return {"bit_equal": equal, "rewritten": rewritten}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partywall", default="partywall", help="the program")
    parser.add_argument("--compile-only", action="store_true", help="compile, rewrite and assemble; needs no GPU and no PyTorch")
    parser.add_argument("--only", default="", help="only kernels whose names begin with one of these, with commas between them")
    parser.add_argument("--rounds", type=int, default=21, help="measurements of each kernel")
    parser.add_argument("--arch", type=int, default=90, help="for which GPU, with --compile-only")
    parser.add_argument("--ptx", help="also keep the PTX of each kernel in this folder")
    parser.add_argument("--out", help="where the record goes; without it, to standard output")
    parser.add_argument("--transparent-child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path.insert(0, HERE)
    if arguments.transparent_child:
        return transparent_child(arguments.transparent_child)
    import ptx_kernels
    import triton

    def say(text):
        print(text, file=sys.stderr, flush=True)

    begins = tuple(arguments.only.split(","))
    cases = [case for case in ptx_kernels.cases() if case.name.startswith(begins)]
    if not cases:
        raise Failed(f"no kernel begins with {arguments.only}")
    record = {"triton": triton.__version__, "rows": []}
    gpu, base, arch = None, 0x7000 << 32, arguments.arch
    if not arguments.compile_only:
        gpu = Gpu()
        base = gpu.base
        major, minor = gpu.torch.cuda.get_device_capability()
        arch = 10 * major + minor
        record |= {"gpu": gpu.torch.cuda.get_device_name(), "torch": gpu.torch.__version__, "rounds": arguments.rounds}
    record["arena"] = order(base, "arena")
    keep = {name: {} for name in TRANSPARENT}
    with tempfile.TemporaryDirectory() as folder:
        real = assembler_of(arch)
        assembler = Assembler(arguments.partywall, real, arch, folder)
        for case, ptx, shared, codes, row in compiled(cases, assembler, base, say):
            record["rows"].append(row)
            if arguments.ptx and ptx:
                os.makedirs(arguments.ptx, exist_ok=True)
                with open(os.path.join(arguments.ptx, f"{case.name}.ptx"), "w") as file:
                    file.write(ptx)
            if gpu and not case.refused and not {"refused", "not_compiled"} & set(row):
                run(gpu, case, ptx, shared, codes, row, arguments.rounds, keep)
                ratios = ", ".join(f"{name} {found['median']:.3f}" for name, found in row["ratio"].items())
                say(f"{'':44} {row['time_us']['plain']['median']:.1f} us; times: {ratios}; equal: {all(row['bit_equal'].values())}")
        if gpu:
            record["ptx"] = summary(record["rows"])
            record["transparent"] = transparent(arguments, real, keep, folder)
            say(f"launched by Triton: {record['transparent'].get('bit_equal') or record['transparent']}")
    text = json.dumps(record, indent=1) + "\n"
    if arguments.out:
        with open(arguments.out, "w") as file:
            file.write(text)
    else:
        print(text, end="")
    as_expected = all("not_compiled" not in row and ("refused" in row) == row["should_be_refused"] for row in record["rows"])
    if not gpu:
        return 0 if as_expected else 1
    equal = record["transparent"].get("bit_equal") or {}
    say(json.dumps(record["ptx"]))
    done = as_expected and record["ptx"]["kernels_bit_equal"] and equal and all(equal.values())
    return 0 if done else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"ptx_rewrite: {failed}")
