"""Frames that belong to no open channel: the handshake's and others of channel 0, and those that open channels."""

from proxy.session import closing
from proxy.session.channel import Channel
from proxy.session.connection import Connection
from proxy.session.handshake import BROKERS_TURN, Step
from proxy.session.reads import frames
from proxy.session.state import Phase
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    CHANNEL_OPEN,
    COMMAND_INVALID,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN,
    CONNECTION_SECURE_OK,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
    FRAME_ERROR,
    HEARTBEAT,
    METHOD,
    NOT_ALLOWED,
    UNEXPECTED_FRAME,
    Fault,
    checked_method,
    is_frame_type,
    method_name,
)

WITHOUT_SPARE = 300.0
"""Seconds for which no session of a user opens a channel to republish on, after the broker refused such a channel."""

_CONNECTION = 10
"""The class id of channel 0's methods."""

METHODS = frozenset(
    {
        CONNECTION_START_OK,
        CONNECTION_SECURE_OK,
        CONNECTION_TUNE_OK,
        CONNECTION_OPEN,
        CONNECTION_CLOSE,
        CONNECTION_CLOSE_OK,
        CONNECTION_UPDATE_SECRET,
    }
)
"""The client's methods that belong on channel 0."""

_IN_SESSION = frozenset({CONNECTION_CLOSE, CONNECTION_UPDATE_SECRET})
"""The ids of the methods that a client may send on channel 0 once the connection is open."""


def in_handshake(c: Connection, data: bytes) -> None:
    """Take a client's bytes before its connection is open, as far as it is the client's turn.

    Bytes that came ahead of the client's turn stay in `to_broker.rest`; `Connection.ahead` then says that the client
    is not to be read. Once the broker has spoken, `client_loop.from_client(c, b"")` goes on.
    """
    handshake, way = c.handshake, c.to_broker
    data, behind = way.rest + data, 0
    try:
        for kind, number, i, end in frames(data):
            if handshake.step in BROKERS_TURN:
                break
            handshake.check(kind, number, end - i)
            if end > len(data):
                break
            way.out.append(handshake.from_client(data, i, end))
            way.frames += 1
            behind = end
        way.rest = data[behind:]
    except Fault as fault:
        way.rest = data[behind:]
        closing.fail(c, fault)


def from_broker(c: Connection, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take a broker's method on channel 0, at any time; return what goes on in its place, or None for the frame as is.

    Raises Fault for a method that the step of the handshake does not have.
    """
    if method in (CONNECTION_CLOSE, CONNECTION_CLOSE_OK):
        c.enter(Phase.CLOSED)
        if method == CONNECTION_CLOSE:
            _closed(c, data, i, end)
        return None
    if c.phase is not Phase.HANDSHAKE:
        if method == CONNECTION_BLOCKED:
            # The next client would have to be told of it.
            c.handshake.terms = None
        return None
    replaced = c.handshake.from_broker(method, data, i, end, c.now)
    if c.handshake.step is Step.OPENED:
        # From here on publishes are routed.
        c.open(c.handshake.cluster)
        c.republishing.number = c.handshake.spare
        if c.interceptor is not None:
            c.interceptor.opened(c.handshake.spare + 1, c.handshake.hidden)
        c.enter(Phase.RUNNING)
    return replaced


def _closed(c: Connection, data: bytes, i: int, end: int) -> None:
    """Note a connection.close over this proxy's channel, so that the user's next sessions open none for a while.

    RabbitMQ 3.10.8 closes the connection of a user who has too many channels (observed).
    """
    own, arguments = c.republishing, Arguments(data, i, end)
    code = arguments.short()
    if own.is_open and not own.answered and code == NOT_ALLOWED:
        own.barred[c.vhost, c.handshake.user] = c.now + WITHOUT_SPARE
    if c.interceptor is not None:
        c.interceptor.connection_ends(code, arguments.short_string())


def from_client(c: Connection, kind: int, number: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take a client's frame on channel 0, or on a channel that is not open, once the connection is open.

    Returns the bytes that go on in the frame's place, or None if the frame goes on unchanged. Raises Fault if the frame
    does not belong on that channel.
    """
    if kind != METHOD:
        _check_other(c, kind, number)
        return None
    method = checked_method(data, i, end)
    if number:
        _on_unopened(c, number, method)
        return None
    if method not in _IN_SESSION:
        raise Fault(COMMAND_INVALID, f"{method_name(method)} came out of turn on channel 0", method)
    if method == CONNECTION_CLOSE:
        return closing.client_leaves(c, data, i, end)
    # The client's credentials are others than those of the login from now on.
    c.handshake.terms = None
    return None


def _on_unopened(c: Connection, number: int, method: int) -> None:
    if method >> 16 == _CONNECTION:
        raise Fault(COMMAND_INVALID, f"{method_name(method)} came out of turn on channel {number}", method)
    _check_number(c, number, method)
    if method == CHANNEL_OPEN:
        c.channels[number] = Channel(number)
    # To any other method the broker answers 504, that the channel is not open.


def _check_number(c: Connection, number: int, method: int = 0) -> None:
    if number > c.handshake.channel_max:
        raise Fault(NOT_ALLOWED, f"channel {number} is beyond the agreed channel_max {c.handshake.channel_max}", method)


def _check_other(c: Connection, kind: int, number: int) -> None:
    """Check a frame that is no method, on channel 0 or a channel that is not open. Raises Fault."""
    if not is_frame_type(kind):
        raise Fault(FRAME_ERROR, f"a frame of the unknown type {kind}")
    if kind != HEARTBEAT and not number:
        raise Fault(UNEXPECTED_FRAME, f"a content frame on channel {number}")
    _check_number(c, number)


def misplaced(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    """Raise Fault for a method that belongs on channel 0 but came on another channel; this ends the session."""
    raise Fault(
        COMMAND_INVALID, f"{method_name(method)} came on channel {channel.id}, and belongs on channel 0", method
    )
