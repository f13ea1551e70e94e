"""The lag of groups over an hour: aligned in time, bounded, and with gaps where nothing was known."""

from unittest.mock import Mock

import pytest

from proxy.groups.lag import Lag
from proxy.http.admin.console import lag_history
from proxy.http.admin.console.lag_history import MOST_GROUPS, SAMPLES, LagHistory

ORDERS, AUDIT = ("/", "orders"), ("/", "audit")


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sample comes 15 s after the one before, the first at 0."""
    monkeypatch.setattr(lag_history, "time", Mock(time=Mock(side_effect=range(0, 1_000_000, 15))))


def test_samples_are_told_by_figure_with_gaps_where_nothing_was_known() -> None:
    history = LagHistory()
    assert history.of(ORDERS) is None
    history.add({ORDERS: Lag(7, 1, 2.04, 2.5, 14.0)})
    history.add({ORDERS: Lag()})
    history.add({ORDERS: Lag(0, 0, 0.0, None, 0.0), AUDIT: Lag(3)})
    assert history.of(ORDERS) == {
        "since": 0,
        "until": 30,
        "ready": [7, None, 0],
        "unacked": [1, None, 0],
        "publish_rate": [2.0, None, 0.0],
        "consume_rate": [2.5, None, None],
        "seconds_to_empty": [14.0, None, 0.0],
    }
    of_audit = history.of(AUDIT)
    assert of_audit is not None
    assert (of_audit["since"], of_audit["until"], of_audit["ready"], of_audit["unacked"]) == (30, 30, [3], [None])


def test_an_hour_is_kept_also_of_a_group_whose_members_leave_and_come_back() -> None:
    history = LagHistory()
    for ready in range(SAMPLES + 10):
        history.add({ORDERS: Lag(ready)})
    history.add({})
    history.add({ORDERS: Lag(1)})
    of_orders = history.of(ORDERS)
    assert of_orders is not None
    assert of_orders["ready"] == [*range(12, SAMPLES + 10), None, 1]
    assert of_orders["until"] - of_orders["since"] == 15 * (SAMPLES - 1)


def test_groups_are_bounded_and_those_that_are_gone_make_room() -> None:
    history = LagHistory()
    many = {("/", f"orders.{n}"): Lag(n) for n in range(MOST_GROUPS)}
    history.add(many)
    history.add({**many, ORDERS: Lag(1)})
    assert history.of(ORDERS) is None
    for _ in range(SAMPLES):
        history.add({ORDERS: Lag(2)})
    assert history.of(("/", "orders.0")) is None
    history.add({ORDERS: Lag(3)})
    of_orders = history.of(ORDERS)
    assert of_orders is not None
    assert of_orders["ready"][-1] == 3
