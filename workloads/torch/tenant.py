#!/usr/bin/env python3
"""A PyTorch program as a tenant of `partywall measure`: it speaks the line protocol on standard input and output.

The programs: a network in fp16 replayed as a CUDA graph or launched kernel by kernel, a language model's decode loop, copies within the GPU's
memory, matrix products, and one that faults. Weights and inputs are random with a fixed seed, and each checks its own results. With
PARTYWALL_SM_GROUPS in the environment the process confines itself to these SMs.

`--fake` stands in for the GPU by short waits, to try the protocol without one.
"""

import argparse
import gc
import os
import signal
import sys
import time
import traceback

import load
import programs
import protocol
from gpu import GROUPS_VARIABLE, GpuError, parse_groups, start

# Longest context and largest batch: 600 GB of cache, so that a mistyped number is refused in words.
BATCH_MAX, CONTEXT_MAX, SIZE_MAX = 1024, 8192, 65_536
# What a graph of them still launches quickly.
LAUNCHES_MAX = 1000
# More than any measurement serves.
UNITS_MAX = 1_000_000_000


def positive(most: int):
    def whole(text: str) -> int:
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text}: a whole number from 1 to {most} is expected")
        return int(text)

    return whole


def arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tenant.py", description="A PyTorch program as a tenant of `partywall measure`.")
    parser.add_argument("--fake", action="store_true", help="short waits instead of a GPU; the times mean nothing")
    commands = parser.add_subparsers(dest="program", required=True)
    network = commands.add_parser("network", help="one inference of a network, as a CUDA graph or eager")
    network.add_argument("name", choices=programs.NETWORKS, metavar="NAME", help=", ".join(programs.NETWORKS))
    network.add_argument("--batch", type=positive(BATCH_MAX), default=1, metavar="N")
    network.add_argument("--eager", action="store_true", help="launch kernel by kernel instead of a CUDA graph")
    network.add_argument("--exact", action="store_true", help="eager results have to be the same to the bit each time, not within a tolerance")
    decode = commands.add_parser("decode", help="one token of a small language model for each of a batch of sequences")
    decode.add_argument("--batch", type=positive(BATCH_MAX), default=1, metavar="N")
    decode.add_argument("--eager", action="store_true", help="launch kernel by kernel instead of a CUDA graph")
    decode.add_argument("--context", type=positive(CONTEXT_MAX), default=programs.CONTEXT, metavar="N", help="positions")
    compiled = commands.add_parser("compiled", help="a network of Triton's kernels alone, on one side of the chip behind the wall `sides`")
    compiled.add_argument("name", choices=programs.OF_TRITON, metavar="NAME", help=", ".join(programs.OF_TRITON))
    compiled.add_argument("--batch", type=positive(BATCH_MAX), metavar="N")
    kernel = commands.add_parser("kernel", help="a kernel of Triton's tutorials, on one side of the chip behind the wall `sides`")
    kernel.add_argument("name", choices=programs.KERNELS, metavar="NAME", help=", ".join(programs.KERNELS))
    kernel.add_argument("--launches", type=positive(LAUNCHES_MAX), default=1, metavar="N", help="one after the other, as one unit of work")
    for one in (compiled, kernel):
        one.add_argument("--eager", action="store_true", help="launch kernel by kernel instead of a CUDA graph")
        one.add_argument(
            "--evict-first", action="store_true", help="on a side: what is accessed leaves the L2 first, as best-effort tenants should have it"
        )
    commands.add_parser("stream", help="copies of 1 GiB within the GPU's memory")
    gemm = commands.add_parser("gemm", help="products of two square bf16 matrices")
    gemm.add_argument("--size", type=positive(SIZE_MAX), default=programs.GEMM_SIZE, metavar="N", help="rows and columns")
    fault = commands.add_parser("fault", help="lookups in a table until the GPU faults")
    kinds = "how: a lookup outside of the table, which an assertion finds (the default), or a store to an illegal address"
    fault.add_argument("--kind", choices=programs.FAULTS, default=programs.FAULTS[0], help=kinds)
    fault.add_argument("--after", type=positive(UNITS_MAX), default=1000, metavar="N", help="units of work before that")
    return parser.parse_args(words)


def set_up(chosen: argparse.Namespace) -> programs.Program:
    if chosen.fake:
        groups = os.environ.get(GROUPS_VARIABLE)
        about = {"sms": str(2 * len(parse_groups(groups)))} if groups else {}
        return programs.fake(" ".join(map(str, vars(chosen).values())), getattr(chosen, "batch", None) or 1, about)
    gpu = start()
    if chosen.program == "network":
        tolerance = 0.0 if chosen.exact else programs.TOLERANCE
        return programs.open_model(gpu, chosen.name, eager=chosen.eager, tolerance=tolerance).program(chosen.batch)
    if chosen.program in ("compiled", "kernel"):
        import compiled

        if chosen.program == "compiled":
            work = compiled.Network(chosen.name, chosen.batch, chosen.evict_first)
        else:
            work = compiled.Kernel(programs.KERNELS[chosen.name], chosen.launches, chosen.evict_first)
        return compiled.program(gpu, chosen.name, work, chosen.eager)
    if chosen.program == "decode":
        return programs.decoder(gpu, chosen.context, chosen.eager).program(chosen.batch)
    if chosen.program == "stream":
        return programs.stream(gpu)
    if chosen.program == "fault":
        return programs.fault(gpu, chosen.after, chosen.kind)
    return programs.gemm(gpu, chosen.size)


class Session:
    """A tenant's conversation with its owner: runs, one after the other, until `exit`."""

    def __init__(self, channel: protocol.Channel, program: programs.Program, now=time.monotonic_ns):
        self.channel, self.program, self.now = channel, program, now
        self.exit = False

    def converse(self) -> None:
        program = self.program
        ready = {"protocol": protocol.VERSION, "pid": os.getpid(), "unit": program.unit, "work": program.work}
        self.channel.send("ready", ready | {"about": program.about})
        while not self.exit:
            name, content = self.channel.look(None)
            if name == "run":
                self.serve(load.Run.parse(content))
            elif name == "exit":
                self.exit = True
            # A `stop` that comes late is for a run that has ended by itself.

    def serve(self, run: load.Run) -> None:
        self.program.begin()
        # A collection in the middle of a request would be counted as the GPU's.
        gc.collect()
        gc.disable()
        served = load.serve(self.program, run, lambda within_ms: self.told_to_end(run, within_ms), self.now)
        gc.enable()
        self.channel.send_requests(served.times_ns)
        done = {
            "run": run.run,
            "requests": served.requests,
            "check": self.program.verify(served.requests * run.load.depth),
            "checksum": self.program.checksum,
        }
        gap = served.gap_ns()
        self.channel.send("done", done if gap is None else done | {"host_gap_ns": gap})

    def told_to_end(self, run: load.Run, within_ms: int) -> bool:
        message = self.channel.look(within_ms)
        if message is None:
            return False
        name, content = message
        if name == "run":
            raise protocol.ProtocolError(f"run {content.get('run')!r} was asked for before run {run.run} was done")
        self.exit |= name == "exit"
        return name == "exit" or content.get("run") == run.run


def main() -> int:
    # Ctrl-C is for the owner, who then ends its tenants.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    chosen = arguments(sys.argv[1:])
    channel = protocol.take_over_standard_streams()
    try:
        program = set_up(chosen)
        gc.collect()
        gc.freeze()
        Session(channel, program).converse()
        return 0
    except (BrokenPipeError, ConnectionResetError):
        # The owner is gone.
        return 1
    except (GpuError, programs.ProgramError, protocol.ProtocolError, load.LoadError) as error:
        message = str(error)
    except Exception as error:
        # Anything may come out of a library; the owner records it and goes on with other cells.
        traceback.print_exc()
        message = f"{type(error).__name__}: {error}"
    print(f"tenant.py: {message}", file=sys.stderr)
    try:
        channel.failed(message)
    except OSError:
        pass
    return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Libraries are not torn down: after a fault of the GPU that can hang, and the driver cleans up by itself.
    os._exit(status)
