"""What the hot modules themselves cost, without sockets: compiled, and as the Python that they are written in.

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


def in_process(world: World) -> str:
    """Measure one publish to a ring (frames rewritten, stamped, counted) and its confirm; return the section."""
    del world  # no broker has a part in it
    rows = []
    for title, pure in (("compiled", ""), ("pure Python", "1")):
        environment = os.environ | compiled_environment(Path(__file__).parents[2]) | {PURE: pure}
        command = [sys.executable, "-m", "bench.long.in_process"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise BenchError(f"{' '.join(command)}: {ended.stderr}")
        for journal, costs in json.loads(ended.stdout).items():
            rows.append([title, journal, *(f"{cost:.2f}" for cost in costs)])
    return table(["modules", "journal", "publish, µs", "confirm, µs"], rows)


def main() -> None:
    """Print the microseconds for a publish and for its confirm, by journal, as JSON."""
    print(json.dumps({title: measured(slots) for title, slots in JOURNALS.items()}))


def measured(slots: int) -> tuple[float, float]:
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


def _timed(feed: Callable[[Connection, bytes], None], connection: Connection, data: bytes) -> float:
    begun = time.perf_counter()
    feed(connection, data)
    return (time.perf_counter() - begun) / CHUNK * 1e6


def _connection(slots: int) -> Connection:
    """Return a session with one channel in confirm mode, and a ring of eight queues."""
    ring = Ring.build({Destination("queue", f"orders.{n}"): 1 for n in range(8)})
    router = Router(300.0, False)
    known = KnownRing.of(ring, HashedValue(), CONSISTENT_HASH)
    entry = Entry(Mode.ROUTE, CONSISTENT_HASH, known, None, Bindings(), router.clock())
    router.put(("/", "orders"), entry)
    journal = _journal(slots) if slots else None
    tables = RouteTables(router, Selection(["*"], [], []), CounterTable(), lambda _: "", lambda _: None, journal)
    made = Connection(tables.table, lambda _: None, frozenset())
    made.phase, made.frame_max, made.handshake.vhost = Phase.RUNNING, 1 << 17, "/"
    made.table = tables.table("/", None)
    made.routes = made.table.routes
    made.channels[1] = channel = Channel(1)
    channel.select(transactional=False)
    return made


def _journal(slots: int) -> Journal:
    def give_back(filled: Filled) -> None:
        journal.spare.append(filled.records)

    journal = Journal(slots, give_back, time.monotonic)
    return journal


def _frame(kind: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def _publish(key: bytes) -> bytes:
    method = pack(">HHH", 60, 40, 0) + b"\x06orders" + bytes((len(key),)) + key + b"\0"
    header = pack(">HHQH", 60, 0, SIZE, 0x9000) + b"\x18application/octet-stream\x02"
    return _frame(1, method) + _frame(2, header) + _frame(3, b"x" * SIZE)


def _ack(number: int) -> bytes:
    """Return the frame of a basic.ack for all publishes up to a number."""
    return _frame(1, pack(">HHQB", 60, 80, number, 1))


if __name__ == "__main__":
    main()
