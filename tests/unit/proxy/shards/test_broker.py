"""The lock, where the broker and its management API do not say the same, or where the broker says nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import aio_pika
import pytest

from proxy.settings.config import Settings
from proxy.settings.files import Files
from proxy.shards import broker as module
from proxy.shards.broker import Broker, Held, Lock, LockedError, LockLostError
from proxy.topology.cluster import ClusterIdentity
from tests.unit.proxy.shards.fake_api import management

Declares = Callable[[], Awaitable[None]]


def channel_of(declare: Declares) -> Any:
    """A channel that does this at each declaration of a queue."""

    async def declare_queue(*_: Any, **__: Any) -> None:
        await declare()

    return SimpleNamespace(declare_queue=declare_queue)


def connection_of(declare: Declares) -> Any:
    """A connection that has such channels."""

    async def channel(**_: Any) -> Any:
        return channel_of(declare)

    return SimpleNamespace(channel=channel)


def raising(error: BaseException) -> Declares:
    async def fail() -> None:
        raise error

    return fail


async def silent() -> None:
    await asyncio.Event().wait()


LOCKED = raising(aio_pika.exceptions.AMQPError("RESOURCE_LOCKED - cannot obtain exclusive access"))
FAULTS = {
    "no answer over AMQP within 0.1 s": silent,
    "the channel or its connection has ended": raising(RuntimeError("<Channel> closed")),
    "the connection was lost": raising(asyncio.CancelledError()),
    "reset": raising(ConnectionResetError("reset")),
}
"""The outcomes of a request over AMQP, by what is told of them."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERED_WITHIN", 0.1)


async def test_a_holder_that_the_api_never_shows_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TAKEN_WITHIN", 0.2)
    monkeypatch.setattr(module, "_PAUSE", 0.05)
    settings = Settings()
    async with management({}) as api:
        broker = Broker(settings, Files(settings), api, ClusterIdentity(api))
        with pytest.raises(LockedError, match="held by a connection that the management API does not show"):
            await module._acquire_lock(broker, connection_of(LOCKED), "/")


@pytest.mark.parametrize("told", FAULTS)
async def test_a_lock_that_cannot_be_asked_for_is_an_error_in_a_line(told: str) -> None:
    """It would be a traceback otherwise, or a wait without an end."""
    with pytest.raises(OSError, match=f"virtual host '/': no lock: {told}"):
        await module._acquire_lock(cast("Any", None), connection_of(FAULTS[told]), "/")


@pytest.mark.parametrize(
    ("told", "declare"),
    [
        *FAULTS.items(),
        ("RESOURCE_LOCKED - cannot", LOCKED),
        (
            "queue 'ring-proxy.topology' is gone; no policy with expires may apply to it",
            raising(aio_pika.exceptions.ChannelNotFoundEntity("NOT_FOUND - no queue")),
        ),
    ],
)
async def test_a_lock_that_the_broker_does_not_confirm_is_lost(told: str, declare: Declares) -> None:
    held = Held(connection_of(declare), channel_of(declare), cast("Any", None))

    with pytest.raises(LockLostError, match=f"virtual host 'v': the lock was lost, so another .* now: {told}"):
        await Lock({"v": held}).check()


async def test_whoever_is_cancelled_while_the_lock_is_checked_ends() -> None:
    """Not so if only aiormq cancels what it waits for."""
    checking = asyncio.create_task(Lock({"v": Held(cast("Any", None), channel_of(silent), cast("Any", None))}).check())
    await asyncio.sleep(0)
    checking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await checking
