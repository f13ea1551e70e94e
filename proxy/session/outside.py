"""An open session's frames that belong to no open channel: channel 0's, and those that open channels."""

from proxy.session import closing
from proxy.session.channel import Channel
from proxy.session.state import Connection
from proxy.wire.frames import (
    CHANNEL_OPEN,
    COMMAND_INVALID,
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
    OVERHEAD,
    SYNTAX_ERROR,
    U32,
    UNEXPECTED_FRAME,
    Fault,
    is_frame_type,
    method_name,
)

_CONNECTION = 10
"""The class of channel 0's methods."""

_IN_SESSION = frozenset({CONNECTION_CLOSE, CONNECTION_UPDATE_SECRET})
"""What a client may send on channel 0 once the connection is open."""


def from_client(c: Connection, kind: int, number: int, data: bytes, i: int, end: int) -> bytes | None:
    """Take a client's frame on channel 0, or on a channel that is not open, once the connection is open.

    Returns what goes on in its place, or None for the frame as it is. Raises Fault for one that does not belong there.
    """
    if kind != METHOD:
        _check_other(c, kind, number)
        return None
    if end - i < OVERHEAD + 4:
        raise Fault(SYNTAX_ERROR, "a method frame too short for a method")
    method = U32.unpack_from(data, i + 7)[0]
    if number:
        _on_unopened(c, number, method)
        return None
    if method not in _IN_SESSION:
        raise Fault(COMMAND_INVALID, f"{method_name(method)} on channel 0 now", method)
    return closing.leave(c, data, i, end) if method == CONNECTION_CLOSE else None


def _on_unopened(c: Connection, number: int, method: int) -> None:
    if method >> 16 == _CONNECTION:
        raise Fault(COMMAND_INVALID, f"{method_name(method)} on channel {number} now", method)
    _check_number(c, number, method)
    if method == CHANNEL_OPEN:
        c.channels[number] = Channel(number)
    # To any other method the broker answers that the channel is not open.


def _check_number(c: Connection, number: int, method: int = 0) -> None:
    if number > c.channel_max:
        raise Fault(NOT_ALLOWED, f"channel {number} is beyond the agreed channel_max {c.channel_max}", method)


def _check_other(c: Connection, kind: int, number: int) -> None:
    """Check a frame that is no method, on channel 0 or a channel that is not open. Raises Fault."""
    if not is_frame_type(kind):
        raise Fault(FRAME_ERROR, f"a frame of the unknown type {kind}")
    if kind != HEARTBEAT and not number:
        raise Fault(UNEXPECTED_FRAME, f"a content frame on channel {number}")
    _check_number(c, number)


def _misplaced(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    raise Fault(COMMAND_INVALID, f"{method_name(method)} on channel {channel.id}", method)


ON_CHANNELS = dict.fromkeys(
    (
        CONNECTION_START_OK,
        CONNECTION_SECURE_OK,
        CONNECTION_TUNE_OK,
        CONNECTION_OPEN,
        CONNECTION_CLOSE,
        CONNECTION_CLOSE_OK,
        CONNECTION_UPDATE_SECRET,
    ),
    _misplaced,
)
"""What of channel 0's methods is done with on an open channel."""
