"""The readiness of this sidecar: the checks of `/readyz`, and what is amiss that leaves it ready."""

from collections.abc import Callable

from proxy.publisher.pool import Publisher
from proxy.settings.patterns import Mode
from proxy.settings.reload import SettingsInForce
from proxy.settings.sources import written_name
from proxy.settings.watched import Renewed
from proxy.topology.names import some
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import KEEPS_FROM_ROUTING, Name, Router

MOST_TITLES = 10
"""Most exchanges that are named in one line."""


class Readiness:
    """The questions by which it is told whether a publish would work."""

    def __init__(
        self,
        in_force: SettingsInForce,
        router: Router,
        scheduler: Scheduler,
        reader: Reader,
        publisher: Publisher,
        *,
        default_vhost: str,
        draining: Callable[[], bool],
        access_token: Renewed | None = None,
    ) -> None:
        """Take the `default_vhost` whose connection readiness needs; `draining` returns whether the sidecar drains.

        `access_token` is the token by which this sidecar logs in; None where it has a password.
        """
        self._access_token = access_token
        self._router, self._scheduler, self._reader, self._publisher = router, scheduler, reader, publisher
        self._in_force, self._default_vhost, self._draining = in_force, default_vhost, draining

    def checks(self) -> dict[str, str]:
        """Return each check of readiness with why it fails, which is empty if it holds."""
        scheduler, reader = self._scheduler, self._reader
        unread, stale = scheduler.pending(), [name for name in self.stale() if name not in scheduler.vhost_not_listed]
        checks = {
            "not draining": "shutting down" if self._draining() else "",
            "management API": reader.identity.unreachable,
            "rings read": f"not read yet: {titles(unread)}" if unread else "",
            "rings fresh": f"not read for longer than ring_max_age: {titles(stale)}" if stale else "",
        }
        vhost = self._default_vhost
        checks[f"broker, virtual host {vhost!r}"] = self._publisher.faults().get(vhost, "not connected yet")
        if reader.look_up_fault is not None and reader.look_up_fault[0] == vhost:
            checks["look-ups"] = reader.look_up_fault[1]
        if why := self._publisher.blocked().get(vhost):
            checks["broker takes publishes"] = why
        if refusals := self._publisher.refusals(vhost):
            checks["broker's permissions"] = "; ".join(refusals)
        if why := reader.identity.mismatch(*self._publisher.cluster(vhost)):
            checks["one cluster"] = why
        return checks

    def asides(self) -> dict[str, str]:
        """Return each further check with why it fails, empty if it holds; the sidecar is ready in either case."""
        checks = {}
        if missing := self._scheduler.missing():
            # A program may declare it later, through this sidecar, once that is ready.
            absent = [name for name, is_absent in missing.items() if is_absent]
            checks["named exchanges exist"] = f"not found: {titles(absent)}" if absent else ""
        if unread := self._scheduler.pending_of_reload():
            # Their publishes go as before the reload, and it must not take a sidecar out of service.
            checks["rings of the last reload read"] = f"not read yet: {titles(unread)}"
        if self._in_force.watched is not None:
            # The settings that were read before stay in force.
            checks["settings file in force"] = self._in_force.fault
        if self._access_token is not None:
            # The last token may count for a while. Once it does not, the broker's check fails.
            checks["access token renewed"] = self._access_token.fault
        return checks

    def notes(self) -> list[tuple[str, str]]:
        """Return the settings that wait for a restart, and what is amiss in other virtual hosts.

        No other virtual host may make the sidecar unready for all.
        """
        faults = [*self._publisher.faults().items(), *self._publisher.blocked().items()]
        notes = [(f"virtual host {vhost!r}", why) for vhost, why in faults if why and vhost != self._default_vhost]
        if gone := [name for name in self.stale() if name in self._scheduler.vhost_not_listed]:
            notes.append(("stale rings of virtual hosts that the management API does not list", titles(gone)))
        if waiting := self._in_force.restart:
            notes.append(("the settings file", f"needs a restart: {', '.join(map(written_name, waiting))}"))
        return sorted(notes) + self._not_routed()

    def _not_routed(self) -> list[tuple[str, str]]:
        """Return the exchanges that a ring should route and does not, by the reason."""
        found: dict[str, list[Name]] = {}
        for name, entry in sorted(self._router.entries.items()):
            if entry.mode is Mode.ROUTE and entry.passed in KEEPS_FROM_ROUTING:
                found.setdefault(f"{'refused' if entry.refused else 'not routed'} ({entry.passed})", []).append(name)
        return [(what, titles(names)) for what, names in found.items()]

    def stale(self) -> list[Name]:
        """Return the exchanges whose rings are older than `ring_max_age`, sorted."""
        router = self._router
        return sorted(name for name, e in router.entries.items() if e.follows_bindings and router.stale(e))


def titles(names: list[Name]) -> str:
    return some([f"{exchange!r} in {vhost!r}" for vhost, exchange in names], MOST_TITLES)
