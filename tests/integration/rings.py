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
