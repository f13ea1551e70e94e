"""Make an object of JSON's pairs, unless a key stands in it twice.

RFC 8259 leaves open which of the two values counts. Python takes the last one. A gateway that checks requests in front
of the sidecar may take the first, and would let pass what it forbids. The function is called for each object of a
batch, so it is compiled: it takes 0.2 us for an object with two keys, and 0.3 as Python.
"""

# mypyc: compiled

from typing import Any


class DuplicateKeyError(ValueError):
    """An object of JSON that has one key twice; the message names the key."""


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these keys and values. Raises DuplicateKeyError."""
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(f"{repr(key)[:60]} stands twice in one object")
            seen.add(key)
    return made
