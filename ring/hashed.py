"""The part of a message that an exchange hashes: the routing key, a header or a property.

Two clients that send the same value must reach the same queue, although one encodes 7 in 8 bits, another in 64, and a
third one, which knows doubles only, as 7.0. A value is therefore hashed by a text that does not depend on its type,
the canonical form: text as it is, and each other value as a person would write it.

| value | canonical form |
|---|---|
| text, bytes | the same bytes |
| whole number, of any type | all its digits: `7`, also for 7.0, 7.00 and -0.0's `0` |
| other number | its digits without an exponent, the fewest that are read as the same double: `0.1`, `0.0000001` |
| boolean | `true`, `false` |
| point in time | its seconds since 1970 |
| array | the canonical form of its first element, as RabbitMQ 4 does; `[]` for an empty array |
| table, and an array in an array | JSON without spaces, names in the order of their bytes: `{"a":7,"b":[true,null]}` |
| nothing (void) | none: the message counts as one that lacks the value |
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from math import isfinite
from typing import Literal, NamedTuple, Self

Source = Literal["routing_key", "header", "property"]
"""The places in a message from which an exchange can take the value to hash."""

HASHED_PROPERTIES = frozenset({"message_id", "correlation_id", "timestamp"})
"""The properties that RabbitMQ accepts in the exchange argument `hash-property`."""


class HashedValue(NamedTuple):
    """The part of a message that one exchange hashes; `name` is that of the header or property, empty for the routing
    key.
    """

    source: Source = "routing_key"
    name: str = ""

    def __str__(self) -> str:
        """Return the text that fingerprints and log lines contain, such as ``routing_key`` or ``header:customer``."""
        return f"{self.source}:{self.name}" if self.name else self.source

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the value whose ``str`` is this text. Raises ValueError, which names the text."""
        if text == "routing_key":
            return cls()
        source, _, name = text.partition(":")
        if source in ("header", "property") and name:
            return cls("header" if source == "header" else "property", name)
        raise ValueError(f"{text!r} is not routing_key, header:NAME or property:NAME")


def key_of(hashed: HashedValue, routing_key: bytes, values: Mapping[str, object]) -> bytes | None:
    """Return the bytes to hash; None if the message lacks the value, so that it goes to the slot of the empty value.

    `values` holds the message's headers or its properties, as `hashed.source` says.
    """
    return routing_key if hashed.source == "routing_key" else canonical(values.get(hashed.name))


def canonical(value: object) -> bytes | None:
    """Return the canonical form of a value that a header can have; None for None.

    A table is a dict whose names are text or bytes. Raises TypeError for a value of another type.
    """
    if isinstance(value, list):
        if not value:
            return b"[]"
        value = value[0]
    match value:
        case None:
            return None
        case bytes():
            return value
        case str():
            return value.encode()
        case _:
            return _written(value)


def _written(value: object) -> bytes:
    """Return a value as it stands in the JSON of a table. Texts are quoted, other bytes than UTF-8 stay as they are.

    Raises TypeError for a value of a type that no table has.
    """
    match value:
        case bytes():
            return _quoted(value)
        case str():
            return _quoted(value.encode())
        case None:
            return b"null"
        case bool():
            return b"true" if value else b"false"
        case int():
            return b"%d" % value
        case float() | Decimal():
            return _number(value).encode()
        case dict():
            named = sorted(
                ((name.encode() if isinstance(name, str) else name, each) for name, each in value.items()), key=_name
            )
            return b"{" + b",".join([_quoted(name) + b":" + _written(each) for name, each in named]) + b"}"
        case list():
            return b"[" + b",".join([_written(each) for each in value]) + b"]"
        case _:
            raise TypeError(f"{type(value).__name__} is no type of a header")


def _name(item: tuple[bytes, object]) -> bytes:
    return item[0]


def _number(value: float | Decimal) -> str:
    """Return a number without an exponent, and without zeros behind its last decimal place."""
    if not isfinite(value):
        return str(value)
    if value == int(value):
        return str(int(value))
    # A float's repr has the fewest digits that are read as the same float.
    written = f"{Decimal(repr(value)) if isinstance(value, float) else value:f}"
    return written.rstrip("0")


def _quoted(text: bytes) -> bytes:
    if text.isalnum():
        return b'"' + text + b'"'
    return _in_json(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")


_in_json = json.JSONEncoder(ensure_ascii=False).encode
