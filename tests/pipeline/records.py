"""Journals as sidecars leave them (docs/reference/journal.md), of records through a real ring."""

import gzip
import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from pipeline.data.rings import RingSpec, to_json
from ring.destination import Destination
from ring.hashing import SLOTS, slot_of

Record = dict[str, Any]
"""As in a line; change one with `record | {"outcome": "nacked"}`."""

START = 1_795_280_400_000_000
"""2026-11-21 17:00 UTC, in microseconds."""

PROXY = "00000000000000a1"


def ring_of(weights: Mapping[str, int], hashed: str = "routing_key") -> RingSpec:
    """Return the ring of an x-consistent-hash exchange with these queues."""
    return RingSpec("x-consistent-hash", hashed, {Destination("queue", name): w for name, w in weights.items()})


def published(
    known: RingSpec,
    keys: Iterable[bytes],
    *,
    vhost: str = "/",
    exchange: str = "orders",
    proxy: str = PROXY,
    first: int = 1,
    start: int = START,
    every: int = 1000,
    sample: float = 1.0,
    size: int = 100,
    with_key: bool = True,
) -> list[Record]:
    """Return a confirmed publish of each key, `every` microseconds, through the ring; the n-th takes 100 + n % 900 us.

    Keys in slots that the sample leaves out make no record and take no number.
    """
    records: list[Record] = []
    for n, key in enumerate(keys):
        slot = slot_of(key)
        if slot >= max(1, round(sample * SLOTS)):
            continue
        owner, seq = known.ring.owner(slot), first + len(records)
        records.append(
            {
                "v": 1,
                "event": f"{proxy}-{seq}",
                "time": start + n * every,
                "proxy": proxy,
                "seq": seq,
                "sample": sample,
                "ingress": "amqp",
                "vhost": vhost,
                "exchange": exchange,
                "ring": known.fingerprint,
                "key": b64encode(key).decode() if with_key else None,
                "slot": slot,
                "kind": owner.kind,
                "destination": owner.name,
                "outcome": "confirmed",
                "latency": 100 + n % 900,
                "bytes": size,
                "message_id": f"m-{exchange}-{proxy}-{seq}",
            }
        )
    return records


def write_journal(
    folder: Path, records: Sequence[Record], rings: Iterable[RingSpec], *, per_file: int = 10_000
) -> list[Path]:
    """Write records, in each proxy's order, and rings; the files of records. May be called again for more."""
    (folder / "rings").mkdir(parents=True, exist_ok=True)
    for known in rings:
        (folder / "rings" / f"{known.fingerprint}.json").write_text(to_json(known), encoding="utf-8")
    files = []
    for (proxy, hour), grouped in groupby(records, lambda record: (record["proxy"], record["time"] // 3_600_000_000)):
        whole = list(grouped)
        at = datetime.fromtimestamp(hour * 3600, UTC)
        place = folder / "records" / f"dt={at:%Y-%m-%d}" / f"hour={at:%H}"
        place.mkdir(parents=True, exist_ok=True)
        for n in range(0, len(whole), per_file):
            part = whole[n : n + per_file]
            file = place / f"{proxy}-{part[0]['seq']:012}.jsonl.gz"
            file.write_bytes(gzip.compress(b"".join(map(line, part)), mtime=0))
            files.append(file)
    return files


def truncated(folder: Path, size: int = 2000) -> str:
    """Cut the end off the folder's one data file, a journal's or a table's; its name."""
    (file,) = [path for path in folder.rglob("*.*") if path.name.endswith((".gz", ".parquet")) and path.is_file()]
    file.write_bytes(file.read_bytes()[:-size])
    for checksum in folder.rglob(f".{file.name}.crc"):  # Spark's, which would tell before the file itself
        checksum.unlink()
    return file.name


def line(record: Record) -> bytes:
    """Return a record's line."""
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
