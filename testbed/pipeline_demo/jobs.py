"""Runs the jobs as a user would, shows what each says, and compares that with what the demo knows of its traffic."""

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from testbed import SetupError
from testbed.pipeline_demo.running import Runner
from testbed.pipeline_demo.traffic import HOT

UNFLAWED = {"out_of_order": 0, "wrong_queue": 0, "unexpected": 0}
"""The findings that `reconcile` must never have here, whatever the consumer forgets."""


class Jobs:
    """Over the folder's `journal`; each writes to a folder of its own name beside it."""

    def __init__(self, folder: Path, vhost: str, exchange: str) -> None:
        """Take the exchange that was published to."""
        self._folder, self._exchange = folder, exchange
        self._of = ("--vhost", vhost, "--exchange", exchange)
        self._journal = ("--journal", str(folder / "journal"))
        self.reports: dict[str, bool] = {}
        """The folders in which jobs have written a report, relative to the demo's, and whether it must have plots."""
        self.faults: list[str] = []

    def usage(self, out: Path, published: int) -> None:
        """Expect of `usage` every message that was published, and none missing."""
        counted = sum(table(out / "usage")["messages"].to_pylist())
        self.expect("usage", "messages", counted, published)
        self.expect("usage", "gaps", table(out / "gaps").num_rows, 0)

    def skew(self, out: Path) -> None:
        """Expect of `skew` that the hottest key of the exchange and of each ring is HOT, which no weight can fix."""
        keys = table(out / "keys").sort_by([("messages", "descending")]).to_pylist()
        keys = [key for key in keys if key["exchange"] == self._exchange]
        rings = {key["ring"] for key in keys}  # None is the exchange across its rings.
        named = {record["ring"] for record in records(self._folder) if record["exchange"] == self._exchange}
        self.expect("skew", "rings", rings, named | {None})
        for ring in rings:
            heaviest = next(key for key in keys if key["ring"] == ring)
            self.expect("skew", f"heaviest key of ring {ring}", heaviest["key"], HOT.encode())
            self.expect("skew", f"no weight can fix it, ring {ring}", heaviest["unfixable"], True)

    async def reconcile(self, by: Runner, left_out: int, doubled: int) -> None:
        """Run `reconcile`, which must find the messages that the consumer left out or noted twice, and nothing else."""
        seen = ("--seen", str(self._folder / "seen.parquet"), "--sequence", "sequence")
        verdict = verdict_of(await self.run(by, "reconcile", *self._journal, *self._of, *seen, status=1))
        expected = {"lost": left_out, "duplicated": doubled, **UNFLAWED}
        self.expect("reconcile", "verdict", {name: verdict[name] for name in expected}, expected)

    async def publish(self, by: Runner, broker_url: str, management_url: str) -> None:
        """Publish the demo's rows."""
        await self.run(
            by,
            "publish",
            *("--input", str(self._folder / "rows"), "--checkpoint", str(self._folder / "checkpoint")),
            *("--broker-url", broker_url, "--management-url", management_url, "--exchange", self._exchange),
        )

    async def land(self, by: Runner, amqp_url: str, queue: str, published: int) -> None:
        """Run `land`, whose table must have every record of the stream queue, and its ring."""
        out = await self.run(by, "land", "--amqp-url", amqp_url, "--queue", queue, report=False)
        landed = table(out / "records").select(["event", "ring"]).to_pylist()
        self.expect("land", "records", len(landed), published)
        self.expect("land", "events", len({record["event"] for record in landed}), published)
        rings = {file.stem for file in out.glob("rings/*.json")}
        self.expect("land", "rings", rings, {record["ring"] for record in landed})

    async def run(
        self, by: Runner, job: str, *arguments: str, name: str = "", status: int = 0, report: bool = True
    ) -> Path:
        """Run a job, show what it says, and return the folder with its results, which has its name or the one given.

        `status` is the exit status that it must end with; `report` says whether it writes a page.
        """
        name = name or job
        out, begun = self._folder / name, time.monotonic()
        said = await by([job, *arguments, "--out", str(out)])
        print(f"{name}: (after {time.monotonic() - begun:.0f} s)")
        for line in said.told.splitlines():
            print(f"  {line.replace(str(self._folder), '...')}", flush=True)
        if report:
            self.reports[name] = True
        if said.status != status:
            raise SetupError(f"{name} ended with status {said.status}:\n{said.complaint}")
        return out

    def expect(self, job: str, what: str, found: object, expected: object) -> None:
        """Note a fault where a job has not found what it must."""
        if found != expected:
            self.faults.append(f"{job}: {what}: {found!r}, not {expected!r}")


def table(folder: Path) -> pa.Table:
    """Return a Parquet table, with the columns that its folders name."""
    return ds.dataset(folder, partitioning="hive").to_table()


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the records of the demo's journal, each file's in their order."""
    files = (folder / "journal" / "records").rglob("*.jsonl.gz")
    return [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]


def verdict_of(out: Path) -> Any:
    """Return what a job's verdict.json says."""
    return json.loads((out / "verdict.json").read_text())
