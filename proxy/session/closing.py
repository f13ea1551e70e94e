"""How channels and sessions end (docs/development/walks.md, "One drain"; AMQP sections 1.4.2.4 and 1.5.2.5).

After this proxy's own Close only Close and Close-Ok count, in either direction.
"""

from collections.abc import Iterable

from proxy.session.backlog import Wait
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.events import Lacks, Missing, NoQueue, Refused, Stale
from proxy.session.publishing.channel_reopening import may_reopen, reopen, reopened, rest_of_content
from proxy.session.reads import frames
from proxy.session.state import EXPECT_METHOD, ChannelState, Phase
from proxy.settings.hints import TO_CONSUME_FROM_A_RING, TO_PUBLISH_TO_A_RING
from proxy.settings.missing_right import missing_right
from proxy.settings.rights import to_lanes
from proxy.topology.bindings import RING_TYPES
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    ACCESS_REFUSED,
    BASIC_CONSUME,
    BASIC_PUBLISH,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    FRAME_ERROR,
    INTERNAL_ERROR,
    LEAST_METHOD,
    METHOD,
    NOT_FOUND,
    OVERHEAD,
    REPLY_SUCCESS,
    U16,
    Fault,
    close_frame,
    method_frame,
    method_of,
    reply_text,
    shorted,
    u32,
)
from ring.destination import Destination

_DEFAULT_EXCHANGE = (b"amq.default", b"")
"""The default exchange's name in reply texts of RabbitMQ and of LavinMQ."""

_LONGEST_TEXT = 255
_CUT = b"..."
"""The last bytes of a reply text of `_LONGEST_TEXT` bytes that RabbitMQ has cut (observed)."""

_TERMS = 6
"""The frames of a handshake in which the broker asks no question about the login."""

_LONGEST_METHOD = 1 << 17
"""Bytes of a method from which it can be no Close or Close-Ok."""


def fail(c: Connection, fault: Fault) -> None:
    """End a session over what its client sent."""
    c.to_broker.garbled = fault.code == FRAME_ERROR
    refuse(c, fault.code, str(fault), fault.method)


def refuse(c: Connection, code: int, text: str, method: int = 0) -> None:
    """Send connection.close to the client at the next frame boundary, and another connection.close to the broker."""
    c.enter(Phase.REFUSING)
    c.waiting.drop()
    c.republishing.parking.drop()
    c.events.append(Refused(code, text))
    c.to_client.insert(close_frame(0, code, text, method))
    if c.opened and not c.to_broker.body_left:
        goodbye = close_frame(0, REPLY_SUCCESS, "ringproxy has closed the client's session")
        c.to_broker.out.append(goodbye)
    else:
        # The broker cannot take a method now: it is in the handshake, or inside a frame.
        c.to_broker.cut_off = True
    # The bytes that waited in `client_rest` may have a Close among them.
    late_from_client(c, b"")


def client_leaves(c: Connection, data: bytes, i: int, end: int) -> bytes | None:
    """Take the client's connection.close, which the broker gets once it has answered what was published.

    A message that came back behind it could not be published again. Returns as `methods` says.
    """
    gathered = c.interceptor.gathered() if c.interceptor is not None else b""
    is_kept = may_keep(c)
    goodbyes = close_channels(c) if is_kept else close_unconfirmed(c)
    if not is_kept and not awaits_answers(c):
        c.enter(Phase.CLOSING)
        return gathered + data[i:end] if gathered else None
    c.enter(Phase.LEAVING)
    c.goodbye = data[i:end]
    return gathered + goodbyes


def may_keep(c: Connection) -> bool:
    """Return whether the broker connection is wanted for another client, who could use it if its channels were closed.

    Where it is not wanted, the client does not wait for the broker to close its channels. These keep it from use: an
    exclusive queue or connection.blocked (both clear `Handshake.terms`, as other credentials do), a content that is not
    whole yet, confirms that the client has yet to get (a channel.close would throw them away), frames that wait, and
    channels that are not the client's.
    """
    if c.phase is not Phase.RUNNING or not _may_serve_on(c) or not c.handshake.wanted():
        return False
    channels = c.channels.values()
    is_done = all(
        channel.expect == EXPECT_METHOD and not (channel.confirms.answered and channel.awaits(inside=False))
        for channel in channels
    )
    return is_done and not c.waiting.channels


def _may_serve_on(c: Connection) -> bool:
    terms = c.handshake.terms
    has_own = c.republishing.begun or (c.interceptor is not None and not c.interceptor.is_idle)
    return terms is not None and len(terms) == _TERMS and not has_own


def is_clean(c: Connection) -> bool:
    """Return whether the broker connection is as it was behind the handshake, now that the client has closed it."""
    way = c.to_client
    closed = all(channel.state == ChannelState.REFUSED for channel in c.channels.values())
    return closed and not (way.rest or way.body_left or way.queued or way.more) and _may_serve_on(c)


def close_unconfirmed(c: Connection) -> bytes:
    """Return a channel.close for each channel without confirms: only its close-ok tells that all returns have come."""
    confirms = ((channel, channel.confirms) for channel in c.channels.values() if channel.routed)
    return _close(c, [channel for channel, each in confirms if not each.answered or each.number == each.base])


def close_channels(c: Connection) -> bytes:
    """Return a channel.close for each channel."""
    return _close(c, list(c.channels.values()))


def _close(c: Connection, channels: Iterable[Channel]) -> bytes:
    """Return a channel.close for each of these channels that is open; its client does not hear of it."""
    goodbyes = b""
    for channel in channels:
        if channel.state == ChannelState.OPEN and channel.expect == EXPECT_METHOD:
            channel.enter(ChannelState.REFUSING)
            channel.refusal = b""
            goodbyes += _goodbye(c, channel)
    return goodbyes


def pass_goodbye(c: Connection) -> None:
    """Pass the client's connection.close on: nothing can come back any more, or it takes too long."""
    c.enter(Phase.CLOSING)
    c.to_broker.insert(c.goodbye)


def answer_goodbye(c: Connection) -> None:
    """Answer the client's connection.close in the broker's place, which keeps the connection."""
    c.enter(Phase.CLOSING)
    c.enter(Phase.CLOSED)
    c.to_client.insert(method_frame(0, CONNECTION_CLOSE_OK))


def awaits_answers(c: Connection) -> bool:
    """Return whether the broker has yet to answer something that the client has sent whole."""
    if c.republishing.parking or c.republishing.under_way:
        return True
    if c.interceptor is not None and c.interceptor.awaits_answers:
        return True
    inside = c.to_broker.body_of if c.to_broker.body_left else 0
    return any(
        channel.state == ChannelState.REFUSING
        or (channel.state == ChannelState.CLOSING and channel.routed)
        or channel.awaits(number == inside)
        for number, channel in c.channels.items()
    )


def late_from_client(c: Connection, data: bytes) -> None:
    """Take the client's bytes after one side has sent connection.close."""
    way = c.to_broker
    if c.phase is Phase.LEAVING:
        return  # a client sends nothing behind its own connection.close (AMQP section 1.4.2.4)
    if c.phase is not Phase.REFUSING:
        data, way.rest = way.rest + data, b""
        if way.dropping:
            # The rest of a frame whose beginning the broker has not got.
            dropped = min(way.body_left, len(data))
            data, way.body_left = data[dropped:], way.body_left - dropped
            way.dropping = way.body_left > 0
        if data:
            way.out.append(data)
        return
    if way.garbled:
        way.rest = b""
        return
    methods, way.rest, way.body_left = _methods(way.rest + data, way.body_left)
    if CONNECTION_CLOSE in methods:
        # Not `insert`: nothing that the broker is in the midst of goes to the client any more.
        behind = c.to_client.queued or c.to_client.out
        behind.append(method_frame(0, CONNECTION_CLOSE_OK))
    way.ended |= bool(methods & {CONNECTION_CLOSE, CONNECTION_CLOSE_OK})


def late_from_broker(c: Connection, data: bytes) -> None:
    """Take what the broker sends once it has answered or sent connection.close, or this proxy has."""
    way = c.to_client
    if c.phase is not Phase.REFUSING:
        data, way.rest = way.rest + data, b""
        if data:
            way.out.append(data)
        return
    if way.queued:
        # The frame that this proxy's wait for goes through to its end.
        part, data = data[: way.body_left], data[way.body_left :]
        way.body_left -= len(part)
        if not way.dropping:
            way.out.append(part)
        if not way.body_left:
            way.out += way.queued
            way.queued = []
    methods, way.rest, way.body_left = _methods(way.rest + data, way.body_left)
    if CONNECTION_CLOSE in methods:
        c.to_broker.out.append(method_frame(0, CONNECTION_CLOSE_OK))
    way.ended |= bool(methods & {CONNECTION_CLOSE, CONNECTION_CLOSE_OK})


def _methods(data: bytes, skip: int) -> tuple[set[int], bytes, int]:
    """Return the methods on channel 0 among the frames of `data` from `skip` on, and what is left of the last frame.

    An unfinished method is returned as its beginning; of any other frame that is not whole, the number of bytes still
    to come is returned, which the next call skips.
    """
    if skip >= len(data):
        return set(), b"", skip - len(data)
    found: set[int] = set()
    behind = skip
    for kind, number, i, end in frames(data, skip):
        is_method = kind == METHOD and not number
        if end > len(data):
            if is_method and end - i < OVERHEAD + _LONGEST_METHOD:
                return found, data[i:], 0
            return found, b"", end - len(data)
        if is_method and end - i >= LEAST_METHOD:
            found.add(method_of(data, i))
        behind = end
    return found, data[behind:], 0


def refuse_channel(c: Connection, channel: Channel, code: int, text: str, method: int = BASIC_PUBLISH) -> None:
    """Close a channel: the broker's side first, so that its answers to what was published still reach the client.

    A channel that is being closed already is left as it is. `method` is the client's method that is to blame.
    """
    if goodbye := refusal(c, channel, code, text, method):
        c.to_broker.insert(goodbye)
    c.to_broker.flush()


def refusal(c: Connection, channel: Channel, code: int, text: str, method: int) -> bytes:
    """Begin to close a channel as `refuse_channel` does; return what the broker gets in the place of the method.

    Empty if the channel is not open, or if its close must wait for the end of a content.
    """
    if channel.state != ChannelState.OPEN or not c.running:
        return b""
    channel.enter(ChannelState.REFUSING)
    channel.refusal = close_frame(channel.id, code, text, method)
    c.events.append(Refused(code, text, channel))
    _ends(c, channel)
    if channel.withheld:
        channel.withheld, channel.expect = False, EXPECT_METHOD
    return _goodbye(c, channel) if channel.expect == EXPECT_METHOD else b""


def _ends(c: Connection, channel: Channel) -> None:
    if c.interceptor is not None:
        c.interceptor.channel_ends(channel)


def _goodbye(c: Connection, channel: Channel) -> bytes:
    return close_frame(channel.id, REPLY_SUCCESS, "ringproxy closes the channel")


def refused_frame(c: Connection, channel: Channel, kind: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take what a client sends on a channel that this proxy closes; all is dropped but the rest of a content.

    Returns what the broker gets: b"" for what is dropped, else as `rest_of_content`, which may raise Fault.
    """
    if channel.expect != EXPECT_METHOD:
        behind = reopened if channel.state == ChannelState.CUT else _goodbye
        return rest_of_content(c, channel, kind, data, i, end, behind)
    method = method_of(data, i) if kind == METHOD and end - i >= LEAST_METHOD else 0
    if method == CHANNEL_CLOSE and channel.state == ChannelState.REFUSING:
        # The broker's close-ok is due yet, and with it what it has to say of earlier publishes.
        channel.owed_close_ok = True
    elif method == CHANNEL_CLOSE:
        c.to_client.insert(method_frame(channel.id, CHANNEL_CLOSE_OK))
    elif method == CHANNEL_CLOSE_OK and channel.state == ChannelState.REFUSED:
        _gone(c, channel)
    elif method == CHANNEL_CLOSE_OK and channel.state == ChannelState.ABANDONED:
        channel.enter(ChannelState.VACATED)
    elif method == CHANNEL_OPEN and channel.state == ChannelState.VACATED:
        c.waiting.held = Wait.BEING_CLOSED
    return b""


def abandon(c: Connection, channel: Channel) -> None:
    """Close a channel towards its client, though the broker does not answer this proxy's channel.close.

    The channel's number stays taken until the broker answers. Other channels go on.
    """
    owed = method_frame(channel.id, CHANNEL_CLOSE_OK) if channel.owed_close_ok else b""
    _abandon(c, channel, channel.refusal + owed)


def refuse_open(c: Connection, channel: Channel, text: str) -> None:
    """Answer the channel.open that a channel's backlog begins with by channel.close: the number is not free."""
    c.waiting.remove(channel)
    c.events.append(Refused(INTERNAL_ERROR, text))
    _abandon(c, channel, close_frame(channel.id, INTERNAL_ERROR, text, CHANNEL_OPEN))


def _abandon(c: Connection, channel: Channel, last_words: bytes) -> None:
    """Give up a channel that this proxy closes: its publishes get no answers, and the client gets `last_words`."""
    channel.enter(ChannelState.ABANDONED)
    channel.confirms.abandon()
    channel.deferred.clear()
    held = c.republishing.returning.pop(channel, None)
    if held is not None and held.unroutable is not None:
        c.republishing.gathering -= 1
    c.to_client.insert(last_words)


def too_late(c: Connection, channel: Channel, kind: int, data: bytes, i: int, end: int) -> bytes:
    """Take a broker's frame on an abandoned channel, whose client knows of its end; return b"", as nothing goes on."""
    method = method_of(data, i) if kind == METHOD else 0
    if method == CHANNEL_CLOSE:
        c.to_broker.insert(method_frame(channel.id, CHANNEL_CLOSE_OK))
    elif method == CHANNEL_CLOSE_OK and channel.state == ChannelState.ABANDONED:
        channel.enter(ChannelState.REFUSED)
    elif method == CHANNEL_CLOSE_OK:
        _gone(c, channel)
    return b""


def client_closes(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    channel.enter(ChannelState.CLOSING)
    _ends(c, channel)


def client_agrees(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take the client's channel.close-ok: the number is free."""
    _gone(c, channel)


def client_opens(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Take channel.open for a number in use: it waits for a close-ok that is due, or the broker refuses it."""
    if channel.state == ChannelState.CLOSING:
        c.waiting.held = Wait.BEING_CLOSED
    elif channel.state == ChannelState.CLOSED:
        _gone(c, channel)
        c.channels[channel.id] = Channel(channel.id)


def broker_closes(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the broker's channel.close: publishes that it has not answered are unknown from now on.

    If a lane is gone, the channel is opened again unseen where that loses nothing. If the client may not publish where
    the ring leads, or takes a hash exchange for a queue, it gets a hint. Returns as `methods` says.
    """
    if channel.state >= ChannelState.REFUSING and channel.expect == EXPECT_METHOD:
        c.to_broker.insert(method_frame(channel.id, CHANNEL_CLOSE_OK))
        return b""
    arguments = Arguments(data, i, end)
    code, text, blamed = arguments.short(), arguments.short_string(), arguments.rest
    named = named_exchanges(c, text) if channel.routed and u32(blamed, 0) == BASIC_PUBLISH else []
    behind = [exchange for exchange in named if c.table is not None and exchange in c.table.behind]
    if code == NOT_FOUND and behind:
        # An exchange behind the ring is gone, and the broker closes the channel where a queue's end is a return.
        note_missing(c, behind)
        if may_reopen(c, channel):
            return reopen(c, channel, text.decode(errors="replace"))
    # In the midst of a content this proxy's has not gone out yet, and the broker's closes the channel as well.
    channel.enter(ChannelState.CLOSED)
    _ends(c, channel)
    channel.routed = False
    channel.confirms.abandon()
    channel.deferred.clear()
    # The broker checks write access to where a publish goes now, which the client's user may not have.
    refused = [*behind, *(b"amq.default" for exchange in named if exchange in _DEFAULT_EXCHANGE)]
    if code == NOT_FOUND and u32(blamed, 0) == BASIC_CONSUME:
        return _no_queue(c, channel, text, blamed)
    if code != ACCESS_REFUSED or not refused:
        return None
    if lacking := missing_right(text.decode(errors="replace")):
        c.events.append(Lacks(lacking))
    # A user without the right on one lane of a ring mostly lacks it on all: the hint names them all at once.
    wanted = to_lanes(refused[0].decode(errors="replace")).encode() or refused[0]
    return _with_hint(c, channel, code, text, TO_PUBLISH_TO_A_RING + wanted, blamed)


def _with_hint(c: Connection, channel: Channel, code: int, text: bytes, hint: bytes, blamed_method: bytes) -> bytes:
    """Return the broker's channel.close with a hint behind its reply text, and note that as the event Refused.

    `blamed_method` is the class and method that the broker blames, as bytes.
    """
    text = reply_text(reply_text(text, _LONGEST_TEXT - len(hint)) + hint)
    c.events.append(Refused(code, text.decode(errors="replace")))
    return method_frame(channel.id, CHANNEL_CLOSE, U16.pack(code) + shorted(text) + blamed_method)


def _no_queue(c: Connection, channel: Channel, text: bytes, blamed_method: bytes) -> bytes | None:
    """Take it that a client consumes from a queue that does not exist: it may have meant an exchange.

    `text` is the broker's reason, `blamed_method` the class and method that it blames, as bytes. Returns the broker's
    channel.close with a hint, if the name is known to be a hash exchange; None for the frame as it is. A name that is
    not known as an exchange is noted with the event NoQueue, so that it is looked up.
    """
    _, quoted, found = text.partition(b"no queue '")
    end = found.rfind(b"' in vhost '")
    if c.table is None or not quoted or end < 0:
        return None
    name = found[:end].decode(errors="replace")
    entry = c.table.entry_of(name)
    if entry is None:
        c.events.append(NoQueue(name))
    elif entry.exchange_type in RING_TYPES:
        return _with_hint(c, channel, NOT_FOUND, text, TO_CONSUME_FROM_A_RING, blamed_method)
    return None


def named_exchanges(c: Connection, text: bytes) -> list[bytes]:
    """Return the exchange that the broker's reason for closing a channel names; empty if it names none.

    The name stands there between quotes, and may have quotes in it. If the reason was cut within the name, the result
    has each exchange behind the rings whose name begins so.
    """
    _, quoted, rest = text.partition(b"exchange '")
    behind_it = b"' in vhost '" + c.vhost.encode() + b"'"
    end = rest.rfind(behind_it)
    if end < 0 and len(text) == _LONGEST_TEXT and text.endswith(_CUT):
        known = {*_DEFAULT_EXCHANGE, *(c.table.behind if c.table is not None else ())}
        return [name for name in known if (name + behind_it).startswith(rest.removesuffix(_CUT))]
    end = rest.rfind(b"'") if end < 0 else end
    return [rest[:end]] if quoted and end >= 0 else []


def note_missing(c: Connection, exchanges: list[bytes]) -> None:
    """Have the rings read again that lead to a missing exchange.

    The broker's reason may be cut within the exchange's name. Then `exchanges` has every name that begins so, and none
    of them is told as missing.
    """
    for exchange in exchanges:
        missing = exchange.decode(errors="replace")
        if len(exchanges) == 1:
            c.events.append(Missing(missing))
        rings = c.table.rings_to(missing) if c.table is not None else []
        c.events.extend(Stale(name, Destination("exchange", missing)) for name in rings)


def broker_agrees(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take the broker's channel.close-ok, which waits behind the answers to messages that came back.

    A channel that this proxy closes gets the client's refusal then; any other is forgotten. Returns as `methods` says.
    """
    if channel.unsettled_returns and c.phase <= Phase.LEAVING:
        channel.deferred.append(data[i:end])
        return b""
    if channel.state == ChannelState.REFUSING:
        channel.enter(ChannelState.REFUSED)
        # Its answers came before its close-ok: a client that is not read any more must not be waited for.
        channel.confirms.abandon()
        owed = method_frame(channel.id, CHANNEL_CLOSE_OK) if channel.owed_close_ok else b""
        return channel.refusal + owed
    if channel.state in (ChannelState.CLOSING, ChannelState.CLOSED):
        _gone(c, channel)
    return None


def _gone(c: Connection, channel: Channel) -> None:
    """Forget a channel that both peers have closed."""
    channel.confirms.abandon()
    c.republishing.returning.pop(channel, None)
    channel.enter(ChannelState.GONE)
    if c.interceptor is not None:
        c.interceptor.channel_gone(channel)
    if c.channels.get(channel.id) is channel:
        del c.channels[channel.id]
