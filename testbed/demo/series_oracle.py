"""The judge of the demo's pool of workers: who waited, and whether each key was worked on in order, one at a time."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import median

Order = tuple[str, int]
"""A message: its key, and its number among those of the key, in the order of publishing."""


@dataclass(frozen=True, order=True)
class Tried:
    """One try of a message by a worker; times are in monotonic seconds."""

    began: float
    ended: float
    key: str
    number: int
    succeeded: bool


@dataclass(frozen=True)
class Figures:
    """The figures of some keys; a wait is the seconds from the publish to the end of the try that succeeded."""

    tries: int
    median_wait: float
    longest_wait: float
    out_of_order: int
    """Messages that were done behind a later one of their key."""
    at_once: int
    """Tries that began while another message of their key was worked on."""


def done(tries: Iterable[Tried]) -> dict[Order, float]:
    """Return when each message was done for the first time, earliest first."""
    found: dict[Order, float] = {}
    for each in sorted(tries, key=lambda each: each.ended):
        if each.succeeded:
            found.setdefault((each.key, each.number), each.ended)
    return found


def out_of_order(tries: Iterable[Tried]) -> list[Order]:
    """Return the messages that were done behind a later one of their key."""
    newest: dict[str, int] = {}
    found = []
    for key, number in done(tries):
        if number < newest.get(key, 0):
            found.append((key, number))
        newest[key] = max(number, newest.get(key, 0))
    return found


def at_once(tries: Iterable[Tried]) -> list[Order]:
    """Return the messages whose try began while another message of their key was worked on."""
    ends: dict[str, float] = defaultdict(float)
    found = []
    for each in sorted(tries):
        if each.began < ends[each.key]:
            found.append((each.key, each.number))
        ends[each.key] = max(each.ended, ends[each.key])
    return found


def figures(sent: Mapping[Order, float], tries: Iterable[Tried], keys: Collection[str]) -> Figures:
    """Return the figures of some keys; `sent` has when each message was published.

    Waits are infinite if none of them is done.
    """
    of_keys = [each for each in tries if each.key in keys]
    waits = [ended - sent[order] for order, ended in done(of_keys).items()] or [math.inf]
    return Figures(len(of_keys), median(waits), max(waits), len(out_of_order(of_keys)), len(at_once(of_keys)))


def judge_series(sent: Collection[Order], tries: Iterable[Tried], failing: Order, failures: int) -> list[str]:
    """Return what was wrong with work in series, in words, where one message fails so often and then succeeds.

    Each message must be done, each key in order and one at a time; and while the failing message was tried again and
    again, its key alone stood still.
    """
    tries = list(tries)
    finished, keys = done(tries), {key for key, _ in sent}
    faults = [
        f"order {number} of {key} was confirmed, and not done" for key, number in sent if (key, number) not in finished
    ]
    faults += [f"order {number} of {key} was done behind a later one" for key, number in out_of_order(tries)]
    faults += [f"order {number} of {key} began beside another one of it" for key, number in at_once(tries)]
    of_failing = sorted(each for each in tries if (each.key, each.number) == failing)
    what = f"order {failing[1]} of {failing[0]}"
    if [each.succeeded for each in of_failing] != [False] * failures + [True]:
        return [*faults, f"{what} was tried {len(of_failing)} times, and not {failures + 1}"]
    first, last = of_failing[0].ended, of_failing[-1].began
    others = [each for each in tries if (each.key, each.number) != failing]
    went_on = {each.key for each in others if first < each.began and each.ended < last}
    if failing[0] in went_on:
        faults.append(f"{failing[0]} went on while {what} was to be tried again")
    return faults + [
        f"{key} stood still while {what} was to be tried again" for key in sorted(keys - went_on - {failing[0]})
    ]
