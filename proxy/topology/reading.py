"""One consistent reading of one exchange: every request it takes, and no answer believed that should not be."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from proxy.topology.bindings import RING_TYPES, Binding, Exchange
from proxy.topology.management import Management, ManagementError
from proxy.topology.table import Name


@dataclass(frozen=True)
class Reading:
    """What the management API showed of an exchange, corroborated where it showed nothing."""

    exchange: Exchange | None
    """None where the exchange does not exist."""
    bindings: tuple[Binding, ...] = ()
    """Not read of an exchange whose type makes no ring."""


ABSENT = Reading(None)

Listed = Callable[[str, frozenset[str] | None], None]
"""Takes a virtual host and the names of all its exchanges, None where it does not show."""


async def read(api: Management, name: Name, pause: float = 0.0, listed: Listed | None = None) -> Reading:
    """Reads an exchange. Raises ManagementError or TopologyError, also where an empty answer is not to be believed.

    RabbitMQ answers the bindings of an unknown exchange or virtual host with 200 and an empty list, and a node
    without quorum answers from its local copy (observed), so an absence counts only if the virtual host is listed,
    its exchanges can be listed, and the exchange is absent there too or a second reading agrees, `pause` seconds later.
    `listed` is told what was listed.
    """
    vhost, exchange_name = name
    exchange = await api.exchange(vhost, exchange_name)
    if exchange is None:
        await _corroborate_absence(api, name, listed)
        return ABSENT
    if exchange.type not in RING_TYPES:
        return Reading(exchange)
    bindings = await api.bindings(vhost, exchange_name)
    if not bindings and not await _listed(api, name, listed):
        return ABSENT
    if not bindings:
        await asyncio.sleep(pause)
        bindings = await api.bindings(vhost, exchange_name)
    return Reading(exchange, bindings)


async def _corroborate_absence(api: Management, name: Name, listed: Listed | None) -> None:
    if await _listed(api, name, listed):
        raise ManagementError(f"exchange {name[1]!r} is listed in virtual host {name[0]!r}, and its own page is 404")


async def _listed(api: Management, name: Name, listed: Listed | None) -> bool:
    """Whether the exchange is in its virtual host's list; raises where the virtual host does not show."""
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
        """Names the virtual host."""
        super().__init__(f"virtual host {vhost!r} does not exist, or the management user may not see it")
