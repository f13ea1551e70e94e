"""The hot loop: what waits for a look-up, or for the answer to a declaration."""

import pytest
from pamqp import base, commands

from proxy.amqp.routes import UNANSWERED
from proxy.router import PassReason
from tests.unit.proxy.amqp import wire
from tests.unit.proxy.amqp.rewriting import TRAILING, with_ring
from tests.unit.proxy.amqp.wire import QUEUES, Wire, header, known, made, message, publish, published


def test_a_publish_to_an_unknown_exchange_is_held_and_goes_on() -> None:
    data = message(2, b"", b"q") + message(1, b"later", b"k") + message(1, b"later", b"k2") + TRAILING
    for chunking in wire.chunkings(data):
        w, out = Wire(), b""
        for chunk in chunking:
            out += w.client(chunk)
        assert w.held == "later"
        assert out == message(2, b"", b"q")
        w.router.put(("/", "later"), known(QUEUES))
        w.c.held = None
        out += w.client(b"")
        assert [p.body for p in published(out[: -len(TRAILING)])] == [b"hello"] * 3
        assert out.endswith(TRAILING)


def test_a_forced_route_is_for_its_exchange_only() -> None:
    """What was found out about one exchange says nothing of the next publish's."""
    w = Wire()
    w.client(message(1, b"absent", b"k") + message(1, b"other", b"k"))
    assert w.held == "absent"
    assert w.c.table is not None
    w.c.forced, w.c.held = w.c.table.absent(b"absent"), None
    assert w.client(b"") == message(1, b"absent", b"k")
    assert w.held == "other"


def test_a_ring_that_changes_between_method_and_header_is_asked_anew() -> None:
    w = Wire({"x": QUEUES})
    assert w.client(publish(1, b"x", b"k")) == b""
    w.router.drop(("/", "x"))
    assert w.client(header(1, 0)) == b""
    assert w.held == "x"
    w.router.put(("/", "x"), known(None, PassReason.NO_BINDINGS))
    w.c.held = None
    assert w.client(b"") == publish(1, b"x", b"k") + header(1, 0)
    assert w.tally("x", PassReason.NO_BINDINGS).published == 1


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
    sent = w.client(made(1, declared) * 2 + default + message(2, b"t", b"k") + message(1, b"x", b"k") + TRAILING)
    assert sent.endswith(default + message(2, b"t", b"k"))
    assert w.c.held is UNANSWERED
    w.broker(made(1, answer))
    assert w.c.channels[1].declaring == 1
    w.broker(made(1, answer))
    assert w.c.channels[1].declaring == 0
    w.c.held = None
    (published_,) = published(sent := w.client(b""))
    assert published_.exchange == b""
    assert sent.endswith(TRAILING)


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
