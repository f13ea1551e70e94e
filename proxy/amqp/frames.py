"""AMQP 0-9-1 frames and methods by number (sections 2.3.5 and 4.2): what is read of them, and those that are made."""

from struct import Struct

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
END = 0xCE
OVERHEAD = 8
"""Bytes of a frame that are not its payload."""
SLACK = OVERHEAD
"""Bytes beyond frame_max that RabbitMQ takes (3.10 and 4.3, run): clients such as rabbitmq-client forget those."""

LEAST_FRAME_MAX = 4096
"""What every peer takes before a limit is agreed on (AMQP section 4.2.3)."""

FRAME = Struct(">BHI")
"""Of a frame's first seven bytes: type, channel, payload size."""
U16, U32, U64 = Struct(">H"), Struct(">I"), Struct(">Q")

LEAST_HEADER = 14
"""Bytes of a content header without properties: class, weight, body size, flags."""

HEARTBEAT_FRAME = b"\x08\x00\x00\x00\x00\x00\x00\xce"

BASIC = 60


def _id(class_id: int, method_id: int) -> int:
    return class_id << 16 | method_id


CONNECTION_START, CONNECTION_START_OK = _id(10, 10), _id(10, 11)
CONNECTION_SECURE_OK = _id(10, 21)
CONNECTION_TUNE, CONNECTION_TUNE_OK = _id(10, 30), _id(10, 31)
CONNECTION_OPEN, CONNECTION_OPEN_OK = _id(10, 40), _id(10, 41)
CONNECTION_CLOSE, CONNECTION_CLOSE_OK = _id(10, 50), _id(10, 51)
CONNECTION_BLOCKED, CONNECTION_UNBLOCKED = _id(10, 60), _id(10, 61)
CONNECTION_UPDATE_SECRET = _id(10, 70)
CHANNEL_OPEN = _id(20, 10)
CHANNEL_CLOSE, CHANNEL_CLOSE_OK = _id(20, 40), _id(20, 41)
EXCHANGE_DECLARE, EXCHANGE_DECLARE_OK = _id(40, 10), _id(40, 11)
EXCHANGE_DELETE, EXCHANGE_DELETE_OK = _id(40, 20), _id(40, 21)
EXCHANGE_BIND, EXCHANGE_BIND_OK = _id(40, 30), _id(40, 31)
EXCHANGE_UNBIND, EXCHANGE_UNBIND_OK = _id(40, 40), _id(40, 51)
QUEUE_DECLARE, QUEUE_DECLARE_OK = _id(50, 10), _id(50, 11)
QUEUE_BIND, QUEUE_BIND_OK = _id(50, 20), _id(50, 21)
QUEUE_DELETE, QUEUE_DELETE_OK = _id(50, 40), _id(50, 41)
QUEUE_UNBIND, QUEUE_UNBIND_OK = _id(50, 50), _id(50, 51)
BASIC_PUBLISH, BASIC_RETURN = _id(BASIC, 40), _id(BASIC, 50)
BASIC_ACK, BASIC_NACK = _id(BASIC, 80), _id(BASIC, 120)
CONFIRM_SELECT = _id(85, 10)
TX_SELECT = _id(90, 10)
TX_COMMIT, TX_COMMIT_OK = _id(90, 20), _id(90, 21)
TX_ROLLBACK, TX_ROLLBACK_OK = _id(90, 30), _id(90, 31)

MANDATORY = 1
"""The first bit of basic.publish."""

REPLY_SUCCESS, CONNECTION_FORCED = 200, 320
CONTENT_TOO_LARGE, ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED = 311, 403, 404, 406
FRAME_ERROR, SYNTAX_ERROR, COMMAND_INVALID, CHANNEL_ERROR, UNEXPECTED_FRAME = 501, 502, 503, 504, 505
NOT_ALLOWED, INTERNAL_ERROR = 530, 541

NAMES = {
    REPLY_SUCCESS: "REPLY_SUCCESS",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    NOT_ALLOWED: "NOT_ALLOWED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}
"""Reply codes, as reply texts begin with them."""


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
    reply = shorted(reply_text(f"{NAMES[code]} - {text}".encode()))
    arguments = U16.pack(code) + reply + U32.pack(method)
    return method_frame(channel, CHANNEL_CLOSE if channel else CONNECTION_CLOSE, arguments)
