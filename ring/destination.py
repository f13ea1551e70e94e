"""What a binding points at, and the weight it gives."""

import re
from typing import Literal, NamedTuple

MAX_WEIGHT = 10_000
"""RabbitMQ's own cap since CVE-2026-67219."""

Kind = Literal["queue", "exchange"]

# What Erlang's list_to_integer/1 reads: an optional sign and ASCII digits, nothing around or between them.
_ERLANG_INTEGER = re.compile(r"[+-]?[0-9]{1,255}", re.ASCII)


class Destination(NamedTuple):
    """A queue or an exchange of the ring's own virtual host. Sorts by kind, then by name."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        """As people read it: ``queue 'orders.1'``."""
        return f"{self.kind} {self.name!r}"


class WeightError(ValueError):
    """A binding key that is not a weight; the message says why."""


def parse_weight(binding_key: str) -> int:
    """The weight a binding key names, 1 to MAX_WEIGHT, read as Erlang reads integers (``+3`` and ``05`` are ones).

    Raises WeightError for everything else: ``1_0``, `` 4``, ``0``, ``-1``, ``abc``, the empty key, ``10001``.
    """
    if not _ERLANG_INTEGER.fullmatch(binding_key):
        raise WeightError("not a whole number" if binding_key else "empty")
    weight = int(binding_key)
    if not 1 <= weight <= MAX_WEIGHT:
        raise WeightError(f"outside 1 to {MAX_WEIGHT}")
    return weight
