"""A channel that the broker closes because a lane is gone: what its client gets, and how it goes on."""

import pytest
from pamqp import commands

from proxy.session import broker_loop, client_loop
from proxy.session.events import Missing, Refused, Reopened, Stale
from proxy.session.state import ChannelState, Phase
from proxy.topology.table import Entry, PassReason
from proxy.wire.content import stamps_in
from tests.unit.proxy.session.republishing import KEPT, LEFT, LOST, OURS, again, frames_of
from tests.unit.proxy.session.wire import (
    VHOST,
    Wire,
    ack,
    back,
    body,
    chunkings,
    close_channel,
    exchange,
    header,
    known,
    laned,
    made,
    message,
    method,
    nack,
    publish,
    published,
    queue,
    ring,
    split,
)

GONE = close_channel(1, 404, b"NOT_FOUND - no exchange 'lane.q2' in vhost '/'")
AGAIN = made(1, commands.Channel.CloseOk()) + method(1, 20, 10, b"\0") + method(1, 85, 10, b"\1")
OPEN_OK = method(1, 20, 11, b"\0\0\0\0")


def connected(*, confirming: bool = True) -> Wire:
    return Wire({"x": laned(), "y": laned(LEFT)}, confirming=confirming, spare=OURS)


def events(w: Wire) -> list[object]:
    found, w.c.events = w.c.events, []
    return list(found)


def test_what_has_no_answer_is_nacked_and_the_channel_goes_on() -> None:
    w = connected()
    for n in range(5):
        w.client(message(1, b"x", LOST[0], b"%d" % n))
    assert w.broker(ack(1, 2, multiple=True)) == ack(1, 2, multiple=True)
    assert w.both(GONE) == (AGAIN, nack(1, 5, multiple=True))
    channel = w.c.channels[1]
    found = events(w)
    assert found[:2] == [Missing("lane.q2"), Stale((VHOST, "x"), exchange("lane.q2"))]
    (told,) = found[2:]
    assert isinstance(told, Reopened)
    assert (told.channel, told.unanswered) == (channel, 3)
    assert (w.counters("x").acked, w.counters("x").unknown) == (2, 3)
    assert w.broker(OPEN_OK) == b""
    # The broker counts from 1 again, its client goes on counting.
    for n in range(5, 9):
        w.client(message(1, b"x", KEPT[0], b"%d" % n))
    assert w.broker(ack(1, 1)) == ack(1, 6)
    assert w.broker(ack(1, 3, multiple=True)) == ack(1, 8, multiple=True)
    assert w.broker(nack(1, 4)) == nack(1, 9)
    assert (w.counters("x").acked, w.counters("x").nacked, w.counters("x").unknown) == (5, 1, 3)
    assert channel.confirms.unsettled == 0


def test_it_happens_again() -> None:
    w = connected()
    for n in range(3):
        w.client(message(1, b"x", LOST[0]))
        assert w.both(GONE) == (AGAIN, nack(1, n + 1, multiple=True))
        assert w.broker(OPEN_OK) == b""
    w.client(message(1, b"x", KEPT[0]))
    assert w.broker(ack(1, 1)) == ack(1, 4)


def test_with_nothing_without_an_answer_nothing_is_told() -> None:
    """The refused publish may be one that its client has given up: no frame goes to it."""
    w = connected()
    w.client(message(1, b"x", KEPT[0]))
    w.broker(ack(1, 1))
    assert w.both(GONE) == (AGAIN, b"")


def test_what_came_back_and_is_on_its_way_again_is_nacked_too() -> None:
    w = connected()
    out = w.client(message(1, b"x", LOST[0]))
    assert w.both(back(out)) == (b"", b"")
    to_broker, _ = w.reread({"x": laned(LEFT)})
    assert to_broker
    assert w.both(GONE) == (AGAIN, nack(1, 1, multiple=True))
    w.broker(OPEN_OK)
    assert w.broker(ack(OURS, 1)) == b""
    w.client(message(1, b"x", KEPT[0]))
    assert w.broker(ack(1, 1)) == ack(1, 2)
    assert w.c.channels[1].unsettled_returns == 0


@pytest.mark.parametrize("found", [None, laned(LEFT)])
def test_what_came_back_and_waits_for_a_reading_is_nacked_and_no_more(found: Entry | None) -> None:
    """Its client sends it again: a return behind the nack would be another publish's, and a reroute a duplicate."""
    w = connected()
    out = w.client(message(1, b"x", LOST[0], bits=1) + message(1, b"x", KEPT[0]))
    first = split(out)[:3]
    assert w.both(back(b"".join(each.whole for each in first))) == (b"", b"")
    assert w.both(GONE) == (AGAIN, nack(1, 2, multiple=True))
    assert w.reread({"x": found}) == (b"", b"")
    assert not w.c.republishing.parking
    assert w.c.channels[1].unsettled_returns == 0


def test_nor_is_it_returned_if_it_comes_back_once_more() -> None:
    w = connected()
    out = w.client(message(1, b"x", LOST[0], bits=1))
    w.both(back(out))
    to_broker, _ = w.reread({"x": laned(LEFT)})
    (out_again,) = again(to_broker)
    assert w.both(GONE) == (AGAIN, nack(1, 1, multiple=True))
    assert w.both(back(frames_of(out_again)) + ack(OURS, 1)) == (b"", b"")
    assert w.awaited is None


def test_what_comes_back_on_the_new_channel_is_rerouted() -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0]))
    w.both(GONE + OPEN_OK)
    out = w.client(message(1, b"x", LOST[0], b"again"))
    assert w.both(back(out) + ack(1, 1)) == (b"", b"")
    to_broker, to_client = w.reread({"x": laned(LEFT)})
    (out_again,) = again(to_broker)
    assert (out_again.channel, out_again.body) == (OURS, b"again")
    assert to_client == b""
    assert w.broker(ack(OURS, 1)) == ack(1, 2)


@pytest.mark.parametrize("size", [0, 5])
@pytest.mark.parametrize("frames", [0, 1, 2])
def test_a_content_under_way_goes_on_to_its_end_first(size: int, frames: int) -> None:
    if not size and frames > 1:
        return
    w = connected()
    w.client(message(1, b"x", LOST[0]))
    parts = [publish(1, b"y", b"k"), header(1, size), *([body(1, b"he"), body(1, b"llo")] if size else [])]
    # The method waits for its header, so with less the broker has nothing of the message yet.
    begun, rest = parts[: frames + 1], parts[frames + 1 :]
    w.client(b"".join(begun))
    whole = not rest or not frames
    to_broker, to_client = w.both(GONE)
    if whole:
        assert (to_broker, to_client) == (AGAIN, nack(1, 2 if frames else 1, multiple=True))
        return
    assert (to_broker, to_client) == (b"", nack(1, 1, multiple=True))
    assert w.c.channels[1].state == ChannelState.CUT
    client_loop.from_client(w.c, b"".join(rest))
    assert w.to_broker() == b"".join(rest) + AGAIN
    assert w.to_client() == nack(1, 2)
    assert w.broker(OPEN_OK) == b""
    w.client(message(1, b"x", KEPT[0]))
    assert w.broker(ack(1, 1)) == ack(1, 3)


def test_in_any_chunking() -> None:
    """The client's bytes after the broker's close, cut anywhere: the same goes out."""
    sent = body(1, b"llo") + message(1, b"x", KEPT[0], b"behind")
    outcomes = set()
    for pieces in chunkings(sent):
        w = connected()
        w.client(message(1, b"x", LOST[0]) + publish(1, b"x", KEPT[0]) + header(1, 5) + body(1, b"he"))
        w.both(GONE)
        for piece in pieces:
            client_loop.from_client(w.c, piece)
        outcomes.add((w.to_broker(), w.to_client()))
    ((to_broker, to_client),) = outcomes
    assert to_broker.startswith(body(1, b"llo") + AGAIN)
    assert published(to_broker.removeprefix(body(1, b"llo") + AGAIN))[0].body == b"behind"
    assert to_client == nack(1, 2)


def test_amidst_a_frame_the_channel_is_opened_again_behind_it() -> None:
    w = connected()
    frame = body(1, b"hello")
    w.client(message(1, b"x", LOST[0]) + publish(1, b"x", KEPT[0]) + header(1, 5) + frame[:9])
    assert w.both(GONE) == (b"", nack(1, 2, multiple=True))
    assert w.client(frame[9:]) == frame[9:] + AGAIN
    w = connected()
    w.client(message(1, b"x", LOST[0]) + publish(1, b"x", KEPT[0]) + header(1, 10) + frame[:9])
    assert w.both(GONE) == (b"", nack(1, 1, multiple=True))
    assert w.client(frame[9:]) == frame[9:]
    client_loop.from_client(w.c, frame[:9])
    assert (w.to_broker(), w.to_client()) == (frame[:9], nack(1, 2))
    assert w.client(frame[9:]) == frame[9:] + AGAIN


def test_a_method_amidst_the_content_is_the_clients_fault() -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0]) + publish(1, b"x", KEPT[0]) + header(1, 5))
    w.both(GONE)
    client_loop.from_client(w.c, publish(1, b"x", b"k"))
    assert w.c.phase is Phase.REFUSING


@pytest.mark.parametrize(
    "frame",
    [
        made(1, commands.Basic.Consume(queue="q")),
        made(1, commands.Basic.Get(queue="q")),
        made(1, commands.Basic.Qos(prefetch_count=1)),
        made(1, commands.Queue.Purge(queue="q")),
        made(1, commands.Queue.Declare(queue="q")),
        made(1, commands.Tx.Select()),
        made(1, commands.Confirm.Select()),  # once more
    ],
)
def test_where_more_would_be_lost_the_client_gets_the_close(frame: bytes) -> None:
    w = connected(confirming=frame != made(1, commands.Tx.Select()))
    w.client(frame + message(1, b"x", LOST[0]))
    assert w.broker(GONE) == GONE
    assert Missing("lane.q2") in events(w)


def test_without_confirms_the_client_gets_the_close() -> None:
    w = connected(confirming=False)
    w.client(message(1, b"x", LOST[0]))
    assert w.broker(GONE) == GONE
    # Nor where some publishes went out before confirm.select, whose -ok may be lost.
    w = connected(confirming=False)
    w.client(message(1, b"x", LOST[0]) + made(1, commands.Confirm.Select()))
    assert w.broker(GONE) == GONE


def test_declarations_that_are_answered_are_no_obstacle() -> None:
    w = connected()
    w.client(made(1, commands.Queue.Declare(queue="q")))
    w.broker(made(1, commands.Queue.DeclareOk("q", 0, 0)))
    w.client(message(1, b"x", LOST[0]))
    assert w.both(GONE) == (AGAIN, nack(1, 1, multiple=True))


@pytest.mark.parametrize(
    "close",
    [
        close_channel(1, 404, b"NOT_FOUND - no exchange 'other' in vhost '/'"),
        close_channel(1, 404, b"NOT_FOUND - no queue 'lane.q2' in vhost '/'"),
        close_channel(1, 404, b"NOT_FOUND - no exchange 'lane.q2' in vhost '/'", (40, 30)),
        close_channel(1, 406, b"PRECONDITION_FAILED - exchange 'lane.q2'"),
    ],
)
def test_another_close_is_the_clients(close: bytes) -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0]))
    assert w.broker(close) == close
    assert not any(isinstance(event, Missing | Reopened) for event in events(w))


@pytest.mark.parametrize("first", ["the ring", "the lane"])
def test_the_refusal_of_a_clients_own_publish_to_a_lane_is_the_clients(first: str) -> None:
    """As without this proxy, whether or not the ring was known when it published to the lane."""
    lane = {"lane.q2": known(None, PassReason.TYPE)}
    w = Wire({"x": laned(), **lane}, confirming=True, spare=OURS)
    sent = [message(1, b"x", LOST[0]), message(1, b"lane.q2", b"k")]
    w.client(b"".join(sent if first == "the ring" else [sent[1], *sent]))
    assert w.broker(GONE) == GONE
    # Another channel of the same session has sent none.
    w.client(message(2, b"x", LOST[0]))
    assert w.both(GONE.replace(b"\1\0\1", b"\1\0\2", 1))[1] == nack(2, 1, multiple=True)


def test_nor_if_the_lane_is_known_to_be_absent() -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0]))
    client_loop.from_client(w.c, message(1, b"lane.q2", b"k"))
    assert w.held == "lane.q2"
    assert w.c.table is not None
    w.resumed(w.c.table.absent(b"lane.q2"))
    assert w.broker(GONE) == GONE


LONG = "l" * 230


@pytest.mark.parametrize("vhost", ["/", "v" * 200, "it's"])
@pytest.mark.parametrize("name", ["it's", "a' in vhost '/' b", "", "ünï" * 60, LONG + "1", LONG + "1" * 25, 'q"\\'])
def test_a_lane_of_any_name_is_found(name: str, vhost: str) -> None:
    """RabbitMQ quotes a name as it is, and cuts a text that has no room for it."""
    reason = f"NOT_FOUND - no exchange 'lane.{name}' in vhost '{vhost}'".encode()
    reason = reason if len(reason) <= 255 else reason[:252] + b"..."
    one = ring(queue(name))
    w = Wire({"x": laned(one), "y": laned()}, confirming=True, spare=OURS)
    w.c.handshake.vhost = vhost
    w.client(message(1, b"x", b"k") + message(1, b"y", b"k"))
    assert w.both(close_channel(1, 404, reason)) == (AGAIN, nack(1, 2, multiple=True))
    assert events(w)[0] == Missing(f"lane.{name}")


def test_of_lanes_that_a_cut_text_does_not_tell_apart_the_readings_decide() -> None:
    w = Wire({"x": laned(ring(queue(LONG + "1"), queue(LONG + "2"), queue("q")))}, confirming=True, spare=OURS)
    w.client(message(1, b"x", b"k"))
    reason = f"NOT_FOUND - no exchange 'lane.{LONG}".encode()[:252] + b"..."
    assert w.both(close_channel(1, 404, reason)) == (AGAIN, nack(1, 1, multiple=True))
    stale = events(w)[:-1]
    assert set(stale) == {Stale((VHOST, "x"), exchange(f"lane.{LONG}{n}")) for n in (1, 2)}


def test_also_after_the_lane_has_left_the_ring() -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0]))
    w.router.put((VHOST, "x"), laned(LEFT))
    assert w.both(GONE) == (AGAIN, nack(1, 1, multiple=True))
    assert Missing("lane.q2") in events(w)


def test_a_missing_right_on_a_lane_is_named() -> None:
    w = connected()
    w.client(message(1, b"x", LOST[0]))
    (close,) = split(w.broker(close_channel(1, 403, b"ACCESS_REFUSED - write access to exchange 'lane.q2' refused")))
    assert b"grant write on lane.q2" in close.payload
    assert [type(event) for event in events(w)] == [Refused]


def test_a_lane_that_is_gone_ends_the_sessions_own_channel_and_not_the_clients() -> None:
    w = connected()
    out = w.client(message(1, b"x", LOST[0]))
    w.both(back(out) + ack(1, 1))
    w.reread({"x": laned(LEFT)})
    ended = close_channel(OURS, 404, b"NOT_FOUND - no exchange 'lane.q1' in vhost '/'")
    to_broker, to_client = w.both(ended)
    assert to_broker == made(OURS, commands.Channel.CloseOk())
    assert to_client == nack(1, 1)
    assert Missing("lane.q1") in events(w)


def test_a_lanes_message_has_its_id_alone_and_is_known_when_it_comes_back() -> None:
    w = connected()
    for n, (name, key) in enumerate(((b"x", LOST[0]), (b"y", KEPT[0]), (b"x", LOST[1]))):
        (sent,) = published(out := w.client(message(1, name, key, b"%d" % n, bits=1)))
        assert (sent.exchange[:6], sent.key, sent.bits) == (b"lane.q", key, 1)
        assert stamps_in(sent.header, 0, len(sent.header)) is None
        assert sent.header.count(b"x-ring-") == 1
        w.both(back(out))
        assert w.awaited == Stale((VHOST, name.decode()), exchange(sent.exchange.decode()))
        w.c.republishing.parking.drop()


def test_one_chunking_after_the_other_gives_the_same() -> None:
    w = connected()
    w.client(b"".join(message(1, b"x", key) for key in LOST[:3]))
    expected = w.both(ack(1, 1) + GONE + OPEN_OK)
    for pieces in chunkings(ack(1, 1) + GONE + OPEN_OK):
        w = connected()
        w.client(b"".join(message(1, b"x", key) for key in LOST[:3]))
        for piece in pieces:
            broker_loop.from_broker(w.c, piece)
        assert (w.to_broker(), w.to_client()) == expected
