"""From a key to its slot, and from a destination to its seed: MurmurHash3_x64_128, the first 64-bit half."""

from typing import Final

import mmh3
from librt.strings import read_i16_le, read_i64_le

RING_FORMAT: Final = 1
"""Version of hash, slots and scores together. A release never changes it for an exchange that did not ask."""

SLOT_BITS: Final = 20
SLOTS: Final = 1 << SLOT_BITS
"""Equal shares of the hash space. 2^20 pass the chi-squared test at 150,000 keys; 128 points a queue do not."""

_SLOT_SHIFT: Final = 64 - SLOT_BITS
_SLOT_MASK: Final = SLOTS - 1
_digest: Final = mmh3.mmh3_x64_128_digest


def hash64(data: bytes) -> int:
    """First half of MurmurHash3_x64_128 with seed 0, as an unsigned 64-bit integer."""
    # By name: mmh3 5.3.1 overlooks a fourth positional argument.
    return mmh3.hash64(data, 0, signed=False)[0]


def slot_of(key: bytes) -> int:
    """The slot, 0 to SLOTS - 1, of a key: the top 20 bits of its hash."""
    # Not through hash64: this is on the way of every publish, and the digest is there in a third of the time.
    return read_i64_le(_digest(key, 0), 0) >> _SLOT_SHIFT & _SLOT_MASK


def index_at(table: bytes, slot: int) -> int:
    """A slot's entry in a table of two bytes a slot, the low one first."""
    index: int = read_i16_le(table, 2 * slot)
    return index & 0xFFFF
