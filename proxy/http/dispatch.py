"""From a message to the broker connection that it goes out on: the way of every HTTP publish, single or of a batch."""

import asyncio
import contextlib
from typing import NamedTuple

from proxy.amqp import content
from proxy.amqp.client import Full, Receiver
from proxy.amqp.frames import U32, shorted
from proxy.amqp.link import Link
from proxy.amqp.properties import Header
from proxy.amqp.routes import PUBLISH, Choice, Route, RouteTable, RouteTables, Unread
from proxy.http.message import Message
from proxy.http.problems import ProblemError, invalid, unavailable
from proxy.lookups import Absent, NotReadable
from proxy.outcome import Outcome
from proxy.publisher import Lanes, Login, Publisher, Unavailable
from proxy.router import Name, PassReason, Router
from proxy.sync import Sync
from proxy.tally import Tally
from ring.hashing import slot_of


class Outlet(NamedTuple):
    """What the messages of one request have in common: where they are published to, and over which connections."""

    name: Name
    lanes: Lanes
    exchange: bytes

_NO_KEY = "routing key: missing; it is the header Routing-Key, ?key= or an event's partitionkey"


class Placed(NamedTuple):
    """Where a message went: where a ring chose, or, for a reason, to the exchange itself."""

    route: Route
    choice: Choice | None
    """With a reason, what a shadowed ring would have chosen."""
    reason: PassReason | None


class Dispatch:
    """Routes messages and hands them to the publisher."""

    def __init__(
        self, router: Router, sync: Sync, tables: RouteTables, publisher: Publisher, lookup_timeout: float
    ) -> None:
        """`tables` count in the tallies of HTTP. Seconds."""
        self._router, self._sync, self._tables, self._publisher = router, sync, tables, publisher
        self._lookup_timeout = lookup_timeout

    async def check(self, outlet: Outlet) -> None:
        """Returns once it is known where an exchange's messages go. Raises ProblemError 403, 404 or 503."""
        table = outlet.lanes.table
        if table is None or outlet.exchange not in table.routes or table.expires < self._router.clock():
            await self._found(outlet, self._router.clock())
        self._refuse_internal(outlet)

    async def outlet(self, name: Name, login: Login | None = None) -> Outlet:
        """The way to an exchange, as this sidecar's own user or another.

        Raises ProblemError where there is no such exchange: for one of a client's choice nobody shall connect. But of
        another user the broker judges first.
        """
        if login is None and name not in self._router.entries:
            await self._look_up(name, name, self._router.clock())
        try:
            return Outlet(name, self._publisher.lanes(name[0], login), name[1].encode())
        except Unavailable as error:
            raise unavailable(str(error)) from None

    async def send(self, outlet: Outlet, message: Message, receiver: Receiver, index: int) -> Placed:
        """Publishes one message, of whose fate `receiver` is told; waits only for what must be read or connected first.

        Raises ProblemError where nothing was sent.
        """
        lanes, asked = outlet.lanes, 0.0
        key = message.key or b""
        while True:
            table = lanes.table
            route = table.routes.get(outlet.exchange) if table is not None else None
            if route is None or table is None or table.expires < self._router.clock():
                asked = asked or self._router.clock()
                table, route = await self._found(outlet, asked)
            if message.key is None and (route.hashed is None or not route.stamp):
                raise ProblemError(400, "no-routing-key", _NO_KEY, Outcome.INVALID)
            if route.plain:
                slot = slot_of(key)
                placed = Placed(route, Choice(route.targets[route.owners[slot]], route, slot), None)
            else:
                self._refuse_internal(outlet)
                placed = self._placed(route, key, message)
                slot = placed.choice.slot if placed.choice is not None else slot_of(key)
                if placed.choice is not None and placed.choice.target.unread is not None:
                    asked = asked or self._router.clock()
                    await self._read(outlet, placed.choice.target.unread, asked)
                    continue
            link = lanes.links[slot % len(lanes.links)]
            if link.clear and link.cluster == table.cluster:
                self._publish(link, placed, table, outlet, message, (receiver, index))
                return placed
            await self._connected(lanes, link)

    def _placed(self, route: Route, key: bytes, message: Message) -> Placed:
        """By a ring that hashes something else than the key, by rings behind rings, or passed."""
        choice = None
        if route.stamp:
            header = Header.of(message.properties).payload(len(message.body))
            choice = route.choose(key, header, 0, len(header))
            if choice is None:
                return Placed(route, None, PassReason.CYCLE)
        if route.shadowed or not route.stamp:
            return Placed(route, choice, route.reason)
        return Placed(route, choice, None)

    def _publish(
        self,
        link: Link,
        placed: Placed,
        table: RouteTable,
        outlet: Outlet,
        message: Message,
        told: tuple[Receiver, int],
    ) -> None:
        client, route, key = link.client, placed.route, message.key or b""
        assert client is not None
        tally = route.tally
        if placed.choice is not None and placed.reason is None:
            target = placed.choice.target
            stamps = b"".join((route.stamp, U32.pack(len(key)), key, content.STAMP_ID_ENTRY))
            exchange, method = (b"", target.method) if target.is_queue else (target.name, target.method + shorted(key))
        else:
            exchange, stamps = outlet.exchange, content.STAMP_ID_ENTRY
            method = PUBLISH + shorted(exchange) + shorted(key)
            tally = self._count_passed(placed, table)
        if 0 < client.most_body < len(message.body):
            detail = f"body: {len(message.body)} bytes, the broker takes {client.most_body}"
            raise ProblemError(413, "too-large", detail, Outcome.INVALID)
        try:
            client.publish(exchange, method, Header.of(message.properties), stamps, message.body, (*told, tally))
        except ValueError as error:
            raise invalid("headers", str(error)) from None
        except Full as full:
            raise unavailable(str(full)) from None
        link.wake()

    def _count_passed(self, placed: Placed, table: RouteTable) -> Tally:
        if placed.reason is PassReason.CYCLE:
            return table.tallies.of(placed.route.name, PassReason.CYCLE)
        if placed.choice is not None:
            placed.route.tally.shadowed[placed.choice.target.destination] += 1
        return placed.route.tally

    async def _connected(self, lanes: Lanes, link: Link | None) -> None:
        """Waits until that connection, or any, takes publishes, and takes the routes of the cluster it has reached."""
        try:
            if link is None:
                link = await self._publisher.connected(lanes)
            else:
                await self._publisher.cleared(link)
        except Unavailable as error:
            raise unavailable(str(error)) from error
        if lanes.table is None or lanes.table.cluster != link.cluster:
            lanes.table = self._tables.table(lanes.vhost, link.cluster)

    async def _found(self, outlet: Outlet, asked: float) -> tuple[RouteTable, Route]:
        """The route of an exchange that is not known, or not freshly enough; as of now, nothing is awaited after it."""
        lanes = outlet.lanes
        await self._connected(lanes, None)
        assert lanes.table is not None
        if lanes.table.expires < self._router.clock():
            lanes.table.clear()
        if outlet.exchange and outlet.name not in self._router.entries:
            await self._look_up(outlet.name, outlet.name, asked)
        found = lanes.table.find(outlet.exchange)
        while isinstance(found, Unread):
            await self._read(outlet, found, asked)
            found = lanes.table.once(outlet.exchange, asked)
        return lanes.table, found

    def _refuse_internal(self, outlet: Outlet) -> None:
        entry = self._router.entries.get(outlet.name)
        if entry is not None and entry.internal:
            detail = f"exchange: {outlet.name[1]!r} is internal, and takes messages from other exchanges only"
            raise ProblemError(403, "internal-exchange", detail, Outcome.INVALID)

    async def _read(self, outlet: Outlet, unread: Unread, asked: float) -> None:
        if unread.hopeless:
            raise unavailable(unread.why)
        await self._look_up(outlet.name, unread.name, asked)

    async def _look_up(self, name: Name, wanted: Name, asked: float) -> None:
        """Raises ProblemError where the exchange does not exist or cannot be read in time."""
        left = asked + self._lookup_timeout - self._router.clock()
        if left <= 0:
            raise unavailable(f"exchange {wanted[1]!r} could not be read in time")
        try:
            await self._sync.look_up(wanted, left)
        except Absent as absent:
            if wanted == name:
                raise ProblemError(404, "unknown-exchange", f"exchange: {absent}", Outcome.INVALID) from None
            await self._sync.refresh(name, "an exchange behind it is gone")
            raise unavailable(str(absent)) from None
        except NotReadable as error:
            raise unavailable(f"exchange {wanted[1]!r} cannot be read: {error}") from None

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
