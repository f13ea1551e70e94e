"""Hash keys to slots and destinations to seeds, with the first 64 bits of MurmurHash3_x64_128."""

# mypyc: compiled

from typing import Final

import mmh3
from librt.strings import read_i16_le, read_i64_le

RING_FORMAT: Final = 1
"""The version of hash, slots and scores together. No release changes it for an exchange unasked."""

SLOT_BITS: Final = 20
"""The number of leading bits of a key's hash that select its slot."""
SLOTS: Final = 1 << SLOT_BITS
"""The number of slots, which are equal shares of the hash space. 2^20 slots pass the chi-squared test at 150,000 keys;
a ring of 128 points for each queue does not."""

_SLOT_SHIFT: Final = 64 - SLOT_BITS
_SLOT_MASK: Final = SLOTS - 1
_digest: Final = mmh3.mmh3_x64_128_digest


def hash64(data: bytes) -> int:
    """Return the first half of MurmurHash3_x64_128 with seed 0, as an unsigned 64-bit integer."""
    # Passed by name, since mmh3 5.3.1 ignores a fourth positional argument.
    return mmh3.hash64(data, 0, signed=False)[0]


def slot_of(key: bytes) -> int:
    """Return the slot of a key, 0 to SLOTS - 1: the top 20 bits of its hash."""
    # Every publish comes through here, and the digest takes a third of the time of hash64.
    return read_i64_le(_digest(key, 0), 0) >> _SLOT_SHIFT & _SLOT_MASK


def index_at(table: bytes, slot: int) -> int:
    """Return a slot's entry in a table of unsigned 16-bit little-endian integers."""
    index: int = read_i16_le(table, 2 * slot)
    return index & 0xFFFF
