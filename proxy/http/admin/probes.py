"""The admin listener: probes, metrics, and what this sidecar knows of each exchange. Nothing here changes anything."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from proxy.groups.onlooker import Onlooker
from proxy.groups.shard_readings import no_group, queues_of
from proxy.http.admin.console.console import Console
from proxy.http.admin.readiness import Readiness
from proxy.http.admin.rings import shown as shown_entry
from proxy.http.admin.unsettled import UnsettledCount
from proxy.http.admission.limits import Limits
from proxy.http.admission.pages import HostNames
from proxy.http.formats.answers import json_answer, named
from proxy.http.formats.problems import ProblemError, problem_middleware, unavailable, unknown_exchange
from proxy.outcome import Outcome
from proxy.process.identity import ID_HEADER, process_id
from proxy.process.logs import escaped
from proxy.process.memory import ADMIN_CONNECTIONS, ADMIN_UNREAD
from proxy.settings.reload import SettingsInForce
from proxy.topology.bindings import RING_TYPES
from proxy.topology.lookups import Absent, NotReadable
from proxy.topology.matching import NO_RING
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Entry, Name, PassReason, Router
from ring.hashing import RING_FORMAT, slot_of
from ring.share import rank_of, slots_in

if TYPE_CHECKING:
    from proxy.groups.groups import Groups

SECONDS = 5.0
"""How long a client may take to send a request, and to read the next part of an answer."""

_PROBES = frozenset({"/livez", "/startupz", "/readyz"})
"""Paths whose answers are small; the others' answers grow with the number of exchanges."""

MOST_LOOK_UPS = 8
"""Exchanges that are looked up at once for `/rings/{vhost}/{exchange}`: each holds a connection for as long."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def _closing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """End each connection with its answer: few may be open, and none is to be held without asking.

    The answer says which sidecar it is of: several may be behind one address.
    """
    response = await handler(request)
    response.headers[ID_HEADER] = process_id()
    response.force_close()
    return response


class Admin:
    """The endpoints of the admin listener, on the parts that they ask."""

    def __init__(
        self,
        router: Router,
        scheduler: Scheduler,
        readiness: Readiness,
        metrics: CollectorRegistry,
        *,
        names: HostNames,
        default_vhost: str,
        lookup_timeout: float,
        groups: "Groups | None",
        onlooker: Onlooker,
        console: Console | None,
        in_force: SettingsInForce,
        unsettled: UnsettledCount,
    ) -> None:
        """Take the listener's `names`, and the `default_vhost` that answers name.

        `lookup_timeout` is in seconds. `groups` is None where the setting of that name is empty, and `console` where
        `admin_console` is false.
        """
        self._router, self._scheduler, self._readiness = router, scheduler, readiness
        self._metrics, self._console, self._in_force = metrics, console, in_force
        self._names, self._groups, self._onlooker, self._unsettled = names, groups, onlooker, unsettled
        self._default_vhost, self._lookup_timeout = default_vhost, lookup_timeout
        self.started = False
        self._look_ups = 0
        self.unread = Limits(ADMIN_CONNECTIONS, ADMIN_UNREAD)
        """The limits in which the bytes of unread answers are counted."""

    def application(self) -> web.Application:
        """Return the listener's endpoints as an aiohttp application."""
        app = web.Application(middlewares=[_closing, problem_middleware, self._named, self._bounded])
        app.router.add_get("/livez", self.livez)
        app.router.add_get("/startupz", self.startupz)
        app.router.add_get("/readyz", self.readyz)
        app.router.add_get("/metrics", self.metrics)
        app.router.add_get("/settings", self.settings)
        app.router.add_get("/rings", self.rings)
        app.router.add_get("/rings/{vhost:[^/]+}/{exchange:[^/]+}", self.ring)
        app.router.add_get("/groups", self.groups)
        app.router.add_get("/groups/{vhost:[^/]+}/{exchange:[^/]+}", self.group)
        app.router.add_get("/groups/{vhost:[^/]+}/{exchange:[^/]+}/keys", self.keys)
        if self._console is not None:
            self._console.add_to(app.router)
        return app

    @web.middleware
    async def _named(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request whose Host is no name of this listener: a web page that used it could read the answer."""
        self._names.check(request)
        return await handler(request)

    @web.middleware
    async def _bounded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse all requests but probes while clients have left ADMIN_UNREAD bytes of earlier answers unread."""
        if self.unread.bytes >= ADMIN_UNREAD and request.path not in _PROBES:
            detail = f"clients have not read {self.unread.bytes} bytes of earlier answers; the limit is {ADMIN_UNREAD}"
            raise ProblemError(429, "too-many", detail, Outcome.REJECTED, retryable=True)
        return await handler(request)

    async def livez(self, _: web.Request) -> web.Response:
        """Answer 200 whenever the event loop turns, whatever the broker does: a restart would not mend the broker."""
        return web.Response(text="ok\n")

    async def startupz(self, _: web.Request) -> web.Response:
        """Answer 200 once the listeners are bound, whatever the broker does, or no pod could start without it."""
        return web.Response(text="ok\n") if self.started else web.Response(text="starting\n", status=503)

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 if a publish would work: API and broker are reached, named rings read, and nothing drains."""
        checks = self._readiness.checks()
        ready = not any(checks.values())
        if "verbose" in request.query:
            lines = [f"{'FAIL' if why else 'ok  '} {check}{why and ': ' + why}" for check, why in checks.items()]
            for check, why in self._readiness.asides().items():
                failed = f"FAIL {check}: {why}; the sidecar is ready all the same"
                lines.append(failed if why else f"ok   {check}")
            lines += [f"note {what}: {why}" for what, why in self._readiness.notes()]
            text = "".join(f"{escaped(line)}\n" for line in lines)
        else:
            text = "ok\n" if ready else "not ready\n"
        return web.Response(text=text, status=200 if ready else 503)

    async def metrics(self, request: web.Request) -> web.Response:
        """Answer with the metrics, in the format that the scraper asks for."""
        encoder, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encoder(self._metrics), headers={"Content-Type": content_type})

    async def settings(self, _: web.Request) -> web.Response:
        """Answer with the settings in force and where each comes from, for `ring-proxy reload --check`."""
        return json_answer(self._in_force.report())

    async def rings(self, _: web.Request) -> web.Response:
        """Answer with every exchange that is known, with its ring, as `ring-proxy diff` compares them."""
        share = self._in_force.now.route_share
        exchanges = [
            shown_entry(self._router, name, entry, share) for name, entry in sorted(self._router.entries.items())
        ]
        faults = [{"vhost": v, "exchange": e, "fault": why} for (v, e), why in sorted(self._scheduler.faults.items())]
        return json_answer(
            {"default_vhost": self._default_vhost, "ring_format": RING_FORMAT, "exchanges": exchanges, "faults": faults}
        )

    async def ring(self, request: web.Request) -> web.Response:
        """Answer with one exchange, looked up if need be; with ``?key=`` the key's place too (`ring-proxy explain`)."""
        vhost, exchange = request.match_info["vhost"], request.match_info["exchange"]
        name = (vhost, exchange)
        await self._entry(name)
        unsettled = await self._unsettled.of(name)
        entry = await self._entry(name)
        share = self._in_force.now.route_share
        shown = shown_entry(self._router, name, entry, share)
        before, unconfirmed = unsettled if unsettled is not None else (None, None)
        shown |= {"unsettled_before": before, "unconfirmed": unconfirmed}
        query = dict(parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, errors="surrogateescape"))
        if "key" in query and entry.known is not None:
            ring, slot = entry.known.ring, slot_of(query["key"].encode("utf-8", "surrogateescape"))
            runner_up = ring.runner_up(slot)
            shown["key"] = {
                "slot": slot,
                "owner": named(ring.owner(slot)),
                "runner_up": named(runner_up) if runner_up else None,
                "passed": entry.passed or (PassReason.SHARE if rank_of(slot) >= slots_in(share) else None),
            }
        if "key" in query and entry.upstream is not None and (matcher := entry.upstream.matcher) is not None:
            match = matcher.find(query["key"].encode("utf-8", "surrogateescape"))
            shown["upstream"]["ring_of_key"] = matcher.rings[match].name if match != NO_RING else None
        return json_answer(shown)

    async def groups(self, _: web.Request) -> web.Response:
        """Answer with every consumer group that has members at this sidecar."""
        groups = self._groups.report() if self._groups is not None else []
        return json_answer({"default_vhost": self._default_vhost, "groups": groups})

    async def group(self, request: web.Request) -> web.Response:
        """Answer with one consumer group, its shards' figures read anew if need be (`ring-proxy group`).

        Where this sidecar has no member of it, the answer has the figures only.
        """
        name = (request.match_info["vhost"], request.match_info["exchange"])
        found = await self._groups.report_of(name) if self._groups is not None else None
        return json_answer(found if found is not None else await self._lag(name))

    async def keys(self, request: web.Request) -> web.Response:
        """Answer with the keys of a group that wait at members of this sidecar (`ring-proxy group EXCHANGE keys`)."""
        name = (request.match_info["vhost"], request.match_info["exchange"])
        found = await self._groups.keys_of(name) if self._groups is not None else None
        if found is None:
            where = f"exchange: no client of this sidecar consumes from {name[1]!r} in {name[0]!r} as a group"
            raise unknown_exchange(f"{where}; ask a sidecar that has a member (`ring-proxy group` names their hosts)")
        return json_answer(found)

    async def _lag(self, name: Name) -> dict[str, Any]:
        """Return the figures of a group's shards. Raises ProblemError 404, 429 or 503."""
        exchange, entry = await self._with_group(name)
        where = f"exchange: {exchange!r} in {name[0]!r}"
        if entry.exchange_type not in RING_TYPES:
            raise unknown_exchange(f"{where} has the type {entry.exchange_type!r}, and only hash exchanges have shards")
        # The router forgets exchanges that nobody uses.
        self._router.used_at[name[0], exchange] = self._router.clock()
        queues = queues_of(entry, name[1], exchange)
        if not queues and exchange != name[1]:
            raise unknown_exchange(no_group(name[1], exchange, entry))
        try:
            return await self._onlooker.report_of(name, queues)
        except NotReadable as error:
            raise unavailable(str(error)) from None

    async def _with_group(self, name: Name) -> tuple[str, Entry]:
        """Return the exchange whose group has this name, and what is known of it. Raises ProblemError 404, 429 or 503.

        An exchange of the part before the last slash comes first, if it has the group.
        """
        vhost, group = name
        exchanges = self._onlooker.exchanges(vhost, group)
        if not exchanges:
            where = f"exchange: {group!r} in {vhost!r}"
            raise unknown_exchange(f"{where} is named neither by route nor by groups; ask a sidecar whose settings do")
        found: list[tuple[str, Entry]] = []
        for exchange in exchanges:
            try:
                entry = await self._entry((vhost, exchange))
            except ProblemError as error:
                if error.status != 404 or (exchange == exchanges[-1] and not found):
                    raise
                continue
            if exchange == group or group in entry.groups:
                return exchange, entry
            found.append((exchange, entry))
        return found[0]

    async def _entry(self, name: Name) -> Entry:
        """Return what is known of an exchange, which is looked up if need be. Raises ProblemError 404, 429 or 503."""
        if name not in self._router.entries:
            await self._look_up(name)
        return self._router.entries[name]

    async def _look_up(self, name: Name) -> None:
        """Return once an exchange is in the table. Raises ProblemError 404, 429 or 503."""
        if self._look_ups >= MOST_LOOK_UPS:
            detail = f"{MOST_LOOK_UPS} exchanges are being read for this listener, which is the limit; ask again later"
            raise ProblemError(429, "too-many", detail, Outcome.REJECTED, retryable=True)
        self._look_ups += 1
        try:
            await self._scheduler.look_up(name, self._lookup_timeout)
        except Absent as absent:
            raise unknown_exchange(f"exchange: {absent}") from None
        except NotReadable as error:
            raise unavailable(str(error)) from None
        finally:
            self._look_ups -= 1
