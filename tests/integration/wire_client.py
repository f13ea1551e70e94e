"""An AMQP client of frames on a blocking socket: it can send anything, and sees everything that comes back."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from pamqp import base, body, commands, frame, header, heartbeat
from pamqp.commands import Basic, Channel, Confirm, Connection
from pamqp.common import FieldTable
from pika import BlockingConnection, ConnectionParameters, PlainCredentials
from pika.adapters.blocking_connection import BlockingChannel

from tests.integration.broker_api import DEADLINE_SECONDS

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"

Frame = base.Frame | body.ContentBody | header.ContentHeader | heartbeat.Heartbeat
M = TypeVar("M", bound=base.Frame)


@dataclass(frozen=True)
class Content:
    """A message that the broker sent: by get, deliver or return."""

    method: base.Frame
    properties: commands.Basic.Properties
    body: bytes


def encoded(channel: int, value: frame.FrameTypes) -> bytes:
    """Return a frame's bytes."""
    return frame.marshal(value, channel)


def raw_frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    """Return a frame of any bytes."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


def short(text: bytes) -> bytes:
    """Return a short string."""
    return bytes((len(text),)) + text


def publish_frames(
    channel: int,
    exchange: str,
    key: str,
    data: bytes = b"",
    properties: Basic.Properties | None = None,
    *,
    mandatory: bool = False,
    frame_max: int = 131072,
) -> list[bytes]:
    """Return the frames of one publish."""
    step = frame_max - 8
    return [
        encoded(channel, Basic.Publish(0, exchange, key, mandatory)),
        encoded(channel, header.ContentHeader(0, len(data), properties or Basic.Properties())),
        *(raw_frame(3, channel, data[at : at + step]) for at in range(0, len(data), step)),
    ]


def publishing(channel: int, exchange: str, key: str, data: bytes = b"", *, mandatory: bool = False) -> bytes:
    """Return the bytes of one publish."""
    return b"".join(publish_frames(channel, exchange, key, data, mandatory=mandatory))


def shown(value: Frame) -> str:
    """Return a frame in words, for a test that fails."""
    return f"{value.name} {dict(value)}" if isinstance(value, base.Frame) else repr(value)


class Wire:
    """One AMQP connection of a test, which sends and reads single frames."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.socket = socket.create_connection((host, port), DEADLINE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self.start = Connection.Start()
        self.tune = Connection.Tune()
        self.frame_max = 131072

    def close(self) -> None:
        """Close the socket, without a word."""
        self.socket.close()

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def tell(self, channel: int, *values: frame.FrameTypes) -> None:
        """Send frames."""
        self.send(*(encoded(channel, value) for value in values))

    def read_bytes(self, count: int) -> bytes:
        """Read so many bytes. Raises EOFError where the peer closes before."""
        while len(self._data) < count:
            try:
                more = self.socket.recv(1 << 18)
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError(self._data)
            self._data += more
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def read_frame(self) -> tuple[int, int, bytes]:
        """Return the next frame as it is: kind, channel, payload."""
        kind, channel, length = struct.unpack(">BHI", self.read_bytes(7))
        payload = self.read_bytes(length + 1)
        assert payload[-1] == 0xCE, payload
        return kind, channel, payload[:-1]

    def read(self) -> tuple[int, Frame]:
        """Return the next frame but heartbeats, and its channel."""
        while True:
            kind, channel, payload = self.read_frame()
            _, _, value = frame.unmarshal(raw_frame(kind, channel, payload))
            if not isinstance(value, heartbeat.Heartbeat):
                assert not isinstance(value, header.ProtocolHeader)
                return channel, value

    def expect(self, channel: int, kind: type[M]) -> M:
        """Return the next frame, which is that method on that channel."""
        at, value = self.read()
        assert (at, type(value)) == (channel, kind), (at, shown(value))
        assert isinstance(value, kind)
        return value

    def ask(self, channel: int, request: base.Frame, answer: type[M]) -> M:
        """Send a method and read its answer, which is the next frame."""
        self.tell(channel, request)
        return self.expect(channel, answer)

    def content(self, channel: int, kind: type[M]) -> Content:
        """Return the next content, announced by that method; nothing of another channel in between."""
        method = self.expect(channel, kind)
        at, head = self.read()
        assert at == channel
        assert isinstance(head, header.ContentHeader), head
        data = b""
        while len(data) < head.body_size:
            at, part = self.read()
            assert at == channel
            assert isinstance(part, body.ContentBody), part
            assert part.value
            data += part.value
        return Content(method, head.properties, data)

    def at_end(self) -> bool:
        """Return whether the peer closes without one more byte."""
        try:
            more = self.read_bytes(1)
        except EOFError as error:
            more = error.args[0]
        assert not more, more + self._data
        return True

    # Methods of clients

    def handshake(self, user: str, password: str, capabilities: FieldTable | None = None) -> None:
        """Do the handshake up to the broker's tune."""
        self.send(PROTOCOL_HEADER)
        self.start = self.expect(0, Connection.Start)
        self.tune = self.ask(
            0,
            Connection.StartOk(
                {"product": "wire", "capabilities": capabilities or {}}, "PLAIN", f"\0{user}\0{password}"
            ),
            Connection.Tune,
        )

    def open(self, vhost: str, *, channel_max: int = 0, frame_max: int = 0, heartbeat: int = 0) -> None:
        """The rest of the handshake; 0 takes what the broker offers, and no heartbeat."""
        self.frame_max = frame_max or self.tune.frame_max
        self.tell(0, Connection.TuneOk(channel_max or self.tune.channel_max, self.frame_max, heartbeat))
        self.ask(0, Connection.Open(vhost), Connection.OpenOk)

    def channel(self, number: int = 1, *, confirm: bool = True) -> int:
        """Open a channel, in confirm mode unless told otherwise."""
        self.ask(number, Channel.Open(), Channel.OpenOk)
        if confirm:
            self.ask(number, Confirm.Select(), Confirm.SelectOk)
        return number

    def publish(
        self,
        channel: int,
        exchange: str,
        key: str,
        data: bytes = b"",
        properties: Basic.Properties | None = None,
        *,
        mandatory: bool = False,
    ) -> None:
        self.send(
            *publish_frames(
                channel, exchange, key, data, properties, mandatory=mandatory, frame_max=self.frame_max or 131072
            )
        )

    def answers(self, channel: int, last: int, after: int = 0) -> dict[int, str]:
        """Return the broker's answer to each publish beyond `after` up to `last`; no other frame may come."""
        told: dict[int, str] = {}
        low = after
        while len(told) < last - after:
            at, value = self.read()
            assert at == channel, (at, shown(value))
            assert isinstance(value, Basic.Ack | Basic.Nack), shown(value)
            tag = value.delivery_tag or 0
            tags = [n for n in range(low + 1, tag + 1) if n not in told] if value.multiple else [tag]
            assert not told.keys() & set(tags), (tags, told)
            told |= dict.fromkeys(tags, "ack" if isinstance(value, Basic.Ack) else "nack")
            while low + 1 in told:
                low += 1
        return told

    def confirm(self, channel: int, last: int = 1, after: int = 0) -> None:
        """All publishes beyond `after` up to `last` are acknowledged."""
        told = self.answers(channel, last, after)
        assert set(told.values()) == {"ack"}, told

    def get(self, channel: int, queue: str) -> Content | None:
        """Return the queue's first message, taken out; None for none."""
        self.tell(channel, Basic.Get(0, queue, True))
        kind, at, payload = self.read_frame()
        if payload[:4] == b"\x00\x3c\x00\x48":
            return None
        self._data = raw_frame(kind, at, payload) + self._data
        return self.content(channel, Basic.GetOk)

    def goodbye(self) -> None:
        """Close the connection in good order."""
        self.ask(0, Connection.Close(200, "", 0, 0), Connection.CloseOk)
        # RabbitMQ leaves it to clients to close the socket.
        self.close()


@contextmanager
def wire(port: int) -> Iterator[Wire]:
    """Yield a connection without a byte sent, closed at the end of the block."""
    made = Wire(port)
    try:
        yield made
    finally:
        made.close()


@dataclass(frozen=True)
class Client:
    """A user who opens connections."""

    user: str
    password: str

    @classmethod
    def of(cls, url: str) -> "Client":
        """Return the one whose credentials an AMQP URL has."""
        parts = urlsplit(url)
        return cls(unquote(parts.username or "guest"), unquote(parts.password or "guest"))

    @contextmanager
    def session(
        self,
        port: int,
        vhost: str,
        *,
        channel_max: int = 0,
        frame_max: int = 0,
        heartbeat: int = 0,
        capabilities: FieldTable | None = None,
    ) -> Iterator[Wire]:
        """Yield an open connection, its socket closed at the end of the block."""
        with wire(port) as made:
            made.handshake(self.user, self.password, capabilities)
            made.open(vhost, channel_max=channel_max, frame_max=frame_max, heartbeat=heartbeat)
            yield made

    @contextmanager
    def pika(self, port: int, vhost: str, *, heartbeat: int = 0) -> Iterator[BlockingChannel]:
        """Yield a channel of pika's, in confirm mode."""
        credentials = PlainCredentials(self.user, self.password)
        parameters = ConnectionParameters("127.0.0.1", port, vhost, credentials=credentials, heartbeat=heartbeat)
        connection = BlockingConnection(parameters)
        try:
            channel = connection.channel()
            channel.confirm_delivery()
            yield channel
        finally:
            if connection.is_open:
                connection.close()


def port_of(url: str) -> int:
    """Return the port of an AMQP URL."""
    return urlsplit(url).port or 5672
