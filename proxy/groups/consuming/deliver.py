"""Deliveries on their way to a client that consumes from a group: from a hidden channel's frames to the client's.

The client sees its own consumer tag, the next delivery tag of its channel, the ring's exchange and the routing key of
the publish. Method and content header go out together, since a message that a ring has sent to a queue has its exchange
and key among its headers. Bodies pass as they come: only the first bytes of each frame are changed.
"""

# mypyc: compiled

from typing import Final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mmh3 import hash_bytes

from proxy.groups.attempts import Attempt
from proxy.groups.consuming import answers, letters, links, markers, retries
from proxy.groups.consuming.hidden import Consumer, Consuming, HiddenChannel
from proxy.groups.consuming.series import MOST_BYTES, Held
from proxy.groups.consuming.tags import MOST_UNACKED, Numbering
from proxy.groups.model import LinkEvent, LinkState
from proxy.session import closing
from proxy.session.state import ChannelState
from proxy.tracing.context import parent_in
from proxy.tracing.tracer import Tracer
from proxy.wire import content, table
from proxy.wire.frames import (
    BASIC_CONSUME,
    BASIC_DELIVER,
    BASIC_GET_OK,
    BODY,
    CONTENTS,
    END,
    FRAME,
    HEADER,
    LEAST_HEADER,
    LEAST_METHOD,
    METHOD,
    OVERHEAD,
    RESOURCE_ERROR,
    SYNTAX_ERROR,
    U64,
    UNEXPECTED_FRAME,
    Fault,
    shorted,
    u16,
    u32,
    u64,
)
from ring.hashed import HashedValue

_out: Final = BytesWriter()
"""The buffer in which a delivery is put together: one for all sessions, since nothing else runs meanwhile."""

MOST_PASSED: Final = 1024
"""The most messages that a member in series gets in one go, since other sessions wait meanwhile."""

_ANY_KEY: Final = bytes(16)
"""The key of each message as long as it is not known what the exchange hashes."""

_MOST_SHOWN: Final = 4096
"""The most exchanges whose names for a client are remembered with one consumer."""

_LANE: Final = b".lane."
"""The part of a lane's name between the name of its ring's exchange and its number."""

_FEW: Final = 4096
"""The most bytes of a body that is copied: a larger one passes as it comes."""

_MOST_IN_A_RUN: Final = 96
"""The most frames that `whole` takes: then the loop looks whether other sessions should have a turn."""

_LEAST_HEADER: Final = OVERHEAD + LEAST_HEADER
"""The number of bytes of a frame with a content header without properties."""

_TAKES: Final = LinkState.OPEN.value
_LEAVING: Final = LinkState.LEAVING.value
_OPEN: Final = ChannelState.OPEN.value


def whole(  # noqa: C901 - one loop, for speed
    g: Consuming, hidden: HiddenChannel, data: bytes, i: int, size: int
) -> tuple[int, int, bytes]:
    """Take the deliveries at `i`, the first one of `hidden`, in one pass, as far as each of them has come whole.

    Returns the offset behind them, their number of frames, and what the client gets in their place. Everything but an
    ordinary delivery of few bytes is left to `hidden_frame`: then the offset is the one where that begins.
    """
    sources = g.sources
    number = hidden.number
    frames = 0
    looked: Consumer | None = None
    behind: Consumer | None = None
    tried: dict[str, dict[str, Attempt]] = {}
    passes = not g.hands.suspects  # which become so by the timer alone
    out = _out
    out.truncate(0)
    while size - i > LEAST_METHOD and frames < _MOST_IN_A_RUN:
        if data[i] != METHOD or u32(data, i + 7) != BASIC_DELIVER:
            break
        if (found := u16(data, i + 1)) != number:
            source = sources.get(found)
            if not isinstance(source, HiddenChannel):
                break
            hidden, number = source, found
        # Where its method, its content header and its body end.
        header = i + OVERHEAD + u32(data, i + 3)
        if size - header < _LEAST_HEADER or data[header] != HEADER or u16(data, header + 1) != number:
            break
        stop = body_at = header + OVERHEAD + u32(data, header + 3)
        if length := u64(data, header + 11):
            if length > _FEW or size - body_at < OVERHEAD or data[body_at] != BODY:
                break
            if u16(data, body_at + 1) != number or u32(data, body_at + 3) != length:
                break
            stop = body_at + OVERHEAD + length
        names = i + 21 + data[i + 11]
        if stop > size or names + 2 > header:
            break
        if not length and (not data[names] or data.find(content.PROBE, header, body_at) >= 0):
            break  # it may be a marker, or a probe
        numbering, consumer, link = hidden.numbering, hidden.consumer, hidden.link
        if link is None or link.state != _TAKES or consumer.channel.state != _OPEN:
            break
        if hidden.left or numbering.busy is not None or len(numbering.unacked) + 1 >= MOST_UNACKED:
            break
        if consumer is not looked:
            _look(g, consumer)
            looked = consumer
            tried = consumer.member.attempts.shards
        window, held = hidden.window, None
        if window is not None:
            series = window.series
            if series.size + stop - i > MOST_BYTES or behind is not None:
                break
            key = _key_of(g, consumer, data, i, header, body_at)
            tag = u64(data, i + 12 + data[i + 11])
            held = Held(window, tag, key, data[i:stop], header - i, body_at - i, g.c.now)
            due = retries.known(hidden, held) if tried else 0.0
            if not series.arrive(held, due, passes=passes):
                if due:
                    g.retrying[consumer] = None
                elif series.is_ready:
                    behind = consumer
                frames += 3 if length else 2
                i = stop
                continue
        link.unacked += not consumer.member.no_ack
        _write(g, hidden, data, i, header, data, header, body_at, held)
        frames += 2
        if length:
            out.write(hidden.body_start)
            out.write(data[body_at + 3 : stop])
            frames += 1
        i = stop
    taken = out.getvalue() if frames else b""
    return i, frames, taken + pass_on(g, behind) if behind is not None else taken


def hidden_frame(g: Consuming, hidden: HiddenChannel, kind: int, data: bytes, i: int, end: int) -> bytes:
    """Take a frame of a hidden channel; return what the client gets in its place, empty for nothing.

    A body frame comes here only if it is dropped, or gathered for a member in series. Raises Fault for a content that
    is interrupted.
    """
    if kind == METHOD:
        return _method(g, hidden, data, i, end)
    if kind == HEADER:
        return _header(g, hidden, data, i, end)
    hidden.body(end - i - OVERHEAD)
    if hidden.header:
        hidden.bodies.append(data[i:end])
        if not hidden.left:
            g.c.republishing.gathering -= 1
            return _arrived(g, hidden)
    return b""


def _header(g: Consuming, hidden: HiddenChannel, data: bytes, i: int, end: int) -> bytes:
    """Take a content header; return what the client gets in place of it and of its method.

    Raises Fault for a content header without its method.
    """
    if hidden.left != -1:
        raise Fault(UNEXPECTED_FRAME, f"a content header without its method on channel {hidden.number}")
    hidden.left = u64(data, i + 11)
    if not hidden.left and hidden.frame:
        if markers.is_marker(hidden.frame, data, i, end):
            markers.take(g, hidden)
            return b""
        if content.is_probe(data, i + 7, end - 1):
            markers.take_probe(g, hidden)
            return b""
    if not hidden.passing:
        if not hidden.frame:
            return b""
        hidden.header = data[i:end]
        # Its body must come whole, too.
        g.c.republishing.gathering += hidden.left > 0
        return b"" if hidden.left else _arrived(g, hidden)
    _out.truncate(0)
    _look(g, hidden.consumer)
    _write(g, hidden, hidden.frame, 0, len(hidden.frame), data, i, end)
    hidden.frame = b""
    if hidden.numbering.full:
        _refuse(g, hidden.numbering)
    if not hidden.left:
        hidden.end()
    return _out.getvalue()


def _arrived(g: Consuming, hidden: HiddenChannel) -> bytes:
    """Take the message that `hidden` has gathered for a member in series; return the frames that the client gets now.

    They may be of other messages too, and are empty if none may go to the client. Where the member holds more than
    MOST_BYTES, the shard's link is given up for a pause.
    """
    consumer, window, link = hidden.consumer, hidden.window, hidden.link
    method, header = hidden.frame, hidden.header
    frames, header_at, body_at = b"".join((method, header, *hidden.bodies)), len(method), len(method) + len(header)
    hidden.frame, hidden.header, hidden.bodies = b"", b"", []
    if window is None or link is None or link.state != _TAKES or consumer.channel.state != _OPEN:
        return b""  # the link has come to its end meanwhile: the broker delivers the message again
    key = _key_of(g, consumer, frames, 0, header_at, body_at)
    held = Held(window, u64(method, 12 + method[11]), key, frames, header_at, body_at, g.c.now)
    due = retries.known(hidden, held) if consumer.member.attempts.shards else 0.0
    window.series.arrive(held, due)
    if due:
        g.retrying[consumer] = None
    if window.series.size > MOST_BYTES and len(window.held) > 1:
        # The broker keeps the shard's messages until the link is opened again, after a pause.
        why = f"the messages that wait in series take more than {MOST_BYTES} bytes: choose a smaller groups_window"
        links.refused(g, link, RESOURCE_ERROR, why)
        g.due.append(links.enter(g, hidden, link, LinkEvent.GIVE_UP))
    return pass_on(g, consumer)


def _key_of(g: Consuming, consumer: Consumer, data: bytes, i: int, header: int, end: int) -> bytes:
    """Return a hash of the value that the exchange hashed of a message; empty if the message lacks it.

    The message's basic.deliver is at `i`, its content header at `header`, and `end` is where that ends.

    The sidecar does not know what an exchange hashes as long as it has no ring for it, as in the mode pass. Then all
    messages of a shard count as one key's. Once known, it holds for as long as the member lives. Raises Fault if the
    names in the basic.deliver run past it.
    """
    names = i + 21 + data[i + 11]
    at = names + 1 + data[names] if names < header else header
    if at >= header - 1 or at + 1 + data[at] >= header:
        raise Fault(SYNTAX_ERROR, "the names of basic.deliver run past its frame", BASIC_DELIVER)
    if consumer.hashed is None:
        entry = g.c.table.entry_of(consumer.member.exchange) if g.c.table is not None else None
        if entry is None or entry.known is None:
            return _ANY_KEY
        consumer.hashed = entry.known.hashed
    value = value_of(consumer.hashed, data, i, header, end)
    return hash_bytes(value) if value is not None else b""


def value_of(hashed: HashedValue, data: bytes, i: int, header: int, end: int) -> bytes | None:
    """Return the value that an exchange hashes of a message; None if the message lacks it.

    The message's basic.deliver is at `i`, its content header at `header`, and `end` is where that ends.
    """
    if hashed.source == "routing_key":
        return retries.routing_key(data, i, header, end)
    try:
        return content.hashed_value(hashed, hashed.name.encode(), data, header + 7, end - 1)
    except Fault:
        return None


def pass_on(g: Consuming, consumer: Consumer) -> bytes:
    """Return the frames of what the client of a member in series has room for, but no more than MOST_PASSED messages.

    Empty if there is nothing, or if the member is leaving. Call it only where no content is half sent to the client, or
    send them by `links.tell`.
    """
    series, numbering = consumer.series, consumer.numbering
    if series is None or consumer.leaving or consumer.channel.state != _OPEN:
        return b""
    _look(g, consumer)
    count, out = 0, _out
    out.truncate(0)
    while count < MOST_PASSED and not numbering.full and (held := series.pass_on()) is not None:
        source = g.sources.get(held.window.number)
        assert isinstance(source, HiddenChannel)
        assert source.link is not None
        source.link.unacked += 1
        frames, at = held.frames, held.body_at
        if held.again:
            method, header = _again(g, held)
            _write(g, source, method, 0, len(method), header, 0, len(header), held)
        else:
            _write(g, source, frames, 0, held.header_at, frames, held.header_at, at, held)
        while at < len(frames):
            end = at + OVERHEAD + u32(frames, at + 3)
            out.write(source.body_start)
            out.write(frames[at + 3 : end])
            at = end
        count += 1
    if series.is_ready and not numbering.full:
        g.retrying[consumer] = None  # the timer goes on with what is left
    return out.getvalue() if count else b""


def _again(g: Consuming, held: Held) -> tuple[bytes, bytes]:
    """Return method and header of a message that the client has had before: redelivered, with the number of the try.

    The number is left out where the header cannot be read, or would not fit into a frame.
    """
    method, header = held.method, held.header
    at = 20 + method[11]
    method = method[:at] + b"\1" + method[at + 1 :]
    try:
        attempt = table.integer_field(letters.ATTEMPT, held.tries + 1)
        payload, _ = content.stamped(header, 7, len(header) - 1, attempt, (letters.ATTEMPT,))
    except Fault:
        return method, header
    if len(payload) > g.c.frame_max - OVERHEAD:
        return method, header
    return method, FRAME.pack(HEADER, u16(header, 1), len(payload)) + payload + header[-1:]


def _method(g: Consuming, hidden: HiddenChannel, data: bytes, i: int, end: int) -> bytes:
    """Take a method; return what the client gets in its place. basic.deliver is kept until its content header comes.

    Raises Fault for a method amidst a content.
    """
    if hidden.left:
        raise Fault(UNEXPECTED_FRAME, f"a method amidst a content of channel {hidden.number}")
    method = u32(data, i + 7)
    if method != BASIC_DELIVER:
        return answers.take(g, hidden, method, data, i, end)
    hidden.left = -1
    link, consumer = hidden.link, hidden.consumer
    if link is None:
        return b""
    no_ack = consumer.member.no_ack
    if hidden.window is not None:
        # A message in series is gathered whole: the client holds nothing of it yet.
        hidden.frame = data[i:end] if link.state == _TAKES and consumer.channel.state == _OPEN else b""
        return b""
    takes = link.state == _TAKES or (link.state == _LEAVING and no_ack)
    hidden.passing = takes and consumer.channel.state == _OPEN
    if hidden.passing:
        # From here on the client holds it: a link that ends now would have the next member get it as well.
        link.unacked += not no_ack
        hidden.frame = data[i:end]
        hidden.numbering.busy = hidden
    return b""


def _write(
    g: Consuming,
    hidden: HiddenChannel,
    frame: bytes,
    start: int,
    stop: int,
    data: bytes,
    i: int,
    end: int,
    held: Held | None = None,
) -> None:
    """Add to the buffer the basic.deliver and content header that the client gets, and count the delivery.

    The broker's basic.deliver is in `frame` from `start` to `stop`, its content header in `data` from `i` to `end`.
    `held` is the message if its link is in series.
    Raises Fault if the names in the basic.deliver run past it.
    """
    numbering, consumer, link = hidden.numbering, hidden.consumer, hidden.link
    assert link is not None
    at = start + 12 + frame[start + 11]
    length = frame[at + 9]
    names = at + 10 + length
    if names >= stop - 1:
        raise Fault(SYNTAX_ERROR, "the exchange of basic.deliver runs past its frame", BASIC_DELIVER)
    if length:
        exchange = frame[at + 10 : names]
        shown = consumer.shown.get(exchange)
        both = (_shown(g, consumer, exchange) if shown is None else shown) + frame[names : stop - 1]
    else:
        exchange, key = content.origin_in(data, i + 7, end - 1)
        both = shorted(exchange) + shorted(key) if exchange else frame[at + 9 : stop - 1]
    number = numbering.add_settled() if consumer.member.no_ack else numbering.add(hidden, u64(frame, at), g.c.now, held)
    link.delivered += 1
    link.delivered_at = g.c.now
    if g.tracer is not None:
        _trace(g.tracer, hidden, link.shard, number, both, data, i, end)
    if frame[at + 8]:
        times = (held.tries if held is not None else 0) or content.times_redelivered(data, i + 7, end - 1)
        # A classic queue does not count. Most messages differ in their headers, such as the ring id, or in their keys.
        message = 0 if times else hash(both) ^ hash(data[i:end])
        consumer.member.redelivered_of(link.shard).note(times, message, g.c.now)
    channel, head, out = consumer.channel, hidden.head, _out
    out.write(channel.method_start)
    write_i32_be(out, len(head) + 9 + len(both))
    out.write(head)
    write_i64_be(out, number)
    out.append(frame[at + 8])
    out.write(both)
    out.append(END)
    out.write(channel.header_start)
    out.write(data[i + 3 : end])


def _trace(
    tracer: Tracer, hidden: HiddenChannel, shard: str, number: int, both: bytes, data: bytes, i: int, end: int
) -> None:
    """Trace a delivery if it is of the sample: its span ends with the client's answer, or at once without acks.

    `both` has the exchange and the routing key that the client sees, each as a short string.
    """
    start, stop = i + 7, end - 1
    try:
        _, first, last = content.parts(data, start, stop)
    except Fault:
        return  # a header that cannot be read is the client's to refuse
    parent = parent_in(data, first, last)
    if not tracer.takes(parent):
        return
    member, split = hidden.consumer.member, 1 + both[0]
    exchange, key = both[1:split].decode(errors="replace"), both[split + 1 :]
    span = tracer.delivery(member.vhost, member.group, exchange, key, shard, number, data, start, stop, parent)
    if member.no_ack:
        span.end("")
    else:
        hidden.numbering.spans[number] = span


def _look(g: Consuming, consumer: Consumer) -> None:
    """Learn the lanes of the ring as it is now, in whose place the client sees the ring's exchange."""
    ring = consumer.member.exchange
    entry = g.c.table.entry_of(ring) if g.c.table is not None else None
    if entry is not consumer.shown_of:
        consumer.shown_of = entry
        for lane in entry.lanes.values() if entry is not None else ():
            consumer.shown[lane.encode()] = shorted(ring.encode())


def _shown(g: Consuming, consumer: Consumer, exchange: bytes) -> bytes:
    """Return, and remember, the short string that a client sees for an exchange that is no lane of the ring as it is.

    Messages may wait in a shard for longer than their lane exists. An exchange that is named as `ring-proxy topology`
    names the lanes of the ring therefore counts as one, though no reading shows it.
    """
    if len(consumer.shown) >= _MOST_SHOWN:
        consumer.shown.clear()
        consumer.shown_of = None
        _look(g, consumer)
    ring = consumer.member.exchange.encode()
    is_lane = exchange.startswith(ring + _LANE)
    shown = consumer.shown[exchange] = shorted(ring if is_lane else exchange)
    return shown


def own_frame(
    g: Consuming, numbering: Numbering, kind: int, replaced: bytes | None, data: bytes, i: int, end: int
) -> bytes | None:
    """Note what a frame of the broker on the client's own channel means for deliveries; return what the client gets.

    `replaced` is what the client was to get in place of the frame so far; None stands for the frame as it is, also in
    the result. A delivery gets its number of the channel as delivery tag.
    """
    own = numbering.own
    if kind == METHOD:
        method = u32(data, i + 7)
        if replaced is not None or method not in CONTENTS:
            return replaced
        own.left, numbering.busy = -1, own
        if method == BASIC_DELIVER:
            at = i + 12 + data[i + 11]
            tag = data[i + 12 : at]
            settled = numbering.tags.get(tag, False) or tag in numbering.cancelled
            return _numbered(g, numbering, at, settled, data, i, end)
        if method == BASIC_GET_OK:
            settled = numbering.gets.popleft() if numbering.gets else False
            return _numbered(g, numbering, i + 11, settled, data, i, end)
        return None
    if kind == HEADER:
        own.left = u64(data, i + 11)
        numbering.busy = own if own.left else None
    elif kind == BODY and own.left > 0:
        own.body(end - i - OVERHEAD)
    return replaced


def _numbered(
    g: Consuming, numbering: Numbering, at: int, settled: bool, data: bytes, i: int, end: int
) -> bytes | None:
    """Return the frame of a delivery on the client's own channel with its number as delivery tag.

    The result is None if the number is the broker's delivery tag, so that the frame stays as it is.
    """
    tag = u64(data, at)
    if not numbering.started:
        numbering.pass_delivery(tag, settled=settled)
        return None
    number = numbering.add_settled() if settled else numbering.add(numbering.own, tag, g.c.now)
    if numbering.full:
        _refuse(g, numbering)
    return None if number == tag else data[i:at] + U64.pack(number) + data[at + 8 : end]


def _refuse(g: Consuming, numbering: Numbering) -> None:
    """Close a channel whose client holds too many deliveries: each of them takes memory here."""
    channel = g.c.channels.get(numbering.number)
    if channel is not None and channel.merge is numbering:
        text = f"a channel with consumers of groups holds {MOST_UNACKED} deliveries without an ack"
        closing.refuse_channel(g.c, channel, RESOURCE_ERROR, text, BASIC_CONSUME)
