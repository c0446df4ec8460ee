"""Tests of what the rehearsal of a recovery starts and how it judges, without a GPU."""

import json
import os
import subprocess
import tempfile
import unittest

import recover

NS = 1_000_000_000


def last_fault(number=1, culprit="bad", evidence="contained", **other):
    last = {"number": number, "culprit": culprit, "evidence": evidence, "told": {"bad": [710]}, "told_after_ns": {"bad": 0}}
    return last | {"server": "active", "recover_ns": None if evidence == "contained" else 2 * NS} | other


def report(name, running_s, last, **other):
    about = {"name": name, "activity": "running", "running_for_ns": running_s * NS, "faults": 0, "kept_out": False, "restarts": 1}
    return about | {"facts": {"processes": 1}, "last_fault": last} | other


def contained(**other):
    """After a first fault that ended nobody but the culprit."""
    names = {
        "bad": report("bad", 3, last_fault(), faults=1),
        **{name: report(name, 9, None, restarts=0) for name in ("ls-1", "be", "ls-2")},
    }
    return [one | other.get(name.replace("-", "_"), {}) for name, one in names.items()]


def recovered(last=None, **other):
    """After a first fault that ended all."""
    last = last or last_fault(culprit=None, evidence="several", server=None)
    names = {"bad": 3, "ls-1": 5, "be": 3, "ls-2": 5}
    return [report(name, running, last, **other.get(name.replace("-", "_"), {})) for name, running in names.items()]


class Judged(unittest.TestCase):
    def test_a_contained_fault_ends_nobody_else(self):
        self.assertEqual(recover.wrong_after(contained(), 1, "assert", ["contained"]), {})
        self.assertTrue(recover.are_back(contained(), 1))
        fault = recover.fault_of(contained())
        self.assertEqual((fault["told_after_s"], fault["recover_s"]), ({"bad": 0.0}, None))
        self.assertEqual(fault["restarts"], {"bad": 1, "ls-1": 0, "be": 0, "ls-2": 0})
        cases = [
            (contained(be={"restarts": 1}), ["others after fault 1"]),
            (contained(bad={"kept_out": True}), ["kept out after fault 1"]),
            (contained(bad={"last_fault": last_fault(evidence="reported-first")}), ["culprit of fault 1"]),
            (contained(bad={"last_fault": last_fault(culprit="ls-1")}), ["culprit of fault 1"]),
        ]
        for wrong, about in cases:
            self.assertEqual(list(recover.wrong_after(wrong, 1, "assert", ["contained"])), about)

    def test_after_any_other_fault_all_come_back_in_order(self):
        for culprit, word in [(None, "several"), ("bad", "reported-first"), ("bad", "only-own-code")]:
            good = recovered(last_fault(culprit=culprit, evidence=word))
            self.assertEqual(recover.wrong_after(good, 1, "illegal", [word]), {})
            self.assertTrue(recover.are_back(good, 1))
        blamed = recovered(last_fault(culprit="ls-1", evidence="reported-first"), ls_1={"faults": 1})
        cases = [
            (recovered(be={"running_for_ns": 9 * NS}), ["order after fault 1"]),
            (blamed, ["blame after fault 1", "culprit of fault 1"]),
            (recovered(bad={"kept_out": True}), ["kept out after fault 1"]),
            (recovered(last_fault()), ["culprit of fault 1"]),
        ]
        for wrong, about in cases:
            self.assertEqual(list(recover.wrong_after(wrong, 1, "illegal", ["several"])), about)

    def test_one_that_faults_in_all_its_runs_is_kept_out_and_nobody_else(self):
        found = last_fault(number=4, culprit="bad", evidence="let-in-last")
        out = {"kept_out": True, "activity": "failed", "facts": {"processes": 0}}
        self.assertEqual(recover.wrong_in_the_end(recovered(found, bad=out)), {})
        cases = [
            (recovered(found), ["kept out in the end"]),
            (recovered(found, bad=out, be=out), ["be in the end"]),
            (recovered(last_fault(number=4, culprit=None, evidence="several"), bad=out), ["culprit in the end"]),
        ]
        for wrong, about in cases:
            self.assertEqual(list(recover.wrong_in_the_end(wrong)), about)

    def test_two_sure_verdicts_keep_out(self):
        sure = last_fault(number=2, evidence="only-own-code")
        out = recovered(sure, bad={"kept_out": True, "activity": "failed", "facts": {"processes": 0}})
        self.assertTrue(recover.are_back(out, 2))
        self.assertEqual(recover.wrong_after(out, 2, "illegal", ["only-own-code"] * 2), {})
        self.assertEqual(list(recover.wrong_after(out, 2, "illegal", ["several", "only-own-code"])), ["kept out after fault 2"])
        self.assertEqual(list(recover.wrong_after(recovered(sure), 2, "illegal", ["alone", "alone"])), ["kept out after fault 2"])

    def test_who_is_not_back_is_waited_for(self):
        for late in ({"last_fault": None}, {"restarts": 0}, {"activity": "waiting"}, {"facts": {"processes": 0}}):
            self.assertFalse(recover.are_back(contained(bad=late), 1), late)
        self.assertFalse(recover.are_back(contained(be={"facts": {"processes": 0}}), 1))
        self.assertFalse(recover.are_back(contained(), 2))
        self.assertFalse(recover.are_back(recovered(last_fault(evidence="several", recover_ns=None)), 1))

    def test_the_scripts_are_shell(self):
        with tempfile.TemporaryDirectory() as folder:
            for simulated, kind in ((True, "assert"), (True, "illegal"), (False, "assert"), (False, "illegal")):
                text = recover.tenants_file(simulated, "python3", folder, "mps", kind)
                self.assertIn(recover.SIMULATED[kind] if simulated else f"fault --kind {kind}", text)
                scripts = [json.loads(line.partition(" = ")[2])[2] for line in text.splitlines() if line.startswith("command")]
                self.assertEqual(len(scripts), 4)
                for script in scripts:
                    self.assertEqual(subprocess.run(["sh", "-n", "-c", script], check=False).returncode, 0)
            self.assertTrue(os.path.exists(recover.TENANT))


if __name__ == "__main__":
    unittest.main()
