"""Tests of everything that needs no GPU: `python3 -m unittest discover -s workloads/programs`."""

import argparse
import ctypes
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

import kernels
import measure
import observe
import programs
import timing

HERE = os.path.dirname(os.path.abspath(__file__))
GIB, MIB = 1 << 30, 1 << 20
RECORD_BYTES = 160


class FakeCupti:
    """CUPTI's activity functions over records that a test puts together."""

    def __init__(self, records, status=0, dropped=0):
        self.records, self.status, self.dropped = records, status, dropped
        self.disabled = False

    def fill(self):
        """Has a buffer of the counter filled and hands it back, as CUPTI does when it flushes."""
        buffer, size, most = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t(9)
        self.requested(ctypes.byref(buffer), ctypes.byref(size), ctypes.byref(most))
        data = b"".join(self.records)
        assert buffer.value % 8 == 0 and len(data) <= size.value and most.value == 0
        ctypes.memmove(buffer.value, data, len(data))
        self.completed(None, 0, buffer, size, len(data))
        self.records = []

    def cuptiActivityRegisterCallbacks(self, requested, completed):
        self.requested, self.completed = requested, completed
        return self.status

    def cuptiActivityEnable(self, kind):
        return 0 if kind.value == kernels.CONCURRENT_KERNEL else 1

    def cuptiActivityDisable(self, kind):
        self.disabled = True
        return 0

    def cuptiActivityFlushAll(self, flag):
        if self.records:
            self.fill()
        return 0

    def cuptiActivityGetNumDroppedRecords(self, context, stream, dropped):
        dropped._obj.value = self.dropped
        return 0

    def cuptiActivityGetNextRecord(self, buffer, valid_bytes, record):
        pointer = record._obj
        following = buffer.value if pointer.value is None else pointer.value + RECORD_BYTES
        if following >= buffer.value + valid_bytes.value:
            return kernels.MAX_LIMIT_REACHED
        pointer.value = following
        return 0


def record(kind, name_at=0):
    content = bytearray(RECORD_BYTES)
    struct.pack_into("<I", content, 0, kind)
    struct.pack_into("<Q", content, kernels.NAME_OFFSET, name_at)
    return bytes(content)


class Kernels(unittest.TestCase):
    def setUp(self):
        self.kept = [ctypes.create_string_buffer(name) for name in (b"gemm_kernel", b"copy_kernel", b"\x01\x02\x03\x04")]
        self.gemm, self.copy, self.garbage = (ctypes.addressof(one) for one in self.kept)

    def count(self, records, **of):
        library = FakeCupti(records, **of)
        report = kernels.Cupti(library).finish()
        self.assertTrue(library.disabled)
        return report

    def test_kernels_are_counted_by_name_and_nothing_else_is(self):
        both = [record(10, self.gemm), record(1), record(3, self.copy), record(2), record(10, self.gemm)]
        report = self.count(both)
        self.assertEqual((report["total"], report["names"]), (3, 2))
        # The order does not matter, the names and how often they come do.
        self.assertEqual(self.count(both[::-1]), report)
        other = self.count([record(10, self.gemm), record(3, self.copy), record(10, self.copy)])
        self.assertEqual(other["total"], 3)
        self.assertNotEqual(other["by_name"], report["by_name"])

    def test_without_plausible_names_there_is_a_total(self):
        for address in (self.garbage, 0, 8, 1 << 60):
            self.assertEqual(self.count([record(10, self.gemm), record(10, address)]), {"total": 2})

    def test_no_kernels(self):
        self.assertEqual(self.count([])["total"], 0)

    def test_what_ran_before_a_restart_is_forgotten(self):
        library = FakeCupti([record(10, self.gemm)] * 5)
        counter = kernels.Cupti(library)
        counter.restart()
        library.records = [record(10, self.gemm)] * 2
        self.assertEqual(counter.finish()["total"], 2)

    def test_errors_are_told(self):
        with self.assertRaisesRegex(kernels.KernelsError, "cuptiActivityRegisterCallbacks: status 7"):
            kernels.Cupti(FakeCupti([], status=7))
        with self.assertRaisesRegex(kernels.KernelsError, "dropped 4 records"):
            kernels.Cupti(FakeCupti([], dropped=4)).finish()
        broken = FakeCupti([record(10)])
        broken.cuptiActivityGetNextRecord = lambda *_: 15
        with self.assertRaisesRegex(kernels.KernelsError, "status 15"):
            kernels.Cupti(broken).finish()

    def test_the_newest_beside_the_frameworks_comes_first(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("cuda_cupti/lib/libcupti.so.12", "cu13/lib/libcupti.so.13", "cu13/lib/libother.so.14"):
                path = os.path.join(folder, "nvidia", name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "w").close()
            found = list(kernels.candidates([folder], roots=()))
        beside = [os.path.basename(path) for path in found if path.startswith(folder)]
        self.assertEqual(beside, ["libcupti.so.13", "libcupti.so.12"])
        self.assertEqual(found[2], "libcupti.so.13")


class Sizes(unittest.TestCase):
    def test_pieces(self):
        for text, expected in (("2MiB", 2 * MIB), ("1.5 GiB", 3 * GIB // 2), ("7B", 7), ("8GiB", 8 * GIB)):
            self.assertEqual(programs.size(text), expected)
        for text in ("", "2", "2MB", "-2MiB", "0B", "0.3B", "1e3KiB", "2MiB2"):
            with self.assertRaises(argparse.ArgumentTypeError):
                programs.size(text)

    def test_sizes_of_the_api(self):
        for text, expected in (("0B", 0), ("528MiB", 528 * MIB), ("8025800704B", 8025800704), ("1.125KiB", 1152)):
            self.assertEqual(observe.size(text), expected)
        with self.assertRaises(ValueError):
            observe.size("many")


class Times(unittest.TestCase):
    def rounds(self, walled):
        bare = {"bare-0": {"median_ns": 100.0}, "bare-1": {"median_ns": 300.0}}
        return [bare | {"walled-0": {"median_ns": one}, "walled-1": {"median_ns": one}} for one in walled]

    def test_the_ratios_are_of_pairs(self):
        self.assertEqual(timing.ratios(self.rounds([150.0, 210.0]), "median_ns"), [1.5, 0.5, 2.1, 0.7])

    def test_the_interval_holds_the_median_and_is_the_same_each_time(self):
        found = timing.bootstrap([1.0, 1.01, 1.02, 1.03, 1.5])
        self.assertEqual(found["ratio"], 1.02)
        self.assertTrue(1.0 <= found["low"] < 1.02 < found["high"] <= 1.5, found)
        self.assertEqual(found, timing.bootstrap([1.0, 1.01, 1.02, 1.03, 1.5]))
        self.assertEqual(timing.bootstrap([1.25]), {"ratio": 1.25, "low": 1.25, "high": 1.25})

    def test_a_summary_shows_each_process(self):
        found = timing.summary(self.rounds([200.0, 220.0, 240.0]), ("median_ns",))
        self.assertEqual(found["median_ns"]["by_process"]["bare-1"], 300.0)
        self.assertEqual(found["median_ns"]["by_process"]["walled-0"], 220.0)
        self.assertEqual((found["rounds"], found["median_ns"]["ratio"]), (3, 1.4))


def line(digest="d", kernel_report=None, total=8 * GIB, quota=None):
    memory = {"free_bytes": 1, "total_bytes": total}
    return {"line": {"digest": digest, "kernels": kernel_report, "memory": memory, "quota": quota}}


def good_runs():
    counted = {"total": 9, "by_name": "n"}
    filled = {"free_after_bytes": MIB, "total_bytes": 8 * GIB, "pieces": 7, "works_after": True}
    return {
        "bare": line(total=141 * GIB),
        "bare-kernels": line(kernel_report=counted, total=141 * GIB),
        "walled": line() | {"coverage": {"unknown": []}},
        "walled-kernels": line(kernel_report=dict(counted)),
        "walled-quota": line(quota=filled) | {"observed": {"nvml_max_bytes": None, "node_max_bytes": 14 * MIB}},
    }


class Verdicts(unittest.TestCase):
    def check(self, runs, **expected):
        found = measure.verdicts_of(runs, 8 * GIB, 2 * MIB)
        self.assertEqual(found, dict.fromkeys(measure.VERDICTS, True) | expected)

    def test_all_is_well(self):
        self.check(good_runs())

    def test_each_difference_is_seen(self):
        cases = (
            ("walled", ("line", "digest"), "e", "same_results"),
            ("walled-quota", ("line", "digest"), "e", "same_results"),
            ("walled-kernels", ("line", "kernels", "total"), 10, "same_kernels"),
            ("walled-kernels", ("line", "kernels", "by_name"), "m", "same_kernels"),
            ("walled", ("line", "memory", "total_bytes"), 8 * GIB - 1, "sees_quota"),
            ("walled-quota", ("line", "quota", "free_after_bytes"), 2 * MIB, "quota_exact"),
            ("walled-quota", ("line", "quota", "total_bytes"), 141 * GIB, "quota_exact"),
            ("walled-quota", ("line", "quota", "works_after"), False, "quota_exact"),
            ("walled-quota", ("observed", "nvml_max_bytes"), 14 * MIB - 1, "quota_exact"),
            ("walled-quota", ("observed", "node_max_bytes"), 13 * MIB, "quota_exact"),
            ("walled-quota", ("observed", "nvml_max_bytes"), 8 * GIB + 1, "quota_exact"),
            ("walled", ("coverage", "unknown"), ["cuNew"], "covered"),
        )
        for run, way, value, verdict in cases:
            with self.subTest(run=run, way=way):
                runs = good_runs()
                inner = runs[run]
                for key in way[:-1]:
                    inner = inner[key]
                inner[way[-1]] = value
                self.check(runs, **{verdict: False})

    def test_totals_do_where_one_side_has_no_names(self):
        runs = good_runs()
        del runs["bare-kernels"]["line"]["kernels"]["by_name"]
        self.check(runs)

    def test_no_kernels_are_no_proof(self):
        runs = good_runs()
        for name in ("bare-kernels", "walled-kernels"):
            runs[name]["line"]["kernels"] = {"total": 0}
        self.check(runs, same_kernels=False)

    def test_a_tenant_of_the_gpu_without_a_table_is_not_covered(self):
        runs = good_runs()
        del runs["walled"]["coverage"]
        self.check(runs, covered=False)
        self.assertIsNone(measure.verdicts_of(runs, 8 * GIB, 2 * MIB, uses_gpu=False)["covered"])

    def test_a_failed_run_leaves_open_what_it_would_have_shown(self):
        runs = good_runs()
        runs["walled-kernels"] = {"line": None, "stderr": ["no"]}
        self.check(runs, ran=False, same_kernels=None)


class Records(unittest.TestCase):
    def test_coverage_of_several_processes(self):
        text = "# process 1 (a): 2\nenforced\tcuInit\npassed\tcuFoo\n# process 2 (b): 2\nenforced\tcuInit\nunknown\tcuNew\n"
        found = measure.parse_coverage(text)
        self.assertEqual(found["counts"], {"enforced": 1, "passed": 1, "unknown": 1})
        self.assertEqual((found["processes"], found["unknown"], found["refused"]), (2, ["cuNew"], []))

    def test_no_folders_in_complaints(self):
        cases = {
            '  File "/opt/some/where/x.py", line 3': '  File "x.py", line 3',
            "see https://pytorch.org/docs/x and /var/a": "see https://pytorch.org/docs/x and a",
            "3/4 of /usr/lib/libcuda.so.1: no": "3/4 of libcuda.so.1: no",
        }
        for told, kept in cases.items():
            self.assertEqual(measure.without_paths(told), kept)

    def test_the_last_json_line_counts(self):
        self.assertEqual(measure.json_line('hello\n{"a": 1}\n{"b": 2}\n{broken\nbye\n'), {"b": 2})
        self.assertIsNone(measure.json_line("nothing"))

    def test_the_largest_overshoot_is_told(self):
        runs = {"a": {"observed": {"nvml_overshoot_bytes": None, "node_overshoot_bytes": 3}}, "b": {"line": None}}
        self.assertEqual(measure.overshoot_of(runs), 3)
        self.assertIsNone(measure.overshoot_of({"b": {}}))

    def test_a_watch_keeps_the_most(self):
        watch = observe.Watch("t", os.getpid(), 5 * MIB)
        sizes = {"quota_bytes": "8MiB", "context_bytes": "2MiB", "uncounted_bytes": "0B"}
        for used, other, device in (("3MiB", 4, 9), ("9MiB", 10, 20), ("1MiB", 2, 7)):
            tenant = {"name": "t", "memory": sizes | {"used_bytes": used}, "processes": [{"pid": 1 << 22}, {"pid": None}]}
            tenant |= {"guaranteed": True, "reasons": [], "notices": [], "coverage": {}}
            # A stranger's process does not count, the tenant's own and that which the node names do.
            processes = {os.getpid(): other * MIB // 2, 1 << 22: other * MIB // 2, (1 << 22) + 1: GIB}
            watch.look([tenant], processes, device * MIB)
        watch.look(None, None, None)
        found = watch.report(8 * MIB, alone=True)
        self.assertEqual((found["samples"], found["node_samples"], found["nvml_samples"]), (4, 3, 3))
        self.assertEqual((found["node_overshoot_bytes"], found["nvml_overshoot_bytes"]), (MIB, 2 * MIB))
        self.assertEqual((found["device_grown_bytes"], found["device_overshoot_bytes"]), (15 * MIB, 7 * MIB))
        self.assertIsNone(watch.report(8 * MIB, alone=False)["device_overshoot_bytes"])


class Programs(unittest.TestCase):
    def run_program(self, *words):
        command = [sys.executable, os.path.join(HERE, "programs.py"), *words]
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_memory_is_filled_and_given_back(self):
        found = json.loads(self.run_program("jax", "--fake", "301MiB", "--quota", "256KiB").stdout)["quota"]
        self.assertEqual((found["pieces"], found["free_after_bytes"], found["works_after"]), (4, 0, True))
        self.assertEqual(found["free_at_end_bytes"], MIB)

    def test_a_whole_gpu_is_not_filled(self):
        run = self.run_program("cupy", "--fake", "141GiB", "--quota", "2MiB")
        self.assertEqual(run.returncode, 1)
        self.assertIn("141 GiB, which it will not fill", run.stderr)

    def test_errors_of_memory_are_known_as_such(self):
        class OutOfMemoryError(Exception):
            pass

        known = (OutOfMemoryError("x"), RuntimeError("CUDA error: out of memory"), RuntimeError("RESOURCE_EXHAUSTED: no"))
        for error in (*known, RuntimeError("cudaErrorMemoryAllocation: out of memory")):
            self.assertTrue(programs.is_out_of_memory(error))
        self.assertFalse(programs.is_out_of_memory(RuntimeError("an illegal memory access was encountered")))


class EndToEnd(unittest.TestCase):
    def measure(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "record.json")
            command = [sys.executable, os.path.join(HERE, "measure.py"), "--fake", "--out", out, *words]
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            with open(out, encoding="utf-8") as file:
                text = file.read()
        self.assertNotIn(HERE, text)
        self.assertNotIn(tempfile.gettempdir() + "/", text)
        return run, json.loads(text)

    def test_a_rehearsal(self):
        run, found = self.measure("--only", "jax,cupy", "--time", "--rounds", "2", "--processes", "2")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(found["schema"], 1)
        self.assertEqual(list(found["programs"]), ["jax", "cupy"])
        for one in found["programs"].values():
            self.assertEqual(one["verdicts"], dict.fromkeys(measure.VERDICTS, True) | {"covered": None})
            self.assertEqual(list(one["runs"]), list(measure.RUNS))
        self.assertEqual(found["time"]["resnet50"]["median_ns"]["ratio"], 1.0)
        self.assertEqual(len(found["time"]["launch"]["median_ns"]["by_process"]), 4)
        self.assertIn("resnet50 on the GPU", run.stdout)

    def test_a_run_that_fails_is_told_and_the_others_go_on(self):
        # Without a quota of at most 64 GiB, programs refuse to fill memory.
        run, found = self.measure("--only", "jax,cupy", "--memory", "100GiB")
        self.assertEqual(run.returncode, 1)
        for one in found["programs"].values():
            unlike = {"ran": False, "quota_exact": None, "covered": None}
            self.assertEqual(one["verdicts"], dict.fromkeys(measure.VERDICTS, True) | unlike)
            self.assertIn("which it will not fill", one["runs"]["walled-quota"]["stderr"][-1])
        self.assertEqual(run.stdout.count("NO"), 2)

    def test_bad_arguments_are_told(self):
        for words in (["--only", "jaxx"], ["--piece", "2"], ["--rounds", "0"], ["--no-programs"]):
            command = [sys.executable, os.path.join(HERE, "measure.py"), "--fake", *words]
            run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            self.assertEqual(run.returncode, 2, words)


if __name__ == "__main__":
    unittest.main()
