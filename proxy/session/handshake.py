"""The handshake of client and broker, from connection.start to connection.open-ok, as a table of steps.

Until the broker's open-ok a session has no virtual host: no routes, no channels, nothing that is counted, looked up or
journalled. No I/O: frames go in, and what goes on in their place comes out.
"""

import functools
import hashlib
import secrets
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from proxy.process.identity import of_sidecar
from proxy.wire import table
from proxy.wire.arguments import Arguments, broker_in
from proxy.wire.frames import (
    COMMAND_INVALID,
    CONNECTION_CLOSE,
    CONNECTION_OPEN,
    CONNECTION_OPEN_OK,
    CONNECTION_SECURE,
    CONNECTION_SECURE_OK,
    CONNECTION_START,
    CONNECTION_START_OK,
    CONNECTION_TUNE,
    CONNECTION_TUNE_OK,
    END,
    FRAME_ERROR,
    HEARTBEAT,
    LEAST_FRAME_MAX,
    METHOD,
    NOT_ALLOWED,
    PROTOCOL_HEADER,
    SLACK,
    SYNTAX_ERROR,
    U16,
    U32,
    UNEXPECTED_FRAME,
    Fault,
    checked_method,
    is_frame_type,
    method_frame,
    method_name,
)

HANDSHAKE_FRAME_MAX = 1 << 17
"""The most bytes of a frame that this proxy takes before tune-ok; the broker's own limit may be lower."""


LONG_LOGIN: Final = 8192
"""The most bytes of connection.start-ok that RabbitMQ takes from `_LONG_LOGINS` on, for the sake of access tokens."""

_LONG_LOGINS: Final = 4, 1
"""The first version of RabbitMQ that takes more than LEAST_FRAME_MAX bytes there."""


class Step(IntEnum):
    """How far the handshake of a session has come; `handshake.STEPS` says what leads from one step to the next."""

    STARTING = 0
    """The broker's start is due."""
    LOGIN = 1
    """The client's start-ok is due."""
    JUDGED = 2
    """The broker's secure or tune is due."""
    CHALLENGED = 3
    """The client's secure-ok is due."""
    TUNING = 4
    """The client's tune-ok is due."""
    TUNED = 5
    """The client's open is due."""
    OPENING = 6
    """The broker's open-ok is due."""
    OPENED = 7
    """The broker has let the client in."""
    LEFT = 8
    """The client has sent close: the broker's answer is due."""


BROKERS_TURN: Final = frozenset((Step.STARTING, Step.JUDGED, Step.OPENING, Step.LEFT))
"""Steps at which the broker speaks next, so that nothing is taken of the client."""


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

_MOST_CHANNELS = (1 << 16) - 1

_TUNE = 8
"""Bytes of the arguments of connection.tune and connection.tune-ok."""

_CANCEL_NOTIFY = b"consumer_cancel_notify"

MOST_FRAME_MAX: Final = 1 << 24
"""The most bytes of a method or header frame if the peers agree on no limit; body frames pass as they come."""


@functools.cache
def _inventory() -> dict[bytes, bytes]:
    """Return this proxy's client properties, each as a field of a table, by name."""
    names = {name.encode(): value.encode() for name, value in of_sidecar().items()}
    return {name: table.text_field(name, value) for name, value in names.items()}


_DIGEST_KEY: Final = secrets.token_bytes(32)


def digest(login: bytes) -> bytes:
    """Return a digest of connection.start-ok, whose password is not to stay in memory; it holds for this process."""
    return hashlib.blake2b(login, key=_DIGEST_KEY, digest_size=32).digest()


def is_protocol_header(data: bytes) -> bool | None:
    """Return whether a client's first bytes are AMQP 0-9-1's protocol header; None if more are needed to tell."""
    if not any(header.startswith(data[: len(header)]) for header in _TAKEN_HEADERS):
        return False
    return True if len(data) >= len(PROTOCOL_HEADER) else None


class Handshake:
    """The terms that the peers of one session agree on; complete at the step OPENED, kept as long as the session."""

    __slots__ = (
        "allowed_mechanisms", "cancel_notify", "channel_max", "cluster", "cluster_told_at", "connection_name",
        "frame_max", "heartbeat", "hidden", "kept_back", "offered_channel_max", "offered_frame_max",
        "spare", "step", "terms", "user", "version", "vhost", "wanted",
    )  # fmt: skip

    def __init__(self, allowed_mechanisms: frozenset[bytes]) -> None:
        """Start with nothing agreed on; `allowed_mechanisms` are the mechanisms of LENT that the operator allows."""
        self.allowed_mechanisms = allowed_mechanisms
        self.kept_back = 0
        """How many channels an interceptor wants to have kept back from the client; 0 without one."""
        self.step = Step.STARTING
        """How far the handshake has come."""
        self.cluster: str | None = None
        """The name that the broker's cluster goes by; None if the broker gave none."""
        self.version = (0, 0)
        """The broker's version, its first two numbers; 0.0 if they are not known."""
        self.cluster_told_at = 0.0
        """The monotonic time at which the broker gave the cluster's name."""
        self.user = b""
        """The user who logs in, as far as PLAIN shows it; else empty."""
        self.offered_channel_max = self.offered_frame_max = 0
        """The broker's limits; 0 for no limit."""
        self.frame_max = HANDSHAKE_FRAME_MAX
        """The most bytes of a frame of the client's."""
        self.channel_max = 0
        """The client's highest channel number."""
        self.spare = 0
        """The number of the channel that is kept back from the client for this proxy; 0 if there is none."""
        self.hidden = 0
        """How many channels are kept back for the interceptor; their numbers follow that of `spare`."""
        self.cancel_notify = True
        """Whether the client takes a basic.cancel of the broker's; told apart only with an interceptor."""
        self.connection_name = b""
        """The name that the client has given its connection; empty if none, and without an interceptor."""
        self.heartbeat = 0
        """Seconds between heartbeats; 0 for none."""
        self.vhost = ""
        """The virtual host that the client asks for."""
        self.terms: list[bytes] | None = None
        """The frames between this proxy and the broker, with a digest in place of start-ok (`kept.Terms`).

        None if the broker connection is not to be kept for another client.
        """
        self.wanted: Callable[[], bool] = bool
        """Whether the broker connection would be kept if the client left now and another could use it."""

    def from_client(self, data: bytes, i: int, end: int) -> bytes:
        """Take the client's frame from `i` to `end` of `data`, at a step when it is the client's turn.

        Returns the frame that the broker gets. Raises Fault for a broken frame, and for a method that `STEPS` does not
        have for this step.
        """
        if data[end - 1] != END:
            raise Fault(FRAME_ERROR, f"a frame of type {data[i]} does not end with the frame-end octet")
        if data[i] == HEARTBEAT:
            return data[i:end]
        method = checked_method(data, i, end)
        following = STEPS[self.step].get(method)
        if following is None:
            raise Fault(COMMAND_INVALID, f"{method_name(method)} came out of turn on channel 0", method)
        handler = _FROM_CLIENT.get(method)
        replaced = handler(self, Arguments(data, i, end)) if handler is not None else None
        self.step = following
        sent = data[i:end] if replaced is None else replaced
        if self.terms is not None:
            self.terms.append(digest(sent) if method == CONNECTION_START_OK else sent)
        return sent

    def from_broker(self, method: int, data: bytes, i: int, end: int, now: float) -> bytes | None:
        """Take the broker's method; return what the client gets in its place, or None for the frame as it is.

        Raises Fault for a method that `STEPS` does not have for this step. `now` is monotonic.
        """
        following = STEPS[self.step].get(method)
        if following is None or self.step not in BROKERS_TURN:
            raise Fault(
                COMMAND_INVALID, f"the broker's {method_name(method)} came out of turn, at the step {self.step.name}"
            )
        self.step = following
        if self.terms is not None:
            self.terms.append(data[i:end])
        if method == CONNECTION_START:
            self.cluster_told_at = now
            return _start(self, Arguments(data, i, end))
        return _tune(self, Arguments(data, i, end)) if method == CONNECTION_TUNE else None

    def check(self, kind: int, number: int, size: int) -> None:
        """Raise Fault for a frame that no handshake has, by its type, its channel and its size in bytes."""
        # The frame_max that a client states counts for bodies: no method of a handshake is as long.
        limit = min(self.frame_max, HANDSHAKE_FRAME_MAX)
        if size > limit + SLACK:
            raise Fault(FRAME_ERROR, f"a frame of {size} bytes, at most {limit} are taken here")
        if not is_frame_type(kind):
            raise Fault(FRAME_ERROR, f"a frame of the unknown type {kind}")
        if number or kind not in (METHOD, HEARTBEAT):
            # RabbitMQ answers 505 to whatever the frame is (observed on 3.10.8 and 4.3.6).
            raise Fault(UNEXPECTED_FRAME, f"a frame of type {kind} on channel {number} before the connection is open")


def _start(h: Handshake, arguments: Arguments) -> bytes:
    """Return connection.start without the mechanisms that would lend this proxy's identity; note what broker it is."""
    h.cluster, h.version = broker_in(arguments)
    before = arguments.read
    mechanisms = b" ".join(m for m in arguments.long_string().split() if m not in LENT or m in h.allowed_mechanisms)
    return method_frame(0, CONNECTION_START, before + U32.pack(len(mechanisms)) + mechanisms + arguments.rest)


def _start_ok(h: Handshake, arguments: Arguments) -> bytes | None:
    """Return connection.start-ok with this proxy's client properties; None if they do not fit a frame of a login.

    `arguments` are the client's. Raises Fault if they cannot be read, or name a mechanism that is not allowed.
    """
    if arguments.left < 4:
        raise Fault(SYNTAX_ERROR, "connection.start-ok stops early", CONNECTION_START_OK)
    size = arguments.long()
    if size > arguments.left:
        raise Fault(SYNTAX_ERROR, "the client properties are longer than their frame", CONNECTION_START_OK)
    given = arguments.octets(size)
    behind = arguments.rest
    mechanism = arguments.short_string()
    if mechanism in LENT and mechanism not in h.allowed_mechanisms:
        text = f"mechanism {mechanism.decode()} is not allowed by this sidecar; see its setting allow_mechanisms"
        raise Fault(COMMAND_INVALID, text, CONNECTION_START_OK)
    if mechanism in LENT:
        h.terms = None
    if mechanism == b"PLAIN":
        # RFC 4616: the identity to act as, the user, the password.
        h.user = b"".join(arguments.rest[4:].split(b"\0")[1:2])
    properties, _ = table.without(given, 0, size, _inventory())
    properties += b"".join(_inventory().values())
    if h.kept_back:
        properties = _with_cancel_notify(h, properties)
    made = method_frame(0, CONNECTION_START_OK, U32.pack(len(properties)) + properties + behind)
    return made if len(made) <= (LONG_LOGIN if h.version >= _LONG_LOGINS else LEAST_FRAME_MAX) else None


def _with_cancel_notify(h: Handshake, properties: bytes) -> bytes:
    """Return client properties that ask for basic.cancel of the broker's, and note whether the client's have.

    Only such a cancel tells an interceptor that a queue from which it consumes was deleted.
    """
    size = len(properties)
    h.connection_name = table.text(properties, b"connection_name") or b""
    field = table.find(properties, 0, size, b"capabilities")
    capabilities = b""
    if field is not None and field.kind == ord("F"):
        capabilities = properties[field.value + 4 : field.stop]
        asked = table.find(capabilities, 0, len(capabilities), _CANCEL_NOTIFY)
        if asked is not None and asked.kind == ord("t") and capabilities[asked.value]:
            return properties
    h.cancel_notify = False
    capabilities, _ = table.without(capabilities, 0, len(capabilities), (_CANCEL_NOTIFY,))
    capabilities += bytes((len(_CANCEL_NOTIFY),)) + _CANCEL_NOTIFY + b"t\1"
    others, _ = table.without(properties, 0, size, (b"capabilities",))
    return others + b"\x0ccapabilitiesF" + U32.pack(len(capabilities)) + capabilities


def _tune(h: Handshake, arguments: Arguments) -> bytes:
    """Return connection.tune with fewer channels; those left out stay for this proxy.

    Raises Fault for another length.
    """
    if arguments.left != _TUNE:
        raise Fault(SYNTAX_ERROR, "connection.tune is not of its length")
    h.offered_channel_max = arguments.short()
    behind = arguments.rest
    h.offered_frame_max = arguments.long()
    return method_frame(0, CONNECTION_TUNE, U16.pack(_most_channels(h)) + behind)


def _most_channels(h: Handshake) -> int:
    """Return the channel_max that the client was offered."""
    return max((h.offered_channel_max or _MOST_CHANNELS) - 1 - _hidden(h), 1)


def _hidden(h: Handshake) -> int:
    """Return how many channels are kept back for the interceptor: as many as it wants, or half of the broker's."""
    return min((h.offered_channel_max or _MOST_CHANNELS) // 2, h.kept_back)


def _tune_ok(h: Handshake, arguments: Arguments) -> bytes:
    """Return connection.tune-ok with the channels that are kept for this proxy added again.

    A frame_max below LEAST_FRAME_MAX counts as that here, and passes as it is. Raises Fault 502 for another length, and
    530 if the client asks for more than was offered.
    """
    if arguments.left != _TUNE:
        raise Fault(SYNTAX_ERROR, "connection.tune-ok is not of its length", CONNECTION_TUNE_OK)
    wanted = arguments.short()
    behind = arguments.rest
    frame_max = arguments.long()
    _check_negotiated("channel_max", wanted, _most_channels(h), limited=h.offered_channel_max > 0)
    _check_negotiated("frame_max", frame_max, h.offered_frame_max, limited=h.offered_frame_max > 0)
    h.heartbeat = arguments.short()
    h.frame_max = max(frame_max, LEAST_FRAME_MAX) if frame_max else MOST_FRAME_MAX
    most = h.offered_channel_max or _MOST_CHANNELS
    # A limit of 0 stands for as many as there are numbers.
    h.channel_max = wanted or _MOST_CHANNELS - 1 - _hidden(h)
    kept = min(1 + _hidden(h), most - h.channel_max)
    h.spare = h.channel_max + 1 if kept else 0
    h.hidden = max(kept - 1, 0)
    return method_frame(0, CONNECTION_TUNE_OK, U16.pack(wanted + kept if wanted else 0) + behind)


def _check_negotiated(name: str, wanted: int, most: int, *, limited: bool) -> None:
    """Raise Fault 530, in RabbitMQ's words, if `wanted` is beyond the limit that was offered; 0 stands for no limit."""
    if wanted > most > 0 or (limited and not wanted):
        shown = wanted or "0 (no limit)"
        text = f"negotiated {name} = {shown} is higher than the maximum allowed value ({most})"
        raise Fault(NOT_ALLOWED, text, CONNECTION_TUNE_OK)


def _open(h: Handshake, arguments: Arguments) -> None:
    h.vhost = arguments.short_string().decode(errors="replace")


_FROM_CLIENT: dict[int, Callable[[Handshake, Arguments], bytes | None]] = {
    CONNECTION_START_OK: _start_ok,
    CONNECTION_TUNE_OK: _tune_ok,
    CONNECTION_OPEN: _open,
}
"""By method of the client's: what notes it, and returns the frame that goes on, or None for the frame as it is."""
