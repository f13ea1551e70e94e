"""The exchange and its queues: changed behind the sidecars' backs, written down, emptied."""

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from enum import StrEnum
from itertools import cycle, islice

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError
from pika.spec import Basic

from testbed.node import Node
from tests.chaos.history import Change, Deletion, Flap, History
from tests.chaos.oracle import Copy
from tests.integration.broker_api import BrokerApi

EXCHANGE = "orders"
STEADY = ("orders.1", "orders.2", "orders.3", "orders.4")
"""Never deleted nor unbound."""
CHANGING = ("orders.5", "orders.6", "orders.7", "orders.8")
"""Bound at the start, and some of the time."""
LANED = ("orders.4", "orders.7", "orders.8")
"""Reached through lanes, the others by bindings of their own."""
GOING = tuple(f"orders.{number}" for number in range(9, 15))
"""Bound to be deleted together, and there at no other time."""
MARK = b"the recorder's "
"""How the bodies of its own messages begin."""
ACK_EVERY = 500
MOST_UNACKED = 50_000
"""None may stay behind of what comes while a request is waited for, for seconds in a cluster under load."""
MARK_AGAIN = 5.0
"""Seconds in which nothing comes, after which such a message is sent again."""
QUIET = 3.0
"""Seconds in which everything comes that was sent before a queue was deleted."""
SILENT = 15.0
"""Seconds in which nothing comes, after which another consumer takes over."""
TRIES = 4
FLAPS = 3
"""How many times a queue is made anew and deleted."""
LIVES, GONE = 0.05, 0.2
"""Seconds from its binding to its deletion, and from then until it is made anew. Its messages come back meanwhile, and
the bindings are read.
"""
EMPTIED_WITHIN = 60.0
"""Seconds until each of several queues is emptied as far as it can be while it is published to."""


class End(StrEnum):
    """The further step that follows when a lane is unbound from the exchange."""

    NOTHING = "unbound"
    UNBOUND = "unbound, and unbound from its lane"
    DELETED = "unbound, and its lane deleted"


def lane_of(queue: str) -> str:
    """Return the name of a queue's lane."""
    return queue.replace(f"{EXCHANGE}.", f"{EXCHANGE}.lane.")


class Queues:
    """One exchange with its queues. Every method talks to the broker and blocks; one at a time."""

    def __init__(self, kind: str) -> None:
        """`kind` is of the queues: classic or quorum."""
        self._kind = kind
        self.history = History(dict.fromkeys((*STEADY, *CHANGING), 2))
        self.copies: list[Copy] = []

    def declare(self, node: Node) -> None:
        """All there is at the start."""
        with _connected(node.amqp_url) as connection:
            channel = connection.channel()
            channel.exchange_declare(EXCHANGE, "x-consistent-hash", durable=True)
            for queue, weight in self.history.weights.items():
                self._declare(channel, queue)
                _bind(channel, queue, weight)

    def bind(self, node: Node, queue: str, weight: int) -> None:
        """One that is not bound."""
        with _connected(node.amqp_url) as connection:
            self._made(connection.channel(), queue, weight)

    def unbind(self, node: Node, queue: str, end: End = End.NOTHING) -> None:
        """Unbind a bound queue; `end` says whether its lane then returns messages, or is deleted.

        The exchange is first, so that native publishers lose nothing by it.
        """
        with _connected(node.amqp_url) as connection:
            channel = connection.channel()
            begin = time.monotonic()
            _unbind(channel, queue, self.history.current[queue])
            self._changed(begin, {q: w for q, w in self.history.current.items() if q != queue})
            if end is End.UNBOUND:
                channel.queue_unbind(queue, lane_of(queue), "")
            elif end is End.DELETED:
                begin = time.monotonic()
                channel.exchange_delete(lane_of(queue))
                self.history.lanes_deleted.append(Deletion(queue, begin, time.monotonic()))

    def restore(self, node: Node, killed: float) -> dict[str, int]:
        """Bind again what a node, killed at that time, has lost of the bindings; return what it had kept of them.

        A single node forgets a bind-ok of the last moments (3.10.8, measured: of 1.3 s before, under load), and then
        no publisher reaches that queue.
        """
        kept = _shown(BrokerApi(node.management_url))
        wanted = dict(self.history.current)
        if kept == wanted:
            return kept
        self._changed(killed, kept)
        with _connected(node.amqp_url) as connection:
            channel = connection.channel()
            begin = time.monotonic()
            for queue in kept.keys() | wanted.keys():
                if queue in kept and kept[queue] != wanted.get(queue):
                    _unbind(channel, queue, kept[queue])
                if queue in wanted and kept.get(queue) != wanted[queue]:
                    self._declare(channel, queue)
                    _bind(channel, queue, wanted[queue])
            self._changed(begin, wanted)
        return kept

    def delete(self, node: Node, queue: str) -> None:
        """Delete a queue while it is consumed, so that no message is lost but those on their way at that moment."""
        if queue in LANED and queue in self.history.current:
            # A lane stays where its queue goes, and native publishers would lose what is hashed to it.
            self.unbind(node, queue)
        with self._emptied([node], queue) as taking:
            deletion = taking.delete()
        self.history.deletions.append(deletion)
        if queue in self.history.current:
            self._changed(deletion.begin, {q: w for q, w in self.history.current.items() if q != queue}, deletion.done)

    def delete_together(self, node: Node, queues: Sequence[str], now: Callable[[], None]) -> None:
        """Delete several bound queues at one moment, each while it is consumed; calls `now` just before."""
        lock, ready, begun = threading.Lock(), set[str](), threading.Event()

        def deleted(queue: str) -> Deletion:
            with self._emptied([node], queue) as taking:
                with lock:
                    ready.add(queue)
                    if len(ready) == len(queues):
                        now()
                        begun.set()
                taking.until(begun)
                return taking.delete()

        with ThreadPoolExecutor(len(queues)) as pool:
            deletions = list(pool.map(deleted, queues))
        self.history.deletions += deletions
        left = {queue: weight for queue, weight in self.history.current.items() if queue not in queues}
        self._changed(min(each.begin for each in deletions), left, max(each.done for each in deletions))

    def flap(self, node: Node, through: str, queue: str, weight: int) -> None:
        """Delete a bound queue, and FLAPS times make it anew and delete it a moment later; it is bound in the end.

        The sidecar with the AMQP URL `through` hears the declarations and bindings, and no deletion. Nobody consumes
        the queue while it lives so briefly.
        """
        with _connected(node.amqp_url) as deleting, _connected(through) as making:
            channel, own = deleting.channel(), making.channel()
            begin = time.monotonic()
            self.delete(node, queue)
            for _ in range(FLAPS):
                made = self._made(own, queue, weight)
                time.sleep(LIVES)
                self._deleted(channel, queue, made)
                time.sleep(GONE)
            self._made(own, queue, weight)
            self.history.flaps.append(Flap(queue, begin, time.monotonic()))

    def _made(self, channel: BlockingChannel, queue: str, weight: int) -> float:
        """Declare and bind a queue; return when that began."""
        begin = time.monotonic()
        self._declare(channel, queue)
        _bind(channel, queue, weight)
        self._changed(begin, {**self.history.current, queue: weight})
        return begin

    def _deleted(self, channel: BlockingChannel, queue: str, unread_from: float) -> None:
        """Delete a bound queue that nobody has consumed."""
        begin = time.monotonic()
        channel.queue_delete(queue)
        self.history.deletions.append(Deletion(queue, begin, time.monotonic(), unread_from))
        self._changed(begin, {q: w for q, w in self.history.current.items() if q != queue})

    def drain(self, nodes: Sequence[Node]) -> None:
        """Take every message out of every queue."""
        for queue in (*STEADY, *CHANGING):
            with _connected(nodes[0].amqp_url) as connection:
                self._declare(connection.channel(), queue)
            with self._emptied(nodes, queue):
                pass

    @contextmanager
    def _emptied(self, nodes: Sequence[Node], queue: str) -> Iterator["_Taking"]:
        """Yield a consumer that has taken what was in a queue at the call, and goes on.

        One of a quorum queue may get nothing any more once a node was killed (3.10.8, seen once: 30 s at the end of a
        run, while publishers were confirmed): then another, at the next node.
        """
        seen: set[bytes] = set()
        for node in islice(cycle(nodes), TRIES):
            # Two: one that publishes is not read while there is an alarm, nor are then its acks.
            with _connected(node.amqp_url) as connection, _connected(node.amqp_url) as publishing:
                taking = _Taking(connection, publishing.channel(), queue, self.copies, seen)
                if taking.until_now():
                    yield taking
                    return
            print(f"  nothing came from {queue} by {node.name} for {SILENT:g} s", flush=True)
        raise AssertionError(f"nothing came from {queue}, whoever asked")

    def _declare(self, channel: BlockingChannel, queue: str) -> None:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": self._kind})

    def _changed(self, begin: float, weights: Mapping[str, int], done: float | None = None) -> None:
        self.history.changes.append(Change(begin, time.monotonic() if done is None else done, dict(weights)))


class _Taking:
    """A consumer that writes down what it gets, and acknowledges it then.

    With `no_ack` a quorum queue takes for consumed what its leader has sent, and in a cluster under load that did not
    always arrive (3.10.8, seen once: 20 s of one queue, the native publishers' messages among it).
    """

    def __init__(
        self,
        connection: pika.BlockingConnection,
        marking: BlockingChannel,
        queue: str,
        copies: list[Copy],
        seen: set[bytes],
    ) -> None:
        """`seen` are the bodies that consumers before have written down and may not have acknowledged."""
        self._connection, self._marking = connection, marking
        self._queue, self._copies, self._seen = queue, copies, seen
        self._marks: dict[bytes, float] = {}
        """When each of its own messages was sent, by its body."""
        self._reached = self._cancelled = False
        self._last = self._marked = self._taken_until = time.monotonic()
        """When something came last, when a mark was sent last, and up to when what was in the queue is taken."""
        self._deleting = connection.channel()
        channel = connection.channel()
        channel.add_on_cancel_callback(self._ended)
        channel.basic_qos(prefetch_count=MOST_UNACKED)
        channel.basic_consume(queue, self._taken)

    def until_now(self) -> bool:
        """Return once everything is taken that was in the queue at the call: a message put behind it has come.

        Or, False, once nothing has come for long.

        A queue's length as the broker tells it does not count: a quorum queue that is busy says 0.
        """
        self._put_mark()
        while not self._reached:
            # Again, where nothing comes: one may be lost with the leader of a quorum queue.
            if time.monotonic() - max(self._last, self._marked) > MARK_AGAIN:
                self._put_mark()
            if not self._go_on(SILENT):
                return False
        return True

    def until(self, begun: threading.Event) -> None:
        """Go on taking until the event: what stays in a queue that is then deleted is lost.

        One mark follows the other, so that it is known how far it has come, also on a slow machine.
        """
        end = time.monotonic() + EMPTIED_WITHIN
        while not begun.is_set():
            assert time.monotonic() < end, f"{self._queue} waited for the other queues for {EMPTIED_WITHIN:g} s"
            if self._reached:
                self._put_mark()
            self._connection.process_data_events(0.02)

    def _put_mark(self) -> None:
        mark = MARK + secrets.token_bytes(8)
        self._reached, self._marked = False, time.monotonic()
        self._marks[mark] = self._marked
        self._marking.basic_publish("", self._queue, mark, pika.BasicProperties(delivery_mode=2))

    def delete(self) -> Deletion:
        """Delete the queue, and take what it has sent before.

        Messages that the queue has not sent by then are lost: so the channel is there already, and much may be
        unacknowledged. Not every consumer of a quorum queue is told of the end (3.10.8, measured): then it is once
        nothing has come for a while.
        """
        begin = time.monotonic()
        self._deleting.queue_delete(self._queue)
        self._last = done = time.monotonic()
        while not self._cancelled and self._go_on(QUIET):
            pass
        return Deletion(self._queue, begin, done, self._taken_until)

    def _go_on(self, longest: float) -> bool:
        """Return whether something has come lately."""
        self._connection.process_data_events(0.02)
        return time.monotonic() - self._last < longest

    def _taken(
        self, channel: BlockingChannel, method: Basic.Deliver, properties: pika.BasicProperties, body: bytes
    ) -> None:
        self._last = time.monotonic()
        tag = method.delivery_tag or 0
        if body in self._marks or not tag % ACK_EVERY:
            channel.basic_ack(tag, multiple=True)
        if body.startswith(MARK):
            if body in self._marks:
                self._reached, self._taken_until = True, self._marks[body]
            return
        if method.redelivered and body in self._seen:
            return
        self._seen.add(body)
        headers = properties.headers or {}
        publisher, _, number = body.decode().partition(" ")
        exchange, key = (sys.intern(str(headers.get(f"x-ring-{what}", ""))) for what in ("exchange", "routing-key"))
        if not exchange and method.exchange == lane_of(self._queue):
            # A message that went through its lane has its own routing key, and no such headers.
            exchange, key = EXCHANGE, sys.intern(str(method.routing_key))
        self._copies.append(Copy(self._queue, sys.intern(publisher), int(number), exchange, key))

    def _ended(self, _: object) -> None:
        self._cancelled = True


def _bind(channel: BlockingChannel, queue: str, weight: int) -> None:
    """Bind a queue to the exchange, through its lane if it has one: the lane first, so that nothing is lost there."""
    if queue not in LANED:
        channel.queue_bind(queue, EXCHANGE, str(weight))
        return
    channel.exchange_declare(lane_of(queue), "fanout", durable=True)
    channel.queue_bind(queue, lane_of(queue), "")
    channel.exchange_bind(lane_of(queue), EXCHANGE, str(weight))


def _unbind(channel: BlockingChannel, queue: str, weight: int) -> None:
    """Unbind a queue, or its lane, from the exchange."""
    if queue in LANED:
        channel.exchange_unbind(lane_of(queue), EXCHANGE, str(weight))
    else:
        channel.queue_unbind(queue, EXCHANGE, str(weight))


def _shown(api: BrokerApi) -> dict[str, int]:
    """Return the weights of the queues that the exchange leads to, as the broker shows them."""
    lanes = {lane_of(queue): queue for queue in LANED}
    shown = api.ask("GET", "exchanges", "/", EXCHANGE, "bindings", "source")
    weights = {lanes.get(each["destination"], each["destination"]): int(each["routing_key"]) for each in shown}
    led = {
        queue
        for lane, queue in lanes.items()
        if api.ask("GET", "exchanges", "/", lane, "bindings", "source", missing=[])
    }
    return {queue: weight for queue, weight in weights.items() if queue not in LANED or queue in led}


@contextmanager
def _connected(amqp_url: str) -> Iterator[pika.BlockingConnection]:
    connection = pika.BlockingConnection(pika.URLParameters(amqp_url + "?heartbeat=0"))
    try:
        yield connection
    finally:
        # pika cancels its consumers first, and of a queue that is gone a cluster may answer that with 541.
        with suppress(AMQPError):
            connection.close()
