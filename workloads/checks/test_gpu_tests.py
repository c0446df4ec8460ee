"""Tests of how GPU tests are judged, without a GPU: `python3 -m unittest discover -s workloads/checks`."""

import copy
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import gpu_tests
from gpu_tests import Failed, NotHere


def cell(wall="mps", kind="corun", ls="victim", be="stream", error=None, checks=("ok", "ok")):
    results = [] if error else [{"tenant": "any", "check": check} for check in checks]
    error = {"kind": error, "message": f"it is {error}"} if error else None
    return {"wall": wall, "setting": "", "kind": kind, "ls": ls, "be": be, "results": results, "error": error}


def record(*cells, **other):
    return {"simulated": False, "pretended": False, "complete": True, "took_s": 1.0, "cells": list(cells)} | other


DOCTOR = {
    "simulated": False,
    "absent": None,
    "gpus": [{"name": "One"}, {"name": "Two"}],
    "walls": [{"id": "mps", "state": "available", "note": None}, {"id": "mig", "state": "not-available", "why": "off"}],
    "checks": [{"device": 0, "error": None, "checks": [{"name": "copies", "passed": True, "saw": "4 B"}]}],
}


class Doctor(unittest.TestCase):
    def test_a_gpu_is_there_or_not(self):
        self.assertEqual(gpu_tests.has_gpu(DOCTOR, False), "One, Two")
        self.assertRaisesRegex(Failed, "should be simulated", gpu_tests.has_gpu, DOCTOR, True)
        self.assertRaisesRegex(NotHere, "no driver", gpu_tests.has_gpu, DOCTOR | {"absent": {"why": "no driver"}}, False)
        self.assertRaisesRegex(NotHere, "no GPU", gpu_tests.has_gpu, DOCTOR | {"gpus": []}, False)
        self.assertEqual(gpu_tests.walls_missing(DOCTOR), {"mig": "off"})

    def test_a_check_that_did_not_pass_is_named(self):
        self.assertEqual(gpu_tests.driver_holds(DOCTOR), "1 checks")
        failed, broken = copy.deepcopy(DOCTOR), copy.deepcopy(DOCTOR)
        failed["checks"][0]["checks"].append({"name": "graphs", "passed": False, "saw": "7 of 20"})
        self.assertRaisesRegex(Failed, "^graphs: 7 of 20$", gpu_tests.driver_holds, failed)
        broken["checks"][0]["error"] = "no context"
        self.assertRaisesRegex(Failed, "^device 0: no context$", gpu_tests.driver_holds, broken)
        self.assertRaisesRegex(Failed, "nothing was checked", gpu_tests.driver_holds, DOCTOR | {"checks": None})


class Recovered(unittest.TestCase):
    def test_a_recovery_has_a_verdict_and_a_time(self):
        faults = [{"evidence": "contained", "recover_s": None}, {"evidence": "several", "recover_s": 2.0}]
        good = {"fault": "illegal", "faults": faults, "wrong": {}}
        self.assertEqual(gpu_tests.recovered(good), "illegal: contained, several (recovered in 2.0 s)")
        wrong = good | {"wrong": {"order": "be was started first"}}
        self.assertRaisesRegex(Failed, "^order: be was started first$", gpu_tests.recovered, wrong)
        self.assertRaisesRegex(Failed, "^1 faults instead of 2$", gpu_tests.recovered, good | {"faults": faults[:1]})


class Measured(unittest.TestCase):
    def test_every_cell_counts(self):
        good = cell("exclusive", "solo", be=None, checks=["ok"])
        self.assertEqual(gpu_tests.all_measured(record(good, cell()), {}, False), "2 cells")
        cases = [
            (record(good, cell(checks=["ok", "sum differs"])), "^1 of 2 cells; mps corun victim beside stream: .*sum differs"),
            (record(good, cell(error="died")), "^1 of 2 cells; mps corun victim beside stream: it is died$"),
            (record(good, cell(error="skipped")), "it is skipped"),
            (record(cell(checks=[])), "1 of 1 cells"),
            (record(good, complete=False), "time was over after 1 s"),
            (record(), "no cell"),
            (record(good, simulated=True), "not of the GPU"),
            (record(good, pretended=True), "not of the GPU"),
        ]
        for one, why in cases:
            with self.subTest(why):
                self.assertRaisesRegex(Failed, why, gpu_tests.all_measured, one, {}, False)

    def test_only_walls_that_cannot_be_built_may_be_left_out(self):
        skipped, missing = cell("green-contexts", error="skipped"), {"green-contexts": "too old a driver"}
        note = gpu_tests.all_measured(record(cell(), skipped), missing, False)
        self.assertEqual(note, "1 cells, without green-contexts: too old a driver")
        self.assertRaisesRegex(NotHere, "too old", gpu_tests.all_measured, record(skipped), missing, False)
        died = record(cell(), cell("green-contexts", error="died"))
        self.assertRaisesRegex(Failed, "it is died", gpu_tests.all_measured, died, missing, False)

    def test_faults_end_their_own_cells_and_no_others(self):
        cells = [
            cell("exclusive", "solo", ls=None, be="fault", checks=["ok"]),
            cell("exclusive", "solo", ls=None, be="fault-at-once", error="gpu-fault"),
            cell("time-slicing", be="fault", error="gpu-fault"),
            cell(be="fault-at-once", error="gpu-fault"),
            cell(be="gemm"),
        ]
        self.assertEqual(gpu_tests.only_faults_faulted(record(*cells)), "2 faults, 5 cells")
        cases = [
            (3, cell(be="fault-at-once"), "has no fault"),
            (3, cell(be="fault-at-once", error="hung"), "it is hung"),
            (4, cell(be="gemm", error="gpu-fault"), "beside gemm: it is gpu-fault"),
            (4, cell(be="gemm", checks=["ok", "wrong"]), "wrong results"),
        ]
        for index, other, why in cases:
            with self.subTest(why):
                changed = [*cells[:index], other, *cells[index + 1 :]]
                self.assertRaisesRegex(Failed, why, gpu_tests.only_faults_faulted, record(*changed))
        self.assertRaisesRegex(Failed, "no program faulted", gpu_tests.only_faults_faulted, record(*cells[:2], cells[4]))


class Others(unittest.TestCase):
    def test_ctrl_c_leaves_nothing(self):
        self.assertEqual(gpu_tests.nothing_left(130, set(), ["partywall-soft-0", "other"], []), "nothing left")
        cases = [
            ((0, set(), [], []), "exit status 0 instead of 130"),
            ((130, {"nvidia-cuda-mps-server"}, [], []), "processes left: nvidia-cuda-mps-server"),
            ((130, set(), ["partywall-mps-12"], []), "temporary folders left: partywall-mps-12"),
            ((130, set(), [], ["quick.json"]), "results left: quick.json"),
        ]
        for found, why in cases:
            with self.subTest(why):
                self.assertRaisesRegex(Failed, why, gpu_tests.nothing_left, *found)

    def test_tenants_say_that_their_results_are_right(self):
        service = 'service | {"done":{"run":1,"requests":1919,"check":"ok"}}\n'
        batch = 'batch   | {"done":{"run":1,"requests":70,"check":"ok"}}\n'
        other = "partywall: batch: started\nbatch | no JSON\nbatch | 7\n"
        self.assertEqual(gpu_tests.tenants_done(other + service + batch), "service, batch")
        for wrong in (other, batch.replace('"ok"', '"sum differs"'), batch.replace("70", "0"), batch.replace("done", "ready")):
            with self.subTest(wrong):
                self.assertRaisesRegex(Failed, "no right results from batch", gpu_tests.tenants_done, service + wrong)

    def test_small_copies_are_faster_with_partywall(self):
        def copies(without, walled):
            ls = [{"ls": {"service_p50_us": p50}} for p50 in (without, walled)]
            cells = [{"cell": "ls64k", "wall": "mps", "partywall": on, "tenants": one} for on, one in zip((False, True), ls)]
            return {"cells": [{"cell": "solo-be", "wall": "exclusive", "partywall": False, "tenants": {}}, *cells]}

        self.assertEqual(gpu_tests.copies_helped(copies(1000.0, 30.0), ["mps"], False), "mps 1000 us without, 30 with")
        self.assertEqual(gpu_tests.copies_helped(copies(30.0, 40.0), ["mps"], True), "mps 30 us without, 40 with")
        self.assertRaisesRegex(Failed, "not faster", gpu_tests.copies_helped, copies(30.0, 40.0), ["mps"], False)
        self.assertRaisesRegex(Failed, "no median", gpu_tests.copies_helped, copies(30.0, None), ["mps"], True)
        self.assertRaisesRegex(Failed, "behind time-slicing", gpu_tests.copies_helped, copies(9.0, 1.0), ["time-slicing"], True)

    def test_every_verdict_on_every_program_holds(self):
        found = {"programs": {"jax": {"verdicts": {"ran": True, "covered": True}}, "cupy": {"verdicts": {"ran": True, "covered": None}}}}
        self.assertEqual(gpu_tests.programs_same(found, ["jax"]), "jax")
        self.assertRaisesRegex(Failed, "cupy: covered", gpu_tests.programs_same, found, ["jax", "cupy"])
        self.assertRaisesRegex(Failed, "torch-eager: ran", gpu_tests.programs_same, found, ["torch-eager"])

    def test_kernels(self):
        row = {"name": "k", "should_be_refused": False, "bit_equal": {"arena": True}}
        refused = {"name": "t", "should_be_refused": True, "refused": {"arena": "line 1"}}
        record = {
            "ptx": {"kernels": 1, "time_ratio_mean": 1.02, "refused_as_expected": True},
            "rows": [row, refused],
            "transparent": {"bit_equal": {"k": True}},
        }
        self.assertEqual(gpu_tests.kernels_equal(record), "1 kernels; time as it is and rewritten: 1 to 1.020")
        for part, wrong, why in (
            ("rows", [{**row, "bit_equal": {"arena": False}}], "not run: k"),
            ("rows", [{**row, "failed": {"fenced": "CUDA error"}}], "not run: k"),
            ("rows", [{"name": "m", "should_be_refused": False, "refused": {}}], "not run: m"),
            ("transparent", {"bit_equal": {"k": False}}, "k .launched by Triton"),
            ("transparent", {"failed": "why"}, "what Triton launches"),
            ("ptx", {"kernels": 1, "time_ratio_mean": 1.02, "refused_as_expected": False}, "was not refused"),
        ):
            self.assertRaisesRegex(Failed, why, gpu_tests.kernels_equal, {**record, part: wrong})

    def test_what_a_test_comes_to(self):
        def raising(error):
            def test():
                raise error

            return test

        cases = [(Failed("a\n b"), "FAILED", "a b"), (NotHere("c"), "not here", "c"), (KeyError("cells"), "FAILED", "KeyError")]
        for error, state, note in cases:
            found = gpu_tests.judged(raising(error))
            self.assertEqual(found[0], state)
            self.assertIn(note, found[1])
        self.assertEqual(gpu_tests.judged(lambda: "d")[:2], ("ok", "d"))

    @unittest.skipUnless(os.path.isdir("/proc/self"), "needs /proc")
    def test_processes_are_known_by_their_temporary_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            wait = "print(flush=True); input()"
            environment = os.environ | {"TMPDIR": folder}
            child = subprocess.Popen([sys.executable, "-c", wait], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            with child:
                child.stdout.readline()
                self.assertEqual(list(gpu_tests.started_with(folder)), [child.pid])
                self.assertIn("python", gpu_tests.command_of(child.pid))
                child.send_signal(signal.SIGKILL)
            self.assertEqual(list(gpu_tests.started_with(folder)), [])
            self.assertEqual(gpu_tests.command_of(child.pid), "")


if __name__ == "__main__":
    unittest.main()
