"""Where a ring puts a key, computed without the proxy."""

import functools
from collections.abc import Iterable, Mapping

from ring.destination import Destination
from ring.ring import Ring


def owner(queues: Iterable[str] | Mapping[str, int], value: str | bytes) -> str:
    """Return the queue of a value on the ring of these queues, of weight 1 where none is given."""
    weights = queues if isinstance(queues, Mapping) else dict.fromkeys(queues, 1)
    return built(weights).owner_of(value.encode() if isinstance(value, str) else value).name


def built(weights: Mapping[str, int]) -> Ring:
    """Return the ring of queues of these weights."""
    return _built(tuple(sorted(weights.items())))


@functools.cache
def _built(weights: tuple[tuple[str, int], ...]) -> Ring:
    return Ring.build({Destination("queue", name): weight for name, weight in weights})


QUEUES = ["q1", "q2", "q3"]
GONE, LEFT = "q2", ["q1", "q3"]
"""The queue of `QUEUES` that is deleted, and those that stay."""
KEYS = [f"key {n}" for n in range(60)]
LOST = [key for key in KEYS if owner(QUEUES, key) == GONE]
KEPT = [key for key in KEYS if key not in LOST]
"""The keys of the queue that is deleted, and those of the queues that stay."""
