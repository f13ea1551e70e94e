"""The client's half of the AMQP handshake (section 2.2.4): the frames that answer connection.start and connection.tune.

The protocol header goes out before the first of them, and connection.open-ok ends the handshake.
"""

# mypyc: compiled

from collections.abc import Mapping
from typing import NamedTuple

from proxy import __version__
from proxy.wire.arguments import Arguments
from proxy.wire.frames import (
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    CONNECTION_UPDATE_SECRET,
    FRAME_ERROR,
    LEAST_FRAME_MAX,
    U16,
    U32,
    Fault,
    method_frame,
    shorted,
)
from proxy.wire.properties import encoded_headers

HEARTBEAT = 20
"""The most seconds between heartbeats; the broker's own interval is taken if that is shorter."""

MAX_CHANNELS = 256
"""Channels of one connection, at most: one for each exchange that is published to, and those that are being closed."""

LONGEST_FRAME = 1 << 24
"""The most bytes of a frame's payload that this sidecar takes if the broker sets no limit."""

_CAPABILITIES = dict.fromkeys(
    ("publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close"), True
)
"""Capabilities told to the broker; without the last one RabbitMQ drops the socket of a refused login without a word."""


class Limits(NamedTuple):
    """The limits of one connection that connection.tune and its answer have agreed on."""

    channel_max: int
    """Channels at once, at most."""
    frame_max: int
    """Bytes of a frame, at most."""
    heartbeat: int
    """Seconds between the heartbeats of each peer."""


INITIAL_LIMITS = Limits(MAX_CHANNELS, LONGEST_FRAME, HEARTBEAT)
"""The limits of a connection before connection.tune."""


def start_ok(user: str, password: str, vhost: str, inventory: Mapping[str, str]) -> bytes:
    """Return the connection.start-ok frame that logs in by PLAIN (RFC 4616) and says who connects.

    `inventory` are client properties beside those of every client, such as `identity.of_sidecar()`.
    """
    properties = {
        "product": "ringproxy",
        "version": __version__,
        "platform": "Python",
        "connection_name": f"ringproxy {vhost}",
        **inventory,
        "capabilities": _CAPABILITIES,
    }
    response = f"\0{user}\0{password}".encode()
    arguments = encoded_headers(properties) + shorted(b"PLAIN") + U32.pack(len(response)) + response
    return method_frame(0, CONNECTION_START_OK, arguments + shorted(b"en_US"))


def tune_ok(tune: Arguments) -> tuple[bytes, Limits]:
    """Return the connection.tune-ok frame for the arguments of connection.tune, and the limits that it agrees on.

    A proposal of 0 sets no limit, and for the heartbeat asks for none: this sidecar wants heartbeats all the same.
    Raises Fault for frames that are shorter than every peer must take.
    """
    channel_max, frame_max = tune.short(), tune.long()
    if 0 < frame_max < LEAST_FRAME_MAX:
        raise Fault(FRAME_ERROR, f"frames of {frame_max} bytes, {LEAST_FRAME_MAX} are the least")
    channel_max = min(channel_max or MAX_CHANNELS, MAX_CHANNELS)
    heartbeat = min(tune.short() or HEARTBEAT, HEARTBEAT)
    frame = method_frame(0, CONNECTION_TUNE_OK, U16.pack(channel_max) + U32.pack(frame_max) + U16.pack(heartbeat))
    return frame, Limits(channel_max, frame_max or LONGEST_FRAME, heartbeat)


def update_secret(secret: bytes, reason: bytes) -> bytes:
    """Return the connection.update-secret frame, by which the user of an open connection logs in anew."""
    return method_frame(0, CONNECTION_UPDATE_SECRET, U32.pack(len(secret)) + secret + shorted(reason))


def open_vhost(vhost: str) -> bytes:
    """Return the connection.open frame for a virtual host; surrogates in its name stand for bytes that are no UTF-8."""
    return method_frame(0, CONNECTION_OPEN, shorted(vhost.encode("utf-8", "surrogateescape")) + b"\0\0")
