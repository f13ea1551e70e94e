"""A session's core, both ways: the client's bytes and the broker's, declarations, look-ups, returns and drains.

Bytes of a client raise nothing, and those of a broker only `BrokerFault`. Whole frames go on. No message is lost,
doubled or changed.
"""

from random import Random
from struct import pack
from typing import NamedTuple
from unittest.mock import patch

from pamqp import commands

from proxy.routing.route import Route
from proxy.session import broker_loop, client_loop, closing
from proxy.session.backlog import MOST_WITHHELD, Backlog, Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import Refused
from proxy.session.handshake import MOST_FRAME_MAX
from proxy.session.publishing import publish as publishing
from proxy.session.state import Phase
from proxy.topology.table import Entry, KnownRing, Name, PassReason
from proxy.wire.frames import (
    BODY,
    CONNECTION_FORCED,
    HEADER,
    INTERNAL_ERROR,
    METHOD,
    OVERHEAD,
    PROTOCOL_HEADER,
    SLACK,
)
from ring.hashed import HashedValue
from tests.fuzz.contents import Content, channels_closed, contents, is_orderly, whole_frames
from tests.fuzz.steps import Step, chance, pieces, steps, written
from tests.unit.proxy.publisher import client_wire
from tests.unit.proxy.session.wire import (
    NOW,
    QUEUES,
    VHOST,
    Frame,
    Wire,
    ack,
    body,
    close_channel,
    close_connection,
    confirm_select,
    exchange,
    frame,
    headers,
    known,
    long_string,
    made,
    message,
    method,
    nack,
    properties,
    queue,
    returned,
    ring,
    split,
)

# Steps: frames of the client's and the broker's with right lengths and ends, and bytes of theirs as they are.
CLIENT_METHOD, CLIENT_HEADER, CLIENT_BODY, CLIENT_FRAME, CLIENT_RAW = range(5)
BROKER_METHOD, BROKER_HEADER, BROKER_BODY, BROKER_FRAME, BROKER_RAW = range(5, 10)
FOUND, UNKNOWN, FORGET, DRAIN, RETURN, LEAVE = range(10, 16)
"""Look-ups end well, or not; the rings are to be read again; the proxy shuts down; the broker returns a message; a
client that leaves has waited long enough."""
_OPS = 16

_KINDS = (METHOD, HEADER, BODY)
_SPARE = 2047
_CHANNELS = (0, 1, 2, 3, _SPARE)
"""The channels that steps are about: the last is the proxy's own. From a byte of _FAR on, it is one far beyond."""
_FAR = 0xC0

_FOUND = (QUEUES, ring(queue("q9")), known(None, PassReason.NO_BINDINGS), ring(exchange("plain")))
"""The results of a look-up, by its step's channel."""

_FRESH, _CONFIRMING, _TRANSACTIONAL, _SMALL = 1, 2, 4, 8
"""Bits of the first byte: the session before its handshake, the channels' modes, the least frame_max."""

_LONGEST_RETURN = 10_000

_PASSING = (Phase.CLOSING, Phase.CLOSED)
_RINGS = {b"ring", b"header", b"property", b"chain", b"later"}


def _wire(flags: int) -> Wire:
    wire = Wire(
        {
            "ring": QUEUES,
            "header": ring(queue("q1"), queue("q2"), hashed=HashedValue("header", "h")),
            "property": ring(queue("q1"), queue("q2"), hashed=HashedValue("property", "message_id")),
            "chain": ring(exchange("ring"), exchange("plain")),
            "plain": known(None, PassReason.TYPE),
            "shadow": known(QUEUES, PassReason.SHADOW),
        },
        confirming=bool(flags & _CONFIRMING),
        frame_max=4096 if flags & _SMALL else 1 << 17,
    )
    if flags & _TRANSACTIONAL and not flags & _CONFIRMING:
        wire.c.channels[2].select(transactional=True)
    wire.c.republishing.number = _SPARE
    if flags & _FRESH:
        wire.c = Connection(wire.tables.table, wire.samples.append, frozenset())
        wire.c.phase, wire.c.now = Phase.HANDSHAKE, NOW
    return wire


class Turn(NamedTuple):
    """The outcome of one step."""

    to_broker: bytes
    to_client: bytes
    events: list[str]
    phase: Phase


class Session:
    """One run of an input, its bytes whole or in pieces."""

    def __init__(self, flags: int, rng: Random | None) -> None:
        self.wire, self._rng = _wire(flags), rng
        self.c = self.wire.c
        self.turns: list[Turn] = []
        self.sent = self.heard = b""
        self.fault = ""
        """The broker's, which ended it."""
        self.broker_is_sane, self.refused, self.over = True, False, False
        self._routed: list[tuple[Frame, Frame]] = []

    def take(self, step: Step) -> None:
        """Do one step."""
        op, c = step.op % _OPS, self.c
        if op <= CLIENT_RAW:
            data = _frame(op - CLIENT_METHOD, step)
            self.sent += data
            for part in pieces(data, self._rng):
                client_loop.from_client(c, part)
        elif op <= BROKER_RAW:
            self.broker_is_sane = self.broker_is_sane and op != BROKER_RAW
            self._from_broker(_frame(op - BROKER_METHOD, step))
        elif op in (FOUND, UNKNOWN):
            found = _FOUND[step.channel % len(_FOUND)] if op == FOUND else None
            self._look_up(found)
            self._reread(found)
        elif op == RETURN:
            self._return(step)
        else:
            self._end(op)
        if c.phase is Phase.LEAVING and (op == LEAVE or not closing.awaits_answers(c)):
            closing.pass_goodbye(c)
        self._turn()
        self._check()

    def _end(self, op: int) -> None:
        c = self.c
        if op == FORGET and c.table is not None:
            c.table.clear()
        if op == DRAIN and c.opened and c.running:
            closing.refuse(c, CONNECTION_FORCED, "ringproxy is shutting down")

    def _from_broker(self, data: bytes) -> None:
        self.heard += data
        try:
            for part in pieces(data, self._rng):
                was_ahead = self.c.ahead
                broker_loop.from_broker(self.c, part)
                if was_ahead:
                    # As the session does it for a client that did not wait in the handshake.
                    client_loop.from_client(self.c, b"")
        except broker_loop.BrokerFault as fault:
            self.over, self.fault = True, str(fault)

    def _look_up(self, found: Entry | KnownRing | None) -> None:
        """As the session does it for what its client has published."""
        c = self.c
        for _ in range(64):
            before = [channel.backlog for channel in c.waiting.channels.values()]
            for channel in list(c.waiting.channels.values()):
                if channel.backlog is not None:
                    self._read(channel, channel.backlog, found)
            client_loop.resume(c)
            if before == [channel.backlog for channel in c.waiting.channels.values()]:
                return
        raise AssertionError("a look-up that never ends")

    def _read(self, channel: Channel, backlog: Backlog, found: Entry | KnownRing | None) -> None:
        """End the wait of a channel, but where it is the broker that must answer."""
        c, unread = self.c, backlog.awaited
        if unread is None or isinstance(unread, Wait) or not c.running:
            return
        if found is not None:
            self._put(unread.name, found)
            route = c.table.once(publishing.held_publish(channel), NOW) if c.table is not None else None
            backlog.forced = route if isinstance(route, Route) else None
        else:
            closing.refuse_channel(c, channel, INTERNAL_ERROR, "not known")
        backlog.awaited = None

    def _reread(self, found: Entry | KnownRing | None) -> None:
        """As the session does it for what came back."""
        c = self.c
        for _ in range(64):
            wanted = {name: c.republishing.parking.wanted(name) for name in c.republishing.parking.exchanges}
            if self.over or not any(wanted.values()):
                return
            for name, what in wanted.items():
                if what is not None:
                    if found is not None:
                        self._put(what.name, found)
                    broker_loop.after_reading(c, name, what, c.now)
        raise AssertionError("a reading that never ends")

    def _put(self, name: Name, found: Entry | KnownRing) -> None:
        self.wire.router.put(name, found if isinstance(found, Entry) else known(found))

    def _return(self, step: Step) -> None:
        """The broker returns a message that it was sent, with its header as it was."""
        if self._routed:
            publish, header = self._routed[step.channel % len(self._routed)]
            key_at = 7 + publish.payload[6]
            to, key = publish.payload[7:key_at], publish.payload[key_at + 1 : -1]
            data = returned(publish.channel, to, key) + header.whole
            size = int.from_bytes(header.payload[4:12], "big")
            if size < _LONGEST_RETURN:
                self._from_broker(data + (body(publish.channel, b"x" * size) if size else b""))

    def _turn(self) -> None:
        c = self.c
        to_broker, to_client = self.wire.to_broker(), self.wire.to_client()
        self.refused = self.refused or any(isinstance(event, Refused) for event in c.events)
        self.over = self.over or c.to_broker.garbled
        self.turns.append(Turn(to_broker, to_client, [repr(event) for event in c.events], c.phase))
        c.events.clear()
        if not c.to_broker.body_left and c.phase not in _PASSING:
            for one, two in zip(frames := whole_frames(to_broker)[0], frames[1:], strict=False):
                if two.kind == HEADER and len(one.payload) > 6 and one.kind == METHOD:
                    self._routed.append((one, two))

    def _check(self) -> None:
        """Nothing is kept but the beginning of one frame and what waits; the client is not read where that is much."""
        c = self.c
        backlogs = [channel.backlog for channel in c.waiting.channels.values()]
        assert c.waiting.size == sum(backlog.size for backlog in backlogs if backlog is not None)
        assert all(backlogs)
        assert c.waiting.stalled or c.waiting.size <= MOST_WITHHELD
        if not c.waiting.stalled and not c.ahead:
            assert len(c.to_broker.rest) < c.frame_max + SLACK + OVERHEAD
        assert len(c.to_client.rest) < MOST_FRAME_MAX + OVERHEAD
        assert len(c.to_client.queued) + sum(map(len, c.to_broker.queued)) < 4096

    @property
    def to_client(self) -> bytes:
        return b"".join(turn.to_client for turn in self.turns)


def _frame(kind: int, step: Step) -> bytes:
    channel = _CHANNELS[step.channel % len(_CHANNELS)] if step.channel < _FAR else step.channel << 8 | 0xFF
    if kind < len(_KINDS):
        return frame(_KINDS[kind], channel, step.data)
    if kind == len(_KINDS):
        return frame(step.data[0] if step.data else 8, channel, step.data[1:])
    return step.data


def run(data: bytes, rng: Random | None = None) -> Session:
    """One run of an input, up to what ends it."""
    session = Session(data[0] if data else 0, rng)
    with patch("proxy.session.channel.secrets.randbits", lambda bits: 0x1234567):
        for step in steps(data[1:]):
            session.take(step)
            if session.over:
                break
    return session


def check(data: bytes) -> None:
    """No bytes of the client's raise anything; chunking makes no difference; both sides get whole frames, in order."""
    whole, cut = run(data), run(data, chance(data))
    # More or less may have gone out by then of a frame that ends wrongly, or that no broker sends.
    last = min(len(one.turns) - one.over for one in (whole, cut))
    assert whole.turns[:last] == cut.turns[:last]
    for session in (whole, cut):
        _check_broker_side(data[0] if data else 0, session)
        if session.broker_is_sane and not session.over:
            _, rest = whole_frames(session.to_client)
            assert not rest or session.c.to_client.body_left, f"the client got half a frame: {rest!r}"


def _check_broker_side(flags: int, session: Session) -> None:
    c = session.c
    channels = set() if flags & _FRESH else {1, 2}
    # Once one side has closed, all passes as it is.
    frames, rest = whole_frames(b"".join(turn.to_broker for turn in session.turns if turn.phase not in _PASSING))
    may_break_off = c.to_broker.body_left or session.refused or c.phase in _PASSING
    assert not rest or may_break_off, f"the broker got half a frame: {rest[:200]!r}"
    # A broker looks at nothing on a channel that it has closed; what it returns in disorder need not go out in order.
    ignored = channels_closed(session.heard) | (set() if is_orderly(session.heard) else {_SPARE})
    frames = [frame for frame in frames if frame.channel not in ignored]
    got = [content for content in contents(frames, channels) if content.channel != _SPARE]
    if session.refused or session.over or c.waiting.channels or c.ahead or c.phase > Phase.RUNNING:
        return
    sent = contents([frame for frame in whole_frames(session.sent)[0] if frame.channel not in ignored], channels)
    assert len(got) == len(sent), "a message is lost, or came twice"
    for before, after in zip(sent, got, strict=True):
        _check_content(before, after)


def _check_content(before: Content, after: Content) -> None:
    assert (before.channel, before.body) == (after.channel, after.body)
    if (before.exchange, before.key) != (after.exchange, after.key):
        assert before.exchange in _RINGS or after.exchange in (b"", b"plain"), (before, after)


# Seeds.


def _steps_of(first: int, data: bytes) -> list[Step]:
    """Whole frames of one side as steps; `first` is CLIENT_METHOD or BROKER_METHOD."""
    return [
        Step(first + _KINDS.index(one.kind), _CHANNELS.index(one.channel), one.payload)
        if one.kind in _KINDS
        else Step(first + len(_KINDS), one.channel, bytes((one.kind,)) + one.payload)
        for one in split(data)
    ]


def _client(*frames: bytes) -> list[Step]:
    return _steps_of(CLIENT_METHOD, b"".join(frames))


def _broker(*frames: bytes) -> list[Step]:
    return _steps_of(BROKER_METHOD, b"".join(frames))


def _handshake() -> list[Step]:
    return [
        *_broker(client_wire.start({"cluster_name": "rabbit@fuzz", "product": "RabbitMQ"})),
        *_client(made(0, commands.Connection.StartOk({"product": "x"}, "PLAIN", "\0guest\0guest", "en_US"))),
        *_broker(client_wire.tune()),
        *_client(made(0, commands.Connection.TuneOk(2046, 131072, 60)), made(0, commands.Connection.Open(VHOST))),
        *_broker(client_wire.OPEN_OK),
        *_client(made(1, commands.Channel.Open())),
        *_broker(made(1, commands.Channel.OpenOk())),
    ]


def _declarations() -> list[Step]:
    made_ = [
        commands.Exchange.Declare(exchange="later", exchange_type="x-consistent-hash"),
        commands.Exchange.Delete(exchange="ring"),
        commands.Exchange.Bind(destination="ring", source="chain", routing_key="1"),
        commands.Exchange.Unbind(destination="ring", source="chain", routing_key="1"),
        commands.Queue.Declare(queue="q9"),
        commands.Queue.Bind(queue="q9", exchange="ring", routing_key="1", nowait=True),
        commands.Queue.Unbind(queue="q9", exchange="ring", routing_key="1"),
        commands.Queue.Delete(queue="q9", nowait=True),
    ]
    oks = [(40, 11), (40, 21), (40, 31), (40, 51), (50, 11), (50, 21), (50, 51), (50, 41)]
    asked = [step for command in made_ for step in _client(made(1, command))]
    declared = made(1, commands.Queue.DeclareOk("q9", 0, 0))
    answers = [declared if ok == (50, 11) else method(1, *ok, b"\0\0\0\0" if ok == (50, 41) else b"") for ok in oks]
    return [*asked, *_client(message(1, b"ring", b"k")), *_broker(*answers), Step(FOUND, 0, b""), Step(FORGET, 0, b"")]


def seeds() -> list[bytes]:
    """Sessions that go right, to begin with."""
    routed = [message(1, name, b"key-1", b"hello" * 9) for name in sorted(_RINGS)]
    bare = method(1, 60, 40, b"\0\0\x04ring\x01k\0")
    stamped = bare + headers(1, 0, long_string(b"CC", b"x") + long_string(b"x-ring-id", b"y"))
    with_header = properties(1, 5, commands.Basic.Properties(message_id="m", headers={"h": "v"})) + body(1, b"hello")
    hashed = [method(1, 60, 40, b"\0\0" + name + b"\x01k\1") + with_header for name in (b"\x06header", b"\x08property")]
    # The header has a length that steps can say.
    long_header = headers(1, 0, long_string(b"h", b"x" * (31 * 128 - 25)))
    plain = [message(1, b"plain", b"k"), message(2, b"", b"q1", b""), message(1, b"unknown", b"k")]
    answers = [ack(1, 1), ack(1, 4, multiple=True), nack(1, 5), ack(2, 1, multiple=True)]
    tx = [method(2, 90, 10), message(2, b"ring", b"k"), method(2, 90, 20), method(2, 90, 30)]
    tx_oks = [method(2, 90, 11), method(2, 90, 21), method(2, 90, 31)]
    closes = [close_channel(1, 200, b"bye"), method(2, 20, 41), close_connection(200, b"bye"), method(0, 10, 51)]
    refusal = close_channel(1, 403, b"ACCESS_REFUSED - write access to exchange 'amq.default' refused")
    of_client = [step for step in _handshake() if step.op < BROKER_METHOD]
    of_broker = [step for step in _handshake() if step.op >= BROKER_METHOD]
    hold = [*_client(message(1, b"later", b"k")), Step(UNKNOWN, 0, b""), *_broker(method(1, 20, 41))]
    scripts: list[tuple[int, list[Step]]] = [
        (_FRESH, [*_handshake(), *_client(message(1, b"ring", b"k"), *closes)]),
        (_FRESH, [*of_client, *_client(message(1, b"ring", b"k")), *of_broker]),
        (0, [*_client(*routed), Step(FOUND, 0, b""), *_client(*plain), Step(FOUND, 0, b"")]),
        (_CONFIRMING, [*_client(confirm_select(1), *routed[:4]), Step(RETURN, 0, b""), *_broker(*answers)]),
        (_CONFIRMING, [*_client(stamped), *_broker(*answers)]),
        (_CONFIRMING | _SMALL, [*_client(bare, long_header), Step(RETURN, 0, b"")]),
        (_TRANSACTIONAL, [*_client(*tx), Step(RETURN, 0, b""), *_broker(*tx_oks)]),
        (0, [*_client(*routed[:1]), *_broker(refusal), *_client(method(1, 20, 41), method(1, 20, 10, b"\0"))]),
        (0, [*hold, *_client(method(1, 20, 41), method(1, 20, 10, b"\0"))]),
        (0, [*_client(bare), Step(DRAIN, 0, b""), *_broker(method(0, 10, 51)), *_client(method(0, 10, 51))]),
        (0, [*_client(method(1, 20, 40, pack(">H", 200) + b"\0" * 5)), *_broker(method(1, 20, 41))]),
        (0, _declarations()),
        (0, [Step(CLIENT_RAW, 0, message(1, b"ring", b"k")[:30]), Step(CLIENT_RAW, 0, message(1, b"ring", b"k")[30:])]),
        (0, [Step(CLIENT_RAW, 0, PROTOCOL_HEADER), Step(BROKER_RAW, 0, body(1, b"x" * 40)[:20]), *_client(routed[0])]),
        (_CONFIRMING, [*_client(*hashed), *_broker(method(0, 10, 60, b"\x03low"), method(0, 10, 61))]),
    ]
    return [bytes((flags,)) + written(script) for flags, script in [*scripts, *_reroutes()]]


def _reroutes() -> list[tuple[int, list[Step]]]:
    """Messages that come back, and go out again on the proxy's own channel, to be confirmed or to come back again."""
    two = [*_client(message(1, b"ring", b"k"), message(1, b"ring", b"k2", b"x" * 99, bits=1)), Step(RETURN, 0, b"")]
    away = [*two, Step(FOUND, 1, b""), Step(RETURN, 1, b""), Step(FOUND, 1, b"")]
    oks = _broker(method(_SPARE, 20, 11, b"\0" * 4), method(_SPARE, 85, 11))
    again = [Step(RETURN, 2, b""), Step(FOUND, 2, b""), Step(RETURN, 3, b""), Step(FOUND, 2, b"")]
    gone = _broker(close_channel(_SPARE, 403, b"ACCESS_REFUSED - no"))
    leaving = [*_client(close_connection(200, b"bye")), Step(LEAVE, 0, b""), *_broker(method(0, 10, 51))]
    acks = _broker(ack(1, 2, multiple=True))
    return [
        (_CONFIRMING, [*away, *acks, *oks, *_broker(ack(_SPARE, 2, multiple=True))]),
        (_CONFIRMING, [*away, *acks, *again, *_broker(nack(_SPARE, 1), ack(_SPARE, 2))]),
        (_CONFIRMING, [*away, *gone, *acks]),
        (_CONFIRMING, [*away, *leaving]),
        (0, [*away, *_client(method(1, 20, 40, pack(">H", 200) + b"\0" * 5)), *_broker(method(1, 20, 41)), *gone]),
        (_CONFIRMING, [*two, Step(UNKNOWN, 0, b""), *acks]),
    ]
