"""Predicting what a ring does with a measured demand, by numpy over slots on the driver."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.rings import RingSpec
from pipeline.whatif.jump import jump, natively_moved, rebound, remainder
from pipeline.whatif.topology import MODULUS
from ring.destination import Destination
from ring.ring import Ring
from ring.scores import U16

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Demand:
    """How much was published by slot: arrays of one length, with each slot once. Expected numbers may be fractions."""

    slots: I64
    messages: NDArray[Any]
    bytes: NDArray[Any]


@dataclass(frozen=True)
class Load:
    """The load of each destination of a ring; all fields have one entry per destination, in sorted order."""

    destinations: tuple[Destination, ...]
    weights: tuple[int, ...]
    fair: F64
    """The share of the messages that each destination ought to get, 0 to 1."""
    messages: F64
    bytes: F64

    @property
    def over_fair(self) -> F64:
        """Each destination's messages over its fair share of them; 1 for every destination if there are no messages."""
        total = self.messages.sum()
        return self.messages / (self.fair * total) if total else np.ones_like(self.messages)

    @property
    def max_over_fair(self) -> float:
        """The busiest destination's messages per weight over the mean per weight, 1 or more."""
        return float(self.over_fair.max())


Weights = Mapping[Destination, int]


def load(ring: Ring, demand: Demand, wanted: Weights | None = None) -> Load:
    """Return what each destination of a ring gets of a demand.

    The `wanted` weights say which shares are fair. Without them the ring's own weights do.
    """
    return load_by(ring.as_weights(), ring.table[demand.slots], demand, wanted)


def load_by(weights: Weights, owner_of: U16, demand: Demand, wanted: Weights | None = None) -> Load:
    """Return the load of each destination, as `load` does, for owners of slots that are given.

    `owner_of` has the owner of each slot of the demand, as an index into the sorted destinations.
    """
    destinations = tuple(sorted(weights))
    fair = np.array([(wanted or weights)[destination] for destination in destinations], np.float64)
    return Load(
        destinations,
        tuple(weights[destination] for destination in destinations),
        fair / fair.sum(),
        np.bincount(owner_of, demand.messages, minlength=len(destinations)).astype(np.float64),
        np.bincount(owner_of, demand.bytes, minlength=len(destinations)).astype(np.float64),
    )


def moved(present: Ring, proposed: Ring, slots: I64) -> NDArray[np.bool_]:
    """Return for each of these slots whether the proposed ring gives it to another destination."""
    position: dict[Destination, int] = {d: i for i, d in enumerate(present.destinations)}
    absent = len(position)
    as_present = np.array([position.get(d, absent) for d in proposed.destinations])
    changed: NDArray[np.bool_] = as_present[proposed.table[slots]] != present.table[slots]
    return changed


def native_part(present: RingSpec, proposed: RingSpec) -> float:
    """Return the mean share of keys, 0 to 1, that RabbitMQ's own exchange of the rings' type would move.

    The mean is over all places that its hash may give a key. The bindings are taken to be in the order of the rings'
    weights. Which keys would move is not computed, because RabbitMQ's hash differs from the ring's.
    """
    bucket = remainder if present.exchange_type == MODULUS else jump
    return natively_moved(present.weights, rebound(present.weights, proposed.weights), bucket)


def least_over_fair(load: Load, heaviest: float, messages: float) -> float:
    """Return the least that any weights of the load's destinations could bring `max_over_fair` to, 1 or more.

    It is more than 1 if the heaviest slot, which moves whole, outweighs even the largest fair share. `heaviest` and
    `messages` are the messages of that slot and of all slots.
    """
    return max(1.0, heaviest / (float(load.fair.max()) * messages))
