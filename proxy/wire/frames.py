"""AMQP 0-9-1 frames and methods (sections 2.3.5 and 4.2): their numbers, and how they are read and made."""

# mypyc: compiled

from struct import Struct
from typing import Final

from librt.strings import read_i16_be, read_i32_be, read_i64_be

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"

Piece = bytes | memoryview
"""Bytes to be written: a frame, several frames, or part of one."""

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8
END: Final = 0xCE
OVERHEAD: Final = 8
"""Bytes of a frame besides its payload: type, channel, size, and the end octet."""
LEAST_METHOD: Final = OVERHEAD + 4
"""Bytes of a frame with a method and nothing else."""
SLACK: Final = OVERHEAD
"""Bytes beyond frame_max that RabbitMQ takes (observed on 3.10.8 and 4.3.6): rabbitmq-client forgets those."""

LEAST_FRAME_MAX: Final = 4096
"""Bytes of a frame that every peer must take, before connection.tune and as its least limit (AMQP section 4.2.3)."""

FRAME: Final = Struct(">BHI")
"""The first seven bytes of a frame: type, channel, payload size."""
U16: Final = Struct(">H")
U32: Final = Struct(">I")
U64: Final = Struct(">Q")

LEAST_HEADER: Final = 14
"""Bytes of a content header's payload without properties: class, weight, body size, flags."""

EMPTY_TABLE: Final = b"\0\0\0\0"

HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

BASIC: Final = 60
"""The class of all methods about messages."""

# Methods, as the four bytes that begin their payload: the class in the upper two, and the method within it.
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
CHANNEL_OPEN_OK: Final = 20 << 16 | 11
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
QUEUE_PURGE: Final = 50 << 16 | 30
QUEUE_DELETE: Final = 50 << 16 | 40
QUEUE_DELETE_OK: Final = 50 << 16 | 41
QUEUE_UNBIND: Final = 50 << 16 | 50
QUEUE_UNBIND_OK: Final = 50 << 16 | 51
BASIC_QOS: Final = BASIC << 16 | 10
BASIC_CONSUME: Final = BASIC << 16 | 20
BASIC_CONSUME_OK: Final = BASIC << 16 | 21
BASIC_CANCEL: Final = BASIC << 16 | 30
BASIC_CANCEL_OK: Final = BASIC << 16 | 31
BASIC_PUBLISH: Final = BASIC << 16 | 40
BASIC_RETURN: Final = BASIC << 16 | 50
BASIC_DELIVER: Final = BASIC << 16 | 60
BASIC_GET: Final = BASIC << 16 | 70
BASIC_GET_OK: Final = BASIC << 16 | 71
BASIC_GET_EMPTY: Final = BASIC << 16 | 72
BASIC_ACK: Final = BASIC << 16 | 80
BASIC_REJECT: Final = BASIC << 16 | 90
BASIC_RECOVER_ASYNC: Final = BASIC << 16 | 100
BASIC_RECOVER: Final = BASIC << 16 | 110
BASIC_NACK: Final = BASIC << 16 | 120
CONFIRM_SELECT: Final = 85 << 16 | 10
TX_SELECT: Final = 90 << 16 | 10
TX_COMMIT: Final = 90 << 16 | 20
TX_COMMIT_OK: Final = 90 << 16 | 21
TX_ROLLBACK: Final = 90 << 16 | 30
TX_ROLLBACK_OK: Final = 90 << 16 | 31

CONTENTS: Final = (BASIC_DELIVER, BASIC_GET_OK, BASIC_RETURN)
"""The broker's methods that a content follows."""

# Bits of methods, by the octet in which they stand.
MANDATORY: Final = 1
"""The bit of basic.publish by which a message that no queue takes comes back by basic.return."""
MULTIPLE: Final = 1
"""The bit of basic.ack and basic.nack that makes it one of all deliveries or publishes up to the tag."""
REQUEUE: Final = 2
"""The bit of basic.nack by which the queue gets the delivery back."""
REJECT_REQUEUE: Final = 1
"""The bit of basic.reject by which the queue gets the delivery back."""
NO_ACK: Final = 2
"""The bit of basic.consume by which deliveries need no ack."""
EXCLUSIVE: Final = 4
"""The bit of basic.consume by which no other consumer may be at the queue."""
CONSUME_NOWAIT: Final = 8
"""The bit of basic.consume that asks for no -ok."""
PASSIVE: Final = 1
"""The bit of queue.declare and exchange.declare by which nothing is made."""
EXCLUSIVE_QUEUE: Final = 4
"""The bit of queue.declare by which the queue belongs to the connection, and ends with it."""
DECLARE_NOWAIT: Final = 16
"""The bit of queue.declare and exchange.declare that asks for no -ok."""

REPLY_SUCCESS: Final = 200
CONNECTION_FORCED: Final = 320
CONTENT_TOO_LARGE: Final = 311
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
INTERNAL_ERROR: Final = 541

REPLY_CODES: Final = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
"""The names of reply codes, with which RabbitMQ's reply texts begin."""


def is_frame_type(kind: int) -> bool:
    """Return whether AMQP 0-9-1 has frames of that type."""
    return kind in (METHOD, HEADER, BODY, HEARTBEAT)


def method_name(method: int) -> str:
    """Return a method's class and number, as messages show it."""
    return f"method {method >> 16}.{method & 0xFFFF}"


def u16(data: bytes, at: int) -> int:
    """Return the unsigned integer of two bytes at `at`. Raises IndexError where the data ends before."""
    number: int = read_i16_be(data, at)
    return number & 0xFFFF


def u32(data: bytes, at: int) -> int:
    """Return the unsigned integer of four bytes at `at`. Raises IndexError where the data ends before."""
    number: int = read_i32_be(data, at)
    return number & 0xFFFFFFFF


def u64(data: bytes, at: int) -> int:
    """Return the unsigned integer of eight bytes at `at`. Raises IndexError where the data ends before."""
    number: int = read_i64_be(data, at)
    return number if number >= 0 else number + (1 << 64)


def method_of(data: bytes, i: int) -> int:
    """Return the method of the method frame at `i`. Raises IndexError where the data ends before."""
    return u32(data, i + 7)


class Fault(Exception):  # noqa: N818 - AMQP's word for what closes a connection is an exception already
    """A breach of the protocol by a peer, which AMQP answers with connection.close; the text says what is wrong."""

    def __init__(self, code: int, text: str, method: int = 0) -> None:
        """Take the reply code, the text, and the number of the method that is to blame; 0 for none."""
        super().__init__(text)
        self.code, self.method = code, method


def checked_method(data: bytes, i: int, end: int) -> int:
    """Return the method of the method frame from `i` to `end`. Raises Fault 502 if it is too short."""
    if end - i < LEAST_METHOD:
        raise Fault(SYNTAX_ERROR, "a method frame too short for a method")
    return method_of(data, i)


def short_string(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """Return the short string at `at`, and the offset behind it. Raises Fault 502 where it runs past `end`."""
    if at < end:
        stop = at + 1 + data[at]
        if stop <= end:
            return data[at + 1 : stop], stop
    raise Fault(SYNTAX_ERROR, "a short string runs past its frame")


def shorted(text: bytes) -> bytes:
    """Return text, cut to 255 bytes, as a short string (AMQP section 4.2.5.3)."""
    text = text[:255]
    return bytes((len(text),)) + text


def reply_text(text: bytes, most: int = 255) -> bytes:
    """Return at most `most` bytes of a text, cut between characters, since clients decode it."""
    return text[: max(most, 0)].decode(errors="ignore").encode()


def method_frame(channel: int, method: int, arguments: bytes = b"") -> bytes:
    """Return a method frame on a channel."""
    return FRAME.pack(METHOD, channel, 4 + len(arguments)) + U32.pack(method) + arguments + b"\xce"


def channel_open(channel: int) -> bytes:
    """Return a channel.open frame."""
    return method_frame(channel, CHANNEL_OPEN, b"\0")


def readdressed(channel: int, data: bytes, i: int, end: int) -> bytes:
    """Return the frame from `i` to `end` as one of another channel."""
    return data[i : i + 1] + U16.pack(channel) + data[i + 3 : end]


def close_frame(channel: int, code: int, text: str, method: int = 0) -> bytes:
    """Return a channel.close frame, or for channel 0 a connection.close frame, with a reply text like RabbitMQ's."""
    name = REPLY_CODES.get(code, "")
    reply = shorted(reply_text(f"{name} - {text.removeprefix(f'{name} - ')}".encode() if name else text.encode()))
    arguments = U16.pack(code) + reply + U32.pack(method)
    return method_frame(channel, CHANNEL_CLOSE if channel else CONNECTION_CLOSE, arguments)
