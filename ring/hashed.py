"""What of a message an exchange hashes: its routing key, a header or a property."""

from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

Source = Literal["routing_key", "header", "property"]

HASHED_PROPERTIES = frozenset({"message_id", "correlation_id", "timestamp"})
"""What RabbitMQ accepts as `hash-property`."""


class HashedValue(NamedTuple):
    """Where an exchange takes its key from; `name` is empty for the routing key."""

    source: Source = "routing_key"
    name: str = ""

    def __str__(self) -> str:
        """As fingerprints and people read it: ``routing_key``, ``header:customer``, ``property:message_id``."""
        return f"{self.source}:{self.name}" if self.name else self.source

    @classmethod
    def parse(cls, text: str) -> Self:
        """What prints as this text. Raises ValueError, which names it."""
        if text == "routing_key":
            return cls()
        source, _, name = text.partition(":")
        if source in ("header", "property") and name:
            return cls("header" if source == "header" else "property", name)
        raise ValueError(f"{text!r} is not routing_key, header:NAME or property:NAME")


def key_of(hashed: HashedValue, routing_key: bytes, values: Mapping[str, object]) -> bytes | None:
    """The bytes to hash, or None where the message lacks the value: such messages share the empty value's slot.

    `values` holds the message's headers or its properties, as `hashed.source` says. Strings and bytes are taken as
    they are, integers as decimal text; anything else counts as missing.
    """
    if hashed.source == "routing_key":
        return routing_key
    value = values.get(hashed.name)
    match value:
        case bytes():
            return value
        case str():
            return value.encode()
        case int() if not isinstance(value, bool):
            return str(value).encode()
        case _:
            return None
