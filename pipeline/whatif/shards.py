"""The number of shards that is enough for the busiest hour: the least by which no shard exceeds a limit.

Shards are added one after the other, as an ordered change numbers them. Placement is by number, so each ring differs
from the one before by what the last shard takes, and is made from it. More shards are not always better: a hash may
give the last one two heavy keys. The search therefore tries each number in turn, and does not halve a range.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from pipeline.whatif.published import Published
from proxy.shards.shard import MAX_SHARDS, Sharded
from ring.destination import Destination
from ring.ring import Ring

_FURTHER, _AT_LEAST = 4, 100
"""How many times the least number that the sum allows is tried, and how many more."""


@dataclass(frozen=True)
class Enough:
    """How many shards are enough, and the ring of them."""

    now: int
    later: int
    """The number for grown messages, `now` or more."""
    growth: float | None
    """The factor of the growth; None if it is not known."""
    hot: Mapping[int, int]
    """By slot that exceeds the limit by itself once it has grown, into how many parts its messages must be split."""
    spec: RingSpec
    """The ring of the later number."""


def enough(present: RingSpec, exchange: Sharded, busiest: Published, limit: float, growth: float | None) -> Enough:
    """Return the least number of shards that get at most `limit` messages an hour for each unit of their weights.

    `present` is the ring, and `exchange` the same in a topology file. A number that is there keeps its weight; others
    get the most common one. `busiest` is what the busiest hour had, which is multiplied by a `growth` above 1. Slots
    that no shard can hold, now or then, are left out of the loads, and count in the sum. Raises PipelineError if no
    number is enough.
    """
    factor = max(1.0, growth or 1.0)
    weights = {exchange.number_of(each.name) or 0: weight for each, weight in present.weights.items()}
    common = min(Counter(weights.values()).items(), key=lambda one: (-one[1], one[0]))[0]
    most = limit * max(weights.values())
    slots, messages = busiest.demand.slots, busiest.demand.messages
    total, is_held, will_be_held = float(messages.sum()), messages <= most, messages * factor <= most
    parts = np.ceil(messages[~will_be_held] * factor / most).astype(int)
    hot = dict(zip(slots[~will_be_held].tolist(), parts.tolist(), strict=True))
    ring: Ring | None = None
    now, tried = 0, MAX_SHARDS
    wanted: dict[Destination, int] = {}
    for number in _numbers(sorted(weights)):
        wanted[Destination("queue", exchange.shard(number).place)] = weight = weights.get(number, common)
        room = limit * sum(wanted.values())
        if room < total:
            continue
        ring = Ring.build(wanted) if ring is None else ring.changed(wanted)
        busy, then = (_busiest(ring, slots[some], messages[some]) for some in (is_held, will_be_held))
        if not now and busy <= limit:
            now = len(wanted)
        if now and then * factor <= limit and total * factor <= room:
            return Enough(now, len(wanted), growth, hot, replace(present, weights=wanted, fair={}, queues={}))
        tried = min(tried, _FURTHER * len(wanted) + _AT_LEAST)
        if len(wanted) >= tried:
            break
    raise PipelineError(_none_is_enough(messages[will_be_held], limit, factor, weight, len(wanted)))


def _busiest(ring: Ring, slots: np.ndarray, messages: np.ndarray) -> float:
    """Return how many messages the busiest shard gets, for each unit of its weight."""
    got = np.bincount(ring.table[slots], messages, len(ring.weights))
    return float((got / np.array(ring.weights)).max())


def _numbers(present: Sequence[int]) -> Sequence[int]:
    """Return the numbers of shards in the order in which they are taken: those that are there, then free ones."""
    taken = set(present)
    free = (number for number in count(1) if number not in taken)
    return [*present, *(next(free) for _ in range(MAX_SHARDS - len(present)))]


def _none_is_enough(messages: np.ndarray, limit: float, factor: float, weight: int, shards: int) -> str:
    heaviest = float(messages.max()) * factor if len(messages) else 0.0
    return (
        f"--max-per-hour {limit:g}: not even {shards:,} shards of weight {weight} are enough; the heaviest key that one"
        f" holds has {heaviest:,.0f} messages an hour: raise the limit, or split that key"
    )
