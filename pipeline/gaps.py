"""Which records of a journal are missing: each proxy numbers its own, 1, 2, 3, ..."""

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

_SPAN = 32_768
"""Numbers in one of Spark's bitmaps."""

_RUNS = "proxy string, first long, last long, since timestamp, until timestamp"


def sequences(records: DataFrame) -> DataFrame:
    """Which numbers are there: small next to the records, however those are spread over files.

    Columns: `proxy`, `bucket`, `bitmap` (of 32,768 numbers: 4 KiB), and `since` and `until`, between which the records
    of the bucket are.
    """
    return records.groupBy("proxy", F.bitmap_bucket_number("seq").alias("bucket")).agg(
        F.bitmap_construct_agg(F.bitmap_bit_position("seq")).alias("bitmap"),
        F.timestamp_micros(F.min("time")).alias("since"),
        F.timestamp_micros(F.max("time")).alias("until"),
    )


def merged(rows: DataFrame) -> DataFrame:
    """Rows of several `sequences` as one of all their records; a record that is in two of them counts once."""
    return rows.groupBy("proxy", "bucket").agg(
        F.bitmap_or_agg("bitmap").alias("bitmap"), F.min("since").alias("since"), F.max("until").alias("until")
    )


def gaps(rows: DataFrame, *, from_start: bool = True) -> DataFrame:
    """What is missing from `sequences`, which has each bucket once; after a proxy's last number nothing can be seen.

    Nor before its first, where they are not `from_start` of the journal.

    Columns: `proxy`, the `first` and `last` number that is missing, how many are `missing`; and `since` (null at a
    proxy's start) and `until`, between which that was.
    """
    whole = F.bitmap_count("bitmap") == _SPAN
    start = (F.col("bucket") - 1) * _SPAN + 1
    complete = rows.where(whole).select(
        "proxy", start.alias("first"), (start + _SPAN - 1).alias("last"), "since", "until"
    )
    runs = complete.unionByName(rows.where(~whole).mapInArrow(_runs, _RUNS))
    order = Window.partitionBy("proxy").orderBy("first")
    before = F.lag("last").over(order)
    found = runs.select(
        "proxy",
        # Of a null, at a proxy's first number, nothing is missing.
        ((F.coalesce(before, F.lit(0)) if from_start else before) + 1).alias("from"),
        (F.col("first") - 1).alias("to"),
        F.lag("since").over(order).alias("since"),
        "until",
    ).where("`from` <= `to`")
    missing = (F.col("to") - F.col("from") + 1).alias("missing")
    return found.select("proxy", F.col("from").alias("first"), F.col("to").alias("last"), missing, "since", "until")


def _runs(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each bitmap as its runs of ones."""
    for batch in batches:
        rows, firsts, lasts = [], [], []
        for n, (bucket, bitmap) in enumerate(
            zip(batch["bucket"].to_pylist(), batch["bitmap"].to_pylist(), strict=True)
        ):
            bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")
            edges = np.flatnonzero(np.diff(bits, prepend=np.uint8(0), append=np.uint8(0)))
            start = (bucket - 1) * _SPAN + 1
            firsts.append(start + edges[::2])
            lasts.append(start + edges[1::2] - 1)
            rows.append(np.full(len(edges) // 2, n))
        if rows:
            owner = pa.array(np.concatenate(rows))
            numbers = [pa.array(np.concatenate(part), pa.int64()) for part in (firsts, lasts)]
            told = [batch["proxy"].take(owner), *numbers, batch["since"].take(owner), batch["until"].take(owner)]
            yield pa.RecordBatch.from_arrays(told, ["proxy", "first", "last", "since", "until"])
