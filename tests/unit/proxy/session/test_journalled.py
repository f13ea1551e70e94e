"""The records of publishes in the journal: by which ring, to which destination, and what became of them in the end."""

from proxy.journal.buffer import Filled, Journal, Record
from proxy.outcome import Outcome
from proxy.topology.table import Entry, KnownRing, PassReason
from ring.hashing import slot_of
from tests.unit.proxy.session.republishing import LEFT, LOST, OURS, again, connected
from tests.unit.proxy.session.wire import (
    NOW,
    QUEUES,
    VHOST,
    Wire,
    ack,
    back,
    exchange,
    known,
    message,
    nack,
    queue,
    ring,
    upstream,
)

BEHIND = ring(exchange("x"))


def journalled(x: Entry | KnownRing = QUEUES) -> tuple[Wire, Journal, list[Filled]]:
    """A connection whose publishes to x are all recorded."""
    handed: list[Filled] = []
    journal = Journal(1 << 20, handed.append, lambda: NOW + 1)
    w = connected(x=x)
    w.tables.journal = journal
    return w, journal, handed


def records(journal: Journal, handed: list[Filled]) -> list[Record]:
    journal.turn()
    return [one for filled in handed for one in filled.records[: filled.used] if one is not None]


def test_a_publish_is_recorded_once_it_is_answered() -> None:
    w, journal, handed = journalled()
    w.client(message(1, b"x", LOST[0]))
    assert records(journal, handed) == []
    w.both(nack(1, 1))
    (one,) = records(journal, handed)
    assert (one.destination, one.key, one.outcome) == (queue("q2"), LOST[0], Outcome.NACKED)


def test_one_that_came_back_is_recorded_where_it_went_then() -> None:
    w, journal, handed = journalled()
    w.both(back(w.client(message(1, b"x", LOST[0]))) + ack(1, 1))
    (sent,) = again(w.reread({"x": LEFT})[0])
    assert records(journal, handed) == []
    w.both(ack(OURS, 1))
    (one,) = records(journal, handed)
    assert one.destination == queue(sent.key.decode())
    assert one.destination != queue("q2")
    assert (one.ring, one.outcome) == (LEFT, Outcome.CONFIRMED)


def test_one_that_its_exchange_took_in_the_end_has_no_destination() -> None:
    w, journal, handed = journalled()
    w.both(back(w.client(message(1, b"x", LOST[0]))) + ack(1, 1))
    w.reread({"x": known(None, PassReason.NO_BINDINGS)})
    w.both(ack(OURS, 1))
    (one,) = records(journal, handed)
    assert (one.destination, one.outcome) == (None, Outcome.PASSED)


def test_what_a_ring_behind_an_upstream_exchange_gets_is_recorded_and_nothing_else() -> None:
    w, journal, handed = journalled(upstream({"a.*": "r"}))
    w.router.put((VHOST, "r"), known(QUEUES))
    w.client(message(1, b"x", b"a.1") + message(1, b"x", b"b.1"))
    w.both(ack(1, 2, multiple=True))
    (one,) = records(journal, handed)
    assert (one.name, one.ring, one.destination) == ((VHOST, "x"), QUEUES, QUEUES.ring.owner_of(b"a.1"))
    assert one.outcome == Outcome.CONFIRMED


def test_what_a_shadowed_ring_would_have_chosen_is_passed() -> None:
    w, journal, handed = journalled(known(QUEUES, PassReason.SHADOW))
    sent = message(1, b"x", LOST[0])
    assert w.client(sent) == sent
    w.both(ack(1, 1))
    (one,) = records(journal, handed)
    assert (one.destination, one.key, one.outcome) == (None, LOST[0], Outcome.PASSED)


def test_keys_outside_the_share_are_recorded_as_in_shadow() -> None:
    w, journal, handed = journalled()
    w.tables.selection.take_share(0)
    sent = message(1, b"x", LOST[0])
    assert w.client(sent) == sent
    w.both(ack(1, 1))
    (one,) = records(journal, handed)
    assert (one.destination, one.key, one.slot, one.outcome) == (None, LOST[0], slot_of(LOST[0]), Outcome.PASSED)


def test_nothing_is_recorded_of_rings_in_a_circle() -> None:
    """No ring chose."""
    w, journal, handed = journalled(BEHIND)
    sent = message(1, b"x", b"k")
    assert w.client(sent) == sent
    w.both(ack(1, 1))
    assert records(journal, handed) == []
