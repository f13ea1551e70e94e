"""Sessions and their parts, for `equal`: the harnesses' inputs mutated, and frames whose numbers are at the edges."""

from collections.abc import Mapping
from functools import cache
from random import Random
from struct import pack

from proxy.journal.buffer import Journal
from proxy.outcome import Outcome
from proxy.routing.counters import Counters
from proxy.routing.route import Route, mark
from proxy.session import broker_loop, client_loop
from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.closing import refuse_channel
from proxy.session.connection import Connection
from proxy.session.publishing.confirms import PublishNote, Settlement
from proxy.session.state import Phase
from proxy.topology.table import Entry, KnownRing, PassReason
from proxy.wire import content, frames, table
from ring import hashing
from ring.hashed import HashedValue
from ring.ring import Ring
from tests.fuzz import session
from tests.fuzz.said import Say, attempt, kept_of, mutated, number
from tests.fuzz.steps import pieces, steps
from tests.unit.proxy.publisher.client_wire import start, tune
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import NOW, QUEUES, VHOST, Wire, exchange, queue, ring

RINGS: Mapping[str, Entry | KnownRing] = {
    "ring": QUEUES,
    "header": ring(queue("q1"), queue("q2"), hashed=HashedValue("header", "h")),
    "time": ring(queue("q1"), queue("q2"), hashed=HashedValue("property", "timestamp")),
    "chain": ring(exchange("ring"), exchange("plain")),
    "plain": wire.known(None, PassReason.TYPE),
    "shadow": wire.known(QUEUES, PassReason.SHADOW),
}
_TO = (b"ring", b"ring", b"header", b"time", b"chain", b"plain", b"shadow", b"", b"\xff")


# Sessions.


def _say_session(say: Say, it: Wire) -> None:
    say(it.c)
    say({str(way): counters for way, counters in it.counter_table.by_way.items()})
    say(it.samples)


def fuzzed_session(rng: Random, say: Say) -> None:
    """The session harness's steps."""
    data = mutated(rng, kept_of("session"))
    one = session.Session(data[0] if data else 0, rng if rng.random() < 0.3 else None)
    for step in steps(data[1:]):
        if not attempt(say, one.take, step) or one.over:
            break
    for turn in one.turns:
        say(turn)
    say(one.fault)
    _say_session(say, one.wire)


def handshakes(rng: Random, say: Say) -> None:
    """Say what a broker and a client agree on, and frames as long as that."""
    it = Wire(RINGS)
    it.c = c = Connection(it.tables.table, it.samples.append, frozenset())
    c.phase, c.now = Phase.HANDSHAKE, NOW
    agreed = number(rng, 16), number(rng, 32), number(rng, 16)
    start_ok = wire.method(0, 10, 11, pack(">I", 0) + wire.short(b"PLAIN") + pack(">I", 0) + wire.short(b"en_US"))
    script = [
        (client_loop.from_client, frames.PROTOCOL_HEADER),
        (broker_loop.from_broker, start()),
        (client_loop.from_client, start_ok),
        (broker_loop.from_broker, tune(number(rng, 16), number(rng, 32), number(rng, 16))),
        (client_loop.from_client, wire.method(0, 10, 31, pack(">HIH", *agreed))),
        (client_loop.from_client, wire.method(0, 10, 40, wire.short("/") + b"\0\0")),
        (broker_loop.from_broker, wire.method(0, 10, 41, b"\0")),
        (client_loop.from_client, wire.method(at := number(rng, 16, agreed[0]), 20, 10, b"\0")),
        (broker_loop.from_broker, wire.method(at, 20, 11, b"\0" * 4)),
        (client_loop.from_client, wire.message(at, rng.choice(_TO), b"k")),
        (client_loop.from_client, _begun(rng, at, agreed[1])),
    ]
    for feed, data in script:
        if not _fed(rng, say, it, feed, data):
            break
    _say_session(say, it)


def _begun(rng: Random, at: int, near: int) -> bytes:
    """Return the beginning of a frame of any length."""
    kind = rng.choice((1, 2, 3, 3, 8, number(rng, 8)))
    return pack(">BHI", kind, at, number(rng, 32, near)) + rng.randbytes(rng.randrange(40))


def _fed(rng: Random, say: Say, it: Wire, feed: wire.Feed, data: bytes) -> bool:
    """Feed it to one side, and say what comes out; whether the session goes on."""
    ok = all(attempt(say, feed, it.c, part) for part in pieces(data, rng if rng.random() < 0.3 else None))
    say((it.to_broker(), it.to_client(), [repr(event) for event in it.c.events], it.c.phase))
    it.c.events.clear()
    return ok


def edges(rng: Random, say: Say) -> None:
    """Sessions whose frames have numbers at the edges."""
    edged(rng, say, None)


def edged(rng: Random, say: Say, journal: Journal | None) -> None:
    """One of them, with that journal."""
    channels = [number(rng, 16) or 1, rng.choice((1, 2, 0xFFFF))]
    it = Wire(RINGS, channels=channels, frame_max=max(4096, number(rng, 32)), spare=rng.choice((0, 0xFFFE)))
    it.tables.journal = journal
    for channel in it.c.channels.values():
        _set(rng, channel)
    for _ in range(rng.randrange(2, 16)):
        at = rng.choice([*channels, number(rng, 16)])
        channel = it.c.channels.get(at) or it.c.channels[channels[0]]
        it.c.now += rng.random()
        from_client = rng.random() < 0.6
        data = _of_client(rng, at) if from_client else _of_broker(rng, at, channel)
        if not _fed(rng, say, it, client_loop.from_client if from_client else broker_loop.from_broker, data):
            break
        for waiting in list(it.c.waiting.channels.values()):
            if waiting.backlog is not None and not isinstance(waiting.backlog.awaited, Wait):
                refuse_channel(it.c, waiting, frames.INTERNAL_ERROR, "not known")
        it.resumed()
    _say_session(say, it)


def _set(rng: Random, channel: Channel) -> None:
    """To a publish far on, in some mode."""
    channel.nonce = rng.choice((0, 1 << 34, wire.NONCE, ((1 << 29) - 1) << 34))
    if rng.random() < 0.7:
        channel.confirms.number = number(rng, 62)
        channel.select(transactional=rng.random() < 0.2)


def _of_client(rng: Random, at: int) -> bytes:
    """Return a publish whose body may be longer than is sent, or else a frame."""
    which = rng.randrange(8)
    if which < 5:
        data = rng.choice((b"", b"x", b"hello" * 20))
        size = len(data) if rng.random() < 0.5 else number(rng, 64, len(data))
        to, key = rng.choice(_TO), rng.choice((b"", b"k", rng.randbytes(rng.randrange(256))))
        head = header(rng, at, size)
        return wire.publish(at, to, key, number(rng, 8)) + head + (wire.body(at, data) if data else b"")
    if which < 7:
        return rng.choice((wire.body(at, b"x" * rng.randrange(9)), wire.method(at, 20, 40, pack(">HBI", 200, 0, 0))))
    return _begun(rng, at, 4096)


def header(rng: Random, at: int, size: int) -> bytes:
    """A content header with a timestamp and an integer among its headers, or with a table's length that is wrong."""
    entries = b"".join(entry_(rng) for _ in range(rng.randrange(3)))
    length = len(entries) if rng.random() < 0.8 else number(rng, 32, len(entries))
    stamp = pack(">Q", number(rng))
    match rng.randrange(4):
        case 0:
            return wire.header(at, size)
        case 1:
            return wire.header(at, size, 1 << 13 | 1 << 6, pack(">I", length) + entries + stamp)
        case 2:
            return wire.header(at, size, number(rng, 16), rng.randbytes(rng.randrange(30)), number(rng, 16, 60))
        case _:
            return wire.header(at, size, 1 << 6, stamp[: rng.choice((8, 8, 7, 0))])


def entry_(rng: Random) -> bytes:
    name = rng.choice((b"h", b"CC", b"BCC", b"x-ring-id", b"x-ring-exchange", b"", b"n" * 255))
    kinds = {b"b": 1, b"B": 1, b"s": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8, b"T": 8, b"d": 8, b"D": 5, b"V": 0}
    if rng.random() < 0.4:
        text = rng.randbytes(rng.choice((0, 1, 7, 300)))
        size = len(text) if rng.random() < 0.8 else number(rng, 32, len(text))
        return wire.entry(name, rng.choice((b"S", b"x", b"A", b"F", b"?")), pack(">I", size) + text)
    type_ = rng.choice(list(kinds))
    return wire.entry(name, type_, pack(">Q", number(rng))[8 - kinds[type_] :])


def _of_broker(rng: Random, at: int, channel: Channel) -> bytes:
    """Return an answer to publishes near or far, or a message that comes back with any id."""
    tag = number(rng, 64, channel.confirms.number - channel.confirms.base)
    which = rng.randrange(8)
    if which < 4:
        return rng.choice((wire.ack, wire.nack))(at, tag, rng.random() < 0.5)
    if which < 7:
        ring_id = channel.nonce ^ number(rng, 64, channel.confirms.number)
        entries = content.stamp_of_exchange(rng.choice((b"ring", b"chain", b"plain"))) + pack(">I", 1) + b"k"
        entries += content.STAMP_ID_FIELD + pack(">Q", ring_id)
        size = number(rng) if rng.random() < 0.4 else rng.randrange(3)
        data = wire.body(at, b"x" * min(size, 9)) if size else b""
        return wire.returned(at, b"", b"q1") + wire.headers(at, size, entries) + data
    return _begun(rng, at, 1 << 24)


# The parts.


def contents(rng: Random, say: Say) -> None:
    """Content headers, wherever they lie among other bytes."""
    made = header(rng, 1, number(rng))[7:-1]
    data = rng.choice((made, mutated(rng, kept_of("content")), mutated(rng, [made])))
    first = rng.choice((0, 0, 1, 7))
    framed = rng.randbytes(first) + data + rng.randbytes(rng.choice((0, 1, 9)))
    end = max(first, first + len(data) + rng.choice((0, 0, 0, -1, -3, 1, 9, 300)))
    for hashed in (HashedValue("header", "h"), HashedValue("property", rng.choice(("timestamp", "message_id")))):
        attempt(say, content.hashed_value, hashed, b"h", framed, first, end)
    for read in (content.headers_at, content.parts, content.stamps_in, content.ring_id_in):
        attempt(say, read, framed, first, end)
    attempt(say, content.table_at, framed, first + rng.randrange(20), end)
    for cut in (content.STAMPS, content.STAMPS_AND_COPIES):
        attempt(say, content.stamped, framed, first, end, entry_(rng), cut)
        attempt(say, content.without, framed, first, end, cut)
    attempt(say, content.unstamped, framed, first, end, rng.choice((b"", entry_(rng))), rng.random() < 0.5)
    attempt(say, content.stamp_of_exchange, rng.randbytes(rng.choice((0, 4, 255))))


def tables(rng: Random, say: Say) -> None:
    """Field tables, and what is read of their entries."""
    data = b"".join(entry_(rng) for _ in range(rng.randrange(1, 6)))
    data = rng.choice((data, mutated(rng, [data])))
    begin, stop = rng.choice((0, 0, 1)), len(data) + rng.choice((0, 0, -1, 1, 5))
    found: list[table.Field] = []
    attempt(say, found.extend, table.fields(data, begin, stop))
    say(found)
    for entry in found:
        attempt(say, table.text_of, data, entry)
        attempt(say, table.hashed_bytes, data, entry)
    attempt(say, table.find, data, begin, stop, b"h")
    attempt(say, table.without, data, begin, stop, {b"CC", b"h"})
    attempt(say, table.text_field, rng.randbytes(rng.choice((0, 3, 255))), rng.randbytes(rng.randrange(9)))


def least(rng: Random, say: Say) -> None:
    """The least of the readers and writers."""
    data = rng.choice((rng.randbytes(rng.randrange(24)), pack(">QQ", number(rng), number(rng))))
    for at in (rng.randrange(24), number(rng, 62), -rng.randrange(1, 30)):
        for read in (frames.u16, frames.u32, frames.u64):
            attempt(say, read, data, at)
    attempt(say, frames.short_string, data, rng.randrange(20), rng.randrange(30))
    attempt(say, frames.shorted, rng.randbytes(rng.choice((0, 254, 255, 256))))
    text = "".join(rng.choice("aß€😀") for _ in range(rng.randrange(80)))
    attempt(say, frames.reply_text, text.encode(), rng.choice((0, -1, 7, 255)))
    attempt(say, frames.close_frame, number(rng, 16), rng.choice(list(frames.REPLY_CODES)), text, number(rng, 32))
    attempt(say, frames.method_frame, number(rng, 17), number(rng, 33), data)


@cache
def _ring(count: int) -> Ring:
    return Ring.build({queue(f"q{at}"): at + 1 for at in range(count)})


def lookups(rng: Random, say: Say) -> None:
    """Keys to destinations."""
    keys = [rng.randbytes(rng.choice((0, 1, 7, 8, 15, 16, 17, 40, 255))) for _ in range(20)]
    for key in keys:
        say((hashing.slot_of(key), hashing.hash64(key), str(_ring(rng.choice((1, 5))).owner_of(key))))
        say(mark(rng.choice((b"", key)), key))
    for slot in (0, hashing.SLOTS - 1, hashing.SLOTS, number(rng, 61)):
        attempt(say, hashing.index_at, _ring(5).owner_index, slot)
    tables = Wire(RINGS).tables.table(VHOST, None)
    for name in (*RINGS, "unknown"):
        route = tables.find(name.encode())
        if isinstance(route, Route) and route.stamp:
            made = header(rng, 1, number(rng))
            for key in keys[:4]:
                attempt(say, _chosen, route, key, made, 7, len(made) - 1)
            say((route.plain, route.reason, route.fingerprint, sorted(route.leads_through())))
    say((sorted(tables.rings_to("q1")), tables.expires, type(tables.find(keys[0])).__name__))


def _chosen(route: Route, key: bytes, header: bytes, first: int, end: int) -> object:
    choice = route.choose(key, header, first, end)
    return (choice.target.method, choice.by.name, choice.slot, choice.missing) if choice else None


# Confirms.


_SETTLEMENTS = (
    None,
    Settlement(Outcome.UNROUTABLE, False),
    Settlement(Outcome.CONFIRMED, True),
    Settlement(Outcome.NACKED, False),
)


def confirms(rng: Random, say: Say) -> None:
    """A channel's numbers under random operations, from any number on."""
    channel, counter_table = Channel(number(rng, 16)), [Counters() for _ in range(3)]
    channel.nonce = rng.choice((0, 1 << 34, ((1 << 29) - 1) << 34))
    c = channel.confirms
    c.number = rng.choice((0, 0, (1 << 31) - 3, (1 << 32) - 3, (1 << 61) - 3, (1 << 62) - 3, (1 << 63) - 3))
    if c.number or rng.random() < 0.8:
        channel.select(transactional=False)
    for _ in range(rng.randrange(5, 40)):
        near = max(c.low, c.number - rng.randrange(8)) + rng.randrange(2)
        n = near if rng.random() < 0.8 else number(rng)
        _operate(rng, say, channel, n, counter_table)
        say(
            (
                c.unsettled,
                c.settled(n),
                c.low,
                c.number,
                c.due,
                c.open.within(c.low, c.number),
                c.waiting,
                c.returned,
            )
        )
    say((channel, counter_table))


def _operate(rng: Random, say: Say, channel: Channel, n: int, counter_table: list[Counters]) -> None:
    c, flag, which = channel.confirms, rng.random() < 0.5, rng.randrange(12)
    if which < 4:
        attempt(say, channel.next_id, rng.randrange(2), flag)
        c.publish(rng.choice(counter_table))
    elif which < 7:
        answer = rng.choice((c.acked, c.nacked, c.settle))
        attempt(say, answer, n, flag, *([rng.random() < 0.5] if answer == c.settle else []))
    elif which < 9:
        fate = rng.choice(_SETTLEMENTS)
        if c.low < n <= c.number and c.open.has(n) and n not in c.returned:
            attempt(say, c.came_back, n, fate)
        elif fate is not None:
            attempt(say, c.decide, n, fate)
    elif which < 11:
        attempt(say, channel.read_id, rng.choice((channel.nonce | n & (1 << 34) - 1, number(rng))))
        attempt(say, channel.awaits, flag)
        attempt(say, channel.note, PublishNote(b"x", ring_id=n))
    elif rng.random() < 0.2:
        attempt(say, c.forget, min(n, c.number)) if flag else attempt(say, c.abandon)
