"""The part of a message that an exchange hashes: the routing key, a header or a property."""

from collections.abc import Mapping
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
