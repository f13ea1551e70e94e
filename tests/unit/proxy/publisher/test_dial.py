"""Which of a cluster's addresses is dialled, and how long one that does not answer keeps the others waiting."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from proxy.publisher.dial import Brokers
from proxy.settings.parse import Address
from tests.unit.proxy.fake_broker import FakeBroker, free_address, listening

NAME = "rabbit.example"


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """A place that answers no connect: what listens there takes nobody, and has as many waiting as it may."""
    with ExitStack() as stack:
        taken = stack.enter_context(closing(socket.socket()))
        taken.bind((host, port))
        taken.listen(0)
        for _ in range(3):
            waiting = stack.enter_context(closing(socket.socket()))
            waiting.setblocking(False)
            waiting.connect_ex((host, port))
        with closing(socket.socket()) as last:
            last.settimeout(0.1)
            with pytest.raises(TimeoutError):
                last.connect((host, port))
        yield


def resolving(monkeypatch: pytest.MonkeyPatch, *ips: str) -> None:
    """The name stands for these, in this order; nothing else has a name."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        if host != NAME:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ips]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


async def test_an_ip_that_answers_nothing_leaves_the_next_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening(FakeBroker()) as broker:
        port = broker.address.port
        with black_hole("127.0.0.2", port):
            resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
            made = await Brokers([Address(NAME, port)], None, 1).dial(lambda: asyncio.Protocol())
        assert isinstance(made, asyncio.Protocol)
        await broker.visit()


async def test_each_ip_says_why_it_is_not_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_address().port
    with black_hole("127.0.0.2", port):
        resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
        brokers = Brokers([Address(NAME, port), Address("nonesuch.example", port)], None, 0.4)
        with pytest.raises(OSError, match=NAME) as raised:
            await brokers.dial(asyncio.Protocol)
    first, second, third = str(raised.value).split("; ")
    assert first == f"{NAME}:{port} (127.0.0.2): no answer in time"
    assert second.startswith(f"{NAME}:{port} (127.0.0.1): ")
    assert third == f"nonesuch.example:{port}: Name or service not known"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """Where connections are made to, and whose certificate is wanted there."""
    asked: list[tuple[str, object]] = []

    async def create_connection(
        _: Any, make: Any, host: str, port: int, *, server_hostname: str | None, **__: Any
    ) -> Any:
        asked.append((host, server_hostname))
        return None, make()

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", create_connection)
    return asked


async def test_one_ip_is_dialled_as_it_is_written(asked: list[tuple[str, object]]) -> None:
    """Its interface would be lost where it is looked up."""
    await Brokers([Address("fe80::1%lo", 5672)], None, 1).dial(asyncio.Protocol)
    assert asked == [("fe80::1%lo", None)]


async def test_a_certificate_is_the_names(monkeypatch: pytest.MonkeyPatch, asked: list[tuple[str, object]]) -> None:
    resolving(monkeypatch, "127.0.0.2", "127.0.0.1")
    await Brokers([Address(NAME, 5671)], ssl.create_default_context, 1).dial(asyncio.Protocol)
    assert asked == [("127.0.0.2", NAME)]


async def test_each_connection_begins_with_the_next_address() -> None:
    async with listening(FakeBroker()) as one, listening(FakeBroker()) as other:
        brokers = Brokers([one.address, other.address], None, 5)
        for _ in range(4):
            await brokers.dial(asyncio.Protocol)
        await one.visit(2)
        await other.visit(2)
