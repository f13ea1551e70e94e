"""The common part of members in series: the job of ten workers, who take from one channel and fail at times.

A member in series is told a `Job`, and writes the lines of any other member, with one more:

- `b TAG ATTEMPT`: a worker begins a message; `a TAG` or `n TAG` ends its work.

Whether a try fails, and how long it takes, depends on the seed, the message and the number of the try alone.
"""

import json
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.chaos.groups.consumers.member import Task

SHORT, LONG = (0.001, 0.01), (0.05, 0.15)
"""The least and the most seconds of a try."""
LONG_ONES = 0.05
"""The share of tries that take long."""


@dataclass(frozen=True)
class Job(Task):
    """The task of a member in series. `nacked` is the share of tries that fail."""

    workers: int
    in_series: bool
    """Whether the member asks for it."""
    hopeless: float
    """The share of messages of which each try fails."""
    heals: int
    """The number of the try from which on these succeed all the same; 0 for none."""


class Try(NamedTuple):
    """One try of a message."""

    attempt: int
    """Its number, as the sidecar tells it."""
    seconds: float
    fails: bool


def job() -> Job:
    """Return the job in the arguments."""
    return Job(**json.loads(sys.argv[1]))


def plan(todo: Job, body: bytes, headers: Mapping[str, Any] | None) -> Try:
    """Return how the try of a message goes that came with these headers."""
    attempt = int((headers or {}).get("x-ring-attempt", 1))
    name = f"{todo.seed} {body.decode()}"
    chance = random.Random(f"{name} {attempt}")
    seconds = chance.uniform(*(LONG if chance.random() < LONG_ONES else SHORT))
    fails = chance.random() < todo.nacked
    if random.Random(name).random() < todo.hopeless:
        fails = not 0 < todo.heals <= attempt
    return Try(attempt, seconds, fails)
