"""The loop over a client's bytes, in any chunking, that makes the broker's bytes of them, without I/O.

Frames that nothing here changes stay in the run of bytes that they came in, and bodies stream through. A basic.publish
is looked up in the session's routes; `methods.FROM_CLIENT` says which other methods are looked at.

Theory of operation
-------------------

`_take` walks over the frames of `data`. `i` is the beginning of the present frame, and `data[start:i]` is the run: the
frames that go on unchanged and are not in `out` yet. The first rule of this table that fits a frame decides on it.

    its channel is not open                    channel 0, a channel.open, or an error: `channel_zero`
    its channel has a backlog                  the frame joins the backlog
    its channel is refused or ended            `closing.refused_frame`
    a body                                     counted off what its content header has announced
    a method                                   `_method`; the interceptor is asked before `methods.FROM_CLIENT`
    a content header                           `_header`; it releases the basic.publish that waited for it
    a heartbeat                                goes on
    anything else                              an error

A rule answers with `replaced`: None lets the frame join the run, b"" drops it, and other bytes go out in its place. A
rule that finds that the frame must wait sets `waiting.held`, and `_take` withholds the frame. Four invariants hold:

1. Each channel keeps its order. A channel with a frame that waits has a backlog, and all its later frames join it. The
   other channels go on, until the backlogs are too large and the whole client is `stalled`.
2. A frame of this proxy never stands inside a frame of the client's. While the end of a streamed body frame is to come
   (`way.body_left` bytes), such frames wait in `way.queued`.
3. The broker gets the last octet of a frame only if it is the frame-end octet, and takes no broken frame for a whole.
4. A pass may end amidst `data`: at the end of the session's turn, at a limit, at a fault. All that is left stands in
   `way.rest`, and none of it has had an effect.
"""

# mypyc: compiled

from math import inf
from time import monotonic
from typing import Final

from librt.strings import read_i64_be
from mypy_extensions import i64

from proxy.session import channel_zero, closing, methods
from proxy.session.backlog import MOST_WITHHELD, Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.publishing.publish import count, must_wait, publish
from proxy.session.reads import run
from proxy.session.state import EXPECT_BODY, EXPECT_HEADER, EXPECT_METHOD, ChannelState, Phase
from proxy.session.waiting import may_go_on
from proxy.wire import content
from proxy.wire.frames import (
    BASIC,
    BASIC_PUBLISH,
    BODY,
    CONNECTION_CLOSE,
    END,
    FRAME_ERROR,
    HEADER,
    HEARTBEAT,
    LEAST_HEADER,
    LEAST_METHOD,
    METHOD,
    OVERHEAD,
    SLACK,
    SYNTAX_ERROR,
    UNEXPECTED_FRAME,
    Fault,
    u16,
    u32,
    u64,
)

_METHODS: Final = methods.FROM_CLIENT
_OPEN: Final = ChannelState.OPEN.value
_REFUSING: Final = ChannelState.REFUSING.value
_LEAST_PUBLISH: Final = OVERHEAD + 9
"""Bytes of a frame of basic.publish with empty names: method, ticket, two lengths, bits."""
_LEAST_HEADER: Final = OVERHEAD + LEAST_HEADER
_LOOK_EVERY: Final = 32
"""The frames between two looks at the clock, a power of two."""


def from_client(c: Connection, data: bytes) -> None:
    """Take what the client sent; append to `to_broker.out` and, in answer, to `to_client.out`.

    A frame that must wait, such as a publish whose exchange must be looked up first, goes into the backlog of its
    channel, and what follows on that channel as well; `resume` takes them again. Where `paused` is set the client must
    not be read, and `from_client(c, b"")` goes on once it is not any more. The same call goes on where the session's
    turn has ended amidst the data, and `to_broker.more` is set.
    """
    way, waiting = c.to_broker, c.waiting
    way.more = False
    if waiting.channels or waiting.stalled:
        resume(c)
    if not c.running:
        take = channel_zero.in_handshake if c.phase < Phase.RUNNING else closing.late_from_client
        take(c, data)
        return
    if way.rest:
        data, way.rest = way.rest + data, b""
    inside, behind = way.body_left, b""
    if waiting.stalled or c.recheck_crowded():
        # The end of a frame that has begun is taken all the same: nothing that waits can go on before it.
        data, behind = data[:inside], data[inside:]
    if data:
        _take(c, data, c.turn_ends)
    if c.phase > Phase.DRAINING:
        closing.late_from_client(c, behind)
        return
    way.rest += behind
    if inside and (waiting.channels or waiting.stalled):
        resume(c)


def resume(c: Connection) -> None:
    """Take the frames of each backlog whose first frame need not wait any more, up to the next frame that must wait.

    While only a part of the client's body frame has come, nothing can go to the broker before the frame's end. The
    exception is a frame whose beginning waits in a backlog: the backlog of its channel may be taken.
    """
    way, waiting = c.to_broker, c.waiting
    inside = waiting.channels.get(way.body_of) if way.body_left and way.dropping else None
    if (way.body_left and inside is None) or way.more or c.phase > Phase.DRAINING or c.recheck_crowded():
        return
    for channel in list(waiting.channels.values()):
        backlog = channel.backlog
        if (
            backlog is None
            or not may_go_on(channel, backlog, c.interceptor)
            or (way.body_left and channel is not inside)
        ):
            continue
        if way.body_left:
            # The body frame is taken from its beginning, so the proxy's own frames need not wait for its end.
            way.body_left, way.dropping = 0, False
            way.out += way.queued
            inside, way.queued = None, []
        waiting.remove(channel)
        rest, way.rest, waiting.forced = way.rest, b"", backlog.forced
        _take(c, b"".join(backlog.pieces[: backlog.seen]), inf)
        waiting.forced = None
        behind = b"".join(backlog.pieces[backlog.seen :])
        if behind and c.running and c.crowded is None and not way.more:
            _take(c, behind, inf)
            behind = b""
        if not c.running:
            closing.late_from_client(c, behind + rest)
            return
        way.rest += behind + rest
        if c.crowded is not None or way.more:
            return
    if waiting.stalled and waiting.size <= MOST_WITHHELD:
        waiting.stalled = False
        if not way.body_left:
            rest, way.rest = way.rest, b""
            _take(c, rest, inf)


def _withhold(c: Connection, channel: Channel, piece: bytes) -> bytes:
    """Put a frame into its channel's backlog, and return b"": nothing goes on now. It counts once it is taken again."""
    c.waiting.withhold(channel, piece)
    c.to_broker.frames -= 1
    return b""


def _take(c: Connection, data: bytes, until: float) -> None:  # noqa: C901 - one loop, for speed
    """Take frames, but leave those for the next turn that are not taken by the time `until`, monotonic.

    Bytes that are not AMQP 0-9-1, or a frame that may not come there, end the session.
    """
    way, waiting, channels = c.to_broker, c.waiting, c.channels
    due = way.due
    out = way.out
    size, limit = len(data), c.frame_max + SLACK - OVERHEAD
    i = start = 0
    frames: i64 = 0
    try:
        if way.body_left:
            i = min(way.body_left, size)
            start = i if way.dropping else 0
            if i == way.body_left and data[i - 1] != END:
                # The last byte is not sent on: the broker must not take the frame for whole.
                i -= 1
                raise Fault(FRAME_ERROR, "a body frame does not end with the frame-end octet")
            if way.dropping and waiting.channels:
                waiting.withhold_more(way.body_of, data[:i])
            way.body_left -= i
            way.dropping = way.dropping and way.body_left > 0
            if way.queued and not way.body_left:
                out.append(run(data, start, i))
                out += way.queued
                start, way.queued = i, []
        while size - i >= OVERHEAD:
            head = read_i64_be(data, i)
            kind, number = head >> 56 & 0xFF, head >> 40 & 0xFFFF
            length: int = head >> 8 & 0xFFFFFFFF  # is counted off bodies of up to 2^64 bytes
            end = i + OVERHEAD + length
            if length > limit:
                raise Fault(
                    FRAME_ERROR,
                    f"a frame of {length + OVERHEAD} bytes, more than the agreed frame_max of {c.frame_max}",
                )
            if end > size:
                # Bodies stream; methods and headers are looked at whole.
                if kind != BODY:
                    break
            elif data[end - 1] != END:
                raise Fault(FRAME_ERROR, f"a frame of type {kind} does not end with the frame-end octet")
            channel = channels.get(number)
            replaced: bytes | None = None
            if channel is None:
                waits = waiting.channels.get(number) if waiting.channels else None
                if waits is not None:
                    # The number is free by now, and its channel.open has yet to go on.
                    replaced = _withhold(c, waits, data[i:end])
                elif waiting.channels and not number and _is_close(kind, data, i, end):
                    waiting.stalled = True
                    break
                else:
                    replaced = channel_zero.from_client(c, kind, number, data, i, end)
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
            if waiting.held is not None and channel is not None:
                replaced = _withhold(c, channel, data[i:end])
            if due:
                replaced = (data[i:end] if replaced is None else replaced) + way.take_due()
            frames += 1
            if replaced is not None:
                if start < i:
                    out.append(run(data, start, i))
                if replaced:
                    out.append(replaced)
                start = end
            if end > size:
                way.body_left, way.dropping, way.body_of = end - size, replaced is not None, number
                i = size
                break
            i = end
            if c.crowded is not None or way.more or (not number and c.phase > Phase.DRAINING):
                # The frames that follow stay in `rest`, or are no session's any more.
                break
            if not frames & (_LOOK_EVERY - 1) and monotonic() > until:
                way.more = True
                break
    except Fault as fault:
        if start < i:
            out.append(run(data, start, i))
        way.rest = data[i:]
        _gather(c)
        closing.fail(c, fault)
        return
    finally:
        way.frames += frames
    if start < i:
        out.append(run(data, start, i) if start or i < size else data)
    if c.running:
        _gather(c)
    again, c.again = c.again, b""
    if again:
        way.frames -= 1  # it counts once it has taken all of its effect
    if c.phase > Phase.DRAINING:
        closing.late_from_client(c, data[i:])
    elif again or i < size:
        way.rest = again + data[i:]


def _gather(c: Connection) -> None:
    """Have the broker get what the interceptor has gathered from the frames that were taken."""
    if c.interceptor is not None and (frames := c.interceptor.gathered()):
        c.to_broker.insert(frames)


def _is_close(kind: int, data: bytes, i: int, end: int) -> bool:
    return kind == METHOD and end - i >= LEAST_METHOD and u32(data, i + 7) == CONNECTION_CLOSE


def _method(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """Take a client's method on an open channel; return what goes on in its place, or None for the frame as it is.

    Raises Fault for a method that comes amidst a content, or is cut.
    """
    if channel.expect != EXPECT_METHOD:
        # AMQP section 4.2.6: a content is not interrupted on its channel, which is a 505 to RabbitMQ.
        raise Fault(UNEXPECTED_FRAME, "a method where a content header or body must come")
    if end - i < LEAST_METHOD:
        raise Fault(SYNTAX_ERROR, "a method frame too short for a method")
    method = u32(data, i + 7)
    if method != BASIC_PUBLISH:
        return _other_method(c, channel, method, data, i, end)
    at = i + 14 + data[i + 13] if end - i >= _LEAST_PUBLISH else end
    stop = at + 1 + data[at] if at < end - 2 else 0
    if stop != end - 2:
        raise Fault(SYNTAX_ERROR, "a short string of basic.publish runs past its frame", method)
    # The broker drops a publish on a channel that one side has closed: nothing is worth a look-up.
    if channel.state == _OPEN:
        exchange = data[i + 14 : at]
        route = c.routes.get(exchange) or c.route(exchange)
        # No declaration changes where the default exchange delivers, so a publish to it need not wait for one.
        if channel.declaring and exchange and (route is None or not route.fixed):
            c.waiting.held = Wait.UNANSWERED
            return None
        if route is None:
            return None
        if route.stamp:
            # The ring may hash a header, and the stamps stand among the headers: the method waits for them.
            channel.withheld, channel.expect = True, EXPECT_HEADER
            channel.exchange, channel.key, channel.bits = exchange, data[at + 1 : stop], data[stop]
            channel.frame = data[i:end]
            return b""
        if route.digest is not channel.order.digest and must_wait(c, channel, route, exchange):
            return None
        # If an exchange behind a ring does not exist, the 404 may be the answer to the client's own publish to it.
        channel.has_other_state |= route.is_behind
        count(c, channel, route.counters)
    channel.expect = EXPECT_HEADER
    return None


def _other_method(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take any method but basic.publish: the interceptor is asked first, then its row in `methods.FROM_CLIENT`.

    Returns as `methods` says.
    """
    handler = _METHODS.get(method)
    if handler is None:
        channel.has_other_state = True
    if c.interceptor is not None:
        replaced = c.interceptor.from_client(channel, method, data, i, end)
        if replaced is not None or c.waiting.held is not None:
            return replaced
    return handler(c, channel, method, data, i, end) if handler is not None else None


def _header(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """Take a client's content header; return it with the method that waited for it, or None for the frame as it is.

    Returns None, too, where the publish waits. Raises Fault for a header without its method, or that is cut.
    """
    if channel.expect != EXPECT_HEADER:
        raise Fault(UNEXPECTED_FRAME, "a content header without its method")
    if end - i < _LEAST_HEADER:
        raise Fault(SYNTAX_ERROR, "a content header stops before its property flags", BASIC_PUBLISH)
    if u16(data, i + 7) != BASIC:
        raise Fault(UNEXPECTED_FRAME, "a content header of another class than its method", BASIC_PUBLISH)
    published: bytes | None = None
    if channel.withheld:
        is_open = channel.state == _OPEN
        published = publish(c, channel, data, i, end) if is_open else channel.frame + data[i:end]
        if published is None:
            return None
        channel.withheld = False
    elif channel.routed:
        # A client may forward what it got with stamps: their id must not look like one of this channel's.
        published = content.disowned(data, i, end, channel.nonce)
    channel.left = u64(data, i + 11)
    channel.expect = EXPECT_BODY if channel.left else EXPECT_METHOD
    return published
