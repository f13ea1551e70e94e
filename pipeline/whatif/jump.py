"""The keys that RabbitMQ's own exchanges move, by jump consistent hash or a remainder over buckets of bindings."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from ring.destination import Destination
from ring.hashing import SLOTS
from ring.scores import U64, draws, slot_streams

_MULTIPLIER = np.uint64(2862933555777941757)


def jump(hashes: U64, buckets: int) -> NDArray[np.int64]:
    """Return the bucket, 0 to `buckets` - 1, of each 64-bit hash by jump consistent hash (Lamping and Veach, 2014).

    `buckets` is 1 or more.
    """
    owners = np.zeros(len(hashes), np.int64)
    still = np.arange(len(hashes))
    state, bucket = hashes, owners
    while still.size:
        owners[still] = bucket
        state = state * _MULTIPLIER + np.uint64(1)
        bucket = ((bucket + 1) * (2.0**31 / ((state >> np.uint64(33)) + np.uint64(1)))).astype(np.int64)
        on = bucket < buckets
        still, state, bucket = still[on], state[on], bucket[on]
    return owners


def rebound(present: Mapping[Destination, int], proposed: Mapping[Destination, int]) -> dict[Destination, int]:
    """Return the proposed weights in binding order: first what stays as it was, then what is bound or bound anew.

    Both mappings are in binding order too.
    """
    stays = [destination for destination, weight in present.items() if proposed.get(destination) == weight]
    return {destination: proposed[destination] for destination in dict.fromkeys([*stays, *proposed])}


def remainder(hashes: U64, buckets: int) -> NDArray[np.int64]:
    """Return the bucket, 0 to `buckets` - 1, of each 64-bit hash by x-modulus-hash: the remainder."""
    return (hashes % np.uint64(buckets)).astype(np.int64)


def natively_moved(
    present: Mapping[Destination, int],
    proposed: Mapping[Destination, int],
    bucket: Callable[[U64, int], NDArray[np.int64]] = jump,
) -> float:
    """Return the share of all keys that RabbitMQ's exchange would move; both weights are in binding order.

    `bucket` finds the bucket of each hash. The share is counted over as many hashes as there are slots, so its
    standard error is at most 0.0005.
    """
    hashes = draws(slot_streams(np.arange(SLOTS)), np.uint64(0))
    names = {destination: n for n, destination in enumerate({**present, **proposed})}
    before, after = (
        _buckets(names[d] for d, weight in weights.items() for _ in range(weight)) for weights in (present, proposed)
    )
    return float((before[bucket(hashes, len(before))] != after[bucket(hashes, len(after))]).mean())


def _buckets(owners: Iterable[int]) -> NDArray[np.int64]:
    return np.fromiter(owners, np.int64)
