"""The cost of the hot modules themselves, without sockets: compiled, and as the Python that they are written in.

`python -m bench.long.in_process` measures those it imports, and prints a line of JSON.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from struct import pack

from bench import BenchError
from bench.tables import table
from bench.world import World, compiled_environment
from proxy.groups.consuming import consumer, links
from proxy.groups.consuming.hidden import Consumer
from proxy.groups.consuming.interceptor import GroupInterceptor
from proxy.groups.consuming.series import Series
from proxy.groups.model import LinkState, Member
from proxy.journal.buffer import Filled, Journal
from proxy.routing.counters import CounterTable
from proxy.routing.routes import RouteTables
from proxy.session import broker_loop, client_loop
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.state import Phase
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import CONSISTENT_HASH, Bindings
from proxy.topology.table import Entry, KnownRing, Router
from proxy.wire import content
from ring.compiled import PURE
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.hashing import SLOTS
from ring.ring import Ring

CHUNK = 64
"""The messages of one read of a socket."""
SIZE, ROUNDS = 128, 2000

JOURNALS = {"none": 0, "of 1% of the keys": SLOTS // 100, "of all": SLOTS}
"""The number of slots that are journalled, by title. A journal's own thread is not measured."""


DELIVERIES = "an ordinary consumer", "a member, stamps", "a member, lanes", "a member in series, lanes"
"""Who gets the deliveries: a consumer of a queue, or a member of a group, and how its shards are published to."""


def in_process(world: World) -> str:
    """Measure publishes to a ring (frames rewritten, stamped, counted) with confirms, and deliveries with acks."""
    del world  # no broker has a part in it
    published, delivered = [], []
    for title, pure in (("compiled", ""), ("pure Python", "1")):
        environment = os.environ | compiled_environment(Path(__file__).parents[2]) | {PURE: pure}
        command = [sys.executable, "-m", "bench.long.in_process"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise BenchError(f"{' '.join(command)}: {ended.stderr}")
        publishes, deliveries = json.loads(ended.stdout)
        published += [[title, journal, *(f"{cost:.2f}" for cost in costs)] for journal, costs in publishes.items()]
        delivered += [[title, who, *(f"{cost:.2f}" for cost in costs)] for who, costs in deliveries.items()]
    acks = "ack of each, µs", f"its part of an ack of {CHUNK}, µs"
    return "\n\n".join(
        [
            table(["modules", "journal", "publish, µs", "confirm, µs"], published),
            table(["modules", "consumer", "delivery, µs", *acks], delivered),
        ]
    )


def main() -> None:
    """Print as JSON the microseconds for a publish and its confirm, by journal, and for a delivery and its ack."""
    publishes = {title: published(slots) for title, slots in JOURNALS.items()}
    print(json.dumps([publishes, {who: delivered(who) for who in DELIVERIES}]))


def published(slots: int) -> tuple[float, float]:
    """Return the median microseconds of a publish and of its confirm, CHUNK messages at a time, one ack for eight."""
    connection = _connection(slots)
    publishes = b"".join(_publish(b"customer-%d" % n) for n in range(CHUNK))
    sent, answered = [], []
    for _ in range(ROUNDS):
        sent.append(_timed(client_loop.from_client, connection, publishes))
        last = connection.channels[1].confirms.number
        acks = b"".join(_ack(number) for number in range(last - CHUNK + 8, last + 1, 8))
        answered.append(_timed(broker_loop.from_broker, connection, acks))
        connection.to_broker.out.clear()
        connection.to_client.out.clear()
    return median(sent), median(answered)


def delivered(who: str) -> tuple[float, float, float]:
    """Return the median microseconds of a delivery, and of its ack alone and together with those of CHUNK - 1 others.

    Deliveries come CHUNK at a time, of a member's shards in turn.
    """
    connection = _connection(0)
    channels = [1] if who == DELIVERIES[0] else _join(connection, in_series=who == DELIVERIES[3])
    exchange = b"\x0borders.lane" if who in DELIVERIES[2:] else b"\0"
    taken, single, multiple, number, tags = [], [], [], 0, dict.fromkeys(channels, 0)
    for turn in range(2 * ROUNDS):
        deliveries = b""
        for n in range(CHUNK):
            channel = channels[n % len(channels)]
            tags[channel] += 1
            deliveries += _delivery(channel, tags[channel], exchange, b"customer-%d" % n)
        connection.now += 0.001
        taken.append(_timed(broker_loop.from_broker, connection, deliveries))
        number += CHUNK
        if turn % 2:
            acks = b"".join(_ack(each, multiple=False) for each in range(number - CHUNK + 1, number + 1))
            single.append(_timed(client_loop.from_client, connection, acks))
        else:
            multiple.append(_timed(client_loop.from_client, connection, _ack(number)))
        connection.to_broker.out.clear()
        connection.to_client.out.clear()
    return median(taken), median(single), median(multiple)


def _timed(feed: Callable[[Connection, bytes], None], connection: Connection, data: bytes) -> float:
    begun = time.perf_counter()
    feed(connection, data)
    return (time.perf_counter() - begun) / CHUNK * 1e6


def _connection(slots: int) -> Connection:
    """Return a session with one channel in confirm mode, a ring of eight queues, and the setting `groups`."""
    ring = Ring.build({Destination("queue", f"orders.{n}"): 1 for n in range(8)})
    router = Router(300.0, False)
    known = KnownRing.of(ring, HashedValue(), CONSISTENT_HASH)
    entry = Entry(Mode.ROUTE, CONSISTENT_HASH, known, None, Bindings(), router.clock())
    router.put(("/", "orders"), entry)
    journal = _journal(slots) if slots else None
    tables = RouteTables(router, Selection(["*"], [], []), CounterTable(), lambda _: "", lambda _: None, journal)
    made = Connection(tables.table, lambda _: None, frozenset())
    made.interceptor = GroupInterceptor(made, lambda vhost, name: True)
    made.phase, made.frame_max, made.handshake.vhost = Phase.RUNNING, 1 << 17, "/"
    made.table = tables.table("/", None)
    made.routes = made.table.routes
    made.channels[1] = channel = Channel(1)
    channel.select(transactional=False)
    return made


def _join(connection: Connection, *, in_series: bool) -> list[int]:
    """Have the client's channel begin a member that consumes from eight shards; return their hidden channels."""
    own, channel = connection.interceptor, connection.channels[1]
    assert isinstance(own, GroupInterceptor)
    numbering = consumer.begin_numbering(own, channel)
    numbering.start()
    own.opened(101, 9)
    member = Member("id", "/", "orders", 1, b"consumer")
    joined = own.consumers[member] = Consumer(member, channel, numbering, b"")
    if in_series:
        joined.series = Series(own.rules, 0)
    for n in range(8):
        links.open_link(own, joined, f"orders.{n}")
    connection.to_broker.take_due()
    for link in member.links.values():
        link.state = LinkState.OPEN
    return [link.channel for link in member.links.values()]


def _journal(slots: int) -> Journal:
    def give_back(filled: Filled) -> None:
        journal.spare.append(filled.records)

    journal = Journal(slots, give_back, time.monotonic)
    return journal


def _frame(kind: int, payload: bytes, channel: int = 1) -> bytes:
    return pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def _publish(key: bytes) -> bytes:
    method = pack(">HHH", 60, 40, 0) + b"\x06orders" + bytes((len(key),)) + key + b"\0"
    header = pack(">HHQH", 60, 0, SIZE, 0x9000) + b"\x18application/octet-stream\x02"
    return _frame(1, method) + _frame(2, header) + _frame(3, b"x" * SIZE)


def _delivery(channel: int, tag: int, exchange: bytes, key: bytes) -> bytes:
    """Return the frames of a delivery as RabbitMQ sends them: from an exchange, or from a queue to which a ring led."""
    entries, shown = b"", key
    if exchange == b"\0":
        entries, shown = content.stamp_of_exchange(b"orders") + pack(">I", len(key)) + key, b"orders.1"
    entries += content.STAMP_ID_FIELD + pack(">Q", tag)
    method = pack(">HH", 60, 60) + b"\x08consumer" + pack(">QB", tag, 0) + exchange + bytes((len(shown),)) + shown
    header = pack(">HHQH", 60, 0, SIZE, 0xB000) + b"\x18application/octet-stream" + pack(">I", len(entries)) + entries
    frames = _frame(1, method, channel), _frame(2, header + b"\x02", channel), _frame(3, b"x" * SIZE, channel)
    return b"".join(frames)


def _ack(number: int, *, multiple: bool = True) -> bytes:
    """Return the frame of a basic.ack of a number, or of all up to it."""
    return _frame(1, pack(">HHQB", 60, 80, number, multiple))


if __name__ == "__main__":
    main()
