"""When the requests of a run are due, and the loop that serves them."""

import math
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

# Below this, waiting is done by looking at the clock: a sleep of the operating system ends 50 us late and more.
SPIN_NS = 1_000_000
DEPTH_MAX = 1024
GAP_MIN_NS, GAP_MAX_NS = 1_000, 60_000_000_000
REQUESTS_MAX = 1_000_000


class LoadError(Exception):
    """A load that cannot be served."""


def number(content: dict, kind: str, key: str, least: float, most: float):
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
        raise LoadError(f"{kind}: {key} is {value!r}; a number from {least:g} to {most:g} is expected")
    return value


def whole(content: dict, kind: str, key: str, least: int, most: int) -> int:
    value = number(content, kind, key, least, most)
    if value != int(value):
        raise LoadError(f"{kind}: {key} is {value!r}; a whole number is expected")
    return int(value)


class Closed:
    """The next request follows the one before it after a pause."""

    is_open = False

    def __init__(self, content: dict):
        self.pause_ns = whole(content, "closed", "pause_ns", 0, GAP_MAX_NS)
        self.depth = whole(content, "closed", "depth", 1, DEPTH_MAX)

    def start(self, begin_ns: int) -> int:
        return begin_ns

    def next(self, ended_ns: int) -> int:
        return ended_ns + self.pause_ns


class Periodic:
    """Request k is due at begin + k x period, whatever became of those before it."""

    is_open, depth = True, 1

    def __init__(self, content: dict):
        self.period_ns = whole(content, "periodic", "period_ns", GAP_MIN_NS, GAP_MAX_NS)

    def start(self, begin_ns: int) -> int:
        self._due = begin_ns
        return begin_ns

    def next(self, _ended_ns: int) -> int:
        self._due += self.period_ns
        return self._due


class Poisson:
    """Exponential gaps, the first before the first request; the same seed gives the same arrivals."""

    is_open, depth = True, 1

    def __init__(self, content: dict):
        self.rate_per_s = number(content, "poisson", "rate_per_s", 1e9 / GAP_MAX_NS, 1e9 / GAP_MIN_NS)
        self._chance = random.Random(whole(content, "poisson", "seed", 0, (1 << 64) - 1))

    def start(self, begin_ns: int) -> int:
        # Kept with its fraction, so that rounding does not add up.
        self._begin, self._after = begin_ns, 0.0
        return self.next(begin_ns)

    def next(self, _ended_ns: int) -> int:
        self._after += -math.log(1.0 - self._chance.random()) * 1e9 / self.rate_per_s
        return self._begin + round(self._after)


KINDS = {"closed": Closed, "periodic": Periodic, "poisson": Poisson}


def parse(load) -> Closed | Periodic | Poisson:
    """A load as the protocol writes it: `{"closed": {"pause_ns": 0, "depth": 1}}`."""
    if not isinstance(load, dict) or len(load) != 1 or next(iter(load)) not in KINDS:
        raise LoadError(f"load is {load!r}; one of {', '.join(KINDS)} is expected")
    [(kind, content)] = load.items()
    if not isinstance(content, dict):
        raise LoadError(f"{kind}: its content is {content!r}; an object is expected")
    return KINDS[kind](content)


@dataclass
class Run:
    """What a tenant is told to do."""

    run: int
    load: Closed | Periodic | Poisson
    begin_ns: int
    requests_max: int

    @classmethod
    def parse(cls, content: dict) -> "Run":
        number_of_run = whole(content, "run", "run", 0, (1 << 64) - 1)
        begin_ns = whole(content, "run", "begin", 0, (1 << 63) - 1)
        requests_max = whole(content, "run", "requests_max", 0, REQUESTS_MAX)
        return cls(number_of_run, parse(content.get("load")), begin_ns, requests_max)


@dataclass
class Served:
    """What was done in a run. Times in ns."""

    # Scheduled, start and end of one request after the other: bounded by the run's `requests_max`.
    times_ns: array = field(default_factory=lambda: array("q"))
    # From the return of a wait to the next submission.
    gaps_ns: array = field(default_factory=lambda: array("q"))

    @property
    def requests(self) -> int:
        return len(self.times_ns) // 3

    def gap_ns(self) -> int | None:
        ordered = sorted(self.gaps_ns)
        return ordered[(len(ordered) - 1) // 2] if ordered else None


def serve(program, run: Run, told_to_end: Callable[[int], bool], now: Callable[[], int]) -> Served:
    """Serves requests until told to end, or `requests_max` were served.

    `told_to_end(ms)` looks whether the run is to end, and waits for that for at most so many milliseconds.
    """
    served = Served()
    queue, wait, depth = program.queue, program.wait, run.load.depth
    due = run.load.start(run.begin_ns)
    last_end = None
    ended = False
    while served.requests < run.requests_max and not ended and until(due, told_to_end, now):
        start = now()
        for _ in range(depth):
            queue()
        # While the GPU is busy. Between a wait and the next submission it would lengthen the host's gap, and behind
        # MPS that is when the neighbour gets on.
        ended = told_to_end(0)
        wait()
        end = now()
        served.times_ns.extend((due if run.load.is_open else start, start, end))
        if last_end is not None:
            served.gaps_ns.append(start - last_end)
        last_end = end
        due = run.load.next(end)
    return served


def until(due: int, told_to_end: Callable[[int], bool], now: Callable[[], int]) -> bool:
    """Waits until `due`; False when told to end before that."""
    while (left := due - now()) > 0:
        if told_to_end(max(0, (left - SPIN_NS) // 1_000_000)):
            return False
    return True
