"""A session's core whose client consumes from groups, and the frames on its hidden channels."""

from collections.abc import Iterable
from struct import pack

from pamqp import commands

from proxy.groups.consuming.actions import GroupActions
from proxy.groups.consuming.events import GroupEvent, JoinAsked, LinkChanged
from proxy.groups.consuming.interceptor import GroupInterceptor
from proxy.groups.model import Member
from proxy.session import client_loop
from proxy.session.events import Event
from proxy.wire.frames import BODY
from tests.unit.proxy.session.wire import (
    Frame,
    Wire,
    body,
    close_channel,
    header,
    laned,
    made,
    method,
    short,
    split,
)

FIRST = 1001
"""The lowest number of a hidden channel."""


class Grouping(Wire):
    """A connection whose sidecar lets clients consume from names that begin with x."""

    def __init__(self, hidden: int = 20) -> None:
        super().__init__({"x": laned()}, spare=FIRST - 1)
        c = self.c
        self.consuming = GroupInterceptor(c, lambda vhost, name: name.startswith("x"))
        c.interceptor = self.consuming
        c.handshake.channel_max, c.handshake.cancel_notify = FIRST - 2, True
        self.consuming.opened(FIRST, hidden)
        self.actions = GroupActions(self.consuming, self._then)

    def _then(self) -> None:
        client_loop.resume(self.c)

    def ask(self, channel: int = 1, tag: str = "c", name: str = "x", **more: object) -> int:
        """Have the client consume; return the hidden channel on which the broker is asked about the name."""
        sent = split(self.client(consume(channel, tag, name, **more)))
        assert [each.payload[:4] for each in sent] == [pack(">HH", 20, 10), pack(">HH", 50, 10)]
        return sent[0].channel

    def no_queue(self, number: int, name: str = "x") -> tuple[bytes, bytes]:
        """Let the broker answer that no queue has the name."""
        return self.both(
            made(number, commands.Channel.OpenOk())
            + close_channel(number, 404, b"NOT_FOUND - no queue '%s' in vhost '/'" % name.encode(), (50, 10))
        )

    def asked(self) -> Member:
        """Return the member that asks to join, which is all that has happened."""
        (event,) = self.told()
        assert isinstance(event, JoinAsked)
        return event.member

    @property
    def events(self) -> list[Event | GroupEvent]:
        """Return the events for the session and for the groups."""
        return [*self.c.events, *self.consuming.events]

    def forget(self) -> None:
        self.c.events.clear()
        self.consuming.events.clear()

    def told(self) -> list[Event | GroupEvent]:
        """Return what has happened, and forget it, but for changes of links, which `Link` shows."""
        told: list[Event | GroupEvent] = [event for event in self.events if not isinstance(event, LinkChanged)]
        self.forget()
        return told

    def begin(self, shards: Iterable[str] = ("q1", "q2"), **more: object) -> Member:
        """Let a member join and ask for links to these shards; return it."""
        self.no_queue(self.ask(**more))  # type: ignore[arg-type]
        member = self.asked()
        self.actions.start(member)
        for shard in shards:
            assert self.actions.open(member, shard) == ""
        return member

    def join(self, shards: Iterable[str] = ("q1", "q2"), channel: int = 1, tag: str = "c", **more: object) -> Member:
        """Let a member join; return it once each of its links is open."""
        member = self.begin(shards, channel=channel, tag=tag, **more)
        self.to_broker()
        self.to_client()
        for link in list(member.links.values()):
            self.both(opened(link.channel, tag))
        self.forget()
        return member

    def frames(self) -> list[Frame]:
        """Return what goes to the broker."""
        return split(self.to_broker())


def consume(channel: int, tag: str = "c", name: str = "x", **more: object) -> bytes:
    return made(channel, commands.Basic.Consume(queue=name, consumer_tag=tag, **more))  # type: ignore[arg-type]


def opened(number: int, tag: str = "c") -> bytes:
    """Return the broker's answers to a link that is opened."""
    ok = made(number, commands.Channel.OpenOk()) + made(number, commands.Basic.QosOk())
    return ok + made(number, commands.Basic.ConsumeOk(tag))


def deliver(
    number: int,
    tag: int,
    data: bytes = b"hello",
    *,
    consumer: str = "c",
    exchange: bytes = b"lane.q1",
    key: bytes = b"k",
    redelivered: bool = False,
    piece: int = 4096,
    head: bytes = b"",
) -> bytes:
    """A delivery of the broker's, its body in frames of so many bytes; `head` is another content header's frame."""
    arguments = short(consumer) + pack(">QB", tag, redelivered) + short(exchange) + short(key)
    bodies = b"".join(body(number, data[i : i + piece]) for i in range(0, len(data), piece))
    return method(number, 60, 60, arguments) + (head or header(number, len(data))) + bodies


def seen(
    number: int,
    data: bytes = b"hello",
    *,
    channel: int = 1,
    consumer: str = "c",
    exchange: bytes = b"x",
    key: bytes = b"k",
    redelivered: bool = False,
    piece: int = 4096,
    head: bytes = b"",
) -> bytes:
    """The same delivery as the client gets it, with its number."""
    more = {"consumer": consumer, "exchange": exchange, "key": key, "redelivered": redelivered, "piece": piece}
    return deliver(channel, number, data, head=head, **more)  # type: ignore[arg-type]


def bodies(data: bytes) -> list[bytes]:
    """Return the bodies of the messages in what a peer gets, none of which is in several frames."""
    return [each.payload for each in split(data) if each.kind == BODY]


def closed(number: int) -> bytes:
    """The broker's channel.close-ok."""
    return made(number, commands.Channel.CloseOk())


def is_close(frame_: Frame) -> bool:
    """Return whether a frame is a channel.close."""
    return frame_.kind == 1 and frame_.id == (20, 40)
