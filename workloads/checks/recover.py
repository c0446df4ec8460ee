#!/usr/bin/env python3
"""Two latency-sensitive and two best-effort tenants behind an MPS daemon, one of which faults the GPU twice.

    python3 workloads/checks/recover.py --partywall target/release/partywall --fault illegal --out recover.json
    python3 workloads/checks/recover.py --gpu sim:h200
    python3 workloads/checks/recover.py --gpu sim:h200 --again

`--fault illegal`: an illegal address ends the work of all. All come back, latency-sensitive ones first, and nobody but the culprit is
blamed: where the driver tells all the same at the same time, nobody is. Who is surely the culprit twice is kept out. `--fault assert`: a
device-side assertion ends the work of its own process. Nobody but the culprit is ended, and it is not kept out. `--again`: it faults in each of its
runs, until the node has found it by starting suspects one by one and keeps it out; nobody else is kept out, and the others are back.

On a real GPU the tenants are PyTorch programs (workloads/torch/tenant.py), on a simulated one built-in ones. Prints a record as JSON: what
each tenant was told by the driver and when, how the MPS server said that it was, and what the daemon wrote meanwhile, are in it,
because none of that is documented. Exit status: 0 if all held, 1 if something did not."""

import argparse
import contextlib
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TENANT = os.path.join(os.path.dirname(HERE), "torch", "tenant.py")
# A program that loads PyTorch and a network from a cold disk takes half a minute. Suspects are started one by one, each after a multiple of that.
LIMIT_S = 400
# Two rounds of suspects.
AGAIN_S = 1200
END_S = 30
POLL_S = 0.2
# Names one machine, and nobody needs it.
UUID = re.compile("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LOG_BYTES = 64 << 10
# How often the MPS server is asked how it is, and how long an answer may take.
STATUS_S, ANSWER_S = 0.25, 5
RUN = {"run": {"run": 1, "load": {"closed": {"pause_ns": 3_000_000, "depth": 1}}, "begin": 0, "requests_max": 1_000_000}}
CULPRIT, FIRST, OTHER = "bad", ("ls-1", "ls-2"), "be"
# Lookups before the one that faults: a few seconds with the pause above.
LOOKUPS = 500
# What is injected on a simulated GPU.
SIMULATED = {"assert": "assert-at-launch=2000", "illegal": "illegal-access-at-launch=2000"}
# Evidence of which the node is sure; two such verdicts keep a tenant out.
SURE = ("named-by-server", "only-own-code", "alone", "let-in-last")


class Failed(Exception):
    """What keeps it from going on."""


def fed(command):
    """A tenant that is told to run and not told to stop, so that it does not end by itself."""
    return f"(echo '{json.dumps(RUN)}'; exec tail -f /dev/null) | {command} > /dev/null"


def commands(simulated, python, kind):
    """What tenants run: by name, and what faults."""
    if simulated:
        work = "partywall tenant tiny-kernels:ls"
        return {name: work for name in (*FIRST, OTHER, CULPRIT)}, f"PARTYWALL_SOFTGPU_FAULT={SIMULATED[kind]} {work}"
    torch = f"{python} {TENANT}"
    good = {
        "ls-1": f"{torch} network resnet50 --batch 1",
        "ls-2": f"{torch} network mobilenet_v3_large --batch 1",
        OTHER: f"{torch} gemm --size 4096",
        CULPRIT: f"{torch} gemm --size 4096",
    }
    return good, f"{torch} fault --kind {kind} --after {LOOKUPS}"


def culprits(good, fault, folder, again):
    """Works, and in its first two runs faults once there is a file: when all others are clients, too. `again`: in all its runs."""
    if again:
        return f"until [ -e {os.path.join(folder, 'fault-1')} ]; do sleep 0.1; done; {fed(fault)}"

    def script(number):
        ran, told = os.path.join(folder, f"ran-{number}"), os.path.join(folder, f"fault-{number}")
        return f"[ ! -e {ran} ]; then touch {ran}; {fed(good)} &\nuntil [ -e {told} ]; do sleep 0.1; done; {fed(fault)}"

    return f"if {script(1)}\nelif {script(2)}\nelse {fed(good)}\nfi"


def tenants_file(simulated, python, folder, wall, kind, again=False):
    good, fault = commands(simulated, python, kind)
    text = [f'gpu.wall = "{wall}"']
    for name, klass in ((CULPRIT, "best-effort"), (FIRST[0], "latency-sensitive"), (OTHER, "best-effort"), (FIRST[1], "latency-sensitive")):
        script = culprits(good[name], fault, folder, again) if name == CULPRIT else fed(good[name])
        text.append(
            f'[[tenant]]\nname = "{name}"\nclass = "{klass}"\nmemory = "{1 if simulated else 20}GiB"\nrestart = "always"\n'
            f'share.percent = 25\ncommand = ["sh", "-c", {json.dumps(script)}]\n'
        )
    return "\n".join(text)


def seconds(nanoseconds):
    return None if nanoseconds is None else nanoseconds / 1e9


def last_fault(reports):
    """What is said of the last fault, by those whom it concerned."""
    return max((report["last_fault"] for report in reports if report["last_fault"]), key=lambda fault: fault["number"])


def fault_of(reports):
    """The last fault, as the record has it."""
    fault = last_fault(reports)
    return {
        "number": fault["number"],
        "culprit": fault["culprit"],
        "evidence": fault["evidence"],
        "told": fault["told"],
        "told_after_s": {name: seconds(after) for name, after in fault["told_after_ns"].items()},
        "server": fault["server"],
        "recover_s": seconds(fault["recover_ns"]),
        "restarts": {report["name"]: report["restarts"] for report in reports},
    }


def is_running(report):
    return report["activity"] == "running" and report["facts"]["processes"] > 0


def are_back(reports, faults):
    """Whether all that are to run do so after so many faults, the last of which is over."""
    culprit = next(report for report in reports if report["name"] == CULPRIT)
    last = culprit["last_fault"]
    if not last or last["number"] != faults or not last["evidence"]:
        return False
    if last["evidence"] != "contained" and last["recover_ns"] is None:
        return False
    # Its run with the fault is over.
    begun_again = culprit["kept_out"] or culprit["restarts"] == faults
    return begun_again and all(is_running(report) for report in reports if not report["kept_out"])


def wrong_after(reports, faults, kind, evidence):
    """What does not hold of tenants that are back after a fault, by what it is about. `evidence` is that of all faults so far."""
    wrong, by_name = {}, {report["name"]: report for report in reports}
    last = last_fault(reports)
    for name, report in by_name.items():
        if name != CULPRIT and report["faults"]:
            wrong[f"blame after fault {faults}"] = f"{name} is said to have caused {report['faults']}"
    known = last["culprit"] == CULPRIT or (kind == "illegal" and last["culprit"] is None)
    if not known or (kind == "assert") != (last["evidence"] == "contained"):
        wrong[f"culprit of fault {faults}"] = f"{last['culprit']}: {last['evidence']}, told {json.dumps(last['told'])}"
    if (sum(word in SURE for word in evidence) > 1) != by_name[CULPRIT]["kept_out"]:
        wrong[f"kept out after fault {faults}"] = str(by_name[CULPRIT]["kept_out"]).lower()
    of_kind = nobody_else_ended if kind == "assert" else order_kept
    return wrong | {f"{about} after fault {faults}": what for about, what in of_kind(by_name).items()}


def wrong_in_the_end(reports):
    """What does not hold of tenants of which one faulted in each of its runs."""
    wrong, by_name = {}, {report["name"]: report for report in reports}
    if not by_name[CULPRIT]["kept_out"]:
        wrong["kept out in the end"] = "false"
    for name, report in by_name.items():
        if name != CULPRIT and (report["kept_out"] or not is_running(report)):
            wrong[f"{name} in the end"] = "kept out" if report["kept_out"] else report["activity"]
    last = by_name[CULPRIT]["last_fault"] or {"culprit": None, "evidence": "no fault"}
    if last["culprit"] != CULPRIT or last["evidence"] not in SURE:
        wrong["culprit in the end"] = f"{last['culprit']}: {last['evidence']}"
    return wrong


def nobody_else_ended(by_name):
    ended = [f"{name} was started {report['restarts']} times again" for name, report in by_name.items() if name != CULPRIT and report["restarts"]]
    return {"others": ", ".join(ended)} if ended else {}


def order_kept(by_name):
    wrong = {}
    back = [name for name in (OTHER, CULPRIT) if by_name[name]["activity"] == "running"]
    for name in FIRST:
        if by_name[name]["activity"] != "running":
            wrong[f"{name} running"] = by_name[name]["activity"]
            continue
        late = [other for other in back if by_name[other]["running_for_ns"] > by_name[name]["running_for_ns"]]
        if late:
            wrong["order"] = f"{name} was started after {', '.join(late)}"
    return wrong


class Stage:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.simulated = options.gpu is not None
        path = os.path.dirname(options.partywall) + os.pathsep + os.environ.get("PATH", os.defpath)
        # A simulated GPU of our own, too: it lies in the folder for temporary files.
        self.environment = os.environ | {"PATH": path, "PARTYWALL_DIR": os.path.join(folder, "node"), "TMPDIR": folder}
        self.log = os.path.join(folder, "node.log")

    def command(self, *arguments):
        return [self.options.partywall, *(["--gpu", self.options.gpu] if self.simulated else []), *arguments]

    def say(self, *arguments):
        done = subprocess.run(
            self.command(*arguments), env=self.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"`partywall {' '.join(arguments)}`: {done.stderr.strip()}")
        return done.stdout

    def reports(self):
        return json.loads(self.say("ps", "--json"))

    def until(self, what, done, limit_s=LIMIT_S):
        end = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > end:
                raise Failed(f"waited in vain until {what}; {self.told()}")
            time.sleep(POLL_S)

    def told(self):
        """The end of what the node has said, in a line."""
        with contextlib.suppress(OSError), open(self.log, encoding="utf-8", errors="replace") as file:
            return " / ".join(line.strip() for line in file.readlines()[-8:])
        return "the node has said nothing"

    def answers(self):
        with contextlib.suppress(Failed):
            self.say("ps")
            return True
        return False

    @contextlib.contextmanager
    def node(self):
        launches = ["--launches", self.options.launches] if self.options.launches else []
        with open(self.log, "w", encoding="utf-8") as log:
            command = self.command("node", "--wall", self.options.wall, *launches)
            node = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            self.until("the node answers", lambda: node.poll() is not None or self.answers())
            if node.poll() is not None:
                raise Failed(f"the node ended: {self.told()}")
            yield
        finally:
            # It ends its tenants first.
            if node.poll() is None:
                node.send_signal(signal.SIGTERM)
                try:
                    node.wait(END_S)
                except subprocess.TimeoutExpired:
                    node.kill()
                    node.wait()

    def back_after(self, faults):
        """Waits until all that are to be back are."""
        last = []

        def back():
            last[:] = self.reports()
            return are_back(last, faults)

        self.until(f"all are back after fault {faults}", back)
        return list(last)

    def found(self):
        """Waits until the culprit is kept out and the others are back; all faults until then."""
        faults, last = {}, []

        def over():
            last[:] = self.reports()
            if any(report["last_fault"] for report in last):
                fault = fault_of(last)
                if fault["evidence"]:
                    faults[fault["number"]] = fault
            others = (report for report in last if report["name"] != CULPRIT)
            culprit = next(report for report in last if report["name"] == CULPRIT)
            return culprit["kept_out"] and all(is_running(report) for report in others)

        with contextlib.suppress(Failed):
            self.until("the culprit is kept out and the others are back", over, AGAIN_S)
        return [faults[number] for number in sorted(faults)], last

    def mps_logs(self):
        """The end of all that the MPS daemon and its server wrote: a daemon in the foreground writes to its output as well."""
        mps, logs = os.path.join(self.folder, "node/mps"), {}
        for path in sorted(glob.glob(os.path.join(mps, "log", "*")) + [os.path.join(mps, "output")]):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                text = UUID.sub("GPU-...", file.read()[-LOG_BYTES:].decode(errors="replace"))
                logs[os.path.relpath(path, mps)] = text.splitlines()
        return logs

    @contextlib.contextmanager
    def asked(self):
        """Has the MPS server asked how it is, all the time; gives a list of what it says, and since when in seconds."""
        said, over, begin = [], threading.Event(), time.monotonic()
        found = [shutil.which("nvidia-cuda-mps-control"), *glob.glob(os.path.join(self.folder, "**", "nvidia-cuda-mps-control"), recursive=True)]
        control = next((path for path in found[:: -1 if self.simulated else 1] if path), None)
        environment = self.environment | {"CUDA_MPS_PIPE_DIRECTORY": os.path.join(self.folder, "node/mps/pipe")}

        def answer(command):
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                done = subprocess.run(
                    [control], input=command + "\n", env=environment, capture_output=True, text=True, timeout=ANSWER_S, check=False
                )
                return (done.stdout + done.stderr).strip()
            return "no answer"

        def ask():
            while not over.wait(STATUS_S):
                servers = answer("get_server_list")
                status = ", ".join(answer(f"get_server_status {server}") for server in servers.split()) if servers[:1].isdigit() else servers
                if not said or said[-1]["status"] != status:
                    said.append({"after_s": round(time.monotonic() - begin, 2), "status": status})

        asker = threading.Thread(target=ask)
        if control:
            asker.start()
        try:
            yield said
        finally:
            over.set()
            if control:
                asker.join()

    def run(self):
        file, kind = os.path.join(self.folder, "tenants.toml"), self.options.fault
        with open(file, "w", encoding="utf-8") as out:
            out.write(tenants_file(self.simulated, sys.executable, self.folder, self.options.wall, kind, self.options.again))
        record = {"simulated": self.simulated, "wall": self.options.wall, "fault": kind, "culprit": CULPRIT, "faults": [], "wrong": {}}
        with self.node(), self.asked() as record["server_status"]:
            try:
                self.say("up", "--detach", file)
                if self.options.again:
                    good = (*FIRST, OTHER)
                    self.until("the others use the GPU", lambda: all(is_running(report) for report in self.reports() if report["name"] in good))
                    with open(os.path.join(self.folder, "fault-1"), "w", encoding="utf-8"):
                        pass
                    record["faults"], reports = self.found()
                    record["wrong"] |= wrong_in_the_end(reports)
                for faults in () if self.options.again else (1, 2):
                    self.until("all use the GPU", lambda: all(is_running(report) for report in self.reports()))
                    with open(os.path.join(self.folder, f"fault-{faults}"), "w", encoding="utf-8"):
                        pass
                    reports = self.back_after(faults)
                    record["faults"].append(fault_of(reports))
                    evidence = [fault["evidence"] for fault in record["faults"]]
                    record["wrong"] |= wrong_after(reports, faults, kind, evidence)
                # Nothing has to recover from a contained fault.
                record["recover_s"] = max((fault["recover_s"] for fault in record["faults"] if fault["recover_s"]), default=None)
            except Failed as failure:
                record["wrong"]["run"] = str(failure)
            record["mps_logs"] = self.mps_logs()
            with open(self.log, encoding="utf-8", errors="replace") as said:
                record["node_log"] = said.read().replace(self.folder, "FOLDER").splitlines()
        return record


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partywall", default=shutil.which("partywall") or "target/release/partywall", metavar="PATH")
    parser.add_argument("--gpu", help="as of partywall: sim:h200 rehearses on a simulated GPU; default: the machine's")
    parser.add_argument("--fault", default="illegal", choices=tuple(SIMULATED), help="what kind")
    parser.add_argument("--again", action="store_true", help="it faults in each of its runs, until it is kept out; with --fault illegal")
    parser.add_argument("--wall", default="mps", choices=("mps", "mps-percentage", "green-contexts", "partywall"))
    parser.add_argument("--launches", metavar="PARTS", help="as of `partywall node`: then the first good request is known, and not only the first launch")
    parser.add_argument("--out", metavar="FILE", help="for the record; default: it is printed")
    options = parser.parse_args(words)
    if options.again and options.fault != "illegal":
        parser.error("--again is about faults that end the work of all; an assertion keeps nobody out")
    program = shutil.which(options.partywall)
    if program is None:
        parser.error(f"--partywall: {options.partywall}: no such program; `cargo build --release` makes target/release/partywall")
    options.partywall = os.path.abspath(program)
    return options


def main():
    options = arguments(sys.argv[1:])
    # A kill must end like Ctrl-C does: with all processes gone.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Short: sockets are in it.
    folder = tempfile.mkdtemp(prefix="recover-")
    try:
        record = Stage(options, folder).run()
    except Failed as failure:
        print(f"recover.py: {failure}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = json.dumps(record, indent=2) + "\n"
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text, end="")
    for name, why in record["wrong"].items():
        print(f"recover.py: {name}: {why}", file=sys.stderr)
    return 1 if record["wrong"] else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("recover.py: stopped", file=sys.stderr)
        sys.exit(130)
