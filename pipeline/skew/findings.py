"""The findings of `skew` on one ring, or on an exchange across its rings, and the rows of its tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from pipeline.page.about import doubt
from pipeline.skew import measures
from pipeline.stats.sampling import CONFIDENCE, Estimate, Estimates, Sample
from ring.destination import Destination
from ring.hashing import SLOTS

_SCOPE = "vhost string, exchange string, ring string"
RINGS = (
    f"{_SCOPE}, rings int, records long, messages long, sample double, published double, published_low double, "
    "published_high double, intervals_hold boolean, by_slot boolean, approximate boolean, keys long, "
    "keys_share double, chi_squared double, freedom int, p double, gini double, top_key double, top_key_low double, "
    "top_key_high double, top_10 double, top_10_low double, top_10_high double, max_over_fair double, "
    "max_over_fair_low double, max_over_fair_high double, unfixable int, maybe_unfixable int"
)
DESTINATIONS = (
    f"{_SCOPE}, kind string, destination string, weight int, fair_share double, keys long, messages long, bytes long, "
    "share double, share_low double, share_high double, over_fair double, over_fair_low double, over_fair_high double"
)
KEYS = (
    f"{_SCOPE}, key binary, slot int, kind string, destination string, messages long, share double, "
    "share_low double, share_high double, fair_share double, unfixable boolean, maybe_unfixable boolean, "
    "estimated boolean"
)
"""The columns of the tables, as docs/reference/pipeline.md lists them."""

UNEVEN = 0.001
"""A p-value below which chance is no explanation: one right ring in a thousand is called uneven."""


@dataclass(frozen=True)
class Scope:
    """The records of one exchange that name one ring, or all records of one exchange if `across` is true."""

    vhost: str
    exchange: str
    ring: str
    """The fingerprint; across several rings the one with the most records."""
    records: int
    least: float
    """The least `sample` of the exchange's records."""
    largest: float
    """The largest `sample` of these records."""
    since: int
    """The time of the first record, in microseconds since 1970."""
    until: int
    """The time of the last record, in microseconds since 1970."""
    rings: int = 1
    """How many rings the records name."""
    across: bool = False
    """Whether this is the exchange across its rings, be it only one."""

    @property
    def columns(self) -> tuple[str, str, str | None]:
        """The first columns of each table, in which the exchange across its rings has no ring."""
        return self.vhost, self.exchange, None if self.across else self.ring


@dataclass(frozen=True)
class Load:
    """The keys, messages and bytes of one destination of a scope."""

    destination: Destination
    weight: int | None
    """The weight of the destination; None if the exchange's rings differ in it."""
    fair: float
    """The share of messages that its weight promised the destination; across rings the mean, weighted by messages."""
    keys: int
    """The number of the destination's distinct keys that were counted.

    Across rings, these are the keys that the ring with the most records gives it.
    """
    named: int
    """The number of the keys in `keys` that are not null."""
    messages: int
    bytes: int
    unseen: float
    """How many slots outside the sample the destination owns; across rings the mean, by each ring's messages there."""


@dataclass(frozen=True)
class HotKey:
    """A hot key, or a hot slot if the journal has no keys."""

    slot: int
    key: bytes | None
    messages: int
    owner: Destination
    fair: float
    """The share of messages that its destination's weight promised; across rings the mean, by each ring's messages."""

    def __str__(self) -> str:
        """Return the key for people: its text, its bytes in hexadecimal digits, or its slot."""
        if self.key is None:
            return f"slot {self.slot}"
        text = self.key.decode(errors="replace")
        return repr(text) if text.isprintable() and "\ufffd" not in text else f"0x{self.key.hex()}"


@dataclass(frozen=True)
class Findings:
    """The findings on one ring, or on an exchange across its rings; counts are of records, and of a key are all
    there or none.
    """

    scope: Scope
    loads: Sequence[Load]
    """The load of each destination, in the order of the ring."""
    candidates: Sequence[HotKey]
    """The hot keys, the hottest first, with all that may outweigh a destination."""
    asked: int
    """How many of the hottest keys are shown whether or not they outweigh a destination."""
    spread: Sequence[tuple[int, int]]
    """Pairs of a number of messages and how many keys have so many."""
    sample: Sample
    """The messages by slot, of which shares of everything published are estimated."""
    approximate: bool
    """Whether the messages of `candidates` are estimates."""
    keys_share: float
    """The share of the sampled slots whose keys were counted for `spread` and for the loads."""

    @property
    def name(self) -> str:
        """The name of the exchange, or of its ring, for people."""
        where = f"{self.scope.exchange} (virtual host {self.scope.vhost}"
        return f"{where})" if self.scope.across else f"{where}, ring {self.scope.ring})"

    @cached_property
    def messages(self) -> int:
        """The number of messages of all destinations."""
        return sum(load.messages for load in self.loads)

    @cached_property
    def keys(self) -> int:
        """The number of distinct keys that were counted."""
        return sum(count for _, count in self.spread)

    @property
    def by_slot(self) -> bool:
        """Whether no record has a key, as far as they were counted (there may be none) and by the hottest."""
        named = any(load.named for load in self.loads) or any(key.key is not None for key in self.candidates)
        return bool(self.candidates) and not named

    @cached_property
    def chi_squared(self) -> measures.ChiSquared | None:
        """The test of the ring, in which each key counts once; None across several rings, since each has its own
        weights.
        """
        if self.scope.rings > 1:
            return None
        slots = max(1, round(SLOTS * self.scope.least * self.keys_share))
        named = sum(load.named for load in self.loads)
        return measures.chi_squared(*self._keys_and_weights, named, slots)

    def keys_over_mean(self, load: Load) -> float:
        """Return a destination's distinct keys per weight, divided by the mean of all destinations."""
        keys, weights = self._keys_and_weights
        return load.keys * sum(weights) / ((load.weight or 0) * sum(keys))

    @property
    def _keys_and_weights(self) -> tuple[list[int], list[int]]:
        return [load.keys for load in self.loads], [load.weight or 0 for load in self.loads]

    @cached_property
    def gini(self) -> float:
        """The Gini coefficient of the messages by key; of a sample, which draws keys alike, an estimate."""
        return measures.gini(self.spread)

    @cached_property
    def shares(self) -> Estimates:
        """Each destination's share of everything published, in the order of `loads`."""
        return self.sample.shares(*self._seen)

    @cached_property
    def max_over_fair(self) -> Estimate:
        """The busiest destination's messages by weight, over the mean by weight: 1 where loads are as weights."""
        return self.sample.max_over_fair(*self._seen, self._fair)

    @property
    def doubt(self) -> str:
        """A sentence on the figures that the sample cannot tell; empty if it tells enough."""
        return doubt(self.sample, [self.max_over_fair])

    @property
    def busiest(self) -> Load:
        """The destination that has the most for its weight."""
        return self.loads[int(np.argmax(self.shares.value / self._fair))]

    @property
    def _seen(self) -> tuple[Any, Any]:
        seen, unseen = ([getattr(load, name) for load in self.loads] for name in ("messages", "unseen"))
        return np.array(seen, dtype=np.float64), np.array(unseen, dtype=np.float64)

    @property
    def _fair(self) -> Any:
        return np.array([load.fair for load in self.loads])

    @cached_property
    def unfixable(self) -> list[HotKey]:
        """Keys that alone are more than their destination's fair share, by the low end of the interval."""
        return [key for key in self.candidates if self.outweighs(key)]

    @cached_property
    def maybe_unfixable(self) -> list[HotKey]:
        """Keys of which the sample cannot tell whether they are: the interval has the fair share within it."""
        return [key for key in self.candidates if self.may_outweigh(key)]

    @cached_property
    def hot(self) -> list[HotKey]:
        """The keys to show: the hottest, and all that outweigh their destination or may."""
        shown = {*self.candidates[: self.asked], *self.unfixable, *self.maybe_unfixable}
        return [key for key in self.candidates if key in shown]

    def share(self, key: HotKey) -> Estimate:
        """Return a key's share of everything published."""
        return self.sample.share_of(key.messages)

    def top(self, count: int) -> Estimate:
        """Return the share of everything published that the hottest keys in the sample have together."""
        return self.sample.share_of(sum(key.messages for key in self.candidates[:count]))

    def outweighs(self, key: HotKey) -> bool:
        """Return whether no weight can fix it: its destination is above its fair share by this key alone."""
        return self._can_outweigh(key) and self.share(key).low * _sure(key) > key.fair

    def may_outweigh(self, key: HotKey) -> bool:
        """Return whether the sample leaves open if no weight can fix it."""
        return self._can_outweigh(key) and not self.outweighs(key) and self.share(key).high * _sure(key) > key.fair

    @cached_property
    def above_by_chance(self) -> list[HotKey]:
        """The keys above their destination's fair share by too few messages to be no chance, the hottest first."""
        return [
            key
            for key in self.candidates
            if len(self.loads) > 1
            and self.share(key).value > key.fair
            and not self.outweighs(key)
            and not self.may_outweigh(key)
        ]

    def is_little(self, fair: float) -> bool:
        """Return whether this fair share of the counted messages is so few that chance or one key's retries exceed it.

        The limit is the one below which chi-squared judges no ring.
        """
        return self.messages * fair < measures.LEAST_EXPECTED

    def _can_outweigh(self, key: HotKey) -> bool:
        """Return whether there are other destinations, and enough messages to judge this key's by."""
        return len(self.loads) > 1 and not self.is_little(key.fair)

    def row(self) -> tuple[Any, ...]:
        """Return the row of RINGS."""
        tested = self.chi_squared or (None, None, None)
        return (
            *(*self.scope.columns, self.scope.rings, self.scope.records, self.messages, self.scope.least),
            *(*map(_finite, self.sample.total()), self.sample.holds),
            *(self.by_slot, self.approximate, self.keys, self.keys_share, *tested, self.gini),
            *(*self.top(1), *self.top(10), *self.max_over_fair, len(self.unfixable), len(self.maybe_unfixable)),
        )

    def destination_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of DESTINATIONS."""
        rows = []
        for n, load in enumerate(self.loads):
            shares = [float(part[n]) for part in self.shares]
            counts = (load.keys, load.messages, load.bytes, *shares, *(share / load.fair for share in shares))
            rows.append((*self.scope.columns, *load.destination, load.weight, load.fair, *counts))
        return rows

    def key_rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of KEYS."""
        return [
            (
                *(*self.scope.columns, key.key, key.slot, *key.owner, key.messages, *self.share(key), key.fair),
                *(self.outweighs(key), self.may_outweigh(key), self.approximate),
            )
            for key in self.hot
        ]


def _sure(key: HotKey) -> float:
    """Return what part of a key's messages are no chance: the low end of a Poisson count's interval, by the count.

    At most one key in its destination's fair share can have so much, so chance has as many tries to make one seem so
    (Bonferroni). Wilson and Hilferty's approximation; of six messages of six keys nothing is left.
    """
    z = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 * key.fair)
    return float(max(0.0, 1 - 1 / (9 * key.messages) - z / (3 * key.messages**0.5)) ** 3)


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
