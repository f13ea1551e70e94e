"""Goals by HTTP are of ratios and differences within a round, and missed ones show."""

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
from bench.http_report import latency, latency_goals, throughput, throughput_goals
from bench.latency import Latency
from bench.rounds import Throughput


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


def test_ratios_are_those_within_a_round_and_their_median_decides() -> None:
    found = [(goal.reached, goal.spread, goal.met) for goal in throughput_goals(THROUGHPUT)]
    assert found == [
        ("0.70", "0.65 to 0.80", True),
        ("0.60", "0.50 to 0.90", False),
        ("0.40", "0.40 to 0.40", True),
        ("0.45", "0.30 to 0.50", True),
        ("5.00", "5.00 to 5.00", False),
    ]


def test_what_is_possible_without_http_stands_beside_the_single_messages() -> None:
    text = throughput(THROUGHPUT, 4, RESIDENT)
    for row in (
        f"| {ONE_BY_ONE} ÷ {BARE} | 0.50 | 0.50 to 0.80 |",
        f"| {ONE_BY_ONE} ÷ {MANAGEMENT} | 6.25 | 6.25 to 10.00 |",
        f"| {SINGLE} ÷ {ONE_BY_ONE} | 0.80 | 0.50 to 0.80 |",
        f"| {SINGLE_TRANSIENT} ÷ {ONE_BY_ONE_TRANSIENT} | 0.75 | 0.50 to 0.83 |",
    ):
        assert row in text.splitlines()


def test_latencies_count_above_the_bare_handlers() -> None:
    found = [(goal.reached, goal.met) for goal in latency_goals(LATENCY)]
    assert found == [("1.00", False), ("0.50", True), ("4.00", False), ("1.00", True)]


def test_a_missed_goal_shows() -> None:
    text = throughput(THROUGHPUT, 4, RESIDENT)
    assert text.count("| yes |") == 3
    assert text.count("| **no** |") == 2
    assert "| AMQP, straight to the queues | 1,000 | 1,000 to 2,000 | 20.0 | 5.0 | 70 |" in text
    assert "Connections of the batches: 4, " in text


def test_every_latency_is_in_the_table() -> None:
    assert "| single | 1.50 | 1.50 to 1.50 | 5.00 | 5.00 to 5.00 |" in latency(LATENCY)
