"""The reports of the looks of `apply --watch`, of which none is the last one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from proxy.settings.config import Settings
from proxy.shards import watch as module
from proxy.shards.apply import StoppedError
from proxy.shards.plan import Plan
from proxy.shards.steps import DeclareExchange
from proxy.shards.watch import Watch


class Failing:
    """A cluster that cannot be reached, for this reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def __aenter__(self) -> None:
        raise self._error

    async def __aexit__(self, *_: object) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError("broker_url: no connection"), "broker_url: no connection"),
        (RuntimeError("closed"), "unexpected error, see the log: RuntimeError: closed"),
        (KeyError("x"), "unexpected error, see the log: KeyError: 'x'"),
    ],
)
async def test_whatever_goes_wrong_in_a_look_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, told: str
) -> None:
    monkeypatch.setattr(module, "reached", lambda _: Failing(error))
    watch = Watch(Settings(), Path("none.toml"))

    for _ in range(2):
        await watch.look()

    assert watch.fault == told
    assert watch.registry.get_sample_value("ringproxy_topology_looks_total", {"result": "fault"}) == 2.0
    assert [record.getMessage() for record in caplog.records].count(told) == 1


async def test_nodes_are_asked_for_groups_at_the_first_look_after_steps_and_until_all_have_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "topology.toml"
    file.write_text('[[exchange]]\nname = "orders"\nshards = 1\ngroups = ["audit"]\n')
    asked: list[str] = []
    silent = False
    step = ("/", DeclareExchange("orders", "x-consistent-hash", {}))
    plan: Any = SimpleNamespace(steps=(), refusals=(), warnings=(), exchanges=())

    @asynccontextmanager
    async def given(*_: object) -> AsyncIterator[Any]:
        yield SimpleNamespace(states=states)

    async def states(_: object) -> dict[str, Any]:
        return {}

    async def apply(*_: object, moves: bool) -> Plan:
        assert moves
        plan.steps = ()
        return cast("Plan", plan)

    async def fence(_: object, document: Any, *__: object) -> None:
        asked.append(document[0].name)
        if silent:
            raise StoppedError(["a node does not tell"])

    for name, fake in {"reached": given, "locked": given, "apply": apply, "fence": fence}.items():
        monkeypatch.setattr(module, name, fake)
    monkeypatch.setattr(module, "make_plan", lambda *_: plan)
    watch = Watch(Settings(), file)

    async def asks() -> int:
        """Return how often nodes are asked in one look."""
        asked.clear()
        await watch.look()
        return len(asked)

    assert [await asks(), await asks()] == [1, 0]
    plan.steps, silent = (step,), True
    assert [await asks(), await asks()] == [1, 1]
    assert watch.fault == "a node does not tell"
    silent = False
    assert [await asks(), await asks()] == [1, 0]
    assert watch.fault == ""
    plan.refusals = ("no",)
    watch = Watch(Settings(), file)
    assert await asks() == 0
