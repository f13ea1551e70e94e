"""Read one exchange consistently from the management API: all requests, and proof where an answer is empty."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from proxy.topology.bindings import RING_TYPES, Binding, Exchange, grouped_by
from proxy.topology.management import Management, ManagementError
from proxy.topology.table import Name


@dataclass(frozen=True)
class Reading:
    """The result of one reading of an exchange; if it shows nothing, further requests have confirmed that."""

    exchange: Exchange | None
    """The exchange; None if it does not exist."""
    bindings: tuple[Binding, ...] = ()
    """The bindings whose source is the exchange; empty, because not read, if its type was not asked for."""


ABSENT = Reading(None)
"""The reading of an exchange that does not exist."""

Listed = Callable[[str, frozenset[str] | None], None]
"""A function that takes a virtual host and the names of all its exchanges, None if the virtual host is not listed."""


async def read(
    api: Management,
    name: Name,
    pause: float = 0.0,
    listed: Listed | None = None,
    types: Collection[str] = RING_TYPES,
) -> Reading:
    """Read an exchange, and its bindings if it is of one of `types`.

    RabbitMQ answers the bindings of an unknown exchange or virtual host with 200 and an empty list, and a node without
    quorum answers from its local copy (observed). An empty answer therefore counts only if the virtual host is listed
    and its exchanges can be listed, and if the exchange is absent there, too, or its bindings are still empty `pause`
    seconds later. `listed` is called with each list of exchanges. Raises ManagementError or TopologyError, also if an
    empty answer is not proved.
    """
    vhost, exchange_name = name
    exchange = await read_exchange(api, name)
    if exchange is None:
        await _corroborate_absence(api, name, listed)
        return ABSENT
    if exchange.type not in types:
        return Reading(exchange)
    bindings = await api.bindings(vhost, exchange_name)
    if not bindings and not await _listed(api, name, listed):
        return ABSENT
    if not bindings:
        await asyncio.sleep(pause)
        bindings = await api.bindings(vhost, exchange_name)
    return Reading(exchange, bindings)


async def read_exchange(api: Management, name: Name) -> Exchange | None:
    """Return an exchange without its bindings; None if its page is 404.

    One that may balance a group, by its name and type, takes one more request, for the exchange whose group that is.
    Raises ManagementError or TopologyError.
    """
    exchange = await api.exchange(*name)
    grouped = grouped_by(name[1], exchange.type) if exchange is not None else ""
    if exchange is None or not grouped:
        return exchange
    of = await api.exchange(name[0], grouped)
    return replace(exchange, balances=grouped) if of is not None and of.type in RING_TYPES else exchange


async def _corroborate_absence(api: Management, name: Name, listed: Listed | None) -> None:
    """Check that an exchange whose page is 404 is not listed, either. Raises ManagementError if it is."""
    if await _listed(api, name, listed):
        raise ManagementError(f"exchange {name[1]!r} is listed in virtual host {name[0]!r}, and its own page is 404")


async def _listed(api: Management, name: Name, listed: Listed | None) -> bool:
    """Return whether its virtual host lists the exchange. Raises VhostNotListedError if that is not listed."""
    vhost, exchange_name = name
    names = await api.exchange_names(vhost)
    if vhost not in await api.vhosts():
        names = None
    if listed is not None:
        listed(vhost, names)
    if names is None:
        raise VhostNotListedError(vhost)
    return exchange_name in names


class VhostNotListedError(ManagementError):
    """The virtual host does not exist, or the management user may not see it."""

    def __init__(self, vhost: str) -> None:
        """Make the error for this virtual host."""
        super().__init__(f"virtual host {vhost!r} does not exist, or the management user may not see it")
