#!/usr/bin/env python3
"""Copies of several tenants at once, with and without Partywall: how long small ones take, what large ones keep, and
whether weights hold. Tenants are Partywall's own (`partywall tenant`), each in a process of its own, and speak the line
protocol (docs/tenants.md). Needs nothing but Python 3.9 and a `partywall` that sees a GPU; a simulated one will do:

    python3 workloads/copies/measure.py --partywall target/release/partywall --out copies.json
    python3 workloads/copies/measure.py --gpu sim:h200 --seconds 3 --cells ls64k --out copies.json

Behind MPS it starts a daemon of its own in a private folder and ends it. It changes no setting of the GPU."""

import argparse
import contextlib
import datetime
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

LS_SIZES = {"ls64k": "64KiB", "ls1m": "1MiB", "ls8m": "8MiB"}
BYTES = {"64KiB": 1 << 16, "1MiB": 1 << 20, "8MiB": 1 << 23, "512MiB": 1 << 29}
BE_SIZE = "512MiB"
WEIGHTS = (1, 2, 4)
# A host that has been idle for a while is slow at first: percentiles by how long it was, in ms.
GAPS_MS = (0, 1, 4, 16)
# What a p99 needs behind it; see DESIGN of the project: a percentile without enough samples is null.
P99_SAMPLES = 5000
P50_SAMPLES = 20
READY_S = 180
ANSWER_S = 60
WARMUP_S = 0.5


class Tenant:
    """A process that speaks the line protocol."""

    def __init__(self, name, command, environment, size, load):
        self.name, self.size, self.load = name, size, load
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        about = self.expect("ready", READY_S)[1].get("about", {})
        # Which GPU of its kind it was is nobody's business.
        self.about = {key: value for key, value in about.items() if key != "gpu_uuid"}

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def expect(self, kind, seconds):
        """The requests before a message of a kind, and the message."""
        requests, until = [], time.monotonic() + seconds
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise SystemExit(f"{self.name} did not say `{kind}` within {seconds} s") from None
            if line is None:
                raise SystemExit(f"{self.name} ended with code {self.process.wait()} before it said `{kind}`")
            message = json.loads(line)
            if "failed" in message:
                raise SystemExit(f"{self.name}: {message['failed']['message']}")
            if "request" in message:
                requests.append(message["request"])
            elif kind in message:
                return requests, message[kind]

    def tell(self, **message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def begin(self, begin_ns):
        self.tell(run={"run": 1, "load": self.load, "begin": begin_ns, "requests_max": 1_000_000})

    def end(self):
        """Its requests, which it has checked."""
        self.tell(stop={"run": 1})
        requests, done = self.expect("done", ANSWER_S)
        if done.get("check", "ok") != "ok":
            raise SystemExit(f"{self.name} has wrong results: {done['check']}")
        self.tell(exit={})
        self.process.stdin.close()
        self.process.wait(ANSWER_S)
        return requests


def quantile(ordered, share, needed):
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000 if len(ordered) >= needed else None


def by_gap(requests):
    """Service times in microseconds by the time since the request before."""
    found = {f"from {gap} ms": [] for gap in GAPS_MS}
    for before, request in zip(requests, requests[1:]):
        gap = max(one for one in GAPS_MS if one * 1e6 <= max(0, request["start"] - before["end"]))
        found[f"from {gap} ms"].append(request["end"] - request["start"])
    shown = {}
    for gap, times in found.items():
        times.sort()
        shown[gap] = {"requests": len(times), "p50_us": quantile(times, 0.5, P50_SAMPLES), "p99_us_shown": quantile(times, 0.99, 100)}
    return shown


def summary(tenant, requests, begin, end):
    """Of what happened within a window: service times in microseconds and the rate."""
    moved = 0.0
    for request in requests:
        overlap = min(request["end"], end) - max(request["start"], begin)
        if overlap > 0:
            moved += BYTES[tenant.size] * overlap / max(1, request["end"] - request["start"])
    inside = [request for request in requests if request["start"] >= begin and request["end"] <= end]
    times = sorted(request["end"] - request["start"] for request in inside)
    return {
        "size": tenant.size,
        "load": tenant.load,
        "requests": len(times),
        "service_p50_us": quantile(times, 0.50, P50_SAMPLES),
        "service_p90_us": quantile(times, 0.90, 100),
        "service_p99_us": quantile(times, 0.99, P99_SAMPLES),
        "service_p99_us_shown": quantile(times, 0.99, 100),
        "service_max_us": times[-1] / 1000 if times else None,
        "by_gap": by_gap(inside) if tenant.load.get("poisson") else None,
        "gb_per_s": moved / (end - begin),
        "about": tenant.about,
    }


class Bench:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="partywall-copies-")
        self.finished = False

    def program(self, *arguments):
        gpu = ["--gpu", self.options.gpu] if self.options.gpu else []
        return [self.options.partywall, *gpu, *arguments]

    @contextlib.contextmanager
    def wall(self, wall):
        """The environment of tenants behind a wall."""
        environment = dict(os.environ)
        pipes = os.path.join(self.folder, f"mps-{random.getrandbits(32):x}")
        os.makedirs(pipes)
        # An empty folder where MPS is not wanted: the machine's own daemon must not be met by accident.
        environment["CUDA_MPS_PIPE_DIRECTORY"] = environment["CUDA_MPS_LOG_DIRECTORY"] = pipes
        if wall == "mps":
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
        try:
            yield environment
        finally:
            if wall == "mps":
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, check=False)

    @contextlib.contextmanager
    def node(self, environment):
        """A node for the tenants of a cell; its folder."""
        folder = os.path.join(self.folder, f"node-{random.getrandbits(32):x}")
        command = self.program("node", "--dir", folder, *self.options.node_option)
        node = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        try:
            if not node.stdout.readline():
                raise SystemExit("the node did not start")
            yield folder
        finally:
            node.terminate()
            node.wait(ANSWER_S)

    def command(self, node, name, class_, weight, size):
        builtin = "copy-h2d" if class_ == "ls" else "copies-h2d"
        awake = ",awake" if class_ == "ls" and self.options.awake else ""
        tenant = self.program("tenant", f"{builtin},size={size}{awake}")
        if node is None:
            return tenant
        run = ["run", "--dir", node, "--name", name, "--class", class_]
        return self.program(*run, *(["--pcie-weight", str(weight)] if weight else []), "--", *tenant)

    def cell(self, label, wall, with_partywall, who, seconds):
        """Tenants beside each other: their names, classes, weights, sizes."""
        with contextlib.ExitStack() as stack:
            environment = stack.enter_context(self.wall(wall))
            node = stack.enter_context(self.node(environment)) if with_partywall else None
            tenants = []
            for index, (name, class_, weight, size) in enumerate(who):
                poisson = {"poisson": {"rate_per_s": self.options.rate, "seed": 1 + index}}
                load = poisson if class_ == "ls" else {"closed": {"pause_ns": 0, "depth": 1}}
                tenants.append(Tenant(name, self.command(node, name, class_, weight, size), environment, size, load))
            begin = time.monotonic_ns() + 100_000_000
            for tenant in tenants:
                tenant.begin(begin)
            begin += int(WARMUP_S * 1e9)
            end = begin + int(seconds * 1e9)
            time.sleep(max(0, end - time.monotonic_ns()) / 1e9)
            kept = [(tenant, tenant.end()) for tenant in tenants]
        cell = {"cell": label, "wall": wall, "partywall": with_partywall}
        cell["tenants"] = {tenant.name: summary(tenant, requests, begin, end) for tenant, requests in kept}
        for name, one in cell["tenants"].items():
            shown = {key: one[key] for key in ("requests", "service_p50_us", "service_p99_us_shown", "gb_per_s")}
            print(label, wall, "partywall" if with_partywall else "without", name, shown, file=sys.stderr)
        return cell

    def cells(self):
        chosen, long = self.options.cells or [*LS_SIZES, "weights"], self.options.seconds
        # Where no p99 is wanted.
        short = min(long, self.options.short)
        be = ("be", "be", None, BE_SIZE)
        yield self.cell("solo-be", "exclusive", False, [be], short)
        for label in (label for label in chosen if label in LS_SIZES):
            ls = ("ls", "ls", None, LS_SIZES[label])
            yield self.cell(f"solo-{label}", "exclusive", False, [ls], long)
            for wall in self.options.walls:
                yield self.cell(label, wall, False, [ls, be], long if label == "ls64k" else short)
                yield self.cell(label, wall, True, [ls, be], long)
                yield self.cell(f"alone-{label}", wall, True, [ls], short)
        if "weights" in chosen:
            who = [(f"weight-{weight}", "be", weight, BE_SIZE) for weight in WEIGHTS]
            for wall in self.options.walls:
                cell = self.cell("weights", wall, True, who, short)
                cell["weights_error"] = weights_error(cell)
                yield cell


def summarised(cells):
    """What the cells say next to each other, per wall, and the worst over the walls."""
    rates = {cell["cell"]: cell["tenants"]["be"]["gb_per_s"] for cell in cells if cell["cell"] == "solo-be"}
    solo = {cell["cell"]: cell["tenants"]["ls"] for cell in cells if cell["cell"].startswith("solo-ls")}
    rows = []
    for label in LS_SIZES:
        for with_it in (cell for cell in cells if cell["cell"] == label and cell["partywall"]):
            without = next(c for c in cells if (c["cell"], c["wall"], c["partywall"]) == (label, with_it["wall"], False))
            row = {"cell": label, "wall": with_it["wall"]}
            for name, cell in (("", with_it), ("_without", without)):
                ls, be = cell["tenants"]["ls"], cell["tenants"]["be"]
                row |= {f"p50_us{name}": ls["service_p50_us"], f"p99_us{name}": ls["service_p99_us"]}
                row[f"be_kept{name}"] = be["gb_per_s"] / rates["solo-be"]
            row |= {"p50_us_solo": solo[f"solo-{label}"]["service_p50_us"], "p99_us_solo": solo[f"solo-{label}"]["service_p99_us"]}
            if row["p99_us"] and row["p99_us_solo"]:
                row["slowdown_p99"] = row["p99_us"] / row["p99_us_solo"]
            rows.append(row)
    worst = {}
    for key, pick in (("p50_us", max), ("p99_us", max), ("p99_us_without", max), ("slowdown_p99", max), ("be_kept", min)):
        for label in LS_SIZES:
            found = [row[key] for row in rows if row["cell"] == label and row.get(key) is not None]
            if found:
                worst[f"{label}_{key}"] = pick(found)
    errors = [cell["weights_error"] for cell in cells if "weights_error" in cell]
    return {"rows": rows, "worst": worst | ({"weights_error": max(errors)} if errors else {})}


def weights_error(cell):
    """The largest relative difference between a tenant's share of the rate and its share of the weights."""
    rates = [cell["tenants"][f"weight-{weight}"]["gb_per_s"] for weight in WEIGHTS]
    shares = [weight / sum(WEIGHTS) for weight in WEIGHTS]
    return max(abs(rate / sum(rates) / share - 1) for rate, share in zip(rates, shares))


def said(*command):
    """The first line that a command prints, if it can be run."""
    try:
        answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(answer.stdout.splitlines()), None)


def version(partywall):
    return said(partywall, "--version")


def machine():
    """The GPU and its driver as nvidia-smi names them; None without it."""
    line = said("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = (line or "").partition(", ")
    return {"gpu_name": name or None, "driver": driver or None}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partywall", default=shutil.which("partywall") or "target/debug/partywall")
    parser.add_argument("--gpu", help="as of partywall: sim:h200; default: the first GPU")
    parser.add_argument("--seconds", type=float, default=26.0, help="of each cell; 26 give 5 000 requests at 200/s")
    parser.add_argument("--short", type=float, default=4.0, help="seconds of cells of which only rates and medians count")
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second of latency-sensitive tenants")
    parser.add_argument("--awake", action="store_true", help="latency-sensitive tenants look at the clock all the time")
    parser.add_argument("--walls", nargs="+", default=["time-slicing", "mps"], choices=["time-slicing", "mps"])
    parser.add_argument("--cells", nargs="+", choices=[*LS_SIZES, "weights"], help="default: all")
    parser.add_argument("--node-option", action="append", default=[], help="passed to `partywall node`, for sweeps")
    parser.add_argument("--out", help="JSON; default: standard output")
    options = parser.parse_args()
    bench, cells = Bench(options), []
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    try:
        for cell in bench.cells():
            cells.append(cell)
        bench.finished = True
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
        record = {"schema": 1, "started": started, "partywall": version(options.partywall), **machine(), "awake": options.awake, "seconds": options.seconds, "short": options.short, "rate_per_s": options.rate, "gpu": options.gpu}
        record |= {"node_options": options.node_option, "cells": cells}
        record["summary"] = summarised(cells) if bench.finished else None
        record |= {name.lower(): value for name, value in os.environ.items() if name.startswith("PARTYWALL_COPY_")}
        text = json.dumps(record, indent=1)
        if options.out:
            with open(options.out, "w", encoding="utf-8") as file:
                file.write(text + "\n")
        else:
            print(text)


if __name__ == "__main__":
    main()
