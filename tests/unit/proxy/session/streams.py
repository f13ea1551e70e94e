"""Connections and streams of frames for the hot loop."""

from hypothesis import strategies as st
from pamqp import commands

from proxy.topology.table import PassReason
from ring.hashed import HashedValue
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    QUEUES,
    Wire,
    body,
    header,
    headers,
    known,
    long_string,
    made,
    method,
    publish,
    ring,
)

TRAILING = made(2, commands.Basic.Qos(prefetch_count=3))
BY_HEADER = ring(*(wire.queue(f"q{i}") for i in range(16)), hashed=HashedValue("header", "customer"))


def no_ring() -> Wire:
    """Return a Wire whose exchanges no ring routes: a topic exchange, and one that is passed by the settings."""
    return Wire({"t": known(None, PassReason.TYPE), "p": known(QUEUES, PassReason.MODE_PASS)})


def with_ring() -> Wire:
    return Wire({"x": QUEUES})


keys = st.binary(max_size=255)
bodies = st.lists(st.binary(min_size=1, max_size=40), max_size=4)


@st.composite
def contents(draw: st.DrawFn, channel: int, exchanges: st.SearchStrategy[bytes]) -> list[bytes]:
    """The frames of one publish."""
    parts = draw(bodies)
    method = publish(channel, draw(exchanges), draw(keys), draw(st.integers(0, 3)))
    entries = draw(
        st.lists(
            st.one_of(
                st.builds(long_string, st.binary(max_size=9), st.binary(max_size=20)),
                st.builds(lambda name: wire.entry(name, b"V", b""), st.binary(max_size=5)),
            ),
            max_size=3,
        )
    )
    size = sum(map(len, parts))
    head = headers(channel, size, b"".join(entries)) if draw(st.booleans()) else header(channel, size)
    return [method, head, *(body(channel, part) for part in parts)]


def others(channel: int) -> st.SearchStrategy[list[bytes]]:
    """Frames of other kinds that change nothing."""
    return st.sampled_from(
        [
            [made(channel, commands.Basic.Ack(7, True))],
            [made(channel, commands.Basic.Consume(queue="q", nowait=True))],
            [made(channel, commands.Exchange.Declare(exchange="e", passive=True))],
            [made(channel, commands.Queue.Declare(queue="q", arguments={"a": 1}))],
            [made(channel, commands.Queue.Purge(queue="q"))],
            [method(channel, 77, 1, b"anything")],
            [made(channel, commands.Confirm.Select())],
            [HEARTBEAT],
        ]
    )


@st.composite
def streams(draw: st.DrawFn, exchanges: st.SearchStrategy[bytes]) -> bytes:
    """Frames of two channels, interleaved."""
    queues = {
        channel: [
            f
            for unit in draw(st.lists(st.one_of(contents(channel, exchanges), others(channel)), max_size=5))
            for f in unit
        ]
        for channel in (1, 2)
    }
    out = []
    while any(queues.values()):
        channel = draw(st.sampled_from([channel for channel, left in queues.items() if left]))
        out.append(queues[channel].pop(0))
    return b"".join(out)
