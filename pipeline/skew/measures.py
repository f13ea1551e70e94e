"""The measures that tell a ring's unevenness from its keys': chi-squared, Gini coefficient and Lorenz curve."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pyspark.mllib.linalg import Vectors
from pyspark.mllib.stat import Statistics

LEAST_EXPECTED = 5
"""The least expected keys of a destination for which the chi-squared distribution is a good approximation."""


class ChiSquared(NamedTuple):
    """The result of a chi-squared test of goodness of fit."""

    statistic: float
    freedom: int
    p: float
    """The p-value: how likely a right ring spreads keys so unevenly or worse."""


def chi_squared(keys: Sequence[int], weights: Sequence[int], named: int, slots: int) -> ChiSquared | None:
    """Return the chi-squared test of distinct keys against weights.

    Returns None for one destination, or if some destination is expected to get fewer than LEAST_EXPECTED keys.

    `named` of them are keys, which fall into any of so many `slots`; the others are slots that stand for theirs.

    A right ring is random too: a slot is a destination's with a chance of its weight's share p. A destination then gets
    n p of n slots, with a variance of n p (1 - p), which is what the test takes for granted. The ring's own variance of
    n keys in s slots, n^2 p (1 - p) / s, comes to that: 1 + n / s times it, by which the statistic is divided. The more
    keys there are, the more it is the ring's slots that are tested, and no more than those. With u slots beside them
    that stand for theirs, the two come to n + u + n (n + 2 u) / s times p (1 - p).
    """
    total, weight = sum(keys), sum(weights)
    if len(keys) < 2 or not total:
        return None
    by = 1 + named * (2 * total - named) / (slots * total)
    if total * min(weights) < LEAST_EXPECTED * by * weight:
        return None
    counted, expected = [n / by for n in keys], [total / by * w / weight for w in weights]
    found = Statistics.chiSqTest(Vectors.dense(counted), Vectors.dense(expected))
    return ChiSquared(found.statistic, int(found.degreesOfFreedom), found.pValue)


def gini(spread: Iterable[tuple[int, int]]) -> float:
    """Return the Gini coefficient of pairs (messages, keys with so many).

    It is 0 where all keys are alike, and near 1 where one has all messages.
    """
    keys = messages = 0
    area = 0
    for each, count in sorted(spread):
        # Twice the area under the Lorenz curve, in units of one key and one message.
        area += count * (2 * messages + each * count)
        keys += count
        messages += each * count
    return 1 - area / (keys * messages) if messages else 0.0


def lorenz(spread: Iterable[tuple[int, int]]) -> tuple[list[float], list[float]]:
    """Return the Lorenz curve: shares of keys, the coldest first, and the shares of messages that these have.

    Without messages it is that of keys that are all alike.
    """
    keys, messages = [0], [0]
    for each, count in sorted(spread):
        keys.append(keys[-1] + count)
        messages.append(messages[-1] + each * count)
    if not messages[-1]:
        return [0, 1], [0, 1]
    return [n / keys[-1] for n in keys], [n / messages[-1] for n in messages]
