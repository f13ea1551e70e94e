"""The hot loop: what waits for a look-up, or for the answer to a declaration."""

import pytest
from pamqp import base, commands

from proxy.routing.route import Route
from proxy.session.backlog import MOST_WITHHELD, Wait
from proxy.session.publishing.confirms import MOST_UNSETTLED
from proxy.session.state import Phase
from proxy.topology.table import PassReason
from tests.unit.proxy.session import wire
from tests.unit.proxy.session.streams import TRAILING, with_ring
from tests.unit.proxy.session.wire import (
    HEARTBEAT,
    QUEUES,
    Wire,
    ack,
    body,
    close_connection,
    header,
    known,
    made,
    message,
    publish,
    published,
)


def test_a_publish_to_an_unknown_exchange_waits_with_its_channel_and_no_other_does() -> None:
    other, waits = message(2, b"", b"q"), message(1, b"later", b"k") + ack(1, 7) + message(1, b"", b"q2")
    data = other + waits + other + TRAILING
    for chunking in wire.chunkings(data):
        w, out = Wire(), b""
        for chunk in chunking:
            out += w.client(chunk)
        assert w.held == "later"
        assert out == other + other + TRAILING
        assert w.backlog is not None
        assert (w.c.waiting.size, w.backlog.size, w.c.waiting.stalled) == (len(waits), len(waits), False)
        w.router.put(("/", "later"), known(QUEUES))
        (first, *_), rest = published(w.resumed()[: -len(ack(1, 7) + message(1, b"", b"q2"))]), w.c.waiting.channels
        assert (first.exchange, first.body) == (b"", b"hello")
        assert (rest, w.c.waiting.size, w.c.to_broker.rest) == ({}, 0, b"")


def test_what_a_channel_sent_behind_a_publish_that_waits_goes_out_behind_it() -> None:
    w = Wire(channels=(1, 2))
    behind = ack(1, 7) + message(1, b"", b"q2", b"b" * 5000)
    w.client(message(1, b"later", b"k"))
    for chunk in wire.chunks(behind + message(2, b"", b"q"), range(0, len(behind), 7)):
        w.client(chunk)
    w.router.put(("/", "later"), known(QUEUES))
    assert w.resumed().endswith(behind)


def test_nothing_goes_on_while_the_client_is_in_the_midst_of_a_frame() -> None:
    """The frame is of another channel, and the broker has got its beginning."""
    w = Wire()
    w.client(message(1, b"later", b"k"))
    big = publish(2, b"", b"q") + header(2, 100) + body(2, bytes(100))
    assert w.client(big[:-50]) == big[:-50]
    w.router.put(("/", "later"), known(QUEUES))
    assert w.resumed() == b""
    assert w.held is None
    sent = w.client(big[-50:] + TRAILING)
    assert sent.startswith(big[-50:] + TRAILING)
    assert published(sent[50 + len(TRAILING) :])


@pytest.mark.parametrize("passed", [False, True])
def test_a_channel_goes_on_in_the_midst_of_a_frame_of_its_own(passed: bool) -> None:
    """The broker has nothing of that frame, so nothing has to wait for its end."""
    whole = message(1, b"later", b"k", bytes(100)) + message(2, b"", b"q")
    begun = whole.index(bytes(100))
    for cut in (begun, begun + 50, begun + 100):
        w, other = Wire(), message(2, b"", b"q2")
        assert w.client(other + whole[:cut]) == other
        w.c.to_broker.insert(HEARTBEAT)
        w.router.put(("/", "later"), known(None, PassReason.TYPE) if passed else known(QUEUES))
        out = w.resumed()
        assert out.startswith(HEARTBEAT)
        assert len(out) > len(HEARTBEAT) + 30
        out += b"".join(w.client(whole[i : i + 1]) for i in range(cut, len(whole)))
        out += w.client(TRAILING)
        first, second = published(out[len(HEARTBEAT) : -len(TRAILING)])
        assert (first.body, second.key, out.endswith(TRAILING)) == (bytes(100), b"q", True)
        assert (w.c.waiting.channels, w.c.waiting.size, w.c.to_broker.body_left, w.c.to_broker.rest) == ({}, 0, 0, b"")


def test_another_channel_waits_for_the_end_of_a_frame_that_waits() -> None:
    w = Wire()
    w.client(message(2, b"two", b"k") + message(1, b"one", b"k", bytes(100))[:-50])
    second = w.c.channels[2].backlog
    assert second is not None
    w.router.put(("/", "two"), known(QUEUES))
    second.awaited = None
    assert w.client(b"") == b""
    (sent,) = published(w.client(message(1, b"one", b"k", bytes(100))[-50:]))
    assert sent.channel == 2
    assert list(w.c.waiting.channels) == [1]


def test_a_channel_that_waits_keeps_no_more_than_a_bound() -> None:
    """Beyond it the client is not read, and what has been read by then waits as it came."""
    w = Wire()
    w.client(message(1, b"later", b"k"))
    piece = message(1, b"", b"q", bytes(100_000))
    while not w.c.waiting.stalled:
        assert w.client(piece) == b""
        assert w.c.waiting.size < MOST_WITHHELD + 2 * len(piece)
    assert w.client(message(2, b"", b"q")) == b""
    w.router.put(("/", "later"), known(QUEUES))
    sent = w.resumed()
    assert sent.endswith(message(2, b"", b"q"))
    assert (w.c.waiting.stalled, w.c.waiting.size) == (False, 0)
    assert len(published(sent)) > 2


def test_a_close_of_the_connection_does_not_overtake_what_waits() -> None:
    bye = close_connection(200, b"bye")
    for chunking in wire.chunkings(message(1, b"later", b"k") + message(2, b"", b"q") + bye):
        w, out = Wire(confirming=True), b""
        for chunk in chunking:
            out += w.client(chunk)
        assert out == message(2, b"", b"q")
        assert (w.c.waiting.stalled, w.c.phase) == (True, Phase.RUNNING)
        w.router.put(("/", "later"), known(QUEUES))
        assert published(w.resumed())
        assert (w.c.waiting.stalled, w.c.phase, w.c.goodbye) == (False, Phase.LEAVING, bye)


def test_channels_wait_each_for_its_own() -> None:
    w = Wire()
    w.client(message(1, b"one", b"k") + message(2, b"two", b"k"))
    assert list(w.c.waiting.channels) == [1, 2]
    w.router.put(("/", "two"), known(QUEUES))
    second = w.c.channels[2].backlog
    assert second is not None
    second.awaited = None
    (sent,) = published(w.client(b""))
    assert sent.channel == 2
    assert list(w.c.waiting.channels) == [1]


def test_a_forced_route_is_for_its_exchange_only() -> None:
    """The result of a look-up of one exchange says nothing of the next publish's."""
    w = Wire()
    w.client(message(1, b"absent", b"k") + message(1, b"other", b"k"))
    assert w.held == "absent"
    assert w.c.table is not None
    assert w.resumed(w.c.table.absent(b"absent")) == message(1, b"absent", b"k")
    assert w.held == "other"


def test_a_ring_that_changes_between_method_and_header_is_asked_anew() -> None:
    w = Wire({"x": QUEUES})
    assert w.client(publish(1, b"x", b"k")) == b""
    w.router.drop(("/", "x"))
    assert w.client(header(1, 0)) == b""
    assert w.held == "x"
    w.router.put(("/", "x"), known(None, PassReason.NO_BINDINGS))
    assert w.resumed() == publish(1, b"x", b"k") + header(1, 0)
    assert w.counters("x", PassReason.NO_BINDINGS).published == 1


def test_a_publish_whose_channel_the_broker_closes_meanwhile_asks_no_more() -> None:
    """The broker drops it, so nothing is worth a look-up."""
    w = Wire({"x": QUEUES})
    assert w.client(publish(1, b"x", b"k")) == b""
    w.router.drop(("/", "x"))
    w.broker(wire.close_channel(1, 406, b"PRECONDITION_FAILED"))
    assert w.client(header(1, 0)) == publish(1, b"x", b"k") + header(1, 0)
    assert w.held is None
    assert w.client(made(1, commands.Channel.CloseOk())) == made(1, commands.Channel.CloseOk())
    assert 1 not in w.c.channels


@pytest.mark.parametrize(
    ("declared", "answer"),
    [
        (commands.Exchange.Declare(exchange="x", exchange_type="topic"), commands.Exchange.DeclareOk()),
        (commands.Exchange.Delete(exchange="x", nowait=True), commands.Exchange.DeleteOk()),
        (commands.Queue.Bind(queue="q", exchange="x", routing_key="1", nowait=True), commands.Queue.BindOk()),
        (commands.Queue.Unbind(queue="q", exchange="x", routing_key="1"), commands.Queue.UnbindOk()),
        (commands.Queue.Delete(queue="q", nowait=True), commands.Queue.DeleteOk(1)),
        (commands.Exchange.Bind(destination="d", source="x"), commands.Exchange.BindOk()),
        (commands.Exchange.Unbind(destination="d", source="x"), commands.Exchange.UnbindOk()),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_publish_waits_for_the_answers_to_what_was_declared_before_it(
    declared: base.Frame, answer: base.Frame
) -> None:
    w = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE)})
    default = message(1, b"", b"q")
    # The default exchange and other channels wait for nothing; no ring depends on what was declared there.
    sent = w.client(made(1, declared) * 2 + default + message(1, b"x", b"k") + message(2, b"x", b"k") + TRAILING)
    assert sent.endswith(TRAILING)
    assert published(sent[sent.index(default) : -len(TRAILING)])[-1].channel == 2
    assert w.waits_for is Wait.UNANSWERED
    w.broker(made(1, answer))
    assert w.c.channels[1].declaring == 1
    w.broker(made(1, answer))
    assert w.c.channels[1].declaring == 0
    (published_,) = published(w.client(b""))
    assert (published_.exchange, published_.channel) == (b"", 1)


@pytest.mark.parametrize(
    "request_",
    [
        commands.Exchange.Declare(exchange="x", passive=True),
        commands.Queue.Declare(queue="q"),
        commands.Queue.Purge(queue="q"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_publish_does_not_wait_for_what_changes_no_ring(request_: base.Frame) -> None:
    w = with_ring()
    assert published(w.client(made(1, request_) + message(1, b"x", b"k")))
    assert w.held is None


def test_a_client_is_read_to_the_end_of_its_frame_however_much_waits() -> None:
    """Nothing goes on in the midst of one, so the client could not be read for ever."""
    data = message(1, b"later", b"k", bytes(MOST_WITHHELD)) + message(2, b"", b"q")
    for cut in (MOST_WITHHELD - 10, MOST_WITHHELD + 10):
        for size in (5, len(data)):
            w = Wire(frame_max=MOST_WITHHELD * 2)
            w.client(data[:cut])
            rest, out = data[cut:], b""
            while rest and not w.c.paused:
                out += w.client(rest[:size])
                rest = rest[size:]
            assert w.c.to_broker.body_left == 0
            w.router.put(("/", "later"), known(QUEUES))
            out += w.resumed()
            while rest:
                assert not w.c.paused
                out += w.client(rest[:size])
                rest = rest[size:]
            assert sorted(one.channel for one in published(out)) == [1, 2]
            assert (w.c.waiting.stalled, w.c.waiting.size, w.c.to_broker.rest) == (False, 0, b"")


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_a_number_that_is_free_again_waits_on_in_the_midst_of_anothers_frame(size: int) -> None:
    """Frames on it behind its channel.open go out behind that."""
    w = Wire()
    big = publish(2, b"", b"q") + header(2, 100) + body(2, bytes(100))
    closed, opened = made(1, commands.Channel.Close(200, "", 0, 0)), made(1, commands.Channel.Open())
    behind = message(1, b"", b"q2")
    w.client(closed + opened + big[:-50])
    w.broker(made(1, commands.Channel.CloseOk()))
    data, out = big[-50:] + behind + TRAILING, b""
    for at in range(0, len(data), size):
        out += w.client(data[at : at + size])
    out += w.client(b"")
    assert out.startswith(big[-50:])
    assert sorted([out.index(opened), out.index(behind)]) == [out.index(opened), out.index(behind)]
    assert (w.c.waiting.channels, w.c.waiting.size, w.c.to_broker.rest) == ({}, 0, b"")
    assert list(w.c.channels) == [2, 1]


def test_what_waits_for_room_goes_on_though_a_channel_gets_crowded_first() -> None:
    w = Wire(confirming=True)
    bye = close_connection(200, b"bye")
    w.client(message(1, b"", b"q", b"") * (MOST_UNSETTLED - 2))
    w.client(message(1, b"later", b"k", b"") * 2 + message(2, b"", b"q") + bye)
    w.router.put(("/", "later"), known(QUEUES))
    assert len(published(w.resumed())) == 2
    assert w.c.paused
    w.broker(ack(1, MOST_UNSETTLED, multiple=True))
    w.client(b"")
    assert (w.c.paused, w.c.phase, w.c.goodbye) == (False, Phase.LEAVING, bye)


def test_what_was_found_for_a_publish_is_for_none_that_came_after_the_reading_began() -> None:
    """The later publish may have come behind a declaration, of another channel, which the reading does not show."""
    w = Wire()
    first = message(1, b"later", b"k") * 2
    w.client(first)
    assert w.backlog is not None
    seen = len(w.backlog.pieces)
    w.client(message(1, b"later", b"k2") + message(2, b"", b"q"))
    w.router.put(("/", "later"), known(QUEUES))
    w.router.mark_declared(("/", "later"), wire.NOW + 1, certain=True)
    assert w.c.table is not None
    route = w.c.table.once(b"later", wire.NOW - 1)
    assert isinstance(route, Route)
    assert len(published(w.resumed(route, seen))) == 2
    assert (w.held, w.c.waiting.size) == ("later", len(message(1, b"later", b"k2")))
