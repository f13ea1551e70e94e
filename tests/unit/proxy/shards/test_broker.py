"""The lock, where the broker and its management API do not say the same."""

from types import SimpleNamespace
from typing import Any, cast

import aio_pika
import pytest

from proxy.settings.config import Settings
from proxy.settings.files import Files
from proxy.shards import broker as module
from proxy.shards.broker import Broker, LockedError
from proxy.topology.cluster import ClusterIdentity
from tests.unit.proxy.shards.fake_api import management


class LockedConnection:
    """A connection on which every declaration of an exclusive queue is refused."""

    async def channel(self, **_: Any) -> Any:
        return SimpleNamespace(declare_queue=self._refuse)

    async def _refuse(self, *_: Any, **__: Any) -> None:
        raise aio_pika.exceptions.AMQPError("RESOURCE_LOCKED - cannot obtain exclusive access")


async def test_a_holder_that_the_api_never_shows_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAKEN_WITHIN", 0.2)
    monkeypatch.setattr(module, "_PAUSE", 0.05)
    settings = Settings()
    async with management({}) as api:
        broker = Broker(settings, Files(settings), api, ClusterIdentity(api, lambda: None))
        with pytest.raises(LockedError, match="held by a connection that the management API does not show"):
            await module._take(broker, cast("Any", LockedConnection()), "/")
