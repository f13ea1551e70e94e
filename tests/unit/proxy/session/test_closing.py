"""How channels and connections end: who is told what, and what still passes."""

from collections.abc import Mapping

import pytest
from pamqp import commands

from proxy.session import broker_loop, client_loop, closing
from proxy.session.backlog import Wait
from proxy.session.events import Lacks, Missing, NoQueue, Refused, Stale
from proxy.session.state import ChannelState, Phase
from proxy.settings.missing_right import MissingRight
from proxy.topology.table import Entry, KnownRing, PassReason
from tests.unit.proxy.session.wire import (
    CONNECTION_CLOSE_OK,
    HEARTBEAT,
    QUEUES,
    Feed,
    Wire,
    ack,
    body,
    chunkings,
    close_channel,
    close_connection,
    code_of,
    exchange,
    fed,
    header,
    known,
    made,
    message,
    publish,
    queue,
    returned,
    ring,
    split,
    text_of,
)

OPEN = made(1, commands.Channel.Open())
CLOSE = made(1, commands.Channel.Close(200, "bye", 0, 0))
CLOSE_OK = made(1, commands.Channel.CloseOk())
COMMIT_OK = made(1, commands.Tx.CommitOk())


def deliver(channel: int, data: bytes) -> bytes:
    return (
        made(channel, commands.Basic.Deliver("c", 1, False, "e", "k"))
        + header(channel, len(data))
        + body(channel, data)
    )


def refusing(confirming: bool = True) -> Wire:
    """A channel that we have begun to close, after a publish."""
    w = Wire({"x": QUEUES}, confirming=confirming)
    w.client(message(1, b"x", b"k"))
    closing.refuse_channel(w.c, w.c.channels[1], 541, "no ring")
    (close,) = split(w.to_broker())
    assert (close.channel, close.id, code_of(close)) == (1, (20, 40), 200)
    assert w.to_client() == b""
    assert [type(event) for event in w.c.events] == [Refused]
    return w


# Channels that we close.


def test_one_that_is_closed_is_not_waited_for() -> None:
    """The broker's answers come before its close-ok."""
    w = refusing()
    assert closing.awaits_answers(w.c)
    w.broker(CLOSE_OK)
    assert not closing.awaits_answers(w.c)
    assert w.counters("x").unknown == 1


def test_the_broker_is_first_and_its_acks_still_reach_the_client() -> None:
    w = refusing()
    assert w.broker(ack(1, 1)) == ack(1, 1)
    assert w.counters("x").acked == 1
    (close,) = split(w.broker(CLOSE_OK))
    assert (close.channel, close.id, code_of(close)) == (1, (20, 40), 541)
    assert "no ring" in text_of(close)
    assert w.c.channels[1].state == ChannelState.REFUSED
    assert w.client(CLOSE_OK) == b""
    assert 1 not in w.c.channels


@pytest.mark.parametrize("after", [False, True], ids=["before the broker's close-ok", "after it"])
def test_what_the_client_sends_meanwhile_is_dropped_whatever_it_is(after: bool) -> None:
    junk = (
        message(1, b"x", b"k")
        + body(1, b"stray")
        + header(1, 9)
        + made(1, commands.Basic.Qos())
        + publish(1, b"", b"q")
    )
    others = message(2, b"", b"q")
    for chunking in chunkings(junk + others + junk):
        w = refusing()
        if after:
            w.broker(CLOSE_OK)
        assert b"".join(w.client(chunk) for chunk in chunking) == others
        assert w.c.channels[1].confirms.number == 1


def test_a_channel_refused_while_its_publish_waits_for_the_header() -> None:
    w = Wire({"x": QUEUES})
    w.client(publish(1, b"x", b"k"))
    closing.refuse_channel(w.c, w.c.channels[1], 541, "no")
    (close,) = split(w.to_broker())
    assert close.id == (20, 40)
    assert w.client(header(1, 3) + body(1, b"abc")) == b""


def test_the_client_closes_before_the_broker_has_answered() -> None:
    w = refusing()
    assert w.client(CLOSE) == b""
    close, close_ok = split(w.broker(CLOSE_OK))
    assert (close.id, close_ok.id) == ((20, 40), (20, 41))
    assert w.client(CLOSE_OK) == b""
    assert 1 not in w.c.channels


def test_the_client_closes_before_ours_has_reached_it() -> None:
    w = refusing()
    w.broker(CLOSE_OK)
    client_loop.from_client(w.c, CLOSE)
    assert (w.to_broker(), w.to_client()) == (b"", CLOSE_OK)
    assert w.client(CLOSE_OK) == b""
    assert 1 not in w.c.channels


def test_the_broker_closes_before_ours_has_reached_it() -> None:
    w = refusing()
    broker_loop.from_broker(w.c, close_channel(1, 404, b"NOT_FOUND - no exchange 'y' in vhost '/'"))
    assert (w.to_broker(), w.to_client()) == (CLOSE_OK, b"")
    (close,) = split(w.broker(CLOSE_OK))
    assert code_of(close) == 541


def test_a_number_closed_by_us_is_opened_again() -> None:
    w = refusing()
    nonce = w.c.channels[1].nonce
    w.broker(CLOSE_OK)
    assert w.client(CLOSE_OK + OPEN) == OPEN
    channel = w.c.channels[1]
    assert (channel.state, channel.confirms.number, channel.routed) == (ChannelState.OPEN, 0, False)
    assert channel.nonce != nonce
    assert w.broker(made(1, commands.Channel.OpenOk())) == made(1, commands.Channel.OpenOk())
    assert w.counters("x").unknown == 1


def test_our_close_waits_for_the_end_of_another_channels_body_frame() -> None:
    w = Wire({"x": QUEUES})
    half = publish(2, b"", b"q") + header(2, 5) + body(2, b"hello")
    assert w.client(half[:-3]) == half[:-3]
    closing.refuse_channel(w.c, w.c.channels[1], 541, "no")
    assert w.to_broker() == b""
    out = w.client(half[-3:] + HEARTBEAT)
    assert out.startswith(half[-3:])
    close, beat = split(out[3:])
    assert (close.id, beat.kind) == ((20, 40), 8)


CONTENT_OF_OURS = publish(1, b"t", b"k") + header(1, 6) + body(1, b"abc") + body(1, b"def")


@pytest.mark.parametrize("cut", range(len(publish(1, b"t", b"k")), len(CONTENT_OF_OURS)))
def test_our_close_waits_for_the_end_of_the_channels_own_content(cut: int) -> None:
    """A method inside a content is a connection error 505."""
    for rest in chunkings(CONTENT_OF_OURS[cut:] + message(1, b"t", b"dropped") + HEARTBEAT):
        w = Wire({"t": known(None, PassReason.TYPE)})
        out = w.client(CONTENT_OF_OURS[:cut])
        closing.refuse_channel(w.c, w.c.channels[1], 541, "no")
        out += w.to_broker() + b"".join(map(w.client, rest))
        assert out.startswith(CONTENT_OF_OURS)
        close, beat = split(out[len(CONTENT_OF_OURS) :])
        assert (close.id, beat.kind) == ((20, 40), 8)


@pytest.mark.parametrize("stray", [publish(1, b"t", b"k"), header(1, 6), body(1, b"more"), CLOSE])
def test_what_does_not_belong_into_that_content_is_bad_input(stray: bytes) -> None:
    w = Wire({"t": known(None, PassReason.TYPE)})
    w.client(publish(1, b"t", b"k") + header(1, 3))
    closing.refuse_channel(w.c, w.c.channels[1], 541, "no")
    client_loop.from_client(w.c, HEARTBEAT + stray)
    assert code_of(split(w.to_client())[0]) == 505


def test_the_broker_closes_while_ours_waits_for_that_content() -> None:
    w = Wire({"t": known(None, PassReason.TYPE)})
    w.client(publish(1, b"t", b"k") + header(1, 3))
    closing.refuse_channel(w.c, w.c.channels[1], 541, "no")
    close = close_channel(1, 406, b"PRECONDITION_FAILED")
    assert w.broker(close) == close
    assert w.client(body(1, b"abc") + CLOSE_OK + OPEN) == body(1, b"abc") + CLOSE_OK + OPEN


def test_a_channel_is_refused_once_and_not_where_another_has_closed_it() -> None:
    w = refusing()
    closing.refuse_channel(w.c, w.c.channels[1], 541, "again")
    assert w.to_broker() == b""
    for close, feed in ((CLOSE, client_loop.from_client), (close_channel(1, 406, b"no"), broker_loop.from_broker)):
        w = Wire()
        feed(w.c, close)
        assert (w.to_broker(), w.to_client()) in ((close, b""), (b"", close))
        state = w.c.channels[1].state
        assert state in (ChannelState.CLOSING, ChannelState.CLOSED)
        closing.refuse_channel(w.c, w.c.channels[1], 541, "too late")
        assert (w.to_broker(), w.to_client(), w.c.channels[1].state) == (b"", b"", state)


# Channels that the others close.


@pytest.mark.parametrize("confirming", [False, True])
def test_the_client_closes_a_channel(confirming: bool) -> None:
    w = Wire({"x": QUEUES}, confirming=confirming)
    w.client(message(1, b"x", b"k") * 2)
    assert w.client(CLOSE) == CLOSE
    if confirming:
        assert w.broker(ack(1, 1)) == ack(1, 1)
    assert w.broker(CLOSE_OK) == CLOSE_OK
    assert 1 not in w.c.channels
    counters = w.counters("x")
    assert (counters.acked, counters.unknown, counters.sent) == ((1, 1, 0) if confirming else (0, 0, 2))


def test_the_broker_closes_a_channel() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    w.client(message(1, b"x", b"k") * 2)
    close = close_channel(1, 406, b"PRECONDITION_FAILED")
    assert w.broker(close) == close
    late = message(1, b"x", b"k")
    assert w.client(late) == late
    assert w.client(CLOSE_OK) == CLOSE_OK
    assert (w.counters("x").published, w.counters("x").unknown) == (2, 2)
    assert 1 not in w.c.channels


def test_both_close_at_once() -> None:
    w = Wire()
    w.client(CLOSE)
    close = close_channel(1, 406, b"PRECONDITION_FAILED")
    assert w.broker(close) == close
    assert w.client(CLOSE_OK) == CLOSE_OK
    assert w.broker(CLOSE_OK) == CLOSE_OK
    assert w.client(OPEN) == OPEN
    assert w.c.channels[1].state == ChannelState.OPEN


def test_a_number_is_opened_again_once_its_channel_is_closed() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    w.client(message(1, b"x", b"k"))
    old = w.c.channels[1]
    assert w.client(CLOSE + OPEN) == CLOSE
    assert w.waits_for is Wait.BEING_CLOSED
    assert w.broker(CLOSE_OK) == CLOSE_OK
    assert w.client(b"") == OPEN
    assert w.c.channels[1] is not old
    assert w.c.channels[1].state == ChannelState.OPEN
    assert w.counters("x").unknown == 1


# Closes by the broker

FOUR_THREE = b"ACCESS_REFUSED - write access to exchange '%s' in vhost '/' refused for user 'u'"
NO_EXCHANGE = b"NOT_FOUND - no exchange '%s' in vhost '/'"


def published_to(entries: Mapping[str, Entry | KnownRing]) -> Wire:
    w = Wire(entries)
    w.client(message(1, b"x", b"k"))
    return w


@pytest.mark.parametrize("name", [b"amq.default", b""], ids=["RabbitMQ", "LavinMQ"])
def test_a_403_that_a_rewrite_caused_says_what_is_missing(name: bytes) -> None:
    w = published_to({"x": QUEUES})
    text = FOUR_THREE % name
    (close,) = split(w.broker(close_channel(1, 403, text)))
    assert (code_of(close), close.payload[-4:]) == (403, b"\0\x3c\0\x28")
    assert text_of(close).startswith(text.decode())
    assert text_of(close).endswith("grant write on amq.default")
    *lacks, event = w.c.events
    assert isinstance(event, Refused)
    assert event.code == 403
    assert lacks == [Lacks(MissingRight("/", "u", "write", "exchange 'amq.default'", r"^amq\.default$"))]


def test_a_name_that_fills_the_reply_text_still_tells_the_user() -> None:
    name = "y" * 150
    w = published_to({"x": ring(exchange(name)), name: known(None, PassReason.TYPE)})
    (close,) = split(w.broker(close_channel(1, 403, FOUR_THREE % name.encode())))
    assert "for user" not in text_of(close)
    assert w.c.events[0] == Lacks(MissingRight("/", "u", "write", f"exchange {name!r}", f"^{name}$"))


def test_a_403_of_an_exchange_behind_a_ring_names_it() -> None:
    w = published_to({"x": ring(exchange("y")), "y": known(None, PassReason.TYPE)})
    (close,) = split(w.broker(close_channel(1, 403, FOUR_THREE % b"y")))
    assert text_of(close).endswith("grant write on y")


@pytest.mark.parametrize("name", ["y" * 255, "é" * 127])
def test_a_hint_is_cut_between_characters(name: str) -> None:
    long = b"exchange 'amq.default'" + "é".encode() * 110
    (close,) = split(published_to({"x": QUEUES}).broker(close_channel(1, 403, long)))
    assert text_of(close).endswith("grant write on amq.default")
    named = name[:110]
    w = published_to({"x": ring(exchange(named)), named: known(None, PassReason.TYPE)})
    (close,) = split(w.broker(close_channel(1, 403, b"exchange '%s'" % named.encode())))
    assert "grant write on " + named[:80] in text_of(close)


@pytest.mark.parametrize(
    ("code", "text", "ids"),
    [
        (403, FOUR_THREE % b"other", (60, 40)),
        (403, FOUR_THREE % b"amq.default", (40, 10)),
        (403, b"ACCESS_REFUSED - no words on which", (60, 40)),
        (404, NO_EXCHANGE % b"other", (60, 40)),
        (406, b"PRECONDITION_FAILED - exchange 'amq.default'", (60, 40)),
    ],
)
def test_other_closes_pass_as_they_are(code: int, text: bytes, ids: tuple[int, int]) -> None:
    w = published_to({"x": QUEUES})
    close = close_channel(1, code, text, ids)
    assert w.broker(close) == close
    assert w.c.events == []


NO_QUEUE = b"NOT_FOUND - no queue '%s' in vhost '/'"
CONSUME = (60, 20)


def test_a_consumer_of_a_hash_exchange_that_is_no_group_is_told_of_the_setting() -> None:
    w = Wire({"x": QUEUES})
    (close,) = split(w.broker(close_channel(1, 404, NO_QUEUE % b"x", CONSUME)))
    hint = "; it is a hash exchange: to consume from it as a group, name it in ringproxy's setting groups"
    told = (NO_QUEUE % b"x").decode() + hint
    assert (code_of(close), text_of(close), close.payload[-4:]) == (404, told, b"\0\x3c\0\x14")
    assert w.c.events == [Refused(404, told)]


@pytest.mark.parametrize(
    ("text", "ids", "meant"),
    [
        (NO_QUEUE % b"y", CONSUME, []),
        (NO_QUEUE % b"it's", CONSUME, [NoQueue("it's")]),
        (NO_QUEUE % b"x", (60, 70), []),
        (b"NOT_FOUND - in other words", CONSUME, []),
    ],
)
def test_other_queues_that_are_missing_are_told_as_ever(text: bytes, ids: tuple[int, int], meant: list[object]) -> None:
    w = Wire({"x": QUEUES, "y": known(None, PassReason.TYPE)})
    close = close_channel(1, 404, text, ids)
    assert w.broker(close) == close
    assert w.c.events == meant


def test_without_a_publish_of_ours_a_403_is_the_clients_own() -> None:
    w = Wire({"x": QUEUES})
    close = close_channel(1, 403, FOUR_THREE % b"amq.default")
    w.client(message(1, b"", b"q"))
    assert w.broker(close) == close


def test_a_404_of_an_exchange_behind_rings_makes_them_stale() -> None:
    entries: dict[str, Entry | KnownRing]
    entries = {"x": ring(exchange("y"), queue("q")), "z": ring(exchange("y")), "y": known(None, PassReason.TYPE)}
    w = published_to({**entries, "other": QUEUES})
    w.client(message(1, b"z", b"k") + message(1, b"other", b"k"))
    close = close_channel(1, 404, NO_EXCHANGE % b"y")
    assert w.broker(close) == close
    stale = [Stale(("/", "x"), exchange("y")), Stale(("/", "z"), exchange("y"))]
    assert sorted(w.c.events, key=str) == [Missing("y"), *stale]


def test_reply_texts_of_ours_are_cut_between_characters() -> None:
    for pad in ("", "x"):
        w = Wire()
        closing.refuse(w.c, 541, pad + "é" * 200)
        (close,) = split(w.to_client())
        assert text_of(close).startswith("INTERNAL_ERROR - " + pad + "é")


# Connections that we close.


def refused(w: Wire) -> None:
    closing.refuse(w.c, 320, "ringproxy is shutting down")


def test_a_refused_connection_is_closed_on_both_sides() -> None:
    w = Wire()
    refused(w)
    (ours,), (goodbye,) = split(w.to_client()), split(w.to_broker())
    assert (ours.id, code_of(ours), goodbye.id, code_of(goodbye)) == ((10, 50), 320, (10, 50), 200)
    late = message(1, b"", b"q") + made(1, commands.Channel.Close(200, "", 0, 0)) + HEARTBEAT
    assert w.client(late) == b""
    assert w.broker(deliver(1, b"late") + HEARTBEAT + ack(1, 1)) == b""
    assert (w.c.to_broker.ended, w.c.to_client.ended) == (False, False)
    assert w.client(CONNECTION_CLOSE_OK) == b""
    assert w.broker(CONNECTION_CLOSE_OK) == b""
    assert (w.c.to_broker.ended, w.c.to_client.ended) == (True, True)


@pytest.mark.parametrize("size", [3, 300])
def test_only_close_and_close_ok_count_after_it_in_any_chunking(size: int) -> None:
    late = deliver(1, bytes(range(1, 1 + size % 200)) * (size // 100 + 1))
    for chunking in chunkings(late + CONNECTION_CLOSE_OK + HEARTBEAT):
        w = Wire()
        refused(w)
        w.to_client(), w.to_broker()
        assert b"".join(map(w.broker, chunking)) == b""
        assert w.c.to_client.ended
    for chunking in chunkings(message(1, b"", b"q", bytes(size)) + CONNECTION_CLOSE_OK + HEARTBEAT):
        w = Wire()
        refused(w)
        w.to_client(), w.to_broker()
        assert b"".join(map(w.client, chunking)) == b""
        assert w.c.to_broker.ended


def test_both_sides_closes_that_cross_ours_are_answered() -> None:
    for chunking in chunkings(close_connection(320, b"CONNECTION_FORCED") + HEARTBEAT):
        w = Wire()
        refused(w)
        w.to_client(), w.to_broker()
        for chunk in chunking:
            broker_loop.from_broker(w.c, chunk)
        assert (w.to_broker(), w.to_client(), w.c.to_client.ended) == (CONNECTION_CLOSE_OK, b"", True)
        w = Wire()
        refused(w)
        w.to_client(), w.to_broker()
        for chunk in chunking:
            client_loop.from_client(w.c, chunk)
        assert (w.to_broker(), w.to_client(), w.c.to_broker.ended) == (b"", CONNECTION_CLOSE_OK, True)


CONTENT = deliver(1, b"hello" * 5)


@pytest.mark.parametrize("cut", range(len(CONTENT) + 1))
def test_our_close_comes_between_the_brokers_frames(cut: int) -> None:
    """Whatever part of a frame had come; and the broker's close-ok is found after the rest of it."""
    whole = CONTENT + ack(1, 1) + CONNECTION_CLOSE_OK
    for rest in chunkings(whole[cut:]):
        w = Wire()
        out = w.broker(whole[:cut])
        refused(w)
        out += w.to_client()
        w.to_broker()
        out += b"".join(w.broker(chunk) for chunk in rest)
        *before, last = split(out)
        assert CONTENT.startswith(b"".join(each.whole for each in before))
        assert last.id == (10, 50)
        assert w.c.to_client.ended


def test_our_close_while_the_client_is_inside_a_frame_drops_the_broker() -> None:
    data = message(1, b"", b"q")
    for cut in range(len(data)):
        w = Wire()
        w.client(data[:cut])
        inside = w.c.to_broker.body_left > 0
        refused(w)
        assert w.c.to_broker.cut_off is inside
        assert bool(w.to_broker()) is not inside
        w.to_client()
        assert w.client(data[cut:] + CONNECTION_CLOSE_OK) == b""
        assert w.c.to_broker.ended


def test_what_a_held_publish_is_followed_by_still_counts() -> None:
    w = Wire()
    w.client(message(1, b"unknown", b"k") + close_connection(200, b"bye"))
    assert w.held == "unknown"
    refused(w)
    assert not w.c.waiting.channels
    ours, close_ok = split(w.to_client())
    assert (ours.id, close_ok.id) == ((10, 50), (10, 51))
    assert w.c.to_broker.ended


@pytest.mark.parametrize("after", [b"", HEARTBEAT, message(2, b"", b"q")])
def test_the_answer_to_a_close_over_bad_input_is_found_in_any_chunking(after: bytes) -> None:
    for chunking in chunkings(header(1, 5) + after + CONNECTION_CLOSE_OK):
        w = Wire()
        for chunk in chunking:
            client_loop.from_client(w.c, chunk)
        assert w.c.to_broker.ended


def test_a_client_that_closes_while_the_broker_is_inside_a_frame_gets_nothing_of_it() -> None:
    w = Wire()
    refused(w)
    w.to_client(), w.to_broker()
    late = deliver(1, bytes(100))
    assert w.broker(late[:-50]) == b""
    client_loop.from_client(w.c, close_connection(200, b"bye"))
    assert w.to_client() == CONNECTION_CLOSE_OK
    assert w.broker(late[-50:]) == b""


def test_refused_in_the_handshake_the_broker_is_dropped() -> None:
    w = Wire()
    w.c.phase, w.c.table = Phase.HANDSHAKE, None
    refused(w)
    assert (w.to_broker(), w.c.to_broker.cut_off) == (b"", True)


# Connections that the others close.

THEIRS = close_connection(200, b"goodbye")


@pytest.mark.parametrize("feed", [client_loop.from_client, broker_loop.from_broker])
def test_a_close_passes_and_then_all_does(feed: Feed) -> None:
    raw = b"\x07what comes after is not looked at" + CONNECTION_CLOSE_OK
    for trailing in (b"", raw):
        first = fed(Wire, HEARTBEAT + THEIRS + trailing, feed)
        assert HEARTBEAT + THEIRS + trailing in (first.to_broker, first.to_client)
        assert first.wire.c.phase in (Phase.CLOSING, Phase.CLOSED)
    w = Wire()
    w.broker(THEIRS)
    assert w.client(raw) == raw
    assert w.broker(raw) == raw


def test_the_rest_of_a_frame_that_was_dropped_is_not_let_through_by_a_close() -> None:
    """The client's close cuts into a return that it must not see; the broker's into a channel that we have refused."""
    w = Wire({"x": QUEUES}, confirming=True)
    (_, head) = split(w.client(publish(1, b"x", b"k") + header(1, 10)))
    w.client(body(1, b"0123456789"))
    sent = returned(1, b"", QUEUES.ring.owner_of(b"k").name.encode()) + head.whole + body(1, b"0123456789")
    assert w.broker(sent[:-5]) == b""
    assert w.client(THEIRS) == b""
    closing.pass_goodbye(w.c)
    assert w.to_broker() == THEIRS
    assert w.broker(sent[-5:] + CONNECTION_CLOSE_OK) == CONNECTION_CLOSE_OK
    w = refusing()
    assert w.client(body(1, b"0123456789")[:-5]) == b""
    assert w.broker(THEIRS) == THEIRS
    assert w.client(body(1, b"0123456789")[-5:] + CONNECTION_CLOSE_OK) == CONNECTION_CLOSE_OK


def test_returns_and_acks_that_come_before_the_brokers_close_ok_are_what_they_were() -> None:
    w = Wire({"x": QUEUES}, confirming=True)
    (_, head) = split(w.client(publish(1, b"x", b"k") + header(1, 0)))
    sent = returned(1, b"", QUEUES.ring.owner_of(b"k").name.encode()) + head.whole
    w.client(THEIRS)
    out = w.broker(sent + ack(1, 1) + CONNECTION_CLOSE_OK)
    (told, ok) = split(out)
    assert (told.id, ok.id) == ((60, 120), (10, 51))
    assert (w.counters("x").unroutable, w.counters("x").acked) == (1, 0)


# Transactions.


def in_transaction(after: bytes = b"") -> Wire:
    """A publish came back of which the client does not know; commit-ok is due."""
    w = Wire({"x": QUEUES, "t": known(None, PassReason.TYPE)})
    w.client(made(1, commands.Tx.Select()))
    (_, head) = split(w.client(publish(1, b"x", b"k") + header(1, 0)))
    w.client(message(1, b"x", b"k2") + made(1, commands.Tx.Commit()) + after)
    assert w.broker(returned(1, b"", QUEUES.ring.owner_of(b"k").name.encode()) + head.whole) == b""
    return w


def test_a_commit_of_a_lost_publish_closes_the_channel() -> None:
    w = in_transaction()
    broker_loop.from_broker(w.c, COMMIT_OK)
    assert w.to_client() == b""
    (close,) = split(w.to_broker())
    assert (close.id, w.c.channels[1].state) == ((20, 40), ChannelState.REFUSING)
    (refusal,) = split(w.broker(CLOSE_OK))
    assert code_of(refusal) == 541
    assert (w.counters("x").unroutable, w.counters("x").acked) == (1, 1)


@pytest.mark.parametrize("after", [CLOSE, THEIRS])
def test_a_commit_is_not_told_of_where_the_client_closes_already(after: bytes) -> None:
    w = in_transaction(after)
    ok = CLOSE_OK if after is CLOSE else CONNECTION_CLOSE_OK
    broker_loop.from_broker(w.c, COMMIT_OK + ok)
    assert w.to_client() == ok
    if after is CLOSE:
        assert w.to_broker() == b""


def test_a_commit_while_the_next_publish_is_under_way() -> None:
    w = in_transaction(publish(1, b"t", b"k") + header(1, 6) + body(1, b"abc"))
    broker_loop.from_broker(w.c, COMMIT_OK)
    assert (w.to_client(), w.to_broker()) == (b"", b"")
    out = w.client(body(1, b"def"))
    assert out.startswith(body(1, b"def"))
    (close,) = split(out[len(body(1, b"def")) :])
    assert close.id == (20, 40)


def test_two_commits_close_the_channel_once() -> None:
    w = in_transaction()
    (_, head) = split(w.client(publish(1, b"x", b"k3") + header(1, 0)))
    w.client(made(1, commands.Tx.Commit()))
    assert w.broker(returned(1, b"", QUEUES.ring.owner_of(b"k3").name.encode()) + head.whole) == b""
    broker_loop.from_broker(w.c, COMMIT_OK + COMMIT_OK)
    assert len(split(w.to_broker())) == 1
    assert w.to_client() == b""
