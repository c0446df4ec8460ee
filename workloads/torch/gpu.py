"""The GPU as a tenant sees it: the SM set it may use, its stream, and waiting for what was queued there.

A process is confined to an SM set by a *green context*, made here through the driver before PyTorch first uses the
GPU, and current on the main thread from then on. PyTorch and its libraries do not know: all they launch on this thread
runs on those SMs, captured graphs included.

What needs care is *where work is queued*. `cuCtxSynchronize` under a green context waits for that context alone, while
a graph launched into the default stream goes to the default stream of the primary context. Therefore

- all work goes into one stream that was created for the green context, by its handle, never into a default stream;
- `wait` synchronises that stream and then the primary context, which waits for its green contexts as well. The second
  costs two microseconds and leaves nothing to what a library may have queued elsewhere.
"""

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass

GROUPS_VARIABLE = "PARTYWALL_SM_GROUPS"
# No GPU has as many; bounds what a mistyped range can make us keep.
GROUPS_MAX = 4096

# From cuda.h of CUDA 13.0.
RESOURCE_TYPE_SM = 1
SPLIT_IGNORE_SM_COSCHEDULING = 1
GREEN_CTX_DEFAULT_STREAM = 1
STREAM_NON_BLOCKING = 1
SMALLEST_GROUP = 2


class GpuError(Exception):
    """The GPU cannot be had as wished, in words for the one who wished it."""


def parse_groups(text: str) -> list[int]:
    """`0-31,40` as indices: inclusive ranges, comma-separated, rising and disjoint."""
    groups: list[int] = []
    for part in text.split(","):
        ends = part.strip().split("-")
        if len(ends) > 2 or not all(end.isascii() and end.isdigit() and int(end) < GROUPS_MAX for end in ends):
            raise GpuError(wrong_groups(text))
        first, last = int(ends[0]), int(ends[-1])
        if first > last or (groups and groups[-1] >= first):
            raise GpuError(wrong_groups(text))
        groups.extend(range(first, last + 1))
    return groups


def wrong_groups(text: str) -> str:
    form = f"write ranges such as 0-31 or 0-3,8-11, in rising order, below {GROUPS_MAX}"
    return f"{GROUPS_VARIABLE} is {text[:80]!r}, which names no SM groups; {form}"


class Resource(ctypes.Structure):
    """CUdevResource of cuda.h: 144 bytes, of which the number of SMs is the first word of the union at 96."""

    _fields_ = [
        ("type", ctypes.c_uint32),
        ("padding", ctypes.c_ubyte * 92),
        ("sm_count", ctypes.c_uint32),
        ("rest", ctypes.c_ubyte * 44),
    ]


class Driver:
    """The few calls of the CUDA driver that PyTorch has no words for, on device 0."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise GpuError(f"no CUDA driver: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))
        self.primary = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.primary), ctypes.c_int(0))

    def call(self, name: str, *arguments) -> None:
        try:
            function = getattr(self.library, name)
        except AttributeError:
            raise GpuError(f"this driver has no {name}; Green Contexts need driver 550 or later") from None
        code = function(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise GpuError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def sms_of(self, green: ctypes.c_void_p) -> int:
        resource = Resource()
        self.call("cuGreenCtxGetDevResource", green, ctypes.byref(resource), RESOURCE_TYPE_SM)
        return resource.sm_count

    def split(self) -> list[Resource]:
        """The smallest groups of SMs that the device can be split into: all processes get the same ones."""
        whole = Resource()
        self.call("cuDeviceGetDevResource", 0, ctypes.byref(whole), RESOURCE_TYPE_SM)
        count = ctypes.c_uint(whole.sm_count // SMALLEST_GROUP)
        groups = (Resource * count.value)()
        flags = (ctypes.c_uint(SPLIT_IGNORE_SM_COSCHEDULING), ctypes.c_uint(SMALLEST_GROUP))
        rest = Resource()
        self.call("cuDevSmResourceSplitByCount", groups, ctypes.byref(count), ctypes.byref(whole), ctypes.byref(rest), *flags)
        return list(groups)[: count.value]


class SmSet:
    """A green context over some groups of SMs, and a stream in it."""

    def __init__(self, driver: Driver, groups: list[int]):
        driver.call("cuCtxSetCurrent", driver.primary)
        split = driver.split()
        if groups[-1] >= len(split):
            raise GpuError(f"{GROUPS_VARIABLE} names group {groups[-1]}; this GPU has {len(split)} groups, from 0")
        chosen = (Resource * len(groups))(*(split[index] for index in groups))
        description = ctypes.c_void_p()
        driver.call("cuDevResourceGenerateDesc", ctypes.byref(description), chosen, ctypes.c_uint(len(groups)))
        self._driver = driver
        self._green, self._context, self._stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        flags = ctypes.c_uint(GREEN_CTX_DEFAULT_STREAM)
        driver.call("cuGreenCtxCreate", ctypes.byref(self._green), description, ctypes.c_int(0), flags)
        driver.call("cuCtxFromGreenCtx", ctypes.byref(self._context), self._green)
        flags = (ctypes.c_uint(STREAM_NON_BLOCKING), ctypes.c_int(0))
        driver.call("cuGreenCtxStreamCreate", ctypes.byref(self._stream), self._green, *flags)
        self.sms = driver.sms_of(self._green)
        asked = sum(split[index].sm_count for index in groups)
        if self.sms != asked:
            raise GpuError(f"the green context has {self.sms} SMs, but its {len(groups)} groups have {asked}")

    @property
    def stream(self) -> int:
        return self._stream.value or 0

    def enter(self) -> None:
        """Makes it current on this thread."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def check_entered(self) -> None:
        current = ctypes.c_void_p()
        self._driver.call("cuCtxGetCurrent", ctypes.byref(current))
        if current.value != self._context.value:
            raise GpuError("the green context is no longer current: a library has made another one current")

    def synchronize_primary(self) -> None:
        """Waits for the primary context, and as cuda.h has it for all its green contexts."""
        call, popped = self._driver.call, ctypes.c_void_p()
        call("cuCtxPushCurrent_v2", self._driver.primary)
        call("cuCtxSynchronize")
        call("cuCtxPopCurrent_v2", ctypes.byref(popped))


@dataclass
class Gpu:
    """`wait` returns when all that was queued is done; `check` raises when the process is no longer confined; `enter` makes its SMs current again
    after a library has made the whole GPU current."""

    stream: object
    wait: Callable[[], None]
    check: Callable[[], None]
    enter: Callable[[], None]
    about: dict[str, str]
    # As PyTorch names it.
    device: str = "cuda"


def start() -> Gpu:
    """Takes the GPU for this process, confined to the groups in the environment if any are named, and imports PyTorch.

    Call it on the main thread, before anything else uses the GPU.
    """
    text = os.environ.get(GROUPS_VARIABLE)
    groups = parse_groups(text) if text else None
    sm_set = SmSet(Driver(), groups) if groups else None
    if sm_set:
        sm_set.enter()
    import torch

    torch.cuda.init()
    if sm_set:
        # PyTorch's first steps on the GPU may have made the primary context current.
        sm_set.enter()
        stream = torch.cuda.get_stream_from_external(sm_set.stream)
    else:
        stream = torch.cuda.Stream()
    torch.cuda.set_stream(stream)
    torch.backends.cudnn.benchmark = False

    def wait_in_set() -> None:
        stream.synchronize()
        sm_set.synchronize_primary()

    wait = wait_in_set if sm_set else stream.synchronize
    check = sm_set.check_entered if sm_set else lambda: None
    enter = sm_set.enter if sm_set else lambda: None
    check()
    return Gpu(stream, wait, check, enter, about(sm_set.sms if sm_set else None))


def about(sms: int | None) -> dict[str, str]:
    import torch

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "sms": str(sms or properties.multi_processor_count),
        "driver": driver_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }


def driver_version() -> str:
    """The driver's version as NVML says it: 580.159.04."""
    text = ctypes.create_string_buffer(96)
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        known = nvml.nvmlInit_v2() == 0 and nvml.nvmlSystemGetDriverVersion(text, len(text)) == 0
        return text.value.decode() if known else "unknown"
    except (OSError, AttributeError):
        return "unknown"
