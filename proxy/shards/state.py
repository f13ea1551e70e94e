"""The state of one virtual host: exchanges, bindings and queues, as the management API lists them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from proxy.topology.bindings import (
    RING_TYPES,
    Behind,
    Binding,
    Exchange,
    Fan,
    Leads,
    Promise,
    behind_of,
    promises_of,
    weigh,
)
from proxy.topology.generations import current
from ring.destination import Destination


@dataclass(frozen=True)
class FoundQueue:
    """A queue as the management API lists it. A field that the API does not show yet, or at all, is None."""

    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    lasting: bool = True
    """Whether the queue is durable, neither exclusive nor deleted by itself."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """The keys of all policies and operator policies that apply to the queue, merged as RabbitMQ merges them."""
    ready: int | None = None
    unacked: int | None = None
    elsewhere: int = 0
    """The messages that are neither ready nor delivered: they wait for a delayed retry, or to be dead-lettered."""
    node: str | None = None
    """The node that leads the queue."""
    members: frozenset[str] = frozenset()
    """The nodes that have a replica of the queue; empty for a classic queue."""
    down: bool = False
    """Whether the queue's node does not run, or too few of its members do."""
    bindings_known: bool = True
    """Whether the API lists the queue's bindings. RabbitMQ 3 leaves out those of a classic queue that is down."""

    @property
    def waiting(self) -> int | None:
        """The number of messages in the queue; None if it is not known."""
        return None if self.ready is None or self.unacked is None else self.ready + self.unacked + self.elsewhere

    @property
    def content(self) -> str:
        """The messages in the queue, in words."""
        return content(self.ready, self.unacked, self.elsewhere)


def content(ready: int | None, unacked: int | None, elsewhere: int) -> str:
    """Return how many messages of a queue are ready, delivered, and neither of the two, in words."""
    more = f", and {elsewhere} wait for a delayed retry or to be dead-lettered" if elsewhere else ""
    return f"{ready} messages ready and {unacked} not acked yet{more}"


def neither(messages: object, ready: int, unacked: int) -> int:
    """Return how many messages are neither ready nor delivered, of those that the management API counts in all."""
    return max(messages - ready - unacked, 0) if type(messages) is int else 0


@dataclass(frozen=True)
class FoundExchange:
    """An exchange as the management API lists it."""

    type: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    lasting: bool = True
    """Whether the exchange is durable and not deleted by itself."""
    auto_delete: bool = False
    """Whether the exchange is deleted with its last binding."""
    internal: bool = False
    alternate: str | None = None
    """The policy that gives the exchange an alternate exchange; None if no policy does."""
    sharded: str | None = None
    """The policy by which the sharding plugin makes shards, in words; None if there is none."""


class FoundBinding(NamedTuple):
    """A binding as the management API lists it."""

    destination: Destination
    key: str
    properties_key: str = "~"
    """The management API's name for the binding among those of the same source and destination."""
    promise: Promise | None = None
    """The promise that the binding's arguments make; None if they make none."""


@dataclass(frozen=True)
class State:
    """The state of one virtual host, with the nodes and the version of the broker."""

    vhost: str
    exchanges: Mapping[str, FoundExchange] = field(default_factory=dict)
    queues: Mapping[str, FoundQueue] = field(default_factory=dict)
    bindings: Mapping[str, tuple[FoundBinding, ...]] = field(default_factory=dict)
    """The bindings by the exchange that is their source."""
    nodes: tuple[str, ...] = ()
    """The nodes on which the virtual host runs, sorted."""
    version: tuple[int, ...] = (4,)
    """The broker's version, such as ``(4, 3, 6)``."""
    exchange_types: frozenset[str] | None = None
    """The types of exchange that the broker has, those of enabled plugins among them; None if it does not tell."""

    def behind(self, destination: Destination) -> Destination:
        """Return the shard behind a lane; any other destination as it is.

        A lane is a fanout exchange with one binding, to one queue or to a fan, to which clients may publish, and
        without an alternate exchange, that is not deleted by itself.
        """
        queue = self.lane(destination.name).queue if destination.kind == "exchange" else ""
        return Destination("queue", queue) if queue else destination

    @cached_property
    def _promises(self) -> Mapping[str, Promise | None]:
        """By exchange that a hash exchange is bound to, the promise of these bindings: see `promises_of`."""
        return promises_of(
            _plain(each)
            for source, bindings in self.bindings.items()
            if (exchange := self.exchanges.get(source)) is not None and exchange.type in RING_TYPES
            for each in bindings
        )

    def lane_fault(self, name: str) -> str:
        """Return why an exchange cannot be used as a lane; empty if it is one."""
        exchange = self.exchanges.get(name)
        if exchange is None:
            return "does not exist"
        if why := lane_misfit(exchange):
            return why
        if self.lane(name).leads is Leads.TO_QUEUE:
            return ""
        found = self.bindings.get(name, ())
        if len(found) != 1:
            return f"has {len(found)} bindings; a lane has one"
        return f"leads to {found[0].destination}"

    def weights(self, exchange: str) -> Mapping[Destination, int]:
        """Return the weights of an exchange's ring as a sidecar reads them, each lane placed as the queue behind it.

        An exchange that does not exist, and a lane that leads nowhere, have no weight.
        """
        found = self.exchanges.get(exchange)
        if found is None or found.type not in RING_TYPES:
            return {}
        bindings = current(self._bound(exchange)).bindings
        behind = {each.destination.name: self.lane(each.destination.name) for each in bindings}
        return weigh(bindings, found.type, behind).weights

    def generations(self, exchange: str) -> tuple[int, ...]:
        """Return the generations of shards that an exchange is bound to, ascending."""
        return tuple(sorted({self._generation_of(exchange, each) for each in self.bindings.get(exchange, ())} - {0}))

    def of_generation(self, exchange: str, generation: int) -> tuple[FoundBinding, ...]:
        """Return the bindings of an exchange to the shards of one generation."""
        found = self.bindings.get(exchange, ())
        return tuple(each for each in found if self._generation_of(exchange, each) == generation)

    def _generation_of(self, exchange: str, found: FoundBinding) -> int:
        """Return the generation that a binding belongs to, as sidecars read it; 0 if its arguments are not readable."""
        promise = found.promise
        if promise is None and found.destination.kind == "exchange":
            promise = self.promise(exchange, found.destination.name)
        return promise.generation if promise is not None else 1

    def made_with(self, exchange: str, generation: int) -> int:
        """Return how many shards a later generation was made with; 0 for the first one."""
        found = self.of_generation(exchange, generation)
        return max((each.promise.of for each in found if each.promise is not None), default=0)

    def promise(self, exchange: str, lane: str) -> Promise | None:
        """Return the promise that the bindings of an exchange make of a lane; None if they make none."""
        at = Destination("exchange", lane)
        return promises_of(each for each in self._bound(exchange) if each.destination == at).get(lane)

    def lane(self, name: str) -> Behind:
        """Return where an exchange that a ring's exchange may be bound to leads, as a sidecar reads it."""
        bindings = self._bound(name)
        names = {each.destination.name for each in bindings if each.destination.kind == "exchange"}
        fan = None
        if len(names) == 1:
            (behind,) = names
            fan = Fan(behind, _exchange(self.exchanges.get(behind)), self._bound(behind))
        exchange = _exchange(self.exchanges.get(name))
        return behind_of(exchange, bindings, {_ALTERNATE}, self._promises.get(name), fan)

    def _bound(self, source: str) -> tuple[Binding, ...]:
        return tuple(map(_plain, self.bindings.get(source, ())))


_ALTERNATE = "a policy with an alternate exchange"


def _plain(found: FoundBinding) -> Binding:
    return Binding(found.destination, found.key, found.promise)


def _exchange(found: FoundExchange | None) -> Exchange | None:
    """Return an exchange as readings of a sidecar have it."""
    if found is None:
        return None
    return Exchange(
        found.type,
        found.internal,
        auto_delete=found.auto_delete,
        has_alternate="alternate-exchange" in found.arguments,
        policy=_ALTERNATE if found.alternate is not None else "",
    )


def lane_misfit(exchange: FoundExchange) -> str:
    """Return why sidecars do not use an exchange as a lane, whatever is bound to it; empty if they do."""
    if exchange.type != "fanout":
        return f"is of type {exchange.type}; a lane is of type fanout"
    if exchange.internal:
        return "is internal, so that nobody may publish to it"
    if exchange.auto_delete:
        return "is an auto-delete exchange, which ends with its binding"
    if "alternate-exchange" in exchange.arguments:
        return "has an alternate exchange, which would hide that its queue is gone"
    if exchange.alternate is not None:
        return f"has an alternate exchange by policy {exchange.alternate!r}, which would hide that its queue is gone"
    return ""
