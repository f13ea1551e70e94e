"""`python -m bench.pipeline`: the pipeline's job `whatif` beside a bare scan-and-count of the same journal."""

import argparse
import contextlib
import gzip
import io
import os
import statistics
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.types import StructType

from pipeline.__main__ import main as pipeline_main
from pipeline.data.rings import RingSpec, to_json
from pipeline.data.schema import RECORD
from pipeline.session import spark_session
from ring.destination import Destination
from ring.hashing import slot_of

START = 1_795_280_400_000_000
"""2026-11-21 17:00 UTC, in microseconds."""

KEYS, QUEUES, A_FILE = 500_000, 10, 250_000
COLUMNS = ("v", "time", "sample", "vhost", "exchange", "ring", "key", "slot", "bytes")
"""The columns of the journal that the pipeline's `whatif` job reads."""


def main() -> int:
    """Print seconds, rates and their ratio."""
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each, in turn (default: 3)")
    parser.add_argument("--folder", type=Path, help="where the journal is made, or is from before (default: nowhere)")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringproxy-bench-")))
        journal = folder / f"journal-{options.records}"
        if not journal.is_dir():
            write_journal(journal, options.records)
        spark = stack.enter_context(spark_session("bench"))
        contenders: dict[str, Callable[[], None]] = {
            "scan and count": lambda: scan(spark, journal, options.records),
            "whatif": lambda: whatif(journal, folder / "out"),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, run in contenders.items():
                began = time.monotonic()
                run()
                seconds[name].append(time.monotonic() - began)
                print(f"{name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
    ratios = [bare / job for bare, job in zip(*seconds.values(), strict=True)]
    size = sum(file.stat().st_size for file in journal.rglob("*.gz")) / 1e6 if journal.is_dir() else 0
    print(f"{options.records:,} records, {KEYS:,} keys, {size:,.0f} MB, load average {os.getloadavg()[0]:.1f}")
    for name, took in seconds.items():
        median = statistics.median(took)
        print(f"{name}: {median:.1f} s, {options.records / median:,.0f} records/s")
    print(f"ratio of the rates, median of {options.rounds} rounds: {statistics.median(ratios):.2f}")
    return 0


def scan(spark: SparkSession, journal: Path, records: int) -> None:
    """The columns that `whatif` needs, parsed and counted."""
    read = spark.read.schema(StructType([RECORD[name] for name in COLUMNS])).json(str(journal / "records"))
    counts = read.agg(*(F.count(name).alias(name) for name in COLUMNS)).collect()[0]
    assert set(counts.asDict().values()) == {records}


def whatif(journal: Path, out: Path) -> None:
    """The whole job, but for the session's start."""
    of = ("--journal", str(journal), "--vhost", "/", "--exchange", "orders", "--add", "queue:orders.new=1")
    with contextlib.redirect_stdout(io.StringIO()):
        assert pipeline_main(["whatif", *of, "--out", str(out)]) == 0


def write_journal(folder: Path, records: int) -> None:
    """A journal of one sidecar: keys by Zipf's law with exponent 0.9, over a ring of equal queues, in one hour."""
    known = RingSpec(
        "x-consistent-hash", "routing_key", {Destination("queue", f"orders.{n}"): 1 for n in range(QUEUES)}
    )
    place = folder / "records" / "dt=2026-11-21" / "hour=17"
    place.mkdir(parents=True)
    (folder / "rings").mkdir()
    (folder / "rings" / f"{known.fingerprint}.json").write_text(to_json(known))
    middles = pa.array([_middle(known, f"customer-{n:08}".encode()) for n in range(KEYS)])
    odds = np.cumsum(np.arange(1, KEYS + 1) ** -0.9)
    drawn = np.random.default_rng(7)
    for first in range(0, records, A_FILE):
        seq = np.arange(first, min(first + A_FILE, records)) + 1
        keys = np.searchsorted(odds, drawn.random(len(seq)) * odds[-1])
        lines = _lines(seq, middles.take(pa.array(keys)), drawn)
        with gzip.open(place / f"{_PROXY}-{first + 1:012}.jsonl.gz", "wb", compresslevel=1) as file:
            file.write("".join(lines.to_pylist()).encode())


_PROXY = "00000000000000a1"


def _middle(known: RingSpec, key: bytes) -> str:
    slot = slot_of(key)
    owner = known.ring.owner(slot)
    return (
        f',"proxy":"{_PROXY}","sample":1,"ingress":"amqp","vhost":"/","exchange":"orders","ring":"{known.fingerprint}"'
        f',"key":"{b64encode(key).decode()}","slot":{slot},"kind":"{owner.kind}","destination":"{owner.name}"'
        ',"outcome":"confirmed"'
    )


def _lines(
    seq: "np.ndarray[tuple[int], np.dtype[np.int64]]", middles: pa.Array, drawn: np.random.Generator
) -> pa.Array:
    """Records as a sidecar writes them; the order of fields is another."""
    number = pc.cast(pa.array(seq), pa.string())
    latency = pc.cast(pa.array(drawn.integers(200, 5000, len(seq))), pa.string())
    size = pc.cast(pa.array(drawn.integers(50, 2000, len(seq))), pa.string())
    at = pc.cast(pa.array(START + seq * 700), pa.string())
    parts: Sequence[object] = (
        f'{{"v":1,"event":"{_PROXY}-', number, '","seq":', number, ',"time":', at, middles, ',"latency":', latency,
        ',"bytes":', size, ',"message_id":"m-', number, '"}\n', "",
    )  # fmt: skip
    return pc.binary_join_element_wise(*parts)


if __name__ == "__main__":
    sys.exit(main())
