"""The hostile client writes what it says, at every listener, and holds no more open than it may."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest
from pamqp import frame
from pamqp.commands import Basic, Channel, Connection

from tests.chaos import hostile
from tests.chaos.hostile import AT_ONCE, HELD, Attacks, Target, attacks_on
from tests.integration.wire_client import PROTOCOL_HEADER

DEADLINE = 30.0


def names(data: bytes) -> list[str]:
    """The methods among the frames behind the protocol header."""
    found, data = [], data.removeprefix(PROTOCOL_HEADER)
    while data:
        taken, _, value = frame.unmarshal(data)
        found.append(value.name)
        data = data[taken:]
    return found


def test_nobody_logs_in_and_all_is_asked_for() -> None:
    attacks = Attacks("orders")
    opened = [Connection.TuneOk.name, Connection.Open.name]
    assert names(attacks.channels()) == [*opened, *[Channel.Open.name] * 65534]
    published = names(attacks.publishes())
    assert published[:3] == [*opened, Channel.Open.name]
    assert published.count(Basic.Publish.name) == 500
    assert attacks.made_up_vhosts() != attacks.made_up_vhosts()
    assert len({kind() for kind in attacks.kinds}) == len(attacks.kinds)


class Listener:
    """A server that reads whatever comes, and counts."""

    def __init__(self) -> None:
        self.began: Counter[bytes] = Counter()
        """Connections, by the first bytes that came over them."""
        self.open = self.most = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        with suppress(ConnectionError):
            self.began[await reader.read(8)] += 1
            while await reader.read(1 << 20):
                pass
        self.open -= 1
        writer.close()


async def test_every_kind_is_done_to_every_listener_until_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hostile, "PAUSE", 0.0)
    listeners, stop = [Listener(), Listener()], tmp_path / "stop"
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(await asyncio.start_server(listener.serve, "127.0.0.1", 0))
            for listener in listeners
        ]
        target = Target([server.sockets[0].getsockname()[1] for server in servers], "orders", str(stop), "")
        attacking = asyncio.create_task(attacks_on(target))
        async with asyncio.timeout(DEADLINE):
            while min(listener.began.total() for listener in listeners) < 3 * AT_ONCE * HELD:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            for server in servers:
                server.close()  # before the last attacks: what was taken is served
            stop.touch()
            done = await attacking
            while any(listener.open for listener in listeners):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert set(done) == {kind.__name__ for kind in Attacks("orders").kinds}
    for listener in listeners:
        assert listener.began[PROTOCOL_HEADER] > listener.began.total() / 2
        # Those that were hung up may be there for a moment yet.
        assert AT_ONCE * HELD <= listener.most < 2 * AT_ONCE * HELD
