"""AMQP 0-9-1 frames and methods by number (sections 2.3.5 and 4.2): what is read of them, and those that are made."""

from struct import Struct
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

Piece = bytes | memoryview
"""What goes on: a frame, some, or part of one."""

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
END: Final = 0xCE
OVERHEAD: Final = 8
"""Bytes of a frame that are not its payload."""
SLACK: Final = OVERHEAD
"""Bytes beyond frame_max that RabbitMQ takes (observed on 3.10.8, 4.3.6): rabbitmq-client, for one, forgets those."""

LEAST_FRAME_MAX: Final = 4096
"""What every peer takes before a limit is agreed on (AMQP section 4.2.3)."""

FRAME: Final = Struct(">BHI")
"""Of a frame's first seven bytes: type, channel, payload size."""
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")

LEAST_HEADER: Final = 14
"""Bytes of a content header without properties: class, weight, body size, flags."""

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

BASIC: Final = 60


# Methods: class, and the method within it.
CONNECTION_START: Final = 10 << 16 | 10
CONNECTION_START_OK: Final = 10 << 16 | 11
CONNECTION_SECURE: Final = 10 << 16 | 20
CONNECTION_SECURE_OK: Final = 10 << 16 | 21
CONNECTION_TUNE: Final = 10 << 16 | 30
CONNECTION_TUNE_OK: Final = 10 << 16 | 31
CONNECTION_OPEN: Final = 10 << 16 | 40
CONNECTION_OPEN_OK: Final = 10 << 16 | 41
CONNECTION_CLOSE: Final = 10 << 16 | 50
CONNECTION_CLOSE_OK: Final = 10 << 16 | 51
CONNECTION_BLOCKED: Final = 10 << 16 | 60
CONNECTION_UNBLOCKED: Final = 10 << 16 | 61
CONNECTION_UPDATE_SECRET: Final = 10 << 16 | 70
CHANNEL_OPEN: Final = 20 << 16 | 10
CHANNEL_CLOSE: Final = 20 << 16 | 40
CHANNEL_CLOSE_OK: Final = 20 << 16 | 41
EXCHANGE_DECLARE: Final = 40 << 16 | 10
EXCHANGE_DECLARE_OK: Final = 40 << 16 | 11
EXCHANGE_DELETE: Final = 40 << 16 | 20
EXCHANGE_DELETE_OK: Final = 40 << 16 | 21
EXCHANGE_BIND: Final = 40 << 16 | 30
EXCHANGE_BIND_OK: Final = 40 << 16 | 31
EXCHANGE_UNBIND: Final = 40 << 16 | 40
EXCHANGE_UNBIND_OK: Final = 40 << 16 | 51
QUEUE_DECLARE: Final = 50 << 16 | 10
QUEUE_DECLARE_OK: Final = 50 << 16 | 11
QUEUE_BIND: Final = 50 << 16 | 20
QUEUE_BIND_OK: Final = 50 << 16 | 21
QUEUE_DELETE: Final = 50 << 16 | 40
QUEUE_DELETE_OK: Final = 50 << 16 | 41
QUEUE_UNBIND: Final = 50 << 16 | 50
QUEUE_UNBIND_OK: Final = 50 << 16 | 51
BASIC_PUBLISH: Final = BASIC << 16 | 40
BASIC_DELIVER: Final = 60 << 16 | 60
BASIC_GET_OK: Final = 60 << 16 | 71
BASIC_RETURN: Final = BASIC << 16 | 50
BASIC_ACK: Final = BASIC << 16 | 80
BASIC_NACK: Final = BASIC << 16 | 120
CONFIRM_SELECT: Final = 85 << 16 | 10
TX_SELECT: Final = 90 << 16 | 10
TX_COMMIT: Final = 90 << 16 | 20
TX_COMMIT_OK: Final = 90 << 16 | 21
TX_ROLLBACK: Final = 90 << 16 | 30
TX_ROLLBACK_OK: Final = 90 << 16 | 31

MANDATORY: Final = 1
"""The first bit of basic.publish."""

REPLY_SUCCESS: Final = 200
CONNECTION_FORCED: Final = 320
CONTENT_TOO_LARGE: Final = 311
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
UNEXPECTED_FRAME: Final = 505
NOT_ALLOWED: Final = 530
INTERNAL_ERROR: Final = 541

REPLY_CODES: Final = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    NOT_ALLOWED: "NOT_ALLOWED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
"""Reply codes, as reply texts begin with them."""


def is_frame_type(kind: int) -> bool:
    """Return whether AMQP 0-9-1 has frames of that type."""
    return kind in (METHOD, HEADER, BODY, HEARTBEAT)


def method_name(method: int) -> str:
    """Return a method's class and number, as messages show it."""
    return f"method {method >> 16}.{method & 0xFFFF}"


def u16(data: bytes, at: int) -> int:
    """The unsigned integer of two bytes at `at`. Raises IndexError where there are not as many; so do the others."""
    number: int = read_i16_be(data, at)
    return number & 0xFFFF


def u32(data: bytes, at: int) -> int:
    """The unsigned integer of four bytes at `at`. Raises IndexError where there are not as many."""
    number: int = read_i32_be(data, at)
    return number & 0xFFFFFFFF


def u64(data: bytes, at: int) -> int:
    """The unsigned integer of eight bytes at `at`. Raises IndexError where there are not as many."""
    number: int = read_i64_be(data, at)
    return number if number >= 0 else number + (1 << 64)


class Fault(Exception):  # noqa: N818 - AMQP's word for what closes a connection is an exception already
    """What a client sent that the specification answers with connection.close; the text says which bytes and why."""

    def __init__(self, code: int, text: str, method: int = 0) -> None:
        """`code` is the reply code; `method` the number of the method that is to blame, 0 for none."""
        super().__init__(text)
        self.code, self.method = code, method


def short_string(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """The short string at `at`, and where it stops. Raises Fault 502 where it runs past `end`."""
    if at < end:
        stop = at + 1 + data[at]
        if stop <= end:
            return data[at + 1 : stop], stop
    raise Fault(SYNTAX_ERROR, "a short string runs past its frame")


def shorted(text: bytes) -> bytes:
    """A short string of these bytes, cut to 255."""
    text = text[:255]
    return bytes((len(text),)) + text


def reply_text(text: bytes, most: int = 255) -> bytes:
    """At most so many bytes of a text, cut between characters: clients decode it."""
    return text[: max(most, 0)].decode(errors="ignore").encode()


def method_frame(channel: int, method: int, arguments: bytes = b"") -> bytes:
    """A method frame."""
    return FRAME.pack(METHOD, channel, 4 + len(arguments)) + U32.pack(method) + arguments + b"\xce"


def close_frame(channel: int, code: int, text: str, method: int = 0) -> bytes:
    """A channel.close, or for channel 0 a connection.close, in the manner of RabbitMQ's reply texts."""
    reply = shorted(reply_text(f"{REPLY_CODES[code]} - {text}".encode()))
    arguments = U16.pack(code) + reply + U32.pack(method)
    return method_frame(channel, CHANNEL_CLOSE if channel else CONNECTION_CLOSE, arguments)
