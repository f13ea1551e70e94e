"""Random numbers and inputs for `equal`, and what comes of them as text that does not depend on what runs."""

from collections import deque
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache
from random import Random
from zlib import crc32

from proxy.http.admission.limits import Limits
from proxy.publisher.channel import ConfirmChannel
from proxy.publisher.protocol import PublisherProtocol
from proxy.routing.counters import Counters
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.publishing.confirms import Confirms
from tests.fuzz.corpus import inputs

Say = Callable[[object], None]
"""Takes one thing that came out."""

EDGES = sorted({(1 << bits) + d for bits in (7, 8, 15, 16, 31, 32, 33, 34, 61, 62, 63, 64) for d in (-2, -1, 0, 1, 2)})

_STATE = (Connection, Channel, Confirms, Counters, PublisherProtocol, ConfirmChannel, Limits)
"""Classes of which every attribute is compared."""


def number(rng: Random, bits: int = 64, near: int = 0) -> int:
    """One that fits: at an edge, small, any, or near another."""
    which = rng.random()
    if which < 0.5:
        return rng.choice([edge for edge in EDGES if edge < 1 << bits])
    if which < 0.7:
        return rng.randrange(6)
    return rng.getrandbits(bits) if which < 0.8 else max(0, near + rng.randrange(-3, 4)) % (1 << bits)


def mutated(rng: Random, kept: list[bytes]) -> bytes:
    """One of those, or two spliced, with some bytes changed, gone, or there twice."""
    data = bytearray(rng.choice(kept))
    if rng.random() < 0.4:
        other = rng.choice(kept)
        data[rng.randrange(len(data) + 1) :] = other[rng.randrange(len(other) + 1) :]
    for _ in range(rng.choice((0, 1, 1, 2, 4, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes((rng.choice((0, 1, 4, 127, 128, 206, 255, rng.randrange(256))),))
            case 1:
                del data[at : at + rng.randrange(1, 9)]
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case _:
                data[at:at] = data[at : at + rng.randrange(1, 64)]
    return bytes(data[:2048])


@cache
def kept_of(name: str) -> list[bytes]:
    return inputs(name)


def shown(thing: object, within: int = 0) -> str:
    """Return a value as text that does not depend on what runs; long bytes by their length and checksum."""
    if isinstance(thing, bytes):
        return repr(thing) if len(thing) <= 100 else f"{thing[:60]!r}..({len(thing)}, {crc32(thing):08x})"
    if isinstance(thing, IntEnum):
        return str(int(thing))
    if isinstance(thing, _STATE) and within < 6:
        compiled, slots = (getattr(type(thing), name, ()) for name in ("__mypyc_attrs__", "__slots__"))
        names = compiled or slots or vars(thing)
        parts = (f"{name}={shown(getattr(thing, name, '-'), within + 1)}" for name in sorted(names))
        return f"{type(thing).__name__}({', '.join(parts)})"
    if isinstance(thing, Mapping):
        return f"{{{', '.join(f'{shown(key)}: {shown(value, within + 1)}' for key, value in thing.items())}}}"
    if isinstance(thing, set | frozenset):
        return f"{{{', '.join(sorted(map(shown, thing)))}}}"
    if isinstance(thing, list | tuple | deque):
        return f"({', '.join(shown(one, within + 1) for one in thing)})"
    if thing is None or isinstance(thing, int | float | str):
        return repr(thing)
    return "callable" if callable(thing) else str(getattr(thing, "name", type(thing).__name__))


def attempt(say: Say, function: Callable[..., object], *arguments: object) -> bool:
    """Say what it returns, or raises; whether it returned."""
    try:
        say(function(*arguments))
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
        return False
    return True
