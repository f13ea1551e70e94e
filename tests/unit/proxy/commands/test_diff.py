"""How two sidecars' answers about one exchange are compared; against real sidecars: tests/integration."""

from typing import Any

import pytest

from proxy.commands.diff import _differences

UPSTREAM: dict[str, Any] = {"rings": ["orders"], "bindings": 2, "conflict": None}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rings": ["orders", "refunds"]}, "leads to rings: ['orders'] / ['orders', 'refunds']"),
        ({"bindings": 3}, "number of bindings: 2 / 3"),
        ({"conflict": "why"}, "conflict: None / why"),
        ({}, None),
    ],
)
def test_sidecars_that_see_other_bindings_of_an_upstream_exchange_differ(
    changed: dict[str, Any], told: str | None
) -> None:
    mine, theirs = ({"type": "topic", "upstream": upstream} for upstream in (UPSTREAM, UPSTREAM | changed))
    assert _differences(mine, theirs) == ([told] if told else [])


@pytest.mark.parametrize(
    ("mine", "theirs", "told"),
    [
        ({"route_share": 10.0}, {"route_share": 12.5}, ["route_share: 10 / 12.5"]),
        ({"route_share": 10.0}, {"route_share": 10.0}, []),
        ({"passed": None, "route_share": 10.0}, {"passed": "shadow"}, ["passed: None / shadow"]),
    ],
)
def test_sidecars_of_other_shares_differ(mine: dict[str, Any], theirs: dict[str, Any], told: list[str]) -> None:
    assert _differences(mine, theirs) == told
