"""Connections whose messages come back, and our channel, on which they go out again."""

from pamqp import commands

from proxy.session.events import Stale
from proxy.topology.table import Entry, KnownRing, PassReason
from tests.unit.proxy.session.wire import (
    QUEUES,
    VHOST,
    Frame,
    Published,
    Wire,
    back,
    body,
    confirm_select,
    contents,
    frame,
    header,
    known,
    made,
    message,
    method,
    publish,
    queue,
    returned,
    ring,
)

OURS = 2047
LEFT = ring(queue("q1"), queue("q3"))
KEYS = [b"k%d" % n for n in range(60)]
LOST = [key for key in KEYS if QUEUES.ring.owner_of(key) == queue("q2")]
KEPT = [key for key in KEYS if key not in LOST]
GONE = Stale((VHOST, "x"), queue("q2"))
"""The event that shows that the queue of LOST is gone."""
CLOSE_OK = made(1, commands.Channel.CloseOk())
OPENING = method(OURS, 20, 10, b"\0") + confirm_select(OURS)


def connected(*, x: Entry | KnownRing = QUEUES, confirming: bool = True, frame_max: int = 1 << 17) -> Wire:
    rings = {"x": x, "y": known(None, PassReason.TYPE), "t": known(None, PassReason.TYPE), "same": LEFT}
    return Wire(rings, channels=(1, 2, 3), confirming=confirming, frame_max=frame_max, spare=OURS)


def again(to_broker: bytes) -> list[Published]:
    """The messages on our channel, which follow each other whole."""
    return [each for each in contents(to_broker, OURS) if isinstance(each, Published)]


def methods(to_broker: bytes) -> bytes:
    """The other frames on it."""
    return frames(*(each for each in contents(to_broker, OURS) if isinstance(each, Frame)))


def away(count: int = 1, *, bits: int = 0, confirming: bool = True, kept: int = 0) -> tuple[Wire, list[Published]]:
    """A connection with so many publishes on channel 1 that came back and are on their way again, and these.

    Behind them it has published `kept` messages that stay where they are.
    """
    w = connected(confirming=confirming)
    outs = [w.client(message(1, b"x", key, b"hello", bits)) for key in LOST[:count]]
    for key in KEPT[:kept]:
        w.client(message(1, b"x", key))
    assert w.both(b"".join(map(back, outs))) == (b"", b"")
    to_broker, to_client = w.reread({"x": LEFT})
    assert to_client == b""
    assert len(again(to_broker)) == count
    return w, again(to_broker)


def counted(w: Wire) -> tuple[int, ...]:
    """Publishes to x: all, then confirmed, nacked, unroutable, unknown, sent."""
    counters = w.counters("x")
    return counters.published, counters.acked, counters.nacked, counters.unroutable, counters.unknown, counters.sent


def frames(*each: Frame) -> bytes:
    return b"".join(one.whole for one in each)


def frames_of(one: Published) -> bytes:
    """As it was published."""
    return (
        publish(one.channel, one.exchange, one.key, one.bits)
        + frame(2, one.channel, one.header)
        + (body(one.channel, one.body) if one.body else b"")
    )


def message_back(key: bytes, *bodies: bytes) -> bytes:
    """A return as the client gets it."""
    data = b"".join(bodies)
    return returned(1, b"x", key) + header(1, len(data)) + b"".join(body(1, each) for each in bodies)
