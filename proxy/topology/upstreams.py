"""Read which exchanges behind an upstream exchange have rings, and decide which of its bindings are in force."""

import asyncio
import time
from collections.abc import Collection

from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import RING_TYPES, Binding
from proxy.topology.management import Management, ManagementError
from proxy.topology.matching import UPSTREAM_TYPES, Upstream, upstream_of
from proxy.topology.overlay_store import OverlayStore
from proxy.topology.reading import Reading, ask_each
from proxy.topology.removals import WeightsInForce
from proxy.topology.table import Entry, Name
from ring.destination import Destination

MOST_BEHIND = 100
"""The most exchanges behind an upstream exchange; each reading asks for the type of every one."""


class Upstreams:
    """Reads what is behind the upstream exchanges, for as long as the process reads any."""

    def __init__(self, api: Management, selection: Selection, overlays: OverlayStore, settle_time: float) -> None:
        """`overlays` has the declarations that correct the readings; `settle_time` is the setting, in seconds."""
        self._api, self._selection, self._overlays, self._settle_time = api, selection, overlays, settle_time

    def types(self, name: Name) -> frozenset[str]:
        """Return the types of exchange whose bindings are read, for an exchange of this name."""
        return RING_TYPES | UPSTREAM_TYPES if self._selection.routes_by_name(*name) else RING_TYPES

    async def read(
        self,
        name: Name,
        reading: Reading,
        corrected: Collection[Binding],
        before: Entry | None,
        bound: WeightsInForce[Binding],
        started: float,
        gone: Collection[Destination],
        *,
        only_shown: bool,
    ) -> tuple[Upstream | None, WeightsInForce[Binding]]:
        """Return the upstream exchange after a reading, None if the exchange is none, and its bindings in force.

        `corrected` are the bindings of the reading with the declarations laid over it, `before` is the last entry, and
        `bound` are the bindings that were in force until now. The reading started at `started`, monotonic. `gone` are
        destinations whose removal a message has confirmed; `only_shown` says that nothing exists but what shows now.
        Raises ManagementError or TopologyError.
        """
        last = before.upstream if before is not None else None
        exchange = reading.exchange
        exchange_type = exchange.type if exchange is not None else last.exchange_type if last is not None else ""
        if exchange_type not in UPSTREAM_TYPES or not self._selection.routes_by_name(*name):
            return None, WeightsInForce()
        if last is None or last.exchange_type != exchange_type:
            last, bound = None, WeightsInForce()
        kept = await self._still_bound(name, frozenset(reading.bindings).difference(corrected))
        removed = {b for b in bound.weights if only_shown or b.destination in gone}
        removed |= self._overlays.of(name).confirmed_unbinds(bound.weights) - kept
        shown, with_declared = frozenset(reading.bindings), dict.fromkeys((*corrected, *kept), 1)
        bound = bound.after(with_declared, started, time.monotonic(), self._settle_time, removed, shown)
        return await self._upstream(name[0], exchange_type, frozenset(bound.weights), last, started), bound

    async def _still_bound(self, name: Name, hidden: frozenset[Binding]) -> frozenset[Binding]:
        """Return those of the bindings that show, and that declarations hide, which exist nevertheless.

        RabbitMQ confirms the unbind of a binding that never existed. An unbind without arguments therefore says nothing
        of a binding with arguments, which routes just as well. Raises ManagementError or TopologyError.
        """
        unbound = self._overlays.of(name).only_unbound(hidden)
        return frozenset(unbound.intersection(await self._api.bindings_with_arguments(*name)) if unbound else ())

    async def _upstream(
        self, vhost: str, exchange_type: str, bindings: frozenset[Binding], last: Upstream | None, started: float
    ) -> Upstream:
        """Return the upstream exchange that these bindings in force make. Raises ManagementError or TopologyError."""
        behind = sorted({b.destination for b in bindings if b.destination.kind == "exchange"})
        if len(behind) > MOST_BEHIND:
            return Upstream(exchange_type, bindings, frozenset(), f"it is bound to more than {MOST_BEHIND} exchanges")
        leads_on = await ask_each(lambda each: self._leads_on(vhost, each, last, started), behind)
        rings = frozenset(each for each, leads in leads_on.items() if leads)
        if last is not None and (last.bindings, last.rings) == (bindings, rings):
            return last
        return await asyncio.to_thread(upstream_of, exchange_type, bindings, rings)

    async def _leads_on(self, vhost: str, behind: Destination, before: Upstream | None, started: float) -> bool:
        """Return whether messages to an exchange behind the upstream exchange are routed by rings.

        An exchange that does not show is what it was: once it is gone, no binding to it shows either. Raises
        ManagementError if it is new and does not show, or was declared and does not show yet, or TopologyError.
        """
        name = (vhost, behind.name)
        exchange = await self._api.exchange(*name)
        if self._overlays.of(name).misses_exchange(exchange.type if exchange is not None else None, started):
            raise ManagementError(f"exchange {behind.name!r} was declared and does not show yet")
        if exchange is None and (before is None or behind not in before.destinations):
            raise ManagementError(f"exchange {behind.name!r} has a binding and does not show")
        if exchange is None:
            return before is not None and behind in before.rings
        if exchange.type in RING_TYPES:
            return self._selection.mode(*name) is Mode.ROUTE
        return exchange.type in UPSTREAM_TYPES and self._selection.routes_by_name(*name)
