#!/usr/bin/env python3
"""Unmodified programs under `partywall run` against the same without: results, kernels, memory, coverage, and time.

    python3 workloads/programs/measure.py --partywall target/release/partywall --out programs.json
    python3 workloads/programs/measure.py --time --only torch-eager --out programs.json
    python3 workloads/programs/measure.py --fake

Each program runs alone and as a tenant, each with and without its kernels counted, and once more as a tenant that takes
memory until there is no more. Exit status: 0 if everything is as it should be, 1 if not (the table says what)."""

import argparse
import concurrent.futures
import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import observe
import programs
import timing

HERE = os.path.dirname(os.path.abspath(__file__))
RUNS = ("bare", "bare-kernels", "walled", "walled-kernels", "walled-quota")
RUN_S = 120
LIMIT_S = 420
NODE_S = 30
STDERR_LINES = 20
LINE_MAX = 400
FAKE_GPU = "141GiB"
VERDICTS = ("ran", "same_results", "same_kernels", "sees_quota", "quota_exact", "covered")


def say(text, begin=time.monotonic()):
    print(f"{time.monotonic() - begin:6.1f} s  {text}", file=sys.stderr, flush=True)


def without_paths(line):
    """A line of a program's complaints, with files but without the folders they are in."""
    return re.sub(r"(?<![\w:/])/(?:[^\s/'\":]+/)+", "", line.rstrip())[:LINE_MAX]


def last_lines(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return [without_paths(line) for line in file.readlines()[-STDERR_LINES:]]


def parse_coverage(text):
    """A coverage file as counts by treatment, and names where they matter. Processes add a table each."""
    names, processes = {}, 0
    for line in text.splitlines():
        treatment, tab, name = line.partition("\t")
        if tab:
            names.setdefault(treatment, set()).add(name)
        elif line.startswith("#"):
            processes += 1
    report = {"processes": processes, "counts": {treatment: len(found) for treatment, found in sorted(names.items())}}
    report |= {treatment: sorted(names.get(treatment, ())) for treatment in ("unknown", "refused")}
    return report | {"names": {treatment: sorted(found) for treatment, found in sorted(names.items())}}


def line_of(run):
    """A run's JSON line, if it came to one."""
    return (run or {}).get("line")


def saw_it_filled(observed, pieces_bytes, quota_bytes):
    """Whether who looked saw at least what the program had got, else it would not have seen more either, and no more than the quota."""
    most = [observed[name] for name in ("nvml_max_bytes", "node_max_bytes") if observed[name] is not None] if observed else []
    return all(pieces_bytes <= one <= quota_bytes for one in most)


def verdicts_of(runs, quota_bytes, piece_bytes, uses_gpu=True):
    """What holds of a program's runs; None where there is nothing to judge by. Tenants that use the GPU owe a coverage table."""
    lines = {name: line_of(runs.get(name)) for name in RUNS}
    found = dict.fromkeys(VERDICTS)
    found["ran"] = all(lines.values())
    if lines["bare"] and lines["walled"]:
        found["same_results"] = len({line["digest"] for line in lines.values() if line}) == 1
    if lines["bare-kernels"] and lines["walled-kernels"]:
        bare, walled = (lines[name]["kernels"] for name in ("bare-kernels", "walled-kernels"))
        same_names = "by_name" not in bare or "by_name" not in walled or bare["by_name"] == walled["by_name"]
        found["same_kernels"] = bare["total"] == walled["total"] and bare["total"] > 0 and same_names
    if lines["walled"]:
        found["sees_quota"] = lines["walled"]["memory"]["total_bytes"] == quota_bytes
    if lines["walled-quota"]:
        filled = lines["walled-quota"]["quota"]
        exact = 0 <= filled["free_after_bytes"] < piece_bytes and filled["total_bytes"] == quota_bytes
        seen = not uses_gpu or saw_it_filled(runs["walled-quota"].get("observed"), filled["pieces"] * piece_bytes, quota_bytes)
        found["quota_exact"] = exact and filled["pieces"] > 0 and filled["works_after"] and seen
    tables = [runs[name]["coverage"] for name in RUNS if (runs.get(name) or {}).get("coverage")]
    if tables or (uses_gpu and lines["walled"]):
        found["covered"] = bool(tables) and not any(table["unknown"] for table in tables)
    return found


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.nvml = observe.Nvml()
        self.observer = None
        self.live, self.until = set(), time.monotonic() + options.limit
        self.through_partywall = not options.fake or options.gpu
        # The machine's own MPS daemon must not be met by accident.
        empty = os.path.join(folder, "no-mps")
        os.makedirs(empty)
        self.environment = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": empty, "CUDA_MPS_LOG_DIRECTORY": empty}
        self.environment |= {"PARTYWALL_DIR": self.node_folder, "PYTHONUNBUFFERED": "1"}

    @property
    def node_folder(self):
        return os.path.join(self.folder, "node")

    def partywall(self, *arguments):
        gpu = ["--gpu", self.options.gpu] if self.options.gpu else []
        return [self.options.partywall, *gpu, *arguments]

    @contextlib.contextmanager
    def node(self):
        """A node of our own, watched."""
        if not self.through_partywall:
            yield
            return
        log = os.path.join(self.folder, "node.err")
        with open(log, "w", encoding="utf-8") as stderr:
            command = self.partywall("node", "--dir", self.node_folder)
            node = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        try:
            # It says one line when it is ready, and ends if it cannot be.
            if not node.stdout.readline():
                raise SystemExit("measure.py: the node did not start: " + " ".join(last_lines(log)))
            with open(os.path.join(self.node_folder, "http"), encoding="ascii") as file:
                self.observer = observe.Observer(file.read().strip(), self.nvml)
            yield
        finally:
            if self.observer:
                self.observer.close()
            node.terminate()
            try:
                node.wait(NODE_S)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()
            for line in last_lines(log):
                say(f"node: {line}")

    def walled(self, name, command):
        """A command as a tenant, if there is a wall."""
        if not self.through_partywall:
            return command
        return self.partywall("run", "--dir", self.node_folder, "--name", name, "--memory", self.options.memory, "--", *command)

    def caches(self, walled):
        """What compilers keep is kept apart: the tenant's are to do their own work, under the wall."""
        kept = os.path.join(self.folder, "walled-cache" if walled else "bare-cache")
        names = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "CUPY_CACHE_DIR": "cupy"}
        return {variable: os.path.join(kept, folder) for variable, folder in names.items()}

    def run(self, program, kind, alone):
        """One run of a program, as it goes into the record. `alone`: nothing else of ours uses the GPU meanwhile."""
        walled, name = kind.startswith("walled"), f"{program}-{kind}"
        command = [sys.executable, os.path.join(HERE, "programs.py"), program]
        command += ["--kernels"] if kind.endswith("kernels") else []
        command += ["--quota", self.options.piece] if kind.endswith("quota") else []
        if self.options.fake:
            command += ["--fake", self.options.memory if walled else FAKE_GPU]
        coverage = os.path.join(self.folder, f"{name}.coverage")
        environment = self.environment | self.caches(walled)
        if walled:
            command = self.walled(name, command)
            environment["PARTYWALL_COVERAGE"] = coverage
        output, errors = (os.path.join(self.folder, f"{name}.{kind}") for kind in ("out", "err"))
        before, begin = self.nvml.used(), time.monotonic()
        # Files, not pipes: a pipe ends only when nobody holds it, and a compiler's helpers may outlive the program.
        with open(output, "w", encoding="utf-8") as stdout, open(errors, "w", encoding="utf-8") as stderr:
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True
            )
        watched = self.observer is not None and walled
        watch = self.observer.begin(name, process.pid, before) if watched else None
        code = self.finish(process)
        with open(output, encoding="utf-8", errors="replace") as file:
            line = json_line(file.read())
        report = {"seconds": round(time.monotonic() - begin, 2), "exit_code": code, "line": line}
        if code != 0 or report["line"] is None:
            report |= {"line": None, "stderr": last_lines(errors)}
            if code is None:
                report["stderr"].append(f"was still running after {self.options.timeout} s and was ended")
        if watch:
            self.observer.end(watch)
            report["observed"] = watch.report(programs.size(self.options.memory), alone)
        if walled and os.path.exists(coverage):
            with open(coverage, encoding="utf-8", errors="replace") as file:
                report["coverage"] = parse_coverage(file.read())
        state = "done" if report["line"] else "FAILED: " + " | ".join(report["stderr"][-2:])
        say(f"{name}: {state} in {report['seconds']:.1f} s")
        return report

    def finish(self, process):
        """Its exit code; None if it had to be ended."""
        self.live.add(process)
        try:
            return process.wait(self.options.timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.live.discard(process)
        for number, grace in ((signal.SIGTERM, 15), (signal.SIGKILL, 15)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace)
                break
        return None

    def guarded(self, program, kind, alone, before):
        """A run that fails in whatever way, as a failed one: the others go on. `before`: the program's runs so far."""
        why = self.hopeless(kind, before)
        if why is None:
            try:
                return self.run(program, kind, alone)
            except (OSError, ValueError) as error:
                why = str(error)
        say(f"{program}-{kind}: FAILED: {why}")
        return {"exit_code": None, "line": None, "stderr": [without_paths(why)]}

    def hopeless(self, kind, before):
        """Why a run is not even tried, if so: GPU time is dear."""
        if time.monotonic() > self.until:
            return f"not tried: it was not reached within {self.options.limit} s"
        earlier = "bare" if kind == "bare-kernels" else "walled" if kind.startswith("walled-") else None
        earlier = "bare" if "bare" in before and not line_of(before["bare"]) else earlier
        if earlier and not line_of(before[earlier]):
            return f"not tried: the program failed already ({earlier})"
        return None

    def programs(self):
        """All runs of all programs, as far as they are, after each kind. One kind after the other, so that compilers' caches are
        there for those that count; several programs at once, but one at a time where memory is filled."""
        found = {program: {} for program in self.options.only}
        for kind in RUNS:
            at_once = 1 if kind.endswith("quota") else self.options.at_once
            with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
                try:
                    ahead = {p: pool.submit(self.guarded, p, kind, at_once == 1, dict(runs)) for p, runs in found.items()}
                    for program, run in ahead.items():
                        found[program][kind] = run.result()
                except BaseException:
                    # Ctrl-C: without this the pool would wait for all that it has begun.
                    self.until = 0
                    for process in list(self.live):
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(process.pid, signal.SIGKILL)
                    raise
            yield found

    def time(self):
        """The record of `--time`."""

        def start(name):
            command = [sys.executable, os.path.join(HERE, "eager.py"), *(["--fake"] if self.options.fake else [])]
            command = self.walled(f"eager-{name}", command) if name.startswith("walled") else command
            with open(os.path.join(self.folder, f"{name}.err"), "w", encoding="utf-8") as stderr:
                return timing.Timed(name, command, self.environment, stderr)

        options = self.options
        try:
            return timing.measure(start, options.processes, options.rounds, options.seed, say, options.time_limit)
        except (timing.TimingError, OSError, ValueError) as error:
            say(f"time: FAILED: {error}")
            errors = [name for name in sorted(os.listdir(self.folder)) if re.fullmatch(r"(bare|walled)-\d+\.err", name)]
            complaints = {name[:-4]: last_lines(os.path.join(self.folder, name)) for name in errors}
            return {"failed": without_paths(str(error)), "stderr": {name: lines for name, lines in complaints.items() if lines}}


def json_line(out):
    """The last line that is a JSON object: libraries may print before it."""
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    return None


def shown(value):
    return {True: "yes", False: "NO", None: "-"}.get(value, value)


def table(rows):
    """Rows of texts, in columns."""
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def mib(value):
    return "-" if value is None else f"{value / (1 << 20):.2f}"


def overshoot_of(runs):
    """The largest overshoot in bytes that NVML saw of the tenant's processes, or the node; None if nobody could. Where NVML does
    not tell processes apart it is that of the whole device, in which other programs' memory counts as well."""
    seen = []
    for observed in (run["observed"] for run in runs.values() if run.get("observed")):
        of_processes = observed.get("nvml_overshoot_bytes")
        seen += [observed.get("device_overshoot_bytes") if of_processes is None else of_processes, observed.get("node_overshoot_bytes")]
    return max((one for one in seen if one is not None), default=None)


def program_table(found):
    rows = [("program", *VERDICTS, "kernels", "MiB left", "over quota MiB", "functions", "unknown", "refused")]
    for program, one in found.items():
        runs = one["runs"]
        kernels = (line_of(runs.get("walled-kernels")) or {}).get("kernels") or {}
        left = ((line_of(runs.get("walled-quota")) or {}).get("quota") or {}).get("free_after_bytes")
        coverage = runs["walled"].get("coverage") or {"counts": {}, "unknown": [], "refused": []}
        counts = sum(coverage["counts"].values()), len(coverage["unknown"]), len(coverage["refused"])
        figures = kernels.get("total", "-"), mib(left), mib(one["overshoot_bytes"]), *counts
        rows.append((program, *(shown(one["verdicts"][name]) for name in VERDICTS), *figures))
    return table(rows)


def time_table(times):
    if "failed" in times:
        return f"time: failed: {times['failed']}"
    rows = [("time", "walled/bare", "95 % from", "to", "bare processes, us", "walled processes, us")]
    for kind, (_, fields) in timing.KINDS.items():
        for field in fields:
            one = times[kind][field]
            per = one["by_process"]
            spread = (" ".join(f"{ns / 1e3:.1f}" for name, ns in per.items() if name.startswith(k)) for k in ("bare", "walled"))
            label = f"{kind} on the GPU" if field == "gpu_ns" else kind
            rows.append((label, *(f"{one[key]:.4f}" for key in ("ratio", "low", "high")), *spread))
    return table(rows)


def partywall_version(bench):
    try:
        answer = subprocess.run([bench.options.partywall, "--version"], stdout=subprocess.PIPE, text=True, timeout=20)
        return answer.stdout.strip() or None
    except (OSError, subprocess.TimeoutExpired):
        return None


def settings(options):
    names = ("memory", "piece", "only", "gpu", "fake", "at_once", "timeout", "limit", "time", "rounds", "processes", "seed")
    names = (*names, "time_limit")
    return {"partywall": "partywall"} | {name: getattr(options, name) for name in names}


def some_of(text):
    parts = text.split(",")
    for part in parts:
        if part not in programs.PROGRAMS:
            raise argparse.ArgumentTypeError(f"{part!r}: known are {', '.join(programs.PROGRAMS)}")
    return parts


def positive(text):
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 to 100000 is expected")
    return int(text)


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partywall", default=shutil.which("partywall") or "target/release/partywall", metavar="PATH")
    parser.add_argument("--memory", default="8GiB", metavar="SIZE", help="the tenants' quota; default 8GiB")
    parser.add_argument("--piece", default="2MiB", metavar="SIZE", help="what memory is filled with; default 2MiB")
    parser.add_argument("--only", type=some_of, default=list(programs.PROGRAMS), metavar="A,B", help=", ".join(programs.PROGRAMS))
    parser.add_argument("--at-once", type=positive, default=len(programs.PROGRAMS), metavar="N", help="programs at a time")
    parser.add_argument("--timeout", type=positive, default=RUN_S, metavar="S", help="of each run; default 120")
    parser.add_argument("--limit", type=positive, default=LIMIT_S, metavar="S", help="no new run after that; default 420")
    parser.add_argument("--time", action="store_true", help="also the time of eager ResNet-50, small copies and launches")
    parser.add_argument("--no-programs", action="store_true", help="with --time: nothing else")
    parser.add_argument("--rounds", type=positive, default=40, metavar="N", help="of --time; default 40")
    parser.add_argument("--processes", type=positive, default=3, metavar="N", help="of --time, of each kind; default 3")
    parser.add_argument("--seed", type=positive, default=7, metavar="N", help="of the order of turns; default 7")
    parser.add_argument("--time-limit", type=positive, default=240, metavar="S", help="no new round after that; default 240")
    parser.add_argument("--gpu", help="as of partywall: sim:h200; with --fake, programs that use no GPU become its tenants")
    parser.add_argument("--fake", action="store_true", help="programs that use no GPU; without --gpu no Partywall either")
    parser.add_argument("--out", metavar="FILE", help="the record, JSON; default: none")
    options = parser.parse_args(words)
    for name in ("memory", "piece"):
        try:
            programs.size(getattr(options, name))
        except argparse.ArgumentTypeError as error:
            parser.error(f"--{name}: {error}")
    if options.no_programs:
        if not options.time:
            parser.error("--no-programs leaves nothing to do without --time")
        options.only = []
    if not options.fake or options.gpu:
        if shutil.which(options.partywall) is None:
            parser.error(f"--partywall: {options.partywall}: no such program")
    return options


def write(record, path):
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(record, indent=1) + "\n")


def main():
    options = arguments(sys.argv[1:])
    # A kill must end like Ctrl-C does: with all processes gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    quota, piece = programs.size(options.memory), programs.size(options.piece)
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="partywall-programs-")
        # What a compiler's helper still writes there is no failure of ours.
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        bench = Bench(options, folder)
        record = {"schema": 1, "started": started, "gpu": bench.nvml.name(), "driver": bench.nvml.driver()}
        record |= {"versions": {"python": sys.version.split()[0], "partywall": partywall_version(bench)}}
        record |= {"settings": settings(options), "programs": {}, "time": None}
        with bench.node():
            for found in bench.programs():
                for program, runs in found.items():
                    verdicts = verdicts_of(runs, quota, piece, uses_gpu=not options.fake)
                    one = {"verdicts": verdicts, "overshoot_bytes": overshoot_of(runs), "runs": runs}
                    record["programs"][program] = one
                    record["versions"] |= (line_of(runs["bare"]) or {}).get("versions", {})
                overshoots = [one["overshoot_bytes"] for one in record["programs"].values() if one["overshoot_bytes"] is not None]
                record["max_overshoot_bytes"] = max(overshoots, default=None)
                # Each time: what is on disk is there should this be cut short from outside.
                write(record, options.out)
            good = all(False not in one["verdicts"].values() for one in record["programs"].values())
            record["as_it_should_be"] = good if options.only else None
            if options.only:
                print(program_table(record["programs"]), flush=True)
            if options.time:
                record["time"] = bench.time()
                good = good and "failed" not in record["time"]
                print(time_table(record["time"]), flush=True)
        write(record, options.out)
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("measure.py: stopped", file=sys.stderr)
        sys.exit(130)
