"""Frames that wait for messages on their way again, ends of channels and sessions, and publishes that stay returned."""

from collections.abc import Callable

import pytest
from pamqp import commands

from proxy.session import closing
from proxy.session.backlog import Wait
from proxy.session.events import Stale
from proxy.session.state import ChannelState, Phase
from proxy.topology.table import PassReason, Unread
from tests.unit.proxy.session.republishing import (
    CLOSE_OK,
    KEPT,
    LEFT,
    LOST,
    OURS,
    again,
    away,
    connected,
    counted,
    frames_of,
)
from tests.unit.proxy.session.wire import (
    CONNECTION_CLOSE_OK,
    HEARTBEAT,
    VHOST,
    Frame,
    Published,
    Wire,
    ack,
    back,
    body,
    close_channel,
    close_connection,
    code_of,
    confirm_select,
    contents,
    exchange,
    header,
    headers,
    known,
    long_string,
    made,
    message,
    nack,
    publish,
    queue,
    returned,
    ring,
    split,
)

CLOSE, OPEN, OPEN_OK = (
    made(1, each)
    for each in (commands.Channel.Close(200, "", 0, 0), commands.Channel.Open(), commands.Channel.OpenOk())
)
SELECT, COMMIT, COMMIT_OK = (
    made(1, each) for each in (commands.Tx.Select(), commands.Tx.Commit(), commands.Tx.CommitOk())
)
BIND, BIND_OK = made(1, commands.Exchange.Bind(0, "a", "x", "1")), made(1, commands.Exchange.BindOk())
LEAVE = close_connection(200, b"")


def in_transaction(count: int = 1, *, bits: int = 0) -> Wire:
    """As many publishes came back at the commit, whose commit-ok is due."""
    w = connected(confirming=False)
    w.client(SELECT)
    outs = [w.client(message(1, b"x", key, b"hello", bits)) for key in LOST[:count]]
    w.client(COMMIT)
    w.both(b"".join(map(back, outs)))
    assert len(again(w.reread({"x": LEFT})[0])) == count
    return w


# Frames that wait


def test_a_commit_ok_waits_for_all_and_what_follows_behind_it() -> None:
    w = in_transaction(2)
    w.client(BIND + COMMIT)
    rest = BIND_OK + COMMIT_OK
    for each in (COMMIT_OK, rest, ack(OURS, 2)):
        assert w.both(each) == (b"", b"")
    assert w.c.events == []
    assert w.both(ack(OURS, 1) + ack(2, 7)) == (b"", COMMIT_OK + rest + ack(2, 7))
    assert len(w.c.events) == 1
    channel = w.c.channels[1]
    assert (list(channel.pending or ()), channel.declaring, channel.deferred) == ([], 0, [])
    assert counted(w) == (2, 2, 0, 0, 0, 0)


def test_a_commit_ok_after_all_is_decided_passes() -> None:
    w = in_transaction()
    assert w.both(ack(OURS, 1)) == (b"", b"")
    assert w.both(COMMIT_OK) == (b"", COMMIT_OK)
    assert counted(w) == (1, 1, 0, 0, 0, 0)


@pytest.mark.parametrize("answer", [nack(OURS, 1), close_channel(OURS, 404, b"NOT_FOUND")])
def test_a_commit_whose_message_is_lost_closes_the_channel_in_its_place(answer: bytes) -> None:
    w = in_transaction()
    w.both(COMMIT_OK)
    to_broker, to_client = w.both(answer)
    (close,) = [each for each in split(to_broker) if each.channel == 1]
    assert (code_of(close), to_client) == (200, b"")
    (told,) = split(w.broker(CLOSE_OK))
    assert code_of(told) == 541


def test_a_rolled_back_transaction_behind_a_commit() -> None:
    w = in_transaction()
    w.client(message(1, b"x", KEPT[0]) + made(1, commands.Tx.Rollback()))
    rolled_back = made(1, commands.Tx.RollbackOk())
    assert w.both(COMMIT_OK + rolled_back) == (b"", b"")
    assert w.both(ack(OURS, 1)) == (b"", COMMIT_OK + rolled_back)
    assert counted(w)[:5] == (2, 1, 0, 0, 0)


@pytest.mark.parametrize("confirming", [False, True])
@pytest.mark.parametrize("answer", [ack, nack])
def test_a_close_ok_waits_for_all(confirming: bool, answer: Callable[[int, int, bool], bytes]) -> None:
    w, _ = away(2, confirming=confirming)
    assert w.client(CLOSE) == CLOSE
    assert w.both((ack(1, 2, True) if confirming else b"") + CLOSE_OK) == (b"", b"")
    told = (ack(1, 1, True) + ack(1, 2) if answer is ack else nack(1, 1) + nack(1, 2)) if confirming else b""
    assert w.both(answer(OURS, 2, True) + ack(2, 7)) == (b"", told + CLOSE_OK + ack(2, 7))
    assert 1 not in w.c.channels


def test_the_number_opened_again_waits_for_the_close_ok() -> None:
    w, _ = away(2)
    w.client(CLOSE)
    w.both(CLOSE_OK + ack(OURS, 1))
    assert w.client(OPEN + confirm_select(1) + message(1, b"x", KEPT[0])) == b""
    assert w.waits_for is Wait.BEING_CLOSED
    assert w.both(ack(OURS, 2)) == (b"", CLOSE_OK)
    assert w.client(b"").startswith(OPEN + confirm_select(1))
    assert w.both(OPEN_OK + ack(1, 1)) == (b"", OPEN_OK + ack(1, 1))
    assert counted(w) == (3, 1, 0, 0, 2, 0)


def test_another_incarnation_of_a_channel_that_the_broker_closed_hears_nothing_of_it() -> None:
    w, _ = away(2)
    w.both(ack(1, 1))
    w.broker(close_channel(1, 406, b"PRECONDITION_FAILED"))
    w.client(CLOSE_OK + OPEN + confirm_select(1) + message(1, b"x", KEPT[0]))
    assert w.both(ack(OURS, 2, True)) == (b"", b"")
    assert w.both(ack(1, 1)) == (b"", ack(1, 1))
    assert counted(w) == (3, 1, 0, 0, 2, 0)


def test_a_channel_that_we_close_is_closed_after_it() -> None:
    w, _ = away()
    closing.refuse_channel(w.c, w.c.channels[1], 541, "for a reason")
    assert code_of(split(w.to_broker())[0]) == 200
    assert w.both(ack(1, 1) + CLOSE_OK) == (b"", b"")
    told = split(w.both(ack(OURS, 1))[1])
    assert [told[0].whole, code_of(told[1])] == [ack(1, 1), 541]
    assert w.c.channels[1].state == ChannelState.REFUSED


# The end of the connection.


def test_a_close_passes_at_once_where_nothing_can_come_back() -> None:
    w = connected()
    w.client(message(1, b"x", KEPT[0]) + message(2, b"t", b"k"))
    w.broker(ack(1, 1) + ack(2, 1))
    assert w.client(LEAVE) == LEAVE
    assert w.c.phase in (Phase.CLOSING, Phase.CLOSED)
    assert w.client(HEARTBEAT) == HEARTBEAT


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_channels_without_confirms_are_closed_before_and_not_in_the_midst_of_a_content(cut: int) -> None:
    w = connected(confirming=False)
    data = message(1, b"x", LOST[0]) + message(2, b"t", b"k") + LEAVE + HEARTBEAT + message(1, b"t", b"late")
    to_broker = w.client(data[:cut]) + w.client(data[cut:])
    (one, close) = contents(to_broker, 1)
    assert isinstance(one, Published)
    assert isinstance(close, Frame)
    assert (one.body, code_of(close), w.c.phase) == (b"hello", 200, Phase.LEAVING)
    assert len(contents(to_broker, 2)) == 1
    assert [each for each in split(to_broker) if not each.channel] == []
    came = back(frames_of(one._replace(channel=1)))
    w.both(came + CLOSE_OK)
    assert again(w.reread({"x": LEFT})[0])
    assert closing.awaits_answers(w.c)
    assert w.both(ack(OURS, 1)) == (b"", b"")
    assert not closing.awaits_answers(w.c)
    closing.pass_goodbye(w.c)
    assert w.to_broker() == LEAVE
    assert w.broker(CONNECTION_CLOSE_OK) == CONNECTION_CLOSE_OK


def test_a_close_waits_for_the_last_answer_and_nothing_of_the_client_goes_out_after_it() -> None:
    w, _ = away(2, kept=1)
    w.client(confirm_select(2) + message(2, b"x", KEPT[0]))
    assert w.client(LEAVE + message(1, b"t", b"late") + HEARTBEAT) == b""
    for each, told in (
        (ack(1, 3), ack(1, 3)),
        (ack(1, 2, True), b""),
        (ack(OURS, 1), ack(1, 1, True)),
        (ack(2, 1), ack(2, 1)),
    ):
        assert closing.awaits_answers(w.c)
        assert w.both(each) == (b"", told)
        assert w.client(message(1, b"x", b"k")) == b""
    assert w.both(ack(OURS, 2)) == (b"", ack(1, 2))
    assert not closing.awaits_answers(w.c)
    closing.pass_goodbye(w.c)
    assert w.to_broker() == LEAVE
    assert counted(w) == (4, 4, 0, 0, 0, 0)


@pytest.mark.parametrize("confirming", [False, True])
def test_a_close_waits_while_a_ring_is_read(confirming: bool) -> None:
    w = connected(confirming=confirming)
    out = w.client(message(1, b"x", LOST[0]))
    w.both(back(out) + (ack(1, 1) if confirming else b""))
    assert LEAVE not in w.client(LEAVE)
    assert closing.awaits_answers(w.c)
    assert [one.body for one in again(w.reread({"x": LEFT})[0])] == [b"hello"]
    assert w.both((b"" if confirming else CLOSE_OK) + ack(OURS, 1)) == (b"", ack(1, 1) if confirming else b"")
    assert not closing.awaits_answers(w.c)


@pytest.mark.parametrize("before", [CLOSE, confirm_select(1)], ids=["closing", "confirms begin"])
def test_a_close_waits_for_what_may_come_back_unconfirmed(before: bytes) -> None:
    w = connected(confirming=False)
    out = w.client(message(1, b"x", LOST[0]))
    assert LEAVE not in w.client(before + LEAVE)
    assert closing.awaits_answers(w.c)
    w.both(back(out) + CLOSE_OK)
    assert [one.body for one in again(w.reread({"x": LEFT})[0])] == [b"hello"]
    w.both(ack(OURS, 1))
    assert not closing.awaits_answers(w.c)


def test_what_comes_back_after_that_is_not_published_again() -> None:
    w = connected(confirming=False)
    out = w.client(message(1, b"x", LOST[0]))
    w.c.phase = Phase.CLOSING
    assert w.both(back(out)) == (b"", b"")
    assert w.awaited is None
    assert counted(w) == (1, 0, 0, 1, 0, 1)


# Returned messages that cannot go out again, or are not the session's own


def test_publishes_before_confirm_select_go_out_again_and_are_not_acked() -> None:
    w = connected(confirming=False)
    outs = [w.client(message(1, b"x", LOST[0]))]
    w.client(confirm_select(1))
    outs += [w.client(message(1, b"x", key)) for key in LOST[1:3]]
    w.both(back(outs[0]) + back(outs[2]))
    assert len(again(w.reread({"x": LEFT})[0])) == 2
    assert w.both(ack(1, 2, True)) == (b"", ack(1, 1, True))
    assert w.both(nack(OURS, 1)) == (b"", b"")
    assert w.both(ack(OURS, 2)) == (b"", ack(1, 2, True))
    # The first was sent, and nacked in the end.
    assert counted(w) == (3, 2, 1, 0, 0, 1)


def test_one_whose_header_does_not_fit_again_is_its_clients() -> None:
    """Copies are put back for an exchange."""
    w = connected(frame_max=4096)
    head = headers(1, 0, long_string(b"a", b"b" * 60) + long_string(b"CC", bytes(3950)))
    out = w.client(publish(1, b"x", LOST[0], 1) + head)
    assert b"x-ring" in out
    w.both(back(out) + ack(1, 1))
    assert w.reread({"x": ring(exchange("y"))}) == (b"", returned(1, b"x", LOST[0]) + head + ack(1, 1))
    assert w.counters("x").rerouted == 0


def test_nothing_is_done_about_returns_on_our_channel_that_nobody_waits_for() -> None:
    w, (one,) = away()
    stray = returned(OURS, b"", b"q") + header(OURS, 5) + body(OURS, b"he") + body(OURS, b"llo")
    answers = ack(OURS, 9) + nack(OURS, 77) + ack(OURS, 0)
    assert w.both(stray + answers) == (b"", b"")
    assert w.both(back(frames_of(one._replace(header=one.header[:-1] + b"\x77")))) == (b"", b"")
    assert w.both(ack(1, 1) + ack(OURS, 1)) == (b"", ack(1, 1))


def test_a_reading_that_leads_to_another_that_is_missing_is_followed() -> None:
    """The exchange, then the ring behind it, then, as that names the same queue, that its end is vouched for."""
    w = connected()
    outs = [w.client(message(1, b"x", key)) for key in LOST[:2]]
    w.router.drop((VHOST, "x"))
    w.both(b"".join(map(back, outs)))
    wanted = [w.awaited]
    for found in ({"x": ring(exchange("z"))}, {"z": ring(queue("q2"))}):
        assert w.reread(found) == (b"", b"")
        wanted.append(w.awaited)
    gone = Stale((VHOST, "z"), queue("q2"))
    assert wanted == [Unread((VHOST, "x"), "not read yet"), Unread((VHOST, "z"), "not read yet"), gone]
    sent = again(w.reread({"z": ring(queue("q8"))})[0])
    assert [(one.key, one.body) for one in sent] == [(b"q8", b"hello")] * 2


@pytest.mark.parametrize("first", [0, 1])
def test_of_two_alike_that_an_exchange_passed_the_one_that_came_back_is_meant(first: int) -> None:
    w = connected()
    outs = [w.client(message(1, b"x", LOST[0], each)) for each in (b"A", b"B")]
    w.both(b"".join(map(back, outs)) + ack(1, 1) + ack(1, 2))
    alike = again(w.reread({"x": known(None, PassReason.NO_BINDINGS)})[0])
    told = (nack if first == 0 else ack)(1, 1), (nack if first == 1 else ack)(1, 2)
    assert w.both(back(frames_of(alike[first])))[1] == told[first]
    assert w.both(ack(OURS, 2) + ack(OURS, 1)) == (b"", told[1 - first])
    assert counted(w) == (2, 1, 0, 1, 0, 0)


def test_a_nack_of_all_nacks_none_that_the_broker_acked_before() -> None:
    """Acks that wait for one that is on its way again."""
    w, _ = away(kept=5)
    assert w.both(ack(1, 5, True)) == (b"", b"".join(ack(1, n) for n in range(2, 6)))
    assert w.both(nack(1, 6, True)) == (b"", nack(1, 6))
    assert w.both(ack(OURS, 1)) == (b"", ack(1, 1, True))
    assert counted(w) == (6, 5, 1, 0, 0, 0)


def test_a_channel_that_is_abandoned_within_a_return_gathers_nothing_any_more() -> None:
    w = connected()
    came = back(w.client(message(1, b"x", LOST[0], b"hello", 1)), 3)
    channel = w.c.channels[1]
    w.both(came[: came.index(b"hel") + 4])
    w.reread({})
    assert (channel in w.c.republishing.returning, w.c.republishing.gathering) == (True, 1)
    channel.state = ChannelState.REFUSING
    closing.abandon(w.c, channel)
    w.to_client()
    assert w.both(came[came.index(b"hel") + 4 :]) == (b"", b"")
    assert w.c.republishing.gathering == 0
