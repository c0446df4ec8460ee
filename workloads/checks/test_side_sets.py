"""The arithmetic of side_sets.py, without a GPU."""

import unittest

import side_sets


class Sides(unittest.TestCase):
    def test_sides_are_those_of_the_map(self):
        self.assertEqual(side_sets.sides_in({"sides": {"groups": "0110"}}), [0, 1, 1, 0])
        for report in ({"sides": None}, {"sides": {"groups": "0000"}}, {}):
            with self.assertRaises(side_sets.Failed):
                side_sets.sides_in(report)

    def test_sets_are_as_large_as_asked_and_where_they_should_be(self):
        sides = [0, 1, 1, 0, 1, 0, 1, 0]
        self.assertEqual(side_sets.chosen(sides, "first ones", 3), ([0, 1, 2], [3, 4, 5, 6, 7]))
        self.assertEqual(side_sets.chosen(sides, "one side", 3), ([1, 2, 4], [0, 3, 5, 6, 7]))
        self.assertEqual(side_sets.chosen(sides, "both sides", 4), ([0, 1, 2, 3], [4, 5, 6, 7]))
        with self.assertRaises(side_sets.Failed):
            side_sets.chosen(sides, "one side", 5)


if __name__ == "__main__":
    unittest.main()
