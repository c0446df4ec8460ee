"""Processes behind the wall and without it in turns, and the ratio of their times.

All live at once and take short turns, in pairs of one of each kind, one right after the other: whatever drifts (clocks, a
neighbour of the machine) meets both alike. A process keeps its speed for life (where its memory lies, what its address
space looks like); several of each kind and the times of each process show how much that is."""

import json
import queue
import random
import statistics
import subprocess
import threading
import time

# What is timed, how many of it in a round, and what is compared.
KINDS = {"resnet50": (12, ("median_ns", "gpu_ns")), "copy": (100, ("median_ns",)), "launch": (400, ("median_ns",))}
READY_S = 120
ANSWER_S = 60
RESAMPLES = 2000


class TimingError(Exception):
    """Times could not be taken; in words."""


def ratios(rounds, field):
    """For each round and pair the time of the walled process over that of the bare one. A round is {process: answer}."""
    walled = [(answers, name) for answers in rounds for name in answers if name.startswith("walled")]
    return [answers[name][field] / answers[name.replace("walled", "bare")][field] for answers, name in walled]


def bootstrap(values, seed=7, resamples=RESAMPLES):
    """The median, and a 95 % interval for it by resampling the values."""
    chance = random.Random(seed)
    medians = sorted(statistics.median(chance.choices(values, k=len(values))) for _ in range(resamples))
    low, high = medians[int(0.025 * resamples)], medians[min(resamples - 1, int(0.975 * resamples))]
    return {"ratio": statistics.median(values), "low": low, "high": high}


def summary(rounds, fields):
    """Ratios with intervals, and the median of each process over the rounds, in nanoseconds."""
    report = {"rounds": len(rounds)}
    for field in fields:
        by_pair = ratios(rounds, field)
        by_process = {name: statistics.median(answers[name][field] for answers in rounds) for name in sorted(rounds[0])}
        report[field] = bootstrap(by_pair) | {"by_process": by_process, "by_pair": [round(one, 4) for one in by_pair]}
    return report


class Timed:
    """A process of `eager.py`."""

    def __init__(self, name, command, environment, stderr):
        self.name = name
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True, bufsize=1
        )
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def answer(self, seconds):
        try:
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            raise TimingError(f"{self.name} did not answer within {seconds} s") from None
        if line is None:
            raise TimingError(f"{self.name} ended with code {self.process.wait()}")
        return json.loads(line)

    def ask(self, kind, number):
        try:
            self.process.stdin.write(f"{kind} {number}\n")
            self.process.stdin.flush()
        except OSError as error:
            raise TimingError(f"{self.name}: {error}") from None
        return self.answer(ANSWER_S)

    def end(self):
        """Closes its input, which ends it; after ten seconds by force."""
        try:
            self.process.stdin.close()
        except OSError:
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def measure(start, number, rounds, seed, say, limit_s):
    """The record of `--time`. `start(name)` starts a process, behind the wall if its name begins so. Ends early, with what
    there is, when `limit_s` is over."""
    names = [f"{kind}-{index}" for index in range(number) for kind in ("bare", "walled")]
    processes, taken, until = {}, {kind: [] for kind in KINDS}, time.monotonic() + limit_s
    try:
        for name in names:
            processes[name] = start(name)
        for process in processes.values():
            process.answer(READY_S)
        say(f"time: {len(names)} processes are ready")
        chance = random.Random(seed)
        for index in range(rounds):
            if time.monotonic() > until:
                say(f"time: out of time after {index} rounds")
                break
            for kind, (units, _) in KINDS.items():
                pairs = [chance.sample((f"bare-{index}", f"walled-{index}"), 2) for index in chance.sample(range(number), number)]
                order = [name for pair in pairs for name in pair]
                taken[kind].append({name: processes[name].ask(kind, units) for name in order})
            if index % 10 == 9:
                shown = bootstrap(ratios(taken["resnet50"], "median_ns"))
                say(f"time: round {index + 1}: {shown['ratio']:.4f}, {shown['low']:.4f} to {shown['high']:.4f}")
    finally:
        for process in processes.values():
            process.end()
    if not taken["launch"]:
        raise TimingError("no round was finished in time")
    settings = {"processes_of_each": number, "rounds": rounds, "seed": seed}
    settings["units"] = {kind: units for kind, (units, _) in KINDS.items()}
    return settings | {kind: summary(taken[kind], fields) for kind, (_, fields) in KINDS.items()}
