"""The arithmetic of side_sets.py, without a GPU."""

import random
import unittest

import side_sets


class Sides(unittest.TestCase):
    def table(self, groups, addresses):
        chance = random.Random(1)
        far = 200
        return [
            [310 + far * (group != address) + 40 * chance.random() + chance.gauss(0, 5) + (chance.random() < 0.01) * 2000 for address in addresses]
            for group in groups
        ]

    def test_groups_of_one_side_are_found(self):
        chance = random.Random(2)
        groups = [chance.randrange(2) for _ in range(66)]
        addresses = [chance.randrange(2) for _ in range(128)]
        found, apart, cycles = side_sets.sides(self.table(groups, addresses))
        self.assertEqual(found, [int(group != groups[0]) for group in groups])
        self.assertGreater(apart, 8)
        self.assertAlmostEqual(cycles, 200, delta=15)

    def test_one_side_is_not_two(self):
        _, apart, _ = side_sets.sides(self.table([0] * 66, [0] * 128))
        self.assertLess(apart, side_sets.CLEAR)

    def test_sets_are_as_large_as_asked_and_where_they_should_be(self):
        sides = [0, 1, 1, 0, 1, 0, 1, 0]
        self.assertEqual(side_sets.chosen(sides, "first ones", 3), ([0, 1, 2], [3, 4, 5, 6, 7]))
        self.assertEqual(side_sets.chosen(sides, "one side", 3), ([1, 2, 4], [0, 3, 5, 6, 7]))
        self.assertEqual(side_sets.chosen(sides, "both sides", 4), ([0, 1, 2, 3], [4, 5, 6, 7]))
        with self.assertRaises(side_sets.Failed):
            side_sets.chosen(sides, "one side", 5)


if __name__ == "__main__":
    unittest.main()
