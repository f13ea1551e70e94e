"""The check of the frames that one side gets: whole, and each content behind its method, uninterrupted."""

from struct import error as struct_error
from struct import unpack_from
from typing import NamedTuple

from proxy.wire.frames import (
    BASIC,
    BASIC_PUBLISH,
    BASIC_RETURN,
    BODY,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    END,
    HEADER,
    METHOD,
    OVERHEAD,
)
from tests.unit.proxy.session.wire import Frame

BASIC_DELIVER, BASIC_GET_OK = BASIC << 16 | 60, BASIC << 16 | 71


def whole_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """The frames up to the connection's close, and what is left before one; fails for bytes that are no frames."""
    frames: list[Frame] = []
    at = 0
    while len(data) - at >= OVERHEAD:
        kind, channel, size = unpack_from(">BHI", data, at)
        end = at + OVERHEAD + size
        if end > len(data):
            break
        assert data[end - 1] == END, f"no frame: {data[at:end]!r}"
        frames.append(Frame(kind, channel, data[at + 7 : end - 1]))
        at = end
        if channel == 0 and method_of(frames[-1]) in (CONNECTION_CLOSE, CONNECTION_CLOSE_OK):
            return frames, b""
    return frames, data[at:]


def method_of(frame: Frame) -> int:
    """Its number; 0 for what is no method."""
    return int(unpack_from(">I", frame.payload)[0]) if frame.kind == METHOD and len(frame.payload) >= 4 else 0


_PUBLISH = frozenset({BASIC_PUBLISH})
_FROM_BROKER = frozenset({BASIC_RETURN, BASIC_DELIVER, BASIC_GET_OK})


def is_orderly(data: bytes) -> bool:
    """Return whether these frames are such as a broker sends: each content whole and behind its method."""
    try:
        frames, _ = whole_frames(data)
        contents(frames, {frame.channel for frame in frames}, _FROM_BROKER)
    except (AssertionError, struct_error):
        return False
    return True


def channels_closed(data: bytes) -> set[int]:
    """Return the channels that these frames close, as far as they are frames."""
    try:
        frames, _ = whole_frames(data)
    except AssertionError:
        return set(range(1 << 16))
    return {frame.channel for frame in frames if method_of(frame) == CHANNEL_CLOSE}


class Content(NamedTuple):
    """A message that was published whole."""

    channel: int
    exchange: bytes
    key: bytes
    body: bytes


class _Channel:
    """An open one, and of the content under way what there is."""

    def __init__(self, carriers: frozenset[int]) -> None:
        self._carriers = carriers
        self._place: tuple[bytes, bytes] | None = None
        self._left: int | None = None
        self._body = b""

    def take(self, frame: Frame) -> Content | None:
        """Return the message that is whole with this frame."""
        if frame.kind == METHOD:
            assert self._place is None, f"a method inside a content: {frame}"
            if method_of(frame) in self._carriers:
                self._place = _place(frame.payload) if method_of(frame) == BASIC_PUBLISH else (b"", b"")
        elif frame.kind == HEADER:
            assert self._place is not None, f"a content header without its method: {frame}"
            assert self._left is None, f"two content headers: {frame}"
            self._left = unpack_from(">Q", frame.payload, 4)[0]
        elif frame.kind == BODY:
            assert self._left is not None, f"a body without its content header: {frame}"
            assert len(frame.payload) <= self._left, f"more body than announced: {frame}"
            self._left -= len(frame.payload)
            self._body += frame.payload
        if self._place is None or self._left != 0:
            return None
        whole = Content(frame.channel, *self._place, self._body)
        self._place, self._left, self._body = None, None, b""
        return whole


def _place(payload: bytes) -> tuple[bytes, bytes]:
    """Exchange and routing key of a basic.publish."""
    key_at = 7 + payload[6]
    return payload[7:key_at], payload[key_at + 1 : -1]


def contents(frames: list[Frame], channels: set[int], carriers: frozenset[int] = _PUBLISH) -> list[Content]:
    """The messages that were published whole, on these channels and those that are opened, in the order of their ends.

    Fails where anything comes between a method, its content header and its bodies, which a broker answers with 505.
    `carriers` are the methods that have a content.
    """
    open_ = {number: _Channel(carriers) for number in channels}
    done = []
    for frame in frames:
        if method_of(frame) == CHANNEL_OPEN and frame.channel not in open_:
            open_[frame.channel] = _Channel(carriers)
        elif frame.channel in open_:
            whole = open_[frame.channel].take(frame)
            if whole is not None:
                done.append(whole)
            if method_of(frame) in (CHANNEL_CLOSE, CHANNEL_CLOSE_OK):
                del open_[frame.channel]
    return done
