"""Who owns which slot: a contest of all destinations, or of some with its holder."""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from ring import arraywise
from ring.hashing import SLOTS
from ring.scores import U16, U64, Indices, slot_streams

try:
    from ring import slotwise

    WAY = slotwise if slotwise.COMPILED else arraywise
except ModuleNotFoundError as error:
    if error.name != "cython":
        raise
    WAY = arraywise  # slotwise is not compiled, and as Python it needs what is not there
"""What decides."""

# Two, for the application beside a sidecar has work, too. Neither loop keeps the GIL, but numpy's passes wait for it
# more often with fewer slots at a time.
_THREADS, _CHUNK = 2, 1 << 16


def contest(seeds: U64, weights: U64, slots: NDArray[np.int64] | None = None) -> U16:
    """The owner of each of these slots, or of all, by the seeds and weights of destinations in the order they sort."""
    owners = np.zeros(SLOTS if slots is None else len(slots), dtype=np.uint16)
    _divided(owners, False, seeds, weights, range(len(weights)), slots)
    return owners


def challenge(seeds: U64, weights: U64, holders: U16, challengers: Sequence[int]) -> U16:
    """The owner of every slot once `challengers` have contested it with its holder; what `contest` of all would say."""
    owners = holders.copy()
    _divided(owners, True, seeds, weights, challengers, None)
    return owners


def _divided(
    owners: U16, defended: bool, seeds: U64, weights: U64, entrants: Sequence[int], slots: NDArray[np.int64] | None
) -> None:
    """Decides the slots that `owners` are of, part by part, in threads where they are many."""
    order, ends = _by_weight(weights, entrants)

    def decide(part: slice) -> None:
        streams = slot_streams(np.arange(part.start, part.stop) if slots is None else slots[part])
        WAY.decide(streams, owners[part], defended, seeds, weights, order, ends)

    parts = [slice(start, min(start + _CHUNK, len(owners))) for start in range(0, len(owners), _CHUNK)]
    if len(parts) > 1:
        with ThreadPoolExecutor(_THREADS) as threads:
            deque(threads.map(decide, parts), maxlen=0)
    elif parts:
        decide(parts[0])


def _by_weight(weights: U64, entrants: Sequence[int]) -> tuple[U16, Indices]:
    """The entrants in groups of one weight, each as they sort, and where each group ends."""
    groups: dict[int, list[int]] = {}
    for i in entrants:
        groups.setdefault(int(weights[i]), []).append(i)
    # The likeliest winners first, so that the others are seen to lose early.
    by_share = [members for _, members in sorted(groups.items(), key=lambda group: -group[0] * len(group[1]))]
    order = np.array([i for members in by_share for i in members], np.uint16)
    return order, np.cumsum([*map(len, by_share)], dtype=np.intp)
