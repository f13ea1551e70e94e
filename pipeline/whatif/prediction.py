"""What a ring would do with a measured demand: numpy over slots, on the driver."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.rings import KnownRing
from pipeline.whatif.jump import jump, natively_moved, rebound, remainder
from pipeline.whatif.topology import MODULUS
from ring.destination import Destination
from ring.ring import Ring
from ring.scores import U16

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Demand:
    """What was published, by slot: arrays of one length, each slot once."""

    slots: I64
    messages: I64
    bytes: I64


@dataclass(frozen=True)
class Share:
    """Messages and bytes, and what of all they are, 0 to 1 (0 of none)."""

    messages: int
    bytes: int
    of_messages: float
    of_bytes: float


@dataclass(frozen=True)
class Load:
    """What a ring's destinations get: as many of each, in the order they sort."""

    destinations: tuple[Destination, ...]
    weights: tuple[int, ...]
    messages: F64
    bytes: F64

    @property
    def over_mean(self) -> float:
        """Messages of the busiest destination by the mean; 1 where there are none."""
        return float(self.messages.max() / self.messages.mean()) if self.messages.any() else 1.0


def load(ring: Ring, demand: Demand) -> Load:
    """What each destination of a ring gets of a demand."""
    return load_by(ring.as_weights(), ring.table[demand.slots], demand)


def load_by(weights: Mapping[Destination, int], owner_of: U16, demand: Demand) -> Load:
    """The same by the owner of each of the demand's slots, an index into the destinations as they sort."""
    destinations = tuple(sorted(weights))
    return Load(
        destinations,
        tuple(weights[destination] for destination in destinations),
        np.bincount(owner_of, demand.messages, minlength=len(destinations)).astype(np.float64),
        np.bincount(owner_of, demand.bytes, minlength=len(destinations)).astype(np.float64),
    )


def moved(present: Ring, proposed: Ring, slots: I64) -> NDArray[np.bool_]:
    """Of each of these slots, whether the proposed ring gives it to another destination."""
    position: dict[Destination, int] = {d: i for i, d in enumerate(present.destinations)}
    absent = len(position)
    as_present = np.array([position.get(d, absent) for d in proposed.destinations])
    changed: NDArray[np.bool_] = as_present[proposed.table[slots]] != present.table[slots]
    return changed


def moved_natively(present: KnownRing, proposed: KnownRing, demand: Demand) -> Share:
    """What RabbitMQ's own exchange of that type moves in the mean over where its hash may put the keys.

    For bindings in the order that the rings' weights are in. Which keys it moves is not computed: its hash is another.
    """
    bucket = remainder if present.exchange_type == MODULUS else jump
    part = natively_moved(present.weights, rebound(present.weights, proposed.weights), bucket)
    messages, size = int(demand.messages.sum()), int(demand.bytes.sum())
    return Share(round(part * messages), round(part * size), part if messages else 0.0, part if size else 0.0)


def share(demand: Demand, which: NDArray[np.bool_]) -> Share:
    """What of a demand falls on some of its slots."""
    messages, size = int(demand.messages[which].sum()), int(demand.bytes[which].sum())
    return Share(messages, size, messages / max(int(demand.messages.sum()), 1), size / max(int(demand.bytes.sum()), 1))


def floor(of: Load, demand: Demand) -> float:
    """The least that any weights could bring `over_mean` to: more than 1 where one slot outweighs the mean."""
    return max(1.0, float(demand.messages.max(initial=0) / max(of.messages.mean(), 1e-9)))
