"""The times that a session gives its peers, with a broker or a client that falls silent."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from pamqp import commands

from proxy.groups.consuming.attendant import Attendants
from proxy.groups.consuming.events import Left
from proxy.groups.consuming.hidden import Consumer
from proxy.groups.consuming.interceptor import GroupInterceptor
from proxy.groups.consuming.tags import Numbering
from proxy.groups.groups import Groups
from proxy.groups.model import Member
from proxy.session import client_loop, session, shared, time_limits
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.end import End
from proxy.session.events import Reopened, Stale
from proxy.session.kept import KeptConnections
from proxy.session.publishing.confirms import MOST_UNSETTLED
from proxy.session.publishing.parking import MOST_PARKED
from proxy.session.session import Session
from proxy.session.shared import Shared
from proxy.session.sockets import BUFFER, PeerSocket
from proxy.session.state import ChannelState
from proxy.settings.config import Settings
from proxy.topology.cluster import ClusterIdentity
from proxy.topology.declarations import Declaration
from proxy.topology.lookups import Absent, NotReadable
from proxy.topology.readings import Readings
from proxy.topology.scheduler import Scheduler
from proxy.topology.table import Name, Unread
from proxy.wire.frames import close_frame
from ring.destination import Destination
from tests.unit.proxy.eventually import eventually
from tests.unit.proxy.session.republishing import KEPT, LEFT, LOST, again
from tests.unit.proxy.session.socket import Socket
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    QUEUES,
    VHOST,
    Wire,
    ack,
    back,
    body,
    close_channel,
    close_connection,
    code_of,
    confirm_select,
    exchange,
    header,
    known,
    laned,
    made,
    message,
    nack,
    publish,
    published,
    queue,
    ring,
    split,
    text_of,
)

PROTOCOL_HEADER = b"AMQP\0\0\x09\x01"
WITHIN = 0.3
"""In place of a limit of many seconds."""

LEAVE = close_connection(200, b"")


class Rings:
    """In the place of what reads the management API: every reading finds that a queue has left."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.answers = asyncio.Event()
        """Not set while the management API hangs."""
        self.answers.set()

    async def read_again(self, name: Name, why: str, gone: set[Destination]) -> None:
        """The ring without it."""
        await self.answers.wait()
        self._wire.router.put(name, known(LEFT, read_at=time.monotonic()))

    def declared(self, vhost: str, declaration: Declaration) -> None:
        """Nothing is made of it."""

    def found_missing(self, vhost: str, exchange: str) -> None:
        """The ring is to be read."""
        self._wire.router.mark_declared((vhost, "x"), time.monotonic(), certain=False)

    async def look_up(self, name: Name, within: float) -> None:
        """Fail: there is no answer for any other exchange."""
        raise NotReadable("no answer")


class Ends:
    """A session, and both peers."""

    def __init__(self, groups: Groups | None = None, *, keeps: bool = False) -> None:
        self._wire = Wire({"x": known(QUEUES, read_at=time.monotonic())})
        self.router = self._wire.router
        self._wire.router.clock = time.monotonic
        self.rings = Rings(self._wire)
        shared = self.shared = Shared(
            self._wire.tables,
            Readings(cast(Scheduler, self.rings), Mock(), 5.0),
            self._dial,
            frozenset(),
            lambda seconds: None,
            10.0,
        )
        shared.attend = Attendants(groups, Settings(), Mock()) if groups is not None else None
        if keeps:
            shared.kept = KeptConnections(Mock(), 1, 60.0, ClusterIdentity(Mock()))
        self.over: list[Session] = []
        self.session = Session(shared, self.over.append)
        self.client = Socket(self.session.client)
        self.broker: Socket | None = None

    async def _dial(self, leg: Callable[[], PeerSocket]) -> PeerSocket:
        made = leg()
        self.broker = Socket(made)
        return made

    def of_client(self, data: bytes) -> bytes:
        """Feed bytes of the client; return what the broker gets."""
        self.session.client.data_received(data)
        assert self.broker is not None
        return self.broker.taken()

    def of_broker(self, data: bytes) -> bytes:
        """Feed bytes of the broker; return what the client gets."""
        self.session.broker.data_received(data)
        return self.client.taken()

    async def dialled(self) -> None:
        """The broker has got the protocol header."""
        self.session.client.data_received(PROTOCOL_HEADER)
        await eventually(lambda: self.broker is not None and self.broker.sent == PROTOCOL_HEADER)
        assert self.broker is not None
        self.broker.taken()

    async def opened(self) -> None:
        """The session is open, and channel 1 is in confirm mode."""
        await self.dialled()
        for of, command in (
            (self.of_broker, commands.Connection.Start(0, 9, {}, "PLAIN", "en_US")),
            (self.of_client, commands.Connection.StartOk({}, "PLAIN", "\0u\0p", "en_US")),
            (self.of_broker, commands.Connection.Tune(2047, 131072, 0)),
            (self.of_client, commands.Connection.TuneOk(1023 if self.shared.attend is not None else 2046, 131072, 0)),
            (self.of_client, commands.Connection.Open(VHOST)),
            (self.of_broker, commands.Connection.OpenOk()),
        ):
            assert of(made(0, command))
        self.of_client(made(1, commands.Channel.Open()) + confirm_select(1))
        self.of_broker(made(1, commands.Channel.OpenOk()) + made(1, commands.Confirm.SelectOk()))

    async def rerouted(self) -> Socket:
        """Open, and a message of channel 1 that came back is under way again; its ack waits. Gives the broker's end."""
        await self.opened()
        sent = self.of_client(message(1, b"x", LOST[0]))
        assert self.of_broker(back(sent) + ack(1, 1)) == b""
        broker = self.broker
        assert broker is not None
        await eventually(lambda: bool(broker.sent))
        return broker


def shorten(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Make time limits short."""
    for name in names:
        monkeypatch.setattr(time_limits, name, WITHIN)


@pytest.fixture(autouse=True)
def one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a session take a whole read in one turn, however slow the machine is."""
    monkeypatch.setattr(session, "TURN", 1000.0)


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.session.abort()
    await eventually(lambda: bool(made.over))


async def closed(ends: Ends, why: End) -> None:
    """Both sockets, for that reason."""
    await eventually(lambda: bool(ends.over))
    assert ends.client.is_closed
    assert ends.broker is None or ends.broker.is_closed
    assert ends.session.end is why


@pytest.mark.parametrize("side", ["before the broker is dialled", "ahead of the handshake", "of the broker"])
async def test_a_session_that_is_over_keeps_none_of_the_bytes_that_wait(ends: Ends, side: str) -> None:
    """The bytes must go at once, since a cycle is freed late, if ever."""
    waiting, c = bytes(1000), ends.session.connection
    if side == "before the broker is dialled":
        ends.session.client.data_received(PROTOCOL_HEADER + waiting)
        assert ends.session._head == waiting
    else:
        await ends.dialled()
        login = made(0, commands.Connection.StartOk({}, "PLAIN", "\0u\0p", "en_US"))
        if side == "ahead of the handshake":
            ends.session.client.data_received(login + waiting)
            assert waiting in c.to_broker.rest
        else:
            begun = made(0, commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"))[:-1]
            ends.session.broker.data_received(begun)
            assert c.to_client.rest == begun
    ends.session.abort()
    await eventually(lambda: bool(ends.over))
    assert (ends.session._head, c.to_broker.rest, c.to_client.rest) == (b"", b"", b"")


@pytest.mark.parametrize("of", [Ends.of_client, Ends.of_broker])
async def test_a_read_that_takes_long_leaves_a_turn_to_others(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, of: Callable[[Ends, bytes], bytes]
) -> None:
    """The rest of the read is taken then, and the socket is not read meanwhile."""
    await ends.opened()
    assert ends.broker is not None
    socket, other = (ends.client, ends.broker) if of is Ends.of_client else (ends.broker, ends.client)
    monkeypatch.setattr(session, "TURN", -1.0)
    data = made(1, commands.Queue.Purge(queue="q")) * 500
    got, turns = of(ends, data), 0
    assert len(got) < len(data) / 5
    while len(got) < len(data):
        assert not socket.is_read
        await asyncio.sleep(0)
        got, turns = got + other.taken(), turns + 1
    assert got == data
    assert turns > 5
    await eventually(lambda: socket.is_read)


async def test_what_a_peer_sent_before_it_ended_is_taken_to_the_end(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the socket is lost although it is not read."""
    await ends.opened()
    assert ends.broker is not None
    monkeypatch.setattr(session, "TURN", -1.0)
    data = made(1, commands.Queue.Purge(queue="q")) * 500
    got = ends.of_client(data)
    ends.client.abort()
    await eventually(lambda: len(got + cast(Socket, ends.broker).sent) >= len(data))
    assert got + ends.broker.taken() == data


async def test_a_client_that_sends_no_header_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, "HEADER_WITHIN")
    ends, started = Ends(), time.monotonic()
    ends.session.client.data_received(PROTOCOL_HEADER[:7])
    await closed(ends, End.PROTOCOL)
    assert time.monotonic() - started > WITHIN / 2
    assert ends.broker is None


@pytest.mark.parametrize("says", [b"", made(0, commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"))])
async def test_a_handshake_that_is_not_finished_is_dropped(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, says: bytes
) -> None:
    shorten(monkeypatch, "HANDSHAKE_WITHIN")
    await ends.dialled()
    started = time.monotonic()
    if says:
        assert ends.of_broker(says)
    await closed(ends, End.BROKER)
    assert time.monotonic() - started >= WITHIN - 0.1


async def test_a_handshake_that_is_finished_is_under_no_time_limit(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, "HANDSHAKE_WITHIN")
    await ends.opened()
    await asyncio.sleep(2 * WITHIN)
    assert not ends.over
    assert ends.of_client(message(1, b"x", KEPT[0]))


async def test_a_client_that_is_ahead_of_the_handshake_is_not_read_until_the_broker_has_spoken(ends: Ends) -> None:
    await ends.dialled()
    broker = ends.broker
    assert broker is not None
    tune_ok = made(0, commands.Connection.TuneOk(10, 131072, 0))
    open_, channel_open = made(0, commands.Connection.Open(VHOST)), made(1, commands.Channel.Open())
    start_ok = made(0, commands.Connection.StartOk({}, "PLAIN", "\0u\0p", "en_US"))
    assert ends.of_client(start_ok + tune_ok + open_ + channel_open) == b""
    for said, goes_on in (
        (commands.Connection.Start(0, 9, {}, "PLAIN", "en_US"), b"PLAIN"),
        (commands.Connection.Tune(2047, 131072, 0), open_),
        (commands.Connection.OpenOk(), channel_open),
    ):
        assert not ends.client.is_read
        ends.of_broker(made(0, said))
        assert goes_on in broker.taken()
    assert ends.client.is_read
    assert list(ends.session.connection.channels) == [1]


async def test_a_client_with_too_many_publishes_without_an_answer_is_not_read(ends: Ends) -> None:
    await ends.opened()
    one = message(1, b"x", KEPT[0], b"")
    ends.session.connection.handshake.heartbeat = 60
    out = ends.of_client(one * (MOST_UNSETTLED + 5))
    broker = ends.broker
    assert broker is not None
    assert len(published(out.removesuffix(HEARTBEAT))) == MOST_UNSETTLED
    assert (out.endswith(HEARTBEAT), ends.client.is_read) == (True, False)
    few = ack(1, MOST_UNSETTLED // 2 - 1, multiple=True)
    assert ends.of_broker(few) == few
    assert (broker.taken(), ends.client.is_read) == (b"", False)
    half = ack(1, MOST_UNSETTLED)
    assert ends.of_broker(half) == half
    assert (len(published(broker.taken())), ends.client.is_read) == (5, True)
    assert ends.session.unsettled == MOST_UNSETTLED // 2 + 5


async def test_a_lane_that_is_gone_gets_none_of_what_its_client_has_sent_behind(ends: Ends) -> None:
    ends.router.put((VHOST, "x"), replace(laned(), read_at=time.monotonic()))
    ends.rings.answers.clear()
    await ends.opened()
    ends.of_client(message(1, b"x", LOST[0], b"") * (MOST_UNSETTLED + 5))
    broker = ends.broker
    assert broker is not None
    broker.taken()
    gone = close_channel(1, 404, b"NOT_FOUND - no exchange 'lane.q2' in vhost '/'")
    assert ends.of_broker(gone) == nack(1, MOST_UNSETTLED, multiple=True)
    assert published(broker.taken()) == []
    assert len(ends.session.connection.waiting.channels) == 1


async def test_of_many_channels_that_are_opened_again_the_log_tells_once(
    ends: Ends, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.router.put((VHOST, "x"), replace(laned(), read_at=time.monotonic()))
    await ends.opened()
    now = time.monotonic()
    monkeypatch.setattr(shared, "time", Mock(monotonic=lambda: now))
    reopened = Reopened(ends.session.connection.channels[1], "gone", 7)

    def told(times: int) -> list[str]:
        caplog.clear()
        for _ in range(times):
            ends.shared.tell_reopened(VHOST, "c", reopened)
        return [record.getMessage() for record in caplog.records]

    line = "client c, virtual host '/': channel 1 is opened again, and 7 publishes without an answer are nacked: gone"
    assert told(1000) == [line]
    now += 2
    assert told(2) == [f"{line} (so were 999 other channels since the last such line)"]


async def test_a_channel_that_is_closed_over_too_many_publishes_holds_its_client_no_longer(ends: Ends) -> None:
    await ends.opened()
    ends.of_client(message(1, b"x", KEPT[0], b"") * MOST_UNSETTLED + made(2, commands.Channel.Open()))
    held = not ends.client.is_read
    close = close_channel(1, 404, b"NOT_FOUND")
    assert ends.of_broker(close) == close
    assert (held, ends.client.is_read) == (True, True)
    assert list(ends.session.connection.channels) == [1, 2]


async def test_what_a_session_took_is_free_as_soon_as_it_has_ended() -> None:
    """Without the collector of cycles, which may not come by for long: a session and its legs refer to each other."""
    gc.collect()
    gc.disable()
    try:
        ends = Ends()
        before = _channels_alive()
        await ends.opened()
        ends.of_client(b"".join(made(number, commands.Channel.Open()) for number in range(2, 101)))
        opened = _channels_alive() - before
        ends.session.abort()
        await eventually(lambda: bool(ends.over))
        assert (opened, _channels_alive() - before) == (100, 0)
    finally:
        gc.enable()


def _channels_alive() -> int:
    return sum(type(each) is Channel for each in gc.get_objects())


async def test_a_transaction_of_any_size_is_taken_to_its_commit(ends: Ends) -> None:
    """Its publishes are answered once it ends: to wait for that before would be for ever."""
    await ends.opened()
    ends.of_client(made(2, commands.Channel.Open()) + made(2, commands.Tx.Select()))
    commit = made(2, commands.Tx.Commit())
    out = ends.of_client(message(2, b"x", KEPT[0], b"") * (MOST_UNSETTLED + 5) + commit)
    assert out.endswith(commit)
    assert ends.client.is_read


async def test_one_that_goes_out_again_and_is_not_confirmed_ends_the_session(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, "PLACED_WITHIN", "CLOSE_WITHIN")
    broker = await ends.rerouted()
    (one,) = again(broker.taken())
    started = time.monotonic()
    assert one.key in (b"q1", b"q3")
    await eventually(lambda: bool(ends.client.sent))
    # It was under way since before.
    assert time.monotonic() - started > WITHIN / 2
    (told,) = split(ends.client.taken())
    assert (told.channel, code_of(told)) == (0, 541)
    assert text_of(told).endswith(f"not confirmed within {WITHIN:g} s")
    assert [code_of(each) for each in split(broker.taken())] == [200]
    # Neither side agrees.
    await closed(ends, End.BROKER)


async def test_one_that_goes_out_again_and_is_confirmed_does_not(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, "PLACED_WITHIN")
    await ends.rerouted()
    assert ends.of_broker(ack(2047, 1)) == ack(1, 1)
    await asyncio.sleep(2 * WITHIN)
    assert not ends.over
    assert ends.client.sent == b""


async def test_a_close_waits_so_long_for_answers_and_no_longer(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, "LEAVE_WITHIN")
    await ends.opened()
    assert ends.of_client(message(1, b"x", KEPT[0]))
    started = time.monotonic()
    assert ends.of_client(LEAVE) == b""
    broker = ends.broker
    assert broker is not None
    await eventually(lambda: bool(broker.sent))
    assert time.monotonic() - started >= WITHIN - 0.01
    assert broker.taken() == LEAVE
    close_ok = made(0, commands.Connection.CloseOk())
    assert ends.of_broker(close_ok) == close_ok


async def test_what_comes_back_within_a_body_frame_is_held_back_at_the_broker(ends: Ends) -> None:
    await ends.opened()
    sent = [ends.of_client(message(1, b"x", key, b"b" * 100_000)) for key in LOST[:7]]
    broker = ends.broker
    assert broker is not None
    ends.of_broker(back(sent.pop()))
    await eventually(lambda: bool(broker.sent))
    broker.taken()  # from now on it is known that the queue has left
    whole = message(1, b"", b"k", b"k" * 1000)
    ends.of_client(whole[:-500])
    for number, one in enumerate(sent):
        assert broker.is_read == (number <= BUFFER // 100_000)
        # Whatever comes in the same turn is taken; a socket that is not read brings no more.
        ends.of_broker(back(one))
    assert not broker.is_read
    assert broker.sent == b""
    contents = again(ends.of_client(whole[-500:])[500:])
    assert [one.body for one in contents] == [b"b" * 100_000] * len(sent)
    assert broker.is_read


async def test_a_channel_waits_so_long_for_another_ring_and_no_longer(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shorten(monkeypatch, "ORDERED_WITHIN")
    await ends.opened()
    broker = ends.broker
    assert broker is not None
    hung = ends.of_client(message(1, b"x", LOST[0], b"hangs"))
    ends._wire.router.put((VHOST, "x"), known(LEFT, read_at=time.monotonic()))
    assert ends.of_client(message(1, b"x", LOST[0], b"goes on")) == b""
    await eventually(lambda: b"goes on" in broker.sent)
    assert "1 publishes have had no answer for 0.3 s" in caplog.text
    assert ends.of_broker(back(hung) + ack(1, 1)) == nack(1, 1)
    # A wait that the broker ends has no such price.
    broker.taken()
    ends._wire.router.put((VHOST, "x"), known(ring(queue("q7")), read_at=time.monotonic()))
    assert ends.of_client(message(1, b"x", LOST[0], b"ordered")) == b""
    ends.of_broker(ack(1, 2))
    await eventually(lambda: b"ordered" in broker.sent)
    assert caplog.text.count("have had no answer") == 1


async def test_a_drain_within_a_body_frame_takes_its_end_for_what_came_back_meanwhile(ends: Ends) -> None:
    await ends.opened()
    sent = ends.of_client(message(1, b"x", LOST[0]))
    whole = message(1, b"x", KEPT[0], b"k" * 1000)
    following = message(1, b"x", KEPT[0])
    ends.of_client(whole[:-500])
    broker = ends.broker
    assert broker is not None
    ends.session.drain()
    assert ends.of_broker(back(sent) + ack(1, 1)) == b""
    await asyncio.sleep(0.05)
    assert (broker.sent, ends.client.is_read) == (b"", True)
    out = ends.of_client(whole[-500:] + following)
    (one,) = again(out[500:])
    assert one.body == b"hello"
    assert not ends.client.is_read
    told = split(ends.of_broker(ack(2047, 1) + ack(1, 2)))
    assert [each.id for each in told] == [(60, 80), (60, 80), (10, 50)]
    assert code_of(told[-1]) == 320
    # The ack behind that frame was not taken.
    assert [each.id for each in split(broker.taken())] == [(10, 50)]


async def test_a_drain_waits_for_what_may_come_back_of_channels_without_confirms(ends: Ends) -> None:
    """The broker's close-ok comes behind it."""
    await ends.opened()
    ends.of_client(made(2, commands.Channel.Open()))
    ends.of_broker(made(2, commands.Channel.OpenOk()))
    sent = ends.of_client(message(2, b"x", LOST[0]))
    broker = ends.broker
    assert broker is not None
    ends.session.drain()
    assert [(each.channel, each.id) for each in split(broker.taken())] == [(2, (20, 40))]
    assert ends.of_broker(back(sent) + made(2, commands.Channel.CloseOk())) == b""
    await eventually(lambda: bool(broker.sent))
    (one,) = again(broker.taken())
    assert one.body == b"hello"
    (told,) = split(ends.of_broker(ack(2047, 1)))
    assert (told.channel, code_of(told)) == (0, 320)


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_drain_leaves_a_session_that_is_being_closed_to_its_end(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, in_time: bool
) -> None:
    shorten(monkeypatch, "CLOSE_WITHIN")
    await ends.opened()
    assert ends.of_client(LEAVE) == LEAVE
    ends.session.drain()
    await asyncio.sleep(WITHIN / 2)
    assert not ends.client.is_closed
    if in_time:
        close_ok = made(0, commands.Connection.CloseOk())
        assert ends.of_broker(close_ok) == close_ok
    else:
        await closed(ends, End.SHUTDOWN)


@pytest.mark.parametrize("agrees", [True, False])
@pytest.mark.parametrize("closer", ["the broker", "this proxy"])
async def test_a_session_that_ends_during_its_drain_reads_the_last_words_of_its_client_and_ends_in_time(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, closer: str, agrees: bool
) -> None:
    shorten(monkeypatch, "PLACED_WITHIN", "CLOSE_WITHIN")
    broker = await ends.rerouted()
    ends.session.drain()
    assert (ends.client.sent, ends.client.is_read) == (b"", False)
    if closer == "the broker":
        assert ends.of_broker(close_connection(320, b"")) == close_connection(320, b"")
    else:
        await eventually(lambda: bool(ends.client.sent))
        assert code_of(split(ends.client.taken())[0]) == 541
    assert ends.client.is_read
    broker.taken()
    if agrees:
        close_ok = made(0, commands.Connection.CloseOk())
        assert ends.of_client(close_ok) == (close_ok if closer == "the broker" else b"")
        if closer == "the broker":
            ends.session.broker.eof_received()
        else:
            ends.of_broker(close_ok)
            assert ends.client.is_closed
    await closed(ends, End.SHUTDOWN)


@pytest.mark.parametrize("answered", [True, False])
async def test_what_a_client_that_has_gone_waits_for_is_waited_for_so_long(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    """A declaration that the broker does not answer, and a publish behind it."""
    shorten(monkeypatch, "GONE_WITHIN")
    await ends.opened()
    bind = made(1, commands.Queue.Bind(queue="q1", exchange="x", routing_key="2"))
    assert split(ends.of_client(bind + message(1, b"x", KEPT[0]))) == split(bind)
    started = time.monotonic()
    ends.session.client.eof_received()
    if answered:
        ends.of_broker(made(1, commands.Queue.BindOk()))
        broker = ends.broker
        assert broker is not None
        await eventually(lambda: b"hello" in broker.sent)
    else:
        await closed(ends, End.CLIENT)
        assert time.monotonic() - started >= WITHIN


async def test_a_client_that_closes_and_goes_waits_no_longer_than_any_that_closes(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit holds where the client's publish waited for a declaration first, too."""
    shorten(monkeypatch, "LEAVE_WITHIN")
    await ends.opened()
    bind = made(1, commands.Queue.Bind(queue="q1", exchange="x", routing_key="2"))
    ends.of_client(bind + message(1, b"x", KEPT[0]) + LEAVE)
    ends.session.client.eof_received()
    ends.of_broker(made(1, commands.Queue.BindOk()))
    broker = ends.broker
    assert broker is not None
    # The message is not confirmed.
    await eventually(lambda: broker.sent.endswith(LEAVE))


async def test_a_refusal_in_the_turn_of_a_return_leaves_the_broker_read(ends: Ends) -> None:
    await ends.opened()
    sent = ends.of_client(message(1, b"x", LOST[0]))
    broker = ends.broker
    assert broker is not None
    ends.of_broker(back(sent) + ack(1, 1))
    assert broker.is_read, "what else it sends is nobody's to wait for"
    # No frame: its end octet is missing.
    assert [code_of(each) for each in split(ends.of_client(b"\x01\0\1\0\0\0\4\0\x14\0\x0a\0"))] == [200]
    assert broker.is_read


async def test_messages_that_came_back_of_several_queues_wait_no_longer_than_one(ends: Ends) -> None:
    """For a reading that hangs: none begins to wait for its own as the first has waited in vain."""
    await ends.opened()
    ends.session._shared.readings.lookup_timeout = WITHIN
    ends.rings.answers.clear()
    reread, waits = ends.session._shared.reread, []

    async def counted(c: Connection, wanted: Stale | Unread) -> bool:
        waits.append(wanted)
        return await reread(c, wanted)

    ends.session._shared.reread = counted  # type: ignore[method-assign]
    some = [b"%d" % n for n in range(99)]
    keys = [next(key for key in some if QUEUES.ring.owner_of(key) == queue(name)) for name in ("q1", "q2", "q3")]
    for key in keys:
        assert ends.of_broker(back(ends.of_client(message(1, b"x", key)))) == b""
    assert ends.of_broker(ack(1, 3, True)) == b""
    await eventually(lambda: bool(ends.client.sent))
    assert ends.client.taken() == nack(1, 1) + nack(1, 2) + nack(1, 3)
    assert len(waits) == 1


@pytest.mark.parametrize("midst", [False, True])
async def test_the_broker_is_not_read_while_very_much_that_came_back_waits_for_a_reading(
    ends: Ends, midst: bool
) -> None:
    """Its heartbeats come from the sidecar then. The rest of a delivery is waited for once that reading is over."""
    await ends.opened()
    broker = ends.broker
    assert broker is not None
    ends.session.connection.handshake.heartbeat = 1
    ends.rings.answers.clear()
    body_size = MOST_PARKED // 10 + 1000
    for _ in range(10):
        assert broker.is_read
        ends.of_broker(back(ends.of_client(message(1, b"x", LOST[0], bytes(body_size)))))
    await eventually(lambda: not broker.is_read)
    delivery = made(1, commands.Basic.Deliver("c", 1, False, "e", "k")) + header(1, 5) + body(1, b"hello")
    cut = len(delivery) - 3 if midst else len(delivery)
    assert ends.of_broker(delivery[:cut]).endswith(delivery[:cut])
    if not midst:
        await eventually(lambda: HEARTBEAT in ends.client.sent)
    ends.rings.answers.set()
    await eventually(lambda: broker.is_read)
    if midst:
        assert ends.of_broker(delivery[cut:]).startswith(delivery[cut:])
    await eventually(lambda: not ends.session.connection.republishing.parking)
    assert len(again(broker.taken())) == 10


async def test_a_client_that_gets_nothing_of_what_the_broker_sends_gets_heartbeats(ends: Ends) -> None:
    """As while frames come on hidden channels: then the broker sends none. Here a frame comes byte by byte."""
    await ends.opened()
    c = ends.session.connection
    c.interceptor, c.handshake.heartbeat = GroupInterceptor(c, lambda vhost, name: True), 1
    frame = ack(1, 1)
    assert ends.of_broker(HEARTBEAT) == HEARTBEAT
    assert ends.of_broker(frame[:1]) == b""
    await asyncio.sleep(0.6)
    assert ends.of_broker(frame[1:2]) == HEARTBEAT
    assert ends.of_broker(frame[2:3]) == b""
    assert ends.of_broker(frame[3:]) == frame


async def test_nothing_is_late_while_the_client_does_not_read(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the broker is not read either: its confirm may have come long ago."""
    shorten(monkeypatch, "PLACED_WITHIN", "CLOSE_WITHIN")
    broker = await ends.rerouted()
    ends.session.client.pause_writing()
    await asyncio.sleep(2 * WITHIN)
    assert (ends.client.sent, broker.is_read) == (b"", False)
    ends.session.client.resume_writing()
    assert broker.is_read
    await asyncio.sleep(WITHIN / 2)
    assert ends.of_broker(ack(2047, 1)) == ack(1, 1)
    assert not ends.over


async def test_time_in_which_a_message_waits_for_a_reading_is_not_the_brokers(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, "PLACED_WITHIN", "CLOSE_WITHIN")
    await ends.opened()
    ends.rings.answers.clear()
    ends.of_broker(back(ends.of_client(message(1, b"x", LOST[0]))) + ack(1, 1))
    await asyncio.sleep(2 * WITHIN)
    ends.rings.answers.set()
    broker = ends.broker
    assert broker is not None
    await eventually(lambda: bool(broker.sent))
    await asyncio.sleep(WITHIN / 2)
    assert ends.of_broker(ack(2047, 1)) == ack(1, 1)
    assert not ends.over


async def test_nothing_is_late_while_the_broker_is_not_read_for_what_waits(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch, "PLACED_WITHIN", "CLOSE_WITHIN")
    broker = await ends.rerouted()
    ends.rings.answers.clear()
    broker.taken()
    ends._wire.router.put((VHOST, "x"), known(QUEUES, read_at=time.monotonic()))
    for _ in range(10):
        ends.of_broker(back(ends.of_client(message(1, b"x", LOST[1], bytes(MOST_PARKED // 10 + 1000)))))
    assert not broker.is_read
    await asyncio.sleep(2 * WITHIN)
    assert ends.client.sent == b""
    ends.rings.answers.set()
    await eventually(lambda: broker.is_read)
    await asyncio.sleep(WITHIN / 2)
    assert ends.of_broker(ack(2047, 1)) == ack(1, 1)
    assert not ends.over


async def test_time_in_which_it_does_read_counts(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is slower than its deliveries stops and starts them all the time."""
    shorten(monkeypatch, "PLACED_WITHIN")
    await ends.opened()
    ends.of_broker(back(ends.of_client(message(1, b"x", LOST[0]))) + ack(1, 1))
    started = time.monotonic()
    while not ends.client.sent:
        assert time.monotonic() - started < 20 * WITHIN
        ends.session.client.pause_writing()
        await asyncio.sleep(WITHIN / 10)
        ends.session.client.resume_writing()
        await asyncio.sleep(WITHIN / 10)
    assert time.monotonic() - started > 1.8 * WITHIN
    assert code_of(split(ends.client.taken())[-1]) == 541


async def test_a_drain_takes_the_end_of_a_frame_that_waited_for_a_look_up(ends: Ends) -> None:
    await ends.opened()
    ends.of_client(made(2, commands.Channel.Open()) + confirm_select(2))
    ends.of_broker(made(2, commands.Channel.OpenOk()) + made(2, commands.Confirm.SelectOk()))
    unread, whole = message(1, b"y", b"k"), message(2, b"x", KEPT[0], b"k" * 1000)
    sent = ends.of_client(message(2, b"x", LOST[0]))
    # `y` cannot be read: its channel is refused, once the frame of the other channel is whole.
    assert b"k" * 500 in ends.of_client(unread + whole[:-500])
    ends.session.drain()
    broker = ends.broker
    assert broker is not None
    await eventually(lambda: ends.session.connection.channels[1].state == ChannelState.REFUSING)
    assert ends.client.is_read
    ends.of_broker(back(sent))
    await asyncio.sleep(0.05)
    assert broker.sent == b""
    sent = ends.of_client(whole[-500:])[500:]
    (one,) = again(sent)
    assert one.body == b"hello"
    assert [each.id for each in split(sent) if each.channel == 1] == [(20, 40)]


@pytest.mark.parametrize("unread", [True, False])
async def test_a_channel_that_the_broker_does_not_agree_to_close_ends_for_its_client_alone(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, unread: bool
) -> None:
    shorten(monkeypatch, "CLOSE_WITHIN")
    await ends.opened()
    ends.of_client(message(1, b"y", b"k"))
    broker = ends.broker
    assert broker is not None
    # Nobody can read `y`: its channel is closed, at the broker first.
    await eventually(lambda: bool(broker.sent))
    assert [each.id for each in split(broker.taken())] == [(20, 40)]
    if unread:
        ends.session.client.pause_writing()
        await asyncio.sleep(3 * WITHIN)
        assert ends.client.sent == b"", "the broker's answer may have come, and is not read"
        ends.session.client.resume_writing()
        told = split(ends.of_broker(made(1, commands.Channel.CloseOk())))
        assert [each.id for each in told] == [(20, 40)]
        await asyncio.sleep(2 * WITHIN)
        assert not ends.over
        return
    await eventually(lambda: bool(ends.client.sent))
    (refused,) = split(ends.client.taken())
    assert (refused.id, refused.channel, code_of(refused)) == ((20, 40), 1, 541)
    # The broker's frames on the refused channel are for nobody, and another channel goes on.
    assert ends.of_broker(ack(1, 1) + made(1, commands.Basic.Deliver("c", 1, False, "e", "k"))) == b""
    assert ends.of_broker(header(1, 5) + body(1, b"hello")) == b""
    close_ok, opened = made(1, commands.Channel.CloseOk()), made(1, commands.Channel.Open())
    assert ends.of_client(close_ok + made(2, commands.Channel.Open())) == made(2, commands.Channel.Open())
    # Its number waits for the broker.
    assert ends.of_client(opened) == b""
    assert ends.of_broker(close_ok) == b""
    assert broker.taken() == opened
    assert not ends.over


async def test_a_number_that_the_broker_does_not_free_is_refused_in_time(ends: Ends) -> None:
    await ends.opened()
    ends.session._shared.answer_timeout = WITHIN
    close, opened = made(1, commands.Channel.Close(200, "", 0, 0)), made(1, commands.Channel.Open())
    assert ends.of_client(close + opened) == close
    await eventually(lambda: bool(ends.client.sent))
    (told,) = split(ends.client.taken())
    assert (told.id, told.channel, code_of(told)) == ((20, 40), 1, 541)
    assert "has not closed" in text_of(told)
    # Again, as often as it likes, and once the broker has answered it is let through.
    assert ends.of_client(made(1, commands.Channel.CloseOk()) + opened) == b""
    assert ends.of_broker(made(1, commands.Channel.CloseOk())) == b""
    assert ends.broker is not None
    assert ends.broker.taken() == opened
    assert not ends.over


async def test_a_channel_that_is_closed_over_a_transaction_ends_for_its_client_too(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the broker does not answer the channel.close that stands in the place of a commit-ok."""
    shorten(monkeypatch, "CLOSE_WITHIN")
    await ends.opened()
    select, commit = made(2, commands.Tx.Select()), made(2, commands.Tx.Commit())
    ends.of_client(made(2, commands.Channel.Open()) + select)
    ends.of_broker(made(2, commands.Channel.OpenOk()) + made(2, commands.Tx.SelectOk()))
    ends.rings.answers.clear()
    sent = ends.of_client(message(2, b"x", LOST[0]) + commit)[: -len(commit)]
    ends.session.connection.republishing.number = 0  # nothing can be published again
    ends.of_broker(back(sent) + made(2, commands.Tx.CommitOk()))
    await eventually(lambda: bool(ends.client.sent))
    (told,) = split(ends.client.taken())
    assert (told.id, told.channel, code_of(told)) == ((20, 40), 2, 541)
    assert not ends.over


@pytest.mark.parametrize("closes", ["broker", "client"])
async def test_nothing_is_done_for_what_waits_once_its_session_ends(ends: Ends, closes: str) -> None:
    await ends.opened()
    deleted = made(1, commands.Queue.Delete(queue="busy"))
    assert ends.of_client(deleted + message(1, b"x", KEPT[0])) == deleted
    assert ends.session.connection.waiting.channels
    if closes == "broker":
        ends.of_broker(close_connection(320, b"CONNECTION_FORCED"))
    else:
        ends.session.client.eof_received()
    began = []
    waits = ends.session._waiter.channel

    def counted(channel: Channel) -> Coroutine[Any, Any, None]:
        began.append(channel)
        return waits(channel)

    ends.session._waiter.channel = counted  # type: ignore[method-assign]
    await asyncio.sleep(0.1)
    ends.session.abort()
    await eventually(lambda: bool(ends.over))
    await asyncio.sleep(0.1)
    assert began == []
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_declaration_that_is_not_answered_holds_its_channel_for_a_limited_time(ends: Ends) -> None:
    await ends.opened()
    ends.of_client(made(2, commands.Channel.Open()) + confirm_select(2))
    ends.of_broker(made(2, commands.Channel.OpenOk()) + made(2, commands.Confirm.SelectOk()))
    ends.session._shared.answer_timeout = WITHIN
    deleted = made(1, commands.Queue.Delete(queue="busy"))
    assert ends.of_client(deleted + message(1, b"x", KEPT[0])) == deleted
    assert published(ends.of_client(message(2, b"x", KEPT[0]))), "another channel waits for nothing"
    broker = ends.broker
    assert broker is not None
    await eventually(lambda: bool(broker.sent))
    (refused,) = split(broker.taken())
    assert (refused.id, refused.channel) == ((20, 40), 1)
    told = split(ends.of_broker(made(1, commands.Queue.DeleteOk(0)) + made(1, commands.Channel.CloseOk())))
    assert [each.id for each in told] == [(50, 41), (20, 40)]
    assert "has not answered a declaration" in text_of(told[-1])
    assert not ends.over


async def _closed_and_reopened(ends: Ends) -> Socket:
    """Channel 1 has closed, and opened again at once, while a message of it that came back waits for a reading."""
    await ends.opened()
    ends.rings.answers.clear()
    sent = ends.of_client(message(1, b"x", LOST[0]))
    assert ends.of_broker(back(sent) + ack(1, 1)) == b""
    ends.of_client(made(1, commands.Channel.Close(200, "", 0, 0)) + made(1, commands.Channel.Open()))
    assert ends.of_broker(made(1, commands.Channel.CloseOk())) == b""
    broker = ends.broker
    assert broker is not None
    broker.taken()
    return broker


async def test_a_number_waits_without_work_for_a_message_of_before(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    ends.session._shared.answer_timeout = 0.05
    broker = await _closed_and_reopened(ends)
    resumed: list[Connection] = []
    monkeypatch.setattr(client_loop, "resume", resumed.append)
    await asyncio.sleep(WITHIN)
    assert (resumed, broker.sent, ends.client.sent) == ([], b"", b"")


async def test_a_number_that_a_reading_frees_is_opened_without_another_word_of_the_broker(ends: Ends) -> None:
    """No queue takes the message, so that its channel is closed as soon as that is known."""
    broker = await _closed_and_reopened(ends)
    ends.session.connection.republishing.number = 0
    ends.rings.answers.set()
    await eventually(lambda: made(1, commands.Channel.Open()) in broker.sent)
    assert made(1, commands.Channel.CloseOk()) in ends.client.taken()


async def test_a_number_that_is_free_is_not_refused_for_a_frame_of_the_clients_that_takes_long(ends: Ends) -> None:
    await ends.opened()
    ends.session._shared.answer_timeout = 0.05
    opened = made(1, commands.Channel.Open())
    ends.of_client(made(2, commands.Channel.Open()) + made(1, commands.Channel.Close(200, "", 0, 0)) + opened)
    frame = body(2, bytes(100))
    ends.of_client(made(2, commands.Basic.Publish()) + header(2, 100) + frame[:-50])
    closed = made(1, commands.Channel.CloseOk())
    assert ends.of_broker(closed) == closed
    await asyncio.sleep(WITHIN)
    assert ends.client.sent == b""
    assert ends.of_client(frame[-50:]) == frame[-50:] + opened


async def test_a_publish_waits_no_longer_where_what_is_behind_its_exchange_is_gone(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring before it is read then, which has the time that is left."""

    async def absent(name: Name, within: float) -> None:
        raise Absent("gone")

    monkeypatch.setattr(ends.rings, "look_up", absent)
    await ends.opened()
    ends.session._shared.readings.lookup_timeout = 0.05
    ends.rings.answers.clear()
    ends._wire.router.put((VHOST, "x"), known(ring(exchange("gone")), read_at=time.monotonic()))
    assert ends.of_client(message(1, b"x", b"k")) == b""
    broker = ends.broker
    assert broker is not None
    await eventually(lambda: bool(broker.sent))
    (refused,) = split(broker.taken())
    assert (refused.id, refused.channel) == ((20, 40), 1)


class Leavers:
    """In the place of the groups: the members that have left."""

    consumer_timeout = 0.0

    def __init__(self) -> None:
        self.left: list[str] = []

    def match(self, vhost: str, exchange: str) -> bool:
        return False

    def leave(self, member: Member) -> None:
        self.left.append(member.id)


@pytest.mark.parametrize(
    "end",
    ["the broker's socket", "the client's socket", "the client's close", "a close of the broker's", "unexpected error"],
)
async def test_the_groups_are_told_of_members_whose_session_ends(end: str) -> None:
    groups = Leavers()
    ends = Ends(cast(Groups, groups))
    await ends.opened()
    c = ends.session.connection
    assert isinstance(c.interceptor, GroupInterceptor)
    members = [Member(name, VHOST, "g", 1, b"c") for name in ("there", "untold")]
    c.interceptor.consumers[members[0]] = Consumer(members[0], c.channels[1], Numbering(1), b"")
    match end:
        case "the client's socket":
            ends.session.client.eof_received()
        case "the client's close":
            ends.of_client(LEAVE)
            ends.of_broker(made(0, commands.Connection.CloseOk()))
        case "a close of the broker's":
            ends.of_broker(made(0, commands.Connection.Close(320, "shutdown", 0, 0)))
            ends.of_client(made(0, commands.Connection.CloseOk()))
        case "unexpected error":
            # An unexpected error elsewhere, before the session has handed on that the other member has left.
            c.interceptor.events.append(Left(members[1]))
            ends.session._defect()
    assert ends.broker is not None
    ends.broker.abort()
    ends.client.abort()
    await eventually(lambda: bool(ends.over))
    assert groups.left == ["there", *(["untold"] if end == "unexpected error" else [])]


@pytest.fixture
async def keeping() -> AsyncIterator[Ends]:
    """Yield an open session whose broker connection may be kept."""
    made = Ends(keeps=True)
    await made.opened()
    yield made
    made.session.abort()
    await eventually(lambda: bool(made.over))


CHANNEL_CLOSE_OK = made(1, commands.Channel.CloseOk())


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_a_broker_connection_is_kept_once_its_channels_are_closed(keeping: Ends, hangs_up: bool) -> None:
    keeping.of_client(message(1, b"x", b"key"))
    assert keeping.of_broker(ack(1, 1)) == ack(1, 1)
    assert keeping.of_client(LEAVE) == closes(1)
    if hangs_up:
        keeping.session.client.eof_received()
    assert keeping.of_broker(CHANNEL_CLOSE_OK) == made(0, commands.Connection.CloseOk())
    kept = keeping.shared.kept
    assert kept is not None
    assert len(kept) == 1
    keeping.client.abort()
    await eventually(lambda: bool(keeping.over))
    assert keeping.session.end is End.CLIENT
    assert keeping.broker is not None
    assert not keeping.broker.is_closed


async def test_a_client_that_leaves_before_its_confirms_gets_them_and_its_connection_is_not_kept(keeping: Ends) -> None:
    """RabbitMQ throws the confirms of a channel away once that is closed."""
    goodbyes = keeping.of_client(message(1, b"x", b"key") + LEAVE)
    assert closes(1) not in goodbyes
    assert not goodbyes.endswith(LEAVE)
    broker = keeping.broker
    assert broker is not None
    assert keeping.of_broker(ack(1, 1)) == ack(1, 1)
    assert broker.sent.endswith(LEAVE)
    kept = keeping.shared.kept
    assert kept is not None
    assert len(kept) == 0


async def test_a_client_whose_connection_nobody_wants_waits_for_no_channel(keeping: Ends) -> None:
    assert keeping.shared.kept is not None
    await keeping.shared.kept.drain()
    assert keeping.of_client(LEAVE) == LEAVE
    assert keeping.of_broker(made(0, commands.Connection.CloseOk())) == made(0, commands.Connection.CloseOk())


def closes(channel: int) -> bytes:
    """Return the channel.close of this proxy's for a channel whose client leaves."""
    return close_frame(channel, 200, "ringproxy closes the channel")


@pytest.mark.parametrize(
    ("of", "data"),
    [
        (Ends.of_client, made(1, commands.Queue.Declare(0, "q", exclusive=True))),
        (Ends.of_client, made(0, commands.Connection.UpdateSecret("other", "renewed"))),
        (Ends.of_client, publish(1, b"", b"q") + header(1, 4)),
        (Ends.of_broker, made(0, commands.Connection.Blocked("memory"))),
        (Ends.of_broker, made(1, commands.Channel.Close(404, "", 60, 40))),
    ],
    ids=["an exclusive queue", "other credentials", "half a content", "blocked", "a channel that the broker closed"],
)
async def test_a_broker_connection_that_is_not_as_new_ends_with_its_client(
    keeping: Ends, of: Callable[[Ends, bytes], bytes], data: bytes
) -> None:
    of(keeping, data)
    assert keeping.of_client(LEAVE).endswith(LEAVE)
    assert keeping.of_broker(made(0, commands.Connection.CloseOk())) == made(0, commands.Connection.CloseOk())
    kept = keeping.shared.kept
    assert kept is not None
    assert len(kept) == 0


async def test_a_broker_that_does_not_close_a_channel_is_left(keeping: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch, "LEAVE_WITHIN")
    assert keeping.of_client(LEAVE) == closes(1)
    broker = keeping.broker
    assert broker is not None
    await eventually(lambda: broker.sent == LEAVE)
