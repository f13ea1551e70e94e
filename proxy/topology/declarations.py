"""The changes of its topology that a broker confirms to a session with an -ok, and which of them are news. Pure."""

from dataclasses import dataclass, replace

from proxy.topology.bindings import MODULUS_HASH, Binding, weight_of
from proxy.topology.table import Entry, Name
from ring.destination import Destination, WeightError


@dataclass(frozen=True)
class BindingAdded:
    """A binding that the broker confirmed with queue.bind-ok or exchange.bind-ok."""

    source: str
    destination: Destination
    key: str
    plain: bool = True
    """False if the binding has arguments: the exchange is then read again, but nothing is laid over its reading."""


@dataclass(frozen=True)
class BindingRemoved:
    """An unbind that the broker confirmed with queue.unbind-ok or exchange.unbind-ok.

    RabbitMQ also confirms the unbind of a binding that never existed.
    """

    source: str
    destination: Destination
    key: str
    plain: bool = True
    """False if the binding has arguments: the exchange is then read again, but nothing is laid over its reading."""


@dataclass(frozen=True)
class ExchangeDeclared:
    """An exchange whose declaration, not a passive one, the broker confirmed with exchange.declare-ok."""

    name: str
    exchange_type: str


@dataclass(frozen=True)
class ExchangeDeleted:
    """An exchange whose deletion the broker confirmed with exchange.delete-ok."""

    name: str


@dataclass(frozen=True)
class QueueDeleted:
    """A queue whose deletion the broker confirmed with queue.delete-ok."""

    name: str


Declaration = BindingAdded | BindingRemoved | ExchangeDeclared | ExchangeDeleted | QueueDeleted
"""A change of the topology that the broker confirmed; all its names belong to the virtual host of the session."""


def leads_to(entry: Entry, destination: Destination) -> bool:
    """Return whether an exchange leads to a destination, so that a declaration about it may change the exchange's ring.

    The exchange does so if the destination has a weight in its last reading, is on its ring, or is behind it.
    """
    if destination.kind == "exchange" and destination.name in entry.behind:
        return True
    if entry.upstream is not None and destination in entry.upstream.destinations:
        return True
    return destination in entry.bindings.weights or (
        entry.known is not None and destination in entry.known.ring.destinations
    )


def laid_over(entry: Entry | None, declaration: Declaration) -> Declaration:
    """Return a declaration as it is laid over readings; `entry` is the last entry of the exchange.

    The arguments of an upstream exchange's bindings do not change what it does with a message.
    """
    if isinstance(declaration, BindingAdded) and entry is not None and entry.upstream is not None:
        return replace(declaration, plain=True)
    return declaration


def changes_lane(entry: Entry, declaration: Declaration) -> bool:
    """Return whether a declaration on an exchange behind the entry's may change where the entry's publishes go."""
    match declaration:
        case BindingAdded(source=source, destination=destination, key=key, plain=plain):
            found = entry.behind.get(source)
            same = found is not None and (found.queue, found.key) == (destination.name, key)
            return entry.follows_bindings and not (same and plain and destination.kind == "queue")
        case _:
            return entry.follows_bindings


def is_news(name: Name, entry: Entry, declaration: Declaration) -> bool:
    """Return whether a declaration may change where publishes to an exchange go, judged by its last entry."""
    match declaration:
        case ExchangeDeclared(exchange_type=exchange_type):
            return exchange_type != entry.exchange_type
        case ExchangeDeleted(name=exchange) if exchange == name[1]:
            return True
        case BindingAdded(destination=destination, key=key) if entry.upstream is not None:
            return Binding(destination, key) not in entry.upstream.bindings
        case BindingRemoved(destination=destination, key=key) if entry.upstream is not None:
            return Binding(destination, key) in entry.upstream.bindings
        case BindingAdded(destination=destination, plain=True) if any(
            destination in each.shards for each in entry.others
        ):
            return False
        case BindingAdded(destination=destination, key=key):
            has = entry.bindings.weights.get(entry.placed(destination), 0)
            # One more binding of x-modulus-hash is more weight, and which of them are known already is not kept.
            grows = entry.exchange_type == MODULUS_HASH or has < _weight(key, entry.exchange_type)
            return entry.follows_bindings and grows
        case BindingRemoved(destination=destination):
            return entry.follows_bindings and leads_to(entry, destination)
        case ExchangeDeleted(name=exchange):
            return entry.follows_bindings and leads_to(entry, Destination("exchange", exchange))
        case QueueDeleted(name=queue):
            return entry.follows_bindings and leads_to(entry, Destination("queue", queue))


def _weight(key: str, exchange_type: str) -> int:
    """Return the weight that a binding key gives; 0 if the key is not a weight."""
    try:
        return weight_of(key, exchange_type)
    except WeightError:
        return 0
