"""Latencies as counts in fixed buckets: the histograms of any two groups merge by adding them up, bucket by bucket."""

from math import ceil

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

_PER_DOUBLING = 4
_FIRST, _LAST = 4, 27

BOUNDS = tuple(ceil(2 ** (n / _PER_DOUBLING)) for n in range(_FIRST * _PER_DOUBLING, _LAST * _PER_DOUBLING + 1))
"""Microseconds, 16 to 134 s, each 19% above the one before, rounded up (so 16 to 20: 25%): what separates buckets."""

BUCKETS = len(BOUNDS) + 1
"""Bucket 0 is below BOUNDS[0], bucket n from BOUNDS[n - 1] to below BOUNDS[n], the last one from BOUNDS[-1] on."""

# What the logarithm of a power of two may fall short by; no other whole number up to 2^27 comes so near a bound.
_ROUNDING = 1e-12


def bucket(latency: Column) -> Column:
    """The bucket of whole microseconds, an int; null where the latency is."""
    quarter = F.floor(_PER_DOUBLING * F.log2(F.greatest(latency, F.lit(1))) + _ROUNDING)
    placed = F.least(F.greatest(quarter - (_FIRST * _PER_DOUBLING - 1), F.lit(0)), F.lit(BUCKETS - 1))
    return F.when(latency.isNotNull(), placed.cast("int"))


def histogram(placed: Column, count: Column) -> Column:
    """Aggregates rows that each count another bucket to an array of BUCKETS counts; a null bucket is left out."""
    counts = F.map_from_entries(F.collect_list(F.when(placed.isNotNull(), F.struct(placed, count))))
    return F.transform(F.sequence(F.lit(0), F.lit(BUCKETS - 1)), lambda n: F.coalesce(counts[n], F.lit(0)))


def merged(histograms: Column) -> Column:
    """Aggregates histograms to their element-wise sum."""
    # Not collect_list, which holds all rows of a group at a time.
    return F.array(*(F.sum(histograms[n]) for n in range(BUCKETS)))


def quantile(counts: Column, share: float) -> Column:
    """The bound below which at least `share` of a histogram's latencies are, in microseconds.

    At most 25% too high, of latencies from BOUNDS[0] on. Null for an empty histogram; BOUNDS[-1] for what is beyond it.
    """
    total = F.aggregate(counts, F.lit(0).cast("long"), lambda a, b: a + b)
    rank = F.ceil(total * share)
    start = F.struct(F.lit(0).cast("long").alias("seen"), F.lit(0).alias("below"))

    def pass_by(state: Column, count: Column) -> Column:
        seen = state["seen"] + count
        return F.struct(seen.alias("seen"), (state["below"] + F.when(seen < rank, 1).otherwise(0)).alias("below"))

    found = F.aggregate(counts, start, pass_by)["below"]
    bounds = F.array(*(F.lit(bound) for bound in BOUNDS))
    return F.when(total > 0, bounds[F.least(found, F.lit(len(BOUNDS) - 1))])
