"""The file that `whatif` makes of a sidecar's journal, applied in order: the ring is as it was predicted."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from pyspark.sql import SparkSession

from pipeline.__main__ import main
from testbed.broker import Broker
from tests.integration.broker_api import wait_until
from tests.integration.conftest import USER, StartSidecar
from tests.integration.sidecar import Sidecar
from tests.integration.test_journal import read
from tests.integration.test_topology_ordered import FILE, WAITS, fleet
from tests.integration.topology import Topology, between_looks

KEYS = [f"customer-{n % 700}" for n in range(1400)] + ["hot"] * 100


async def emptied(url: str, queues: Sequence[str]) -> Counter[str]:
    """Empty queues, and return how many messages each had that had any."""
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        found: Counter[str] = Counter()
        for name in queues:
            queue = await channel.declare_queue(name, passive=True)
            found[name] = queue.declaration_result.message_count or 0
            await queue.purge()
    return +found


class Traffic:
    """Publishes KEYS through a sidecar that journals."""

    def __init__(self, sidecar: Sidecar, topology: Topology, journal: Path) -> None:
        self._sidecar, self._topology, self._journal, self._published = sidecar, topology, journal, 0

    def publish(self) -> dict[str, int]:
        """Publish KEYS, wait until the journal has them, and return how many each queue had, which is empty then."""
        batch = [{"key": key, "payload": "x"} for key in KEYS]
        told = self._sidecar.batch("orders", batch, vhost=self._topology.vhost.name).receipt()
        assert (told["confirmed"], told["passed"]) == (len(KEYS), 0)
        self._published += len(KEYS)
        wait_until("the journal has all records", lambda: len(read(self._journal)) == self._published)
        names = [name for name in self._topology.vhost.queues() if not name.startswith("orders.group.")]
        return dict(asyncio.run(emptied(self._topology.amqp_url, names)))


def test_after_the_ordered_change_the_ring_is_as_predicted(
    spark: SparkSession,
    broker: Broker,
    topology: Topology,
    start_sidecar: StartSidecar,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in WAITS:
        monkeypatch.setattr(name, between_looks(broker))
    journal, out = tmp_path / "journal", tmp_path / "out"
    topology.write(FILE.format(4) + 'groups = ["audit"]\n')
    topology.did("apply")
    topology.vhost.permit(USER, ".*", ".*", ".*")
    sidecar = start_sidecar(groups="orders", sync_interval="3", journal_dir=str(journal), journal_file_seconds="0.5")
    traffic = Traffic(sidecar, topology, journal)
    traffic.publish()

    def predicted(*arguments: str) -> dict[str, Any]:
        """Run `whatif`, do with its file what it says, publish once more, and compare; return its verdict."""
        of = ("--journal", str(journal), "--vhost", topology.vhost.name, "--exchange", "orders", "--out", str(out))
        assert main(["whatif", *of, "--topology", str(topology.file), *arguments]) == 0
        told: dict[str, Any] = json.loads((out / "verdict.json").read_text())
        load = {row.destination: row for row in spark.read.parquet(str(out / "load")).collect()}
        topology.file.write_text((out / "topology.toml").read_text())
        topology.did("apply", "--ordered", str(topology.file), *fleet(topology))
        topology.did("check")
        times, over = divmod(told["messages"], len(KEYS))
        assert over == 0
        # By the names of generation 1, under which the ring has its places.
        weights = {row.destination: row.new_weight for row in load.values() if row.new_weight is not None}
        assert sidecar.weights(topology.vhost.name, "orders") == weights
        got = traffic.publish()
        generation = {name.split(".")[-2] for name in got}
        assert len(generation) == 1
        expected = {place: load[place].new_messages // times for place in weights}
        of_own = {name: n for name, n in got.items() if ".audit." not in name}
        assert {name.replace(f".{min(generation)}.", "."): n for name, n in of_own.items()} == expected
        assert {name.replace(".audit.", "."): n for name, n in got.items() if ".audit." in name} == of_own
        assert read(journal)[-1]["ring"] == told["proposed"]
        return told

    told = predicted("--max-per-hour", "300", "--growth", "1.2")
    assert told["shards"]["in_90_days"] >= told["shards"]["now"] > 4
    assert told["present_from"] == "journal"
    fewer = predicted("--max-per-hour", "2000")
    assert fewer["shards"]["now"] < told["shards"]["now"]
    assert fewer["present"] == told["proposed"]
    weights = predicted("--weight", "queue:orders.1=3")
    assert weights["shards"] is None
    assert weights["present"] == fewer["proposed"]
