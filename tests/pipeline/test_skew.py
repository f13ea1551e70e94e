"""Skew: what is the ring's, what is the keys' and what is load are kept apart; and which keys no weight can fix."""

import itertools
import json
from collections import Counter
from pathlib import Path

import mmh3
import numpy as np
import pytest
from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.gaps import Missing
from pipeline.data.journal import read_records, read_rings
from pipeline.data.rings import RingSpec
from pipeline.skew import keys, measures, words
from pipeline.skew.finder import find
from pipeline.skew.findings import DESTINATIONS, KEYS, RINGS, Findings, Load, Scope
from pipeline.skew.report import report
from pipeline.stats.sampling import Sample
from ring.destination import Destination
from ring.hashing import SLOTS, slot_of
from ring.ring import Ring, owners
from tests.pipeline.records import START, Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 2})
COLD = [f"customer-{n}".encode() for n in range(400)]
COLD_OF_MANY = [b"customer-%d" % n for n in range(1000)]


def columns(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def murmur_slot(key: bytes) -> int:
    """The slot by the hash itself: the first 20 bits of MurmurHash3_x64_128."""
    return int(mmh3.hash64(key, signed=False)[0] >> 44)


def found_in(
    spark: SparkSession,
    folder: Path,
    records: list[Record],
    *rings: RingSpec,
    approximate: bool = False,
    exact: int = 10**6,
) -> list[Findings]:
    write_journal(folder, records, rings or (KNOWN,))
    journal = str(folder)
    return find(
        spark,
        read_records(spark, journal),
        read_rings(spark, journal),
        journal,
        10,
        approximate=approximate,
        exact=exact,
    )


@pytest.mark.long
def test_a_hot_key_is_the_keys_doing_and_no_weight_can_fix_it(spark: SparkSession, tmp_path: Path) -> None:
    keys = COLD + [b"whale"] * 600 + [b"dolphin"] * 50
    [found, _] = found_in(spark, tmp_path, published(KNOWN, keys))
    assert [(key.key, key.messages) for key in found.hot[:2]] == [(b"whale", 600), (b"dolphin", 50)]
    assert [key.key for key in found.unfixable] == [b"whale"]
    assert set(found.share(found.hot[0])) == {600 / 1050}
    owner = KNOWN.ring.owner_of(b"whale")
    counts = Counter(KNOWN.ring.owner_of(key) for key in keys)
    assert {load.destination: load.messages for load in found.loads} == counts
    assert {load.destination: load.bytes for load in found.loads} == {d: 100 * n for d, n in counts.items()}
    assert {load.destination: load.keys for load in found.loads} == Counter(
        KNOWN.ring.owner_of(key) for key in set(keys)
    )
    assert found.max_over_fair == pytest.approx([counts[owner] / KNOWN.weights[owner] * 4 / 1050] * 3)
    assert found.chi_squared is not None
    assert found.chi_squared.p > 0.001
    assert "keys cause that" in words.of_load(found)
    assert words.of_ring(found).startswith("The ring is even")
    assert "key 'whale'" in words.of_weights(found)
    assert not words.caveats(found)


def test_a_ring_that_does_not_keep_to_its_weights_is_told_from_hot_keys(spark: SparkSession, tmp_path: Path) -> None:
    # Keys of one queue only, each once: a ring could not spread them so by chance.
    own = [key for key in COLD if KNOWN.ring.owner_of(key) == Destination("queue", "orders.1")]
    [found, _] = found_in(spark, tmp_path, published(KNOWN, own))
    assert found.chi_squared is not None
    assert found.chi_squared.p < 1e-6
    assert found.gini == pytest.approx(0)
    assert found.max_over_fair.value == 4
    assert [load.messages for load in found.loads] == [len(own), 0, 0]
    assert "The ring causes that" in words.of_load(found)


def spread(keys: list[int], share: float, *, by_slot: bool = False, hot: int = 0) -> Findings:
    """Ten queues that have got so many keys each, a message a key, in a share of all slots; the first `hot` more."""
    loads = [
        Load(
            Destination("queue", f"orders.{n}"),
            1,
            0.1,
            count,
            0 if by_slot else count,
            count + (hot if n == 0 else 0),
            0,
            0,
        )
        for n, count in enumerate(keys)
    ]
    scope = Scope("/", "orders", "ring", sum(keys), share**0.5, 1.0, 0, 0)
    sample = Sample.of(SLOTS, [(sum(keys) + hot, 1)])
    return Findings(scope, loads, [], 10, [(1, sum(keys))], sample, False, share**0.5)


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("names", ["orders", "mail", "log"])
def test_a_right_ring_is_even_however_many_keys_there_are(spark: SparkSession, names: str, share: float) -> None:
    table = ring_of({f"{names}.{n}": 1 for n in range(10)}).ring.table[: round(SLOTS * share)]
    slots = np.bincount(table, minlength=10)
    for count in (10**5, 10**7, 10**9):
        keys = [round(count * n / len(table)) for n in slots.tolist()]
        found = spread(keys, share, hot=count)
        assert words.of_ring(found).startswith("The ring is even")
        assert "keys cause that" in words.of_load(found)
    assert words.of_ring(spread(slots.tolist(), share, by_slot=True)).startswith("The ring is even")


def test_a_hot_key_of_another_queue_is_not_the_doing_of_an_uneven_ring(spark: SparkSession) -> None:
    found = spread([1_000_000] * 9 + [1_200_000], 1.0, hot=10**7)
    assert words.of_ring(found).startswith("The ring is uneven")
    assert "orders.0" in words.of_load(found)
    assert "keys cause that" in words.of_load(found)


def test_a_ring_that_is_uneven_is_told_also_of_many_keys(spark: SparkSession) -> None:
    found = spread([1_030_000] + [1_000_000] * 9, 1.0, hot=10**7)
    assert words.of_ring(found).startswith("The ring is uneven")
    # By 3%, which is not what makes the load uneven.
    assert "keys cause that" in words.of_load(found)
    found = spread([1_200_000] + [1_000_000] * 9, 1.0)
    assert words.of_ring(found).startswith("The ring is uneven")
    assert "The ring causes that" in words.of_load(found)


@pytest.mark.long
def test_estimates_name_the_same_keys(spark: SparkSession, tmp_path: Path) -> None:
    keys = COLD * 5 + [b"whale"] * 4000 + [bytes([0, 255])] * 500
    [found, _] = found_in(spark, tmp_path, published(KNOWN, keys), approximate=True)
    assert [(key.key, key.messages) for key in found.hot[:2]] == [(b"whale", 4000), (bytes([0, 255]), 500)]
    assert found.hot[0].owner == KNOWN.ring.owner_of(b"whale")
    assert str(found.hot[1]) == "0x00ff"
    assert found.keys == 402
    assert found.messages == 6500
    # Above so many records: loads are of all of them, distinct keys of fewer slots.
    [found, _] = found_in(spark, tmp_path, [], exact=3250)
    assert found.approximate
    assert found.messages == 6500
    assert found.keys_share == 0.5
    assert 150 < found.keys < 250
    assert "estimates" in " ".join(words.caveats(found))


def test_estimates_name_all_keys_that_no_weight_can_fix(spark: SparkSession, tmp_path: Path) -> None:
    known = ring_of({f"orders.{n}": 1 for n in range(40)})
    hot = COLD[:15]
    [found, _] = found_in(spark, tmp_path, published(known, COLD + hot * 100), known, approximate=True)
    # More than the ten that were asked for.
    assert {key.key for key in found.unfixable} == set(hot)
    assert len(found.hot) == len(hot)


def test_an_exchange_whose_keys_are_in_no_counted_slot_is_told(spark: SparkSession, tmp_path: Path) -> None:
    outside = max(COLD, key=slot_of)
    records = published(KNOWN, COLD) + published(KNOWN, [outside] * 20, exchange="mail", first=401)
    [_, _, mail, _] = found_in(spark, tmp_path, records, exact=42)
    assert (mail.keys, mail.messages, mail.hot[0].key) == (0, 20, outside)
    assert not mail.by_slot
    assert words.of_ring(mail) == "0 distinct keys are too few to judge the ring by."
    assert mail.scope.across
    report([mail], Missing(0, 0), {}).write(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 2


def test_without_keys_slots_stand_for_them(spark: SparkSession, tmp_path: Path) -> None:
    keys = COLD + [b"whale"] * 600
    [found, _] = found_in(spark, tmp_path, published(KNOWN, keys, with_key=False))
    assert found.by_slot
    assert found.hot[0].key is None
    assert found.hot[0].messages == 600
    assert str(found.hot[0]).startswith("slot ")
    assert "slot stands for a key" in words.caveats(found)[0]
    assert "slots" in words.of_ring(found)
    assert words.of_weights(found).startswith(f"No weight can fix {found.hot[0]}: ")


def test_a_key_of_a_sample_is_judged_by_all_messages(spark: SparkSession, tmp_path: Path) -> None:
    records = published(KNOWN, COLD, sample=0.5) + published(KNOWN, COLD, proxy="b2" * 8, sample=0.25)
    hot = next(r for r in records if r["slot"] < 1 << 18)
    copies = [hot | {"seq": n, "proxy": "c3" * 8, "sample": 0.25} for n in range(1, 101)]
    [found, _] = found_in(spark, tmp_path, records + copies)
    kept = [r for r in records + copies if r["slot"] < 1 << 18]
    assert found.messages == len(kept)
    assert found.hot[0].messages == 102
    # More than a fair share of the sample, less of all: nobody else is known of three quarters of the slots.
    assert found.share(found.hot[0]).value == pytest.approx(102 / (102 + (len(kept) - 102) * 4), rel=1e-4)
    assert len(words.caveats(found)) == 2


@pytest.mark.long
def test_a_hot_key_of_a_sample_of_one_percent_is_as_hot_as_it_is(spark: SparkSession, tmp_path: Path) -> None:
    # 70,000 messages, each of another key, and 30,000 of one key, which is in the sample.
    whale = next(key for key in (b"whale-%d" % n for n in itertools.count()) if murmur_slot(key) < SLOTS // 100)
    cold = [b"customer-%d" % n for n in range(70_000)]
    known = ring_of({f"orders.{n}": 1 for n in range(10)})
    [found, _] = found_in(spark, tmp_path, published(known, cold + [whale] * 30_000, sample=0.01), known)
    others = sum(1 for key in cold if murmur_slot(key) < SLOTS // 100)
    [key] = found.unfixable
    assert key.key == whale
    share = found.share(key)
    assert share.value == pytest.approx(30_000 / (30_000 + others * 100), rel=0.001)
    assert share.low < 0.3 < share.high
    assert share.high - share.low < 0.06
    assert "No weight can fix key" in words.of_weights(found)
    # The queue of the key has it, and a tenth of the others.
    assert found.max_over_fair.low < 10 * (0.3 + 0.07) < found.max_over_fair.high
    assert found.max_over_fair.value == pytest.approx(3.7, rel=0.08)
    [row] = [row for row in found.destination_rows() if row[4] == key.owner.name]
    assert dict(zip(columns(DESTINATIONS), row, strict=True))["over_fair"] == found.max_over_fair.value
    [row] = [row for row in found.key_rows() if row[3] == whale]
    told = dict(zip(columns(KEYS), row, strict=True))
    assert (told["share"], told["share_low"], told["share_high"]) == share
    assert (told["unfixable"], told["maybe_unfixable"]) == (True, False)
    [row] = spark.createDataFrame([found.row()], RINGS).collect()
    assert (row.top_key, row.top_key_low, row.top_key_high) == share
    assert row.published_low < 100_000 < row.published_high
    assert row.published == pytest.approx(30_000 + others * 100, rel=0.001)


def test_where_a_sample_leaves_it_open_a_key_is_one_that_maybe_no_weight_can_fix(
    spark: SparkSession, tmp_path: Path
) -> None:
    # A hundred keys of 50 messages in a sample of a quarter, and one of 900: of 400 such keys it is 4.3%, fair is 4.2%.
    cold = [key for key in COLD_OF_MANY if murmur_slot(key) < SLOTS // 4][:100]
    whale = next(key for key in (b"whale-%d" % n for n in itertools.count()) if murmur_slot(key) < SLOTS // 4)
    known = ring_of({f"orders.{n}": 1 for n in range(24)})
    [found, _] = found_in(spark, tmp_path, published(known, cold * 50 + [whale] * 900, sample=0.25), known)
    share = found.share(found.hot[0])
    assert share.value == pytest.approx(900 / (4 * 5_900))
    assert share.low < 1 / 24 < share.high
    assert (found.unfixable, [key.key for key in found.maybe_unfixable]) == ([], [whale])
    assert words.of_weights(found).startswith("Maybe no weight can fix key 'whale-")


@pytest.mark.long
def test_six_records_name_no_key_that_no_weight_can_fix(spark: SparkSession, tmp_path: Path) -> None:
    for queues in (10, 500):
        known = ring_of({f"orders.{n}": 1 for n in range(queues)})
        [found, ring] = found_in(spark, tmp_path / str(queues), published(known, COLD[:6]), known)
        for one in (found, ring):
            # Each is a sixth of the messages, and a fair share less.
            assert one.share(one.hot[0]).value == pytest.approx(1 / 6)
            assert (one.unfixable, one.maybe_unfixable) == ([], [])
            assert words.of_weights(one) == "6 records are too few to say which key exceeds a fair share by itself."


def test_of_many_rings_none_is_built_or_sent(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring has 2 MiB; a journal of 1 MB may name hundreds, each of some records."""
    rings = [ring_of({f"orders.{n}": 1 + (n == changed) for n in range(40)}) for changed in range(40)]
    queues = sorted(rings[0].weights)
    journal = []
    for n, ring in enumerate(rings):
        part = published(rings[0], COLD[:20], first=1 + 20 * n, start=START + n * 1_000_000)
        owner = owners(ring.weights, np.array([record["slot"] for record in part]))
        journal += [
            record | {"ring": ring.fingerprint, "destination": queues[its].name}
            for record, its in zip(part, owner.tolist(), strict=True)
        ]

    def built(_: object) -> Ring:
        raise AssertionError("no ring is built")

    sent = []

    def broadcast(self: SparkContext, value: object) -> Broadcast[object]:
        sent.append(len(cloudpickle.dumps(value)))  # type: ignore[no-untyped-call]
        return shared(self, value)

    shared = SparkContext.broadcast
    monkeypatch.setattr(Ring, "build", built)
    monkeypatch.setattr(SparkContext, "broadcast", broadcast)
    across, *each = found_in(spark, tmp_path, journal, *rings)
    assert (len(each), across.messages) == (40, 800)
    assert sum(sent) < 1_000_000
    for one in each:
        got = Counter(record["destination"] for record in journal if record["ring"] == one.scope.ring)
        assert {load.destination.name: load.messages for load in one.loads if load.messages} == got
        owner_of = {record["slot"]: record["destination"] for record in journal if record["ring"] == one.scope.ring}
        assert [key.owner.name for key in one.hot] == [owner_of[key.slot] for key in one.hot]


def test_an_exchange_is_judged_across_its_rings_and_then_each_ring(spark: SparkSession, tmp_path: Path) -> None:
    changed = ring_of({"orders.1": 3, "orders.2": 1, "orders.3": 2, "orders.4": 1})
    early, late = COLD[:40] + [b"whale"] * 100, COLD[20:50] + [b"whale"] * 50 + [b"dolphin"] * 6
    records = published(KNOWN, early) + published(changed, late, first=141)
    records += published(KNOWN, COLD[:24], exchange="mail", first=227)
    found = found_in(spark, tmp_path, records, KNOWN, changed)
    assert [(one.scope.exchange, one.scope.across, one.scope.ring, one.messages) for one in found] == [
        ("orders", True, KNOWN.fingerprint, 226),
        ("orders", False, KNOWN.fingerprint, 140),
        ("orders", False, changed.fingerprint, 86),
        ("mail", True, KNOWN.fingerprint, 24),
        ("mail", False, KNOWN.fingerprint, 24),
    ]
    across, first, second, _, _ = found
    assert [(key.key, key.messages) for key in across.hot[:2]] == [(b"whale", 150), (b"dolphin", 6)]
    assert (across.keys, first.keys, second.keys) == (52, 41, 32)
    assert across.share(across.hot[0]).value == 150 / 226
    got = Counter(KNOWN.ring.owner_of(key) for key in early)
    got.update(changed.ring.owner_of(key) for key in late)
    fair = {d: (140 * KNOWN.weights.get(d, 0) / 4 + 86 * weight / 7) / 226 for d, weight in changed.weights.items()}
    assert {load.destination: load.messages for load in across.loads} == {d: got[d] for d in changed.weights}
    assert {load.destination: load.fair for load in across.loads} == pytest.approx(fair)
    assert [load.weight for load in across.loads] == [None, 1, 2, None]
    assert across.max_over_fair.value == pytest.approx(max(got[d] / 226 / fair[d] for d in fair))
    [key] = across.unfixable
    before, after = KNOWN.ring.owner_of(b"whale"), changed.ring.owner_of(b"whale")
    assert key.fair == pytest.approx((140 * KNOWN.weights[before] / 4 + 86 * changed.weights[after] / 7) / 226)
    assert across.chi_squared is None
    assert first.chi_squared is not None
    page = report(found, Missing(0, 0), {}).html()
    assert page.count("<h2>") == 2
    assert page.index("<table>") < page.index("<h2>")
    assert changed.fingerprint in page[page.index("<h2>") :]
    assert words.of_all(found).startswith("Exchange orders (virtual host /): key 'whale' is the hottest, with ")


@pytest.mark.long
def test_across_rings_of_a_sample_fair_shares_are_by_all_that_was_published(
    spark: SparkSession, tmp_path: Path
) -> None:
    # Half of 28,000 keys went by each ring, a message each; one of 12,000, which is in the sample, by the second only.
    first = ring_of({f"orders.{n}": 1 for n in range(2)})
    second = ring_of({f"orders.{n}": 1 for n in range(10)})
    cold = [b"customer-%d" % n for n in range(28_000)]
    whale = next(
        key
        for key in (b"whale-%d" % n for n in itertools.count())
        if murmur_slot(key) < SLOTS // 100 and second.ring.owner_of(key).name not in ("orders.0", "orders.1")
    )
    before = published(first, cold[::2], sample=0.01)
    records = before + published(second, cold[1::2] + [whale] * 12_000, sample=0.01, first=len(before) + 1)
    # The records of another exchange's old ring are outside the slots of the new one's sample; a queue is the old one's
    # only.
    old, new = ring_of({"mail.1": 1, "mail.2": 1}, "message_id"), ring_of({"mail.1": 1, "mail.3": 1})
    outside = [key for key in COLD if murmur_slot(key) >= SLOTS // 100][:20]
    mails = published(old, outside, exchange="mail", proxy="b2" * 8)
    mails += published(new, cold[:1000], exchange="mail", proxy="b2" * 8, first=21, sample=0.01)
    found = found_in(spark, tmp_path, records + mails, first, second, old, new)
    [orders, mail] = [one for one in found if one.scope.across]
    # The first ring has 14,000 of 40,000 messages: 35%.
    fair = {load.destination.name: load.fair for load in orders.loads}
    assert fair["orders.0"] == pytest.approx(0.35 / 2 + 0.65 / 10, abs=0.03)
    assert fair["orders.9"] == pytest.approx(0.65 / 10, abs=0.006)
    assert sum(fair.values()) == pytest.approx(1)
    assert orders.max_over_fair.value == pytest.approx((0.3 + 0.7 / 2 / 10) / (0.65 / 10), rel=0.1)
    assert orders.max_over_fair.low < (0.3 + 0.7 / 2 / 10) / (0.65 / 10) < orders.max_over_fair.high
    # A thousand keys in all went by mail's new ring, at least 20 by the old one.
    assert {load.destination.name for load in mail.loads} == {"mail.1", "mail.2", "mail.3"}
    assert all(0 < load.fair < 1 for load in mail.loads)
    assert np.isfinite(mail.max_over_fair).all()
    assert len(mail.destination_rows()) == 3
    assert "<svg" in report(found, Missing(0, 0), {}).html()


def test_the_hottest_are_found_without_one_task_that_sorts_all(spark: SparkSession) -> None:
    # More than Spark limits by itself within each task (spark.sql.optimizer.windowGroupLimitThreshold).
    top = 1500
    counts = spark.range(6000).selectExpr(
        *("'/' AS vhost", "'orders' AS exchange", "'r' AS ring", "false AS across", "cast(id AS int) AS slot"),
        *("cast(id AS string) AS key", "(id * 7919) % 5003 AS messages"),
    )
    found = keys.hottest(counts, top)
    got = [(row.messages, row.slot, row.key) for row in found.collect()]
    wanted = sorted((((n * 7919) % 5003, n, str(n)) for n in range(6000)), key=lambda row: (-row[0], row[1]))
    assert sorted(got, key=lambda row: (-row[0], row[1])) == wanted[:top]
    plan = found._jdf.queryExecution().optimizedPlan().toString()
    # The keys that are ranked at last have been cut already, by parts of the slots.
    last, part = plan.find("Window ["), plan.find("pmod(hash(slot")
    cut = plan.find("Filter (_rank", last)
    first = plan.find("Window [", cut)
    assert 0 < last < cut < first < part, plan


def test_the_measures_are_the_textbooks(spark: SparkSession) -> None:
    assert measures.gini([(5, 10)]) == pytest.approx(0)
    # 1, 1, 1, 7: the mean difference of all pairs, halved, over the mean.
    assert measures.gini([(1, 3), (7, 1)]) == pytest.approx((3 * 6 * 2) / (2 * 16 * 2.5))
    assert measures.lorenz([(1, 3), (7, 1)]) == ([0, 0.75, 1], [0, 0.3, 1])
    assert measures.lorenz([]) == ([0, 1], [0, 1])
    tested = measures.chi_squared([60, 40], [1, 1], 0, SLOTS)
    assert tested is not None
    assert (tested.statistic, tested.freedom) == (4, 1)
    assert tested.p == pytest.approx(0.0455003)
    by_keys = measures.chi_squared([60, 40], [1, 1], 100, 100)
    assert by_keys is not None
    assert by_keys.statistic == pytest.approx(4 / 2)
    by_both = measures.chi_squared([60, 40], [1, 1], 50, 100)
    assert by_both is not None
    assert by_both.statistic == pytest.approx(4 / 1.75)
    assert measures.chi_squared([9, 1], [9, 1], 10, SLOTS) is None
    assert measures.chi_squared([0, 0], [1, 1], 0, SLOTS) is None
    assert measures.chi_squared([100], [1], 100, SLOTS) is None


def test_the_command_writes_tables_and_a_report(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_journal(tmp_path, published(KNOWN, COLD + [b"<whale>"] * 500), [KNOWN])
    assert main(["skew", "--journal", str(tmp_path), "--out", str(out)]) == 1
    told = json.loads((out / "verdict.json").read_text())
    (hot,) = [finding for finding in told["findings"] if finding["kind"] == "hot_key"]
    where = {"vhost": "/", "exchange": "orders"}
    owner = KNOWN.ring.owner_of(b"<whale>")
    assert hot["subject"] == {**where, "key": "'<whale>'", "kind": owner.kind, "destination": owner.name}
    assert (hot["figures"]["messages"], hot["count"], told["figures"]) == (500, 1, {"records": 900, "exchanges": 1})
    assert main(["skew", "--journal", str(tmp_path), "--out", str(out), "--fail-on", "missing,uneven_load"]) == 1
    assert main(["skew", "--journal", str(tmp_path), "--out", str(out), "--fail-on", "missing"]) == 0
    [across, ring] = spark.read.parquet(str(out / "rings")).orderBy("ring").collect()
    assert (across.ring, across.rings, across.unfixable, across.max_over_fair) == (None, 1, 1, ring.max_over_fair)
    assert (ring.messages, ring["keys"], ring.unfixable, ring.freedom) == (900, 401, 1, 2)
    hot = spark.read.parquet(str(out / "keys")).where("ring IS NULL").orderBy("messages", ascending=False).collect()
    assert (bytes(hot[0].key), hot[0].unfixable, len(hot)) == (b"<whale>", True, 20)
    destinations = spark.read.parquet(str(out / "destinations")).where("ring IS NULL")
    assert destinations.selectExpr("sum(messages)", "sum(keys)", "sum(fair_share)").collect()[0] == (900, 401, 1)
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "&lt;whale&gt;" in page
    assert page.count("<svg") == 2
    (tmp_path / "rings" / f"{KNOWN.fingerprint}.json").unlink()
    (out / "report.html").unlink()
    with pytest.raises(SystemExit):
        main(["skew", "--journal", str(tmp_path)])
    assert main(["skew", "--journal", str(tmp_path), "--out", str(out)]) == 2
    assert not (out / "report.html").exists()


@pytest.mark.long
def test_the_command_judges_a_sample(spark: SparkSession, tmp_path: Path) -> None:
    # 30% of all messages are of one key, which is in the sample.
    whale = next(key for key in (b"whale-%d" % n for n in itertools.count()) if murmur_slot(key) < SLOTS // 100)
    cold = [b"customer-%d" % n for n in range(28_000)]
    others = sum(1 for key in cold if murmur_slot(key) < SLOTS // 100)
    known = ring_of({f"orders.{n}": 1 for n in range(10)})
    write_journal(tmp_path, published(known, cold + [whale] * 12_000, sample=0.01), [known])
    out = tmp_path / "out"
    assert main(["skew", "--journal", str(tmp_path), "--out", str(out)]) == 1
    key = spark.read.parquet(str(out / "keys")).where("ring IS NULL").orderBy("messages", ascending=False).first()
    assert key is not None
    assert (bytes(key.key), key.messages, key.unfixable, key.maybe_unfixable) == (whale, 12_000, True, False)
    assert key.share == pytest.approx(12_000 / (12_000 + others * 100), rel=0.001)
    assert key.share_low < 0.3 < key.share_high
    ring = spark.read.parquet(str(out / "rings")).where("ring IS NULL").first()
    assert ring is not None
    assert (ring.top_key, ring.top_key_low, ring.top_key_high) == (key.share, key.share_low, key.share_high)
    assert ring.published_low < 40_000 < ring.published_high
    assert ring.max_over_fair_low < 10 * (0.3 + 0.07) < ring.max_over_fair_high


def test_missing_records_are_told(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = published(KNOWN, COLD[:20]) + published(KNOWN, COLD[:20], exchange="mail", first=21)
    late = published(KNOWN, COLD[:9], proxy="b2" * 8, first=4)
    write_journal(tmp_path, records[:5] + records[7:30] + records[31:] + late, [KNOWN])
    assert main(["skew", "--journal", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    assert "\n3 records missing: " in capsys.readouterr().out
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "3 records are missing from the journal" in page
    assert "3 more numbers are before the oldest kept record of their sidecar" in page


def test_a_missing_ring_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=f"'orders' name ring {KNOWN.fingerprint}: rings/.*json is missing"):
        found_in(spark, tmp_path, published(KNOWN, COLD[:3]), ring_of({"else": 1}))
