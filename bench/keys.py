"""The keys that change their queue when one of ten queues is removed or one is added, by each way to hash them."""

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.spec import Basic, BasicProperties

from bench import BenchError, direct
from bench.amqp import CONSISTENT, MODULUS
from bench.tables import table
from bench.world import World
from proxy.wire.content import STAMP_KEY

KEYS = [f"key-{number}" for number in range(3000)]
QUEUES = [f"q{number}" for number in range(10)]
ADDED = f"q{len(QUEUES)}"
RING = "ringproxy"

_TRANSIENT = 1
_DELIVERED_WITHIN = 10.0

Places = dict[str, str]
"""The queue of each key."""


class Hashing(NamedTuple):
    """One way to find the queue of a key."""

    title: str
    exchange_type: str
    binding_key: str
    amqp_url: str
    """The broker's address, or a sidecar's."""


def keys(world: World) -> str:
    """Measure which share of the keys each change moves; return the section."""
    ways = [Hashing(CONSISTENT, "x-consistent-hash", "1", world.node.amqp_url)]
    if world.has_modulus:
        ways.append(Hashing(MODULUS, "x-modulus-hash", "", world.node.amqp_url))
    ways.append(Hashing(RING, "x-consistent-hash", "1", world.sidecar.amqp_url))
    removed = {way.title: [_moved_by_removing(way, queue) for queue in QUEUES] for way in ways}
    added = {way.title: _moved_by_adding(way) for way in ways}
    summary = [
        [title, _percent(statistics.mean(each)), _range(each), _percent(added[title])]
        for title, each in removed.items()
    ]
    each_queue = [
        [f"{number} of {len(QUEUES)}", *(_percent(removed[way.title][number - 1]) for way in ways)]
        for number in range(1, len(QUEUES) + 1)
    ]
    heads = ["keys that move", f"remove 1 of {len(QUEUES)} queues, mean", "least to most", "add 1"]
    told = (
        f"{len(KEYS):,} keys are published to {len(QUEUES)} queues of equal weight, and again after the change. A key"
        f" moves when its second message is in another queue. Each of the {len(QUEUES)} queues is removed once, from a"
        " new exchange each time."
    )
    return "\n\n".join([told, table(heads, summary), table(["removed, as bound", *removed], each_queue)])


def _moved_by_removing(way: Hashing, queue: str) -> float:
    """Return the share of the keys that are in another queue once this queue is unbound."""
    with _exchange(way, f"keys.without-{queue}") as (channel, exchange):
        before = _places(channel, way, exchange)
        channel.queue_unbind(queue, exchange, way.binding_key)
        after = _places(channel, way, exchange)
    if queue not in before.values() or queue in after.values():
        raise BenchError(f"{way.title}: {queue} was not removed while its keys were published")
    return _moved(before, after)


def _moved_by_adding(way: Hashing) -> float:
    """Return the share of the keys that are in another queue once one more queue is bound."""
    with _exchange(way, "keys.with-one-more") as (channel, exchange):
        before = _places(channel, way, exchange)
        channel.queue_bind(ADDED, exchange, way.binding_key)
        after = _places(channel, way, exchange)
    if ADDED not in after.values():
        raise BenchError(f"{way.title}: {ADDED} was not added before the keys were published")
    return _moved(before, after)


def _moved(before: Places, after: Places) -> float:
    return sum(after[key] != queue for key, queue in before.items()) / len(before)


@contextmanager
def _exchange(way: Hashing, name: str) -> Iterator[tuple[BlockingChannel, str]]:
    """Declare an exchange with the queues bound to it in order; delete both at the end."""
    connection = pika.BlockingConnection(pika.URLParameters(way.amqp_url))
    channel, exchange = connection.channel(), f"{name}.{way.title.split()[-1]}"
    channel.exchange_declare(exchange, way.exchange_type, durable=True)
    for queue in (*QUEUES, ADDED):
        channel.queue_declare(queue, durable=True)
    for queue in QUEUES:
        channel.queue_bind(queue, exchange, way.binding_key)
    try:
        yield channel, exchange
    finally:
        channel.exchange_delete(exchange)
        for queue in (*QUEUES, ADDED):
            channel.queue_delete(queue)
        connection.close()


def _places(channel: BlockingChannel, way: Hashing, exchange: str) -> Places:
    """Publish every key once, take all messages from the queues, and return where each key's message was."""
    _publish(way.amqp_url, exchange)
    found: Places = {}

    def delivered(_: BlockingChannel, method: Basic.Deliver, properties: BasicProperties, __: bytes) -> None:
        original = (properties.headers or {}).get(STAMP_KEY.decode(), method.routing_key)
        found[str(original)] = queue_of[str(method.consumer_tag)]

    queue_of = {str(channel.basic_consume(queue, delivered, auto_ack=True)): queue for queue in (*QUEUES, ADDED)}
    deadline = time.monotonic() + _DELIVERED_WITHIN
    while len(found) < len(KEYS):
        if time.monotonic() > deadline:
            raise BenchError(f"{way.title}: {len(found)} of {len(KEYS)} keys were delivered")
        channel.connection.process_data_events(time_limit=0.1)
    for tag in queue_of:
        channel.basic_cancel(tag)
    return found


def _publish(amqp_url: str, exchange: str) -> None:
    """Publish every key once, in one write, and return when all are confirmed."""
    confirmed = direct.Confirmed()
    with direct.connect(amqp_url) as sock:
        sock.sendall(b"".join(direct.message(key, _TRANSIENT, exchange) for key in KEYS))
        while confirmed.upto < len(KEYS):
            confirmed.feed(direct.received(sock))


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _range(shares: Sequence[float]) -> str:
    return f"{_percent(min(shares))} to {_percent(max(shares))}"
