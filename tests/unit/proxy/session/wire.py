"""Frames, open connections, and bytes fed in any chunking. Frames are made by hand where pamqp would refuse."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from struct import pack, unpack_from
from typing import NamedTuple, cast

from hypothesis import strategies as st
from pamqp import base, commands
from pamqp import frame as pamqp_frame
from pamqp import header as pamqp_header

from proxy.routing.counters import Counters, CounterTable
from proxy.routing.route import Route
from proxy.routing.routes import RouteTables
from proxy.session import broker_loop, client_loop
from proxy.session.backlog import Awaited, Backlog, Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.publishing.parking import Read
from proxy.session.state import Phase
from proxy.settings.patterns import Mode, Selection
from proxy.topology.bindings import CONSISTENT_HASH, Behind, Binding, Bindings, Leads
from proxy.topology.matching import upstream_of
from proxy.topology.table import Entry, KnownRing, Name, PassReason, Router, Unread
from proxy.wire.frames import Piece
from ring.destination import Destination
from ring.hashed import HashedValue
from ring.ring import Ring

VHOST = "/"
ROUTE_ALL = Selection(["*"], [], [])
NONCE = 0x1234567 << 34
NOW = 1000.0

Feed = Callable[[Connection, bytes], None]

# Frames.


def short(text: bytes | str) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return bytes((len(data),)) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, pack(">HH", class_id, method_id) + arguments)


def made(channel: int, command: base.Frame) -> bytes:
    """A method, as pamqp has it."""
    return pamqp_frame.marshal(command, channel)


def publish(channel: int, exchange: bytes, key: bytes, bits: int = 0) -> bytes:
    """basic.publish; of the bits, 1 is mandatory and 2 immediate."""
    return method(channel, 60, 40, b"\0\0" + short(exchange) + short(key) + bytes((bits,)))


def header(channel: int, size: int, flags: int = 0, properties: bytes = b"", class_id: int = 60) -> bytes:
    """A content header with properties as bytes."""
    return frame(2, channel, pack(">HHQH", class_id, 0, size, flags) + properties)


def headers(channel: int, size: int, entries: bytes) -> bytes:
    """A content header with nothing but a table."""
    return header(channel, size, 1 << 13, pack(">I", len(entries)) + entries)


def properties(channel: int, size: int, wanted: commands.Basic.Properties) -> bytes:
    """A content header, as pamqp has it."""
    return pamqp_frame.marshal(pamqp_header.ContentHeader(0, size, wanted), channel)


def entry(name: bytes, kind: bytes, value: bytes) -> bytes:
    return short(name) + kind + value


def long_string(name: bytes, value: bytes) -> bytes:
    return entry(name, b"S", pack(">I", len(value)) + value)


def body(channel: int, data: bytes) -> bytes:
    return frame(3, channel, data)


def message(channel: int, exchange: bytes, key: bytes, data: bytes = b"hello", bits: int = 0) -> bytes:
    """A publish without properties, its body in one frame."""
    return publish(channel, exchange, key, bits) + header(channel, len(data)) + (body(channel, data) if data else b"")


def ack(channel: int, tag: int, multiple: bool = False) -> bytes:
    return method(channel, 60, 80, pack(">QB", tag, multiple))


def nack(channel: int, tag: int, multiple: bool = False) -> bytes:
    return method(channel, 60, 120, pack(">QB", tag, multiple))


def returned(channel: int, exchange: bytes, key: bytes) -> bytes:
    return method(channel, 60, 50, pack(">H", 312) + short("NO_ROUTE") + short(exchange) + short(key))


def close_channel(channel: int, code: int, text: bytes, method_id: tuple[int, int] = (60, 40)) -> bytes:
    return method(channel, 20, 40, pack(">H", code) + short(text) + pack(">HH", *method_id))


def close_connection(code: int, text: bytes) -> bytes:
    return method(0, 10, 50, pack(">H", code) + short(text) + pack(">HH", 0, 0))


def back(sent: bytes, piece: int = 1 << 17) -> bytes:
    """The broker's return of a message that reached it, its body in frames of so many bytes."""
    (one,) = published(sent)
    bodies = b"".join(body(one.channel, one.body[i : i + piece]) for i in range(0, len(one.body), piece))
    return returned(one.channel, one.exchange, one.key) + frame(2, one.channel, one.header) + bodies


CONNECTION_CLOSE_OK = method(0, 10, 51)
HEARTBEAT = frame(8, 0, b"")


def confirm_select(channel: int) -> bytes:
    return method(channel, 85, 10, b"\0")


# Output


class Frame(NamedTuple):
    kind: int
    channel: int
    payload: bytes

    @property
    def id(self) -> tuple[int, int]:
        """Class and method of a method."""
        assert self.kind == 1
        return cast(tuple[int, int], unpack_from(">HH", self.payload))

    @property
    def whole(self) -> bytes:
        return frame(*self)


def split(data: bytes) -> list[Frame]:
    """The frames; fails for bytes that are not whole frames."""
    frames, at = [], 0
    while at < len(data):
        kind, channel, size = unpack_from(">BHI", data, at)
        end = at + 8 + size
        assert end <= len(data), f"half a frame: {data[at:]!r}"
        assert data[end - 1] == 0xCE
        frames.append(Frame(kind, channel, data[at + 7 : end - 1]))
        at = end
    return frames


class Published(NamedTuple):
    channel: int
    exchange: bytes
    key: bytes
    bits: int
    header: bytes
    """Its payload."""
    body: bytes


def short_strings(data: bytes, at: int, count: int) -> tuple[list[bytes], int]:
    found = []
    for _ in range(count):
        found.append(data[at + 1 : at + 1 + data[at]])
        at += 1 + data[at]
    return found, at


def published(data: bytes) -> list[Published]:
    """The messages of whole frames of one or several channels, in the order of their methods."""
    done: list[Published] = []
    for kind, channel, payload in split(data):
        at = next((i for i in reversed(range(len(done))) if done[i].channel == channel), -1)
        if kind == 1 and payload[:4] == pack(">HH", 60, 40):
            (exchange, key), bits = short_strings(payload, 6, 2)
            assert bits == len(payload) - 1
            done.append(Published(channel, exchange, key, payload[bits], b"", b""))
        elif kind == 2:
            assert not done[at].header
            done[at] = done[at]._replace(header=payload)
        elif kind == 3:
            done[at] = done[at]._replace(body=done[at].body + payload)
    for one in done:
        assert len(one.body) == unpack_from(">Q", one.header, 4)[0]
    return done


def contents(data: bytes, channel: int) -> list[Published | Frame]:
    """The messages and methods of a channel, in order; fails where a message is not whole before the next frame."""
    done: list[Published | Frame] = []
    frames = [each for each in split(data) if each.channel == channel]
    while frames:
        first = frames.pop(0)
        assert first.kind == 1, f"content without a method: {first}"
        if first.id != (60, 40):
            done.append(first)
            continue
        whole, left = first.whole, -1
        while left:
            each = frames.pop(0)
            assert each.kind == (2 if left < 0 else 3), f"in the midst of a content: {each}"
            left = unpack_from(">Q", each.payload, 4)[0] if left < 0 else left - len(each.payload)
            assert left >= 0
            whole += each.whole
        done += published(whole)
    return done


def properties_in(payload: bytes) -> commands.Basic.Properties:
    """A content header's payload, as pamqp reads it."""
    _, _, read = pamqp_frame.unmarshal(frame(2, 1, payload))
    assert isinstance(read, pamqp_header.ContentHeader)
    return read.properties


def code_of(frame: Frame) -> int:
    """The reply code of a close."""
    assert frame.id in ((10, 50), (20, 40))
    return cast(int, unpack_from(">H", frame.payload, 4)[0])


def text_of(frame: Frame) -> str:
    """The reply text of a close."""
    assert frame.id in ((10, 50), (20, 40))
    return short_strings(frame.payload, 6, 1)[0][0].decode()


# Rings and connections.


def queue(name: str) -> Destination:
    return Destination("queue", name)


def exchange(name: str) -> Destination:
    return Destination("exchange", name)


@cache
def _ring(destinations: tuple[Destination, ...]) -> Ring:
    return Ring.build(dict.fromkeys(destinations, 1))


ROUTING_KEY = HashedValue()


def ring(*destinations: Destination, hashed: HashedValue = ROUTING_KEY) -> KnownRing:
    """A ring of equal weights."""
    return KnownRing.of(_ring(destinations), hashed, CONSISTENT_HASH)


A_MOMENT = 0.001
"""Seconds from a message's return to the reading that it is the reason for."""


def known(
    ring: KnownRing | None, passed: PassReason | None = None, internal: bool = False, read_at: float = NOW
) -> Entry:
    mode = Mode.SHADOW if passed is PassReason.SHADOW else Mode.PASS if passed is PassReason.MODE_PASS else Mode.ROUTE
    kind = "topic" if passed is PassReason.TYPE else CONSISTENT_HASH
    return Entry(mode, kind, ring, passed, Bindings(), read_at, internal=internal)


def upstream(bindings: Mapping[str, str], internal: bool = False) -> Entry:
    """A topic exchange that leads to exchanges with rings, by binding key."""
    bound = [Binding(exchange(name), key) for key, name in bindings.items()]
    made = upstream_of("topic", bound, [binding.destination for binding in bound])
    return replace(known(None, internal=internal), exchange_type="topic", upstream=made)


QUEUES = ring(queue("q1"), queue("q2"), queue("q3"))


def laned(ring: KnownRing = QUEUES) -> Entry:
    """A ring each of whose queues has a lane."""
    lanes = {destination: f"lane.{destination.name}" for destination in ring.ring.destinations}
    behind = {lane: Behind(Leads.TO_QUEUE, queue.name) for queue, lane in lanes.items()}
    return replace(known(ring), lanes=lanes, behind=behind)


def selecting(entries: Mapping[str, Entry | KnownRing]) -> Selection:
    """Settings that give each of these exchanges its mode, and route all others."""
    modes = {name: what.mode for name, what in entries.items() if isinstance(what, Entry)}
    shadow = [name for name, mode in modes.items() if mode is Mode.SHADOW]
    return Selection(["*"], shadow, [name for name, mode in modes.items() if mode is Mode.PASS])


class Wire:
    """A session's core in the middle of its life, and what it counts."""

    def __init__(
        self,
        entries: Mapping[str, Entry | KnownRing] | None = None,
        *,
        channels: Iterable[int] = (1, 2),
        confirming: bool = False,
        frame_max: int = 1 << 17,
        selection: Selection | None = None,
        spare: int = 0,
    ) -> None:
        """`entries` are the exchanges known; a ring alone routes. Channels have the same nonce each time.

        `spare` is the channel to publish on again what came back; 0 for none.
        """
        self.router = Router(300, refuse_stale=True, clock=lambda: NOW)
        for name, what in (entries or {}).items():
            self.router.put((VHOST, name), what if isinstance(what, Entry) else known(what))
        self.counter_table = CounterTable()
        self.wanted: list[Name] = []
        selection = selection or selecting(entries or {})
        self.tables = RouteTables(self.router, selection, self.counter_table, lambda _: "", self.wanted.append)
        self.samples: list[float] = []
        c = self.c = Connection(self.tables.table, self.samples.append, frozenset())
        c.phase, c.handshake.vhost, c.now = Phase.RUNNING, VHOST, NOW
        c.frame_max, c.handshake.channel_max, c.republishing.number = frame_max, 2046, spare
        c.table = self.tables.table(VHOST, None)
        c.routes = c.table.routes
        for number in channels:
            channel = c.channels[number] = Channel(number)
            channel.nonce = NONCE
            if confirming:
                channel.select(transactional=False)

    def counters(self, exchange: str, reason: PassReason | None = None) -> Counters:
        return self.counter_table.of((VHOST, exchange), reason)

    @property
    def names(self) -> set[Name]:
        return {name for name, _ in self.counter_table.by_way}

    def client(self, data: bytes) -> bytes:
        """Feed bytes of the client; return what goes to the broker. Nothing may go to the client."""
        client_loop.from_client(self.c, data)
        assert self.to_client() == b""
        return self.to_broker()

    def broker(self, data: bytes) -> bytes:
        """Feed bytes of the broker; return what goes to the client. Nothing may go to the broker."""
        broker_loop.from_broker(self.c, data)
        assert self.to_broker() == b""
        return self.to_client()

    def both(self, data: bytes) -> tuple[bytes, bytes]:
        """Feed bytes of the broker; return what goes to the broker, and what to the client."""
        broker_loop.from_broker(self.c, data)
        return self.to_broker(), self.to_client()

    @property
    def awaited(self) -> Read | None:
        """The reading that the first of the messages that came back waits for."""
        exchanges = self.c.republishing.parking.exchanges
        return self.c.republishing.parking.wanted(exchanges[0]) if exchanges else None

    def reread(self, entries: Mapping[str, Entry | KnownRing | None]) -> tuple[bytes, bytes]:
        """Have what a message that came back waits for read, as a session does; return what goes to either side.

        `entries` are what was found; None for an exchange that is gone. One that is not among them could not be read.
        """
        wanted = self.awaited
        assert wanted is not None
        for name, what in entries.items():
            if what is None:
                self.router.drop((VHOST, name))
            else:
                entry = what if isinstance(what, Entry) else known(what)
                self.router.put((VHOST, name), replace(entry, read_at=self.c.now + A_MOMENT))
        broker_loop.after_reading(self.c, self.c.republishing.parking.exchanges[0], wanted, self.c.now)
        self.c.now += 2 * A_MOMENT
        return self.to_broker(), self.to_client()

    @property
    def backlog(self) -> Backlog | None:
        """The backlog of the channel that came to wait first."""
        return next((channel.backlog for channel in self.c.waiting.channels.values()), None)

    @property
    def waits_for(self) -> Awaited | None:
        """The thing that the first frame of that backlog waits for."""
        return self.backlog.awaited if self.backlog is not None else None

    @property
    def held(self) -> str | None:
        """The exchange that a publish waits for."""
        return self.waits_for.name[1] if isinstance(self.waits_for, Unread) else None

    def resumed(self, forced: Route | None = None, seen: int | None = None) -> bytes:
        """End the wait of the channel that came to wait first; return what goes to the broker.

        `forced` is for so many of the first pieces that wait; for all of them where `seen` is None.
        """
        if self.backlog is not None and not isinstance(self.waits_for, Wait):
            self.backlog.awaited, self.backlog.forced = None, forced
            self.backlog.seen = len(self.backlog.pieces) if seen is None else seen
        return self.client(b"")

    def to_broker(self) -> bytes:
        return _taken(self.c.to_broker.out)

    def to_client(self) -> bytes:
        return _taken(self.c.to_client.out)


def _taken(frames: list[Piece]) -> bytes:
    data = b"".join(frames)
    frames.clear()
    return data


# Chunkings.


def chunks(data: bytes, cuts: Iterable[int]) -> list[bytes]:
    """The data cut at these positions."""
    at = sorted({cut for cut in cuts if 0 < cut < len(data)})
    return [data[i:j] for i, j in zip([0, *at], [*at, len(data)], strict=True)]


def chunkings(data: bytes) -> Iterator[list[bytes]]:
    """Whole, in single bytes, and in two at every position."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    for i in range(1, len(data)):
        yield [data[:i], data[i:]]


def cuts(data: bytes) -> st.SearchStrategy[list[int]]:
    """Any few positions to cut at."""
    return st.lists(st.integers(0, len(data)), max_size=8)


class Fed(NamedTuple):
    """The result of feeding bytes to a connection."""

    to_broker: bytes
    to_client: bytes
    wire: Wire


def fed(make: Callable[[], Wire], data: bytes, feed: Feed = client_loop.from_client) -> Fed:
    """Feed the data in each chunking to one more connection; return the result, which is the same for all."""
    outcomes: list[Fed] = []
    for chunking in chunkings(data):
        wire = make()
        for chunk in chunking:
            feed(wire.c, chunk)
        fed = Fed(wire.to_broker(), wire.to_client(), wire)
        if outcomes:
            first = outcomes[0]
            assert (fed.to_broker, fed.to_client, fed.wire.c.events) == (
                first.to_broker,
                first.to_client,
                first.wire.c.events,
            ), f"chunks {chunking}"
        outcomes.append(fed)
    return outcomes[0]


def as_it_is(make: Callable[[], Wire], data: bytes, feed: Feed = client_loop.from_client) -> None:
    """The data goes to the other side as it is, in each chunking."""
    out = fed(make, data, feed)
    ours, others = (out.to_broker, out.to_client) if feed is client_loop.from_client else (out.to_client, out.to_broker)
    assert (ours, others) == (data, b"")
