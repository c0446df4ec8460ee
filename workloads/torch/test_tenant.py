"""Tests of everything that needs no GPU and no PyTorch: `python3 -m unittest discover -s workloads/torch`."""

import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile
import unittest
from collections import deque
from pathlib import Path

import gpu
import load
import programs
import protocol
import recording
import tenant

HERE = Path(__file__).parent
CLOSED = {"closed": {"pause_ns": 200, "depth": 2}}


class World:
    """A clock that only moves when somebody works or waits, a program that takes 1 000 ns a unit, and what is said."""

    def __init__(self, *, sent=(), told_at=()):
        self.now_ns = 0
        self.queued = self.done = self.begun = 0
        # Messages, each with the time from which it can be read.
        self.waiting = deque(sent)
        self.told_at = deque(told_at)
        self.written = []

    def now(self):
        self.now_ns += 1
        return self.now_ns

    def program(self, check="ok"):
        def queue():
            self.now_ns += 10
            self.queued += 1

        def wait():
            self.now_ns += 1_000 * (self.queued - self.done)
            self.done = self.queued

        def begin():
            self.begun += 1

        def verify(units):
            return check if units == self.queued else f"{units} units, but {self.queued} were queued"

        return programs.Program(queue, wait, "thing", 3.0, begin, verify, "abc", {"sms": "64"})

    # As a channel.
    def look(self, within_ms=0):
        if self.waiting and (within_ms is None or self.waiting[0][0] <= self.now_ns + within_ms * 1_000_000):
            at, message = self.waiting.popleft()
            self.now_ns = max(self.now_ns, at)
            return message
        if within_ms is None:
            return protocol.EXIT
        self.now_ns += within_ms * 1_000_000
        return None

    def send(self, name, content):
        self.written.append((name, content))

    def send_requests(self, times_ns):
        self.written.append(("requests", list(times_ns)))


def run_message(what=CLOSED, begin=0, most=100, number=7):
    return ("run", {"run": number, "load": what, "begin": begin, "requests_max": most})


def served(what, *, begin=0, most=5, end_after=None):
    world = World()
    told = (lambda ms: world.look(ms) is not None or world.now_ns > end_after) if end_after else world.look
    return load.serve(world.program(), load.Run(1, load.parse(what), begin, most), told, world.now), world


class Serving(unittest.TestCase):
    def test_closed_requests_follow_each_other_after_the_pause(self):
        got, world = served(CLOSED, begin=5_000)
        scheduled, starts, ends = (got.times_ns[first::3] for first in range(3))
        self.assertEqual(world.queued, 10, "two units for each of five requests")
        self.assertGreaterEqual(starts[0], 5_000)
        self.assertEqual(scheduled, starts)
        gaps = [start - end for start, end in zip(starts[1:], ends)]
        self.assertEqual(len(gaps), 4)
        self.assertTrue(all(200 <= gap < 210 for gap in gaps), gaps)
        self.assertEqual(list(got.gaps_ns), gaps)
        self.assertTrue(200 <= got.gap_ns() < 210)
        self.assertTrue(all(end - start > 2_000 for start, end in zip(starts, ends)))

    def test_periodic_requests_are_due_whatever_became_of_those_before(self):
        got, _ = served({"periodic": {"period_ns": 1_000}}, begin=100, most=4)
        self.assertEqual(list(got.times_ns[0::3]), [100, 1_100, 2_100, 3_100])
        starts, ends = got.times_ns[1::3], got.times_ns[2::3]
        self.assertTrue(all(start >= end for start, end in zip(starts[1:], ends)), "one after the other")
        self.assertGreater(ends[3] - 3_100, ends[0] - 100, "they queue")

    def test_poisson_arrivals_have_their_rate_and_repeat(self):
        what = {"poisson": {"rate_per_s": 500.0, "seed": 3}}

        def arrivals(content):
            one = load.parse(content)
            due = [one.start(1_000)]
            due += [one.next(0) for _ in range(5_000)]
            return due

        first = arrivals(what)
        self.assertEqual(first, arrivals(what))
        self.assertNotEqual(first, arrivals({"poisson": {"rate_per_s": 500.0, "seed": 4}}))
        self.assertEqual(first, sorted(first))
        self.assertGreater(first[0], 1_000)
        self.assertAlmostEqual((first[-1] - first[0]) / 5_000, 2_000_000, delta=100_000)

    def test_a_run_ends_when_told_and_finishes_the_request_in_flight(self):
        got, world = served(CLOSED, most=1_000, end_after=9_000)
        self.assertEqual(world.queued, world.done)
        self.assertEqual(got.requests * 2, world.queued)
        self.assertLess(got.requests, 10)

    def test_a_run_can_end_before_its_first_request(self):
        got, world = served(CLOSED, begin=10_000_000_000, end_after=1)
        self.assertEqual((got.requests, got.gap_ns(), world.queued), (0, None, 0))

    def test_loads_that_nobody_can_serve_are_refused_in_words(self):
        for what, words in [
            ({"closed": {"pause_ns": -1, "depth": 1}}, "pause_ns is -1"),
            ({"closed": {"pause_ns": 0, "depth": 0}}, "depth is 0"),
            ({"closed": {"pause_ns": 0}}, "depth is None"),
            ({"closed": {"pause_ns": 0, "depth": 1.5}}, "whole number"),
            ({"closed": {"pause_ns": 0, "depth": True}}, "depth is True"),
            ({"closed": []}, "an object is expected"),
            ({"periodic": {"period_ns": 0}}, "period_ns is 0"),
            ({"poisson": {"rate_per_s": float("nan"), "seed": 1}}, "rate_per_s is nan"),
            ({"open": {}}, "one of closed, periodic, poisson"),
            ({}, "one of closed"),
            (None, "load is None"),
        ]:
            with self.subTest(what), self.assertRaises(load.LoadError) as caught:
                load.parse(what)
            self.assertIn(words, str(caught.exception))


class Conversation(unittest.TestCase):
    def converse(self, *sent, check="ok"):
        world = World(sent=sent)
        tenant.Session(world, world.program(check), world.now).converse()
        return world

    def test_a_run_is_announced_served_and_reported(self):
        stop = (9_000, ("stop", {"run": 7}))
        world = self.converse((0, run_message()), stop)
        [(ready, about), (requests, times_ns), (done, result)] = world.written
        self.assertEqual((ready, requests, done), ("ready", "requests", "done"))
        self.assertEqual((about["protocol"], about["unit"], about["work"]), (1, "thing", 3.0))
        self.assertEqual(about["about"], {"sms": "64"})
        self.assertEqual(result["requests"], len(times_ns) // 3)
        self.assertGreater(result["requests"], 1)
        self.assertEqual((result["run"], result["check"], result["checksum"]), (7, "ok", "abc"))
        self.assertTrue(200 <= result["host_gap_ns"] < 210)
        self.assertEqual(world.begun, 1)

    def test_wrong_results_are_said(self):
        world = self.converse((0, run_message(most=2)), check="a token is wrong")
        self.assertEqual(world.written[-1][1]["check"], "a token is wrong")

    def test_a_stop_that_comes_late_or_for_another_run_changes_nothing(self):
        late = (1_000_000, ("stop", {"run": 7}))
        world = self.converse((0, run_message(most=3)), late, (1_000_000, run_message(most=3, number=8)))
        self.assertEqual([content["run"] for name, content in world.written if name == "done"], [7, 8])
        world = self.converse((0, run_message(most=3)), (10, ("stop", {"run": 6})))
        self.assertEqual(world.written[-1][1]["requests"], 3)

    def test_exit_in_a_run_ends_both(self):
        world = self.converse((0, run_message(most=1_000)), (5_000, ("exit", {})), (5_000, run_message()))
        self.assertEqual([name for name, _ in world.written], ["ready", "requests", "done"])

    def test_a_run_within_a_run_is_refused(self):
        with self.assertRaises(protocol.ProtocolError) as caught:
            self.converse((0, run_message()), (10, run_message(number=8)))
        self.assertIn("run 8 was asked for before run 7 was done", str(caught.exception))


class Lines(unittest.TestCase):
    def setUp(self):
        self.reading, self.to_tenant = os.pipe()
        self.from_tenant, writing = os.pipe()
        self.channel = protocol.Channel(self.reading, writing)
        self.open = {self.reading, self.to_tenant, self.from_tenant, writing}

    def tearDown(self):
        for fd in self.open:
            os.close(fd)

    def test_messages_come_in_pieces_and_together(self):
        self.assertIsNone(self.channel.look())
        os.write(self.to_tenant, b'{"stop": {"ru')
        self.assertIsNone(self.channel.look())
        os.write(self.to_tenant, b'n": 7}}\n\n{"exit": {}, "tenant": "a"}\n')
        self.assertEqual(self.channel.look(), ("stop", {"run": 7}))
        self.assertEqual(self.channel.look(None), ("exit", {}))
        self.assertIsNone(self.channel.look(1))

    def test_the_end_of_the_input_is_an_exit(self):
        os.close(self.to_tenant)
        self.open.remove(self.to_tenant)
        self.assertEqual(self.channel.look(None), protocol.EXIT)
        self.assertEqual(self.channel.look(), protocol.EXIT)

    def test_rubbish_is_refused_in_words(self):
        for line, words in [
            (b"hello", "'hello'"),
            (b"[]", "expected an object"),
            (b'{"run": {}, "stop": {}}', "expected an object"),
            (b'{"run": 3}', "expected an object"),
            (b'{"jump": {}}', "expected an object"),
            (b"\xff\xfe", "not a line"),
            (b"[" * 100_000, "not a line"),
        ]:
            with self.subTest(line[:20]), self.assertRaises(protocol.ProtocolError) as caught:
                protocol.parse(line)
            self.assertIn(words, str(caught.exception))

    def test_no_bytes_break_the_parser(self):
        chance = random.Random(5)
        for _ in range(300):
            line = bytes(chance.choice(b'{}[]":,run 0123456789\\e-.\xc3') for _ in range(chance.randrange(30)))
            try:
                protocol.parse(line)
            except protocol.ProtocolError:
                pass

    def test_a_line_without_an_end_is_not_kept_forever(self):
        for _ in range(2):
            os.write(self.to_tenant, b"x" * 40_000)
            try:
                self.assertIsNone(self.channel.look())
            except protocol.ProtocolError as error:
                self.assertIn("more than 65536 bytes", str(error))
                return
        self.fail("80 000 bytes were kept")

    def test_requests_are_written_one_to_a_line(self):
        self.channel.send_requests([1, 2, 3, 4, 5, 6])
        lines = os.read(self.from_tenant, 1_000).decode().splitlines()
        self.assertEqual([json.loads(line)["request"]["end"] for line in lines], [3, 6])
        self.channel.send_requests([])
        self.channel.failed("x" * 100_000)
        self.assertLess(len(os.read(self.from_tenant, 100_000)), protocol.LINE_MAX)


class Groups(unittest.TestCase):
    def test_ranges_become_indices(self):
        for text, groups in [("0-3", [0, 1, 2, 3]), ("7", [7]), ("0-1, 5,64-65", [0, 1, 5, 64, 65])]:
            self.assertEqual(gpu.parse_groups(text), groups)

    def test_what_names_no_groups_is_refused(self):
        for text in ["", "x", "3-1", "0-2,2", "5,4", "-1", "1-2-3", "0-9999", "+1", "1,", "٣"]:
            with self.subTest(text), self.assertRaises(gpu.GpuError) as caught:
                gpu.parse_groups(text)
            self.assertIn("ranges such as 0-31", str(caught.exception))

    def test_the_resource_is_laid_out_as_in_cuda_h(self):
        self.assertEqual(ctypes.sizeof(gpu.Resource), 144)
        self.assertEqual(gpu.Resource.sm_count.offset, 96)


class Process(unittest.TestCase):
    """The program itself, with the stand-in for a GPU."""

    def start(self, *words, environment=None):
        command = [sys.executable, str(HERE / "tenant.py"), *words]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, text=True, env=os.environ | (environment or {}), **pipes)

    def talk(self, words, lines, environment=None):
        process = self.start(*words, environment=environment)
        text = "".join(json.dumps(line) + "\n" if isinstance(line, dict) else line for line in lines)
        out, err = process.communicate(text, timeout=30)
        return process.returncode, [json.loads(line) for line in out.splitlines()], err

    def test_a_session(self):
        name, content = run_message(most=3)
        environment = {gpu.GROUPS_VARIABLE: "0-31"}
        process = self.start("--fake", "decode", "--batch", "32", environment=environment)
        with process:
            ready = json.loads(process.stdout.readline())["ready"]
            self.assertEqual((ready["pid"], ready["work"], ready["about"]["sms"]), (process.pid, 32, "64"))
            process.stdin.write(json.dumps({name: content}) + "\n")
            process.stdin.flush()
            requests = [json.loads(process.stdout.readline())["request"] for _ in range(3)]
            self.assertTrue(all(one["start"] < one["end"] for one in requests))
            done = json.loads(process.stdout.readline())["done"]
            self.assertEqual((done["run"], done["requests"], done["check"]), (7, 3, "ok"))
            process.stdin.write('{"exit": {}}\n')
            process.stdin.close()
            self.assertEqual(process.wait(10), 0)
            self.assertEqual(process.stdout.read(), "")

    def test_it_ends_with_its_owner(self):
        for words in (["stream"], ["kernel", "softmax", "--launches", "8", "--evict-first"]):
            status, lines, _ = self.talk(["--fake", *words], [])
            self.assertEqual((status, [next(iter(line)) for line in lines]), (0, ["ready"]))

    def test_failures_are_said_on_both_streams(self):
        for words, lines, environment, expected in [
            (["--fake", "gemm"], ["nonsense\n"], {}, "not a line of the protocol"),
            (["--fake", "gemm"], [{"run": {"run": 1}}], {}, "begin is None"),
            (["--fake", "gemm"], [], {gpu.GROUPS_VARIABLE: "9-3"}, "names no SM groups"),
            (["gemm"], [], {gpu.GROUPS_VARIABLE: "9-3"}, "names no SM groups"),
        ]:
            with self.subTest(expected):
                status, said, err = self.talk(words, lines, environment)
                self.assertEqual(status, 1)
                self.assertIn(expected, said[-1]["failed"]["message"])
                self.assertIn("tenant.py: ", err)

    def test_a_wrong_command_line_is_refused(self):
        for words in [["network", "alexnet"], ["decode", "--batch", "0"], ["decode", "--batch", "x"], ["fault", "--after", "0"], ["fault", "--kind", "x"], ["kernel", "sort"], ["kernel", "softmax", "--launches", "0"], []]:
            with self.subTest(words):
                status, said, err = self.talk(words, [])
                self.assertEqual((status, said), (2, []))
                self.assertIn("usage:", err)


def traced(name, ts, dur, **shape):
    return {"cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": shape}


WIDE = '''==PROF== Connected
"ID","Process ID","Kernel Name","Block Size","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","lts__t_bytes.sum"
"","","","","byte","byte","ns","byte"
"0","9","void f<(int)4, nextafter_kernel>(T1)","(1, 1, 1)","1","1","1","1"
"1","9","void gemm<int>(T1, T2)","(1, 1, 1)","1,000","24","2,016.5","4096"
"2","9","n/a(T1)","(1, 1, 1)","n/a","24","100","4096"
'''
LONG = '''"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","void gemm<int>(T1, T2)","Command line profiler metrics","dram__bytes_read.sum","byte","1,000"
"0","void gemm<int>(T1, T2)","Command line profiler metrics","dram__bytes_write.sum","byte","24"
"0","void gemm<int>(T1, T2)","Command line profiler metrics","lts__t_bytes.sum","byte","4,096"
"0","void gemm<int>(T1, T2)","Command line profiler metrics","gpu__time_duration.sum","nsecond","2016"
'''


class Recordings(unittest.TestCase):
    def test_percentiles_are_by_nearest_rank_and_need_samples(self):
        values = list(range(1, 101))
        self.assertEqual([recording.percentile(values, parts) for parts in (1, 50, 99)], [1, 50, 99])
        self.assertEqual(recording.percentile([5], 99), 5)
        self.assertEqual(recording.ms([1_500_000] * 20, 50, 20), 1.5)
        self.assertIsNone(recording.ms([1] * 999, 99, 1_000))

    def test_a_trace_becomes_the_medians_of_its_replays(self):
        shape = {"grid": [2, 1, 1], "block": [64, 1, 1], "registers per thread": 40, "shared memory": 512}
        events = [{"cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 0, "dur": 1}]
        for replay, (first, gap) in enumerate([(10.0, 1.0), (12.0, 3.0), (11.0, 2.0)]):
            at = 100.0 * replay
            memset = {"cat": "gpu_memset", "name": "Memset (Device)", "ts": at + first + gap, "dur": 1.0}
            events += [memset, traced("gemm", at, first, **shape)]
        gemm, memset = recording.kernels_of(events, 3)
        expected = {"name": "gemm", "us": 11.0, "gap_us": 0, "grid": [2, 1, 1], "block": [64, 1, 1], "regs": 40, "smem": 512}
        self.assertEqual(gemm, expected)
        self.assertEqual((memset["gap_us"], memset["grid"], memset["regs"]), (2.0, None, None))

    def test_a_trace_that_lost_kernels_is_refused(self):
        events = [traced("a", 0, 1), traced("b", 2, 1), traced("a", 4, 1)]
        for events, words in [
            (events, "3 kernels were traced in 2 replays"),
            ([], "0 kernels"),
            ([*events, traced("c", 6, 1)], "kernel 1 is not the same in all replays: b, c"),
        ]:
            with self.assertRaises(recording.RecordingError) as caught:
                recording.kernels_of(events, 2)
            self.assertIn(words, str(caught.exception))

    def test_both_tables_of_counters_are_read(self):
        _, gemm, unknown = recording.counted_kernels(WIDE)
        self.assertEqual((gemm["vram_bytes"], gemm["l2_bytes"], gemm["counted_ns"]), (1_024, 4_096, 2_016))
        self.assertEqual((unknown["vram_bytes"], unknown["l2_bytes"]), (None, 4_096))
        self.assertEqual(recording.counted_kernels(LONG), [gemm])
        with self.assertRaises(recording.RecordingError):
            recording.counted_kernels("==ERROR== no permission\n")

    def test_markers_part_the_networks(self):
        rows = [{"name": name} for name in ["x", "nextafter<1>", "a", "b", "nextafter<1>", "c"]]
        self.assertEqual(recording.at_markers(rows), [[{"name": "a"}, {"name": "b"}], [{"name": "c"}]])
        self.assertEqual(recording.at_markers([]), [])

    def test_counts_find_their_kernels_by_order_and_name(self):
        def kernel(name, grid=(1, 1, 1)):
            return {"name": name, "grid": list(grid) if grid else None}

        def count(name, vram_bytes):
            return {"name": name, "vram_bytes": vram_bytes, "l2_bytes": 1, "counted_ns": 1}

        kernels = [kernel("void a<int>"), kernel("Memset (Device)", None), kernel("b"), kernel("a::c<2>(int)"), kernel("d")]
        counted = [count("void a<float>(T1)", 10), count("b(int)", 20), count("extra", 30), count("a::c<(int)2>(T1)", 40)]
        self.assertEqual(recording.with_counts(kernels, counted), 3)
        self.assertEqual([one["vram_bytes"] for one in kernels], [10, None, 20, 40, None])

    def test_names_of_two_tools_are_the_same_kernel(self):
        for one, other in [
            ("void at::native::f<4, at::g<c10::Half>, int>(int, float)", "void at::native::f<(int)4, at::g>(T1)"),
            ("void at::native::(anonymous namespace)::h<int>(int*)", "void at::native::<unnamed>::h<int>(T1 *)"),
            ("nvjet_sm90_hsh_64x32_64x16_4x2_h_bz_NNT", "nvjet_sm90_hsh_64x32_64x16_4x2_h_bz_NNT"),
            ("void at::native::vectorized_elementwise_kernel<4, F>(int, F)", "void at::vectorized_elementwise_kernel<4, F>(int)"),
            ("x" * recording.NAME_MAX, "x" * recording.NAME_MAX + "_kernel__5x_cudnn"),
        ]:
            self.assertEqual(recording.base(one), recording.base(other))
        self.assertNotEqual(recording.base("void a::f<int>(int)"), recording.base("void a::g<int>(int)"))

    def test_a_recording_keeps_what_it_has(self):
        with tempfile.TemporaryDirectory() as folder:
            one = recording.Recording(Path(folder), "resnet50", 8)
            self.assertFalse(any(one.has(phase) for phase in ("solo", "trace", "scaling", "bytes")))
            one.about = {"gpu": "a GPU"}
            one.network |= {"graph_p50_ms": 1.5, "kernels": [{"name": "a", "grid": [1, 1, 1], "vram_bytes": 7}, {"name": "b", "grid": None}]}
            one.add_scaling({"sms": 16, "p50_ms": 4.0})
            one.add_scaling({"sms": 66, "p50_ms": 2.0})
            one.add_scaling({"sms": 16, "p50_ms": 3.0})
            one.write()
            self.assertEqual([path.name for path in Path(folder).iterdir()], ["resnet50-b8.json"])
            again = recording.Recording(Path(folder), "resnet50", 8)
            self.assertEqual((again.network, again.about), (one.network, one.about))
            self.assertEqual([point["p50_ms"] for point in again.network["scaling"]], [2.0, 3.0])
            self.assertTrue(all(again.has(phase) for phase in ("solo", "trace", "bytes")))
            self.assertTrue(again.has("scaling", 66) and not again.has("scaling", 8))
            for text in ["{", "[]", '{"about": {}, "networks": []}', '{"about": {}, "networks": [{"model": "x", "batch": 8}]}']:
                again.path.write_text(text)
                with self.subTest(text), self.assertRaises(recording.RecordingError) as caught:
                    recording.Recording(Path(folder), "resnet50", 8)
                self.assertIn("resnet50-b8.json", str(caught.exception))


class Profiles(unittest.TestCase):
    def record(self, folder, *words):
        command = [sys.executable, str(HERE / "profiles.py"), "--fake", "--out", folder, "--only", "vgg16", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    def test_a_rehearsal_records_every_phase_once(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ["--batches", "8", "--sms", "32", "--phases", "trace,scaling,bytes"]
            first = self.record(folder, *words)
            self.assertEqual(first.returncode, 0, first.stderr)
            path = Path(folder, "vgg16-b8.json")
            text = path.read_text()
            content = json.loads(text)
            [network] = content["networks"]
            self.assertEqual((network["model"], network["batch"], network["pass"]), ("vgg16", 8, "graph"))
            self.assertEqual([point["sms"] for point in network["scaling"]], [32])
            self.assertEqual(len(network["kernels"]), 2)
            self.assertEqual(content["about"]["weights"], "random")
            again = self.record(folder, *words)
            self.assertEqual((again.returncode, path.read_text()), (0, text))
            self.assertNotIn("scaling vgg16", again.stderr)

    def test_a_wrong_command_line_is_refused(self):
        for words in [["--phases", "sol"], ["--sms", "7"], ["--batches", "0"], ["--only", "alexnet"]]:
            with self.subTest(words):
                self.assertEqual(self.record("unused", *words).returncode, 2)


if __name__ == "__main__":
    unittest.main()
