#!/usr/bin/env python3
"""All tests that need a GPU, one after the other: which hold, which do not, and which this machine cannot run.

    python3 workloads/checks/gpu_tests.py --partywall target/release/partywall
    python3 workloads/checks/gpu_tests.py --only driver,interrupt --out gpu-tests
    python3 workloads/checks/gpu_tests.py --gpu sim:h200 --quick

Needs Python 3.9 and a `partywall`; without a GPU it says so and is done. Each test is judged by what its command recorded or
said, not by the exit status alone, and has a time limit. No setting of the GPU is changed, no file outside of --out and a
folder for temporary files is written. Exit status: 0 if none failed, 1 if one did."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
EXAMPLE_TENANTS = ("service", "batch")
SMALL_COPIES = "ls64k"
# A simulated GPU computes on the cores of the machine, of which there may be two.
SIMULATED_SLOWER = 4
# Between the end of `partywall measure` and a look at what it left: a process that was killed takes a moment to be gone.
GRACE_S = 2
END_S = 15
POLL_S = 0.1
IMPORT_S = 120
NOTE_MAX = 400
FRAMEWORKS = {
    "torch-eager": "torch, torchvision",
    "torch-graph": "torch, torchvision",
    "torch-compile": "torch, torchvision",
    "jax": "jax",
    "cupy": "cupy",
}


class Failed(Exception):
    """What does not hold."""


class NotHere(Exception):
    """Why this machine cannot run it."""


# Judging: parsed JSON and text go in, a note comes out, or one of the two exceptions.


def has_gpu(doctor, simulated):
    """Of `partywall doctor --json`."""
    if doctor["absent"] is not None:
        raise NotHere(doctor["absent"]["why"])
    if not doctor["gpus"]:
        raise NotHere("the driver is here, but shows no GPU")
    if doctor["simulated"] != simulated:
        raise Failed(f"the GPU should be {'simulated' if simulated else 'a real one'}, and is not")
    return ", ".join(gpu["name"] for gpu in doctor["gpus"])


def walls_missing(doctor):
    """The walls that the machine cannot build, and why."""
    return {wall["id"]: wall["why"] for wall in doctor["walls"] if wall["state"] != "available"}


def driver_holds(doctor):
    """Of `partywall doctor --check --json`."""
    devices = doctor["checks"] or []
    wrong = [f"device {one['device']}: {one['error']}" for one in devices if one["error"]]
    checks = [check for one in devices for check in one["checks"]]
    wrong += [f"{check['name']}: {check['saw']}" for check in checks if not check["passed"]]
    if wrong:
        raise Failed("; ".join(wrong))
    if not checks:
        raise Failed("nothing was checked")
    return f"{len(checks)} checks"


def cell_name(cell):
    programs = " beside ".join(cell[key] for key in ("ls", "be") if cell[key])
    return " ".join(part for part in (cell["wall"], cell["setting"], cell["kind"], programs) if part)


def has_results(cell):
    return bool(cell["results"]) and all(one["check"] == "ok" for one in cell["results"])


def began_well(record, simulated):
    if record["simulated"] != simulated or record["pretended"]:
        raise Failed("the record is not of the GPU that was asked for")
    if not record["complete"]:
        raise Failed(f"the time was over after {record['took_s']:.0f} s, before all cells were measured")
    if not record["cells"]:
        raise Failed("no cell was measured")


def all_measured(record, missing, simulated):
    """Of a record of `partywall measure`. `missing`: the walls that may be left out, and why."""
    began_well(record, simulated)
    skipped = [cell for cell in record["cells"] if cell["error"] and cell["error"]["kind"] == "skipped" and cell["wall"] in missing]
    cells = [cell for cell in record["cells"] if cell not in skipped]
    wrong = [cell for cell in cells if cell["error"] or not has_results(cell)]
    if wrong:
        first = wrong[0]
        why = first["error"]["message"] if first["error"] else f"results: {[one['check'] for one in first['results']]}"
        raise Failed(f"{len(wrong)} of {len(cells)} cells; {cell_name(first)}: {why}")
    if not cells:
        raise NotHere("; ".join(missing.values()))
    without = ", ".join(sorted({cell["wall"] for cell in skipped}))
    return f"{len(cells)} cells" + (f", without {without}: {missing[skipped[0]['wall']]}" if skipped else "")


def only_faults_faulted(record):
    """Of a record of the plan `fault.toml`: a program that faults takes no cell with it but its own."""
    began_well(record, simulated=False)
    faulted = 0
    for cell in record["cells"]:
        kind = (cell["error"] or {}).get("kind")
        faults = (cell["be"] or "").startswith("fault")
        # Alone it may get through: `fault` only faults after as many lookups as it does alone and beside another.
        if kind == "gpu-fault" and faults:
            faulted += cell["kind"] == "corun"
        elif kind or not has_results(cell) or (faults and cell["kind"] == "corun"):
            raise Failed(f"{cell_name(cell)}: {cell['error']['message'] if kind else 'has no fault, or wrong results'}")
    if not faulted:
        raise Failed("no program faulted beside another")
    return f"{faulted} faults, {len(record['cells'])} cells"


def nothing_left(code, processes, in_temporary, written):
    """What is there after Ctrl-C."""
    folders = [name for name in in_temporary if name.startswith("partywall-") and not name.startswith("partywall-soft-")]
    found = [f"exit status {code} instead of 130"] if code != 130 else []
    for what, names in (("processes", processes), ("temporary folders", folders), ("results", written)):
        if names:
            found.append(f"{what} left: {', '.join(sorted(names))}")
    if found:
        raise Failed("; ".join(found))
    return "nothing left"


def tenants_done(output):
    """Of the logs of `partywall up` with the example's tenants."""
    done = []
    for line in output.splitlines():
        name, bar, message = line.partition("|")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = json.loads(message)["done"] if bar else {}
            if said.get("check") == "ok" and said.get("requests", 0) > 0:
                done.append(name.strip())
    silent = [name for name in EXAMPLE_TENANTS if name not in done]
    if silent:
        raise Failed(f"no right results from {', '.join(silent)}")
    return ", ".join(done)


def copies_helped(record, walls, simulated):
    """Of the record of `workloads/copies/measure.py`; what a simulated GPU takes for a copy says nothing."""
    p50 = {}
    for cell in record["cells"]:
        if cell["cell"] == SMALL_COPIES:
            p50[cell["wall"], cell["partywall"]] = cell["tenants"]["ls"]["service_p50_us"]
    absent = [wall for wall in walls for partywall in (False, True) if p50.get((wall, partywall)) is None]
    if absent:
        raise Failed(f"no median of small copies behind {absent[0]}")
    notes = {wall: f"{wall} {p50[wall, False]:.0f} us without, {p50[wall, True]:.0f} with" for wall in walls}
    slower = [wall for wall in walls if p50[wall, True] >= p50[wall, False]]
    if slower and not simulated:
        raise Failed("small copies are not faster with Partywall: " + ", ".join(notes[wall] for wall in slower))
    return ", ".join(notes.values())


def recovered(record):
    """Of the record of `workloads/checks/recover.py`."""
    wrong = [f"{name}: {why}" for name, why in record["wrong"].items()]
    if wrong:
        raise Failed("; ".join(wrong))
    if len(record["faults"]) != 2:
        raise Failed(f"{len(record['faults'])} faults instead of 2")
    notes = ", ".join(
        fault["evidence"] + ("" if fault["recover_s"] is None else f" (recovered in {fault['recover_s']:.1f} s)")
        for fault in record["faults"]
    )
    return f"{record['fault']}: {notes}"


def programs_same(record, wanted):
    """Of the record of `workloads/programs/measure.py`."""
    found = {name: record["programs"].get(name, {"verdicts": {"ran": False}})["verdicts"] for name in wanted}
    wrong = [f"{name}: {verdict}" for name, verdicts in found.items() for verdict, holds in verdicts.items() if holds is not True]
    if wrong:
        raise Failed("does not hold: " + ", ".join(wrong))
    return ", ".join(wanted)


def kernels_equal(record):
    """Of the record of `workloads/checks/ptx_rewrite.py`."""
    found, launched = record["ptx"], record["transparent"]
    is_fine = {row["name"]: "failed" not in row and all(row.get("bit_equal", {"": False}).values()) for row in record["rows"] if not row["should_be_refused"]}
    wrong = [name for name, fine in is_fine.items() if not fine]
    wrong += [f"{name} (launched by Triton)" for name, equal in launched.get("bit_equal", {}).items() if not equal]
    if wrong or not launched.get("bit_equal"):
        raise Failed("not equal, or not run: " + (", ".join(wrong) or "what Triton launches"))
    if not found["refused_as_expected"]:
        raise Failed("a kernel with tensor descriptors was not refused")
    return f"{found['kernels']} kernels; time as it is and rewritten: 1 to {found['time_ratio_mean']:.3f}"


# Processes.


def living():
    """The ids of all processes that are there and no mere entries."""
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit():
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    if file.read().rpartition(")")[2].split()[0] not in "ZX":
                        yield int(name)


def command_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
        return file.read().partition("\0")[0].rpartition("/")[2]
    return ""


def started_with(temporary):
    """Processes that have this folder for temporary files, which is how what a test started is known from anything else's."""
    mark = os.fsencode(f"TMPDIR={temporary}")
    for pid in living():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            if mark in file.read().split(b"\0"):
                yield pid


def mps_processes():
    return {pid for pid in living() if command_of(pid).startswith("nvidia-cuda-mps")}


class Tests:
    """What the tests share. Every method that `TESTS` names is one: it returns a note or raises."""

    def __init__(self, options, out):
        self.options, self.out, self.simulated = options, out, options.gpu is not None
        self.temporary = tempfile.mkdtemp(prefix="gpu-tests-")
        self.missing = {}

    def environment(self, temporary):
        path = os.path.dirname(self.options.partywall) + os.pathsep + os.environ.get("PATH", os.defpath)
        # A node of our own, wherever the machine's is.
        return os.environ | {"PATH": path, "TMPDIR": temporary, "PARTYWALL_DIR": os.path.join(temporary, "node")}

    def partywall(self, *arguments):
        gpu = ["--gpu", self.options.gpu] if self.simulated else []
        return [self.options.partywall, *gpu, *arguments]

    def seconds(self, limit):
        return limit * SIMULATED_SLOWER if self.simulated else limit

    @contextlib.contextmanager
    def started(self, command, log, temporary, answer=None):
        """A process whose output goes into a log, or the standard part of it into another file. Afterwards all is gone."""
        with open(log, "w", encoding="utf-8") as errors, contextlib.ExitStack() as stack:
            output = stack.enter_context(open(answer, "w", encoding="utf-8")) if answer else errors
            process = subprocess.Popen(
                command, cwd=ROOT, env=self.environment(temporary), stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                start_new_session=True,
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                        os.killpg(process.pid, signal.SIGINT)
                        process.wait(END_S)
                for pid in started_with(temporary):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                process.wait()

    def run(self, name, command, limit, answer=None):
        """Runs a command until it ends or its time is over; its exit status."""
        limit = self.seconds(limit)
        with self.started(command, self.file(f"{name}.log"), self.temporary, answer) as process:
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                raise Failed(f"was still running after {limit} s") from None

    def file(self, name):
        return os.path.join(self.out, name)

    def last_line(self, log):
        with open(self.file(log), encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return lines[-1] if lines else "it said nothing"

    def must_end_well(self, name, code):
        if code != 0:
            raise Failed(f"exit status {code}: {self.last_line(f'{name}.log')}")

    def read(self, path, name, code):
        """A JSON file that a command wrote; if it did not, what it said instead."""
        try:
            with open(path, encoding="utf-8") as file:
                return json.load(file)
        except (OSError, ValueError):
            raise Failed(f"exit status {code} and no record: {self.last_line(f'{name}.log')}") from None

    def doctor(self):
        answer = self.file("doctor.json")
        code = self.run("doctor", self.partywall("doctor", "--json"), 30, answer)
        found = self.read(answer, "doctor", code)
        self.must_end_well("doctor", code)
        note = has_gpu(found, self.simulated)
        self.missing = walls_missing(found)
        return note

    def driver(self):
        answer = self.file("driver.json")
        code = self.run("driver", self.partywall("doctor", "--check", "--json"), 60, answer)
        note = driver_holds(self.read(answer, "driver", code))
        self.must_end_well("driver", code)
        return note

    def measure(self, name, arguments, limit, judge):
        folder = self.file(name)
        within = f"{self.seconds(limit)}s"
        command = self.partywall("measure", *arguments, "--name", name, "--out", folder, "--time-limit", within)
        # What was begun within the time may be finished.
        code = self.run(name, command, limit + 60)
        note = judge(self.read(os.path.join(folder, f"{name}.json"), name, code))
        self.must_end_well(name, code)
        return note

    def facts(self):
        return self.measure("facts", ["--plan", "workloads/plans/facts.toml"], 120, self.all_measured)

    def synthetic(self):
        plan = ["--quick"] if self.options.quick else ["--plan", "workloads/plans/synthetic.toml"]
        return self.measure("synthetic", plan, 180 if self.options.quick else 300, self.all_measured)

    def all_measured(self, record):
        return all_measured(record, self.missing, self.simulated)

    def fault(self):
        self.needs_gpu("PyTorch programs")
        self.needs_walls("time-slicing", "mps", "mps-percentage")
        # As the plan starts them, not as this program was.
        self.needs_modules("python3", "torch, torchvision")
        return self.measure("fault", ["--plan", "workloads/plans/fault.toml"], 180, only_faults_faulted)

    def recover(self):
        self.needs_walls("mps")
        if not self.simulated:
            self.needs_modules("python3", "torch, torchvision")
        notes = []
        for kind in ("assert", "illegal"):
            name = f"recover-{kind}"
            record = self.file(f"{name}.json")
            code = self.run(name, self.script("checks/recover.py", "--fault", kind, "--out", record), 600)
            notes.append(recovered(self.read(record, name, code)))
            self.must_end_well(name, code)
        return "; ".join(notes)

    def interrupt(self):
        self.needs_walls("mps")
        temporary = tempfile.mkdtemp(prefix="gpu-tests-")
        written, before = self.file("interrupt"), mps_processes()
        matrix = ["--quick", "--victims", "vram-read", "--antagonists", "vram-stream", "--walls", "mps,mps-percentage"]
        # As short as can be until there is MPS, and so long from there on that it cannot end by itself.
        command = self.partywall("measure", *matrix, "--rounds", "1", "--seconds", "4", "--requests", "500000", "--out", written)
        try:
            with self.started(command, self.file("interrupt.log"), temporary) as process:
                self.wait_for_mps(process, before, temporary)
                # To the whole group, as a terminal does.
                os.killpg(process.pid, signal.SIGINT)
                try:
                    code = process.wait(self.seconds(30))
                except subprocess.TimeoutExpired:
                    raise Failed("did not end after Ctrl-C") from None
                time.sleep(GRACE_S)
                left = {command_of(pid) or str(pid) for pid in {*started_with(temporary), *(mps_processes() - before)}}
                results = os.listdir(written) if os.path.isdir(written) else []
                return nothing_left(code, left, os.listdir(temporary), results)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def wait_for_mps(self, process, before, temporary):
        """Until tenants run behind an MPS daemon: then there is most to be left behind."""
        until = time.monotonic() + self.seconds(90)
        # A simulated daemon is its folder, and no process.
        while not self.has_mps_folder(temporary) or not (self.simulated or mps_processes() - before):
            if process.poll() is not None:
                raise Failed(f"ended with {process.returncode} before there was an MPS daemon: {self.last_line('interrupt.log')}")
            if time.monotonic() > until:
                raise Failed("no MPS daemon was started")
            time.sleep(POLL_S)
        time.sleep(GRACE_S)

    @staticmethod
    def has_mps_folder(temporary):
        return any(name.startswith("partywall-mps-") for name in os.listdir(temporary))

    def tenants(self):
        code = self.run("tenants", self.partywall("up", "examples/two-tenants.toml"), 60)
        self.must_end_well("tenants", code)
        with open(self.file("tenants.log"), encoding="utf-8", errors="replace") as file:
            return tenants_done(file.read())

    def copies(self):
        # The program starts the driver's own MPS daemon, which a simulated GPU has not.
        walls = ["time-slicing", *([] if self.simulated or "mps" in self.missing else ["mps"])]
        record = self.file("copies.json")
        command = self.script("copies/measure.py", "--cells", SMALL_COPIES, "--seconds", "2", "--short", "1", "--out", record)
        code = self.run("copies", [*command, "--walls", *walls], 120)
        self.must_end_well("copies", code)
        return copies_helped(self.read(record, "copies", code), walls, self.simulated)

    def programs(self):
        self.needs_gpu("PyTorch, JAX and CuPy programs")
        here = [name for name, modules in FRAMEWORKS.items() if self.imports(sys.executable, modules)]
        if not here:
            raise NotHere("none of PyTorch with torchvision, JAX and CuPy can be imported")
        record = self.file("programs.json")
        code = self.run("programs", self.script("programs/measure.py", "--only", ",".join(here), "--out", record), 660)
        note = programs_same(self.read(record, "programs", code), here)
        self.must_end_well("programs", code)
        return note

    def kernels(self):
        self.needs_gpu("Triton's kernels")
        self.needs_modules(sys.executable, "torch, triton")
        record = self.file("kernels.json")
        code = self.run("kernels", self.script("checks/ptx_rewrite.py", "--out", record), 300)
        note = kernels_equal(self.read(record, "kernels", code))
        self.must_end_well("kernels", code)
        return note

    def script(self, path, *arguments):
        gpu = ["--gpu", self.options.gpu] if self.simulated else []
        return [sys.executable, os.path.join("workloads", path), "--partywall", self.options.partywall, *gpu, *arguments]

    def needs_gpu(self, what):
        if self.simulated:
            raise NotHere(f"{what} need a real GPU")

    def needs_walls(self, *walls):
        for wall in walls:
            if wall in self.missing:
                raise NotHere(f"{wall}: {self.missing[wall]}")

    def imports(self, python, modules):
        try:
            environment = self.environment(self.temporary)
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            return subprocess.run([python, "-c", f"import {modules}"], env=environment, timeout=IMPORT_S, **quiet).returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            return False

    def needs_modules(self, python, modules):
        if not self.imports(python, modules):
            raise NotHere(f"`{python}` cannot import {modules}")


TESTS = {
    "doctor": "`partywall doctor` finds a GPU",
    "driver": "the driver crate: `partywall doctor --check`",
    "facts": "MPS, percentages, Green Contexts and priorities end to end: every cell measured, every result right",
    "synthetic": "every built-in tenant behind every wall between processes, each of which checks its own results",
    "fault": "a tenant that faults the GPU: its cells say so, the others are measured (needs PyTorch)",
    "recover": "tenants behind MPS go on after an assertion in one of them, and all come back from an illegal address (needs PyTorch)",
    "interrupt": "Ctrl-C during `partywall measure` leaves no process, daemon, folder or result",
    "tenants": "`partywall up` with the tenants of examples/two-tenants.toml",
    "copies": "copies of 64 KiB beside a loop of large ones: faster with Partywall than without",
    "programs": "PyTorch, JAX and CuPy programs as tenants do the same as without (those that can be imported)",
    "kernels": "rewritten Triton kernels compute the same to the last bit (needs PyTorch with Triton)",
}


def judged(test):
    """Runs a test; its state, what there is to say, and its seconds."""
    begin = time.monotonic()
    try:
        state, note = "ok", test()
    except Failed as failure:
        state, note = "FAILED", str(failure)
    except NotHere as reason:
        state, note = "not here", str(reason)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        state, note = "FAILED", f"its record is not what was expected: {error!r}"
    return state, " ".join(note.split())[:NOTE_MAX], time.monotonic() - begin


def run_all(tests, chosen):
    """Runs the chosen ones and says of each what came of it; how many came to which state. None if there is no GPU."""
    counts = {"ok": 0, "FAILED": 0, "not here": 0}
    begin = time.monotonic()
    # Always: the others go by what it finds.
    first = judged(tests.doctor)
    if first[0] == "not here":
        print(f"no GPU here, so nothing to test: {first[1]}")
        return None
    for name in chosen if first[0] == "ok" else ["doctor"]:
        print(f"{name:<10} ", end="", flush=True)
        state, note, seconds = first if name == "doctor" else judged(getattr(tests, name))
        counts[state] += 1
        print(f"{state:<8} {seconds:6.1f} s  {note}", flush=True)
    print(f"{counts['ok']} ok, {counts['FAILED']} failed, {counts['not here']} not here in {time.monotonic() - begin:.0f} s")
    return counts


def some_of(text):
    parts = text.split(",")
    for part in parts:
        if part not in TESTS:
            raise argparse.ArgumentTypeError(f"{part!r}: known are {', '.join(TESTS)}")
    return [name for name in TESTS if name in parts]


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partywall", default=shutil.which("partywall") or "target/release/partywall", metavar="PATH")
    parser.add_argument("--list", action="store_true", help="say which tests there are, and do nothing else")
    parser.add_argument("--only", type=some_of, default=list(TESTS), metavar="A,B", help="some of the tests")
    parser.add_argument("--quick", action="store_true", help="for `synthetic`, `partywall measure --quick` instead of the whole plan")
    parser.add_argument("--gpu", help="as of partywall: sim:h200 rehearses on a simulated GPU what can be; default: the machine's")
    parser.add_argument("--out", metavar="DIR", help="for logs and records; default: a temporary folder, kept if a test failed")
    options = parser.parse_args(words)
    if options.list:
        return options
    program = shutil.which(options.partywall)
    if program is None:
        parser.error(f"--partywall: {options.partywall}: no such program; `cargo build --release` makes target/release/partywall")
    options.partywall = os.path.abspath(program)
    if options.out and os.path.isdir(options.out) and os.listdir(options.out):
        parser.error(f"--out: {options.out}: there are files in it already; a new or an empty folder is needed")
    return options


def main():
    options = arguments(sys.argv[1:])
    if options.list:
        for name, what in TESTS.items():
            print(f"{name:<10} {what}")
        return 0
    # A kill must end like Ctrl-C does: with all processes gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    out = os.path.abspath(options.out) if options.out else tempfile.mkdtemp(prefix="gpu-tests-out-")
    os.makedirs(out, exist_ok=True)
    tests, failed = Tests(options, out), True
    try:
        counts = run_all(tests, options.only)
        failed = counts is not None and counts["FAILED"] > 0
    finally:
        shutil.rmtree(tests.temporary, ignore_errors=True)
        if failed:
            print(f"logs and records: {out}")
        elif not options.out:
            shutil.rmtree(out, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("gpu_tests.py: stopped", file=sys.stderr)
        sys.exit(130)
