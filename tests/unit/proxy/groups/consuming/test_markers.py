"""Markers behind the last message of a shard: no client gets one, none is settled, and its link is let go behind it."""

from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from pamqp import commands

from proxy.groups.consuming import settle
from proxy.groups.consuming.rules import Rules
from proxy.groups.model import MOST_UNDER_WAY, LinkState, Member
from proxy.groups.operators import Act, Order
from proxy.groups.timing import FIRST_LINK_PAUSE
from proxy.session import broker_loop, client_loop
from proxy.wire.content import MARKER
from tests.unit.proxy.groups.consuming.grouping import FIRST, Grouping, closed, deliver, is_close, opened, seen
from tests.unit.proxy.session.wire import (
    ack,
    chunkings,
    entry,
    headers,
    long_string,
    made,
    method,
    split,
)

A, B = FIRST + 1, FIRST + 2
"""The hidden channels of the member's links to the shards q1 and q2."""

SERIAL: dict[str, Any] = {"arguments": {"x-ring-in-series": True}}
ENDING = entry(MARKER, b"l", pack(">q", 1))
ACK, CLOSE, CANCEL, CONSUME = (60, 80), (20, 40), (60, 30), (60, 20)


def marker(tag: int, number: int = A, entries: bytes = ENDING, **more: Any) -> bytes:
    """Return a marker that the broker delivers."""
    head = headers(number, 0, entries)
    return deliver(number, tag, b"", **{"exchange": b"", "key": b"q1", "head": head, **more})


def joined(**more: Any) -> tuple[Grouping, Member]:
    wire = Grouping()
    return wire, wire.join(**more)


def sent(wire: Grouping, data: bytes = b"") -> list[tuple[int, tuple[int, int]]]:
    """Return the channel and method of each frame that goes to the broker, after these bytes of the client."""
    if data:
        client_loop.from_client(wire.c, data)
    return [(each.channel, each.id) for each in split(wire.to_broker())]


def returned(tag: int) -> bytes:
    return method(1, 60, 120, pack(">QB", tag, 2))


# Markers and other messages


@pytest.mark.parametrize(
    "entries",
    [entry(MARKER, kind, value) for kind, value in ((b"b", b"\1"), (b"I", pack(">i", 2)), (b"l", pack(">q", 7)))]
    + [long_string(b"a", b"b") + ENDING, ENDING + entry(b"x-acquired-count", b"l", pack(">q", 3))],
    ids=["a byte", "an integer", "a long integer", "behind another header", "before the broker's own"],
)
@pytest.mark.parametrize("more", [{}, SERIAL, {"no_ack": True}], ids=["with acks", "in series", "without acks"])
def test_a_marker_reaches_no_client_and_is_not_settled(entries: bytes, more: dict[str, Any]) -> None:
    for chunking in chunkings(marker(1, entries=entries, redelivered=True)):
        wire, member = joined(**more)
        link = member.links["q1"]
        for chunk in chunking:
            broker_loop.from_broker(wire.c, chunk)
        assert wire.to_client() == b""
        assert sent(wire) == [(A, CANCEL if more.get("no_ack") else CLOSE)]
        assert (link.unacked, link.delivered, member.redelivered) == (0, 0, {})
        assert wire.told() == []
        assert wire.broker(deliver(B, 1)) == seen(1)


def message(**more: Any) -> bytes:
    return deliver(A, 1, b"", **{"exchange": b"", "key": b"q1", **more})


@pytest.mark.parametrize("more", [{}, SERIAL, {"no_ack": True}], ids=["with acks", "in series", "without acks"])
@pytest.mark.parametrize(
    ("data", "shown"),
    [
        pytest.param(message(), {}, id="no headers"),
        pytest.param(message(head=headers(A, 0, b"")), {"head": headers(1, 0, b"")}, id="an empty table"),
        *(
            pytest.param(message(head=headers(A, 0, each)), {"head": headers(1, 0, each)}, id=name)
            for name, each in {
                "a text": long_string(MARKER, b"1"),
                "a time": entry(MARKER, b"T", pack(">Q", 1)),
                "nothing": entry(MARKER, b"V", b""),
                "another name": entry(MARKER + b"s", b"l", pack(">q", 1)),
                "within another header": entry(b"a", b"F", pack(">I", len(ENDING)) + ENDING),
                "a table that stops early": ENDING[:-1],
            }.items()
        ),
        pytest.param(
            message(exchange=b"x", head=headers(A, 0, ENDING)),
            {"exchange": b"x", "head": headers(1, 0, ENDING)},
            id="through an exchange",
        ),
    ],
)
def test_another_message_without_a_body_is_delivered(data: bytes, shown: dict[str, Any], more: dict[str, Any]) -> None:
    expected = seen(1, b"", **{"exchange": b"", "key": b"q1", **shown})
    for chunking in chunkings(data):
        wire, _ = joined(**more)
        for chunk in chunking:
            broker_loop.from_broker(wire.c, chunk)
        assert (wire.to_client(), wire.to_broker()) == (expected, b"")


def test_a_message_with_a_body_and_one_that_a_ring_has_routed_are_no_markers() -> None:
    stamps = long_string(b"x-ring-exchange", b"x") + long_string(b"x-ring-routing-key", b"k") + ENDING
    wire, _ = joined()
    assert wire.both(marker(1, entries=stamps)) == (b"", seen(1, b"", head=headers(1, 0, stamps)))
    with_body = deliver(A, 2, b"x", exchange=b"", key=b"q1", head=headers(A, 1, ENDING))
    assert wire.both(with_body) == (b"", seen(2, b"x", exchange=b"", key=b"q1", head=headers(1, 1, ENDING)))


@pytest.mark.parametrize("more", [{}, SERIAL, {"no_ack": True}], ids=["with acks", "in series", "without acks"])
@pytest.mark.parametrize("ending", [frozenset(), frozenset({"q2"})], ids=["nothing ends", "another shard ends"])
def test_a_marker_of_a_shard_that_does_not_end_is_acked_and_stops_nothing(
    more: dict[str, Any], ending: frozenset[str], caplog: pytest.LogCaptureFixture
) -> None:
    for chunking in chunkings(marker(1) + marker(2)):
        caplog.clear()
        wire, member = joined(**more)
        member.ending = ending
        for chunk in chunking:
            broker_loop.from_broker(wire.c, chunk)
        assert wire.to_client() == b""
        assert sent(wire) == ([] if more.get("no_ack") else [(A, ACK), (A, ACK)])
        link = member.links["q1"]
        assert (link.state, link.unacked, link.is_marked) == (LinkState.OPEN, 0, False)
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert wire.broker(deliver(A, 3)) == seen(1)


def test_a_marker_of_a_shard_that_ends_ends_its_link() -> None:
    wire, member = joined()
    member.ending = frozenset({"q1"})
    broker_loop.from_broker(wire.c, marker(1))
    assert sent(wire) == [(A, CLOSE)]


# Without series


def test_a_link_ends_once_all_before_the_marker_is_acked_and_nothing_behind_it_is_passed() -> None:
    data = deliver(A, 1) + deliver(B, 1) + deliver(A, 2) + marker(3) + deliver(A, 4) + deliver(B, 2) + marker(5)
    for chunking in chunkings(data):
        wire, member = joined()
        for chunk in chunking:
            broker_loop.from_broker(wire.c, chunk)
        assert wire.to_client() == seen(1) + seen(2) + seen(3) + seen(4)
        link = member.links["q1"]
        assert (link.state, link.unacked, sent(wire)) == (LinkState.LEAVING, 2, [])
        (last, close) = split(wire.client(ack(1, 3, True)))[1:]
        assert ((last.channel, last.id), (close.channel, close.id)) == ((B, ACK), (A, CLOSE))
        wire.broker(closed(A))
        assert list(member.links) == ["q2"]


@pytest.mark.parametrize("answer", ["acks of each", "an ack of all", "rejects"])
def test_no_answer_of_the_client_takes_the_marker_in(answer: str) -> None:
    wire, _ = joined()
    wire.broker(deliver(A, 1) + deliver(A, 2) + marker(3))
    one = {"acks of each": lambda tag: ack(1, tag), "rejects": lambda tag: method(1, 60, 90, pack(">QB", tag, 0))}
    answers = ack(1, 0, True) if answer == "an ack of all" else one[answer](1) + one[answer](2)
    *frames, close = split(wire.client(answers))
    assert is_close(close)
    assert all(int.from_bytes(each.payload[4:12]) in (1, 2) for each in frames)


def test_what_the_client_returns_before_the_marker_goes_back_with_the_end_of_the_link() -> None:
    wire, _ = joined()
    wire.broker(deliver(A, 1) + deliver(A, 2) + marker(3))
    assert sent(wire, returned(1)) == []
    settle.hand_back(wire.consuming, float("inf"), float("inf"))
    assert sent(wire) == []
    assert sent(wire, ack(1, 2)) == [(A, ACK), (A, CLOSE)]


def test_a_client_that_recovers_before_the_marker_has_the_link_end() -> None:
    wire, _ = joined()
    wire.broker(deliver(A, 1) + marker(2))
    assert sent(wire, method(1, 60, 110, b"\1")) == [(1, (60, 110)), (A, CLOSE)]


def test_many_acks_before_a_marker_reach_the_queue_before_the_link_ends() -> None:
    wire, member = joined()
    many = MOST_UNDER_WAY + 1
    wire.broker(b"".join(deliver(A, tag) for tag in range(1, many + 1)) + marker(many + 1))
    assert sent(wire, b"".join(ack(1, tag) for tag in range(1, many + 1)))[-1] == (A, CONSUME)
    to_broker, _ = wire.both(made(A, commands.Basic.ConsumeOk(f"flush-{member.id}")))
    assert [each.id for each in split(to_broker)] == [CANCEL, CLOSE]


def test_a_member_without_acks_gets_what_comes_until_the_broker_has_cancelled_its_link_but_no_marker() -> None:
    wire, member = joined(no_ack=True)
    assert wire.both(deliver(A, 1) + marker(2)) == (made(A, commands.Basic.Cancel("c")), seen(1))
    assert wire.both(deliver(A, 3) + marker(4)) == (b"", seen(2))
    assert [each.id for each in split(wire.both(made(A, commands.Basic.CancelOk("c")))[0])] == [CLOSE]
    wire.broker(closed(A))
    assert list(member.links) == ["q2"]


# Events between the frames of a marker

Meanwhile = Callable[[Grouping, Member], None]


def close_channel(wire: Grouping, _: Member) -> None:
    client_loop.from_client(wire.c, made(1, commands.Channel.Close(200, "", 0, 0)))


MEANWHILE: dict[str, Meanwhile] = {
    "it is let go": lambda wire, member: wire.actions.let_go(member, "q1"),
    "it is given up": lambda wire, member: wire.actions.give_up(member, "q1"),
    "its client cancels": lambda wire, _: client_loop.from_client(wire.c, made(1, commands.Basic.Cancel("c"))),
    "its client closes its channel": close_channel,
    "its client acks all": lambda wire, _: client_loop.from_client(wire.c, ack(1, 0, True)),
    "its client recovers": lambda wire, _: client_loop.from_client(wire.c, method(1, 60, 110, b"\1")),
}


@pytest.mark.parametrize("more", [{}, SERIAL], ids=["with acks", "in series"])
@pytest.mark.parametrize("what", MEANWHILE.values(), ids=MEANWHILE)
def test_a_link_ends_once_whatever_happens_amidst_its_marker(what: Meanwhile, more: dict[str, Any]) -> None:
    data = marker(2)
    for cut in range(len(data) + 1):
        wire, member = joined(shards=["q1"], **more)
        link = member.links["q1"]
        wire.broker(deliver(A, 1))
        broker_loop.from_broker(wire.c, data[:cut])
        what(wire, member)
        broker_loop.from_broker(wire.c, data[cut:])
        client_loop.from_client(wire.c, ack(1, 1) if link.state in (LinkState.OPEN, LinkState.LEAVING) else b"")
        wire.c.now += 1
        settle.try_again(wire.consuming)  # what was recovered in series
        if member.links and link.state == LinkState.OPEN:
            client_loop.from_client(wire.c, ack(1, 2))
        frames = split(wire.to_broker())
        assert sum(each.channel == A and is_close(each) for each in frames) == 1, cut
        assert all(each.payload[4:12] == pack(">Q", 1) for each in frames if each.channel == A and each.id == ACK)
        assert MARKER not in wire.to_client()
        broker_loop.from_broker(wire.c, closed(A))
        assert (member.links, link.delivered <= 2) == ({}, True)


def test_what_comes_amidst_a_marker_waits_for_its_end() -> None:
    """The client's channel counts as busy until it is seen that the content is a marker."""
    wire, _ = joined()
    frames = [each.whole for each in split(marker(1))]
    answer = made(1, commands.Queue.DeclareOk("q", 1, 2))
    assert wire.broker(frames[0] + deliver(B, 1) + answer) == b""
    to_broker, to_client = wire.both(frames[1])
    assert ([each.id for each in split(to_broker)], to_client) == ([CLOSE], seen(1) + answer)


# In series


def serial(rules: Rules | None = None) -> tuple[Grouping, Member]:
    wire = Grouping()
    if rules is not None:
        wire.consuming.rules = rules
    return wire, wire.join(["q1"], **SERIAL)


def test_in_series_a_link_goes_on_until_all_before_its_marker_is_done() -> None:
    data = deliver(A, 1, key=b"a") + deliver(A, 2, key=b"a") + deliver(A, 3, key=b"b") + marker(4)
    for chunking in chunkings(data):
        wire, member = serial()
        for chunk in chunking:
            broker_loop.from_broker(wire.c, chunk)
        assert wire.to_client() == seen(1, key=b"a") + seen(2, key=b"b")
        link = member.links["q1"]
        assert (link.state, link.unacked) == (LinkState.OPEN, 2)
        assert wire.both(b"") == (b"", b"")
        client_loop.from_client(wire.c, ack(1, 1))
        assert (wire.to_broker(), wire.to_client()) == (ack(A, 1), seen(3, key=b"a"))
        assert sent(wire, ack(1, 3)) == [(A, ACK)]
        assert sent(wire, ack(1, 2)) == [(A, ACK), (A, CLOSE)]
        assert link.state == LinkState.CLOSING


def test_in_series_a_message_that_is_tried_again_holds_the_link() -> None:
    wire, member = serial()
    wire.broker(deliver(A, 1) + marker(2))
    link = member.links["q1"]
    for number in (1, 2, 3):
        assert sent(wire, returned(number)) == []
        wire.c.now += 100
        settle.try_again(wire.consuming)
        assert link.state == LinkState.OPEN
        assert wire.to_client()
    assert sent(wire, ack(1, 4)) == [(A, ACK), (A, CLOSE)]


def test_in_series_what_comes_behind_a_marker_is_an_ordinary_message_and_no_ack_takes_the_marker_in() -> None:
    wire, member = serial()
    wire.broker(deliver(A, 1, key=b"a") + marker(2) + deliver(A, 3, key=b"b") + marker(4) + deliver(A, 5, key=b"c"))
    assert member.links["q1"].state == LinkState.OPEN
    # Without markers it would be one ack of all up to 5.
    *acks, close = split(wire.client(ack(1, 0, True)))
    assert [(int.from_bytes(each.payload[4:12]), each.payload[12]) for each in acks] == [(3, 0), (5, 0), (1, 0)]
    assert is_close(close)


def test_in_series_a_link_without_messages_ends_at_once_and_what_comes_behind_goes_back() -> None:
    wire, member = serial()
    to_broker, to_client = wire.both(marker(1) + deliver(A, 2))
    assert ([each.id for each in split(to_broker)], to_client) == ([CLOSE], b"")
    assert member.links["q1"].unacked == 0


def test_in_series_many_acks_reach_the_queue_before_the_link_ends() -> None:
    wire, member = serial()
    many = 2 * MOST_UNDER_WAY + 2
    data = b"".join(deliver(A, tag, key=b"%d" % tag) for tag in range(1, many + 1)) + marker(many + 1)
    wire.broker(data)
    assert sent(wire, b"".join(ack(1, tag) for tag in range(2, many + 1, 2))) == [(A, ACK)] * (many // 2)
    assert sent(wire, b"".join(ack(1, tag) for tag in range(1, many + 1, 2))) == [(A, ACK), (A, CONSUME)]
    assert member.links["q1"].state == LinkState.FLUSHING


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_in_series_a_dead_letter_holds_the_link_until_it_is_confirmed(is_confirmed: bool) -> None:
    wire, member = serial(Rules(200, 0.1, 0.5, 1, dead_letters=True))
    wire.broker(deliver(A, 1) + marker(2))
    wire.client(returned(1))
    wire.c.now += 100
    settle.try_again(wire.consuming)
    assert sent(wire) == []
    (due,) = wire.told()
    settle.dead_lettered(wire.consuming, due.held, is_confirmed=is_confirmed)  # type: ignore[union-attr]
    assert sent(wire) == ([(A, ACK), (A, CLOSE)] if is_confirmed else [])
    assert member.links["q1"].state == (LinkState.CLOSING if is_confirmed else LinkState.OPEN)


def test_in_series_a_message_that_an_operator_skips_holds_the_link_no_more() -> None:
    wire, member = serial(Rules(200, 5.0, 5.0, 1))
    wire.broker(deliver(A, 1) + marker(2))
    wire.client(returned(1))
    wire.c.now += 100
    settle.try_again(wire.consuming)
    (key,) = wire.actions.blocked_keys(member, "q1")
    assert wire.actions.operate(member, Order(Act.SKIP, "q1", key.key_hash, key.fingerprint)) == ""
    assert sent(wire) == [(A, ACK), (A, CLOSE)]


def test_in_series_a_marker_is_no_message_that_an_operator_sees_or_that_is_overdue() -> None:
    wire, member = serial()
    wire.broker(deliver(A, 1) + marker(2))
    wire.actions.let_go(member, "q1")
    assert wire.actions.blocked_keys(member, "q1") == []
    assert list(wire.actions.oldest_unacked(member)) == ["q1"]
    assert sent(wire, ack(1, 1)) == [(A, ACK), (A, CLOSE)]


# Afterwards


@pytest.mark.parametrize("more", [{}, SERIAL], ids=["with acks", "in series"])
def test_a_member_that_let_a_shard_go_at_a_marker_pauses_from_the_end_of_the_link_on(more: dict[str, Any]) -> None:
    wire, member = joined(**more)
    wire.broker(deliver(A, 1) + marker(2))
    wire.c.now += 50
    assert member.endings == {}
    wire.client(ack(1, 1))
    wire.broker(closed(A))
    assert member.endings["q1"][:2] == (wire.c.now + FIRST_LINK_PAUSE, FIRST_LINK_PAUSE)
    assert member.pauses == {}


def test_the_log_tells_once_that_a_shard_is_let_go_and_pauses_get_longer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    wire = Grouping()
    member = wire.begin(["q1"])
    wire.to_broker()
    wire.to_client()
    lengths = []
    for _ in range(3):
        link = member.links["q1"]
        wire.both(opened(link.channel) + marker(1, link.channel) + marker(2, link.channel))
        wire.both(closed(link.channel))
        lengths.append(member.endings["q1"].length)
        wire.actions.open(member, "q1")
        wire.to_broker()
    assert lengths == [FIRST_LINK_PAUSE * times for times in (1, 2, 4)]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert "shard 'q1' ends with its generation" in line
