"""The destination of a binding, and the weight that its binding key gives."""

import re
from typing import Literal, NamedTuple

MAX_WEIGHT = 10_000
"""The largest weight: RabbitMQ's own limit since CVE-2026-67219."""

MAX_DESTINATIONS = 1 << 16
"""The most destinations of a ring, since its table holds 16-bit indices."""

Kind = Literal["queue", "exchange"]
"""The two kinds of destinations of a binding."""

# Erlang's list_to_integer/1, by which RabbitMQ reads weights, takes an optional sign and ASCII digits only.
_ERLANG_INTEGER = re.compile(r"[+-]?[0-9]{1,255}", re.ASCII)


class Destination(NamedTuple):
    """A queue or an exchange in the virtual host of the ring's exchange. Destinations sort by kind, then by name."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """Return the kind and the quoted name, as log lines show them: ``queue 'orders.1'``."""
        return f"{self.kind} {self.name!r}"


class WeightError(ValueError):
    """A binding key is not a weight; the message says why."""


def parse_weight(binding_key: str) -> int:
    """Return the weight, 1 to MAX_WEIGHT, of a binding key, read as Erlang reads integers (so ``+3`` and ``05`` are
    valid).

    Raises WeightError for everything else: ``1_0``, `` 4``, ``0``, ``-1``, ``abc``, the empty key, ``10001``.
    """
    if not _ERLANG_INTEGER.fullmatch(binding_key):
        raise WeightError("not a whole number" if binding_key else "empty")
    weight = int(binding_key)
    if not 1 <= weight <= MAX_WEIGHT:
        raise WeightError(f"outside 1 to {MAX_WEIGHT}")
    return weight
