#!/usr/bin/env python3
"""What it is worth to give a neighbour the SMs of one side of the chip, with everybody's data anywhere.

    python3 workloads/checks/side_sets.py --partywall target/release/partywall --sms 48,40 --out side-sets.json

A large Hopper has two halves of L2, and each SM is nearer to one. `partywall vram map` finds which. Then a latency-sensitive PyTorch
program (by default ResNet-50 as a CUDA graph) runs alone, alone under MPS, and beside a neighbour (by default bf16 matrix products) that has
some SMs: the first ones, as many of one side, or as many of both sides alternately. The program itself has all SMs, or the others. Prints a
line each, and a record as JSON.

Starts an MPS daemon of its own in a temporary folder and ends it. Needs PyTorch. Exit status: 0 if all was measured, 1 otherwise."""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = os.path.join(os.path.dirname(HERE), "torch")
sys.path.insert(0, TORCH)

from gpu import GROUPS_VARIABLE  # noqa: E402

TENANT = os.path.join(TORCH, "tenant.py")
LIMIT_S = 120
PAUSE_NS = 2_000_000


class Failed(Exception):
    """What keeps it from going on."""


def sides(partywall):
    """The side of each smallest group of SMs."""
    words = [partywall, "vram", "map", "--memory", "1GiB", "--json"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    if found.returncode:
        raise Failed(found.stderr.strip()[-2000:])
    return sides_in(json.loads(found.stdout))


def sides_in(report):
    groups = (report.get("sides") or {}).get("groups") or ""
    if len(set(groups)) != 2:
        raise Failed("this GPU has one side, as far as `partywall vram map` can tell")
    return [int(side) for side in groups]


def chosen(sides_of, how, groups):
    """The groups of the neighbour and all others."""
    first = [i for i, side in enumerate(sides_of) if side == 0]
    second = [i for i, side in enumerate(sides_of) if side == 1]
    if how == "one side":
        if len(second) < groups:
            raise Failed(f"{groups} groups are more than one side has, {len(second)}")
        mine = second[:groups]
    elif how == "both sides":
        mine = first[: groups // 2] + second[: groups - groups // 2]
    else:
        mine = list(range(groups))
    return sorted(mine), [i for i in range(len(sides_of)) if i not in set(mine)]


class Tenant:
    """A program that speaks the line protocol."""

    def __init__(self, words, env, groups=None):
        env = dict(os.environ, **env)
        if groups is not None:
            env[GROUPS_VARIABLE] = ",".join(map(str, groups))
        self.process = subprocess.Popen(
            [sys.executable, TENANT, *words], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()
        self.number = 0

    def read(self):
        for line in self.process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put({"failed": {"message": "it has ended"}})

    def next(self):
        try:
            message = self.lines.get(timeout=LIMIT_S)
        except queue.Empty:
            raise Failed("a tenant does not answer") from None
        if "failed" in message:
            raise Failed(message["failed"]["message"])
        return message

    def ready(self):
        while "ready" not in self.next():
            pass

    def tell(self, **message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def begin(self, pause_ns, depth):
        self.number += 1
        load = {"closed": {"pause_ns": pause_ns, "depth": depth}}
        self.tell(run={"run": self.number, "load": load, "begin": time.monotonic_ns(), "requests_max": 1_000_000})

    def end(self):
        """The times of all requests since the beginning, in nanoseconds."""
        self.tell(stop={"run": self.number})
        requests = []
        while True:
            message = self.next()
            if "request" in message:
                requests.append((message["request"]["start"], message["request"]["end"]))
            elif "done" in message:
                if message["done"]["check"] != "ok":
                    raise Failed(f"wrong results: {message['done']['check']}")
                return requests

    def close(self):
        with contextlib.suppress(OSError):
            self.tell(exit={})
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def measure(ls, be, seconds, depth):
    """Quantiles of the requests in ms, and the neighbour's requests a second, both within the time that they have in common."""
    if be:
        be.begin(0, depth)
        time.sleep(0.5)
    begin = time.monotonic_ns() + 300_000_000
    ls.begin(PAUSE_NS, 1)
    time.sleep(seconds + 0.3)
    end = time.monotonic_ns()
    times = sorted((e - s) / 1e6 for s, e in ls.end() if s >= begin)
    row = {"requests": len(times), "p50_ms": times[len(times) // 2], "p99_ms": times[len(times) * 99 // 100]}
    if be:
        inside = [1 for _, e in be.end() if begin <= e <= end]
        row["be_per_s"] = len(inside) * depth / ((end - begin) / 1e9)
    return row


@contextlib.contextmanager
def daemon():
    """The environment of clients of an MPS daemon that ends with this."""
    with tempfile.TemporaryDirectory(prefix="side-sets-") as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in env.values():
            os.mkdir(path)
        control = ["nvidia-cuda-mps-control"]
        subprocess.run([*control, "-d"], env=dict(os.environ, **env), check=True, timeout=30)
        try:
            yield env
        finally:
            subprocess.run(control, env=dict(os.environ, **env), input="quit -t 5\n", text=True, timeout=60)
            time.sleep(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sms", default="48,40", help="SMs of the neighbour, one run each")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--ls", default="network resnet50 --batch 1", help="words behind tenant.py")
    parser.add_argument("--be", default="gemm", help="words behind tenant.py")
    parser.add_argument("--depth", type=int, default=2, help="units that the neighbour has queued")
    parser.add_argument("--out", help="file for the record")
    parser.add_argument("--partywall", default="partywall", help="the program")
    asked = parser.parse_args()
    sides_of = sides(asked.partywall)
    print("sides of groups", "".join(map(str, sides_of)), flush=True)
    record = {"sides": sides_of, "rows": []}

    def add(name, row, alone):
        row = {"name": name, **row}
        row["slowdown_p50"], row["slowdown_p99"] = (row[k] / alone[k] for k in ("p50_ms", "p99_ms"))
        record["rows"].append(row)
        kept = f", kept {row['be_per_s'] / be_alone['be_per_s']:.3f}" if "be_per_s" in row else ""
        print(f"{name}: p50 {row['slowdown_p50']:.3f} p99 {row['slowdown_p99']:.3f}{kept}", flush=True)

    ls_words, be_words = asked.ls.split(), asked.be.split()
    with contextlib.ExitStack() as stack:
        ls, be = Tenant(ls_words, {}), Tenant(be_words, {})
        for tenant in (ls, be):
            stack.callback(tenant.close)
            tenant.ready()
        alone = measure(ls, None, asked.seconds, 1)
        be.begin(0, asked.depth)
        time.sleep(1)
        begin = time.monotonic_ns()
        time.sleep(asked.seconds / 2)
        end = time.monotonic_ns()
        rate = sum(begin <= e <= end for _, e in be.end()) * asked.depth / ((end - begin) / 1e9)
        be_alone = {"be_per_s": rate}
    add("alone", alone, alone)
    with daemon() as env:
        with contextlib.ExitStack() as stack:
            ls = Tenant(ls_words, env)
            stack.callback(ls.close)
            ls.ready()
            add("alone, MPS", measure(ls, None, asked.seconds, 1), alone)
            for sms in map(int, asked.sms.split(",")):
                for how in ("first ones", "one side", "both sides"):
                    mine, _ = chosen(sides_of, how, sms // 2)
                    be = Tenant(be_words, {**env, "CUDA_MPS_CLIENT_PRIORITY": "1"}, mine)
                    stack.callback(be.close)
                    be.ready()
                    add(f"beside {sms} SMs, {how}", measure(ls, be, asked.seconds, asked.depth), alone)
                    be.close()
        sms = int(asked.sms.split(",")[0])
        for how in ("first ones", "one side"):
            mine, others = chosen(sides_of, how, sms // 2)
            if how == "one side":
                others = [i for i, side in enumerate(sides_of) if side == 0]
            with contextlib.ExitStack() as stack:
                ls = Tenant(ls_words, env, others)
                be = Tenant(be_words, {**env, "CUDA_MPS_CLIENT_PRIORITY": "1"}, mine)
                for tenant in (ls, be):
                    stack.callback(tenant.close)
                    tenant.ready()
                add(f"on {2 * len(others)} SMs, alone, {how}", measure(ls, None, asked.seconds, 1), alone)
                name = f"on {2 * len(others)} SMs, beside {sms} SMs, {how}"
                add(name, measure(ls, be, asked.seconds, asked.depth), alone)
    if asked.out:
        with open(asked.out, "w") as file:
            json.dump(record, file, indent=1)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failed:
        sys.exit(f"side_sets.py: {failed}")
