"""Publishes to upstream exchanges, and what becomes of those that come back."""

from dataclasses import replace

import pytest

from proxy.topology.table import PassReason
from tests.unit.proxy.session.republishing import OURS, again, connected
from tests.unit.proxy.session.wire import QUEUES, VHOST, Wire, ack, back, known, message, ring, upstream
from tests.unit.proxy.session.wire import queue as queue_named

LEFT = ring(queue_named("q1"))
BEFORE = upstream({"a.*": "r"})


@pytest.fixture
def w() -> Wire:
    """A session; x leads to the ring r."""
    made = connected(x=BEFORE)
    made.router.put((VHOST, "r"), known(QUEUES))
    return made


def test_what_no_ring_gets_goes_on_as_it_came_in_any_chunking() -> None:
    stream = message(1, b"x", b"b.1") + message(1, b"x", b"", b"") + message(2, b"x", b"a.b.c", bits=1)
    for step in (1, 7, len(stream)):
        made = connected(x=BEFORE)
        made.router.put((VHOST, "r"), known(QUEUES))
        out = b"".join(made.client(stream[at : at + step]) for at in range(0, len(stream), step))
        assert out == stream
        assert made.counters("x", PassReason.NO_RING).published == 3


def test_one_that_came_back_goes_where_the_ring_behind_says_now(w: Wire) -> None:
    key = next(k for k in (b"a.%d" % n for n in range(99)) if QUEUES.ring.owner_of(k) != queue_named("q1"))
    w.both(back(w.client(message(1, b"x", key))) + ack(1, 1))
    (sent,) = again(w.reread({"r": LEFT})[0])
    assert (sent.exchange, sent.key) == (b"", b"q1")
    assert w.both(ack(OURS, 1))[1] == ack(1, 1)


@pytest.mark.parametrize(
    "now",
    [
        upstream({"b.*": "r"}),
        known(None, PassReason.TYPE),
        replace(BEFORE, passed=PassReason.OVERLAP),
        replace(upstream({}), passed=PassReason.NO_RING),
    ],
)
def test_one_that_came_back_and_leads_to_no_ring_any_more_goes_to_its_exchange(w: Wire, now: object) -> None:
    w.both(back(w.client(message(1, b"x", b"a.1"))) + ack(1, 1))
    (sent,) = again(w.reread({"r": LEFT, "x": now})[0])  # type: ignore[dict-item]
    assert (sent.exchange, sent.key) == (b"x", b"a.1")
    assert w.both(ack(OURS, 1))[1] == ack(1, 1)


def test_one_that_came_back_and_goes_to_its_exchange_counts_as_passed(w: Wire) -> None:
    w.both(back(w.client(message(1, b"x", b"a.1"))) + ack(1, 1))
    w.reread({"r": known(None, PassReason.NO_BINDINGS)})
    counts = w.counters("x"), w.counters("x", PassReason.NO_BINDINGS)
    assert [(each.published, each.rerouted) for each in counts] == [(1, 1), (1, 0)]


@pytest.mark.parametrize("why", [PassReason.DEAD_LETTER, PassReason.NO_BINDINGS])
def test_what_a_ring_out_of_service_would_get_counts_with_its_reason(w: Wire, why: PassReason) -> None:
    w.router.put((VHOST, "r"), known(QUEUES, why))
    assert w.client(message(1, b"x", b"a.1")) == message(1, b"x", b"a.1")
    assert (w.counters("x", why).published, w.counters("x", PassReason.NO_RING).published) == (1, 0)
