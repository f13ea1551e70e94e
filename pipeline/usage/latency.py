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

# The logarithm of a power of two may fall short by this much; no other whole number up to 2^27 comes so near a bound.
_ROUNDING = 1e-12


def bucket(latency: Column) -> Column:
    """Return the number of the bucket of a latency in whole microseconds; null for a null latency."""
    quarter = F.floor(_PER_DOUBLING * F.log2(F.greatest(latency, F.lit(1))) + _ROUNDING)
    placed = F.least(F.greatest(quarter - (_FIRST * _PER_DOUBLING - 1), F.lit(0)), F.lit(BUCKETS - 1))
    return F.when(latency.isNotNull(), placed.cast("int"))


def histogram(placed: str, count: str) -> Column:
    """Aggregate rows that each have a bucket and its count, in these columns, to an array of BUCKETS counts.

    Several rows may have one bucket; a null bucket is left out.
    """
    return _array(f"CASE WHEN {placed} = {{n}} THEN {count} ELSE 0L END")


def merged(histograms: str) -> Column:
    """Return the aggregate that adds up the histograms of a column, bucket by bucket."""
    return _array(f"{histograms}[{{n}}]")


def _array(of_bucket: str) -> Column:
    """Return the array of the sums, for each bucket {n}, of this SQL expression."""
    # Not collect_list, which holds all rows of a group at a time. As text: each function called is ten round trips.
    return F.expr(f"array({', '.join(f'sum({of_bucket.format(n=n)})' for n in range(BUCKETS))})")


def quantile(histogram: str, share: float) -> Column:
    """Return the least bound, in microseconds, below which at least `share` of a column's histogram is.

    It is at most 25% too high for latencies from BOUNDS[0] on; null for an empty histogram, BOUNDS[-1] for what is
    beyond it.
    """
    total = f"aggregate({histogram}, 0L, (a, b) -> a + b)"
    start = f"named_struct('seen', 0L, 'below', 0, 'rank', ceil({total} * {share}D))"
    seen = "state.seen + count"
    below = f"state.below + CASE WHEN {seen} < state.rank THEN 1 ELSE 0 END"
    pass_by = f"(state, count) -> named_struct('seen', {seen}, 'below', {below}, 'rank', state.rank)"
    found = f"least(aggregate({histogram}, {start}, {pass_by}).below, {len(BOUNDS) - 1})"
    return F.expr(f"CASE WHEN {total} > 0 THEN array({', '.join(map(str, BOUNDS))})[{found}] END")
