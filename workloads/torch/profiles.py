#!/usr/bin/env python3
"""Records networks alone on one NVIDIA GPU, as the simulator's profiles need them: one file per network and batch.

Four phases, each with processes of its own, one after the other on the GPU:

  solo      latency of CUDA graph replays in a closed loop (p50, p99), and of eager passes (p50)
  trace     the kernels of a graph replay: order, times, gaps, launch shapes (medians over several replays)
  scaling   latency of graph replays on fewer SMs, in a green context
  bytes     bytes that each kernel moved, from the GPU's counters through Nsight Compute, if that is there; in an eager
            pass, whose kernels are those of the graph, one for one

Tracing stays out of the processes whose latencies count, for it lengthens them. A result is written as soon as it is
there, and what a file already has is not recorded again: a run that was cut short is continued by the same command.
`cargo xtask profiles FILE...` takes the files over. `--fake` stands in for the GPU.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

import gpu
import load
import programs
import recording
from recording import Recording, RecordingError

PHASES = ("solo", "trace", "scaling", "bytes")
MODELS = (*programs.NETWORKS, "decode")
BATCHES = (1, 8, 32)
SM_COUNTS = (104, 66, 32, 16, 8)

# As the pairs of results/ were recorded: the GPU idles in between, as it does for a service with spare time.
PAUSE_NS = 500_000
WARM_UP_S = 0.15
# So many requests make a p99; a batch whose replays take longer than 3 ms gets none.
SOLO_REQUESTS, SOLO_LONGEST_S = recording.LEAST_FOR_P99, 3.0
# For a median alone.
SHORT_REQUESTS, SHORT_LONGEST_S = 400, 0.35
REPLAYS_TRACED = 10
# Of one process under Nsight Compute: starting it takes many seconds, and results come when it ends.
KERNELS_PER_COUNTING = 2_500
# First use of the GPU's libraries, and the slowest network on the fewest SMs.
ANSWER_WITHIN_S = 120.0


def measured(queue, wait, requests: int, longest_s: float) -> list[int]:
    """Service times of a closed loop in ns, after a warm-up; `LEAST_FOR_P50` of them even if that takes longer."""
    times_ns = []
    for most, seconds, least in [(requests, WARM_UP_S, 1), (requests, longest_s, recording.LEAST_FOR_P50)]:
        times_ns = closed_loop(queue, wait, most, seconds, least)
    return times_ns


def closed_loop(queue, wait, most: int, seconds: float, least: int) -> list[int]:
    begin = time.monotonic_ns()
    started = [0]

    def counting() -> None:
        started[0] += 1
        queue()

    def told_to_end(_within_ms: int) -> bool:
        return started[0] >= least and time.monotonic_ns() > begin + seconds * 1e9

    pauses = load.parse({"closed": {"pause_ns": PAUSE_NS, "depth": 1}})
    program = types.SimpleNamespace(queue=counting, wait=wait)
    times_ns = load.serve(program, load.Run(0, pauses, begin, most), told_to_end, time.monotonic_ns).times_ns
    return [end - start for start, end in zip(times_ns[1::3], times_ns[2::3], strict=True)]


def solo(program: programs.Program) -> dict:
    graph = checked(program, SOLO_REQUESTS, SOLO_LONGEST_S)
    eager = measured(program.eager, program.wait, SHORT_REQUESTS, SHORT_LONGEST_S)
    return {
        "graph_p50_ms": recording.ms(graph, 50, recording.LEAST_FOR_P50),
        "graph_p99_ms": recording.ms(graph, 99, recording.LEAST_FOR_P99),
        "graph_requests": len(graph),
        "eager_p50_ms": recording.ms(eager, 50, recording.LEAST_FOR_P50),
    }


def scaling(program: programs.Program) -> dict:
    times_ns = checked(program, SHORT_REQUESTS, SHORT_LONGEST_S)
    p50_ms = recording.ms(times_ns, 50, recording.LEAST_FOR_P50)
    return {"sms": int(program.about["sms"]), "p50_ms": p50_ms, "requests": len(times_ns)}


def checked(program: programs.Program, requests: int, longest_s: float) -> list[int]:
    program.begin()
    started = [0]

    def queue() -> None:
        started[0] += 1
        program.queue()

    times_ns = measured(queue, program.wait, requests, longest_s)
    check = program.verify(started[0])
    if check != "ok":
        raise RecordingError(check)
    return times_ns


def trace(program: programs.Program) -> dict:
    events = fake_events() if "fake" in program.about else traced(program)
    return {"pass": "graph", "kernels": recording.kernels_of(events, REPLAYS_TRACED)}


def traced(program: programs.Program) -> list[dict]:
    import torch

    program.queue()
    program.wait()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(REPLAYS_TRACED):
            program.queue()
            program.wait()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"]


def fake_events() -> list[dict]:
    shape = {"grid": [4, 1, 1], "block": [128, 1, 1], "registers per thread": 32, "shared memory": 0}
    kernels = [("kernel", "fake_gemm", shape), ("gpu_memset", "Memset (Device)", {})]
    return [
        {"cat": cat, "name": name, "ts": 100.0 * replay + 10 * index, "dur": 5.0, "args": arguments}
        for replay in range(REPLAYS_TRACED)
        for index, (cat, name, arguments) in enumerate(kernels)
    ]


MEASURES = {"solo": solo, "trace": trace, "scaling": scaling}


def open_gpu(faked: bool):
    """What opens models: `open(name).program(batch)`."""
    if faked:
        groups = os.environ.get(gpu.GROUPS_VARIABLE)
        about = {"sms": str(2 * len(gpu.parse_groups(groups)) if groups else 132)}
        return lambda name: programs.Model(lambda batch: programs.fake(f"{name}-b{batch}", batch, about))
    device = gpu.start()
    return lambda name: programs.open_model(device, name)


def work(conn, phase: str, models: list[tuple[str, list[int]]], environment: dict[str, str], faked: bool) -> None:
    """A process on the GPU: for each batch of each model one ("measured", about, result), at last ("done",)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.pop(gpu.GROUPS_VARIABLE, None)
    os.environ.update(environment)
    try:
        open_model = open_gpu(faked)
        if phase == "trace" and not faked:
            attach_profiler()
        for name, batches in models:
            model = open_model(name)
            for batch in batches:
                program = model.program(batch)
                conn.send(("measured", program.about, MEASURES[phase](program)))
                del program
        conn.send(("done",))
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        conn.send(("failed", f"{type(error).__name__}: {error}"))
    # Libraries are not torn down, as in tenant.py.
    conn.close()
    os._exit(0)


def attach_profiler() -> None:
    """Before any graph is captured, and for good: attaching later has crashed replays of graphs in some versions."""
    import torch

    os.environ["TEARDOWN_CUPTI"] = "0"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]):
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()


class Recorder:
    """Goes through the phases and keeps the files."""

    def __init__(self, chosen: argparse.Namespace, empty: str):
        self.chosen, self.empty = chosen, empty
        self.began = time.monotonic()
        self.failures = 0
        chosen.out.mkdir(parents=True, exist_ok=True)
        self.recordings = [Recording(chosen.out, model, batch) for model in chosen.only for batch in chosen.batches]
        # PyTorch is imported once, by the server that the processes fork from, before any of them touches the GPU.
        self.context = multiprocessing.get_context("forkserver")
        if not chosen.fake:
            models = ["transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2"]
            self.context.set_forkserver_preload(["torch", "torch.profiler", "torchvision", *models, "decode"])

    def run(self) -> None:
        for phase in self.chosen.phases:
            if phase == "bytes":
                self.count_bytes()
                continue
            for sms in self.chosen.sms if phase == "scaling" else [None]:
                self.go_through(phase, sms)

    def left_s(self) -> float:
        return self.chosen.limit_s - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", file=sys.stderr, flush=True)

    def go_through(self, phase: str, sms: int | None) -> None:
        """All that is missing; after a failure with a new process and without what failed."""
        ahead = [one for one in self.recordings if not one.has(phase, sms)]
        while ahead and self.left_s() > 0:
            done, failure = self.one_process(phase, sms, ahead)
            ahead = ahead[done:]
            if failure:
                self.failures += 1
                self.say(f"{phase} {ahead[0]}: {failure}")
                ahead = ahead[1:]
        if ahead:
            self.say(f"{phase}: out of time; {len(ahead)} are left for the next run")

    def one_process(self, phase: str, sms: int | None, ahead: list[Recording]) -> tuple[int, str | None]:
        """How many were recorded before the process ended, and why it ended early."""
        models: dict[str, list[int]] = {}
        for one in ahead:
            models.setdefault(one.model, []).append(one.batch)
        # An empty folder, lest the processes find an MPS daemon that this machine runs for others.
        environment = {"CUDA_MPS_PIPE_DIRECTORY": self.empty}
        if sms:
            environment[gpu.GROUPS_VARIABLE] = f"0-{sms // gpu.SMALLEST_GROUP - 1}"
        conn, theirs = self.context.Pipe()
        arguments = (theirs, phase, list(models.items()), environment, self.chosen.fake)
        process = self.context.Process(target=work, args=arguments, daemon=True)
        process.start()
        theirs.close()
        try:
            for done, one in enumerate(ahead):
                answer = self.answer(conn)
                if answer[0] == "failed":
                    return done, answer[1]
                self.keep(phase, one, answer[1], answer[2])
                if self.left_s() <= 0:
                    return done + 1, None
            return len(ahead), None
        finally:
            process.kill()
            process.join()
            conn.close()

    @staticmethod
    def answer(conn):
        try:
            return conn.recv() if conn.poll(ANSWER_WITHIN_S) else ("failed", f"no answer in {ANSWER_WITHIN_S:.0f} s")
        except (EOFError, ConnectionError):
            return "failed", "its process died"

    def keep(self, phase: str, one: Recording, about: dict[str, str], result: dict) -> None:
        if phase == "scaling":
            one.add_scaling(result)
        else:
            one.network.update(result)
        if phase == "solo":
            # The whole GPU is a point of the scaling as well: it was measured in the same way.
            one.add_scaling({"sms": int(about["sms"]), "p50_ms": result["graph_p50_ms"], "requests": result["graph_requests"]})
        kept = {key: about[key] for key in ("fake", "gpu", "driver", "cuda", "torch") if key in about}
        one.about = kept | {"date": datetime.now(timezone.utc).date().isoformat(), "weights": "random"}
        one.write()
        shown = {key: value for key, value in result.items() if key != "kernels"}
        if "kernels" in result:
            kernels = result["kernels"]
            shown |= {"kernels": len(kernels), "sum_ms": round(sum(kernel["us"] for kernel in kernels) / 1e3, 4)}
        self.say(f"{phase} {one}: {json.dumps(shown)}")

    def count_bytes(self) -> None:
        ahead = [one for one in self.recordings if one.has("trace") and not one.has("bytes")]
        ncu = shutil.which(self.chosen.ncu)
        if ncu is None or self.chosen.fake:
            self.say(f"bytes: {'not with --fake' if self.chosen.fake else f'no {self.chosen.ncu}'}; they stay unknown")
            return
        while ahead and self.left_s() > 0:
            part = [ahead.pop(0)]
            while ahead and sum(len(one.network["kernels"]) for one in [*part, ahead[0]]) <= KERNELS_PER_COUNTING:
                part.append(ahead.pop(0))
            self.count_part(ncu, part)
        if ahead:
            self.say(f"bytes: out of time; {len(ahead)} are left for the next run")

    def count_part(self, ncu: str, part: list[Recording]) -> None:
        names = ",".join(map(str, part))
        try:
            with tempfile.TemporaryDirectory() as folder:
                table = counted(ncu, names, Path(folder, "table.csv"), self.empty, self.left_s())
            parts = recording.at_markers(recording.counted_kernels(table))
            if len(parts) != len(part):
                raise RecordingError(f"{len(parts)} networks were counted; {len(part)} were expected")
        except (RecordingError, OSError) as error:
            self.failures += 1
            self.say(f"bytes {names}: {error}")
            return
        for one, rows in zip(part, parts, strict=True):
            kernels = one.network["kernels"]
            found = recording.with_counts(kernels, rows)
            one.write()
            moved = sum(kernel["vram_bytes"] or 0 for kernel in kernels) / 1e6
            self.say(f"bytes {one}: {found} of {len(kernels)} kernels, {moved:.1f} MB of VRAM traffic")
            if found < sum(1 for kernel in kernels if kernel["grid"]):
                # To see what the two tools disagree about; the GPU time for it is spent.
                kept = one.path.with_suffix(".counters.csv")
                kept.write_text(table)
                self.say(f"bytes {one}: some kernels were not found; the table is kept in {kept}")


def counted(ncu: str, names: str, table: Path, empty: str, within_s: float) -> str:
    """Nsight Compute's table for one eager pass of each named network."""
    metrics = ",".join(column for columns in recording.COUNTERS.values() for column in columns)
    # Clocks and caches as they are: the first are not ours to set, and a network finds its data where it left them.
    options = ["--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off"]
    options += ["--metrics", metrics]
    options += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table)]
    command = [ncu, *options, sys.executable, __file__, "--replay-once", names]
    environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": empty}
    # A session of its own, so that its end is the end of all that it started.
    process = subprocess.Popen(
        command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        _, said = process.communicate(timeout=max(within_s, 1))
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            raise RecordingError("out of time") from None
        raise
    text = table.read_text() if table.exists() else ""
    if process.returncode:
        raise RecordingError(f"Nsight Compute ended with status {process.returncode}: {text[-300:]} {said[-300:]}")
    return text


def replay_once(names: str) -> None:
    """What runs under Nsight Compute: one eager pass of each network, each after a marker."""
    open_model = open_gpu(faked=False)
    import torch

    one, two = torch.ones(1, device="cuda"), torch.zeros(1, device="cuda")
    models: dict[str, programs.Model] = {}
    for name in names.split(","):
        model, _, batch = name.rpartition("-b")
        if model not in models:
            models = {model: open_model(model)}
        program = models[model].program(int(batch))
        # The kernels that a capture chooses: transformers makes a mask then which it skips otherwise.
        with mock.patch("torch.cuda.is_current_stream_capturing", return_value=True):
            program.eager()
            program.wait()
            torch.cuda.profiler.start()
            torch.nextafter(one, two)
            program.eager()
            program.wait()
            torch.cuda.profiler.stop()
        del program


def chosen_of(words: list[str]) -> argparse.Namespace:
    def some_of(known, kind=str):
        def parse(text: str) -> list:
            parts = [kind(part) for part in text.split(",")]
            if known and (unknown := [part for part in parts if part not in known]):
                raise argparse.ArgumentTypeError(f"{unknown[0]}: known are {', '.join(map(str, known))}")
            return parts

        return parse

    parser = argparse.ArgumentParser(prog="profiles.py", description="Records networks alone on one NVIDIA GPU.")
    parser.add_argument("--out", type=Path, default=Path("profiles"), metavar="FOLDER", help="files that it has are kept")
    parser.add_argument("--only", type=some_of(MODELS), default=list(MODELS), metavar="A,B", help="models: " + ", ".join(MODELS))
    parser.add_argument("--batches", type=some_of((), int), default=list(BATCHES), metavar="N,N", help="default 1,8,32")
    parser.add_argument("--phases", type=some_of(PHASES), default=list(PHASES), metavar="A,B", help=", ".join(PHASES))
    parser.add_argument("--sms", type=some_of((), int), default=list(SM_COUNTS), metavar="N,N", help="SM counts of `scaling`")
    parser.add_argument("--limit-s", type=float, default=540.0, metavar="S", help="begins nothing after so many seconds")
    parser.add_argument("--ncu", default="ncu", metavar="PROGRAM", help="Nsight Compute")
    parser.add_argument("--fake", action="store_true", help="short waits instead of a GPU; the result means nothing")
    parser.add_argument("--replay-once", metavar="NAMES", help=argparse.SUPPRESS)
    chosen = parser.parse_args(words)
    if not all(sms >= gpu.SMALLEST_GROUP and sms % gpu.SMALLEST_GROUP == 0 for sms in chosen.sms):
        parser.error(f"--sms: multiples of {gpu.SMALLEST_GROUP} are expected")
    if not all(1 <= batch <= 1024 for batch in chosen.batches):
        parser.error("--batches: 1 to 1024 are expected")
    return chosen


def main() -> int:
    chosen = chosen_of(sys.argv[1:])
    if chosen.replay_once:
        replay_once(chosen.replay_once)
        return 0
    # A kill must end like Ctrl-C does: with all processes gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="profiles-") as empty:
            recorder = Recorder(chosen, empty)
            recorder.run()
        return 1 if recorder.failures else 0
    except (RecordingError, OSError) as error:
        print(f"profiles.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("profiles.py: stopped; what was recorded so far is kept", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
