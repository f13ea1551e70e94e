"""Messages that come back go out again on our channel, and what their clients are told waits for that."""

from dataclasses import replace
from itertools import zip_longest
from struct import pack

import pytest

from proxy.republishes import MOST_REPUBLISHES
from proxy.session import broker_loop
from proxy.session.events import Refused, Stale
from proxy.topology.table import Entry, KnownRing, PassReason, Unread
from proxy.wire import content
from proxy.wire.content import STAMP_ID
from tests.unit.proxy.session.republishing import (
    CLOSE_OK,
    GONE,
    KEPT,
    LEFT,
    LOST,
    OPENING,
    OURS,
    again,
    away,
    connected,
    counted,
    frames,
    frames_of,
    message_back,
    methods,
)
from tests.unit.proxy.session.wire import (
    A_MOMENT,
    HEARTBEAT,
    NOW,
    QUEUES,
    VHOST,
    Frame,
    Published,
    Wire,
    ack,
    back,
    body,
    chunkings,
    close_channel,
    confirm_select,
    entry,
    exchange,
    header,
    headers,
    known,
    long_string,
    message,
    method,
    nack,
    publish,
    published,
    queue,
    returned,
    ring,
    split,
)

# Where to.

COPIES = b"".join(entry(name, b"A", pack(">I", 6) + b"S" + pack(">I", 1) + b"z") for name in (b"CC", b"BCC"))
HEADS = {
    "no properties": header(1, 5),
    "others only": header(1, 5, 1 << 12 | 1 << 2, b"\x02\x01c"),
    "an empty table": headers(1, 5, b""),
    "a table": headers(1, 5, long_string(b"a", b"1")),
    "copies": headers(1, 5, long_string(b"a", b"1") + COPIES),
    "another's stamps": headers(1, 5, long_string(b"x-ring-exchange", b"old") + entry(b"x-ring-id", b"l", b"\0" * 8)),
}


def stamped_id(header: bytes) -> bytes:
    at = header.index(STAMP_ID + b"l") + len(STAMP_ID) + 1
    return header[at : at + 8]


FOUND = {
    "a queue": LEFT,
    "an exchange": ring(exchange("y")),
    "no bindings": known(None, PassReason.NO_BINDINGS),
    "another type": known(None, PassReason.TYPE),
    "passed": known(QUEUES, PassReason.MODE_PASS),
    "no lane": known(QUEUES, PassReason.NOT_A_LANE),
    "an internal destination": known(QUEUES, PassReason.INTERNAL_DESTINATION),
    "dead letters": known(QUEUES, PassReason.DEAD_LETTER),
    "shadowed": known(QUEUES, PassReason.SHADOW),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
@pytest.mark.parametrize("bits", [0, 1])
def test_it_goes_out_as_the_client_publishes_it_where_that_was_known(
    head: bytes, found: Entry | KnownRing, bits: int
) -> None:
    w = connected()
    sent = publish(1, b"x", LOST[0], bits) + head + body(1, b"hello")
    out = w.client(sent)
    came = back(out, 2)
    (expected,) = published(connected(x=found).client(sent))
    if isinstance(found, Entry):
        # Passed, with nothing added but what tells which it is if it comes back.
        ring_id = entry(STAMP_ID, b"l", stamped_id(published(out)[0].header))
        marked, _ = content.stamped(expected.header, 0, len(expected.header), ring_id, {STAMP_ID})
        expected = expected._replace(header=marked)
    else:
        # The id says where it was sent at first.
        ours = expected.header.replace(stamped_id(expected.header), stamped_id(published(out)[0].header))
        expected = expected._replace(header=ours)
    assert w.both(came) == (b"", b"")
    assert w.awaited == GONE
    to_broker, to_client = w.reread({"x": found})
    assert to_broker.startswith(OPENING)
    assert methods(to_broker) == OPENING
    (one,) = again(to_broker)
    assert one == expected._replace(channel=OURS, bits=1)
    assert to_client == b""
    assert w.both(ack(1, 1)) == (b"", b"")
    assert w.both(ack(OURS, 1)) == (b"", ack(1, 1))
    assert w.counters("x").rerouted == 1


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("found", FOUND.values(), ids=FOUND)
def test_in_the_end_its_client_gets_it_in_its_own_words(head: bytes, found: Entry | KnownRing) -> None:
    """It came back from the queue, then from where the ring said next."""
    w = connected()
    sent = publish(1, b"x", LOST[0], 1) + head + body(1, b"hello")
    w.both(back(w.client(sent)))
    to_broker, _ = w.reread({"x": found})
    (one,) = again(to_broker)
    to_broker, to_client = w.both(ack(1, 1) + back(frames_of(one), 3) + ack(OURS, 1))
    if w.awaited is not None:
        assert (to_broker, to_client) == (b"", b"")
        to_broker, to_client = w.reread({})
    assert to_broker == b""
    told = returned(1, b"x", LOST[0]) + head + body(1, b"hel") + body(1, b"lo") + ack(1, 1)
    assert to_client == told
    assert counted(w) == (1, 0, 0, 1, 0, 0)


FOR_GOOD: dict[str, dict[str, Entry | KnownRing | None]] = {
    "unchanged": {},
    "gone": {"x": None},
    "a cycle": {"x": ring(exchange("y")), "y": known(ring(exchange("x")))},
    "dead letters, refused": {"x": replace(known(QUEUES, PassReason.DEAD_LETTER), refused="why")},
}


@pytest.mark.parametrize("found", FOR_GOOD.values(), ids=FOR_GOOD)
@pytest.mark.parametrize("bits", [0, 1])
def test_where_reading_does_not_help_it_is_the_clients(found: dict[str, Entry | KnownRing | None], bits: int) -> None:
    w = connected()
    out = w.client(message(1, b"x", LOST[0], b"hello", bits))
    w.both(back(out) + ack(1, 1))
    told = message_back(LOST[0], b"hello") + ack(1, 1) if bits else nack(1, 1)
    while w.awaited is not None:  # the queue first, then an exchange that is not there
        assert w.to_client() == b""
        both = w.reread(found)
    assert both == (b"", told)
    assert counted(w) == (1, 0, 0, 1, 0, 0)


def test_a_ring_that_has_become_too_old_is_read_first() -> None:
    """Though its client has published nothing since, over which it would have been noticed."""
    w = connected()
    out = w.client(message(1, b"x", LOST[0]))
    w.router.put((VHOST, "x"), known(LEFT))
    w.client(message(1, b"x", KEPT[0]))
    w.c.now = later = NOW + 301
    w.router.clock = lambda: later
    assert w.both(back(out)) == (b"", b"")
    assert isinstance(w.awaited, Unread)


@pytest.mark.parametrize("found", [QUEUES, ring(queue("q2"))], ids=["the same ring", "another ring"])
def test_a_queue_that_a_later_reading_shows_again_gets_its_message_so_often_and_no_more(found: KnownRing) -> None:
    w = connected()
    out = w.client(message(1, b"x", LOST[0], b"hello"))
    w.both(back(out) + ack(1, 1))
    for n in range(1, MOST_REPUBLISHES + 1):
        assert w.awaited == GONE
        w.c.now += 0.01
        (one,) = again(w.reread({"x": found})[0])
        assert one.key == b"q2"
        w.c.now += 0.01
        told = w.both(back(frames_of(one)) + ack(OURS, n))
    assert (w.awaited, told) == (None, (b"", nack(1, 1)))
    assert counted(w) == (1, 0, 0, 1, 0, 0)


def test_a_message_that_came_back_since_a_reading_was_asked_for_waits_for_another() -> None:
    w = connected()
    outs = [w.client(message(1, b"x", key)) for key in LOST[:2]]
    w.both(back(outs[0]))
    asked, w.c.now = w.c.now, w.c.now + 1
    w.both(back(outs[1]))
    w.router.put((VHOST, "x"), known(QUEUES, read_at=asked + A_MOMENT))
    broker_loop.after_reading(w.c, b"x", GONE, asked)
    assert len(again(w.to_broker())) == 1
    assert w.awaited == GONE
    assert [one.key for one in again(w.reread({"x": QUEUES})[0])] == [b"q2"]


def test_one_reading_serves_all_that_came_back_before_it() -> None:
    """Messages that waited only behind others are among them: the queue has gone, come back and gone meanwhile."""
    w = connected()
    outs = [w.client(message(1, b"x", key)) for key in LOST[:5]]
    w.both(back(outs[0]))
    w.router.put((VHOST, "x"), known(LEFT))
    w.both(b"".join(map(back, outs[1:])))
    assert [one.key for one in again(w.reread({"x": QUEUES})[0])] == [b"q2"] * 5
    assert not w.c.republishing.parking


def test_no_stream_of_declarations_leaves_a_message_without_a_ring() -> None:
    """A declaration after the reading has to be read back before others publish there, and need not be here."""
    w = connected()
    w.both(back(w.client(message(1, b"x", LOST[0]))))
    w.router.mark_declared((VHOST, "x"), NOW + 1, certain=True)
    w.c.now += 0.5
    (one,) = again(w.reread({"x": LEFT})[0])
    assert one.key in (b"q1", b"q3")


def test_each_return_asks_for_a_reading_of_its_own() -> None:
    """An earlier reading for another message says nothing of a queue that may have been there since."""
    w = connected()
    outs = [w.client(message(1, b"x", key)) for key in LOST[:2]]
    w.both(back(outs[0]))
    w.reread({})
    assert w.both(ack(1, 1)) == (b"", nack(1, 1))
    assert w.both(back(outs[1])) == (b"", b"")
    assert w.awaited == GONE


# Frames that wait while something is read, and frames that do not


@pytest.mark.parametrize("found", [LEFT, None], ids=["changed", "not readable"])
def test_all_but_its_own_ack_goes_on_in_any_chunking(found: KnownRing | None) -> None:
    client = message(1, b"x", LOST[0], b"hello", 1) + publish(2, b"t", b"k", 1) + header(2, 0)
    came = back(connected().client(client)[: -len(publish(2, b"t", b"k", 1) + header(2, 0))], 3)
    rest = method(2, 60, 60) + ack(2, 1) + HEARTBEAT + returned(2, b"t", b"k") + header(2, 0)
    told = b"" if found is not None else message_back(LOST[0], b"hel", b"lo") + ack(1, 1)
    for chunking in chunkings(came + rest + ack(1, 1)):
        w, outs = connected(), []
        w.client(client)
        outs += [w.both(chunk) for chunk in chunking]
        assert b"".join(to_client for _, to_client in outs) == rest
        assert not any(to_broker for to_broker, _ in outs)
        assert w.awaited == GONE
        to_broker, to_client = w.reread({"x": found} if found else {})
        assert to_client == told
        assert [one.body for one in again(to_broker)] == ([b"hello"] if found is not None else [])
        assert (
            w.c.to_client.rest,
            w.c.republishing.gathering,
            w.c.republishing.parking.size,
            bool(w.c.republishing.parking),
        ) == (b"", 0, 0, False)


@pytest.mark.parametrize("found", [LEFT, None], ids=["changed", "not readable"])
def test_acks_of_others_on_its_channel_go_on_before_it_is_placed(found: KnownRing | None) -> None:
    """The client is told of each for itself, even where the broker acks many at once."""
    w = connected()
    keys = [KEPT[0], LOST[0], KEPT[1], LOST[1], KEPT[2]]
    outs = [w.client(message(1, b"x", key)) for key in keys]
    assert w.both(back(outs[1]) + back(outs[3]) + ack(1, 4, True)) == (b"", ack(1, 1, True) + ack(1, 3))
    assert w.both(ack(1, 5)) == (b"", ack(1, 5))
    to_broker, to_client = w.reread({"x": found} if found else {})
    if found is None:
        assert (to_broker, to_client) == (b"", nack(1, 2) + nack(1, 4))
        return
    assert to_client == b""
    assert [one.channel for one in again(to_broker)] == [OURS, OURS]
    assert w.both(ack(OURS, 2)) == (b"", ack(1, 4))
    assert w.both(ack(OURS, 1)) == (b"", ack(1, 2, True))
    assert counted(w) == (5, 5, 0, 0, 0, 0)


@pytest.mark.parametrize("found", [LEFT, None], ids=["changed", "not readable"])
def test_a_reading_that_ends_before_the_body_has_come(found: KnownRing | None) -> None:
    for confirming in (False, True):
        w = connected(confirming=confirming)
        sent = w.client(message(1, b"x", LOST[0], b"123456", 1))
        parts = split(back(sent, 3))
        w.both(frames(*parts[:3]))
        to_broker, to_client = w.reread({"x": found} if found else {})
        rest = parts[3].whole + (ack(1, 1) if confirming else b"")
        outs = [w.both(rest[i : i + 1]) for i in range(len(rest))]
        to_broker += b"".join(out for out, _ in outs)
        to_client += b"".join(out for _, out in outs)
        if found is not None:
            assert to_client == b""
            assert [one.body for one in again(to_broker)] == [b"123456"]
        else:
            assert to_client == message_back(LOST[0], b"123", b"456") + (ack(1, 1) if confirming else b"")
        assert w.c.republishing.gathering == 0


def test_a_return_home_does_not_stand_in_the_midst_of_a_delivery() -> None:
    delivery = method(1, 60, 60) + header(1, 6) + body(1, b"123") + body(1, b"456")
    for cut in range(1, len(delivery)):
        w = connected()
        sent = w.client(message(1, b"x", LOST[0], b"hello", 1))
        told = [w.both(back(sent) + ack(1, 1))[1], w.both(delivery[:cut])[1], w.reread({})[1]]
        told.append(w.both(delivery[cut:])[1])
        home = message_back(LOST[0], b"hello") + ack(1, 1)
        assert b"".join(told) in (delivery + home, home + delivery)
        w.both(HEARTBEAT)
        assert not w.c.republishing.parking


def test_messages_of_one_exchange_that_came_back_keep_their_order() -> None:
    w = connected()
    first, second = (w.client(message(1, b"x", LOST[0], body)) for body in (b"first", b"second"))
    assert w.both(back(first)) == (b"", b"")
    w.router.put((VHOST, "x"), known(LEFT))
    assert w.both(back(second)) == (b"", b""), "alone it could go out at once"
    assert [one.body for one in again(w.reread({})[0])] == [b"first", b"second"]
    assert not w.c.republishing.parking


def test_a_return_on_our_channel_waits_in_any_chunking_too() -> None:
    _, (one,) = away()
    for chunking in chunkings(back(frames_of(one), 3) + ack(OURS, 1) + ack(2, 9)):
        w, _ = away()
        w.both(ack(1, 1))
        assert b"".join(w.both(chunk)[1] for chunk in chunking) == ack(2, 9)
        assert w.awaited == Stale((VHOST, "x"), queue(one.key.decode()))
        to_broker, to_client = w.reread({"x": ring(queue("q9"))})
        assert to_client == b""
        (next_one,) = again(to_broker)
        assert next_one == one._replace(key=b"q9")
        assert w.both(ack(OURS, 1)) == (b"", b"")  # of the publish before
        assert w.both(ack(OURS, 2)) == (b"", ack(1, 1))
        assert counted(w) == (1, 1, 0, 0, 0, 0)


# The streams of both sides.


def test_at_every_boundary_of_the_client_nothing_of_ours_stands_inside_its_frames() -> None:
    """The client is anywhere in its frames and contents when messages of two channels come back, mingled."""
    lost = message(1, b"x", LOST[1], b"lost 1", 1), message(2, b"x", LOST[2], b"lost 2")
    first = publish(1, b"t", b"a") + header(1, 6) + body(1, b"123") + body(1, b"456")
    client = first + message(2, b"same", KEPT[0], b"to a ring") + HEARTBEAT + message(1, b"", b"q") + method(2, 60, 70)
    plain = connected()
    outs = [split(back(plain.client(each), 3)) for each in lost]
    expected = plain.client(client)
    for cut in range(len(client) + 1):
        w = connected()
        w.client(b"".join(lost))
        to_broker = w.client(client[:cut])
        assert w.both(frames(outs[0][0], outs[1][0], outs[0][1])) == (b"", b"")
        for out in (w.reread({"x": LEFT}), *(w.both(each.whole) for each in mingled(outs[0][2:], outs[1][1:]))):
            to_broker += out[0]
            assert out[1] == b""
        to_broker += w.client(client[cut:])
        assert frames(*(each for each in split(to_broker) if each.channel != OURS)) == expected
        assert [one.body for one in again(to_broker)] == [b"lost 1", b"lost 2"]


def mingled(*streams: list[Frame]) -> list[Frame]:
    """By turns, as long as there are any."""
    return [each for turn in zip_longest(*streams) for each in turn if each is not None]


@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 0, 3), (3, 6, 0), (9, 3, 6)])
def test_contents_that_come_mingled_go_out_whole_in_any_chunking(sizes: tuple[int, int, int]) -> None:
    """The contents of three channels come frame by frame, a fourth message behind one of them."""
    lost = [message(n, b"x", LOST[n], b"%d" % n * size) for n, size in enumerate(sizes, 1)]
    lost.append(message(2, b"x", LOST[4], b"behind"))
    plain = connected()
    sent = [published(plain.client(each))[0] for each in lost]
    outs = [split(back(frames_of(one), 3)) for one in sent]
    came = mingled(outs[0], outs[1] + outs[3], outs[2])
    for chunking in chunkings(frames(*came)):
        w = connected()
        w.client(b"".join(lost))
        to_broker = b""
        for chunk in chunking:
            out = w.both(chunk)
            to_broker += out[0] + (w.reread({"x": LEFT})[0] if w.awaited else b"")
            assert out[1] == b""
        assert [one.body for one in again(to_broker)[:1]] == [sent[0].body]
        assert sorted(one.body for one in again(to_broker)) == sorted(one.body for one in sent)
        bodies = [one.body for one in again(to_broker)]
        assert bodies.index(sent[1].body) < bodies.index(b"behind")
        assert (w.c.republishing.gathering, w.c.to_client.rest) == (0, b"")


# Answers to clients


ORDERS = {
    "acks before": [(ack(1, 1), b""), (ack(1, 2), b""), (ack(OURS, 1), ack(1, 1)), (ack(OURS, 2), ack(1, 2))],
    "acks after": [(ack(OURS, 2), b""), (ack(OURS, 1), b""), (ack(1, 2), ack(1, 2)), (ack(1, 1), ack(1, 1))],
    "one before, one after": [(ack(1, 2), b""), (ack(OURS, 1, True), b""), (ack(OURS, 2), ack(1, 2)), (ack(1, 1),) * 2],
    "all at once, before": [(ack(1, 3, True), ack(1, 3)), (ack(OURS, 2), ack(1, 2)), (ack(OURS, 1), ack(1, 1, True))],
    "all at once, between": [
        (ack(OURS, 1), b""),
        (ack(1, 3, True), ack(1, 1, True) + ack(1, 3)),
        (ack(OURS, 2), ack(1, 2, True)),
    ],
    "all at once, after": [(ack(OURS, 2, True), b""), (ack(1, 3, True), ack(1, 3, True))],
    "ours all at once": [(ack(1, 1), b""), (ack(1, 2), b""), (ack(OURS, 2, True), ack(1, 1) + ack(1, 2))],
    "nacked where it went": [(ack(1, 2), b""), (nack(OURS, 2), nack(1, 2)), (ack(OURS, 1), b""), (ack(1, 1),) * 2],
    "nacked between acks": [(ack(1, 3, True), ack(1, 3)), (nack(OURS, 1), nack(1, 1)), (ack(OURS, 2), ack(1, 2))],
    "all nacked": [(nack(OURS, 2, True), b""), (ack(1, 2, True), nack(1, 1) + nack(1, 2))],
    "nacked by the first": [
        (nack(1, 1),) * 2,
        (ack(OURS, 1), b""),
        (ack(1, 3, True), ack(1, 3)),
        (ack(OURS, 2), ack(1, 2, True)),
    ],
    "nacked by the first, all": [(nack(1, 3, True),) * 2, (ack(OURS, 2, True), b"")],
}


@pytest.mark.parametrize(("name", "steps"), ORDERS.items(), ids=ORDERS)
def test_what_clients_are_told_in_any_order_of_answers(name: str, steps: list[tuple[bytes, bytes]]) -> None:
    """The first two of three publishes came back, and are on their way again; the third is in its queue."""
    w, _ = away(2, kept=1)
    for each, told in steps:
        assert w.both(each) == (b"", told)
    if all(3 not in (each[18], each[19]) for each, _ in steps):
        w.both(ack(1, 3))
    count, acked, nacked, unroutable, unknown, sent = counted(w)
    assert (count, acked + nacked, unroutable + unknown + sent) == (3, 3, 0)
    assert nacked == {"nacked by the first, all": 3, "all nacked": 2}.get(name, "nacked" in name)
    assert (w.c.channels[1].unsettled_returns, w.c.channels[1].confirms.unsettled) == (0, 0)


def test_it_is_published_again_so_often_and_no_more() -> None:
    w, (one,) = away(bits=1)
    w.both(ack(1, 1))
    for n in range(2, MOST_REPUBLISHES + 1):
        w.both(back(frames_of(one)))
        (one,) = again(w.reread({"x": ring(queue(f"q{n}0"))})[0])
        assert one.key == b"q%d0" % n
        assert w.both(ack(OURS, n - 1)) == (b"", b"")
    assert w.both(back(frames_of(one)) + ack(OURS, MOST_REPUBLISHES)) == (
        b"",
        message_back(LOST[0], b"hello") + ack(1, 1),
    )
    assert w.counters("x").rerouted == MOST_REPUBLISHES
    assert counted(w) == (1, 0, 0, 1, 0, 0)


@pytest.mark.parametrize("bits", [0, 1])
@pytest.mark.parametrize("confirming", [False, True])
@pytest.mark.parametrize("size", [0, 7])
def test_what_comes_back_from_there_for_good_in_any_chunking(bits: int, confirming: bool, size: int) -> None:
    """Told of only when it is whole, as others are told of meanwhile."""
    data = b"1234567"[:size]

    def begun() -> tuple[Wire, Published]:
        w = connected(confirming=confirming)
        w.both(back(w.client(message(1, b"x", LOST[0], data, bits))) + (ack(1, 1) if confirming else b""))
        (one,) = again(w.reread({"x": LEFT})[0])
        w.client(confirm_select(2) + message(2, b"x", KEPT[0]))
        return w, one

    told = message_back(LOST[0], *filter(None, (data[:3], data[3:6], data[6:]))) if bits else b""
    told += (ack(1, 1) if bits else nack(1, 1)) if confirming else b""
    _, one = begun()
    came = split(back(frames_of(one), 3))
    for chunking in chunkings(frames(*came) + ack(2, 1)):
        w, _ = begun()
        assert b"".join(w.both(chunk)[1] for chunk in chunking) == ack(2, 1)
        assert w.reread({}) == (b"", told)
        assert (
            w.c.republishing.gathering,
            w.c.channels[1].unsettled_returns,
            w.c.republishing and w.c.republishing.under_way,
        ) == (
            0,
            0,
            {},
        )
        # One without confirms was counted twice: as sent, and as what became of it.
        assert counted(w) == ((2, 1, 0, 1, 0, 0) if confirming else (2, 1, 0, 1, 0, 1))


@pytest.mark.parametrize("bits", [0, 1])
def test_the_rest_of_what_comes_back_from_there_for_good_is_told_whole(bits: int) -> None:
    """The reading that decides of it ends before its body has come; acks of others go before it, not into it."""
    w, (one,) = away(bits=bits)
    w.client(confirm_select(2) + message(2, b"x", KEPT[0]))
    w.both(ack(1, 1))
    parts = split(back(frames_of(one), 3))
    w.both(frames(*parts[:2]))
    assert w.reread({}) == (b"", b"")
    assert w.both(parts[2].whole + ack(2, 1)) == (b"", ack(2, 1))
    told = message_back(LOST[0], b"hel", b"lo") + ack(1, 1) if bits else nack(1, 1)
    assert w.both(parts[3].whole + ack(OURS, 1)) == (b"", told)
    assert (w.c.republishing.gathering, w.c.channels[1].unsettled_returns) == (0, 0)


def test_a_channel_that_was_closed_meanwhile_gets_nothing_of_it() -> None:
    w, (one,) = away(bits=1)
    came = split(back(frames_of(one), 3))
    w.both(frames(*came[:2]))
    w.reread({})
    w.broker(close_channel(1, 404, b"NOT_FOUND"))
    w.client(CLOSE_OK)
    assert w.both(frames(*came[2:]) + ack(OURS, 1)) == (b"", b"")
    assert counted(w) == (1, 0, 0, 0, 1, 0)
    assert w.c.republishing.gathering == 0


# Our channel is closed.

CLOSED = [close_channel(OURS, code, b"REFUSED") for code in (403, 404)]
OURS_CLOSE_OK = method(OURS, 20, 41)


@pytest.mark.parametrize("close", CLOSED)
def test_all_under_way_is_nacked_and_the_next_opens_our_channel_again(close: bytes) -> None:
    w = connected()
    outs = [w.client(message(1, b"x", key)) for key in LOST[:3]]
    w.both(b"".join(map(back, outs[:2])))
    w.reread({"x": LEFT})
    third = outs[2]
    assert w.both(ack(1, 2, True)) == (b"", b"")
    assert w.both(close) == (OURS_CLOSE_OK, nack(1, 1) + nack(1, 2))
    assert [type(event) for event in w.c.events] == [Refused]
    assert counted(w) == (3, 0, 0, 0, 2, 0)
    w.router.put((VHOST, "x"), known(ring(queue("q7"))))
    to_broker, _ = w.both(back(third))
    assert methods(to_broker) == OPENING
    assert w.both(ack(1, 3) + ack(OURS, 1)) == (b"", ack(1, 3))


@pytest.mark.parametrize("close", CLOSED)
def test_nothing_is_sent_of_contents_half_out(close: bytes) -> None:
    """One half out, one that waits behind it; the close comes in the midst of a frame of the client's."""
    w = connected()
    outs = [split(back(w.client(message(n, b"x", LOST[n], b"123456")), 3)) for n in (1, 2)]
    w.both(frames(*outs[0][:2]))
    w.reread({"x": LEFT})
    w.both(frames(*outs[1][:3]))
    under_way = message(3, b"t", b"k")
    assert w.client(under_way[:-3]) == under_way[:-3]
    assert w.both(close + ack(1, 1)) == (b"", nack(1, 1))
    assert w.both(frames(outs[0][2], outs[1][3]) + ack(2, 1)) == (b"", nack(2, 1))
    assert w.both(outs[0][3].whole) == (b"", b"")
    assert w.client(under_way[-3:]) == under_way[-3:] + OURS_CLOSE_OK
    out = w.client(message(1, b"x", LOST[0]))
    assert w.c.republishing.gathering == 0
    w.router.put((VHOST, "x"), known(ring(queue("q7"))))
    to_broker, _ = w.both(back(out))
    assert methods(to_broker) == OPENING
    assert [one.key for one in again(to_broker)] == [b"q7"]


@pytest.mark.parametrize("bits", [0, 1])
def test_in_the_midst_of_what_comes_back_once_more(bits: int) -> None:
    w, (one,) = away(bits=bits)
    w.both(ack(1, 1))
    w.both(frames(*split(back(frames_of(one), 3))[:2]))
    w.reread({"x": ring(queue("q9"))} if not bits else {})
    assert w.both(CLOSED[0]) == (OURS_CLOSE_OK, nack(1, 1))
    assert (w.c.republishing.gathering, w.c.channels[1].unsettled_returns) == (0, 0)
