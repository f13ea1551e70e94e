"""The report of usage: destinations that share a name are told apart, and each counted once."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain, pairwise
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from pyspark.sql import Row, SparkSession

from pipeline.data import gaps
from pipeline.data.journal import read_records
from pipeline.data.period import Period
from pipeline.data.schema import OUTCOMES
from pipeline.stats.sampling import Estimate
from pipeline.usage import latency, scaling
from pipeline.usage.findings import MOST_LINES, MOST_WINDOWS, Bar, Findings, find, wider
from pipeline.usage.report import _latencies, _timeline, report
from pipeline.usage.windows import usage
from tests.pipeline.records import START, published, ring_of, write_journal

KNOWN = ring_of({"orders.1": 1})


@pytest.mark.long
def test_destinations_of_one_name_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    keys = [b"key"] * 20
    groups = [
        published(KNOWN, keys[:6], exchange="_alt"),
        published(KNOWN, keys[:5], exchange="_alt", vhost="/other"),
        [r | {"kind": "exchange"} for r in published(KNOWN, keys[:4], exchange="_alt")],
        [r | {"destination": "passed"} for r in published(KNOWN, keys[:3])],
        [r | {"kind": None, "destination": None, "outcome": "passed"} for r in published(KNOWN, keys[:2])],
        [r | {"destination": "others"} for r in published(KNOWN, keys)],
    ]
    groups += [[r | {"destination": f"rare.{n}"} for r in published(KNOWN, keys[:1])] for n in range(MOST_LINES)]
    records = [record | {"seq": n} for n, record in enumerate(chain(*groups), 1)]
    write_journal(tmp_path, records, [])
    read = read_records(spark, str(tmp_path))
    found = find(usage(read, 5), gaps.gaps(gaps.sequences(read)))
    assert list(found.names[:7]) == [
        "orders > others",
        "_alt > orders.1 (queue, virtual host /)",
        "_alt > orders.1 (queue, virtual host /other)",
        "_alt > orders.1 (exchange, virtual host /)",
        "orders > passed (queue, virtual host /)",
        "orders > passed (no destination, virtual host /)",
        "orders > rare.0",
    ]
    expected: dict[int | None, int] = dict(enumerate([20, 6, 5, 4, 3, 2, 1, 1]))
    assert {bar.line: bar.messages.value for bar in found.busy} == expected | {None: MOST_LINES - 2}
    report(found, {}).write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert '<p class="lead">orders &gt; others (virtual host /) took the most: ' in page
    assert f" of {len(records)} messages of all exchanges from 2026-11-21 17:00 UTC on, " in page
    # The legend has those too that matplotlib would leave out by itself.
    for name in ("_alt &gt; orders.1 (queue, virtual host /other)", "orders &gt; others", "others"):
        assert f"<!-- {name} -->" in page


@pytest.mark.long
def test_latencies_are_told_by_ingress(spark: SparkSession, tmp_path: Path) -> None:
    """Half of all answers within the median of one ingress would be nobody's."""
    records = published(KNOWN, [b"key"] * 100)
    for n, record in enumerate(records):
        record |= {"latency": 1000} if n % 5 else {"ingress": "http", "latency": 50_000, "kind": "exchange"}
    records[1] |= {"kind": "exchange"}
    write_journal(tmp_path, records, [])
    read = read_records(spark, str(tmp_path))
    found = find(usage(read, 5), gaps.gaps(gaps.sequences(read)))
    assert [(row.ingress, row.messages) for row in found.ingresses] == [("amqp", 80), ("http", 20)]
    # The least bounds, 2^(n/4) rounded up, above 1,000 and 50,000.
    assert {of: (row.p50, row.p99) for of, row in found.answers.items()} == {
        (0, "amqp"): (1024, 1024),
        (1, "amqp"): (1024, 1024),
        (1, "http"): (55_109, 55_109),
    }
    page = report(found, {}).html()
    assert (
        "Half of the answers came over AMQP within 1.02 ms, 99% within 1.02 ms; "
        "over HTTP within 55.1 ms, 99% within 55.1 ms." in page
    )
    for name in ("AMQP p50", "HTTP p99"):
        assert f">{name}</th>" in page


@pytest.mark.long
def test_a_sample_s_figures_are_told_with_intervals(spark: SparkSession, tmp_path: Path) -> None:
    known = ring_of({"orders.1": 1, "orders.2": 1})
    records = published(known, [f"customer-{n}".encode() for n in range(400)], sample=0.25)
    records[0] |= {"outcome": "nacked"}
    write_journal(tmp_path, records, [])
    read = read_records(spark, str(tmp_path))
    found = find(usage(read, 5), gaps.gaps(gaps.sequences(read)))
    page = report(found, {}).html()
    low, high = (float(found.whole[f"messages_{end}"]) for end in ("low", "high"))
    assert len(records) < low < 4 * len(records) < high
    assert f"{round(4 * len(records))} ({low:.0f} to {high:.0f}) messages from " in page
    assert f"The journal is a sample: {len(records)} records." in page
    assert "% to " in page.partition("took the most: ")[2][:30]
    assert any(isinstance(one, ErrorbarContainer) for one in _timeline(found).axes[0].containers)
    # One record says too little of how many there were.
    assert ">nacked, in the sample</th>" in page
    assert '<td class="number">1</td></tr>' in page


@pytest.mark.long
def test_what_cannot_be_told_is_not_told(spark: SparkSession, tmp_path: Path) -> None:
    """The keys of all where sidecars' samples differ; since when records are missing; what is missing of kept hours."""
    keys = [f"customer-{n}".encode() for n in range(200)]
    records = published(KNOWN, keys, sample=0.25) + published(KNOWN, keys, sample=0.5, proxy="b" * 16)
    write_journal(tmp_path, records, [])
    read = read_records(spark, str(tmp_path))
    found = find(usage(read, 5), gaps.gaps(gaps.sequences(read)))
    known = len({record["key"] for record in records})
    (row,) = found.destinations
    # The sketch is exact of so few.
    assert (round(row["keys"]), row.keys_scaled, row.keys_low, row.keys_high) == (known, None, None, None)
    page = report(found, {}, kept=[Row(hour=START, written=5, read=3)]).html()
    assert f">{known} in the samples<" in page
    assert "No record is missing among those read now." in page
    assert "No record is missing among those read." in report(found, {}).html()
    lost = [Row(proxy="a", first=n, last=n + 4, missing=5, since=None, until=START) for n in (1, 701)]
    found = replace(found, gaps=lost, missing=gaps.Missing(10, 0))
    page = report(found, {}).html()
    assert "<td>its start</td>" in page
    assert "<td>not read</td>" in page
    note = "some of them may have been dropped before that time"
    assert note not in page
    assert note in report(found, {}, Period(datetime(2026, 11, 21, 17, tzinfo=UTC))).html()


def figures(**figures: object) -> Row:
    """A row of figures as `find` collects them; those that are not given are of nothing."""
    none: dict[str, object] = {
        f"{of}_{name}": [0.0] * scaling.GROUPS if name == "groups" else 0.0
        for of in scaling.ESTIMATED
        for name in ("scaled", "low", "high", "groups")
    }
    none |= {
        "sample": 1.0,
        "bytes": 0,
        "keys": None,
        "p50": None,
        "p99": None,
        "latency": [0] * latency.BUCKETS,
        "with_key": 0,
    }
    return Row(**none | dict.fromkeys(OUTCOMES, 0) | figures)


def findings(p50: int, p99: int, buckets: dict[int, int], keys: float) -> Findings:
    """One destination, in three windows that follow each other, and one two days later."""
    counts = [buckets.get(n, 0) for n in range(latency.BUCKETS)]
    whole = figures(messages=12, messages_scaled=12.0, minutes=60, p50=p50, p99=p99)
    hours = [START + n * 3_600_000_000 for n in (0, 1, 2, 50)]
    three = Estimate(3.0, 3.0, 3.0)
    return Findings(
        whole,
        [figures(ingress="amqp", messages=12, messages_scaled=12.0, p50=p50, p99=p99, latency=counts)],
        [figures(**whole.asDict() | PLACE | {"keys": keys, "keys_scaled": keys})],
        {},
        60,
        [figures(window=hour, ingress="amqp", p50=p50, p99=p99) for hour in hours],
        [Bar(hour, 0, three) for hour in hours],
        [Bar(hour, None, three) for hour in hours],
        [],
        gaps.Missing(0, 0),
    )


@pytest.mark.parametrize("last", range(24, latency.BUCKETS - 1, 10))
def test_labels_of_latencies_stand_apart(last: int) -> None:
    figure = _latencies(findings(512, 4096, {20: 3, last: 1}, 3.0))
    figure.canvas.draw()
    spread = figure.axes[1]
    low, high = spread.get_xlim()
    ticks = zip(spread.get_xticks(), spread.get_xticklabels(), strict=True)
    boxes = [label.get_window_extent() for tick, label in ticks if low <= tick <= high]
    assert boxes
    assert all(one.x1 + 3 < other.x0 for one, other in pairwise(boxes))


@pytest.mark.parametrize(("high", "end"), [(4.0, 4.2), (100.0, 9.0)])
def test_bars_of_a_sample_have_their_intervals_and_fill_the_plot(high: float, end: float) -> None:
    whole = figures(sample=0.25, messages=12, messages_scaled=48.0)
    tops = [Bar(START, None, Estimate(3.0, 2.0, high))]
    axes = _timeline(replace(findings(512, 4096, {}, 3.0), whole=whole, tops=tops)).axes[0]
    (drawn,) = [one for one in axes.containers if isinstance(one, ErrorbarContainer)]
    (lines,) = drawn[2]
    assert [[float(y) for _, y in line] for line in lines.get_segments()] == [[2.0, high]]
    assert axes.get_ylim() == pytest.approx((0, end))


PLACE = {"vhost": "/", "exchange": "orders", "kind": "queue", "destination": "orders.1"}


@pytest.mark.parametrize(("p50", "p99", "is_log"), [(512, 81_000, True), (512, 4096, False)])
def test_a_median_far_below_the_99_percent_is_no_flat_line(p50: int, p99: int, is_log: bool) -> None:
    page = report(findings(p50, p99, {22: 12}, 3.0), {}).html()
    assert ("<!-- 10 ms -->" in page) == is_log, "an axis by tens"
    assert ("<!-- 0 µs -->" in page) != is_log


def test_a_latency_below_all_buckets_is_not_shown_between_bounds_that_it_does_not_have() -> None:
    hatched, sentence = "<pattern ", "The hatched bars have all latencies beyond the buckets: "
    page = report(findings(512, 4096, {0: 7, 22: 12}, 3.0), {}).html()
    assert hatched in page
    assert f"{sentence}7 below 16 µs." in page
    page = report(findings(512, 4096, {0: 7, latency.BUCKETS - 1: 1200}, 3.0), {}).html()
    assert f"{sentence}7 below 16 µs and 1,200 of 134 s or more." in page
    page = report(findings(512, 4096, {1: 7, 22: 12}, 3.0), {}).html()
    assert hatched not in page
    assert sentence not in page


@pytest.mark.parametrize(("keys", "told"), [(3.0, "3"), (57.02, "57"), (12_345.6, "12,300")])
def test_a_number_of_keys_is_whole(keys: float, told: str) -> None:
    page = report(findings(512, 4096, {22: 12}, keys), {}).html()
    assert f'<td class="number">{told}</td>' in page


@pytest.mark.parametrize(
    ("minutes", "hours", "expected"),
    [(5, 24, 5), (5, 26, 10), (20, 26, 20), (20, 101, 60), (60, 24 * 12, 60), (60, 24 * 13, 180), (5, 24 * 400, 2880)],
)
def test_windows_are_no_more_than_a_page_can_show(minutes: int, hours: int, expected: int) -> None:
    first = START // 60_000_000
    last = first + hours * 60 - minutes
    assert wider(minutes, first, last) == expected
    assert last // expected - first // expected < MOST_WINDOWS


@pytest.mark.long
def test_a_long_time_is_told_by_wider_windows(spark: SparkSession, tmp_path: Path) -> None:
    records = published(KNOWN, [b"key"] * 40, every=3_600_000_000)
    write_journal(tmp_path, records, [])
    read = read_records(spark, str(tmp_path))
    found = find(usage(read, 5), gaps.gaps(gaps.sequences(read)))
    assert (found.minutes, [row.messages for row in found.windows]) == (10, [1] * 40)
    report(found, {}).write(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "windows of 10 minutes" in page
    assert "the table has all, of 5 minutes" in page


@pytest.fixture
def _in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of this process, as of a driver's machine."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.long
@pytest.mark.usefixtures("_in_new_york")
def test_its_times_are_utc_wherever_the_driver_is(spark: SparkSession, tmp_path: Path) -> None:
    records = published(KNOWN, [b"key"] * 40, every=1_000_000)
    write_journal(tmp_path, records[:10] + records[12:], [])
    read = read_records(spark, str(tmp_path))
    page = report(find(usage(read, 5), gaps.gaps(gaps.sequences(read))), {}).html()
    assert "38 messages from 2026-11-21 17:00 UTC on" in page
    assert "<td>2026-11-21 17:00:09</td><td>2026-11-21 17:00:12</td>" in page
