"""The dispatch of every HTTP publish, single or of a batch: it finds the broker connection for a message."""

# mypyc: compiled

from collections import Counter
from collections.abc import Coroutine
from typing import Any, NamedTuple

from mypy_extensions import mypyc_attr

from proxy.http.formats.message import Message
from proxy.http.formats.problems import (
    ProblemError,
    invalid,
    no_routing_key,
    refused,
    too_large,
    unavailable,
    unknown_exchange,
)
from proxy.http.sending.journal_receiver import JournalReceiver
from proxy.http.sending.trace_receiver import TraceReceiver
from proxy.journal.buffer import Journal, Record
from proxy.outcome import Outcome
from proxy.publisher.channel import PublishResult, Receiver
from proxy.publisher.connection import BrokerConnection
from proxy.publisher.pool import ConnectionGroup, Login, Publisher, TooManyGuests, Unavailable
from proxy.publisher.protocol import Full, PublisherProtocol
from proxy.routing.counters import Counters
from proxy.routing.route import PUBLISH, Choice, Route
from proxy.routing.routes import RouteTable, RouteTables
from proxy.settings.patterns import Mode
from proxy.topology.bindings import RING_TYPES, grouped_by
from proxy.topology.lookups import Absent, NotReadable
from proxy.topology.readings import Readings
from proxy.topology.table import Name, PassReason, Router, Unread
from proxy.tracing.context import TRACEPARENT, parent_in
from proxy.tracing.tracer import Kind, Span, Tracer
from proxy.wire import table as field_table
from proxy.wire.frames import NOT_FOUND, shorted
from proxy.wire.properties import Header
from ring.destination import Destination
from ring.hashing import index_at, slot_of

OrderingKey = bytes | int | None
"""The value that messages share if they must stay in order: a routing key, or the slot of another hashed value."""


class ExchangeHandle(NamedTuple):
    """The exchange that a request publishes to, and the broker connections that its messages go out on."""

    name: Name
    group: ConnectionGroup
    exchange: bytes


class Placement:
    """The place to which one message was sent: a destination of a ring, or, for a reason, the exchange itself."""

    __slots__ = ("choice", "reason", "route")

    def __init__(self, route: Route, choice: Choice | None, reason: PassReason | None) -> None:
        """Keep a ring's choice, or the reason to pass; with SHADOW or SHARE `choice` is what the ring would choose."""
        self.route, self.choice, self.reason = route, choice, reason

    @property
    def where(self) -> Destination | None:
        """The destination that a ring chose; None for the exchange itself."""
        return self.choice.target.destination if self.choice is not None and self.reason is None else None

    @property
    def sent_as(self) -> Destination | None:
        """The destination that the publish names: the lane, if one leads to `where`; None for the exchange itself."""
        return self.choice.target.sent_as if self.choice is not None and self.reason is None else None

    @property
    def chosen_by(self) -> Name:
        """The exchange whose ring chose the destination, which may be behind another; else the route's own exchange."""
        return self.choice.by.name if self.choice is not None and self.reason is None else self.route.name

    def ordering_key(self, key: bytes | None) -> OrderingKey:
        """Return the ordering key of the message, whose routing key is `key`: messages that share it stay in order."""
        choice, route = self.choice, self.route
        # Messages to an upstream exchange may have different routing keys, and the same value that a ring hashes.
        by = choice.by if choice is not None and route.matcher is not None else route
        return key if by.hashed is None or choice is None else choice.slot


class Chosen(NamedTuple):
    """The place of a key: a ring's choice, or a reason to pass, or with SHADOW and SHARE both."""

    choice: Choice | None
    reason: PassReason | None


def _chosen_by(table: RouteTable, route: Route | Unread, key: bytes) -> Chosen | Unread:
    """Return which destination a route chooses for a routing key, or the exchange that must be read first.

    The choice is None, with the reason, where publishes are passed. Nothing is published: the question comes from a
    request that only wants to know where a message would go.
    """
    if isinstance(route, Unread):
        return route
    if not route.stamp:
        return Chosen(None, route.reason)
    if not route.plain:
        table.use(route)
    choice = route.choose(key, b"", 0, 0)
    if choice is None:
        return Chosen(None, route.why_passed(key, b"", 0, 0))
    return choice.target.unread or Chosen(choice, choice.by.reason)


@mypyc_attr(allow_interpreted_subclasses=True)  # as tests have them
class Dispatch:
    """The way of every HTTP publish: it routes messages and hands them to the publisher's connections."""

    def __init__(self, router: Router, readings: Readings, tables: RouteTables, publisher: Publisher) -> None:
        """Take the parts that are asked; `tables` count as HTTP."""
        self._router, self._readings, self._tables, self._publisher = router, readings, tables, publisher
        self.coming_back: Counter[Name] = Counter()
        """How many messages came back and are to be sent again, by exchange."""

    async def check(self, handle: ExchangeHandle) -> None:
        """Wait until it is known where an exchange's messages go. Raises ProblemError 403, 404 or 503."""
        since = self._router.clock()
        while not isinstance(step := self._route(handle, since), Route):
            await step
        while (reading := self._unread_if_closed(handle, since)) is not None:
            await reading

    async def exchange_handle(self, name: Name, login: Login | None = None) -> ExchangeHandle:
        """Return the handle by which to publish to an exchange, as this sidecar's own user or another.

        Raises ProblemError if there is no such exchange. Clients choose the name, so an unknown one opens no
        connection. For another user the broker checks the login first, if MOST_GUESTS allows.
        """
        if login is None and self._must_be_read(name):
            await self.look_up(name, name, self._router.clock())
        try:
            return ExchangeHandle(name, self._publisher.group(name[0], login), name[1].encode())
        except TooManyGuests as error:
            raise ProblemError(429, "too-many", str(error), Outcome.REJECTED, retryable=True) from None

    async def log_in(self, handle: ExchangeHandle) -> None:
        """Wait until the broker has let in the handle's user.

        Raises ProblemError 503, caused by LoginRefused if the broker has refused.
        """
        connection = handle.group.connection
        if connection.protocol is None:
            await self._cleared(connection, self._router.clock())

    def _must_be_read(self, name: Name) -> bool:
        """Return whether an exchange must be read before a connection is used for it.

        An exchange in shadow mode need not be read if this sidecar is connected to its virtual host: the broker then
        says whether it exists. It does not say whether only sidecars publish to the exchange.
        """
        if name in self._router.entries:
            return False
        shadowed = self._tables.selection.mode(*name) is Mode.SHADOW and self._publisher.serves(name[0])
        return not shadowed or bool(grouped_by(name[1]))

    async def send(self, handle: ExchangeHandle, message: Message, receiver: Receiver, index: int) -> Placement:
        """Publish the message of a request that has only one, and return its place; a batch calls `attempt` for each.

        Waits only until the exchange is looked up and the broker connected: the result comes to `receiver`, with
        `index`. Raises ProblemError if nothing was sent.
        """
        since = self._router.clock()
        while not isinstance(step := self.attempt(handle, message, receiver, index, since), Placement):
            assert step is not None  # it is behind nothing
            await step
        return step

    def attempt(
        self,
        handle: ExchangeHandle,
        message: Message,
        receiver: Receiver,
        index: int,
        since: float,
        behind: str | None = None,
    ) -> Placement | Coroutine[Any, Any, None] | None:
        """Publish a message at once and return its place, or return what must be awaited before the next attempt.

        `since` is when the first attempt was, monotonic. `behind` is the digest (`Route.digest`) of messages that
        are not settled, None if there are none; if the message would go by another one, the result is None. Raises
        ProblemError if there is no use in another attempt.
        """
        route = self._route(handle, since)
        if not isinstance(route, Route):
            return route
        if behind is not None and route.digest != behind:
            return None
        group, key = handle.group, message.key or b""
        if message.key is None and (route.hashed is None or not route.stamp):
            raise no_routing_key("Routing-Key", "in this header or as ?key=")
        if route.plain:
            slot = slot_of(key)
            choice = Choice(route.targets[index_at(route.owners, slot)], route, slot, key, False, False)
            placement = Placement(route, choice, None)
        else:
            if (reading := self._unread_if_closed(handle, since)) is not None:
                return reading
            placement = self._place(route, key, message)
            slot = placement.choice.slot if placement.choice is not None else slot_of(key)
            if placement.choice is not None and placement.choice.target.unread is not None:
                return self._read(handle.name, placement.choice.target.unread, since)
        connection = group.connections[slot % len(group.connections)]
        if not connection.clear:
            return self._cleared(connection, since)
        if route.reason is not PassReason.TYPE and not route.fixed and self._tables.mismatch(connection.cluster):
            return self._same_cluster(connection, since)
        self._publish(connection, placement, handle, message, (receiver, index))
        return placement

    async def choose(self, name: Name, key: bytes) -> Chosen:
        """Return where a publish to an exchange goes if its ring hashes `key`, a routing key or another value.

        Nothing is published. Raises ProblemError if the exchange does not exist, cannot be read in time, or takes
        no publishes.
        """
        since = self._router.clock()
        while isinstance(found := self._choose(name, key, since), Unread):
            await self._read(name, found, since)
        return found

    def _choose(self, name: Name, key: bytes, since: float) -> Chosen | Unread:
        """Return which destination a key has at an exchange, or the exchange that must be read first; see `choose`."""
        entry = self._router.look(name, since)
        if isinstance(entry, Unread):
            return entry
        if (entry.known is None and entry.upstream is None) or entry.passed not in (None, PassReason.SHADOW):
            return Chosen(None, entry.passed or PassReason.NO_BINDINGS)
        table, exchange = self._tables.table(name[0], None), name[1].encode()
        if table.expires < self._router.clock():
            table.clear()
        found = _chosen_by(table, table.find(exchange), key)
        return _chosen_by(table, table.once(exchange, since), key) if isinstance(found, Unread) else found

    def ordering_key_of(self, handle: ExchangeHandle, message: Message) -> OrderingKey:
        """Return the ordering key of a message that has not been routed."""
        route = self._table(handle.group).find(handle.exchange)
        if isinstance(route, Unread) or (route.hashed is None and route.matcher is None):
            return message.key
        return self._place(route, message.key or b"", message).ordering_key(message.key)

    def _table(self, group: ConnectionGroup) -> RouteTable:
        """Return the routes of the virtual host, whatever the broker's cluster: that is checked for each publish."""
        if group.table is None:
            group.table = self._tables.table(group.vhost, None)
        return group.table

    def _place(self, route: Route, key: bytes, message: Message) -> Placement:
        """Return the placement of a message whose route is not plain.

        A route that is not plain hashes another value than the key, leads to further rings, or passes its publishes.
        """
        if not route.stamp:
            return Placement(route, None, route.reason)
        header = message.header.payload(len(message.body))
        choice = route.choose(key, header, 0, len(header))
        if choice is None:
            return Placement(route, None, route.why_passed(key, header, 0, len(header)))
        if choice.by.shadowed:
            return Placement(choice.by, choice, choice.by.reason)
        return Placement(route, choice, None)

    def _publish(
        self,
        connection: BrokerConnection,
        placement: Placement,
        handle: ExchangeHandle,
        message: Message,
        confirm_to: tuple[Receiver, int],
    ) -> None:
        """Hand a message whose place is known to a connection, and count it.

        `confirm_to` has the receiver of the broker's answer, and its index for the message. Raises ProblemError 413 for
        a body larger than the broker takes.
        """
        protocol, route, key = connection.protocol, placement.route, message.key or b""
        assert protocol is not None
        counters = route.counters
        if placement.choice is not None and placement.reason is None:
            target = placement.choice.target
            # Through a lane the ring id is the only stamp: consumers see the message's own routing key.
            stamp = b"" if target.is_lane else route.stamp
            exchange, method = target.exchange, target.method + shorted(key) if target.exchange else target.method
        else:
            exchange, stamp = handle.exchange, b""
            method = PUBLISH + shorted(exchange) + shorted(key)
            counters = self._count_passed(placement)
        if 0 < protocol.most_body < len(message.body):
            detail = f"message size {len(message.body)} is larger than configured max size {protocol.most_body}"
            # In the broker's words, who answered so the first time.
            raise too_large(f"body: PRECONDITION_FAILED - {detail}")
        if route.journal is not None and placement.choice is not None and placement.choice.slot < route.journal.limit:
            confirm_to = self._journalled(route.journal, placement, placement.choice, message, confirm_to), 0
        span = _traced(route.tracer, placement, message) if route.tracer is not None else None
        try:
            if span is None or not _sent_traced(span, protocol, exchange, method, stamp, message, confirm_to, counters):
                protocol.publish(exchange, method, message.header, stamp, key, message.body, (*confirm_to, counters))
        except ValueError as error:
            raise invalid("headers", str(error)) from None
        except Full as error:
            raise unavailable(str(error)) from None
        if placement.choice is not None:
            route.counters.value_missing += placement.choice.missing
            if placement.reason is None:
                placement.choice.target.tally.count += 1
        connection.wake()

    def _journalled(
        self, journal: Journal, placement: Placement, choice: Choice, message: Message, confirm_to: tuple[Receiver, int]
    ) -> JournalReceiver:
        """Return a receiver that records the message in the journal before it passes the broker's answer on."""
        header = message.header.payload(len(message.body))
        record = Record("http", placement.route.name, header, 0, len(header), journal.clock())
        choice.tell(record, placement.where)
        return JournalReceiver(journal, record, confirm_to[0], confirm_to[1])

    def _count_passed(self, placement: Placement) -> Counters:
        """Return the counters for a message that goes to the exchange itself; count where its ring would have sent it.

        Only a placement with the reason SHADOW or SHARE has such a choice.
        """
        route = placement.route
        if placement.reason is not route.reason:
            return self._tables.counter_table.of(route.name, placement.reason)
        if placement.choice is not None:
            route.counters.shadowed[placement.choice.target.destination] += 1
        return route.counters

    async def _cleared(self, connection: BrokerConnection, since: float) -> None:
        """Wait until a connection takes publishes. Raises ProblemError 503."""
        try:
            await self._publisher.cleared(connection, self._readings.left(since))
        except Unavailable as error:
            problem = unavailable(str(error))
            problem.__cause__ = error  # mypyc knows no `raise ... from`
            raise problem from error

    async def _same_cluster(self, connection: BrokerConnection, since: float) -> None:
        """Ask the management API again whether the connection's broker is of its cluster, which may have been renamed.

        Raises ProblemError if the broker is not of that cluster.
        """
        told, told_at = connection.cluster, connection.cluster_told_at
        name = await self._readings.confirmed(told, told_at, since)
        if connection.cluster_told_at != told_at:
            return  # connected anew meanwhile
        if name is not None:
            connection.cluster = name
            return
        connection.doubt()
        raise unavailable(self._tables.mismatch(told or ""))

    def _route(self, handle: ExchangeHandle, since: float) -> Route | Coroutine[Any, Any, None]:
        """Return the route of an exchange, or what must be awaited before it is known."""
        group, exchange = handle.group, handle.exchange
        table = self._table(group)
        route = table.routes.get(exchange)
        if table.expires < self._router.clock():
            table.clear()
        elif route is not None:
            return route
        if group.guest and group.connection.protocol is None:
            # The broker judges him before he learns what there is.
            return self._cleared(group.connection, since)
        if exchange and self._must_be_read(handle.name):
            return self.look_up(handle.name, handle.name, since)
        found = table.find(exchange)
        if isinstance(found, Unread):
            found = table.once(exchange, since)
        return found if isinstance(found, Route) else self._read(handle.name, found, since)

    def _read(self, name: Name, unread: Unread, since: float) -> Coroutine[Any, Any, None]:
        """Return the look-up that a publish to `name` must await. Raises ProblemError if no look-up helps."""
        if unread.refused:
            raise refused(unread.name, unread.why)
        return self.look_up(name, unread.name, since)

    def _unread_if_closed(self, handle: ExchangeHandle, since: float) -> Coroutine[Any, Any, None] | None:
        """Return the look-up that must show whether an exchange takes publishes; None if it is known that it does.

        Raises ProblemError 403 if the exchange takes none, or only those of sidecars, and 503 if that cannot be known.
        This sidecar's own user may write to an exchange that balances a group, and the sidecars would take the message
        for one of their own. For any other user the broker checks the right to write.
        """
        name, entry = handle.name, self._router.entries.get(handle.name)
        if entry is not None and entry.internal:
            detail = f"exchange: {name[1]!r} is internal, and takes messages from other exchanges only"
            raise ProblemError(403, "internal-exchange", detail, Outcome.INVALID)
        exchange_type = entry.exchange_type if entry is not None else None
        grouped = "" if handle.group.guest else grouped_by(name[1], exchange_type)
        if not grouped:
            return None
        if entry is None:
            return self.look_up(name, name, since)
        if entry.restored:
            # The file does not tell whether the exchange balances a group, and that may have changed since.
            raise unavailable(f"exchange {name[1]!r} has not been read since the start: it may balance a group")
        ring = self._router.entries.get((name[0], grouped))
        has_ring = ring is not None and ring.exchange_type in RING_TYPES
        # The hash exchange may have been made after the reading that `balances` is of.
        if entry.balances or has_ring:
            what = f"to balance the consumer group of {grouped!r}"
            raise ProblemError(
                403, "forbidden", f"exchange: only sidecars publish to {name[1]!r}, {what}", Outcome.INVALID
            )
        return None

    async def look_up(self, name: Name, wanted: Name, since: float) -> None:
        """Wait until the exchange `wanted` has been read, for which publishes to `name` wait since `since`, monotonic.

        Raises ProblemError if the exchange does not exist or cannot be read in time.
        """
        readings = self._readings
        if readings.left(since) <= 0:
            raise unavailable(
                f"exchange {wanted[1]!r} could not be read within {readings.lookup_timeout:g} s (lookup_timeout)"
            )
        try:
            await readings.look_up(wanted, since)
        except Absent as absent:
            if wanted == name:
                raise unknown_exchange(f"exchange: {absent}") from None
            ways = self._tables.table(name[0], None).ways_to(wanted[1], name[1].encode())
            await readings.read_ways_again(ways, wanted[1], since)
            raise unavailable(str(absent)) from None
        except NotReadable as error:
            raise unavailable(f"exchange {wanted[1]!r} cannot be read: {error}") from None

    def goes_again(self, handle: ExchangeHandle, message: Message, placement: Placement, since: float) -> bool:
        """Return whether a message that had come back by `since`, monotonic, is to be sent again.

        Either it would be sent elsewhere now, or the ring still chooses the same queue by a reading that began after
        the message came back: then the queue was declared and bound anew (`proxy/session/publishing/placement.py`).
        """
        table = self._table(handle.group)
        route = table.find(handle.exchange)
        if isinstance(route, Unread):
            return True
        now = self._place(route, message.key or b"", message)
        if now.sent_as != placement.sent_as:
            return True
        return now.where is not None and now.where.kind == "queue" and table.read_at(now.chosen_by) > since

    def came_back(self, placement: Placement, result: PublishResult) -> bool:
        """Return whether a message is surely in no queue, so that it may be sent again.

        It was returned, or the exchange that its ring chose does not exist. In the latter case the next publishes wait
        for the ring to be read.
        """
        if result.code == NOT_FOUND and placement.sent_as is not None:
            self._readings.scheduler.found_missing(placement.route.name[0], placement.sent_as.name)
            return result.outcome is Outcome.INVALID
        return result.outcome is Outcome.UNROUTABLE

    def comes_back(self, handle: ExchangeHandle, by: int) -> None:
        """Count one message more, or one less, that came back and is to be sent again."""
        coming_back = self.coming_back
        coming_back[handle.name] += by
        if not coming_back[handle.name]:
            del coming_back[handle.name]

    def count_rerouted(self, placement: Placement) -> None:
        """Count a message that came back from `placement` and was sent again."""
        self._tables.counter_table.of(placement.route.name, None).rerouted += 1

    async def read_again(self, placement: Placement, why: str) -> None:
        """Read the ring of a message that did not reach its queue again: the next try finds the new one.

        It waits no longer than a look-up may take.
        """
        await self._readings.read_again({placement.route.name, placement.chosen_by}, why, placement.sent_as)


def _traced(tracer: Tracer, placement: Placement, message: Message) -> Span | None:
    """Return the span of a message that is about to be sent, begun; None if it is not of the sample."""
    headers = message.header.headers
    parent = parent_in(headers, 0, len(headers))
    if not tracer.takes(parent):
        return None
    header, where = message.header.payload(len(message.body)), placement.where
    destination = where.name if where is not None else ""
    name, key = placement.route.name, message.key or b""
    return tracer.publish(name, key, destination, header, 0, len(header), parent, Kind.PRODUCER)


def _sent_traced(
    span: Span,
    protocol: PublisherProtocol,
    exchange: bytes,
    method: bytes,
    stamp: bytes,
    message: Message,
    confirm_to: tuple[Receiver, int],
    counters: Counters,
) -> bool:
    """Hand a message that names its span to a connection; return whether it fits a frame, and else forget the span.

    Raises Full.
    """
    header, pending = _naming(span, message.header), (TraceReceiver(span, *confirm_to), 0, counters)
    try:
        protocol.publish(exchange, method, header, stamp, message.key or b"", message.body, pending)
    except (ValueError, Full) as error:
        span.forget()
        if isinstance(error, Full):
            raise
        return False
    return True


def _naming(span: Span, header: Header) -> Header:
    """Return a message's header with a span in the place of the one that its request named."""
    kept, _ = field_table.without(header.headers, 0, len(header.headers), (TRACEPARENT,))
    return header._replace(headers=kept + span.field)
