"""The AMQP protocol of a connection that publishes for this sidecar: bytes in, bytes out, a result for each publish."""

# mypyc: compiled

import re
from collections.abc import Callable, Mapping
from enum import Enum
from struct import error as StructError  # noqa: N812 - the standard library's exceptions begin small
from typing import Final

from proxy.outcome import Outcome
from proxy.process.identity import of_sidecar
from proxy.publisher import handshake
from proxy.publisher.channel import CONFIRMED, NACKED, ConfirmChannel, Pending, PublishResult
from proxy.publisher.packing import Publish
from proxy.settings.missing_right import MissingRight, missing_right
from proxy.settings.rights import to_lanes
from proxy.wire.arguments import Arguments, broker_in
from proxy.wire.content import ring_id_in
from proxy.wire.frames import (
    ACCESS_REFUSED,
    BASIC_ACK,
    BASIC_NACK,
    BASIC_PUBLISH,
    BASIC_RETURN,
    CHANNEL_CLOSE,
    CHANNEL_CLOSE_OK,
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
    LEAST_METHOD,
    METHOD,
    MULTIPLE,
    NOT_FOUND,
    OVERHEAD,
    PRECONDITION_FAILED,
    REPLY_SUCCESS,
    Fault,
    Piece,
    channel_open,
    close_frame,
    method_frame,
    u16,
    u32,
    u64,
)
from proxy.wire.properties import Header

_TOO_LARGE = re.compile(rb"larger than configured max size (\d+)")
_REFUSALS = frozenset({ACCESS_REFUSED, NOT_FOUND, PRECONDITION_FAILED})
"""Reply codes of a channel.close that mean that the publish to blame was not routed."""


class Full(Exception):  # noqa: N818 - a limit, not an error
    """All channels of the connection are in use, so a publish to one more exchange is not possible now."""


class Stage(Enum):
    """The stages of a connection's life, in their order."""

    OPENING = "opening"
    """The handshake is not over."""
    OPEN = "open"
    CLOSING = "closing"
    """This sidecar has sent connection.close: nothing more may be published, but answers may still come."""
    CLOSED = "closed"
    """The connection is over: either side has closed it, or it was lost."""


_LEAST_ACK: Final = LEAST_METHOD + 9
"""Bytes of a frame with basic.ack: the method, the delivery tag, and the bit `multiple`."""


class PublisherProtocol:
    """One connection, from its handshake to its end, without the socket: the caller moves the bytes."""

    def __init__(self, user: str, password: str, vhost: str, inventory: Mapping[str, str] | None = None) -> None:
        """Make the state of a connection on which the caller has sent the protocol header, and nothing else.

        `inventory` are the client properties that say who connects; without them those of a sidecar do.
        """
        self._user, self._password, self._vhost = user, password, vhost
        self._inventory = inventory if inventory is not None else of_sidecar()
        self.stage = Stage.OPENING
        self.out: list[Piece] = []
        """The pieces that the caller writes, in this order, after a call of `pack`, and then clears."""
        self.fault, self.code = "", 0
        """Why the connection ended, and the reply code if the broker closed it; empty and 0 before."""
        self.blocked = ""
        """The reason that connection.blocked gave, while the broker takes no publishes; empty while it does."""
        self.cluster: str | None = None
        """The name of the broker's cluster; None before the handshake, and if the broker gives none."""
        self._channel_max, self.frame_max, self.heartbeat = handshake.INITIAL_LIMITS
        self.most_body = 0
        """Bytes of the largest message that the broker takes, known once it has refused a larger one; 0 before."""
        self.channels: dict[bytes, ConfirmChannel] = {}
        """The open channels, by the exchange that is published to on them; the empty name is the default exchange."""
        self.in_flight = 0
        """Publishes without a result, be they packed or not."""
        self.refusals: dict[bytes, str] = {}
        """By exchange, the missing permission for which the broker last closed its channel."""
        self._lacking: dict[bytes, MissingRight] = {}
        """The missing permissions of `refusals`, where the broker's text names them whole."""
        self.news: list[str] = []
        """Lines for the log, which the caller takes out."""
        self._waiting: dict[bytes, list[Publish]] = {}
        """Publishes through the default exchange that `pack` will put into `out`, by their method, so by queue."""
        self._by_id: dict[int, ConfirmChannel] = {}
        """The open channels by number."""
        self._closing: set[int] = set()
        """Numbers of channels whose channel.close-ok is due: a number may be used again only after it."""
        self.methods = 0
        """How many methods the broker has sent: while the count grows, the broker reads and answers."""
        self._rest = b""
        """The beginning of a frame whose end has not come yet."""
        self._returning: set[int] = set()
        """Numbers of channels on which basic.return has come, and the header of the returned message has not."""

    # Methods and contents to the broker

    def publish(
        self, exchange: bytes, method: bytes, header: Header, stamp: bytes, key: bytes, body: bytes, pending: Pending
    ) -> None:
        """Take one publish, whose parameters are those of `packing.Publish`, to be sent after the next `pack`.

        Raises Full, and ValueError for properties that do not fit a frame: then nothing is sent.
        """
        channel = self.channels.get(exchange)
        if channel is None:
            channel = self._open(exchange)
        publish, room = Publish(method, header, stamp, key, body, pending), self.frame_max - OVERHEAD
        if publish.payload > room:
            raise ValueError(f"properties and headers have {publish.payload} bytes, and the broker accepts {room}")
        if exchange:
            publish.pack(channel, room, self.out)
        elif (waiting := self._waiting.get(method)) is not None:
            waiting.append(publish)
        else:
            self._waiting[method] = [publish]
        self.in_flight += 1
        pending[2].published += 1

    def pack(self) -> None:
        """Append to `out` the publishes through the default exchange, those of one queue in a row and in their order.

        A broker takes a queue's messages together then, and confirms them together (measured: bench/README.md).
        """
        if not self._waiting:
            return
        waiting, channel, room = self._waiting, self.channels[b""], self.frame_max - OVERHEAD
        self._waiting = {}
        for publishes in waiting.values():
            for publish in publishes:
                publish.pack(channel, room, self.out)

    def _open(self, exchange: bytes) -> ConfirmChannel:
        """Return a new channel for an exchange, on which publishes need not wait for channel.open-ok. Raises Full."""
        self.pack()  # A channel with publishes is not idle.
        most = self._channel_max
        if len(self._by_id) + len(self._closing) >= most - most // 4:
            # Early: until the broker has answered, a channel that is being closed counts towards channel_max.
            self._close_idle()
        channel_id = self._free_id()
        if channel_id is None:
            raise Full(f"all {most} channels of the connection to the broker are in use")
        channel = ConfirmChannel(channel_id, exchange)
        self.channels[exchange] = self._by_id[channel_id] = channel
        self.out += (channel_open(channel_id), method_frame(channel_id, CONFIRM_SELECT, b"\0"))
        return channel

    def _free_id(self) -> int | None:
        """Return the lowest channel number that is free; None if all are in use or being closed."""
        taken = self._by_id.keys() | self._closing
        return next((n for n in range(1, self._channel_max + 1) if n not in taken), None)

    def _close_idle(self) -> None:
        """Close the oldest channel without unsettled publishes; the default exchange's goes last."""
        idle = min((c for c in self._by_id.values() if not c.pending), key=lambda c: not c.exchange, default=None)
        if idle is not None:
            self._drop(idle)
            self._closing.add(idle.id)
            self.out.append(close_frame(idle.id, REPLY_SUCCESS, "no more publishes for now"))

    def _drop(self, channel: ConfirmChannel) -> None:
        self._by_id.pop(channel.id, None)
        self.channels.pop(channel.exchange, None)

    def close(self) -> None:
        """Append connection.close to `out`; nothing may be published after it."""
        if self.stage is Stage.OPEN:
            self.stage = Stage.CLOSING
            self.pack()
            self.out.append(close_frame(0, REPLY_SUCCESS, "ringproxy has no more to publish"))

    def update_secret(self, secret: bytes, reason: bytes) -> None:
        """Append connection.update-secret to `out`. A broker that does not take the secret closes the connection."""
        if self.stage is Stage.OPEN:
            self.pack()
            self.out.append(handshake.update_secret(secret, reason))

    def marks(self) -> list[tuple[ConfirmChannel, int]]:
        """Return each channel with unsettled publishes, and the number of its last publish, for `give_up`."""
        self.pack()
        return [(channel, channel.number) for channel in self._by_id.values() if channel.pending]

    def give_up(self, channel: ConfirmChannel, number: int, why: str) -> int:
        """Settle a channel's publishes up to `number` as UNKNOWN, and return how many were unsettled.

        An answer that still comes is ignored.
        """
        settled = channel.settle(number, True, PublishResult(Outcome.UNKNOWN, why))
        self.in_flight -= settled
        return settled

    def probe(self) -> bool:
        """Ask whether the broker reads this connection; return whether a channel number was free to ask with.

        A channel is opened and closed at once. A broker that reads answers both, whatever its queues do, so `methods`
        grows.
        """
        channel_id = self._free_id()
        if channel_id is not None:
            self.pack()
            self._closing.add(channel_id)
            close = close_frame(channel_id, REPLY_SUCCESS, "ringproxy has seen that the broker reads")
            self.out += (channel_open(channel_id), close)
        return channel_id is not None

    def lost(self, why: str) -> None:
        """Take it that the connection is gone: every publish that the broker has not answered becomes UNKNOWN."""
        self.stage = Stage.CLOSED
        self.pack()
        self.out.clear()
        for channel in list(self._by_id.values()):
            self.give_up(channel, channel.number, why)
            self._drop(channel)

    # Frames from the broker

    def feed(self, data: bytes) -> None:
        """Take bytes that the broker has sent, in any chunking. Raises Fault for what is not AMQP 0-9-1."""
        if self._rest:
            data = self._rest + data
        i, end = 0, len(data)
        try:
            while end - i >= OVERHEAD:
                kind, number, size = data[i], u16(data, i + 1), u32(data, i + 3)
                stop = i + OVERHEAD + size
                if size > self.frame_max and size > LEAST_FRAME_MAX:
                    raise Fault(
                        FRAME_ERROR, f"a frame of {size} bytes, more than the agreed frame_max of {self.frame_max}"
                    )
                if stop > end:
                    break
                if data[stop - 1] != END:
                    raise Fault(FRAME_ERROR, "a frame without its end octet")
                if kind == METHOD:
                    self._on_method(number, data, i, stop)
                elif kind == HEADER and number in self._returning:
                    self._on_returned(number, data, i + 7, stop - 1)
                i = stop
        except (StructError, IndexError):
            raise Fault(FRAME_ERROR, "a frame shorter than what it should hold") from None
        self._rest = data[i:]

    def _on_method(self, number: int, data: bytes, i: int, end: int) -> None:
        """Take one method frame of the broker's. Raises StructError, IndexError or Fault if it cannot be read."""
        method = u32(data, i + 7)
        self.methods += 1
        if method == BASIC_ACK and end - i >= _LEAST_ACK:
            self._answered(number, u64(data, i + 11), data[i + 19], CONFIRMED)
            return
        if end - i < LEAST_METHOD or method == BASIC_ACK:
            raise StructError
        handler = (_ON_CHANNEL if number else _ON_CONNECTION).get(method)
        if handler is not None:
            handler(self, number, Arguments(data, i, end))

    def _answered(self, number: int, tag: int, bits: int, verdict: PublishResult) -> None:
        channel = self._by_id.get(number)
        if channel is not None:
            self.in_flight -= channel.settle(tag, bool(bits & MULTIPLE), verdict)

    def _on_start(self, _: int, start: Arguments) -> None:
        self.cluster = broker_in(start)[0]
        self.out.append(handshake.start_ok(self._user, self._password, self._vhost, self._inventory))

    def _on_tune(self, _: int, tune: Arguments) -> None:
        answer, limits = handshake.tune_ok(tune)
        self._channel_max, self.frame_max, self.heartbeat = limits
        self.out += (answer, handshake.open_vhost(self._vhost))

    def _on_open_ok(self, _: int, __: Arguments) -> None:
        self.stage = Stage.OPEN

    def _on_blocked(self, _: int, blocked: Arguments) -> None:
        self.blocked = blocked.short_string().decode(errors="replace") or "no reason given"

    def _on_unblocked(self, _: int, __: Arguments) -> None:
        self.blocked = ""

    def _on_close(self, _: int, close: Arguments) -> None:
        """Take the broker's connection.close: keep its code and reason, and have nothing sent any more but close-ok."""
        self.code = close.short()
        self.fault = close.short_string().decode(errors="replace")
        self.stage = Stage.CLOSED
        self.pack()
        # After connection.close the broker reads nothing but close-ok (AMQP, connection.close).
        self.out[:] = [method_frame(0, CONNECTION_CLOSE_OK)]

    def _on_close_ok(self, _: int, __: Arguments) -> None:
        self.stage = Stage.CLOSED

    def _on_nack(self, number: int, nack: Arguments) -> None:
        self._answered(number, nack.longlong(), nack.octet(), NACKED)

    def _on_return(self, number: int, _: Arguments) -> None:
        self._returning.add(number)

    def _on_returned(self, number: int, data: bytes, start: int, end: int) -> None:
        """Note which publish of the channel `number` has come back, by the ring id in the returned header.

        Nothing is noted for a channel that is gone. Raises Fault for a message that this connection has not sent.
        basic.return names no delivery tag. Its ack comes after it, as RabbitMQ documents (5,413 of 5,413, measured).
        """
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

    def _on_channel_close(self, number: int, close: Arguments) -> None:
        """Settle what is in flight on a channel that the broker has closed.

        A single publish is INVALID if the reply blames it; several are UNKNOWN, since any of them may be to blame.
        """
        self.pack()
        self.out.append(method_frame(number, CHANNEL_CLOSE_OK))
        self._closing.discard(number)
        self._returning.discard(number)
        channel = self._by_id.get(number)
        if channel is None:
            return
        code, text, method = close.short(), close.short_string(), close.long()
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
        """Return why the broker closed a channel; if a permission is missing, name it and add a line to the log."""
        words = text.decode(errors="replace")
        if code != ACCESS_REFUSED or "internal exchange" in words:
            return words
        name = exchange.decode(errors="replace")
        if lacking := missing_right(words):
            self._lacking[exchange] = lacking
        wanted = f"exchange {name!r}" if exchange else "amq.default"
        why = "" if exchange else ": publishes go straight to the queues"
        if lanes := to_lanes(name):
            # A user without the right on one lane mostly lacks it on all: the log and /readyz have one line for all.
            words = f"the broker's user needs write permission on the lanes of an exchange, {lanes}"
        else:
            words = f"the broker's user needs write permission on {wanted}{why} ({words})"
        if words not in self.refusals.values():
            self.news.append(words)
        self.refusals[exchange] = words
        return words

    @property
    def refused(self) -> list[str]:
        """Why publishes to some exchanges are not permitted; an exchange confirmed since then is left out."""
        return list(dict.fromkeys(why for exchange, why in self.refusals.items() if not self._is_alive(exchange)))

    @property
    def lacking(self) -> list[MissingRight]:
        """The rights whose want `refused` tells of, as far as the broker's texts name them."""
        return list(dict.fromkeys(right for exchange, right in self._lacking.items() if not self._is_alive(exchange)))

    def _is_alive(self, exchange: bytes) -> bool:
        """Return whether a publish to an exchange has been confirmed on the channel that is open for it."""
        channel = self.channels.get(exchange)
        return channel is not None and channel.low > 0

    def _on_channel_close_ok(self, number: int, _: Arguments) -> None:
        self._closing.discard(number)


_Handler = Callable[[PublisherProtocol, int, Arguments], None]

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
