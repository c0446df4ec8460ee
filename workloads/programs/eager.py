#!/usr/bin/env python3
"""Times, on request: eager ResNet-50, small copies, launches of next to nothing. For `measure.py --time`.

Each line on standard input is a request, each line on standard output its answer in JSON; it ends with its input:

    resnet50 12     so many fp16 inferences of one image, each waited for: the median, and the GPU's time by events
    copy 100        so many pinned 64 KiB copies to the GPU, each waited for: the median
    launch 400     so many launches of a kernel on one number, then one wait: the time per launch

`--fake` answers with times out of nothing, without a GPU."""

import argparse
import gc
import json
import statistics
import sys
import time

# Time for a GPU that was somebody else's a moment ago to be this process's again.
WARM_UP = 5
BY_EVENTS = 5
COPY_BYTES = 64 << 10


class Eager:
    def __init__(self):
        import programs

        framework = programs.Torch()
        # The usual way to run: no algorithm is forbidden.
        framework.torch.use_deterministic_algorithms(False)
        self.torch = framework.torch
        self.network = programs.resnet50(self.torch)
        self.image = programs.images(self.torch, 0).cuda()
        self.host = self.torch.ones(COPY_BYTES, dtype=self.torch.uint8).pin_memory()
        self.target = self.torch.zeros(COPY_BYTES, dtype=self.torch.uint8, device="cuda")
        self.one = self.torch.zeros(1, device="cuda")

    def times(self, call, number):
        """Nanoseconds of each call with the wait for it."""
        wait, now = self.torch.cuda.synchronize, time.perf_counter_ns
        for _ in range(WARM_UP):
            call()
            wait()
        taken = []
        for _ in range(number):
            begin = now()
            call()
            wait()
            taken.append(now() - begin)
        return taken

    def resnet50(self, number):
        with self.torch.inference_mode():
            taken = self.times(lambda: self.network(self.image), number)
            gpu = []
            for _ in range(BY_EVENTS):
                begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                self.network(self.image)
                end.record()
                self.torch.cuda.synchronize()
                gpu.append(begin.elapsed_time(end) * 1e6)
        return {"median_ns": statistics.median(taken), "gpu_ns": statistics.median(gpu)}

    def copy(self, number):
        return {"median_ns": statistics.median(self.times(lambda: self.target.copy_(self.host, non_blocking=True), number))}

    def launch(self, number):
        def launches(count):
            for _ in range(count):
                self.one.add_(1)
            self.torch.cuda.synchronize()

        with self.torch.inference_mode():
            launches(50)
            begin = time.perf_counter_ns()
            launches(number)
            return {"median_ns": (time.perf_counter_ns() - begin) / number}


class Fake:
    def resnet50(self, number):
        return {"median_ns": 4_000_000.0, "gpu_ns": 3_000_000.0}

    def copy(self, number):
        return {"median_ns": 20_000.0}

    def launch(self, number):
        return {"median_ns": 3_000.0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="no GPU")
    chosen = parser.parse_args()
    served = Fake() if chosen.fake else Eager()
    for kind in ("resnet50", "copy", "launch"):
        getattr(served, kind)(20)
    gc.collect()
    gc.freeze()
    gc.disable()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        kind, number = line.split()
        if kind not in ("resnet50", "copy", "launch"):
            print(f"eager.py: {kind!r} is not known", file=sys.stderr)
            return 1
        print(json.dumps(getattr(served, kind)(int(number))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
