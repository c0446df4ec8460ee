"""Tests of `counters.py`, which need no GPU: `python3 -m unittest discover -s workloads/sides`."""

import json
import unittest

import counters

COLUMNS = ("min", "avg", "max", "sum")


def table(group, launches, passes=1):
    """What Nsight Compute prints of launches, each a kernel's name and a number that all of its counters are multiples of."""
    names = ["ID", "Kernel Name", "profiler__replayer_passes", *(f"{name}.{column}" for name in group for column in COLUMNS)]
    lines = ["==PROF== Connected to process 7", ",".join(f'"{name}"' for name in names), ",".join('""' for _ in names)]
    for number, (kernel, value) in enumerate(launches):
        values = [f"{value * factor:,}" for _ in group for factor in (0, 1, 2, 1_000)]
        lines.append(",".join(f'"{cell}"' for cell in [str(number), kernel, str(passes), *values]))
    return "\n".join(lines) + "\n"


def launches(read):
    """Six launches of each kind of request, of which the first four are cold, and one of each long kind."""
    found = []
    for number, (work, _, _) in enumerate(counters.kinds(read), 1):
        cold = [("arena_read", 900)] * counters.SKIPPED
        found += [*cold, ("arena_read", number), ("arena_read", number)] if work == "short" else [("arena_passes", 10 * number)]
    return found


class Counters(unittest.TestCase):
    def test_each_kind_of_launch_is_a_row(self):
        tables = {read: [table(group, launches(read), 3 if group == counters.GROUPS[-1] else 1) for group in counters.GROUPS] for read, _ in counters.REQUESTS}
        rows = counters.record(tables)
        self.assertEqual(len(rows), sum(len(counters.kinds(read)) for read, _ in counters.REQUESTS))
        first, last = rows[0], rows[-1]
        self.assertEqual((first["work"], first["view"], first["threads_per_sm"], first["launch_bytes"]), ("short", "colored", 1024, 0))
        self.assertEqual((first["launches"], first["sum"]["lts__t_sectors"]), (2, 1_000))
        self.assertEqual(first["of_a_slice"]["lts__t_sectors"], {"min": 0, "avg": 1, "max": 2})
        self.assertEqual((last["work"], last["view"], last["launch_bytes"], last["sum"]["lts__t_sectors"]), ("long", "uncolored", counters.DATA, 40_000))
        self.assertEqual((last["passes"]["lts__t_sectors"], last["passes"]["dram__sectors_read"]), (1, 3))
        self.assertNotIn("dram__sectors_read", last["of_a_slice"])

    def test_launches_that_are_missing_are_said(self):
        for launched in (launches(0)[:-1], [("arena_read", 1)] * 4, launches(0) + [("arena_passes", 1)]):
            with self.assertRaises(counters.Failed) as caught:
                counters.by_kind(counters.rows_of(table(counters.GROUPS[0], launched)), 0)
            self.assertIn("not so many of each kind", str(caught.exception))
        with self.assertRaises(counters.Failed):
            counters.rows_of("==ERROR== no permission\n")

    def test_the_process_is_told_what_to_measure(self):
        begin, *measures = map(json.loads, counters.conversation({"mask": 1}, 8 << 20).splitlines())
        self.assertEqual((begin["begin"]["known"], begin["begin"]["request"]), ({"mask": 1}, {"launches": 1, "bytes": 8 << 20}))
        told = [(one["measure"]["work"], one["measure"]["view"], one["measure"]["threads"]) for one in measures]
        self.assertEqual(told, counters.kinds(8 << 20))


if __name__ == "__main__":
    unittest.main()
