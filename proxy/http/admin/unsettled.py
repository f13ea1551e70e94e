"""Count what this process has published to an exchange by an earlier ring and the broker has not answered yet.

Who makes a new generation of shards asks each sidecar for this, once each sidecar routes by the new ring: as long as
the count is not zero, a message may still come to a shard of the old one. Nothing is counted beforehand, so publishes
cost no more for it. A publish counts as unsettled where nobody knows.

- `proxy/session/publishing/order.py` knows by which ring the unsettled publishes of an AMQP channel went. They count
  until their client has an answer, so those that came back and are published again count as well.
- An HTTP publish is on the channel of the lane that it was sent to. It counts if the present ring has no such lane, or
  if it came back and is to be sent again.
"""

import asyncio
from collections.abc import Collection
from typing import Final, NamedTuple

from proxy.http.sending.dispatch import Dispatch
from proxy.publisher.pool import Publisher
from proxy.routing.counters import Counters
from proxy.routing.route import Route
from proxy.routing.routes import RouteTable, RouteTables
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.listener import Listener
from proxy.topology.table import Name, Router

AT_ONCE: Final = 200
"""The channels, or exchanges, that are looked at before all else has its turn; one of 32,768 publishes takes 2 ms."""


class Unsettled(NamedTuple):
    """The publishes to an exchange that are not known to be in the queues of its shards."""

    before: int
    """The publishes that went by an earlier ring than the present one and have no answer yet."""
    unconfirmed: int
    """The open channels without confirms that have published to the exchange: nobody knows what became of it."""


class UnsettledCount:
    """Counts, when asked, the unsettled publishes of the whole process."""

    def __init__(
        self, router: Router, listener: Listener, publisher: Publisher, dispatch: Dispatch, tables: RouteTables
    ) -> None:
        """Take where publishes are; `tables` count as HTTP."""
        self._router, self._listener, self._publisher = router, listener, publisher
        self._dispatch, self._tables = dispatch, tables

    async def of(self, name: Name) -> Unsettled | None:
        """Return what is unsettled of publishes to an exchange, and to those whose rings lead to it.

        The result is None if a ring has changed meanwhile: some channels were counted by the former one.
        """
        names = await self._leading_to(name)
        rings = self._rings(names)
        before, unconfirmed = self._over_http(name, names), 0
        exchanges = [exchange.encode() for _, exchange in names]
        looked = 0
        for session in list(self._listener.sessions):
            c = session.connection
            if c.table is None or c.vhost != name[0]:
                continue
            for channel in list(c.channels.values()):
                before += _unsettled(c, channel, exchanges)
                unconfirmed += not channel.confirms.answered and any(map(channel.order.has_published, exchanges))
                looked += 1
                if looked % AT_ONCE == 0:
                    await asyncio.sleep(0)
            before += _republished(c, exchanges)
        return Unsettled(before, unconfirmed) if self._rings(names) == rings else None

    def _rings(self, names: Collection[Name]) -> dict[Name, str | None]:
        """Return the digests by which the next publishes to these exchanges would go."""
        return {name: _digest(self._tables.table(name[0], None), name[1].encode()) for name in names}

    async def _leading_to(self, name: Name) -> set[Name]:
        """Return the exchanges whose messages may go by the ring of an exchange, itself among them."""
        names, table = {name}, self._tables.table(name[0], None)
        for looked, (other, entry) in enumerate(list(self._router.entries.items())):
            destinations = entry.known.ring.destinations if entry.known is not None else ()
            leads_on = entry.upstream is not None or any(each.kind == "exchange" for each in destinations)
            if leads_on and other[0] == name[0] and entry.passed is None:
                route = table.find(other[1].encode())
                # One that must be read first may lead anywhere.
                if not isinstance(route, Route) or name in route.leads_through():
                    names.add(other)
            if looked % AT_ONCE == 0:
                await asyncio.sleep(0)
        return names

    def _over_http(self, name: Name, names: Collection[Name]) -> int:
        """Return the unsettled publishes of HTTP that went where the rings lead no more, or that came back."""
        table = self._tables.table(name[0], None)
        counted = {self._tables.counter_table.of(each, None) for each in names}
        present = set[bytes]()
        for each in names:
            route = table.find(each[1].encode())
            present |= _sent_to(route) if isinstance(route, Route) else set()
        entry = self._router.entries.get(name)
        others = entry.others if entry is not None else ()
        lanes = {d.name.encode() for each in others for d in each.shards if d.kind == "exchange"}
        before = sum(self._dispatch.coming_back[each] for each in names)
        for channel in self._publisher.unsettled(name[0]):
            if channel.exchange not in present:
                before += sum(counters in counted for _, _, counters in channel.pending.values())
                before += channel.unanswered if channel.exchange in lanes else 0
        return before


def _sent_to(route: Route) -> set[bytes]:
    """Return the exchanges that messages on a route are sent to, the default exchange as an empty name."""
    found, todo, looked = set[bytes](), [route], set[Route]()
    while todo:
        each = todo.pop()
        looked.add(each)
        for target in each.targets:
            found.add(target.exchange)
            if target.behind is not None and target.behind not in looked:
                todo.append(target.behind)
    return found


def _unsettled(c: Connection, channel: Channel, exchanges: Collection[bytes]) -> int:
    """Return how many unsettled publishes of a channel to any of the exchanges went by an earlier ring."""
    confirms, table = channel.confirms, c.table
    if not confirms.unsettled or table is None:
        return 0
    found = 0
    for exchange in exchanges:
        last = channel.order.earlier(exchange, _digest(table, exchange), confirms)
        if last > confirms.low:
            found += confirms.open.count_of(_counters(c, exchange), last)
    return found


def _republished(c: Connection, exchanges: Collection[bytes]) -> int:
    """Return how many messages came back, go out by another ring than the present one, and are on no channel's books.

    They are those of channels without confirms, or that are closed.
    """
    table = c.table
    if table is None:
        return 0
    own, found = c.republishing, 0
    under_way = [each for each in own.under_way.values() if each.digest != _digest(table, each.exchange)]
    for message in (*own.parking.messages(), *under_way):
        confirms = message.channel.confirms
        on_books = confirms.answered and message.origin.number > confirms.base
        on_books = on_books and c.channels.get(message.channel.id) is message.channel
        found += message.exchange in exchanges and not on_books
    return found


def _digest(table: RouteTable, exchange: bytes) -> str | None:
    """Return the digest by which the next publish to an exchange would go; None if nobody knows."""
    route = table.find(exchange)
    return route.digest if isinstance(route, Route) else None


def _counters(c: Connection, exchange: bytes) -> set[Counters]:
    return {c.counter_table.of((c.vhost, exchange.decode(errors="replace")), None)}
