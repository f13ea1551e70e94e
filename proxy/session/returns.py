"""Messages that come back: they are published again where that helps, else each reaches its client as its own.

A basic.return comes before the ack of its message on the same channel (5,413 of 5,413, measured), so what it says can
decide what becomes of the ack. For a message that no queue takes in the end, a client that asked for mandatory gets its
return. One that did not gets a nack, but for what an exchange of the ring did not deliver: natively, that is acked.
"""

from proxy.outcome import Outcome
from proxy.routing import routes
from proxy.routing.routes import Unread
from proxy.session import closing, republish
from proxy.session.channel import Channel, Return, RingId, State, ring_id_of
from proxy.session.confirms import Fate, Kept
from proxy.session.parked import Parked
from proxy.session.republish import Rerouted
from proxy.session.state import Connection, Phase, Refused, Stale
from proxy.wire import content
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_GET_OK,
    BASIC_NACK,
    BASIC_RETURN,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    FRAME,
    HEADER,
    INTERNAL_ERROR,
    METHOD,
    OVERHEAD,
    U16,
    U32,
    U64,
    method_frame,
    short_string,
    shorted,
)
from ring.destination import Destination

_CONTENTS = frozenset({BASIC_DELIVER, BASIC_GET_OK, BASIC_RETURN})
"""Methods of the broker's that a content follows."""


def _begin(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Holds a basic.return back until its content header tells whose it is."""
    if not channel.routed:
        return None
    channel.returning = Return(data[i:end])
    return b""


FROM_BROKER = {BASIC_RETURN: _begin}


def header(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """The content header of a return: what goes on to the client, both frames.

    Where something must be read first, the message is parked, and `settle` places it after that.
    """
    held = channel.returning
    if held is None or not held.frame:
        return None
    frame, start, stop = held.frame, i + 7, end - 1
    sent_to, sent_key = _sent(frame)
    stamps = content.stamps_in(data, start, stop)
    mark = routes.mark(sent_to, sent_key)
    unstamped = _unstamped(channel, sent_to, sent_key) if stamps is None else None
    known: RingId | None
    kept: Kept | None
    if unstamped is not None:
        known, kept = unstamped
        stamps = content.Stamps(kept.exchange, kept.routing_key, kept.ring_id)
    else:
        known = channel.read_id(stamps.ring_id ^ mark) if stamps else None
        kept = channel.confirms.kept.get(known.number) if known else None
    if stamps is None or known is None:
        channel.returning = None
        return frame + data[i:end]
    came = Rerouted(channel, known, stamps, kept.put_back if kept else b"", c.now)
    came.sent_to = _destination(sent_to, sent_key)
    # An unstamped one has no room for the stamps by which it would be known if it came back again.
    to = republish.placed(c, came, (), data, start, stop) if unstamped is None else None
    channel.returning = None
    channel.confirms.kept.pop(known.number, None)
    left = U64.unpack_from(data, i + 11)[0]
    if isinstance(to, Stale | Unread) or (unstamped is None and came.exchange in c.parked):
        unread = to if isinstance(to, Stale | Unread) else None
        parked = _park(c, Parked(came, frame, data[i:end], left, unread, ours=False))
        channel.returning = Return(b"", left, parked=parked) if left else None
        return b""
    if to is not None and republish.publish(c, came, to, data, start, stop):
        if channel.confirms.answered and known.number > channel.confirms.low:
            channel.confirms.came_back(known.number, None)
        if left:
            channel.returning = Return(b"", left, came)
            c.gathering += 1
        return b""
    _for_good(c, came, stamped=unstamped is None)
    # An unstamped one may be another's, who asked for mandatory: a return too many harms nobody, one too few does.
    if known.asked or unstamped is not None:
        return _returned(c, came, frame, data, i, end)
    channel.returning = Return(b"", left) if left else None
    return b""


def _park(c: Connection, parked: Parked) -> Parked:
    """Keeps a message until what decides of it has been read. Its client hears nothing of it before, and no ack."""
    came = parked.came
    channel, number = came.channel, came.known.number
    confirms = channel.confirms
    if confirms.answered and number > confirms.low and number not in confirms.returned:
        confirms.came_back(number, None)
    channel.away += 1
    channel.coming = 0
    c.gathering += parked.left > 0
    c.parked.put(parked)
    return parked


def follow(channel: Channel, kind: int, replaced: bytes | None, data: bytes, i: int, end: int) -> None:
    """Notes how much of a content its client has got, from the frame that was taken last and what went on for it."""
    if replaced == b"":
        return
    if kind == METHOD:
        if replaced is None and U32.unpack_from(data, i + 7)[0] in _CONTENTS:
            channel.coming = -1
    elif kind == HEADER:
        channel.coming = U64.unpack_from(data, i + 11)[0]
    elif kind == BODY and channel.coming > 0:
        channel.coming -= end - i - OVERHEAD


def settle(c: Connection) -> None:
    """Places the parked messages for which all is read, in their order: they go out again, or home to their clients."""
    for exchange in c.parked.exchanges:
        while (parked := c.parked.first(exchange)) is not None and parked.unread is None:
            came = parked.came
            if came.channel.coming or c.phase > Phase.LEAVING:
                break
            stop = len(parked.header) - 1
            to = republish.placed(c, came, parked.tried, parked.header, 7, stop)
            if isinstance(to, Stale | Unread):
                if not parked.given_up:
                    parked.unread = to
                    break
                to = None
            c.parked.remove(parked)
            came.channel.away -= 1
            came.since = c.now  # what its reading took is not the broker's time
            if to is not None and republish.publish(c, came, to, parked.header, 7, stop):
                _sent_again(c, parked)
            else:
                _sent_home(c, parked)


def _sent_again(c: Connection, parked: Parked) -> None:
    """The message goes out again: its body as far as it has come, and the rest as it comes."""
    came, bodies = parked.came, parked.bodies
    for number, frame in enumerate(bodies, 1):
        republish.more(c, came, frame, 0, len(frame), last=not parked.left and number == len(bodies))
    if parked.left and parked.ours:
        assert c.reroutes is not None
        c.reroutes.back, c.reroutes.parked = came, None
    elif parked.left:
        came.channel.returning = Return(b"", parked.left, came)


def _sent_home(c: Connection, parked: Parked) -> None:
    """No queue takes the message: its client gets it where he asked for mandatory, and an answer behind it."""
    came, told = parked.came, b""
    stale = came.stale(c)
    if not republish.is_recent(c, stale):
        c.events.append(stale)
        c.reread[stale] = c.now
    if came.known.asked and republish.hears(c, came.channel):
        told = _returned(c, came, parked.frame, parked.header, 0, len(parked.header)) + b"".join(
            FRAME.pack(BODY, came.channel.id, len(frame) - OVERHEAD) + frame[7:] for frame in parked.bodies
        )
    if not parked.left:
        c.tell_client(told + republish.resolved(c, came, _fate(came)))
    elif parked.ours:
        assert c.reroutes is not None
        c.reroutes.home, c.reroutes.ends, c.reroutes.parked = [told] if told else [], came, None
    else:
        c.tell_client(told)
        came.channel.returning = Return(b"", parked.left, home=came)
        came.channel.coming = parked.left if told else 0


def _for_good(c: Connection, came: Rerouted, *, stamped: bool) -> None:
    """No queue takes a message."""
    known, confirms = came.known, came.channel.confirms
    if not republish.is_recent(c, came.stale(c)):
        c.events.append(came.stale(c))
        if stamped:
            c.reread[came.stale(c)] = c.now
    if confirms.answered and known.number > confirms.low:
        confirms.came_back(known.number, _fate(came))
    else:
        c.counter_table.of((c.vhost, came.exchange.decode(errors="replace")), None).unroutable += 1


def _fate(came: Rerouted) -> Fate:
    """Of a message that no queue takes."""
    behind = came.sent_to is not None and came.sent_to.kind == "exchange" and not came.passed
    return Fate(Outcome.UNROUTABLE, came.known.asked or behind)


def _returned(c: Connection, came: Rerouted, frame: bytes, data: bytes, i: int, end: int) -> bytes:
    """basic.return and content header in the client's words."""
    _, at = short_string(frame, 13, len(frame) - 1)
    names = shorted(came.exchange) + shorted(came.key)
    method = method_frame(came.channel.id, BASIC_RETURN, frame[11:at] + names)
    payload = republish.own_words(came, data, i + 7, end - 1)
    return method + FRAME.pack(HEADER, came.channel.id, len(payload)) + payload + b"\xce"


def body(c: Connection, channel: Channel, data: bytes, i: int, end: int) -> bytes | None:
    """A body frame of a return: dropped where the client must not see it."""
    held = channel.returning
    if held is None or held.frame:
        return None
    left = held.left - (end - i - OVERHEAD)
    channel.returning = held._replace(left=left) if left > 0 else None
    if held.parked is not None:
        c.parked.grow(held.parked, data[i:end])
        c.gathering -= left <= 0
    elif held.home is not None:
        told = data[i:end] if held.home.known.asked and republish.hears(c, channel) else b""
        if left > 0:
            return told
        c.gathering -= 1
        return told + republish.resolved(c, held.home, _fate(held.home))
    elif held.came is not None:
        republish.more(c, held.came, data, i, end, last=left <= 0)
        c.gathering -= left <= 0
    return b""


def _sent(frame: bytes) -> tuple[bytes, bytes]:
    """The exchange and the routing key of a basic.return."""
    _, at = short_string(frame, 13, len(frame) - 1)
    sent_to, at = short_string(frame, at, len(frame) - 1)
    return sent_to, short_string(frame, at, len(frame) - 1)[0]


def _destination(exchange: bytes, key: bytes) -> Destination:
    """What a publish with these was for."""
    name = (exchange or key).decode(errors="replace")
    return Destination("exchange" if exchange else "queue", name)


def _unstamped(channel: Channel, exchange: bytes, routing_key: bytes) -> tuple[RingId, Kept] | None:
    """The oldest unsettled publish that went out unstamped to the same place.

    Which of several came back cannot be told: those that did not ask for mandatory are marked as failed, since one nack
    too many is safe and an ack of a lost one is not.
    """
    alike = [
        number
        for number, kept in channel.confirms.kept.items()
        if kept.ring_id
        and (kept.sent_to, kept.sent_key) == (exchange, routing_key)
        and not channel.confirms.settled(number)
    ]
    if not alike:
        return None
    confirms = channel.confirms
    for number in alike[1:] if confirms.answered and not exchange else ():
        if number not in confirms.returned and not ring_id_of(number, channel.confirms.kept[number].ring_id).asked:
            confirms.came_back(number, Fate(Outcome.UNROUTABLE, False))
    kept = channel.confirms.kept.pop(alike[0])
    return ring_id_of(alike[0], kept.ring_id), kept


def committed(c: Connection, channel: Channel, number: int) -> bytes | None:
    """tx.commit-ok. Where a publish came back that the client does not know of, the channel is closed in its place."""
    if channel.state == State.REFUSING:
        # One before it was refused: the client would take this ok for that one's.
        channel.confirms.settle(number, True, True)
        return b""
    lost = sum(came is not None and not came.acked for n, came in channel.confirms.returned.items() if n <= number)
    channel.confirms.settle(number, True, True)
    if not lost:
        return None
    text = f"{lost} publishes of this transaction came back, and are not known to be in a queue; the others may be"
    closing.refuse_channel(c, channel, INTERNAL_ERROR, text)
    return b""


# On the channel of our own.


def on_ours(c: Connection, kind: int, data: bytes, i: int, end: int) -> bytes:
    """A frame of the broker's on our own channel: what clients get for it."""
    own = c.reroutes
    assert own is not None
    if kind == METHOD:
        method = U32.unpack_from(data, i + 7)[0]
        own.answered = True
        if method in (BASIC_ACK, BASIC_NACK):
            tag, multiple = U64.unpack_from(data, i + 11)[0], bool(data[i + 19] & 1)
            return b"".join(republish.confirmed(c, tag, multiple, method == BASIC_ACK))
        if method == BASIC_RETURN:
            own.frame = data[i:end]
        elif method == CHANNEL_CLOSE:
            return _closed(c, data, i, end)
    elif kind == HEADER and own.frame:
        return _again(c, data, i, end)
    elif kind == BODY and own.left:
        return _more(c, data, i, end)
    return b""


def _closed(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """The broker refused something: of all that was under way nobody knows, so nothing of it is acked."""
    own = c.reroutes
    assert own is not None
    c.tell_broker(method_frame(own.number, CHANNEL_CLOSE_OK))
    text = short_string(data, i + 13, end - 1)[0].decode(errors="replace")
    c.events.append(Refused(U16.unpack_from(data, i + 11)[0], f"publishing again what came back: {text}"))
    half, ended = own.parked, own.ends
    c.gathering -= own.back is not None or ended is not None or half is not None
    lost = own.closed()
    if half is not None:
        # The rest of its body will not come.
        c.parked.remove(half)
        half.came.channel.away -= 1
        lost.append(half.came)
    elif ended is not None and ended not in lost:
        lost.append(ended)
    return b"".join(republish.resolved(c, came, Fate(Outcome.UNKNOWN, False)) for came in lost)


def _again(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """The content header of a message that came back once more."""
    own = c.reroutes
    assert own is not None
    frame, start, stop = own.frame, i + 7, end - 1
    sent_to, sent_key = _sent(frame)
    ring_id = content.ring_id_in(data, start, stop)
    came = own.by_id.get(ring_id) if ring_id is not None else None
    left = U64.unpack_from(data, i + 11)[0]
    own.frame, own.left, own.back, own.home, own.ends, own.parked = b"", left, None, [], None, None
    if came is None:
        return b""
    came.sent_to = _destination(sent_to, sent_key)
    to = republish.placed(c, came, (), data, start, stop)
    if isinstance(to, Stale | Unread) or came.exchange in c.parked:
        own.take(came)
        unread = to if isinstance(to, Stale | Unread) else None
        parked = _park(c, Parked(came, frame, data[i:end], left, unread, ours=True))
        own.parked = parked if left else None
        return b""
    if to is not None and republish.publish(c, came, to, data, start, stop):
        own.back = came if left else None
        c.gathering += bool(left)
        return b""
    if not came.known.asked or not republish.hears(c, came.channel):
        return republish.resolved(c, came, _fate(came))
    told = _returned(c, came, frame, data, i, end)
    if not left:
        return told + republish.resolved(c, came, _fate(came))
    # Whole at once: what is told of it meanwhile must not stand in the midst of it.
    own.home, own.ends = [told], came
    c.gathering += 1
    return b""


def _more(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """A body frame of it."""
    own = c.reroutes
    assert own is not None
    own.left -= end - i - OVERHEAD
    last = own.left <= 0
    if own.parked is not None:
        c.parked.grow(own.parked, data[i:end])
    elif own.back is not None:
        republish.more(c, own.back, data, i, end, last=last)
    elif own.home and own.ends is not None:
        own.home.append(FRAME.pack(BODY, own.ends.channel.id, end - i - OVERHEAD) + data[i + 7 : end])
    if not last:
        return b""
    c.gathering -= own.back is not None or own.ends is not None or own.parked is not None
    ended, home = own.ends, b"".join(own.home)
    own.back, own.home, own.ends, own.parked = None, [], None, None
    if ended is None:
        return b""
    if not republish.hears(c, ended.channel):
        home = b""
    return home + republish.resolved(c, ended, _fate(ended))
