"""The steps by which an exchange of a topology file is made, or a shard is retired: each a change of the broker."""

from typing import NamedTuple

from proxy.shards.shard import Arguments
from proxy.topology.bindings import Promise
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
    """Declare a durable exchange, by way of `node` if one is named."""

    name: str
    type: str
    arguments: Arguments
    node: str | None = None

    def __str__(self) -> str:
        """Return the step as progress lines and plans show it."""
        return f"declare exchange {self.name} ({self.type})"


class Bind(NamedTuple):
    """Bind a destination to an exchange."""

    source: str
    destination: Destination
    key: str
    promise: Promise | None = None
    """The promise that the binding's arguments make; None for a binding without arguments."""

    def __str__(self) -> str:
        """Return the step as progress lines and plans show it."""
        weight = f", weight {self.key}" if self.key else ""
        groups = ", ".join(name for name, _ in self.promise.groups) if self.promise is not None else ""
        groups = f", for the groups {groups}" if groups else ""
        return f"bind {self.source} to {self.destination.kind} {self.destination.name}{weight}{groups}"


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


class DeleteQueue(NamedTuple):
    """Delete a queue. With `if_empty` the broker refuses that if there are ready messages in it."""

    name: str
    if_empty: bool

    def __str__(self) -> str:
        """Return the step as progress lines show it."""
        return f"delete queue {self.name}"


class DeleteExchange(NamedTuple):
    """Delete an exchange."""

    name: str

    def __str__(self) -> str:
        """Return the step as progress lines show it."""
        return f"delete exchange {self.name}"


Step = DeclareQueue | DeclareExchange | Bind | Unbind
"""A step of a plan."""

Removal = Unbind | DeleteQueue | DeleteExchange
"""A step that takes something away. If it is not there, the step is done."""
