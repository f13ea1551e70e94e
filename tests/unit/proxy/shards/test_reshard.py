"""How a change in order tells that a queue which was drained before can never be drained again."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.shards import reshard
from proxy.shards.reshard import Manner
from proxy.topology.management import ManagementError

THREE = ["a", "b", "c"]


def is_lost(monkeypatch: pytest.MonkeyPatch, *answers: Any, has_no_process: bool = False) -> bool:
    """Return whether a queue counts as lost, of which the management API gives these answers, the last one for ever."""
    for name, seconds in (("_LOST_AFTER", 0.2), ("_LOOK_EVERY", 0.01)):
        monkeypatch.setattr(reshard, name, seconds)
    left = list(answers)

    async def page(*_: object) -> Any:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    broker = SimpleNamespace(api=SimpleNamespace(page=page))
    exchange = SimpleNamespace(vhost="/", name="orders")
    course = reshard._Course(cast(Any, broker), cast(Any, None), cast(Any, exchange), Manner(), print)

    line = SimpleNamespace(queue="orders.1", has_no_process=has_no_process)

    async def waited() -> bool:
        try:
            await asyncio.wait_for(course._is_lost(cast(Any, line)), 0.6)
        except TimeoutError:
            return False
        return True

    return asyncio.run(waited())


def test_a_queue_of_which_half_or_fewer_replicas_run_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_lost(monkeypatch, {"members": THREE, "online": ["a"]})
    assert is_lost(monkeypatch, {"members": THREE[:2], "online": ["a"]})
    assert is_lost(monkeypatch, {"members": THREE, "online": THREE}, {"members": THREE, "online": []})


def test_a_queue_without_a_process_is_lost_though_the_management_api_shows_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_lost(monkeypatch, {"members": ["a"], "online": ["a"]}, has_no_process=True)


@pytest.mark.parametrize(
    "answer",
    [{"members": THREE, "online": ["a", "b"]}, ManagementError("away"), None, {"members": THREE}, {"online": []}, []],
)
def test_a_queue_of_which_that_is_not_known_is_not(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    assert not is_lost(monkeypatch, answer)
