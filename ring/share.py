"""The order in which slots begin to follow a ring, where an exchange is cut over share by share.

A share of the slots consists of those with the lowest ranks. The rank is a function of the slot alone, so every sidecar
has the same slots in a share, and a share holds every smaller one. It is a product with an odd number, which gives each
slot a rank of its own. Two things must not depend on it:

- the owner of a slot, or a share would take whole queues. The draws of `ring.scores` decide owners, and depend on no
  order of the slots (tests/unit/ring/test_share.py);
- the journal's sample, the first slots, or a sample of 10% and a share of 10% would be the same keys. The factor is
  near (sqrt(2) - 1) * 2^20, whose multiples fill every range evenly (the three-gap theorem): a sample has a share's
  part of its slots, to within 4 slots (computed).
"""

# mypyc: compiled

from typing import Final

from ring.hashing import SLOTS

_FACTOR: Final = 434_335


def rank_of(slot: int) -> int:
    """Return a slot's place, 0 to SLOTS - 1, in the order in which slots begin to follow their ring."""
    return slot * _FACTOR & (SLOTS - 1)


def slots_in(percent: float) -> int:
    """Return the number of slots in a share of 0 to 100 percent: those whose ranks are below it."""
    return round(SLOTS * percent / 100)
