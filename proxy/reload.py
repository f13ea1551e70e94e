"""Put changed settings into force in a sidecar that runs; `proxy.settings.reload` says which, and when.

Nothing looks up a setting for a message: each part keeps its own numbers and patterns, and gets new ones here, all in
one turn of the event loop. A publish comes either before all of them or after.

The mode of an exchange is the hard one. A route is made from the patterns and from the exchange's entry, and the entry
by a reading under the patterns of its time. All routes are forgotten, and each exchange of which the patterns say
something else is read once more:

- to `shadow` or `pass`: nothing waits, as no ring is needed;
- to `route`: the publish waits for the reading. If that fails, publishes go on as before until one succeeds: a reload
  while the management API is away refuses no publish that went well before it;
- publishes that are with the broker stay where they are. One that comes back is placed by the new patterns.

Another `route_share` needs no reading: routes have it, and are made anew.
"""

import logging
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from proxy.groups.onlooker import Onlooker
from proxy.http.admission.gate import Gate
from proxy.http.admission.sizes import Sizes
from proxy.http.server import ProblemRunner
from proxy.process import descriptors, memory
from proxy.routing.routes import RouteTables
from proxy.session.listener import Listener
from proxy.settings.config import Settings
from proxy.settings.patterns import Mode, Patterns, Selection, named
from proxy.topology.bindings import RING_TYPES
from proxy.topology.names import some
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Name, Router

if TYPE_CHECKING:
    from proxy.groups.consuming.attendant import Attendants

log = logging.getLogger(__name__)

MOST_TOLD = 10
"""The most exchanges that one line of the log names."""


class Reload:
    """The parts of a sidecar that live settings change; it lives as long as the process."""

    def __init__(
        self,
        selection: Selection,
        router: Router,
        scheduler: Scheduler,
        tables: Collection[RouteTables],
        onlooker: Onlooker,
        attendants: "Attendants | None",
        listener: Listener,
        http: ProblemRunner,
        gate: Gate,
    ) -> None:
        """Take the parts; `attendants` is None where no session has groups."""
        self._selection, self._router, self._scheduler, self._tables = selection, router, scheduler, tables
        self._onlooker, self._attendants = onlooker, attendants
        self._listener, self._http, self._gate = listener, http, gate

    def __call__(self, settings: Settings, changed: Collection[str]) -> None:
        """Put settings into force, of which those with the attributes in `changed` are new."""
        self._listener.max_sessions = settings.max_sessions
        self._gate.limits.resize(settings.max_in_flight, settings.max_in_flight_bytes)
        self._gate.sizes = Sizes.of(settings)
        if "max_http_connections" in changed:
            self._http.limit_connections(settings.max_http_connections)
        if not {"max_http_connections", "max_sessions", "max_in_flight_bytes"}.isdisjoint(changed):
            descriptors.warn_beyond(settings, descriptors.limit())
            memory.warn_beyond(settings, memory.limit())
        if self._attendants is not None:
            self._attendants.serial = Patterns(settings.groups_in_series)
            self._attendants.groups.select(settings.groups)
        if "route_share" in changed:
            self._selection.take_share(settings.route_share)
            self._router.notify()
        if not {"route", "shadow", "pass_", "groups"}.isdisjoint(changed):
            self._onlooker.select(settings)
            self._select(settings)

    def _select(self, settings: Settings) -> None:
        """Take the patterns anew, and have the exchanges read of which they say something else."""
        passed = {name for each in self._tables for name in each.passed}
        names = {*self._scheduler.known(), *passed}
        before = {name: self._says(name) for name in names}
        consumed = self._attendants.groups.exchanges() if self._attendants is not None else ()
        self._selection.take(settings.route, settings.shadow, settings.pass_, settings.groups, consumed)
        changed = {name for name in names if self._says(name) != before[name]}
        # Publishes to an exchange that was to be routed and has no entry yet wait for it, and did so before.
        unread = {name for name in changed if name not in self._router.entries and before[name][0] is not Mode.ROUTE}
        self._scheduler.reselect(named_by(settings), (changed & self._scheduler.known()) - unread, unread)
        modes: dict[str, list[Name]] = {}
        for name in sorted(changed):
            old, new = before[name][0], self._selection.mode(*name)
            if old is not new:
                modes.setdefault(f"{old} -> {new}", []).append(name)
        for change, exchanges in modes.items():
            log.info("settings: %s for exchange %s", change, _titles(exchanges))

    def _says(self, name: Name) -> tuple[Mode, bool, bool]:
        """Return what the patterns say of an exchange, as far as that matters for an exchange of its type."""
        mode, by_name, has_ring = self._selection.says(*name)
        entry = self._router.entries.get(name)
        return mode, by_name and not (entry is not None and entry.exchange_type in RING_TYPES), has_ring


def named_by(settings: Settings) -> list[Name]:
    """Return the exchanges that settings name without a wildcard, so that they are read before a publish asks."""
    return named([*settings.route, *settings.shadow, *settings.groups], settings.default_vhost)


def _titles(names: Iterable[Name]) -> str:
    return some([f"{exchange!r} in {vhost!r}" for vhost, exchange in names], MOST_TOLD)
