"""A ring in the form that tasks get: the queue of each key, and the bytes with which a publish to it begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from proxy.routing.route import Target
from proxy.wire.content import stamp_of_exchange
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import index_at, slot_of


@dataclass(frozen=True)
class Routes:
    """One exchange's ring, pinned: small enough to go to every task (2 MiB and the names)."""

    exchange: str
    hashed: HashedValue
    fingerprint: str
    queues: tuple[str, ...]
    owners: bytes
    """The ring's table: the index of each slot's queue, as `index_at` reads it."""
    lanes: tuple[str, ...]
    """The lane that publishes to each queue go through, in the order of `queues`; empty for a queue that has none."""
    behind: tuple[str, ...]
    """The queue in which the rows for each of `queues` wait, whose name differs in a later generation of shards."""

    @classmethod
    def of(cls, exchange: str, spec: RingSpec) -> "Routes":
        """Make the routes of a ring. Raises PipelineError if a destination is an exchange."""
        for destination in spec.ring.destinations:
            if destination.kind != "queue":
                raise PipelineError(f"exchange {exchange!r}: {destination} is bound to it; rows go to queues only")
        queues = tuple(destination.name for destination in spec.ring.destinations)
        lanes = tuple(spec.lanes.get(queue, "") for queue in queues)
        behind = tuple(map(spec.queue_behind, queues))
        return cls(exchange, hashed_value(spec.hashed), spec.fingerprint, queues, spec.ring.owner_index, lanes, behind)

    def index_of(self, value: bytes) -> int:
        """Return the index in `queues` of the queue that owns a hashed value."""
        return index_at(self.owners, slot_of(value))

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        """Where a publish goes for each queue, and its first bytes, in the order of `queues`."""
        named = zip(self.queues, self.lanes, strict=True)
        return tuple(Target(Destination("queue", queue), lane or None) for queue, lane in named)

    @cached_property
    def stamp(self) -> bytes:
        """The encoded header x-ring-exchange and the name of x-ring-routing-key, with which the stamps of each
        message begin.
        """
        return stamp_of_exchange(self.exchange.encode())


def hashed_value(printed: str) -> HashedValue:
    """Return the hashed value that a text such as ``header:customer`` names. Raises PipelineError for any other
    text.
    """
    try:
        return HashedValue.parse(printed)
    except ValueError as error:
        raise PipelineError(f"hashed: {error}") from None


def in_words(counts: Mapping[str, int], what: str) -> str:
    """Return counts of rows by queue in words, such as ``queue 'orders.1': 3 rows returned``."""
    return "; ".join(
        f"queue {queue!r}: {count:,} {'row' if count == 1 else 'rows'} {what}" for queue, count in counts.items()
    )
