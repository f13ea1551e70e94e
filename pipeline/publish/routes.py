"""A ring as tasks get it: which queue a key goes to, and how a publish there begins."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pipeline import PipelineError
from pipeline.rings import RingSpec
from proxy.routing.routes import Target
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
    """For `index_at`: each slot's queue."""

    @classmethod
    def of(cls, exchange: str, spec: RingSpec) -> "Routes":
        """Of a ring all of whose destinations are queues. Raises PipelineError for another."""
        for destination in spec.ring.destinations:
            if destination.kind != "queue":
                raise PipelineError(f"exchange {exchange!r}: {destination} is bound to it; rows go to queues only")
        queues = tuple(destination.name for destination in spec.ring.destinations)
        return cls(exchange, hashed_value(spec.hashed), spec.fingerprint, queues, spec.ring.owner_index)

    def index_of(self, value: bytes) -> int:
        """Of the queue that the hashed value belongs to."""
        return index_at(self.owners, slot_of(value))

    @cached_property
    def methods(self) -> tuple[bytes, ...]:
        """How a publish to each queue begins."""
        return tuple(Target(Destination("queue", name)).method for name in self.queues)

    @cached_property
    def stamp(self) -> bytes:
        """What its stamps begin with."""
        return stamp_of_exchange(self.exchange.encode())


def hashed_value(printed: str) -> HashedValue:
    """As `HashedValue.parse`. Raises PipelineError, which names the field."""
    try:
        return HashedValue.parse(printed)
    except ValueError as error:
        raise PipelineError(f"hashed: {error}") from None


def in_words(counts: Mapping[str, int], what: str) -> str:
    """Counts by queue: ``queue 'orders.1': 3 rows returned``."""
    return "; ".join(
        f"queue {queue!r}: {count:,} {'row' if count == 1 else 'rows'} {what}" for queue, count in counts.items()
    )
