"""From a message to the broker connection that it goes out on: the way of every HTTP publish, single or of a batch."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any, NamedTuple

from mypy_extensions import mypyc_attr

from proxy.http.formats.message import Message
from proxy.http.formats.problems import ProblemError, invalid, refused, unavailable
from proxy.http.sending.witness import Witness
from proxy.journal.buffer import Journal, Record
from proxy.outcome import Outcome
from proxy.publisher.channel import Receiver
from proxy.publisher.connection import BrokerConnection
from proxy.publisher.pool import ConnectionGroup, Login, Publisher, TooManyGuests, Unavailable
from proxy.publisher.protocol import Full
from proxy.routing.counters import Counters
from proxy.routing.routes import PUBLISH, Choice, Route, RouteTable, RouteTables, Unread
from proxy.settings.patterns import Mode
from proxy.topology.lookups import Absent, NotReadable
from proxy.topology.sync import Sync
from proxy.topology.table import Name, PassReason, Router, Unknown
from proxy.wire.frames import shorted
from ring.destination import Destination
from ring.hashing import index_at, slot_of

Order = bytes | int | None
"""What messages have in common whose order matters: a routing key, or the slot of what else their exchange hashes."""


class Outlet(NamedTuple):
    """What the messages of one request have in common: where they are published to, and over which connections."""

    name: Name
    lanes: ConnectionGroup
    exchange: bytes


_NO_KEY = "Routing-Key: missing, and so is ?key="


class Placed:
    """Where a message went: where a ring chose, or, for a reason, to the exchange itself."""

    __slots__ = ("choice", "reason", "route")

    def __init__(self, route: Route, choice: Choice | None, reason: PassReason | None) -> None:
        """With a reason, `choice` is what a shadowed ring would have chosen."""
        self.route, self.choice, self.reason = route, choice, reason

    @property
    def where(self) -> Destination | None:
        """The destination that a ring chose; None for the exchange itself."""
        return self.choice.target.destination if self.choice is not None and self.reason is None else None

    def order(self, key: bytes | None) -> Order:
        """The ordering key: messages that share it stay in order."""
        return key if self.route.hashed is None or self.choice is None else self.choice.slot


class Chosen(NamedTuple):
    """The answer to the question where a key goes: a ring's choice, a reason to pass, or with SHADOW both."""

    choice: Choice | None
    reason: PassReason | None


def _chosen_by(table: RouteTable, route: Route | Unread, key: bytes) -> Chosen | Unread:
    """Return where a route sends a key, or what must be read to know it."""
    if isinstance(route, Unread):
        return route
    if not route.stamp:
        return Chosen(None, route.reason)
    if not route.plain:
        table.use(route)
    choice = route.choose(key, b"", 0, 0)
    if choice is None:
        return Chosen(None, PassReason.CYCLE)
    return choice.target.unread or Chosen(choice, route.reason)


@mypyc_attr(allow_interpreted_subclasses=True)  # as tests have them
class Dispatch:
    """Routes messages and hands them to the publisher."""

    def __init__(
        self, router: Router, sync: Sync, tables: RouteTables, publisher: Publisher, lookup_timeout: float
    ) -> None:
        """`tables` count in the counter_table of HTTP. Seconds."""
        self._router, self._sync, self._tables, self._publisher = router, sync, tables, publisher
        self._lookup_timeout = lookup_timeout

    async def check(self, outlet: Outlet) -> None:
        """Returns once it is known where an exchange's messages go. Raises ProblemError 403, 404 or 503."""
        asked = self._router.clock()
        while not isinstance(step := self._route(outlet, asked), Route):
            await step
        self._refuse_internal(outlet)

    async def outlet(self, name: Name, login: Login | None = None) -> Outlet:
        """The way to an exchange, as this sidecar's own user or another.

        Raises ProblemError where there is no such exchange. Clients choose the name, so an unknown one opens no
        connection. For another user the broker checks the login first, if MOST_GUESTS allows.
        """
        if login is None and self._must_be_read(name):
            await self.look_up(name, name, self._router.clock())
        try:
            return Outlet(name, self._publisher.lanes(name[0], login), name[1].encode())
        except TooManyGuests as error:
            raise ProblemError(429, "too-many", str(error), Outcome.REJECTED, retryable=True) from None

    async def log_in(self, outlet: Outlet) -> None:
        """Return once the broker has let in the outlet's user.

        Raises ProblemError 503, caused by LoginRefused where the broker has refused.
        """
        link = outlet.lanes.link
        if link.client is None:
            await self._cleared(link, self._router.clock())

    def _must_be_read(self, name: Name) -> bool:
        """Whether it must be known first that an exchange exists.

        Not for a shadowed one in a virtual host that this sidecar publishes to: the broker's answer is its own then.
        """
        if name in self._router.entries:
            return False
        return self._tables.selection.mode(*name) is not Mode.SHADOW or not self._publisher.serves(name[0])

    async def send(self, outlet: Outlet, message: Message, receiver: Receiver, index: int) -> Placed:
        """Publishes one message, of whose fate `receiver` is told; waits only for what must be read or connected first.

        Raises ProblemError where nothing was sent.
        """
        asked = self._router.clock()
        while not isinstance(step := self.attempt(outlet, message, receiver, index, asked), Placed):
            await step
        return step

    def attempt(
        self, outlet: Outlet, message: Message, receiver: Receiver, index: int, asked: float
    ) -> Placed | Coroutine[Any, Any, None]:
        """Publishes a message at once, or gives what must be awaited before the next attempt.

        `asked` is when the first attempt was, monotonic. Raises ProblemError where there is no use in another.
        """
        route = self._route(outlet, asked)
        if not isinstance(route, Route):
            return route
        lanes, key = outlet.lanes, message.key or b""
        if message.key is None and (route.hashed is None or not route.stamp):
            raise ProblemError(400, "no-routing-key", _NO_KEY, Outcome.INVALID)
        if route.plain:
            slot = slot_of(key)
            choice = Choice(route.targets[index_at(route.owners, slot)], route, slot, key, False, False)
            placed = Placed(route, choice, None)
        else:
            self._refuse_internal(outlet)
            placed = self._placed(route, key, message)
            slot = placed.choice.slot if placed.choice is not None else slot_of(key)
            if placed.choice is not None and placed.choice.target.unread is not None:
                return self._read(outlet.name, placed.choice.target.unread, asked)
        link = lanes.links[slot % len(lanes.links)]
        if not link.clear:
            return self._cleared(link, asked)
        if route.reason is not PassReason.TYPE and not route.fixed and self._tables.mismatch(link.cluster):
            return self._same_cluster(link, asked)
        self._publish(link, placed, outlet, message, (receiver, index))
        return placed

    async def choose(self, name: Name, key: bytes) -> Chosen:
        """Return where a publish to an exchange goes whose ring hashes `key`, be that a routing key or another value.

        Nothing is published. Raises ProblemError where the exchange does not exist, cannot be read in time, or takes
        no publishes.
        """
        asked = self._router.clock()
        while isinstance(found := self._choose(name, key, asked), Unread):
            await self._read(name, found, asked)
        return found

    def _choose(self, name: Name, key: bytes, asked: float) -> Chosen | Unread:
        entry = self._router.look(name, asked)
        if isinstance(entry, Unknown):
            return Unread(entry.exchange, entry.why, refused=entry.refused)
        if entry.known is None or entry.passed not in (None, PassReason.SHADOW):
            return Chosen(None, entry.passed or PassReason.NO_BINDINGS)
        table, exchange = self._tables.table(name[0], None), name[1].encode()
        if table.expires < self._router.clock():
            table.clear()
        found = _chosen_by(table, table.find(exchange), key)
        return _chosen_by(table, table.once(exchange, asked), key) if isinstance(found, Unread) else found

    def order_of(self, outlet: Outlet, message: Message) -> Order:
        """The same of a message that is not placed yet."""
        route = self._table(outlet.lanes).find(outlet.exchange)
        if isinstance(route, Unread) or route.hashed is None:
            return message.key
        return self._placed(route, message.key or b"", message).order(message.key)

    def _table(self, lanes: ConnectionGroup) -> RouteTable:
        """The routes, whatever the cluster: that is looked at for each publish."""
        if lanes.table is None:
            lanes.table = self._tables.table(lanes.vhost, None)
        return lanes.table

    def _placed(self, route: Route, key: bytes, message: Message) -> Placed:
        """By a ring that hashes something else than the key, by rings behind rings, or passed."""
        choice = None
        if route.stamp:
            header = message.header.payload(len(message.body))
            choice = route.choose(key, header, 0, len(header))
            if choice is None:
                return Placed(route, None, PassReason.CYCLE)
        if route.shadowed or not route.stamp:
            return Placed(route, choice, route.reason)
        return Placed(route, choice, None)

    def _publish(
        self,
        link: BrokerConnection,
        placed: Placed,
        outlet: Outlet,
        message: Message,
        told: tuple[Receiver, int],
    ) -> None:
        client, route, key = link.client, placed.route, message.key or b""
        assert client is not None
        counters = route.counters
        if placed.choice is not None and placed.reason is None:
            target = placed.choice.target
            stamp = route.stamp
            exchange, method = (b"", target.method) if target.is_queue else (target.name, target.method + shorted(key))
        else:
            exchange, stamp = outlet.exchange, b""
            method = PUBLISH + shorted(exchange) + shorted(key)
            counters = self._count_passed(placed)
        if 0 < client.most_body < len(message.body):
            detail = f"message size {len(message.body)} is larger than configured max size {client.most_body}"
            # In the broker's words, who answered so the first time.
            raise ProblemError(413, "too-large", f"body: PRECONDITION_FAILED - {detail}", Outcome.INVALID)
        if route.journal is not None and placed.choice is not None and placed.choice.slot < route.journal.limit:
            told = self._witness(route.journal, placed, placed.choice, message, told), 0
        try:
            client.publish(exchange, method, message.header, stamp, key, message.body, (*told, counters))
        except ValueError as error:
            raise invalid("headers", str(error)) from None
        except Full as full:
            raise unavailable(str(full)) from None
        if placed.choice is not None:
            route.counters.value_missing += placed.choice.missing
        link.wake()

    def _witness(
        self, journal: Journal, placed: Placed, choice: Choice, message: Message, told: tuple[Receiver, int]
    ) -> Witness:
        header = message.header.payload(len(message.body))
        record = Record("http", placed.route.name, header, 0, len(header), journal.clock())
        choice.tell(record, placed.where)
        return Witness(journal, record, told[0], told[1])

    def _count_passed(self, placed: Placed) -> Counters:
        if placed.reason is PassReason.CYCLE:
            return self._tables.counter_table.of(placed.route.name, PassReason.CYCLE)
        if placed.choice is not None:
            placed.route.counters.shadowed[placed.choice.target.destination] += 1
        return placed.route.counters

    async def _cleared(self, link: BrokerConnection, asked: float) -> None:
        """Waits until a connection takes publishes."""
        try:
            await self._publisher.cleared(link, asked + self._lookup_timeout - self._router.clock())
        except Unavailable as error:
            problem = unavailable(str(error))
            problem.__cause__ = error  # mypyc knows no `raise ... from`
            raise problem from error

    async def _same_cluster(self, link: BrokerConnection, asked: float) -> None:
        """Returns if the management API's cluster is the connection's after all: one was renamed, or was asked late.

        Raises ProblemError where it is not.
        """
        told, told_at = link.cluster or "", link.cluster_told_at
        name = await self._sync.identity.confirmed(told, told_at, asked + self._lookup_timeout - self._router.clock())
        if link.cluster_told_at != told_at:
            return  # connected anew meanwhile
        if name is not None:
            link.cluster = name
            return
        link.doubt()
        raise unavailable(self._tables.mismatch(told))

    def _route(self, outlet: Outlet, asked: float) -> Route | Coroutine[Any, Any, None]:
        """Where an exchange's messages go, or what must be awaited to know it."""
        lanes, exchange = outlet.lanes, outlet.exchange
        table = self._table(lanes)
        route = table.routes.get(exchange)
        if table.expires < self._router.clock():
            table.clear()
        elif route is not None:
            return route
        if lanes.guest and lanes.link.client is None:
            # The broker judges him before he learns what there is.
            return self._cleared(lanes.link, asked)
        if exchange and self._must_be_read(outlet.name):
            return self.look_up(outlet.name, outlet.name, asked)
        found = table.find(exchange)
        if isinstance(found, Unread):
            found = table.once(exchange, asked)
        return found if isinstance(found, Route) else self._read(outlet.name, found, asked)

    def _read(self, name: Name, unread: Unread, asked: float) -> Coroutine[Any, Any, None]:
        """Return the look-up that a publish to `name` must await; raises ProblemError where no look-up helps."""
        if unread.refused:
            raise refused(unread.name, unread.why)
        return self.look_up(name, unread.name, asked)

    def _refuse_internal(self, outlet: Outlet) -> None:
        entry = self._router.entries.get(outlet.name)
        if entry is not None and entry.internal:
            detail = f"exchange: {outlet.name[1]!r} is internal, and takes messages from other exchanges only"
            raise ProblemError(403, "internal-exchange", detail, Outcome.INVALID)

    async def look_up(self, name: Name, wanted: Name, asked: float) -> None:
        """Returns once an exchange is read on which publishes to `name` wait since `asked`, monotonic.

        Raises ProblemError where it does not exist or cannot be read in time.
        """
        left = asked + self._lookup_timeout - self._router.clock()
        if left <= 0:
            raise unavailable(f"exchange {wanted[1]!r} could not be read in time")
        try:
            await self._sync.look_up(wanted, left)
        except Absent as absent:
            if wanted == name:
                raise ProblemError(404, "unknown-exchange", f"exchange: {absent}", Outcome.INVALID) from None
            left = asked + self._lookup_timeout - self._router.clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._sync.refresh(name, "an exchange behind it is gone")
            raise unavailable(str(absent)) from None
        except NotReadable as error:
            raise unavailable(f"exchange {wanted[1]!r} cannot be read: {error}") from None

    def moved(self, outlet: Outlet, message: Message, placed: Placed) -> bool:
        """Whether a message that came back would go elsewhere now than where it had been placed, as far as is known."""
        route = self._table(outlet.lanes).find(outlet.exchange)
        return isinstance(route, Unread) or self._placed(route, message.key or b"", message).where != placed.where

    def count_rerouted(self, placed: Placed) -> None:
        """Counts a message that came back from there and was sent again."""
        self._tables.counter_table.of(placed.route.name, None).rerouted += 1

    async def refresh(self, placed: Placed, why: str) -> None:
        """Reads the ring of a message that did not reach its queue again: the next try finds the new one.

        Not for longer than a look-up may take.
        """
        names, gone = {placed.route.name}, set()
        if placed.choice is not None and placed.reason is None:
            # With rings behind rings, the one that chose.
            names.add(placed.choice.by.name)
            gone = {placed.choice.target.destination}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lookup_timeout):
                await asyncio.gather(*(self._sync.refresh(name, why, gone) for name in names))
