"""The long tables show every contender of every scene, and its ratio to the first of its own."""

from bench.long.scene import rows
from bench.rounds import Throughput


def test_ratios_are_to_the_first_of_the_same_scene() -> None:
    found = {
        "16 B": {"a": [Throughput(100, 5.0, None)], "b": [Throughput(50, 6.0, 1.5)]},
        "1 MiB": {"a": [Throughput(10, 7.0, None)], "b": [Throughput(20, 8.0, 2.5)]},
    }
    lines = rows(found, "body").splitlines()
    assert lines[0].startswith("| body | | messages/s |")
    assert [line.split(" | ")[:5] + line.split(" | ")[6:] for line in lines[2:]] == [
        ["| 16 B", "a", "100", "100 to 100", "1.00", "5.0", "|"],
        ["| 16 B", "b", "50", "50 to 50", "0.50", "6.0", "1.50 |"],
        ["| 1 MiB", "a", "10", "10 to 10", "1.00", "7.0", "|"],
        ["| 1 MiB", "b", "20", "20 to 20", "2.00", "8.0", "2.50 |"],
    ]
