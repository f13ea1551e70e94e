"""The lines that `explain` prints of a key, by a sidecar's answer; real sidecars: tests/integration."""

from typing import Any

import pytest

from proxy.commands.explain import _explanation, change

ANSWER: dict[str, Any] = {
    "type": "x-consistent-hash",
    "mode": "route",
    "passed": None,
    "ring": "f" * 16,
    "hashed": "routing_key",
    "age_seconds": 1.0,
    "destinations": [],
    "ignored_bindings": [],
    "changes": [],
}
PART = "route_share  10% of the slots follow the ring"
NATIVE = (
    "passed       publishes with the key go to the exchange itself: the setting route_share leaves the key's slot to it"
    " (share)"
)


@pytest.mark.parametrize(
    ("share", "passed", "told"),
    [
        ({}, None, []),  # a sidecar that passes, or of a release without shares
        ({"route_share": 100.0}, None, []),
        ({"route_share": 10.0}, None, [PART]),
        ({"route_share": 10.0}, "share", [PART, NATIVE]),
    ],
)
def test_a_key_outside_the_share_is_told_to_be_passed(
    share: dict[str, Any], passed: str | None, told: list[str]
) -> None:
    place = {"slot": 7, "owner": {"type": "queue", "name": "q"}, "runner_up": None, "passed": passed}
    lines = _explanation(ANSWER | share | {"key": place}, "/", "x", "k")
    assert lines[1 : 1 + len(told)] == told
    assert lines[1 + len(told) :][:3] == ["key          k", "slot         7", "owner        queue q"]


def test_the_generations_of_an_exchange_are_told() -> None:
    told = {
        "generation": 2,
        "made_with": 6,
        "change": {"from": 1, "to": 3, "lanes": 8, "lanes_bound": 7, "old_shards": 0, "old_shards_left": 4},
        "not_open": {"orders": [f"orders.{shard}" for shard in range(10)], "orders/audit": ["orders.3"]},
        "other_generations": [
            {
                "generation": 1,
                "made_with": None,
                "bound": 4,
                "queues": {"orders": ["orders.0", "orders.1"], "orders/audit": ["orders.audit.1"]},
                "no_lanes": [],
            },
            {"generation": 3, "made_with": 8, "bound": 8, "queues": {}, "no_lanes": ["orders.lane.g3.1"]},
        ],
    }
    assert _explanation(ANSWER | told, "/", "orders", "k")[1:] == [
        "generation   2 is the ring, made with 6 shards",
        "under way    it changes from generation 1 to 3: 7 of 8 lanes are bound",
        "not open     to group orders: orders.0, orders.1, orders.2, orders.3, orders.4, orders.5, orders.6, orders.7 "
        "and 2 more",
        "not open     to group orders/audit: orders.3",
        "generation   1 is bound: 4 bindings, 2 queues of group orders, 1 queues of group orders/audit",
        "generation   3 is bound, made with 8 shards: 8 bindings",
        "no lanes     of generation 3, so it is not the ring: orders.lane.g3.1",
    ]


@pytest.mark.parametrize(
    ("shards", "told"), [(0, "4 old shards are left to drain"), (6, "2 of 6 old shards are drained")]
)
def test_a_change_whose_lanes_are_bound_tells_how_much_is_left_to_drain(shards: int, told: str) -> None:
    of = {"from": 2, "to": 3, "lanes": 8, "lanes_bound": 8, "old_shards": shards, "old_shards_left": 4}
    assert change(of) == f"changes from generation 2 to 3: {told}"


@pytest.mark.parametrize("told", [{}, {"generation": 1}])
def test_an_exchange_with_the_first_generation_only_needs_no_line(told: dict[str, Any]) -> None:
    assert len(_explanation(ANSWER | told, "/", "orders", "k")) == 1
