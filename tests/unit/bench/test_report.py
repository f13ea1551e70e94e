"""The report says which goals were reached, and replaces no more than itself."""

import subprocess
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from bench.contenders import (
    BARE,
    DIRECT,
    DIRECT_TRANSIENT,
    JSON,
    JSON_TRANSIENT,
    MANAGEMENT,
    ONE_BY_ONE,
    ONE_BY_ONE_TRANSIENT,
    SINGLE,
    SINGLE_TRANSIENT,
)
from bench.freeze import LIMIT, Frozen
from bench.latency import Latency
from bench.report import Results, commit, goals, markdown, measured_by, replaced
from bench.rounds import Throughput

DOCUMENT = Path(__file__).parents[3] / "docs" / "performance.md"


def rates(*figures: float) -> list[Throughput]:
    return [Throughput(figure, 20.0, 5.0) for figure in figures]


THROUGHPUT = {
    DIRECT: rates(1000, 2000, 1000),
    JSON: rates(800, 1400, 650),
    DIRECT_TRANSIENT: rates(1000, 1000, 1000),
    JSON_TRANSIENT: rates(600, 900, 500),
    SINGLE: rates(40, 40, 40),
    SINGLE_TRANSIENT: rates(50, 30, 45),
    ONE_BY_ONE: rates(80, 50, 50),
    ONE_BY_ONE_TRANSIENT: rates(60, 60, 60),
    BARE: rates(100, 100, 100),
    MANAGEMENT: rates(8, 8, 8),
}
RESIDENT = dict.fromkeys(THROUGHPUT, 70 << 20)
LATENCY = {
    SINGLE: [Latency(1.5, 5.0)],
    SINGLE_TRANSIENT: [Latency(1.0, 2.0)],
    BARE: [Latency(0.5, 1.0)],
}


def frozen(statuses: dict[int, int], slowest: float, recovery: float | None, peak: int) -> Frozen:
    return Frozen(60, Counter(statuses), slowest, recovery, 50 << 20, peak)


def test_ratios_are_those_within_a_round_and_their_median_decides() -> None:
    found = [(goal.reached, goal.spread, goal.met) for goal in goals(Results(throughput=THROUGHPUT))]
    assert found == [
        ("0.70", "0.65 to 0.80", True),
        ("0.60", "0.50 to 0.90", False),
        ("0.40", "0.40 to 0.40", True),
        ("0.45", "0.30 to 0.50", True),
        ("5.00", "5.00 to 5.00", False),
    ]


def test_what_is_possible_without_http_stands_beside_the_single_messages() -> None:
    text = markdown(Results(throughput=THROUGHPUT, resident=RESIDENT), [])
    for row in (
        f"| {ONE_BY_ONE} ÷ {BARE} | 0.50 | 0.50 to 0.80 |",
        f"| {ONE_BY_ONE} ÷ {MANAGEMENT} | 6.25 | 6.25 to 10.00 |",
        f"| {SINGLE} ÷ {ONE_BY_ONE} | 0.80 | 0.50 to 0.80 |",
        f"| {SINGLE_TRANSIENT} ÷ {ONE_BY_ONE_TRANSIENT} | 0.75 | 0.50 to 0.83 |",
    ):
        assert row in text.splitlines()


def test_latencies_count_above_the_bare_handlers() -> None:
    found = [(goal.reached, goal.met) for goal in goals(Results(latency=LATENCY))]
    assert found == [("1.00", False), ("0.50", True), ("4.00", False), ("1.00", True)]


def test_a_freeze_that_went_well_meets_every_goal() -> None:
    good = frozen({200: 10, 429: 1, 503: 1, 504: 1}, LIMIT, 0.0, (256 << 20) - 1)
    assert all(goal.met for goal in goals(Results(frozen=good)))


@pytest.mark.parametrize("status", [0, 400, 500, 502])
def test_any_other_answer_misses_its_goal_and_is_named(status: int) -> None:
    (missed,) = [goal for goal in goals(Results(frozen=frozen({200: 1, status: 1}, 1, 0, 1))) if not goal.met]
    assert str(status) in missed.reached


def test_memory_time_and_recovery_are_goals() -> None:
    assert [goal.met for goal in goals(Results(frozen=frozen({200: 1}, LIMIT + 0.1, None, 256 << 20)))] == [
        *(False, True, False, False),
    ]


def test_a_missed_goal_shows() -> None:
    text = markdown(Results(throughput=THROUGHPUT, resident=RESIDENT, batch_connections=4), ["some machine"])
    assert "- some machine" in text
    assert text.count("| yes |") == 3
    assert text.count("| **no** |") == 2
    assert "| AMQP, straight to the queues | 1,000 | 1,000 to 2,000 | 20.0 | 5.0 | 70 |" in text


def test_every_figure_has_its_chart() -> None:
    text = markdown(Results(throughput=THROUGHPUT, resident=RESIDENT, batch_connections=4, latency=LATENCY), [])
    blocks = [block.splitlines() for block in text.split("```") if block.startswith("text\n")]
    last = {title: [line.split()[-1] for line in lines] for _, title, *lines in blocks}
    assert last == {
        "messages/s, single": ["40", "45", "50", "60", "100", "8"],
        "messages/s, AMQP and batches": ["1,000", "800", "1,000", "600"],
        "broker CPU, µs a message": ["20.0"] * 10,
        "sidecar CPU, µs a message": ["5.0"] * 10,
        "p50 at 1,000 requests/s, ms": ["1.50", "1.00", "0.50"],
        "p99 at 1,000 requests/s, ms": ["5.00", "2.00", "1.00"],
    }


def test_the_report_takes_the_place_of_the_last_one() -> None:
    begin, end = "<!-- figures: begin -->", "<!-- figures: end -->"
    document = f"before\n{begin}\nold\n{end}\nafter\n"
    once = replaced(document, "figures", "new")
    assert once == f"before\n{begin}\n\nnew\n\n{end}\nafter\n"
    assert replaced(once, "figures", "new") == once
    with pytest.raises(ValueError, match="figures: begin"):
        replaced("no markers", "figures", "new")


def test_the_document_has_a_place_for_it() -> None:
    assert "x" in replaced(DOCUMENT.read_text(), "figures", "x")


def test_what_was_measured_is_told_where_git_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    today = date.today().isoformat()
    assert commit(tmp_path) == ""
    assert measured_by("make bench", "") == f"`make bench`, {today}"
    (tmp_path / "file").write_text("1")
    identity = ["-c", "user.name=test", "-c", "user.email=test", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "file"], [*identity, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    found = commit(tmp_path)
    assert found
    assert measured_by("make bench", found) == f"`make bench`, {today}, commit {found}"
    (tmp_path / "file").write_text("2")
    assert commit(tmp_path) == f"{found}-dirty"
    monkeypatch.setenv("PATH", "")
    assert commit(tmp_path) == ""
