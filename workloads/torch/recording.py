"""What profilers print, as the kernels of one pass; and the file that a recording is. No GPU, no PyTorch here."""

import csv
import json
from collections.abc import Iterable
from difflib import SequenceMatcher
from pathlib import Path

# Enough of a kernel's name to tell what it does; with all template arguments some have thousands of characters.
NAME_MAX = 120
# Of a name without namespaces: what is left of the longest ones once a trace has cut them.
COMPARED = 100
# Samples for a percentile to be shown: ten beyond it.
LEAST_FOR_P50, LEAST_FOR_P99 = 20, 1_000

# Counters of Nsight Compute, by the key that the recording has for them.
COUNTERS = {
    "vram_bytes": ("dram__bytes_read.sum", "dram__bytes_write.sum"),
    "l2_bytes": ("lts__t_bytes.sum",),
    "counted_ns": ("gpu__time_duration.sum",),
}
# Launched before each network that is counted: a kernel that none of them has.
MARKER = "nextafter"


class RecordingError(Exception):
    """Something that was recorded makes no sense, in words."""


def percentile(values: list[int], parts: int) -> int:
    """By nearest rank: the smallest value that at least `parts` per cent of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * parts // 100) - 1)]


def ms(times_ns: list[int], parts: int, least: int) -> float | None:
    return round(percentile(times_ns, parts) / 1e6, 5) if len(times_ns) >= least else None


def kernels_of(events: list[dict], replays: int) -> list[dict]:
    """The kernels of one replay, in order, from the events of a trace of several: medians over the replays.

    `us` is a kernel's duration, `gap_us` the time since the end of the one before it. Copies and fills have no launch
    shape.
    """
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    traced = sorted((event for event in events if event.get("cat") in kinds), key=lambda event: event["ts"])
    if not traced or len(traced) % replays:
        raise RecordingError(f"{len(traced)} kernels were traced in {replays} replays; a multiple is expected")
    count = len(traced) // replays
    passes = [traced[start : start + count] for start in range(0, len(traced), count)]
    kernels = []
    for index, same in enumerate(zip(*passes, strict=True)):
        names = {event["name"] for event in same}
        if len(names) != 1:
            raise RecordingError(f"kernel {index} is not the same in all replays: {', '.join(sorted(names))[:300]}")
        gaps = [one[index]["ts"] - end_of(one[index - 1]) for one in passes] if index else [0]
        arguments = same[0].get("args", {})
        kernels.append(
            {
                "name": names.pop()[:NAME_MAX],
                "us": median(event["dur"] for event in same),
                "gap_us": median(gaps),
                "grid": arguments.get("grid"),
                "block": arguments.get("block"),
                "regs": arguments.get("registers per thread"),
                "smem": arguments.get("shared memory"),
            }
        )
    return kernels


def end_of(event: dict) -> float:
    return event["ts"] + event["dur"]


def median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return round(ordered[(len(ordered) - 1) // 2], 3)


def counted_kernels(text: str) -> list[dict]:
    """The rows of Nsight Compute's CSV, one per launch: its `name` and the keys of `COUNTERS`.

    With `--page raw` it writes a column per counter and a second header with units, else a row per counter.
    """
    lines = text.splitlines()
    header = next((index for index, line in enumerate(lines) if line.startswith('"ID",')), None)
    if header is None:
        raise RecordingError("no table of counters")
    rows = [row for row in csv.DictReader(lines[header:]) if (row.get("ID") or "").isdigit()]
    if rows and "Metric Name" in rows[0]:
        rows = joined(rows)
    counted = []
    for row in rows:
        one = {"name": row["Kernel Name"]}
        for key, columns in COUNTERS.items():
            values = [as_number(row.get(column)) for column in columns]
            one[key] = None if None in values else round(sum(values))
        counted.append(one)
    return counted


def joined(rows: list[dict]) -> list[dict]:
    """A row per launch from rows per counter."""
    launches: dict[str, dict] = {}
    for row in rows:
        launch = launches.setdefault(row["ID"], {"Kernel Name": row["Kernel Name"]})
        launch[row["Metric Name"]] = row["Metric Value"]
    return list(launches.values())


def as_number(text: str | None) -> float | None:
    """`1,234.5` as it stands in the table; None for `n/a` and what is not there."""
    try:
        return float((text or "").replace(",", ""))
    except ValueError:
        return None


def at_markers(counted: list[dict]) -> list[list[dict]]:
    """The launches after each marker, which are those of one network."""
    parts: list[list[dict]] = []
    for one in counted:
        if MARKER in one["name"]:
            parts.append([])
        elif parts:
            parts[-1].append(one)
    return parts


def base(name: str) -> str:
    """A kernel's name without what two tools write in different ways: return type, namespaces (Nsight Compute leaves some
    out), template and call arguments, and what the trace cuts off."""
    # Names such as (anonymous namespace)::f would be cut at what follows.
    name = name.replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous")
    return name.split("<")[0].split("(")[0].strip().split(" ")[-1].split("::")[-1][:COMPARED]


def with_counts(kernels: list[dict], counted: list[dict]) -> int:
    """Gives each traced kernel the counts of its launch, by order and name, and None where there is no launch for it.
    Returns how many found theirs."""
    for kernel in kernels:
        kernel.update(dict.fromkeys(COUNTERS))
    # A table does not list copies and fills.
    launched = [kernel for kernel in kernels if kernel["grid"]]
    names = [base(kernel["name"]) for kernel in launched], [base(one["name"]) for one in counted]
    found = 0
    for first, second, size in SequenceMatcher(None, *names, autojunk=False).get_matching_blocks():
        for kernel, one in zip(launched[first : first + size], counted[second : second + size], strict=True):
            kernel.update({key: one[key] for key in COUNTERS})
            found += 1
    return found


class Recording:
    """The file of one network at one batch: what `cargo xtask profiles` reads."""

    def __init__(self, folder: Path, model: str, batch: int):
        self.model, self.batch = model, batch
        self.path = folder / f"{model}-b{batch}.json"
        self.about: dict[str, str] = {}
        self.network: dict = {"model": model, "batch": batch, "precision": "fp16"}
        if self.path.exists():
            self._read()

    def __str__(self) -> str:
        return f"{self.model}-b{self.batch}"

    def _read(self) -> None:
        try:
            content = json.loads(self.path.read_text())
            self.about, [self.network] = content["about"], content["networks"]
            same = (self.network["model"], self.network["batch"]) == (self.model, self.batch)
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{self.path}: no recording of a network: {error}") from None
        if not same:
            raise RecordingError(f"{self.path}: of another network than its name says")

    def write(self) -> None:
        """At once or not at all: an interrupted run leaves no half file."""
        network = self.network
        kernels = ",\n".join(json.dumps(kernel) for kernel in network.get("kernels", []))
        rest = json.dumps({key: value for key, value in network.items() if key != "kernels"})
        if kernels:
            rest = f'{rest[:-1]}, "kernels": [\n{kernels}\n]}}'
        text = f'{{\n"about": {json.dumps(self.about)},\n"networks": [{rest}]\n}}\n'
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.path)

    def has(self, phase: str, sms: int | None = None) -> bool:
        if phase == "scaling":
            return any(point["sms"] == sms for point in self.network.get("scaling", []))
        if phase == "bytes":
            launched = [kernel for kernel in self.network.get("kernels", []) if kernel.get("grid")]
            return bool(launched) and all(kernel.get("vram_bytes") is not None for kernel in launched)
        return {"solo": "graph_p50_ms", "trace": "kernels"}[phase] in self.network

    def add_scaling(self, point: dict) -> None:
        points = [known for known in self.network.get("scaling", []) if known["sms"] != point["sms"]]
        self.network["scaling"] = sorted([*points, point], key=lambda known: -known["sms"])
