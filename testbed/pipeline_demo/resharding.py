"""The number of shards that `whatif` finds enough, made in order, and whether the ring is then as it was predicted."""

from collections import Counter
from pathlib import Path
from typing import Any

from aio_pika.abc import AbstractChannel

from testbed.broker import Broker
from testbed.demo.rings import Rings
from testbed.demo.topology import Topology
from testbed.pipeline_demo.jobs import UNFLAWED, Jobs, records, table, verdict_of
from testbed.pipeline_demo.running import Runner, by_command
from testbed.pipeline_demo.traffic import Consumer, Publisher, keys
from testbed.sidecar import Sidecar

EXCHANGE = "trips"
SHARDS = [f"{EXCHANGE}.{number}" for number in range(1, 5)]

MESSAGES = 3_000
"""The messages before the change, and as many with the same keys after it."""

PER_HOUR, GROWTH = 900, 1.3
"""The most messages an hour that a shard is to get, and how many times as many messages are expected."""

_NIGHT = "lost,wrong_queue,duplicated,out_of_order,unexpected,undetermined,unconfirmed,missing,unreadable"
"""The findings that the night must not have. The hot keys of other exchanges are known."""


class Resharding:
    """An exchange with lanes, its publisher and its consumer, which consumes nothing during the change."""

    def __init__(self, broker: Broker, vhost: str, folder: Path, channel: AbstractChannel) -> None:
        """Take a channel straight to the broker."""
        self._vhost, self._folder, self._file = vhost, folder, folder / "topology.toml"
        self._topology = Topology(broker, vhost, EXCHANGE, self._file, "quorum")
        self._publisher, self._consumer = Publisher(EXCHANGE), Consumer(channel)
        self._proposed: Any = None

    @property
    def confirmed(self) -> int:
        """How many messages are confirmed."""
        return len(self._publisher.confirmed)

    async def make(self) -> None:
        """Make the exchange from its file, and consume."""
        self._topology.write(dict.fromkeys(SHARDS, 1))
        await self._topology.apply()
        for queue in SHARDS:
            await self._consumer.consume(queue)

    async def publish(self, sidecar: Sidecar) -> None:
        """Publish through a sidecar that journals, and consume it all."""
        await self._publisher.by_http(sidecar.http_url, self._vhost, keys(MESSAGES, seed=7))
        await self._consumer.until(self.confirmed)

    async def plan(self, jobs: Jobs, by: Runner) -> None:
        """Run `whatif`, which proposes more shards, and says so in a topology file."""
        out = await jobs.run(
            *(by, "whatif", "--journal", str(self._folder / "journal"), "--vhost", self._vhost),
            *("--exchange", EXCHANGE, "--topology", str(self._file)),
            *("--max-per-hour", str(PER_HOUR), "--growth", str(GROWTH)),
            name="whatif-trips",
        )
        told = self._proposed = verdict_of(out)
        jobs.expect("whatif-trips", "messages", told["messages"], MESSAGES)
        jobs.expect("whatif-trips", "more shards", told["shards"]["in_90_days"] > len(SHARDS), True)

    async def change(self, jobs: Jobs, sidecar: Sidecar) -> None:
        """Apply the file in order, publish the same keys again, and compare the ring with what was predicted."""
        load = table(self._folder / "whatif-trips" / "load").to_pylist()
        predicted = {row["destination"]: row["new_messages"] for row in load}
        self._file.write_text((self._folder / "whatif-trips" / "topology.toml").read_text())
        await self._consumer.leave()
        await self._topology.apply_ordered([sidecar.admin_url], _shown)
        await Rings(sidecar.admin_url, self._vhost, EXCHANGE).until(dict.fromkeys(predicted, 1))
        for place in predicted:
            await self._consumer.consume(_of_generation(place, 2))
        before = len(self._consumer.seen)
        await self.publish(sidecar)
        got = Counter(row.queue for row in self._consumer.seen[before:])
        print(f"Messages of {MESSAGES:,} with the same keys, by whatif and by the ring:")
        for place, count in predicted.items():
            queue = _of_generation(place, 2)
            print(f"  {queue:<12} {count:>6,} {got[queue]:>6,}", flush=True)
        wanted = {_of_generation(place, 2): count for place, count in predicted.items()}
        jobs.expect("whatif-trips", "messages by queue after the change", dict(got), wanted)

    async def night(self, jobs: Jobs, day: str) -> Path:
        """Run `day` over all that was journalled, before and after the change; return the folder of its results."""
        seen = self._folder / "seen-trips.parquet"
        self._consumer.write(seen)
        rings = {record["ring"] for record in records(self._folder) if record["exchange"] == EXCHANGE}
        told = {self._proposed["present"], self._proposed["proposed"]}
        jobs.expect("whatif-trips", "rings before and after the change", rings, told)
        out = await jobs.run(
            *(by_command, "day", "--journal", str(self._folder / "journal"), "--day", day, "--fail-on", _NIGHT),
            *("--vhost", self._vhost, "--exchange", EXCHANGE, "--seen", str(seen)),
            report=False,
        )
        # A night has no plot of its own, and one without a flaw none of flaws.
        jobs.reports |= {f"day/{day}": False, f"day/{day}/reconcile": False}
        jobs.reports |= {f"day/{day}/usage": True, f"day/{day}/skew": True}
        verdict = verdict_of(out / day / "reconcile")
        expected = {"confirmed": self.confirmed, "copies": self.confirmed, "lost": 0, "duplicated": 0, **UNFLAWED}
        jobs.expect("day", "reconcile", {name: verdict[name] for name in expected}, expected)
        return out / day


def _of_generation(place: str, generation: int) -> str:
    """Return the queue that a generation has at a place of the ring."""
    name, _, number = place.rpartition(".")
    return f"{name}.g{generation}.{number}"


def _shown(line: str) -> None:
    if not line.startswith(" "):
        print(f"  {line}", flush=True)
