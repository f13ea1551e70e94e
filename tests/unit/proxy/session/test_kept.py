"""Kept connections, where a real broker does not show it: splits of bytes, ends at each step, other nodes."""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from unittest.mock import Mock

import pytest
from pamqp.commands import Connection

from proxy.session import kept, time_limits
from proxy.session.handshake import digest
from proxy.session.kept import KeptConnections, Terms
from proxy.session.sockets import PeerSocket
from proxy.topology.cluster import ClusterIdentity
from proxy.wire.frames import CONNECTION_CLOSE, HEARTBEAT_FRAME, PROTOCOL_HEADER, method_of
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.session.socket import Socket
from tests.unit.proxy.session.wire import made

P = TypeVar("P", bound=asyncio.BaseProtocol)

START = made(0, Connection.Start(0, 9, {"node": "a"}, "PLAIN", "en_US"))
LOGIN, OTHER = (made(0, Connection.StartOk({}, "PLAIN", f"\0{user}\0p", "en_US")) for user in "uv")
TUNE, OTHER_TUNE = (made(0, Connection.Tune(2047, size, 60)) for size in (131072, 8192))
TUNE_OK = made(0, Connection.TuneOk(2047, 131072, 0))
OPEN, OPEN_OK = made(0, Connection.Open("/")), made(0, Connection.OpenOk())
CLOSE, CLOSE_OK = made(0, Connection.Close(320, "", 0, 0)), made(0, Connection.CloseOk())
TERMS = Terms(START, digest(LOGIN), TUNE, TUNE_OK, OPEN, OPEN_OK)


def start_of(cluster: str) -> bytes:
    """Return the connection.start of a broker whose cluster has this name."""
    return made(0, Connection.Start(0, 9, {"cluster_name": cluster}, "PLAIN", "en_US"))


class Client:
    """A session's side of its broker connection: what it got, and whether that has ended."""

    def __init__(self) -> None:
        self.got, self.is_over = b"", False
        self.socket = PeerSocket(self)

    def received(self, peer: PeerSocket, data: bytes) -> None:
        self.got += data

    def at_end(self, peer: PeerSocket) -> None:
        """The end of the stream comes before that of the socket."""

    def lost(self, peer: PeerSocket) -> None:
        self.is_over = True

    def flows_again(self, peer: PeerSocket, since: float) -> None:
        """Nothing waits."""

    async def says(self, data: bytes, answer: bytes = b"") -> None:
        """Send bytes, and wait for this answer."""
        self.socket.write([data])
        await eventually(lambda: self.got == answer)
        self.got = b""


class Case:
    """Kept connections, and the brokers that are dialled; none takes a connection while there is a `fault`."""

    def __init__(self, most: int = 2, seconds: float = 60.0) -> None:
        self.identity = ClusterIdentity(Mock())
        self.fault: Exception | None = None
        self.dialled: list[Socket] = []
        self.pool = KeptConnections(self._dial, most, seconds, self.identity)

    async def _dial(self, make: Callable[[], P]) -> P:
        if self.fault is not None:
            raise self.fault
        protocol = make()
        assert isinstance(protocol, asyncio.Protocol)
        self.dialled.append(Socket(protocol))
        return protocol

    async def keep(self, terms: Terms = TERMS) -> Socket:
        """Have a connection kept."""
        client = Client()
        line = Socket(client.socket)
        assert self.pool.keep(client.socket, terms)
        assert not client.socket.is_open
        return line

    async def client(self) -> Client:
        """Return a client that has got the broker's start."""
        client = Client()
        await self.pool.dial(lambda: client.socket)
        await client.says(PROTOCOL_HEADER, START)
        return client


async def test_a_client_gets_the_kept_connection_and_the_broker_hears_nothing_of_it() -> None:
    case = Case()
    line = await case.keep()
    client = await case.client()
    await client.says(LOGIN, TUNE)
    assert len(case.pool) == 0
    await client.says(TUNE_OK[:5])
    await client.says(TUNE_OK[5:] + HEARTBEAT_FRAME + OPEN, OPEN_OK)
    assert (line.sent, case.pool.reused) == (b"", 1)
    client.socket.write([b"more"])
    line.protocol.data_received(b"answer")
    assert (line.sent, client.got) == (b"more", b"answer")
    assert case.dialled == []


async def test_heartbeats_of_the_broker_in_any_split() -> None:
    case = Case()
    line = await case.keep()
    for byte in HEARTBEAT_FRAME[:-1]:
        line.protocol.data_received(bytes((byte,)))
    client = await case.client()
    await client.says(LOGIN)
    await eventually(lambda: len(case.dialled) == 1)
    line.protocol.data_received(HEARTBEAT_FRAME[-1:] + HEARTBEAT_FRAME * 2)
    client = await case.client()
    await client.says(LOGIN, TUNE)
    assert line.sent == b""


@pytest.mark.parametrize("split", [False, True])
async def test_a_broker_that_closes(split: bool) -> None:
    case = Case()
    line = await case.keep()
    for part in [bytes((byte,)) for byte in CLOSE] if split else [HEARTBEAT_FRAME + CLOSE]:
        line.protocol.data_received(part)
    await eventually(lambda: line.is_closed)
    assert line.sent.endswith(CLOSE_OK)
    assert len(case.pool) == 0


async def test_a_broker_that_says_anything_else_is_left() -> None:
    case = Case()
    line = await case.keep()
    line.protocol.data_received(made(0, Connection.Blocked("memory")))
    assert len(case.pool) == 0
    assert b"keeps this connection no longer" in line.sent
    line.protocol.data_received(CLOSE_OK)
    assert line.is_closed


async def test_a_broker_that_does_not_answer_the_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "CLOSE_WITHIN", 0.05)
    monkeypatch.setattr(kept, "LAST_WORDS", 0.01)
    case = Case()
    line = await case.keep()
    await case.pool.drain()
    assert not line.is_closed
    await eventually(lambda: line.is_closed)
    client = Client()
    Socket(client.socket)
    assert not case.pool.keep(client.socket, TERMS)
    assert client.socket.is_open


async def test_a_drain_waits_for_the_answers_of_brokers() -> None:
    case = Case()
    lines = [await case.keep() for _ in range(2)]
    drain = asyncio.create_task(case.pool.drain())
    await eventually(lambda: all(line.sent for line in lines))
    lines[0].protocol.data_received(CLOSE_OK)
    await asyncio.sleep(0)
    assert not drain.done()
    lines[1].protocol.data_received(CLOSE_OK)
    await drain
    assert all(line.is_closed for line in lines)


async def test_the_end_of_the_process_drops_all() -> None:
    case = Case()
    line = await case.keep()
    case.pool.close()
    assert line.is_closed
    await eventually(lambda: len(case.pool) == 0)


async def test_the_oldest_connection_gives_way() -> None:
    case = Case(most=1)
    lines = [await case.keep() for _ in range(2)]
    assert lines[0].sent
    assert not lines[1].sent
    assert len(case.pool) == 1


async def test_connections_that_are_being_closed_count_until_the_broker_has_answered() -> None:
    case = Case(most=1)
    lines = [await case.keep() for _ in range(2)]
    client = Client()
    Socket(client.socket)
    assert not case.pool.keep(client.socket, TERMS)
    assert client.socket.is_open
    lines[0].protocol.data_received(CLOSE_OK)
    await eventually(lambda: case.pool.keep(client.socket, TERMS))
    assert lines[1].sent


async def test_a_connection_from_before_the_cluster_got_its_name_serves_nobody() -> None:
    case = Case()
    named = Client()
    assert await case.keep(TERMS._replace(start=start_of("before")))
    await case.pool.dial(lambda: named.socket)
    await named.says(PROTOCOL_HEADER, start_of("before"))
    case.identity.assume("after", frozenset({"after"}), frozenset())
    named.socket.write([LOGIN])
    await eventually(lambda: len(case.dialled) == 1)
    # The next one hears of the broker that there is now.
    await case.pool.dial(lambda: Client().socket)
    assert len(case.dialled) == 2


async def test_a_client_that_has_heard_of_another_cluster_is_to_connect_again() -> None:
    case = Case()
    await case.keep()
    client = await case.client()
    await client.says(OTHER)
    await eventually(lambda: len(case.dialled) == 1)
    (broker,) = case.dialled
    assert broker.taken() == PROTOCOL_HEADER
    broker.protocol.data_received(start_of("b"))
    assert broker.taken() == b""
    assert method_of(client.got, 0) == CONNECTION_CLOSE


async def test_nodes_of_an_unnamed_cluster_serve_for_each_other() -> None:
    """Each of them reports a cluster of its own name."""
    case, starts = Case(), list(map(start_of, "ab"))
    case.identity.assume("a", frozenset({"a", "b"}), frozenset())
    lines = [
        await case.keep(TERMS._replace(start=start, login=digest(login)))
        for start, login in zip(starts, (LOGIN, OTHER), strict=True)
    ]
    client = Client()
    await case.pool.dial(lambda: client.socket)
    await client.says(PROTOCOL_HEADER, starts[1])
    await client.says(LOGIN, TUNE)
    assert len(case.pool) == 1
    elsewhere = made(0, Connection.Open("elsewhere"))
    await client.says(TUNE_OK + elsewhere)
    await eventually(lambda: len(case.dialled) == 1)
    [broker] = case.dialled
    broker.protocol.data_received(starts[0] + TUNE + OPEN_OK)
    assert (broker.taken(), client.got) == (PROTOCOL_HEADER + LOGIN + TUNE_OK + elsewhere, OPEN_OK)
    assert not any(line.sent for line in lines)


async def test_clients_of_two_virtual_hosts_in_turn_each_get_their_connection() -> None:
    case = Case()
    opens = [made(0, Connection.Open(vhost)) for vhost in ("a", "b")]
    lines = [await case.keep(TERMS._replace(open=frame)) for frame in opens]
    for frame, line in zip(opens, lines, strict=True):
        client = await case.client()
        await client.says(LOGIN, TUNE)
        await client.says(TUNE_OK)
        await client.says(frame, OPEN_OK)
        assert line.protocol is client.socket
    assert case.dialled == []


async def test_a_connection_that_is_given_back_waits_no_longer_than_before() -> None:
    case = Case()
    line = await case.keep(TERMS._replace(tune_ok=made(0, Connection.TuneOk(2047, 131072, 1))))
    client = await case.client()
    await client.says(LOGIN, TUNE)
    await asyncio.sleep(0.4)
    client.socket.abort()
    assert len(case.pool) == 1
    await asyncio.sleep(0.2)
    assert len(case.pool) == 0
    assert line.sent


async def test_a_connection_that_is_being_closed_is_not_kept() -> None:
    case, client = Case(), Client()
    line = Socket(client.socket)
    line.is_closed = True
    assert not case.pool.keep(client.socket, TERMS)
    assert client.socket.is_open


async def test_another_login_is_judged_by_a_broker_which_hears_it_all() -> None:
    case = Case()
    await case.keep()
    client = await case.client()
    await client.says(OTHER)
    await eventually(lambda: len(case.dialled) == 1)
    [broker] = case.dialled
    assert broker.taken() == PROTOCOL_HEADER
    for byte in START + HEARTBEAT_FRAME:
        broker.protocol.data_received(bytes((byte,)))
    assert broker.taken() == OTHER
    broker.protocol.data_received(TUNE)
    assert client.got == HEARTBEAT_FRAME + TUNE
    client.got = b""
    await client.says(TUNE_OK)
    assert broker.taken() == TUNE_OK
    assert (len(case.pool), case.pool.reused) == (1, 0)


@pytest.mark.parametrize("node", ["the same", "another of other limits", "one that refuses"])
async def test_another_virtual_host_is_judged_by_a_broker(node: str) -> None:
    case = Case()
    await case.keep()
    client = await case.client()
    await client.says(LOGIN, TUNE)
    elsewhere = made(0, Connection.Open("elsewhere"))
    await client.says(TUNE_OK + elsewhere)
    await eventually(lambda: len(case.dialled) == 1)
    assert len(case.pool) == 1  # for the next one
    [broker] = case.dialled
    broker.protocol.data_received(HEARTBEAT_FRAME + START)
    assert broker.taken() == PROTOCOL_HEADER + LOGIN
    if node == "the same":
        broker.protocol.data_received(TUNE + OPEN_OK)
        assert (broker.taken(), client.got) == (TUNE_OK + elsewhere, OPEN_OK)
    elif node == "one that refuses":
        broker.protocol.data_received(CLOSE)
        assert client.got == CLOSE
    else:
        broker.protocol.data_received(OTHER_TUNE)
        assert b"connect again" in client.got
    client.socket.abort()
    await eventually(lambda: broker.is_closed)
    assert case.pool.reused == 0


async def test_a_client_that_leaves_during_the_handshake_gives_the_connection_back() -> None:
    case = Case()
    line = await case.keep()
    client = await case.client()
    await client.says(LOGIN, TUNE)
    client.socket.finish()
    await eventually(lambda: client.is_over)
    assert len(case.pool) == 1
    client = await case.client()
    await client.says(LOGIN, TUNE)
    case.pool.close()
    client.socket.abort()
    await eventually(lambda: b"no longer" in line.sent)


@pytest.mark.parametrize("when", ["before open", "before the broker answers"])
async def test_a_connection_that_ends_during_the_handshake_is_replaced(when: str) -> None:
    case = Case()
    line = await case.keep()
    client = await case.client()
    await client.says(LOGIN, TUNE)
    line.protocol.data_received(CLOSE)
    await client.says(TUNE_OK + OPEN)
    await eventually(lambda: len(case.dialled) == 1)
    [broker] = case.dialled
    if when == "before open":
        broker.protocol.data_received(START)
        broker.protocol.data_received(TUNE)
        assert broker.sent == PROTOCOL_HEADER + LOGIN + TUNE_OK + OPEN
        broker.protocol.data_received(OPEN_OK)
        assert client.got == OPEN_OK
    else:
        broker.abort()
        await eventually(lambda: client.is_over)


@pytest.mark.parametrize("fault", [OSError("nobody listens"), RuntimeError()])
async def test_no_broker_takes_the_connection(fault: Exception) -> None:
    case = Case()
    await case.keep()
    client = await case.client()
    case.fault = fault
    await client.says(OTHER)
    await eventually(lambda: client.is_over)


async def test_a_client_that_leaves_while_a_broker_is_dialled() -> None:
    case = Case()
    await case.keep()
    client = await case.client()
    client.socket.write([OTHER])
    client.socket.abort()
    await eventually(lambda: client.is_over)
    assert all(broker.is_closed or not broker.sent for broker in case.dialled)


async def test_a_connection_has_half_a_heartbeat_to_wait() -> None:
    case = Case()
    line = await case.keep(TERMS._replace(tune_ok=made(0, Connection.TuneOk(2047, 131072, 1))))
    assert len(case.pool) == 1
    await eventually(lambda: bool(line.sent))
    assert len(case.pool) == 0
