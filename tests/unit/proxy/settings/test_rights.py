"""Patterns of RabbitMQ's permissions, which match the names that they are for and no others."""

import re
from collections.abc import Sequence

import pytest

from proxy.settings.rights import to_lanes, to_shards


@pytest.mark.parametrize(
    ("shards", "pattern"),
    [
        ((), r"^or\.ders(\.[0-9]+)?$"),
        (["or.ders.1", "or.ders.12"], r"^or\.ders(\.[0-9]+)?$"),
        (["q1", "q.2"], r"^(or\.ders|q1|q\.2)$"),
        (["or.ders.1", "or.ders.2", "or.ders.eu"], r"^(or\.ders|or\.ders\.[0-9]+|or\.ders\.eu)$"),
        (["orxders.1"], r"^(or\.ders|orxders\.1)$"),
    ],
)
def test_a_member_reads_the_exchanges_name_and_the_shards(shards: Sequence[str], pattern: str) -> None:
    assert to_shards("or.ders", shards) == pattern
    assert all(re.search(pattern, name) for name in ("or.ders", *shards))
    assert not re.search(pattern, "or.ders.group")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("or.ders.lane.1", r"^or\.ders(\.lane\..*)?$"),
        ("a.lane.b.lane.eu", r"^a\.lane\.b(\.lane\..*)?$"),
        ("orders", ""),
        (".lane.1", ""),
    ],
)
def test_a_lane_stands_for_all_of_its_exchange(name: str, pattern: str) -> None:
    assert to_lanes(name) == pattern
