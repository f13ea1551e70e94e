"""Read one exchange consistently from the management API: all requests, and proof where an answer is empty."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from proxy.topology.bindings import RING_TYPES, Binding, Exchange, grouped_by
from proxy.topology.management import Management, ManagementError
from proxy.topology.table import NEVER, Name

AT_ONCE = 4
"""The most questions of one kind that one reading asks at the same time."""

LISTING_COUNTS = 1.0
"""Seconds, from its request on, for which a list of exchanges proves that an exchange does not exist."""

MOST_LISTINGS = 16
"""The most virtual hosts whose last list is kept."""

K = TypeVar("K")
V = TypeVar("V")


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


async def read_exchange_and_bindings(
    api: Management,
    name: Name,
    pause: float = 0.0,
    listed: Listed | None = None,
    types: Collection[str] = RING_TYPES,
) -> Reading:
    """Return the reading of one exchange, with its bindings if it is of one of `types`; ABSENT if it does not exist.

    RabbitMQ answers the bindings of an unknown exchange or virtual host with 200 and an empty list, and a node without
    quorum answers from its local copy (observed). An empty answer therefore counts only if the virtual host is listed
    and its exchanges can be listed, and if the exchange is absent there, too, or its bindings are still empty `pause`
    seconds later. `listed` is called with each list of exchanges. Raises ManagementError or TopologyError, also if an
    empty answer is not proved.
    """
    vhost, exchange_name = name
    exchange = await read_exchange(api, name)
    if exchange is None:
        await check_absent(api, vhost, {exchange_name}, listed)
        return ABSENT
    if exchange.type not in types:
        return Reading(exchange)
    bindings = await api.bindings(vhost, exchange_name)
    if not bindings and exchange_name not in await _exchange_names(api, vhost, listed):
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


async def check_absent(api: Management, vhost: str, absent: Collection[str], listed: Listed | None = None) -> None:
    """Check that exchanges whose pages are 404 are not listed, either. Raises ManagementError if one is."""
    if shown := sorted((await _exchange_names(api, vhost, listed)).intersection(absent)):
        raise ManagementError(f"exchange {shown[0]!r} is listed in virtual host {vhost!r}, and its own page is 404")


async def _exchange_names(api: Management, vhost: str, listed: Listed | None) -> frozenset[str]:
    """Return the names of a virtual host's exchanges. Raises VhostNotListedError if that is not listed."""
    names = await api.exchange_names(vhost)
    if vhost not in await api.vhosts():
        names = None
    if listed is not None:
        listed(vhost, names)
    if names is None:
        raise VhostNotListedError(vhost)
    return names


async def ask_each(ask: Callable[[K], Awaitable[V]], keys: Sequence[K]) -> dict[K, V]:
    """Return the answer to each question, of which up to `AT_ONCE` are asked at the same time."""
    answers: dict[K, V] = {}
    for start in range(0, len(keys), AT_ONCE):
        batch = keys[start : start + AT_ONCE]
        answers.update(zip(batch, await asyncio.gather(*map(ask, batch)), strict=True))
    return answers


class VhostNotListedError(ManagementError):
    """The virtual host does not exist, or the management user may not see it."""

    def __init__(self, vhost: str) -> None:
        """Make the error for this virtual host."""
        super().__init__(f"virtual host {vhost!r} does not exist, or the management user may not see it")


class RecentListings:
    """The last list of exchanges of each virtual host, as the management API sent it.

    Clients choose the names that they publish to, and each name that does not exist costs the API three requests. One
    of them lists all exchanges, so while it is new that list also answers for every other name.
    """

    def __init__(self) -> None:
        """Make an object that knows no list yet."""
        self._listed: dict[str, tuple[float, frozenset[str] | None]] = {}

    def note(self, vhost: str, names: frozenset[str] | None, asked: float) -> None:
        """Remember a list that was requested at the monotonic time `asked`; `names` is None if the virtual host is not
        listed.
        """
        self._listed.pop(vhost, None)
        self._listed[vhost] = asked, names
        for oldest in list(self._listed)[:-MOST_LISTINGS]:
            del self._listed[oldest]

    def lacks(self, name: Name, declared_at: float, now: float) -> bool:
        """Return whether a recent list lacks this exchange and was requested after its last declaration, at
        `declared_at`.
        """
        asked, names = self._listed.get(name[0], (NEVER, frozenset()))
        return now - asked <= LISTING_COUNTS and declared_at < asked and (names is None or name[1] not in names)

    def lacks_vhost(self, vhost: str) -> bool:
        """Return whether the virtual host was not listed: it does not exist, or the management user may not see it."""
        return vhost in self._listed and self._listed[vhost][1] is None

    def forget_old(self, now: float) -> None:
        """Forget the lists that are older than `LISTING_COUNTS`."""
        for vhost, (asked, _) in list(self._listed.items()):
            if now - asked > LISTING_COUNTS:
                del self._listed[vhost]
