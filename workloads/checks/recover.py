#!/usr/bin/env python3
"""Two latency-sensitive and two best-effort tenants behind an MPS daemon, one of which faults the GPU: whether all come back, in which
order, how long it takes, and whether the culprit is named, and kept out after its second fault.

    python3 workloads/checks/recover.py --partywall target/release/partywall --out recover.json
    python3 workloads/checks/recover.py --gpu sim:h200

On a real GPU the tenants are PyTorch programs (workloads/torch/tenant.py), on a simulated one built-in ones. Prints a record as JSON: what
each tenant was told by the driver, and what the MPS server wrote to its log meanwhile, are in it, because neither is documented.
Exit status: 0 if all held, 1 if something did not."""

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
TENANT = os.path.join(os.path.dirname(HERE), "torch", "tenant.py")
# A program that loads PyTorch and a network from a cold disk takes half a minute.
LIMIT_S = 120
END_S = 30
POLL_S = 0.2
LOG_BYTES = 64 << 10
RUN = {"run": {"run": 1, "load": {"closed": {"pause_ns": 3_000_000, "depth": 1}}, "begin": 0, "requests_max": 1_000_000}}
CULPRIT, FIRST, OTHER = "bad", ("ls-1", "ls-2"), "be"
# Lookups before the one that faults: a few seconds with the pause above.
LOOKUPS = 500


class Failed(Exception):
    """What keeps it from going on."""


def fed(command):
    """A tenant that is told to run and not told to stop, so that it does not end by itself."""
    return f"(echo '{json.dumps(RUN)}'; exec tail -f /dev/null) | {command} > /dev/null"


def commands(simulated, python):
    """What tenants run: by name, and what faults."""
    if simulated:
        work = "partywall tenant tiny-kernels:ls"
        return {name: work for name in (*FIRST, OTHER, CULPRIT)}, f"PARTYWALL_SOFTGPU_FAULT=assert-at-launch=2000 {work}"
    torch = f"{python} {TENANT}"
    good = {
        "ls-1": f"{torch} network resnet50 --batch 1",
        "ls-2": f"{torch} network mobilenet_v3_large --batch 1",
        OTHER: f"{torch} gemm --size 4096",
        CULPRIT: f"{torch} gemm --size 4096",
    }
    return good, f"{torch} fault --after {LOOKUPS}"


def culprits(good, fault, folder):
    """Faults in its first run, in its second one once there is a file, and works in any other."""
    path = {name: os.path.join(folder, name) for name in ("first", "second", "again")}
    return (
        f"if [ ! -e {path['first']} ]; then touch {path['first']}; {fed(fault)}\n"
        f"elif [ ! -e {path['second']} ]; then touch {path['second']}; {fed(good)} &\n"
        f"until [ -e {path['again']} ]; do sleep 0.1; done; {fed(fault)}\n"
        f"else {fed(good)}\nfi"
    )


def tenants_file(simulated, python, folder, wall):
    good, fault = commands(simulated, python)
    text = [f'gpu.wall = "{wall}"']
    for name, klass in ((CULPRIT, "best-effort"), (FIRST[0], "latency-sensitive"), (OTHER, "best-effort"), (FIRST[1], "latency-sensitive")):
        script = culprits(good[name], fault, folder) if name == CULPRIT else fed(good[name])
        text.append(
            f'[[tenant]]\nname = "{name}"\nclass = "{klass}"\nmemory = "{1 if simulated else 20}GiB"\nrestart = "always"\n'
            f'share.percent = 25\ncommand = ["sh", "-c", {json.dumps(script)}]\n'
        )
    return "\n".join(text)


def seconds(nanoseconds):
    return None if nanoseconds is None else nanoseconds / 1e9


def faults_of(report):
    """The last fault, as the record has it."""
    fault = report["last_fault"]
    return {
        "number": fault["number"],
        "culprit": fault["culprit"],
        "evidence": fault["evidence"],
        "told": fault["told"],
        "recover_s": seconds(fault["recover_ns"]),
    }


def is_back(report, faults):
    """Whether a tenant runs after so many faults, the last of which is over."""
    last = report["last_fault"]
    return bool(
        last
        and last["number"] == faults
        and last["recover_ns"] is not None
        and report["activity"] == "running"
        and report["facts"]["processes"] > 0
    )


def wrong_after(reports, faults):
    """What does not hold of tenants that are back after a fault, by what it is about."""
    wrong, by_name = {}, {report["name"]: report for report in reports}
    last = by_name[OTHER]["last_fault"]
    if last["culprit"] != CULPRIT:
        wrong[f"culprit of fault {faults}"] = f"{last['culprit']}: {last['evidence']}, told {json.dumps(last['told'])}"
    back = [name for name in (OTHER, CULPRIT) if by_name[name]["activity"] == "running"]
    for name in FIRST:
        late = [other for other in back if by_name[other]["running_for_ns"] > by_name[name]["running_for_ns"]]
        if late:
            wrong[f"order after fault {faults}"] = f"{name} was started after {', '.join(late)}"
    for name, report in by_name.items():
        if name != CULPRIT and report["faults"]:
            wrong[f"blame after fault {faults}"] = f"{name} is said to have caused {report['faults']}"
    if (faults > 1) != by_name[CULPRIT]["kept_out"]:
        wrong[f"kept out after fault {faults}"] = str(by_name[CULPRIT]["kept_out"]).lower()
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

    def until(self, what, done):
        end = time.monotonic() + LIMIT_S
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
        expected = [name for name in (CULPRIT, *FIRST, OTHER) if faults == 1 or name != CULPRIT]
        last = []

        def back():
            last[:] = self.reports()
            return all(is_back(report, faults) for report in last if report["name"] in expected)

        self.until(f"{', '.join(expected)} are back after fault {faults}", back)
        return list(last)

    def server_log(self):
        with contextlib.suppress(OSError), open(os.path.join(self.folder, "node/mps/log/server.log"), "rb") as file:
            return file.read()[-LOG_BYTES:].decode(errors="replace").splitlines()
        return []

    def run(self):
        file = os.path.join(self.folder, "tenants.toml")
        with open(file, "w", encoding="utf-8") as out:
            out.write(tenants_file(self.simulated, sys.executable, self.folder, self.options.wall))
        record = {"simulated": self.simulated, "wall": self.options.wall, "culprit": CULPRIT, "faults": [], "wrong": {}}
        with self.node():
            try:
                self.say("up", "--detach", file)
                for faults in (1, 2):
                    reports = self.back_after(faults)
                    record["faults"].append(faults_of(next(report for report in reports if report["name"] == OTHER)))
                    record["wrong"] |= wrong_after(reports, faults)
                    if faults == 1:
                        with open(os.path.join(self.folder, "again"), "w", encoding="utf-8"):
                            pass
                record["recover_s"] = max(fault["recover_s"] for fault in record["faults"])
            except Failed as failure:
                record["wrong"]["run"] = str(failure)
            record["server_log"] = self.server_log()
            with open(self.log, encoding="utf-8", errors="replace") as said:
                record["node_log"] = said.read().splitlines()
        return record


def arguments(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partywall", default=shutil.which("partywall") or "target/release/partywall", metavar="PATH")
    parser.add_argument("--gpu", help="as of partywall: sim:h200 rehearses on a simulated GPU; default: the machine's")
    parser.add_argument("--wall", default="mps", choices=("mps", "mps-percentage", "green-contexts", "partywall"))
    parser.add_argument("--launches", metavar="PARTS", help="as of `partywall node`: then the first good request is known, and not only the first launch")
    parser.add_argument("--out", metavar="FILE", help="for the record; default: it is printed")
    options = parser.parse_args(words)
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
