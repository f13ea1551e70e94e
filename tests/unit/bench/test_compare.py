"""A comparison on somebody's own broker."""

from bench.compare import compared


def test_the_ratio_is_of_the_rates_of_one_round() -> None:
    assert compared([1000, 2000, 1000], [3000, 2000, 1500]).splitlines() == [
        "straight to the exchange, messages/s: 1,000 (1,000 to 2,000)",
        "through the sidecar, messages/s: 2,000 (1,500 to 3,000)",
        "ratio: 1.50 (1.00 to 3.00)",
    ]
