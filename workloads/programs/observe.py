"""What somebody else sees of a tenant while it runs: the driver's own tool library (NVML), and the node's JSON API."""

import ctypes
import http.client
import json
import os
import re
import threading
import time
from fractions import Fraction

PERIOD_S = 0.05
ANSWER_S = 2.0
# NVML's way to say that it does not know.
UNKNOWN = (1 << 64) - 1
PROCESSES_MAX = 256
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def size(value):
    """Bytes from a size of the JSON API, such as "528MiB" or "1.5GiB", which is exact."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(B|KiB|MiB|GiB|TiB)", value)
    if not found:
        raise ValueError(f"{value!r} is no size")
    return int(Fraction(found[1]) * UNITS[found[2]])


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of version 3."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class MemoryInfo(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """The first GPU. Everything is None where NVML is missing."""

    def __init__(self):
        self.library, self.device, self.missing = None, ctypes.c_void_p(), None
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            status = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))
            if status != 0:
                raise OSError(f"NVML: status {status}")
            self.library = library
        except OSError as error:
            self.missing = str(error)

    def text(self, function, *before):
        if self.library is None:
            return None
        kept = ctypes.create_string_buffer(96)
        status = getattr(self.library, function)(*before, kept, ctypes.c_uint(len(kept)))
        return kept.value.decode("ascii", "replace") if status == 0 else None

    def name(self):
        return self.text("nvmlDeviceGetName", self.device)

    def driver(self):
        return self.text("nvmlSystemGetDriverVersion")

    def processes(self):
        """GPU memory by process id; the memory is None where NVML does not say."""
        if self.library is None:
            return None
        found, count = (ProcessInfo * PROCESSES_MAX)(), ctypes.c_uint(PROCESSES_MAX)
        function = self.library.nvmlDeviceGetComputeRunningProcesses_v3
        if function(self.device, ctypes.byref(count), found) != 0:
            return None
        return {one.pid: None if one.used == UNKNOWN else one.used for one in found[: count.value]}

    def used(self):
        """GPU memory in use by anybody."""
        if self.library is None:
            return None
        memory = MemoryInfo()
        return memory.used if self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(memory)) == 0 else None


def ask(address, path):
    connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
    try:
        connection.request("GET", path, headers={"Connection": "close"})
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def descendants(pid):
    """Process ids of a process and all that came of it, as far as they have parents."""
    found, ahead = set(), [pid]
    while ahead:
        one = ahead.pop()
        if one in found:
            continue
        found.add(one)
        try:
            for thread in os.listdir(f"/proc/{one}/task"):
                with open(f"/proc/{one}/task/{thread}/children", encoding="ascii") as file:
                    ahead += map(int, file.read().split())
        except OSError:
            # It has ended.
            continue
    return found


class Watch:
    """What was seen of one tenant."""

    def __init__(self, name, pid, device_before):
        self.name, self.pid, self.device_before = name, pid, device_before
        self.pids, self.samples, self.nvml_samples, self.node_samples = set(), 0, 0, 0
        self.nvml_max = self.device_max = self.node_max = self.context_max = self.uncounted_max = self.quota = None
        self.guaranteed, self.reasons, self.notices, self.coverage = None, [], [], {}

    def look(self, tenants, processes, device_used):
        self.samples += 1
        self.pids |= descendants(self.pid)
        tenant = next((one for one in tenants or [] if one["name"] == self.name), None)
        if tenant:
            self.node_samples += 1
            memory = tenant["memory"]
            self.pids |= {one["pid"] for one in tenant["processes"] if one["pid"]}
            self.quota = size(memory["quota_bytes"])
            self.node_max = highest(self.node_max, size(memory["used_bytes"]))
            self.context_max = highest(self.context_max, size(memory["context_bytes"]))
            self.uncounted_max = highest(self.uncounted_max, size(memory["uncounted_bytes"]))
            self.guaranteed, self.reasons, self.notices = tenant["guaranteed"], tenant["reasons"], tenant["notices"]
            self.coverage = tenant["coverage"]
        held = [used for pid, used in (processes or {}).items() if pid in self.pids and used is not None]
        if held:
            self.nvml_samples += 1
            self.nvml_max = highest(self.nvml_max, sum(held))
        if device_used is not None:
            self.device_max = highest(self.device_max, device_used)

    def report(self, quota, alone):
        """Figures in bytes. `alone`: nobody else has used the GPU meanwhile, so that what it has in use is the tenant's."""
        grown = None
        if alone and self.device_max is not None and self.device_before is not None:
            grown = max(0, self.device_max - self.device_before)
        report = {"samples": self.samples, "nvml_samples": self.nvml_samples, "node_samples": self.node_samples}
        report |= {"nvml_max_bytes": self.nvml_max, "nvml_overshoot_bytes": overshoot(self.nvml_max, quota)}
        report |= {"device_grown_bytes": grown, "device_overshoot_bytes": overshoot(grown, quota)}
        report |= {"node_max_bytes": self.node_max, "node_overshoot_bytes": overshoot(self.node_max, quota)}
        report |= {"node_quota_bytes": self.quota, "context_max_bytes": self.context_max}
        report |= {"uncounted_max_bytes": self.uncounted_max, "guaranteed": self.guaranteed}
        return report | {"reasons": self.reasons, "notices": self.notices}


def highest(before, now):
    return now if before is None else max(before, now)


def overshoot(most, quota):
    return None if most is None else max(0, most - quota)


class Observer:
    """Looks at all watched tenants, every twentieth of a second, in a thread of its own."""

    def __init__(self, address, nvml):
        self.address, self.nvml = address, nvml
        self.watches, self.lock, self.over = [], threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def begin(self, name, pid, device_before):
        watch = Watch(name, pid, device_before)
        with self.lock:
            self.watches.append(watch)
        return watch

    def end(self, watch):
        with self.lock:
            self.watches.remove(watch)

    def work(self):
        due = time.monotonic()
        while not self.over.wait(max(0.0, due - time.monotonic())):
            due = max(due + PERIOD_S, time.monotonic())
            if not self.watches:
                continue
            try:
                tenants = ask(self.address, "/api/v1/tenants")
            except (OSError, ValueError, http.client.HTTPException):
                # The next look may be luckier; how many were, is in the report.
                tenants = None
            processes, used = self.nvml.processes(), self.nvml.used()
            with self.lock:
                for watch in self.watches:
                    watch.look(tenants, processes, used)

    def close(self):
        self.over.set()
        self.thread.join(ANSWER_S + 1)
