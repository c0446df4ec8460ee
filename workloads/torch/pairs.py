#!/usr/bin/env python3
"""Measures what a best-effort neighbour does to a latency-sensitive network, behind each wall of an NVIDIA GPU.

One *cell* is one row of the result: a latency-sensitive network (LS) alone, or beside a best-effort program (BE),
behind one wall. Its tenants are processes started for that cell alone. LS replays a CUDA graph of one fp16
inference, waits for it, pauses for half a millisecond, and again; what counts is the host's time around replay and
wait. BE never pauses: it queues `depth` units of work, waits for them, and again. That depth decides how long LS
waits where the two share a queue, so it is part of the experiment: two graph replays, four copies of 1 GiB, or two
matrix products.

The walls:
  time-slicing    the default between processes: no MPS daemon in reach
  mps             both are clients of one MPS daemon
  mps-percentage  the same, with an active-thread percentage for each

The MPS daemon is started by this program in a directory of its own and stopped again; before a cell counts, its
tenants must be on the daemon's list of clients. Settings of the GPU are left as they are. Weights and inputs are
random.

Rows are written as they are measured. A cell that the output file already has is not measured again, so a run that
was cut short is continued by the same command. `--fake` replaces the programs by sleeps, to try all the rest
without a GPU.
"""

import argparse
import csv
import gc
import math
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Callable

PAUSE_S = 0.0005
# LS runs this long beside BE before its times count: clocks rise and BE reaches a steady state well within it.
WARM_UP_S = 0.7
# The least number of requests of a row, and how long a cell may take over it: behind MPS one may wait 100 ms.
LEAST_REQUESTS = 20
LONGEST_CELL_S = 20.0
# First use of a GPU library by a process can take many seconds.
READY_WITHIN_S = 120.0

GIB = 1 << 30
GEMM_SIZE = 8192
IMAGE_PIXELS = 224

STATISTICS = ["n", "p50_ms", "p99_ms", "max_ms", "mean_ms", "be_rate_per_s"]


@dataclass(frozen=True)
class Cell:
    """What one row measures; the fields are the first columns of the result, in order. "" is what does not apply."""

    mechanism: str
    ls: str
    ls_batch: int
    ls_sm_percent: int
    be: str = ""
    be_batch: int | str = ""
    be_sm_percent: int | str = ""

    def key(self) -> tuple[str, ...]:
        return tuple(str(value) for value in astuple(self))

    def __str__(self) -> str:
        neighbour = f"{self.be}-b{self.be_batch}" if self.be_batch else self.be
        beside = f"beside {neighbour} at {self.be_sm_percent} %" if self.be else "alone"
        return f"{self.mechanism}: {self.ls}-b{self.ls_batch} at {self.ls_sm_percent} % {beside}"


COLUMNS = [field.name for field in fields(Cell)] + STATISTICS

# Each wall with the percentages of LS and BE.
WALLS = [("time-slicing", 100, 100), ("mps", 100, 100), ("mps-percentage", 50, 50)]


def heldout_plan() -> list[Cell]:
    """Networks that are in no pair of `pairs.csv`, and ResNet-50, whose cells that file shares, as the anchor."""
    neighbours = [("vgg16", 32), ("vit_b_16", 32), ("mobilenet_v3_large", 32), ("stream", ""), ("gemm", "")]
    cells = []
    for mechanism, ls_percent, be_percent in WALLS:
        for ls in ["resnet50", "vit_b_16", "vgg16", "efficientnet_b0"]:
            cells.append(Cell(mechanism, ls, 1, ls_percent))
            cells += [Cell(mechanism, ls, 1, ls_percent, be, batch, be_percent) for be, batch in neighbours]
    cells.append(Cell("mps-percentage", "vit_b_16", 1, 100, "stream", "", 25))
    cells.append(Cell("mps-percentage", "efficientnet_b0", 1, 100, "vgg16", 32, 25))
    return cells


def quick_plan() -> list[Cell]:
    """Two cells per wall, to see that all is in place."""
    alone = [Cell(mechanism, "resnet50", 1, percent) for mechanism, percent, _ in WALLS]
    beside = [Cell(mechanism, "resnet50", 1, ls, "gemm", "", be) for mechanism, ls, be in WALLS]
    return [cell for pair in zip(alone, beside, strict=True) for cell in pair]


PLANS = {"heldout": heldout_plan, "quick": quick_plan}

@dataclass
class Program:
    """`queue` starts one unit of work and returns; `wait` returns when all that was queued is done."""

    queue: Callable[[], object]
    wait: Callable[[], object]
    depth: int
    work_per_unit: float
    about: str
    # What a captured graph reads and writes, which nothing else would keep alive.
    kept: object = None


def network(name: str, batch: int) -> Program:
    """A torchvision classifier in fp16 as one CUDA graph: modules as they are, channels first, no autotuning.

    Work is counted in images.
    """
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = False
    with torch.device("cuda"):
        net = torchvision.models.get_model(name, weights=None).eval().half()
        images = torch.randn(batch, 3, IMAGE_PIXELS, IMAGE_PIXELS, dtype=torch.float16)
    with torch.inference_mode():
        # Libraries set up their workspaces at first use, which a capture would refuse.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(images)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = net(images)
    return Program(graph.replay, torch.cuda.synchronize, 2, batch, about_gpu(), (net, images, output))


def stream() -> Program:
    """Copies of 1 GiB within the GPU's memory. Work is counted in GB read and written."""
    import torch

    source = torch.randint(0, 256, (GIB,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return Program(lambda: target.copy_(source), torch.cuda.synchronize, 4, 2 * GIB / 1e9, about_gpu())


def gemm() -> Program:
    """Products of two square bf16 matrices. Work is counted in products."""
    import torch

    a, b = (torch.randn(GEMM_SIZE, GEMM_SIZE, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    out = torch.empty_like(a)
    return Program(lambda: torch.mm(a, b, out=out), torch.cuda.synchronize, 2, 1, about_gpu())


def fake() -> Program:
    """Half a millisecond to two of sleep for each unit."""
    return Program(lambda: None, lambda: time.sleep(random.uniform(0.0005, 0.002)), 2, 1, "no GPU")


def about_gpu() -> str:
    import torch

    gpu = torch.cuda.get_device_properties(0)
    return f"{gpu.multi_processor_count} SMs of {gpu.name}, PyTorch {torch.__version__}"


def load(name: str, batch: int | str, faked: bool) -> Program:
    if faked:
        return fake()
    if name in ("stream", "gemm"):
        return {"stream": stream, "gemm": gemm}[name]()
    return network(name, int(batch))


def serve_requests(program: Program, seconds: float) -> tuple[float, float, list[float]]:
    """The closed loop of LS: when it began and ended on the clock that all processes share, and each time in ms."""
    gc.disable()
    times_ms: list[float] = []
    began = time.monotonic()
    counted_from = began + WARM_UP_S
    while True:
        start = time.monotonic()
        program.queue()
        program.wait()
        end = time.monotonic()
        if start >= counted_from:
            times_ms.append((end - start) * 1e3)
            enough = end >= counted_from + seconds and len(times_ms) >= LEAST_REQUESTS
            if enough or end >= began + LONGEST_CELL_S:
                return counted_from, end, times_ms
        time.sleep(PAUSE_S)


def work_until_told(program: Program, conn) -> float:
    """BE: works until it is told the window of LS, and returns its work per second in that window."""
    finished = []
    told = False
    while not told:
        for _ in range(program.depth):
            program.queue()
        # Looked for here, while the GPU is busy. Behind MPS, LS gets on in the gap between a wait and the next work:
        # ResNet-50 beside `stream` took 42 ms with a gap of 15 us, 37 ms with 22 us and 14 ms with 120 us.
        told = conn.poll()
        program.wait()
        finished.append(time.monotonic())
    window_start, window_end = conn.recv()
    inside = [at for at in finished if window_start <= at <= window_end]
    if len(inside) < 2:
        raise RuntimeError("fewer than two turns were finished beside the requests; measure longer")
    return (len(inside) - 1) * program.depth * program.work_per_unit / (inside[-1] - inside[0])


def tenant(conn, role: str, name: str, batch: int | str, environment: dict[str, str], faked: bool) -> None:
    """A tenant's process: says ("ready", about), waits for its start, ends with ("done", result) or ("failed", why).

    It goes away when the program that started it does: the pipe is then at its end.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # The driver reads these when a process first uses the GPU, which is below.
    os.environ.pop("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", None)
    os.environ.update(environment)
    try:
        program = load(name, batch, faked)
        program.queue()
        program.wait()
        conn.send(("ready", program.about))
        seconds = conn.recv()
        conn.send(("done", serve_requests(program, seconds) if role == "ls" else work_until_told(program, conn)))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        conn.send(("failed", f"{type(error).__name__}: {error}"))

class MeasureError(Exception):
    """Something that ends the run, in words for the one who started it."""


class Tenant:
    """The other end of a tenant's process; leaving its `with` block ends the process."""

    # Torch is imported once, by the server that these processes fork from, before any of them touches the GPU.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torchvision"])

    def __init__(self, role: str, name: str, batch: int | str, environment: dict[str, str], faked: bool):
        self.name = f"{role} {name}"
        self.conn, theirs = self.context.Pipe()
        arguments = (theirs, role, name, batch, environment, faked)
        self.process = self.context.Process(target=tenant, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def __enter__(self) -> "Tenant":
        return self

    def __exit__(self, error: type | None, *_) -> None:
        self.process.join(0 if error else 5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.conn.close()

    def hear(self, expected: str, within_s: float):
        try:
            if not self.conn.poll(within_s):
                raise MeasureError(f"{self.name}: not {expected} within {within_s:.0f} s")
            kind, value = self.conn.recv()
        except (EOFError, ConnectionError):
            raise MeasureError(f"{self.name}: its process died before it was {expected}") from None
        if kind != expected:
            raise MeasureError(f"{self.name}: {value}")
        return value


class Mps:
    """An MPS daemon in a directory of its own, in the foreground so that its end is seen."""

    def __init__(self, control: str, folder: str):
        self.control = control
        self.environment = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in self.environment.values():
            Path(path).mkdir()
        try:
            # A session of its own: Ctrl-C must reach the tenants' owner first, not the daemon below them.
            self.daemon = subprocess.Popen(
                [control, "-f"], env=os.environ | self.environment, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise MeasureError(f"{control}: {error.strerror}; --mps-control names the MPS control program") from None

    def ask(self, command: str) -> list[str]:
        try:
            answer = subprocess.run(
                [self.control], input=command + "\n", env=os.environ | self.environment,
                capture_output=True, text=True, timeout=20,
            )
        except subprocess.TimeoutExpired:
            raise MeasureError(f"the MPS daemon did not answer '{command}'") from None
        return answer.stdout.split()

    def wait_until_up(self) -> None:
        for _ in range(50):
            if self.daemon.poll() is not None:
                raise MeasureError(f"the MPS daemon ended with status {self.daemon.returncode}")
            if any(Path(self.environment["CUDA_MPS_PIPE_DIRECTORY"]).iterdir()):
                return
            time.sleep(0.1)
        raise MeasureError("the MPS daemon opened no pipe within 5 s")

    def check_attached(self, tenants: list[Tenant]) -> None:
        servers = self.ask("get_server_list")
        clients = {client for server in servers for client in self.ask(f"get_client_list {server}")}
        for missing in (tenant for tenant in tenants if str(tenant.process.pid) not in clients):
            raise MeasureError(f"{missing.name}: process {missing.process.pid} is no client of the MPS daemon")

    def stop(self) -> None:
        try:
            self.ask("quit")
            self.daemon.wait(20)
        except (MeasureError, subprocess.TimeoutExpired):
            os.killpg(self.daemon.pid, signal.SIGKILL)
            self.daemon.wait()


@contextmanager
def wall(mechanism: str, control: str, faked: bool):
    """What stands while cells of one wall are measured: the MPS daemon, or None, and the tenants' environment."""
    with tempfile.TemporaryDirectory(prefix="pairs-", ignore_cleanup_errors=True) as folder:
        if mechanism == "time-slicing" or faked:
            # An empty folder, lest the tenants find a daemon that this machine runs for others.
            yield None, {"CUDA_MPS_PIPE_DIRECTORY": folder}
            return
        daemon = Mps(control, folder)
        try:
            daemon.wait_until_up()
            yield daemon, daemon.environment
        finally:
            daemon.stop()


def measure(cell: Cell, seconds: float, daemon: Mps | None, environment: dict[str, str], faked: bool):
    """The statistics of one cell, and what its tenants said about the GPU."""
    wanted = [("ls", cell.ls, cell.ls_batch, cell.ls_sm_percent)]
    if cell.be:
        wanted.append(("be", cell.be, cell.be_batch, cell.be_sm_percent))
    with ExitStack() as stack:
        tenants, about = [], []
        # One after the other, LS first: the order in which clients come to MPS decides which SMs they get.
        for role, name, batch, percent in wanted:
            limit = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)} if cell.mechanism == "mps-percentage" else {}
            tenants.append(stack.enter_context(Tenant(role, name, batch, environment | limit, faked)))
            about.append(tenants[-1].hear("ready", READY_WITHIN_S))
        if daemon:
            daemon.check_attached(tenants)
        ls, *be = tenants
        for tenant in be + [ls]:
            tenant.conn.send(seconds)
        start, end, times_ms = ls.hear("done", 2 * LONGEST_CELL_S)
        rate = None
        for tenant in be:
            tenant.conn.send((start, end))
            rate = tenant.hear("done", LONGEST_CELL_S)
    if len(times_ms) < LEAST_REQUESTS:
        raise MeasureError(f"{cell}: {len(times_ms)} requests in {LONGEST_CELL_S:.0f} s; {LEAST_REQUESTS} are needed")
    return statistics(times_ms, rate), about


def percentile(ordered: list[float], q: float) -> float:
    """The element at floor(q n) of n in ascending order; q below one."""
    return ordered[math.floor(q * len(ordered))]


def statistics(times_ms: list[float], be_rate_per_s: float | None) -> list[float | int | str]:
    """The columns `STATISTICS`."""
    ordered = sorted(times_ms)
    mean = sum(ordered) / len(ordered)
    latencies = [percentile(ordered, 0.5), percentile(ordered, 0.99), ordered[-1], mean]
    rate = "" if be_rate_per_s is None else round(be_rate_per_s, 1)
    return [len(ordered), *(round(value, 4) for value in latencies), rate]


def cells_in(path: Path) -> set[tuple[str, ...]] | None:
    """The cells that a result already has; None when there is no such file."""
    if not path.exists():
        return None
    with path.open(newline="") as file:
        header, *rows = list(csv.reader(file)) or [[]]
    if header != COLUMNS:
        raise MeasureError(f"{path}: its first line is not that of a result; name another file with --out")
    return {tuple(row[: -len(STATISTICS)]) for row in rows}


def run(arguments: argparse.Namespace) -> None:
    cells = PLANS[arguments.plan]()
    done = cells_in(arguments.out)
    with arguments.out.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if done is None:
            writer.writerow(COLUMNS)
        for mechanism, _, _ in WALLS:
            ahead = [cell for cell in cells if cell.mechanism == mechanism and cell.key() not in (done or set())]
            if not ahead:
                continue
            with wall(mechanism, arguments.mps_control, arguments.fake) as (daemon, environment):
                for number, cell in enumerate(ahead, 1):
                    began = time.monotonic()
                    row, about = measure(cell, arguments.seconds_per_cell, daemon, environment, arguments.fake)
                    writer.writerow([*astuple(cell), *row])
                    file.flush()
                    note = f"p50 {row[1]} ms, p99 {row[2]}, n {row[0]}, BE {row[-1] or '-'} per s; {'; '.join(about)}"
                    took_s = time.monotonic() - began
                    print(f"[{number}/{len(ahead)}] {cell}: {note}; {took_s:.1f} s", file=sys.stderr, flush=True)


def seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= LONGEST_CELL_S / 2:
        raise argparse.ArgumentTypeError(f"{text}: between 0.1 and {LONGEST_CELL_S / 2:.0f} seconds")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measures networks beside best-effort programs on one NVIDIA GPU, behind each wall."
    )
    parser.add_argument("--out", type=Path, default=Path("pairs.csv"), help="the result; rows it has are kept")
    parser.add_argument("--plan", choices=PLANS, default="quick", help="which cells to measure")
    parser.add_argument(
        "--seconds-per-cell", type=seconds, default=2.5, metavar="N", help="time measured for each row, after warm-up"
    )
    control = shutil.which("nvidia-cuda-mps-control") or "nvidia-cuda-mps-control"
    parser.add_argument("--mps-control", default=control, metavar="PATH", help="the MPS control program")
    parser.add_argument("--fake", action="store_true", help="sleep instead of using a GPU; the result means nothing")
    arguments = parser.parse_args()
    # A kill must end like Ctrl-C does: with tenants and daemon gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        run(arguments)
    except (MeasureError, OSError) as error:
        print(f"pairs.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pairs.py: stopped; the rows measured so far are kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
