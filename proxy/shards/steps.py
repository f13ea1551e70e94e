"""The steps by which an exchange of a topology file is made, each one request to the management API."""

from typing import NamedTuple

from proxy.shards.shard import Arguments
from ring.destination import Destination


class DeclareQueue(NamedTuple):
    """Declare a durable queue, on `node` if one is named."""

    name: str
    arguments: Arguments
    node: str | None

    def __str__(self) -> str:
        """Return the step as progress lines and plans show it."""
        return f"declare queue {self.name}"


class DeclareExchange(NamedTuple):
    """Declare a durable exchange."""

    name: str
    type: str
    arguments: Arguments

    def __str__(self) -> str:
        """Return the step as progress lines and plans show it."""
        return f"declare exchange {self.name} ({self.type})"


class Bind(NamedTuple):
    """Bind a destination to an exchange."""

    source: str
    destination: Destination
    key: str

    def __str__(self) -> str:
        """Return the step as progress lines and plans show it."""
        weight = f", weight {self.key}" if self.key else ""
        return f"bind {self.source} to {self.destination.kind} {self.destination.name}{weight}"


class Unbind(NamedTuple):
    """Remove one binding."""

    source: str
    destination: Destination
    key: str
    properties_key: str

    def __str__(self) -> str:
        """Return the step as progress lines and plans show it."""
        weight = f", weight {self.key}" if self.key else ""
        return f"unbind {self.source} from {self.destination.kind} {self.destination.name}{weight}"


Step = DeclareQueue | DeclareExchange | Bind | Unbind
