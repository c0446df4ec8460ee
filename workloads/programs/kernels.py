"""Counts the kernels that really run on the GPU in this process, through CUPTI's activity API.

CUPTI calls back for empty buffers and hands filled ones over. A buffer holds some ten thousand kernels, and the end of
the count flushes what is not full, so that there are few calls back and most of them at a time when nothing else runs.

Where in a record the kernel's name stands is nowhere said but in CUPTI's header (here: that of CUDA 13.0), and may change
with its version. Whether it stands there is seen from what is there: names are read by way of the operating system, which
refuses addresses that are none, and if one record has no plausible name, the count comes without names.
"""

import ctypes
import glob
import hashlib
import json
import os
import re
import sys
from collections import Counter

# Of CUPTI's enumerations.
KERNEL, CONCURRENT_KERNEL = 3, 10
MAX_LIMIT_REACHED = 12
FLUSH_FORCED = 1
BUFFER_BYTES = 8 << 20
ALIGNMENT = 8
# Of `name` in CUpti_ActivityKernel10.
NAME_OFFSET = 104
# Names of templates are long; what is behind this does not tell two apart often enough to matter.
NAME_MAX = 4096
SHORTEST_NAME = 3

REQUESTED = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
COMPLETED = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)


class KernelsError(Exception):
    """Kernels cannot be counted; in words for the one who asked."""


def version_of(path):
    """What follows `.so.` in a library's name, to take the newest: libcupti.so.13.0.85 has (13, 0, 85)."""
    return tuple(int(part) for part in re.findall(r"\d+", path.rpartition(".so")[2]))


def candidates(folders, roots=("/usr/local/cuda", "/usr/local/cuda-13", "/usr/local/cuda-12")):
    """Where CUPTI may be, best first: beside the frameworks, what the loader finds, the toolkit."""

    def by_version(patterns):
        paths = {path for pattern in patterns for path in glob.glob(pattern, recursive=True)}
        return sorted(sorted(paths), key=version_of, reverse=True)

    yield from by_version(f"{folder}/nvidia/**/lib/libcupti.so*" for folder in folders)
    yield from ("libcupti.so.13", "libcupti.so.12", "libcupti.so")
    # Last, because that is a large tree.
    yield from by_version(f"{root}/**/libcupti.so*" for root in roots)


def load():
    for path in candidates([folder for folder in sys.path if os.path.isdir(folder)]):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise KernelsError("no libcupti.so was found: not beside the frameworks, not by the loader, not in /usr/local/cuda")


def records(following, buffer, valid_bytes):
    """Addresses of the records in a filled buffer. `following` is cuptiActivityGetNextRecord."""
    record = ctypes.c_void_p(None)
    while True:
        status = following(ctypes.c_void_p(buffer), ctypes.c_size_t(valid_bytes), ctypes.byref(record))
        if status == MAX_LIMIT_REACHED:
            return
        if status != 0:
            raise KernelsError(f"CUPTI could not read its own buffer: status {status}")
        yield record.value


def kernel_records(following, buffer, valid_bytes):
    for address in records(following, buffer, valid_bytes):
        if ctypes.c_uint32.from_address(address).value in (KERNEL, CONCURRENT_KERNEL):
            yield address


class Names:
    """Reads names out of this process's memory by way of the kernel: an address that is none is an error, not a crash."""

    def __init__(self):
        self.memory = os.open("/proc/self/mem", os.O_RDONLY)

    def at(self, address):
        """A plausible name of a kernel, or None."""
        try:
            text = os.pread(self.memory, NAME_MAX, address) if 0 < address < 1 << 47 else b""
        except OSError:
            text = self.page_by_page(address)
        name, end, _ = text.partition(b"\0")
        if len(name) < SHORTEST_NAME or not (end or len(name) == NAME_MAX):
            return None
        return name.decode("ascii") if all(0x20 <= byte < 0x7F for byte in name) else None

    def page_by_page(self, address):
        """What can be read where the memory ends before the longest name would."""
        text = b""
        while len(text) < NAME_MAX:
            here = address + len(text)
            try:
                part = os.pread(self.memory, 4096 - here % 4096, here)
            except OSError:
                break
            if not part:
                break
            text += part
        return text


class Count:
    """Kernels by name; after one without a plausible name only their number."""

    def __init__(self, names):
        self.names, self.total, self.by_name = names, 0, Counter()

    def add(self, following, buffer, valid_bytes):
        # A pointer means the same name within a buffer, not for ever: modules are unloaded.
        known = {}
        for address in kernel_records(following, buffer, valid_bytes):
            self.total += 1
            if self.by_name is None:
                continue
            pointer = ctypes.c_uint64.from_address(address + NAME_OFFSET).value
            if pointer not in known:
                known[pointer] = self.names.at(pointer)
            if known[pointer] is None:
                self.by_name = None
            else:
                self.by_name[known[pointer]] += 1

    def report(self):
        report = {"total": self.total}
        if self.by_name is not None:
            listed = json.dumps(sorted(self.by_name.items())).encode()
            report |= {"names": len(self.by_name), "by_name": hashlib.sha256(listed).hexdigest()}
        return report


class Cupti:
    """A count that begins when it is made, which must be before the GPU is used for the first time."""

    def __init__(self, library=None):
        self.library = library or load()
        self.following = self.library.cuptiActivityGetNextRecord
        self.buffers, self.failure = {}, None
        self.count = Count(Names())
        # Kept for as long as the process lives: CUPTI has no way to forget them.
        self.callbacks = REQUESTED(self.requested), COMPLETED(self.completed)
        self.call("cuptiActivityRegisterCallbacks", *self.callbacks)
        self.call("cuptiActivityEnable", ctypes.c_int(CONCURRENT_KERNEL))

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise KernelsError(f"{name}: status {status}; is another profiler at work?")

    def requested(self, buffer, size, most_records):
        memory = ctypes.create_string_buffer(BUFFER_BYTES + ALIGNMENT)
        address = ctypes.addressof(memory)
        address += -address % ALIGNMENT
        self.buffers[address] = memory
        buffer[0], size[0], most_records[0] = address, BUFFER_BYTES, 0

    def completed(self, _context, _stream, buffer, _size, valid_bytes):
        # An exception would be lost in CUPTI's thread.
        try:
            if valid_bytes:
                self.count.add(self.following, buffer, valid_bytes)
        except Exception as error:
            self.failure = error
        self.buffers.pop(buffer, None)

    def restart(self):
        """Forgets what was counted so far. The GPU must be idle."""
        self.flush()
        self.count = Count(self.count.names)

    def flush(self):
        self.call("cuptiActivityFlushAll", ctypes.c_uint32(FLUSH_FORCED))
        if self.failure is not None:
            raise KernelsError(f"reading CUPTI's records: {self.failure}")

    def finish(self):
        """What was counted. The GPU must be idle."""
        self.flush()
        self.call("cuptiActivityDisable", ctypes.c_int(CONCURRENT_KERNEL))
        dropped = ctypes.c_size_t(0)
        self.call("cuptiActivityGetNumDroppedRecords", None, ctypes.c_uint32(0), ctypes.byref(dropped))
        if dropped.value:
            raise KernelsError(f"CUPTI has dropped {dropped.value} records; the count would be wrong")
        return self.count.report()
