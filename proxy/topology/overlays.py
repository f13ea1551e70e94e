"""Which exchanges a declaration touches, whether it tells anything new, and the overlays of them all. Pure."""

from collections.abc import Collection, Iterable, Mapping

from proxy.topology.bindings import Binding, weight_of
from proxy.topology.declarations import (
    NEVER,
    OVERLAY_TIME,
    Bound,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    Overlay,
    QueueDeleted,
    Unbound,
)
from proxy.topology.table import Entry, Name
from ring.destination import Destination, WeightError

OVERLAY_KEPT = 60.0
"""Seconds for which the declarations of an exchange that nothing reads are kept."""


MOST_OVERLAYS = 10_000
"""Exchanges of one virtual host whose declarations are kept."""

MOST_SAID_IN_ALL = 50_000
"""Statements on bindings that are kept of one virtual host; each takes about half a kilobyte."""


class _OfVhost:
    """The overlays of one virtual host, the least recently declared on first."""

    def __init__(self) -> None:
        self.overlays: dict[str, Overlay] = {}
        self.said = 0
        """The statements of all of them."""
        self.forgotten_at = NEVER
        """When the last declaration came of an overlay that was forgotten for want of room."""
        self._bound: dict[Destination, set[str]] = {}
        """Which overlays may have a binding to a destination: at least those that have one."""
        self._noted = 0

    def add(self, exchange: str, declaration: Declaration, at: float) -> None:
        overlay = self.overlays.pop(exchange, None) or Overlay(exchange)
        self.overlays[exchange] = overlay  # the last one, for it was declared on last
        self.said -= overlay.size
        overlay.forget(at - OVERLAY_KEPT)
        overlay.add(declaration, at)
        self.said += overlay.size
        if isinstance(declaration, Bound):
            self._note(declaration.destination, exchange)
        while len(self.overlays) > MOST_OVERLAYS or (self.said > MOST_SAID_IN_ALL and len(self.overlays) > 1):
            oldest = next(iter(self.overlays))
            self.forgotten_at = max(self.forgotten_at, self.overlays[oldest].told_at)
            self.forget(oldest)

    def forget(self, exchange: str) -> None:
        overlay = self.overlays.pop(exchange, None)
        self.said -= overlay.size if overlay is not None else 0

    def bound_to(self, destination: Destination) -> list[str]:
        """The exchanges with a binding to that destination that a reading may not show."""
        noted = self._bound.get(destination, ())
        return [name for name in noted if name in self.overlays and self.overlays[name].binds(destination)]

    def _note(self, destination: Destination, exchange: str) -> None:
        noted = self._bound.setdefault(destination, set())
        self._noted += exchange not in noted
        noted.add(exchange)
        if self._noted > 2 * self.said + 1000:
            # Most of it is of bindings that are forgotten by now: gone through once in as many additions.
            self._bound, self._noted = {}, 0
            for name, overlay in self.overlays.items():
                for bound in overlay.bound():
                    self._bound.setdefault(bound, set()).add(name)
                    self._noted += 1


class Overlays:
    """The overlay of each exchange that was declared on lately, also of those that were never read.

    Clients choose how many there are, so the least recently declared on are forgotten beyond a limit. The limit is for
    each virtual host: those of one do not make another's readings fail.
    """

    def __init__(self) -> None:
        """Empty."""
        self._of_vhosts: dict[str, _OfVhost] = {}

    def __contains__(self, name: Name) -> bool:
        """Whether anything is kept of an exchange."""
        return name[0] in self._of_vhosts and name[1] in self._of_vhosts[name[0]].overlays

    def of(self, name: Name) -> Overlay:
        """The overlay of an exchange; an empty one where there is none."""
        there = self._of_vhosts.get(name[0])
        return (there.overlays.get(name[1]) if there is not None else None) or Overlay(name[1])

    def lacks(self, name: Name, started: float) -> bool:
        """Whether a reading of an exchange that started then would have needed a declaration that was forgotten."""
        there = self._of_vhosts.get(name[0])
        return self.of(name).lacks(started) or (there is not None and started - there.forgotten_at <= OVERLAY_TIME)

    def add(self, name: Name, declaration: Declaration, at: float) -> None:
        """Lays a declaration over the readings of an exchange that it touches."""
        self._of_vhosts.setdefault(name[0], _OfVhost()).add(name[1], declaration, at)

    def settle(self, name: Name, shown_type: str | None, bindings: Iterable[Binding], started: float) -> None:
        """As Overlay.settle; forgets an overlay that has nothing left to lay over."""
        if name in self:
            there = self._of_vhosts[name[0]]
            overlay = there.overlays[name[1]]
            there.said -= overlay.size
            overlay.settle(shown_type, bindings, started)
            there.said += overlay.size
            if overlay.empty and overlay.told_at <= started:
                self.forget(name)

    def idle(self, now: float) -> list[Name]:
        """Exchanges whose last declaration is longer ago than OVERLAY_KEPT."""
        found: list[Name] = []
        for vhost, there in list(self._of_vhosts.items()):
            if not there.overlays and now - there.forgotten_at > OVERLAY_KEPT:
                del self._of_vhosts[vhost]
            for exchange, overlay in there.overlays.items():
                if now - overlay.told_at <= OVERLAY_KEPT:
                    break
                found.append((vhost, exchange))
        return found

    def forget(self, name: Name) -> None:
        """Forgets what was declared of an exchange."""
        vhost, exchange = name
        there = self._of_vhosts.get(vhost)
        if there is not None:
            there.forget(exchange)

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
        there = self._of_vhosts.get(vhost)
        if there is not None:
            touched |= {(vhost, name) for name in there.bound_to(destination)}
        return sorted(touched)


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
