"""Deliveries by AMQP as fast as they come, over one connection and channel.

`python -m bench.delivered AMQP_URL COUNT PREFETCH ACKS NAME...` consumes COUNT messages from the queues, or from the
name of a group. It prints the seconds from the first delivery to the last one, and its own CPU seconds between them.
"""

import socket
import sys
import time
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from bench import BenchError, apart, direct
from proxy.wire.frames import (
    BASIC_ACK,
    BASIC_CONSUME,
    BASIC_DELIVER,
    BASIC_QOS,
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    FRAME,
    METHOD,
    U16,
    U32,
    U64,
    method_frame,
    shorted,
)

_PATIENCE = 30.0
"""Seconds without a byte after which the consumer gives up."""

_ENDS = frozenset({CHANNEL_CLOSE, CONNECTION_CLOSE})


class Acks(StrEnum):
    """How the consumer acks what it gets."""

    MULTIPLE = "multiple"
    """One ack for half a prefetch of deliveries, whichever queues they are of."""
    SINGLE = "single"
    """One ack for each delivery; those of one read are written together."""


class Consumed(NamedTuple):
    """How long a consumer took for all deliveries of one measurement, and how much CPU time."""

    seconds: float
    """The time between the consumer's first delivery and its last one."""
    cpu: float
    """The CPU seconds of the consumer's process."""


class Deliveries:
    """The deliveries in the bytes that the broker sends on one connection."""

    def __init__(self) -> None:
        """Begin without any bytes."""
        self.seen = 0
        self.tag = 0
        """The delivery tag of the last one."""
        self.ended = False
        """Whether the broker has closed the connection as it was asked to."""
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take bytes of the broker. Raises BenchError where it closes by itself."""
        data, at = self._rest + data, 0
        while len(data) - at >= FRAME.size:
            kind, _, size = FRAME.unpack_from(data, at)
            end = at + FRAME.size + size + 1
            if end > len(data):
                break
            if kind == METHOD:
                (method,) = U32.unpack_from(data, at + FRAME.size)
                if method == BASIC_DELIVER:
                    self.seen += 1
                    (self.tag,) = U64.unpack_from(data, at + 12 + data[at + 11])
                elif method in _ENDS:
                    raise BenchError(f"closed: {data[at:end]!r}")
                else:
                    self.ended |= method == CONNECTION_CLOSE_OK
            at = end
        self._rest = data[at:]


def consumed(amqp_url: str, count: int, names: Sequence[str], prefetch: int, acks: Acks) -> Consumed:
    """Consume so many messages in a process of its own. Raises BenchError where they do not come.

    `names` are queues, each with a consumer of its own, or one name of a group.
    """
    return Consumed(*apart.figures("bench.delivered", amqp_url, count, prefetch, acks, *names))


def consume(sock: socket.socket, count: int, names: Sequence[str], prefetch: int, acks: Acks) -> Consumed:
    """Consume so many messages on an open connection, ack all of them, and close the connection."""
    deliveries, acked, begun, spent = Deliveries(), 0, 0.0, 0.0
    each = max(prefetch // 2, 1) if acks is Acks.MULTIPLE else 1
    sock.settimeout(_PATIENCE)
    sock.sendall(consume_frames(names, prefetch))
    while deliveries.seen < count:
        deliveries.feed(direct.received(sock))
        if not begun and deliveries.seen:
            begun, spent = time.perf_counter(), time.process_time()
        if deliveries.seen - acked >= each or deliveries.seen >= count:
            sock.sendall(acks_of(acked, deliveries.tag, acks))
            acked = deliveries.seen
    found = Consumed(time.perf_counter() - begun, time.process_time() - spent)
    # The acks count once the broker has answered what comes behind them. It then leaves the socket open for 30 s.
    goodbye = U16.pack(200) + shorted(b"done") + U32.pack(0)
    sock.sendall(method_frame(1, CHANNEL_CLOSE, goodbye) + method_frame(0, CONNECTION_CLOSE, goodbye))
    while not deliveries.ended:
        deliveries.feed(direct.received(sock))
    return found


def consume_frames(names: Sequence[str], prefetch: int) -> bytes:
    """Return the frames that consume from these names on channel 1; a prefetch of 0 is no limit."""
    frames = [method_frame(1, BASIC_QOS, U32.pack(0) + U16.pack(prefetch) + b"\0")]
    for name in names:
        place = b"\0\0" + shorted(name.encode()) + shorted(name.encode())
        frames.append(method_frame(1, BASIC_CONSUME, place + b"\0" + U32.pack(0)))
    return b"".join(frames)


def acks_of(before: int, last: int, acks: Acks) -> bytes:
    """Return the frames that ack the deliveries behind `before`, up to `last`."""
    if acks is Acks.MULTIPLE:
        return method_frame(1, BASIC_ACK, U64.pack(last) + b"\1")
    return b"".join(method_frame(1, BASIC_ACK, U64.pack(tag) + b"\0") for tag in range(before + 1, last + 1))


def main() -> None:
    """Run the command `python -m bench.delivered`."""
    amqp_url, count, prefetch, acks, *names = sys.argv[1:]
    with direct.connect(amqp_url) as sock:
        print(*consume(sock, int(count), names, int(prefetch), Acks(acks)))


if __name__ == "__main__":
    main()
