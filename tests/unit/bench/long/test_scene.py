"""The long tables show every contender of every scene, and its ratio to the first of its own."""

from bench.amqp import COMPILED, CONSISTENT
from bench.long.scene import rows
from bench.rounds import Spread, Throughput
from bench.tables import tables


def test_ratios_are_to_the_first_of_the_same_scene() -> None:
    found = {
        "16 B": {"a": [Throughput(100, 5.0, None)], "b": [Throughput(50, 6.0, 1.5)]},
        "1 MiB": {"a": [Throughput(10, 7.0, None)], "b": [Throughput(20, 8.0, 2.5)]},
    }
    (told,) = tables(rows(found, "body"))
    assert told.heads[:3] == ["body", "", "messages/s"]
    assert [[*row[:5], *row[8:]] for row in told.rows] == [
        ["16 B", "a", "100", "100 to 100", "1.00", "5.0", ""],
        ["16 B", "b", "50", "50 to 50", "0.50", "6.0", "1.50"],
        ["1 MiB", "a", "10", "10 to 10", "1.00", "7.0", ""],
        ["1 MiB", "b", "20", "20 to 20", "2.00", "8.0", "2.50"],
    ]


def test_the_sidecars_ratio_to_the_native_exchange_is_within_a_round() -> None:
    rates = {"straight": (1, 1, 1), CONSISTENT: (10, 20, 10), COMPILED: (30, 30, 1500)}
    found = {"8": {title: [Throughput(rate, 5.0, None) for rate in each] for title, each in rates.items()}}
    (told,) = tables(rows(found, "queues"))
    assert told.spread(["8", COMPILED], "÷ native") == Spread(3, 1.5, 150)
    assert [row[6] for row in told.rows] == ["", "", "3.00"]
