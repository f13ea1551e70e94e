"""Publishers of a cluster's nodes that publish into a lane all the time, and know of each publish what became of it."""

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pamqp.commands import Basic

from testbed.node import Node
from tests.integration.broker_api import wait_until
from tests.integration.wire_client import Client, Wire, port_of, publishing

_RETURN, _ACK, _NACK = b"\x00\x3c\x00\x32", b"\x00\x3c\x00\x50", b"\x00\x3c\x00\x78"


class Told(NamedTuple):
    """A publish that is settled: the monotonic second before it was sent, and what RabbitMQ told of it."""

    begun: float
    outcome: str
    """`routed`, `returned` or `nacked`."""


class Batches:
    """One connection with confirms on all channels. A batch is so many publishes on each of them, all mandatory."""

    def __init__(self, wire: Wire, lane: str, channels: int, each: int) -> None:
        self.wire = wire
        self._channels, self._each = range(1, channels + 1), each
        for channel in self._channels:
            wire.channel(channel)
        self._data = b"".join(
            publishing(channel, lane, "k", b"%d" % number, mandatory=True)
            for number in range(each)
            for channel in self._channels
        )
        self._before = 0
        """The delivery tag of each channel's last publish."""

    def send(self) -> float:
        """Send a batch, and return the second before."""
        begun = time.monotonic()
        self.wire.send(self._data)
        return begun

    def told(self, begun: float) -> list[Told]:
        """Return what became of each publish of the batch, once all of it is settled."""
        outcomes = {(channel, tag): "" for channel in self._channels for tag in range(1, self._each + 1)}
        returning: set[int] = set()
        open_ones = len(outcomes)
        while open_ones:
            kind, channel, payload = self.wire.read_frame()
            if kind == 1 and payload[:4] == _RETURN:
                returning.add(channel)
            elif kind == 3 and channel in returning:
                returning.remove(channel)
                outcomes[channel, int(payload) + 1] = "returned"
            elif kind == 1 and payload[:4] in (_ACK, _NACK):
                last = int.from_bytes(payload[4:12], "big") - self._before
                for tag in range(1 if payload[12] & 1 else last, last + 1):
                    if outcomes[channel, tag] in ("", "returned"):
                        told = "routed" if payload[:4] == _ACK else "nacked"
                        outcomes[channel, tag] = f"settled {outcomes[channel, tag] or told}"
                        open_ones -= 1
        self._before += self._each
        return [Told(begun, outcome.removeprefix("settled ")) for outcome in outcomes.values()]


class LanePublisher:
    """A thread that publishes batches by way of one node until it is stopped."""

    def __init__(self, node: Node, batches: Batches) -> None:
        self.node = node
        self._batches = batches
        self._told: list[Told] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self.error: Exception | None = None
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._over.is_set():
                self._told += self._batches.told(self._batches.send())
        except Exception as error:
            self.error = error

    def stop(self) -> None:
        self._over.set()
        self._thread.join()
        if self.error:
            raise self.error

    def told(self) -> list[Told]:
        """Return all that is settled, in order."""
        assert not self.error, self.error
        return self._told[:]

    def forget(self) -> None:
        self._told = self._told[-1:]

    def is_behind(self, moment: float, outcome: str = "") -> bool:
        """Return whether the last publish was begun after the moment, and ended so if an outcome is named."""
        assert not self.error, self.error
        last = self._told[-1:]
        return bool(last) and last[0].begun > moment and outcome in (last[0].outcome, "")


@contextmanager
def lane_load(
    nodes: Iterable[Node], lane: str, *, connections: int = 1, channels: int = 1, each: int = 1
) -> Iterator[list[LanePublisher]]:
    """Publish by way of all nodes until the block ends."""
    made: list[LanePublisher] = []
    wires: list[Wire] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)  # a moment is read when it is there, not once other threads have had their turns
    try:
        for node in nodes:
            for _ in range(connections):
                wires.append(wire := opened(node))
                made.append(LanePublisher(node, Batches(wire, lane, channels, each)))
        yield made
    finally:
        try:
            for publisher in made:
                publisher.stop()
        finally:
            for wire in wires:
                wire.close()
            sys.setswitchinterval(interval)


def opened(node: Node) -> Wire:
    """Return an open connection to a node, without a channel."""
    client, wire = Client.of(node.amqp_url), Wire(port_of(node.amqp_url))
    wire.handshake(client.user, client.password)
    wire.open("/")
    return wire


def all_behind(publishers: Iterable[LanePublisher], moment: float, outcome: str = "") -> None:
    """Return once each publisher has a publish that was begun after the moment, and ended so."""
    for each in publishers:
        wait_until(f"{each.node.name} {outcome}", lambda each=each: each.is_behind(moment, outcome))  # type: ignore[misc]


def is_returned(wire: Wire, channel: int, lane: str, number: int) -> bool:
    """Publish into a lane, and return whether it came back. `number` is how many were published on the channel."""
    wire.publish(channel, lane, "k", b"9000000", mandatory=True)
    at, value = wire.read()
    assert at == channel
    if not isinstance(value, Basic.Return):
        return False
    for _ in range(2):
        wire.read()
    wire.confirm(channel, number + 1, number)
    return True
