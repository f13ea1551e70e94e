"""Publishes by AMQP as fast as confirms come, over one connection, made of bytes prepared beforehand.

`python -m bench.direct AMQP_URL SECONDS FILE [UNDER_WAY]` prints how many messages were confirmed, and the seconds
until then; FILE holds the messages (bench/wire.py, save). With UNDER_WAY each is a write of its own, and so many are
unconfirmed at most.
"""

import itertools
import socket
import ssl
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import NamedTuple
from urllib.parse import urlsplit

from bench import BenchError, apart, wire
from proxy.wire.content import HEADERS
from proxy.wire.frames import (
    BASIC,
    BASIC_ACK,
    BASIC_PUBLISH,
    BODY,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    CONNECTION_OPEN,
    CONNECTION_START_OK,
    CONNECTION_TUNE_OK,
    FRAME,
    HEADER,
    PROTOCOL_HEADER,
    U16,
    U32,
    method_frame,
    shorted,
)

SIZE = 128
CHUNK = 500
"""The most messages in one write."""
CHUNK_BYTES = 1 << 18
"""The most bytes in one write of several messages."""
WINDOW = 10
"""The most writes without a confirm."""

_HEADER = Struct(">HHQHB")
"""A content header with one property of one octet: class, weight, body size, property flags, the property."""
_DELIVERY_MODE = 1 << 12
_LONGEST = 131072 - 8
"""The most bytes of a body in one frame: RabbitMQ's default frame_max of 131,072 less the 8 bytes around a payload."""

_ACK = Struct(">BHIIQBB")
"""A whole frame of basic.ack: type, channel, size, method, delivery tag, multiple, end octet."""


class Chunks(NamedTuple):
    """Messages prepared as the byte strings that are written to the socket."""

    chunks: Sequence[bytes]
    size: int
    """The number of messages in each chunk."""

    @classmethod
    def of(cls, messages: Sequence[bytes], most: int = CHUNK) -> "Chunks":
        """Make chunks of these messages in turn, of at most `most` messages and about CHUNK_BYTES each."""
        size = max(1, min(most, CHUNK_BYTES // max(map(len, messages))))
        starts = range(0, len(messages), size)
        return cls([b"".join(messages[(s + n) % len(messages)] for n in range(size)) for s in starts], size)


def messages_per_second(
    amqp_url: str, messages: Path, seconds: float, under_way: int | None = None
) -> tuple[float, int]:
    """Publish a file's messages for so many seconds, in a process of its own; the rate of confirms, and their number.

    With `under_way` one a write, with so many unconfirmed at most. Raises BenchError for anything but acks.
    """
    more = () if under_way is None else (under_way,)
    return apart.rate("bench.direct", amqp_url, seconds, messages, *more)


def message(
    key: str, mode: int, exchange: str = "", size: int = SIZE, *, bits: int = 0, entries: bytes | None = None
) -> bytes:
    """Return the frames of one message of that delivery mode: to a queue, by the default exchange, or to another.

    `bits` are basic.publish's; `entries` those of its headers, None for no headers.
    """
    place = shorted(exchange.encode()) + shorted(key.encode())
    method = method_frame(1, BASIC_PUBLISH, U16.pack(0) + place + bytes((bits,)))
    header = _HEADER.pack(BASIC, 0, size, _DELIVERY_MODE, mode)
    if entries is not None:
        table = U32.pack(len(entries)) + entries
        header = _HEADER.pack(BASIC, 0, size, _DELIVERY_MODE | HEADERS, 0)[:-1] + table + bytes((mode,))
    bodies = [_frame(BODY, b"x" * min(_LONGEST, size - start)) for start in range(0, size, _LONGEST)]
    return b"".join((method, _frame(HEADER, header), *bodies))


def _frame(kind: int, payload: bytes) -> bytes:
    return FRAME.pack(kind, 1, len(payload)) + payload + b"\xce"


class Acks:
    """The acks in the bytes that the broker sends on one connection."""

    def __init__(self) -> None:
        """Begin without any bytes."""
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Take bytes of the broker; delivery tags, and whether it is all up to that one.

        Raises BenchError for any frame but an ack.
        """
        data = self._rest + data
        whole = len(data) // _ACK.size * _ACK.size
        self._rest = data[whole:]
        for _, _, _, method, tag, multiple, _ in _ACK.iter_unpack(data[:whole]):
            if method != BASIC_ACK:
                raise BenchError(f"not only acks: {data[:200]!r}")
            yield tag, multiple


class Confirmed:
    """The confirmed delivery tags of one channel: all up to `upto`, and some above."""

    def __init__(self) -> None:
        """Begin without a confirm."""
        self.upto = 0
        self._above: set[int] = set()
        self._acks = Acks()

    def feed(self, data: bytes) -> None:
        """Take bytes of the broker. Raises BenchError for any frame but an ack."""
        for tag, multiple in self._acks.feed(data):
            if not multiple:
                self._above.add(tag)
            elif tag > self.upto:
                self.upto = tag
        self._above = {tag for tag in self._above if tag > self.upto}
        while self.upto + 1 in self._above:
            self.upto += 1
            self._above.remove(self.upto)


def publish(sock: socket.socket, messages: Chunks, seconds: float, window: int = WINDOW) -> tuple[int, float]:
    """Write the messages again and again; how many were confirmed, and the seconds until the last was.

    At most `window` writes are without a confirm.
    A write may block while confirms wait to be read: those of a window fit into the socket's buffers.
    """
    confirmed, sent, turn = Confirmed(), 0, itertools.cycle(messages.chunks)
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds or confirmed.upto < sent:
        while sent - confirmed.upto <= (window - 1) * messages.size and time.perf_counter() < begun + seconds:
            sock.sendall(next(turn))
            sent += messages.size
        confirmed.feed(received(sock))
    return sent, time.perf_counter() - begun


def connect(amqp_url: str) -> socket.socket:
    """Return a connection to the broker with channel 1 in confirm mode, without heartbeats; with TLS for amqps."""
    url = urlsplit(amqp_url)
    sock = socket.create_connection((url.hostname or "127.0.0.1", url.port or 5672))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if url.scheme == "amqps":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # its certificate was made for the moment
        sock = context.wrap_socket(sock)
    sock.sendall(PROTOCOL_HEADER)
    _answer(sock)
    plain = f"\0{url.username}\0{url.password}".encode()
    login = U32.pack(0) + shorted(b"PLAIN") + U32.pack(len(plain)) + plain + shorted(b"en_US")
    sock.sendall(method_frame(0, CONNECTION_START_OK, login))
    channels_and_frame_max = _answer(sock)[11:17]
    sock.sendall(method_frame(0, CONNECTION_TUNE_OK, channels_and_frame_max + U16.pack(0)))
    for channel, method, arguments in (
        (0, CONNECTION_OPEN, shorted(b"/") + shorted(b"") + b"\0"),
        (1, CHANNEL_OPEN, shorted(b"")),
        (1, CONFIRM_SELECT, b"\0"),
    ):
        sock.sendall(method_frame(channel, method, arguments))
        answer = _answer(sock)
        if U32.unpack_from(answer, FRAME.size) != (method + 1,):  # each of the three has its -ok as the next number
            raise BenchError(f"the broker answers {answer!r}")
    return sock


def _answer(sock: socket.socket) -> bytes:
    """Read one frame, which must be all that the broker sends now, and return its bytes."""
    data = b""
    while len(data) < FRAME.size or len(data) < FRAME.unpack_from(data)[2] + 8:
        data += received(sock)
    return data


def received(sock: socket.socket) -> bytes:
    """Return the bytes that have come. Raises BenchError where the broker has closed the connection."""
    data = sock.recv(1 << 18)
    if not data:
        raise BenchError("the broker closed the connection")
    return data


def main() -> None:
    """Run the command `python -m bench.direct`."""
    amqp_url, seconds, messages, *under_way = sys.argv[1:]
    found = wire.load(Path(messages))
    with connect(amqp_url) as sock:
        if under_way:
            print(*publish(sock, Chunks.of(found, 1), float(seconds), int(under_way[0])))
        else:
            print(*publish(sock, Chunks.of(found), float(seconds)))


if __name__ == "__main__":
    main()
