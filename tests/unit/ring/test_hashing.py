"""The slot of a value."""

import pytest

from ring.hashing import SLOTS, hash64, slot_of

# MurmurHash3_x64_128, seed 0, first half: `a` and the empty key are in the reference implementation's test vectors.
GOLDEN = [
    (b"", 0x0, 0),
    (b"a", 0x85555565F6597889, 546133),
    (b"key-1", 0xFE328ECA36176AFE, 1041192),
    ("é".encode(), 0xC9187AA411D463E8, 823687),
    (b"\xff\x00", 0x5587A07C1016F56F, 350330),
    (b"x" * 255, None, 858646),
]


@pytest.mark.parametrize(("key", "digest", "slot"), GOLDEN)
def test_golden(key: bytes, digest: int | None, slot: int) -> None:
    assert slot_of(key) == slot
    if digest is not None:
        assert hash64(key) == digest


def test_the_slot_is_the_top_twenty_bits() -> None:
    for i in range(1000):
        key = f"key-{i}".encode()
        assert 0 <= slot_of(key) < SLOTS == 2**20
        assert slot_of(key) == int(f"{hash64(key):064b}"[:20], 2)
