"""The state that sessions share: what is done once for all of them."""

from unittest.mock import Mock, call

import pytest

from proxy.session import shared
from proxy.session.events import NoQueue
from proxy.session.shared import MEANT_EVERY, MOST_LACKING, MOST_NAMED, Shared
from proxy.settings.missing_right import MissingRight
from proxy.topology.readings import Readings


def test_the_last_missing_rights_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "time", Mock(monotonic=Mock(side_effect=range(100))))
    of_all = Shared(Mock(), Readings(Mock(), Mock(), 5.0), Mock(), frozenset(), Mock(), 10.0)
    rights = [MissingRight("/", f"user {n}", "write", "exchange 'x'", "^x$") for n in range(MOST_LACKING + 1)]
    for right in (*rights[:MOST_LACKING], rights[0], rights[-1]):
        of_all.note_lacking(right)
    assert list(of_all.lacking) == [*rights[2:MOST_LACKING], rights[0], rights[-1]]
    assert of_all.lacking[rights[0]] == MOST_LACKING


def test_what_a_missing_queues_name_may_mean_is_read_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a client makes up push out the oldest."""
    clock = Mock(monotonic=Mock(return_value=100.0))
    monkeypatch.setattr(shared, "time", clock)
    scheduler = Mock()
    of_all = Shared(Mock(), Readings(scheduler, Mock(), 5.0), Mock(), frozenset(), Mock(), 10.0)
    of_all.want("/", NoQueue("x"))
    of_all.want("/", NoQueue("x"))
    assert scheduler.want.mock_calls == [call(("/", "x"))]
    clock.monotonic.return_value += MEANT_EVERY
    of_all.want("/", NoQueue("x"))
    assert scheduler.want.mock_calls == 2 * [call(("/", "x"))]
    for n in range(MOST_NAMED):
        of_all.want("/", NoQueue(f"made up {n}"))
    assert len(scheduler.want.mock_calls) == 2 + MOST_NAMED
    of_all.want("/", NoQueue("x"))
    assert scheduler.want.mock_calls[-1] == call(("/", "x"))
