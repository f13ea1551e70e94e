"""Which ring is the present one of `whatif`: journals of sidecars whose clocks differ, and a real broker's bindings."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pipeline import PipelineError
from pipeline.__main__ import main
from pipeline.data.rings import RingSpec, to_json
from pipeline.whatif.present import Present, Trace, ended_with, newest
from ring.destination import Destination
from tests.integration.broker_api import VirtualHost
from tests.integration.conftest import Login
from tests.pipeline.records import START, published, ring_of, write_journal

OLD = ring_of({"orders.1": 1, "orders.2": 1})
NEW = ring_of({"orders.1": 1, "orders.2": 1, "orders.3": 1})
OTHER = ring_of({"orders.1": 1, "orders.2": 2})
RINGS = {known.fingerprint: known for known in (OLD, NEW, OTHER)}
KEYS = [f"customer-{n}".encode() for n in range(20)]
HOUR = 3_600_000_000

ask = ("--vhost", "/", "--exchange", "orders", "--weight", "queue:orders.1=1")


def verdict(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    assert main(["whatif", *arguments, "--out", str(tmp_path / "out")]) == 0
    told: dict[str, Any] = json.loads((tmp_path / "out" / "verdict.json").read_text())
    return told


@dataclass(frozen=True)
class Publish:
    """A publish of a sidecar; times are of no unit."""

    at: int
    by: RingSpec
    latency: int = 1
    outcome: str = "confirmed"


def through(*rings: RingSpec) -> list[Publish]:
    """Two publishes by each of these rings, one after the other."""
    return [Publish(10 * n, known) for n, known in enumerate([known for known in rings for _ in range(2)])]


def told(publishes: list[Publish]) -> list[Publish]:
    """In the order in which their fates are known, which is that of their numbers."""
    return sorted(publishes, key=lambda one: one.at + one.latency)


def of(spark: SparkSession, *sidecars: list[RingSpec] | list[Publish], rings: dict[str, RingSpec] = RINGS) -> Present:
    """The newest ring of sidecars that went through these rings, or published so."""
    rows, names = [], set()
    for n, went in enumerate(sidecars):
        rings_only = [each for each in went if isinstance(each, RingSpec)]
        publishes = [each for each in went if isinstance(each, Publish)] or through(*rings_only)
        for seq, one in enumerate(told(publishes), 1):
            names.add(one.by.fingerprint)
            latency = None if one.outcome == "sent" else one.latency
            rows.append((f"sidecar-{n}", seq, one.by.fingerprint, one.at + one.latency, latency, one.outcome))
    schema = "proxy string, seq long, ring string, time long, latency long, outcome string"
    return newest(spark.createDataFrame(rows, schema), names, rings, "journal")


def traces(numbered: list[Publish], clock: Callable[[int], int] = lambda at: at) -> list[Trace]:
    """Return the Trace of each ring, as the journal has them: `clock` is the sidecar's, which may be set back."""
    made = []
    for known in {one.by.fingerprint: one.by for one in numbered}.values():
        its = [(seq, clock(one.at + one.latency), one) for seq, one in enumerate(numbered, 1) if one.by is known]
        made.append(
            Trace(
                known.fingerprint,
                its[0][0],
                its[-1][0],
                max(time - one.latency for _, time, one in its),
                max(time for _, time, _ in its),
                its[-1][1],
            )
        )
    return made


@pytest.mark.usefixtures("spark")
def test_no_clock_brings_an_old_ring_back(tmp_path: Path) -> None:
    """One sidecar's clock was set back before the ring changed; the other, whose is ahead, stopped before that."""
    set_back = published(OLD, KEYS, start=START + HOUR) + published(NEW, KEYS, first=21)
    ahead = published(OLD, KEYS, proxy="00000000000000b2", start=START + 2 * HOUR)
    write_journal(tmp_path / "journal", [*set_back, *ahead], [OLD, NEW])
    told = verdict(tmp_path, "--journal", str(tmp_path / "journal"), *ask)
    assert (told["present"], told["present_from"], told["messages"]) == (NEW.fingerprint, "journal", 60)
    page = (tmp_path / "out" / "report.html").read_text()
    for known in (OLD, NEW):
        assert f"1 sidecar ended with {known.fingerprint}" in page


def test_the_newest_ring_is_the_one_that_no_sidecar_has_left(spark: SparkSession) -> None:
    assert of(spark, [OLD], [OLD]).spec is OLD
    assert of(spark, [OLD, NEW], [OLD], [OLD, OTHER, NEW]).spec is NEW
    assert of(spark, [OLD, NEW], [NEW], [OTHER, OLD]).spec is NEW
    # A ring that comes back.
    assert of(spark, [OLD, NEW, OLD], [OLD]).spec is OLD


def test_an_old_rings_late_record_does_not_make_it_the_newest(spark: SparkSession) -> None:
    late = [*through(OLD, NEW), Publish(5, OLD, 40)]
    given_up = [*through(OLD, NEW), Publish(5, OLD, 9_000, "unknown")]
    for sidecar in (late, given_up):
        assert told(sidecar)[-1].by is OLD
    assert of(spark, late).spec is NEW
    assert of(spark, given_up, [OLD, NEW], [OLD]).spec is NEW
    # It came back, and what is late is of the ring between.
    assert of(spark, [*through(OLD, NEW, OLD), Publish(25, NEW, 20)]).spec is OLD
    # It came back, and that late record is the last of all: as well one that came back and went by a new ring.
    unclear = [*through(OLD, NEW, OLD), Publish(25, NEW, 60)]
    with pytest.raises(PipelineError, match="of 1 sidecar that went through several it is unclear which came last"):
        of(spark, unclear)
    assert of(spark, unclear, [NEW, OTHER]).spec is OTHER


@pytest.mark.parametrize("seed", range(3))
def test_a_sidecar_ended_with_the_ring_that_it_published_by_last(seed: int) -> None:
    chance, late, unclear, plain = random.Random(seed), 0, 0, 0
    for _ in range(400):
        eras = chance.choice([[OLD, NEW], [OLD, NEW, OLD], [NEW, OLD, OTHER], [OLD, NEW, OLD, NEW]])
        ends = sorted(chance.sample(range(50, 1000), len(eras)))
        mean, publishes = chance.choice([1, 10, 100]), []
        for at in sorted(chance.sample(range(ends[-1]), min(ends[-1], 100))):
            by = next(known for known, end in zip(eras, ends, strict=True) if at < end)
            publishes.append(Publish(at, by, round(chance.expovariate(1 / mean))))
            if chance.random() < 0.01:
                publishes[-1] = Publish(at, by, 5000 - at, "unknown")  # given up when the sidecar stops
        numbered = told(publishes)
        found, last = ended_with(traces(numbered)), publishes[-1]
        assert found in (last.by.fingerprint, None)
        late += numbered[-1].by is not last.by
        unclear += found is None
        if all(one.latency < last.at - ends[-2] for one in publishes):  # it went on for longer than any was in flight
            plain += 1
            assert found is not None
    assert late > 100
    assert plain > 50
    assert unclear < 100


def test_where_a_clock_was_set_back_only_numbers_count() -> None:
    def clock(at: int) -> int:
        return at if at < 15 else at - 1000

    assert ended_with(traces(told(through(OLD, NEW)), clock)) == NEW.fingerprint
    # Late or come back: nobody knows.
    assert ended_with(traces(told([*through(OLD, NEW), Publish(5, OLD, 25)]), clock)) is None
    assert ended_with(traces(told(through(OLD, NEW, OLD)), clock)) is None


@pytest.mark.parametrize(
    ("sidecars", "ended"),
    [
        ([[OLD], [NEW], [NEW]], [(OLD, 1), (NEW, 2)]),
        # It came back, which the second did not live to see; or the first went back and the second stayed.
        ([[OLD, NEW, OLD], [OLD, NEW]], [(OLD, 1), (NEW, 1)]),
        ([[OLD, NEW], [OLD, OTHER]], [(NEW, 1), (OTHER, 1)]),
    ],
)
def test_where_sidecars_disagree_somebody_must_say_it(
    spark: SparkSession, sidecars: list[list[RingSpec]], ended: list[tuple[RingSpec, int]]
) -> None:
    with pytest.raises(PipelineError, match=r"cannot be told: .*: say --ring or --management-url") as raised:
        of(spark, *sidecars)
    for known, count in ended:
        assert f"{count} {'sidecar' if count == 1 else 'sidecars'} ended with {known.fingerprint}" in str(raised.value)


def test_the_ring_behind_another_may_be_the_one_that_records_name(spark: SparkSession) -> None:
    front = RingSpec("x-consistent-hash", "routing_key", {Destination("exchange", "behind"): 1, **OLD.weights})
    rings = RINGS | {front.fingerprint: front}
    with pytest.raises(PipelineError, match=f"exchange 'behind' is a destination of {front.fingerprint}"):
        of(spark, [front, NEW, front], rings=rings)
    assert of(spark, [front], rings=rings).spec is front


def test_a_ring_whose_file_is_missing_is_named(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=f"rings/{NEW.fingerprint}.json is missing"):
        of(spark, [OLD, NEW], rings={OLD.fingerprint: OLD})


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_the_live_ring_is_what_the_bindings_make_now(
    login: Login, vhost: VirtualHost, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vhost.ring("orders", {"orders.1": 2, "orders.2": 1, "orders.4": 1})
    live = ring_of({"orders.1": 2, "orders.2": 1, "orders.4": 1})
    # Two that do not agree, and neither is the live one.
    records = published(OLD, KEYS, vhost=vhost.name) + published(
        NEW, KEYS, vhost=vhost.name, proxy="00000000000000b2", first=21
    )
    write_journal(tmp_path / "journal", records, [OLD, NEW])
    journal, edit = ("--journal", str(tmp_path / "journal")), ("--weight", "queue:orders.4=3")
    where = ("--vhost", vhost.name, "--exchange", "orders")
    api = ("--management-url", login.management_url)
    told = verdict(tmp_path, *journal, *where, *edit, *api)
    assert (told["present"], told["present_from"], told["messages"]) == (live.fingerprint, "management", 40)
    assert told["proposed"] == ring_of({"orders.1": 2, "orders.2": 1, "orders.4": 3}).fingerprint
    (tmp_path / "keys.csv").write_text("k\n" + "".join(f"customer-{n}\n" for n in range(20)))
    table = ("--table", str(tmp_path / "keys.csv"), "--key", "k")
    assert verdict(tmp_path, *table, *where, *edit, *api)["present"] == live.fingerprint

    def refused(*arguments: str) -> str:
        capsys.readouterr()
        assert main(["whatif", *arguments, "--out", str(tmp_path / "none")]) == 2
        return capsys.readouterr().err

    nowhere = ("--vhost", vhost.name, "--exchange", "nowhere")
    assert "exchange 'nowhere' does not exist in virtual host" in refused(*journal, *nowhere, *edit, *api)
    vhost.exchange("fan", "fanout")
    fan = ("--vhost", vhost.name, "--exchange", "fan")
    assert "exchange 'fan' is of type fanout, which makes no ring" in refused(*journal, *fan, *edit, *api)
    (tmp_path / "password").write_text("wrong\n")
    wrong = ("--management-password-file", str(tmp_path / "password"))
    assert "management API: " in (said := refused(*journal, *where, *edit, *api, *wrong))
    assert "a wrong user or password" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--ring", "present.json", "--management-url", "http://localhost"), "give either --ring or --management-url"),
        (("--ca-file", "ca.pem"), "--ca-file needs --management-url"),
        (("--management-url", "amqp://localhost"), "option management_url: "),
        (("--management-url", "http://localhost", "--management-timeout", "soon"), "option management_timeout: "),
    ],
)
def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "present.json").write_text(to_json(OLD))
    assert main(["whatif", "--journal", "none", *ask, *arguments, "--out", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err
    assert main(["whatif", "--table", "t.csv", "--key", "k", "--add", "queue:a=1", *arguments, "--out", "out"]) == 2
