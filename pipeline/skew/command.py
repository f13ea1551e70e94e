"""Hot keys, and three things kept apart: whether the ring is even, how uneven keys are, what load comes of both.

Says which keys no weight can fix. Every exchange and ring (fingerprint) of the journal is judged apart.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from pipeline import PipelineError, about, gaps, period
from pipeline.folder import Folder
from pipeline.journal import read_records, read_rings
from pipeline.rings import KnownRing
from pipeline.session import spark_session
from pipeline.skew import keys, loads, words
from pipeline.skew.findings import DESTINATIONS, KEYS, RINGS, Findings, HotKey, Load, Scope
from pipeline.skew.report import report

EXACT = 100_000_000
"""Records up to which every key is counted; above it keys are counted of so many, and hot keys are estimated of all."""

LEAST_TOP, MOST_TOP = 10, keys.TRACKED


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of this job."""
    parser.add_argument("--journal", required=True, metavar="DIR", help="the sidecars' journal_dir, or a copy of it")
    period.add_arguments(parser)
    parser.add_argument(
        "--out", required=True, metavar="DIR", help="where keys/, destinations/, rings/, report.html go"
    )
    parser.add_argument("--top", type=int, default=20, metavar="N", help="hot keys of each ring (default: 20)")
    parser.add_argument(
        "--approximate", action="store_true", help=f"estimate hot keys, as is done above {EXACT:,} records anyway"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the tables and the report; 0."""
    if not LEAST_TOP <= options.top <= MOST_TOP:
        raise PipelineError(f"--top: {options.top} is outside {LEAST_TOP} to {MOST_TOP}")
    within = period.period_of(options)
    with spark_session("skew") as spark:
        out = Folder(spark, options.out)
        rings, records = read_rings(spark, options.journal), read_records(spark, options.journal, within)
        with gaps.found(options.journal, records, within) as missing_rows:
            missing = gaps.counted(missing_rows)
        found = find(spark, records, rings, options.journal, options.top, approximate=options.approximate)
        if not found:
            raise period.no_record(options.journal, within)
        for name, rows, schema in (
            ("rings", [one.row() for one in found], RINGS),
            ("destinations", [row for one in found for row in one.destination_rows()], DESTINATIONS),
            ("keys", [row for one in found for row in one.key_rows()], KEYS),
        ):
            spark.createDataFrame(rows, schema).coalesce(1).write.mode("overwrite").parquet(f"{out}/{name}")
        first, last = min(one.scope.since for one in found), max(one.scope.until for one in found)
        parameters = {"--top": options.top, "--approximate": options.approximate}
        page = report(found, missing, about.of_journal(options.journal, within, (first, last), parameters))
        if within.is_limited:
            page.text(f"All of it is of records {within}.")
        out.write("report.html", page.html())
    for one in found:
        print(f"{one.name}: {words.of_load(one)} {words.of_weights(one)}")
    print(f"{missing.records:,} records missing: {out}/report.html")
    return 0


def find(
    spark: SparkSession,
    records: DataFrame,
    rings: Mapping[str, KnownRing],
    journal: str,
    top: int,
    *,
    approximate: bool = False,
    exact: int = EXACT,
) -> list[Findings]:
    """What there is to say of each ring, those with the most records first. Raises PipelineError for a missing ring."""
    sizes = keys.sizes(records).orderBy(F.desc("records"), *keys.RING).cache()
    scopes = [Scope(**row.asDict()) for row in sizes.collect()]
    for scope in scopes:
        if scope.ring not in rings:
            raise PipelineError(
                f"{journal}: {scope.records:,} records of exchange {scope.exchange!r} name ring {scope.ring}: "
                f"rings/{scope.ring}.json is missing"
            )
    used = {scope.ring: rings[scope.ring].ring for scope in scopes}
    total = sum(scope.records for scope in scopes)
    approximate = approximate or total > exact
    share = min(1.0, exact / total) if total else 1.0
    whole = keys.whole(records, sizes)
    counts = keys.key_counts(whole if share == 1 else keys.whole(records, sizes, share)).cache()
    # Where every key is counted, their counts are all that is needed of the records.
    slots = keys.slot_counts(whole) if approximate else counts
    key_rows = _by_ring(loads.key_loads(spark, counts, used))
    message_rows = _by_ring(loads.message_loads(spark, slots, used))
    of_ring = {
        scope.ring_of: _loads(rings[scope.ring], key_rows[scope.ring_of], message_rows[scope.ring_of])
        for scope in scopes
    }
    limits = [(*scope.ring_of, _least_outweighing(of_ring[scope.ring_of]) / scope.least) for scope in scopes]
    outweighing = spark.createDataFrame(limits, keys.LIMITS)
    candidates = keys.about_counts(whole).cache() if approximate else counts
    hot_rows = _by_ring(keys.hottest(candidates, top).union(keys.above(candidates, outweighing)).distinct())
    spread = _by_ring(keys.spread(counts))
    for cached in (candidates, counts, sizes):
        cached.unpersist()
    found = []
    for scope in scopes:
        hot = [HotKey.of(row, used[scope.ring].owner(row.slot)) for row in hot_rows[scope.ring_of]]
        hot.sort(key=lambda key: (-key.messages, key.slot, key.key or b""))
        pairs = [(row.messages, row["keys"]) for row in spread[scope.ring_of]]
        found.append(Findings(scope, of_ring[scope.ring_of], hot, pairs, approximate, share))
    return found


def _loads(known: KnownRing, key_rows: Iterable[Row], message_rows: Iterable[Row]) -> list[Load]:
    """Of every destination, also one that got nothing."""
    counted, got = ({(row.kind, row["name"]): row for row in rows} for rows in (key_rows, message_rows))
    return [
        Load.of(destination, weight, counted.get(destination), got.get(destination))
        for destination, weight in sorted(known.weights.items())
    ]


def _least_outweighing(rows: Sequence[Load]) -> float:
    """Records that the lightest destination's fair share comes to."""
    total = sum(load.messages for load in rows)
    return total * min(load.weight for load in rows) / sum(load.weight for load in rows)


def _by_ring(rows: DataFrame) -> dict[tuple[str, str, str], list[Row]]:
    grouped: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in rows.collect():
        grouped[row.vhost, row.exchange, row.ring].append(row)
    return grouped
