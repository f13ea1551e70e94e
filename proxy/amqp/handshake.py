"""Channel 0 and the opening of channels: what of the handshake changes, and what may come when."""

from collections.abc import Callable

from proxy import __version__
from proxy.amqp import closing, table
from proxy.amqp.channel import Channel
from proxy.amqp.connection import MOST_FRAME_MAX, Connection, Phase
from proxy.amqp.frames import (
    BODY,
    CHANNEL_OPEN,
    COMMAND_INVALID,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_SECURE_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
    FRAME_ERROR,
    HEADER,
    HEARTBEAT,
    LEAST_FRAME_MAX,
    METHOD,
    NOT_ALLOWED,
    OVERHEAD,
    PROTOCOL_HEADER,
    SYNTAX_ERROR,
    U16,
    U32,
    UNEXPECTED_FRAME,
    Fault,
    method_frame,
    short_string,
)
from ring.hashing import RING_FORMAT

_TAKEN_HEADERS = PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"
"""The second is AMQP 0-9's: RabbitMQ takes it for 0-9-1 (observed on 3.10.8 and 4.3.6), and Perl's clients send it."""

LENT = frozenset({b"EXTERNAL", b"ANONYMOUS"})
"""Mechanisms that tell the broker of the peer of its connection, which is this proxy: it would lend its identity."""

WITHOUT_SPARE = 300.0
"""Seconds for which nothing of a user is published again, where our channel was one too many."""

_MOST_CHANNELS = (1 << 16) - 1
_CONNECTION = 10

_IN_HANDSHAKE = frozenset(
    {
        CONNECTION_START_OK,
        CONNECTION_SECURE_OK,
        CONNECTION_TUNE_OK,
        CONNECTION_OPEN,
        CONNECTION_CLOSE,
        CONNECTION_CLOSE_OK,
    }
)
_IN_SESSION = frozenset({CONNECTION_CLOSE, CONNECTION_UPDATE_SECRET})

_INVENTORY = {
    b"ringproxy_version": table.text_entry(b"ringproxy_version", __version__.encode()),
    b"ringproxy_ring_format": table.text_entry(b"ringproxy_ring_format", str(RING_FORMAT).encode()),
}
"""Client properties of ours: they make the broker's list of connections the inventory of a fleet."""


def is_protocol_header(data: bytes) -> bool | None:
    """Whether these first bytes are the header of AMQP 0-9-1; None where more are needed to tell."""
    if not any(header.startswith(data[: len(header)]) for header in _TAKEN_HEADERS):
        return False
    return True if len(data) >= len(PROTOCOL_HEADER) else None


def from_client(c: Connection, kind: int, number: int, data: bytes, i: int, end: int) -> bytes | None:
    """A frame on channel 0, or on a channel that is not open: what goes on in its place, or None for as it is.

    Raises Fault for one that does not belong there.
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
    if method not in (_IN_HANDSHAKE if c.phase is Phase.HANDSHAKE else _IN_SESSION):
        raise Fault(COMMAND_INVALID, f"{_shown(method)} on channel 0 now", method)
    handler = _REQUESTS.get(method)
    return handler(c, data, i, end) if handler is not None else None


def _on_unopened(c: Connection, number: int, method: int) -> None:
    if c.phase is Phase.HANDSHAKE or method >> 16 == _CONNECTION:
        raise Fault(COMMAND_INVALID, f"{_shown(method)} on channel {number} now", method)
    _check_number(c, number, method)
    if method == CHANNEL_OPEN:
        c.channels[number] = Channel(number)
    # To any other method the broker answers that the channel is not open.


def _check_number(c: Connection, number: int, method: int = 0) -> None:
    if number > c.channel_max:
        raise Fault(NOT_ALLOWED, f"channel {number} is beyond the agreed channel_max {c.channel_max}", method)


def _check_other(c: Connection, kind: int, number: int) -> None:
    """A frame that is no method, on channel 0 or a channel that is not open. Raises Fault."""
    if kind not in (HEADER, BODY, HEARTBEAT):
        raise Fault(FRAME_ERROR, f"a frame of the unknown type {kind}")
    if kind != HEARTBEAT and (not number or c.phase is Phase.HANDSHAKE):
        raise Fault(UNEXPECTED_FRAME, f"a content frame on channel {number}")
    _check_number(c, number)


def from_broker(c: Connection, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """A method on channel 0 from the broker: what goes on in its place, or None for as it is."""
    if method == CONNECTION_START:
        return _start(c, data, i, end)
    if method == CONNECTION_TUNE:
        return _tune(c, data, i, end)
    if method == CONNECTION_OPEN_OK:
        c.opened = True
    elif method in (CONNECTION_CLOSE, CONNECTION_CLOSE_OK):
        c.phase = c.broker_phase = Phase.ENDING
        if method == CONNECTION_CLOSE:
            _closed(c, data, i, end)
    return None


def _closed(c: Connection, data: bytes, i: int, end: int) -> None:
    """RabbitMQ 3.10.8 closes the connection of a user who has too many channels (observed): not once more, for ours."""
    is_opening = c.reroutes is not None and c.reroutes.is_open and not c.reroutes.answered
    if is_opening and U16.unpack_from(data, i + 11)[0] == NOT_ALLOWED:
        c.without_spare[c.vhost, c.user] = c.now + WITHOUT_SPARE


def _start(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """connection.start without the mechanisms that would lend this proxy's identity; notes the cluster's name."""
    first = i + 17
    stop = first + U32.unpack_from(data, i + 13)[0]
    entry = table.find(data, first, stop, b"cluster_name")
    name = table.text_of(data, entry) if entry else None
    c.cluster = name.decode(errors="replace") if name is not None else None
    c.cluster_told_at = c.now
    at = stop + 4 + U32.unpack_from(data, stop)[0]
    offered = [m for m in data[stop + 4 : at].split() if m not in LENT or m in c.allowed_mechanisms]
    mechanisms = b" ".join(offered)
    arguments = data[i + 11 : stop] + U32.pack(len(mechanisms)) + mechanisms + data[at : end - 1]
    return method_frame(0, CONNECTION_START, arguments)


def _start_ok(c: Connection, data: bytes, i: int, end: int) -> bytes | None:
    """connection.start-ok with our own client properties, where they fit the smallest frame."""
    if end - i < 16:
        raise Fault(SYNTAX_ERROR, "connection.start-ok stops early", CONNECTION_START_OK)
    first = i + 15
    stop = first + U32.unpack_from(data, i + 11)[0]
    if stop >= end:
        raise Fault(SYNTAX_ERROR, "the client properties are longer than their frame", CONNECTION_START_OK)
    mechanism, at = short_string(data, stop, end - 1)
    if mechanism in LENT and mechanism not in c.allowed_mechanisms:
        text = f"mechanism {mechanism.decode()} would lend the proxy's identity; see allow_mechanisms"
        raise Fault(COMMAND_INVALID, text, CONNECTION_START_OK)
    if mechanism == b"PLAIN":
        # RFC 4616: the identity to act as, the user, the password.
        c.user = b"".join(data[at + 4 : end - 1].split(b"\0")[1:2])
    properties, _ = table.without(data, first, stop, _INVENTORY)
    properties += b"".join(_INVENTORY.values())
    made = method_frame(0, CONNECTION_START_OK, U32.pack(len(properties)) + properties + data[stop : end - 1])
    return made if len(made) <= LEAST_FRAME_MAX else None


def _tune(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """connection.tune with one channel fewer, which stays ours."""
    if end - i != 20:
        raise Fault(SYNTAX_ERROR, "connection.tune is not of its length")
    c.offered = U16.unpack_from(data, i + 11)[0]
    return data[i : i + 11] + U16.pack(max((c.offered or _MOST_CHANNELS) - 1, 1)) + data[i + 13 : end]


def _tune_ok(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """connection.tune-ok with that channel put back; what the client asked too much, the broker refuses."""
    if end - i != 20:
        raise Fault(SYNTAX_ERROR, "connection.tune-ok is not of its length", CONNECTION_TUNE_OK)
    wanted, frame_max = U16.unpack_from(data, i + 11)[0], U32.unpack_from(data, i + 13)[0]
    c.heartbeat = U16.unpack_from(data, i + 17)[0]
    c.frame_max = max(frame_max, LEAST_FRAME_MAX) if frame_max else MOST_FRAME_MAX
    c.channel_max = wanted or _MOST_CHANNELS - 1
    restored = wanted + 1 if 0 < wanted < (c.offered or _MOST_CHANNELS) else wanted
    c.spare = restored if restored > wanted else 0 if wanted or c.offered else _MOST_CHANNELS
    return data[i : i + 11] + U16.pack(restored) + data[i + 13 : end]


def _open(c: Connection, data: bytes, i: int, end: int) -> None:
    vhost, _ = short_string(data, i + 11, end - 1)
    c.vhost = vhost.decode(errors="replace")
    c.table = c.tables(c.vhost, c.cluster)
    c.routes = c.table.routes
    c.phase = Phase.RUNNING


def _close(c: Connection, data: bytes, i: int, end: int) -> None:
    c.phase = Phase.ENDING


_REQUESTS: dict[int, Callable[[Connection, bytes, int, int], bytes | None]] = {
    CONNECTION_START_OK: _start_ok,
    CONNECTION_TUNE_OK: _tune_ok,
    CONNECTION_OPEN: _open,
    CONNECTION_CLOSE: closing.leave,
    CONNECTION_CLOSE_OK: _close,
}


def _misplaced(c: Connection, channel: Channel, method: int, data: bytes, i: int, end: int) -> None:
    raise Fault(COMMAND_INVALID, f"{_shown(method)} on channel {channel.id}", method)


ON_CHANNELS = dict.fromkeys(_IN_HANDSHAKE | _IN_SESSION, _misplaced)
"""What of channel 0's methods is done with on an open channel."""


def _shown(method: int) -> str:
    return f"method {method >> 16}.{method & 0xFFFF}"
