"""HTTP/1.1 as bytes, for clients that must cost little: requests made beforehand, answers split off what comes in."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from struct import Struct
from typing import NamedTuple

_SIZE = Struct(">I")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.I)
_CLOSE = re.compile(rb"\r\nconnection: *close\r\n", re.I)


def post(path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
    """Return a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


class Answer(NamedTuple):
    """The parts of an HTTP answer that the load generator needs."""

    status: int
    closes: bool
    """The server closes the connection after it."""


class Answers:
    """Splits one connection's bytes into answers."""

    def __init__(self) -> None:
        """At the beginning of a connection."""
        self._buffer = b""

    def feed(self, data: bytes) -> list[Answer]:
        """Return the answers that end in `data`. Raises ValueError for one without a Content-Length, but for a 204."""
        self._buffer += data
        found = []
        while (split := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[: split + 2]
            status, length = int(head[9:12]), _LENGTH.search(head)
            if length is None and status != 204:
                raise ValueError(f"an answer without Content-Length: {head!r}")
            end = split + 4 + (int(length[1]) if length else 0)
            if len(self._buffer) < end:
                break
            found.append(Answer(status, _CLOSE.search(head) is not None))
            self._buffer = self._buffer[end:]
        return found


def save(path: Path, requests: Iterable[bytes]) -> None:
    """Write requests to a file for a client in another process: each with its size before it, in four bytes."""
    path.write_bytes(b"".join(_SIZE.pack(len(request)) + request for request in requests))


def load(path: Path) -> list[bytes]:
    """Return the requests that `save` wrote."""
    data, at, found = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size + size
        found.append(data[at - size : at])
    return found
