#!/usr/bin/env python3
"""Whether whole networks of rewritten kernels compute the same, and how much longer they take.

    python3 workloads/checks/ptx_networks.py --partywall target/release/partywall --out networks.json

Compiles the networks of `workloads/torch/triton_networks.py` by `torch.compile`, with Triton for everything, twice: as they are, and with `partywall` in the
place of Triton's assembler. The second one has its weights, its input and all that it computes in an arena, half of whose memory (every
other stretch, by the parity of address bits) must never be touched. Each is a process of its own. Outputs have to be equal to the last bit,
and every kernel has to be one of Triton's. Times are taken in turn.

Both take the first of Inductor's configurations that is nearest to a fixed one: what is timed is a network and the same network rewritten, not
the best that either could be. Needs PyTorch with Triton and a GPU; with `--compile-only` no GPU: then kernels are compiled, rewritten and
assembled for an H200. Prints a line for each network and a record as JSON. Exit status: 0 if all is as it should be; 1 otherwise."""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "torch")]

import ptx_gpu  # noqa: E402
from inductor import SETTINGS, configure  # noqa: E402
from ptx_gpu import Failed  # noqa: E402
from ptx_rewrite import Lines, spread, write  # noqa: E402

# Longest that anything may take that a process is asked for, seconds.
PATIENCE_S = 400
# One measurement takes at least this long.
PIECE_MS = 20
# What a profiler puts among what the GPU does, and is none of it.
OF_THE_PROFILER = re.compile(r"(Activity Buffer|Instrumentation|Resource|Command Buffer|Lazy Function|Runtime Triggered|(Context|Stream|Event) (Sync|Wait))")
ALLOCATOR = """
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
static uintptr_t next, end;
void partywall_arena(uintptr_t begin, uintptr_t length) { next = begin; end = begin + length; }
uintptr_t partywall_next(void) { return next; }
/* The pool that asks keeps what it has been given. */
void *partywall_malloc(ssize_t size, int device, void *stream) {
  uintptr_t place = next, bytes = ((uintptr_t)size + 4095) & ~(uintptr_t)4095;
  (void)device, (void)stream;
  if (bytes > end - next) return NULL;
  next += bytes;
  return (void *)place;
}
void partywall_free(void *place, ssize_t size, int device, void *stream) { (void)place, (void)size, (void)device, (void)stream; }
"""


def foreign(code):
    """What Inductor calls that is no kernel of Triton's."""
    lines = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith("#"))
    return sorted(set(re.findall(r"((?:extern_kernels|torch\.ops|aten|inductor_ops)\.[\w.]+)\(", lines)))


def kernels(code):
    """Triton's kernels, and how often each is launched."""
    names = re.findall(r"^(triton_\w+) = async_compile\.triton", code, re.MULTILINE)
    return {name: len(re.findall(rf"^\s+{name}\.run\(", code, re.MULTILINE)) for name in names}


def description(codes):
    if not codes:
        raise Failed("Inductor made no code")
    found = {"graphs": len(codes), "kernels": {}, "foreign": sorted({name for code in codes for name in foreign(code)})}
    for code in codes:
        found["kernels"] |= kernels(code)
    return found


class Arena(ptx_gpu.Gpu):
    """An arena whose logical addresses PyTorch hands out as it hands out others."""

    def __init__(self, folder):
        super().__init__()
        import ctypes

        source, library = os.path.join(folder, "allocator.c"), os.path.join(folder, "allocator.so")
        with open(source, "w") as file:
            file.write(ALLOCATOR)
        compiler = os.environ.get("CC") or "cc"
        subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
        self.allocator = ctypes.CDLL(library)
        self.allocator.partywall_arena(ctypes.c_size_t(self.base), ctypes.c_size_t(ptx_gpu.LENGTH))
        self.allocator.partywall_next.restype = ctypes.c_size_t
        memory = self.torch.cuda.memory.CUDAPluggableAllocator(library, "partywall_malloc", "partywall_free")
        self.keep = memory
        self.pool = self.torch.cuda.MemPool(memory.allocator())
        self.clear()

    def inside(self):
        return self.torch.cuda.use_mem_pool(self.pool)

    def used_bytes(self):
        return self.allocator.partywall_next() - self.base

    def part(self, tensor):
        """Which stretches a tensor is in, and where in them its bytes are."""
        count = tensor.element_size() * (1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())))
        first, begin = divmod(tensor.data_ptr() - self.base, ptx_gpu.STRETCH)
        if first < 0 or tensor.data_ptr() + count > self.base + ptx_gpu.LENGTH:
            raise Failed(f"a tensor at {tensor.data_ptr():#x} is outside the arena")
        rows = self.rows[first : first - (-(begin + count) // ptx_gpu.STRETCH)]
        return rows, slice(begin, begin + count), count

    def placed(self, tensor):
        """A tensor of the host's memory, in the arena."""
        torch = self.torch
        with self.inside():
            place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
        rows, where, count = self.part(place)
        data = torch.as_strided(tensor, (count // tensor.element_size(),), (1,)).view(torch.uint8).cuda()
        whole = self.memory[rows].view(-1).view(torch.uint8)
        whole[where] = data
        self.memory[rows] = whole.view(torch.int64).view(len(rows), -1)
        return place

    def fetched(self, tensor):
        """What a tensor of the arena holds, in the host's memory."""
        torch = self.torch
        rows, where, _ = self.part(tensor)
        data = self.memory[rows].view(-1).view(torch.uint8)[where].clone().view(tensor.dtype)
        return torch.as_strided(data, tensor.shape, tensor.stride()).cpu()


class Child:
    """A network in a process of its own, as it is or rewritten."""

    def __init__(self, name, kind, folder):
        import torch

        import triton_networks

        self.torch, self.kind, self.folder = torch, kind, folder
        self.arena = Arena(folder) if kind == "arena" else None
        if self.arena:
            # Read by the assembler's script at each call.
            os.environ["PARTYWALL_ARENA"] = ptx_gpu.order(self.arena.base)
        self.codes = configure()
        self.network, self.given = triton_networks.made(name)
        place = self.arena.placed if self.arena else lambda tensor: tensor.cuda()
        for module in self.network.modules():
            for key, value in module._parameters.items():
                if value is not None:
                    module._parameters[key] = torch.nn.Parameter(place(value.detach()), requires_grad=False)
            for key, value in module._buffers.items():
                if value is not None:
                    module._buffers[key] = place(value)
        self.given = place(self.given)
        self.confine()
        self.compiled = torch.compile(self.network, fullgraph=True, dynamic=False)

    def confine(self):
        """What generated code allocates is the arena's; what compiling takes, and runs kernels of PyTorch on, is not."""
        from torch._inductor.output_code import CompiledFxGraph

        run = CompiledFxGraph.__call__

        def confined(graph, inputs):
            with self.arena.inside() if self.arena else contextlib.nullcontext():
                return run(graph, inputs)

        CompiledFxGraph.__call__ = confined

    def forward(self):
        with self.torch.no_grad():
            return self.compiled(self.given)

    def build(self):
        out = self.forward()
        self.torch.cuda.synchronize()
        # Once more: now nothing is compiled on the way.
        out = self.forward()
        self.torch.cuda.synchronize()
        found = description(self.codes)
        data = self.arena.fetched(out) if self.arena else out.cpu()
        found |= {"output": list(data.shape), "finite": bool(data.isfinite().all()), "deviation": float(data.float().std())}
        self.torch.save(data, os.path.join(self.folder, "output.pt"))
        if self.arena:
            found |= {"arena": os.environ["PARTYWALL_ARENA"], "arena_used_bytes": self.arena.used_bytes()}
        found["gpu"] = self.torch.cuda.get_device_name()
        return found

    def seen(self):
        """Kernels, copies and fills that a profiler sees the GPU do."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        try:
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
                self.forward()
                self.torch.cuda.synchronize()
            names = [event.name for event in profiler.events() if event.device_type == DeviceType.CUDA]
        # Not everybody may profile; what Inductor says that it launches is known all the same.
        except Exception as error:
            return {"profiler": f"{type(error).__name__}: {error}"[:500]}
        names = [name for name in names if not OF_THE_PROFILER.match(name)]
        return {"seen": sorted(set(names)), "launches": len(names)}

    def piece(self, count):
        """Milliseconds of a forward pass, the mean of so many."""
        # The one before it brings the clocks up and the GPU's attention here.
        self.forward()
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(count):
            self.forward()
        end.record()
        end.synchronize()
        return {"ms": begin.elapsed_time(end) / count}

    def untouched(self):
        return {"untouched": self.arena.is_untouched() if self.arena else None}


def child(name, kind, folder, compile_only):
    """Does what it is told by lines of JSON, and answers with one each."""
    answers = os.fdopen(os.dup(1), "w")
    # What others print goes elsewhere.
    os.dup2(2, 1)

    def answer(found):
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    try:
        if compile_only:
            import ptx_offline

            answer(description(ptx_offline.compiled(name, configure)))
            return
        network = Child(name, kind, folder)
        for text in sys.stdin:
            what, *values = json.loads(text)
            answer(getattr(network, what)(*values))
    # Whatever went wrong is the answer.
    except Exception as error:
        answer({"failed": f"{type(error).__name__}: {error}"[:1500], "trace": traceback.format_exc()[-3000:]})


class Process:
    """A child, seen from outside."""

    def __init__(self, name, kind, folder, settings, compile_only=False):
        os.makedirs(folder)
        self.folder = folder
        env = {key: value for key, value in os.environ.items() if key != "PARTYWALL_ARENA"}
        env |= {"TRITON_CACHE_DIR": os.path.join(folder, "triton"), "TORCHINDUCTOR_CACHE_DIR": os.path.join(folder, "inductor")}
        env |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"} | settings
        words = [sys.executable, os.path.abspath(__file__), "--child", name, kind, folder]
        self.errors = open(os.path.join(folder, "errors.txt"), "w+")
        self.process = subprocess.Popen(
            words + ["--compile-only"] * compile_only, env=env, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )
        self.lines = Lines(self.process.stdout, PATIENCE_S)

    def ask(self, *what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def answer(self):
        found = self.lines.next()
        if found is None:
            self.errors.seek(0)
            raise Failed(f"it ended: {self.errors.read()[-1500:]}")
        if "failed" in found:
            raise Failed(found["failed"] + "\n" + found.get("trace", ""))
        return found

    def do(self, *what):
        try:
            self.ask(*what)
        except BrokenPipeError:
            pass
        return self.answer()

    def end(self):
        self.process.kill()
        self.process.wait()


def rewritten(log):
    """What the assembler did to each kernel: how many accesses it translated, or why it refused."""
    found = {}
    if os.path.exists(log):
        with open(log) as file:
            for text in file:
                line = json.loads(text)
                for function in line.get("functions") or []:
                    found[function["name"]] = function
                if not line.get("functions"):
                    found[line.get("input", "?")] = line
    return found


def compared(plain, arena, log, row, rounds):
    """Outputs, kernels and times of a network."""
    import torch

    for process in (plain, arena):
        process.ask("build")
    row["plain"], row["arena"] = plain.answer(), arena.answer()
    left, right = (torch.load(os.path.join(process.folder, "output.pt")) for process in (plain, arena))
    row["bit_equal"] = left.shape == right.shape and torch.equal(left.view(torch.uint8), right.view(torch.uint8))
    if not row["bit_equal"] and left.shape == right.shape:
        row["differing"] = int((left.view(torch.int16) != right.view(torch.int16)).sum())
    row["rewritten"] = {name: found.get("translated") for name, found in rewritten(log).items()}
    for kind, process in (("plain", plain), ("arena", arena)):
        row[kind] |= process.do("seen")
    once = plain.do("piece", 3)["ms"]
    count = max(1, min(100, round(PIECE_MS / once)))
    times = {"plain": [], "arena": []}
    for turn in range(rounds + 1):
        for kind, process in [("plain", plain), ("arena", arena)][:: 1 if turn % 2 else -1]:
            time = process.do("piece", count)["ms"]
            if turn:
                times[kind].append(time)
    row["time_ms"] = {kind: spread(values) for kind, values in times.items()}
    row["ratio"] = spread([a / b for a, b in zip(times["arena"], times["plain"])])
    row["untouched"] = arena.do("untouched")["untouched"]


def wrong(row, compile_only):
    """What is not as it should be."""
    if "failed" in row:
        return [row["failed"].splitlines()[0]]
    found = []
    for kind in ("plain", "arena"):
        described = row.get(kind) or {}
        others = list(described.get("foreign") or [])
        others += [name for name in described.get("seen") or [] if not name.startswith("triton_")]
        if others:
            found.append(f"{kind}: not Triton's: {', '.join(others)}")
        if not described.get("kernels"):
            found.append(f"{kind}: no kernel")
        if not compile_only and not (described.get("finite") and described.get("deviation")):
            found.append(f"{kind}: outputs are not finite, or all the same")
    missing = sorted(set((row.get("arena") or {}).get("kernels") or {}) - set(row.get("rewritten") or {}))
    if missing:
        found.append(f"not rewritten: {', '.join(missing)}")
    if (row.get("arena") or {}).get("kernels") != (row.get("plain") or {}).get("kernels"):
        found.append("they are made of different kernels")
    if not compile_only:
        found += [text for key, text in (("bit_equal", "outputs differ"), ("untouched", "the other color was written to")) if not row.get(key)]
    return found


def installed(partywall, folder, log, arena):
    """The environment in which Triton finds `partywall` in the place of its assemblers."""
    import triton

    places = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin")
    settings = {}
    for name in ("ptxas", "ptxas-blackwell"):
        if not os.path.exists(os.path.join(places, name)):
            continue
        words = [partywall, "vram", "ptxas", "--real", os.path.join(places, name), "--log", log, "--install", folder]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        settings |= dict(re.findall(r"export (\w+)='([^']*)'", said))
    if not settings:
        raise Failed(f"Triton has no assembler in {places}")
    return settings | ({"PARTYWALL_ARENA": arena} if arena else {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partywall", default="partywall", help="the program")
    parser.add_argument("--only", default="gpt,mixer,resnet18", help="which networks, with commas between them")
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each network")
    parser.add_argument("--compile-only", action="store_true", help="compile, rewrite and assemble for an H200; needs no GPU")
    parser.add_argument("--out", help="where the record goes; without it, to standard output")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        return child(*arguments.child, arguments.compile_only)
    import torch
    import triton

    partywall = os.path.abspath(arguments.partywall) if os.path.exists(arguments.partywall) else arguments.partywall
    record = {"torch": torch.__version__, "triton": triton.__version__, "rounds": arguments.rounds, "settings": SETTINGS, "rows": []}
    arena = ptx_gpu.order(0x7000 << 32) if arguments.compile_only else None
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for name in arguments.only.split(","):
            log = os.path.join(folder, f"{name}.jsonl")
            settings = {"plain": {}, "arena": installed(partywall, os.path.join(folder, f"{name}.wrapped"), log, arena)}
            started.append((name, log, settings))

        def starting(name, settings):
            return [Process(name, kind, os.path.join(folder, f"{name}.{kind}"), settings[kind], arguments.compile_only) for kind in settings]

        # With a GPU all at once, so that they compile beside each other; they are measured one after the other.
        running = {name: starting(name, settings) for name, _, settings in started} if not arguments.compile_only else {}
        for name, log, settings in started:
            row = {"name": name}
            record["rows"].append(row)
            pair = running.get(name) or starting(name, settings)
            try:
                if arguments.compile_only:
                    row["plain"], row["arena"] = (process.answer() for process in pair)
                    row["rewritten"] = {key: found.get("translated") for key, found in rewritten(log).items()}
                else:
                    compared(*pair, log, row, arguments.rounds)
            except Failed as failed:
                row["failed"] = str(failed)
                row["rewritten"] = rewritten(log)
            finally:
                for process in pair:
                    process.end()
            row["wrong"] = wrong(row, arguments.compile_only)
            launches = sum(((row.get("arena") or {}).get("kernels") or {}).values())
            text = f"{name:12} {len((row.get('arena') or {}).get('kernels') or {})} kernels, {launches} launches"
            if "ratio" in row:
                text += f"; {row['time_ms']['plain']['median']:.2f} ms, rewritten {row['ratio']['median']:.3f} times that; equal: {row['bit_equal']}"
            print(text + "".join(f"\n{'':12} {line}" for line in row["wrong"]), file=sys.stderr, flush=True)
    fine = [row for row in record["rows"] if not row["wrong"]]
    ratios = [row["ratio"]["median"] for row in fine if "ratio" in row]
    record["networks"] = {"bit_equal": len(fine), "of": len(record["rows"]), "time_ratio_mean": sum(ratios) / len(ratios) if ratios else None}
    write(record, arguments.out)
    return 0 if len(fine) == len(record["rows"]) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"ptx_networks: {failed}")
