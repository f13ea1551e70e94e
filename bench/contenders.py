"""Who is compared with whom: publishing by AMQP and by HTTP, as fast as it goes and at a fixed rate."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import direct, messages, wire
from bench.latency import Latency, latency
from bench.rounds import Contender, in_turn
from bench.world import QUEUES, World
from bench.wrk import answers_per_second

DIRECT, DIRECT_TRANSIENT = "AMQP, straight to the queues", "AMQP, straight to the queues, transient"
IN_A_ROW, ROW = f"{DIRECT}, each queue's in a row", 60
"""The way that the sidecar writes a turn of its event loop: so many messages of one queue in a row."""
SINGLE_TRANSIENT = "single, transient"
CONNECTIONS = 32
"""The connections of single requests."""
ONE_BY_ONE = f"AMQP, straight to the queues, {CONNECTIONS} under way"
ONE_BY_ONE_TRANSIENT = f"{ONE_BY_ONE}, transient"
JSON, JSON_TRANSIENT = "batches, JSON", "batches, JSON, transient"
SMALL, SMALL_TRANSIENT = (f"batches of {messages.SMALL_BATCH}{mode}" for mode in ("", ", transient"))
NDJSON, GZIP = "batches, NDJSON", "batches, JSON with gzip"
SINGLE, BARE, MANAGEMENT = "single", "bare handler, nothing published", "management API"

BATCH_CONNECTIONS = 1, 2, 4, 8
"""The numbers of connections that are tried for batches."""

PERSISTENT, TRANSIENT = 2, 1


class Stage:
    """The contenders on one world, and the files of their requests."""

    def __init__(self, world: World) -> None:
        """Write the files of requests into the world's folder."""
        self._world = world
        self._sidecar = world.sidecar.process.pid
        self._singles = self._saved("single", messages.singles())
        self._transient = self._saved("single-transient", messages.transient_singles())
        self._bare = self._saved("bare", messages.singles("/"))
        self._management = self._saved("management", messages.management(world.node.management_url))
        self._batches = {
            JSON: self._saved("json", messages.json_batches()),
            JSON_TRANSIENT: self._saved("json-transient", messages.transient_batches()),
            NDJSON: self._saved("ndjson", messages.ndjson_batches()),
            GZIP: self._saved("gzip", messages.gzip_batches()),
        }

    def best_batch_connections(self) -> int:
        """Return the number of connections with the highest throughput of batches, in two rounds of a second each."""
        tried = {str(number): self._batch(JSON, number).measure for number in BATCH_CONNECTIONS}
        found = in_turn(tried, rounds=2, seconds=1)
        return max(BATCH_CONNECTIONS, key=lambda number: sum(result.rate for result in found[str(number)]))

    def contenders(self, batch_connections: int) -> list[Contender]:
        """Return the contenders at full rate, in the order of the report."""
        world, broker = self._world, self._world.node.pid
        return [
            self._direct(DIRECT, PERSISTENT),
            self._direct(IN_A_ROW, PERSISTENT, row=ROW),
            self._batch(JSON, batch_connections),
            self._batch(NDJSON, batch_connections),
            self._batch(GZIP, batch_connections),
            self._direct(DIRECT_TRANSIENT, TRANSIENT),
            self._batch(JSON_TRANSIENT, batch_connections),
            Contender(SINGLE, self._wrk(world.sidecar.http_url, self._singles, CONNECTIONS, 1), broker, self._sidecar),
            Contender(
                SINGLE_TRANSIENT,
                self._wrk(world.sidecar.http_url, self._transient, CONNECTIONS, 1),
                broker,
                self._sidecar,
            ),
            self._direct(ONE_BY_ONE, PERSISTENT, CONNECTIONS),
            self._direct(ONE_BY_ONE_TRANSIENT, TRANSIENT, CONNECTIONS),
            Contender(BARE, self._wrk(world.bare_url, self._bare, CONNECTIONS, 1), None, world.bare_pid),
            Contender(MANAGEMENT, self._wrk(world.node.management_url, self._management, CONNECTIONS, 1), broker, None),
        ]

    def at_fixed_rate(self) -> dict[str, Callable[[float], Latency]]:
        """Return the measurements of latency at a fixed rate, by title."""
        world = self._world
        return {
            SINGLE: partial(latency, world.sidecar.http_url, self._singles),
            SINGLE_TRANSIENT: partial(latency, world.sidecar.http_url, self._transient),
            SMALL: partial(latency, world.sidecar.http_url, self._small(PERSISTENT)),
            SMALL_TRANSIENT: partial(latency, world.sidecar.http_url, self._small(TRANSIENT)),
            BARE: partial(latency, world.bare_url, self._bare),
            DIRECT: partial(latency, world.node.amqp_url, self._frames(PERSISTENT)),
            DIRECT_TRANSIENT: partial(latency, world.node.amqp_url, self._frames(TRANSIENT)),
        }

    def _frames(self, mode: int, row: int = 1) -> Path:
        return self._saved(
            f"frames-{mode}-{row}", [direct.message(queue, mode) for queue in QUEUES for _ in range(row)]
        )

    def _small(self, mode: int) -> Path:
        return self._saved(f"small-{mode}", messages.small_batches(mode))

    def _saved(self, name: str, requests: Sequence[bytes]) -> Path:
        path = self._world.folder / name
        wire.save(path, requests)
        return path

    def _direct(self, title: str, mode: int, under_way: int | None = None, row: int = 1) -> Contender:
        url, frames = self._world.node.amqp_url, self._frames(mode, row)
        run = partial(direct.messages_per_second, url, frames, under_way=under_way)
        return Contender(title, run, self._world.node.pid, None)

    def _batch(self, title: str, connections: int) -> Contender:
        run = self._wrk(self._world.sidecar.http_url, self._batches[title], connections, messages.BATCH)
        return Contender(title, run, self._world.node.pid, self._sidecar)

    def _wrk(self, url: str, requests: Path, connections: int, each: int) -> Callable[[float], tuple[float, int]]:
        def run(seconds: float) -> tuple[float, int]:
            rate, count = answers_per_second(self._world.wrk, url, requests, connections, seconds)
            return rate * each, count * each

        return run
