"""Read the exchanges behind a ring exchange: each is a lane to one queue, or routes by itself, or must not be used."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from proxy.topology.bindings import (
    FANOUT,
    NOTHING_BEHIND,
    Behind,
    Binding,
    Fan,
    Leads,
    Promise,
    behind_of,
    promises_of,
)
from proxy.topology.management import Management, ManagementError, NotAskableError
from proxy.topology.overlay_store import OverlayStore
from proxy.topology.reading import ask_each, check_absent, read_exchange
from proxy.topology.table import Entry, Name
from ring.destination import Destination

LANE_READS = 8
"""The number of known lanes of a ring that each reading asks for again; all other exchanges behind it are always asked
for.

A lane costs two requests, with a fan behind it four, and every sidecar asks. A ring of up to eight lanes is therefore
verified whole at each reading, and a larger one some lanes at a time, in turn. For the other lanes each reading asks
only whether a policy gives them an alternate exchange, by one or two requests for all: then the broker would confirm
a publish that the lane cannot deliver. Any other change of a lane between two readings of it is seen sooner: a
publish to a lane without a queue comes back, and the binding to a deleted lane is missing in the next reading of the
ring.

With 1,000 lanes on RabbitMQ 4.3.6, eight lanes cost the broker 11 ms of CPU time, the list of policies 0.5 ms, that of
exchanges 32 ms, and that of all bindings of the virtual host 105 ms, or 770 ms beside 10,000 others (measured).
"""


class Shown(NamedTuple):
    """An exchange as the management API itself showed it, without the declarations that are laid over it."""

    exchange_type: str | None
    """The exchange's type; None if the exchange did not show."""
    bindings: tuple[Binding, ...] = ()
    """The bindings whose source is the exchange; empty, because not read, if it is not a fanout exchange."""


class BehindReading(NamedTuple):
    """The result of one reading of the exchanges behind a ring exchange."""

    behind: Mapping[str, Behind]
    """By name, where each of the exchanges leads."""
    shown: Mapping[str, Shown]
    """By name, what showed of the exchanges that were asked for this time.

    An exchange of another type than fanout is not among them: its bindings are not read, so nothing can be said of the
    declarations about them.
    """


NOTHING_READ = BehindReading(NOTHING_BEHIND, {})
"""The reading of a ring exchange behind which there are only queues."""


class Lanes:
    """Reads what is behind the ring exchanges, for as long as the process reads any."""

    def __init__(self, api: Management, overlays: OverlayStore, pause: float = 0.0) -> None:
        """`overlays` has the declarations that correct the readings, also those of the lanes.

        `pause` is the time between the two looks at a lane that shows no binding in the first reading of its ring.
        """
        self._api, self._overlays, self._pause = api, overlays, pause

    async def read(
        self,
        vhost: str,
        destinations: Iterable[Destination],
        promises: Mapping[str, Promise | None],
        before: Entry | None,
        doubted: Collection[Destination],
        started: float,
    ) -> "BehindReading":
        """Read where each exchange among the destinations of a ring exchange leads.

        `promises` has what the ring exchange's bindings say of each exchange, None for nothing. The last promise
        counts for a lane that is not bound any more, and still in force. The lanes of `before`, the last entry, are
        among them: their queues may stay on the ring for a while. The exchange that was asked for longest ago comes
        first. An exchange in `doubted` is asked for in any case. In a first reading, without `before`, a lane counts
        as bound to nothing only if it shows no binding twice. `started` is when the reading of the ring exchange
        started, in monotonic seconds. Raises ManagementError or TopologyError.
        """
        wanted = {destination.name for destination in destinations if destination.kind == "exchange"}
        if before is not None:
            wanted.update(before.lanes.values())
        if not wanted:
            return NOTHING_READ
        # The lanes of a ring restored from disk were not read by this process: all of them are asked for.
        read_before = before.behind if before is not None and not before.restored else {}
        known = {name: found for name, found in read_before.items() if name in wanted}
        last = before.behind if before is not None else {}
        promised = {name: promises.get(name, last[name].promise if name in last else None) for name in wanted}
        settled = [
            name
            for name, found in known.items()
            if found.promise == promised[name] and self._is_settled(vhost, name, found, doubted)
        ]
        policies = _Policies(self._api, vhost)
        # One such lane is enough for the ring to be passed.
        unasked = {name: known[name].fan for name in settled[LANE_READS:]}
        suspects = (await self._with_alternate(vhost, unasked, policies))[:LANE_READS]
        to_ask = [*wanted.difference(settled), *settled[:LANE_READS], *suspects]
        answers, shown = await self._ask(vhost, sorted(to_ask), promised, policies, started)
        if before is None and (doubtful := [name for name, at in answers.items() if at.leads is Leads.NOWHERE]):
            # No ring in force has its queue, so one answer that lacks the binding would move the keys of that queue.
            await asyncio.sleep(self._pause)
            again = await self._ask(vhost, doubtful, promised, policies, started)
            answers, shown = {**answers, **again.behind}, {**shown, **again.shown}
        kept = {name: found for name, found in known.items() if name not in answers}
        return BehindReading({**kept, **answers}, shown)

    def _is_settled(self, vhost: str, name: str, found: Behind, doubted: Collection[Destination]) -> bool:
        """Return whether an exchange is known to be a lane, and nothing has happened to it since."""
        is_lane = found.leads is Leads.TO_QUEUE
        return is_lane and (vhost, name) not in self._overlays and Destination("exchange", name) not in doubted

    async def _with_alternate(self, vhost: str, lanes: Mapping[str, str], policies: "_Policies") -> list[str]:
        """Return those of these lanes to which a policy gives an alternate exchange, or to whose fan.

        `lanes` has the fan of each lane, empty for none. Raises ManagementError or TopologyError.
        """
        if not lanes or not (alternate := await policies.names()):
            return []
        applied = await self._api.policies_of_exchanges(vhost)
        return [name for name, fan in lanes.items() if applied.get(name) in alternate or applied.get(fan) in alternate]

    async def _ask(
        self,
        vhost: str,
        names: Sequence[str],
        promised: Mapping[str, Promise | None],
        policies: "_Policies",
        started: float,
    ) -> "BehindReading":
        """Read where each of these exchanges leads. Raises ManagementError or TopologyError."""
        found = await ask_each(lambda name: self._ask_one((vhost, name), promised[name], policies, started), names)
        absent = [name for name, (behind, _) in found.items() if behind.leads is Leads.ABSENT]
        # An exchange of which a declaration says that it was deleted is not looked for.
        if unproved := [name for name in absent if (vhost, name) not in self._overlays]:
            await check_absent(self._api, vhost, unproved)
        return BehindReading(
            {name: behind for name, (behind, _) in found.items()},
            {name: read for name, (_, read) in found.items() if read.exchange_type in (FANOUT, None)},
        )

    async def _ask_one(
        self, name: Name, promise: Promise | None, policies: "_Policies", started: float
    ) -> tuple[Behind, Shown]:
        """Return where one exchange leads, corrected by declarations, and what was read.

        Raises ManagementError or TopologyError.
        """
        vhost, exchange_name = name
        overlay = self._overlays.of(name)
        exchange = await read_exchange(self._api, name)
        shown_type = exchange.type if exchange is not None else None
        if self._overlays.incomplete_for(name, started):
            raise ManagementError("more was declared than is kept until a reading shows it")
        if overlay.misses_exchange(shown_type, started):
            raise ManagementError(f"exchange {exchange_name!r} was declared and does not show yet")
        if exchange is None or overlay.has_deleted(started):
            return Behind(Leads.ABSENT, promise=promise), Shown(shown_type)
        if exchange.type != FANOUT:
            return behind_of(exchange, (), (), promise), Shown(shown_type)
        try:
            read = await self._api.bindings(vhost, exchange_name)
            bindings = overlay.apply(read, started)
            fan = await self._fan(vhost, bindings, started)
        except NotAskableError:
            why = "the management API cannot be asked for its bindings"
            return Behind(Leads.ASIDE, why=why, promise=promise), Shown(shown_type)
        has_policy = exchange.policy or (fan is not None and fan.exchange is not None and fan.exchange.policy)
        found = behind_of(exchange, bindings, await policies.names() if has_policy else (), promise, fan)
        return found, Shown(shown_type, read)

    async def _fan(self, vhost: str, bindings: Sequence[Binding], started: float) -> Fan | None:
        """Return the exchange that a lane with these bindings leads to; None if it leads to none, or to several.

        Raises ManagementError or TopologyError.
        """
        names = {binding.destination.name for binding in bindings if binding.destination.kind == "exchange"}
        if len(names) != 1:
            return None
        (name,) = names
        exchange = await read_exchange(self._api, (vhost, name))
        if exchange is None or exchange.type != FANOUT:
            return Fan(name, exchange)
        read = await self._api.bindings(vhost, name)
        return Fan(name, exchange, self._overlays.of((vhost, name)).apply(read, started))


async def read_behind(api: Management, vhost: str, bindings: Iterable[Binding]) -> Mapping[str, Behind]:
    """Return where each exchange among the destinations of a ring exchange's bindings leads, by its name.

    This is for whoever reads a ring once, and knows of no declarations. Raises ManagementError or TopologyError.
    """
    lanes, bindings = Lanes(api, OverlayStore()), tuple(bindings)
    destinations = (binding.destination for binding in bindings)
    return (await lanes.read(vhost, destinations, promises_of(bindings), None, (), 0.0)).behind


class _Policies:
    """The policies of a virtual host that give exchanges an alternate exchange, asked for once at most."""

    def __init__(self, api: Management, vhost: str) -> None:
        self._api, self._vhost = api, vhost
        self._names: asyncio.Task[frozenset[str]] | None = None

    async def names(self) -> frozenset[str]:
        """Return the names of these policies. Raises ManagementError or TopologyError."""
        if self._names is None:
            self._names = asyncio.ensure_future(self._api.alternate_policies(self._vhost))
        return await self._names


def gone_behind(
    in_force: Iterable[Destination],
    lanes: Mapping[Destination, str],
    behind: Mapping[str, Behind],
    removed: Collection[Destination],
) -> set[Destination]:
    """Return the destinations in force that a publish must not, or cannot, reach the way it did until now.

    `lanes` has the lanes of the queues in force, `behind` what is known now of the exchanges, and `removed` the
    destinations whose removal a declaration or a returned message has confirmed. A lane that leads nowhere now is no
    proof, as an empty answer may be late: a publish to it comes back. An exchange that does not exist is proof, as a
    publish to it ends its channel. A lane that leads to another queue is, too: a message to the old one must not go
    there. And an exchange that has become a lane is on the ring as its queue.
    """
    gone = set()
    for destination in in_force:
        lane = lanes.get(destination) if destination.kind == "queue" else destination.name
        if lane is None or lane not in behind:
            continue
        found = behind[lane]
        if destination.kind == "exchange":
            still = found.leads in (Leads.ASIDE, Leads.ELSEWHERE)
        else:
            still = found.leads is Leads.NOWHERE or found.queue == destination.name
        if not still or Destination("exchange", lane) in removed:
            gone.add(destination)
    return gone
