"""An AMQP consumer that sends exactly the methods a test names, and keeps what the broker sends in a list.

Client libraries send `basic.cancel` before they close, which hides what a bare `channel.close` does.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pamqp import base, body, header
from pamqp.commands import Basic, Channel, Confirm, Connection, Queue
from pamqp.common import FieldTable

from tests.integration.broker_api import DEADLINE_SECONDS
from tests.integration.wire_client import Client, Frame, Wire, publish_frames

T = TypeVar("T")
M = TypeVar("M", bound=base.Frame)

CAPABILITIES: FieldTable = {"consumer_cancel_notify": True, "basic.nack": True, "publisher_confirms": True}


@dataclass(frozen=True)
class Delivery:
    """A message with a decimal number as its body, as a consumer got it. `at` is the monotonic time in seconds."""

    at: float
    channel: int
    consumer_tag: str
    delivery_tag: int
    number: int
    redelivered: bool
    exchange: str
    routing_key: str


@dataclass
class _Pending:
    """A delivery whose content has not come whole."""

    method: Basic.Deliver
    size: int = 0
    data: bytes = b""


@dataclass
class Consumer:
    """One AMQP connection whose frames a thread reads.

    `deliveries` has each message in the order of arrival, and `methods` all other methods that no call has waited for.
    Each delivery to a consumer tag in `acking` is acknowledged as it comes. `ended` is whether the broker has closed.
    """

    wire: Wire
    deliveries: list[Delivery] = field(default_factory=list)
    methods: list[tuple[int, base.Frame]] = field(default_factory=list)
    acking: set[str] = field(default_factory=set)
    ended: bool = False
    _closing: set[int] = field(default_factory=set)
    _prefetch: dict[int, int] = field(default_factory=dict)
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def start(self) -> None:
        self.wire.socket.settimeout(None)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                channel, value = self.wire.read()
            except (EOFError, OSError):
                break
            with self._changed:
                self._take(channel, value)
                self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def _take(self, channel: int, value: Frame) -> None:
        if isinstance(value, Basic.Deliver):
            self._pending[channel] = _Pending(value)
            return
        if isinstance(value, header.ContentHeader) and channel in self._pending:
            self._pending[channel].size = value.body_size
        elif isinstance(value, body.ContentBody) and channel in self._pending:
            self._pending[channel].data += value.value
        elif isinstance(value, base.Frame):
            self.methods.append((channel, value))
            return
        pending = self._pending.get(channel)
        if pending and len(pending.data) == pending.size:
            del self._pending[channel]
            self._deliver(channel, pending)

    def _deliver(self, channel: int, pending: _Pending) -> None:
        method = pending.method
        tag = method.delivery_tag or 0
        self.deliveries.append(
            Delivery(
                time.monotonic(),
                channel,
                method.consumer_tag or "",
                tag,
                int(pending.data),
                bool(method.redelivered),
                method.exchange or "",
                method.routing_key or "",
            )
        )
        if method.consumer_tag in self.acking and channel not in self._closing:
            with contextlib.suppress(OSError):
                self.wire.tell(channel, Basic.Ack(tag))

    def until(self, what: str, look: Callable[[], T | Literal[False] | None], within: float = DEADLINE_SECONDS) -> T:
        """Return the first true result of `look`, which is tried at each frame; fails where there is none in time."""
        deadline = time.monotonic() + within
        with self._changed:
            while (found := look()) is None or found is False:  # a method without fields is false, too
                left = deadline - time.monotonic()
                assert left > 0, f"not within {within:g} s: {what}; {self.methods}"
                self._changed.wait(left)
            return found

    def expect(self, channel: int, kind: type[M]) -> M:
        """Return the first such method on the channel, taken out of `methods`, waiting until it comes."""

        def look() -> M | None:
            for at, (where, value) in enumerate(self.methods):
                if where == channel and isinstance(value, kind):
                    del self.methods[at]
                    return value
            return None

        return self.until(f"{kind.__name__} on channel {channel}", look)

    def tell(self, channel: int, *values: base.Frame) -> None:
        self.wire.tell(channel, *values)

    def ask(self, channel: int, request: base.Frame, answer: type[M]) -> M:
        """Send a method and return its answer."""
        self.tell(channel, request)
        return self.expect(channel, answer)

    def open(self, channel: int, prefetch: int = 0) -> int:
        """Open a channel on which each consumer gets at most `prefetch` unacknowledged messages, 0 for no limit."""
        self.ask(channel, Channel.Open(), Channel.OpenOk)
        self._prefetch[channel] = prefetch
        self.settle(channel)
        return channel

    def consume(
        self,
        channel: int,
        queue: str,
        tag: str,
        priority: int | None = None,
        *,
        acks: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Subscribe and wait for consume-ok. With `acks`, each delivery is acknowledged as it comes."""
        if acks:
            self.acking.add(tag)
        table = dict(arguments or {}) | ({} if priority is None else {"x-priority": priority})
        self.ask(channel, Basic.Consume(0, queue, tag, False, False, False, False, table), Basic.ConsumeOk)

    def withhold(self, mark: int) -> list[int]:
        """Acknowledge nothing from now on; return the numbers of the deliveries from `mark` on, which all are."""
        with self._changed:
            self.acking.clear()
            return [each.number for each in self.deliveries[mark:]]

    def cancel(self, channel: int, tag: str) -> None:
        self.ask(channel, Basic.Cancel(tag, False), Basic.CancelOk)

    def close(self, channel: int) -> None:
        """Close the channel, without a cancel, and wait for close-ok."""
        with self._changed:  # no acknowledgement follows the close: RabbitMQ would end the connection
            self._closing.add(channel)
            self.tell(channel, Channel.Close(200, "", 0, 0))
        self.expect(channel, Channel.CloseOk)
        self._closing.discard(channel)

    def bye(self) -> None:
        """Close the connection, without a cancel."""
        self.ask(0, Connection.Close(200, "", 0, 0), Connection.CloseOk)
        self.drop()

    def drop(self) -> None:
        """Let the socket go, without a word."""
        with contextlib.suppress(OSError):
            self.wire.socket.shutdown(socket.SHUT_RDWR)
        self.wire.close()

    def got(self, tag: str | None = None) -> list[Delivery]:
        """Return what this consumer tag got, or all tags for None."""
        with self._changed:
            return [d for d in self.deliveries if tag in (None, d.consumer_tag)]

    def wait_for(self, count: int, tag: str | None = None) -> list[Delivery]:
        """Return what the tag got, once that is at least so many deliveries."""

        def look() -> list[Delivery] | None:
            found = [d for d in self.deliveries if tag in (None, d.consumer_tag)]
            return found if len(found) >= count else None

        if not count:
            return self.got(tag)
        return self.until(f"{count} deliveries to {tag}", look)

    def settle(self, channel: int) -> None:
        """Return once the broker has read all that was sent on this channel, and this has what it sent there before.

        The broker's answer comes behind the deliveries of a queue on the same node.
        """
        self.ask(channel, Basic.Qos(0, self._prefetch[channel], False), Basic.QosOk)

    def refusal(self) -> tuple[int, int, str]:
        """Wait for the broker's close, and return its channel, 0 for the connection, its code and its text."""

        def look() -> tuple[int, int, str] | None:
            for channel, value in self.methods:
                if isinstance(value, Channel.Close | Connection.Close):
                    return channel, value.reply_code or 0, value.reply_text
            return None

        return self.until("a close from the broker", look)


def runs(deliveries: Iterable[Delivery]) -> str:
    """Return the numbers as runs such as `0-9R 10-29`; R marks those that were redelivered."""
    found: list[list[int]] = []
    for d in deliveries:
        if found and found[-1][1] + 1 == d.number and found[-1][2] == d.redelivered:
            found[-1][1] = d.number
        else:
            found.append([d.number, d.number, d.redelivered])
    return " ".join((f"{a}-{b}" if a != b else f"{a}") + ("R" if again else "") for a, b, again in found)


@contextmanager
def consumers(client: Client, port: int, vhost: str, count: int = 1, **options: Any) -> Iterator[list[Consumer]]:
    """Yield so many connections; their sockets are closed at the end of the block."""
    options.setdefault("capabilities", CAPABILITIES)
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            consumer = Consumer(stack.enter_context(client.session(port, vhost, **options)))
            stack.callback(consumer.drop)
            consumer.start()
            made.append(consumer)
        yield made


@dataclass(frozen=True)
class Behaviour:
    """The differences between RabbitMQ's versions, as seen on 3.10.8, 4.0.5 and 4.3.6 with quorum queues."""

    raises: bool
    """A waiting consumer of a higher priority takes over while the active one lives."""
    leaves_ghosts: bool
    """A consumer whose channel ends while it gives way to another one stays among those that wait."""
    timeout_cancels: bool
    """The consumer timeout cancels the consumer; elsewhere it closes the channel."""
    nacks_count: bool
    """A nack counts towards the delivery limit, as the end of a channel does."""
    default_limit: int | None
    """The number of returns of a message that are allowed on a queue without a limit of its own."""
    global_qos: bool
    """A consumer of a quorum queue is let in on a channel with a global prefetch."""
    names_right: bool
    """A refusal names the missing right: configure, write or read."""
    refuses_pseudo_queue: bool
    """The sharding plugin refuses to bind, unbind, purge or delete its pseudo-queue; elsewhere the connection ends."""
    cuts_bytes: bool
    """A refusal's text is cut at 255 bytes; elsewhere at 255 characters, which may be more bytes than fit a frame."""
    breaks_auto_delete: bool
    """An auto-delete exchange breaks if one is bound to it while another takes the last binding away."""


_SEEN = {
    (3, 10): Behaviour(False, False, False, True, None, False, False, False, True, False),
    (4, 0): Behaviour(True, False, False, True, 20, False, True, True, False, False),
    (4, 3): Behaviour(True, True, True, False, 20, True, True, True, False, True),
}


def behaviour(version: str) -> Behaviour:
    """Return what is known of the newest version of the table that is not newer than this one."""
    major, minor, *_ = version.split(".")
    known = [seen for least, seen in _SEEN.items() if least <= (int(major), int(minor))]
    return known[-1]


@dataclass
class Shard:
    """A queue with single active consumer in a virtual host, whose messages are the numbers from 0 on."""

    name: str
    peer: Consumer
    published: int = 0
    _confirmed: set[int] = field(default_factory=set)

    def publish(self, count: int) -> None:
        """Publish the next numbers, and return once the queue has them."""
        self.send(count)
        self.confirm()

    def send(self, count: int) -> None:
        """Publish the next numbers, and wait for nothing."""
        numbers = range(self.published, self.published + count)
        properties = Basic.Properties(delivery_mode=2)
        self.peer.wire.send(*(b"".join(publish_frames(1, "", self.name, b"%d" % n, properties)) for n in numbers))
        self.published += count

    def confirm(self) -> None:
        """Return once the queue has all that was published."""

        def confirmed() -> bool:
            for channel, value in self.peer.methods:
                assert isinstance(value, Basic.Ack), (channel, value)
                self._confirmed |= set(range(1, value.delivery_tag + 1)) if value.multiple else {value.delivery_tag}
            self.peer.methods.clear()
            return len(self._confirmed) == self.published

        self.peer.until("confirms", confirmed)


def shard(peer: Consumer, name: str, kind: str = "quorum", **arguments: Any) -> Shard:
    """Declare the queue over an open connection of its own, whose channel 1 publishes."""
    table: FieldTable = {"x-queue-type": kind, "x-single-active-consumer": True, **arguments}
    peer.open(1)
    peer.ask(1, Queue.Declare(0, name, durable=True, arguments=table), Queue.DeclareOk)
    peer.ask(1, Confirm.Select(), Confirm.SelectOk)
    return Shard(name, peer)


Connect = Callable[[], Consumer]
Declare = Callable[..., Shard]


def holder(connect: Connect, queue: Shard, prefetch: int, priority: int = 1) -> Consumer:
    """Return A, which consumes on channel 2, has been given as many messages as its prefetch, and acknowledges none."""
    a = connect()
    a.open(1)
    a.open(2, prefetch)
    a.consume(2, queue.name, "A", priority)
    queue.publish(prefetch)
    a.wait_for(prefetch)
    return a


def waiting(connect: Connect, queue: Shard, priority: int = 1, prefetch: int = 10) -> Consumer:
    """Return B, which consumes on channel 2, too, and acknowledges at once."""
    b = connect()
    b.open(2, prefetch)
    b.consume(2, queue.name, "B", priority, acks=True)
    return b


LEAVING: dict[str, Callable[[Consumer], None]] = {
    "channel.close": lambda a: a.close(2),
    "connection.close": lambda a: a.bye(),
    "the socket drops": lambda a: a.drop(),
}
"""The ways to leave without a cancel, for a member that consumes on channel 2."""
