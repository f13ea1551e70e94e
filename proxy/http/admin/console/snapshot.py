"""Makes snapshots of this sidecar from what it has in memory, as JSON; nothing is read of the broker for one."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from proxy.http.admin.console.findings import MOST, SUCCEEDED, findings
from proxy.http.admin.console.history import KEPT, Counted, History, Look, Totals, quantile
from proxy.http.admin.console.overview import ExchangeState, Fault, GroupState, Late, Overview
from proxy.http.admin.readiness import Readiness
from proxy.http.admin.rings import change_under_way, shown
from proxy.journal.journaling import Journaling
from proxy.process.identity import process_id
from proxy.publisher.pool import Publisher
from proxy.routing.counters import NOWHERE, Counts
from proxy.session.listener import Listener
from proxy.settings.files import Files
from proxy.settings.patterns import Mode
from proxy.settings.reload import SettingsInForce
from proxy.topology.reader import Reader
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import KEEPS_FROM_ROUTING, Entry, Name, PassReason, Router

if TYPE_CHECKING:
    from proxy.groups.groups import Groups
    from proxy.http.admin.console.group_states import GroupStates

log = logging.getLogger(__name__)

MOST_SHOWN: Final = 50
"""The most exchanges, and the most groups, of one overview."""

MOST_SHARDS: Final = 500
"""The most destinations of an exchange, and the most shards and members of a group, of one detail."""

FEW: Final = 5
"""The most names in one list of an exchange's or a group's state."""

_SOON: Final = 7.0
"""Days before its end from which a certificate is told of, as by the alert."""

_DAY: Final = 24 * 3600.0


class View(NamedTuple):
    """The exchange or group of which a page shows the detail."""

    kind: str
    """`exchange`, `group`, or empty for a page that shows the overview alone."""
    vhost: str
    exchange: str


@dataclass(frozen=True)
class Parts:
    """The parts of the sidecar that a snapshot looks at."""

    router: Router
    scheduler: Scheduler
    reader: Reader
    publisher: Publisher
    listener: Listener
    counts: Counts
    journaling: Journaling
    files: Files
    readiness: Readiness
    in_force: SettingsInForce
    groups: "Groups | None"


class Snapshots:
    """The maker of snapshots, which remembers the counts of the last ten minutes; lives as long as the process."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.history = History(self._totals)
        self._groups: GroupStates | None = None
        """The states of groups; None where there can be none."""
        self._faulty: set[View] = set()
        """The views whose last details could not be made."""
        if parts.groups is not None:
            # Imported only here, as the groups themselves are: what they import takes memory.
            from proxy.http.admin.console import group_states

            self._groups = group_states.GroupStates(parts.groups, FEW, MOST_SHARDS)

    async def make(self, views: Sequence[View]) -> dict[View, bytes]:
        """Return the snapshot of now for each of these views, as JSON without line ends.

        A detail that cannot be made is null, with a `fault` that says so: a defect in one takes no other view away.
        """
        look = self.history.look()
        overview = _json(self._overview(look))
        if self._groups is not None:
            self._groups.keep({(view.vhost, view.exchange) for view in views if view.kind == "group"})
        made = {}
        self._faulty.intersection_update(views)
        for view in views:
            # Others have a turn between two details, each of which may take some milliseconds.
            await asyncio.sleep(0)
            detail, fault = b"null", ""
            try:
                detail = _json(await self._detail(view, look))
                self._faulty.discard(view)
            except Exception as error:
                fault = f"A defect of ringproxy ({type(error).__name__}) keeps this from being shown; its log has more."
                if view not in self._faulty:
                    log.exception("unexpected error while a detail for the console was made")
                self._faulty.add(view)
            made[view] = b'{"overview":%b,"detail":%b,"fault":%b}' % (overview, detail, _json(fault))
        return made

    async def end_step(self) -> None:
        """End a step of what is kept over time; to be called every `STEP` seconds."""
        self.history.end_step()
        if self._groups is not None:
            await self._groups.sample()

    def overview(self, look: Look) -> Overview:
        """Return the state of the sidecar, of every exchange that it knows and of every group."""
        parts = self._parts
        publisher, journal, writer = parts.publisher, parts.journaling.journal, parts.journaling.writer
        faults, entries = parts.scheduler.faults, parts.router.entries
        rates: dict[Name, dict[str, float]] = {}
        late: Late = {}
        for (kind, vhost, exchange, what), count in look.live.items():
            if kind == "publish":
                rates.setdefault((vhost, exchange), {})[what] = round(count / look.seconds, 1)
        for (kind, vhost, exchange, what), count in look.late.items():
            late.setdefault((kind, vhost, exchange), {})[what] = count
        lost = look.late["journal", "", "", "dropped"]
        fault = writer.fault if journal is not None and writer is not None else ""
        unreachable = parts.reader.identity.unreachable
        ends = {setting: (at - time.time()) / _DAY for setting, at in parts.files.certificate_ends().items()}
        stale = set(parts.readiness.stale())
        lacking = publisher.lacking()
        since = time.monotonic() - KEPT
        clients = [right for right, at in parts.listener.shared.lacking.items() if at >= since]
        return Overview(
            at=time.time(),
            checks=parts.readiness.checks(),
            disconnected={vhost: why for vhost, why in publisher.faults().items() if why},
            blocked={vhost: why for vhost, why in publisher.blocked().items() if why},
            management="" if parts.reader.identity.asked_until < 0 else unreachable,
            faults=[Fault(*name, why) for name, why in sorted(faults.items())],
            absent=[name for name, is_absent in parts.scheduler.missing().items() if is_absent],
            own_rights=[right for right, of_guest in lacking.items() if not of_guest],
            rights=[*reversed(clients), *(right for right, of_guest in lacking.items() if of_guest)],
            refused_403=look.late["refused", "", "", "403"],
            nowhere=late.get(("publish", *NOWHERE), {}),
            succeeded=sum(n for key, n in look.late.items() if key[0] == "publish" and key[3] in SUCCEEDED),
            journal=fault or (f"In the last 10 minutes {lost} records were dropped." if lost else ""),
            reloads={each.setting: each.fault for each in parts.files.renewed() if each.fault},
            certificates={setting: days for setting, days in ends.items() if days < _SOON},
            exchanges=[
                self._exchange(name, entry, name in stale, rates.get(name, {}), late.get(("publish", *name), {}))
                for name, entry in sorted(entries.items())
                if entry.balances == ""
            ],
            groups=self._groups.states(late) if self._groups is not None else [],
        )

    def search(self, kind: str, text: str) -> dict[str, Any]:
        """Return the exchanges or groups that have a text in their names, in any case; of many the first ones."""
        groups = self._parts.groups
        if kind == "exchange":
            names = [name for name, entry in self._parts.router.entries.items() if entry.balances == ""]
        else:
            names = list(groups.running) if groups is not None else []
        found = sorted(name for name in names if text.casefold() in name[1].casefold())
        shown = [{"vhost": vhost, "exchange": exchange} for vhost, exchange in found[:MOST_SHOWN]]
        return {"shown": shown, "of": len(found)}

    def _overview(self, look: Look) -> dict[str, Any]:
        """Return the overview for pages: what is wrong, and of many exchanges and groups those that count most."""
        of, parts = self.overview(look), self._parts
        found = findings(of)
        wrong = {(each.kind, each.vhost, each.exchange) for each in found}

        def counts_most(kind: str, each: ExchangeState | GroupState) -> tuple[bool, float]:
            if isinstance(each, ExchangeState):
                busy = sum(each.rates.values()) - (each.why == PassReason.TYPE)
            else:
                busy = float(each.ready or 0)
            return (kind, each.vhost, each.exchange) not in wrong, -busy

        def chosen(kind: str, all_of: Sequence[Any]) -> dict[str, Any]:
            few = sorted(all_of, key=lambda each: counts_most(kind, each))[:MOST_SHOWN]
            return {"shown": sorted(few, key=lambda each: (each.vhost, each.exchange)), "of": len(all_of)}

        rates: Counter[str] = Counter()
        for (kind, _, _, what), count in look.live.items():
            if kind == "publish":
                rates[what] += count
        return {
            "at": of.at,
            "sidecar": process_id(),
            "ready": not any(of.checks.values()),
            "checks": of.checks,
            "notes": [": ".join(note) for note in parts.readiness.notes()],
            "findings": {"shown": found[:MOST], "of": len(found)},
            "exchanges": chosen("exchange", of.exchanges),
            "groups": chosen("group", of.groups),
            "rates": {what: round(count / look.seconds, 1) for what, count in rates.items()},
            "in_flight": parts.publisher.in_flight + parts.listener.unsettled,
            "sessions": len(parts.listener.sessions),
            "steps": [
                {
                    "ended": step.ended,
                    "rates": _rates(step.grown, step.seconds),
                    "latency": {
                        ingress: [quantile(buckets, 0.5), quantile(buckets, 0.99)]
                        for ingress, buckets in step.latencies.items()
                    },
                }
                for step in self.history.steps
            ],
        }

    async def _detail(self, view: View, look: Look) -> dict[str, Any] | None:
        name = view.vhost, view.exchange
        if view.kind == "exchange" and (entry := self._parts.router.entries.get(name)) is not None:
            return self._exchange_detail(name, entry, look)
        if view.kind == "group" and self._groups is not None:
            return await self._groups.detail(name)
        return None

    def _exchange_detail(self, name: Name, entry: Entry, look: Look) -> dict[str, Any]:
        """Return an exchange with its ring, how many publishes went to each destination, and its rates over time."""
        placed = self._parts.counts.placed(name)
        detail = shown(self._parts.router, name, entry, self._parts.in_force.now.route_share)
        detail["destinations"] = destinations = detail.get("destinations", [])
        for each, destination in zip(destinations, entry.known.ring.destinations if entry.known else (), strict=True):
            each["sent"] = placed.get(destination, 0)
        detail["destinations_of"] = len(destinations)
        detail["sent"] = sum(each["sent"] for each in destinations)
        detail["destinations"] = destinations[:MOST_SHARDS]
        detail["dead_letters"] = [(queue, cause) for queue, cause in sorted(entry.queues.items()) if cause][
            :MOST_SHARDS
        ]
        detail["rates"] = look.rates("publish", *name)
        detail["passed_rates"] = look.rates("passed", *name)
        detail["totals"] = {key[3]: n for key, n in look.total.items() if key[:3] == ("publish", *name)}
        detail["steps"] = [
            {"ended": step.ended, "rates": _rates(step.grown, step.seconds, name)} for step in self.history.steps
        ]
        return detail

    def _part(self) -> str:
        """Return which part of the slots is routed of an exchange that is routed, in words; empty if all are."""
        share = self._parts.in_force.now.route_share
        return f"{share:g}% of the slots" if share < 100 else ""

    def _totals(self) -> Totals:
        parts = self._parts
        counted: Counter[Counted] = Counter()
        for (_, name, outcome), count in parts.counts.all_publishes().items():
            counted["publish", *name, outcome.value] += count
        for (name, reason), count in parts.counts.all_passed().items():
            counted["passed", *name, reason] += count
        counted["refused", "", "", "403"] = parts.listener.shared.refusals[403]
        journal, writer = parts.journaling.journal, parts.journaling.writer
        if journal is not None and writer is not None:
            counted["journal", "", "", "dropped"] = journal.dropped + writer.lost + writer.refused
        for name, totals in parts.groups.totals().items() if parts.groups is not None else ():
            for what, count in totals.items():
                counted["group", *name, what] += count
        ways = ("http", parts.counts.http_latency), ("amqp", parts.counts.amqp_latency)
        return Totals(time.monotonic(), counted, {ingress: latency.counts() for ingress, latency in ways})

    def _exchange(
        self, name: Name, entry: Entry, stale: bool, rates: Mapping[str, float], late: Mapping[str, int]
    ) -> ExchangeState:
        last = entry.changes[-1] if entry.changes else None
        return ExchangeState(
            vhost=name[0],
            exchange=name[1],
            type=entry.exchange_type,
            state=_state(entry),
            why=entry.refused or entry.passed or self._part(),
            destinations=len(entry.known.ring.destinations) if entry.known is not None else 0,
            age_seconds=round(max(self._parts.router.clock() - entry.read_at, 0.0), 1),
            stale=stale,
            restored=entry.restored,
            ring=entry.known.fingerprint if entry.known is not None else "",
            changed_at=last.at if last is not None else None,
            moved=round(last.moved, 4) if last is not None else 0.0,
            rates=rates,
            late=late,
            dead_letters=[(queue, cause) for queue, cause in sorted(entry.queues.items()) if cause][:FEW],
            not_lanes=list(entry.not_lanes.items())[:FEW],
            without_copies=[queue for lost in entry.incomplete.values() for queue in lost][:FEW],
            change=change_under_way(entry),
        )


def _state(entry: Entry) -> str:
    """Return how publishes to an exchange go, as `ExchangeState.state` has it."""
    if entry.refused:
        return "refused"
    if entry.passed is None:
        return "routed"
    if entry.passed is PassReason.SHADOW:
        return "shadowed"
    return "not routed" if entry.mode is Mode.ROUTE and entry.passed in KEEPS_FROM_ROUTING else "passed"


def _rates(grown: Mapping[Counted, int], seconds: float, name: Name | None = None) -> dict[str, float]:
    """Return publishes a second by outcome within a step, of one exchange or of all."""
    found: Counter[str] = Counter()
    for (kind, vhost, exchange, what), count in grown.items():
        if kind == "publish" and name in (None, (vhost, exchange)):
            found[what] += count
    return {what: round(count / seconds, 2) for what, count in found.items()} if seconds > 0 else {}


def _json(value: object) -> bytes:
    """Return a value as JSON in ASCII, so that no name, whatever is in it, can break a line or the encoding."""
    return json.dumps(value, default=msgspec.to_builtins, separators=(",", ":")).encode()
