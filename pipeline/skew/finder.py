"""Finding the skew of each exchange in a journal's records, across its rings, and of each of its rings."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession

from pipeline import PipelineError
from pipeline.data.rings import RingSpec
from pipeline.skew import keys, loads
from pipeline.skew.findings import Findings, HotKey, Load, Scope
from pipeline.skew.volumes import Drawn, Volume, volumes
from pipeline.stats.sampling import Sample, slots_of
from ring.destination import Destination
from ring.hashing import SLOTS
from ring.ring import owners

EXACT = 100_000_000
"""Records up to which every key is counted; above it keys are counted of so many, and hot keys are estimated of all."""

_HEAVIEST = 32
"""How many of the heaviest slots of each ring and exchange are looked at for heavy ones."""

_Place = tuple[str, str, str, bool]
"""The values of `keys.SCOPE`."""

_Rows = Mapping[_Place, Sequence[Row]]


@dataclass(frozen=True)
class _Part:
    """One of the rings of a scope."""

    ring: RingSpec
    place: _Place
    volume: Volume
    """The part of the scope's messages that went by this ring."""

    def owners(self, slots: Sequence[int]) -> list[Destination]:
        """Return the destination that owns each of these slots, without building the ring."""
        destinations = sorted(self.ring.weights)
        return [destinations[n] for n in owners(self.ring.weights, np.array(slots, np.int64)).tolist()]

    def fair(self, destination: Destination) -> float:
        """Return the share of this ring's messages that a destination's weight promises it, 0 if it has none."""
        return self.ring.weights.get(destination, 0) / sum(self.ring.weights.values())


@dataclass(frozen=True)
class _Judged:
    """An exchange across its rings, or one ring, before its hot keys are looked for."""

    scope: Scope
    place: _Place
    """The SCOPE values of the rows to read; an exchange that has one ring uses the rows of the ring."""
    parts: Sequence[_Part]
    loads: Sequence[Load]
    sample: Sample

    @property
    def limit(self) -> float:
        """The most messages that a key may have and surely not exceed the fair share of any destination."""
        least = (part.volume.published * part.fair(min(part.ring.weights, key=part.fair)) for part in self.parts)
        return self.sample.seen * sum(least)

    def hot_keys(self, rows: Sequence[Row]) -> list[HotKey]:
        """Return the keys of rows of `keys.hottest`; their destinations are those of the ring with the most records."""
        slots = [row.slot for row in rows]
        main: list[Destination] = []
        fair = [0.0] * len(rows)
        for part in self.parts:
            its = part.owners(slots)
            fair = [total + part.volume.published * part.fair(owner) for total, owner in zip(fair, its, strict=True)]
            if part.place == (*self.place[:2], self.scope.ring, False):
                main = its
        return [
            HotKey(row.slot, None if row.key is None else bytes(row.key), row.messages, owner, promised)
            for row, owner, promised in zip(rows, main, fair, strict=True)
        ]


def find(
    spark: SparkSession,
    records: DataFrame,
    rings: Mapping[str, RingSpec],
    journal: str,
    top: int,
    *,
    approximate: bool = False,
    exact: int = EXACT,
) -> list[Findings]:
    """Return what there is to say of each exchange, those with the most records first, each followed by its rings.

    Beyond `exact` records, keys are counted of a part of the slots only. There, or with `approximate`, hot keys are
    estimated. Bytes are known of destinations, and of no key. Raises PipelineError for a ring that records name and
    `rings`, the journal's, lack.
    """
    scopes = _scopes(records)
    for scope, _ in scopes:
        if scope.ring not in rings:
            raise PipelineError(
                f"{journal}: {scope.records:,} records of exchange {scope.exchange!r} name ring {scope.ring}: "
                f"rings/{scope.ring}.json is missing"
            )
    used = {scope.ring: rings[scope.ring].weights for scope, _ in scopes}
    across = [scope for scope, _ in scopes if scope.across]
    total = sum(scope.records for scope in across)
    approximate = approximate or total > exact
    share = min(1.0, exact / total) if total else 1.0
    tables = _counted(records, across, share, approximate)
    key_rows = _by_scope(loads.key_loads(spark, tables.keys, used))
    message_rows = _by_scope(loads.message_loads(spark, tables.slots_of_rings, used))
    heaviest, samples = _samples([scope for scope, _ in scopes], tables.slots)
    not_drawn = _not_drawn([scope for scope, its in scopes if its == [scope]], used)
    judged = [
        _judged(
            scope,
            _parts(scope, its, rings, heaviest, samples),
            key_rows,
            message_rows,
            samples[_place(scope)],
            not_drawn,
        )
        for scope, its in scopes
    ]
    limits = [(*place, limit) for place, limit in {one.place: one.limit for one in judged}.items()]
    outweighing = spark.createDataFrame(limits, f"{keys.SCOPES}, limit double")
    hottest = keys.hottest(tables.candidates, top).union(keys.above(tables.candidates, outweighing)).distinct()
    hot_rows, spread = _by_scope(hottest), _by_scope(keys.spread(tables.keys))
    for cached in tables.cached:
        cached.unpersist()
    found = []
    for one in judged:
        hot = one.hot_keys(hot_rows[one.place])
        hot.sort(key=lambda key: (-key.messages, key.slot, key.key or b""))
        pairs = [(row.messages, row["keys"]) for row in spread[one.place]]
        found.append(Findings(one.scope, one.loads, hot, top, pairs, one.sample, approximate, share))
    return found


@dataclass(frozen=True)
class _Tables:
    """The counts of each ring; except in `slots_of_rings`, also of each exchange that has several rings."""

    keys: DataFrame
    """The messages by key, maybe for only a share of the slots."""
    slots: DataFrame
    """The messages by slot, or by key if keys are counted for all slots."""
    slots_of_rings: DataFrame
    """The messages and bytes of each ring, by slot or key as in `slots`."""
    candidates: DataFrame
    """The messages by key of keys that include the hottest ones of all slots."""
    cached: Sequence[DataFrame]


def _counted(records: DataFrame, exchanges: Sequence[Scope], share: float, approximate: bool) -> _Tables:
    """Return the counts of a journal's records: of all keys in a `share` of the slots, and of the hottest in all."""
    spark, cached = records.sparkSession, []
    several = [_place(scope) for scope in exchanges if scope.rings > 1]

    def kept(rows: DataFrame) -> DataFrame:
        cached.append(rows.cache())
        return rows

    def with_across(rows: DataFrame) -> DataFrame:
        # Where each exchange has one ring, what is of the ring is of the exchange.
        if not several:
            return rows.drop("bytes")
        return kept(keys.with_across(rows, spark.createDataFrame(several, keys.SCOPES)))

    samples = spark.createDataFrame(
        [(scope.vhost, scope.exchange, scope.least) for scope in exchanges],
        "vhost string, exchange string, least double",
    )
    whole = keys.whole(records, samples)
    of_rings = kept(keys.key_counts(whole if share == 1 else keys.whole(records, samples, share)))
    counts = with_across(of_rings)
    if not approximate:
        # Where every key is counted, their counts are all that is needed of the records.
        return _Tables(counts, counts, of_rings, counts, cached)
    slots = kept(keys.slot_counts(whole))
    return _Tables(counts, with_across(slots), slots, with_across(kept(keys.about_counts(whole))), cached)


def _scopes(records: DataFrame) -> list[tuple[Scope, list[Scope]]]:
    """Return each exchange, those with the most records first, with its rings; and each of those with itself behind it.

    All of an exchange are judged by its least sample, so that they are of the same keys.
    """
    of_exchange: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in keys.sizes(records).collect():
        of_exchange[row.vhost, row.exchange].append(row)
    found = []
    for (vhost, exchange), rows in of_exchange.items():
        rows.sort(key=lambda row: (-row.records, row.ring))
        least, count = min(row.least for row in rows), sum(row.records for row in rows)
        rings = [Scope(**row.asDict() | {"least": least}) for row in rows]
        largest, since, until = max(r.largest for r in rings), min(r.since for r in rings), max(r.until for r in rings)
        of_it = (vhost, exchange, rings[0].ring, count, least, largest, since, until, len(rings), True)
        found.append((Scope(*of_it), rings))
    found.sort(key=lambda pair: (-pair[0].records, pair[0].vhost, pair[0].exchange))
    return [one for across, rings in found for one in ((across, rings), *((ring, [ring]) for ring in rings))]


def _place(scope: Scope) -> _Place:
    return scope.vhost, scope.exchange, scope.ring, scope.across and scope.rings > 1


def _samples(scopes: Sequence[Scope], slots: DataFrame) -> tuple[_Rows, dict[_Place, Sample]]:
    """Return of each scope the rows of its heaviest slots, where there are samples, and its sample."""
    sums = keys.by_slot(slots)
    heaviest = _by_scope(keys.hottest(sums, _HEAVIEST)) if any(scope.least < 1 for scope in scopes) else {}
    spread = _by_scope(keys.spread(sums))
    samples = {}
    for scope in scopes:
        place = _place(scope)
        pairs = [(row.slot, row.messages) for row in heaviest.get(place, [])]
        counts = [(row.messages, row["keys"]) for row in spread.get(place, [])]
        samples[place] = Sample.of(slots_of(scope.least), counts, pairs)
    return heaviest, samples


def _parts(
    scope: Scope,
    its: Sequence[Scope],
    rings: Mapping[str, RingSpec],
    heaviest: _Rows,
    samples: Mapping[_Place, Sample],
) -> list[_Part]:
    """Return the parts of a scope, of which `its` rings are given."""
    sample = samples[_place(scope)]
    drawn = []
    for one in its:
        alone = sum(row.messages for row in heaviest.get(_place(one), []) if row.slot in sample.alone)
        drawn.append(Drawn(samples[_place(one)].seen, alone, one.records * scope.least / one.largest))
    found = volumes(sample, drawn)
    return [_Part(rings[one.ring], _place(one), volume) for one, volume in zip(its, found, strict=True)]


def _not_drawn(
    scopes: Sequence[Scope], rings: Mapping[str, Mapping[Destination, int]]
) -> dict[_Place, Mapping[Destination, int]]:
    """Return of each ring of a sampled journal how many slots that were not drawn each destination owns."""
    found: dict[_Place, Mapping[Destination, int]] = {}
    for scope in scopes:
        weights, slots = rings[scope.ring], np.arange(slots_of(scope.least), SLOTS)
        if slots.size:
            owned = np.bincount(owners(weights, slots), minlength=len(weights)).tolist()
            found[_place(scope)] = dict(zip(sorted(weights), owned, strict=True))
    return found


def _judged(
    scope: Scope,
    parts: Sequence[_Part],
    key_rows: _Rows,
    message_rows: _Rows,
    sample: Sample,
    not_drawn: Mapping[_Place, Mapping[Destination, int]],
) -> _Judged:
    """Return a scope with what each destination has got, also one that got nothing."""
    counted = {Destination(row.kind, row["name"]): (row["keys"], row.named) for row in key_rows[_place(scope)]}
    sums: dict[Destination, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in (row for part in parts for row in message_rows[part.place]):
        messages, size = sums[Destination(row.kind, row["name"])]
        sums[Destination(row.kind, row["name"])] = messages + row.messages, size + row.bytes
    unseen: dict[Destination, float] = defaultdict(float)
    for part in parts:
        for destination, count in not_drawn.get(part.place, {}).items():
            unseen[destination] += part.volume.unseen * count
    found = []
    for destination in sorted({destination for part in parts for destination in part.ring.weights}):
        weights = {part.ring.weights.get(destination) for part in parts}
        fair = sum(part.volume.published * part.fair(destination) for part in parts)
        weight = weights.pop() if len(weights) == 1 else None
        keys_and_named = counted.get(destination, (0, 0))
        found.append(Load(destination, weight, fair, *keys_and_named, *sums[destination], unseen[destination]))
    return _Judged(scope, _place(scope), parts, found, sample)


def _by_scope(rows: DataFrame) -> dict[_Place, list[Row]]:
    grouped: dict[_Place, list[Row]] = defaultdict(list)
    for row in rows.collect():
        grouped[row.vhost, row.exchange, row.ring, row.across].append(row)
    return grouped
