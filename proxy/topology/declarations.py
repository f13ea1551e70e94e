"""What a broker can confirm of its topology with an -ok, and whether that changes where publishes go. Pure."""

from dataclasses import dataclass

from proxy.topology.bindings import weight_of
from proxy.topology.table import Entry, Name
from ring.destination import Destination, WeightError


@dataclass(frozen=True)
class BindingAdded:
    """queue.bind-ok, or exchange.bind-ok."""

    source: str
    destination: Destination
    key: str
    plain: bool = True
    """False where the binding has arguments: a reason to read again, and not laid over."""


@dataclass(frozen=True)
class BindingRemoved:
    """queue.unbind-ok, or exchange.unbind-ok. Brokers say it of what was never bound, too."""

    source: str
    destination: Destination
    key: str
    plain: bool = True
    """False where the binding has arguments: a reason to read again, and not laid over."""


@dataclass(frozen=True)
class ExchangeDeclared:
    """exchange.declare-ok of one that was not passive."""

    name: str
    exchange_type: str


@dataclass(frozen=True)
class ExchangeDeleted:
    """exchange.delete-ok."""

    name: str


@dataclass(frozen=True)
class QueueDeleted:
    """queue.delete-ok."""

    name: str


Declaration = BindingAdded | BindingRemoved | ExchangeDeclared | ExchangeDeleted | QueueDeleted
"""A change that the broker confirmed; its names are of one virtual host."""


def leads_to(entry: Entry, destination: Destination) -> bool:
    """Whether a destination is bound to the exchange with a weight, or on its ring."""
    return destination in entry.bindings.weights or (
        entry.known is not None and destination in entry.known.ring.destinations
    )


def is_news(name: Name, entry: Entry, declaration: Declaration) -> bool:
    """Whether a declaration on an exchange may change where its publishes go, as far as is known."""
    match declaration:
        case ExchangeDeclared(exchange_type=exchange_type):
            return exchange_type != entry.exchange_type
        case ExchangeDeleted(name=exchange) if exchange == name[1]:
            return True
        case BindingAdded(destination=destination, key=key):
            has = entry.bindings.weights.get(destination, 0)
            return entry.follows_bindings and has < _weight(key, entry.exchange_type)
        case BindingRemoved(destination=destination):
            return entry.follows_bindings and leads_to(entry, destination)
        case ExchangeDeleted(name=exchange):
            return entry.follows_bindings and leads_to(entry, Destination("exchange", exchange))
        case QueueDeleted(name=queue):
            return entry.follows_bindings and leads_to(entry, Destination("queue", queue))


def _weight(key: str, exchange_type: str) -> int:
    """0 for a key that is no weight."""
    try:
        return weight_of(key, exchange_type)
    except WeightError:
        return 0
