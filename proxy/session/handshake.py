"""What a client may send before the broker has let it in: connection.start to connection.open-ok, as a table of steps.

Until the broker's open-ok a session has no virtual host: no routes, no channels, nothing that is counted, looked up or
journalled. What a client sends ahead of its turn stays unread as bytes, and its socket is not read meanwhile.
"""

from collections.abc import Callable

from proxy import __version__
from proxy.session import closing
from proxy.session.state import BROKERS_TURN, HANDSHAKE_FRAME_MAX, MOST_FRAME_MAX, Connection, Phase, Step
from proxy.wire import table
from proxy.wire.frames import (
    COMMAND_INVALID,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_SECURE,
    CONNECTION_SECURE_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    END,
    FRAME,
    FRAME_ERROR,
    HEARTBEAT,
    LEAST_FRAME_MAX,
    METHOD,
    NOT_ALLOWED,
    OVERHEAD,
    PROTOCOL_HEADER,
    SLACK,
    SYNTAX_ERROR,
    U16,
    U32,
    UNEXPECTED_FRAME,
    Fault,
    is_frame_type,
    method_frame,
    method_name,
    short_string,
)
from ring.hashing import RING_FORMAT

STEPS: dict[Step, dict[int, Step]] = {
    Step.STARTING: {CONNECTION_START: Step.LOGIN},
    Step.LOGIN: {CONNECTION_START_OK: Step.JUDGED, CONNECTION_CLOSE: Step.LEFT},
    Step.JUDGED: {CONNECTION_SECURE: Step.CHALLENGED, CONNECTION_TUNE: Step.TUNING},
    Step.CHALLENGED: {CONNECTION_SECURE_OK: Step.JUDGED, CONNECTION_CLOSE: Step.LEFT},
    Step.TUNING: {CONNECTION_TUNE_OK: Step.TUNED, CONNECTION_CLOSE: Step.LEFT},
    Step.TUNED: {CONNECTION_OPEN: Step.OPENING, CONNECTION_CLOSE: Step.LEFT},
    Step.OPENING: {CONNECTION_OPEN_OK: Step.OPENED},
    Step.LEFT: {},
}
"""By step: the methods of the side whose turn it is, and the step that each leads to.

The broker may close at every step, and either side may send heartbeats. Anything else ends the session.
"""

_TAKEN_HEADERS = PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09"
"""The second is AMQP 0-9's: RabbitMQ takes it for 0-9-1 (observed on 3.10.8 and 4.3.6), and Perl's clients send it."""

LENT = frozenset({b"EXTERNAL", b"ANONYMOUS"})
"""Mechanisms that tell the broker of the peer of its connection, which is this proxy: it would lend its identity."""

WITHOUT_SPARE = 300.0
"""Seconds for which nothing of a user is published again, where our channel was one too many."""

_MOST_CHANNELS = (1 << 16) - 1

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


def from_client(c: Connection, data: bytes) -> None:
    """Takes what a client sends in the handshake, as far as it is the client's turn; appends to `to_broker`.

    What it sent ahead of its turn stays in `client_rest`: `Connection.ahead` then says that it is not to be read. Once
    the broker has spoken, `rewrite.from_client(c, b"")` goes on.
    """
    data, i = c.client_rest + data, 0
    try:
        while c.step not in BROKERS_TURN and (end := _frame_end(c, data, i)):
            c.to_broker.append(_taken(c, data, i, end))
            c.client_frames += 1
            i = end
    except Fault as fault:
        c.client_rest = data[i:]
        closing.fail(c, fault)
        return
    c.client_rest = data[i:]


def _frame_end(c: Connection, data: bytes, i: int) -> int:
    """Where the frame at `i` ends; 0 while it is not complete. Raises Fault for one that no handshake has."""
    if len(data) - i < OVERHEAD:
        return 0
    kind, number, length = FRAME.unpack_from(data, i)
    # What a client says of frame_max counts for bodies: no method of a handshake is as long.
    limit = min(c.frame_max, HANDSHAKE_FRAME_MAX)
    if length > limit + SLACK - OVERHEAD:
        raise Fault(FRAME_ERROR, f"a frame of {length + OVERHEAD} bytes, at most {limit} are taken here")
    if not is_frame_type(kind):
        raise Fault(FRAME_ERROR, f"a frame of the unknown type {kind}")
    if number or kind not in (METHOD, HEARTBEAT):
        # In RabbitMQ's words: 505, whatever the frame is.
        raise Fault(UNEXPECTED_FRAME, f"a frame of type {kind} on channel {number} before the connection is open")
    end: int = i + OVERHEAD + length
    if end > len(data):
        return 0
    if data[end - 1] != END:
        raise Fault(FRAME_ERROR, f"a frame of type {kind} does not end with the frame-end octet")
    return end


def _taken(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """What the broker gets for a frame of the client's, whose turn it is. Raises Fault for one of another step."""
    if data[i] == HEARTBEAT:
        return data[i:end]
    if end - i < OVERHEAD + 4:
        raise Fault(SYNTAX_ERROR, "a method frame too short for a method")
    method = U32.unpack_from(data, i + 7)[0]
    following = STEPS[c.step].get(method)
    if following is None:
        raise Fault(COMMAND_INVALID, f"{method_name(method)} on channel 0 now", method)
    handler = _OF_CLIENT.get(method)
    replaced = handler(c, data, i, end) if handler is not None else None
    c.step = following
    return data[i:end] if replaced is None else replaced


def from_broker(c: Connection, method: int, data: bytes, i: int, end: int) -> bytes | None:
    """Return what goes on in place of a broker's method on channel 0, at any time; None for as it is.

    Raises Fault for one that the step of the handshake does not have.
    """
    if method in (CONNECTION_CLOSE, CONNECTION_CLOSE_OK):
        c.phase = c.broker_phase = Phase.ENDING
        if method == CONNECTION_CLOSE:
            _closed(c, data, i, end)
        return None
    if c.phase is not Phase.HANDSHAKE:
        return None
    following = STEPS[c.step].get(method)
    if following is None or c.step not in BROKERS_TURN:
        raise Fault(COMMAND_INVALID, f"{method_name(method)} of the broker's at the step {c.step.name}")
    c.step = following
    handler = _OF_BROKER.get(method)
    return handler(c, data, i, end) if handler is not None else None


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
    c.offered, c.offered_frame_max = U16.unpack_from(data, i + 11)[0], U32.unpack_from(data, i + 13)[0]
    return data[i : i + 11] + U16.pack(_most_channels(c)) + data[i + 13 : end]


def _most_channels(c: Connection) -> int:
    """The channel_max that the client was offered."""
    return max((c.offered or _MOST_CHANNELS) - 1, 1)


def _tune_ok(c: Connection, data: bytes, i: int, end: int) -> bytes:
    """connection.tune-ok with that channel put back. Raises Fault 530 for more than was offered, as RabbitMQ does."""
    if end - i != 20:
        raise Fault(SYNTAX_ERROR, "connection.tune-ok is not of its length", CONNECTION_TUNE_OK)
    wanted, frame_max = U16.unpack_from(data, i + 11)[0], U32.unpack_from(data, i + 13)[0]
    _check_negotiated("channel_max", wanted, _most_channels(c), limited=c.offered > 0)
    _check_negotiated("frame_max", frame_max, c.offered_frame_max, limited=c.offered_frame_max > 0)
    c.heartbeat = U16.unpack_from(data, i + 17)[0]
    c.frame_max = max(frame_max, LEAST_FRAME_MAX) if frame_max else MOST_FRAME_MAX
    c.channel_max = wanted or _MOST_CHANNELS - 1
    restored = wanted + 1 if 0 < wanted < (c.offered or _MOST_CHANNELS) else wanted
    c.spare = restored if restored > wanted else 0 if wanted or c.offered else _MOST_CHANNELS
    return data[i : i + 11] + U16.pack(restored) + data[i + 13 : end]


def _check_negotiated(name: str, wanted: int, most: int, *, limited: bool) -> None:
    """Raise Fault 530 for a limit beyond the one that was offered, in RabbitMQ's words; 0 stands for no limit."""
    if wanted > most > 0 or (limited and not wanted):
        shown = wanted or "0 (no limit)"
        text = f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})"
        raise Fault(NOT_ALLOWED, text, CONNECTION_TUNE_OK)


def _open(c: Connection, data: bytes, i: int, end: int) -> None:
    vhost, _ = short_string(data, i + 11, end - 1)
    c.vhost = vhost.decode(errors="replace")


def _open_ok(c: Connection, data: bytes, i: int, end: int) -> None:
    """The broker has let the client in: from here on publishes are routed."""
    c.table = c.tables(c.vhost, c.cluster)
    c.routes = c.table.routes
    c.opened, c.phase = True, Phase.RUNNING


_Handler = Callable[[Connection, bytes, int, int], bytes | None]

_OF_CLIENT: dict[int, _Handler] = {
    CONNECTION_START_OK: _start_ok,
    CONNECTION_TUNE_OK: _tune_ok,
    CONNECTION_OPEN: _open,
}
_OF_BROKER: dict[int, _Handler] = {
    CONNECTION_START: _start,
    CONNECTION_TUNE: _tune,
    CONNECTION_OPEN_OK: _open_ok,
}
"""By method: what is done with it; gives the frame that goes on, or None for as it is."""
