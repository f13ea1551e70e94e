"""The publishes that are published again and those that are not; and the messages that nobody waits for."""

from pamqp import commands

from proxy.session import closing
from proxy.session.channel_zero import WITHOUT_SPARE
from proxy.session.events import Event, Stale
from proxy.session.publishing.placement import RECENT
from proxy.session.state import ChannelState, Phase
from proxy.topology.table import PassReason
from ring.hashed import HashedValue
from tests.unit.proxy.session.republishing import GONE, LEFT, LOST, OURS, away, connected
from tests.unit.proxy.session.wire import (
    NOW,
    QUEUES,
    VHOST,
    Frame,
    ack,
    back,
    body,
    close_channel,
    close_connection,
    exchange,
    header,
    known,
    made,
    message,
    nack,
    publish,
    queue,
    returned,
    ring,
    split,
)

COMMIT_OK = made(1, commands.Tx.CommitOk())


def test_a_copy_that_the_client_sends_elsewhere_is_its_own() -> None:
    """With the headers that it came with, on the channel of its original, which nobody has confirmed."""
    for confirming in (False, True):
        w = connected(confirming=confirming)
        out = w.client(publish(1, b"x", LOST[0], 1) + header(1, 3) + body(1, b"abc"))
        copy = Frame(2, 1, split(out)[1].payload).whole + body(1, b"abc")
        for sent_to, key in ((b"", b"nosuch"), (b"t", LOST[0]), (b"", b"q1")):
            w.client(publish(1, sent_to, key, 1) + copy)
            assert w.both(returned(1, sent_to, key) + copy) == (b"", returned(1, sent_to, key) + copy)
            assert w.awaited is None
        w.both(back(out))
        assert w.awaited == GONE


def test_with_rings_behind_rings_the_one_that_chose_is_read_again() -> None:
    w = connected(x=ring(exchange("z")))
    w.router.put((VHOST, "z"), known(QUEUES))
    out = w.client(message(1, b"x", LOST[0]))
    assert w.both(back(out)) == (b"", b"")
    assert w.awaited == Stale((VHOST, "z"), queue("q2"))
    to_broker, _ = w.reread({"z": LEFT})
    assert to_broker
    assert w.both(ack(1, 1) + ack(OURS, 1)) == (b"", ack(1, 1))


def test_what_an_exchange_of_the_ring_does_not_deliver_keeps_nobody_waiting() -> None:
    w = connected(x=ring(exchange("y")))
    looked_at: list[Event] = [Stale((VHOST, "x"), None)]
    for number, age, events in ((1, RECENT / 2, []), (2, RECENT, looked_at)):
        w.c.now = NOW + age
        out = w.client(message(1, b"x", b"k"))
        assert w.both(back(out) + ack(1, number)) == (b"", ack(1, number))
        assert w.awaited is None
        assert w.c.events == events, "its ring is read again unless that was done a moment ago"
    assert w.counters("x").unroutable == 2


def test_a_channel_that_the_broker_has_closed_is_neither_waited_for_nor_told() -> None:
    w, _ = away(2)
    w.both(ack(1, 1))
    assert closing.awaits_answers(w.c)
    close = close_channel(1, 404, b"no exchange")
    assert w.both(close) == (b"", close)
    assert w.c.channels[1].state == ChannelState.CLOSED
    assert w.both(ack(OURS, 2, True)) == (b"", b"")
    assert not closing.awaits_answers(w.c)
    goodbye = made(0, commands.Connection.Close(200, "", 0, 0))
    assert w.client(goodbye) == goodbye
    assert w.c.phase in (Phase.CLOSING, Phase.CLOSED)
    assert w.counters("x").unknown == 2


def test_no_later_commit_is_taken_for_one_that_lost_something() -> None:
    w = connected(confirming=False)
    w.client(made(1, commands.Tx.Select()))
    w.both(made(1, commands.Tx.SelectOk()))
    out = w.client(message(1, b"x", LOST[0]))
    w.client(made(1, commands.Tx.Commit()) * 2)
    w.both(back(out))
    w.reread({})
    to_broker, to_client = w.both(COMMIT_OK + COMMIT_OK)
    assert [one.id for one in split(to_broker)] == [(20, 40)]
    assert to_client == b""
    assert [one.id for one in split(w.both(made(1, commands.Channel.CloseOk()))[1])] == [(20, 40)]


def test_the_reason_to_pass_is_counted_where_a_message_goes_to_its_exchange() -> None:
    """It is a publish into the exchange as any that passes."""
    w = connected()
    out = w.client(message(1, b"x", LOST[0]))
    w.both(back(out))
    w.reread({"x": known(None, PassReason.NO_BINDINGS)})
    w.both(ack(1, 1) + ack(OURS, 1))
    assert (w.counters("x", PassReason.NO_BINDINGS).published, w.counters("x").acked) == (1, 1)


def test_one_whose_value_cannot_be_read_is_not_published_again() -> None:
    """By its key it went out as it was; by the property that is hashed now there is no place for it."""
    w = connected()
    out = w.client(publish(1, b"x", LOST[0]) + header(1, 0, 1 << 10, b"\x09cut"))
    w.both(back(out))
    by_id = ring(queue("q1"), queue("q3"), hashed=HashedValue("property", "correlation_id"))
    assert w.reread({"x": by_id}) == (b"", b"")
    assert w.both(ack(1, 1)) == (b"", nack(1, 1))
    assert w.counters("x").unroutable == 1


def test_of_all_alike_that_went_out_unstamped_none_is_acked() -> None:
    """Which of them came back cannot be told: its client sees each, and gets a nack for all that it may not expect."""
    for lost in ([1], [2], [0, 1], [1, 2], [0, 1, 2]):
        w = connected(frame_max=4096)
        head = header(1, 0, 1 << 12, bytes(4060))
        outs = [w.client(publish(1, b"x", LOST[0], bits) + head) for bits in (0, 0, 1)]
        assert all(b"x-ring" not in out for out in outs)
        seen = (returned(1, b"x", LOST[0]) + head) * len(lost)
        assert w.both(b"".join(back(outs[n]) for n in lost)) == (b"", seen)
        assert w.both(ack(1, 3, True)) == (b"", nack(1, 1) + nack(1, 2) + ack(1, 3, True))
        assert w.counters("x").unroutable == max(len(lost), 2)


def test_an_unstamped_return_does_not_keep_a_stamped_one_from_going_out_again() -> None:
    w = connected(frame_max=4096)
    large = w.client(publish(1, b"x", LOST[0]) + header(1, 0, 1 << 12, bytes(4060)))
    out = w.client(message(1, b"x", LOST[1]))
    w.both(back(large))
    assert w.awaited is None
    w.both(back(out))
    assert w.awaited == GONE


def test_since_when_it_is_under_way() -> None:
    w = connected()
    outs = [w.client(message(1, b"x", key)) for key in LOST[:2]]
    w.both(back(outs[0]))
    w.reread({"x": LEFT})
    w.c.now = NOW + 1
    w.both(back(outs[1]))
    assert w.c.republishing is not None
    assert w.c.republishing.since == NOW
    assert len(w.c.republishing.under_way) == 2
    w.both(ack(OURS, 1))
    assert w.c.republishing.since == NOW + 1
    w.both(ack(OURS, 2))
    assert w.c.republishing.since is None


def test_a_user_without_a_channel_for_it_is_left_alone_for_a_while() -> None:
    """The next session of his, and any other's: only his virtual host and his name count."""
    w, _ = away()
    w.c.now = NOW
    limited = close_connection(530, b"NOT_ALLOWED - too many channels")
    assert w.both(limited)[1].endswith(limited)
    barred = w.c.republishing.barred
    assert barred == {(VHOST, b""): NOW + WITHOUT_SPARE}

    def tried_at(now: float, user: bytes = b"") -> bool:
        """Whether what comes back is read for, to be published again; else it is nacked at once."""
        w = connected()
        w.c.republishing.barred, w.c.now, w.c.handshake.user = barred, now, user
        told = w.both(back(w.client(message(1, b"x", LOST[0]))) + ack(1, 1))
        assert told == (b"", b"" if w.awaited else nack(1, 1))
        return w.awaited == GONE

    assert not tried_at(NOW + WITHOUT_SPARE - 1)
    assert tried_at(NOW + WITHOUT_SPARE)
    assert tried_at(NOW, user=b"another")


def test_a_connection_that_is_refused_for_something_else_bars_nobody() -> None:
    w, _ = away()
    w.both(close_connection(320, b"CONNECTION_FORCED"))
    assert w.c.republishing.barred == {}
