"""Runs of numbers, against sets of numbers."""

import random
from itertools import pairwise

from pipeline.land.runs import count, merged, without


def numbers(runs: dict[str, list[tuple[int, int]]]) -> set[tuple[str, int]]:
    return {(proxy, n) for proxy, ours in runs.items() for first, last in ours for n in range(first, last + 1)}


def test_they_are_those_of_sets() -> None:
    drawn = random.Random(7)
    for _ in range(2000):
        one, other = (
            {
                proxy: [
                    (first, first + drawn.randrange(4)) for first in drawn.choices(range(1, 30), k=drawn.randrange(6))
                ]
                for proxy in ("a", "b")
            }
            for _ in range(2)
        )
        both = merged(one, other)
        assert numbers(both) == numbers(one) | numbers(other)
        assert all(a[1] + 1 < b[0] for ours in both.values() for a, b in pairwise(ours))
        left = without(merged(one), merged(other))
        assert numbers(left) == numbers(one) - numbers(other)
        assert count(left) == len(numbers(left))


def test_without_numbers_there_is_no_sidecar() -> None:
    assert without({"a": [(1, 3)]}, {"a": [(1, 9)]}) == {}
    assert merged({"a": [(2, 3)]}, {"a": [(4, 5)], "b": [(1, 1)]}) == {"a": [(2, 5)], "b": [(1, 1)]}
