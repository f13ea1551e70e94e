"""Ratios are taken within a round, so that a slow round changes none."""

from bench.long.journal import compared, compared_costs
from bench.rounds import Throughput


def test_ratios_at_full_rate_are_those_of_the_same_round() -> None:
    plain = [Throughput(rate, None, 10.0) for rate in (100.0, 50.0, 200.0)]
    slower = [Throughput(one.rate / 2, None, 30.0) for one in plain]
    assert compared({"off": plain, "on": slower}).splitlines()[-1] == (
        "| on | 0.500 | 0.50 to 0.50 | 3.000 | 3.00 to 3.00 |"
    )


def test_costs_at_a_fixed_rate_stand_beside_their_ratios() -> None:
    lines = compared_costs({"off": [100.0, 200.0, 300.0], "on": [110.0, 220.0, 330.0]}).splitlines()
    assert lines[-2:] == ["| off | 200 | | |", "| on | 220 | 1.100 | 1.10 to 1.10 |"]
