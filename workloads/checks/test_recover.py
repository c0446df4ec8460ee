"""Tests of what the rehearsal of a recovery starts and how it judges, without a GPU."""

import json
import os
import subprocess
import tempfile
import unittest

import recover

NS = 1_000_000_000


def report(name, running_s, **other):
    last = {"number": 1, "culprit": "bad", "evidence": "only-own-code", "told": {"bad": [710]}, "recover_ns": 2 * NS}
    about = {"name": name, "activity": "running", "running_for_ns": running_s * NS, "faults": 0, "kept_out": False}
    return about | {"facts": {"processes": 1}, "last_fault": last} | other


def reports(**other):
    names = {"bad": (3, {"faults": 1}), "ls-1": (5, {}), "be": (3, {}), "ls-2": (5, {})}
    return [report(name, running, **({**more, **other.get(name.replace("-", "_"), {})})) for name, (running, more) in names.items()]


class Judged(unittest.TestCase):
    def test_all_back_in_order(self):
        self.assertEqual(recover.wrong_after(reports(), 1), {})
        self.assertTrue(all(recover.is_back(one, 1) for one in reports()))

    def test_what_does_not_hold_is_named(self):
        unknown = reports(be={"last_fault": report("be", 1)["last_fault"] | {"culprit": None, "evidence": "several"}})
        cases = [
            (reports(be={"running_for_ns": 9 * NS}), 1, "order after fault 1"),
            (reports(ls_1={"faults": 1}), 1, "blame after fault 1"),
            (reports(bad={"kept_out": True}), 1, "kept out after fault 1"),
            (reports(), 2, "kept out after fault 2"),
            (unknown, 1, "culprit of fault 1"),
        ]
        for wrong, faults, about in cases:
            self.assertEqual(list(recover.wrong_after(wrong, faults)), [about])
        for late in ({"last_fault": None}, {"activity": "waiting"}, {"facts": {"processes": 0}}):
            self.assertFalse(recover.is_back(report("be", 1, **late), 1))
        self.assertFalse(recover.is_back(report("be", 1), 2))

    def test_the_scripts_are_shell(self):
        with tempfile.TemporaryDirectory() as folder:
            for simulated in (True, False):
                text = recover.tenants_file(simulated, "python3", folder, "mps")
                scripts = [json.loads(line.partition(" = ")[2])[2] for line in text.splitlines() if line.startswith("command")]
                self.assertEqual(len(scripts), 4)
                for script in scripts:
                    self.assertEqual(subprocess.run(["sh", "-n", "-c", script], check=False).returncode, 0)
            self.assertTrue(os.path.exists(recover.TENANT))


if __name__ == "__main__":
    unittest.main()
