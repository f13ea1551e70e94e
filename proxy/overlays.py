"""Which exchanges a declaration touches, whether it tells anything new, and the overlays of them all. Pure."""

from collections.abc import Collection, Iterable, Mapping

from proxy.declared import Bound, Declaration, ExchangeDeclared, ExchangeDeleted, Overlay, QueueDeleted, Unbound
from proxy.router import WHATEVER_IS_BOUND, Entry, Name
from proxy.topology import Binding, weight_of
from ring.destination import Destination, WeightError

OVERLAY_KEPT = 60.0
"""Seconds for which the declarations of an exchange that nothing reads are kept."""


class Overlays:
    """The overlay of each exchange that was declared on lately, also of those that were never read."""

    def __init__(self) -> None:
        """Empty."""
        self._overlays: dict[Name, Overlay] = {}

    def __contains__(self, name: Name) -> bool:
        """Whether anything is kept of an exchange."""
        return name in self._overlays

    def of(self, name: Name) -> Overlay:
        """The overlay of an exchange; an empty one where there is none."""
        return self._overlays.get(name, Overlay(name[1]))

    def add(self, name: Name, declaration: Declaration, at: float) -> None:
        """Lays a declaration over the readings of an exchange that it touches."""
        self._overlays.setdefault(name, Overlay(name[1])).add(declaration, at)

    def settle(self, name: Name, shown_type: str | None, bindings: Iterable[Binding], started: float) -> None:
        """As Overlay.settle; forgets an overlay that has nothing left to lay over."""
        overlay = self._overlays.get(name)
        if overlay is not None:
            overlay.settle(shown_type, bindings, started)
            if overlay.empty and overlay.told_at <= started:
                del self._overlays[name]

    def idle(self, now: float) -> list[Name]:
        """Exchanges whose last declaration is longer ago than OVERLAY_KEPT."""
        return [name for name, overlay in self._overlays.items() if now - overlay.told_at > OVERLAY_KEPT]

    def forget(self, name: Name) -> None:
        """Forgets what was declared of an exchange."""
        self._overlays.pop(name, None)

    def touched(
        self, vhost: str, declaration: Declaration, entries: Mapping[Name, Entry], being_read: Collection[Name]
    ) -> list[Name]:
        """The exchanges for which a declaration counts; never the default exchange.

        A deleted destination counts for all that may have it: as known, as declared, or in a reading under way.
        """
        match declaration:
            case Bound(source=source) | Unbound(source=source):
                return [(vhost, source)] if source else []
            case ExchangeDeclared(name=exchange):
                return [(vhost, exchange)] if exchange else []
            case ExchangeDeleted(name=exchange) if not exchange:
                return []
            case ExchangeDeleted(name=exchange):
                destination, touched = Destination("exchange", exchange), {(vhost, exchange)}
            case QueueDeleted(name=queue):
                destination, touched = Destination("queue", queue), set()
        touched |= {name for name in being_read if name[0] == vhost}
        touched |= {n for n, entry in entries.items() if n[0] == vhost and leads_to(entry, destination)}
        touched |= {n for n, overlay in self._overlays.items() if n[0] == vhost and overlay.binds(destination)}
        return sorted(touched)


def leads_to(entry: Entry, destination: Destination) -> bool:
    """Whether a destination is bound to the exchange with a weight, or on its ring."""
    return destination in entry.bindings.weights or (
        entry.known is not None and destination in entry.known.ring.destinations
    )


def changes_nothing_ever(entry: Entry, declaration: Declaration) -> bool:
    """Whether an exchange passes its publishes whatever is bound to it, and bindings are all that was declared."""
    return entry.passed in WHATEVER_IS_BOUND and not isinstance(declaration, ExchangeDeclared | ExchangeDeleted)


def is_news(name: Name, entry: Entry, declaration: Declaration) -> bool:
    """Whether a declaration on an exchange may change where its publishes go, as far as is known."""
    match declaration:
        case ExchangeDeclared(exchange_type=exchange_type):
            return exchange_type != entry.exchange_type
        case ExchangeDeleted(name=exchange) if exchange == name[1]:
            return True
        case Bound(destination=destination, key=key):
            has = entry.bindings.weights.get(destination, 0)
            return entry.follows_bindings and has < _weight(key, entry.exchange_type)
        case Unbound(destination=destination):
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
