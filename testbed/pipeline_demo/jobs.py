"""Runs the jobs as a user would, shows what each says, and compares that with what the demo knows of its traffic."""

import asyncio
import gzip
import json
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from testbed import SetupError
from testbed.pipeline_demo.traffic import HOT

WITHIN = 600.0
"""Seconds for one job, on a busy machine."""

# For a journal as small as this one: few partitions, and no time spent on compiling Spark well.
_SMALL = "--conf spark.sql.shuffle.partitions=4 --driver-java-options -XX:TieredStopAtLevel=1 pyspark-shell"


class Jobs:
    """Over the folder's `journal`; each writes to a folder of its own name beside it."""

    def __init__(self, folder: Path, vhost: str, exchange: str) -> None:
        """Take the exchange that was published to."""
        self._folder, self._exchange = folder, exchange
        self._of = ("--vhost", vhost, "--exchange", exchange)
        self._journal = ("--journal", str(folder / "journal"))
        self.reports: list[str] = []
        """The names of the folders in which jobs have written a report."""
        self.faults: list[str] = []

    async def usage(self, published: int) -> None:
        """Run `usage`, which must have every message that was published, and miss none."""
        out = await self.run("usage", *self._journal)
        counted = sum(table(out / "usage")["messages"].to_pylist())
        self.expect("usage", "messages", counted, published)
        self.expect("usage", "gaps", table(out / "gaps").num_rows, 0)

    async def skew(self) -> None:
        """Run `skew`, whose hottest key of the exchange and of each ring must be HOT, which no weight can fix."""
        out = await self.run("skew", *self._journal, status=1)
        keys = table(out / "keys").sort_by([("messages", "descending")]).to_pylist()
        keys = [key for key in keys if key["exchange"] == self._exchange]
        rings = {key["ring"] for key in keys}  # None is the exchange across its rings.
        records = _records(self._folder / "journal")
        named = {record["ring"] for record in records if record["exchange"] == self._exchange}
        self.expect("skew", "rings", rings, named | {None})
        for ring in rings:
            heaviest = next(key for key in keys if key["ring"] == ring)
            self.expect("skew", f"heaviest key of ring {ring}", heaviest["key"], HOT.encode())
            self.expect("skew", f"no weight can fix it, ring {ring}", heaviest["unfixable"], True)

    async def whatif(self) -> None:
        """Run `whatif`, in which a sixth queue must take some of the messages, and less than half."""
        out = await self.run("whatif", *self._journal, *self._of, "--add", "queue:orders.6=1", "--max-moved", "0.5")
        verdict = verdict_of(out)
        self.expect("whatif", "verdict", verdict["verdict"], "within")
        self.expect("whatif", "messages move", 0 < verdict["moved"]["of_messages"] < 0.5, True)

    async def reconcile(self, left_out: int, doubled: int) -> None:
        """Run `reconcile`, which must find the messages that the consumer left out or noted twice, and nothing else."""
        seen = ("--seen", str(self._folder / "seen.parquet"), "--sequence", "sequence")
        verdict = verdict_of(await self.run("reconcile", *self._journal, *self._of, *seen, status=1))
        expected = {"lost": left_out, "duplicated": doubled, "out_of_order": 0, "wrong_queue": 0, "unexpected": 0}
        self.expect("reconcile", "verdict", {name: verdict[name] for name in expected}, expected)

    async def publish(self, broker_url: str, management_url: str) -> None:
        """The demo's rows."""
        await self.run(
            "publish",
            *("--input", str(self._folder / "rows"), "--checkpoint", str(self._folder / "checkpoint")),
            *("--broker-url", broker_url, "--management-url", management_url, "--exchange", self._exchange),
        )

    async def land(self, amqp_url: str, queue: str, published: int) -> None:
        """Run `land`, whose table must have every record of the stream queue, and its ring."""
        out = await self.run("land", "--amqp-url", amqp_url, "--queue", queue, report=False)
        records = table(out / "records").select(["event", "ring"]).to_pylist()
        self.expect("land", "records", len(records), published)
        self.expect("land", "events", len({record["event"] for record in records}), published)
        rings = {file.stem for file in out.glob("rings/*.json")}
        self.expect("land", "rings", rings, {record["ring"] for record in records})

    async def run(self, job: str, *arguments: str, name: str = "", status: int = 0, report: bool = True) -> Path:
        """Run a job, show what it says, and return the folder with its results, which has its name or the one given.

        `status` is the exit status that it must end with; `report` says whether it writes a page.
        """
        name = name or job
        out = self._folder / name
        command = [sys.executable, "-m", "pipeline", job, *arguments, "--out", str(out)]
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=PIPE, env=os.environ | {"PYSPARK_SUBMIT_ARGS": _SMALL}
        )
        try:
            async with asyncio.timeout(WITHIN):
                told, complaint = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        print(f"{name}:")
        for line in told.decode().splitlines():
            print(f"  {line.replace(str(self._folder), '...')}", flush=True)
        if report:
            self.reports.append(name)
        if process.returncode != status:
            raise SetupError(f"{name} ended with status {process.returncode}:\n{complaint.decode()}")
        return out

    def expect(self, job: str, what: str, found: object, expected: object) -> None:
        """Note a fault where a job has not found what it must."""
        if found != expected:
            self.faults.append(f"{job}: {what}: {found!r}, not {expected!r}")


def table(folder: Path) -> pa.Table:
    """Return a Parquet table, with the columns that its folders name."""
    return ds.dataset(folder, partitioning="hive").to_table()


def _records(journal: Path) -> list[dict[str, Any]]:
    files = (journal / "records").rglob("*.jsonl.gz")
    return [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def verdict_of(out: Path) -> Any:
    """Return what a job's verdict.json says."""
    return json.loads((out / "verdict.json").read_text())
