"""The reports of the looks of `apply --watch`, of which none is the last one."""

from pathlib import Path

import pytest

from proxy.settings.config import Settings
from proxy.shards import watch as module
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
