"""The lines that `explain` prints of a key, by a sidecar's answer; real sidecars: tests/integration."""

from typing import Any

import pytest

from proxy.commands.explain import _explanation

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
