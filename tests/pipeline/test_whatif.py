"""The job `whatif`, by its command: real Spark, journals and tables as files."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from pipeline.__main__ import main
from pipeline.data.rings import to_json
from pipeline.page.formats import percent
from ring.hashing import SLOTS, slot_of
from tests.pipeline.records import START, Record, published, ring_of, truncated, write_journal
from tests.pipeline.reference import names, rows, section

THREE = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 1})
TWO = ring_of({"orders.1": 1, "orders.2": 1})
KEYS = [f"customer-{n % 97}".encode() for n in range(600)] + [b"hot"] * 60

pytestmark = pytest.mark.usefixtures("spark")


def ask(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the verdict."""
    status = main(["whatif", *arguments, "--out", str(tmp_path / "out")])
    return status, json.loads((tmp_path / "out" / "verdict.json").read_text())


def table(spark: SparkSession, tmp_path: Path, name: str) -> list[Row]:
    return spark.read.parquet(str(tmp_path / "out" / name)).collect()


def of_journal(tmp_path: Path, records: list[Record], *arguments: str) -> tuple[str, ...]:
    write_journal(tmp_path / "journal", records, [THREE, TWO], per_file=200)
    return ("--journal", str(tmp_path / "journal"), "--vhost", "/", "--exchange", "orders", *arguments)


def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, *arguments: str, status: int = 2) -> str:
    """The one line on stderr of a job that ends with an error and leaves nothing."""
    capsys.readouterr()
    assert main(["whatif", *arguments, "--out", str(tmp_path / "out")]) == status
    written = {path.name for path in (tmp_path / "out").glob("*")}
    assert written == ({"verdict.json"} if status == 3 else set())
    (tmp_path / "out" / "verdict.json").unlink(missing_ok=True)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("pipeline whatif: ")]
    assert len(said) == 1
    return said[0]


def test_a_queue_that_is_removed(spark: SparkSession, tmp_path: Path) -> None:
    others = published(TWO, [b"x"] * 9, exchange="invoices", first=10_000)
    earlier = published(TWO, [b"customer-1"], start=1_795_280_000_000_000)
    arguments = of_journal(tmp_path, published(THREE, KEYS, first=2) + others + earlier, "--remove", "queue:orders.3")
    status, told = ask(tmp_path, *arguments, "--max-moved", "0.9")
    counts = Counter([*KEYS, b"customer-1"])
    expected = {key: n for key, n in counts.items() if THREE.ring.owner_of(key).name == "orders.3"}
    documented = [*rows(section("verdict.json")), *rows(section("verdict.json of whatif"))]
    assert set(told) == {name for row in documented for name in names(row[0])}
    assert (status, told["verdict"], told["present"]) == (0, "within", THREE.fingerprint)
    assert told["messages"] == len(KEYS) + 1
    assert told["moved"]["messages"] == sum(expected.values())
    assert told["moved"]["bytes"] == 100 * sum(expected.values())
    moved = table(spark, tmp_path, "moved")
    assert {bytes(row.key): row.messages for row in moved} == expected
    for row in moved:
        assert (row.destination, row.slot, row.bytes) == ("orders.3", slot_of(row.key), 100 * row.messages)
        assert row.new_destination == TWO.ring.owner_of(bytes(row.key)).name
    load = {row.destination: row for row in table(spark, tmp_path, "load")}
    for name, row in load.items():
        assert row.messages == sum(n for key, n in counts.items() if THREE.ring.owner_of(key).name == name)
        went = sum(n for key, n in counts.items() if TWO.ring.owner_of(key).name == name)
        assert (row.new_messages, row.new_weight) == (went, None if name == "orders.3" else 1)
        assert row.over_fair == pytest.approx(3 * row.messages / (len(KEYS) + 1))
    assert load["orders.3"].new_over_fair is None
    assert max(row.over_fair for row in load.values()) == pytest.approx(told["max_over_fair"]["present"])
    assert told["intervals"]["max_over_fair"]["present"] == [told["max_over_fair"]["present"]] * 2
    page = (tmp_path / "out" / "report.html").read_text()
    assert max(expected, key=lambda key: expected[key]).decode() in page


@pytest.mark.long
def test_skew_and_whatif_say_the_same_of_one_journal(spark: SparkSession, tmp_path: Path) -> None:
    known = ring_of({"orders.1": 3, "orders.2": 1, "orders.3": 1, "orders.4": 1})
    write_journal(tmp_path / "journal", published(known, KEYS), [known])
    got = Counter(known.ring.owner_of(key) for key in KEYS)
    truth = max(got[destination] / (weight / 6) for destination, weight in known.weights.items()) / len(KEYS)
    _, told = ask(tmp_path, *of_journal(tmp_path, [], "--add", "queue:orders.5=1"))
    assert told["max_over_fair"]["present"] == pytest.approx(truth)
    assert main(["skew", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "skew")]) == 0
    [across, ring] = spark.read.parquet(str(tmp_path / "skew" / "rings")).collect()
    assert across.max_over_fair == ring.max_over_fair == pytest.approx(truth)


def test_without_a_change_it_tells_whether_other_weights_help(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    got = Counter(THREE.ring.owner_of(key).name for key in KEYS)
    status, told = ask(tmp_path, *of_journal(tmp_path, published(THREE, KEYS), "--weight", "queue:orders.1=1"))
    assert (status, told["moved"]["messages"], told["weights_help"]) == (0, 0, True)
    [(name, most)] = got.most_common(1)
    busiest = f"queue '{name}' with {percent(most / len(KEYS))} of the messages, {3 * most / len(KEYS):.2f} times its"
    assert capsys.readouterr().out.splitlines() == [
        "0% of the messages would move to another queue (0% with RabbitMQ's own x-consistent-hash).",
        f"Busiest now: {busiest} fair share.",
        f"Busiest then: {busiest} fair share.",
        "No limits were given.",
        f"{tmp_path}/out/report.html",
    ]
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<h2>Which keys would move?</h2><p>None.</p></body>" in page
    for row in table(spark, tmp_path, "load"):
        advised = f'>{row.advised_messages}</td><td class="number">{percent(row.advised_share)}</td>'
        assert f'>{row.destination}</td><td class="number">1</td><td class="number">{row.advised_weight:,}</td>' in page
        assert advised in page.partition("Would other weights be better?")[2]


def test_the_limits_decide_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = of_journal(tmp_path, published(THREE, KEYS), "--add", "queue:orders.4=1")
    status, _ = ask(tmp_path, *arguments, "--max-moved", "0.9")
    assert (status, capsys.readouterr().out.splitlines()[3]) == (
        0,
        "Within the limits: 90.0% of the messages may move.",
    )
    status, told = ask(tmp_path, *arguments, "--max-moved", "0.01", "--max-over-fair", "9")
    assert capsys.readouterr().out.splitlines()[3] == "Over the limit: 1.00% of the messages may move."
    assert (status, told["verdict"], told["over"], told["uncertain"]) == (1, "over", ["max_moved"], [])
    assert "<p>Over the limit: 1.00% of the messages may move.</p>" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.long
def test_a_journal_without_keys_works_by_slot(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "two.json").write_text(to_json(TWO))
    records = published(THREE, KEYS, with_key=False)
    status, told = ask(tmp_path, *of_journal(tmp_path, records, "--proposed", str(tmp_path / "two.json")))
    expected = Counter(slot_of(key) for key in KEYS if THREE.ring.owner_of(key).name == "orders.3")
    assert (status, told["proposed"]) == (0, TWO.fingerprint)
    assert {row.slot: (row.key, row.messages) for row in table(spark, tmp_path, "moved")} == {
        slot: (None, n) for slot, n in expected.items()
    }
    assert "does not name these keys" in (tmp_path / "out" / "report.html").read_text()


def test_a_sample_counts_the_slots_that_were_always_there(tmp_path: Path) -> None:
    half = published(THREE, KEYS, sample=0.5)
    records = half + published(THREE, KEYS, first=5000)
    _, told = ask(tmp_path, *of_journal(tmp_path, records, "--remove", "queue:orders.3", "--max-per-hour", "650"))
    assert told["sample"] == 0.5
    (low, high), busiest = told["peak"]["interval"], told["peak"]["per_weight"]
    assert told["peak"]["messages"] == told["messages"]
    assert 0 < low < busiest < high
    assert ("max_per_hour" in told["uncertain"]) == (low < 650 < high)
    assert told["counted"]["messages"] == 2 * sum(slot_of(key) < SLOTS // 2 for key in KEYS) == 2 * len(half)
    low, high = told["intervals"]["messages"]
    assert told["counted"]["messages"] < low < told["messages"] < high
    low, high = told["intervals"]["moved"]["of_messages"]
    assert low < told["moved"]["of_messages"] < high
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"{told['counted']['messages']:,} messages were counted" in page
    assert f"{percent(told['moved']['of_messages'])} ({percent(low)} to {percent(high)}) of the messages" in page


@pytest.mark.parametrize("kind", ["csv", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("json", "parquet"))])
def test_any_table_of_keys_and_counts(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    counts = Counter(key.decode() for key in KEYS) | Counter({"007": 7})
    rows = [(key, n, 10 * n) for key, n in counts.items()]
    frame = spark.createDataFrame(rows, "`who.id` string, `n.all` long, size long")
    frame.coalesce(1).write.format(kind).option("header", True).save(str(tmp_path / f"keys.{kind}"))
    (tmp_path / "three.json").write_text(to_json(THREE))
    of_keys = ("--table", str(tmp_path / f"keys.{kind}"), "--key", "who.id", "--ring", str(tmp_path / "three.json"))
    columns = ("--count", "n.all", "--bytes", "size")
    _, told = ask(tmp_path, *of_keys, *columns, "--remove", "queue:orders.3")
    expected = {key: n for key, n in counts.items() if THREE.ring.owner_of(key.encode()).name == "orders.3"}
    assert (told["messages"], told["moved"]["messages"]) == (667, sum(expected.values()))
    assert told["moved"]["bytes"] == 10 * sum(expected.values())
    assert {bytes(row.key).decode(): row.messages for row in table(spark, tmp_path, "moved")} == expected


@pytest.mark.long
def test_rows_without_counts_are_a_message_each(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.createDataFrame([(bytearray(key),) for key in KEYS], "k binary")
    frame.coalesce(1).write.parquet(str(tmp_path / "keys.parquet"))
    (tmp_path / "three.json").write_text(to_json(THREE))
    of_keys = ("--table", str(tmp_path / "keys.parquet"), "--key", "k", "--ring", str(tmp_path / "three.json"))
    _, told = ask(tmp_path, *of_keys, "--remove", "queue:orders.3")
    assert (told["messages"], told["bytes"], told["moved"]["bytes"]) == (len(KEYS), None, None)


def test_bad_keys_and_counts_are_told_with_their_rows(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(None, 1), (None, 2), ("x" * 300, 1), ("a", None), ("b", -1), ("c", 1)]
    spark.createDataFrame(rows, "k string, n long").write.parquet(str(tmp_path / "bad.parquet"))
    (tmp_path / "bad.csv").write_text("k,n\na,1\nb,many\n")
    (tmp_path / "none.csv").write_text("k,n\na,0\n")
    (tmp_path / "three.json").write_text(to_json(THREE))
    ring = ("--ring", str(tmp_path / "three.json"), "--remove", "queue:orders.3", "--key", "k")
    said = refused(capsys, tmp_path, "--table", str(tmp_path / "bad.parquet"), *ring, "--count", "n")
    assert "bad.parquet" in said
    assert "2 rows with a null key; 1 row with a key of more than 255 bytes; 2 rows with a null or negative" in said
    assert "column 'n': 'many' is not a whole number" in refused(
        capsys, tmp_path, "--table", str(tmp_path / "bad.csv"), *ring, "--count", "n"
    )
    long = ("--key", "k", "--ring", str(tmp_path / "of-a-header.json"), "--remove", "queue:orders.3")
    (tmp_path / "of-a-header.json").write_text(to_json(replace(THREE, hashed="header:customer")))
    said = refused(capsys, tmp_path, "--table", str(tmp_path / "bad.parquet"), *long, "--count", "n")
    assert "'k': 2 rows with a null key; 2 rows with a null or negative" in said
    assert "none.csv: no messages" in refused(
        capsys, tmp_path, "--table", str(tmp_path / "none.csv"), *ring, "--count", "n"
    )
    assert "no.csv: no such file" in refused(capsys, tmp_path, "--table", str(tmp_path / "no.csv"), *ring)
    others = ("--ring", str(tmp_path / "three.json"), "--remove", "queue:orders.3", "--key", "n", "--count", "m")
    said = refused(capsys, tmp_path, "--table", str(tmp_path / "bad.parquet"), *others)
    assert "column 'n' is bigint, not string or binary; column 'm' is missing" in said


@pytest.mark.long
def test_sums_that_do_not_fit_are_refused(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "three.json").write_text(to_json(THREE))
    of = ("--ring", str(tmp_path / "three.json"), "--remove", "queue:orders.3", "--key", "k", "--count", "n")
    most = 2**63 - 1
    same_slot = next(f"x{n}" for n in range(10**7) if slot_of(f"x{n}".encode()) == slot_of(b"a"))
    for name, keys in (("key", ["a", "a"]), ("slot", ["a", same_slot]), ("all", ["a", "b"])):
        path = str(tmp_path / f"{name}.parquet")
        spark.createDataFrame([(key, 1, most) for key in keys], "k string, n long, size long").write.parquet(path)
        said = refused(capsys, tmp_path, "--table", path, *of, "--bytes", "size")
        assert f"{path}: the bytes add up to more than 2^62" in said
        said = refused(capsys, tmp_path, "--table", path, *of[:-1], "size")
        assert f"{path}: the messages add up to more than 2^62" in said
    heavy = published(THREE, KEYS[:9], size=2**61)
    assert "journal: the bytes add up" in refused(capsys, tmp_path, *of_journal(tmp_path, heavy, *of[2:4]))
    in_one_ring = published(TWO, [KEYS[0]] * 9, size=2**61, first=100, start=1_795_280_000_000_000)
    in_two_rings = in_one_ring + published(THREE, KEYS[:1])
    assert "journal: the bytes add up" in refused(capsys, tmp_path, *of_journal(tmp_path, in_two_rings, *of[2:4]))


@pytest.mark.long
def test_a_sum_that_just_fits(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", 2**61, 1), ("b", 2**61, 2)]
    spark.createDataFrame(rows, "k string, n long, size byte").write.parquet(str(tmp_path / "keys.parquet"))
    (tmp_path / "three.json").write_text(to_json(THREE))
    of = ("--table", str(tmp_path / "keys.parquet"), "--key", "k", "--count", "n", "--bytes", "size")
    _, told = ask(tmp_path, *of, "--ring", str(tmp_path / "three.json"), "--remove", "queue:orders.3")
    assert (told["messages"], told["bytes"]) == (2**62, 3)
    assert all(row.messages >= 0 for row in table(spark, tmp_path, "load"))


def test_files_that_cannot_be_read(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = published(THREE, [f"customer-{n}".encode() for n in range(600)])
    for name, version in (("version", 2), ("cut", 1)):
        write_journal(tmp_path / name, [*records[:-1], records[-1] | {"v": version}], [THREE])
    keys = spark.createDataFrame([(f"customer-{n}",) for n in range(600)], "k string")
    keys.coalesce(1).write.parquet(str(tmp_path / "keys.parquet"))
    (tmp_path / "three.json").write_text(to_json(THREE))
    edit = ("--vhost", "/", "--exchange", "orders", "--remove", "queue:orders.3")
    said = refused(capsys, tmp_path, "--journal", str(tmp_path / "version"), *edit)
    assert "jsonl.gz: schema version 2, known is 1" in said
    cut = truncated(tmp_path / "cut")
    assert f"{cut}: cannot be read (truncated)" in refused(capsys, tmp_path, "--journal", str(tmp_path / "cut"), *edit)
    cut = truncated(tmp_path / "keys.parquet", 100)
    table = ("--table", str(tmp_path / "keys.parquet"), "--key", "k", "--ring", str(tmp_path / "three.json"))
    assert f"{cut}: cannot be read" in refused(capsys, tmp_path, *table, "--remove", "queue:orders.3")


def test_what_a_journal_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_journal(tmp_path / "journal", published(THREE, KEYS), [TWO])
    of = ("--journal", str(tmp_path / "journal"), "--vhost", "/", "--remove", "queue:orders.3")
    assert f"rings/{THREE.fingerprint}.json is missing" in refused(capsys, tmp_path, *of, "--exchange", "orders")
    said = refused(capsys, tmp_path, *of, "--exchange", "nothing", status=3)
    assert "no record of exchange 'nothing'" in said
    said = refused(capsys, tmp_path, *of, "--exchange", "orders", "--ring", str(tmp_path / "none.json"))
    assert "none.json: cannot be read" in said


@pytest.mark.long
def test_keys_of_another_hashed_value_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The exchange was declared anew: what was hashed before are no keys of the present ring's."""
    by_tenant = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 1}, "header:tenant")
    lost = ring_of({"orders.1": 7})
    before = published(by_tenant, [b"tenant"] * 50, sample=1.0, start=1_795_280_000_000_000)
    nameless = published(lost, [b"x"] * 9, start=1_795_280_000_000_000, first=100)
    write_journal(tmp_path / "journal", before + nameless + published(TWO, KEYS[:99], first=200), [by_tenant])
    arguments = of_journal(tmp_path, published(THREE, KEYS, first=300), "--remove", "queue:orders.3")
    _, told = ask(tmp_path, *arguments)
    assert (told["messages"], told["left_out"]) == (len(KEYS) + 99, {"hashed": 50, "ring": 9})
    page = (tmp_path / "out" / "report.html").read_text()
    assert "50 records are left out: they hash another value than the present ring." in page
    assert "9 records are left out: their ring is missing." in page
    (tmp_path / "tenant.json").write_text(to_json(by_tenant))
    _, told = ask(tmp_path, *arguments, "--ring", str(tmp_path / "tenant.json"))
    assert (told["messages"], told["left_out"]) == (50, {"hashed": len(KEYS) + 99, "ring": 9})
    (tmp_path / "other.json").write_text(to_json(replace(by_tenant, hashed="header:other")))
    assert main(["whatif", *arguments, "--ring", str(tmp_path / "other.json"), "--out", str(tmp_path / "out")]) == 2
    assert "journal: of no record it is known that header:other was hashed" in capsys.readouterr().err


def test_a_proposal_that_hashes_another_value_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proposed = tmp_path / "proposed.json"
    asked = of_journal(tmp_path, published(THREE, KEYS), "--proposed", str(proposed), "--max-moved", "0")
    for given, said in (
        (replace(THREE, hashed="header:tenant"), "hashed is 'header:tenant', at present 'routing_key'"),
        (
            replace(THREE, exchange_type="x-modulus-hash"),
            "exchange_type is 'x-modulus-hash', at present 'x-consistent-hash'",
        ),
    ):
        proposed.write_text(to_json(given))
        expected = f"pipeline whatif: --proposed: {said}: what would move cannot be told"
        assert refused(capsys, tmp_path, *asked) == expected


def test_a_proposal_of_destinations_alone_is_of_the_present_exchange(tmp_path: Path) -> None:
    by_tenant = ring_of({"orders.1": 1, "orders.2": 1}, "header:tenant")
    write_journal(tmp_path / "journal", published(by_tenant, KEYS), [by_tenant])
    proposed = tmp_path / "proposed.json"
    proposed.write_text(json.dumps({"destinations": [["queue", "orders.1", 1], ["queue", "orders.2", 1]]}))
    where = ("--journal", str(tmp_path / "journal"), "--vhost", "/", "--exchange", "orders")
    status, told = ask(tmp_path, *where, "--proposed", str(proposed), "--max-moved", "0")
    assert (status, told["proposed"], told["moved"]["messages"]) == (0, by_tenant.fingerprint, 0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give either --journal or --table"),
        (("--journal", "j", "--add", "queue:a=1"), "--journal needs --vhost and --exchange"),
        (("--table", "t.csv", "--add", "queue:a=1"), "--table needs --key, and either --ring or --management-url"),
        (("--table", "t.csv", "--key", "k", "--ring", "r"), "give either --proposed, or edits"),
        (("--table", "t.csv", "--key", "k", "--ring", "none.json", "--add", "queue:a=1"), "none.json: cannot be read"),
        (
            ("--journal", "j", "--vhost", "/", "--exchange", "x", "--add", "queue:a=1", "--max-moved", "9"),
            "between 0 and 1",
        ),
    ],
)
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(capsys, tmp_path, *arguments)


FILE = '[[exchange]]\nname = "orders"\nshards = 3\ngroups = ["audit"]\n'


def of_weeks(tmp_path: Path, *arguments: str) -> tuple[str, ...]:
    """A journal of three weeks with 100, 150 and 200 messages, of which 80 are in one hour, and the topology file."""
    records: list[Record] = []
    hour = 3_600_000_000
    for week, count in enumerate((100, 150, 200)):
        start = START + week * 168 * hour
        busy = [f"customer-{n}".encode() for n in range(80 if week == 2 else 0)]
        records += published(THREE, busy, first=len(records) + 1, start=start, every=1000)
        rest = [f"customer-{n % 90}".encode() for n in range(count - len(busy))]
        records += published(THREE, rest, first=len(records) + 1, start=start + hour, every=167 * hour // len(rest))
    (tmp_path / "topology.toml").write_text(FILE)
    return of_journal(tmp_path, records, "--topology", str(tmp_path / "topology.toml"), *arguments)


def test_it_says_how_many_shards_are_enough_now_and_in_90_days(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = of_weeks(tmp_path, "--max-per-hour", "25")
    status, told = ask(tmp_path, *arguments)
    keys = [f"customer-{n}".encode() for n in range(80)]

    def most(shards: int) -> int:
        ring = ring_of({f"orders.{n}": 1 for n in range(1, shards + 1)}).ring
        return max(Counter(map(ring.owner_of, keys)).values())

    factor = 1 + 50 * 90 / 7 / 200
    now, later = (next(n for n in range(1, 99) if most(n) * times <= 25) for times in (1, factor))
    assert told["shards"] == {"now": now, "in_90_days": later, "growth": pytest.approx(factor), "hot": []}
    assert told["peak"]["hour"] == "2026-12-05T17:00:00Z"
    assert told["peak"]["messages"] == 80
    assert told["peak"]["per_weight"] == most(later)
    assert (status, told["verdict"], told["limits"]["max_per_hour"]) == (0, "within", 25)
    said = capsys.readouterr().out.splitlines()
    assert f"{now} shards are enough for the busiest hour, 2026-12-05T17:00:00Z with 80 messages." in said
    assert f"{later} shards are enough in 90 days, with {factor:.2f} times the messages." in said
    assert said[-1] == f"ring-proxy topology apply --ordered {tmp_path}/out/topology.toml"
    written = (tmp_path / "out" / told["paths"]["topology"]).read_text()
    assert written == f'[[exchange]]\nname = "orders"\nvhost = "/"\nshards = {later}\ngroups = ["audit"]\n'
    assert {row.destination for row in table(spark, tmp_path, "load")} == {f"orders.{n}" for n in range(1, later + 1)}
    assert f"{later} shards are enough in 90 days" in (tmp_path / "out" / "report.html").read_text()

    # A growth that is given counts, and a limit for a change: without --topology there is no file.
    _, told = ask(tmp_path, *arguments, "--growth", "1")
    assert (told["shards"]["in_90_days"], told["shards"]["growth"]) == (now, 1)
    status, told = ask(tmp_path, *arguments[:6], "--remove", "queue:orders.3", "--max-per-hour", "9")
    assert (status, told["over"], told["shards"]) == (1, ["max_per_hour"], None)
    assert not (tmp_path / "out" / "topology.toml").exists()


def test_a_key_beyond_the_limit_is_told_with_its_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topology.toml").write_text(FILE)
    numbers = ("--topology", str(tmp_path / "topology.toml"), "--max-per-hour", "50")
    status, told = ask(tmp_path, *of_journal(tmp_path, published(THREE, [*KEYS, *[b"hot"] * 50]), *numbers))
    hot = {"key": "hot", "slot": slot_of(b"hot"), "messages": 110, "parts": 3}
    assert (status, told["over"], told["shards"]["hot"]) == (1, ["max_per_hour"], [hot])
    assert (
        "No shard can hold key hot, with 110 messages in that hour: split it into 3 parts." in capsys.readouterr().out
    )


def test_what_the_number_of_shards_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "topology.toml").write_text(FILE.replace("3", "2"))
    file = ("--topology", str(tmp_path / "topology.toml"))
    arguments = of_journal(tmp_path, published(THREE, KEYS))
    for given, why in (
        (file, "or for the number of shards --topology and --max-per-hour"),
        (("--max-per-hour", "9"), "or for the number of shards --topology and --max-per-hour"),
        ((*file, "--max-per-hour", "0"), "--max-per-hour 0: it must be more than 0"),
        ((*file, "--max-per-hour", "9", "--growth", "nan"), "--growth nan: it must be more than 0"),
        ((*file, "--add", "queue:orders.4=1", "--growth", "2"), "--growth is for the number of shards"),
        ((*file, "--add", "queue:orders.4=1"), "of queue 'orders.3' it has none, and the present ring weight 1"),
    ):
        assert why in refused(capsys, tmp_path, *arguments, *given)
    of_table = ("--table", "keys.csv", "--key", "k", "--ring", "ring.json", "--remove", "queue:orders.3")
    assert "--max-per-hour and --topology need --journal" in refused(capsys, tmp_path, *of_table, "--max-per-hour", "9")
