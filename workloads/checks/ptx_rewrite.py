#!/usr/bin/env python3
"""Whether rewritten kernels compute the same as the ones they were made of, and how much longer they take.

    python3 workloads/checks/ptx_rewrite.py --partywall target/release/partywall --out ptx.json

Compiles the Triton kernels of `workloads/torch/triton_kernels.py`, has `partywall vram ptxas` assemble each as it is and rewritten, and runs both on one GPU: on
tensors as they are, and on the same tensors in an arena, half of whose memory (every other stretch, by the parity of address bits) must
never be touched. Results have to be equal to the last bit. Times are taken in turn. Which side of the chip a stretch is on is
not asked: neither results nor the cost of translating depend on it. Then some kernels are launched by Triton itself, with `partywall` in the
place of its assembler, as a user would do it.

The variant `pages` executes the instructions of `arena` on stretches of 2 MiB: what both cost beyond the plain kernel is the instructions, what
`arena` costs beyond `pages` is that memory is scattered. `halves` is the layout with the fewest instructions: a byte is in one of two halves.

Kernels are launched in a process of their own. One that fails ends that process, is a row that says so, and the others go on in a new
one; with `--ptx` what was launched is kept. Code that reads a uniform register that nothing writes, which assemblers have been seen to make,
fails as well, without a GPU too.

Needs PyTorch and Triton; with `--compile-only` Triton alone, and no GPU. Prints a line each and a record as JSON. Exit status: 0 if every kernel
that should be rewritten was, with equal results, and every other one was refused; 1 otherwise."""

import argparse
import concurrent.futures
import json
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "torch")]

from ptx_gpu import DEVICE, KINDS, Failed, Gpu, gpu_bytes, order, packed, parameters, same  # noqa: E402

VARIANTS = {
    "arena": "", "evict-first": ",evict-first", "fenced": ",pointers=fenced,evict-first", "any": ",pointers=any",
    "pages": "", "halves": "",
}
TRANSPARENT = ("vector_add.fp16.w4", "softmax_rows.fp16.w8.s4", "matmul.bf16.64x128x64.w4.s4", "attention.fp16.d64.w4.s3")
# One measurement takes at least this long.
PIECE_MS = 0.5
# Longest that a kernel may take, compiled, launched and measured.
PATIENCE_S = 240


def kind_of(variant):
    return variant if variant in KINDS else "stretches"


def order_of(base, variant):
    return order(base, VARIANTS[variant], kind_of(variant))


def used(said):
    """Registers and spilled bytes, of what the assembler says."""
    registers = re.search(r"Used (\d+) registers", said)
    spilled = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", said)
    return {"registers": int(registers[1]) if registers else None, "spilled_bytes": int(spilled[1]) + int(spilled[2]) if spilled else 0}


def disassembled(real, code):
    """What the tool next to the assembler makes of code; nothing where there is none."""
    tool = os.path.join(os.path.dirname(real), "cuobjdump")
    if not os.path.exists(tool):
        return ""
    return subprocess.run([tool, "-sass", code], capture_output=True, text=True).stdout


def instructions(listing):
    """Instructions without their guards, but for what fills up the end."""
    found = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([^;]+?)\s*;", listing, re.MULTILINE)
    return [text for text in found if not text.startswith("NOP")]


def unwritten(listing):
    """Uniform registers that are read and that nothing writes: what the assemblers of CUDA 12.8 to 13.1 make of some `cp.async` with a policy."""
    read, written = set(), set()
    for text in instructions(listing):
        opcode, *rest = text.split(None, 1)
        operands = re.split(r",\s*", rest[0]) if rest else []
        is_to = bool(operands) and (opcode.startswith("U") or opcode.split(".")[0] in ("R2UR", "S2UR", "VOTEU", "REDUX", "CREDUX", "LDCU"))
        # What is written may be several, and behind a predicate.
        to = next((int(word[2:]) for word in operands[:2] if re.fullmatch(r"UR\d+", word)), None) if is_to else None
        if to is not None:
            written |= set(range(to, to + 4)) if re.search(r"\.(64|128|WIDE)", opcode) else {to}
        taken = operands[1:] if is_to else operands
        read |= {int(number) for word in taken for number in re.findall(r"\bUR(\d+)", word)}
    return [f"UR{number}" for number in sorted(read - written)]


def write(record, out):
    """As JSON, into a file or to standard output."""
    text = json.dumps(record, indent=1) + "\n"
    if out:
        with open(out, "w") as file:
            file.write(text)
    else:
        print(text, end="")


def spread(values):
    ordered = sorted(values)
    low, high = ordered[len(ordered) // 10], ordered[-1 - len(ordered) // 10]
    return {"median": statistics.median(ordered), "low": low, "high": high}


def summary(rows):
    """What is claimed: of kernels that should be rewritten."""
    wanted = [row for row in rows if not row["should_be_refused"]]
    ratios = [row["ratio"]["arena"]["median"] for row in wanted if "arena" in row.get("ratio", {})]
    found = {
        "kernels": len(wanted),
        "kernels_bit_equal": bool(wanted) and all("failed" not in row and all(row.get("bit_equal", {"": False}).values()) for row in wanted),
        "kernels_failed": sum("failed" in row for row in rows),
        "refused_as_expected": all("refused" in row for row in rows if row["should_be_refused"]),
        "time_ratio_mean": statistics.fmean(ratios) if len(ratios) == len(wanted) and ratios else None,
        "time_ratio_max": max(ratios) if ratios else None,
    }
    for variant in VARIANTS:
        values = [row["ratio"][variant]["median"] for row in wanted if variant in row.get("ratio", {})]
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
        listing = disassembled(self.real, code)
        found = used(done.stdout + done.stderr) | {"instructions": len(instructions(listing)), "unwritten": unwritten(listing)}
        with open(code, "rb") as file:
            return file.read(), found


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
        arenas = {"plain": None, **{variant: order_of(base, variant) for variant in VARIANTS}}
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
                continue
            missing = row["assembled"][variant]["unwritten"]
            if missing and variant != "plain":
                row.setdefault("failed", {})[variant] = f"reads uniform registers that nothing writes: {', '.join(missing)}"
                del codes[variant]
        say(line(row))
        yield case, ptx, shared, codes, row
    pool.shutdown()


def line(row):
    shown = [f"{variant} {found['registers']}" + ("!" if found["spilled_bytes"] else "") for variant, found in row["assembled"].items()]
    text = f"{row['name']:44} registers: {', '.join(shown)}"
    if "refused" in row:
        why = next(iter(row["refused"].values())).splitlines()
        text += "; refused: " + next((part for part in why if part.startswith("line ")), why[0])
    if "ratio" in row:
        ratios = ", ".join(f"{name} {found['median']:.3f}" for name, found in row["ratio"].items())
        text += f"\n{'':44} {row['time_us']['plain']['median']:.1f} us; times: {ratios}; equal: {all(row['bit_equal'].values())}"
    for variant, why in row.get("failed", {}).items():
        text += f"\n{'':44} failed, {variant}: {why.splitlines()[0] if why else why}"
    return text


def run(gpu, case, ptx, shared, codes, row, rounds, at, expected_to=None):
    """Results and times of a kernel; what is launched next is said by `at`."""
    types = parameters(ptx)
    name = re.search(r"\.entry\s+([\w$]+)", ptx).group(1)
    tensors, outputs = case.tensors(DEVICE), case.outputs()
    threads = case.num_warps * 32
    launches = {}

    def first(variant, places):
        at(case.name, variant)
        function = gpu.load(codes[variant], name, shared)
        launches[variant] = gpu.launch(function, case.grid, threads, shared, packed(types, case.values(places)))
        launches[variant]()
        # So that what goes wrong goes wrong here.
        gpu.torch.cuda.synchronize()

    first("plain", {key: tensor.data_ptr() for key, tensor in tensors.items()})
    expected = {key: tensors[key].clone() for key in outputs}
    if not any(bool(tensor.view(-1).view(gpu_bytes()).any()) for tensor in expected.values()):
        raise Failed("all outputs are zero")
    if expected_to:
        gpu.torch.save({key: tensor.cpu() for key, tensor in expected.items()}, expected_to)
    row["bit_equal"] = {}
    fresh = case.tensors(DEVICE)
    for variant in codes:
        if variant == "plain":
            continue
        gpu.clear(kind_of(variant))
        places = {key: gpu.put(tensor) for key, tensor in fresh.items()}
        first(variant, places)
        equal = all(same(expected[key], gpu.get(places[key], expected[key])) for key in outputs)
        row["bit_equal"][variant] = equal and gpu.is_untouched()
    at(case.name, "")
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
    row["ratio"] = {
        variant: spread([a / b for a, b in zip(found, times["plain"])]) for variant, found in times.items() if variant != "plain"
    }


def chosen(names):
    import triton_kernels

    return [case for case in triton_kernels.cases() if case.name in names]


def launching_child(task):
    """Compiles and runs kernels, and says so by lines of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    # What others print goes elsewhere.
    os.dup2(2, 1)

    def answer(**found):
        answers.write(json.dumps(found) + "\n")
        answers.flush()

    def at(name, variant):
        answer(at=[name, variant])

    try:
        gpu = Gpu()
        major, minor = gpu.torch.cuda.get_device_capability()
        arch = 10 * major + minor
        record = {"gpu": gpu.torch.cuda.get_device_name(), "torch": gpu.torch.__version__, "arena": order(gpu.base)}
        answer(record=record, base=gpu.base)
        assembler = Assembler(task["partywall"], assembler_of(arch), arch, task["folder"])
        for case, ptx, shared, codes, row in compiled(chosen(task["names"]), assembler, gpu.base, lambda text: None):
            if ptx:
                with open(os.path.join(task["folder"], f"{case.name}.ptx"), "w") as file:
                    file.write(ptx)
            codes = {variant: code for variant, code in codes.items() if variant not in task["skip"].get(case.name, [])}
            for variant, code in codes.items():
                with open(os.path.join(task["folder"], f"{case.name}.{variant}.cubin"), "wb") as file:
                    file.write(code)
            if not case.refused and not {"refused", "not_compiled"} & set(row):
                at(case.name, "plain")
                expected_to = os.path.join(task["folder"], f"{case.name}.pt") if case.name in TRANSPARENT else None
                run(gpu, case, ptx, shared, codes, row, task["rounds"], at, expected_to)
            answer(row=row)
    # Whatever went wrong is the answer; the GPU's context may be of no more use.
    except Exception as error:
        answer(failed=f"{type(error).__name__}: {error}"[:1000])


class Lines:
    """What a process says, line by line; it never waits longer than it should."""

    def __init__(self, file, patience_s):
        self.file, self.patience_s, self.found = file, patience_s, queue.Queue()
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for text in self.file:
            self.found.put(text)
        self.found.put(None)

    def next(self):
        """A line as JSON; `None` at the end."""
        try:
            text = self.found.get(timeout=self.patience_s)
        except queue.Empty:
            raise Failed(f"no answer in {self.patience_s} s") from None
        return None if text is None else json.loads(text)

    def end(self):
        """Where the process has ended."""
        self.thread.join()
        self.file.close()


def launched(task, record, say, program=(sys.executable, os.path.abspath(__file__), "--launching-child")):
    """Rows of all kernels, each launched; in a new process after one that failed."""
    names, failed = list(task["names"]), {}
    while names:
        words = [*program, json.dumps(task | {"names": names})]
        with open(os.path.join(task["folder"], "errors.txt"), "w+") as errors:
            child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
            lines, at, why = Lines(child.stdout, PATIENCE_S), None, None
            try:
                while why is None and names:
                    found = lines.next()
                    if found is None:
                        errors.seek(0)
                        why = f"its process ended: {errors.read()[-500:]}"
                    elif "record" in found:
                        record |= found["record"]
                        task["base"] = found["base"]
                    elif "at" in found:
                        at = found["at"]
                    elif "row" in found:
                        row, at = found["row"], None
                        names.remove(row["name"])
                        if row["name"] in failed:
                            row["failed"] = failed[row["name"]] | row.get("failed", {})
                        say(line(row))
                        yield row
                    else:
                        why = found["failed"]
            except Failed as silent:
                why = str(silent)
            finally:
                child.kill()
                child.wait()
                lines.end()
        if not names:
            return
        if at is None and "base" not in task:
            raise Failed(why)
        name, variant = at if at and at[0] in names else (names[0], "")
        failed.setdefault(name, {})[variant or "measuring"] = why
        if variant in VARIANTS:
            # The others are tried all the same.
            task["skip"].setdefault(name, []).append(variant)
            kept(task, name, variant)
            continue
        names.remove(name)
        row = {"name": name, "should_be_refused": name in task["refused"], "failed": failed[name], "assembled": {}}
        say(line(row))
        yield row


def kept(task, name, variant):
    """Puts what failed where it can be looked at."""
    if not task["ptx"]:
        return
    os.makedirs(task["ptx"], exist_ok=True)
    source = os.path.join(task["folder"], f"{name}.ptx")
    shutil.copy(os.path.join(task["folder"], f"{name}.{variant}.cubin"), task["ptx"])
    out = os.path.join(task["ptx"], f"{name}.{variant}.ptx")
    words = [task["partywall"], "vram", "rewrite", source, "--arena", order_of(task["base"], variant), "--out", out]
    subprocess.run(words, check=False, capture_output=True)


def transparent_child(out):
    """Launches some kernels by Triton, which finds `partywall` in the place of its assembler."""
    import torch

    import triton_kernels

    gpu = Gpu()
    os.environ["PARTYWALL_ARENA"] = order_of(gpu.base, "arena")
    found = {}
    for case in triton_kernels.cases():
        if case.name not in TRANSPARENT:
            continue
        gpu.clear()
        fresh = case.tensors(DEVICE)
        places = {key: gpu.put(tensor) for key, tensor in fresh.items()}
        # Tensors of PyTorch whose addresses are those of the arena.
        flat = gpu.memory.view(-1).view(torch.uint8)

        def seen(key):
            begin, like = places[key] - gpu.base, fresh[key]
            return flat[begin : begin + like.numel() * like.element_size()].view(like.dtype).view(like.shape)

        case.launch({key: seen(key) for key in fresh})
        found[case.name] = {key: gpu.get(places[key], fresh[key]).cpu() for key in case.outputs()}
    torch.save(found, out)


def transparent(arguments, real, folder):
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
    places = {name: os.path.join(folder, f"{name}.pt") for name in TRANSPARENT}
    keep = {name: torch.load(place) for name, place in places.items() if os.path.exists(place)}
    equal = {
        name: all(torch.equal(found[name][key].view(torch.uint8), keep[name][key].view(torch.uint8)) for key in keep[name])
        for name in keep
        if name in found
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
    parser.add_argument("--arch", type=int, default=90, help="for which GPU, with --compile-only, and of which Triton's assembler is")
    parser.add_argument("--ptx", help="also keep the PTX of each kernel in this folder")
    parser.add_argument("--out", help="where the record goes; without it, to standard output")
    parser.add_argument("--transparent-child", help=argparse.SUPPRESS)
    parser.add_argument("--launching-child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.transparent_child:
        return transparent_child(arguments.transparent_child)
    if arguments.launching_child:
        return launching_child(json.loads(arguments.launching_child))
    import triton_kernels
    import triton

    def say(text):
        print(text, file=sys.stderr, flush=True)

    begins = tuple(arguments.only.split(","))
    cases = [case for case in triton_kernels.cases() if case.name.startswith(begins)]
    if not cases:
        raise Failed(f"no kernel begins with {arguments.only}")
    record = {"triton": triton.__version__, "rounds": arguments.rounds, "rows": []}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.compile_only:
            base = 0x7000 << 32
            record["arena"] = order(base)
            assembler = Assembler(arguments.partywall, assembler_of(arguments.arch), arguments.arch, folder)
            for case, ptx, _, _, row in compiled(cases, assembler, base, say):
                record["rows"].append(row)
                if ptx:
                    with open(os.path.join(folder, f"{case.name}.ptx"), "w") as file:
                        file.write(ptx)
        else:
            names = [case.name for case in cases]
            task = {"partywall": arguments.partywall, "folder": folder, "ptx": arguments.ptx, "rounds": arguments.rounds, "names": names}
            task |= {"skip": {}, "refused": [case.name for case in cases if case.refused]}
            record["rows"] += launched(task, record, say)
            record["ptx"] = summary(record["rows"])
            record["transparent"] = transparent(arguments, assembler_of(arguments.arch), folder)
            say(f"launched by Triton: {record['transparent'].get('bit_equal') or record['transparent']}")
        for case in cases:
            place = os.path.join(folder, f"{case.name}.ptx")
            if arguments.ptx and os.path.exists(place):
                os.makedirs(arguments.ptx, exist_ok=True)
                shutil.copy(place, arguments.ptx)
    write(record, arguments.out)
    as_expected = all(not {"not_compiled", "failed"} & set(row) and ("refused" in row) == row["should_be_refused"] for row in record["rows"])
    if arguments.compile_only:
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
