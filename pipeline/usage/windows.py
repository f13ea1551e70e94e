"""Records, added up by window, exchange, ingress and destination: rows that merge to those of any coarser group."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError
from pipeline.data.schema import OUTCOMES
from pipeline.usage import latency, scaling

GROUP = ("window", "vhost", "exchange", "ingress", "kind", "destination")
"""The columns by which records are added up. `window` is its start; `kind` and `destination` are null for what was
passed.
"""

COUNTS = ("messages", "bytes", *OUTCOMES)
"""The columns of counts of the records read; NAME_scaled are the estimates of all publishes (`with_estimates`)."""

ANSWERS = ("confirmed", "passed", "nacked", "unroutable", "invalid")
"""The outcomes with an answer of the broker. The latency of `unknown` is how long an answer was waited for, in vain."""


def usage(records: DataFrame, minutes: int) -> DataFrame:
    """Return records added up to one row for each GROUP. Raises PipelineError where `minutes` is no divisor of 60.

    Columns: GROUP, `minutes`, COUNTS, the sums of scaling.groups, `latency` (latency.BUCKETS
    counts, of ANSWERS), `keys_sketch` (HLL of the distinct keys), `with_key` (records that have a key) and `sample`
    (the largest).
    """
    if not 1 <= minutes <= 60 or 60 % minutes:
        raise PipelineError(f"--window: {minutes}: it must divide 60, so that windows make up whole hours")
    width = minutes * 60_000_000
    rows = records.select(
        F.timestamp_micros(F.col("time") - F.col("time") % width).alias("window"),
        *GROUP[1:],
        *("outcome", "bytes", "key", "sample"),
        *(column.alias(name) for name, column in scaling.drawn().items()),
        latency.bucket(F.when(F.col("outcome").isin(*ANSWERS), F.col("latency"))).alias("bucket"),
    )
    # First by bucket and group too: two small shuffles in place of a sum for each of them at every record.
    by_bucket = rows.groupBy(*GROUP, "bucket", "part").agg(
        *(F.sum(amount).cast("long").alias(name) for name, amount in _amounts().items()),
        *(F.sum(_amounts()[name] * F.col("beyond")).alias(f"{name}_beyond") for name in scaling.ESTIMATED),
        F.count("*").alias("in_bucket"),
        F.hll_sketch_agg("key").alias("keys_sketch"),
        F.count("key").alias("with_key"),
        F.max("sample").alias("sample"),
    )
    buckets = latency.histogram("bucket", "in_bucket")
    return by_bucket.groupBy(*GROUP, F.lit(minutes).alias("minutes")).agg(
        *_sums(), *scaling.groups(), buckets.alias("latency")
    )


def merged(rows: DataFrame, by: Sequence[str] = (*GROUP, "minutes")) -> DataFrame:
    """Return rows of `usage` added up to coarser groups, as if `usage` had read all of their records."""
    return sums(rows.groupBy(*by))


def sums(grouped: GroupedData, *more: Column) -> DataFrame:
    """Return groups of rows of `usage`, each added up to one row, with more aggregates beside."""
    return grouped.agg(*_sums(), *scaling.merged(), latency.merged("latency").alias("latency"), *more)


def with_estimates(rows: DataFrame) -> DataFrame:
    """Return rows of `usage` or `merged` with what is computed of them.

    `p50` and `p99` in microseconds, null without any latency; `keys`, an estimate of the distinct keys, null where
    records have none; `keys_scaled`, null too where sidecars' samples differ; the estimates and intervals of
    `scaling.with_limits`; and NAME_scaled of each outcome, whose part of the messages is taken to be that of the
    records.
    """
    keys = F.when(F.col("with_key") > 0, F.hll_sketch_estimate("keys_sketch"))
    computed = rows.withColumns(
        {
            "p50": latency.quantile("latency", 0.5),
            "p99": latency.quantile("latency", 0.99),
            "keys": keys,
            # A sample holds the keys of so large a share of the slots, whole. Where samples differ, all of the largest
            # has some keys and only the smaller ones others: then the records are not all scaled as the largest's are.
            "keys_scaled": F.when(
                F.col("messages") + scaling.beyond() == F.col("messages") * scaling.scale(),
                keys / F.col("sample"),
            ),
        }
    )
    found = scaling.with_limits(computed)
    each = F.col("messages_scaled") / F.col("messages")
    return found.withColumns({f"{name}_scaled": F.col(name) * each for name in OUTCOMES})


def with_hour(rows: DataFrame) -> DataFrame:
    """Return rows with the columns of partitions, `dt` and `hour` of the window in UTC, the session's time zone."""
    return rows.withColumns({"dt": F.date_format("window", "yyyy-MM-dd"), "hour": F.hour("window")})


def _amounts() -> dict[str, Column]:
    outcomes = {name: F.when(F.col("outcome") == name, 1).otherwise(0) for name in OUTCOMES}
    return {"messages": F.lit(1), "bytes": F.col("bytes"), **outcomes}


def _sums() -> list[Column]:
    names = [*COUNTS, "with_key"]
    more = "hll_union_agg(keys_sketch) AS keys_sketch", "max(sample) AS sample"
    return [*map(F.expr, (*(f"sum({name}) AS {name}" for name in names), *more))]
