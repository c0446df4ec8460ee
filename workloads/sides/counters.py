#!/usr/bin/env python3
"""What launches ask the L2 for, by the GPU's own counters: whether work that keeps to a side touches the other one.

    python3 workloads/sides/counters.py --partywall target/release/partywall --out results/h200/sides/counters.json

One process takes an arena on the first side and its SMs, as the tenant of `partywall vram interfere` does, and Nsight Compute (`ncu`) counts each of
its launches: some that read nothing, some that read 8 MiB, and one that reads 64 MiB nine times. With colors all that they read is on their
side; without, on whichever side it is. Nothing else runs: a launch is counted alone, so waiting does not show, but what is asked for does. Each
group of counters is read in a run of its own: launches that have to be repeated for more counters find other things in the caches, and what took more
than one pass (`passes`) is less sure.

Prints a record as JSON: for each kind of launch the medians of the counters over all slices, and how they are spread over the slices (each median
of the least, the mean and the most). Takes a minute. Exit status: 0 if all was counted, 1 if not."""

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

MIB = 1 << 20
DATA = 64 * MIB
# Each group is counted in as few passes as the GPU's counters allow, of which the record says how many.
GROUPS = (
    ("gpu__time_duration", "lts__t_requests", "lts__t_sectors", "lts__t_sectors_srcunit_tex", "lts__t_sectors_srcunit_ltcfabric"),
    ("lts__t_requests_srcunit_ltcfabric", "lts__t_requests_srcunit_tex"),
    ("lts__t_sectors_srcunit_tex_lookup_hit", "lts__t_sectors_srcunit_tex_lookup_miss"),
    ("lts__t_sectors_srcunit_gcc", "lts__t_requests_srcnode_gpc_aperture_device_op_membar"),
    ("dram__sectors_read", "dram__sectors_write"),
)
VIEWS = ("colored", "uncolored")
# What a launch of a request reads, by how many threads on each SM.
REQUESTS = ((0, (1024, 32)), (8 * MIB, (1024,)))
# The first launches of each kind find cold caches and cold code.
SKIPPED = 4
RUN_S = 120
KERNELS = {"short": "arena_read", "long": "arena_passes"}


class Failed(Exception):
    """What keeps it from going on."""


def kinds(read):
    """The kinds of launches of a process, in their order: what, view and threads."""
    threads = dict(REQUESTS)[read]
    found = [("short", view, count) for view in VIEWS for count in threads]
    return found + ([("long", view, 1024) for view in VIEWS] if read else [])


def conversation(known, read):
    """What the process is told."""
    begin = {
        "device": 0, "known": known, "side": "first", "data": DATA, "request": {"launches": 1, "bytes": read},
        "code_places": 1, "seed": 1, "gentle": False, "pages": "private",
    }
    measure = [{"measure": {"work": work, "view": view, "threads": threads, "count": 1, "code": 0}} for work, view, threads in kinds(read)]
    return "".join(json.dumps(line) + "\n" for line in [{"begin": begin}, *measure])


def counted(ncu, partywall, known, read, group):
    """One run of the process, with one group of counters: the table that Nsight Compute makes of it."""
    metrics = ",".join(f"{name}.sum" for name in group)
    with tempfile.TemporaryDirectory() as folder:
        table = os.path.join(folder, "table.csv")
        command = [
            ncu, "--clock-control", "none", "--cache-control", "none", "--csv", "--page", "raw", "--metrics", metrics,
            "--kernel-name", "regex:" + "|".join(KERNELS.values()), "--log-file", table, partywall, "vram", "neighbour",
        ]
        try:
            done = subprocess.run(command, input=conversation(known, read), capture_output=True, text=True, timeout=RUN_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed(f"{ncu}: {error}") from error
        text = open(table, encoding="utf-8").read() if os.path.exists(table) else ""
        if done.returncode or '"failed"' in done.stdout or "==ERROR==" in text:
            said = (done.stderr.strip() or done.stdout.strip() or text).splitlines()[-3:]
            raise Failed(f"{ncu} with {metrics}: {' / '.join(said)}")
        return text


def rows_of(text):
    """Launches: the kernel's name and what was counted of it."""
    lines = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(lines) < 3:
        raise Failed("nothing was counted")
    names = lines[0]
    found = []
    for line in lines[2:]:
        row = dict(zip(names, line))
        values = {name: float(value.replace(",", "")) for name, value in row.items() if name.startswith(("lts__t", "dram__s", "gpu__t"))}
        found.append((row["Kernel Name"], values | {"passes": int(row["profiler__replayer_passes"])}))
    return found


def by_kind(rows, read):
    """The launches of each kind, without the first ones of requests."""
    # Each kind of request is as many launches as every other.
    wanted = kinds(read)
    short = [values for name, values in rows if name == KERNELS["short"]]
    long = [values for name, values in rows if name == KERNELS["long"]]
    requests = [kind for kind in wanted if kind[0] == "short"]
    each = len(short) // len(requests)
    if each <= SKIPPED or each * len(requests) != len(short) or len(long) != len(wanted) - len(requests):
        raise Failed(f"{len(short)} and {len(long)} launches were counted, which is not so many of each kind")
    found = {kind: short[index * each + SKIPPED : (index + 1) * each] for index, kind in enumerate(requests)}
    return found | {kind: [values] for kind, values in zip([kind for kind in wanted if kind[0] == "long"], long)}


def median(launches, name):
    return statistics.median(values[name] for values in launches)


def record(tables):
    """`tables`: by what a request reads, what was counted of each group."""
    rows = []
    for read, of_groups in tables.items():
        parts = [by_kind(rows_of(text), read) for text in of_groups]
        for work, view, threads in kinds(read):
            row = {"work": work, "view": view, "threads_per_sm": threads, "launch_bytes": read if work == "short" else DATA, "sum": {}, "of_a_slice": {}, "passes": {}}
            for group, part in zip(GROUPS, parts):
                launches = part[work, view, threads]
                row["launches"] = len(launches)
                for name in group:
                    row["sum"][name] = median(launches, f"{name}.sum")
                    row["passes"][name] = launches[0]["passes"]
                    if name.startswith("lts__"):
                        row["of_a_slice"][name] = {key: median(launches, f"{name}.{key}") for key in ("min", "avg", "max")}
            rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partywall", default=shutil.which("partywall") or "target/release/partywall", metavar="PATH")
    parser.add_argument("--ncu", default="ncu", metavar="PROGRAM", help="Nsight Compute")
    parser.add_argument("--out", metavar="FILE", help="for the record; default: it is printed")
    options = parser.parse_args()
    if shutil.which(options.ncu) is None:
        parser.error(f"--ncu: {options.ncu}: no such program; it comes with CUDA")
    try:
        looked = json.loads(subprocess.run([options.partywall, "vram", "known"], check=True, stdout=subprocess.PIPE, text=True).stdout)
        tables = {}
        for read, _ in REQUESTS:
            tables[read] = []
            for number, group in enumerate(GROUPS):
                print(f"counters.py: launches that read {read} bytes, group {number + 1} of {len(GROUPS)}", file=sys.stderr, flush=True)
                tables[read].append(counted(options.ncu, options.partywall, looked["known"], read, group))
        found = {"gpu": looked["gpu"], "simulated": looked["simulated"], "command": "python3 workloads/sides/counters.py", "rows": record(tables)}
    except (Failed, OSError, subprocess.CalledProcessError) as failure:
        print(f"counters.py: {failure}", file=sys.stderr)
        return 1
    text = json.dumps(found, indent=1) + "\n"
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
