"""Runs of consecutive numbers by sidecar: which numbers there are, and which of them are new."""

from collections.abc import Iterable, Mapping

from pipeline.data.landed import Runs


def merged(*many: Runs) -> dict[str, list[tuple[int, int]]]:
    """Return the numbers of all of these as the fewest runs, which do not touch each other."""
    told: dict[str, list[tuple[int, int]]] = {}
    for proxy in sorted({proxy for runs in many for proxy in runs}):
        joined: list[tuple[int, int]] = []
        for first, last in sorted(run for runs in many for run in runs.get(proxy, ())):
            if joined and first <= joined[-1][1] + 1:
                joined[-1] = (joined[-1][0], max(joined[-1][1], last))
            else:
                joined.append((first, last))
        told[proxy] = joined
    return told


def without(runs: Mapping[str, Iterable[tuple[int, int]]], known: Runs) -> dict[str, list[tuple[int, int]]]:
    """Return the numbers of `runs` that are not in `known`; runs of both are in order and do not touch."""
    told = {}
    for proxy, ours in runs.items():
        left: list[tuple[int, int]] = []
        theirs = iter(known.get(proxy, ()))
        other = next(theirs, None)
        for first, last in ours:
            at = first
            while other is not None and other[0] <= last:
                if other[1] >= at:
                    if other[0] > at:
                        left.append((at, other[0] - 1))
                    at = other[1] + 1
                if other[1] > last:
                    break
                other = next(theirs, None)
            if at <= last:
                left.append((at, last))
        if left:
            told[proxy] = left
    return told


def count(runs: Runs) -> int:
    """Return how many numbers there are."""
    return sum(last - first + 1 for ours in runs.values() for first, last in ours)
