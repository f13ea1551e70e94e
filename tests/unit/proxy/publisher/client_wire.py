"""A publishing connection whose handshake is over, and a receiver that keeps the results of its publishes."""

from collections.abc import Callable
from struct import pack, unpack_from

from pamqp import commands
from pamqp.common import FieldTable

from proxy.outcome import Outcome
from proxy.publisher.channel import ConfirmChannel, PublishResult
from proxy.publisher.protocol import PublisherProtocol, Stage
from proxy.routing.counters import Counters
from proxy.routing.route import Target
from proxy.wire.properties import Header, encoded
from tests.unit.proxy.session.wire import body, entry, headers, made, published, queue, returned

PERSISTENT_HEADER = Header.of(dict([encoded("delivery_mode", 2)]))


def queue_named(name: str) -> bytes:
    """How a publish to it begins."""
    return Target(queue(name)).method


TO_Q = queue_named("q")


def start(properties: FieldTable | None = None) -> bytes:
    return made(0, commands.Connection.Start(0, 9, properties or {}, "PLAIN AMQPLAIN", "en_US"))


def tune(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 60) -> bytes:
    return made(0, commands.Connection.Tune(channel_max, frame_max, heartbeat))


OPEN_OK = made(0, commands.Connection.OpenOk())


def blocked(why: str) -> bytes:
    return made(0, commands.Connection.Blocked(why))


class Results:
    """Keeps the results of publishes, by index."""

    def __init__(self) -> None:
        self.verdicts: dict[int, list[PublishResult]] = {}
        self.then: Callable[[], object] = lambda: None

    def settled(self, index: int, verdict: PublishResult) -> None:
        self.verdicts.setdefault(index, []).append(verdict)
        self.then()

    def of(self, index: int) -> PublishResult:
        (verdict,) = self.verdicts[index]
        return verdict

    @property
    def outcomes(self) -> dict[int, Outcome]:
        return {index: self.of(index).outcome for index in sorted(self.verdicts)}


class Wire:
    """A publishing connection whose handshake is over, and the results of its publishes."""

    def __init__(self, channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 60) -> None:
        self.client = c = PublisherProtocol("me", "secret", "v")
        self.results, self.counters = Results(), Counters()
        c.feed(start() + tune(channel_max, frame_max, heartbeat) + OPEN_OK)
        assert c.stage is Stage.OPEN
        self.sent()
        self.published = 0

    def publish(
        self, to: bytes = b"", data: bytes = b"", method: bytes = TO_Q, header: Header = PERSISTENT_HEADER
    ) -> int:
        """Its index; nothing has happened where it raises."""
        index = self.published
        self.client.publish(to, method, header, b"", b"", data, (self.results, index, self.counters))
        self.published += 1
        return index

    def publishes(self, number: int, to: bytes = b"") -> None:
        for _ in range(number):
            self.publish(to)

    def give_up(self, why: str) -> None:
        """All that is unsettled."""
        for channel, number in self.client.marks():
            self.client.give_up(channel, number, why)

    def sent(self) -> bytes:
        self.client.pack()
        data = b"".join(self.client.out)
        self.client.out.clear()
        return data

    def ids(self) -> list[int]:
        """The ring ids that went out."""
        return [unpack_from(">q", one.header, len(one.header) - 9)[0] for one in published(self.sent())]

    def fed(self, *data: bytes) -> dict[int, Outcome]:
        self.client.pack()
        self.client.feed(b"".join(data))
        return self.results.outcomes

    def channel(self, to: bytes = b"") -> ConfirmChannel:
        return self.client.channels[to]


def come_back(channel: int, ring_id: int, size: int = 0) -> bytes:
    """A message that the broker returns: its body in one frame."""
    stamp = entry(b"x-ring-id", b"l", pack(">q", ring_id))
    return returned(channel, b"", b"q") + headers(channel, size, stamp) + (body(channel, b"x" * size) if size else b"")
