"""The report of the measurements by AMQP: which of them meet a goal, and what the tables show."""

from bench.amqp import COMPILED, CONSISTENT, LANES, MODULUS, PURE, RATES, RELAYED, STRAIGHT, Measured, Paced
from bench.amqp_report import goals, markdown
from bench.rounds import Throughput

MIB = 1 << 20


def measured(version: str = "3.10.8", idle: int = 60 * MIB) -> Measured:
    throughput = {
        STRAIGHT: [Throughput(rate, 20.0, None) for rate in (1000, 2000, 1000)],
        CONSISTENT: [Throughput(500, 40.0, None)] * 3,
        RELAYED: [Throughput(1000, 20.0, 0.5)] * 3,
        COMPILED: [Throughput(rate, 20.0, cpu) for rate, cpu in ((920, 1.0), (1000, 1.5), (950, 0.5))],
        LANES: [Throughput(rate, 20.0, cpu) for rate, cpu in ((900, 0.9), (1800, 1.5), (800, 0.6))],
        PURE: [Throughput(700, 20.0, 5.0)] * 3,
    }
    paced = {STRAIGHT: [Paced(0.2, 1.0, None)] * 3, COMPILED: [Paced(p50, 1.0, 50.0) for p50 in (0.28, 0.29, 0.9)]}
    resident = {RELAYED: 14 * MIB, COMPILED: 66 * MIB, PURE: 65 * MIB}
    return Measured(version, throughput, dict.fromkeys(RATES, paced), resident, idle, [MODULUS])


def test_goals_are_of_the_compiled_sidecar_and_of_ratios_within_a_round() -> None:
    assert [(goal.reached, goal.spread, goal.met) for goal in goals(measured())] == [
        ("0.92", "0.50 to 0.95", True),
        ("1.90", "1.84 to 2.00", True),
        ("2.00", "1.00 to 3.00", True),
        ("0.90", "0.80 to 0.90", True),
        ("1.80", "1.60 to 3.60", True),
        ("1.00", "0.90 to 1.20", True),
        ("0.09", "0.08 to 0.70", True),
        ("60", "", True),
    ]


def test_a_release_whose_exchange_is_slow_is_to_be_beaten_by_more() -> None:
    for at in (1, 4):
        wanted = {version: goals(measured(version))[at].wanted for version in ("3.10.8", "4.0.5", "4.3.6", "10.0.0")}
        assert [*wanted.values()] == ["at least 1.25", "at least 1.25", "at least 2.2", "at least 2.2"]
        assert not goals(measured("4.3.6"))[at].met


def test_an_idle_sidecar_must_stay_under_its_limit() -> None:
    assert not goals(measured(idle=80 * MIB))[-1].met


def test_every_figure_is_in_the_tables() -> None:
    lines = markdown(measured()).splitlines()
    cells = "950 | 920 to 1,000 | 0.92 | 0.50 to 0.95 | 20.00 (20.00 to 20.00) | 1.00 (0.50 to 1.50) | 66"
    assert f"| this, compiled | {cells} |" in lines
    assert "| native x-modulus-hash | not on this broker | | | | | | |" in lines
    paced = "| this, compiled | 0.290 | 0.280 to 0.900 | +0.090 | +0.080 to +0.700 | 1.00 | 1.00 to 1.00 | 50.0 |"
    assert lines.count(paced) == len(RATES)
