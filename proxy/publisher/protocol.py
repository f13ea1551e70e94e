"""The side of a connection that publishes for this sidecar itself: bytes in, bytes out, every publish answered once."""

import re
from collections.abc import Callable
from enum import Enum
from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small
from typing import Final

from proxy.outcome import Outcome
from proxy.publisher import handshake
from proxy.publisher.channel import CONFIRMED, NACKED, ConfirmChannel, Pending, PublishResult
from proxy.publisher.packing import Publish
from proxy.wire.content import ring_id_in
from proxy.wire.frames import (
    ACCESS_REFUSED,
    BASIC_ACK,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_RETURN,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
    CHANNEL_OPEN,
    CONFIRM_SELECT,
    CONNECTION_BLOCKED,
    CONNECTION_CLOSE,
    CONNECTION_CLOSE_OK,
    CONNECTION_OPEN_OK,
    CONNECTION_START,
    CONNECTION_TUNE,
    CONNECTION_UNBLOCKED,
    CONTENT_TOO_LARGE,
    END,
    FRAME_ERROR,
    HEADER,
    LEAST_FRAME_MAX,
    METHOD,
    NOT_FOUND,
    OVERHEAD,
    PRECONDITION_FAILED,
    REPLY_SUCCESS,
    Fault,
    Piece,
    close_frame,
    method_frame,
    short_string,
    u16,
    u32,
    u64,
)
from proxy.wire.properties import Header

_TOO_LARGE = re.compile(rb"larger than configured max size (\d+)")
_REFUSALS = frozenset({ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED})
"""Reply codes that say of a publish that it was not routed."""


class Full(Exception):  # noqa: N818 - a limit, not an error
    """All channels are in use."""


class Stage(Enum):
    """How far a connection has come."""

    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"
    """Nothing more may be published; answers may still come."""
    CLOSED = "closed"


_ACK: Final = 9
"""Bytes of the arguments of basic.ack."""


class PublisherProtocol:
    """The state of one connection."""

    def __init__(self, user: str, password: str, vhost: str) -> None:
        """Nothing is sent before the broker's connection.start: the protocol header is the caller's."""
        self._user, self._password, self._vhost = user, password, vhost
        self.stage = Stage.OPENING
        self.out: list[Piece] = []
        """To be written, in this order, once `pack` was called."""
        self.fault, self.code = "", 0
        """Why the broker closed the connection, and its reply code."""
        self.blocked = ""
        """Why the broker takes no publishes now; empty where it does."""
        self.cluster: str | None = None
        """The name that the broker's cluster gives itself."""
        self._channel_max, self.frame_max, self.heartbeat = handshake.INITIAL_LIMITS
        self.most_body = 0
        """The broker's largest message, in bytes, as far as it has said; 0 for not yet."""
        self.channels: dict[bytes, ConfirmChannel] = {}
        """By exchange."""
        self.in_flight = 0
        self.refusals: dict[bytes, str] = {}
        """By exchange, why the broker closed its channel last."""
        self.news: list[str] = []
        """What is worth a line of the log; for the caller to take."""
        self._waiting: dict[bytes, list[Publish]] = {}
        """What `pack` will queue, by the method, so by queue."""
        self._by_id: dict[int, ConfirmChannel] = {}
        self._closing: set[int] = set()
        self.methods = 0
        """Methods that the broker has sent."""
        self._rest = b""
        self._returning: set[int] = set()
        """Channels on which the header of a returned message is due."""

    # What is sent.

    def publish(
        self, exchange: bytes, method: bytes, header: Header, stamp: bytes, key: bytes, body: bytes, pending: Pending
    ) -> None:
        """Takes one publish, for `pack` (see `Publish`).

        Raises Full, and ValueError for properties that do not fit a frame; then nothing is sent.
        """
        channel = self.channels.get(exchange)
        if channel is None:
            channel = self._open(exchange)
        publish, room = Publish(method, header, stamp, key, body, pending), self.frame_max - OVERHEAD
        if publish.payload > room:
            raise ValueError(f"properties and headers are {publish.payload} bytes, the broker takes {room}")
        if exchange:
            publish.pack(channel, room, self.out)
        elif (waiting := self._waiting.get(method)) is not None:
            waiting.append(publish)
        else:
            self._waiting[method] = [publish]
        self.in_flight += 1
        pending[2].published += 1

    def pack(self) -> None:
        """Queues what was published straight to queues: what one queue gets in a row, and in its order.

        A broker takes a queue's messages together then, and confirms them together (measured: docs/performance.md).
        """
        if not self._waiting:
            return
        waiting, channel, room = self._waiting, self.channels[b""], self.frame_max - OVERHEAD
        self._waiting = {}
        for publishes in waiting.values():
            for publish in publishes:
                publish.pack(channel, room, self.out)

    def _open(self, exchange: bytes) -> ConfirmChannel:
        """A channel for an exchange; what is published on it need not wait for the answers."""
        self.pack()  # A channel with publishes is not idle.
        most = self._channel_max
        if len(self._by_id) + len(self._closing) >= most - most // 4:
            # Early: until the broker has answered, a channel that is being closed counts.
            self._close_idle()
        channel_id = self._free_id()
        if channel_id is None:
            raise Full(f"all {most} channels of the connection to the broker are in use")
        channel = ConfirmChannel(channel_id, exchange)
        self.channels[exchange] = self._by_id[channel_id] = channel
        self.out += (method_frame(channel_id, CHANNEL_OPEN, b"\0"), method_frame(channel_id, CONFIRM_SELECT, b"\0"))
        return channel

    def _free_id(self) -> int | None:
        """Return the lowest channel number that is free; None where all are in use or being closed."""
        taken = self._by_id.keys() | self._closing
        return next((n for n in range(1, self._channel_max + 1) if n not in taken), None)

    def _close_idle(self) -> None:
        """Queues a channel.close for the channel that was opened first of the idle; the queues' own goes last."""
        idle = min((c for c in self._by_id.values() if not c.pending), key=lambda c: not c.exchange, default=None)
        if idle is not None:
            self._drop(idle)
            self._closing.add(idle.id)
            self.out.append(close_frame(idle.id, REPLY_SUCCESS, "no more publishes for now"))

    def _drop(self, channel: ConfirmChannel) -> None:
        self._by_id.pop(channel.id, None)
        self.channels.pop(channel.exchange, None)

    def close(self) -> None:
        """Queues a connection.close; nothing may be published after it."""
        if self.stage is Stage.OPEN:
            self.stage = Stage.CLOSING
            self.pack()
            self.out.append(close_frame(0, REPLY_SUCCESS, "ringproxy has no more to publish"))

    def marks(self) -> list[tuple[ConfirmChannel, int]]:
        """Each channel with unsettled publishes, and the number of its last."""
        self.pack()
        return [(channel, channel.number) for channel in self._by_id.values() if channel.pending]

    def give_up(self, channel: ConfirmChannel, number: int, why: str) -> int:
        """All publishes up to that one are waited for no more; an answer that still comes is ignored.

        Returns how many of them were still waited for.
        """
        settled = channel.settle(number, True, PublishResult(Outcome.UNKNOWN, why))
        self.in_flight -= settled
        return settled

    def probe(self) -> bool:
        """Queues the opening of a channel and its end: a broker that reads answers that, whatever its queues do.

        Returns whether a channel was free for it.
        """
        channel_id = self._free_id()
        if channel_id is not None:
            self.pack()
            self._closing.add(channel_id)
            close = close_frame(channel_id, REPLY_SUCCESS, "ringproxy has seen that the broker reads")
            self.out += (method_frame(channel_id, CHANNEL_OPEN, b"\0"), close)
        return channel_id is not None

    def lost(self, why: str) -> None:
        """The connection is gone: of what the broker has not answered, nobody knows."""
        self.stage = Stage.CLOSED
        self.pack()
        self.out.clear()
        for channel in list(self._by_id.values()):
            self.give_up(channel, channel.number, why)
            self._drop(channel)

    # What is received.

    def feed(self, data: bytes) -> None:
        """Takes bytes of the broker, in any chunking. Raises Fault for what is not AMQP 0-9-1."""
        if self._rest:
            data = self._rest + data
        i, end = 0, len(data)
        try:
            while end - i >= OVERHEAD:
                kind, number, size = data[i], u16(data, i + 1), u32(data, i + 3)
                stop = i + OVERHEAD + size
                if size > self.frame_max:
                    self._check_size(size)
                if stop > end:
                    break
                if data[stop - 1] != END:
                    raise Fault(FRAME_ERROR, "a frame without its end octet")
                if kind == METHOD:
                    self._on_method(number, u32(data, i + 7), data, i + 11, stop - 1)
                elif kind == HEADER and number in self._returning:
                    self._on_returned(number, data, i + 7, stop - 1)
                i = stop
        except (StructError, IndexError):
            raise Fault(FRAME_ERROR, "a frame shorter than what it should hold") from None
        self._rest = data[i:]

    def _check_size(self, size: int) -> None:
        if size > max(self.frame_max, LEAST_FRAME_MAX):
            raise Fault(FRAME_ERROR, f"a frame of {size} bytes, {self.frame_max} are agreed")

    def _on_method(self, number: int, method: int, data: bytes, at: int, stop: int) -> None:
        self.methods += 1
        if method == BASIC_ACK and stop - at >= _ACK:
            self._answered(number, u64(data, at), data[at + 8], CONFIRMED)
            return
        if at > stop or method == BASIC_ACK:
            raise StructError
        handler = (_ON_CHANNEL if number else _ON_CONNECTION).get(method)
        if handler is not None:
            handler(self, number, data[at:stop])

    def _answered(self, number: int, tag: int, bits: int, verdict: PublishResult) -> None:
        channel = self._by_id.get(number)
        if channel is not None:
            self.in_flight -= channel.settle(tag, bool(bits & 1), verdict)

    def _on_start(self, _: int, data: bytes) -> None:
        self.cluster = handshake.cluster_in(data)
        self.out.append(handshake.start_ok(self._user, self._password, self._vhost))

    def _on_tune(self, _: int, data: bytes) -> None:
        answer, limits = handshake.tune_ok(data)
        self._channel_max, self.frame_max, self.heartbeat = limits
        self.out += (answer, handshake.open_vhost(self._vhost))

    def _on_open_ok(self, _: int, __: bytes) -> None:
        self.stage = Stage.OPEN

    def _on_blocked(self, _: int, data: bytes) -> None:
        self.blocked = short_string(data, 0, len(data))[0].decode(errors="replace") or "no reason given"

    def _on_unblocked(self, _: int, __: bytes) -> None:
        self.blocked = ""

    def _on_close(self, _: int, data: bytes) -> None:
        self.code = u16(data, 0)
        self.fault = short_string(data, 2, len(data))[0].decode(errors="replace")
        self.stage = Stage.CLOSED
        self.pack()
        self.out[:] = [method_frame(0, CONNECTION_CLOSE_OK)]

    def _on_close_ok(self, _: int, __: bytes) -> None:
        self.stage = Stage.CLOSED

    def _on_nack(self, number: int, data: bytes) -> None:
        self._answered(number, u64(data, 0), data[8], NACKED)

    def _on_return(self, number: int, _: bytes) -> None:
        self._returning.add(number)

    def _on_returned(self, number: int, data: bytes, start: int, end: int) -> None:
        """Its ack comes after it (5,413 of 5,413, measured); the ring id is ours, so the number is in it."""
        self._returning.discard(number)
        channel = self._by_id.get(number)
        if channel is None:
            return
        ring_id = ring_id_in(data, start, end)
        nonce: int = channel.nonce  # a broker's ring id may have 64 bits
        publish = ring_id - nonce if ring_id is not None else 0
        if not 0 < publish <= channel.number:
            # Which one came back is not known, and none of those that did may be told as confirmed.
            raise Fault(FRAME_ERROR, "a message came back that this sidecar has not sent")
        if publish in channel.pending:
            channel.returned.add(publish)

    def _on_channel_close(self, number: int, data: bytes) -> None:
        """What is in flight on it is lost with it; only where that is one publish is it known what is to blame."""
        self.pack()
        self.out.append(method_frame(number, CHANNEL_CLOSE_OK))
        self._closing.discard(number)
        self._returning.discard(number)
        channel = self._by_id.get(number)
        if channel is None:
            return
        code = u16(data, 0)
        text, at = short_string(data, 2, len(data))
        method = u32(data, at)
        words = self._in_words(channel.exchange, code, text)
        self._drop(channel)
        found = _TOO_LARGE.search(text)
        if found is not None:
            self.most_body = int(found[1])
        last = channel.number
        # The broker takes publishes in turn: an answer for the one before means that it was not to blame.
        alone = channel.pending.keys() == {last} and channel.given_up != last - 1
        alone = alone and code in _REFUSALS and method == BASIC_PUBLISH
        outcome = Outcome.INVALID if alone else Outcome.UNKNOWN
        detail = words if alone else f"the channel was lost before the confirm: {words}"
        # RabbitMQ says 406, for which AMQP has a code of its own.
        result = PublishResult(outcome, detail, CONTENT_TOO_LARGE if found else code)
        self.in_flight -= channel.settle(last, True, result)

    def _in_words(self, exchange: bytes, code: int, text: bytes) -> str:
        """Why the broker closed a channel; where a permission is missing, which."""
        words = text.decode(errors="replace")
        if code != ACCESS_REFUSED or "internal exchange" in words:
            return words
        wanted = f"exchange {exchange.decode(errors='replace')!r}" if exchange else "amq.default"
        why = "" if exchange else ": publishes go straight to the queues"
        words = f"the broker's user needs write permission on {wanted}{why} ({words})"
        if self.refusals.get(exchange) != words:
            self.news.append(words)
        self.refusals[exchange] = words
        return words

    @property
    def refused(self) -> list[str]:
        """Why publishes to some exchanges are not permitted, but for those that have been confirmed since."""
        alive = {exchange for exchange, channel in self.channels.items() if channel.low}
        return [why for exchange, why in self.refusals.items() if exchange not in alive]

    def _on_channel_close_ok(self, number: int, _: bytes) -> None:
        self._closing.discard(number)


_Handler = Callable[[PublisherProtocol, int, bytes], None]

_ON_CONNECTION: dict[int, _Handler] = {
    CONNECTION_START: PublisherProtocol._on_start,
    CONNECTION_TUNE: PublisherProtocol._on_tune,
    CONNECTION_OPEN_OK: PublisherProtocol._on_open_ok,
    CONNECTION_BLOCKED: PublisherProtocol._on_blocked,
    CONNECTION_UNBLOCKED: PublisherProtocol._on_unblocked,
    CONNECTION_CLOSE: PublisherProtocol._on_close,
    CONNECTION_CLOSE_OK: PublisherProtocol._on_close_ok,
}
_ON_CHANNEL: dict[int, _Handler] = {
    BASIC_NACK: PublisherProtocol._on_nack,
    BASIC_RETURN: PublisherProtocol._on_return,
    CHANNEL_CLOSE: PublisherProtocol._on_channel_close,
    CHANNEL_CLOSE_OK: PublisherProtocol._on_channel_close_ok,
}
