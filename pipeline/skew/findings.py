"""What `skew` has found of one ring, and the sentences that say so."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import Row

from pipeline.skew import measures
from ring.destination import Destination
from ring.hashing import SLOTS

_RING = "vhost string, exchange string, ring string"
RINGS = (
    f"{_RING}, records long, messages long, sample double, by_slot boolean, approximate boolean, keys long, "
    "keys_share double, chi_squared double, freedom int, p double, gini double, top_key double, top_10 double, "
    "max_over_mean double, unfixable int"
)
DESTINATIONS = (
    f"{_RING}, kind string, destination string, weight int, fair_share double, keys long, messages long, bytes long, "
    "share double, over_fair double"
)
KEYS = (
    f"{_RING}, key binary, slot int, kind string, destination string, messages long, share double, fair_share double, "
    "unfixable boolean, estimated boolean"
)
"""The columns of the tables, as docs/pipeline.md says."""

UNEVEN = 0.001
"""A p-value below which chance is no explanation: one right ring in a thousand is called uneven."""


@dataclass(frozen=True)
class Scope:
    """Records of one exchange that name one ring."""

    vhost: str
    exchange: str
    ring: str
    records: int
    least: float
    """The least `sample`, and the largest."""
    largest: float
    since: int
    """The time of the first record, in microseconds since 1970, and of the last."""
    until: int

    @property
    def ring_of(self) -> tuple[str, str, str]:
        """What tells it from others."""
        return self.vhost, self.exchange, self.ring


@dataclass(frozen=True)
class Load:
    """What a destination has got."""

    destination: Destination
    weight: int
    keys: int
    named: int
    """Keys that are not null."""
    messages: int
    bytes: int

    @classmethod
    def of(cls, destination: Destination, weight: int, keys: Row | None, messages: Row | None) -> "Load":
        """From the rows of `loads`; None stands for nothing."""
        counted = (keys["keys"], keys.named) if keys is not None else (0, 0)
        got = (messages.messages, messages.bytes) if messages is not None else (0, 0)
        return cls(destination, weight, *counted, *got)


@dataclass(frozen=True)
class HotKey:
    """A key, or, where the journal has none, a slot."""

    slot: int
    key: bytes | None
    messages: int
    owner: Destination

    @classmethod
    def of(cls, row: Row, owner: Destination) -> "HotKey":
        """From a row of `keys.hottest`."""
        return cls(row.slot, None if row.key is None else bytes(row.key), row.messages, owner)

    def __str__(self) -> str:
        """As people read it: its text, or its bytes in hexadecimal digits, or its slot."""
        if self.key is None:
            return f"slot {self.slot}"
        text = self.key.decode(errors="replace")
        return repr(text) if text.isprintable() and "\ufffd" not in text else f"0x{self.key.hex()}"


@dataclass(frozen=True)
class Findings:
    """Of one ring; counts are of records, of which each key's are there whole."""

    scope: Scope
    loads: Sequence[Load]
    """Of each destination, in the ring's order."""
    hot: Sequence[HotKey]
    """The hottest first; all that outweigh a destination are there."""
    spread: Sequence[tuple[int, int]]
    """Pairs: messages, and how many keys have so many."""
    approximate: bool
    """Whether `hot` is an estimate."""
    keys_share: float
    """Of the sampled slots, those whose keys were counted for `spread` and the loads' keys."""

    @property
    def name(self) -> str:
        """As people read it."""
        return f"{self.scope.exchange} (ring {self.scope.ring}, virtual host {self.scope.vhost})"

    @cached_property
    def messages(self) -> int:
        """Of all destinations."""
        return sum(load.messages for load in self.loads)

    @cached_property
    def keys(self) -> int:
        """Distinct ones that were counted."""
        return sum(load.keys for load in self.loads)

    @property
    def by_slot(self) -> bool:
        """Whether no record has a key, as far as they were counted (there may be none) and by `hot`."""
        named = any(load.named for load in self.loads) or any(key.key is not None for key in self.hot)
        return bool(self.hot) and not named

    @cached_property
    def chi_squared(self) -> measures.ChiSquared | None:
        """Of the ring: keys, however hot, count once."""
        slots = max(1, round(SLOTS * self.scope.least * self.keys_share))
        named = sum(load.named for load in self.loads)
        return measures.chi_squared(*self._keys_and_weights, named, slots)

    def keys_over_mean(self, load: Load) -> float:
        """A destination's distinct keys for its weight, over the mean of all."""
        keys, weights = self._keys_and_weights
        return load.keys * sum(weights) / (load.weight * sum(keys))

    @property
    def _keys_and_weights(self) -> tuple[list[int], list[int]]:
        return [load.keys for load in self.loads], [load.weight for load in self.loads]

    @cached_property
    def gini(self) -> float:
        """Of the keys."""
        return measures.gini(self.spread)

    @cached_property
    def max_over_mean(self) -> float:
        """Of the load by weight."""
        return measures.max_over_mean([load.messages for load in self.loads], [load.weight for load in self.loads])

    @property
    def unfixable(self) -> list[HotKey]:
        """Keys that alone are more than their destination's fair share."""
        return [key for key in self.hot if self.outweighs(key)]

    def fair_share(self, destination: Destination) -> float:
        """The share that its weight promises it."""
        return self._fair_shares[destination]

    @cached_property
    def _fair_shares(self) -> dict[Destination, float]:
        total = sum(load.weight for load in self.loads)
        return {load.destination: load.weight / total for load in self.loads}

    @property
    def published(self) -> float:
        """Messages of all keys, those outside the sample with them: a sampled key's are all there, the others' none."""
        return self.messages / self.scope.least

    def share(self, key: HotKey) -> float:
        """Of what was published."""
        return key.messages / self.published

    def top(self, count: int) -> float:
        """The share of the hottest keys, of those in the sample."""
        return sum(key.messages for key in self.hot[:count]) / self.published

    def outweighs(self, key: HotKey) -> bool:
        """Whether no weight can fix it: its queue is above its fair share by this key alone."""
        return len(self.loads) > 1 and self.share(key) > self.fair_share(key.owner)

    def row(self) -> tuple[Any, ...]:
        """Of RINGS."""
        tested = self.chi_squared or (None, None, None)
        return (
            *(*self.scope.ring_of, self.scope.records, self.messages, self.scope.least),
            *(self.by_slot, self.approximate, self.keys, self.keys_share, *tested, self.gini),
            *(self.top(1), self.top(10), self.max_over_mean, len(self.unfixable)),
        )

    def destination_rows(self) -> list[tuple[Any, ...]]:
        """Of DESTINATIONS."""
        rows = []
        for load in self.loads:
            share, fair = load.messages / self.messages, self.fair_share(load.destination)
            counts = (load.keys, load.messages, load.bytes, share, share / fair)
            rows.append((*self.scope.ring_of, *load.destination, load.weight, fair, *counts))
        return rows

    def key_rows(self) -> list[tuple[Any, ...]]:
        """Of KEYS."""
        return [
            (
                *(*self.scope.ring_of, key.key, key.slot, *key.owner, key.messages, self.share(key)),
                *(self.fair_share(key.owner), self.outweighs(key), self.approximate),
            )
            for key in self.hot
        ]
