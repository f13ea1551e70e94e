"""What a message of HTTP waits for before it is published, and how long."""

import asyncio
from typing import cast
from unittest.mock import Mock

import pytest

from proxy.http.formats.problems import ProblemError
from proxy.http.sending.dispatch import Dispatch
from proxy.topology.lookups import Absent
from proxy.topology.sync import Sync
from proxy.topology.table import Name, Router
from tests.unit.proxy.session.wire import Wire


class Hanging:
    """In the place of what reads the management API: the exchange behind another is gone, and then it hangs."""

    async def look_up(self, name: Name, within: float) -> None:
        raise Absent("there is no such exchange")

    async def refresh(self, name: Name, why: str) -> None:
        await asyncio.Event().wait()


async def test_a_message_waits_no_longer_where_what_is_behind_its_exchange_is_gone() -> None:
    router = Router(300, refuse_stale=True)
    dispatch = Dispatch(router, cast(Sync, Hanging()), Wire().tables, Mock(), 0.05)
    async with asyncio.timeout(10):
        with pytest.raises(ProblemError, match="no such exchange") as raised:
            await dispatch.look_up(("/", "x"), ("/", "gone"), router.clock())
    assert raised.value.status == 503
