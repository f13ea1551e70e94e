"""Keep the overlays of all exchanges, and find the exchanges that a declaration touches. Pure."""

from collections.abc import Collection, Iterable, Mapping

from proxy.topology.bindings import Binding
from proxy.topology.declarations import (
    BindingAdded,
    BindingRemoved,
    Declaration,
    ExchangeDeclared,
    ExchangeDeleted,
    QueueDeleted,
    leads_to,
)
from proxy.topology.overlay import OVERLAY_TIME, Overlay
from proxy.topology.table import NEVER, Entry, Name
from ring.destination import Destination

OVERLAY_KEPT = 60.0
"""Seconds for which declarations are kept of an exchange that nothing reads."""


MOST_OVERLAYS = 10_000
"""The most exchanges of one virtual host whose declarations are kept."""

MOST_STATEMENTS_PER_VHOST = 50_000
"""The most statements about bindings that are kept of one virtual host. Each takes about half a kilobyte."""


class _VhostOverlays:
    """The overlays of one virtual host, in the order of their last declarations, the oldest first."""

    def __init__(self) -> None:
        self.overlays: dict[str, Overlay] = {}
        """The overlay of each exchange, by its name."""
        self.statement_count = 0
        """The number of statements about bindings in all these overlays."""
        self.forgotten_at = NEVER
        """When the newest declaration came that was in an overlay dropped for want of room; monotonic, NEVER if none
        was."""
        self._adding: dict[Destination, set[str]] = {}
        """An index of the exchanges with added bindings to each destination. It may also name exchanges that have
        none."""
        self._noted = 0
        """The number of entries in that index."""

    def add(self, exchange: str, declaration: Declaration, at: float) -> None:
        """Record a declaration about an exchange; beyond the limits forget the exchanges declared on longest ago."""
        overlay = self.overlays.pop(exchange, None) or Overlay(exchange)
        self.overlays[exchange] = overlay  # the last one, for it was declared on last
        self.statement_count -= overlay.statement_count
        overlay.forget(at - OVERLAY_KEPT)
        overlay.add(declaration, at)
        self.statement_count += overlay.statement_count
        if isinstance(declaration, BindingAdded):
            self._note(declaration.destination, exchange)
        while len(self.overlays) > MOST_OVERLAYS or (
            self.statement_count > MOST_STATEMENTS_PER_VHOST and len(self.overlays) > 1
        ):
            oldest = next(iter(self.overlays))
            self.forgotten_at = max(self.forgotten_at, self.overlays[oldest].declared_at)
            self.forget(oldest)

    def forget(self, exchange: str) -> None:
        overlay = self.overlays.pop(exchange, None)
        self.statement_count -= overlay.statement_count if overlay is not None else 0

    def bound_to(self, destination: Destination) -> list[str]:
        """Return the exchanges with an added binding to this destination that a reading may not show yet."""
        noted = self._adding.get(destination, ())
        return [name for name in noted if name in self.overlays and self.overlays[name].has_added(destination)]

    def _note(self, destination: Destination, exchange: str) -> None:
        """Note that a declaration binds a destination to an exchange, so that the exchange is found by it."""
        noted = self._adding.setdefault(destination, set())
        self._noted += exchange not in noted
        noted.add(exchange)
        if self._noted > 2 * self.statement_count + 1000:
            # Most entries are now of bindings whose statements are gone. Rebuilding the index once in as many additions
            # keeps its cost per addition constant.
            self._adding, self._noted = {}, 0
            for name, overlay in self.overlays.items():
                for bound in overlay.added():
                    self._adding.setdefault(bound, set()).add(name)
                    self._noted += 1


class OverlayStore:
    """The overlays of all exchanges with recent declarations, including exchanges that were never read.

    Clients decide how many exchanges they declare, so beyond a limit the overlays with the oldest declarations are
    dropped. Each virtual host has a limit of its own, so that none makes another's readings fail.
    """

    def __init__(self) -> None:
        """Make an empty store."""
        self._vhosts: dict[str, _VhostOverlays] = {}

    def __contains__(self, name: Name) -> bool:
        """Return whether there is an overlay of this exchange."""
        return name[0] in self._vhosts and name[1] in self._vhosts[name[0]].overlays

    def of(self, name: Name) -> Overlay:
        """Return the overlay of an exchange; a new, empty one if there is none."""
        of_vhost = self._vhosts.get(name[0])
        return (of_vhost.overlays.get(name[1]) if of_vhost is not None else None) or Overlay(name[1])

    def incomplete_for(self, name: Name, started: float) -> bool:
        """Return whether a reading of the exchange which started at this time would need a dropped declaration."""
        of_vhost = self._vhosts.get(name[0])
        return self.of(name).incomplete_for(started) or (
            of_vhost is not None and started - of_vhost.forgotten_at <= OVERLAY_TIME
        )

    def add(self, name: Name, declaration: Declaration, at: float) -> None:
        """Record in an exchange's overlay a declaration that touches it and was confirmed at `at`, monotonic."""
        self._vhosts.setdefault(name[0], _VhostOverlays()).add(name[1], declaration, at)

    def settle(self, name: Name, shown_type: str | None, bindings: Iterable[Binding], started: float) -> None:
        """Drop the statements that a good reading shows or that are too old, and the overlay if it then holds none.

        `shown_type` is the exchange's type in that reading, None if the exchange is not there.
        """
        if name in self:
            of_vhost = self._vhosts[name[0]]
            overlay = of_vhost.overlays[name[1]]
            of_vhost.statement_count -= overlay.statement_count
            overlay.settle(shown_type, bindings, started)
            of_vhost.statement_count += overlay.statement_count
            if overlay.empty and overlay.declared_at <= started:
                self.forget(name)

    def idle(self, now: float) -> list[Name]:
        """Return the exchanges whose last declaration is longer ago than `OVERLAY_KEPT` seconds."""
        found: list[Name] = []
        for vhost, of_vhost in list(self._vhosts.items()):
            if not of_vhost.overlays and now - of_vhost.forgotten_at > OVERLAY_KEPT:
                del self._vhosts[vhost]
            for exchange, overlay in of_vhost.overlays.items():
                if now - overlay.declared_at <= OVERLAY_KEPT:
                    break
                found.append((vhost, exchange))
        return found

    def forget(self, name: Name) -> None:
        """Drop the overlay of an exchange, if there is one."""
        vhost, exchange = name
        of_vhost = self._vhosts.get(vhost)
        if of_vhost is not None:
            of_vhost.forget(exchange)

    def touched(
        self, vhost: str, declaration: Declaration, entries: Mapping[Name, Entry], being_read: Collection[Name]
    ) -> list[Name]:
        """Return the exchanges whose bindings or existence a declaration may change; never the default exchange.

        The deletion of a queue or an exchange touches every exchange that may have it as a destination: by its entry,
        by another declaration, or in a reading that is under way. The deletion of a queue also touches its lanes.
        """
        match declaration:
            case BindingAdded(source=source) | BindingRemoved(source=source):
                return [(vhost, source)] if source else []
            case ExchangeDeclared(name=exchange):
                return [(vhost, exchange)] if exchange else []
            case ExchangeDeleted(name=exchange) if not exchange:
                return []
            case ExchangeDeleted(name=exchange):
                destination, touched = Destination("exchange", exchange), {(vhost, exchange)}
            case QueueDeleted(name=queue):
                destination = Destination("queue", queue)
                lanes = [entry.lanes.get(destination) for name, entry in entries.items() if name[0] == vhost]
                touched = {(vhost, lane) for lane in lanes if lane is not None}
        touched |= {name for name in being_read if name[0] == vhost}
        touched |= {n for n, entry in entries.items() if n[0] == vhost and leads_to(entry, destination)}
        of_vhost = self._vhosts.get(vhost)
        if of_vhost is not None:
            touched |= {(vhost, name) for name in of_vhost.bound_to(destination)}
        return sorted(touched)
