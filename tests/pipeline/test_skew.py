"""Skew: what is the ring's, what is the keys' and what is load are kept apart; and which keys no weight can fix."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.gaps import Missing
from pipeline.journal import read_records, read_rings
from pipeline.rings import KnownRing
from pipeline.skew import measures, words
from pipeline.skew.command import find
from pipeline.skew.findings import Findings, Load, Scope
from pipeline.skew.report import report
from ring.destination import Destination
from ring.hashing import SLOTS, slot_of
from tests.pipeline.records import Record, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 2})
COLD = [f"customer-{n}".encode() for n in range(400)]


def found_in(
    spark: SparkSession,
    folder: Path,
    records: list[Record],
    *rings: KnownRing,
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


def test_a_hot_key_is_the_keys_doing_and_no_weight_can_fix_it(spark: SparkSession, tmp_path: Path) -> None:
    keys = COLD + [b"whale"] * 600 + [b"dolphin"] * 50
    [found] = found_in(spark, tmp_path, published(KNOWN, keys))
    assert [(key.key, key.messages) for key in found.hot[:2]] == [(b"whale", 600), (b"dolphin", 50)]
    assert [key.key for key in found.unfixable] == [b"whale"]
    assert found.share(found.hot[0]) == 600 / 1050
    owner = KNOWN.ring.owner_of(b"whale")
    counts = Counter(KNOWN.ring.owner_of(key) for key in keys)
    assert {load.destination: load.messages for load in found.loads} == counts
    assert {load.destination: load.bytes for load in found.loads} == {d: 100 * n for d, n in counts.items()}
    assert {load.destination: load.keys for load in found.loads} == Counter(
        KNOWN.ring.owner_of(key) for key in set(keys)
    )
    assert found.max_over_mean == pytest.approx(counts[owner] / KNOWN.weights[owner] * 4 / 1050)
    assert found.chi_squared is not None
    assert found.chi_squared.p > 0.001
    assert "the keys' doing" in words.of_load(found)
    assert words.of_ring(found).startswith("The ring is even")
    assert "key 'whale'" in words.of_weights(found)
    assert not words.caveats(found)


def test_a_ring_that_does_not_keep_to_its_weights_is_told_from_hot_keys(spark: SparkSession, tmp_path: Path) -> None:
    # Keys of one queue only, each once: a ring could not spread them so by chance.
    own = [key for key in COLD if KNOWN.ring.owner_of(key) == Destination("queue", "orders.1")]
    [found] = found_in(spark, tmp_path, published(KNOWN, own))
    assert found.chi_squared is not None
    assert found.chi_squared.p < 1e-6
    assert found.gini == pytest.approx(0)
    assert found.max_over_mean == 4
    assert [load.messages for load in found.loads] == [len(own), 0, 0]
    assert "the ring is at fault" in words.of_load(found)


def spread(keys: list[int], share: float, *, by_slot: bool = False, hot: int = 0) -> Findings:
    """Ten queues that have got so many keys each, a message a key, in a share of all slots; the first `hot` more."""
    loads = [
        Load(Destination("queue", f"orders.{n}"), 1, count, 0 if by_slot else count, count + (hot if n == 0 else 0), 0)
        for n, count in enumerate(keys)
    ]
    return Findings(Scope("/", "orders", "ring", sum(keys), share**0.5, 1.0, 0, 0), loads, [], [], False, share**0.5)


@pytest.mark.parametrize("share", [1.0, 0.25])
@pytest.mark.parametrize("names", ["orders", "mail", "log"])
def test_a_right_ring_is_even_however_many_keys_there_are(spark: SparkSession, names: str, share: float) -> None:
    table = ring_of({f"{names}.{n}": 1 for n in range(10)}).ring.table[: round(SLOTS * share)]
    slots = np.bincount(table, minlength=10)
    for count in (10**5, 10**7, 10**9):
        keys = [round(count * n / len(table)) for n in slots.tolist()]
        found = spread(keys, share, hot=count)
        assert words.of_ring(found).startswith("The ring is even")
        assert "the keys' doing" in words.of_load(found)
    assert words.of_ring(spread(slots.tolist(), share, by_slot=True)).startswith("The ring is even")


def test_a_hot_key_of_another_queue_is_not_the_doing_of_an_uneven_ring(spark: SparkSession) -> None:
    found = spread([1_000_000] * 9 + [1_200_000], 1.0, hot=10**7)
    assert words.of_ring(found).startswith("The ring is uneven")
    assert "orders.0" in words.of_load(found)
    assert "the keys' doing" in words.of_load(found)


def test_a_ring_that_is_uneven_is_told_also_of_many_keys(spark: SparkSession) -> None:
    found = spread([1_030_000] + [1_000_000] * 9, 1.0, hot=10**7)
    assert words.of_ring(found).startswith("The ring is uneven")
    # By 3%, which is not what makes the load uneven.
    assert "the keys' doing" in words.of_load(found)
    found = spread([1_200_000] + [1_000_000] * 9, 1.0)
    assert words.of_ring(found).startswith("The ring is uneven")
    assert "the ring is at fault" in words.of_load(found)


def test_estimates_name_the_same_keys(spark: SparkSession, tmp_path: Path) -> None:
    keys = COLD * 5 + [b"whale"] * 4000 + [bytes([0, 255])] * 500
    [found] = found_in(spark, tmp_path, published(KNOWN, keys), approximate=True)
    assert [(key.key, key.messages) for key in found.hot[:2]] == [(b"whale", 4000), (bytes([0, 255]), 500)]
    assert found.hot[0].owner == KNOWN.ring.owner_of(b"whale")
    assert str(found.hot[1]) == "0x00ff"
    assert found.keys == 402
    assert found.messages == 6500
    # Above so many records: loads are of all of them, distinct keys of fewer slots.
    [found] = found_in(spark, tmp_path, [], exact=3250)
    assert found.approximate
    assert found.messages == 6500
    assert found.keys_share == 0.5
    assert 150 < found.keys < 250
    assert "estimates" in " ".join(words.caveats(found))


def test_estimates_name_all_keys_that_no_weight_can_fix(spark: SparkSession, tmp_path: Path) -> None:
    known = ring_of({f"orders.{n}": 1 for n in range(40)})
    hot = COLD[:15]
    [found] = found_in(spark, tmp_path, published(known, COLD + hot * 100), known, approximate=True)
    # More than the ten that were asked for.
    assert {key.key for key in found.unfixable} == set(hot)
    assert len(found.hot) == len(hot)


def test_an_exchange_whose_keys_are_in_no_counted_slot_is_told(spark: SparkSession, tmp_path: Path) -> None:
    outside = max(COLD, key=slot_of)
    records = published(KNOWN, COLD) + published(KNOWN, [outside] * 20, exchange="mail", first=401)
    [_, mail] = found_in(spark, tmp_path, records, exact=42)
    assert (mail.keys, mail.messages, mail.hot[0].key) == (0, 20, outside)
    assert not mail.by_slot
    assert words.of_ring(mail) == "0 distinct keys are too few to judge the ring by."
    report([mail], Missing(0, 0), {}).write(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8").count("<svg") == 2


def test_without_keys_slots_stand_for_them(spark: SparkSession, tmp_path: Path) -> None:
    keys = COLD + [b"whale"] * 600
    [found] = found_in(spark, tmp_path, published(KNOWN, keys, with_key=False))
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
    [found] = found_in(spark, tmp_path, records + copies)
    kept = [r for r in records + copies if r["slot"] < 1 << 18]
    assert found.messages == len(kept)
    assert found.hot[0].messages == 102
    # More than a fair share of the sample, less of all.
    assert found.share(found.hot[0]) == 102 / len(kept) * 0.25
    assert len(words.caveats(found)) == 2


def test_rings_and_exchanges_are_kept_apart(spark: SparkSession, tmp_path: Path) -> None:
    changed = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 2, "orders.4": 1})
    records = published(KNOWN, COLD[:40]) + published(changed, COLD[:30], first=41)
    records += published(KNOWN, COLD[:24], exchange="mail", first=71)
    found = found_in(spark, tmp_path, records, KNOWN, changed)
    assert [(one.scope.exchange, one.scope.ring, one.messages) for one in found] == [
        ("orders", KNOWN.fingerprint, 40),
        ("orders", changed.fingerprint, 30),
        ("mail", KNOWN.fingerprint, 24),
    ]
    for one, known in zip(found, (KNOWN, changed, KNOWN), strict=True):
        owners = Counter(known.ring.owner_of(key) for key in COLD[: one.messages])
        assert {load.destination: load.messages for load in one.loads if load.messages} == owners
        assert one.chi_squared is not None
        assert one.chi_squared.p > 0.001


def test_the_measures_are_the_textbooks(spark: SparkSession) -> None:
    assert measures.gini([(5, 10)]) == pytest.approx(0)
    # 1, 1, 1, 7: the mean difference of all pairs, halved, over the mean.
    assert measures.gini([(1, 3), (7, 1)]) == pytest.approx((3 * 6 * 2) / (2 * 16 * 2.5))
    assert measures.max_over_mean([30, 30], [1, 3]) == 2
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
    assert main(["skew", "--journal", str(tmp_path), "--out", str(out)]) == 0
    [ring] = spark.read.parquet(str(out / "rings")).collect()
    assert (ring.messages, ring["keys"], ring.unfixable, ring.freedom) == (900, 401, 1, 2)
    keys = spark.read.parquet(str(out / "keys")).orderBy("messages", ascending=False).collect()
    assert (bytes(keys[0].key), keys[0].unfixable, len(keys)) == (b"<whale>", True, 20)
    destinations = spark.read.parquet(str(out / "destinations"))
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
