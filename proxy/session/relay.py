"""The hot loop: a session's bytes, in any chunking, to what goes to the other side. Sans-I/O; integers, bytes, lists.

Frames that nothing here changes stay in the run of bytes that they came in, and bodies stream through. Two tables of
method ids say what else is looked at.
"""

from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small
from typing import Final

from librt.strings import read_i64_be

from proxy.routing.routes import BEING_CLOSED, UNANSWERED
from proxy.session import closing, handshake, outside, republish, requests, returns
from proxy.session.backlog import MOST_WITHHELD, Backlog
from proxy.session.channel import EXPECT_BODY, EXPECT_HEADER, EXPECT_METHOD, Channel, State
from proxy.session.publishing import count, publish
from proxy.session.state import MOST_FRAME_MAX, Connection, Phase, Stale
from proxy.wire import content
from proxy.wire.frames import (
    BASIC,
    BASIC_ACK,
    BASIC_NACK,
    BASIC_PUBLISH,
    BODY,
    CONNECTION_CLOSE,
    END,
    FRAME_ERROR,
    HEADER,
    HEARTBEAT,
    LEAST_HEADER,
    METHOD,
    OVERHEAD,
    SLACK,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    Fault,
    Piece,
    u16,
    u32,
    u64,
)

_CLIENT_METHODS: Final = {**requests.REQUESTS, **closing.FROM_CLIENT, **outside.ON_CHANNELS}
_BROKER_METHODS: Final = {**requests.ANSWERS, **closing.FROM_BROKER, **returns.FROM_BROKER}
"""By method id: what returns the bytes that go on in a frame's place, or None for the frame as it is."""

_CONFIRMS: Final = (BASIC_ACK, BASIC_NACK)
_OPEN: Final = State.OPEN.value
_REFUSING: Final = State.REFUSING.value
_ABANDONED: Final = State.ABANDONED.value
_LEAST_METHOD: Final = OVERHEAD + 4
_LEAST_PUBLISH: Final = OVERHEAD + 9
"""Bytes of a frame of basic.publish with empty names: method, ticket, two lengths, bits."""
_LEAST_HEADER: Final = OVERHEAD + LEAST_HEADER


_LARGE: Final = 1 << 12
"""Bytes from which a copy costs more than a view."""
_MOST_KEPT: Final = 4
"""Bytes that a view may keep in memory for each of its own."""


class BrokerFault(Exception):  # noqa: N818 - as frames.Fault, which is a client's
    """The broker sent what is not AMQP 0-9-1."""


def from_client(c: Connection, data: bytes) -> None:
    """Takes what the client sent; appends to `to_broker` (and, in answer, `to_client`).

    A frame that must wait, such as a publish whose exchange must be looked up first, goes into the backlog of its
    channel, and what follows on that channel as well; `resume` takes them again. Where `paused` is set the client must
    not be read, and `from_client(c, b"")` goes on once it is not any more.
    """
    if c.waiting or c.stalled:
        resume(c)
    if c.phase != Phase.RUNNING:
        take = handshake.from_client if c.phase is Phase.HANDSHAKE else closing.late_from_client
        take(c, data)
        return
    if c.client_rest:
        data, c.client_rest = c.client_rest + data, b""
    inside, behind = c.client_skip, b""
    if c.stalled or c.still_crowded():
        # But for the end of a frame that has begun: nothing that waits can go on before it.
        data, behind = data[:inside], data[inside:]
    if data:
        _from_client(c, data)
    if c.phase > Phase.RUNNING:
        closing.late_from_client(c, behind)
        return
    c.client_rest += behind
    if inside and (c.waiting or c.stalled):
        resume(c)


def resume(c: Connection) -> None:
    """Takes the backlogs of channels that need not wait any more, up to the next frame of each that must.

    While the client is in the midst of a frame nothing can go to the broker before its end, unless the beginning waits
    in a backlog: then that channel may go on.
    """
    inside = c.waiting.get(c.client_body) if c.client_skip and c.client_dropping else None
    if (c.client_skip and inside is None) or c.phase > Phase.RUNNING or c.still_crowded():
        return
    for number, channel in list(c.waiting.items()):
        backlog = channel.backlog
        if backlog is None or not may_go_on(c, channel, backlog) or (c.client_skip and channel is not inside):
            continue
        if c.client_skip:
            # It is taken from its beginning. What waited for its end need not any more.
            c.client_skip, c.client_dropping = 0, False
            c.to_broker += c.for_broker
            inside, c.for_broker = None, []
        del c.waiting[number]
        channel.backlog = None
        c.withheld -= backlog.size
        rest, c.client_rest, c.forced = c.client_rest, b"", backlog.forced
        _from_client(c, b"".join(backlog.pieces[: backlog.seen]))
        c.forced = None
        behind = b"".join(backlog.pieces[backlog.seen :])
        if behind and c.phase is Phase.RUNNING and c.crowded is None:
            _from_client(c, behind)
            behind = b""
        if c.phase > Phase.RUNNING:
            closing.late_from_client(c, behind + rest)
            return
        c.client_rest += behind + rest
        if c.crowded is not None:
            return
    if c.stalled and c.withheld <= MOST_WITHHELD:
        c.stalled = False
        if not c.client_skip:
            rest, c.client_rest = c.client_rest, b""
            _from_client(c, rest)


def may_go_on(c: Connection, channel: Channel, backlog: Backlog) -> bool:
    """Return whether what a channel's backlog has waited for is there."""
    if backlog.unread is UNANSWERED:
        return not (channel.declaring and channel.state == _OPEN)
    if backlog.unread is BEING_CLOSED:
        return c.channels.get(channel.id) is not channel
    return backlog.unread is None


def _withhold(c: Connection, channel: Channel, piece: bytes) -> bytes:
    """Puts a frame, or the beginning of a body frame, into its channel's backlog; nothing goes on in its place."""
    if c.held is not None:
        channel.backlog, c.held = Backlog(c.held), None
        c.waiting[channel.id] = channel
    backlog = channel.backlog
    assert backlog is not None
    backlog.add(piece)
    c.client_frames -= 1  # counts once it is taken
    c.withheld += len(piece)
    c.stalled = c.stalled or c.withheld > MOST_WITHHELD
    return b""


def _withhold_more(c: Connection, piece: bytes) -> None:
    """Puts the next part of a body frame where its beginning went; it is dropped with what was dropped before it."""
    channel = c.waiting.get(c.client_body)
    if channel is not None and channel.backlog is not None:
        channel.backlog.add(piece)
        c.withheld += len(piece)
        c.stalled = c.stalled or c.withheld > MOST_WITHHELD


def _from_client(c: Connection, data: bytes) -> None:  # noqa: C901 - one loop, for speed
    out, channels = c.to_broker, c.channels
    size, limit = len(data), c.frame_max + SLACK - OVERHEAD
    i = start = frames = 0
    try:
        if c.client_skip:
            i = min(c.client_skip, size)
            start = i if c.client_dropping else 0
            if i == c.client_skip and data[i - 1] != END:
                # Not its last byte: the broker must not take the frame for whole.
                i -= 1
                raise Fault(FRAME_ERROR, "a body frame does not end with the frame-end octet")
            if c.client_dropping and c.waiting:
                _withhold_more(c, data[:i])
            c.client_skip -= i
            c.client_dropping = c.client_dropping and c.client_skip > 0
            if c.for_broker and not c.client_skip:
                out.append(_run(data, start, i))
                out += c.for_broker
                start, c.for_broker = i, []
        while size - i >= OVERHEAD:
            head = read_i64_be(data, i)
            kind, number = head >> 56 & 0xFF, head >> 40 & 0xFFFF
            length: int = head >> 8 & 0xFFFFFFFF  # is counted off bodies of up to 2^64 bytes
            end = i + OVERHEAD + length
            if length > limit:
                raise Fault(FRAME_ERROR, f"a frame of {length + OVERHEAD} bytes, agreed on are {c.frame_max}")
            if end > size:
                if kind != BODY:
                    break
            elif data[end - 1] != END:
                raise Fault(FRAME_ERROR, f"a frame of type {kind} does not end with the frame-end octet")
            channel = channels.get(number)
            replaced: bytes | None = None
            if channel is None:
                waits = c.waiting.get(number) if c.waiting else None
                if waits is not None:
                    # The number is free by now, and its channel.open has yet to go on.
                    replaced = _withhold(c, waits, data[i:end])
                elif c.waiting and not number and _is_close(kind, data, i, end):
                    c.stalled = True
                    break
                else:
                    replaced = outside.from_client(c, kind, number, data, i, end)
            elif channel.backlog is not None:
                replaced = _withhold(c, channel, data[i:end])
            elif channel.state >= _REFUSING:
                replaced = closing.refused_frame(c, channel, kind, data, i, end)
            elif kind == BODY:
                if channel.expect != EXPECT_BODY or length > channel.left:
                    raise Fault(UNEXPECTED_FRAME, "a body frame longer than announced, or without a content header")
                channel.left -= length
                if not channel.left:
                    channel.expect = EXPECT_METHOD
            elif kind == METHOD:
                replaced = _method(c, channel, data, i, end)
            elif kind == HEADER:
                replaced = _header(c, channel, data, i, end)
            elif kind != HEARTBEAT:
                raise Fault(FRAME_ERROR, f"a frame of the unknown type {kind}")
            if c.held is not None and channel is not None:
                replaced = _withhold(c, channel, data[i:end])
            frames += 1
            if replaced is not None:
                if start < i:
                    out.append(_run(data, start, i))
                if replaced:
                    out.append(replaced)
                start = end
            if end > size:
                c.client_skip, c.client_dropping, c.client_body = end - size, replaced is not None, number
                i = size
                break
            i = end
            if c.crowded is not None or (not number and c.phase > Phase.RUNNING):
                break
    except Fault as fault:
        if start < i:
            out.append(_run(data, start, i))
        c.client_rest = data[i:]
        closing.fail(c, fault)
        return
    finally:
        c.client_frames += frames
    if start < i:
        out.append(_run(data, start, i) if start or i < size else data)
    if c.phase > Phase.RUNNING:
        closing.late_from_client(c, data[i:])
    elif i < size:
        c.client_rest = data[i:]


def _is_close(kind: int, data: bytes, i: int, end: int) -> bool:
    return kind == METHOD and end - i >= _LEAST_METHOD and u32(data, i + 7) == CONNECTION_CLOSE


def _run(data: bytes, start: int, end: int) -> Piece:
    """Bytes of a read that go on as they are: of much of it a view, which saves a copy and keeps all of the read."""
    size = end - start
    return memoryview(data)[start:end] if size >= _LARGE and size * _MOST_KEPT >= len(data) else data[start:end]


def _method(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """A method of the client's on an open channel: what goes on in its place, or None for as it is."""
    if channel.expect != EXPECT_METHOD:
        raise Fault(UNEXPECTED_FRAME, "a method where a content header or body was due")
    if end - i < _LEAST_METHOD:
        raise Fault(SYNTAX_ERROR, "a method frame too short for a method")
    method = u32(data, i + 7)
    if method != BASIC_PUBLISH:
        handler = _CLIENT_METHODS.get(method)
        return handler(c, channel, method, data, i, end) if handler is not None else None
    at = i + 14 + data[i + 13] if end - i >= _LEAST_PUBLISH else end
    stop = at + 1 + data[at] if at < end - 2 else 0
    if stop != end - 2:
        raise Fault(SYNTAX_ERROR, "a short string of basic.publish runs past its frame", method)
    if channel.state == _OPEN:
        exchange = data[i + 14 : at]
        route = c.routes.get(exchange) or c.route(exchange)
        if channel.declaring and exchange and (route is None or not route.fixed):
            c.held = UNANSWERED
            return None
        if route is None:
            return None
        if route.stamp:
            channel.withheld, channel.expect = True, EXPECT_HEADER
            channel.exchange, channel.key, channel.bits = exchange, data[at + 1 : stop], data[stop]
            channel.frame = data[i:end]
            return b""
        count(c, channel, route.counters)
    channel.expect = EXPECT_HEADER
    return None


def _header(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """A content header of the client's: with the method that waited for it, or None for as it is."""
    if channel.expect != EXPECT_HEADER:
        raise Fault(UNEXPECTED_FRAME, "a content header without its method")
    if end - i < _LEAST_HEADER:
        raise Fault(SYNTAX_ERROR, "a content header stops before its property flags", BASIC_PUBLISH)
    if u16(data, i + 7) != BASIC:
        raise Fault(UNEXPECTED_FRAME, "a content header of another class than its method", BASIC_PUBLISH)
    published: bytes | None = None
    if channel.withheld:
        # The broker drops what comes on a channel that it has closed: nothing is worth a look-up.
        is_open = channel.state == _OPEN
        published = publish(c, channel, data, i, end) if is_open else channel.frame + data[i:end]
        if published is None:
            return None
        channel.withheld = False
    elif channel.routed:
        published = content.disowned(data, i, end, channel.nonce)
    channel.left = u64(data, i + 11)
    channel.expect = EXPECT_BODY if channel.left else EXPECT_METHOD
    return published


def from_broker(c: Connection, data: bytes) -> None:
    """Takes what the broker sent; appends to `to_client` (and, of what came back, `to_broker`).

    A message that came back is parked where something must be read first: `read_again` goes on with it. Raises
    BrokerFault for what is not AMQP 0-9-1.
    """
    try:
        _from_broker(c, data)
        if c.parked:
            _settle(c)
    except (StructError, IndexError, Fault) as error:
        raise BrokerFault(f"a frame that cannot be read: {error}") from None


def read_again(c: Connection, exchange: bytes, what: republish.Read, *, in_time: bool = True) -> None:
    """Goes on with the parked messages of an exchange, now that something for them was read, or could not be.

    Where it was not `in_time`, none of them waits for another reading: the rings as they are decide.
    """
    if isinstance(what, Stale):
        c.reread = {stale: at for stale, at in c.reread.items() if c.now - at < republish.RECENT}
        c.reread[what] = c.now
    if in_time:
        c.parked.was_read(exchange, what)
    else:
        c.parked.give_up(exchange)
    _settle(c)


def _settle(c: Connection) -> None:
    returns.settle(c)
    if c.released:
        c.tell_client(_released(c))


def _from_broker(c: Connection, data: bytes) -> None:  # noqa: C901 - one loop, for speed
    if c.broker_phase >= Phase.ENDING:
        closing.late_from_broker(c, data)
        return
    if c.broker_rest:
        data, c.broker_rest = c.broker_rest + data, b""
    out, channels = c.to_client, c.channels
    size = len(data)
    i = start = 0
    if c.broker_skip:
        i = min(c.broker_skip, size)
        c.broker_skip -= i
        if c.broker_dropping:
            start = i
            c.broker_dropping = c.broker_skip > 0
        if c.for_client and not c.broker_skip:
            out += (data[start:i], c.for_client)
            start, c.for_client = i, b""
    while size - i >= OVERHEAD:
        head = read_i64_be(data, i)
        kind, number = head >> 56 & 0xFF, head >> 40 & 0xFFFF
        length: int = head >> 8 & 0xFFFFFFFF
        end = i + OVERHEAD + length
        if end > size and (kind != BODY or c.gathering):
            if length > MOST_FRAME_MAX:
                raise BrokerFault(f"a frame of type {kind} and {length} bytes")
            break
        channel = channels.get(number)
        replaced: bytes | None = None
        if channel is not None and channel.state >= _ABANDONED:
            replaced = closing.too_late(c, channel, kind, data, i, end)
        elif kind == METHOD:
            method = u32(data, i + 7)
            if channel is not None:
                if method in _CONFIRMS:
                    replaced = _answered(c, channel, method, data, i)
                elif (handler := _BROKER_METHODS.get(method)) is not None:
                    replaced = handler(c, channel, method, data, i, end)
            elif not number:
                replaced = handshake.from_broker(c, method, data, i, end)
            elif c.reroutes is not None and number == c.reroutes.number:
                replaced = returns.on_ours(c, kind, data, i, end)
        elif channel is not None and channel.returning is not None:
            take = returns.header if kind == HEADER else returns.body
            replaced = take(c, channel, data, i, end)
        elif c.reroutes is not None and number == c.reroutes.number:
            replaced = returns.on_ours(c, kind, data, i, end)
        if c.parked and channel is not None:
            returns.follow(channel, kind, replaced, data, i, end)
        c.broker_frames += 1
        if c.released:
            replaced = (data[i:end] if replaced is None else replaced) + _released(c)
        if replaced is not None:
            if start < i:
                out.append(_run(data, start, i))
            if replaced:
                out.append(replaced)
            start = end
        if end > size:
            c.broker_skip, c.broker_dropping = end - size, replaced is not None
            i = size
            break
        i = end
        if not number and c.broker_phase >= Phase.ENDING:
            break
    if start < i:
        out.append(_run(data, start, i) if start or i < size else data)
    if c.broker_phase >= Phase.ENDING:
        closing.late_from_broker(c, data[i:])
    elif i < size:
        c.broker_rest = data[i:]


def _answered(c: Connection, channel: Channel, method: int, data: bytes, i: int) -> bytes | None:
    """basic.ack or basic.nack: counts, and tells of publishes that came back without the client's knowledge."""
    confirms = channel.confirms
    number, multiple = u64(data, i + 11) + confirms.base, bool(data[i + 19] & 1)
    if channel.sampled and (number == channel.sampled or (multiple and number > channel.sampled)):
        c.confirmed(c.now - channel.sampled_at)
        channel.sampled = 0
    replaced: bytes | None = None
    if confirms.returned:
        told = confirms.answers(number, multiple) if method == BASIC_ACK else confirms.refused(number, multiple)
        if told != [(number, multiple, method == BASIC_ACK)]:
            replaced = republish.answers(channel, told)
    else:
        confirms.settle(number, multiple, method == BASIC_ACK)
    return replaced


def _released(c: Connection) -> bytes:
    """The answers that waited for what is decided now."""
    out = b""
    channels, c.released = c.released, []
    for channel in channels:
        frames, channel.late = channel.late, []
        for frame in frames:
            method = u32(frame, 7)
            replaced = _BROKER_METHODS[method](c, channel, method, frame, 0, len(frame))
            out += frame if replaced is None else replaced
    return out
